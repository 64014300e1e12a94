"""The agents that are connected: what each says of its node, and orders to them.

It is fed by whoever holds the connections (see dispatcher.api.agents), from any thread, and never waits for anybody. It
remembers no limits: which leases should stand is decided elsewhere, and each node keeps its own. What a node that has gone
silent draws is unknown, not zero.
"""

import itertools
import logging
import secrets
import statistics
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

from dispatcher.agent import messages
from dispatcher.agent.messages import BadFrame, Frame
from dispatcher.agent.metering import is_draw
from dispatcher.clock import SystemClock

log = logging.getLogger(__name__)

#: Seconds without a word after which a node's figures are unknown.
SILENT_S = 10.0
#: Seconds after which an order that was not answered counts as unanswered.
ANSWER_S = 10.0
#: Seconds after a start by which nodes that were there before should have said hello; else that is told.
MISSED_S = 30.0
#: Seconds for which a node that went silent is still told of.
FORGET_S = 3600.0
#: Seconds for which a claim of a node that another holds is told of after it was last refused, and how many are kept.
TELL_CLAIM_S, MOST_CLAIMS = 300.0, 100
#: How the keys of alarms begin that tell that nodes of a region refuse our orders.
REFUSED = "epoch"
#: An epoch further ahead of ours than this is no control plane's: each start counts one up.
MOST_STARTS = 1_000_000
#: Seconds for which a node whose energy came from the future is told of, and how far ahead that is.
TELL_CLOCK_S, CLOCK_AHEAD_S = 300.0, 60.0
#: A clock that differs from ours by more than this, s, in so many frames is wrong, or ours is; so many nodes can tell which.
CLOCK_APART_S, CLOCK_LOOKS, CLOCKS = 5.0, 3, 3


class Turned(BadFrame):
    """An agent that is not taken; its connection ends with the reason."""


class Session(Protocol):
    """One agent's connection. Both calls are cheap, may come from any thread, and never block or raise."""

    def send(self, text: str, *, is_order: bool = False) -> None:
        """Send a frame soon. ``is_order``: it will be answered, however much the agent says besides."""
        ...

    def close(self, why: str) -> None:
        """End the connection."""
        ...


@dataclass(frozen=True, slots=True)
class CapLive:
    """How a GPU's limit stands: ``state`` is the agent's word (none, setting, enforced, drifted, restoring, failed, unable), or
    "unknown" while its node is silent."""

    state: str
    wanted_w: float | None = None
    limit_w: float | None = None
    enforced_w: float | None = None
    since: datetime | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class GpuLive:
    """One GPU as last told; None is unknown. ``jobs`` are ids of the jobs that have a process on it; none of ours has where it
    is empty."""

    region: str
    branch: str | None
    node_id: str
    uuid: str
    index: int
    name: str
    simulated: bool
    power_w: float | None
    limit_w: float | None
    enforced_w: float | None
    default_w: float | None
    min_w: float | None
    max_w: float | None
    temperature_c: float | None
    sm_util: float | None
    throttle: tuple[str, ...]
    idle_state: str | None
    jobs: tuple[str, ...] | None
    cap: CapLive
    mig: bool
    #: Why it is not to be capped for economy, as its agent says: work of no job of ours is on it; empty when nothing is said.
    protected: str = ""
    #: Which interactive serving has it, so that no limit of ours is set on it; told by the power loop, empty: none.
    serving: str = ""
    #: Whether a limit is set on it all the same in an emergency that batch cannot meet; told by the power loop too.
    yields: bool = False


#: Of a GPU whose node is silent, and of one whose limit nobody has touched.
UNKNOWN_CAP, NO_CAP = CapLive("unknown"), CapLive("none")


@dataclass(frozen=True, slots=True)
class LeaseLive:
    """A lease as its node told of it; ``ends_at`` None is open."""

    lease_id: str
    kind: str
    uuid: str
    limit_w: float
    epoch: int
    reason: str
    ends_at: datetime | None


@dataclass(frozen=True, slots=True)
class NodeAlarm:
    """Something an agent wants an operator to know."""

    key: str
    sentence: str


@dataclass(frozen=True, slots=True)
class FrozenJob:
    """A job whose processes stand still on a node, and until when at the latest."""

    job_id: str
    until: datetime | None


@dataclass(frozen=True, slots=True)
class NodeLive:
    """One node. While ``connected`` is False its GPUs' figures are unknown and its leases go on without us; ``told`` is False
    too while it is connected but has not said yet what its GPUs do."""

    node_id: str
    hostname: str
    region: str
    branch: str | None
    connected: bool
    last_seen_at: datetime
    can_cap: bool
    why_not: str
    simulated: bool
    gpus: tuple[GpuLive, ...]
    alarms: tuple[NodeAlarm, ...] = ()
    frozen: tuple[FrozenJob, ...] = ()
    leases: tuple[LeaseLive, ...] = ()
    ray_node_id: str | None = None
    boot_id: str | None = None
    version: str | None = None
    told: bool = True


