"""How one VEN stands, for the API, the console and alarms. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.model import iso

#: So many polls in a row must fail before somebody is told, and before a schedule that has run out gets its fallback.
FAILURES_TO_TELL = 3
#: A clock offset from here on is worth a word, seconds; the source's ``max_skew_s`` says what is too much.
SKEW_TOLD_S = 2.0


@dataclass(frozen=True, slots=True)
class VenState:
    """How one VEN stands. ``problem`` is why the last poll was not good (None: it was); ``offset_s`` how far the VTN's clock is
    ahead of ours; ``subscription`` "none", "there" or what is wrong with it; ``notes`` what the last good poll found odd."""

    source: str
    protocol: str
    url: str
    polled_at: datetime | None
    good_at: datetime | None
    failures: int
    problem: str | None
    offset_s: float | None
    events: int
    programs: tuple[str, ...]
    ven_id: str | None
    subscription: str
    callback_at: datetime | None
    reports_waiting: int
    reports_sent: int
    report_problem: str | None
    fallback_since: datetime | None
    notes: tuple[str, ...]


def alarms_of(
    state: VenState, source: EventSourceConfig, started_at: datetime, now: datetime
) -> Iterator[tuple[str, str | None, str]]:
    """(key, region, sentence) of what an operator must know."""
    name, region = source.name, source.region
    silent_s = (now - (state.good_at or started_at)).total_seconds()
    # By its age too: a poll that hangs does not count up.
    if state.failures >= FAILURES_TO_TELL or silent_s > 2 * FAILURES_TO_TELL * source.poll_every_s + 60:
        since = f"since {state.good_at:%Y-%m-%d %H:%M:%S}Z" if state.good_at else "since the start"
        why = f": {state.problem}" if state.problem else ""
        yield f"vtn {name}", region, f"{name}: no good poll {since}; what is held stays in force{why}"
    if state.offset_s is not None and abs(state.offset_s) > SKEW_TOLD_S:
        word = "ahead of" if state.offset_s > 0 else "behind"
        yield f"vtn clock {name}", region, f"{name}: the VTN's clock is {abs(state.offset_s):.0f} s {word} ours"
    if state.fallback_since is not None:
        told = f"{name}: the VTN is silent; its subscribed capacity is the limit since {iso(state.fallback_since)}"
        yield f"vtn fallback {name}", region, told
    if source.callback_url and state.good_at is not None and state.subscription != "there":
        yield f"vtn callback {name}", region, f"{name}: no subscription, so only polling: {state.subscription}"
    if state.report_problem is not None:
        yield f"vtn report {name}", region, f"{name}: {state.report_problem}"
    for note in state.notes[:3]:
        yield f"vtn note {name} {note[:80]}", region, f"{name}: {note}"
