"""What a site was expected to draw without an event: hand-computed, kept once, from pictures that know nothing of the event."""

import csv
import io
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher import before_events
from dispatcher.before_events import (
    NO_BRANCHES,
    NO_LOOK,
    NO_PLAN,
    NO_WORK,
    BeforeEvents,
    Run,
    expected,
    first_notice,
    means,
    measured_beside,
)
from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.errors import StoreUnavailable
from dispatcher.loops import Loop
from dispatcher.simulation import Simulation
from dispatcher.store import Attempt, BeforeEvent, GridEvent, GridEventChange, GridStep, Job, Request
from dispatcher.store.memory import MemoryStore
from policies.flexibility import parse_flexibility
from policies.world import (
    Budget,
    CapPoint,
    Flexibility,
    GpuPool,
    JobState,
    JobView,
    Placement,
    Plan,
    RegionView,
    Settings,
    World,
)
from tests.api.test_event_report import PROGRAMME, Site, cut, site_of
from tests.api.test_event_report import at as hour

NOW = datetime(2026, 6, 23, 12, 0, 30, tzinfo=UTC)
#: The slot that NOW lies in.
SLOT0 = datetime(2026, 6, 23, 12, tzinfo=UTC)
NOTICE = NOW + timedelta(seconds=0.4)
_FLEX, _VIEW = set(Flexibility.__slots__), set(JobView.__slots__)


def at(minutes: float) -> datetime:
    return SLOT0 + timedelta(minutes=minutes)


def job(name: str, state: JobState = JobState.RUNNING, power_w: float = 1000.0, **more: Any) -> JobView:
    flex: dict[str, Any] = {
        "flexible": True,
        "deadline_at": None,
        "earliest_at": None,
        "runtime_s": 3600.0,
        "runtime_given": True,
        "gpus": 1.0,
        "power_w": power_w,
        **{key: value for key, value in more.items() if key in _FLEX},
    }
    view: dict[str, Any] = {"remaining_s": 3600.0, **{key: value for key, value in more.items() if key in _VIEW}}
    if state is JobState.RUNNING:
        view = {"region": "eu", "run_started_at": at(-15), **view}
    submitted_at = view.pop("submitted_at", at(-15))
    return JobView(name, state, at(-15), submitted_at, Flexibility(**flex), **view)


def region(**more: Any) -> RegionView:
    given: dict[str, Any] = {"reachable": True, "gpus": 8.0, "max_jobs": None, "power_limit_w": None, "pue": 1.0}
    return RegionView("eu", price=None, carbon=None, **{**given, **more})


def plan(made_at: datetime = SLOT0, horizon_h: float = 48, **spans: tuple[float, float]) -> Plan:
    """Jobs with the minutes over which they would run."""
    placements = {
        name: Placement(name, "eu", ((at(start), at(end)),), None, 1.0, None, 0.0, "cheapest")
        for name, (start, end) in spans.items()
    }
    return Plan(made_at, made_at + timedelta(hours=horizon_h), 900, placements, {}, 0.0)


def world(*jobs: JobView, made: Plan | None = None, here: RegionView | None = None, **more: Any) -> World:
    return World(NOW, jobs, (here or region(),), settings=Settings(default_region="eu"), plan=made, **more)


def event(start: float = 60, end: float | None = 120, limit_w: float = 500.0, **more: Any) -> GridEvent:
    last = None if end is None else at(end)
    return GridEvent("grid", "e1", 1, "eu", at(start), last, limit_w, NOTICE, **more)


def made(picture: World | None, measured_w: float | None = None, asked: GridEvent | None = None) -> BeforeEvent:
    return expected(asked or event(), NOTICE, picture, measured_w, NOW)


# --- from a picture to figures ----------------------------------------------------------------------------------------


