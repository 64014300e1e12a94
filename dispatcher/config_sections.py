"""The sections of gridshift.toml as checked, immutable values; each checks itself alone.

Nothing here knows of files' positions, of the other sections or of what a feed's options mean (dispatcher.config does).
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    field_validator,
    model_validator,
)

from dispatcher.config_power import LABEL_VALUE, BranchConfig, MeterConfig, NodeConfig, branch_of, check_url
from dispatcher.config_serving import ServingConfig
from dispatcher.config_tariff import Name, TariffConfig, check_zone
from dispatcher.errors import ConfigError
from dispatcher.shifts import crontab_trigger
from policies.durations import parse_duration
from policies.registry import OURS, check
from policies.world import GpuPool, TeamShare
from signals.points import Kind

#: The planner's look-ahead in slots (policies.grid), kept here so that reading a configuration needs no numpy.
MAX_SLOTS = 1344

# --- kinds of values ----------------------------------------------------------------------------------------------


def _check_duration(value: str) -> str:
    if parse_duration(value) <= 0:  # raises ValueError with the remedy
        raise ValueError("must be longer than nothing, such as '15m' or '8h'")
    return value


def _check_url(value: str) -> str:
    return check_url(value, "'http://10.0.0.1:8265'")


def _check_feed_name(value: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value.get("feed"), str):
        raise ValueError("needs the key 'feed', such as feed = 'synthetic'")
    return value


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
Duration = Annotated[str, AfterValidator(_check_duration)]
Url = Annotated[str, AfterValidator(_check_url)]


#: What a region has chains of feeds of.
SIGNALS = ("price", "carbon", "load")
#: ``[[region.price]]``, ``[[region.carbon]]`` or ``[[region.load]]``: one feed of a fallback chain: the key "feed", the rest
#: as that feed has it.
FeedTable = Annotated[dict[str, Any], AfterValidator(_check_feed_name)]


class Section(BaseModel):
    """A part of the configuration: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False)


def read_secret(what: str, env: str, file: str, environ: Mapping[str, str]) -> str | None:
    """A secret from a variable or a file; None when neither is configured. Raises ConfigError when it is not there."""
    if env:
        value = environ.get(env, "").strip()
        if not value:
            raise ConfigError(f"{what}: the environment variable {env} is not set; set it, or remove {what}_env")
        return value
    if file:
        try:
            value = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{what}: cannot read {file}: {error}; create it or change {what}_file") from error
        if not value:
            raise ConfigError(f"{what}: {file} is empty; put the secret in it")
        return value
    return None


# --- sections -----------------------------------------------------------------------------------------------------


