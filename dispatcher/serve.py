"""Puts the control plane together and runs it until it is told to stop.

Nothing is decided here: this module builds the parts from the configuration, starts them in order and stops them in reverse.
"""

import asyncio
import contextlib
import gc
import hashlib
import hmac
import logging
import os
import secrets as random_secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from dispatcher.agent.messages import MAX_FRAME_BYTES
from dispatcher.api.app import create_app, our_version
from dispatcher.api.intake import IntakeProtocol
from dispatcher.api.patience import allow_many_files
from dispatcher.api.services import Snapshot
from dispatcher.before_events import BeforeEvents
from dispatcher.checkpoints import tidy
from dispatcher.clock import Clock, ReplayClock, Steady, SystemClock
from dispatcher.clusters.ray_http import RayCluster
from dispatcher.config import Config, RegionConfig
from dispatcher.config_outside import check_outside
from dispatcher.control import Control
from dispatcher.dr.hints import Hints
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.site_readings import SiteReadings
from dispatcher.dr.trigger_watch import Triggers
from dispatcher.dr.vens import Vens, make_vens
from dispatcher.errors import ConfigError, GridshiftError, PackageRejected
from dispatcher.flexibility import outlooks_of
from dispatcher.forecasts import Forecasts
from dispatcher.freezing import Freezes
from dispatcher.job_helpers import store_helper_package
from dispatcher.launching import Secrets
from dispatcher.leader import Leadership
from dispatcher.logs import LogFollower, LogStore
from dispatcher.loops import LiveLoops, Loop
from dispatcher.packages import PackageStore, package_names
from dispatcher.plan_worker import ForecastWorker, PlanWorker
from dispatcher.power.agent_sums import draw_of
from dispatcher.power.caps import CapLoop
from dispatcher.power.deploy import LOOK_S, AgentDeployer, has_gpus, store_agent_package, troubles
from dispatcher.power.emergency import Step
from dispatcher.power.energy import EnergyBook, Keep
from dispatcher.power.fleet import Fleet
from dispatcher.power.fleet_now import FleetNow
from dispatcher.power.hub import Former, Hub
from dispatcher.power.meter_store import MeterStore
from dispatcher.power.site_meters import SiteMeters
from dispatcher.regions import Region
from dispatcher.serving.account import ServingAccount
from dispatcher.serving.demand import DemandBook
from dispatcher.serving.metrics import MetricsReader
from dispatcher.serving.tuning import ServingTuning
from dispatcher.serving.watch import ServingStatus, ServingWatch, source_of
from dispatcher.signal_book import ChainStatus, SignalBook
from dispatcher.store import Attempt, GridEventChange, Job, Store
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from policies.world import Alternative, Pausable, RegionView
from signals.series import SlotSeries
from signals.store import SignalStore

log = logging.getLogger("gridshift")

#: Feeds that are asked at the same time.
FEEDS_AT_ONCE = 8
#: The setting in which the number of control planes so far stands: agents obey none with a lower one.
EPOCH_SETTING = "agents.epoch"
#: Wall s between two rounds of tidying jobs' checkpoint folders.
CHECKPOINTS_S = 300.0
#: Calls to one region's cluster that may run at once.
CALLS_PER_REGION = 4


class RegionPools:
    """One small thread pool a region, so that a slow cluster holds up only its own calls."""

    def __init__(self, names: list[str]) -> None:
        self._pools = {name: ThreadPoolExecutor(CALLS_PER_REGION, thread_name_prefix=f"region-{name}") for name in names}

    def submit(self, region: str, call: Callable[[], None]) -> None:
        """Run ``call`` on the region's pool."""
        self._pools[region].submit(call)

    def close(self) -> None:
        """Wait for running calls; drop those not begun (what they were for is in the store)."""
        for pool in self._pools.values():
            pool.shutdown(wait=True, cancel_futures=True)


class LaunchPackages:
    """Finds the files of the packages that a runtime_env names."""

    def __init__(self, packages: PackageStore) -> None:
        self._packages = packages

    def for_launch(self, runtime_env: Mapping[str, Any]) -> dict[str, Path]:
        """Package name -> verified file. Raises PackageRejected when one is gone or damaged."""
        found: dict[str, Path] = {}
        for name in package_names(runtime_env):
            if not self._packages.verify(name):
                raise PackageRejected(f"package {name} is no longer held intact here; submit the job again to upload it")
            found[name] = self._packages.path(name)
        return found


