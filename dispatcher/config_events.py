"""``[[event_source]]``: who may send demand-response events for a site, how they come, and what was agreed with them.

Each section checks itself alone; whether its region and branch exist is looked at with the whole file.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from dispatcher.config_power import BranchName
from dispatcher.config_sections import Duration, SecretsSection, Url, read_secret
from dispatcher.config_tariff import Name
from dispatcher.dr.site import Site, site_from
from dispatcher.errors import BadInput
from policies.durations import parse_duration

#: The source of events that came by our own API.
OWN_SOURCE = "api"

EventProtocol = Literal["openadr-3.1", "openadr-3.0", "openadr-2.0b", "webhook", "pointer"]
#: How soon after a message the limit must hold.
Response = Literal["10s", "30s", "10min", "30min", "2h", "day-ahead"]
RESPONSE_S: Mapping[Response, float] = {
    "10s": 10.0,
    "30s": 30.0,
    "10min": 600.0,
    "30min": 1800.0,
    "2h": 7200.0,
    "day-ahead": 86400.0,
}

#: Keys that only some ways in know.
_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "url": ("openadr-3.1", "openadr-3.0", "openadr-2.0b", "pointer"),
    "client_id": ("openadr-3.1", "openadr-3.0"),
    "client_secret_env": ("openadr-3.1", "openadr-3.0", "pointer"),
    "client_secret_file": ("openadr-3.1", "openadr-3.0", "pointer"),
    "client_cert_file": ("openadr-3.1", "openadr-3.0", "openadr-2.0b"),
    "client_key_file": ("openadr-3.1", "openadr-3.0", "openadr-2.0b"),
    "token_url": ("openadr-3.1", "openadr-3.0"),
    "scope": ("openadr-3.1", "openadr-3.0"),
    "programs": ("openadr-3.1", "openadr-3.0"),
    "ven_name": ("openadr-3.1", "openadr-3.0", "openadr-2.0b"),
    "ven_id": ("openadr-2.0b",),
    "targets": ("openadr-3.1", "openadr-3.0"),
    "callback_url": ("openadr-3.1", "openadr-3.0"),
    "api_key_header": ("pointer",),
    "allow_hosts": ("pointer",),
    "list_url": ("pointer",),
    **dict.fromkeys(("secret_env", "secret_file", "secret_envs", "secret_files"), ("webhook",)),
}
#: The names that the site's terms have in a site file, by their names here.
_SITE_KEYS = {
    "site": "site",
    "simple_levels": "simple_map",
    "relative_sign": "relative_sign",
    "overlap": "overlap",
    "timezone": "timezone",
    "power_unit": "power_unit",
    "reference_w": "batch_and_serving_reference_kw",
    "serving_floor_w": "serving_floor_kw",
}


def _number_as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _optional_url(value: str) -> str:
    return Url.__metadata__[0].func(value) if value else ""  # type: ignore[attr-defined]


#: The longest way back from a limit, s.
MAX_RECOVERY_S = 86400.0


class EventSourceConfig(SecretsSection):
    """``[[event_source]]``: one sender of demand-response events. Its limits hold for ``region``, or for ``branch`` of it.

    The site's terms (``site`` .. ``power_unit``) are what `dr.site` means by them; None or empty is "not agreed", and then
    nothing that needs it is made up. ``test_events``: events marked as tests are only recorded, or acted on as others are.
    ``emergency``: all its events say that the grid is in danger, not only those that its protocol can mark so.
    ``watchdog``: an event without end that has lasted so long raises an alarm; it is never released by that.
    ``response`` is the class that the site has promised; ``ramp_s`` and ``recovery_s`` are how long the way down and the way
    back take where a message does not say. ``max_skew_s``: beyond it between the sender's clock and ours, promises of
    seconds cannot be kept. ``api_key_header`` carries the client secret where the sender is asked with a key. ``list_url`` is
    where a sender of hints tells which dispatches there are: what no webhook told of is found there.
    """

    name: Name
    protocol: EventProtocol
    region: str
    branch: BranchName | None = None

    site: str | None = None
    reference_w: float | None = Field(None, ge=0, le=1e12)
    serving_floor_w: float | None = Field(None, ge=0, le=1e12)
    simple_levels: dict[str, str] = Field({})
    relative_sign: str | None = None
    timezone: str | None = None
    power_unit: Literal["W", "kW", "MW"] | None = None
    overlap: Literal["strictest", "priority"] = "strictest"
    test_events: Literal["log", "act"] = "log"
    emergency: bool = False

    response: Response = "10min"
    ramp_s: float = Field(0.0, ge=0, le=86400)
    recovery_s: float = Field(900.0, ge=0, le=MAX_RECOVERY_S)
    watchdog: Duration = "4h"
    max_skew_s: float = Field(5.0, gt=0, le=3600)

    url: Annotated[str, AfterValidator(_optional_url)] = ""
    client_id: str = ""
    client_secret_env: str = ""
    client_secret_file: str = ""
    client_cert_file: str = ""
    client_key_file: str = ""
    ca_file: str = ""
    verify_tls: bool = True
    token_url: Annotated[str, AfterValidator(_optional_url)] = ""
    scope: str = ""
    programs: list[str] = Field([])
    ven_name: str = ""
    ven_id: str = ""
    targets: list[str] = Field([])
    poll_every: Duration = "30s"
    callback_url: Annotated[str, AfterValidator(_optional_url)] = ""
    api_key_header: str = Field("X-API-Key", pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")
    allow_hosts: list[str] = Field([])
    list_url: Annotated[str, AfterValidator(_optional_url)] = ""

    _numbers = field_validator("watchdog", "poll_every", mode="before")(_number_as_text)

    @model_validator(mode="after")
    def _fits_its_protocol(self) -> Self:
        for key, protocols in _ONLY_FOR.items():
            if self.protocol not in protocols and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is for {', '.join(protocols)}; remove it, or change protocol")
        if self.protocol != "webhook" and not self.url:
            raise ValueError(f"{self.protocol} needs url, where the sender is asked")
        if self.protocol == "webhook" and not self.has_secret:
            raise ValueError("webhook needs secret_env or secret_file (or secret_envs / secret_files for rotation)")
        if self.client_secret_env and self.client_secret_file:
            raise ValueError("give client_secret_env or client_secret_file, not both")
        if bool(self.client_id) and not (self.client_secret_env or self.client_secret_file):
            raise ValueError("client_id needs client_secret_env or client_secret_file")
        if self.poll_every_s < 1:
            raise ValueError("poll_every must be 1s or more")
        self.terms()
        return self

    def terms(self) -> Site:
        """The site's terms as events are read against them. Raises ValueError that names a key of this section."""
        given: dict[str, Any] = {_SITE_KEYS[key]: getattr(self, key) for key in _SITE_KEYS}
        for key in ("batch_and_serving_reference_kw", "serving_floor_kw"):
            given[key] = given[key] / 1e3 if given[key] is not None else None
        given["simple_map"] = {
            level: asked.replace("serving_floor_w", "serving_floor_kw") for level, asked in self.simple_levels.items()
        }
        try:
            return site_from(given)
        except BadInput as error:
            ours = {theirs: key for key, theirs in _SITE_KEYS.items()}
            field, value, remedy = error.problems[0]
            first, dot, rest = field.partition(".")
            said = f"{ours.get(first, first)}{dot}{rest} {value!r}: {remedy}".replace("serving_floor_kw", "serving_floor_w")
            raise ValueError(said.replace(", '40 kW' or a cap in kW", " or '40 kW'")) from None

    @property
    def poll_every_s(self) -> float:
        """Seconds between two questions."""
        return parse_duration(self.poll_every)

    @property
    def watchdog_s(self) -> float:
        """After how many seconds an event without end raises an alarm."""
        return parse_duration(self.watchdog)

    @property
    def response_s(self) -> float:
        """How many seconds after a message the limit must hold."""
        return RESPONSE_S[self.response]

    def client_secret(self, environ: Mapping[str, str] | None = None) -> str | None:
        """The secret that the sender is asked with, None when none is configured. Raises ConfigError when it is not there."""
        what = f"event_source {self.name}: client_secret"
        return read_secret(what, self.client_secret_env, self.client_secret_file, os.environ if environ is None else environ)

    def secrets(self, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The secrets that prove its webhooks. Raises ConfigError for one that is configured but not there."""
        return self.read_secrets(f"event_source {self.name}", environ)


# --- what only the whole file tells -------------------------------------------------------------------------------

Problem = tuple[tuple[str | int, ...], str]


def event_source_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong among the raw ``[[event_source]]`` tables beside the others. Values of a wrong type are left to their own
    sections."""
    regions = {region["name"]: region for _, region in _tables(raw, "region") if isinstance(region.get("name"), str)}
    taken = {hook["source"]: f"webhook[{i}]" for i, hook in _tables(raw, "webhook") if isinstance(hook.get("source"), str)}
    taken[OWN_SOURCE] = "our own API"
    for i, source in _tables(raw, "event_source"):
        name, region, branch = source.get("name"), source.get("region"), source.get("branch")
        if isinstance(name, str):
            if name in taken:
                yield ("event_source", i, "name"), f"{name!r} is used by {taken[name]} already; names must differ"
            taken.setdefault(name, f"event_source[{i}]")
        if not isinstance(region, str):
            continue
        if regions and region not in regions:
            yield ("event_source", i, "region"), f"{region!r} is not a region; known are: {', '.join(sorted(regions))}"
        elif isinstance(branch, str) and region in regions:
            known = {one.get("name") for _, one in _tables(regions[region], "branch")}
            if branch not in known:
                names = ", ".join(sorted(map(str, known))) or "none"
                yield ("event_source", i, "branch"), f"{branch!r} is not a [[region.branch]] of {region}; known are: {names}"


def _tables(raw: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    entries = raw.get(key)
    return [(i, entry) for i, entry in enumerate(entries) if isinstance(entry, Mapping)] if isinstance(entries, list) else []
