"""What the GPUs drew, kept by the minute and then by the hour, and what of it belongs to whom.

Rows come from the agents, which measure and attribute; here each is taken once, however often it is sent, and nothing is filled
in: an interval without a row is a gap. It shares the store's database and knows neither jobs' states nor prices.
"""

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Dialect,
    Engine,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from dispatcher.agent.metering import MOST_W
from dispatcher.agent.row_queue import WAITS_S
from dispatcher.errors import StoreUnavailable
from dispatcher.power.accounts import COVERED, EXCLUSIVE, SUMMED, EnergyRow, JobEnergy, Turn, job_energy, moment
from dispatcher.store.bulk import mark_of
from dispatcher.store.tables import AGENT_NODE, ENERGY_HOUR, ENERGY_LINES, ENERGY_MINUTE, SETTING

log = logging.getLogger(__name__)

HOUR_S = 3600
#: Minutes this old are summed into hours: an agent keeps what it could not send for 48 hours, so all of them have come.
ROLL_UP_AFTER = timedelta(hours=49)
#: The longest interval that a row may have: a counter that bridges the longest gap for which an agent keeps rows.
LONGEST_S = 49 * HOUR_S
#: How far ahead of our clock a row may end.
AHEAD_S = 300.0
#: Rows that came too late are told of for so long after the last of them, s.
TELL_LATE_S = 86_400.0
#: Nodes named in one alarm.
_NODES_NAMED = 5
#: GPUs asked for in one statement.
_GPUS_TOGETHER = 50
_ROLLED, _MINUTES_FROM = "energy.rolled_until_s", "energy.minutes_from_s"
_COLUMNS = [one.name for one in fields(EnergyRow)]
_read_row = attrgetter(*_COLUMNS)
_QUALITIES = ("measured", "integrated", "partial")


@dataclass(frozen=True, slots=True)
class Keep:
    """For how many days minutes and hours are kept."""

    minutes_days: float = 35
    hours_days: float = 1095


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of rows that came in: ``new`` were stored, ``known`` were there already, or rows of the same GPU's minute,
    ``refused`` says of each other one why it cannot be true. ``ahead_s`` is how far in the future the last ends; ``early`` of
    them are not taken yet (they end more than AHEAD_S and at most WAITS_S from now): their agent must keep them."""

    new: int
    known: int
    refused: tuple[str, ...] = ()
    early: int = 0
    ahead_s: float = 0.0


@dataclass(slots=True)
class _Late:
    """Rows of a region that came too late: how many of each node, since when, and when the last came (monotonic, s)."""

    since: datetime
    mono: float
    of_node: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class EnergySum:
    """What was drawn in ``[start, end)``, Wh at the GPUs (no PUE). ``job_wh``, ``idle_wh`` (GPUs that nobody used) and
    ``unattributed_wh`` add up to ``energy_wh``; ``execution_idle_wh`` is the part of ``job_wh`` that jobs drew while they sat
    idle, as far as that is known. ``gpus`` is how many GPUs were measured at all, ``gpu_seconds`` for how long together; for
    ``bridged_s`` of that only the counters tell, which ran on while nobody read them. None is unknown: no meter told."""

    start: datetime
    end: datetime
    energy_wh: float | None
    job_wh: float | None
    idle_wh: float | None
    unattributed_wh: float | None
    execution_idle_wh: float | None
    gpus: int
    gpu_seconds: float
    simulated: bool
    bridged_s: float = 0.0


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node whose agent was heard of at some time; ``gpus`` are {uuid, index, name} as last told. ``first_seen_at``
    is known of those that are read from the book."""

    node_id: str
    hostname: str
    region: str
    branch: str | None
    simulated: bool
    gpus: tuple[Mapping[str, Any], ...]
    last_seen_at: datetime
    first_seen_at: datetime | None = field(default=None, compare=False)


Where = Callable[[Any], list[ColumnElement[bool]]]


