"""From readings of a GPU to minute rows of energy, one for each job on it: pure accumulators, fed once a second.

Each stretch between two readings is taken twice, from the driver's energy counter and by the trapezoid of power; when a minute
closes, the counter's figures stand if it was reliable, else the integral's, for the whole minute alike. The rows of a GPU and a
minute sum to that meter's energy. A stretch without readings is a gap: nothing is invented for it, but a reliable counter of
the same boot bridges it. It does not know what is plugged in besides the GPUs, nor what a process on a shared GPU really draws:
such a GPU's energy is split by presence and by memory held. A process that comes and goes between two readings is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .counter_check import JUMP_FACTOR, CounterCheck
from .devices import Reading

MINUTE_S = 60
JOULES_PER_WH = 3600.0
#: Two readings further apart than this, s, have a gap between them: power may have been anything.
GAP_S = 5.0
#: A gap longer than this is not bridged, s.
BRIDGE_MAX_S = 48 * 3600.0
#: A GPU that was not read for this long gives up its open minute, s; until then the counter may still bridge.
LOST_S = 600.0
#: Wall and boot clock drift by slewing; a larger difference between two readings, s, is a clock that was set.
CLOCK_SET_S = 0.5
#: No GPU with a loaded driver draws less on average, W; a smaller rise over a gap means that the counter started anew.
BRIDGE_MIN_W = 3.0
#: No GPU draws more than this, W, and none more than ``JUMP_FACTOR`` times its limit: such a reading of power is none.
MOST_W = 20_000.0
#: A GPU whose SM and memory are both below this for ``IDLE_AFTER_S`` is idle, whoever resides on it.
IDLE_SHARE = 0.05
IDLE_AFTER_S = 5.0
#: A minute of which less than this was read is "partial", s.
WHOLE_MINUTE_S = 59.5
#: A minute is "measured" when power stood in for a missing counter during no more than this share of it.
LENT_SHARE = 0.05
#: The throttle reasons that slow work down; "idle", "app_clocks" and the like do not.
SLOWING = frozenset({"sw_power_cap", "hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})

#: A line of a row, as (line, job_id): whose energy it is.
Line = tuple[str, "str | None"]
IDLE: Line = ("idle", None)
UNATTRIBUTED: Line = ("unattributed", None)


@dataclass(frozen=True)
class EnergyRow:
    """One line of one GPU's minute ``[start, end)``, unix s; a minute that is told once more, since the clock was set back,
    begins a few seconds later than the first (see GpuMeter).

    ``line`` is "job", "idle" (nobody on the GPU) or "unattributed" (processes that carry no job, or nobody knows). ``seconds``
    are those that were read while the line was there; ``bridged_s`` of them are known from the counter alone. ``quality``:
    "measured" by the counter, "integrated" from power, "partial" when less than the minute was read of this GPU. ``split`` says
    how a shared GPU was divided: "exclusive", "by time", "by time and memory". ``idle_wh``, part of ``energy_wh``, was drawn
    while processes resided but did nothing for at least ``IDLE_AFTER_S``; None where the utilisation was not told. ``node_id``
    is the node's name when the row was made, whoever sends it later: with GPU, minute and line it tells a row from all others
    (None: a row of an earlier version, of the node that sends it)."""

    start: int
    end: int
    uuid: str
    job_id: str | None
    line: str
    energy_wh: float
    seconds: float
    quality: str
    split: str
    mean_w: float
    throttled_s: float
    idle_wh: float | None
    bridged_s: float
    node_id: str | None = None


@dataclass
class Tally:
    """What one line has gathered in a minute, J and s. ``counter_*`` and ``integral_*`` are the same stretches taken twice."""

    counter_j: float = 0.0
    counter_s: float = 0.0
    integral_j: float = 0.0
    integral_s: float = 0.0
    bridged_j: float = 0.0
    bridged_s: float = 0.0
    counter_idle_j: float = 0.0
    integral_idle_j: float = 0.0
    idle_known: bool = True
    throttled_s: float = 0.0
    shared: bool = False
    memory_known: bool = True


@dataclass
class Minute:
    """A minute that is still open: its lines, and what was read of the GPU as a whole, s."""

    start: int
    lines: dict[Line, Tally] = field(default_factory=dict)
    counter_s: float = 0.0
    integral_s: float = 0.0
    bridged_s: float = 0.0
    #: Seconds for which there was no counter and the integral stands in.
    lent_s: float = 0.0


@dataclass(frozen=True)
class Look:
    """One reading and who was on the GPU then: memory, bytes, by job (None: a process without a job); bytes are None where the
    driver does not tell. ``residents`` None: nobody knows who was there."""

    reading: Reading
    residents: Mapping[str | None, int | None] | None


def shares(look: Look, hidden: bool) -> dict[Line, float]:
    """Whose the power of that moment is, as fractions that sum to 1. By memory held, or equally where any of it is unknown.
    ``hidden``: the GPU works though nobody is seen on it."""
    if look.residents is None:
        return {UNATTRIBUTED: 1.0}
    if not look.residents:
        return {UNATTRIBUTED if hidden else IDLE: 1.0}
    lines = {UNATTRIBUTED if job_id is None else ("job", job_id): memory for job_id, memory in look.residents.items()}
    total = sum(memory or 0 for memory in lines.values())
    if total <= 0 or any(memory is None for memory in lines.values()):
        return dict.fromkeys(lines, 1.0 / len(lines))
    return {line: (memory or 0) / total for line, memory in lines.items()}


class GpuMeter:
    """The meter of one GPU in one boot of the machine. ``feed`` returns the rows of the minutes that it closes.

    A wall clock that is set back tells some time twice, and all of it was drawn. What is open then is closed as it is, and rows
    go on at the earlier time in a new *run*: its minutes begin at another second than those of the runs before, so that no row
    takes another's name, until time comes that was not told yet.
    """

    def __init__(self, uuid: str, node_id: str | None = None) -> None:
        self.uuid, self._node_id = uuid, node_id
        self.check = CounterCheck()
        self._last: Look | None = None
        self._last_shares: dict[Line, float] = {}
        self._last_wall_s = 0.0
        self._idle_since_s: float | None = None
        self._is_lost = False
        self._minutes: dict[int, Minute] = {}
        #: A closed minute takes nothing more. Time before ``_told_until`` was told by a run before this one, whose minutes
        #: begin at second ``_shift`` there.
        self._closed_until = self._told_until = self._shift = 0
        #: The stretch since the last reading is told up to here, by rows of which the state gone on from does not know.
        self._known_until = 0

    @property
    def idle_state(self) -> str:
        """active, execution_idle (a process resides, nothing runs), deep_idle (nobody there) or lost (it cannot be read)."""
        if self._last is None or self._is_lost:
            return "lost"
        if self._last.residents is not None and not self._last.residents and IDLE in self._last_shares:
            return "deep_idle"
        return "execution_idle" if self._is_idle(self._last.reading.boot_s) else "active"

    def feed(self, look: Look) -> list[EnergyRow]:
        """Take the next reading, in the order of ``boot_s``; one that is not later than the last is ignored."""
        before = self._last
        look = _plausible(look, None if before is None else before.reading)
        now = look.reading
        if before is not None and now.boot_s <= before.reading.boot_s:
            return []
        # Work without anybody there, seen twice: somebody whom we cannot see. Once may be the tail of one who has just left.
        hidden = before is not None and before.residents is not None and not before.residents and _works(before.reading)
        held = shares(look, hidden and _works(now))
        was_idle = before is not None and self._is_idle(before.reading.boot_s)
        rows: list[EnergyRow] = []
        if before is None:
            if now.at < self._closed_until:
                rows += self._begin_run()
        elif now.at < self._known_until:
            rows += self._begin_run()  # how much of the stretch was told before the clock was set back is not known: a gap
        else:
            if now.at - (now.boot_s - before.reading.boot_s) < self._last_wall_s - CLOCK_SET_S:
                rows += self._begin_run()
            self._account(before, look, held, was_idle)
        self._known_until = 0
        if before is not None and now.boot_s - before.reading.boot_s > GAP_S:
            self._idle_since_s = None  # what it did in between is unknown
        if not _is_quiet(now):
            self._idle_since_s = None
        elif self._idle_since_s is None:
            self._idle_since_s = now.boot_s
        self._last, self._last_shares, self._last_wall_s, self._is_lost = look, held, now.at, False
        return rows + self._close(self._minute_of(now.at))

    def lost(self, boot_s: float) -> list[EnergyRow]:
        """It could not be read now. After ``LOST_S`` its open minutes are closed as they are."""
        self._is_lost, self._idle_since_s = True, None
        if self._last is None or boot_s - self._last.reading.boot_s < LOST_S:
            return []
        rows = self.flush()
        self._last = None
        return rows

    def flush(self) -> list[EnergyRow]:
        """Close all open minutes as they are: the machine has started anew, or the GPU is gone."""
        return self._close(max(self._minutes, default=0) + MINUTE_S)

    def of_next_boot(self, node_id: str | None) -> GpuMeter:
        """The meter to go on with after ``flush`` and a reboot: it makes no second row of a minute that has one."""
        following = GpuMeter(self.uuid, node_id)
        following._closed_until, following._told_until, following._shift = self._closed_until, self._told_until, self._shift
        return following

    def has_rows(self, until: int) -> None:
        """Rows up to ``until``, unix s, are there. Where the state gone on from does not know of them, since it was saved
        before, their minutes are not told again."""
        if until > max(self._closed_until, self._told_until):
            self._known_until = self._closed_until = until
            self._minutes = {start: one for start, one in self._minutes.items() if start + MINUTE_S > until}

    def _begin_run(self) -> list[EnergyRow]:
        rows = self.flush()
        self._told_until, self._closed_until = max(self._told_until, self._closed_until), 0
        self._shift = self._shift % (MINUTE_S - 1) + 1
        return rows

    def _minute_of(self, at: float) -> int:
        """The start of the minute that a moment lies in."""
        start = int(at // MINUTE_S) * MINUTE_S
        return start if start >= self._told_until else int((at - self._shift) // MINUTE_S) * MINUTE_S + self._shift

    # --- one stretch --------------------------------------------------------------------------------------------------

    def _account(self, before: Look, look: Look, held: dict[Line, float], was_idle: bool) -> None:
        old, new = before.reading, look.reading
        duration_s = new.boot_s - old.boot_s
        wall_start = self._wall_start(new, duration_s)
        counter_j = None if old.energy_j is None or new.energy_j is None else new.energy_j - old.energy_j
        if duration_s > GAP_S:
            self._bridge(before, look, held, counter_j, duration_s, wall_start)
            return
        integral_j = None if old.power_w is None or new.power_w is None else (old.power_w + new.power_w) / 2 * duration_s
        if integral_j is not None and counter_j is not None and _reads_nothing(old, new, counter_j, duration_s):
            integral_j = None  # the counter moves as it may: it is the power that cannot be read
        if counter_j is not None and not self.check.take(new.boot_s, duration_s, counter_j, integral_j, _ceiling_w(old, new)):
            counter_j = None
        best_j = integral_j if counter_j is None else counter_j
        if best_j is None:
            return
        # Who was there at the first reading answers for the first half, who is there at the second for the other.
        portions = _halves(self._last_shares, held)
        present = {line: 0.5 * (line in self._last_shares) + 0.5 * (line in held) for line in portions}
        idle = was_idle and _is_quiet(new)
        idle_known = _utilisation(new) is not None
        memory_known = all(_memory_known(one) for one in (before, look))
        shared = len(self._last_shares) > 1 or len(held) > 1
        slowed = bool(SLOWING.intersection(new.throttle))
        for start, part in self._parts(wall_start, new.at):
            minute = self._minutes.setdefault(start, Minute(start))
            seconds = part * (new.at - wall_start) if new.at > wall_start else part * duration_s
            minute.counter_s += seconds
            minute.integral_s += seconds if integral_j is not None else 0.0
            minute.lent_s += seconds if counter_j is None else 0.0
            for line, share in portions.items():
                tally = minute.lines.setdefault(line, Tally())
                tally.counter_j += best_j * share * part
                tally.counter_s += seconds * present[line]
                if integral_j is not None:
                    tally.integral_j += integral_j * share * part
                    tally.integral_s += seconds * present[line]
                if idle:
                    tally.counter_idle_j += best_j * share * part
                    tally.integral_idle_j += (integral_j or 0.0) * share * part
                tally.idle_known &= idle_known
                tally.throttled_s += seconds * present[line] * slowed
                tally.shared |= shared
                tally.memory_known &= memory_known

    def _bridge(
        self,
        before: Look,
        look: Look,
        held: dict[Line, float],
        counter_j: float | None,
        duration_s: float,
        wall_start: float,
    ) -> None:
        """A gap: only the counter knows what was drawn in it, and only the same single job at both ends may be charged."""
        old, new = before.reading, look.reading
        ceiling_w = _ceiling_w(old, new)
        if (
            counter_j is None
            or duration_s > BRIDGE_MAX_S
            or not self.check.is_reliable(old.boot_s)
            or not BRIDGE_MIN_W * duration_s <= counter_j <= JUMP_FACTOR * ceiling_w * duration_s
        ):
            return
        same = held == self._last_shares and len(held) == 1 and next(iter(held))[0] == "job"
        line = next(iter(held)) if same else UNATTRIBUTED
        for start, part in self._parts(wall_start, new.at):
            minute = self._minutes.setdefault(start, Minute(start))
            seconds = part * (new.at - wall_start) if new.at > wall_start else part * duration_s
            minute.bridged_s += seconds
            tally = minute.lines.setdefault(line, Tally())
            tally.bridged_j += counter_j * part
            tally.bridged_s += seconds

    def _wall_start(self, new: Reading, duration_s: float) -> float:
        """Where the stretch that ends at ``new`` began on the wall. The boot clock says how long it was; joined to the last
        stretch unless the wall clock was set in between."""
        start = new.at - duration_s
        if abs(start - self._last_wall_s) <= CLOCK_SET_S:
            return self._last_wall_s
        return start

    def _parts(self, start: float, end: float) -> list[tuple[int, float]]:
        """The minutes of [start, end) and the fraction in each. They sum to 1 but for what a predecessor has told of. A closed
        minute takes nothing more: of a stretch that a slewing clock puts into one, the next minute takes it."""
        if end <= start:
            return [(self._open_minute(end), 1.0)]
        fresh = -(-self._told_until // MINUTE_S) * MINUTE_S  # here this run's minutes begin to be whole ones
        parts: dict[int, float] = {}
        low = max(start, min(float(self._known_until), end))
        while low < end:
            edge = self._minute_of(low) + MINUTE_S
            high = min(end, float(fresh if low < fresh < edge else edge))
            target = self._open_minute(low)
            parts[target] = parts.get(target, 0.0) + (high - low) / (end - start)
            low = high
        return list(parts.items())

    def _open_minute(self, at: float) -> int:
        return self._minute_of(max(at, float(self._closed_until)))

    def _is_idle(self, boot_s: float) -> bool:
        return self._idle_since_s is not None and boot_s - self._idle_since_s >= IDLE_AFTER_S

    # --- rows ---------------------------------------------------------------------------------------------------------

    def _close(self, until: int) -> list[EnergyRow]:
        """The rows of all minutes that end by ``until``."""
        rows: list[EnergyRow] = []
        for start in sorted(minute for minute in self._minutes if minute + MINUTE_S <= until):
            minute = self._minutes.pop(start)
            # An objection raised in a minute or in the one before holds for all of it.
            reliable = self.check.is_reliable(self._boot_of(start))
            rows.extend(replace(row, node_id=self._node_id) for row in _rows(self.uuid, minute, reliable))
            self._closed_until = max(self._closed_until, start + MINUTE_S)
        return rows

    def _boot_of(self, wall_s: float) -> float:
        """The boot clock at that wall time, as the two stand now."""
        if self._last is None:
            return math.inf
        return self._last.reading.boot_s - (self._last_wall_s - wall_s)

    # --- to the disk and back -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Everything that a successor needs to go on, as JSON can hold it; to be written down before the next reading."""
        last = self._last
        return {
            "uuid": self.uuid,
            "reading": None if last is None else vars(last.reading),
            "residents": None if last is None or last.residents is None else [[k, v] for k, v in last.residents.items()],
            "shares": [[*line, share] for line, share in self._last_shares.items()],
            "wall_s": self._last_wall_s,
            "closed_until": self._closed_until,
            "told_until": self._told_until,
            "shift": self._shift,
            "distrusted_until_s": max(self.check.distrusted_until_s, 0.0),
            "minutes": [
                {**vars(minute), "lines": [[*line, vars(tally)] for line, tally in minute.lines.items()]}
                for minute in self._minutes.values()
            ],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], node_id: str | None) -> GpuMeter:
        """The meter whose ``state`` that was, in the same boot. Raises ValueError, KeyError or TypeError for anything else."""
        meter = cls(str(state["uuid"]), node_id)
        meter._closed_until = int(state["closed_until"])
        meter._told_until, meter._shift = int(state.get("told_until", 0)), int(state.get("shift", 0))
        if state["reading"] is not None:
            reading = dict(state["reading"])
            reading["throttle"] = tuple(reading["throttle"])
            residents = state["residents"]
            meter._last = Look(Reading(**reading), None if residents is None else dict(residents))
        meter._last_shares = {(line, job_id): float(share) for line, job_id, share in state["shares"]}
        meter._last_wall_s = float(state["wall_s"])
        meter.check.distrusted_until_s = float(state["distrusted_until_s"])
        for raw in state["minutes"]:
            minute = Minute(**{**raw, "lines": {(line, job): Tally(**tally) for line, job, tally in raw["lines"]}})
            meter._minutes[minute.start] = minute
        return meter


