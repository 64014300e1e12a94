"""A backtest's result as one HTML file that needs nothing else: no scripts, no fonts, no pictures from elsewhere.

It is written for somebody who has a minute: what was saved and at what price first, how it came about below that, and what was
assumed at the end. "Simulated" stands where every figure does.
"""

from collections.abc import Iterable, Sequence
from html import escape

from dispatcher.backtest import figures
from dispatcher.backtest.figures import Drawing
from dispatcher.backtest.report import (
    best,
    carbon,
    change,
    delay,
    digits_of,
    ended_any,
    energy,
    headline,
    hours,
    judged_by,
    money,
    percent,
    signed,
    span_of,
)
from dispatcher.backtest.results import BacktestResult, PolicyRun
from dispatcher.errors import BadInput
from dispatcher.render import number

_LIGHT = {
    **figures.COLOURS,
    "paper": "#ffffff",
    "back": "#f4f5f8",
    "good": "#00694d",
    "bad": "#a53a00",
}
_DARK = {
    "ink": "#eceff4",
    "soft": "#a9b2c0",
    "line": "#3a4150",
    "paper": "#1a1f29",
    "back": "#11151c",
    "cost": "#56a8e0",
    "carbon": "#f0884a",
    "best": "#2fc498",
    "now": "#8b94a3",
    "c1": "#dd9fc2",
    "c2": "#8ccbf0",
    "c3": "#edb84a",
    "c4": "#a692ec",
    "c5": "#c99b57",
    "c6": "#9fb0d6",
    "c7": "#e08a8a",
    "c8": "#b4d06a",
    "good": "#43d3a6",
    "bad": "#ff9a5c",
}


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


_STYLE = (
    f":root{{color-scheme:light dark;{_variables(_LIGHT)}}}"
    f"@media(prefers-color-scheme:dark){{:root{{{_variables(_DARK)}}}}}"
    f"@media print{{:root{{color-scheme:light;{_variables({**_LIGHT, 'back': '#ffffff'})}}}}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--ink);font:16px/1.5
system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 56px}
h1{font-size:1.5rem;line-height:1.32;margin:.25rem 0 .6rem;font-weight:650;max-width:46em;text-wrap:pretty}
h2{font-size:1.15rem;margin:2.4rem 0 .7rem}
h3{font-size:1rem;margin:0 0 .35rem}
p{margin:.3rem 0;max-width:75ch}
.rest{font-size:1.06rem}
.soft,figcaption{color:var(--soft);font-size:.87rem}
.mark{display:inline-block;border:1.5px solid currentColor;border-radius:4px;padding:0 .45em;font-size:.78rem;font-weight:650;
letter-spacing:.05em;text-transform:uppercase;color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:1.2rem 0 0;padding:0}
.tiles div,figure,.card{background:var(--paper);border:1px solid var(--line);border-radius:8px}
.tiles div{padding:12px 14px}
.tiles dt{color:var(--soft);font-size:.85rem}
.tiles dd{margin:0;font-size:1.6rem;font-weight:650;line-height:1.25}
.tiles dd small{display:block;font-size:.82rem;font-weight:400;color:var(--soft);line-height:1.4}
.good{color:var(--good)}.bad{color:var(--bad)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));gap:16px;align-items:start}
figure{margin:0;padding:14px 14px 12px}
figure svg{display:block;width:100%;height:auto}
figure svg text{font-family:inherit!important}
figure svg *{stroke-linejoin:round;stroke-linecap:butt}
figcaption{margin-top:.5rem}
.scroll{overflow-x:auto;padding:4px 14px 6px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem}
caption{text-align:left;font-weight:650;padding:6px 0 2px;position:sticky;left:0}
.table{margin-bottom:14px;padding:4px 0 10px}.table p{padding:0 14px;max-width:95ch}
th,td{padding:6px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;vertical-align:bottom}
thead th{color:var(--soft);font-size:.85rem;white-space:normal}
th:first-child{text-align:left;padding-left:0;position:sticky;left:0;background:var(--paper)}
tr.best th,tr.best td{font-weight:650}
tr.best th::after{content:" \\2605";color:var(--best)}
tr.bound th,tr.bound td{font-style:italic}
ul{padding-left:1.2em;margin:.4rem 0}
li{margin:.2rem 0;max-width:80ch}
.warn{border-left:4px solid var(--bad);padding:8px 14px;margin:.6rem 0}
.pad{padding:12px 16px}
@media(max-width:480px){main{padding:16px 12px 40px}h1{font-size:1.22rem}.tiles{grid-template-columns:1fr 1fr}
.tiles dd{font-size:1.3rem}figure{padding:10px 8px}}
@media print{body{font-size:11pt}main{max-width:none;padding:0}.tiles div,figure,.card{break-inside:avoid}h2{break-after:avoid}
.grid{grid-template-columns:1fr 1fr}.scroll{overflow:visible}table{font-size:8.5pt}th,td{padding:3px 5px}}
"""
)


def require() -> None:
    """Raise NoDrawing unless a report can be made here; cheap, so ask before a long run."""
    figures.require()


def page(result: BacktestResult) -> str:
    """The whole report. Raises NoDrawing without matplotlib, BadInput for a result without runs."""
    if not result.runs:
        raise BadInput([("runs", 0, "a report needs at least the run of run-now")])
    require()
    winner = best(result)
    first, _, rest = headline(result).removeprefix("Simulated: ").partition(". ")
    title = f"Backtest (simulated): {result.jobs_file or 'jobs'}"
    parts = [
        f'<p><span class="mark">simulated</span> <span class="soft">backtest of {escape(_over(result))}</span></p>',
        f"<h1>{escape(_capital(first).rstrip('.'))}.</h1>",
        f'<p class="rest">{escape(rest)}</p>' if rest else "",
        _tiles(result, winner),
        *_warnings(result),
        "<h2>Policies</h2>",
        _policies(result, winner),
        *_pictures(result, winner),
        "<h2>What was assumed</h2>",
        _assumed(result),
    ]
    return document(title, parts)


def document(title: str, parts: Iterable[str], more_style: str = "") -> str:
    """A page that stands alone, in the look of all reports; empty parts are left out."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{more_style}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _over(result: BacktestResult) -> str:
    regions = ", ".join(region.region for region in result.regions)
    return f"{result.runs[0].jobs:,} jobs ({result.jobs_file}) in {regions}, {span_of(result.start, result.end)}"


