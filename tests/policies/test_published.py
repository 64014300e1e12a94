"""The published policies against small cases worked out by hand and against a minute-by-minute reference."""

from dataclasses import replace
from datetime import datetime, timedelta
from math import exp, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.policy import Knows
from policies.published import (
    CapQuota,
    CarbonTime,
    Ecovisor,
    LowestSlot,
    LowestWindow,
    RunNow,
    WaitAwhile,
    lambert_w,
    thresholds_met,
)
from policies.single_site import SingleSite
from policies.world import JobState, JobView, Pausable, Placement, RegionView, Settings, World
from tests.policies.worlds import NOW, job, region, series

HOUR = 3600.0
#: What papers know: no slack, no launch.
BARE = Settings(default_region="a", runtime_slack=0.0, deadline_margin_s=0.0, launch_s=0.0, min_chunk_s=0.0)
ALL: list[type[SingleSite]] = [RunNow, LowestSlot, LowestWindow, CarbonTime, WaitAwhile, Ecovisor]
Values = list[float | None]


def hours(*values: float | None) -> Values:
    return list(values)


def site(carbon: Values | None, prices: Values | None = None, name: str = "a", **more: Any) -> RegionView:
    view = region(name, None, gpus=None, **more)
    return replace(
        view,
        carbon=None if carbon is None else series(carbon, "gCO2e/kWh", slot_s=3600),
        price=None if prices is None else series(prices, slot_s=3600),
    )


def world(*views: RegionView, now: datetime = NOW, **more: Any) -> World:
    return World(now, (), views, settings=replace(BARE, **more))


def flexible(length_h: float, wait_h: float | None, at: datetime = NOW, **more: Any) -> JobView:
    due = None if wait_h is None else at + timedelta(hours=length_h + wait_h)
    made = job("j", deadline_at=due, runtime_s=length_h * HOUR, **more)
    return replace(made, submitted_at=at)


def place(policy: Any, one: JobView, picture: World) -> Placement:
    placements = policy.insert(picture, [one])
    assert list(placements) == ["j"]
    return placements["j"]  # type: ignore[no-any-return]


def offsets(placement: Placement, at: datetime = NOW) -> list[tuple[float, float]]:
    """Intervals in hours from ``at``."""
    return [((a - at).total_seconds() / HOUR, (b - at).total_seconds() / HOUR) for a, b in placement.intervals]


# --- by hand ----------------------------------------------------------------------------------------------------------

#: Hours 0..7; lowest slot 5, lowest two hours 3-5 (30 + 30) before 5-7 (20 + 90).
DAY = hours(100, 80, 60, 30, 30, 20, 90, 95)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RunNow(), [(0, 2)]),
        (LowestSlot(), [(5, 7)]),
        (LowestWindow(), [(4, 6)]),
        # saved per hour until its end: 3 h: (180-60)/5 = 24; 4 h: (180-50)/6 = 21.7; 2 h: (180-90)/4 = 22.5
        (CarbonTime(), [(3, 5)]),
        (WaitAwhile(), [(3, 4), (5, 6)]),
    ],
)
def test_one_job_of_two_hours_that_may_wait_six(policy: SingleSite, expected: list[tuple[float, float]]) -> None:
    placement = place(policy, flexible(2, 6, pausable=Pausable.CHECKPOINT), world(site(DAY)))
    assert offsets(placement) == expected
    assert placement.reason.startswith(policy.name) and placement.late_s == 0.0


