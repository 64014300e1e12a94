"""All meters of a site together: what is kept, what a site draws by the best that is known, and what an operator is told."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config, MeterConfig
from dispatcher.errors import AlreadyExists, BadInput, NotFound, StoreUnavailable
from dispatcher.power.agent_sums import AgentsDraw, AgentSums, draw_of
from dispatcher.power.hub import NodeLive
from dispatcher.power.meter_sources import MeterProblem, Prometheus, Said
from dispatcher.power.meter_store import MemoryMeterStore, MeterReadings, MeterStore
from dispatcher.power.meter_values import MeterReading
from dispatcher.power.site_meters import SiteMeters
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
PUSHED: dict[str, Any] = {"name": "main", "source": "push", "cadence_s": 60}
BRANCHES: list[dict[str, Any]] = [{"name": "r1", "cooling_zone": "hall"}]


def t(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


class Scripted(Prometheus):
    """Answers what a test says."""

    def __init__(self) -> None:
        super().__init__({})
        self.value: float | None = 40_000.0
        self.asked: list[datetime] = []

    def read(self, meter: MeterConfig, at: datetime) -> Said:
        self.asked.append(at)
        if self.value is None:
            raise MeterProblem("the query has no value now")
        return Said(at, self.value)


class Site:
    """One region with meters, agents and a store under a test's hand."""

    def __init__(self, *meters: dict[str, Any], store: MeterReadings | None = None, **region: Any) -> None:
        fields = {
            "name": "eu",
            "address": "http://10.0.0.1:8265",
            "pue": 1.5,
            "meter": list(meters),
            "branch": BRANCHES,
            **region,
        }
        self.config = Config.model_validate({"region": [fields]})
        self.store = store if store is not None else MemoryMeterStore()
        self.draw: dict[str | None, AgentsDraw | None] = {}
        self.modelled_w: float | None = None
        self.prometheus = Scripted()
        self.meters = SiteMeters(
            self.config,
            self.store,
            agents=lambda _, branch: self.draw.get(branch),
            modelled=lambda _: self.modelled_w,
            prometheus=self.prometheus,
        )

    def run(self, start: float, end: float, step: float = 5.0) -> None:
        while start <= end:
            self.meters.read_meters(t(start))
            start += step

    def push(self, at: float, value: float, *, now: float | None = None, name: str = "main") -> tuple[int, int]:
        return self.meters.push("eu", name, [Said(t(at), value)], t(at if now is None else now))

    def alarms(self, now: float) -> list[str]:
        return [sentence for _, _, sentence in self.meters.alarms(t(now))]


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(*meters: dict[str, Any], **more: Any) -> Site:
        made.append(Site(*meters, **more))
        return made[-1]

    yield make
    for one in made:
        one.meters.close()


# --- what a site draws --------------------------------------------------------------------------------------------


def test_a_meter_is_the_truth_and_the_rest_of_it_a_line_of_its_own(site: Callable[..., Site]) -> None:
    eu = site(PUSHED)
    eu.draw[None] = AgentsDraw(20_000.0)
    eu.run(0, 60)
    eu.push(60, 41_000.0)
    got = eu.meters.site_power("eu", t(65))
    assert (got.value_w, got.quality, got.source, got.difference_w) == (41_000.0, "measured", "meter", 11_000.0)
    assert (got.start, got.end, got.at) == (t(0), t(60), t(65))


def test_a_difference_to_simulated_gpus_is_called_so(site: Callable[..., Site]) -> None:
    eu = site(PUSHED)
    eu.draw[None] = AgentsDraw(20_000.0, simulated=True)
    eu.run(0, 60)
    eu.push(60, 41_000.0)
    got = eu.meters.site_power("eu", t(65))
    assert (got.quality, got.difference_w) == ("measured", 11_000.0) and "are simulated" in got.reason


def test_the_reading_is_compared_with_the_agents_of_its_own_time(site: Callable[..., Site]) -> None:
    eu = site({**PUSHED, "delay_s": 120})
    for start, power_w in ((0, 10_000.0), (65, 30_000.0)):
        eu.draw[None] = AgentsDraw(power_w)
        eu.run(start, start + 55 if start == 0 else 180)
    eu.push(180, 20_000.0)  # about the first minute
    got = eu.meters.site_power("eu", t(181))
    assert (got.start, got.end, got.difference_w) == (t(0), t(60), 5_000.0)
    assert [one.agents_w for one in eu.meters.aligned("eu", "main")] == [10_000.0]


