"""Prices that make events of our own: when one begins and ends, what a price that is not known does, and that it binds."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.clock import VirtualClock
from dispatcher.config import Config, load
from dispatcher.dr.budgets import budgets_of
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.trigger_watch import Triggers
from dispatcher.dr.triggers import HOUR, Decision, Held, Rule, Slot, decide
from dispatcher.errors import ConfigError
from dispatcher.store.memory import MemoryStore
from policies.world import Budget
from signals.points import Kind, Quality, SignalPoint
from signals.series import SlotSeries
from tests.dr.dr_events import NOW
from tests.dr.ven3_site import Site as vtn_site
from tests.dr.ven3_site import soon, vtn_fixture
from tests.dr.vtn3 import Vtn, cap

__all__ = ["vtn_fixture"]

DAY = NOW.replace(hour=0)


def rule(**more: Any) -> Rule:
    fields: dict[str, Any] = {"what": "price", "above": 500.0, "release": 400.0, "least_s": 900.0, "longest_s": 4 * 3600.0}
    rest = {"highest_hours": None, "months": None, "hours": None, "zone": "UTC"}
    return Rule(**{**fields, **rest, "max_events": None, "max_hours": None, "per": "season", **more})


def hourly(*values: float | None, start: datetime = NOW) -> list[Slot]:
    return [Slot(start + n * HOUR, start + (n + 1) * HOUR, value) for n, value in enumerate(values)]


def spans(made: Decision) -> list[tuple[float, float]]:
    """Hours from NOW."""
    return [((a - NOW) / HOUR, (b - NOW) / HOUR) for one in made.wanted for a, b in one.spans]


def held(start_h: float, end_h: float) -> dict[str, Held]:
    return {"e": Held(((NOW + start_h * HOUR, NOW + end_h * HOUR),))}


def test_an_event_lasts_from_the_rise_to_the_fall_below_the_release() -> None:
    made = decide(rule(), hourly(50, 499, 500, 450, 399, 600, None, 50), {}, NOW, "EUR/MWh")
    assert spans(made) == [(2, 4), (5, 7)] and not made.alarms
    assert made.wanted[0].event_id == "2026-03-02T1400Z"
    assert made.wanted[0].sentence == "the price from 2026-03-02 14:00Z is 500 EUR/MWh, at or above 500"


def test_without_a_known_fall_the_longest_length_ends_it_and_the_price_must_fall_before_the_next() -> None:
    assert spans(decide(rule(), hourly(50, *[900.0] * 12), {}, NOW)) == [(1, 5)]
    over = held(-4, 0)
    assert spans(decide(rule(), hourly(*[900.0] * 8), over, NOW)) == []
    assert spans(decide(rule(), hourly(900, 100, 900, 100), over, NOW)) == [(2, 3)]
    # one that ended because the price fell needs no other fall
    assert spans(decide(rule(), hourly(900, 100), held(-2, 0), NOW)) == [(0, 1)]


def test_what_is_not_known_starts_nothing_and_ends_nothing() -> None:
    made = decide(rule(), hourly(None, None, None), held(-1, 3), NOW)
    assert made.wanted == () and "nothing is started" in made.alarms[0][1]
    assert decide(rule(), [], held(-1, 3), NOW).wanted == ()
    # nor is one withdrawn that has not begun, as long as some of its prices are not known
    assert decide(rule(), hourly(50, None, 50, 50), held(1, 3), NOW).wanted == ()
    withdrawn = decide(rule(), hourly(50, 50, 50, 50), held(1, 3), NOW)
    assert [one.spans for one in withdrawn.wanted] == [()] and "revised" in withdrawn.wanted[0].sentence


def test_what_runs_ends_when_the_price_has_fallen_but_not_before_its_least_length() -> None:
    now = NOW + timedelta(minutes=20)
    running = {"e": Held(((NOW, NOW + 4 * HOUR),))}
    assert [one.spans for one in decide(rule(), hourly(100), running, now).wanted] == [()]
    assert spans(decide(rule(least_s=1800.0), hourly(100), running, now)) == [(0, 0.5)]
    assert spans(decide(rule(), hourly(900, 900, 100), running, now)) == [(0, 2)]
    # a fall that is known to come later makes it longer
    assert spans(decide(rule(), hourly(900, 900, 100), {"e": Held(((NOW, NOW + HOUR),))}, now)) == [(0, 2)]
    assert spans(decide(rule(), hourly(900, None, 100), {"e": Held(((NOW, NOW + HOUR),))}, now)) == []


def test_it_acts_in_its_months_and_hours_only() -> None:
    assert spans(decide(rule(hours=(14, 15)), hourly(900, 900, 900, 900), {}, NOW)) == [(2, 3)]
    assert spans(decide(rule(months=frozenset({6, 7})), hourly(900), {}, NOW)) == []


def test_the_budget_of_a_period_is_kept_and_said() -> None:
    prices = hourly(50, 900, 900, 100, 900, 100)
    few = decide(rule(max_events=1), prices, {}, NOW)
    assert spans(few) == [(1, 3)] and "the 1 events of its season since 2026-01-01 are used up" in few.alarms[0][1]
    short = decide(rule(max_hours=2.5), prices, {}, NOW)
    assert spans(short) == [(1, 3), (4, 4.5)] and "2.5 hours" in short.alarms[0][1]
    # what was asked for earlier counts in its own month only
    last_month = {"old": Held(((NOW - 40 * 24 * HOUR, NOW - 40 * 24 * HOUR + 3 * HOUR),))}
    assert spans(decide(rule(max_hours=3, per="month"), prices, last_month, NOW)) == [(1, 3), (4, 5)]
    assert spans(decide(rule(max_hours=3), prices, last_month, NOW)) == []


def test_a_season_is_its_months_without_a_break() -> None:
    winter = rule(months=frozenset({11, 12, 1, 2}))
    assert winter.period(datetime.fromisoformat("2027-02-03T00:00Z")).isoformat() == "2026-11-01T00:00:00+00:00"


def test_the_dearest_hours_of_a_day_are_told_once_all_of_it_is_known() -> None:
    one = rule(above=None, release=None, highest_hours=3)
    day = [10.0] * 24
    day[14], day[15], day[19], day[3] = 90.0, 80.0, 100.0, 95.0
    made = decide(one, hourly(*day, start=DAY), {}, NOW)
    # 03:00 is over; it is one of the three all the same
    assert spans(made) == [(2, 3), (7, 8)] and made.wanted[0].event_id == "2026-03-02"
    known = [*hourly(*day, start=DAY), *hourly(*[5.0] * 23, start=DAY + 24 * HOUR)]
    assert [w.event_id for w in decide(one, known, {}, NOW).wanted] == ["2026-03-02"]
    missing = decide(one, [p for p in known if p.start != NOW + HOUR], {}, NOW)
    assert missing.wanted == () and "is not known for all of today" in missing.alarms[0][1]


def test_hours_that_have_begun_stay_when_prices_are_revised() -> None:
    one = rule(above=None, release=None, highest_hours=2)
    day = [10.0] * 24
    day[18], day[20] = 200.0, 300.0
    before = {"2026-03-02": Held(((NOW - HOUR, NOW), (NOW + 4 * HOUR, NOW + 5 * HOUR)))}
    assert spans(decide(one, hourly(*day, start=DAY), before, NOW)) == [(-1, 0), (8, 9)]


def test_hours_that_follow_in_a_span_that_has_begun_are_decided_again() -> None:
    one = rule(above=None, release=None, highest_hours=2)
    day = [10.0] * 24
    day[12], day[20] = 200.0, 300.0
    before = {"2026-03-02": Held(((NOW, NOW + 2 * HOUR),))}
    made = decide(one, hourly(*day, start=DAY), before, NOW + 0.5 * HOUR)
    assert spans(made) == [(0, 1), (8, 9)]
    assert made.wanted[0].sentence == "the 2 highest-priced hours of 2026-03-02, each at 200 or more"


def test_a_lowered_budget_counts_for_the_next_events_and_not_for_one_that_has_begun() -> None:
    prices = hourly(800, 800, 800, 100, 800, 100)
    before, later = {"2026-03-02T1200Z": Held(((NOW, NOW + 2 * HOUR),))}, NOW + 0.5 * HOUR  # it would go on for an hour more
    assert spans(decide(rule(), prices, before, later)) == [(0, 3), (4, 5)]
    assert spans(decide(rule(max_hours=1.0), prices, before, later)) == [(0, 2)]
    other = {"x": Held(((NOW - 5 * HOUR, NOW - 3 * HOUR),)), **before}
    assert spans(decide(rule(max_events=1), prices, other, later)) == [(0, 3)]
    assert spans(decide(rule(max_hours=1.0), prices, before, NOW - HOUR)) == [(0, 1)], "it has not begun"


# --- with the intake ----------------------------------------------------------------------------------------------


class Market:
    """Published prices, or a grid's loads, that a test sets: hours from now on; points behind are what was said then. ``ahead``
    is how values of hours to come are known."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock, self.values, self.quality = clock, dict[datetime, float](), Quality.MEASURED
        self.kind, self.unit, self.ahead = Kind.PRICE, "EUR/MWh", "published"

    def series(self, region: str, what: str) -> SlotSeries:
        start = self.clock.now().replace(minute=0, second=0)
        values = tuple(self.values.get(start + n * HOUR) for n in range(24))
        basis = tuple("unknown" if value is None else self.ahead for value in values)
        return SlotSeries(start, 3600, values, basis, self.unit, "market")

    def points(self, region: str, what: str, start: datetime, end: datetime, as_of: datetime) -> Sequence[SignalPoint]:
        return [
            SignalPoint(region, self.kind, self.unit, at, at + HOUR, None, min(at, NOW), value, self.quality, "market")
            for at, value in self.values.items()
            if start <= at < end
        ]