def test_planned_and_running_work_in_the_plans_slots() -> None:
    pools = (GpuPool("H100", 8.0, draw=1.2),)
    here = region(pue=1.5, pools=pools, caps=(CapPoint(0.7, 0.75, 0.9),))
    standing = plan(waits=(30, 97.5), other=(30, 90))
    capped = replace(standing.placements["waits"], cap=0.7, gpu_type="H100")
    elsewhere = replace(standing.placements["other"], region="us")
    standing = replace(standing, placements={"waits": capped, "other": elsewhere})
    kept = made(
        world(
            job("runs", flexible=False, power_w=2000.0, remaining_s=75 * 60),
            job("waits", JobState.QUEUED),
            job("other", JobState.QUEUED),
            made=standing,
            here=here,
        )
    )
    # Two kW run until an hour after NOW's slot began; 1 kW at a cap of 0.7 and on faster GPUs from 12:30 to 13:37:30; PUE 1.5.
    full, half = 1.5 * 1000 * 0.75 * 1.2, 0.5
    assert kept.plan_w is not None
    assert kept.plan_w[:8] == pytest.approx((3000, 3000, 3000 + full, 3000 + full, full, full, full * half, 0))
    assert (kept.start, kept.slot_s, kept.jobs, kept.plan_why) == (SLOT0, 900, 2, "")
    assert len(kept.plan_w) == 20, "until three hours after the event's end"
    assert (kept.looked_at, kept.plan_made_at, kept.notice_at) == (NOW, at(0), NOTICE)


def test_what_is_measured_beside_the_jobs_counts_throughout() -> None:
    picture = world(job("runs", flexible=False), made=plan())
    kept = made(picture, measured_w=1400.0)
    assert (kept.other_w, kept.job_share) == (400.0, 1.0) and kept.plan_w is not None
    assert (kept.plan_w[0], kept.plan_w[-1]) == (1400.0, 400.0) and kept.notes == ()
    unmeasured = made(picture)
    assert unmeasured.other_w is None and unmeasured.plan_w is not None and unmeasured.plan_w[-1] == 0.0
    assert unmeasured.notes == ("of what no job draws nothing is in it: the site's draw was not measured when notice came",)


def test_jobs_that_draw_less_than_is_stated_are_not_believed() -> None:
    kept = made(world(job("runs", flexible=False), job("new", JobState.QUEUED), made=plan(new=(60, 120))), measured_w=800.0)
    assert (kept.job_share, kept.other_w) == (0.8, 0.0) and kept.plan_w is not None
    assert kept.plan_w[0] == 800.0 and kept.plan_w[4] == 800.0
    assert any("80% of the draw that is stated" in note for note in kept.notes)


def test_jobs_that_have_only_just_begun_say_nothing_of_how_much_is_drawn() -> None:
    began, settled = job("new", run_started_at=NOW - timedelta(seconds=20)), job("old")
    assert measured_beside(world(began), region(), 10.0) == (1.0, 0.0)
    assert measured_beside(world(began, settled), region(), 1500.0) == (1.0, 0.0), "one of them may not draw yet"
    assert measured_beside(world(began, settled), region(), 500.0) == (0.5, 0.0)


def test_without_shifting_each_job_runs_from_its_arrival() -> None:
    jobs = (
        job("waits", JobState.QUEUED, submitted_at=at(-30), runtime_s=7200.0),
        job("late", JobState.QUEUED, earliest_at=at(45), runtime_s=900.0),
        job("done", JobState.QUEUED, submitted_at=at(-300)),
        job("held", JobState.QUEUED, held=True),
        job("fixed", flexible=False, remaining_s=15 * 60 + 30 * 60),
    )
    kept = made(world(*jobs, made=plan()))
    assert kept.unshifted_why == "" and kept.unshifted_w is not None
    # waits until 13:30; late from 12:45 to 13:00; the one of five hours ago would be over; fixed runs on until 12:30
    assert kept.unshifted_w[:8] == pytest.approx((2000, 2000, 1000, 2000, 1000, 1000, 0, 0))


@pytest.mark.parametrize(
    ("here", "more", "said"),
    [
        (
            {"gpus": 1.0},
            {"regions": ("eu",)},
            "would need 2 GPUs at once, and there are 1; which of them would have waited is not known",
        ),
        ({"power_limit_w": 1500.0}, {"regions": ("eu",)}, r"would draw 2,000 W at once, and the site may draw 1,500 W"),
        ({}, {"regions": ("eu", "us")}, "where 2 jobs would have run at once is not known"),
    ],
)
def test_where_it_cannot_be_told_what_would_have_run_nothing_is_invented(
    here: dict[str, Any], more: dict[str, Any], said: str
) -> None:
    jobs = [job(name, JobState.QUEUED, **more) for name in ("a", "b")]
    regions = (region(**here), replace(region(), name="us"))
    picture = replace(world(*jobs, made=plan(a=(60, 90))), regions=regions, settings=Settings(default_region=None))
    kept = made(picture)
    assert kept.unshifted_w is None and kept.plan_w is not None
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(kept.unshifted_why)


