"""A night of demand response as the control plane tells of it: limits kept, missed and unknown, on sites and a branch."""

from datetime import UTC, datetime, timedelta
from typing import Any

NOW = datetime(2026, 3, 3, 3, 12, 5, tzinfo=UTC)
SIX = NOW.replace(hour=6, minute=0, second=0)
Json = dict[str, Any]


def iso(at: datetime | None) -> str | None:
    """As the API writes times."""
    return None if at is None else at.isoformat()


def limit(region: str, limit_w: float, **more: Any) -> Json:
    """A limit that always holds, unless ``more`` makes it one of an event."""
    base: Json = {"region": region, "branch": None, "limit_w": limit_w, "start": None, "end": None, "holds": True}
    return base | {"source": None, "event_id": None, "reason": "site limit", "ramp_s": None, "way_back": None} | more


def of_event(
    region: str, limit_w: float, start: datetime, end: datetime | None, event_id: str = "evt-20260303-01", **more: Any
) -> Json:
    """A step of an event that binds."""
    holds = start <= NOW and (end is None or end > NOW)
    base: Json = {"start": iso(start), "end": iso(end), "holds": holds, "source": "utility", "event_id": event_id}
    return limit(region, limit_w, **base, reason="grid scarcity") | more


def some_limits() -> list[Json]:
    """nordics over its event's limit, a branch within its own, eu-west of which the draw is unknown."""
    return [
        limit("eu-west", 6000.0),
        limit("nordics", 9000.0),
        limit("nordics", 2000.0, branch="rack-1", reason="branch limit"),
        of_event("nordics", 3000.0, SIX - timedelta(hours=3), SIX),
        of_event("nordics", 2500.0, SIX, SIX + timedelta(hours=1)),
        of_event("eu-west", 2000.0, SIX + timedelta(hours=12), SIX + timedelta(hours=14), "evt-20260303-02"),
    ]


def draw_now(region: str, power_w: float | None, quality: str, branch: str | None = None, **more: Any) -> Json:
    """What a place draws now."""
    base: Json = {"region": region, "branch": branch, "power_w": power_w, "quality": quality, "at": iso(NOW), "reason": ""}
    return base | {"source": "meter", "difference_w": None, "start": None, "end": None} | more


def some_power() -> list[Json]:
    """What ``/v1/meters`` tells under ``power``."""
    minute = NOW.replace(second=0)
    stopped = "meter main of eu-west has said <nothing> since 02:58Z"
    return [
        draw_now("eu-west", None, "unknown", reason=stopped),
        draw_now("nordics", 4320.0, "measured", start=iso(minute - timedelta(minutes=1)), end=iso(minute)),
        draw_now("nordics", 1512.0, "estimated", "rack-1", reason="the branch has no meter"),
        draw_now("us-east", 252.0, "simulated", reason="the site has no meter"),
    ]


def worth(**more: Any) -> Json:
    """What an event is worth by its programme."""
    base: Json = {"programme": "interruptible", "currency": "EUR", "committed_kw": 40.0, "committed_kwh": 80.0, "if_met": 40.0}
    base |= {"if_nothing": -160.0, "if_opted_out": -25.5, "jobs_cost_at_most": 12.0, "jobs_currency": "EUR", "jobs_counted": 6}
    return base | {"breaches": [], "reasons": [], "sentence": "interruptible: 40.00 EUR if it is met"} | more


def event(event_id: str, region: str, state: str, start: datetime, end: datetime | None, limit_w: float, **more: Any) -> Json:
    """An event as the API tells it."""
    base: Json = {"source": "utility", "event_id": event_id, "version": 1, "region": region, "start": iso(start)}
    base |= {"end": iso(end), "limit_w": limit_w, "state": state, "received_at": iso(start - timedelta(minutes=50))}
    base |= {"test": False, "branch": None, "opted_out": None, "programme": None, "reason": "grid scarcity"}
    step = {"start": iso(start), "end": iso(end), "limit_w": limit_w, "interval_id": 0, "ramp_s": None, "reason": ""}
    return base | {"steps": [step]} | more


def some_events() -> list[Json]:
    """``/v1/events``: one that binds, one announced, one opted out of, three that are over."""
    hour = timedelta(hours=1)
    unknown = worth(if_met=None, if_nothing=None, reasons=["no reduction was agreed, and what is drawn now is not known"])
    outside = worth(breaches=["notice was 0.0 min, the terms say 30.0 min"])
    return [
        event("evt-20260303-01", "nordics", "active", SIX - 3 * hour, SIX, 3000.0, programme=outside),
        event("evt-20260303-02", "eu-west", "scheduled", SIX + 12 * hour, SIX + 14 * hour, 2000.0, programme=unknown),
        event("evt-<b>", "us-east", "active", NOW - hour, None, 400.0, opted_out="a customer's <i>deadline</i>"),
        event("evt-20260302-07", "nordics", "expired", SIX - 20 * hour, SIX - 18 * hour, 5000.0),
        event("evt-20260302-08", "eu-west", "expired", SIX - 30 * hour, SIX - 28 * hour, 5000.0, test=True),
        event("evt-20260302-09", "us-east", "cancelled", NOW - 3 * hour, NOW + hour, 300.0, received_at=iso(NOW - 2 * hour)),
    ]


