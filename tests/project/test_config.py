"""Reading gridshift.toml: defaults, the environment, every mistake named at once, paths, secrets, the example."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from dispatcher import config_sections
from dispatcher.config import Config, load, write_example
from dispatcher.config_text import dotted, key_lines, line_of
from dispatcher.errors import ConfigError
from policies import grid
from policies.world import GpuPool, Settings, TeamShare

POOL = '[[region.gpu_pool]]\ntype = "H100"\ngpus = 8\n'
REGION = '[[region]]\nname = "eu"\naddress = "http://10.0.0.1:8265"\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str) -> Path:
    path = folder / "gridshift.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(write(folder, text), environ or {})
    return [line.replace(f"{folder}/gridshift.toml", "T") for line in str(caught.value).splitlines()]


def test_without_a_file_there_are_defaults_and_no_region(folder: Path) -> None:
    config = load(None, {})
    assert config.path is None and config.regions == [] and config.replay is None
    assert (config.server.host, config.server.port, config.server.is_loopback) == ("127.0.0.1", 8700, True)
    assert config.data_dir() == folder / ".gridshift"
    assert config.database_url({}) == f"sqlite:///{folder}/.gridshift/gridshift.db"
    assert config.public_url() == "http://127.0.0.1:8700"
    assert config.checkpoint_root() == folder / ".gridshift" / "checkpoints"
    settings = config.planner_settings()
    assert (settings.slot_s, settings.horizon_s, settings.min_chunk_s, settings.default_region) == (900, 172800, 900.0, None)


def test_search_order(folder: Path) -> None:
    write(folder, "[server]\nport = 1001\n")
    (folder / "b.toml").write_text("[server]\nport = 1002\n")
    (folder / "c.toml").write_text("[server]\nport = 1003\n")
    assert load(None, {}).server.port == 1001
    assert load(None, {"GRIDSHIFT_CONFIG": str(folder / "b.toml")}).server.port == 1002
    assert load(folder / "c.toml", {"GRIDSHIFT_CONFIG": str(folder / "b.toml")}).server.port == 1003


def test_a_named_file_that_is_not_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read.*gridshift init"):
        load(folder / "nowhere.toml", {})


def test_the_environment_wins_and_clients_variables_are_left_alone(folder: Path) -> None:
    path = write(folder, "[server]\nport = 1001\nmax_body_mb = 5\n" + REGION)
    config = load(
        path,
        {
            "GRIDSHIFT_SERVER__PORT": "1002",
            "GRIDSHIFT_PLANNING__SLOT_MINUTES": "30",
            "GRIDSHIFT_FX__USD": "0.9",
            "GRIDSHIFT_REPLAY__START": "2023-05-01T02:00+02:00",
            "GRIDSHIFT_URL": "http://elsewhere",
            "GRIDSHIFT_REGION": "eu",
            "GRIDSHIFT_SERVER": "x",
        },
    )
    assert (config.server.port, config.server.max_body_mb, config.planning.slot_minutes) == (1002, 5.0, 30)
    assert config.fx == {"USD": 0.9} and config.fx_rate("USD") == 0.9 and config.fx_rate("EUR") == 1.0
    assert config.replay is not None and config.replay.start.isoformat() == "2023-05-01T00:00:00+00:00"
    assert config.region("eu").address == "http://10.0.0.1:8265"


def test_the_process_environment_does_not_leak_into_a_direct_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDSHIFT_SERVER__PORT", "1002")
    assert Config().server.port == 8700


def test_mistakes_in_variables_name_the_variable(folder: Path) -> None:
    found = problems(folder, "", {"GRIDSHIFT_SERVER__PORT": "x", "GRIDSHIFT_SERVER__HSOT": "y", "GRIDSHIFT_SERVR__PORT": "1"})
    assert len(found) == 3
    assert "environment GRIDSHIFT_SERVER__PORT: 'x': must be a valid integer" in found[0] + found[1] + found[2]
    assert any("GRIDSHIFT_SERVER__HSOT: no such key; did you mean 'host'?" in line for line in found)
    assert any("GRIDSHIFT_SERVR__PORT: no such section; did you mean 'server'?" in line for line in found)


BAD = """\
[server]
prot = 8701
database_url = "mysql://user:hunter2@db/x"
public_url = "foo"

