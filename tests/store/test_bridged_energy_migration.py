"""Rows of energy from before it was kept how much of them only a counter knows: they stay, and count as read throughout."""

from typing import Any

import pytest
from sqlalchemy import text

from dispatcher.power.energy import EnergyBook
from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from tests.power.energy_samples import T0, T0_S, at, wire
from tests.store.old_database import at_revision, url_of


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database at revision 0008 with a minute of energy."""
    url = url_of(request, tmp_path)
    with at_revision(url, "0008") as connection:
        connection.execute(
            text(
                "INSERT INTO energy_minute (node_id, uuid, start_s, job_id, line, end_s, region, energy_wh, seconds, quality, "
                f"split, simulated) VALUES ('n1', 'GPU-0', {T0_S}, 'j', 'job', {T0_S + 60}, 'north', 6.0, 60.0, 'measured', "
                "'exclusive', false)"
            )
        )
    return url


def test_earlier_rows_stay_and_later_ones_say_what_only_counters_know(old_url: str) -> None:
    upgrade(old_url)
    engine = make_engine(database(old_url))
    book = EnergyBook(engine)
    assert book.take([wire(1, bridged_s=20.0)], at(3600)).result(10).new == 1
    assert [(one.energy_wh, one.bridged_s) for one in book.sums(T0, at(120), 60)] == [(6.0, 0.0), (6.0, 20.0)]
    book.close()
    engine.dispose()
