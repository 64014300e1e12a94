"""A made-up but plausible profile of price and carbon, for a first run without any source; its points say "synthetic".

It is a pure function of time and options: the same hour always has the same value. It knows nothing of any real grid.
"""

import hashlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from signals.feeds.base import INVALID, LOCAL, Context, Feed, FeedError, ParseResult, Problem, Query, Request, number
from signals.points import UNITS, Kind, Quality, SignalPoint

NAME = "synthetic"
_STEP = timedelta(minutes=15)
_WEEKEND = 0.25  # how far, in swings, weekends lie below working days
_DEFAULTS = {
    "phase_h": 0.0,
    "price_mean": 80.0,
    "price_swing": 50.0,
    "carbon_mean": 350.0,
    "carbon_swing": 150.0,
    "noise": 0.05,
}
#: (hour, width in hours, height): morning and evening peaks, the midday dip of solar power, the trough of the night.
_PRICE_HUMPS = ((8.0, 1.8, 0.7), (19.0, 2.2, 1.0), (13.0, 2.5, -0.7), (3.0, 3.0, -0.6))
_CARBON_HUMPS = ((7.0, 2.0, 0.4), (20.0, 2.8, 0.9), (13.0, 3.0, -1.0), (3.0, 3.0, -0.1))


def build_requests(query: Query) -> tuple[Request, ...]:
    """Nothing to fetch."""
    return (Request(LOCAL),)


def read(payload: bytes, context: Context) -> ParseResult:
    """The profile over the window in quarter hours; without a window, from a day before ``retrieved_at`` to two after."""
    for key, value, remedy in check(context.options):
        raise FeedError(INVALID, f"{key}: {value!r} {remedy}")
    start = context.start or context.retrieved_at - timedelta(days=1)
    end = context.end or context.retrieved_at + timedelta(days=2)
    if end - start > timedelta(days=400):
        raise FeedError(INVALID, f"window of {(end - start).days} days; the synthetic profile gives at most 400 at once")
    unit = f"{context.options.get('currency', 'EUR')}/MWh" if context.kind is Kind.PRICE else UNITS[context.kind]
    index = math.floor(start.timestamp() / _STEP.total_seconds())
    at = datetime.fromtimestamp(index * _STEP.total_seconds(), UTC)
    points = []
    while at < end:
        points.append(
            SignalPoint(
                region=context.region,
                kind=context.kind,
                unit=unit,
                start=at,
                end=at + _STEP,
                issued_at=None,
                retrieved_at=context.retrieved_at,
                value=value_at(context.kind, at, context.options, context.region),
                quality=Quality.ESTIMATED,
                source=NAME,
            )
        )
        at += _STEP
    return ParseResult(tuple(points))


def value_at(kind: Kind, at: datetime, options: Mapping[str, Any], seed: str = "") -> float:
    """The profile's value at ``at``: mean + swing * (shape of the day and week) + noise, in the kind's unit.

    ``phase_h`` moves the curve later by that many hours; ``noise`` is the largest random part as a fraction of the swing,
    fixed by ``seed`` and the quarter hour.
    """
    price = kind is Kind.PRICE
    given = {name: float(options.get(name, default)) for name, default in _DEFAULTS.items()}
    mean, swing = (given["price_mean"], given["price_swing"]) if price else (given["carbon_mean"], given["carbon_swing"])
    local = at - timedelta(hours=given["phase_h"])
    hour = local.hour + local.minute / 60 + local.second / 3600
    humps = _PRICE_HUMPS if price else _CARBON_HUMPS
    weekday_shift = _WEEKEND * (2 / 7 - (local.weekday() >= 5))  # zero over the week
    quarter = math.floor(at.timestamp() / _STEP.total_seconds())
    value = mean + swing * (_shape(humps, hour) - _mean(humps) + weekday_shift + given["noise"] * _random(seed, kind, quarter))
    return round(value if price else max(value, 0.0), 3)


def _shape(humps: tuple[tuple[float, float, float], ...], hour: float) -> float:
    total = 0.0
    for centre, width, height in humps:
        away = abs(hour - centre)
        away = min(away, 24 - away)  # the day is a circle
        total += height * math.exp(-0.5 * (away / width) ** 2)
    return total


@cache
def _mean(humps: tuple[tuple[float, float, float], ...]) -> float:
    return sum(_shape(humps, quarter / 4) for quarter in range(96)) / 96


def _random(seed: str, kind: Kind, quarter: int) -> float:
    digest = hashlib.blake2b(f"{seed}|{kind}|{quarter}".encode(errors="replace"), digest_size=4).digest()
    return int.from_bytes(digest, "big") / 2**31 - 1.0


def check(options: Mapping[str, Any]) -> list[Problem]:
    """Wrong options."""
    problems = []
    for key in _DEFAULTS:
        if key not in options:
            continue
        value = number(options[key])
        if value is None or abs(value) > 1e6:
            problems.append(Problem(key, options[key], "must be a number"))
        elif value < 0 and key not in ("phase_h", "price_mean"):
            problems.append(Problem(key, options[key], "must not be negative"))
    currency = options.get("currency", "EUR")
    if not (isinstance(currency, str) and re.fullmatch("[A-Z]{3}", currency)):
        problems.append(Problem("currency", currency, "must be a currency code such as 'EUR'"))
    return problems


FEED = Feed(
    name=NAME,
    kinds=frozenset({Kind.PRICE, Kind.CARBON_AVERAGE, Kind.CARBON_MARGINAL}),
    option_names=frozenset({*_DEFAULTS, "currency"}),
    requests=build_requests,
    read=read,
    check=check,
    poll_s=3600.0,
)
