"""GPUs kept for serving, from the demand that was seen."""

import csv
import gzip
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from policies import one_by_one
from policies.planner import plan
from policies.serving_headroom import (
    Declared,
    Recent,
    Seen,
    demand_quantile,
    headroom,
    kept_free,
    near,
    sentence_of,
    why_kept,
    why_nowhere,
)
from policies.world import RegionView, Reserved
from tests.helpers import data_dir
from tests.policies.worlds import NOW as DAWN
from tests.policies.worlds import flex, job, region, world

NOW = datetime(2026, 3, 31, tzinfo=UTC)  # a Tuesday
QUARTER, MINUTE, DAY = timedelta(minutes=15), timedelta(minutes=1), timedelta(days=1)
SLOTS = [(NOW + i * QUARTER, NOW + (i + 1) * QUARTER) for i in range(96)]
CHAT = Declared("chat", floor_gpus=1, most_gpus=6, floor_w=0.0, watts_per_gpu=700.0)


def quarter(start: datetime, mean: float, highest: float | None = None) -> Seen:
    return Seen(start, start + QUARTER, mean, mean if highest is None else highest)


def steady(days: int, demand: Callable[[datetime], float]) -> list[Seen]:
    """Quarter hours without bursts, up to NOW."""
    return [quarter(at, demand(at)) for i in range(1, days * 96 + 1) for at in [NOW - i * QUARTER]]


# --- demand -----------------------------------------------------------------------------------------------------------


def test_unknown_is_not_zero_and_one_day_tells_nothing_of_the_next() -> None:
    assert demand_quantile([], NOW, SLOTS[:2]) == [None, None]
    assert demand_quantile(steady(1, lambda at: 1.0), NOW, SLOTS) == [None] * 96
    assert demand_quantile(steady(2, lambda at: 1.0), NOW, SLOTS) == [1.0] * 96


def test_a_time_of_day_that_was_not_seen_stays_unknown() -> None:
    history = [one for one in steady(14, lambda at: 2.0) if one.start.hour != 3]
    seen = demand_quantile(history, NOW, SLOTS)
    assert [n for n, one in enumerate(seen) if one is None] == [12, 13, 14, 15]
    # a slot of an hour that holds an unknown quarter hour is not known either, and the dearest quarter hour of one counts
    hours = [(NOW + n * timedelta(hours=1), NOW + (n + 1) * timedelta(hours=1)) for n in range(5)]
    peaky = steady(14, lambda at: 9.0 if (at.hour, at.minute) == (1, 30) else 2.0)
    assert demand_quantile(history, NOW, hours)[3] is None
    assert demand_quantile(peaky, NOW, hours)[:3] == [2.0, 9.0, 2.0]


def test_the_day_of_the_week_counts_once_it_was_seen_twice() -> None:
    def tuesdays(at: datetime) -> float:
        return 4.0 if at.weekday() == 1 and at.hour == 18 else 1.0

    seen = demand_quantile(steady(28, tuesdays), NOW, SLOTS)
    assert (seen[72], seen[0]) == (4.0, 1.0)
    early = demand_quantile(steady(8, tuesdays), NOW, SLOTS)  # one Tuesday: by time of day
    assert early[72] is not None and early[72] < 4.0


def test_local_time_counts_where_a_zone_is_given() -> None:
    berlin = timedelta(hours=2)  # summer time since 29 March, an hour less before
    history = steady(21, lambda at: 5.0 if (at + berlin - timedelta(hours=1)).hour == 9 else 1.0)
    history = [one for one in history if one.start < datetime(2026, 3, 29, tzinfo=UTC)]
    seen = demand_quantile(history, NOW, SLOTS, zone="Europe/Berlin")
    assert [n for n, one in enumerate(seen) if one == 5.0] == [28, 29, 30, 31], "nine o'clock in Berlin is now 7 in UTC"


