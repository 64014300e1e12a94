"""Power end to end on real processes: agents measure, attribute and cap simulated GPUs, and always give the limit back.

Only what users have is used: `ray job submit`, `gridshift` and the API; the drivers' own state is what is compared with.
GRIDSHIFT_CHAOS_ROUNDS sets the number of kills (20 by default, 200 in ``make chaos``); the seed is printed.

What comes of each fault, and which test shows it (here unless a file is named; paths are below tests/):

- no driver: the agent stays, says so, and looks again | agent/test_runner: without_a_driver_it_says_so_and_stays;
  agent/test_guard: without_a_driver_it_goes_on_trying
- no permission: measured all the same, orders refused with the reason, no lease kept, never planned with | agent/test_runner:
  without_a_right_to_set_limits; agent/test_caps: without_the_right_a_lease_is_not_kept; power/test_power_loop:
  a_node_that_cannot_cap_is_left_alone_and_said
- GPU lost mid-run: its figures are unknown, an alarm says so, its lease stands and it is capped again when it is back; where
  its job died with it the limit is given back then; the others go on | a_lost_gpu_is_unknown_and_free_of_caps;
  agent/test_caps: a_lost_gpu_keeps_its_lease; agent/test_metering: a_lost_gpu_waits
- limit outside the range: refused by name with the range, nothing changes | agent/test_caps: an_order_that_makes_no_sense
- agent killed with caps set: its successor, or the guard, keeps or ends them in time | kills_at_random_moments;
  agent/test_caps_killed; agent/test_guard
- node rebooted: events are capped again, all else is gone | agent/test_caps: after_a_reboot; agent/test_leases: a_reboot_drops
- two agents on a node: the second leaves the first's GPUs alone and says so | agent/test_caps_killed: two_agents_on_one_node;
  agent/test_runner: one_agent_a_folder_and_one_agent_a_gpu; agent/test_guard: nobody_sets_the_limit, a_gpu_is_claimed
- two machines with one node id: the first stays, an alarm names both | power/test_hub: two_machines_with_one_id
- two control planes: orders of the older epoch, and of the second of one epoch, are refused, its operator is told |
  a_control_plane_from_an_older_epoch; agent/test_caps: an_older_epoch; agent/test_runner: of_two_control_planes;
  power/test_hub: a_node_that_obeyed_a_newer_control_plane, a_node_that_obeyed_another_control_plane
- an order that waited in a socket for long: refused, and sent anew | agent/test_runner: an_order_that_waited
- clock jumps: leases count by boot time, no energy is invented or lost, no event cap is lifted early by a clock ahead |
  agent/test_leases: in_the_same_boot, a_wall_clock_set_right; agent/test_metering: a_clock_set_forward, a_clock_set_back;
  agent/test_runner: an_event_lease_ends_when; power/test_power_loop: event_caps_stay_to_the_nodes_ends;
  power/test_hub: a_nodes_clock_that_differs; power/test_power_clocks; a_control_plane_whose_clock_is_set (here)
- a meter that stops, jumps or counts backwards: a GPU's counter gives way to integrated power, a site's meter is unknown |
  agent/test_metering: a_stuck_counter, a_jump_is_no_energy; power/test_site_meters: a_stopped_meter, a_jump_is_kept,
  a_counter_and_its_reset
- network cut for an hour during an event: caps stand to the event's end and go then; economic ones go within a minute |
  an_event_ends_on_time_though_the_connection_is_cut; agent/test_runner: a_lease_that_nobody_renews_ends_by_itself;
  agent/test_channel: it_connects_again
- a job that hides its processes: their draw is unattributed, never guessed, and is not capped |
  kills_at_random_moments (a stranger's work); agent/test_processes: another_users_environment_is_not_guessed;
  agent/test_metering: work_without_a_visible_process_is_unattributed
- a restart during an event: nothing is let go of before figures are there again | power/test_power_restarts
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests

from dispatcher.local_ray import LocalRay
from dispatcher.simgpu import SimGpus, environment
from dispatcher.simgpu.build import find_compiler
from dispatcher.simgpu.state import SimGpu
from tests.helpers import wait_until
from tests.real.harness import BIN, Plane, clean_env, region
from tests.real.nodes import second_node
from tests.real.power_watch import MINUTE_S, DriverWatch, LeaseWatch, Promise, watched
from tests.real.proxy import Proxy
from tests.simgpu.simulated import WORKLOAD, working

pytestmark = pytest.mark.real

ROUNDS = int(os.environ.get("GRIDSHIFT_CHAOS_ROUNDS", "20"))
#: No time to spare, so that no plan slows the work: what caps it is an event, or a limit of the site.
FLEX = {"gridshift.deadline": "63m", "gridshift.runtime": "1h"}
#: Limits that stood before any cap, W: each is to be there again at the end, to the watt.
SAVED_W = (400.0, 390.0, 375.0, 400.0)


# --- two Ray nodes, agents sent there by the control plane ----------------------------------------------------------


def fleet_gpus(plane: Plane) -> dict[str, dict[str, Any]]:
    """The GPUs as the API tells them, by UUID, with their node and its branch."""
    answer = requests.get(f"{plane.address}/v1/fleet", timeout=10)
    answer.raise_for_status()
    return by_uuid(answer.json())


def by_uuid(fleet: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The GPUs of a fleet, with their node and its branch."""
    return {
        gpu["uuid"]: {**gpu, "branch": branch["name"], "node": node}
        for one in fleet["regions"]
        for branch in one["branches"]
        for node in branch["nodes"]
        for gpu in node["gpus"]
    }


