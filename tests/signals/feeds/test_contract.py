"""What every feed promises, whoever wrote it: pure requests without secrets, and for any answer sound points or an error."""

import ast
import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import signals.feeds
from signals.feeds import FEEDS
from signals.feeds.base import ACCESS, INVALID, NO_DATA, TRUNCATED, FeedError, ParseResult, Query
from signals.points import UNITS, Kind, Quality
from tests.signals.feeds.every_feed import ALL, FILES, LIVE, SELF_MADE, Sample, samples_of
from tests.signals.feeds.hostile import JSON

NOW = datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)
DAY = timedelta(days=1)
KINDS_OF_ERROR = (NO_DATA, ACCESS, INVALID, TRUNCATED)
READERS = sorted(set(ALL) - SELF_MADE)
CASES = [(name, kind) for name in sorted(ALL) for kind in sorted(ALL[name].kinds)]
SAMPLES: list[tuple[str, Sample]] = [(name, sample) for name in sorted(ALL) for sample in samples_of(name)]
SECRET = "S3CRET-value/of a+key"
BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a "aaaaaaaaaa"><!ENTITY c "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    b'<!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;"><!ENTITY e SYSTEM "file:///etc/passwd">]><b>&d;&e;</b>'
)
GARBAGE = {
    "empty": b"",
    "blank": b" \r\n\t ",
    "ten megabytes of spaces": b" " * 10_000_000,
    "html": b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>",
    "entity bomb": BOMB,
    "half an xml": b'<?xml version="1.0"?><Publication_MarketDocument><TimeSeries><Period>',
    "half a json": b'{"data": [{"start": "2026-03-01T00:00:00Z", "val',
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"data":' * 100_000,
    "deep xml": b"<a>" * 20_000,
    "nul bytes": b"\x00" * 4096,
    "not utf-8": b"\xff\xfe\xfa{\x80\x81}",
    "cut utf-8": '{"a": "é'.encode()[:-1],
    "huge number": b'{"data": [1e999, -1e999, ' + b"9" * 6000 + b"]}",
    "another json": b'{"hello": "world", "data": {"x": 1}, "records": 5, "results": "a", "rows": {}}',
    "a list": b'[1, null, "x", {}, []]',
    "a number": b"42",
    "null": b"null",
    "an empty object": b"{}",
    "an empty list": b"[]",
    "prose": b"The service is being maintained. Please come back later.",
    "a cut zip": b"PK\x03\x04\x14\x00\x00\x00\x08\x00",
    "gzip": b"\x1f\x8b\x08\x00" + zlib.compress(b"nothing"),
    "csv of something else": b"name,colour\r\napple,red\r\npear,green\r\n",
}


def parse(name: str, payload: bytes, kind: Kind, options: dict[str, Any] | None = None, **window: datetime) -> ParseResult:
    return ALL[name].parse(payload, region="here", kind=kind, retrieved_at=NOW, options=options or {}, **window)


def query(name: str, kind: Kind, start: datetime, end: datetime) -> Query:
    feed = ALL[name]
    secrets = {secret.name: SECRET for secret in feed.secrets} | {"bearer": SECRET}
    return Query(kind, {**feed.defaults, **LIVE[name], **secrets}, start, end, NOW)


def windows() -> Iterator[tuple[datetime, datetime]]:
    yield NOW - DAY, NOW + 2 * DAY
    yield NOW - 60 * DAY, NOW - 58 * DAY
    yield NOW, NOW + DAY
    yield datetime(2025, 9, 29, tzinfo=UTC), datetime(2025, 10, 3, tzinfo=UTC)


def refused(result: ParseResult) -> None:
    assert result.points == ()
    assert isinstance(result.error, FeedError) and result.error.kind in KINDS_OF_ERROR
    assert result.error.message and "\n" not in result.error.message and len(result.error.message) < 1000


