"""The power loop over agents that live in the test: which leases stand, when they are sent, renewed, lowered and let go."""

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.power.caps import CapLoop
from dispatcher.power.hub import Hub
from policies.cap_model import LEAST_CAP, PLANNED_CAPS
from policies.world import (
    Budget,
    Flexibility,
    JobState,
    JobView,
    Pausable,
    Placement,
    Plan,
    RegionView,
    Settings,
    World,
)
from tests.dispatcher.test_control import advance, simulation, state, submit

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Agent:
    """A node with GPUs that draw what their jobs ask for, up to the lowest of their leases."""

    def __init__(self, test: "Site", node_id: str, jobs: list[list[str]], *, draw_w: float = 600.0, **more: Any) -> None:
        self.test, self.node_id, self.jobs, self.draw_w = test, node_id, jobs, draw_w
        self.branch: str | None = more.pop("branch", None)
        self.can_cap: bool = more.pop("can_cap", True)
        self.obeys: bool = more.pop("obeys", True)
        self.leases: dict[str, dict[str, Any]] = more.pop("leases", {})
        self.orders: list[dict[str, Any]] = []
        self.protected: dict[str, str] = {}
        self.busy = False
        self.unsure = False  # it cannot tell yet who is on its GPUs
        self.unused = 0.0  # share of a cap that its work does not draw
        self.clock_s = 0.0  # ahead of the right time
        self.uuids = [f"GPU-{node_id}-{at}" for at in range(len(jobs))]

    def send(self, text: str, *, is_order: bool = False) -> None:
        frame = json.loads(text)
        self.orders.append(frame)
        for one in frame["set"]:
            ends = None if one["ttl_s"] is None else self.test.s + one["ttl_s"]
            self.leases[one["lease_id"]] = {**one, "ends": ends}
        for name in frame["release"]:
            self.leases.pop(name, None)
        said = [
            {"lease_id": one["lease_id"], "ok": self.obeys, "error": None if self.obeys else "busy"} for one in frame["set"]
        ]
        self.say({"type": "results", "order": frame["order"], "results": said})

    def close(self, why: str) -> None: ...

    def say(self, frame: dict[str, Any]) -> None:
        assert self.test.hub.receive(self, "north", json.dumps(frame)) is None

    def cap(self, uuid: str) -> float:
        """The limit in force on a GPU, W."""
        live = [one for one in self.leases.values() if one["ends"] is None or one["ends"] > self.test.s]
        return min([700.0, *(one["limit_w"] for one in live if one["uuid"] == uuid and self.obeys)])

    def caps(self) -> list[float]:
        return [self.cap(uuid) for uuid in self.uuids]

    def drawn_w(self) -> float:
        return sum(self.power_w(uuid, jobs) for uuid, jobs in zip(self.uuids, self.jobs, strict=True))

    def power_w(self, uuid: str, jobs: list[str]) -> float:
        return min(self.cap(uuid) * (1.0 - self.unused), self.draw_w if jobs else 60.0)

    def _leases(self) -> list[dict[str, Any]]:
        keys = ("lease_id", "kind", "uuid", "limit_w")
        return [
            {key: one[key] for key in keys} | {"epoch": 1, "ends_in_s": one.get("ends_in_s", self._left_s(one))}
            for one in self.leases.values()
        ]

    def _left_s(self, lease: dict[str, Any]) -> float | None:
        return None if lease.get("ends") is None else lease["ends"] - self.test.s

    def hello(self) -> None:
        gpus = [
            {"uuid": uuid, "index": at, "name": "NVIDIA H100 80GB HBM3", "min_w": 200.0, "max_w": 700.0, "default_w": 700.0}
            for at, uuid in enumerate(self.uuids)
        ]
        node = {"node_id": self.node_id, "hostname": f"host-{self.node_id}", "branch": self.branch, "simulated": True}
        why = "" if self.can_cap else "no permission to set limits"
        self.say(
            {
                "type": "hello",
                "protocol": 1,
                "node": node,
                "can_cap": self.can_cap,
                "why_not": why,
                "gpus": gpus,
                "leases": self._leases(),
                "epoch": 0,
            }
        )

    def live(self) -> None:
        self.leases = {name: one for name, one in self.leases.items() if one.get("ends") is None or one["ends"] > self.test.s}
        gpus = [
            {
                "uuid": uuid,
                "power_w": self.power_w(uuid, jobs),
                "limit_w": self.cap(uuid),
                "enforced_w": self.cap(uuid),
                "idle_state": "active" if jobs or self.busy else "deep_idle",
                "jobs": None if self.unsure else jobs,
                "protected": self.protected.get(uuid),
            }
            for uuid, jobs in zip(self.uuids, self.jobs, strict=True)
        ]
        at = START.timestamp() + self.test.s + self.clock_s
        self.say({"type": "live", "at": at, "gpus": gpus, "frozen": [], "alarms": [], "leases": self._leases()})


