"""What a kilowatt-hour of each kind of power plant emits over its life cycle, and the intensity of a mix of them.

It knows published figures and sums; it knows no feed and no time. Where not said otherwise a factor is the median of the IPCC's
Fifth Assessment Report, Working Group III, Annex III, Table A.III.2 (2014), which has none for oil, lignite, peat, oil shale,
gas from coal, waste and "other". Oil is the median of the IPCC's earlier Special Report on Renewable Energy Sources (2011),
Annex II, Table A.II.4. Lignite counts as coal, the nearest figure there is, and so as somewhat too clean. The rest has no
factor: its generation is left out of the mean, and a mix with much of it has no intensity.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

#: Name of a kind of plant, as feeds use it for variants -> gCO2e/kWh.
FACTORS_G_PER_KWH: Mapping[str, float] = {
    "biomass": 230.0,  # dedicated, not co-fired
    "coal": 820.0,  # pulverised coal
    "lignite": 820.0,  # as coal
    "gas": 490.0,  # combined cycle
    "oil": 840.0,  # IPCC 2011
    "geothermal": 38.0,
    "hydro": 24.0,
    "hydro_run_of_river": 24.0,
    "hydro_reservoir": 24.0,
    "marine": 17.0,
    "nuclear": 12.0,
    "solar": 48.0,  # utility scale
    "solar_rooftop": 41.0,
    "solar_with_battery": 48.0,  # as what fills the battery
    "solar_thermal": 27.0,
    "wind": 11.0,  # as onshore, which most of it is where the two are not told apart
    "wind_onshore": 11.0,
    "wind_with_battery": 11.0,
    "wind_offshore": 12.0,
}
#: What stores give back was generated, and counted, before: they are no source of the mix.
STORAGE = frozenset({"pumped_storage", "battery", "storage", "unknown_storage"})
#: A mix of which more than this has no factor has no intensity.
MAX_UNKNOWN_SHARE = 0.1

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Intensity:
    """Mean emissions of a mix in gCO2e/kWh; ``unknown_share`` (0..1) of the generation has no factor and is left out."""

    g_per_kwh: float
    unknown_share: float


def factor_g_per_kwh(fuel: str) -> float | None:
    """The life-cycle factor of a kind of plant in gCO2e/kWh; None when none is published for it, and for stores."""
    return FACTORS_G_PER_KWH.get(fuel)


def intensity(mix_mw: Mapping[str, float]) -> Intensity | None:
    """The intensity of one interval's generation by kind of plant, in any one unit of power or energy.

    Stores are left out. What is below zero (plants' own consumption at a standstill) generates nothing and counts as zero.
    None when nothing is generated, or more than ``MAX_UNKNOWN_SHARE`` has no factor.
    """
    emitted = known = unknown = 0.0
    for fuel, power in mix_mw.items():
        factor = FACTORS_G_PER_KWH.get(fuel)
        if fuel in STORAGE or power <= 0:
            continue
        if factor is None:
            unknown += power
        else:
            known += power
            emitted += power * factor
    total = known + unknown
    if known <= 0 or unknown > MAX_UNKNOWN_SHARE * total:
        return None
    return Intensity(emitted / known, unknown / total)


def usual_fuels(mixes: Iterable[Mapping[str, float | None]]) -> frozenset[str]:
    """The kinds of plant that have a value in at least half of the intervals: a mix without one of them is not whole."""
    mixes = list(mixes)
    counts = Counter(fuel for mix in mixes for fuel, power in mix.items() if power is not None)
    return frozenset(fuel for fuel, count in counts.items() if 2 * count >= len(mixes))


def intensities(mixes: Mapping[_K, Mapping[str, float | None]], warnings: list[str]) -> dict[_K, float | None]:
    """Interval -> gCO2e/kWh of its mix, None where the mix is not whole or has no intensity; what is left out is warned of."""
    usual = usual_fuels(mixes.values())
    found: dict[_K, float | None] = {}
    lacking: Counter[str] = Counter()
    without_factor: set[str] = set()
    most_unknown, too_unknown = 0.0, 0
    for interval, mix in mixes.items():
        absent = sorted(fuel for fuel in usual - STORAGE if mix.get(fuel) is None)
        if absent:
            lacking.update(absent)
            found[interval] = None
            continue
        present = {fuel: power for fuel, power in mix.items() if power is not None}
        mean = intensity(present)
        found[interval] = None if mean is None else mean.g_per_kwh
        if mean is None:
            too_unknown += 1
        elif mean.unknown_share > 0:
            most_unknown = max(most_unknown, mean.unknown_share)
            without_factor |= {f for f, p in present.items() if p > 0 and f not in STORAGE and f not in FACTORS_G_PER_KWH}
    for fuel, count in sorted(lacking.items()):
        warnings.append(f"{fuel} is missing in {count} of {len(mixes)} intervals, whose mix is not whole: no intensity there")
    if without_factor:
        warnings.append(
            f"no published factor for {', '.join(sorted(without_factor))}: "
            f"left out of the mean, at most {100 * most_unknown:.1f} % of an interval's generation"
        )
    if too_unknown:
        warnings.append(
            f"{too_unknown} intervals have no generation, or more than {MAX_UNKNOWN_SHARE:.0%} of it has no published factor"
        )
    return found
