"""The control loop over simulated clusters in virtual time: what happens when answers are lost, and when owners change their
minds at awkward moments."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatcher.api import views
from dispatcher.api.savings import missed
from dispatcher.clusters import Submission
from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.errors import ClusterUnreachable, StoreUnavailable
from dispatcher.job_changes import launch_change, view_of
from dispatcher.reconcile import Usage
from dispatcher.simulation import Simulation
from dispatcher.store import Attempt, Change, Job, Request
from policies.fit import never_fits
from policies.flexibility import parse_flexibility
from policies.serving import Level
from policies.turns import HELD
from policies.world import GpuPool, Guarded, Hold, JobState

START = datetime(2026, 3, 2, tzinfo=UTC)


def simulation(**region: object) -> Simulation:
    one = {"name": "a", "address": "http://a", "gpus": 4, "observe_s": 1, "price": [{"feed": "synthetic"}], **region}
    return Simulation(Config.model_validate({"region": [one]}), START, [], tick_s=1.0, plan_s=60.0, start_s=2.0)


def submit(sim: Simulation, job_id: str, run_s: float = 60.0, gpus: float = 0.0, **metadata: str) -> Job:
    now = sim.clock.now()
    given = {f"gridshift.{key}": value for key, value in metadata.items()}
    flex = parse_flexibility(given, now=now, gpus_requested=gpus, regions=["a"])
    request = Request("true", metadata=given, entrypoint_num_gpus=gpus or None)
    sim.clusters["a"].workloads[job_id] = Workload(run_s=run_s, checkpoint_s=3.0)
    job = Job(job_id, request, flex, JobState.QUEUED, now, now, reason="submitted")
    return sim.control.admit(job).result()


def advance(sim: Simulation, seconds: float) -> None:
    sim.run(sim.clock.now() + timedelta(seconds=seconds))


def cancel(sim: Simulation, job_id: str) -> None:
    now = sim.clock.now()
    outcome = sim.store.apply([Change(job_id, now, "intent", "cancel", fields={"cancel_requested_at": now})]).result()[0]
    assert isinstance(outcome, Job), outcome


def state(sim: Simulation, job_id: str) -> JobState:
    job = sim.store.job(job_id)
    assert job is not None
    return job.state


def test_what_starts_at_once_waits_too_while_serving_is_at_risk() -> None:
    sim = simulation()
    advance(sim, 3)
    sim.control.guards = lambda region: (Guarded("chat", Level.HOLD, "serving chat: slow"),)
    submit(sim, "j")  # before any tick has seen the guard
    advance(sim, 10)
    job = sim.store.job("j")
    assert job is not None and (job.state, job.reason) == (JobState.QUEUED, "must wait: a starts nothing: serving chat: slow")
    sim.control.guards = lambda region: ()
    advance(sim, 10)
    assert state(sim, "j") is JobState.RUNNING


def test_a_job_that_no_region_can_ever_run_says_one_thing_counts_as_late_and_runs_once_one_can() -> None:
    sim = simulation(gpus=None)
    sim.clusters["a"].gpus = 4.0
    advance(sim, 3)
    submit(sim, "j", gpus=8.0, deadline="10m", runtime="5m")
    submit(sim, "held", gpus=8.0, deadline="10m", runtime="5m", earliest="2m")
    for _ in range(30):
        advance(sim, 30)
    said = {event.reason for event in sim.store.events("j")} | {event.reason for event in sim.store.events("held")}
    never = never_fits(sim.store.job("j").flex, sim.control.region_views(), "a")  # type: ignore[union-attr]
    assert said == {"submitted", never} and never is not None and "it needs 8 GPUs and its region, a, has 4" in never
    plan = sim.control.snapshot().world.plan
    assert plan is not None and plan.unplaced == {"j": never, "held": never}
    alarms = {alarm.key: alarm.sentence for alarm in sim.control.snapshot().alarms}
    assert alarms["late"] == "2 jobs cannot end by their deadlines any more as things stand: held, j"
    assert alarms["jobs too large"] == f"job held {never} (2 such jobs: held, j)"
    sim.clusters["a"].gpus = 8.0
    advance(sim, 90)
    assert {state(sim, "j"), state(sim, "held")} >= {JobState.RUNNING}
    assert "jobs too large" not in {alarm.key for alarm in sim.control.snapshot().alarms}


def test_a_job_without_wishes_that_is_too_large_for_its_cluster_says_so_from_the_first_moment_on() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    job = submit(sim, "j", gpus=9.0)
    assert "a has 4 GPUs and it needs 9" in job.reason
    advance(sim, 60)
    assert {event.reason for event in sim.store.events("j")} == {"submitted", job.reason}
    assert "jobs too large" in {alarm.key for alarm in sim.control.snapshot().alarms}


def test_what_was_decided_before_a_pause_does_not_talk_it_over() -> None:
    sim = simulation()
    advance(sim, 3)
    submit(sim, "j", earliest="6h", deadline="20h", pausable="checkpoint")
    advance(sim, 90)
    job, world = sim.store.job("j"), sim.control._world
    assert job is not None and world is not None and job.planned_start_at is not None
    held = {"held": True, "planned_region": None, "planned_start_at": None}
    sim.store.apply([Change("j", sim.clock.now(), "intent", HELD, fields=held)]).result()
    stale = [Hold("j", "may not start before noon", "a", job.planned_start_at + timedelta(hours=1))]
    sim.control._record(sim.control._changes_from(stale, world, sim.clock.now()))
    after = sim.store.job("j")
    assert after is not None and (after.reason, after.planned_start_at) == (HELD, None)
    advance(sim, 5)
    after = sim.store.job("j")
    assert after is not None and (after.reason, after.planned_start_at) == (HELD, None)


def test_a_running_job_that_its_owner_pauses_says_so_at_each_step() -> None:
    sim = simulation()
    advance(sim, 3)
    submit(sim, "j", run_s=3600.0, deadline="65m", runtime="1h", pausable="checkpoint")
    advance(sim, 60)
    assert state(sim, "j") is JobState.RUNNING
    sim.store.apply([Change("j", sim.clock.now(), "intent", "its owner paused it", fields={"held": True})]).result()
    advance(sim, 60)
    assert state(sim, "j") is JobState.PAUSED
    said = [event.reason for event in sim.store.events("j")]
    asked = said.index("its owner paused it")
    assert all("its owner" in sentence or "saved its checkpoint" in sentence for sentence in said[asked:]), said[asked:]
    assert said[-1] == HELD


def test_an_answer_that_is_lost_starts_nothing_twice() -> None:
    sim = simulation()
    advance(sim, 3)
    sim.clusters["a"].lost_answers = 1
    submit(sim, "j")
    advance(sim, 30)
    assert state(sim, "j") is JobState.RUNNING
    assert [a.attempt for a in sim.store.attempts("j")] == [1]
    advance(sim, 90)
    assert state(sim, "j") is JobState.SUCCEEDED


def test_a_cancel_during_a_launch_without_an_answer_ends_the_job_and_what_was_started() -> None:
    sim = simulation()
    advance(sim, 3)
    sim.clusters["a"].lost_answers = 1
    submit(sim, "j", run_s=3600.0)
    cancel(sim, "j")
    advance(sim, 60)
    assert state(sim, "j") is JobState.CANCELLED
    status = sim.clusters["a"].statuses(["j-1"])["j-1"]
    assert status is None or status.status == "STOPPED"


def test_a_launch_that_a_slow_head_takes_up_long_after_the_cancel_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation()
    advance(sim, 3)
    cluster, late = sim.clusters["a"], list[Submission]()
    real = cluster.submit

    def slow(submission: Submission, packages: Mapping[str, Path], *, maybe_sent: bool) -> None:
        late.append(submission)
        raise ClusterUnreachable("did not answer in time")

    monkeypatch.setattr(cluster, "submit", slow)
    submit(sim, "j", run_s=36000.0)
    cancel(sim, "j")
    advance(sim, 30)
    assert state(sim, "j") is JobState.CANCELLED
    real(late[0], {}, maybe_sent=False)
    advance(sim, 60)
    status = cluster.statuses(["j-1"])["j-1"]
    assert status is not None and status.status == "STOPPED"


def test_a_cancel_of_a_job_that_its_cluster_has_not_begun_ends_when_it_is_dropped() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    sim.clusters["a"]._stop_s = 4.0  # its command runs for so long before it is stopped
    advance(sim, 3)
    submit(sim, "full", run_s=400.0, gpus=4.0)
    submit(sim, "next", run_s=9000.0, gpus=4.0)
    advance(sim, 10)
    assert (state(sim, "full"), state(sim, "next")) == (JobState.RUNNING, JobState.LAUNCHING)
    cancel(sim, "next")
    advance(sim, 60)
    job = sim.store.job("next")
    assert job is not None and job.state is JobState.LAUNCHING, "Ray runs its command yet"
    assert job.reason == "being cancelled: a has not begun it yet and drops it when it would begin"
    for _ in range(400):
        advance(sim, 1)
        status = sim.clusters["a"].statuses(["next-1"])["next-1"]
        assert status is not None
        if status.ended_at is None:
            assert state(sim, "next") in (JobState.LAUNCHING, JobState.RUNNING)
        else:
            break
    advance(sim, 5)
    assert (state(sim, "full"), state(sim, "next")) == (JobState.SUCCEEDED, JobState.CANCELLED)
    assert "running in a" in [event.reason for event in sim.store.events("next")], "it is told that it ran"
    assert len(sim.store.events("next")) < 12, "waiting for an end is not a stream of events"


def test_a_cancelled_job_that_its_cluster_cannot_place_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    cluster, stops = sim.clusters["a"], list[datetime]()
    real = cluster.stop

    def stop(submission_id: str) -> None:
        stops.append(sim.clock.now())
        real(submission_id)

    monkeypatch.setattr(cluster, "stop", stop)
    submit(sim, "wide", gpus=9.0)
    advance(sim, 10)
    submit(sim, "flexible", gpus=1.0, deadline="1h", runtime="1m")
    advance(sim, 30)
    assert (state(sim, "wide"), state(sim, "flexible")) == (JobState.LAUNCHING, JobState.RUNNING), "it holds no GPUs"
    cancel(sim, "wide")
    advance(sim, 12)
    job = sim.store.job("wide")
    assert job is not None and job.state is JobState.CANCELLED
    assert job.reason == "cancelled; a never began it: a has 4 GPUs and it needs 9"
    assert job.energy_kwh == 0.0 and [one.outcome for one in sim.store.attempts("wide")] == ["unbegun"]
    advance(sim, 90)
    sim.control.housekeeping(sim.clock.now() + timedelta(hours=2))
    status = cluster.statuses(["wide-1"])["wide-1"]
    assert status is not None and status.status == "PENDING" and len(stops) <= 2, "its cluster keeps it, and our request"
    assert sim.store.ended_attempts_upstream("a", sim.clock.now() + timedelta(hours=2)), "it is not taken for deleted"
    assert len(sim.store.events("wide")) < 8 and state(sim, "flexible") is JobState.SUCCEEDED


def test_a_cancelled_job_that_its_cluster_begins_after_all_is_stopped_there(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(gpus=None, price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    cluster, stops = sim.clusters["a"], list[datetime]()
    cluster.gpus, real = 4.0, cluster.stop

    def stop(submission_id: str) -> None:
        stops.append(sim.clock.now())
        if not lost:
            real(submission_id)

    monkeypatch.setattr(cluster, "stop", stop)
    lost = True  # with whoever kept the request
    advance(sim, 3)
    submit(sim, "wide", run_s=9000.0, gpus=9.0)
    advance(sim, 10)
    cancel(sim, "wide")
    advance(sim, 30)
    assert state(sim, "wide") is JobState.CANCELLED and len(stops) <= 2
    cluster.gpus, lost = 16.0, False
    submit(sim, "other")  # something happens there
    advance(sim, 60)
    status = cluster.statuses(["wide-1"])["wide-1"]
    assert status is not None and status.status == "STOPPED" and cluster.gpus_used() == 0.0
    asked = len(stops)
    advance(sim, 30)
    sim.control.housekeeping(sim.clock.now() + timedelta(hours=2))
    assert len(stops) == asked and cluster.statuses(["wide-1"]) == {"wide-1": None}, "forgotten there in the end"
    assert state(sim, "wide") is JobState.CANCELLED


def test_a_job_that_its_cluster_can_never_begin_holds_nothing_for_the_plan() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    submit(sim, "wide", gpus=9.0)
    advance(sim, 10)
    submit(sim, "soon", run_s=600.0, gpus=3.0, deadline="1h", runtime="10m")
    advance(sim, 90)
    assert (state(sim, "wide"), state(sim, "soon")) == (JobState.LAUNCHING, JobState.RUNNING)
    [region] = sim.control.snapshot().regions
    assert region.gpus_used == 3.0


def test_launches_without_an_answer_do_not_keep_others_from_being_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation(gpus=400, price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    cluster = sim.clusters["a"]
    real = cluster.submit

    def deaf(submission: Submission, packages: Mapping[str, Path], *, maybe_sent: bool) -> None:
        if submission.submission_id.startswith("stuck"):
            raise ClusterUnreachable("could not take the job")
        real(submission, packages, maybe_sent=maybe_sent)

    monkeypatch.setattr(cluster, "submit", deaf)
    for n in range(40):
        submit(sim, f"stuck{n}")
    submit(sim, "j", deadline="1h", runtime="1m")
    advance(sim, 60)
    assert state(sim, "j") is JobState.QUEUED, "they may yet be starting"
    advance(sim, 80)
    assert state(sim, "j") is JobState.RUNNING
    assert all(state(sim, f"stuck{n}") is JobState.LAUNCHING for n in range(40))
    # Where hardly any launch gets an answer it is the cluster: no more of them then, until some are cancelled.
    for n in range(40, 140):
        submit(sim, f"stuck{n}")
    advance(sim, 200)
    submit(sim, "k", deadline="1h", runtime="1m")
    advance(sim, 30)
    assert state(sim, "k") is JobState.QUEUED
    for n in range(20):
        cancel(sim, f"stuck{n}")
    advance(sim, 30)
    assert state(sim, "k") is JobState.RUNNING


def test_cancelled_launches_that_their_cluster_has_not_begun_hold_up_no_other() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    sim.clusters["a"]._start_s = 100.0
    advance(sim, 3)
    for n in range(40):
        submit(sim, f"j{n}")
    advance(sim, 3)
    for n in range(40):
        cancel(sim, f"j{n}")
    submit(sim, "k", gpus=1.0, deadline="1h", runtime="1m")
    advance(sim, 10)
    assert {state(sim, f"j{n}") for n in range(40)} == {JobState.LAUNCHING}
    assert state(sim, "k") is JobState.LAUNCHING


def test_a_cancel_that_comes_with_a_launch_wins() -> None:
    sim = simulation()
    advance(sim, 3)
    sim.clusters["a"].down = True
    submit(sim, "j")
    cancel(sim, "j")
    advance(sim, 30)
    sim.clusters["a"].down = False
    advance(sim, 30)
    assert state(sim, "j") is JobState.CANCELLED
    assert sim.clusters["a"].statuses(["j-1"]) == {"j-1": None}


def test_the_same_id_twice_leaves_the_first_alone() -> None:
    sim = simulation()
    advance(sim, 3)
    first = submit(sim, "j")
    again = sim.control.admit(replace(first, state=JobState.QUEUED, attempt=0, region=None))
    assert again.exception() is not None
    advance(sim, 120)
    assert state(sim, "j") is JobState.SUCCEEDED
    assert len(sim.store.attempts("j")) == 1


def test_a_restarted_cluster_loses_a_plain_job_and_resumes_a_checkpoint_job() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    submit(sim, "plain", run_s=600.0)
    submit(sim, "keeps", run_s=600.0, deadline="30m", runtime="10m", pausable="checkpoint")
    advance(sim, 60)
    assert (state(sim, "plain"), state(sim, "keeps")) == (JobState.RUNNING, JobState.RUNNING)
    sim.clusters["a"].restart()
    advance(sim, 30)
    assert state(sim, "plain") is JobState.FAILED
    advance(sim, 900)
    assert state(sim, "keeps") is JobState.SUCCEEDED
    assert [a.outcome for a in sim.store.attempts("keeps")] == ["lost", "succeeded"]


@pytest.mark.parametrize("restarted", [False, True], ids=["the region was away", "the control plane too"])
def test_a_lost_attempt_uses_no_energy_after_it_was_last_known_to_run(restarted: bool) -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    submit(sim, "j", run_s=600.0, gpus=1.0, max_attempts="2", power_w="500")
    advance(sim, 25)
    assert state(sim, "j") is JobState.RUNNING
    sim.clusters["a"].down = True
    advance(sim, 180)
    if restarted:
        config = Config.model_validate({"region": [{"name": "a", "address": "http://a", "gpus": 4, "observe_s": 1}]})
        sim = Simulation(config, sim.clock.now(), [], store=sim.store, tick_s=1.0, plan_s=60.0, start_s=2.0)
    sim.clusters["a"].restart()
    sim.clusters["a"].down = False
    advance(sim, 10)
    first, job = sim.store.attempts("j")[0], sim.store.job("j")
    assert job is not None and first.outcome == "lost" and first.started_at is not None and first.ended_at is not None
    ran_s = (first.ended_at - first.started_at).total_seconds()
    assert 5 < ran_s <= 25 and job.energy_kwh == pytest.approx(0.5 * 1.2 * ran_s / 3600), "PUE is 1.2"
    assert "used at least what it had by then" in first.message


def test_a_region_that_does_not_answer_moves_nothing() -> None:
    sim = simulation()
    advance(sim, 3)
    submit(sim, "j", run_s=30.0)
    advance(sim, 10)
    sim.clusters["a"].down = True
    advance(sim, 600)
    assert state(sim, "j") is JobState.RUNNING
    assert any("does not answer" in alarm.sentence for alarm in sim.control.snapshot().alarms)
    sim.clusters["a"].down = False
    advance(sim, 10)
    job = sim.store.job("j")
    assert job is not None and job.state is JobState.SUCCEEDED
    assert job.finished_at is not None and job.finished_at < START + timedelta(seconds=60), "it ended when the cluster says"


def test_a_new_control_plane_does_not_start_what_is_held_before_it_knows_prices() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 40.0}])
    advance(sim, 3)
    submit(sim, "held", deadline="20h", runtime="30m")
    advance(sim, 120)
    held = sim.store.job("held")
    assert held is not None and held.state is JobState.QUEUED and held.planned_start_at is not None
    successor = Simulation(sim.control.config, sim.clock.now(), [], store=sim.store, tick_s=1.0, plan_s=60.0)
    # as after a start: a tick comes first, feeds are asked later
    successor.control.tick(successor.clock.now())
    successor.control.plan(successor.clock.now())
    successor.control.tick(successor.clock.now())
    assert state(successor, "held") is JobState.QUEUED
    advance(successor, 60)
    assert state(successor, "held") is JobState.QUEUED


def test_a_flood_of_short_jobs_is_started_in_bits() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    for n in range(100):
        submit(sim, f"j{n}", run_s=5.0, deadline="1h", runtime="1m")
    starting = []
    for _ in range(60):
        advance(sim, 1)
        starting.append(sum(attempt.started_at is None for attempt in sim.store.live_attempts()))
    assert 16 < max(starting) <= 32
    advance(sim, 3600)
    assert all(state(sim, f"j{n}") is JobState.SUCCEEDED for n in range(100))


def test_what_goes_wrong_with_one_job_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sim = simulation()
    advance(sim, 3)
    submit(sim, "odd", run_s=5.0)
    submit(sim, "plain", run_s=5.0)
    real = sim.control._usage

    def usage(job: Job, attempt: Attempt, ended_at: datetime) -> Usage | None:
        if job.id == "odd" and broken:
            raise ValueError("two currencies")
        return real(job, attempt, ended_at)

    broken = True
    monkeypatch.setattr(sim.control, "_usage", usage)
    advance(sim, 30)
    assert (state(sim, "odd"), state(sim, "plain")) == (JobState.RUNNING, JobState.SUCCEEDED)
    assert sum("cannot be dealt with" in record.message for record in caplog.records) == 1, "said once, not each second"
    broken = False
    advance(sim, 5)
    assert state(sim, "odd") is JobState.SUCCEEDED


def test_a_package_that_cannot_be_read_for_a_while_fails_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation()
    advance(sim, 3)

    def unreadable(runtime_env: Mapping[str, object]) -> dict[str, Path]:
        raise StoreUnavailable("package a.zip cannot be read now: Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(sim.control._launching._packages, "for_launch", unreadable)
        submit(sim, "j", run_s=5.0)
        advance(sim, 30)
        job = sim.store.job("j")
        assert job is not None and job.state is JobState.LAUNCHING and "Input/output error; trying again" in job.reason
        notes = [event for event in sim.store.events("j") if "trying again" in event.reason]
        assert len(notes) == 1, "said once, not each try"
    advance(sim, 30)
    assert state(sim, "j") is JobState.SUCCEEDED


def test_an_attempt_that_was_lost_is_stopped_once_its_cluster_answers_again() -> None:
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    submit(sim, "j", run_s=600.0)
    advance(sim, 10)
    asked: list[str] = []
    cluster = sim.clusters["a"]
    real_stop, real_statuses = cluster.stop, cluster.statuses
    cluster.statuses = lambda submission_ids: dict.fromkeys(submission_ids)  # type: ignore[method-assign]
    failures = 3

    def stop(submission_id: str) -> None:
        asked.append(submission_id)
        if len(asked) <= failures:
            raise ClusterUnreachable("no answer", maybe_sent=True)
        real_stop(submission_id)

    cluster.stop = stop  # type: ignore[method-assign]
    advance(sim, 65)
    assert state(sim, "j") is JobState.FAILED, "it may not be tried again, and its cluster denies it"
    cluster.statuses = real_statuses  # type: ignore[method-assign]
    advance(sim, 60)
    assert asked == ["j-1"] * 4
    status = cluster.statuses(["j-1"])["j-1"]
    assert status is not None and status.status == "STOPPED"


def test_what_a_late_feed_says_is_booked_when_it_comes() -> None:
    sim = simulation()
    advance(sim, 3)
    submit(sim, "j", run_s=60.0)
    real = sim.control.book.usage
    sim.control.book.usage = lambda *of: replace(real(*of), carbon_kg=None)  # type: ignore[method-assign]
    advance(sim, 120)
    before = sim.store.job("j")
    assert before is not None and before.state is JobState.SUCCEEDED and before.cost is not None and before.carbon_kg is None
    sim.control.book.usage = lambda *of: replace(real(*of), carbon_kg=1.5)  # type: ignore[method-assign]
    advance(sim, 1000)
    after = sim.store.job("j")
    assert after is not None and (after.carbon_kg, after.cost, after.reason) == (1.5, before.cost, before.reason)


def test_a_job_that_cannot_end_by_its_deadline_runs_at_once_and_is_told_as_late() -> None:
    sim = simulation()
    advance(sim, 3)
    submit(sim, "late", run_s=600.0, deadline="5m", runtime="10m")
    submit(sim, "fine", run_s=60.0, deadline="6h", runtime="1m")
    advance(sim, 30)
    job = sim.store.job("late")
    assert job is not None and job.state is JobState.RUNNING
    reasons = [event.reason for event in sim.store.events("late")]
    assert any("it will end after its deadline" in reason for reason in reasons)
    alarm = next(alarm for alarm in sim.control.snapshot().alarms if alarm.key == "late")
    assert alarm.sentence == "1 job cannot end by its deadline any more as things stand: late"
    advance(sim, 700)
    job = sim.store.job("late")
    assert job is not None and job.state is JobState.SUCCEEDED and missed(job) and views.job_json(job)["late_s"] > 200
    assert not any(alarm.key == "late" for alarm in sim.control.snapshot().alarms)


def test_a_job_that_says_nothing_of_its_run_time_gets_what_its_group_took() -> None:
    sim = simulation()
    advance(sim, 3)
    for index in range(3):
        submit(sim, f"done-{index}", run_s=300.0 + 60.0 * index, group="nightly", tier="flex-1", deadline="20m", runtime="10m")
    advance(sim, 3600)
    assert all(state(sim, f"done-{index}") is JobState.SUCCEEDED for index in range(3))
    submit(sim, "guess", group="nightly", earliest="6h")
    submit(sim, "sure", group="nightly", earliest="6h", deadline="20h")
    submit(sim, "stated", group="nightly", earliest="6h", runtime="2h")
    submit(sim, "other", group="weekly", earliest="6h")
    advance(sim, 3)
    remaining = {view.id: view.remaining_s for view in sim.control.snapshot().world.jobs}
    assert remaining["guess"] == pytest.approx(360.0, abs=10.0) and remaining["sure"] == pytest.approx(420.0, abs=10.0)
    assert (remaining["stated"], remaining["other"]) == (7200.0, 3600.0)
    again = Simulation(sim.control.config, sim.clock.now(), [], store=sim.store, tick_s=1.0, plan_s=60.0, start_s=2.0)
    again.control.start()
    again.run(again.clock.now() + timedelta(seconds=3))
    after = {view.id: view.remaining_s for view in again.control.snapshot().world.jobs}
    assert after == remaining, "a new control plane learns from what its store remembers"


def test_gpus_by_type_are_seen_by_policies_and_asked_of_the_cluster() -> None:
    pools = [{"type": "H100", "gpus": 2, "power_limit_w": 1500}, {"type": "A100", "gpus": 4, "draw": 0.6, "branch": "left"}]
    sim = simulation(gpus=None, gpu_pool=pools)
    advance(sim, 3)
    (view,) = sim.control.snapshot().world.regions
    assert view.gpus == 6.0
    assert view.pools == (GpuPool("H100", 2.0, 1500.0), GpuPool("A100", 4.0, None, 0.6, "left")) and view.reserved == ()
    job = submit(sim, "j", earliest="6h")
    made = launch_change(job, "a", "now", sim.clock.now(), "A100")
    assert made.new_attempt is not None and made.new_attempt.gpu_type == "A100"
    assert view_of(job).gpu_type is None and view_of(job, gpu_type="A100").gpu_type == "A100"


def test_a_job_that_is_to_run_now_starts_at_the_next_tick_within_limits_and_is_not_paused_for_a_price() -> None:
    sim = simulation(power_limit_w=1500)
    advance(sim, 3)
    waits = {"earliest": "12h", "deadline": "40h", "runtime": "8h", "power_w": "1000", "pausable": "checkpoint"}
    for job_id in ("first", "second"):
        submit(sim, job_id, 8 * 3600.0, 0.0, **waits)
    advance(sim, 120)
    assert state(sim, "first") is state(sim, "second") is JobState.QUEUED
    for job_id in ("first", "second"):
        now = sim.clock.now()
        sim.store.apply([Change(job_id, now, "intent", "run it now", fields={"run_now_at": now})]).result()
    advance(sim, 5)
    reasons = [event.reason for event in sim.store.events("first")]
    assert state(sim, "first") is JobState.RUNNING
    assert "starts now: its owner asked for it, whatever power costs, in a" in reasons
    second = sim.store.job("second")
    assert second is not None and second.state is JobState.QUEUED and "may draw 1,500 W (site limit)" in second.reason
    advance(sim, 7 * 3600)
    first = sim.store.job("first")
    assert first is not None and (first.state, first.pauses) == (JobState.RUNNING, 0), "no price pauses it"
    advance(sim, 3600 + 120)
    assert state(sim, "first") is JobState.SUCCEEDED and state(sim, "second") is JobState.RUNNING


def test_a_job_larger_than_its_cluster_says_so_while_it_waits_there() -> None:
    sim = simulation(gpus=4)
    advance(sim, 3)
    submit(sim, "large", gpus=9.0)
    advance(sim, 30)
    job = sim.store.job("large")
    assert job is not None and job.state is JobState.LAUNCHING
    wanted = "a has 4 GPUs and it needs 9, so it waits there until there are more or it is cancelled"
    assert wanted in job.reason and wanted in views.ray_message(job)


def test_a_policys_quota_bounds_flexible_work() -> None:
    one = {"name": "a", "address": "http://a", "gpus": 10, "price": [{"feed": "synthetic"}], "carbon": [{"feed": "synthetic"}]}
    for policy in ("cap-quota", "lowest-window"):
        config = Config.model_validate({"region": [one], "planning": {"policy": policy}})
        sim = Simulation(config, START, [], tick_s=60.0, plan_s=900.0, start_s=2.0)
        seen = []
        for _ in range(24):
            advance(sim, 3600)
            seen.append(sim.control.snapshot().world.gates.get("a"))
        if policy == "cap-quota":
            assert all(gate is not None and 2.0 <= gate <= 10.0 for gate in seen) and len(set(seen)) > 2
        else:
            assert set(seen) == {None}


def test_nothing_is_dropped_by_a_clock_that_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulation()
    submit(sim, "j", run_s=5.0)
    advance(sim, 30.0)
    thinned: list[datetime] = []
    monkeypatch.setattr(sim.control.book, "thin", thinned.append)
    sim.control._thinned_at = float("-inf")
    later = sim.clock.now() + timedelta(days=3)
    monkeypatch.setattr(sim.control, "_steady", lambda _: False)
    sim.control.housekeeping(later)
    assert thinned == [] and not sim.store.attempts("j")[0].deleted_upstream
    monkeypatch.setattr(sim.control, "_steady", lambda _: True)
    sim.control.housekeeping(later)
    assert thinned == [later] and sim.store.attempts("j")[0].deleted_upstream


def test_a_reason_gives_way_to_another_at_once_when_the_earliest_time_has_passed() -> None:
    """The start that is planned stays the same: what is said of it does not stay with that."""
    sim = simulation(price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 3)
    submit(sim, "full", run_s=3000.0, gpus=4.0, runtime="50m")
    submit(sim, "j", gpus=4.0, earliest="20s", deadline="6h", runtime="30m")
    advance(sim, 3)

    def reason() -> str:
        job = sim.store.job("j")
        assert job is not None
        return job.reason

    def hold(sentence: str, start_at: datetime) -> None:
        actions = [Hold("j", sentence, "a", start_at)]
        sim.control._refresh()
        world = replace(sim.control.snapshot().world, now=sim.clock.now())
        sim.control._record(sim.control._changes_from(actions, world, sim.clock.now()))

    start_at = sim.clock.now() + timedelta(hours=3)
    advance(sim, 60)
    for sentence in ("may not start before 07:01Z", "a from 12:15Z: energy at 40 EUR/MWh", "over its ceiling: a from 12:15Z"):
        hold(sentence, start_at)
        assert reason() == sentence
    hold("over its ceiling: a from 12:16Z", start_at)
    assert reason() == "over its ceiling: a from 12:15Z", "figures alone are not worth a row"
