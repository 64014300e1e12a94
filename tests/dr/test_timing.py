"""Times and durations: calendar months, infinity, naive times at clock changes, and how intervals follow each other."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from dispatcher.dr.model import Notes, Refused
from dispatcher.dr.timing import means_now, parse_duration, parse_time
from tests.dr.dr_events import asking, at, cap, event, interval, limits, told, understood

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("PT15M", "2026-01-31T12:15:00"),
        ("P1M", "2026-02-28T12:00:00"),
        ("P1Y1M", "2027-02-28T12:00:00"),
        ("P1W", "2026-02-07T12:00:00"),
        ("P1DT2H3M4.5S", "2026-02-01T14:03:04.500000"),
        ("P12H", "2026-02-01T00:00:00"),
        ("P0S", "2026-01-31T12:00:00"),
    ],
)
def test_a_duration_is_counted_on_the_calendar(text: str, wanted: str) -> None:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_duration(text, "d", Notes()).after(start) == datetime.fromisoformat(wanted + "+00:00")


def test_a_leap_year_has_one_day_more_in_february() -> None:
    assert parse_duration("P1M", "d", Notes()).after(datetime(2028, 1, 31, tzinfo=UTC)) == datetime(2028, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("text", ["P9999Y", "P8000Y", "P3000Y", "P99999999999D"])
def test_what_no_calendar_holds_has_no_end(text: str) -> None:
    assert parse_duration(text, "d", Notes()).after(datetime(2026, 1, 1, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "1H", "PT1X", "-PT1H", "P0.5M", "PT1H ", "P٣D", None, 3600, ["PT1H"], "P" + "9" * 99 + "D"]
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(Refused, match=r"^d: "):
        parse_duration(text, "d", Notes())


@pytest.mark.parametrize(
    "text",
    ["0001-01-01", "0001-01-01T00:00:00", "0001-01-01T00:00:00Z", "0000-01-01", "0000-00-00", "0001-01-01T00:00:00.000+00:00"],
)
def test_now_is_written_in_many_ways(text: str) -> None:
    assert means_now(text)
    answer = understood(event(intervalPeriod={"start": text, "duration": "PT1H"}))
    assert (answer["state"], limits(answer)) == ("active", [("12:00", "13:00", 120000.0)])


@pytest.mark.parametrize("text", ["2026-01-01", "0001-01-02", "0001-01-01T00:00:01", "", None, 1])
def test_other_times_are_not_now(text: object) -> None:
    assert not means_now(text)


def test_an_hour_that_comes_twice_is_read_so_that_no_limit_is_shorter() -> None:
    notes = Notes()
    begin = parse_time("2026-10-25T02:30:00", "start", BERLIN, notes)
    end = parse_time("2026-10-25T02:30:00", "end", BERLIN, notes, is_end=True)
    assert (begin, end - begin) == (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), timedelta(hours=1))
    assert "comes twice" in notes.all()[0]


def test_an_hour_that_the_clock_leaves_out_counts_on_from_before() -> None:
    notes = Notes()
    assert parse_time("2026-03-29T02:30:00", "start", BERLIN, notes) == datetime(2026, 3, 29, 1, 30, tzinfo=UTC)
    assert "does not exist" in notes.all()[0]


def test_a_time_without_offset_and_zone_is_refused() -> None:
    answer = understood(event(intervalPeriod={"start": "2026-03-02T14:00:00", "duration": "PT1H"}))
    assert (answer["state"], answer["error"]["code"], answer["segments"]) == ("rejected", "naive_time", [])


def test_a_programs_offset_is_what_a_naive_time_means() -> None:
    program = {"id": "prog-1", "objectType": "PROGRAM", "programName": "p", "timeZoneOffset": "-PT5H"}
    naive = event(intervalPeriod={"start": "2026-03-02T09:00:00", "duration": "PT1H"})
    assert limits(understood(naive, program, protocol="openadr-3.0")) == [("14:00", "15:00", 120000.0)]


def test_an_interval_follows_the_one_before_and_overrides_field_by_field() -> None:
    steps = [cap(90, 5), cap(80, 7, duration="PT30M"), cap(70, 6), cap(60, 9, start="2026-03-02T20:00:00Z")]
    assert limits(understood(event(intervals=steps))) == [
        ("14:00", "15:00", 90000.0),
        ("15:00", "15:30", 80000.0),
        ("15:30", "16:30", 70000.0),
        ("20:00", "21:00", 60000.0),
    ]


def test_a_later_interval_that_starts_now_follows_on() -> None:
    steps = [cap(90), cap(80, 1, start="0001-01-01", duration="PT1H")]
    assert limits(understood(event(intervals=steps)))[1] == ("15:00", "16:00", 80000.0)


def test_without_a_period_of_the_event_each_interval_needs_its_own() -> None:
    own = cap(90, start="2026-03-02T14:00:00Z", duration="PT1H")
    assert limits(understood(event(intervalPeriod=None, intervals=[own]))) == [("14:00", "15:00", 90000.0)]
    answer = understood(event(intervalPeriod=None, intervals=[own, cap(80)]))
    assert answer["error"]["code"] == "missing_field" and answer["segments"] == []


def test_nothing_begins_after_what_has_no_end() -> None:
    answer = understood(event(intervals=[cap(90, duration="P9999Y"), cap(80, 1)]))
    assert limits(answer) == [("14:00", None, 90000.0)] and any("never begins" in w for w in answer["warnings"])


def test_a_running_event_is_joined_midway() -> None:
    answer = understood(event(), now=at("14:20:00"))
    assert (answer["state"], limits(answer)) == ("active", [("14:20", "15:00", 120000.0)])


@pytest.mark.parametrize(("draw_s", "start"), [(300.0, "14:05"), (-300.0, "13:55"), (4000.0, "14:10"), (None, "14:00")])
def test_a_random_start_moves_all_intervals_by_one_draw(draw_s: float | None, start: str) -> None:
    period = {"start": "2026-03-02T14:00:00Z", "duration": "PT1H", "randomizeStart": "PT10M"}
    answer = understood(event(intervalPeriod=period, intervals=[cap(90), cap(80, 1)]), draw_s=draw_s)
    assert [found[0] for found in limits(answer)] == [
        start,
        start.replace("13:", "14:") if start < "14" else start.replace("14:", "15:"),
    ]


def test_the_events_duration_repeats_its_intervals() -> None:
    answer = understood(event(duration="PT3H", intervals=[cap(90, 0), cap(80, 1)]))
    assert limits(answer) == [("14:00", "15:00", 90000.0), ("15:00", "16:00", 80000.0), ("16:00", "17:00", 90000.0)]


def test_the_events_duration_cuts_its_intervals() -> None:
    answer = understood(event(duration="PT90M", intervals=[cap(90, 0), cap(80, 1)]))
    assert limits(answer) == [("14:00", "15:00", 90000.0), ("15:00", "15:30", 80000.0)]


def test_one_interval_repeated_for_ever_has_no_end() -> None:
    answer = understood(event(duration="P9999Y"), now=at("18:00:00"))
    assert (answer["state"], limits(answer)) == ("active", [("18:00", None, 120000.0)])


def test_a_day_that_repeats_for_ever_goes_on_years_later() -> None:
    hours = [interval("PRICE", [0.1], 0), interval("PRICE", [0.2], 1)]
    daily = event(duration="P9999Y", intervalPeriod={"start": "2026-03-02T00:00:00Z", "duration": "PT12H"}, intervals=hours)
    answer = understood(daily, now=datetime(2028, 7, 1, 6, tzinfo=UTC))
    assert answer["state"] == "active" and answer["signals"][0]["start"] == "2028-07-01T00:00:00Z"


def test_several_prices_share_their_interval() -> None:
    descriptor = [{"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": "PRICE", "units": "KWH", "currency": "EUR"}]
    period = {"start": "2026-03-02T13:00:00Z", "duration": "PT3H"}
    prices = understood(
        event(intervalPeriod=period, payloadDescriptors=descriptor, intervals=[interval("PRICE", [0.17, -0.03, 0.11])])
    )
    assert [(s["start"][11:16], s["end"][11:16], s["value"], s["unit"]) for s in prices["signals"]] == [
        ("13:00", "14:00", 170.0, "EUR/MWh"),
        ("14:00", "15:00", -30.0, "EUR/MWh"),
        ("15:00", "16:00", 110.0, "EUR/MWh"),
    ]
    assert prices["segments"] == []


def test_a_duration_of_zero_means_what_its_version_says() -> None:
    zero = event(intervalPeriod={"start": "2026-03-02T11:30:00Z", "duration": "PT0S"})
    assert understood(zero, protocol="openadr-3.0")["segments"][0]["end"] is None
    assert (understood(zero)["state"], understood(zero)["segments"]) == ("cancelled", [])


def test_a_start_of_now_and_no_duration_cancels_in_3_1() -> None:
    gone = event(
        intervalPeriod={"start": "0001-01-01T00:00:00Z", "duration": "PT0S"}, modificationDateTime="2026-03-02T14:10:00Z"
    )
    answer = understood(told("UPDATE", gone), told("CREATE", event()), now=at("14:10:05"))
    assert (answer["state"], answer["segments"], answer["version"]) == ("cancelled", [], "2026-03-02T14:10:00Z")


def test_a_cancellation_needs_no_units() -> None:
    gone = event(intervalPeriod={"start": "0001-01-01", "duration": "PT0S"}, payloadDescriptors=None)
    assert understood(told("UPDATE", gone))["state"] == "cancelled"
    answer = understood(event(intervalPeriod={"start": "0001-01-01", "duration": "PT0S"}), protocol="openadr-3.0")
    assert limits(answer) == [("12:00", None, 120000.0)] and "DELETE" in answer["warnings"][0]


def test_a_new_event_with_lasting_intervals_is_no_cancellation() -> None:
    lasting = event(intervalPeriod={"start": "0001-01-01", "duration": "PT0S"}, intervals=[cap(90, duration="PT1H")])
    assert limits(understood(told("CREATE", lasting))) == [("12:00", "13:00", 90000.0)]


def test_a_limit_without_any_duration_is_refused_in_3_1() -> None:
    answer = understood(event(intervalPeriod={"start": "2026-03-02T14:00:00Z"}))
    assert answer["error"]["code"] == "missing_duration"
    lasting = understood(event(intervalPeriod={"start": "2026-03-02T14:00:00Z"}, duration="PT2H"))
    assert limits(lasting) == [("14:00", "16:00", 120000.0)]


def test_a_late_event_is_recorded_only() -> None:
    answer = understood(asking("SIMPLE", [2]), now=at("15:00:00"))
    assert (answer["state"], answer["segments"], answer["error"]) == ("expired", [], None)
