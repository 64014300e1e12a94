"""A whole agent on simulated GPUs, against a real hub over a real websocket."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher.agent.devices import DeviceError, Devices, GpuProcess
from dispatcher.agent.freezing import boottime_s
from dispatcher.agent.messages import EnergyAck, from_server
from dispatcher.agent.metering import EnergyRow
from dispatcher.agent.node import FolderBusy, OwnDevices, Settings
from dispatcher.agent.release import NotReleased, release_here
from dispatcher.agent.runner import Agent, differs, jobs_on, once
from dispatcher.power.accounts import moment
from dispatcher.power.energy import EnergyBook
from dispatcher.power.hub import CapOrder, GpuLive, Hub, NodeLive, Release
from dispatcher.simgpu import SimGpus
from dispatcher.store.engine import database, make_engine
from tests.api.fake import FakeServices, Server
from tests.helpers import wait_until
from tests.simgpu.simulated import simulated, working


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, 2) as made:
        yield made


@pytest.fixture
def services(tmp_path: Path) -> FakeServices:
    return FakeServices(tmp_path)


@pytest.fixture
def hub(services: FakeServices) -> Hub:
    return services.hub


@pytest.fixture
def server(services: FakeServices) -> Iterator[Server]:
    with Server(services) as running:
        yield running


Start = Callable[..., Agent]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """Starts agents of this test's control plane; they end with the test."""
    agents: list[Agent] = []

    def begin(node_id: str = "n1", folder: str = "state", url: str | None = None, **more: Any) -> Agent:
        host, state_dir = f"host-{node_id}", tmp_path / folder
        settings = Settings(url or server.url, "north", None, state_dir, node_id, host, branch="rack-1", **more)
        agents.append(Agent(settings).start())
        return agents[-1]

    yield begin
    for agent in agents:
        agent.stop()


def node(hub: Hub, node_id: str = "n1") -> NodeLive:
    found: Any = wait_until(lambda: hub.node(node_id), 15, f"{node_id} to connect")
    return found  # type: ignore[no-any-return]


def gpu(hub: Hub, uuid: str) -> GpuLive:
    return next(gpu for live in hub.nodes() for gpu in live.gpus if gpu.uuid == uuid)


def order(
    gpus: SimGpus, index: int = 0, limit_w: float = 250.0, kind: str = "economic", ttl_s: float | None = 60.0
) -> CapOrder:
    return CapOrder(f"{kind}-{index}", kind, "n1", gpus[index].uuid, limit_w, ttl_s, "a test")


def test_the_hub_sees_the_node_its_draw_and_its_jobs(gpus: SimGpus, hub: Hub, start: Start) -> None:
    start()
    seen = node(hub)
    assert (seen.hostname, seen.branch, seen.can_cap, seen.simulated) == ("host-n1", "rack-1", True, True)
    assert [(one.uuid, one.default_w, one.min_w, one.max_w) for one in seen.gpus] == [
        (one.uuid, 400.0, 100.0, 400.0) for one in gpus
    ]
    with working(gpus, visible="0", GRIDSHIFT_JOB_ID="job-7"):
        busy: Any = wait_until(lambda: [one for one in hub.gpus_of("job-7") if (one.power_w or 0) > 300], 15, "the job's draw")
        assert [one.uuid for one in busy] == [gpus[0].uuid] and busy[0].idle_state == "active"
        other = gpu(hub, gpus[1].uuid)
        assert other.jobs == () and other.idle_state == "deep_idle" and 0 < (other.power_w or 0) < 100
    wait_until(lambda: hub.gpus_of("job-7") == [], 15, "the job's end")


