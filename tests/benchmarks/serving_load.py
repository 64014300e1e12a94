"""Interactive serving in virtual time, for serving_week: made-up requests by the shape of open traces, and replicas that answer
them as fast as an H100 was measured to.

It knows nothing of batch: how many GPUs its replicas get is said by whoever runs it.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from policies.problem import Floats

DAY_S, STEPS_A_S = 86400, 4
STEP_S = 1.0 / STEPS_A_S

# --- the load: all of this was fixed before anything was run ------------------------------------------------------------

#: Requests a second of all services at their peak, and the shares of each.
PEAK_PER_S = 54.0
SERVICES = ("conv", "code", "mooncake")
SHARE = (0.70, 0.25, 0.05)
#: Load in the deepest valley over the peak, weekend over weekday, and the hour of the peak, local time. Valleys are those that
#: the DynamoLLM paper reports of a week of two Azure services (1/3.3 and 1/34.6); the others are assumed.
VALLEY = (1 / 3.3, 1 / 34.6, 1 / 3.3)
WEEKEND = (0.80, 0.35, 0.80)
PEAK_HOUR = 15.0
#: What differs from week to week: each day's level (standard deviation of its logarithm), a slow drift over half an hour, and
#: surges that no hour of the week tells: how many a week, how high, and how long, s.
DAY_NOISE, DRIFT_NOISE, DRIFT_S = 0.06, 0.04, 1800.0
SURGES_A_WEEK, SURGE, SURGE_RISE_S, SURGE_S = 3.0, 1.5, 120, 900
#: Bursts: pieces of so many seconds of the traces' own counts, in bins of so many.
PIECE_S, BIN_S = 300, (10, 10, 30)
#: Longer prompts are cut: they would have GPUs of their own.
LONGEST_PROMPT = 8192

# --- a replica ------------------------------------------------------------------------------------------------------------

MODEL, TASK = "google/gemma-3-27b-it", "lm-arena-chat"
SLOTS = 32
IDLE_W, PREFILL_W = 75.0, 700.0
#: Prompt tokens a second: half of the card's dense FP16 FLOPS over two FLOPs a parameter and token.
PREFILL_PER_S = 0.5 * 989e12 / (2 * 27e9)
#: Prompts are read in pieces beside the answers that are being written, and take so much of a GPU's time at most: as much as
#: keeps what is promised of the next token, as an operator sets the size of the pieces.
MOST_PREFILL = 0.7
#: A request is answered well when its first token comes within so many s, a token when it comes so soon after the last one.
FIRST_S, NEXT_S = 2.0, 0.100
#: Replicas as Ray Serve scales them: requests wanted at each, the mean taken over, how long more or fewer must be wanted, how
#: long a model loads; fewest and most.
TARGET, LOOK_BACK_S, UP_S, DOWN_S, LOAD_S = 12.0, 30, 30, 600, 60
FEWEST, MOST = 6, 48

#: Where answers end is kept by the number of the token; no answer of the traces is as long.
_RING = 8192


@dataclass(frozen=True)
class Curve:
    """A GPU by how many answers it writes at once: W, s to the next token, and tokens a second at its fullest, as measured."""

    batch: Floats
    watts: Floats
    next_s: Floats
    full_tokens_per_s: float

    @property
    def full_w(self) -> float:
        return float(self.watts[-1])


def curve(folder: Path) -> Curve:
    """From the open data. Between measured batches it is linear, below the least the slope goes on to one answer, and from
    there to none it falls to idle."""
    table = pd.read_csv(folder / "mlenergy" / "llm_batch_power.csv")
    mine = (table.model_id == MODEL) & (table.task == TASK) & (table.gpu_model == "H100") & (table.num_gpus == 1)
    rows = table[mine].sort_values("avg_batch_size")
    batch, watts = rows.avg_batch_size.to_numpy(float), rows.avg_power_watts.to_numpy(float)
    next_s = rows.median_itl_ms.to_numpy(float) / 1e3
    below = (1.0 - batch[0]) / (batch[1] - batch[0])
    one_w, one_s = watts[0] + below * (watts[1] - watts[0]), next_s[0] + below * (next_s[1] - next_s[0])
    return Curve(
        np.concatenate(([0.0, 1.0], batch)),
        np.concatenate(([IDLE_W, one_w], watts)),
        np.concatenate(([one_s, one_s], next_s)),
        float(rows.output_throughput_tokens_per_sec.iloc[-1]),
    )


@dataclass(frozen=True)
class Traffic:
    """Requests that come in each quarter of a second (steps, services), and the lengths they are drawn from, tokens (prompt,
    answer); ``first`` is where each service's begin."""

    counts: NDArray[np.int16]
    lengths: NDArray[np.int32]
    first: NDArray[np.int64]
    seed: int


