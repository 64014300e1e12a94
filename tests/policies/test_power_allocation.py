import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.cap_model import GRID, Learned
from policies.power_allocation import TIER_LOSS, Allocation, Tree, Units, allocate, segments, speed_at

CURVES = Learned()
TIERS = tuple(TIER_LOSS)


def units(rows: list[dict[str, Any]]) -> Units:
    """Units of GPUs with a default limit of 700 W; each row may say leaf, gpus, draw (share), tier, min_cap, job, rank."""
    watts, speed, full, low = [], [], [], []
    for row in rows:
        curve = CURVES.curve(None, row.get("type", "H100"), row.get("draw", 0.9))
        full_w = 700.0 * curve.draw
        least = max(curve.least_cap(TIER_LOSS[row.get("tier", "flex-2")]), row.get("min_cap", 0.5))
        watts.append([700.0 * cap for cap in curve.caps])
        speed.append((*curve.speed, 1.0))
        full.append(full_w)
        low.append(full_w if row.get("tier") == "flex-0" else min(full_w, 700.0 * least))
    return Units(
        leaf=np.array([row.get("leaf", 0) for row in rows], dtype=np.int64),
        gpus=np.array([row.get("gpus", 1.0) for row in rows]),
        watts=np.array(watts).reshape(len(rows), len(GRID) + 1),
        speed=np.array(speed).reshape(len(rows), len(GRID) + 1),
        full_w=np.array(full),
        low_w=np.array(low),
        weight=np.array([row.get("weight", 1.0) for row in rows]),
        job=np.array([row.get("job", at) for at, row in enumerate(rows)], dtype=np.int64),
        pause_rank=np.array([row.get("rank", np.nan) for row in rows]),
    )


def tree(limits: list[float], parents: list[int] | None = None, fixed: list[float] | None = None, pue: float = 1.0) -> Tree:
    names = tuple(f"limit {at}" for at in range(len(limits)))
    return Tree(
        names,
        np.array(parents if parents is not None else [-1] + [0] * (len(limits) - 1), dtype=np.int64),
        np.array(limits),
        np.array(fixed if fixed is not None else [0.0] * len(limits)),
        pue,
    )


def drawn(found: Allocation, group: Units, power: Tree) -> list[float]:
    """W at the meter below each limit."""
    sums = np.array(power.fixed_w, dtype=float)
    np.add.at(sums, group.leaf, found.draw_w * group.gpus * power.pue)
    for at in range(len(sums) - 1, 0, -1):
        if power.parent[at] >= 0:
            sums[power.parent[at]] += sums[at]
    return [float(one) for one in sums]


def test_without_a_binding_limit_nothing_is_capped() -> None:
    group = units([{}, {"tier": "flex-3"}])
    found = allocate(group, tree([10_000.0]))
    assert not found.capped.any() and found.met
    assert found.throughput == pytest.approx(2.0) and TIER_LOSS["flex-0"] == 0.0


def test_a_limit_is_kept_exactly_and_serving_is_left_alone() -> None:
    group = units([{"tier": "flex-0"}, {"tier": "flex-2"}, {"tier": "flex-3"}])
    power = tree([2000.0], pue=1.2, fixed=[100.0])
    found = allocate(group, power)
    assert drawn(found, group, power)[0] == pytest.approx(2000.0, abs=1e-3)
    assert found.draw_w[0] == group.full_w[0] and not found.capped[0]
    assert found.capped[1:].all()


def test_equal_jobs_get_equal_caps() -> None:
    group = units([{}] * 7)
    found = allocate(group, tree([3600.0]))
    assert np.ptp(found.draw_w) < 1e-6 and found.capped.all()


def test_the_strictest_limit_of_the_tree_counts() -> None:
    group = units([{"leaf": 1, "tier": "flex-3"}] * 4 + [{"leaf": 2, "tier": "flex-3"}] * 4)
    power = tree([4500.0, 1800.0, 9000.0])
    found = allocate(group, power)
    site, one, other = drawn(found, group, power)
    assert one == pytest.approx(1800.0, abs=1e-3)
    # The other branch may draw all that the site has left.
    assert other == pytest.approx(min(4500.0 - 1800.0, 4 * float(group.full_w[4])), abs=1e-3) and site <= 4500.0 + 1e-3


