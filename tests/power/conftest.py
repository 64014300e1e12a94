"""What tests of measured energy share: rows as agents send them, and a book on each database."""

from collections.abc import Iterator

import pytest

from dispatcher.power.energy import EnergyBook
from dispatcher.store.engine import database, make_engine


@pytest.fixture
def book(database_url: str) -> Iterator[EnergyBook]:
    """An empty book on each database."""
    engine = make_engine(database(database_url))
    one = EnergyBook(engine)
    yield one
    one.close()
    engine.dispose()
