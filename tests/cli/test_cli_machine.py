import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from dispatcher.cli import main
from tests.cli.conftest import Run
from tests.client.fake_api import FakeApi


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found = []
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
        else:
            found.append(((*path, name), command))
    return found


def test_every_command_has_help_and_imports_nothing_heavy_for_it(run: Run) -> None:
    for path, command in commands(main):
        result = run(*path, "--help")
        assert result.exit_code == 0 and command.help, path
        options = [name for option in command.params for name in option.opts]
        assert "--json" in options or path in {("serve",), ("up",)}, path


@pytest.mark.real
def test_it_starts_with_nothing_heavy_and_without_colour() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dispatcher.cli", "jobs", "--help"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0 and "\x1b" not in done.stdout
    probe = (
        "import sys, dispatcher.cli; print([m for m in ('requests', 'rich', 'sqlmodel', 'fastapi', 'ray') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30).stdout == "[]\n"


@pytest.mark.real
def test_as_a_process(api: FakeApi) -> None:
    gridshift = [sys.executable, "-m", "dispatcher.cli"]
    done = subprocess.run([*gridshift, "submit", "--deadline", "8h", "--", "true"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and done.stdout.strip() in api.jobs
    done = subprocess.run([*gridshift, "jobs"], capture_output=True, text=True, timeout=30)
    assert "queued" in done.stdout and "\x1b" not in done.stdout
    done = subprocess.run(
        [*gridshift, "submit", "--deadline", "yesterday", "--", "true"], capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "") and done.stderr == "gridshift.deadline: 'yesterday': give a time to come\n"


def test_init_writes_a_configuration_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "gridshift.toml"
    assert f"wrote {path}" in run("init", str(path)).stdout
    tomllib.loads(path.read_text())
    again = run("init", str(path))
    assert again.exit_code == 2 and "exists already" in again.stderr


def test_a_wrong_configuration_is_bad_input(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "gridshift.toml"
    path.write_text("[server]\nprot = 8700\n")
    for command in (["serve"], ["up"], ["db", "upgrade"], ["tokens", "list"]):
        result = run(*command, "--config", str(path))
        assert result.exit_code == 2 and "prot" in result.stderr and ":2" in result.stderr, command
    assert run("serve", "--config", str(tmp_path / "absent.toml")).exit_code == 2


def test_tokens_live_in_the_database_as_hashes(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "gridshift.toml"
    config.write_text('[server]\ndata_dir = "data"\n')
    at = ["--config", str(config)]
    created = run("tokens", "create", "ci", *at)
    secret = created.stdout.strip()
    assert created.exit_code == 0 and secret.startswith("gs_") and len(secret) > 40 and secret not in created.stderr
    assert "export GRIDSHIFT_TOKEN=" in created.stderr and "every client needs a token" in created.stderr
    listed = run("tokens", "list", "--json", *at)
    assert [t["name"] for t in json.loads(listed.stdout)["tokens"]] == ["ci"] and secret not in listed.stdout
    stored = b"".join(p.read_bytes() for p in (tmp_path / "data").iterdir() if p.is_file())
    assert secret.encode() not in stored and hashlib.sha256(secret.encode()).hexdigest().encode() in stored
    assert run("tokens", "create", "ci", *at).exit_code == 1
    assert run("tokens", "create", "no good", *at).exit_code == 2
    assert run("tokens", "revoke", "ci", *at).exit_code == 0
    assert run("tokens", "revoke", "ci", *at).exit_code == 1
    assert json.loads(run("tokens", "--json", *at).stdout) == {"tokens": []}


@pytest.mark.parametrize(
    ("server", "said", "is_open"),
    [("", "now open to everybody on this machine", True), ('host = "0.0.0.0"\n', "now refuses everybody", False)],
)
def test_revoking_the_last_token_says_what_that_opens(run: Run, tmp_path: Path, server: str, said: str, is_open: bool) -> None:
    config = tmp_path / "gridshift.toml"
    config.write_text(f'[server]\ndata_dir = "data"\n{server}')
    at = ["--config", str(config)]
    for name in ("a", "b", "c"):
        assert run("tokens", "create", name, *at).exit_code == 0
    first = run("tokens", "revoke", "a", *at)
    assert first.exit_code == 0 and not first.stderr, "others are left, so every client still needs one"
    told = json.loads(run("tokens", "revoke", "b", "--json", *at).stdout)
    assert told == {"name": "b", "revoked": True, "tokens_left": 1, "open": False}
    last = run("tokens", "revoke", "c", "--json", *at)
    assert json.loads(last.stdout) == {"name": "c", "revoked": True, "tokens_left": 0, "open": is_open}
    assert "warning: that was the last token" in last.stderr and said in last.stderr


def test_an_answer_that_wants_a_token_says_where_to_give_it(run: Run, api: FakeApi) -> None:
    api.token = "s3cret"
    result = run("jobs", "list")
    assert result.exit_code == 1 and "a token is needed" in result.stderr and "$GRIDSHIFT_TOKEN" in result.stderr


def test_db_upgrade(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "gridshift.toml"
    config.write_text('[server]\ndata_dir = "data"\n')
    assert json.loads(run("db", "upgrade", "--json", "--config", str(config)).stdout) == {"upgraded": True}
    assert run("db", "upgrade", "--config", str(config)).stdout == "the database has the present schema\n"
