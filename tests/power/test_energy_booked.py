"""Measured energy takes the place of the modelled one: when a job ends, and later, when its last minute has come."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.api import views
from dispatcher.api.savings import ran_seconds, report
from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.errors import StoreUnavailable
from dispatcher.power.accounts import JobEnergy, Slice
from dispatcher.power.energy import EnergyBook
from dispatcher.reconcile import Usage, settled
from dispatcher.simulation import Simulation
from dispatcher.store import Job, Request
from dispatcher.store.engine import database, make_engine
from policies.flexibility import parse_flexibility
from policies.world import JobState
from signals.memory_store import MemorySignalStore

START = datetime(2026, 3, 2, tzinfo=UTC)
PUE = 1.5


@pytest.fixture
def energy(sqlite_url: str) -> Iterator[EnergyBook]:
    engine = make_engine(database(sqlite_url))
    book = EnergyBook(engine)
    yield book
    book.close()
    engine.dispose()


def simulation(energy: EnergyBook, **region: Any) -> Simulation:
    one = {"name": "a", "address": "http://a", "gpus": 4, "observe_s": 1, "pue": PUE}
    one |= {"price": [{"feed": "synthetic"}], "carbon": [{"feed": "synthetic"}], **region}
    sim = Simulation(Config.model_validate({"region": [one]}), START, [], tick_s=1.0, plan_s=60.0, start_s=2.0)
    sim.control._energy = energy
    return sim


def submit(sim: Simulation, job_id: str = "j", run_s: float = 600.0, gpus: float = 1.0, **metadata: str) -> None:
    now = sim.clock.now()
    given = {f"gridshift.{key}": value for key, value in metadata.items()}
    flex = parse_flexibility(given, now=now, gpus_requested=gpus, regions=["a"])
    sim.clusters["a"].workloads[job_id] = Workload(run_s=run_s, checkpoint_s=3.0)
    job = Job(job_id, Request("true", metadata=given, entrypoint_num_gpus=gpus), flex, JobState.QUEUED, now, now, reason="new")
    sim.control.admit(job).result()


def advance(sim: Simulation, seconds: float) -> None:
    sim.run(sim.clock.now() + timedelta(seconds=seconds))


def the(sim: Simulation, job_id: str = "j") -> Job:
    job = sim.store.job(job_id)
    assert job is not None
    return job


def measure(energy: EnergyBook, minutes: range, job_id: str | None = "j", **more: Any) -> None:
    """Rows of minutes after START, 4 Wh each."""
    rows = []
    for minute in minutes:
        start = int(START.timestamp()) + 60 * minute
        row = {"node_id": "n", "region": "a", "simulated": False, "uuid": "GPU-0", "start": start, "end": start + 60}
        row |= {"job_id": job_id, "line": "job" if job_id else "idle", "energy_wh": 4.0, "seconds": 60.0}
        rows.append(row | {"quality": "measured", "split": "exclusive", "idle_wh": 0.0} | more)
    taken = energy.take(rows, START + timedelta(days=9)).result(10)
    assert taken.refused == ()


def test_a_job_that_was_measured_to_its_end(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    measure(energy, range(11))
    advance(sim, 650)
    job = the(sim)
    assert (job.state, job.energy_basis) == (JobState.SUCCEEDED, "measured")
    assert job.energy_kwh == pytest.approx(11 * 0.004 * PUE) and job.cost is not None and job.carbon_kg is not None
    assert views.job_json(job)["energy_basis"] == "measured"


def test_without_any_row_it_is_modelled_as_before(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    advance(sim, 650)
    job = the(sim)
    modelled = job.flex.power_w / 1000 * PUE * 600 / 3600
    assert job.energy_basis == "modelled" and job.energy_kwh == pytest.approx(modelled, rel=0.02)


def test_the_last_minute_comes_after_the_end(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    measure(energy, range(7))
    advance(sim, 650)
    first = the(sim)
    assert first.energy_basis == "partly measured" and first.finished_at is not None
    rest = first.flex.power_w / 1000 * PUE * 240 / 3600
    assert first.energy_kwh is not None and 0.0 < first.energy_kwh - 7 * 0.004 * PUE < rest
    measure(energy, range(7, 11))
    sim.control.settle_energy(sim.clock.now())
    job = the(sim)
    assert job.energy_basis == "measured" and job.energy_kwh == pytest.approx(11 * 0.004 * PUE)
    assert job.cost is not None and first.cost is not None and job.cost != first.cost
    assert (job.state, job.finished_at, sim.store.events("j")[-1].kind) == (first.state, first.finished_at, "settle")
    seq = job.seq
    sim.control.settle_energy(sim.clock.now())
    assert the(sim).seq == seq, "nothing new, nothing written"
    assert energy.touched() == set()


def test_rows_that_came_while_nobody_looked_are_booked_at_the_start(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    advance(sim, 650)
    assert the(sim).energy_basis == "modelled"
    measure(energy, range(11))
    energy.settled(["j"])  # as if another control plane had taken them
    sim.control.settle_energy(sim.clock.now())
    assert the(sim).energy_basis == "measured"


def test_a_running_job_waits_for_its_end(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim, run_s=3600.0)
    measure(energy, range(3))
    advance(sim, 200)
    sim.control.settle_energy(sim.clock.now())
    assert the(sim).energy_kwh is None and energy.touched() == {"j"}


def test_old_jobs_are_left_as_they_are(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    advance(sim, 650)
    measure(energy, range(11))
    sim.clock.advance(4 * 86400)
    sim.control.settle_energy(sim.clock.now())
    assert the(sim).energy_basis == "modelled"


def test_attempts_share_what_was_drawn_and_nothing_counts_twice(energy: EnergyBook) -> None:
    sim = simulation(energy, price=[{"feed": "synthetic", "price_swing": 0.0, "noise": 0.0}])
    advance(sim, 5)
    submit(sim, deadline="30m", runtime="10m", pausable="checkpoint")
    measure(energy, range(40))
    advance(sim, 120)
    sim.clusters["a"].restart()  # its attempt is lost, the next goes on in the same minute
    advance(sim, 1500)
    job = the(sim)
    assert job.state is JobState.SUCCEEDED and len(sim.store.attempts("j")) == 2
    sim.control.settle_energy(sim.clock.now())
    assert the(sim).energy_kwh == pytest.approx(40 * 0.004 * PUE), "every row once"


def test_simulated_gpus_are_called_so(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    measure(energy, range(11), simulated=True)
    advance(sim, 650)
    assert the(sim).energy_basis == "simulated"


def test_a_book_that_cannot_be_read_delays_no_job(energy: EnergyBook, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> JobEnergy | None:
        raise StoreUnavailable("the disk is gone")

    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    measure(energy, range(11))
    monkeypatch.setattr(energy, "energy_of", fails)
    advance(sim, 650)
    assert (the(sim).state, the(sim).energy_basis) == (JobState.SUCCEEDED, "modelled")
    monkeypatch.undo()
    sim.control.settle_energy(sim.clock.now())
    assert the(sim).energy_basis == "measured"


def test_each_minute_is_paid_at_its_own_price(energy: EnergyBook) -> None:
    """A job that draws all its power in the dear hours costs more than its mean power at the mean price."""
    sim = simulation(energy)
    advance(sim, 5)
    book, region, now = sim.control.book, sim.control.regions["a"].config, START + timedelta(hours=25)
    sim.clock.move_to(now)
    book.refresh(now)
    hours = [Slice(START + timedelta(hours=h), START + timedelta(hours=h + 1), 1.0 if h % 5 else 3.0) for h in range(24)]
    used = book.usage_of(region, JobEnergy(tuple(hours), 34.0, 0.0, 0.0, 1.0, 1, "measured"), now)
    by_hour = [book.usage(region, one.energy_kwh * 1000, one.start, one.end, now) for one in hours]
    assert used.energy_kwh == pytest.approx(34.0 * PUE)
    assert used.cost is not None and used.carbon_kg is not None
    assert used.cost == pytest.approx(sum(one.cost or 0.0 for one in by_hour))
    assert used.carbon_kg == pytest.approx(sum(one.carbon_kg or 0.0 for one in by_hour))
    flat = book.usage(region, 34.0 / 24 * 1000, START, START + timedelta(hours=24), now)
    assert used.cost != pytest.approx(flat.cost, rel=1e-3)
    assert len({one.cost for one in by_hour}) > 10, "prices differ"


def test_a_price_that_is_unknown_while_something_was_drawn_leaves_the_cost_unknown(energy: EnergyBook) -> None:
    sim = simulation(energy, price=[])
    advance(sim, 5)
    submit(sim)
    measure(energy, range(11))
    advance(sim, 650)
    job = the(sim)
    assert job.energy_basis == "measured" and job.cost is None and job.carbon_kg is not None


def test_settling_writes_only_what_is_new(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    advance(sim, 650)
    job, now = the(sim), sim.clock.now()
    assert job.energy_kwh is not None
    assert settled(job, [Usage(9.0, 1.0, 1.0)], now) is None, "a modelled energy stands"
    change = settled(job, [Usage(0.05, None, 0.02, "measured")], now)
    assert change is not None
    assert dict(change.fields) == {"energy_kwh": 0.05, "energy_basis": "measured", "cost": None, "carbon_kg": 0.02}
    mixed = settled(job, [Usage(0.05, 1.0, 1.0, "measured"), Usage(0.05, 1.0, 1.0)], now)
    assert mixed is not None and mixed.fields["energy_basis"] == "partly measured" and mixed.fields["cost"] == 2.0


def test_savings_say_what_was_measured(energy: EnergyBook) -> None:
    sim = simulation(energy)
    advance(sim, 5)
    submit(sim)
    submit(sim, "other")
    measure(energy, range(11))
    advance(sim, 650)
    jobs = [the(sim), the(sim, "other")]
    regions = {"a": sim.control.regions["a"].config}
    world = sim.control.snapshot().world
    ran_s = {"j": ran_seconds(sim.store.attempts("j"))}
    told = report(jobs, world, regions, sim.control.book._signals, sim.clock.now(), {}, ran_s)  # type: ignore[arg-type]
    assert told["energy_basis"] == "partly measured"
    assert any("1 measured, 1 modelled" in caveat and "PUE" in caveat for caveat in told["caveats"])
    one = report(jobs[:1], world, regions, sim.control.book._signals, sim.clock.now(), {}, ran_s)  # type: ignore[arg-type]
    assert one["energy_basis"] == "measured"
    assert one["totals"]["cost_run_now"] == pytest.approx(one["totals"]["cost"], rel=0.02), "it did run at once"
    assert report([], world, regions, MemorySignalStore(), sim.clock.now(), {})["energy_basis"] == "modelled"
