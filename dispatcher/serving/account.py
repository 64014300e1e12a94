"""What serving and the batch beside it did, counted by quarter hour, for whoever must tell later whether batch hurt users.

It keeps no counters of its own: requests are what policies.serving.SloWatch found between two readings, seconds what passed
by a clock that only runs on. The control plane's clock says only to which quarter hour they belong, so that setting it counts
nothing twice; each stretch of a quarter hour has a name of its own in the store, so that writing it again changes nothing.
"""

import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Protocol

from dispatcher.config import Config
from dispatcher.store import Judged, ObjectiveCounts, ServingQuarter
from policies.serving import Level, Passed, Risk
from policies.world import JobView

QUARTER_S = 900
#: A look stands for the time since the one before, so long at most: what came in a longer pause nobody saw, s.
MOST_LOOK_S = 5.0


class Quarters(Protocol):
    """What it needs of the store."""

    def keep_serving(self, quarters: Sequence[ServingQuarter]) -> "Future[None]":
        """Keep what was seen of serving; a part that is kept already is replaced."""
        ...


@dataclass(frozen=True, slots=True)
class _Look:
    """One look at a serving: when, by the clock that only runs on, and what was so from then on."""

    at_s: float
    level: Level
    known: tuple[bool, ...]
    beside: bool
    beside_gpus: float
    region_gpus: float
    jobs: dict[str, JobView]


@dataclass
class _Served:
    """One serving: the part that is running, those not written yet, the last look, and since when batch was asked to give.
    ``was_beside`` tells, for each objective, whether batch ran beside it at any moment since its last reading."""

    quarter: ServingQuarter
    unwritten: dict[str, ServingQuarter] = field(default_factory=dict)
    look: _Look | None = None
    was_beside: list[bool] = field(default_factory=list)
    asked: tuple[float, dict[str, JobView]] | None = None


