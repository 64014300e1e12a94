"""Prices, load and carbon intensity of the seven US system operators through the library gridstatus (extra ``us``).

It knows which of the library's methods gives what for which operator, and turns its tables into one JSON document; the reader
knows that document only, so that a saved one can be read without the library. The library is large (some 350 MB with what it
needs) and is imported only when something is asked of it. It does its own HTTP, with its own waiting and without our limits:
each of its calls runs in a thread that is given up after a minute. PJM needs a key; the other operators' pages that are used
here need none. Prices
come for the hubs and zones that the library lists; SPP's load and real-time prices, for which it makes a request for every five
minutes, are not offered. The carbon intensity is that of the operator's own generation by kind of plant times
published factors (signals.emission_factors): imports are not in it, stores neither. Written against gridstatus 0.37; the
operators have not been asked live by this project.
"""

import functools
import importlib
import inspect
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from signals.emission_factors import intensities
from signals.feeds.base import (
    ACCESS,
    INVALID,
    LOCAL,
    NO_DATA,
    TRUNCATED,
    Context,
    Feed,
    FeedError,
    ParseResult,
    Problem,
    Query,
    Request,
    Secret,
    check_text,
    json_object,
    time_of,
)
from signals.feeds.reading import POLLED, Row, last_published, objects, result, series, value_of
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "gridstatus"
_DAY_AHEAD, _HOURLY, _QUARTERS, _FIVE = "day_ahead_hourly", "real_time_hourly", "real_time_15_min", "real_time_5_min"
#: Operator -> the library's class, its zone, the method for prices, and the markets that it has.
_ISOS: Mapping[str, tuple[str, str, str, tuple[str, ...]]] = {
    "CAISO": ("CAISO", "US/Pacific", "get_lmp", (_DAY_AHEAD, _QUARTERS, _FIVE)),
    "ERCOT": ("Ercot", "US/Central", "get_spp", (_DAY_AHEAD, _QUARTERS)),
    "ISONE": ("ISONE", "US/Eastern", "get_lmp", (_DAY_AHEAD, _HOURLY, _FIVE)),
    "MISO": ("MISO", "EST", "get_lmp", (_DAY_AHEAD, _FIVE)),
    "NYISO": ("NYISO", "US/Eastern", "get_lmp", (_DAY_AHEAD, _HOURLY, _FIVE)),
    "PJM": ("PJM", "US/Eastern", "get_lmp", (_DAY_AHEAD, _HOURLY, _FIVE)),
    "SPP": ("SPP", "US/Central", "get_lmp_day_ahead_hourly", (_DAY_AHEAD,)),
}
#: How long one call of the library may take before it is given up, and the least time between two, in wall seconds.
CALL_LIMIT_S = 60.0
PACE_S = 2.0
#: The local hour from which an operator may have published tomorrow's prices; the first do at about eleven.
_PUBLISHED_FROM = 10
#: Calls that were given up and have not ended, by operator: a thread cannot be ended, but no second one is to wait beside it.
_given_up: dict[str, threading.Thread] = {}
_METHODS = {Kind.LOAD: "get_load", Kind.CARBON_AVERAGE: "get_fuel_mix"}
#: What the operators call their plants -> the names of signals.emission_factors; what is absent here has no factor.
_FUELS = {
    "coal": "coal",
    "coal and lignite": "coal",
    "natural gas": "gas",
    "gas": "gas",
    "dual fuel": "gas",  # New York's: it burns oil on a few cold days only
    "oil": "oil",
    "diesel fuel oil": "oil",
    "nuclear": "nuclear",
    "hydro": "hydro",
    "large hydro": "hydro",
    "small hydro": "hydro",
    "wind": "wind",
    "solar": "solar",
    "geothermal": "geothermal",
    "biomass": "biomass",
    "wood": "biomass",
    "batteries": "battery",
    "battery storage": "battery",
    "power storage": "battery",
    "energy storage": "battery",
    "storage": "storage",
}
_NO_FUELS = frozenset({"time", "interval start", "interval end", "publish time", "imports", "baa", "load"})


