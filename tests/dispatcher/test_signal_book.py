"""The signal book: which feeds are asked when, which source wins and why, and that one slow feed holds up nobody."""

import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.forecasts import Series
from dispatcher.signal_book import HELD, ChainStatus, Closing, SignalBook, SourceStatus, sources_of
from signals.feeds.base import FeedError
from signals.ingest import FetchResult
from signals.memory_store import MemorySignalStore
from signals.points import UNITS, Kind, Quality, SignalPoint
from signals.series import SlotForecast

T0 = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
CHARTS = {"feed": "energy_charts", "bzn": "DE-LU", "source": "energy_charts"}
MADE_UP = {"feed": "synthetic"}


def config(price: list[dict[str, Any]] | None = None, carbon: list[dict[str, Any]] | None = None, regions: int = 1) -> Config:
    tables = [
        {"name": f"r{n}", "address": f"http://r{n}", "price": price or [], "carbon": carbon or []} for n in range(regions)
    ]
    return Config.model_validate({"region": tables})


class Feeds:
    """Answers that a test sets for each source; remembers who was asked when."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, datetime]] = []
        self.answers: dict[str, Callable[[datetime], dict[str, Any]]] = {}
        self.hold: dict[str, threading.Event] = {}

    def __call__(self, feed: str, options: dict[str, Any], *, region: str, kind: Kind, now: datetime, **_: Any) -> FetchResult:
        source = str(options.get("source", feed))
        self.asked.append((source, now))
        if source in self.hold:
            assert self.hold[source].wait(20)
        given = self.answers[source](now)
        points = tuple(
            SignalPoint(region, kind, UNITS.get(kind, "EUR/MWh"), a, b, None, now, value, Quality.MEASURED, source)
            for a, b, value in given.pop("values", ())
        )
        return FetchResult(feed, source, region, kind, now, points, **given)

    def names(self) -> list[str]:
        return [name for name, _ in self.asked]


def hours(first: datetime, *values: float) -> dict[str, Any]:
    return {"values": [(first + n * HOUR, first + (n + 1) * HOUR, value) for n, value in enumerate(values)]}


def day_of(level: float, until: datetime | None = None) -> Callable[[datetime], dict[str, Any]]:
    """Hours of the last days and the next one, all different, up to ``until``."""

    def answer(now: datetime) -> dict[str, Any]:
        first = T0 - timedelta(days=3)
        count = int(((until or T0 + timedelta(days=4)) - first) / HOUR)
        return hours(first, *[level + (n * 37 % 101) / 10 for n in range(count)])

    return answer


def failing(kind: str = "access", message: str = "down", **changes: Any) -> Callable[[datetime], dict[str, Any]]:
    return lambda now: {"error": FeedError(kind, message)} | changes


@pytest.fixture
def feeds() -> Feeds:
    feeds = Feeds()
    feeds.answers = {"energy_charts": day_of(60.0), "synthetic": day_of(200.0)}
    return feeds


def chain(book: SignalBook, now: datetime) -> ChainStatus:
    (one,) = book.status(now)
    return one


def states(book: SignalBook, now: datetime) -> list[tuple[str, str, bool]]:
    return [(s.source, s.state, s.chosen) for s in chain(book, now).sources]


def test_later_sources_are_asked_only_when_needed(feeds: Feeds) -> None:
    book = SignalBook(config([CHARTS, MADE_UP]), MemorySignalStore(), ask=feeds)
    assert book.refresh(T0) and feeds.names() == ["energy_charts"]
    assert states(book, T0) == [("energy_charts", "fresh", True), ("synthetic", "waiting", False)]
    one = chain(book, T0)
    assert (one.region, one.what, one.kind) == ("r0", "price", "price")
    assert one.why == "energy_charts: the first source, is fresh" and one.sources[1].why == "is not needed"
    # it stops working, but what it said yesterday covers today
    feeds.answers["energy_charts"] = failing()
    book.refresh(T0 + 2 * HOUR)
    assert set(feeds.names()) == {"energy_charts"}
    assert chain(book, T0 + 2 * HOUR).sources[0].error == "down"
    # at its end the next one is asked, and the first again from time to time
    late = T0 + timedelta(days=4)
    book.refresh(late)
    assert feeds.names()[-2:] == ["energy_charts", "synthetic"]
    assert [state for _, state, _ in states(book, late)] == ["stale", "stale"]
    feeds.answers["synthetic"] = lambda now: hours(now, *[7.0 + n for n in range(48)])
    later = late + 2 * HOUR
    book.refresh(later)
    assert states(book, later) == [("energy_charts", "stale", False), ("synthetic", "fresh", True)]
    assert chain(book, later).why == "energy_charts: down; synthetic: is fresh"
    # and back when it works again
    feeds.answers["energy_charts"] = lambda now: hours(now - HOUR, *[5.0 + n for n in range(30)])
    book.refresh(later + 2 * HOUR)
    assert states(book, later + 2 * HOUR)[0] == ("energy_charts", "fresh", True)


def test_a_suspect_source_loses_and_serves_with_a_word_when_alone(feeds: Feeds) -> None:
    feeds.answers["energy_charts"] = lambda now: hours(T0 - 2 * HOUR, 50.0, 60.0, 90000.0, 55.0)
    both = SignalBook(config([CHARTS, MADE_UP]), MemorySignalStore(), ask=feeds)
    both.refresh(T0)
    assert states(both, T0) == [("energy_charts", "suspect", False), ("synthetic", "fresh", True)]
    assert "impossible" in chain(both, T0).why
    alone = SignalBook(config([CHARTS]), MemorySignalStore(), ask=feeds)
    alone.refresh(T0)
    series, (source,) = alone.series("r0", "price"), chain(alone, T0).sources
    assert series is not None and 90000.0 not in series.values and series.at(T0) is None  # impossible: serves nobody
    assert (source.state, source.chosen) == ("suspect", True)
    assert source.why.startswith("is suspect, and nothing better is there (impossible: 1 values")
    assert "unknown: energy_charts: impossible: 1 values" in alone.alarms(T0)[0][2]
    # an hour later a plausible value is in force: the doubted one is not planned with
    alone.refresh(T0 + HOUR)
    series = alone.series("r0", "price")
    assert states(alone, T0 + HOUR)[0][1] == "fresh" and series is not None
    assert 90000.0 not in series.values
    # what was doubted stays so when it is said again
    points = alone._signals.read("r0", Kind.PRICE, T0, T0 + HOUR, T0 + HOUR)
    assert [p.quality for p in points] == [Quality.SUSPECT]


def test_a_feed_without_its_secret_is_left_out_and_blocks_nobody(feeds: Feeds) -> None:
    feeds.answers["energy_charts"] = failing(message="energy_charts: no token: set X", disabled=True)
    book = SignalBook(config([CHARTS, MADE_UP]), MemorySignalStore(), ask=feeds)
    book.refresh(T0)
    assert states(book, T0) == [("energy_charts", "disabled", False), ("synthetic", "fresh", True)]
    assert chain(book, T0).why == "energy_charts: energy_charts: no token: set X; synthetic: is fresh"
    book.refresh(T0 + 10 * MINUTE)
    assert feeds.names().count("energy_charts") == 1


def test_how_old_the_last_value_may_be(feeds: Feeds) -> None:
    carbon = {"feed": "gb_carbon"}
    feeds.answers["gb_carbon"] = lambda now: hours(T0 - HOUR, 250.0)
    book = SignalBook(config([CHARTS], [carbon]), MemorySignalStore(), ask=feeds)
    feeds.answers["energy_charts"] = lambda now: hours(T0 - HOUR, 60.0)
    book.refresh(T0 - MINUTE)
    for after, held in ((0.0, True), (2.75, True), (3.0, False)):
        now = T0 + after * HOUR
        book.refresh(now)
        series = book.series("r0", "carbon")
        assert (series is not None and series.at(now) == 250.0) is held, after
        if held:
            assert series is not None and series.basis[0] == HELD
            assert series.values[12] is None  # three hours and no more
        price = book.series("r0", "price")
        assert price is None or price.at(now) is None  # a price must cover the present
    (source,) = next(one for one in book.status(now) if one.what == "carbon").sources
    assert (source.state, source.known_until, source.quality) == ("stale", T0, "measured")
    assert {region for _, region, _ in book.alarms(now)} == {"r0"}
    strict = SignalBook(config(None, [carbon | {"max_age": "10m"}]), MemorySignalStore(), ask=feeds)
    strict.refresh(T0 + 11 * MINUTE)
    series = strict.series("r0", "carbon")
    assert series is None or series.at(T0 + 11 * MINUTE) is None


def asking_times(feeds: Feeds, book: SignalBook, minutes: int) -> list[float]:
    feeds.asked.clear()
    for n in range(minutes):
        book.refresh(T0 + n * MINUTE)
    return [(at - T0) / MINUTE for _, at in feeds.asked]


def test_nothing_new_is_asked_for_less_and_less_often(feeds: Feeds) -> None:
    carbon = [{"feed": "gb_carbon"}]  # every 15 minutes
    feeds.answers["gb_carbon"] = day_of(200.0)
    book = SignalBook(config(None, carbon), MemorySignalStore(), ask=feeds)
    assert asking_times(feeds, book, 300) == [0, 15, 30, 60, 120, 180, 240]
    failing_book = SignalBook(config(None, carbon), MemorySignalStore(), ask=feeds)
    feeds.answers["gb_carbon"] = failing()
    assert asking_times(feeds, failing_book, 200) == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    told_to_wait = SignalBook(config(None, carbon), MemorySignalStore(), ask=feeds)
    feeds.answers["gb_carbon"] = failing(wait_s=7200.0)
    assert asking_times(feeds, told_to_wait, 300) == [0, 120, 240]
    new = SignalBook(config(None, carbon), MemorySignalStore(), ask=feeds)
    feeds.answers["gb_carbon"] = lambda now: hours(now, 1.0 + now.minute)
    assert asking_times(feeds, new, 61) == [0, 15, 30, 45, 60]
    jittered = SignalBook(config(None, carbon), MemorySignalStore(), ask=feeds, rng=random.Random(3))
    times = asking_times(feeds, jittered, 500)
    waits = [b - a for a, b in pairwise(times)]
    assert all(15 <= wait <= 18 for wait in waits) and len(set(waits)) > 1


def test_what_could_not_be_kept_is_fetched_again(feeds: Feeds, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemorySignalStore()
    book = SignalBook(config([CHARTS]), store, ask=feeds)
    forgotten: list[str] = []
    monkeypatch.setattr(book.manners, "forget", forgotten.append)
    with monkeypatch.context() as broken:
        broken.setattr(store, "append", lambda points: (_ for _ in ()).throw(OSError("disk full")))
        assert book.refresh(T0) and book.ready
    assert "could not be kept: OSError" in str(chain(book, T0).sources[0].error)
    assert forgotten == ["energy_charts|energy_charts|r0|price"]
    book.refresh(T0 + MINUTE)
    assert feeds.names() == ["energy_charts"] * 2 and book.series("r0", "price") is not None


def test_the_same_feed_twice_is_two_sources(feeds: Feeds) -> None:
    feeds.answers |= {"energy_charts": failing(), "energy_charts-2": day_of(5.0)}
    book = SignalBook(config([CHARTS, CHARTS | {"bzn": "AT"}]), MemorySignalStore(), ask=feeds)
    book.refresh(T0)
    assert states(book, T0) == [("energy_charts", "failed", False), ("energy_charts-2", "fresh", True)]
    series = book.series("r0", "price")
    assert series is not None and series.source == "energy_charts-2"


def test_status_ages_between_refreshes(feeds: Feeds) -> None:
    book = SignalBook(config([CHARTS]), MemorySignalStore(), ask=feeds)
    assert book.status(T0) == []
    book.refresh(T0)
    (source,) = chain(book, T0 + 10 * MINUTE).sources
    assert isinstance(source, SourceStatus)
    assert (source.age_s, source.due_at, source.quality) == (600.0, T0 + 30 * MINUTE, "measured")
    assert source.known_until == T0 + timedelta(days=4)


def test_of_a_source_that_changes_its_currency_the_newest_is_used(feeds: Feeds, caplog: pytest.LogCaptureFixture) -> None:
    feeds.answers["energy_charts"] = day_of(60.0, until=T0 + 2 * HOUR)
    store = MemorySignalStore()
    book = SignalBook(config([CHARTS]), store, ask=feeds, forecast_of=model)
    book.refresh(T0)
    crowns = [
        SignalPoint("r0", Kind.PRICE, "CZK/MWh", a, a + HOUR, None, T0 + MINUTE, 1500.0 + n, Quality.MEASURED, "energy_charts")
        for n, a in enumerate(T0 + n * HOUR for n in range(4))
    ]
    store.append(crowns)
    feeds.answers["energy_charts"] = failing()
    for later in (T0 + HOUR, T0 + 2 * HOUR):
        book.refresh(later)
    series = book.series("r0", "price")
    assert series is not None and series.unit == "CZK/MWh"
    assert all(value is None or value >= 1500.0 for value in series.values)  # no euro, be it forecast or an earlier day's
    assert caplog.text.count("changed its unit; of CZK/MWh and EUR/MWh only CZK/MWh is used") == 1


def test_without_threads_two_runs_are_the_same(feeds: Feeds) -> None:
    def run() -> list[Any]:
        feeds.asked.clear()
        book = SignalBook(config([CHARTS, MADE_UP], [{"feed": "gb_carbon"}], regions=3), MemorySignalStore(), ask=feeds)
        seen = [(book.refresh(T0 + n * 15 * MINUTE), book.status(T0)) for n in range(20)]
        return [seen, list(feeds.asked), threading.active_count()]

    feeds.answers["gb_carbon"] = failing()
    assert run() == run()


# --- with threads ---------------------------------------------------------------------------------------------------


def test_one_slow_feed_delays_nobody_and_is_laid_when_it_comes(feeds: Feeds) -> None:
    slow = {"feed": "energy_charts", "bzn": "AT", "source": "slow"}
    feeds.answers |= {"slow": day_of(10.0), "gb_carbon": day_of(200.0)}
    feeds.hold["slow"] = threading.Event()
    arrived = threading.Event()
    book = SignalBook(
        config([slow, MADE_UP], [{"feed": "gb_carbon"}]), MemorySignalStore(), parallel=4, patience_s=0.1, ask=feeds
    )
    book.arrived = arrived.set
    try:
        assert book.refresh(T0) and book.ready
        price, carbon = book.status(T0)
        assert [(s.source, s.state, s.chosen) for s in price.sources] == [
            ("slow", "waiting", False),
            ("synthetic", "fresh", True),
        ]
        assert price.why == "slow: has not answered yet; synthetic: is fresh"
        assert carbon.sources[0].state == "fresh"
        # nobody waits for it again, and it is not asked twice
        assert not book.refresh(T0 + MINUTE)
        assert feeds.names().count("slow") == 1 and not arrived.is_set()
        feeds.hold["slow"].set()
        assert arrived.wait(20)
        assert book.refresh(T0 + 2 * MINUTE)
        series = book.series("r0", "price")
        assert series is not None and series.source == "slow"
    finally:
        feeds.hold["slow"].set()
        book.close()


def test_feeds_are_asked_side_by_side(feeds: Feeds) -> None:
    together = threading.Barrier(3, timeout=20)

    def answer(now: datetime) -> dict[str, Any]:
        together.wait()  # breaks unless three are asked at the same time
        return day_of(60.0)(now)

    feeds.answers["energy_charts"] = answer
    book = SignalBook(config([CHARTS], regions=3), MemorySignalStore(), parallel=3, patience_s=20.0, ask=feeds)
    try:
        book.refresh(T0)
        assert [chain.sources[0].state for chain in book.status(T0)] == ["fresh"] * 3
    finally:
        book.close()


# --- what is planned with beyond the feeds ----------------------------------------------------------------------------


def test_feeds_that_all_fail_are_an_alarm_while_their_last_values_still_serve(feeds: Feeds) -> None:
    book = SignalBook(config([CHARTS]), MemorySignalStore(), ask=feeds)
    book.refresh(T0)
    assert book.alarms(T0) == []
    feeds.answers["energy_charts"] = failing(message="the file is gone")
    for n in range(1, 40):
        book.refresh(T0 + n * 30 * MINUTE)
    now = T0 + 20 * HOUR
    series = book.series("r0", "price")
    assert series is not None and series.at(now) is not None
    [(key, region, sentence)] = book.alarms(now)
    assert (key, region) == ("signal r0 price", "r0")
    assert "no feed for the price of r0 works; what they said before serves until 2026-03-13 08:00Z" in sentence
    assert "the file is gone" in sentence


def model(series: Series) -> SlotForecast:
    return SlotForecast(T0, 900, (5.0,) * 192, (4.0,) * 192, (7.0,) * 192, "model", "model of 60 days")


def test_a_forecast_fills_what_is_not_published(feeds: Feeds) -> None:
    feeds.answers["energy_charts"] = day_of(60.0, until=T0 + 2 * HOUR)
    asked: list[Series] = []

    def forecast_of(series: Series) -> SlotForecast:
        asked.append(series)
        return SlotForecast(T0 + 2 * HOUR, 900, (5.0,) * 96, (4.0,) * 96, (7.0,) * 96, "model", "model of 60 days")

    book = SignalBook(config([CHARTS]), MemorySignalStore(), ask=feeds, forecast_of=forecast_of)
    book.refresh(T0)
    series = book.series("r0", "price")
    assert series is not None and series.basis[:9] == ("published",) * 8 + ("model",)
    assert series.at(T0 + 3 * HOUR) == 5.0 and (series.low[8], series.high[8]) == (4.0, 7.0)
    assert series.basis[8 + 96] == "repeat-day"
    assert asked[0] == Series("r0", "price", Kind.PRICE, "energy_charts", "UTC") and book.learnable() == [asked[0]]


def test_a_tariff_makes_the_price_that_is_planned_and_settled_with(feeds: Feeds) -> None:
    tariff = {
        "type": "indexed",
        "currency": "EUR",
        "timezone": "Europe/Berlin",
        "factor": 1.0,
        "adder_per_mwh": 10.0,
        "vat": 0.5,
    }
    made = Config.model_validate({"region": [{"name": "r0", "address": "http://r0", "price": [CHARTS], "tariff": tariff}]})
    store = MemorySignalStore()
    book, plain = SignalBook(made, store, ask=feeds), SignalBook(config([CHARTS]), MemorySignalStore(), ask=feeds)
    for one in (book, plain):
        one.refresh(T0)
    retail, wholesale = book.series("r0", "price"), plain.series("r0", "price")
    assert retail is not None and wholesale is not None
    now = T0 + HOUR
    assert retail.at(now) == pytest.approx((wholesale.at(now) + 10.0) * 1.5)
    assert book.learnable() == [Series("r0", "price", Kind.PRICE, "energy_charts", "Europe/Berlin")]
    later = T0 + 3 * HOUR
    usage = [one.usage(c.regions[0], 1000.0, T0, T0 + HOUR, later) for one, c in ((book, made), (plain, config([CHARTS])))]
    assert usage[0].cost is not None and usage[1].cost is not None
    kwh = usage[0].energy_kwh
    assert usage[0].cost == pytest.approx((usage[1].cost + kwh * 10.0 / 1000.0) * 1.5)


def test_a_fixed_tariff_needs_no_feed() -> None:
    tariff = {"type": "fixed", "currency": "EUR", "timezone": "UTC", "energy_per_mwh": 200.0}
    made = Config.model_validate({"region": [{"name": "r0", "address": "http://r0", "tariff": tariff}]})
    book = SignalBook(made, MemorySignalStore(), ask=Feeds())
    book.refresh(T0)
    series = book.series("r0", "price")
    assert series is not None and series.at(T0) == 200.0 and series.source.startswith("tariff:")
    assert book.usage(made.regions[0], 1000.0, T0, T0 + HOUR, T0 + HOUR).cost == pytest.approx(1.2 * 0.2)
    assert book.alarms(T0) == [] and book.learnable() == []


# --- what must not stop, be invented or be asked too often ---------------------------------------------------------------


def test_an_answer_that_breaks_something_is_its_own_sources_error(feeds: Feeds) -> None:
    def broken(now: datetime) -> dict[str, Any]:
        raise RuntimeError("a reader's mistake")

    too_long = {"values": [(T0 - timedelta(days=400), T0 + HOUR, 50.0)]}
    for answer, says in ((broken, "RuntimeError"), (lambda now: dict(too_long), "could not be kept")):
        feeds.answers["energy_charts"] = answer
        book = SignalBook(config([CHARTS, MADE_UP]), MemorySignalStore(), ask=feeds)
        assert book.refresh(T0) and book.ready
        assert states(book, T0) == [("energy_charts", "failed", False), ("synthetic", "fresh", True)]
        first = chain(book, T0).sources[0]
        assert says in str(first.error) and first.due_at == T0 + MINUTE
    threaded = SignalBook(config([CHARTS, MADE_UP]), MemorySignalStore(), parallel=2, patience_s=20.0, ask=feeds)
    try:
        assert threaded.refresh(T0) and threaded.ready and threaded.series("r0", "price") is not None
    finally:
        threaded.close()


def test_a_failed_feed_of_a_chain_that_is_fresh_is_not_hurried(feeds: Feeds) -> None:
    book = SignalBook(config([CHARTS, MADE_UP]), MemorySignalStore(), ask=feeds)
    feeds.answers["energy_charts"] = failing()
    for n in range(3):
        book.refresh(T0 + n * MINUTE)
    (charts, _) = chain(book, T0).sources
    assert charts.due_at == T0 + MINUTE + HOUR  # the second time the other source was fresh


def test_only_what_may_be_revised_is_asked_again(feeds: Feeds) -> None:
    asked: list[tuple[datetime, datetime]] = []

    def ask(feed: str, options: dict[str, Any], **query: Any) -> FetchResult:
        asked.append((query["now"], query["window_start"]))
        return feeds(feed, options, **query)

    store = MemorySignalStore()
    book = SignalBook(config([CHARTS]), store, ask=ask)
    feeds.answers["energy_charts"] = failing()
    book.refresh(T0)
    feeds.answers["energy_charts"] = day_of(60.0, until=T0 + 2 * HOUR)
    for after in (1, 3, 24):
        book.refresh(T0 + after * HOUR)
    full = timedelta(days=8)
    back = [now - start for now, start in asked]
    assert back[:2] == [full, full] and back[2:] == [timedelta(days=2) + n * HOUR for n in (1, 22)]
    again = SignalBook(config([CHARTS]), store, ask=ask)  # one that has just begun does not know what is missing
    again.refresh(T0 + 25 * HOUR)
    assert asked[-1][1] == T0 + 25 * HOUR - full


def test_old_forecasts_are_not_fresh(feeds: Feeds) -> None:
    carbon = {"feed": "gb_carbon"}
    store = MemorySignalStore()
    ahead = [
        SignalPoint("r0", Kind.CARBON_AVERAGE, "gCO2e/kWh", a, a + HOUR, T0, T0, 200.0 + n, Quality.FORECAST, "gb_carbon")
        for n, a in enumerate(T0 + n * HOUR for n in range(20))
    ]
    store.append(ahead)
    feeds.answers |= {"gb_carbon": failing(), "synthetic": failing()}
    book = SignalBook(config(None, [carbon, MADE_UP]), store, ask=feeds)
    book.refresh(T0 + 6 * HOUR)
    assert states(book, T0)[0] == ("gb_carbon", "fresh", True) and "synthetic" not in feeds.names()[:1]
    book.refresh(T0 + 7 * HOUR)
    assert states(book, T0)[0] == ("gb_carbon", "stale", True)  # it serves, for there is nothing better
    feeds.answers["synthetic"] = day_of(100.0)
    book.refresh(T0 + 9 * HOUR)
    one = chain(book, T0)
    assert [s.chosen for s in one.sources] == [False, True] and one.sources[1].state == "fresh"
    lonely = SignalBook(config(None, [carbon]), store, ask=lambda feed, options, **query: feeds(feed, options, **query))
    feeds.answers["gb_carbon"] = lambda now: {}
    lonely.refresh(T0 + 7 * HOUR)
    assert chain(lonely, T0).why == (
        "gb_carbon: only a forecast of 2026-03-10 12:00Z for now; it serves, for nothing better is there"
    )


def test_the_last_value_comes_before_forecasts_and_earlier_days(feeds: Feeds) -> None:
    feeds.answers["gb_carbon"] = day_of(200.0, until=T0 - HOUR)
    book = SignalBook(config(None, [{"feed": "gb_carbon"}]), MemorySignalStore(), ask=feeds, forecast_of=model)
    book.refresh(T0)
    series = book.series("r0", "carbon")
    last = 200.0 + (71 - 1) * 37 % 101 / 10
    assert series is not None and series.values[:9] == (last,) * 8 + (5.0,)
    assert series.basis[:9] == (HELD,) * 8 + ("model",) and series.low[:9] == (None,) * 8 + (4.0,)
    assert chain(book, T0).why == "gb_carbon: the first source, is fresh; its last value is held"


def test_doubted_values_come_last_and_are_not_booked(feeds: Feeds) -> None:
    slipped = [(T0 - HOUR + n * HOUR, T0 + n * HOUR, 6000.0 + n * 90) for n in range(8)]
    before = day_of(60.0, until=T0 - HOUR)(T0)["values"]
    feeds.answers["energy_charts"] = lambda now: {"values": before if now < T0 else [*before, *slipped]}
    book = SignalBook(config([CHARTS]), MemorySignalStore(), ask=feeds)
    for now in (T0 - HOUR, T0):
        book.refresh(now)
    series, one = book.series("r0", "price"), chain(book, T0)
    assert one.sources[0].state == "suspect" and "earlier days are repeated" in one.why
    assert series is not None and series.basis[0] == "repeat-day" and series.values[0] in {v for _, _, v in before}
    region = config([CHARTS]).regions[0]
    assert book.usage(region, 1000.0, T0, T0 + HOUR, T0 + HOUR).cost is None
    # where nothing else is known at all they serve, and are called what they are
    alone = MemorySignalStore()
    doubtful = [
        SignalPoint("r0", Kind.PRICE, "EUR/MWh", a, b, None, T0, value, Quality.SUSPECT, "energy_charts")
        for a, b, value in slipped
    ]
    alone.append(doubtful)
    feeds.answers["energy_charts"] = failing()
    book = SignalBook(config([CHARTS]), alone, ask=feeds)
    book.refresh(T0)
    series = book.series("r0", "price")
    assert series is not None and (series.at(T0), series.basis[0]) == (6090.0, "suspect")
    assert book.usage(region, 1000.0, T0, T0 + HOUR, T0 + HOUR).cost is None


def test_impossible_values_serve_nobody_however_they_came(feeds: Feeds) -> None:
    store = MemorySignalStore()
    for n, value in enumerate((50.0, 90000.0)):
        a = T0 + n * HOUR
        store.append(
            [SignalPoint("r0", Kind.PRICE, "EUR/MWh", a, a + HOUR, None, T0, value, Quality.MEASURED, "energy_charts")]
        )
    feeds.answers["energy_charts"] = failing()
    made = config([CHARTS])
    book = SignalBook(made, store, ask=feeds)
    book.refresh(T0)
    series = book.series("r0", "price")
    assert series is not None and series.at(T0) == 50.0 and 90000.0 not in series.values
    costs = [book.usage(made.regions[0], 1000.0, T0 + n * HOUR, T0 + (n + 1) * HOUR, T0 + 2 * HOUR).cost for n in (0, 1)]
    assert costs[0] is not None and costs[1] is None


def test_a_stale_source_that_knows_something_comes_before_a_suspect_one(feeds: Feeds) -> None:
    store = MemorySignalStore()
    store.append(
        [SignalPoint("r0", Kind.PRICE, "EUR/MWh", T0, T0 + HOUR, None, T0, 7000.0, Quality.SUSPECT, "energy_charts")]
        + [
            SignalPoint("r0", Kind.PRICE, "EUR/MWh", a, a + HOUR, None, a, 70.0, Quality.MEASURED, "synthetic")
            for a in (T0 - timedelta(days=2) + n * HOUR for n in range(24))
        ]
    )
    feeds.answers = {"energy_charts": failing(), "synthetic": failing()}
    book = SignalBook(config([CHARTS, MADE_UP]), store, ask=feeds)
    book.refresh(T0)
    assert states(book, T0) == [("energy_charts", "suspect", False), ("synthetic", "stale", True)]
    series = book.series("r0", "price")
    assert series is not None and series.at(T0) == 70.0


def test_variants_are_not_mixed_in_what_is_booked_and_learned(feeds: Feeds) -> None:
    feeds.answers["energy_charts"] = failing()
    store = MemorySignalStore()
    for variant, value, known in (("hourly", 10.0, T0 - HOUR), ("quarters", 99.0, T0)):
        store.append(
            [
                SignalPoint(
                    "r0", Kind.PRICE, "EUR/MWh", T0, T0 + HOUR, None, known, value, Quality.MEASURED, "energy_charts", variant
                )
            ]
        )
    book = SignalBook(config([CHARTS]), store, ask=feeds)
    book.refresh(T0)
    series = book.series("r0", "price")
    assert series is not None and (series.at(T0), series.variant) == (99.0, "quarters")
    assert [one.variant for one in book.learnable()] == ["quarters"]
    usage = book.usage(config([CHARTS]).regions[0], 1000.0, T0, T0 + HOUR, T0 + HOUR)
    assert usage.cost == pytest.approx(usage.energy_kwh * 99.0 / 1000.0)


# --- tariffs --------------------------------------------------------------------------------------------------------------


def with_tariff(**tariff: Any) -> Config:
    region = {"name": "r0", "address": "http://r0", "price": [CHARTS], "tariff": {"timezone": "UTC"} | tariff}
    return Config.model_validate({"region": [region]})


def test_a_tariff_in_other_money_is_told_and_stops_nobody(feeds: Feeds, caplog: pytest.LogCaptureFixture) -> None:
    made = with_tariff(type="indexed", currency="CZK", factor=1.0, adder_per_mwh=10.0)
    book = SignalBook(made, MemorySignalStore(), ask=feeds)
    for n in range(3):
        book.refresh(T0 + n * MINUTE)
        assert book.usage(made.regions[0], 1000.0, T0, T0 + HOUR, T0 + HOUR).cost is None
    says = "its currency is CZK, the wholesale price it follows is in EUR/MWh"
    assert says in book.alarms(T0)[0][2] and "no value for now" not in book.alarms(T0)[0][2]
    assert says in chain(book, T0).why
    assert [record.getMessage().split(" of region")[0] for record in caplog.records] == ["tariff", "mean of price"]


def test_a_fixed_tariff_asks_none_of_the_feeds_that_are_configured(feeds: Feeds) -> None:
    book = SignalBook(with_tariff(type="fixed", currency="EUR", energy_per_mwh=200.0), MemorySignalStore(), ask=feeds)
    book.refresh(T0)
    assert feeds.asked == [] and book.alarms(T0) == []
    assert chain(book, T0).why == "a fixed tariff: no feed is asked for the price"


# --- names, replays, closing ----------------------------------------------------------------------------------------------


def test_a_source_is_named_after_its_feed_and_place() -> None:
    entries: list[dict[str, Any]] = [
        {"feed": "entsoe", "zone": "DE_LU"},
        {"feed": "energy_charts", "bzn": "DE-LU", "country": "de"},
        {"feed": "energy_charts", "bzn": "DE-LU"},
        {"feed": "gb_carbon", "regionid": 13},
        {"feed": "http", "url": "http://x"},
        {"feed": "entsoe", "zone": "AT", "source": "mine"},
    ]
    links = list(sources_of(entries, "price", replaying=False))
    assert [link.name for link in links] == [
        *("entsoe:DE_LU", "energy_charts:DE-LU", "energy_charts:DE-LU-2", "gb_carbon:13", "http", "mine")
    ]
    assert [link.options.get("source", link.feed) for link in links] == [link.name for link in links]


def test_in_a_replay_files_tell_prices_a_day_ahead_and_carbon_not_at_all() -> None:
    for what, ahead in (("price", "24h"), ("carbon", "0s")):
        entries: list[dict[str, Any]] = [{"feed": "csv", "file": "x"}, {"feed": "csv", "file": "y", "lookahead": "2h"}]
        found = [link.options.get("lookahead") for link in sources_of(entries, what, replaying=True)]
        assert found == [ahead, "2h"]
    (live,) = sources_of([{"feed": "csv", "file": "x"}], "price", replaying=False)
    assert "lookahead" not in live.options


def test_a_fast_replay_does_not_ask_the_net_all_the_time(feeds: Feeds) -> None:
    feeds.answers["gb_carbon"] = lambda now: hours(now, 1.0 + now.minute)
    made = config([MADE_UP], [{"feed": "gb_carbon"}]).model_dump() | {"replay": {"start": T0.isoformat(), "speed": 3600}}
    book = SignalBook(Config.model_validate(made), MemorySignalStore(), ask=feeds)
    book.refresh(T0)
    due = {s.source: s.due_at for one in book.status(T0) for s in one.sources}
    assert due["gb_carbon"] == T0 + 5 * HOUR  # five seconds on the wall
    assert due["synthetic"] is not None and due["synthetic"] <= T0 + HOUR


def test_closing_breaks_off_who_waits() -> None:
    waiting, ended = threading.Event(), threading.Event()

    def ask(feed: str, options: dict[str, Any], *, sleep: Callable[[float], None], **_: Any) -> FetchResult:
        waiting.set()
        try:
            sleep(60.0)
        except Closing:
            ended.set()
            raise
        raise AssertionError("it went on")

    book = SignalBook(config([CHARTS]), MemorySignalStore(), parallel=1, patience_s=0.0, ask=ask)
    book.refresh(T0)
    assert waiting.wait(20)
    book.close()
    assert ended.wait(20)
    book.refresh(T0 + HOUR)  # asks nobody any more
    assert book.series("r0", "price") is None


def test_a_clock_that_was_ahead_for_a_moment_keeps_no_feed_waiting(feeds: Feeds) -> None:
    book = SignalBook(config(None, [{"feed": "gb_carbon"}]), MemorySignalStore(), ask=feeds)
    book.refresh(T0)
    book.refresh(T0 + timedelta(hours=60))
    assert len(feeds.asked) == 2
    assert asking_times(feeds, book, 61), "within the hour it is asked again"
