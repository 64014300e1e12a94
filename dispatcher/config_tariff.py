"""``[region.tariff]``: what a site pays for its power, as checked values, and the tariff made of them.

Every figure has its unit in its key, per MWh or per kWh; it knows nothing of feeds, of other sections or of the draw.
"""

import re
from collections.abc import Iterator
from datetime import date, time
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from signals.tariffs import DemandTerms, Tariff, TariffType
from signals.time_of_use import Period, cover_problems, parse_days, parse_minute, parse_months

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


#: An amount of money; no contract has one a thousandth as large, and sums of such stay finite.
Amount = Annotated[float, BeforeValidator(_no_flag), Field(ge=-1e6, le=1e6)]


class _Table(BaseModel):
    """A part of the tariff: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


def check_zone(value: str) -> str:
    """``value``, which must name a time zone; ValueError with the remedy otherwise."""
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError) as error:
        raise ValueError("must be an IANA time zone such as 'Europe/Berlin'") from error
    return value


def _per_mwh(per_mwh: float | None, per_kwh: float | None) -> float | None:
    return per_mwh if per_kwh is None else per_kwh * 1000.0


class HoursConfig(_Table):
    """Hours of the week and the year: ``[[region.tariff.demand_window]]``, and the hours of a price."""

    name: Name
    days: str = "mon-sun"
    months: str = "jan-dec"
    start: str = Field("00:00", alias="from")
    end: str = Field("24:00", alias="to")

    @field_validator("start", "end", mode="before")
    @classmethod
    def _local_time(cls, value: Any) -> Any:
        return value.strftime("%H:%M") if isinstance(value, time) else value

    @field_validator("days", "months", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list) else value

    @field_validator("days")
    @classmethod
    def _known_days(cls, value: str) -> str:
        parse_days(value)
        return value

    @field_validator("months")
    @classmethod
    def _known_months(cls, value: str) -> str:
        parse_months(value)
        return value

    @field_validator("start", "end")
    @classmethod
    def _known_time(cls, value: str) -> str:
        parse_minute(value)
        return value

    def _period(self, per_mwh: float | None) -> Period:
        hours = parse_minute(self.start), parse_minute(self.end)
        return Period(self.name, parse_days(self.days), parse_months(self.months), *hours, per_mwh)

    def period(self) -> Period:
        """The hours without a price."""
        return self._period(None)


class EnergyPeriodConfig(HoursConfig):
    """``[[region.tariff.period]]``: a price of energy and its hours."""

    energy_per_mwh: Amount | None = None
    energy_per_kwh: Amount | None = None

    @model_validator(mode="after")
    def _one_price(self) -> "EnergyPeriodConfig":
        if (self.energy_per_mwh is None) == (self.energy_per_kwh is None):
            raise ValueError("give one of energy_per_mwh and energy_per_kwh; 0 when energy is free then")
        return self

    def period(self) -> Period:
        """The hours with their price."""
        return self._period(_per_mwh(self.energy_per_mwh, self.energy_per_kwh))


class FeePeriodConfig(HoursConfig):
    """``[[region.tariff.grid_fee]]``: a grid fee and its hours."""

    fee_per_mwh: Amount | None = None
    fee_per_kwh: Amount | None = None

    @model_validator(mode="after")
    def _one_fee(self) -> "FeePeriodConfig":
        if (self.fee_per_mwh is None) == (self.fee_per_kwh is None):
            raise ValueError("give one of fee_per_mwh and fee_per_kwh; 0 when there is no fee then")
        return self

    def period(self) -> Period:
        """The hours with their fee."""
        return self._period(_per_mwh(self.fee_per_mwh, self.fee_per_kwh))


#: The keys of each type's price of energy.
_ENERGY_KEYS = {
    "fixed": ("energy_per_mwh", "energy_per_kwh"),
    "time_of_use": ("period",),
    "indexed": ("factor", "adder_per_mwh", "adder_per_kwh"),
}
_DEMAND_KEYS = ("peak_kw", "peak_month", "demand_window", "demand_interval_minutes")


class TariffConfig(_Table):
    """``[region.tariff]``: a contract for power. What it does not name it does not have; nothing is assumed to be 0."""

    name: Name | Literal[""] = ""
    type: Literal["fixed", "time_of_use", "indexed"]
    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
    timezone: str
    energy_per_mwh: Amount | None = None
    energy_per_kwh: Amount | None = None
    periods: list[EnergyPeriodConfig] = Field([], alias="period")
    factor: Amount | None = Field(None, ge=0)
    adder_per_mwh: Amount | None = None
    adder_per_kwh: Amount | None = None
    grid_fee_per_mwh: Amount | None = None
    grid_fee_per_kwh: Amount | None = None
    grid_fees: list[FeePeriodConfig] = Field([], alias="grid_fee")
    taxes_per_mwh: Amount | None = None
    taxes_per_kwh: Amount | None = None
    vat: Amount | None = Field(None, ge=0, lt=1)
    holidays: list[date] = []
    demand_charge_per_kw_month: Amount | None = Field(None, ge=0)
    demand_interval_minutes: Literal[5, 10, 15, 30, 60] = 15
    demand_windows: list[HoursConfig] = Field([], alias="demand_window")
    peak_kw: float | Literal["learned"] | None = None
    peak_month: str | None = None

    _known_zone = field_validator("timezone")(check_zone)

    @field_validator("peak_kw", mode="before")
    @classmethod
    def _draw_or_learned(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and value != "learned" and not (number and 0 <= value < 1e9):
            raise ValueError("must be a draw in kW, 0 or more, or 'learned' for the highest that is measured")
        return value

    @field_validator("peak_month")
    @classmethod
    def _month(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", value):
            raise ValueError("must be a month such as '2026-12'")
        return value

    @model_validator(mode="after")
    def _whole(self) -> "TariffConfig":
        problems = list(self._problems())
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> Iterator[str]:
        given = {self.__class__.model_fields[key].alias or key for key in self.model_fields_set}
        for pair in ("energy", "adder", "grid_fee", "taxes"):
            if {f"{pair}_per_mwh", f"{pair}_per_kwh"} <= given:
                yield f"give {pair}_per_mwh or {pair}_per_kwh, not both"
        for other, keys in _ENERGY_KEYS.items():
            for key in keys if other != self.type else ():
                if key in given:
                    yield f"{key} belongs to a tariff of type {other}, not {self.type}; remove it or change the type"
        if self.type == "fixed" and not given & set(_ENERGY_KEYS["fixed"]):
            yield "a fixed tariff needs energy_per_mwh or energy_per_kwh"
        if self.type == "time_of_use" and not self.periods:
            yield "a time_of_use tariff needs [[region.tariff.period]] tables that cover every hour"
        if self.type == "indexed" and self.factor is None:
            yield "an indexed tariff needs factor, what the wholesale price is multiplied with; 1.0 to pass it on as it is"
        if self.type == "indexed" and not given & {"adder_per_mwh", "adder_per_kwh"}:
            yield "an indexed tariff needs adder_per_mwh or adder_per_kwh, what is added to the wholesale price; 0 for nothing"
        if self.grid_fees and given & {"grid_fee_per_mwh", "grid_fee_per_kwh"}:
            yield "give one grid fee or [[region.tariff.grid_fee]] tables, not both"
        yield from self._unclear_hours()
        if self.demand_charge_per_kw_month is None:
            for key in _DEMAND_KEYS:
                if key in given:
                    yield f"{key} belongs to a demand charge; give demand_charge_per_kw_month too, or remove it"
        elif self.peak_kw is None:
            yield "a demand charge needs peak_kw, the peak in kW that is reached or paid anyway, or peak_kw = 'learned'"
        if self.peak_month is not None and not isinstance(self.peak_kw, float | int):
            yield "peak_month says for which month peak_kw is; give peak_kw in kW, or remove peak_month"

    def _unclear_hours(self) -> Iterator[str]:
        tables: tuple[tuple[str, list[HoursConfig]], ...] = (
            ("period", [*self.periods]),
            ("grid_fee", [*self.grid_fees]),
            ("demand_window", [*self.demand_windows]),
        )
        for key, entries in tables:
            names = [entry.name for entry in entries]
            yield from (f"{key}: the name {name!r} is used twice" for name in sorted({n for n in names if names.count(n) > 1}))
            if key != "demand_window" and entries:
                yield from (f"{key}: {problem}" for problem in cover_problems([entry.period() for entry in entries]))

    def tariff(self, region: str) -> Tariff:
        """The tariff of a region, named after it unless it has a name."""
        demand = None
        if self.demand_charge_per_kw_month is not None:
            demand = DemandTerms(
                self.demand_charge_per_kw_month,
                self.demand_interval_minutes * 60,
                tuple(window.period() for window in self.demand_windows),
                None if isinstance(self.peak_kw, str) else self.peak_kw,
                self.peak_month,
            )
        return Tariff(
            name=self.name or region,
            type=TariffType(self.type),
            currency=self.currency,
            timezone=self.timezone,
            energy_per_mwh=_per_mwh(self.energy_per_mwh, self.energy_per_kwh),
            periods=tuple(period.period() for period in self.periods),
            factor=self.factor,
            adder_per_mwh=_per_mwh(self.adder_per_mwh, self.adder_per_kwh),
            grid_fee_per_mwh=_per_mwh(self.grid_fee_per_mwh, self.grid_fee_per_kwh),
            grid_fee_periods=tuple(fee.period() for fee in self.grid_fees),
            taxes_per_mwh=_per_mwh(self.taxes_per_mwh, self.taxes_per_kwh),
            vat=self.vat,
            holidays=frozenset(self.holidays),
            demand=demand,
        )
