"""Real feeds against providers with real manners: pages, limits, logins, caches, late publication, and bad days."""

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import requests

from signals.feeds import FEEDS, eia, entsoe, octopus_agile, watttime
from signals.feeds.base import FeedError, Query, Secret
from signals.ingest import FetchResult, fetch
from signals.manners import FAILURES_TO_OPEN
from signals.points import Kind
from signals.transport import Limits
from tests.signals.provider import (
    Asked,
    Provider,
    Reply,
    Time,
    always,
    behind_login,
    direct_session,
    one_after_another,
    provider,
    rate_limited,
    tagged,
)
from tests.signals.samples import DAY, HOUR, T0, charts, gb

PRICE, CARBON = Kind.PRICE, Kind.CARBON_AVERAGE
QUICK = Limits(connect_s=2, read_s=2, total_s=4)
GOOD = json.dumps(charts(T0 - HOUR, 3600, [1.0, 2.0, 3.0])).encode()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (eia, entsoe, octopus_agile, watttime):
        monkeypatch.setitem(FEEDS, module.FEED.name, module.FEED)


@pytest.fixture
def time() -> Time:
    return Time(T0)


@pytest.fixture
def host(time: Time) -> Iterator[Provider]:
    with provider(date=time.wall) as one:
        yield one


class Client:
    """What asks: one session, one memory of manners, time that only moves when it sleeps."""

    def __init__(self, host: Provider, time: Time, session: requests.Session) -> None:
        self.host, self.time, self.session, self.manners = host, time, session, time.manners()
        self.environ: dict[str, str] = {}

    def __call__(self, feed: str, kind: Kind = PRICE, region: str = "r", limits: Limits = QUICK, **options: Any) -> FetchResult:
        return fetch(
            feed,
            {"base_url": self.host.url} | options,
            region=region,
            kind=kind,
            now=T0,
            window_start=T0 - DAY,
            window_end=T0 + DAY,
            session=self.session,
            limits=limits,
            sleep=self.time.sleep,
            manners=self.manners,
            environ=self.environ,
        )

    def prices(self, region: str = "r", **options: Any) -> FetchResult:
        return self("energy_charts", PRICE, region, bzn="DE-LU", **options)


@pytest.fixture
def client(host: Provider, time: Time) -> Iterator[Client]:
    with direct_session() as session:
        yield Client(host, time, session)


def error_of(result: FetchResult) -> tuple[str, str]:
    assert result.error is not None, result
    assert result.error.__traceback__ is None and result.error.__context__ is None  # nothing hangs on it
    return result.error.kind, result.error.message


# --- caches and limits ----------------------------------------------------------------------------------------------


def test_what_has_not_changed_is_not_sent_again(host: Provider, client: Client) -> None:
    body = [GOOD]
    host.plays["/price"] = tagged(lambda: body[0])
    first, second = client.prices(), client.prices()
    assert (len(first.points), first.unchanged) == (3, False)
    assert (second.points, second.unchanged, second.error) == ((), True, None)
    # another region has not had it, so it is sent in full
    assert len(client.prices(region="other").points) == 3
    body[0] = json.dumps(charts(T0 - HOUR, 3600, [1.0, 2.0, 4.0])).encode()
    assert [p.value for p in client.prices().points] == [1.0, 2.0, 4.0]
    # what could not be kept is asked for in full
    client.manners.forget("energy_charts|energy_charts|r|price")
    assert len(client.prices().points) == 3
    assert client.manners.status()[0].unchanged == 1


