"""The Demand response page's parts on what is asked: what limits power now, and what is coming.

Each turns answers of the control plane into HTML; it asks nobody anything. What is unknown is called unknown, and what is
simulated or replayed is called so wherever it stands.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape

from ui.fleet import SIMULATED
from ui.words import (
    UNKNOWN,
    Json,
    away_text,
    bar,
    box,
    clock_text,
    duration_text,
    number_text,
    power_text,
    table,
    time_of,
)

#: A region, and a branch of it or None for the whole site.
Place = tuple[str, str | None]
#: How the draw is known, by the control plane's word for it.
_SURE = {
    "measured": "measured by the {what} meter",
    "estimated": "estimated from the GPUs' own sensors",
    "simulated": f"{SIMULATED} GPUs: no real power",
    "modelled": "modelled from what jobs are expected to draw, not measured",
}
#: A measurement older than this is told with its age, seconds.
_OLD_S = 60.0
#: Rows shown at most of what is coming.
MOST_COMING = 20


def place_text(region: object, branch: object) -> str:
    """A region, or a branch of it."""
    return " / ".join(str(part) for part in (region, branch) if part)


def place_of(one: Json) -> Place:
    """Where a limit, an event or a draw is."""
    return str(one.get("region")), one.get("branch") or None


def countdown(until: datetime | None, now: datetime) -> str:
    """The time left, to the second in the last hour; empty for no end."""
    if until is None:
        return ""
    left = max(0, round((until - now).total_seconds()))
    return f"{left // 60}:{left % 60:02d} min" if left < 3600 else duration_text(left)


def source_text(one: Json) -> str:
    """Who asked for it."""
    who = "this control plane's own API" if one.get("source") == "api" else str(one.get("source"))
    return f"{who}, event {one.get('event_id')}"


# --- what binds now -------------------------------------------------------------------------------------------------


def binding(
    limits: Sequence[Json], power: Mapping[Place, Json], now: datetime, replay: bool = False, alarmed: Iterable[str] = ()
) -> str:
    """A box for each place with a limit in force, those that are over it first. ``alarmed`` are the keys of the alarms
    that stand: where one is of a place's limit, its box is not green."""
    places = {place_of(one) for one in limits if one.get("holds")}
    if not places:
        return box("fine", "<b>Nothing limits power now.</b>") + _returning(limits, now)
    shown = sorted(places, key=lambda place: _urgency(limits, power.get(place), place))
    keys = set(alarmed)
    boxes = [_bound(limits, power.get(place), place, now, replay, _alarm_key(place) in keys) for place in shown]
    return "".join(boxes) + _returning(limits, now)


def _in_force(limits: Sequence[Json], place: Place) -> list[Json]:
    """The limits that hold at a place, the lowest first; of two alike the one that ends last."""
    held = [one for one in limits if one.get("holds") and place_of(one) == place]
    return sorted(held, key=lambda one: (float(one["limit_w"]), one.get("start") is None, one.get("end") is not None))


def _room_w(limits: Sequence[Json], power: Json | None, place: Place) -> float | None:
    drawn = None if power is None else power.get("power_w")
    return None if drawn is None else float(_in_force(limits, place)[0]["limit_w"]) - float(drawn)


def _urgency(limits: Sequence[Json], power: Json | None, place: Place) -> tuple[int, float, str, str]:
    """Over a limit, then under an event with an unknown draw, then under an event, then under limits that always hold."""
    room_w = _room_w(limits, power, place)
    called = any(one.get("event_id") for one in _in_force(limits, place))
    rank = 0 if room_w is not None and room_w < 0 else (1 if called else 3) + (room_w is not None)
    return rank, room_w or 0.0, place[0], place[1] or ""


def _alarm_key(place: Place) -> str:
    return " ".join(("limit", *(part for part in place if part)))