def load(query: Query) -> bytes:
    """One JSON document of what the library gives for each of the operator's days in the window that can have data.

    A poll (reading.POLLED) asks from yesterday on. Raises FeedError: access without the library, when it fails or does not
    answer, invalid for options that do not fit, no_data.
    """
    options = query.options
    iso, market, location = str(options.get("iso", "")).upper(), str(options.get("market", _DAY_AHEAD)), options.get("location")
    if iso not in _ISOS:
        raise FeedError(INVALID, f"iso: {iso[:20]!r} must be one of {', '.join(_ISOS)}")
    name, zone, prices, markets = _ISOS[iso]
    if query.kind is Kind.PRICE and market not in markets:
        raise FeedError(INVALID, f"market: {market!r} is not one of {iso}'s: {', '.join(markets)}")
    if query.kind is Kind.PRICE and not location:
        raise FeedError(INVALID, "location: give the hub, zone or node whose price you want")
    if query.kind is Kind.LOAD and iso == "SPP":
        raise FeedError(INVALID, "load: the library would ask SPP 288 times for each day; not done")
    try:
        library, pandas = importlib.import_module("gridstatus"), importlib.import_module("pandas")
    except ImportError as error:
        raise FeedError(ACCESS, "needs: pip install 'gridshift[us]'") from error
    try:
        method = getattr(_client(getattr(library, name), options), prices if query.kind is Kind.PRICE else _METHODS[query.kind])
    except Exception as error:
        raise FeedError(ACCESS, f"gridstatus cannot ask {iso} ({type(error).__name__}){_hint(iso)}") from error
    # One location is asked for: the library's newer methods, one for each market, bring every node there is.
    extra = {"market": market.upper(), "locations": [location]} if query.kind is Kind.PRICE else {}
    records: list[dict[str, Any]] = []
    failed: list[str] = []
    is_ahead = query.kind is Kind.PRICE and market == _DAY_AHEAD
    for number, (day, after) in enumerate(_days(query, ZoneInfo(zone), is_ahead)):
        if number:
            threading.Event().wait(PACE_S)
        ask = functools.partial(_ask, method, pandas.Timestamp(day), pandas.Timestamp(after), extra)
        try:
            frame = _within(CALL_LIMIT_S, iso, ask)
        except _NoAnswerError as error:
            failed.append(f"{day.date().isoformat()}: {error}")
            break  # what does not answer now is not asked for the other days either
        except Exception as error:  # noqa: BLE001 - whatever a scraper meets; its text may hold URLs with keys, so only its name
            # What the library has for today only, and what is not published yet, is no failure.
            if type(error).__name__ not in ("NoDataFoundException", "NotSupported") and day < query.now:
                failed.append(f"{day.date().isoformat()}: {type(error).__name__}")
            continue
        records += _records(frame, location if query.kind is Kind.PRICE else None)
    if not records and failed:
        raise FeedError(ACCESS, f"gridstatus got nothing from {iso} ({failed[0]}){_hint(iso)}")
    if not records:
        place = f" for {location!r}; is the name right?" if query.kind is Kind.PRICE else ""
        raise FeedError(NO_DATA, f"{iso} has nothing for this window{place}")
    head = {"iso": iso, "kind": str(query.kind), "market": market if query.kind is Kind.PRICE else None}
    return json.dumps(head | {"failed": failed, "records": records}).encode()


def _hint(iso: str) -> str:
    return "; is the key (PJM_API_KEY) right?" if iso == "PJM" else ""