class FollowedLogs:
    """The control loop's side of the log follower."""

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower

    def watch(self, attempt: Attempt) -> None:
        """Follow a live attempt's log."""
        self._follower.watch(attempt)

    def finalize(self, attempt: Attempt) -> None:
        """Fetch an ended attempt's whole log once more."""
        self._follower.finish(attempt)


class ControlPlane:
    """What the API sees of the control plane (dispatcher.api.services.Services)."""

    def __init__(
        self,
        control: Control,
        *,
        packages: PackageStore,
        logs: LogStore,
        signals: SignalStore,
        data_dir: Path,
        hub: Hub,
        meters: SiteMeters,
        energy: EnergyBook,
        fleet: FleetNow,
        agent_token: Callable[[str], str],
        event_intake: EventIntake,
        hints: Mapping[str, Hints],
        vens: Vens,
        serving: ServingWatch,
    ) -> None:
        self._control, self._serving = control, serving
        self.config, self.clock, self.store = control.config, control.clock, control.store
        self.packages, self.logs, self.signals, self.data_dir = packages, logs, signals, data_dir
        self.hub, self.meters, self.agent_token = hub, meters, agent_token
        self.energy, self._fleet = energy, fleet
        self.event_intake, self.hints, self.vens = event_intake, hints, vens

    def admit(self, job: Job) -> "Future[Job]":
        """Store a job durably and let it be started."""
        return self._control.admit(job)

    def nudge(self) -> None:
        """Run the control loop soon."""
        self._control.nudge()

    def snapshot(self) -> Snapshot:
        """What was last seen."""
        return self._control.snapshot()

    def region_views(self) -> tuple[RegionView, ...]:
        """The regions as they were last decided on."""
        return self._control.region_views()

    def fleet(self) -> Fleet:
        """What every GPU draws now."""
        return self._fleet.view()

    def explain(self, job_id: str) -> tuple[Alternative, ...]:
        """What else could have been done with a planned job."""
        return self._control.explain(job_id)

    def serving(self) -> list[ServingStatus]:
        """How each serving stands."""
        return self._serving.status(self.clock.now())

    def signal_series(self, region: str, what: str) -> SlotSeries | None:
        """A signal as it is now."""
        return self._control.book.series(region, what)

    def signal_chains(self, now: datetime) -> list[ChainStatus]:
        """How the signals' sources stood at the last look at them."""
        return self._control.book.status(now)

    def job_token(self, submission_id: str) -> str:
        """The token of an attempt."""
        return self._control.job_token(submission_id)


