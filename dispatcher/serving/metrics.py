"""A server's metrics, read for its objectives: from its own page in the text format of Prometheus, or from a Prometheus server.

Each series is counted by itself, from the first time it is seen: a replica that restarts or goes away takes no requests back.
It judges nothing. What is not there is told, and is never zero.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.config_sections import read_secret
from dispatcher.config_serving import ServingConfig, SloConfig, parse_matchers
from dispatcher.errors import ConfigError, GridshiftError
from dispatcher.serving.presets import Measure

CONNECT_S, READ_S = 2.0, 3.0
MAX_BYTES = 8 * 2**20
#: A series that is gone for so long, s, is forgotten; one that comes back sooner goes on where it was.
FORGET_S = 300.0
#: A counter of requests is told as a rate over so long, s: from second to second requests come by chance.
RATE_S = 15.0
#: Counters whose names end so in the text format may be asked for without.
_TOTAL = "_total"


class MetricsError(GridshiftError):
    """Metrics could not be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one objective counts: requests within its limit and in all, since the first reading, or the ``value`` of a gauge;
    how old that is; and what is ``wrong`` with it (then nothing else counts)."""

    good: float | None = None
    total: float | None = None
    value: float | None = None
    age_s: float = 0.0
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One series now; ``age_s`` is how long ago it was scraped."""

    name: str
    labels: Mapping[str, str]
    value: float
    age_s: float = 0.0


Ask = Callable[[str], bytes]


