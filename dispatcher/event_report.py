"""The report of a stored event: what was asked of the site and when, what its meter says, and what that was worth.

It reads the store, the meters and the book of energy, and hands all of it to `verification`, which knows none of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise

import numpy as np

from dispatcher.config import Config
from dispatcher.config_events import EventSourceConfig
from dispatcher.config_programme import ProgrammeConfig
from dispatcher.dr.budgets import binds
from dispatcher.dr.ven3 import FALLBACK
from dispatcher.errors import IllegalMove, NotFound
from dispatcher.event_jobs import NOT_COUNTED, Told, names_of, tier_costs
from dispatcher.event_series import BRIDGED, drawn_by_agents, joined, series_of, usual_length_s
from dispatcher.power.energy import EnergyBook
from dispatcher.power.site_meters import SiteMeters
from dispatcher.store import BeforeEvent, GridEvent, GridEventChange, GridStep, Job, Store
from dispatcher.stored_baselines import Later, jobs_since, stored_baselines
from dispatcher.verification.baselines import (
    DAY_METHODS,
    SLOT_S,
    TEN_IN_TEN,
    Baseline,
    BaselineRefused,
    DayMethod,
    Refusable,
    SameDay,
    firm_service_level,
    first_that_holds,
    meter_before,
    of_like_days,
)
from dispatcher.verification.delivered import AFTER
from dispatcher.verification.like_days import Calendar, EventWindow, like_days
from dispatcher.verification.obligations import Segment, Version, in_force
from dispatcher.verification.programme import Programme
from dispatcher.verification.report import EventFacts, EventReport, TierCost, event_report
from dispatcher.verification.series import MeteredSeries, resampled
from policies.durations import parse_duration
from policies.sentences import some
from policies.world import JobState

#: How long before the notice and after the end the meter is read, s by s: for what was drawn just before, and for the rebound.
BEFORE = timedelta(hours=12)
_MARGIN = timedelta(hours=1)
#: Past days that may stand for the event's, and how many are read at a time.
LOOKBACK_DAYS, _DAYS_TOGETHER = 45, 9
#: An event of up to so long is measured by the meter just before it, where no programme says otherwise.
_SHORT = timedelta(minutes=30)
#: Minutes of energy are read as hours when they are older than this: so old, they are about to be summed.
_MINUTES_FOR = timedelta(hours=49)
#: Jobs that are looked at.
JOBS_COVERED = 10_000
_MINUTE_S, _HOUR_S = 60, 3600
_NEVER = datetime.max.replace(tzinfo=UTC)


class NotBegun(IllegalMove):
    """The event has not begun, or nothing is measured of it yet: there is no report."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a report's facts come from."""

    config: Config
    store: Store
    meters: SiteMeters
    energy: EnergyBook


def report_of(sources: Sources, source: str, event_id: str, now: datetime) -> EventReport:
    """The report of an event, as far as it has come at ``now``. Blocks: it reads days of measurements.

    Raises NotFound for no such event, NotBegun for one that is still to come, IllegalMove for one that limits nothing or where
    time is replayed, StoreUnavailable.
    """
    event = sources.store.grid_event(source, event_id)
    if event is None or not event.region or event.region not in {region.name for region in sources.config.regions}:
        where = f" in a region that is configured: it was {event.region}'s" if event is not None and event.region else ""
        raise NotFound(f"there is no event {event_id} from {source}{where}")
    if sources.config.replay is not None:
        raise IllegalMove("time is replayed here, and meters run by the wall's clock: what they say is of another time")
    changes = sources.store.grid_event_changes(source, event_id)
    versions = versions_of(event, changes, _response_s(sources.config, source))
    asked = _asked(versions)
    if asked is None:
        raise IllegalMove(f"event {event_id} from {source} limits nothing, so there is nothing to measure")
    start, end = asked
    if start >= now and not event.cancelled:
        until = "its release" if end is None else f"{end:%Y-%m-%d %H:%M:%S} UTC"
        raise NotBegun(
            f"event {event_id} is scheduled from {start:%Y-%m-%d %H:%M:%S} UTC to {until}; it has a report once it has begun"
        )
    return _Maker(sources, event, changes, versions, start, end, now).report()


