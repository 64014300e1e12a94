"""A fleet as the hub tells of it, and as the API does."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from dispatcher.api.fleet import energy_json, fleet_json
from dispatcher.power.energy import EnergySum, KnownNode
from dispatcher.power.fleet import Fleet, fleet_of
from dispatcher.power.hub import CapLive, FrozenJob, GpuLive, NodeAlarm, NodeLive

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def gpu(index: int = 0, power_w: float | None = 300.0, **more: Any) -> GpuLive:
    given = GpuLive(
        region="north",
        branch="rack-1",
        node_id="n1",
        uuid=f"GPU-{index}",
        index=index,
        name="H100",
        simulated=False,
        power_w=power_w,
        limit_w=700.0,
        enforced_w=700.0,
        default_w=700.0,
        min_w=200.0,
        max_w=700.0,
        temperature_c=60.0,
        sm_util=0.9,
        throttle=(),
        idle_state="active",
        jobs=("j1",),
        cap=CapLive("none"),
        mig=False,
    )
    return replace(given, **more)


def node(node_id: str = "n1", *gpus: GpuLive, **more: Any) -> NodeLive:
    given = NodeLive(node_id, f"host-{node_id}", "north", "rack-1", True, NOW, True, "", False, gpus or (gpu(),))
    return replace(given, **more)


def fleet(*nodes: NodeLive, known: tuple[KnownNode, ...] = (), regions: tuple[str, ...] = ("north", "south")) -> Fleet:
    return fleet_of(nodes, known, regions, {("north", "rack-1"): 5000.0}, NOW)


def busy_fleet(now: datetime = NOW) -> dict[str, Any]:
    """What ``/v1/fleet`` tells of two regions: one measured with a branch at its limit, one SIMULATED with a silent node."""
    capped = CapLive("enforced", 350.0, 350.0, 350.0, now)
    fights = CapLive("drifted", 350.0, 700.0, 700.0, now, "someone else set 700 W; it is put right")
    rack = [
        gpu(0, 342.0, limit_w=350.0, enforced_w=350.0, throttle=("sw_power_cap",), cap=capped, jobs=("train-a",)),
        gpu(1, 655.0, cap=fights, jobs=("train-a", "eval<b>")),
        gpu(2, 118.0, idle_state="execution_idle", sm_util=0.0, jobs=("notebook",)),
        gpu(3, 71.0, idle_state="deep_idle", sm_util=0.0, temperature_c=34.0, jobs=()),
    ]
    weak = [gpu(0, 300.0, name="A100", mig=True), gpu(1, None, name="A100", idle_state="lost", jobs=())]
    nodes = (
        node("n1", *rack, frozen=(FrozenJob("frozen-1", None),)),
        node("n2", *weak, branch=None, can_cap=False, why_not="it has no right to set limits",
             alarms=(NodeAlarm("lost", "GPU-1 does not answer: it has fallen off the bus"),)),
        node("s1", gpu(0, 210.0, name="SIM-H100"), region="us-east", branch="rack-9", simulated=True),
        node("s2", gpu(0, 210.0), region="us-east", branch="rack-9", connected=False, simulated=True,
             last_seen_at=now - timedelta(minutes=3)),
    )  # fmt: skip
    nodes = tuple(replace(one, region="nordics") if one.region == "north" else one for one in nodes)
    limits = {("nordics", "rack-1"): 2000.0}
    return fleet_json(fleet_of(nodes, (), ("eu-west", "nordics", "us-east"), limits, now))


def an_hour(now: datetime = NOW) -> dict[str, Any]:
    """What ``/v1/energy`` tells of the last hour, with a gap of seven minutes."""
    start = now.replace(second=0) - timedelta(hours=1)
    sums = []
    for minute in range(60):
        begin = start + timedelta(minutes=minute)
        end = begin + timedelta(minutes=1)
        if 25 <= minute < 32:
            sums.append(EnergySum(begin, end, None, None, None, None, None, 0, 0.0, False))
            continue
        job_wh, idle_wh, other_wh = 18.0 + 6.0 * (minute % 9 > 4), 3.0, 1.0 if minute > 40 else 0.0
        sums.append(EnergySum(begin, end, job_wh + idle_wh + other_wh, job_wh, idle_wh, other_wh, 1.5, 6, 360.0, False))
    head = {"start": start.isoformat(), "end": now.isoformat(), "step": "minute", "job": None, "region": None}
    return {**head, "of": "the GPUs, without PUE", "note": None, **energy_json(sums, 60)}
