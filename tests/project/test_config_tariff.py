"""``[region.tariff]``: contracts as tariffs, and every mistake named with its remedy."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatcher.config import load
from dispatcher.config_sections import RegionConfig
from dispatcher.errors import ConfigError
from signals.tariffs import Tariff, TariffType, price_points

REGION = '[[region]]\nname = "eu"\naddress = "http://10.0.0.1:8265"\n'
PRICE = '[[region.price]]\nfeed = "synthetic"\n'
HEAD = '[region.tariff]\ncurrency = "EUR"\ntimezone = "Europe/Berlin"\n'
FIXED = HEAD + 'type = "fixed"\nenergy_per_mwh = 120\n'
INDEXED = PRICE + HEAD + 'type = "indexed"\nfactor = 1.03\nadder_per_kwh = 0.012\n'
TOU = HEAD + 'type = "time_of_use"\n'
DAY = '[[region.tariff.period]]\nname = "day"\nfrom = "06:00"\nto = "22:00"\nenergy_per_kwh = 0.15\n'
NIGHT = '[[region.tariff.period]]\nname = "night"\nfrom = 22:00:00\nto = 06:00:00\nenergy_per_mwh = 80\n'


def region(folder: Path, text: str) -> RegionConfig:
    path = folder / "gridshift.toml"
    path.write_text(REGION + text, encoding="utf-8")
    return load(path, {}).regions[0]


def tariff(folder: Path, text: str) -> Tariff:
    section = region(folder, text).tariff
    assert section is not None
    return section.tariff("eu")


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        region(folder, text)
    return [line.split(": ", 1)[1] for line in str(caught.value).splitlines()]


def test_without_a_tariff_there_is_none(tmp_path: Path) -> None:
    assert region(tmp_path, PRICE).tariff is None


def test_a_fixed_tariff(tmp_path: Path) -> None:
    text = FIXED + 'name = "flat"\ngrid_fee_per_kwh = 0.03\ntaxes_per_mwh = 20.5\nvat = 0.19\nholidays = [2026-12-25]\n'
    made = tariff(tmp_path, text)
    assert (made.name, made.type, made.currency) == ("flat", TariffType.FIXED, "EUR")
    assert (made.energy_per_mwh, made.grid_fee_per_mwh, made.taxes_per_mwh, made.vat) == (120.0, 30.0, 20.5, 0.19)
    assert [day.isoformat() for day in made.holidays] == ["2026-12-25"] and made.demand is None
    bare = tariff(tmp_path, FIXED)
    assert bare.name == "eu" and bare.vat is None and bare.taxes_per_mwh is None and bare.grid_fee_per_mwh is None


def test_an_indexed_tariff(tmp_path: Path) -> None:
    made = tariff(tmp_path, INDEXED)
    assert (made.type, made.factor, made.adder_per_mwh) == (TariffType.INDEXED, 1.03, pytest.approx(12.0))


def test_a_time_of_use_tariff_with_a_demand_charge(tmp_path: Path) -> None:
    text = (
        TOU
        + 'demand_charge_per_kw_month = 12.0\ndemand_interval_minutes = 30\npeak_kw = 310\npeak_month = "2026-12"\n'
        + DAY
        + NIGHT
        + '[[region.tariff.grid_fee]]\nname = "w"\nmonths = "oct-mar"\nfee_per_mwh = 40\n'
        + '[[region.tariff.grid_fee]]\nname = "s"\nmonths = ["apr-sep"]\nfee_per_mwh = 20\n'
        + '[[region.tariff.demand_window]]\nname = "evening"\ndays = "mon-fri"\nfrom = "17:00"\nto = "20:00"\n'
    )
    made = tariff(tmp_path, text)
    assert [(p.name, p.from_min, p.to_min, p.per_mwh) for p in made.periods] == [
        ("day", 360, 1320, 150.0),
        ("night", 1320, 360, 80.0),
    ]
    assert [len(p.months) for p in made.grid_fee_periods] == [6, 6] and made.demand is not None
    assert (made.demand.per_kw_month, made.demand.interval_s, made.demand.peak_kw) == (12.0, 1800, 310.0)
    assert made.demand.peak_month == "2026-12" and made.demand.windows[0].days == frozenset(range(5))
    when = datetime(2026, 1, 5, 12, tzinfo=UTC)
    point = price_points(made, None, when, when.replace(hour=13), region="eu", known_at=when)[0]
    assert point.value == pytest.approx(190.0)


def test_a_learned_peak_is_said_to_be_learned(tmp_path: Path) -> None:
    made = tariff(tmp_path, FIXED + 'demand_charge_per_kw_month = 12.0\npeak_kw = "learned"\n')
    assert made.demand is not None and made.demand.peak_kw is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[region.tariff]\ntype = "flat"\n', "region[0].tariff.type: 'flat': must be 'fixed', 'time_of_use' or 'indexed'"),
        ('[region.tariff]\ntype = "fixed"\n', "region[0].tariff.timezone: missing"),
        (HEAD + 'type = "fixed"\n', "region[0].tariff: a fixed tariff needs energy_per_mwh or energy_per_kwh"),
        (FIXED + "energy_per_kwh = 0.1\n", "give energy_per_mwh or energy_per_kwh, not both"),
        (FIXED + "enrgy_per_kwh = 0.1\n", "region[0].tariff.enrgy_per_kwh: no such key; did you mean 'energy_per_kwh'?"),
        (FIXED + "factor = 1.0\n", "factor belongs to a tariff of type indexed, not fixed"),
        (FIXED + "vat = 19\n", "region[0].tariff.vat: 19: must be less than 1"),
        (FIXED + "taxes_per_mwh = inf\n", "region[0].tariff.taxes_per_mwh: inf: must be a finite number"),
        (FIXED + 'holidays = ["25.12.2026"]\n', "region[0].tariff.holidays[0]: '25.12.2026': must be a valid date"),
        (FIXED.replace("Berlin", "Berln"), "region[0].tariff.timezone: 'Europe/Berln': must be an IANA time zone"),
        (FIXED.replace("EUR", "SEK"), "region[0].tariff.currency: 'SEK' differs from planning.currency 'EUR'; add 'SEK"),
        (FIXED.replace("EUR", "eur"), "region[0].tariff.currency: 'eur'"),
        (FIXED + "peak_kw = 3\n", "peak_kw belongs to a demand charge; give demand_charge_per_kw_month too"),
        (FIXED + "demand_charge_per_kw_month = 3\n", "a demand charge needs peak_kw"),
        (FIXED + "demand_charge_per_kw_month = -3\n", "demand_charge_per_kw_month: -3: must be greater than or equal to 0"),
        (
            FIXED + 'demand_charge_per_kw_month = 3\npeak_kw = "learnt"\n',
            "'learnt': must be a draw in kW, 0 or more, or 'learned'",
        ),
        (FIXED + 'demand_charge_per_kw_month = 3\npeak_kw = 1\npeak_month = "12"\n', "'12': must be a month such as '2026-12'"),
        (FIXED + "demand_charge_per_kw_month = 3\npeak_kw = 1\ndemand_interval_minutes = 7\n", "must be 5, 10, 15, 30 or 60"),
        (
            INDEXED.replace(PRICE, ""),
            "region[0].tariff.type: an indexed tariff follows a wholesale price; add [[region.price]]",
        ),
        (INDEXED.replace("factor = 1.03\n", ""), "an indexed tariff needs factor"),
        (INDEXED.replace("adder_per_kwh = 0.012\n", ""), "an indexed tariff needs adder_per_mwh or adder_per_kwh"),
        (TOU, "a time_of_use tariff needs [[region.tariff.period]] tables"),
        (TOU + DAY, "period: no period covers Mondays 00:00-06:00 in January and other hours; add one that does"),
        (TOU + DAY + NIGHT.replace("22:00:00", "21:00:00"), "'day' and 'night' both cover Mondays 21:00-22:00 in January"),
        (TOU + DAY + NIGHT.replace('"night"', '"day"'), "period: the name 'day' is used twice"),
        (TOU + DAY.replace("0.15", "0.15\nenergy_per_mwh = 1") + NIGHT, "give one of energy_per_mwh and energy_per_kwh"),
        (TOU + DAY.replace("energy_per_kwh = 0.15\n", "") + NIGHT, "region[0].tariff.period[0]: give one of energy_per_mwh"),
        (
            TOU + DAY + NIGHT + 'days = "mo-fri"\n',
            "region[0].tariff.period[1].days: 'mo-fri': 'mo-fri' is not a day of the week",
        ),
        (TOU + DAY + NIGHT + 'months = "jan-dez"\n', "'jan-dez' is not a month"),
        (TOU + DAY.replace("06:00", "6 am") + NIGHT, "region[0].tariff.period[0].from: '6 am': '6 am' is not a time of day"),
        (TOU + DAY + NIGHT + "price = 1\n", "region[0].tariff.period[1].price: no such key; "),
        (FIXED + 'grid_fee_per_mwh = 1\n[[region.tariff.grid_fee]]\nname = "a"\nfee_per_mwh = 1\n', "give one grid fee or"),
        (FIXED + '[[region.tariff.grid_fee]]\nname = "a"\nmonths = "jan"\nfee_per_mwh = 1\n', "grid_fee: no period covers Mon"),
        (FIXED + '[[region.tariff.grid_fee]]\nname = "a"\n', "give one of fee_per_mwh and fee_per_kwh"),
    ],
)
def test_one_mistake(tmp_path: Path, text: str, expected: str) -> None:
    found = problems(tmp_path, text)
    assert any(expected in line for line in found), found


def test_several_mistakes_are_named_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, TOU.replace("EUR", "SEK") + "factor = 2\n" + DAY + "[planning]\nslot_minutes = 7\n")
    text = "\n".join(found)
    assert "factor belongs to" in text and "no period covers" in text and "'SEK' differs" in text and "slot_minutes" in text


def test_amounts_that_no_contract_has(tmp_path: Path) -> None:
    for wrong in ("1e300", "true", "-2e6", "nan"):
        assert len(problems(tmp_path, FIXED.replace("energy_per_mwh = 120", f"energy_per_mwh = {wrong}"))) == 1
    assert "less than or equal to 1000000" in problems(tmp_path, FIXED + "taxes_per_mwh = 1e9\n")[0]