def test_without_a_meter_the_agents_then_the_model_then_nothing(site: Callable[..., Site]) -> None:
    eu = site()
    assert eu.meters.site_power("eu", T0).value_w is None
    eu.modelled_w = 9_000.0
    eu.run(0, 0)
    got = eu.meters.site_power("eu", t(1))
    assert (got.value_w, got.quality, got.source) == (9_000.0, "modelled", "modelled")
    assert eu.meters.site_power("eu", t(3600)).quality == "unknown", "what is modelled is of now"
    eu.draw[None] = AgentsDraw(20_000.0)
    eu.run(5, 5)
    got = eu.meters.site_power("eu", t(6))
    assert (got.value_w, got.quality, got.source, got.difference_w) == (30_000.0, "estimated", "agents x PUE", None)
    assert got.reason == "the site has no meter"
    eu.draw[None] = AgentsDraw(20_000.0, simulated=True)
    eu.run(10, 10)
    assert eu.meters.site_power("eu", t(11)).quality == "simulated"
    assert eu.meters.site_power("eu", t(7)).value_w == 30_000.0


def test_a_stopped_meter_is_unknown_after_three_cadences_and_an_alarm(site: Callable[..., Site]) -> None:
    eu = site(PUSHED)
    eu.run(0, 0)
    assert eu.alarms(10) == [] and "has not given a reading yet" in eu.alarms(181)[0]
    eu.push(60, 41_000.0)
    assert eu.meters.site_power("eu", t(240)).value_w == 41_000.0 and eu.alarms(240) == []
    gone = eu.meters.site_power("eu", t(241))
    assert (gone.value_w, gone.quality, gone.difference_w) == (None, "unknown", None)
    assert eu.alarms(241) == ["meter main of eu has stopped: nothing since 2026-03-01 12:01:00Z; what it measures is unknown"]
    assert eu.meters.views(t(241))[0].state == "stopped"
    eu.push(300, 40_000.0)
    assert eu.alarms(300) == [] and eu.meters.site_power("eu", t(300)).value_w == 40_000.0


def test_a_meter_below_its_own_gpus_is_not_used(site: Callable[..., Site]) -> None:
    eu = site(PUSHED)
    eu.draw[None] = AgentsDraw(20_000.0)
    eu.run(0, 65)
    eu.push(60, 41.0, now=65)  # kW, by mistake
    got = eu.meters.site_power("eu", t(65))
    assert (got.value_w, got.source) == (30_000.0, "agents x PUE")
    assert "shows 41 W while its GPUs alone drew 20000 W; it is not used" in got.reason
    assert "check what it measures, its factor and its delay_s" in eu.alarms(65)[0]


def test_a_branch_has_a_meter_of_its_own_and_sees_no_cooling(site: Callable[..., Site]) -> None:
    pdu = {"name": "pdu", "scope": "branch", "of": "r1", "source": "push", "cadence_s": 60}
    eu = site(PUSHED, pdu)
    eu.draw |= {None: AgentsDraw(20_000.0), "r1": AgentsDraw(8_000.0)}
    eu.run(0, 60)
    eu.push(60, 10_000.0, name="pdu")
    got = eu.meters.branch_power("eu", "r1", t(61))
    assert (got.value_w, got.difference_w) == (10_000.0, 2_000.0)
    assert eu.meters.site_power("eu", t(61)).value_w == 30_000.0
    other = site(branch=[{"name": "r1"}, {"name": "r2"}])
    other.run(0, 0)
    assert other.meters.branch_power("eu", "r2", t(1)).quality == "unknown"


def test_the_warmest_thermometer_of_a_zone(site: Callable[..., Site]) -> None:
    sensor = {"scope": "cooling_zone", "of": "hall", "unit": "degC", "source": "push", "cadence_s": 60}
    eu = site({**sensor, "name": "a"}, {**sensor, "name": "b"})
    eu.push(60, 24.5, name="a")
    eu.push(60, 27.0, name="b")
    warmest = eu.meters.temperature("eu", "hall", t(61))
    assert warmest is not None and warmest.value == 27.0
    assert eu.meters.temperature("eu", "hall", t(241)) is None


def test_a_jump_is_kept_but_not_used(site: Callable[..., Site]) -> None:
    eu = site({**PUSHED, "max_jump": 5_000})
    eu.push(60, 41_000.0)
    eu.push(120, 400_000.0)
    assert eu.meters.site_power("eu", t(125)).value_w == 41_000.0
    assert [one.quality for one in eu.store.latest("eu", "main", 9)] == ["measured", "suspect"]
    view = eu.meters.views(t(125))[0]
    assert view.last is not None and view.last.quality == "suspect" and view.state == "ok"
    assert view.gap == "400000.0 W after 41000.0 W: more than 5000 W at once"


