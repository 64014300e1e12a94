"""The sections of gridshift.toml about power below the site: branches, nodes, meters, and the agents on the nodes.

Each section checks itself; `power_problems` checks what only all of a region's sections together tell. Powers in W.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from dispatcher.config_tariff import Name
from policies.durations import parse_duration

#: A branch is named in a node label, which sets the rule.
LABEL_VALUE = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_HOSTNAME = r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$"

BranchName = Annotated[str, StringConstraints(pattern=LABEL_VALUE)]
Scope = Literal["site", "branch", "cooling_zone"]
Unit = Literal["W", "kWh", "degC"]
Source = Literal["prometheus", "push", "csv"]

#: What each source of readings is told, and what it needs of that.
_SOURCE_KEYS: Mapping[Source, tuple[str, ...]] = {
    "prometheus": ("url", "query", "token_env", "token_file"),
    "push": (),
    "csv": ("path", "time_column", "value_column"),
}
_SOURCE_NEEDS: Mapping[Source, tuple[tuple[str, str], ...]] = {
    "prometheus": (("url", "the server's address"), ("query", "an expression with one value")),
    "push": (),
    "csv": (("path", "the file that the meter's logger writes"),),
}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


def _lasting(value: str) -> str:
    if parse_duration(value) <= 0:  # raises ValueError with the remedy
        raise ValueError("must be longer than nothing, such as '10s' or '35d'")
    return value


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Lasting = Annotated[str, AfterValidator(_lasting)]


class AgentsConfig(_Section):
    """``[agents]``: how the power agents get onto the nodes, when one counts as silent, and whether GPUs on which work of no
    job of ours runs are left uncapped by economic leases (False: such work is capped along with the job beside it)."""

    deploy: Literal["auto", "off"] = "auto"
    silent_after: Lasting = "10s"
    protect_foreign: bool = True

    _numbers = field_validator("silent_after", mode="before")(_number_as_text)

    @property
    def silent_after_s(self) -> float:
        """Seconds without a word after which a node's figures are unknown."""
        return parse_duration(self.silent_after)


class EnergyConfig(_Section):
    """``[energy]``: for how many days energy by the minute, energy by the hour and readings of meters are kept."""

    minutes_kept_days: float = Field(35, ge=2, le=3660)
    hours_kept_days: float = Field(1095, ge=2, le=36600)
    readings_kept_days: float = Field(1095, ge=2, le=36600)


class BranchConfig(_Section):
    """``[[region.branch]]``: a rack or PDU with a limit of its own (W that its GPUs draw, as its meter sees them: without
    cooling, so without PUE; 0 for none), and what cools it."""

    name: BranchName
    power_limit_w: float = Field(0.0, ge=0)
    cooling_zone: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$")


class NodeConfig(_Section):
    """``[[region.node]]``: which branch feeds a machine; the Ray node label ``gridshift.branch`` says the same."""

    hostname: Annotated[str, StringConstraints(pattern=_HOSTNAME)]
    branch: BranchName


