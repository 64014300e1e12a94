"""Webhooks that say only where to look: an aggregator's dispatch is what its API answers, never what the webhook says.

Shape: a body ``{"event": {"name"}, "resource"}``, and the dispatch as fetched. Read here as a file with ``webhook`` and
``fetched``, or either of them alone. It fetches nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from dispatcher.dr.model import Answer, DrEvent, Message, Notes, Refused, Segment, State, kw, power_w, refusal, shown
from dispatcher.dr.openadr3 import Context
from dispatcher.dr.payloads import REFERENCE, less
from dispatcher.dr.site import zone_named
from dispatcher.dr.timing import parse_time
from dispatcher.errors import BadInput

_MAX_VERSION = 1 << 53


def read(data: Any, context: Context) -> Message:
    """The dispatches in a file: fetched ones as events; what only points to one as what to fetch."""
    if isinstance(data, list):
        return Message(tuple(_item(item, context) for item in data), listing=True)
    if isinstance(data, dict) and isinstance(data.get("dispatches"), list):
        return Message(tuple(_item(item, context) for item in data["dispatches"]), listing=True)
    return Message((_item(data, context),))


def is_pointer(data: Any) -> bool:
    """Whether a webhook's body has this shape."""
    return isinstance(data, dict) and "resource" in data and isinstance(data.get("event"), dict)


def listed(data: Any, now: datetime) -> dict[str, Any]:
    """Modification numbers, by id, of the dispatches in a sender's list (JSON: a list, or an object that holds one) that may
    ask for something: not those that are plainly over or cancelled. Raises BadInput where there is no list."""
    inside = data.values() if isinstance(data, dict) else ()
    lists = [data] if isinstance(data, list) else [one for one in inside if isinstance(one, list)]
    if len(lists) != 1:
        raise BadInput([("body", "(not shown)", "must be a list of dispatches, or an object that holds one list")])
    found = {}
    for one in lists[0]:
        event_id = _id(one) if isinstance(one, dict) else None
        if event_id is not None and one.get("authorized") is not False and not _is_over(one.get("end_time"), now):
            found[event_id] = one.get("modification_number")
    return found


def _is_over(end: Any, now: datetime) -> bool:
    try:
        return datetime.fromisoformat(end) <= now
    except (TypeError, ValueError):
        return False  # none, one that only the whole dispatch explains, or without an offset


def _item(data: Any, context: Context) -> DrEvent | Answer:
    notes = Notes()
    dispatch: Any = None
    try:
        if not isinstance(data, dict):
            raise Refused("not_an_event", f"body: {shown(data)}: must be an object with event and resource")
        pointer = data.get("webhook", data if is_pointer(data) else None)
        dispatch = data.get("fetched", None if pointer is not None else data)
        if pointer is not None:
            known = _pointed(pointer)
            if dispatch is None or known.state is State.PING:
                return known
            if known.event_id is not None and isinstance(dispatch, dict) and _id(dispatch) != known.event_id:
                raise Refused(
                    "wrong_resource", f"fetched.id: {shown(dispatch.get('id'))}: the webhook points to {known.event_id}"
                )
        if not isinstance(dispatch, dict):
            raise Refused("not_an_event", f"fetched: {shown(dispatch)}: must be the dispatch as an object")
        known_id = _id(dispatch)
        return _dispatch(dispatch, context if known_id is None else context.about(known_id), notes)
    except Refused as error:
        event_id = _id(dispatch) if isinstance(dispatch, dict) else None
        return replace(refusal(error, event_id), warnings=notes.all())


def _pointed(pointer: Any) -> Answer:
    """What a webhook asks for: a fetch, or only an answer. Raises Refused."""
    if not isinstance(pointer, dict) or not isinstance(pointer.get("event"), dict):
        raise Refused("bad_field", f"webhook: {shown(pointer)}: must be an object with event and resource")
    name, resource = pointer["event"].get("name"), pointer.get("resource")
    if not name and not resource:
        return Answer(State.PING, warnings=("a sign of life: answer 200",))
    if not isinstance(name, str) or not isinstance(resource, str) or not resource:
        raise Refused("bad_field", f"resource: {shown(resource)}: must be the path of a dispatch, with the event's name")
    try:
        parts = urlsplit(resource)
    except ValueError:
        raise Refused("bad_field", f"resource: {shown(resource)}: must be the path of a dispatch") from None
    path = [part for part in parts.path.split("/") if part]
    if not path or any(part in (".", "..") for part in path) or any(ord(c) < 33 or c == "\\" for c in resource):
        raise Refused("bad_field", f"resource: {shown(resource)}: must be the path of a dispatch")
    warnings = [f"{name}: unsigned and without content: fetch {resource} with our own key, and act on that only"]
    if parts.netloc:
        warnings.append(f"{parts.netloc}: to be fetched only if it is the configured host, without following redirects")
    return Answer(State.FETCH, path[-1], warnings=tuple(warnings))


