"""Plans and forecasts in worker processes, so that the API and the one-second control loop never wait for them.

The plan worker keeps the policy with its memory. One that died, hangs or raises is replaced, and the fresh one places the jobs
one by one, so that there is a plan; the policy is tried again, after its second failure in a row ever later.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dispatcher.errors import GridshiftError
from dispatcher.planning import Made, NoPlanThere, Placed, PlanFailed, Planner, compiles
from dispatcher.worker import CallFailed, Worker, WorkerDied, WorkerStuck
from policies import registry
from policies.policy import Policy
from policies.world import Alternative, Flexibility, JobState, JobView, Pausable, RegionView, Settings, World
from signals.series import Past, SlotForecast, SlotSeries, Wanted

log = logging.getLogger(__name__)

#: Wall seconds after which a plan is given up; the old plan and the last safe moments go on meanwhile.
PLAN_LIMIT_S = 120.0
#: The same for a forecast, for new jobs' places, and for an explanation.
FORECAST_LIMIT_S, INSERT_LIMIT_S, EXPLAIN_LIMIT_S = 120.0, 30.0, 4.0
#: Wall seconds for which a policy that failed a second time in a row is left alone; doubled with each failure, up to the most.
REST_S, MOST_REST_S = 60.0, 900.0

Make = Callable[[str, Settings], Policy]


class PlanWorker:
    """The planner in its process (dispatcher.planning.Planning). Thread-safe.

    ``cache_dir`` is where compiled code is kept when the folder of the program cannot be written; ``make`` makes policies
    there; ``wall`` measures rests.
    """

    def __init__(
        self,
        policy: str = registry.OURS,
        *,
        cache_dir: Path | None = None,
        make: Make = registry.make,
        limit_s: float = PLAN_LIMIT_S,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._cache_dir, self._make, self._limit_s, self._wall = policy, cache_dir, make, limit_s, wall
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._number = 0
        self._warm = not compiles(policy)
        self._closed = False
        self._trouble: str | None = None
        self._failures = 0
        self._rests_until = float("-inf")

    @property
    def warming_up(self) -> bool:
        """Whether the policy is being compiled."""
        return not self._warm

    @property
    def trouble(self) -> str | None:
        """Why the last plan is not the policy's; None when it is, or when it is still being compiled."""
        return self._trouble

    def start(self) -> None:
        """Start the process, which begins to compile. Everything else does so when it is needed."""
        self._current()

    def plan(self, world: World) -> Made:
        """The policy's plan; when it fails, one made by a fresh process in a simpler way, which says so. Raises PlanFailed."""
        why = self._trouble if self._wall() < self._rests_until else None
        if why is None:
            try:
                made = self._call("plan", world, limit_s=self._limit_s)
                self._trouble, self._failures = None, 0
                return _made(made)
            except PlanFailed as error:
                if self._closed:
                    raise
                why = f"{world.settings.policy} made no plan ({error}); until it does, jobs are placed one by one"
                self._note_failure(why)
        return _made(self._call("plan", world, why, limit_s=PLAN_LIMIT_S))

    def insert(self, world: World, jobs: Sequence[JobView]) -> Placed:
        """See Planning."""
        try:
            answer = self._call("insert", replace(world, jobs=(), plan=None), list(jobs), limit_s=INSERT_LIMIT_S)
        except PlanFailed as error:
            if not self._closed:
                self._note_failure(f"{world.settings.policy} found no places for new jobs ({error}); a new plan is made")
            raise
        assert isinstance(answer, Placed)
        return answer

    def forget(self, job_ids: Sequence[str]) -> None:
        """See Planning."""
        self._call("forget", list(job_ids), limit_s=INSERT_LIMIT_S)

    def explain(self, world: World, job_id: str) -> tuple[Alternative, ...]:
        """See Planning; waits a few seconds at most, and leaves a process that is busy alone."""
        told: tuple[Alternative, ...] = self._call(
            "explain", replace(world, jobs=(), plan=None), job_id, limit_s=EXPLAIN_LIMIT_S, patient=True
        )
        return told

    def close(self) -> None:
        """End the process; a plan that is waited for fails."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            self._drop(worker)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _current(self) -> Worker:
        with self._lock:
            if self._closed:
                raise PlanFailed("the control plane is stopping")
            if self._worker is None:
                self._number += 1
                self._warm = not compiles(self._name)
                number = self._number
                self._worker = Worker(
                    serve_planner, number, self._name, self._make, self._cache_dir, noticed=lambda: self._now_warm(number)
                )
            return self._worker

    def _now_warm(self, number: int) -> None:
        if number == self._number:
            self._warm = True

    def _call(self, method: str, *args: Any, limit_s: float, patient: bool = False) -> Any:
        worker = self._current()
        try:
            return worker.call(method, *args, limit_s=limit_s)
        except NoPlanThere:
            raise
        except WorkerStuck as error:
            if patient:
                raise PlanFailed("the planner is busy; ask again in a moment") from error
            self._drop(worker)
            raise PlanFailed(f"no answer within {limit_s:g} s; its process is replaced") from error
        except WorkerDied as error:
            self._drop(worker)
            raise PlanFailed("its process died and is replaced") from error
        except CallFailed as error:
            if not patient:
                self._drop(worker)  # nobody knows what such a policy remembers
            raise PlanFailed(str(error)) from error

    def _note_failure(self, why: str) -> None:
        log.error("%s", why)
        self._trouble = why
        self._failures += 1
        if self._failures > 1:
            self._rests_until = self._wall() + min(REST_S * 2.0 ** min(self._failures - 2, 10), MOST_REST_S)

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            if self._worker is worker:  # another caller may have replaced it already
                self._worker = None
        worker.end()


def _made(answer: Any) -> Made:
    assert isinstance(answer, Made)
    return answer


class ForecastWorker:
    """Forecasts in a process of their own: a long one must not keep a plan waiting. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._closed = False

    def forecast(self, past: Past, wanted: Wanted) -> SlotForecast:
        """Make a forecast of a series and wait for it. Raises PlanFailed."""
        with self._lock:
            if self._closed:
                raise PlanFailed("the control plane is stopping")
            worker = self._worker = self._worker or Worker(serve_forecasts)
        try:
            answer = worker.call("forecast", past, wanted, limit_s=FORECAST_LIMIT_S)
        except CallFailed:
            raise
        except GridshiftError as error:
            self._drop(worker)
            raise PlanFailed(f"no forecast: {error}; the process is started again for the next one") from error
        assert isinstance(answer, SlotForecast)
        return answer

    def close(self) -> None:
        """End the process; a forecast that is waited for fails."""
        with self._lock:
            self._closed = True
            worker = self._worker
        if worker is not None:
            self._drop(worker)

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            if self._worker is worker:
                self._worker = None
        worker.end()


