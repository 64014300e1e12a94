"""From a job's ``gridshift.*`` metadata to what its owner allows, or to every problem with it at once.

Pure: ``now`` and everything configured are arguments. It knows nothing of Ray beyond the number of GPUs asked for.
"""

import difflib
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from policies.durations import MAX_S, parse_duration
from policies.sentences import hhmm, span
from policies.world import Flexibility, Pausable

PREFIX = "gridshift."
TIERS = ("flex-0", "flex-1", "flex-2", "flex-3")

__all__ = ["FlexibilityDefaults", "FlexibilityError", "Problem", "deadline_warning", "parse_duration", "parse_flexibility"]


class Problem(NamedTuple):
    """What is wrong: the metadata key, the value given, and what would be right."""

    field: str
    value: object
    remedy: str


class FlexibilityError(ValueError):
    """The metadata is wrong or contradicts itself; ``problems`` lists everything found."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{p.field}: {p.value!r}: {p.remedy}" for p in problems))


@dataclass(frozen=True, slots=True)
class FlexibilityDefaults:
    """What holds when the owner says nothing: run time in seconds, draw in W per GPU and for a job without GPUs, the tier of
    a region that sets one ("" for none)."""

    runtime_s: float = 3600.0
    gpu_power_w: float = 400.0
    cpu_power_w: float = 50.0
    tier: str = ""


#: A time further ahead is taken for a slip; prices are known for days, not years.
_FARTHEST = timedelta(seconds=MAX_S)
#: What somebody wrote who meant a key of ours: another case, a blank before it, another character for the dot.
_MEANT = re.compile(r"\s*gridshift\s*[._:/-]", re.IGNORECASE)


#: A day without a time of day, with or without an offset.
_DAY_ALONE = re.compile(r"(\d{4}-\d{2}-\d{2})(Z|[+-]\d{2}(:?\d{2})?)?", re.ASCII | re.IGNORECASE)
#: A day and a time of day; ``fromisoformat`` takes any character between the two, the sign of an offset too.
_DAY_AND_TIME = re.compile(r"\d[\dWw-]{6,9}[Tt ]\d\S*", re.ASCII)
_MOMENT_WANTED = "must be a time such as '2026-01-31T18:00+01:00' or a duration from now such as '8h'"
#: Longer texts are quoted in part: nobody has to read all of what was pasted by mistake.
_QUOTED = 100
_PLAIN_NUMBER = re.compile(r"\s*[+-]?(\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?\s*", re.ASCII)


class _Reader:
    """Reads keys one by one and collects problems instead of stopping at the first."""

    def __init__(self, given: Mapping[str, Any], now: datetime) -> None:
        self.given, self.now = given, now
        self.problems: list[Problem] = []

    def problem(self, key: str, remedy: str) -> None:
        value = self.given.get(key)
        if isinstance(value, str) and len(value) > _QUOTED:
            value = f"{value[:_QUOTED]}… ({len(value)} characters)"
        self.problems.append(Problem(PREFIX + key, value, remedy))

    def text(self, key: str) -> str | None:
        value = self.given.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.problem(key, "must be a string (Ray's metadata values are strings); put it in quotes")
            return None
        if not value.strip():
            self.problem(key, "is empty; leave the key out or give a value")
            return None
        return value.strip()

    def _read(self, key: str, parse: Callable[[str], Any]) -> Any:
        text = self.text(key)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            self.problem(key, str(error))
            return None

    def duration(self, key: str, *, zero: bool = True) -> float | None:
        def parse(text: str) -> float:
            seconds = parse_duration(text)
            if seconds == 0 and not zero:
                raise ValueError("must be longer than nothing")
            return seconds

        found: float | None = self._read(key, parse)
        return found

    def moment(self, key: str) -> datetime | None:
        """A time with offset, or a duration from now."""

        def parse(text: str) -> datetime:
            try:
                return self.now + timedelta(seconds=parse_duration(text))
            except ValueError:
                pass
            day = _DAY_ALONE.fullmatch(text)
            try:
                when = datetime.fromisoformat(day[1] if day else text) if day or _DAY_AND_TIME.fullmatch(text) else None
            except ValueError:
                when = None
            if when is None:
                raise ValueError(_MOMENT_WANTED)
            if day is not None:
                raise ValueError(f"needs a time of day with a UTC offset, such as {day[1]}T18:00Z")
            if when.tzinfo is None:
                raise ValueError("has no UTC offset; write Z behind it for UTC, or the offset, such as +01:00")
            try:
                when = when.astimezone(UTC)
            except OverflowError:  # in UTC it lies just before the first year or just after the last
                when = datetime.min.replace(tzinfo=UTC) if when.year == 1 else datetime.max.replace(tzinfo=UTC)
            if when - self.now > _FARTHEST:
                raise ValueError(f"is more than {_FARTHEST.days} days ahead; give an earlier time")
            return when

        found: datetime | None = self._read(key, parse)
        return found

    def number(
        self, key: str, *, low: float = 0.0, high: float = math.inf, zero: bool = True, negative: bool = False
    ) -> float | None:
        def parse(text: str) -> float:
            if not _PLAIN_NUMBER.fullmatch(text):  # Python would also take "1_000" and other scripts' digits
                raise ValueError("must be a finite number, such as 1000 or 0.5")
            value = float(text)
            if not math.isfinite(value):
                raise ValueError("must be a finite number")
            if (not negative and value < low) or value > high or (value == 0 and not zero):
                bound = f" and at most {high:g}" if high < math.inf else ""
                raise ValueError(f"must be {'at least' if zero else 'more than'} {low:g}{bound}")
            return value

        found: float | None = self._read(key, parse)
        return found

    def whole(self, key: str, *, low: int | None = None) -> int | None:
        def parse(text: str) -> int:
            if not re.fullmatch(r"[+-]?\d{1,20}", text, re.ASCII):
                raise ValueError("must be a whole number")
            value = int(text)
            if abs(value) > 10**9 or (low is not None and value < low):
                raise ValueError(f"must be a whole number{f' of at least {low}' if low is not None else ''}, within a billion")
            return value

        found: int | None = self._read(key, parse)
        return found

    def choice(self, key: str, choices: Collection[str]) -> str | None:
        def parse(text: str) -> str:
            if text not in choices:
                raise ValueError(f"must be one of {', '.join(choices)}")
            return text

        found: str | None = self._read(key, parse)
        return found

    def region(self, key: str, regions: Collection[str]) -> str | None:
        def parse(text: str) -> str:
            _known_region(text, regions)
            return text

        found: str | None = self._read(key, parse)
        return found

    def regions(self, key: str, regions: Collection[str]) -> tuple[str, ...]:
        def parse(text: str) -> tuple[str, ...]:
            names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if not names:
                raise ValueError("must name at least one region, comma separated")
            for name in names:
                _known_region(name, regions)
            return names

        return self._read(key, parse) or ()

    def gpu_types(self, key: str) -> dict[str, float]:
        def parse(text: str) -> dict[str, float]:
            speeds: dict[str, float] = {}
            for part in text.split(","):
                name, _, speed = part.partition(":")
                value = float(speed) if _is_number(speed) else math.nan
                if not name.strip() or not (0 < value < 1000) or name.strip() in speeds:
                    raise ValueError("must list GPU types with their relative speed, such as 'H100:1,A100:0.45'")
                speeds[name.strip()] = value
            return speeds

        return self._read(key, parse) or {}


def _is_number(text: str) -> bool:
    return _PLAIN_NUMBER.fullmatch(text) is not None


def _known_region(name: str, regions: Collection[str]) -> None:
    if name not in regions:
        near = difflib.get_close_matches(name, regions, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no region {name!r}; there are: {', '.join(sorted(regions)) or 'none'}{hint}")


KEYS = (
    "deadline", "earliest", "runtime", "gpus", "power_w", "pausable", "checkpoint_s", "restart_s", "min_cap", "regions",
    "data_gb", "data_region", "tier", "priority", "group", "team", "max_price", "max_carbon", "gpu_types", "freeze_max_s",
    "max_attempts",
)  # fmt: skip


def parse_flexibility(
    metadata: Mapping[str, Any],
    *,
    now: datetime,
    gpus_requested: float | None,
    regions: Collection[str],
    defaults: FlexibilityDefaults = FlexibilityDefaults(),
) -> Flexibility:
    """What the metadata allows. ``gpus_requested`` is Ray's ``entrypoint_num_gpus``, ``regions`` the configured names.

    A job without ``gridshift.*`` metadata is not flexible: it starts at once and is never held, moved or paused. The keys and
    their meanings stand in the README. Raises FlexibilityError with every problem.
    """
    given = {key.removeprefix(PREFIX): value for key, value in metadata.items() if key.startswith(PREFIX)}
    reader = _Reader(given, now)
    for key in given:
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known keys: {', '.join(KEYS)}"
            reader.problem(key, f"no such key; {hint}")
    for key, value in metadata.items():
        if not key.startswith(PREFIX) and _MEANT.match(key):
            name = _MEANT.sub("", key).strip().lower()
            meant = f"write {PREFIX}{name}" if name in KEYS else f"gridshift's keys begin with {PREFIX!r}"
            reader.problems.append(Problem(key, value, f"is not read as gridshift's; {meant}"))
    runtime_s = reader.duration("runtime", zero=False)
    gpus = reader.number("gpus", high=1e6)
    power_w = reader.number("power_w", high=1e9)
    pausable = Pausable(reader.choice("pausable", [p.value for p in Pausable]) or Pausable.NO)
    asked = gpus_requested or 0.0
    total_gpus = gpus if gpus is not None else asked
    if gpus is not None and gpus < asked:
        reader.problem("gpus", f"is less than the entrypoint's own num_gpus {asked:g}; it counts the GPUs of the whole job")
    draw_w = power_w if power_w is not None else (total_gpus * defaults.gpu_power_w or defaults.cpu_power_w)
    flex = Flexibility(
        flexible=bool(given),
        deadline_at=reader.moment("deadline"),
        earliest_at=reader.moment("earliest"),
        runtime_s=runtime_s if runtime_s is not None else defaults.runtime_s,
        runtime_given=runtime_s is not None,
        gpus=total_gpus,
        power_w=draw_w,
        pausable=pausable,
        checkpoint_s=60.0 if (checkpoint_s := reader.duration("checkpoint_s")) is None else checkpoint_s,
        restart_s=60.0 if (restart_s := reader.duration("restart_s")) is None else restart_s,
        regions=reader.regions("regions", regions),
        data_gb=reader.number("data_gb", high=1e9) or 0.0,
        data_region=reader.region("data_region", regions),
        tier=reader.choice("tier", TIERS) or defaults.tier or ("flex-1" if given else "flex-0"),
        priority=reader.whole("priority") or 0,
        group=reader.text("group"),
        team=reader.text("team"),
        max_price=reader.number("max_price", negative=True),
        max_carbon=reader.number("max_carbon"),
        min_cap=reader.number("min_cap", high=1.0, zero=False),
        gpu_types=reader.gpu_types("gpu_types"),
        freeze_max_s=reader.duration("freeze_max_s", zero=False),
        max_attempts=reader.whole("max_attempts", low=1) or 1,
    )
    _contradictions(flex, reader, now)
    if reader.problems:
        raise FlexibilityError(reader.problems)
    return flex


def _contradictions(flex: Flexibility, reader: _Reader, now: datetime) -> None:
    if flex.data_gb > 0 and flex.data_region is None and "data_region" not in reader.given:
        reader.problem("data_gb", f"says how much data there is but not where; add {PREFIX}data_region")
    if flex.pausable is not Pausable.NO and flex.tier == "flex-0":
        reader.problem("tier", f"a flex-0 job is never touched; choose another tier, or leave {PREFIX}pausable out")
    if "min_cap" in reader.given and flex.tier == "flex-0":
        reader.problem("min_cap", "a flex-0 job is never capped; leave it out or choose another tier")
    deadline = flex.deadline_at
    if deadline is None:
        return
    if deadline <= now:
        reader.problem("deadline", f"has passed already; it is {now.isoformat(timespec='seconds')}")
    elif flex.earliest_at is not None and flex.earliest_at >= deadline:
        reader.problem("earliest", f"must be before the deadline {deadline.isoformat(timespec='seconds')}")


def deadline_warning(flex: Flexibility, submitted_at: datetime) -> str | None:
    """What is to be said of a job that cannot end by its deadline even if it starts as soon as it may; None for others. It is
    taken all the same, runs at once and counts as late."""
    deadline = flex.deadline_at
    if deadline is None or (flex.group is not None and not flex.runtime_given):
        return None  # what is assumed of a group's job gives way to what is learned of the group
    first = max(submitted_at, flex.earliest_at or submitted_at)
    left_s = (deadline - first).total_seconds()
    if flex.runtime_s <= left_s:
        return None
    run = "its run time" if flex.runtime_given else "the run time that is assumed of it"
    start = "at once" if first == submitted_at else "as soon as it may"
    return (
        f"cannot end by its deadline {hhmm(deadline)}: {run} is {span(flex.runtime_s)} and {span(left_s)} are left; "
        f"it starts {start} and counts as late, give a later deadline or a shorter run time if that is wrong"
    )
