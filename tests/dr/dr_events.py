"""Small events for the tests of demand response: built from the parts that matter, everything else ordinary."""

import json
from datetime import UTC, datetime
from typing import Any

from dispatcher.dr.explain import Given, explain
from dispatcher.dr.site import Site, site_from

SITE_FILE: dict[str, Any] = {
    "site": "hall-9",
    "batch_and_serving_reference_kw": 200.0,
    "serving_floor_kw": 40.0,
    "meter": "it_kw",
    "simple_map": {"0": "normal", "1": "-10% of baseline", "2": "-25% of baseline", "3": "cap = serving_floor_kw"},
    "relative_sign": "positive value = reduce by",
}
SITE = site_from(SITE_FILE)
NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
#: What an answer has, in this order.
KEYS = ["event_id", "source", "version", "priority", "state", "segments", "signals", "reports_due", "warnings", "error"]


def event(**changes: Any) -> dict[str, Any]:
    """An OpenADR 3.1 event: a cap of 120 kW from 14:00 to 15:00, sent at 11:00."""
    made: dict[str, Any] = {
        "id": "evt-1",
        "objectType": "EVENT",
        "programID": "prog-1",
        "createdDateTime": "2026-03-02T11:00:00Z",
        "modificationDateTime": "2026-03-02T11:00:00Z",
        "intervalPeriod": {"start": "2026-03-02T14:00:00Z", "duration": "PT1H"},
        "payloadDescriptors": [
            {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": "IMPORT_CAPACITY_LIMIT", "units": "KW"}
        ],
        "intervals": [cap(120.0)],
    }
    made.update(changes)
    return {key: value for key, value in made.items() if value is not None}


def cap(kw: Any, number: int = 0, **period: str) -> dict[str, Any]:
    """An interval with an import limit."""
    return interval("IMPORT_CAPACITY_LIMIT", [kw], number, **period)


def interval(kind: str, values: list[Any], number: int = 0, **period: str) -> dict[str, Any]:
    """An interval with one payload."""
    made: dict[str, Any] = {"id": number, "payloads": [{"type": kind, "values": values}]}
    return {**made, "intervalPeriod": period} if period else made


def asking(kind: str, values: list[Any], units: str | None = None, **changes: Any) -> dict[str, Any]:
    """An event with one payload of that kind."""
    descriptor = {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": kind, "units": units}
    return event(intervals=[interval(kind, values)], payloadDescriptors=[descriptor], **changes)


def told(operation: str, body: dict[str, Any]) -> dict[str, Any]:
    """A notification."""
    return {"objectType": "EVENT", "operation": operation, "object": body}


def at(text: str) -> datetime:
    """A time of the tests' day."""
    return datetime.fromisoformat(f"2026-03-02T{text}+00:00")


def understood(
    data: Any, *after: Any, protocol: str = "openadr-3.1", now: datetime = NOW, site: Site = SITE, **given: Any
) -> dict[str, Any]:
    """The JSON answer to a message, given as JSON or bytes."""
    bodies = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in (*after, data)]
    return explain(protocol, bodies[-1], Given(now=now, site=site, **given), bodies[:-1]).json()


def limits(answer: dict[str, Any]) -> list[tuple[Any, Any, Any]]:
    """(start, end, limit) of its segments, times without the tests' day."""
    day = "2026-03-02T"
    short = [
        [text and text.removeprefix(day).removesuffix(":00Z") for text in (s["start"], s["end"])] for s in answer["segments"]
    ]
    return [(start, end, s["limit_w"]) for (start, end), s in zip(short, answer["segments"], strict=True)]
