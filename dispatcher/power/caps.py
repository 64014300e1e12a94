"""The power loop: each second, which leases should stand on the GPUs, and orders for what differs from what stands.

Economic leases last a minute and are renewed three times as often; event leases carry the event's end, so that silence of ours
neither lifts nor prolongs them. What should stand is decided in cap_wishes; how a GPU is capped is its agent's matter.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from dispatcher.config import Config
from dispatcher.power.cap_wishes import (
    LEAST_MARGIN,
    OURS,
    Draw,
    Emergency,
    Limit,
    Trouble,
    Wish,
    as_they_stand,
    coming_back,
    lease_id,
    on_guards,
    on_limits,
    on_plan,
)
from dispatcher.power.emergency import Note, ServedDraws, Steps, Taking
from dispatcher.power.hub import CapOrder, CapResult, GpuLive, Hub, NodeLive, Release
from dispatcher.power.lowest import lowest_draws
from dispatcher.power.tuned_caps import TunedCap, on_tuned
from dispatcher.store import OWN_SOURCE
from policies.cap_model import PLANNED_CAPS, Learned, Observation, common_points, usual_draw
from policies.world import PLACED, Budget, CapPoint, JobState, JobView, RegionView, World

log = logging.getLogger(__name__)

#: Life of an economic lease and time between its renewals, wall s.
ECONOMIC_S, RENEW_S = 60.0, 20.0
#: An order that did not succeed, or is not enforced, is sent again after this, and told of; wall s.
RETRY_S = 5.0
#: How long before a limit begins its caps are sent: a GPU takes a second or two to get there. Wall s.
LEAD_S = 5.0
#: A cap is raised, or lowered, only by at least these shares of the default limit: draws are noisy, and every order costs. What
#: is not lowered is less than what limits are kept below by.
RAISE, LOWER = 0.01, 0.005
#: Smaller raises are made, all together, where they add up to this share of all caps and no cap has moved for so long, wall s.
RAISE_ALL, RAISE_ALL_S = 0.002, 60.0
#: A job that has run for less, wall s, may not draw yet what it will.
SETTLING_S = 60.0
#: How fast a remembered uncapped draw follows a lower one, each second.
FALL = 0.02
#: A GPU that draws less than this share of its limit is not held by it.
BINDS = 0.8
#: How fast what held GPUs leave undrawn is followed, each second, and the most of it that is given to them on top.
FOLLOW, MOST_UNUSED = 0.05, 0.08
#: How that is taken back when more is drawn than a limit allows, and given again while it is not; a share each second.
TAKE_BACK, GIVE_AGAIN = 0.25, 0.02
#: A cap whose own end moves by less than this, s, is not ordered again for that.
STAYS_S = 60.0
#: For so long, wall s, a GPU that is not free keeps the jobs that were last seen on it, and a job whose agent is silent counts
#: with the caps that could be set: who is there is not told at every look, and connections come back.
UNSEEN_S = 10.0
#: For so long, wall s, an event's cap that is not needed any more stays: draws are noisy, and load that has only just come or
#: gone may need it again at once.
LET_GO_S = 10.0
#: Wall s between two observations of one job.
OBSERVE_S = 60.0
#: For so long after a start, wall s, agents that were there before are waited for: they connect again within 13 s of the
#: moment at which they can, and tell at the next look or two who is on which GPU.
HEAR_S = 30.0
#: For so long after it was in force, wall s, an event is remembered: longer than load comes back after one.
FORGET_S = 2 * 86400.0
#: The cap of a job for which none is planned.
UNPLANNED = (1.0, None)


@dataclass(slots=True)
class _Sent:
    """An order as it was last sent (wall s of our own clock), what its agent said, and the limits that were ordered before
    under this name, as far as they say what must be held by now: (when, W), the last one too."""

    wish: Wish
    at_mono: float
    told: tuple[tuple[float, float], ...]
    ok: bool | None = None
    error: str = ""

    def owed_w(self, mono: float) -> float | None:
        """What a GPU must hold by now, W: the highest limit of the last RETRY_S, for a newer one takes its time too. None while
        the first order is younger than that."""
        if mono - self.told[0][0] < RETRY_S:
            return None
        return max(limit_w for _, limit_w in _recent(self.told, mono))


def _recent(told: tuple[tuple[float, float], ...], mono: float) -> tuple[tuple[float, float], ...]:
    """The limits that were in force as ordered within the last RETRY_S."""
    first = 0
    while first + 1 < len(told) and mono - told[first + 1][0] >= RETRY_S:
        first += 1
    return told[first:]


class CapLoop:
    """See the module. ``power`` is one loop's; everything else is thread-safe."""

    def __init__(
        self,
        config: Config,
        hub: Hub,
        *,
        speed: float = 1.0,
        mono: Callable[[], float] = time.monotonic,
        note: Note = lambda step: None,
    ) -> None:
        """``speed`` is how many seconds of the control plane's clock pass in one of the wall's: leases count the latter.
        ``note`` is told what is taken from serving in an emergency, and given back."""
        self._hub, self._speed, self._mono = hub, speed, mono
        self._branches = {
            region.name: {one.name: one.power_limit_w for one in region.branches if one.power_limit_w > 0}
            for region in config.regions
        }
        self._serving = {region.name: region.serving for region in config.regions if region.serving}
        gpu_power_w = config.planning.default_gpu_power_w
        #: The floors, W at the meter, of the serving that is capped in an emergency, by region and name.
        self._floors_w = {
            region.name: {one.name: one.always_w(gpu_power_w, region.pue) for one in region.serving if one.allow_emergency}
            for region in config.regions
        }
        self._served, self._steps, self._note = ServedDraws(), Steps(), note
        self._beside_w: Mapping[str, float] = {}
        #: By how much more than expected batch draws, W at the meter, as an emergency has shown, and since when (mono s) it is
        #: known or nothing is missing, by region.
        self._understated: dict[str, tuple[float, float]] = {}
        self._served_w: Mapping[str, Mapping[str, float]] = {}
        self.learned = Learned()
        #: The caps that interactive serving of a region is to have, by GPU.
        self.tuned: Callable[[str], Mapping[str, TunedCap]] = lambda region: {}
        #: What jobs draw at the lowest caps that they accept and that can be set now, W at the GPUs, by id.
        self.lowest_w: Mapping[str, float] = {}
        self._unheld: set[tuple[str, str]] = set()
        #: Since when, mono s, the agents of placed jobs are silent, by job id.
        self._lost: Mapping[str, float] = {}
        #: By region, how far what GPUs leave undrawn of their limits may be given to them, 0 to 1.
        self._trust: dict[str, float] = {}
        self._started_mono = mono()
        self._heard: set[str] = set()
        self._lock = threading.Lock()
        self._planned: dict[str, tuple[float, datetime]] = {}
        self._ran_under: dict[str, tuple[float, float]] = {}
        # By region and GPU: what one region's agents say of a GPU must change nothing in another.
        self._draws: dict[tuple[str, str], Draw] = {}
        #: When GPUs were last seen free (mono s), and what they drew then, W.
        self._idle: dict[tuple[str, str], tuple[float, float]] = {}
        self._unseen: dict[tuple[str, str], float] = {}
        self._first_told: dict[tuple[str, str], float] = {}
        self._observed: dict[str, float] = {}
        self._sent: dict[tuple[str, str], _Sent] = {}
        self._released: dict[tuple[str, str], float] = {}
        #: Since when event leases are not needed, while their event goes on.
        self._needless: dict[tuple[str, str], float] = {}
        #: Limits of events that were in force, by region and key: start and end as they were then, and when that was (mono s).
        self._in_force: dict[tuple[str, str], tuple[datetime, datetime | None, float]] = {}
        #: Those of them that are over by our clock alone: nobody has taken them back.
        self._over_by_clock: set[tuple[str, str]] = set()
        self._moved_mono = -math.inf
        self._points: Mapping[str, tuple[CapPoint, ...]] = {}
        self._troubles: tuple[Trouble, ...] = ()
        self._type_of: dict[str, str] = {}
        self._answers: deque[CapResult] = deque()

    # --- what others ask ----------------------------------------------------------------------------------------------

    def points(self, region: str) -> tuple[CapPoint, ...]:
        """The caps that can be set on all GPUs of a region, as a plan may use them; none while an agent there cannot."""
        return self._points.get(region, ())

    def unheard(self, region: str) -> bool:
        """Whether it is not known yet, shortly after a start, what the agents of a region hold and can do."""
        if region in self._heard or self._mono() - self._started_mono >= HEAR_S:
            return False
        return self._hub.awaits(region) or any(node.region == region for node in self._hub.nodes())

    def beside_w(self, region: str) -> float:
        """What GPUs without jobs draw in a region, and jobs beyond what is expected of them, W at the meter, while the site is
        in an emergency in which serving may be capped, whose GPUs count without those caps: so that batch gives before it and
        comes back after it. 0 otherwise."""
        return self._beside_w.get(region, 0.0)

    def uncapped(self, nodes: Iterable[NodeLive]) -> list[NodeLive]:
        """Nodes with what their GPUs of serving would draw without the caps of an emergency."""
        return [self._uncapped(node, self._served_w.get(node.region)) for node in nodes]

    @staticmethod
    def _uncapped(node: NodeLive, full_w: Mapping[str, float] | None) -> NodeLive:
        if not full_w or not any(gpu.uuid in full_w for gpu in node.gpus):
            return node
        gpus = (replace(g, power_w=max(g.power_w or 0.0, full_w[g.uuid])) if g.uuid in full_w else g for g in node.gpus)
        return replace(node, gpus=tuple(gpus))

    def launched(self, job_id: str, cap: float, now: datetime) -> None:
        """A job is launched to run under this cap (1: none)."""
        if cap < 1.0:
            self._planned[job_id] = (cap, now)
        else:
            self._planned.pop(job_id, None)

    def cap_of(self, job_id: str) -> float:
        """The cap that a placed job runs under by the plan; 1 without one."""
        return self._planned.get(job_id, (1.0, None))[0]

    def uncapped_s(self, job_id: str, group: str, run_s: float, usual_s: float | None) -> float:
        """How long a job that has just ended would have run without a cap. What that says of its group is learned, where it ran
        under one cap throughout and ``usual_s`` (the run time of the group's others) is known."""
        low, high = self._ran_under.pop(job_id, (1.0, 1.0))
        self._observed.pop(job_id, None)
        if high >= 1.0:
            return run_s
        gpu_type = self._type_of.get(job_id)
        if usual_s is not None and low == high and run_s > 0 and 0.3 < usual_s / run_s < 1.2:
            seen = Observation(low, low, min(1.0, usual_s / run_s), noise=0.1)
            with self._lock:
                self.learned.observe(group, gpu_type, seen)
        with self._lock:
            return run_s * self.learned.curve(group, gpu_type).at((low + high) / 2)[0]

    def alarms(self, _: datetime) -> list[tuple[str, str | None, str]]:
        """(key, region, sentence) of limits that caps cannot keep, and of caps that are not enforced."""
        return [(one.key, one.region, one.sentence) for one in self._troubles]

    # --- the loop -----------------------------------------------------------------------------------------------------

    def power(self, world: World, now: datetime) -> None:
        """One round: look, decide, send what differs."""
        try:
            self._round(world, now)
        except Exception:
            self.lowest_w = {}  # what caps can do is not known then, and nobody may count on it
            raise

    def _round(self, world: World, now: datetime) -> None:
        nodes: dict[str, list[NodeLive]] = {}
        jobs = {job.id: job for job in world.jobs}
        for node in self._hub.nodes():
            nodes.setdefault(node.region, []).append(self._spared(self._as_known(node, jobs)))
        with self._lock:
            self._take_answers()
            draws = {region: self._look(here, jobs) for region, here in nodes.items()}
            self._forget_gpus(nodes)
            planned = self._plan_caps(world, nodes)
            self._points = self._offered(nodes)
            wishes: list[Wish] = []
            troubles: list[Trouble] = []
            events: dict[str, list[str]] = {}
            taking: list[Taking] = []
            beside_w, served_w = dict[str, float](), dict[str, Mapping[str, float]]()
            self._note_in_force(world, nodes, now)
            for view in world.regions:
                here = nodes.get(view.name)
                if not here:
                    continue  # without agents nothing can be capped; holding and pausing are the control loop's
                limits, branches = self._limits(view, world, now), self._branches.get(view.name, {})
                trust = self._trusted(view, here, limits)
                events[view.name] = [one.key for one in limits if one.kind == "event"]
                floors_w = self._floors_w.get(view.name, {})
                full_w = self._served.look(here) if floors_w else {}
                takes = Taking(view, here, world, floors_w, full_w, self.learned)
                try:
                    around = (branches, draws[view.name], self.learned, trust, full_w, takes.take)
                    made, told = on_limits(view, here, jobs, limits, *around)
                    wishes += [*takes.wishes, *made, *on_plan(here, jobs, planned), *as_they_stand(here, jobs, limits, planned)]
                    wishes += on_guards(view, here, jobs, draws[view.name], self.learned)
                    wishes += on_tuned(here, self.tuned(view.name))
                    wishes += self._coming_back(view, here, jobs, world, now)
                    troubles += told
                    if floors_w:
                        taking.append(takes)
                        served_w[view.name] = full_w
                        in_danger = any(one.emergency is not None and one.branch is None for one in limits)
                        if in_danger:
                            beside_w[view.name] = takes.beside_w() + self._understated_w(takes)
                        else:
                            self._understated.pop(view.name, None)
                except Exception as error:
                    # One region must not cost the others their caps; there, what stands goes on until its own end.
                    log.exception("the caps of %s cannot be worked out", view.name)
                    sentence = f"the caps of {view.name} cannot be worked out ({error}); those that stand go on until they end"
                    troubles.append(Trouble(f"caps of {view.name}", view.name, sentence))
                    del nodes[view.name]
            orders, releases = self._differences(wishes, nodes, now, self._lingering(wishes, nodes, jobs, events))
        if orders or releases:
            self._hub.order_caps(orders, releases).add_done_callback(self._answered)
        self._beside_w, self._served_w = beside_w, served_w
        self._tell(taking, events)
        asked = (Trouble(f"serving {region} {name} emergency", region, told) for region, name, told in self._steps.sentences())
        self._troubles = (*troubles, *asked, *self._not_enforced(nodes))
        self._note_lowest(nodes, jobs, draws)  # last: the orders do not wait for it

    def _understated_w(self, takes: Taking) -> float:
        """By how much batch at its least draws more than it is expected to, W at the meter: what has long been missing though
        jobs could give, which are asked by what their owners state. It stands while the emergency lasts: those that have given
        for it must not come back by what they state either."""
        mono, region = self._mono(), takes.view.name
        known_w, since = self._understated.get(region, (0.0, mono))
        if takes.unmet_w > 0 and mono - since >= RETRY_S:
            known_w, since = known_w + max(takes.unmet_w, known_w), mono  # until somebody is asked
        elif takes.unmet_w <= 0:
            since = mono
        self._understated[region] = (known_w, since)
        return known_w

    def _tell(self, taking: Iterable[Taking], events: Mapping[str, Sequence[str]]) -> None:
        """Have each step noted that serving gives, or gets back."""
        for takes in taking:
            region = takes.view.name
            for step in self._steps.note(takes, events.get(region, ())):
                log.info("%s: %s", region, step.sentence)
                try:
                    self._note(step)
                except Exception:  # caps must not wait for a history that cannot be written
                    log.exception("the history of serving %s", step.serving)

    def _note_lowest(
        self, nodes: Mapping[str, list[NodeLive]], jobs: Mapping[str, JobView], draws: Mapping[str, Mapping[str, Draw]]
    ) -> None:
        """Remember what caps can do for each job now, and which regions' agents have all been heard."""
        mono = self._mono()
        lowest_w: dict[str, float] = {}
        heard, lost = set[str](), dict[str, float]()
        for region, here in nodes.items():
            unheld = {uuid for name, uuid in self._unheld if name == region}
            with self._lock:
                lowest_w |= lowest_draws(here, jobs, draws[region], self.learned, unheld)
            silent = (gpu.uuid for node in here if not node.connected for gpu in node.gpus)
            for job_id in {job_id for uuid in silent if uuid in draws[region] for job_id in draws[region][uuid].jobs}:
                # A connection is often back within a moment: nobody is asked to pause for that.
                lost[job_id] = self._lost.get(job_id, mono)
                if mono - lost[job_id] < UNSEEN_S and job_id in self.lowest_w:
                    lowest_w[job_id] = self.lowest_w[job_id]
            told = all(node.connected and all(gpu.jobs is not None for gpu in node.gpus) for node in here)
            if told and not self._hub.awaits(region):
                heard.add(region)
        self._lost, self.lowest_w = lost, lowest_w
        self._heard |= heard  # after what was heard: who sees this may count on that

    def _note_in_force(self, world: World, nodes: Mapping[str, list[NodeLive]], now: datetime) -> None:
        """Remember which limits of events are in force, and see which of those that were are over by our clock alone.

        Our clock may be the one that is wrong, or be set at any time: what was in force does not become what has not begun, and
        only who asked for a limit takes it back. One that is over ends with its leases, which agents count by their own clocks.
        """
        budgets = [*world.budgets, *world.branch_budgets]
        there = {(one.region, _key(one), one.start): one for one in budgets}
        mono, soon = self._mono(), now + timedelta(seconds=LEAD_S * self._speed)
        for budget in budgets:
            place = (budget.region, _key(budget))
            if budget.is_over(now):
                continue
            known = place in self._in_force
            # One that we know of no start of, and whose leases stand, has begun by the clock of a control plane before us.
            if budget.start <= soon or self._has_begun(budget) or (not known and _stands(place[1], nodes.get(place[0], ()))):
                self._in_force[place] = (budget.start, budget.end, mono)
        self._over_by_clock = set()
        for place, (start, end, at_mono) in list(self._in_force.items()):
            same = there.get((*place, start))
            if same is not None and not same.is_over(now):
                continue
            if end is not None and end <= now and (same is None or same.end == end):
                self._over_by_clock.add(place)
            if mono - at_mono > FORGET_S:
                del self._in_force[place]

    def _has_begun(self, budget: Budget) -> bool:
        known = self._in_force.get((budget.region, _key(budget)))
        return known is not None and known[0] == budget.start

    def _limits(self, view: RegionView, world: World, now: datetime) -> list[Limit]:
        """The limits in force on a region, and those about to be. Events count together with what stands anyway."""
        standing_w = view.power_limit_w if view.power_limit_w is not None else math.inf
        limits = []
        if math.isfinite(standing_w) or self._branches.get(view.name):
            limits.append(Limit("site limit", "economic", standing_w, None, "site limit"))
        for budget in (*world.budgets, *world.branch_budgets):
            if budget.region == view.name and self._has_begun(budget) and not budget.is_over(now):
                limit_w = budget.limit_w if budget.branch is not None else min(budget.limit_w, standing_w)
                event = (budget.source or OWN_SOURCE, budget.of_event or budget.event_id)
                danger = Emergency(budget.limit_w, *event) if budget.emergency else None
                last = (budget.end, budget.why, budget.branch, budget.recovery_s or 0.0, danger)
                limits.append(Limit(_key(budget), "event", limit_w, *last))
        return limits

    def _coming_back(
        self, view: RegionView, nodes: list[NodeLive], jobs: Mapping[str, JobView], world: World, now: datetime
    ) -> list[Wish]:
        """Caps of events that have ended a short while ago: each stays until its own turn to be let go of."""
        ended: dict[str, datetime] = {}
        for budget in (*world.budgets, *world.branch_budgets):
            if budget.region == view.name and budget.end is not None and budget.way_back(now) is not None:
                ended[_key(budget)] = budget.end
        wishes = []
        for wish in coming_back(nodes, jobs, ended) if ended else ():
            sent = self._sent.get((wish.node_id, wish.lease_id))
            ours = wish if sent is None else wish._replace(stays_s=sent.wish.stays_s)
            if wish.ends_at is not None and now - timedelta(seconds=ours.stays_s) < wish.ends_at:
                wishes.append(ours)
        return wishes

    def _trusted(self, view: RegionView, nodes: list[NodeLive], limits: Iterable[Limit]) -> float:
        """How far GPUs may be given what they leave undrawn: more with each second in which the site's limit is kept, as far as
        that is measured, and less with each in which it is not."""
        limit_w = min((one.limit_w for one in limits if one.branch is None), default=math.inf)
        if not math.isfinite(limit_w):
            self._trust.pop(view.name, None)
            return 0.0
        drawn_w = view.bypass_w + view.pue * sum(gpu.power_w or 0.0 for node in nodes for gpu in node.gpus)
        trust = self._trust.get(view.name, 0.0)
        trust += -TAKE_BACK if drawn_w > limit_w * (1.0 - LEAST_MARGIN / 2) else GIVE_AGAIN
        self._trust[view.name] = min(1.0, max(0.0, trust))
        return self._trust[view.name]

    def _as_known(self, node: NodeLive, jobs: Mapping[str, JobView]) -> NodeLive:
        """A node as it is to be decided on. What it does not tell is not nothing: one that has only just connected counts as
        silent, and a GPU keeps the jobs that run on and were there: for as long as its agent does not know who is there, for a
        while where nobody of ours is seen and it is at work. Else a restart of ours or of an agent, or looks that fail, would
        let go of an event's caps."""
        if not node.connected or not node.told:
            return replace(node, connected=False) if node.connected else node
        kept = {}
        for gpu in node.gpus:
            place = (node.region, gpu.uuid)
            known = self._draws.get(place)
            if gpu.jobs or known is None or gpu.idle_state == "deep_idle":
                if self._unseen:
                    self._unseen.pop(place, None)
            elif all(job_id in jobs and jobs[job_id].state in PLACED for job_id in known.jobs):
                mono = self._mono()
                if gpu.jobs is None or mono - self._unseen.setdefault(place, mono) < UNSEEN_S:
                    kept[gpu.uuid] = known.jobs
        if not kept:
            return node  # as nearly always; there may be thousands
        return replace(node, gpus=tuple(replace(gpu, jobs=kept.get(gpu.uuid, gpu.jobs)) for gpu in node.gpus))

    def _spared(self, node: NodeLive) -> NodeLive:
        """A node with the GPUs marked that interactive serving has there: those it names, else those at others' work."""
        there = [one for one in self._serving.get(node.region, ()) if one.may_be_on(node.hostname, node.branch)]
        if not there:
            return node
        marked = []
        for gpu in node.gpus:
            named = (one for one in there if (gpu.uuid in one.gpu_uuids if one.gpu_uuids else bool(gpu.protected)))
            has = next(named, None)
            marked.append(gpu if has is None else replace(gpu, serving=has.name, yields=has.allow_emergency))
        return replace(node, gpus=tuple(marked))

    def _forget_gpus(self, nodes: Mapping[str, list[NodeLive]]) -> None:
        """Drop what is remembered of GPUs that no node has any more."""
        there = {(node.region, gpu.uuid) for some in nodes.values() for node in some for gpu in node.gpus}
        for place in self._draws.keys() - there:
            del self._draws[place]
        self._served.forget(nodes)
        for table in (self._unseen, self._first_told, self._idle):
            for place in table.keys() - there:
                del table[place]

    def _look(self, nodes: Iterable[NodeLive], jobs: Mapping[str, JobView]) -> dict[str, Draw]:
        """What each GPU of a region with jobs on it draws uncapped, by uuid; of a silent node, as last known."""
        mono, found, shares = self._mono(), dict[str, Draw](), set[tuple[str, float]]()
        frozen = {job_id for job_id, job in jobs.items() if job.frozen_at is not None}
        for node in nodes:
            for gpu in node.gpus:
                place = (node.region, gpu.uuid)
                uuid, on_it, power_w, default_w = gpu.uuid, gpu.jobs or (), gpu.power_w, gpu.default_w
                known = self._draws.get(place)
                if not node.connected:
                    at_mono, drew_w = self._idle.get(place, (-math.inf, 0.0))
                    if known is None and mono - at_mono < UNSEEN_S:  # a connection is often back within a moment
                        known = Draw((), at_mono, drew_w)
                    if known is not None:
                        found[uuid] = known
                    continue
                if not on_it:
                    self._draws.pop(place, None)
                    if power_w is not None:
                        self._idle[place] = (mono, power_w)
                    continue
                self._idle.pop(place, None)
                held = power_w is not None and _is_held(gpu, power_w, node)
                if known is None or known.jobs != on_it:
                    # One that is held already may draw anything more: to take its owner's word could lift the cap.
                    full_w = max(self._expected_w(gpu, jobs), (default_w or 0.0) if held else 0.0)
                    known = self._draws[place] = Draw(on_it, mono, full_w)
                if frozen and power_w is not None and frozen.issuperset(on_it):
                    found[uuid] = Draw(on_it, mono, power_w)  # what they draw at work is remembered, not learned from
                    continue
                found[uuid] = known
                if power_w is not None:
                    settled = mono - known.since_mono > SETTLING_S
                    if power_w > known.full_w:
                        known.full_w = power_w
                    elif settled and not held:
                        known.full_w += FALL * (power_w - known.full_w)
                    if held:
                        limit_w = gpu.enforced_w if gpu.enforced_w is not None else gpu.limit_w
                        unused = 1.0 - power_w / limit_w if limit_w else 0.0
                        known.unused += FOLLOW * (min(max(unused, 0.0), MOST_UNUSED) - known.unused)
                    if settled and not held and default_w:
                        self._observe(gpu, jobs, power_w / default_w, mono)
                if default_w:
                    shares.add((gpu.name, round(known.full_w / default_w, 2)))
                for job_id in on_it:
                    if job_id in jobs:
                        self._type_of[job_id] = gpu.name
        for name, share in sorted(shares):
            self.learned.curve(None, name, share)  # worked out before an event is in a hurry for it
        return found

    def _expected_w(self, gpu: GpuLive, jobs: Mapping[str, JobView]) -> float:
        """What a GPU will draw under jobs that have just come: what their group has shown, else what their owners say."""
        views = [jobs[job_id] for job_id in gpu.jobs or () if job_id in jobs]
        default_w = gpu.default_w or gpu.max_w or 0.0
        if not views or not default_w:
            return gpu.power_w if gpu.power_w is not None else default_w
        view = views[0]
        stated = view.flex.power_w / view.flex.gpus / default_w if view.flex.gpus > 0 and len(views) == 1 else None
        return min(default_w, self.learned.draw(view.flex.group, gpu.name, stated)[0] * default_w)

    def _observe(self, gpu: GpuLive, jobs: Mapping[str, JobView], draw: float, mono: float) -> None:
        """Once a minute, what a job alone on a GPU draws where no cap holds it."""
        job = jobs.get(gpu.jobs[0]) if gpu.jobs is not None and len(gpu.jobs) == 1 else None
        if job is None or job.flex.group is None or gpu.idle_state not in (None, "active"):
            return
        if mono - self._observed.get(job.id, -math.inf) >= OBSERVE_S:
            self._observed[job.id] = mono
            self.learned.observe(job.flex.group, gpu.name, Observation(1.0, min(draw, 2.0)))

    def _plan_caps(self, world: World, nodes: Mapping[str, list[NodeLive]]) -> dict[str, float]:
        """Caps of the plan on placed jobs: as launched, or as the plan that stands has them now."""
        standing = {
            lease.lease_id.split(" ")[1]: lease.limit_w / gpu.default_w
            for some in nodes.values()
            for node in some
            for lease in node.leases
            if lease.lease_id.startswith("plan ")
            for gpu in node.gpus
            if gpu.uuid == lease.uuid and gpu.default_w
        }
        placements = world.plan.placements if world.plan is not None else {}
        caps: dict[str, float] = {}
        there = set()
        for job in world.jobs:
            if job.state not in PLACED:
                continue
            there.add(job.id)
            if job.id not in self._planned and job.id in standing and job.id not in self._ran_under:
                # An earlier control plane set this; what it meant is on the node.
                near = min(PLANNED_CAPS, key=lambda cap: abs(cap - standing[job.id]))
                self._planned[job.id] = (near, world.now)
            placement = placements.get(job.id)
            if (
                placement is not None
                and placement.region == job.region
                and job.run_started_at is not None
                and world.plan is not None
                and world.plan.made_at >= job.run_started_at
                and any(start <= world.now < end for start, end in placement.intervals)
            ):
                if placement.cap < 1.0:
                    self._planned[job.id] = (placement.cap, world.now)
                else:
                    self._planned.pop(job.id, None)
            cap = self._planned.get(job.id, UNPLANNED)[0]
            if job.state is JobState.RUNNING:
                span = self._ran_under.get(job.id)
                if span is None or not span[0] <= cap <= span[1]:
                    low, high = span or (cap, cap)
                    self._ran_under[job.id] = (min(low, cap), max(high, cap))
            if cap < 1.0:
                caps[job.id] = cap
        known_jobs = {job.id for job in world.jobs}
        for table in (self._ran_under, self._observed):
            for job_id in table.keys() - known_jobs:
                table.pop(job_id, None)
        for job_id in self._type_of.keys() - known_jobs:
            del self._type_of[job_id]
        for job_id, (_, at) in list(self._planned.items()):
            if job_id not in there and at < world.now:
                self._planned.pop(job_id, None)
        return caps

    def _offered(self, nodes: Mapping[str, list[NodeLive]]) -> dict[str, tuple[CapPoint, ...]]:
        """Caps for the plan: the same points for all regions that can be capped, since a plan compares them."""
        able: dict[str, dict[str, float]] = {}
        for region, some in nodes.items():
            live = [node for node in some if node.connected and node.gpus]
            if not live or not all(node.can_cap for node in live):
                continue
            types: dict[str, float] = {}
            for gpu in (gpu for node in live for gpu in node.gpus):
                if gpu.default_w and gpu.min_w is not None:
                    types[gpu.name] = max(types.get(gpu.name, 0.0), gpu.min_w / gpu.default_w)
            if types:
                able[region] = types
        curves = {
            name: self.learned.curve(None, name, usual_draw(name)) for name in sorted({n for one in able.values() for n in one})
        }
        least = max((share for one in able.values() for share in one.values()), default=0.0)
        points = common_points(curves.values(), [cap for cap in PLANNED_CAPS if cap >= least]) if curves else ()
        return dict.fromkeys(able, points)

    # --- orders -------------------------------------------------------------------------------------------------------

    def _lingering(
        self,
        wishes: Iterable[Wish],
        nodes: Mapping[str, list[NodeLive]],
        jobs: Mapping[str, JobView],
        events: Mapping[str, Sequence[str]],
    ) -> set[tuple[str, str]]:
        """Leases of events in force (their keys, by region) that nobody wishes for, and that stay a while all the same: but not
        on free GPUs, and not on work that is never to be capped."""
        there = {(wish.node_id, wish.lease_id) for wish in wishes}
        mono, since = self._mono(), self._needless
        self._needless = {}
        for region, keys in events.items():
            for node in nodes.get(region, ()) if keys else ():
                for gpu in node.gpus:
                    if not gpu.jobs or gpu.yields or any(job in jobs and not jobs[job].flex.may_be_slowed for job in gpu.jobs):
                        continue
                    for place in [(node.node_id, lease_id(key, gpu.uuid)) for key in keys]:
                        if place not in there:
                            self._needless[place] = since.get(place, mono)
        return {key for key, at in self._needless.items() if mono - at < LET_GO_S}

    def _differences(
        self,
        wishes: Iterable[Wish],
        nodes: Mapping[str, list[NodeLive]],
        now: datetime,
        lingering: Set[tuple[str, str]],
    ) -> tuple[list[CapOrder], list[Release]]:
        """Orders for leases that do not stand as wished, releases of ours that nobody wishes for but those that linger."""
        mono = self._mono()
        live = {node.node_id: node for some in nodes.values() for node in some if node.connected}
        wanted = {(wish.node_id, wish.lease_id): wish for wish in wishes if wish.node_id in live}
        standing = {node_id: {lease.lease_id: lease for lease in node.leases} for node_id, node in live.items()}
        default_w = {(node.node_id, gpu.uuid): gpu.default_w or 0.0 for node in live.values() for gpu in node.gpus}
        unclear = self._unclear(live.values())
        raised = self._small_raises(wanted, mono)
        orders = []
        for key, wish in wanted.items():
            sent = self._sent.get(key)
            stands = wish.lease_id in standing[wish.node_id]
            if sent is not None and key not in raised and not self._is_due(wish, sent, stands, default_w, mono):
                continue
            ttl_s = ECONOMIC_S if wish.kind == "economic" else None
            if wish.kind == "event" and wish.ends_at is not None:
                ttl_s = ((wish.ends_at - now).total_seconds() + wish.stays_s) / self._speed
                if ttl_s <= 0:
                    continue
            if sent is None or abs(sent.wish.limit_w - wish.limit_w) >= 0.5:
                self._moved_mono = mono
            now_told, before = (mono, wish.limit_w), () if sent is None else _recent(sent.told, mono)
            # The same limit again: who does not hold it is late since it was first ordered.
            again = bool(before) and abs(before[-1][1] - wish.limit_w) < 0.5
            said = sent.error if sent is not None and sent.ok is not True else ""
            self._sent[key] = _Sent(wish, mono, before if again else (*before, now_told), error=said)
            what = (wish.node_id, wish.uuid, wish.limit_w, ttl_s, wish.reason)
            orders.append(CapOrder(wish.lease_id, wish.kind, *what, foreign_ok=wish.foreign_ok))
        gone = [key for key in self._sent if key not in wanted and key[0] in live and key not in lingering]
        doubting = self._hub.doubting()
        releases = []
        for node_id, leases in standing.items():
            for name, lease in leases.items():
                key = (node_id, name)
                if key in wanted or not name.startswith(OURS):
                    continue
                if lease.kind == "event":
                    event = self._event_of(live[node_id].region, name, lease.uuid)
                    if (node_id, lease.uuid) in unclear or key in lingering or (lease.ends_at and event in self._over_by_clock):
                        continue
                    if event is None and lease.ends_at and node_id in doubting:
                        continue  # of before our start, and over by our clock alone, which may be wrong: it ends by itself
                if mono - self._released.get(key, -math.inf) >= RETRY_S:
                    releases.append(key)
        for key in gone:
            event = self._event_of(live[key[0]].region, key[1], self._sent[key].wish.uuid)
            may_stand = event is not None and event in self._over_by_clock
            if key not in releases and not may_stand and mono - self._released.get(key, -math.inf) >= RETRY_S:
                releases.append(key)
            del self._sent[key]
        for key in releases:
            self._released[key] = mono
        for key in [key for key, at in self._released.items() if mono - at > 2 * RETRY_S]:
            del self._released[key]
        return orders, [Release(*key) for key in releases]

    def _event_of(self, region: str, name: str, uuid: str) -> tuple[str, str] | None:
        """The event that a lease is of, of those that were in force; None where it is of none of them."""
        return next((one for one in self._in_force if one[0] == region and lease_id(one[1], uuid) == name), None)

    def _small_raises(self, wanted: Mapping[tuple[str, str], Wish], mono: float) -> set[tuple[str, str]]:
        """Leases whose caps should be a little higher, if that is much in sum."""
        if mono - self._moved_mono < RAISE_ALL_S:
            return set()
        higher = {
            key: wish.limit_w - sent.wish.limit_w
            for key, wish in wanted.items()
            if (sent := self._sent.get(key)) is not None and wish.limit_w >= sent.wish.limit_w + 1.0
        }
        if not higher or sum(higher.values()) < RAISE_ALL * sum(wish.limit_w for wish in wanted.values()):
            return set()
        return set(higher)

    def _unclear(self, nodes: Iterable[NodeLive]) -> set[tuple[str, str]]:
        """The GPUs, by node, of which we were first told just now, that are at work for nobody knows whom: what an earlier
        control plane set there for an event stands on until that is known."""
        mono, found = self._mono(), set()
        for node in nodes:
            for gpu in node.gpus:
                since = self._first_told.setdefault((node.region, gpu.uuid), mono)
                if mono - since < UNSEEN_S and not gpu.jobs and gpu.idle_state != "deep_idle":
                    found.add((node.node_id, gpu.uuid))
        return found

    def _is_due(self, wish: Wish, sent: _Sent, stands: bool, default_w: Mapping[tuple[str, str], float], mono: float) -> bool:
        """Whether a lease must be sent (again)."""
        age_s = mono - sent.at_mono
        default, more_w = default_w.get((wish.node_id, wish.uuid), 0.0), wish.limit_w - sent.wish.limit_w
        if more_w <= -max(LOWER * default, 1.0) or more_w >= max(RAISE * default, 1.0):
            return True
        if wish.kind == "economic" and age_s >= RENEW_S:
            return True
        if (wish.ends_at, wish.kind) != (sent.wish.ends_at, sent.wish.kind):
            return True
        if abs(wish.stays_s - sent.wish.stays_s) > STAYS_S:
            return True
        return age_s >= RETRY_S and (sent.ok is False or not stands)

    def _answered(self, future: "Future[list[CapResult]]") -> None:
        # On whatever thread heard the last agent: it must not wait for a round.
        self._answers.extend(future.result())

    def _take_answers(self) -> None:
        while self._answers:
            result = self._answers.popleft()
            sent = self._sent.get((result.node_id, result.lease_id))
            if sent is not None:
                sent.ok, sent.error = result.ok, result.error or ""
            if not result.ok and result.error:
                log.info("lease %s on node %s: %s", result.lease_id, result.node_id, result.error)

    def _not_enforced(self, nodes: Mapping[str, list[NodeLive]]) -> list[Trouble]:
        """One trouble a node whose GPUs do not hold what they were told in time."""
        mono, troubles, unheld = self._mono(), [], set[tuple[str, str]]()
        lowest: dict[tuple[str, str], tuple[float, _Sent]] = {}
        with self._lock:
            for (node_id, _), sent in self._sent.items():
                at, owed_w = (node_id, sent.wish.uuid), sent.owed_w(mono)
                if owed_w is not None and (at not in lowest or owed_w < lowest[at][0]):
                    lowest[at] = (owed_w, sent)
        for node in (node for some in nodes.values() for node in some if node.connected):
            late = []
            for gpu in node.gpus:
                owed = lowest.get((node.node_id, gpu.uuid))
                if owed is None:
                    continue
                enforced_w = gpu.enforced_w if gpu.enforced_w is not None else gpu.limit_w
                if enforced_w is None or enforced_w > owed[0] + 1.0:
                    late.append((gpu, *owed, enforced_w))
                    unheld.add((node.region, gpu.uuid))
            if late:
                gpu, owed_w, told, enforced_w = late[0]
                holds = "an unknown limit" if enforced_w is None else f"{enforced_w:.0f} W"
                why = told.error or gpu.cap.detail or f"its agent says: {gpu.cap.state}"
                sentence = (
                    f"{len(late)} of {len(node.gpus)} GPUs of {node.hostname} do not hold their cap after {RETRY_S:.0f} s: GPU "
                    f"{gpu.index} has {holds} where {owed_w:.0f} W were ordered ({why})"
                )
                troubles.append(Trouble(f"cap not enforced {node.node_id}", node.region, sentence))
        self._unheld = unheld
        return troubles


def _key(budget: Budget) -> str:
    """What an event's leases are named by."""
    return f"event {budget.event_id}" + (f" of {budget.source}" if budget.source else "")


def _stands(key: str, nodes: Iterable[NodeLive]) -> bool:
    """Whether a lease of that event is on any of these nodes."""
    return any(one.lease_id == lease_id(key, one.uuid) for node in nodes for one in node.leases)


def _is_held(gpu: GpuLive, power_w: float, node: NodeLive) -> bool:
    """Whether a limit below its default holds a GPU that draws this much. While it does not tell its default, one with a lease
    on it counts as held: what it draws then says nothing of what it would."""
    if gpu.default_w is None and any(lease.uuid == gpu.uuid for lease in node.leases):
        return True
    limit_w = gpu.enforced_w if gpu.enforced_w is not None else gpu.limit_w
    return limit_w is not None and power_w >= BINDS * limit_w and limit_w < 0.99 * (gpu.default_w or limit_w)
