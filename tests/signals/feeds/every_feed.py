"""Every feed there is, options with which it could be asked live, and good answers: what the contract test goes over."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import signals.feeds
from signals.feeds.base import Feed
from signals.points import Kind

Sample = tuple[bytes, Kind, dict[str, Any]]

#: Name -> feed, of every file in signals/feeds that holds one.
ALL: dict[str, Feed] = {}
#: Name -> name of its file.
FILES: dict[str, str] = {}
for _file in sorted(module.name for module in pkgutil.iter_modules(signals.feeds.__path__)):
    _feed = getattr(importlib.import_module(f"signals.feeds.{_file}"), "FEED", None)
    if isinstance(_feed, Feed):
        ALL[_feed.name] = _feed
        FILES[_feed.name] = _file

#: Feeds that read nothing: they make their values.
SELF_MADE = frozenset({"synthetic"})
HTTP_OPTIONS = {
    "url": "https://example.org/prices?from={start}&to={end}",
    "kind": "price",
    "format": "json",
    "rows": "rows",
    "time": "at",
    "value": "v",
    "unit": "EUR/MWh",
}
#: Options, without secrets, that are right for asking live.
LIVE: dict[str, dict[str, Any]] = {
    "aemo": {"region_id": "SA1"},
    "awattar": {"country": "de"},
    "caiso": {"node": "TH_NP15_GEN-APND"},
    "carbon_aware_sdk": {"base_url": "http://sdk.example.org:8080", "location": "westeurope", "signal": "average"},
    "csv": {"file": str(Path(__file__))},
    "eia": {"respondent": "CISO"},
    "electricitymaps": {"zone": "DE"},
    "elering": {"area": "ee"},
    "energidataservice": {"price_area": "DK1"},
    "energy_charts": {"bzn": "DE-LU"},
    "energyzero": {},
    "entsoe": {"zone": "DE_LU"},
    "gb_carbon": {},
    "gridstatus": {"iso": "CAISO", "location": "TH_NP15_GEN-APND"},
    "http": HTTP_OPTIONS,
    "nyiso": {"zone": "WEST"},
    "octopus_agile": {"product": "AGILE-24-10-01", "gsp": "C"},
    "openelectricity": {"network_region": "SA1"},
    "ote": {},
    "pjm": {"pnode_id": 51288},
    "synthetic": {},
    "watttime": {"region": "CAISO_NORTH"},
}


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _maps(hour: int, value: float) -> dict[str, Any]:
    row = {"zone": "DE", "carbonIntensity": value, "datetime": f"2026-02-28T{hour:02d}:00:00.000Z"}
    return row | {"updatedAt": "2026-02-28T23:00:00.000Z", "emissionFactorType": "lifecycle", "isEstimated": False}


def _moer(units: str, signal: str) -> bytes:
    meta = {"data_point_period_seconds": 300, "region": "CAISO_NORTH", "signal_type": signal, "units": units, "warnings": []}
    rows = [{"point_time": f"2026-02-28T00:{minute:02d}:00+00:00", "value": 50 + minute} for minute in (0, 5)]
    return _json({"data": rows, "meta": meta})


def _rate(hour: int, value: float) -> dict[str, Any]:
    span = {"valid_from": f"2026-02-28T{hour:02d}:00:00Z", "valid_to": f"2026-02-28T{hour:02d}:30:00Z"}
    return span | {"value_exc_vat": value, "value_inc_vat": value * 1.05, "payment_method": None}


def _nem(metric: str, unit: str) -> bytes:
    rows = [["2026-02-28T10:05:00+10:00", 50.5], ["2026-02-28T10:10:00+10:00", 0]]
    results = [{"name": f"{metric}_SA1", "columns": {"region": "SA1"}, "data": rows}]
    head = {"network_code": "NEM", "metric": metric, "unit": unit, "interval": "5m", "network_timezone_offset": "+10:00"}
    return _json({"version": "4", "success": True, "data": [head | {"groupings": ["network_region"], "results": results}]})


_AEMO = (
    "REGION,SETTLEMENTDATE,TOTALDEMAND,RRP,PERIODTYPE\r\n"
    "SA1,2026/02/28 10:05:00,1200.5,-63.45,TRADE\r\nSA1,2026/02/28 10:10:00,1210,0,TRADE\r\n"
)
_CSV = (
    "Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO₂eq/kWh (direct),Carbon intensity gCO₂eq/kWh (Life cycle)\n"
    "2026-02-28 00:00:00,Sweden,Sweden,SE,20.5,40.5\n2026-02-28 01:00:00,Sweden,Sweden,SE,21.5,41.5\n"
)
#: Good answers of feeds whose own test file offers none.
MORE_SAMPLES: dict[str, list[Sample]] = {
    "aemo": [(_AEMO.encode(), Kind.PRICE, {}), (_AEMO.encode(), Kind.LOAD, {})],
    "csv": [(_CSV.encode(), Kind.CARBON_AVERAGE, {})],
    "electricitymaps": [(_json({"zone": "DE", "history": [_maps(0, 300), _maps(1, 310.5)]}), Kind.CARBON_AVERAGE, {})],
    "http": [
        (
            _json({"rows": [{"at": "2026-02-28T00:00Z", "v": 5.5}, {"at": "2026-02-28T01:00Z", "v": 0}]}),
            Kind.PRICE,
            HTTP_OPTIONS,
        )
    ],
    "octopus_agile": [(_json({"count": 2, "next": None, "results": [_rate(1, -3.15), _rate(0, 17.22)]}), Kind.PRICE, {})],
    "openelectricity": [(_nem("price", "$/MWh"), Kind.PRICE, {}), (_nem("demand", "MW"), Kind.LOAD, {})],
    "synthetic": [(b"", Kind.PRICE, {}), (b"", Kind.CARBON_AVERAGE, {})],
    "watttime": [
        (_moer("lbs_co2_per_mwh", "co2_moer"), Kind.CARBON_MARGINAL, {}),
        (_moer("percentile", "co2_moer"), Kind.CARBON_RANK, {}),
    ],
}


def samples_of(name: str) -> list[Sample]:
    """Good answers of a feed: those that its own test file offers as SAMPLES, else those above."""
    try:
        tests = importlib.import_module(f"tests.signals.feeds.test_{FILES[name]}")
    except ModuleNotFoundError:
        try:
            tests = importlib.import_module(f"tests.signals.feeds.test_{name}")
        except ModuleNotFoundError:
            tests = None
    return list(getattr(tests, "SAMPLES", MORE_SAMPLES.get(name, [])))
