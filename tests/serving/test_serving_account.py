"""What serving did with and without batch beside it, counted once: over restarts, counter resets and clocks that are set."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from dispatcher.config import Config
from dispatcher.serving.account import ServingAccount
from dispatcher.serving.metrics import MetricsError
from dispatcher.serving.watch import ServingWatch
from dispatcher.store import ServingQuarter
from dispatcher.store.memory import MemoryStore
from policies.serving import Level, Objective, Passed, Reading, SloWatch
from policies.world import JobView, Pausable
from tests.policies.worlds import NOW, region, running, world
from tests.serving.test_serving_watch import SLO, Server

START = NOW.replace(minute=0, second=0, microsecond=0)


class Counting:
    """A watch over one server, with an account, on two clocks that a test moves: one is set, one only runs on."""

    def __init__(self, store: MemoryStore | None = None, now: datetime = START) -> None:
        serving = {"name": "chat", "source": "metrics", "url": "http://chat/metrics", "slo": [SLO]}
        config = Config.model_validate({"region": [{"name": "a", "address": "http://127.0.0.1:1", "serving": [serving]}]})
        self.server, self.store, self.s, self.now = Server(), store or MemoryStore(), 0.0, now
        self.jobs: Sequence[JobView] = []
        self.account = ServingAccount(config, self.store, lambda: self.now)
        self.watch = ServingWatch(config, lambda one: self.server, self.store, account=self.account, mono=lambda: self.s)

    def seconds(self, count: int, *, good: float = 10.0, total: float = 10.0) -> None:
        for _ in range(count):
            self.s, self.now = self.s + 1.0, self.now + timedelta(seconds=1)
            self.server.good, self.server.total = self.server.good + good, self.server.total + total
            self.watch.read_all()
            self.look()

    def look(self) -> None:
        self.watch.look(replace(world(list(self.jobs), [region("a", None)]), now=self.now), self.now)

    def kept(self) -> list[ServingQuarter]:
        self.account.keep(self.now)
        return self.store.serving_quarters("a", "chat", START - timedelta(days=9), START + timedelta(days=9))


def total(kept: list[ServingQuarter], side: str, what: str) -> float:
    return float(sum(getattr(getattr(one.objectives[0], side), what) for one in kept))


def test_requests_and_seconds_are_split_by_whether_batch_runs_beside() -> None:
    site = Counting()
    site.seconds(101)
    site.jobs = [running("c", "a")]
    site.look()
    site.seconds(50, good=9.0)
    site.jobs = [replace(running("c", "a"), frozen_at=site.now)]
    site.look()
    site.seconds(1)
    site.seconds(20)
    kept = site.kept()
    assert total(kept, "alone", "total") == 100 * 10 + 20 * 10, "a frozen job does not run"
    assert (total(kept, "beside", "total"), total(kept, "beside", "bad")) == (51 * 10, 50)
    assert (total(kept, "alone", "known_s"), total(kept, "beside", "known_s")) == (100 + 21, 50)
    gpus = running("c", "a").flex.gpus
    assert sum(one.beside_gpu_s for one in kept) == sum(one.region_gpu_s for one in kept) == 50 * gpus > 0
    assert sum(one.beside_s for one in kept) == 50 and sum(sum(one.level_s) for one in kept) == 171


def test_unknown_is_not_met() -> None:
    site = Counting()
    site.seconds(21)
    site.server.wrong = MetricsError("it answers 500")
    site.seconds(60)
    kept = site.kept()
    assert (total(kept, "alone", "known_s"), total(kept, "alone", "unknown_s")) == (31, 49), (
        "more than stale_s after the last reading"
    )
    assert total(kept, "alone", "total") == 200


def test_interventions_and_how_fast_batch_gave() -> None:
    site = Counting()
    site.jobs = [running("c", "a", pausable=Pausable.FREEZE, cannot_freeze="")]
    site.seconds(60)
    site.seconds(3, good=0.0)
    assert site.watch.guards("a"), "it has risen"
    said = "serving chat: e2e is at risk: frozen"
    site.jobs = [replace(job, frozen_at=site.now, reason=said) for job in site.jobs]
    site.seconds(90)
    (one,) = site.kept()
    assert (one.rises, one.rises_beside, one.frozen, one.asked, one.capped) == (1, 1, 1, 0, 0)
    assert len(one.yield_s) == 1 and 1.0 <= one.yield_s[0] <= 4.0
    assert one.level_s[Level.HOLD] > 0 and sum(one.level_s) == 152


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(minutes=-3), timedelta(days=2)])
def test_a_clock_that_is_set_counts_nothing_twice(ahead: timedelta) -> None:
    site = Counting(now=START + timedelta(minutes=20))
    site.seconds(101)
    site.account.keep(site.now)
    site.now += ahead
    site.seconds(100)
    site.now -= ahead
    site.seconds(100)
    kept = site.kept()
    assert total(kept, "alone", "total") == 3000 and total(kept, "alone", "known_s") == 300
    assert site.kept() == kept, "writing it again changes nothing"


def test_a_restart_keeps_what_was_and_a_reset_of_the_server_counts_from_zero() -> None:
    site = Counting()
    site.seconds(101)
    site.account.close()
    again = Counting(site.store, site.now)
    again.server.good = again.server.total = 5000.0
    again.seconds(51)
    again.server.good = again.server.total = 0.0
    again.seconds(10)
    kept = again.kept()
    assert len(kept) == 2 and {one.start for one in kept} == {START}
    assert total(kept, "alone", "total") == 1000 + 500 + 100 and total(kept, "alone", "bad") == 0


def test_a_pause_that_nobody_watched_is_not_counted_as_known() -> None:
    site = Counting()
    site.seconds(10)
    site.s, site.now = site.s + 600, site.now + timedelta(seconds=600)
    site.look()
    assert sum(sum(one.level_s) for one in site.kept()) == 9 + 5


def test_what_a_gauge_counts_is_seconds_and_those_above_its_limit() -> None:
    queue = SloWatch(Objective("queue", None, 4.0), stale_s=10)
    told = [queue.add(Reading(at_s, value=value)) for at_s, value in ((0, 1), (1, 4), (3, 5), (4, 2), (4, 9), (60, 9), (61, 9))]
    assert told == [None, Passed(1, 0), Passed(2, 2), Passed(1, 0), None, None, Passed(1, 1)], "one repeated, one after silence"