def test_nothing_new_beside_what_has_not_changed_is_a_success(host: Provider, client: Client) -> None:
    past = json.dumps(gb(("2026-02-28T23:30Z", "2026-03-01T00:00Z", 100, 90))).encode()
    host.plays |= {"/": tagged(lambda: past), f"/intensity/{T0:%Y-%m-%dT%H:%MZ}/": always(b'{"data": []}')}
    first, second = client("gb_carbon", CARBON), client("gb_carbon", CARBON)
    assert first.points and first.error is None and not first.unchanged
    assert (second.points, second.error, second.unchanged) == ((), None, True)
    # a part that fails is not passed over
    host.plays[f"/intensity/{T0:%Y-%m-%dT%H:%MZ}/"] = always(b"", 403)
    third = client("gb_carbon", CARBON)
    assert error_of(third)[0] == "access" and not third.unchanged


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (
            400,
            b'{"detail": "bzn \'XX\' is not known to us"}',
            "invalid",
            "answers 400: the source says: bzn 'XX' is not known to us",
        ),
        (422, b'{"message": "token s3cret is over its limit"}', "access", "answers 422: the source says: token (token) is"),
        (404, b'{"error": "no such series"}', "invalid", "answers 404: the source says: no such series"),
        (400, b"<html>Bad Request</html>", "access", "answers 400"),
        (400, b"{}", "access", "answers 400"),
        (404, b"", "no_data", "answers 404: nothing there for this window"),
        (400, b'{"detail": "' + b"x" * 70000 + b'"}', "access", "answers 400"),
    ],
)
def test_a_refusal_says_what_the_provider_says(
    host: Provider, client: Client, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, kind: str, says: str
) -> None:
    monkeypatch.setitem(FEEDS, "energy_charts", replace(FEEDS["energy_charts"], secrets=(Secret("token", "T", "https://x"),)))
    client.environ = {"T": "s3cret"}
    host.plays["/price"] = always(body, status)
    found, message = error_of(client.prices())
    assert (found, "s3cret" in message, len(host.asked)) == (kind, False, 1)
    assert message.startswith(f"{host.host} {says}") and ("the source says" in message) == ("the source says" in says)


def test_no_matching_data_is_no_failure_of_the_host(host: Provider, client: Client) -> None:
    reason = "<Reason><code>999</code><text>No matching data found for Data item</text></Reason>"
    body = f'<Acknowledgement_MarketDocument xmlns="urn:x:7:0">{reason}</Acknowledgement_MarketDocument>'
    host.plays["/"] = always(body.encode(), 400)
    client.environ = {"ENTSOE_TOKEN": "s3cret"}
    kind, message = error_of(client("entsoe", PRICE, zone="DE_LU"))
    assert kind == "no_data" and "No matching data found" in message
    assert client.manners.status()[0].failures == 0


def test_an_answer_that_was_not_understood_is_asked_for_again(host: Provider, client: Client) -> None:
    host.plays["/price"] = tagged(lambda: b"<html>come back later")
    assert error_of(client.prices())[0] == error_of(client.prices())[0] == "invalid"


def test_a_304_that_nobody_asked_for_is_no_answer(host: Provider, client: Client) -> None:
    host.plays["/price"] = always(b"", 304)
    kind, message = error_of(client.prices())
    assert (kind, client.prices().unchanged) == ("access", False) and "304" in message


def test_requests_to_a_host_keep_its_pace_across_regions(host: Provider, client: Client, time: Time) -> None:
    host.plays["/price"] = rate_limited(always(GOOD), time.wall, 1.0, "60")
    results = [client.prices(region=name) for name in ("a", "b", "c")]
    assert all(result.error is None for result in results)
    assert time.slept == [pytest.approx(1.0)] * 2


def test_a_rate_limit_with_a_date_is_heard(host: Provider, client: Client, time: Time) -> None:
    host.plays["/price"] = one_after_another(
        Reply(429, headers={"Retry-After": "Sun, 01 Mar 2026 00:00:03 GMT"}),
        Reply(429, headers={"Retry-After": "Sun, 01 Mar 2026 02:00:00 GMT"}),
        Reply(200, GOOD),
    )
    result = client.prices()
    kind, message = error_of(result)
    assert kind == "access" and message == f"{host.host} asks not to be asked until 02:00Z: {host.host} answers 429"
    assert 3.0 <= time.slept[0] <= 4.0
    assert result.wait_s == pytest.approx(7200, abs=10)
    assert error_of(client.prices(region="other"))[1] == message and len(host.asked) == 2
    time.sleep(7200)
    assert client.prices().error is None


