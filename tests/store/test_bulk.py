"""Statements for many rows: whatever the number, every row is written once and as it was."""

import threading

import pytest

from dispatcher.store.codec import flex_json
from dispatcher.store.sql import SqlStore
from tests.store.store_samples import job


@pytest.mark.parametrize("count", [1, 2, 3, 63, 64, 65, 130])
def test_a_batch_of_any_size_is_stored_whole(database_url: str, count: int) -> None:
    store = SqlStore(database_url)
    hold, holding = threading.Event(), threading.Event()

    def block(_: object) -> None:
        holding.set()
        assert hold.wait(20)

    blocked = store._call(block)
    assert holding.wait(20)
    futures = [store.add_job(job(f"j{n}"), "submitted") for n in range(count)]  # in line together: one transaction
    again = store.add_job(job("j0"), "submitted")
    hold.set()
    blocked.result(20)
    stored = [future.result(20) for future in futures]
    assert [one.seq for one in stored] == list(range(1, count + 1))
    assert again.exception(20) is not None
    assert all(store.job(one.id) == one and len(store.events(one.id)) == 1 for one in stored)
    store.close()


def test_equal_values_of_other_types_keep_their_types() -> None:
    """Texts of flexibilities are remembered; 3600 and 3600.0 are equal and not the same."""
    from dataclasses import replace

    flex = job("a").flex
    whole, broken = flex_json(replace(flex, runtime_s=3600)), flex_json(replace(flex, runtime_s=3600.0))
    assert '"runtime_s":3600,' in whole and '"runtime_s":3600.0,' in broken
