"""The agent of one node: samples its GPUs, holds the limits it was lent, tells the control plane, and carries out its orders.

It puts the parts together and decides nothing. Limits are kept by threads of their own (see caps.py); a GPU that hangs, a full
disk or a control plane that is gone holds up none of the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Optional

from .caps import CapOrders, CapState, Enforcer
from .channel import Channel
from .devices import DeviceError, DeviceInfo, Devices, NoGpus, Reading
from .epochs import Epochs
from .freezing import Freezer, FreezeRefused
from .lease_terms import LateOrder, SetCap, StaleEpoch
from .leases import LeaseBook, LeaseError, boot_id
from .messages import PROTOCOL, EnergyAck, Frame, Freeze, FromServer, Orders, Thaw, Told
from .metering import EnergyRow, Look
from .node import FolderLock, OwnDevices, Settings, shortened
from .processes import ProcessTable, job_weights
from .release import answer_requests
from .row_queue import RowQueue, load_meter, save_meter
from .sampling import Samplers

#: Memory, bytes, that each job (None: nobody's) holds on a GPU; None as a whole: nobody knows who is there.
Residents = Optional[Mapping[Optional[str], Optional[int]]]  # noqa: UP045 - evaluated, and Python 3.9 has no | for types

log = logging.getLogger("gridshift.agent")

#: Seconds between two looks at everything.
TICK_S = 1.0
#: Seconds after which the control plane is told how things stand even if nothing changed.
TELL_S = 5.0
#: Seconds between two looks for GPUs that came or went, and for a driver where there was none.
LOOK_FOR_GPUS_S = 30.0
#: How long the start waits for the first look at the GPUs, s.
FIRST_LOOK_S = 5.0
#: Seconds between two savings of the meter's state.
SAVE_S = 5.0
#: Seconds after which energy rows that were not acknowledged are sent again.
SEND_AGAIN_S = 30.0
#: Energy rows in one frame.
ROWS_AT_ONCE = 1000
#: An order that may have been under way for longer, s, is refused (one to thaw is not): it waited in a socket while a machine
#: was suspended or a network stood still, and its lease would be counted from now. Its sender sends what it wants by now.
LATE_S = 6.0
#: Clocks of a control plane and of this node that differ by more, s, are told of; by more than a day, they are not believed.
CLOCK_APART_S, CLOCK_MOST_S = 2.0, 86_400.0
#: Seconds for which something that happened is told.
TOLD_S = 60.0
#: A change of power below this, W or as a share, is not worth telling before its time.
QUIET_W, QUIET_SHARE = 5.0, 0.02
#: What is told of a GPU at once when it changes.
SUDDEN = ("limit_w", "enforced_w", "throttle", "idle_state", "jobs", "protected")


class Agent:
    """See the module. ``start`` takes up what an earlier agent left, limits first; ``stop`` gives economic limits back and
    leaves event limits standing. Raises FolderBusy while another agent works in the state folder."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._lock_file = FolderLock(settings.state_dir)
        self._boot = boot_id()
        self._started_at = time.time()
        self._jobs_lock = threading.RLock()  # the process table and what is frozen: asked by the channel's thread too
        self._gpus_lock = threading.RLock()
        self._epochs = Epochs(settings.state_dir / "leases")
        self._devices: OwnDevices | None = None
        self._book: LeaseBook | None = None
        self._enforcer: Enforcer | None = None
        self._no_gpus = "no look at the driver yet"
        self._cpu_only = False  # nothing is missing where there is no GPU
        self._can_cap, self._why_not = False, ""
        self._infos: dict[str, DeviceInfo] = {}
        self._table = ProcessTable()
        #: By GPU, the processes of no job of ours at the last look, and the sentence why it is not to be capped for economy.
        self._strangers: dict[str, frozenset[int]] = {}
        self._protected: dict[str, str] = {}
        self._freezer = Freezer(settings.state_dir, self._table, self._boot)
        self._samplers = Samplers()
        self._energy_dir = settings.state_dir / "energy"
        self._rows = RowQueue(self._energy_dir)
        self._meter, rows, trouble = load_meter(
            self._energy_dir, self._boot, settings.node_id, self._rows.next_number, self._rows.told_until
        )
        self._acknowledged: int | None = None
        self._saved_s = float("-inf")
        self._sent_rows: tuple[int, float] | None = None
        #: What happened lately: since when (monotonic), key, sentence.
        self._told: list[tuple[float, str, str]] = []
        if trouble is not None:
            self._note("meter", trouble)
        if rows:
            self._save_meter(rows)
            self._rows.append(rows)
        self._last_live: Frame | None = None
        self._told_ends: set[tuple[str, float, float | None]] | None = None
        self._last_live_s = float("-inf")
        self._trouble: str | None = None
        self._misunderstood: str | None = None
        self._stopping = threading.Event()
        self._looked, self._read_once, self._hurry = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._watcher = threading.Thread(target=self._watch_gpus, name="gpus", daemon=True)
        self.channel = Channel(
            settings.server,
            settings.region,
            settings.token,
            hello=self.hello,
            on_frame=self._on_frame,
            on_open=self._on_open,
        )

    def start(self) -> Agent:
        """Take up leases and frozen jobs, then begin to sample and to talk."""
        self._thread.start()
        self._watcher.start()
        until = time.monotonic() + FIRST_LOOK_S
        # Who says hello knows the GPUs, and who takes orders knows who is on them. A driver that hangs holds up nothing.
        for event in (self._looked, self._read_once):
            event.wait(max(0.0, until - time.monotonic()))
        self.channel.start()
        return self

    def stop(self) -> None:
        """End in order; safe to repeat."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._hurry.set()
        self.channel.stop()
        if self._thread.is_alive():
            self._thread.join(10.0)
        with self._jobs_lock:
            self._freezer.thaw_all()  # nobody would wake them at their deadline
        with self._gpus_lock:
            if self._enforcer is not None:
                self._enforcer.give_back("economic")
                for lease in self._book.leases() if self._book is not None else ():
                    log.warning("stands after this agent: %s; 'gridshift agent release' lifts it before", lease.told())
            self._close_gpus()
        self._save_meter()
        if self._acknowledged is not None:
            self._rows.acknowledge(self._acknowledged)
        self._rows.close()
        self._samplers.close()
        self._lock_file.close()

    # --- GPUs -----------------------------------------------------------------------------------------------------

    def _watch_gpus(self) -> None:
        while not self._stopping.is_set():
            try:
                self._look_for_gpus()
            except Exception:
                log.exception("looking for GPUs went wrong; it is tried again")
            if not self._looked.is_set():
                self._looked.set()
                self._hurry.set()
            self._stopping.wait(LOOK_FOR_GPUS_S)

    def _look_for_gpus(self) -> None:
        """Open the driver where it is not yet, and take over GPUs that came. Limits are put in force before anything else."""
        why, able = "", (self._can_cap, self._why_not)
        try:
            if self._enforcer is None:
                self._open_gpus()
            assert self._devices is not None and self._enforcer is not None
            infos = self._devices.infos()  # may take as long as the driver takes, so no lock is held
            self._enforcer.watch(infos)
            if not self._can_cap:
                able = self._ask_whether_to_cap([info.uuid for info in infos])
            if self._devices.silent:
                numbers = ", ".join(str(index) for index in self._devices.silent)
                why = f"the driver does not answer for GPU {numbers}; it is asked again each {LOOK_FOR_GPUS_S:g} s"
            elif self._devices.others:
                why = f"another agent looks after {shortened(self._devices.others)}"
        except (DeviceError, LeaseError) as error:
            infos, why = list(self._infos.values()), str(error)
            self._cpu_only = isinstance(error, NoGpus)
        with self._gpus_lock:
            found = {info.uuid: info for info in infos}
            changed = (self._infos, self._no_gpus, self._can_cap, self._why_not) != (found, why, *able)
            self._infos, self._no_gpus = found, why
            self._can_cap, self._why_not = able
        if changed and self.channel.connected:
            self.channel.send(self.hello())

    def _open_gpus(self) -> None:
        """The driver, the leases that stand, and who keeps them. Raises DeviceError or LeaseError, and leaves nothing open."""
        devices = OwnDevices()
        try:
            book = LeaseBook(self.settings.state_dir / "leases", epochs=self._epochs)
            enforcer = Enforcer(devices, book, protected=self._why_protected, meet=False)
        except BaseException:
            devices.close()
            raise
        with self._gpus_lock:
            self._devices, self._book, self._enforcer = devices, book, enforcer

    def _ask_whether_to_cap(self, uuids: Sequence[str]) -> tuple[bool, str]:
        """Whether the driver lets us set limits, asked on GPUs without leases and without work of others; where all have
        leases, their states tell."""
        assert self._devices is not None and self._enforcer is not None and self._book is not None
        states = {state.uuid: state for state in self._enforcer.states()}
        if any(state.state in ("enforced", "restoring") for state in states.values()):
            return True, ""
        capped = {lease.uuid for lease in self._book.leases()}
        free = [uuid for uuid in uuids if uuid not in capped and states[uuid].state == "none"]
        if free or not uuids:
            return self._devices.can_cap(free, spared=self._has_strangers)
        return False, next((state.detail for state in states.values() if state.detail), "the limits are not read back yet")

    def _has_strangers(self, uuid: str) -> bool:
        """Whether a process of no job of ours is on a GPU: not even the limit that it has is set there, just to try."""
        assert self._devices is not None
        try:
            processes = self._devices.processes(uuid)
        except DeviceError:
            return False  # what is wrong with it, trying says
        with self._jobs_lock:
            return None in self._table.owners(processes).values()

    def _close_gpus(self) -> None:
        if self._enforcer is not None:
            self._enforcer.close()
        if self._devices is not None:
            self._devices.close()
        self._enforcer = self._book = self._devices = None

    # --- each second ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            try:
                self.tick()
                self._trouble = None
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                if said != self._trouble:
                    log.exception("the agent's round went wrong; it goes on")
                self._trouble = said
            due = max(due + TICK_S, time.monotonic())
            if self._hurry.wait(due - time.monotonic()):
                self._hurry.clear()
                due = time.monotonic()

    def tick(self) -> None:
        """One round: limits, requests made by hand, readings, energy, and what is to be told."""
        try:
            with self._jobs_lock:
                for sentence in self._freezer.step():
                    self._note("frozen", sentence)
        finally:  # neither may keep the other from its duty
            states = self._keep_limits()
        is_looked = self._looked.is_set()
        readings, residents = self._read()
        if is_looked:
            self._read_once.set()
        self._count(readings, residents)
        self._tell(states, readings, residents)
        self._send_rows()

    def _keep_limits(self) -> dict[str, CapState]:
        with self._gpus_lock:
            enforcer, book = self._enforcer, self._book
        answer_requests(self.settings.state_dir, book, enforcer)
        return {} if enforcer is None else {state.uuid: state for state in enforcer.step()}

    def _read(self) -> tuple[dict[str, Reading | None], dict[str, Residents]]:
        """Every GPU's reading (None: it could not be read) and who was on it (None: nobody knows)."""
        with self._gpus_lock:
            devices, uuids = self._devices, list(self._infos)
        looks = {} if devices is None else self._samplers.look(devices, uuids)
        residents: dict[str, Residents] = {}
        strangers: dict[str, frozenset[int]] = {}
        with self._jobs_lock:
            self._table.look()
            for uuid, look in looks.items():
                processes = look.processes
                if processes is None:
                    residents[uuid] = None
                    if uuid in self._strangers:
                        strangers[uuid] = self._strangers[uuid]  # they may still be there
                    continue
                owners = self._table.owners(processes)
                residents[uuid] = job_weights(processes, owners)
                strangers[uuid] = frozenset(pid for pid, job_id in owners.items() if job_id is None)
        self._protect(strangers)
        return {uuid: look.reading for uuid, look in looks.items()}, residents

    def _protect(self, strangers: dict[str, frozenset[int]]) -> None:
        """Note the GPUs on which a process of no job of ours works. One that is seen once may be a job's that just ended, but
        not at the first look at a GPU: until there is a second, it counts."""
        before, self._strangers = self._strangers, strangers
        stay = {uuid: pids & before.get(uuid, pids) for uuid, pids in strangers.items()}
        if self.settings.protect_foreign:
            self._protected = {
                uuid: f"process {min(pids)} there is of no job of gridshift's, so it is not capped ([agents] protect_foreign)"
                for uuid, pids in stay.items()
                if pids
            }

    def _why_protected(self, uuid: str) -> str | None:
        """Why a GPU is not to be capped for economy; who works there must be known first."""
        if not self.settings.protect_foreign or uuid in self._strangers:
            return self._protected.get(uuid)
        return "who works on this GPU is not known yet, so it is not capped ([agents] protect_foreign)"

    def _count(self, readings: Mapping[str, Reading | None], residents: Mapping[str, Residents]) -> None:
        """Energy: rows of minutes that closed go to the disk, then to the control plane."""
        rows: list[EnergyRow] = []
        for uuid, reading in readings.items():
            if reading is None:
                rows += self._meter.lost(uuid, time.clock_gettime(time.CLOCK_BOOTTIME))
            else:
                rows += self._meter.feed(uuid, Look(reading, residents[uuid]))
        acknowledged, self._acknowledged = self._acknowledged, None
        if acknowledged is not None:
            self._rows.acknowledge(acknowledged)
        if rows or time.monotonic() - self._saved_s >= SAVE_S:
            self._save_meter(rows)
        if rows or self._rows.alarm is not None:
            self._rows.append(rows)
        for sentence in self._rows.told:
            self._note("rows", sentence)
        self._rows.told.clear()

    def _save_meter(self, made: Sequence[EnergyRow] = ()) -> None:
        self._saved_s = time.monotonic()
        try:
            save_meter(self._energy_dir, self._meter, self._boot, made, self._rows.next_number)
        except OSError as error:
            self._note("meter", f"the meter's state could not be saved: {error.strerror}")

    def _note(self, key: str, sentence: str) -> None:
        """Something happened that a person should know: it is told for a while."""
        now = time.monotonic()
        kept = [one for one in self._told if now - one[0] < TOLD_S and one[2] != sentence]
        self._told = [*kept[-49:], (now, key, sentence)]

    # --- telling the control plane --------------------------------------------------------------------------------

    def hello(self) -> Frame:
        """Who we are, what we have, and which leases stand."""
        settings = self.settings
        with self._gpus_lock:
            infos = list(self._infos.values())
            can_cap, why_not = self._can_cap, self._why_not if infos or not self._no_gpus else self._no_gpus
        return {
            "type": "hello",
            "protocol": PROTOCOL,
            "node": {
                "node_id": settings.node_id,
                "hostname": settings.hostname,
                "region": settings.region,
                "branch": settings.branch,
                "ray_node_id": settings.ray_node_id,
                "boot_id": self._boot,
                "version": settings.version,
                "simulated": any(info.simulated for info in infos),
                "started_at": self._started_at,
            },
            "can_cap": can_cap,
            "why_not": why_not,
            "gpus": [asdict(info) for info in infos],
            "leases": self._leases(),
            "epoch": self._epochs.highest,
            "plane": self._epochs.plane,
            "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
        }

    def _leases(self) -> list[Frame]:
        with self._gpus_lock:
            book = self._book
        if book is None:
            return []
        now_s = book.clock.boot_s()
        return [
            {
                "lease_id": lease.lease_id,
                "kind": lease.kind,
                "uuid": lease.uuid,
                "limit_w": lease.limit_w,
                "epoch": lease.epoch,
                "reason": lease.reason,
                "test": lease.test,
                "ends_in_s": None if lease.ends_boot_s is None else lease.ends_boot_s - now_s,
            }
            for lease in book.leases()
        ]

    def _lease_ends(self) -> set[tuple[str, float, float | None]]:
        with self._gpus_lock:
            book = self._book
        return set() if book is None else {(lease.lease_id, lease.limit_w, lease.ends_boot_s) for lease in book.leases()}

    def _on_open(self) -> None:
        self._last_live_s, self._sent_rows, self._told_ends = float("-inf"), None, None  # a new listener knows nothing yet

    def _tell(
        self,
        states: Mapping[str, CapState],
        readings: Mapping[str, Reading | None],
        residents: Mapping[str, Residents],
    ) -> None:
        if not self.channel.connected:
            return
        live = {
            "type": "live",
            "at": time.time(),
            "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
            "gpus": [self._gpu(uuid, states.get(uuid), readings.get(uuid), residents.get(uuid)) for uuid in self._infos],
            "frozen": self._frozen(),
            "alarms": self._alarms(),
        }
        # Ends as they are told move each second; what has changed is known by their ends on this machine's own clock.
        ends = self._lease_ends()
        if ends != self._told_ends:
            live["leases"] = self._leases()
        now = time.monotonic()
        due = now - self._last_live_s >= TELL_S or differs(self._last_live, live)
        if due and self.channel.send(live):
            self._last_live, self._last_live_s, self._told_ends = live, now, ends

    def _gpu(
        self,
        uuid: str,
        state: CapState | None,
        reading: Reading | None,
        residents: Residents,
    ) -> Frame:
        return {
            "uuid": uuid,
            "power_w": None if reading is None or reading.power_w is None else round(reading.power_w, 1),
            "limit_w": None if reading is None else reading.limit_w,
            "enforced_w": None if reading is None else reading.enforced_w,
            "temperature_c": None if reading is None else reading.temperature_c,
            "sm_util": None if reading is None else reading.sm_util,
            "throttle": [] if reading is None else list(reading.throttle),
            "idle_state": self._meter.idle_state(uuid),
            "jobs": jobs_on(residents, self._meter.idle_state(uuid)),
            "protected": self._why_protected(uuid),
            "cap": None if state is None else vars(state),  # asdict would copy each value of each GPU, each second
        }

    def _frozen(self) -> list[Frame]:
        wall_minus_boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        with self._jobs_lock:
            return [{"job_id": one.job_id, "until": wall_minus_boot + one.until_boot_s} for one in self._freezer.frozen()]

    def _alarms(self) -> list[Frame]:
        with self._gpus_lock:
            enforcer = self._enforcer
        now = time.monotonic()
        found = [(f"{key}:{sentence[:60]}", sentence) for at, key, sentence in self._told if now - at < TOLD_S]
        found += enforcer.alarms() if enforcer is not None else self._epochs.notices.items()
        if self._no_gpus and not self._cpu_only:
            found.append(("gpus", self._no_gpus))
        for uuid, why in self._meter.distrust(time.clock_gettime(time.CLOCK_BOOTTIME)).items():
            found.append((f"counter:{uuid}", f"the energy counter of GPU {uuid} is not believed: {why}; power is integrated"))
        if self._rows.alarm is not None:
            found.append(("rows", self._rows.alarm))
        if self._trouble is not None:
            found.append(("agent", f"the agent's last round went wrong: {self._trouble}"))
        return [{"key": key[:200], "sentence": sentence[:1000]} for key, sentence in found]

    def _send_rows(self) -> None:
        now = time.monotonic()
        if not self.channel.connected or (self._sent_rows is not None and now - self._sent_rows[1] < SEND_AGAIN_S):
            return
        batch = self._rows.batch(ROWS_AT_ONCE, time.time())
        if batch is None:
            if len(self._rows):
                self._sent_rows = (0, now)  # their time has not come: no need to read them each second
            return
        number, rows = batch
        self._sent_rows = (number, now)
        self.channel.send({"type": "energy", "batch": number, "rows": [vars(row) for row in rows]})

    # --- orders ---------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: FromServer) -> Frame | None:
        """Carry out what came (in the channel's thread); returns the answer."""
        if isinstance(frame, Orders):
            return {"type": "results", "order": frame.order, "results": self._obey(frame)}
        if isinstance(frame, (Freeze, Thaw)):
            return {"type": "results", "order": frame.order, "results": [self._freeze_or_thaw(frame)]}
        if isinstance(frame, EnergyAck):
            self._acknowledged, self._sent_rows = frame.batch, None
        elif isinstance(frame, Told):
            if frame.message != self._misunderstood:
                log.warning("the control plane did not understand a frame of ours: %s", frame.message)
            self._misunderstood = frame.message
        return None

    def _obey(self, orders: Orders) -> list[Frame]:
        with self._gpus_lock:
            enforcer, why = self._enforcer, self._no_gpus or "no GPU driver answers here"
        try:
            self._fence(orders)
        except LeaseError as error:
            enforcer, why = None, str(error)
        undone = dict(orders.wrong)
        if enforcer is None:
            undone = dict.fromkeys([cap.lease_id for cap in orders.set] + list(orders.release), why) | undone
        results = [
            {"lease_id": lease_id, "ok": False, "enforced_w": None, "took_s": 0.0, "error": error}
            for lease_id, error in undone.items()
        ]
        if enforcer is not None:
            sets = self._as_late_as_both_clocks_say(orders)
            results += [vars(result) for result in enforcer.apply(CapOrders(orders.epoch, sets, orders.release))]
        return results

    def _fence(self, order: Orders | Freeze | Thaw) -> None:
        """Raises LateOrder, or what Epochs.see raises: such an order is not obeyed."""
        waited_s = order.stamp.waited_s(time.clock_gettime(time.CLOCK_BOOTTIME))
        if waited_s > LATE_S and not isinstance(order, Thaw):
            raise LateOrder(f"the order was under way for up to {waited_s:.0f} s, so it is not obeyed any more")
        try:
            # Leases write the epoch down before they are granted; what gives power back waits for no disk.
            self._epochs.see(order.epoch, order.stamp.plane, must_write=isinstance(order, Freeze))
        except StaleEpoch as error:
            self._note("epoch", str(error))
            raise

    def _as_late_as_both_clocks_say(self, orders: Orders) -> tuple[SetCap, ...]:
        """The limits to set; those of events with an end stand until that is over by both clocks, the control plane's and ours,
        for one that is ahead must not lift them early."""
        at, waited_s = orders.stamp.at, orders.stamp.waited_s(time.clock_gettime(time.CLOCK_BOOTTIME))
        ahead_s = 0.0 if at is None else at - time.time()
        if -CLOCK_APART_S - waited_s <= ahead_s <= CLOCK_APART_S:
            return orders.set
        where = f"{abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
        self._note(
            "clock", f"the control plane's clock is {where} this node's: limits of events stand until they are over by both"
        )
        more_s = ahead_s if 0 < ahead_s <= CLOCK_MOST_S else 0.0
        return tuple(
            one if one.kind != "event" or one.ttl_s is None else replace(one, ttl_s=one.ttl_s + more_s) for one in orders.set
        )

    def _freeze_or_thaw(self, order: Freeze | Thaw) -> Frame:
        try:
            self._fence(order)
            with self._jobs_lock:
                if isinstance(order, Thaw):
                    return {"ok": True, "processes": self._freezer.thaw(order.job_id), "error": None}
                frozen = self._freezer.freeze(order.job_id, order.ttl_s, order.freeze_max_s)
                return {"ok": True, "processes": len(frozen.processes), "error": None}
        except (FreezeRefused, LeaseError) as error:
            return {"ok": False, "processes": 0, "error": str(error)}