def _bound(limits: Sequence[Json], power: Json | None, place: Place, now: datetime, replay: bool, alarmed: bool) -> str:
    held = _in_force(limits, place)
    lowest, room_w = held[0], _room_w(limits, power, place)
    limit_w, drawn = float(lowest["limit_w"]), None if power is None else power.get("power_w")
    until, due = time_of(lowest.get("end")), _due(lowest)
    early = _early(lowest, power)
    over = room_w is not None and room_w < 0
    if room_w is None:
        verdict, kind = f"<b>draw {UNKNOWN}: whether it is kept is not known</b>", "warn"
    elif over and now < due:
        verdict, kind = f"<b>{power_text(-room_w)} to go</b> by {clock_text(due, now)} UTC (its ramp)", "warn"
    elif over:
        verdict = f'<span class="gs-red">{power_text(-room_w)} OVER</span>' + (f" {early}" if early else "")
        kind = "warn" if early else "alarm"
    else:
        verdict, kind = f"<b>{power_text(room_w)}</b> of room" + (f" {early}" if early else ""), "fine"
    if alarmed and kind == "fine":
        verdict, kind = f"{verdict}; an alarm below says it may not be kept", "warn"
    head = f'<b>{escape(place_text(*place))}</b><span class="gs-now">{power_text(drawn)} of {power_text(limit_w)}</span>'
    lines = [f'<div class="gs-head">{head}<span>{verdict}</span></div>']
    lines.append(bar(None if drawn is None or limit_w <= 0 else float(drawn) / limit_w, over))
    lines.append(f"<div>{_until(lowest, until, now)} · {_who(lowest)}</div>")
    lines.append(f"<div>How sure: {_sure(power, place, now, replay)}</div>")
    lines += [f'<div class="gs-dim">{one}</div>' for one in _besides(limits, held, place, now)]
    return box(kind, "".join(lines), "alert" if kind == "alarm" else "status")


def _due(limit: Json) -> datetime:
    """From when a limit has to be kept: its start, and its ramp after it."""
    start = time_of(limit.get("start"))
    if start is None:
        return datetime.fromisoformat("0001-01-02T00:00:00Z")  # it always holds
    return start + timedelta(seconds=float(limit.get("ramp_s") or 0.0))


def _early(limit: Json, power: Json | None) -> str:
    """That what was measured is of a time before the limit began; it says nothing of whether it is kept."""
    end, start = time_of((power or {}).get("end")), time_of(limit.get("start"))
    return "(measured before it began)" if end is not None and start is not None and end <= start else ""


def _until(limit: Json, until: datetime | None, now: datetime) -> str:
    if limit.get("event_id") is None:
        return "always"
    if until is None:
        return "<b>until it is released</b>: it has no end"
    return f"until {clock_text(until, now)} UTC · <b>{countdown(until, now)} left</b>"


def _who(limit: Json) -> str:
    if limit.get("event_id") is None:
        return escape(f"{limit.get('reason') or 'limit'} of the configuration")
    reason = f" ({limit['reason']})" if limit.get("reason") else ""
    return f'from <span class="gs-id">{escape(source_text(limit) + reason)}</span>'


def _sure(power: Json | None, place: Place, now: datetime, replay: bool) -> str:
    """How the draw is known, and of when."""
    if power is None or power.get("power_w") is None:
        why = escape(str((power or {}).get("reason") or "the control plane tells of no draw here"))
        return f'<span class="gs-red">{UNKNOWN}</span>: {why}'
    told = _SURE.get(str(power.get("quality")), escape(str(power.get("quality") or UNKNOWN)))
    told = told.format(what="site's" if place[1] is None else "branch's")
    if replay:
        return f"{told}; time is replayed, so no meter can be asked"
    start, end = time_of(power.get("start")), time_of(power.get("end"))
    if end is not None and start is not None:
        age = f", {away_text(end, now)}" if (now - end).total_seconds() > _OLD_S else ""
        told += f", mean of {start:%H:%M:%S} to {end:%H:%M:%S} UTC{age}"
    reason = power.get("reason")
    return told + (f" ({escape(str(reason))})" if reason else "")


def _besides(limits: Sequence[Json], held: Sequence[Json], place: Place, now: datetime) -> list[str]:
    """The other limits in force there, and the next one to come."""
    others = [f"also at most {power_text(one['limit_w'])}: {_until_plain(one, now)}, {_who(one)}" for one in held[1:4]]
    others += [f"and {len(held) - 4} more limits"] if len(held) > 4 else []
    ahead = [(at, one) for one in limits if place_of(one) == place and (at := time_of(one.get("start"))) and at > now]
    if ahead:
        at, following = min(ahead, key=lambda one: one[0])
        told = f"next: {power_text(following['limit_w'])} from {clock_text(at, now)} UTC, in {countdown(at, now)}"
        others.append(f"{told}, {_who(following)}")
    return others


def _until_plain(limit: Json, now: datetime) -> str:
    until = time_of(limit.get("end"))
    if limit.get("event_id") is None:
        return "always"
    return "until released" if until is None else f"until {clock_text(until, now)} UTC"


def _returning(limits: Sequence[Json], now: datetime) -> str:
    """Where load comes back slowly from a limit that is over."""
    told = [
        f"{place_text(one.get('region'), one.get('branch'))}: {float(one['way_back']):.0%} of the way back from "
        f"{power_text(one['limit_w'])} ({source_text(one)}, over since {clock_text(one.get('end'), now)} UTC)"
        for one in limits
        if one.get("way_back") is not None
    ]
    return box("warn", "<b>Load comes back slowly.</b> " + escape("; ".join(told))) if told else ""


