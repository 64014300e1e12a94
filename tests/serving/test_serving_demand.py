"""What serving had to do: read from a real server, kept over restarts, and left free by the control plane's own loops."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dispatcher import doctor
from dispatcher.clusters.simulated import Workload
from dispatcher.config import Config
from dispatcher.doctor import check_serving
from dispatcher.loops import Loop
from dispatcher.serving.demand import DemandBook
from dispatcher.serving.metrics import RATE_S, MetricsReader
from dispatcher.serving.watch import ServingWatch
from dispatcher.simulation import Simulation
from dispatcher.status import floors_too_large
from dispatcher.store import Job, Request
from dispatcher.store.engine import database, make_engine
from dispatcher.store.migrate import upgrade
from policies import registry
from policies.flexibility import parse_flexibility
from policies.world import PLACED, Floor, JobState, RegionView, Reserved, World
from signals.memory_store import MemorySignalStore
from signals.points import Kind
from signals.store import SignalStore
from tests.serving.test_serving_metrics import Page

START = datetime(2026, 3, 2, tzinfo=UTC)  # a Monday
H, DAY, MINUTE = timedelta(hours=1), timedelta(days=1), timedelta(minutes=1)
SLO = {"metric": "queue", "limit": 100}
CHAT: dict[str, Any] = {
    "name": "chat", "preset": "vllm", "source": "metrics", "url": "http://chat:8000/metrics",
    "load_per_gpu": 10.0, "max_gpus": 4, "slo": [SLO],
}  # fmt: skip
LOAD = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{model_name="llama"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{model_name="llama"}} {waiting}
"""


def config(gpus: int = 4, **more: Any) -> Config:
    one = {"name": "a", "address": "http://a", "gpus": gpus, "pue": 1.5, "observe_s": 60, "serving": [{**CHAT, **more}]}
    one["price"] = [{"feed": "synthetic", "price_swing": 0.0}]
    return Config.model_validate({"region": [one], "planning": {"horizon_hours": 24}})


class Book:
    """A book on a clock that a test moves."""

    def __init__(self, signals: Any = None, now: datetime = START, **more: Any) -> None:
        self.signals, self.now, self.ahead = signals or MemorySignalStore(), now, timedelta(0)
        self.book = DemandBook(config(**more), self.signals, lambda: self.now, mono=lambda: (self.now - self.ahead).timestamp())

    def set_clock(self, ahead: timedelta) -> None:
        """Set the clock while no time passes."""
        self.now, self.ahead = self.now + ahead, self.ahead + ahead

    def reads(self, until: datetime, load: Callable[[datetime], float], every: timedelta = MINUTE) -> None:
        while self.now < until:
            self.book.note("a", "chat", load(self.now))
            self.now += every
            self.book.keep(self.now)

    def at(self, when: datetime) -> Reserved:
        (one,) = [kept for kept in self.book.reserved("a") if kept.start <= when < kept.end]
        return one


def by_day(at: datetime) -> float:
    """Requests: 2 GPUs by day, 0.5 at night."""
    return 20.0 if 8 <= at.hour < 20 else 5.0


def test_nothing_is_kept_where_nothing_is_declared() -> None:
    book = Book(load_per_gpu=None, max_gpus=0)
    book.reads(START + H, by_day)
    assert book.book.reserved("a") == () and book.signals.read("a", Kind.SERVING, START, START + DAY, START + DAY) == []
    assert book.book.reserved("b") == ()


def test_demand_is_learned_and_until_then_all_is_kept() -> None:
    book = Book()
    assert (book.at(START).gpus, book.at(START + 5 * DAY).gpus) == (4, 4)
    book.reads(START + 2 * DAY, by_day)
    assert (book.at(book.now + H).gpus, book.at(book.now + 12 * H).gpus) == (1, 2)
    assert "p95 of demand at this hour 2.0 GPUs" in book.at(book.now + 12 * H).reason
    assert book.at(book.now + 13 * DAY + 12 * H).gpus == 2, "as far as any plan looks ahead"
    assert book.at(book.now + 12 * H).power_w == pytest.approx(2 * 400.0 * 1.5), "at the meter"
    assert book.book.reserved("a") is not None and len(book.book.reserved("a")) < 64, "slots that are alike are one"


