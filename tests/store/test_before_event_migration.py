"""Databases from before anything was kept when notice of an event came: nothing is known of earlier events."""

from typing import Any

import pytest

from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from tests.store.old_database import at_revision, put_event, url_of
from tests.store.store_samples import at, before_event


@pytest.fixture(params=["sqlite", "postgres"])
def old_url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    """A database at revision 0007 with an event that is in force."""
    url = url_of(request, tmp_path)
    with at_revision(url, "0007") as connection:
        put_event(connection, protocol="native")
    return url


def test_an_earlier_event_stays_and_what_is_kept_from_then_on_outlives_the_process(old_url: str) -> None:
    upgrade(old_url)
    store = SqlStore(old_url)
    assert [one.event_id for one in store.grid_events(ended_after=at(59))] == ["e"]
    assert store.before_event("utility", "e") is None
    assert store.keep_before_event(before_event()).result(10) is True
    store.close()
    again = SqlStore(old_url)
    assert again.before_event("utility", "e") == before_event()
    again.close()
