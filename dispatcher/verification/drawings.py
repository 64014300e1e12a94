"""The drawings of an event's report, each an inline SVG, in the look of the backtest's.

It needs matplotlib (the extra ``report``). Long series are drawn by their lowest and highest values, so that no peak is lost.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np

from dispatcher.backtest.figures import COLOURS, Drawing, drawn, require
from dispatcher.verification.baselines import STORED_PLAN
from dispatcher.verification.event import EventReport
from dispatcher.verification.export import Shown, shown
from dispatcher.verification.series import Floats, MeteredSeries
from dispatcher.verification.wording import percent
from policies.sentences import kw

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Drawing", "energies", "power", "require", "tiers"]

WIDE, NARROW = 1000, 440
#: More slots than this are drawn by their extremes.
_MOST = 900


def _thinned(series: MeteredSeries) -> tuple[Floats, Floats, Floats, Floats]:
    """Edges (s from the start), and mean, lowest and highest kW between them; NaN where nothing is known."""
    count = len(series)
    each = max(1, -(-count // _MOST))
    groups = -(-count // each)
    padded = np.full(groups * each, np.nan)
    padded[:count] = series.watts / 1000
    table = padded.reshape(groups, each)
    known = ~np.isnan(table)
    some = known.any(axis=1)
    mean, low, high = (np.full(groups, np.nan) for _ in range(3))
    mean[some] = np.where(known, table, 0.0).sum(axis=1)[some] / known.sum(axis=1)[some]
    low[some] = np.where(known, table, np.inf).min(axis=1)[some]
    high[some] = np.where(known, table, -np.inf).max(axis=1)[some]
    edges = np.minimum(np.arange(groups + 1) * each, count) * series.step_s
    return edges.astype(np.float64), mean, low, high


def power(report: EventReport) -> Drawing:
    """Draw, baseline and limit over the time around the event."""
    rows = shown(report)
    window, start = report.facts.window, rows.metered.start

    def seconds(at: Any) -> float:
        return float((at - start).total_seconds())

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        edges, mean, low, high = _thinned(rows.metered)
        axes.axvspan(seconds(window.start), seconds(window.end), color=COLOURS["line"], alpha=0.35, lw=0)
        if rows.baseline is not None:
            base = _thinned(rows.baseline)[1]
            known = ~np.isnan(mean) & ~np.isnan(base)
            begins, ends = edges[:-1], edges[1:]
            inside = (ends > seconds(window.start)) & (begins < seconds(window.end))
            after = begins >= seconds(window.end)
            label: str | None
            for where, less, colour, label, hatch in (
                (known & inside, True, COLOURS["best"], "delivered", ""),
                (known & inside, False, COLOURS["carbon"], "above the baseline", "////"),
                (known & after, False, COLOURS["carbon"], "rebound", "////"),
            ):
                chosen = where & (mean != base) & ((mean < base) == less)
                if chosen.any():
                    # A hair where slots straddle an edge is drawn, but the legend need not explain it.
                    label = label if chosen.sum() >= max(2, 0.01 * where.sum()) else None
                    axes.stairs(
                        np.where(chosen, np.maximum(mean, base), np.nan), edges,
                        baseline=np.where(chosen, np.minimum(mean, base), np.nan),
                        fill=True, color=colour, alpha=0.3, lw=0, hatch=hatch, label=label,
                    )  # fmt: skip
            axes.stairs(base, edges, baseline=None, color=COLOURS["now"], lw=2, ls="--", label="expected without the event")
        plan = np.zeros(0) if rows.plan is None or report.baseline.method == STORED_PLAN else _thinned(rows.plan)[1]
        if plan.size:
            axes.stairs(plan, edges, baseline=None, color=COLOURS["ink"], lw=1.4, ls=":",
                        label="planned before the notice")  # fmt: skip
        if len(rows.metered) > _MOST:
            axes.stairs(high, edges, baseline=low, fill=True, color=COLOURS["cost"], alpha=0.25, lw=0)
        axes.stairs(mean, edges, baseline=None, color=COLOURS["cost"], lw=2, label="drawn, metered")
        _guessed(axes, rows)
        limit_edges, limit, _, _ = _thinned(rows.limit)
        if not np.isnan(limit).all():
            axes.stairs(limit, limit_edges, baseline=None, color=COLOURS["carbon"], lw=2.4, label="limit")
        if window.known_at < window.start and window.known_at >= start:
            axes.axvline(seconds(window.known_at), color=COLOURS["ink"], lw=1.2, ls=":")
            axes.annotate(
                "notice", (seconds(window.known_at), 1), xycoords=("data", "axes fraction"), xytext=(-4, -4),
                textcoords="offset points", va="top", ha="right", fontsize=11,
            )  # fmt: skip
        axes.annotate(
            "event", (seconds(window.start), 1), xycoords=("data", "axes fraction"), xytext=(5, -4),
            textcoords="offset points", va="top", fontsize=11,
        )  # fmt: skip
        gone = ~rows.metered.known
        if gone.any():
            part = MeteredSeries(start, rows.metered.step_s, np.where(gone, 1000.0, np.nan))
            axes.stairs(_thinned(part)[1], edges, fill=True, color=COLOURS["c3"], alpha=0.35, lw=0, hatch="....",
                        transform=axes.get_xaxis_transform(), label="not measured")  # fmt: skip
        top = max([1.0, *(float(np.nanmax(one)) for one in (high, limit, plan) if not np.isnan(one).all())])
        axes.set_ylim(0, top * 1.14)
        axes.set_title("kW at the meter" if report.metered.basis == "site meter" else f"kW ({report.metered.basis})")
        _clock(axes, report, rows)
        figure.legend(loc="outside lower center", ncols=6)

    made = report.delivered
    told = f"The draw was {kw(made.mean_w.value)} below what was expected, on average." if made is not None else ""
    weakest = report.tracking.weakest_cut
    if weakest is not None:
        told += f" The weakest minute of the hold was {percent(weakest)} below it."
    return drawn("power", "Power around the event", told.strip(), "", (WIDE, 330), draw)


def _guessed(axes: Axes, rows: Shown) -> None:
    if rows.metered.estimated.any():
        only = MeteredSeries(
            rows.metered.start, rows.metered.step_s, np.where(rows.metered.estimated, rows.metered.watts, np.nan)
        )
        edges, mean, _, _ = _thinned(only)
        axes.stairs(mean, edges, baseline=None, color=COLOURS["c3"], lw=3, label="drawn, estimated")


def _clock(axes: Axes, report: EventReport, rows: Shown) -> None:
    """Ticks at round local times."""
    zone = ZoneInfo(report.timezone)
    length_s = len(rows.metered) * rows.metered.step_s
    every = next((one for one in (300, 600, 900, 1800, 3600, 7200, 14400) if length_s / one <= 14), 21600)
    local = rows.metered.start.astimezone(zone)
    into = (local.hour * 3600 + local.minute * 60 + local.second) % every
    places = np.arange(-into % every, length_s + 1, every)
    axes.set_xticks(places, [f"{(rows.metered.start + timedelta(seconds=float(x))).astimezone(zone):%H:%M}" for x in places])
    axes.set_xlim(0, length_s)
    axes.set_xlabel(f"{report.facts.window.start.astimezone(zone):%d %B %Y}, {report.timezone} time")


def energies(report: EventReport) -> Drawing | None:
    """What was promised, delivered, taken back afterwards, and left in the end; None without a baseline."""
    made, after = report.delivered, report.aftermath
    if made is None or after is None:
        return None
    back = after.rebound_kwh.value
    net, day = report.net_event_kwh, report.net_day_kwh
    bars = [
        ("committed", made.committed_kwh, COLOURS["now"], ""),
        ("delivered", made.energy_kwh.value, COLOURS["best"], ""),
        (f"taken back in {after.hours:g} h", None if back is None else -back, COLOURS["carbon"], "////"),
        ("net, notice to recovery", net.value if net is not None else None, COLOURS["cost"], ""),
    ]  # fmt: skip
    if day is not None and day.coverage >= 0.9:
        bars.append(("net, whole day", day.value, COLOURS["c2"], ""))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        place = np.arange(len(bars), dtype=float)[::-1]
        values = [one[1] or 0.0 for one in bars]
        for y, (_, value, colour, hatch) in zip(place, bars, strict=True):
            axes.barh(y, value or 0.0, 0.6, color=colour, hatch=hatch, edgecolor=COLOURS["paper"], lw=0)
            text = "unknown" if value is None else f"{value + 0.0:,.1f}"
            axes.annotate(text, (max(value or 0.0, 0.0), y), xytext=(5, 0), textcoords="offset points", va="center")
        axes.axvline(0, color=COLOURS["soft"], lw=1)
        axes.set_xlim(min(0.0, *values) * 1.15, max(1e-3, *values) * 1.22)
        axes.set_yticks(place, [one[0] for one in bars])
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("kWh")

    words = "; ".join(f"{name}: {'unknown' if value is None else f'{value:,.1f} kWh'}" for name, value, _, _ in bars)
    caption = "Net counts what was drawn above the baseline before and after the event against the delivery."
    return drawn(
        "energies", "Energy delivered, and what was left of it", caption, f"{words}.", (NARROW, 90 + 34 * len(bars)), draw
    )


def tiers(report: EventReport) -> Drawing | None:
    """Work not done in the event's time by tier, beside what the tier allows; None where nothing is known of it."""
    jobs = [one for one in report.jobs if one.lost_throughput is not None]
    if not jobs:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        place = np.arange(len(jobs), dtype=float)[::-1]
        for y, one in zip(place, jobs, strict=True):
            lost = (one.lost_throughput or 0.0) * 100
            over = one.allowed is not None and lost > one.allowed * 100 + 1e-9
            axes.barh(y, lost, 0.5, color=COLOURS["carbon"] if over else COLOURS["cost"], hatch="////" if over else "",
                      edgecolor=COLOURS["paper"], lw=0)  # fmt: skip
            text = f"{lost:.1f} %" + (" (too much)" if over else "")
            furthest = max(lost, (one.allowed or 0.0) * 100)
            axes.annotate(text, (furthest, y), xytext=(7, 0), textcoords="offset points", va="center")
            if one.allowed is not None:
                axes.plot([one.allowed * 100], [y], "|", color=COLOURS["ink"], ms=24, mew=2.2,
                          label="allowed" if one is next(job for job in jobs if job.allowed is not None) else None)  # fmt: skip
        most = max([5.0, *((one.lost_throughput or 0.0) * 100 for one in jobs), *((one.allowed or 0.0) * 100 for one in jobs)])
        axes.set_xlim(0, most * 1.35)
        axes.set_ylim(-0.6, len(jobs) - 0.4)
        axes.set_yticks(place, [one.tier for one in jobs])
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("work of the event's time not done, %")
        if any(one.allowed is not None for one in jobs):
            figure.legend(loc="outside lower center")

    words = "; ".join(f"{one.tier}: {percent(one.lost_throughput)}" for one in jobs)
    caption = "Lost by the jobs of each tier while the event lasted; the mark is what the tier allows."
    return drawn("tiers", "What it cost the jobs", caption, f"{words}.", (NARROW, 110 + 40 * len(jobs)), draw)