def read_secret(data_dir: Path) -> bytes:
    """The server's own secret, made on first use; only its owner may read the file."""
    path = data_dir / "secret"
    if not path.exists():
        # Whole or not at all: half a secret, left by a crash, would keep every later start from going on.
        with tempfile.NamedTemporaryFile(dir=data_dir, prefix=".secret-") as file:  # made with mode 0600
            file.write(random_secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
            try:
                os.link(file.name, path)
            except FileExistsError:
                pass  # another process was faster; its secret holds
            except OSError as error:
                raise ConfigError(f"{path}: cannot be made: {error.strerror}; data_dir needs hard links") from error
    secret = path.read_bytes()
    if len(secret) < 32:
        raise ConfigError(f"{path}: holds {len(secret)} bytes, 32 are needed; remove it while no job runs, and it is made anew")
    return secret


def make_clock(config: Config, store: Store) -> Clock:
    """The system's clock, or the configured replay, which goes on where it was when the control plane restarts."""
    if config.replay is None:
        return SystemClock()
    start, speed = config.replay.start, config.replay.speed
    key, prefix = "replay", f"{start.isoformat()} {speed:g} "
    held = store.setting(key)
    if held is not None and held.startswith(prefix):
        return ReplayClock(start, speed, float(held.removeprefix(prefix)))
    clock = ReplayClock(start, speed)
    store.set_setting(key, f"{prefix}{clock.origin_wall!r}").result()
    return clock


def make_hub(config: Config, store: Store) -> Hub:
    """The hub of agents, under an epoch above that of every control plane before this one."""
    epoch = int(store.setting(EPOCH_SETTING) or 0) + 1
    store.set_setting(EPOCH_SETTING, str(epoch)).result()
    return Hub(
        epoch=epoch,
        on_epoch=lambda seen: store.set_setting(EPOCH_SETTING, str(seen)),
        branch_of=lambda region, hostname: config.region(region).branch_of(hostname),
        silent_s=config.agents.silent_after_s,
    )


def make_deployers(
    config: Config, store: Store, packages: PackageStore, control: Control, agent_token: Callable[[str], str]
) -> dict[str, AgentDeployer]:
    """For each region who sends its agents there: where its cluster has GPUs, or a job can be frozen."""

    def wanted(region: Region) -> bool:
        jobs = control.snapshot().world.jobs
        freezable = any(job.flex.pausable is Pausable.FREEZE and region.name in (job.region, None) for job in jobs)
        return freezable or has_gpus(region)

    package = store_agent_package(packages)
    return {
        region.name: AgentDeployer(
            region,
            store,
            packages,
            package,
            url=config.public_url(),
            token=agent_token(region.name),
            version=our_version(),
            # In a replay time is pretended, and what GPUs draw by the wall's clock says nothing of it.
            enabled=config.agents.deploy == "auto" and config.replay is None,
            protect_foreign=config.agents.protect_foreign,
            wanted=lambda region=region: wanted(region),  # type: ignore[misc]
        )
        for region in control.regions.values()
    }


def make_meters(config: Config, store: SqlStore, hub: Hub, control: Control, steady: Steady) -> SiteMeters:
    """The sites' meters, which know what the agents measure and what is modelled."""

    def modelled(name: str) -> float | None:
        seen = (region for region in control.snapshot().regions if region.name == name and region.reachable)
        return next((region.draw_w for region in seen), None)

    meters = SiteMeters(
        config,
        MeterStore(store.engine),
        agents=lambda region, branch: draw_of(hub.nodes(), region, branch),
        modelled=modelled,
        steady=steady,
    )
    control.alarm_sources.append(meters.alarms)
    return meters


def make_event_intake(config: Config, store: Store, control: Control, meters: SiteMeters) -> EventIntake:
    """Where events from outside are taken in, beside the load that is measured when they come."""

    def load(region: str, branch: str | None) -> float | None:
        if config.replay is not None:
            return None  # what is measured is of another time
        now = SystemClock().now()
        power = meters.site_power(region, now) if branch is None else meters.branch_power(region, branch, now)
        return None if power.quality == "modelled" else power.value_w

    intake = EventIntake(config, store, control.clock, load=load, nudge=lambda: control.nudge())
    control.alarm_sources.append(intake.alarms)
    return intake


def note_step(store: Store, step: Step, now: datetime) -> None:
    """Keep what serving gives in an emergency in the history of the event, and of the serving."""
    told = GridEventChange(source_of(step.region), step.serving, now, None, "note", step.sentence)
    store.note_grid_event(told)
    event = store.grid_event(step.source, step.event_id)
    version = None if event is None else event.version
    store.note_grid_event(replace(told, source=step.source, event_id=step.event_id, version=version))


def make_before_events(config: Config, store: Store, control: Control, meters: SiteMeters) -> None:
    """Have kept what was expected without an event when notice of it comes; not in a replay, where events are not measured."""
    if config.replay is not None:
        return

    def measured(region: str, branch: str | None, at: datetime) -> float | None:
        power = meters.site_power(region, at) if branch is None else meters.branch_power(region, branch, at)
        return None if power.quality == "modelled" else power.value_w

    control.before_events = BeforeEvents(config, store, measured)
    control.loops.append(Loop("before events", 1.0, control.before_events.keep))


def agent_tokens(secret: bytes) -> Callable[[str], str]:
    """Region -> the token that its agents are given."""
    return lambda region: hmac.new(secret, f"agents {region}".encode(), hashlib.sha256).hexdigest()


def log_tidied(job_ids: Sequence[str]) -> None:
    """Say whose checkpoints were removed."""
    if job_ids:
        log.info("removed checkpoint folders that are not needed any more: %s", ", ".join(job_ids))


def checkpoint_dirs(config: Config) -> Callable[[str, str], str]:
    """(region, job id) -> the job's checkpoint folder as that region's nodes see it."""
    default = str(config.checkpoint_root())
    roots = {region.name: region.checkpoint_root or default for region in config.regions}
    return lambda region, job_id: f"{roots[region].rstrip('/')}/{job_id}"


class Server(uvicorn.Server):
    """uvicorn, but signals are ours, and an open log tail is cut off rather than closed politely: Ray's client takes a polite
    close for the job's end and would report success for a job that is only held."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the caller."""
        yield

    async def shutdown(self, sockets: Any = None) -> None:
        """Cut websockets, then shut down as usual."""
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None and hasattr(connection, "handshake_complete"):
                transport.abort()
        await super().shutdown(sockets)


def listen(config: Config) -> socket.socket:
    """The socket to serve on. Raises ConfigError when something else has it."""
    host, port = config.server.host, config.server.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(2048)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"server.port: cannot listen on {host}:{port} ({error.strerror}); stop what uses it, or choose another port in "
            f"the configuration or with GRIDSHIFT_SERVER__PORT"
        ) from error
    return sock


