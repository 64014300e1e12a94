"""The parts of the page that are only shown: each turns answers of the control plane into HTML.

It asks nobody anything and keeps nothing; ``now`` is the control plane's, which may be replaying another day.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import groupby

from ui.words import (
    ACTIVE,
    STATES,
    UNKNOWN,
    Json,
    away_text,
    bar,
    box,
    clock_text,
    duration_text,
    facts,
    number_text,
    power_text,
    table,
    time_of,
)

#: Okabe and Ito's colours, told apart by colour-blind eyes; without black and yellow, which vanish on dark or light.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
#: Wall seconds beyond five periods after which a loop that did not run is called stuck.
STUCK_S = 30.0


def colours(regions: Sequence[Json]) -> dict[str, str]:
    """A colour a region, the same as long as the regions are the same."""
    return {str(region["name"]): PALETTE[i % len(PALETTE)] for i, region in enumerate(regions)}


def chip(colour: str) -> str:
    """A small square of a region's colour."""
    return f'<span class="gs-chip" style="background:{escape(colour)}"></span>'


def header(status: Json, address: str) -> str:
    """Which time it is, whether that is real, and how energy is known."""
    now = time_of(status.get("now"))
    when = f"{now:%a} {now.day} {now:%b %Y %H:%M:%S} UTC" if now is not None else UNKNOWN
    pieces = ['<span class="gs-name">gridshift</span>', f'<span class="gs-now">{when}</span>']
    if status.get("replay"):
        speed = number_text(status.get("speed"), digits=1)
        pieces.append(f'<span class="gs-badge gs-replay">REPLAY x{speed}: not today\'s grid</span>')
    pieces.append(f"<span>energy and power: <b>{escape(str(status.get('energy_basis') or UNKNOWN))}</b></span>")
    pieces.append(f'<span class="gs-dim">{escape(address)} · version {escape(str(status.get("version") or UNKNOWN))}</span>')
    return f'<div class="gs gs-head">{"".join(pieces)}</div>'


def counts(status: Json) -> str:
    """How many jobs are in each state."""
    by_state: Mapping[str, int] | None = status.get("counts")
    if by_state is None:
        return '<div class="gs gs-counts">jobs by state: unknown</div>'
    names = [*STATES, *(name for name in by_state if name not in STATES)]
    cells = [
        f'<span class="gs-count {"" if by_state.get(name) else "gs-zero"}">'
        f"<b>{by_state.get(name, 0):,}</b> {escape(name)}</span>"
        for name in names
        if by_state.get(name) or name in STATES
    ]
    return f'<div class="gs gs-counts">{"".join(cells)}</div>'


def stuck_loops(status: Json) -> list[str]:
    """A sentence for each loop that has not run for far longer than its period."""
    now, speed = time_of(status.get("now")), float(status.get("speed") or 1.0)
    found = []
    for loop in status.get("loops") or ():
        last, period_s = time_of(loop.get("last_run_at")), float(loop.get("period_s") or 0.0)
        if now is None or last is None or speed <= 0:
            continue
        silent_s = (now - last).total_seconds() / speed
        if silent_s > 5 * period_s + STUCK_S:
            found.append(f"loop {loop['name']} has not run for {duration_text(silent_s)}; it should every {period_s:g} s")
    return found


def alarms(status: Json) -> str:
    """Every alarm in red with its sentence, loops in trouble, or that there is nothing."""
    now = time_of(status.get("now"))
    told = {str(alarm.get("key")) for alarm in status.get("alarms") or ()}
    boxes = []
    for alarm in status.get("alarms") or ():
        since = time_of(alarm.get("since"))
        age = f" · {away_text(since, now)}" if since is not None and now is not None else ""
        where = f"{escape(str(alarm['region']))} · " if alarm.get("region") else ""
        boxes.append(
            box(
                "alarm",
                f'<b><span aria-hidden="true">▲</span> ALARM</b> {escape(str(alarm.get("sentence")))}'
                f' <span class="gs-dim">({where}since {clock_text(since, now)}{age})</span>',
                "alert",
            )
        )
    boxes += [box("warn", f"<b>Slow:</b> {escape(sentence)}", "alert") for sentence in stuck_loops(status)]
    for loop in status.get("loops") or ():
        if loop.get("last_error") and f"loop {loop['name']}" not in told:
            boxes.append(box("warn", f"<b>Loop {escape(loop['name'])}:</b> {escape(str(loop['last_error']))}", "alert"))
    return "".join(boxes) or box("fine", "No alarms.")


