"""The configuration: gridshift.toml and GRIDSHIFT_SECTION__KEY variables as checked values, all mistakes named at once.

It reads files and an environment that is handed to it; it knows nothing of databases, clusters or what a feed fetches.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from dispatcher.config_events import EventSourceConfig, event_source_problems
from dispatcher.config_example import EXAMPLE
from dispatcher.config_power import AgentsConfig, BranchConfig, EnergyConfig, MeterConfig, NodeConfig, power_problems
from dispatcher.config_programme import ProgrammeConfig, programme_problems
from dispatcher.config_sections import (
    SIGNALS,
    GpuPoolConfig,
    PlanningConfig,
    RegionConfig,
    ReplayConfig,
    ServerConfig,
    ShiftConfig,
    TeamConfig,
    WebhookConfig,
    checked_database_url,
    read_secret,
)
from dispatcher.config_serving import ServingConfig, SloConfig
from dispatcher.config_tariff import EnergyPeriodConfig, FeePeriodConfig, HoursConfig, TariffConfig
from dispatcher.config_text import Location, dotted, key_lines, line_of
from dispatcher.config_trigger import TriggerConfig, trigger_problems
from dispatcher.config_tuning import TuningConfig, TuningPointConfig
from dispatcher.errors import ConfigError
from dispatcher.shifts import shift_windows
from policies.world import Settings

__all__ = [
    "AgentsConfig",
    "BranchConfig",
    "Config",
    "EnergyConfig",
    "EventSourceConfig",
    "MeterConfig",
    "NodeConfig",
    "PlanningConfig",
    "ProgrammeConfig",
    "RegionConfig",
    "ReplayConfig",
    "ServerConfig",
    "ShiftConfig",
    "TeamConfig",
    "TriggerConfig",
    "WebhookConfig",
    "find",
    "load",
    "shift_windows",
    "write_example",
]

PREFIX = "GRIDSHIFT_"
FILE_NAME = "gridshift.toml"
#: Keys whose values never appear in a message.
_SECRET_KEY = re.compile(r"token|secret|password|api_?key|database_url", re.IGNORECASE)
#: Options of feeds that name files; relative ones are meant from the folder of the configuration file.
_FILE_OPTIONS = frozenset({"file", "files", "path"})

Problem = tuple[Location, str]


class Config(BaseSettings):
    """The whole configuration. Built by `load`; built directly it reads no environment and checks each section alone."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        populate_by_name=True,
        env_prefix=PREFIX,
        env_nested_delimiter="__",
    )

    server: ServerConfig = ServerConfig()
    planning: PlanningConfig = PlanningConfig()
    fx: dict[str, Annotated[float, Field(gt=0)]] = {}
    regions: list[RegionConfig] = Field([], alias="region")
    shifts: list[ShiftConfig] = Field([], alias="shift")
    teams: list[TeamConfig] = Field([], alias="team")
    webhooks: list[WebhookConfig] = Field([], alias="webhook")
    senders: list[EventSourceConfig] = Field([], alias="event_source")
    triggers: list[TriggerConfig] = Field([], alias="trigger")
    programmes: list[ProgrammeConfig] = Field([], alias="programme")
    agents: AgentsConfig = AgentsConfig()
    energy: EnergyConfig = EnergyConfig()
    replay: ReplayConfig | None = None

    _path: Path | None = PrivateAttr(None)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only `load` looks at an environment, and at the one it was given."""
        return (init_settings,)

    @property
    def event_sources(self) -> list[EventSourceConfig]:
        """All that events come from by their terms: the senders that are configured, and our own triggers."""
        return [*self.senders, *(trigger.source() for trigger in self.triggers)]

    @property
    def path(self) -> Path | None:
        """The file this was read from, None for the defaults."""
        return self._path

    @property
    def base_dir(self) -> Path:
        """What relative paths are relative to: the folder of the file, or the working directory without one."""
        return self._path.parent if self._path else Path.cwd()

    def region(self, name: str) -> RegionConfig:
        """The region of that name; KeyError for others."""
        return {region.name: region for region in self.regions}[name]

    def data_dir(self) -> Path:
        """Folder for everything the control plane keeps; absolute, may not exist yet."""
        return self.base_dir / Path(self.server.data_dir).expanduser()

    def make_data_dir(self) -> Path:
        """That folder, made where it is missing. It hides itself from those who package the folder that it lies in, as
        ``ray job submit --working-dir .`` does: it holds secrets, and all packages so far."""
        folder = self.data_dir()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in (".gitignore", ".rayignore"):
            if not (folder / name).exists():
                (folder / name).write_text("*\n", encoding="utf-8")
        return folder

    def database_url(self, environ: Mapping[str, str] | None = None) -> str:
        """SQLAlchemy URL of the database. Raises ConfigError when it is in a variable or file that is not there."""
        server = self.server
        environ = os.environ if environ is None else environ
        url = server.database_url.get_secret_value()
        if server.database_url_env or server.database_url_file:
            url = read_secret("server.database_url", server.database_url_env, server.database_url_file, environ) or ""
        try:
            url = checked_database_url(url)
        except ValueError as error:
            raise ConfigError(f"server.database_url: {error}") from error
        if not url:
            return f"sqlite:///{self.data_dir() / 'gridshift.db'}"
        if url.startswith("sqlite:///") and url != "sqlite:///:memory:":
            return f"sqlite:///{self.base_dir / url.removeprefix('sqlite:///')}"
        return url

    def public_url(self) -> str:
        """How jobs on the clusters reach the control plane."""
        return self.server.public_url or f"http://127.0.0.1:{self.server.port}"

    def checkpoint_root(self) -> Path:
        """Folder for jobs' checkpoints as regions see it, unless a region has its own."""
        return self.base_dir / self.server.checkpoint_root if self.server.checkpoint_root else self.data_dir() / "checkpoints"

    def fx_rate(self, currency: str) -> float:
        """What one unit of ``currency`` is in the planning currency. Raises ConfigError without a rate."""
        if currency == self.planning.currency:
            return 1.0
        try:
            return self.fx[currency]
        except KeyError:
            raise ConfigError(
                f"fx.{currency}: no rate to {self.planning.currency}; add '{currency} = ...' under [fx]"
            ) from None

    def planner_settings(self) -> Settings:
        """What policies need of ``[planning]``."""
        planning = self.planning
        return Settings(
            slot_s=planning.slot_minutes * 60,
            horizon_s=round(planning.horizon_hours * 3600),
            currency=planning.currency,
            carbon_price=planning.carbon_price_per_tonne,
            move_cost_per_gb=planning.move_cost_per_gb,
            move_gb_per_s=planning.move_gb_per_s,
            default_region=planning.default_region or (self.regions[0].name if self.regions else None),
            min_chunk_s=planning.min_chunk_s,
            launch_s=planning.launch_s,
            late_cost_per_h=planning.late_cost_per_h,
            runtime_slack=planning.runtime_slack,
            deadline_margin_s=planning.deadline_margin_s,
            policy=planning.policy,
            price_weight=planning.price_weight,
            daily_carbon_kg=planning.daily_carbon_kg or None,
            daily_cost=planning.daily_cost or None,
            teams=tuple(team.team() for team in self.teams),
        )


