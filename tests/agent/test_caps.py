"""Caps on simulated GPUs through the real pynvml: set, read back, kept, and always given back."""

import errno
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dispatcher.agent import cap_worker
from dispatcher.agent import leases as leases_module
from dispatcher.agent.caps import CapOrders, CapState, Enforcer, SetCap
from dispatcher.agent.devices import Devices
from dispatcher.agent.leases import Clock, LeaseBook
from dispatcher.simgpu import SimGpu, SimGpus
from tests.simgpu.simulated import simulated


class Shifted(Clock):
    """The machine's clocks, which a test can move ahead."""

    def __init__(self) -> None:
        self.boot_ahead = self.wall_ahead = 0.0

    def boot_s(self) -> float:
        return super().boot_s() + self.boot_ahead

    def wall_s(self) -> float:
        return super().wall_s() + self.wall_ahead

    def pass_s(self, seconds: float) -> None:
        self.boot_ahead += seconds
        self.wall_ahead += seconds


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[SimGpus]:
    with simulated(tmp_path, count=2) as some:
        yield some


@pytest.fixture
def clock() -> Shifted:
    return Shifted()


@pytest.fixture
def started(tmp_path: Path, gpus: SimGpus, clock: Shifted) -> Iterator[Callable[..., Enforcer]]:
    """Starts an enforcer on the folder's book, after letting go of the one before as a killed process does."""
    running: list[Enforcer] = []

    def start(boot: str = "boot-1", **more: Any) -> Enforcer:
        for one in running:
            one.close()
        running[:] = [Enforcer(Devices(), LeaseBook(tmp_path / "state", clock, boot), clock, **more)]
        return running[0]

    yield start
    for one in running:
        one.close()


def order(gpu: SimGpu, limit_w: float = 300.0, lease_id: str = "one", ttl_s: float | None = 60.0, **more: Any) -> SetCap:
    kind = "economic" if ttl_s is not None and ttl_s <= 60 else "event"
    return SetCap(**{"lease_id": lease_id, "kind": kind, "uuid": gpu.uuid, "limit_w": limit_w, "ttl_s": ttl_s, **more})


def apply(enforcer: Enforcer, *sets: SetCap, release: tuple[str, ...] = (), epoch: int = 1) -> list[Any]:
    return enforcer.apply(CapOrders(epoch, sets, release))


def until(true: Callable[[], bool], within_s: float, enforcer: Enforcer | None = None) -> float:
    """Steps as the agent does until something is so; how long that took. Fails when it takes longer than it may."""
    start = time.monotonic()
    while not true():
        if enforcer:
            enforcer.step()
        took = time.monotonic() - start
        assert took < within_s, f"not so within {within_s} s: {enforcer.states() if enforcer else ''}"
        time.sleep(0.02)
    return time.monotonic() - start


def state(enforcer: Enforcer, gpu: SimGpu) -> CapState:
    return next(one for one in enforcer.states() if one.uuid == gpu.uuid)


def test_a_cap_is_set_read_back_and_given_back_when_it_ends(
    gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer]
) -> None:
    gpus[0].set_limit(380)
    enforcer = started()
    [result] = apply(enforcer, order(gpus[0], 300))
    assert (result.lease_id, result.ok, result.enforced_w, result.error) == ("one", True, 300.0, None)
    assert result.took_s < 1.0
    assert gpus[0].limit_w == 300.0 and gpus[1].limit_w == 400.0
    now = state(enforcer, gpus[0])
    assert (now.state, now.wanted_w, now.limit_w, now.enforced_w, now.detail) == ("enforced", 300.0, 300.0, 300.0, "")
    clock.pass_s(59)
    enforcer.step()
    assert gpus[0].limit_w == 300.0
    clock.pass_s(1)
    until(lambda: gpus[0].limit_w == 380.0, 1.0, enforcer)
    until(lambda: state(enforcer, gpus[0]).state == "none", 3.0, enforcer)
    assert enforcer.alarms() == []


