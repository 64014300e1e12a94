"""What an OpenADR 3 interval asks for: payload types and units to caps in W and to signals.

It knows nothing of time. Sources: OpenADR 3.1 Definition, its enumerations of payloads and units.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dispatcher.dr.model import Notes, Refused, kw, number, power_w, shown, tidy
from dispatcher.dr.site import Site

#: What says from which load is counted.
REFERENCE = "reference_w of the event source (batch_and_serving_reference_kw in a site file), or --load-w"
#: Alerts that by themselves mean: as little as possible.
EMERGENCIES = ("ALERT_GRID_EMERGENCY", "ALERT_BLACK_START")
#: The one that says that the grid is about to fail. At a black start it comes back; that SIMPLE's level 3 is one is the
#: standard's example of what levels may mean.
_IN_DANGER = "ALERT_GRID_EMERGENCY"
_PRICES = frozenset({"PRICE", "PRICE_ALTERNATE", "EXPORT_PRICE"})
_CAPS = frozenset({"DISPATCH_SETPOINT", "IMPORT_CAPACITY_LIMIT"})
_RELATIVE = "DISPATCH_SETPOINT_RELATIVE"
#: Power, but nothing to hold to by itself: what one may draw by contract, what could be had.
_ALLOWANCES = frozenset(
    {
        "IMPORT_CAPACITY_SUBSCRIPTION",
        "IMPORT_CAPACITY_RESERVATION",
        "IMPORT_CAPACITY_AVAILABLE",
        "EXPORT_CAPACITY_LIMIT",
        "EXPORT_CAPACITY_SUBSCRIPTION",
        "EXPORT_CAPACITY_RESERVATION",
        "EXPORT_CAPACITY_AVAILABLE",
    }
)
#: Standard, kept, and without meaning for a data centre's load.
_KEPT = frozenset(
    {
        "CHARGE_STATE_SETPOINT",
        "CONTROL_SETPOINT",
        "CURVE",
        "OLS",
        "IMPORT_CAPACITY_RESERVATION_FEE",
        "IMPORT_CAPACITY_AVAILABLE_PRICE",
        "EXPORT_CAPACITY_RESERVATION_FEE",
        "EXPORT_CAPACITY_AVAILABLE_PRICE",
        "CTA2045_REBOOT",
        "CTA2045_SET_OVERRIDE_STATUS",
    }
)
_RANGES = {"CONTROL_LEVEL_OFFSET": 10.0, "CONTROL_LEVEL_OFFSET_PERCENT": 1.0}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """What a payload type's numbers are counted in."""

    units: str | None = None
    currency: str | None = None


@dataclass(frozen=True, slots=True)
class Cap:
    """A limit that a payload asks for."""

    limit_w: float
    reason: str


@dataclass(frozen=True, slots=True)
class Value:
    """Values of a signal in one interval; several share it evenly."""

    kind: str
    values: tuple[object, ...]
    unit: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """All that one interval asks for; ``emergency``: it says that the grid is in danger."""

    caps: tuple[Cap, ...]
    values: tuple[Value, ...]
    emergency: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What payloads are read against: the site, and the load at receipt where it is known."""

    site: Site
    load_w: float | None = None

    def reference(self, notes: Notes) -> float | None:
        """What shares of a baseline are counted from."""
        if self.site.reference_w is None and self.load_w is not None:
            notes.add("no reference load is agreed; the load at receipt is taken for the baseline")
        return self.site.reference_w if self.site.reference_w is not None else self.load_w

    def at_receipt(self, notes: Notes) -> float | None:
        """What a change of the present load is counted from: that load, frozen."""
        if self.load_w is None and self.site.reference_w is not None:
            notes.add("the load at receipt is not given; the site's reference load stands in for it")
        return self.load_w if self.load_w is not None else self.site.reference_w


def read_payloads(payloads: object, descriptors: Mapping[str, Descriptor], where: str, terms: Terms, notes: Notes) -> Asked:
    """What an interval's payloads ask for. Raises Refused when one that would limit the load cannot be understood."""
    if not isinstance(payloads, list):
        raise Refused("bad_field", f"{where}.payloads: {shown(payloads)}: must be a list of {{type, values}}")
    caps: list[Cap] = []
    values: list[Value] = []
    alerts: list[str] = []
    emergency = False
    for index, payload in enumerate(payloads):
        at = f"{where}.payloads[{index}]"
        kind, given = _payload(payload, at)
        descriptor = descriptors.get(kind, Descriptor())
        if kind in EMERGENCIES:
            alerts.append(f"{kind}: {_text(given)}" if _text(given) else kind)
            emergency = emergency or kind == _IN_DANGER
            values.append(Value(kind.lower(), (_text(given),), None))
        elif kind in _CAPS or kind == _RELATIVE or kind == "SIMPLE":
            caps += _limits(kind, _single(given, kind, at), descriptor, at, terms, notes)
            if kind == "SIMPLE":
                values.append(Value("level", (given[0],), None))
        else:
            values.append(_signal(kind, given, descriptor, at, notes))
    if alerts:
        reason = "; ".join(alerts)
        if not caps:
            caps = level_caps(3, f"{reason} (as SIMPLE=3)", terms, notes)
        else:
            caps = [Cap(cap.limit_w, f"{reason}; {cap.reason}") for cap in caps]
    return Asked(tuple(caps), tuple(values), emergency)


