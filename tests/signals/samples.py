"""Points and payloads that the signal tests share."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from signals.feeds import FEEDS, ParseResult
from signals.points import UNITS, Kind, Quality, SignalPoint

T0 = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def point(hours: float, value: float, *, length_h: float = 1.0, **changes: Any) -> SignalPoint:
    kind = changes.get("kind", Kind.PRICE)
    fields: dict[str, Any] = {
        "region": "r",
        "kind": kind,
        "unit": UNITS.get(kind, "EUR/MWh"),
        "start": at(hours),
        "end": at(hours + length_h),
        "issued_at": None,
        "retrieved_at": T0,
        "value": value,
        "quality": Quality.MEASURED,
        "source": "s",
    }
    return SignalPoint(**(fields | changes))


def parse(feed: str, payload: bytes | str | dict[str, Any], kind: Kind, now: datetime = T0, **context: Any) -> ParseResult:
    if isinstance(payload, dict):
        payload = json.dumps(payload)
    if isinstance(payload, str):
        payload = payload.encode()
    return FEEDS[feed].parse(payload, region="r", kind=kind, retrieved_at=now, **context)


def values(result: ParseResult) -> list[tuple[str, float]]:
    return [(f"{p.start:%m-%dT%H:%M}", p.value) for p in result.points]


def gb(*rows: tuple[str, str, Any, Any]) -> dict[str, Any]:
    return {
        "data": [
            {"from": a, "to": b, "intensity": {"forecast": forecast, "actual": actual, "index": "low"}}
            for a, b, forecast, actual in rows
        ]
    }


def charts(start: datetime, step_s: int, prices: list[Any], **changes: Any) -> dict[str, Any]:
    body = {
        "license_info": "CC BY 4.0",
        "unix_seconds": [int(start.timestamp()) + i * step_s for i in range(len(prices))],
        "price": prices,
        "unit": "EUR / MWh",
        "deprecated": False,
    }
    return body | changes
