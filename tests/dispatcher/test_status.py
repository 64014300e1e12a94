"""What an operator is told: one alarm a trouble, as old as the trouble."""

from datetime import UTC, datetime, timedelta

from dispatcher import status
from dispatcher.api.services import AlarmStatus

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