class MetricsReader:
    """Reads one serving, over one connection. Used by one thread."""

    def __init__(
        self, config: ServingConfig, environ: Mapping[str, str], *, mono: Callable[[], float] = time.monotonic
    ) -> None:
        self._config, self._environ, self._mono = config, environ, mono
        self._matchers = parse_matchers(config.match)
        self._measures = [slo.measure(config.preset) or Measure() for slo in config.slos]
        self._sums = [(_Sum(), _Sum()) for _ in config.slos]
        self._loads = config.loads()
        self._load_sums = [_Sum() for _ in self._loads]
        #: When the counters of its load were read last, s, and what they said together.
        self._counted_at: tuple[float, float] | None = None
        timeout = urllib3.Timeout(connect=CONNECT_S, read=READ_S)
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=timeout)

    def close(self) -> None:
        """Let go of the connection."""
        self._pool.clear()

    def read(self) -> Sequence[Counted]:
        """What each objective counts now and, where it is asked for, last the load, in ``value`` (None: nothing new). Raises
        MetricsError when nothing can be read at all."""
        names = sorted({name for measure in (*self._measures, *self._loads) for name in _names(measure)})
        samples = self._page(names) if self._config.source == "metrics" else self._asked(names)
        by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            by_name.setdefault(sample.name, []).append(sample)
        now_s, out = self._mono(), []
        for slo, measure, sums in zip(self._config.slos, self._measures, self._sums, strict=True):
            try:
                out.append(_counted(slo, measure, by_name, sums, now_s))
            except MetricsError as error:
                out.append(Counted(wrong=str(error)))
        if self._loads:
            try:
                out.append(self._load(by_name, now_s))
            except MetricsError as error:
                out.append(Counted(wrong=str(error)))
        return out

    def _load(self, by_name: Mapping[str, list[Sample]], now_s: float) -> Counted:
        """What the server has to do; a counter says so each RATE_S only. Raises MetricsError where its series are not there."""
        load, age_s = 0.0, 0.0
        for measure, total in zip(self._loads, self._load_sums, strict=True):
            series = _series(measure.gauge or measure.total, by_name)
            age_s = max(age_s, *(one.age_s for one in series))
            if measure.gauge:
                load += sum(one.value for one in series)
            else:
                load += total.add({_key(one.labels): one.value for one in series}, now_s)
        if not any(measure.total for measure in self._loads):
            return Counted(value=load, age_s=age_s)
        at_s, before = now_s - age_s, self._counted_at
        if before is not None and at_s - before[0] < RATE_S:
            return Counted(age_s=age_s)
        self._counted_at = (at_s, load)
        return Counted(value=None if before is None else (load - before[1]) / (at_s - before[0]), age_s=age_s)

    def _page(self, names: Sequence[str]) -> Iterable[Sample]:
        """The series of the server's own page that match."""
        body = self._get(self._config.url)
        wanted = {*names, *(name + _TOTAL for name in names)}
        try:
            for family in text_string_to_metric_families(body.decode("utf-8")):
                for one in family.samples:
                    if one.name in wanted and self._matches(one.labels):
                        yield Sample(one.name, one.labels, float(one.value))
        except (ValueError, UnicodeDecodeError, KeyError, IndexError) as error:
            raise MetricsError(f"{self._config.url} is no page of metrics: {str(error)[:200]}") from None

    def _matches(self, labels: Mapping[str, str]) -> bool:
        for label, operator, value in self._matchers:
            has = labels.get(label, "")
            hit = has == value if operator in ("=", "!=") else re.fullmatch(value, has) is not None
            if hit == operator.startswith("!"):
                return False
        return True

    def _asked(self, names: Sequence[str]) -> Iterable[Sample]:
        """The series that a Prometheus server has now, and how long ago it scraped each. One that it cannot scrape any more it
        does not tell of."""
        match = f"{{{self._config.match}}}" if self._config.match else ""
        for name in names:
            for one in (name, name + _TOTAL):
                told = self._query(f"{one}{match}")
                if told:
                    scraped = {_key(labels): at for labels, at, _ in self._query(f"timestamp({one}{match})")}
                    for labels, value, now in told:
                        yield Sample(one, labels, value, max(0.0, now - scraped.get(_key(labels), now)))
                    break

    def _query(self, query: str) -> list[tuple[Mapping[str, str], float, float]]:
        """(labels, value, when that was worked out) of each series, times in s since the epoch."""
        body = self._get(f"{self._config.url}/api/v1/query?{urlencode({'query': query, 'timeout': f'{READ_S:g}s'})}")
        try:
            answer: Any = json.loads(body)
            if answer["status"] != "success":
                raise MetricsError(f"Prometheus refuses {query!r}: {str(answer.get('error', 'no reason given'))[:200]}")
            found: list[tuple[Mapping[str, str], float, float]] = []
            for one in answer["data"]["result"]:
                labels = {key: value for key, value in one["metric"].items() if key != "__name__"}
                found.append((labels, float(one["value"][1]), float(one["value"][0])))
            return found
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            raise MetricsError(f"{self._config.url} does not answer as Prometheus does; is it one?") from None

    def _get(self, url: str) -> bytes:
        headers = {"Accept": "application/json" if self._config.source == "prometheus" else "text/plain"}
        try:
            token = read_secret("token", self._config.token_env, self._config.token_file, self._environ)
        except ConfigError as error:
            raise MetricsError(str(error)) from None
        if token:
            headers["Authorization"] = f"Bearer {token}"
        where = self._config.url
        try:
            answer = self._pool.request("GET", url, headers=headers, redirect=False, preload_content=False)
            body = self._body(answer)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise MetricsError(f"{where} cannot be asked ({type(error).__name__})") from None
        if answer.status != 200 and not (answer.status in (400, 422) and self._config.source == "prometheus"):
            raise MetricsError(f"{where} answers {answer.status}")
        return body

    def _body(self, answer: urllib3.BaseHTTPResponse) -> bytes:
        """What is answered, all of it; a connection that has more to say than is wanted is not used again."""
        began, body, is_whole = self._mono(), bytearray(), False
        try:
            while chunk := answer.read1(65536):
                body += chunk
                if len(body) > MAX_BYTES:
                    raise MetricsError(f"{self._config.url} sends more than {MAX_BYTES >> 20} MiB; not read further")
                if self._mono() - began > READ_S:
                    raise MetricsError(f"{self._config.url} is not done after {READ_S:g} s")
            is_whole = True
        finally:
            if is_whole:
                answer.release_conn()
            else:
                answer.close()
        return bytes(body)