def test_ecovisor_runs_below_the_30th_percentile_until_its_wait_is_spent() -> None:
    # 24 values 1..24 in a cycle: the 30th percentile is the 8th lowest, 8; below it are 1..7
    values = hours(*(float(1 + (7 * hour) % 24) for hour in range(24)))
    below = [hour for hour in range(24) if values[hour] is not None and values[hour] < 8]  # type: ignore[operator]
    assert len(below) == 7 and values[0] == 1.0
    placement = place(Ecovisor(), flexible(5, 6, pausable=Pausable.CHECKPOINT), world(site(values)))
    spans = offsets(placement)
    waited, expected, hour = 0, [], 0
    while waited < 6:
        if hour in below:
            expected.append(hour)
        else:
            waited += 1
        hour += 1
    assert [h for h in range(hour) if any(a <= h < b for a, b in spans)] == expected
    assert spans[-1][0] <= hour <= spans[-1][1] and spans[-1][1] >= hour + 5
    assert offsets(place(Ecovisor(), flexible(5, 6), world(site(values))))[0][0] == 0.0
    high = hours(100.0, *values[1:])
    first_below = next(h for h in range(24) if high[h] is not None and high[h] < 9)  # type: ignore[operator]
    assert offsets(place(Ecovisor(), flexible(5, 6), world(site(high)))) == [(first_below, first_below + 5)]
    assert offsets(place(Ecovisor(), flexible(5, 2), world(site(hours(*[9.0] * 24))))) == [(2, 7)], "nothing lies below itself"


def test_what_each_is_entitled_to_know() -> None:
    assert [policy.knows for policy in ALL] == [
        Knows.NOTHING, Knows.NOTHING, Knows.GROUP_MEAN, Knows.GROUP_MEAN, Knows.RUNTIME, Knows.NOTHING,
    ]  # fmt: skip
    assert [policy.title for policy in ALL if policy.replans] == ["ecovisor"]
    quota = CapQuota(WaitAwhile())
    assert (quota.name, quota.knows, quota.replans) == ("cap-quota/wait-awhile", Knows.RUNTIME, False)


def test_figures_of_a_placement() -> None:
    view = site(hours(100, 200, 50), hours(10, 20, 40), pue=1.5, fx=0.5)
    placement = place(RunNow(), flexible(2.5, 6), world(view, carbon_price=100.0))
    assert placement.energy_kwh == pytest.approx(1.0 * 2.5 * 1.5)
    assert placement.carbon_kg == pytest.approx((100 + 200 + 25) * 1.5 / 1000)
    assert placement.cost == pytest.approx((10 + 20 + 20) * 0.5 * 1.5 / 1000 + 0.4875 / 1000 * 100)
    later = place(LowestSlot(), flexible(1, 2), world(view))
    assert offsets(later) == [(2, 3)] and later.carbon_kg == pytest.approx(0.075) and later.cost == pytest.approx(0.03)
    assert later.run_now_cost == pytest.approx(0.0075)
    (now,) = later.alternatives
    assert (now.region, now.start_at) == ("a", NOW) and now.cost == pytest.approx(0.0075)
    assert place(RunNow(), flexible(1, 0), world(site(None, hours(10)))).carbon_kg is None
    assert place(RunNow(), flexible(1, 0), world(site(hours(10)))).cost is None
    assert place(RunNow(), flexible(1, 0), world(site(None, hours(10)), carbon_price=1.0)).cost is None
    assert place(RunNow(), flexible(2, 0), world(site(hours(10, None)))).carbon_kg is None


def test_carbon_alone_counts_unless_the_name_says_price() -> None:
    view = site(hours(9, 5, 7), hours(1, 9, 0))
    assert offsets(place(LowestSlot(), flexible(1, 2), world(view, price_weight=1.0))) == [(1, 2)]
    by_price = LowestSlot(by_price=True)
    assert by_price.name == "lowest-slot:price"
    assert offsets(place(by_price, flexible(1, 2), world(view))) == [(2, 3)]
    no_carbon = place(LowestSlot(), flexible(1, 2), world(site(None, hours(1, 9, 0))))
    assert offsets(no_carbon) == [(2, 3)] and "cheapest" in no_carbon.reason
    nothing = place(LowestSlot(), flexible(1, 2), world(site(None)))
    assert offsets(nothing) == [(0, 1)] and "neither carbon nor price is known" in nothing.reason
    assert nothing.cost is None and nothing.carbon_kg is None and nothing.energy_kwh == pytest.approx(1.0)


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("values", [hours(*[None] * 9), hours(*[nan] * 9), hours()])
def test_a_window_of_which_nothing_is_known_starts_at_once(policy: type[SingleSite], values: Values) -> None:
    placement = place(policy(), flexible(2, 6, pausable=Pausable.CHECKPOINT), world(site(values)))
    assert offsets(placement) == [(0, 2)]
    assert "starts at once" in placement.reason and placement.carbon_kg is None
    if policy is not RunNow:
        assert "known" in placement.reason


