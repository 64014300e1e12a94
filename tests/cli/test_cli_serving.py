"""``gridshift serving``: every promise in a line, and one serving's history."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.client.fake_api import FakeApi

CHAT: dict[str, Any] = {
    "region": "north",
    "name": "chat",
    "level": "freeze",
    "since": "2026-03-01T12:00:00+00:00",
    "sentence": "batch is frozen: e2e p99 <= 0.5 s is at risk",
    "unmet_alone": False,
    "error": None,
    "objectives": [
        {"state": "at_risk", "short_burn": 12.0, "long_burn": 1.5, "sentence": "e2e p99 <= 0.5 s is at risk"},
        {"state": "met", "short_burn": 0.0, "long_burn": 0.0, "sentence": "queue <= 4 is met: 0, limit 4"},
    ],
    "batch": {"running": 3, "cappable": 1, "freezable": 1, "pausable": 2},
}
SILENT = {**CHAT, "name": "code", "level": "calm", "objectives": [], "error": "http://code/metrics answers 500"}


@pytest.fixture
def serving(api: FakeApi) -> FakeApi:
    api.answers["GET", "/v1/serving"] = lambda _: (200, {"serving": [CHAT, SILENT]})
    return api


def test_every_promise_has_a_line(serving: FakeApi, run: Run) -> None:
    result = run("serving")
    assert result.exit_code == 0, result.output
    head, first, second, silent, error = result.stdout.strip().splitlines()
    assert head.split() == ["region", "serving", "batch", "since", "message"]
    assert first.split()[:3] == ["north", "chat", "freeze"] and "e2e p99 <= 0.5 s is at risk" in first
    assert "queue <= 4 is met" in second and "north" not in second
    assert silent.split()[:3] == ["north", "code", "calm"] and error == "code: http://code/metrics answers 500"
    assert json.loads(run("serving", "--json").stdout) == {"serving": [CHAT, SILENT]}


def test_one_with_what_happened(api: FakeApi, run: Run) -> None:
    history = [{"at": "2026-03-01T12:00:01.5+00:00", "sentence": "batch is frozen: slow"}]
    api.answers["GET", "/v1/serving"] = lambda _: (200, {"serving": [{**CHAT, "history": history}]})
    assert run("serving", "north", "chat").stdout.splitlines()[-1] == "2026-03-01T12:00:01Z  batch is frozen: slow"


def test_none_and_a_wrong_name_are_said(api: FakeApi, run: Run) -> None:
    api.answers["GET", "/v1/serving"] = lambda _: (200, {"serving": []})
    assert "[[region.serving]] declares one" in run("serving").stdout
    for argv, said in ((("north",), "give REGION and NAME"), (("north", "x"), "north has no serving 'x'")):
        result = run("serving", *argv)
        assert result.exit_code == 2 and said in result.stderr


def test_a_report_has_a_line_for_each_promise(api: FakeApi, run: Run) -> None:
    def part(share: float | None, met: bool | None) -> dict[str, Any]:
        return {
            "total": 500,
            "bad": 5,
            "share": share,
            "low": 0.98,
            "high": 0.995,
            "is_met": met,
            "known_s": 900,
            "unknown_s": 100,
        }

    one = {
        "region": "north", "name": "chat", "watched_s": 7200, "beside_s": 3600, "batch_gpu_h": 2.0, "trough_gpu_h": 1.5,
        "region_gpu_h": 2.0, "level_s": {"calm": 7140, "freeze": 60}, "rises": 3, "rises_beside": 2, "frozen": 2, "capped": 0,
        "asked": 0, "yield_s": [1.0, 1.5, 4.0],
        "objectives": [{"name": "e2e p95 <= 0.2 s", "promised": 0.95, "alone": part(0.99, True), "beside": part(None, None)}],
    }  # fmt: skip
    told = {"start": "2026-03-01T00:00:00Z", "end": "2026-03-08T00:00:00Z", "note": "no proof", "serving": [one]}
    api.answers["GET", "/v1/serving/report"] = lambda _: (200, told)
    out = " ".join(run("serving", "--report").stdout.split())
    assert "99.00 % (98.00-99.50) of 500" in out and "nothing counted" in out and "10.0 %" in out
    assert "1.0 of 2.0 h watched, 2.00 GPU-hours, 1.50 of them while less than usual was asked" in out
    assert "3 times, 2 times while it ran (0 jobs capped, 2 frozen, 0 asked for checkpoints), for 1 min in all" in out
    assert "the first job after 1.5 s (median of 3)" in out and "no proof" in out
    assert json.loads(run("serving", "--report", "--json").stdout) == told
    wrong = run("serving", "--start", "2026-03-01T00:00:00Z")
    assert wrong.exit_code == 2 and "--start is for --report" in wrong.stderr
