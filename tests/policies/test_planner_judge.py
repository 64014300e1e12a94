"""The solver's answers on small made-up problems, judged by code that shares nothing with it; and the judge itself."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from policies.problem import Answer
from policies.solver import solve
from tests.benchmarks import planner_instances as instances
from tests.benchmarks.planner_exact import key_of, prove, verify
from tests.benchmarks.planner_instances import Case, Shape, exact_shape, later, make, pick, scale_shape, whole_costs

TINY = Shape(12, 2, 24, 3600, (1.0, 5.0), 3, (1.0, 10.0), chunk_s=7200.0, again_s=0.0, whole=True)
QUARTERS = Shape(60, 3, 96, 900, (0.1, 8.0), 4, (1.0, 12.0), chunk_s=1800.0, again_s=60.0)


@pytest.fixture(autouse=True, scope="module")
def _made_up():
    """No test here depends on data that may not be there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(instances, "data_folder", lambda: None)
        instances.rates.cache_clear()
        instances.traces.cache_clear()
        yield
    instances.rates.cache_clear()
    instances.traces.cache_clear()


def planted(case: Case) -> Answer:
    """The hidden plan as an answer."""
    n = len(case.work)
    end_s = case.begin_s + case.work.run_s[np.arange(n), case.lane]
    cost = whole_costs(case.fleet, case.work, case.lane, case.begin_s)
    return Answer(case.lane, np.zeros(n, np.int64), np.arange(n + 1), case.begin_s.copy(), end_s, cost, -np.inf, 0)


# --- the cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [TINY, QUARTERS, exact_shape(40, 2), scale_shape(1000)], ids=["tiny", "quarters", "exact", "scale"]
)
@pytest.mark.parametrize("utilisation", [0.6, 0.95])
@pytest.mark.parametrize("tight", [False, True])
def test_the_hidden_plan_breaks_no_rule(shape, utilisation, tight):
    case = make(shape, utilisation, tight=tight, seed=1)
    assert verify(case.fleet, case.work, planted(case)) == []
    assert case.planted_cost == pytest.approx(planted(case).objective)
    assert np.isfinite(case.work.ready_s).any(axis=1).all()
    assert np.isfinite(case.fleet.region_w).all() == tight


def test_utilisation_is_what_was_asked_for():
    for utilisation in (0.6, 0.8, 0.95):
        case = make(scale_shape(3000), utilisation, tight=False, seed=2)
        used = (case.work.gpus * np.ceil(case.work.run_s[:, 0] / 900)).sum() / case.fleet.gpus.sum()
        assert used == pytest.approx(utilisation, abs=0.01)


def test_a_seed_is_a_case():
    one, same, other = (make(TINY, 0.8, tight=True, seed=seed) for seed in (3, 3, 4))
    assert key_of(one.fleet, one.work) == key_of(same.fleet, same.work) != key_of(other.fleet, other.work)


# --- the checker --------------------------------------------------------------------------------------------------------