@pytest.mark.parametrize("gap", [None, nan])
def test_an_unknown_hour_is_never_taken_for_a_clean_one(gap: float | None) -> None:
    values = hours(50, 40, gap, 30, 45, 60, 60, 60)
    assert offsets(place(LowestSlot(), flexible(1, 4), world(site(values)))) == [(3, 4)]
    assert offsets(place(LowestWindow(), flexible(2, 4), world(site(values)))) == [(3, 5)]
    assert offsets(place(CarbonTime(), flexible(2, 4), world(site(values)))) == [(3, 5)]
    assert offsets(place(WaitAwhile(), flexible(3, 2, pausable=Pausable.CHECKPOINT), world(site(values)))) == [(1, 2), (3, 5)]
    unknown_now = hours(gap, 40, 30, 35)
    for policy in (LowestSlot(), LowestWindow(), CarbonTime(), WaitAwhile()):
        assert offsets(place(policy, flexible(1, 3), world(site(unknown_now)))) == [(2, 3)]
    # more work than known hours: the unknown ones are used last, the earliest first
    long = place(WaitAwhile(), flexible(3, 1, pausable=Pausable.CHECKPOINT), world(site(hours(gap, 40, gap, 35))))
    assert offsets(long) == [(0, 2), (3, 4)]


@pytest.mark.parametrize("policy", ALL)
def test_nothing_to_wait_for(policy: type[SingleSite]) -> None:
    no_wait = place(policy(), flexible(2, 0, pausable=Pausable.CHECKPOINT), world(site(DAY)))
    assert offsets(no_wait) == [(0, 2)] and no_wait.late_s == 0.0
    late = place(policy(), flexible(2, -1, pausable=Pausable.CHECKPOINT), world(site(DAY)))
    assert offsets(late) == [(0, 2)] and late.late_s == HOUR, "what cannot end in time starts at once, and is late"


@pytest.mark.parametrize("policy", ALL)
def test_a_job_of_no_length_still_has_a_start(policy: type[SingleSite]) -> None:
    placement = place(policy(), flexible(0, 6), world(site(hours(*reversed(range(24))))))
    assert placement.intervals[0][0] >= NOW and placement.intervals[0][1] > placement.intervals[0][0]
    assert placement.energy_kwh == 0.0 and placement.carbon_kg == 0.0 and placement.late_s == 0.0


@pytest.mark.parametrize("policy", ALL)
def test_a_job_longer_than_what_is_known_sees_the_last_day_repeated(policy: type[SingleSite]) -> None:
    values = hours(*(100.0 - hour for hour in range(12)), *(float(hour) for hour in range(12)))
    one = flexible(100, 24, pausable=Pausable.CHECKPOINT)
    short, long = world(site(values)), world(site(values * 8))
    assert place(policy(), one, short) == place(policy(), one, long)
    assert place(policy(), one, short).carbon_kg is not None


def test_a_series_shorter_than_a_day_leaves_the_rest_of_the_day_unknown() -> None:
    placement = place(LowestSlot(), flexible(1, 30), world(site(hours(9, 8))))
    assert offsets(placement) == [(1, 2)]
    assert place(RunNow(), flexible(3, 1), world(site(hours(9, 8)))).carbon_kg is None