class Former(NamedTuple):
    """A node as an earlier control plane knew it."""

    node_id: str
    region: str
    seen_at: datetime
    hostname: str = ""
    uuids: tuple[str, ...] = ()


class CapOrder(NamedTuple):  # ten thousand of them at once, so what is made fastest
    """A limit to hold on one GPU, for ``ttl_s`` s from now; None until it is released."""

    lease_id: str
    kind: str
    node_id: str
    uuid: str
    limit_w: float
    ttl_s: float | None
    reason: str
    min_ok: bool = False
    test: bool = False
    foreign_ok: bool = False


class Release(NamedTuple):
    """A lease to let go of before its end."""

    node_id: str
    lease_id: str


class CapResult(NamedTuple):
    """What came of one order or release. ``error`` says why it did not work, or that it is not known whether it did."""

    node_id: str
    lease_id: str
    ok: bool
    enforced_w: float | None = None
    took_s: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class FreezeResult:
    """What came of a freeze or thaw on one node; ``processes`` is how many of the job's it has."""

    node_id: str
    ok: bool
    processes: int = 0
    error: str | None = None


@dataclass(slots=True)
class _Node:
    """What the hub keeps of a node: its frames as they came, read when somebody asks."""

    node_id: str
    region: str
    hello: Frame
    session: Session | None
    seen_mono: float
    seen_at: datetime
    proven: bool = False
    live: Frame | None = None
    #: The figures told before those of ``live``.
    before: Frame | None = None
    #: By how much its clock is ahead of ours, s, at the last frames; a frame that was late makes it look behind.
    clocks_s: deque[float] = field(default_factory=lambda: deque(maxlen=CLOCK_LOOKS))
    #: A moment on the agent's own clock, as it told it, and when we heard it.
    heard: tuple[float, float] | None = None
    leases: "tuple[LeaseLive, ...]" = ()
    view: NodeLive | None = None


@dataclass(slots=True)
class _Pending:
    """An order under way: who has not answered yet, and what the others said."""

    deadline_mono: float
    waiting: set[str]
    answers: dict[str, Frame]
    troubles: dict[str, str]
    finish: Callable[["_Pending"], None]


