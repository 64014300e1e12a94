"""Day-ahead prices, generation by kind of plant, load and average carbon of European zones, from the ENTSO-E Transparency
Platform (a token; https://transparency.entsoe.eu).

It keeps apart what is not the same thing: other auction sequences, intraday auctions, auctions of a border, consumption of
stores. The average carbon is the zone's own generation, without imports, times the life-cycle factors of
signals.emission_factors. Requests follow the platform's published guide and have not been run with a token of ours.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
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
)
from signals.feeds.documents import unzipped, xml_root
from signals.feeds.entsoe_codes import FUELS, NAMES, ZONES
from signals.feeds.entsoe_documents import DOCUMENTS, MAX_POSITIONS, Series, accept, positions_in, rows_of, series_of
from signals.feeds.reading import Row, base_url, ranges, result, series
from signals.gaps import SignalGap
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "entsoe"
_BASE_URL = "https://web-api.tp.entsoe.eu/api"
#: The longest range of one request: a year by the platform's rules, but also 100 series an answer (a day and auction sequence
#: each, for prices) and no more bytes than one fetch reads (a month of 15 minutes and 20 kinds of plants is about 7 MB).
_RANGES = {
    Kind.PRICE: timedelta(days=45),
    Kind.GENERATION: timedelta(days=30),
    Kind.CARBON_AVERAGE: timedelta(days=30),
    Kind.LOAD: timedelta(days=90),
}
_PAGE = 100
#: Since this delivery the coupled day-ahead auction trades quarters of an hour; before, hours.
_QUARTERS_SINCE = datetime(2025, 9, 30, 22, tzinfo=UTC)
_EIC = re.compile(r"[0-9A-Z\-]{16}")
_CURRENCY = re.compile(r"[A-Z]{3}")


# --- asking ---------------------------------------------------------------------------------------------------------


def build_requests(query: Query) -> tuple[Request, ...]:
    """One request for each part of the window; of the load the past as measured and the future as forecast a day ahead."""
    eic = _eic(query.options.get("zone", ""))
    token = {"securityToken": str(query.options.get("token", ""))}
    start, end, now = query.start, query.end, query.now
    if query.kind is Kind.PRICE:
        # A01: the day-ahead auction; intraday auctions are published in the same kind of document.
        day_ahead = {"contract_MarketAgreement.type": "A01"}
        asked = [({"documentType": "A44", "in_Domain": eic, "out_Domain": eic} | day_ahead, start, end)]
    elif query.kind is Kind.LOAD:
        load = {"documentType": "A65", "outBiddingZone_Domain": eic}
        asked = [(load | {"processType": "A16"}, start, min(end, now)), (load | {"processType": "A01"}, max(start, now), end)]
    else:
        asked = [({"documentType": "A75", "processType": "A16", "in_Domain": eic}, start, min(end, now))]
    url = base_url(query.options, _BASE_URL)
    return tuple(
        Request(url, token | params | {"periodStart": _stamp(a), "periodEnd": _stamp(b)})
        for params, first, last in asked
        if first < last
        for a, b in ranges(_hour(first), _hour(last + timedelta(minutes=59)), _RANGES[query.kind])
    )


def _hour(when: datetime) -> datetime:
    return when.replace(minute=0, second=0, microsecond=0)


def _stamp(when: datetime) -> str:
    return when.strftime("%Y%m%d%H%M")


def _eic(zone: object) -> str:
    return ZONES.get(str(zone).upper().replace("-", "_"), str(zone))


def following(payload: bytes, request: Request) -> Request | None:
    """The next page of prices after one that is full; None otherwise. Only prices come in pages."""
    if request.params.get("documentType") != "A44" or len(re.findall(rb"<(?:\w+:)?TimeSeries[\s>]", payload)) < _PAGE:
        return None
    return Request(request.url, dict(request.params) | {"offset": str(int(request.params.get("offset", "0")) + _PAGE)})


def join(pages: Sequence[bytes]) -> bytes:
    """The pages as one ZIP archive, which is also how the platform sends several documents."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for index, page in enumerate(pages):
            archive.writestr(zipfile.ZipInfo(f"{index:05d}.xml"), page)
    return buffer.getvalue()


# --- documents ------------------------------------------------------------------------------------------------------


def read(payload: bytes, context: Context) -> ParseResult:
    """Points of one document or of a ZIP archive of several."""
    parts = unzipped(payload) if payload.startswith(b"PK") else {"": payload}
    warnings: list[str] = []
    errors: list[FeedError] = []
    found: list[Series] = []
    full, positions = False, 0
    for name in sorted(parts):
        try:
            root = xml_root(parts[name])
            accept(root, context.kind)
            positions += positions_in(root)
            if positions > MAX_POSITIONS:
                raise FeedError(INVALID, f"the answer has more than {MAX_POSITIONS} positions; refused")
            some = series_of(root)
        except FeedError as error:
            errors.append(error)
            full = full and error.kind != NO_DATA
        else:
            found += some
            full = context.kind is Kind.PRICE and len(some) >= _PAGE
    if not found:
        raise next((error for error in errors if error.kind != NO_DATA), errors[0])
    # A page without data ends the pages; it takes nothing from the others.
    worst = next((error for error in errors if error.kind != NO_DATA), None)
    if full and worst is None:
        worst = FeedError(TRUNCATED, f"the answer is full ({_PAGE} series): there may be more")
    rest = (context, found, warnings, worst)
    if context.kind is Kind.PRICE:
        return _prices(*rest)
    if context.kind is Kind.LOAD:
        return _load(*rest)
    return _generation(*rest)


