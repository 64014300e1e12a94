"""The report of one event as a value, and the facts that it is made from. Making it is report.py's, writing it export.py's."""

from dataclasses import dataclass
from datetime import datetime

from dispatcher.verification.baselines import Baseline
from dispatcher.verification.delivered import Aftermath, Delivered
from dispatcher.verification.holding import Compliance, Rise, Tracking
from dispatcher.verification.like_days import EventWindow
from dispatcher.verification.obligations import Held, Version
from dispatcher.verification.programme import Settlement
from dispatcher.verification.series import Figure, MeteredSeries


@dataclass(frozen=True)
class EventFacts:
    """Who asked for what.

    ``open_end``: the event has not ended, and the window's end is only where measuring stopped; ``runs_until``: likewise, and
    this is when it will end. ``asked_until``: its first
    end, where it was cancelled or shortened on the way; the report sets it, and measures up to where something was owed.
    ``opted_out`` is why the site has opted out, ``opted_out_spans`` when it had, as far as that is on record.
    ``told_at``: as of when this is told (None: when all is in); a reading may come ``late_s`` after the end of its time.
    """

    event_id: str
    source: str
    region: str
    window: EventWindow
    reason: str = ""
    test: bool = False
    open_end: bool = False
    runs_until: datetime | None = None
    opted_out: str = ""
    opted_out_spans: tuple[tuple[datetime, datetime], ...] = ()
    asked_until: datetime | None = None
    told_at: datetime | None = None
    late_s: float = 0.0


@dataclass(frozen=True)
class TierCost:
    """What the event cost the jobs of one tier: how many were touched, how much later they ended, which share of the work
    of the event's time was not done (``allowed`` is the tier's), and deadlines missed. None: not known.
    """

    tier: str
    jobs: int
    delay_mean_s: float | None = None
    delay_max_s: float | None = None
    lost_throughput: float | None = None
    allowed: float | None = None
    deadline_misses: int | None = None


@dataclass(frozen=True)
class Beside:
    """The delivery by another baseline: what that one would have said, with the weaknesses that it has (``flags``). ``series``
    is that baseline itself; None where it measures no delivery."""

    method: str
    energy_kwh: float | None
    performance: float | None
    sentences: tuple[str, ...]
    mean_w: float | None = None
    flags: tuple[str, ...] = ()
    series: MeteredSeries | None = None


@dataclass(frozen=True)
class EventReport:
    """Everything that is said of one event. ``verdict``: ``met``, ``missed``, ``not proven`` (nothing measured was wrong,
    but not all was measured), ``partly judged`` (as ``met``, but the meter's slots reach beyond more than a tenth of what was
    owed), ``opted out``, ``nothing owed`` or ``unknown``; ``headline`` says it in a sentence.
    ``held`` is what the site is judged by: ``owed`` less the time in which it had opted out.
    ``delivered``, ``aftermath`` and the nets are None where there is no baseline. ``coverage`` is the share of the event in
    which power was measured; for ``spread_s`` of the rest the energy of a longer stretch is known, and no power.
    """

    facts: EventFacts
    verdict: str
    headline: str
    timezone: str
    versions: tuple[Version, ...]
    owed: tuple[Held, ...]
    metered: MeteredSeries
    baseline: Baseline
    delivered: Delivered | None
    tracking: Tracking
    compliance: tuple[Compliance, ...]
    rise: Rise | None
    aftermath: Aftermath | None
    net_event_kwh: Figure | None
    net_day_kwh: Figure | None
    coverage: float
    estimated: float
    tolerance_w: float
    interval_s: float
    required_share: float = 1.0
    beside: tuple[Beside, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    jobs: tuple[TierCost, ...] = ()
    settlement: Settlement | None = None
    caveats: tuple[str, ...] = ()
    spread_s: float = 0.0
    held: tuple[Held, ...] = ()

    def by(self, method: str) -> MeteredSeries | None:
        """The expected draw by one method, whether it counts or stands beside; None where it is not among them."""
        if self.baseline.method == method:
            return self.baseline.series
        return next((one.series for one in self.beside if one.method == method), None)