class Hub:
    """See the module. ``on_energy`` takes measured rows (each with node_id, region and simulated) and resolves once they are
    durably stored, to what became of them (energy.Taken); without it rows stay with their agents. ``branch_of(region,
    hostname)`` is asked for nodes that name none. ``on_epoch`` is told of a higher epoch that a node has obeyed, so that the
    next start can go above it. ``plane`` tells this control plane from another that has the same epoch."""

    def __init__(
        self,
        *,
        epoch: int,
        now: Callable[[], datetime] | None = None,
        mono: Callable[[], float] = time.monotonic,
        branch_of: Callable[[str, str], str | None] = lambda region, hostname: None,
        on_epoch: Callable[[int], object] = lambda epoch: None,
        answer_s: float = ANSWER_S,
        silent_s: float = SILENT_S,
        plane: str | None = None,
    ) -> None:
        self.epoch = self._ahead = epoch
        self.plane = plane or secrets.token_hex(16)
        self.on_energy: Callable[[Sequence[Mapping[str, Any]]], Future[Any]] | None = None
        self._now = SystemClock().now if now is None else now
        self._mono, self._branch_of, self._on_epoch, self._answer_s = mono, branch_of, on_epoch, answer_s
        self._silent_s = silent_s
        self._lock = threading.RLock()
        self._nodes: dict[str, _Node] = {}
        self._of_session: dict[Session, str] = {}
        # What an earlier control plane knew of a node, since when we know that and until when it holds without a word of it.
        self._remembered: dict[str, tuple[Former, float, float]] = {}
        self._claims: dict[tuple[str, str], tuple[float, str, str]] = {}
        # Nodes whose energy came from the future: when that was (mono s), and by how much, s.
        self._clocks: dict[str, tuple[float, float]] = {}
        self._pending: dict[str, _Pending] = {}
        # Not only a number: an answer to an order of the control plane before us must not pass for one to ours.
        self._ids = (f"{epoch}-{number}" for number in itertools.count(1))

    # --- connections ----------------------------------------------------------------------------------------------

    def remember(self, nodes: Iterable[Former]) -> None:
        """Which nodes there were before this control plane started."""
        now, mono = self._now(), self._mono()
        with self._lock:
            for node in nodes:
                left_s = FORGET_S - (now - node.seen_at).total_seconds()
                if left_s > 0:
                    self._remembered[node.node_id] = (node, mono, mono + left_s)

    def awaits(self, region: str) -> bool:
        """Whether a node that was there before this control plane started has not said hello yet."""
        mono = self._mono()
        with self._lock:
            return any(one.region == region and mono < until_mono for one, _, until_mono in self._remembered.values())

    def receive(self, session: Session, region: str, text: str | bytes, *, proven: bool = False) -> str | None:
        """Take a frame of an agent that may speak for ``region``; returns the frame to answer with, if any. ``proven``: its
        token is that region's own, and not one that opens every region."""
        try:
            frame = messages.decode(text)
            return self._take(session, region, frame, proven)
        except Turned as error:
            session.send(messages.encode({"type": "error", "message": str(error)[: messages.MAX_TEXT]}))
            session.close(str(error))
            return None
        except BadFrame as error:
            log.info("a frame of an agent in %s was not understood: %s", region, error)
            return messages.encode({"type": "error", "message": str(error)[: messages.MAX_TEXT]})

    def gone(self, session: Session) -> None:
        """The connection has ended."""
        with self._lock:
            node_id = self._of_session.pop(session, None)
            node = self._nodes.get(node_id) if node_id is not None else None
            if node is not None and node.session is session:
                node.session, node.view = None, None
                self._give_up(node.node_id, "the connection was lost; it is not known whether it was done")

    def _take(self, session: Session, region: str, frame: Frame, proven: bool) -> str | None:
        kind = frame["type"]
        if kind == "hello":
            return self._hello(session, region, frame, proven)
        with self._lock:
            node = self._nodes.get(self._of_session.get(session, ""))
            if node is None or node.session is not session:
                raise BadFrame("the first frame must be hello")
            node.seen_mono, node.seen_at = self._mono(), self._now()
        if kind == "live":
            self._live(node, messages.check_live(frame).raw())
        elif kind == "results":
            self._results(node, messages.check_results(frame).raw())
        elif kind == "energy":
            self._energy(node, session, *messages.check_energy(frame))
        elif kind == "error":
            self._refused(node, *messages.check_error(frame))
        else:
            raise BadFrame(f"type: {kind[:40]!r}: the control plane understands hello, live, energy, results and error")
        return None

    def _hello(self, session: Session, region: str, frame: Frame, proven: bool) -> str | None:
        hello = messages.check_hello(frame).raw()
        node_id, epoch = hello["node"]["node_id"], hello["epoch"]
        with self._lock:
            if (named := self._of_session.get(session, node_id)) != node_id:
                raise BadFrame(f"hello.node.node_id: {node_id!r}: this connection is node {named!r}'s; each node has its own")
            before = self._nodes.get(node_id)
            self._check_region(node_id, region, hello["node"]["hostname"], proven)
            if before is not None and before.session is not session and self._is_live(before):
                self._check_machine(before, hello)
            if before is not None and before.session is not None and before.session is not session:
                self._of_session.pop(before.session, None)
                self._give_up(node_id, "its agent connected anew; it is not known whether it was done")
                before.session.close("the same node connected again")
            node = _Node(node_id, region, hello, session, self._mono(), self._now(), proven)
            self._remembered.pop(node_id, None)
            node.leases = tuple(_lease_live(lease, node.seen_at) for lease in hello.get("leases", []))
            node.heard = self._heard(hello)
            self._nodes[node_id] = node
            self._of_session[session] = node_id
            ahead = self._ahead < epoch <= self.epoch + MOST_STARTS
            if ahead:
                self._ahead = epoch
        if epoch > self.epoch:
            log.error("node %s has obeyed a control plane of epoch %d; ours is %d", node_id, epoch, self.epoch)
        if ahead:
            # Only the highest, and none that one agent made up: nobody could ever count above it.
            self._on_epoch(epoch)
        return None

    def _check_region(self, node_id: str, region: str, hostname: str, proven: bool) -> None:
        """A node is of the region that it first said hello from, for as long as it is known: else an agent of one region could
        take another's node from it while that one is silent. Only a region's own token outweighs one that opens all (the lock
        is held). Raises Turned."""
        before = self._nodes.get(node_id)
        holder = self._region_of(node_id)
        if holder is None or holder == region or (proven and before is not None and not before.proven):
            return
        sentence = (
            f"an agent of {hostname} in {region} says that it is node {node_id}, which is {holder}'s: it was refused; two "
            "agents need two ids (gridshift agent --node-id)"
        )
        self._claim(node_id, region, holder, sentence)
        raise Turned(f"node id {node_id[:40]!r} is of region {holder[:40]}; a node has one region")

    def _check_machine(self, before: _Node, hello: Frame) -> None:
        """Two machines with one id, as those made from one image have, would throw each other out for ever: the first stays for
        as long as it is heard (the lock is held). Raises Turned."""
        first, second = before.hello["node"], hello["node"]
        boots = {first.get("boot_id"), second.get("boot_id")} - {None}
        if first["hostname"] == second["hostname"] and len(boots) < 2:
            return
        names = [f"{one['hostname']} (boot {str(one.get('boot_id'))[:8]})" for one in (first, second)]
        sentence = (
            f"{names[0]} and {names[1]} both say that they are node {before.node_id}: the second is refused while the first is "
            "heard; each machine needs an id of its own (/etc/machine-id, or gridshift agent --node-id)"
        )
        self._claim(before.node_id, before.region, before.region, sentence)
        raise Turned(f"node id {before.node_id[:40]!r} is that of {first['hostname'][:40]}; each machine needs its own")

    def _claim(self, node_id: str, region: str, holder: str, sentence: str) -> None:
        """Note that an agent of ``region`` was refused a node of ``holder``'s (the lock is held)."""
        if self._claims.pop((node_id, region), (0.0, "", ""))[2] != sentence:
            log.warning("%s", sentence)  # in the log once: it tries again and again
        self._claims[node_id, region] = (self._mono(), holder, sentence)
        if len(self._claims) > MOST_CLAIMS:
            del self._claims[next(iter(self._claims))]

    def _region_of(self, node_id: str) -> str | None:
        """The region of a node, as far as it is known (the lock is held)."""
        if node_id in self._nodes:
            return self._nodes[node_id].region
        former, _, until_mono = self._remembered.get(node_id, (None, 0.0, 0.0))
        return former.region if former is not None and self._mono() < until_mono else None

    def _forget_former(self) -> None:
        """A Ray that was started anew gives its nodes new ids: a silent node of a machine whose GPUs a connected one tells of
        is gone, and must not count with what it may still draw."""
        silent = [node for node in self._nodes.values() if node.hello["gpus"] and node.session is None]
        heard: dict[tuple[str, str], set[str]] = defaultdict(set)
        for node in self._nodes.values() if silent else ():
            if self._is_live(node):
                heard[node.region, node.hello["node"]["hostname"]].update(gpu["uuid"] for gpu in node.hello["gpus"])
        for node in silent:
            if heard[node.region, node.hello["node"]["hostname"]].issuperset(gpu["uuid"] for gpu in node.hello["gpus"]):
                del self._nodes[node.node_id]

    def _live(self, node: _Node, live: Frame) -> None:
        with self._lock:
            node.before, node.live, node.view = node.live, live, None
            node.heard = self._heard(live)
            if (at := _number(live.get("at"))) is not None:
                node.clocks_s.append(at - node.seen_at.timestamp())
            if live.get("leases") is not None:
                node.leases = tuple(_lease_live(lease, node.seen_at) for lease in live["leases"])

    def _heard(self, frame: Frame) -> tuple[float, float] | None:
        boot_s = _number(frame.get("boot_s"))
        return None if boot_s is None else (boot_s, self._mono())

    def _energy(self, node: _Node, session: Session, batch: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self.on_energy is None:
            return
        of_node = {"region": node.region, "simulated": bool(node.hello["node"].get("simulated"))}

        def stored(done: "Future[Any]") -> None:
            error = done.exception()
            taken = done.result() if error is None else None
            ahead_s: float = getattr(taken, "ahead_s", 0.0)
            if ahead_s > CLOCK_AHEAD_S:
                with self._lock:
                    self._clocks[node.node_id] = (self._mono(), ahead_s)
            if getattr(taken, "early", 0):
                return  # it keeps the batch and sends it again: what was taken of it is known then
            if error is None:
                session.send(messages.encode({"type": "energy_ack", "batch": batch}))
            else:
                log.warning("energy rows of node %s were not stored, it sends them again: %s", node.node_id, error)

        own = {node_id: self._owner(node_id, node) for node_id in {row.get("node_id") for row in rows}}
        self.on_energy([{**row, **of_node, "node_id": own[row.get("node_id")]} for row in rows]).add_done_callback(stored)

    def _owner(self, made_by: str | None, node: _Node) -> str:
        """The node whose row it is: the one that made it, which may have another name now. That of another region's node is not
        for it to use."""
        with self._lock:
            region = None if made_by is None else self._region_of(made_by)
        return node.node_id if made_by is None or region not in (None, node.region) else made_by

    # --- what is known --------------------------------------------------------------------------------------------

    def nodes(self) -> list[NodeLive]:
        """Every node known, silent ones too, by id."""
        with self._lock:
            there = [self._nodes[node_id] for node_id in sorted(self._nodes)]
        found = []
        for node in there:
            with self._lock:  # anew for each: frames that come meanwhile are not kept waiting for thousands of nodes
                found.append(self._view(node))
        return found

    def node(self, node_id: str) -> NodeLive | None:
        """One node; None when it never said hello."""
        with self._lock:
            node = self._nodes.get(node_id)
            return None if node is None else self._view(node)

    def gpus_of(self, job_id: str) -> list[GpuLive]:
        """The GPUs on which a job was last seen to have processes, of nodes that are connected."""
        return [gpu for node in self.nodes() if node.connected for gpu in node.gpus if job_id in (gpu.jobs or ())]

    def alarms(self, _: datetime | None = None) -> list[tuple[str, str | None, str]]:
        """(key, region, sentence) of everything an operator should know of the agents."""
        found: list[tuple[str, str | None, str]] = []
        for node in self.nodes():
            if not node.connected and node.gpus:
                seen = f"{node.last_seen_at:%Y-%m-%d %H:%M:%S} UTC"
                sentence = f"the agent of {node.hostname} in {node.region} is silent since {seen}; its GPUs' draw is unknown"
                found.append((f"silent {node.node_id}", node.region, sentence))
            found += [
                (f"{alarm.key} {node.node_id}", node.region, f"{node.hostname}: {alarm.sentence}") for alarm in node.alarms
            ]
        with self._lock:
            found += [
                (f"claim {region} {node_id}", holder, sentence)
                for (node_id, region), (at, holder, sentence) in self._claims.items()
                if self._mono() - at <= TELL_CLAIM_S
            ]
            found += self._clock_alarms()
            found += self._not_heard_again()
            found += self._epoch_alarms()
        return found

    def _epoch_alarms(self) -> list[tuple[str, str | None, str]]:
        """One of each region whose nodes obey another control plane (the lock is held)."""
        found: list[tuple[str, str | None, str]] = []
        for region in sorted({node.region for node in self._nodes.values()}):
            hellos = [node.hello for node in self._nodes.values() if node.region == region]
            ahead = max(int(hello["epoch"]) for hello in hellos)
            others = any(hello["epoch"] == self.epoch and hello.get("plane") not in (None, self.plane) for hello in hellos)
            if ahead > self.epoch or others:
                which = f"another control plane of our own epoch {self.epoch}"
                if ahead > self.epoch:
                    which = f"a newer control plane (epoch {ahead}, ours is {self.epoch})"
                told = f"nodes of {region} have obeyed {which} and refuse our orders; stop the other one, then restart this one"
                found.append((f"{REFUSED} {region}", region, told))
        return found

    def _not_heard_again(self) -> list[tuple[str, str | None, str]]:
        """Nodes with GPUs that were there before this control plane started, and have not said a word to it (the lock is held).
        A Ray that was started anew gives its nodes new ids: one whose GPUs another node tells of is not missed."""
        mono = self._mono()
        heard = {gpu["uuid"] for node in self._nodes.values() for gpu in node.hello["gpus"]}
        return [
            (
                f"silent {node.node_id}",
                node.region,
                f"the agent of {node.hostname} in {node.region} was there until {node.seen_at:%Y-%m-%d %H:%M:%S} UTC and has "
                "not been heard since this control plane started; what its GPUs draw is unknown",
            )
            for node, since_mono, until_mono in self._remembered.values()
            if since_mono + MISSED_S <= mono < until_mono and node.uuids and not heard.issuperset(node.uuids)
        ]

    def doubting(self) -> set[str]:
        """The nodes whose clock differs from ours, or is not known yet, without most others saying that ours is right."""
        with self._lock:
            offs_s = {one.node_id: _clock_off_s(one) for one in self._nodes.values()}
            apart = {node_id for node_id, off_s in offs_s.items() if off_s is None or abs(off_s) > CLOCK_APART_S}
            most_off_s = self._most_off_s() if apart else None
        return set() if most_off_s is not None and abs(most_off_s) <= CLOCK_APART_S else apart

    def _most_off_s(self) -> float | None:
        """By how much the clocks of most nodes that are heard are ahead of ours, s; None where too few tell to judge by (the
        lock is held)."""
        live = [node for node in self._nodes.values() if self._is_live(node)]
        apart = [off_s for node in live if (off_s := _clock_off_s(node)) is not None]
        return statistics.median(apart) if len(apart) >= CLOCKS else None

    def _clock_alarms(self) -> list[tuple[str, str | None, str]]:
        """Clocks that differ, and rows of energy that came from the future (the lock is held)."""
        self._clocks = {one: told for one, told in self._clocks.items() if self._mono() - told[0] <= TELL_CLOCK_S}
        found: list[tuple[str, str | None, str]] = []
        ours_s = self._most_off_s() or 0.0
        if abs(ours_s) > CLOCK_APART_S:
            sentence = (
                f"our clock is {abs(ours_s):.0f} s {'behind' if ours_s > 0 else 'ahead of'} those of most nodes: set it right; "
                "meanwhile limits of events stand until these are over by the nodes' clocks too"
            )
            found.append(("clock", None, sentence))
        else:
            ours_s = 0.0
        for node in self._nodes.values():
            ahead_s = self._clocks.get(node.node_id, (0.0, 0.0))[1]
            off_s = _clock_off_s(node) if self._is_live(node) else None
            off_s = 0.0 if off_s is None or abs(off_s - ours_s) <= CLOCK_APART_S else off_s - ours_s
            if off_s < 0:
                what = f"is {-off_s:.0f} s behind: its energy is booked to earlier times than it was drawn at"
            elif off_s > 0 or ahead_s > 0:
                by_s = f"{off_s:.0f} s " if off_s > 0 else ""
                rows = f" (energy came of minutes that end {ahead_s:.0f} s from now)" if ahead_s > 0 else ""
                what = f"is {by_s}ahead: energy of minutes that lie far ahead is not taken before its time{rows}"
            else:
                continue
            sentence = f"the clock of {node.hello['node']['hostname']} (node {node.node_id}) {what}; set that clock"
            found.append((f"clock {node.node_id}", node.region, sentence))
        return found

    def _is_live(self, node: _Node) -> bool:
        return node.session is not None and self._mono() - node.seen_mono <= self._silent_s

    def _view(self, node: _Node) -> NodeLive:
        connected = self._is_live(node)
        if node.view is None or node.view.connected != connected:
            node.view = _node_live(node, connected, self._branch_of)
        return node.view

    # --- orders ---------------------------------------------------------------------------------------------------

    def order_caps(self, orders: Sequence[CapOrder], releases: Sequence[Release] = ()) -> "Future[list[CapResult]]":
        """Send limits and releases to their nodes, one frame a node. Resolves, never with an exception, to one result for each
        order, then for each release, once every node has answered or its time is up (see ``sweep``)."""
        sets: dict[str, list[dict[str, Any]]] = defaultdict(list)
        frees: dict[str, list[str]] = defaultdict(list)
        for order in orders:
            sets[order.node_id].append(_on_wire(order))
        for release in releases:
            frees[release.node_id].append(release.lease_id)
        future: Future[list[CapResult]] = Future()
        asked = [(order.node_id, order.lease_id) for order in orders] + [(one.node_id, one.lease_id) for one in releases]
        future.set_running_or_notify_cancel()

        def finish(pending: _Pending) -> None:
            said = {
                (node_id, one.get("lease_id")): one
                for node_id, answer in pending.answers.items()
                for one in answer.get("results", [])
            }
            future.set_result([_cap_result(*one, said.get(one), pending.troubles.get(one[0])) for one in asked])

        def frame(node_id: str) -> Frame:
            return {"type": "orders", "set": sets.get(node_id, []), "release": frees.get(node_id, [])}

        node_ids = [*dict.fromkeys(node_id for node_id, _ in asked)]
        log.info("%d limits to set and %d to give back are sent to %d nodes", len(orders), len(releases), len(node_ids))
        self._send(node_ids, frame, finish)
        return future

    def freeze(
        self, job_id: str, *, ttl_s: float, freeze_max_s: float, region: str | None = None
    ) -> "Future[list[FreezeResult]]":
        """Stop a job's processes on every connected node (of ``region``) for ``ttl_s`` s at most."""
        longest_s = messages.MAX_TTL_S
        more = {"job_id": job_id, "ttl_s": min(ttl_s, longest_s), "freeze_max_s": min(freeze_max_s, longest_s)}
        return self._to_all("freeze", more, region)

    def thaw(self, job_id: str, *, region: str | None = None) -> "Future[list[FreezeResult]]":
        """Let a job's processes run again."""
        return self._to_all("thaw", {"job_id": job_id}, region)

    def _to_all(self, kind: str, more: Mapping[str, Any], region: str | None) -> "Future[list[FreezeResult]]":
        with self._lock:
            there = [n.node_id for n in self._nodes.values() if n.session is not None and region in (None, n.region)]
        future: Future[list[FreezeResult]] = Future()
        future.set_running_or_notify_cancel()

        def finish(pending: _Pending) -> None:
            future.set_result([_freeze_result(n, pending.answers.get(n), pending.troubles.get(n)) for n in there])

        self._send(there, lambda _: {"type": kind, **more}, finish)
        return future

    def _send(self, node_ids: Sequence[str], frame: Callable[[str], Frame], finish: Callable[[_Pending], None]) -> None:
        """Send each node its frame of one order and keep what is to be done with the answers. It goes with who we are, what our
        clock says, and how long ago we heard from the node: so an agent knows an order that has waited for long."""
        order_id = next(self._ids)
        pending = _Pending(self._mono() + self._answer_s, {*node_ids}, {}, {}, finish)
        with self._lock:
            self._pending[order_id] = pending
            sessions = {node_id: (one.session, one.heard) for node_id in node_ids if (one := self._nodes.get(node_id))}
        troubles = {}
        head = {"order": order_id, "epoch": self.epoch, "plane": self.plane, "at": self._now().timestamp()}
        for node_id in node_ids:  # without the lock: those who write to the agents take it too, and thousands may be sent
            session, heard = sessions.get(node_id, (None, None))
            if session is None:
                troubles[node_id] = "its agent is not connected" if node_id in sessions else "no agent of it is known"
                continue
            try:
                since = {} if heard is None else {"heard_boot_s": heard[0], "heard_ago_s": max(0.0, self._mono() - heard[1])}
                session.send(messages.encode({**frame(node_id), **head, **since}), is_order=True)
            except BadFrame as error:
                troubles[node_id] = str(error)
        if troubles:
            with self._lock:
                pending.waiting -= troubles.keys()
                pending.troubles.update(troubles)
        self._finish_if_done([order_id])

    def _results(self, node: _Node, results: Frame) -> None:
        order_id = results["order"]
        with self._lock:
            pending = self._pending.get(order_id)
            if pending is None or node.node_id not in pending.waiting:
                return  # too late, or for the control plane before us
            pending.waiting.discard(node.node_id)
            pending.answers[node.node_id] = results
        self._finish_if_done([order_id])

    def _refused(self, node: _Node, message: str, order_id: str | None) -> None:
        """An agent made nothing of a frame of ours, so what it asked for was not done."""
        log.warning("the agent on node %s did not understand a frame of ours: %s", node.node_id, message)
        with self._lock:
            pending = self._pending.get(order_id or "")
            if pending is None or node.node_id not in pending.waiting:
                return
            pending.waiting.discard(node.node_id)
            pending.troubles[node.node_id] = f"its agent did not understand the order: {message}"
        self._finish_if_done([order_id or ""])

    def _give_up(self, node_id: str, why: str) -> None:
        """A node will not answer what it was asked (the lock is held)."""
        touched = []
        for order_id, pending in self._pending.items():
            if node_id in pending.waiting:
                pending.waiting.discard(node_id)
                pending.troubles[node_id] = why
                touched.append(order_id)
        self._finish_if_done(touched)

    def _finish_if_done(self, order_ids: Iterable[str]) -> None:
        done = []
        with self._lock:
            for order_id in order_ids:
                pending = self._pending.get(order_id)
                if pending is not None and not pending.waiting:
                    done.append(self._pending.pop(order_id))
        for pending in done:
            pending.finish(pending)

    def sweep(self, _: datetime | None = None) -> None:
        """Give up orders whose time is up, and forget nodes that have been silent for long or came back under another id; to be
        called each second or so."""
        now = self._mono()
        with self._lock:
            late = [order_id for order_id, pending in self._pending.items() if pending.deadline_mono <= now]
            for order_id in late:
                pending = self._pending[order_id]
                why = f"no answer within {self._answer_s:g} s; it is not known whether it was done"
                pending.troubles.update(dict.fromkeys(pending.waiting, why))
                pending.waiting.clear()
            for node in list(self._nodes.values()):
                if node.session is None and now - node.seen_mono > FORGET_S:
                    del self._nodes[node.node_id]
            self._forget_former()
        self._finish_if_done(late)


# --- frames as values ---------------------------------------------------------------------------------------------


def _on_wire(order: CapOrder) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "lease_id": order.lease_id,
        "kind": order.kind,
        "uuid": order.uuid,
        "limit_w": order.limit_w,
        # One that is over before its event is is set once more.
        "ttl_s": None if order.ttl_s is None else min(order.ttl_s, messages.MAX_TTL_S),
        "reason": order.reason[: messages.MAX_TEXT],
    }
    if order.min_ok:
        wire["min_ok"] = True
    if order.test:
        wire["test"] = True
    if order.foreign_ok:
        wire["foreign_ok"] = True
    return wire


