"""Serving's own knobs: turned down in calm, given back in the same second at any risk, and left alone for longer each time."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from dispatcher.config import Config
from dispatcher.serving.demand import DemandBook
from dispatcher.serving.knobs import Deployment, KnobError
from dispatcher.serving.tuning import AHEAD, FRESH_S, LOWER_S, ServingTuning
from dispatcher.serving.watch import ServingStatus, source_of
from dispatcher.store.memory import MemoryStore
from policies.serving import Batch, Level, Risk
from signals.memory_store import MemorySignalStore
from tests.power.test_power_loop import START, Agent
from tests.power.test_power_loop import Site as Region

POINTS = [
    {"concurrency": at, "power_w": watts, "tokens_per_s": tokens, "inter_token_s": wait}
    for at, watts, tokens, wait in [(8, 480, 1000, 0.0075), (64, 610, 5000, 0.0115), (256, 690, 9000, 0.026)]
]
CHAT: dict[str, Any] = {
    "name": "chat", "preset": "vllm", "source": "metrics", "url": "http://chat/metrics", "load_per_gpu": 100.0,
    "gpu_uuids": ["GPU-n1-0", "GPU-n1-1"], "slo": [{"metric": "inter_token", "percentile": 0.9, "limit": 0.03}],
    "tuning": {"cap": True, "point": POINTS},
}  # fmt: skip
RAY: dict[str, Any] = {
    "name": "chat", "preset": "ray-serve", "source": "metrics", "url": "http://chat/metrics", "load_per_gpu": 10.0,
    "max_gpus": 8, "slo": [{"metric": "queue", "limit": 10}],
    "tuning": {"replicas": True, "application": "llm", "deployment": "Model", "max_replicas": 4},
}  # fmt: skip


class Knob:
    """Both knobs, as a test looks at them."""

    def __init__(self) -> None:
        self.limits: list[int] = []
        self.target, self.gpus, self.scaled = 4, 2.0, list[int]()
        self.wrong = ""

    def put(self, most: int) -> None:
        if self.wrong:
            raise KnobError(self.wrong)
        self.limits.append(most)

    def read(self) -> Deployment:
        if self.wrong:
            raise KnobError(self.wrong)
        return Deployment(self.target, self.target, self.gpus)

    def scale(self, replicas: int) -> None:
        self.target = replicas
        self.scaled.append(replicas)

    def close(self) -> None: ...


class Site:
    """A serving, its GPUs and their agent, the power loop and the tuning, on seconds that a test moves."""

    def __init__(self, serving: dict[str, Any], **tuning: Any) -> None:
        serving = {**serving, "tuning": {**serving["tuning"], **tuning}}
        self.region, self.store, self.knob = Region(serving=[serving]), MemoryStore(), Knob()
        self.agent: Agent = self.region.agent("n1", [[], []])
        self.agent.busy, self.agent.protected = True, dict.fromkeys(self.agent.uuids, "process 7 is of no job")
        self.risk, self.level, self.demand = (
            Risk("met", 0.1, 0.1, "all is well"),
            Level.CALM,
            20.0 if "gpu_uuids" in serving else 15.0,
        )
        self.unknown, self.nudged = False, 0
        self.tuning = ServingTuning(
            self.region.config,
            lambda now: [ServingStatus("north", "chat", self.level, now, "", False, (self.risk,), Batch(0, 0, 0, 0), "")],
            lambda region, name, span: None if self.unknown else self.demand,
            self.store,
            nodes=self.region.hub.nodes,
            changed=self.nudge,
            limits_of=lambda one: self.knob if one.tuning and one.tuning.concurrency_url else None,
            scales_of=lambda region, one: self.knob if one.tuning and one.tuning.replicas else None,
            mono=lambda: self.region.s,
        )
        self.region.loop.tuned = self.tuning.caps

    def nudge(self) -> None:
        self.nudged += 1

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.tuning.look(self.region.now())
            self.tuning.turn_all()
            self.region.seconds(1)

    def said(self) -> list[str]:
        changes = self.store.grid_event_changes(source_of("north"), "chat")
        return [one.sentence for one in changes]


AT_RISK = Risk("at_risk", 3.0, 2.0, "inter_token is at risk")


@pytest.mark.parametrize(
    "bad",
    [
        {"risk": AT_RISK},
        {"risk": Risk("unknown", 0.0, 0.0, "inter_token is unknown")},
        {"risk": Risk("met", 0.7, 0.1, "inter_token burns")},
        {"level": Level.HOLD},
        {"unknown": True},
        {"demand": 240.0},
    ],
)
def test_a_cap_is_set_after_calm_and_let_go_of_in_the_same_second(bad: dict[str, Any]) -> None:
    site = Site(CHAT)
    site.seconds(300)
    assert site.agent.caps() == [700.0, 700.0] and site.said() == []
    site.seconds(2)
    assert site.agent.caps() == [350.0, 350.0] and site.nudged == 1
    assert len(site.said()) == 1 and "capped at 350 of 700 W" in site.said()[0] and "as a proxy" in site.said()[0]
    site.seconds(100)
    assert site.agent.caps() == [350.0, 350.0] and len(site.said()) == 1, "renewed, and told once"
    for key, value in bad.items():
        setattr(site, key, value)
    site.seconds(1)
    assert site.agent.caps() == [700.0, 700.0] and site.agent.leases == {} and site.nudged == 2
    assert len(site.said()) == 2 and "caps are lifted" in site.said()[-1]


def test_each_relapse_doubles_the_calm_that_is_asked_for() -> None:
    site, waits = Site(CHAT), []
    for _ in range(4):
        began = site.region.s
        while site.agent.caps() != [350.0, 350.0]:
            site.seconds(1)
        waits.append(round(site.region.s - began, -1))
        site.risk = AT_RISK
        site.seconds(1)
        site.risk = Risk("met", 0.1, 0.1, "all is well")
    assert waits == [300, 300, 600, 1200]
    assert site.said()[-1].endswith("nothing is turned down again before 40 min of calm")


def test_a_cap_rises_at_once_with_demand_and_falls_only_after_a_while() -> None:
    site = Site(CHAT)
    site.seconds(302)
    site.demand = 90.0
    site.seconds(2)
    (high, _) = site.agent.caps()
    assert 350.0 < high < 700.0
    site.demand = 20.0
    site.seconds(int(LOWER_S) - 5)
    assert site.agent.caps() == [high, high]
    site.seconds(10)
    assert site.agent.caps() == [350.0, 350.0]


def test_a_judgement_that_stands_still_holds_no_cap() -> None:
    site = Site(CHAT)
    site.seconds(302)
    assert site.agent.caps() == [350.0, 350.0]
    site.region.seconds(int(FRESH_S) + 1)  # the power loop runs on
    assert site.agent.caps() == [700.0, 700.0] and site.agent.leases == {}


@pytest.mark.parametrize("uuids", [["GPU-n1-0", "GPU-gone"], ["GPU-gone"]])
def test_gpus_that_no_agent_tells_of_are_not_capped_and_that_is_an_alarm(uuids: list[str]) -> None:
    site = Site({**CHAT, "gpu_uuids": uuids})
    site.seconds(310)
    assert site.agent.caps() == [700.0, 700.0]
    ((key, region, said),) = site.tuning.alarms(site.region.now())
    assert (key, region) == ("tuning north chat cap", "north") and "no agent tells of its GPU GPU-gone" in said


def test_the_limit_on_requests_goes_with_the_cap_and_is_full_again_at_risk() -> None:
    site = Site(CHAT, concurrency_url="http://chat/limit", max_concurrency=300)
    site.seconds(310)
    assert site.knob.limits[0] == 300 and len(site.knob.limits) == 2 and 25 <= site.knob.limits[1] < 256
    assert f"and {site.knob.limits[1]} requests at once" in site.said()[-1]
    site.risk = AT_RISK
    site.seconds(2)
    assert site.knob.limits[-1] == 300 and "caps and its limit on requests are lifted" in site.said()[-1]


def test_an_endpoint_that_refuses_is_an_alarm_and_asked_again() -> None:
    site = Site(CHAT, concurrency_url="http://chat/limit")
    site.knob.wrong = "it answers 500"
    site.seconds(310)
    assert [said for _, _, said in site.tuning.alarms(site.region.now())] == ["serving chat: it answers 500"]
    assert site.agent.caps() == [350.0, 350.0], "a cap needs no limit where the demand is small"
    assert "requests at once:" not in site.said()[-1]
    site.knob.wrong = ""
    site.seconds(5)
    assert site.knob.limits and list(site.tuning.alarms(site.region.now())) == []


def test_replicas_that_are_idle_are_given_up_and_come_back_at_once() -> None:
    site = Site(RAY)
    site.seconds(300 + 590)
    assert site.knob.scaled == []
    site.seconds(20)
    assert site.knob.scaled == [1], "1.5 GPUs of demand, two GPUs each"
    assert site.said() == ["it has 1 replicas instead of 4, enough for the next 30 min"]
    site.demand = 41.0
    site.seconds(2)
    assert site.knob.target == 3 and "they may be needed soon" in site.said()[-1]
    site.risk = AT_RISK
    site.seconds(2)
    assert site.knob.target == 4
    assert site.said()[-1] == (
        "it has 4 replicas instead of 3: inter_token is at risk; nothing is turned down again before 5 min of calm"
    )


def test_replicas_never_go_below_the_least_nor_down_while_demand_is_unknown_and_are_put_right() -> None:
    site = Site(RAY, min_replicas=2)
    site.unknown = True
    site.seconds(2000)
    assert site.knob.target == 4
    site.unknown, site.demand = False, 0.0
    site.seconds(650)
    assert site.knob.target == 2
    site.knob.target = 4  # somebody deployed it again
    site.seconds(40)
    assert site.knob.target == 2
    site.knob.target = 1
    site.knob.wrong = "Ray is gone"
    site.seconds(40)
    assert "Ray is gone" in next(said for _, _, said in site.tuning.alarms(site.region.now()))
    site.knob.wrong = ""
    site.seconds(1)
    assert site.knob.target == 2 and not [*site.tuning.alarms(site.region.now())]


def test_what_outlives_us_is_put_back_when_we_end() -> None:
    site = Site(RAY, min_replicas=1)
    site.seconds(1000)
    assert site.knob.target == 1
    site.tuning.start()
    site.tuning.close()
    assert site.knob.target == 4


# --- demand -------------------------------------------------------------------------------------------------------


def test_demand_ahead_is_what_is_expected_and_what_was_needed_just_now() -> None:
    serving = {**RAY, "name": "chat"}
    config = Config.model_validate({"region": [{"name": "north", "address": "http://n", "gpus": 8, "serving": [serving]}]})
    now = START.replace(hour=0, minute=0)
    book = DemandBook(config, MemorySignalStore(), lambda: now, mono=lambda: now.timestamp())
    assert book.ahead("north", "chat", AHEAD) is None and book.ahead("north", "other", AHEAD) is None
    for _ in range(3 * 24 * 60):
        book.note("north", "chat", 50.0 if now.hour >= 12 else 10.0)
        now += timedelta(minutes=1)
    assert book.ahead("north", "chat", AHEAD) == pytest.approx(50.0), "what was needed in the last minutes, at midnight"
    for _ in range(11 * 60 + 40):
        book.note("north", "chat", 10.0)
        now += timedelta(minutes=1)
    assert book.ahead("north", "chat", timedelta(minutes=5)) == pytest.approx(10.0)
    assert book.ahead("north", "chat", AHEAD) == pytest.approx(50.0), "before it comes"
    now += timedelta(minutes=16)
    assert book.ahead("north", "chat", AHEAD) is None, "not read any more"


# --- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "serving", "tuning", "said"),
    [
        (CHAT, {}, {"cap": False}, "nothing may be turned down"),
        (CHAT, {"gpu_uuids": [], "max_gpus": 2}, {}, "cap needs gpu_uuids"),
        (CHAT, {"load_per_gpu": None}, {}, "add load_per_gpu"),
        (CHAT, {"load_counter": "n"}, {}, "cap cannot go by a counter"),
        (CHAT, {"slo": [{"metric": "ttft", "percentile": 0.9, "limit": 1}]}, {}, "ttft is promised; give ttft_s"),
        (CHAT, {}, {"point": POINTS[:1]}, "two [[region.serving.tuning.point]] or more"),
        (CHAT, {}, {"point": [*POINTS, POINTS[0]]}, "two points have the same concurrency"),
        (CHAT, {}, {"max_concurrency": 5}, "max_concurrency is for concurrency_url"),
        (CHAT, {}, {"concurrency_url": "chat:1"}, "must be a URL"),
        (CHAT, {}, {"application": "llm"}, "application is for replicas = true"),
        (CHAT, {}, {"latency_share": True}, "true is no number"),
        (CHAT, {}, {"replicas": True}, 'it needs preset = "ray-serve"'),
        (RAY, {}, {"deployment": ""}, "replicas needs deployment"),
        (RAY, {}, {"max_replicas": 0}, "replicas needs max_replicas"),
        (RAY, {}, {"min_replicas": 5}, "of 5 (min_replicas) or more, not 4"),
        (RAY, {}, {"token_env": "T"}, "are for dashboard_url"),
        (RAY, {}, {"point": POINTS}, "point is for cap = true"),
    ],
)
def test_a_mistake_names_the_remedy(base: dict[str, Any], serving: dict[str, Any], tuning: dict[str, Any], said: str) -> None:
    wrong = {**base, **serving, "tuning": {**base["tuning"], **tuning}}
    if "replicas" in tuning:
        wrong["tuning"] = {**RAY["tuning"], **wrong["tuning"]}
    with pytest.raises(ValidationError) as error:
        Config.model_validate({"region": [{"name": "a", "address": "http://a", "serving": [wrong]}]})
    assert said in str(error.value)


def test_a_gpu_of_two_servings_is_not_capped_for_one_of_them() -> None:
    other = {key: value for key, value in CHAT.items() if key != "tuning"} | {"name": "other"}
    with pytest.raises(ValidationError, match="serving chat: tuning: its GPU GPU-n1-0 is serving other's too"):
        Config.model_validate({"region": [{"name": "a", "address": "http://a", "serving": [CHAT, other]}]})


def test_nothing_is_turned_down_without_the_section() -> None:
    plain = {key: value for key, value in CHAT.items() if key != "tuning"}
    site = Site(CHAT)
    config = Config.model_validate({"region": [{"name": "north", "address": "http://a", "serving": [plain]}]})
    tuning = ServingTuning(config, lambda now: [], lambda *_: 0.0, MemoryStore(), mono=lambda: site.region.s)
    tuning.look(START)
    assert tuning.caps("north") == {}