# --- what was asked -----------------------------------------------------------------------------------------------


def versions_of(event: GridEvent, changes: Iterable[GridEventChange], response_s: float = 0.0) -> tuple[Version, ...]:
    """The event as it stood from each receipt on. ``response_s`` is how long after a message the limit may take to hold.

    Events from before histories were kept have one version, which counts from the event's last receipt.
    """
    taken = [one for one in changes if one.steps is not None and one.what in ("accepted", "changed", "cancelled")]
    if not taken:
        steps = () if event.cancelled else event.steps
        received_at = event.received_at if event.cancelled else min(event.received_at, event.start)
        made = [Version(received_at, segments_of(steps, event.received_at, response_s), f"version {event.version}")]
        if event.cancelled:
            asked = segments_of(event.steps, event.start, response_s)
            made.insert(0, Version(min(event.start, event.received_at - timedelta(seconds=1)), asked, "as last stored"))
        return tuple(made)
    return tuple(
        Version(
            one.at,
            () if one.what == "cancelled" else segments_of(_after(one.steps or (), one.at), one.at, response_s),
            f"version {one.version}" + (", cancelled" if one.what == "cancelled" else ""),
        )
        for one in taken
    )


def opted_out_spans(
    changes: Iterable[GridEventChange], start: datetime, end: datetime
) -> tuple[tuple[datetime, datetime], ...]:
    """When within ``[start, end)`` an operator had opted out of an event, from its history."""
    spans: list[tuple[datetime, datetime]] = []
    since: datetime | None = None
    for one in sorted((one for one in changes if one.what in ("opted_out", "opted_in")), key=lambda one: (one.at, one.seq)):
        if one.what == "opted_out":
            since = since or one.at
        elif since is not None:
            spans.append((since, one.at))
            since = None
    if since is not None:
        spans.append((since, end))
    cut = [(max(a, start), min(b, end)) for a, b in spans]
    return tuple((a, b) for a, b in cut if b > a)


def _after(steps: Sequence[GridStep], at: datetime) -> list[GridStep]:
    """Without what was over by then, which an earlier version asked for."""
    return [one for one in steps if one.end is None or one.end > at]


def segments_of(steps: Sequence[GridStep], received_at: datetime, response_s: float = 0.0) -> tuple[Segment, ...]:
    """The steps one after the other; where several hold at once the strictest does. Each may take its own ramp, and what is
    left of ``response_s`` since the message came."""
    ends = {one.end or _NEVER for one in steps}
    edges = sorted({one.start for one in steps} | ends)
    found: list[Segment] = []
    for begin, stop in pairwise(edges):
        here = [one for one in steps if one.start <= begin and (one.end or _NEVER) >= stop]
        if not here:
            continue
        strictest = min(here, key=lambda one: (one.limit_w, one.start))
        ramp_s = (strictest.ramp_s or 0.0) if strictest.start == begin else 0.0
        left_s = response_s - (max(begin, received_at) - received_at).total_seconds()
        end = None if stop == _NEVER else stop
        last = found[-1] if found else None
        if last is not None and last.end == begin and last.limit_w == strictest.limit_w and not ramp_s:
            found[-1] = replace(last, end=end)
        else:
            found.append(Segment(begin, end, strictest.limit_w, None, max(ramp_s, left_s, 0.0)))
    return tuple(found)


def _asked(versions: Sequence[Version]) -> tuple[datetime, datetime | None] | None:
    """From when to when something was owed, had the last word on it been kept to the end that was first asked for (None:
    open); None where no version asked for anything. Of a version that was changed before it began nothing counts."""
    owed = in_force(versions, _NEVER)
    if not owed:
        first = next((one.segments for one in versions if one.segments), ())
        return (first[0].start, first[-1].end) if first else None
    start, end = owed[0].start, owed[-1].end
    later = [two.received_at for two in versions[1:]] + [_NEVER]
    ends = [one.segments[-1].end for one, until in zip(versions, later, strict=True) if one.segments and until > start]
    if end == _NEVER:
        return start, None
    return start, max([end, *(one for one in ends if one is not None)])


def _response_s(config: Config, source: str) -> float:
    found = _source_of(config, source)
    return 0.0 if found is None else found.response_s


