"""``[[programme]]``: what demand response pays and costs, and how it is measured there, as checked values.

The figures are the operator's contract; nothing that it does not say is assumed. It knows no event and no meter.
"""

from collections.abc import Iterator, Mapping
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from dispatcher.config_events import OWN_SOURCE
from dispatcher.config_sections import Duration
from dispatcher.config_tariff import Name, check_zone
from policies.durations import parse_duration
from signals.time_of_use import parse_months

if TYPE_CHECKING:
    from dispatcher.verification.programme import Programme

Method = Literal["10-in-10", "5-in-10", "4-in-5", "15-in-20", "meter-before", "plan", "firm-service-level"]
Adjust = Literal["multiplicative", "additive", "none"]


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number")
    return value


#: A rate or a cost; what is paid and what is owed each have a key of their own, so that no amount is below 0.
Rate = Annotated[float, BeforeValidator(_no_flag), Field(ge=0, le=1e9)]
Watts = Annotated[float, BeforeValidator(_no_flag), Field(ge=0, le=1e12)]


class ProgrammeConfig(BaseModel):
    """``[[programme]]``: the terms of one contract, for the events of the sources that ``event_source`` names ("api": those of
    our own API). What is left out is not agreed.

    ``commitment_w`` is the reduction that was promised, against the baseline; where it is given it is owed beside each
    event's limit. ``tolerance_w``: so much above a limit still counts as within it. ``required_share``: so many of an event's
    intervals must be within. ``measurement_interval``: what the utility settles by.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)

    name: Name
    event_source: list[str] = Field(min_length=1)
    currency: str = Field(pattern=r"^[A-Z]{3}$")
    per_kwh: Rate = 0.0
    per_kw: Rate = 0.0
    per_kw_season: Rate = 0.0
    penalty_per_kwh: Rate = 0.0
    penalty_on: Literal["shortfall", "excess"] = "shortfall"
    minimum_performance: float = Field(0.0, ge=0, le=1)
    paid_up_to: float | None = Field(1.0, gt=0, le=100)
    opt_out_cost: Rate = 0.0
    commitment_w: Watts | None = None

    notice: Duration | None = None
    months: str | None = None
    hours: tuple[float, float] | None = None
    max_event_hours: float | None = Field(None, gt=0, le=8784)
    max_events: int | None = Field(None, gt=0, le=10_000)
    max_hours: float | None = Field(None, gt=0, le=8784)

    baseline: Method = "10-in-10"
    adjustment: Adjust = "multiplicative"
    adjustment_cap: float | None = Field(0.2, ge=0, le=10)
    adjustment_window: Duration = "3h"
    adjustment_gap: str = "1h"
    meter_before: Duration = "10m"
    firm_service_level_w: Watts | None = None
    timezone: Annotated[str, AfterValidator(check_zone)] = "UTC"
    holidays: list[date] = Field([])
    outage_days: list[date] = Field([])
    measurement_interval: Duration = "1m"
    required_share: float = Field(1.0, gt=0, le=1)
    tolerance_w: Watts = 0.0

    @field_validator("event_source", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("months", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return ",".join(map(str, value)) if isinstance(value, list) else value

    @field_validator("months")
    @classmethod
    def _known_months(cls, value: str | None) -> str | None:
        if value is not None:
            parse_months(value)
        return value

    @field_validator("adjustment_gap")
    @classmethod
    def _at_least_nothing(cls, value: str) -> str:
        if parse_duration(value) < 0:
            raise ValueError("must be 0s or longer")
        return value

    @field_validator("hours")
    @classmethod
    def _within_a_day(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 <= value[0] < value[1] <= 24:
            raise ValueError("must be from and to, within 0 to 24, such as [16, 21]")
        return value

    @model_validator(mode="after")
    def _fits_its_baseline(self) -> Self:
        if (self.baseline == "firm-service-level") != (self.firm_service_level_w is not None):
            raise ValueError("baseline = 'firm-service-level' and firm_service_level_w belong together: give both, or neither")
        if self.penalty_on == "shortfall" and self.penalty_per_kwh and self.firm_service_level_w is not None:
            raise ValueError("a firm service level measures no shortfall; set penalty_on = 'excess'")
        if self.measurement_interval_s < 1:
            raise ValueError("measurement_interval must be 1s or more")
        return self

    @property
    def measurement_interval_s(self) -> float:
        """Seconds of an interval that the utility settles by."""
        return parse_duration(self.measurement_interval)

    def terms(self) -> "Programme":
        """The terms as events are settled by."""
        from dispatcher.verification.programme import Programme  # brings numpy, which reading a configuration does not need

        return Programme(
            name=self.name,
            currency=self.currency,
            per_kwh=self.per_kwh,
            per_kw=self.per_kw,
            per_kw_season=self.per_kw_season,
            penalty_per_kwh=self.penalty_per_kwh,
            penalty_on=self.penalty_on,
            minimum_performance=self.minimum_performance,
            paid_up_to=self.paid_up_to,
            opt_out_cost=self.opt_out_cost,
            notice_s=None if self.notice is None else parse_duration(self.notice),
            timezone=self.timezone,
            months=None if self.months is None else frozenset(parse_months(self.months)),
            hours=self.hours,
            max_event_hours=self.max_event_hours,
            max_events=self.max_events,
            max_hours=self.max_hours,
        )


# --- what only the whole file tells -------------------------------------------------------------------------------

Problem = tuple[tuple[str | int, ...], str]


def programme_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong among the raw ``[[programme]]`` tables beside the others: names used twice, sources that are not there, and
    a source that two programmes would settle. Values of a wrong type are left to their own sections."""
    known = {OWN_SOURCE} | {
        entry[key]
        for table, key in (("event_source", "name"), ("webhook", "source"))
        for entry in _tables(raw, table)
        if isinstance(entry.get(key), str)
    }
    known |= {f"trigger {one['name']}" for one in _tables(raw, "trigger") if isinstance(one.get("name"), str)}
    names: dict[str, int] = {}
    covered: dict[str, int] = {}
    for i, entry in enumerate(_tables(raw, "programme")):
        name, sources = entry.get("name"), entry.get("event_source")
        if isinstance(name, str) and names.setdefault(name, i) != i:
            yield ("programme", i, "name"), f"{name!r} is used by programme[{names[name]}] already; names must differ"
        for source in [sources] if isinstance(sources, str) else sources if isinstance(sources, list) else []:
            if not isinstance(source, str):
                continue
            where = ("programme", i, "event_source")
            if source not in known:
                told = ", ".join(sorted(known))
                kinds = "[[event_source]], [[webhook]] or [[trigger]]"
                yield where, f"{source!r} is no {kinds}; known are: {told} ({OWN_SOURCE}: our own API)"
            elif covered.setdefault(source, i) != i:
                yield where, f"{source!r} is settled by programme[{covered[source]}] already; an event has one programme"


def _tables(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    entries = raw.get(key)
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
