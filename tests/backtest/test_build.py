"""From files and options to a scenario: what it holds, what it says was assumed, what it refuses."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dispatcher.backtest.build import PRIOR_S, Options, build
from dispatcher.errors import BadInput
from policies.world import Pausable, Settings
from tests.helpers import data_dir

T0 = datetime(2023, 1, 2, tzinfo=UTC)
H = timedelta(hours=1)
OWN = "id,submitted_at,length_s,gpus,power_w,queue,deadline_at,max_wait_s,pausable,restart_s,regions,tier,declared_s,priority\n"


def stamp(hour: float) -> str:
    return (T0 + hour * H).isoformat()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Three jobs over two days, sixty days of prices and carbon of two regions."""
    (tmp_path / "jobs.csv").write_text("arrival_time,length,cpus\n0,0.5,2\n30,10,1\n47.5,1,4\n")
    rows = [f"{stamp(h)},{region},{50 + h % 24},{300 + h % 24}" for region in ("A", "B") for h in range(24 * 60)]
    (tmp_path / "signals.csv").write_text("datetime_utc,region,price_usd_mwh,ci_lca_gco2_kwh\n" + "\n".join(rows) + "\n")
    return Options(jobs=[tmp_path / "jobs.csv"], signals=[tmp_path / "signals.csv"], regions=["A", "B"], forecast="perfect")


def told(options: Options, **changes: Any) -> str:
    with pytest.raises(BadInput) as caught:
        build(replace(options, **changes))
    return str(caught.value)


def test_a_plain_scenario(options: Options) -> None:
    found = build(replace(options, max_wait="short:6h,long:24h", gpus={"": 8, "B": 4}, pue={"A": 1.2}))
    assert (found.start, found.end) == (T0, T0 + 48 * H)
    assert [job.id for job in found.jobs] == ["1", "2", "3"]
    one, two, three = found.jobs
    assert (one.queue, one.max_wait_s, one.power_w, one.pausable) == ("short", 21600.0, 2.0, Pausable.NO)
    assert (two.queue, two.due_at) == ("long", T0 + 64 * H)
    assert three.submitted_at == T0 + timedelta(hours=47.5)
    first, second = found.regions
    assert (first.gpus, first.pue, second.gpus, second.pue) == (8, 1.2, 4, 1.0)
    assert (found.settings.currency, found.settings.slot_s, found.settings.default_region) == ("USD", 3600, "A")
    assert found.foresight.mode == "perfect"
    assert dict(found.mean_by_queue_s) == PRIOR_S
    assert not found.means_fixed
    assert not found.warnings
    text = " ".join(found.assumptions)
    for word in ("no calendar", "1 W for each", "short 6 h, long 24 h", "perfectly", "A: 8 GPUs, PUE 1.2", "life-cycle"):
        assert word in text


def test_jobs_that_run_beyond_the_signals_meet_a_repeated_week(options: Options) -> None:
    found = build(replace(options, start=T0 + 58 * 24 * H, max_wait="24h"))
    table = found.regions[0].signals
    assert table.end >= found.jobs[-1].submitted_at + timedelta(days=7)
    assert table.price is not None
    assert np.isfinite(table.price).all()
    assert any("the last week known is repeated" in word for word in found.assumptions)


def test_gaia_rules(options: Options) -> None:
    found = build(replace(options, gaia_compatible=True, forecast="as-of", pausable=False, w_per_cpu=7.0, start_index=24))
    assert found.start == T0 + 24 * H
    assert (found.step_s, found.means_fixed, found.foresight.mode) == (5.0, True, "perfect")
    assert dict(found.mean_by_queue_s) == {"short": 2700.0, "long": 36000.0}
    assert {job.max_wait_s for job in found.jobs} == {6 * 86400.0}
    assert [job.power_w for job in found.jobs] == [2.0, 1.0, 4.0]
    assert {job.pausable for job in found.jobs} == {Pausable.CHECKPOINT}
    assert (found.settings.launch_s, found.settings.runtime_slack) == (0.0, 0.0)
    assert found.settings.horizon_s >= 7 * 86400
    # the whole trace's means, though only a part of it is run
    part = build(replace(options, gaia_compatible=True, days=1))
    assert dict(part.mean_by_queue_s) == {"short": 2700.0, "long": 36000.0}
    assert len(part.jobs) == 1
    assert any("2 of 3 jobs arrive outside" in word for word in part.assumptions)
    assert "no capacity limit" in told(options, gaia_compatible=True, gpus={"": 5})