def test_a_series_that_begins_later_is_unknown_until_then() -> None:
    view = replace(site(None), carbon=series(hours(5, 4, 6), start=NOW + timedelta(hours=2), slot_s=3600))
    assert offsets(place(LowestWindow(), flexible(1, 5), world(view))) == [(3, 4)]
    assert place(RunNow(), flexible(1, 5), world(view)).carbon_kg is None
    early = LowestWindow()
    at = NOW + timedelta(hours=2)
    assert offsets(place(early, flexible(1, 5, at=at), world(view, now=at)), at) == [(1, 2)]
    assert offsets(place(early, flexible(1, 5), world(view))) == [(3, 4)], "an earlier moment is asked about afterwards"


def test_the_middle_of_a_slot_is_where_candidates_begin() -> None:
    at = NOW + timedelta(minutes=30)
    one = flexible(1, 3, at=at)
    values = hours(9, 8, 2, 2, 9, 9)
    assert offsets(place(LowestSlot(), one, world(site(values), now=at)), at) == [(1.5, 2.5)], "slots begin on the hour"
    assert offsets(place(LowestWindow(), one, world(site(values), now=at)), at) == [(2, 3)], "windows an hour after another"
    assert offsets(place(WaitAwhile(), replace(one, flex=replace(one.flex, pausable=Pausable.CHECKPOINT)), world(site(values), now=at)), at) == [(1.5, 2.5)]  # fmt: skip  # noqa: E501


def test_ties_go_to_the_earliest_although_sums_round() -> None:
    values = hours(*[0.1 + 0.2] * 48)
    for policy in (LowestSlot(), LowestWindow(), CarbonTime(), WaitAwhile()):
        at = NOW + timedelta(minutes=7)
        one = flexible(3.3, 24, at=at, pausable=Pausable.CHECKPOINT)
        assert place(policy, one, world(site(values), now=at)).intervals[0][0] == at


def test_earliest_and_horizon_bound_the_candidates() -> None:
    one = flexible(1, 4, earliest_at=NOW + timedelta(hours=2))
    assert offsets(place(LowestSlot(), one, world(site(hours(1, 2, 9, 8, 7, 6))))) == [(4, 5)]
    assert offsets(place(RunNow(), one, world(site(DAY)))) == [(2, 3)]
    endless = flexible(1, None)
    assert offsets(place(LowestSlot(), endless, world(site(DAY), horizon_s=4 * 3600))) == [(3, 4)]
    assert place(LowestSlot(), endless, world(site(DAY))).late_s == 0.0
    slack = world(site(DAY), runtime_slack=0.5, deadline_margin_s=900.0, launch_s=900.0)
    assert offsets(place(LowestSlot(), flexible(1, 6), slack)) == [(5, 6)], "5 h are left, exactly"


def test_owners_ceilings_are_kept_while_there_is_time() -> None:
    view = site(hours(9, 8, 7, 6, 5, 5), hours(10, 20, 90, 90, 90, 30))
    assert offsets(place(LowestSlot(), flexible(1, 5, max_price=25.0), world(view))) == [(1, 2)]
    assert offsets(place(LowestWindow(), flexible(2, 4, max_price=25.0), world(view))) == [(0, 2)]
    assert offsets(place(LowestSlot(), flexible(1, 4, max_price=5.0), world(view))) == [(4, 5)]
    assert "ceiling" in place(LowestSlot(), flexible(1, 4, max_price=5.0), world(view)).reason
    assert offsets(place(LowestSlot(), flexible(1, 4, max_carbon=5.0), world(site(None, hours(1, 2))))) == [(4, 5)]


def test_a_run_time_that_is_no_number_is_named() -> None:
    with pytest.raises(ValueError, match=r"job j: remaining_s is nan"):
        place(RunNow(), flexible(1, 6, remaining_s=nan), world(site(DAY)))


