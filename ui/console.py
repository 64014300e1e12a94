"""The operator's page: what the control plane sees and does now, why, and the few buttons that change it.

It speaks HTTP to the control plane at GRIDSHIFT_ADDRESS (token: GRIDSHIFT_TOKEN), and knows nothing of stores, clusters or
policies. Run it with ``streamlit run``, or through ui.launch.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape

import pandas as pd
import streamlit as st

from ui import charts, events_page, fleet, parts
from ui.api import ApiError, job_path
from ui.session import CHART_REPLAY_S, CHART_S, LIVE_S, api, look, read_or_say, state, understood
from ui.words import ACTIVE, STATES, STYLE, UNKNOWN, Json, box, error_box, time_of

#: Jobs of one state shown at once, and pages asked for when only one state is wanted.
PAGE, PAGES_OF_ONE = 100, 3
#: Events asked for.
MOST_EVENTS = 200
_DONE = {"cancel": "cancel requested", "pause": "pause requested", "resume": "resume requested"}
_MEANS = {
    "cancel": "It ends for good, and is stopped where it runs; this cannot be undone.",
    "pause": "It is held until somebody resumes it; if it runs, it is asked for a checkpoint and stopped.",
    "resume": "It goes on when the plan says its turn has come.",
}

# --- parts that refresh themselves ----------------------------------------------------------------------------------


@st.fragment(run_every=LIVE_S)
@understood
def top(was_up: bool, alarmed: bool = True) -> None:
    """Header, alarms and counts (not on a page with alarms of its own); or, without a control plane, what to do. Redraws the
    whole page when that changes."""
    status = look()
    if was_up == isinstance(status, ApiError):
        st.rerun()
    if isinstance(status, ApiError):
        st.html(parts.down(status.message, status.remedy, api().silence_s(), status.status))
        return
    st.html(parts.header(status, api().address) + (parts.alarms(status) + parts.counts(status) if alarmed else ""))


@st.fragment(run_every=LIVE_S)
@understood
def grid_now() -> None:
    """Regions and power budgets."""
    status = look()
    if isinstance(status, ApiError):
        return
    now = time_of(status["now"])
    left, right = st.columns([3, 2], gap="medium")
    with left:
        answer = read_or_say("Regions", "/v1/regions")
        if answer is not None and answer["regions"]:
            signals = _all_signals()
            st.html("<div class='gs'><h3>Regions</h3></div>" + parts.regions(answer["regions"], now, signals))
        elif answer is not None:
            st.html(box("warn", "No region is configured: name your Ray clusters in <code>gridshift.toml</code>."))
    with right:
        answer = read_or_say("Power budgets", "/v1/events", {"limit": MOST_EVENTS}, keep_s=2.0)
        if answer is not None:
            st.html(parts.events(answer["events"], now))


@understood
def plan_chart(keep_s: float) -> None:
    """The plan against price and carbon."""
    status = look()
    if isinstance(status, ApiError):
        return
    now = time_of(status["now"])
    if now is None:
        st.error("The control plane told no time that can be read; is it of the same version as this console?")
        return
    regions: Sequence[Json] = (read_or_say("Regions", "/v1/regions", keep_s=keep_s) or {}).get("regions") or ()
    plan, missing = _plan(keep_s)
    said = parts.plan_line(plan, now) if plan is not None else missing
    st.html("<div class='gs'><h3>Plan against price and carbon</h3></div>" + said + parts.legend(regions))
    signals = [s for r in regions for kind in ("price", "carbon") if (s := _signal(str(r["name"]), kind, keep_s)) is not None]
    events = (read_or_say("Power budgets", "/v1/events", {"limit": MOST_EVENTS}, keep_s) or {}).get("events") or ()
    shown = charts.picture(plan, signals, events, regions, now)
    with st.container(gap=None):
        for key, pane in charts.draw(shown, parts.colours(regions)):
            st.altair_chart(pane, key=f"pane {key}")
    if told := parts.made_of(signals, now):
        st.html(told)
    if plan is not None and (told := parts.kept_free(plan, now)):
        st.html(told)
    if not shown.signals:
        st.html(box("warn", "No price and no carbon is known for any region: jobs are placed without them."))
    if shown.left_out:
        st.html(f"<div class='gs gs-dim'>{shown.left_out} more regions have planned load or limits.</div>")


def _plan(keep_s: float) -> tuple[Json | None, str]:
    try:
        return api().read("/v1/plan", None, keep_s), ""
    except ApiError as error:
        if error.status == 404:
            return None, "<div class='gs gs-dim'>No plan yet: the first is made within seconds of a flexible job.</div>"
        return None, error_box("Plan", error.message, error.remedy)


def _all_signals() -> Sequence[Json]:
    """How every signal's sources stand. Without it the table of regions still tells the values."""
    try:
        found: Sequence[Json] = api().read("/v1/signals", None, CHART_S / 2)["signals"]
        return found
    except (ApiError, KeyError, TypeError):
        return ()