[planning]
slot_minutes = 10
min_chunk = "soon"
default_region = "eo"
[[region]]
name = "eu"
address = "10.0.0.1"
currency = "USD"
carbon_signal = "avrage"
[[region.price]]
feed = "cvs"
[[region.price]]
feed = "energy_charts"
bznn = "DE-LU"
[[region]]
name = "eu"
[[region]]
name = "uk"
address = "http://user:hunter2@10.0.0.1:8265"
currency = "GBP"
token_env = "A"
token_file = "b"
[[shift]]
name = "night"
cron = "0 25 * * *"
timezone = "Europe/Berln"
duration = "8h"
from = "euu"
to = "uk"
[[webhook]]
source = "utility"
[replay]
start = "2023-05-01T00:00"
[regoin]
"""


def test_every_mistake_is_named_with_its_line_in_one_go(folder: Path) -> None:
    found = problems(folder, BAD)
    expected = [
        r"T:2: server\.prot: no such key; did you mean 'port'\?",
        r"T:3: server\.database_url: must start with 'sqlite:///' or 'postgresql\+psycopg://'",
        r"T:4: server\.public_url: 'foo': must be a URL such as",
        r"T:7: planning\.slot_minutes: 10: must be 5, 15, 30 or 60",
        r"T:8: planning\.min_chunk: 'soon': ",
        r"T:9: planning\.default_region: 'eo' is not a region; did you mean 'eu'\?",
        r"T:12: region\[0\]\.address: '10\.0\.0\.1': must be a URL such as",
        r"T:13: region\[0\]\.currency: 'USD' differs from planning\.currency 'EUR'; add 'USD = <rate>' under \[fx\]",
        r"T:14: region\[0\]\.carbon_signal: 'avrage': must be 'average' or 'marginal'",
        r"T:16: region\[0\]\.price\[0\]\.feed: 'cvs' is not a feed; did you mean 'csv'\?",
        r"T:19: region\[0\]\.price\[1\]\.bznn: ",
        r"T:20: region\[1\]\.address: missing",
        r"T:21: region\[1\]\.name: 'eu' is used by region\[0\] already",
        r"T:24: region\[2\]\.address: .*must not carry a user or password",
        r"T:25: region\[2\]\.currency: 'GBP' differs",
        r"T:30: shift\[0\]\.cron: '0 25 \* \* \*': not a crontab line: ",
        r"T:31: shift\[0\]\.timezone: 'Europe/Berln': must be an IANA time zone",
        r"T:33: shift\[0\]\.from: 'euu' is not a region; did you mean 'eu'\?",
        r"T:35: webhook\[0\]: give secret_env or secret_file",
        r"T:38: replay\.start: '2023-05-01T00:00': must have an offset",
        r"T:39: regoin: no such key; did you mean 'region'\?",
    ]
    missing = [pattern for pattern in expected if not any(re.match(pattern, line) for line in found)]
    assert not missing, "\n".join(found)
    assert not any("hunter2" in line for line in found)
    lines = [int(m[1]) for line in found if (m := re.match(r"T:(\d+)", line))]
    assert lines == sorted(lines)


def test_two_tokens_are_contradictory(folder: Path) -> None:
    found = problems(folder, REGION + 'token_env = "A"\ntoken_file = "b"\n')
    assert found == ["T:1: region[0]: give token_env or token_file, not both"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[server]\nport = = 1\n", "T:2: not valid TOML"),
        ("[server]\nport = 1\nport = 2\n", "T:3: not valid TOML"),
        ('[server]\nhost = "x\n', "T:2: not valid TOML"),
        ("server = 3\n", "T:1: server: 3: must be a valid dictionary"),
        ("region = 3\n", "T:1: region: 3: must be a valid list"),
        (REGION + 'price = [{bzn = "x"}]\n', "T:4: region[0].price[0]: needs the key 'feed'"),
        ("[server]\nport = 0\n", "T:2: server.port: 0: must be greater than or equal to 1"),
        ("[planning]\nmove_gb_per_s = nan\n", "T:2: planning.move_gb_per_s: nan: must be a finite number"),
        ("[planning]\ndefault_gpu_power_w = -1\n", "T:2: planning.default_gpu_power_w: -1: must be greater than 0"),
        ("[fx]\nUSD = 0\n", "T:2: fx.USD: 0: must be greater than 0"),
        (
            '[planning]\npolicy = "lowest-windw"\n',
            "T:2: planning.policy: 'lowest-windw': no policy 'lowest-windw'; did you mean",
        ),
        ("[planning]\npolicy = 3\n", "T:2: planning.policy: 3: must be a valid string"),
        ("[planning]\nprice_weight = -1\n", "T:2: planning.price_weight: -1: must be greater than or equal to 0"),
        ("[planning]\ndaily_cost = -5\n", "T:2: planning.daily_cost: -5: must be greater than or equal to 0"),
        ("[planning]\nruntime_slack = 11\n", "T:2: planning.runtime_slack: 11: must be less than or equal to 10"),
        ('[planning]\ndeadline_margin = "soon"\n', "T:2: planning.deadline_margin: 'soon': must be a duration"),
        ("[planning]\nprice_wieght = 1\n", "T:2: planning.price_wieght: no such key; did you mean 'price_weight'?"),
        (REGION + "[planning]\nprice_weight = 0\n", "T:2: region[0].name: 'eu': planning.price_weight needs to know"),
        (REGION + "[planning]\ndaily_carbon_kg = 9\n", "T:2: region[0].name: 'eu': planning.daily_carbon_kg needs"),
        ("[[team]]\nshare = 1\n", "T:1: team[0].name: missing; every team needs it"),
        ('[[team]]\nname = "a"\n[[team]]\nname = "a"\n', "T:4: team[1].name: 'a' is used by team[0] already"),
        ('[[team]]\nname = "a"\nquota = 1\n', "T:3: team[0].quota: no such key; did you mean 'quota_gpus'?"),
        ('[[team]]\nname = "a"\nshare = 0\n', "T:3: team[0].share: 0: must be greater than 0"),
        (REGION + "[[region.gpu_pool]]\ngpus = 8\n", "T:4: region[0].gpu_pool[0].type: missing; a gpu_pool needs it"),
        (REGION + POOL + "gpu = 8\n", "T:7: region[0].gpu_pool[0].gpu: no such key; did you mean 'gpus'?"),
        (REGION + POOL.replace("H100", "H 100"), "T:5: region[0].gpu_pool[0].type: 'H 100': must match"),
        (REGION + POOL.replace("8", "0"), "T:6: region[0].gpu_pool[0].gpus: 0: must be greater than 0"),
        (REGION + POOL + POOL, "T:1: region[0]: two gpu_pool tables are for 'H100'; make them one"),
        (
            REGION + "gpus = 4\n" + POOL,
            "T:1: region[0]: its gpu_pool tables have 8 GPUs together but gpus is 4; leave gpus out",
        ),
        (REGION + 'checkpoint_root = "rel"\n', "T:4: region[0].checkpoint_root: 'rel': must match"),
        (REGION + 'currency = "EUR"\n[planning]\ncurrency = "SEK"\n', "T:4: region[0].currency: 'EUR' differs"),
    ],
)
def test_one_mistake(folder: Path, text: str, expected: str) -> None:
    assert problems(folder, text)[0].startswith(expected)


def test_what_policies_get_of_the_configuration(folder: Path) -> None:
    text = REGION + POOL + '[[region.carbon]]\nfeed = "synthetic"\n[[team]]\nname = "vision"\nquota_gpus = 16\nshare = 2\n'
    text += '[[team]]\nname = "audio"\n[planning]\npolicy = "cap-quota/lowest-window:price"\nprice_weight = 0\n'
    text += "daily_carbon_kg = 500\nlate_cost_per_h = 5\nruntime_slack = 0\ndeadline_margin = 90\n"
    config = load(write(folder, text), {"GRIDSHIFT_PLANNING__DAILY_COST": "12.5"})
    settings = config.planner_settings()
    assert (settings.policy, settings.price_weight) == ("cap-quota/lowest-window:price", 0.0)
    assert (settings.daily_carbon_kg, settings.daily_cost, settings.late_cost_per_h) == (500.0, 12.5, 5.0)
    assert (settings.runtime_slack, settings.deadline_margin_s) == (0.0, 90.0)
    assert settings.teams == (TeamShare("vision", 16.0, 2.0), TeamShare("audio", None, 1.0))
    assert config.region("eu").pools() == (GpuPool("H100", 8.0),)
    with pytest.raises(ConfigError, match="price_weight needs to know what each region's power emits"):
        load(write(folder, REGION), {"GRIDSHIFT_PLANNING__PRICE_WEIGHT": "0"})
    plain = Config().planner_settings()
    assert replace(plain, default_region=None) == Settings(), "the defaults of policies are those of the configuration"


def test_carbon_kinds_are_not_mixed_up(folder: Path) -> None:
    found = problems(folder, REGION + 'carbon_signal = "marginal"\n[[region.carbon]]\nfeed = "gb_carbon"\n')
    assert found[0].startswith("T:6: region[0].carbon[0].feed: ") and "carbon_marginal" in found[0]


def test_paths_are_meant_from_the_folder_of_the_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "etc").mkdir()
    (folder / "etc" / "token").write_text(" ray-token \n")
    (folder / "etc" / "url").write_text("postgres://u:hunter2@db/gridshift\n")
    (folder / "etc" / "prices.csv").write_text("time,EUR/MWh\n")
    path = folder / "etc" / "g.toml"
    path.write_text(
        '[server]\ndata_dir = "state"\ndatabase_url_file = "url"\n' + REGION + 'token_file = "token"\n'
        '[[region.price]]\nfeed = "csv"\nfile = "prices.csv"\n'
    )
    config = load(Path("etc/g.toml"), {})
    monkeypatch.chdir("/")
    assert config.data_dir() == folder / "etc" / "state"
    assert config.database_url({}) == "postgresql+psycopg://u:hunter2@db/gridshift"
    assert config.regions[0].token({}) == "ray-token"
    assert config.regions[0].price[0]["file"] == str(folder / "etc" / "prices.csv")
    assert "hunter2" not in repr(config) and "ray-token" not in repr(config)


def test_a_sqlite_path_is_relative_to_the_file_too(folder: Path) -> None:
    config = load(write(folder, '[server]\ndatabase_url = "sqlite:///x.db"\n'), {})
    assert config.database_url({}) == f"sqlite:///{folder}/x.db"
    config = load(write(folder, '[server]\ndatabase_url = "sqlite:////var/x.db"\n'), {})
    assert config.database_url({}) == "sqlite:////var/x.db"


def test_secrets_are_read_when_used_and_missing_ones_say_so(folder: Path) -> None:
    (folder / "old").write_text("whsec_b\n")
    text = '[[webhook]]\nsource = "utility"\nsecret_envs = ["A"]\nsecret_file = "old"\n' + REGION + 'token_env = "T"\n'
    config = load(write(folder, text), {})
    assert config.webhooks[0].secrets({"A": "whsec_a"}) == ("whsec_a", "whsec_b")
    with pytest.raises(ConfigError, match="webhook utility: secret: the environment variable A is not set"):
        config.webhooks[0].secrets({})
    with pytest.raises(ConfigError, match="region eu: token: the environment variable T is not set"):
        config.regions[0].token({})
    (folder / "old").unlink()
    with pytest.raises(ConfigError, match="cannot read"):
        config.webhooks[0].secrets({"A": "x"})


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("gs.example", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert Config.model_validate({"server": {"host": host}}).server.is_loopback is loopback


def uncommented(text: str) -> str:
    return re.sub(r"^#(?=[a-zA-Z\[])", "", text, flags=re.MULTILINE)


def test_the_example_is_valid_as_it_is_and_uncommented(folder: Path) -> None:
    path = folder / "gridshift.toml"
    write_example(path)
    text = path.read_text()
    assert load(path, {}).model_dump() == Config().model_dump()
    config = load(write(folder, uncommented(text)), {})
    assert [region.name for region in config.regions] == ["eu-west", "nordics"]
    assert [shift.name for shift in config.shifts] == ["night-to-north"] and config.replay is not None
    raw = tomllib.loads(uncommented(text))
    for section in ("server", "planning"):  # values there are the defaults, and none is left out
        model = type(getattr(config, section))
        assert set(raw[section]) == set(model.model_fields) - {"database_url"}
        assert model.model_validate(raw[section]) == model()


def test_the_example_never_overwrites(folder: Path) -> None:
    path = write(folder, "mine")
    with pytest.raises(ConfigError, match="exists already and was left alone"):
        write_example(path)
    assert path.read_text() == "mine"


def test_lines_of_keys_in_awkward_toml() -> None:
    text = '''a = """