def _source_of(config: Config, name: str) -> EventSourceConfig | None:
    return next((one for one in config.event_sources if one.name == name), None)


def programme_of(config: Config, source: str) -> ProgrammeConfig | None:
    """The programme that the events of a source are settled by; None where there is none."""
    return next((one for one in config.programmes if source in one.event_source), None)


def season_of(programme: Programme, at: datetime, zone: Calendar) -> datetime:
    """When the programme's season that ``at`` lies in began: its first month without a break, or the year."""
    day = zone.day(at)
    year, month = day.year, day.month
    if programme.months is None or month not in programme.months or len(programme.months) == 12:
        month = 1
    else:
        while (month - 2) % 12 + 1 in programme.months:
            year, month = (year - 1, 12) if month == 1 else (year, month - 1)
    return datetime(year, month, 1, tzinfo=zone.zone).astimezone(UTC)


def span_of(event: GridEvent, now: datetime) -> tuple[datetime, datetime] | None:
    """When an event limited its site, or will; None where it never does."""
    steps = [one for one in event.steps if not event.cancelled or one.start < event.received_at]
    if not steps:
        return None
    start = min(one.start for one in steps)
    ends = [one.end or max(now, start + timedelta(seconds=1)) for one in steps]
    end = min(max(ends), event.received_at) if event.cancelled else max(ends)
    return (start, end) if end > start else None


# --- the report ---------------------------------------------------------------------------------------------------