def test_a_job_on_two_branches_runs_under_one_cap() -> None:
    group = units(
        [{"leaf": 1, "job": 0, "tier": "flex-3"}, {"leaf": 2, "job": 0, "tier": "flex-3"}, {"leaf": 2, "tier": "flex-3"}]
    )
    found = allocate(group, tree([2000.0, 400.0, 1100.0]))
    assert found.draw_w[0] == pytest.approx(400.0)
    assert found.draw_w[1] == pytest.approx(400.0, abs=0.1)
    assert found.draw_w[2] == pytest.approx(float(group.full_w[2]))  # what the slow job cannot use goes to the other


def test_what_caps_cannot_reach_is_said_with_the_jobs_that_would_pause() -> None:
    rows = [{"rank": 2.0, "tier": "flex-1"}, {"rank": 1.0, "tier": "flex-2"}, {"tier": "flex-0"}]
    group = units(rows)
    lowest = float(group.low_w.sum())
    found = allocate(group, tree([lowest - 100.0]))
    (short,) = found.shortfalls
    assert short.short_w == pytest.approx(100.0)
    assert short.pause == (1,) and short.missing_w == 0.0  # the least rank first, no more than needed
    assert np.allclose(found.draw_w, group.low_w)
    (worse,) = allocate(group, tree([10.0])).shortfalls
    assert worse.pause == (1, 0)
    assert worse.missing_w == pytest.approx(float(group.full_w[2]) - 10.0)


def test_a_pause_for_a_branch_counts_for_the_site() -> None:
    group = units([{"leaf": 1, "rank": 0.0}, {"leaf": 2, "rank": 0.0}])
    low = float(group.low_w[0])
    found = allocate(group, tree([1.5 * low, 0.5 * low, 9999.0]))
    assert [(one.name, one.pause) for one in found.shortfalls] == [("limit 1", (0,))]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"parent": np.array([0])}, r"parent\[0\]: 0 must be -1"),
        ({"limit_w": np.array([float("nan")])}, "limit_w must be 0 W or more"),
        ({"pue": 0.5}, "pue: 0.5 must be 1 or more"),
        ({"names": ("a", "b")}, "must be equally long"),
    ],
)
def test_a_tree_that_cannot_be_is_refused(change: dict[str, Any], words: str) -> None:
    made: dict[str, Any] = {
        "names": ("a",),
        "parent": np.array([-1]),
        "limit_w": np.array([1.0]),
        "fixed_w": np.array([0.0]),
        "pue": 1.0,
    }
    with pytest.raises(ValueError, match=words):
        Tree(**{**made, **change})


def test_units_that_cannot_be_are_refused() -> None:
    good = units([{}])
    with pytest.raises(ValueError, match="low_w must not be above full_w"):
        Units(**{**vars(good), "low_w": good.full_w + 1.0})
    with pytest.raises(ValueError, match="gpus: must be finite"):
        Units(**{**vars(good), "gpus": np.array([np.nan])})
    with pytest.raises(ValueError, match="watts must rise"):
        Units(**{**vars(good), "watts": good.watts[:, ::-1]})


# --- properties ---------------------------------------------------------------------------------------------------

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "leaf": st.integers(0, 5),
            "gpus": st.sampled_from([1.0, 2.0, 8.0]),
            "draw": st.sampled_from([0.3, 0.55, 0.7, 0.85, 0.92, 1.0]),
            "type": st.sampled_from(["H100", "V100", "A40"]),
            "tier": st.sampled_from(TIERS),
            "min_cap": st.sampled_from([0.5, 0.6, 0.9]),
            "weight": st.sampled_from([1.0, 1.0, 3.0]),
        }
    ),
    min_size=1,
    max_size=25,
)
#: A site, two branches and three nodes.
PARENTS = [-1, 0, 0, 1, 1, 2]
SHARES = st.lists(st.sampled_from([0.3, 0.5, 0.7, 0.9, 1.1]), min_size=6, max_size=6)


def a_tree(group: Units, shares: list[float], fixed_w: float = 0.0) -> Tree:
    power = tree([np.inf] * 6, PARENTS, [fixed_w] * 6, pue=1.3)
    full = drawn(Allocation(group.full_w, group.full_w < 0, group.full_w, 0.0, ()), group, power)
    return tree([max(1.0, share * w) for share, w in zip(shares, full, strict=True)], PARENTS, [fixed_w] * 6, pue=1.3)