def test_what_was_seen_outlives_a_restart_and_a_crash_costs_a_quarter_hour(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'gridshift.db'}"
    upgrade(url)
    store = SignalStore(make_engine(database(url)))
    first = Book(store)
    first.reads(START + 3 * DAY + 7 * MINUTE, by_day)
    kept = first.book.reserved("a")
    first.book.close()
    again = Book(store, first.now)
    assert again.book.reserved("a") == kept
    (last, *_) = sorted(store.read("a", Kind.SERVING, START, again.now, again.now), key=lambda p: p.start, reverse=True)
    assert last.start == START + 3 * DAY and last.end < again.now, "the quarter hour that was running, as far as it was read"
    # the rest of it stands beside what is there already
    again.reads(START + 3 * DAY + 31 * MINUTE, lambda at: 39.0)
    crashed = Book(store, again.now)  # nobody closed it
    points = [p for p in store.read("a", Kind.SERVING, START + 3 * DAY, again.now, again.now) if p.variant.endswith("highest")]
    assert [(p.start.minute, p.value) for p in points] == [(0, 5.0), (7, 39.0), (15, 39.0)]
    assert (crashed.at(crashed.now).gpus, crashed.at(crashed.now + H).gpus) == (4, 1), "the burst is remembered too"


def test_another_metric_or_share_of_a_gpu_is_not_mixed_up() -> None:
    book = Book()
    book.reads(START + 3 * DAY, by_day)
    book.book.close()
    half = Book(book.signals, book.now, load_per_gpu=20.0)
    assert half.at(book.now + 12 * H).gpus == 1, "the load was kept, not the GPUs"
    other = Book(book.signals, book.now, load_gauge="requests")
    assert other.at(book.now + 12 * H).gpus == 4, "of another metric nothing is known"


def test_a_later_reading_is_not_known_before() -> None:
    book = Book()
    book.reads(START + 3 * DAY, by_day)
    book.book.close()
    early = Book(book.signals, START + DAY)
    assert "too little is known" in early.at(early.now + H).reason


def test_stale_metrics_keep_what_was_needed_last_and_then_all() -> None:
    book = Book()
    book.reads(START + 2 * DAY, by_day)
    book.now += 10 * MINUTE
    assert book.at(book.now).gpus == 1, "a short silence: as in the last minutes, and as at this hour"
    book.now += 10 * MINUTE
    silent = book.at(book.now)
    assert silent.gpus == 4 and "its metrics could not be read since 23:59Z: all that it may have" in silent.reason
    assert silent.end - book.now <= timedelta(minutes=30) and book.at(silent.end).gpus == 1
    book.book.note("a", "chat", 12.0)
    assert book.at(book.now).gpus == 2 and "1.2 GPUs needed in the last 5 min" in book.at(book.now).reason
    for wrong in (float("nan"), float("inf"), -1.0, 1e12):
        book.now += timedelta(seconds=1)
        book.book.note("a", "chat", wrong)
    assert book.at(book.now).gpus == 2


@pytest.mark.parametrize("ahead", [-H, -400 * DAY, H, 60 * DAY])
def test_a_clock_that_is_set_keeps_no_reading_out(ahead: timedelta) -> None:
    book = Book(max_gpus=8, gpus=8)
    book.reads(START + 5 * DAY, lambda at: 10.0)
    book.set_clock(ahead)
    book.reads(book.now + 30 * MINUTE, lambda at: 70.0)
    if abs(ahead) < DAY:
        assert book.at(book.now).gpus == 7 and "7.0 GPUs needed in the last 5 min" in book.at(book.now).reason
    else:
        assert book.at(book.now).gpus == 8 and "too little is known" in book.at(book.now).reason, "of such a day"
    # silence is told by how long it lasts, and since when by the clock as it is set
    book.book.note("a", "chat", 70.0)
    since = book.now
    book.now += 16 * MINUTE
    assert f"could not be read since {since:%H:%M}Z" in book.at(book.now).reason
    book.set_clock(-ahead)
    book.reads(START + 6 * DAY, lambda at: 10.0)
    assert book.at(book.now + 9 * H).gpus == 1, "what was learned before is still known"
    book.book.close()
    again = Book(book.signals, book.now, max_gpus=8, gpus=8)
    assert again.at(book.now + 9 * H).gpus == 1