class _Maker:
    """One report in the making."""

    def __init__(
        self,
        sources: Sources,
        event: GridEvent,
        changes: Sequence[GridEventChange],
        versions: tuple[Version, ...],
        start: datetime,
        end: datetime | None,
        now: datetime,
    ) -> None:
        self._from, self._event, self._versions, self._now = sources, event, versions, now
        self._changes = changes
        self._region = sources.config.region(event.region)
        self._programme = programme_of(sources.config, event.source)
        self._meter = sources.meters.meter_of(event.region, event.branch)
        self._start, self._end = start, end
        here = sources.energy.known_nodes(event.region) if self._meter is None else []
        self._nodes = [one for one in here if event.branch in (None, one.branch)]
        own = _source_of(sources.config, event.source)
        zone = self._programme.timezone if self._programme else own.timezone if own and own.timezone else "UTC"
        self._all = sources.store.grid_events()
        others = [one for one in self._all if self._is_other(one)]
        self._calendar = Calendar(
            zone,
            frozenset(self._programme.holidays) if self._programme else frozenset(),
            frozenset(self._programme.outage_days) if self._programme else frozenset(),
            tuple(sorted(span for one in others if (span := span_of(one, now)) is not None)),
        )
        self._reference_w = own.reference_w if own is not None else None
        #: How long after its time a reading may come.
        self._late_s = self._meter.delay_s + 3 * self._meter.cadence_s if self._meter is not None else 3.0 * _MINUTE_S
        self._hours_until: datetime | None = None
        self._coarse = False

    def _is_other(self, other: GridEvent) -> bool:
        """Whether another event moved what the meter of this one saw."""
        mine, sources = self._event, {one.name: one for one in self._from.config.event_sources}
        if other.region != mine.region or (other.source, other.event_id) == (mine.source, mine.event_id):
            return False
        if mine.branch is not None and other.branch not in (None, mine.branch):
            return False
        # Cancelled ones did what they did until then; tests that were only recorded, and what was opted out of, did nothing.
        return bool(other.steps) and binds(replace(other, cancelled=False), sources)

    def report(self) -> EventReport:
        """See report_of."""
        near = self._near()
        window = self._window(near)
        baseline, refused, beside = self._baselines(near, window, (near.start, near.end))
        programme = self._programme
        terms = programme.terms() if programme is not None else None
        costs, job_caveats = self._jobs(window)
        facts = EventFacts(
            event_id=self._event.event_id,
            source=self._event.source,
            region=self._event.region + (f" / {self._event.branch}" if self._event.branch else ""),
            window=window,
            reason=self._event.reason,
            test=self._event.test,
            open_end=self._end is None and not self._event.cancelled,
            runs_until=self._end if self._end is not None and self._end > self._now and not self._event.cancelled else None,
            opted_out=self._event.opted_out or "",
            opted_out_spans=opted_out_spans(self._changes, window.start, window.end),
            told_at=self._now,
            late_s=self._late_s,
        )
        made = event_report(
            facts,
            self._committed(),
            near,
            baseline,
            calendar=self._calendar,
            beside=beside,
            refused=refused,
            jobs=costs,
            programme=terms,
            earlier=() if programme is None else earlier_in_season(programme, self._event, self._all, self._now),
            worst_case_w=(self._region.power_limit_w or None) if self._event.branch is None else None,
            reference_w=self._reference_w,
            tolerance_w=programme.tolerance_w if programme is not None else 0.0,
            interval_s=programme.measurement_interval_s if programme is not None else None,
            required_share=programme.required_share if programme is not None else 1.0,
        )
        if not made.owed:
            return made
        return replace(made, caveats=(*made.caveats, *self._caveats(made), *job_caveats))

    def _committed(self) -> tuple[Version, ...]:
        """The versions with the reduction that the programme's terms promise, beside their limits."""
        watts = self._programme.commitment_w if self._programme is not None else None
        if watts is None:
            return self._versions
        return tuple(
            replace(one, segments=tuple(replace(part, committed_w=watts) for part in one.segments)) for one in self._versions
        )

    def _caveats(self, made: EventReport) -> list[str]:
        sources = {one.name: one for one in self._from.config.event_sources}
        said = []
        if self._event.test and not binds(replace(self._event, cancelled=False, opted_out=None), sources):
            said.append("The test was recorded and not acted on, so what the meter saw is no answer to it.")
        if self._hours_until is not None and made.baseline.days:
            said.append(
                f"Measurements from before {self._hours_until:%Y-%m-%d %H:%M} UTC are sums of hours: the baseline's shorter "
                "slots have their hour's mean."
            )
        if self._coarse and made.baseline.days:
            said.append("Past readings are longer than the baseline's slots: those have the mean of their reading.")
        return said

    # --- what was measured ----------------------------------------------------------------------------------------

    def _near(self) -> MeteredSeries:
        """The meter's own slots around the event: from twelve hours before the notice, and the local days that it touches."""
        known_at = min(self._start, self._versions[0].received_at)
        end = min(self._now, self._end) if self._end is not None else self._now
        days = self._calendar.days(self._start, max(end, self._start + timedelta(seconds=1)))
        first = min(max(known_at, self._start - timedelta(days=3)) - BEFORE, self._midnight(days[0]))
        last = min(self._now, max(end + AFTER + _MARGIN, self._midnight(days[-1] + timedelta(days=1))))
        return self._metered(first, max(last, first + timedelta(minutes=1)), None)

    def _midnight(self, day: object) -> datetime:
        year, month, number = day.year, day.month, day.day  # type: ignore[attr-defined]
        return datetime(year, month, number, tzinfo=self._calendar.zone).astimezone(UTC)

    def _metered(self, start: datetime, end: datetime, step_s: float | None) -> MeteredSeries:
        """What is known of ``[start, end)`` on slots of ``step_s``; None: the meter's own, or as long as its readings of the
        event are, which say nothing of shorter times."""
        whole = (self._start, max(min(end, self._end or end), self._start + timedelta(seconds=1)))
        if self._meter is not None:
            spans = self._from.meters.history(self._event.region, self._event.branch, start, end).spans
            own_s = max(self._meter.cadence_s, usual_length_s(spans, *whole))
            return series_of(spans, start, end, step_s or own_s, "site meter")
        old = step_s is not None and start < self._now - _MINUTES_FOR
        region, branch = self._region, self._event.branch
        ids = None if branch is None else [one.node_id for one in self._nodes]
        sums = self._from.energy.sums(start, end, _HOUR_S if old else _MINUTE_S, region=region.name, node_ids=ids)
        spans, basis, _ = drawn_by_agents(sums, self._nodes, region.pue, branch, self._now)
        read = [one for one in spans if one.reason != BRIDGED]
        if hours := [one.end for one in read if (one.end - one.start).total_seconds() > _MINUTE_S]:
            self._hours_until = max([*hours, self._hours_until or hours[0]])
        made = series_of(spans, start, end, step_s or max(_MINUTE_S, usual_length_s(read, *whole)), basis)
        return replace(made, estimated=made.known)

    def _window(self, near: MeteredSeries) -> EventWindow:
        """The event as far as it can be judged: of one that goes on, up to the latest that the meter may have told."""
        end = self._end if self._end is not None and self._end <= self._now else self._now
        if self._event.cancelled:
            # What was asked for; the report itself ends where the last obligation did.
            end = self._end or max(self._event.received_at, self._start + timedelta(seconds=1))
        elif end == self._now:
            known = near.known.nonzero()[0]
            told = near.at(int(known[-1]) + 1) if known.size else near.start
            end = min(end, max(told, end - timedelta(seconds=self._late_s)))
        if end <= self._start:
            raise NotBegun(f"event {self._event.event_id} has only just begun: nothing is measured of it yet")
        return EventWindow(self._versions[0].received_at, self._start, end)

    # --- what would have been -------------------------------------------------------------------------------------

    def _baselines(
        self, near: MeteredSeries, window: EventWindow, around: tuple[datetime, datetime]
    ) -> tuple[Baseline, tuple[tuple[str, str], ...], tuple[Baseline, ...]]:
        """The baseline that counts, those that the data did not carry, and others beside it."""
        terms = self._programme
        short = window.end - window.start <= _SHORT
        chosen = terms.baseline if terms is not None else "meter-before" if short else TEN_IN_TEN.name
        kept = self._from.store.before_event(self._event.source, self._event.event_id)
        plan, unshifted = stored_baselines(kept, window, around, self._later(kept, window))
        method = DAY_METHODS.get(chosen, TEN_IN_TEN)
        history = self._history(near, window, method)
        same_day = self._same_day()

        def days(one: DayMethod, rule: SameDay | None) -> tuple[str, Refusable]:
            name = one.name if rule is None else f"{one.name}, same-day {rule.kind}"
            return name, partial(of_like_days, history, self._calendar, window, one, rule, over=around)

        before_s = parse_duration(terms.meter_before) if terms is not None else 600.0
        before = ("meter before", partial(meter_before, near, window, before_s=before_s, over=around))
        by_days = [days(method, same_day)] if same_day is not None else []
        by_days.append(days(method, None))
        if chosen == "firm-service-level" and terms is not None and terms.firm_service_level_w is not None:
            level_w = terms.firm_service_level_w
            chain: list[tuple[str, Refusable]] = [("firm service level", lambda: firm_service_level(level_w))]
            rest: list[tuple[str, Refusable]] = [*by_days, before]
        else:
            chain = [before, *by_days] if chosen == "meter-before" else [*by_days, before]
            chain = [plan, *chain] if chosen == "plan" else chain
            rest = chain[1:]
        stored = [unshifted] if chosen == "plan" else [plan, unshifted]
        try:
            baseline, refused = first_that_holds(chain)
        except BaselineRefused as error:
            baseline, refused, rest = _none(str(error)), _those_that_hold(chain)[1], []
        beside, _ = _those_that_hold(rest)
        beside_stored, missing = _those_that_hold(stored)
        if kept is not None:  # of events from before anything was kept there is nothing to be said
            refused = (*refused, *missing)
        return baseline, refused, tuple(one for one in (*beside, *beside_stored) if one.method != baseline.method)

    def _later(self, kept: BeforeEvent | None, window: EventWindow) -> Later:
        if kept is None or (kept.plan_w is None and kept.unshifted_w is None):
            return Later()
        found = self._from.store.ray_jobs(JOBS_COVERED, deleted=True)
        return jobs_since(self._from.store, self._from.energy, found, kept, self._event.region, self._region.pue, window)

    def _same_day(self) -> SameDay | None:
        terms = self._programme
        if terms is None:
            return SameDay("multiplicative")
        if terms.adjustment == "none":
            return None
        gap_s = parse_duration(terms.adjustment_gap)
        return SameDay(terms.adjustment, parse_duration(terms.adjustment_window), gap_s, terms.adjustment_cap)

    def _history(self, near: MeteredSeries, window: EventWindow, method: DayMethod) -> MeteredSeries:
        """Past days in slots of a baseline, back to where enough of them may stand for the event's; and the present ones."""
        parts = [self._metered(near.start, near.end, SLOT_S)]
        back, spans = 0, [(window.start, window.end)]
        while back < LOOKBACK_DAYS:
            until = near.start - timedelta(days=back)
            back += _DAYS_TOGETHER
            for day in range(_DAYS_TOGETHER):
                stop = until - timedelta(days=day)
                parts.append(self._metered(stop - timedelta(days=1), stop, SLOT_S))
            history = joined(_on_one_grid(parts))
            found = like_days(history, self._calendar, window, spans, method.of, SLOT_S, lookback_days=back)
            if len(found.eligible) >= method.of:
                break
        past = history.known & (np.arange(len(history)) < history.offset_s(near.start) / history.step_s)
        self._coarse = self._meter is not None and bool(history.estimated[past].any())
        return history

    # --- jobs and money -------------------------------------------------------------------------------------------

    def _jobs(self, window: EventWindow) -> tuple[tuple[TierCost, ...], list[str]]:
        """What it cost the jobs, and what is not in that."""
        store, span = self._from.store, (window.start, window.end)
        found = store.ray_jobs(JOBS_COVERED, deleted=True)
        ended = [job for job in found if job.finished_at is not None]
        told = [Told(job, store.events(job.id)) for job in found if self._may_be_touched(job, window)]
        costs = tier_costs(told, names_of(self._event), span, self._now)
        said = [NOT_COUNTED]
        if gone := sorted(one.job.id for one in told if one.job.deleted_at is not None):
            said.append(f"Jobs that were deleted since count as they were: {some(gone, 5)}.")
        oldest = min((job.finished_at for job in ended if job.finished_at is not None), default=self._now)
        if len(ended) >= JOBS_COVERED and oldest > window.start:
            said.append(f"Jobs that ended before {oldest:%Y-%m-%d %H:%M} UTC were not looked at.")
        return costs, said

    def _may_be_touched(self, job: Job, window: EventWindow) -> bool:
        if job.submitted_at >= window.end or (job.finished_at is not None and job.finished_at <= window.known_at):
            return False
        stood = job.pauses > 0 or job.frozen_at is not None or job.rested_at is not None or job.state is JobState.PAUSING
        waited = job.started_at is None or job.started_at > window.start
        return stood or waited


