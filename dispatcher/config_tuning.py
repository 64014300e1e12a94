"""``[region.serving.tuning]``: what of a serving may be turned down while it has little to do; without it, nothing."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from dispatcher.config_power import _Section, check_url

#: The latencies that a point may tell of, and their keys.
POINT_LATENCIES = {"inter_token": "inter_token_s", "ttft": "ttft_s", "e2e": "e2e_s"}


class TuningPointConfig(_Section):
    """``[[region.serving.tuning.point]]``: the server as its operator measured it without a cap, with ``concurrency`` requests
    at work at once: W of one of its GPUs, tokens/s of all of it, and s between two tokens; to the first token and in all where
    those are promised."""

    concurrency: float = Field(gt=0, le=1e9)
    power_w: float = Field(gt=0, le=1e6)
    tokens_per_s: float = Field(gt=0, le=1e12)
    inter_token_s: float = Field(gt=0, le=1e6)
    ttft_s: float | None = Field(None, gt=0, le=1e6)
    e2e_s: float | None = Field(None, gt=0, le=1e6)


class TuningConfig(_Section):
    """``[region.serving.tuning]``: what may be turned down, and within what.

    ``cap``: its ``gpu_uuids`` may be capped, for a minute at a time; with ``concurrency_url``, which takes PUT
    {"max_concurrency": N} and answers with what holds then, at the same time fewer requests may be at work than
    ``max_concurrency`` (None: the most of the points). ``replicas``: Ray Serve is asked for ``min_replicas`` to
    ``max_replicas`` of ``deployment`` of ``application`` through the dashboard at ``dashboard_url`` (empty: the region's),
    each on ``gpus_per_replica`` (None: as Ray says).

    Predicted latencies stay below ``latency_share`` of what is promised, throughput is enough for the demand times
    ``demand_margin``, and nothing is turned down while a promise burns ``most_burn`` of its budget, nor before ``calm_s``
    without that; replicas not before ``replicas_down_s`` in which fewer were enough.
    """

    cap: bool = False
    replicas: bool = False
    latency_share: float = Field(0.8, gt=0, le=1)
    demand_margin: float = Field(1.25, ge=1, le=10)
    most_burn: float = Field(0.5, gt=0, le=1)
    calm_s: float = Field(300.0, ge=60, le=3600)
    points: list[TuningPointConfig] = Field([], alias="point")
    concurrency_url: str = ""
    concurrency_token_env: str = ""
    concurrency_token_file: str = ""
    max_concurrency: int | None = Field(None, ge=1, le=1_000_000_000)
    application: str = ""
    deployment: str = ""
    min_replicas: int = Field(1, ge=1, le=1_000_000)
    max_replicas: int = Field(0, ge=0, le=1_000_000)
    gpus_per_replica: float | None = Field(None, gt=0, le=1_000)
    replicas_down_s: float = Field(600.0, ge=60, le=86400)
    dashboard_url: str = ""
    token_env: str = ""
    token_file: str = ""

    @field_validator(
        *("latency_share", "demand_margin", "most_burn", "calm_s", "max_concurrency"),
        *("min_replicas", "max_replicas", "gpus_per_replica", "replicas_down_s"),
        mode="before",
    )
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is no number")
        return value

    @field_validator("concurrency_url")
    @classmethod
    def _endpoint(cls, value: str) -> str:
        return check_url(value, "'http://chat:8001/limit'") if value else ""

    @field_validator("dashboard_url")
    @classmethod
    def _dashboard(cls, value: str) -> str:
        return check_url(value, "'http://ray-head:8265'") if value else ""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.cap and not self.replicas:
            raise ValueError("nothing may be turned down: set cap = true or replicas = true, or remove the section")
        self._check_cap()
        self._check_replicas()
        return self

    def _check_cap(self) -> None:
        if not self.cap:
            for key in ("points", "concurrency_url", "max_concurrency"):
                if getattr(self, key):
                    raise ValueError(f"{'point' if key == 'points' else key} is for cap = true; add that, or remove it")
        at = [one.concurrency for one in self.points]
        top = max(self.points, key=lambda one: (one.tokens_per_s, -one.concurrency), default=None)
        if len(set(at)) < len(at):
            raise ValueError("two points have the same concurrency; keep one of them")
        if self.cap and (top is None or min(at) >= top.concurrency):
            raise ValueError(
                "cap needs two [[region.serving.tuning.point]] or more, measured without a cap, whose tokens_per_s rise with "
                "concurrency"
            )
        if self.max_concurrency is not None and not self.concurrency_url:
            raise ValueError("max_concurrency is for concurrency_url; add that, or remove it")
        for key in ("concurrency_token_env", "concurrency_token_file"):
            if getattr(self, key) and not self.concurrency_url:
                raise ValueError(f"{key} is for concurrency_url; add that, or remove it")
        if self.concurrency_token_env and self.concurrency_token_file:
            raise ValueError("give concurrency_token_env or concurrency_token_file, not both")

    def _check_replicas(self) -> None:
        own = ("application", "deployment", "max_replicas", "gpus_per_replica", "dashboard_url", "token_env", "token_file")
        if not self.replicas:
            for key in own:
                if getattr(self, key):
                    raise ValueError(f"{key} is for replicas = true; add that, or remove it")
            return
        for key, what in (("application", "the name of the Ray Serve application"), ("deployment", "which of its deployments")):
            if not getattr(self, key):
                raise ValueError(f"replicas needs {key}, {what}")
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"replicas needs max_replicas, how many there are when nothing is turned down, of {self.min_replicas} "
                f"(min_replicas) or more, not {self.max_replicas}"
            )
        if self.token_env and self.token_file:
            raise ValueError("give token_env or token_file, not both")
        if (self.token_env or self.token_file) and not self.dashboard_url:
            raise ValueError(
                "token_env and token_file are for dashboard_url; without it the region's address and token are used"
            )

    @property
    def full_concurrency(self) -> int:
        """The requests at work at once when nothing is turned down."""
        return self.max_concurrency or int(max((one.concurrency for one in self.points), default=0))
