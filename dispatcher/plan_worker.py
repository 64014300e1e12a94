"""Plans and forecasts in a worker process, so that the API and the one-second control loop never wait for them.

The worker holds no state: it gets a World and returns a Plan, or a series' past and returns its forecast. A worker that died
or took too long is replaced.
"""

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from dispatcher.errors import GridshiftError
from policies.world import Plan, World
from signals.series import Past, SlotForecast, Wanted

log = logging.getLogger(__name__)
T = TypeVar("T")

#: Wall seconds after which a plan is given up; the old plan and the last safe moments go on meanwhile.
PLAN_LIMIT_S = 120.0


class PlanFailed(GridshiftError):
    """No plan could be made; the last one is kept and jobs still start at their last safe moment."""


def _plan(world: World) -> Plan:
    # imported in the worker only: numpy has no business in the control plane's memory
    from policies.planner import plan

    return plan(world)


def _forecast(past: Past, wanted: Wanted) -> SlotForecast:
    from signals.forecasting.slots import forecast

    return forecast(past, wanted)


def _end_with_parent() -> None:
    """A worker whose control plane was killed has nobody to plan for."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _step_back() -> None:
    import signal

    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the control plane, which then ends its worker
    os.nice(5)  # a plan may take a moment longer; a submission may not


class PlanWorker:
    """One worker process, started when first needed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None
        self._closed = False

    def plan(self, world: World) -> Plan:
        """Make a plan and wait for it. Raises PlanFailed when the worker died or took longer than PLAN_LIMIT_S."""
        return self._run("plan", _plan, world)

    def forecast(self, past: Past, wanted: Wanted) -> SlotForecast:
        """Make a forecast of a series and wait for it. Raises PlanFailed as ``plan`` does."""
        return self._run("forecast", _forecast, past, wanted)

    def _run(self, what: str, call: Callable[..., T], *args: Any) -> T:
        with self._lock:
            if self._closed:
                raise PlanFailed("the control plane is stopping")
            pool = self._pool = self._pool or _new_pool()
        try:
            return pool.submit(call, *args).result(timeout=PLAN_LIMIT_S)
        except BrokenProcessPool as error:
            self._drop(pool)
            raise PlanFailed(f"the worker process died; it is started again for the next {what}") from error
        except TimeoutError as error:
            self._drop(pool)
            raise PlanFailed(f"no {what} within {PLAN_LIMIT_S:g} s; the worker process is replaced") from error

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        with self._lock:
            if self._pool is pool:  # another caller may have replaced it already
                self._pool = None
        _end(pool)

    def close(self) -> None:
        """End the worker; a plan that is waited for fails."""
        with self._lock:
            self._closed = True
            pool = self._pool
        if pool is not None:
            self._drop(pool)


def _new_pool() -> ProcessPoolExecutor:
    context: Any = multiprocessing.get_context("spawn")  # fork would copy the control plane's threads and connections
    return ProcessPoolExecutor(max_workers=1, mp_context=context, initializer=_step_back)


def _end(pool: ProcessPoolExecutor) -> None:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
