"""What parsers of XML, ZIP, CSV and local times share; pure, and as deaf to hostile input as to honest mistakes."""

import csv
import io
import re
import xml.etree.ElementTree as ET
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Never
from xml.parsers import expat
from zoneinfo import ZoneInfo

from signals.feeds.base import INVALID, NO_DATA, TRUNCATED, FeedError, text_of

#: No member of an archive may be larger once unpacked.
MAX_UNPACKED_BYTES = 64 * 2**20
#: No document of a source is nested more deeply, or has more elements: a month of quarter hours of twenty plants has 200,000.
MAX_XML_DEPTH, MAX_XML_ELEMENTS = 64, 300_000
#: Nor more names of elements, each of which costs more than an element.
_MAX_XML_NAMES = 1000


def xml_root(payload: bytes) -> ET.Element:
    """The root element, namespaces stripped from all tags. Raises FeedError for what is not XML, is cut short, has more levels
    or elements than any source needs, or declares a document type: entities are how XML grows without end or reads files."""
    text_of(payload[:2000].decode("utf-8", "replace").encode())  # empty answers and HTML pages, in the usual words
    builder = ET.TreeBuilder()
    parser = expat.ParserCreate()

    def refuse(*_: object) -> Never:
        raise FeedError(INVALID, "the XML declares a document type; refused, since data need none")

    depth = count = 0
    local: dict[str, str] = {}

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, count
        depth, count = depth + 1, count + 1
        if tag not in local:
            local[tag] = tag.rpartition(":")[2]
        if depth > MAX_XML_DEPTH:
            raise FeedError(INVALID, f"the XML has more than {MAX_XML_DEPTH} levels; refused")
        if count > MAX_XML_ELEMENTS or len(local) > _MAX_XML_NAMES:
            what = f"{_MAX_XML_NAMES} names of elements" if len(local) > _MAX_XML_NAMES else f"{MAX_XML_ELEMENTS:,} elements"
            raise FeedError(INVALID, f"the XML has more than {what}; refused")
        builder.start(local[tag], attributes)

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end(local[tag])

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(payload, True)
        return builder.close()
    except expat.ExpatError as error:
        if _is_cut(payload, error):
            raise FeedError(TRUNCATED, f"the XML ends in the middle, after {len(payload)} bytes") from error
        raise FeedError(INVALID, f"the answer is not XML: {expat.ErrorString(error.code)} in line {error.lineno}") from error
    except (AssertionError, ValueError, LookupError, RecursionError) as error:  # no element at all; an unknown encoding
        raise FeedError(INVALID, f"the answer is not usable XML: {type(error).__name__}") from error


def _is_cut(payload: bytes, error: expat.ExpatError) -> bool:
    """Whether the document merely ends too early: what is cut short is well formed up to there, garbage goes wrong earlier."""
    codes, errors = expat.errors.codes, expat.errors
    if error.code == codes[errors.XML_ERROR_NO_ELEMENTS]:
        return True
    at_end = error.lineno >= payload.rstrip().count(b"\n") + 1
    return at_end and error.code in (codes[errors.XML_ERROR_UNCLOSED_TOKEN], codes[errors.XML_ERROR_PARTIAL_CHAR])


def text_at(element: ET.Element, path: str) -> str | None:
    """The stripped text at ``path``, or None when there is none."""
    found = element.find(path)
    text = found.text.strip() if found is not None and found.text else ""
    return text or None


_DECIMAL = re.compile(r"[+-]?(\d{1,15}(\.\d{0,15})?|\.\d{1,15})([eE][+-]?\d{1,2})?", re.ASCII)


def decimal(text: str | None) -> float | None:
    """A plain decimal number with a point, as documents write it; None for everything else, blanks and "NaN" included."""
    if text is None or not _DECIMAL.fullmatch(text.strip()):
        return None
    return float(text)


def unzipped(payload: bytes) -> dict[str, bytes]:
    """Name -> content of a ZIP archive's members. Raises FeedError for what is none, is cut short or unpacks too large."""
    if not payload.startswith(b"PK"):
        text_of(payload)
        raise FeedError(INVALID, "the answer is not a ZIP archive")
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            members: dict[str, bytes] = {}
            left = MAX_UNPACKED_BYTES
            for info in archive.infolist():
                if info.is_dir():
                    continue
                with archive.open(info) as member:
                    # What the directory says of sizes is the sender's word; reading one byte too many is ours.
                    content = member.read(left + 1)
                left -= len(content)
                if left < 0:
                    raise FeedError(INVALID, f"the archive unpacks to more than {MAX_UNPACKED_BYTES // 2**20} MiB; refused")
                members[info.filename] = content
            if not members:
                raise FeedError(NO_DATA, "the archive is empty")
            return members
    except zipfile.BadZipFile as error:
        raise FeedError(TRUNCATED, f"the ZIP archive is damaged or cut short: {error}") from error
    except (zlib.error, EOFError, OSError, RuntimeError, NotImplementedError, ValueError, UnicodeDecodeError) as error:
        raise FeedError(INVALID, f"the ZIP archive cannot be read: {type(error).__name__}") from error


def csv_rows(text: str) -> list[list[str]]:
    """The rows of a CSV text, empty ones left out; raises FeedError for what is none."""
    try:
        return [row for row in csv.reader(io.StringIO(text, newline="")) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise FeedError(INVALID, f"the answer is not CSV: {error}") from error


def local_to_utc(labels: Iterable[datetime], zone: ZoneInfo) -> list[datetime | None]:
    """Naive local labels, in the order in which the publisher lists them, as UTC.

    In the hour that the autumn repeats, a label is the later one when its earlier reading has been used already or would run
    backwards. A label that the spring leaves out never existed: None.
    """
    result: list[datetime | None] = []
    used: set[datetime] = set()
    last: datetime | None = None
    for label in labels:
        first, second = (label.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if first.astimezone(zone).replace(tzinfo=None) != label:
            result.append(None)
            continue
        at = first
        if second != first and (first in used or (last is not None and first < last <= second)):
            at = second
        used.add(at)
        last = at
        result.append(at)
    return result


def day_starts(day: datetime, zone: ZoneInfo, step: timedelta) -> Sequence[datetime]:
    """The UTC starts of every interval of ``step`` in the local calendar day of ``day``: 23, 24 or 25 hours' worth."""
    local = day.astimezone(zone) if day.tzinfo else day.replace(tzinfo=zone)
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    start = midnight.astimezone(UTC)
    end = (midnight.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone).astimezone(UTC)
    return [start + i * step for i in range(int((end - start) / step))]