def test_a_host_that_fails_is_left_alone_and_tried_with_one_request(host: Provider, client: Client, time: Time) -> None:
    host.plays["/price"] = always(b"down", 503)
    client.prices()
    kind, message = error_of(client.prices())
    assert kind == "access" and "is left alone until 00:01Z: 5 failures in a row, last: " in message and "503" in message
    assert len(host.asked) == FAILURES_TO_OPEN
    assert 0 < client.prices().wait_s <= 60.01 and len(host.asked) == FAILURES_TO_OPEN
    time.sleep(61)
    client.prices()
    assert len(host.asked) == FAILURES_TO_OPEN + 1  # one, and no retries
    host.plays["/price"] = always(GOOD)
    time.sleep(121)
    assert client.prices().error is None and client.prices().error is None


def test_clocks_that_differ_are_told(client: Client, time: Time) -> None:
    with provider(date=lambda: time.wall() + timedelta(hours=2)) as ahead:
        ahead.plays["/price"] = always(GOOD)
        result = client.prices(base_url=ahead.url)
        assert result.error is None
        assert result.warnings == (f"our clock is 2 h behind {ahead.host}'s",)


# --- bad days -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (Reply(200, GOOD[:-30]), "truncated", "middle"),
        (Reply(200, GOOD, cut=30), "truncated", "broke off"),
        (Reply(200, b"<!doctype html><title>Sign in</title>"), "invalid", "HTML"),
        (Reply(302, headers={"Location": "http://localhost:9/price"}), "access", "not followed"),
        (Reply(302, headers={"Location": "//example.invalid/price"}), "access", "not followed"),
        (Reply(200, trickle=True), "access", "not done"),
        (Reply(silent=True), "access", "does not answer"),
        (Reply(500, b'{"error": "internal"}'), "access", "500"),
    ],
)
def test_what_is_no_answer(host: Provider, client: Client, reply: Reply, kind: str, words: str) -> None:
    host.plays["/price"] = lambda asked: reply
    result = client.prices(limits=Limits(connect_s=2, read_s=0.3, total_s=0.4, tries=1))
    assert result.points == () and error_of(result)[0] == kind
    assert words in error_of(result)[1]


def test_a_name_that_is_not_known(client: Client) -> None:
    kind, message = error_of(client.prices(base_url="http://no-such-host.invalid"))
    assert kind == "access" and message.startswith("no-such-host.invalid cannot be reached")


def test_half_of_a_past_and_future_pair(host: Provider, client: Client) -> None:
    past = gb(("2026-02-28T23:30Z", "2026-03-01T00:00Z", 100, 90))
    host.plays["/"] = lambda asked: Reply(503) if asked.path.endswith("fw48h") else Reply(200, json.dumps(past).encode())
    result = client("gb_carbon", CARBON)
    assert [p.value for p in result.points] and "503" in error_of(result)[1]


# --- secrets and sessions -------------------------------------------------------------------------------------------


def test_without_a_secret_nothing_is_asked(host: Provider, client: Client) -> None:
    result = client("entsoe", zone="BE")
    kind, message = error_of(result)
    assert (kind, result.disabled, host.asked) == ("access", True, [])
    assert message.startswith("no token: set ENTSOE_TOKEN or token_file; get one at https://")


