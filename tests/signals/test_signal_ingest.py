"""Fetching from a real HTTP server on loopback that plays what sources do on bad days."""

import gzip
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from signals.feeds import FEEDS
from signals.ingest import ChainResult, FetchResult, Limits, chain, fetch
from signals.points import Kind, Quality, SignalError
from tests.helpers import free_port
from tests.signals.provider import Time
from tests.signals.samples import DAY, HOUR, T0, at, charts, gb

PRICE, CARBON = Kind.PRICE, Kind.CARBON_AVERAGE
GOOD = json.dumps(charts(T0 - HOUR, 3600, [1.0, 2.0, 3.0])).encode()
QUICK = Limits(connect_s=2, read_s=2, total_s=4)

Answer = Callable[[BaseHTTPRequestHandler], None]


class Source:
    """A loopback HTTP server; each request takes the next answer of the script, the last one again and again."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.script: list[Answer] = []
        self.release = threading.Event()
        source = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                source.paths.append(self.path)
                answer = source.script.pop(0) if len(source.script) > 1 else source.script[0]
                answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that hang up are part of the play

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=lambda: self.server.serve_forever(poll_interval=0.05))
        self.thread.start()

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def reply(status: int, body: bytes = b"", cut: int = 0, **headers: str) -> Answer:
    """Answer with ``body``; ``cut`` bytes of it are promised and not sent."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: len(body) - cut])
        if cut:
            handler.close_connection = True

    return answer


@pytest.fixture
def source() -> Iterator[Source]:
    source = Source()
    yield source
    source.close()


@pytest.fixture
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def waits(clock: Time) -> list[float]:
    """How long was slept, pacing included."""
    return clock.slept


@pytest.fixture
def ask(source: Source, session: requests.Session, clock: Time) -> Callable[..., FetchResult]:
    def ask(*script: Answer, limits: Limits = QUICK, **options: Any) -> FetchResult:
        source.script = list(script)
        return fetch(
            "energy_charts",
            {"bzn": "DE-LU", "base_url": source.url} | options,
            region="r",
            kind=PRICE,
            now=T0,
            window_start=T0 - DAY,
            window_end=T0 + 2 * DAY,
            session=session,
            limits=limits,
            sleep=clock.sleep,
            manners=clock.manners(),
        )

    return ask


Ask = Callable[..., FetchResult]


def check_error(result: FetchResult, kind: str, words: str) -> None:
    assert result.error is not None
    assert (result.error.kind, result.points) == (kind, ())
    assert words in result.error.message, result.error.message


def test_good_answer(source: Source, ask: Ask) -> None:
    result = ask(reply(200, GOOD))
    assert result.error is None
    assert [p.value for p in result.points] == [1.0, 2.0, 3.0]
    assert (result.region, result.source, result.kind, result.retrieved_at) == ("r", "energy_charts", PRICE, T0)
    assert {(p.region, p.retrieved_at) for p in result.points} == {("r", T0)}
    assert source.paths == ["/price?bzn=DE-LU&start=2026-02-28T00%3A00%2B00%3A00&end=2026-03-03T00%3A00%2B00%3A00"]


def test_compressed_and_chunked_answers(ask: Ask) -> None:
    def chunked(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for start in range(0, len(GOOD), 50):
            part = GOOD[start : start + 50]
            handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    assert len(ask(reply(200, gzip.compress(GOOD), Content_Encoding="gzip")).points) == 3
    assert len(ask(chunked).points) == 3


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_passing_failure_is_tried_again(source: Source, ask: Ask, waits: list[float], status: int) -> None:
    result = ask(reply(status, b"busy"), reply(status), reply(200, GOOD))
    assert result.error is None and len(result.points) == 3
    assert len(source.paths) == 3
    assert 1.5 <= sum(waits) <= 3.0


def test_a_lasting_failure_ends_after_a_few_tries(source: Source, ask: Ask) -> None:
    check_error(ask(reply(500, b"oh")), "access", "500")
    assert len(source.paths) == 3


def test_retry_after_is_heard(source: Source, ask: Ask, waits: list[float]) -> None:
    assert len(ask(reply(429, Retry_After="2"), reply(200, GOOD)).points) == 3
    assert 2.0 <= sum(waits) <= 2.4
    # longer than a fetch waits: not asked again, and when to ask is told
    source.paths.clear()
    result = ask(reply(503, Retry_After="86400"), reply(200, GOOD))
    check_error(result, "access", "asks not to be asked until 2026-03-02 00:00Z")
    assert source.paths and len(source.paths) == 1 and result.wait_s == 86400.0


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, "access", "credentials"),
        (403, "access", "403"),
        (404, "no_data", "404"),
        (204, "no_data", "204"),
        (400, "access", "400"),
    ],
)
def test_statuses_that_trying_again_does_not_change(source: Source, ask: Ask, status: int, kind: str, words: str) -> None:
    check_error(ask(reply(status)), kind, words)
    assert len(source.paths) == 1


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"<!DOCTYPE html><html>Please log in", "invalid", "HTML"),
        (b"\x00\xff garbage", "invalid", "UTF-8"),
        (b"", "no_data", "empty"),
        (GOOD[:-20], "truncated", "middle"),
        (json.dumps(charts(T0, 900, [None] * 4)).encode(), "no_data", "published"),
        (b'{"zones": 3}', "invalid", "unix_seconds"),
    ],
)
def test_bodies_that_are_no_data(ask: Ask, body: bytes, kind: str, words: str) -> None:
    check_error(ask(reply(200, body)), kind, words)