class Site:
    """A trigger around a store and a clock, as the control plane puts it together."""

    def __init__(self, **more: Any) -> None:
        bounds = {} if "kind" in more else {"above_per_mwh": 500.0, "release_per_mwh": 400.0}
        given = {**bounds, **more}
        if "limit" not in given:
            given = {"limit_w": 40_000.0, **given}
        trigger = {"name": "spike", "region": "north", "kind": "price-above", **given}
        load = [{"feed": "csv", "file": "load.csv"}]
        region = {"name": "north", "address": "http://127.0.0.1:1", "price": [{"feed": "synthetic"}], "load": load}
        self.config = Config.model_validate({"region": [region], "trigger": [trigger]})
        self.clock, self.store = VirtualClock(NOW), MemoryStore()
        self.load_w: float | None = 100_000.0
        self.market = Market(self.clock)
        self.start()

    def start(self) -> None:
        intake = EventIntake(self.config, self.store, self.clock, load=lambda region, branch: self.load_w, nudge=lambda: None)
        self.intake, self.triggers = intake, Triggers(self.config.triggers, self.market, intake, self.store)

    def prices(self, *values: float | None) -> None:
        self.market.values.update({NOW + n * HOUR: v for n, v in enumerate(values) if v is not None})

    def look(self, hours: float = 0.0) -> None:
        self.clock.move_to(NOW + hours * HOUR)
        self.triggers.look(self.clock.now())

    def budgets(self) -> list[Budget]:
        sources = {one.name: one for one in self.config.event_sources}
        return budgets_of(self.store.grid_events(), sources, self.clock.now())

    def history(self, event_id: str) -> list[str]:
        return [line.what for line in self.store.grid_event_changes("trigger spike", event_id)]