# --- at a glance ----------------------------------------------------------------------------------------------------------


def _tiles(result: BacktestResult, winner: PolicyRun | None) -> str:
    base, oracle = result.runs[0], result.oracle
    if winner is None:
        return ""
    cost, kg = change(winner.cost, base.cost), change(winner.carbon_kg, base.carbon_kg)
    oracle_cost, oracle_kg = change(oracle.cost, base.cost), change(oracle.carbon_kg, base.carbon_kg)
    tiles = [
        _tile("Cost saved", cost, money(winner.cost, result.currency), money(base.cost, result.currency), oracle_cost),
        _tile("Carbon saved", kg, carbon(winner.carbon_kg), carbon(base.carbon_kg), oracle_kg),
        _delay_tile(winner),
        f'<div><dt>Deadlines missed</dt><dd class="{"bad" if winner.deadline_misses else "good"}">{winner.deadline_misses:,}'
        f"<small>of {winner.jobs:,} jobs; run-now: {base.deadline_misses:,}</small></dd></div>",
    ]
    return f'<dl class="tiles" aria-label="{escape(winner.label)} against run-now, simulated">{"".join(tiles)}</dl>' + (
        f'<p class="soft">{escape(winner.label)}, the best policy by {escape(judged_by(result))}, against run-now (every job '
        "at once). Oracle: what no schedule that meets its deadlines can undercut.</p>"
    )


def _delay_tile(run: PolicyRun) -> str:
    name = "Jobs end later by"
    if not ended_any(run):
        return f"<div><dt>{name}</dt><dd>unknown<small>no job ended</small></dd></div>"
    told = f"on average; 95 % within {hours(run.delay_p95_h)}"
    return f"<div><dt>{name}</dt><dd>{hours(run.delay_mean_h)}<small>{told}</small></dd></div>"


def _tile(name: str, by: float | None, got: str | None, instead: str | None, bound: float | None) -> str:
    if by is None:
        return f"<div><dt>{name}</dt><dd>unknown<small>a signal is missing</small></dd></div>"
    told = f"{got} instead of {instead}" + (f"; at most {percent(-bound)} was possible" if bound is not None else "")
    shade = "good" if by < 0 else "bad" if by > 0 else ""
    return f'<div><dt>{name}</dt><dd class="{shade}">{percent(-by)}<small>{escape(told)}</small></dd></div>'


def _warnings(result: BacktestResult) -> list[str]:
    if not result.warnings:
        return []
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in result.warnings)
    return [f'<div class="card warn" role="note"><h3>Read with care</h3><ul>{items}</ul></div>']


# --- the table ------------------------------------------------------------------------------------------------------------


def _policies(result: BacktestResult, winner: PolicyRun | None) -> str:
    base = result.runs[0]
    heads = (
        "policy",
        f"cost, {result.currency}",
        "against run-now",
        "carbon, kg CO2e",
        "against run-now",
        "mean delay, h",
        "95 % within, h",
        "deadlines missed",
        "not ended",
        "pauses",
        "moves",
        "gap to bound",
    )
    rows = [_row(run, base, "best" if run is winner else "") for run in result.runs] + [_bound_row(result)]
    foot = f"Energy is {energy(base.energy_kwh)} under run-now. {_FOOT}"
    cards = [_card("Policies, simulated", heads, rows, foot)]
    if result.front:
        title = f"gridshift at other carbon prices, {result.currency}/t"
        cards.append(
            _card(title, heads, [_row(run, base, "") for run in result.front], "These are the line in the figure below.")
        )
    return "".join(cards)


