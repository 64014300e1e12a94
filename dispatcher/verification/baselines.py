"""What a site would have drawn without the event, by the methods that utilities settle by.

Pure: a metered series, a calendar and the event's times in, a baseline with its days, its adjustment and its flags out. It
does not know what was promised or paid. Where the data do not carry a method it raises BaselineRefused, and never guesses.

Formulas follow the public descriptions of the programmes; which programme wants which variant stands with each method, and the
programme's current manual decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import numpy as np

from dispatcher.errors import BadInput, GridshiftError
from dispatcher.verification.like_days import Calendar, EventWindow, Span, like_days, load_on, slots_in
from dispatcher.verification.series import MIN_COVERAGE, Floats, MeteredSeries, aware, coverage, mean_w, resampled
from policies.sentences import kw

SLOT_S = 300.0
#: Names of the two baselines that are kept when notice of an event comes.
STORED_PLAN, COUNTERFACTUAL = "stored plan", "counterfactual schedule"


class BaselineRefused(GridshiftError):
    """The data do not carry this baseline. ``reason`` is one word for programs, the message says it to people."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True)
class Adjustment:
    """What a same-day adjustment did: its window W, the ratio or shift (W) found there, and what was used after the cap."""

    kind: str
    start: datetime
    end: datetime
    metered_w: float
    baseline_w: float
    found: float
    used: float
    cap: float | None

    @property
    def clipped(self) -> bool:
        """Whether the cap cut it."""
        return self.found != self.used


@dataclass(frozen=True)
class Baseline:
    """The expected load without the event. ``series`` is None where the method measures no delivery (a firm service level).

    ``sentences`` say how it was made; ``flags`` are weaknesses that whoever settles must be told.
    """

    method: str
    source: str
    series: MeteredSeries | None
    sentences: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    days: tuple[date, ...] = ()
    passed_over: tuple[tuple[date, str], ...] = ()
    adjustment: Adjustment | None = None
    service_level_w: float | None = None


@dataclass(frozen=True)
class DayMethod:
    """The mean of the ``pick`` days of highest energy in the event's hours among the latest ``of`` eligible ones.

    With fewer than ``of`` it uses what there is down to ``minimum``, and says so; below that it refuses.
    """

    name: str
    pick: int
    of: int
    minimum: int
    source: str


#: CAISO's baseline for proxy demand resources (BAWG report, 2017), and the GB Demand Flexibility Service's (2022 rules).
TEN_IN_TEN = DayMethod("10-in-10", 10, 10, 5, "CAISO's 10-of-10 (BAWG report of 2017)")
#: The middle ground of several US utilities' programmes.
FIVE_IN_TEN = DayMethod("5-in-10", 5, 10, 5, "the high 5 of 10 of several US utilities")
#: PJM's customer baseline: the four highest of five like days.
FOUR_IN_FIVE = DayMethod("4-in-5", 4, 5, 4, "PJM's high 4 of 5 customer baseline")
#: IESO's: the fifteen highest of twenty business days.
FIFTEEN_IN_TWENTY = DayMethod("15-in-20", 15, 20, 15, "IESO's high 15 of 20")
DAY_METHODS = {one.name: one for one in (TEN_IN_TEN, FIVE_IN_TEN, FOUR_IN_FIVE, FIFTEEN_IN_TWENTY)}


@dataclass(frozen=True)
class SameDay:
    """A same-day adjustment: ``multiplicative`` scales the baseline, ``additive`` shifts it, by what W shows.

    W is ``[t - gap_s - length_s, t - gap_s)``, and t the notice, or the start where there was none before: load that is
    raised once the event is known (pre-running, pre-cooling) is outside of W and cannot inflate the baseline. Most manuals
    count from the start instead; with a notice before W's end there the two differ, ours is the stricter, and the report
    says so.
    ``cap``: largest change, as a share of the baseline (0.2: CAISO's 10-of-10 and IESO's 20 %) or of its mean over W; None:
    none.
    """

    kind: str
    length_s: float = 3 * 3600.0
    gap_s: float = 3600.0
    cap: float | None = 0.2

    def __post_init__(self) -> None:
        if self.kind not in ("multiplicative", "additive"):
            raise BadInput([("kind", self.kind, "must be multiplicative or additive")])
        if self.length_s <= 0 or self.gap_s < 0:
            raise BadInput([("length_s, gap_s", (self.length_s, self.gap_s), "must be above 0 and at least 0 seconds")])
        if self.cap is not None and not self.cap >= 0:
            raise BadInput([("cap", self.cap, "must be a share of at least 0, or none")])

    def span(self, window: EventWindow) -> Span:
        """The window W of an event."""
        end = window.known_at - timedelta(seconds=self.gap_s)
        return end - timedelta(seconds=self.length_s), end


