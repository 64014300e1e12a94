"""A report as JSON and its series as CSV; README.md in this folder describes both."""

import csv
import io
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np

from dispatcher.errors import BadInput
from dispatcher.verification.baselines import STORED_PLAN
from dispatcher.verification.delivered import AFTER
from dispatcher.verification.event import EventReport
from dispatcher.verification.holding import Compliance
from dispatcher.verification.obligations import target
from dispatcher.verification.series import MeteredSeries, resampled

SCHEMA = "gridshift.event-report/1"
CSV_COLUMNS = (
    "slot_start_utc",
    "slot_s",
    "metered_w",
    "baseline_w",
    "limit_w",
    "judged",
    "delivered_w",
    "quality",
    "stored_plan_w",
)
#: How much is shown before the notice.
BEFORE = timedelta(hours=1)


@dataclass(frozen=True)
class Shown:
    """The series of a report on the meter's slots, from an hour before the notice to two hours after the event, or to where the
    series ends. W, NaN: unknown."""

    metered: MeteredSeries
    baseline: MeteredSeries | None
    limit: MeteredSeries
    judged: tuple[bool, ...]
    delivered: MeteredSeries | None
    plan: MeteredSeries | None = None


def shown(report: EventReport) -> Shown:
    """Cut to what is shown. A slot has the limit that was owed at its beginning, and is judged if it lies in a hold as a
    whole."""
    metered, window = report.metered, report.facts.window
    first = window.known_at - BEFORE
    if (window.start - window.known_at) > timedelta(hours=4):  # a notice of yesterday
        first = window.start - BEFORE
    lead = int(np.floor(metered.offset_s(first) / metered.step_s + 1e-9))
    stop = int(np.ceil(metered.offset_s(window.end + AFTER) / metered.step_s - 1e-9))
    # Beyond the series lies what is still to come, unless the event does: that was not measured.
    stop = min(stop, max(len(metered), int(np.ceil(metered.offset_s(window.end) / metered.step_s - 1e-9))))
    start, count = metered.at(lead), max(0, stop - lead)
    own = resampled(metered, start, metered.step_s, count, 1.0)
    base = None if report.baseline.series is None else resampled(report.baseline.series, start, metered.step_s, count)
    stored = report.by(STORED_PLAN)
    plan = None if stored is None else resampled(stored, start, metered.step_s, count)
    limit, judged = np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
    for one in report.owed:
        most = target(one, own, base)
        if most is None:
            continue
        a = int(np.ceil(own.offset_s(one.start) / own.step_s - 1e-6))
        b = int(np.ceil(own.offset_s(one.end) / own.step_s - 1e-6))
        limit[max(0, a) : max(0, b)] = most.watts[max(0, a) : max(0, b)]
    for one in report.held:
        if target(one, own, base) is None:
            continue
        hold = int(np.ceil(own.offset_s(one.hold_at) / own.step_s - 1e-6))
        whole = int(np.floor(own.offset_s(one.end) / own.step_s + 1e-6))
        judged[max(0, hold) : max(0, whole)] = True
    gone = None if base is None else replace(own, watts=base.watts - own.watts, estimated=own.estimated)
    return Shown(own, base, MeteredSeries(start, own.step_s, limit), tuple(bool(one) for one in judged), gone, plan)


def to_csv(report: EventReport) -> str:
    """The series, one row a slot of the meter. Times are UTC; an empty field is unknown, or none there; W with three digits."""
    rows = shown(report)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for k in range(len(rows.metered)):
        writer.writerow(
            [
                rows.metered.at(k).isoformat(timespec="milliseconds" if rows.metered.step_s % 1 else "seconds"),
                f"{rows.metered.step_s:g}",
                _w(rows.metered, k),
                _w(rows.baseline, k),
                _w(rows.limit, k),
                int(rows.judged[k]),
                _w(rows.delivered, k),
                rows.metered.quality(k),
                _w(rows.plan, k),
            ]
        )
    return out.getvalue()


def _w(series: MeteredSeries | None, k: int) -> str:
    return "" if series is None or np.isnan(series.watts[k]) else f"{series.watts[k]:.3f}"


def to_json(report: EventReport) -> dict[str, Any]:
    """The report without its series (those are in the CSV), ready for ``json.dumps``. README.md says what each key means."""
    plain: dict[str, Any] = {"schema": SCHEMA}
    for one in fields(report):
        plain[one.name] = _plain(getattr(report, one.name))
    plain["unit"] = {"power": "W", "energy": "kWh", "time": "UTC", "shares": "0 to 1"}
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, MeteredSeries):
        return {"start": _plain(value.start), "step_s": value.step_s, "slots": len(value), "basis": value.basis}
    if isinstance(value, Compliance):
        return {**asdict(value), "share": value.share}
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple | frozenset):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        raise BadInput([("report", value, "a figure must be finite or absent")])
    return value
