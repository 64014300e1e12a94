"""Serving's own knobs, turned down while it has little to do and keeps its promises well, and given back at any sign of risk.

Judging is the serving loop's each second, on what was read; turning what needs HTTP is a thread's for each serving. What is
best is policies.serving_tuning's matter, and how caps get onto GPUs the power loop's.

Caps are leases of a minute, and nothing of them outlives us. Limits and replicas do: they are put back when we end in order,
and by the next control plane, which begins with all of it.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from dispatcher.config import Config, RegionConfig
from dispatcher.config_sections import read_secret
from dispatcher.config_serving import ServingConfig
from dispatcher.config_tuning import TuningConfig
from dispatcher.power.hub import NodeLive
from dispatcher.power.tuned_caps import TunedCap
from dispatcher.serving.knobs import ConcurrencyKnob, Deployment, KnobError, RayServeKnob
from dispatcher.serving.watch import History, ServingStatus, source_of
from dispatcher.store import GridEventChange
from policies.cap_model import LEAST_CAP
from policies.serving_tuning import Curve, Engine, Patience, Point, Replicas, Setting, Terms, choose, why_not_calm

log = logging.getLogger(__name__)

#: How far ahead demand is looked at: a replica takes minutes to load its model.
AHEAD = timedelta(minutes=30)
#: What was just moved is turned further down only after so long, s; up at once.
LOWER_S = 300.0
#: A judgement that is older, s, holds no cap any more: whoever made it may be stuck.
FRESH_S = 5.0
#: A knob that could not be turned is tried again after this, and what Ray has is read again after that; wall s.
RETRY_S, READ_S = 5.0, 30.0

FULL = Setting(None, None, "nothing is turned down")


class Limits(Protocol):
    """Limits the requests at work at once."""

    def put(self, most: int) -> None:
        """See ConcurrencyKnob."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class Scales(Protocol):
    """Scales a deployment."""

    def read(self) -> Deployment:
        """See RayServeKnob."""
        ...

    def scale(self, replicas: int) -> None:
        """See RayServeKnob."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


@dataclass
class _Tuned:
    """One serving and its knobs. ``setting`` and ``wanted`` (replicas) are what is to hold; ``put`` what the endpoint last said
    that it holds (None: not known), ``seen`` what Ray last said."""

    region: str
    config: ServingConfig
    tuning: TuningConfig
    patience: Patience
    curve: Curve | None
    terms: Terms
    limits: Limits | None
    scales: Scales | None
    replicas: Replicas
    setting: Setting = FULL
    wanted: int = 0
    moved_s: float = -math.inf
    judged_s: float = -math.inf
    told: str = ""
    put: int | None = None
    seen: Deployment | None = None
    read_s: float = -math.inf
    errors: dict[str, str] = field(default_factory=dict)
    wake: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_down(self) -> bool:
        return self.setting.cap_w is not None or self.wanted < self.tuning.max_replicas

    @property
    def concurrency(self) -> int:
        return self.setting.concurrency or self.tuning.full_concurrency


class ServingTuning:
    """All serving that may be tuned. ``look`` is a loop's, after the watch has looked; the rest may be called from any thread.

    ``status`` tells how each serving stands, ``demand`` the load that one is expected not to exceed (region, name, how far
    ahead; None: not known), ``nodes`` what agents tell; ``changed`` is called when a cap has to be set or let go of.
    """

    def __init__(
        self,
        config: Config,
        status: Callable[[datetime], Sequence[ServingStatus]],
        demand: Callable[[str, str, timedelta], float | None],
        history: History,
        *,
        nodes: Callable[[], Iterable[NodeLive]] = lambda: (),
        changed: Callable[[], None] = lambda: None,
        limits_of: Callable[[ServingConfig], Limits | None] | None = None,
        scales_of: Callable[[RegionConfig, ServingConfig], Scales | None] | None = None,
        mono: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises ConfigError where a token is configured and not there."""
        self._status, self._demand, self._history = status, demand, history
        self._nodes, self._changed, self._mono = nodes, changed, mono
        self._tuned = tuple(
            _tuned(region, one, one.tuning, (limits_of or _limits)(one), (scales_of or _scales)(region, one))
            for region in config.regions
            for one in region.serving
            if one.tuning is not None
        )
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- judging ------------------------------------------------------------------------------------------------------

    def look(self, now: datetime) -> None:
        """Judge every serving: give all back where there is risk, else see what can be turned down."""
        if not self._tuned:
            return
        stands = {(one.region, one.name): one for one in self._status(now)}
        moved, lines = False, list[GridEventChange]()
        for one in self._tuned:
            stand = stands[one.region, one.config.name]
            why = why_not_calm(stand.risks, stand.level, one.tuning.most_burn)
            capped, said = one.setting.cap_w, self._judge(one, why)
            moved = moved or one.setting.cap_w != capped
            one.wake.set()
            if said:
                log.info("serving %s of %s: %s", one.config.name, one.region, said)
                lines.append(GridEventChange(source_of(one.region), one.config.name, now, None, "note", said))
        if moved:
            self._changed()
        for line in lines:  # last: a cap does not wait for a database to be let go of
            self._history.note_grid_event(line)

    def _judge(self, one: _Tuned, why: str) -> str:
        """One serving, which is calm but for ``why``; a sentence where something changed."""
        now_s = self._mono()
        may = one.patience.step(now_s, is_calm=not why, is_tuned=one.is_down)
        demand = self._demand(one.region, one.config.name, AHEAD) if may else None
        setting, wanted = FULL, one.tuning.max_replicas
        if may and demand is not None:
            setting = self._setting(one, demand, now_s)
            wanted = self._replicas(one, demand, now_s)
        else:
            one.replicas.full()
        with one.lock:
            before, had = one.setting, one.wanted
            if setting != before:
                one.moved_s = now_s
            one.setting, one.wanted, one.judged_s = setting, wanted, now_s
        return _told(one, before, had, why, "its demand is not known" if may and demand is None else "")

    def _setting(self, one: _Tuned, demand: float, now_s: float) -> Setting:
        if one.curve is None:
            return FULL
        engine, why = self._engine(one)
        if engine is None:
            one.errors["cap"] = why
            return Setting(None, None, why)
        one.errors.pop("cap", None)
        # A limit that cannot be put holds nothing in bounds.
        may_limit = one.limits is not None and "concurrency" not in one.errors
        found, before = choose(one.curve, demand, engine, one.terms, may_limit=may_limit), one.setting
        if found.cap_w is None or before.cap_w is None:
            return found
        same = (found.cap_w, found.concurrency) == (before.cap_w, before.concurrency)
        # A higher cap does all that a lower one does.
        keeps = found.is_below(before) and found.cap_w <= before.cap_w and now_s - one.moved_s < LOWER_S
        return before if same or keeps else found

    def _engine(self, one: _Tuned) -> tuple[Engine | None, str]:
        """Its GPUs as agents tell of them; None and why where they do not, or are not alike."""
        wanted = set(one.config.gpu_uuids)
        gpus = [gpu for node in self._nodes() if node.region == one.region for gpu in node.gpus if gpu.uuid in wanted]
        missing = sorted(wanted - {gpu.uuid for gpu in gpus})
        if missing:
            return None, f"no agent tells of its GPU {missing[0]}, so it is not capped"
        kinds = {(gpu.name, gpu.default_w, gpu.min_w) for gpu in gpus}
        name, default_w, min_w = next(iter(kinds))
        if len(kinds) > 1:
            return None, "its GPUs are not all alike, so none is capped"
        if default_w is None or min_w is None:
            return None, "its GPUs do not tell which limits they allow, so none is capped"
        return Engine(name, default_w, max(min_w, LEAST_CAP * default_w)), ""

    def _replicas(self, one: _Tuned, demand: float, now_s: float) -> int:
        if one.scales is None or one.seen is None:
            one.replicas.full()
            return one.tuning.max_replicas
        per_gpu = one.config.load_per_gpu or 1.0
        each = one.tuning.gpus_per_replica or one.seen.gpus_per_replica or 1.0
        return one.replicas.step(now_s, demand / per_gpu / each)

    # --- what others ask ----------------------------------------------------------------------------------------------

    def caps(self, region: str) -> Mapping[str, TunedCap]:
        """The caps that serving of a region is to have now, by GPU; none that nobody vouched for just now."""
        now_s, found = self._mono(), dict[str, TunedCap]()
        for one in self._tuned:
            with one.lock:
                setting, is_fresh = one.setting, now_s - one.judged_s <= FRESH_S
            if one.region == region and setting.cap_w is not None and is_fresh:
                cap = TunedCap(one.config.name, setting.cap_w, f"serving {one.config.name}: {setting.sentence}")
                found |= dict.fromkeys(one.config.gpu_uuids, cap)
        return found

    def alarms(self, now: datetime) -> Iterator[tuple[str, str | None, str]]:
        """(key, region, sentence): knobs that could not be turned."""
        for one in self._tuned:
            for what, why in sorted(one.errors.copy().items()):
                yield f"tuning {one.region} {one.config.name} {what}", one.region, f"serving {one.config.name}: {why}"

    # --- turning ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to turn what needs HTTP."""
        for one in self._tuned:
            if one.limits is not None or one.scales is not None:
                thread = threading.Thread(target=self._follow, args=(one,), name=f"tuning-{one.config.name}", daemon=True)
                thread.start()
                self._threads.append(thread)

    def close(self) -> None:
        """Stop, and put everything back that outlives us."""
        self._closing.set()
        for one in self._tuned:
            one.wake.set()
        for thread in self._threads:
            thread.join(20.0)
        for one in self._tuned:
            with one.lock:
                one.setting, one.wanted = FULL, one.tuning.max_replicas
            if self._threads:
                self.turn(one)
            for knob in (one.limits, one.scales):
                if knob is not None:
                    knob.close()

    def _follow(self, one: _Tuned) -> None:
        while not self._closing.is_set():
            one.wake.wait(READ_S)
            one.wake.clear()
            if self._closing.is_set():
                return
            try:
                is_done = self.turn(one)
            except Exception:  # the thread must outlive whatever it is
                log.exception("knobs of %s", one.config.name)
                is_done = False
            if not is_done:
                self._closing.wait(RETRY_S)

    def turn_all(self) -> None:
        """Turn each serving's knobs once, in the caller."""
        for one in self._tuned:
            self.turn(one)

    def turn(self, one: _Tuned) -> bool:
        """Bring one serving's knobs to what is to hold; whether nothing is left to do. Blocks for some seconds at most."""
        done = True
        if one.limits is not None and one.put != one.concurrency:
            wanted = one.concurrency
            try:
                one.put = None
                one.limits.put(wanted)
                one.put = wanted
                one.errors.pop("concurrency", None)
            except KnobError as error:
                self._failed(one, "concurrency", str(error))
                done = False
        if one.scales is not None:
            done = self._scale(one, one.scales) and done
        return done

    def _scale(self, one: _Tuned, scales: Scales) -> bool:
        """Replicas, as Ray has them: somebody may have deployed again meanwhile."""
        wanted, now_s = one.wanted, self._mono()
        if one.seen is not None and one.seen.target == wanted and now_s - one.read_s < READ_S:
            return True
        try:
            one.seen, one.read_s = scales.read(), now_s
            if one.seen.target != wanted:
                scales.scale(wanted)
                one.seen = scales.read()
        except KnobError as error:
            self._failed(one, "replicas", str(error))
            return False
        one.errors.pop("replicas", None)
        return one.seen.target == wanted

    def _failed(self, one: _Tuned, what: str, why: str) -> None:
        if one.errors.get(what) != why:
            log.warning("serving %s of %s: %s", one.config.name, one.region, why)
        one.errors[what] = why


