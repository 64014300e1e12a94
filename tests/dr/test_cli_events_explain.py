"""``gridshift events explain`` as a person and as a program meet it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dispatcher.cli import main
from tests.dr.dr_events import KEYS, SITE_FILE, cap, event, told

NOW = ("--now", "2026-03-02T12:00:00Z")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    later = event(intervals=[cap(80)], modificationDateTime="2026-03-02T11:30:00Z")
    newest = event(intervals=[cap(70)], modificationDateTime="2026-03-02T11:45:00Z")
    contents: dict[str, Any] = {"site": SITE_FILE, "first": told("CREATE", event()), "later": told("UPDATE", later)}
    contents |= {"newest": told("UPDATE", newest), "list": [event(), event(id="evt-2")], "bad": event(intervals=[cap(-1)])}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def run(files: Path, *words: str) -> Result:
    args = [str(files / f"{word}.json") if (files / f"{word}.json").exists() else word for word in words]
    return CliRunner().invoke(main, ["events", "explain", *args])


def test_the_answer_as_json(files: Path) -> None:
    result = run(files, "--protocol", "openadr-3.1", "first", *NOW, "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["state"], answer["segments"][0]["limit_w"]) == (0, "scheduled", 120000.0)
    assert list(answer) == KEYS


@pytest.mark.parametrize(
    "words",
    [
        ("--after", "first", "later", "newest"),
        ("newest", "--after", "first", "later"),
        ("--after", "first", "--after", "later", "newest"),
        ("--after", "first", "--after", "later", "--json", "newest"),
        ("--after", "first", "later", "--json", "--load-w", "5", "newest"),
    ],
)
def test_what_came_before_may_be_given_in_any_way(files: Path, words: tuple[str, ...]) -> None:
    result = run(files, "--protocol", "openadr-3.1", *NOW, *words, *([] if "--json" in words else ["--json"]))
    answer = json.loads(result.stdout)
    assert (answer["state"], answer["segments"][0]["limit_w"]) == ("scheduled", 70000.0)


def test_the_answer_for_people(files: Path) -> None:
    result = run(files, "--protocol", "openadr-3.1", "list", *NOW, "--site-config", "site")
    assert result.exit_code == 0
    assert "event evt-1: scheduled" in result.stdout and "at most 120 kW" in result.stdout and "binding:" in result.stdout


def test_a_wrong_event_is_an_answer(files: Path) -> None:
    result = run(files, "--protocol", "openadr-3.1", "bad", *NOW)
    assert result.exit_code == 0 and "rejected" in result.stdout and "bad_value" in result.stdout
    assert json.loads(run(files, "--protocol", "openadr-3.1", "bad", *NOW, "--json").stdout)["error"]["code"] == "bad_value"


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("--protocol", "openadr-4", "first"), "protocol"),
        (("first",), "protocol"),
        (("--protocol", "openadr-3.1"), "FILE"),
        (("--protocol", "openadr-3.1", "absent"), "absent"),
        (("--protocol", "openadr-3.1", "first", "--now", "noon"), "now"),
        (("--protocol", "openadr-3.1", "first", "--now", "2026-03-02T12:00:00"), "now"),
        (("--protocol", "openadr-3.1", "first", "--load-w", "nan"), "load-w"),
        (("--protocol", "openadr-3.1", "first", "--load-w", "-5"), "load-w"),
        (("--protocol", "openadr-3.1", "first", "--draw-s", "x"), "draw-s"),
        (("--protocol", "openadr-3.1", "first", "--held-version", "new"), "held_version"),
        (("--protocol", "standard-webhook", "first", "--secret", "x"), "secret"),
        (("--protocol", "openadr-3.1", "first", "--site-config", "first"), "objectType"),
        (("--protocol", "openadr-3.1", "first", "--after", "absent"), "absent"),
    ],
)
def test_what_is_wrong_with_the_command_ends_it(files: Path, words: tuple[str, ...], field: str) -> None:
    result = run(files, *words)
    assert result.exit_code == 2 and field in result.stderr and result.stdout == ""


def test_a_site_file_may_be_toml(files: Path) -> None:
    path = files / "site.toml"
    path.write_text('site = "hall-9"\nbatch_and_serving_reference_kw = 200.0\n[simple_map]\n2 = "-50% of baseline"\n')
    simple = event(intervals=[{"id": 0, "payloads": [{"type": "SIMPLE", "values": [2]}]}])
    (files / "simple.json").write_text(json.dumps(simple))
    result = run(files, "--protocol", "openadr-3.1", "simple", *NOW, "--site-config", str(path), "--json")
    assert json.loads(result.stdout)["segments"][0]["limit_w"] == 100000.0


def test_what_a_sender_wrote_does_not_steer_the_terminal(files: Path) -> None:
    alert = event(intervals=[{"id": 0, "payloads": [{"type": "ALERT_OTHER", "values": ["\x1b[2Jgone"]}]}])
    (files / "alert.json").write_text(json.dumps(alert))
    assert "\x1b" not in run(files, "--protocol", "openadr-3.1", "alert", *NOW).stdout