class Site:
    """A region, its agents and the loop, in time that moves when told."""

    def __init__(self, **region: Any) -> None:
        self.s = 0.0
        self.clock_s = 0.0  # the control plane's, ahead of the right time
        one = {"name": "north", "address": "http://north", "price": [{"feed": "synthetic"}], **region}
        self.hub = Hub(epoch=2, now=self.now, mono=lambda: self.s)
        self.config = Config.model_validate({"region": [one]})
        self.loop = CapLoop(self.config, self.hub, mono=lambda: self.s)
        self.limit_w: float | None = region.get("power_limit_w")
        self.agents: list[Agent] = []
        self.jobs: dict[str, JobView] = {}
        self.budgets: tuple[Budget, ...] = ()
        self.branch_budgets: tuple[Budget, ...] = ()
        self.plan: Plan | None = None

    def now(self) -> datetime:
        return START + timedelta(seconds=self.s + self.clock_s)

    def agent(self, node_id: str, jobs: list[list[str]], **more: Any) -> Agent:
        agent = Agent(self, node_id, jobs, **more)
        self.agents.append(agent)
        agent.hello()
        return agent

    def job(self, job_id: str, gpus: float = 1.0, **more: Any) -> None:
        fields: dict[str, Any] = {"flexible": True, "deadline_at": None, "earliest_at": None, "runtime_s": 7200.0}
        fields |= {"runtime_given": True, "gpus": gpus, "power_w": 600.0 * gpus, "tier": "flex-3"}
        own = {key: more.pop(key) for key in list(more) if key in JobView.__dataclass_fields__}
        flex = Flexibility(**{**fields, **more})
        ran = {"region": "north", "run_started_at": START - timedelta(hours=1), "attempt": 1}
        self.jobs[job_id] = JobView(job_id, JobState.RUNNING, START, START, flex, 7200.0, **{**ran, **own})

    def world(self) -> World:
        view = RegionView("north", True, None, None, self.limit_w, None, None, pue=1.25)
        jobs, now = tuple(replace(job, cap=self.loop.cap_of(job.id)) for job in self.jobs.values()), self.now()
        # What is over, and its way back too, is told of no more.
        budgets, of_branches = (
            tuple(one for one in some if one.end is None or one.end + timedelta(seconds=one.recovery_s or 0.0) > now)
            for some in (self.budgets, self.branch_budgets)
        )
        return World(now, jobs, (view,), budgets, settings=Settings(), plan=self.plan, branch_budgets=of_branches)

    def event(self, limit_w: float, end_s: float | None, start_s: float = 0.0, event_id: str = "ev", **more: Any) -> None:
        end = None if end_s is None else START + timedelta(seconds=end_s)
        begin = START + timedelta(seconds=start_s)
        self.budgets = (*self.budgets, Budget("north", begin, end, limit_w, event_id, f"event {event_id}", **more))

    def seconds(self, count: int = 1) -> None:
        for _ in range(count):
            self.s += 1.0
            for agent in self.agents:
                agent.live()
            self.loop.power(self.world(), self.now())

    def drawn_w(self) -> float:
        """At the meter."""
        return sum(agent.drawn_w() for agent in self.agents) * 1.25

    def sentences(self) -> list[str]:
        return [sentence for _, _, sentence in self.loop.alarms(self.now())]


def four(**more: Any) -> tuple[Site, Agent]:
    """One node whose four GPUs run one job each, 3000 W at the meter."""
    site = Site(**more)
    for at in range(4):
        site.job(f"j{at}")
    return site, site.agent("n1", [[f"j{at}"] for at in range(4)])