@given(ROWS, SHARES, st.sampled_from([0.0, 50.0]))
@settings(max_examples=150, deadline=None)
def test_limits_are_never_broken_while_they_can_be_kept_and_tiers_always_hold(
    rows: list[dict[str, Any]], shares: list[float], fixed_w: float
) -> None:
    group = units(rows)
    power = a_tree(group, shares, fixed_w)
    found = allocate(group, power)
    told = {one.name: one.short_w for one in found.shortfalls}
    at_lowest = drawn(Allocation(group.low_w, group.low_w < 0, group.low_w, 0.0, ()), group, power)
    for at, total in enumerate(drawn(found, group, power)):
        if at_lowest[at] <= power.limit_w[at]:
            assert total <= power.limit_w[at] + 1e-3
        else:  # everything there is at its lowest cap, and it is said
            assert total == pytest.approx(at_lowest[at], rel=1e-6)
            assert power.names[at] in told or told
    assert np.all(found.draw_w >= group.low_w - 1e-6) and np.all(found.draw_w <= group.full_w + 1e-6)
    for at, row in enumerate(rows):
        assert found.speed[at] >= 1.0 - TIER_LOSS[row["tier"]] - 1e-6
        assert row["tier"] != "flex-0" or not found.capped[at]
        assert not found.capped[at] or found.draw_w[at] >= 700.0 * row["min_cap"] - 1e-6


@given(ROWS, SHARES, st.integers(0, 5), st.floats(0.0, 2000.0))
@settings(max_examples=150, deadline=None)
def test_more_watts_never_mean_less_throughput(
    rows: list[dict[str, Any]], shares: list[float], where: int, more_w: float
) -> None:
    group = units(rows)
    power = a_tree(group, shares)
    limits = power.limit_w.copy()
    limits[where] += more_w
    before = allocate(group, power).throughput
    assert allocate(group, tree(list(limits), PARENTS, pue=1.3)).throughput >= before - 1e-6


def optimum(group: Units, power: Tree) -> float:
    """The best weighted throughput as a linear programme says, beyond that at the lowest caps."""
    highspy = pytest.importorskip("highspy")
    width, gain = segments(group, group.full_w)
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    base = np.array(drawn(Allocation(group.low_w, group.low_w < 0, group.low_w, 0.0, ()), group, power))
    above = [[at] for at in range(len(power.parent))]
    for at, parent in enumerate(power.parent):
        if parent >= 0:
            above[at] = [at, *above[parent]]
    terms: list[list[Any]] = [[] for _ in power.parent]
    goal: list[Any] = []
    for u, k in zip(*np.nonzero(width > 0), strict=True):
        step = solver.addVariable(lb=0.0, ub=float(width[u, k] * group.gpus[u]))
        goal.append(float(gain[u, k]) * step)
        for at in above[int(group.leaf[u])]:
            terms[at].append(step)
    for at, parts in enumerate(terms):
        if parts and np.isfinite(power.limit_w[at]):
            solver.addConstr(sum(parts[1:], parts[0]) * power.pue <= float(max(power.limit_w[at] - base[at], 0.0)))
    if not goal:
        return 0.0
    solver.maximize(sum(goal[1:], goal[0]))
    return float(solver.getInfo().objective_function_value)


@given(ROWS, SHARES)
@settings(max_examples=40, deadline=None)
def test_it_is_as_good_as_a_linear_programme_says_it_can_be(rows: list[dict[str, Any]], shares: list[float]) -> None:
    group = units(rows)
    power = a_tree(group, shares)
    lowest = float(np.sum(group.weight * group.gpus * speed_at(group, group.low_w)))
    best = lowest + optimum(group, power)
    assert allocate(group, power).throughput == pytest.approx(best, rel=1e-3)


def test_ten_thousand_gpus_take_well_under_a_second() -> None:
    rng = np.random.default_rng(1)
    rows = [
        {"leaf": 1 + int(leaf), "draw": float(draw), "tier": TIERS[tier]}
        for leaf, draw, tier in zip(
            np.arange(10_000) % 100, rng.uniform(0.5, 1.0, 10_000).round(2), rng.integers(0, 4, 10_000), strict=True
        )
    ]
    group = units(rows)
    power = tree([4.5e6, *([50_000.0] * 100)])
    started = time.process_time()
    found = allocate(group, power)
    assert time.process_time() - started < 1.0
    short = {one.name for one in found.shortfalls}
    kept = [
        w for name, w in zip(power.names, drawn(found, group, power), strict=True) if name not in short and name != "limit 0"
    ]
    assert len(kept) > 50 and max(kept) <= 50_000.0 + 1e-3
    assert np.array_equal(found.draw_w, allocate(group, power).draw_w)
