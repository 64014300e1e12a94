"""How powers are written."""

import pytest

from policies.sentences import counted, kw


@pytest.mark.parametrize(
    ("watts", "told", "exact"),
    [
        (None, "unknown", "unknown"),
        (0.0, "0 W", "0 W"),
        (-0.0001, "0 W", "0 W"),
        (0.04, "0.04 W", "0.04 W"),
        (37.26, "37.3 W", "37.26 W"),
        (-640.4, "-640 W", "-640.4 W"),
        (1420.0, "1,420 W", "1,420 W"),
        (9999.4, "9,999 W", "9,999.4 W"),
        (10_000.0, "10 kW", "10 kW"),
        (62_256.0, "62.3 kW", "62.256 kW"),
        (-1_234_567.0, "-1,234.6 kW", "-1,234.567 kW"),
    ],
)
def test_a_small_sites_power_is_told_in_watts_and_what_was_stated_to_the_digit(
    watts: float | None, told: str, exact: str
) -> None:
    assert (kw(watts), kw(watts, exact=True)) == (told, exact)


def test_one_of_a_thing_is_told_as_one() -> None:
    told = [counted(1, "GPU"), counted(1.0, "API token"), counted(0, "job"), counted(2.0, "GPU"), counted(0.5, "GPU")]
    assert told == ["1 GPU", "1 API token", "0 jobs", "2 GPUs", "0.5 GPUs"]
    assert counted(1, "job waits", "jobs wait") == "1 job waits" and counted(3, "job waits", "jobs wait") == "3 jobs wait"
    assert counted(1_234_567, "job") == "1234567 jobs"