def of_like_days(
    history: MeteredSeries,
    calendar: Calendar,
    window: EventWindow,
    method: DayMethod = TEN_IN_TEN,
    same_day: SameDay | None = None,
    *,
    over: Span | None = None,
    step_s: float = SLOT_S,
    lookback_days: int = 45,
    min_coverage: float = MIN_COVERAGE,
) -> Baseline:
    """B(i): the mean over like days of the load in slot i (W), with the same-day adjustment where one is given.

    ``history`` holds the days before, and for the adjustment the hours before the notice. ``over`` is what the baseline covers
    (default: the event), such as the hours after it for the rebound; days are chosen and ranked by the event alone.
    Sources: see the method and SameDay. Raises BaselineRefused: ``no_history``, ``too_few_days``, ``adjustment_on_event``,
    ``adjustment_on_outage``, ``adjustment_uncovered``, ``adjustment_of_zero``.
    """
    event = (window.start, window.end)
    if not len(history) or not history.known.any():
        raise BaselineRefused("no_history", f"{method.name} needs past days of the meter; it holds none")
    # What the site drew in other events is no measure of what it draws without.
    own = replace(calendar, events=tuple(span for span in calendar.events if span != event))
    clean = history.without(own.events)
    spans = [event]
    if same_day is not None:
        spans.append(same_day.span(window))
        _usable(own, spans[1])
    found = like_days(
        clean, own, window, spans, method.of, step_s, lookback_days=lookback_days, min_coverage=min_coverage
    )  # fmt: skip
    backs = found.eligible
    if len(backs) < method.minimum:
        told = "; ".join(f"{day}: {reason}" for day, reason in found.passed_over[:6]) or "there are none"
        raise BaselineRefused(
            "too_few_days",
            f"{method.name} needs at least {method.minimum} eligible days within {lookback_days} days, "
            f"found {len(backs)} ({told})",
        )

    def load(span: Span, back: int) -> Floats:
        return load_on(clean, own, span[0], step_s, slots_in(span, step_s), back)

    def energy(back: int) -> float:
        return float(np.nanmean(load(event, back)))

    chosen = sorted(sorted(backs, key=lambda back: (-energy(back), back))[: method.pick])
    covered = over or event
    base = MeteredSeries(covered[0], step_s, _mean([load(covered, back) for back in chosen]), basis=f"baseline {method.name}")
    days = tuple(calendar.day(window.start) - timedelta(days=back) for back in chosen)
    flags: list[str] = []
    if len(backs) < method.of:
        flags.append(f"only {len(backs)} of {method.of} eligible days were found within {lookback_days} days")
    if (base_cover := coverage(base, *event)) < 1:
        flags.append(f"the baseline covers {base_cover:.1%} of the event")
    which = "all" if method.pick >= len(backs) else f"the {method.pick} of highest energy"
    sentences = [f"{method.name}: the mean load of {which} of the latest {len(backs)} eligible days, in slots of {step_s:g} s."]
    made = Baseline(method.name, method.source, base, (), tuple(flags), days, found.passed_over)
    if same_day is not None:
        part = MeteredSeries(spans[1][0], step_s, _mean([load(spans[1], back) for back in chosen]))
        made = _adjusted(made, base, history, part, same_day, spans[1], min_coverage)
        sentences.append(_told(made.adjustment, same_day))
    return replace(made, sentences=tuple(sentences))


def _mean(rows: list[Floats]) -> Floats:
    table = np.vstack(rows)
    known = ~np.isnan(table)
    count = known.sum(axis=0)
    out = np.full(table.shape[1], np.nan)
    some = count > 0
    out[some] = np.where(known, table, 0.0).sum(axis=0)[some] / count[some]
    return out


def _usable(calendar: Calendar, span: Span) -> None:
    told = f"the window of the same-day adjustment, {span[0]:%Y-%m-%d %H:%M} to {span[1]:%H:%M} UTC,"
    if any(start < span[1] and span[0] < end for start, end in calendar.events):
        raise BaselineRefused("adjustment_on_event", f"{told} lies in another event")
    if calendar.outage_days.intersection(calendar.days(*span)):
        raise BaselineRefused("adjustment_on_outage", f"{told} lies on an outage day")