def test_who_is_there_is_unknown_where_the_driver_does_not_say(
    gpus: SimGpus, hub: Hub, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def processes(devices: Devices, uuid: str) -> list[GpuProcess]:
        if uuid in refused:
            raise DeviceError("the driver does not say who is there")
        return listed(devices, uuid)

    listed = Devices.processes
    monkeypatch.setattr(Devices, "processes", processes)
    start()
    node(hub)
    with working(gpus, visible="0") as stranger, working(gpus, visible="1", GRIDSHIFT_JOB_ID="job-7"):
        wait_until(lambda: gpu(hub, gpus[0].uuid).protected and gpu(hub, gpus[1].uuid).jobs == ("job-7",), 15, "both")
        assert gpu(hub, gpus[0].uuid).jobs == ()
        refused += [one.uuid for one in gpus]
        wait_until(lambda: {gpu(hub, one.uuid).jobs for one in gpus} == {None}, 15, "the lists to be unknown")
        assert str(stranger.pid) in gpu(hub, gpus[0].uuid).protected, "nothing says that it has gone"
        refused.clear()
        wait_until(lambda: gpu(hub, gpus[1].uuid).jobs == ("job-7",), 15, "the list to be known again")


@pytest.mark.parametrize(
    ("residents", "idle_state", "told"),
    [
        ({"b": 1, None: 1, "a": None}, "active", ["a", "b"]),
        ({None: 1}, "active", []),
        ({}, "deep_idle", []),
        ({}, "lost", []),
        (None, "active", None),
        ({}, "active", None),
    ],
)
def test_the_jobs_of_a_gpu_as_they_are_told(residents: Any, idle_state: str, told: list[str] | None) -> None:
    assert jobs_on(residents, idle_state) == told, "nobody seen on a GPU at work is somebody unseen"


def test_a_cap_is_set_read_back_told_and_given_back(gpus: SimGpus, hub: Hub, start: Start) -> None:
    start()
    node(hub)
    (result,) = hub.order_caps([order(gpus)]).result(10)
    assert (result.ok, result.enforced_w, result.error) == (True, 250.0, None) and gpus[0].limit_w == 250.0
    wait_until(lambda: gpu(hub, gpus[0].uuid).cap.state == "enforced", 10, "the cap to be told")
    assert [(lease.lease_id, lease.epoch) for lease in hub.nodes()[0].leases] == [("economic-0", hub.epoch)]
    (released,) = hub.order_caps([], [Release("n1", "economic-0")]).result(10)
    assert released.ok and gpus[0].limit_w == 400.0
    wait_until(lambda: hub.nodes()[0].leases == () and gpu(hub, gpus[0].uuid).cap.state == "none", 10, "the end to be told")


def test_a_lease_that_nobody_renews_ends_by_itself(gpus: SimGpus, hub: Hub, start: Start, server: Server) -> None:
    start()
    node(hub)
    assert hub.order_caps([order(gpus, ttl_s=1.5)]).result(10)[0].ok and gpus[0].limit_w == 250.0
    server.server.should_exit = server.server.force_exit = True  # nobody is there when it ends
    wait_until(lambda: gpus[0].limit_w == 400.0, 10, "the limit to be given back")


def test_what_cannot_be_done_is_told_with_the_reason(gpus: SimGpus, hub: Hub, start: Start) -> None:
    start()
    node(hub)
    low, stale = order(gpus, limit_w=50.0), Hub(epoch=0)
    assert "100 to 400 W" in str(hub.order_caps([low]).result(10)[0].error) and gpus[0].limit_w == 400.0
    hub.order_caps([order(gpus)]).result(10)
    stale.epoch, hub.epoch = hub.epoch, 0  # a control plane from before
    assert "epoch" in str(hub.order_caps([order(gpus, limit_w=300.0)]).result(10)[0].error) and gpus[0].limit_w == 250.0
    unknown = CapOrder("l", "economic", "n1", "GPU-unknown", 300.0, 60.0, "")
    hub.epoch = stale.epoch
    assert "not on this node" in str(hub.order_caps([unknown]).result(10)[0].error)


def test_an_agent_that_stops_gives_economic_limits_back_and_leaves_event_limits(gpus: SimGpus, hub: Hub, start: Start) -> None:
    agent = start()
    node(hub)
    orders = [order(gpus, 0), order(gpus, 1, 300.0, "event", None)]
    assert all(result.ok for result in hub.order_caps(orders).result(10))
    agent.stop()
    assert (gpus[0].limit_w, gpus[1].limit_w) == (400.0, 300.0)
    gpus[1].set_limit(400.0)  # somebody sets it back while no agent runs
    start()
    wait_until(lambda: gpus[1].limit_w == 300.0, 10, "the event's limit to be put in force again")
    wait_until(lambda: [lease.lease_id for lease in hub.nodes()[0].leases] == ["event-1"], 10, "the lease to be told")


def test_event_leases_are_released_by_hand_while_an_agent_runs_and_without_one(
    gpus: SimGpus, hub: Hub, start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    with pytest.raises(NotReleased, match="no agent has worked there"):
        release_here(folder, None)
    agent = start()
    node(hub)
    events = [order(gpus, index, 300.0, "event", None) for index in (0, 1)]
    assert all(result.ok for result in hub.order_caps([*events, order(gpus, 0, 350.0)]).result(10))
    assert release_here(folder, "economic-0") == []  # only events need a hand
    (released,) = release_here(folder, "event-0")
    assert released["ok"] and released["uuid"] == gpus[0].uuid and gpus[0].limit_w == 350.0
    agent.stop()
    assert (gpus[0].limit_w, gpus[1].limit_w) == (400.0, 300.0)
    (released,) = release_here(folder, None)
    assert released["lease_id"] == "event-1" and released["ok"] and gpus[1].limit_w == 400.0
    assert release_here(folder, None) == []


def test_a_job_is_frozen_and_runs_again(gpus: SimGpus, hub: Hub, start: Start) -> None:
    start()
    node(hub)
    with working(gpus, visible="0", GRIDSHIFT_JOB_ID="job-7") as process:
        wait_until(lambda: hub.gpus_of("job-7"), 15, "the job to be seen")
        (result,) = hub.freeze("job-7", ttl_s=30.0, freeze_max_s=60.0).result(10)
        assert result.ok and result.processes == 1 and state_of(process) == "T"
        wait_until(lambda: [one.job_id for one in hub.nodes()[0].frozen] == ["job-7"], 10, "the freeze to be told")
        assert hub.thaw("job-7").result(10)[0].ok and state_of(process) != "T"
    (none,) = hub.freeze("job-8", ttl_s=30.0, freeze_max_s=60.0).result(10)
    assert not none.ok and "no process of job-8" in str(none.error)


def test_a_control_plane_from_before_neither_freezes_nor_thaws_on_a_node_without_gpus(
    gpus: SimGpus, hub: Hub, start: Start
) -> None:
    gpus.set_driver_absent()
    agent = start()
    node(hub)
    with subprocess.Popen(["sleep", "300"], env={**os.environ, "GRIDSHIFT_JOB_ID": "job-cpu"}, text=True) as process:
        try:
            assert hub.freeze("job-cpu", ttl_s=60.0, freeze_max_s=60.0).result(10)[0].ok
            newest, hub.epoch = hub.epoch, hub.epoch - 1
            for order in (hub.thaw("job-cpu"), hub.freeze("job-cpu", ttl_s=1.0, freeze_max_s=60.0)):
                assert "a newer control plane is in charge" in str(order.result(10)[0].error)
            assert state_of(process) == "T"

            hub.epoch = newest
            assert hub.thaw("job-cpu").result(10)[0].ok and state_of(process) != "T"
            agent.stop()
            again = start()
            assert again.hello()["epoch"] == newest, "it is on disk"
            wait_until(lambda: hub.nodes()[0].connected, 15, "its successor")
            hub.epoch = newest - 1
            assert not hub.freeze("job-cpu", ttl_s=60.0, freeze_max_s=60.0).result(10)[0].ok and state_of(process) != "T"
        finally:
            process.kill()


def state_of(process: "subprocess.Popen[str]") -> str:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_work_of_no_job_of_ours_is_protected_from_economic_leases_where_that_is_wanted(
    gpus: SimGpus, hub: Hub, start: Start
) -> None:
    agent = start()
    node(hub)
    with working(gpus, visible="0") as process, working(gpus, visible="1", GRIDSHIFT_JOB_ID="job-7"):
        wait_until(lambda: gpu(hub, gpus[0].uuid).protected and gpu(hub, gpus[1].uuid).jobs, 15, "both to be seen")
        assert str(process.pid) in gpu(hub, gpus[0].uuid).protected and gpu(hub, gpus[1].uuid).protected == ""
        kept, capped, event = hub.order_caps(
            [order(gpus, 0), order(gpus, 1), order(gpus, 0, 300.0, "event", 60.0)],
        ).result(10)
        assert not kept.ok and "[agents] protect_foreign" in str(kept.error) and capped.ok and event.ok
        (asked,) = hub.order_caps([order(gpus, 0)._replace(lease_id="asked", foreign_ok=True)]).result(10)
        assert asked.ok, "whose work it is asked for it"
        agent.stop()
        start("n1", "other", protect_foreign=False)
        wait_until(lambda: hub.nodes()[0].connected and gpu(hub, gpus[1].uuid).jobs, 15, "the other agent to look")
        assert hub.order_caps([order(gpus, 0)]).result(10)[0].ok and gpu(hub, gpus[0].uuid).protected == ""


def frame(gpus: SimGpus, limit_w: float = 300.0, **more: Any) -> Any:
    """An order as it comes from a control plane, for an event on the first GPU."""
    given = {"lease_id": "e", "kind": "event", "uuid": gpus[0].uuid, "limit_w": limit_w, "ttl_s": 600.0, "reason": ""}
    return from_server({"type": "orders", "order": "1-1", "epoch": 1, "set": [given], "release": [], **more})


def ends_in_s(agent: Agent) -> list[float]:
    return [round(lease["ends_in_s"]) for lease in agent.hello()["leases"]]


def alarms(agent: Agent) -> str:
    return " | ".join(alarm["sentence"] for alarm in agent._alarms())


def test_of_two_control_planes_with_one_epoch_only_the_first_is_obeyed(gpus: SimGpus, start: Start) -> None:
    agent = start(url="http://127.0.0.1:9")
    first: Any = agent._on_frame(frame(gpus, plane="a"))
    assert first["results"][0]["ok"] and gpus[0].limit_w == 300.0
    for other in (frame(gpus, 250.0, plane="b"), frame(gpus, set=[], release=["e"], plane="b")):
        said: Any = agent._on_frame(other)
        assert not said["results"][0]["ok"] and "a was obeyed here first, so b is not" in said["results"][0]["error"]
    assert "two control planes have epoch 1" in alarms(agent) and gpus[0].limit_w == 300.0
    thaw = {"type": "thaw", "order": "1-2", "epoch": 1, "job_id": "j", "plane": "b"}
    refused: Any = agent._on_frame(from_server(thaw))
    assert "a was obeyed here first" in refused["results"][0]["error"]
    agent.stop()
    agent = start(url="http://127.0.0.1:9")
    assert (agent.hello()["epoch"], agent.hello()["plane"]) == (1, "a"), "it is on disk"
    again: Any = agent._on_frame(frame(gpus, 250.0, plane="b"))
    assert not again["results"][0]["ok"]
    higher: Any = agent._on_frame(frame(gpus, 250.0, plane="b", epoch=2))
    assert higher["results"][0]["ok"] and gpus[0].limit_w == 250.0 and agent.hello()["plane"] == "b"
    unnamed: Any = agent._on_frame(frame(gpus, 260.0, epoch=2))
    assert unnamed["results"][0]["ok"], "one from before planes had names"


def test_an_order_that_waited_for_long_is_not_obeyed_as_if_it_were_new(gpus: SimGpus, start: Start) -> None:
    agent = start(url="http://127.0.0.1:9")
    now_s = boottime_s()
    late = {"heard_boot_s": now_s - 3000.0, "heard_ago_s": 2.0}
    for order in (frame(gpus, **late), frame(gpus, set=[], release=["e"], **late)):
        said: Any = agent._on_frame(order)
        assert "under way for up to 2998 s" in said["results"][0]["error"] and gpus[0].limit_w == 400.0
    freeze = {"type": "freeze", "order": "2", "epoch": 1, "job_id": "j", "ttl_s": 60.0, "freeze_max_s": 60.0, **late}
    frozen: Any = agent._on_frame(from_server(freeze))
    assert "under way" in frozen["results"][0]["error"]
    thawed: Any = agent._on_frame(from_server({"type": "thaw", "order": "2", "epoch": 1, "job_id": "j", **late}))
    assert thawed["results"][0]["ok"], "what wakes a job is never too late"
    soon: Any = agent._on_frame(frame(gpus, heard_boot_s=now_s - 3000.0, heard_ago_s=2999.0))
    assert soon["results"][0]["ok"] and gpus[0].limit_w == 300.0


@pytest.mark.parametrize(
    ("ahead_s", "ends", "said"),
    [
        (0.0, 600, None),
        (1.5, 600, None),
        (3600.0, 4200, "the control plane's clock is 3600 s ahead of this node's"),
        (-3600.0, 600, "the control plane's clock is 3600 s behind this node's"),
        (90_000.0, 600, "ahead of"),
    ],
)
def test_an_event_lease_ends_when_it_is_over_by_both_clocks(
    gpus: SimGpus, start: Start, ahead_s: float, ends: int, said: str | None
) -> None:
    agent = start(url="http://127.0.0.1:9")
    given: Any = agent._on_frame(frame(gpus, at=time.time() + ahead_s))
    assert given["results"][0]["ok"] and ends_in_s(agent) == [pytest.approx(ends, abs=1)]
    assert said in alarms(agent) if said else "clock" not in alarms(agent)


def test_a_gpu_is_not_capped_for_economy_before_it_is_known_who_works_there(gpus: SimGpus, hub: Hub, start: Start) -> None:
    agent = start()
    node(hub)
    wait_until(lambda: not gpu(hub, gpus[0].uuid).protected, 10, "two looks")
    assert "who works on this GPU is not known yet" in str(agent._why_protected("GPU-new"))
    agent.stop()
    agent._strangers, agent._protected = {}, {}
    agent._protect({gpus[0].uuid: frozenset({7}), gpus[1].uuid: frozenset()})
    assert "process 7" in str(agent._why_protected(gpus[0].uuid)) and agent._why_protected(gpus[1].uuid) is None
    agent._protect({gpus[0].uuid: frozenset({8}), gpus[1].uuid: frozenset({9})})
    assert [agent._why_protected(one.uuid) for one in gpus] == [None, None], "each was seen once"


def test_energy_rows_wait_for_their_acknowledgement(gpus: SimGpus, hub: Hub, start: Start) -> None:
    from concurrent.futures import Future

    from dispatcher.agent.metering import EnergyRow

    agent = start()
    node(hub)
    row = EnergyRow(60, 120, gpus[0].uuid, "job-7", "job", 2.0, 60.0, "measured", "exclusive", 120.0, 0.0, 0.0, 0.0)
    taken: list[dict[str, Any]] = []
    answers: list[Future[None]] = []

    def take(rows: Any) -> "Future[None]":
        answer: Future[None] = Future()
        ours = [one for one in rows if one["job_id"] == "job-7"]
        if ours:
            taken.extend(ours)
            answers.append(answer)
        else:  # rows of the GPUs' own minute, should one end now
            answer.set_result(None)
        return answer

    hub.on_energy = take
    agent._rows.append([row])
    wait_until(lambda: answers, 10, "the rows to be sent")
    assert len(agent._rows) >= 1
    answers[0].set_result(None)
    wait_until(lambda: len(agent._rows) == 0, 10, "the rows to be forgotten")
    assert [(one["node_id"], one["region"], one["simulated"], one["energy_wh"]) for one in taken] == [
        ("n1", "north", True, 2.0)
    ]


def test_a_gpu_that_is_lost_is_unknown_and_the_others_go_on(gpus: SimGpus, hub: Hub, start: Start) -> None:
    start()
    node(hub)
    wait_until(lambda: gpu(hub, gpus[0].uuid).power_w is not None, 10, "figures")
    gpus[0].set_lost()
    wait_until(lambda: gpu(hub, gpus[0].uuid).idle_state == "lost", 15, "the loss to be seen")
    assert gpu(hub, gpus[0].uuid).power_w is None and gpu(hub, gpus[1].uuid).power_w is not None
    assert hub.order_caps([order(gpus, 1)]).result(10)[0].ok


def test_a_gpu_that_hangs_holds_up_no_other(gpus: SimGpus, hub: Hub, start: Start) -> None:
    start()
    node(hub)
    wait_until(lambda: gpu(hub, gpus[0].uuid).power_w is not None, 10, "figures")
    gpus[0].set_slow(3.0)
    wait_until(lambda: gpu(hub, gpus[0].uuid).power_w is None, 15, "its figures to be unknown")
    assert gpu(hub, gpus[1].uuid).power_w is not None and hub.nodes()[0].connected
    (result,) = hub.order_caps([order(gpus, 1)]).result(10)
    assert result.ok and (result.took_s or 9) < 2
    gpus[0].set_slow(0)


def test_without_a_right_to_set_limits_it_measures_all_the_same(gpus: SimGpus, hub: Hub, start: Start) -> None:
    for one in gpus:
        one.set_no_permission()
    start()
    seen = node(hub)
    assert not seen.can_cap and "root" in seen.why_not
    wait_until(lambda: gpu(hub, gpus[0].uuid).power_w is not None, 10, "figures")
    assert not hub.order_caps([order(gpus)]).result(10)[0].ok


def test_where_others_work_no_limit_is_set_just_to_try(gpus: SimGpus, hub: Hub, start: Start) -> None:
    with working(gpus, visible="0"):
        start()
        assert node(hub).can_cap
        assert [gpu.limit_calls > 0 for gpu in gpus] == [False, True]


def test_where_others_work_on_every_gpu_root_counts_as_able(gpus: SimGpus, hub: Hub, start: Start) -> None:
    with working(gpus, visible="0,1"):
        start()
        seen = node(hub)
        assert seen.can_cap == (os.geteuid() == 0) and (seen.can_cap or "only root" in seen.why_not)
        assert [gpu.limit_calls for gpu in gpus] == [0, 0]
        (result,) = hub.order_caps([order(gpus, kind="event")]).result(10)
        assert result.ok and [gpu.limit_calls > 0 for gpu in gpus] == [True, False]


def test_without_a_driver_it_says_so_and_stays(gpus: SimGpus, hub: Hub, start: Start) -> None:
    gpus.set_driver_absent()
    start()
    seen = node(hub)
    assert seen.gpus == () and not seen.can_cap and "driver" in seen.why_not
    assert "driver" in str(hub.order_caps([order(gpus)]).result(10)[0].error)


def test_one_agent_a_folder_and_one_agent_a_gpu(gpus: SimGpus, hub: Hub, start: Start) -> None:
    agent = start()
    node(hub)
    with pytest.raises(FolderBusy, match="works in"):
        start("n2")
    start("n2", "other")
    second = node(hub, "n2")
    assert second.gpus == () and "another agent looks after" in second.why_not
    agent.stop()
    devices = OwnDevices()  # the first one's are free again
    assert [info.uuid for info in devices.infos()] == [one.uuid for one in gpus]
    devices.close()


def test_a_look_at_what_it_sees_sets_nothing(gpus: SimGpus) -> None:
    gpus[1].set_limit(300.0)
    with working(gpus, visible="0", GRIDSHIFT_JOB_ID="job-7") as process:
        seen = json.loads(json.dumps(once()))
    assert seen["simulated"] and seen["error"] is None and len(seen["gpus"]) == 2
    first, second = seen["gpus"]
    assert [(one["pid"], one["job_id"]) for one in first["processes"]] == [(process.pid, "job-7")]
    assert second["limit_w"] == 300.0 and second["processes"] == [] and second["reading"]["power_w"] > 0
    assert gpus[1].limit_w == 300.0
    gpus.set_driver_absent()
    assert once()["gpus"] == [] and "driver" in once()["error"]


def test_only_what_is_new_is_told_before_its_time() -> None:
    def live(**more: Any) -> dict[str, Any]:
        one = {"uuid": "G", "power_w": 300.0, "limit_w": 400.0, "enforced_w": 400.0, "throttle": [], "idle_state": "active"}
        one |= {"jobs": ["a"], "cap": {"state": "none", "wanted_w": None}, "temperature_c": 40.0} | more
        return {"gpus": [one], "frozen": [], "alarms": []}

    assert differs(None, live()) and not differs(live(), live(temperature_c=60.0)) and not differs(live(), live(power_w=305.9))
    assert differs(live(), live(power_w=307.0)) and differs(live(), live(power_w=None)) and differs(live(), live(jobs=[]))
    assert differs(live(), live(cap={"state": "enforced", "wanted_w": 250.0})) and differs(live(), {**live(), "alarms": [1]})
    assert differs(live(), {**live(), "gpus": []}) and differs(live(), {**live(), "leases": []})


def test_a_round_that_goes_wrong_still_wakes_jobs_and_keeps_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent(Settings("http://127.0.0.1:9", "north", None, tmp_path / "state", "n1", "host"))
    done: list[str] = []

    def fails(what: str) -> Callable[[], Any]:
        def step() -> Any:
            done.append(what)
            raise OSError(24, "Too many open files")

        return step

    monkeypatch.setattr(agent._freezer, "step", fails("wake"))
    monkeypatch.setattr(agent, "_keep_limits", lambda: done.append("limits"))
    with pytest.raises(OSError, match="Too many"):
        agent.tick()
    monkeypatch.setattr(agent, "_keep_limits", fails("limits"))
    with pytest.raises(OSError, match="Too many"):
        agent.tick()
    assert done == ["wake", "limits", "wake", "limits"]
    agent.stop()


def test_what_was_acknowledged_last_is_not_sent_by_a_successor(tmp_path: Path) -> None:
    agent = Agent(Settings("http://127.0.0.1:9", "north", None, tmp_path / "state", "n1", "host"))
    agent._rows.append(row_of_minute(at) for at in range(3))
    batch = agent._rows.batch()
    assert batch is not None
    agent._on_frame(EnergyAck(batch[0]))
    agent.stop()
    after = Agent(Settings("http://127.0.0.1:9", "north", None, tmp_path / "state", "n2", "host"))
    assert after._rows.batch() is None
    after.stop()


def test_a_row_is_booked_once_though_its_node_is_killed_and_comes_back_under_another_name(
    gpus: SimGpus, hub: Hub, start: Start, sqlite_url: str, tmp_path: Path
) -> None:
    engine = make_engine(database(sqlite_url))
    book = EnergyBook(engine)
    taken: list[int] = []

    def take(rows: Any) -> Any:
        done = book.take(rows, moment(3600))
        taken.append(len(rows))
        return done

    hub.on_energy = take
    agent = start("n1")
    node(hub)
    agent._rows.append(replace(row_of_minute(at), node_id="n1") for at in range(3))
    shutil.copytree(tmp_path / "state", tmp_path / "killed")  # as the disk is before an acknowledgement has come
    wait_until(lambda: len(agent._rows) == 0, 15, "the rows to be stored")
    agent.stop()
    start("n2", "killed")
    wait_until(lambda: len(taken) > 1, 15, "them to be sent again")
    book.close()  # writes what waits
    (hour,) = book.sums(moment(0), moment(3600), 3600)
    assert taken == [3, 3] and hour.energy_wh == pytest.approx(3.0)
    engine.dispose()


def row_of_minute(at: int) -> EnergyRow:
    return EnergyRow(60 * at, 60 * at + 60, "GPU-1", "j", "job", 1.0, 60.0, "measured", "exclusive", 60.0, 0.0, None, 0.0)