def test_jobs_from_after_the_notice_are_in_neither() -> None:
    came = job("came", JobState.QUEUED, submitted_at=NOTICE + timedelta(seconds=1))
    kept = made(world(came, made=plan(came=(30, 90))))
    assert kept.jobs == 0 and kept.plan_w == (0.0,) * 20 and kept.unshifted_w == (0.0,) * 20


def test_what_is_less_than_sure_is_noted() -> None:
    over = job("over", remaining_s=60.0, flexible=False)
    waits = job("waits", JobState.QUEUED, power_w=3000.0)
    kept = made(world(over, waits, made=plan(), here=region(reachable=False)), measured_w=1000.0)
    assert kept.notes == (
        "the region's cluster did not answer then: what ran there is as it was last known",
        "not in it: 1 job without a place in the plan, which would draw 3,000 W",
        "counted as over: 1 job that had run for longer than expected, with 1,000 W",
    )


@pytest.mark.parametrize(
    ("picture", "asked", "why"),
    [
        (None, event(), NO_LOOK),
        (world(job("runs")), event(), NO_PLAN),
        (world(job("runs", flexible=False)), event(), NO_WORK),
        (world(), event(), NO_WORK),
        (world(made=plan()), event(branch="rack-1"), NO_BRANCHES),
        (world(made=plan(NOTICE + timedelta(seconds=1))), event(), "was made at 2026-06-23 12:00:31 UTC, after notice"),
    ],
)
def test_where_no_plan_stood_before_the_notice_it_says_why(picture: World | None, asked: GridEvent, why: str) -> None:
    kept = made(picture, 700.0, asked)
    assert kept.plan_w is None and why in kept.plan_why


def test_nothing_is_said_beyond_the_plans_horizon_and_an_open_event_reaches_to_it() -> None:
    picture = world(job("runs", flexible=False), made=plan(horizon_h=2))
    for asked in (event(60, None), event(60, 600)):
        kept = made(picture, asked=asked)
        assert kept.plan_w is not None and kept.unshifted_w is not None
        assert len(kept.plan_w) == len(kept.unshifted_w) == 8
    old = made(world(made=plan(at(-300), horizon_h=2)))
    assert old.plan_w is None and "reached only to 2026-06-23 09:00 UTC" in old.plan_why and old.unshifted_w is None


run_lists = st.lists(
    st.builds(
        lambda start, length, watts: Run(at(start), at(start + length), watts, 1.0),
        st.floats(-100, 200),
        st.floats(0, 200),
        st.floats(0, 1e6),
    ),
    max_size=8,
)


@given(run_lists, st.floats(0, 14.9), st.integers(1, 12))
def test_slots_hold_the_energy_of_the_runs(runs: list[Run], since: float, slots: int) -> None:
    watts = means(runs, SLOT0, 900, slots, at(since), 1.0, 0.0)
    end = at(15 * slots)
    joules = 0.0
    for run in runs:
        begin, stop = max(run.start, at(since)), min(run.end, end)
        joules += run.power_w * max(0.0, (stop - begin).total_seconds())
    held = watts[0] * (900 - since * 60) + sum(watts[1:]) * 900
    assert held == pytest.approx(joules, rel=1e-6, abs=900 * slots * 1e-3)
    assert min(watts) >= -1e-3


def test_the_notice_is_the_first_version_that_limits_something() -> None:
    step = (GridStep(at(60), at(120), 500.0),)
    lines = [
        GridEventChange("grid", "e1", at(1), 1, "accepted", "a price", steps=()),
        GridEventChange("grid", "e1", at(2), 1, "ignored", "a duplicate"),
        GridEventChange("grid", "e1", at(3), 2, "changed", "", steps=step),
        GridEventChange("grid", "e1", at(4), 3, "changed", "", steps=step),
    ]
    assert first_notice(event(), lines) == at(3)
    assert first_notice(event(), []) == NOTICE


# --- keeping it --------------------------------------------------------------------------------------------------------

CONFIG = Config.model_validate({"region": [{"name": "eu", "address": "http://a", "gpus": 8}]})