def _traces(folder: Path) -> list[tuple[Floats, NDArray[np.int32]]]:
    """Times, s, and lengths of each trace."""
    found = []
    for name in ("conv", "code"):
        table = pd.read_csv(folder / f"AzureLLMInferenceTrace_{name}.csv.gz")
        at = pd.to_datetime(table.TIMESTAMP)
        lengths = table[["ContextTokens", "GeneratedTokens"]].to_numpy(np.int32)
        found.append(((at - at.min()).dt.total_seconds().to_numpy(), lengths))
    table = pd.read_csv(folder / "mooncake_conversation.csv.gz")
    found.append((table.timestamp_ms.to_numpy() / 1e3, table[["input_length", "output_length"]].to_numpy(np.int32)))
    return found


def _bursts(at_s: Floats, bin_s: int, peak_per_s: float, seconds: int, rng: np.random.Generator) -> Floats:
    """Load over its mean at each second, from pieces of a trace drawn at random. A larger service than the trace's is as many
    of it beside each other."""
    bins = int(at_s.max() // bin_s)
    counts = np.bincount((at_s // bin_s).astype(int), minlength=bins + 1)[:bins] / (len(at_s) * bin_s / at_s.max())
    long = PIECE_S // bin_s
    pieces = math.ceil(seconds / PIECE_S)
    beside = max(1, math.ceil(peak_per_s / (len(at_s) / at_s.max())))
    total = np.zeros(pieces * long)
    for _ in range(beside):
        starts = rng.integers(0, bins - long + 1, pieces)
        total += counts[(starts[:, None] + np.arange(long)).ravel()]
    return np.repeat(total / beside, bin_s)[:seconds]


def traffic(folder: Path, days: int, first_weekday: int, seed: int) -> Traffic:
    """Requests of so many days from a local midnight on; ``first_weekday`` 0 is a Monday."""
    rng = np.random.default_rng(seed)
    seconds = days * DAY_S
    now = np.arange(seconds)
    hour = now % DAY_S / 3600.0
    rise = 0.5 + 0.5 * np.cos(2 * np.pi * (hour - PEAK_HOUR) / 24.0)
    weekend = (first_weekday + now // DAY_S) % 7 >= 5
    common = np.repeat(np.exp(rng.normal(0.0, DAY_NOISE, days)), DAY_S)
    every_s = 60
    drift, keep = np.zeros(seconds // every_s), math.exp(-every_s / DRIFT_S)
    steps = rng.normal(0.0, DRIFT_NOISE * math.sqrt(1 - keep**2), len(drift))
    for i in range(1, len(drift)):
        drift[i] = keep * drift[i - 1] + steps[i]
    common *= np.exp(np.repeat(drift, every_s))
    surges = rng.poisson(SURGES_A_WEEK * days / 7)
    for start in rng.integers(0, seconds, surges).tolist():
        since = now[start : start + SURGE_S] - start
        common[start : start + SURGE_S] *= 1.0 + (SURGE - 1.0) * np.minimum(
            1.0, np.minimum(since, SURGE_S - since) / SURGE_RISE_S
        )
    counts = np.empty((seconds * STEPS_A_S, len(SERVICES)), dtype=np.int16)
    traces = _traces(folder)
    for number, (at_s, _) in enumerate(traces):
        peak = PEAK_PER_S * SHARE[number]
        shape = VALLEY[number] + (1.0 - VALLEY[number]) * rise
        rate = peak * shape * np.where(weekend, WEEKEND[number], 1.0) * common
        rate *= _bursts(at_s, BIN_S[number], peak, seconds, rng)
        counts[:, number] = rng.poisson(np.repeat(rate / STEPS_A_S, STEPS_A_S))
    lengths = np.concatenate([one for _, one in traces])
    lengths[:, 0] = np.minimum(lengths[:, 0], LONGEST_PROMPT)
    first = np.cumsum([0, *(len(one) for _, one in traces)]).astype(np.int64)
    return Traffic(counts, lengths, first, seed)


#: What ``Server.second`` tells of a second.
WRITING, IN_LINE, TOKENS, LATE_TOKENS, REQUESTS, LATE, JOULES, SEEN = range(8)


class Server:
    """All replicas of the model, requests spread evenly over them. The same requests come whatever they get."""

    def __init__(self, requests: Traffic, gpu: Curve) -> None:
        self._requests, self._gpu = requests, gpu
        self._left = requests.counts.copy()
        self._ends = np.zeros(_RING, dtype=np.int64)
        # tokens written by an answer that began at the start; answers being written; the first step that still waits; requests
        # that wait; s of prompts to be read
        self._state = np.zeros(5)
        self._told = np.zeros(SEEN)

    def copy(self) -> "Server":
        """Another one in the same state."""
        other = Server(self._requests, self._gpu)
        other._left[:], other._ends[:], other._state[:] = self._left, self._ends, self._state
        return other

    def second(self, number: int, replicas: int) -> list[float]:
        """A second with so many replicas."""
        gpu, asked = self._gpu, self._requests
        _second(
            number, replicas, self._left, asked.counts, asked.lengths, asked.first, asked.seed,
            self._ends, self._state, gpu.batch, gpu.watts, gpu.next_s, self._told,
        )  # fmt: skip
        told: list[float] = self._told.tolist()
        return told


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _drawn(seed: int, step: int, service: int, number: int, choices: int) -> int:
    """One of so many, the same for the same request."""
    x = np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(step) * np.uint64(0xBF58476D1CE4E5B9)
    x += np.uint64(service) * np.uint64(0x94D049BB133111EB) + np.uint64(number)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((x ^ (x >> np.uint64(31))) % np.uint64(choices))


@numba.njit(cache=True)  # type: ignore[untyped-decorator]
def _second(
    number: int, replicas: int, left: Any, counts: Any, lengths: Any, first: Any, seed: int, ends: Any, state: Any,
    batch: Any, watts: Any, next_s: Any, told: Any,
) -> None:  # fmt: skip
    written, writing, head, waiting, reading_s = state[0], state[1], int(state[2]), state[3], state[4]
    told[:] = 0.0
    for step in range(number * STEPS_A_S, (number + 1) * STEPS_A_S):
        for service in range(counts.shape[1]):
            waiting += counts[step, service]
        # 1. who has waited longest gets a slot
        free = replicas * SLOTS - int(writing)
        while free > 0 and head <= step:
            for service in range(counts.shape[1]):
                while left[head, service] > 0 and free > 0:
                    left[head, service] -= 1
                    drawn = _drawn(seed, head, service, left[head, service], first[service + 1] - first[service])
                    prompt, answer = lengths[first[service] + drawn]
                    reading_s += prompt / PREFILL_PER_S
                    first_s = (step - head) * STEP_S + reading_s / replicas + next_s[1]
                    first_s = max(first_s, prompt / PREFILL_PER_S)
                    ends[(int(written) + 1 + max(answer, 1)) % _RING] += 1
                    waiting, writing, free = waiting - 1, writing + 1, free - 1
                    told[REQUESTS] += 1
                    told[LATE] += first_s > FIRST_S
            if free > 0:
                head += 1
        if replicas == 0:
            continue
        # 2. prompts are read, and answers written in the time that is left
        share = min(reading_s / (replicas * STEP_S), MOST_PREFILL)
        reading_s -= share * replicas * STEP_S
        at_once = writing / replicas
        each_s = np.interp(at_once, batch, next_s) / (1.0 - share)
        ahead = written + STEP_S / each_s
        told[TOKENS] += writing * STEP_S / each_s
        told[LATE_TOKENS] += writing * STEP_S / each_s * (each_s > NEXT_S)
        for token in range(int(written) + 1, int(ahead) + 1):
            writing -= ends[token % _RING]
            ends[token % _RING] = 0
        written = ahead
        told[JOULES] += replicas * STEP_S * (share * PREFILL_W + (1.0 - share) * np.interp(at_once, batch, watts))
    told[WRITING], told[IN_LINE] = writing, waiting
    state[0], state[1], state[2], state[3], state[4] = written, writing, head, waiting, reading_s


class Replicas:
    """How many there are, how many load their model, and how many are wanted, as Ray Serve's autoscaler goes about it."""

    def __init__(self, count: int) -> None:
        self.ready, self.wanted = count, count
        self.loading: list[int] = []  # when each is there
        self._seen = np.zeros(LOOK_BACK_S)
        self._above_s = self._below_s = 0

    @property
    def held(self) -> int:
        """GPUs that it has."""
        return self.ready + len(self.loading)

    @property
    def missing(self) -> int:
        """GPUs that it wants and has not."""
        return max(0, self.wanted - self.held)

    def step(self, now_s: int, requests: float, free: int) -> None:
        """A second: so many requests were there, and so many GPUs are free."""
        self._seen[now_s % LOOK_BACK_S] = requests
        desired = min(max(math.ceil(float(self._seen.mean()) / TARGET), FEWEST), MOST)
        self._above_s = self._above_s + 1 if desired > self.wanted else 0
        self._below_s = self._below_s + 1 if desired < self.wanted else 0
        if self._above_s > UP_S or self._below_s > DOWN_S:
            self.wanted, self._above_s, self._below_s = desired, 0, 0
        while self.loading and self.loading[0] <= now_s:
            self.loading.pop(0)
            self.ready += 1
        got = min(self.missing, max(0, free))
        self.loading += [now_s + LOAD_S] * got
        while self.held > self.wanted:
            if self.loading:
                self.loading.pop()
            elif (self.ready - 1) * SLOTS >= requests:
                self.ready -= 1
            else:
                break
