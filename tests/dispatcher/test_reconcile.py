"""What an observation means for a job, as a table."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dispatcher.clusters import AttemptStatus, RayStatus
from dispatcher.function_runner import FAILED
from dispatcher.reconcile import Books, Retry, Seen, Usage, checkpoint_timeout, freeze, reconcile, retry_after, settled, thaw
from dispatcher.states import EDGES
from dispatcher.store import Attempt, Change, Job, Request
from policies.world import Flexibility, JobState, Pausable

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(minutes=10)
FLEX = Flexibility(True, NOW + timedelta(hours=5), None, 3600.0, True, 1.0, 400.0, Pausable.CHECKPOINT, checkpoint_s=60.0)
JOB = Job("j", Request("true"), FLEX, JobState.RUNNING, EARLIER, EARLIER, seq=7, region="r", attempt=1, run_started_at=EARLIER)
ATTEMPT = Attempt("j", 1, "r", "j-1", EARLIER, ray_session="s1", accepted_at=EARLIER, started_at=EARLIER)


def look(
    job: Job, status: AttemptStatus | None, *, session: str = "s1", missing: int = 60, losses: int = 0, asked: datetime = NOW
) -> Change | None:
    change = reconcile(
        job,
        ATTEMPT,
        Seen(status, asked, session),
        NOW,
        books=Books(Usage(0.1, 0.02, 0.03), "EUR"),
        retry=Retry(10.0, losses),
        times_missing=missing,
        missing_s=missing * 1.0,
    )
    if change is not None and change.to is not None:
        assert (job.state, change.to) in EDGES
    return change


LAUNCHING = replace(JOB, state=JobState.LAUNCHING, run_started_at=None)
PAUSING = replace(JOB, state=JobState.PAUSING, pause_requested_at=EARLIER)
SAVED = replace(PAUSING, checkpoint_saved_at=NOW - timedelta(minutes=1))
CANCELLING = replace(JOB, cancel_requested_at=EARLIER)
PLAIN = replace(JOB, flex=replace(FLEX, pausable=Pausable.NO))


def st(status: RayStatus, **more: object) -> AttemptStatus:
    return AttemptStatus(status, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "status", "expected"),
    [
        (LAUNCHING, st(RayStatus.RUNNING), JobState.RUNNING),
        (LAUNCHING, st(RayStatus.SUCCEEDED), JobState.SUCCEEDED),
        (LAUNCHING, st(RayStatus.FAILED, error_type="RUNTIME_ENV_SETUP_FAILURE"), JobState.FAILED),
        (JOB, st(RayStatus.SUCCEEDED), JobState.SUCCEEDED),
        (JOB, st(RayStatus.FAILED, exit_code=3), JobState.FAILED),
        (JOB, st(RayStatus.STOPPED), JobState.CANCELLED),
        (JOB, st(RayStatus.FAILED, error_type="JOB_SUPERVISOR_ACTOR_DIED"), JobState.QUEUED),
        (PLAIN, st(RayStatus.FAILED, error_type="JOB_SUPERVISOR_ACTOR_DIED"), JobState.FAILED),
        (CANCELLING, st(RayStatus.STOPPED), JobState.CANCELLED),
        (CANCELLING, st(RayStatus.FAILED), JobState.CANCELLED),
        (CANCELLING, st(RayStatus.SUCCEEDED), JobState.SUCCEEDED),
        (PAUSING, st(RayStatus.SUCCEEDED), JobState.SUCCEEDED),
        (PAUSING, st(RayStatus.FAILED), JobState.FAILED),
        (PAUSING, st(RayStatus.STOPPED), JobState.QUEUED),
        (SAVED, st(RayStatus.STOPPED), JobState.PAUSED),
        (SAVED, st(RayStatus.SUCCEEDED), JobState.PAUSED),
        (SAVED, st(RayStatus.FAILED, exit_code=77), JobState.PAUSED),
        (JOB, None, JobState.QUEUED),
        (PLAIN, None, JobState.FAILED),
        (CANCELLING, None, JobState.CANCELLED),
    ],
)
def test_a_terminal_word_of_the_cluster_moves_the_job(job: Job, status: AttemptStatus | None, expected: JobState) -> None:
    change = look(job, status)
    assert change is not None and change.to is expected
    assert change.expect is job.state and change.expect_attempt == 1
    if expected is not JobState.RUNNING:
        assert change.attempt_fields["ended_at"] is not None
        assert change.fields["energy_kwh"] == pytest.approx(0.1)


@pytest.mark.parametrize("job", [JOB, PAUSING, SAVED, CANCELLING])
def test_running_says_nothing_new(job: Job) -> None:
    assert look(job, st(RayStatus.RUNNING)) is None


def test_one_missing_answer_or_an_old_question_moves_nothing() -> None:
    assert look(JOB, None, missing=1) is None
    assert look(JOB, None, asked=EARLIER - timedelta(seconds=1)) is None


def test_a_restarted_head_is_named_and_the_next_attempt_waits() -> None:
    change = look(JOB, None, session="s2")
    assert change is not None
    assert "restarted" in change.reason
    assert change.fields["not_before_at"] == NOW + timedelta(seconds=10)


@pytest.mark.parametrize(
    ("told", "wait_s"),
    [
        (None, 75.0 - 30.0),  # last seen 30 s ago: its node may live on for what is left of 75 s
        ("The actor died because its node has died. Node Id: 1f", 75.0),
        ("The actor died unexpectedly: SYSTEM_ERROR", 10.0),  # its node lives, and with it the attempt's guard
    ],
)
def test_the_next_attempt_waits_while_the_lost_one_may_run_on(told: str | None, wait_s: float) -> None:
    died = None if told is None else st(RayStatus.FAILED, message=told, error_type="JOB_SUPERVISOR_ACTOR_DIED")
    change = reconcile(
        JOB,
        ATTEMPT,
        Seen(died, NOW, "s2"),
        NOW,
        books=Books(None, "EUR"),
        retry=Retry(10.0, 0, orphan_s=75.0),
        times_missing=2,
        known_until=NOW - timedelta(seconds=30),
    )
    assert change is not None and change.to is JobState.QUEUED
    assert change.fields["not_before_at"] == NOW + timedelta(seconds=wait_s)


def test_attempts_after_losses_are_counted() -> None:
    twice = replace(PLAIN, flex=replace(PLAIN.flex, max_attempts=2))
    first, second = look(twice, None, losses=0), look(twice, None, losses=1)
    assert first is not None and first.to is JobState.QUEUED
    assert second is not None and second.to is JobState.FAILED


def test_a_checkpoint_makes_its_run_durable() -> None:
    change = look(SAVED, st(RayStatus.STOPPED))
    assert change is not None
    assert change.fields["progress_s"] == pytest.approx(540.0)
    assert change.fields["pauses"] == 1


def test_unknown_cost_stays_unknown() -> None:
    job = replace(JOB, energy_kwh=1.0, cost=None, carbon_kg=2.0)
    change = look(job, st(RayStatus.SUCCEEDED))
    assert change is not None
    assert change.fields["energy_kwh"] == pytest.approx(1.1)
    assert change.fields["cost"] is None
    assert change.fields["carbon_kg"] == pytest.approx(2.03)


def test_an_unanswered_request_for_a_checkpoint_ends_in_running_unless_it_was_saved() -> None:
    assert checkpoint_timeout(PAUSING, EARLIER + timedelta(seconds=61), grace_s=2.0) is None
    change = checkpoint_timeout(PAUSING, EARLIER + timedelta(seconds=62), grace_s=2.0)
    assert change is not None and change.to is JobState.RUNNING and change.expect_seq == 7
    assert change.fields["checkpoint_misses"] == 1
    assert checkpoint_timeout(SAVED, NOW, grace_s=2.0) is None


def test_a_job_that_its_cluster_cannot_start_is_tried_three_times() -> None:
    broken = st(
        RayStatus.FAILED,
        error_type="JOB_SUPERVISOR_ACTOR_START_FAILURE",
        message="Traceback (most recent call last):\n  x\nE: no",
    )

    def after(failed_starts: int) -> Change:
        change = reconcile(
            LAUNCHING,
            replace(ATTEMPT, started_at=None),
            Seen(broken, NOW, "s1"),
            NOW,
            books=Books(None, "EUR"),
            retry=Retry(10.0, 0, failed_starts, failed_starts),
            times_missing=0,
        )
        assert change is not None
        return change

    waits = [after(n).fields["not_before_at"] - NOW for n in (0, 1)]
    assert waits == [timedelta(seconds=10), timedelta(seconds=20)]
    assert after(1).to is JobState.QUEUED
    assert after(1).attempt_fields["outcome"] == "unstarted"
    assert (after(2).to, after(2).reason) == (JobState.FAILED, "r could not start it 3 times: E: no")


FRAMES = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    go()\n'


@pytest.mark.parametrize(
    ("log", "raised"),
    [
        (f"{FRAMES}ValueError: no data\n{FAILED}ValueError: no data\n", ": ValueError: no data"),
        (f"{FAILED}CannotLoad: f cannot be loaded\ngridshift: the control plane is away\n", ": CannotLoad: f cannot be loaded"),
        (f"step 1\n{FRAMES}KeyError: 'x'\n", ": KeyError: 'x'"),
        (f"{FRAMES}KeyError: 'x'\n\nDuring handling of the above exception:\n\n{FRAMES}OSError: full\n", ": OSError: full"),
        (f"{FRAMES}{'E' * 900}\n", f": {'E' * 300}"),
        (f"{FRAMES}KeyError: 'x'\ngoing on without x\n", ""),  # it was handled; the job failed by something else
        ("no traceback\n", ""),
        ("", ""),
    ],
)
def test_the_exception_that_ended_a_job_is_in_its_reason(log: str, raised: str) -> None:
    message = f"Job entrypoint command failed with exit code 1, last available logs (truncated to 20,000 chars):\n{log}"
    change = look(PLAIN, st(RayStatus.FAILED, message=message, error_type="JOB_ENTRYPOINT_COMMAND_ERROR"))
    assert change is not None and change.reason == f"Job entrypoint command failed with exit code 1{raised}"


def test_only_failed_starts_in_a_row_count_against_a_job() -> None:
    def tried(*outcomes: str | None) -> list[Attempt]:
        return [
            Attempt("j", n, "r", f"j-{n}", EARLIER, accepted_at=EARLIER, ended_at=NOW if outcome else None, outcome=outcome)
            for n, outcome in enumerate(outcomes, 1)
        ]

    assert retry_after(tried("refused", "refused", None), 10.0, 75.0) == Retry(10.0, 0, 2, 0, 75.0), (
        "no room is not the job's fault"
    )
    assert retry_after(tried("unstarted", "refused", "unstarted", "unstarted", None), 10.0, 75.0) == Retry(10.0, 0, 4, 2, 75.0)
    assert retry_after(tried("unstarted", "unstarted", "lost", None), 10.0, 75.0) == Retry(10.0, 1, 0, 0, 75.0)


def test_what_was_not_known_at_the_end_is_booked_later() -> None:
    ended = replace(JOB, state=JobState.SUCCEEDED, reason="finished in r", energy_kwh=2.0, cost=0.5, carbon_kg=None)
    assert settled(ended, [Usage(1.0, 0.2, 0.3), Usage(1.0, 0.3, None)], NOW) is None
    change = settled(ended, [Usage(1.0, 0.2, 0.3), Usage(1.0, 0.3, 0.4)], NOW)
    assert change is not None and change.to is None and change.reason == "finished in r"
    assert change.fields == {"carbon_kg": pytest.approx(0.7)}, "what is booked already stays"
    assert settled(replace(ended, cost=None), [], NOW) is None


def test_a_job_that_finds_no_room_waits_longer_and_longer_but_never_fails() -> None:
    no_room = st(RayStatus.FAILED, error_type="JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE", message="no room")
    for failed_starts, wait_s in ((0, 10), (3, 80), (50, 640)):
        change = reconcile(
            LAUNCHING,
            ATTEMPT,
            Seen(no_room, NOW, "s1"),
            NOW,
            books=Books(None, "EUR"),
            retry=Retry(10.0, 0, failed_starts),
            times_missing=0,
        )
        assert change is not None and change.to is JobState.QUEUED
        assert change.fields["not_before_at"] == NOW + timedelta(seconds=wait_s)


def test_a_cluster_that_denies_an_attempt_is_believed_at_once_only_when_it_was_restarted() -> None:
    assert look(JOB, None, missing=1, session="s2") is None
    assert (change := look(JOB, None, missing=2, session="s2")) is not None and "was restarted" in change.reason
    assert look(JOB, None, missing=59) is None
    assert (change := look(JOB, None, missing=60)) is not None and "knows it no more (deleted there?)" in change.reason


# --- frozen jobs ------------------------------------------------------------------------------------------------------

FROZEN = replace(
    JOB,
    flex=replace(FLEX, pausable=Pausable.FREEZE, freeze_max_s=120.0, max_attempts=2),
    frozen_at=NOW - timedelta(seconds=30),
    rested_at=NOW - timedelta(seconds=20),
)


@pytest.mark.parametrize(
    ("job", "status", "to"),
    [
        (FROZEN, st(RayStatus.SUCCEEDED), JobState.SUCCEEDED),
        (FROZEN, st(RayStatus.FAILED, exit_code=1), JobState.FAILED),
        (FROZEN, st(RayStatus.STOPPED), JobState.CANCELLED),
        (FROZEN, st(RayStatus.FAILED, error_type="JOB_SUPERVISOR_ACTOR_DIED"), JobState.QUEUED),
        (FROZEN, None, JobState.QUEUED),
        (replace(FROZEN, flex=replace(FROZEN.flex, max_attempts=1)), None, JobState.FAILED),
        (replace(FROZEN, cancel_requested_at=EARLIER), st(RayStatus.STOPPED), JobState.CANCELLED),
        (replace(FROZEN, cancel_requested_at=EARLIER), None, JobState.CANCELLED),
    ],
)
def test_every_end_of_a_running_job_is_an_end_of_a_frozen_one(job: Job, status: AttemptStatus | None, to: JobState) -> None:
    change = look(job, status)
    assert change is not None and change.to is to
    assert change.fields["frozen_at"] is None and change.attempt_fields["frozen_s"] == pytest.approx(30.0)


def test_a_frozen_job_runs_as_far_as_its_cluster_knows() -> None:
    assert look(FROZEN, st(RayStatus.RUNNING)) is None


def test_freezing_and_thawing_are_no_moves() -> None:
    made = freeze(JOB, "must give way", NOW)
    assert (made.to, made.expect, made.expect_seq) == (None, JobState.RUNNING, JOB.seq)
    assert made.fields == {"frozen_at": NOW} and made.new_attempt is None
    back = thaw(FROZEN, replace(ATTEMPT, frozen_s=5.0), "room again", NOW)
    assert back.to is None and back.attempt_fields == {"frozen_s": 35.0}
    # It began with 10 s used up, and used 30 s more.
    assert back.fields == {"frozen_at": None, "rested_at": NOW + timedelta(seconds=40)}


def test_what_nobody_watched_is_bounded_by_what_the_job_stands() -> None:
    long_ago = replace(FROZEN, frozen_at=NOW - timedelta(hours=3), rested_at=None)
    assert thaw(long_ago, ATTEMPT, "late", NOW).attempt_fields == {"frozen_s": 120.0}
    assert thaw(FROZEN, ATTEMPT, "refused", NOW, at_most_s=0.0).attempt_fields == {"frozen_s": 0.0}


def test_a_pause_that_is_used_up_is_over() -> None:
    held = replace(FROZEN, held=True)
    assert thaw(held, ATTEMPT, "enough", NOW, used_up=True).fields["held"] is False
    assert "held" not in thaw(held, ATTEMPT, "its agents are silent", NOW).fields