def test_an_event_binds_has_its_figures_and_a_version_only_when_something_changes() -> None:
    site = Site()
    site.prices(50, 50, 800, 800, 100)
    for hours in (0.0, 0.2, 0.4, 1.0, 2.0, 2.5):
        site.look(hours)
    (event,) = site.store.grid_events()
    assert (event.source, event.event_id, event.version, event.protocol) == ("trigger spike", "2026-03-02T1400Z", 1, "trigger")
    (budget,) = site.budgets()
    assert (budget.start, budget.end, budget.limit_w) == (NOW + 2 * HOUR, NOW + 4 * HOUR, 40_000.0)
    assert budget.reason == "trigger spike: the price from 2026-03-02 14:00Z is 800 EUR/MWh, at or above 500"
    assert budget.source == "trigger spike" and budget.recovery_s == 900.0
    # the control plane starts anew and prices are gone: it holds on, and says so
    site.market.values.clear()
    site.start()
    site.look(3.0)
    assert site.budgets()[0].end == NOW + 4 * HOUR and site.history(event.event_id) == ["accepted"]
    assert "the price of now is not known" in next(iter(site.triggers.alarms(site.clock.now())))[2]


def test_a_fall_of_the_price_releases_what_runs() -> None:
    site = Site()
    site.prices(800)
    site.look(0.1)
    (event,) = site.store.grid_events()
    assert event.end == NOW + 4.1 * HOUR and event.event_id == "2026-03-02T1206Z"
    site.prices(800, 100)
    site.look(0.2)
    assert site.store.grid_events()[0].end == NOW + HOUR and site.history(event.event_id) == ["accepted", "changed"]
    late = Site()
    late.prices(800)
    late.look(0.0)
    late.prices(100)  # revised while it lasts
    late.look(0.5)
    assert late.history("2026-03-02T1200Z") == ["accepted", "cancelled"]
    assert [budget for budget in late.budgets() if not budget.is_over(late.clock.now())] == []
    late.look(0.6)
    assert late.history("2026-03-02T1200Z") == ["accepted", "cancelled"]


