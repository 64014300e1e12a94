"""What policies may know in a backtest: never too much, the forecaster's own words, and errors of its size."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatcher.backtest import forecasts
from dispatcher.backtest.forecasts import AsOf, Noisy, Perfect, hindcasts
from dispatcher.backtest.hindcast import hindcast
from dispatcher.backtest.noise import ErrorModel, Hindcasts, correlated, disturbed, error_model, hourly
from dispatcher.backtest.scenario import Known, SignalTable
from dispatcher.errors import BadInput
from signals.forecasting import History, fit

T0 = datetime(2023, 1, 2, tzinfo=UTC)
H = timedelta(hours=1)
Floats = NDArray[np.float64]


def series(days: int, seed: int = 1, level: float = 300.0) -> Floats:
    """Days that resemble each other, weekends lower, and a slow wander."""
    random = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    wander = np.zeros(24 * days)
    for i in range(1, len(wander)):
        wander[i] = 0.98 * wander[i - 1] + random.normal(0, 0.06)
    day = 0.25 * np.sin(2 * np.pi * (hours % 24) / 24) - 0.1 * (hours // 24 % 7 >= 5)
    out: Floats = level * np.exp(day + wander * 0.5)
    return out


def table(values: Floats, price: Floats | None = None, slot_s: int = 3600) -> SignalTable:
    return SignalTable("X", T0, slot_s, price, values, currency="EUR", carbon_variant="lca")


# --- the forecaster at many origins at once -------------------------------------------------------------------------


@pytest.mark.parametrize("positive", [True, False])
def test_at_a_refit_it_says_what_a_fit_says(positive: bool) -> None:
    values = series(130) - (0.0 if positive else 280.0)  # prices may be negative
    first = 24 * 110
    made = hindcast(values, first, first + 24, days=2, positive=positive)
    spread = float(np.std(values))
    for ahead in (0, 7, 23):
        origin = T0 + (first + ahead) * H
        told = fit(History(T0, 3600, values), origin, positive=positive, days=2).predict(origin, 48, 3600).point
        # another window for the oldest rows and one scale for all hours of the day: alike, not equal
        assert float(np.abs(made[ahead] - told).mean()) < 0.05 * spread
        assert float(np.abs(made[ahead] - told).max()) < 0.25 * spread


def test_it_is_better_than_the_day_before() -> None:
    values = series(150, seed=5)
    first = 24 * 100
    made = hindcast(values, first, first + 24 * 40, days=1, positive=True)
    actual = np.lib.stride_tricks.sliding_window_view(values, 24)[first : first + 24 * 40]
    before = np.lib.stride_tricks.sliding_window_view(values, 24)[first - 24 : first + 24 * 39]
    assert float(np.abs(made - actual).mean()) < 0.9 * float(np.abs(before - actual).mean())


@pytest.mark.parametrize("positive", [True, False])
def test_what_comes_later_changes_no_bit(positive: bool) -> None:
    values = series(70)
    first, moment = 24 * 40, 24 * 50 + 5
    last = 24 * 60
    honest = hindcast(values, first, last, days=2, positive=positive)
    for spoilt in (values * 7.0, np.full_like(values, np.nan), np.where(np.arange(len(values)) % 3 > 0, values, np.nan)):
        changed = np.concatenate([values[:moment], spoilt[moment:]])
        made = hindcast(changed, first, last, days=2, positive=positive)
        # the row at ``moment`` is made from hours before it
        np.testing.assert_array_equal(made[: moment - first + 1], honest[: moment - first + 1])
    if not positive:
        changed = np.concatenate([values[:moment], -values[moment:]])
        made = hindcast(changed, first, last, days=2, positive=positive)
        np.testing.assert_array_equal(made[: moment - first + 1], honest[: moment - first + 1])


def test_short_histories_say_nothing_then_little() -> None:
    values = series(40)
    made = hindcast(values, 0, 24 * 38, days=2, positive=True)
    assert np.isnan(made[: 24 * 2]).all()
    assert np.isfinite(made[24 * 2 :]).all()
    # before there is a week the day before is repeated
    np.testing.assert_allclose(made[24 * 3 + 5][:24], values[24 * 2 + 5 : 24 * 3 + 5], rtol=1e-9)
    np.testing.assert_allclose(made[24 * 3 + 5][24:], values[24 * 2 + 5 : 24 * 3 + 5], rtol=1e-9)


def test_unknown_and_constant_series_do_no_harm() -> None:
    assert np.isnan(hindcast(np.full(24 * 50, np.nan), 24 * 30, 24 * 40, days=1, positive=True)).all()
    flat = hindcast(np.full(24 * 60, 50.0), 24 * 40, 24 * 50, days=1, positive=True)
    np.testing.assert_allclose(flat, 50.0, rtol=1e-6)
    zero = series(60)
    zero[24 * 45] = 0.0  # no logarithm
    assert np.isfinite(hindcast(zero, 24 * 40, 24 * 58, days=1, positive=True)).all()
    late = np.concatenate([np.full(24 * 30 + 7, np.nan), series(40)])
    made = hindcast(late, 24 * 20, 24 * 68, days=1, positive=True)
    assert np.isnan(made[: 24 * 12 + 7]).all()
    assert np.isfinite(made[24 * 12 + 7 :]).all()


# --- foresights -----------------------------------------------------------------------------------------------------


def test_perfect_tells_the_truth_from_the_slot_under_way_on() -> None:
    values = np.arange(24.0 * 6)
    values[30] = np.nan
    seen = Perfect({"X": table(values, price=-values)}, days=2)
    now = T0 + timedelta(hours=5, minutes=40)
    known = seen.views(now)["X"]
    assert known.carbon is not None
    assert known.price is not None
    assert known.carbon.start == T0 + 5 * H
    assert len(known.carbon.values) == 48
    assert known.carbon.values[:3] == (5.0, 6.0, 7.0)
    assert (known.carbon.values[25], known.carbon.basis[25]) == (None, "unknown")
    assert (known.price.values[1], known.price.unit, known.carbon.unit) == (-6.0, "EUR/MWh", "gCO2e/kWh")
    assert seen.views(now + timedelta(minutes=19))["X"] is known
    assert seen.next_change(now) == T0 + 6 * H
    assert seen.next_change(T0 + 6 * H) == T0 + 7 * H
    late = seen.views(T0 + 24 * 6 * H - H)["X"].carbon
    assert late is not None
    assert late.values == (143.0,)  # the data end here


def test_perfect_goes_by_the_tables_own_slots() -> None:
    seen = Perfect({"X": table(np.arange(96.0), slot_s=900)}, days=1)
    known = seen.views(T0 + timedelta(minutes=20))["X"]
    assert known.price is None
    assert known.carbon is not None
    assert (known.carbon.slot_s, known.carbon.values[0]) == (900, 1.0)
    assert seen.next_change(T0 + timedelta(minutes=20)) == T0 + timedelta(minutes=30)


def as_of(values: Floats, start: int, end: int, folder: Path | None = None, **options: object) -> AsOf:
    tables = {"X": table(values, price=values / 3 - 80)}
    rows = hindcasts(tables, T0 + start * H, T0 + end * H, days=2, cache_dir=folder, **options)  # type: ignore[arg-type]
    return AsOf(tables, rows)


def told(known: Known) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
    assert known.price is not None
    assert known.carbon is not None
    return known.price.values, known.carbon.values


def test_as_of_knows_nothing_from_now_on() -> None:
    values = series(50)
    start, end, now_h = 24 * 40, 24 * 48, 24 * 44 + 9
    honest = as_of(values, start, end)
    changed = as_of(np.concatenate([values[:now_h], values[now_h:] * 3]), start, end)
    for hour in range(start, now_h + 1, 7):
        now = T0 + hour * H + timedelta(minutes=59)
        assert told(changed.views(now)["X"]) == told(honest.views(now)["X"])
    first = honest.views(T0 + start * H)["X"].carbon
    assert first is not None
    assert (first.start, first.basis[0], len(first.values)) == (T0 + start * H, "model", 48)
    after = T0 + (now_h + 1) * H
    assert told(changed.views(after)["X"]) != told(honest.views(after)["X"])


def test_prices_of_the_next_day_are_published_at_noon() -> None:
    values = series(45)
    tables = {"X": table(values, price=values / 3)}
    rows = hindcasts(tables, T0 + 24 * 40 * H, T0 + 24 * 44 * H, days=3)
    seen = AsOf(tables, rows, {"X": "Europe/Berlin"})
    truth = (values / 3).tolist()
    for hour, until in ((24 * 40 + 11, 24 * 41 - 1), (24 * 40 + 12, 24 * 42 - 1), (24 * 40 + 23, 24 * 42 - 1)):
        price = seen.views(T0 + hour * H)["X"].price
        assert price is not None
        count = until - hour
        assert list(price.values[:count]) == truth[hour:until]
        assert price.basis[:count] == ("published",) * count
        assert set(price.basis[count:]) == {"model"}
        assert price.values[count] != truth[until]
        # beyond what is published goes what is forecast once that is known
        assert price.values[count : count + 24] == tuple(rows["X", "price"].rows[until - 24 * 40][:24].tolist())
        assert len(price.values) == 72


@pytest.mark.parametrize(
    ("now", "until"),
    [
        (datetime(2023, 7, 10, 10, tzinfo=UTC), datetime(2023, 7, 10, 22, tzinfo=UTC)),  # noon in summer time
        (datetime(2023, 7, 10, 11, tzinfo=UTC), datetime(2023, 7, 11, 22, tzinfo=UTC)),
        (datetime(2023, 7, 10, 22, tzinfo=UTC), datetime(2023, 7, 11, 22, tzinfo=UTC)),
        (datetime(2023, 1, 10, 12, tzinfo=UTC), datetime(2023, 1, 11, 23, tzinfo=UTC)),
        (datetime(2023, 3, 25, 12, tzinfo=UTC), datetime(2023, 3, 26, 22, tzinfo=UTC)),  # the next day has 23 hours
        (datetime(2023, 10, 28, 11, tzinfo=UTC), datetime(2023, 10, 29, 23, tzinfo=UTC)),  # and here 25
    ],
)
def test_a_delivery_day_ends_at_midnight_on_the_clock(now: datetime, until: datetime) -> None:
    start = now - 24 * H
    price = np.arange(24.0 * 6)
    one = SignalTable("X", start, 3600, price, None, currency="EUR")
    rows = {("X", "price"): Hindcasts(start, np.full((24 * 6, 72), -1.0))}
    told = AsOf({"X": one}, rows, {"X": "Europe/Berlin"}).views(now)["X"].price
    assert told is not None
    hours = (until - now) // H
    assert told.basis == ("published",) * hours + ("model",) * (72 - hours)
    assert told.values == (*price[24 : 24 + hours].tolist(), *[-1.0] * (72 - hours))


def test_forecasts_are_made_once_and_damaged_ones_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = series(45)
    calls: list[int] = []

    def counted(*given: Any, **options: Any) -> Floats:
        calls.append(1)
        return hindcast(*given, **options)

    monkeypatch.setattr(forecasts, "hindcast", counted)
    start, end = 24 * 40, 24 * 41
    now = T0 + (start + 5) * H
    wanted = told(as_of(values, start, end, tmp_path).views(now)["X"])
    assert len(calls) == 2
    heard: list[tuple[str, int, int]] = []
    assert told(as_of(values, start, end, tmp_path, progress=lambda *each: heard.append(each)).views(now)["X"]) == wanted
    assert (len(calls), heard) == (2, [])
    for damage in (b"", b"rubbish", b"\x93NUMPY"):
        path = sorted(tmp_path.glob("*.rows"))[0]
        path.write_bytes(damage)
        assert told(as_of(values, start, end, tmp_path).views(now)["X"]) == wanted
    path = sorted(tmp_path.glob("*.rows"))[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1  # one bit
    path.write_bytes(bytes(raw))
    assert told(as_of(values, start, end, tmp_path).views(now)["X"]) == wanted
    assert len(calls) == 6
    assert told(as_of(values * 1.5, start, end, tmp_path).views(now)["X"]) != wanted
    assert len(calls) == 8
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    assert told(as_of(values, start, end, blocked).views(now)["X"]) == wanted


def test_workers_give_what_one_process_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    values = series(45)
    start, end = 24 * 40, 24 * 41
    now = T0 + (start + 3) * H
    alone = told(as_of(values, start, end).views(now)["X"])
    monkeypatch.setattr(forecasts, "_SMALL_HOURS", 0)
    heard: list[tuple[str, int, int]] = []
    spread = as_of(values, start, end, workers=2, progress=lambda *each: heard.append(each))
    for mine, theirs in zip(told(spread.views(now)["X"]), alone, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)  # the libraries may add up in another order
    assert heard == [("forecasts", 0, 2), ("forecasts", 1, 2), ("forecasts", 2, 2)]


def test_a_zone_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadInput, match="no time zone"):
        forecasts.offset_hours("Mars/Olympus", T0)
    with pytest.raises(BadInput, match="no time zone"):
        AsOf({}, {}, {"X": "Mars/Olympus"})
    assert forecasts.offset_hours("Europe/Berlin", T0) == 1.0
    assert forecasts.offset_hours("Australia/Sydney", T0) == 10.0


def test_the_cache_is_where_the_user_wants_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert forecasts.cache_folder(tmp_path / "x") == tmp_path / "x"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert forecasts.cache_folder() == tmp_path / "gridshift" / "hindcasts"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert forecasts.cache_folder() == tmp_path / ".cache" / "gridshift" / "hindcasts"


# --- noise ----------------------------------------------------------------------------------------------------------

MODEL = ErrorModel(relative=True, level=300.0, spread=np.linspace(0.05, 0.3, 48), along=0.95, between=0.98)


def test_errors_have_the_size_and_persistence_asked_for() -> None:
    errors = correlated(4000, 24, 0.9, 0.95, np.random.default_rng(3))
    assert errors.std(axis=0) == pytest.approx(np.ones(24), abs=0.25)
    assert float(np.corrcoef(errors[:, 3], errors[:, 4])[0, 1]) == pytest.approx(0.9, abs=0.05)
    assert float(np.corrcoef(errors[:-1, 5], errors[1:, 4])[0, 1]) == pytest.approx(0.95, abs=0.03)


def test_noise_grows_with_the_time_ahead_and_comes_from_its_seed() -> None:
    values = series(60)
    one = table(values, price=values)
    start, end = T0 + 24 * 10 * H, T0 + 24 * 55 * H
    models: Mapping[tuple[str, str], ErrorModel] = {("X", "carbon"): MODEL, ("X", "price"): MODEL}
    first, again = (Noisy({"X": one}, models, start, end, seed=7) for _ in range(2))
    other = Noisy({"X": one}, models, start, end, seed=8)
    now = start + 30 * H
    assert told(first.views(now)["X"]) == told(again.views(now)["X"])
    assert told(first.views(now)["X"]) != told(other.views(now)["X"])
    price, carbon = told(first.views(now)["X"])
    assert price != carbon  # each signal errs in its own way
    assert carbon[0] != values[24 * 10 + 30]  # even the hour under way
    none = Noisy({"X": one}, models, start, end, seed=7, scale=0.0)
    assert told(none.views(now)["X"])[1] == pytest.approx(values[270:318].tolist(), rel=1e-6)
    rows = disturbed(one, "carbon", MODEL, start, end, seed=[1])
    missed = np.abs(np.log(rows / np.lib.stride_tricks.sliding_window_view(values, 48)[240 : 240 + len(rows)]))
    assert missed[:, 40].mean() > 2 * missed[:, 0].mean() > 0


def test_the_errors_of_forecasts_are_measured() -> None:
    values = series(60)
    one = table(values, price=values - 300)
    start = T0 + 24 * 5 * H
    for what, relative in (("carbon", True), ("price", False)):
        wanted = ErrorModel(relative, 50.0, MODEL.spread, 0.9, 0.9)
        rows = disturbed(one, what, wanted, start, start + 24 * 50 * H, seed=[4])
        found = error_model(one, what, Hindcasts(start, rows))
        assert found.relative is relative
        scale = found.level / wanted.level if not relative else 1.0
        assert found.spread * scale == pytest.approx(wanted.spread, rel=0.35)
        assert found.along == pytest.approx(0.9, abs=0.06)
        assert found.between == pytest.approx(0.9, abs=0.05)
        assert "0 h ahead" in found.sentence("carbon of X")
    with pytest.raises(BadInput, match="too few"):
        error_model(one, "carbon", Hindcasts(start, np.full((5, 4), np.nan, dtype=np.float32)))


def test_quarters_become_hours() -> None:
    values = np.array([1.0, 2, 3, 4, np.nan, np.nan, 6, 8, np.nan, np.nan, np.nan, 5])
    shifted = SignalTable("X", T0 + timedelta(minutes=30), 900, values, None)
    start, means = hourly(shifted, "price")
    assert start == T0
    np.testing.assert_array_equal(means, [1.5, 3.5, 7.0, np.nan])