def test_our_own_trace_says_what_it_says(options: Options, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        OWN
        + f"a,{stamp(5)},3600,2,,,{stamp(9)},,checkpoint,30,A B,flex-2,7200,3\n"
        + f"b,{stamp(3)},60,1,700,night,,600,,,,,,\n"
        + f"c,{stamp(4)},0,0,0,,,,,,B,,,\n"
    )
    found = build(replace(options, jobs=[path], max_wait="night:9h,24h"))
    b, c, a = found.jobs
    assert (a.deadline_at, a.max_wait_s, a.pausable, a.restart_s) == (T0 + 9 * H, None, Pausable.CHECKPOINT, 30.0)
    assert (a.regions, a.tier, a.declared_s, a.priority, a.power_w) == (("A", "B"), "flex-2", 7200.0, 3, 800.0)
    assert (b.queue, b.max_wait_s, b.power_w) == ("night", 600.0, 700.0)
    assert (c.queue, c.max_wait_s, c.power_w, c.length_s) == ("short", 86400.0, 0.0, 0.0)
    assert found.start == T0 + 3 * H
    assert "are not simulated; there are A" in told(options, jobs=[path], regions=["A"])


def test_several_traces_are_told_apart(options: Options, tmp_path: Path) -> None:
    other = tmp_path / "more.csv"
    other.write_text("arrival_time,length,cpus\n10,1,1\n")
    found = build(replace(options, jobs=[*options.jobs, other]))
    assert [job.id for job in found.jobs] == ["1", "more.csv:1", "2", "3"]
    assert "the same job twice" in told(options, jobs=[*options.jobs, *options.jobs, *options.jobs])


def test_serving_and_events(options: Options, tmp_path: Path) -> None:
    serving, events = tmp_path / "serving.csv", tmp_path / "events.json"
    serving.write_text(f"region,start,end,gpus,power_w\nA,{stamp(4)},{stamp(5)},3,900\nA,{stamp(2)},{stamp(4)},1,300\n")
    events.write_text(json.dumps([{"region": "B", "start": stamp(3), "end": None, "limit_w": 5000}]))
    found = build(replace(options, serving=serving, events=events))
    assert [(one.gpus, one.power_w) for one in found.regions[0].reserved] == [(1.0, 300.0), (3.0, 900.0)]
    assert found.regions[1].reserved == ()
    (event,) = found.events
    assert (event.region, event.start, event.end, event.limit_w) == ("B", T0 + 3 * H, None, 5000.0)
    serving.write_text(
        f"region,start,end,gpus,power_w\nA,{stamp(4)},{stamp(5)},3,900\nA,{stamp(4.5)},{stamp(6)},1,300\nC,x,y,-1,nan\n"
    )
    text = told(options, serving=serving)
    for word in ("line 4, region", "line 4, start", "line 4, gpus", "line 4, power_w"):
        assert word in text
    serving.write_text(f"region,start,end,gpus,power_w\nA,{stamp(4)},{stamp(5)},3,900\nA,{stamp(4.5)},{stamp(6)},1,300\n")
    assert "overlaps" in told(options, serving=serving)
    events.write_text('{"a": 1}')
    assert "must be a list" in told(options, events=events)
    events.write_text("[")
    assert "is not JSON" in told(options, events=events)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"forecast": "good"}, "perfect, as-of, noisy"),
        ({"days": 0}, "more than 0"),
        ({"days": 100}, "cover"),
        ({"days": 1e12}, "at most 3660"),
        ({"start_index": 10**12}, "hours of the signals"),
        ({"start": datetime(9999, 12, 31, tzinfo=UTC)}, "a time of the signals"),
        ({"start": datetime(2022, 1, 1, tzinfo=UTC)}, "cover"),
        ({"start": datetime(2023, 1, 3)}, "UTC offset"),  # noqa: DTZ001
        ({"gpus": {"C": 1}}, "none of the regions"),
        ({"gpus": {"A": -1}}, "0 or more"),
        ({"pue": {"A": 0.5}}, "1 or more"),
        ({"zones": {"C": "UTC"}}, "none of the regions"),
        ({"regions": ["A", "C"]}, "there are A, B"),
        ({"regions": []}, "at least one"),
        ({"jobs": []}, "at least one"),
        ({"signals": []}, "at least one"),
        ({"max_wait": "long"}, "duration"),
        ({"queue_boundary": "soon"}, "duration"),
        ({"clip": "0"}, "more than 0"),
        ({"currency": "EUR"}, "what 1 USD is worth in EUR"),
        ({"currency": "EUR", "fx": {"USD": -1.0}}, "more than 0"),
        ({"plan_s": 0.0}, "more than 0"),
        ({"start_index": -1}, "0 or more"),
    ],
)
def test_what_is_wrong_is_named(options: Options, changes: dict[str, Any], word: str) -> None:
    assert word in told(options, **changes)