def held(name: str, result: ParseResult, kind: Kind, source: str) -> None:
    """What is true of any points, whatever the answer was."""
    seen = set()
    for p in result.points:
        assert (p.region, p.kind, p.source) == ("here", kind, source)
        assert p.unit == UNITS[kind] if kind in UNITS else (p.unit[:3].isupper() and p.unit[3:] == "/MWh")
        for time in (p.start, p.end, p.retrieved_at, *([p.issued_at] if p.issued_at else [])):
            assert time.utcoffset() == timedelta(0)
        assert p.start < p.end and p.end - p.start <= DAY
        assert p.retrieved_at == NOW and (p.issued_at is None or p.issued_at <= NOW)
        assert p.quality is not Quality.FORECAST or p.issued_at is not None
        identity = (p.variant, p.start, p.end, p.issued_at)
        assert identity not in seen, f"{name} gives {identity} twice"
        seen.add(identity)
    for gap in result.gaps:
        assert (gap.source, gap.region, gap.kind) == (source, "here", kind) and gap.start < gap.end
    assert all(isinstance(warning, str) and warning for warning in result.warnings)


def test_each_file_is_in_the_registry_and_has_live_options_and_a_sample() -> None:
    assert sorted(FEEDS) == sorted(ALL)
    assert all(FEEDS[name] is feed for name, feed in ALL.items())
    assert sorted(LIVE) == sorted(ALL)
    assert [name for name in ALL if not samples_of(name)] == []


@pytest.mark.parametrize("name", sorted(ALL))
def test_form(name: str) -> None:
    feed = ALL[name]
    assert name == feed.name and name.isidentifier() and name.islower()
    assert feed.kinds and all(isinstance(kind, Kind) for kind in feed.kinds)
    assert feed.poll_s > 0 and feed.pace_s >= 0
    assert set(feed.defaults) <= feed.option_names
    for secret in feed.secrets:
        assert secret.env.isupper() and secret.env.replace("_", "").isalnum() and secret.obtain
        assert secret.name not in feed.option_names and f"{secret.name}_env" in feed.all_option_names
    asks_http = any(r.url.startswith("http") for kind in feed.kinds for r in feed.requests(query(name, kind, NOW - DAY, NOW)))
    assert not asks_http or name == "http" or "base_url" in feed.option_names


@pytest.mark.parametrize("name", sorted(ALL))
def test_live_options_are_right_and_wrong_ones_are_named(name: str) -> None:
    feed = ALL[name]
    assert feed.check(LIVE[name]) == [] and feed.check({**feed.defaults, **LIVE[name]}) == []
    for key in sorted(feed.option_names):
        for wrong in (object(), [[]], {"a": 1}, -1.5, "\0", True):
            for problem in feed.check({**LIVE[name], key: wrong}):
                assert problem.remedy and isinstance(problem.key, str)
    if "base_url" in feed.option_names:
        for bad in ("ftp://x.org", "https://user:secret@x.org", 5):
            problems = feed.check({**LIVE[name], "base_url": bad})
            assert [p.key for p in problems] == ["base_url"] and "secret" not in str(problems)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_requests_are_pure_and_hold_no_secret_in_their_address(name: str, kind: Kind) -> None:
    feed = ALL[name]
    for start, end in windows():
        asked = query(name, kind, start, end)
        before = json.dumps(asked.options, sort_keys=True, default=str)
        requests = feed.requests(asked)
        assert feed.requests(asked) == requests and json.dumps(asked.options, sort_keys=True, default=str) == before
        if "base_url" in feed.option_names:
            asked = query(name, kind, start, end)
            elsewhere = Query(kind, {**asked.options, "base_url": "http://127.0.0.1:9/x/"}, start, end, NOW)
            assert all(r.url.startswith("http://127.0.0.1:9/x") for r in feed.requests(elsewhere))
        for request in requests:
            assert request.url.startswith(("https://", "http://", "file:", "local:"))
            assert "S3CRET" not in request.url and "//" not in request.url.partition("://")[2]
            assert all(isinstance(part, str) for part in [*request.params, *request.params.values()])
            assert all(isinstance(part, str) for part in [*request.headers, *request.headers.values()])
            assert request.body is None or isinstance(request.body, bytes)
    if feed.login is not None:
        assert "S3CRET" not in feed.login.request(query(name, kind, NOW, NOW + DAY).options).url


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_live_day_asks_for_something(name: str) -> None:
    feed = ALL[name]
    for kind in feed.kinds:
        assert 1 <= len(feed.requests(query(name, kind, NOW - DAY, NOW + DAY))) <= 20


