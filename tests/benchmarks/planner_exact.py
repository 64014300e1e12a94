"""What a plan must hold, checked without the solver's help, and the best there is for small cases, proven by a MIP (HiGHS).

Both read the rules from policies.problem: one lane and cap a job; a job takes its room in every slot it touches and pays for
its seconds; each run lasts at least ``chunk_s`` (a job shorter than that has one run; one that is running already may have run
before), and each resume adds ``again_s``, the first too of a job that runs there now and is paused at once.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policies.problem import Answer, Fleet, Work

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

PROOFS = Path(__file__).with_name("planner_exact.json")
#: A case is proven when its optimum is known this well; the search goes on to AIM while it has time.
PROVEN, AIM, SECONDS = 0.005, 0.0005, 40.0
#: Sums of many floats may be off by this share, and times by this many seconds.
RELATIVE, SECONDS_OFF = 1e-6, 1e-3


# --- the checker ------------------------------------------------------------------------------------------------------


def verify(fleet: Fleet, work: Work, answer: Answer) -> list[str]:
    """Everything about ``answer`` that breaks a rule, in words; empty when it is right. Its bound is not looked at."""
    n, runs = len(work), np.diff(answer.first)
    if len(answer.first) != n + 1 or answer.first[0] != 0 or (runs < 0).any() or answer.first[-1] != len(answer.begin_s):
        return ["runs: first does not divide begin_s"]
    if len(answer.end_s) != len(answer.begin_s) or not np.isfinite(np.concatenate((answer.begin_s, answer.end_s))).all():
        return ["runs: end_s does not go with begin_s, or one of them is not finite"]
    served = answer.lane >= 0
    wrong = _say((runs > 0) & ~served, lambda j: "nowhere, yet it runs") + _say((runs == 0) & served, lambda j: "no run")
    dear = ~served & ~_same(answer.cost, work.unserved_cost)
    wrong += _say(dear, lambda j: f"unserved costs {work.unserved_cost[j]}, not {answer.cost[j]}")
    if ((runs > 0) != served).any():
        return wrong
    return wrong + _jobs_wrong(fleet, work, answer) + _room_wrong(fleet, work, answer)


def _say(bad: Bools, words: Callable[[int], str]) -> list[str]:
    return [f"job {j}: {words(int(j))}" for j in np.flatnonzero(bad)]


def _same(a: Floats, b: Floats) -> Bools:
    return np.asarray(np.abs(a - b) <= RELATIVE * np.maximum(1.0, np.maximum(np.abs(a), np.abs(b))))


def _jobs_wrong(fleet: Fleet, work: Work, answer: Answer) -> list[str]:
    """What a job's own runs break. Arrays over all jobs have nonsense where a job is unserved; ``of`` keeps it out."""
    n, edges = len(work), fleet.edges_s
    jobs, served = np.arange(n), answer.lane >= 0
    lane, runs = np.where(served, answer.lane, 0), np.diff(answer.first)
    owner = np.repeat(jobs, runs)
    begin, end = answer.begin_s, answer.end_s
    head, tail = np.zeros(n), np.zeros(n)
    head[served], tail[served] = begin[answer.first[:-1][served]], end[answer.first[1:][served] - 1]
    going_on = served & (work.here == lane) & (head <= SECONDS_OFF)
    ready, run_s = work.ready_s[jobs, lane], work.run_s[jobs, lane]

    def any_run(bad: Bools) -> Bools:
        return np.asarray(np.bincount(owner, weights=bad, minlength=n) > 0)

    def of(words: str, bad: Bools, *figures: NDArray[Any]) -> list[str]:
        return _say(served & bad, lambda j: words.format(*(values[j] for values in figures)))

    wrong = of("in a lane that it may not use", ~going_on & ~np.isfinite(ready))
    wrong += of("begins at {}, ready at {}", ~going_on & np.isfinite(ready) & (head < ready - SECONDS_OFF), head, ready)
    wrong += of("ends at {}, must by {}", tail > work.last_s + SECONDS_OFF, tail, work.last_s)
    follows = owner[1:] == owner[:-1]
    overlap = np.concatenate(([False], follows & (begin[1:] < end[:-1] - SECONDS_OFF)))[: len(owner)]
    wrong += of("runs are empty or overlap", any_run((end <= begin) | overlap))
    wrong += of("runs outside the slots", (head < edges[0]) | (tail > edges[-1] + SECONDS_OFF))
    wrong += of("cap {} is not one that it accepts", ~work.caps[jobs, answer.cap], answer.cap)
    wrong += of("{} runs, though it must not be paused", (runs > 1) & ~work.pausable, runs)
    is_head = np.concatenate(([True], ~follows))[: len(owner)]
    short = (end - begin < work.chunk_s[owner] - SECONDS_OFF) & (runs[owner] > 1) & ~(going_on[owner] & is_head)
    wrong += of("a run of less than {} s between pauses", any_run(short), work.chunk_s)
    ran = np.bincount(owner, weights=end - begin, minlength=n)
    # what runs there now and does not go on has been paused: its first run is a resume too
    resumes = np.where((work.here == lane) & ~going_on, runs, runs - 1)
    needed = run_s / work.cap_speed[answer.cap] + resumes * work.again_s
    wrong += of("runs {} s, needs {}", np.abs(ran - needed) > SECONDS_OFF * np.maximum(runs, 1), ran, needed)
    first, stop = _touched(fleet, begin, end)
    closed = _running(fleet.masks)
    mask = work.mask[jobs, lane][owner]
    wrong += of("in a slot that is closed to it", any_run(closed[mask, stop] > closed[mask, first]))
    unknown = _running(~fleet.known)
    dark = unknown[lane[owner], stop] > unknown[lane[owner], first]
    wrong += of("in a slot of unknown cost", any_run(dark & fleet.known.any(axis=1)[lane[owner]]))
    watts = work.power_w * work.draw[jobs, lane] * work.cap_draw[answer.cap]
    expected = watts / 3.6e6 * np.bincount(owner, weights=_integral(fleet, lane[owner], begin, end), minlength=n)
    expected += np.where(going_on, 0.0, work.fixed[jobs, lane])
    return wrong + of("costs {}, not {}", ~_same(answer.cost, expected), expected, answer.cost)