def test_nothing_later_than_now_is_looked_at() -> None:
    known = steady(14, lambda at: 1.0)
    later = [quarter(NOW - MINUTE, 9.0), *(quarter(NOW + n * QUARTER, 9.0) for n in range(400))]
    assert demand_quantile([*known, *later], NOW, SLOTS) == demand_quantile(known, NOW, SLOTS)


def coverage(history: list[Seen], now: datetime, days: int = 7, quantile: float = 0.95) -> float:
    """The share of quarter hours after ``now`` in which even the highest reading was within what had been kept at ``now``."""
    later = {one.start: one.highest for one in history if now <= one.start < now + days * DAY}
    slots = [(at, at + QUARTER) for at in sorted(later)]
    expected = demand_quantile(history, now, slots, quantile=quantile)
    assert len(slots) == days * 96 and None not in expected
    return sum(later[start] <= (kept or 0.0) for (start, _), kept in zip(slots, expected, strict=True)) / len(slots)


def noisy(seed: int, days: int) -> list[Seen]:
    """Readings each 5 min around a curve of days and weeks, from day 0 on."""
    rng, made = random.Random(seed), []
    for i in range(days * 96):
        at = NOW + i * QUARTER
        level = 10 + 5 * math.sin(at.hour / 24 * 2 * math.pi) - (3 if at.weekday() > 4 else 0)
        values = [max(0.0, rng.gauss(level, 1.5)) for _ in range(3)]
        made.append(quarter(at, sum(values) / 3, max(values)))
    return made


@pytest.mark.parametrize("known_days", [2, 7, 14, 28])
def test_held_out_days_are_covered_as_often_as_is_said(known_days: int) -> None:
    found = [coverage(noisy(seed, known_days + 7), NOW + known_days * DAY) for seed in range(5)]
    print(f"{known_days} days known, 7 held out: {[round(one, 3) for one in found]}")
    assert min(found) >= 0.92
    if known_days == 28:
        assert max(found) <= 0.98, "no more is kept than is asked for"
        assert coverage(noisy(1, 35), NOW + 28 * DAY, quantile=0.8) < min(found) - 0.05, "a lower quantile keeps less"


@pytest.mark.parametrize("trace", ["code", "conv"])
def test_held_out_days_of_a_real_trace_are_covered(trace: str) -> None:
    """A trace of 1 h has no week: five weeks are made of it, the fifth of them out of sample.

    Requests are dealt in turn to two halves, one for the four weeks seen, one for the fifth. Demand each 5 min is as many
    requests as a minute of the half had, each with the generated tokens of any of its requests, along a daily curve, over
    what one GPU makes in a minute (6000 tokens).
    """
    path = data_dir() / "serving" / f"AzureLLMInferenceTrace_{trace}.csv.gz"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    with gzip.open(path, "rt") as f:
        requests = [(row["TIMESTAMP"][:16], int(row["GeneratedTokens"])) for row in csv.DictReader(f)]
    rng = random.Random(7)

    def demand(half: list[tuple[str, int]], at: datetime) -> float:
        tokens = sum(rng.choice(half)[1] for _ in range(rng.choice(counts[id(half)])))
        return (1 + 0.5 * math.sin(at.hour / 24 * 2 * math.pi)) * tokens / 6000

    seen, unseen = requests[0::2], requests[1::2]
    counts = {id(half): list(Counter(minute for minute, _ in half).values()) for half in (seen, unseen)}
    history = []
    for i in range(-28 * 96, 7 * 96):
        at = NOW + i * QUARTER
        values = [demand(seen if i < 0 else unseen, at) for _ in range(3)]
        history.append(quarter(at, sum(values) / 3, max(values)))
    found = coverage(history, NOW)
    print(f"{trace}: {found:.3f} of 7 held-out days")
    assert 0.90 <= found <= 0.99


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_whole_gpus_by_demand_in_one_piece_where_slots_are_alike() -> None:
    made = headroom(CHAT, SLOTS[:4], [2.4, 2.2, 0.4, 9.0], Recent(0.5), 2)
    assert [(one.start, one.end, one.gpus, one.power_w) for one in made] == [
        (SLOTS[0][0], SLOTS[1][1], 3, 2100.0),
        (SLOTS[2][0], SLOTS[2][1], 1, 700.0),
        (SLOTS[3][0], SLOTS[3][1], 6, 4200.0),
    ]
    site = region("a", None)
    assert [sentence_of(site, one) for one in made] == [
        "Tue 00:00-00:30: 3 of 8 GPUs kept free for serving chat (p95 of demand at this hour 2.4 GPUs)",
        "Tue 00:30-00:45: 1 of 8 GPUs kept free for serving chat (its floor; p95 of demand at this hour 0.4 GPUs)",
        "Tue 00:45-01:00: 6 of 8 GPUs kept free for serving chat (all that it may have; p95 of demand at this hour 9.0 GPUs)",
    ]
    assert "3 of 8 GPUs and 2,100 W kept free" in sentence_of(replace(site, power_limit_w=9000.0), made[0])
    over_night = replace(made[0], end=SLOTS[0][0] + DAY)
    assert sentence_of(site, over_night).startswith("Tue 00:00-Wed 00:00: 3 of 8")


