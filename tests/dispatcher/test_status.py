"""What an operator is told: one alarm a trouble, as old as the trouble."""

from datetime import UTC, datetime, timedelta

from dispatcher import status
from dispatcher.api.services import AlarmStatus
from dispatcher.clock import VirtualClock
from dispatcher.loops import Loop

NOW = datetime(2026, 3, 2, tzinfo=UTC)
BEFORE = NOW - timedelta(minutes=5)


def test_what_is_expected_and_what_is_measured_of_one_limit_is_one_alarm() -> None:
    expected = AlarmStatus("limit north", "north", "by what its jobs are expected to draw north is 0.288 kW above", NOW)
    measured = AlarmStatus("limit north", "north", "as measured north is 0.423 kW above", NOW)
    other = AlarmStatus("late", None, "1 cannot end in time", NOW)
    told = status.by_key(
        [expected, measured, other, measured], {"limit north": AlarmStatus("limit north", "north", "old", BEFORE)}
    )
    assert list(told) == ["limit north", "late"]
    assert told["limit north"] == AlarmStatus("limit north", "north", f"{expected.sentence}; {measured.sentence}", BEFORE)
    assert told["late"] == other


def test_a_loop_that_fails_is_an_alarm_since_it_does_and_what_that_means_is_said() -> None:
    broken = [True]

    def run(now: datetime) -> None:
        if broken[0]:
            raise OverflowError("date value out of range")

    clock, loop = VirtualClock(BEFORE), Loop("control", 1.0, run)
    loop.once(clock)
    clock.move_to(NOW)
    loop.once(clock)
    (alarm,) = status.failing([loop])
    assert (alarm.key, alarm.since) == ("loop control", BEFORE)
    assert "no new limit comes into force: OverflowError: date value out of range" in alarm.sentence
    broken[0] = False
    loop.once(clock)
    assert status.failing([loop]) == []