def _touched(fleet: Fleet, begin: Floats, end: Floats) -> tuple[Ints, Ints]:
    """The slots that runs touch: the first, and the one after the last."""
    slots = len(fleet.edges_s) - 1
    first = np.clip(np.searchsorted(fleet.edges_s, begin + SECONDS_OFF, side="right") - 1, 0, slots - 1)
    return first, np.clip(np.searchsorted(fleet.edges_s, end - SECONDS_OFF, side="left"), first + 1, slots)


def _running(values: Bools) -> Ints:
    """Running counts along the slots, one more than there are slots."""
    return np.concatenate((np.zeros((len(values), 1), dtype=np.int64), np.cumsum(values, axis=1)), axis=1)


def _integral(fleet: Fleet, lane: Ints, begin: Floats, end: Floats) -> Floats:
    """Rate x seconds of each run."""
    out = np.zeros(len(begin))
    for number, rate in enumerate(fleet.rate):
        mine = lane == number
        total = np.concatenate(([0.0], np.cumsum(rate * fleet.lengths_s)))
        out[mine] = np.interp(end[mine], fleet.edges_s, total) - np.interp(begin[mine], fleet.edges_s, total)
    return out


def _room_wrong(fleet: Fleet, work: Work, answer: Answer) -> list[str]:
    """Slots that hold more than there is room for. Two runs of a job in one slot take its room once."""
    owner = np.repeat(np.arange(len(work)), np.diff(answer.first))
    first, stop = _touched(fleet, answer.begin_s, answer.end_s)
    again = np.concatenate(([False], (owner[1:] == owner[:-1]) & (first[1:] < stop[:-1])))[: len(owner)]
    first = np.where(again, np.maximum(first, np.concatenate(([0], stop[:-1]))[: len(owner)]), first)
    lane = answer.lane[owner]
    watts = work.power_w[owner] * work.draw[owner, lane] * work.cap_draw[answer.cap[owner]] * fleet.pue[lane]
    region = fleet.region[lane]
    found = (
        ("GPUs", lane, work.gpus[owner], fleet.gpus),
        ("W in a lane", lane, watts, fleet.lane_w),
        ("W in a region", region, watts, fleet.region_w),
        ("places", region, np.ones(len(owner)), fleet.starts),
        ("GPUs of a team", work.team[owner], work.gpus[owner], work.team_gpus),
    )
    wrong = []
    for name, where, amount, free in found:
        change = np.zeros((len(free), free.shape[1] + 1))
        np.add.at(change, (where, first), amount)
        np.add.at(change, (where, stop), -amount)
        taken = np.cumsum(change, axis=1)[:, :-1]
        over = taken > free + RELATIVE * np.maximum(1.0, taken)
        wrong += [f"{name}: {taken[at]} of {free[at]} in {at[0]}, slot {at[1]}" for at in zip(*np.nonzero(over), strict=True)]
    return wrong


