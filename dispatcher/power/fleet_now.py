"""The fleet as it is this moment, and what is remembered of it: between the hub, the book of energy and whoever asks.

It decides nothing. Agents and meters run by the wall's clock, so this does too, whatever time is replayed.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from dispatcher.clock import Clock, SystemClock, always
from dispatcher.config import Config
from dispatcher.power.energy import EnergyBook, KnownNode
from dispatcher.power.fleet import Fleet, fleet_of, known_of
from dispatcher.power.hub import Hub

#: Between two rounds of summing up and dropping old energy.
THIN_AGAIN = timedelta(hours=1)
#: Between two notes of a node of which nothing changed but when it was heard.
NOTE_AGAIN = timedelta(minutes=1)


class FleetNow:
    """See the module. ``view`` may be called from any thread, ``keep`` runs in one loop. Making it reads the database, and may
    raise StoreUnavailable."""

    def __init__(
        self,
        config: Config,
        hub: Hub,
        book: EnergyBook,
        clock: Clock | None = None,
        steady: Callable[[datetime], bool] = always,
    ) -> None:
        """``steady`` tells whether old energy may be dropped by a time (see clock.Steady)."""
        self._hub, self._book, self._clock, self._steady = hub, book, clock or SystemClock(), steady
        self._known = book.known_nodes()  # of an earlier control plane; what is heard since is the hub's to tell
        self._regions = [region.name for region in config.regions]
        self._limits = {
            (region.name, branch.name): branch.power_limit_w
            for region in config.regions
            for branch in region.branches
            if branch.power_limit_w
        }
        self._thinned_at: datetime | None = None
        self._noted: dict[str, KnownNode] = {}

    def view(self) -> Fleet:
        """What every GPU draws now, as far as it is heard."""
        return fleet_of(self._hub.nodes(), self._known, self._regions, self._limits, self._clock.now())

    def keep(self, _: datetime) -> None:
        """Remember the nodes that are heard, and sum up and drop energy that is old enough."""
        now = self._clock.now()
        heard = [known_of(node) for node in self._hub.nodes() if node.connected]
        news = [node for node in heard if self._is_news(node)]
        if news:
            self._book.note_nodes(news)
            self._noted |= {node.node_id: node for node in news}
        due = self._thinned_at is None or abs(now - self._thinned_at) >= THIN_AGAIN
        if due and self._steady(now):
            self._book.thin(now)
            self._thinned_at = now

    def _is_news(self, node: KnownNode) -> bool:
        noted = self._noted.get(node.node_id)
        return (
            noted is None
            or node.last_seen_at - noted.last_seen_at >= NOTE_AGAIN
            or replace(node, last_seen_at=noted.last_seen_at) != noted
        )