# --- reading ------------------------------------------------------------------------------------------------------


class _EnvironSource(EnvSettingsSource):
    """pydantic-settings' reading of variables, from a mapping instead of the process's own environment."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # Only names with a section: GRIDSHIFT_URL and others belong to clients and jobs.
        self._environ = {k.lower(): v for k, v in environ.items() if k.startswith(PREFIX) and "__" in k}
        super().__init__(Config)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._environ


def find(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Which file counts: ``path`` (--config), else $GRIDSHIFT_CONFIG, else ./gridshift.toml, else None for the defaults."""
    if path is not None:
        return path
    if named := environ.get(f"{PREFIX}CONFIG"):
        return Path(named)
    here = Path(FILE_NAME)
    return here if here.exists() else None


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Config:
    """Read and check the configuration. Raises ConfigError that names every problem, one a line, with file, line and remedy."""
    environ = os.environ if environ is None else environ
    file = find(path, environ)
    text = ""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}; 'gridshift init' writes one to start from") from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line = f":{where[1]}" if where else f":{text.count(chr(10)) + 1}"
        raise ConfigError(f"{file}{line}: not valid TOML: {error}") from error
    overrides, problems = _from_environ(environ)
    from_environ = {*_leaves(overrides), *(location for location, _ in problems)}
    _merge(raw, overrides)
    base = file.absolute().parent if file else Path.cwd()
    _make_paths_absolute(raw, base)
    problems += _cross_checks(raw)
    try:
        config = Config(**raw)
    except ValidationError as error:
        problems += _explain(error)
    if problems:
        raise ConfigError("\n".join(_lines(problems, file, text, from_environ)))
    config._path = file.absolute() if file else None
    return config


