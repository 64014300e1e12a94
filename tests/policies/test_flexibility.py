"""What metadata means, and that everything wrong with it is said at once."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.flexibility import (
    KEYS,
    PREFIX,
    FlexibilityDefaults,
    FlexibilityError,
    deadline_warning,
    parse_duration,
    parse_flexibility,
)
from policies.world import Flexibility, Pausable

NOW = datetime(2026, 2, 3, 6, 0, tzinfo=UTC)
REGIONS = ("eu-west", "nordics")


DEFAULTS = FlexibilityDefaults()


def parse(defaults: FlexibilityDefaults = DEFAULTS, **given: Any) -> Flexibility:
    metadata = {PREFIX + key: value for key, value in given.items()}
    return parse_flexibility(metadata, now=NOW, gpus_requested=None, regions=REGIONS, defaults=defaults)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400), ("6h", 21600), ("2d", 172800), ("1h30m", 5400), ("1 h 30 m", 5400), ("PT6H", 21600), ("P1DT2H", 93600),
        ("pt90s", 90), ("P1W", 604800), ("42", 42), ("1.5h", 5400), ("0", 0), ("6 hours", 21600), ("1 hr 30 mins", 5400),
        ("1 Hour 5min 10 seconds", 3910), ("2 days", 172800), ("1week", 604800), ("90 sec", 90),
    ],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h",
        "-5m",
        "5x",
        "1h1h",
        "P",
        "PT",
        "P1DT",
        "nan",
        "inf",
        "1e9",
        "400d",
        "5m later",
        "٣m",
        "1 hour 1h",
        "5 moons",
        "2 months",
        "5 minutess",
        "1" * 101 + "m",
    ],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_everything_that_can_be_said() -> None:
    flex = parse_flexibility(
        {
            "gridshift.deadline": "2026-02-03T20:00+02:00",
            "gridshift.earliest": "1h",
            "gridshift.runtime": "PT2H",
            "gridshift.gpus": "8",
            "gridshift.power_w": "3200",
            "gridshift.pausable": "checkpoint",
            "gridshift.checkpoint_s": "30",
            "gridshift.restart_s": "45s",
            "gridshift.regions": "nordics, eu-west",
            "gridshift.data_gb": "12.5",
            "gridshift.data_region": "eu-west",
            "gridshift.tier": "flex-2",
            "gridshift.priority": "-3",
            "gridshift.group": "nightly",
            "gridshift.team": "vision",
            "gridshift.max_price": "-10",
            "gridshift.max_carbon": "300",
            "gridshift.min_cap": "0.6",
            "gridshift.gpu_types": "H100:1,A100:0.45",
            "gridshift.freeze_max_s": "10m",
            "gridshift.max_attempts": "3",
            "owner": "not ours",
        },
        now=NOW,
        gpus_requested=2.0,
        regions=REGIONS,
    )
    assert flex == Flexibility(
        flexible=True,
        deadline_at=NOW + timedelta(hours=12),
        earliest_at=NOW + timedelta(hours=1),
        runtime_s=7200.0,
        runtime_given=True,
        gpus=8.0,
        power_w=3200.0,
        pausable=Pausable.CHECKPOINT,
        checkpoint_s=30.0,
        restart_s=45.0,
        regions=("nordics", "eu-west"),
        data_gb=12.5,
        data_region="eu-west",
        tier="flex-2",
        priority=-3,
        group="nightly",
        team="vision",
        max_price=-10.0,
        max_carbon=300.0,
        min_cap=0.6,
        gpu_types={"H100": 1.0, "A100": 0.45},
        freeze_max_s=600.0,
        max_attempts=3,
    )


def test_a_job_that_says_nothing_is_not_flexible() -> None:
    flex = parse_flexibility({"owner": "me"}, now=NOW, gpus_requested=2.0, regions=REGIONS)
    assert not flex.flexible and flex.tier == "flex-0" and flex.gpus == 2.0 and flex.power_w == 800.0
    assert flex.pausable is Pausable.NO and not flex.runtime_given and flex.deadline_at is None
    assert parse().power_w == 50.0, "a job without GPUs draws what a CPU job draws"
    assert parse(defaults=FlexibilityDefaults(tier="flex-3")).tier == "flex-3"


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("deadline", "2026-02-03T20:00", "no UTC offset"),
        ("deadline", "2026-02-04", "needs a time of day with a UTC offset, such as 2026-02-04T18:00Z"),
        ("deadline", "2026-02-04Z", "such as 2026-02-04T18:00Z"),
        ("deadline", "2026-02-04+01:00", "such as 2026-02-04T18:00Z"),
        ("deadline", "2026-02-04+18:00Z", "must be a time such as"),
        ("deadline", "2026-13-04", "must be a time such as"),
        ("deadline", "0001-01-01T00:00+14:00", "has passed"),
        ("deadline", "tomorrow", "must be a time such as"),
        ("deadline", "2026-02-03T05:00Z", "has passed"),
        ("deadline", "9999-12-31T23:59-12:00", "earlier time"),
        ("deadline", 3600, "must be a string"),
        ("deadline", "  ", "is empty"),
        ("earliest", "-5m", "must be a time"),
        ("runtime", "0", "longer than nothing"),
        ("runtime", "soon", "must be a duration"),
        ("gpus", "-1", "at least 0"),
        ("gpus", "many", "must be a finite number"),
        ("gpus", "1_000", "must be a finite number"),
        ("gpus", "\u0661", "must be a finite number"),
        ("priority", "1_0", "whole number"),
        ("power_w", "-400", "at least 0"),
        ("power_w", "nan", "finite"),
        ("power_w", "1e400", "finite"),
        ("pausable", "maybe", "must be one of no, checkpoint, freeze"),
        ("checkpoint_s", "-1", "must be a duration"),
        ("regions", "eu-wst", "did you mean 'eu-west'"),
        ("regions", ",", "at least one region"),
        ("data_region", "mars", "no region 'mars'"),
        ("data_gb", "5", "add gridshift.data_region"),
        ("tier", "flex-4", "must be one of flex-0"),
        ("priority", "1.5", "whole number"),
        ("min_cap", "1.5", "at most 1"),
        ("min_cap", "0", "more than 0"),
        ("max_attempts", "0", "at least 1"),
        ("gpu_types", "H100", "relative speed"),
        ("gpu_types", "H100:1,H100:2", "relative speed"),
        ("dedline", "6h", "did you mean gridshift.deadline?"),
        ("colour", "red", "known keys"),
    ],
)
def test_each_wrong_value_is_named_with_its_remedy(key: str, value: Any, remedy: str) -> None:
    with pytest.raises(FlexibilityError) as caught:
        parse(**{key: value})
    assert [(p.field, p.value) for p in caught.value.problems] == [(PREFIX + key, value)]
    assert remedy in caught.value.problems[0].remedy


def test_a_long_value_is_quoted_in_part() -> None:
    with pytest.raises(FlexibilityError, match="must be a time such as") as caught:
        parse(deadline="1" * 5000)
    assert caught.value.problems[0].value == "1" * 100 + "… (5000 characters)"


def test_every_time_that_a_remedy_names_is_one() -> None:
    for text in ("2026-02-04", "2026-02-04Z", "2026-02-04+01:00"):
        with pytest.raises(FlexibilityError) as caught:
            parse(deadline=text)
        named = caught.value.problems[0].remedy.rpartition(" ")[2]
        assert parse(deadline=named).deadline_at == datetime(2026, 2, 4, 18, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"deadline": "3h", "earliest": "4h", "runtime": "1m"}, "earliest"),
        ({"tier": "flex-0", "min_cap": "0.5"}, "min_cap"),
    ],
)
def test_contradictions(given: dict[str, str], field: str) -> None:
    with pytest.raises(FlexibilityError) as caught:
        parse(**given)
    assert [p.field for p in caught.value.problems] == [PREFIX + field]


def test_fewer_gpus_than_the_entrypoint_asks_for_is_a_contradiction_and_more_is_not() -> None:
    with pytest.raises(FlexibilityError, match="whole job"):
        parse_flexibility({"gridshift.gpus": "1"}, now=NOW, gpus_requested=2.0, regions=REGIONS)
    assert parse_flexibility({"gridshift.gpus": "4"}, now=NOW, gpus_requested=2.0, regions=REGIONS).gpus == 4.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"deadline": "1h", "runtime": "2h"},
            "cannot end by its deadline 2026-02-03 07:00Z: its run time is 2 h and 1 h are left; it starts at once and counts",
        ),
        (
            {"deadline": "3h", "earliest": "2h", "runtime": "90m"},
            "its run time is 1 h 30 min and 1 h are left; it starts as soon as",
        ),
        ({"deadline": "30m"}, "the run time that is assumed of it is 1 h and 30 min are left"),
    ],
)
def test_a_deadline_that_cannot_be_met_is_taken_with_a_warning(given: dict[str, str], said: str) -> None:
    flex = parse(**given)
    warning = deadline_warning(flex, NOW)
    assert warning is not None and said in warning and warning.startswith("cannot end by its deadline")
    assert not flex.runtime_given or flex.runtime_s > 3600


def test_a_deadline_that_can_just_be_met_is_no_warning() -> None:
    assert deadline_warning(parse(deadline="2h", runtime="2h"), NOW) is None
    assert deadline_warning(parse(deadline="2h", runtime="2h"), NOW + timedelta(seconds=1)) is not None
    assert deadline_warning(parse(runtime="2h"), NOW) is None


def test_all_problems_come_at_once() -> None:
    with pytest.raises(FlexibilityError) as caught:
        parse(deadline="2026-02-03T20:00", power_w="-1", regions="mars", priority="high", speed="9")
    assert {p.field.removeprefix(PREFIX) for p in caught.value.problems} == {
        "deadline",
        "power_w",
        "regions",
        "priority",
        "speed",
    }


@given(st.dictionaries(st.sampled_from([*KEYS, "other"]), st.one_of(st.text(max_size=12), st.floats(), st.none()), max_size=6))
def test_nothing_but_a_flexibility_or_its_problems_comes_out(given: dict[str, Any]) -> None:
    try:
        flex = parse(**given)
    except FlexibilityError as error:
        assert error.problems and all(problem.field.startswith(PREFIX) and problem.remedy for problem in error.problems)
    else:
        assert flex.runtime_s > 0 and flex.power_w >= 0 and (flex.deadline_at is None or flex.deadline_at > NOW)


@pytest.mark.parametrize("when", ["9999-12-31T23:59:59Z", "9999-12-31T23:59:59-12:00", "2027-03-01T00:00Z"])
def test_a_time_beyond_a_year_is_a_slip(when: str) -> None:
    with pytest.raises(FlexibilityError, match="more than 366 days ahead") as caught:
        parse(earliest=when, deadline=when, runtime="1h")
    assert [problem.field for problem in caught.value.problems] == ["gridshift.deadline", "gridshift.earliest"]


@pytest.mark.parametrize("key", ["GRIDSHIFT.deadline", " gridshift.deadline", "gridshift_deadline", "Gridshift.Deadline"])
def test_a_key_that_was_meant_for_gridshift_is_not_passed_over(key: str) -> None:
    with pytest.raises(FlexibilityError, match=r"write gridshift\.deadline"):
        parse_flexibility({key: "6h"}, now=NOW, gpus_requested=None, regions=REGIONS)
    with pytest.raises(FlexibilityError, match=r"begin with 'gridshift\.'"):
        parse_flexibility({"GridShift.hurry": "6h"}, now=NOW, gpus_requested=None, regions=REGIONS)
    assert not parse_flexibility({"gridshifter": "6h"}, now=NOW, gpus_requested=None, regions=REGIONS).flexible
