"""Values as the console writes them: times, powers, amounts and the small pieces of HTML around them.

It knows nothing of HTTP or of Streamlit. What is missing is written "unknown", never 0, and all text of others is escaped.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

Json = Mapping[str, Any]

UNKNOWN = "unknown"
#: States in the order an operator looks at them; the first five still hold or want a cluster.
STATES = ("running", "pausing", "launching", "paused", "queued", "failed", "cancelled", "succeeded")
ACTIVE = STATES[:5]

STYLE = """<style>
.block-container, [data-testid="stMainBlockContainer"] {padding: 1.2rem 1.6rem 3rem; max-width: 2200px}
[data-testid="stHeader"] {background: transparent; height: 2.6rem; min-height: 0; pointer-events: none}
[data-testid="stMainMenu"] {pointer-events: auto}
[data-testid="stStatusWidget"] {display: none}
[data-testid="stVerticalBlock"] {gap: .55rem}
.gs {font-size: 0.92rem; line-height: 1.35}
.gs-head {display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: baseline}
.gs-name {font-size: 1.5rem; font-weight: 700; letter-spacing: -.01em}
.gs-now {font-size: 1.15rem; font-variant-numeric: tabular-nums; font-weight: 600}
.gs-dim {opacity: .72}
.gs-badge {border-radius: .3rem; padding: .1rem .5rem; font-weight: 600; border: 1px solid; white-space: nowrap}
.gs-replay {background: rgba(230,159,0,.22); border-color: rgba(230,159,0,.9)}
.gs-counts {display: flex; flex-wrap: wrap; gap: .4rem; margin: .5rem 0 0}
.gs-count {border: 1px solid rgba(128,128,128,.4); border-radius: .3rem; padding: .15rem .6rem; white-space: nowrap}
.gs-count b {font-variant-numeric: tabular-nums; font-size: 1.05rem}
.gs-zero {opacity: .6}
.gs-alarm, .gs-warn, .gs-fine {border-left: .3rem solid; border-radius: .2rem; padding: .45rem .8rem; margin: .45rem 0 0}
.gs-alarm {border-color: #d1242f; background: rgba(209,36,47,.16)}
.gs-warn {border-color: #e69f00; background: rgba(230,159,0,.16)}
.gs-fine {border-color: #009e73; background: rgba(0,158,115,.14)}
.gs-down {font-size: 1.05rem; padding: 1.1rem 1.4rem; line-height: 1.55}
.gs-down h2 {font-size: 1.5rem; padding: 0; margin: 0 0 .4rem}
.gs-down code, .gs code {background: rgba(128,128,128,.18); padding: .05rem .3rem; border-radius: .2rem; font-size: .92em;
 color: inherit}
.gs-wide {overflow-x: auto}
.gs table {border-collapse: collapse; width: 100%; margin: 0}
.gs th {text-align: left; font-weight: 600; opacity: .72; font-size: .82rem; white-space: nowrap}
.gs th, .gs td {padding: .28rem .9rem .28rem 0; border: 0; border-bottom: 1px solid rgba(128,128,128,.3); vertical-align: top}
.gs td.gs-num, .gs th.gs-num {text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap}
.gs td.gs-when {font-variant-numeric: tabular-nums; white-space: nowrap}
.gs td.gs-facts {white-space: nowrap; opacity: .72; width: 1%}
.gs-keep, .gs td.gs-keep {white-space: nowrap}
.gs td.gs-broad {min-width: 9.5rem}
@media (max-width: 640px) {
 .gs-stack thead, .gs-stack td br {display: none}
 .gs-stack tr {display: block; border-bottom: 1px solid rgba(128,128,128,.3); padding: .35rem 0}
 .gs-stack .gs td {display: block; border: 0; padding: .08rem 0}
}
.gs small {display: block; opacity: .72; font-size: .78rem}
.gs-bar {height: .35rem; background: rgba(128,128,128,.28); border-radius: .2rem; margin-top: .2rem; min-width: 5rem}
.gs-bar i {display: block; height: 100%; border-radius: .2rem; background: #0072b2}
.gs-bar i.gs-over {background: #d1242f}
.gs-red {background: #c62828; color: #fff; font-weight: 700; padding: .05rem .35rem; border-radius: .2rem; white-space: nowrap}
.gs-chip {display: inline-block; width: .75rem; height: .75rem; border-radius: .15rem; margin-right: .35rem;
 vertical-align: -1px}
.gs-dash {display: inline-block; width: 1.5rem; border-top: 2px dashed #d1242f; margin-right: .35rem; vertical-align: 4px}
.gs-rule {display: inline-block; height: .9rem; border-left: 2px solid #808080; margin-right: .35rem; vertical-align: -2px}
.gs-band {display: inline-block; width: 1.5rem; height: .7rem; background: rgba(128,128,128,.3); margin-right: .35rem;
 vertical-align: -1px}
.gs-legend {margin-top: .35rem; display: flex; flex-wrap: wrap; gap: .2rem 1.1rem}
.gs-id {overflow-wrap: anywhere}
.gs h3, .gs h4 {padding: 0; margin: 0 0 .3rem; font-size: 1.05rem; font-weight: 650}
.gs h4 {font-size: .92rem; margin-top: .9rem}
</style>"""


def time_of(value: object) -> datetime | None:
    """The aware time in an ISO 8601 text; None for none, and for what is not one."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def clock_text(value: object, now: datetime | None = None) -> str:
    """A time in UTC, as short as it can be read: the day is left out when it is that of ``now``."""
    at = value if isinstance(value, datetime) else time_of(value)
    if at is None:
        return UNKNOWN
    at = at.astimezone(UTC)
    if now is None or now.astimezone(UTC).year != at.year:
        return f"{at.day} {at:%b %Y %H:%M}"
    return f"{at:%H:%M}" if now.astimezone(UTC).date() == at.date() else f"{at.day} {at:%b %H:%M}"


def duration_text(seconds: float | None) -> str:
    """A duration in its two largest units."""
    if seconds is None:
        return UNKNOWN
    left = round(abs(seconds))
    if left < 60:
        return f"{left} s"
    minutes = round(left / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min" if minutes else f"{hours} h"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h" if hours else f"{days} d"


def away_text(at: datetime | None, now: datetime) -> str:
    """How far a time is from ``now``: "in 3 h", "5 min ago"."""
    if at is None:
        return ""
    seconds = (at - now).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"in {duration_text(seconds)}" if seconds > 0 else f"{duration_text(seconds)} ago"


#: Amounts are told no finer.
FINEST = 1e-6


def number_text(value: object, unit: str = "", digits: int = 2) -> str:
    """A number with its unit; "unknown" for none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return UNKNOWN
    if digits and FINEST <= abs(value) < 0.1:  # little, and not nothing: two figures that say something
        digits = max(digits, 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}" if digits else f"{value:,.0f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"{'0' if text == '-0' else text} {unit}".rstrip()


def power_text(watts: object) -> str:
    """A power in W, kW or MW."""
    if isinstance(watts, bool) or not isinstance(watts, int | float) or watts != watts:
        return UNKNOWN
    for size, unit in ((1e6, "MW"), (1e3, "kW")):
        if abs(watts) >= size:
            return f"{watts / size:,.1f} {unit}"
    return f"{watts:,.0f} W"


def box(kind: str, body: str, role: str = "status") -> str:
    """A coloured box; ``kind`` is alarm, warn or fine, ``body`` HTML."""
    return f'<div class="gs gs-{kind}" role="{role}">{body}</div>'


def table(head: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]], stacks: bool = False) -> str:
    """An HTML table; ``head`` holds (title, class), cells are HTML. With ``stacks`` the cells of a row stand below each other,
    without titles, where the page is narrow."""
    titles = "".join(f'<th class="{cls}">{escape(title)}</th>' for title, cls in head)
    body = "".join(
        "<tr>" + "".join(f'<td class="{cls}">{cell}</td>' for cell, (_, cls) in zip(row, head, strict=True)) + "</tr>"
        for row in rows
    )
    made = f'<div class="gs gs-wide"><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>'
    return f'<div class="gs-stack">{made}</div>' if stacks else made


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A two-column list of name and HTML value."""
    body = "".join(f'<tr><td class="gs-facts">{escape(name)}</td><td class="gs-id">{value}</td></tr>' for name, value in rows)
    return f'<div class="gs"><table><tbody>{body}</tbody></table></div>'


def bar(share: float | None, over: bool = False) -> str:
    """A thin bar that is filled to ``share`` of 1; nothing when that is unknown."""
    if share is None:
        return ""
    width = max(0.0, min(1.0, share)) * 100
    return f'<div class="gs-bar"><i class="{"gs-over" if over else ""}" style="width:{width:.0f}%"></i></div>'


def error_box(what: str, message: str, remedy: str) -> str:
    """One part of the page that could not be had."""
    return box("warn", f"<b>{escape(what)} unknown:</b> {escape(message)}. {escape(remedy)}", "alert")