def draw(region: str, branch: str | None = None) -> Json:
    """``/v1/draw`` of four hours by the minute: with a gap; eu-west was not measured at all."""
    start = NOW.replace(second=0) - timedelta(hours=4)
    base: Json = {"region": region, "branch": branch, "start": iso(start), "step_s": 60.0, "simulated": region == "us-east"}
    if region == "eu-west":
        note = "nothing was measured in this time"
        return base | {"watts": [None] * 240, "basis": "site meter", "estimated": False, "note": note}
    watts = [None if 100 <= i < 130 else (7600.0 if i < 228 else 4320.0) + 150.0 * (i % 7) for i in range(240)]
    basis = "SIMULATED GPUs times PUE 1.2" if region == "us-east" else "site meter"
    return base | {"watts": watts, "basis": basis, "estimated": region == "us-east", "note": None}


def flexible(branch: str | None, draw_w: float | None, basis: str, **more: Any) -> Json:
    """What a place could give now."""
    sheds = [
        {"for_s": float(s), "caps_w": caps, "pauses_w": pauses, "total_w": caps + pauses, "within_s": within}
        for s, caps, pauses, within in (
            (10, 620.0, 0.0, None),
            (30, 620.0, 300.0, 12.0),
            (600, 620.0, 1250.0, 90.0),
            (1800, 620.0, 1250.0, 90.0),
            (7200, 410.0, 800.0, 90.0),
        )
    ]
    stays = {"flex_0_w": 480.0, "floor_w": 624.0, "at_rest_w": 120.0, "other_w": 55.0, "protected_w": 0.0, "serving_w": 0}
    base: Json = {"branch": branch, "start": iso(NOW), "end": None, "draw_w": draw_w, "basis": basis, "reason": None}
    return base | {"sheds": sheds, "stays": stays, "notes": ["2 jobs count with the draw that their owners <stated>"]} | more


def flexibility() -> Json:
    """``/v1/flexibility``."""
    nothing = [
        {"for_s": float(s), "caps_w": 0.0, "pauses_w": 0.0, "total_w": 0.0, "within_s": None} for s in (10, 30, 600, 1800, 7200)
    ]
    places = {
        "eu-west": [flexible(None, None, "unknown", reason="meter main of eu-west stopped", stays=None)],
        "nordics": [flexible(None, 4320.0, "measured"), flexible("rack-1", 1512.0, "estimated")],
        "us-east": [flexible(None, 252.0, "simulated", sheds=nothing, notes=[])],
    }
    told = [{"region": name, "now": now, "ahead": None, "ahead_missing": "no plan"} for name, now in places.items()]
    return {"at": iso(NOW), "for_s": [10.0, 30.0, 600.0, 1800.0, 7200.0], "of": "the meter, PUE included", "regions": told}


def report(event_id: str) -> tuple[int, Json]:
    """An event's report: missed; a test of which nothing is known; and one without any."""
    if event_id == "evt-20260302-07":
        made = {"mean_w": {"value": 2410.0}, "energy_kwh": {"value": 4.82}, "performance": 0.803, "committed_by_limit": False}
        said = "The site drew 2.4 kW less than expected (31.6 %) for 2 h, 80.3 % of what it had promised."
        return 200, {"verdict": "missed", "headline": said, "metered": {"basis": "site meter"}, "delivered": made}
    if event_id == "evt-20260302-08":
        said = "What was delivered is not known: too little was measured, or there is nothing to measure it by."
        return 200, {"verdict": "unknown", "headline": said, "metered": {"basis": "site meter"}, "delivered": None}
    return 409, {"error": {"message": f"event {event_id} has no readings to be measured by", "problems": []}}


def leases(fleet: Json) -> Json:
    """The fleet with two GPUs of a node capped for the event, one of them not as set."""
    for region in fleet["regions"]:
        for branch in region["branches"]:
            for node in branch["nodes"]:
                if node["node_id"] == "n1":
                    node["leases"] = [
                        {"lease_id": f"e{i}", "kind": "event", "uuid": f"GPU-{i}", "limit_w": 350.0, "ends_at": iso(SIX)}
                        | {"reason": "nordics may draw 3.0 kW (grid scarcity)"}
                        for i in (0, 1)
                    ]
    return fleet
