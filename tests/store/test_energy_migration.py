"""Databases from before energy was measured: what was booked then was modelled, and is called so."""

from typing import Any

import pytest
from alembic import command
from sqlalchemy import insert

from dispatcher.store.codec import JOB_INSERT, job_values
from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import _config, upgrade
from dispatcher.store.sql import SqlStore
from dispatcher.store.tables import JOB
from policies.world import JobState
from tests.store.store_samples import at, job


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database at revision 0003 with two ended jobs, the energy of one of them unknown."""
    url = f"sqlite:///{tmp_path}/old.db" if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    engine = make_engine(database(url), create=True)
    with engine.execution_options(write=True).begin() as connection:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0003")
        for seq, energy_kwh in ((1, 0.5), (2, None)):
            one = job(f"j{seq}", state=JobState.SUCCEEDED, finished_at=at(9), seq=seq, energy_kwh=energy_kwh)
            values = dict(zip(JOB_INSERT, job_values(one), strict=True))
            for later in ("energy_basis", "frozen_at", "rested_at", "run_now_at"):
                del values[later]
            connection.execute(insert(JOB).values(values))
    engine.dispose()
    return str(url)


def test_what_was_booked_before_was_modelled(old_url: str) -> None:
    upgrade(old_url)
    store = SqlStore(old_url)
    known, unknown = store.job("j1"), store.job("j2")
    assert known is not None and unknown is not None
    assert (known.energy_kwh, known.energy_basis) == (0.5, "modelled")
    assert (unknown.energy_kwh, unknown.energy_basis) == (None, None)
    store.close()
