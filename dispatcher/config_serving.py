"""``[[region.serving]]``: interactive serving beside batch, what it was promised, and where its metrics are read.

Each section checks itself alone; what only the others of its region tell, config_power adds. Nothing is read here.
"""

import re
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from dispatcher.config_power import BranchName, _Section, check_url
from dispatcher.config_tariff import Name
from dispatcher.config_tuning import POINT_LATENCIES, TuningConfig
from dispatcher.serving.presets import LOADS, PRESETS, Measure

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_LATENCIES = ("ttft", "inter_token", "e2e")


def parse_matchers(text: str) -> tuple[tuple[str, str, str], ...]:
    """(label, operator, value) of each of PromQL's label matchers, as they stand between its braces. Raises ValueError."""
    found, at = [], 0
    while at < len(text.rstrip()):
        one = _MATCHER.match(text, at)
        if one is None:
            raise ValueError(f'match {text!r}: must be label matchers such as \'model_name="llama", route!="/health"\'')
        value = re.sub(r"\\(.)", r"\1", one[3])
        if one[2] in ("=~", "!~"):
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"match {text!r}: {value!r} is no regular expression: {error}") from None
        found.append((one[1], one[2], value))
        at = one.end()
    return tuple(found)


def check_metric(name: str) -> str:
    """``name``, if it is empty or a metric may have it. Raises ValueError."""
    if name and not _METRIC.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a metric; label matchers go into match of the serving")
    return name


def _no_boolean(value: Any) -> Any:
    """``value``, unless it is true or false, which would else count as 1 and 0. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no number")
    return value


class SloConfig(_Section):
    """``[[region.serving.slo]]``: one promise. ``limit`` is in s for latencies (``percentile`` of requests must be within it),
    requests that wait for "queue", and the share of requests that may fail for "error_rate".

    ``histogram``, ``gauge``, or ``counter_bad`` and ``counter_all`` name the server's own metrics where no preset does, and
    ``per_s`` how many of a histogram's units make a second (1000 for ms).
    """

    metric: Literal["ttft", "inter_token", "e2e", "queue", "error_rate"]
    limit: float = Field(gt=0, le=1e9)
    percentile: float | None = Field(None, ge=0.5, le=0.9999)
    histogram: str = ""
    gauge: str = ""
    counter_bad: str = ""
    counter_all: str = ""
    per_s: float = Field(1.0, gt=0, le=1e9)

    _numbers = field_validator("limit", "percentile", "per_s", mode="before")(_no_boolean)

    @field_validator("histogram", "gauge", "counter_bad", "counter_all")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_metric(value)

    @model_validator(mode="after")
    def _fits_its_metric(self) -> Self:
        latency = self.metric in _LATENCIES
        if latency and self.percentile is None:
            raise ValueError(f"{self.metric} needs percentile, the share of requests within limit, such as 0.99")
        if not latency and self.percentile is not None:
            raise ValueError(f"percentile = {self.percentile:g} is for {', '.join(_LATENCIES)}; remove it")
        if self.metric == "error_rate" and self.limit >= 1:
            raise ValueError(f"limit {self.limit:g}: an error_rate is a share of requests, below 1, such as 0.01")
        keys = {"queue": ("gauge",), "error_rate": ("counter_bad", "counter_all")}.get(self.metric, ("histogram", "per_s"))
        for key in ("histogram", "gauge", "counter_bad", "counter_all", "per_s"):
            if key in self.model_fields_set and key not in keys:
                raise ValueError(f"{key} is not for {self.metric}, which is read from {' and '.join(keys)}; remove it")
        if bool(self.counter_bad) != bool(self.counter_all):
            raise ValueError("give counter_bad and counter_all, both or neither")
        return self

    @property
    def share(self) -> float | None:
        """The share of requests that must be within the limit, or must not fail; None for what is a gauge."""
        if self.metric == "error_rate":
            return 1.0 - self.limit
        return self.percentile

    @property
    def name(self) -> str:
        """How sentences call it."""
        if self.percentile is not None:
            return f"{self.metric} p{100 * self.percentile:g} <= {self.limit:g} s"
        return f"{self.metric} <= {self.limit:g}"

    def measure(self, preset: str) -> Measure | None:
        """Which metrics tell it: its own, else the preset's; None where neither does."""
        if self.histogram:
            return Measure(histogram=self.histogram, per_s=self.per_s)
        if self.gauge:
            return Measure(gauge=self.gauge)
        if self.counter_bad:
            return Measure(bad=self.counter_bad, total=self.counter_all)
        return PRESETS.get(preset, {}).get(self.metric)


