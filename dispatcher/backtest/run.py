"""All policies of a backtest over one scenario, one after the other or in processes side by side, as one result.

A policy that fails does not take the others with it: it is named among the failures. Nothing here knows of files or terminals.
"""

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from dispatcher.backtest.profiles import hour_of, hours_between
from dispatcher.backtest.results import BacktestResult, Floats, Oracle, PolicyRun, RegionHours
from dispatcher.backtest.scenario import Scenario, SignalTable
from dispatcher.errors import BadInput, GridshiftError
from policies.registry import UnknownPolicy, check, make
from policies.world import Settings

BASELINE, OURS = "run-now", "gridshift"
#: ``progress(label, share)`` is told how much of a policy's run is done, 0..1.
Progress = Callable[[str, float], None]


class NoBaseline(GridshiftError):
    """run-now could not be simulated, so that there is nothing to hold other policies against"""


@dataclass(frozen=True)
class Task:
    """One run to do: a policy with the scenario's settings, or on the front ``gridshift`` with another carbon price."""

    policy: str
    carbon_price: float | None = None

    def label(self, settings: Settings) -> str:
        """What it is called in a report."""
        if self.carbon_price is None:
            return self.policy
        return f"{self.policy} at {self.carbon_price:g} {settings.currency}/t"

    def settings(self, settings: Settings) -> Settings:
        """The settings it runs with."""
        own = replace(settings, policy=self.policy)
        return own if self.carbon_price is None else replace(own, carbon_price=self.carbon_price)


@dataclass(frozen=True)
class Failure:
    """A run that ended in an error, in words."""

    label: str
    message: str


@dataclass(frozen=True)
class Outcome:
    """What was found, and what could not be."""

    result: BacktestResult
    failures: tuple[Failure, ...]


def tasks(policies: Sequence[str], carbon_prices: Sequence[float] = ()) -> list[Task]:
    """What is to be run: run-now first, then each policy once, then gridshift at each carbon price. Raises BadInput for a name
    that the registry does not have."""
    names = list(dict.fromkeys([BASELINE, *policies]))
    problems: list[tuple[str, object, str]] = []
    for name in names:
        try:
            check(name)
        except UnknownPolicy as error:
            problems.append(("--policy", name, str(error)))
    if problems:
        raise BadInput(problems)
    return [*map(Task, names), *(Task(OURS, price) for price in dict.fromkeys(carbon_prices))]


def run_all(scenario: Scenario, wanted: Sequence[Task], *, workers: int = 1, progress: Progress | None = None) -> Outcome:
    """Run them, ``workers`` at a time in processes of their own when there are several. Raises NoBaseline when run-now fails;
    KeyboardInterrupt ends everything that was started."""
    from dispatcher.backtest.oracle import oracle

    tell = progress or (lambda _label, _share: None)
    several = workers > 1 and len(wanted) > 1
    done = _side_by_side(scenario, wanted, workers, tell) if several else _in_turn(scenario, wanted, tell)
    failures = tuple(Failure(task.label(scenario.settings), found) for task, found in done if isinstance(found, str))
    for task, found in done:
        if task.policy == BASELINE and isinstance(found, str):
            raise NoBaseline(f"{NoBaseline.__doc__}: {found}")
    runs = [(task, found) for task, found in done if isinstance(found, Done)]
    result = _result(
        scenario,
        [one.run for task, one in runs if task.carbon_price is None],
        [one.run for task, one in runs if task.carbon_price is not None],
        oracle(scenario),
        _said([one for _, one in runs]) + [f"{failure.label} failed: {failure.message}" for failure in failures],
    )
    return Outcome(result, failures)


@dataclass(frozen=True)
class Done:
    """A run, and what is to be said of it."""

    run: PolicyRun
    warnings: tuple[str, ...]


def _one(scenario: Scenario, task: Task, tell: Progress) -> Done | str:
    """One run, or what was wrong with it in words."""
    from dispatcher.backtest.engine import run_in_full

    label, settings = task.label(scenario.settings), task.settings(scenario.settings)
    tell(label, 0.0)
    try:
        policy = make(task.policy, settings)
        own = replace(scenario, settings=settings)
        found = run_in_full(own, policy, progress=lambda share: tell(label, share))
    except GridshiftError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - whatever a policy does wrong, the others are still to be told of
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"
    tell(label, 1.0)
    said = tuple(sentence.removeprefix(f"{policy.name}: ") for sentence in found.warnings)
    return Done(replace(found.run, policy=task.policy, label=label), said)


def _said(runs: Sequence[Done]) -> list[str]:
    """The warnings of all runs: what every one of them says once, the others with the policy's name."""
    by_sentence: dict[str, list[str]] = {}
    for one in runs:
        for sentence in one.warnings:
            by_sentence.setdefault(sentence, []).append(one.run.label)
    return [
        f"all policies: {sentence}" if len(labels) == len(runs) > 1 else f"{', '.join(labels)}: {sentence}"
        for sentence, labels in by_sentence.items()
    ]


