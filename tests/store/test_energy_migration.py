"""Databases from before energy was measured: what was booked then was modelled, and is called so."""

from typing import Any

import pytest
from sqlalchemy import insert

from dispatcher.store.codec import JOB_INSERT, job_values
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from dispatcher.store.tables import JOB
from policies.world import JobState
from tests.store.old_database import at_revision, url_of
from tests.store.store_samples import at, job


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database at revision 0003 with two ended jobs, the energy of one of them unknown."""
    url = url_of(request, tmp_path)
    with at_revision(url, "0003") as connection:
        for seq, energy_kwh in ((1, 0.5), (2, None)):
            one = job(f"j{seq}", state=JobState.SUCCEEDED, finished_at=at(9), seq=seq, energy_kwh=energy_kwh)
            values = dict(zip(JOB_INSERT, job_values(one), strict=True))
            for later in ("energy_basis", "frozen_at", "rested_at", "run_now_at"):
                del values[later]
            connection.execute(insert(JOB).values(values))
    return url


def test_what_was_booked_before_was_modelled(old_url: str) -> None:
    upgrade(old_url)
    store = SqlStore(old_url)
    known, unknown = store.job("j1"), store.job("j2")
    assert known is not None and unknown is not None
    assert (known.energy_kwh, known.energy_basis) == (0.5, "modelled")
    assert (unknown.energy_kwh, unknown.energy_basis) == (None, None)
    store.close()