def moer(asked: Asked) -> Reply:
    rows = [{"point_time": f"2026-02-28T23:{m:02d}:00+00:00", "value": 1000} for m in (50, 55)]
    meta: dict[str, Any] = {"data_point_period_seconds": 300, "region": "CAISO_NORTH", "signal_type": "co2_moer"}
    body: dict[str, Any] = {"data": rows, "meta": meta | {"units": "lbs_co2_per_mwh", "warnings": []}}
    if asked.path.endswith("forecast"):
        body["meta"]["generated_at"] = "2026-03-01T00:00:00+00:00"
        body["data"] = [{"point_time": "2026-03-01T00:00:00+00:00", "value": 900}]
    return Reply(200, json.dumps(body).encode())


class WattTime:
    """A login that gives a new token each time, and data behind it."""

    def __init__(self, host: Provider) -> None:
        self.tokens: list[str] = []
        self.lasting = True
        host.plays |= {"/login": self.login, "/v3": behind_login(moer, self.tokens)}

    def login(self, asked: Asked) -> Reply:
        if asked.headers["Authorization"] != "Basic am9lOmh1c2gtaHVzaA==":  # joe:hush-hush
            return Reply(401, b"who are you")
        self.tokens.append(f"token-{len(self.tokens)}")
        token = self.tokens[-1] if self.lasting else "token-of-old"
        return Reply(200, json.dumps({"token": token}).encode())


@pytest.fixture
def watt(host: Provider, client: Client) -> WattTime:
    client.environ = {"WATTTIME_USERNAME": "joe", "WATTTIME_PASSWORD": "hush-hush"}
    return WattTime(host)


def ask_rate(client: Client, region: str = "r") -> FetchResult:
    return fetch(
        "watttime",
        {"region": "CAISO_NORTH", "base_url": client.host.url},
        region=region,
        kind=Kind.CARBON_MARGINAL,
        now=T0,
        window_start=T0 - HOUR,
        window_end=T0 + HOUR,
        session=client.session,
        limits=QUICK,
        sleep=client.time.sleep,
        manners=client.manners,
        environ=client.environ,
    )


def test_one_session_serves_all_until_it_ends(host: Provider, client: Client, time: Time, watt: WattTime) -> None:
    results = [ask_rate(client, region) for region in ("a", "b")]
    assert all(result.error is None and len(result.points) == 3 for result in results)
    assert host.paths().count("/login") == 1
    watt.tokens.append("newer, elsewhere")  # the provider ends the session
    again = ask_rate(client)
    assert again.error is None and len(again.points) == 3 and host.paths().count("/login") == 2
    time.sleep(26 * 60)  # its time is over: not even tried
    before = len(host.asked)
    assert ask_rate(client).error is None
    assert host.asked[before].path == "/login"


def test_a_session_that_does_not_hold_is_opened_again_only_once(host: Provider, client: Client, watt: WattTime) -> None:
    watt.lasting = False
    kind, message = error_of(ask_rate(client))
    assert kind == "access" and "401" in message
    assert host.paths().count("/login") == 2