def build_regions(config: Config, clock: Clock) -> list[Region]:
    """A Region for each configured one."""

    def cluster(region: RegionConfig) -> RayCluster:
        return RayCluster(region.name, region.address, region.token())

    return [Region(region, cluster(region), clock) for region in config.regions]


def run(config: Config, *, on_ready: Callable[[], None] = lambda: None) -> int:
    """Run the control plane until SIGTERM or SIGINT. Raises ConfigError, NotTheLeader or StoreUnavailable before it listens."""
    check_outside(config)
    data_dir = config.make_data_dir()
    with contextlib.ExitStack() as stack:
        leadership = Leadership(config.database_url(), data_dir)
        leadership.acquire()
        stack.callback(leadership.release)
        sock = listen(config)
        stack.callback(sock.close)
        upgrade(config.database_url())
        # Meters, agents and senders of events run by the wall's clock, whatever time is replayed.
        steady = Steady(SystemClock())
        store = SqlStore(config.database_url(), data_dir=data_dir, steady=steady)
        stack.callback(store.close)
        if not config.server.is_loopback and not store.tokens():
            raise ConfigError(
                f"server.host: {config.server.host!r} is not a loopback address and no API token exists; "
                "run 'gridshift tokens create NAME' first, or listen on 127.0.0.1"
            )
        clock = make_clock(config, store)
        signals = SignalStore(store.engine)
        packages = PackageStore(data_dir / "packages", int(config.server.max_package_mb * 1e6))
        logs = LogStore(data_dir / "logs")
        secret = read_secret(data_dir)
        regions = build_regions(config, clock)
        hub = make_hub(config, store)
        energy = EnergyBook(store.engine, Keep(config.energy.minutes_kept_days, config.energy.hours_kept_days))
        stack.callback(energy.close)
        hub.on_energy = lambda rows: energy.take(rows, SystemClock().now())
        configured = {region.name for region in config.regions}
        hub.remember(
            Former(n.node_id, n.region, n.last_seen_at, n.hostname, tuple(gpu["uuid"] for gpu in n.gpus))
            for n in energy.known_nodes()
            if n.region in configured
        )
        fleet = FleetNow(config, hub, energy, steady=steady)
        caps = CapLoop(config, hub, speed=clock.speed, note=lambda step: note_step(store, step, clock.now()))
        for region in regions:
            stack.callback(region.cluster.close)
        addresses = {region.name: (region.address, region.token()) for region in config.regions}
        follower = LogFollower(logs, lambda name: addresses[name])
        worker = PlanWorker(config.planner_settings().policy, cache_dir=data_dir / "numba")
        forecaster = ForecastWorker()
        stack.callback(worker.close)
        stack.callback(forecaster.close)
        pools = RegionPools([region.name for region in regions])
        stack.callback(pools.close)
        forecasts = Forecasts(signals, forecaster.forecast, slot_s=int(config.planner_settings().slot_s), wall=time.monotonic)
        book = SignalBook(config, signals, parallel=FEEDS_AT_ONCE, forecast_of=forecasts.of)
        stack.callback(book.close)
        control = Control(
            config=config,
            clock=clock,
            store=store,
            book=book,
            forecasts=forecasts,
            # Meters run by the wall's clock: in a replay they say nothing of its jobs.
            energy=energy if config.replay is None else None,
            caps=caps,
            # In a replay time is pretended, and a job's processes know nothing of it.
            freezes=Freezes(hub, clock.now()) if config.replay is None else None,
            nodes=hub.nodes,
            regions=regions,
            packages=LaunchPackages(packages),
            logs=FollowedLogs(follower),
            effects=pools,
            planning=worker,
            secrets=Secrets(
                job_token=lambda sid: hmac.new(secret, sid.encode(), hashlib.sha256).hexdigest(),
                public_url=config.public_url(),
                checkpoint_dir=checkpoint_dirs(config),
                helper_uri=store_helper_package(packages),
            ),
            steady=Steady(clock),
        )
        control.loops.append(Loop("agents", 1.0, hub.sweep))
        control.alarm_sources.append(hub.alarms)
        control.alarm_sources.append(caps.alarms)
        control.alarm_sources.append(energy.alarms)
        agent_token = agent_tokens(secret)
        deployers = make_deployers(config, store, packages, control, agent_token)
        control.loops += [Loop(f"agents of {name}", LOOK_S, one.deploy) for name, one in deployers.items()]
        control.alarm_sources.append(lambda _: troubles(deployers))
        control.loops.append(Loop("fleet", 5.0, fleet.keep))
        meters = make_meters(config, store, hub, control, Steady(clock))
        stack.callback(meters.close)
        control.loops.append(Loop("meters", max(1.0, meters.period_s / clock.speed), meters.read_meters))
        event_intake = make_event_intake(config, store, control, meters)
        make_before_events(config, store, control, meters)
        if config.triggers:
            triggers = Triggers(config.triggers, book, event_intake, store)
            control.loops.append(Loop("triggers", max(0.5, 15.0 / clock.speed), triggers.look))
            control.alarm_sources.append(triggers.alarms)
        demand = DemandBook(config, signals, clock.now, mono=lambda: time.monotonic() * clock.speed)
        control.reserved = demand.reserved
        account = ServingAccount(config, store, clock.now)
        serving = ServingWatch(
            config,
            lambda one: MetricsReader(one, os.environ),
            store,
            nodes=hub.nodes,
            changed=lambda: nudge_for_serving(control),
            demand=demand.note,
            account=account,
        )
        if any(region.serving for region in config.regions):
            control.guards = serving.guards
            # In a replay demand is of another time, and GPUs are of the present.
            tuning = make_tuning(config, serving, demand, store, hub, control) if config.replay is None else None

            def look(now: datetime) -> None:
                serving.look(control.snapshot().world, now)
                if tuning is not None:
                    tuning.look(now)

            control.loops.append(Loop("serving", 1.0, look))
            control.loops.append(Loop("serving demand", 5.0, demand.keep))
            control.loops.append(Loop("serving account", 10.0, account.keep))
            control.alarm_sources.append(serving.alarms)
            stack.callback(account.close)
            stack.callback(demand.close)
            stack.callback(serving.close)
            if tuning is not None:
                caps.tuned = tuning.caps
                control.alarm_sources.append(tuning.alarms)
                stack.callback(tuning.close)
                tuning.start()
            serving.start()
        hints = {s.name: Hints(s, event_intake, store, clock) for s in config.event_sources if s.protocol == "pointer"}
        for one in hints.values():
            control.alarm_sources.append(one.alarms)
            stack.callback(one.close)
            one.start()
        vens = make_vens(
            # In a replay events are of another time than the present.
            config.event_sources if config.replay is None else (),
            event_intake,
            store,
            clock,
            callback_token=lambda name: hmac.new(secret, f"openadr3 callback {name}".encode(), hashlib.sha256).hexdigest(),
            readings=SiteReadings(
                config,
                MeterStore(store.engine),
                energy,
                store,
                lambda region, branch: outlooks_of(control.snapshot().world, fleet.view(), region, branch),
            ),
        )
        control.alarm_sources.append(vens.alarms)
        stack.callback(vens.stop)
        vens.start()
        roots = {Path(checkpoint_dirs(config)(region.name, "")) for region in config.regions}
        control.loops.append(Loop("checkpoints", CHECKPOINTS_S, lambda _: log_tidied(tidy(sorted(roots), store.job))))
        control.loops.append(Loop("leader", 5.0, _leadership_check(leadership)))
        live = LiveLoops(
            control.loops,
            clock,
            nudged={"control": 0.005, "plan": 0.5, "place": 0.005, "power": 0.1, "ingest": 0.5, "forecast": 0.5},
        )
        control.nudge, control.nudge_plan = (lambda: live.nudge("control")), (lambda: live.nudge("plan"))
        control.nudge_place, control.nudge_power = (lambda: live.nudge("place")), (lambda: live.nudge("power"))
        control.nudge_ingest, control.nudge_forecast = (lambda: live.nudge("ingest")), (lambda: live.nudge("forecast"))
        book.arrived = control.nudge_ingest
        control.start()
        worker.start()
        control.alarm_sources.append(live.alarms)
        live.start()
        stack.callback(live.stop)
        stack.callback(worker.close)  # before the loops: one of them may be waiting for a plan, or for a forecast
        stack.callback(forecaster.close)
        plane = ControlPlane(
            control,
            packages=packages,
            logs=logs,
            signals=signals,
            data_dir=data_dir,
            hub=hub,
            meters=meters,
            energy=energy,
            fleet=fleet,
            agent_token=agent_token,
            event_intake=event_intake,
            hints=hints,
            vens=vens,
            serving=serving,
        )
        # What lives as long as the process need not be looked at again and again; the rest is looked at less often than by
        # default, since each look walks through every job in memory.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, plane, follower, on_ready, sock))
    return 0


