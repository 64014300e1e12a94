"""The Demand response page's charts: what was drawn against the limits, and how much less could be drawn for how long.

It draws what the control plane answered, in UTC; a gap in what was measured stays a gap.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import altair as alt
import pandas as pd

from ui.events import Place, place_of, place_text, source_text
from ui.words import Json, duration_text, time_of

#: Places with a chart of their own.
MOST_PLACES = 4
#: Hours shown before now; and after it at least, and at most.
BACK_H, AHEAD_H, AHEAD_MOST_H = 4.0, 2.0, 24.0
_HEIGHT, _FLEX_HEIGHT = 190, 230
_DRAWN, _LIMIT, _NOW = "#0072B2", "#d1242f", "#808080"
_KINDS = (("caps_w", "caps", "#0072B2"), ("pauses_w", "pauses besides", "#E69F00"))
_OVER = ("expired", "cancelled", "active")
Span = tuple[datetime, datetime, float, str]


def places(limits: Sequence[Json], events: Sequence[Json], regions: Sequence[Json], now: datetime) -> list[Place]:
    """The places worth a chart: those with limits in force or soon, then those with one lately, then every region."""
    soon = now + timedelta(hours=AHEAD_MOST_H)
    found = [place_of(one) for one in limits if one.get("event_id") and (one.get("holds") or _starts_before(one, soon))]
    found += [place_of(one) for one in limits if one.get("event_id") is None]
    found += [place_of(one) for one in events if one.get("state") in _OVER and _touches(one, now)]
    found += [(str(one["name"]), None) for one in regions]
    known = {str(one["name"]) for one in regions}
    return [one for one in dict.fromkeys(found) if one[0] in known][:MOST_PLACES]


def _starts_before(limit: Json, when: datetime) -> bool:
    start = time_of(limit.get("start"))
    return start is not None and start < when


def _touches(event: Json, now: datetime) -> bool:
    end = time_of(event.get("end"))
    return end is None or end > now - timedelta(hours=BACK_H)


def window(limits: Sequence[Json], place: Place, now: datetime) -> tuple[datetime, datetime]:
    """The time shown: the last hours, and ahead to the end of what is announced, within bounds."""
    soon, end = now + timedelta(hours=AHEAD_MOST_H), now + timedelta(hours=AHEAD_H)
    for one in limits:
        if place_of(one) == place and _starts_before(one, soon):
            until = time_of(one.get("end"))
            end = max(end, min(soon, until + timedelta(minutes=30)) if until is not None else end)
    return now - timedelta(hours=BACK_H), end


def drawn_rows(draw: Json) -> Iterator[dict[str, Any]]:
    """A row for each slot of which the draw is known, kW."""
    start, step_s = time_of(draw.get("start")), draw.get("step_s")
    if start is None or not step_s:
        return
    step = timedelta(seconds=float(step_s))
    for i, watts in enumerate(draw.get("watts") or ()):
        if watts is not None:
            yield {"at": start + i * step, "until": start + (i + 1) * step, "kw": float(watts) / 1e3, "zero": 0.0}


def limit_spans(limits: Sequence[Json], events: Sequence[Json], place: Place, start: datetime, end: datetime) -> list[Span]:
    """The limits over the time shown, kW: those in force or announced, and what past steps had asked for."""
    found: list[Span] = []
    for one in limits:
        if place_of(one) == place and (one.get("way_back") is None):
            found.append((time_of(one.get("start")) or start, time_of(one.get("end")) or end, *_level(one)))
    live = {(one.get("source"), one.get("event_id"), one.get("start")) for one in limits}
    for event in events:
        if event.get("state") not in _OVER or place_of(event) != place or event.get("opted_out"):
            continue
        stopped = time_of(event.get("received_at")) if event.get("state") == "cancelled" else None
        for step in event.get("steps") or ():
            begin, until = time_of(step.get("start")), time_of(step.get("end")) or end
            held = (event.get("source"), event.get("event_id"), step.get("start")) in live
            if begin is not None and step.get("limit_w") is not None and not held:
                until = min(until, stopped) if stopped is not None else until
                found.append((begin, until, *_level({**event, "limit_w": step["limit_w"]})))
    cut = [(max(a, start), min(b, end), kw, what) for a, b, kw, what in found]
    return [one for one in cut if one[0] < one[1]]


def _level(limit: Json) -> tuple[float, str]:
    what = source_text(limit) if limit.get("event_id") else str(limit.get("reason") or "limit")
    return float(limit["limit_w"]) / 1e3, what


def draw_chart(draw: Json, limits: Sequence[Json], events: Sequence[Json], place: Place, now: datetime) -> Any:
    """What a place drew against its limits, and the announced steps; None where nothing of either is known."""
    start, end = window(limits, place, now)
    drawn = [{**row, "at": max(row["at"], start)} for row in drawn_rows(draw) if row["until"] > start and row["at"] < end]
    spans = limit_spans(limits, events, place, start, end)
    if not drawn and not spans:
        return None
    axis = alt.Axis(format="%H:%M", tickCount=10, title="time, UTC", grid=True, labelOverlap=True, labelFlush=True)
    x = alt.X("at:T", scale=alt.Scale(type="utc", domain=[start.isoformat(), end.isoformat()], nice=False), axis=axis)
    y_axis = alt.Axis(title="kW", tickCount=4, grid=True, minExtent=44)
    scale = alt.Scale(zero=True, nice=True)
    when = alt.Tooltip("at:T", title="from (UTC)", format="%-d %b %H:%M:%S", timeUnit="utcyearmonthdatehoursminutesseconds")
    layers: list[Any] = []
    if drawn:
        tips = [when, alt.Tooltip("kw:Q", title="drawn, kW", format=".3f")]
        bars = alt.Chart(_frame(drawn)).mark_rect(color=_DRAWN, opacity=0.6)
        layers.append(bars.encode(x=x, x2="until:T", y=alt.Y("zero:Q", axis=y_axis, scale=scale), y2="kw:Q", tooltip=tips))
    if spans:
        rows = [{"at": a, "until": b, "kw": kw, "what": what} for a, b, kw, what in spans]
        tips = [alt.Tooltip("what:N", title="limit"), when, alt.Tooltip("kw:Q", title="at most, kW", format=".3f")]
        rule = alt.Chart(_frame(rows)).mark_rule(color=_LIMIT, strokeWidth=2.5, strokeDash=[6, 3])
        layers.append(rule.encode(x=x, x2="until:T", y=alt.Y("kw:Q", axis=y_axis, scale=scale), tooltip=tips))
    layers.append(alt.Chart(_frame([{"at": now}])).mark_rule(strokeWidth=1.5, color=_NOW).encode(x=x))
    title = alt.Title(place_text(*place), anchor="start", fontSize=12, fontWeight=600, offset=4)
    chart = alt.layer(*layers, height=_HEIGHT, title=title, padding={"left": 0, "right": 16, "top": 2, "bottom": 2})
    return chart.configure_view(strokeOpacity=0)


def _frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for column in ("at", "until"):
        if column in frame:
            frame[column] = pd.to_datetime(frame[column], utc=True)
    return frame


def flexibility_chart(place: Json) -> Any:
    """How much less a place could draw, by for how long; None where nothing is known, or nothing could be given."""
    sheds: Sequence[Json] = place.get("sheds") or ()
    rows = [
        {"for": duration_text(one["for_s"]), "kind": title, "kw": float(one[key]) / 1e3, "order": i}
        for one in sheds
        for i, (key, title, _) in enumerate(_KINDS)
        if one.get(key) is not None
    ]
    if not any(float(one.get(key) or 0.0) > 0 for one in sheds for key, _, _ in _KINDS):
        return None
    titles, colours = [title for _, title, _ in _KINDS], [colour for _, _, colour in _KINDS]
    tips = [alt.Tooltip("for:N", title="for"), alt.Tooltip("kind:N", title="by"), alt.Tooltip("kw:Q", title="kW", format=".3f")]
    return (
        alt.Chart(pd.DataFrame(rows), height=_FLEX_HEIGHT, padding={"left": 0, "right": 8, "top": 2, "bottom": 2})
        .mark_bar(opacity=0.8, size=26)
        .encode(
            x=alt.X("for:O", sort=[duration_text(one["for_s"]) for one in sheds], axis=alt.Axis(title="for", labelAngle=0)),
            y=alt.Y("kw:Q", axis=alt.Axis(title="kW less", tickCount=4)),
            color=alt.Color(
                "kind:N", scale=alt.Scale(domain=titles, range=colours), legend=alt.Legend(title=None, orient="top")
            ),
            order="order:Q",
            tooltip=tips,
        )
        .configure_view(strokeOpacity=0)
    )
