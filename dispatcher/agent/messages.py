"""The frames between a node's agent and the control plane: JSON text, each checked field by field on arrival.

It knows neither sockets nor GPUs. Both sides use this one file, so that they cannot disagree; it must run on the oldest
Python that a cluster may have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Union

from .lease_terms import SetCap

#: Raised when a frame of one side would mean something else to the other.
PROTOCOL = 1
#: Longest frame, bytes of UTF-8; both sides refuse longer ones.
MAX_FRAME_BYTES = 1 << 20
#: Most energy rows in one frame; an agent sends half as many at the most.
MAX_ROWS = 2000
#: Longest identifier or sentence that is taken.
MAX_TEXT = 2000
#: Longest time, s, that an order may speak of; longer ones are mistakes.
MAX_TTL_S = 366 * 86400.0
#: Unix seconds, watts: no number that is told of is larger, whichever way.
MAX_NUMBER = 1e12
#: Lowest limit that an order may ask for: 1 W. What a GPU itself allows is checked where the GPU is.
MIN_LIMIT_W = 1.0

Frame = dict[str, Any]


class BadFrame(ValueError):
    """A frame that means nothing; the message names the field, its value and what would be right."""


@dataclass(frozen=True)
class Stamp:
    """Who made an order and when, as far as it says: ``plane`` tells control planes of one epoch apart, ``at`` is the sender's
    wall clock (unix s); the order was made ``heard_ago_s`` s after a frame of ours arrived that was sent at ``heard_boot_s`` of
    our own boot clock."""

    plane: str | None = None
    at: float | None = None
    heard_boot_s: float | None = None
    heard_ago_s: float = 0.0

    def waited_s(self, boot_s: float) -> float:
        """The longest that the order may have been under way, s; 0 where it does not say."""
        return 0.0 if self.heard_boot_s is None else max(0.0, boot_s - self.heard_boot_s - self.heard_ago_s)


@dataclass(frozen=True)
class Orders:
    """Limits to hold and leases to let go of, from the control plane of ``epoch``. ``wrong`` has the leases that mean nothing,
    each with why: one of them costs no other."""

    order: str
    epoch: int
    set: tuple[SetCap, ...]
    release: tuple[str, ...]
    stamp: Stamp = Stamp()
    wrong: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Freeze:
    """Stop a job's processes for ``ttl_s`` s at most; ``freeze_max_s`` is what the job itself stands."""

    order: str
    epoch: int
    job_id: str
    ttl_s: float
    freeze_max_s: float
    stamp: Stamp = Stamp()


@dataclass(frozen=True)
class Thaw:
    """Let a job's processes run again."""

    order: str
    epoch: int
    job_id: str
    stamp: Stamp = Stamp()


@dataclass(frozen=True)
class EnergyAck:
    """A batch of energy rows is durably stored; the agent may forget it."""

    batch: int


@dataclass(frozen=True)
class Told:
    """The control plane could not use a frame of ours."""

    message: str


# Evaluated on arrival, and Python 3.9 has no | for types.
FromServer = Union[Orders, Freeze, Thaw, EnergyAck, Told]  # noqa: UP007


# --- text and frames ----------------------------------------------------------------------------------------------


def encode(frame: Mapping[str, Any]) -> str:
    """A frame as text. Raises BadFrame for what JSON cannot say (NaN, infinities, unknown types) and for a frame too long."""
    try:
        text = _ENCODER.encode(frame)
    except (TypeError, ValueError) as error:
        raise BadFrame(f"a frame of type {frame.get('type')!r} cannot be written as JSON: {error}") from error
    if len(text) > MAX_FRAME_BYTES:
        raise BadFrame(f"a frame of type {frame.get('type')!r} has {len(text)} bytes; {MAX_FRAME_BYTES} are allowed")
    return text


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def decode(text: str | bytes) -> Frame:
    """A frame from text: an object with a ``type``. Raises BadFrame."""
    if isinstance(text, bytes):
        raise BadFrame("frames are text, not binary")
    if len(text) > MAX_FRAME_BYTES:
        raise BadFrame(f"the frame has {len(text)} characters; {MAX_FRAME_BYTES} are allowed")
    try:
        frame = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"the frame is not JSON: {error}") from None
    if not isinstance(frame, dict):
        raise BadFrame("a frame must be a JSON object")
    if not isinstance(frame.get("type"), str):
        raise BadFrame(f"type: {_shown(frame.get('type'))}: must say what the frame is, such as 'live'")
    try:
        plain = "\\u" not in text or _is_plain(frame)
    except RecursionError:
        plain = False
    if not plain:
        raise BadFrame("the frame has text with NUL or half a character in it, which no database and no answer can hold")
    return frame


