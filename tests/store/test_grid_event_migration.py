"""Databases from before events had schedules: what was stored then is an event of one step."""

from typing import Any

import pytest

from dispatcher.store import GridEvent, GridStep
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from tests.store.old_database import at_revision, put_event, url_of
from tests.store.store_samples import at


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database at revision 0006 with an event that is in force."""
    url = url_of(request, tmp_path)
    with at_revision(url, "0006") as connection:
        put_event(connection)
    return url


def test_an_event_in_force_stays_in_force(old_url: str) -> None:
    upgrade(old_url)
    store = SqlStore(old_url)
    expected = GridEvent("utility", "e", 3, "north", at(0), at(60), 5000.0, at(0), "peak")
    assert store.grid_events(ended_after=at(59)) == [expected]
    assert expected.steps == (GridStep(at(0), at(60), 5000.0, reason="peak"),)
    assert store.grid_event_changes("utility", "e") == [] and store.held_grid_event("utility", "e") is None
    store.close()
