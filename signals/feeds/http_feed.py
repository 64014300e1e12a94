"""Any source with a JSON or CSV answer, described in the configuration: what to ask, and what the answer's fields mean.

It knows no provider. The description is explained in signals.feeds.described; times in the URL are filled in for each window.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from signals.feeds import described
from signals.feeds.base import (
    INVALID,
    Context,
    Feed,
    FeedError,
    ParseResult,
    Problem,
    Query,
    Request,
    Secret,
    check_base_url,
    duration,
)
from signals.feeds.reading import Row, ranges, result, series
from signals.points import Kind, Quality, SignalError

NAME = "http"
_PLACEHOLDER = re.compile(r"\{([^{}:]*)(?::([^{}]*))?\}")
_TIMES = ("start", "end", "from", "to", "now")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "auth-token"})
_SECRET_PARAMETER = re.compile(r"[?&][^=&]*(token|api_?-?key|secret|password)[^=&]*=", re.IGNORECASE)
_SAMPLE = datetime(2026, 3, 1, tzinfo=UTC)


def build_requests(query: Query) -> tuple[Request, ...]:
    """The URL with its times filled in, once for the whole window or once for each ``max_range`` of it."""
    options = query.options
    given = options.get("headers", {})
    headers = {"Accept": "*/*"} | {str(k): str(v) for k, v in (given.items() if isinstance(given, Mapping) else ())}
    params = {}
    token = str(options.get("token", ""))
    if "token_header" in options:
        headers[str(options["token_header"])] = f"{options.get('token_prefix', '')}{token}"
    if "token_param" in options:
        params[str(options["token_param"])] = token
    longest = duration("max_range", options["max_range"]) if "max_range" in options else query.end - query.start
    found = []
    for start, end in ranges(query.start, query.end, longest):
        url = _filled(str(options.get("url", "")), options, start, end, query.now)
        found.append(Request(url, params, headers))
    return tuple(found)


def _filled(template: str, options: Mapping[str, Any], start: datetime, end: datetime, now: datetime) -> str:
    """``template`` with its placeholders replaced; raises SignalError for one that is none."""
    times = dict(zip(_TIMES, (start, end, start, end, now), strict=True))

    def fill(match: re.Match[str]) -> str:
        if match[1] not in times:
            raise SignalError(f"url: {match[0]!r} is no placeholder; there are {', '.join(_TIMES)}, as in '{{start}}'")
        return quote(_written(times[match[1]], match[2] or "iso", options), safe=":")

    return _PLACEHOLDER.sub(fill, template)


def _written(when: datetime, form: str, options: Mapping[str, Any]) -> str:
    # Calendar forms are local, since sources that ask for a day mean one of theirs; instants need no zone.
    local = when.astimezone(described.zone_of(options))
    if form == "iso":
        return when.strftime("%Y-%m-%dT%H:%M:%SZ")
    if form == "date":
        return local.strftime("%Y-%m-%d")
    if form in ("unix", "unix_ms"):
        return str(int(when.timestamp()) * (1000 if form == "unix_ms" else 1))
    if "%" not in form:
        raise SignalError(f"url: {form!r} is no form of a time; use iso, date, unix, unix_ms or a pattern such as '%Y%m%d'")
    return local.strftime(form)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of the rows that the options describe."""
    options = context.options
    warnings: list[str] = []
    values, error = described.values(payload, options, warnings)
    kind = described.kind_of(options)
    if kind is not context.kind:
        raise FeedError(INVALID, f"kind: the options say {kind}, not {context.kind}")
    unit, _ = described.unit_of(options, kind)
    forecast = described.is_true(options, "forecast")
    rows = []
    for value in values:
        ahead = kind is not Kind.PRICE and value.start >= context.retrieved_at
        # A price that lies ahead is a published price; any other value that does can only be a forecast.
        quality = Quality.FORECAST if forecast or ahead else Quality.MEASURED
        issued_at = value.issued_at
        if issued_at is None and quality is Quality.FORECAST:
            issued_at = context.retrieved_at
        rows.append(Row(value.start, value.end, value.value, quality, issued_at))
    points, gaps = series(context, NAME, unit, rows, warnings)
    return result(points, gaps, warnings, "no row of the answer has a value for this window", error)


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options, each named."""
    return [*_check_url(options), *_check_headers(options), *described.problems(options)]


def _check_url(options: Mapping[str, Any]) -> list[Problem]:
    url = options.get("url")
    if not isinstance(url, str):
        return [Problem("url", url, "give the address, such as 'https://example.org/prices?from={start}&to={end}'")]
    try:
        filled = _filled(url, options, _SAMPLE, _SAMPLE + timedelta(days=1), _SAMPLE)
    except (SignalError, ValueError) as error:
        return [Problem("url", url, str(error).removeprefix("url: "))]
    wrong = check_base_url({"base_url": filled})
    found = [Problem("url", "(hidden)" if problem.value == "(hidden)" else url, problem.remedy) for problem in wrong]
    if _SECRET_PARAMETER.search(filled):
        # What stands in a URL ends up in logs.
        found.append(Problem("url", "(hidden)", "must not hold a key: name its parameter in token_param, and give token_env"))
    if "max_range" in options:
        try:
            if duration("max_range", options["max_range"]) < timedelta(minutes=5):
                raise SignalError("too short")
        except SignalError:
            found.append(Problem("max_range", options["max_range"], "must be at least 5 minutes, such as '24h' or '7d'"))
    return found


def _check_headers(options: Mapping[str, Any]) -> list[Problem]:
    found = []
    headers = options.get("headers", {})
    if not isinstance(headers, Mapping) or not all(
        isinstance(k, str) and _HEADER.fullmatch(k) and isinstance(v, str) and _plain(v) for k, v in headers.items()
    ):
        found.append(Problem("headers", "(hidden)", "must be a table of header names and one-line texts"))
    else:
        for name in headers:
            if name.lower() in _SECRET_HEADERS:
                remedy = f"must not hold {name}: name it in token_header, and give token_env or token_file"
                found.append(Problem("headers", "(hidden)", remedy))
    for key in ("token_header", "token_param"):
        if key in options and not (isinstance(options[key], str) and _HEADER.fullmatch(options[key])):
            found.append(Problem(key, options[key], "must be a plain name"))
    if "token_prefix" in options and not (isinstance(options["token_prefix"], str) and _plain(options["token_prefix"])):
        found.append(Problem("token_prefix", options["token_prefix"], "must be a text such as 'Bearer '"))
    if "token_prefix" in options and "token_header" not in options:
        found.append(Problem("token_header", None, "say which header the token goes into, such as 'Authorization'"))
    return found


def _plain(text: str) -> bool:
    return text.isascii() and (text.isprintable() or not text)


FEED = Feed(
    name=NAME,
    kinds=frozenset(Kind),
    option_names=described.NAMES | {"url", "headers", "max_range", "token_header", "token_prefix", "token_param"},
    requests=build_requests,
    read=read,
    check=check,
    poll_s=900.0,
    pace_s=1.0,
    secrets=(Secret("token", "GRIDSHIFT_HTTP_TOKEN", "the source's own pages", needed_by=("token_header", "token_param")),),
)
