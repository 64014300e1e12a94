"""``gridshift doctor``: what it finds, and that each fault comes with its remedy."""

import errno
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from dispatcher import doctor
from dispatcher.api.app import our_version
from dispatcher.api.auth import hash_token
from dispatcher.cli import main
from dispatcher.config import Config, load
from dispatcher.store import Token
from dispatcher.store.migrate import upgrade
from tests.api.fake import FakeServices, Server
from tests.helpers import free_port, wait_until

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@dataclass
class Answer:
    status: int = 200
    body: object = field(default_factory=lambda: {"ray_version": "2.60.0", "version": "4", "session_name": "s"})
    date: datetime = NOW
    token: str | None = None


@contextmanager
def http(answer: Answer) -> Iterator[int]:
    """A server on loopback that gives one answer, whatever is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status = answer.status if answer.token in (None, given) else 403 if given else 401
            self.send_response_only(status)
            self.send_header("Date", format_datetime(answer.date, usegmt=True))
            self.end_headers()
            self.wfile.write(json.dumps(answer.body).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "_gpus", lambda region, token: (8.0, ", 8 GPUs"))
    for name in list(os.environ):
        if name.startswith("GRIDSHIFT_") and "__" in name:
            monkeypatch.delenv(name)


def config(text: str = "", **environ: str) -> Config:
    path = Path("gridshift.toml")
    path.write_text(text)
    return load(path, environ)


def region(port: int, more: str = "") -> str:
    return f'[[region]]\nname = "eu"\naddress = "http://127.0.0.1:{port}"\n{more}'


def lines(findings: Iterator[doctor.Finding]) -> list[tuple[str, str, str]]:
    found = list(findings)
    assert all(finding.remedy or finding.level == "ok" or "; " in finding.says or finding.what == "config" for finding in found)
    return [(finding.level, finding.says, finding.remedy) for finding in found]


def check_region(answer: Answer, more: str = "") -> list[tuple[str, str, str]]:
    with http(answer) as port:
        made = config(region(port, more))
        return lines(doctor.check_region(made, made.regions[0], lambda: NOW))


def test_a_cluster_that_is_well() -> None:
    [(level, says, _)] = check_region(Answer())
    assert level == "ok" and "Ray 2.60.0, 8 GPUs" in says


def test_floors_of_serving_that_are_more_than_a_cluster_has() -> None:
    serving = """