@pytest.mark.parametrize("quality", [Quality.FORECAST, Quality.HELD, Quality.SUSPECT])
def test_what_a_feed_only_forecasts_holds_or_doubts_starts_nothing_and_ends_nothing(quality: Quality) -> None:
    site = Site()
    site.market.quality = quality
    site.prices(800, 800, 100)
    site.look(0.1)
    assert site.store.grid_events() == [] and "not known" in next(iter(site.triggers.alarms(site.clock.now())))[2]
    site.market.quality = Quality.MEASURED
    site.look(0.2)
    (event,) = site.store.grid_events()
    assert event.end == NOW + 2 * HOUR
    site.market.quality = quality
    site.prices(100, 100, 100)
    site.look(0.3)
    assert site.store.grid_events() == [event]


def test_alarms_are_told_apart_by_what_they_are_of() -> None:
    site = Site(max_events=1)
    site.prices(800, 100, 800, 100)
    site.look(0.1)
    assert [key for key, _, _ in site.triggers.alarms(site.clock.now())] == ["trigger spike budget 2026-03-02T1400Z"]
    site.market.values.clear()
    site.look(0.2)
    assert [key for key, _, _ in site.triggers.alarms(site.clock.now())] == ["trigger spike price"]


def test_a_share_counts_from_the_first_load_and_an_unknown_one_is_an_alarm() -> None:
    site = Site(limit="-25% of baseline")
    site.prices(50, 800, 800)
    site.look()
    site.load_w = 10.0
    site.prices(50, 800, 800, 100)
    site.look(0.5)
    assert [(b.limit_w, b.end) for b in site.budgets()] == [(75_000.0, NOW + 3 * HOUR)]
    lacking = Site(limit="-25% of baseline")
    lacking.load_w = None
    lacking.prices(800, 100)
    lacking.look()
    assert lacking.budgets() == []
    assert any("limits nothing" in sentence for _, _, sentence in lacking.intake.alarms(lacking.clock.now()))


def test_a_test_is_recorded_and_limits_nothing() -> None:
    site = Site(test=True)
    site.prices(800, 100)
    site.look()
    assert site.store.grid_events()[0].test and site.budgets() == []


# --- the grid's load ------------------------------------------------------------------------------------------------


