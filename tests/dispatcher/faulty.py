"""Policies that go wrong, for the plan worker's process: each is made by a function that the process can import."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from policies.policy import Knows
from policies.world import JobView, Placement, Plan, RegionView, Settings, World


class Simple:
    """Everything at once in the first region; ``plans`` and ``inserts`` count what it was asked."""

    name = "simple"
    knows = Knows.NOTHING
    replans = True

    def __init__(self) -> None:
        self.plans = self.inserts = 0
        self.forgot: list[str] = []

    def place(self, world: World, jobs: Iterable[JobView], why: str) -> dict[str, Placement]:
        region, hour = world.regions[0].name, timedelta(hours=1)
        return {job.id: Placement(job.id, region, ((world.now, world.now + hour),), 1.0, 1.0, None, 0.0, why) for job in jobs}

    def plan(self, world: World) -> Plan:
        self.plans += 1
        placements = self.place(world, world.jobs, f"plan {self.plans}")
        return Plan(world.now, world.now + timedelta(hours=48), 900, placements, {}, 1.0)

    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        self.inserts += 1
        return self.place(world, jobs, f"insert {self.inserts}")

    def forget(self, job_ids: Iterable[str]) -> None:
        self.forgot += job_ids

    def gate(self, view: RegionView, now: datetime) -> float | None:
        return None


class Raises(Simple):
    def plan(self, world: World) -> Plan:
        raise ZeroDivisionError("its prices are all the same")


class Hangs(Simple):
    def plan(self, world: World) -> Plan:
        time.sleep(3600)
        return super().plan(world)


class RaisesOnInsert(Simple):
    def insert(self, world: World, jobs: Sequence[JobView]) -> Mapping[str, Placement]:
        raise KeyError("row 7")


class Waits(Simple):
    """A plan is ready when the file named by the first job's group is there; before, it makes one named with ``.begun``."""

    def plan(self, world: World) -> Plan:
        gate = Path(world.jobs[0].flex.group or "")
        if gate.parent.is_dir() and self.plans:
            gate.with_suffix(".begun").touch()
            while not gate.exists():
                time.sleep(0.01)
        return super().plan(world)


def simple(name: str, settings: Settings) -> Simple:
    return Simple()


def raises(name: str, settings: Settings) -> Simple:
    return Raises()


def hangs(name: str, settings: Settings) -> Simple:
    return Hangs()


def raises_on_insert(name: str, settings: Settings) -> Simple:
    return RaisesOnInsert()


def waits(name: str, settings: Settings) -> Simple:
    return Waits()
