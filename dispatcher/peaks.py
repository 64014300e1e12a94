"""Each site's highest draw of the month so far, learned as draws are noted, and the demand charges that the planner sees.

It keeps what it learned in memory only: after a restart it knows the peak that the tariff states, and what it sees from then
on. A peak that is forgotten makes plans hold a lower one than they need to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from policies.world import DemandCharge
from signals.demand_months import DemandMonth, counted, demand_months
from signals.tariffs import Tariff
from signals.time_of_use import months

#: The months and their windows are laid anew each hour of clock time, so far beyond the horizon.
_AGAIN = timedelta(hours=1)


@dataclass
class _Meter:
    """The interval under way, and the highest mean (kW) of each month by its first moment."""

    at: datetime | None = None
    draw_w: float = 0.0
    interval_at: datetime | None = None
    joules: float = 0.0
    peaks_kw: dict[datetime, float] = field(default_factory=dict)
    laid: tuple[DemandMonth, ...] = ()
    laid_at: datetime | None = None


class Peaks:
    """Peaks and demand charges of the regions whose tariff has such a charge; nothing for others. For one thread."""

    def __init__(self, tariffs: Mapping[str, Tariff], horizon: timedelta) -> None:
        self._tariffs = {region: tariff for region, tariff in tariffs.items() if tariff.demand is not None}
        self._meters = {region: _Meter() for region in self._tariffs}
        self._horizon = horizon

    def __bool__(self) -> bool:
        return bool(self._tariffs)

    def note(self, region: str, now: datetime, draw_w: float) -> None:
        """The site draws ``draw_w`` (at the meter) from ``now`` on; what was noted before held until now."""
        tariff, meter = self._tariffs.get(region), self._meters.get(region)
        if tariff is None or tariff.demand is None or meter is None:
            return
        step = timedelta(seconds=tariff.demand.interval_s)
        if meter.at is not None and now < meter.at:
            if meter.at - now <= step:
                return
            meter.at = meter.interval_at = None  # the clock was ahead, and is right again
        at = meter.at or now
        while at < now:
            begin = at - timedelta(seconds=at.timestamp() % tariff.demand.interval_s)
            until = min(now, begin + step)
            if meter.interval_at != begin:
                meter.interval_at, meter.joules = begin, 0.0
            meter.joules += meter.draw_w * (until - at).total_seconds()
            # What is drawn already is in the interval's mean whatever comes; a part that nobody saw adds nothing.
            _raise(tariff, meter, begin, meter.joules / tariff.demand.interval_s / 1000.0, step)
            at = until
        meter.at, meter.draw_w = now, draw_w

    def measured_kw(self, region: str) -> dict[datetime, float]:
        """The highest mean seen, by the first moment of each month."""
        meter = self._meters.get(region)
        return dict(meter.peaks_kw) if meter is not None else {}

    def charges(self, region: str, now: datetime) -> tuple[DemandCharge, ...]:
        """The region's demand charges up to the horizon, for its RegionView; empty without one."""
        tariff, meter = self._tariffs.get(region), self._meters.get(region)
        if tariff is None or meter is None:
            return ()
        if meter.laid_at is None or not meter.laid_at <= now < meter.laid_at + _AGAIN:
            meter.laid, meter.laid_at = tuple(demand_months(tariff, now, now + self._horizon + _AGAIN, {})), now
        return tuple(
            DemandCharge(
                per_kw=month.per_kw,
                peak_w=max(month.peak_kw, meter.peaks_kw.get(month.start, 0.0)) * 1000.0,
                windows=month.windows,
                interval_s=float(month.interval_s),
            )
            for month in meter.laid
        )


def _raise(tariff: Tariff, meter: _Meter, begin: datetime, mean_kw: float, step: timedelta) -> None:
    month = next(months(tariff.zone, begin, begin + step))[0]
    if mean_kw > meter.peaks_kw.get(month, 0.0) and counted(tariff, begin, begin + step):
        meter.peaks_kw[month] = mean_kw