def _payload(payload: object, where: str) -> tuple[str, list[Any]]:
    if not isinstance(payload, dict):
        raise Refused("bad_field", f"{where}: {shown(payload)}: must be an object with type and values")
    kind, values = payload.get("type"), payload.get("values")
    if not isinstance(kind, str) or not 1 <= len(kind) <= 128:
        raise Refused("bad_field", f"{where}.type: {shown(kind)}: must be a payload type of 1 to 128 characters")
    if not isinstance(values, list):
        raise Refused("bad_field", f"{where}.values: {shown(values)}: must be a list")
    return kind, values


def _single(values: Sequence[Any], kind: str, where: str) -> Any:
    if len(values) != 1:
        raise Refused("bad_value", f"{where}.values: {shown(values)}: {kind} takes exactly one value")
    return values[0]


def _text(values: Sequence[Any]) -> str:
    return " ".join(str(value) for value in values)[:500]


def _limits(kind: str, value: object, descriptor: Descriptor, where: str, terms: Terms, notes: Notes) -> list[Cap]:
    at = f"{where}.values"
    if kind == "SIMPLE":
        if isinstance(value, bool) or value not in (0, 1, 2, 3) or not isinstance(value, int | float):
            raise Refused("bad_value", f"{at}: {shown(value)}: SIMPLE is a level from 0 to 3")
        return level_caps(int(value), f"SIMPLE={int(value)}", terms, notes)
    units = _power_units(kind, descriptor, where, notes)
    text = f"{kind}={value if isinstance(value, str) else f'{number(value, at):g}'} {units}"
    if kind in _CAPS:
        if units == "KW":
            return [Cap(power_w(value, 1e3, at), text)]
        share = number(value, at)
        if not 0 <= share <= 1:
            raise Refused("bad_value", f"{at}: {shown(value)}: PERCENT is a fraction from 0 to 1 here")
        reference = terms.reference(notes)
        if reference is None:
            notes.lack(f"{text}: of a load that is not known: give {REFERENCE}")
            return []
        return [Cap(tidy(share * reference), f"{text} of {kw(reference)}")]
    return _relative(number(value, at), units, text, at, terms, notes)


def _relative(value: float, units: str, text: str, at: str, terms: Terms, notes: Notes) -> list[Cap]:
    """A change of the load: the standard does not say which sign reduces, so the site does."""
    positive_reduces = terms.site.positive_reduces
    if positive_reduces is None:
        notes.add("the standard leaves the sign of relative dispatches open, the site too: positive is read as reduce by")
        positive_reduces = True
    if value < 0 and positive_reduces:
        raise Refused(
            "bad_value", f"{at}: {shown(value)}: negative, though the site's relative_sign is that positive values reduce"
        )
    if units == "PERCENT" and abs(value) > 1:
        raise Refused("bad_value", f"{at}: {shown(value)}: PERCENT is a fraction from -1 to 1")
    reduce = value if positive_reduces else -value
    if reduce < 0:
        notes.add(f"{text} asks for more load, which limits nothing")
        return []
    base = terms.at_receipt(notes)
    if base is None:
        notes.lack(f"{text}: below a load that is not known: give {REFERENCE}")
        return []
    down = reduce * base if units == "PERCENT" else power_w(reduce, 1e3, at)
    return [Cap(less(base, down, notes), f"{text} below {kw(base)}")]