def check_url(value: str, example: str) -> str:
    """An http URL without its last slash. Raises ValueError that shows the example."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be a URL such as {example}")
    if parts.username or parts.password:
        raise ValueError("must not carry a user or password; use token_env or token_file")
    return value.rstrip("/")


class MeterConfig(_Section):
    """``[[region.meter]]``: one meter or thermometer of the site, and where its readings come from.

    ``factor`` turns what the source says into ``unit`` (1000 for a source in kW). ``max_value`` and ``max_jump`` are in
    ``unit``, or in W for a kWh meter, whose energy is looked at as power; 0 means what `site_meters` assumes.
    """

    name: Name
    scope: Scope = "site"
    of: str = ""
    unit: Unit = "W"
    source: Source
    url: str = ""
    query: str = ""
    token_env: str = ""
    token_file: str = ""
    path: str = ""
    time_column: str = "time"
    value_column: str = "value"
    cadence_s: float = Field(60.0, ge=1, le=86400)
    delay_s: float = Field(0.0, ge=0, le=86400)
    counter: bool | None = None
    factor: float = Field(1.0, gt=0, le=1e9)
    max_value: float = Field(0.0, ge=0)
    max_jump: float = Field(0.0, ge=0)

    @property
    def cumulative(self) -> bool:
        """Whether it counts energy since some time past. A kWh meter does unless it says that it does not."""
        return self.unit == "kWh" if self.counter is None else self.counter

    @property
    def is_power(self) -> bool:
        """Whether it tells power, at once or by its energy, and not a temperature."""
        return self.unit != "degC"

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        url = check_url(value, "'http://prometheus:9090'") if value else ""
        if urlsplit(value).query or urlsplit(value).fragment:
            raise ValueError("must be the server's address alone; the expression goes into query")
        return url

    @model_validator(mode="after")
    def _fits_its_source(self) -> Self:
        for key, what in _SOURCE_NEEDS[self.source]:
            if not getattr(self, key):
                raise ValueError(f"a {self.source} meter needs {key}, {what}")
        known = {key for keys in _SOURCE_KEYS.values() for key in keys}
        given = {name for name in known if getattr(self, name) != type(self).model_fields[name].default}
        for key in sorted(given - set(_SOURCE_KEYS[self.source])):
            owner = next(source for source, keys in _SOURCE_KEYS.items() if key in keys)
            raise ValueError(f"{key} is for a {owner} meter; remove it, or set source = {owner!r}")
        if self.token_env and self.token_file:
            raise ValueError("give token_env or token_file, not both")
        if self.counter and self.unit != "kWh":
            raise ValueError(f"a counter counts kWh, not {self.unit}; set unit = 'kWh' (with factor = 0.001 for Wh)")
        if self.scope != "site" and not self.of:
            raise ValueError(f"a meter of a {self.scope} needs of, the name of that {self.scope}")
        return self


# --- what only a region's sections together tell ------------------------------------------------------------------

Problem = tuple[tuple[str | int, ...], str]


def power_problems(raw: Mapping[str, Any], i: int) -> Iterator[Problem]:
    """What is wrong among the raw tables of ``region[i]``, with the key and a remedy. Values of a wrong type are left to their
    own sections."""
    branches = _texts(raw, "branch", "name")
    zones = {zone for _, zone in _texts(raw, "branch", "cooling_zone") if zone}
    names = {name for _, name in branches}
    for table, key in (("branch", "name"), ("node", "hostname"), ("meter", "name"), ("serving", "name")):
        seen: dict[str, int] = {}
        for j, name in _texts(raw, table, key):
            if seen.setdefault(name.lower() if table == "node" else name, j) != j:
                what = f"{name!r} is used by {table}[{seen.get(name, seen.get(name.lower()))}] of this region already"
                yield ("region", i, table, j, key), f"{what}; names must differ"
    for table in ("node", "serving"):
        for j, branch in _texts(raw, table, "branch"):
            if branch not in names:
                yield ("region", i, table, j, "branch"), _undeclared(branch, names)
    for j, branch in _texts(raw, "gpu_pool", "branch"):
        if branch and names and branch not in names:
            yield ("region", i, "gpu_pool", j, "branch"), _undeclared(branch, names)
    measured: dict[tuple[str, str], int] = {}
    for j, meter in _tables(raw, "meter"):
        scope, of = meter.get("scope", "site"), meter.get("of", "")
        if not isinstance(scope, str) or not isinstance(of, str):
            continue
        where = ("region", i, "meter", j)
        if scope == "branch" and of and of not in names:
            yield (*where, "of"), _undeclared(of, names)
        if scope == "cooling_zone" and of and of not in zones:
            known = ", ".join(sorted(zones)) or "none"
            yield (*where, "of"), f"{of!r} is not the cooling_zone of a [[region.branch]]; known are: {known}"
        if scope == "site" and of and of != raw.get("name"):
            yield (*where, "of"), f"{of!r} is not this region; leave of out for a meter of the whole site"
        if meter.get("unit", "W") != "degC":
            place = (scope, "" if scope == "site" else of)
            if measured.setdefault(place, j) != j:
                what = f"meter[{measured[place]}] measures the power of this {scope.replace('_', ' ')} already"
                remedy = "keep one of all of it (a query can add up feeds, a gateway can push their sum), or name another scope"
                yield (*where, "scope"), f"{what}; {remedy}"


def _undeclared(branch: str, names: set[str]) -> str:
    known = f"known are: {', '.join(sorted(names))}" if names else f"add [[region.branch]] with name = {branch!r}"
    return f"{branch!r} is not a [[region.branch]] of this region; {known}"


def _tables(raw: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    entries = raw.get(key)
    return [(j, entry) for j, entry in enumerate(entries) if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _texts(raw: Mapping[str, Any], table: str, key: str) -> list[tuple[int, str]]:
    return [(j, entry[key]) for j, entry in _tables(raw, table) if isinstance(entry.get(key), str)]


def branch_of(nodes: list[NodeConfig], hostname: str) -> str | None:
    """The branch configured for a machine: by its full name, else by its first label; None when none is."""
    by_name = {node.hostname.lower(): node.branch for node in nodes}
    name = hostname.lower()
    return by_name.get(name) or by_name.get(re.split(r"\.", name, maxsplit=1)[0])