def _client(of: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The library's object for an operator, with the key where it takes one."""
    key = options.get("api_key")
    return of(api_key=key) if key and "api_key" in inspect.signature(of).parameters else of()


class _NoAnswerError(Exception):
    """The library does not come back; not the built-in TimeoutError, which the library may raise with whatever text."""


def _within(limit_s: float, iso: str, call: Callable[[], Any]) -> Any:
    """What ``call`` returns or raises; _NoAnswerError when that takes longer than ``limit_s``, or when an earlier call to this
    operator that took too long has still not ended."""
    stuck = _given_up.get(iso)
    if stuck is not None and stuck.is_alive():
        raise _NoAnswerError("an earlier question is still without an answer")
    outcome: list[tuple[bool, Any]] = []

    def run() -> None:
        try:
            outcome.append((True, call()))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            outcome.append((False, error))

    thread = threading.Thread(target=run, name=f"gridstatus {iso}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        _given_up[iso] = thread
        raise _NoAnswerError(f"no answer within {limit_s:g} s")
    went_well, what = outcome[0]
    if not went_well:
        raise what
    return what


def _days(query: Query, zone: ZoneInfo, is_ahead: bool) -> Iterable[tuple[datetime, datetime]]:
    """Midnight and next midnight of each local day of the window that can have data and whose data are wanted."""
    now = query.now.astimezone(zone)
    day = query.start.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    if query.start >= query.now - POLLED:
        yesterday = now.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
        day = max(day, yesterday.replace(tzinfo=zone))
    last = last_published(query.now, zone, _PUBLISHED_FROM) if is_ahead else now.date()
    while day < query.end and day.date() <= last:
        after = (day.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
        yield day, after
        day = after


def _ask(method: Any, day: Any, after: Any, extra: Mapping[str, Any]) -> Any:
    parameters = inspect.signature(method).parameters
    wanted = {"date": day} | {name: value for name, value in extra.items() if name in parameters}
    if "end" in parameters:
        wanted["end"] = after
        try:
            return method(error="raise", **wanted)  # else the library prints what went wrong and goes on without
        except TypeError:
            pass  # a method that does not go through the library's splitting of ranges has no such argument
    return method(**wanted)


def _records(frame: Any, location: object) -> list[dict[str, Any]]:
    records = json.loads(frame.to_json(orient="records", date_format="iso", date_unit="s"))

    # Some methods bring all locations whatever was asked; PJM's are asked for by number and told by name too.
    def names(record: Mapping[str, Any]) -> list[str]:
        return [str(record[key]) for key in ("Location", "Location Id") if key in record]

    return [r for r in records if location is None or not names(r) or str(location) in names(r)]


def build_requests(query: Query) -> tuple[Request, ...]:
    """Nothing: ``load`` gets the payload."""
    return (Request(LOCAL),)


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of a document that ``load`` made: the price of each location (a variant each, with its market), the load, or the
    intensity of the fuel mix. A day that could not be had makes it truncated."""
    body = json_object(payload)
    iso, kind = body.get("iso"), body.get("kind")
    if not isinstance(iso, str) or iso not in _ISOS or kind not in [str(k) for k in FEED.kinds]:
        raise FeedError(INVALID, "fields 'iso' and 'kind': not those of a document of this feed")
    if kind != context.kind:
        raise FeedError(INVALID, f"kind: the document holds {kind}, asked was {context.kind}")
    warnings: list[str] = []
    items = objects(body.get("records"), "records", warnings)
    unit, rows = UNITS.get(context.kind, "USD/MWh"), {}
    if context.kind is Kind.CARBON_AVERAGE:
        rows = {"": _carbon_rows(items, warnings)}
    else:
        rows = _value_rows(items, body.get("market"), context, warnings)
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for variant, own in rows.items():
        some, none = series(context, NAME, unit, own, warnings, variant)
        points += some
        gaps += none
    failed = body.get("failed")
    missing = FeedError(TRUNCATED, f"not all days could be had: {str(failed)[:200]}") if failed else None
    return result(points, gaps, warnings, f"{iso} has nothing for this window", missing)


def _span(where: str, item: Mapping[str, Any], warnings: list[str]) -> tuple[datetime, datetime | None] | None:
    start = time_of(item.get("Interval Start", item.get("Time")))
    end = time_of(item.get("Interval End"))
    if start is None or (end is not None and not timedelta(0) < end - start <= timedelta(hours=1)):
        warnings.append(f"{where}: 'Interval Start' and 'Interval End' are not a period of at most an hour; left out")
        return None
    return start, end


def _value_rows(
    items: list[tuple[str, dict[str, Any]]], market: object, context: Context, warnings: list[str]
) -> dict[str, list[Row]]:
    rows: dict[str, list[Row]] = {}
    for where, item in items:
        span = _span(where, item, warnings)
        if span is None:
            continue
        variant = ""
        column = "Load"
        if context.kind is Kind.PRICE:
            column = "SPP" if "SPP" in item else "LMP"
            variant = f"{market or item.get('Market', '')} {item.get('Location', '')}".strip()[:100]
        value = value_of(item.get(column), f"{where}.{column}", warnings, 0.0 if context.kind is Kind.LOAD else None)
        rows.setdefault(variant, []).append(Row(*span, value, Quality.MEASURED))
    return rows


def _carbon_rows(items: list[tuple[str, dict[str, Any]]], warnings: list[str]) -> list[Row]:
    mixes: dict[tuple[datetime, datetime | None], dict[str, float | None]] = {}
    doubtful = set()
    for where, item in items:
        span = _span(where, item, warnings)
        if span is None:
            continue
        mix: dict[str, float | None] = {}
        for name, raw in item.items():
            # The Southwest Power Pool splits each fuel into what is offered to the market and what schedules itself.
            plain = name.strip().lower().removesuffix(" market").removesuffix(" self")
            if plain in _NO_FUELS:
                continue
            fuel = _FUELS.get(plain, plain)
            value = value_of(raw, f"{where}.{name[:40]}", warnings)
            before = mix.get(fuel, 0.0)
            mix[fuel] = None if value is None or before is None else before + value
        if mixes.get(span, mix) != mix:
            warnings.append(f"{where}: this interval was given before with another mix; the last is used, suspect")
            doubtful.add(span)
        mixes[span] = mix
    return [
        Row(*span, None if value is None else round(value, 9), Quality.SUSPECT if span in doubtful else Quality.ESTIMATED)
        for span, value in intensities(mixes, warnings).items()
    ]


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "location")
    iso = options.get("iso")
    if not isinstance(iso, str) or iso.upper() not in _ISOS:
        problems.append(Problem("iso", iso, f"give the system operator, one of {', '.join(_ISOS)}"))
        return problems
    markets = _ISOS[iso.upper()][3]
    if "market" in options and options["market"] not in markets:
        problems.append(Problem("market", options["market"], f"{iso.upper()} has: {', '.join(markets)}"))
    return problems


class _PjmKey(Secret):
    """The key of PJM, which no other operator's feed needs."""

    __slots__ = ()

    def is_needed(self, options: Mapping[str, Any]) -> bool:
        """Whether the operator is PJM."""
        return str(options.get("iso", "")).upper() == "PJM"


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.LOAD, Kind.CARBON_AVERAGE}),
    option_names=frozenset({"iso", "market", "location"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=PACE_S,
    secrets=(_PjmKey("api_key", "PJM_API_KEY", "https://apiportal.pjm.com"),),
    load=load,
)
