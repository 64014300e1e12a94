"""How far an interactive server's own knobs may be turned down, by its operator's own measurements, and when that ends. Pure.

A power cap and a limit on the requests at work are chosen together, as in PALS (arXiv 2605.21427): a cap slows the engine,
which then works on more requests at once. It knows nothing of how a knob is turned; times are monotonic seconds of the caller.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from policies.cap_model import CLASSES, LEAST_CAP, PROXY_SPREAD, family, speed_under
from policies.problem import Floats
from policies.serving import Level, Risk

#: Caps are tried in such steps of the default limit, so that they do not move with each reading.
STEP = 0.025
#: A cap that saves less than this share of the draw is not worth its risk.
WORTH = 0.02
#: Calm, s, without which nothing is turned down; the most that relapses make of it; and after how much more they are forgiven.
CALM_S, MOST_CALM_S, FORGIVEN_S = 300.0, 3600.0, 3600.0
#: The measured inference sweep by which the speed of an engine under a cap is told.
INFERENCE = next(one for one in CLASSES if "inference" in one.name)
#: Pieces between two measured points.
_PIECES = 16


@dataclass(frozen=True, slots=True)
class Point:
    """A server measured without a cap: requests at work at once, W of one of its GPUs, tokens/s of all of it, and how long
    things took, s, by the objective's metric ("inter_token", "ttft", "e2e")."""

    concurrency: float
    power_w: float
    tokens_per_s: float
    latency_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Engine:
    """The GPUs of a server, all alike: their type, default limit, and the lowest limit that may be set, W."""

    gpu: str
    default_w: float
    least_w: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What a setting must keep. ``limits_s``: the latencies that were promised, s, by metric; predicted ones stay below
    ``latency_share`` of them. Throughput is enough for the demand times ``demand_margin``."""

    limits_s: Mapping[str, float]
    latency_share: float = 0.8
    demand_margin: float = 1.25


@dataclass(frozen=True, slots=True)
class Setting:
    """What a server needs. ``cap_w`` None: no cap; ``concurrency`` None: as many requests at once as it takes. The rest is what
    the model says of it at the demand times its margin: requests ``at_once``, tokens/s that it could make and that are needed,
    latencies, s, W of one GPU with and without it; and of a burst up to its limit, the latencies."""

    cap_w: float | None
    concurrency: int | None
    sentence: str
    at_once: float = 0.0
    tokens_per_s: float = 0.0
    needed_tokens_per_s: float = 0.0
    latency_s: Mapping[str, float] = field(default_factory=dict)
    burst_latency_s: Mapping[str, float] = field(default_factory=dict)
    power_w: float = 0.0
    uncapped_w: float = 0.0

    def is_below(self, other: "Setting") -> bool:
        """Whether it turns a knob further down than another."""
        caps, limits = (self.cap_w or math.inf, other.cap_w or math.inf), (self.concurrency, other.concurrency)
        return caps[0] < caps[1] or (limits[0] or math.inf) < (limits[1] or math.inf)


def engine_speed(cap: Floats, draw: Floats, gpu: str) -> Floats:
    """Speed relative to none under a cap (shares of the default limit), as it is surely reached: one standard deviation below
    what the inference sweep says, two where another GPU type stands in for this one."""
    family_name, own = family(gpu)
    spread = INFERENCE.spread * (1.0 if own and family_name == INFERENCE.gpu else PROXY_SPREAD)
    expected = speed_under(cap, draw, INFERENCE.response)
    result: Floats = np.where(np.asarray(cap) >= np.asarray(draw), 1.0, np.maximum(expected - spread, 1e-3))
    return result


class Curve:
    """A server by the requests at work, between its measured points.

    Below the first point throughput goes to nothing, and power and latencies stay. Noise is taken to the safe side: neither
    falls with more requests. Points beyond the one of highest throughput are left out: nobody wants to be there.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        """Raises ValueError without two points of different concurrency."""
        ordered = sorted(points, key=lambda one: one.concurrency)
        top = max(range(len(ordered)), key=lambda at: (ordered[at].tokens_per_s, -at), default=0)
        ordered = ordered[: top + 1]
        at = [one.concurrency for one in ordered]
        if len(set(at)) < 2 or len(set(at)) < len(at):
            raise ValueError("two points or more, each of another concurrency, up to the one of highest tokens_per_s")
        first = [at[0] * part / 8 for part in range(1, 9)]
        rest = [low + (high - low) * part / _PIECES for low, high in pairwise(at) for part in range(1, _PIECES + 1)]
        self.at: Floats = np.array([*first, *rest])
        made = np.maximum.accumulate([one.tokens_per_s for one in ordered])
        self.tokens: Floats = np.interp(self.at, [0.0, *at], [0.0, *made])
        self.watts: Floats = np.interp(self.at, at, np.maximum.accumulate([one.power_w for one in ordered]))
        self.latencies: Mapping[str, Floats] = {
            metric: np.interp(self.at, at, np.maximum.accumulate([one.latency_s[metric] for one in ordered]))
            for metric in ordered[0].latency_s
            if all(metric in one.latency_s for one in ordered)
        }

    @property
    def most(self) -> float:
        """Requests at once at the highest throughput."""
        return float(self.at[-1])