def submit(plane: Plane, job_id: str, gpus: int, work_s: float, **flexible: str) -> None:
    """Submit simulated work with Ray's own command."""
    metadata = {f"gridshift.{name}": value for name, value in flexible.items()}
    more = ["--metadata-json", json.dumps(FLEX | metadata)] if metadata else []
    work = ["python", str(WORKLOAD), "--work-s", str(work_s)]
    plane.ray("submit", "--no-wait", "--submission-id", job_id, "--entrypoint-num-gpus", str(gpus), *more, "--", *work)


def ordered_at(plane: Plane) -> list[float]:
    """When the hub sent limits, unix s, from the control plane's log."""
    lines = [line for line in plane.log.read_text().splitlines() if "limits to set" in line and " 0 limits to set" not in line]
    return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() for line in lines]


def released_at(plane: Plane) -> list[float]:
    """When the hub let go of leases, unix s."""
    lines = [
        line for line in plane.log.read_text().splitlines() if "to give back are sent" in line and " 0 to give" not in line
    ]
    return [datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f").astimezone().timestamp() for line in lines]


def energy(plane: Plane, start: float, end: float, **more: str) -> dict[str, Any]:
    """Energy by the minute as the API tells it."""
    span = {"start": datetime.fromtimestamp(start, UTC).isoformat(), "end": datetime.fromtimestamp(end, UTC).isoformat()}
    answer = requests.get(f"{plane.address}/v1/energy", params={**span, "step": "minute", **more}, timeout=10)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_a_job_is_placed_metered_capped_and_given_its_power_back(short_tmp: Path) -> None:
    head, second = (SimGpus.create(short_tmp / name, 4) for name in ("head", "second"))
    for gpu in [*head, *second]:  # a driver that lags, is noisy, and fails one call in fifty
        gpu.set_lag(0.5)
        gpu.set_noise(0.02, seed=gpu.index)
        gpu.set_failing(50)
    env = {**environment(head.path, base={}), "GRIDSHIFT_AGENT_DIR": str(short_tmp / "agent-1")}
    config = region("north", "{address}", 50.0, gpus=8, pue=1.0)
    with LocalRay("north", base_dir=short_tmp / "ray", num_cpus=4, env=env) as ray:
        plane = Plane(
            short_tmp, config.replace("{address}", ray.address), GRIDSHIFT_AGENTS__DEPLOY="auto", GRIDSHIFT_LOG="INFO"
        )
        watch = DriverWatch(head, second)
        with plane, watch:
            joined = second_node(ray, second, short_tmp / "agent-2")

            # 1. agents come by themselves, and every figure is called simulated
            def all_there() -> dict[str, dict[str, Any]] | None:
                gpus = fleet_gpus(plane)
                return gpus if len(gpus) == 8 and all(gpu["power_w"] is not None for gpu in gpus.values()) else None

            gpus: Any = wait_until(all_there, 180, "the agents of both nodes")
            metered_from = time.time()
            assert {gpu["branch"] for gpu in gpus.values()} == {None, "rack-2"}
            assert all(gpu["simulated"] and gpu["node"]["simulated"] and gpu["node"]["can_cap"] for gpu in gpus.values())

            # 2. placed: one job that may be slowed, one that may not be and takes the whole other node
            submit(plane, "trainer", 1, 45.0, tier="flex-2", power_w="440", pausable="checkpoint")
            plane.wait_state("trainer", "running")
            submit(plane, "wide", 4, 50.0)

            def working_on() -> dict[str, list[str]] | None:
                jobs: dict[str, list[str]] = {}
                for uuid, gpu in fleet_gpus(plane).items():
                    for job_id in gpu["jobs"] or ():
                        jobs.setdefault(job_id, []).append(uuid)
                return jobs if {name: len(uuids) for name, uuids in jobs.items()} == {"trainer": 1, "wide": 4} else None

            where: Any = wait_until(working_on, 60, "both jobs on their GPUs")
            capped = watch.seen[where["trainer"][0]]
            assert capped.gpu.uuid not in where["wide"] and capped.gpu.limit_w == 400.0

            # 3. capped: an event that leaves the flexible job about 300 W, and so is below what jobs say they draw together
            made = plane.gridshift(
                "events", "create", "--region", "north", "--limit-w", "2030", "--duration", "15s", "--id", "call-1"
            )
            told_at, ends_at = time.time(), datetime.fromisoformat(made["event"]["end"]).timestamp()
            wait_until(lambda: capped.first_at(told_at - 5, limit_below_w=400.0), 20, "the cap")
            read_at = capped.first_at(told_at - 5, limit_below_w=400.0)
            assert read_at is not None
            order_at = max(at for at in ordered_at(plane) if at <= read_at)
            print(f"from the hub's order to the limit in force: {read_at - order_at:.3f} s (the driver lags 0.5 s)")
            assert 0.4 <= read_at - order_at <= 1.0

            # 4. seen: the fleet view has the cap, its reason and its end, and says that all is simulated
            def enforced() -> dict[str, Any] | None:
                gpu = fleet_gpus(plane)[capped.gpu.uuid]
                return gpu if gpu["cap"]["state"] == "enforced" else None

            wait_until(enforced, 10, "the cap to be told")
            fleet = plane.gridshift("fleet")["fleet"]
            shown = by_uuid(fleet)[capped.gpu.uuid]
            assert shown["jobs"] == ["trainer"] and shown["limit_w"] < 400.0 and shown["simulated"]
            (lease,) = [one for one in shown["node"]["leases"] if one["uuid"] == capped.gpu.uuid]
            assert lease["kind"] == "event" and abs(datetime.fromisoformat(lease["ends_at"]).timestamp() - ends_at) < 1.5
            assert plane.job("trainer")["state"] == "running", "caps come before pauses"
            assert fleet["basis"] == "simulated" and all(gpu["simulated"] for gpu in by_uuid(fleet).values())

            # 5. restored when the event ends, not before
            wait_until(lambda: capped.limits[-1][1] == 400.0 and time.time() > ends_at, 30, "the limit to be given back")
            back_at = capped.limits[-1][0]
            print(f"given back {back_at - ends_at:+.3f} s after the event's end (the driver lags 0.5 s)")
            assert -0.3 <= back_at - ends_at <= 3.0
            others = [one for one in watch.seen.values() if one is not capped]
            assert all([limit_w for _, limit_w in one.limits] == [400.0] for one in others), "nobody else was touched"

            # 6. metered: a job's energy at its end, and everything agrees with the drivers' own counters
            ended = {job_id: plane.wait_state(job_id, "succeeded", timeout_s=90) for job_id in ("trainer", "wide")}
            assert plane.job("trainer")["pauses"] == 0
            first = int(metered_from // MINUTE_S + 1) * MINUTE_S
            last = max(int(time.time() // MINUTE_S + 1), first // MINUTE_S + 1) * MINUTE_S
            wait_until(lambda: all(last in one.minutes for one in watch.seen.values()), 125, "the minute to be over")

            def measured() -> dict[str, Any] | None:
                found = energy(plane, first, last, region="north")
                # each node sends its own minute, and the sum is of those that have come
                whole = all(one["gpus"] == len(watch.seen) and one["covered"] >= 0.99 for one in found["intervals"])
                return found if whole and not found["gaps"] else None

            found: Any = wait_until(measured, 30, f"the rows of every minute: {energy(plane, first, last)}")
            total, true_wh = found["total"], watch.drawn_wh(first, last)
            off = total["energy_wh"] / true_wh - 1
            print(f"{total['energy_wh']:.3f} Wh measured, {true_wh:.3f} Wh by the counters ({off:+.4%})")
            assert total["energy_wh"] == pytest.approx(true_wh, rel=0.005)
            parts = total["job_wh"] + total["idle_wh"] + total["unattributed_wh"]
            assert parts == pytest.approx(total["energy_wh"], rel=1e-6) and found["simulated"]
            assert total["unattributed_wh"] <= 0.01 * total["energy_wh"]

            for job_id in ended:
                seen = [watch.seen[uuid] for uuid in where[job_id]]
                drawn_j = sum(one.went[pid] - one.came[pid] for one in seen for pid in one.came if pid in one.went)

                def booked(job_id: str = job_id, drawn_j: float = drawn_j, gpus: int = len(seen)) -> bool:
                    # At its end what was not told yet is modelled; it is booked again once the rows of its last minute came.
                    # Who is on a GPU is looked at each second, so a job's first and last second may be another's in part.
                    job = plane.job(job_id)
                    right = (
                        job["energy_basis"] == "simulated" and abs(job["energy_kwh"] * 3.6e6 - drawn_j) <= 2.2 * 380.0 * gpus
                    )
                    print(f"{job_id}: {job['energy_kwh'] * 1000:.3f} Wh booked, {drawn_j / 3600:.3f} Wh by its GPUs' counters")
                    return right

                wait_until(booked, 60, f"the energy of {job_id}")
            joined.kill()
            joined.wait(20)


# --- one node with an agent of its own, whose connection can be cut -------------------------------------------------


class Service:
    """`gridshift agent` as a machine's service manager runs it."""

    def __init__(self, gpus: SimGpus, folder: Path, server: str) -> None:
        self.folder, self._log = folder, folder.with_suffix(".log")
        self._argv = [str(BIN / "gridshift"), "agent", "--server", server, "--region", "north", "--state-dir", str(folder)]
        self._argv += ["--node-id", "n1"]
        self._env = clean_env() | environment(gpus.path)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Service":
        """Start the supervisor, and it the agent."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, env=self._env, stdout=log, stderr=log, start_new_session=True)
        return self

    def agents(self) -> list[int]:
        """The pids of the supervisor's children."""
        assert self.process is not None
        with contextlib.suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()]
        return []

    def kill_agent(self) -> None:
        """kill -9 of the agent; the supervisor starts it again."""
        for pid in self.agents():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        """kill -9 of both, as when the machine is out of memory."""
        assert self.process is not None
        agents = self.agents()
        self.process.kill()
        for pid in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(20)

    def stop(self) -> None:
        """End it in order."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(30)

    def log(self) -> str:
        """The end of what it has said."""
        return self._log.read_text()[-3000:]


@dataclass(frozen=True)
class Site:
    """A Ray of one node, its control plane and its agent, between which the connection can be cut. On ``strangers`` works a
    process that no job owns."""

    ray: LocalRay
    gpus: SimGpus
    strangers: SimGpu
    plane: Plane
    proxy: Proxy
    service: Service


#: A limit of the site that stands, so that there are economic leases too: three jobs at 380 W, and a stranger's work at 380 W
#: that is never capped, would be above it.
SITE_LIMIT_W = 1505.0


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    gpus = SimGpus.create(folder / "simgpu", 4)
    for gpu, saved_w in zip(gpus, SAVED_W, strict=True):
        gpu.set_limit(saved_w)
        gpu.set_lag(0.2)
        gpu.set_noise(0.02, seed=gpu.index)
        gpu.set_failing(50)
    with LocalRay("north", base_dir=folder / "ray", num_cpus=4, env=environment(gpus.path, base={})) as ray:
        config = region("north", ray.address, 50.0, gpus=4, pue=1.0, power_limit_w=SITE_LIMIT_W)
        plane = Plane(folder, config, GRIDSHIFT_LOG="INFO")
        with plane, Proxy(plane.port) as proxy:
            service = Service(gpus, folder / "agent", proxy.url).start()
            try:
                for number, tier in enumerate(("flex-1", "flex-2", "flex-3")):
                    # Owners are often wrong about what a job draws; one of these is far too low.
                    submit(plane, f"work-{number}", 1, 36000.0, tier=tier, power_w=("380", "180", "350")[number])
                wait_until(lambda: sum(bool(gpu["jobs"]) for gpu in fleet_gpus(plane).values()) == 3, 90, "the work")
                (free,) = [gpu for gpu in gpus if not gpu.pids]
                with working(gpus, visible=str(free.index)):
                    yield Site(ray, gpus, free, plane, proxy, service)
            finally:
                service.stop()


def create_event(plane: Plane, event_id: str, limit_w: float, duration: str) -> Promise:
    """An event by the API."""
    body = {"event_id": event_id, "region": "north", "limit_w": limit_w, "duration": duration}
    answer = requests.post(f"{plane.address}/v1/events", json=body, timeout=10)
    answer.raise_for_status()
    return Promise(event_id, datetime.fromisoformat(answer.json()["event"]["end"]).timestamp())


def alarms(plane: Plane) -> list[str]:
    """What the control plane calls to an operator's attention."""
    answer = requests.get(f"{plane.address}/v1/status", timeout=10)
    answer.raise_for_status()
    return [alarm["sentence"] for alarm in answer.json()["alarms"]]


def test_an_event_ends_on_time_though_the_connection_is_cut(site: Site) -> None:
    leases = LeaseWatch(site.gpus, site.service.folder, SAVED_W)
    drivers = DriverWatch(site.gpus)
    with watched(drivers, leases):
        held = [one for one in drivers.seen.values() if one.gpu.uuid != site.strangers.uuid]
        told_at = time.time()
        promise = leases.promises["cut"] = create_event(site.plane, "cut", 1250.0, "16s")
        wait_until(lambda: all(one.limits[-1][0] > told_at for one in held), 20, "the event's caps")
        site.proxy.cut()
        wait_until(lambda: any("silent" in said for said in alarms(site.plane)), 20, "the silence to be told")
        (node,) = {gpu["node"]["node_id"]: gpu["node"] for gpu in fleet_gpus(site.plane).values()}.values()
        assert node["silent"] and all(gpu["power_w"] is None for gpu in node["gpus"]), "unknown, not zero"
        # Nobody can renew or release anything now: the agent keeps the event's caps to its end, and then gives back.
        event_w = {one.gpu.uuid: one.limits[-1][1] for one in held}
        wait_until(lambda: time.time() > promise.ends_at, 30, "the event to end")
        wait_until(lambda: all(one.limits[-1][1] > event_w[one.gpu.uuid] for one in held), 10, "the caps to go")
        late_s = [one.limits[-1][0] - promise.ends_at for one in held]
        print(f"without a connection the event's caps were gone {max(late_s):+.2f} s after its end")
        assert min(late_s) >= -0.3 and max(late_s) <= 3.0
        site.proxy.mend()
        wait_until(lambda: not any("silent" in said for said in alarms(site.plane)), 30, "the agent to be heard again")
    assert not leases.broken, leases.broken
    assert [limit_w for _, limit_w in drivers.seen[site.strangers.uuid].limits] == [SAVED_W[site.strangers.index]]


def test_a_control_plane_whose_clock_is_set_lifts_no_cap(site: Site, tmp_path: Path) -> None:
    library, ahead = tmp_path / "set_clock.so", tmp_path / "ahead"
    source = Path(__file__).with_name("set_clock.c")
    subprocess.run([find_compiler(), "-shared", "-fPIC", "-O2", "-o", str(library), str(source)], check=True)
    ahead.write_text("0")
    leases, plane = LeaseWatch(site.gpus, site.service.folder, SAVED_W), site.plane
    plane.kill()
    plane.env |= {"LD_PRELOAD": str(library), "WALL_CLOCK_AHEAD": str(ahead)}
    try:
        plane.start()
        wait_until(lambda: recovered(plane), 30, "the agent")
        with watched(leases):
            leases.promises["clock"] = create_event(plane, "clock", 1250.0, "50s")
            wait_until(lambda: leases.event_leases == 3, 20, "the event's caps")
            for step_s in (-600, 3600, 200_000):
                ahead.write_text(str(step_s))
                began = time.time()
                wait_until(lambda began=began: time.time() > began + 4.0, 10, "rounds with a wrong clock")  # type: ignore[misc]
                assert not leases.broken, (step_s, leases.broken)
            plane.kill()  # and it starts with it
            ahead.write_text("3600")
            plane.start()
            wait_until(lambda: recovered(plane), 30, "the agent to be heard again")
            wait_until(lambda: time.time() > leases.promises["clock"].ends_at, 60, "the event to end")
        assert not leases.broken, leases.broken
    finally:
        plane.kill()
        del plane.env["LD_PRELOAD"], plane.env["WALL_CLOCK_AHEAD"]
        plane.start()
    wait_until(lambda: recovered(plane), 30, "the agent")
    wait_until(lambda: not leases_of(site, "event clock"), 20, "the event's leases to end")


def test_a_control_plane_from_an_older_epoch_can_lift_nothing(site: Site, tmp_path: Path) -> None:
    leases = LeaseWatch(site.gpus, site.service.folder, SAVED_W)
    site.plane.kill()
    site.plane.start()  # its second start at least: its epoch is above that of one that never ran
    wait_until(lambda: any(not gpu["node"]["silent"] for gpu in fleet_gpus(site.plane).values()), 30, "the agent")
    # Somebody starts a control plane with an empty database, and the agent ends up with it. It knows of no event.
    with watched(leases), Plane(tmp_path, region("north", site.ray.address, 50.0, gpus=4), GRIDSHIFT_LOG="INFO") as stranger:
        leases.promises["epochs"] = create_event(site.plane, "epochs", 1250.0, "45s")
        wait_until(lambda: leases.event_leases == 3, 20, "the event's caps")
        site.proxy.mend(stranger.port)
        wait_until(lambda: any("newer control plane" in said for said in alarms(stranger)), 30, "the older one to say so")
        wait_until(lambda: released_at(stranger), 20, "it to try to let go of what it does not know")
        (node,) = {gpu["node"]["node_id"]: gpu["node"] for gpu in fleet_gpus(stranger).values()}.values()
        assert not node["silent"] and {one["kind"] for one in node["leases"]} >= {"event"}
        assert not leases.broken, leases.broken
        site.proxy.mend(site.plane.port)
        wait_until(lambda: not any("silent" in said for said in alarms(site.plane)), 30, "the agent to come back")
        leases.promises.clear()  # before the cancel: it takes the caps off while the command still runs
        site.plane.gridshift("events", "cancel", "epochs")
    assert not leases.broken, leases.broken


def recovered(plane: Plane) -> bool:
    """Whether the control plane answers and hears its agent."""
    return plane.ready() and any(not gpu["node"]["silent"] for gpu in fleet_gpus(plane).values())


def test_kills_at_random_moments_break_no_promise(site: Site) -> None:
    seed = int(os.environ.get("GRIDSHIFT_CHAOS_SEED", str(random.SystemRandom().randrange(10**6))))
    print(f"chaos seed {seed}, {ROUNDS} rounds")
    chance = random.Random(seed)
    plane, service = site.plane, site.service
    drivers, leases = DriverWatch(site.gpus), LeaseWatch(site.gpus, service.folder, SAVED_W)
    victims: list[str] = []
    began = time.time()
    with watched(drivers, leases):
        for number in range(ROUNDS):
            if all(promise.ends_at < time.time() + 1.0 for promise in leases.promises.values()) or chance.random() < 0.2:
                wait_until(plane.ready, 40, "the control plane")
                name = f"round-{number}"
                limit_w = chance.uniform(1225.0, 1425.0)
                # Every second event is in force before the next kill; what befalls the others may keep them from it.
                in_peace = len(leases.promises) % 2 == 0
                if in_peace:
                    wait_until(lambda: recovered(plane), 60, "the agent to be heard again")
                seconds, before = chance.randint(12 if in_peace else 5, 20), leases.event_leases
                leases.promises[name] = create_event(plane, name, limit_w, f"{seconds}s")
                if in_peace:
                    wait_until(lambda: leases.event_leases > before, 10, f"the caps of {name}")  # noqa: B023 - asked at once
            time.sleep(chance.choice((0.2, 1.0, 5.0)) * chance.random())  # the random moment itself
            victim = chance.choice(("agent", "agent", "agent", "plane", "both", "service"))
            victims.append(victim)
            print(f"{time.strftime('%H:%M:%S')}.{int(time.time() % 1 * 1000):03d} {number} {victim}")
            if victim in ("plane", "both"):
                plane.kill()
            if victim in ("agent", "both"):
                service.kill_agent()
            if victim == "service":
                service.kill()
                service.start()
            if victim in ("plane", "both"):
                plane.launch()
            if chance.random() < 0.5:  # else the next kill falls into what follows on this one
                wait_until(lambda: recovered(plane), 60, "the agent to be heard again")
            assert not leases.broken, f"seed {seed}, round {number}: {victims}\n" + "\n".join(leases.broken)

        # the end: events are over, the work is stopped, and every limit is what it was, to the watt
        ends_at = max(promise.ends_at for promise in leases.promises.values())
        print(f"{time.time() - began:.0f} s for {ROUNDS} rounds")
        wait_until(lambda: time.time() > ends_at and plane.ready(), 40, "the last event to end")
        for number in range(3):
            plane.ray("stop", f"work-{number}")
        wait_until(lambda: [gpu.limit_w for gpu in site.gpus] == list(SAVED_W), 75, "every limit to be given back")
        wait_until(lambda: not any(service.folder.glob("leases/GPU-*.json")), 20, "nothing to be left to give back")

        # every whole minute of it was counted, and counted once
        wait_until(lambda: max(drivers.minutes()) > 0, 125, "a first whole minute")  # the rounds may have taken less
        first = min(int(began // MINUTE_S + 1) * MINUTE_S, max(drivers.minutes()))
        wait_until(lambda: max(drivers.minutes()) > first, 65, "a minute to be over")
        last = max(drivers.minutes())

        def measured() -> dict[str, Any] | None:
            found = energy(plane, first, last, region="north")
            return found if not found["gaps"] else None

        found: Any = wait_until(measured, 40, "the rows of every minute")
        for one in found["intervals"]:
            start = int(datetime.fromisoformat(one["start"]).timestamp())
            true_wh = drivers.drawn_wh(start, start + MINUTE_S)
            print(f"{one['start']}: {one['energy_wh']:.3f} Wh, {true_wh:.3f} by the counters; covered {one['covered']:.3f}")
            assert one["energy_wh"] <= true_wh * 1.005 + 0.02
        total, true_wh = found["total"], drivers.drawn_wh(first, last)
        assert total["energy_wh"] == pytest.approx(true_wh, rel=0.005)
        stranger_wh = (
            drivers.seen[site.strangers.uuid].minutes[last] - drivers.seen[site.strangers.uuid].minutes[first]
        ) / 3600
        assert total["unattributed_wh"] >= 0.98 * stranger_wh
        print(f"leases of events {leases.event_leases}, looks at economic ones {leases.economic_leases}")
        print(f"a cap outlived its last lease by {leases.longest_late_s:.2f} s at most")
    assert not leases.broken, leases.broken
    assert leases.event_leases >= ROUNDS // 3 and leases.economic_leases > 0


def test_a_lost_gpu_is_unknown_and_free_of_caps_when_it_is_back(site: Site) -> None:
    """After the test above: every other job is over."""
    submit(site.plane, "alone", 1, 36000.0, tier="flex-2", power_w="380")
    leases = LeaseWatch(site.gpus, site.service.folder, SAVED_W)
    with watched(leases):
        site.plane.wait_state("alone", "running")
        create_event(site.plane, "lost", 800.0, "60s")
        wait_until(lambda: leases_of(site, "event lost "), 30, "the event's cap")
        (lost,) = [gpu for gpu in site.gpus if gpu.uuid in leases_of(site, "event lost ")]
        lost.set_lost()
        try:
            wait_until(lambda: fleet_gpus(site.plane)[lost.uuid]["power_w"] is None, 20, "the loss to be told")
            others = [gpu for gpu in fleet_gpus(site.plane).values() if gpu["uuid"] != lost.uuid]
            assert all(gpu["power_w"] is not None for gpu in others)
            wait_until(lambda: any(lost.uuid in said for said in alarms(site.plane)), 10, "the alarm")
            site.plane.wait_state("alone", "failed")
        finally:
            lost.set_lost(False)
        wait_until(lambda: [gpu.limit_w for gpu in site.gpus] == list(SAVED_W), 20, "the limit to be given back")
    site.plane.gridshift("events", "cancel", "lost")


def leases_of(site: Site, prefix: str) -> set[str]:
    """The GPUs that have a lease of that name, as the API tells it."""
    found = fleet_gpus(site.plane).values()
    return {one["uuid"] for gpu in found for one in gpu["node"]["leases"] if one["lease_id"].startswith(prefix)}