def _cap_result(node_id: str, lease_id: str, said: Mapping[str, Any] | None, trouble: str | None) -> CapResult:
    if said is None:
        return CapResult(node_id, lease_id, False, error=trouble or "its agent answered, but said nothing of this lease")
    error = said.get("error")
    return CapResult(node_id, lease_id, bool(said.get("ok")), said.get("enforced_w"), said.get("took_s"), error)


def _freeze_result(node_id: str, answer: Frame | None, trouble: str | None) -> FreezeResult:
    said = answer["results"][0] if answer is not None and answer.get("results") else None
    if said is None:
        return FreezeResult(node_id, False, error=trouble or "its agent answered nothing")
    processes = said.get("processes")
    count = processes if isinstance(processes, int) and not isinstance(processes, bool) else 0
    return FreezeResult(node_id, bool(said.get("ok")), count, said.get("error"))


def _node_live(node: _Node, connected: bool, branch_of: Callable[[str, str], str | None]) -> NodeLive:
    about, live = node.hello["node"], node.live if connected and node.live is not None else {}
    branch = about.get("branch") or branch_of(node.region, about["hostname"])
    figures = {gpu["uuid"]: gpu for gpu in live.get("gpus", [])}
    before = {gpu["uuid"]: gpu for gpu in (node.before or {}).get("gpus", [])}
    simulated = bool(about.get("simulated"))
    return NodeLive(
        node_id=node.node_id,
        hostname=about["hostname"],
        region=node.region,
        branch=branch,
        connected=connected,
        last_seen_at=node.seen_at,
        can_cap=bool(node.hello["can_cap"]),
        why_not=node.hello["why_not"],
        simulated=simulated,
        gpus=tuple(
            _gpu_live(node, branch, simulated, info, figures.get(info["uuid"], {}), before.get(info["uuid"], {}), connected)
            for info in node.hello["gpus"]
        ),
        alarms=tuple(NodeAlarm(alarm["key"], alarm["sentence"]) for alarm in live.get("alarms", [])),
        frozen=tuple(FrozenJob(one["job_id"], _unix(one.get("until"))) for one in live.get("frozen", [])),
        leases=node.leases,
        ray_node_id=about.get("ray_node_id"),
        boot_id=about.get("boot_id"),
        version=about.get("version"),
        told=connected and node.live is not None,
    )