def _adjusted(
    made: Baseline, base: MeteredSeries, history: MeteredSeries, part: MeteredSeries, rule: SameDay, span: Span, least: float
) -> Baseline:
    today, then = mean_w(history, *span), mean_w(part, *span)
    if today.value is None or today.coverage < least or then.value is None or then.coverage < least:
        told = f"today's meter {today.coverage:.0%}, the like days {then.coverage:.0%}"
        raise BaselineRefused(
            "adjustment_uncovered",
            f"the same-day adjustment needs {least:.0%} of {span[0]:%H:%M} to {span[1]:%H:%M} UTC: {told}",
        )
    if rule.kind == "multiplicative":
        if then.value <= 0:
            raise BaselineRefused(
                "adjustment_of_zero", "the like days drew nothing in the window, so there is no ratio to them"
            )
        found = today.value / then.value
        used = found if rule.cap is None else float(np.clip(found, 1 - rule.cap, 1 + rule.cap))
        watts = base.watts * used
    else:
        found = today.value - then.value
        most = np.inf if rule.cap is None else rule.cap * abs(then.value)
        used = float(np.clip(found, -most, most))
        watts = base.watts + used
    change = Adjustment(rule.kind, span[0], span[1], today.value, then.value, found, used, rule.cap)
    flags = made.flags
    if change.clipped:
        flags = (*flags, f"the same-day adjustment was cut by its cap of {rule.cap:.0%}")
    name = f"{made.method}, same-day {rule.kind}"
    return replace(made, method=name, series=replace(base, watts=watts), adjustment=change, flags=flags)


def _told(change: Adjustment | None, rule: SameDay) -> str:
    if change is None:
        return ""
    by = f"times {change.used:.3f}" if rule.kind == "multiplicative" else f"plus {kw(change.used)}"
    cap = "no cap" if rule.cap is None else f"cap {rule.cap:.0%}"
    return (
        f"Same-day adjustment, {rule.kind}: {by} ({cap}), from {change.start:%Y-%m-%d %H:%M} to {change.end:%H:%M} UTC, "
        f"which ends before the notice: metered {kw(change.metered_w)}, "
        f"like days {kw(change.baseline_w)}."
    )


def meter_before(
    metered: MeteredSeries,
    window: EventWindow,
    *,
    before_s: float = 600.0,
    recovered_at: datetime | None = None,
    after_s: float = 600.0,
    over: Span | None = None,
    step_s: float | None = None,
    min_coverage: float = MIN_COVERAGE,
) -> Baseline:
    """MBMA, meter before and after: the mean of the last ``before_s`` before the notice, held flat.

    With ``recovered_at`` it goes in a straight line from there to the mean of the ``after_s`` after it. Meant for events of
    up to 30 min (reserves); longer ones are flagged. Counted from the notice, not from the start, so that load raised in
    between does not count. Raises BaselineRefused ``before_uncovered`` or ``after_uncovered``.
    """
    known_at = window.known_at
    since = known_at - timedelta(seconds=before_s)
    before = mean_w(metered, since, known_at)
    if before.value is None or before.coverage < min_coverage:
        raise BaselineRefused(
            "before_uncovered",
            f"the meter covers {before.coverage:.0%} of the {before_s:g} s before the notice; {min_coverage:.0%} are needed",
        )
    covered, step = over or (window.start, window.end), step_s or metered.step_s
    count = slots_in(covered, step)
    watts = np.full(count, before.value)
    sentences = [f"The mean of {since:%Y-%m-%d %H:%M:%S} to {known_at:%H:%M:%S} UTC, before the notice: {kw(before.value)}."]
    if recovered_at is not None:
        recovered = aware("recovered_at", recovered_at)
        if recovered < window.end:
            raise BadInput([("recovered_at", recovered.isoformat(), f"must not be before the end {window.end.isoformat()}")])
        after = mean_w(metered, recovered, recovered + timedelta(seconds=after_s))
        if after.value is None or after.coverage < min_coverage:
            raise BaselineRefused(
                "after_uncovered",
                f"the meter covers {after.coverage:.0%} of the {after_s:g} s after recovery; {min_coverage:.0%} are needed",
            )
        middles = (covered[0] - known_at).total_seconds() + (np.arange(count) + 0.5) * step
        way = np.clip(middles / (recovered - known_at).total_seconds(), 0.0, 1.0)
        watts = before.value + way * (after.value - before.value)
        sentences.append(f"From there in a straight line to {kw(after.value)} at {recovered:%H:%M:%S} UTC.")
    flags = (
        () if (window.end - window.start) <= timedelta(minutes=30) else ("meter-before is meant for events of up to 30 min",)
    )
    series = MeteredSeries(covered[0], step, watts, basis="baseline MBMA")
    name = "meter before" if recovered_at is None else "meter before / meter after"
    return Baseline(name, "MBMA, as for reserve products", series, tuple(sentences), flags)