def less(base_w: float, down_w: float, notes: Notes) -> float:
    """A load reduced by so much; what cannot be reduced below nothing is said."""
    if down_w > base_w:
        notes.add(f"asked to reduce by {kw(down_w)}, more than the {kw(base_w)} there are: the limit is 0")
    return tidy(max(0.0, base_w - down_w))


def level_caps(level: int, reason: str, terms: Terms, notes: Notes) -> list[Cap]:
    """The limit that a level means at this site; none for normal operation, or where the site does not say."""
    asked = terms.site.levels.get(level)
    if asked is None:
        if level:
            where = "simple_levels of the event source (simple_map in a site file)"
            notes.lack(f"{reason}: what level {level} means is not known: give {where}")
        return []
    if asked.cap_w is not None:
        return [Cap(asked.cap_w, reason)]
    if asked.share is None:
        return []
    reference = terms.reference(notes)
    if reference is None:
        notes.lack(f"{reason}: a share of a baseline that is not known: give {REFERENCE}")
        return []
    return [Cap(tidy(asked.share * reference), reason)]


def _power_units(kind: str, descriptor: Descriptor, where: str, notes: Notes) -> str:
    units = descriptor.units
    if units is None or not units.strip():
        raise Refused(
            "missing_units",
            f"{where}: {kind} without units: a payloadDescriptor of the event or program must say KW or PERCENT",
        )
    if units.upper() in ("KW", "PERCENT"):
        if units != units.upper():
            notes.add(f"{where}: units {units} are written {units.upper()} in the standard; read so")
        return units.upper()
    raise Refused(
        "bad_units", f"{where}: {kind} in {shown(units)}: a limit must be in KW or PERCENT, the standard's units of power"
    )


def _signal(kind: str, values: list[Any], descriptor: Descriptor, where: str, notes: Notes) -> Value:
    at = f"{where}.values"
    if kind in _PRICES:
        return _price(kind, [number(value, at) for value in values], descriptor, where, notes)
    if kind == "GHG":
        return Value("ghg", tuple(number(value, at) for value in values), "gCO2e/kWh")
    if kind in _ALLOWANCES:
        units = (descriptor.units or "").upper()
        if units == "KW":
            return Value(kind.lower(), tuple(power_w(value, 1e3, at) for value in values), "W")
        notes.add(f"{where}: {kind} without the units KW: kept as it is")
        return Value(kind.lower(), tuple(values), descriptor.units)
    if kind in _RANGES:
        value = number(_single(values, kind, where), at)
        if abs(value) > _RANGES[kind]:
            raise Refused("bad_value", f"{at}: {shown(value)}: {kind} lies within ±{_RANGES[kind]:g}")
        notes.add(f"{kind} is a level of control, not of load: kept, nothing follows from it")
        return Value(kind.lower(), (value,), descriptor.units)
    if kind == "DISPATCH_INSTRUCTION":
        raise Refused(
            "unmapped_instruction",
            f"{at}: {shown(values)}: an instruction agreed outside the standard, and none is configured here",
        )
    if kind.startswith("ALERT_"):
        notes.add(f"{kind}: {_text(values)}: no limit; put off starts and save checkpoints early")
        return Value(kind.lower(), (_text(values),), None)
    if kind in _KEPT:
        notes.add(f"{kind}: kept, nothing follows from it")
    else:
        notes.add(f"{kind}: not a payload type of the standard, so private to its program: kept, nothing follows from it")
    return Value(kind.lower() if kind in _KEPT else kind, (values[0] if len(values) == 1 else list(values),), descriptor.units)


def _price(kind: str, values: list[float], descriptor: Descriptor, where: str, notes: Notes) -> Value:
    currency, units = descriptor.currency, (descriptor.units or "").upper()
    if currency and units == "KWH":
        return Value(kind.lower(), tuple(tidy(value * 1e3) for value in values), f"{currency}/MWh")
    notes.add(f"{where}: {kind} without {'currency' if not currency else 'the units KWH'}: kept as it is")
    unit = f"{currency or '?'}/{descriptor.units or '?'}" if currency or descriptor.units else None
    return Value(kind.lower(), tuple(values), unit)
