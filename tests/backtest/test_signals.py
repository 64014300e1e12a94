"""Signals of a backtest: files joined by region and time, gaps that stay gaps, and what is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.backtest import signals
from dispatcher.backtest.scenario import SignalTable
from dispatcher.errors import BadInput
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality, SignalPoint
from tests.helpers import data_dir

T0 = datetime(2023, 1, 1, tzinfo=UTC)
H = timedelta(hours=1)


def stamp(hour: float) -> str:
    return (T0 + hour * H).strftime("%Y-%m-%dT%H:%MZ")


def put(folder: Path, name: str, header: str, rows: list[str]) -> Path:
    path = folder / name
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def prices(folder: Path, hours: list[float], name: str = "p.csv", region: str = "X", base: float = 10) -> Path:
    return put(folder, name, "datetime_utc,region,price_usd_mwh", [f"{stamp(h)},{region},{base + h:g}" for h in hours])


def problems_of(*paths: Path | str, regions: tuple[str, ...] = ("X",), **options: str) -> list[tuple[str, object, str]]:
    with pytest.raises(BadInput) as caught:
        signals.read(list(paths), list(regions), **options)
    return caught.value.problems


def test_files_are_joined_by_region_and_time(tmp_path: Path) -> None:
    carbon = put(
        tmp_path,
        "c.csv",
        "datetime_utc,region,zone_id,ci_direct_gco2_kwh,ci_lca_gco2_kwh",
        [f"{stamp(h)},{region},Z,{100 + h},{200 + h}" for region in ("X", "Y") for h in range(4)],
    )
    found = signals.read([prices(tmp_path, [0, 1]), prices(tmp_path, [2, 3], "q.csv"), carbon], ["X", "Y"])
    table = found.by_region["X"]
    assert (table.start, table.slot_s, table.currency) == (T0, 3600, "USD")
    assert table.price is not None
    assert table.price.tolist() == [10, 11, 12, 13]
    assert table.carbon is not None
    assert table.carbon.tolist() == [200, 201, 202, 203]
    assert found.by_region["Y"].price is None
    direct = signals.read([carbon], ["Y"], carbon="direct").by_region["Y"]
    assert direct.carbon is not None
    assert direct.carbon.tolist() == [100, 101, 102, 103]
    assert direct.carbon_variant == "direct"


def test_missing_hours_stay_unknown_and_are_told(tmp_path: Path) -> None:
    rows = [f"{stamp(h)},X,{value}" for h, value in ((0, 1), (1, ""), (2, 3), (5, 6), (6, -7))]
    table = signals.read([put(tmp_path, "p.csv", "datetime_utc,region,price_eur_mwh", rows)], ["X"]).by_region["X"]
    assert table.price is not None
    np.testing.assert_array_equal(table.price, [1, np.nan, 3, np.nan, np.nan, 6, -7])
    told = signals.gaps(table, T0, T0 + 7 * H)
    assert "unknown for 3 h, the longest stretch being 2 h" in told[0]
    assert told[1] == "X has no carbon signal."
    assert len(signals.gaps(table, T0 + 5 * H, T0 + 7 * H)) == 1


def test_order_and_repetition(tmp_path: Path) -> None:
    found = signals.read([prices(tmp_path, [3, 1, 2, 0, 2])], ["X"])
    assert found.by_region["X"].price is not None
    assert found.by_region["X"].price.tolist() == [10, 11, 12, 13]
    assert any("out of order" in word for word in found.said)
    assert any("1 rows twice" in word for word in found.said)
    other = prices(tmp_path, [2], "q.csv", base=99)
    found_problem = problems_of(prices(tmp_path, [0, 1, 2]), other)[0]
    assert found_problem[0] == "p.csv line 4 and q.csv line 2"
    assert found_problem[1] == "12 and 101"


def test_bad_values_are_named(tmp_path: Path) -> None:
    rows = [
        f"{stamp(0)},X,1",
        f"{stamp(1)},X,nan",
        f"{stamp(2)},X,inf",
        "yesterday,X,3",
        f"{stamp(4)},X,-1",
        f"{stamp(5)},X,a",
    ]
    path = put(tmp_path, "c.csv", "datetime_utc,region,ci_lca_gco2_kwh", rows)
    where = [each[0] for each in problems_of(path)]
    for line in (3, 4, 5, 6, 7):
        assert any(f"line {line}," in each for each in where)
    wild = put(tmp_path, "w.csv", "datetime_utc,region,price_usd_mwh", [f"{stamp(0)},X,1e300", f"{stamp(1)},X,-5000"])
    assert problems_of(wild) == [("w.csv line 2, column price_usd_mwh", "1e300", "must be " + signals._WANTED["price"])]
    nameless = put(tmp_path, "m.csv", "datetime_utc,region,price_mwh", [f"{stamp(0)},X,1", f"{stamp(1)},X,5"])
    assert "price_eur_mwh" in problems_of(nameless)[0][2]
    naive = put(tmp_path, "n.csv", "datetime,region,price_eur_mwh", ["2023-01-01T00:00,X,1", "2023-01-01T01:00,X,1"])
    assert "UTC offset" in problems_of(naive)[0][2]


def test_unknown_regions_are_refused_with_those_there_are(tmp_path: Path) -> None:
    found = problems_of(prices(tmp_path, [0, 1]), prices(tmp_path, [0, 1], "q.csv", region="Y"), regions=("X", "Z"))
    assert found == [("regions", "Z", "is in none of the signal files; there are X, Y")]
    assert "each once" in problems_of(prices(tmp_path, [0, 1]), regions=("X", "X"))[0][2]


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert "needs a column" in problems_of(put(tmp_path, "a.csv", "time,value", ["1,2"]))[0][2]
    assert "5, 15, 30 or 60 minutes" in problems_of(prices(tmp_path, [0, 1, 1.7]))[0][2]
    assert "at least two" in problems_of(prices(tmp_path, [0]))[0][2]
    euro = put(tmp_path, "e.csv", "datetime_utc,region,price_eur_mwh", [f"{stamp(9)},X,1"])
    assert "another file" in problems_of(prices(tmp_path, [0, 1]), euro)[0][2]
    assert "lca, direct" in problems_of(prices(tmp_path, [0, 1]), carbon="average")[0][2]


def test_a_file_without_regions_is_whose_it_is_said_to_be(tmp_path: Path) -> None:
    path = put(tmp_path, "p.csv", "datetime_utc,price_eur_mwh", [f"{stamp(h)},{h}" for h in range(3)])
    assert signals.read([path], ["X"]).by_region["X"].currency == "EUR"
    assert signals.read([f"Y={path}", prices(tmp_path, [0, 1], "q.csv")], ["X", "Y"]).by_region["Y"].slots == 3
    assert "REGION=FILE" in problems_of(path, regions=("X", "Y"))[0][2]
    assert "none of the regions" in problems_of(f"W={path}")[0][2]


def test_quarters_and_hours_on_one_grid(tmp_path: Path) -> None:
    """A market that goes over to quarters, beside hourly carbon: an hour's value holds in each of its quarters."""
    price = prices(tmp_path, [0, 1, 2, 2.25, 2.5, 2.75])
    carbon = put(tmp_path, "c.csv", "datetime_utc,region,ci_lca_gco2_kwh", [f"{stamp(h)},X,{h}" for h in (1, 2)])
    table = signals.read([price, carbon], ["X"]).by_region["X"]
    assert table.slot_s == 900
    assert table.price is not None
    assert table.carbon is not None
    assert table.price.tolist() == [10] * 4 + [11] * 4 + [12, 12.25, 12.5, 12.75]
    np.testing.assert_array_equal(table.carbon, [np.nan] * 4 + [1] * 4 + [2] * 4)
    assert signals.covered(table) == (T0 + H, T0 + 3 * H)


