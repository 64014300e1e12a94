"""The planning problem as plain arrays, and its answer: what the solver works on. It knows no jobs by name and no sentences.

Time is cut into slots, seconds from now. A *lane* is a pool of alike GPUs in one region. A job that touches a slot takes its
room there for the whole slot, and pays for the seconds it runs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

#: Sums of floats are compared with this slack: seconds, GPUs or W.
SLACK = 1e-6


@dataclass(frozen=True)
class Fleet:
    """The supply side: T slots, L lanes, R regions. A limit that is not there is inf.

    ``edges_s`` (T+1) are the slots' bounds. ``rate`` (L, T) is what a kWh at the GPU costs (planning currency; PUE, price
    weight and carbon price in it), 0 where that is not known (``known`` False). ``region`` (L) is each lane's region and
    ``pue`` (L) turns W at the GPU into W at the meter. Free are: ``gpus`` (L, T), ``lane_w`` (L, T) and ``region_w`` (R, T) at
    the meter, and ``starts`` (R, T), places for jobs. ``masks`` (K, T) are sets of slots that some jobs must not touch;
    ``masks[0]`` is empty.
    """

    edges_s: Floats
    rate: Floats
    known: Bools
    region: Ints
    pue: Floats
    gpus: Floats
    lane_w: Floats
    region_w: Floats
    starts: Floats
    masks: Bools

    @property
    def lengths_s(self) -> Floats:
        """Seconds of each slot."""
        return np.diff(self.edges_s)


@dataclass(frozen=True)
class Work:
    """The demand side: J jobs, and for each the C ways to run it (power caps; the first is without).

    By job: ``last_s`` by when it must have ended, ``gpus``, ``power_w`` at the GPU uncapped, ``pausable``, ``again_s`` of run
    time that each resume adds, ``chunk_s`` the least run between two pauses, ``pause_cost`` that each pause must save
    (planning currency), ``unserved_cost`` for not being placed at all (it orders jobs when room is short; not in the bound).
    ``team`` is an index into ``team_gpus`` (teams, T), the GPUs a team may still use; team 0 has no bound.
    By job and lane (J, L): ``ready_s`` from when it could run there (inf: not at all), ``run_s`` it takes there uncapped,
    ``fixed`` cost of beginning there, ``mask`` an index into the fleet's masks, ``draw`` relative to ``power_w``.
    By cap (C): ``cap_draw`` and ``cap_speed`` relative to none; ``caps`` (J, C) which of them a job accepts.
    ``here`` (J) is the lane it runs in now (-1: none): going on there from 0 needs no start. ``planned`` (J, 2), a lane (-1:
    none) and a second, is where a start was planned before; another must save ``keep_gain`` (J). ``wait_cost`` (J) is what
    waiting one second must save. These and ``pause_cost`` weigh on choices only, not on cost and bound.
    """

    last_s: Floats
    gpus: Floats
    power_w: Floats
    pausable: Bools
    again_s: Floats
    chunk_s: Floats
    pause_cost: Floats
    unserved_cost: Floats
    team: Ints
    team_gpus: Floats
    ready_s: Floats
    run_s: Floats
    fixed: Floats
    mask: Ints
    draw: Floats
    cap_draw: Floats
    cap_speed: Floats
    caps: Bools
    here: Ints
    planned: Floats | None = None
    keep_gain: Floats | None = None
    wait_cost: Floats | None = None

    def __len__(self) -> int:
        return len(self.last_s)


@dataclass(frozen=True)
class Answer:
    """Where each job goes: ``lane`` (J; -1: nowhere), ``cap`` (J), its runs ``begin_s``/``end_s`` from ``first[j]`` up to
    ``first[j + 1]`` (J+1), its ``cost`` (J; energy, carbon and ``fixed``; ``unserved_cost`` where it has no place).

    ``bound`` is a proven lower bound on the sum of ``cost``, ``steps`` how often prices were moved for it; ``warm`` what the
    solver wants to see again next time.
    """

    lane: Ints
    cap: Ints
    first: Ints
    begin_s: Floats
    end_s: Floats
    cost: Floats
    bound: float
    steps: int
    warm: Any = None

    @property
    def objective(self) -> float:
        """What all of it costs."""
        return float(self.cost.sum())

    @property
    def gap(self) -> float:
        """How far the objective may be above the best there is, relative to the bound."""
        return (self.objective - self.bound) / max(abs(self.bound), 1e-12)