# --- regions ----------------------------------------------------------------------------------------------------------


def test_a_job_stays_at_home() -> None:
    a, b, c = site(hours(9, 9)), site(hours(1, 1), name="b"), site(hours(1, 1), name="c")
    policy = LowestWindow()
    assert place(policy, flexible(1, 1), world(b, a, c)).region == "a"
    assert place(policy, flexible(1, 1, regions=("b", "c")), world(a, b, c)).region == "b"
    assert place(policy, flexible(1, 1), world(replace(a, reachable=False), b, c)).region == "b"
    assert place(policy, flexible(1, 1, gpus=4.0), world(replace(a, gpus=2.0), b, c)).region == "b"
    paused = flexible(1, 1, state=JobState.PAUSED, region="c", attempt=1)
    assert place(policy, paused, world(a, b, c)).region == "c"
    assert policy.insert(world(replace(a, reachable=False)), [flexible(1, 1)]) == {}


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ALL)
def test_a_plan_keeps_places_and_fills_in_others(policy: type[SingleSite]) -> None:
    made = policy()
    picture = world(site(DAY), site(DAY, name="b"))
    jobs = (
        flexible(2, 6, pausable=Pausable.CHECKPOINT),
        replace(flexible(2, 6), id="k"),
        replace(flexible(2, 6), id="held", held=True),
        replace(flexible(2, 6, flexible=False), id="fixed"),
        replace(flexible(2, 6, regions=("mars",)), id="lost"),
    )
    first = made.plan(replace(picture, jobs=jobs))
    assert set(first.placements) == {"j", "k"} and set(first.unplaced) == {"lost"}
    assert first.unplaced["lost"].startswith("waits")
    again = made.plan(replace(picture, jobs=jobs[:2], plan=first))
    assert again.placements == first.placements
    gone = replace(picture, regions=(replace(picture.regions[0], reachable=False), picture.regions[1]))
    assert {p.region for p in made.plan(replace(gone, jobs=jobs[:2], plan=first)).placements.values()} == {"b"}
    after = NOW + timedelta(days=3)
    over = made.plan(replace(picture, now=after, jobs=jobs[:2], plan=first))
    assert all(p.intervals[0][0] == after and p.late_s > 0 for p in over.placements.values()), "its time passed in vain"


def test_a_job_that_found_no_room_goes_first_thing() -> None:
    policy, picture = LowestWindow(), world(site(DAY))
    one = flexible(2, 6)
    first = policy.plan(replace(picture, jobs=(one,)))
    now = NOW + timedelta(hours=5)
    second = policy.plan(replace(picture, now=now, jobs=(one,), plan=first))
    assert offsets(second.placements["j"], now) == [(0, 2)]
    third = policy.plan(replace(picture, now=now + timedelta(minutes=50), jobs=(one,), plan=second))
    assert third.placements["j"].late_s == 0.0
    assert (
        policy.plan(replace(picture, now=NOW + timedelta(hours=6.5), jobs=(one,), plan=second)).placements["j"].late_s == 1800
    )