def _rows(uuid: str, minute: Minute, reliable: bool) -> list[EnergyRow]:
    """The rows of a closed minute, all from one source. Lines without a second and without energy leave no row."""
    measured = reliable or minute.integral_s == 0.0
    covered_s = minute.counter_s + minute.bridged_s if measured else minute.integral_s
    by_counter = measured and minute.lent_s <= LENT_SHARE * covered_s
    quality = "partial" if covered_s < WHOLE_MINUTE_S else "measured" if by_counter else "integrated"
    rows = []
    for (line, job_id), tally in sorted(minute.lines.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        energy_j = tally.counter_j + tally.bridged_j if measured else tally.integral_j
        seconds = tally.counter_s + tally.bridged_s if measured else tally.integral_s
        if seconds <= 0.0:
            continue
        idle_j = tally.counter_idle_j if measured else tally.integral_idle_j
        split = "exclusive" if not tally.shared else "by time and memory" if tally.memory_known else "by time"
        rows.append(
            EnergyRow(
                start=minute.start,
                end=minute.start + MINUTE_S,
                uuid=uuid,
                job_id=job_id,
                line=line,
                energy_wh=energy_j / JOULES_PER_WH,
                # A wall clock that slews can put a little more than a minute's seconds into one.
                seconds=min(seconds, float(MINUTE_S)),
                quality=quality,
                split=split,
                mean_w=energy_j / seconds,
                throttled_s=min(tally.throttled_s, float(MINUTE_S)),
                idle_wh=_idle_wh(line, tally, idle_j),
                bridged_s=min(tally.bridged_s, float(MINUTE_S)) if measured else 0.0,
            )
        )
    return rows


def _idle_wh(line: str, tally: Tally, idle_j: float) -> float | None:
    if line == "idle":
        return 0.0  # nobody was there to be idle
    return idle_j / JOULES_PER_WH if tally.idle_known and tally.counter_s > 0 else None


def _halves(first: Mapping[Line, float], second: Mapping[Line, float]) -> dict[Line, float]:
    return {
        line: (first.get(line, 0.0) + second.get(line, 0.0)) / 2 for line in [*first, *(k for k in second if k not in first)]
    }


def _memory_known(look: Look) -> bool:
    known = [] if look.residents is None else list(look.residents.values())
    return None not in known and sum(memory or 0 for memory in known) > 0


def _plausible(look: Look, old: Reading | None) -> Look:
    """A look whose power is unknown where the driver's figure is more than the GPU can draw. The limit before counts too: the
    draw comes down after its limit does."""
    limit_w = look.reading.limit_w
    if limit_w is not None and old is not None:
        limit_w = None if old.limit_w is None else max(limit_w, old.limit_w, old.power_w or 0.0)
    return look if is_draw(look.reading.power_w, limit_w) else replace(look, reading=replace(look.reading, power_w=None))


def is_draw(power_w: float | None, limit_w: float | None) -> bool:
    """Whether a reading of power, W, may be one: not less than nothing, nor more than a GPU draws whose limit is, or was a
    moment ago, ``limit_w`` (None: unknown)."""
    return power_w is not None and 0 <= power_w <= (MOST_W if limit_w is None else min(MOST_W, JUMP_FACTOR * limit_w))


def _reads_nothing(old: Reading, new: Reading, counter_j: float, duration_s: float) -> bool:
    """Whether power reads less than any GPU draws while the counter rises by what one may draw."""
    least_w = min(BRIDGE_MIN_W if one.power_w is None else one.power_w for one in (old, new))
    most_j = JUMP_FACTOR * min(_ceiling_w(old, new), MOST_W) * duration_s
    return least_w < BRIDGE_MIN_W and BRIDGE_MIN_W * duration_s <= counter_j <= most_j


def _ceiling_w(old: Reading, new: Reading) -> float:
    """The most that the GPU was seen or allowed to draw."""
    if old.limit_w is None or new.limit_w is None:
        return math.inf  # its power reading lags, so a sudden load may draw far more than was seen
    return max(old.limit_w, new.limit_w, old.power_w or 0.0, new.power_w or 0.0)


def _utilisation(reading: Reading) -> float | None:
    if reading.sm_util is None or reading.mem_util is None:
        return None
    return max(reading.sm_util, reading.mem_util)


def _is_quiet(reading: Reading) -> bool:
    used = _utilisation(reading)
    return used is not None and used < IDLE_SHARE


def _works(reading: Reading) -> bool:
    return reading.sm_util is not None and reading.sm_util >= IDLE_SHARE


class Meter:
    """The meters of all GPUs of a machine, which is ``node_id`` now, and what of them must outlive this process."""

    def __init__(self, node_id: str | None = None) -> None:
        self._node_id = node_id
        self._meters: dict[str, GpuMeter] = {}

    def feed(self, uuid: str, look: Look) -> list[EnergyRow]:
        """Take a GPU's next reading; the rows of the minutes that it closes."""
        return self._of(uuid).feed(look)

    def lost(self, uuid: str, boot_s: float) -> list[EnergyRow]:
        """A GPU could not be read now."""
        return self._of(uuid).lost(boot_s)

    def _of(self, uuid: str) -> GpuMeter:
        return self._meters.setdefault(uuid, GpuMeter(uuid, self._node_id))

    def idle_state(self, uuid: str) -> str:
        """See GpuMeter; a GPU never read is lost."""
        meter = self._meters.get(uuid)
        return "lost" if meter is None else meter.idle_state

    def distrust(self, boot_s: float) -> dict[str, str]:
        """The GPUs whose counter is not believed now, and why."""
        meters = self._meters.values()
        return {meter.uuid: meter.check.why or "found unreliable" for meter in meters if not meter.check.is_reliable(boot_s)}

    def state(self, boot_id: str) -> dict[str, Any]:
        """What a successor needs; save it each few seconds, and with the rows of a minute before they are queued."""
        meters = [meter.state() for meter in self._meters.values()]
        return {"boot_id": boot_id, "node_id": self._node_id, "meters": meters}

    def restore(self, state: Mapping[str, Any], boot_id: str, told: Mapping[str, int] | None = None) -> list[EnergyRow]:
        """Go on from a predecessor's state; ``told`` is until when there are rows of each GPU. From another boot only its
        unfinished minutes are taken, and returned as rows: the counters and the clock have started anew. Raises ValueError,
        KeyError or TypeError when it is no such state."""
        same_boot = state["boot_id"] == boot_id
        former = [GpuMeter.restored(one, self._node_id if same_boot else state.get("node_id")) for one in state["meters"]]
        for meter in former:
            meter.has_rows((told or {}).get(meter.uuid, 0))
        if same_boot:
            self._meters = {meter.uuid: meter for meter in former}
            return []
        rows = [row for meter in former for row in meter.flush()]
        self._meters = {meter.uuid: meter.of_next_boot(self._node_id) for meter in former}
        return rows


def rows_energy_wh(rows: Iterable[EnergyRow]) -> float:
    """The exact sum of the rows' energy."""
    return math.fsum(row.energy_wh for row in rows)
