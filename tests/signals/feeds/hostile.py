"""Hostile payloads for feeds, and what must hold whatever a reader is given."""

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from signals.feeds.base import Feed, FeedError, ParseResult
from signals.points import Kind

NOW = datetime(2026, 3, 1, tzinfo=UTC)
FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["2026-03-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z", "NaN", "-0", ""]),
)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4))


def read(feed: Feed, payload: Any, kind: Kind, now: datetime = NOW, **context: Any) -> ParseResult:
    """Parse ``payload`` (bytes, text, or what becomes JSON) for the region "r"."""
    if isinstance(payload, str):
        payload = payload.encode("utf-8", "replace")
    if not isinstance(payload, bytes):
        payload = json.dumps(payload).encode("utf-8", "replace")
    return feed.parse(payload, region="r", kind=kind, retrieved_at=now, **context)


def sound(result: ParseResult) -> None:
    """Points or an error, each in its place: what every reader promises for any payload."""
    assert result.points or isinstance(result.error, FeedError)
    assert all(p.region == "r" and p.start < p.end for p in result.points)
    assert all(gap.start < gap.end for gap in result.gaps)
    assert all(isinstance(w, str) for w in result.warnings) and len(result.warnings) <= 21


def mutated(data: st.DataObject, document: Any) -> Any:
    """A good JSON document with one to three of its parts, at any depth, removed or replaced."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        at, key, holder = document, None, None
        while isinstance(at, dict | list) and at and data.draw(st.integers(0, 4)):
            holder = at
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
            at = at[key]
        if holder is None:
            continue
        if data.draw(st.booleans()):
            holder[key] = data.draw(JSON)
        else:
            del holder[key]
    return document