def test_null_values_are_gaps_beside_the_points(ask: Ask) -> None:
    result = ask(reply(200, json.dumps(charts(T0, 3600, [1.0, None, 3.0])).encode()))
    assert result.error is None and len(result.points) == 2
    assert [(g.start, g.end, g.source) for g in result.gaps] == [(at(1), at(2), "energy_charts")]


def test_a_connection_that_breaks_off_is_tried_again(source: Source, ask: Ask) -> None:
    assert len(ask(reply(200, GOOD, cut=10), reply(200, GOOD)).points) == 3
    check_error(ask(reply(200, GOOD, cut=10)), "truncated", "broke off")


def test_redirects_stay_on_the_host(source: Source, ask: Ask) -> None:
    assert len(ask(reply(302, Location="/v2/price"), reply(200, GOOD)).points) == 3
    assert source.paths[-1] == "/v2/price"
    other = f"http://localhost:{source.server.server_port}/price"
    check_error(ask(reply(302, Location=other)), "access", "localhost")
    check_error(ask(reply(302, Location=f"http://127.0.0.1:{free_port()}/")), "access", "not followed")
    check_error(ask(reply(302, Location="file:///etc/passwd")), "access", "not followed")
    check_error(ask(reply(302, Location="http://127.0.0.1:port/")), "access", "not followed")
    check_error(ask(reply(302, Location="/again")), "access", "more than")


def test_too_large_a_body_is_not_read(source: Source, ask: Ask) -> None:
    small = Limits(connect_s=2, read_s=2, total_s=4, max_bytes=1000)
    check_error(ask(reply(200, b"[" * 2000), limits=small), "invalid", "more than 1000 bytes")
    bomb = gzip.compress(b"[" * 10_000_000)
    check_error(ask(reply(200, bomb, Content_Encoding="gzip"), limits=small), "invalid", "more than 1000 bytes")
    assert len(source.paths) == 2


def test_silence_and_trickling_end_in_time(source: Source, ask: Ask) -> None:
    def silent(handler: BaseHTTPRequestHandler) -> None:
        source.release.wait(20)

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not source.release.wait(0.05):
            handler.wfile.write(b" ")

    began = time.monotonic()
    short = Limits(connect_s=2, read_s=0.3, total_s=0.6, tries=2)
    check_error(ask(silent, limits=short), "access", "does not answer")
    check_error(ask(trickle, limits=short), "access", "not done")
    assert time.monotonic() - began < 15


def test_nobody_there(ask: Ask) -> None:
    check_error(ask(reply(200), base_url=f"http://127.0.0.1:{free_port()}"), "access", "cannot be reached")


def test_wrong_options_and_windows_never_reach_the_net(source: Source, ask: Ask, session: requests.Session) -> None:
    check_error(ask(reply(200, GOOD), bzn=7), "invalid", "bzn")
    check_error(ask(reply(200, GOOD), zone="x"), "invalid", "zone")
    assert source.paths == []
    common: dict[str, Any] = {"region": "r", "now": T0, "window_start": T0, "session": session}
    check_error(fetch("nope", {}, kind=PRICE, window_end=T0 + DAY, **common), "invalid", "no such feed")
    check_error(fetch("gb_carbon", {}, kind=PRICE, window_end=T0 + DAY, **common), "invalid", "has no price")
    check_error(fetch("synthetic", {}, kind=PRICE, window_end=T0, **common), "invalid", "window_end")
    with pytest.raises(SignalError, match="window_end"):
        fetch("synthetic", {}, kind=PRICE, window_end=T0.replace(tzinfo=None), **common)


def test_nothing_secret_is_said(source: Source, ask: Ask, session: requests.Session, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "signals")
    session.headers["auth-token"] = "hush"
    result = ask(reply(500, b"hush"), bzn="hush")
    lost = ask(reply(200), bzn="hush", base_url=f"http://127.0.0.1:{free_port()}")
    assert "hush" not in f"{result.error} {lost.error} {caplog.text}"
    assert "trying again" in caplog.text