_FOOT = (
    "All figures are simulated. A delay is the end of a job against the end it would have had when run at once. The gap is how "
    "far a plan may be from the best plan for what was known when it was made. The oracle knows everything beforehand and has "
    "room without end."
)


def _card(title: str, heads: Sequence[str], rows: Iterable[str], foot: str) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    table = f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    scroll = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{table}</div>'
    return f'<div class="card table">{scroll}<p class="soft">{escape(foot)}</p></div>'


def _cell(key: str, value: float | None, shown: str | None, shade: str = "") -> str:
    exact = "" if value is None else f' data-value="{float(value)!r}"'
    classes = f' class="{shade}"' if shade else ""
    return f'<td data-key="{key}"{exact}{classes}>{escape(shown) if shown is not None else "&ndash;"}</td>'


def _row(run: PolicyRun, base: PolicyRun, kind: str) -> str:
    cost, kg = change(run.cost, base.cost), change(run.carbon_kg, base.carbon_kg)
    own = run is not base
    cells = [
        _cell("cost", run.cost, _plain(run.cost)),
        _cell("cost_vs_run_now", cost if own else None, signed(cost) if own else None, _shade(cost)),
        _cell("carbon_kg", run.carbon_kg, _plain(run.carbon_kg)),
        _cell("carbon_vs_run_now", kg if own else None, signed(kg) if own else None, _shade(kg)),
        _cell("delay_mean_h", delay(run.delay_mean_h), number(delay(run.delay_mean_h), 1)),
        _cell("delay_p95_h", delay(run.delay_p95_h), number(delay(run.delay_p95_h), 1)),
        _cell("deadline_misses", run.deadline_misses, f"{run.deadline_misses:,}", "bad" if run.deadline_misses else ""),
        _cell("unfinished", run.unfinished, f"{run.unfinished:,}"),
        _cell("pauses", run.pauses, f"{run.pauses:,}"),
        _cell("moves", run.moves, f"{run.moves:,}"),
        _cell("gap", run.gap, percent(run.gap, 2)),
    ]
    return (
        f'<tr class="{kind}" data-policy="{escape(run.policy)}"><th scope="row">{escape(run.label)}</th>{"".join(cells)}</tr>'
    )


def _shade(by: float | None) -> str:
    return "" if by is None or abs(by) < 0.0005 else "good" if by < 0 else "bad"


def _plain(value: float | None) -> str | None:
    return None if value is None else f"{value:,.{digits_of(value)}f}"


def _bound_row(result: BacktestResult) -> str:
    base, oracle = result.runs[0], result.oracle
    cost, kg = change(oracle.cost, base.cost), change(oracle.carbon_kg, base.carbon_kg)
    cells = [
        _cell("cost", oracle.cost, _plain(oracle.cost)),
        _cell("cost_vs_run_now", cost, signed(cost)),
        _cell("carbon_kg", oracle.carbon_kg, _plain(oracle.carbon_kg)),
        _cell("carbon_vs_run_now", kg, signed(kg)),
        '<td colspan="7"></td>',
    ]
    return f'<tr class="bound" data-policy="oracle"><th scope="row">oracle (bound)</th>{"".join(cells)}</tr>'


# --- pictures and assumptions -----------------------------------------------------------------------------------------------


def _pictures(result: BacktestResult, winner: PolicyRun | None) -> list[str]:
    parts: list[str] = []
    if len(result.runs) > 1:
        pictures = [figures.savings(result), figures.front(result, winner), figures.delays(result, winner)]
        pictures.append(figures.deadlines(result))
        parts += ["<h2>Savings, delay and deadlines</h2>", _grid(pictures)]
    by_region: list[Drawing] = []
    for i, region in enumerate(result.regions):
        by_region += [figures.region_day(result, region, winner, i), figures.region_week(result, region, winner, i)]
    return [*parts, "<h2>Load against price and carbon, by region</h2>", _grid(by_region)]


def _grid(drawings: Iterable[Drawing | None]) -> str:
    made = (
        f"<figure><h3>{escape(one.title)}</h3>{one.svg}<figcaption>{escape(one.caption)}</figcaption></figure>"
        for one in drawings
        if one is not None
    )
    return f'<div class="grid">{"".join(made)}</div>'


def _assumed(result: BacktestResult) -> str:
    own = [
        f"Energy, cost and carbon are {result.energy_basis}: no power was measured.",
        *result.assumptions,
        f"Times are UTC; amounts are in {result.currency}.",
    ]
    return f'<div class="card pad"><ul>{"".join(f"<li>{escape(sentence)}</li>" for sentence in own)}</ul></div>'
