"""The drawings of a backtest's report, each an inline SVG with a title and a description.

Colours are names of the page's CSS variables, so that a drawing follows light, dark and print; what differs by colour differs
by line, marker or hatching too. It needs matplotlib (the extra ``report``) and knows nothing of HTML around a drawing.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dispatcher.backtest.profiles import DAY, WEEK, fitted, hour_of, hours_between, mean_day, typical_week
from dispatcher.backtest.report import change, ended_any, hours, oracle_bound, percent
from dispatcher.backtest.results import BacktestResult, Floats, PolicyRun, RegionHours
from dispatcher.errors import GridshiftError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class NoDrawing(GridshiftError):
    """The HTML report needs matplotlib: python -m pip install 'gridshift[report]'"""


@dataclass(frozen=True)
class Drawing:
    """A figure: a short caption for those who see it; ``svg`` holds a description in words for those who do not."""

    title: str
    caption: str
    svg: str


#: Colours by the page's CSS variable. Those of lines and bars are Okabe and Ito's, which most colour-blind people tell apart.
COLOURS = {
    "ink": "#1b2130",
    "soft": "#5d6675",
    "line": "#d5d9e1",
    "paper": "#fffffe",
    "cost": "#0072b2",
    "carbon": "#d55e00",
    "best": "#009e73",
    "now": "#8a919e",
    "c1": "#cc79a7",
    "c2": "#56b4e9",
    "c3": "#e69f00",
    "c4": "#7b5cd6",
    "c5": "#a3762e",
    "c6": "#3b4a6b",
    "c7": "#9c3d3d",
    "c8": "#6f8f2f",
}
_OTHERS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8")
_DASHES: tuple[Any, ...] = ("--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2, 2, 2)), (0, (2, 3)))
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">")
_WIDTH = 440  # of a drawing, in the units of its own picture; text is 12 of them high
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 11.5,
    "axes.titlesize": 11.5,
    "axes.labelsize": 11.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": COLOURS["line"],
    "axes.labelcolor": COLOURS["soft"],
    "axes.titlecolor": COLOURS["ink"],
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 0.7,
    "xtick.color": COLOURS["line"],
    "ytick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["soft"],
    "ytick.labelcolor": COLOURS["soft"],
    "text.color": COLOURS["ink"],
    "legend.frameon": False,
    "legend.fontsize": 11,
    "hatch.linewidth": 0.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def require() -> None:
    """Raise NoDrawing unless drawings can be made; asked before a long run, not after it."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise NoDrawing from None