def test_what_a_clock_that_was_ahead_wrote_is_not_the_present_after_a_restart() -> None:
    book = Book()
    book.reads(START + 3 * DAY, by_day)
    book.set_clock(H)
    book.reads(book.now + 20 * MINUTE, lambda at: 39.0)
    book.book.close()
    again = Book(book.signals, book.now - H)
    assert again.at(again.now + 12 * H).gpus == 2 and again.at(again.now).gpus == 1


@pytest.mark.parametrize("every", [timedelta(seconds=10), MINUTE])
def test_one_reading_that_lies_does_not_decide_what_is_kept_for_weeks(every: timedelta) -> None:
    book = Book(max_gpus=8, gpus=8)
    lies = START + DAY + 10 * H
    book.reads(START + 3 * DAY, lambda at: 1e8 if at == lies else 10.0, every=every)
    for days in (0, 1, 4):
        kept = book.at(START + (3 + days) * DAY + 10 * H)
        assert kept.gpus == 1 and "1.0 GPUs" in kept.reason, kept
    # what was written by an earlier version counts for no more than it may have either
    book.book.close()
    points = book.signals.read("a", Kind.SERVING, START, book.now, book.now)
    wrong = [replace(p, value=1e8, retrieved_at=book.now) for p in points if p.start == lies and p.variant.endswith("mean")]
    book.signals.append(wrong)
    again = Book(book.signals, book.now, max_gpus=8, gpus=8)
    assert len(wrong) == 1 and "p95 of demand at this hour 3.3 GPUs" in again.at(START + 3 * DAY + 10 * H).reason


def test_a_burst_of_two_readings_counts_and_all_that_is_needed_counts_as_all_that_it_may_have() -> None:
    book = Book(max_gpus=8, gpus=8)
    book.reads(START + 3 * DAY, lambda at: 30.0 if at.minute % 15 < 2 else 10.0)
    assert book.at(book.now + 9 * H).gpus == 3
    full = Book(max_gpus=8, gpus=8)
    full.reads(START + 3 * DAY, lambda at: 500.0)
    assert full.at(full.now + 9 * H).gpus == 8 and full.at(full.now).gpus == 8


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"load_per_gpu": 0}, "greater than 0"),
        ({"floor_gpus": 2.5}, "valid integer"),
        ({"headroom_quantile": 1.0}, "less than or equal to 0.999"),
        ({"floor_w": -1}, "greater than or equal to 0"),
        ({"load_per_gpu": None}, "max_gpus is for headroom by demand, which needs load_per_gpu"),
        ({"load_per_gpu": None, "max_gpus": 0, "headroom_quantile": 0.95}, "headroom_quantile is for headroom by demand"),
        ({"max_gpus": 0}, "add max_gpus, the GPUs that it may have at most"),
        ({"floor_gpus": 5}, "floor_gpus 5 is more than max_gpus, 4"),
        ({"max_gpus": 0, "gpu_uuids": ["g"], "floor_gpus": 2}, "floor_gpus 2 is more than the number of gpu_uuids, 1"),
        ({"max_gpus": 9}, "serving chat: max_gpus 9 is more than the 4 GPUs here"),
        ({"load_gauge": "a b"}, "'a b' is not the name of a metric"),
        ({"load_gauge": "a", "load_counter": "b"}, "give load_gauge or load_counter, not both"),
        ({"preset": "", "slo": [{**SLO, "gauge": "q"}]}, "there is no preset for what is to be divided by it"),
    ],
)
def test_a_wrong_setting_is_told(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said.replace("(", r"\(")):
        config(**more)


