"""``[[event_source]]``: what it needs, what does not fit together, and that each mistake names its line and the remedy."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import load
from dispatcher.config_events import EventSourceConfig
from dispatcher.config_example import EXAMPLE
from dispatcher.errors import ConfigError

FILE = """\
[[region]]
name = "north"
address = "http://127.0.0.1:8265"
[[region.branch]]
name = "rack-1"
[[webhook]]
source = "taken"
secret_env = "S"
[[event_source]]
name = "grid"
protocol = "openadr-3.1"
region = "north"
url = "https://vtn.example/3/"
"""


def loaded(folder: Path, more: str = "", text: str = FILE) -> EventSourceConfig:
    path = folder / "gridshift.toml"
    path.write_text(text + more)
    return load(path, {}).event_sources[0]


def test_what_was_agreed_is_the_site_that_events_are_read_against(tmp_path: Path) -> None:
    terms = (
        'reference_w = 2e5\nserving_floor_w = 4e4\nsimple_levels = { 1 = "-10% of baseline", 3 = "cap = serving_floor_w" }\n'
    )
    source = loaded(tmp_path, terms + 'timezone = "Europe/Berlin"\noverlap = "priority"\nclient_secret_file = "key"\n')
    site = source.terms()
    assert (site.reference_w, site.floor_w, site.levels[1].share, site.levels[3].cap_w) == (2e5, 4e4, 0.9, 4e4)
    assert site.by_priority and str(site.zone) == "Europe/Berlin" and source.url == "https://vtn.example/3"
    assert (source.poll_every_s, source.watchdog_s, source.response_s, source.test_events) == (30.0, 14400.0, 600.0, "log")
    assert source.client_secret_file == str(tmp_path / "key")
    with pytest.raises(ConfigError, match="cannot read"):
        source.client_secret({})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('branch = "rack-9"\n', ":14: event_source[0].branch: 'rack-9' is not a [[region.branch]] of north; known are: rack-1"),
        ('relative_sign = "up"\n', ":9: event_source[0]: relative_sign 'up': must be 'positive value = reduce by'"),
        ('simple_levels = { 3 = "cap = serving_floor_w" }\n', "needs serving_floor_w"),
        ('simple_levels = { 7 = "normal" }\n', "the levels are 0, 1, 2 and 3"),
        ('timezone = "Mars/Olympus"\n', "must be a time zone"),
        ("reference_w = -1\n", ":14: event_source[0].reference_w: -1"),
        ("reference_w = nan\n", "event_source[0].reference_w"),
        ('allow_hosts = ["x"]\n', "allow_hosts is for pointer"),
        ('secret_env = "S"\n', "secret_env is for webhook"),
        ('client_id = "me"\n', "client_id needs client_secret_env or client_secret_file"),
        ('watchdog = "soon"\n', ":14: event_source[0].watchdog: 'soon'"),
        ('poll_every = "10ms"\n', "event_source[0]"),
        ('response = "5s"\n', ":14: event_source[0].response: '5s'"),
        ('poll = "5s"\n', "no such key; did you mean 'poll_every'?"),
    ],
)
def test_a_mistake_names_its_line_and_the_remedy(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, more)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "grid"', 'name = "taken"', ":10: event_source[0].name: 'taken' is used by webhook[0] already"),
        ('name = "grid"', 'name = "api"', "'api' is used by our own API already"),
        ('region = "north"\nurl', 'region = "south"\nurl', "'south' is not a region; known are: north"),
        ('url = "https://vtn.example/3/"', "", "openadr-3.1 needs url"),
        ('"openadr-3.1"', '"webhook"', "url is for"),
        ('url = "https://vtn.example/3/"', 'url = "vtn"', "must be a URL"),
    ],
)
def test_what_does_not_fit_together(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in FILE
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text=FILE.replace(old, new))
    assert said in str(refused.value)


def test_the_example_shows_every_key() -> None:
    raw: Any = tomllib.loads(re.sub(r"^#(?=[a-zA-Z\[])", "", EXAMPLE, flags=re.MULTILINE))
    shown = {key for table in raw["event_source"] for key in table}
    assert shown == set(EventSourceConfig.model_fields)
    for table in raw["event_source"]:
        defaults = EventSourceConfig.model_validate(table)
        assert defaults.test_events == "log" and defaults.overlap == "strictest"
