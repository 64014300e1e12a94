"""An OpenADR 2.0b VEN with a real intake, polled by the test; what its tests share."""

from typing import Any

from dispatcher.config import Config
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.ven2 import Ven2
from dispatcher.dr.ven2_client import Vtn2Client
from dispatcher.dr.vtn_client import Limits
from dispatcher.store import GridEventChange
from dispatcher.store.memory import MemoryStore
from tests.api.fake import REGIONS
from tests.dr.ven3_site import Ahead, Known, limits_kw

#: Short, so that a VTN which never answers costs a test half a second.
LIMITS = Limits(connect_s=0.5, read_s=0.5, total_s=2.0, max_bytes=1 << 20)
#: A peer in a process of its own, on a busy machine.
PATIENT = Limits(connect_s=5.0, read_s=20.0, total_s=30.0, max_bytes=1 << 20)


class Site2:
    """See the module."""

    def __init__(self, url: str, limits: Limits = LIMITS, **source: Any) -> None:
        table = {"name": "utility", "protocol": "openadr-2.0b", "region": "north", "url": url, "ven_name": "hall-9"}
        table |= {"reference_w": 200_000.0, "power_unit": "kW", "response": "10min", **source}
        self.config = Config(**{"region": REGIONS, "event_source": [table]})
        self.clock, self.readings, self._limits = Ahead(), Known(), limits
        self.store = MemoryStore()
        self.start()

    def start(self) -> None:
        """A control plane that starts, with what the store holds."""
        source = self.config.event_sources[0]
        self.intake = EventIntake(self.config, self.store, self.clock, load=lambda region, branch: None, nudge=lambda: None)
        self.client = Vtn2Client(source, now=self.clock.now, limits=self._limits)
        self.ven = Ven2(source, self.intake, self.store, self.clock, readings=self.readings, client=self.client)

    def close(self) -> None:
        self.client.close()

    def poll(self, times: int = 1, apart_s: float = 10.0) -> None:
        for number in range(times):
            self.clock.s += apart_s if number else 0
            self.wait_s = self.ven.poll()

    def opt_out(self, event_id: str, reason: str | None) -> None:
        """As an operator does."""
        change = GridEventChange("utility", event_id, self.clock.now(), 1, "opted_out", reason or "")
        self.store.opt_out_grid_event(change, reason).result()

    @property
    def limits_kw(self) -> list[float]:
        """The limits that are held from now on."""
        return limits_kw(self.intake.held("utility"), self.clock.now())

    @property
    def alarms(self) -> str:
        return "\n".join(sentence for _, _, sentence in self.ven.alarms(self.clock.now()))

    @property
    def problem(self) -> str | None:
        return self.ven.state().problem
