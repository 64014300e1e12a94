"""What holds for any input: nothing raises, nothing wrong limits anything, and the order of arrival does not matter."""

import json
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.dr.explain import PROTOCOLS, Given, explain
from dispatcher.dr.model import DrEvent, Segment
from dispatcher.dr.overlap import binding
from tests.dr.dr_events import NOW, SITE, cap, event, told, understood
from tests.dr.test_openadr2 import message, one, signal
from tests.dr.test_webhooks import FETCHED, HOOK, OWN, SECRET

STATES = {"scheduled", "active", "expired", "cancelled", "ignored", "rejected", "fetch", "ping"}
JSON_PROTOCOLS = [p for p in PROTOCOLS if p != "openadr-2.0b"]

WORDS = st.sampled_from(
    [
        *("P1D", "PT0S", "P9999Y", "-PT1H", "0001-01-01", "2026-03-02T14:00:00Z", "2026-10-25T02:30:00", "9" * 40, "1e99"),
        *("SIMPLE", "PRICE", "GHG", "IMPORT_CAPACITY_LIMIT", "ALERT_BLACK_START", "KW", "CREATE", "DELETE", "PROGRAM", "EVENT"),
        *("evt-1", "power_budget", "whsec_"),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | WORDS
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=4), inner, max_size=3)
)
EXAMPLES: list[Any] = [told("CREATE", event(reportDescriptors=[{"payloadType": "DEMAND", "frequency": 1}], duration="PT3H"))]
EXAMPLES += [{"webhook": HOOK, "fetched": FETCHED}, OWN, [event(), event(id="evt-2")], {"type": "power_budget", "data": OWN}]
EXAMPLES += [{"headers": {"webhook-id": "1", "webhook-timestamp": "1772452800", "webhook-signature": "v1,x"}, "body": "{}"}]


def holds(answer: dict[str, Any]) -> None:
    """Every answer has a known state; what is refused limits nothing; limits are sane and in order."""
    for one_answer in answer.get("events", [answer]):
        assert one_answer["state"] in STATES
        if one_answer["state"] in ("rejected", "cancelled", "expired", "fetch", "ping"):
            assert one_answer["segments"] == []
        assert (one_answer["state"] != "rejected") or one_answer["error"]["message"]
        for segment in one_answer["segments"]:
            assert 0 <= segment["limit_w"] <= 1e12 and segment["start"]
            assert segment["end"] is None or segment["start"] < segment["end"]
    json.dumps(answer, allow_nan=False).encode()


def paths(value: Any) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [()] + [(key, *rest) for key, item in inner for rest in paths(item)]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with something else at that place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("protocol", JSON_PROTOCOLS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_json_raises(protocol: str, data: st.DataObject) -> None:
    value: Any = data.draw(st.sampled_from(EXAMPLES))
    for _ in range(data.draw(st.integers(1, 3))):
        value = replaced(value, data.draw(st.sampled_from(paths(value))), data.draw(VALUES))
    body = json.dumps(value).encode()
    holds(explain(protocol, body, Given(NOW, SITE, load_w=1e5, draw_s=60.0, secrets=(SECRET,)), [body]).json())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_raise(protocol: str, body: bytes) -> None:
    holds(explain(protocol, body, Given(NOW, secrets=(SECRET,))).json())


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_no_xml_raises(data: st.DataObject) -> None:
    more = "<tolerance><tolerate><startafter>PT5M</startafter></tolerate></tolerance>"
    text = message(
        one(signal("LOAD_DISPATCH", "delta", ("PT1H", -20), ("PT1H", -30)), more=more, start="2026-03-02T11:00:00Z")
    ).decode()
    for _ in range(data.draw(st.integers(1, 3))):
        begin = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(begin, min(len(text), begin + 12)))
        text = text[:begin] + data.draw(WORDS | st.text("<>/&;= \"'x0", max_size=3)) + text[end:]
    holds(explain("openadr-2.0b", text.encode(), Given(NOW, SITE, draw_s=60.0), [text.encode()]).json())


@settings(max_examples=60, deadline=None)
@given(order=st.permutations(range(5)), gone=st.booleans())
def test_the_order_of_arrival_does_not_matter_for_what_holds_from_now_on(order: list[int], gone: bool) -> None:
    versions = [
        told(
            "CREATE" if n == 0 else "UPDATE",
            event(modificationDateTime=f"2026-03-02T10:0{n}:00Z", intervals=[cap(90 + n), cap(60 + n, 1)]),
        )
        for n in range(5)
    ]
    if gone:
        versions[2] = told("DELETE", event(modificationDateTime="2026-03-02T10:02:00Z"))
    *before, last = [versions[i] for i in order]
    answer = understood(last, *before, protocol="openadr-3.1")
    if gone:
        assert answer["state"] in ("cancelled", "ignored") and answer["segments"] == []
    else:
        assert answer["version"] == "2026-03-02T10:04:00Z"
        assert [s["limit_w"] for s in answer["segments"]] == [94000.0, 64000.0]


HOURS = st.integers(-5, 20)


@settings(max_examples=80, deadline=None)
@given(
    spans=st.lists(
        st.tuples(HOURS, st.none() | st.integers(1, 8), st.integers(0, 5), st.none() | st.integers(0, 3)), max_size=6
    )
)
def test_the_binding_limit_is_the_strictest_at_every_moment(spans: list[tuple[int, int | None, int, int | None]]) -> None:
    events = []
    for index, (start, hours, limit, rank) in enumerate(spans):
        begin = NOW + timedelta(hours=start)
        end = None if hours is None else begin + timedelta(hours=hours)
        events.append(DrEvent(None, f"e{index}", index, NOW, rank=rank, segments=(Segment(begin, end, limit * 1e3),)))
    found = binding(events, NOW)
    ranked = binding(events, NOW, by_priority=True)
    for minutes in range(30, 40 * 60, 60):
        at = NOW + timedelta(minutes=minutes)
        here = [
            (99 if e.rank is None else e.rank, s.limit_w)
            for e in events
            for s in e.segments
            if s.start <= at and (s.end is None or at < s.end)
        ]
        assert [b[2] for b in found if b[0] <= at and (b[1] is None or at < b[1])] == (
            [min(w for _, w in here)] if here else []
        )
        assert [b[2] for b in ranked if b[0] <= at and (b[1] is None or at < b[1])] == ([min(here)[1]] if here else [])
    assert all(a[1] is not None and a[1] <= b[0] and (a[1] < b[0] or a[2] != b[2]) for a, b in pairwise(found))
