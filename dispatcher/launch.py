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
#: What is put before the entrypoint of a job that gridshift places, and the variable with the script that it runs. Ray ends a
#: lost supervisor's children, and with them the shell that was to end the entrypoint's process group, so whatever that shell
#: had started runs on, beside the job's next attempt. This guard is no child of the supervisor. Once the supervisor is gone it
#: ends the group, as Ray means to, and what left the group but carries its mark. Tasks and actors are the raylet's children,
#: they do not carry it: detached ones live on. The guard is none of the job's processes, so that no freeze stops it. That a
#: file cannot be opened does not tell that a process is gone; ``kill -0`` does. Ray expands ``$NAME`` in such values, so the
#: script has none that a node could have set. Where a node has no ``setsid`` or ``/proc`` the entrypoint runs unguarded.
GUARD, GUARDED = "GRIDSHIFT_GUARD", 'eval "$GRIDSHIFT_GUARD"; '
_GUARD_SCRIPT = """( unset GRIDSHIFT_JOB_ID; setsid sh -c '
[ -r /proc/self/stat ] || exit
while kill -0 "$1"; do
stat=; read -r stat <"/proc/$1/stat"; case $stat in *") Z "*) break;; esac; sleep 1
done
kill -9 "-$2"
while left=`grep -lzxF "GRIDSHIFT_ENTRYPOINT=$3" /proc/[0-9]*/environ | cut -d/ -f3 | grep .`; do kill -9 $left; sleep 1; done
' gridshift-guard "$PPID" "$$" {mark} & ) </dev/null >/dev/null 2>&1
export GRIDSHIFT_ENTRYPOINT={mark}"""


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
    that was sent to a type of GPU asks Ray for nodes with it, unless the job's own label selector says which it wants. The
    entrypoint of a job that is passed through is untouched; that of others gets its guard."""
    runtime_env: dict[str, Any] = dict(job.request.runtime_env)
    ours = {
        "GRIDSHIFT_JOB_ID": job.id,
        "GRIDSHIFT_ATTEMPT": str(attempt.attempt),
        "GRIDSHIFT_URL": env.url,
        "GRIDSHIFT_JOB_TOKEN": env.token,
        "GRIDSHIFT_CHECKPOINT_DIR": env.checkpoint_dir,
    }
    guarded = job.flex.flexible
    if guarded:
        ours[GUARD] = _GUARD_SCRIPT.format(mark=attempt.submission_id)
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
        entrypoint=GUARDED + request.entrypoint if guarded else request.entrypoint,
        runtime_env=runtime_env,
        metadata=request.metadata,
        entrypoint_num_cpus=request.entrypoint_num_cpus,
        entrypoint_num_gpus=request.entrypoint_num_gpus,
        entrypoint_memory=request.entrypoint_memory,
        entrypoint_resources=request.entrypoint_resources,
        entrypoint_label_selector=selector,
    )