def earlier_in_season(
    config: ProgrammeConfig, event: GridEvent, others: Iterable[GridEvent], now: datetime
) -> tuple[tuple[datetime, datetime], ...]:
    """The events of a programme that began before this one in the same season; tests are none."""
    own = span_of(event, now)
    if own is None:
        return ()
    since = season_of(config.terms(), own[0], Calendar(config.timezone))
    spans = []
    for one in others:
        if one.source not in config.event_source or one.test or (one.source, one.event_id) == (event.source, event.event_id):
            continue
        if one.event_id == FALLBACK:
            continue  # ours, while its sender was silent
        span = span_of(one, now)
        if span is not None and since <= span[0] < own[0]:
            spans.append(span)
    return tuple(sorted(spans))


def _on_one_grid(parts: Sequence[MeteredSeries]) -> list[MeteredSeries]:
    """Parts whose slots begin alike; a part that has no slots of its own begins as its clock says."""
    first = min(parts, key=lambda one: one.start)
    made = []
    for one in parts:
        off_s = first.offset_s(one.start) % first.step_s
        if min(off_s, first.step_s - off_s) < 1e-3:
            made.append(one)
            continue
        start = one.start - timedelta(seconds=off_s)
        made.append(resampled(one, start, one.step_s, len(one) + 1))
    return made


def _those_that_hold(methods: Iterable[tuple[str, Refusable]]) -> tuple[list[Baseline], tuple[tuple[str, str], ...]]:
    """The baselines that the data carry, and why each of the others is refused."""
    found, refused = [], []
    for name, make in methods:
        try:
            found.append(make())
        except BaselineRefused as error:
            refused.append((name, str(error)))
    return found, tuple(refused)


def _none(why: str) -> Baseline:
    """No baseline: what was drawn can be told, and whether limits held; not what was delivered."""
    return Baseline(
        "none",
        "nothing that the data carry",
        None,
        (why[:1].upper() + why[1:] + ".",),
        ("none holds, so nothing is told of a delivery",),
    )