def test_a_burst_is_kept_for_this_slot_and_shortly_before_the_next_for_that_too() -> None:
    early, late = SLOTS[0][0] + MINUTE, SLOTS[0][0] + 11 * MINUTE
    assert [near(SLOTS, at, Recent(3.3)) for at in (early, late)] == [1, 2]
    assert [near(SLOTS, at, Recent(None)) for at in (early, late)] == [2, 2] and near(SLOTS, late, None) == 0
    made = headroom(CHAT, SLOTS[:4], [2.0] * 4, Recent(3.3), 2)
    assert [(one.gpus, one.end) for one in made] == [(4, SLOTS[1][1]), (2, SLOTS[3][1])]
    assert "(3.3 GPUs needed in the last 5 min)" in made[0].reason


def test_all_that_it_may_have_is_kept_where_its_demand_is_not_known() -> None:
    (made,) = headroom(CHAT, SLOTS[:2], [None, None], Recent(0.0), 2)
    assert made.gpus == 6 and "too little is known of its demand at this hour: all that it may have" in made.reason
    silent, then = headroom(CHAT, SLOTS[:4], [2.0] * 4, Recent(None, NOW), 2)
    assert (silent.gpus, silent.end, then.gpus) == (6, SLOTS[1][1], 2)
    assert "its metrics could not be read since 00:00Z: all that it may have" in silent.reason
    (only,) = headroom(CHAT, SLOTS[:2], [2.0] * 2, Recent(None), 2)
    assert "could not be read yet" in only.reason
    (starting,) = headroom(CHAT, SLOTS[:2], [2.0] * 2, None, 0)
    assert starting.gpus == 2, "just begun: no time yet to read anything"


def test_floors_in_gpus_and_watts_without_demand() -> None:
    fixed = Declared("chat", floor_gpus=2, most_gpus=2, floor_w=3000.0, watts_per_gpu=700.0, is_read=False)
    (made,) = headroom(fixed, SLOTS[:3], [None] * 3, None, 0)
    assert (made.gpus, made.power_w, made.reason) == (2, 3000.0, "kept free for serving chat (its floor)")
    (watts,) = headroom(replace(fixed, floor_gpus=0, most_gpus=0), SLOTS[:3], [None] * 3, None, 0)
    assert (watts.gpus, watts.power_w) == (0, 3000.0)
    assert sentence_of(region("a", None), watts) == "Tue 00:00-00:45: 3,000 W kept free for serving chat (its floor)"
    assert headroom(replace(fixed, floor_gpus=0, most_gpus=0, floor_w=0.0), SLOTS[:3], [None] * 3, None, 0) == ()


