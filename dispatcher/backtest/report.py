"""What a backtest found, in words and numbers: a headline, one row a policy, a table for terminals and the JSON object.

It computes no energy, cost or carbon of its own, only how the runs differ from ``run-now`` and which one did best. It knows
nothing of files and draws nothing.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.backtest.results import BacktestResult, PolicyRun
from dispatcher.render import cell, clean, facts, number, table

#: From here on kg are told in tonnes and kWh in MWh, so that numbers stay short.
_LARGE = 100_000.0


def change(got: float | None, base: float | None) -> float | None:
    """``got`` against ``base`` as a fraction: -0.12 is 12 % less. None when one is not known or ``base`` is 0; against a
    negative base (money earned by negative prices) less is still negative."""
    if got is None or base is None or base == 0:
        return None
    return (got - base) / abs(base)


# --- which run did best -------------------------------------------------------------------------------------------------


def weights(result: BacktestResult) -> tuple[float, float]:
    """What runs are compared by: a weight on cost, and planning currency per kg of carbon. They are those that the runs were
    planned with, without what is not known of every run; (0, 0) when nothing is. Carbon alone counts where no cost does."""
    price, carbon_price = 1.0, 0.0
    for run in result.runs[1:]:
        found = run.settings.get("price_weight"), run.settings.get("carbon_price")
        if isinstance(found[0], int | float) and isinstance(found[1], int | float):
            price, carbon_price = float(found[0]), float(found[1])
            break
    cost = price if all(run.cost is not None for run in result.runs) else 0.0
    if any(run.carbon_kg is None for run in result.runs):
        return (1.0, 0.0) if cost == 0 and all(run.cost is not None for run in result.runs) else (cost, 0.0)
    return (cost, carbon_price / 1000) if cost > 0 else (0.0, 1.0)


def judged_by(result: BacktestResult) -> str:
    """The weights in words; empty when runs cannot be compared."""
    cost, per_kg = weights(result)
    if per_kg == 0:
        return "cost" if cost > 0 else ""
    return f"cost with carbon at {per_kg * 1000 / cost:,.0f} {result.currency}/t" if cost > 0 else "carbon"


def score(result: BacktestResult, run: PolicyRun) -> float | None:
    """What a run is compared by, lower is better; None when runs cannot be compared."""
    cost, per_kg = weights(result)
    if cost == 0 and per_kg == 0:
        return None
    return cost * (run.cost or 0.0) + per_kg * (run.carbon_kg or 0.0)


def best(result: BacktestResult) -> PolicyRun | None:
    """The best run besides ``run-now``: among those with the fewest missed deadlines the one of the lowest score. None when
    nothing ran besides or nothing can be compared."""
    scored = [(run.deadline_misses, s, i) for i, run in enumerate(result.runs) if i and (s := score(result, run)) is not None]
    return result.runs[min(scored)[2]] if scored else None


# --- words --------------------------------------------------------------------------------------------------------------


def percent(fraction: float | None, digits: int = 1) -> str | None:
    """A fraction as "12.3 %"; no minus before what rounds to zero."""
    if fraction is None:
        return None
    shown = f"{fraction * 100:,.{digits}f} %"
    return shown.lstrip("-") if float(shown.rstrip(" %").replace(",", "")) == 0 else shown


def signed(fraction: float | None, digits: int = 1) -> str | None:
    """A change as "+1.2 %", "-12.3 %" or "0.0 %"."""
    text = percent(fraction, digits)
    return text if text is None or fraction is None or fraction <= 0 or text.startswith("0.0") else f"+{text}"


def digits_of(value: float) -> int:
    """Decimals that say something: few of a large amount, more of one that they would round away."""
    size = abs(value)
    return 0 if size >= 10_000 else 2 if size >= 1 or size == 0 else 4


def carbon(kg: float | None) -> str | None:
    """Carbon in kg or, when it is much, in tonnes."""
    if kg is None:
        return None
    return number(kg / 1000, 1, "t CO2e") if abs(kg) >= _LARGE else number(kg, digits_of(kg), "kg CO2e")


def energy(kwh: float) -> str:
    """Energy in kWh or, when it is much, in MWh."""
    told = number(kwh / 1000, 1, "MWh") if abs(kwh) >= _LARGE else number(kwh, digits_of(kwh), "kWh")
    return told or "unknown"


def money(amount: float | None, currency: str) -> str | None:
    """An amount with its currency."""
    if amount is None:
        return None
    return number(amount, digits_of(amount), currency)


def hours(value: float) -> str:
    """A delay in hours."""
    return f"{value:.1f} h"


def ended_any(run: PolicyRun) -> bool:
    """Whether any job ended under it: without, nothing is known of delays."""
    return not math.isnan(run.delay_mean_h)


def delay(value: float) -> float | None:
    """A delay of a run as a plain number, None when no job ended."""
    return None if math.isnan(value) else float(value)


def span_of(start: datetime, end: datetime) -> str:
    """How long a backtest is, and from when to when."""
    days = (end - start).total_seconds() / 86400
    length = f"{days:,.0f} days" if days >= 2 and abs(days - round(days)) < 0.05 else f"{days * 24:,.0f} hours"
    return f"{length} from {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"


def headline(result: BacktestResult) -> str:
    """What the best policy did, at what delay, against what was possible: the first sentences of every report."""
    base, winner = result.runs[0], best(result)
    if winner is None:
        missing = "no other policy ran" if len(result.runs) == 1 else "neither cost nor carbon is known throughout"
        return f"Simulated: {base.jobs:,} jobs ran at once; nothing can be compared, because {missing}."
    told = _told(
        [
            ("the cost", winner.cost, base.cost, lambda amount: money(amount, result.currency)),
            ("the carbon", winner.carbon_kg, base.carbon_kg, carbon),
        ]
    )
    return " ".join(
        [f"Simulated: {winner.label} would have {told} against running every job at once.", *_at_what(result, winner)]
    )


def _told(pairs: Iterable[tuple[str, float | None, float | None, Callable[[float], str | None]]]) -> str:
    """ "saved 3.0 % of the cost (9.00 EUR) and added 1.0 % to the carbon (2.0 kg CO2e)" """
    parts, last = [], ""
    for what, got, base, tell in pairs:
        by = change(got, base)
        if by is None or got is None or base is None:
            continue
        verb, joined = ("saved", "of") if by <= 0 else ("added", "to")
        parts.append(f"{verb + ' ' if verb != last else ''}{percent(abs(by))} {joined} {what} ({tell(abs(base - got))})")
        last = verb
    return " and ".join(parts) or "changed nothing that is known"


def _at_what(result: BacktestResult, winner: PolicyRun) -> Iterator[str]:
    if ended_any(winner):
        mean, p95 = hours(winner.delay_mean_h), hours(winner.delay_p95_h)
        told = f"Jobs ended {mean} later on average, one in twenty more than {p95} later"
    else:
        told = "No job ended, so that nothing is known of delays"
    yield f"{told}; {missed(winner)}."
    bound = oracle_bound(result)
    if bound:
        yield f"No schedule could have saved more than {bound} (with everything known beforehand and room without end)."


def missed(run: PolicyRun) -> str:
    """Missed deadlines in words."""
    if run.deadline_misses == 0:
        told = "no deadline was missed"
    else:
        told = f"{run.deadline_misses:,} of {run.jobs:,} jobs missed their deadline"
        if run.impossible:
            told += f" ({run.impossible:,} of them could not have met it)"
    return told + (f", {run.unfinished:,} had not ended at the end" if run.unfinished else "")


def oracle_bound(result: BacktestResult) -> str:
    """What the oracle saves, in words; empty when nothing is known of it."""
    base, oracle = result.runs[0], result.oracle
    known = (
        (change(oracle.cost, base.cost), "the cost"),
        (change(oracle.carbon_kg, base.carbon_kg), "the carbon"),
    )
    return " or ".join(f"{percent(-by)} of {what}" for by, what in known if by is not None)


# --- JSON ---------------------------------------------------------------------------------------------------------------


def as_json(result: BacktestResult) -> dict[str, Any]:
    """The whole result as one JSON object. ``cost_vs_run_now`` and ``carbon_vs_run_now`` are changes as fractions: -0.12 is
    12 % less than run-now. What is not known is null."""
    base, oracle = result.runs[0], result.oracle
    return {
        "start": result.start.isoformat(),
        "end": result.end.isoformat(),
        "currency": result.currency,
        "jobs": base.jobs,
        "jobs_file": result.jobs_file,
        "regions": [region.region for region in result.regions],
        "energy_basis": result.energy_basis,
        "headline": headline(result),
        "oracle": {
            "cost": oracle.cost,
            "carbon_kg": oracle.carbon_kg,
            "cost_vs_run_now": change(oracle.cost, base.cost),
            "carbon_vs_run_now": change(oracle.carbon_kg, base.carbon_kg),
        },
        "rows": [row(run, base) for run in result.runs],
        "front": [row(run, base) for run in result.front],
        "assumptions": list(result.assumptions),
        "warnings": list(result.warnings),
    }


def row(run: PolicyRun, base: PolicyRun) -> dict[str, Any]:
    """One policy as JSON."""
    return {
        "policy": run.policy,
        "label": run.label,
        "settings": _plain(run.settings),
        "energy_kwh": float(run.energy_kwh),
        "cost": _number(run.cost),
        "carbon_kg": _number(run.carbon_kg),
        "cost_vs_run_now": change(_number(run.cost), _number(base.cost)),
        "carbon_vs_run_now": change(_number(run.carbon_kg), _number(base.carbon_kg)),
        "delay_mean_h": delay(run.delay_mean_h),
        "delay_p95_h": delay(run.delay_p95_h),
        "deadline_misses": int(run.deadline_misses),
        "impossible": int(run.impossible),
        "unfinished": int(run.unfinished),
        "pauses": int(run.pauses),
        "moves": int(run.moves),
        "gap": _number(run.gap),
        "wall_s": float(run.wall_s),
    }


def _number(value: float | None) -> float | None:
    """A plain float, also of a numpy number."""
    return None if value is None else float(value)


def _plain(settings: Mapping[str, float | str]) -> dict[str, float | str]:
    return {name: value if isinstance(value, str | int) else float(value) for name, value in settings.items()}


# --- the table on a terminal --------------------------------------------------------------------------------------------

#: From so many columns on, a column of the table is shown.
_SHOWN_FROM = {"p95 h": 92, "pauses": 112, "moves": 112, "gap": 112, "seconds": 112}


_LAST = ("pauses", "moves", "gap", "seconds")


def view(result: BacktestResult, width: int = 160) -> RenderableType:
    """The result for people on ``width`` columns: headline, a row a policy between the dumb baseline and the oracle's bound,
    what was assumed."""
    base, winner = result.runs[0], best(result)
    columns = ("policy", f"cost {result.currency}", "+/-", "carbon kg", "+/-", "delay h", "p95 h", "missed", *_LAST)
    empty = {1, 2} if all(run.cost is None for run in result.runs) else set[int]()
    empty |= {3, 4} if all(run.carbon_kg is None for run in result.runs) else set()
    shown = [i for i, name in enumerate(columns) if i not in empty and width >= _SHOWN_FROM.get(name, 0)]
    made = table(*(columns[i] for i in shown), right=columns[1:])
    made.columns[0].no_wrap, made.columns[0].overflow = False, "fold"  # names give way before figures do
    rows = [(_cells(run, base, "bold green" if run is winner else "")) for run in result.runs]
    rows += [_oracle_cells(result)] + [_cells(run, base, "dim") for run in result.front]
    for cells in rows:
        made.add_row(*(cells[i] for i in shown if i < len(cells)))
    parts: list[RenderableType] = [
        Text(clean(headline(result)), style="bold"),
        Text(),
        facts(
            [
                ("jobs", f"{base.jobs:,} of {result.jobs_file}"),
                ("regions", ", ".join(region.region for region in result.regions)),
                ("over", span_of(result.start, result.end)),
                ("energy", f"{energy(base.energy_kwh)} run now ({result.energy_basis})"),
                ("best by", judged_by(result) if winner is not None else None),
            ]
        ),
        Text(),
        made,
        Text("+/- against run-now; delay is the end against running at once: mean, and 95 % of jobs at most", style="dim"),
    ]
    if len(columns) - 1 in shown:
        told = "gap is how far the plans' own objective was above its proven bound; seconds are what the policy's run took here"
        parts.append(Text(told, style="dim"))
    parts += [Text(f"assumed: {clean(sentence)}", style="dim") for sentence in result.assumptions]
    parts += [Text(f"warning: {clean(sentence)}", style="yellow") for sentence in result.warnings]
    return Group(*parts)


def _amount(value: float | None) -> str | None:
    return None if value is None else number(value, digits_of(value))


def _cells(run: PolicyRun, base: PolicyRun, style: str) -> Sequence[Text]:
    texts = (
        run.label,
        _amount(run.cost),
        None if run is base else signed(change(run.cost, base.cost)),
        _amount(run.carbon_kg),
        None if run is base else signed(change(run.carbon_kg, base.carbon_kg)),
        number(delay(run.delay_mean_h), 1),
        number(delay(run.delay_p95_h), 1),
        f"{run.deadline_misses:,}",
        f"{run.pauses:,}",
        f"{run.moves:,}",
        percent(run.gap, 2),
        f"{run.wall_s:.1f}",
    )
    made = [cell(text, style) for text in texts]
    if run.deadline_misses > base.deadline_misses:
        made[7].stylize("bold red")
    return made


def _oracle_cells(result: BacktestResult) -> Sequence[Text]:
    base, oracle = result.runs[0], result.oracle
    texts = (
        "oracle (bound)",
        _amount(oracle.cost),
        signed(change(oracle.cost, base.cost)),
        _amount(oracle.carbon_kg),
        signed(change(oracle.carbon_kg, base.carbon_kg)),
    )
    return [cell(text, "italic") for text in texts]