def drawn(name: str, title: str, caption: str, words: str, size: tuple[int, int], draw: Callable[[Figure], None]) -> Drawing:
    """What ``draw`` makes of an empty figure of that ``size`` (width, height, text 12 high), in the look of all reports."""
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": name}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(size[0] / 72, size[1] / 72), layout="constrained")
        draw(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Drawing(title, caption, _inline(out.getvalue(), name, title, f"{caption} {words}".strip()))


def _inline(svg: str, name: str, title: str, words: str) -> str:
    """A drawing as it stands inside a page: no declarations that name addresses, ids of its own, the page's colours."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
    head, rest = body.split(">", 1)
    box = re.search(r'viewBox="([^"]*)"', head)
    for variable, colour in COLOURS.items():
        rest = rest.replace(colour, f"var(--{variable})")
    # Every drawing numbers its parts alike, but an id must be the only one on its page.
    rest = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", rest).replace("xlink:href", "href")
    rest = re.sub(r"\n\s*", "\n", rest)
    ids = f"{name}-title {name}-text"
    told = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(words)}</desc>'
    return f'<svg viewBox="{box[1] if box else ""}" role="img" aria-labelledby="{ids}">{told}{rest.strip()}'


def _colour_of(result: BacktestResult, winner: PolicyRun | None) -> Mapping[str, str]:
    others = [run.label for run in result.runs[1:] if run is not winner]
    colours = {label: COLOURS[_OTHERS[i % len(_OTHERS)]] for i, label in enumerate(others)}
    colours[result.runs[0].label] = COLOURS["now"]
    if winner is not None:
        colours[winner.label] = COLOURS["best"]
    return colours


def _style_of(result: BacktestResult, winner: PolicyRun | None) -> Mapping[str, tuple[Any, str]]:
    """Line and marker of each run, so that nothing hangs on colour alone."""
    others = [run.label for run in result.runs[1:] if run is not winner]
    styles: dict[str, tuple[Any, str]] = {
        label: (_DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)]) for i, label in enumerate(others)
    }
    styles[result.runs[0].label] = ("-", "o")
    if winner is not None:
        styles[winner.label] = ("-", "*")
    return styles


# --- savings and delay ----------------------------------------------------------------------------------------------------


def savings(result: BacktestResult) -> Drawing | None:
    """What each policy saves, and beside it how much later jobs end. None where nothing is known of savings."""
    base, runs = result.runs[0], result.runs[1:]
    kinds = [
        (name, key, bound, hatch)
        for name, key, bound, hatch in (
            ("cost", "cost", result.oracle.cost, ""),
            ("carbon", "carbon_kg", result.oracle.carbon_kg, "////"),
        )
        if any(change(getattr(run, key), getattr(base, key)) is not None for run in runs)
    ]
    if not kinds:
        return None
    place = np.arange(len(runs), dtype=float)[::-1]
    thick = 0.72 / max(1, len(kinds))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.75, 1), sharey=True)
        for i, (name, key, bound, hatch) in enumerate(kinds):
            saved = [round(-(change(getattr(run, key), getattr(base, key)) or 0.0) * 100, 1) + 0.0 for run in runs]
            at = place + (len(kinds) - 1) * thick / 2 - i * thick
            left.barh(at, saved, thick * 0.9, color=COLOURS[name], hatch=hatch, edgecolor=COLOURS["paper"], lw=0, label=name)
            for y, value, run in zip(at, saved, runs, strict=True):
                known = getattr(run, key) is not None
                left.annotate(
                    f"{value:.1f}" if known else "unknown", (max(value, 0), y), xytext=(4, 0), textcoords="offset points",
                    va="center", fontsize=10,
                )  # fmt: skip
            if (by := change(bound, getattr(base, key))) is not None:
                left.axvline(-by * 100, color=COLOURS[name], ls="-" if not hatch else "--", lw=1.6, label=f"{name}: oracle")
        left.axvline(0, color=COLOURS["soft"], lw=1)
        left.margins(x=0.12)
        left.set_yticks(place, [run.label for run in runs])
        left.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        left.grid(axis="y", visible=False)
        left.set_title("saved against run-now, %")
        for y, run in zip(place, runs, strict=True):
            if not ended_any(run):
                right.annotate("no job ended", (0, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10)
            right.plot([0, run.delay_p95_h], [y, y], color=COLOURS["soft"], lw=2, solid_capstyle="butt")
        mean = right.plot([run.delay_mean_h for run in runs], place, "o", color=COLOURS["ink"], ms=7)
        most = right.plot(
            [run.delay_p95_h for run in runs], place, "|", color=COLOURS["ink"], ms=13, mew=2, label="95 % of jobs"
        )
        right.set_xlim(left=0, right=max([1.0, *(run.delay_p95_h * 1.1 for run in runs if ended_any(run))]))
        right.set_ylim(-0.6, len(runs) - 0.4)
        right.tick_params(axis="y", length=0, labelleft=False)
        right.grid(axis="y", visible=False)
        right.set_title("jobs end later, h")
        handles, names = left.get_legend_handles_labels()
        figure.legend([*handles, *mean, *most], [*names, "mean delay", "95 % of jobs"], loc="outside lower center", ncols=3)

    words = "; ".join(
        f"{run.label} saves {_savings_of(run, base)}"
        + (f" and ends jobs {hours(run.delay_mean_h)} later on average" if ended_any(run) else ", but no job ended")
        for run in runs
    )
    bound = oracle_bound(result)
    caption = f"No schedule could save more than {bound}: the oracle's lines." if bound else "Nothing is known of a bound."
    title = "Savings by policy, and the delay they come with"
    return drawn("savings", title, caption, f"{words}.", (_WIDTH, 104 + 40 * max(1, len(runs))), draw)


def _savings_of(run: PolicyRun, base: PolicyRun) -> str:
    told = [
        f"{percent(-by)} of {what}"
        for what, by in (("cost", change(run.cost, base.cost)), ("carbon", change(run.carbon_kg, base.carbon_kg)))
        if by is not None
    ]
    return " and ".join(told) or "nothing that is known"


# --- cost against carbon --------------------------------------------------------------------------------------------------


def _scaled(values: Sequence[float]) -> tuple[float, str]:
    """A divisor that keeps the numbers of an axis short, and the word for it."""
    largest = max((abs(v) for v in values), default=0.0)
    return (1e6, "million ") if largest >= 2e6 else (1e3, "thousand ") if largest >= 2e4 else (1.0, "")


def front(result: BacktestResult, winner: PolicyRun | None) -> Drawing | None:
    """Cost against carbon: every policy, and ours at several carbon prices. None where one of both is not known."""
    runs = [run for run in result.runs if run.cost is not None and run.carbon_kg is not None]
    line = sorted(
        (run for run in result.front if run.cost is not None and run.carbon_kg is not None),
        key=lambda run: float(run.settings.get("carbon_price", 0.0)),
    )
    if not runs or len(runs) + len(line) < 2:
        return None
    per, thousands = _scaled([run.cost or 0.0 for run in runs])
    kilos = [run.carbon_kg or 0.0 for run in runs]
    per_carbon, unit = (1000.0, "t") if max(kilos) >= 2000 else (1.0, "kg")
    colours, styles = _colour_of(result, winner), _style_of(result, winner)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if line:
            x = [(run.cost or 0.0) / per for run in line]
            y = [(run.carbon_kg or 0.0) / per_carbon for run in line]
            axes.plot(
                x,
                y,
                "-",
                color=COLOURS["best"],
                lw=2,
                marker=".",
                ms=9,
                label=f"gridshift by carbon price, {result.currency}/t",
            )
            for i in _spread(x, y):
                price = float(line[i].settings.get("carbon_price", 0.0))
                axes.annotate(f"{price:,.0f}", (x[i], y[i]), xytext=(-5, -5), textcoords="offset points", ha="right", va="top",
                              fontsize=10, color=COLOURS["soft"])  # fmt: skip
        for run in runs:
            marker = styles[run.label][1]
            axes.plot(
                (run.cost or 0.0) / per, (run.carbon_kg or 0.0) / per_carbon, marker, color=colours[run.label],
                ms=13 if marker == "*" else 8, ls="none", label=run.label, mec=COLOURS["paper"], mew=0.6,
            )  # fmt: skip
        if result.oracle.cost is not None:
            axes.axvline(result.oracle.cost / per, color=COLOURS["cost"], lw=1.4, label="oracle: cost")
        if result.oracle.carbon_kg is not None:
            axes.axhline(result.oracle.carbon_kg / per_carbon, color=COLOURS["carbon"], lw=1.4, ls="--", label="oracle: carbon")
        axes.margins(0.09)
        axes.set_xlabel(f"cost, {thousands}{result.currency}")
        axes.set_ylabel(f"carbon, {unit} CO2e")
        figure.legend(loc="outside lower center", ncols=2)

    caption = "Further left is cheaper, further down is cleaner; no schedule lies left of or below the oracle's lines."
    if line:
        first, last = line[0], line[-1]
        caption += (
            f" The line is gridshift planning with carbon priced from {_price(first)} to {_price(last)} {result.currency}/t: "
            f"it saves {_savings_of(first, result.runs[0])} at the one end, {_savings_of(last, result.runs[0])} at the other."
        )
    words = "; ".join(f"{run.label}: {run.cost or 0.0:,.0f} {result.currency}, {run.carbon_kg or 0.0:,.0f} kg" for run in runs)
    return drawn("front", "Cost against carbon", caption, f"{words}.", (_WIDTH, 330 + 9 * len(runs)), draw)


def _price(run: PolicyRun) -> str:
    return f"{float(run.settings.get('carbon_price', 0.0)):,.0f}"


def _spread(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Which points of a line to name, so that names do not lie over each other."""
    wide, high = (max(x) - min(x)) or 1.0, (max(y) - min(y)) or 1.0
    kept: list[int] = []
    for i in [0, len(x) - 1, *range(1, len(x) - 1)]:
        if all(abs(x[i] - x[k]) / wide + abs(y[i] - y[k]) / high > 0.22 for k in kept):
            kept.append(i)
    return kept


# --- delays and deadlines -------------------------------------------------------------------------------------------------


def delays(result: BacktestResult, winner: PolicyRun | None) -> Drawing:
    """What share of the jobs ended how much later."""
    colours, styles = _colour_of(result, winner), _style_of(result, winner)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for run in result.runs[1:]:
            share = np.linspace(0, 100, len(run.delay_percentiles_h))
            best = run is winner
            axes.plot(
                run.delay_percentiles_h, share, ls=styles[run.label][0], color=colours[run.label], lw=2.6 if best else 1.7,
                label=run.label if ended_any(run) else f"{run.label}: no job ended", zorder=3 if best else 2,
            )  # fmt: skip
        axes.set_ylim(0, 101)
        axes.set_xlim(left=0)
        axes.set_xlabel("ended at most so many hours later than run now")
        axes.set_ylabel("jobs, %")
        figure.legend(loc="outside lower center", ncols=3)

    words = "; ".join(
        f"{run.label}: "
        + (
            f"half within {hours(_percentile(run, 50))}, 95 % within {hours(run.delay_p95_h)}"
            if ended_any(run)
            else "no job ended"
        )
        for run in result.runs[1:]
    )
    caption = "A line that rises early is a policy under which few jobs wait long."
    return drawn("delays", "How much later jobs ended", caption, f"{words}.", (_WIDTH, 290 + 7 * len(result.runs)), draw)


def _percentile(run: PolicyRun, at: int) -> float:
    values = run.delay_percentiles_h
    return float(values[round(at / 100 * (len(values) - 1))]) if len(values) else 0.0


def deadlines(result: BacktestResult) -> Drawing:
    """Missed deadlines by policy, and how many of them nobody could have met."""
    from matplotlib.ticker import MaxNLocator

    place = np.arange(len(result.runs), dtype=float)[::-1]
    impossible = np.array([run.impossible for run in result.runs], dtype=float)
    avoidable = np.array([run.deadline_misses for run in result.runs], dtype=float) - impossible

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.barh(place, avoidable, 0.55, color=COLOURS["carbon"], label="could have been met")
        axes.barh(place, impossible, 0.55, left=avoidable, color=COLOURS["now"], hatch="////", edgecolor=COLOURS["paper"],
                  lw=0, label="impossible from the start")  # fmt: skip
        for y, run in zip(place, result.runs, strict=True):
            share = f" ({run.deadline_misses / run.jobs:.2%})" if run.deadline_misses and run.jobs else ""
            axes.annotate(
                f"{run.deadline_misses:,}{share}", (run.deadline_misses, y), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=10.5,
            )  # fmt: skip
        axes.set_xlim(0, max(1.0, float((avoidable + impossible).max()) * 1.35))
        axes.set_yticks(place, [run.label for run in result.runs])
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axes.grid(axis="y", visible=False)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set_xlabel("jobs that missed their deadline")
        figure.legend(loc="outside lower center", ncols=2)

    words = "; ".join(f"{run.label}: {run.deadline_misses:,} of {run.jobs:,}" for run in result.runs)
    fewest = min(run.deadline_misses for run in result.runs)
    caption = (
        "No policy missed any." if not (avoidable + impossible).any() else f"The fewest that any policy missed: {fewest:,}."
    )
    return drawn("deadlines", "Missed deadlines", caption, f"{words}.", (_WIDTH, 100 + 26 * len(result.runs)), draw)


# --- load against price and carbon ----------------------------------------------------------------------------------------


def region_day(result: BacktestResult, region: RegionHours, winner: PolicyRun | None, index: int) -> Drawing:
    """A region's mean day: load under run-now and under the best policy, above price and carbon."""

    def of(values: Floats) -> Floats:
        return mean_day(values, result.start)

    loads, signals = _panels(result, region, winner, of)
    edges = np.arange(DAY + 1)

    def ticks(axes: Axes) -> None:
        axes.set_xlim(0, 24)
        axes.set_xticks(range(0, 25, 6), [f"{h:02d}:00" for h in range(0, 25, 6)])
        axes.set_xlabel("hour of the day, UTC")

    caption = f"Mean over {(result.end - result.start).total_seconds() / 86400:,.0f} days. " + _moved(loads, winner)
    return _stacked(f"day{index}", f"{region.region}: the mean day", caption, edges, loads, signals, ticks)


def region_week(result: BacktestResult, region: RegionHours, winner: PolicyRun | None, index: int) -> Drawing:
    """One week of a region as it was simulated: that of median energy under run-now."""
    part = typical_week(_load(result, result.runs[0], region), result.start)
    begin = hour_of(result.start) + timedelta(hours=part.start)

    def of(values: Floats) -> Floats:
        return values[part]

    loads, signals = _panels(result, region, winner, of)
    edges = np.arange(part.stop - part.start + 1)

    def ticks(axes: Axes) -> None:
        every = 24 if len(edges) > 49 else 6
        at = list(range(-begin.hour % every, len(edges), every))
        form = "%a %d %b" if every == 24 else "%H:%M"
        axes.set_xlim(0, len(edges) - 1)
        axes.set_xticks(at, [f"{begin + timedelta(hours=h):{form}}" for h in at], rotation=30 if every == 24 else 0,
                        ha="right" if every == 24 else "center", rotation_mode="anchor")  # fmt: skip
        axes.set_xlabel("UTC")

    whole = part.stop - part.start == WEEK
    last = begin + timedelta(hours=part.stop - part.start)
    title = f"{region.region}: {'a typical week' if whole else 'its hours'}"
    caption = f"{begin:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}" + (
        ", the week in which run-now used nearest the median energy. " if whole else ", all there is. "
    )
    return _stacked(f"week{index}", title, caption + _moved(loads, winner), edges, loads, signals, ticks)


Load = tuple[str, str, Floats]
Signal = tuple[str, str, Floats]


def _load(result: BacktestResult, run: PolicyRun, region: RegionHours) -> Floats:
    """A region's load over the hours of the backtest; what still ran after its end is left out."""
    hours = hours_between(result.start, result.end)
    return fitted(run.load_w.get(region.region, np.zeros(0)), hours, 0.0)


def _panels(
    result: BacktestResult, region: RegionHours, winner: PolicyRun | None, of: Callable[[Floats], Floats]
) -> tuple[list[Load], list[Signal]]:
    base, hours = result.runs[0], hours_between(result.start, result.end)
    loads = [(base.label, COLOURS["now"], of(_load(result, base, region)) / 1000)]
    if winner is not None:
        loads.append((winner.label, COLOURS["best"], of(_load(result, winner, region)) / 1000))
    signals = []
    for name, colour, values in (
        (f"price, {region.currency}/MWh", COLOURS["cost"], region.price),
        ("carbon, g CO2e/kWh", COLOURS["carbon"], region.carbon),
    ):
        if values is not None and not np.isnan(shown := of(fitted(values, hours, np.nan))).all():
            signals.append((name, colour, shown))
    return loads, signals


def _moved(loads: Sequence[Load], winner: PolicyRun | None) -> str:
    if winner is None or len(loads) < 2:
        return ""
    base, own = loads[0][2], loads[1][2]
    if not np.nansum(base) > 0:
        return f"{winner.label} runs here what run-now ran elsewhere." if np.nansum(own) > 0 else "Nothing ran here."
    difference = np.nan_to_num(own - base) / np.nansum(base)
    more, less = float(np.clip(difference, 0, None).sum()), float(np.clip(-difference, 0, None).sum())
    told = f"{winner.label} moved {percent(min(more, less), 0)} of this energy to other hours"
    if abs(more - less) >= 0.005:
        told += f" and used {percent(abs(more - less), 0)} {'more' if more > less else 'less'} here than run-now"
    return f"{told}."


def _stacked(
    name: str,
    title: str,
    caption: str,
    edges: Any,
    loads: Sequence[Load],
    signals: Sequence[Signal],
    ticks: Callable[[Axes], None],
) -> Drawing:
    def draw(figure: Figure) -> None:
        all_axes = figure.subplots(
            1 + len(signals), 1, sharex=True, squeeze=False, height_ratios=[1.5] + [1.0] * len(signals)
        )[:, 0]  # fmt: skip
        top = all_axes[0]
        for i, (label, colour, values) in enumerate(loads):
            if i == 0:
                top.stairs(values, edges, fill=True, color=colour, alpha=0.45, label=label, lw=0)
            else:
                top.stairs(values, edges, baseline=None, color=colour, lw=2.2, label=label)
        top.set_ylim(bottom=0)
        top.set_title("load at the meter, kW")
        top.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, borderaxespad=0, handlelength=1.4, columnspacing=1.2)
        for axes, (label, colour, values) in zip(all_axes[1:], signals, strict=True):
            axes.stairs(values, edges, baseline=None, color=colour, lw=1.8)
            axes.set_title(label)
        for axes in all_axes:
            axes.locator_params(axis="y", nbins=4)
        ticks(all_axes[-1])

    words = "; ".join(
        f"{label}: lowest {np.nanmin(values):,.1f}, highest {np.nanmax(values):,.1f}"
        for label, _, values in [*((f"load under {label}, kW", colour, load) for label, colour, load in loads), *signals]
        if not np.isnan(values).all()
    )
    return drawn(name, title, caption, f"{words}.", (_WIDTH, 120 + 90 * (1 + len(signals))), draw)