def _is_plain(value: Any) -> bool:
    """Whether all text in a value can be stored and sent on: whatever one agent says is kept and shown beside the others'."""
    if isinstance(value, str):
        return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(one) for key, one in value.items())
    return not isinstance(value, list) or all(map(_is_plain, value))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# --- fields -------------------------------------------------------------------------------------------------------


class Fields:
    """The fields of one object, read one by one; each read raises BadFrame with the field's whole name."""

    def __init__(self, value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise BadFrame(f"{name}: {_shown(value)}: must be an object")
        self._value, self._name = value, name

    def wrong(self, field: str, remedy: str) -> BadFrame:
        """The error about a field."""
        return BadFrame(f"{self._name}.{field}: {_shown(self._value.get(field))}: {remedy}")

    def text(self, field: str, *, empty: bool = False) -> str:
        """A string, not empty unless allowed."""
        value = self._value.get(field)
        if not isinstance(value, str) or len(value) > MAX_TEXT or not (value or empty):
            raise self.wrong(field, f"must be text of 1 to {MAX_TEXT} characters" if not empty else "must be text")
        return value

    def maybe_text(self, field: str) -> str | None:
        """A string or null."""
        return None if self._value.get(field) is None else self.text(field)

    def number(self, field: str, low: float = -math.inf, high: float = math.inf) -> float:
        """A finite number within [low, high]."""
        value = self._value.get(field)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high or not _finite(value):
            raise self.wrong(field, "must be a number" + ("" if low == -math.inf else f" of {low:g} to {high:g}"))
        return float(value)

    def maybe_number(self, field: str, low: float = -math.inf, high: float = math.inf) -> float | None:
        """A number or null, which means unknown."""
        return None if self._value.get(field) is None else self.number(field, low, high)

    def whole(self, field: str, low: int = 0) -> int:
        """A whole number of at least ``low``."""
        value = self._value.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < low or value > 1 << 62:
            raise self.wrong(field, f"must be a whole number of at least {low}")
        return value

    def yes(self, field: str) -> bool:
        """true or false; absent means false."""
        value = self._value.get(field, False)
        if not isinstance(value, bool):
            raise self.wrong(field, "must be true or false")
        return value

    def items(self, field: str, most: int = 10_000) -> list[Any]:
        """A list; absent means empty."""
        value = self._value.get(field, [])
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(field, f"must be a list of at most {most}")
        return value

    def objects(self, field: str, most: int = 10_000) -> list[Fields]:
        """A list of objects."""
        return [Fields(one, f"{self._name}.{field}[{at}]") for at, one in enumerate(self.items(field, most))]

    def texts(self, field: str, most: int = 10_000) -> tuple[str, ...]:
        """A list of strings."""
        values = self.items(field, most)
        if not all(isinstance(one, str) and 0 < len(one) <= MAX_TEXT for one in values):
            raise self.wrong(field, "must be a list of text")
        return tuple(values)

    def inner(self, field: str) -> Fields:
        """An object within."""
        return Fields(self._value.get(field), f"{self._name}.{field}")

    def raw(self) -> dict[str, Any]:
        """The object as it came."""
        return self._value


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


# --- from the control plane ---------------------------------------------------------------------------------------


def from_server(frame: Frame) -> FromServer:
    """What a frame of the control plane means. Raises BadFrame."""
    kind = frame["type"]
    fields = Fields(frame, str(kind)[:40])
    if kind == "orders":
        return _orders(fields)
    if kind == "freeze":
        ttl_s, most_s = fields.number("ttl_s", 0, MAX_TTL_S), fields.number("freeze_max_s", 0, MAX_TTL_S)
        return Freeze(fields.text("order"), fields.whole("epoch"), fields.text("job_id"), ttl_s, most_s, _stamp(fields))
    if kind == "thaw":
        return Thaw(fields.text("order"), fields.whole("epoch"), fields.text("job_id"), _stamp(fields))
    if kind == "energy_ack":
        return EnergyAck(fields.whole("batch"))
    if kind == "error":
        return Told(fields.text("message"))
    raise BadFrame(f"type: {_shown(kind)}: an agent understands orders, freeze, thaw, energy_ack and error")


def _orders(fields: Fields) -> Orders:
    caps, wrong = [], []
    for one in fields.objects("set", 1000):
        lease_id = one.text("lease_id")
        try:
            caps.append(_cap(one, lease_id))
        except BadFrame as error:
            wrong.append((lease_id, str(error)))
    order, epoch, release = fields.text("order"), fields.whole("epoch"), fields.texts("release", 1000)
    return Orders(order, epoch, tuple(caps), release, _stamp(fields), tuple(wrong))


def _cap(one: Fields, lease_id: str) -> SetCap:
    kind = one.text("kind")
    if kind not in ("economic", "event"):
        raise one.wrong("kind", "must be economic or event")
    ttl_s = one.maybe_number("ttl_s", 0, MAX_TTL_S)
    if ttl_s is None and kind == "economic":
        raise one.wrong("ttl_s", "an economic lease has an end")
    limit_w, uuid = one.number("limit_w", MIN_LIMIT_W, 1e6), one.text("uuid")
    allowed = (one.yes("min_ok"), one.yes("test"), one.yes("foreign_ok"))
    return SetCap(lease_id, kind, uuid, limit_w, ttl_s, one.text("reason", empty=True), *allowed)


def _stamp(fields: Fields) -> Stamp:
    return Stamp(
        fields.maybe_text("plane"),
        fields.maybe_number("at", 0, MAX_NUMBER),
        fields.maybe_number("heard_boot_s", 0, MAX_NUMBER),
        fields.maybe_number("heard_ago_s", 0, MAX_NUMBER) or 0.0,
    )


# --- from an agent ------------------------------------------------------------------------------------------------

#: Figures of a GPU that a live frame may carry; each a number or null, which means unknown.
LIVE_NUMBERS = ("power_w", "limit_w", "enforced_w", "temperature_c", "sm_util")
MAX_FIGURE = 1e9
INFO_NUMBERS = ("min_w", "max_w", "default_w", "limit_w")
IDLE_STATES = ("active", "execution_idle", "deep_idle", "lost")


def check_hello(frame: Frame) -> Fields:
    """The first frame of an agent, checked. Raises BadFrame."""
    hello = Fields(frame, "hello")
    if hello.whole("protocol", 1) != PROTOCOL:
        raise hello.wrong("protocol", f"this control plane speaks protocol {PROTOCOL}; install the same version on both sides")
    node = hello.inner("node")
    node.text("node_id")
    node.text("hostname")
    for field in ("branch", "ray_node_id", "boot_id", "version"):
        node.maybe_text(field)
    node.yes("simulated")
    hello.yes("can_cap")
    hello.text("why_not", empty=True)
    hello.whole("epoch")
    hello.maybe_text("plane")
    seen = set()
    for gpu in hello.objects("gpus", 256):
        uuid = gpu.text("uuid")
        if uuid in seen:
            raise gpu.wrong("uuid", "is named twice")
        seen.add(uuid)
        gpu.whole("index")
        gpu.text("name")
        for field in INFO_NUMBERS:
            gpu.maybe_number(field, 0, 1e6)
    check_leases(hello)
    return hello


def check_leases(frame: Fields) -> None:
    """The leases that a frame tells of. Raises BadFrame."""
    for lease in frame.objects("leases", 10_000):
        lease.text("lease_id")
        lease.text("uuid")
        lease.number("limit_w", 0, 1e6)
        lease.maybe_number("ends_in_s", -MAX_TTL_S, MAX_TTL_S)
        lease.maybe_number("epoch", 0, 1e15)


def check_live(frame: Frame) -> Fields:
    """An agent's figures of now, checked as far as those who read them rely on. Raises BadFrame."""
    live = Fields(frame, "live")
    for at, gpu in enumerate(live.items("gpus", 256)):
        # These come each second from every node: no object is made for what is as it should be.
        if not (
            isinstance(gpu, dict)
            and isinstance(gpu.get("uuid"), str)
            and _are_figures(gpu)
            and ((jobs := gpu.get("jobs")) is None or (isinstance(jobs, list) and len(jobs) <= 10_000))
            and isinstance(gpu.get("throttle", []), list)
            and isinstance(gpu.get("cap") or {}, dict)
            and isinstance(gpu.get("protected") or "", str)
            and gpu.get("idle_state") in (*IDLE_STATES, None)
        ):
            _say_what_is_wrong(gpu, f"live.gpus[{at}]")
    for alarm in live.objects("alarms", 1000):
        alarm.text("key")
        alarm.text("sentence")
    for frozen in live.objects("frozen", 10_000):
        frozen.text("job_id")
        frozen.maybe_number("until")
    if frame.get("leases") is not None:
        check_leases(live)
    return live


def _are_figures(gpu: Frame) -> bool:
    for field in LIVE_NUMBERS:
        value = gpu.get(field)
        # Also refuses infinities, which JSON can bring as 1e999.
        if value is not None and not (type(value) in (float, int) and -MAX_FIGURE < value < MAX_FIGURE):
            return False
    return True


def _say_what_is_wrong(value: Any, name: str) -> None:
    gpu = Fields(value, name)
    gpu.text("uuid")
    for field in LIVE_NUMBERS:
        gpu.maybe_number(field, -MAX_FIGURE, MAX_FIGURE)
    if value.get("jobs") is not None:  # null: who is there is not known
        gpu.items("jobs")
    gpu.items("throttle")
    if value.get("cap") is not None:
        gpu.inner("cap")
    gpu.maybe_text("protected")
    raise gpu.wrong("idle_state", "must be one of " + ", ".join(IDLE_STATES))


def check_error(frame: Frame) -> tuple[str, str | None]:
    """What the other side says of a frame that it did not understand, and which order it was, if one. Raises BadFrame."""
    error = Fields(frame, "error")
    return error.text("message"), error.maybe_text("order")


def check_results(frame: Frame) -> Fields:
    """What came of an order. Raises BadFrame."""
    results = Fields(frame, "results")
    results.text("order")
    for at, raw in enumerate(results.items("results", 10_000)):
        if _is_plain_result(raw):  # ten thousand come at once when an event begins
            continue
        one = Fields(raw, f"results.results[{at}]")
        one.maybe_text("lease_id")
        one.yes("ok")
        one.maybe_number("enforced_w", 0, 1e6)
        one.maybe_number("took_s", 0, MAX_TTL_S)
        one.maybe_text("error")
    return results


def _is_plain_result(raw: Any) -> bool:
    """Whether a result is as it should be at first sight; if not, a closer look says what is wrong, if anything."""
    if not isinstance(raw, dict) or type(raw.get("lease_id")) is not str or not 0 < len(raw["lease_id"]) <= MAX_TEXT:
        return False
    figures = raw.get("enforced_w", 0.0), raw.get("took_s", 0.0)
    return raw.get("ok") is True and raw.get("error") is None and all(type(v) is float and 0 <= v <= 1e6 for v in figures)


def check_energy(frame: Frame) -> tuple[int, Sequence[dict[str, Any]]]:
    """(batch number, rows) of an energy frame. Raises BadFrame."""
    energy = Fields(frame, "energy")
    rows = energy.objects("rows", MAX_ROWS)
    for row in rows:
        start, end = row.number("start", 0, 1e11), row.number("end", 0, 1e11)
        if end <= start:
            raise row.wrong("end", "must be after start")
        row.text("uuid")
        row.maybe_text("job_id")
        row.maybe_text("node_id")
        row.text("line")
        row.number("energy_wh", 0, 1e9)
        row.number("seconds", 0, end - start + 1e-6)
        row.text("quality")
    return energy.whole("batch"), [row.raw() for row in rows]