def test_floors_above_the_power_limit_are_told() -> None:
    one = {"name": "a", "address": "http://a", "power_limit_w": 500, "serving": [{**CHAT, "floor_w": 700}]}
    with pytest.raises(ValidationError, match=r"\(chat: floor_w 700 W\) is 700 W together, more than power_limit_w 500 W"):
        Config.model_validate({"region": [one]})
    gpus = {**CHAT, "name": "bot", "floor_gpus": 2, "gpu_power_w": 500}
    one = {"name": "a", "address": "http://a", "power_limit_w": 1800, "pue": 1.2, "serving": [{**CHAT, "floor_w": 700}, gpus]}
    said = "chat: floor_w 700 W; bot: floor_gpus 2 x gpu_power_w 500 W x pue 1.2 = 1200 W) is 1900 W together, more than power"
    with pytest.raises(ValidationError, match=re.escape(said)):
        Config.model_validate({"region": [one]})
    assert Config.model_validate({"region": [{**one, "power_limit_w": 1900}]})


@pytest.mark.parametrize("there", [{"gpus": 4}, {"gpu_pool": [{"type": "H100", "gpus": 2}, {"type": "A100", "gpus": 2}]}])
def test_floors_of_several_servings_above_the_gpus_are_told(there: dict[str, Any]) -> None:
    both = [{**CHAT, "floor_gpus": 3}, {**CHAT, "name": "bot", "floor_gpus": 2}]
    said = re.escape("floor_gpus of its serving (chat 3, bot 2) are 5 together, more than the 4 GPUs here; GPUs of serving")
    with pytest.raises(ValidationError, match=said):
        Config.model_validate({"region": [{"name": "a", "address": "http://a", "serving": both, **there}]})
    both[1]["floor_gpus"] = 1
    assert Config.model_validate({"region": [{"name": "a", "address": "http://a", "serving": both, **there}]})


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    "key",
    ["floor_gpus", "floor_w", "max_gpus", "gpu_power_w", "load_per_gpu", "headroom_quantile", "scrape_s", "stale_s", "limit"],
)
def test_true_and_false_are_no_numbers(key: str, value: bool) -> None:
    more = {"slo": [{**SLO, key: value}]} if key == "limit" else {key: value}
    with pytest.raises(ValidationError, match=f"{str(value).lower()} is no number"):
        config(**more)


# --- the real reader, the real loops ----------------------------------------------------------------------------------


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.close()


def test_a_servers_load_is_the_sum_of_what_works_and_waits(page: Page) -> None:
    reader = MetricsReader(config(url=page.url).regions[0].serving[0], {})
    page.shows(LOAD.format(running=7, waiting=2))
    *_, load = reader.read()
    assert (load.value, load.wrong) == (9.0, "")
    page.shows(LOAD.format(running=7, waiting=2).replace("requests_running", "requests_gone"))
    queue, load = reader.read()
    assert queue.value == 2.0 and load.wrong == "there is no series vllm:num_requests_running (that matches)"
    reader.close()


def test_the_doctor_says_whether_its_load_is_read(page: Page) -> None:
    region = config(url=page.url).regions[0]
    page.shows(LOAD.format(running=7, waiting=2))
    assert [(one.level, one.says) for one in check_serving(region)] == [
        ("ok", "load: is read"),
        ("ok", "queue <= 100: is read"),
    ]
    page.shows(LOAD.format(running=7, waiting=2).replace("requests_running", "requests_gone"))
    load, queue = check_serving(region)
    assert (load.level, queue.level) == ("warn", "ok") and "no series vllm:num_requests_running" in load.says


def test_a_counter_is_told_as_a_rate(page: Page) -> None:
    at_s = 0.0
    one = config(url=page.url, load_counter="done_total").regions[0].serving[0]
    reader = MetricsReader(one, {}, mono=lambda: at_s)

    def load(done: float, after_s: float) -> float | None:
        nonlocal at_s
        at_s += after_s
        page.shows(LOAD.format(running=0, waiting=0) + f"# TYPE done counter\ndone_total {done}\n")
        return reader.read()[-1].value

    assert [load(100, 0), load(107, 1), load(130, RATE_S - 1), load(131, 1)] == [None, None, 2.0, None]
    assert load(7, RATE_S) == pytest.approx(8 / (RATE_S + 1)), "a server that restarts counts from zero"
    reader.close()


