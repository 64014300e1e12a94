"""A utility's schedule in a simulated control plane: from its message to jobs that are not there while they may not be."""

from datetime import timedelta
from typing import Any

from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.dr import openadr3
from dispatcher.dr.intake import EventIntake
from dispatcher.simulation import Arrival, Simulation
from dispatcher.store import GridEventChange, Job, Request
from policies.flexibility import parse_flexibility
from policies.world import JobState
from tests.dr.dr_events import NOW, cap, event, told
from tests.dr.rig import source

REGION = {
    "name": "north",
    "address": "http://north",
    "gpus": 8,
    "pue": 1.0,
    "observe_s": 30,
    "price": [{"feed": "synthetic"}],
    "carbon": [{"feed": "synthetic"}],
}


def job(number: int) -> Arrival:
    """Three hours on one GPU at 1 kW, pausable, done by tomorrow."""
    metadata = {
        "gridshift.deadline": "30h",
        "gridshift.runtime": "3h",
        "gridshift.pausable": "checkpoint",
        "gridshift.checkpoint_s": "60",
        "gridshift.restart_s": "60",
        "gridshift.power_w": "1000",
        "gridshift.tier": "flex-3",
    }
    flex = parse_flexibility(metadata, now=NOW, gpus_requested=1, regions=["north"])
    made = Job(f"j{number}", Request("train", metadata=metadata, entrypoint_num_gpus=1), flex, JobState.QUEUED, NOW, NOW)
    return Arrival(made, Workload(run_s=3 * 3600.0, checkpoint_s=30.0, restart_s=30.0))


class Plant:
    """A simulated control plane with one utility."""

    def __init__(self, jobs: int) -> None:
        config = Config.model_validate(
            {
                "region": [REGION],
                "planning": {"policy": "run-now", "slot_minutes": 5, "horizon_hours": 24},
                "event_source": [source(serving_floor_w=None, simple_levels={})],
            }
        )
        self.arrivals = [job(number) for number in range(jobs)]
        self.sim = Simulation(config, NOW, self.arrivals, tick_s=30.0, plan_s=300.0, ingest_s=3600.0)
        control = self.sim.control
        self.intake = EventIntake(config, control.store, control.clock, load=lambda region, branch: None, nudge=lambda: None)

    def tell(self, data: Any) -> None:
        message = openadr3.read(data, openadr3.V31, self.intake.context("utility"))
        assert [str(answer.state) for answer in self.intake.take("utility", message)] != ["rejected"]

    def running(self) -> int:
        attempts = self.sim.control.store.live_attempts()
        return sum(attempt.started_at is not None for attempt in attempts)

    def at(self, hours: float) -> int:
        """Run until so many hours after noon; how many jobs run then."""
        self.sim.run(NOW + timedelta(hours=hours))
        return self.running()


def test_two_steps_a_change_on_the_way_and_a_release() -> None:
    plant = Plant(6)
    assert plant.at(0.2) == 6
    plant.tell(event(intervals=[cap(4.0), cap(2.0, 1)]))  # 4 kW from 14:00, 2 kW from 15:00 to 16:00
    assert plant.at(1.9) == 6, "not before its time"
    assert plant.at(2.1) == 4
    changed = [cap(3.0), cap(2.0, 1)]
    plant.tell(told("UPDATE", event(modificationDateTime="2026-03-02T14:06:00Z", intervals=changed)))
    assert plant.at(2.3) == 3
    assert plant.at(2.95) == 3
    assert plant.at(3.1) == 2, "the second step"
    plant.tell(told("DELETE", event(modificationDateTime="2026-03-02T15:06:00Z")))
    assert plant.at(3.4) > 2, "released by its sender, it comes back"
    plant.at(12.0)
    states = {plant.sim.control.store.job(one.job.id).state for one in plant.arrivals}  # type: ignore[union-attr]
    assert states == {JobState.SUCCEEDED}


def test_a_limit_that_is_opted_out_of_binds_no_more() -> None:
    plant = Plant(3)
    plant.tell(event(intervals=[cap(1.0)]))
    assert plant.at(2.2) == 1
    store = plant.sim.control.store
    line = GridEventChange("utility", "evt-1", plant.sim.control.clock.now(), 1, "opted_out", "no")
    store.opt_out_grid_event(line, "no").result()
    assert plant.at(2.5) == 3