# --- kinds ----------------------------------------------------------------------------------------------------------


def _prices(context: Context, found: list[Series], warnings: list[str], error: FeedError | None) -> ParseResult:
    asked_zone = context.options.get("zone")
    asked_sequence = context.options.get("sequence")
    eic = None if asked_zone is None else _eic(asked_zone)
    zones = {one.text("in_Domain.mRID") for one in found if one.text("in_Domain.mRID") == one.text("out_Domain.mRID")}
    if eic is not None and eic not in zones:
        held = ", ".join(sorted({_domains(one) for one in found}))[:200]
        raise FeedError(INVALID, f"zone: the answer has no price of {asked_zone} ({eic}); it has: {held}")
    currencies = {one.text("currency_Unit.name") for one in found}
    groups: dict[tuple[str, str], list[Row]] = {}
    seen: set[str] = set()
    borders: set[str] = set()
    for one in found:
        into, out = one.text("in_Domain.mRID"), one.text("out_Domain.mRID")
        currency = one.text("currency_Unit.name") or ""
        per = one.text("price_Measure_Unit.name")
        is_border = into != out
        if not _CURRENCY.fullmatch(currency) or (per not in (None, "MWH") and not is_border):
            warnings.append(f"{one.where}: price per {str(per)[:10]!r} in {currency[:10]!r} is no currency per MWH; left out")
            continue
        sequence = one.text("classificationSequence_AttributeInstanceComponent.position")
        contract = one.text("contract_MarketAgreement.type")
        label = "" if sequence in (None, "1") else f"sequence {str(sequence)[:10]}"
        if is_border or contract == "A07":
            label = ""  # a sequence of the day-ahead auction is meant
        parts = [_domains(one) if is_border or len(zones) > 1 else "", "intraday" if contract == "A07" else "", label]
        if len(currencies) > 1:
            parts.append(currency)
        variant = " ".join(part for part in parts if part)
        seen.add(variant)
        if eic is not None and (is_border or into != eic):
            warnings.append(f"{one.where}: {_domains(one)} is not the price of {asked_zone}; left out")
            continue
        if asked_sequence is not None and not is_border and (contract == "A07" or str(asked_sequence) != (sequence or "1")):
            continue
        if is_border:
            borders.add(_domains(one))
        rows = rows_of(one, "price.amount", Quality.MEASURED, warnings)
        groups.setdefault((variant, f"{currency}/MWh"), []).extend(rows)
    if borders:
        warnings.append(f"{', '.join(sorted(borders))[:200]}: the price of capacity between two zones, not a price of energy")
    if not groups and seen and asked_sequence is not None:
        raise FeedError(NO_DATA, f"sequence: the answer has no sequence {asked_sequence}; it has: {_listed(seen)}")
    return _result(context, _apart(groups, asked_sequence is None, warnings), warnings, error, "the document has no price")


def _apart(
    groups: Mapping[tuple[str, str], list[Row]], keep_others: bool, warnings: list[str]
) -> dict[tuple[str, str], list[Row]]:
    """The groups with those hours resolved that have prices of two resolutions: an auction of hours and one of quarters, which
    older documents do not number. The coupled auction's keep their variant; the others get their own, or are left out."""
    found: dict[tuple[str, str], list[Row]] = {}
    for (variant, unit), rows in groups.items():
        lengths: dict[datetime, set[timedelta]] = {}
        for row in rows:
            lengths.setdefault(_hour(row.start), set()).add(_length(row))
        others = 0
        for row in rows:
            here, length = lengths[_hour(row.start)], _length(row)
            coupled = min(here) if row.start >= _QUARTERS_SINCE else max(here)
            if length == coupled:
                found.setdefault((variant, unit), []).append(row)
                continue
            others += 1
            if keep_others:
                found.setdefault((f"{variant} {length // timedelta(minutes=1)} minutes".strip(), unit), []).append(row)
        if others:
            warnings.append(f"{others} prices are of a second resolution for the same hours, another auction; not mixed")
    return found


def _length(row: Row) -> timedelta:
    return timedelta(0) if row.end is None else row.end - row.start


def _listed(variants: Iterable[str]) -> str:
    return ", ".join(sorted(variant or "sequence 1" for variant in variants))[:200]


def _domains(one: Series) -> str:
    into, out = (one.text(f"{way}_Domain.mRID") or "unknown" for way in ("in", "out"))
    into, out = (NAMES.get(eic, eic[:20]) for eic in (into, out))
    return into if into == out else f"border {out}>{into}"