class ServingAccount:
    """See the module. Thread-safe. ``now`` is the control plane's clock."""

    def __init__(self, config: Config, store: Quarters, now: Callable[[], datetime]) -> None:
        self._store, self._now, self._lock = store, now, threading.Lock()
        self._served: dict[tuple[str, str], _Served] = {}
        for region in config.regions:
            for one in region.serving:
                counts = tuple(ObjectiveCounts(slo.name, slo.share, Judged(), Judged()) for slo in one.slos)
                empty = ServingQuarter(region.name, one.name, datetime.min.replace(tzinfo=UTC), "", counts, (0.0,) * len(Level))
                self._served[region.name, one.name] = _Served(empty, was_beside=[False] * len(counts))

    def counted(self, region: str, name: str, number: int, passed: Passed) -> None:
        """What one objective (by its number) counted since its last reading. It counts as beside batch where batch ran beside
        it at any moment since; before the first look nobody knows, and it is left out."""
        with self._lock:
            one = self._served[region, name]
            if one.look is None:
                return
            beside, one.was_beside[number] = one.was_beside[number] or one.look.beside, one.look.beside
            self._judge(one, number, beside, Judged(passed.total, passed.bad))

    def looked(
        self, region: str, name: str, at_s: float, level: Level, risks: Sequence[Risk], here: Sequence[JobView], gpus: float
    ) -> None:
        """How far batch has to step aside from ``at_s`` on, and which batch jobs are ``here``, beside it; ``gpus`` are those of
        all batch that runs in the region. Frozen jobs do not run."""
        runs = [job for job in here if job.frozen_at is None]
        new = _Look(
            at_s,
            level,
            tuple(risk.state != "unknown" for risk in risks),
            bool(runs),
            sum(job.flex.gpus for job in runs),
            gpus,
            {job.id: job for job in here},
        )
        with self._lock:
            one = self._served[region, name]
            last, one.look = one.look, new
            one.was_beside = [was or new.beside for was in one.was_beside]
            if last is not None:
                self._pass(one, last, min(max(at_s - last.at_s, 0.0), MOST_LOOK_S))
                self._note(one, last, new, f"serving {name}:")

    def keep(self, now: datetime) -> None:
        """Write down what changed. What cannot be written is tried again the next time. Raises StoreUnavailable."""
        with self._lock:
            offered = [quarter for one in self._served.values() for quarter in one.unwritten.values()]
        if not offered:
            return
        self._store.keep_serving(offered).result()
        written = {quarter.part: quarter for quarter in offered}
        with self._lock:
            for one in self._served.values():
                one.unwritten = {part: quarter for part, quarter in one.unwritten.items() if written.get(part) is not quarter}

    def close(self) -> None:
        """Write down what there is."""
        self.keep(self._now())

    # --- parts, under the lock ----------------------------------------------------------------------------------------

    def _open(self, one: _Served) -> ServingQuarter:
        """The part that is running; a new one in another quarter hour, and after the clock was set."""
        start = datetime.fromtimestamp(self._now().timestamp() // QUARTER_S * QUARTER_S, UTC)
        held = one.quarter
        if held.start != start:
            counts = tuple(ObjectiveCounts(o.name, o.share, Judged(), Judged()) for o in held.objectives)
            levels = (0.0,) * len(Level)
            one.quarter = ServingQuarter(held.region, held.name, start, secrets.token_hex(8), counts, levels)
        return one.quarter

    def _put(self, one: _Served, quarter: ServingQuarter) -> None:
        one.quarter = one.unwritten[quarter.part] = quarter

    def _judge(self, one: _Served, number: int, beside: bool, more: Judged) -> None:
        quarter = self._open(one)
        objectives = list(quarter.objectives)
        was = objectives[number]
        if beside:
            objectives[number] = replace(was, beside=was.beside + more)
        else:
            objectives[number] = replace(was, alone=was.alone + more)
        self._put(one, replace(quarter, objectives=tuple(objectives)))

    def _pass(self, one: _Served, last: _Look, seconds: float) -> None:
        """Let the time pass since the last look: what it saw was so until now."""
        for number, known in enumerate(last.known):
            self._judge(one, number, last.beside, Judged(known_s=seconds) if known else Judged(unknown_s=seconds))
        quarter = self._open(one)
        levels = tuple(s + seconds * (level == last.level) for level, s in enumerate(quarter.level_s))
        self._put(
            one,
            replace(
                quarter,
                level_s=levels,
                beside_s=quarter.beside_s + seconds * last.beside,
                beside_gpu_s=quarter.beside_gpu_s + seconds * last.beside_gpus,
                region_gpu_s=quarter.region_gpu_s + seconds * last.region_gpus,
            ),
        )

    def _note(self, one: _Served, last: _Look, new: _Look, whose: str) -> None:
        """Note that batch was asked to step aside, and what it gave."""
        rose = last.level == Level.CALM < new.level
        if rose:
            one.asked = (new.at_s, {key: job for key, job in new.jobs.items() if job.frozen_at is None})
        yields: tuple[float, ...] = ()
        if one.asked is not None and new.level == Level.CALM:
            one.asked = None
        elif one.asked is not None and any(_gave(job, new.jobs.get(key)) for key, job in one.asked[1].items()):
            yields, one.asked = (new.at_s - one.asked[0],), None
        pairs = [(old, job) for key, job in new.jobs.items() if (old := last.jobs.get(key)) is not None]
        frozen = sum(a.frozen_at is None and b.frozen_at is not None and b.reason.startswith(whose) for a, b in pairs)
        asked = sum(not a.pause_requested and b.pause_requested and b.reason.startswith(whose) for a, b in pairs)
        capped = sum(a.cap >= 1.0 > b.cap for a, b in pairs) if new.level >= Level.CAP else 0
        if not (rose or yields or frozen or asked or capped):
            return
        quarter = self._open(one)
        self._put(
            one,
            replace(
                quarter,
                rises=quarter.rises + rose,
                rises_beside=quarter.rises_beside + (rose and new.beside),
                frozen=quarter.frozen + frozen,
                asked=quarter.asked + asked,
                capped=quarter.capped + capped,
                yield_s=quarter.yield_s + yields,
            ),
        )


def _gave(then: JobView, job: JobView | None) -> bool:
    """Whether a job that ran has left, stands frozen, or runs under a lower cap."""
    return job is None or job.frozen_at is not None or job.cap < then.cap
