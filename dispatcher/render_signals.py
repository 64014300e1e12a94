"""Prices and carbon intensities as the command line shows them to people: tables, and a small plot of characters.

It makes everything from the JSON of the HTTP API and knows nothing of HTTP, files or the present. What is published and what is
forecast differ by character as well as by colour, so that both can be told apart where there are no colours.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from dispatcher.render import Axis, Json, cell, clean, facts, number, span, table, time_of, when

#: Rows of a plot.
HEIGHT = 9
PUBLISHED, FORECAST, BAND = "█", "▒", "░"
_STYLES = {PUBLISHED: "cyan", FORECAST: "magenta", BAND: "dim magenta", "─": "dim"}
_STATE_STYLES = {"fresh": "green", "suspect": "yellow", "stale": "yellow", "failed": "bold red", "disabled": "bold red"}
#: Bases of values that a source gave; all others are ours.
_GIVEN = frozenset({"published", "held", "suspect"})
#: Slots of one basis in a row that are told one by one before the rest is left out.
_PARTS_TOLD = 4


# --- where each signal stands ---------------------------------------------------------------------------------------


def signals_table(signals: Sequence[Json]) -> RenderableType:
    """Every region's signals now, where they come from, and below that what is wrong with a source."""
    if not signals:
        return Text("no region is configured")
    made = table("region", "kind", "now", "basis", "source", "state", "age", right=["now", "age"])
    for signal in signals:
        used = chosen(signal)
        made.add_row(
            cell(signal["region"]),
            cell(_kind(signal)),
            cell(_now(signal)),
            cell(signal.get("basis")),
            cell(_source(signal, used)),
            _state(used.get("state")),
            cell(span(used.get("age_s"))),
        )
    return Group(made, *(Text(clean(line), style="yellow") for signal in signals for line in troubles(signal)))


def chosen(signal: Json) -> Json:
    """The source that a signal is taken from; nothing when there is none."""
    found: Json = next((source for source in signal.get("sources") or () if source["chosen"]), {})
    return found


def troubles(signal: Json) -> Iterator[str]:
    """A sentence for each source that fails, and for each doubt about the one in use."""
    name = f"{signal['region']} {signal['kind']}"
    before_chosen = True
    for source in signal.get("sources") or ():
        before_chosen = before_chosen and not source["chosen"]
        if source["error"] is not None:
            again = when(source["due_at"])
            yield f"{name}: {source['source']} {source['state']}: {source['error']}" + (
                f"; asked again {again}" if again is not None else ""
            )
        elif (source["chosen"] or before_chosen) and source["state"] not in ("fresh", "waiting"):
            yield f"{name}: {source['source']} {source['state']}: {source['why']}"
        if source["chosen"]:
            yield from (f"{name}: {source['source']}: {warning}" for warning in source["warnings"])


def _source(signal: Json, used: Json) -> str:
    """Where a signal comes from; for a tariff that follows a feed, both."""
    source = signal.get("source")
    if source is None:
        return "none yet" if signal["sources"] else "none"
    follows = used.get("source")
    return f"{source} ({follows})" if follows is not None and follows != source else str(source)


def _kind(signal: Json) -> str:
    return "carbon (marginal)" if signal.get("signal") == "carbon_marginal" else str(signal["kind"])


def _now(signal: Json) -> str | None:
    value = number(signal.get("now"), 2)
    low, high = number(signal.get("low"), 1), number(signal.get("high"), 1)
    band = f" ({low}..{high})" if low is not None and high is not None else ""
    return f"{value}{band} {signal.get('unit') or ''}".rstrip() if value is not None else None


def _state(state: object) -> Text:
    return cell(state, _STATE_STYLES.get(str(state), ""))


# --- one signal over time -------------------------------------------------------------------------------------------