def test_a_lease_ends_in_time_when_nobody_steps(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    [result] = apply(enforcer, order(gpus[0], 300, ttl_s=0.4))
    assert result.ok
    assert until(lambda: gpus[0].limit_w == 400.0, 1.5) < 1.5


def test_the_lowest_of_several_leases_and_what_is_left_when_it_goes(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    results = apply(enforcer, order(gpus[0], 350, "a"), order(gpus[0], 250, "b", None), order(gpus[1], 300, "c"))
    assert [one.ok for one in results] == [True] * 3
    assert (gpus[0].limit_w, gpus[1].limit_w) == (250.0, 300.0)
    [result] = apply(enforcer, release=("b",))
    assert (result.lease_id, result.ok, result.enforced_w) == ("b", True, 350.0)
    assert gpus[0].limit_w == 350.0
    [first, second, never] = apply(enforcer, release=("a", "c", "never was"))
    assert (first.ok, second.ok, never.ok) == (True, True, True)
    assert (gpus[0].limit_w, gpus[1].limit_w) == (400.0, 400.0)


def test_one_lease_for_another_in_one_order_never_lifts_the_limit(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300, "a"))
    gpus[0].set_no_permission()  # any call that sets would fail
    results = apply(enforcer, order(gpus[0], 300, "b"), release=("a",))
    assert [one.ok for one in results] == [True, True]
    assert gpus[0].limit_w == 300.0


def test_a_limit_above_what_stood_needs_no_call(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    gpus[0].set_limit(250)
    enforcer = started()
    [result] = apply(enforcer, order(gpus[0], 350))
    assert (result.ok, result.enforced_w) == (True, 250.0)
    assert gpus[0].limit_w == 250.0


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"limit_w": 99.0, "min_ok": True}, "limit_w 99 is below what GPU .* allows: 100 to 400 W"),
        ({"limit_w": 199.0}, r"limit_w 199 is below half the default limit \(200 W\): pause instead, or say min_ok"),
        ({"limit_w": float("nan")}, "limit_w nan must be"),
        ({"limit_w": "300"}, "limit_w '300' must be a number of watts"),
        ({"ttl_s": 61.0}, "lasts 60 s at most"),
        ({"ttl_s": "soon"}, "ttl_s 'soon' must be a number of seconds"),
        ({"ttl_s": -1.0}, "over before it begins"),
        ({"kind": "whim"}, "kind 'whim' must be economic or event"),
        ({"uuid": "GPU-of-another-node"}, "GPU GPU-of-another-node is not on this node"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_changes_nothing(
    gpus: SimGpus, started: Callable[..., Enforcer], terms: dict[str, Any], said: str
) -> None:
    enforcer = started()
    one = SetCap(**{"lease_id": "x", "kind": "economic", "uuid": gpus[0].uuid, "limit_w": 300.0, "ttl_s": 60.0, **terms})
    bad, good = apply(enforcer, one, order(gpus[1], 300, "good"))
    assert not bad.ok and bad.error is not None
    assert re.search(said, bad.error)
    assert good.ok
    assert gpus[0].limit_w == 400.0


def test_min_ok_allows_less_than_half(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    [result] = apply(started(), order(gpus[0], 150, min_ok=True))
    assert result.ok and gpus[0].limit_w == 150.0


def test_a_protected_gpu_is_not_capped(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started(protected=lambda uuid: "serving works on it" if uuid == gpus[0].uuid else None)
    kept, capped = apply(enforcer, order(gpus[0]), order(gpus[1], lease_id="two"))
    assert (kept.ok, kept.error, capped.ok) == (False, "serving works on it", True)
    assert gpus[0].limit_w == 400.0


def test_an_older_epoch_is_refused_by_name(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300), epoch=5)
    results = apply(enforcer, order(gpus[0], 200), release=("one",), epoch=4)
    assert [(one.ok, "epoch 4 is older than 5" in str(one.error)) for one in results] == [(False, True)] * 2
    assert gpus[0].limit_w == 300.0


# --- a driver that misbehaves


def test_a_lagging_noisy_failing_driver_still_enforces_within_a_second(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    for gpu in gpus:
        gpu.set_lag(0.5)
        gpu.set_noise(0.1, 7)
        gpu.set_failing(50)
    enforcer = started()
    worst = 0.0
    for number, limit_w in enumerate((300.0, 250.0, 350.0, 220.0)):
        results = apply(enforcer, *(order(gpu, limit_w, f"lease {i}") for i, gpu in enumerate(gpus)))
        assert [(one.ok, one.enforced_w) for one in results] == [(True, limit_w)] * 2, (number, results)
        worst = max(worst, *(one.took_s for one in results))
    assert worst <= 1.0


def test_every_third_call_failing_is_borne(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    gpus[0].set_failing(3)
    assert apply(enforcer, order(gpus[0], 300))[0].ok
    assert apply(enforcer, release=("one",))[0].ok
    assert gpus[0].limit_w == 400.0


def test_a_cap_released_before_a_lagging_driver_took_it_does_not_come_back(
    gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer]
) -> None:
    """The driver shows the old limit for half a second after each call: what it shows is no proof that all is given back."""
    gpus[0].set_lag(0.5)
    enforcer = started()
    ordering = threading.Thread(target=lambda: apply(enforcer, order(gpus[0], 300)))
    ordering.start()
    until(lambda: gpus[0].read().pending_mw == 300_000, 1.0)
    apply(enforcer, release=("one",))
    ordering.join()
    until(lambda: state(enforcer, gpus[0]).state == "none", 5.0, enforcer)
    assert gpus[0].limit_w == 400.0
    assert gpus[0].read().pending_mw == 400_000  # and no call is under way that could change it


def test_without_the_right_a_lease_is_not_kept(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    gpus[0].set_no_permission()
    [result] = apply(enforcer, order(gpus[0], 300))
    assert not result.ok and "only root" in str(result.error)
    assert result.took_s < 1.0
    until(lambda: state(enforcer, gpus[0]).state == "none", 3.0, enforcer)
    gpus[0].set_no_permission(False)
    enforcer.step()
    assert gpus[0].limit_w == 400.0
    assert apply(enforcer, order(gpus[0], 300))[0].ok


def test_a_renewal_the_driver_refuses_leaves_the_old_terms(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300))
    gpus[0].set_no_permission()
    assert apply(enforcer, order(gpus[0], 300))[0].ok  # nothing to set
    [result] = apply(enforcer, order(gpus[0], 250))
    assert not result.ok
    until(lambda: state(enforcer, gpus[0]).state == "enforced", 3.0, enforcer)
    assert state(enforcer, gpus[0]).wanted_w == 300.0


def test_a_cap_that_cannot_be_given_back_is_an_alarm_until_it_can(
    gpus: SimGpus, started: Callable[..., Enforcer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cap_worker, "REFUSED_RETRY_S", 0.3)
    enforcer = started()
    apply(enforcer, order(gpus[0], 300))
    gpus[0].set_no_permission()
    [result] = apply(enforcer, release=("one",))
    assert not result.ok and "not where it should be" in str(result.error)
    assert "cannot be given back" in dict(enforcer.alarms())[f"cap:{gpus[0].uuid}"]
    gpus[0].set_no_permission(False)
    until(lambda: gpus[0].limit_w == 400.0, 2.0, enforcer)


def test_a_lost_gpu_keeps_its_lease_and_is_capped_when_it_is_back(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300, ttl_s=None))
    gpus[0].set_lost()
    until(lambda: state(enforcer, gpus[0]).state == "failed", 2.0, enforcer)
    assert "does not answer" in state(enforcer, gpus[0]).detail
    assert apply(enforcer, order(gpus[1], 300, "two"))[0].ok
    gpus[0].set_lost(False)
    gpus[0].set_limit(400)  # a reset
    until(lambda: gpus[0].limit_w == 300.0 and state(enforcer, gpus[0]).state == "enforced", 2.0, enforcer)


def test_an_outside_limit_that_is_lower_is_accepted_and_told(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    gpus[0].set_outside_limit(220)
    enforcer = started()
    [result] = apply(enforcer, order(gpus[0], 300))
    assert (result.ok, result.enforced_w) == (True, 220.0)
    assert "220 W is enforced, lower than the 300 W set" in state(enforcer, gpus[0]).detail


def test_a_limit_changed_behind_our_back_is_put_right_and_told(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300))
    for other_w in (400.0, 250.0):
        gpus[0].set_limit(other_w)
        assert until(lambda: gpus[0].limit_w == 300.0, 5.0) < 5.0  # also when nobody steps
        assert f"to {other_w:g} W while 300 W was ours" in dict(enforcer.alarms())[f"drift:{gpus[0].uuid}"]
    apply(enforcer, release=("one",))
    assert gpus[0].limit_w == 400.0


def test_somebody_who_keeps_setting_the_limit_is_named_and_fought_slowly(
    gpus: SimGpus, started: Callable[..., Enforcer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cap_worker, "LOOK_S", 0.05)
    enforcer = started()
    apply(enforcer, order(gpus[0], 300))
    gpus[0].set_rival(400, 0.02)
    until(lambda: state(enforcer, gpus[0]).state == "drifted", 5.0, enforcer)
    assert "another program keeps setting this GPU's limit, last to 400 W" in dict(enforcer.alarms())[f"cap:{gpus[0].uuid}"]
    gpus[0].set_rival(0, 0)
    gpus[0].set_limit(400)
    [result] = apply(enforcer, order(gpus[0], 250))  # a new limit does not wait for the slow pace
    assert result.ok and gpus[0].limit_w == 250.0


class Hanging(Devices):
    """One GPU's calls do not come back while it hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.uuid, self.free = "", threading.Event()
        self.free.set()

    def limits(self, uuid: str) -> tuple[float, float]:
        if uuid == self.uuid:
            self.free.wait()
        return super().limits(uuid)


def test_a_driver_call_that_hangs_holds_up_no_other_gpu(
    tmp_path: Path, gpus: SimGpus, clock: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cap_worker, "HANG_S", 0.2)
    devices = Hanging()
    enforcer = Enforcer(devices, LeaseBook(tmp_path / "state", clock, "boot-1"), clock)
    try:
        apply(enforcer, order(gpus[0], 300, "hangs"), order(gpus[1], 300, "well"))
        devices.uuid = gpus[0].uuid
        devices.free.clear()
        clock.pass_s(60)
        until(lambda: gpus[1].limit_w == 400.0, 2.0, enforcer)
        assert gpus[0].limit_w == 300.0
        until(lambda: "has not come back" in state(enforcer, gpus[0]).detail, 2.0, enforcer)
        assert apply(enforcer, order(gpus[1], 250, "new"))[0].ok
        [late] = apply(enforcer, order(gpus[0], 250, "late", ttl_s=30.0))
        assert not late.ok and "has not come back" in str(late.error)
        clock.pass_s(30)
        devices.free.set()
        until(lambda: gpus[0].limit_w == 400.0, 2.0, enforcer)
    finally:
        devices.free.set()
        enforcer.close()


# --- restarts, reboots, damage, other agents


def test_an_event_cap_outlives_the_agent_and_is_back_before_anything_else(
    gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer]
) -> None:
    apply(started(), order(gpus[0], 300, "event", None), order(gpus[0], 250, "cheap"))
    enforcer = started()
    assert state(enforcer, gpus[0]).state == "enforced" and gpus[0].limit_w == 250.0
    clock.pass_s(3600)
    enforcer = started()
    until(lambda: gpus[0].limit_w == 300.0, 1.0, enforcer)
    clock.wall_ahead += 1e8
    clock.pass_s(1e6)
    enforcer.step()
    assert gpus[0].limit_w == 300.0
    apply(enforcer, release=("event",))
    assert gpus[0].limit_w == 400.0


def test_a_cap_that_ended_while_the_agent_was_away_is_given_back_at_its_start(
    gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer]
) -> None:
    gpus[0].set_limit(390)
    apply(started(), order(gpus[0], 300))
    started().close()
    assert gpus[0].limit_w == 300.0
    clock.pass_s(100)
    enforcer = started()
    until(lambda: gpus[0].limit_w == 390.0, 1.0, enforcer)


def test_after_a_reboot_events_are_capped_again_and_the_rest_is_gone(
    gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer]
) -> None:
    gpus[0].set_limit(390)
    apply(started(), order(gpus[0], 300, "event", 7200.0), order(gpus[0], 250, "cheap"), order(gpus[1], 250, "other"))
    started().close()
    gpus.reboot()
    enforcer = started("boot-2")
    until(lambda: state(enforcer, gpus[0]).state == "enforced", 1.0, enforcer)
    assert (gpus[0].limit_w, gpus[1].limit_w) == (300.0, 400.0)
    apply(enforcer, release=("event",))
    assert gpus[0].limit_w == 400.0  # what stood before the boot is not brought back


def test_a_driver_loaded_again_in_the_same_boot_is_drift(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300))
    gpus.reboot()
    assert until(lambda: gpus[0].limit_w == 300.0, 5.0, enforcer) < 5.0


def test_a_damaged_file_brings_the_gpu_back_to_its_default(
    tmp_path: Path, gpus: SimGpus, started: Callable[..., Enforcer]
) -> None:
    gpus[0].set_limit(380)
    apply(started(), order(gpus[0], 300, ttl_s=None))
    path = tmp_path / "state" / f"{gpus[0].uuid}.json"
    path.write_text(path.read_text()[:40])
    enforcer = started()
    until(lambda: gpus[0].limit_w == 400.0, 1.0, enforcer)
    assert "is damaged" in dict(enforcer.alarms())[f"damaged:{gpus[0].uuid}"]
    until(lambda: not path.exists(), 3.0, enforcer)
    assert path.with_name(f"{gpus[0].uuid}.damaged-1").exists()


def test_a_full_disk_sets_nothing_it_could_not_write_down_but_restores(
    gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer], monkeypatch: pytest.MonkeyPatch
) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300))

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(leases_module, "write_durably", full)
    lower, other = apply(enforcer, order(gpus[0], 250, "two"), order(gpus[1], 250, "three"))
    assert not lower.ok and "No space left on device" in str(lower.error)
    assert not other.ok
    assert (gpus[0].limit_w, gpus[1].limit_w) == (300.0, 400.0)
    clock.pass_s(60)
    until(lambda: gpus[0].limit_w == 400.0, 1.0, enforcer)
    until(lambda: state(enforcer, gpus[0]).state == "none", 3.0, enforcer)


def test_nothing_is_set_when_the_old_limit_cannot_be_written_down(
    gpus: SimGpus, started: Callable[..., Enforcer], monkeypatch: pytest.MonkeyPatch
) -> None:
    enforcer = started()
    real = leases_module.write_durably

    def no_saved_limit(path: Path, text: str) -> None:
        if '"saved_w": 400' in text:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, text)

    monkeypatch.setattr(leases_module, "write_durably", no_saved_limit)
    [result] = apply(enforcer, order(gpus[0], 300))
    assert not result.ok and "No space left" in str(result.error)
    assert gpus[0].limit_w == 400.0
    monkeypatch.setattr(leases_module, "write_durably", real)
    until(lambda: gpus[0].limit_w == 300.0, 2.0, enforcer)


def test_a_second_agent_leaves_a_held_gpu_alone_until_the_first_is_gone(
    tmp_path: Path, gpus: SimGpus, clock: Shifted, started: Callable[..., Enforcer]
) -> None:
    first = started()
    apply(first, order(gpus[0], 300))
    second = Enforcer(Devices(), LeaseBook(tmp_path / "state", clock, "boot-1"), clock)
    try:
        now = state(second, gpus[0])
        assert now.state == "unable" and "is held by process" in now.detail
        [result] = apply(second, order(gpus[0], 200, "two"))
        assert not result.ok and "not held by this agent" in str(result.error)
        assert gpus[0].limit_w == 300.0
        first.close()
        until(lambda: state(second, gpus[0]).state == "enforced", 3.0, second)
        assert apply(second, order(gpus[0], 200, "two"))[0].ok
    finally:
        second.close()


def test_an_agent_that_stops_for_good_gives_everything_back(gpus: SimGpus, started: Callable[..., Enforcer]) -> None:
    enforcer = started()
    apply(enforcer, order(gpus[0], 300), order(gpus[1], 300, "event", None))
    enforcer.give_back("economic")
    assert (gpus[0].limit_w, gpus[1].limit_w) == (400.0, 300.0)
    enforcer.give_back()
    assert gpus[1].limit_w == 400.0