def not_binding(events: Sequence[Json], limits: Sequence[Json]) -> str:
    """Events that are active and limit nothing, and why."""
    bound = {(one.get("source"), one.get("event_id")) for one in limits if one.get("holds")}
    told = []
    for event in events:
        if event.get("state") != "active" or (event.get("source"), event.get("event_id")) in bound:
            continue
        why = f"opted out: {event['opted_out']}" if event.get("opted_out") else ""
        why = why or ("it limits no power" if event.get("limit_w") is None else "")
        why = why or ("a test, which is recorded only" if event.get("test") else "another limit or step takes its place now")
        where = place_text(event.get("region"), event.get("branch"))
        told.append(f"<b>{escape(where)}</b>: {escape(source_text(event))} is active and does not bind ({escape(why)})")
    return box("warn", "<br>".join(told)) if told else ""


# --- what is coming -------------------------------------------------------------------------------------------------


def coming(events: Sequence[Json], now: datetime, most: int = MOST_COMING) -> str:
    """Events that are announced, the next one first, with what each would bring or cost where a programme says so."""
    ahead = sorted((one for one in events if one.get("state") == "scheduled"), key=lambda one: str(one.get("start")))
    live = [one for one in events if one.get("state") == "active" and one.get("programme")]
    rows = [_announced(one, now) for one in [*live, *ahead][:most]]
    if not rows:
        return '<div class="gs gs-dim">Nothing is announced.</div>'
    left_out = len(live) + len(ahead) - len(rows)
    more = f'<div class="gs gs-dim">and {left_out:,} more</div>' if left_out > 0 else ""
    head = [
        ("Starts", "gs-keep"),
        ("UTC", "gs-when"),
        ("Where and how much", "gs-broad"),
        ("From", "gs-broad"),
        ("Worth", "gs-broad"),
    ]
    return table(head, rows, stacks=True) + more


def _announced(event: Json, now: datetime) -> Sequence[str]:
    start, end = time_of(event.get("start")), time_of(event.get("end"))
    received = time_of(event.get("received_at"))
    starts = f"in <b>{countdown(start, now)}</b>" if event.get("state") == "scheduled" else "active"
    notice = "notice " + (duration_text((start - received).total_seconds()) if start and received else UNKNOWN)
    notice = "no notice" if start is not None and received is not None and start <= received else notice
    marks = [word for word, so in (("test", event.get("test")), ("opted out", event.get("opted_out"))) if so]
    said = " · ".join(str(one) for one in (event.get("reason"), *marks) if one)
    finish = clock_text(end, now) if end is not None else "released"
    return (
        f"{starts}<small>{escape(notice)}</small>",
        f"{clock_text(start, now)} to <br>{finish}",
        f"<b>{escape(place_text(event.get('region'), event.get('branch')))}</b> {_steps(event, now)}",
        f'<span class="gs-id">{escape(source_text(event))}</span><small class="gs-id">{escape(said)}</small>',
        _worth(event.get("programme")),
    )


def _steps(event: Json, now: datetime) -> str:
    steps: Sequence[Json] = event.get("steps") or ()
    if event.get("limit_w") is None:
        return "no limit on power"
    if len(steps) < 2:
        return f"to {power_text(event.get('limit_w'))}"
    told = [f"{power_text(one.get('limit_w'))} from {clock_text(one.get('start'), now)}" for one in steps[:4]]
    told += [f"and {len(steps) - 4} more steps"] if len(steps) > 4 else []
    return f"to {power_text(event.get('limit_w'))} at its lowest<small>{escape('; '.join(told))}</small>"


def _worth(worth: Json | None) -> str:
    """What keeping to it brings and costs, as its programme says."""
    if worth is None:
        return f'<span class="gs-dim">{UNKNOWN}: no programme names its source</span>'
    money = str(worth.get("currency") or "")
    sums = [
        (f"{what} {number_text(worth.get(key), money)}")
        for what, key in (("if met", "if_met"), ("if nothing is delivered", "if_nothing"), ("if opted out", "if_opted_out"))
    ]
    cost = number_text(worth.get("jobs_cost_at_most"), str(worth.get("jobs_currency") or ""))
    sums.append(f"jobs' lateness at most {cost}")
    told = f"<b>{escape(str(worth.get('programme')))}</b>: {escape(', '.join(sums))}"
    reasons = [str(one) for one in worth.get("reasons") or ()]
    told += f"<small>{escape('; '.join(reasons))}</small>" if reasons else ""
    breaches = [str(one) for one in worth.get("breaches") or ()]
    return told + (f"<small><b>outside the terms:</b> {escape('; '.join(breaches))}</small>" if breaches else "")