def test_the_checker_names_what_is_wrong():
    case = make(QUARTERS, 0.8, tight=True, seed=5)
    good, n = planted(case), 60
    assert verify(case.fleet, case.work, good) == []

    def wrong(work=case.work, fleet=case.fleet, **change):
        return " ".join(verify(fleet, work, replace(good, **change)))

    assert "costs" in wrong(cost=good.cost * 1.001)
    assert "must by" in wrong(begin_s=good.begin_s + 86400.0, end_s=good.end_s + 86400.0)
    assert "ready at" in wrong(work=replace(case.work, ready_s=case.work.ready_s + 86400.0))
    assert "may not use" in wrong(work=replace(case.work, ready_s=np.full((n, 3), np.inf)))
    assert "needs" in wrong(end_s=good.end_s - 30.0)
    assert "GPUs" in wrong(fleet=replace(case.fleet, gpus=case.fleet.gpus * 0.5))
    assert "W in a region" in wrong(fleet=replace(case.fleet, region_w=case.fleet.region_w * 0.5))
    assert "W in a lane" in wrong(fleet=replace(case.fleet, lane_w=np.ones_like(case.fleet.lane_w)))
    assert "places" in wrong(fleet=replace(case.fleet, starts=np.ones_like(case.fleet.starts)))
    assert "GPUs of a team" in wrong(work=replace(case.work, team_gpus=np.ones_like(case.work.team_gpus)))
    assert "closed" in wrong(fleet=replace(case.fleet, masks=np.ones_like(case.fleet.masks)))
    assert "unserved costs" in wrong(lane=np.where(np.arange(n) == 0, -1, good.lane))
    assert "nowhere, yet it runs" in wrong(lane=np.where(np.arange(n) == 0, -1, good.lane))
    assert "does not accept" not in wrong()


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([(0, 3600), (7200, 10800)], ""),
        ([(0, 1800), (7200, 12600)], "between pauses"),
        ([(0, 5400), (7200, 9000)], "between pauses"),
        ([(0, 3600), (7200, 10830)], "needs 7200"),
        ([(0, 5000), (4000, 6200)], "overlap"),
        ([(3600, 10800)], ""),
    ],
)
def test_the_checker_knows_pauses(runs, words):
    case = make(TINY, 0.8, tight=False, seed=1)
    work = replace(
        pick(case.work, np.array([0])),
        pausable=np.array([True]), chunk_s=np.array([3600.0]), run_s=np.full((1, 2), 7200.0), ready_s=np.zeros((1, 2)),
        last_s=np.array([86400.0]), gpus=np.array([1.0]), fixed=np.zeros((1, 2)),
    )  # fmt: skip
    begin, end = np.array(runs, dtype=float).T
    hours = np.interp(end, case.fleet.edges_s, np.concatenate(([0.0], np.cumsum(case.fleet.rate[0])))) - np.interp(
        begin, case.fleet.edges_s, np.concatenate(([0.0], np.cumsum(case.fleet.rate[0])))
    )
    cost = work.power_w * hours.sum() / 1000.0
    answer = Answer(np.array([0]), np.array([0]), np.array([0, len(runs)]), begin, end, cost, 0.0, 0)
    found = verify(replace(case.fleet, gpus=np.ones((2, 24))), work, answer)
    assert found == [] if not words else words in " ".join(found)


def test_the_checker_knows_what_runs_already():
    case = make(TINY, 0.8, tight=False, seed=1)
    work = replace(
        pick(case.work, np.array([0])),
        pausable=np.array([True]), chunk_s=np.array([3600.0]), again_s=np.array([60.0]), run_s=np.full((1, 2), 7200.0),
        ready_s=np.zeros((1, 2)), last_s=np.array([86400.0]), gpus=np.array([1.0]), fixed=np.zeros((1, 2)), here=np.array([0]),
    )  # fmt: skip
    fleet = replace(case.fleet, gpus=np.ones((2, 24)), rate=np.ones((2, 24)))

    def found(*runs):
        begin, end = np.array(runs, dtype=float).T
        cost = work.power_w * (end - begin).sum() / 3.6e6
        answer = Answer(np.array([0]), np.array([0]), np.array([0, len(runs)]), begin, end, cost, 0.0, 0)
        return " ".join(verify(fleet, work, answer))

    assert found((0, 7200)) == ""
    assert found((0, 900), (7200, 7200 + 6360)) == ""  # it may have run before, so the first run may be short
    assert found((3600, 3600 + 7260)) == ""  # paused at once and resumed
    assert "needs 7260" in found((3600, 3600 + 7200))
    assert "between pauses" in found((0, 3600), (7200, 7200 + 3000), (14400, 14400 + 720))


# --- the exact model ----------------------------------------------------------------------------------------------------


def test_the_exact_model_finds_what_trying_everything_finds():
    pytest.importorskip("highspy")
    for seed in range(4):
        case = make(replace(TINY, jobs=3, regions=2, slots=10, length_h=(1.0, 4.0)), 0.8, tight=seed % 2 == 1, seed=seed)
        proof, answer = prove("tiny", case.fleet, case.work, case.lane, case.begin_s)
        assert verify(case.fleet, case.work, answer) == []
        assert proof.primal == pytest.approx(_by_trying(case), abs=1e-6)
        assert proof.bound <= proof.primal + 1e-6