class ServerConfig(Section):
    """``[server]``: where the control plane listens and keeps things."""

    host: str = "127.0.0.1"
    port: int = Field(8700, ge=1, le=65535)
    public_url: Annotated[str, AfterValidator(lambda value: _check_url(value) if value else "")] = ""
    data_dir: str = ".gridshift"
    database_url: SecretStr = SecretStr("")
    database_url_env: str = ""
    database_url_file: str = ""
    max_body_mb: float = Field(10.0, gt=0)
    max_package_mb: float = Field(100.0, gt=0)  # Ray itself takes no larger request
    checkpoint_root: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        host = self.host.strip("[]")
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, value: SecretStr) -> SecretStr:
        checked_database_url(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _one_database(self) -> "ServerConfig":
        given = [bool(self.database_url.get_secret_value()), bool(self.database_url_env), bool(self.database_url_file)]
        if sum(given) > 1:
            raise ValueError("give one of database_url, database_url_env and database_url_file, not several")
        return self


def checked_database_url(url: str) -> str:
    """``url`` as SQLAlchemy needs it; ValueError (without the URL, which may hold a password) for others."""
    if re.match(r"^postgres(ql)?://", url):
        return "postgresql+psycopg://" + url.split("://", 1)[1]
    if not url or url.startswith(("sqlite:///", "postgresql+psycopg://")):
        return url
    raise ValueError("must start with 'sqlite:///' or 'postgresql+psycopg://'")


class PlanningConfig(Section):
    """``[planning]``: the policy, the grid of slots, money, and what is assumed of jobs that do not say."""

    policy: Annotated[str, AfterValidator(check)] = OURS
    slot_minutes: Literal[5, 15, 30, 60] = 15
    horizon_hours: float = Field(48, gt=0, le=24 * 14)
    currency: Currency = "EUR"
    carbon_price_per_tonne: float = Field(0.0, ge=0)
    price_weight: float = Field(1.0, ge=0, le=1000)
    daily_carbon_kg: float = Field(0.0, ge=0)
    daily_cost: float = Field(0.0, ge=0)
    late_cost_per_h: float = Field(1000.0, ge=0)
    default_runtime: Duration = "1h"
    default_gpu_power_w: float = Field(400.0, gt=0)
    default_cpu_power_w: float = Field(50.0, ge=0)
    default_region: str = ""
    move_cost_per_gb: float = Field(0.02, ge=0)
    move_gb_per_s: float = Field(0.1, gt=0)
    min_chunk: Duration = "15m"
    launch_time: Duration = "10s"
    runtime_slack: float = Field(0.1, ge=0, le=10)
    deadline_margin: Duration = "60s"

    _numbers = field_validator("default_runtime", "min_chunk", "launch_time", "deadline_margin", mode="before")(_number_as_text)

    @field_validator("slot_minutes", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return int(value) if isinstance(value, str) and value.isdigit() else value  # variables are text

    @model_validator(mode="after")
    def _not_too_far(self) -> "PlanningConfig":
        slots = self.horizon_hours * 60 / self.slot_minutes
        if slots > MAX_SLOTS:
            limit_h = MAX_SLOTS * self.slot_minutes / 60
            raise ValueError(f"horizon_hours may be at most {limit_h:g} with slots of {self.slot_minutes} min")
        return self

    @property
    def default_runtime_s(self) -> float:
        """``default_runtime`` in seconds."""
        return parse_duration(self.default_runtime)

    @property
    def launch_s(self) -> float:
        """``launch_time`` in seconds."""
        return parse_duration(self.launch_time)

    @property
    def deadline_margin_s(self) -> float:
        """``deadline_margin`` in seconds."""
        return parse_duration(self.deadline_margin)

    @property
    def min_chunk_s(self) -> float:
        """``min_chunk`` in seconds."""
        return parse_duration(self.min_chunk)


class TeamConfig(Section):
    """``[[team]]``: a team's part in the fleet, by the name that jobs give as ``gridshift.team``."""

    name: Name
    quota_gpus: float | None = Field(None, ge=0)
    share: float = Field(1.0, gt=0, le=1e6)

    def team(self) -> TeamShare:
        """As policies see it."""
        return TeamShare(self.name, self.quota_gpus, self.share)


class GpuPoolConfig(Section):
    """``[[region.gpu_pool]]``: GPUs of one type in a region, on one branch of its power tree. Powers in W at the meter."""

    type: Annotated[str, StringConstraints(pattern=LABEL_VALUE)]  # it becomes the value of a node label
    gpus: float = Field(gt=0, le=1e6)
    power_limit_w: float = Field(0.0, ge=0)
    draw: float = Field(1.0, gt=0, le=100)
    branch: str = ""

    def pool(self) -> GpuPool:
        """As policies see it."""
        return GpuPool(self.type, self.gpus, self.power_limit_w or None, self.draw, self.branch)


def _floor_of(one: ServingConfig, watts: float, pue: float) -> str:
    if watts <= one.floor_w:
        return f"floor_w {watts:g} W"
    return f"floor_gpus {one.floor_gpus} x gpu_power_w {one.gpu_power_w:g} W x pue {pue:g} = {watts:g} W"


class RegionConfig(Section):
    """``[[region]]``: one Ray cluster, what its power costs and emits, and its limits. Powers in W."""

    name: Name
    address: Url
    token_env: str = ""
    token_file: str = ""
    gpus: float | None = Field(None, ge=0)
    max_jobs: int | None = Field(None, ge=1)
    power_limit_w: float = Field(0.0, ge=0)
    pue: float = Field(1.2, ge=1, le=5)
    currency: Currency = "EUR"
    carbon_signal: Literal["average", "marginal"] = "average"
    default_tier: Literal["", "flex-0", "flex-1", "flex-2", "flex-3"] = ""
    checkpoint_root: str = Field("", pattern=r"^(/.*)?$")
    observe_s: float = Field(1.0, ge=0.1, le=60)
    price: list[FeedTable] = []
    carbon: list[FeedTable] = []
    load: list[FeedTable] = []
    tariff: TariffConfig | None = None
    gpu_pools: list[GpuPoolConfig] = Field([], alias="gpu_pool")
    branches: list[BranchConfig] = Field([], alias="branch")
    nodes: list[NodeConfig] = Field([], alias="node")
    meters: list[MeterConfig] = Field([], alias="meter")
    serving: list[ServingConfig] = []
    timezone: str = ""

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        return check_zone(value) if value else ""

    @model_validator(mode="after")
    def _pools_divide_the_gpus(self) -> "RegionConfig":
        places = [(pool.type, pool.branch) for pool in self.gpu_pools]
        twice = sorted({place for place in places if places.count(place) > 1})
        if twice:
            where = f" on branch {twice[0][1]!r}" if twice[0][1] else ""
            raise ValueError(f"two gpu_pool tables are for {twice[0][0]!r}{where}; make them one, or name their branches")
        pooled = sum(pool.gpus for pool in self.gpu_pools)
        if self.gpu_pools and self.gpus is not None and abs(pooled - self.gpus) > 1e-6:
            raise ValueError(f"its gpu_pool tables have {pooled:g} GPUs together but gpus is {self.gpus:g}; leave gpus out")
        return self

    @model_validator(mode="after")
    def _serving_fits(self) -> "RegionConfig":
        gpus = sum(pool.gpus for pool in self.gpu_pools) if self.gpu_pools else self.gpus
        for one in self.serving:
            for key, value in (("floor_gpus", one.floor_gpus), ("max_gpus", one.max_gpus)):
                if gpus is not None and value > gpus:
                    remedy = "GPUs of serving count among the region's: lower it, or raise gpus"
                    raise ValueError(f"serving {one.name}: {key} {value} is more than the {gpus:g} GPUs here; {remedy}")
        for one in self.serving:
            others = [other for other in self.serving if other is not one and one.tuning is not None and one.tuning.cap]
            shared = next(((other, uuid) for other in others for uuid in one.gpu_uuids if uuid in other.gpu_uuids), None)
            if shared is not None:
                what = f"serving {one.name}: tuning: its GPU {shared[1]} is serving {shared[0].name}'s too"
                raise ValueError(f"{what}, which a cap would slow down; cap only GPUs that it has for itself")
        floors = [one for one in self.serving if one.floor_gpus]
        together = sum(one.floor_gpus for one in floors)
        if gpus is not None and together > gpus:
            each = ", ".join(f"{one.name} {one.floor_gpus}" for one in floors)
            remedy = "GPUs of serving count among the region's: lower them, or raise gpus"
            raise ValueError(
                f"floor_gpus of its serving ({each}) are {together} together, more than the {gpus:g} GPUs here; {remedy}"
            )
        # Where gpu_power_w is left out, [planning] tells it, which is not seen from here: an alarm says it then.
        kept = [(one, one.always_w(0.0, self.pue)) for one in self.serving]
        if self.power_limit_w and (kept_w := sum(watts for _, watts in kept)) > self.power_limit_w:
            each = "; ".join(f"{one.name}: {_floor_of(one, watts, self.pue)}" for one, watts in kept if watts)
            remedy = "all are at the meter: lower floor_w or floor_gpus, or raise power_limit_w"
            raise ValueError(
                f"what is always kept for its serving ({each}) is {kept_w:g} W together, more than power_limit_w "
                f"{self.power_limit_w:g} W; {remedy}"
            )
        return self

    def chain(self, what: str) -> list[FeedTable]:
        """Its sources of "price", "carbon" or "load" (of the grid, not of the site), the first choice first."""
        return {"price": self.price, "carbon": self.carbon, "load": self.load}[what]

    def signal_kind(self, what: str) -> Kind:
        """The kind that its "price", "carbon" or "load" is of."""
        if what == "carbon":
            return Kind.CARBON_MARGINAL if self.carbon_signal == "marginal" else Kind.CARBON_AVERAGE
        return Kind.PRICE if what == "price" else Kind.LOAD

    def pools(self) -> tuple[GpuPool, ...]:
        """Its GPUs by type; empty when they are all alike."""
        return tuple(pool.pool() for pool in self.gpu_pools)

    def branch_of(self, hostname: str) -> str | None:
        """The branch that ``[[region.node]]`` names for a machine; None when it names none."""
        return branch_of(self.nodes, hostname)

    @model_validator(mode="after")
    def _one_token(self) -> "RegionConfig":
        if self.token_env and self.token_file:
            raise ValueError("give token_env or token_file, not both")
        return self

    def token(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The cluster's Ray token, None when none is configured. Raises ConfigError when it is configured but not there."""
        return read_secret(
            f"region {self.name}: token", self.token_env, self.token_file, os.environ if environ is None else environ
        )


class ShiftConfig(Section):
    """``[[shift]]``: in windows that begin by a cron rule, flexible work of one region belongs in another."""

    name: Name
    cron: str
    timezone: str = "UTC"
    duration: Duration
    source: str = Field(alias="from")
    target: str = Field(alias="to")

    _numbers = field_validator("duration", mode="before")(_number_as_text)

    _known_zone = field_validator("timezone")(check_zone)

    @field_validator("cron")
    @classmethod
    def _known_cron(cls, value: str) -> str:
        crontab_trigger(value, "UTC")
        return value

    @property
    def duration_s(self) -> float:
        """How long a window lasts, in elapsed seconds."""
        return parse_duration(self.duration)


class SecretsSection(Section):
    """A section with secrets that messages are signed with. Several are all accepted, so that they can be rotated."""

    secret_env: str = ""
    secret_file: str = ""
    secret_envs: list[str] = []
    secret_files: list[str] = []

    @property
    def has_secret(self) -> bool:
        """Whether any is configured."""
        return bool(self.secret_env or self.secret_file or self.secret_envs or self.secret_files)

    def read_secrets(self, what: str, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The secrets in force. Raises ConfigError for those that are configured but not there, one a line."""
        environ = os.environ if environ is None else environ
        places = [(env, "") for env in (self.secret_env, *self.secret_envs) if env]
        places += [("", file) for file in (self.secret_file, *self.secret_files) if file]
        found, problems = [], []
        for env, file in places:
            try:
                found.append(read_secret(f"{what}: secret", env, file, environ))
            except ConfigError as error:
                problems.append(str(error))
        if problems:
            raise ConfigError("\n".join(problems))
        return tuple(secret for secret in found if secret)


class WebhookConfig(SecretsSection):
    """``[[webhook]]``: one sender of signed events in our own shape. ``emergency``: all of them say that the grid is in danger,
    not only those that state it."""

    source: Name
    emergency: bool = False

    @model_validator(mode="after")
    def _some_secret(self) -> "WebhookConfig":
        if not self.has_secret:
            raise ValueError("give secret_env or secret_file (or secret_envs / secret_files for rotation)")
        return self

    def secrets(self, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The secrets in force. Raises ConfigError for one that is configured but not there."""
        return self.read_secrets(f"webhook {self.source}", environ)


class ReplayConfig(Section):
    """``[replay]``: a clock that starts at ``start`` and runs ``speed`` times as fast as the wall's."""

    start: AwareDatetime
    speed: float = Field(1.0, gt=0, le=100_000)

    @field_validator("start")
    @classmethod
    def _utc(cls, value: datetime) -> datetime:
        return value.astimezone(UTC)