def jobs_on(residents: Residents, idle_state: str) -> list[str] | None:
    """The jobs on a GPU, as they are told. None, not none: the driver did not say who is there, or it says nobody while the GPU
    works, as it does for processes of another container."""
    if residents is None or (not residents and idle_state in ("active", "execution_idle")):
        return None
    return sorted(job for job in residents if job is not None)


def differs(before: Frame | None, now: Frame) -> bool:
    """Whether a live frame says something new: more than figures that moved a little."""
    if before is None:
        return True
    if "leases" in now or any(before[key] != now[key] for key in ("frozen", "alarms")):
        return True
    if [gpu["uuid"] for gpu in before["gpus"]] != [gpu["uuid"] for gpu in now["gpus"]]:
        return True
    return any(_gpu_differs(one, other) for one, other in zip(before["gpus"], now["gpus"]))  # noqa: B905 - not in Python 3.9


def _gpu_differs(one: Frame, other: Frame) -> bool:
    if any(one.get(key) != other.get(key) for key in SUDDEN):
        return True
    states = [None if gpu["cap"] is None else (gpu["cap"]["state"], gpu["cap"]["wanted_w"]) for gpu in (one, other)]
    if states[0] != states[1]:
        return True
    was, now = one["power_w"], other["power_w"]
    if was is None or now is None:
        return bool(was != now)
    return bool(abs(was - now) > max(QUIET_W, QUIET_SHARE * was))


def once() -> dict[str, Any]:
    """What an agent would see here, for people: GPUs with a reading and their processes' jobs; never sets anything."""
    try:
        devices = Devices()  # not as an agent's own: it may be one that looks after them
    except DeviceError as error:
        return {"driver": None, "simulated": False, "gpus": [], "error": str(error)}
    table = ProcessTable()
    table.scan()
    gpus = []
    try:
        for info in devices.infos():
            gpu: dict[str, Any] = {**asdict(info), "reading": None, "processes": None, "error": None}
            try:
                processes = devices.processes(info.uuid)
                owners = table.owners(processes)
                gpu["reading"] = asdict(devices.reading(info.uuid))
                gpu["processes"] = [{**asdict(one), "job_id": owners[one.pid]} for one in processes]
            except DeviceError as error:
                gpu["error"] = str(error)
            gpus.append(gpu)
        return {
            "driver": devices.driver_version,
            "simulated": devices.simulated,
            "gpus": gpus,
            "error": None,
        }
    finally:
        devices.close()