def test_currencies_are_converted_as_told(options: Options) -> None:
    found = build(replace(options, currency="eur", fx={"USD": 0.9}, settings=Settings(carbon_price=80.0)))
    assert (found.settings.currency, found.settings.carbon_price) == ("EUR", 80.0)
    assert [region.fx for region in found.regions] == [0.9, 0.9]
    assert any("1 USD counts as 0.9 EUR" in word for word in found.assumptions)


def test_forecasts_begin_with_what_history_there_is(options: Options, tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    changes: dict[str, Any] = {"forecast": "as-of", "cache_dir": tmp_path / "kept", "regions": ["A"]}
    found = build(replace(options, **changes), lambda *each: heard.append(each))
    assert found.foresight.mode == "as-of"
    assert found.start == T0 + 58 * 24 * H  # as late as the signals allow
    assert any("58 days of history" in word for word in found.assumptions)
    assert heard[-1] == ("forecasts", 2, 2)
    known = found.foresight.views(found.start + H)["A"]
    assert known.carbon is not None
    assert len(known.carbon.values) >= 96
    # days that are all alike are foreseen exactly
    assert known.carbon.values[:24] == pytest.approx([300 + (h + 1) % 24 for h in range(24)], rel=0.02)
    noisy = build(replace(options, **changes | {"forecast": "noisy", "noise": 2.0}))
    assert noisy.foresight.mode == "noisy"
    assert any("standard deviation" in word for word in noisy.assumptions)


def test_a_year_of_open_data() -> None:
    folder = data_dir() / "traces"
    found = build(
        Options(
            jobs=[folder / "jobs_gaia_pai_1k.csv.gz"],
            signals=[folder / "price_hourly_2023.csv.gz", folder / "carbon_hourly_2023.csv.gz"],
            regions=["DE-LU"],
            days=30,
            forecast="perfect",
            max_wait="short:6h,long:24h",
        )
    )
    assert (len(found.jobs), found.end - found.start) == (1000, timedelta(days=30))
    philly = build(
        Options(
            jobs=[folder / "jobs_philly_gavel_msr_seed0.csv.gz"],
            signals=[folder / "carbon_hourly_2023.csv.gz"],
            regions=["GB"],
            skip_unknown_lengths=True,
            clip="7d",
            forecast="perfect",
            start=datetime(2023, 1, 1, tzinfo=UTC),
            days=60,
        )
    )
    assert max(job.length_s for job in philly.jobs) == 7 * 86400.0
    assert {job.power_w / job.gpus for job in philly.jobs} == {400.0}
    assert any("no price signal" in word for word in philly.warnings)
