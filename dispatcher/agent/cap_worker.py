"""One GPU's limit, kept where its leases want it: set, read back, set again, and in the end given back.

Each GPU has a thread of its own, so that a call to the driver that hangs holds up no other GPU. The thread never decides who
may cap; it looks at the lease book, looks at the driver, and makes the second follow the first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, replace

from .devices import (
    DeviceError,
    DeviceInfo,
    DeviceLost,
    Devices,
    DriverBusy,
    HeldByAnother,
    NoDriver,
    NoPermission,
    NotSupported,
    OutOfRange,
)
from .leases import Clock, HeldElsewhere, LeaseBook, LeaseError, Record, limit_in_force, wanted_w

log = logging.getLogger("gridshift.agent")

TOLERANCE_W = 1.0  # drivers round limits
RETRY_S = 0.05  # from one try, or one look, to the next while a limit is being set
LOOK_S = 1.0  # from one look to the next while nothing changes: drift is seen within this
IDLE_LOOK_S = 5.0  # the same for a GPU without leases, whose limit is only reported
SETTLE_S = 0.8  # how long a driver may lag before it is asked again; doubles with each try
FAILED_S = 3.0  # what has not come about by then is called failed (and goes on being tried)
REFUSED_RETRY_S = 10.0  # after a refusal, which trying does not change
CONFIRM_S = 1.5  # a limit given back must have stood this long: an earlier call of ours may still be under way
FIGHT_WINDOW_S = 60.0
FIGHTS = 3  # drifts within the window that mean: another program keeps setting this GPU's limit
FIGHT_PACE_S = 10.0  # it is then put right no more often than this
HANG_S = 2.0


@dataclass(frozen=True)
class CapState:
    """How a GPU stands to its leases. Limits in W; `since` in unix seconds; `detail` is a sentence, empty when all is plain."""

    uuid: str
    wanted_w: float | None
    limit_w: float | None
    enforced_w: float | None
    state: str  # "none" | "setting" | "enforced" | "drifted" | "restoring" | "failed" | "unable"
    since: float
    detail: str


def same_w(one: float | None, other: float | None) -> bool:
    """Whether two limits are the same, a driver's rounding aside."""
    return one is not None and other is not None and abs(one - other) <= TOLERANCE_W


def exactly_w(one: float | None, other: float | None) -> bool:
    """Whether two limits are the same to the milliwatt, in which the driver counts."""
    return one is not None and other is not None and round(one * 1000.0) == round(other * 1000.0)