def _signal(region: str, kind: str, keep_s: float) -> Json | None:
    try:
        answer: Json = api().read("/v1/signals", {"region": region, "kind": kind}, keep_s)
        return answer
    except ApiError:
        return None  # the table of regions says which signal is unknown, and why


@st.fragment(run_every=LIVE_S)
@understood
def work(states: Sequence[str], team: str) -> None:
    """The jobs, and beside them the one that was chosen."""
    status = look()
    if isinstance(status, ApiError):
        return
    now = time_of(status["now"])
    if now is None:
        st.error("The control plane told no time that can be read; is it of the same version as this console?")
        return
    _note_click()
    # The same two columns always, so that the table stays the same element, and where it was scrolled to.
    chosen = bool(state.get("job"))
    left, right = st.columns([3, 2] if chosen else [1000, 1], gap="medium" if chosen else None)
    with left:
        _jobs_table(status, states, team)
    if state.get("job"):
        with right, st.container(border=True):
            _job_details(str(state.job), now)


def _jobs_table(status: Json, states: Sequence[str], team: str) -> None:
    counts: Mapping[str, int] = status.get("counts") or {}
    jobs: list[Json] = []
    cut: list[str] = []
    for name in [s for s in STATES if counts.get(s) and (not states or s in states)]:
        cursor, pages = "", PAGES_OF_ONE if len(states) == 1 else 1
        for _ in range(pages):
            params: dict[str, str | int] = {"state": name, "limit": PAGE, "team": team, "cursor": cursor}
            answer = read_or_say(f"Jobs that are {name}", "/v1/jobs", {k: v for k, v in params.items() if v})
            jobs += answer["jobs"] if answer is not None else ()
            cursor = (answer or {}).get("next_cursor") or ""
            if not cursor:
                break
        cut += [name] if cursor else []
    if not jobs:
        _no_jobs(bool(sum(counts.values())))
        return
    ids = [str(job["id"]) for job in jobs]
    _mark(ids)
    st.dataframe(
        _frame(jobs),
        key="jobs",
        hide_index=True,
        height=min(560, 38 + 35 * len(jobs)),
        placeholder="",
        on_select="rerun",
        selection_mode="single-row",
        column_config=_COLUMNS,
        column_order=_NARROW if state.get("job") else list(_COLUMNS),
        alt="Jobs, active ones first, each with the reason for its state",
    )
    if cut:
        several = f"Only the newest {PAGE if len(states) != 1 else PAGE * PAGES_OF_ONE} of each are shown: {', '.join(cut)}."
        st.html(f"<div class='gs gs-dim'>{several} Narrow by state or team, or open a job by its id.</div>")


_COLUMNS = {
    "id": st.column_config.TextColumn("Job", width=150),
    "state": st.column_config.TextColumn("State", width=85),
    "region": st.column_config.TextColumn("Region", width=95, help="Where it runs or ran; with an arrow: where it is planned"),
    "planned": st.column_config.DatetimeColumn("Planned start, UTC", width=128, format="D MMM HH:mm", timezone="UTC"),
    "deadline": st.column_config.DatetimeColumn("Deadline, UTC", width=110, format="D MMM HH:mm", timezone="UTC"),
    "team": st.column_config.TextColumn("Team", width=80),
    "reason": st.column_config.TextColumn("Reason", width=700),
}


#: What is shown while a chosen job's details stand beside the table, and say the rest.
_NARROW = ["id", "state", "region", "deadline", "reason"]


def _frame(jobs: Sequence[Json]) -> pd.DataFrame:
    rows = [
        {
            "id": job["id"],
            "state": f"{job['state']}, held" if job.get("held") and job["state"] in ACTIVE else job["state"],
            "region": _where(job),
            "planned": time_of(job.get("planned_start_at")) if job["state"] in ("queued", "paused") else None,
            "deadline": time_of(job.get("deadline_at")),
            "reason": job.get("reason") or UNKNOWN,
            "team": job.get("team") or "",
        }
        for job in jobs
    ]
    frame = pd.DataFrame(rows)
    for column in ("planned", "deadline"):
        frame[column] = pd.to_datetime(frame[column], utc=True)
    return frame