def down(message: str, remedy: str, silence_s: float | None, status: int | None) -> str:
    """The control plane gives no answers: what that means, and what to do."""
    heard = "It has not answered since this page was opened." if silence_s is None else ""
    heard = heard or f"It last answered {duration_text(silence_s)} ago."
    refused = status in (401, 403, 421)
    title = "The control plane refuses this console" if refused else "Control plane unreachable"
    title = "The control plane is in trouble" if status is not None and not refused else title
    meaning = (
        "gridshift itself may be fine; only this page cannot see it."
        if refused
        else "Jobs already on the clusters go on by themselves. While the control plane is down nothing is started, paused,"
        " resumed or cancelled, and no power budget is acted on."
    )
    said = message[:1].upper() + message[1:]
    steps = f"<br><b>What to do:</b> {_with_code(remedy)}" if remedy else ""
    body = f"<h2>{title}</h2>{escape(said)}. {heard}<br>{meaning}{steps}<br>This page tries again every few seconds."
    return box("alarm gs-down", body, "alert")


def _with_code(text: str) -> str:
    parts = escape(text).split("`")
    return "".join(part if i % 2 == 0 else f"<code>{part}</code>" for i, part in enumerate(parts))


def _signal(signal: Json | None, what: str, status: Json | None = None) -> str:
    if signal is None:
        return UNKNOWN + (_sources(status) or f"<small>no {what} source</small>")
    source, basis = str(signal.get("source") or UNKNOWN), str(signal.get("basis") or UNKNOWN)
    value = signal.get("now")
    text = UNKNOWN if value is None else f"{float(value):,.1f} {escape(str(signal.get('unit') or ''))}"
    said = escape(source if basis in (source, UNKNOWN) and value is not None else f"{source}, {basis}")
    if value is None:
        said = escape(f"{source}: no value for now")
    return f'<span class="gs-keep">{text}</span><small>{said}</small>{_sources(status)}'


def _sources(status: Json | None) -> str:
    """How the source that is used stands and when it last answered, and which others do not work; all of it when pointed at."""
    sources: Sequence[Json] = (status or {}).get("sources") or ()
    if status is None or not sources:
        return ""
    used = next((source for source in sources if source.get("chosen")), None)
    pieces = []
    if used is not None:
        age = f", heard {duration_text(used['age_s'])} ago" if used.get("age_s") is not None else ""
        pieces.append(f"{used['state']}{age}")
    pieces += [f"{s['source']} {s['state']}" for s in sources if s is not used and s.get("error")]
    why = escape(str(status.get("why") or ""), quote=True)
    return f'<small title="{why}">{escape("; ".join(pieces) or "no source works")}</small>'


#: Parts of a signal that are told one by one before the rest is left out.
_RUNS_TOLD = 4


def made_of(signals: Sequence[Json], now: datetime | None) -> str:
    """What the plan's prices and carbon intensities are: published until when, and what they are from then on."""
    told = []
    for signal in signals:
        start, runs, done = time_of(signal.get("start")), [], 0
        for basis, members in groupby(signal.get("basis") or ()):
            done += len(list(members))
            runs.append((str(basis), done))
        if start is None or not runs:
            continue
        slot = timedelta(seconds=float(signal["slot_s"]))
        parts = [f"{basis} until {clock_text(start + end * slot, now)}" for basis, end in runs[:_RUNS_TOLD]]
        parts += ["and so on in turns"] if len(runs) > _RUNS_TOLD else []
        reason = f" ({signal['reason']})" if signal.get("reason") else ""
        told.append(
            f"<b>{escape(str(signal['region']))} {escape(str(signal['kind']))}</b>: {escape(', then '.join(parts) + reason)}"
        )
    return f'<div class="gs gs-dim">The plan is made with: {"; ".join(told)}.</div>' if told else ""


