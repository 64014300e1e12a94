"""What a site has agreed with its programs: its reference load, its floor, what a level means; from a small file.

It knows nothing of events. The file (JSON or TOML) speaks kW, as programs do; inside all is W.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from dispatcher.dr.model import MAX_W, Answer, kw, shown, tidy
from dispatcher.errors import BadInput

_POWER_UNITS = {"W": 1.0, "kW": 1e3, "MW": 1e6}
_KEYS = (
    "site",
    "batch_and_serving_reference_kw",
    "serving_floor_kw",
    "meter",
    "simple_map",
    "relative_sign",
    "overlap",
    "timezone",
    "power_unit",
)
_SHARE = re.compile(r"([+-]?\d+(?:\.\d+)?) ?% of (?:the )?(?:baseline|reference)", re.ASCII)
_POWER = re.compile(r"(?:cap ?= ?)?(\d+(?:\.\d+)?) ?(W|kW|MW)", re.ASCII)
_FLOOR = re.compile(r"cap ?= ?serving_floor_kw")
_LEVEL_HELP = "must be 'normal', '-25% of baseline', 'cap = serving_floor_kw', '40 kW' or a cap in kW"


@dataclass(frozen=True, slots=True)
class Level:
    """What a level asks for: a cap in W, or a share of the reference load; neither is normal operation."""

    cap_w: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A site's terms; None is "not said", and then nothing that needs it is made up.

    ``positive_reduces`` is the sign of relative dispatches in OpenADR 3, which the standard leaves open. ``zone`` is what
    times without an offset mean, ``power_scale`` the unit of powers in messages that do not say theirs.
    """

    name: str | None = None
    reference_w: float | None = None
    floor_w: float | None = None
    levels: Mapping[int, Level] = field(default_factory=dict)
    positive_reduces: bool | None = None
    meter: str | None = None
    by_priority: bool = False
    zone: tzinfo | None = None
    power_scale: float | None = None


def above_floor(answer: Answer, site: Site) -> Answer:
    """Says where a limit cannot be reached: below what serving needs nothing is taken away."""
    floor_w = site.floor_w
    low = [s.limit_w for s in answer.segments if floor_w is not None and s.limit_w < floor_w]
    if floor_w is None or not low:
        return answer
    missing = f"the floor is held, and {kw(floor_w - min(low))} reported as missing"
    return answer.warned(f"{kw(min(low))} is below the serving floor of {kw(floor_w)}: {missing}")


Problem = tuple[str, object, str]


def site_from(data: Any) -> Site:
    """The site that a file's content describes. Raises BadInput with every field that is wrong, and what would be right."""
    if not isinstance(data, dict):
        raise BadInput([("site", shown(data), "must be an object with keys such as " + ", ".join(_KEYS[:3]))])
    problems: list[Problem] = [
        (str(key), data[key], "no such key; known are " + ", ".join(_KEYS)) for key in data if key not in _KEYS
    ]
    reference_w = _kw(data, "batch_and_serving_reference_kw", problems)
    floor_w = _kw(data, "serving_floor_kw", problems)
    site = Site(
        name=_text(data, "site", problems),
        reference_w=reference_w,
        floor_w=floor_w,
        levels=_levels(data.get("simple_map"), floor_w, problems),
        positive_reduces=_sign(data.get("relative_sign"), problems),
        meter=_text(data, "meter", problems),
        by_priority=_one_of(data, "overlap", {"strictest": False, "priority": True}, problems) or False,
        zone=_zone(data.get("timezone"), problems),
        power_scale=_one_of(data, "power_unit", _POWER_UNITS, problems),
    )
    if problems:
        raise BadInput(problems)
    return site


def _text(data: Mapping[str, Any], key: str, problems: list[Problem]) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        problems.append((key, value, "must be text"))
        return None
    return value


def _kw(data: Mapping[str, Any], key: str, problems: list[Problem]) -> float | None:
    value = data.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_W / 1e3:
        problems.append((key, value, "must be a power in kW, 0 or more"))
        return None
    return tidy(value * 1e3)


def _one_of(data: Mapping[str, Any], key: str, known: Mapping[str, Any], problems: list[Problem]) -> Any:
    value = data.get(key)
    if value is None or (isinstance(value, str) and value in known):
        return None if value is None else known[value]
    problems.append((key, value, "must be one of " + ", ".join(known)))
    return None


def _sign(value: object, problems: list[Problem]) -> bool | None:
    if value is None:
        return None
    words = value.lower().split() if isinstance(value, str) else []
    reduce = any(word.startswith(("reduc", "decreas")) for word in words)
    raise_ = any(word.startswith(("increas", "rais")) for word in words)
    if ("positive" in words) != ("negative" in words) and reduce != raise_:
        return ("positive" in words) == reduce
    problems.append(("relative_sign", value, "must be 'positive value = reduce by' or 'negative value = reduce by'"))
    return None


def _zone(value: object, problems: list[Problem]) -> tzinfo | None:
    if value is None:
        return None
    zone = zone_named(value)
    if zone is None:
        problems.append(("timezone", value, "must be a time zone such as Europe/Berlin or UTC"))
    return zone


def zone_named(value: object) -> tzinfo | None:
    """The time zone of an IANA name, None where there is no such."""
    if not isinstance(value, str) or not 0 < len(value) <= 64:
        return None
    if value.upper() in ("UTC", "Z", "GMT"):
        return UTC
    try:
        return ZoneInfo(value)
    except (KeyError, ValueError, OSError):  # no such zone, or a name that is no relative path
        return None


def _levels(value: object, floor_w: float | None, problems: list[Problem]) -> dict[int, Level]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.append(("simple_map", value, "must be an object that maps levels 0 to 3"))
        return {}
    levels = {}
    for key, asked in value.items():
        where = f"simple_map.{key}"
        if str(key) not in ("0", "1", "2", "3"):
            problems.append((where, asked, "the levels are 0, 1, 2 and 3"))
            continue
        level = _level(asked, floor_w)
        if isinstance(level, str):
            problems.append((where, asked, level))
        else:
            levels[int(key)] = level
    return levels


def _level(asked: object, floor_w: float | None) -> Level | str:
    """The level that a text or a number of kW means, or what is wrong with it."""
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        return Level(cap_w=tidy(asked * 1e3)) if 0 <= asked <= MAX_W / 1e3 else _LEVEL_HELP
    if not isinstance(asked, str):
        return _LEVEL_HELP
    text = " ".join(asked.split())
    if text == "normal":
        return Level()
    if _FLOOR.fullmatch(text):
        return Level(cap_w=floor_w) if floor_w is not None else "needs serving_floor_kw"
    if share := _SHARE.fullmatch(text):
        percent = float(share[1])
        left = 1 + percent / 100 if share[1][0] in "+-" else percent / 100
        return Level(share=left) if 0 <= left <= 1 else "must leave 0 to 100 % of the baseline"
    if power := _POWER.fullmatch(text):
        watts = float(power[1]) * _POWER_UNITS[power[2]]
        return Level(cap_w=tidy(watts)) if watts <= MAX_W else _LEVEL_HELP
    return _LEVEL_HELP
