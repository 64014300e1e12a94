"""The sections about branches, nodes, meters and agents: what they hold, and what is said of mistakes in them."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from dispatcher.config import Config, load
from dispatcher.config_example import EXAMPLE
from dispatcher.config_power import AgentsConfig, BranchConfig, EnergyConfig, MeterConfig, NodeConfig
from dispatcher.errors import ConfigError

REGION = '[[region]]\nname = "eu"\naddress = "http://10.0.0.1:8265"\n'
BRANCH = '[[region.branch]]\nname = "r1"\ncooling_zone = "hall"\n'
NODE = '[[region.node]]\nhostname = "n1"\nbranch = "r1"\n'
METER = '[[region.meter]]\nname = "main"\nsource = "push"\n'


def problem(folder: Path, text: str) -> str:
    path = folder / "gridshift.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    return str(caught.value).replace(str(path), "T")


def test_defaults() -> None:
    config = Config()
    assert (config.agents.deploy, config.agents.silent_after_s) == ("auto", 10.0)
    assert (config.energy.minutes_kept_days, config.energy.hours_kept_days) == (35, 1095)


def test_a_power_tree_with_meters(tmp_path: Path) -> None:
    path = tmp_path / "gridshift.toml"
    text = REGION + BRANCH + "power_limit_w = 12_000\n" + NODE + METER
    text += '[[region.meter]]\nname = "pdu"\nscope = "branch"\nof = "r1"\nunit = "kWh"\nsource = "csv"\npath = "pdu.csv"\n'
    text += '[[region.meter]]\nname = "inlet"\nscope = "cooling_zone"\nof = "hall"\nunit = "degC"\nsource = "prometheus"\n'
    text += 'url = "https://p:9090/"\nquery = "max(inlet)"\ntoken_file = "t"\n[agents]\ndeploy = "off"\nsilent_after = 20\n'
    path.write_text(text)
    config = load(path, {"GRIDSHIFT_ENERGY__MINUTES_KEPT_DAYS": "7"})
    region = config.region("eu")
    assert (region.branches[0].power_limit_w, region.branches[0].cooling_zone) == (12_000.0, "hall")
    assert [region.branch_of(name) for name in ("n1", "N1.example.org", "n2")] == ["r1", "r1", None]
    main, pdu, inlet = region.meters
    assert (main.cumulative, main.is_power, main.cadence_s) == (False, True, 60.0)
    assert (pdu.cumulative, pdu.path) == (True, str(tmp_path / "pdu.csv"))
    assert (inlet.is_power, inlet.url, inlet.token_file) == (False, "https://p:9090", str(tmp_path / "t"))
    assert (config.agents.deploy, config.agents.silent_after_s, config.energy.minutes_kept_days) == ("off", 20.0, 7.0)


def test_a_kwh_meter_counts_unless_it_says_otherwise() -> None:
    assert not MeterConfig(name="m", source="push", unit="kWh", counter=False).cumulative


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BRANCH + BRANCH, "T:8: region[0].branch[1].name: 'r1' is used by branch[0] of this region already; names must differ"),
        (BRANCH.replace("r1", "r 1"), "T:5: region[0].branch[0].name: 'r 1': must match"),
        (NODE, "T:6: region[0].node[0].branch: 'r1' is not a [[region.branch]] of this region; add [[region.branch]]"),
        (
            BRANCH + NODE.replace('"r1"', '"r2"'),
            "region[0].node[0].branch: 'r2' is not a [[region.branch]] of this region; known",
        ),
        (
            BRANCH + NODE + NODE.replace("n1", "N1"),
            "region[0].node[1].hostname: 'N1' is used by node[0] of this region already",
        ),
        (
            BRANCH + '[[region.gpu_pool]]\ntype = "H100"\ngpus = 8\nbranch = "r9"\n',
            "T:10: region[0].gpu_pool[0].branch: 'r9' is not a [[region.branch]] of this region; known are: r1",
        ),
        (METER + METER, "region[0].meter[1].name: 'main' is used by meter[0] of this region already"),
        (
            METER + METER.replace("main", "b"),
            "region[0].meter[1].scope: meter[0] measures the power of this site already; keep one",
        ),
        (
            METER + 'unit = "kWh"\n' + METER.replace("main", "b") + 'of = "eu"\n',
            "region[0].meter[1].scope: meter[0] measures the power of this site already; keep one",
        ),
        (
            BRANCH + "".join(METER.replace("main", name) + 'scope = "branch"\nof = "r1"\n' for name in ("a", "b")),
            "region[0].meter[1].scope: meter[0] measures the power of this branch already; keep one",
        ),
        (METER + 'scope = "branch"\nof = "r1"\n', "region[0].meter[0].of: 'r1' is not a [[region.branch]] of this region"),
        (METER + 'scope = "branch"\n', "region[0].meter[0]: a meter of a branch needs of, the name of that branch"),
        (
            BRANCH + METER + 'scope = "cooling_zone"\nof = "r1"\n',
            "region[0].meter[0].of: 'r1' is not the cooling_zone of a [[region.branch]]; known are: hall",
        ),
        (METER + 'of = "us"\n', "region[0].meter[0].of: 'us' is not this region; leave of out"),
        (METER + 'unit = "kW"\n', "region[0].meter[0].unit: 'kW': must be 'W', 'kWh' or 'degC'"),
        (METER + "counter = true\n", "region[0].meter[0]: a counter counts kWh, not W; set unit = 'kWh'"),
        (METER + 'path = "a.csv"\n', "region[0].meter[0]: path is for a csv meter; remove it, or set source = 'csv'"),
        (METER.replace("push", "csv"), "region[0].meter[0]: a csv meter needs path"),
        (METER.replace("push", "prometheus"), "region[0].meter[0]: a prometheus meter needs url"),
        (METER + 'url = "ftp://p"\n', "region[0].meter[0].url: 'ftp://p': must be a URL such as"),
        (METER + 'url = "http://u:hush@p"\n', "region[0].meter[0].url: must not carry a user or password"),
        (METER + "cadence_s = 0\n", "region[0].meter[0].cadence_s: 0: must be greater than or equal to 1"),
        (METER + "cadance_s = 5\n", "region[0].meter[0].cadance_s: no such key; did you mean 'cadence_s'?"),
        ('[agents]\ndeploy = "no"\n', "T:5: agents.deploy: 'no': must be 'auto' or 'off'"),
        ("[agents]\nsilent_after = 0\n", "T:5: agents.silent_after: '0': must be longer than nothing"),
        ("[energy]\nminutes_kept = 3\n", "energy.minutes_kept: no such key; did you mean 'minutes_kept_days'?"),
    ],
)
def test_a_mistake_names_its_key_and_the_remedy(tmp_path: Path, text: str, expected: str) -> None:
    said = problem(tmp_path, REGION + text)
    assert expected in said
    assert "hush" not in said


def test_the_example_shows_every_key_with_its_default() -> None:
    raw = tomllib.loads(re.sub(r"^#(?=[a-zA-Z\[])", "", EXAMPLE, flags=re.MULTILINE))
    sections: dict[str, type[BaseModel]] = {"agents": AgentsConfig, "energy": EnergyConfig}
    for key, model in sections.items():
        assert set(raw[key]) == set(model.model_fields) and model.model_validate(raw[key]) == model()
    tables: dict[str, type[BaseModel]] = {"branch": BranchConfig, "node": NodeConfig, "meter": MeterConfig}
    for key, model in tables.items():
        shown = {name for table in raw["region"][0][key] for name in table}
        assert shown | {"counter"} == set(model.model_fields) | {"counter"}, key
