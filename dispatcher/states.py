"""The life of a job as a table: every allowed edge with its reason. Nothing else may change a state.

A frozen job is ``running``: its attempt lives, keeps its GPUs and its memory, and is the one live attempt of its job. That
it stands still is said of its run (``frozen_at``), not of its state, so every end of a running job is an end of a frozen one.
"""

from dispatcher.errors import IllegalMove
from policies.world import JobState as S

EDGES: dict[tuple[S, S], str] = {
    (S.QUEUED, S.LAUNCHING): "its turn has come, or its owner asked for it to run now",
    (S.QUEUED, S.CANCELLED): "cancelled before it started",
    (S.QUEUED, S.FAILED): "no attempts left",
    (S.LAUNCHING, S.RUNNING): "the cluster runs it",
    (S.LAUNCHING, S.QUEUED): "the launch failed or was lost, or room was needed before it began",
    (S.LAUNCHING, S.PAUSED): "a resume failed or was lost; its checkpoint stands",
    (S.LAUNCHING, S.SUCCEEDED): "it ended before it was seen running",
    (S.LAUNCHING, S.FAILED): "the cluster refused it, or it failed at once",
    (S.LAUNCHING, S.CANCELLED): "cancelled while starting",
    (S.RUNNING, S.PAUSING): "asked for a checkpoint",
    (S.RUNNING, S.SUCCEEDED): "it ended well",
    (S.RUNNING, S.FAILED): "it ended badly",
    (S.RUNNING, S.CANCELLED): "cancelled while running",
    (S.RUNNING, S.QUEUED): "its attempt was lost",
    (S.PAUSING, S.PAUSED): "checkpoint saved, attempt stopped",
    (S.PAUSING, S.RUNNING): "it did not answer the request for a checkpoint, or the request was withdrawn",
    (S.PAUSING, S.SUCCEEDED): "it ended well before it could be paused",
    (S.PAUSING, S.FAILED): "it failed while pausing",
    (S.PAUSING, S.CANCELLED): "cancelled while pausing",
    (S.PAUSING, S.QUEUED): "its attempt was lost while pausing",
    (S.PAUSED, S.LAUNCHING): "its turn has come again, or its owner asked for it to run now",
    (S.PAUSED, S.CANCELLED): "cancelled while paused",
}


def check_move(job_id: str, old: S, new: S, story: str = "") -> str:
    """Return the edge's reason, or raise IllegalMove with the job's story."""
    try:
        return EDGES[(old, new)]
    except KeyError:
        allowed = ", ".join(str(b) for a, b in EDGES if a is old) or "nothing: it has ended"
        raise IllegalMove(f"job {job_id}: {old} -> {new} is not allowed (from {old}: {allowed}). {story}".strip()) from None
