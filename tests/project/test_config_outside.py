"""What the configuration points to outside its file is looked at before anything starts, all of it at once."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from dispatcher import doctor
from dispatcher.cli import main
from dispatcher.config import load
from dispatcher.config_outside import check_outside
from dispatcher.errors import ConfigError
from tests.helpers import free_port

GOOD = "whsec_" + "QUJDREVGR0hJSktMTU5PUA=="


def written(tmp_path: Path, more: str = "") -> Path:
    (tmp_path / "short").write_text("no base64 of ours")
    (tmp_path / "good").write_text(GOOD)
    path = tmp_path / "gridshift.toml"
    path.write_text(
        f"""
[server]
port = {free_port()}
data_dir = "data"
{more}
[[region]]
name = "north"
address = "http://127.0.0.1:1"
token_file = "north-token"
[[region]]
name = "south"
address = "http://127.0.0.1:2"
token_env = "NO_SUCH_SOUTH"
[[webhook]]
source = "one"
secret_envs = ["NO_SUCH_FIRST", "NO_SUCH_SECOND"]
secret_file = "short"
[[webhook]]
source = "two"
secret_files = ["short", "good"]
[[event_source]]
name = "utility"
protocol = "openadr-3.1"
region = "north"
url = "http://127.0.0.1:3"
client_id = "us"
client_secret_env = "NO_SUCH_CLIENT"
ca_file = "no-such.pem"
[[event_source]]
name = "hints"
protocol = "pointer"
region = "north"
url = "http://127.0.0.1:4"
client_secret_env = "NO_SUCH_HINT"
"""
    )
    return path


MISSING = [
    "north-token",
    "NO_SUCH_SOUTH",
    "NO_SUCH_FIRST",
    "NO_SUCH_SECOND",
    "webhook two: a secret must be base64",
    "NO_SUCH_CLIENT",
    "event_source utility: a certificate file",
]


@pytest.mark.parametrize("command", ["serve", "up"])
def test_all_that_is_missing_is_named_at_once_and_nothing_starts(tmp_path: Path, command: str) -> None:
    result = CliRunner().invoke(main, [command, "--config", str(written(tmp_path))])
    assert result.exit_code == 2
    assert [name for name in MISSING if name not in result.stderr] == []
    assert len(result.stderr.splitlines()) == len(MISSING), "each once; what is fetched later tells of it then"
    assert "QUJD" not in result.stderr and "no base64 of ours" not in result.stderr
    assert not (tmp_path / "data").exists()


def test_doctor_names_the_same(tmp_path: Path) -> None:
    told = [finding.says for finding in doctor.check_config(load(written(tmp_path), {})) if finding.level == "fail"]
    assert len(told) == 7 and all(any(name in says for says in told) for name in MISSING[:-1]) and "NO_SUCH_HINT" in told[-1]


def test_a_replay_asks_no_sender_and_needs_none_of_its_secrets(tmp_path: Path) -> None:
    replay = '[replay]\nstart = "2023-05-01T00:00Z"\nspeed = 720\n'
    with pytest.raises(ConfigError) as caught:
        check_outside(load(written(tmp_path, replay), {}))
    assert "NO_SUCH_CLIENT" not in str(caught.value) and len(str(caught.value).splitlines()) == 5


def test_where_all_is_there_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("token")
    path = tmp_path / "g.toml"
    path.write_text(
        '[[region]]\nname = "a"\naddress = "http://127.0.0.1:1"\ntoken_file = "t"\n'
        '[[webhook]]\nsource = "w"\nsecret_file = "s"\n'
    )
    (tmp_path / "s").write_text(GOOD)
    check_outside(load(path, {}))
