"""``[[programme]]``: what is taken, and what is refused with its line."""

from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import load
from dispatcher.errors import ConfigError

BASE = """
[[region]]
name = "eu"
address = "http://127.0.0.1:8265"

[[webhook]]
source = "utility"
secret_env = "SECRET"

[[programme]]
name = "demand"
event_source = ["utility", "api"]
currency = "EUR"
"""


def read(tmp_path: Path, more: str) -> Any:
    file = tmp_path / "gridshift.toml"
    file.write_text(BASE + more)
    return load(file, {})


def test_terms_are_those_of_the_contract(tmp_path: Path) -> None:
    (one,) = read(
        tmp_path,
        'per_kwh = 0.5\nmonths = "nov-feb"\nhours = [16, 21]\nnotice = "30m"\nholidays = [2026-12-25]\n'
        'measurement_interval = "5m"\n',
    ).programmes
    terms = one.terms()
    assert (terms.per_kwh, terms.penalty_per_kwh, terms.paid_up_to, terms.notice_s) == (0.5, 0.0, 1.0, 1800.0)
    assert terms.months == {11, 12, 1, 2} and terms.hours == (16.0, 21.0)
    assert one.measurement_interval_s == 300.0 and str(one.holidays[0]) == "2026-12-25"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("per_kwh = -1\n", "per_kwh: -1"),
        ("per_kwh = nan\n", "per_kwh"),
        ("per_kwh = true\n", "must be a number"),
        ('currency2 = "EUR"\n', "currency2: no such key; did you mean 'currency'?"),
        ('months = "mat"\n', "months"),
        ("hours = [21, 16]\n", "within 0 to 24"),
        ('timezone = "Mars"\n', "IANA time zone"),
        ('baseline = "best-of"\n', "baseline"),
        ('baseline = "firm-service-level"\n', "firm_service_level_w belong together"),
        ("firm_service_level_w = 5\n", "firm_service_level_w belong together"),
        ("required_share = 1.5\n", "required_share"),
        ("paid_up_to = 0\n", "paid_up_to"),
        ('measurement_interval = "0.1s"\n', "measurement_interval"),
        ('[[programme]]\nname = "demand"\nevent_source = ["none"]\ncurrency = "EUR"\n', "'none' is no [[event_source]]"),
        ('[[programme]]\nname = "demand"\nevent_source = "utility"\ncurrency = "EUR"\n', "settled by programme[0] already"),
        ('[[programme]]\nname = "demand"\nevent_source = []\ncurrency = "euro"\n', "programme[1].currency"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, more)
    assert said in str(caught.value) and "gridshift.toml:" in str(caught.value)
