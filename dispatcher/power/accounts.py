"""From rows of measured energy to what a job used: pure arithmetic; it knows no database, no clock and no prices.

A row is what one GPU drew in one interval on behalf of one job, of nobody (idle) or of nobody known (unattributed). What was
not measured is missing, never zero; a job's missing part is modelled, and then called so.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

#: What an energy rests on.
MEASURED, PARTLY_MEASURED, MODELLED, SIMULATED = "measured", "partly measured", "modelled", "simulated"
#: Share of a run that must have been measured before its energy is called measured.
COVERED = 0.95
#: How a GPU's draw was divided: all to one owner; or, in sums of minutes, so that measured seconds add up. Whatever else stands
#: there says how a GPU was shared.
EXCLUSIVE, SUMMED = "exclusive", "summed"
_MINUTE = 60

Gpu = tuple[str, str]


@dataclass(frozen=True, slots=True)
class EnergyRow:
    """One row as it is stored. Times are whole seconds since 1970, ``job_id`` is "" where there is no job; ``seconds`` is how
    much of the interval was measured for it, ``idle_wh`` the part of ``energy_wh`` that a job drew while it sat idle
    (None: not known). ``bridged_s`` of the seconds are known from the counter alone: nobody read it meanwhile, and how the
    energy lies in them is not known."""

    node_id: str
    uuid: str
    start_s: int
    job_id: str
    line: str
    end_s: int
    region: str
    energy_wh: float
    idle_wh: float | None
    seconds: float
    quality: str
    split: str
    simulated: bool
    bridged_s: float = 0.0

    @property
    def gpu(self) -> Gpu:
        """Whose meter it is."""
        return (self.node_id, self.uuid)

    @property
    def minute(self) -> tuple[str, str, int]:
        """Whose meter it is, and from when."""
        return (self.node_id, self.uuid, self.start_s)


@dataclass(frozen=True, slots=True)
class Slice:
    """Energy that was drawn evenly over ``[start, end)``, kWh."""

    start: datetime
    end: datetime
    energy_kwh: float


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """What the GPUs of one attempt drew for it, without PUE. ``covered`` is the share (0..1) of its run, over all its GPUs, in
    which their meters were read; ``slices`` hold the measured energy by interval, and where ``covered`` is too little the
    modelled rest too, ``modelled_kwh`` of them. ``idle_kwh`` is what it drew while it sat idle, as far as that is known."""

    slices: tuple[Slice, ...]
    energy_kwh: float
    modelled_kwh: float
    idle_kwh: float | None
    covered: float
    gpus: int
    basis: str


def moment(seconds: float) -> datetime:
    """The aware UTC time of so many seconds since 1970."""
    return datetime.fromtimestamp(seconds, UTC)


def metered_seconds(rows: Iterable[EnergyRow]) -> float:
    """For how long a GPU's meter was read in one interval, from all its rows of that interval. Owners that had the GPU one
    after the other add up; those that shared it were measured at the same time."""
    alone, shared, length = 0.0, 0.0, 0
    for row in rows:
        length = max(length, row.end_s - row.start_s)
        if row.split not in (EXCLUSIVE, SUMMED):
            shared = max(shared, row.seconds)
        else:
            alone += row.seconds
    return min(float(length), alone + shared)


def _covered_cells(rows: Iterable[EnergyRow], job_id: str, start_s: float, end_s: float) -> dict[Gpu, dict[int, float]]:
    """Measured seconds by GPU and minute of ``[start_s, end_s)``, in which ``job_id`` ran. What was measured for it was
    measured in that time; an interval's other seconds lie evenly in the rest of it, and all of them evenly in its minutes."""
    intervals: dict[tuple[Gpu, int, int], list[EnergyRow]] = defaultdict(list)
    for row in rows:
        if row.end_s > start_s and row.start_s < end_s:
            intervals[row.gpu, row.start_s, row.end_s].append(row)
    found: dict[Gpu, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (gpu, first_s, last_s), parts in intervals.items():
        within_s = min(last_s, end_s) - max(first_s, start_s)
        own_s = min(metered_seconds(row for row in parts if row.job_id == job_id), within_s)
        rest_s, left_s = metered_seconds(parts) - own_s, last_s - first_s - own_s
        share = (own_s + (min(1.0, rest_s / left_s) * (within_s - own_s) if left_s > 0 else 0.0)) / within_s
        cell = first_s - first_s % _MINUTE
        while cell < last_s:
            overlap_s = min(cell + _MINUTE, last_s, end_s) - max(cell, first_s, start_s)
            if overlap_s > 0:
                found[gpu][cell] += share * overlap_s
            cell += _MINUTE
    for cells in found.values():
        for cell, seconds in cells.items():
            cells[cell] = min(seconds, min(cell + _MINUTE, end_s) - max(cell, start_s))
    return found


def _outside_s(own: Iterable[EnergyRow], start_s: float, end_s: float) -> float:
    """GPU seconds that were measured for a job beyond what of its rows' intervals lies in ``[start_s, end_s)``, in which it
    ran: rows carry their node's clock, which may be off."""
    intervals: dict[tuple[Gpu, int, int], list[EnergyRow]] = defaultdict(list)
    for row in own:
        intervals[row.gpu, row.start_s, row.end_s].append(row)
    return math.fsum(
        max(0.0, metered_seconds(parts) - max(0.0, min(last_s, end_s) - max(first_s, start_s)))
        for (_, first_s, last_s), parts in intervals.items()
    )


def _gpus(seen: int, asked: float) -> int:
    """How many GPUs a job's meters should tell of: those that it asked for, or those it was seen on where they are more."""
    return max(seen, math.ceil(asked - 1e-9), 1)


def job_energy(
    own: Sequence[EnergyRow],
    around: Sequence[EnergyRow],
    start: datetime,
    end: datetime,
    *,
    gpus: float,
    power_w: float,
) -> JobEnergy | None:
    """The energy of an attempt that ran over ``[start, end)``, from its ``own`` rows; ``around`` are all rows of its GPUs in
    that time, own ones too, for a meter that reads idle was read. None where nothing of it was measured.

    ``gpus`` is how many it asked for and ``power_w`` its expected draw as a whole: what was not measured of it is modelled by
    them where it is more than a twentieth of the run. Own rows that lie outside the run are of a node whose clock is off: their
    seconds are those that are missing in it, and are not modelled besides.
    """
    if not own:
        return None
    start_s, end_s = start.timestamp(), end.timestamp()
    cells = _covered_cells(around, own[0].job_id, start_s, end_s)
    wanted = _gpus(len({row.gpu for row in own}), gpus)
    by_minute: dict[int, float] = defaultdict(float)
    for minutes in cells.values():
        for cell, seconds in minutes.items():
            by_minute[cell] += seconds / wanted
    run_s = max(end_s - start_s, 0.0)
    within_s, outside_s = math.fsum(by_minute.values()), _outside_s(own, start_s, end_s) / wanted
    covered = min(1.0, (within_s + outside_s) / run_s) if run_s > 0 else 1.0
    drawn: dict[tuple[float, float], float] = defaultdict(float)
    for row in own:
        drawn[row.start_s, row.end_s] += row.energy_wh / 1000.0
    measured_kwh, rest_kwh = math.fsum(drawn.values()), 0.0
    if covered < COVERED:
        unmeasured = 1.0 - outside_s / (run_s - within_s)  # of what the run's own minutes lack
        cell = int(start_s // _MINUTE) * _MINUTE
        while cell < end_s:
            first_s, last_s = max(float(cell), start_s), min(float(cell + _MINUTE), end_s)
            missing_s = last_s - first_s - by_minute.get(cell, 0.0)
            if missing_s > 1e-6:
                kwh = power_w * missing_s * unmeasured / 3_600_000.0
                drawn[first_s, last_s] += kwh
                rest_kwh += kwh
            cell += _MINUTE
    basis = MEASURED if covered >= COVERED else PARTLY_MEASURED
    return JobEnergy(
        slices=tuple(Slice(moment(a), moment(b), kwh) for (a, b), kwh in sorted(drawn.items())),
        energy_kwh=measured_kwh + rest_kwh,
        modelled_kwh=rest_kwh,
        idle_kwh=math.fsum(idle) / 1000.0 if (idle := [row.idle_wh for row in own if row.idle_wh is not None]) else None,
        covered=covered,
        gpus=wanted,
        basis=SIMULATED if any(row.simulated for row in own) else basis,
    )


def together(*bases: str | None) -> str | None:
    """What a sum of energies rests on; None counts as nothing added. Anything simulated makes the sum simulated."""
    known = {basis for basis in bases if basis is not None}
    if SIMULATED in known:
        return SIMULATED
    if len(known) > 1:
        return PARTLY_MEASURED
    return known.pop() if known else None


def minute_of(when: datetime) -> datetime:
    """The start of the minute that ``when`` lies in."""
    return when.replace(second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class Turn:
    """Which rows of a job belong to one of its attempts: those of ``region`` that start in ``[first, until)`` (None: open)."""

    region: str
    first: datetime | None
    until: datetime | None


def turns(launches: Sequence[tuple[int, str, datetime]]) -> dict[int, Turn]:
    """Divide a job's rows among its attempts, given as (number, region, launched at): each row goes to exactly one, the last
    that had been launched in its region by the end of the row's minute."""
    found: dict[int, Turn] = {}
    by_region: dict[str, list[tuple[int, datetime]]] = defaultdict(list)
    for number, region, launched_at in sorted(launches):
        by_region[region].append((number, minute_of(launched_at)))
    for region, mine in by_region.items():
        for index, (number, first) in enumerate(mine):
            following = mine[index + 1][1] if index + 1 < len(mine) else None
            found[number] = Turn(region, first if index else None, following)
    return found


def integrated(slices: Sequence[Slice], mean_over: Callable[[datetime, datetime], float | None]) -> float | None:
    """The sum over ``slices`` of energy times the mean of a signal over the slice, in kWh times the signal's unit; None where
    the signal is unknown while something was drawn."""
    total = 0.0
    for one in slices:
        if one.energy_kwh == 0.0:
            continue
        mean = mean_over(one.start, one.end)
        if mean is None:
            return None
        total += one.energy_kwh * mean
    return total