def test_ecovisor_decides_anew_when_the_forecast_was_wrong() -> None:
    policy = Ecovisor()
    values = hours(*[100.0] * 3, *[10.0] * 8, *[100.0] * 20)
    one = flexible(4, 6, pausable=Pausable.CHECKPOINT)
    first = policy.plan(replace(world(site(values)), jobs=(one,)))
    assert offsets(first.placements["j"])[0][0] == 6, "nothing is below the 30th percentile, which is the lowest value"
    policy = Ecovisor()
    values = hours(*[100.0] * 3, *[10.0] * 4, *[20.0] * 4, *[100.0] * 20)
    first = policy.plan(replace(world(site(values)), jobs=(one,)))
    assert offsets(first.placements["j"])[0] == (3, 7)
    at = NOW + timedelta(hours=3)
    wrong = replace(site(values), carbon=series(hours(*[100.0] * 5, 10, 10, *[100.0] * 24), slot_s=3600))
    second = policy.plan(replace(world(wrong, now=at), jobs=(one,), plan=first))
    spans = offsets(second.placements["j"])
    assert spans[0] == (5, 7) and spans[-1][0] == 8, "3 h waited, 2 more until 5, the last hour after 7"
    at = NOW + timedelta(hours=6)
    running = replace(one, state=JobState.RUNNING, region="a", run_started_at=NOW + timedelta(hours=5), attempt=1)
    third = policy.plan(replace(world(wrong, now=at), jobs=(running,), plan=second))
    assert third.placements == second.placements
    at = NOW + timedelta(hours=9)
    fourth = policy.plan(replace(world(wrong, now=at), jobs=(running,), plan=third))
    assert fourth.placements == third.placements, "its wait is spent: it runs through whatever the signal says"
    policy.forget(["j", "never-seen"])
    assert policy.plan(replace(world(wrong, now=at), jobs=(running,), plan=third)).placements == third.placements


# --- against a reference ----------------------------------------------------------------------------------------------