class ServingConfig(_Section):
    """``[[region.serving]]``: a server of interactive requests, or a Ray Serve application.

    ``source`` "metrics" reads the server's own page at ``url``, "prometheus" asks a Prometheus there; ``match`` are PromQL's
    label matchers of its series. It is on ``branch``, on the machines ``hostnames``, on the GPUs ``gpu_uuids``; without any of
    them it may be anywhere in the region. No limit is ever set on its GPUs: those named, and those there on which work runs
    that is none of gridshift's; but for ``allow_emergency``: in an emergency, when batch has given all that it may, down to its
    floor. ``when_unknown``: how far batch goes while its metrics are not known; ``when_unmet``: whether batch runs or waits
    while a promise is not kept even without it.

    Plans leave ``floor_gpus`` of the region's GPUs and ``floor_w`` (W at the meter) free for it, and, where ``load_per_gpu``
    says how many requests one GPU serves at the same time (of a counter: each second), as many GPUs as it needs in
    ``headroom_quantile`` of such hours, ``max_gpus`` at most (0: those of ``gpu_uuids``). ``load_gauge`` or ``load_counter``
    name the server's own metric where no preset does. ``gpu_power_w`` is what a GPU of it draws (W at the GPU; None: as jobs).
    """

    name: Name
    allow_emergency: bool = False
    floor_gpus: int = Field(0, ge=0, le=1_000_000)
    floor_w: float = Field(0.0, ge=0, le=1e12)
    max_gpus: int = Field(0, ge=0, le=1_000_000)
    gpu_power_w: float | None = Field(None, gt=0, le=1e6)
    load_per_gpu: float | None = Field(None, gt=0, le=1e9)
    load_gauge: str = ""
    load_counter: str = ""
    headroom_quantile: float = Field(0.95, ge=0.5, le=0.999)
    preset: Literal["", "vllm", "sglang", "triton", "ray-serve"] = ""
    source: Literal["metrics", "prometheus"]
    url: str
    match: str = ""
    token_env: str = ""
    token_file: str = ""
    branch: BranchName | None = None
    hostnames: list[str] = Field([])
    gpu_uuids: list[str] = Field([])
    when_unknown: Literal["hold", "cap", "pause"] = "cap"
    when_unmet: Literal["run", "wait"] = "run"
    scrape_s: float = Field(1.0, ge=0.2, le=60)
    stale_s: float = Field(10.0, ge=2, le=3600)
    slos: list[SloConfig] = Field(alias="slo", min_length=1)
    tuning: TuningConfig | None = None

    _numbers = field_validator(
        *("floor_gpus", "floor_w", "max_gpus", "gpu_power_w", "load_per_gpu", "headroom_quantile", "scrape_s", "stale_s"),
        mode="before",
    )(_no_boolean)

    @field_validator("load_gauge", "load_counter")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_metric(value)

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        return check_url(value, "'http://chat:8000/metrics' or 'http://prometheus:9090'")

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        parse_matchers(self.match)
        if self.token_env and self.token_file:
            raise ValueError("give token_env or token_file, not both")
        if self.source == "prometheus" and urlsplit(self.url).query:
            raise ValueError("url must be the Prometheus server's address alone; which series are meant goes into match")
        if self.stale_s <= 2 * self.scrape_s:
            raise ValueError(f"stale_s {self.stale_s:g} must be more than two times scrape_s {self.scrape_s:g}")
        for slo in self.slos:
            if slo.measure(self.preset) is None:
                whose = f"the preset {self.preset} has none for it" if self.preset else "there is no preset"
                keys = {"queue": "gauge", "error_rate": "counter_bad and counter_all"}.get(slo.metric, "histogram")
                raise ValueError(f"slo {slo.metric}: {whose}; name the server's own metric by {keys}")
        return self

    @model_validator(mode="after")
    def _yields_to_a_floor(self) -> Self:
        if not self.allow_emergency:
            return self
        if self.floor_w <= 0 and self.floor_gpus <= 0:
            raise ValueError(
                "allow_emergency: how far its power may go down is not said; add floor_w or floor_gpus, or remove it"
            )
        if not self.is_somewhere:
            raise ValueError(
                "allow_emergency: which GPUs are its is not said; add gpu_uuids, hostnames or branch, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _headroom_is_whole(self) -> Self:
        if self.load_gauge and self.load_counter:
            raise ValueError("give load_gauge or load_counter, not both")
        if self.load_per_gpu is None:
            for key in ("max_gpus", "load_gauge", "load_counter", "headroom_quantile"):
                if key in self.model_fields_set and getattr(self, key):  # 0 and "" mean that there is none
                    told = "add how many requests one GPU serves at the same time, or keep floor_gpus alone"
                    raise ValueError(f"{key} is for headroom by demand, which needs load_per_gpu; {told}")
            return self
        if not self.loads():
            whose = f"the preset {self.preset} has none" if self.preset else "there is no preset"
            raise ValueError(f"load_per_gpu: {whose} for what is to be divided by it; add load_gauge or load_counter")
        if not self.most_gpus:
            remedy = "add max_gpus, the GPUs that it may have at most and that are kept while its demand is not known"
            raise ValueError(f"load_per_gpu: how many GPUs it may have is not said; {remedy}, or gpu_uuids")
        if self.floor_gpus > self.most_gpus:
            of = "max_gpus" if self.max_gpus else "the number of gpu_uuids"
            raise ValueError(
                f"floor_gpus {self.floor_gpus} is more than {of}, {self.most_gpus}; lower the one or raise the other"
            )
        return self

    @model_validator(mode="after")
    def _tuning_fits(self) -> Self:
        tuning = self.tuning
        if tuning is None:
            return self
        if self.load_per_gpu is None:
            remedy = "add load_per_gpu, the requests that one GPU serves at the same time"
            raise ValueError(f"tuning goes by what it has to do, which is not read; {remedy}")
        if tuning.replicas and self.preset != "ray-serve":
            raise ValueError('tuning: replicas are those of Ray Serve; it needs preset = "ray-serve"')
        if not tuning.cap:
            return self
        if not self.gpu_uuids:
            raise ValueError("tuning: cap needs gpu_uuids: only GPUs that are named are ever capped for it")
        if any(measure.total for measure in self.loads()):
            remedy = "its points are of requests at work at once, so it needs load_gauge"
            raise ValueError(f"tuning: cap cannot go by a counter of requests; {remedy}")
        for slo in self.slos:
            key = POINT_LATENCIES.get(slo.metric)
            if key is not None and any(getattr(point, key) is None for point in tuning.points):
                raise ValueError(f"tuning: {slo.metric} is promised; give {key} with every point, as measured")
        return self

    @property
    def most_gpus(self) -> int:
        """The GPUs that it may have at most: as said, else those named."""
        return self.max_gpus or len(set(self.gpu_uuids))

    def always_w(self, gpu_power_w: float, pue: float) -> float:
        """What plans leave free for it whatever its demand is, W at the meter; ``gpu_power_w`` is what a GPU draws where it
        does not say so."""
        return max(self.floor_w, self.floor_gpus * (self.gpu_power_w or gpu_power_w) * pue)

    @property
    def keeps_free(self) -> bool:
        """Whether plans leave anything free for it."""
        return self.load_per_gpu is not None or self.floor_gpus > 0 or self.floor_w > 0

    def loads(self) -> tuple[Measure, ...]:
        """Which metrics together tell its load; none where it is not asked for, or nobody knows."""
        if self.load_per_gpu is None:
            return ()
        if self.load_gauge:
            return (Measure(gauge=self.load_gauge),)
        if self.load_counter:
            return (Measure(total=self.load_counter),)
        return LOADS.get(self.preset, ())

    @property
    def is_somewhere(self) -> bool:
        """Whether it is said where in the region it runs."""
        return bool(self.branch is not None or self.hostnames or self.gpu_uuids)

    def may_be_on(self, hostname: str, branch: str | None) -> bool:
        """Whether it may run on a machine."""
        if self.hostnames and hostname not in self.hostnames:
            return False
        return self.branch is None or branch == self.branch