def regions(answer: Sequence[Json], now: datetime | None, signals: Sequence[Json] = ()) -> str:
    """Each region: whether it answers, what it is doing, and what its power costs and emits now, and by which source."""
    colour = colours(answer)
    status = {(signal.get("region"), signal.get("kind")): signal for signal in signals}
    rows = []
    for region in answer:
        reachable = bool(region.get("reachable"))
        seen = time_of(region.get("observed_at"))
        version = f"Ray {region['ray_version']}" if region.get("ray_version") else ""
        if reachable:
            state = f"reachable<small>{escape(version or str(region.get('address') or ''))}</small>"
        else:
            since = f"last seen {clock_text(seen, now)}" if seen is not None else "never seen"
            reason = escape(str(region.get("error") or "no reason given"))
            state = f'<span class="gs-red">UNREACHABLE</span><small>{since}: {reason}</small>'
        rows.append(
            (
                f"{chip(colour[str(region['name'])])}<b class='gs-keep'>{escape(str(region['name']))}</b>",
                state,
                _gpus(region, reachable),
                _draw(region, reachable),
                _signal(region.get("price"), "price", status.get((region["name"], "price"))),
                _signal(region.get("carbon"), "carbon", status.get((region["name"], "carbon"))),
            )
        )
    head = [
        ("Region", "gs-keep"),
        ("Cluster", ""),
        ("GPUs used", ""),
        ("Draw / limit", ""),
        ("Price now", ""),
        ("Carbon now", ""),
    ]
    return table(head, rows)


def _gpus(region: Json, reachable: bool) -> str:
    total, used, jobs = region.get("gpus"), region.get("gpus_used"), region.get("jobs_running")
    running = f"{number_text(jobs, digits=0)} job{'' if jobs == 1 else 's'} running"
    if not reachable and not region.get("observed_at"):
        return f"{UNKNOWN}<small>never seen</small>"
    if not reachable:
        return f"{UNKNOWN}<small>last: {number_text(used)} of {number_text(total)}, {running}</small>"
    share = float(used) / float(total) if total and used is not None else None
    return f"{number_text(used)} of {number_text(total)}<small>{running}</small>{bar(share)}"


def _draw(region: Json, reachable: bool) -> str:
    standing, budget, draw = region.get("power_limit_w"), region.get("budget_w"), region.get("site_w")
    stated = draw is None
    draw = region.get("draw_w") if stated else draw
    limits = [float(w) for w in (standing, budget) if w is not None]
    limit = min(limits, default=None)
    name = "budget" if budget is not None and limit == budget and limit != standing else "limit"
    bound = f"{name} {power_text(limit)}" if limit is not None else "no limit"
    if not reachable and not region.get("observed_at"):
        return f"{UNKNOWN}<small>{bound}</small>"
    if not reachable:
        return f"{UNKNOWN}<small>last: {power_text(draw)}, {bound}</small>"
    bound += ", draw as jobs state it" if stated else ""
    over = limit is not None and draw is not None and float(draw) > limit
    text = f'<span class="gs-red">{power_text(draw)} OVER</span>' if over else power_text(draw)
    share = float(draw) / limit if limit and draw is not None else None
    return f"{text}<small>{bound}</small>{bar(share, over)}"


def legend(answer: Sequence[Json]) -> str:
    """Which colour is which region, and where its values come from."""
    entries = []
    for name, colour in colours(answer).items():
        region = next(r for r in answer if r["name"] == name)
        made_up = [w for w in ("price", "carbon") if "synthetic" in str((region.get(w) or {}).get("source"))]
        note = f' <span class="gs-dim">({" and ".join(made_up)} synthetic)</span>' if made_up else ""
        entries.append(f"<span>{chip(colour)}{escape(name)}{note}</span>")
    entries.append('<span><i class="gs-dash"></i>power limit or budget</span><span><i class="gs-rule"></i>now</span>')
    entries.append('<span><i class="gs-band"></i>forecast, 10 to 90 %</span>')
    return f'<div class="gs gs-legend">{"".join(entries)}</div>'


