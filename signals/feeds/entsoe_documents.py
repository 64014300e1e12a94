"""The documents of the ENTSO-E Transparency Platform: which they are, what a refusal says, and the intervals of a series.

It knows positions counted from 1 in periods of a resolution, curve type A03 (a value holds until the next position) and A01 (a
missing position is a gap); it knows nothing of zones, auctions and kinds of plants.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from xml.etree.ElementTree import Element

from signals.feeds.base import ACCESS, INVALID, NO_DATA, FeedError, time_of
from signals.feeds.documents import decimal, text_at
from signals.feeds.reading import Row, refusal, stamp
from signals.points import Kind, Quality

#: Which document holds which kind of signal: root element and document type.
DOCUMENTS = {
    Kind.PRICE: ("Publication_MarketDocument", "A44"),
    Kind.GENERATION: ("GL_MarketDocument", "A75"),
    Kind.CARBON_AVERAGE: ("GL_MarketDocument", "A75"),
    Kind.LOAD: ("GL_MarketDocument", "A65"),
}
_TYPES = {"A44": "prices", "A65": "total load", "A73": "generation by unit", "A75": "generation by kind of plant"}
_RESOLUTIONS = {
    "PT1M": 1, "PT4M": 4, "PT5M": 5, "PT10M": 10, "PT15M": 15, "PT30M": 30, "PT60M": 60, "PT1H": 60,
}  # fmt: skip
#: More positions than this in one answer are no data: a year of quarters of 20 kinds of plants has 700,000.
MAX_POSITIONS = 1_000_000


def accept(root: Element, kind: Kind) -> None:
    """Raise FeedError unless the document is one of ``kind``."""
    if root.tag == "Acknowledgement_MarketDocument":
        raise _refused(root)
    tag, wanted = DOCUMENTS[kind]
    given = text_at(root, "type")
    if root.tag != tag or given != wanted:
        what = f"a {str(root.tag)[:60]} of type {str(given)[:10]} ({_TYPES.get(given or '', 'another document')})"
        raise FeedError(INVALID, f"the answer is {what}; {kind} is in a {tag} of type {wanted} ({_TYPES[wanted]})")


def _refused(root: Element) -> FeedError:
    reasons = [(text_at(r, "code") or "", " ".join((text_at(r, "text") or "").split())) for r in root.iter("Reason")]
    code, text = reasons[0] if reasons else ("", "")
    said = f"the source says: {text[:300] or 'nothing'} (code {code[:10] or 'none'})"
    if code == "999" and "no matching data" in text.lower():
        return FeedError(NO_DATA, said)
    if "exceed" in text.lower():  # more than it will answer at once: a matter of the request, not of rights
        return FeedError(INVALID, said)
    return FeedError(ACCESS if refusal(text).kind == ACCESS else INVALID, said)


@dataclass(frozen=True, slots=True)
class Series:
    """One TimeSeries: its element, where it stands, when its document was made, and its process."""

    element: Element
    where: str
    created_at: datetime | None
    process: str | None

    def text(self, name: str) -> str | None:
        """The text of the series' element ``name``."""
        return text_at(self.element, name)


def series_of(root: Element) -> list[Series]:
    """The document's series; raises FeedError when there is none."""
    created_at = time_of(text_at(root, "createdDateTime"))
    process = text_at(root, "process.processType")
    found = [
        Series(element, f"TimeSeries {text_at(element, 'mRID') or index}", created_at, process)
        for index, element in enumerate(root.iter("TimeSeries"), 1)
    ]
    if not found:
        raise FeedError(NO_DATA, "the document has no series")
    return found


def positions_in(root: Element) -> int:
    """How many positions the document's periods have in all, sent or not."""
    return sum(span[2] for period in root.iter("Period") if (span := _span(period)) is not None)


def _span(period: Element) -> tuple[datetime, timedelta, int] | None:
    """Start, resolution and number of positions of a period; None when it is none."""
    start, end = (time_of(text_at(period, f"timeInterval/{name}")) for name in ("start", "end"))
    step = timedelta(minutes=_RESOLUTIONS.get(text_at(period, "resolution") or "", 0))
    if start is None or end is None or end <= start or not step or (end - start) % step:
        return None
    return start, step, (end - start) // step


def rows_of(one: Series, field: str, quality: Quality, warnings: list[str], issued_at: datetime | None = None) -> list[Row]:
    """All intervals of a series, those without a value included."""
    curve = one.text("curveType") or "A01"
    if curve not in ("A01", "A03"):
        warnings.append(f"{one.where}: curveType {curve[:10]!r} is neither A01 nor A03; left out")
        return []
    rows: list[Row] = []
    for period in one.element.iter("Period"):
        span = _span(period)
        if span is None:
            said = [(text_at(period, path) or "")[:20] for path in ("timeInterval/start", "timeInterval/end", "resolution")]
            warnings.append(f"{one.where}: {said[0]!r} to {said[1]!r} is no period of whole {said[2]!r}; left out")
            continue
        start, step, count = span
        where = f"{one.where}, period {stamp(start)} to {stamp(start + count * step)}"
        sent = _positions(period, field, count, where, warnings)
        held: tuple[float | None, Quality] = (None, quality)
        for position in range(1, count + 1):
            if position in sent:
                value, doubtful = sent[position]
                held = (value, Quality.SUSPECT if doubtful else quality)
            elif curve == "A01":
                held = (None, quality)
            at = start + (position - 1) * step
            rows.append(Row(at, at + step, held[0], held[1], issued_at))
    return rows


def _positions(
    period: Element, field: str, count: int, where: str, warnings: list[str]
) -> dict[int, tuple[float | None, bool]]:
    """Position -> value and whether it was given twice with different values."""
    sent: dict[int, tuple[float | None, bool]] = {}
    for point in period.iter("Point"):
        text = text_at(point, "position") or ""
        if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= count):
            warnings.append(f"{where}: position {text[:20]!r} is outside its period, which has {count}; invalid, left out")
            continue
        position = int(text)
        value = decimal(text_at(point, field))
        if value is None:
            warnings.append(f"{where}: position {position} has no {field} that is a number; counted as missing")
        before, doubtful = sent.get(position, (value, False))
        if before != value:
            warnings.append(f"{where}: position {position} given twice, {before} and {value}; the last is used, suspect")
            doubtful = True
        sent[position] = (value, doubtful)
    return sent