# --- counting -----------------------------------------------------------------------------------------------------


class _Sum:
    """Counters of several series as one that only grows."""

    def __init__(self) -> None:
        self.total = 0.0
        self._last: dict[str, tuple[float, float]] = {}
        self._begun = False

    def add(self, series: Mapping[str, float], now_s: float) -> float:
        """What was counted since the first call, by all series together."""
        for key, value in series.items():
            if key in self._last:
                before = self._last[key][0]
                self.total += value - before if value >= before else value
            elif self._begun:
                self.total += value  # a replica that has started since
            self._last[key] = (value, now_s)
        self._last = {key: one for key, one in self._last.items() if now_s - one[1] < FORGET_S}
        self._begun = True
        return self.total


def _names(measure: Measure) -> list[str]:
    if measure.histogram:
        return [f"{measure.histogram}_bucket"]
    return [name for name in (measure.gauge, measure.bad, measure.total, measure.good) if name]


def _key(labels: Mapping[str, str], *, but: str = "") -> str:
    return json.dumps(sorted((key, value) for key, value in labels.items() if key != but))


def _counted(
    slo: SloConfig, measure: Measure, samples: Mapping[str, list[Sample]], sums: tuple[_Sum, _Sum], now_s: float
) -> Counted:
    """What one objective counts. Raises MetricsError where its series are not there, or say no numbers."""
    if measure.histogram:
        return _of_histogram(slo, measure, samples, sums, now_s)
    if measure.gauge:
        series = _series(measure.gauge, samples)
        return Counted(value=sum(one.value for one in series), age_s=max(one.age_s for one in series))
    # Servers count failures from the first one on: no series of them yet is no failure, if the other is there.
    others = _series(measure.total or measure.good, samples)
    failed = [*samples.get(measure.bad, ()), *samples.get(measure.bad + _TOTAL, ())]
    if not all(math.isfinite(one.value) for one in failed):
        raise MetricsError(f"{measure.bad} is not a number")
    bad = sums[0].add({_key(one.labels): one.value for one in failed}, now_s)
    other = sums[1].add({_key(one.labels): one.value for one in others}, now_s)
    total = other if measure.total else other + bad
    return Counted(good=max(0.0, total - bad), total=total, age_s=max(one.age_s for one in others))


def _series(name: str, samples: Mapping[str, list[Sample]]) -> list[Sample]:
    found = [*samples.get(name, ()), *samples.get(name + _TOTAL, ())]
    if not found:
        raise MetricsError(f"there is no series {name} (that matches)")
    if not all(math.isfinite(one.value) for one in found):
        raise MetricsError(f"{name} is not a number")
    return found


def _of_histogram(
    slo: SloConfig, measure: Measure, samples: Mapping[str, list[Sample]], sums: tuple[_Sum, _Sum], now_s: float
) -> Counted:
    limit = slo.limit * measure.per_s
    buckets: dict[str, dict[float, float]] = {}
    age_s = 0.0
    for one in _series(f"{measure.histogram}_bucket", samples):
        try:
            bound = float(one.labels["le"])
        except (KeyError, ValueError):
            raise MetricsError(f"{measure.histogram} has a bucket without a bound") from None
        buckets.setdefault(_key(one.labels, but="le"), {})[bound] = one.value
        age_s = max(age_s, one.age_s)
    good, total = {}, {}
    for key, of_series in buckets.items():
        within = [bound for bound in of_series if bound <= limit * (1 + 1e-9)]
        if not within or math.inf not in of_series:
            known = ", ".join(f"{bound / measure.per_s:g}" for bound in sorted(of_series))
            raise MetricsError(
                f"{measure.histogram} has no bucket up to {slo.limit:g} s, but {known} s: choose a limit of those"
            )
        good[key], total[key] = of_series[max(within)], of_series[math.inf]
    return Counted(good=sums[0].add(good, now_s), total=sums[1].add(total, now_s), age_s=age_s)
