"""The OpenADR 2.0b VEN with openleadr's own VTN, in a process of its own, over real HTTP: a reading that is not ours."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dr.ven2_site import PATIENT, Site2
from tests.dr.ven3_site import soon
from tests.helpers import free_port

if importlib.util.find_spec("openleadr") is None and not os.environ.get("CI"):
    pytest.skip("openleadr is not installed (pip install 'gridshift[dev]')", allow_module_level=True)


class Peer:
    """The VTN's process."""

    def __init__(self) -> None:
        self._port, self._seen = free_port(), 0
        self.url = f"http://127.0.0.1:{self._port}/OpenADR2/Simple/2.0b"
        self.start()

    def start(self) -> None:
        script = Path(__file__).parent / "openleadr_vtn.py"
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise AssertionError("the VTN ended")

    def __call__(self, *command: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def add(
        self, event_id: str, value: float, *, length_s: float = 3600, kind: str = "setpoint", required: str = "always"
    ) -> None:
        self("add", event_id, soon().isoformat(), length_s, kind, value, required)

    @property
    def opts(self) -> list[tuple[str, str]]:
        """What the VEN has answered since this was last read."""
        told = self("told")["opts"]
        new = told[self._seen :]
        self._seen = len(told)
        return [(event_id, opt) for event_id, opt in new]

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture(name="peer")
def peer_fixture() -> Iterator[Peer]:
    one = Peer()
    yield one
    one.end()


@pytest.fixture(name="site")
def site_fixture(peer: Peer) -> Iterator[Site2]:
    one = Site2(peer.url, PATIENT)
    yield one
    one.close()


def test_an_event_is_taken_modified_and_cancelled(peer: Peer, site: Site2) -> None:
    site.poll()
    assert (site.problem, site.ven.state().ven_id) == (None, "ven-17")
    assert 7.0 <= site.wait_s <= 7.7, "as often as the VTN says"
    peer.add("peak", 40)
    site.poll()
    assert (site.limits_kw, peer.opts) == ([40.0], [("peak", "optIn")])
    assert peer("change", "peak", 30) == 1
    site.poll()
    assert (site.limits_kw, peer.opts) == ([30.0], [("peak", "optIn")])
    peer("cancel", "peak")
    site.poll()
    assert (site.limits_kw, site.problem) == ([], None)
    assert peer("told")["events"] == 0, "the VTN has our answer to its cancelling"


def test_two_events_and_one_that_is_left_out_without_a_word(peer: Peer, site: Site2) -> None:
    peer.add("a", 40)
    peer.add("b", -60, kind="delta")
    site.poll()
    assert (site.limits_kw, sorted(peer.opts)) == ([40.0, 140.0], [("a", "optIn"), ("b", "optIn")])
    peer("drop", "a")
    site.poll()
    assert site.limits_kw == [40.0, 140.0], "one list without it is not yet a release"
    site.poll(2, apart_s=60)
    assert site.limits_kw == [140.0]


def test_a_duration_of_zero_lasts_until_it_is_cancelled(peer: Peer, site: Site2) -> None:
    peer.add("open", 40, length_s=0)
    site.poll()
    site.clock.s += 30 * 3600
    assert site.limits_kw == [40.0]


def test_the_operators_opt_out_reaches_the_vtn(peer: Peer, site: Site2) -> None:
    peer.add("peak", 40)
    peer.add("quiet", 50, required="never")
    site.poll()
    assert peer.opts == [("peak", "optIn")], "and no answer where none is wanted"
    peer("change", "peak", 35)
    site.opt_out("peak", "a customer's deadline")
    site.opt_out("quiet", "so too")
    site.poll()
    assert peer.opts == [("peak", "optOut")]


def test_reports_are_offered_asked_for_and_sent(peer: Peer, site: Site2) -> None:
    site.poll()
    assert (site.ven.report(), site.ven.state().reports_waiting) == (pytest.approx(120, abs=5), 1)
    site.clock.s += 121
    site.ven.report()
    told = {measurement: values for _, measurement, values in peer("told")["reported"]}
    assert {name: [value for _, value in values] for name, values in told.items()} == {
        "RealPower": [80.0, 80.0],
        "RealEnergy": [pytest.approx(50 / 60), pytest.approx(50 / 60)],
    }
    assert site.ven.state().reports_sent == 1 and site.ven.state().report_problem is None


def test_a_vtn_that_restarts_knows_us_again_and_gets_its_reports(peer: Peer, site: Site2) -> None:
    peer.add("peak", 40)
    site.poll()
    peer.end()
    site.poll()
    assert site.problem is not None and site.limits_kw == [40.0]
    peer.start()  # at the same place, with nothing remembered
    site.poll(12)
    assert (site.problem, site.limits_kw) == (None, [40.0]), "it has lost the event, and that is no release"
    site.clock.s += 121
    site.ven.report()
    assert peer("told")["reported"] and site.ven.state().reports_waiting == 1
