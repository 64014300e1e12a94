"""Interactive serving, watched: its metrics read each second, a guard stepped for each, and what batch has to give for it.

Reading is one thread's for each serving, so that one that does not answer holds up nobody. What is done to batch is
policies.decide's and the power loop's matter; here stands only how far it has to go, and why.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from dispatcher.config import Config
from dispatcher.config_serving import ServingConfig
from dispatcher.power.hub import NodeLive
from dispatcher.serving.account import ServingAccount
from dispatcher.serving.metrics import Counted, MetricsError
from dispatcher.store import GridEventChange
from policies.freezing import may_freeze
from policies.serving import Batch, Guard, GuardState, Level, Objective, Reading, Risk, SloWatch
from policies.turns import leaving, may_ask, pausable_now
from policies.world import PLACED, Guarded, JobView, World

log = logging.getLogger(__name__)


class Reader(Protocol):
    """Reads one serving's metrics."""

    def read(self) -> Sequence[Counted]:
        """What each of its objectives counts now, in their order, and then its load, where that is asked for. Blocks for some
        seconds at most. Raises MetricsError."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class History(Protocol):
    """What it needs of the store."""

    def note_grid_event(self, change: GridEventChange) -> object:
        """Write down what happened."""
        ...


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """How one serving stands: its guard, each objective's risk, and what batch runs beside it."""

    region: str
    name: str
    level: Level
    since: datetime
    sentence: str
    unmet_alone: bool
    risks: tuple[Risk, ...]
    batch: Batch
    read_error: str


