"""The Demand response page's parts on what is done and was done: jobs that give way, alarms, flexibility, events that are over.

Each turns answers of the control plane into HTML; it asks nobody anything. What is unknown is called unknown, and what is
simulated is called so wherever it stands.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from urllib.parse import quote

from ui.events import place_text, source_text
from ui.fleet import SIMULATED
from ui.words import UNKNOWN, Json, away_text, box, clock_text, duration_text, number_text, power_text, table, time_of

#: What alarms of demand response are about, by how their keys begin.
_ALARMS = ("limit ", "caps ", "message ", "open ", "floor ", "reference ", "vtn ", "hint ", "meter ", "trigger ")
#: How jobs that give way to a limit say so.
_GIVES_WAY = ("may draw", "about to be limited")
#: Rows shown at most of what is done, and of what is over.
MOST_JOBS, MOST_PAST = 40, 15


# --- what is done for it --------------------------------------------------------------------------------------------


def job_link(job_id: object) -> str:
    """A job's name, which opens it."""
    return f'<a class="gs-id" href="?page=&amp;job={quote(str(job_id), safe="")}">{escape(str(job_id))}</a>'


def gives_way(job: Json, limits: Sequence[Json]) -> str:
    """What a job does for a limit: asked to save, frozen, paused, held; empty where its reason names none."""
    reason = str(job.get("reason") or "")
    names = [str(one["reason"]) for one in limits if len(str(one.get("reason") or "")) > 3 and one.get("event_id")]
    if not any(part in reason for part in (*_GIVES_WAY, *names)):
        return ""
    if job.get("frozen_at"):
        return "frozen"
    return {"pausing": "asked to pause", "paused": "paused", "queued": "held"}.get(str(job.get("state")), "")


def doing(jobs: Sequence[Json], limits: Sequence[Json], fleet: Json | None, now: datetime, cut: bool) -> str:
    """Caps, and the jobs that stand back for a limit, with the sentence of each. ``cut``: not all jobs were looked at."""
    found = [(word, job) for job in jobs if (word := gives_way(job, limits))]
    counted = {word: sum(1 for one, _ in found if one == word) for word in ("asked to pause", "frozen", "paused", "held")}
    least = "at least " if cut else ""
    chips = [_caps(fleet)]
    chips += [_chip(f"{least}{count}", f"job{'' if count == 1 else 's'} {word}", count) for word, count in counted.items()]
    rows: list[Sequence[str]] = [
        (
            f"<b>{word}</b>{_since(job, now)}",
            job_link(job.get("id")),
            f'<span class="gs-id">{escape(str(job["reason"]))}</span>',
        )
        for word, job in found[:MOST_JOBS]
    ]
    rows += _capped_rows(fleet)[: max(0, MOST_JOBS - len(rows))]
    listed = table([("What", "gs-keep"), ("Job", "gs-broad"), ("Why", "gs-broad")], rows, stacks=True) if rows else ""
    more = f'<div class="gs gs-dim">and {len(found) - MOST_JOBS} more jobs</div>' if len(found) > MOST_JOBS else ""
    return f'<div class="gs gs-counts">{"".join(chips)}</div>{listed}{more}'


def _chip(count: str, what: str, some: int) -> str:
    return f'<span class="gs-count {"" if some else "gs-zero"}"><b>{count}</b> {escape(what)}</span>'


def _since(job: Json, now: datetime) -> str:
    at = time_of(job.get("frozen_at"))
    return f"<small>since {clock_text(at, now)} UTC, {away_text(at, now)}</small>" if at is not None else ""


def _event_caps(fleet: Json | None) -> list[tuple[Json, Json, Json]]:
    """(node, gpu, lease) of each GPU that is capped for an event: the lowest lease of each."""
    found = []
    for region in (fleet or {}).get("regions") or ():
        for branch in region.get("branches") or ():
            for node in branch.get("nodes") or ():
                leases = [one for one in node.get("leases") or () if one.get("kind") == "event"]
                for gpu in node.get("gpus") or ():
                    own = [one for one in leases if one.get("uuid") == gpu.get("uuid")]
                    if own:
                        found.append((node, gpu, min(own, key=lambda one: float(one["limit_w"]))))
    return found


def _caps(fleet: Json | None) -> str:
    if fleet is None:
        return f'<span class="gs-count">GPUs capped: {UNKNOWN}</span>'
    found = _event_caps(fleet)
    draw: Json = fleet.get("draw") or {}
    if not draw.get("gpus"):
        return f'<span class="gs-count">GPUs capped: {UNKNOWN}, no agent tells of any</span>'
    wrong = sum(1 for _, gpu, _ in found if (gpu.get("cap") or {}).get("state") != "enforced")
    silent = sum(1 for node, _, _ in found if node.get("silent"))
    notes = [f"{wrong} of them not as set"] if wrong else []
    notes += [f"{silent} on silent nodes"] if silent else []
    what = f"of {draw['gpus']} GPUs capped for a limit" + (f" ({', '.join(notes)})" if notes else "")
    return _chip(str(len(found)), what, len(found)) + (f" {SIMULATED}" if draw.get("simulated") else "")


