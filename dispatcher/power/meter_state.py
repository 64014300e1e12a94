"""One meter's memory: its readings at hand, what they come to, and what its source says. Pure but for being remembered.

It knows the configuration of the meter and nothing of sources, stores or routes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from dispatcher.config_power import MeterConfig
from dispatcher.config_sections import RegionConfig
from dispatcher.errors import AlreadyExists
from dispatcher.power.agent_sums import AgentsDraw, Place
from dispatcher.power.meter_sources import CsvTail, Said
from dispatcher.power.meter_values import MEASURED, STOPPED_CADENCES, SUSPECT, Levels, MeterReading, Span, about

State = Literal["ok", "stopped", "suspect", "waiting"]

#: The GPUs draw more than their meter shows by this share, and by this much: then the meter is wrong.
_BELOW_SHARE, _BELOW_W = 0.1, 100.0


@dataclass(frozen=True, slots=True)
class MeterView:
    """One meter as it stands. ``last`` is its last reading as read, ``age_s`` how old that is, ``level`` the last mean that is
    believed (W or degC). ``state``: ok, stopped (nothing for three cadences), suspect (what it says is not believed) or waiting
    (too little yet). ``problem`` is what its source says now, ``gap`` why it last said nothing, or nothing that is believed."""

    region: str
    config: MeterConfig
    state: State
    last: MeterReading | None
    level: Span | None
    age_s: float | None
    problem: str | None
    gap: str | None


@dataclass
class Meter:
    """One meter's memory. ``due_at`` is the last moment its source was asked about."""

    region: RegionConfig
    config: MeterConfig
    limit_w: float | None
    readings: list[MeterReading] = field(default_factory=list)
    levels: Levels = field(default_factory=Levels)
    loaded: bool = False
    since: datetime | None = None
    asked_at: datetime | None = None
    problem: str | None = None
    gap: str | None = None
    tail: CsvTail | None = None
    pending: list[Said] = field(default_factory=list)

    @property
    def reach_s(self) -> float:
        """Seconds after the end of a reading for which it is the latest there can be, and three cadences more."""
        return self.config.delay_s + STOPPED_CADENCES * self.config.cadence_s


def limit_of(region: RegionConfig, meter: MeterConfig) -> float | None:
    """The power limit of what a meter measures, W; None where there is none."""
    if not meter.is_power:
        return None
    if meter.scope == "site":
        return region.power_limit_w or None
    limits: Mapping[str, float] = {branch.name: branch.power_limit_w for branch in region.branches}
    return limits.get(meter.of, 0.0) or None if meter.scope == "branch" else None


def grid(now: datetime, cadence_s: float) -> datetime:
    """The last whole multiple of the cadence: asked again after a restart, a source gives the same reading."""
    return now - timedelta(seconds=now.timestamp() % cadence_s)


def reading_of(meter: Meter, said: Said, now: datetime) -> MeterReading:
    """What a source said, in the meter's unit and about the time that it is about."""
    config = meter.config
    start, end = about(said.at, config.cadence_s, config.delay_s)
    span: tuple[datetime, datetime | None] = (end, None) if config.cumulative else (said.start or start, end)
    if said.start is not None:
        span = (said.start, said.at)
    return MeterReading(
        region=meter.region.name,
        meter=config.name,
        start=span[0],
        end=span[1],
        value=said.value * config.factor,
        unit=config.unit,
        received_at=now,
        branch=config.of if config.scope == "branch" else None,
    )


def require_same(held: MeterReading, reading: MeterReading) -> None:
    """Raise AlreadyExists where two readings of one time differ."""
    if (held.value, held.end) != (reading.value, reading.end):
        raise AlreadyExists(
            f"meter {reading.meter} has {held.value:g} {held.unit} for {reading.start.isoformat()} already, not "
            f"{reading.value:g}; a reading is not changed after the fact"
        )


def place_of(meter: Meter) -> Place:
    """Whose GPUs a meter is compared with."""
    return meter.region.name, meter.config.of if meter.config.scope == "branch" else None


def below_gpus(meter: Meter, span: Span, agents: AgentsDraw | None) -> str | None:
    """Why a meter cannot be right that shows less than the GPUs behind it drew in the same time; None when it can."""
    if agents is None or agents.simulated or agents.power_w <= span.value * (1 + _BELOW_SHARE) + _BELOW_W:
        return None
    return (
        f"meter {meter.config.name} of {meter.region.name} shows {span.value:.0f} W while its GPUs alone drew "
        f"{agents.power_w:.0f} W; it is not used: check what it measures, its factor and its delay_s"
    )


def view_of(meter: Meter, now: datetime) -> MeterView:
    """A meter as it stands at ``now``."""
    last = meter.readings[-1] if meter.readings else None
    age_s = (now - (last.end or last.start)).total_seconds() if last is not None else None
    level = next((span for span in reversed(meter.levels.spans) if span.quality == MEASURED), None)
    state: State = "waiting"
    if last is not None and age_s is not None:
        if age_s > meter.reach_s:
            state = "stopped"
        elif level is not None and (now - level.end).total_seconds() <= meter.reach_s:
            state = "ok"
        elif last.start in meter.levels.not_used:
            state = "suspect"
    if last is not None and last.start in meter.levels.not_used:
        last = replace(last, quality=SUSPECT)
    return MeterView(meter.region.name, meter.config, state, last, level, age_s, meter.problem, meter.gap)