def _id(dispatch: Mapping[str, Any]) -> str | None:
    value = dispatch.get("id")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MAX_VERSION:
        return str(value)
    return value if isinstance(value, str) and 0 < len(value) <= 256 else None


def _dispatch(dispatch: Mapping[str, Any], context: Context, notes: Notes) -> DrEvent:
    event_id, version = _id(dispatch), dispatch.get("modification_number")
    if event_id is None:
        raise Refused("bad_field", f"id: {shown(dispatch.get('id'))}: must be the dispatch's id")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < _MAX_VERSION:
        raise Refused("bad_field", f"modification_number: {shown(version)}: must be a whole number, 0 or more")
    given = dispatch.get("program")
    program: Mapping[str, Any] = given if isinstance(given, dict) else {}
    source = program.get("id", program.get("name"))
    test = dispatch.get("test", False)
    authorized = dispatch.get("authorized")
    if not isinstance(test, bool) or not isinstance(authorized, bool):
        raise Refused("bad_field", f"authorized, test: {shown(authorized)}, {shown(test)}: must be true or false")
    made = DrEvent(
        source=str(source) if isinstance(source, str | int) else None,
        event_id=event_id,
        version=version,
        received_at=context.now,
        test=test,
        cancelled=not authorized,
        body=json.dumps(dispatch, sort_keys=True, default=str),
        load_w=context.terms.load_w,
    )
    if not authorized:
        return replace(made, warnings=("authorized is false: the dispatch is cancelled",))
    zone = zone_named(program.get("timezone")) or context.terms.site.zone
    start = parse_time(dispatch.get("start_time"), "start_time", zone, notes)
    end = dispatch.get("end_time")
    until = None if end is None else parse_time(end, "end_time", zone, notes, is_end=True)
    if until is not None and until <= start:
        return replace(made, cancelled=True, warnings=(*notes.all(), "it ends before it begins: cancelled"))
    segments = _segments(dispatch.get("sites"), program, context, notes)
    return replace(
        made,
        start=start,
        end=until,
        segments=tuple(replace(s, start=start, end=until) for s in segments),
        lacking=notes.lacking,
        warnings=notes.all(),
    )


def _segments(sites: Any, program: Mapping[str, Any], context: Context, notes: Notes) -> list[Segment]:
    """The limit for this site: its reference load less what it committed to drop, in kW."""
    if not isinstance(sites, list) or not all(isinstance(site, dict) for site in sites):
        raise Refused("bad_field", f"sites: {shown(sites)}: must be a list of sites with a commitment in kW")
    own = context.terms.site.name
    mine = [(i, s) for i, s in enumerate(sites) if own is None or own in (s.get("customer_location_id"), s.get("id"))]
    if own is None and len(mine) > 1:
        said = "it is not said which one is ours (the key 'site' of the event source or site file)"
        raise Refused("which_site", f"sites: several, and {said}")
    if not mine:
        notes.add(f"none of its sites is {own}: nothing follows from it")
        return []
    down_w = 0.0
    for index, site in mine:
        key = "commitment" if site.get("commitment") is not None else "drop_by"
        down_w += power_w(site.get(key), 1e3, f"sites[{index}].{key}")
    name = program.get("name")
    reason = f"drop {kw(down_w)}" + (f", {name}" if isinstance(name, str) else "")
    reference = context.terms.reference(notes)
    if reference is None:
        notes.lack(f"{reason}: from which load is not known: give {REFERENCE}")
        return []
    return [Segment(context.now, None, less(reference, down_w, notes), None, None, f"{reason} below {kw(reference)}")]