def _capped_rows(fleet: Json | None) -> list[Sequence[str]]:
    """A row for the GPUs of one job, or of none, that one sentence caps."""
    groups: dict[tuple[str, str], list[tuple[Json, Json]]] = {}
    for _, gpu, lease in _event_caps(fleet):
        for job in gpu.get("jobs") or ("",):
            groups.setdefault((str(job), str(lease.get("reason") or "")), []).append((gpu, lease))
    rows: list[Sequence[str]] = []
    for (job, reason), members in sorted(groups.items()):
        low, high = (pick(float(lease["limit_w"]) for _, lease in members) for pick in (min, max))
        at = power_text(low) if low == high else f"{power_text(low)} to {power_text(high)}"
        count = f"{len(members)} GPU{'' if len(members) == 1 else 's'}"
        shown = job_link(job) if job else '<span class="gs-dim">no job of gridshift</span>'
        rows.append((f"<b>capped</b><small>{count} at {at}</small>", shown, escape(reason or UNKNOWN)))
    return rows


# --- alarms ---------------------------------------------------------------------------------------------------------


def alarms(status: Json, now: datetime) -> str:
    """Alarms of demand response in red with their sentences; how many others there are."""
    told: Sequence[Json] = status.get("alarms") or ()
    ours = [one for one in told if str(one.get("key")).startswith(_ALARMS)]
    boxes = []
    for alarm in ours:
        since = time_of(alarm.get("since"))
        age = f"since {clock_text(since, now)} UTC, {away_text(since, now)}" if since is not None else ""
        mark = '<b><span aria-hidden="true">▲</span> ALARM</b>'
        sentence = escape(str(alarm.get("sentence")))
        boxes.append(box("alarm", f'{mark} {sentence} <span class="gs-dim">({age})</span>', "alert"))
    others = len(told) - len(ours)
    rest = f'<div class="gs gs-dim">{others} of other things, on <a href="?page=">Jobs and plan</a>.</div>' if others else ""
    return ("".join(boxes) or box("fine", "No alarm of demand response.")) + rest


# --- flexibility ----------------------------------------------------------------------------------------------------


def flexibility(place: Json, region: str) -> str:
    """How much less a place could draw now, by for how long; what stays whatever is asked; and what to know of that."""
    draw = place.get("draw_w")
    mark = f" {SIMULATED}" if place.get("basis") == "simulated" else ""
    told = f"draws {power_text(draw)} ({place.get('basis')})" if draw is not None else f"draw {UNKNOWN}"
    told += f": {place['reason']}" if place.get("reason") else ""
    title = f"<h4>{escape(place_text(region, place.get('branch')))}{mark}</h4>{escape(told)}"
    rows = [
        (
            duration_text(one.get("for_s")),
            power_text(one.get("caps_w")),
            power_text(one.get("pauses_w")),
            f"<b>{power_text(one.get('total_w'))}</b>",
            UNKNOWN if draw is None or one.get("total_w") is None else power_text(max(0.0, draw - one["total_w"])),
            duration_text(one["within_s"]) if one.get("within_s") is not None else "",
        )
        for one in place.get("sheds") or ()
    ]
    names = ("For", "Caps", "Pauses besides", "Together", "Then drawn", "Pauses take")
    head = [(name, "gs-num" if i else "gs-keep") for i, name in enumerate(names)]
    return f'<div class="gs">{title}</div>{table(head, rows)}{_stays(place.get("stays"))}{_notes(place)}'


def _stays(stays: Json | None) -> str:
    if stays is None:
        return f'<div class="gs gs-dim">What stays whatever is asked: {UNKNOWN}</div>'
    names = (
        ("flex-0 jobs", "flex_0_w"),
        ("others at their lowest", "floor_w"),
        ("at rest", "at_rest_w"),
        ("no job's", "other_w"),
    )
    parts = [f"{name} {power_text(stays.get(key))}" for name, key in names]
    return f'<div class="gs">Stays whatever is asked: {escape(", ".join(parts))}</div>'


def _notes(place: Json) -> str:
    return "".join(f'<div class="gs gs-dim">{escape(str(note))}</div>' for note in place.get("notes") or ())


# --- what is over ---------------------------------------------------------------------------------------------------


def event_key(event: Json) -> tuple[str, str, int]:
    """What a report of an event is remembered under."""
    return str(event.get("source")), str(event.get("event_id")), int(event.get("version") or 0)


