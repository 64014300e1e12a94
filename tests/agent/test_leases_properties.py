"""The lease book under any order of grants, releases, ends, crashes, reboots and clock jumps, with a GPU that follows it."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatcher.agent import durable
from dispatcher.agent import leases as leases_module
from dispatcher.agent.leases import Clock, Lease, LeaseBook, StaleEpoch, limit_in_force, wanted_w

GPU = "GPU-1"
DEFAULT_W = 400.0
NAMES = st.sampled_from(["a", "b", "c"])
LIMITS = st.sampled_from([100.0, 200.0, 250.0, 300.0, 400.0, 450.0])


class Killed(BaseException):
    """The process ends here, between one call to the system and the next."""


class Machine(Clock):
    """True time, a boot that started somewhere in it, and a wall clock that is off."""

    def __init__(self) -> None:
        self.now, self.booted, self.off = 50.0, 0.0, 0.0

    def boot_s(self) -> float:
        return self.now - self.booted

    def wall_s(self) -> float:
        return 1_800_000_000.0 + self.now + self.off


class Terms:
    """What a lease should be: its true end, None for open."""

    def __init__(self, kind: str, limit_w: float, end: float | None) -> None:
        self.kind, self.limit_w, self.end = kind, limit_w, end


class BookAndGpu(RuleBasedStateMachine):
    """The book is real, on a real disk; the GPU is a number, lost at a reboot; `expected` is what should stand."""

    @initialize(before=st.sampled_from([250.0, 350.0, 400.0]))
    def start(self, before: float) -> None:
        root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="leases-", dir=root))
        self.machine, self.boots, self.epoch = Machine(), 1, 1
        self.gpu_w = self.before_w = before
        self.expected: dict[str, Terms] = {}
        self.book: LeaseBook | None = None
        self.open()

    def teardown(self) -> None:
        if getattr(self, "book", None):
            self.follow(4)
            self.check_stands()
            self.book.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def open(self) -> None:
        if self.book:
            self.book.close()
        self.book = LeaseBook(self.folder, self.machine, f"boot-{self.boots}")
        self.book.hold(GPU)

    def dying(self, at: int, act: Callable[[], Any]) -> bool:
        """Does something whose process is killed at the at-th step of writing a file; whether it was."""
        steps = 0

        def step(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps == at:
                    raise Killed
                return real(*args, **kwargs)

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(durable.os, "write", step(os.write))
            patch.setattr(durable.os, "fsync", step(os.fsync))
            patch.setattr(Path, "replace", step(Path.replace))
            patch.setattr(Path, "unlink", step(Path.unlink))
            try:
                act()
            except Killed:
                return True
        return False

    def lease(self, name: str, kind: str, limit_w: float, ttl_s: float | None) -> Lease:
        boot_s, wall_s = self.machine.boot_s(), self.machine.wall_s()
        ends = (None, None) if ttl_s is None else (boot_s + ttl_s, wall_s + ttl_s)
        return Lease(name, kind, GPU, limit_w, self.epoch, "", *ends, f"boot-{self.boots}")

    # -- what happens

    @rule(name=NAMES, limit_w=LIMITS, ttl_s=st.sampled_from([1.0, 20.0, 60.0]), killed_at=st.integers(0, 6))
    def grant_economic(self, name: str, limit_w: float, ttl_s: float, killed_at: int) -> None:
        self.grant(f"economic {name}", Terms("economic", limit_w, self.machine.now + ttl_s), ttl_s, killed_at)

    @rule(name=NAMES, limit_w=LIMITS, ttl_s=st.sampled_from([None, 5.0, 100.0, 5000.0]), killed_at=st.integers(0, 6))
    def grant_event(self, name: str, limit_w: float, ttl_s: float | None, killed_at: int) -> None:
        end = None if ttl_s is None else self.machine.now + ttl_s
        self.grant(f"event {name}", Terms("event", limit_w, end), ttl_s, killed_at)

    def grant(self, name: str, terms: Terms, ttl_s: float | None, killed_at: int) -> None:
        lease = self.lease(name, terms.kind, terms.limit_w, ttl_s)
        if not self.dying(killed_at, lambda: self.book.grant(lease)):
            self.expected[name] = terms
            return
        self.open()
        there = self.book.find(name)  # either the old terms or the new, nothing between
        if there and (there.limit_w, there.ends_boot_s) == (lease.limit_w, lease.ends_boot_s):
            self.expected[name] = terms

    @rule(name=NAMES, kind=st.sampled_from(["economic", "event"]), killed_at=st.integers(0, 6))
    def release(self, name: str, kind: str, killed_at: int) -> None:
        name = f"{kind} {name}"
        if self.dying(killed_at, lambda: self.book.release(name, self.epoch)):
            self.open()
            if self.book.find(name):
                return
        self.expected.pop(name, None)

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0, 59.0, 61.0, 3000.0]))
    def time_passes(self, seconds: float) -> None:
        self.machine.now += seconds

    @rule(seconds=st.sampled_from([-1e8, -3600.0, -20.0, 20.0, 3600.0, 1e8]))
    def wall_clock_jumps(self, seconds: float) -> None:
        self.machine.off += seconds
        self.book.expire(self.machine.boot_s())  # as it is each second

    @rule(steps=st.integers(0, 4), killed_at=st.integers(0, 6))
    def follow_and_die(self, steps: int, killed_at: int) -> None:
        self.dying(killed_at, lambda: self.follow(steps))
        self.open()

    @rule(down_s=st.sampled_from([1.0, 30.0, 4000.0]))
    def reboot(self, down_s: float) -> None:
        self.book.expire(self.machine.boot_s())
        self.machine.now += down_s
        self.machine.booted = self.machine.now - 20.0
        self.boots += 1
        self.gpu_w = self.before_w = DEFAULT_W
        self.expected = {name: terms for name, terms in self.expected.items() if terms.kind == "event"}
        self.open()

    @rule()
    def new_control_plane(self) -> None:
        self.epoch += 1
        self.book.release("of nobody", self.epoch)

    @precondition(lambda self: self.book.epoch > 0)
    @rule(name=NAMES)
    def old_control_plane(self, name: str) -> None:
        before = self.book.record(GPU)
        lease = self.lease(f"economic {name}", "economic", 100.0, 60.0)
        with pytest.raises(StaleEpoch):
            self.book.grant(Lease(**{**lease.__dict__, "epoch": self.book.epoch - 1}))
        with pytest.raises(StaleEpoch):
            self.book.release(f"event {name}", self.book.epoch - 1)
        assert self.book.record(GPU) == before

    @precondition(lambda self: self.book.record(GPU).empty)
    @rule(limit_w=st.sampled_from([250.0, 350.0, 400.0]))
    def owner_sets_the_limit(self, limit_w: float) -> None:
        self.gpu_w = self.before_w = limit_w

    @rule()
    def follow_all(self) -> None:
        self.follow(4)
        self.check_stands()

    # -- the enforcer, in its order: expire, save, set, forget

    def follow(self, steps: int) -> None:
        boot_s = self.machine.boot_s()
        if steps >= 1:
            self.book.expire(boot_s)
        if steps >= 2 and self.book.record(GPU).leases:
            self.book.save_limit(GPU, self.gpu_w)
        record = self.book.record(GPU)
        if steps >= 3 and (record.saved_w is not None):
            self.gpu_w = wanted_w(record, boot_s, DEFAULT_W)
        if steps >= 4 and not self.book.record(GPU).empty:
            self.book.forget(GPU)

    # -- what must hold

    def live(self) -> dict[str, Terms]:
        return {name: t for name, t in self.expected.items() if t.end is None or self.machine.now < t.end}

    def check_stands(self) -> None:
        live = self.live()
        cap_w = min((terms.limit_w for terms in live.values()), default=None)
        assert self.gpu_w == (self.before_w if cap_w is None else min(cap_w, self.before_w))

    @invariant()
    def the_lowest_live_lease_and_no_other(self) -> None:
        if not getattr(self, "book", None):
            return
        now = [lease for lease in self.book.leases() if lease.live(self.machine.boot_s())]
        live = self.live()
        assert {lease.lease_id: lease.limit_w for lease in now} == {name: terms.limit_w for name, terms in live.items()}
        lowest = min((terms.limit_w for terms in live.values()), default=None)
        assert limit_in_force(self.book.leases(), self.machine.boot_s()) == lowest

    @invariant()
    def what_is_to_be_given_back_is_what_stood_before(self) -> None:
        if getattr(self, "book", None) and self.book.record(GPU).saved_w is not None:
            assert self.book.record(GPU).saved_w == self.before_w

    @invariant()
    def a_gpu_that_is_changed_has_its_limit_on_disk(self) -> None:
        if getattr(self, "book", None) and self.gpu_w != self.before_w:
            text = (self.folder / f"{GPU}.json").read_text()
            assert leases_module._from_text(text, GPU).saved_w == self.before_w


TestBookAndGpu = BookAndGpu.TestCase
TestBookAndGpu.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