b = 1 # not a key
\\""" c = 2"""
"d.e" = [ # ] not the end
  1, {x = "]"},
]
'g' . h = 'it''s'
[ t ]
k = {a = 1, b = [1, 2]} # c
[[r]]
n = 1
[[r.p]]
f = "#"
[[r.p]]
f = 2
[r.q]
z = 1
[[r]]
[[r.p]]
f = 3
'''.replace("'it''s'", "'its'")
    tomllib.loads(text)
    lines = key_lines(text)
    assert {dotted(location): line for location, line in lines.items()} == {
        "a": 1,
        "d.e": 4,
        "g.h": 7,
        "t": 8,
        "t.k": 9,
        "r[0]": 10,
        "r[0].n": 11,
        "r[0].p[0]": 12,
        "r[0].p[0].f": 13,
        "r[0].p[1]": 14,
        "r[0].p[1].f": 15,
        "r[0].q": 16,
        "r[0].q.z": 17,
        "r[1]": 18,
        "r[1].p[0]": 19,
        "r[1].p[0].f": 20,
    }
    assert line_of(lines, ("r", 0, "missing")) == 10 and line_of(lines, ("nothing",)) is None


def test_carbon_kinds_are_not_mixed_and_the_horizon_fits_its_slots(tmp_path: Path) -> None:
    path = tmp_path / "gridshift.toml"
    region = '[[region]]\nname = "{0}"\naddress = "http://{0}"\ncarbon_signal = "{1}"\n[[region.carbon]]\nfeed = "synthetic"\n'
    path.write_text(
        "[planning]\ncarbon_price_per_tonne = 50\n" + region.format("a", "average") + region.format("b", "marginal")
    )
    with pytest.raises(ConfigError, match="average and marginal carbon cannot be compared"):
        load(path, {})
    path.write_text("[planning]\nslot_minutes = 5\nhorizon_hours = 300\n")
    with pytest.raises(ConfigError, match="horizon_hours may be at most 112 with slots of 5 min"):
        load(path, {})
    assert grid.MAX_SLOTS == config_sections.MAX_SLOTS


def test_one_cluster_is_one_region(folder: Path) -> None:
    text = REGION + '[[region]]\nname = "us"\naddress = "HTTP://10.0.0.1:8265/"\n'
    assert problems(folder, text) == [
        "T:6: region[1].address: 'HTTP://10.0.0.1:8265/' is the cluster of region[0] already; its GPUs would count twice"
    ]


def test_shifts_that_never_begin_or_take_each_other_back(folder: Path) -> None:
    rule = '[[shift]]\nname = "{0}"\ncron = "{1}"\nduration = "2h"\nfrom = "{2}"\nto = "{3}"\n'
    two = REGION + '[[region]]\nname = "us"\naddress = "http://10.0.0.2:8265"\n'
    there, back = rule.format("there", "0 22 * * *", "eu", "us"), rule.format("back", "0 22 * * *", "us", "eu")
    assert problems(folder, two + there + back) == [
        "T:18: shift[1].to: takes back what shift[0] moves at the same times; change one of the two"
    ]
    never = problems(folder, two + rule.format("never", "0 0 30 2 *", "eu", "us"))
    assert len(never) == 1 and "no year has day 30 in month 2, so this never begins" in never[0]