def _where(job: Json) -> str:
    if job["state"] in ("queued", "paused") and job.get("planned_region"):
        return f"→ {job['planned_region']}"
    return str(job.get("region") or "")


def _no_jobs(filtered: bool) -> None:
    if filtered:
        st.html(box("fine", "No job matches these filters."))
        return
    st.html("<div class='gs'><b>No jobs yet.</b> Submit one with:</div>")
    address = api().address
    st.code(
        f"export GRIDSHIFT_ADDRESS={address}\n"
        "gridshift submit --deadline 8h --runtime 1h --num-gpus 1 -- python train.py\n\n"
        "# or with Ray's own client\n"
        f'ray job submit --address {address} --metadata-json \'{{"gridshift.deadline": "8h"}}\' --no-wait -- python train.py',
        language="bash",
    )


def _reported() -> list[int] | None:
    """The rows that the browser says are marked in the table; None while there is no table."""
    held = state.get("jobs")
    return list(held["selection"]["rows"]) if held is not None else None


def _note_click() -> None:
    """Open the job that was clicked. The browser goes on reporting its own mark until it has taken over ours, so only a mark
    that is neither is a click; it counts for the rows as they were shown then."""
    rows, ids = _reported(), state.get("shown_ids") or []
    if rows is not None and rows not in (state.get("marked"), state.get("reported")):
        _choose(ids[rows[0]] if rows and rows[0] < len(ids) else None)
    state.reported = rows


def _mark(ids: list[str]) -> None:
    """Keep the mark on its job when rows move, since the table knows rows only."""
    state.marked = [ids.index(state.job)] if state.get("job") in ids else []
    state.shown_ids = ids
    if _reported() != state.marked:
        state["jobs"] = {"selection": {"rows": state.marked}}


def _choose(job_id: str | None) -> None:
    state.job, state.pending, state.notice = job_id, None, None


# --- the fleet ------------------------------------------------------------------------------------------------------


@st.fragment(run_every=LIVE_S)
@understood
def fleet_now(wanted: str) -> None:
    """Every GPU with its job, draw, limit and state, of nodes that ``wanted`` names."""
    status = look()
    if isinstance(status, ApiError):
        return
    answer = read_or_say("The fleet", "/v1/fleet")
    if answer is None:
        return
    # Agents run by the wall's clock, which is not the control plane's in a replay.
    st.html(fleet.summary(answer) + ("" if answer["draw"]["gpus"] else fleet.nothing()))
    st.html(fleet.regions(answer, time_of(answer.get("at")), wanted))


@st.fragment(run_every=CHART_S)
@understood
def fleet_energy() -> None:
    """What was drawn in the last hour, and for whom."""
    status = look()
    answer = (
        None if isinstance(status, ApiError) else read_or_say("Measured energy", "/v1/energy", {"step": "minute"}, CHART_S / 2)
    )
    if answer is None:
        return
    st.html("<div class='gs'><h3>Measured in the last hour</h3></div>" + fleet.energy_line(answer))
    chart = fleet.energy_chart(answer)
    if chart is not None:
        st.altair_chart(chart, key="fleet energy")


# --- one job --------------------------------------------------------------------------------------------------------


def _job_details(job_id: str, now: datetime) -> None:
    st.html(f"<div class='gs'><h3 class='gs-id'>{escape(job_id)}</h3></div>")
    try:
        job: Json = api().read(job_path(job_id))
    except ApiError as error:
        text = "There is no such job." if error.status == 404 else f"{error.message}. {error.remedy}"
        st.html(box("warn", escape(text), "alert"))
        st.button("Close", on_click=_choose, args=(None,))
        return
    _buttons(job_id, job)
    st.html(parts.job_facts(job, now))
    if job["state"] in ACTIVE:
        answer = read_or_say("The plan for it", f"/v1/plan/{job_path(job_id).rsplit('/', 1)[1]}")
        if answer is not None:
            plan, _ = _plan(CHART_S)
            st.html(parts.why(answer, now, str((plan or {}).get("currency") or "")))
    st.html(parts.attempts(job, now))
    answer = read_or_say("Its events", job_path(job_id, "/events"))
    if answer is not None:
        st.html(parts.history(answer["events"], now))
    st.html(f"<div class='gs gs-dim'>Its log: <code>gridshift jobs logs {escape(job_id)}</code></div>")


