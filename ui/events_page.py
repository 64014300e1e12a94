"""The Demand response page: what binds, what is coming, what is done for it, alarms, charts, flexibility, what is over.

It reads, and acts only where somebody opts out of an event and says why.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from html import escape
from time import monotonic
from typing import Any
from urllib.parse import quote

import streamlit as st

from ui import event_charts, event_outcomes, events
from ui.api import Api, ApiError
from ui.fleet import SIMULATED
from ui.parts import chip
from ui.session import CHART_S, LIVE_S, api, look, read_or_say, state, understood
from ui.words import Json, box, time_of

#: Events and jobs asked for at once; how old an answer about flexibility, which is long, may be, seconds.
MOST_EVENTS, MOST_JOBS, FLEX_S = 200, 200, 30.0
#: States in which a job may be giving way to a limit; a frozen one is running.
_STATES = ("pausing", "paused", "queued", "running")
#: A report is asked for anew while its event is fresh, for load comes back for hours after it; and sooner where it failed.
_FRESH, _AGAIN_S, _FAILED_S = timedelta(days=1), 600.0, 60.0
#: Reports are made one at a time: each reads weeks of measurements.
_reports = ThreadPoolExecutor(1, thread_name_prefix="event reports")


def show(chart_s: float) -> None:
    """The page."""
    binding_now()
    st.fragment(_charts, run_every=chart_s)()
    st.fragment(_flexibility, run_every=FLEX_S)()
    over()
    opting_out()


def _now() -> tuple[Json, datetime] | None:
    """The status and its time; None where there is none, which the head of the page tells."""
    status = look()
    now = None if isinstance(status, ApiError) else time_of(status["now"])
    return None if isinstance(status, ApiError) or now is None else (status, now)


def _events() -> Any:
    return read_or_say("Events", "/v1/events", {"limit": MOST_EVENTS}, LIVE_S)


def _events_again() -> Any:
    """The events for the parts below the first, which tells why there are none."""
    try:
        return api().read("/v1/events", {"limit": MOST_EVENTS}, CHART_S / 2)
    except ApiError:
        return None


@st.fragment(run_every=LIVE_S)
@understood
def binding_now() -> None:
    """What binds, what is coming, what is done for it, alarms."""
    there = _now()
    if there is None:
        return
    status, now = there
    st.html(_heading("What binds now"))
    answer = _events()
    if answer is not None:
        told, limits = answer["events"], answer["limits"]
        regions = (read_or_say("Regions", "/v1/regions", keep_s=CHART_S) or {}).get("regions") or ()
        power = _power(status, regions) if any(one["holds"] for one in limits) else {}
        alarmed = {str(one.get("key")) for one in status.get("alarms") or ()}
        replay = bool(status.get("replay"))
        st.html(events.binding(limits, power, now, replay, alarmed) + events.not_binding(told, limits))
        if not told:
            st.html(event_outcomes.how_to(regions))
        st.html(_heading("What is coming, and what it is worth") + events.coming(told, now))
        st.html(_heading("What is done for it"))
        jobs, cut = _jobs(status)
        fleet = read_or_say("The fleet", "/v1/fleet", keep_s=LIVE_S)
        st.html(event_outcomes.doing(jobs, limits, fleet, now, cut))
    st.html(_heading("Alarms of demand response") + event_outcomes.alarms(status, now))


def _heading(title: str) -> str:
    return f"<div class='gs'><h3>{escape(title)}</h3></div>"


def _power(status: Json, regions: Sequence[Json]) -> dict[events.Place, Json]:
    """What each place draws now. In a replay that is the model's, for meters run by the wall's clock."""
    if not status.get("replay"):
        answer = read_or_say("The draw", "/v1/meters") or {"power": ()}
        return {events.place_of(one): one for one in answer["power"]}
    return {
        (str(one["name"]), None): {
            "power_w": one.get("draw_w") if one.get("reachable") else None,
            "quality": "modelled",
            "reason": "" if one.get("reachable") else "the cluster does not answer",
        }
        for one in regions
    }


def _jobs(status: Json) -> tuple[list[Json], bool]:
    """Jobs that may be giving way, and whether there are more of them than were asked for."""
    found: list[Json] = []
    cut = False
    counts: Json = status.get("counts") or {}
    for name in (one for one in _STATES if counts.get(one)):
        answer = read_or_say(f"Jobs that are {name}", "/v1/jobs", {"state": name, "limit": MOST_JOBS}, LIVE_S)
        found += answer["jobs"] if answer is not None else ()
        cut = cut or answer is None or bool(answer.get("next_cursor"))
    return found, cut


@understood
def _charts() -> None:
    """Each place's draw against its limits."""
    there = _now()
    answer = None if there is None else _events_again()
    if there is None or answer is None:
        return
    regions = (read_or_say("Regions", "/v1/regions", keep_s=CHART_S) or {}).get("regions") or ()
    now = there[1]
    st.html(_heading("Draw against the limits") + _legend())
    chosen = event_charts.places(answer["limits"], answer["events"], regions, now)
    for place in chosen:
        params: dict[str, str | int] = {"region": place[0], "hours": int(event_charts.BACK_H)}
        params |= {"branch": place[1]} if place[1] else {}
        draw = read_or_say(f"Draw of {events.place_text(*place)}", "/v1/draw", params, CHART_S / 2)
        chart = event_charts.draw_chart(draw or {}, answer["limits"], answer["events"], place, now)
        if chart is not None:
            st.altair_chart(chart, key=f"draw {place}")
        st.html(_basis(place, draw, chart is not None))