def test_gb_past_and_future_make_one_result(source: Source, session: requests.Session) -> None:
    past = gb(("2026-02-28T23:30Z", "2026-03-01T00:00Z", 100, 90), ("2026-03-01T00:00Z", "2026-03-01T00:30Z", 110, None))
    ahead = gb(("2026-03-01T00:00Z", "2026-03-01T00:30Z", 110, None), ("2026-03-01T00:30Z", "2026-03-01T01:00Z", 120, None))

    def ask(*script: Answer) -> FetchResult:
        source.script = list(script)
        window: dict[str, Any] = {"window_start": T0 - HOUR, "window_end": T0 + DAY}
        options = {"feed": "gb_carbon", "base_url": source.url}
        kept: dict[str, Any] = {"session": session, "limits": QUICK, "sleep": lambda s: None}
        return fetch("gb_carbon", options, region="gb", kind=CARBON, now=T0, **kept, **window)

    result = ask(reply(200, json.dumps(past).encode()), reply(200, json.dumps(ahead).encode()))
    assert result.error is None
    assert sorted(p.value for p in result.points) == [90.0, 100.0, 110.0, 120.0]
    assert [p.value for p in result.points if p.quality is Quality.ESTIMATED] == [90.0]
    assert source.paths == ["/intensity/2026-02-28T23:00Z/2026-03-01T00:00Z", "/intensity/2026-03-01T00:00Z/fw48h"]
    # one half fails: the other's values are kept, and the error is told
    half = ask(reply(200, json.dumps(past).encode()), reply(403))
    assert len(half.points) == 3 and half.error is not None and half.error.kind == "access"
    # nothing published ahead is no error as long as there is something
    quiet = ask(reply(200, json.dumps(past).encode()), reply(200, b'{"data": []}'))
    assert len(quiet.points) == 3 and quiet.error is None


def test_csv_files(tmp_path: Path) -> None:
    names = []
    for year in (2025, 2026):
        rows = "".join(f"{year}-03-01T{h:02}:00Z,{h}\n" for h in range(24))
        (tmp_path / f"{year}.csv").write_text("datetime_utc,price_eur_mwh\n" + rows)
        names.append(str(tmp_path / f"{year}.csv"))

    def ask(file: Any, limits: Limits = QUICK, **options: Any) -> FetchResult:
        window: dict[str, Any] = {"window_start": T0, "window_end": T0 + DAY}
        return fetch("csv", {"file": file} | options, region="r", kind=PRICE, now=T0, limits=limits, **window)

    result = ask(names, source="mine")
    assert result.error is None
    assert [p.value for p in result.points] == [float(h) for h in range(24)]
    assert (result.source, {p.source for p in result.points}) == ("mine", {"mine"})
    check_error(ask(names[0]), "no_data", "2025")
    check_error(ask(str(tmp_path / "none.csv")), "access", "No such file")
    check_error(ask(names, Limits(max_bytes=10)), "invalid", "larger than")


def test_synthetic_needs_no_network() -> None:
    result = fetch("synthetic", {}, region="r", kind=CARBON, now=T0, window_start=T0, window_end=T0 + DAY)
    assert result.error is None and len(result.points) == 96
    assert result.source == "synthetic"
    assert result.known_until() == T0 + DAY


# --- fallback chains ------------------------------------------------------------------------------------------------


def ask_chain(session: requests.Session, *specs: dict[str, Any], max_age_s: float = 10800.0) -> ChainResult:
    return chain(
        specs,
        region="r",
        kind=PRICE,
        now=T0,
        window_start=T0 - DAY,
        window_end=T0 + DAY,
        session=session,
        max_age_s=max_age_s,
        limits=QUICK,
        sleep=lambda s: None,
    )


def test_the_first_fresh_source_wins_and_says_so(source: Source, session: requests.Session) -> None:
    charts_spec = {"feed": "energy_charts", "bzn": "AT", "base_url": source.url}
    made_up = {"feed": "synthetic"}
    source.script = [reply(200, GOOD)]
    first = ask_chain(session, charts_spec, made_up)
    assert first.chosen is not None and first.chosen.source == "energy_charts" and len(first.tried) == 1
    assert "first source" in first.why

    source.script = [reply(503)]
    second = ask_chain(session, charts_spec, made_up)
    assert second.chosen is not None and second.chosen.source == "synthetic"
    assert second.why == f"energy_charts: {source.url.removeprefix('http://')} answers 503; synthetic is fresh"

    # an answer that is whole but old is not fresh
    source.script = [reply(200, json.dumps(charts(T0 - timedelta(hours=9), 3600, [1.0, 2.0])).encode())]
    stale = ask_chain(session, charts_spec, {"feed": "nope"})
    assert stale.chosen is None and len(stale.tried) == 2
    assert "its last ends 2026-02-28T17:00" in stale.why and "no such feed" in stale.why
    assert ask_chain(session, charts_spec, max_age_s=8 * 3600.0).chosen is not None
    assert ask_chain(session).why == "no source is configured"


def test_a_future_value_alone_is_not_fresh(source: Source, session: requests.Session) -> None:
    source.script = [reply(200, json.dumps(charts(T0 + HOUR, 3600, [1.0, 2.0])).encode())]
    assert ask_chain(session, {"feed": "energy_charts", "bzn": "AT", "base_url": source.url}).chosen is None


def test_every_feed_has_a_polling_hint_and_a_registry_name() -> None:
    assert {"csv", "energy_charts", "gb_carbon", "synthetic"} <= set(FEEDS)
    assert all(name == feed.name and 60 <= feed.poll_s <= 6 * 3600 and feed.kinds for name, feed in FEEDS.items())
