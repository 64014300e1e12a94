"""Forecasts with quantiles: nothing leaks from the future, short or broken histories are said, bands hold, clocks change."""

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from signals.forecasting import MAX_DAYS, QUANTILES, Forecast, History, fit
from signals.forecasting.grid import Floats, filled, on_wall_clock, wall_hours
from signals.points import SignalError

START = datetime(2024, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def synthetic(days: int, seed: int = 7, level: float = 100.0, noise: float = 8.0) -> Floats:
    """A daily wave, quieter weekends, and noise that remembers its last hour."""
    hours = np.arange(24 * days)
    random = np.random.default_rng(seed)
    drift = np.zeros(len(hours))
    for hour in range(1, len(hours)):
        drift[hour] = 0.9 * drift[hour - 1] + random.normal(0, noise * 0.44)
    return level + 25 * np.sin(2 * np.pi * (hours - 6) / 24) - 15 * (hours // 24 % 7 >= 5) + drift


def ahead(values: Floats, days: int, *, zone: str = "UTC", positive: bool = False, slots: int = 96) -> Forecast:
    origin = START + timedelta(days=days)
    return fit(History(START, 3600, values), origin, zone=zone, positive=positive).predict(origin, slots, 3600)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("days", [3, 10, 120])
def test_what_comes_after_the_origin_changes_not_a_bit(days: int, positive: bool) -> None:
    values = synthetic(130)
    corrupted = values.copy()
    corrupted[24 * days :] = np.resize([1e9, np.nan, -1e9, 0.0], len(values) - 24 * days)
    cut = values[: 24 * days]
    whole = ahead(values, days, positive=positive)
    for other in (corrupted, cut):
        found = ahead(other, days, positive=positive)
        assert found.point.tobytes() == whole.point.tobytes()
        assert found.quantiles.tobytes() == whole.quantiles.tobytes()
    assert np.isfinite(whole.point).all()


def test_outside_series_are_used_as_far_as_they_reach_and_not_beyond() -> None:
    random = np.random.default_rng(3)
    wind = np.repeat(random.normal(0, 1, 130), 24) + random.normal(0, 0.1, 130 * 24)
    values = synthetic(130, noise=2.0) - 20 * wind
    origin = START + timedelta(days=120)
    history, actual = History(START, 3600, values), values[24 * 120 : 24 * 122].reshape(2, 24)

    def error(reach_days: int) -> Floats:
        outside = (History(START, 3600, wind[: 24 * reach_days]),)
        point = fit(history, origin, exogenous_series=outside).predict(origin, 48, 3600).point.reshape(2, 24)
        return np.asarray(np.abs(point - actual).mean(axis=1))

    plain = np.abs(fit(history, origin).predict(origin, 48, 3600).point.reshape(2, 24) - actual).mean(axis=1)
    assert (error(130) < 0.5 * plain).all()
    assert error(121)[1] == pytest.approx(plain[1])  # the second day has no outside value, so the plain path is taken
    assert error(121)[0] == pytest.approx(error(130)[0])


def test_companions_help_are_cut_at_the_origin_and_may_lag() -> None:
    random = np.random.default_rng(5)
    wind = np.repeat(np.convolve(random.normal(0, 1, 163), np.ones(4) / 2, mode="valid"), 24)
    tomorrow = np.concatenate([np.zeros(24), wind[:-24]])  # the series follows its companion a day later
    values = synthetic(160, noise=2.0) - 20 * tomorrow
    origin = START + timedelta(days=150)
    history, actual = History(START, 3600, values), values[24 * 150 : 24 * 151]

    def found(companions: tuple[Floats, ...]) -> Floats:
        beside = tuple(History(START, 3600, series) for series in companions)
        return fit(history, origin, companions=beside).predict(origin, 24, 3600).point

    plain, known = found(()), found((wind,))
    assert np.abs(known - actual).mean() < 0.9 * np.abs(plain - actual).mean()
    corrupted = wind.copy()
    corrupted[24 * 150 :] = 1e9
    assert found((corrupted,)).tobytes() == known.tobytes()
    assert found((wind[: 24 * 150 - 6],)).tobytes() != plain.tobytes()
    assert found((wind[: 24 * 147],)).tobytes() == plain.tobytes()  # two days behind: not used


@pytest.mark.parametrize(
    ("hours", "basis", "reason"),
    [
        (0, "unknown", "unknown: 0 hours of history, 48 needed"),
        (47, "unknown", "unknown: 47 hours of history, 48 needed"),
        (48, "repeat-day", "history of 2 days: repeat-day"),
        (5 * 24, "repeat-day", "history of 5 days: repeat-day"),
        (20 * 24 + 5, "blend", "history of 20 days: blend of the last day and the 7-day mean"),
        (28 * 24, "model", "model of 28 days of history"),
        (60 * 24, "model", "model of 60 days of history"),
    ],
)
def test_a_short_history_is_said(hours: int, basis: str, reason: str) -> None:
    values = synthetic(61)[:hours]
    origin = START + timedelta(hours=hours)
    forecast = fit(History(START, 3600, values), origin).predict(origin, 24 * MAX_DAYS, 3600)
    assert (forecast.basis, forecast.reason) == (basis, reason)
    assert np.isnan(forecast.point).all() == (basis == "unknown")
    if basis == "repeat-day":
        np.testing.assert_allclose(forecast.point[:24], values[-24:])


@pytest.mark.parametrize("days", [2, 4, 9, 30, 100])
@pytest.mark.parametrize("kind", ["plain", "constant", "zero", "spikes", "gaps", "negative"])
def test_quantiles_never_cross_and_every_hour_has_a_number(days: int, kind: str) -> None:
    values = synthetic(days)
    if kind == "constant":
        values = np.full(24 * days, 42.0)
    elif kind == "zero":
        values = np.zeros(24 * days)
    elif kind == "spikes":
        values[::37] = 3000.0
    elif kind == "gaps":
        values[10:13] = values[24 + 5 : 24 + 15] = values[-2:] = np.nan
    elif kind == "negative":
        values -= 110.0
    if kind == "gaps" and days == 2:
        values = np.concatenate([values, synthetic(1)])
    forecast = ahead(values, len(values) // 24, slots=24 * MAX_DAYS)
    assert np.isfinite(forecast.point).all() and np.isfinite(forecast.quantiles).all()
    assert (np.diff(forecast.quantiles, axis=0) >= 0).all()
    assert (forecast.quantiles[0] <= forecast.point).all() and (forecast.point <= forecast.quantiles[2]).all()
    if kind in ("constant", "zero"):
        np.testing.assert_allclose(forecast.quantiles, values[0], atol=1e-6)
    assert np.abs(forecast.quantiles).max() < 12000  # a spike is not multiplied


@pytest.mark.parametrize("positive", [False, True])
def test_a_fault_at_the_end_of_the_history_does_not_become_the_forecast(positive: bool) -> None:
    values = synthetic(120, level=200.0)
    broken = values.copy()
    broken[-5:] = 1e6
    usual, odd = ahead(values, 120, positive=positive), ahead(broken, 120, positive=positive)
    assert np.abs(odd.point - usual.point).max() < 100
    assert odd.quantiles.max() < 600


def test_an_unknown_beginning_is_no_history() -> None:
    values = synthetic(90)
    values[: 24 * 50] = np.nan
    assert ahead(values, 90).reason == "model of 40 days of history"


def test_a_shifted_and_scaled_price_is_forecast_alike() -> None:
    values = synthetic(90)
    plain, other = ahead(values, 90), ahead(3 * values - 290, 90)
    np.testing.assert_allclose(3 * plain.point - 290, other.point, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("positive", [False, True])
def test_the_band_covers_four_fifths(positive: bool) -> None:
    values = synthetic(400, level=200.0)
    inside = []
    for day in range(100, 390, 6):
        forecast = ahead(values, day, positive=positive)
        actual = values[24 * day : 24 * day + 96]
        inside.append(((forecast.quantiles[0] <= actual) & (actual <= forecast.quantiles[2])).mean())
    assert 0.75 <= float(np.mean(inside)) <= 0.85


def test_the_model_beats_repeating_a_day_and_the_mean_of_a_week() -> None:
    values = synthetic(300)
    errors = []
    for day in range(100, 290, 7):
        actual, past = values[24 * day : 24 * day + 96].reshape(4, 24), values[: 24 * day].reshape(-1, 24)
        for guess in (ahead(values, day).point.reshape(4, 24), past[-1], past[-7:].mean(axis=0)):
            errors.append(np.abs(guess - actual).mean())
    model, repeat, week = np.array(errors).reshape(-1, 3).mean(axis=0)
    assert model < 0.95 * min(repeat, week)


@pytest.mark.parametrize("date", [datetime(2024, 3, 31, tzinfo=UTC), datetime(2024, 10, 27, tzinfo=UTC)])
@pytest.mark.parametrize("offset_h", [-30, -2, -1, 0, 1, 2, 26])
def test_clock_changes_keep_the_daily_pattern_on_the_wall_clock(date: datetime, offset_h: int) -> None:
    begin = date - timedelta(days=60)
    walls = wall_hours(begin, 24 * 75, BERLIN)
    values = np.asarray(50.0 + walls % 24, dtype=np.float64)  # a price that follows the local clock exactly
    origin = date + timedelta(hours=offset_h)
    model = fit(History(begin, 3600, values), origin, zone="Europe/Berlin")
    forecast = model.predict(origin, 96, 3600)
    done = int((origin - begin).total_seconds() // 3600)
    # right between two hours of the same name the second is forecast as the hour after them
    allowed = 1.001 if (date.month, offset_h) == (10, 1) else 0.5
    np.testing.assert_allclose(forecast.point, values[done : done + 96], rtol=0, atol=allowed)


def test_the_wall_clock_has_twenty_four_hours_a_day() -> None:
    zone = BERLIN
    spring = wall_hours(datetime(2024, 3, 30, 23, tzinfo=UTC), 26, zone)
    assert 24 * (spring[0] // 24) + 2 not in spring and len(set(spring.tolist())) == 26
    autumn = wall_hours(datetime(2024, 10, 26, 22, tzinfo=UTC), 26, zone)
    assert len(set(autumn.tolist())) == 25
    _, hourly = on_wall_clock(History(datetime(2024, 10, 26, 22, tzinfo=UTC), 3600, np.arange(25.0)), zone)
    assert len(hourly) == 24 and hourly[2] == 2.5  # the two hours called 02:00 share one place


def test_gaps_are_held_when_short_and_repeated_from_the_day_before_when_long() -> None:
    values = np.arange(72.0)
    values[:2] = values[30:33] = values[50:60] = np.nan
    out = filled(values)
    assert out[:2].tolist() == [2.0, 2.0]
    assert out[30:33].tolist() == [29.0] * 3
    assert out[50:60].tolist() == [26, 27, 28, 29, 29, 29, 29, 33, 34, 35]


def test_a_history_that_stopped_days_ago_is_forecast_from_where_it_stopped() -> None:
    values = synthetic(60)
    late = np.concatenate([values, np.full(48, np.nan)])
    origin = START + timedelta(days=60)
    now = START + timedelta(days=62)
    model = fit(History(START, 3600, late), now)
    assert model.origin == origin
    expected = fit(History(START, 3600, values), origin).predict(now, 24, 3600)
    np.testing.assert_array_equal(model.predict(now, 24, 3600).point, expected.point)


def test_quarters_have_their_own_pattern_and_average_to_the_hour() -> None:
    hourly = synthetic(60, noise=1.0)
    quarters = (hourly[:, None] + np.array([6.0, 2.0, -2.0, -6.0])).ravel()
    origin = START + timedelta(days=60)
    model = fit(History(START, 900, quarters), origin)
    fine, coarse = model.predict(origin, 96 * 4, 900), model.predict(origin, 96, 3600)
    np.testing.assert_allclose(fine.point.reshape(-1, 4).mean(axis=1), coarse.point)
    np.testing.assert_allclose(fine.point.reshape(-1, 4) - coarse.point[:, None], np.tile([6, 2, -2, -6], (96, 1)), atol=1e-6)
    plain = fit(History(START, 3600, hourly), origin)
    held = plain.predict(origin, 96 * 4, 900).point.reshape(-1, 4)
    np.testing.assert_allclose(held, np.repeat(held[:, :1], 4, axis=1))
    np.testing.assert_allclose(held[:, 0], coarse.point)


def test_slots_outside_the_horizon_are_unknown() -> None:
    origin = START + timedelta(days=40)
    model = fit(History(START, 3600, synthetic(40)), origin, days=2)
    forecast = model.predict(origin - timedelta(hours=2), 52, 3600)
    assert np.isnan(forecast.point[[0, 1, 50, 51]]).all() and np.isfinite(forecast.point[2:50]).all()
    assert model.predict(origin, 0, 900).point.shape == (0,)


def test_an_origin_within_an_hour_begins_there() -> None:
    origin = START + timedelta(days=40, minutes=30)
    history = History(START, 900, np.repeat(synthetic(41), 4))
    forecast = fit(history, origin).predict(origin - timedelta(minutes=15), 10, 900)
    assert np.isnan(forecast.point[0]) and np.isfinite(forecast.point[1:]).all()


def test_a_model_travels_between_processes() -> None:
    origin = START + timedelta(days=40)
    model = fit(History(START, 3600, synthetic(40)), origin)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(origin, 9, 900).point.tolist() == model.predict(origin, 9, 900).point.tolist()
    assert len(again.predict(origin, 9, 900).quantiles) == len(QUANTILES)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"start": datetime(2024, 1, 1)}, "start: .* no UTC offset"),  # noqa: DTZ001
        ({"start": START + timedelta(minutes=15)}, "start: .*15:00.*; need a whole hour"),
        ({"step_s": 700}, "step_s: 700; need one of 300, 900, 1800, 3600"),
        ({"values": np.array([1.0, np.inf])}, "values: .*finite"),
        ({"values": np.zeros((2, 2))}, r"values: shape \(2, 2\)"),
    ],
)
def test_a_wrong_history_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(SignalError, match=words):
        History(**({"start": START, "step_s": 3600, "values": np.zeros(5)} | change))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"zone": "Europe/Nowhere"}, "zone: 'Europe/Nowhere' is not a time zone"),
        ({"days": 8}, "days: 8; need 1 to 7"),
        ({"origin": datetime(2024, 1, 3)}, "origin: .* no UTC offset"),  # noqa: DTZ001
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(SignalError, match=words):
        fit(**({"history": History(START, 3600, np.zeros(48)), "origin": START} | change))  # type: ignore[arg-type]