def _lines(problems: list[Problem], file: Path | None, text: str, from_environ: set[Location]) -> Iterator[str]:
    """Problems as lines, in the order of the file."""
    lines = key_lines(text)
    placed = []
    for location, what in dict.fromkeys(problems):
        line = line_of(lines, location)
        if location in from_environ or not lines:
            placed.append((0, f"environment {PREFIX}{'__'.join(map(str, location)).upper()}: {what}"))
        else:
            where = f"{file}:{line}" if line else f"{file}"
            placed.append((line or 0, f"{where}: {dotted(location)}: {what}" if location else f"{where}: {what}"))
    for _, sentence in sorted(placed, key=lambda item: item[0]):
        yield sentence


def _from_environ(environ: Mapping[str, str]) -> tuple[dict[str, Any], list[Problem]]:
    known = {name: field for name, field in Config.model_fields.items() if not field.alias}
    problems: list[Problem] = []
    for key in environ:
        if key.startswith(PREFIX) and "__" in key:
            section, *rest = key.removeprefix(PREFIX).lower().split("__")
            if section not in known:
                location: Location = (section, *rest)
                problems.append((location, f"no such section; {_closest(section, known)}"))
    values = _EnvironSource(environ)()
    fx = values.get("fx")
    if isinstance(fx, dict):
        values["fx"] = {currency.upper(): rate for currency, rate in fx.items()}
    return values, problems


def _leaves(values: Mapping[str, Any], prefix: Location = ()) -> Iterator[Location]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def _tables(raw: Mapping[str, Any], key: str) -> list[tuple[int, dict[str, Any]]]:
    """The well-formed entries of an array of tables; ill-formed ones are reported by their type."""
    entries = raw.get(key)
    return [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, dict)] if isinstance(entries, list) else []


def _feeds(raw: Mapping[str, Any]) -> Iterator[tuple[Location, dict[str, Any]]]:
    for i, region in _tables(raw, "region"):
        for kind in SIGNALS:
            for j, feed in _tables(region, kind):
                yield ("region", i, kind, j), feed


def _make_paths_absolute(raw: dict[str, Any], base: Path) -> None:
    def fix(table: Any, *keys: str) -> None:
        for key in keys:
            value = table.get(key) if isinstance(table, dict) else None
            if isinstance(value, str) and value and "://" not in value:
                table[key] = str(base / Path(value).expanduser())
            elif isinstance(value, list):
                table[key] = [str(base / Path(v).expanduser()) if isinstance(v, str) else v for v in value]

    fix(raw.get("server"), "data_dir", "database_url_file", "checkpoint_root")
    for _, region in _tables(raw, "region"):
        fix(region, "token_file")
        for _, meter in _tables(region, "meter"):
            fix(meter, "path", "token_file")
        for _, serving in _tables(region, "serving"):
            fix(serving, "token_file")
            fix(serving.get("tuning"), "token_file", "concurrency_token_file")
    for _, webhook in _tables(raw, "webhook"):
        fix(webhook, "secret_file", "secret_files")
    for _, source in _tables(raw, "event_source"):
        fix(source, *(key for key in source if isinstance(key, str) and key.endswith(("_file", "_files"))))
    for _, feed in _feeds(raw):
        fix(feed, *_FILE_OPTIONS, *(key for key in feed if isinstance(key, str) and key.endswith("_file")))


# --- checking -----------------------------------------------------------------------------------------------------


def _closest(word: str, known: Any) -> str:
    names = sorted({str(name) for name in known})
    near = difflib.get_close_matches(word, names, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(names)}" if names else "remove it"


def _place(address: Any) -> tuple[str, int | None] | None:
    """Host and port of a URL, as far as names tell that two are the same."""
    try:
        parts = urlsplit(address) if isinstance(address, str) else None
        if parts is None or not parts.hostname:
            return None
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname.rstrip(".")
        return host, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