def choose(curve: Curve, demand: float | None, engine: Engine, terms: Terms, *, may_limit: bool = False) -> Setting:
    """The cap, and with ``may_limit`` the limit on requests at work, with which the tokens that ``demand`` (requests at work at
    full speed; None: not known) asks for take the least energy, within ``terms``.

    Tokens are given, so that the least energy for each of them is the least draw: mostly the lowest cap that keeps the terms.
    """
    if demand is None:
        return Setting(None, None, "its demand is not known")
    asked = max(demand, 0.0) * terms.demand_margin
    if asked > curve.most:
        return Setting(None, None, f"{asked:.0f} requests at once may come, more than the {curve.most:.0f} of full speed")
    needed = float(np.interp(asked, [0.0, *curve.at], [0.0, *curve.tokens]))
    untold = sorted(terms.limits_s.keys() - curve.latencies.keys())
    if untold:
        return Setting(None, None, f"its points do not tell {' and '.join(untold)}, which is promised")
    uncapped_w = float(np.interp(asked, curve.at, curve.watts))
    for share in np.arange(math.ceil(LEAST_CAP / STEP), round(1.0 / STEP)) * STEP:
        cap_w = float(math.ceil(round(share * engine.default_w, 6)))
        if cap_w < engine.least_w or cap_w >= engine.default_w:
            continue
        found = _under(curve, cap_w, engine, terms, needed, may_limit=may_limit)
        if found is None:
            continue
        number, limit = found
        draw_w = min(cap_w, float(curve.watts[number]))
        if draw_w > (1.0 - WORTH) * uncapped_w:
            break
        return _setting(curve, cap_w, number, limit, engine, terms, needed, uncapped_w, demand)
    return Setting(None, None, f"no cap that is worth it keeps its promises at {demand:.0f} requests at once")


def _under(
    curve: Curve, cap_w: float, engine: Engine, terms: Terms, needed: float, *, may_limit: bool
) -> tuple[int, int | None] | None:
    """Where on the curve the needed tokens are made under a cap, and the limit on requests that holds the latencies in a burst
    (None: none is needed, or may be set); None where the cap breaks the terms."""
    speed = engine_speed(np.float64(cap_w / engine.default_w), curve.watts / engine.default_w, engine.gpu)  # type: ignore[arg-type]
    enough = np.flatnonzero(curve.tokens * speed >= needed * (1.0 - 1e-9))
    if not len(enough):
        return None
    within = np.ones(len(curve.at), dtype=bool)
    for metric, limit_s in terms.limits_s.items():
        within &= curve.latencies[metric] / speed <= terms.latency_share * limit_s
    kept = len(within) if within.all() else int(np.argmin(within))  # latencies only rise along the curve
    number = int(enough[0])
    if number >= kept:
        return None
    if not may_limit or kept == len(within):
        return number, None
    limit = int(curve.at[kept - 1])
    # As a whole number it must still be enough.
    return (number, limit) if limit >= 1 and limit >= curve.at[number] else None


