"""The joint model of a server's cap and concurrency, the patience before knobs are turned down, and the count of replicas."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving import Level, Risk
from policies.serving_tuning import (
    MOST_CALM_S,
    Curve,
    Engine,
    Patience,
    Point,
    Replicas,
    Setting,
    Terms,
    choose,
    engine_speed,
    why_not_calm,
)

H100 = Engine("NVIDIA H100 80GB HBM3", 700.0, 350.0)
#: Requests at once, W, tokens/s and s between tokens: the shape of an 8B model on an H100, made up.
ROWS = [
    (8, 480, 1000, 0.0075),
    (32, 560, 3300, 0.009),
    (64, 610, 5000, 0.0115),
    (128, 670, 7000, 0.0165),
    (256, 690, 9000, 0.026),
]
TERMS = Terms({"inter_token": 0.03})


def curve(rows: Any = ROWS) -> Curve:
    return Curve([Point(at, watts, tokens, {"inter_token": wait}) for at, watts, tokens, wait in rows])


def test_a_server_with_little_to_do_is_capped_low_and_one_with_much_not_at_all() -> None:
    idle, busy = choose(curve(), 20, H100, TERMS), choose(curve(), 230, H100, TERMS)
    assert idle.cap_w == 350.0 and idle.concurrency is None and idle.power_w == 350.0 < idle.uncapped_w
    assert "as a proxy" in idle.sentence and "inter_token 0.0" in idle.sentence
    assert busy.cap_w is None and "more than the 256" in busy.sentence
    assert choose(curve(), None, H100, TERMS) == Setting(None, None, "its demand is not known")


def test_the_limit_on_requests_keeps_a_burst_within_the_promise() -> None:
    limited = choose(curve(), 40, H100, TERMS, may_limit=True)
    assert limited.cap_w is not None and limited.concurrency is not None
    assert limited.at_once <= limited.concurrency < 256
    assert limited.burst_latency_s["inter_token"] <= 0.8 * 0.03
    # a promise that nothing can break needs none
    assert choose(curve(), 40, H100, Terms({"inter_token": 1.0}), may_limit=True).concurrency is None


def test_a_promise_that_the_points_do_not_tell_of_is_not_risked() -> None:
    found = choose(curve(), 20, H100, Terms({"inter_token": 1.0, "e2e": 10.0}))
    assert found.cap_w is None and "e2e, which is promised" in found.sentence


def test_nothing_below_what_may_be_set_and_nothing_that_saves_nothing() -> None:
    assert choose(curve(), 20, Engine("H100", 700.0, 600.0), TERMS).cap_w is None
    assert choose(curve(), 20, Engine("H100", 700.0, 450.0), TERMS).cap_w == 455.0
    # a GPU whose draw is far below its limit anyway
    assert choose(curve([(8, 200, 1000, 0.01), (64, 250, 4000, 0.01)]), 8, H100, TERMS).cap_w is None


def test_points_beyond_the_highest_throughput_are_left_out_and_two_are_needed() -> None:
    assert curve([*ROWS, (512, 690, 8000, 0.06)]).most == 256
    for rows in ([], ROWS[:1], [ROWS[0], ROWS[0]], [(8, 500, 900, 0.01), (16, 500, 800, 0.01)]):
        with pytest.raises(ValueError, match="two points or more"):
            curve(rows)


def test_a_speed_is_told_on_the_safe_side_and_more_so_for_a_proxy() -> None:
    own, proxy = (float(engine_speed(0.6, 0.9, gpu)) for gpu in ("NVIDIA A100-SXM4-80GB", "NVIDIA H100"))  # type: ignore[arg-type]
    assert proxy < own < 1.0 and float(engine_speed(0.95, 0.9, "H100")) == 1.0  # type: ignore[arg-type]


@st.composite
def servers(draw: st.DrawFn) -> Curve:
    at, rows = 0.0, []
    watts, tokens, wait = draw(st.floats(100, 500)), 0.0, draw(st.floats(0.001, 0.02))
    for _ in range(draw(st.integers(2, 6))):
        at += draw(st.floats(1, 100))
        tokens += draw(st.floats(1, 2000))
        watts = max(50.0, watts + draw(st.floats(-20, 100)))
        wait = max(0.0005, wait + draw(st.floats(-0.002, 0.02)))
        rows.append((at, watts, tokens, wait))
    return curve(rows)


@given(
    servers(), st.floats(0, 1000), st.floats(0.001, 0.2), st.floats(0.3, 1.0), st.booleans(), st.sampled_from(["A100", "B200"])
)
def test_what_is_chosen_keeps_latency_and_throughput(
    server: Curve, demand: float, limit_s: float, share: float, may_limit: bool, gpu: str
) -> None:
    engine = Engine(gpu, 700.0, 350.0)
    found = choose(server, demand, engine, Terms({"inter_token": limit_s}, share), may_limit=may_limit)
    if found.cap_w is None:
        assert found.concurrency is None and found.sentence
        return
    # worked out again from what was chosen, at every concurrency that it may come to
    most = found.at_once if found.concurrency is None else found.concurrency
    enough = False
    for at, watts, tokens, wait in zip(server.at, server.watts, server.tokens, server.latencies["inter_token"], strict=True):
        speed = float(engine_speed(found.cap_w / 700.0, watts / 700.0, gpu))
        if at <= most + 1e-9:
            assert wait / speed <= share * limit_s * (1 + 1e-9)
            enough = enough or tokens * speed >= found.needed_tokens_per_s * (1 - 1e-6)
    assert enough, "at the limit it bears what is asked of it"
    assert 350.0 <= found.cap_w < 700.0 and found.power_w <= found.uncapped_w


@given(servers(), st.floats(0, 500), st.floats(0, 500), st.floats(0.005, 0.2), st.booleans())
def test_more_demand_never_lowers_the_cap(server: Curve, one: float, other: float, limit_s: float, may_limit: bool) -> None:
    terms = Terms({"inter_token": limit_s})
    low, high = (choose(server, demand, H100, terms, may_limit=may_limit) for demand in sorted((one, other)))
    assert high.needed_tokens_per_s >= low.needed_tokens_per_s or high.cap_w is None or low.cap_w is None
    if low.cap_w is not None and high.cap_w is not None:
        assert high.cap_w >= low.cap_w and high.power_w >= low.power_w - 1e-6


# --- when ---------------------------------------------------------------------------------------------------------


def risk(state: Any = "met", short: float = 0.0, long: float = 0.0) -> Risk:
    return Risk(state, short, long, f"e2e is {state}, {short:g} {long:g}")


@pytest.mark.parametrize(
    ("risks", "level", "said"),
    [
        ([risk()], Level.CALM, ""),
        ([], Level.CALM, "it is not judged yet"),
        ([risk(), risk("unknown")], Level.CALM, "e2e is unknown"),
        ([risk("at_risk", 3, 2)], Level.HOLD, "e2e is at_risk"),
        ([risk("met", 0.6, 0.1)], Level.CALM, "e2e is met, 0.6 0.1"),
        ([risk("met", 0.1, 0.5)], Level.CALM, "e2e is met, 0.1 0.5"),
        ([risk("met", 0.4, 0.4)], Level.CALM, ""),
        ([risk()], Level.HOLD, "batch beside it had to step aside"),
    ],
)
def test_calm_is_every_promise_kept_well_and_no_guard(risks: list[Risk], level: Level, said: str) -> None:
    found = why_not_calm(risks, level, 0.5)
    assert found.startswith(said) and bool(found) == bool(said)


def test_relapses_double_the_wait_up_to_an_hour_and_calm_forgives() -> None:
    patience, s = Patience(), 0.0

    def waits() -> float:
        """Seconds of calm until knobs may be down."""
        nonlocal s
        began = s
        while not patience.step(s, is_calm=True, is_tuned=False):
            s += 1.0
        return s - began

    found = []
    for _ in range(7):
        found.append(waits())
        s += 60.0
        assert not patience.step(s, is_calm=False, is_tuned=True)
        assert not patience.step(s + 1, is_calm=False, is_tuned=False), "what is not down does not fall back"
        s += 2.0
    assert found == [300, 300, 600, 1200, 2400, 3600, MOST_CALM_S]
    assert waits() == 3600
    s += 3600.0
    assert patience.step(s, is_calm=True, is_tuned=True) and patience.wait_s == 300
    assert not patience.step(s + 1, is_calm=False, is_tuned=True)
    s += 2.0
    assert waits() == 300


def test_a_moment_that_is_not_calm_begins_the_wait_anew() -> None:
    patience = Patience(10.0)
    assert not patience.step(0.0, is_calm=True, is_tuned=False)
    assert not patience.step(9.0, is_calm=False, is_tuned=False)
    assert not patience.step(10.0, is_calm=True, is_tuned=False)
    assert not patience.step(5.0, is_calm=True, is_tuned=False), "a clock that was set back"
    assert patience.step(20.0, is_calm=True, is_tuned=False)


def test_replicas_go_up_at_once_and_down_after_a_while_to_the_most_that_was_needed_meanwhile() -> None:
    replicas = Replicas(1, 8, 600.0)
    assert replicas.step(0.0, 2.0) == 8
    assert replicas.step(300.0, 3.2) == 8
    assert replicas.step(599.0, 0.0) == 8
    assert replicas.step(600.0, 0.5) == 4
    assert replicas.step(601.0, 4.5) == 5
    assert [replicas.step(at, 0.0) for at in (700.0, 1299.0, 1300.0)] == [5, 5, 1]
    replicas.full()
    assert replicas.step(1301.0, 0.0) == 8 and replicas.step(1302.0, 99.0) == 8


@given(st.lists(st.tuples(st.floats(0, 300), st.floats(0, 12)), max_size=40))
def test_replicas_are_never_fewer_than_needed_within_bounds(steps: list[tuple[float, float]]) -> None:
    replicas, s = Replicas(2, 6, 200.0), 0.0
    for gap, needed in steps:
        s += gap
        assert max(2, min(6, needed)) <= replicas.step(s, needed) <= 6
