"""Rows of energy as agents send them."""

from datetime import UTC, datetime, timedelta
from typing import Any

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
T0_S = int(T0.timestamp())


def at(seconds: float) -> datetime:
    """A moment after T0."""
    return T0 + timedelta(seconds=seconds)


def wire(minute: int = 0, job_id: str | None = "j", **more: Any) -> dict[str, Any]:
    """A row of a minute after T0, 6 Wh of one job on one GPU."""
    start = T0_S + 60 * minute
    row: dict[str, Any] = {"node_id": "n1", "region": "north", "simulated": False, "uuid": "GPU-0", "start": start}
    row |= {"end": start + 60, "job_id": job_id, "line": "job" if job_id else "idle", "energy_wh": 6.0, "seconds": 60.0}
    return row | {"quality": "measured", "split": "exclusive", "mean_w": 360.0, "throttled_s": 0.0, "idle_wh": 0.0} | more