[[region.serving]]
name = "chat"
source = "metrics"
url = "http://chat:8000/metrics"
preset = "vllm"
floor_gpus = {floor}
slo = [{{ metric = "queue", limit = 10 }}]
"""
    assert [level for level, *_ in check_region(Answer(), serving.format(floor=8))] == ["ok"]
    [(_, _, _), (level, says, remedy)] = check_region(Answer(), serving.format(floor=9))
    assert (level, says) == ("warn", "floor_gpus of its serving keep 9 GPUs free and it has 8: no batch job can start there")
    assert remedy.startswith("lower floor_gpus")


def test_a_cluster_that_is_not_there() -> None:
    made = config(region(free_port()))
    [(level, says, remedy)] = lines(doctor.check_region(made, made.regions[0], lambda: NOW))
    assert level == "fail" and "cannot be reached" in says and "start that cluster" in remedy


def test_tokens_of_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("right")
    [(level, says, _)] = check_region(Answer(token="right"), 'token_file = "t"')
    assert level == "ok" and says.endswith("takes our token")
    [(level, says, remedy)] = check_region(Answer(token="right"))
    assert level == "fail" and "wants a Ray token" in says and "token_env or token_file" in remedy
    (tmp_path / "t").write_text("wrong")
    [(level, says, _)] = check_region(Answer(token="right"), 'token_file = "t"')
    assert level == "fail" and "refuses our Ray token" in says and "wrong" not in says


@pytest.mark.parametrize("body", [[], {"hello": 1}, "text", None])
def test_something_else_at_the_address(body: object) -> None:
    [(level, says, remedy)] = check_region(Answer(body=body))
    assert level == "fail" and "not as Ray's dashboard" in says and "8265" in remedy


def test_a_control_plane_at_the_address() -> None:
    [(level, says, _)] = check_region(Answer(body={"ray_version": "2.60.0+gridshift"}))
    assert level == "fail" and "is a gridshift control plane" in says


@pytest.mark.parametrize(
    ("off_s", "expected"),
    [
        (0, None),
        (4, None),
        (-5, None),
        (30, ("warn", "30 s ahead")),
        (-31, ("warn", "30 s behind")),
        (600, ("fail", "600 s ahead")),
        (-601, ("fail", "600 s behind")),
    ],
)
def test_clock_skew(off_s: int, expected: tuple[str, str] | None) -> None:
    found = check_region(Answer(date=NOW + timedelta(seconds=off_s)))
    if expected is None:
        assert len(found) == 1
    else:
        assert found[1][0] == expected[0] and expected[1] in found[1][1] and "NTP" in found[1][2]


def test_secrets_that_are_missing_or_open_to_all(tmp_path: Path) -> None:
    open_file = tmp_path / "t"
    open_file.write_text("x")
    open_file.chmod(0o644)
    made = config(region(1, 'token_file = "t"\n') + '[[webhook]]\nsource = "u"\nsecret_env = "NOT_SET_ANYWHERE"\n')
    found = lines(doctor.check_config(made))
    assert ("warn", f"region eu: token: others on this machine can read {open_file}", f"chmod 600 {open_file}") in found
    assert any(level == "fail" and "NOT_SET_ANYWHERE is not set" in says for level, says, _ in found)
    open_file.chmod(0o600)
    assert not any("can read" in says for _, says, _ in lines(doctor.check_config(made)))


def test_replay_and_unreachable_public_url_are_said() -> None:
    made = config(
        '[[region]]\nname = "eu"\naddress = "http://10.0.0.1:8265"\n[replay]\nstart = "2023-05-01T00:00Z"\nspeed = 720\n'
    )
    found = lines(doctor.check_config(made))
    assert [level for level, _, _ in found] == ["ok", "warn", "warn"]
    assert "replay from 2023-05-01 00:00Z at 720 times" in found[1][1] and "public_url" in found[2][1]


def test_data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [(level, says, _)] = lines(doctor.check_data_dir(config()))
    assert level == "ok" and "made on start" in says and not (tmp_path / ".gridshift").exists()
    (tmp_path / "file").write_text("")
    [(level, says, remedy)] = lines(doctor.check_data_dir(config('[server]\ndata_dir = "file"\n')))
    assert level == "fail" and "cannot be written" in says and "data_dir" in remedy
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "gridshift.toml"]

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(doctor.tempfile, "NamedTemporaryFile", full)
        [(level, says, remedy)] = lines(doctor.check_data_dir(config()))
    assert level == "fail" and "No space left" in says and remedy.startswith("free some space")
    usage = type("Usage", (), {"free": 10**8})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    [(level, _, remedy)] = lines(doctor.check_data_dir(config()))
    assert level == "fail" and "free some space" in remedy


def test_database_before_and_after_its_first_start(tmp_path: Path) -> None:
    made = config()
    found = lines(doctor.check_database(made))
    assert found[0][0] == "ok" and found[0][1].endswith("is not there yet; it is made on start")
    upgrade(made.database_url({}))
    found = lines(doctor.check_database(made))
    assert found[0][0] == "ok" and "has the present schema and can be written" in found[0][1]
    assert found[1][:2] == ("ok", "listens on 127.0.0.1 only")


def test_databases_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is no database" * 100)
    found = lines(doctor.check_database(config('[server]\ndatabase_url = "sqlite:///x.db"\n')))
    assert found[0][0] == "fail" and "cannot be used" in found[0][1]
    (tmp_path / "empty.db").touch()
    found = lines(doctor.check_database(config('[server]\ndatabase_url = "sqlite:///empty.db"\n')))
    assert found[0][0] == "warn" and "gridshift db upgrade" in found[0][2]
    port = free_port()
    found = lines(doctor.check_database(config(f'[server]\ndatabase_url = "postgresql://u:hunter2@127.0.0.1:{port}/x"\n')))
    assert found[0][0] == "fail" and "cannot be used" in found[0][1] and "hunter2" not in str(found)


def test_postgres(postgres_url: str) -> None:
    found = lines(doctor.check_database(config("", GRIDSHIFT_SERVER__DATABASE_URL=postgres_url)))
    assert found[0][0] == "ok" and "can be written" in found[0][1]


def test_another_host_without_tokens() -> None:
    found = lines(doctor.check_database(config('[server]\nhost = "0.0.0.0"\n')))
    assert found[1][0] == "fail" and "no API token" in found[1][1] and "gridshift tokens create" in found[1][2]


def test_port() -> None:
    port = free_port()
    text = f"[server]\nport = {port}\n"
    assert lines(doctor.check_port(config(text))) == [("ok", f"127.0.0.1:{port} is free", "")]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        other.settimeout(0.1)
        [(level, says, remedy)] = lines(doctor.check_port(config(text)))
    assert level == "fail" and "cannot listen" in says and "server.port" in remedy


def test_port_that_is_ours_already() -> None:
    with http(Answer(body={"energy_basis": "modelled", "alarms": []})) as port:
        (level, says, _), none = lines(doctor.check_port(config(f"[server]\nport = {port}\n")))
    assert level == "ok" and "control plane listens" in says and none == ("ok", "none stands", "")
    with http(Answer(body={"energy_basis": "modelled", "alarms": [{"sentence": "eu is above its limit"}]})) as port:
        assert lines(doctor.check_port(config(f"[server]\nport = {port}\n")))[1][:2] == ("warn", "eu is above its limit")
    large = {"key": "jobs too large", "sentence": "job j can never start as things are: it needs 8 GPUs"}
    with http(Answer(body={"energy_basis": "modelled", "alarms": [large]})) as port:
        _, (level, says, remedy) = lines(doctor.check_port(config(f"[server]\nport = {port}\n")))
    assert (level, says) == ("warn", large["sentence"]) and "submit it again with less" in remedy
    silent = {"key": "unreachable eu", "sentence": "eu does not answer: no connection"}
    with http(Answer(body={"energy_basis": "modelled", "alarms": [silent]})) as port:
        _, (level, _, remedy) = lines(doctor.check_port(config(f"[server]\nport = {port}\n")))
    assert level == "fail" and "start that cluster" in remedy
    with http(Answer(status=401, body={"error": {"message": "an API token is needed"}})) as port:
        _, (level, says, remedy) = lines(doctor.check_port(config(f"[server]\nport = {port}\n")))
    assert level == "warn" and "wants an API token" in says and "GRIDSHIFT_TOKEN" in remedy
    with http(Answer(body={"hello": 1})) as port:
        assert lines(doctor.check_port(config(f"[server]\nport = {port}\n")))[0][0] == "fail"


def control_plane(address: str, token: str | None = None, now: datetime | None = None) -> list[tuple[str, str, str]]:
    return lines(doctor.check_control_plane(address, token, lambda: now or datetime.now(UTC)))


def test_a_control_plane_elsewhere(tmp_path: Path) -> None:
    services = FakeServices(tmp_path)
    with Server(services) as server:
        ready, version, alarm = control_plane(server.url)
        assert ready == ("ok", f"{server.url} answers and is ready", "")
        assert version == ("ok", f"version {our_version()}", "")
        assert alarm[:2] == ("fail", "south does not answer")
        skewed = control_plane(server.url, now=datetime.now(UTC) + timedelta(minutes=5))[1]
        assert skewed[0] == "fail" and "behind ours" in skewed[1]
        services.store.add_token(Token("ci", hash_token("right"), datetime.now(UTC))).result()
        wait_until(lambda: server.call("GET", "/v1/status").status_code == 401, 10, "the token to be asked for")
        assert control_plane(server.url)[-1] == (
            "fail",
            f"{server.url} wants an API token",
            "give --token, or set GRIDSHIFT_TOKEN",
        )
        level, says, _ = control_plane(server.url, "wrong")[-1]
        assert (level, says) == ("fail", f"{server.url} refuses our API token")
        assert ("ok", f"version {our_version()}, takes our API token", "") in control_plane(server.url, "right\n")
        services.control_error = "ValueError: x"
        first = control_plane(server.url, "right")[0]
        assert first[0] == "fail" and "the control loop fails" in first[1]
    [(level, says, remedy)] = control_plane(server.url, "right")
    assert level == "fail" and "cannot be reached" in says and "gridshift serve" in remedy


def test_a_control_plane_of_another_version_and_what_is_none() -> None:
    with http(Answer(body={"ready": True, "problems": [], "version": "0.0.1", "alarms": []}, date=datetime.now(UTC))) as port:
        told = control_plane(f"http://127.0.0.1:{port}")
    assert told[1][:2] == ("warn", f"version 0.0.1, and this is {our_version()}") and told[2] == ("ok", "none stands", "")
    for body in ({"ray_version": "2.60.0"}, [], "x"):
        with http(Answer(body=body)) as port:
            [(level, says, remedy)] = control_plane(f"http://127.0.0.1:{port}")
        assert level == "fail" and "not as gridshift does" in says and "8700" in remedy


@pytest.mark.parametrize("how", ["option", "variable"])
def test_the_command_looks_at_the_address_beside_what_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    config(f"[server]\nport = {free_port()}\n")
    monkeypatch.delenv("GRIDSHIFT_TOKEN", raising=False)
    with Server(FakeServices(tmp_path / "there")) as server:
        flags = ["--address", server.url, "--token", "t"] if how == "option" else []
        monkeypatch.setenv("GRIDSHIFT_ADDRESS", "" if flags else server.url)
        told = json.loads(CliRunner().invoke(main, ["doctor", "--json", *flags]).stdout)
    found = {finding["what"]: finding["says"] for finding in told["findings"]}
    assert {"config", "data", "database", "port"} <= found.keys()
    assert found["control plane"].startswith(f"version {our_version()}") and found["alarm"] == "south does not answer"
    assert CliRunner().invoke(main, ["doctor", "--address", "localhost:8700"]).exit_code == 2
    Path("gridshift.toml").write_text("[server]\nprot = 1\n")
    told = CliRunner().invoke(main, ["doctor", "--address", server.url])
    assert told.exit_code == 1 and "prot" in told.stdout and "cannot be reached" in told.stdout


def feeds(more: str, head: str = "") -> list[tuple[str, str, str]]:
    made = config(head + region(1, more))
    return lines(doctor.check_feeds(made, made.regions[0], NOW))


def test_feeds(tmp_path: Path) -> None:
    found = feeds('[[region.price]]\nfeed = "synthetic"\n')
    assert found[0][0] == "warn" and "known until" in found[0][1] and "made up" in found[0][1]
    assert found[1][0] == "warn" and "none is configured" in found[1][1]
    (tmp_path / "old.csv").write_text("datetime,price EUR/MWh\n2020-01-01T00:00:00Z,50\n2020-01-01T01:00:00Z,60\n")
    found = feeds('[[region.price]]\nfeed = "csv"\nfile = "old.csv"\ncurrency = "EUR"\n[[region.carbon]]\nfeed = "synthetic"\n')
    assert [level for level, _, _ in found] == ["warn", "fail", "warn"]
    with http(Answer(status=500, date=datetime.now(UTC))) as port:
        made = f'[[region.carbon]]\nfeed = "gb_carbon"\nbase_url = "http://127.0.0.1:{port}"\n'
        found = feeds(made + '[[region.carbon]]\nfeed = "synthetic"\n')
    assert [level for level, _, _ in found] == ["warn", "warn", "warn"]
    with http(Answer(body={"data": []}, date=datetime.now(UTC) - timedelta(hours=2))) as port:
        found = feeds(f'[[region.carbon]]\nfeed = "gb_carbon"\nbase_url = "http://127.0.0.1:{port}"\n')
    assert "our clock is 2 h ahead of 127.0.0.1" in str(found)


def test_feeds_that_are_not_needed_or_lack_their_key() -> None:
    made = '[region.tariff]\ntype = "fixed"\ncurrency = "EUR"\ntimezone = "UTC"\nenergy_per_mwh = 100.0\n'
    found = feeds(made + '[[region.carbon]]\nfeed = "entsoe"\nzone = "FR"\ntoken_env = "NO_SUCH_VARIABLE"\n')
    assert found[0][:2] == ("ok", "fixed tariff; no feed is needed")
    assert found[1][0] == "warn" and "NO_SUCH_VARIABLE" in found[1][1] and found[1][2] == "set the key, or take the feed out"


def test_the_whole_in_words_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with http(Answer(date=datetime.now(UTC))) as port:
        chains = '[[region.price]]\nfeed = "synthetic"\n[[region.carbon]]\nfeed = "synthetic"\n'
        config(f"[server]\nport = {free_port()}\n" + region(port, chains))
        assert doctor.main(None, as_json=True) == 0
        told = json.loads(capsys.readouterr().out)
        warned = [finding for finding in told["findings"] if finding["level"] != "ok"]
        assert told["ok"] and len(warned) == 2 and all("made up" in finding["says"] for finding in warned)
        assert doctor.main(None, as_json=False) == 0
    words = capsys.readouterr()
    assert words.out.startswith("ok    config") and "nothing stands in the way" in words.err
    assert doctor.main(None, as_json=False) == 1  # the cluster is gone
    words = capsys.readouterr()
    assert "fail  region eu" in words.out and "-> start that cluster" in words.out


def test_a_wrong_configuration_is_a_finding_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    Path("gridshift.toml").write_text("[server]\nprot = 1\nhots = 2\n")
    assert doctor.main(None, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert [finding["what"] for finding in told["findings"]] == ["config", "config"] and "did you mean 'port'" in str(told)
    assert [bool(finding["remedy"]) for finding in told["findings"]] == [False, True], "what to do is said once"
    Path("gridshift.toml").write_bytes(b"\xff")
    assert doctor.main(None, as_json=False) == 1
    assert capsys.readouterr().out.count("gridshift init") == 1
