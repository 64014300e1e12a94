"""All VENs of a configuration, together: those of OpenADR 3, and those of 2.0b, which nobody calls back."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from dispatcher.clock import Clock
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.ven import Settings
from dispatcher.dr.ven2 import Intake2, Ven2
from dispatcher.dr.ven3 import Ven3
from dispatcher.dr.ven3_reports import Readings
from dispatcher.dr.ven3_state import VenState


class Vens:
    """All VENs of a configuration: started and stopped together. Those that a VTN may call back are what it iterates over."""

    def __init__(self, vens: Sequence[Ven3] = (), polling: Sequence[Ven2] = ()) -> None:
        self._called: tuple[Ven3, ...] = tuple(vens)
        self._vens: tuple[Ven3 | Ven2, ...] = (*self._called, *polling)

    def __iter__(self) -> Iterator[Ven3]:
        return iter(self._called)

    def states(self) -> list[VenState]:
        """How each stands."""
        return [ven.state() for ven in self._vens]

    def start(self) -> None:
        """Start them all."""
        for ven in self._vens:
            ven.start()

    def stop(self) -> None:
        """Stop them all."""
        for ven in self._vens:
            ven.halt()
        for ven in self._vens:
            ven.stop()

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """The alarms of all."""
        for ven in self._vens:
            yield from ven.alarms(now)


def make_vens(
    sources: Sequence[EventSourceConfig],
    intake: Intake2,
    settings: Settings,
    clock: Clock,
    *,
    callback_token: Callable[[str], str],
    readings: Readings | None = None,
) -> Vens:
    """The VENs of the sources that speak OpenADR. Raises ConfigError, and StoreUnavailable."""
    return Vens(
        [
            Ven3(source, intake, settings, clock, callback_token=callback_token(source.name), readings=readings)
            for source in sources
            if source.protocol in ("openadr-3.1", "openadr-3.0")
        ],
        [Ven2(source, intake, settings, clock, readings=readings) for source in sources if source.protocol == "openadr-2.0b"],
    )
