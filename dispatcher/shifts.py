"""Scheduled shifts: crontab rules turned into windows of time, with time zones and their changes of clocks.

Pure but for the time zone tables; knows nothing of jobs or of whether a region is there.
"""

import calendar
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from apscheduler.triggers.cron import CronTrigger

from policies.world import ShiftWindow

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.config_sections import ShiftConfig

_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


def crontab_trigger(cron: str, timezone: str) -> CronTrigger:
    """A five-field crontab line as a trigger. Raises ValueError for what is not one.

    APScheduler counts days of the week from Monday, crontab from Sunday: numbers are turned into names first. Where both a
    day of the month and a day of the week are given, both must match.
    """
    fields = cron.split()
    if len(fields) != 5:
        raise ValueError("must be five crontab fields, such as '0 22 * * *' or '0 22 * * mon-fri'")
    if _never(fields[2], fields[3]):
        raise ValueError(f"no year has day {fields[2]} in month {fields[3]}, so this never begins")
    fields[4] = ",".join(_named_days(part) for part in fields[4].split(","))
    try:
        return CronTrigger.from_crontab(" ".join(fields), timezone=ZoneInfo(timezone))
    except (ValueError, TypeError) as error:
        raise ValueError(f"not a crontab line: {error}; such as '0 22 * * *' or '0 22 * * mon-fri'") from error


def _never(day: str, month: str) -> bool:
    """Whether a single day of a single month is one that no year has, such as 30 February."""
    if not (day.isdigit() and month.isdigit() and 1 <= int(month) <= 12):
        return False
    return int(day) > calendar.monthrange(2024, int(month))[1]  # a leap year


def _named_days(part: str) -> str:
    match = re.fullmatch(r"(\d)(?:-(\d))?(?:/(\d+))?", part)
    if not match:
        return part
    first, last, step = int(match[1]), int(match[2] or (6 if match[3] else match[1])), int(match[3] or 1)
    if first > 7 or last > 7 or last < first or step < 1:
        raise ValueError(f"day of the week {part!r}: must lie in 0-7 (0 and 7 are Sunday)")
    return ",".join(_DAYS[day % 7] for day in range(first, last + 1, step))


def shift_windows(config: "Config", start: datetime, end: datetime) -> tuple[ShiftWindow, ...]:
    """Every occurrence of the ``[[shift]]`` rules that overlaps ``[start, end)``, in order of time.

    A window begins when the wall clock of its time zone shows the cron time and lasts ``duration`` of elapsed time, so a
    night in which clocks change ends an hour earlier or later on the wall.
    """
    windows = []
    for shift in config.shifts:
        length = timedelta(seconds=shift.duration_s)
        # An hour more, so that the first of two equal wall times is always seen.
        for begin in _firings(shift, start - length - timedelta(hours=1), end):
            if begin + length > start:
                windows.append(ShiftWindow(shift.name, shift.source, shift.target, begin, begin + length))
    return tuple(sorted(windows, key=lambda window: (window.start, window.name)))


def _firings(shift: "ShiftConfig", start: datetime, end: datetime) -> Iterator[datetime]:
    trigger = crontab_trigger(shift.cron, shift.timezone)
    every_hour = shift.cron.split()[1].startswith("*")
    after, last_wall = start, None
    while (fire := trigger.get_next_fire_time(None, after)) is not None and fire.astimezone(UTC) < end:
        # When clocks go back, a wall time comes twice; as with cron, only rules for every hour begin twice.
        if every_hour or fire.replace(tzinfo=None) != last_wall:
            yield fire.astimezone(UTC)
        last_wall = fire.replace(tzinfo=None, fold=0)
        after = fire.astimezone(UTC) + timedelta(seconds=1)
