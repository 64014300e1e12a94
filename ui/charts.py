"""The plan against price and carbon, as one picture over a shared time axis.

It turns answers of the control plane into rows and rows into a chart; it knows no HTTP. Signals of different units (another
currency, another kind of carbon) get panes of their own, since they do not compare; gaps stay gaps.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import altair as alt
import pandas as pd

from ui.words import Json, time_of

#: Dashes beside colours, so that lines can be told apart without them.
DASHES = ([1, 0], [7, 3], [2, 2], [10, 3, 2, 3], [14, 4], [4, 4])
#: Regions whose load gets a pane of its own; more would leave none readable.
MAX_LOAD_PANES = 6
#: Shortest time ahead that is shown.
MIN_SPAN = timedelta(hours=12)
#: Room for the last time label.
_PADDING = {"left": 0, "right": 16, "top": 2, "bottom": 2}
#: Heights in pixels, titles included; the last pane is higher by its time axis.
_LOAD_HEIGHT, _SIGNAL_HEIGHT, _AXIS_HEIGHT = 82, 108, 38


@dataclass(frozen=True)
class Picture:
    """What is drawn: the time shown, and a frame for each pane. ``loads`` and ``limits`` are kW by region; ``bands`` are the
    10 to 90 % quantiles of what is forecast in ``signals``. ``draws`` is what a region's running jobs are expected to draw now,
    kW at the meter."""

    start: datetime
    end: datetime
    now: datetime
    loads: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    draws: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    limits: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    signals: Mapping[tuple[str, str], pd.DataFrame] = field(default_factory=dict)
    bands: Mapping[tuple[str, str], pd.DataFrame] = field(default_factory=dict)
    left_out: int = 0


def load_steps(plan: Json) -> dict[str, list[tuple[datetime, float]]]:
    """Planned mean draw by region, kW, as steps: each value holds from its time to the next one's. A placement's power is its
    energy over its hours."""
    changes: dict[str, dict[datetime, float]] = {}
    for placement in plan.get("placements") or ():
        spans = [
            (s, e) for s, e in ((time_of(a), time_of(b)) for a, b in placement["intervals"]) if s is not None and e is not None
        ]
        hours = sum((e - s).total_seconds() for s, e in spans) / 3600.0
        if hours <= 0 or placement.get("energy_kwh") is None:
            continue
        kilowatts = float(placement["energy_kwh"]) / hours
        region = changes.setdefault(str(placement["region"]), {})
        for start, end in spans:
            region[start] = region.get(start, 0.0) + kilowatts
            region[end] = region.get(end, 0.0) - kilowatts
    steps: dict[str, list[tuple[datetime, float]]] = {}
    for name, by_time in changes.items():
        level = 0.0
        for at in sorted(by_time):
            level += by_time[at]
            steps.setdefault(name, []).append((at, max(0.0, round(level, 6))))
    return steps


def signal_rows(answer: Json) -> Iterator[dict[str, Any]]:
    """A row for each slot of a signal; an unknown slot has no value, and draws nothing."""
    start, slot = time_of(answer.get("start")), timedelta(seconds=float(answer["slot_s"]))
    if start is None:
        return
    bases: Sequence[str] = answer.get("basis") or ()
    low: Sequence[float | None] = answer.get("low") or ()
    high: Sequence[float | None] = answer.get("high") or ()
    for i, value in enumerate(answer["values"]):
        yield {
            "at": start + i * slot,
            "until": start + (i + 1) * slot,
            "region": str(answer["region"]),
            "value": value,
            "low": low[i] if i < len(low) else None,
            "high": high[i] if i < len(high) else None,
            "basis": bases[i] if i < len(bases) else "",
            "source": str(answer.get("source") or ""),
        }


def picture(
    plan: Json | None,
    signals: Sequence[Json],
    events: Sequence[Json],
    regions: Sequence[Json],
    now: datetime,
) -> Picture:
    """Everything to be drawn, from now (or the plan's start) to the end of what is planned or known."""
    steps = load_steps(plan) if plan is not None else {}
    start = min([now, *(at for s in steps.values() for at, _ in s[:1] if now - at < timedelta(hours=6))])
    known = [time_of(s.get("start")) for s in signals]
    ends = [k + timedelta(seconds=float(s["slot_s"]) * len(s["values"])) for k, s in zip(known, signals, strict=True) if k]
    planned = [s[-1][0] for s in steps.values()]
    horizon = max([*ends, *planned], default=now + MIN_SPAN)
    end = max(now + MIN_SPAN, min(horizon, max([now + 2 * MIN_SPAN, *(p + timedelta(hours=1) for p in planned)])))

    loads, limits = {}, {}
    for region in regions:
        name = str(region["name"])
        bounds = _limits(region, [e for e in events if e.get("region") == name], start, end)
        if steps.get(name) or len(bounds):
            loads[name] = _load_frame(name, steps.get(name, []), start, end)
            limits[name] = bounds
    shown = list(loads)[:MAX_LOAD_PANES]

    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for signal in signals:
        pane = rows.setdefault((str(signal["kind"]), str(signal["unit"])), [])
        pane += [r for r in signal_rows(signal) if r["until"] > start and r["at"] < end]
    frames = {key: _frame(_closed(pane, start, end)) for key, pane in rows.items() if any(r["value"] is not None for r in pane)}
    bands = {key: _frame(found) for key in frames if (found := _bands(rows[key], start, end))}
    draws = {str(region["name"]): float(region["draw_w"]) / 1e3 for region in regions if region.get("draw_w")}
    some, their_limits = {n: loads[n] for n in shown}, {n: limits[n] for n in shown}
    return Picture(start, end, now, some, their_limits, frames, bands, len(loads) - len(shown), draws=draws)


def _closed(rows: list[dict[str, Any]], start: datetime, end: datetime) -> list[dict[str, Any]]:
    """The rows cut to the time shown, with each region's last step drawn to its end."""
    cut = [{**r, "at": max(r["at"], start), "until": min(r["until"], end)} for r in rows]
    last = {r["region"]: r for r in cut}
    return cut + [{**r, "at": r["until"]} for r in last.values()]


def _bands(rows: list[dict[str, Any]], start: datetime, end: datetime) -> list[dict[str, Any]]:
    """The quantiles of the rows that have them, cut to the time shown. Rows without a break between them are one ``run``, which
    is drawn to its end; a break stays a break."""
    out: list[dict[str, Any]] = []
    open_at: dict[str, dict[str, Any]] = {}  # each region's last row, as long as its run may go on
    runs: dict[str, int] = {}
    for row in rows:
        name = row["region"]
        if row["low"] is None or row["high"] is None:
            continue
        last = open_at.get(name)
        cut = {key: row[key] for key in ("region", "low", "high")}
        cut |= {"at": max(row["at"], start), "until": min(row["until"], end)}
        if last is None or last["until"] != cut["at"]:
            runs[name] = runs.get(name, 0) + 1
            out += [{**last, "at": last["until"]}] if last is not None else []
        cut["run"] = f"{name} {runs[name]}"
        out.append(cut)
        open_at[name] = cut
    return out + [{**last, "at": last["until"]} for last in open_at.values()]


def _load_frame(name: str, steps: list[tuple[datetime, float]], start: datetime, end: datetime) -> pd.DataFrame:
    before = [kw for at, kw in steps if at <= start]
    inside = [(at, kw) for at, kw in steps if start < at < end]
    points = [(start, before[-1] if before else 0.0), *inside]
    points.append((end, points[-1][1]))
    return _frame([{"at": at, "region": name, "kw": kw} for at, kw in points])


def _limits(region: Json, events: Sequence[Json], start: datetime, end: datetime) -> pd.DataFrame:
    spans: list[tuple[datetime, datetime, float, str]] = []
    if region.get("power_limit_w"):
        spans.append((start, end, float(region["power_limit_w"]) / 1e3, "site limit"))
    for event in events:
        if event.get("state") not in ("active", "scheduled") or event.get("branch") or event.get("opted_out"):
            continue
        for step in event.get("steps") or (event,):
            begin, until = time_of(step.get("start")), time_of(step.get("end")) or end
            if begin is not None and until > start and begin < end and step.get("limit_w") is not None:
                what = f"budget {event.get('event_id')}"
                spans.append((max(begin, start), min(until, end), float(step["limit_w"]) / 1e3, what))
    return _frame([{"at": s, "until": e, "kw": kw, "what": what} for s, e, kw, what in spans])


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for column in ("at", "until"):
        if column in frame:
            frame[column] = pd.to_datetime(frame[column], utc=True)
    for column in ("value", "low", "high"):
        if column in frame:
            frame[column] = pd.to_numeric(frame[column])
    return frame


# --- drawing --------------------------------------------------------------------------------------------------------


def draw(shown: Picture, colours: Mapping[str, str]) -> list[tuple[str, Any]]:
    """(key, chart) for each pane, to be stacked without gaps: planned load by region, then each signal. The panes share their
    time axis, in UTC, which is written under the last."""
    panes = [
        (f"load {name}", _load_title(name, shown.draws.get(name)), _LOAD_HEIGHT, _load_layers(shown, name, colours[name]))
        for name in shown.loads
    ]
    panes += [
        (
            f"{kind} {unit}",
            kind.replace("_", " "),
            _SIGNAL_HEIGHT,
            _signal_layers(unit, frame, shown.bands.get((kind, unit)), colours),
        )
        for (kind, unit), frame in shown.signals.items()
    ]
    return [
        (key, _pane(shown, title, height, layers, last=i == len(panes) - 1))
        for i, (key, title, height, layers) in enumerate(panes)
    ]


def _load_title(name: str, draw_kw: float | None) -> str:
    """What the pane shows, and what it does not: jobs that run and that no plan can move are in no plan."""
    now = (
        f" (its running jobs are expected to draw {draw_kw:.2f} kW now; those that cannot be moved are not in it)"
        if draw_kw
        else ""
    )
    return f"{name}: planned load{now}"


def _x(shown: Picture, last: bool) -> alt.X:
    hours = (shown.end - shown.start).total_seconds() / 3600.0
    text = "%H:%M" if hours <= 30 else "%-d %b %H:%M"
    axis = alt.Axis(
        format=text,
        tickCount=12,
        labels=last,
        title="time, UTC" if last else None,
        grid=True,
        labelOverlap=True,
        labelFlush=True,
    )
    domain = [shown.start.isoformat(), shown.end.isoformat()]
    return alt.X("at:T", scale=alt.Scale(type="utc", domain=domain, nice=False), axis=axis)


def _y(name: str, title: str, zero: bool) -> alt.Y:
    axis = alt.Axis(title=title, tickCount=4, minExtent=54, maxExtent=54, titlePadding=6, grid=True)
    return alt.Y(name, scale=alt.Scale(zero=zero, nice=True), axis=axis)


def _load_layers(shown: Picture, name: str, colour: str) -> list[Any]:
    when = alt.Tooltip("at:T", title="from (UTC)", format="%-d %b %H:%M", timeUnit="utcyearmonthdatehoursminutes")
    load = (
        alt.Chart(shown.loads[name])
        .mark_area(interpolate="step-after", color=colour, opacity=0.55, line={"color": colour, "strokeWidth": 1.5})
        .encode(y=_y("kw:Q", "kW", True), tooltip=[when, alt.Tooltip("kw:Q", title="planned, kW", format=".2f")])
    )
    layers: list[Any] = [load]
    if len(shown.limits[name]):
        limit = alt.Chart(shown.limits[name]).mark_rule(color="#d1242f", strokeWidth=2, strokeDash=[6, 3])
        tips = [alt.Tooltip("what:N", title="limit"), alt.Tooltip("kw:Q", title="kW", format=".2f")]
        layers.append(limit.encode(x2="until:T", y="kw:Q", tooltip=tips))
    return layers


def _signal_layers(unit: str, frame: pd.DataFrame, band: pd.DataFrame | None, colours: Mapping[str, str]) -> list[Any]:
    """A line a region, and behind what is forecast the band in which 8 of 10 values should lie."""
    names = [name for name in colours if name in set(frame["region"])]
    dash = {name: DASHES[i % len(DASHES)] for i, name in enumerate(colours)}
    colour = alt.Color("region:N", legend=None, scale=alt.Scale(domain=names, range=[colours[n] for n in names]))
    when = alt.Tooltip("at:T", title="from (UTC)", format="%-d %b %H:%M", timeUnit="utcyearmonthdatehoursminutes")
    line = (
        alt.Chart(frame)
        .mark_line(interpolate="step-after", strokeWidth=2, clip=True)
        .encode(
            y=_y("value:Q", unit, False),
            color=colour,
            strokeDash=alt.StrokeDash("region:N", legend=None, scale=alt.Scale(domain=names, range=[dash[n] for n in names])),
            tooltip=[
                "region:N",
                when,
                alt.Tooltip("value:Q", title=unit, format=".1f"),
                alt.Tooltip("low:Q", title="10 %", format=".1f"),
                alt.Tooltip("high:Q", title="90 %", format=".1f"),
                "basis:N",
                "source:N",
            ],
        )
    )
    if band is None:
        return [line]
    area = alt.Chart(band).mark_area(interpolate="step-after", opacity=0.2, clip=True)
    return [line, area.encode(y=_y("low:Q", unit, False), y2="high:Q", color=colour, detail="run:N")]


def _pane(shown: Picture, title: str, height: int, layers: list[Any], *, last: bool) -> Any:
    rule = alt.Chart(_frame([{"at": shown.now}])).mark_rule(strokeWidth=1.5, color="#808080")
    whole = [layer.encode(x=_x(shown, last)) for layer in (*layers, rule)]
    chart = alt.layer(*whole, title=title, height=height + (_AXIS_HEIGHT if last else 0), padding=_PADDING)
    chart = chart.configure_axis(labelFontSize=11, titleFontSize=11).configure_view(strokeOpacity=0)
    return chart.configure_title(fontSize=12, anchor="start", offset=4, fontWeight=600)
