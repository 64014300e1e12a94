"""``[[trigger]]``: a region's price, or its grid's load, that makes demand response events of our own, and what those ask for.

Each section checks itself alone, and becomes a source of events like an ``[[event_source]]``; nothing is decided here.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from dispatcher.config_events import MAX_RECOVERY_S, EventSourceConfig, Response, _number_as_text, _tables
from dispatcher.config_power import BranchName
from dispatcher.config_sections import Duration, Section
from dispatcher.config_tariff import Name, check_zone
from dispatcher.dr.triggers import Rule
from policies.durations import parse_duration
from signals.time_of_use import parse_months

#: Which keys say when a trigger acts; every kind has the others.
_KEYS = {
    "price-above": ("above_per_mwh", "release_per_mwh", "least", "longest"),
    "price-highest": ("highest_hours", "above_per_mwh"),
    "load-above": ("above_mw", "release_mw", "least", "longest"),
    "load-highest": ("highest_hours", "above_mw", "of_month_peak"),
}
#: The level under which a trigger's limit stands among its source's terms.
LEVEL = 3


class TriggerSource(EventSourceConfig):
    """The source of a trigger's events. Its name has a space, so that no ``[[event_source]]`` can have it."""

    name: str
    protocol: Literal["trigger"] = "trigger"  # type: ignore[assignment]  # no sender of a file may have it

    @model_validator(mode="after")
    def _fits_its_protocol(self) -> Self:
        self.terms()
        return self


