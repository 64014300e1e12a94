"""The site file: its keys, the texts of its levels, and what is said of mistakes."""

from typing import Any

import pytest

from dispatcher.dr.site import Level, Site, site_from
from dispatcher.errors import BadInput
from tests.dr.dr_events import SITE_FILE


def test_a_site_file_is_read() -> None:
    site = site_from(SITE_FILE)
    assert (site.name, site.reference_w, site.floor_w, site.meter) == ("hall-9", 200000.0, 40000.0, "it_kw")
    assert site.levels == {0: Level(), 1: Level(share=0.9), 2: Level(share=0.75), 3: Level(cap_w=40000.0)}
    assert site.positive_reduces is True and site.by_priority is False and site.zone is None


def test_nothing_said_is_nothing_known() -> None:
    assert site_from({}) == Site()


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("normal", Level()),
        ("75% of baseline", Level(share=0.75)),
        ("-40.5 % of baseline", Level(share=0.595)),
        ("cap = 40 kW", Level(cap_w=40000.0)),
        ("0.5 MW", Level(cap_w=500000.0)),
        ("cap=serving_floor_kw", Level(cap_w=40000.0)),
        (12.5, Level(cap_w=12500.0)),
        (0, Level(cap_w=0.0)),
    ],
)
def test_levels(text: Any, level: Level) -> None:
    assert site_from({"simple_map": {"2": text}, "serving_floor_kw": 40}).levels == {2: level}


@pytest.mark.parametrize(
    ("text", "reduces"),
    [
        ("positive value = reduce by", True),
        ("negative value = reduce by", False),
        ("positive value = increase by", False),
        ("Negative values = raise by", True),
    ],
)
def test_signs(text: str, reduces: bool) -> None:
    assert site_from({"relative_sign": text}).positive_reduces is reduces


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"reference_kw": 5}, "reference_kw"),
        ({"batch_and_serving_reference_kw": -1}, "batch_and_serving_reference_kw"),
        ({"batch_and_serving_reference_kw": "100"}, "batch_and_serving_reference_kw"),
        ({"serving_floor_kw": True}, "serving_floor_kw"),
        ({"serving_floor_kw": float("nan")}, "serving_floor_kw"),
        ({"simple_map": []}, "simple_map"),
        ({"simple_map": {"4": "normal"}}, "simple_map.4"),
        ({"simple_map": {"1": "a bit less"}}, "simple_map.1"),
        ({"simple_map": {"1": "-140% of baseline"}}, "simple_map.1"),
        ({"simple_map": {"1": "cap = serving_floor_kw"}}, "simple_map.1"),
        ({"relative_sign": "up"}, "relative_sign"),
        ({"relative_sign": 1}, "relative_sign"),
        ({"overlap": "newest"}, "overlap"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": "../etc/passwd"}, "timezone"),
        ({"power_unit": "hp"}, "power_unit"),
        ({"site": 7}, "site"),
        ([], "site"),
    ],
)
def test_mistakes_are_named(data: Any, field: str) -> None:
    with pytest.raises(BadInput) as caught:
        site_from(data)
    assert [problem[0] for problem in caught.value.problems] == [field] and caught.value.problems[0][2]