class GpuWorker:
    """The thread that keeps one GPU's limit. `wake` asks for a look now; `state` is what the last look found."""

    def __init__(self, uuid: str, info: DeviceInfo | None, devices: Devices, book: LeaseBook, clock: Clock) -> None:
        self.uuid = uuid
        self.info = info
        self._devices, self._book, self._clock = devices, book, clock
        self._state = CapState(uuid, None, info.limit_w if info else None, None, "none", clock.wall_s(), "")
        self._changed = threading.Condition()
        self._asked = self._done = 0  # looks asked for, and the last of them that is finished
        self._busy_since: float | None = None
        self._looked_s = self._read_s = float("-inf")  # the last look, and the last time the driver answered one
        self._stopped = False
        # what this thread alone knows
        self._last_set: tuple[float, float] | None = None  # limit asked for, when
        self._asked_w: deque[float] = deque(maxlen=8)  # limits of ours that may still come into effect
        self._before_w: float | None = None  # what the driver showed before it was last asked
        self._tries = 0
        self._goal: tuple[str, float] | None = None
        self._goal_since = 0.0
        self._settled = False
        self._not_before = 0.0
        self._drifts: deque[float] = deque(maxlen=FIGHTS)
        self._put_right_s = float("-inf")
        self._default_w: float | None = None  # the limit that the GPU starts with, once it was told
        self._fallback_w: float | None = None
        self._rounded_w: float | None = None  # what the driver made of the limit now wanted, where that is not the same
        self.refused: str | None = None  # why the driver will not set the limit now wanted, whatever is tried
        self.drift_note: tuple[float, str] | None = None
        self._thread = threading.Thread(target=self._run, name=f"caps {uuid[:12]}", daemon=True)

    # -- for other threads

    def start(self) -> None:
        """Starts the thread, which takes up what the book says at once."""
        self._thread.start()

    def wake(self, new_order: bool = False) -> int:
        """Asks for a look now; gives the number to wait for."""
        with self._changed:
            self._asked += 1
            if new_order:
                self._not_before = 0.0
            self._changed.notify_all()
            return self._asked

    def wait(self, number: int, until_s: float, settled: bool = False) -> bool:
        """Waits, to `until_s` on time.monotonic, for that look to end; with `settled`, until the limit no longer moves."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._done >= number and not (settled and self.moving()), max(0.0, until_s - time.monotonic())
            )

    def moving(self) -> bool:
        """Whether the limit is still on its way to where it should be."""
        state = self._state.state
        return self.refused is None and (state == "setting" or (state == "restoring" and not self._settled))

    def stale(self, age_s: float) -> bool:
        """Whether the last look is older than this."""
        return time.monotonic() - self._looked_s > age_s

    def busy_s(self) -> float:
        """For how long the look that goes on now has been going on; 0 between looks."""
        since = self._busy_since
        return time.monotonic() - since if since is not None else 0.0

    def state(self) -> CapState:
        """What the last look found, or that the driver does not come back from it."""
        hung_s, state = self.busy_s(), self._state
        if hung_s < HANG_S:
            return state
        said = f"a call to the driver has not come back for {hung_s:.0f} s: what this GPU's limit is now is not known"
        return replace(state, limit_w=None, enforced_w=None, state="failed", since=self._clock.wall_s() - hung_s, detail=said)

    def stop(self, wait_s: float = 0.5) -> None:
        """Ends the thread; what stands goes on standing. A thread that hangs in the driver is left behind."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    # -- the thread

    def _run(self) -> None:
        delay_s = 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or self._asked > self._done, delay_s)
                if self._stopped:
                    return
                number, self._busy_since = self._asked, time.monotonic()
            try:
                delay_s = self._look()
            except Exception as error:
                log.exception("GPU %s: keeping its limit failed", self.uuid)
                self._publish("failed", f"keeping the limit failed: {error}")
                delay_s = LOOK_S
            with self._changed:
                self._busy_since, self._done, self._looked_s = None, number, time.monotonic()
                self._changed.notify_all()

    def _look(self) -> float:
        """One look: expire, read, compare, ask for a limit at most once. Gives the seconds to the next."""
        try:
            self._book.hold(self.uuid)
        except LeaseError as error:
            self.refused = str(error)
            self._publish("unable", str(error), wanted_w=None)
            return LOOK_S if isinstance(error, HeldElsewhere) else REFUSED_RETRY_S
        boot_s = self._clock.boot_s()
        self._book.expire(boot_s, self.uuid)
        record = self._book.record(self.uuid)
        if record.empty:
            return self._rest()
        try:
            return min(self._follow(record, boot_s), _to_next_end_s(record, boot_s))
        except LeaseError as error:
            self._publish("failed", str(error))
        except (NoPermission, NotSupported, HeldByAnother) as error:
            self.refused = str(error)
            self._not_before = time.monotonic() + (LOOK_S if isinstance(error, HeldByAnother) else REFUSED_RETRY_S)
            back = self._goal is not None and self._goal[0] == "restore"
            self._publish("failed" if back else "unable", f"the limit cannot be given back: {error}" if back else str(error))
        except (DeviceLost, NoDriver) as error:
            self._publish("failed", str(error))
            self._start_over()
        except OutOfRange as error:
            self._out_of_range(error)
        except DeviceError as error:
            return self._again(str(error))
        return LOOK_S

    def _rest(self) -> float:
        """No lease stands and nothing is to be given back: the limit is none of ours."""
        self._start_over()
        self._fallback_w = None
        if self._state.state != "none" or time.monotonic() - self._read_s >= IDLE_LOOK_S:
            self._read_s = time.monotonic()
            try:
                limit_w, enforced_w = self._devices.limits(self.uuid)
            except DeviceError as error:
                self._publish("none", str(error), wanted_w=None, limit_w=None, enforced_w=None)
            else:
                self._publish("none", "", wanted_w=None, limit_w=limit_w, enforced_w=enforced_w)
        return IDLE_LOOK_S

    def _start_over(self) -> None:
        """Forgets what was under way."""
        self._goal, self._settled, self._last_set, self._tries, self.refused = None, False, None, 0, None

    def _follow(self, record: Record, boot_s: float) -> float:
        limit_w, enforced_w = self._devices.limits(self.uuid)
        self._read_s = time.monotonic()
        if record.leases and record.saved_w is None and not record.restore_default:
            self._book.save_limit(self.uuid, limit_w)
            record = self._book.record(self.uuid)
        if self.info is not None and self.info.default_w is not None:
            self._default_w = self.info.default_w
        elif self._default_w is None:  # of this GPU alone: another one may hang
            self._default_w = self._devices.default_w(self.uuid)
        wanted = wanted_w(record, boot_s, self._default_w)
        if wanted is None:
            self._publish("failed", "what to give back is lost, and the driver tells no default limit", limit_w=limit_w)
            return LOOK_S
        capped = limit_in_force(record.leases, boot_s) is not None
        if not capped and self._fallback_w is not None:
            wanted = self._fallback_w
        self._aim("cap" if capped else "restore", wanted)
        now_s = time.monotonic()
        if not capped and self._settled and not same_w(limit_w, wanted) and not any(same_w(limit_w, w) for w in self._asked_w):
            return self._given_back(limit_w, enforced_w, "somebody set another limit since")
        if self._stands(wanted, limit_w, enforced_w):
            return self._stood(capped, wanted, limit_w, enforced_w, now_s)
        return self._put(capped, wanted, limit_w, enforced_w, now_s)

    def _aim(self, kind: str, limit_w: float) -> None:
        if self._goal != (kind, limit_w):
            self._goal, self._goal_since = (kind, limit_w), time.monotonic()
            self._settled, self._tries, self.refused, self._rounded_w = False, 0, None, None
            self._put_right_s = float("-inf")

    def _stands(self, wanted: float, limit_w: float, enforced_w: float) -> bool:
        """Whether the driver says what is wanted and no other limit of ours may still be under way."""
        overtaken = self._last_set is not None and not exactly_w(self._last_set[0], wanted)
        if overtaken or not same_w(limit_w, wanted) or enforced_w > wanted + TOLERANCE_W:
            return False
        if exactly_w(limit_w, wanted):
            return True
        if self._rounded_w is None and self._last_set is not None and not self._in_flight(wanted, time.monotonic()):
            self._rounded_w = limit_w  # it was asked for, had its time, and this is as near as the driver comes
        return exactly_w(limit_w, self._rounded_w)

    def _stood(self, capped: bool, wanted: float, limit_w: float, enforced_w: float, now_s: float) -> float:
        self._settled, self._tries, self.refused = True, 0, None
        if capped:
            lower = enforced_w < wanted - TOLERANCE_W
            said = f"{enforced_w:g} W is enforced, lower than the {wanted:g} W set: a limit from outside (BMC)" if lower else ""
            self._publish("enforced", said, wanted_w=wanted, limit_w=limit_w, enforced_w=enforced_w)
            return LOOK_S
        since_s = now_s - max(self._goal_since, self._last_set[1] if self._last_set else 0.0)
        if since_s >= CONFIRM_S:
            return self._given_back(limit_w, enforced_w, "")
        said = f"back at {limit_w:g} W; watched for a moment"
        self._publish("restoring", said, wanted_w=wanted, limit_w=limit_w, enforced_w=enforced_w)
        return 2 * RETRY_S

    def _given_back(self, limit_w: float, enforced_w: float, said: str) -> float:
        if not self._book.forget(self.uuid):
            return 0.0
        self._start_over()
        self._fallback_w = None
        self._asked_w.clear()
        self._publish("none", said, wanted_w=None, limit_w=limit_w, enforced_w=enforced_w)
        return IDLE_LOOK_S

    def _put(self, capped: bool, wanted: float, limit_w: float, enforced_w: float, now_s: float) -> float:
        known = [*self._asked_w, *([self._before_w] if self._before_w is not None else [])]
        foreign = self._in_flight(wanted, now_s) and not any(same_w(limit_w, w) for w in known)
        if self._settled or foreign:  # it stood and does not any more, or shows what nobody here asked for
            self._settled, self._goal_since = False, now_s
            self._drifts.append(now_s)
            said = f"something set this GPU's limit to {limit_w:g} W while {wanted:g} W was ours; it is put right"
            self.drift_note = (now_s, said)
            log.warning("GPU %s: %s", self.uuid, said)
            self._last_set = None
        fighting = len(self._drifts) == FIGHTS and now_s - self._drifts[0] <= FIGHT_WINDOW_S
        if fighting and now_s - self._put_right_s < FIGHT_PACE_S and not self._in_flight(wanted, now_s):
            said = (
                f"another program keeps setting this GPU's limit, last to {limit_w:g} W ({wanted:g} W is ours): "
                f"put right each {FIGHT_PACE_S:g} s"
            )
            self.drift_note = (now_s, said)
            self._publish("drifted", said, wanted_w=wanted, limit_w=limit_w, enforced_w=enforced_w)
            return LOOK_S
        if self.refused is not None and now_s < self._not_before:
            return LOOK_S
        if self._in_flight(wanted, now_s):
            return self._again("", wanted, limit_w, enforced_w)
        if self._stopped:  # the GPU may be another agent's by now
            return LOOK_S
        self._asked_w.append(wanted)
        self._put_right_s, self._before_w = now_s, limit_w
        try:
            self._devices.set_limit(self.uuid, wanted)
        except DriverBusy:
            self._devices.set_limit(self.uuid, wanted)
        self._last_set = (wanted, time.monotonic())
        self._tries += 1
        limit_w, enforced_w = self._devices.limits(self.uuid)
        if self._stands(wanted, limit_w, enforced_w):
            return self._stood(capped, wanted, limit_w, enforced_w, time.monotonic())
        return self._again("", wanted, limit_w, enforced_w)

    def _in_flight(self, wanted: float, now_s: float) -> bool:
        """Whether the driver took this limit a moment ago and may not show it yet; asking again could start its lag anew."""
        if self._last_set is None or not exactly_w(self._last_set[0], wanted):
            return False
        return now_s - self._last_set[1] < SETTLE_S * 2.0 ** max(0, min(self._tries - 1, 5))

    def _again(
        self, error: str, wanted: float | None = None, limit_w: float | None = None, enforced_w: float | None = None
    ) -> float:
        """Not there yet: says so and gives the seconds to the next look, short at first."""
        kind, aim_w = self._goal or ("cap", 0.0)
        # a limit that stands, in a driver that does not answer for the moment, goes on standing
        since_s = self._read_s if self._settled else self._goal_since if self._goal else time.monotonic()
        trying_s = time.monotonic() - since_s
        if trying_s < FAILED_S:
            doing = "setting" if kind == "cap" else "restoring"
            state = "enforced" if self._settled and kind == "cap" else doing
            self._publish(state, error, wanted_w=wanted, limit_w=limit_w, enforced_w=enforced_w, keep=True)
            return RETRY_S if trying_s < 10 * RETRY_S else 2 * RETRY_S
        shown = f"; the driver shows {limit_w:g} W, {enforced_w:g} W enforced" if limit_w is not None else ""
        said = f"{aim_w:g} W is not read back after {trying_s:.0f} s{shown}{'; ' + error if error else ''}; tried again"
        self._publish("failed", said, wanted_w=wanted, limit_w=limit_w, enforced_w=enforced_w, keep=True)
        return LOOK_S

    def _out_of_range(self, error: OutOfRange) -> None:
        default_w = self._default_w
        if self._goal and self._goal[0] == "restore" and default_w is not None and self._fallback_w is None:
            self._fallback_w = default_w
            self._publish("restoring", f"{error}; the default limit, {default_w:g} W, is set instead")
            return
        self.refused = str(error)
        self._publish("failed", str(error))

    def _publish(
        self,
        state: str,
        detail: str,
        wanted_w: float | None = None,
        limit_w: float | None = None,
        enforced_w: float | None = None,
        keep: bool = False,
    ) -> None:
        old = self._state
        if keep:
            limit_w = old.limit_w if limit_w is None else limit_w
            enforced_w = old.enforced_w if enforced_w is None else enforced_w
        if wanted_w is None and state != "none" and self._goal:
            wanted_w = self._goal[1]
        since = old.since if old.state == state else self._clock.wall_s()
        if detail and detail != old.detail and state in ("failed", "unable"):
            log.warning("GPU %s: %s", self.uuid, detail)
        with self._changed:
            self._state = CapState(self.uuid, wanted_w, limit_w, enforced_w, state, since, detail)


def _to_next_end_s(record: Record, boot_s: float) -> float:
    """Seconds to the next end of a lease, so that it is seen even when nobody asks for a look."""
    ends = [lease.ends_boot_s - boot_s for lease in record.leases if lease.ends_boot_s is not None]
    return max(0.0, min(ends, default=float("inf")))