def _legend() -> str:
    return (
        f'<div class="gs gs-legend"><span>{chip("#0072B2")}drawn</span><span><i class="gs-dash"></i>limit</span>'
        '<span><i class="gs-rule"></i>now</span><span class="gs-dim">kW at the meter; a gap was not measured</span></div>'
    )


def _basis(place: events.Place, draw: Json | None, drawn: bool) -> str:
    """How the draw in a chart is known."""
    if draw is None:
        return ""
    name = "" if drawn else f"{events.place_text(*place)}: "
    by = str(draw.get("basis") or "unknown")
    mark = f"{SIMULATED} " if draw.get("simulated") else ""
    note = f"{draw['note']}; the draw is unknown" if draw.get("note") else f"by: {by.removeprefix('SIMULATED ')}"
    sure = "" if draw.get("note") or not draw.get("estimated") else ", which is an estimate: there is no meter"
    return f'<div class="gs gs-dim">{escape(name)}{mark}{escape(note + sure)}</div>'


@understood
def _flexibility() -> None:
    """How much less could be drawn now."""
    if _now() is None:
        return
    st.html(_heading("Flexibility now"))
    answer = read_or_say("Flexibility", "/v1/flexibility", None, FLEX_S / 2)
    if answer is None:
        return
    st.html('<div class="gs gs-dim">At the meter, within what owners of jobs allow; caps act first, pauses give besides.</div>')
    if not answer["regions"]:
        st.html('<div class="gs gs-dim">No region is known yet.</div>')
    for region in answer["regions"]:
        for place in region["now"]:
            told, chart = event_outcomes.flexibility(place, str(region["region"])), event_charts.flexibility_chart(place)
            if chart is None:
                st.html(told)
                continue
            left, right = st.columns([2, 3], gap="medium")
            right.html(told)
            left.altair_chart(chart, key=f"flexibility {region['region']} {place.get('branch')}")


# --- what is over -----------------------------------------------------------------------------------------------------


@st.fragment(run_every=CHART_S)
@understood
def over() -> None:
    """Events that are over, with what each delivered."""
    there = _now()
    answer = None if there is None else _events_again()
    if there is None or answer is None:
        return
    listed = event_outcomes.past_events(answer["events"])
    reports: dict[tuple[str, str, int], Json | str] = {}
    for one in listed:
        if (told := _report(one, there[1])) is not None:
            reports[event_outcomes.event_key(one)] = told
    shown = event_outcomes.past(listed, reports, there[1], api().address, not api().has_token)
    older = answer.get("left_out")
    more = (
        f'<div class="gs gs-dim">{older:,} more are not listed here; <code>gridshift events list --all</code> has them.</div>'
    )
    st.html(_heading("Past events") + shown + (more if older else ""))