def test_a_refused_login_is_said_and_not_repeated(
    host: Provider, client: Client, watt: WattTime, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    client.environ["WATTTIME_PASSWORD"] = "wrong-hush"
    result = ask_rate(client)
    kind, message = error_of(result)
    assert kind == "access" and message.startswith("login: ") and "401" in message
    assert host.paths() == ["/login"]
    assert "hush" not in f"{result!r}{caplog.text}"


def test_threads_share_one_login(host: Provider, client: Client, watt: WattTime) -> None:
    results: list[FetchResult] = []
    threads = [threading.Thread(target=lambda n=n: results.append(ask_rate(client, f"r{n}"))) for n in range(6)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(result.points) for result in results] == [3] * 6
    assert host.paths().count("/login") == 1


def test_a_key_in_the_address_is_never_told(host: Provider, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client.environ = {"ENTSOE_TOKEN": "hush-hush-hush"}
    told = [client("entsoe", zone="BE", base_url="http://127.0.0.1:9")]
    for reply in (
        Reply(503, b"hush-hush-hush"),
        Reply(400, b"hush-hush-hush"),
        Reply(200, b"<a>hush-hush-hush</a>"),
        Reply(302),
    ):
        host.plays["/"] = lambda asked, reply=reply: reply
        told.append(client("entsoe", zone="BE"))
    assert all(result.error is not None for result in told)
    assert any(asked.params.get("securityToken") == "hush-hush-hush" for asked in host.asked)
    assert "hush" not in f"{told!r}{caplog.text}"


# --- pages ----------------------------------------------------------------------------------------------------------


class Agile:
    """Rates by half hours, newest first, ``size`` to a page, with a link to the next one."""

    def __init__(self, host: Provider, count: int = 90, size: int = 30) -> None:
        self.host, self.size, self.count = host, size, count
        self.broken: dict[int, Reply] = {}
        self.next_base = host.url
        host.plays["/v1"] = self.play

    def play(self, asked: Asked) -> Reply:
        page = int(asked.params.get("page", "1"))
        if page in self.broken:
            return self.broken[page]
        rows = []
        for n in range(self.count)[(page - 1) * self.size : page * self.size]:
            start = T0 + DAY - timedelta(minutes=30 * (n + 1))
            end = start + timedelta(minutes=30)
            times = {"valid_from": f"{start:%Y-%m-%dT%H:%M:%SZ}", "valid_to": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
            rows.append({"value_exc_vat": float(n), "value_inc_vat": n * 1.05, "payment_method": None, **times})
        more = page * self.size < self.count
        body = {"count": self.count, "next": f"{self.next_base}{asked.path}?page={page + 1}" if more else None, "results": rows}
        return Reply(200, json.dumps(body).encode())


@pytest.fixture
def agile(host: Provider) -> Agile:
    return Agile(host)


def rates(client: Client) -> FetchResult:
    return client("octopus_agile", product="AGILE-24-10-01", gsp="C")


def test_all_pages_make_one_answer(client: Client, agile: Agile, host: Provider) -> None:
    result = rates(client)
    assert result.error is None and len(result.points) == 90 and len(host.asked) == 3
    assert [p.value for p in result.points][:2] == [890.0, 880.0]


@pytest.mark.parametrize("reply", [Reply(403), Reply(503), Reply(200, b"<html>"), Reply(200, b'{"results": [', cut=0)])
def test_a_page_that_fails_leaves_the_others(client: Client, agile: Agile, reply: Reply) -> None:
    agile.broken[3] = reply
    result = rates(client)
    assert len(result.points) == 60 and error_of(result)[0] in ("truncated", "access", "invalid")


def test_pages_that_lead_elsewhere_or_in_a_circle(client: Client, agile: Agile, host: Provider) -> None:
    agile.next_base = "http://localhost:9"
    result = rates(client)
    assert len(result.points) == 30 and error_of(result)[0] in ("truncated", "access") and len(host.asked) == 1
    circle = json.loads(agile.play(host.asked[0]).body) | {"next": f"{host.url}/v1/again?page=7", "count": 1000}
    agile.broken = {1: Reply(200, json.dumps(circle).encode()), 7: Reply(200, json.dumps(circle).encode())}
    assert error_of(rates(client))[0] in ("truncated", "invalid")
    assert len(host.asked) == 3


def test_pages_come_to_an_end(client: Client, agile: Agile, host: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signals.ingest.MAX_PAGES", 4)
    agile.count, agile.size = 90, 10
    result = rates(client)
    assert len(result.points) == 40 and error_of(result)[0] == "truncated" and len(host.asked) == 4


def test_pages_by_offset(host: Provider, client: Client) -> None:
    client.environ = {"EIA_API_KEY": "key-for-eia"}
    hours = [T0 - timedelta(hours=n) for n in range(24)]
    rows = [
        {"period": f"{h:%Y-%m-%dT%H}", "respondent": "PJM", "fueltype": "NG", "value": "100", "value-units": "megawatthours"}
        for h in hours
    ]

    def play(asked: Asked) -> Reply:
        offset = int(asked.params.get("offset", "0"))
        body = {"response": {"total": str(len(rows)), "data": rows[offset : offset + 10]}}
        return Reply(200, json.dumps(body).encode())

    host.plays["/"] = play
    result = client("eia", Kind.GENERATION, respondent="PJM")
    assert result.error is None, result
    assert sum(p.end - p.start == HOUR for p in result.points) >= 23
    assert [asked.params.get("offset", "0") for asked in host.asked] == ["0", "10", "20"]


# --- posts and libraries --------------------------------------------------------------------------------------------


def test_a_body_is_posted_and_not_redirected(host: Provider, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = FEEDS["energy_charts"]

    def posting(query: Query) -> tuple[Any, ...]:
        return tuple(replace(request, body=b'{"q": 1}') for request in usual.requests(query))

    monkeypatch.setitem(FEEDS, "energy_charts", replace(usual, requests=posting))
    host.plays["/price"] = always(GOOD)
    assert len(client.prices().points) == 3
    assert (host.asked[0].method, host.asked[0].body) == ("POST", b'{"q": 1}')
    host.plays["/price"] = always(b"", 302, Location="/elsewhere")
    assert "POST" in error_of(client.prices())[1]


def test_a_feed_that_asks_by_a_library(client: Client, monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    def load(query: Query) -> bytes:
        if query.options["bzn"] == "AT":
            raise FeedError("no_data", "nothing there")
        if query.options["bzn"] == "CH":
            raise ZeroDivisionError("https://example.org/?key=hush")
        return GOOD

    monkeypatch.setitem(FEEDS, "energy_charts", replace(FEEDS["energy_charts"], load=load))
    assert len(client("energy_charts", bzn="DE-LU").points) == 3
    assert error_of(client("energy_charts", bzn="AT")) == ("no_data", "nothing there")
    kind, message = error_of(client("energy_charts", bzn="CH"))
    assert kind == "access" and "ZeroDivisionError" in message and "hush" not in message
    assert len(time.slept) == 2  # its pace is kept too


def test_who_waits_can_be_broken_off(host: Provider, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken_off(seconds: float) -> None:
        raise InterruptedError

    host.plays["/price"] = always(GOOD)
    client.prices()
    with monkeypatch.context() as closing:
        closing.setattr(client.time, "sleep", broken_off)
        with pytest.raises(InterruptedError):
            client.prices(region="other")
        loading = replace(FEEDS["energy_charts"], load=lambda query: GOOD)
        closing.setitem(FEEDS, "energy_charts", loading)
        client.prices()
        with pytest.raises(InterruptedError):
            client.prices()
    assert len(host.asked) == 1 and {status.failures for status in client.manners.status()} == {0}


def test_points_go_by_the_name_of_their_entry(host: Provider, client: Client) -> None:
    host.plays["/price"] = always(json.dumps(charts(T0, 3600, [1.0, None, 3.0])).encode())
    result = client.prices(source="mine", max_age="2h")
    assert {p.source for p in result.points} == {g.source for g in result.gaps} == {result.source} == {"mine"}


def test_one_off_calls_need_no_memory(host: Provider) -> None:
    host.plays["/price"] = tagged(lambda: GOOD)
    options = {"bzn": "DE-LU", "base_url": host.url}
    window: dict[str, Any] = {"now": T0, "window_start": T0 - DAY, "window_end": T0 + DAY}
    with direct_session() as session:
        results = [fetch("energy_charts", options, region="r", kind=PRICE, session=session, **window) for _ in range(2)]
    assert [len(result.points) for result in results] == [3, 3]


def test_status_tells_of_every_host(host: Provider, client: Client) -> None:
    host.plays["/price"] = always(b"", 503)
    client.prices()
    (status,) = client.manners.status()
    assert (status.host, status.state, status.failures, status.asked) == (host.host, "failing", 3, 3)
    assert status.last_error is not None and "503" in status.last_error