class Site:
    """The control plane's loops over simulated clusters, a real server's page, and its reader."""

    def __init__(self, page: Page, signals: MemorySignalStore, start: datetime, **more: Any) -> None:
        self.load: Callable[[datetime], float] | None = by_day
        self.sim = Simulation(config(url=page.url, **more), start, [], tick_s=60.0, plan_s=900.0)
        self.demand = DemandBook(
            self.sim.control.config, signals, self.sim.clock.now, mono=lambda: self.sim.clock.now().timestamp()
        )
        self.sim.control.reserved = self.demand.reserved
        self.watch = ServingWatch(
            self.sim.control.config,
            lambda one: MetricsReader(one, {}),
            self.sim.store,
            demand=self.demand.note,
            mono=lambda: self.sim.clock.now().timestamp(),
        )

        def answer(_: str) -> tuple[int, bytes]:
            if self.load is None:
                return 500, b""
            return 200, LOAD.format(running=self.load(self.sim.clock.now()), waiting=0).encode()

        page.answer = answer
        reading = [Loop("read", 300.0, lambda now: self.watch.read_all()), Loop("kept", 300.0, self.demand.keep)]
        self.sim.loops[0:0] = reading

    def submit(self, job_id: str, gpus: float, run_s: float, **metadata: str) -> None:
        now = self.sim.clock.now()
        given = {f"gridshift.{key}": value for key, value in metadata.items()}
        flex = parse_flexibility(given, now=now, gpus_requested=gpus, regions=["a"])
        self.sim.clusters["a"].workloads[job_id] = Workload(run_s=run_s, checkpoint_s=3.0)
        request = Request("true", metadata=given, entrypoint_num_gpus=gpus)
        self.sim.control.admit(Job(job_id, request, flex, JobState.QUEUED, now, now, reason="submitted")).result()

    def job(self, job_id: str) -> Job:
        found = self.sim.store.job(job_id)
        assert found is not None
        return found

    def run(self, until: datetime) -> None:
        self.sim.run(until)


def test_batch_is_planned_into_the_trough_that_a_real_server_shows(page: Page) -> None:
    signals = MemorySignalStore()
    learning = Site(page, signals, START)
    learning.run(START + 3 * DAY + 10 * H)
    learning.demand.close()
    assert [path for path, _ in page.asked[:1]] == ["/"] and len(page.asked) > 900

    # another control plane, the same store: at ten in the morning serving needs 2 of 4 GPUs
    site = Site(page, signals, START + 3 * DAY + 10 * H)
    site.run(site.sim.clock.now() + 5 * MINUTE)
    site.submit("wide", 3.0, 3600.0, deadline="20h", runtime="1h")
    site.submit("narrow", 2.0, 3600.0, deadline="20h", runtime="1h")
    site.run(site.sim.clock.now() + 20 * MINUTE)
    plan = site.sim.control.snapshot().world.plan
    assert plan is not None
    start, _ = plan.placements["wide"].intervals[0]
    assert start.hour == 20 and site.job("wide").state is JobState.QUEUED
    sentences = [one.sentence for one in plan.kept]
    assert sentences[0].endswith("2 of 4 GPUs kept free for serving chat (p95 of demand at this hour 2.0 GPUs)"), sentences
    assert sentences[1] == (
        "Thu 20:00-Fri 08:00: 1 of 4 GPUs kept free for serving chat (p95 of demand at this hour 0.5 GPUs)"
    ), sentences
    assert site.job("narrow").state is JobState.RUNNING, "beside serving there are two"
    site.run(START + 3 * DAY + 20 * H + 40 * MINUTE)
    assert site.job("wide").state is JobState.RUNNING and site.job("narrow").state is JobState.SUCCEEDED

    # its metrics fail: nothing is known any more, and all that it may have is kept
    site.load = None
    site.run(site.sim.clock.now() + 30 * MINUTE)
    (view,) = site.sim.control.snapshot().world.regions
    now = next(one for one in view.reserved if one.start <= site.sim.clock.now() < one.end)
    assert now.gpus == 4 and "could not be read since 20:" in now.reason


