"""72 hours of demand response in virtual time, for bench_demand_response: random events of three senders and what can go wrong,
against the real intake, VEN, store on disk, budgets and power loop, on the fleet of dr_fleet.

What should hold at each second is worked out here from what the senders said, by rules of its own: the product's answer is what
is compared with it.
"""

import heapq
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.config import Config
from dispatcher.dr.budgets import budgets_of
from dispatcher.dr.intake import EventIntake
from dispatcher.dr.model import State
from dispatcher.dr.ven3 import Ven3
from dispatcher.dr.vtn_client import Listing, VtnError
from dispatcher.dr.webhooks import content
from dispatcher.power.caps import CapLoop
from dispatcher.power.hub import Former, Hub
from dispatcher.store.migrate import upgrade
from dispatcher.store.sql import SqlStore
from policies.world import Budget, World
from tests.benchmarks.dr_fleet import DEFAULT_W, GPUS_A_NODE, REGION, Disturbance, Fleet, Session

START = datetime(2026, 3, 2, tzinfo=UTC)
HOUR_S = 3600
#: An eighth of the field trial's jobs.
WORK = (
    ("ft_llama_8b_p3", 4, "flex-2"),
    ("infer_llama_8b_32g", 4, "flex-3"),
    ("infer_llama_8b_48g", 6, "flex-1"),
    ("infer_llama_8b_48g", 6, "flex-2"),
    ("pt_mpt_13b_sm", 6, "flex-3"),
    ("pt_mpt_7b_fast", 6, "flex-3"),
)
#: What the senders were promised, s, and how often their VTN is asked.
RESPONSE_S, POLL_S = 30, 10
RECOVERY_S = 300.0
#: A control plane that was away counts as away for so long after it is back: agents come again within 13 s.
BACK_S = 20
UTILITY, SIGNED = "utility", ("aggregator", "exchange")
METHOD = (
    "days: 32 GPUs of the trial's sweep in virtual time, a second a step, work and sensors 2 % off; the real OpenADR 3 VEN "
    "beside a VTN, two senders of signed webhooks with colliding ids, the real intake on SQLite, budgets and power loop, "
    "made anew at each crash from the disk alone; events of 1 to 3 limits of 55 to 100 % of base, modified, cancelled, "
    "overlapping, told again, told too late; the VTN silent, garbled, or without memory; nodes silent, cut off; orders "
    "that fail, GPUs that do not hold a cap; lost: seconds in which a limit that was answered for does not bind; lifts: "
    "caps of an event that go, or are told to end, before it does; over: whole minutes whose mean is above the loosest "
    "limit of the last 30 s"
)

Steps = tuple[tuple[float, float, float], ...]


@dataclass
class Asked:
    """One event as its sender means it: steps (start s, end s, W) that the control plane has answered for, and those that it
    has not heard of yet (None: the same). A release is no steps."""

    known: Steps = ()
    meant: Steps | None = None
    changed_s: float = 0.0

    def at(self, now_s: float) -> tuple[float, float]:
        """(the strictest, the loosest) limit that may rightly bind at this moment, W."""
        found = [_limit(steps, now_s) for steps in ((self.known,) if self.meant is None else (self.known, self.meant))]
        return min(found), max(found)


def _limit(steps: Steps, now_s: float) -> float:
    return min((watts for start, end, watts in steps if start <= now_s < end), default=float("inf"))


# --- the senders ----------------------------------------------------------------------------------------------------