def plan_line(plan: Json, now: datetime | None) -> str:
    """When the plan was made, what it costs, how good it is, and which jobs it cannot serve."""
    money = str(plan.get("currency") or "")
    pieces = [f"plan made {clock_text(plan.get('made_at'), now)} UTC", f"{len(plan['placements']):,} jobs placed"]
    pieces.append(f"objective {number_text(plan.get('objective'), money)}")
    if plan.get("gap") is not None and abs(float(plan["gap"])) <= 1.0:  # of next to nothing a share is no measure
        pieces.append(f"at most {number_text(100.0 * float(plan['gap']), '%', 1)} above a proven lower bound")
    late = [p for p in plan["placements"] if float(p.get("late_s") or 0.0) > 0]
    line = f'<div class="gs gs-dim">{escape(" · ".join(pieces))}</div>'
    if plan.get("note"):
        line += box("warn", f"<b>Planner:</b> {escape(str(plan['note']))}", "alert")
    if late:
        worst = max(late, key=lambda p: float(p["late_s"]))
        text = f"{len(late)} job{'s are' if len(late) > 1 else ' is'} planned to miss the deadline; worst {worst['job_id']}"
        line += box("warn", f"<b>Late:</b> {escape(text)}, by {duration_text(float(worst['late_s']))}", "alert")
    by_reason: dict[str, list[str]] = {}
    for name, why_not in (plan.get("unplaced") or {}).items():
        by_reason.setdefault(str(why_not), []).append(str(name))
    if by_reason:
        told = [f"{_some(names)}: {why_not}" for why_not, names in list(by_reason.items())[:3]]
        told += [f"and {len(by_reason) - 3} more reasons"] if len(by_reason) > 3 else []
        line += box("warn", f"<b>Not placed:</b> {escape('; '.join(told))}", "alert")
    return line


def kept_free(answer: Json, now: datetime | None, most: int = 6) -> str:
    """What a plan, or the plan of a job, leaves free for interactive serving, the next ``most`` of it; times in UTC."""
    kept: Sequence[Json] = answer.get("kept_free") or ()
    ahead = [one for one in kept if now is None or (time_of(one.get("end")) or now) > now]
    if not ahead:
        return ""
    told = [escape(f"{one.get('region')}: {one.get('sentence')}") for one in ahead[:most]]
    told += [f"and {len(ahead) - most} more, in <code>gridshift plan --json</code>"] if len(ahead) > most else []
    return f'<div class="gs gs-dim"><b>Kept free for serving</b> (UTC)<br>{"<br>".join(told)}</div>'


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{len(names):,} jobs ({names[0]} ...)"


def savings_line(answer: Json) -> str:
    """What was used and what running at once would have taken; its caveats as they are."""
    totals: Json = answer.get("totals") or {}
    money, basis = str(answer.get("currency") or ""), str(answer.get("energy_basis") or UNKNOWN)
    bases: Json = answer.get("energy_bases") or {}
    if len(bases) > 1:
        basis = f"mixed: {', '.join(f'{count} {one}' for one, count in bases.items())}"
    pieces = [
        f"<b>{number_text(totals.get('jobs'), digits=0)}</b> jobs ended",
        f"<b>{number_text(totals.get('energy_kwh'), 'kWh')}</b> ({escape(basis)})",
        f"cost <b>{number_text(totals.get('cost'), money)}</b>, at once {number_text(totals.get('cost_run_now'), money)}",
        f"carbon <b>{number_text(totals.get('carbon_kg'), 'kg')}</b>,"
        f" at once {number_text(totals.get('carbon_kg_run_now'), 'kg')}",
        *_deadlines(totals),
    ]
    caveats = "".join(f"<small>{escape(str(caveat))}</small>" for caveat in answer.get("caveats") or ())
    return f'<div class="gs"><h4>So far</h4>{" · ".join(pieces)}{caveats}</div>'