def _setting(
    curve: Curve,
    cap_w: float,
    number: int,
    limit: int | None,
    engine: Engine,
    terms: Terms,
    needed: float,
    uncapped_w: float,
    demand: float,
) -> Setting:
    share = np.float64(cap_w / engine.default_w)
    speed = engine_speed(share, curve.watts / engine.default_w, engine.gpu)  # type: ignore[arg-type]
    draw_w = min(cap_w, float(curve.watts[number]))
    latency_s = {metric: float(some[number] / speed[number]) for metric, some in curve.latencies.items()}
    last = number if limit is None else int(np.searchsorted(curve.at, limit, side="right")) - 1
    burst_s = {metric: float(some[last] / speed[last]) for metric, some in curve.latencies.items()}
    made = float(curve.tokens[number] * speed[number])
    held = ", ".join(f"{metric} {latency_s[metric]:.3g} of {limit_s:g} s" for metric, limit_s in terms.limits_s.items())
    at_once = "" if limit is None else f" and {limit} requests at once"
    basis = INFERENCE.name + ("" if family(engine.gpu) == (INFERENCE.gpu, True) else " as a proxy")
    sentence = (
        f"its GPUs are capped at {cap_w:.0f} of {engine.default_w:.0f} W{at_once}: {needed:.0f} tokens/s are enough for "
        f"{demand:.0f} requests at once and a margin, at about {draw_w:.0f} instead of {uncapped_w:.0f} W each"
        f"{': ' + held if held else ''} ({basis})"
    )
    return Setting(cap_w, limit, sentence, float(curve.at[number]), made, needed, latency_s, burst_s, draw_w, uncapped_w)


# --- when ---------------------------------------------------------------------------------------------------------


def why_not_calm(risks: Sequence[Risk], level: Level, most_burn: float) -> str:
    """Why nothing may be turned down now: an objective that is not met, or burns ``most_burn`` of its budget or more over the
    short or the long window (a gauge: of its limit), or batch that has to step aside; empty where all is calm."""
    if not risks:
        return "it is not judged yet"
    for risk in risks:
        if risk.state != "met" or max(risk.short_burn, risk.long_burn) >= most_burn:
            return risk.sentence
    return "batch beside it had to step aside" if level > Level.CALM else ""


class Patience:
    """How long all must be calm before knobs are turned down: ``calm_s``, and from the second time on that this ended badly
    twice as long each time, up to an hour; forgiven after an hour more of calm."""

    def __init__(self, calm_s: float = CALM_S) -> None:
        self._least_s = self.wait_s = calm_s
        self._since_s: float | None = None
        self._now_s = -math.inf
        self._relapsed = False

    def step(self, now_s: float, *, is_calm: bool, is_tuned: bool) -> bool:
        """Whether knobs may be down from now on; ``is_tuned``: whether any is. A clock that goes backwards stands still."""
        now_s = self._now_s = max(now_s, self._now_s)
        if not is_calm:
            self._since_s = None
            if is_tuned:
                if self._relapsed:
                    self.wait_s = max(self._least_s, min(2 * self.wait_s, MOST_CALM_S))
                self._relapsed = True
            return False
        if self._since_s is None:
            self._since_s = now_s
        calm_s = now_s - self._since_s
        if calm_s >= self.wait_s + FORGIVEN_S:
            self.wait_s, self._relapsed = self._least_s, False
        return calm_s >= self.wait_s


class Replicas:
    """How many replicas there should be: more at once, fewer only after ``down_s`` in which all that time fewer were enough."""

    def __init__(self, least: int, most: int, down_s: float) -> None:
        self._least, self._most, self._down_s = least, most, down_s
        self.count = most
        self._since_s: float | None = None
        self._highest = 0

    def full(self) -> None:
        """All of them, at once."""
        self.count, self._since_s = self._most, None

    def step(self, now_s: float, needed: float) -> int:
        """The number from now on, where ``needed`` replicas bear the demand."""
        wanted = min(max(math.ceil(needed - 1e-9), self._least), self._most)
        if wanted >= self.count:
            self.count, self._since_s = wanted, None
            return self.count
        if self._since_s is None:
            self._since_s, self._highest = now_s, wanted
        self._highest = max(self._highest, wanted)
        if now_s - self._since_s >= self._down_s:
            self.count, self._since_s = self._highest, None
        return self.count