def _load(context: Context, found: list[Series], warnings: list[str], error: FeedError | None) -> ParseResult:
    rows: list[Row] = []
    for one in _of_zone(context, found, warnings):
        is_forecast = one.process is not None and one.process != "A16"
        issued_at = (one.created_at or context.retrieved_at) if is_forecast else None
        rows += rows_of(one, "quantity", Quality.FORECAST if is_forecast else Quality.MEASURED, warnings, issued_at)
    return _result(context, {("", "MW"): rows}, warnings, error, "the document has no load for this window")


def _generation(context: Context, found: list[Series], warnings: list[str], error: FeedError | None) -> ParseResult:
    groups: dict[tuple[str, str], list[Row]] = {}
    for one in _of_zone(context, found, warnings):
        code = one.text("MktPSRType/psrType")
        if code is None:
            warnings.append(f"{one.where}: no psrType says which kind of plant; left out")
            continue
        fuel = FUELS.get(code, code[:10])
        # What a plant, mostly a store, takes from the grid comes as a series of its own, marked by the zone it goes out of.
        taken = one.text("inBiddingZone_Domain.mRID") is None and one.text("outBiddingZone_Domain.mRID") is not None
        rows = rows_of(one, "quantity", Quality.MEASURED, warnings)
        groups.setdefault((f"{fuel} consumption" if taken else fuel, "MW"), []).extend(rows)
    if context.kind is Kind.GENERATION:
        return _result(context, groups, warnings, error, "the document has no generation for this window")
    if error is not None:
        raise error  # of a mix of which parts are missing nothing can be said
    mixes: dict[tuple[datetime, datetime], dict[str, float | None]] = {}
    for (fuel, _), rows in groups.items():
        if fuel.endswith(" consumption"):
            continue
        for row in rows:
            if row.end is not None and context.wants(row.start, row.end):
                mix = mixes.setdefault((row.start, row.end), {})
                mix[fuel] = row.value if row.value is not None else mix.get(fuel)
    means = intensities(mixes, warnings)
    carbon = [Row(a, b, None if g is None else round(g, 9), Quality.ESTIMATED) for (a, b), g in means.items()]
    unit = UNITS[Kind.CARBON_AVERAGE]
    return _result(context, {("lifecycle", unit): carbon}, warnings, error, "no interval has a mix that is whole and known")


def _of_zone(context: Context, found: list[Series], warnings: list[str]) -> Iterator[Series]:
    """The series in MW of the zone asked for, or of the one zone there is."""
    asked = context.options.get("zone")
    zones = {_area(one) for one in found}
    if asked is None and len(zones) > 1:
        raise FeedError(INVALID, f"zone: the answer holds {', '.join(sorted(zones))[:200]}; say which")
    if asked is not None and _eic(asked) not in zones:
        raise FeedError(INVALID, f"zone: the answer is for {', '.join(sorted(zones))[:200]}, asked was {asked}")
    for one in found:
        unit = one.text("quantity_Measure_Unit.name") or one.text("measurement_Unit.name") or "MAW"
        if unit != "MAW":
            warnings.append(f"{one.where}: quantities in {unit[:10]!r}, not MAW (megawatts); left out")
        elif asked is None or _area(one) == _eic(asked):
            yield one


def _area(one: Series) -> str:
    names = ("inBiddingZone_Domain.mRID", "outBiddingZone_Domain.mRID", "in_Domain.mRID", "out_Domain.mRID")
    return next((text[:20] for name in names if (text := one.text(name))), "unknown")


def _result(
    context: Context, groups: Mapping[tuple[str, str], list[Row]], warnings: list[str], error: FeedError | None, empty: str
) -> ParseResult:
    points: list[SignalPoint] = []
    gaps: list[SignalGap] = []
    for (variant, unit), rows in groups.items():
        some, none = series(context, NAME, unit, rows, warnings, variant)
        points += some
        gaps += none
    return result(points, gaps, warnings, empty, error)


# --- options --------------------------------------------------------------------------------------------------------


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = check_base_url(options)
    zone = options.get("zone")
    if not isinstance(zone, str) or not _EIC.fullmatch(_eic(zone)):
        names = ", ".join(sorted(ZONES))
        problems.append(Problem("zone", zone, f"give a zone's EIC code (16 characters), or one of {names}"))
    sequence = options.get("sequence", 1)
    if isinstance(sequence, bool) or not re.fullmatch(r"[1-9]\d?", str(sequence)):
        problems.append(Problem("sequence", sequence, "must be the number of an auction sequence; 1 is the coupled auction"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset(DOCUMENTS),
    option_names=frozenset({"zone", "sequence", "base_url"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=1800.0,
    pace_s=0.5,  # 400 requests a minute for each token and address, beyond which both are shut out for ten
    secrets=(Secret("token", "ENTSOE_TOKEN", "https://transparency.entsoe.eu (My Account, Web API Security Token)"),),
    paging=Paging(following, join),
    defaults={"sequence": 1},
)