def _gpu_live(
    node: _Node,
    branch: str | None,
    simulated: bool,
    info: Mapping[str, Any],
    now: Mapping[str, Any],
    before: Mapping[str, Any],
    connected: bool,
) -> GpuLive:
    power_w, limit_w = now.get("power_w"), now.get("limit_w")
    known_w = [w for w in (limit_w, before.get("limit_w", limit_w)) if w is not None]
    return GpuLive(
        region=node.region,
        branch=branch,
        node_id=node.node_id,
        uuid=info["uuid"],
        index=info["index"],
        name=info["name"],
        simulated=bool(info.get("simulated", simulated)),
        power_w=power_w if is_draw(power_w, max(known_w) if len(known_w) == 2 else info.get("max_w")) else None,
        limit_w=limit_w,
        enforced_w=now.get("enforced_w"),
        default_w=info.get("default_w"),
        min_w=info.get("min_w"),
        max_w=info.get("max_w"),
        temperature_c=now.get("temperature_c"),
        sm_util=now.get("sm_util"),
        throttle=tuple(map(str, now.get("throttle", ()))),
        idle_state=now.get("idle_state"),
        jobs=None if now.get("jobs") is None else tuple(map(str, now["jobs"])),
        cap=_cap_live(now.get("cap")) if connected and now else UNKNOWN_CAP,
        mig=bool(info.get("mig")),
        protected=now.get("protected") or "",
    )


