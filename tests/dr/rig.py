"""The intake of events around a store and a clock that a test moves, as the control plane puts it together."""

from datetime import datetime, timedelta
from typing import Any

from dispatcher.clock import VirtualClock
from dispatcher.config import Config
from dispatcher.dr import openadr3
from dispatcher.dr.budgets import budgets_of
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.model import Answer, DrEvent
from dispatcher.store import GridEvent, Store
from dispatcher.store.memory import MemoryStore
from policies.world import Budget
from tests.dr.dr_events import NOW

REGION = {"name": "north", "address": "http://127.0.0.1:1", "branch": [{"name": "rack-1"}]}


def source(name: str = "utility", **more: Any) -> dict[str, Any]:
    """An ``[[event_source]]`` with the terms that the other tests use."""
    terms = {
        "reference_w": 200_000.0,
        "serving_floor_w": 40_000.0,
        "simple_levels": {"1": "-10% of baseline", "2": "-25% of baseline", "3": "cap = serving_floor_w"},
        "relative_sign": "positive value = reduce by",
    }
    return {"name": name, "protocol": "openadr-3.1", "region": "north", "url": "https://vtn.example", **terms, **more}


class Rig:
    """See the module. ``sources`` are tables of the configuration."""

    def __init__(self, *sources: dict[str, Any], store: Store | None = None, now: datetime = NOW) -> None:
        self.config = Config(**{"region": [REGION], "event_source": list(sources) or [source()]})
        self.clock = VirtualClock(now)
        self.store: Store = store or MemoryStore()
        self.load_w: float | None = None
        self.draws = [0.5, -0.25]
        self.nudges = 0
        self.intake = self.started()

    def started(self) -> EventIntake:
        """An intake as a control plane that starts makes it."""
        self.intake = EventIntake(
            self.config,
            self.store,
            self.clock,
            load=lambda region, branch: self.load_w,
            nudge=self._nudged,
            draw=lambda: self.draws.pop(0) if self.draws else 0.0,
        )
        return self.intake

    def _nudged(self) -> None:
        self.nudges += 1

    def tell(self, data: Any, name: str = "utility", *, complete: bool = False) -> list[Answer]:
        """Read an OpenADR 3 message as it would come now, and take it."""
        dialect = openadr3.V30 if self.config_of(name).protocol == "openadr-3.0" else openadr3.V31
        message = openadr3.read(data, dialect, self.intake.context(name))
        return self.intake.take(name, message, complete_listing=complete, raw=str(data))

    def config_of(self, name: str) -> Any:
        """A source's section."""
        return next(one for one in self.config.event_sources if one.name == name)

    def gone(self, event_id: str, name: str = "utility") -> list[Answer]:
        """What a VEN hands in when the sender says 404."""
        held = self.intake.held(name)[event_id]
        event = DrEvent(None, event_id, held.version, self.clock.now(), cancelled=True, final=True, polled=True)
        return self.intake.take(name, openadr3.Message((event,)))

    def stored(self, event_id: str = "evt-1", name: str = "utility") -> GridEvent:
        """One event as the store has it."""
        found = self.store.grid_event(name, event_id)
        assert found is not None
        return found

    def history(self, event_id: str = "evt-1", name: str = "utility") -> list[str]:
        """What happened to an event, in words."""
        return [line.what for line in self.store.grid_event_changes(name, event_id)]

    def budgets(self) -> list[Budget]:
        """What binds from now on."""
        now, sources = self.clock.now(), {one.name: one for one in self.config.event_sources}
        return sorted(budgets_of(self.store.grid_events(ended_after=now), sources, now), key=lambda b: (b.start, b.limit_w))

    def limit_w(self) -> float | None:
        """The limit on the site in force now: the strictest."""
        now = self.clock.now()
        return min((b.limit_w for b in self.budgets() if b.start <= now and (b.end is None or now < b.end)), default=None)

    def at(self, hhmm: str) -> None:
        """Move to a time of the day."""
        hours, minutes = hhmm.split(":")
        self.clock.move_to(NOW.replace(hour=0) + timedelta(hours=int(hours), minutes=int(minutes)))

    def alarms(self) -> list[str]:
        """What an operator is told."""
        return [sentence for _, _, sentence in self.intake.alarms(self.clock.now())]