def test_a_time_that_passes_a_day_is_told_with_its_date() -> None:
    site, hour = region("a", None), timedelta(hours=1)

    def told(begins: timedelta, ends: timedelta, until: timedelta) -> str:
        kept = Reserved(NOW + begins, NOW + ends, 3, 0.0)
        return sentence_of(site, kept, NOW, NOW + until).split(": ")[0]

    assert told(hour, DAY, 2 * DAY) == "Tue 01:00-Wed 00:00"
    assert told(hour, 9 * DAY, 14 * DAY) == "Tue 01:00Z until 2026-04-09 00:00Z"
    assert told(hour, 14 * DAY, 14 * DAY) == "Tue 01:00Z on" == told(hour, 14 * DAY, 2 * DAY)
    assert told(8 * DAY, 8 * DAY + hour, 14 * DAY) == "2026-04-08 00:00Z until 2026-04-08 01:00Z"
    picture = world([], [region("a", None, reserved=(Reserved(DAWN, DAWN + 14 * DAY, 3, 0.0, "kept free for serving chat"),))])
    (one,) = kept_free(picture, DAWN + 2 * DAY)
    assert one.sentence == "Tue 06:00Z on: 3 of 8 GPUs kept free for serving chat"


def hours(*gpus: float, whom: str = "serving chat", watts: float = 0.0) -> tuple[Reserved, ...]:
    at = [DAWN + timedelta(hours=n) for n in range(len(gpus) + 1)]
    return tuple(Reserved(at[n], at[n + 1], one, one * watts, whom=whom) for n, one in enumerate(gpus))


@pytest.mark.parametrize(
    ("kept", "more", "said"),
    [
        (hours(3, 3), {}, "3 of 4 GPUs in a are kept free for serving chat as far as plans look ahead"),
        (hours(3, 1, 0), {}, "3 of 4 GPUs in a are kept free for serving chat until 2026-02-03 07:00Z"),
        (
            hours(0, 3, 4, 0),
            {},
            "3 or more of 4 GPUs in a are kept free for serving chat from 2026-02-03 07:00Z until 2026-02-03 09:00Z",
        ),
        # an hour between is too short for it, two are not
        (
            hours(3, 0, 3, 0, 0),
            {"runtime_s": 5400.0},
            "3 of 4 GPUs in a are kept free for serving chat until 2026-02-03 09:00Z",
        ),
        (
            hours(3, 0, 0, 3, 0),
            {"runtime_s": 5400.0},
            "3 of 4 GPUs in a are kept free for serving chat until 2026-02-03 07:00Z",
        ),
        (
            hours(2, 0) + hours(1, 0, whom="serving bot"),
            {},
            "3 of 4 GPUs in a are kept free for serving chat and serving bot until 2026-02-03 07:00Z",
        ),
        (
            hours(1, 0, watts=1500.0),
            {"power_w": 1000.0},
            "1,500 W of 2,000 W in a are kept free for serving chat until 2026-02-03 07:00Z",
        ),
        (hours(2, 2), {}, None),
        ((), {}, None),
    ],
)
def test_what_is_kept_is_told_where_a_job_has_no_room_beside_it(
    kept: tuple[Reserved, ...], more: dict[str, float], said: str | None
) -> None:
    view = region("a", None, gpus=4.0, reserved=kept, power_limit_w=2000.0)
    wishes = flex(**{"gpus": 2.0, "power_w": 0.0, **more})
    assert why_kept(wishes, view, DAWN) == said
    other = "every slot is taken beside what is kept free for serving chat" if kept else "every slot is taken"
    assert why_nowhere(wishes, [view], DAWN) == (said or other)


def test_no_place_and_a_late_one_because_of_serving_say_so() -> None:
    kept = tuple(replace(one, end=one.end + 30 * DAY) for one in hours(3))
    never = job("never", gpus=4.0, deadline_at=DAWN + timedelta(hours=3))
    told = "3 of 4 GPUs in a are kept free for serving chat"
    for make in (plan, one_by_one.plan):
        made = make(world([never], [region("a", [50.0] * 96, gpus=4.0, reserved=kept)]))
        assert made.unplaced == {"never": f"no region can take it: {told} as far as plans look ahead"}
        made = make(world([never], [region("a", [50.0] * 96, gpus=4.0, reserved=hours(3, 3, 3, 0))]))
        late = made.placements["never"]
        assert late.late_s > 0 and late.intervals[0][0] == DAWN + timedelta(hours=3)
        assert "cannot end by its deadline any more" in late.reason and late.reason.endswith(
            f"; {told} until 2026-02-03 09:00Z"
        )


