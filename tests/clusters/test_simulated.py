"""What only the simulated cluster does: virtual time, checkpoints, and failures on demand."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dispatcher.clock import VirtualClock
from dispatcher.clusters import RayStatus, Submission
from dispatcher.clusters.simulated import SimulatedCluster, Workload
from dispatcher.errors import ClusterUnreachable
from tests.helpers import log_of

START = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


def sub(sid: str, **env: str) -> Submission:
    return Submission(sid, "train", {"env_vars": env}, {}, entrypoint_num_gpus=1)


def status(cluster: SimulatedCluster, sid: str) -> RayStatus | None:
    found = cluster.statuses([sid])[sid]
    return found.status if found else None


def run_out(cluster: SimulatedCluster, clock: VirtualClock) -> datetime:
    """Jump from event to event until none is left."""
    while (at := cluster.next_event_at()) is not None:
        clock.move_to(at)
    return clock.now()


def test_a_simulation_can_jump_from_event_to_event(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock, gpus=1, workloads={"a": Workload(run_s=3600), "b": Workload(run_s=60)})
    assert cluster.next_event_at() is None
    cluster.submit(sub("a-1"), {}, maybe_sent=False)
    cluster.submit(sub("b-1"), {}, maybe_sent=False)
    assert (status(cluster, "a-1"), status(cluster, "b-1")) == (RayStatus.RUNNING, RayStatus.PENDING)
    assert cluster.next_event_at() == START + timedelta(seconds=3600)
    assert run_out(cluster, clock) == START + timedelta(seconds=3660)
    assert status(cluster, "b-1") is RayStatus.SUCCEEDED
    assert cluster.gpus_used() == 0


def test_late_looks_see_the_same_history(clock: VirtualClock) -> None:
    wall = lambda: clock.now().timestamp()  # noqa: E731
    work = {"a": Workload(run_s=100), "b": Workload(run_s=50)}
    cluster = SimulatedCluster("r", clock, gpus=1, workloads=work, wall=wall, start_s=2)
    cluster.submit(sub("a-1"), {}, maybe_sent=False)
    cluster.submit(sub("b-1"), {}, maybe_sent=False)
    clock.advance(1000)
    b = cluster.statuses(["b-1"])["b-1"]
    assert b is not None
    assert (b.started_at, b.ended_at) == (START, START + timedelta(seconds=152))


def test_a_run_length_can_come_with_the_job(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock)
    cluster.submit(sub("a-1", **{"gridshift.sim_runtime_s": "90"}), {}, maybe_sent=False)
    assert cluster.next_event_at() == START + timedelta(seconds=90)


def test_a_checkpoint_moves_progress_to_another_cluster(clock: VirtualClock) -> None:
    work = {"a": Workload(run_s=100, checkpoint_s=10, restart_s=5)}
    saved: list[tuple[str, datetime]] = []
    one = SimulatedCluster("one", clock, workloads=work, on_checkpoint=lambda sid, at: saved.append((sid, at)))
    two = SimulatedCluster("two", clock, workloads=work)
    one.submit(sub("a-1"), {}, maybe_sent=False)
    clock.advance(40)
    one.request_checkpoint("a-1")
    assert one.next_event_at() == START + timedelta(seconds=50)
    clock.advance(10)
    one.stop("a-1")
    assert saved == [("a-1", START + timedelta(seconds=50))]
    assert work["a"].saved_s == 40
    assert status(one, "a-1") is RayStatus.STOPPED
    two.submit(sub("a-2"), {}, maybe_sent=False)
    # 60 s of work are left, and 5 s to begin again.
    assert two.next_event_at() == clock.now() + timedelta(seconds=65)


def test_a_stop_without_a_checkpoint_loses_the_work(clock: VirtualClock) -> None:
    work = {"a": Workload(run_s=100, checkpoint_s=None)}
    cluster = SimulatedCluster("r", clock, workloads=work, stop_s=3)
    cluster.submit(sub("a-1"), {}, maybe_sent=False)
    clock.advance(40)
    cluster.request_checkpoint("a-1")
    cluster.stop("a-1")
    assert status(cluster, "a-1") is RayStatus.RUNNING
    clock.advance(3)
    assert status(cluster, "a-1") is RayStatus.STOPPED
    assert work["a"].saved_s == 0


def test_going_on_after_a_checkpoint_ends_later_by_its_cost(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock, workloads={"a": Workload(run_s=100, checkpoint_s=10)})
    cluster.submit(sub("a-1"), {}, maybe_sent=False)
    clock.advance(40)
    cluster.request_checkpoint("a-1")
    cluster.request_checkpoint("a-1")
    assert run_out(cluster, clock) == START + timedelta(seconds=110)


def test_a_stopped_job_that_waits_for_gpus_goes_on_waiting(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock, gpus=1, workloads={"a": Workload(run_s=100)})
    cluster.submit(sub("a-1"), {}, maybe_sent=False)
    cluster.submit(sub("b-1"), {}, maybe_sent=False)
    cluster.stop("b-1")
    clock.advance(50)
    assert status(cluster, "b-1") is RayStatus.PENDING
    clock.advance(50)
    assert status(cluster, "b-1") is RayStatus.STOPPED


def test_down_and_lost_answers(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock)
    cluster.down = True
    with pytest.raises(ClusterUnreachable) as caught:
        cluster.submit(sub("a-1"), {}, maybe_sent=False)
    assert caught.value.maybe_sent is False
    cluster.down, cluster.lost_answers = False, 1
    assert cluster.lost_answers == 1
    with pytest.raises(ClusterUnreachable) as caught:
        cluster.submit(sub("a-1"), {}, maybe_sent=False)
    assert caught.value.maybe_sent is True
    assert status(cluster, "a-1") is RayStatus.RUNNING


def test_a_restart_forgets_everything(clock: VirtualClock, tmp_path: Path) -> None:
    file = tmp_path / "p.zip"
    file.write_bytes(b"z")
    cluster = SimulatedCluster("r", clock)
    before = cluster.info().session
    cluster.submit(sub("a-1"), {"p.zip": file}, maybe_sent=False)
    cluster.restart()
    assert cluster.info().session != before
    assert status(cluster, "a-1") is None
    assert cluster.packages() == frozenset()
    assert cluster.gpus_used() == 0
    assert cluster.next_event_at() is None


def test_a_job_whose_package_vanished_fails_as_on_ray(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock)
    job = Submission("a-1", "train", {"working_dir": "gcs://p.zip"}, {})
    cluster.submit(job, {}, maybe_sent=False)
    run_out(cluster, clock)
    found = cluster.statuses(["a-1"])["a-1"]
    assert found is not None
    assert (found.status, found.error_type) == (RayStatus.FAILED, "RUNTIME_ENV_SETUP_FAILURE")
    assert clock.now() == START + timedelta(seconds=6)


def test_a_running_job_is_not_deleted(clock: VirtualClock) -> None:
    cluster = SimulatedCluster("r", clock)
    cluster.submit(sub("a-1"), {}, maybe_sent=False)
    with pytest.raises(ClusterUnreachable, match="will not delete"):
        cluster.delete("a-1")
    cluster.say("a-1", "epoch 1\n")
    assert (log_of(cluster, "a-1") or "").endswith("epoch 1\n")