def signal_view(signal: Json, width: int) -> RenderableType:
    """One signal as the planner sees it: what is known of it, a plot, and the sources that were considered."""
    listed = {**signal, "why": None} if signal.get("sources") else signal  # each source says its own below
    parts: list[RenderableType] = [Text(clean(_head(signal))), *_told(listed), *plot(signal, width)]
    if signal.get("sources"):
        made = facts([(_mark(source), _story(source)) for source in signal["sources"]])
        parts += [Text(), Text("sources, the one in use with *", style="bold"), made]
    return Group(*parts)


def _mark(source: Json) -> str:
    return f"{source['source']}{' *' if source['chosen'] else ''}"


def _story(source: Json) -> str:
    """How a source stands, in a line."""
    parts = [str(source["state"])]
    for words, value in (
        ("heard {} ago", span(source["age_s"])),
        ("known until {}", when(source["known_until"])),
        ("{}", source["quality"]),
        ("asked again {}", when(source["due_at"]) if source["state"] != "disabled" else None),
    ):
        if value is not None:
            parts.append(words.format(value))
    return ", ".join(parts) + f": {source['why']}"


def forecast_view(signal: Json, width: int) -> RenderableType:
    """A signal from now on with the 10 and 90 % quantiles of what is forecast: a plot, and a line an hour."""
    made = table("from (UTC)", "value", "10 %", "90 %", "basis", right=["value", "10 %", "90 %"])
    for hour in hourly(signal):
        made.add_row(
            cell(f"{hour['start']:%m-%d %H:%M}"),
            cell(number(hour["value"]) or "unknown"),
            cell(number(hour["low"])),
            cell(number(hour["high"])),
            cell(hour["basis"]),
        )
    return Group(Text(clean(_head(signal))), *_told(signal), *plot(signal, width), Text(), made)


def _head(signal: Json) -> str:
    return f"{signal['region']} {_kind(signal)} from {signal.get('source') or 'no source'}, {signal['unit']}, times UTC"


def _told(signal: Json) -> list[RenderableType]:
    """The value now, the extremes with their times, and what it all is made of."""
    start, slot = time_of(signal["start"]), timedelta(seconds=signal["slot_s"])
    known = [(value, i) for i, value in enumerate(signal["values"]) if value is not None]
    if start is None or not known:
        return [Text("nothing is known of it")]

    def at(found: tuple[float, int]) -> str:
        return f"{number(found[0])} at {start + found[1] * slot:%m-%d %H:%M}"

    return [
        facts(
            [
                ("now", _now({**signal, "low": None, "high": None}) or "unknown"),
                ("lowest", at(min(known))),
                ("highest", at(max(known, key=lambda found: found[0]))),
                ("made of", made_of(signal)),
                ("why", signal.get("why")),
            ]
        )
    ]


def made_of(signal: Json) -> str:
    """What the values are, in order of time: "published until 01-02 23:00, then model until 01-05 00:00 (of 182 days)"."""
    start, slot = time_of(signal["start"]), timedelta(seconds=signal["slot_s"])
    if start is None:
        return "unknown"
    runs: list[tuple[str, int]] = []
    done = 0
    for basis, members in groupby(signal["basis"]):
        done += sum(1 for _ in members)
        runs.append((basis, done))
    parts = [f"{basis} until {start + end * slot:%m-%d %H:%M}" for basis, end in runs[:_PARTS_TOLD]]
    if len(runs) > _PARTS_TOLD:
        parts.append("and so on in turns")
    reason = signal.get("reason")
    return ", then ".join(parts) + (f" ({reason})" if reason else "")


def hourly(signal: Json) -> Iterator[dict[str, Any]]:
    """Whole hours of UTC with the mean of the slots that are known, and of their quantiles; None where none is."""
    start, slot = time_of(signal["start"]), timedelta(seconds=signal["slot_s"])
    if start is None:
        return

    def hour_of(i: int) -> Any:
        at = start + i * slot
        return at - timedelta(minutes=at.minute, seconds=at.second)

    for hour, members in groupby(range(len(signal["values"])), hour_of):
        slots = list(members)
        yield {
            "start": max(hour, start),
            "basis": ", ".join(dict.fromkeys(signal["basis"][i] for i in slots)),
            **{key: _mean([signal[name][i] for i in slots]) for key, name in _HOURLY.items()},
        }