def test_a_counter_and_its_reset(site: Callable[..., Site]) -> None:
    eu = site({**PUSHED, "unit": "kWh", "factor": 0.001})
    for at, value_wh in ((0, 5_000_000.0), (60, 5_000_500.0), (120, 100.0), (180, 600.0)):
        eu.push(at, value_wh)
        if at == 120:
            assert eu.meters.site_power("eu", t(125)).value_w == pytest.approx(30_000.0), "the last that is believed"
            gap = eu.meters.views(t(125))[0].gap
            assert gap is not None and "back to 0.1 kWh: reset or replaced" in gap
    got = eu.meters.site_power("eu", t(180))
    assert got.value_w == pytest.approx(30_000.0) and (got.start, got.end) == (t(120), t(180))
    assert [one.value for one in eu.store.latest("eu", "main", 2)] == pytest.approx([0.1, 0.6])


# --- taking in ----------------------------------------------------------------------------------------------------


def test_pushed_readings_come_late_out_of_order_and_again(site: Callable[..., Site]) -> None:
    eu = site(PUSHED)
    assert eu.push(120, 42_000.0) == (1, 0)
    assert eu.push(60, 41_000.0, now=500) == (1, 0)
    assert eu.push(60, 41_000.0, now=501) == (0, 1)
    assert [one.value for one in eu.store.latest("eu", "main", 9)] == [41_000.0, 42_000.0]
    assert eu.meters.site_power("eu", t(70)).value_w == 42_000.0, "it is about the minute in which 12:01:10 lies"
    with pytest.raises(AlreadyExists, match=r"has 41000 W for .* already, not 40000"):
        eu.push(60, 40_000.0, now=502)
    assert eu.push(60, 41_000.0, now=60 + 48 * 3600) == (0, 1)
    with pytest.raises(BadInput, match="must be of the last 48 h"):
        eu.push(60, 41_000.0, now=61 + 48 * 3600)
    with pytest.raises(BadInput, match="must not be in the future"):
        eu.push(63, 41_000.0, now=60)
    assert eu.push(62, 41_000.0, now=60) == (1, 0), "clocks differ a little"


def test_nothing_of_a_message_is_kept_when_part_of_it_is_refused(site: Callable[..., Site]) -> None:
    eu = site(PUSHED)
    with pytest.raises(BadInput, match=r"\[1\].at"):
        eu.meters.push("eu", "main", [Said(t(60), 1.0), Said(t(900), 1.0)], t(60))
    with pytest.raises(AlreadyExists):
        eu.meters.push("eu", "main", [Said(t(60), 1.0), Said(t(60), 2.0)], t(60))
    assert eu.store.latest("eu", "main", 9) == []
    assert eu.meters.push("eu", "main", [Said(t(60), 1.0), Said(t(60), 1.0)], t(60)) == (1, 1)


def test_who_may_be_pushed(site: Callable[..., Site]) -> None:
    eu = site({**PUSHED, "unit": "kWh"}, {"name": "c", "scope": "branch", "of": "r1", "source": "csv", "path": "/none"})
    with pytest.raises(NotFound, match="there is no meter 'x' in region 'eu'; known: eu/c, eu/main"):
        eu.push(60, 1.0, name="x")
    with pytest.raises(BadInput, match="this one is read from csv"):
        eu.push(60, 1.0, name="c")
    with pytest.raises(BadInput, match="a counter is read at a moment"):
        eu.meters.push("eu", "main", [Said(t(60), 1.0, t(0))], t(60))


def test_an_interval_that_is_given_is_the_one_it_is_about(site: Callable[..., Site]) -> None:
    eu = site({**PUSHED, "unit": "kWh", "counter": False, "delay_s": 30})
    eu.meters.push("eu", "main", [Said(t(900), 10.0, t(0))], t(930))
    got = eu.meters.site_power("eu", t(930))
    assert (got.value_w, got.start, got.end) == (40_000.0, t(0), t(900))