def report_path(event: Json) -> str:
    """Where an event's report is."""
    return f"/v1/events/{quote(str(event['source']), safe='')}/{quote(str(event['event_id']), safe='')}/report"


def past_events(events: Iterable[Json], most: int = MOST_PAST) -> list[Json]:
    """Events that are over, the last one first."""
    over = [one for one in events if one.get("state") in ("expired", "cancelled") and one.get("region")]

    def ended(event: Json) -> str:
        return str(event.get("received_at") if event.get("state") == "cancelled" else event.get("end"))

    return sorted(over, key=ended, reverse=True)[:most]


def past(
    events: Sequence[Json], reports: Mapping[tuple[str, str, int], Json | str], now: datetime, address: str, linked: bool
) -> str:
    """Events that are over, with what each delivered. ``reports`` holds a report, or why there is none; those that are
    missing have not been asked for yet. ``linked``: a browser may open the report at ``address`` without a token."""
    if not events:
        return '<div class="gs gs-dim">No event ended in the last 30 days.</div>'
    rows = []
    for event in events:
        start, end = time_of(event.get("start")), time_of(event.get("end"))
        cancelled = event.get("state") == "cancelled"
        stopped = time_of(event.get("received_at")) if cancelled else None
        finish = f"cancelled {clock_text(stopped, now)}" if cancelled else clock_text(end, now)
        verdict, delivered = _outcome(reports.get(event_key(event)))
        test = " · test" if event.get("test") else ""
        where = escape(place_text(event.get("region"), event.get("branch")))
        rows.append(
            (
                f"{clock_text(start, now)} to <br>{finish}",
                f"<b>{where}</b> to {power_text(event.get('limit_w'))}"
                f'<small class="gs-id">{escape(source_text(event) + test)}</small>',
                verdict,
                delivered,
                _report_link(event, address, linked),
            )
        )
    head = [("UTC", "gs-when"), *((name, "gs-broad") for name in ("Where and how much", "Verdict", "Delivered", "Report"))]
    return table(head, rows, stacks=True)


def _outcome(report: Json | str | None) -> tuple[str, str]:
    """(verdict, what was delivered) as HTML."""
    if report is None:
        return '<span class="gs-dim">being worked out ...</span>', ""
    if isinstance(report, str):
        return f"{UNKNOWN}<small>{escape(report)}</small>", f"amount {UNKNOWN}"
    verdict = str(report.get("verdict") or UNKNOWN)
    mark = (
        f'<span class="gs-red">{escape(verdict)}</span>'
        if verdict in ("missed", "not proven", "partly judged")
        else f"<b>{escape(verdict)}</b>"
    )
    basis = str((report.get("metered") or {}).get("basis") or "")
    mark += f" {SIMULATED}" if basis.startswith("SIMULATED") else ""
    made: Json | None = report.get("delivered")
    if made is None:
        return f"{mark}<small>{escape(str(report.get('headline') or ''))}</small>", f"amount {UNKNOWN}"
    mean_w, kwh = (made.get("mean_w") or {}).get("value"), (made.get("energy_kwh") or {}).get("value")
    told = f"<b>{power_text(mean_w)}</b> mean, {number_text(kwh, 'kWh')}"
    if made.get("performance") is not None:
        told += f"<small>{number_text(100.0 * float(made['performance']), '%', 1)} of what was due</small>"
    return f"{mark}<small>{escape(str(report.get('headline') or ''))}</small>", told


def _report_link(event: Json, address: str, linked: bool) -> str:
    event_id, source = shlex.quote(str(event["event_id"])), shlex.quote(str(event["source"]))
    command = f"gridshift events report --source {source} --html report.html -- {event_id}"  # ids may begin with a dash
    if not linked:
        return f'<code class="gs-id">{escape(command)}</code><small>a browser has no token</small>'
    url = escape(f"{address}{report_path(event)}?format=html", quote=True)
    return f'<a href="{url}" target="_blank" rel="noopener" title="{escape(command, quote=True)}">HTML report</a>'


def how_to(regions: Sequence[Json]) -> str:
    """What to do where no event was ever heard of."""
    region = str(regions[0]["name"]) if regions else "REGION"
    command = f"gridshift events create --region {shlex.quote(region)} --limit-w 40000 --duration 1h --test"
    return box(
        "fine",
        "<b>No event is known.</b> A utility or aggregator sends them as a signed webhook or over OpenADR: name it under"
        " <code>[[event_source]]</code> in <code>gridshift.toml</code>. Your own come with"
        f" <code>{escape(command)}</code> (a test), or as <code>POST /v1/events</code>."
        " <code>gridshift events explain</code> says how a message is understood, without acting.",
    )
