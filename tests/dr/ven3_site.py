"""A VEN with a real intake beside a VTN, polled by the test; what tests of OpenADR 3 over HTTP share."""

import functools
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.ledger import Ledger
from dispatcher.dr.ven3 import Ven3
from dispatcher.dr.ven3_reports import Reading
from dispatcher.dr.vtn_client import Limits, VtnClient
from dispatcher.store import Store
from dispatcher.store.memory import MemoryStore
from tests.api.fake import REGIONS
from tests.dr.vtn3 import Schemas, Vtn

DATA = Path(os.environ.get("GRIDSHIFT_DATA", Path(__file__).parents[3] / "shared" / "data"))
#: Short, so that a VTN which never answers costs a test half a second.
LIMITS = Limits(connect_s=0.5, read_s=0.5, total_s=2.0, max_bytes=1 << 20)


class Ahead:
    """The machine's clock, and as many seconds more as a test says."""

    speed = 1.0

    def __init__(self) -> None:
        self.s = 0.0

    def now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self.s)


class Known:
    """Readings of a site that draws 50 kW, by a meter that is as complete as a test says."""

    def __init__(self) -> None:
        self.coverage: float | None = 1.0

    def draw(self, source: str, start: datetime, end: datetime) -> Reading | None:
        return None if self.coverage is None else Reading(50_000.0, self.coverage)

    def baseline(self, source: str, event_id: str, start: datetime, end: datetime) -> Reading | None:
        return Reading(80_000.0)

    def shed_available_w(self, source: str, start: datetime, end: datetime) -> float | None:
        return 12_000.0

    def operating_state(self, source: str, event_id: str, start: datetime, end: datetime) -> str | None:
        return "RUNNING_CURTAILED"


class Site:
    """A VEN with a real intake, beside a VTN; polled by the test."""

    def __init__(self, vtn: Vtn, monkeypatch: pytest.MonkeyPatch, **source: Any) -> None:
        monkeypatch.setenv("VEN_SECRET", vtn.secret)
        self.vtn, self.clock, self.ahead_s = vtn, Ahead(), 0.0
        table = {"name": "utility", "protocol": "openadr-3.1" if vtn.version == "3.1" else "openadr-3.0", "region": "north"}
        table |= {"url": vtn.url, "client_id": "ven-1", "client_secret_env": "VEN_SECRET", "ven_name": "hall-9", **source}
        self.config = Config(**{"region": REGIONS, "event_source": [table]})
        self.store: Store = MemoryStore()
        self.readings = Known()
        self.start()

    def start(self) -> Ven3:
        """A control plane that starts, with what the store holds."""
        source = self.config.event_sources[0]
        self.intake = EventIntake(self.config, self.store, self.clock, load=lambda region, branch: None, nudge=lambda: None)
        self.client = VtnClient(source, now=self.clock.now, limits=LIMITS, monotonic=lambda: now_s() + self.ahead_s)
        self.ven = Ven3(
            source, self.intake, self.store, self.clock, callback_token="tok", readings=self.readings, client=self.client
        )
        return self.ven

    def later(self, seconds: float) -> None:
        """So much later, for both sides."""
        self.clock.s += seconds
        self.vtn.faults.skew_s += seconds

    def poll(self, times: int = 1) -> None:
        for number in range(times):
            self.later(10 if number else 0)
            self.ven.poll()

    @property
    def limits_kw(self) -> list[float]:
        """The limits that are held from now on."""
        return limits_kw(self.intake.held("utility"), self.clock.now())

    @property
    def alarms(self) -> str:
        return "\n".join(sentence for _, _, sentence in self.ven.alarms(self.clock.now()))


def limits_kw(held: Ledger, now: datetime) -> list[float]:
    """The limits of events that are held, from now on, the lowest first."""
    events = [event for event in held.values() if not event.cancelled]
    return sorted(s.limit_w / 1e3 for event in events for s in event.segments if s.end is None or s.end > now)


def now_s() -> float:
    return datetime.now(UTC).timestamp()


@functools.cache
def official(version: str) -> Schemas | None:
    """The schemas of a version, read once; None where their folder is absent."""
    return Schemas(DATA, version) if (DATA / "openadr3").is_dir() else None


@pytest.fixture(name="vtn", params=["3.1", "3.0.1"])
def vtn_fixture(request: pytest.FixtureRequest) -> Iterator[Vtn]:
    """A VTN of each version; what does not fit the official schema fails the test."""
    schemas = official(request.param)
    with Vtn(request.param, schemas) as running:
        yield running
        assert running.problems == []


@pytest.fixture(name="site")
def site_fixture(vtn: Vtn, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A VEN beside it."""
    one = Site(vtn, monkeypatch)
    yield one
    one.client.close()


def soon(minutes: float = 10) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=minutes)