# --- plans ------------------------------------------------------------------------------------------------------------


def day(gpus_by_hour: Callable[[int], int], watts_per_gpu: float = 0.0) -> tuple[Reserved, ...]:
    hours = [(DAWN + timedelta(hours=n), DAWN + timedelta(hours=n + 1)) for n in range(48)]
    declared = Declared("chat", floor_gpus=0, most_gpus=8, floor_w=0.0, watts_per_gpu=watts_per_gpu)
    return headroom(declared, hours, [float(gpus_by_hour(start.hour)) for start, _ in hours], None, 0)


def used(view: RegionView, placements: list[tuple[datetime, datetime, float]], at: datetime) -> float:
    kept = sum(one.gpus for one in view.reserved if one.start <= at < one.end)
    return kept + sum(gpus for start, end, gpus in placements if start <= at < end)


def test_batch_fills_the_trough_and_never_takes_what_is_kept() -> None:
    """Power is cheapest at noon, when serving needs all but one GPU; at night it needs one."""
    prices: list[float | None] = [10.0 if 10 <= (6 + n // 4) % 24 < 14 else 80.0 for n in range(192)]
    busy = region("a", prices, reserved=day(lambda hour: 7 if 8 <= hour < 22 else 1))
    free = replace(busy, reserved=())
    jobs = [job(f"j{n}", gpus=4.0, deadline_at=DAWN + timedelta(hours=30), runtime_s=7200.0) for n in range(3)]
    jobs.append(job("small", gpus=1.0, deadline_at=DAWN + timedelta(hours=30), runtime_s=7200.0))
    unkept, made = plan(world(jobs, [free])), plan(world(jobs, [busy]))
    assert all(10 <= one.intervals[0][0].hour < 14 for one in unkept.placements.values()), "else nothing is moved"
    assert len(made.placements) == 4 and not any(one.late_s for one in made.placements.values())
    for n in range(3):
        start = made.placements[f"j{n}"].intervals[0][0]
        assert start.hour >= 22 or start.hour <= 6, start
    assert made.placements["small"].intervals[0][0].hour in (10, 11, 12), "what fits beside serving takes the cheap hours"
    runs = [(s, e, one.flex.gpus) for one in jobs for s, e in made.placements[one.id].intervals]
    assert all(used(busy, runs, start) <= 8 for start, _, _ in runs)
    assert all(used(busy, runs, one.start) <= 8 for one in busy.reserved)
    told = kept_free(world(jobs, [busy]), made.horizon_end)
    assert [(one.gpus, one.start.hour) for one in told[:3]] == [(1, 6), (7, 8), (1, 22)]
    assert told[1].sentence == ("Tue 08:00-22:00: 7 of 8 GPUs kept free for serving chat (p95 of demand at this hour 7.0 GPUs)")


def test_watts_that_are_kept_come_off_a_power_limit() -> None:
    """8 GPUs are free of GPUs, but 3 kW of 5 belong to serving by day: a job of 3 kW waits for the night."""
    floor = Declared("chat", floor_gpus=0, most_gpus=0, floor_w=3000.0, watts_per_gpu=0.0, is_read=False)
    by_day = [(DAWN, DAWN + timedelta(hours=12))]
    kept = headroom(floor, by_day, [None], None, 0)
    view = region("a", [50.0] * 192, power_limit_w=5000.0, reserved=kept)
    heavy = job("heavy", power_w=3000.0, deadline_at=DAWN + timedelta(hours=20))
    assert plan(world([heavy], [replace(view, reserved=())])).placements["heavy"].intervals[0][0] < DAWN + timedelta(hours=12)
    assert plan(world([heavy], [view])).placements["heavy"].intervals[0][0] >= DAWN + timedelta(hours=12)