def _cap_live(cap: Mapping[str, Any] | None) -> CapLive:
    if not cap:
        return NO_CAP
    return CapLive(
        str(cap.get("state", "none")),
        _number(cap.get("wanted_w")),
        _number(cap.get("limit_w")),
        _number(cap.get("enforced_w")),
        _unix(cap.get("since")),
        str(cap.get("detail") or ""),
    )


def _lease_live(lease: Mapping[str, Any], told_at: datetime) -> LeaseLive:
    ends_in_s = _number(lease.get("ends_in_s"))
    return LeaseLive(
        lease["lease_id"],
        str(lease.get("kind", "")),
        lease["uuid"],
        float(lease["limit_w"]),
        int(lease.get("epoch") or 0),
        str(lease.get("reason") or ""),
        None if ends_in_s is None else told_at + timedelta(seconds=ends_in_s),
    )


def _clock_off_s(node: _Node) -> float | None:
    """By how much a node's clock is ahead of ours, s; None while it has not told often enough."""
    return max(node.clocks_s) if len(node.clocks_s) == CLOCK_LOOKS else None


def _number(value: Any) -> float | None:
    """A finite number; None for anything else, also for what JSON can say and floats cannot."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if -messages.MAX_NUMBER <= value <= messages.MAX_NUMBER else None


def _unix(value: Any) -> datetime | None:
    seconds = _number(value)
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
