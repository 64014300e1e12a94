"""What stands beside jobs in a backtest: headroom kept for serving, and grid events, read from small CSV or JSON files."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from dispatcher.backtest.rows import Problems, Table
from dispatcher.errors import BadInput
from policies.world import Budget, Reserved

_SERVING = ("region", "start", "end", "gpus", "power_w")
_EVENTS = ("region", "start", "end", "limit_w")


def read_serving(path: Path, regions: Sequence[str]) -> dict[str, tuple[Reserved, ...]]:
    """Headroom by region from a CSV or JSON list with region, start, end, gpus and power_w. Raises BadInput."""
    problems = Problems()
    out: dict[str, list[Reserved]] = {}
    for where, record in _records(path, _SERVING, problems):
        region = _region(where, record, regions, problems)
        start, end = _moment(where, record, "start", problems), _moment(where, record, "end", problems)
        gpus, power_w = _number(where, record, "gpus", problems), _number(where, record, "power_w", problems)
        if start is not None and end is not None and end <= start:
            problems.add(f"{where}, end", str(record.get("end")), "must be after start")
        elif region is not None and start is not None and end is not None:
            out.setdefault(region, []).append(Reserved(start, end, gpus, power_w))
    problems.check()
    for name, each in out.items():
        each.sort(key=lambda one: one.start)
        for before, after in pairwise(each):
            if after.start < before.end:
                problems.add(f"{path.name}, {name}", after.start.isoformat(), f"overlaps what ends at {before.end.isoformat()}")
    problems.check()
    return {name: tuple(each) for name, each in out.items()}


def read_events(path: Path, regions: Sequence[str]) -> tuple[Budget, ...]:
    """Power limits from a CSV or JSON list with region, start, end (blank: open) and limit_w. Raises BadInput."""
    problems = Problems()
    out = []
    for number, (where, record) in enumerate(_records(path, _EVENTS, problems), 1):
        region = _region(where, record, regions, problems)
        start, limit_w = _moment(where, record, "start", problems), _number(where, record, "limit_w", problems)
        end = None if record.get("end") in (None, "") else _moment(where, record, "end", problems)
        if start is not None and end is not None and end <= start:
            problems.add(f"{where}, end", str(record.get("end")), "must be after start")
        elif region is not None and start is not None:
            event_id = str(record.get("event_id") or f"event-{number}")
            out.append(Budget(region, start, end, limit_w, event_id, str(record.get("reason") or "grid event")))
    problems.check()
    return tuple(sorted(out, key=lambda budget: budget.start))


def _records(path: Path, needed: Sequence[str], problems: Problems) -> list[tuple[str, Mapping[str, object]]]:
    """The records of a file, each with where it stands."""
    if path.suffix.lower() == ".json":
        try:
            given = json.loads(path.read_text("utf-8"))
        except OSError as error:
            raise BadInput([("file", str(path), f"cannot be read: {error.strerror or error}")]) from error
        except ValueError as error:
            raise BadInput([(path.name, "", f"is not JSON: {error}")]) from error
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise BadInput([(path.name, type(given).__name__, "must be a list of objects with " + ", ".join(needed))])
        records: list[tuple[str, Mapping[str, object]]] = [
            (f"{path.name}, record {n}", each) for n, each in enumerate(given, 1)
        ]
    else:
        with Table(path, problems) as table:
            records = _rows(table, needed)
    problems.check()
    if not records:
        raise BadInput([(path.name, "", "has no record")])
    return records


def _rows(table: Table, needed: Sequence[str]) -> list[tuple[str, Mapping[str, object]]]:
    missing = [name for name in needed if name not in table.header]
    if missing:
        raise BadInput([(f"{table.name} line 1", ",".join(table.header), "needs a column " + ", ".join(missing))])
    out: list[tuple[str, Mapping[str, object]]] = []
    for chunk in table.chunks():
        for line, row in zip(chunk.lines, zip(*chunk.columns.values(), strict=True), strict=True):
            out.append((f"{table.name} line {line}", dict(zip(chunk.columns, row, strict=True))))
    return out


def _region(where: str, record: Mapping[str, object], regions: Sequence[str], problems: Problems) -> str | None:
    name = str(record.get("region") or "").strip()
    if name in regions:
        return name
    problems.add(f"{where}, region", name, "must be one of " + ", ".join(regions))
    return None


def _moment(where: str, record: Mapping[str, object], name: str, problems: Problems) -> datetime | None:
    text = str(record.get(name) or "").strip()
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    problems.add(f"{where}, {name}", text, "must be a time with its UTC offset, such as 2026-01-31T12:00Z")
    return None


def _number(where: str, record: Mapping[str, object], name: str, problems: Problems) -> float:
    given = record.get(name)
    try:
        value = math.nan if isinstance(given, bool) or given is None else float(str(given))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        problems.add(f"{where}, {name}", str(given), "must be a number of 0 or more")
        return 0.0
    return value