# --- the best there is ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Proof:
    """The cheapest plan found, the proven bound on any, how many jobs it leaves out, and the seconds that took."""

    case: str
    primal: float
    bound: float
    unserved: int
    seconds: float

    @property
    def proven(self) -> bool:
        """Whether the optimum is known to PROVEN."""
        return self.primal - self.bound <= PROVEN * abs(self.primal)


def key_of(fleet: Fleet, work: Work) -> str:
    """A hash of the whole problem, to 7 digits: machines round differently in the last ones."""
    digest = hashlib.sha256()
    for part in (fleet, work):
        for field in fields(part):
            if getattr(part, field.name) is None:
                continue
            values = np.asarray(getattr(part, field.name))
            digest.update(f"{field.name}{values.shape}".encode())
            digest.update(",".join(f"{value:.7g}" for value in values.ravel().astype(float)).encode())
    return digest.hexdigest()[:20]


def proofs() -> dict[str, Proof]:
    """What was proven before, by the problem's key."""
    if not PROOFS.is_file():
        return {}
    return {key: Proof(**value) for key, value in json.loads(PROOFS.read_text(encoding="utf-8")).items()}


def keep(found: dict[str, Proof]) -> None:
    """Write them down."""
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(asdict(proof))}" for key, proof in sorted(found.items()))
    PROOFS.write_text("{\n" + text + "\n}\n", encoding="utf-8")


def prove(
    name: str, fleet: Fleet, work: Work, lane: Ints, begin_s: Floats, seconds: float = SECONDS
) -> tuple[Proof, Answer | None]:
    """Solve it with HiGHS on one core, from the plan that runs each job in one piece in ``lane`` from ``begin_s``. Returns what
    is proven, and the plan. Raises ValueError when run times or windows are not whole slots."""
    import highspy

    _must_be_whole(fleet, work)
    model = _Model(fleet, work, lane, begin_s)
    for j in range(len(work)):
        _add_paused(model, j) if work.pausable[j] and work.run_s[j, 0] > work.chunk_s[j] else _add_whole(model, j)
    begun = time.perf_counter()
    highs = highspy.Highs()
    for option, value in {
        "output_flag": False,
        "threads": 1,
        "mip_rel_gap": AIM,
        "time_limit": seconds,
        "random_seed": 1,
    }.items():
        highs.setOptionValue(option, value)
    highs.passModel(model.lp(highspy))
    first = highspy.HighsSolution()
    first.col_value = model.first.tolist()
    highs.setSolution(first)
    highs.run()
    info = highs.getInfo()
    found = np.asarray(highs.getSolution().col_value)
    if not len(found):
        return Proof(name, float("inf"), float(info.mip_dual_bound), -1, round(time.perf_counter() - begun, 2)), None
    answer = model.answer(found, float(info.mip_dual_bound))
    unserved = int((answer.lane < 0).sum())
    return Proof(name, answer.objective, answer.bound, unserved, round(time.perf_counter() - begun, 2)), answer