class EnergyBook:
    """See the module. ``engine`` is that of an upgraded database. All methods may be called from any thread; reads raise
    StoreUnavailable. Rows that wait to be written share a commit."""

    def __init__(self, engine: Engine, keep: Keep | None = None, mono: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._mono = engine, mono
        self._keep = keep or Keep()
        self._writer = engine.execution_options(write=True)
        self._insert = _insert_once(engine.dialect)
        self._line = ThreadPoolExecutor(1, thread_name_prefix="energy-writer")
        self._lock = threading.Lock()
        self._waiting: list[tuple[list[EnergyRow], Taken, datetime, Future[Taken]]] = []
        self._late: dict[str, _Late] = {}
        self._touched: set[str] = set()
        self._said: str | None = None

    def close(self) -> None:
        """Write what waits, then end."""
        self._line.shutdown(wait=True)

    # --- taking ---------------------------------------------------------------------------------------------------

    def take(self, rows: Iterable[Mapping[str, Any]], now: datetime) -> "Future[Taken]":
        """Store rows as agents send them, each with ``node_id``, ``region`` and ``simulated``; resolves after the commit. A row
        that cannot be true is refused alone, and told in the log; raises StoreUnavailable through the Future when nothing was
        stored. The rows of a GPU's minute come in one call: a minute that has some takes no more, for those would be of another
        making, by an agent that has lost what it knew, and tell the same energy on another line."""
        good: list[EnergyRow] = []
        refused: list[str] = []
        early, ahead_s = 0, 0.0
        for raw in rows:
            try:
                row_ahead_s = float(raw["end"]) - now.timestamp()
                ahead_s = max(ahead_s, row_ahead_s)
                if AHEAD_S < row_ahead_s <= WAITS_S:
                    early += 1
                    continue
                good.append(checked(raw, now))
            except ValueError as error:
                refused.append(str(error))
            except (TypeError, OverflowError) as error:
                refused.append(f"node {raw.get('node_id')}, GPU {raw.get('uuid')}: a field is not of its type: {error}")
        if refused and refused[0] != self._said:
            self._said = refused[0]
            log.warning("%d rows of energy were refused; the first: %s", len(refused), refused[0])
        future: Future[Taken] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append((good, Taken(0, 0, tuple(refused), early, ahead_s), now, future))
        try:
            self._line.submit(self._write_waiting)
        except RuntimeError:
            self._write_waiting()  # closing: nobody else does it any more
        return future

    def _write_waiting(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        if not batch:
            return
        at = max(now for _, _, now, _ in batch)
        try:
            outcomes = self._write([rows for rows, _, _, _ in batch], at)
        except Exception as error:  # noqa: BLE001  (whoever waits must hear of it, whatever it is)
            failure = StoreUnavailable(f"rows of energy were not stored: {_cause(error)}")
            for _, _, _, future in batch:
                future.set_exception(failure)
            return
        for (_, taken, _, future), (new, known, late) in zip(batch, outcomes, strict=True):
            too_old = tuple(f"{_name(row)}: its hour was summed up before it came" for row in late)
            if too_old:
                log.warning("%d rows of energy came too late and are lost; the first: %s", len(too_old), too_old[0])
                self._note_late(late, at)
            future.set_result(replace(taken, new=new, known=known, refused=(*taken.refused, *too_old)))

    def _write(self, batches: Sequence[Sequence[EnergyRow]], now: datetime) -> list[tuple[int, int, list[EnergyRow]]]:
        outcomes: list[tuple[int, int, list[EnergyRow]]] = []
        touched: set[str] = set()
        with self._writer.begin() as connection:
            rolled_s = _put_back(connection, _hour_s(now - ROLL_UP_AFTER))
            for rows in batches:
                fresh = [row for row in rows if row.start_s >= rolled_s]
                told = _told(connection, {row.minute for row in fresh})
                made, new = [row for row in fresh if row.minute not in told], 0
                if made:
                    new = connection.exec_driver_sql(self._insert, [_read_row(row) for row in made]).rowcount
                touched.update(row.job_id for row in fresh if row.job_id)
                outcomes.append((new, len(fresh) - new, [row for row in rows if row.start_s < rolled_s]))
        with self._lock:
            self._touched |= touched
        return outcomes

    def _note_late(self, rows: Sequence[EnergyRow], at: datetime) -> None:
        mono = self._mono()
        with self._lock:
            for row in rows:
                late = self._late.get(row.region)
                if late is None or mono - late.mono > TELL_LATE_S:
                    late = self._late[row.region] = _Late(at, mono)
                late.mono = mono
                late.of_node[row.node_id] += 1

    def alarms(self, _: datetime | None = None) -> list[tuple[str, str | None, str]]:
        """(key, region, sentence) of rows that came too late to be taken, for a day after the last of them."""
        found: list[tuple[str, str | None, str]] = []
        with self._lock:
            for region, late in sorted(self._late.items()):
                if self._mono() - late.mono > TELL_LATE_S:
                    continue
                names = [node for node, _ in late.of_node.most_common(_NODES_NAMED)]
                more = len(late.of_node) - len(names)
                nodes = ", ".join(names) + (f" and {more} more" if more else "")
                sentence = (
                    f"{late.of_node.total():,} rows of energy in {region} came too late since {late.since:%Y-%m-%d %H:%M} UTC "
                    f"and are lost, from {nodes}: their hours were summed up before; is the clock right there and here?"
                )
                found.append((f"late energy {region}", region, sentence))
        return found

    def touched(self) -> set[str]:
        """Ids of jobs that rows came for since the control plane started, and that were not ``settled`` since."""
        with self._lock:
            return set(self._touched)

    def settled(self, job_ids: Iterable[str]) -> None:
        """These jobs' energy was booked; only rows that come from now on touch them."""
        with self._lock:
            self._touched.difference_update(job_ids)

    # --- nodes ----------------------------------------------------------------------------------------------------

    def note_nodes(self, nodes: Iterable[KnownNode]) -> None:
        """Remember nodes as they are now, so that one that went silent is still known to be there after a restart."""
        with _guarded(), self._writer.begin() as connection:
            for node in nodes:
                values = {
                    "region": node.region,
                    "branch": node.branch,
                    "hostname": node.hostname,
                    "simulated": node.simulated,
                    "gpus": [dict(gpu) for gpu in node.gpus],
                    "last_seen_at": node.last_seen_at,
                }
                here = AGENT_NODE.c.node_id == node.node_id
                if connection.execute(update(AGENT_NODE).where(here).values(values)).rowcount == 0:
                    first = {"node_id": node.node_id, "first_seen_at": node.last_seen_at}
                    connection.execute(insert(AGENT_NODE), [values | first])

    def known_nodes(self, region: str | None = None) -> list[KnownNode]:
        """Every node that was ever noted, by id."""
        known = AGENT_NODE.c
        query = select(
            known.node_id,
            known.hostname,
            known.region,
            known.branch,
            known.simulated,
            known.gpus,
            known.last_seen_at,
            known.first_seen_at,
        ).order_by(known.node_id)
        if region is not None:
            query = query.where(known.region == region)
        return [replace(KnownNode(*row), gpus=tuple(row.gpus)) for row in self._read(query)]

    # --- one job --------------------------------------------------------------------------------------------------

    def energy_of(
        self, job_id: str, turn: Turn, start: datetime, end: datetime, *, gpus: float, power_w: float
    ) -> JobEnergy | None:
        """What the attempt of a job whose rows ``turn`` tells drew, having run over ``[start, end)``; None where nothing of it
        was measured. ``gpus`` and ``power_w`` are what the job asked for and was expected to draw (see accounts.job_energy)."""
        own = self._rows(lambda c: _own(c, job_id, turn))
        asked = {"gpus": gpus, "power_w": power_w}
        found = job_energy(own, own, start, end, **asked)
        if found is None or found.covered >= COVERED:
            return found
        # Before its first process came to a GPU, that GPU's meter was read too.
        around: list[EnergyRow] = []
        pairs = sorted({row.gpu for row in own})
        for at in range(0, len(pairs), _GPUS_TOGETHER):
            some = pairs[at : at + _GPUS_TOGETHER]
            around += self._rows(partial(_around, some, int(start.timestamp()), math.ceil(end.timestamp())))
        return job_energy(own, around, start, end, **asked)

    # --- sums -----------------------------------------------------------------------------------------------------

    def sums(
        self,
        start: datetime,
        end: datetime,
        step_s: int,
        *,
        region: str | None = None,
        node_ids: Sequence[str] | None = None,
        job_id: str | None = None,
    ) -> list[EnergySum]:
        """Sums by interval of ``step_s`` (minutes, or whole hours) that begins in ``[start, end)``: of everything, or of a
        region, some nodes, a job. Intervals in which nothing was measured are there, and unknown."""
        first_s = int(start.timestamp()) // step_s * step_s
        last_s = math.ceil(end.timestamp())

        def chosen(c: Any) -> list[ColumnElement[bool]]:
            found = [c.start_s >= first_s, c.start_s < last_s]
            found += [c.region == region] if region is not None else []
            found += [c.node_id.in_(list(node_ids))] if node_ids is not None else []
            found += [c.job_id == job_id, c.job_id != ""] if job_id is not None else []
            return found

        found: dict[int, EnergySum] = {}
        with _guarded(), self._engine.connect() as connection:
            rolled_s, minutes_s = _mark(connection, _ROLLED), _mark(connection, _MINUTES_FROM)
            edge_s = rolled_s if step_s % HOUR_S == 0 else minutes_s
            for table, within in (
                (ENERGY_HOUR, ENERGY_HOUR.c.start_s < edge_s),
                (ENERGY_MINUTE, ENERGY_MINUTE.c.start_s >= edge_s),
            ):
                for row in connection.execute(_summed(table, [*chosen(table.c), within], step_s)):
                    one = _sum_of(row, step_s)
                    found[row.cell] = one if row.cell not in found else _added(found[row.cell], one)
        cells = range(first_s, last_s, step_s)
        return [found.get(cell) or _nothing(cell, step_s) for cell in cells]

    # --- keeping --------------------------------------------------------------------------------------------------

    def thin(self, now: datetime) -> None:
        """Sum minutes that are complete into hours, and drop what is older than it is kept; run again it does nothing more."""
        with _guarded():
            minutes_kept = max(timedelta(days=self._keep.minutes_days), ROLL_UP_AFTER)
            with self._writer.begin() as connection:
                _put_back(connection, _hour_s(now - ROLL_UP_AFTER))
            self._roll_up(_hour_s(now - ROLL_UP_AFTER))
            self._prune_minutes(_hour_s(now - minutes_kept))
            self._prune(ENERGY_HOUR, _hour_s(now - timedelta(days=self._keep.hours_days)))

    def _roll_up(self, until_s: int) -> None:
        while True:
            with self._writer.begin() as connection:
                done_s = _mark(connection, _ROLLED)
                oldest = connection.execute(_first_minute(done_s)).scalar_one_or_none()
                # Hours without rows are not marked as summed: by a clock that is wrong they may be yet to come.
                if oldest is None or oldest >= until_s:
                    return
                start_s = oldest // HOUR_S * HOUR_S
                connection.execute(insert(ENERGY_HOUR).from_select(_COLUMNS, _hours(start_s, start_s + HOUR_S)))
                _set_mark(connection, _ROLLED, start_s + HOUR_S)

    def _prune_minutes(self, before_s: int) -> None:
        with self._writer.begin() as connection:
            before_s = min(before_s, _mark(connection, _ROLLED))
            if before_s > _mark(connection, _MINUTES_FROM):
                _set_mark(connection, _MINUTES_FROM, before_s)  # from here on they are read as hours
        self._prune(ENERGY_MINUTE, before_s)

    def _prune(self, table: Any, before_s: int) -> None:
        """Delete rows from before a moment, an hour of a region at a time: writers of jobs wait meanwhile."""
        region: str | None = ""
        while region is not None:
            with self._engine.connect() as connection:
                following = select(func.min(table.c.region)).where(table.c.region > region)
                region = connection.execute(following).scalar_one_or_none()
            while region is not None:
                with self._writer.begin() as connection:
                    oldest = select(func.min(table.c.start_s)).where(table.c.region == region)
                    oldest_s = connection.execute(oldest).scalar_one_or_none()
                    if oldest_s is None or oldest_s >= before_s:
                        break
                    until_s = min(before_s, oldest_s // HOUR_S * HOUR_S + HOUR_S)
                    connection.execute(delete(table).where(table.c.region == region, table.c.start_s < until_s))

    # --- the database ---------------------------------------------------------------------------------------------

    def _rows(self, where: Where) -> list[EnergyRow]:
        """Rows that match: minutes, and hours from before there were minutes."""
        with _guarded(), self._engine.connect() as connection:
            minutes_s = _mark(connection, _MINUTES_FROM)
            found: list[EnergyRow] = []
            for table, within in (
                (ENERGY_HOUR, ENERGY_HOUR.c.start_s < minutes_s),
                (ENERGY_MINUTE, ENERGY_MINUTE.c.start_s >= minutes_s),
            ):
                if table is ENERGY_HOUR and minutes_s == 0:
                    continue
                query = select(*(table.c[name] for name in _COLUMNS)).where(*where(table.c), within)
                found += [EnergyRow(*row) for row in connection.execute(query)]
        return found

    def _read(self, query: Any) -> list[Any]:
        with _guarded(), self._engine.connect() as connection:
            return list(connection.execute(query).all())


@contextmanager
def _guarded() -> Iterator[None]:
    """Turn the database's own errors into ours."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreUnavailable(f"measured energy cannot be read or kept: {_cause(error)}") from error


def checked(raw: Mapping[str, Any], now: datetime) -> EnergyRow:
    """A row as an agent sent it. Raises ValueError with what cannot be true of it."""
    start_s, end_s = int(raw["start"]), math.ceil(raw["end"])
    line, job_id = str(raw["line"]), str(raw.get("job_id") or "")
    row = EnergyRow(
        node_id=str(raw["node_id"]),
        uuid=str(raw["uuid"]),
        start_s=start_s,
        job_id=job_id if line == "job" else "",
        line=line,
        end_s=end_s,
        region=str(raw["region"]),
        energy_wh=float(raw["energy_wh"]),
        idle_wh=None if raw.get("idle_wh") is None else float(raw["idle_wh"]),
        seconds=float(raw["seconds"]),
        quality=str(raw["quality"]),
        split=str(raw.get("split") or EXCLUSIVE),
        simulated=bool(raw.get("simulated")),
        bridged_s=float(raw.get("bridged_s") or 0.0),
    )
    if line not in ENERGY_LINES or (line == "job") != bool(row.job_id):
        raise ValueError(f"{_name(row)}: line {line!r} with job id {job_id!r}: must be job with an id, idle or unattributed")
    if not 0 < end_s - start_s <= LONGEST_S:
        raise ValueError(f"{_name(row)}: lasts {end_s - start_s} s; an interval has 1 to {LONGEST_S} s")
    if end_s > now.timestamp() + AHEAD_S:
        raise ValueError(f"{_name(row)}: ends in the future; is the clock of its node right?")
    if not (math.isfinite(row.energy_wh) and 0 <= row.energy_wh <= MOST_W * (end_s - start_s) / 3600.0):
        raise ValueError(f"{_name(row)}: {row.energy_wh!r} Wh is no energy of one GPU over {end_s - start_s} s")
    if row.idle_wh is not None and not 0 <= row.idle_wh <= row.energy_wh * (1 + 1e-6) + 1e-9:
        raise ValueError(f"{_name(row)}: idle_wh {row.idle_wh!r} must be a part of its {row.energy_wh!r} Wh")
    if not 0 <= row.seconds <= end_s - start_s + 1e-6:
        raise ValueError(f"{_name(row)}: {row.seconds!r} s measured of {end_s - start_s} s")
    if not 0 <= row.bridged_s <= row.seconds + 1e-6:
        raise ValueError(f"{_name(row)}: bridged_s {row.bridged_s!r} must be a part of its {row.seconds!r} s")
    return row


def _name(row: EnergyRow) -> str:
    return f"node {row.node_id}, GPU {row.uuid}, {moment(row.start_s):%Y-%m-%dT%H:%M:%SZ}"


def _insert_once(dialect: Dialect) -> str:
    """A row that is there already stays as it is. In the driver's own words: the toolkit would compile each batch anew."""
    quote, mark = dialect.identifier_preparer.quote, mark_of(dialect)
    names = ", ".join(quote(name) for name in _COLUMNS)
    marks = ", ".join([mark] * len(_COLUMNS))
    return f"INSERT INTO {ENERGY_MINUTE.name} ({names}) VALUES ({marks}) ON CONFLICT DO NOTHING"


def _cause(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error).strip()


def _hour_s(when: datetime) -> int:
    return int(when.timestamp()) // HOUR_S * HOUR_S


def _mark(connection: Connection, key: str) -> int:
    """A moment up to which something was done, seconds since 1970; 0 when nothing was."""
    held = connection.execute(select(SETTING.c.value).where(SETTING.c.key == key)).scalar_one_or_none()
    return int(held) if held is not None else 0


def _put_back(connection: Connection, until_s: int) -> int:
    """Up to when minutes are summed, s since 1970, at most up to ``until_s``, after which nothing is to be summed yet.

    A mark beyond it was set when the clock was ahead. The hours after ``until_s`` are made anew from their minutes when they
    are due; where the minutes are gone as well, the last hour that was summed is where the mark goes back to.
    """
    rolled_s = _mark(connection, _ROLLED)
    if rolled_s <= until_s:
        return rolled_s
    kept_s, minutes_s = until_s, _mark(connection, _MINUTES_FROM)
    if minutes_s > until_s:
        hour = ENERGY_HOUR.c.start_s
        last_s = connection.execute(select(func.max(hour)).where(hour < minutes_s)).scalar_one_or_none()
        kept_s = max(until_s, 0 if last_s is None else last_s + HOUR_S)
        if kept_s != minutes_s:
            _set_mark(connection, _MINUTES_FROM, kept_s)
    if kept_s < rolled_s:
        connection.execute(delete(ENERGY_HOUR).where(ENERGY_HOUR.c.start_s >= kept_s))
        _set_mark(connection, _ROLLED, kept_s)
        log.warning(
            "energy was marked as summed until %s, which is too early: put back to %s", moment(rolled_s), moment(kept_s)
        )
    return kept_s


def _told(connection: Connection, minutes: Iterable[tuple[str, str, int]]) -> set[tuple[str, str, int]]:
    """Those of some GPUs' minutes that have rows."""
    of_node: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for node_id, uuid, start_s in minutes:
        of_node[node_id].add((uuid, start_s))
    c, found = ENERGY_MINUTE.c, set[tuple[str, str, int]]()
    for node_id, asked in of_node.items():  # an agent's rows are of one node; databases find them by it
        these = [c.uuid.in_(sorted({uuid for uuid, _ in asked})), c.start_s.in_(sorted({start_s for _, start_s in asked}))]
        query = select(c.uuid, c.start_s).where(c.node_id == node_id, *these).distinct()
        found.update((node_id, row.uuid, row.start_s) for row in connection.execute(query))
    return found


def _set_mark(connection: Connection, key: str, value_s: int) -> None:
    if connection.execute(update(SETTING).where(SETTING.c.key == key).values(value=str(value_s))).rowcount == 0:
        connection.execute(insert(SETTING), [{"key": key, "value": str(value_s)}])


def _own(c: Any, job_id: str, turn: Turn) -> list[ColumnElement[bool]]:
    """A job's rows that belong to one of its attempts."""
    found = [c.job_id == job_id, c.job_id != "", c.region == turn.region]
    found += [c.start_s >= int(turn.first.timestamp())] if turn.first is not None else []
    found += [c.start_s < int(turn.until.timestamp())] if turn.until is not None else []
    return found


def _around(gpus: Sequence[tuple[str, str]], start_s: int, end_s: int, c: Any) -> list[ColumnElement[bool]]:
    """Everybody's rows of some GPUs that overlap an interval."""
    these = or_(*(and_(c.node_id == node_id, c.uuid == uuid) for node_id, uuid in gpus))
    return [these, c.start_s > start_s - LONGEST_S, c.start_s < end_s, c.end_s > start_s]


def _first_minute(from_s: int) -> Select[Any]:
    return select(func.min(ENERGY_MINUTE.c.start_s)).where(ENERGY_MINUTE.c.start_s >= from_s)


def _sharing(c: Any) -> ColumnElement[bool]:
    """Whether a row's seconds are also those of others on the same GPU (see accounts.metered_seconds)."""
    sharing: ColumnElement[bool] = c.split.not_in([EXCLUSIVE, SUMMED])
    return sharing


def _metered(c: Any) -> Any:
    """The seconds in which a GPU's meter was read, of all its rows of one interval."""
    told = func.sum(case((_sharing(c), 0.0), else_=c.seconds)) + func.max(case((_sharing(c), c.seconds), else_=0.0))
    length = func.max(c.end_s - c.start_s)
    return case((told > length, length), else_=told)


def _hours(start_s: int, end_s: int) -> Select[Any]:
    """Sums by hour of the minutes that start in ``[start_s, end_s)``, in the order of _COLUMNS. The seconds of those who shared
    a GPU are divided among them, so that an hour's add up to what was measured."""
    c = ENERGY_MINUTE.c
    these = [c.start_s >= start_s, c.start_s < end_s]
    gpu = (
        select(c.node_id, c.uuid, c.start_s, _metered(c).label("metered"), func.sum(c.seconds).label("told"))
        .where(*these)
        .group_by(c.node_id, c.uuid, c.start_s)
        .subquery()
    )
    hour = (c.start_s - c.start_s % literal(HOUR_S)).label("start_s")
    worst = func.max(case(*((c.quality == name, rank) for rank, name in enumerate(_QUALITIES)), else_=len(_QUALITIES) - 1))
    values: dict[str, Any] = {
        "node_id": c.node_id,
        "uuid": c.uuid,
        "start_s": hour,
        "job_id": c.job_id,
        "line": c.line,
        "end_s": hour + literal(HOUR_S),
        "region": func.max(c.region),
        "energy_wh": func.sum(c.energy_wh),
        "idle_wh": func.sum(c.idle_wh),
        "seconds": func.sum(case((gpu.c.told > 0, c.seconds * gpu.c.metered / gpu.c.told), else_=0.0)),
        "quality": case(*((worst == rank, name) for rank, name in enumerate(_QUALITIES)), else_=_QUALITIES[-1]),
        "split": case((and_(func.min(c.split) == EXCLUSIVE, func.max(c.split) == EXCLUSIVE), EXCLUSIVE), else_=SUMMED),
        "simulated": func.max(case((c.simulated, 1), else_=0)) == 1,
        "bridged_s": func.sum(c.bridged_s),
    }
    same = and_(gpu.c.node_id == c.node_id, gpu.c.uuid == c.uuid, gpu.c.start_s == c.start_s)
    return (
        select(*(values[name].label(name) for name in _COLUMNS))
        .select_from(ENERGY_MINUTE.join(gpu, same))
        .where(*these)
        .group_by(c.node_id, c.uuid, hour, c.job_id, c.line)
    )


def _summed(table: Any, where: Sequence[ColumnElement[bool]], step_s: int) -> Select[Any]:
    """Sums by cell of ``step_s``; measured seconds first by GPU and interval, since those that share a GPU share its meter."""
    c = table.c

    def of(line: str, column: Any) -> Any:
        return func.sum(case((c.line == line, column), else_=0.0))

    by_gpu = (
        select(
            c.node_id,
            c.uuid,
            c.start_s,
            func.sum(c.energy_wh).label("energy_wh"),
            of("job", c.energy_wh).label("job_wh"),
            of("idle", c.energy_wh).label("idle_wh"),
            of("unattributed", c.energy_wh).label("unattributed_wh"),
            func.sum(case((c.line == "job", c.idle_wh))).label("execution_idle_wh"),
            _metered(c).label("seconds"),
            func.sum(c.bridged_s).label("bridged_s"),
            func.max(case((c.simulated, 1), else_=0)).label("simulated"),
        )
        .where(*where)
        .group_by(c.node_id, c.uuid, c.start_s)
        .subquery()
    )
    g = by_gpu.c
    cell = (g.start_s - g.start_s % literal(step_s)).label("cell")
    return select(
        cell,
        *(func.sum(g[name]).label(name) for name in _ENERGIES),
        func.count(func.distinct(g.node_id + literal(" ") + g.uuid)).label("gpus"),
        func.sum(g.seconds).label("seconds"),
        func.sum(g.bridged_s).label("bridged_s"),
        func.max(g.simulated).label("simulated"),
    ).group_by(cell)


_ENERGIES = ("energy_wh", "job_wh", "idle_wh", "unattributed_wh", "execution_idle_wh")


def _sum_of(row: Any, step_s: int) -> EnergySum:
    energies: dict[str, Any] = {name: getattr(row, name) for name in _ENERGIES}
    return replace(
        _nothing(row.cell, step_s),
        gpus=int(row.gpus),
        gpu_seconds=float(row.seconds),
        simulated=bool(row.simulated),
        bridged_s=float(row.bridged_s),
        **energies,
    )


def _added(one: EnergySum, other: EnergySum) -> EnergySum:
    """Two sums of one interval, of which one is of its first hours and the other of its last."""
    energies: dict[str, Any] = {}
    for name in _ENERGIES:
        known = [value for value in (getattr(one, name), getattr(other, name)) if value is not None]
        energies[name] = sum(known) if known else None
    return replace(
        one,
        gpus=max(one.gpus, other.gpus),
        gpu_seconds=one.gpu_seconds + other.gpu_seconds,
        simulated=one.simulated or other.simulated,
        bridged_s=one.bridged_s + other.bridged_s,
        **energies,
    )


def _nothing(cell: int, step_s: int) -> EnergySum:
    return EnergySum(moment(cell), moment(cell + step_s), None, None, None, None, None, 0, 0.0, False)
