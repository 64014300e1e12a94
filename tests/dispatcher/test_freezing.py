"""Freezing through the control loop and the store, with agents of a test's own in virtual time: what is recorded, what is
ordered, and what becomes of a frozen job when things end, break or restart."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatcher.agent.freezing import Freezer, FreezeRefused
from dispatcher.agent.processes import ProcessTable
from dispatcher.api import intents
from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.errors import BadInput
from dispatcher.freezing import LEASE_S, REFUSED_S, TELL_S, Freezes
from dispatcher.power.hub import CapLive, FreezeResult, FrozenJob, GpuLive, NodeLive
from dispatcher.simulation import Simulation
from dispatcher.store import Attempt, Change, GridEvent, Job, Request, Store
from dispatcher.store.memory import MemoryStore
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from policies.flexibility import parse_flexibility
from policies.freezing import EXECUTION_IDLE_SHARE
from policies.world import JobState

START = datetime(2026, 3, 2, tzinfo=UTC)
S = timedelta(seconds=1)


@dataclass
class FakeAgents:
    """Agents of two nodes of a region that keep what they are lent, by the clock they are given."""

    wall: Callable[[], float]
    places: dict[str, set[str]] = field(default_factory=dict)  # job -> nodes with processes of it
    frozen: dict[tuple[str, str], float] = field(default_factory=dict)  # (node, job) -> until
    away: set[str] = field(default_factory=set)
    deaf: set[str] = field(default_factory=set)
    unlisted: set[str] = field(default_factory=set)  # nodes whose driver does not say who is on the GPU
    refusal: str = ""
    power_w: float | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)
    nodes_there: tuple[str, ...] = ("n1", "n2")

    def standing(self, job_id: str) -> set[str]:
        return {node for (node, job), until in self.frozen.items() if job == job_id and until > self.wall()}

    def nodes(self) -> list[NodeLive]:
        return [self._node(name) for name in self.nodes_there]

    def _node(self, name: str) -> NodeLive:
        here = tuple(job for job, where in self.places.items() if name in where)
        gpu = GpuLive(
            "a", None, name, f"GPU-{name}", 0, "H100", False, self.power_w, None, None, 700.0, 200.0, 700.0, None, None, (),
            None, None if name in self.unlisted else here, CapLive("none"), False,
        )  # fmt: skip
        stand = tuple(
            FrozenJob(job, None) for (node, job), until in self.frozen.items() if node == name and until > self.wall()
        )
        up = name not in self.away
        return NodeLive(name, f"host-{name}", "a", None, up, START, True, "", False, (gpu,), frozen=stand if up else ())

    def freeze(
        self, job_id: str, *, ttl_s: float, freeze_max_s: float, region: str | None = None
    ) -> "Future[list[FreezeResult]]":
        assert region == "a" and 0 < ttl_s <= LEASE_S and ttl_s <= freeze_max_s
        self.asked.append(("freeze", job_id))

        def one(node: str) -> FreezeResult:
            if node in self.deaf:
                return FreezeResult(node, False, error="no answer within 10 s; it is not known whether it was done")
            if node not in self.places.get(job_id, ()):
                return FreezeResult(node, False, error=f"no process of {job_id} runs on this node")
            if self.refusal:
                return FreezeResult(node, False, error=self.refusal)
            self.frozen[node, job_id] = self.wall() + ttl_s
            return FreezeResult(node, True, 3)

        return self._answer(one)

    def thaw(self, job_id: str, *, region: str | None = None) -> "Future[list[FreezeResult]]":
        self.asked.append(("thaw", job_id))

        def one(node: str) -> FreezeResult:
            if node not in self.deaf:
                self.frozen.pop((node, job_id), None)
            return FreezeResult(node, node not in self.deaf)

        return self._answer(one)

    def _answer(self, one: Callable[[str], FreezeResult]) -> "Future[list[FreezeResult]]":
        future: Future[list[FreezeResult]] = Future()
        future.set_result([one(node) for node in self.nodes_there if node not in self.away])
        return future


class Site:
    """A control plane over one simulated region, and its agents."""

    def __init__(self, store: Store | None = None, agents: FakeAgents | None = None, before: "Site | None" = None) -> None:
        price = {"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}
        region = {"name": "a", "address": "http://a", "gpus": 4, "observe_s": 1, "price": [price]}
        config = Config.model_validate({"region": [region]})
        start = before.now if before is not None else START
        self.sim = Simulation(config, start, [], store=store, tick_s=1.0, plan_s=60.0, start_s=2.0)
        if before is not None:  # the cluster lives on
            self.sim.control.regions["a"].cluster = before.sim.control.regions["a"].cluster
        self.agents = agents or FakeAgents(lambda: 0.0)
        self.agents.wall = lambda: (self.now - START).total_seconds()
        self.sim.control.freezes = Freezes(self.agents, start, wall=lambda: (self.now - START).total_seconds())
        self.advance(3)

    @property
    def now(self) -> datetime:
        return self.sim.clock.now()

    def advance(self, seconds: float) -> None:
        self.sim.run(self.now + seconds * S)

    def submit(self, job_id: str, run_s: float = 600.0, nodes: tuple[str, ...] = ("n1",), **metadata: str) -> None:
        given = {"gridshift.pausable": "freeze", "gridshift.power_w": "1000", "gridshift.runtime": f"{run_s:g}s"}
        given |= {f"gridshift.{key}": value for key, value in metadata.items()}
        flex = parse_flexibility(given, now=self.now, gpus_requested=1.0, regions=["a"])
        request = Request("true", metadata=given, entrypoint_num_gpus=1.0)
        self.sim.clusters["a"].workloads[job_id] = Workload(run_s=run_s, checkpoint_s=3.0)
        self.agents.places[job_id] = set(nodes)
        self.sim.control.admit(Job(job_id, request, flex, JobState.QUEUED, self.now, self.now, reason="submitted")).result()

    def limit(self, limit_w: float, last_s: float | None, event_id: str = "e1", version: int = 1) -> None:
        end = None if last_s is None else self.now + last_s * S
        event = GridEvent("test", event_id, version, "a", self.now, end, limit_w, self.now)
        assert self.sim.store.save_grid_event(event, None).result() == "accepted"

    def job(self, job_id: str = "j") -> Job:
        found = self.sim.store.job(job_id)
        assert found is not None
        return found

    def attempt(self, job_id: str = "j") -> Attempt:
        return self.sim.store.attempts(job_id)[-1]

    def kinds(self, job_id: str = "j") -> list[str]:
        return [event.kind for event in self.sim.store.events(job_id) if event.kind in ("freeze", "thaw")]

    def intend(self, job_id: str = "j", **fields: object) -> None:
        outcome = self.sim.store.apply([Change(job_id, self.now, "intent", "its owner", fields=fields)]).result()[0]
        assert isinstance(outcome, Job), outcome

    def alarms(self) -> str:
        return "; ".join(alarm.sentence for alarm in self.sim.control.snapshot().alarms)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    url = f"sqlite:///{tmp_path}/jobs.db"
    upgrade(url)
    sql = SqlStore(url)
    yield sql
    sql.close()


def running(store: Store | None = None, run_s: float = 600.0, **metadata: str) -> Site:
    site = Site(store)
    site.submit("j", run_s, ("n1",), **metadata)
    site.advance(30)
    assert site.job().state is JobState.RUNNING
    return site


def test_an_event_freezes_a_job_and_its_end_wakes_it(store: Store) -> None:
    site = running(store)
    site.limit(500.0, 100.0)
    site.advance(2)
    job = site.job()
    assert job.state is JobState.RUNNING and job.frozen_at is not None and "frozen where it runs" in job.reason
    assert site.agents.standing("j") == {"n1"}
    site.advance(80)  # longer than a lease: it was renewed
    assert site.agents.standing("j") == {"n1"} and site.agents.asked.count(("freeze", "j")) >= 4
    site.advance(40)
    assert site.job().frozen_at is None and site.agents.standing("j") == set()
    assert site.kinds() == ["freeze", "thaw"] and site.attempt().frozen_s == pytest.approx(100.0, abs=3.0)
    assert [attempt.attempt for attempt in site.sim.store.attempts("j")] == [1]
    assert [event.new_state for event in site.sim.store.events("j") if event.kind == "freeze"] == [JobState.RUNNING]


def test_what_it_stood_counts_in_energy_and_not_as_work(store: Store) -> None:
    site = running(store)
    began = site.attempt().started_at
    site.limit(500.0, 200.0)
    site.advance(250)
    view = next(view for view in site.sim.control.snapshot().world.jobs if view.id == "j")
    assert began is not None and view.run_started_at == began + site.attempt().frozen_s * S
    site.advance(400)
    job, attempt = site.job(), site.attempt()
    assert job.state is JobState.SUCCEEDED and attempt.ended_at is not None
    run_s = (attempt.ended_at - began).total_seconds()
    kwh = 1.0 * (run_s - attempt.frozen_s * (1.0 - EXECUTION_IDLE_SHARE)) / 3600.0
    pue = site.sim.control.regions["a"].config.pue
    assert job.energy_kwh == pytest.approx(kwh * pue) and job.energy_basis in (None, "modelled")


def test_the_measured_draw_of_a_frozen_job_is_what_counts() -> None:
    site = running()
    site.agents.power_w = 123.0
    site.limit(500.0, 200.0)
    site.advance(3)
    (view,) = site.sim.control.snapshot().world.jobs
    assert view.frozen_w is None
    site.advance(8)
    (view,) = site.sim.control.snapshot().world.jobs
    assert view.frozen_w == 125.0
    site.agents.unlisted = {"n1"}
    site.advance(2)
    (view,) = site.sim.control.snapshot().world.jobs
    assert view.frozen_w is None, "nobody knows whether it is there alone"
    site.agents.unlisted, site.agents.places["other"] = set(), {"n1"}
    site.advance(2)
    (view,) = site.sim.control.snapshot().world.jobs
    assert view.frozen_w is None, "a shared GPU's draw is nobody's alone"


def test_a_job_runs_on_before_it_has_stood_too_long_and_the_limit_is_told() -> None:
    site = running(freeze_max_s="60s")
    site.limit(500.0, None)
    site.advance(62)
    assert site.job().frozen_at is None and site.agents.standing("j") == set()
    assert "as long as it may (1 min)" in site.job().reason
    assert "j cannot be frozen" in site.alarms() and site.attempt().frozen_s < 60.0
    site.advance(20)
    assert site.kinds() == ["freeze", "thaw"]
    site.advance(20)  # it has run for half of what it stands, and stands that again
    assert site.kinds() == ["freeze", "thaw", "freeze"]


def test_an_owner_pauses_it_and_resumes_it_and_a_pause_too_long_ends() -> None:
    site = running(freeze_max_s="60s")
    site.intend(held=True)
    site.advance(10)
    assert site.job().frozen_at is not None and site.agents.standing("j") == {"n1"}
    site.intend(held=False)
    site.advance(2)
    assert site.job().frozen_at is None and site.agents.standing("j") == set()
    site.intend(held=True)
    site.advance(60)
    job = site.job()
    assert job.frozen_at is None and not job.held and "its owner's pause is over" in job.reason
    site.advance(60)
    assert site.job().frozen_at is None


def test_a_cancel_wakes_it_and_stops_it(store: Store) -> None:
    site = running(store)
    site.limit(500.0, None)
    site.advance(5)
    site.intend(cancel_requested_at=site.now)
    site.advance(5)
    job = site.job()
    assert job.state is JobState.CANCELLED and job.frozen_at is None and site.attempt().frozen_s > 0
    assert site.agents.standing("j") == set() and ("thaw", "j") in site.agents.asked


def test_a_lost_attempt_ends_the_freeze_and_the_next_one_is_frozen_anew(store: Store) -> None:
    site = running(store, max_attempts="2")
    site.limit(500.0, 40.0)
    site.advance(10)
    assert site.job().frozen_at is not None
    site.sim.clusters["a"].restart()
    site.advance(5)
    job = site.job()
    assert job.frozen_at is None and job.rested_at is None
    site.advance(90)  # what the lost cluster may have left running ends first
    assert site.job().state is JobState.RUNNING and site.job().attempt == 2 and site.job().frozen_at is None
    first, second = site.sim.store.attempts("j")
    assert first.outcome == "lost" and first.frozen_s > 0 and second.frozen_s == 0.0


def test_a_job_that_ends_or_fails_while_frozen_ends() -> None:
    site = running(run_s=40.0)
    site.limit(500.0, None)
    site.advance(60)  # the simulated cluster's processes know nothing of it
    job = site.job()
    assert job.state is JobState.SUCCEEDED and job.frozen_at is None and site.attempt().frozen_s > 0
    site.advance(5)
    assert site.agents.standing("j") == set()


@pytest.mark.parametrize(
    ("nodes", "away", "deaf", "refusal", "why"),
    [
        ((), (), (), "", "no power agent in a finds a process of it"),
        (("n1",), (), (), "process 7 of j belongs to another user", "host-n1: process 7 of j belongs to another user"),
        (("n1", "n2"), (), ("n2",), "", "host-n2: no answer within 10 s"),
    ],
)
def test_a_job_that_cannot_be_frozen_as_a_whole_runs_on_and_says_why(
    nodes: tuple[str, ...], away: tuple[str, ...], deaf: tuple[str, ...], refusal: str, why: str
) -> None:
    site = running()
    site.agents.places["j"] = set(nodes)
    site.agents.away, site.agents.deaf, site.agents.refusal = set(away), set(deaf), refusal
    site.limit(500.0, None)
    site.advance(6)
    assert site.job().frozen_at is None and why in site.job().reason and site.attempt().frozen_s == 0.0
    assert why in site.alarms() and site.agents.standing("j") == set()
    site.advance(REFUSED_S / 2)
    assert site.kinds() == ["freeze", "thaw"], "it is not tried all the time"


def test_without_an_agent_it_is_not_pausable_and_is_frozen_once_there_is_one() -> None:
    site = running()
    site.agents.away = {"n1", "n2"}
    site.limit(500.0, None)
    site.advance(10)
    assert site.kinds() == [] and "no power agent in a is connected" in site.alarms()
    site.intend(held=True)
    site.advance(20)
    assert "it runs on: no power agent in a is connected" in site.job().reason
    site.agents.away = set()
    site.advance(3)
    assert site.kinds() == ["freeze"]


def test_agents_that_fall_silent_wake_it_and_the_record_follows() -> None:
    site = running()
    site.limit(500.0, None)
    site.advance(10)
    site.agents.away = {"n1"}
    site.advance(LEASE_S + 30)
    job = site.job()
    assert job.frozen_at is None and "wake it by themselves" in job.reason and "host-n1" in job.reason
    assert site.attempt().frozen_s <= LEASE_S + 25
    site.agents.away = set()
    site.advance(REFUSED_S + 5)
    assert site.kinds() == ["freeze", "thaw", "freeze"]


def test_a_node_that_is_gone_keeps_the_rest_from_being_frozen_alone() -> None:
    site = Site()
    site.submit("j", nodes=("n1", "n2"))
    site.advance(30)
    site.limit(500.0, 20.0)
    site.advance(30)
    assert site.kinds() == ["freeze", "thaw"]
    site.agents.away = {"n2"}
    site.limit(500.0, None, "e2")
    site.advance(5)
    assert site.job().frozen_at is None and "host-n2: its agent is not connected" in site.job().reason
    assert site.agents.standing("j") == set()


def test_a_new_control_plane_takes_over_a_freeze_that_stands() -> None:
    site = running()
    site.limit(500.0, None)
    site.advance(10)
    began = site.job().frozen_at
    after = Site(site.sim.store, site.agents, site)
    after.advance(LEASE_S + 20)
    assert after.job().frozen_at == began and after.agents.standing("j") == {"n1"}
    assert after.kinds() == ["freeze"]


def test_a_new_control_plane_finds_that_the_agents_have_woken_it() -> None:
    site = running()
    site.limit(500.0, None)
    site.advance(10)
    site.agents.frozen.clear()
    after = Site(site.sim.store, site.agents, site)
    assert after.job().frozen_at is not None
    after.advance(TELL_S + 3)
    thaws = [event for event in after.sim.store.events("j") if event.kind == "thaw"]
    assert len(thaws) == 1 and "while the control plane was away" in thaws[0].reason
    assert after.attempt().frozen_s <= 300.0


def test_a_control_plane_that_was_away_for_long_counts_no_more_than_the_job_stands() -> None:
    site = running(run_s=9000.0)
    site.limit(500.0, None)
    site.advance(10)
    site.agents.frozen.clear()
    site.sim.clock.advance(3600.0)
    after = Site(site.sim.store, site.agents, site)
    after.advance(TELL_S + 3)
    assert after.kinds() == ["freeze", "thaw"] and after.attempt().frozen_s == 300.0


def test_the_store_keeps_a_job_that_does_not_run_from_standing_still(store: Store) -> None:
    now = START
    flex = parse_flexibility({}, now=now, gpus_requested=None, regions=["a"])
    store.add_job(Job("j", Request("true"), flex, JobState.RUNNING, now, now, frozen_at=now), "submitted").result()
    done = store.apply([Change("j", now, "state", "ended", to=JobState.SUCCEEDED)]).result()[0]
    assert isinstance(done, Job) and done.frozen_at is None
    naive = store.apply(
        [Change("j", now, "freeze", "x", expect=JobState.SUCCEEDED, fields={"frozen_at": START.replace(tzinfo=None)})]
    )
    assert isinstance(naive.result()[0], BadInput)
    assert store.job("j") == done


def test_the_agents_words_for_a_job_that_is_not_there_are_those_that_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(FreezeRefused) as refused:
        Freezer(tmp_path, ProcessTable(), "boot").freeze("gs-none", ttl_s=1.0, freeze_max_s=1.0)
    assert str(refused.value) == "no process of gs-none runs on this node"


def test_an_owner_may_pause_what_may_be_frozen() -> None:
    site = running()

    class Some:
        store, clock = site.sim.store, site.sim.clock

        def nudge(self) -> None:
            """Nobody waits."""

    assert intents.pause(Some(), "j").held  # type: ignore[arg-type]
    site.advance(2)
    assert site.job().frozen_at is not None