def _amount(table: Mapping[str, Any], key: str) -> float | None:
    """A raw number, which is text where it comes from a variable; None for what is none."""
    try:
        return float(table[key])
    except (KeyError, TypeError, ValueError):
        return None


def _cross_checks(raw: Mapping[str, Any]) -> list[Problem]:
    """What no section can check alone; works on raw values so that these mistakes are named together with the others."""
    # Imported here, so that whoever only wants a section's model does not load every feed.
    from signals.feeds import FEEDS, validate_options
    from signals.points import Kind

    problems: list[Problem] = []
    names: list[str] = [region["name"] for _, region in _tables(raw, "region") if isinstance(region.get("name"), str)]
    for key, field in (("region", "name"), ("shift", "name"), ("team", "name"), ("webhook", "source")):
        seen: dict[str, int] = {}
        for i, entry in _tables(raw, key):
            name = entry.get(field)
            if isinstance(name, str) and seen.setdefault(name, i) != i:
                problems.append(((key, i, field), f"{name!r} is used by {key}[{seen[name]}] already; names must differ"))
    addresses: dict[tuple[str, int | None], int] = {}
    for i, region in _tables(raw, "region"):
        place = _place(region.get("address"))
        if place is not None and addresses.setdefault(place, i) != i:
            remedy = f"{region['address']!r} is the cluster of region[{addresses[place]}] already; its GPUs would count twice"
            problems.append((("region", i, "address"), remedy))
    ways: dict[tuple[Any, ...], int] = {}
    for i, shift in _tables(raw, "shift"):
        way = tuple(repr(shift.get(key, "UTC" if key == "timezone" else None)) for key in ("cron", "timezone", "from", "to"))
        ways[way] = i
        back = ways.get((*way[:2], way[3], way[2]))
        if back is not None and back != i:
            remedy = f"takes back what shift[{back}] moves at the same times; change one of the two"
            problems.append((("shift", i, "to"), remedy))
    for i, shift in _tables(raw, "shift"):
        for key in ("from", "to"):
            name = shift.get(key)
            if isinstance(name, str) and name not in names:
                problems.append((("shift", i, key), f"{name!r} is not a region; {_closest(name, names)}"))
        if shift.get("from") is not None and shift.get("from") == shift.get("to"):
            problems.append((("shift", i, "to"), "must be another region than 'from'"))
    planning = raw.get("planning")
    planning = planning if isinstance(planning, dict) else {}
    default = planning.get("default_region")
    if default and isinstance(default, str) and names and default not in names:
        problems.append((("planning", "default_region"), f"{default!r} is not a region; {_closest(default, names)}"))
    home, rates = planning.get("currency", "EUR"), raw.get("fx", {})

    def needs_rate(location: Location, currency: Any) -> None:
        if isinstance(currency, str) and currency != home and isinstance(rates, dict) and currency not in rates:
            remedy = f"{currency!r} differs from planning.currency {home!r}; add '{currency} = <rate>' under [fx]"
            problems.append((location, remedy))

    for i, region in _tables(raw, "region"):
        needs_rate(("region", i, "currency"), region.get("currency", "EUR"))
        tariff = region.get("tariff")
        if isinstance(tariff, dict):
            needs_rate(("region", i, "tariff", "currency"), tariff.get("currency"))
            if tariff.get("type") == "indexed" and not region.get("price"):
                remedy = "an indexed tariff follows a wholesale price; add [[region.price]], or use another type"
                problems.append((("region", i, "tariff", "type"), remedy))
    by_carbon = _amount(planning, "price_weight") == 0 and not _amount(planning, "carbon_price_per_tonne")
    if _amount(planning, "daily_carbon_kg") or by_carbon:
        key = "price_weight" if by_carbon else "daily_carbon_kg"
        for i, region in _tables(raw, "region"):
            if not region.get("carbon"):
                remedy = f"planning.{key} needs to know what each region's power emits; add [[region.carbon]], or remove {key}"
                problems.append((("region", i, "name"), f"{region.get('name')!r}: {remedy}"))
    kinds = {region.get("carbon_signal", "average") for _, region in _tables(raw, "region") if region.get("carbon")}
    if len(kinds) > 1 and (_amount(planning, "carbon_price_per_tonne") or by_carbon):
        remedy = "average and marginal carbon cannot be compared; use one for all regions, or plan without a carbon price"
        problems.append((("planning", "carbon_price_per_tonne"), remedy))
    for i, region in _tables(raw, "region"):
        problems += power_problems(region, i)
    problems += event_source_problems(raw)
    problems += trigger_problems(raw)
    problems += programme_problems(raw)
    for location, feed in _feeds(raw):
        name, region = feed.get("feed"), raw["region"][location[1]]
        if not isinstance(name, str):
            continue
        if name not in FEEDS:
            problems.append(((*location, "feed"), f"{name!r} is not a feed; {_closest(name, FEEDS)}"))
            continue
        kind = Kind.LOAD if location[2] == "load" else Kind.PRICE
        if location[2] == "carbon":
            kind = Kind.CARBON_MARGINAL if region.get("carbon_signal") == "marginal" else Kind.CARBON_AVERAGE
        elif location[2] == "price":
            implied = region.get("currency") if name == "csv" else "EUR"  # what feeds assume
            needs_rate((*location, "currency"), feed.get("currency", implied))
        for key, value, remedy in validate_options(name, feed, kind):
            shown = "" if _SECRET_KEY.search(key) or value is None else f"{value!r}: "
            problems.append(((*location, key), f"{shown}{remedy}"))
    return problems


