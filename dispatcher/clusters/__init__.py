"""The seam to a Ray cluster, shaped by what the control plane needs; `ray_http.py` speaks to real ones over the Jobs API,
`simulated.py` is a cluster with a memory for simulation and tests. Both pass the same contract test."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class RayStatus(StrEnum):
    """Ray's own job statuses."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Who answered: ``session`` changes when the head was restarted. ``gpus`` is the total the cluster's nodes report
    (None when it could not be read)."""

    session: str
    ray_version: str
    gpus: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """What the cluster says of one submission; times as the cluster tells them (aware UTC, its own wall clock).
    ``started_at`` is when it took the submission, which Ray calls its start, not when the entrypoint began to run."""

    status: RayStatus
    message: str = ""
    error_type: str | None = None
    exit_code: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """The body of Ray's ``POST /api/jobs/`` for one attempt; absent fields are left out on the wire."""

    submission_id: str
    entrypoint: str
    runtime_env: Mapping[str, Any]
    metadata: Mapping[str, str]
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: Mapping[str, float] | None = None
    entrypoint_label_selector: Mapping[str, str] | None = None


class Cluster(Protocol):
    """One Ray cluster. Calls block; each has a time limit. A call that got no answer raises ClusterUnreachable, after which
    nothing may be assumed of what it did."""

    region: str

    def info(self) -> ClusterInfo:
        """Ask who is there."""
        ...

    def statuses(self, submission_ids: Sequence[str]) -> dict[str, AttemptStatus | None]:
        """The status of each; None where the cluster answered that it knows no such submission. One that was not asked for
        this time (too many at once) is left out."""
        ...

    def submit(self, submission: Submission, packages: Mapping[str, Path], *, maybe_sent: bool) -> None:
        """Deliver ``packages`` (package name -> file) that the cluster lacks, then submit. With ``maybe_sent`` it first asks
        whether the id exists, and does nothing more if so, and an answer "already exists" is success; without it, it is
        somebody else's submission. Raises LaunchRefused when the cluster answered that it will not, ClusterUnreachable when it
        did not answer."""
        ...

    def stop(self, submission_id: str) -> None:
        """Ask for a stop; a submission that is unknown or has ended is no error."""
        ...

    def delete(self, submission_id: str) -> None:
        """Forget an ended submission; unknown is no error."""
        ...

    def copy_logs(self, submission_id: str, take: Callable[[str], bool]) -> bool:
        """Hand the log to ``take`` in pieces, until it wants no more; False when the cluster knows no such submission."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...