def _must_be_whole(fleet: Fleet, work: Work) -> None:
    slot = fleet.edges_s[1]
    ready = work.ready_s[np.isfinite(work.ready_s)]
    for name, values in (
        ("edges_s", np.diff(fleet.edges_s) - slot),
        ("run_s", work.run_s),
        ("ready_s", ready),
        ("last_s", work.last_s),
    ):
        if not np.allclose(np.mod(values, slot), 0):
            raise ValueError(f"{name}: whole slots of {slot:g} s wanted for the exact model")
    if (
        work.again_s.any()
        or work.pause_cost.any()
        or len(work.cap_draw) > 1
        or np.isfinite(work.team_gpus).any()
        or (work.here >= 0).any()
    ):
        raise ValueError("the exact model knows no again_s, pause_cost, caps, teams or running jobs")


class _Model:
    """Columns and rows as they come. Rows of room are there for each (lane, slot) of GPUs and each (region, slot) of power."""

    def __init__(self, fleet: Fleet, work: Work, lane: Ints, begin_s: Floats) -> None:
        self.fleet, self.work = fleet, work
        self.lane, self.begin_s = lane, begin_s
        self.begun: list[int] = []
        self.runs: dict[int, tuple[int, int, int, int]] = {}
        self.slot_s = float(fleet.edges_s[1])
        self.cost: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.room: dict[tuple[str, int, int], dict[int, float]] = {}

    def column(self, cost: float, *, whole: bool = True) -> int:
        """A variable between 0 and 1."""
        self.cost.append(cost)
        self.whole.append(whole)
        return len(self.cost) - 1

    @property
    def first(self) -> Floats:
        """The columns' values in the plan to begin with."""
        values = np.zeros(len(self.cost))
        values[self.begun] = 1.0
        return values

    def row(self, terms: dict[int, float], low: float, high: float) -> None:
        """low <= terms <= high."""
        self.rows.append((terms, low, high))

    def takes(self, column: int, j: int, lane: int, slots: range) -> None:
        """The column means that the job runs there in these slots."""
        self.runs[column] = j, lane, slots.start, slots.stop
        watts = self.work.power_w[j] * self.work.draw[j, lane] * self.fleet.pue[lane]
        region = int(self.fleet.region[lane])
        for slot in slots:
            self.room.setdefault(("gpus", lane, slot), {})[column] = float(self.work.gpus[j])
            if np.isfinite(self.fleet.region_w[region, slot]):
                self.room.setdefault(("power", region, slot), {})[column] = float(watts)

    def answer(self, values: Floats, bound: float) -> Answer:
        """The plan that the columns' values mean, its costs summed anew."""
        n = len(self.work)
        lane, runs = np.full(n, -1, dtype=np.int64), [list[tuple[int, int]]() for _ in range(n)]
        for column, (j, where, begin, end) in self.runs.items():
            if values[column] > 0.5:
                lane[j] = where
                if runs[j] and runs[j][-1][1] == begin:
                    begin = runs[j].pop()[0]
                runs[j].append((begin, end))
        cost = self.work.unserved_cost.copy()
        for j in np.flatnonzero(lane >= 0):
            energy = self.energy(j, int(lane[j]))
            cost[j] = sum(energy[begin:end].sum() for begin, end in runs[j]) + self.work.fixed[j, lane[j]]
        first = np.concatenate(([0], np.cumsum([len(mine) for mine in runs]))).astype(np.int64)
        flat = np.array([run for mine in runs for run in mine], dtype=np.float64).reshape(-1, 2) * self.slot_s
        return Answer(lane, np.zeros(n, dtype=np.int64), first, flat[:, 0].copy(), flat[:, 1].copy(), cost, bound, 0)

    def energy(self, j: int, lane: int) -> Floats:
        """What each slot costs job ``j`` there."""
        watts = self.work.power_w[j] * self.work.draw[j, lane]
        return np.asarray(watts / 3.6e6 * self.slot_s * self.fleet.rate[lane])

    def window(self, j: int, lane: int) -> tuple[int, int, int]:
        """First slot, the one after the last, and how many it needs."""
        first, last = self.work.ready_s[j, lane] / self.slot_s, self.work.last_s[j] / self.slot_s
        return round(first), round(last), round(self.work.run_s[j, lane] / self.slot_s)

    def lanes(self, j: int) -> list[int]:
        """Where the job may run."""
        return [int(lane) for lane in np.flatnonzero(np.isfinite(self.work.ready_s[j]))]

    def lp(self, highspy: Any) -> Any:
        """The model as HiGHS wants it. Room that cannot run out gets no row."""
        rows = list(self.rows)
        for (kind, where, slot), terms in self.room.items():
            limit = float((self.fleet.gpus if kind == "gpus" else self.fleet.region_w)[where, slot])
            if sum(terms.values()) > limit:
                # scaled: HiGHS' feasibility tolerance is absolute
                scale = 1.0 if kind == "gpus" else 1e-3
                rows.append(({column: value * scale for column, value in terms.items()}, -highspy.kHighsInf, limit * scale))
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.cost), len(rows)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.cost)), np.ones(len(self.cost))
        lp.row_lower_, lp.row_upper_ = np.array([row[1] for row in rows]), np.array([row[2] for row in rows])
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in self.whole]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.concatenate(([0], np.cumsum([len(row[0]) for row in rows]))).astype(np.int32)
        lp.a_matrix_.index_ = np.array([column for row in rows for column in row[0]], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([value for row in rows for value in row[0].values()])
        return lp


def _add_whole(model: _Model, j: int) -> None:
    """One column for each place to begin."""
    one: dict[int, float] = {}
    for lane in model.lanes(j):
        first, last, needed = model.window(j, lane)
        total = np.concatenate(([0.0], np.cumsum(model.energy(j, lane))))
        for slot in range(first, last - needed + 1):
            cost = float(total[slot + needed] - total[slot] + model.work.fixed[j, lane])
            if cost < model.work.unserved_cost[j]:
                column = model.column(cost)
                one[column] = 1.0
                model.takes(column, j, lane, range(slot, slot + needed))
                if lane == model.lane[j] and slot == round(model.begin_s[j] / model.slot_s):
                    model.begun.append(column)
    _or_unserved(model, j, one)


def _or_unserved(model: _Model, j: int, one: dict[int, float]) -> None:
    column = model.column(float(model.work.unserved_cost[j]))
    model.row({**one, column: 1.0}, 1.0, 1.0)


def _add_paused(model: _Model, j: int) -> None:
    """By lane: whether it is used, and by slot: whether it is on, and whether a run begins."""
    one: dict[int, float] = {}
    chunk = round(model.work.chunk_s[j] / model.slot_s)
    for lane in model.lanes(j):
        first, last, needed = model.window(j, lane)
        if last - first < needed:
            continue
        energy = model.energy(j, lane)
        used = model.column(float(model.work.fixed[j, lane]))
        one[used] = 1.0
        slots = range(first, last)
        on = {slot: model.column(float(energy[slot])) for slot in slots}
        starts = {slot: model.column(0.0, whole=False) for slot in slots}
        model.row({**dict.fromkeys(on.values(), 1.0), used: -float(needed)}, 0.0, 0.0)
        if lane == model.lane[j]:
            begin = round(model.begin_s[j] / model.slot_s)
            model.begun += [used, starts[begin], *(on[slot] for slot in range(begin, begin + needed))]
        for slot in slots:
            model.takes(on[slot], j, lane, range(slot, slot + 1))
            model.row({on[slot]: 1.0, used: -1.0}, -np.inf, 0.0)
            before = {on[slot - 1]: 1.0} if slot > first else {}
            model.row({on[slot]: -1.0, starts[slot]: 1.0, **before}, 0.0, np.inf)
            # a run that began lately still goes on
            lately = {starts[s]: 1.0 for s in range(max(first, slot - chunk + 1), slot + 1)}
            model.row({**lately, on[slot]: -1.0}, -np.inf, 0.0)
            if slot > last - chunk:
                model.row({starts[slot]: 1.0}, 0.0, 0.0)
    _or_unserved(model, j, one)