# --- in the processes -------------------------------------------------------------------------------------------------


class _Planner(Planner):
    beside = frozenset({"plan", "explain"})


class _Forecaster:
    beside: frozenset[str] = frozenset()

    def forecast(self, past: Past, wanted: Wanted) -> SlotForecast:
        # imported in the process only: numpy has no business in the control plane's memory
        from signals.forecasting.slots import forecast

        return forecast(past, wanted)


def serve_forecasts(notify: Callable[[], None]) -> _Forecaster:
    """What the forecasts' process works with."""
    return _Forecaster()


def serve_planner(notify: Callable[[], None], number: int, name: str, make: Make, cache_dir: Path | None) -> _Planner:
    """What the plan's process works with. A policy that has to be compiled is, in the background; ``notify`` then."""
    _set_cache(cache_dir)
    warm = threading.Event()

    def compile_it() -> None:
        try:
            warm_up(make, name)
        except Exception:
            log.exception("the solver cannot be compiled")  # its first plan will say so where an operator sees it
        finally:
            warm.set()
            notify()

    if compiles(name):
        threading.Thread(target=compile_it, daemon=True).start()
    else:
        warm.set()
    return _Planner(number, make, warm.is_set)


def _set_cache(cache_dir: Path | None) -> None:
    """Keep compiled code where it can be written; numba looks at this when it is imported."""
    beside = Path(registry.__file__).parent
    pycache = beside / "__pycache__"
    if cache_dir is None or "NUMBA_CACHE_DIR" in os.environ or os.access(pycache if pycache.exists() else beside, os.W_OK):
        return
    cache_dir.mkdir(parents=True, exist_ok=True)
    os.environ["NUMBA_CACHE_DIR"] = str(cache_dir)


def warm_up(make: Make, name: str) -> None:
    """Make a plan of a few jobs under limits of every kind, add one to it and take one out: whatever is compiled then is
    quick from there on."""
    now, hour = datetime(2026, 1, 1, tzinfo=UTC), timedelta(hours=1)
    prices = SlotSeries(now, 900, tuple(50.0 + n % 7 for n in range(96)), ("published",) * 96, "EUR/MWh", "none")
    regions = tuple(RegionView(one, True, 2.0, 2, 2000.0, prices, None) for one in ("a", "b"))
    settings = Settings(policy=name, horizon_s=24 * 3600, default_region="a")

    def job(number: int) -> JobView:
        pausable = Pausable.CHECKPOINT if number % 2 else Pausable.NO
        flex = Flexibility(True, now + 8 * hour, None, 3600.0, True, 1.0, 700.0, pausable)
        return JobView(f"j{number}", JobState.QUEUED, now, now, flex, 3600.0)

    policy = make(name, settings)
    policy.plan(World(now, tuple(job(number) for number in range(12)), regions, settings=settings))
    policy.insert(World(now, (), regions, settings=settings), [job(12), job(13)])
    policy.forget(["j1", "j12"])
