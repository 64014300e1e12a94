"""Emission factors: the published figures, and what a mix of plants emits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signals.emission_factors import FACTORS_G_PER_KWH, STORAGE, factor_g_per_kwh, intensities, intensity, usual_fuels
from tests.signals.feeds.hostile import FUZZ


@pytest.mark.parametrize(
    ("fuel", "g_per_kwh"),
    [
        ("coal", 820), ("gas", 490), ("biomass", 230), ("geothermal", 38), ("hydro", 24), ("nuclear", 12), ("solar", 48),
        ("solar_thermal", 27), ("wind_onshore", 11), ("wind_offshore", 12), ("marine", 17),
    ],
)  # fmt: skip
def test_medians_of_the_ipcc(fuel: str, g_per_kwh: float) -> None:
    assert factor_g_per_kwh(fuel) == g_per_kwh


@pytest.mark.parametrize("fuel", ["waste", "other", "peat", "oil_shale", "", "pumped_storage"])
def test_what_has_no_published_factor_has_none(fuel: str) -> None:
    assert factor_g_per_kwh(fuel) is None


def test_a_mix_is_weighted_by_generation() -> None:
    mean = intensity({"gas": 300.0, "wind_onshore": 100.0})
    assert mean is not None
    assert (mean.g_per_kwh, mean.unknown_share) == ((300 * 490 + 100 * 11) / 400, 0.0)


def test_stores_and_own_consumption_are_no_source() -> None:
    mean = intensity({"gas": 100.0, "pumped_storage": 500.0, "battery": -50.0, "solar": -1.0})
    assert mean is not None and mean.g_per_kwh == 490.0


def test_little_without_a_factor_is_left_out_and_much_is_not_guessed() -> None:
    mean = intensity({"gas": 95.0, "waste": 5.0})
    assert mean is not None
    assert (mean.g_per_kwh, mean.unknown_share) == (490.0, 0.05)
    assert intensity({"gas": 80.0, "oil_shale": 20.0}) is None
    assert intensity({"waste": 1.0}) is None
    assert intensity({}) is None and intensity({"gas": 0.0}) is None


def test_only_whole_mixes_have_an_intensity() -> None:
    mixes = {1: {"gas": 10.0, "coal": 10.0}, 2: {"gas": 10.0, "coal": None}, 3: {"gas": 10.0}, 4: {"gas": 1.0, "coal": 3.0}}
    warnings: list[str] = []
    assert intensities(mixes, warnings) == {1: 655.0, 2: None, 3: None, 4: 737.5}
    assert len(warnings) == 1 and "coal is missing in 2 of 4" in warnings[0]


def test_a_kind_that_runs_rarely_does_not_spoil_the_rest() -> None:
    mixes = {hour: {"gas": 10.0, "oil": 5.0 if hour == 1 else None} for hour in range(4)}
    assert usual_fuels(mixes.values()) == {"gas"}
    warnings: list[str] = []
    found = intensities(mixes, warnings)
    assert [found[hour] for hour in range(4)] == [490.0, (10 * 490 + 5 * 840) / 15, 490.0, 490.0]
    assert warnings == []


def test_what_is_left_out_is_said() -> None:
    warnings: list[str] = []
    assert intensities({1: {"gas": 98.0, "waste": 2.0}, 2: {"waste": 9.0, "gas": 1.0}}, warnings) == {1: 490.0, 2: None}
    assert "waste" in warnings[0] and "2.0 %" in warnings[0]
    assert "1 intervals" in warnings[1] and "10%" in warnings[1]


@FUZZ
@given(mix=st.dictionaries(st.sampled_from([*FACTORS_G_PER_KWH, *STORAGE, "waste"]), st.floats(-1e6, 1e6), max_size=8))
def test_a_mean_lies_between_its_factors(mix: dict[str, float]) -> None:
    mean = intensity(mix)
    used = [FACTORS_G_PER_KWH[fuel] for fuel, power in mix.items() if fuel in FACTORS_G_PER_KWH and power > 0]
    if mean is not None:
        assert min(used) * (1 - 1e-9) <= mean.g_per_kwh <= max(used) * (1 + 1e-9)
        assert 0 <= mean.unknown_share <= 0.1