class TriggerConfig(Section):
    """``[[trigger]]``: what is watched in ``region``, and the limit asked for there, or on ``branch`` of it.

    ``price-above`` acts while the price is at or above ``above_per_mwh`` and until it is below ``release_per_mwh``, for at
    least ``least`` and at most ``longest``; ``price-highest`` in the ``highest_hours`` dearest hours of a day (those that cost
    ``above_per_mwh`` or more, where that is given). Prices are in the region's currency per MWh, as the site pays them.
    ``load-above`` and ``load-highest`` do the same by the load of the region's grid, MW, of which forecasts count too. With
    ``of_month_peak`` only hours count whose load is expected to be at least that share of the highest that was measured in the
    month so far: those that may set a coincident peak, by which ERCOT's 4CP and its like share out the cost of transmission.
    ``limit`` is worded as a level of an ``[[event_source]]``, ``limit_w`` is W at the meter. ``max_events`` and ``max_hours``
    count in each ``per`` (a season is ``months`` without a break), by ``timezone``.
    """

    name: Name
    region: str
    branch: BranchName | None = None
    kind: Literal["price-above", "price-highest", "load-above", "load-highest"]
    above_per_mwh: float | None = Field(None, ge=-1e6, le=1e6)
    release_per_mwh: float | None = Field(None, ge=-1e6, le=1e6)
    least: Duration = "15m"
    longest: Duration = "4h"
    above_mw: float | None = Field(None, ge=0, le=1e7)
    release_mw: float | None = Field(None, ge=0, le=1e7)
    highest_hours: int | None = Field(None, ge=1, le=23)
    of_month_peak: float | None = Field(None, gt=0, le=1.5)
    limit: str | None = None
    limit_w: float | None = Field(None, ge=0, le=1e12)
    reference_w: float | None = Field(None, ge=0, le=1e12)
    serving_floor_w: float | None = Field(None, ge=0, le=1e12)
    response: Response = "10min"
    ramp_s: float = Field(0.0, ge=0, le=86400)
    recovery_s: float = Field(900.0, ge=0, le=MAX_RECOVERY_S)
    months: str | None = None
    hours: tuple[float, float] | None = None
    timezone: Annotated[str, AfterValidator(check_zone)] = "UTC"
    max_events: int | None = Field(None, ge=1, le=10_000)
    max_hours: float | None = Field(None, gt=0, le=8784)
    per: Literal["month", "season"] = "season"
    test: bool = False

    _numbers = field_validator("least", "longest", mode="before")(_number_as_text)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for key in sorted({key for keys in _KEYS.values() for key in keys} & self.model_fields_set - set(_KEYS[self.kind])):
            others = " or ".join(kind for kind, keys in _KEYS.items() if key in keys)
            raise ValueError(f"{key} = {getattr(self, key)!r} is for {others}; remove it, or change kind")
        if (self.limit is None) == (self.limit_w is None):
            raise ValueError("give limit, such as '-25% of baseline', or limit_w in W, one of the two")
        if self.kind.endswith("-above"):
            unit = "per_mwh" if self.what == "price" else "mw"
            above, release = self._bounds()
            if above is None:
                raise ValueError(f"{self.kind} needs above_{unit}, the {self.what} from which it acts")
            if release is not None and release > above:
                raise ValueError(f"release_{unit} {release:g} must not be higher than above_{unit} {above:g}")
            if parse_duration(self.least) > parse_duration(self.longest):
                raise ValueError(f"least {self.least} must not be longer than longest {self.longest}")
        elif self.highest_hours is None:
            raise ValueError(f"{self.kind} needs highest_hours, how many hours of a day")
        if self.hours is not None and not 0 <= self.hours[0] < self.hours[1] <= 24:
            raise ValueError("hours must be from and to, within 0 to 24, such as [16, 21]")
        if self.months is not None:
            parse_months(self.months)
        self.source()
        return self

    def _bounds(self) -> tuple[float | None, float | None]:
        """From which value it acts, and below which no more."""
        return (self.above_per_mwh, self.release_per_mwh) if self.what == "price" else (self.above_mw, self.release_mw)

    @property
    def what(self) -> Literal["price", "load"]:
        """What is watched."""
        return "price" if self.kind.startswith("price") else "load"

    @property
    def source_name(self) -> str:
        """The source of its events."""
        return f"trigger {self.name}"

    def source(self) -> TriggerSource:
        """Its source, with the terms that its limit is read against."""
        asked = self.limit if self.limit is not None else f"{self.limit_w:.6f} W"
        return TriggerSource(
            name=self.source_name,
            region=self.region,
            branch=self.branch,
            simple_levels={str(LEVEL): asked},
            reference_w=self.reference_w,
            serving_floor_w=self.serving_floor_w,
            response=self.response,
            ramp_s=self.ramp_s,
            recovery_s=self.recovery_s,
        )

    def rule(self) -> Rule:
        """As it is decided by; what ``of_month_peak`` asks for is not in it."""
        above, release = self._bounds()
        return Rule(
            what=self.what,
            above=above,
            release=above if release is None else release,
            least_s=parse_duration(self.least),
            longest_s=parse_duration(self.longest),
            highest_hours=self.highest_hours,
            months=None if self.months is None else parse_months(self.months),
            hours=self.hours,
            zone=self.timezone,
            max_events=self.max_events,
            max_hours=self.max_hours,
            per=self.per,
        )


Problem = tuple[tuple[str | int, ...], str]


def trigger_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong among the raw ``[[trigger]]`` tables beside the others: names, regions, branches."""
    regions = {region["name"]: region for _, region in _tables(raw, "region") if isinstance(region.get("name"), str)}
    names: dict[str, int] = {}
    for i, one in _tables(raw, "trigger"):
        name, region, branch = one.get("name"), one.get("region"), one.get("branch")
        if isinstance(name, str) and names.setdefault(name, i) != i:
            yield ("trigger", i, "name"), f"{name!r} is used by trigger[{names[name]}] already; names must differ"
        if not isinstance(region, str):
            continue
        if region not in regions:
            yield ("trigger", i, "region"), f"{region!r} is not a region; known are: {', '.join(sorted(regions)) or 'none'}"
            continue
        what = "load" if str(one.get("kind")).startswith("load") else "price"
        if not regions[region].get(what) and not (what == "price" and regions[region].get("tariff")):
            yield ("trigger", i, "region"), f"{region!r} has no {what} to watch; add [[region.{what}]]"
        known = {str(entry.get("name")) for _, entry in _tables(regions[region], "branch")}
        if isinstance(branch, str) and branch not in known:
            told = ", ".join(sorted(known)) or "none"
            yield ("trigger", i, "branch"), f"{branch!r} is not a [[region.branch]] of {region}; known are: {told}"
