"""What energy costs at a site while a job runs there, and how a placement says so beside what starting at once would pay.

The price is the site's own, of a MWh at the meter, weighted by the energy that the run draws; PUE, moving and restarting are in
a placement's cost and not in it. Where carbon has a price it counts; where plans go by carbon alone, its intensity is told.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from policies.grid import Floats, Grid, Lane, running_at
from policies.sentences import rates
from policies.world import Settings

Spans = Sequence[tuple[float, float]]
"""Runs, seconds from the grid's first moment; the draw is the same in all of them."""


class SitePrices:
    """The prices of all sites over runs, and their sentences. ``lanes`` are never changed."""

    def __init__(self, lanes: Mapping[str, Lane], grid: Grid, settings: Settings) -> None:
        self._lanes, self._grid, self._settings = lanes, grid, settings
        self._tables: dict[str, tuple[Floats, Floats]] = {}

    def over(self, region: str, spans: Spans) -> float | None:
        """The price over these runs: planning currency per MWh, carbon at its price included; gCO2e/kWh where plans go by
        carbon alone. None where part of it is not known."""
        integral, unknown = self._table(region)
        edges = self._grid.edges
        total = missing = seconds = 0.0
        for begin, end in spans:
            total += running_at(edges, integral, end, beyond=True) - running_at(edges, integral, begin, beyond=True)
            missing += running_at(edges, unknown, end, beyond=True) - running_at(edges, unknown, begin, beyond=True)
            seconds += end - begin
        return total / seconds if seconds > 0 and missing <= 1e-6 else None

    def told(self, region: str, spans: Spans, home: str | None = None, at_once: Spans = ()) -> str:
        """ "energy at 20 EUR/MWh against 80 for starting at once in a"; without what is not known, or not asked for."""
        ours = self.over(region, spans)
        if ours is None:
            return "energy at an unknown price"
        settings = self._settings
        unit = f"{settings.currency}/MWh"
        if settings.price_weight == 0:
            unit = "gCO2e/kWh"
        elif settings.carbon_price > 0:
            unit += f" with carbon at {settings.carbon_price:g} {settings.currency}/t"
        theirs = self.over(home, at_once) if home is not None and at_once else None
        if theirs is None:
            return f"energy at {rates(ours, ours)[0]} {unit}"
        one, other = rates(ours, theirs)
        here = there = ""
        pues = self._lanes[region].view.pue, self._lanes[home or region].view.pue
        if pues[0] != pues[1]:  # then the dearer kWh may be the cheaper run
            here, there = (f" (PUE {pue:g})" for pue in pues)
        return f"energy at {one} {unit}{here} against {other}{there} for starting at once in {home}"

    def _table(self, region: str) -> tuple[Floats, Floats]:
        """Running integrals over the edges: of the price (unit x s), and of the seconds in which it is not known."""
        if region not in self._tables:
            lane, settings = self._lanes[region], self._settings
            per_mwh = lane.carbon if settings.price_weight == 0 else lane.price * lane.view.fx
            if settings.price_weight != 0 and settings.carbon_price > 0:
                per_mwh = per_mwh + lane.carbon * settings.carbon_price / 1000.0
            lengths, unknown = self._grid.lengths, np.isnan(per_mwh)
            self._tables[region] = (
                np.concatenate(([0.0], np.cumsum(np.where(unknown, 0.0, per_mwh) * lengths))),
                np.concatenate(([0.0], np.cumsum(unknown * lengths))),
            )
        return self._tables[region]