def firm_service_level(level_w: float) -> Baseline:
    """A firm service level (maximum base load): the site promised to draw at most ``level_w``, whatever it would have drawn.

    Compliance is L(i) <= level (California BIP and others). There is no delivery to measure. Raises BadInput for a level
    below 0.
    """
    if not (np.isfinite(level_w) and level_w >= 0):
        raise BadInput([("level_w", level_w, "must be at least 0 W")])
    told = f"The site's draw is compared with {kw(level_w, exact=True)}; no baseline is needed, and none measures a delivery."
    return Baseline("firm service level", "California BIP", None, (told,), service_level_w=level_w)


def stored_plan(
    schedule: MeteredSeries,
    window: EventWindow,
    made_at: datetime,
    *,
    told: Sequence[str] = (),
    flags: Sequence[str] = (),
    over: Span | None = None,
    step_s: float = SLOT_S,
    min_coverage: float = MIN_COVERAGE,
) -> Baseline:
    """The draw by the plan that stood when notice of the event came, shifting and all: what the event itself changed is the
    difference to it. ``told`` and ``flags`` say more of how it was made and of its weaknesses.

    It must have been made before the notice: raises BaselineRefused ``made_after_notice`` or ``uncovered``.
    """
    method = (STORED_PLAN, "the plan that stood here before the notice")
    first = f"The draw by the plan made at {aware('made_at', made_at):%Y-%m-%d %H:%M:%S} UTC, before the event was known."
    return _as_stored(method, schedule, window, made_at, (first, *told), flags, over, step_s, min_coverage)


def counterfactual(
    schedule: MeteredSeries,
    window: EventWindow,
    frozen_at: datetime,
    *,
    told: Sequence[str] = (),
    flags: Sequence[str] = (),
    over: Span | None = None,
    step_s: float = SLOT_S,
    min_coverage: float = MIN_COVERAGE,
) -> Baseline:
    """A schedule of the load that would have run without any shifting, as computed beforehand.

    For a site that shifts load every day, past days are shaped by its own shifting; this is the honest figure beside the
    meter's baseline. It must rest on nothing from after the notice: raises BaselineRefused ``made_after_notice`` or
    ``uncovered``.
    """
    method = (COUNTERFACTUAL, "the jobs that were there, each run on arrival")
    first = f"The load without any shifting, by what was known at {aware('frozen_at', frozen_at):%Y-%m-%d %H:%M:%S} UTC."
    return _as_stored(method, schedule, window, frozen_at, (first, *told), flags, over, step_s, min_coverage)


def _as_stored(
    method: tuple[str, str],
    schedule: MeteredSeries,
    window: EventWindow,
    made_at: datetime,
    sentences: tuple[str, ...],
    flags: Sequence[str],
    over: Span | None,
    step_s: float,
    min_coverage: float,
) -> Baseline:
    # By the notice alone: where an event had begun before it was told of here, nothing of ours could answer to it sooner.
    if made_at > window.notice_at:
        raise BaselineRefused(
            "made_after_notice",
            f"the schedule was made at {made_at.isoformat()}, after the event was known at {window.notice_at.isoformat()}",
        )
    share = coverage(schedule, window.start, window.end)
    if share < min_coverage:
        raise BaselineRefused("uncovered", f"the schedule covers {share:.0%} of the event; {min_coverage:.0%} are needed")
    covered = over or (window.start, window.end)
    series = resampled(schedule, covered[0], step_s, slots_in(covered, step_s))
    weak = ("this is a model of the load, not a meter's history", *flags)
    return Baseline(method[0], method[1], replace(series, basis=method[0]), sentences, weak)


Refusable = Callable[[], Baseline]


def first_that_holds(methods: list[tuple[str, Refusable]]) -> tuple[Baseline, tuple[tuple[str, str], ...]]:
    """The first baseline of a chain that the data carry, and why each one before it was refused, as (method, sentence).

    Raises BaselineRefused ``none`` with all reasons where none holds.
    """
    refused: list[tuple[str, str]] = []
    for name, make in methods:
        try:
            return make(), tuple(refused)
        except BaselineRefused as error:
            refused.append((name, str(error)))
    raise BaselineRefused("none", "no baseline holds: " + "; ".join(f"{name}: {why}" for name, why in refused))