@pytest.mark.parametrize("file", sorted({*FILES.values(), "base", "documents"}))
def test_no_feed_looks_at_a_clock_or_asks_anything_itself(file: str) -> None:
    tree = ast.parse((Path(signals.feeds.__path__[0]) / f"{file}.py").read_text())
    named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert named & {"datetime.now", "datetime.utcnow", "time.time", "date.today", "os.environ", "os.getenv"} == set()
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported & {"requests", "urllib.request", "http.client", "socket", "time", "random", "os", "subprocess"} == set()
    assert not any(module.startswith(("dispatcher", "policies", "ui")) for module in imported)


@pytest.mark.parametrize("garbage", sorted(GARBAGE))
@pytest.mark.parametrize("name", READERS)
def test_garbage_is_an_error_of_a_known_kind(name: str, garbage: str) -> None:
    for kind in sorted(ALL[name].kinds):
        refused(parse(name, GARBAGE[garbage], kind))
        refused(parse(name, GARBAGE[garbage], kind, {**ALL[name].defaults, **LIVE[name]}))


@pytest.mark.parametrize(
    ("name", "sample"), SAMPLES, ids=[f"{name}-{sample[1]}-{i}" for i, (name, sample) in enumerate(SAMPLES)]
)
class TestGoodAnswers:
    def test_points_hold(self, name: str, sample: Sample) -> None:
        payload, kind, options = sample
        window = {"start": NOW - DAY, "end": NOW + DAY} if name in SELF_MADE else {}
        result = parse(name, payload, kind, options, **window)
        assert result.points and result.error is None
        held(name, result, kind, str(options.get("source", name)))
        assert parse(name, payload, kind, options, **window) == result

    def test_a_window_cuts_and_changes_nothing_else(self, name: str, sample: Sample) -> None:
        payload, kind, options = sample
        window = {"start": NOW - DAY, "end": NOW + DAY} if name in SELF_MADE else {}
        whole = parse(name, payload, kind, options, **window)
        last = max(p.start for p in whole.points)
        start, end = last, last + timedelta(seconds=1)
        part = parse(name, payload, kind, options, start=start, end=end)
        assert part.points and set(part.points) <= set(whole.points)
        assert all(p.start < end and p.end > start for p in part.points)
        assert all(gap.start < end and gap.end > start for gap in part.gaps)
        if name not in SELF_MADE:
            refused(parse(name, payload, kind, options, start=NOW + 900 * DAY, end=NOW + 901 * DAY))

    def test_another_kind_of_the_feed_is_refused(self, name: str, sample: Sample) -> None:
        if name in SELF_MADE or name == "http":
            return  # these have whatever kind is asked or configured
        payload, _, options = sample
        good_for = {kind for body, kind, _ in samples_of(name) if body == payload}
        for kind in ALL[name].kinds - good_for:
            result = parse(name, payload, kind, options)
            refused(result)
            assert result.error is not None and result.error.kind == INVALID

    def test_cut_short_is_noticed_or_less(self, name: str, sample: Sample) -> None:
        payload, kind, options = sample
        if name in SELF_MADE:
            return
        whole = parse(name, payload, kind, options)
        for part in (payload[: len(payload) // 2], payload[: len(payload) * 9 // 10]):
            result = parse(name, part, kind, options)
            if payload.lstrip()[:1] in (b"{", b"[", b"<"):
                refused(result)
                continue
            # Of a table or an archive the whole rows may be read; but no number may be half a number.
            values = {(p.variant, p.start, p.value) for p in whole.points}
            assert {(p.variant, p.start, p.value) for p in result.points[:-1]} <= values
            assert result.error is not None or len(result.points) < len(whole.points)


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_comes_nothing_is_raised_and_points_hold(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(ALL[name].kinds)))
    options = data.draw(st.sampled_from([{}, {**ALL[name].defaults, **LIVE[name]}]))
    arbitrary = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode("utf-8", "replace"))
    samples = samples_of(name)
    payload = data.draw(arbitrary)
    if samples and data.draw(st.booleans()):
        good, kind, options = data.draw(st.sampled_from(samples))
        at, length = data.draw(st.integers(0, len(good))), data.draw(st.integers(0, 20))
        payload = good[:at] + payload[:20] + good[at + length :]
    result = parse(name, payload, kind, options)
    assert result.points or isinstance(result.error, FeedError)
    assert result.error is None or result.error.kind in KINDS_OF_ERROR
    held(name, result, kind, str(options.get("source", name)))
