"""Saved messages with what they mean: every file there is, against the answer beside it."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dispatcher.dr.explain import Given, explain
from dispatcher.dr.site import site_from
from tests.dr.dr_events import KEYS, asking, understood
from tests.helpers import data_dir


def folder() -> Path:
    path = data_dir() / "dr_events"
    if not path.is_dir():
        pytest.skip(f"data folder {path} is absent")
    return path


def cases() -> list[str]:
    try:
        return sorted(path.name.removesuffix(".expected.json") for path in folder().glob("*.expected.json"))
    except pytest.skip.Exception:
        return []


def site() -> Any:
    text = (folder() / "README.md").read_text(encoding="utf-8")
    return site_from(json.loads(text.split("```json")[1].split("```")[0]))


def wire(name: str) -> bytes:
    path = next(p for p in folder().glob(f"{name}.*") if not p.name.endswith(".expected.json"))
    return path.read_bytes()


def protocol(wire_text: str) -> str:
    for mark, name in (("3.1", "openadr-3.1"), ("3.0", "openadr-3.0"), ("2.0b", "openadr-2.0b"), ("aggregator", "pointer")):
        if mark in wire_text:
            return name
    return "standard-webhook"


def read(name: str, expected: dict[str, Any]) -> dict[str, Any]:
    given = Given(
        now=datetime.fromisoformat(expected["now"]).astimezone(UTC),
        site=site(),
        load_w=expected["load_now_kw"] * 1e3 if "load_now_kw" in expected else None,
        held_version=str(expected["held_version"]) if "held_version" in expected else None,
    )
    after = [wire(earlier) for earlier in expected.get("after", [])]
    return explain(protocol(expected["wire"]), wire(name), given, after).json()


def compare(answer: dict[str, Any], canonical: dict[str, Any]) -> None:
    assert set(answer) == set(KEYS) and answer["error"] is None
    for key in ("event_id", "version", "priority", "source"):
        if key in canonical:
            assert answer[key] == canonical[key]
    states = {"FAR": "scheduled", "ACTIVE": "active", "CANCELLED": "cancelled", "EXPIRED": "expired"}
    if "state" in canonical:
        assert answer["state"] == states[canonical["state"]]
    if canonical.get("unchanged"):
        assert answer["state"] == "ignored"
    if "segments" not in canonical:
        return
    assert len(answer["segments"]) == len(canonical["segments"])
    for segment, wanted in zip(answer["segments"], canonical["segments"], strict=True):
        assert (segment["start"], segment["end"]) == (wanted["start"], wanted["end"])
        if "cap_kw" in wanted:
            assert segment["limit_w"] == wanted["cap_kw"] * 1000
        if "reduce_kw" in wanted:
            assert segment["limit_w"] == (100 - wanted["reduce_kw"]) * 1000
        if "interval_id" in wanted:
            assert segment["interval_id"] == wanted["interval_id"]
        assert segment.get("effective_from") == wanted.get("effective_from")
        assert wanted.get("reason", "") in segment["reason"] and wanted.get("alert", "") in segment["reason"]
        assert segment["ramp_s"] == canonical.get("ramp_up_s")


@pytest.mark.parametrize("name", cases())
def test_a_saved_message_means_what_stands_beside_it(name: str) -> None:
    expected = json.loads((folder() / f"{name}.expected.json").read_text(encoding="utf-8"))
    expected["state"] = None
    answer = read(name, expected)
    compare(answer, expected["canonical"])
    if "reports_due" in expected:
        assert answer["reports_due"] == expected["reports_due"]
    if "variant" in expected:
        other = {**expected, **expected["variant"]}
        compare(read(name, other), other["canonical"])


def test_there_are_saved_messages() -> None:
    folder()
    assert len(cases()) >= 9


def test_a_late_copy_after_a_missed_version_is_ignored() -> None:
    given = Given(now=datetime(2026, 8, 21, 16, 20, 5, tzinfo=UTC), site=site())
    first = wire("13_oadr20b_load_dispatch_far")
    late = first.replace(b"<ei:modificationNumber>0<", b"<ei:modificationNumber>1<")
    answer = explain("openadr-2.0b", late, given, [first, wire("14_oadr20b_cancelled_mod2")]).json()
    assert (answer["state"], answer["version"], answer["segments"]) == ("ignored", 2, [])


def test_a_late_update_does_not_bring_a_deleted_event_back() -> None:
    given = Given(now=datetime(2026, 8, 13, 2, 41, tzinfo=UTC), site=site())
    made = wire("03_oadr31_do_it_now_open_ended")
    late = json.loads(made)
    late["operation"], late["object"]["modificationDateTime"] = "UPDATE", "2026-08-13T02:40:30Z"
    answer = explain("openadr-3.1", json.dumps(late).encode(), given, [made, wire("04_oadr31_cancel_by_delete")]).json()
    assert (answer["state"], answer["segments"]) == ("ignored", [])


def test_every_payload_type_of_the_standard_is_known() -> None:
    path = data_dir() / "openadr3" / "3.1.0" / "enumerations" / "event-interval-payloads.schema.yaml"
    if not path.is_file():
        pytest.skip(f"data file {path} is absent")
    kinds = re.findall(r"^    ([A-Z0-9_]+):$", path.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(kinds) > 30
    private = []
    for kind in kinds:
        answer = understood(asking(kind, [1], "KW"))
        private += [kind for warning in answer["warnings"] if "private" in warning]
    assert private == []
