"""An event's report as one HTML file that needs nothing else: whether it was met first, then what it rests on.

A manager reads the first screen; who wants to compute it anew takes the CSV, which the page holds, and the formulas at its end.
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from zoneinfo import ZoneInfo

from dispatcher.backtest.html import document
from dispatcher.verification import drawings
from dispatcher.verification.baselines import COUNTERFACTUAL, STORED_PLAN
from dispatcher.verification.drawings import Drawing
from dispatcher.verification.event import EventReport
from dispatcher.verification.export import to_csv
from dispatcher.verification.holding import Compliance
from dispatcher.verification.wording import decisive, percent, span
from policies.sentences import kw

#: A page of this size still opens at once; a longer series is left in its own file.
_EMBED_BYTES = 2_000_000
_SECONDS = "%Y-%m-%d %H:%M:%S"
_VERDICTS = {
    "met": ("met", "good"),
    "missed": ("missed", "bad"),
    "not proven": ("not proven", "bad"),
    "partly judged": ("partly judged", "bad"),
    "opted out": ("opted out", "bad"),
    "nothing owed": ("nothing owed", "soft"),
    "unknown": ("unknown", "bad"),
}
_STYLE = """
.verdict{font-size:1rem;padding:.05em .6em;border-width:2px;vertical-align:middle}.verdict.good{color:var(--good)}
.verdict.soft{color:var(--soft)}td.left,th.left{text-align:left;white-space:normal}
.card.table table{margin-bottom:4px}dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0}
dl.facts dt{color:var(--soft)}dl.facts dd{margin:0}code{font-size:.9em}
figure.wide{margin-top:1.2rem}.two{margin-top:16px;grid-template-columns:repeat(auto-fill,minmax(min(100%,430px),1fr))}
.asked{max-width:none}.pad+.table{margin-top:14px}tbody th,tbody td{vertical-align:baseline}
figure.wide{overflow-x:auto}@media(max-width:700px){figure.wide svg{min-width:760px}}.two .warn{margin:0}
.plain th:first-child{padding-left:0}a{color:var(--cost)}
"""


def page(report: EventReport) -> str:
    """The whole report. Raises NoDrawing without matplotlib (the extra ``report``)."""
    drawings.require()
    name, shade = _VERDICTS[report.verdict]
    facts = report.facts
    mark = f'<span class="mark verdict {shade}">{escape(name)}</span>'
    test = ' <span class="mark">test event</span>' if facts.test else ""
    head = [
        f'<p class="asked">{mark}{test} <span class="soft">{escape(_asked(report))}</span></p>',
        f"<h1>{escape(report.headline)}</h1>",
    ]
    title = f"Event {facts.event_id} in {facts.region}: {name}"
    if not report.owed:
        return document(title, [*head, _caveats(report.caveats), *_money(report)], _STYLE)
    parts = [
        *head,
        _tiles(report),
        _picture(drawings.power(report), "wide"),
        *_below(report),
        "<h2>Was the limit held?</h2>",
        _holding(report),
        _owed(report),
        *_jobs(report),
        *_money(report),
        "<h2>How this was measured</h2>",
        _method(report),
        *_beside(report),
        "<h2>Compute it anew</h2>",
        _anew(report),
    ]
    return document(title, parts, _STYLE)


def _local(report: EventReport, at: datetime, form: str = "%Y-%m-%d %H:%M") -> str:
    return f"{at.astimezone(ZoneInfo(report.timezone)):{form}}"


def _asked(report: EventReport) -> str:
    facts, window = report.facts, report.facts.window
    end = "until cancelled" if facts.open_end else f"to {_local(report, facts.runs_until or window.end, '%H:%M')}"
    told = f"Event {facts.event_id} from {facts.source}, {facts.region}, {_local(report, window.start)} {end} {report.timezone}"
    return f"{told}: {facts.reason}" if facts.reason else told


# --- at a glance ----------------------------------------------------------------------------------------------------------


def _tiles(report: EventReport) -> str:
    tiles = [_held_tile(report), _delivered_tile(report), _speed_tile(report), _back_tile(report), _money_tile(report)]
    return f'<dl class="tiles" aria-label="the event at a glance">{"".join(tile for tile in tiles if tile)}</dl>'


def _tile(name: str, value: str, told: str, shade: str = "") -> str:
    return f'<div><dt>{escape(name)}</dt><dd class="{shade}">{escape(value)}<small>{escape(told)}</small></dd></div>'


def _held_tile(report: EventReport) -> str:
    held = decisive(report)
    if held is None or held.share is None:
        return _tile("Limit held", "unknown", "no window can be judged") if report.owed else ""
    size = "minutes" if held.window_s == 60 else f"windows of {span(held.window_s)}"
    told = f"{held.within:,} of {held.windows:,} {size}"
    if held.measured < held.windows:
        told += f"; {held.windows - held.measured:,} not measured"
    elif held.worst_excess_w:
        told += f"; at worst {kw(held.worst_excess_w)} over"
    return _tile("Limit held", percent(held.share), told, "good" if held.within == held.windows else "bad")


def _delivered_tile(report: EventReport) -> str:
    made = report.delivered
    if made is None:
        return ""
    if made.mean_w.value is None:
        return _tile("Delivered", "unknown", "nothing was measured", "bad")
    told = f"{made.energy_kwh.value or 0.0:,.1f} kWh"
    if made.committed_kwh:
        told += f" of {made.committed_kwh:,.1f} {'implied by the limit' if made.committed_by_limit else 'committed'}"
        told += f" ({percent(made.performance)})" if made.performance is not None else ""
    good = made.performance is None or made.performance >= 1
    return _tile("Delivered, mean", kw(made.mean_w.value), told, "good" if good else "bad")


def _speed_tile(report: EventReport) -> str:
    kept = report.tracking
    if not report.owed:
        return ""
    if kept.first_s is None:
        return _tile("At the target after", "never" if kept.coverage else "unknown", "of the first obligation", "bad")
    steady = "never steady" if kept.steady_s is None else f"steady after {span(kept.steady_s)}"
    told = "and stayed" if kept.steady_s == kept.first_s else steady
    allowed = max((one.hold_at - one.start).total_seconds() for one in report.owed[:1])
    return _tile(
        "At the target after", span(kept.first_s), f"{told}; {span(allowed)} allowed; meter slots {span(kept.resolution_s)}"
    )


def _back_tile(report: EventReport) -> str:
    after = report.aftermath
    if after is None:
        return ""
    if after.snapback is None:
        return _tile("Snapback", "unknown", "nothing is known after the event", "bad")
    told = f"in {after.hours:g} h after; {after.rebound_kwh.value or 0.0:,.1f} kWh taken back"
    if after.rebound_share is not None:
        told += f" ({percent(after.rebound_share)})"
    value = "none" if after.snapback <= 0 else f"+{percent(after.snapback)}"
    return _tile("Snapback", value, told, "good" if after.snapback <= 0.02 else "bad")


def _money_tile(report: EventReport) -> str:
    paid = report.settlement
    if paid is None:
        return ""
    if paid.total is None:
        return _tile("Earned", "unknown", paid.programme)
    name = "Earned" if paid.total >= 0 else "Cost"
    told = f"{paid.programme}, estimated"
    if paid.least is None:
        told += "; unmeasured time could cost more"
    elif paid.least < paid.total - 0.005:
        told += f"; {paid.least:,.2f} if all unmeasured is missing"
    return _tile(name, f"{abs(paid.total):,.2f} {paid.currency}", told, "good" if paid.total >= 0 else "bad")


def _below(report: EventReport) -> list[str]:
    """Caveats and the smaller drawings; side by side where there is one of each."""
    made = [one for one in (drawings.energies(report), drawings.tiers(report)) if one is not None]
    pictures, told = "".join(_picture(one) for one in made), _caveats(report.caveats)
    if len(made) == 1:
        return [f'<div class="grid two">{told}{pictures}</div>']
    return [told, f'<div class="grid two">{pictures}</div>' if pictures else ""]


def _caveats(caveats: Sequence[str]) -> str:
    if not caveats:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in caveats)
    return f'<div class="card warn" role="note"><h3>Read with care</h3><ul>{items}</ul></div>'


def _picture(drawing: Drawing, kind: str = "") -> str:
    title, caption = escape(drawing.title), escape(drawing.caption)
    return f'<figure class="{kind}"><h3>{title}</h3>{drawing.svg}<figcaption>{caption}</figcaption></figure>'


# --- tables ---------------------------------------------------------------------------------------------------------------


def _table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], foot: str = "", left: frozenset[int] = frozenset()
) -> str:
    def cell(i: int, text: str, tag: str = "td", more: str = "") -> str:
        kind = ' class="left"' if i in left or i == 0 else ""
        return f"<{tag}{kind}{more}>{escape(text)}</{tag}>"

    head = "".join(cell(i, text, "th", ' scope="col"') for i, text in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell(i, text, *(("th", ' scope="row"') if i == 0 else ())) for i, text in enumerate(row)) + "</tr>"
        for row in rows
    )
    table = f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div>'
    return f'<div class="card table">{scroll}{f"<p class=soft>{escape(foot)}</p>" if foot else ""}</div>'


def _holding(report: EventReport) -> str:
    kept = report.tracking
    rows = [_window_row(one) for one in report.compliance]
    slack = f" plus {kw(report.tolerance_w)}" if report.tolerance_w else ""
    foot = f"A window is within if its mean is at most the limit{slack}; an unmeasured one is not."
    reasons = dict.fromkeys(one.reason for one in report.compliance if one.reason)
    for reason in reasons:
        foot += f" {', '.join(span(one.window_s) for one in report.compliance if one.reason == reason)}: {reason}."
    if report.required_share < 1:
        foot += f" {percent(report.required_share)} of the windows were required to be."
    facts = [
        ("largest excess in a slot", kw(kept.worst_excess_w)),
        ("energy over the limit", _kwh(kept.over_cap_kwh, 2)),
        ("energy under the limit (over-shed)", _kwh(kept.over_shed_kwh, 1)),
        ("deepest under the limit", kw(kept.over_shed_w)),
    ]
    if kept.reference_w is not None:
        facts += [("tracking error (nRMSE)", percent(kept.nrmse, 2)), ("reference for shares", kw(kept.reference_w))]
    if report.delivered is not None:
        facts += [("mean cut while held", percent(kept.hold_cut)), ("weakest minute while held", percent(kept.weakest_cut))]
    if report.rise is not None:
        at = _local(report, report.rise.at, "%H:%M")
        facts.append(("steepest rise within a minute", f"{kw(report.rise.rise_w)} at {at}"))
    windows = _table(
        "By windows, after the ramp",
        ("window", "within", "of", "measured", "share", "worst over it"),
        rows,
        foot,
        frozenset({5}),
    )
    return f'<div class="grid">{windows}{_table("By energy and depth", ("figure", ""), facts)}</div>'


def _kwh(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f} kWh"


def _window_row(one: Compliance) -> tuple[str, ...]:
    if one.reason is not None:
        return (span(one.window_s), "-", "-", "-", "-", "unknown")
    counts = (f"{one.within:,}", f"{one.windows:,}", f"{one.measured:,}", percent(one.share, 2))
    return (span(one.window_s), *counts, kw(one.worst_excess_w))


def _owed(report: EventReport) -> str:
    rows = []
    for one in report.owed:
        version = report.versions[one.version]
        ramp_s = (one.hold_at - one.start).total_seconds()
        rows.append(
            (
                f"{_local(report, one.start, '%H:%M:%S')} to {_local(report, one.end, '%H:%M:%S')}",
                "-" if one.limit_w is None else kw(one.limit_w),
                "-" if one.committed_w is None else kw(one.committed_w),
                span(ramp_s) if ramp_s else "none",
                f"{version.name or f'version {one.version + 1}'}, received {_local(report, version.received_at, _SECONDS)}",
            )
        )
    if not rows:
        return ""
    foot = "A modification counts from its receipt on; until then the obligation before it holds."
    return _table("What was owed", ("from, to", "draw at most", "reduce by", "ramp", "by"), rows, foot, frozenset({4}))


def _jobs(report: EventReport) -> list[str]:
    if not report.jobs:
        return []
    rows = [
        (
            one.tier,
            f"{one.jobs:,}",
            percent(one.lost_throughput),
            "-" if one.allowed is None else percent(one.allowed),
            "unknown" if one.delay_mean_s is None else span(round(one.delay_mean_s)),
            "unknown" if one.delay_max_s is None else span(round(one.delay_max_s)),
            "unknown" if one.deadline_misses is None else f"{one.deadline_misses:,}",
        )
        for one in report.jobs
    ]
    heads = ("tier", "jobs", "work not done", "allowed", "mean delay", "longest delay", "deadlines missed")
    return ["<h2>What it cost the jobs</h2>", _table("By tier", heads, rows)]


def _money(report: EventReport) -> list[str]:
    paid = report.settlement
    if paid is None:
        return []
    rows = [
        (
            line.name,
            "unknown" if line.quantity is None else f"{line.quantity:,.2f} {line.unit}",
            f"{line.rate:,.2f}",
            "unknown" if line.amount is None else f"{line.amount:,.2f}",
        )
        for line in paid.lines
    ]
    rows.append(("total, estimated", "", "", "unknown" if paid.total is None else f"{paid.total:,.2f}"))
    foot = " ".join(["By our meter and the terms configured; the utility's settlement decides.", *paid.remarks])
    heads = ("item", "quantity", f"{paid.currency} a unit", paid.currency)
    return ["<h2>What it earned</h2>", _table(paid.programme, heads, rows, foot)]


# --- method ---------------------------------------------------------------------------------------------------------------


def _method(report: EventReport) -> str:
    base, window = report.baseline, report.facts.window
    facts = [
        (
            "Draw",
            f"{report.metered.basis}, slots of {span(report.metered.step_s)}; {percent(report.coverage)} of the event is known",
        ),
        ("Baseline", f"{base.method}, after {base.source}. {' '.join(base.sentences)}"),
        (
            "Notice",
            f"{_local(report, window.known_at, _SECONDS)} {report.timezone}: nothing after it shapes the baseline",
        ),
    ]
    if base.days:
        facts.append(("Days used", ", ".join(f"{day:%a %Y-%m-%d}" for day in base.days)))
    if base.passed_over:
        reasons = dict.fromkeys(why for _, why in base.passed_over)
        days = (f"{why}: {', '.join(f'{day}' for day, own in base.passed_over if own == why)}" for why in reasons)
        facts.append(("Days passed over", "; ".join(days)))
    for one in report.beside:
        if one.method in (STORED_PLAN, COUNTERFACTUAL):
            weak = "".join(f" {flag[:1].upper()}{flag[1:]}." for flag in one.flags)
            facts.append((f"Beside: {one.method}", " ".join(one.sentences) + weak))
    if report.refused:
        facts.append(("Baselines refused", "; ".join(f"{name}: {why}" for name, why in report.refused)))
    made = report.delivered
    if made is not None and made.unmeasured_kwh is not None and made.shortfall_kwh is not None:
        told = f"{made.shortfall_kwh:,.2f} kWh by intervals of {span(report.interval_s)}"
        facts.append(("Shortfall", f"{told}; {made.unmeasured_kwh:,.2f} kWh more were committed while nothing was measured"))
    if made is not None and made.least_kwh is not None:
        facts.append(
            ("At least", f"{made.least_kwh:,.1f} kWh were delivered, had all that was not measured been drawn in full")
        )
    if report.net_day_kwh is not None and report.net_day_kwh.value is not None:
        day = report.net_day_kwh
        facts.append(
            ("Net over the day", f"{day.value or 0.0:,.1f} kWh below the baseline; {percent(day.coverage)} of the day is known")
        )
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
    return f'<div class="card pad"><dl class="facts">{items}</dl></div>'


def _beside(report: EventReport) -> list[str]:
    if not report.beside:
        return []
    own = report.delivered
    rows = [
        (
            f"{report.baseline.method} (counts)",
            kw(own.mean_w.value if own else None),
            _kwh(own.energy_kwh.value if own else None, 1),
            percent(own.performance if own else None),
        )
    ]
    rows += [(one.method, kw(one.mean_w), _kwh(one.energy_kwh, 1), percent(one.performance)) for one in report.beside]
    foot = "The same event by other baselines: a wide spread says that the delivery hangs on the method."
    heads = ("baseline", "delivered, mean", "delivered", "performance")
    return [_table("By other baselines", heads, rows, foot)]


_FORMULAS = (
    ("delivered_w", "= baseline_w - metered_w; empty where either is. Negative values stay."),
    (
        "energy delivered, kWh",
        "= sum of delivered_w x slot_s / 3,600,000 over the rows in which something was owed (limit_w is not empty)",
    ),
    (
        "within the limit",
        "a window of judged rows (judged = 1) whose mean metered_w is at most its limit_w; with empty rows: not within",
    ),
    ("energy over the limit", "= sum of max(0, metered_w - limit_w) x slot_s / 3,600,000 over judged rows"),
    ("tracking error", "= root of the mean of (metered_w - limit_w) squared over judged rows, over the reference"),
    ("snapback", "= largest of (metered_w - baseline_w) / baseline_w in the two hours after the event, by means of a minute"),
    ("taken back", "= sum of max(0, metered_w - baseline_w) x slot_s / 3,600,000 over the same two hours"),
)


def _anew(report: EventReport) -> str:
    text = to_csv(report)
    name = f"event-{''.join(c if c.isalnum() or c in '-_' else '-' for c in report.facts.event_id)}.csv"
    if len(text) <= _EMBED_BYTES:
        data = b64encode(text.encode()).decode()
        link = f'<a download="{escape(name)}" href="data:text/csv;base64,{data}">{escape(name)}</a>'
    else:
        link = f"the report's CSV ({len(text) / 1e6:,.0f} MB, not held by this page)"
    items = "".join(f"<li><b>{escape(name)}</b> {escape(told)}</li>" for name, told in _FORMULAS)
    return (
        f'<div class="card pad"><p>All figures of the power follow from {link}: one row a slot of the meter, times in UTC, '
        "powers in W, <code>quality</code> measured, estimated or missing.</p>"
        f"<ul>{items}</ul></div>"
    )
