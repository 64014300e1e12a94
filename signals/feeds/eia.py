"""Generation by kind of plant and average carbon of United States balancing authorities, hourly, from the EIA's API v2
(Form EIA-930; a free key; https://www.eia.gov/opendata).

It knows that a period is labelled by the hour in which it ends, in UTC, that values may be texts or null, and that an answer
says how many rows there are in all. Generation is net: stores that are being filled are below zero. The average carbon is the
authority's own generation, without imports, times the life-cycle factors of signals.emission_factors. An answer holds at most
5,000 rows. Not run with a key of ours.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from signals.emission_factors import intensities
from signals.feeds.base import (
    INVALID,
    NO_DATA,
    TRUNCATED,
    Context,
    Feed,
    FeedError,
    Paging,
    ParseResult,
    Problem,
    Query,
    Request,
    Secret,
    check_base_url,
    check_text,
    json_object,
    number,
    time_of,
)
from signals.feeds.documents import decimal
from signals.feeds.reading import Row, base_url, objects, refusal, result, said, series
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "eia"
_BASE_URL = "https://api.eia.gov/v2"
_HOUR = timedelta(hours=1)
_PAGE = 5000
#: Code of a kind of plant -> its name, as signals.emission_factors knows it where it has a factor.
_FUELS = {
    "BAT": "battery",
    "COL": "coal",
    "GEO": "geothermal",
    "NG": "gas",
    "NUC": "nuclear",
    "OES": "storage",
    "OIL": "oil",
    "OTH": "other",
    "PS": "pumped_storage",
    "SNB": "solar_with_battery",
    "SUN": "solar",
    "UES": "unknown_storage",
    "UNK": "unknown",
    "WAT": "hydro",
    "WNB": "wind_with_battery",
    "WND": "wind",
}


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request, which may have further pages, for the hours that end within the window; none for the future."""
    end = min(query.end, query.now)
    if query.start >= end:
        return ()
    params = {
        "api_key": str(query.options.get("api_key", "")),
        "frequency": "hourly",
        "data[0]": "value",
        "facets[respondent][]": str(query.options.get("respondent", "")),
        "start": _label(query.start + _HOUR),
        "end": _label(end + timedelta(minutes=59)),
        "sort[0][column]": "period",
        "sort[0][direction]": "asc",
        "offset": "0",
        "length": str(_PAGE),
    }
    url = f"{base_url(query.options, _BASE_URL)}/electricity/rto/fuel-type-data/data/"
    return (Request(url, params, {"Accept": "application/json"}),)