def test_what_is_not_covered_is_refused() -> None:
    table = SignalTable("X", T0, 3600, np.arange(10.0), None)
    signals.check_covered({"X": table}, T0, T0 + 10 * H)
    with pytest.raises(BadInput, match=r"cover 2023-01-01T00:00:00.*2023-01-01T10:00:00"):
        signals.check_covered({"X": table}, T0, T0 + 11 * H)


def test_beyond_its_end_a_table_repeats_its_last_week() -> None:
    values = np.arange(24.0 * 10)
    table = SignalTable("X", T0, 3600, values, None)
    longer = signals.extended(table, T0 + 24 * 20 * H)
    assert longer.price is not None
    assert longer.price[:240].tolist() == values.tolist()
    assert longer.price[240:].tolist() == [*values[-168:], *values[-168:-96]]
    assert signals.extended(table, T0 + H) is table


@given(st.sets(st.integers(0, 60), min_size=3, max_size=40), st.randoms())
def test_every_row_is_where_it_belongs_and_nothing_else_is_known(hours: set[int], random: object) -> None:
    import tempfile

    order = sorted(hours)
    random.shuffle(order)  # type: ignore[attr-defined]
    if min(b - a for a, b in zip(sorted(hours), sorted(hours)[1:], strict=False)) > 1:
        return  # then hours are not the grid
    with tempfile.TemporaryDirectory() as folder:
        table = signals.read([prices(Path(folder), [float(h) for h in order], base=0)], ["X"]).by_region["X"]
    assert table.price is not None
    first = min(hours)
    assert {first + i: value for i, value in enumerate(table.price.tolist()) if value == value} == {h: float(h) for h in hours}


def test_signals_that_an_installation_stored() -> None:
    store = MemorySignalStore()

    def point(hour: int, value: float, retrieved_h: int, quality: Quality = Quality.MEASURED) -> SignalPoint:
        at = T0 + retrieved_h * H
        span = (T0 + hour * H, T0 + (hour + 1) * H)
        return SignalPoint("X", Kind.PRICE, "EUR/MWh", *span, None, at, value, quality, "feed")

    store.append([point(h, float(h), h) for h in (0, 1, 2, 4)] + [point(2, 20.0, 5), point(5, 9.0, 1, Quality.SUSPECT)])
    found = signals.from_store(store, ["X"], T0, T0 + 6 * H, T0 + 10 * H)
    table = found.by_region["X"]
    assert (table.currency, table.source, table.carbon) == ("EUR", "store", None)
    assert table.price is not None
    np.testing.assert_array_equal(table.price, [0, 1, 20, np.nan, 4])
    with pytest.raises(BadInput, match="no stored price or carbon"):
        signals.from_store(store, ["Y"], T0, T0 + 6 * H, T0 + 10 * H)


def test_the_open_data() -> None:
    folder = data_dir() / "traces"
    found = signals.read([folder / "price_hourly_2023.csv.gz", folder / "carbon_hourly_2023.csv.gz"], ["DE-LU", "US-CAL-CISO"])
    for table in found.by_region.values():
        assert (table.slots, table.slot_s, table.currency) == (8760, 3600, "USD")
        assert signals.gaps(table, table.start, table.end) == []
    assert not found.said
