"""A control plane for tests of the API: real stores in memory and on disk, no clusters; tests move the jobs along."""

import functools
import hashlib
import hmac
import threading
import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import requests
import uvicorn

from dispatcher.api.app import create_app
from dispatcher.api.intake import IntakeProtocol
from dispatcher.api.services import AlarmStatus, LoopStatus, RegionStatus, Snapshot
from dispatcher.clock import SystemClock
from dispatcher.config import Config
from dispatcher.dr.hints import Hints
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.vens import make_vens
from dispatcher.errors import GridshiftError
from dispatcher.logs import LogStore
from dispatcher.packages import PackageStore
from dispatcher.power.energy import EnergyBook
from dispatcher.power.fleet import Fleet, fleet_of
from dispatcher.power.hub import Hub
from dispatcher.power.meter_store import MemoryMeterStore
from dispatcher.power.site_meters import SiteMeters
from dispatcher.serving.watch import ServingStatus
from dispatcher.signal_book import ChainStatus, SourceStatus
from dispatcher.store import Attempt, Change, Job
from dispatcher.store.engine import database, make_engine
from dispatcher.store.memory import MemoryStore
from dispatcher.store.migrate import upgrade
from policies.world import Alternative, JobState, RegionView, World
from signals.memory_store import MemorySignalStore
from signals.series import SlotSeries
from tests.helpers import free_port, wait_until

REGIONS = [{"name": name, "address": f"http://127.0.0.1:{port}", "pue": 1.0} for name, port in (("north", 1), ("south", 2))]


def north_price(at: datetime) -> ChainStatus:
    """The chain of north's price: its first source does not answer, its second is used."""
    fails = SourceStatus(
        "energy_charts", "energy_charts", "failed", False, "no answer", None, None, None, at, "no answer", ("odd row",)
    )
    holds = SourceStatus("csv", "csv", "fresh", True, "is fresh", 12.5, at, "measured", at, None, ())
    return ChainStatus("north", "price", "price", "energy_charts: no answer; csv: is fresh", (fails, holds))