def _deadlines(totals: Json) -> list[str]:
    """Jobs that were late apart from those that never finished; an older control plane tells only their sum."""
    if "finished_late" not in totals:
        return [f"deadlines missed <b>{number_text(totals.get('deadline_misses'), digits=0)}</b>"]
    late, failed, cancelled = (
        number_text(totals.get(key), digits=0) for key in ("finished_late", "failed_with_deadline", "cancelled_with_deadline")
    )
    return [
        f"finished after the deadline <b>{late}</b>",
        f"never finished, with a deadline: <b>{failed}</b> failed, <b>{cancelled}</b> cancelled",
    ]


_EVENT_ORDER = {"active": 0, "scheduled": 1, "cancelled": 3, "expired": 2}


def events(answer: Sequence[Json], now: datetime | None, most: int = 8) -> str:
    """Power budgets that somebody asked for: in force, to come, over."""
    title = "<div class='gs'><h3>Power budgets</h3></div>"
    if not answer:
        text = "None. A utility's webhook, or <code>gridshift events create</code>, puts a limit on a region's draw here."
        return title + f'<div class="gs gs-dim">{text}</div>'
    ordered = sorted(answer, key=lambda e: str(e.get("start")), reverse=True)
    ordered.sort(key=lambda e: _EVENT_ORDER.get(str(e.get("state")), 9))
    rows = []
    for event in ordered[:most]:
        start, end, state = time_of(event.get("start")), time_of(event.get("end")), str(event.get("state"))
        until = clock_text(end, now) if end is not None else "released"
        left = f"ends {away_text(end, now)}" if state == "active" and end is not None and now is not None else ""
        left = f"starts {away_text(start, now)}" if state == "scheduled" and now is not None else left
        mark = f'<span class="gs-red">{escape(state)}</span>' if state == "active" else escape(state)
        test = (" · test" if event.get("test") else "") + (" · opted out" if event.get("opted_out") else "")
        said = " · ".join(str(x) for x in (event.get("reason"), event.get("source"), event.get("event_id")) if x)
        rows.append(
            (
                f"{mark}<small>{escape(left)}</small>",
                f"<b>{escape(' / '.join(filter(None, (event.get('region'), event.get('branch')))))}</b>"
                f" to {power_text(event.get('limit_w'))}"
                f'<small class="gs-id">{escape(said + test)}</small>',
                f"{clock_text(start, now)} to<br>{until}",
            )
        )
    more = f'<div class="gs gs-dim">and {len(ordered) - most} more</div>' if len(ordered) > most else ""
    return title + table([("State", ""), ("Region and limit", ""), ("UTC", "gs-when")], rows) + more


def job_facts(job: Json, now: datetime | None) -> str:
    """What a job is, where it stands and what it took."""

    def when(name: str) -> str:
        at = time_of(job.get(name))
        return f"{clock_text(at, now)} UTC ({away_text(at, now)})" if at is not None and now is not None else ""

    state = str(job.get("state"))
    flags = [w for w, on in (("held by its owner", job.get("held")), ("cancel requested", job.get("cancel_requested"))) if on]
    planned = when("planned_start_at")
    planned += f" in {job['planned_region']}" if planned and job.get("planned_region") else ""
    used = ", ".join(
        (
            _energy(job),
            number_text(job.get("cost"), str(job.get("cost_currency") or ""), 3),
            f"{number_text(job.get('carbon_kg'), 'kg', 3)} CO2e",
        )
    )
    where = f"{job.get('region') or 'none yet'} · attempt {job.get('attempt', 0)} · paused {job.get('pauses', 0)} times"
    needs = f"{number_text(job.get('gpus'))} GPUs, {power_text(job.get('power_w'))}, pausable: {job.get('pausable')}"
    rows = [
        ("State", f"<b>{escape(' · '.join([state, *flags]))}</b>"),
        ("Why", escape(str(job.get("reason") or UNKNOWN))),
        ("Region", escape(where)),
        ("Planned start", escape(planned) if state in ACTIVE else ""),
        ("Deadline", escape(when("deadline_at")) or "none"),
        ("Submitted", escape(when("submitted_at"))),
        ("Started", escape(when("started_at"))),
        ("Finished", escape(when("finished_at"))),
        ("Work left", f"{duration_text(job.get('remaining_s'))} of {duration_text(job.get('runtime_s'))}"),
        ("Needs", escape(needs)),
        ("Team", escape(str(job.get("team") or ""))),
        ("Used", escape(used) if job.get("started_at") or job.get("energy_kwh") is not None else ""),
        ("Failure", escape(" ".join(str(x) for x in (job.get("error_type"), _exit(job)) if x))),
        ("Command", f"<code>{escape(str(job.get('entrypoint')))}</code>"),
    ]
    return facts([(name, value) for name, value in rows if value])