def _label(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H")


def following(payload: bytes, request: Request) -> Request | None:
    """The page after this one while the answer says that there are more rows."""
    try:
        response = json_object(payload).get("response")
    except FeedError:
        return None  # the reader will say what is wrong with this page
    data = response.get("data") if isinstance(response, dict) else None
    if not isinstance(data, list) or not data:
        return None
    reached = int(request.params.get("offset", "0")) + len(data)
    total = _count(response.get("total")) if isinstance(response, dict) else None
    return None if total is None or reached >= total else Request(request.url, {**request.params, "offset": str(reached)})


def join(pages: Sequence[bytes]) -> bytes:
    """One document of the rows of all pages up to the first that is none."""
    rows: list[Any] = []
    first: dict[str, Any] | None = None
    for page in pages:
        try:
            body = json_object(page)
        except FeedError:
            break
        response = body.get("response")
        if not isinstance(response, dict) or not isinstance(response.get("data"), list):
            break
        rows += response["data"]
        first = first or body
    if first is None:
        return pages[0] if pages else b""
    return json.dumps(first | {"response": first["response"] | {"data": rows}}).encode()


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of an answer of fuel-type-data; for carbon, of hours whose mix is whole, and only if the answer is."""
    body = json_object(payload)
    response = body.get("response")
    if not isinstance(response, dict):
        if said(body):
            raise refusal(f"{said(body)} {body.get('code', '')}")
        raise FeedError(INVALID, f"field 'response' is missing or no object; there are: {', '.join(sorted(body))[:200]}")
    frequency = response.get("frequency", "hourly")
    if frequency not in ("hourly", "local-hourly"):
        raise FeedError(INVALID, f"frequency: {str(frequency)[:40]!r}; must be hourly")
    warnings = [f"the source warns: {str(warning)[:200]}" for warning in _list(response.get("warnings"))[:5]]
    data = objects(response.get("data"), "data", warnings)
    if not data:
        raise FeedError(NO_DATA, "the source has no rows for this window")
    if not any("fueltype" in row for _, row in data):
        raise FeedError(INVALID, f"no row has a fueltype; there are: {', '.join(sorted(data[0][1]))[:200]}")
    total = _count(response.get("total"))
    error = None
    if total is not None and total > len(data):
        error = FeedError(TRUNCATED, f"the answer says that there are {total} rows and holds {len(data)}")
    groups = _groups(data, context, warnings)
    if context.kind is Kind.GENERATION:
        return _result(context, groups, warnings, error, "the answer has no generation for this window")
    if error is not None:
        raise error  # of a mix of which parts are missing nothing can be said
    return _carbon(context, groups, warnings)


def _groups(data: list[tuple[str, dict[str, Any]]], context: Context, warnings: list[str]) -> dict[tuple[str, str], list[Row]]:
    """(respondent, kind of plant) -> its hours."""
    asked = context.options.get("respondent")
    groups: dict[tuple[str, str], list[Row]] = {}
    for where, row in data:
        respondent, code = str(row.get("respondent", ""))[:20], row.get("fueltype")
        if asked is not None and respondent != asked:
            warnings.append(f"{where}: respondent {respondent!r} is not {asked!r}; left out")
            continue
        end = _hour(row.get("period"))
        if end is None or not isinstance(code, str) or not code.strip():
            warnings.append(f"{where}: period {str(row.get('period'))[:40]!r} or fueltype {str(code)[:20]!r} is none; left out")
            continue
        unit = row.get("value-units")
        value = _value(row.get("value"), where, warnings)
        if value is not None and unit not in (None, "megawatthours"):
            warnings.append(f"{where}: value-units {str(unit)[:40]!r} are not megawatthours; counted as missing")
            value = None
        fuel = _FUELS.get(code.strip(), code.strip().lower()[:20])
        # Megawatthours of one hour are its mean megawatts.
        groups.setdefault((respondent, fuel), []).append(Row(end - _HOUR, end, value, Quality.MEASURED))
    return groups


def _hour(label: object) -> datetime | None:
    """The end of the hour that a label such as "2022-10-31T11" (UTC) or "2022-10-31T04-07" means."""
    if not isinstance(label, str) or not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d(:00)?(Z|[+-]\d\d(:\d\d)?)?", label, re.ASCII):
        return None
    return time_of(label)


def _value(raw: object, where: str, warnings: list[str]) -> float | None:
    value = decimal(raw) if isinstance(raw, str) else number(raw)
    if value is None and raw is not None:
        warnings.append(f"{where}: value {str(raw)[:40]!r} is not a number; counted as missing")
    return value


def _carbon(context: Context, groups: Mapping[tuple[str, str], list[Row]], warnings: list[str]) -> ParseResult:
    mixes: dict[str, dict[datetime, dict[str, float | None]]] = {}
    for (respondent, fuel), rows in groups.items():
        own = mixes.setdefault(respondent, {})
        for row in rows:
            if context.wants(row.start, row.start + _HOUR):
                mix = own.setdefault(row.start, {})
                mix[fuel] = row.value if row.value is not None else mix.get(fuel)
    means = {}
    for respondent, own in mixes.items():
        found = intensities(own, warnings)
        means[respondent, "lifecycle"] = [
            Row(start, start + _HOUR, None if g is None else round(g, 9), Quality.ESTIMATED) for start, g in found.items()
        ]
    return _result(context, means, warnings, None, "no hour has a mix that is whole and known")


def _result(
    context: Context,
    groups: Mapping[tuple[str, str], list[Row]],
    warnings: list[str],
    error: FeedError | None,
    empty: str,
) -> ParseResult:
    several = len({respondent for respondent, _ in groups}) > 1
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for (respondent, name), rows in groups.items():
        variant = f"{respondent} {name}" if several else name
        some, none = series(context, NAME, UNITS[context.kind], rows, warnings, variant)
        points += some
        gaps += none
    return result(points, gaps, warnings, empty, error)


def _list(raw: object) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _count(raw: object) -> int | None:
    value = decimal(raw) if isinstance(raw, str) else number(raw)
    return None if value is None or value < 0 else int(value)


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_text(options, "respondent") + check_base_url(options)
    if "respondent" not in options:
        problems.append(Problem("respondent", None, "give the balancing authority's code, such as 'CISO', 'ERCO' or 'PJM'"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.GENERATION, Kind.CARBON_AVERAGE}),
    option_names=frozenset({"respondent", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=0.5,  # the EIA asks for less than five requests a second and about 9,000 an hour
    secrets=(Secret("api_key", "EIA_API_KEY", "https://www.eia.gov/opendata/register.php"),),
    paging=Paging(following, join),
)
