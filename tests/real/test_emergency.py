"""A node on which a server of interactive requests has one GPU and batch the others, and a utility that asks for less power by
signed webhook: what the driver of ours itself has counted of writes to the server's limit.

Only what users have is used: `gridshift serve`, `gridshift agent`, `ray job submit`, the webhook. The server is no job of ours.
"""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import requests
from standardwebhooks import Webhook

from dispatcher.local_ray import LocalRay
from dispatcher.simgpu import SimGpus, environment
from dispatcher.simgpu.state import SimGpu
from tests.helpers import wait_until
from tests.real.harness import Plane, chat_server, region
from tests.real.power_watch import DriverWatch
from tests.real.test_power import Service, alarms, fleet_gpus, submit
from tests.simgpu.simulated import working

pytestmark = pytest.mark.real

SECRET = "whsec_" + "c2VjcmV0IG9mIG1vcmUgdGhhbiAyNCBieXRlcyE="
#: Limits that stood before any cap, W; each GPU at work draws 380 W, and a capped one 200 W at least.
SAVED_W = (395.0, 400.0, 390.0, 400.0)
FLOOR_W = 250.0
#: What batch can meet by itself (380 + 3 x 200 W is the least), what it cannot, and what the floor forbids to meet.
EASY_W, HARD_W, TOO_HARD_W = 1250.0, 900.0, 700.0

SERVING = """
[[webhook]]
source = "utility"
secret_env = "UTILITY_SECRET"

[[region.serving]]
name = "chat"
source = "metrics"
url = "{url}/metrics"
gpu_uuids = ["{uuid}"]
floor_w = {floor_w}
allow_emergency = {allowed}
[[region.serving.slo]]
metric = "queue"
limit = 1000
gauge = "chat_running"
"""


@dataclass
class Hall:
    """A node with a Ray on GPUs 1 to 3, a server on GPU 0, its control plane and agent."""

    gpus: SimGpus
    server: SimGpu
    plane: Plane
    drivers: DriverWatch

    def batch_w(self) -> list[float]:
        """The limits of batch's GPUs, as the driver has them."""
        return [gpu.limit_w for gpu in self.gpus][1:]

    def drawn_w(self) -> float:
        """What all draw, as the driver's model has it."""
        return sum(gpu.power_w for gpu in self.gpus)

    def tell(self, kind: str, **data: Any) -> None:
        """Send a signed message, as the utility does."""
        body, at = json.dumps({"type": kind, "data": data}), datetime.now(UTC)
        message_id = f"msg_{at.timestamp():.6f}"
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(SECRET).sign(message_id, at, body),
        }
        answer = requests.post(f"{self.plane.address}/v1/webhooks/utility", data=body.encode(), headers=headers, timeout=10)
        assert (answer.status_code, answer.json()) == (202, {"outcome": "accepted"}), answer.text

    def ask(self, event_id: str, limit_w: float, *, emergency: bool = False) -> None:
        """Ask for less until it is taken back."""
        until = (datetime.now(UTC) + timedelta(minutes=10)).isoformat()
        self.tell("power_budget", event_id=event_id, region="north", limit_w=limit_w, end=until, emergency=emergency)

    def take_back(self, *event_ids: str) -> None:
        """Cancel, and wait until every limit is what it was before."""
        for event_id in event_ids:
            self.tell("power_budget.cancelled", event_id=event_id)
        wait_until(lambda: [gpu.limit_w for gpu in self.gpus] == list(SAVED_W), 20, "all limits as they were")

    def hold(self, said: str, seconds: float = 6.0) -> None:
        """Wait for an alarm, then let some rounds of the power loop pass."""
        wait_until(lambda: any(said in one for one in alarms(self.plane)), 40, f"{said!r} to be told")
        until = time.monotonic() + seconds
        wait_until(lambda: time.monotonic() > until, seconds + 5, "some rounds of the power loop")

    def lowest_w(self) -> float:
        """The lowest limit that the server's GPU has been seen to have."""
        return min(limit_w for _, limit_w in self.drivers.seen[self.server.uuid].limits)

    def config(self, ray: LocalRay, url: str, *, allowed: bool) -> str:
        """The configuration's text below the server's section."""
        told = {"url": url, "uuid": self.server.uuid, "floor_w": FLOOR_W, "allowed": str(allowed).lower()}
        serving = SERVING.format(**told).split("[[region.serving]]")
        return region("north", ray.address, 50.0, gpus=3, pue=1.0) + "[[region.serving]]" + serving[1] + serving[0]


