"""What an attempt looks like to Ray."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from dispatcher.errors import IllegalMove
from dispatcher.launch import JobEnvironment, submission_for, submission_id
from dispatcher.states import EDGES, check_move
from dispatcher.store import Attempt, Job, Request
from policies.world import ENDED, Flexibility, JobState, Pausable

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ENV = JobEnvironment("http://plane:8700", "secret-token", "/shared/j", "gcs://_ray_pkg_help.zip", clock_speed=10.0)


def job(pausable: Pausable, runtime_env: dict[str, object]) -> Job:
    flex = Flexibility(True, None, None, 60.0, True, 1.0, 400.0, pausable, checkpoint_s=300.0)
    request = Request("python x.py", runtime_env, {"team": "a"}, entrypoint_num_gpus=1.0, entrypoint_resources={"x": 1.0})
    return Job("j", request, flex, JobState.LAUNCHING, NOW, NOW, attempt=2)


def test_a_checkpoint_job_gets_time_to_stop_helpers_and_its_own_environment() -> None:
    user = {
        "env_vars": {"A": "1", "GRIDSHIFT_JOB_ID": "forged"},
        "py_modules": ["gcs://mine.zip"],
        "working_dir": "gcs://w.zip",
    }
    sent = submission_for(job(Pausable.CHECKPOINT, user), Attempt("j", 2, "r", submission_id("j", 2), NOW), ENV)
    assert sent.submission_id == "j-2"
    assert sent.runtime_env["py_modules"] == ["gcs://mine.zip", "gcs://_ray_pkg_help.zip"]
    assert sent.runtime_env["working_dir"] == "gcs://w.zip"
    variables = sent.runtime_env["env_vars"]
    assert variables["A"] == "1" and variables["GRIDSHIFT_JOB_ID"] == "j" and variables["GRIDSHIFT_ATTEMPT"] == "2"
    assert variables["RAY_JOB_STOP_WAIT_TIME_S"] == "30"  # 300 s of a clock that runs ten times as fast
    assert (sent.metadata, sent.entrypoint_num_gpus, sent.entrypoint_resources) == ({"team": "a"}, 1.0, {"x": 1.0})
    assert user["env_vars"] == {"A": "1", "GRIDSHIFT_JOB_ID": "forged"}, "the stored request is untouched"


def test_a_plain_job_is_left_as_it_is_but_for_the_environment() -> None:
    sent = submission_for(job(Pausable.NO, {}), Attempt("j", 2, "r", "j-2", NOW), ENV)
    assert set(sent.runtime_env) == {"env_vars"}
    assert "RAY_JOB_STOP_WAIT_TIME_S" not in sent.runtime_env["env_vars"]


def test_the_users_own_stop_time_wins() -> None:
    sent = submission_for(
        job(Pausable.CHECKPOINT, {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "99"}}), Attempt("j", 2, "r", "j-2", NOW), ENV
    )
    assert sent.runtime_env["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"] == "99"


def test_nothing_leaves_an_ended_state_and_every_state_can_be_left_otherwise() -> None:
    for state in JobState:
        ways = [new for old, new in EDGES if old is state]
        assert bool(ways) != (state in ENDED)
        assert state in ENDED or JobState.CANCELLED in ways, f"{state} cannot be cancelled"
    with pytest.raises(IllegalMove, match=r"job j: succeeded -> running is not allowed.*it ended at noon"):
        check_move("j", JobState.SUCCEEDED, JobState.RUNNING, "it ended at noon")


@pytest.mark.parametrize(
    ("own", "gpu_type", "expected"),
    [
        (None, None, None),
        ({"zone": "1"}, None, {"zone": "1"}),
        (None, "H100", {"ray.io/accelerator-type": "H100"}),
        ({"zone": "1"}, "H100", {"ray.io/accelerator-type": "H100", "zone": "1"}),
        ({"ray.io/accelerator-type": "A100"}, "H100", {"ray.io/accelerator-type": "A100"}),
    ],
)
def test_a_type_of_gpu_is_asked_for_by_its_node_label(
    own: dict[str, str] | None, gpu_type: str | None, expected: dict[str, str] | None
) -> None:
    one = job(Pausable.NO, {})
    one = replace(one, request=replace(one.request, entrypoint_label_selector=own))
    sent = submission_for(one, Attempt("j", 2, "r", "j-2", NOW, gpu_type=gpu_type), ENV)
    assert sent.entrypoint_label_selector == expected
