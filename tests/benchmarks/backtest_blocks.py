"""How sure a difference between two policies is: a paired bootstrap over blocks of four weeks by the jobs' submission."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BLOCK_S = 28 * 86400.0
DRAWS, SEED = 10_000, 20230101


@dataclass(frozen=True)
class Gain:
    """Points of run-now's carbon that one policy saves more than another: pooled over regions (each counts the same), the ends
    of its 95 % interval, and by region."""

    pooled: float
    low: float
    high: float
    by_region: Mapping[str, float]


def blocks_of(submitted_s: Floats, span_s: float) -> NDArray[np.int64]:
    """Each job's block; what is left at the end of the span belongs to the last whole one."""
    blocks = max(int(span_s // BLOCK_S), 1)
    return np.minimum((submitted_s // BLOCK_S).astype(np.int64), blocks - 1)


def by_block(values: Floats, blocks: NDArray[np.int64]) -> Floats:
    """Sums by block."""
    return np.bincount(blocks, weights=values)


def gain(baseline: Mapping[str, Floats], other: Mapping[str, Floats], ours: Mapping[str, Floats]) -> Gain:
    """What ``ours`` saves more than ``other``, from sums by block of each region. The same blocks are drawn for all policies
    and regions: they share their jobs, and neighbours their weather."""
    regions = sorted(baseline)
    base, gained = (np.array([of[name] for name in regions]) for of in (baseline, {n: other[n] - ours[n] for n in regions}))
    count = base.shape[1]
    drawn = np.random.default_rng(SEED).integers(0, count, size=(DRAWS, count))
    times = np.stack([np.bincount(one, minlength=count) for one in drawn]).astype(float)
    pooled = 100.0 * ((gained @ times.T) / (base @ times.T)).mean(axis=0)
    each = 100.0 * gained.sum(axis=1) / base.sum(axis=1)
    low, high = np.percentile(pooled, [2.5, 97.5])
    return Gain(float(each.mean()), float(low), float(high), dict(zip(regions, each.tolist(), strict=True)))