def test_without_limits_nothing_is_sent() -> None:
    site, agent = four()
    site.seconds(5)
    assert agent.orders == [] and site.sentences() == []


def test_an_event_caps_until_its_own_end_and_is_sent_once() -> None:
    site, agent = four()
    site.event(2400.0, end_s=900.0)
    site.seconds(30)
    assert site.drawn_w() <= 2400.0 and all(LEAST_CAP * 700 <= cap < 600 for cap in agent.caps())
    assert len(agent.orders) == 1
    (order,) = agent.orders
    assert {one["kind"] for one in order["set"]} == {"event"}
    assert {one["ttl_s"] for one in order["set"]} == {899.0}
    assert "event ev" in order["set"][0]["reason"]
    site.s = 899.0
    site.seconds(1)
    assert agent.caps() == [700.0] * 4  # the agent's own clock ended them
    site.seconds(2)
    assert agent.leases == {}


def test_event_caps_stay_to_the_nodes_ends_where_our_clock_may_be_ahead() -> None:
    site, agent = four()
    site.event(2400.0, end_s=900.0)
    site.seconds(5)
    caps = agent.caps()
    assert max(caps) < 600.0
    for lease in agent.leases.values():
        lease["ends"] += 3600.0  # as agents count: the later of both clocks
        lease["ends_in_s"] = 4500.0
    agent.clock_s = -3600.0
    site.seconds(5)
    assert "clock n1" in [key for key, _, _ in site.hub.alarms()]
    site.s = 900.0
    site.seconds(30)
    assert agent.caps() == caps, "over by our clock alone"
    site.loop = CapLoop(site.config, site.hub, mono=lambda: site.s)  # nor does a restart of ours lift them
    site.seconds(30)
    assert agent.caps() == caps
    agent.clock_s = 0.0
    site.seconds(10)
    assert agent.caps() == [700.0] * 4 and agent.leases == {}


def test_an_event_that_is_taken_back_is_let_go_of_whatever_the_clocks_say() -> None:
    site, agent = four()
    agent.clock_s = -3600.0
    site.event(2400.0, end_s=900.0)
    site.seconds(8)
    assert max(agent.caps()) < 600.0 and site.hub.doubting() == {"n1"}
    for lease in agent.leases.values():
        lease["ends_in_s"] = 4500.0
    site.budgets = ()
    site.seconds(2)
    assert agent.leases == {} and agent.caps() == [700.0] * 4


def test_an_event_that_lasts_longer_than_any_lease_is_kept_and_its_leases_are_set_again() -> None:
    site, agent = four()
    site.event(2400.0, end_s=4000 * 86400.0, recovery_s=600.0)
    site.seconds(5)
    caps = agent.caps()
    assert max(caps) < 600.0 and site.sentences() == []
    (first,) = agent.orders
    site.s = first["set"][0]["ttl_s"] + 1.0
    agent.leases.clear()  # they are over, and the event is not
    site.seconds(10)
    assert agent.caps() == caps and len(agent.orders) >= 2