def test_a_job_that_serving_leaves_no_room_for_says_so_from_the_first(page: Page) -> None:
    site = Site(page, MemorySignalStore(), START, max_gpus=3)
    site.submit("whole", 4.0, 3600.0, deadline="20h", runtime="1h")
    site.run(START + 30 * MINUTE)
    assert site.job("whole").reason == (
        "no region can take it: 3 of 4 GPUs in a are kept free for serving chat as far as plans look ahead"
    )
    floor = Site(page, MemorySignalStore(), START, floor_gpus=2, gpu_power_w=700)
    floor.submit("whole", 4.0, 3600.0, deadline="20h", runtime="1h")
    floor.run(START + 5 * MINUTE)
    (view,) = floor.sim.control.snapshot().world.regions
    assert view.floors == (Floor("serving chat", 2, 2 * 700 * 1.5),)
    assert floor.job("whole").reason == (
        "can never start as things are: it needs 4 GPUs and its region, a, has 2 left: 2 of its 4 are always kept free for "
        "serving chat; ask for at most 2, lower floor_gpus of what is served there, or add GPUs there"
    )


def test_floors_above_what_the_cluster_turns_out_to_have_are_an_alarm() -> None:
    floors = (Floor("serving chat", 3, 2100.0), Floor("serving bot", 3, 0.0))
    one = RegionView("a", True, 4.0, None, 2000.0, None, None, floors=floors)
    (alarm,) = floors_too_large(World(START, (), (one,)), START)
    assert (alarm.key, alarm.region) == ("serving floors a", "a")
    assert alarm.sentence == (
        "what is always kept free for serving is more than there is, so that no batch job can start: floor_gpus (serving "
        "chat 3, serving bot 3) keep 6 GPUs and a has 4; floors (serving chat 2,100 W at the meter) keep 2,100 W and a "
        "may draw 2,000 W"
    )
    (told,) = doctor._alarms(200, {"alarms": [{"key": alarm.key, "sentence": alarm.sentence}]})
    assert told.level == "warn" and told.remedy.startswith("lower floor_gpus or floor_w")
    for fine in (replace(one, gpus=6.0, power_limit_w=2100.0), replace(one, gpus=None, power_limit_w=None)):
        assert floors_too_large(World(START, (), (fine,)), START) == []


@pytest.mark.parametrize("policy", registry.names())
def test_no_policy_starts_a_job_on_gpus_that_are_kept(policy: str) -> None:
    """By day 3 of 4 GPUs are kept, else 1; jobs come that start at once, and such as wait. Ours stays off them altogether."""
    region = {"name": "a", "address": "http://a", "gpus": 4, "observe_s": 60}
    region |= {"price": [{"feed": "synthetic"}], "carbon": [{"feed": "synthetic"}]}
    planning = {"policy": policy, "horizon_hours": 24}
    sim = Simulation(Config.model_validate({"region": [region], "planning": planning}), START + 7 * H, [], tick_s=60.0)
    kept = [Reserved(START + n * H, START + (n + 1) * H, 3.0 if 8 <= n % 24 < 20 else 1.0, 0.0) for n in range(96)]
    sim.control.reserved = lambda _: tuple(one for one in kept if one.end > sim.clock.now())
    known = set[str]()

    def is_over(now: datetime) -> bool:
        here = {job.id: job.flex.gpus for job in sim.control.snapshot().world.jobs if job.state in PLACED}
        over = sum(here.values()) > 4.0 - next(one.gpus for one in kept if one.start <= now < one.end)
        assert here.keys() <= known or not over, (now, here)
        known.update(here)
        return over

    for n in range(12):
        now, flexible = sim.clock.now(), n % 3 > 0
        given = {"gridshift.deadline": "20h", "gridshift.runtime": "1h"} if flexible else {}
        gpus = 1.0 if n % 4 else 2.0
        flex = parse_flexibility(given, now=now, gpus_requested=gpus, regions=["a"])
        sim.clusters["a"].workloads[f"j{n}"] = Workload(run_s=3500.0, checkpoint_s=3.0)
        request = Request("true", metadata=given, entrypoint_num_gpus=gpus)
        sim.control.admit(Job(f"j{n}", request, flex, JobState.QUEUED, now, now, reason="submitted")).result()
        for minute in range(1, 12):
            sim.run(now + minute * MINUTE)
            over = is_over(sim.clock.now())
            assert not over or policy != registry.OURS, "ours knows what is kept when they would still run"
    assert "j9" not in known, "no metadata, and no GPU for it beside serving before others end"