def _energy(job: Json) -> str:
    """What a job used, and what that rests on."""
    told = number_text(job.get("energy_kwh"), "kWh", 3)
    return told if job.get("energy_kwh") is None else f"{told} ({job.get('energy_basis') or UNKNOWN}, PUE included)"


def _exit(job: Json) -> str:
    return f"exit code {job['exit_code']}" if job.get("exit_code") not in (None, 0) else ""


def why(answer: Json, now: datetime | None, currency: str) -> str:
    """The plan's word on a job, and what it considered instead; costs are in the plan's ``currency``."""
    parts = [f'<div class="gs"><h4>Plan</h4>{escape(str(answer.get("why") or "nothing is planned for it"))}</div>']
    others: Sequence[Json] = answer.get("alternatives") or ()
    if others:
        rows = [
            (
                escape(str(other.get("region"))),
                clock_text(other.get("start_at"), now),
                number_text(other.get("cost"), currency),
                escape(str(other.get("why_not") or "")),
            )
            for other in others
        ]
        parts.append(table([("Instead in", ""), ("Start (UTC)", "gs-when"), ("Cost", "gs-num"), ("Why not", "")], rows))
    if answer.get("alternatives_missing"):
        told = f"What else could have been done is {answer['alternatives_missing']}"
        parts.append(f'<div class="gs gs-dim">{escape(told)}</div>')
    parts.append(kept_free(answer, now))
    return "".join(parts)


def attempts(job: Json, now: datetime | None) -> str:
    """Each try at a job on a cluster."""
    rows = [
        (
            str(one.get("attempt")),
            escape(str(one.get("region"))),
            clock_text(one.get("launched_at"), now),
            clock_text(one["ended_at"], now) if one.get("ended_at") else "",
            f"{escape(str(one.get('outcome') or 'alive'))}<small>{escape(str(one.get('message') or ''))}</small>",
        )
        for one in reversed(job.get("attempts") or ())
    ]
    if not rows:
        return '<div class="gs"><h4>Attempts</h4><span class="gs-dim">none yet</span></div>'
    head = [("No.", ""), ("Region", ""), ("Launched", "gs-when"), ("Ended", "gs-when"), ("Outcome", "")]
    return '<div class="gs"><h4>Attempts</h4></div>' + table(head, rows)


def history(answer: Sequence[Json], now: datetime | None, most: int = 30) -> str:
    """What happened to a job, newest first."""
    rows = []
    for event in list(reversed(answer))[:most]:
        old, new = event.get("old_state"), event.get("new_state")
        move = f"{old} → {new}" if old and old != new else str(event.get("kind") if old == new else new)
        rows.append((clock_text(event.get("at"), now), escape(move), escape(str(event.get("reason") or ""))))
    more = f'<div class="gs gs-dim">and {len(answer) - most} earlier</div>' if len(answer) > most else ""
    return '<div class="gs"><h4>Events</h4></div>' + table([("UTC", "gs-when"), ("What", ""), ("Why", "")], rows) + more