def back(site: Site, seconds: int) -> list[float]:
    """Draw at the meter, each minute from now on."""
    drawn = []
    for _ in range(seconds // 60):
        site.seconds(60)
        drawn.append(site.drawn_w())
    return drawn


def twenty(**more: Any) -> tuple[Site, Agent]:
    site = Site()
    for at in range(20):
        site.job(f"j{at}", **more)
    return site, site.agent("n1", [[f"j{at}"] for at in range(20)])


def test_load_comes_back_on_a_straight_line_after_an_event_and_is_whole_in_time() -> None:
    site, agent = twenty()
    site.event(11000.0, end_s=300.0, recovery_s=600.0)
    site.seconds(299)
    low = site.drawn_w()
    assert low <= 11000.0
    drawn = [low, *back(site, 660)]
    rises = [later - earlier for earlier, later in itertools.pairwise(drawn)]
    assert drawn[-1] == 15000.0 and min(rises) >= 0 and max(rises) <= 1.3 * (15000.0 - low) / 10
    assert drawn[4] < 13500.0 < drawn[7]
    site.seconds(30)
    assert agent.leases == {}


def test_load_comes_back_step_by_step_also_when_the_control_plane_is_gone() -> None:
    site, agent = twenty()
    site.event(11000.0, end_s=300.0, recovery_s=600.0)
    site.seconds(120)
    low = site.drawn_w()
    seen = {}
    for second in (290, 301, 600, 899, 901):
        site.s = float(second)
        seen[second] = site.drawn_w()
    assert seen[290] == low and seen[301] <= low + 300.0
    assert abs(seen[600] - (low + 15000.0) / 2) < 500.0
    assert seen[901] == 15000.0
    assert len(agent.orders) <= 4, "no stream of orders for ends that move a little"


def test_load_comes_back_step_by_step_from_a_release_and_after_a_restart_in_the_midst_of_it() -> None:
    site, agent = twenty()
    site.event(11000.0, end_s=None, recovery_s=600.0)
    site.seconds(120)
    low = site.drawn_w()
    site.budgets = (replace(site.budgets[0], end=site.now()),)
    assert max(back(site, 240)) < 13500.0
    site.loop = CapLoop(site.config, site.hub, mono=lambda: site.s)
    drawn = back(site, 420)
    assert low < drawn[0] < 14000.0 and drawn[-1] == 15000.0
    assert agent.leases == {}


def test_what_gpus_leave_undrawn_is_given_to_them_while_the_limit_is_kept() -> None:
    site, agent = four()
    site.event(2400.0, end_s=3600.0)
    agent.unused = 0.04
    site.seconds(5)
    first = site.drawn_w()
    site.seconds(200)
    assert first < 0.97 * 2400.0 < site.drawn_w() <= 2400.0
    agent.unused = 0.0  # the same work draws all that it may from now on
    site.seconds(6)
    assert site.drawn_w() <= 2400.0


def test_a_branchs_event_caps_that_branch_alone() -> None:
    site = Site()
    for at in range(4):
        site.job(f"j{at}")
    one = site.agent("n1", [["j0"], ["j1"]], branch="rack-1")
    other = site.agent("n2", [["j2"], ["j3"]], branch="rack-2")
    site.branch_budgets = (Budget("north", START, START + timedelta(hours=1), 1100.0, "b", "event b", branch="rack-1"),)
    site.seconds(5)
    assert 1100.0 / 1.25 < sum(one.caps()) <= 1100.0 and other.caps() == [700.0] * 2


def test_an_open_event_has_no_end_and_its_release_lifts_the_caps() -> None:
    site, agent = four()
    site.event(2400.0, end_s=None)
    site.seconds(2)
    assert {one["ttl_s"] for one in agent.orders[0]["set"]} == {None}
    site.budgets = ()
    site.seconds(2)
    assert agent.leases == {} and agent.caps() == [700.0] * 4


def test_a_limit_is_met_before_it_begins() -> None:
    site, agent = four()
    site.event(2400.0, start_s=20.0, end_s=500.0)
    site.seconds(13)
    assert agent.orders == []
    site.seconds(5)
    assert site.drawn_w() <= 2400.0


def test_a_standing_limit_is_kept_by_leases_that_are_renewed() -> None:
    site, agent = four(power_limit_w=2500.0)
    site.seconds(45)
    assert site.drawn_w() <= 2500.0
    sets = [order["set"] for order in agent.orders if order["set"]]
    assert len(sets) == 3  # at once, after 20 s, after 40 s
    assert {(one["kind"], one["ttl_s"]) for some in sets for one in some} == {("economic", 60.0)}


def test_an_event_and_a_standing_limit_each_have_their_leases() -> None:
    site, agent = four(power_limit_w=2700.0)
    site.event(2300.0, end_s=100.0)
    site.seconds(2)
    assert {one["kind"] for one in agent.leases.values()} == {"economic", "event"}
    assert site.drawn_w() <= 2300.0
    site.s = 100.0
    site.seconds(2)
    assert {one["kind"] for one in agent.leases.values()} == {"economic"}
    assert 2300.0 < site.drawn_w() <= 2700.0


def test_tiers_and_least_caps_are_obeyed_and_serving_is_never_capped() -> None:
    site = Site()
    site.job("served", flexible=False, tier="flex-0")
    site.job("strict", tier="flex-1")
    site.job("half", tier="flex-3", min_cap=0.75)
    site.job("soft", tier="flex-3")
    agent = site.agent("n1", [["served"], ["strict"], ["half"], ["soft"], ["nobody-knows"], []])
    site.event(2000.0, end_s=600.0)
    site.seconds(3)
    served, strict, half, soft, unknown, idle = agent.caps()
    assert (served, unknown, idle) == (700.0, 700.0, 700.0)
    assert strict > 500.0 and half >= 525.0 and soft == LEAST_CAP * 700.0
    (sentence,) = site.sentences()
    assert "above its limit" in sentence and "nothing there can pause" in sentence


def test_a_gpu_with_work_that_is_none_of_ours_is_not_capped_and_is_said_where_a_limit_is_missed() -> None:
    site, agent = four(power_limit_w=2400.0)
    agent.protected[agent.uuids[0]] = "process 7 there is of no job of gridshift's"
    site.seconds(10)
    assert agent.caps()[0] == 700.0 and all(cap < 600.0 for cap in agent.caps()[1:]) and site.drawn_w() <= 2400.0
    agent.protected = dict.fromkeys(agent.uuids, "process 7 there is of no job of gridshift's")
    site.seconds(10)
    assert agent.caps() == [700.0] * 4
    assert any("4 GPUs are not capped: work of no job of gridshift's runs on them" in one for one in site.sentences())


def test_an_alarm_says_which_part_is_not_measured_but_stated() -> None:
    site, _ = four()
    site.job("unseen")
    site.event(1600.0, end_s=600.0)
    site.seconds(2)
    (sentence,) = site.sentences()
    assert "as measured, and with 750 W that jobs are stated to draw which no agent sees, north is" in sentence


def test_a_job_that_has_just_been_frozen_is_no_trouble_though_its_gpu_is_measured_as_before() -> None:
    site, _ = four()
    site.event(1600.0, end_s=600.0)
    site.seconds(2)
    (sentence,) = site.sentences()
    assert "as measured north is" in sentence and "nothing there can pause" in sentence
    site.jobs["j3"] = replace(site.jobs["j3"], frozen_at=site.now(), frozen_w=60.0)
    site.seconds(1)
    assert site.sentences() == []
    site.event(1000.0, end_s=600.0)
    site.seconds(1)
    (sentence,) = site.sentences()
    assert "nothing else there can pause" in sentence


def test_what_caps_cannot_reach_names_who_would_pause() -> None:
    site, agent = four()
    site.job("j3", pausable=Pausable.CHECKPOINT)
    site.event(1600.0, end_s=600.0)
    site.seconds(2)
    assert agent.caps() == [350.0] * 4
    (sentence,) = site.sentences()
    assert "pausing j3 would meet it" in sentence and "W above its limit" in sentence


def test_a_node_that_cannot_cap_is_left_alone_and_said() -> None:
    site = Site()
    site.job("j0")
    site.job("j1")
    able, unable = site.agent("n1", [["j0"]]), site.agent("n2", [["j1"]], can_cap=False)
    site.event(1000.0, end_s=600.0)
    site.seconds(2)
    assert unable.orders == [] and able.caps() == [350.0]
    (sentence,) = site.sentences()
    assert "1 GPUs are not capped: the agent there cannot cap: no permission to set limits" in sentence


def test_a_branch_has_its_own_limit() -> None:
    site = Site(branch=[{"name": "rack-1", "power_limit_w": 1100.0}])
    for at in range(4):
        site.job(f"j{at}")
    tight = site.agent("n1", [["j0"], ["j1"]], branch="rack-1")
    free = site.agent("n2", [["j2"], ["j3"]], branch="rack-2")
    site.seconds(2)
    assert 1100.0 / 1.25 < tight.drawn_w() <= 1100.0, "of its GPUs alone: its meter sees no cooling"
    assert free.caps() == [700.0] * 2


def test_a_cap_that_is_not_enforced_is_an_alarm_after_five_seconds_and_tried_again() -> None:
    site, agent = four()
    agent.obeys = False
    site.event(2400.0, end_s=600.0)
    site.seconds(4)
    assert len(agent.orders) == 1 and site.sentences() == []
    site.seconds(4)
    assert len(agent.orders) == 2
    (sentence,) = site.sentences()
    assert "4 of 4 GPUs of host-n1 do not hold their cap after 5 s" in sentence and "busy" in sentence
    agent.obeys = True
    site.seconds(6)
    assert site.sentences() == [] and site.drawn_w() <= 2400.0


def test_leases_of_an_earlier_control_plane_that_nobody_wants_are_released_and_others_left() -> None:
    site = Site()
    site.job("j0")
    old = {"lease_id": "event old GPU-n1-0", "kind": "event", "uuid": "GPU-n1-0", "limit_w": 400.0, "ends": None}
    other = {"lease_id": "by hand", "kind": "event", "uuid": "GPU-n1-0", "limit_w": 500.0, "ends": None}
    agent = site.agent("n1", [["j0"]], leases={old["lease_id"]: old, other["lease_id"]: other})
    site.seconds(2)
    assert list(agent.leases) == ["by hand"]


def test_a_lease_that_its_node_has_lost_is_sent_again() -> None:
    site, agent = four()
    site.event(2400.0, end_s=600.0)
    site.seconds(2)
    agent.leases.clear()
    site.seconds(7)
    assert site.drawn_w() <= 2400.0


def test_a_silent_node_counts_with_the_most_it_may_draw() -> None:
    site = Site()
    site.job("j0")
    site.job("j1")
    site.agent("n1", [["j0"]])
    heard = site.agent("n2", [["j1"]])
    site.seconds(2)
    site.agents = [heard]  # n1 says nothing more
    site.seconds(12)
    site.event(1200.0, end_s=600.0)
    site.seconds(2)
    # 600 W of the silent one are taken as drawn: the other has (1200 x 0.99 / 1.25) - 600 W.
    assert heard.caps() == [350.0]
    site.budgets = ()
    site.event(1300.0, end_s=600.0, event_id="ev2")
    site.seconds(3)
    assert heard.caps() == [429.0]


def test_leases_of_a_silent_node_still_count() -> None:
    site = Site()
    site.job("j0")
    site.job("j1")
    site.agent("n1", [["j0"]])
    heard = site.agent("n2", [["j1"]])
    site.event(1200.0, end_s=600.0)
    site.seconds(2)
    before = heard.caps()
    site.agents = [heard]
    site.seconds(15)
    assert heard.caps() == before  # its event lease holds the other without us


def test_a_job_that_no_agent_has_seen_counts_with_what_it_states() -> None:
    site, agent = four()
    site.job("elsewhere", gpus=0.0, power_w=400.0)
    site.event(2800.0, end_s=600.0)
    site.seconds(2)
    assert site.drawn_w() <= 2800.0 - 400.0 * 1.25 and min(agent.caps()) > 350.0


def test_more_room_raises_caps_and_noise_sends_nothing() -> None:
    site, agent = four()
    site.event(2300.0, end_s=600.0)
    site.seconds(2)
    before = agent.caps()
    agent.draw_w = 600.5
    site.seconds(10)
    assert len(agent.orders) == 1
    site.jobs.pop("j3")
    agent.jobs[3] = []
    site.seconds(3)
    assert all(new > old for new, old in zip(agent.caps()[:3], before[:3], strict=True))
    assert site.drawn_w() <= 2300.0


# --- the plan's caps ----------------------------------------------------------------------------------------------


def test_the_plan_is_offered_caps_only_while_every_agent_there_can_cap() -> None:
    site = Site()
    assert site.loop.points("north") == ()
    site.agent("n1", [[]])
    site.seconds(1)
    points = site.loop.points("north")
    assert [point.cap for point in points] == list(PLANNED_CAPS)
    assert all(point.cap >= LEAST_CAP and point.draw < 1.0 and point.draw < point.speed < 1.0 for point in points)
    site.agent("n2", [[]], can_cap=False)
    site.seconds(1)
    assert site.loop.points("north") == ()


def test_a_job_launched_under_a_cap_gets_and_keeps_it() -> None:
    site = Site()
    site.job("j0")
    agent = site.agent("n1", [["j0"], []])
    site.loop.launched("j0", 0.7, site.now())
    site.seconds(25)
    assert agent.caps() == [490.0, 700.0] and site.loop.cap_of("j0") == 0.7
    assert [one["ttl_s"] for order in agent.orders for one in order["set"]] == [60.0, 60.0]
    site.jobs.clear()
    agent.jobs[0] = []
    site.seconds(2)
    assert agent.leases == {} and site.loop.cap_of("j0") == 1.0


def test_a_new_plan_moves_the_cap_of_a_running_job() -> None:
    site = Site()
    site.job("j0")
    agent = site.agent("n1", [["j0"]])
    interval = (START, START + timedelta(hours=2))
    for cap, expected in ((0.8, 560.0), (0.6, 420.0), (1.0, 700.0)):
        placement = Placement("j0", "north", (interval,), 1.0, 1.0, None, 0.0, "cheap", cap=cap)
        self_made = Plan(site.now(), START + timedelta(days=1), 900, {"j0": placement}, {}, 0.0)
        site.plan = self_made
        site.seconds(2)
        assert agent.caps() == [expected]


def test_the_cap_of_a_running_job_outlives_the_control_plane() -> None:
    site = Site()
    site.job("j0")
    lease = {"lease_id": "plan j0 GPU-n1-0", "kind": "economic", "uuid": "GPU-n1-0", "limit_w": 490.0, "ends": 60.0}
    agent = site.agent("n1", [["j0"]], leases={lease["lease_id"]: lease})
    site.seconds(1)
    assert site.loop.cap_of("j0") == 0.7 and agent.caps() == [490.0]
    assert agent.leases[lease["lease_id"]]["ends"] == 61.0  # renewed


def test_run_times_under_a_cap_teach_how_long_the_group_runs_without() -> None:
    site = Site()
    site.job("j0", group="train")
    site.agent("n1", [["j0"]])
    site.loop.launched("j0", 0.6, site.now())
    site.seconds(3)
    before = site.loop.learned.curve("train", "NVIDIA H100 80GB HBM3").at(0.6)[0]
    uncapped_s = site.loop.uncapped_s("j0", "train", 4000.0, 3000.0)
    after = site.loop.learned.curve("train", "NVIDIA H100 80GB HBM3")
    assert after.observations == 1 and after.at(0.6)[0] < before
    assert 3000.0 <= uncapped_s < 4000.0
    assert site.loop.uncapped_s("never-capped", "train", 500.0, 400.0) == 500.0


def test_a_group_teaches_what_it_draws() -> None:
    site = Site()
    site.job("j0", group="light", power_w=650.0)
    site.agent("n1", [["j0"]], draw_w=300.0)
    site.seconds(65)
    assert site.loop.learned.draw("light", "NVIDIA H100 80GB HBM3")[0] == pytest.approx(300 / 700, abs=0.06)


def test_a_gpu_that_tells_nothing_is_not_counted_as_nothing_in_silence() -> None:
    site, agent = four()
    site.seconds(1)
    bare = Agent(site, "n2", [[]])
    hello = {"uuid": bare.uuids[0], "index": 0, "name": "Old card", "min_w": None, "max_w": None, "default_w": None}
    node = {"node_id": "n2", "hostname": "host-n2", "branch": None, "simulated": True}
    frame = {"type": "hello", "protocol": 1, "node": node, "can_cap": False, "why_not": "old driver", "gpus": [hello]}
    bare.say({**frame, "leases": [], "epoch": 0})
    site.event(2400.0, end_s=60.0)
    site.seconds(2)
    assert any("1 GPUs in north tell neither what they draw nor what they may" in one for one in site.sentences())
    assert site.drawn_w() <= 2400.0 and agent.orders


def test_the_control_loop_sees_the_caps_that_jobs_run_under_and_those_that_can_be_set() -> None:
    sim = simulation()
    loop = CapLoop(sim.control.config, Hub(epoch=1))
    sim.control._caps = loop
    advance(sim, 3)
    submit(sim, "j", run_s=600.0, gpus=1.0, tier="flex-3", deadline="10m")
    advance(sim, 30)
    assert state(sim, "j") is JobState.RUNNING
    loop.launched("j", 0.7, sim.clock.now())
    advance(sim, 2)
    (view,) = sim.control.snapshot().world.jobs
    assert view.cap == 0.7
    assert sim.control.snapshot().world.regions[0].caps == ()  # no agent is there


def test_what_goes_wrong_with_a_region_is_said_and_lifts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    site, agent = four()
    site.event(2400.0, end_s=600.0)
    site.seconds(2)
    before = agent.caps()

    def broken(*_: Any) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("dispatcher.power.caps.on_limits", broken)
    site.seconds(8)
    assert agent.caps() == before and len(agent.orders) == 1
    assert any("the caps of north cannot be worked out (a bug)" in one for one in site.sentences())


def test_a_limit_over_idle_gpus_needs_nothing_and_one_below_their_draw_is_said() -> None:
    site = Site(power_limit_w=1000.0)
    agent = site.agent("n1", [[], []])
    site.seconds(2)
    assert agent.orders == [] and site.sentences() == []
    site.event(100.0, end_s=60.0)
    site.seconds(2)
    assert any("nothing there can pause" in one for one in site.sentences())


def test_two_sources_may_give_their_events_the_same_id() -> None:
    site, agent = four()
    site.event(2000.0, end_s=900.0, event_id="1")
    site.budgets = (*site.budgets, replace(site.budgets[0], limit_w=2700.0, source="utility"))
    site.seconds(5)
    assert site.drawn_w() <= 2000.0 and {name.rpartition(" ")[0] for name in agent.leases} == {"event 1", "event 1 of utility"}
    site.budgets = site.budgets[1:]
    site.seconds(10)
    assert 2000.0 < site.drawn_w() <= 2700.0


def test_what_another_regions_agent_says_of_a_gpu_changes_nothing_here() -> None:
    site, agent = four()
    site.event(2400.0, end_s=900.0)
    site.seconds(120)
    before = agent.caps()
    gpus = [{"uuid": uuid, "index": at, "name": "x", "default_w": 10.0} for at, uuid in enumerate(agent.uuids)]
    about = {"node_id": "zz", "hostname": "zz"}
    hello = {"type": "hello", "protocol": 1, "node": about, "can_cap": True, "why_not": "", "gpus": gpus, "epoch": 0}
    liar = Agent(site, "zz", [])
    assert site.hub.receive(liar, "south", json.dumps(hello)) is None
    for power_w in (1.0, -1e8, 0.0):
        said = [{"uuid": uuid, "power_w": power_w, "idle_state": "active", "jobs": ["j0"]} for uuid in agent.uuids]
        assert site.hub.receive(liar, "south", json.dumps({"type": "live", "gpus": said})) is None
        site.seconds(80)
        assert agent.caps() == before and site.drawn_w() <= 2400.0
        site.hub.receive(liar, "south", json.dumps({"type": "live", "gpus": said}))


def test_after_a_restart_an_events_caps_stand_until_it_is_known_who_is_there() -> None:
    site, agent = four()
    site.event(2000.0, end_s=900.0)
    site.seconds(3)
    before, jobs = agent.caps(), agent.jobs
    site.loop = CapLoop(site.config, site.hub, mono=lambda: site.s)
    agent.orders.clear()
    agent.busy, agent.jobs = True, [[], [], [], []]  # the driver does not tell its processes for a moment
    site.seconds(3)
    assert agent.caps() == before and all(order["release"] == [] for order in agent.orders)
    agent.jobs = jobs
    site.seconds(3)
    assert site.drawn_w() <= 2000.0 and all(order["release"] == [] for order in agent.orders)
    agent.jobs = [[], [], [], []]
    site.seconds(20)  # who is there now is nobody of ours
    assert agent.caps() == [700.0] * 4


def test_an_alarm_says_how_many_gpus_do_not_tell_their_power_and_as_what_they_count() -> None:
    site = Site()
    site.job("j0")
    agent = site.agent("n1", [["j0"], [], []])
    agent.power_w = lambda uuid, jobs: 600.0 if jobs else None  # type: ignore[method-assign, assignment, return-value]
    site.event(1600.0, end_s=600.0)
    site.seconds(2)
    (sentence,) = site.sentences()
    assert sentence.startswith("as measured, and with 2 GPUs whose power is unknown counted at the limit, north is ")
    agent.power_w = lambda uuid, jobs: 600.0  # type: ignore[method-assign, assignment]
    site.seconds(2)
    assert [one for one in site.sentences() if "unknown" in one] == []