@dataclass
class _Served:
    """One serving, its reader and its guard. ``state`` None: not judged yet."""

    region: str
    config: ServingConfig
    reader: Reader
    watches: tuple[SloWatch, ...]
    guard: Guard
    state: GuardState | None = None
    since: datetime | None = None
    risks: tuple[Risk, ...] = ()
    batch: Batch = field(default_factory=lambda: Batch(0, 0, 0, 0))
    job_ids: frozenset[str] | None = None
    error: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class ServingWatch:
    """All serving of a configuration. ``look`` is a loop's; the rest may be called from any thread.

    ``nodes`` are those that agents tell of, ``changed`` is called when batch has to give more, or less, and ``demand`` with a
    region, a serving's name, its load as it was read and how old that is, s. ``account`` counts what was seen, for reports.
    """

    def __init__(
        self,
        config: Config,
        reader_of: Callable[[ServingConfig], Reader],
        history: History,
        *,
        nodes: Callable[[], Iterable[NodeLive]] = lambda: (),
        changed: Callable[[], None] = lambda: None,
        demand: Callable[[str, str, float, float], None] = lambda region, name, load, age_s: None,
        account: ServingAccount | None = None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history, self._nodes, self._changed, self._mono = history, nodes, changed, mono
        self._demand, self._account = demand, account
        self._served = tuple(
            _Served(
                region.name,
                one,
                reader_of(one),
                tuple(SloWatch(Objective(slo.name, slo.share, slo.limit), one.stale_s) for slo in one.slos),
                Guard(one.when_unknown, one.when_unmet),
            )
            for region in config.regions
            for one in region.serving
        )
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- reading ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to read."""
        for one in self._served:
            thread = threading.Thread(target=self._follow, args=(one,), name=f"serving-{one.config.name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        for thread in self._threads:
            thread.join(5.0)
        for one in self._served:
            one.reader.close()

    def _follow(self, one: _Served) -> None:
        while not self._closing.is_set():
            began = self._mono()
            self.read(one)
            self._closing.wait(max(0.05, one.config.scrape_s - (self._mono() - began)))

    def read_all(self) -> None:
        """Read each serving once, in the caller."""
        for one in self._served:
            self.read(one)

    def read(self, one: _Served) -> None:
        """Read one serving once; what cannot be read is noted as missing."""
        try:
            counted = one.reader.read()
            error = ""
        except MetricsError as wrong:
            counted, error = (), str(wrong)
        except Exception as wrong:  # the thread must outlive whatever it is
            log.exception("metrics of %s", one.config.name)
            counted, error = (), f"they cannot be read ({type(wrong).__name__})"
        at_s = self._mono()
        with one.lock:
            if error and error != one.error:
                log.warning("serving %s of %s: %s", one.config.name, one.region, error)
            one.error = error or next((said.wrong for said in counted if said.wrong), "")
            for number, watch in enumerate(one.watches):
                said = counted[number] if number < len(counted) else None
                if said is None or said.wrong:
                    watch.missing(at_s, said.wrong if said is not None else error)
                else:
                    passed = watch.add(Reading(at_s - said.age_s, said.good, said.total, said.value))
                    if passed is not None and self._account is not None:
                        self._account.counted(one.region, one.config.name, number, passed)
        for load in counted[len(one.watches) :]:
            if load.value is not None and not load.wrong:
                self._demand(one.region, one.config.name, load.value, load.age_s)

    # --- judging ------------------------------------------------------------------------------------------------------

    def look(self, world: World, now: datetime) -> None:
        """Step every guard by what was read last and by what batch runs beside it."""
        moved = False
        nodes = [*self._nodes()] if any(one.config.is_somewhere for one in self._served) else []
        for one in self._served:
            moved = self._step(one, world, nodes, now) or moved
        if moved:
            self._changed()

    def _step(self, one: _Served, world: World, nodes: Sequence[NodeLive], now: datetime) -> bool:
        job_ids = _beside(one.config, one.region, nodes)
        here = [
            job
            for job in world.jobs
            if job.state in PLACED and job.region == one.region and (job_ids is None or job.id in job_ids)
        ]
        now_s = self._mono()
        with one.lock:
            before = one.state
            one.risks = tuple(watch.risk(now_s) for watch in one.watches)
            one.batch, one.job_ids = batch_of(here, world), job_ids
            one.state = state = one.guard.step(now_s, one.risks, one.batch)
            if self._account is not None:
                gpus = sum(
                    j.flex.gpus for j in world.jobs if j.state in PLACED and j.region == one.region and j.frozen_at is None
                )
                self._account.looked(one.region, one.config.name, now_s, state.level, one.risks, here, gpus)
            if before is not None and before.level == state.level and before.unmet_alone == state.unmet_alone:
                return False
            one.since = now
        if before is None and state.level is Level.CALM:
            return False
        log.info("serving %s of %s: %s", one.config.name, one.region, state.sentence)
        self._history.note_grid_event(
            GridEventChange(source_of(one.region), one.config.name, now, None, "note", state.sentence)
        )
        return True

    # --- what others ask ----------------------------------------------------------------------------------------------

    def guards(self, region: str) -> tuple[Guarded, ...]:
        """What batch in a region has to give now."""
        found = []
        for one in self._served:
            with one.lock:
                state = one.state
                if one.region == region and state is not None and state.level > Level.CALM:
                    found.append(Guarded(one.config.name, state.level, f"serving {one.config.name}: {_why(one)}", one.job_ids))
        return tuple(found)

    def status(self, now: datetime) -> list[ServingStatus]:
        """How each serving stands."""
        told = []
        for one in self._served:
            with one.lock:
                state = one.state or GuardState(Level.CALM, self._mono(), "not judged yet", unmet_alone=False)
                since = one.since or now
                told.append(
                    ServingStatus(
                        *(one.region, one.config.name, state.level, since, state.sentence, state.unmet_alone),
                        *(one.risks, one.batch, one.error),
                    )
                )
        return told

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence): objectives that are not known, and such as are not met though no batch runs beside them."""
        for one in self.status(now):
            key = f"serving {one.region} {one.name}"
            unknown = [risk.sentence for risk in one.risks if risk.state == "unknown"]
            if one.unmet_alone:
                yield f"{key} unmet", one.region, f"serving {one.name}: {one.sentence}"
            elif one.level is Level.PAUSE:
                yield key, one.region, f"serving {one.name}: {one.sentence}"
            if unknown:
                yield f"{key} unknown", one.region, f"serving {one.name}: {'; '.join(unknown)}"


def source_of(region: str) -> str:
    """Under which source the steps of a region's guards are kept in the history."""
    return f"serving {region}"


def batch_of(here: Sequence[JobView], world: World) -> Batch:
    """What batch runs there, and what it could still give."""
    return Batch(
        running=sum(job.frozen_at is None for job in here),
        cappable=sum(job.capped_w is not None and job.flex.may_be_slowed and job.frozen_at is None for job in here),
        freezable=sum(may_freeze(job, world.now) for job in here),
        pausable=sum(pausable_now(job) and not leaving(job) and may_ask(job, world) for job in here),
    )


def _beside(config: ServingConfig, region: str, nodes: Sequence[NodeLive]) -> frozenset[str] | None:
    """The jobs that agents see on its GPUs, nodes or branch; None: it may be anywhere in the region, or a node that it may be
    on does not tell who is there."""
    if not config.is_somewhere:
        return None
    found: set[str] = set()
    for node in nodes:
        if node.region != region or not config.may_be_on(node.hostname, node.branch):
            continue
        for gpu in node.gpus:
            if config.gpu_uuids and gpu.uuid not in config.gpu_uuids:
                continue
            if gpu.jobs is None:
                return None
            found.update(gpu.jobs)
    return frozenset(found)


def _why(one: _Served) -> str:
    """Why batch gives way, without what it is asked for: that each action says itself."""
    bad: Mapping[str, list[str]] = {"at_risk": [], "unknown": [], "met": []}
    for risk in one.risks:
        bad[risk.state].append(risk.sentence)
    return "; ".join(bad["at_risk"] or bad["unknown"]) or "its load has only just become calm again"