class Keeper:
    """A store with an event, and who keeps what was expected without it."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.asked: list[datetime] = []
        self.before = BeforeEvents(CONFIG, self.store, self._measured)

    def _measured(self, region: str, branch: str | None, at: datetime) -> float | None:
        self.asked.append(at)
        return 1400.0

    def take(self, one: GridEvent) -> Budget:
        assert self.store.save_grid_event(one, None).result() == "accepted"
        return Budget("eu", one.start, one.end, 500.0, one.event_id, "", "" if one.source == "api" else one.source)


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_the_picture_before_the_one_that_first_has_the_limit_is_kept_and_no_later_one(keeper: Keeper) -> None:
    before = world(job("runs", flexible=False), made=plan())
    budget = keeper.take(event())
    after = replace(world(made=plan(at(5))), now=NOW + timedelta(seconds=1), budgets=(budget,))
    keeper.before.look(None, before)
    keeper.before.look(before, after)
    keeper.before.keep(after.now)
    kept = keeper.store.before_event("grid", "e1")
    assert kept is not None and kept.plan_made_at == at(0) and kept.plan_w is not None and kept.plan_w[0] == 1400.0
    assert keeper.asked == [NOW], "what was drawn at the look before the notice"
    # The second version, a restart with nothing at hand, another step of it: what was kept first stays.
    assert keeper.store.save_grid_event(replace(event(), version=2), None).result() == "accepted"
    again = BeforeEvents(CONFIG, keeper.store, lambda *_: None)
    again.look(None, replace(after, budgets=(replace(budget, event_id="e1 from 2026-06-23T13:00:00.000000Z"),)))
    again.keep(after.now)
    assert keeper.store.before_event("grid", "e1") == kept


def test_two_events_at_once_each_have_the_picture_before_their_own(keeper: Keeper) -> None:
    """One that was there when the control plane started has none; the next one does."""
    first, second = event(), replace(event(), source="api", event_id="e2")
    budget = keeper.take(first)
    start = replace(world(made=plan()), budgets=(budget,))
    keeper.before.look(None, start)
    other = keeper.take(second)
    keeper.before.look(start, replace(start, budgets=(budget, other)))
    keeper.before.keep(NOW)
    one, two = keeper.store.before_event("grid", "e1"), keeper.store.before_event("api", "e2")
    assert one is not None and one.plan_w is None and one.plan_why == NO_LOOK
    assert two is not None and two.plan_w is not None


def test_an_event_that_ends_when_calendars_do_reaches_to_the_plans_horizon() -> None:
    last = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    forever = replace(event(), end=last, steps=tuple(replace(one, end=last) for one in event().steps))
    told = expected(forever, NOW, world(job("runs", flexible=False), made=plan()), None, NOW)
    opened = expected(replace(event(), end=None, steps=()), NOW, world(job("runs", flexible=False), made=plan()), None, NOW)
    assert told.plan_w is not None and opened.plan_w is not None and len(told.plan_w) == len(opened.plan_w)


def test_an_event_that_cannot_be_worked_out_costs_no_other_its_own(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = world(made=plan())
    keeper.before.look(None, start)
    limits = (keeper.take(event()), keeper.take(replace(event(), source="api", event_id="e2")))
    keeper.before.look(start, replace(start, budgets=limits))
    one_by_one = before_events.expected

    def breaks(event: GridEvent, *rest: Any) -> BeforeEvent:
        if event.event_id == "e1":
            raise OverflowError("date value out of range")
        return one_by_one(event, *rest)

    monkeypatch.setattr(before_events, "expected", breaks)
    for _ in range(2):
        keeper.before.keep(NOW)
    assert keeper.store.before_event("grid", "e1") is None and keeper.store.before_event("api", "e2") is not None
    assert caplog.text.count("cannot be worked out") == 1 and "e1" in caplog.text


def test_what_does_not_bind_is_not_kept(keeper: Keeper) -> None:
    for number, one in enumerate((event(test=True), replace(event(), cancelled=True), replace(event(), opted_out="no"))):
        named = replace(one, event_id=f"e{number}")
        budget = keeper.take(named)
        keeper.before.look(world(), replace(world(), budgets=(budget,)))
        keeper.before.keep(NOW)
        assert keeper.store.before_event("grid", f"e{number}") is None


def test_what_the_store_did_not_take_is_tried_again(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = keeper.take(event())
    keeper.before.look(world(made=plan()), replace(world(), budgets=(budget,)))

    def down(**_: object) -> list[GridEvent]:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(keeper.store, "grid_events", down)
        with pytest.raises(StoreUnavailable):
            keeper.before.keep(NOW)
    keeper.before.keep(NOW)
    kept = keeper.store.before_event("grid", "e1")
    assert kept is not None and kept.plan_w is not None


def test_the_control_loop_keeps_the_plan_from_before_the_event_shaped_it() -> None:
    start = datetime(2026, 3, 2, tzinfo=UTC)
    given = {"name": "a", "address": "http://a", "gpus": 4, "observe_s": 1, "pue": 1.5, "price": [{"feed": "synthetic"}]}
    sim = Simulation(Config.model_validate({"region": [given]}), start, [], tick_s=1.0, plan_s=60.0, start_s=2.0)
    sim.control.before_events = BeforeEvents(sim.control.config, sim.store, lambda *_: None)
    sim.loops.append(Loop("before events", 1.0, sim.control.before_events.keep))
    sim.run(start + timedelta(seconds=5))
    for name, metadata in (("runs", {}), ("flexible", {"gridshift.deadline": "2h", "gridshift.runtime": "1h50m"})):
        flex = parse_flexibility(
            {**metadata, "gridshift.power_w": "900"} if metadata else {}, now=sim.clock.now(), gpus_requested=1.0, regions=["a"]
        )
        request = Request("true", metadata=metadata, entrypoint_num_gpus=1.0)
        sim.clusters["a"].workloads[name] = Workload(run_s=6000.0, checkpoint_s=3.0)
        now = sim.clock.now()
        sim.control.admit(Job(name, request, flex, JobState.QUEUED, now, now, reason="submitted")).result()
    sim.run(start + timedelta(minutes=10))
    before = sim.control.snapshot().world.plan
    assert before is not None
    notice = sim.clock.now()
    asked = GridEvent("api", "peak", 1, "a", notice + timedelta(minutes=20), notice + timedelta(minutes=50), 100.0, notice)
    assert sim.store.save_grid_event(asked, None).result() == "accepted"
    sim.run(notice + timedelta(minutes=5))
    kept = sim.store.before_event("api", "peak")
    assert kept is not None and kept.plan_w is not None and kept.plan_made_at is not None and kept.looked_at is not None
    assert kept.plan_made_at <= kept.looked_at <= notice
    # In the event, from 0:30 to 1:00, both jobs at full draw, at the meter: no plan since would have that.
    draw_w = 1.5 * sum(job.flex.power_w for job in sim.control.snapshot().world.jobs)
    assert kept.jobs == 2 and kept.plan_w[2:4] == pytest.approx((draw_w, draw_w))


# --- in the report -----------------------------------------------------------------------------------------------------


def keep(site: Site, **more: Any) -> None:
    """What a control loop kept when notice of e1 came, at 15:00: 90 kW in the event."""
    given: dict[str, Any] = {
        "source": "api",
        "event_id": "e1",
        "notice_at": hour(15),
        "looked_at": hour(15) - timedelta(seconds=0.5),
        "plan_made_at": hour(14.99),
        "start": hour(15),
        "slot_s": 900,
        "plan_w": (90_000.0,) * 24,
        "plan_why": "",
        "unshifted_w": None,
        "unshifted_why": "the jobs there would need 9 GPUs at once",
        "jobs": 12,
        "other_w": 5000.0,
        "notes": ("jobs count with 95% of the draw that is stated for them",),
    }
    site.server.services.store.keep_before_event(BeforeEvent(**{**given, **more})).result()


def late_job(site: Site, submitted: float) -> None:
    """A job that came after the notice and ran in the event: one GPU that drew 2 kW from 16:30 on, as its agent measured."""
    flex = parse_flexibility({}, now=hour(submitted), gpus_requested=1.0, regions=["north"])
    store = site.server.services.store
    one = Job("late", Request("true"), flex, JobState.QUEUED, hour(submitted), hour(submitted))
    attempt = Attempt("late", 1, "north", "late-1", hour(16.5), accepted_at=hour(16.5), started_at=hour(16.5))
    store.add_job(one, "submitted", attempt).result()
    rows = []
    for k in range(60):
        begin_s = (hour(16.5) + timedelta(minutes=k)).timestamp()
        gpu = {"node_id": "n1", "uuid": "GPU-1", "region": "north", "simulated": False, "start": begin_s, "end": begin_s + 60}
        rows.append({**gpu, "line": "job", "job_id": "late", "energy_wh": 2000 / 60, "seconds": 60.0, "quality": "measured"})
    taken = site.server.services.energy.take(rows, hour(19)).result()
    assert taken.refused == ()


def reported(site: Site) -> dict[str, Any]:
    site.minutes(hour(3), hour(15), cut(60_000.0))
    assert site.create("--end", hour(18).isoformat(), "--limit-w", "65000").exit_code == 0
    site.minutes(hour(15), hour(21), cut(60_000.0))
    return site.report()


def test_the_report_has_the_stored_plan_beside_and_says_what_is_not_in_it(tmp_path: Path) -> None:
    with site_of(tmp_path) as site:
        keep(site)
        late_job(site, 15.5)
        report = reported(site)
        beside = {one["method"]: one for one in report["beside"]}
        plan_ = beside["stored plan"]
        # 90 kW were planned and 60 kW drawn, for two hours; the meter's own baseline says 100 kW.
        assert (plan_["mean_w"], plan_["energy_kwh"]) == (pytest.approx(30_000.0), pytest.approx(60.0))
        assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(80.0)
        assert "made at 2026-06-23 14:59:24 UTC" in plan_["sentences"][0] and "12 jobs are in it" in plan_["sentences"][1]
        assert "5,000 W that were no job's" in plan_["sentences"][2]
        # The agent measured an hour of 2 kW at a PUE of 1.5.
        late = "1 job that came after the notice is not in it; it drew 3.00 kWh in the event"
        assert late in plan_["flags"]
        assert ["counterfactual schedule", "the jobs there would need 9 GPUs at once"] in report["refused"]
        text = site.server.call("GET", "/v1/events/api/e1/report", params={"format": "csv"}).text
        inside = [row for row in csv.DictReader(io.StringIO(text)) if row["limit_w"]]
        assert {row["stored_plan_w"] for row in inside} == {"90000.000"} and len(inside) == 120
        page = site.server.call("GET", "/v1/events/api/e1/report", params={"format": "html"}).text
        assert "stored plan" in page and late in page


def test_a_programme_may_settle_by_the_stored_plan(tmp_path: Path) -> None:
    with site_of(tmp_path, programme=[{**PROGRAMME, "baseline": "plan"}]) as site:
        keep(site, unshifted_w=(95_000.0,) * 24, unshifted_why="")
        report = reported(site)
        assert report["baseline"]["method"] == "stored plan"
        assert report["delivered"]["energy_kwh"]["value"] == pytest.approx(60.0)
        beside = {one["method"]: one["energy_kwh"] for one in report["beside"]}
        assert beside["counterfactual schedule"] == pytest.approx(70.0) and beside["meter before"] == pytest.approx(80.0)
        assert any("95% of the draw" in line for line in report["caveats"]) and report["settlement"]["total"] is not None


@pytest.mark.parametrize("nothing", [True, False])
def test_where_nothing_was_kept_the_next_baseline_counts_and_the_reason_is_told(tmp_path: Path, nothing: bool) -> None:
    with site_of(tmp_path, programme=[{**PROGRAMME, "baseline": "plan"}]) as site:
        if not nothing:
            keep(site, plan_w=None, plan_made_at=None, plan_why=NO_WORK)
        report = reported(site)
        assert report["baseline"]["method"] == "meter before"
        why = "nothing was kept when notice of the event came" if nothing else NO_WORK
        assert ["stored plan", why] in report["refused"]


def test_a_job_that_no_region_can_ever_run_is_left_out_and_noted() -> None:
    jobs = (job("waits", JobState.QUEUED), job("huge", JobState.QUEUED, gpus=16.0, power_w=9000.0))
    kept = made(world(*jobs, made=plan()))
    assert kept.unshifted_why == "" and kept.unshifted_w is not None and max(kept.unshifted_w) == 1000.0
    assert "left out: 1 job that can never run: no region that may take it is large enough" in kept.notes
    assert "not in it: 1 job without a place in the plan, which would draw 1,000 W" in kept.notes
    # Nor does it make unknown where the others would have run.
    several = replace(world(*jobs, made=plan()), settings=Settings(default_region=None))
    assert made(several).unshifted_why == ""


def test_what_its_cluster_can_never_begin_is_expected_to_draw_nothing() -> None:
    site = region(gpus=8.0)
    wide = job("wide", JobState.LAUNCHING, region="eu", flexible=False, gpus=16.0)
    picture = world(wide, here=site)
    assert before_events.standing_runs(picture, site) == [] == before_events.unshifted_runs(picture, site)[0]
    runs = replace(wide, state=JobState.RUNNING)
    assert len(before_events.standing_runs(replace(picture, jobs=(runs,)), site)) == 1, "unlike one that has begun"