def test_prometheus_is_asked_once_a_cadence_and_a_gap_is_no_zero(site: Callable[..., Site]) -> None:
    eu = site({"name": "main", "source": "prometheus", "url": "http://p:9090", "query": "q", "cadence_s": 15, "delay_s": 10})
    eu.run(1, 29, step=1)
    assert eu.prometheus.asked == [t(0), t(15)]
    assert eu.meters.site_power("eu", t(29)).end == t(5)
    eu.prometheus.value = None
    eu.run(30, 74, step=5)
    assert eu.meters.views(t(60))[0].problem == "the query has no value now"
    assert eu.meters.site_power("eu", t(60)).value_w == 40_000.0
    assert eu.meters.site_power("eu", t(61)).value_w is None
    assert eu.alarms(61)[0].endswith("what it measures is unknown: the query has no value now")
    eu.prometheus.value = 39_000.0
    eu.run(75, 75)
    assert eu.meters.site_power("eu", t(75)).value_w == 39_000.0 and eu.alarms(75) == []


def test_a_file_with_rows_of_a_clock_that_is_ahead(site: Callable[..., Site], tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    rows = [(-49 * 3600, 1.0), (-60, 40_000.0), (0, 41_000.0), (30, 42_000.0)]
    path.write_text("time,value\n" + "".join(f"{t(at).isoformat()},{value}\n" for at, value in rows) + "x,5\n")
    eu = site({"name": "main", "source": "csv", "path": str(path), "cadence_s": 10})
    eu.run(0, 0)
    assert [one.value for one in eu.store.latest("eu", "main", 9)] == [40_000.0, 41_000.0]
    gap = eu.meters.views(T0)[0].gap
    assert gap is not None and gap.startswith("1 rows give no reading, the last: 'x,5'")
    eu.run(10, 30)
    assert [one.value for one in eu.store.latest("eu", "main", 9)] == [40_000.0, 41_000.0, 42_000.0]


def test_one_source_in_trouble_holds_up_no_other(site: Callable[..., Site]) -> None:
    eu = site(
        {"name": "bad", "scope": "branch", "of": "r1", "source": "csv", "path": "/no/such/file"},
        {"name": "main", "source": "prometheus", "url": "http://p:9090", "query": "q"},
    )
    eu.run(0, 0)
    assert eu.meters.site_power("eu", T0).value_w == 40_000.0
    assert [view.problem is None for view in eu.meters.views(T0)] == [False, True]


class Failing(MemoryMeterStore):
    """A database that does not answer for a while."""

    down = True

    def add(self, readings: Any) -> int:
        if self.down:
            raise StoreUnavailable("disk full")
        return super().add(readings)


def test_a_database_that_is_away_loses_no_row_of_a_file(site: Callable[..., Site], tmp_path: Path) -> None:
    path, store = tmp_path / "m.csv", Failing()
    path.write_text(f"time,value\n{T0.isoformat()},41000\n")
    eu = site(
        {"name": "main", "source": "csv", "path": str(path), "cadence_s": 10},
        {**PUSHED, "name": "p", "scope": "branch", "of": "r1"},
        store=store,
    )
    eu.run(0, 0)
    assert eu.meters.views(T0)[0].problem == "disk full" and eu.meters.site_power("eu", T0).value_w is None
    with pytest.raises(StoreUnavailable):
        eu.push(0, 1.0, name="p")
    store.down = False
    eu.run(10, 10)
    assert eu.meters.site_power("eu", t(10)).value_w == 41_000.0
    assert eu.push(0, 1.0, name="p") == (1, 0), "nothing was kept of what was not stored"


# --- the store ----------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqlStore]:
    url = f"sqlite:///{tmp_path / 'gridshift.db'}"
    upgrade(url)
    store = SqlStore(url, data_dir=tmp_path)
    yield store
    store.close()


@pytest.fixture(params=["memory", "sql"])
def store(request: pytest.FixtureRequest) -> MeterReadings:
    if request.param == "memory":
        return MemoryMeterStore()
    return MeterStore(request.getfixturevalue("database").engine)


def reading(at: float, value: float, meter: str = "main") -> MeterReading:
    return MeterReading("eu", meter, t(at), value, "W", t(at + 60), t(at + 60), "r1")


def test_both_stores_keep_each_time_once(store: MeterReadings) -> None:
    assert store.add([reading(60, 2.0), reading(0, 1.0), reading(0, 9.0)]) == 2
    assert store.add([reading(60, 7.0), reading(120, 3.0), reading(0, 5.0, "other")]) == 2
    assert store.between("eu", "main", t(0), t(120)) == [reading(0, 1.0), reading(60, 2.0)]
    assert store.latest("eu", "main", 2) == [reading(60, 2.0), reading(120, 3.0)]
    assert store.at("eu", "main", [t(0), t(30)]) == {t(0): reading(0, 1.0)}
    assert store.latest("us", "main", 2) == [] and store.at("eu", "main", []) == {}


def test_many_readings_in_one_message(store: MeterReadings) -> None:
    many = [reading(60 * i, float(i)) for i in range(1300)]
    assert store.add(many) == 1300 and store.add(many) == 0
    assert len(store.at("eu", "main", [one.start for one in many])) == 1300


def test_old_readings_are_forgotten(store: MeterReadings, site: Callable[..., Site]) -> None:
    store.add([reading(0, 1.0), reading(60, 2.0), reading(120, 3.0)])
    assert store.forget(t(60)) == 1 and store.latest("eu", "main", 9) == [reading(60, 2.0), reading(120, 3.0)]
    eu = site(PUSHED, store=store)
    eu.run(1095 * 86400 + 120, 1095 * 86400 + 120)
    assert store.latest("eu", "main", 9) == [reading(120, 3.0)], "readings_kept_days"


def test_after_a_restart_meters_go_on_where_they_were(site: Callable[..., Site], database: SqlStore) -> None:
    counter = {**PUSHED, "unit": "kWh"}
    first = site(counter, store=MeterStore(database.engine))
    first.push(0, 5_000.0)
    second = site(counter, store=MeterStore(database.engine))
    second.push(60, 5_000.5)
    got = second.meters.site_power("eu", t(61))
    assert (got.value_w, got.start) == (30_000.0, t(0)), "the counter's last reading was not lost"


def test_a_time_long_past_is_read_from_the_store(site: Callable[..., Site]) -> None:
    store = MemoryMeterStore()
    held = [MeterReading("eu", "main", t(60 * i), 40_000.0 + i, "W", T0, t(60 * (i + 1))) for i in range(1600)]
    for one in held:
        store._held["eu", "main"].append(one)
    eu = site(PUSHED, store=store)
    eu.run(96_000, 96_000)
    assert eu.meters.site_power("eu", t(65)).value_w == 40_001.0
    assert eu.meters.site_power("eu", t(95_999)).value_w == 41_599.0


# --- the agents' sum ----------------------------------------------------------------------------------------------


def node(region: str, branch: str | None, *powers: float | None, connected: bool = True, simulated: bool = False) -> NodeLive:
    gpus = tuple(type("Gpu", (), {"power_w": power_w})() for power_w in powers)
    return NodeLive("n", "h", region, branch, connected, T0, True, "", simulated, gpus)


def test_a_sum_is_complete_or_none() -> None:
    nodes = [node("eu", "r1", 300.0, 250.0), node("eu", "r2", 100.0, simulated=True), node("us", None, 9.0)]
    assert draw_of(nodes, "eu", None) == AgentsDraw(650.0, simulated=True)
    assert draw_of(nodes, "eu", "r1") == AgentsDraw(550.0)
    assert draw_of(nodes, "asia", None) is None and draw_of([node("eu", None)], "eu", None) is None
    assert draw_of([*nodes, node("eu", "r1", 5.0, connected=False)], "eu", None) is None, "a silent node is unknown, not zero"
    assert draw_of([*nodes, node("eu", "r1", None)], "eu", "r1") is None


def test_a_sum_holds_until_the_next_but_not_for_long() -> None:
    draws = iter([AgentsDraw(100.0), AgentsDraw(200.0), None])
    sums = AgentSums(lambda region, branch: next(draws))
    for at in (0, 5, 10):
        sums.note([("eu", None)], t(at))
    assert [sums.at(("eu", None), t(at)) for at in (-1, 4, 7, 10)] == [None, AgentsDraw(100.0), AgentsDraw(200.0), None]
    assert sums.mean(("eu", None), t(0), t(10)) == AgentsDraw(150.0)
    assert sums.mean(("eu", None), t(0), t(20)) is None


def test_a_clock_that_was_ahead_for_a_moment_drops_no_readings_and_stops_no_meter(site: Callable[..., Site]) -> None:
    eu = site({"name": "main", "source": "prometheus", "url": "http://p:9090", "query": "q", "cadence_s": 15, "delay_s": 10})
    steady = False
    eu.meters._steady = lambda _: steady
    eu.run(0, 0)
    first = eu.store.latest("eu", "main", 9)[0].start
    years = 1096 * 86_400.0
    eu.run(years, years)
    assert eu.store.latest("eu", "main", 9)[0].start == first, "nothing was dropped"
    eu.run(15, 15)
    assert eu.prometheus.asked[-1] == t(15)
    steady = True
    eu.run(years, years)
    assert eu.store.latest("eu", "main", 9)[0].start > t(years - 60)
