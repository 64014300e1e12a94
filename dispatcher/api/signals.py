"""The regions' prices, carbon intensities and grid loads over HTTP: where each stands now and why, and one on the planner's
slots.

It reads the last snapshot and how the sources stood; it asks no source, and tells nothing of a source's options.
"""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api import views
from dispatcher.api.answers import json_response
from dispatcher.api.services import Services
from dispatcher.config import RegionConfig
from dispatcher.config_sections import SIGNALS
from dispatcher.errors import BadInput, NotFound
from dispatcher.signal_book import ChainStatus
from policies.world import RegionView
from signals.series import SlotSeries


class SignalsApi:
    """``GET /v1/signals``."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def get(self, request: Request) -> Response:
        """Every region's price and carbon now, and its grid's load where a source of it is configured, with all sources and why
        one was chosen. With ``?region=R&kind=price|carbon|load`` it is one of them on the planner's slots, with the 10 and 90 %
        quantiles of what is our forecast; 404 where there is none.
        """
        query = request.query_params
        if "region" in query or "kind" in query:
            return json_response(self._one(query.get("region", ""), query.get("kind", "")))
        regions, chains = self._services.config.regions, self._chains()
        views_by_name = self._views()
        return json_response(
            {
                "signals": [
                    self._present(region, kind, views_by_name, chains)
                    for region in regions
                    for kind in SIGNALS
                    if kind != "load" or region.load
                ]
            }
        )

    def _views(self) -> dict[str, RegionView]:
        return {view.name: view for view in self._services.snapshot().world.regions}

    def _chains(self) -> dict[tuple[str, str], ChainStatus]:
        return {(chain.region, chain.what): chain for chain in self._services.signal_chains(self._services.clock.now())}

    def _one(self, name: str, kind: str) -> dict[str, Any]:
        views_by_name, chains = self._views(), self._chains()
        regions = {region.name: region for region in self._services.config.regions}
        problems: list[tuple[str, object, str]] = []
        if kind not in SIGNALS:
            problems.append(("kind", kind, "must be price, carbon or load"))
        if name not in views_by_name or name not in regions:
            problems.append(("region", name, "must be one of " + (", ".join(views_by_name) or "the configured regions")))
        if problems:
            raise BadInput(problems)
        series = self._series(views_by_name[name], kind)
        present = self._present(regions[name], kind, views_by_name, chains)
        if series is None:
            raise NotFound(f"region {name} has no {kind} signal (yet): {present['why']}")
        return {**present, **views.slots_json(series)}

    def _present(
        self,
        region: RegionConfig,
        kind: str,
        views_by_name: Mapping[str, RegionView],
        chains: Mapping[tuple[str, str], ChainStatus],
    ) -> dict[str, Any]:
        """How a region's signal stands; unknown where nothing is known, and never left out."""
        view, chain = views_by_name.get(region.name), chains.get((region.name, kind))
        now = views.now_json(self._series(view, kind) if view is not None else None, self._services.clock.now())
        return {
            "region": region.name,
            "kind": kind,
            "signal": chain.kind if chain is not None else region.signal_kind(kind),
            **(now or {"unit": None, "source": None, "now": None, "basis": "unknown", "low": None, "high": None}),
            "why": chain.why if chain is not None else "not asked yet" if region.chain(kind) else "no source is configured",
            "sources": [views.source_json(source) for source in chain.sources] if chain is not None else [],
        }

    def _series(self, view: RegionView, kind: str) -> SlotSeries | None:
        """As it was planned with; load, which no plan reads, as it is now."""
        if kind == "load":
            return self._services.signal_series(view.name, kind)
        return view.price if kind == "price" else view.carbon