def _by_trying(case: Case) -> float:
    fleet, work = case.fleet, case.work
    ways = [list(_ways(case, j)) for j in range(len(work))]
    best = np.inf
    for chosen in product(*ways):
        cost = sum(way[0] for way in chosen)
        if cost < best:
            gpus, watts = np.zeros(fleet.gpus.shape), np.zeros(fleet.gpus.shape)
            for j, (_, lane, slots) in enumerate(chosen):
                gpus[lane, slots] += work.gpus[j]
                watts[lane, slots] += work.power_w[j] * fleet.pue[lane]
            if (gpus <= fleet.gpus + 1e-9).all() and (watts <= fleet.region_w + 1e-9).all():
                best = cost
    return best


def _ways(case: Case, j: int):
    work, t = case.work, case.shape.slots
    yield float(work.unserved_cost[j]), 0, []
    for lane in np.flatnonzero(np.isfinite(work.ready_s[j])):
        first, last, needed = (round(v / 3600) for v in (work.ready_s[j, lane], work.last_s[j], work.run_s[j, lane]))
        for bits in product((0, 1), repeat=last - first):
            if sum(bits) != needed:
                continue
            text = "".join(map(str, bits)).split("0")
            runs = [len(run) for run in text if run]
            if len(runs) > 1 and (not work.pausable[j] or min(runs) < 2):
                continue
            slots = [first + i for i, bit in enumerate(bits) if bit]
            assert max(slots) < t
            yield float(work.power_w[j] / 1000 * case.fleet.rate[lane, slots].sum() + work.fixed[j, lane]), lane, slots


# --- the solver ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("utilisation", [0.6, 0.8, 0.95])
@pytest.mark.parametrize("tight", [False, True])
def test_answers_keep_the_rules_and_the_bound(utilisation, tight):
    solver = pytest.importorskip("policies.solver")
    for seed in range(3):
        case = make(QUARTERS, utilisation, tight=tight, seed=seed)
        for answer in (solver.first(case.fleet, case.work), solver.solve(case.fleet, case.work)):
            assert verify(case.fleet, case.work, answer) == []
            assert answer.bound <= answer.objective + 1e-9
            assert answer.bound <= case.planted_cost + 1e-9


def test_answers_come_close_to_the_best_there_is():
    pytest.importorskip("highspy")
    solver = pytest.importorskip("policies.solver")
    above = []
    for seed in range(10):
        case = make(TINY, (0.6, 0.8, 0.95)[seed % 3], tight=seed % 2 == 1, seed=seed)
        proof, _ = prove("tiny", case.fleet, case.work, case.lane, case.begin_s)
        answer = solver.solve(case.fleet, case.work)
        assert verify(case.fleet, case.work, answer) == []
        assert answer.bound <= proof.primal + 1e-6
        above.append((answer.objective - proof.primal) / abs(proof.primal))
    assert np.median(above) <= 0.01
    assert max(above) <= 0.10


def test_an_hour_on_the_plan_still_keeps_the_rules():
    solver = pytest.importorskip("policies.solver")
    case = make(QUARTERS, 0.8, tight=True, seed=9)
    jobs = 55
    before = solver.solve(case.fleet, pick(case.work, np.arange(jobs)))
    fleet, work, kept = later(case, before, jobs, 8)
    assert set(range(jobs, 60)) <= set(kept.tolist())
    assert (fleet.gpus >= 0).all() and len(work) == len(kept) < 60
    answer = solver.solve(fleet, work)
    assert verify(fleet, work, answer) == []
    assert answer.bound <= answer.objective + 1e-9


def test_where_power_costs_nothing_the_bound_is_nothing_too() -> None:
    case = make(replace(scale_shape(40), regions=2, slots=192), 0.8, tight=False, seed=3)
    free = replace(case.fleet, rate=np.zeros_like(case.fleet.rate))
    work = replace(case.work, fixed=np.zeros_like(case.work.fixed))
    answer = solve(free, work)
    assert (answer.lane >= 0).all() and answer.objective == 0.0
    assert answer.bound <= 1e-9


def test_where_there_is_room_for_all_the_bound_counts_resumes():
    case = make(replace(scale_shape(60), regions=2, slots=192, again_s=900.0), 0.8, tight=False, seed=1)
    roomy = replace(case.fleet, gpus=np.full_like(case.fleet.gpus, np.inf))
    answer = solve(roomy, case.work)
    cheapest = solve(roomy, replace(case.work, again_s=np.zeros(len(case.work))))
    assert cheapest.bound < answer.bound <= answer.objective
    assert answer.gap < 0.01