def grid(**more: Any) -> Site:
    """A site that watches its grid's load: 30 GW by night and 40 at 18:00, yesterday too; forecast from now on."""
    site = Site(**more)
    site.market.kind, site.market.unit, site.market.ahead = Kind.LOAD, "MW", "model"
    for day in (DAY - 24 * HOUR, DAY, DAY + 24 * HOUR):
        site.market.values.update({day + n * HOUR: 40_000.0 - 1250.0 * abs(n - 18) for n in range(24)})
    return site


def peaks(site: Site) -> list[tuple[float, float]]:
    """Hours of today."""
    (event,) = [one for one in site.store.grid_events() if one.event_id.startswith("2026-03-02")]
    return [((step.start - DAY) / HOUR, (step.end - DAY) / HOUR) for step in event.steps if step.end is not None]


def test_the_hours_of_highest_load_are_told_by_forecasts_and_follow_them() -> None:
    site = grid(kind="load-highest", highest_hours=3, hours=(0, 24))
    site.look()
    assert peaks(site) == [(17, 20)], "17 and 19 are alike"
    assert "the 3 hours of highest load of 2026-03-02, each at 38750 MW or more" in site.budgets()[0].reason
    site.market.values.update({DAY + n * HOUR: 45_000.0 for n in (13, 14, 15)})
    site.look(0.5)
    assert peaks(site) == [(13, 16)]


def test_only_a_day_that_may_set_the_months_peak_counts() -> None:
    """Of each month only the highest hour counts, so that a day well below it is left alone."""
    site = grid(kind="load-highest", highest_hours=2, of_month_peak=0.98)
    site.market.values[NOW.replace(day=1, hour=17)] = 42_000.0  # measured yesterday
    site.look()
    assert site.store.grid_events() == [], "0.98 of 42 GW is more than today's 40"
    site.market.values[DAY + 18 * HOUR] = 41_500.0  # a warmer evening is forecast
    site.look(0.5)
    assert peaks(site) == [(18, 19)], "17:00 stays at 38.75 GW"
    # a new month knows no peak of its own, and the one before counts no more
    april = datetime.fromisoformat("2026-04-01T12:00Z")
    site.market.values = {april.replace(hour=0) + n * HOUR: 30_000.0 + n for n in range(24)}
    site.look((april - NOW) / HOUR)
    assert {one.event_id for one in site.store.grid_events()} == {"2026-03-02", "2026-04-01"}


def test_a_load_above_a_value_asks_and_one_below_the_release_ends_it() -> None:
    site = grid(kind="load-above", above_mw=39_000, release_mw=37_000)
    site.look()
    assert peaks(site) == [(18, 21)], "20:00 has 37.5 GW, 21:00 36.25"
    assert "the load from 2026-03-02 18:00Z is 40000 MW, at or above 39000" in site.budgets()[0].reason


def test_a_load_that_is_published_late_is_carried_and_one_of_an_earlier_day_is_none() -> None:
    site = grid(kind="load-highest", highest_hours=1)
    for late in (10, 11):
        del site.market.values[DAY + late * HOUR]
    site.look()
    assert peaks(site) == [(18, 19)]
    gone = grid(kind="load-highest", highest_hours=1)
    for late in (8, 9, 10, 11):
        del gone.market.values[DAY + late * HOUR]
    gone.look()
    assert gone.store.grid_events() == []
    assert "the load is not known for all of today" in next(iter(gone.triggers.alarms(gone.clock.now())))[2]
    yesterday = grid(kind="load-highest", highest_hours=1)
    yesterday.market.ahead = "repeat-day"
    yesterday.look()
    assert yesterday.store.grid_events() == []
    assert "the load of now is not known" in next(iter(yesterday.triggers.alarms(yesterday.clock.now())))[2]