def _explain(error: ValidationError) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        location, kind, value = item["loc"], item["type"], item["input"]
        if kind == "extra_forbidden":
            yield location, f"no such key; {_closest(str(location[-1]), _known_keys(location[:-1]))}"
        elif kind == "missing":
            owner = next(str(part) for part in reversed(location[:-1]) if isinstance(part, str)) if location[:-1] else "file"
            owner = f"every {owner}" if len(location) <= 3 else f"a {owner}"
            yield location, f"missing; {owner} needs it"
        else:
            message = item["msg"].removeprefix("Value error, ").replace("Input should be ", "must be ")
            message = message.replace("Input should have timezone info", "must have an offset, such as 2023-05-01T00:00Z")
            message = message.replace("String should match pattern", "must match")
            hidden = isinstance(value, dict | list) or any(_SECRET_KEY.search(str(part)) for part in location)
            hidden = hidden or (isinstance(value, str) and re.search(r"://[^/]*@", value) is not None)
            shown = "" if hidden else f"{value}: " if isinstance(value, datetime) else f"{value!r}: "
            yield location, f"{shown}{message}"


def _known_keys(location: Location) -> list[str]:
    model: type[BaseModel] = Config
    children: dict[str, type[BaseModel]] = {
        "server": ServerConfig,
        "planning": PlanningConfig,
        "region": RegionConfig,
        "shift": ShiftConfig,
        "team": TeamConfig,
        "webhook": WebhookConfig,
        "event_source": EventSourceConfig,
        "trigger": TriggerConfig,
        "programme": ProgrammeConfig,
        "agents": AgentsConfig,
        "energy": EnergyConfig,
        "replay": ReplayConfig,
    }
    of_region: dict[str, type[BaseModel]] = {
        "gpu_pool": GpuPoolConfig,
        "branch": BranchConfig,
        "node": NodeConfig,
        "meter": MeterConfig,
        "serving": ServingConfig,
    }
    tariffs: dict[str, type[BaseModel]] = {
        "tariff": TariffConfig,
        "period": EnergyPeriodConfig,
        "grid_fee": FeePeriodConfig,
        "demand_window": HoursConfig,
    }
    if location:
        model = children.get(str(location[0]), Config)
    if location[2:3] and location[2] in of_region:
        model = of_region[str(location[2])]
    if location[2:3] == ("serving",) and "slo" in location:
        model = SloConfig
    if location[2:3] == ("serving",) and "tuning" in location:
        model = TuningPointConfig if "point" in location else TuningConfig
    if "tariff" in location:
        model = tariffs.get(next(str(part) for part in reversed(location) if isinstance(part, str)), TariffConfig)
    return [field.alias or name for name, field in model.model_fields.items()]


def write_example(path: Path) -> None:
    """Write a configuration in which every setting is explained and commented out. Raises ConfigError where a file is."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(EXAMPLE)
    except FileExistsError:
        raise ConfigError(f"{path} exists already and was left alone; remove it, or choose another path") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; choose another path") from error