def _buttons(job_id: str, job: Json) -> None:
    pending: str | None = state.get("pending")
    if pending is not None and job["state"] in ACTIVE:
        where = f" in {job['region']}" if job.get("region") and job["state"] not in ("queued", "paused") else ""
        text = f"<b>{pending.capitalize()} {escape(job_id)}?</b> It is {escape(str(job['state']) + where)} now."
        st.html(box("warn", f"{text} {_MEANS[pending]}", "alert"))
        with st.container(horizontal=True):
            st.button(f"Yes, {pending} it", key="yes", type="primary", on_click=_act, args=(pending, job_id))
            st.button("No, leave it", key="no", on_click=_ask, args=(None,))
        return
    ended, held = job["state"] not in ACTIVE, bool(job.get("held"))
    with st.container(horizontal=True):
        st.button("Pause", key="pause", disabled=ended or held, on_click=_ask, args=("pause",))
        st.button("Resume", key="resume", disabled=ended or not held, on_click=_ask, args=("resume",))
        st.button(
            "Cancel job", key="cancel", disabled=ended or bool(job.get("cancel_requested")), on_click=_ask, args=("cancel",)
        )
        st.button("Close", key="close", on_click=_choose, args=(None,))
    notice: tuple[str, str] | None = state.get("notice")
    if notice is not None:
        st.html(box(notice[0], escape(notice[1]), "alert" if notice[0] != "fine" else "status"))


def _ask(verb: str | None) -> None:
    state.pending, state.notice = verb, None


def _act(verb: str, job_id: str) -> None:
    state.pending = None
    try:
        api().act(job_path(job_id, f"/{verb}"))
        state.notice = ("fine", f"{_DONE[verb]} for {job_id}")
    except ApiError as error:
        state.notice = ("alarm", f"{verb} of {job_id} failed: {error.message}. {error.remedy}".strip())


# --- the page -------------------------------------------------------------------------------------------------------


def _filters() -> tuple[Sequence[str], str]:
    """State and team to show. Kept beside the widgets, whose own memory ends while the control plane is away."""
    title, kinds, group, search = st.columns([1, 6, 2, 2], vertical_alignment="center")
    title.html("<div class='gs'><h3>Jobs</h3></div>")
    chosen = kinds.pills(
        "States", STATES, selection_mode="multi", default=state.get("kept_states"), key="states", label_visibility="collapsed"
    )
    team = group.text_input(
        "Team", value=state.get("kept_team", ""), key="team", placeholder="team", label_visibility="collapsed"
    )
    search.text_input("Job id", key="search", placeholder="open a job by id", label_visibility="collapsed", on_change=_search)
    state.kept_states, state.kept_team = list(chosen or ()), team
    return list(chosen or ()), team.strip()


def _search() -> None:
    if wanted := str(state.search).strip():
        _choose(wanted)


@understood
def savings() -> None:
    """What gridshift saved so far."""
    answer = None if isinstance(look(), ApiError) else read_or_say("Savings", "/v1/savings", keep_s=5.0)
    if answer is not None:
        st.html(parts.savings_line(answer))


def page() -> None:
    """The whole page."""
    st.set_page_config(page_title="gridshift", layout="wide", initial_sidebar_state="collapsed")
    st.html(STYLE)
    status = look()
    up = not isinstance(status, ApiError)
    wanted = str(st.query_params.get("page") or "")
    wanted = wanted if wanted in ("fleet", "events") else ""
    top(up, wanted != "events")
    if isinstance(status, ApiError):
        return
    st.html(fleet.tabs(wanted))
    if wanted == "events":
        events_page.show(CHART_REPLAY_S if status.get("replay") else CHART_S)
        return
    if linked := st.query_params.pop("job", ""):
        _choose(str(linked))
    if wanted:
        fleet_energy()
        name = "Node, branch, region or job"
        fleet_now(st.text_input(name, key="fleet_wanted", placeholder=name.lower(), label_visibility="collapsed"))
        return
    chart_s = CHART_REPLAY_S if status.get("replay") else CHART_S
    grid_now()
    st.fragment(plan_chart, run_every=chart_s)(chart_s / 2)
    states, team = _filters()
    work(states, team)
    st.fragment(savings, run_every=CHART_S)()


if __name__ == "__main__":
    page()