class FakeServices:
    """See dispatcher.api.services.Services; every intent is counted, nothing is acted on unless a test does it."""

    def __init__(self, base: Path, **config: Any) -> None:
        self.config = Config(**{"region": REGIONS, **config})
        self.clock: Any = SystemClock()
        self.store: Any = MemoryStore()
        self.packages = PackageStore(base / "packages", int(self.config.server.max_package_mb * 1e6))
        self.logs = LogStore(base / "logs")
        self.signals = MemorySignalStore()
        self.data_dir = base
        self.hub = Hub(epoch=1)
        self.meters = SiteMeters(self.config, MemoryMeterStore())
        self.nudges = 0
        self.load_w: float | None = None
        self.event_intake = EventIntake(
            self.config, self.store, self.clock, load=lambda region, branch: self.load_w, nudge=self.nudge
        )
        self.hints = {
            source.name: Hints(source, self.event_intake, self.store, self.clock)
            for source in self.config.event_sources
            if source.protocol == "pointer"
        }
        self.vens = make_vens(
            self.config.event_sources, self.event_intake, self.store, self.clock, callback_token=lambda name: f"token of {name}"
        )
        self.plan: Any = None
        self.planner = "ready"
        self.views: tuple[RegionView, ...] | None = None
        self.explains: tuple[Alternative, ...] | GridshiftError = ()
        self.chains = [north_price(datetime(2026, 1, 1, tzinfo=UTC))]
        self.loads: dict[str, SlotSeries] = {}
        self.servings: list[ServingStatus] = []
        self.asked_as_of: datetime | None = None
        self.control_error: str | None = None
        self.control_silent_s: float | None = 0.5

    def admit(self, job: Job) -> "Future[Job]":
        """Store it."""
        future: Future[Job] = self.store.add_job(job, "submitted")
        self.nudge()
        return future

    def nudge(self) -> None:
        """Count."""
        self.nudges += 1

    def job_token(self, submission_id: str) -> str:
        """As the server makes it."""
        return hmac.new(b"secret", submission_id.encode(), hashlib.sha256).hexdigest()

    def agent_token(self, region: str) -> str:
        """As the server makes it."""
        return hmac.new(b"secret", f"agents {region}".encode(), hashlib.sha256).hexdigest()

    @functools.cached_property
    def energy(self) -> EnergyBook:
        """A book of its own, made when it is first asked for."""
        url = f"sqlite:///{self.data_dir}/energy.db"
        upgrade(url)
        return EnergyBook(make_engine(database(url)))

    def fleet(self) -> Fleet:
        """What the hub's nodes draw."""
        names = [region.name for region in self.config.regions]
        return fleet_of(self.hub.nodes(), (), names, {("north", "rack-1"): 5000.0}, self.clock.now())

    def explain(self, job_id: str) -> tuple[Alternative, ...]:
        """What a test says, or the error it wants."""
        if isinstance(self.explains, GridshiftError):
            raise self.explains
        return self.explains

    def serving(self) -> list[ServingStatus]:
        """What a test sets."""
        return self.servings

    def signal_series(self, region: str, what: str) -> SlotSeries | None:
        """The loads that a test sets."""
        return self.loads.get(region) if what == "load" else None

    def signal_chains(self, now: datetime) -> list[ChainStatus]:
        """North's price is from its second source, for the first does not answer."""
        self.asked_as_of = now
        return self.chains

    def region_views(self) -> tuple[RegionView, ...]:
        """What a test sets, else those of the snapshot."""
        return self.views if self.views is not None else self.snapshot().world.regions

    def snapshot(self) -> Snapshot:
        """Two regions, one of them silent."""
        now = self.clock.now()
        start = now - timedelta(minutes=5)
        price = SlotSeries(
            start,
            900,
            (50.0, None, -3.0),
            ("published", "unknown", "model"),
            "EUR/MWh",
            "csv",
            low=(None, None, -9.0),
            high=(None, None, 4.5),
            reason="model of 182 days of history",
        )
        view = RegionView("north", True, 8.0, None, None, price, None)
        other = RegionView("south", False, None, None, None, None, None)
        return Snapshot(
            world=World(now, (), (view, other), settings=self.config.planner_settings(), plan=self.plan),
            regions=(
                RegionStatus("north", "http://127.0.0.1:1", True, now, None, "2.60.0", 8.0, 2.0, 1, 800.0, 500.0),
                RegionStatus("south", "http://127.0.0.1:2", False, None, "refused", None, None, 0.0, 0, 0.0, None),
            ),
            alarms=(AlarmStatus("unreachable south", "south", "south does not answer", now),),
            loops=(LoopStatus("control", 1.0, now, 0.01, 5, self.control_error, self.control_silent_s),),
            planner=self.planner,
        )

    # --- moving jobs along ----------------------------------------------------------------------------------------

    def change(self, job_id: str, *, to: JobState | None = None, reason: str = "moved", **fields: Any) -> Job:
        """One change, whatever the state before."""
        job = self.store.job(job_id)
        outcome = self.store.apply(
            [Change(job_id, self.clock.now(), "state", reason, expect=job.state, to=to, fields=fields)]
        ).result()[0]
        assert isinstance(outcome, Job), outcome
        return outcome

    def launch(self, job_id: str, region: str = "north") -> Attempt:
        """Start the next attempt and let it run."""
        job, now = self.store.job(job_id), self.clock.now()
        number = job.attempt + 1
        attempt = Attempt(job_id, number, region, f"{job_id}-{number}", now)
        change = Change(
            job_id,
            now,
            "state",
            f"starting in {region}",
            expect=job.state,
            to=JobState.LAUNCHING,
            new_attempt=attempt,
            fields={"region": region},
        )
        outcome = self.store.apply([change]).result()[0]
        assert isinstance(outcome, Job), outcome
        self.logs.begin(job_id, number, region, now)
        self.change(job_id, to=JobState.RUNNING, reason=f"running in {region}", started_at=now, run_started_at=now)
        return attempt

    def say(self, attempt: Attempt, text: str) -> None:
        """Add to an attempt's log."""
        self.logs.append(attempt.job_id, attempt.attempt, text.encode())

    def end(self, attempt: Attempt, to: JobState, reason: str = "finished") -> Job:
        """End the attempt and, in an ended state, the job."""
        job, now = self.store.job(attempt.job_id), self.clock.now()
        change = Change(
            attempt.job_id,
            now,
            "state",
            reason,
            expect=job.state,
            to=to,
            attempt_fields={"ended_at": now, "outcome": "stopped"},
        )
        outcome = self.store.apply([change]).result()[0]
        assert isinstance(outcome, Job), outcome
        self.logs.settle(attempt.job_id, attempt.attempt)
        return outcome

    def run_all(self, stop: threading.Event, text: str = "hello from the job\n") -> None:
        """Run every queued job to success and obey cancels, until told to stop: a control loop in small."""
        while not stop.is_set():
            for job in self.store.jobs_changed_since(0)[0]:
                if job.cancel_requested_at is not None:
                    attempts = self.store.live_attempts()
                    mine = [a for a in attempts if a.job_id == job.id]
                    if mine:
                        self.end(mine[0], JobState.CANCELLED, "cancelled")
                    else:
                        self.change(job.id, to=JobState.CANCELLED, reason="cancelled")
                elif job.state is JobState.QUEUED and not job.flex.flexible:
                    attempt = self.launch(job.id)
                    self.say(attempt, text)
                    if "sleep" not in job.request.entrypoint:
                        failed = "false" in job.request.entrypoint
                        self.end(attempt, JobState.FAILED if failed else JobState.SUCCEEDED)
            time.sleep(0.02)


class Server:
    """uvicorn in a thread, as real as the control plane's own."""

    def __init__(self, services: FakeServices, port: int | None = None) -> None:
        self.services, self.port = services, port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            create_app(services), host="127.0.0.1", port=self.port, log_level="error", access_log=False, http=IntakeProtocol
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.http = requests.Session()
        self.http.trust_env = False

    def __enter__(self) -> "Server":
        self.thread.start()
        wait_until(lambda: self.server.started, 20, "the server to start")
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(20)

    def call(self, method: str, path: str, **more: Any) -> requests.Response:
        """One request."""
        return self.http.request(method, self.url + path, timeout=30, **more)

    def get(self, path: str, **more: Any) -> Any:
        """GET of JSON that must be there."""
        answer = self.call("GET", path, **more)
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()

    def submit(self, job_id: str, entrypoint: str = "true", **more: Any) -> requests.Response:
        """POST as Ray's client does."""
        return self.call("POST", "/api/jobs/", json={"entrypoint": entrypoint, "submission_id": job_id, **more})


def in_an_hour() -> str:
    """A deadline."""
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()