_HOURLY = {"value": "values", "low": "low", "high": "high"}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# --- the plot -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Column:
    """Mean value and quantiles of some slots; whether a source gave the value."""

    value: float | None
    low: float | None
    high: float | None
    given: bool


def plot(signal: Json, width: int, height: int = HEIGHT) -> list[RenderableType]:
    """The values over time as lines of characters, with the ends of the scale at the left and times below. A gap is unknown."""
    start, slot = time_of(signal["start"]), timedelta(seconds=signal["slot_s"])
    count = len(signal["values"])
    if start is None or all(value is None for value in signal["values"]):
        return []
    label = 9
    room = max(10, min(width - label - 2, 120))
    columns = _columns(signal, count * (room // count) if count <= room else room)
    named = (signal["values"], signal.get("low") or (), signal.get("high") or ())
    levels = [level for numbers in named for level in numbers if level is not None]
    bottom, top = min(levels), max(levels)

    def row(value: float) -> int:
        """0 is the lowest."""
        return round((height - 1) * (value - bottom) / (top - bottom)) if top > bottom else 0

    grid = [[" "] * len(columns) for _ in range(height)]
    if bottom < 0 < top:
        grid[row(0.0)] = ["─"] * len(columns)
    before: int | None = None
    for x, column in enumerate(columns):
        if column.low is not None and column.high is not None:
            for y in range(row(column.low), row(column.high) + 1):
                grid[y][x] = BAND
        if column.value is None:
            before = None
            continue
        here = row(column.value)
        # A step is drawn through, so that the eye can follow it.
        through = range(min(here, before), max(here, before) + 1) if before is not None else (here,)
        for y in through:
            if y != before or y == here:
                grid[y][x] = PUBLISHED if column.given else FORECAST
        before = here
    # The ends of the scale are said, whatever else falls on their rows.
    names = {**({row(0.0): 0.0} if bottom < 0 < top else {}), 0: bottom, height - 1: top}
    lines: list[RenderableType] = []
    for y in reversed(range(height)):
        name = _label(names.get(y))
        lines.append(Text(f"{name:>{label}} ", no_wrap=True, overflow="crop") + _coloured(grid[y]))
    axis = Axis(start, start + count * slot, len(columns))
    lines.append(Text(" " * (label + 1), no_wrap=True, overflow="crop") + axis.ticks())
    return [*lines, _legend(columns)]


def _label(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def _columns(signal: Json, width: int) -> list[_Column]:
    """``width`` columns of as equally many slots as can be, or of a slot each, repeated."""
    values: Sequence[float | None] = signal["values"]
    nowhere: Sequence[float | None] = [None] * len(values)
    low, high = signal.get("low") or nowhere, signal.get("high") or nowhere
    out = []
    for x in range(width):
        left = x * len(values) // width
        right = max(left + 1, (x + 1) * len(values) // width)
        ours = [i for i in range(left, right) if values[i] is not None and signal["basis"][i] not in _GIVEN]
        value = _mean(values[left:right])
        given = value is not None and 2 * len(ours) < sum(values[i] is not None for i in range(left, right))
        out.append(_Column(value, _mean(low[left:right]), _mean(high[left:right]), given))
    return out


def _coloured(characters: Sequence[str]) -> Text:
    made = Text()
    for character, members in groupby(characters):
        made.append("".join(members), style=_STYLES.get(character, ""))
    return made


def _legend(columns: Sequence[_Column]) -> Text:
    shown: Mapping[str, bool] = {
        f"{PUBLISHED} published": any(c.given for c in columns),
        f"{FORECAST} forecast": any(c.value is not None and not c.given for c in columns),
        f"{BAND} 10 to 90 %": any(c.low is not None for c in columns),
        "blank: unknown": any(c.value is None for c in columns),
    }
    return Text("          " + "   ".join(text for text, there in shown.items() if there), style="dim")
