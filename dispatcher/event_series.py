"""What a site drew, as series that events are measured by: from its meter's readings, or from what agents measured.

Pure: stretches of time with their mean power in, equal slots out. What nobody measured stays unknown; what a long stretch says
of the short slots within it is called estimated.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from dispatcher.power.energy import EnergySum, KnownNode
from dispatcher.power.meter_values import MEASURED, Span
from dispatcher.power.presence import Presence
from dispatcher.verification.series import MIN_COVERAGE, MeteredSeries

#: Why the energy of an interval is known and not how it lies within: its counters ran on while nobody read them.
BRIDGED = "bridged"
#: A stretch so many times as long as a slot says of the slot only what it says of its neighbours.
_LONG = 1.5
_MINUTE_S, _HOUR_S = 60, 3600


def series_of(spans: Sequence[Span], start: datetime, end: datetime, step_s: float, basis: str) -> MeteredSeries:
    """The believed ``spans`` on slots of ``step_s`` over ``[start, end)``: time-weighted means, unknown where less than nine
    tenths of a slot is known. Slots begin where the spans do, as far as those are alike, so that each holds one of them."""
    used = sorted((one for one in spans if one.quality == MEASURED and one.end > one.start), key=lambda one: one.start)
    used = [one for one in used if one.end > start and one.start < end]
    phase_s = _phase_s(used, step_s)
    first_s = np.floor((start.timestamp() - phase_s) / step_s + 1e-6) * step_s + phase_s
    count = max(1, int(np.ceil((end.timestamp() - first_s) / step_s - 1e-6)))
    made = MeteredSeries(datetime.fromtimestamp(first_s, UTC), step_s, np.full(count, np.nan), basis=basis)
    if not used:
        return made
    edges: list[float] = []
    sums: list[tuple[float, float, float]] = []  # joules, known seconds, seconds of long stretches, up to each edge
    joules = known_s = long_s = 0.0
    reached = -np.inf
    for one in used:
        begin, stop = max(one.start.timestamp(), reached), one.end.timestamp()
        if stop <= begin:
            continue
        edges += [begin, stop]
        sums.append((joules, known_s, long_s))
        joules, known_s = joules + one.value * (stop - begin), known_s + stop - begin
        long_s += (stop - begin) if (one.end - one.start).total_seconds() > _LONG * step_s else 0.0
        sums.append((joules, known_s, long_s))
        reached = stop
    ticks = first_s + np.arange(count + 1) * step_s
    table = np.asarray(sums)
    slot_j, slot_s, slot_long_s = (np.diff(np.interp(ticks, edges, table[:, i])) for i in range(3))
    enough = slot_s >= MIN_COVERAGE * step_s - 1e-6
    watts = np.full(count, np.nan)
    watts[enough] = slot_j[enough] / slot_s[enough]
    long = enough & (slot_long_s > 1e-6)
    return replace(made, watts=watts, estimated=long, spread=long)


def _phase_s(spans: Iterable[Span], step_s: float) -> float:
    """Where in a step the spans begin that are as long as one; 0 where there are none."""
    alike = (one for one in spans if abs((one.end - one.start).total_seconds() - step_s) < 1e-3)
    found = Counter(round(one.start.timestamp() % step_s, 3) for one in alike)
    return found.most_common(1)[0][0] if found else 0.0


def usual_length_s(spans: Iterable[Span], start: datetime, end: datetime) -> float:
    """How long the spans of ``[start, end)`` are: half of its known time is in shorter ones. 0 where nothing is known."""
    lengths = sorted(
        ((one.end - one.start).total_seconds(), (min(one.end, end) - max(one.start, start)).total_seconds())
        for one in spans
        if one.quality == MEASURED and one.end > start and one.start < end
    )
    half_s = sum(part_s for _, part_s in lengths) / 2
    for length_s, part_s in lengths:
        half_s -= part_s
        if half_s <= 1e-6:
            return length_s
    return 0.0


def spans_of_energy(
    sums: Iterable[EnergySum], present_s: Callable[[datetime, datetime], float], pue: float
) -> tuple[Span, ...]:
    """The mean power at the meter of the intervals that agents measured: their energy times ``pue``. ``present_s`` tells for
    how long GPUs were there together; where less than nine tenths of that was measured the interval is left out, and what is
    missing of the rest draws what the others do.

    Rows older than minutes are kept say an hour in the place of its first minute, and are taken for what they are. Minutes that
    follow each other and of which more than a tenth is known from the counters alone are one interval (BRIDGED): those tell
    what was drawn in all of it, not when.
    """
    found: list[Span] = []
    for one in sums:
        if one.energy_wh is None:
            continue
        start, end = one.start, one.end
        if (end - start).total_seconds() == _MINUTE_S and one.gpu_seconds > one.gpus * _MINUTE_S * (1 + 1e-6):
            end = start + timedelta(seconds=_HOUR_S)
        expected_s = max(present_s(start, end), one.gpu_seconds)
        covered = one.gpu_seconds / expected_s if expected_s > 0 else 0.0
        if covered < MIN_COVERAGE:
            continue
        watts = one.energy_wh * 3600.0 / (end - start).total_seconds() / covered * pue
        bridged = one.bridged_s > (1 - MIN_COVERAGE) * one.gpu_seconds + 1e-6
        last = found[-1] if found else None
        if bridged and last is not None and last.reason == BRIDGED and last.end == start:
            parts = ((one.end - one.start).total_seconds() * one.value for one in (last, Span(start, end, watts)))
            found[-1] = replace(last, end=end, value=sum(parts) / (end - last.start).total_seconds())
        else:
            found.append(Span(start, end, watts, reason=BRIDGED if bridged else ""))
    return tuple(found)


def drawn_by_agents(
    sums: Sequence[EnergySum], nodes: Sequence[KnownNode], pue: float, branch: str | None, until: datetime
) -> tuple[tuple[Span, ...], str, bool]:
    """What a site with this ``pue``, or a branch of it, drew at the meter by the energy that the agents of its ``nodes``
    measured; on what that rests, in words; and whether any of it is simulated. ``until`` is when it is asked."""
    spans = spans_of_energy(sums, Presence(nodes, until).gpu_seconds, pue if branch is None else 1.0)
    basis = f"GPUs times PUE {pue:g}" if branch is None else "GPUs of the branch, by their agents"
    simulated = any(one.simulated for one in sums)
    return spans, f"SIMULATED {basis}" if simulated else basis, simulated


def joined(parts: Sequence[MeteredSeries]) -> MeteredSeries:
    """Series of one step that follow each other, as one; slots between them are unknown. Of two that tell of one slot the
    first counts."""
    ordered = sorted(parts, key=lambda one: one.start)
    first = ordered[0]
    count = max(round(first.offset_s(one.end) / first.step_s) for one in ordered)
    watts, marks, spread = np.full(count, np.nan), np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    for one in ordered:
        low = round(first.offset_s(one.start) / first.step_s)
        place = slice(low, low + len(one))
        fill = np.isnan(watts[place]) & one.known
        watts[place] = np.where(fill, one.watts, watts[place])
        marks[place] = np.where(fill, one.estimated, marks[place])
        spread[place] = np.where(fill, one.spread, spread[place])
    return replace(first, watts=watts, estimated=marks, spread=spread)
