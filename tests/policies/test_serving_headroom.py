"""GPUs kept for serving, from the demand that was seen."""

import csv
import gzip
import math
import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from policies.serving_headroom import demand_quantile, headroom
from tests.helpers import data_dir

NOW = datetime(2026, 3, 31, tzinfo=UTC)
QUARTER, MINUTE = timedelta(minutes=15), timedelta(minutes=1)
SLOTS = [(NOW + i * QUARTER, NOW + (i + 1) * QUARTER) for i in range(96)]


def test_unknown_is_not_zero() -> None:
    assert demand_quantile([(NOW - MINUTE, None)], NOW, SLOTS[:2]) == [None, None]
    kept = headroom([], NOW, SLOTS[:1], name="chat", held_gpus=2, floor_gpus=1, most_gpus=8, watts_per_gpu=700)
    assert (kept[0].gpus, kept[0].power_w) == (6, 4200)
    assert "unknown" in kept[0].reason


def test_less_than_a_day_keeps_the_highest_and_what_is_needed_now() -> None:
    assert demand_quantile([(NOW - 2 * MINUTE, 5.0), (NOW, 1.0)], NOW, SLOTS[:1]) == [5.0]


def test_time_of_week_and_sentence() -> None:
    history = [(at, 4.0 if at.weekday() == 1 and at.hour == 18 else 1.0) for i in range(28 * 96) for at in [NOW - i * QUARTER]]
    seen = demand_quantile(history, NOW, SLOTS)
    assert (seen[72], seen[0]) == (4.0, 1.0)  # Tuesday
    kept = headroom(history, NOW, SLOTS[72:73], name="chat", held_gpus=1, floor_gpus=0, most_gpus=8, watts_per_gpu=100)
    assert kept[0].gpus == 3
    assert "4.0 GPUs expected at most here with 95 %, Tue 18:00" in kept[0].reason


def test_coverage_of_a_daily_pattern() -> None:
    """Five weeks of samples each 5 min around a daily curve; the fifth is not seen."""
    rng = random.Random(7)
    history = []
    for i in range(35 * 288):
        at = NOW - 4 * timedelta(days=7) + i * timedelta(minutes=5)
        history.append((at, max(0.0, rng.gauss(10 + 5 * math.sin(at.hour / 24 * 2 * math.pi), 1.5))))
    slots = [(NOW + i * QUARTER, NOW + (i + 1) * QUARTER) for i in range(7 * 96)]
    expected = demand_quantile(history, NOW, slots)
    later = [(at, v) for at, v in history if at >= NOW]
    peaks = [max(v for _, v in later[3 * i : 3 * i + 3]) for i in range(len(slots))]
    covered = sum(e is not None and p <= e for e, p in zip(expected, peaks, strict=True)) / len(slots)
    assert 0.90 <= covered <= 0.99


@pytest.mark.parametrize("trace", ["code", "conv"])
def test_coverage_of_a_trace(trace: str) -> None:
    """A trace of 1 h has no week: five weeks are made of it, the fifth of them out of sample.

    Requests are dealt in turn to two halves, one for the four weeks seen, one for the fifth. Demand each 5 min is as many
    requests as a minute of the half had, each with the generated tokens of any of its requests, along a daily curve, over
    what one GPU makes in a minute (6000 tokens).
    """
    path = data_dir() / "serving" / f"AzureLLMInferenceTrace_{trace}.csv.gz"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    with gzip.open(path, "rt") as f:
        requests = [(row["TIMESTAMP"][:16], int(row["GeneratedTokens"])) for row in csv.DictReader(f)]
    rng = random.Random(7)

    def demand(half: list[tuple[str, int]], at: datetime) -> float:
        tokens = sum(rng.choice(half)[1] for _ in range(rng.choice(counts[id(half)])))
        return (1 + 0.5 * math.sin(at.hour / 24 * 2 * math.pi)) * tokens / 6000

    seen, unseen = requests[0::2], requests[1::2]
    counts = {id(half): list(Counter(minute for minute, _ in half).values()) for half in (seen, unseen)}
    history = [(at, demand(seen, at)) for i in range(1, 28 * 288) for at in [NOW - i * 5 * MINUTE]]
    slots = [(NOW + i * QUARTER, NOW + (i + 1) * QUARTER) for i in range(7 * 96)]
    expected = demand_quantile(history, NOW, slots)
    peaks = [max(demand(unseen, start) for _ in range(3)) for start, _ in slots]
    covered = sum(e is not None and p <= e for e, p in zip(expected, peaks, strict=True)) / len(slots)
    assert 0.90 <= covered <= 0.99
