"""Tidies the folders that jobs keep their checkpoints in: a deleted job's goes, and one that a finished job left empty.

It looks only where this machine itself sees such a folder: a region may have storage of its own, which is its operator's. It
never touches what belongs to no job it knows, nor a job that may still run.
"""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from dispatcher.store import Job
from policies.world import JobState

log = logging.getLogger(__name__)


def tidy(roots: Iterable[Path], job_of: Callable[[str], Job | None]) -> list[str]:
    """Remove what is not needed any more below ``roots``; returns the jobs' ids. A folder that cannot be removed is logged."""
    gone: list[str] = []
    for root in dict.fromkeys(roots):
        with contextlib.suppress(OSError):
            names = [entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
            gone += [name for name in sorted(names) if _tidied(root / name, job_of(name))]
    return gone


def _tidied(folder: Path, job: Job | None) -> bool:
    """Whether a job's folder was removed."""
    if job is None or job.finished_at is None:
        return False
    try:
        if job.deleted_at is not None:
            shutil.rmtree(folder)
            return True
        if job.state is JobState.SUCCEEDED and not any(folder.iterdir()):
            folder.rmdir()
            return True
    except OSError as error:
        log.warning("the checkpoints of %s stay: %s", job.id, error)
    return False
