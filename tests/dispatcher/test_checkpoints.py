"""Checkpoint folders go with their jobs, and no sooner."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from dispatcher.checkpoints import tidy
from dispatcher.store import Job, Request
from policies.flexibility import parse_flexibility
from policies.world import JobState

NOW = datetime(2026, 3, 2, tzinfo=UTC)
FLEX = parse_flexibility({}, now=NOW, gpus_requested=0.0, regions=["a"])
ENDED = Job("j", Request("true"), FLEX, JobState.SUCCEEDED, NOW, NOW, finished_at=NOW)


def test_what_deleted_jobs_saved_goes_and_what_finished_ones_left_empty(tmp_path: Path) -> None:
    jobs = {
        "deleted": replace(ENDED, deleted_at=NOW),
        "empty": ENDED,
        "kept": ENDED,
        "failed": replace(ENDED, state=JobState.FAILED),
        "paused": replace(ENDED, state=JobState.PAUSED, finished_at=None),
    }
    for name in (*jobs, "stranger"):
        (tmp_path / name).mkdir()
    for name in ("deleted", "kept"):
        (tmp_path / name / "step").write_text("7")
    elsewhere = tmp_path.parent / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "linked").symlink_to(elsewhere)
    jobs["linked"] = replace(ENDED, deleted_at=NOW)
    assert tidy([tmp_path, tmp_path, tmp_path / "nowhere"], jobs.get) == ["deleted", "empty"]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["failed", "kept", "linked", "paused", "stranger"] and elsewhere.is_dir()