def _report(event: Json, now: datetime) -> Json | str | None:
    """An event's report or why there is none; None until it has been made. It is made beside the page, which does not wait."""
    asked: dict[tuple[str, str, int], tuple[float, Future[Json | str]]] = state.setdefault("event_reports", {})
    key = event_outcomes.event_key(event)
    held = asked.get(key)
    done = held[1].result() if held is not None and held[1].done() else None
    if held is None or (done is not None and monotonic() - held[0] > _keeps_s(event, done, now)):
        later: Future[Json | str] = _reports.submit(_ask, api(), event_outcomes.report_path(event))
        if held is None:
            asked[key] = (monotonic(), later)
        else:
            later.add_done_callback(lambda one: asked.__setitem__(key, (monotonic(), one)))
            asked[key] = (monotonic(), held[1])
    return done


def _keeps_s(event: Json, report: Json | str, now: datetime) -> float:
    if isinstance(report, str):
        return _FAILED_S
    end = time_of(event.get("end"))
    return _AGAIN_S if end is None or now - end < _FRESH else float("inf")


def _ask(connection: Api, path: str) -> Json | str:
    try:
        answer: Json = connection.ask(path)
        return answer
    except ApiError as error:
        return error.message


# --- opting out -------------------------------------------------------------------------------------------------------


@st.fragment(run_every=CHART_S)
@understood
def opting_out() -> None:
    """Opt out of an event that is not over, with a reason and a second question; or take part after all."""
    there = _now()
    answer = None if there is None else _events_again()
    if there is None or answer is None:
        return
    live = {f"{one['source']} {one['event_id']}": one for one in answer["events"] if one["state"] in ("active", "scheduled")}
    notice: tuple[str, str] | None = state.get("opt_notice")
    if not live and notice is None:
        return
    with st.expander("Opt out of an event"):
        if notice is not None:
            st.html(box(notice[0], escape(notice[1]), "alert" if notice[0] == "alarm" else "status"))
        if not live:
            return
        name = st.selectbox("Event", list(live), format_func=lambda key: _named(live.get(key)), key="opt_event")
        event = live.get(name)
        if event is None:
            return
        _ask_again(event) if state.get("opt_pending") == name else _first_question(name, event)


def _named(event: Json | None) -> str:
    if event is None:
        return ""
    where, out = events.place_text(event.get("region"), event.get("branch")), " · opted out" if event.get("opted_out") else ""
    return f"{where} · {events.source_text(event)} · {event['state']}{out}"


def _first_question(name: str, event: Json) -> None:
    if event.get("opted_out"):
        st.html(f'<div class="gs">Opted out: {escape(str(event["opted_out"]))}</div>')
        st.button("Take part after all", key="opt_in", on_click=_pending, args=(name,))
        return
    # A box that was away while the second question stood begins anew.
    why, told = state.get("opt_why", ""), "why: it is kept with the event"
    st.text_input("Why", value=why, key="opt_reason", max_chars=500, placeholder=told)
    reason = str(state.get("opt_reason") or "").strip()
    st.button("Opt out", key="opt_out", disabled=not reason, on_click=_pending, args=(name, reason))


def _ask_again(event: Json) -> None:
    back = bool(event.get("opted_out"))
    what = "Take part in" if back else "Opt out of"
    means = (
        "Its limit binds again, at once where it is active."
        if back
        else "It binds no more: caps are lifted and jobs go on. What its programme says of opting out applies."
    )
    st.html(box("warn", f"<b>{what} {escape(_named(event))}?</b> {means}", "alert"))
    with st.container(horizontal=True):
        st.button(
            "Yes, take part" if back else "Yes, opt out", key="opt_yes", type="primary", on_click=_opt, args=(event, back)
        )
        st.button("No, leave it", key="opt_no", on_click=_pending, args=(None,))


def _pending(name: str | None, reason: str = "") -> None:
    state.opt_pending, state.opt_notice = name, None
    state.opt_why = reason or state.get("opt_why", "")


def _opt(event: Json, back: bool) -> None:
    path = f"/v1/events/{quote(str(event['source']), safe='')}/{quote(str(event['event_id']), safe='')}/opt-out"
    done = "taking part in" if back else "opted out of"
    try:
        api().act(path, None if back else {"reason": str(state.opt_why)}, "DELETE" if back else "POST")
        state.opt_notice = ("fine", f"{done} {events.source_text(event)}")
    except ApiError as error:
        state.opt_notice = ("alarm", f"{events.source_text(event)}: {error.message}. {error.remedy}".strip())
    state.opt_pending, state.opt_why = None, ""
