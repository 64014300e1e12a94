"""When a forecast is made anew, and of what."""

from dataclasses import replace
from datetime import datetime, timedelta

from dispatcher.forecasts import AGAIN_S, Forecasts, Series
from signals.memory_store import MemorySignalStore
from signals.points import Kind, Quality, SignalError, SignalPoint
from signals.series import Past, SlotForecast, Wanted
from tests.signals.samples import T0, at, point

PRICE = Series("r", "price", Kind.PRICE, "s", "Europe/Berlin")


class Maker:
    """A worker that notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Past, Wanted]] = []
        self.fails = False

    def __call__(self, past: Past, wanted: Wanted) -> SlotForecast:
        self.asked.append((past, wanted))
        if self.fails:
            raise SignalError("no such zone")
        return SlotForecast(wanted.origin, wanted.slot_s, (), (), (), "model", f"call {len(self.asked)}")


class Case:
    def __init__(self, points: list[SignalPoint]) -> None:
        self.store, self.maker, self.wall = MemorySignalStore(), Maker(), 0.0
        self.store.append(points)
        self.forecasts = Forecasts(self.store, self.maker, slot_s=900, wall=lambda: self.wall)

    def refresh(self, now: datetime = T0, wall_s: float = AGAIN_S) -> bool:
        self.wall += wall_s
        return self.forecasts.refresh([PRICE], now)


def test_made_once_and_again_only_when_more_is_known() -> None:
    case = Case([point(h, 1.0 * h) for h in range(-48, 10)])
    assert case.forecasts.of(PRICE) is None
    assert case.refresh()
    past, wanted = case.maker.asked[0]
    assert (wanted.origin, wanted.slot_s, wanted.zone, wanted.positive) == (at(10), 900, "Europe/Berlin", False)
    assert sorted(zip(past.starts_s, past.values, strict=True)) == [(at(h).timestamp(), float(h)) for h in range(-48, 10)]
    made = case.forecasts.of(PRICE)
    assert made is not None and made.reason == "call 1"
    assert not case.refresh(T0 + timedelta(minutes=5))
    case.store.append([point(10, 5.0, length_h=0.5, retrieved_at=T0 + timedelta(minutes=10))])
    assert not case.refresh(T0 + timedelta(minutes=10)), "half an hour more is not worth it"
    case.store.append([point(11, 5.0, retrieved_at=T0 + timedelta(minutes=20))])
    assert case.refresh(T0 + timedelta(minutes=20))
    assert case.maker.asked[-1][1].origin == at(12)
    case.store.append([point(h, 5.0, retrieved_at=T0 + timedelta(minutes=30)) for h in range(12, 20)])
    assert not case.refresh(T0 + timedelta(minutes=30), wall_s=AGAIN_S / 2), "not twice within a minute"
    assert case.refresh(T0 + timedelta(minutes=30), wall_s=AGAIN_S / 2)


def test_what_was_only_forecast_or_is_doubted_is_not_learned_from() -> None:
    good = [point(h, 1.0) for h in range(-30, 0)]
    ahead = [point(h, 7.0, quality=Quality.FORECAST, issued_at=T0) for h in range(20)]
    doubted = [point(h, 9.0, quality=Quality.SUSPECT) for h in range(-32, -30)]
    later = [point(h, 8.0, retrieved_at=T0 + timedelta(hours=1)) for h in range(2)]
    case = Case([*good, *ahead, *doubted, *later])
    assert case.refresh()
    past, wanted = case.maker.asked[0]
    assert set(past.values) == {1.0} and wanted.origin == T0


def test_a_failure_keeps_the_old_forecast_and_what_is_no_longer_wanted_goes() -> None:
    case = Case([point(h, 1.0) for h in range(-30, 0)])
    assert case.refresh()
    case.store.append([point(h, 1.0, retrieved_at=T0 + timedelta(hours=3)) for h in range(3)])
    case.maker.fails = True
    assert not case.refresh(T0 + timedelta(hours=3))
    kept = case.forecasts.of(PRICE)
    assert kept is not None and kept.reason == "call 1"
    case.maker.fails = False
    assert case.refresh(T0 + timedelta(hours=3)), "it is tried again"
    case.forecasts.refresh([replace(PRICE, source="other")], T0)
    assert case.forecasts.of(PRICE) is None


def test_a_series_without_values_waits() -> None:
    case = Case([])
    assert not case.refresh() and case.maker.asked == []


def test_another_currency_begins_another_series() -> None:
    old = [point(h, 900.0, unit="CZK/MWh") for h in range(-24 * 40, -24 * 20)]
    case = Case([*old, *(point(h, 50.0) for h in range(-24 * 20, 0))])
    assert case.refresh()
    past, _ = case.maker.asked[0]
    assert set(past.values) == {50.0} and len(past.values) == 24 * 20


def test_other_variants_are_other_series() -> None:
    case = Case([*(point(h, 50.0) for h in range(-48, 0)), *(point(h, 300.0, variant="all_in") for h in range(-48, 0))])
    assert case.refresh()
    assert set(case.maker.asked[0][0].values) == {50.0}
