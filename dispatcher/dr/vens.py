"""All OpenADR 3 VENs of a configuration, together."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from dispatcher.clock import Clock
from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.ven3 import Intake, Settings, Ven3
from dispatcher.dr.ven3_reports import Readings


class Vens:
    """All VENs of a configuration: started and stopped together, found by what a VTN shows."""

    def __init__(self, vens: Sequence[Ven3] = ()) -> None:
        self._vens = tuple(vens)

    def __iter__(self) -> Iterator[Ven3]:
        return iter(self._vens)

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
    intake: Intake,
    settings: Settings,
    clock: Clock,
    *,
    callback_token: Callable[[str], str],
    readings: Readings | None = None,
) -> Vens:
    """The VENs of the sources that speak OpenADR 3. Raises ConfigError."""
    return Vens(
        [
            Ven3(source, intake, settings, clock, callback_token=callback_token(source.name), readings=readings)
            for source in sources
            if source.protocol in ("openadr-3.1", "openadr-3.0")
        ]
    )