def reference(name: str, values: list[float], at_min: int, length_min: int, wait_min: int) -> list[int]:
    """Minutes (from the series' start) in which a policy runs a job, found by looking at every minute."""
    minute = [values[i // 60] for i in range(len(values) * 60)]
    while len(minute) < at_min + 2 * length_min + 2 * wait_min + 3000:
        minute += minute[-1440:]

    def total(start: int) -> float:
        return sum(minute[start : start + length_min])

    starts = range(at_min, at_min + wait_min + 1, 60)
    if name == "lowest-slot":
        begin = min(range(at_min, at_min + wait_min + 1), key=lambda s: (minute[s], s))
    elif name == "lowest-window":
        begin = min(starts, key=lambda s: (round(total(s), 6), s))
    elif name == "carbon-time":
        begin = max(starts, key=lambda s: (round((total(at_min) - total(s)) / (s - at_min + length_min), 9), -s))
    elif name == "wait-awhile":
        window = range(at_min, at_min + length_min + wait_min)
        return sorted(sorted(window, key=lambda s: (minute[s], s))[:length_min])
    else:
        threshold = sorted(minute[at_min : at_min + 1440])[432]
        ran: list[int] = []
        waited, now = 0, at_min
        while len(ran) < length_min:
            if minute[now] < threshold or waited >= wait_min:
                ran.append(now)
            else:
                waited += 1
            now += 1
        return ran
    return list(range(begin, begin + length_min))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([LowestSlot, LowestWindow, CarbonTime, WaitAwhile, Ecovisor]),
    st.lists(st.integers(0, 12), min_size=24, max_size=60),
    st.integers(0, 600),
    st.integers(1, 2000),
    st.integers(0, 1500),
)
def test_every_minute_as_the_reference_has_it(
    policy: type[SingleSite], values: list[int], at_min: int, length_min: int, wait_min: int
) -> None:
    at = NOW + timedelta(minutes=at_min)
    one = flexible(length_min / 60, wait_min / 60, at=at, pausable=Pausable.CHECKPOINT)
    one = replace(
        one, flex=replace(one.flex, deadline_at=at + timedelta(minutes=length_min + wait_min)), remaining_s=length_min * 60.0
    )
    placement = place(policy(), one, world(site([float(value) for value in values]), now=at))
    found = [
        m for a, b in placement.intervals
        for m in range(round((a - NOW).total_seconds() / 60), round((b - NOW).total_seconds() / 60))
    ][:length_min]  # fmt: skip
    expected = reference(policy.title, [float(value) for value in values], at_min, length_min, wait_min)
    assert found == expected
    repeated = [float(values[i // 60]) for i in range(len(values) * 60)]
    while len(repeated) <= expected[-1]:
        repeated += repeated[-1440:]
    assert placement.carbon_kg == pytest.approx(sum(repeated[m] for m in expected) / 60 / 1000, abs=1e-9)
    assert placement.late_s == 0.0


# --- the quota --------------------------------------------------------------------------------------------------------


def test_lambert_w() -> None:
    for x in (-1 / exp(1), -0.3678, -0.36, -0.3, -0.2, -0.1, -1e-6, 0.0):
        w = lambert_w(x)
        assert -1.0 <= w <= 0.0 and w * exp(w) == pytest.approx(x, abs=1e-12)
    with pytest.raises(ValueError, match="lambert_w"):
        lambert_w(0.1)


@pytest.mark.parametrize("count", [1, 7, 80, 1000])
@pytest.mark.parametrize(("low", "high"), [(100.0, 500.0), (400.0, 410.0), (1.0, 900.0), (50.0, 50.0)])
def test_the_thresholds_fall_from_high_to_low(count: int, low: float, high: float) -> None:
    share = 1 + lambert_w((low / high - 1) / exp(1))
    thetas = [high * (1 - (1 - share) * (1 + share / count) ** (i - 1)) for i in range(1, count + 1)]
    assert thetas == sorted(thetas, reverse=True) and thetas[-1] >= low * (1 - 1e-9)
    for signal in (
        low,
        (low + high) / 2,
        high,
        thetas[0],
        thetas[count // 2],
        thetas[-1],
        *([high * 1.5] if high > low else []),
    ):
        met = thresholds_met(signal, low, high, count)
        assert met == sum(theta >= signal * (1 - 1e-9) for theta in thetas)
    assert thresholds_met(low, low, high, count) == count
    assert thresholds_met(nan, low, high, count) == 0


def test_the_quota_follows_the_signal_and_never_falls_below_the_floor() -> None:
    quota = CapQuota(RunNow())
    assert quota.name == "cap-quota"
    values = hours(500, 300, 100, None, 250)
    view = replace(site(values), gpus=10.0)
    found = [quota.gate(view, NOW + timedelta(hours=hour)) for hour in range(5)]
    assert found[0] == 2.0 and found[2] == 10.0 and found[3] == 2.0, "dirtiest: the floor; cleanest: all; unknown: the floor"
    assert found[1] is not None and found[4] is not None and 2.0 <= found[1] <= found[4] <= 10.0
    assert quota.gate(replace(view, gpus=None), NOW) is None
    assert quota.gate(replace(view, carbon=None), NOW) is None
    assert quota.gate(replace(view, carbon=series([None] * 4, slot_s=3600)), NOW) is None
    assert quota.gate(replace(site(hours(50, 50)), gpus=10.0), NOW) == 10.0, "a level signal is no reason to wait"
    assert CapQuota(RunNow(), floor=0.0).gate(view, NOW) == 0.0
    free = replace(site(None, hours(-5, -1)), gpus=10.0)
    assert quota.gate(free, NOW) == 10.0, "power that is never worth anything"
    with pytest.raises(ValueError, match="floor"):
        CapQuota(RunNow(), floor=1.5)


def test_the_quota_leaves_the_rest_to_the_policy_inside() -> None:
    inner, quota = LowestWindow(), CapQuota(LowestWindow())
    picture, one = world(site(DAY)), flexible(2, 6)
    assert quota.insert(picture, [one]) == inner.insert(picture, [one])
    assert quota.plan(replace(picture, jobs=(one,))) == inner.plan(replace(picture, jobs=(one,)))
    quota.forget(["j"])
    twice = CapQuota(CapQuota(RunNow(), floor=0.5), floor=0.1)
    view = replace(site(hours(500, 100)), gpus=10.0)
    assert twice.gate(view, NOW) == 1.0 and CapQuota(CapQuota(RunNow(), floor=0.1), floor=0.5).gate(view, NOW) == 1.0