def test_only_an_emergency_that_batch_cannot_meet_touches_serving_that_allows_it(short_tmp: Path) -> None:
    gpus = SimGpus.create(short_tmp / "simgpu", 4)
    for gpu, saved_w in zip(gpus, SAVED_W, strict=True):
        gpu.set_limit(saved_w)
        gpu.set_lag(0.2)
        gpu.set_noise(0.01, seed=gpu.index)
    env = {**environment(gpus.path, base={}), "CUDA_VISIBLE_DEVICES": "1,2,3"}
    drivers = DriverWatch(gpus)
    with (
        LocalRay("north", base_dir=short_tmp / "ray", num_cpus=4, env=env) as ray,
        chat_server(short_tmp / "nobody") as url,
        working(gpus, visible="0") as server,
        drivers,
    ):
        plane = Plane(short_tmp, "", UTILITY_SECRET=SECRET)
        hall = Hall(gpus, gpus[0], plane, drivers)
        head = plane.config.read_text()
        plane.config.write_text(head + hall.config(ray, url, allowed=False), encoding="utf-8")
        service = Service(gpus, short_tmp / "agent", plane.address)
        try:
            with plane:
                service.start()
                for number in range(3):
                    submit(plane, f"work-{number}", 1, 36000.0, tier="flex-3", power_w="380")
                wait_until(lambda: sum(bool(gpu["jobs"]) for gpu in fleet_gpus(plane).values()) == 3, 90, "the work")
                assert gpus[0].pids == [server.pid] and all(len(gpu.pids) == 1 for gpu in gpus)

                # 1. what batch can give is taken from batch alone
                hall.ask("easy", EASY_W)
                wait_until(lambda: max(hall.batch_w()) < 330.0 and hall.drawn_w() <= EASY_W, 20, "batch to be capped")
                assert hall.server.limit_w == SAVED_W[0] and hall.server.power_w > 370.0
                hall.take_back("easy")
                # 2. what it cannot give is told, and whoever asks does not matter where the operator has not said so
                hall.ask("hard", HARD_W, emergency=True)
                hall.hold("above its limit")
                assert max(hall.batch_w()) == 200.0
                hall.take_back("hard")
                print(f"limit calls after two events without allow_emergency: {[gpu.limit_calls for gpu in gpus]}")
                assert hall.server.limit_calls == 0 and min(gpu.limit_calls for gpu in [*gpus][1:]) >= 4

            plane.config.write_text(head + hall.config(ray, url, allowed=True), encoding="utf-8")
            with plane:
                wait_until(lambda: sum(bool(gpu["jobs"]) for gpu in fleet_gpus(plane).values()) == 3, 60, "the agent")
                # 3. the operator has said so, and the event is none
                hall.ask("plain", HARD_W)
                hall.hold("above its limit")
                hall.take_back("plain")
                assert hall.server.limit_calls == 0
                # 4. an emergency: batch is at its least, and the server gives what is missing
                told_at = time.time()
                hall.ask("danger", HARD_W, emergency=True)
                wait_until(lambda: hall.server.limit_w < 300.0 and hall.drawn_w() <= HARD_W, 30, "the server to be capped")
                print(f"capped {time.time() - told_at:.1f} s after it was asked, at {hall.server.limit_w:g} W")
                assert max(hall.batch_w()) == 200.0 and hall.server.limit_w >= FLOOR_W
                hall.hold("serving chat may draw")
                assert hall.drawn_w() <= HARD_W and FLOOR_W <= hall.server.limit_w < 300.0
                # 5. never below its floor, and what is missing then is told
                hall.ask("worse", TOO_HARD_W, emergency=True)
                wait_until(lambda: hall.server.limit_w == FLOOR_W, 20, "its floor")
                hall.hold("W above its limit")
                # 6. it is given back to the watt, and each step is told
                hall.take_back("danger", "worse")
                assert hall.lowest_w() == FLOOR_W and server.poll() is None
                print(f"limit calls at the end: {[gpu.limit_calls for gpu in gpus]}")

                def steps() -> list[str] | None:
                    shown = plane.gridshift("events", "show", "danger")
                    assert shown["emergency"]
                    said = [line["sentence"] for line in shown["history"] if line["what"] == "note"]
                    return said if any("not capped any more" in one for one in said) else None

                said: Any = wait_until(steps, 10, "the history")
                assert any(one.startswith("serving chat may draw") for one in said)
                (told,) = plane.gridshift("serving", "north", "chat")["serving"]
                assert {one["sentence"] for one in told["history"]} >= set(said)
                states = {plane.job(f"work-{number}")["state"] for number in range(3)}
                assert states == {"running"} and all(plane.job(f"work-{n}")["pauses"] == 0 for n in range(3))
        finally:
            service.stop()
