"""Whether the process lives, whether it can work, and its figures for Prometheus.

It knows what the control plane last told of itself; it measures nothing.
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.api.answers import in_thread, json_response
from dispatcher.api.services import Services
from dispatcher.errors import GridshiftError
from policies.world import JobState

#: A control loop that has not run for so many wall seconds (or periods) does not live.
SILENT_S, SILENT_PERIODS = 15.0, 10.0
_CONTROL = "control"


def problems(services: Services) -> list[str]:
    """Why the control plane cannot work now, as sentences. Blocks."""
    found = []
    if not services.store.healthy():
        found.append("the database does not answer")
    control = [loop for loop in services.snapshot().loops if loop.name == _CONTROL]
    if not control:
        found.append("the control loop does not run")
    for loop in control:
        if loop.silent_s is None or loop.silent_s > max(SILENT_S, SILENT_PERIODS * loop.period_s):
            found.append("the control loop has not run lately")
        if loop.last_error is not None:
            found.append("the control loop fails; /v1/status says how")  # this page needs no token, so it tells no more
    return found


async def healthz(request: Request) -> Response:
    """The process answers."""
    return json_response({"ok": True})


class Health:
    """``/readyz`` and ``/metrics``."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._registry = CollectorRegistry()
        self.submissions = Counter("gridshift_submissions", "Submissions by outcome.", ["outcome"], registry=self._registry)
        for outcome in ("accepted", "refused"):
            self.submissions.labels(outcome)
        self._registry.register(_Figures(services))

    async def readyz(self, request: Request) -> Response:
        """200 when the database answers and the control loop runs, else 503 with what is wrong."""
        found = await in_thread(problems, self._services)
        return json_response({"ready": not found, "problems": found}, 503 if found else 200)

    async def metrics(self, request: Request) -> Response:
        """Figures in Prometheus' text format."""
        return Response(await in_thread(generate_latest, self._registry), media_type=CONTENT_TYPE_LATEST)


class _Figures(Collector):
    """Reads the store and the last snapshot when Prometheus asks."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: collecting needs the control plane, which may not be there yet."""
        return []

    def collect(self) -> Iterable[Metric]:
        """The figures now. What cannot be read is left out, never told as zero."""
        services = self._services
        try:
            counts = services.store.counts()
        except GridshiftError:
            counts = None
        if counts is not None:
            jobs = GaugeMetricFamily("gridshift_jobs", "Jobs by state.", labels=["state"])
            for state in JobState:
                jobs.add_metric([state.value], counts.get(state, 0))
            yield jobs
        snapshot = services.snapshot()
        reachable = GaugeMetricFamily("gridshift_region_reachable", "1 when the cluster answered lately.", labels=["region"])
        draw = GaugeMetricFamily("gridshift_region_draw_watts", "Modelled draw of gridshift's jobs.", labels=["region"])
        limit = GaugeMetricFamily("gridshift_region_budget_watts", "Limit in force, when there is one.", labels=["region"])
        gpus = GaugeMetricFamily("gridshift_region_gpus_used", "GPUs taken by gridshift's jobs.", labels=["region"])
        for region in snapshot.regions:
            reachable.add_metric([region.name], float(region.reachable))
            draw.add_metric([region.name], region.draw_w)
            gpus.add_metric([region.name], region.gpus_used)
            if region.budget_w is not None:
                limit.add_metric([region.name], region.budget_w)
        took = GaugeMetricFamily("gridshift_loop_last_seconds", "How long a loop's last run took.", labels=["loop"])
        silent = GaugeMetricFamily("gridshift_loop_silent_seconds", "Time since a loop last began to run.", labels=["loop"])
        failing = GaugeMetricFamily("gridshift_loop_failing", "1 when a loop's last run failed.", labels=["loop"])
        for loop in snapshot.loops:
            took.add_metric([loop.name], loop.last_s)
            failing.add_metric([loop.name], float(loop.last_error is not None))
            if loop.silent_s is not None:
                silent.add_metric([loop.name], loop.silent_s)
        alarms = GaugeMetricFamily("gridshift_alarms", "Things an operator must know.")
        alarms.add_metric([], len(snapshot.alarms))
        yield from (reachable, draw, limit, gpus, took, silent, failing, alarms)