def _told(one: _Tuned, before: Setting, had: int, risk: str, unknown: str) -> str:
    """What has changed, and why; empty where nothing has."""
    setting, wanted = one.setting, one.wanted
    back, down = list[str](), list[str]()
    if before.cap_w is not None and setting.cap_w is None:
        why = risk or unknown or setting.sentence
        back.append(f"its GPUs' caps {'and its limit on requests ' if before.concurrency else ''}are lifted")
    elif (setting.cap_w, setting.concurrency) != (before.cap_w, before.concurrency):
        down.append(setting.sentence)
    if wanted > had:
        why = risk or unknown or "they may be needed soon"
        back.append(f"it has {wanted} replicas instead of {had}")
    elif wanted < had:
        minutes = AHEAD.total_seconds() / 60
        down.append(f"it has {wanted} replicas instead of {had}, enough for the next {minutes:.0f} min")
    if back:
        wait = f"; nothing is turned down again before {one.patience.wait_s / 60:g} min of calm" if risk else ""
        down.insert(0, f"{' and '.join(back)}: {why}{wait}")
    return "; ".join(down)


def _tuned(
    region: RegionConfig, one: ServingConfig, tuning: TuningConfig, limits: Limits | None, scales: Scales | None
) -> _Tuned:
    promised: dict[str, float] = {}
    for slo in one.slos:
        if slo.metric in ("inter_token", "ttft", "e2e"):
            promised[slo.metric] = min(slo.limit, promised.get(slo.metric, math.inf))
    points = [
        Point(
            point.concurrency,
            point.power_w,
            point.tokens_per_s,
            {
                metric: seconds
                for metric, seconds in (("inter_token", point.inter_token_s), ("ttft", point.ttft_s), ("e2e", point.e2e_s))
                if seconds is not None
            },
        )
        for point in tuning.points
    ]
    return _Tuned(
        region.name,
        one,
        tuning,
        Patience(tuning.calm_s),
        Curve(points) if tuning.cap else None,
        Terms(promised, tuning.latency_share, tuning.demand_margin),
        limits,
        scales,
        Replicas(tuning.min_replicas, tuning.max_replicas, tuning.replicas_down_s),
        wanted=tuning.max_replicas,
    )


def _limits(one: ServingConfig) -> Limits | None:
    tuning = one.tuning
    if tuning is None or not tuning.concurrency_url:
        return None
    name = f"serving {one.name}: concurrency_token"
    token = read_secret(name, tuning.concurrency_token_env, tuning.concurrency_token_file, os.environ)
    return ConcurrencyKnob(tuning.concurrency_url, token)


def _scales(region: RegionConfig, one: ServingConfig) -> Scales | None:
    tuning = one.tuning
    if tuning is None or not tuning.replicas:
        return None
    if not tuning.dashboard_url:
        return RayServeKnob(region.address.rstrip("/"), region.token(), tuning.application, tuning.deployment)
    token = read_secret(f"serving {one.name}: tuning: token", tuning.token_env, tuning.token_file, os.environ)
    return RayServeKnob(tuning.dashboard_url, token, tuning.application, tuning.deployment)