def _in_turn(scenario: Scenario, wanted: Sequence[Task], tell: Progress) -> list[tuple[Task, Done | str]]:
    return [(task, _one(scenario, task, tell)) for task in wanted]


# --- side by side -------------------------------------------------------------------------------------------------------


def _child(scenario: Scenario, parent: Connection) -> None:
    """A process of its own that does one task after the other, until it is told None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, BrokenPipeError):  # the parent is gone: there is nobody to tell
        while (task := parent.recv()) is not None:
            parent.send(("done", _one(scenario, task, lambda _label, share: parent.send(("share", share)))))


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started inside do not hear Ctrl-C, which a terminal sends to all: their parent ends them, without a word. It
    hears of one that is pressed meanwhile afterwards."""
    resource_tracker.ensure_running()  # with the first process; its start would let SIGINT through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Workers:
    """Processes that take tasks; one that dies is replaced when there is more to do."""

    def __init__(self, scenario: Scenario) -> None:
        # Not forked: numba's and rich's threads would not come along, but the locks they hold would.
        self._context = multiprocessing.get_context("spawn")
        self._scenario = scenario
        self._processes: dict[Any, Any] = {}

    def start(self) -> Any:
        """A new one; what it is spoken to through."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_child, args=(self._scenario, theirs), daemon=True)
        with _deaf_children():
            process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def lost(self, worker: Any) -> str:
        """One that answers no more: why, in words."""
        process = self._processes.pop(worker)
        worker.close()
        process.join()
        return f"its process ended with exit code {process.exitcode}; was there memory enough?"

    def end(self) -> None:
        """End all of them, whatever they do."""
        for worker, process in self._processes.items():
            process.terminate()
            process.join()
            worker.close()
        self._processes.clear()


def _side_by_side(scenario: Scenario, wanted: Sequence[Task], workers: int, tell: Progress) -> list[tuple[Task, Done | str]]:
    left, found = list(range(len(wanted)))[::-1], dict[int, Done | str]()
    pool, at_work = _Workers(scenario), dict[Any, int]()
    kind: str
    value: Any

    def give(worker: Any) -> None:
        if left:
            at_work[worker] = left.pop()
            with suppress(BrokenPipeError, ConnectionResetError):  # one that died is noticed where its answer is waited for
                worker.send(wanted[at_work[worker]])

    try:
        for _ in range(min(workers, len(wanted))):
            give(pool.start())
        while at_work:
            ready: Any
            for ready in wait(list(at_work)):
                index = at_work[ready]
                try:
                    kind, value = ready.recv()
                except (EOFError, ConnectionError):
                    found[index] = pool.lost(ready)
                    del at_work[ready]
                    if left:
                        give(pool.start())
                    continue
                if kind == "share":
                    tell(wanted[index].label(scenario.settings), value)
                    continue
                found[index] = value
                del at_work[ready]
                give(ready)
    finally:
        pool.end()
    return [(task, found[i]) for i, task in enumerate(wanted)]


# --- the result ---------------------------------------------------------------------------------------------------------


def _result(
    scenario: Scenario, runs: Sequence[PolicyRun], front: Sequence[PolicyRun], oracle: Oracle, warnings: Sequence[str]
) -> BacktestResult:
    hours = hours_between(scenario.start, scenario.end)
    return BacktestResult(
        start=scenario.start,
        end=scenario.end,
        currency=scenario.settings.currency,
        jobs_file=scenario.jobs_file,
        regions=tuple(region_hours(region.signals, scenario, hours) for region in scenario.regions),
        runs=tuple(runs),
        front=tuple(front),
        oracle=oracle,
        assumptions=scenario.assumptions,
        warnings=(*scenario.warnings, *warnings),
    )


def region_hours(table: SignalTable, scenario: Scenario, hours: int) -> RegionHours:
    """A region's true signals by the hour from the scenario's first hour on: the mean of what is known in each."""
    begin = hour_of(scenario.start)
    return RegionHours(
        table.region,
        table.currency,
        None if table.price is None else _hourly(table.price, table, begin, hours),
        None if table.carbon is None else _hourly(table.carbon, table, begin, hours),
    )


def _hourly(values: Floats, table: SignalTable, begin: Any, hours: int) -> Floats:
    slots = np.arange(len(values))
    at = ((table.start - begin) / timedelta(hours=1)) + slots * (table.slot_s / 3600)
    hour = np.floor(at + 1e-9).astype(np.int64)
    used = (hour >= 0) & (hour < hours) & ~np.isnan(values)
    count = np.bincount(hour[used], minlength=hours).astype(float)
    total = np.bincount(hour[used], weights=values[used], minlength=hours)
    made: Floats = np.divide(total, count, out=np.full(hours, np.nan), where=count > 0)
    return made
