"""The watch over serving: reads what it can, steps the guards, tells what batch has to give, and writes each step down."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.config_serving import ServingConfig
from dispatcher.power.hub import NodeLive
from dispatcher.serving.metrics import Counted, MetricsError
from dispatcher.serving.watch import ServingWatch, source_of
from dispatcher.store.memory import MemoryStore
from policies.serving import Level
from policies.world import Pausable
from tests.policies.worlds import NOW, region, running, world
from tests.power.fleet_samples import gpu, node

SLO = {"metric": "e2e", "percentile": 0.99, "limit": 0.1, "histogram": "h"}


def node_of(name: str, on: dict[str, tuple[str, ...] | None], branch: str | None = None) -> NodeLive:
    gpus = [replace(gpu(), node_id=name, uuid=uuid, jobs=jobs) for uuid, jobs in on.items()]
    return replace(node(name, *gpus), region="a", hostname=name, branch=branch)


class Server:
    """A server whose counts a test moves."""

    def __init__(self) -> None:
        self.good = self.total = 0.0
        self.wrong: Exception | None = None
        self.closed = False

    def read(self) -> Sequence[Counted]:
        if self.wrong is not None:
            raise self.wrong
        return [Counted(self.good, self.total)]

    def close(self) -> None:
        self.closed = True


class Site:
    """A watch over one server, on seconds that a test moves."""

    def __init__(self, nodes: Sequence[Any] = (), **more: Any) -> None:
        serving = {"name": "chat", "source": "metrics", "url": "http://chat/metrics", "slo": [SLO], **more}
        where = {"name": "a", "address": "http://127.0.0.1:1", "branch": [{"name": "rack"}], "serving": [serving]}
        self.server, self.store, self.s, self.nudged = Server(), MemoryStore(), 0.0, 0
        self.jobs = [running("f", "a", pausable=Pausable.FREEZE, cannot_freeze=""), running("c", "a"), running("x", "b")]
        self.watch = ServingWatch(
            Config.model_validate({"region": [where]}),
            lambda one: self.server,
            self.store,
            nodes=lambda: nodes,
            changed=self.nudge,
            mono=lambda: self.s,
        )

    def nudge(self) -> None:
        self.nudged += 1

    def seconds(self, count: int, *, good: float = 10.0, total: float = 10.0) -> None:
        """So many seconds with so many requests each."""
        for _ in range(count):
            self.s += 1.0
            self.server.good, self.server.total = self.server.good + good, self.server.total + total
            self.watch.read_all()
            self.look()

    def look(self) -> None:
        seen = replace(world(self.jobs, [region("a", None)]), now=NOW + timedelta(seconds=self.s))
        self.watch.look(seen, seen.now)

    @property
    def level(self) -> Level:
        (one,) = self.watch.status(NOW)
        return one.level

    def said(self) -> list[str]:
        return [line.sentence.split(":")[0] for line in self.store.grid_event_changes(source_of("a"), "chat")]


@pytest.fixture
def site() -> Iterator[Site]:
    yield Site()


def test_batch_steps_aside_within_three_seconds_and_comes_back_in_order(site: Site) -> None:
    site.seconds(20)
    assert site.level is Level.CALM and site.watch.guards("a") == () and site.nudged == 0
    site.seconds(2, good=0)
    assert site.level is not Level.CALM
    site.seconds(3, good=0)
    assert site.level is Level.PAUSE
    (guard,) = site.watch.guards("a")
    assert guard.level == Level.PAUSE and guard.job_ids is None
    assert guard.reason.startswith("serving chat: e2e p99 <= 0.1 s is at risk: p99 within 0.1, burning")
    assert site.watch.guards("b") == ()
    assert [key for key, _, _ in site.watch.alarms(NOW)] == ["serving a chat"]
    assert site.nudged >= 3
    site.seconds(90)
    assert site.level is Level.CALM and site.watch.guards("a") == ()
    assert site.said() == [
        "no batch starts", "batch is frozen", "batch is asked for checkpoints",
        "batch is frozen", "batch is capped as far as its tiers accept", "no batch starts", "batch runs freely",
    ]  # fmt: skip


def test_only_jobs_on_its_machines_have_to_give() -> None:
    there = node_of("n1", {"g0": ("f",), "g1": ("other",)}, branch="rack")
    elsewhere = node_of("n2", {"g2": ("c",)})
    for more, expected in (
        ({"branch": "rack"}, {"f", "other"}),
        ({"gpu_uuids": ["g0"]}, {"f"}),
        ({"hostnames": ["n2"]}, {"c"}),
    ):
        site = Site([there, elsewhere], **more)
        site.seconds(10, good=0)
        (guard,) = site.watch.guards("a")
        assert guard.job_ids == expected
    # nobody knows who is on one of its GPUs: it may be anybody
    unsure = Site([node_of("n1", {"g0": None}, branch="rack")], branch="rack")
    unsure.seconds(10, good=0)
    assert unsure.watch.guards("a")[0].job_ids is None


@pytest.mark.parametrize("wrong", [MetricsError("chat answers 500"), RuntimeError("bug")])
def test_what_cannot_be_read_counts_as_risk_and_is_said(site: Site, wrong: Exception) -> None:
    site.jobs = [replace(job, capped_w=100.0) for job in site.jobs]
    site.seconds(20)
    site.server.wrong = wrong
    site.seconds(9)
    assert site.level is Level.CALM, "a moment of silence is none"
    site.seconds(5)
    assert site.level is Level.CAP, "no further than when_unknown says"
    ((key, where, sentence),) = site.watch.alarms(NOW)
    assert (key, where) == ("serving a chat unknown", "a") and "is unknown: nothing heard for" in sentence
    assert ("answers 500" in sentence) == isinstance(wrong, MetricsError)
    site.server.wrong = None
    site.seconds(90)
    assert site.level is Level.CALM


def test_a_promise_that_is_not_kept_without_batch_does_not_keep_batch_away(site: Site) -> None:
    site.jobs = []
    site.seconds(130, good=0)
    assert site.level is Level.CALM and site.watch.guards("a") == ()
    ((key, _, sentence),) = site.watch.alarms(NOW)
    assert key == "serving a chat unmet" and "not met even without batch" in sentence


def test_readers_are_let_go_of(site: Site) -> None:
    site.watch.start()
    site.watch.close()
    assert site.server.closed


def test_the_configuration_is_the_readers(site: Site) -> None:
    seen: list[ServingConfig] = []
    config = Config.model_validate(
        {"region": [{"name": "a", "address": "http://x", "serving": [
            {"name": "chat", "preset": "vllm", "source": "metrics", "url": "http://chat/metrics",
             "slo": [{"metric": "queue", "limit": 4}]}]}]}
    )  # fmt: skip

    def reader(one: ServingConfig) -> Server:
        seen.append(one)
        return Server()

    ServingWatch(config, reader, MemoryStore())
    assert [one.name for one in seen] == ["chat"] and seen[0].slos[0].name == "queue <= 4"