def make_tuning(
    config: Config, serving: ServingWatch, demand: DemandBook, store: SqlStore, hub: Hub, control: Control
) -> ServingTuning:
    """Serving's own knobs. Raises ConfigError where a token is not there."""
    return ServingTuning(
        config, serving.status, demand.ahead, store, nodes=hub.nodes, changed=lambda: nudge_for_serving(control)
    )


def nudge_for_serving(control: Control) -> None:
    """Let batch step aside, and be capped, without waiting for the next second."""
    control.nudge()
    control.nudge_power()


def _leadership_check(leadership: Leadership) -> Callable[[datetime], None]:
    def check(_: datetime) -> None:
        if not leadership.still_held():
            # Another control plane may take over any moment: stop acting at once, without tidying anything of theirs.
            log.critical("this control plane lost its hold on the database and stops")
            os._exit(1)

    return check


async def _serve(
    config: Config, plane: ControlPlane, follower: LogFollower, on_ready: Callable[[], None], sock: socket.socket
) -> None:
    server = Server(
        uvicorn.Config(
            create_app(plane),
            host=config.server.host,
            port=config.server.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            http=IntakeProtocol,
            proxy_headers=False,  # nothing here goes by a caller's address, and anyone can write those headers
            timeout_graceful_shutdown=5,
            ws_max_size=MAX_FRAME_BYTES,
            ws_max_queue=8,  # frames that wait to be taken hold memory
        )
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    following = asyncio.create_task(follower.run())
    announced = asyncio.create_task(_announce(server, on_ready))
    try:
        await server.serve(sockets=[sock])
    finally:
        for task in (following, announced):
            task.cancel()
        await asyncio.gather(following, announced, return_exceptions=True)


async def _announce(server: Server, on_ready: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.02)
    on_ready()


def main_serve(config: Config) -> int:
    """``gridshift serve``: run, with a word on stderr when ready and one clear line when it cannot start."""
    logging.basicConfig(
        level=os.environ.get("GRIDSHIFT_LOG", "WARNING").upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )

    def ready() -> None:
        regions = ", ".join(f"{r.name} ({r.address})" for r in config.regions)
        print(
            f"gridshift listens on http://{config.server.host}:{config.server.port}; regions: {regions}",
            file=sys.stderr,
            flush=True,
        )
        made_up = [r.name for r in config.regions if any(feed["feed"] == "synthetic" for feed in (*r.price, *r.carbon))]
        if made_up:
            what = f"prices and carbon of {', '.join(made_up)} are MADE UP for a first look"
            print(f"{what}; name real feeds in [[region.price]] and [[region.carbon]]", file=sys.stderr, flush=True)

    allow_many_files()
    try:
        return run(config, on_ready=ready)
    except GridshiftError as error:
        print(f"gridshift: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
