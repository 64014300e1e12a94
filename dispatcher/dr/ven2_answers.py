"""Whether we take part in an OpenADR 2.0b event, said for each event by itself; and what a VTN ends without saying so. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from dispatcher.dr.ledger import Ledger
from dispatcher.dr.model import Answer, DrEvent, State, Version, kw
from dispatcher.dr.safe_xml import Element
from dispatcher.dr.ven2_messages import Reply

#: Codes of the profile: another version is held; what it says cannot be used.
OUT_OF_SEQUENCE, INVALID_DATA = 450, 454
#: Signals that we heed although they limit nothing.
_HEEDED = ("level", "price", "energy_price", "electricity_price", "demand_charge", "bid_price")


def wants_answer(wrapper: Element) -> bool:
    """Whether an ``oadrEvent`` is to be answered. "never" is; only that is not, so that a slip of the pen costs an answer."""
    return (wrapper.word("oadrResponseRequired") or "always").lower() != "never"


def reply(answer: Answer, number: Version, stance: Reply | None) -> Reply | None:
    """What to answer to version ``number`` of an event that is understood so; ``stance`` is how we stand to what is held of it.
    None where it has no name that could be answered, or is over."""
    if not answer.event_id or not answer.event_id.isprintable() or isinstance(number, datetime):
        return None
    if answer.state is State.REJECTED:
        return Reply(answer.event_id, number or 0, False, INVALID_DATA, f"{answer.code}: {answer.message}")
    if answer.state is State.EXPIRED or stance is None:
        return None
    if answer.state is State.IGNORED:
        said = answer.warnings[-1] if answer.warnings else "not used"
        return replace(stance, number=number or 0, code=OUT_OF_SEQUENCE, said=said)
    return stance


def standing(event: DrEvent, *, opted_out: str | None, floor_w: float | None, logs_tests: bool) -> Reply:
    """How we stand to an event that is held."""
    why = None if event.cancelled else _why_not(event, opted_out, floor_w, logs_tests)
    number = event.version if isinstance(event.version, int) else 0
    return Reply(event.event_id, number, why is None, said=why or "OK")


def _why_not(event: DrEvent, opted_out: str | None, floor_w: float | None, logs_tests: bool) -> str | None:
    if opted_out is not None:
        return f"opted out by the operator: {opted_out}"
    if event.test and logs_tests:
        return "a test: recorded, not acted on here"
    if event.lacking is not None:
        return f"cannot be followed: {event.lacking}"
    lowest_w = min((segment.limit_w for segment in event.segments), default=None)
    if lowest_w is not None and floor_w is not None and lowest_w < floor_w:
        return f"followed as far as possible: {kw(lowest_w)} is below what serving needs, {kw(floor_w)}"
    if lowest_w is None and not any(signal.kind.startswith(_HEEDED) for signal in event.signals):
        return "nothing of it can be followed here"
    return None


def is_live(event: DrEvent, now: datetime) -> bool:
    """Whether an event that is held can still ask for something."""
    return not (event.cancelled or event.completed or (event.end is not None and event.end <= now))


def absent(held: Ledger, listed: set[str], now: datetime) -> list[DrEvent]:
    """Events that are held, not over, and not listed."""
    return [event for name, event in held.items() if name not in listed and is_live(event, now)]


def ended_by_status(item: DrEvent, held: DrEvent | None, now: datetime) -> bool:
    """Whether a listing ends an event under the number that is held: cancelled, or, where only that can end it, completed."""
    if held is None or held.version != item.version or not is_live(held, now):
        return False
    return item.cancelled or (item.completed and held.end is None)


def released(event: DrEvent, now: datetime, why: str) -> DrEvent:
    """The end of an event by a word that has no number of its own. One below what is held, so that the same number takes
    it back should the VTN list it again, and a lower one does not."""
    number = event.version - 1 if isinstance(event.version, int) else event.version
    return DrEvent(
        event.source,
        event.event_id,
        number,
        now,
        cancelled=True,
        final=True,
        polled=True,
        recovery_s=event.recovery_s,
        body=why,
        warnings=(why,),
    )


def changed(said: Mapping[str, Reply], stances: Mapping[str, Reply]) -> list[Reply]:
    """Answers to give anew, because we stand otherwise to the version that was answered: the operator opted out, or back in."""
    out = []
    for event_id, now in stances.items():
        before = said.get(event_id)
        if before is not None and before.number == now.number and before.opt_in != now.opt_in and before.code == 200:
            out.append(replace(now, request_id=before.request_id))
    return out