# --- alerts of a live sender ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ALERT_GRID_EMERGENCY", "ALERT_BLACK_START"])
def test_a_grid_emergency_that_a_vtn_announces_is_a_budget(vtn: Vtn, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    site = vtn_site(vtn, monkeypatch, serving_floor_w=30_000.0, simple_levels={"3": "cap = serving_floor_w"})
    told = cap(40.0, soon(), 60)
    alert = {"type": kind, "values": ["load shed ordered"]}
    told["intervals"] = [{**one, "payloads": [alert]} for one in told["intervals"]]
    vtn.event(vtn.program(), **told)
    site.poll()
    sources = {one.name: one for one in site.config.event_sources}
    (budget,) = budgets_of(site.store.grid_events(), sources, site.clock.now())
    assert budget.limit_w == 30_000.0 and budget.reason == f"{kind}: load shed ordered (as SIMPLE=3)"


# --- the configuration --------------------------------------------------------------------------------------------

BASE = '[[region]]\nname = "north"\naddress = "http://127.0.0.1:1"\n[[region.price]]\nfeed = "synthetic"\n[[trigger]]\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "t"\nregion = "north"\nkind = "price-above"\nlimit_w = 1', "price-above needs above_per_mwh"),
        (
            'name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5\nlimit_w = 1\nrelease_per_mwh = 6',
            "must not be higher",
        ),
        ('name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5', "give limit"),
        ('name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5\nlimit = "some"', "simple_levels.3"),
        ('name = "t"\nregion = "south"\nkind = "price-highest"\nhighest_hours = 2\nlimit_w = 1', "'south' is not a region"),
        ('name = "t"\nregion = "north"\nkind = "price-highest"\nlimit_w = 1', "needs highest_hours"),
        *(
            (
                f'name = "t"\nregion = "north"\nkind = "price-highest"\nhighest_hours = 2\nlimit_w = 1\n{key} = {value}',
                f"{key} = {value.replace(chr(34), chr(39))} is for {kinds}; remove it, or change kind",
            )
            for key, value, kinds in (
                ("least", '"20m"', "price-above or load-above"),
                ("longest", '"1h"', "price-above or load-above"),
                ("release_per_mwh", "4.0", "price-above"),
            )
        ),
        (
            'name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5\nlimit_w = 1\nhighest_hours = 2',
            "highest_hours = 2 is for price-highest or load-highest",
        ),
        (
            'name = "t"\nregion = "north"\nkind = "load-above"\nabove_mw = 5\nlimit_w = 1',
            "has no load to watch; add [[region.load]]",
        ),
        (
            'name = "t"\nregion = "north"\nkind = "load-above"\nlimit_w = 1',
            "load-above needs above_mw, the load from which it acts",
        ),
        (
            'name = "t"\nregion = "north"\nkind = "load-above"\nabove_mw = 5\nrelease_mw = 6\nlimit_w = 1',
            "release_mw 6 must not be higher than above_mw 5",
        ),
        ('name = "t"\nregion = "north"\nkind = "load-highest"\nlimit_w = 1', "load-highest needs highest_hours"),
        (
            'name = "t"\nregion = "north"\nkind = "price-highest"\nhighest_hours = 2\nlimit_w = 1\nof_month_peak = 0.9',
            "of_month_peak = 0.9 is for load-highest",
        ),
        (
            'name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5\nlimit_w = 1\nbranch = "x"',
            "[[region.branch]]",
        ),
        (
            'name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5\nlimit_w = 1\nabove_per_mw = 2',
            "did you mean 'above_per_mwh'",
        ),
    ],
)
def test_wrong_triggers_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "gridshift.toml"
    path.write_text(BASE + text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert said in str(caught.value)


def test_a_programme_may_settle_a_triggers_events(tmp_path: Path) -> None:
    path = tmp_path / "gridshift.toml"
    trigger = 'name = "t"\nregion = "north"\nkind = "price-above"\nabove_per_mwh = 5\nlimit_w = 1\n'
    programme = '[[programme]]\nname = "p"\nevent_source = "trigger t"\ncurrency = "EUR"\n'
    path.write_text(BASE + trigger + programme, encoding="utf-8")
    assert [one.name for one in load(path, {}).event_sources] == ["trigger t"]