@dataclass
class FakeVtn:
    """The utility's VTN, as the VEN's client sees it; ``down`` is why it does not answer."""

    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    programs: dict[str, dict[str, Any]] = field(default_factory=dict)
    down: str = ""
    offset_s: float | None = 0.0

    def close(self) -> None:
        """Nothing is open."""

    def all(self, path: str, query: Iterable[tuple[str, str]] = ()) -> Listing:
        """A listing."""
        if self.down:
            raise VtnError(self.down)
        held: Mapping[str, Mapping[str, dict[str, Any]]] = {"/events": self.events, "/programs": self.programs}
        return Listing(tuple(held.get(path, {}).values()), True)

    def one(self, path: str) -> dict[str, Any] | None:
        """An object by its path, None for a 404."""
        if self.down:
            raise VtnError(self.down)
        kind, _, name = path.strip("/").partition("/")
        return (self.events if kind == "events" else self.programs).get(name)

    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Take an object."""
        if self.down:
            raise VtnError(self.down)
        return {**body, "id": "made"}

    replace = create


def _iso(at_s: float) -> str:
    return (START + timedelta(seconds=at_s)).isoformat().replace("+00:00", "Z")


def openadr(name: str, steps: Steps, now_s: float) -> dict[str, Any]:
    """An event as the VTN lists it."""
    intervals = [
        {
            "id": number,
            "intervalPeriod": {"start": _iso(start), "duration": f"PT{int(end - start)}S"},
            "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [watts / 1e3]}],
        }
        for number, (start, end, watts) in enumerate(steps)
    ]
    described = {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": "IMPORT_CAPACITY_LIMIT", "units": "KW"}
    return {
        "id": name, "objectType": "EVENT", "programID": "programme", "createdDateTime": _iso(0),
        "modificationDateTime": _iso(now_s), "payloadDescriptors": [described], "intervals": intervals,
    }  # fmt: skip


def signed(name: str, version: int, steps: Steps) -> dict[str, Any]:
    """An event as a sender of webhooks writes it; without steps it is cancelled."""
    data: dict[str, Any] = {"event_id": name, "version": version}
    if steps:
        data["segments"] = [{"start": _iso(a), "end": _iso(b), "limit_kw": watts / 1e3} for a, b, watts in steps]
    else:
        data["status"] = "cancelled"
    return {"type": "event", "timestamp": _iso(0), "data": data}


# --- the fleet, and what fails on it ----------------------------------------------------------------------------------


class Failing(Fleet):
    """The fleet, with nodes that fall silent, orders that fail, and GPUs whose driver does not hold a cap."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.away = False
        self.silent: dict[int, float] = {}
        self.stuck: dict[int, float] = {}
        self.fails = np.random.default_rng(seed + 1)
        self.share_failing = 0.0
        self._absent: dict[int, float] = {}
        super().__init__(folder, START, Disturbance(0.02, 0.02, 2), seed, WORK)

    def cut(self, node: int, until_s: float, *, closed: bool) -> None:
        """A node is heard no more up to then; ``closed``: its connection ends, else nothing gets through."""
        self.silent[node] = until_s
        if closed:
            self.hub.gone(self._sessions[node])
            self._absent[node] = until_s

    def crash(self) -> None:
        """The control plane is gone: nobody hears the agents."""
        self.away = True
        for session in self._sessions:
            session.inbox.clear()

    def restart(self, epoch: int) -> None:
        """Another control plane is there; agents find it within 13 s."""
        self.away = False
        self.hub = Hub(epoch=epoch, now=lambda: self.now, mono=self.mono)
        self.hub.remember(Former(f"n{node}", REGION, self.now) for node in range(len(self._sessions)))
        self._said.clear()
        for node in range(len(self._sessions)):
            self._absent[node] = max(self.silent.get(node, 0.0), self.mono() + float(self.fails.uniform(1.0, 13.0)))

    def step(self) -> float:
        """See Fleet."""
        now_s = self.mono() + 1.0
        self.silent = {node: until for node, until in self.silent.items() if until > now_s}
        self.stuck = {gpu: until for gpu, until in self.stuck.items() if until > now_s}
        for node in self.silent:
            self._sessions[node].inbox.clear()
            self._said.pop(node, None)
        if not self.away:
            for node in [node for node, until in self._absent.items() if until <= now_s]:
                del self._absent[node]
                self._sessions[node] = session = Session()
                super()._say(session, {**self._hello(node), "leases": self._kept(node)})
                self._said.pop(node, None)
        return super().step()

    def leases(self) -> dict[str, list[float]]:
        """The ends, s, of the leases that stand, by what they are for."""
        found: dict[str, list[float]] = {}
        for (gpu, name), (_, ends_s) in self._leases.items():
            found.setdefault(name.removesuffix(f" GPU-{gpu // GPUS_A_NODE}-{gpu % GPUS_A_NODE}"), []).append(ends_s)
        return found

    def _kept(self, node: int) -> list[dict[str, Any]]:
        here = [(key, value) for key, value in self._leases.items() if key[0] // GPUS_A_NODE == node]
        return [
            {"lease_id": name, "kind": "event", "uuid": f"GPU-{gpu // GPUS_A_NODE}-{gpu % GPUS_A_NODE}", "limit_w": limit_w,
             "epoch": 1, "reason": "", "ends_in_s": ends_s - self.mono()}
            for (gpu, name), (limit_w, ends_s) in here
        ]  # fmt: skip

    def _say(self, session: Session, frame: dict[str, Any]) -> None:
        node = next((at for at, one in enumerate(self._sessions) if one is session), None)
        if self.away or node in self.silent or node in self._absent:
            if node is not None:
                self._said.pop(node, None)
            return
        super()._say(session, frame)

    def _obey(self, node: int, session: Session, frame: dict[str, Any]) -> None:
        if frame["type"] != "orders":
            return
        failed = [one for one in frame["set"] if self.fails.random() < self.share_failing]
        if failed:
            frame = {**frame, "set": [one for one in frame["set"] if one not in failed]}
        answers: list[dict[str, Any]] = []
        say, self._say = self._say, lambda session, frame: answers.append(frame)  # type: ignore[method-assign]
        try:
            super()._obey(node, session, frame)
        finally:
            self._say = say  # type: ignore[method-assign]
        for told in answers:
            results = [{"lease_id": one["lease_id"], "ok": False, "error": "the driver failed"} for one in failed]
            self._say(session, {**told, "results": [*told["results"], *results]})

    def _expire(self) -> None:
        super()._expire()
        for gpu in self.stuck:
            self.limit_w[gpu] = DEFAULT_W


# --- the days -------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """What was seen. Lists hold a sentence each."""

    lost: list[str] = field(default_factory=list)
    phantom_s: int = 0
    lifts: list[str] = field(default_factory=list)
    over_untold: list[str] = field(default_factory=list)
    over_told: int = 0
    over_away: int = 0
    refused: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    bound_s: int = 0

    def count(self, what: str) -> None:
        """One more of these."""
        self.counts[what] = self.counts.get(what, 0) + 1


class Days:
    """See the module."""

    def __init__(self, folder: Path, disk: Path, hours: float, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.fleet = Failing(folder, seed)
        self.now_s, self.until_s = 0.0, hours * HOUR_S
        self.vtn = FakeVtn(programs={"programme": {"id": "programme", "objectType": "PROGRAM", "programName": "p"}})
        self.asked: dict[tuple[str, str], Asked] = {}
        self.found = Found()
        self._url = f"sqlite:///{disk}/events.db"
        self._disk, self._epoch = disk, 0
        self._todo: list[tuple[float, int, Callable[[], None]]] = []
        self._number, self._version = 0, 0
        self._stood: dict[str, tuple[str, str]] = {}
        self._out: list[tuple[str, str, dict[str, Any], Asked, Steps]] = []
        upgrade(self._url)
        table = {"protocol": "openadr-3.1", "url": "https://vtn.example", "ven_name": "hall-9", "poll_every": f"{POLL_S}s"}
        terms = {"region": REGION, "response": "30s", "recovery_s": RECOVERY_S, "max_skew_s": 3600.0}
        sources = [{"name": UTILITY, **table, **terms}]
        sources += [{"name": name, "protocol": "webhook", "secret_env": "NOT_ASKED_FOR", **terms} for name in SIGNED]
        region = {"name": REGION, "address": "http://phoenix", "price": [{"feed": "synthetic"}]}
        self.config = Config.model_validate({"region": [region], "event_source": sources})
        self._sources = {one.name: one for one in self.config.event_sources}
        self._start()
        self._plan()

    speed = 1.0

    def now(self) -> datetime:
        """The clock of the control plane."""
        return START + timedelta(seconds=self.now_s)

    # --- the control plane ----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._epoch += 1
        self.fleet.restart(self._epoch)
        self.store = SqlStore(self._url, data_dir=self._disk)
        self.intake = EventIntake(
            self.config, self.store, self, load=lambda region, branch: None, nudge=self._nudged, draw=lambda: 0.0
        )
        vtn: Any = self.vtn
        self.ven = Ven3(self._sources[UTILITY], self.intake, self.store, self, client=vtn)
        self.loop = CapLoop(self.config, self.fleet.hub, mono=self.fleet.mono)
        self.fleet.teach(self.loop.learned)
        self._budgets: list[Budget] | None = None
        self._polled_s = float("-inf")
        self.up_s: float | None = self.now_s

    def _nudged(self) -> None:
        self._budgets = None

    def _crash(self) -> None:
        self.found.count("crashes")
        self.fleet.crash()
        self.store.close()
        self.up_s = None
        self._later(float(self.chance.choice((2.0, 6.0, 20.0, 60.0))), self._start)

    def _round(self) -> None:
        """What the control plane's loops do in a second."""
        self.fleet.hub.sweep()
        if self.now_s - self._polled_s >= POLL_S:
            self._poll()
        self._deliver()
        if self._budgets is None or self.now_s % 60 == 0:
            back = self.now() - timedelta(days=1)
            self._budgets = budgets_of(self.store.grid_events(ended_after=back), self._sources, self.now())
        world = World(self.now(), self.fleet.jobs(), (self.fleet.region(),), tuple(self._budgets))
        self.loop.power(world, self.now())

    def _poll(self) -> None:
        self._polled_s = self.now_s
        self.ven.poll()
        if self.ven.state().failures:
            return
        for (source, name), one in self.asked.items():
            if source == UTILITY and one.meant and name in self.vtn.events:
                one.known, one.meant = one.meant, None

    # --- the senders ----------------------------------------------------------------------------------------------

    def _later(self, after_s: float, what: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._todo, (self.now_s + after_s, self._number, what))

    def _plan(self) -> None:
        """What happens in these days: times by chance, at the rates given, each h."""
        rates: list[tuple[float, Callable[[], None]]] = [
            (0.6, lambda: self._create(UTILITY)),
            (0.5, lambda: self._create(SIGNED[0])),
            (0.4, lambda: self._create(SIGNED[1])),
            (0.4, self._crash_if_up),
            (0.3, lambda: self._vtn_down("it does not answer")),
            (0.1, self._vtn_forgets),
            (0.5, self._node_silent),
            (0.4, self._gpu_stuck),
            (0.3, self._orders_fail),
        ]
        for per_hour, what in rates:
            at_s = float(self.chance.exponential(HOUR_S / per_hour))
            while at_s < self.until_s - HOUR_S / 2:
                self._number += 1
                heapq.heappush(self._todo, (at_s, self._number, what))
                at_s += float(self.chance.exponential(HOUR_S / per_hour))

    def _steps(self, start_s: float) -> Steps:
        made, at_s = [], float(int(start_s))
        for _ in range(int(self.chance.choice((1, 1, 2, 3)))):
            end_s = at_s + float(self.chance.choice((120, 300, 900, 1800, 2700)))
            made.append((at_s, end_s, float(round(self.fleet.base_w * self.chance.uniform(0.55, 1.0)))))
            at_s = end_s
        return tuple(made)

    def _create(self, source: str) -> None:
        self.found.count(f"events of {source}")
        self._version += 1
        # Names of the two senders collide: events are told apart by source and id.
        name = f"event-{self.found.counts[f'events of {source}']}"
        start_s = self.now_s + float(self.chance.choice((-60.0, 0.0, 45.0, 600.0, 3600.0, 7200.0)))
        one = self.asked[source, name] = Asked(changed_s=self.now_s)
        self._tell(source, name, one, self._steps(start_s))
        last_s = self.now_s
        for _ in range(int(self.chance.choice((0, 0, 1, 2)))):
            last_s += float(self.chance.choice((20.0, 400.0, 1500.0, 4000.0)))
            self._later(last_s - self.now_s, lambda: self._modify(source, name, one))
        if self.chance.random() < 0.3:
            last_s += float(self.chance.choice((5.0, 300.0, 2000.0)))
            self._later(last_s - self.now_s, lambda: self._release(source, name, one))

    def _over(self, one: Asked) -> bool:
        steps = one.known if one.meant is None else one.meant
        return not steps or steps[-1][1] <= self.now_s + 5.0

    def _modify(self, source: str, name: str, one: Asked) -> None:
        if self._over(one):
            return
        self.found.count("modifications")
        steps = one.known if one.meant is None else one.meant
        self._tell(
            source, name, one, self._steps(min(steps[0][0], self.now_s + 600.0) if steps[0][0] > self.now_s else self.now_s)
        )

    def _release(self, source: str, name: str, one: Asked) -> None:
        if not self._over(one):
            self.found.count("releases")
            self._tell(source, name, one, ())

    def _tell(self, source: str, name: str, one: Asked, steps: Steps) -> None:
        one.meant, one.changed_s = steps, self.now_s
        if source != UTILITY:
            self._version += 1
            body = signed(name, self._version, steps)
            self._out.append((source, f"msg-{self._version}", body, one, steps))
            for _ in range(int(self.chance.choice((0, 0, 1, 3)))):  # told again, under the same id
                again_s = float(self.chance.choice((1.0, 30.0, 3000.0)))
                self._later(again_s, lambda id_=f"msg-{self._version}": self._again(source, id_, body))  # type: ignore[misc]
        elif steps:
            self.vtn.events[name] = openadr(name, steps, self.now_s)
            self._notify("UPDATE", name)
        else:
            self._notify("DELETE", name)
            self.vtn.events.pop(name, None)

    def _notify(self, operation: str, name: str) -> None:
        """Half of what changes is called back; the VEN then asks at once."""
        item = self.vtn.events.get(name)
        if item is None or self.up_s is None or self.chance.random() < 0.5:
            return
        kept = self.ven.notify({"objectType": "EVENT", "operation": operation, "object": item})
        if kept is not None:
            kept.result()
        self._polled_s = float("-inf")

    def _again(self, source: str, message_id: str, body: dict[str, Any]) -> None:
        self.found.count("repetitions")
        if self.up_s is not None:
            self._take(source, message_id, body)

    def _take(self, source: str, message_id: str, body: dict[str, Any]) -> None:
        message = content(body, self.intake.context(source))
        for answer in self.intake.take(source, message, message_id=message_id, raw=json.dumps(body)):
            if answer.state is State.REJECTED:
                self.found.refused.append(f"{source} {message_id}: {answer.message}")

    def _deliver(self) -> None:
        """Senders of webhooks try until they have an answer, in their order."""
        for source, message_id, body, one, steps in self._out:
            self._take(source, message_id, body)
            one.known = steps
            if one.meant == steps:
                one.meant = None
        self._out.clear()

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def _crash_if_up(self) -> None:
        if self.up_s is not None:
            self._crash()

    def _vtn_down(self, why: str) -> None:
        self.found.count("times the VTN was away")
        self.vtn.down = why

        def back() -> None:
            self.vtn.down = ""

        self._later(float(self.chance.choice((15.0, 300.0, 1800.0))), back)

    def _vtn_forgets(self) -> None:
        """It restarts without its data, programs too, and has them again a while later."""
        self.found.count("times the VTN lost its memory")
        programs = dict(self.vtn.programs) or {"programme": {"id": "programme", "objectType": "PROGRAM", "programName": "p"}}
        kept, self.vtn.events, self.vtn.programs = self.vtn.events, {}, {}

        def back() -> None:
            self.vtn.programs = programs
            self.vtn.events = {**kept, **self.vtn.events}
            for (source, name), one in self.asked.items():
                if source == UTILITY and one.meant == ():
                    self.vtn.events.pop(name, None)

        self._later(float(self.chance.choice((20.0, 600.0))), back)

    def _node_silent(self) -> None:
        self.found.count("silent nodes")
        node = int(self.chance.integers(0, self.fleet.count // GPUS_A_NODE))
        if self.up_s is not None and node not in self.fleet.silent:
            until_s = self.fleet.mono() + float(self.chance.choice((15.0, 120.0, 1200.0)))
            self.fleet.cut(node, until_s, closed=bool(self.chance.random() < 0.5))

    def _gpu_stuck(self) -> None:
        self.found.count("GPUs that held no cap")
        gpu = int(self.chance.integers(0, self.fleet.count))
        self.fleet.stuck[gpu] = self.fleet.mono() + float(self.chance.choice((30.0, 600.0)))

    def _orders_fail(self) -> None:
        self.found.count("times orders failed")
        self.fleet.share_failing = 0.3

        def well() -> None:
            self.fleet.share_failing = 0.0

        self._later(float(self.chance.choice((60.0, 900.0))), well)

    # --- looking --------------------------------------------------------------------------------------------------

    def run(self) -> Found:
        """All of it."""
        total = int(self.until_s)
        drawn, loosest = np.zeros(total), np.full(total, np.inf)
        told, away = np.zeros(total, dtype=bool), np.zeros(total, dtype=bool)
        judged = 1
        for second in range(total):
            self.now_s = float(second)
            while self._todo and self._todo[0][0] <= self.now_s:
                heapq.heappop(self._todo)[2]()
            if self.up_s is not None:
                self._round()
                told[second] = self._is_told()
            away[second] = self.up_s is None or self.now_s - self.up_s < BACK_S
            strict_w, loosest[second] = self._right()
            if not away[second]:
                self._compare(strict_w, loosest[second])
                self._look_at_leases(loosest[second])
            drawn[second] = self.fleet.step()
            if (second + 1) % HOUR_S == 0 or second + 1 == total:
                self._judge(drawn, loosest, told, away, judged, second + 1)
                judged = (second + 1) // 60
                self._progress(second + 1)
        self.store.close()
        return self.found

    def _progress(self, seconds: int) -> None:
        found = self.found
        words = f"{seconds / HOUR_S:g} h, {found.bound_s / HOUR_S:.1f} h limited: lost {len(found.lost)} s, "
        words += (
            f"lifts {len(found.lifts)}, over {len(found.over_untold)} untold, {found.over_told} told, {found.over_away} away"
        )
        print(words, file=sys.stderr, flush=True)

    def _right(self) -> tuple[float, float]:
        """(the strictest, the loosest) limit that may rightly bind now."""
        strict_w = loose_w = float("inf")
        for (source, name), one in list(self.asked.items()):
            both = one.at(self.now_s)
            strict_w, loose_w = min(strict_w, both[0]), min(loose_w, both[1])
            steps = (*one.known, *(one.meant or ()))
            if source == UTILITY and one.meant == () and self._is_gone(name, one):
                one.known, one.meant = (), None
            elif one.meant is None and (not steps or steps[-1][1] < self.now_s - 60):
                del self.asked[source, name]
        return strict_w, loose_w

    def _is_gone(self, name: str, one: Asked) -> bool:
        """Whether the VTN's deletion has been taken, or must have been."""
        if self.up_s is None:
            return False
        stored = self.store.grid_event(UTILITY, name)
        return stored is None or stored.cancelled

    def _compare(self, strict_w: float, loose_w: float) -> None:
        now = self.now()
        budgets = [b for b in self._budgets or () if b.start <= now and (b.end is None or now < b.end)]
        binds_w = min((budget.limit_w for budget in budgets), default=float("inf"))
        if binds_w > loose_w + 0.5:
            self._say(self.found.lost, f"{binds_w:.0f} W bind where {loose_w:.0f} W were asked for")
        elif binds_w < strict_w - 0.5:
            self.found.phantom_s += 1
        self.found.bound_s += np.isfinite(loose_w)

    def _look_at_leases(self, loose_w: float) -> None:
        """Caps of an event that is in force may not go, nor be told to end before it does."""
        now = self.now()
        leases = self.fleet.leases()
        stood = {}
        for budget in self._budgets or ():
            if not (budget.start <= now and budget.end is not None and now < budget.end - timedelta(seconds=2)):
                continue
            key = f"event {budget.event_id} of {budget.source}"
            ends_s = (budget.end - START).total_seconds()
            held = leases.get(key, ())
            if any(end_s < ends_s - 2.0 for end_s in held) and self._at_rest(budget):
                self._say(self.found.lifts, f"a cap of {key} is to end before {budget.end:%H:%M:%S}")
            binding = budget.limit_w <= loose_w + 0.5 and budget.limit_w < 0.95 * self.fleet.base_w
            if held:
                stood[key] = (key, "")
            elif key in self._stood and binding and self._at_rest(budget):
                self._say(self.found.lifts, f"all caps of {key} went before {budget.end:%H:%M:%S}")
        self._stood = stood

    def _at_rest(self, budget: Budget) -> bool:
        """Whether nothing was said about this event just now, and every node can be told."""
        one = self.asked.get((budget.source, budget.event_id.partition(" from ")[0]))
        quiet = one is None or (one.meant is None and self.now_s - one.changed_s > POLL_S + 20)
        return quiet and not self.fleet.silent and self.fleet.share_failing == 0.0

    def _is_told(self) -> bool:
        return bool(self.loop.alarms(self.now())) or any(key.startswith("silent") for key, _, _ in self.fleet.hub.alarms())

    def _judge(self, drawn: Any, loosest: Any, told: Any, away: Any, first: int, until_s: int) -> None:
        windows = np.lib.stride_tricks.sliding_window_view(
            np.concatenate((np.full(RESPONSE_S, np.inf), loosest)), RESPONSE_S + 1
        )
        owed = windows.max(axis=1)
        for minute in range(first, until_s // 60):
            here, near = slice(60 * minute, 60 * minute + 60), slice(60 * minute - 60, 60 * minute + 60)
            limit_w, mean_w = float(owed[here].max()), float(drawn[here].mean())
            if mean_w <= limit_w:
                continue
            if away[near].any():
                self.found.over_away += 1
            elif told[near].any():
                self.found.over_told += 1
            else:
                at = START + timedelta(minutes=minute)
                self.found.over_untold.append(f"{at:%d %H:%M:%S} {mean_w:.0f} W drawn, {limit_w:.0f} W allowed")

    def _say(self, to: list[str], sentence: str) -> None:
        to.append(f"{self.now():%d %H:%M:%S} {sentence}")


def days(folder: Path, hours: float, seed: int) -> Found:
    """So many hours, by this seed."""
    with tempfile.TemporaryDirectory(prefix="gsd") as name:
        return Days(folder, Path(name), hours, seed).run()


def figures(folder: Path, quick: bool, seed: int = 1) -> tuple[dict[str, float], list[tuple[str, str, float]]]:
    """The figures, and their targets."""
    hours = 6.0 if quick else 72.0
    found = days(folder, hours, seed)
    for name in ("lost", "lifts", "over_untold", "refused"):
        for sentence in getattr(found, name)[:20]:
            print(f"{name}: {sentence}", file=sys.stderr)
    out = {
        "days_hours": hours,
        "days_bound_hours": found.bound_s / HOUR_S,
        "days_lost_s": float(len(found.lost)),
        "days_phantom_s": float(found.phantom_s),
        "days_early_lifts": float(len(found.lifts)),
        "days_minutes_over_untold": float(len(found.over_untold)),
        "days_minutes_over_told": float(found.over_told),
        "days_minutes_over_plane_away": float(found.over_away),
        "days_refused": float(len(found.refused)),
    }
    out |= {f"days_{what.replace(' ', '_')}": float(count) for what, count in sorted(found.counts.items())}
    wanted = ("days_lost_s", "days_phantom_s", "days_early_lifts", "days_minutes_over_untold", "days_refused")
    return out, [(name, "<=", 0.0) for name in wanted]
