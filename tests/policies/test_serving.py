"""Burn rates of serving's objectives and the level that batch is asked for."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.serving import Batch, Guard, Level, Objective, Reading, Risk, SloWatch

P95 = Objective("chat ttft", 0.95, 0.5)
FULL = Batch(4, 4, 4, 4)
State = Literal["met", "at_risk", "unknown"]


def risk(state: State) -> Risk:
    return Risk(state, 3.0, 2.0, f"chat is {state}: burn 3.0")


def watched(*readings: tuple[float, float, float]) -> SloWatch:
    watch = SloWatch(P95)
    for at_s, good, total in readings:
        watch.add(Reading(at_s, good, total))
    return watch


@pytest.mark.parametrize(
    ("readings", "state"),
    [
        ([(0, 0, 0), (1, 99, 100)], "met"),
        ([(0, 0, 0), (1, 80, 100)], "at_risk"),
        ([(0, 0, 0), (1, 0, 1)], "met"),  # one bad request says nothing
        ([(0, 0, 0), (1, 0, 2)], "at_risk"),
        ([(0, 500, 500), (1, 500, 500)], "met"),
        ([(0, 500, 900), (1, 100, 100)], "met"),  # a restart counts from zero
        ([(0, 500, 900), (1, 10, 100)], "at_risk"),
        ([(0, 500, 900), (1, 400, 950)], "met"),  # only the good ones went backwards
        ([(0, 0, 0), (2, 100, 100), (1, 0, 50), (2, 0, 200)], "met"),  # late and repeated
        ([(0, 0, 0), (50, 5000, 5000), (51, 5000, 5004)], "met"),  # the long window does not burn
        ([(0, 0, 0), (1, 0, 100), (100, 9900, 10000)], "met"),
    ],
)
def test_state(readings: list[tuple[float, float, float]], state: str) -> None:
    watch = watched(*readings)
    assert watch.risk(readings[-1][0]).state == state


def test_figures_and_silence() -> None:
    watch = watched((0, 0, 0), (1, 80, 100))
    told = watch.risk(1)
    assert (told.short_burn, told.long_burn) == pytest.approx((4.0, 4.0))
    assert "p95 within 0.5, burning 4.0 times" in told.sentence
    watch.missing(5, "connection refused")
    assert watch.risk(11).state == "at_risk"
    assert watch.risk(12).sentence == "chat ttft is unknown: nothing heard for 11 s: connection refused"
    assert SloWatch(P95).risk(0).state == "unknown"
    assert "no requests" in watched((0, 5, 5)).risk(0).sentence


def test_gauge() -> None:
    watch = SloWatch(Objective("queue", None, 10))
    watch.add(Reading(0, value=11))
    assert watch.risk(0).state == "met"
    watch.add(Reading(1, value=12))
    assert watch.risk(1).state == "at_risk"
    watch.add(Reading(2, value=10))
    assert watch.risk(2).state == "met"


@given(st.lists(st.tuples(*[st.floats(allow_nan=True, allow_infinity=True)] * 3)))
def test_any_readings(readings: list[tuple[float, float, float]]) -> None:
    assert watched(*readings).risk(0.0).state in ("met", "at_risk", "unknown")


def test_memory_is_bounded() -> None:
    watch = watched(*((i / 1000, i, i) for i in range(100_000)))
    assert len(watch._spans) < 1500


def levels(guard: Guard, start: int, states: list[State], batch: Batch = FULL) -> list[int]:
    return [int(guard.step(start + i, [risk(state)], batch).level) for i, state in enumerate(states)]


def test_up_and_down() -> None:
    guard = Guard("hold", "run")
    assert levels(guard, 0, ["at_risk"] * 5) == [1, 2, 3, 4, 4]
    down = levels(guard, 5, ["met"] * 70)
    assert [down.index(n) for n in (3, 2, 1, 0)] == [30, 40, 50, 60]


def test_skips_what_batch_cannot_give() -> None:
    assert levels(Guard("hold", "run"), 0, ["at_risk"] * 4, Batch(2, 0, 2, 0)) == [1, 3, 3, 3]


@pytest.mark.parametrize(("stance", "top"), [("hold", 1), ("cap", 2), ("pause", 4)])
def test_unknown(stance: Literal["hold", "cap", "pause"], top: int) -> None:
    guard = Guard(stance, "run")
    assert levels(guard, 0, ["unknown"] * 9)[-1] == top
    assert "unknown" in guard.step(9, [risk("unknown")], FULL).sentence


def test_flapping_doubles_calm() -> None:
    guard = Guard("hold", "run")
    levels(guard, 0, ["at_risk"] * 4)
    assert levels(guard, 4, ["met"] * 31)[-1] == 3
    assert levels(guard, 35, ["at_risk"])[-1] == 4
    again = levels(guard, 36, ["met"] * 61)
    assert again.index(3) == 60


def test_unmet_without_batch() -> None:
    none = Batch(0, 0, 0, 0)
    for stance, level in (("run", Level.CALM), ("wait", Level.HOLD)):
        guard = Guard("hold", stance)  # type: ignore[arg-type]
        levels(guard, 0, ["at_risk"] * 120, none)
        state = guard.step(120, [risk("at_risk")], none)
        assert (state.level, state.unmet_alone) == (level, True)
        assert "not met even without batch" in state.sentence
        levels(guard, 121, ["met"] * 31)
        assert not guard.step(152, [risk("met")], FULL).unmet_alone
        assert guard.step(153, [risk("at_risk")], FULL).level >= Level.HOLD


def test_ignored_checkpoints() -> None:
    guard = Guard("hold", "run")
    levels(guard, 0, ["at_risk"] * 63)
    assert "4 still running 60 s after" in guard.step(63, [risk("at_risk")], FULL).sentence


@given(st.lists(st.tuples(st.floats(0, 50), st.sampled_from(["met", "at_risk", "unknown"])), max_size=80))
def test_levels_move_as_defined(steps: list[tuple[float, State]]) -> None:
    guard, now, level, met_since = Guard("cap", "wait"), 0.0, 0, None
    for wait, state in steps:
        now += wait
        met_since = (now if met_since is None else met_since) if state == "met" else None
        after = int(guard.step(now, [risk(state)], FULL).level)
        assert abs(after - level) <= 1
        if after < level:
            assert met_since is not None and now - met_since >= 30
        level = after
