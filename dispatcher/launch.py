"""What one attempt of a job looks like to a Ray cluster: pure, from the stored request to the body of a submission.

It knows nothing of clusters or of the network; the caller gives the addresses and tokens that go into the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dispatcher.clusters import Submission
from dispatcher.store import Attempt, Job
from policies.world import Pausable

#: The node label under which Ray keeps the type of a node's GPUs.
ACCELERATOR_TYPE = "ray.io/accelerator-type"
#: Ray kills a stopped entrypoint after 3 s by default, too soon for a checkpoint on cancel; it obeys this variable.
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"
MAX_STOP_WAIT_S = 300


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What an attempt needs to know to speak with the control plane; ``helper_uri`` is the package of the in-job helpers."""

    url: str
    token: str
    checkpoint_dir: str
    helper_uri: str | None
    clock_speed: float = 1.0


def submission_id(job_id: str, attempt: int) -> str:
    """The id under which Ray knows an attempt; a crash between acting and recording cannot start one twice."""
    return f"{job_id}-{attempt}"


def submission_for(job: Job, attempt: Attempt, env: JobEnvironment) -> Submission:
    """The body to POST for ``attempt``. The user's runtime_env is kept; our variables are added to its ``env_vars``, and for
    checkpoint jobs the in-job helpers to its ``py_modules`` so that the cluster need not have gridshift installed. An attempt
    that was sent to a type of GPU asks Ray for nodes with it, unless the job's own label selector says which it wants."""
    runtime_env: dict[str, Any] = dict(job.request.runtime_env)
    ours = {
        "GRIDSHIFT_JOB_ID": job.id,
        "GRIDSHIFT_ATTEMPT": str(attempt.attempt),
        "GRIDSHIFT_URL": env.url,
        "GRIDSHIFT_JOB_TOKEN": env.token,
        "GRIDSHIFT_CHECKPOINT_DIR": env.checkpoint_dir,
    }
    user_vars: Mapping[str, str] = runtime_env.get("env_vars") or {}
    stop_wait: dict[str, str] = {}
    if job.flex.pausable is Pausable.CHECKPOINT:
        wait_s = min(max(10, round(job.flex.checkpoint_s / env.clock_speed)), MAX_STOP_WAIT_S)
        stop_wait = {STOP_WAIT: str(wait_s)}
        if env.helper_uri is not None:
            runtime_env["py_modules"] = [*(runtime_env.get("py_modules") or []), env.helper_uri]
    runtime_env["env_vars"] = {**stop_wait, **user_vars, **ours}
    request = job.request
    selector = request.entrypoint_label_selector
    if attempt.gpu_type is not None:
        selector = {ACCELERATOR_TYPE: attempt.gpu_type, **(selector or {})}
    return Submission(
        submission_id=attempt.submission_id,
        entrypoint=request.entrypoint,
        runtime_env=runtime_env,
        metadata=request.metadata,
        entrypoint_num_cpus=request.entrypoint_num_cpus,
        entrypoint_num_gpus=request.entrypoint_num_gpus,
        entrypoint_memory=request.entrypoint_memory,
        entrypoint_resources=request.entrypoint_resources,
        entrypoint_label_selector=selector,
    )
