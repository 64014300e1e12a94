"""The solver's inner loops, compiled: one job against prices, one job against what is free, and moves that make room.

All work on the arrays of policies.problem, grouped in the tuples below. Slots are counted within the fleet's grid; a run is
kept as its seconds and as the slots it touches. Functions write into what they are given and allocate nothing a job.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from policies.problem import SLACK, Bools, Floats, Ints

#: A plan cuts a job into no more runs than this.
MAX_RUNS = 12
INF = np.inf
#: From so many steps on a job's bound is made as tight as can be.
CAREFUL = 12
NOWHERE = -1
#: What stands for no limit where one is calculated with.
LARGE = 1e15
#: Slots of a window times slots of a run, up to which runs are counted out exactly.
MAX_CELLS = 1 << 17


class Supply(NamedTuple):
    """The fleet as the kernels read it: ``energy`` (L, T) is planning currency per kW over a whole slot."""

    edges: Floats
    energy: Floats
    known: Bools
    region: Ints
    pue: Floats
    masks: Bools


class Demand(NamedTuple):
    """The jobs as the kernels read them. ``floor`` (J, L) is the least each could cost in a lane, inf where it cannot run;
    ``order`` (J, L) are the lanes by that. ``planned`` (J, 2) is a lane (-1: none) and a second at which a start is worth
    ``keep`` more than it costs, for it was planned so before. ``wait`` is what a second that all of a job waits must save."""

    last: Floats
    gpus: Floats
    kw: Floats
    pausable: Bools
    again: Floats
    chunk: Floats
    pause_cost: Floats
    unserved: Floats
    team: Ints
    ready: Floats
    run: Floats
    fixed: Floats
    mask: Ints
    draw: Floats
    cap_draw: Floats
    cap_speed: Floats
    caps: Bools
    here: Ints
    planned: Floats
    keep: Floats
    wait: Floats
    floor: Floats
    order: Ints


class Prices(NamedTuple):
    """What a slot's room is worth: per GPU and per W at the meter by lane, per start by lane, per GPU by team."""

    gpu: Floats
    watt: Floats
    start: Floats
    team: Floats


class Free(NamedTuple):
    """What is free in each slot: GPUs and W by lane, W and places for jobs by region, GPUs by team."""

    gpus: Floats
    lane_w: Floats
    region_w: Floats
    starts: Floats
    team: Floats


class Placed(NamedTuple):
    """Where the jobs are: ``lane`` (-1: nowhere), ``cap``, ``runs`` of them, and of each run its seconds and its slots.
    ``cost`` is without prices, ``load`` what its room is worth. ``members`` (L, J) lists the jobs of each lane, ``size`` says
    how many, and ``at`` where a job is in its list."""

    lane: Ints
    cap: Ints
    runs: Ints
    begin: Floats
    end: Floats
    first: Ints
    stop: Ints
    cost: Floats
    load: Floats
    members: Ints
    size: Ints
    at: Ints


class Found(NamedTuple):
    """The best option of one look: ``what`` is lane, cap and number of runs."""

    what: Ints
    begin: Floats
    end: Floats
    first: Ints
    stop: Ints
    cost: Floats


class Space(NamedTuple):
    """Room to work in, of the grid's length."""

    cost: Floats
    price: Floats
    length: Floats
    rate: Floats
    free: Bools
    order: Ints
    value: Floats
    on: Floats
    off: Floats
    back: Ints
    needs: Ints
    chosen: Bools
    best: Bools
    gain: Floats
    stops: Bools
    under: Bools
    off_at: Floats
    on_at: Floats
    off_from: Ints
    on_from: Ints
    least: Floats
    where: Ints


def places(jobs: int, lanes: int) -> Placed:
    """Room to write down where so many jobs are; nobody is placed."""
    runs = (jobs, MAX_RUNS)
    return Placed(
        np.full(jobs, NOWHERE, dtype=np.int64), np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64),
        np.zeros(runs), np.zeros(runs), np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=np.int64),
        np.zeros(jobs), np.zeros(jobs), np.zeros((lanes, jobs), dtype=np.int64), np.zeros(lanes, dtype=np.int64),
        np.zeros(jobs, dtype=np.int64),
    )  # fmt: skip


def found() -> Found:
    """An empty Found."""
    return Found(
        np.full(3, NOWHERE, dtype=np.int64),
        np.zeros(MAX_RUNS),
        np.zeros(MAX_RUNS),
        np.zeros(MAX_RUNS, dtype=np.int64),
        np.zeros(MAX_RUNS, dtype=np.int64),
        np.zeros(1),
    )


def space(slots: int, options: int) -> Space:
    """Room to work in for a grid of so many slots, and so many ``options`` of lane and cap."""
    n = slots + 2

    def floats() -> Floats:
        return np.zeros(n)

    def ints() -> Ints:
        return np.zeros(n, dtype=np.int64)

    def bools() -> Bools:
        return np.zeros(n, dtype=np.bool_)

    return Space(
        floats(),
        floats(),
        floats(),
        floats(),
        bools(),
        ints(),
        floats(),
        floats(),
        floats(),
        ints(),
        ints(),
        bools(),
        bools(),
        floats(),
        bools(),
        bools(),
        np.zeros(2 * MAX_CELLS),
        np.zeros(2 * MAX_CELLS),
        np.zeros(2 * MAX_CELLS, dtype=np.int16),
        np.zeros(2 * MAX_CELLS, dtype=np.int16),
        np.zeros(options),
        np.zeros(options, dtype=np.int64),
    )


def compiled(function: Any) -> Any:
    """Compiled on its first call and kept on disk; other threads run beside it."""
    return njit(cache=True, nogil=True, error_model="numpy")(function)


# --- small parts ------------------------------------------------------------------------------------------------------


@compiled
def _slot_of(edges, at):  # type: ignore[no-untyped-def]
    """The slot that holds the moment ``at``."""
    return max(np.searchsorted(edges, at + SLACK, side="right") - 1, 0)


@compiled
def _slots_before(edges, at):  # type: ignore[no-untyped-def]
    """How many slots begin before ``at``."""
    return min(np.searchsorted(edges, at - SLACK, side="left"), len(edges) - 1)


@compiled
def _cheapest(rate, length, order, n, need):  # type: ignore[no-untyped-def]
    """Order slots so that the first k are those with the least ``rate`` that together hold ``need`` seconds, the last of them
    perhaps in part. Returns k (0: they do not hold it), what those seconds cost and the rate of the dearest."""
    total = 0.0
    for i in range(n):
        total += length[i]
        order[i] = i
    if total < need - SLACK:
        return 0, INF, INF
    low, high, left, cost = 0, n - 1, need, 0.0
    while low < high:
        a, b, c = rate[order[low]], rate[order[(low + high) // 2]], rate[order[high]]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while rate[order[i]] < pivot:
                i += 1
            while rate[order[j]] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        # now low..j are at most the pivot, i..high at least, and what is between equals it
        seconds, paid = 0.0, 0.0
        for k in range(low, j + 1):
            seconds += length[order[k]]
            paid += length[order[k]] * rate[order[k]]
        if seconds >= left - SLACK and j >= low:
            high = j
            continue
        left -= seconds
        cost += paid
        low = j + 1
        seconds, paid = 0.0, 0.0
        for k in range(low, i):
            seconds += length[order[k]]
            paid += length[order[k]] * rate[order[k]]
        if seconds >= left - SLACK and i > low:
            high = i - 1  # all of these have one rate: take as many as are needed
            for k in range(low, i):
                part = min(left, length[order[k]])
                cost += part * rate[order[k]]
                left -= part
                if left <= SLACK:
                    return k + 1, cost, rate[order[k]]
        left -= seconds
        cost += paid
        low = i
    cost += left * rate[order[low]]
    return low + 1, cost, rate[order[low]]


@compiled
def _meter_w(supply, demand, j, row, cap):  # type: ignore[no-untyped-def]
    """What job ``j`` draws in a lane under a cap, W at the meter."""
    return demand.kw[j] * demand.draw[j, row] * demand.cap_draw[cap] * 1000.0 * supply.pue[row]


# --- prices -----------------------------------------------------------------------------------------------------------


@compiled
def _usual_length(length, n):  # type: ignore[no-untyped-def]
    """How long the slots of a window are, but for its first and last, which may be shorter; 0 where they are not alike."""
    usual = max(length[0], length[n - 1])
    for i in range(1, n - 1):
        if i == 1:
            usual = length[1]
        elif abs(length[i] - usual) > SLACK:
            return 0.0
    if length[0] > usual + SLACK or length[n - 1] > usual + SLACK:
        return 0.0
    return usual


@compiled
def _counted_runs(demand, j, row, run, n, pause, again, length, energy, whole_only, to_place, work):  # type: ignore[no-untyped-def]
    """The best of ``_counted`` with and without the window's first and last slot, where they are shorter than the others; with
    ``whole_only`` these are left out. The same figure, and the runs in ``work.best``."""
    free_first, free_last = work.free[0], work.free[n - 1]
    short_first = length - work.length[0] if work.length[0] < length - SLACK else 0.0
    short_last = length - work.length[n - 1] if n > 1 and work.length[n - 1] < length - SLACK else 0.0
    best = INF
    for with_first in range(2):
        if with_first == 1 and (whole_only or short_first == 0.0 or not free_first):
            continue
        for with_last in range(2):
            if with_last == 1 and (whole_only or short_last == 0.0 or not free_last):
                continue
            work.free[0] = free_first and (short_first == 0.0 or with_first == 1)
            work.free[n - 1] = (free_last if n > 1 else work.free[0]) and (short_last == 0.0 or with_last == 1)
            held = run + with_first * short_first + with_last * short_last
            total = _counted(
                demand, j, row, run, held, n, pause, again, length, energy, with_first == 1, with_last == 1, to_place, work
            )
            if np.isnan(total):
                work.free[0], work.free[n - 1] = free_first, free_last
                return total
            if total < best:
                best = total
                for t in range(n):
                    work.under[t] = work.chosen[t]
    work.free[0], work.free[n - 1] = free_first, free_last
    for t in range(n):
        work.best[t] = work.under[t]
    return best


@compiled
def _counted(  # type: ignore[no-untyped-def]
    demand, j, row, run, held, n, pause, again, length, energy, with_first, with_last, to_place, work
):
    """The best runs in the free slots of a window by counting their slots, in ``work.chosen``: the least they can cost;
    NAN where counting does not apply, INF where there are none.

    ``held`` is what slots of ``length`` seconds must hold: ``run`` and what the first and the last lack, which are taken with
    ``with_first`` and ``with_last``. The time that resumes take is let pass, so the figure is a lower bound. ``work.rate`` is
    the score of a second in each slot, ``energy`` what a second costs there without the price of the room. Runs to place
    (``to_place``) keep the least run time at the window's ends too. Dynamic programming over the slot, slots taken so far,
    whether it runs, and whether the seconds more than are needed have been cut from the end of a run.
    """
    need = int(np.ceil(held / length - 1e-9))
    if n < need:
        return INF
    if (n + 1) * (need + 1) > MAX_CELLS:
        return np.nan
    chunk = min(demand.chunk[j], run)
    least = max(1, int(np.ceil(chunk / length - 1e-9)) if to_place else int(np.floor(chunk / length + 1e-9)))
    for runs in range(2, MAX_RUNS + 1):
        # shortest runs only, which together take more slots than are needed and could not do with less
        odd = runs * least > need and (runs * least - need) % least != 0
        if odd and runs * chunk <= run + again * (runs - 1) + SLACK:
            return np.nan
    cut = need * length - held
    here = demand.here[j] == row
    wide = need + 1
    low = INF
    e = 0
    for s in range(n):
        if work.free[s]:
            low = min(low, energy[s])
        e = max(e, s)
        while e < n and e < s + least and work.free[e]:
            e += 1
        work.needs[s] = e if e == s + least else 0
        if to_place and work.needs[s] > 0 and (s == 0 or e == n):  # the window's ends may be short
            seconds = 0.0
            for i in range(s, e):
                seconds += work.length[i]
            if seconds < chunk - SLACK:
                work.needs[s] = e + 1 if e < n and work.free[e] and seconds + work.length[e] >= chunk - SLACK else 0
    if low == INF:
        return INF
    dear = pause + again * max(low, 0.0)
    work.value[0] = 0.0
    for t in range(n):
        work.value[t + 1] = work.value[t] + (work.rate[t] * work.length[t] if work.free[t] else 0.0)
    for i in range((n + 1) * wide * 2):
        work.off_at[i] = INF
        work.on_at[i] = INF
    work.off_at[0] = 0.0
    if here:
        work.on_at[0] = 0.0
    work.on_from[0] = 0
    for t in range(n + 1):
        first, last = max(0, need - (n - t)), min(t, need)
        base = t * wide * 2
        ahead = work.needs[t] if t < n else 0
        long = ahead - t
        for k in range(first, last + 1):
            at = base + 2 * k
            off, off_cut, on, on_cut = work.off_at[at], work.off_at[at + 1], work.on_at[at], work.on_at[at + 1]
            work.off_from[at], work.off_from[at + 1] = 0, 0
            if on < off:
                off = on
                work.off_from[at] = 1
            if on_cut < off_cut:
                off_cut = on_cut
                work.off_from[at + 1] = 1
            if t > 0 and on < INF and work.free[t - 1]:
                saved = on - cut * energy[t - 1]
                if saved < off_cut:
                    off_cut = saved
                    work.off_from[at + 1] = 2
            work.off_at[at], work.off_at[at + 1] = off, off_cut
            if t == n:
                continue
            to = at + 2 * wide
            if not (t == 0 and with_first) and not (t == n - 1 and with_last):
                if off < work.off_at[to]:
                    work.off_at[to] = off
                if off_cut < work.off_at[to + 1]:
                    work.off_at[to + 1] = off_cut
            if k == need:
                continue
            if work.free[t]:
                more = work.value[t + 1] - work.value[t]
                if on + more < work.on_at[to + 2]:
                    work.on_at[to + 2] = on + more
                    work.on_from[to + 2] = 0
                if on_cut + more < work.on_at[to + 3]:
                    work.on_at[to + 3] = on_cut + more
                    work.on_from[to + 3] = 0
            if ahead > 0 and k + long <= need:
                more = work.value[ahead] - work.value[t]
                if k > 0 or here:
                    more += dear
                to = ahead * wide * 2 + 2 * (k + long)
                if off + more < work.on_at[to]:
                    work.on_at[to] = off + more
                    work.on_from[to] = long
                if off_cut + more < work.on_at[to + 1]:
                    work.on_at[to + 1] = off_cut + more
                    work.on_from[to + 1] = long
    for t in range(n):
        work.chosen[t] = False
    k = need
    flag = 1 if work.off_at[n * wide * 2 + 2 * need + 1] < work.off_at[n * wide * 2 + 2 * need] else 0
    total = work.off_at[n * wide * 2 + 2 * need + flag]
    if total == INF:
        return INF
    t, running = n, False
    while t > 0 and k > 0:
        at = t * wide * 2 + 2 * k + flag
        if not running:
            how = work.off_from[at]
            if how == 0:
                t -= 1
            else:
                running = True
                if how == 2:
                    flag = 0
            continue
        long = work.on_from[at]
        if long > 0:
            running = False
        else:
            long = 1
        for i in range(t - long, t):
            work.chosen[i] = True
        t -= long
        k -= long
    return total


@compiled
def _fits(g, w, gpus, lane_w, region_w, starts, team):  # type: ignore[no-untyped-def]
    """Whether a job finds room in a slot where so much is free."""
    return gpus >= g - SLACK and region_w >= w - SLACK and lane_w >= w - SLACK and starts >= 1.0 - SLACK and team >= g - SLACK


@compiled
def _crowded(amount, price, rise, free):  # type: ignore[no-untyped-def]
    """What an amount of room is worth at a price that rises by ``rise`` with each unit taken beyond the limit, and falls with
    each that is ``free``."""
    return amount * max(0.0, price + rise * (0.5 * amount - min(free, LARGE)))


@compiled
def _window(j, row, c, supply, demand, prices, free, theta, rho, has_limits, rise, work):  # type: ignore[no-untyped-def]
    """Write the slots that ``j`` could use in a lane under a cap into ``work``: which are ``free``, their ``length`` and the
    ``rate`` of a second there, and the running sums of ``cost`` (energy) and ``price`` (room). Returns the first slot, how many
    there are, when the job is ready, its seconds and kW, and how many seconds are free. See ``look``; with
    ``rho`` < -1 no room is needed and nothing but cost and prices counts, as for a bound."""
    edges = supply.edges
    here = demand.here[j] == row
    ready = 0.0 if here else demand.ready[j, row]
    a = _slot_of(edges, ready)
    n = _slots_before(edges, demand.last[j]) - a
    g, team, mask = demand.gpus[j], demand.team[j], demand.mask[j, row]
    run = demand.run[j, row] / demand.cap_speed[c]
    kw = demand.kw[j] * demand.draw[j, row] * demand.cap_draw[c]
    w = kw * 1000.0 * supply.pue[row]
    wait = demand.wait[j] if rho >= -1.0 else 0.0
    work.cost[0] = 0.0
    work.price[0] = 0.0
    last, roomy = demand.last[j], 0.0
    r = supply.region[row]
    # arrays by names of their own: handing whole tables to another function for each slot takes longer than all the rest
    gpu_price, watt_price, start_price, team_price = prices.gpu[row], prices.watt[row], prices.start[row], prices.team[team]
    gpu_rise, watt_rise, start_rise, team_rise = rise.gpu[row], rise.watt[row], rise.start[row], rise.team[team]
    gpu_free, lane_free, region_free = free.gpus[row], free.lane_w[row], free.region_w[r]
    start_free, team_free = free.starts[r], free.team[team]
    known, masked, energies = supply.known[row], supply.masks[mask], supply.energy[row]
    usables, lengths, rates, costs, room = work.free, work.length, work.rate, work.cost, work.price
    spent, paid = 0.0, 0.0
    for i in range(n):
        t = a + i
        usable = known[t] and not masked[t]
        price = 0.0
        if theta > 0.0:
            price = theta * (g * (gpu_price[t] + team_price[t]) + w * watt_price[t] + start_price[t])
        begin, end = edges[t], edges[t + 1]
        length = min(end, last) - max(begin, ready)
        if usable and theta < 0.0:
            price = _crowded(g, gpu_price[t], rho * gpu_rise[t], gpu_free[t])
            if has_limits:
                price += _crowded(w, watt_price[t], rho * watt_rise[t], min(region_free[t], lane_free[t]))
                price += _crowded(1.0, start_price[t], rho * start_rise[t], start_free[t])
                price += _crowded(g, team_price[t], rho * team_rise[t], team_free[t])
        elif usable and rho >= -1.0:
            fits = gpu_free[t] >= g - SLACK
            if has_limits:
                fits = _fits(g, w, gpu_free[t], lane_free[t], region_free[t], start_free[t], team_free[t])
            if not fits:
                if rho < 0.0 or team_free[t] < g - SLACK:
                    usable = False  # nobody is driven away for a team's quota
                else:
                    # what the room is worth that the job would take beyond what is free
                    over = max(0.0, g - max(0.0, gpu_free[t])) * gpu_price[t]
                    over += max(0.0, w - max(0.0, min(region_free[t], lane_free[t]))) * watt_price[t]
                    if start_free[t] < 1.0 - SLACK:
                        over += start_price[t]
                    price += rho * over
        usables[i] = usable
        lengths[i] = length
        if usable:
            roomy += length
        energy = kw * energies[t]
        spent += energy
        paid += price
        costs[i + 1] = spent
        room[i + 1] = paid
        rates[i] = energy / (end - begin) + price / length
        if wait != 0.0:
            rates[i] += wait * max(begin - ready, 0.0) / run
    return a, n, ready, run, kw, roomy


@compiled
def _least_of(n, run, work):  # type: ignore[no-untyped-def]
    """What the cheapest free seconds of a window cost, however they lie, and the rate of the dearest (see ``_cheapest``)."""
    m = 0
    for i in range(n):
        if work.free[i]:
            work.on[m] = work.rate[i]
            work.off[m] = work.length[i]
            m += 1
    return _cheapest(work.on, work.off, work.order, m, run)


@compiled
def _take_option(options, work):  # type: ignore[no-untyped-def]
    """Take the cheapest of so many options out of their list: what it costs at the least, and where it is."""
    at = 0
    for i in range(1, options):
        if work.least[i] < work.least[at]:
            at = i
    least, where = work.least[at], work.where[at]
    work.least[at], work.where[at] = work.least[options - 1], work.where[options - 1]
    return least, where


@compiled
def _earned(supply, demand, j, row, kw, a, n, run, roomy, work):  # type: ignore[no-untyped-def]
    """What the time of resumes may earn at the most where power is paid for, 0 or less; what a second of energy costs in each
    slot is left in ``work.gain``."""
    edges, earns = supply.edges, 0.0
    for i in range(n):
        work.gain[i] = kw * supply.energy[row, a + i] / (edges[a + i + 1] - edges[a + i])
        if work.free[i]:
            earns = min(earns, work.gain[i])
    return earns * min(MAX_RUNS * demand.again[j], max(roomy - run, 0.0))


@compiled
def _single_runs(supply, demand, j, row, a, n, ready, run, fixed, work):  # type: ignore[no-untyped-def]
    """The runs without a pause that a window has room for, by the slot in which they begin: the last slot of each in
    ``work.back`` (-1: no room), its cost without prices in ``work.value``. Returns how many slots were looked at."""
    edges, last, costs = supply.edges, demand.last[j], work.cost
    e, barred = 0, -1
    for s in range(n):
        begin = max(edges[a + s], ready)
        end = begin + run
        if end > last + SLACK:
            return s
        e = max(e, s)
        while edges[a + e + 1] < end - SLACK:
            e += 1
        while barred < e:
            barred += 1
            if not work.free[barred]:
                work.needs[barred] = barred
            else:
                work.needs[barred] = work.needs[barred - 1] if barred > 0 else -1
        if work.needs[e] >= s:
            work.back[s] = -1
            continue
        part = (end - edges[a + e]) / (edges[a + e + 1] - edges[a + e])
        work.back[s] = e
        work.value[s] = costs[e] + (costs[e + 1] - costs[e]) * part - costs[s] + fixed
        if s == 0:
            work.value[s] -= costs[1] * (begin - edges[a]) / (edges[a + 1] - edges[a])
    return n


@compiled
def respond(jobs, supply, demand, prices, has_team, steps, gpu_use, watt_use, start_use, team_use, value, worth, free, work):  # type: ignore[no-untyped-def]
    """Give each of ``jobs`` its best option at ``prices`` as if there were room for all, and add up what they would use.

    ``value`` gets what that costs each, prices included. For a job that may be paused it is the cost of its cheapest seconds,
    however they lie, so the sum is a lower bound; from more than 0 ``steps`` on resumes count in it. Use is at the meter by
    lane (W), by lane (GPUs, places), by team (GPUs). ``free`` is not looked at.
    """
    edges = supply.edges
    slots = len(edges) - 1
    keep = np.empty(slots, dtype=np.int64)
    caps = len(demand.cap_speed)
    for j in jobs:
        best, lane, first, stop, kept, cap, worth_here, share = INF, NOWHERE, 0, 0, 0, 0, worth[j], 1.0
        top, options = INF, 0
        g, t_ = demand.gpus[j], demand.team[j]
        for q in range(demand.order.shape[1]):
            row = demand.order[j, q]
            if demand.floor[j, row] >= best or demand.floor[j, row] > top:
                break
            here = demand.here[j] == row
            fixed = 0.0 if here else demand.fixed[j, row]
            for c in range(caps):
                if not demand.caps[j, c]:
                    continue
                a, n, ready, run, kw, roomy = _window(j, row, c, supply, demand, prices, free, 1.0, -2.0, False, prices, work)
                if n <= 0 or roomy < run - SLACK:
                    continue
                pauses = demand.pausable[j] and run >= 2.0 * demand.chunk[j] - SLACK
                if pauses:
                    k, least, dearest = _least_of(n, run, work)
                    least += fixed
                    if demand.again[j] > 0.0:
                        least += _earned(supply, demand, j, row, kw, a, n, run, roomy, work)
                    if k == 0 or least >= best or least > top:
                        continue
                    if steps == 0 or (demand.again[j] == 0.0 and demand.chunk[j] <= 1.0):
                        # as a resume counts no time, these seconds are the bound
                        best, lane, cap, kept, seconds = least, row, c, 0, 0.0
                        for i in range(n):
                            if work.free[i] and work.rate[i] <= dearest:
                                keep[kept] = a + i
                                kept += 1
                                seconds += work.length[i]
                        share = run / seconds
                        continue
                    work.least[options] = least
                    work.where[options] = row * caps + c
                    options += 1
                for s in range(_single_runs(supply, demand, j, row, a, n, ready, run, fixed, work)):
                    e = work.back[s]
                    if e < 0:
                        continue
                    total = work.value[s] + (work.price[e + 1] - work.price[s])
                    if pauses:
                        # with pauses it can only be less, but for rounding
                        top = min(top, total + 1e-9 * (abs(total) + abs(work.cost[n]) + abs(work.price[n])))
                    elif total < best:
                        best, lane, first, stop, kept, cap, share = total, row, a + s, a + e + 1, 0, c, 1.0
        while options > 0:
            least, where = _take_option(options, work)
            row, c = where // caps, where % caps
            if least >= best or least > top:
                break
            options -= 1
            a, n, ready, run, kw, roomy = _window(j, row, c, supply, demand, prices, free, 1.0, -2.0, False, prices, work)
            here = demand.here[j] == row
            fixed = 0.0 if here else demand.fixed[j, row]
            earns = _earned(supply, demand, j, row, kw, a, n, run, roomy, work)
            usual = _usual_length(work.length, n)
            total = np.nan
            if usual > 0.0:
                total = _counted_runs(
                    demand, j, row, run, n, 0.0, demand.again[j], usual, work.gain, steps < CAREFUL, False, work
                )
            portion = 1.0
            if np.isnan(total):
                score, more, bound, at_worth, _ = _runs_of(
                    demand, j, row, run, n, 0.0, demand.again[j], worth[j], steps, True, work
                )
                if score == INF and bound == INF:
                    continue
                total = max(least - fixed, bound)
                worth_here = at_worth
                portion = run / (run + more)  # in the mean it uses no more than it needs
            else:
                total += earns
            total += fixed
            if total >= best:
                continue
            best, lane, cap, share, kept = total, row, c, portion, 0
            for i in range(n):
                if work.best[i]:
                    keep[kept] = a + i
                    kept += 1
        if demand.unserved[j] < best:
            best, lane = demand.unserved[j], NOWHERE
        value[j] = best
        worth[j] = worth_here
        if lane == NOWHERE:
            continue
        w = _meter_w(supply, demand, j, lane, cap)
        for i in range(kept if kept > 0 else stop - first):
            t = keep[i] if kept > 0 else first + i
            gpu_use[lane, t] += g * share
            watt_use[lane, t] += w * share
            start_use[lane, t] += share
            if has_team:
                team_use[t_, t] += g * share


# --- one job against what is free -------------------------------------------------------------------------------------


@compiled
def _runs_of(demand, j, row, run, n, pause, again, guess, steps, for_bound, work):  # type: ignore[no-untyped-def]
    """The best runs in the free slots of a window, in ``work.best``: (score, seconds beyond what is needed, a lower bound on
    the score of any runs, the worth of a second at it, what ``work.under`` lacks); INF where there are none. ``work.rate`` is
    the score of a second in each slot, ``work.length`` its usable seconds, ``work.free`` whether it is free. A run is no
    shorter than ``chunk``, and each after the first costs ``pause`` and pays for its resume.

    A second that runs is given a worth, ``guess`` at first; at each worth the best set of runs is found slot by slot, and the
    least worth whose runs hold the work is searched for (Lagrangian relaxation of the work, which gives the bound). The longest
    set of runs that falls short of it is left in ``work.under``.
    """
    chunk = min(demand.chunk[j], run)
    here = demand.here[j] == row
    # the first slot behind the shortest run from each slot on, 0 where there is none
    e, seconds = 0, 0.0
    low, high = INF, -INF
    for s in range(n):
        if e < s:
            e, seconds = s, 0.0
        while e < n and seconds < chunk - SLACK and work.free[e]:
            seconds += work.length[e]
            e += 1
        work.needs[s] = e if seconds >= chunk - SLACK and e > s else 0
        if for_bound and work.needs[s] > s + 1 and seconds > chunk + SLACK:
            work.needs[s] -= 1  # a plan may cut the last slot of a run: what holds of whole slots need not hold of it
        if e > s:
            seconds -= work.length[s]
        if work.free[s]:
            low = min(low, work.rate[s])
            high = max(high, work.rate[s])
    if high < low:
        return INF, 0.0, INF, 0.0, INF
    high += (pause + again * abs(high)) / max(chunk, 1.0) + 1e-3 * (high - low) + 1e-12
    done_score, done_more, span, top, lacks = INF, 0.0, high - low, high, INF
    bound, bound_at = -INF, high
    worth = guess if low < guess < high else high
    for step in range(steps):
        dear = pause + worth * again
        work.off[0] = 0.0
        work.on[0] = 0.0 if here else INF
        work.value[0] = 0.0
        for t in range(n):
            work.value[t + 1] = work.value[t] + (work.length[t] * (work.rate[t] - worth) if work.free[t] else 0.0)
            work.gain[t + 1] = INF
        for t in range(n):
            ahead = work.needs[t]
            if ahead > 0:
                total = work.off[t] + dear + work.value[ahead] - work.value[t]
                if total < work.gain[ahead]:
                    work.gain[ahead] = total
                    work.order[ahead] = t
            on = work.on[t] + work.value[t + 1] - work.value[t] if work.free[t] else INF
            work.back[t + 1] = -1
            if work.gain[t + 1] < on:
                on = work.gain[t + 1]
                work.back[t + 1] = work.order[t + 1]
            work.on[t + 1] = on
            work.stops[t + 1] = on < work.off[t]
            work.off[t + 1] = min(on, work.off[t])
        t, running, runs, seconds, score = n, False, 0, 0.0, 0.0
        for k in range(n):
            work.chosen[k] = False
        while t > 0:
            if not running:
                if work.stops[t]:
                    running = True
                else:
                    t -= 1
                continue
            begin = work.back[t]
            if begin >= 0:
                runs += 1
                running = False
            else:
                begin = t - 1
            for k in range(begin, t):
                work.chosen[k] = True
                seconds += work.length[k]
                score += work.length[k] * work.rate[k]
            t = begin
        least = work.off[n] + worth * run - (0.0 if here else dear)
        if least > bound and (dear >= 0.0 or not for_bound):  # where a resume earns, a run cut to nothing is no lower bound
            bound, bound_at = least, worth
        resumes = runs if here else max(runs - 1, 0)
        have = seconds - again * resumes
        if have >= run - SLACK and runs + (1 if here else 0) <= MAX_RUNS:
            high = worth
            done_score = score + pause * resumes
            done_more = have - run
            for k in range(n):
                work.best[k] = work.chosen[k]
            if done_more <= SLACK:
                break
        elif worth >= top:
            if for_bound:
                seconds = 0.0
                for k in range(n):
                    work.best[k] = work.free[k]
                    seconds += work.length[k] if work.free[k] else 0.0
                return INF, seconds - run, bound, bound_at, INF
            return INF, 0.0, INF, top, INF  # not even with every second worth more than it costs
        else:
            low = worth
            if seconds > 0.0 and run - have < lacks and runs + (1 if here else 0) <= MAX_RUNS:
                lacks = run - have
                for k in range(n):
                    work.under[k] = work.chosen[k]
        if high - low < 1e-4 * span:
            break
        worth = 0.5 * (low + high)
        if step == 0 and guess == bound_at:  # the worth has moved little since the guess was made: look near it first
            worth = max(worth, guess - 0.05 * span) if high == guess else min(worth, guess + 0.05 * span)
    return done_score, done_more, bound, bound_at, lacks


@compiled
def look(j, supply, demand, prices, free, theta, rho, has_limits, work, out, rise):  # type: ignore[no-untyped-def]
    """The best place for job ``j`` now, in ``out``; returns its score (INF: none but being left out).

    The score is its cost and ``theta`` times the prices of its room. With ``rho`` < 0 only slots with room count; else a slot
    without is allowed at ``rho`` times what the room is worth that it takes from others. With ``theta`` < 0 every slot counts,
    at prices that follow what others take there (``_crowding``). ``has_limits`` tells whether there is any limit beside GPUs.
    """
    edges = supply.edges
    caps = len(demand.cap_speed)
    best, options = INF, 0
    out.what[0] = NOWHERE
    for q in range(demand.order.shape[1]):
        row = demand.order[j, q]
        if demand.floor[j, row] - demand.keep[j] >= best:
            break
        here = demand.here[j] == row
        fixed = 0.0 if here else demand.fixed[j, row]
        moving = demand.pause_cost[j] if demand.here[j] >= 0 and not here else 0.0
        bonus_at = demand.planned[j, 1] if demand.planned[j, 0] == row else -INF
        for c in range(caps):
            if not demand.caps[j, c]:
                continue
            a, n, ready, run, kw, roomy = _window(j, row, c, supply, demand, prices, free, theta, rho, has_limits, rise, work)
            if n <= 0 or roomy < run - SLACK:
                continue
            if demand.pausable[j] and run >= 2.0 * demand.chunk[j] - SLACK:
                # several runs: first what they would cost at the very least
                k, least, _ = _least_of(n, run, work)
                if k > 0:
                    work.least[options] = least + fixed
                    work.where[options] = row * caps + c
                    options += 1
            # one run without a pause
            for s in range(_single_runs(supply, demand, j, row, a, n, ready, run, fixed, work)):
                if here and s > 0:
                    break  # it runs on from now, or is paused, which is looked at below
                e, cost = work.back[s], work.value[s]
                if e < 0:
                    continue
                begin = max(edges[a + s], ready)
                score = cost + work.price[e + 1] - work.price[s] + moving
                score += demand.wait[j] * (begin - ready + run / 2.0)
                if abs(begin - bonus_at) < 1.0:
                    score -= demand.keep[j]
                if score < best - 1e-12:
                    best = score
                    out.what[0] = row
                    out.what[1] = c
                    out.what[2] = 1
                    out.begin[0] = begin
                    out.end[0] = begin + run
                    out.first[0] = a + s
                    out.stop[0] = a + e + 1
                    out.cost[0] = cost
    while options > 0:
        least, where = _take_option(options, work)
        row, c = where // caps, where % caps
        if least >= best - 1e-9 * abs(best):
            break
        options -= 1
        here = demand.here[j] == row
        fixed = 0.0 if here else demand.fixed[j, row]
        moving = demand.pause_cost[j] if demand.here[j] >= 0 and not here else 0.0
        a, n, ready, run, kw, roomy = _window(j, row, c, supply, demand, prices, free, theta, rho, has_limits, rise, work)
        if demand.pause_cost[j] == 0.0 and demand.again[j] == 0.0:
            # a pause is free: the cheapest seconds are the answer, unless they lie in too many or too short parts
            k, _, dearest = _least_of(n, run, work)
            best = _take_cheapest(supply, demand, j, row, c, kw, ready, run, a, n, here, fixed, dearest, best, work, out)
            if best < INF and best <= least + 1e-9 * abs(best):
                continue
        usual = _usual_length(work.length, n)
        score = np.nan
        if usual > 0.0:
            for i in range(n):
                work.gain[i] = kw * supply.energy[row, a + i] / (edges[a + i + 1] - edges[a + i])
            score = _counted_runs(
                demand, j, row, run, n, demand.pause_cost[j], demand.again[j], usual, work.gain, theta < 0.0, True, work
            )
            if score + fixed + moving >= best:
                continue
        if score < INF:
            lacks = run - _held(demand, j, row, n, work)
            if lacks > SLACK:
                for k in range(n):
                    work.under[k] = work.best[k]
            if lacks <= SLACK or _extend(demand, j, n, lacks, work):
                best = _take_runs(supply, demand, j, row, c, kw, ready, run, a, n, here, fixed, moving, best, work, out)
            least = score + fixed + moving
            if theta < 0.0 or best <= least + 1e-2 * abs(least):
                continue
        score, _, _, _, lacks = _runs_of(demand, j, row, run, n, demand.pause_cost[j], demand.again[j], -INF, 24, False, work)
        if score < INF:
            best = _take_runs(supply, demand, j, row, c, kw, ready, run, a, n, here, fixed, moving, best, work, out)
        if lacks < INF and _extend(demand, j, n, lacks, work):
            best = _take_runs(supply, demand, j, row, c, kw, ready, run, a, n, here, fixed, moving, best, work, out)
    return best


@compiled
def _held(demand, j, row, n, work):  # type: ignore[no-untyped-def]
    """The seconds of work that the runs of ``work.best`` hold, after their resumes."""
    seconds, starts = 0.0, 0
    for k in range(n):
        if work.best[k]:
            seconds += work.length[k]
            starts += k == 0 or not work.best[k - 1]
    if demand.here[j] != row or work.best[0]:
        starts -= 1
    return seconds - demand.again[j] * max(starts, 0)


@compiled
def _write_if_better(row, c, runs, score, cost, best, work, out):  # type: ignore[no-untyped-def]
    """Write runs, whose seconds and slots ``work`` holds, to ``out`` where they are better than ``best``; the better score."""
    if score >= best - 1e-12 or runs == 0:
        return best
    out.what[0] = row
    out.what[1] = c
    out.what[2] = runs
    out.cost[0] = cost
    for k in range(runs):
        out.begin[k] = work.on[k]
        out.end[k] = work.off[k]
        out.first[k] = work.order[k]
        out.stop[k] = work.needs[k]
    return score


@compiled
def _extend(demand, j, n, lacks, work):  # type: ignore[no-untyped-def]
    """Lengthen the runs of ``work.under``, which lack some seconds, by the cheapest slots beside them; the result is in
    ``work.best``. Returns whether there is room for them."""
    for k in range(n):
        work.best[k] = work.under[k]
    while lacks > SLACK:
        cheapest, at = INF, -1
        for k in range(n):
            if work.best[k] or not work.free[k] or work.length[k] <= 0.0:
                continue
            before = k > 0 and work.best[k - 1]
            after = k + 1 < n and work.best[k + 1]
            if not before and not after:
                continue
            # closing a gap saves a resume
            saved = work.length[k] + (demand.again[j] if before and after else 0.0)
            rate = (work.rate[k] * work.length[k] - (demand.pause_cost[j] if before and after else 0.0)) / saved
            if rate < cheapest:
                cheapest, at = rate, k
        if at < 0:
            return False
        lacks -= work.length[at]
        if at > 0 and at + 1 < n and work.best[at - 1] and work.best[at + 1]:
            lacks -= demand.again[j]
        work.best[at] = True
    return True


@compiled
def _take_runs(supply, demand, j, row, c, kw, ready, run, a, n, here, fixed, moving, best, work, out):  # type: ignore[no-untyped-def]
    """Write the runs of ``work.best`` to ``out``, shortened by what they hold too much, where that is better than ``best``;
    returns the better score."""
    edges = supply.edges
    chunk = min(demand.chunk[j], run)
    # runs that touch are one, and cost no resume
    seconds, starts = 0.0, 0
    for k in range(n):
        if work.best[k]:
            seconds += work.length[k]
            starts += k == 0 or not work.best[k - 1]
    resumes = starts - 1
    if here and not work.best[0]:
        resumes = starts
    more = seconds - demand.again[j] * resumes - run
    if more < -SLACK:
        return best
    # shorten: whole slots at the ends of runs, the dearest first, then a part of one run's last slot
    while more > SLACK:
        dearest, at = -INF, -1
        i = 0
        while i < n:
            if not work.best[i]:
                i += 1
                continue
            e, seconds = i, 0.0
            while e < n and work.best[e]:
                seconds += work.length[e]
                e += 1
            going_on = here and i == 0
            for end in (0, 1):
                t = e - 1 if end == 0 else i
                if going_on and end == 1:
                    continue
                whole = work.length[t] <= more + SLACK
                if end == 1 and not whole:
                    continue
                cut = min(work.length[t], more)
                if seconds - cut < (0.0 if going_on else chunk) - SLACK:
                    continue
                if work.rate[t] > dearest:
                    dearest, at = work.rate[t], t
            i = e
        if at < 0:
            break
        if work.length[at] <= more + SLACK:
            more -= work.length[at]
            work.best[at] = False
        else:
            break
    runs, score, cost, i = 0, fixed + moving, fixed, 0
    left = more
    first_again = not here
    cut_at, cut_rate = -1, -INF
    i = 0
    while i < n:  # the run whose last slot is the dearest gives the rest
        if work.best[i]:
            e, seconds = i, 0.0
            while e < n and work.best[e]:
                seconds += work.length[e]
                e += 1
            least = (0.0 if here and i == 0 else chunk) - SLACK
            can = SLACK < left < work.length[e - 1] and seconds - left >= least
            if can and work.rate[e - 1] > cut_rate:
                cut_rate, cut_at = work.rate[e - 1], e - 1
            i = e
        else:
            i += 1
    if left > SLACK and cut_at < 0:
        return best  # no run can give the rest: it would run longer than it has to
    i = 0
    while i < n:
        if not work.best[i]:
            i += 1
            continue
        e = i
        while e < n and work.best[e]:
            e += 1
        if runs >= MAX_RUNS:
            return best
        begin = max(edges[a + i], ready)
        end = min(edges[a + e], demand.last[j])
        if e - 1 == cut_at:
            end -= left
        if end - begin < (0.0 if here and i == 0 else chunk) - SLACK:
            return best
        for t in range(i, e):
            seconds = work.length[t]
            if t == cut_at:
                seconds -= left
            whole = edges[a + t + 1] - edges[a + t]
            energy = kw * supply.energy[row, a + t] / whole
            cost += energy * seconds
            # the room of a slot is taken whole, however short the run is in it
            score += energy * seconds + (work.rate[t] - energy) * work.length[t]
        work.on[runs] = begin
        work.off[runs] = end
        work.order[runs] = a + i
        work.needs[runs] = a + e
        if not (here and i == 0) and not (first_again):
            score += demand.pause_cost[j]
        first_again = False
        runs += 1
        i = e
    return _write_if_better(row, c, runs, score, cost, best, work, out)


@compiled
def _take_cheapest(supply, demand, j, row, c, kw, ready, run, a, n, here, fixed, dearest, best, work, out):  # type: ignore[no-untyped-def]
    """Write the cheapest seconds to ``out`` as they lie, where that is better than ``best``; returns the better score. They are
    all slots below the rate ``dearest``, and of those at it the earliest, the last of these in part."""
    edges = supply.edges
    chunk = min(demand.chunk[j], run)
    left = run
    for k in range(n):
        work.best[k] = work.free[k] and work.rate[k] < dearest
        if work.best[k]:
            left -= work.length[k]
    part = -1
    for k in range(n):
        if left <= SLACK:
            break
        if work.free[k] and work.rate[k] == dearest:
            work.best[k] = True
            if work.length[k] > left + SLACK:
                part = k
                break
            left -= work.length[k]
    runs, score, cost, i = 0, fixed, fixed, 0
    while i < n:
        if not work.best[i]:
            i += 1
            continue
        if runs >= MAX_RUNS:
            return best
        begin, end, e = max(edges[a + i], ready), 0.0, i
        while e < n and work.best[e]:
            seconds = work.length[e]
            whole = edges[a + e + 1] - edges[a + e]
            energy = kw * supply.energy[row, a + e] / whole
            end = min(edges[a + e + 1], demand.last[j])
            if e == part:
                seconds = left
            cost += energy * seconds
            score += energy * seconds + (work.rate[e] - energy) * work.length[e]
            e += 1
            if e - 1 == part:
                if e - 1 == i and e < n and work.best[e] and not (here and i == 0):
                    return best  # it would begin within a slot
                else:
                    end += left - work.length[e - 1]
                    break  # what comes after is a run of its own
        if end - begin < (0.0 if here and i == 0 else chunk) - SLACK:
            return best
        work.on[runs] = begin
        work.off[runs] = end
        work.order[runs] = a + i
        work.needs[runs] = a + e
        runs += 1
        i = e
    return _write_if_better(row, c, runs, score, cost, best, work, out)


# --- taking and giving back -------------------------------------------------------------------------------------------


@compiled
def occupy(j, supply, demand, free, placed, sign):  # type: ignore[no-untyped-def]
    """Take (sign 1) or give back (-1) the room of job ``j`` where it is placed."""
    row = placed.lane[j]
    if row == NOWHERE:
        return
    g, team, r = demand.gpus[j], demand.team[j], supply.region[row]
    w = _meter_w(supply, demand, j, row, placed.cap[j])
    for k in range(placed.runs[j]):
        for t in range(placed.first[j, k], placed.stop[j, k]):
            free.gpus[row, t] -= sign * g
            free.lane_w[row, t] -= sign * w
            free.region_w[r, t] -= sign * w
            free.starts[r, t] -= sign
            free.team[team, t] -= sign * g
    if sign > 0:
        placed.at[j] = placed.size[row]
        placed.members[row, placed.size[row]] = j
        placed.size[row] += 1
    else:
        placed.size[row] -= 1
        last = placed.members[row, placed.size[row]]
        placed.members[row, placed.at[j]] = last
        placed.at[last] = placed.at[j]


@compiled
def put(j, supply, demand, prices, found, placed):  # type: ignore[no-untyped-def]
    """Write an option down as where ``j`` is, without taking its room."""
    placed.lane[j] = found.what[0]
    if found.what[0] == NOWHERE:
        placed.runs[j] = 0
        placed.cost[j] = demand.unserved[j]
        placed.load[j] = 0.0
        return
    placed.cap[j] = found.what[1]
    placed.runs[j] = found.what[2]
    placed.cost[j] = found.cost[0]
    for k in range(found.what[2]):
        placed.begin[j, k] = found.begin[k]
        placed.end[j, k] = found.end[k]
        placed.first[j, k] = found.first[k]
        placed.stop[j, k] = found.stop[k]
    row, g, team = found.what[0], demand.gpus[j], demand.team[j]
    w = _meter_w(supply, demand, j, row, found.what[1])
    load = 0.0
    for k in range(found.what[2]):
        for t in range(found.first[k], found.stop[k]):
            load += g * (prices.gpu[row, t] + prices.team[team, t]) + w * prices.watt[row, t] + prices.start[row, t]
    placed.load[j] = load


@compiled
def weigh(supply, demand, prices, placed):  # type: ignore[no-untyped-def]
    """Write down anew what each job's room is worth."""
    for j in range(len(placed.lane)):
        row = placed.lane[j]
        placed.load[j] = 0.0
        if row == NOWHERE:
            continue
        g, team = demand.gpus[j], demand.team[j]
        w = _meter_w(supply, demand, j, row, placed.cap[j])
        for k in range(placed.runs[j]):
            for t in range(placed.first[j, k], placed.stop[j, k]):
                placed.load[j] += (
                    g * (prices.gpu[row, t] + prices.team[team, t]) + w * prices.watt[row, t] + prices.start[row, t]
                )


@compiled
def copy_place(j, placed, i, other):  # type: ignore[no-untyped-def]
    """Write down as where ``i`` is in ``other`` where ``j`` is in ``placed``, without any room taken or given back."""
    other.lane[i] = placed.lane[j]
    other.cap[i] = placed.cap[j]
    other.runs[i] = placed.runs[j]
    other.cost[i] = placed.cost[j]
    other.load[i] = placed.load[j]
    for k in range(placed.runs[j]):
        other.begin[i, k] = placed.begin[j, k]
        other.end[i, k] = placed.end[j, k]
        other.first[i, k] = placed.first[j, k]
        other.stop[i, k] = placed.stop[j, k]


# --- plans ------------------------------------------------------------------------------------------------------------


@compiled
def place_each(jobs, supply, demand, prices, free, placed, theta, has_limits, work, out):  # type: ignore[no-untyped-def]
    """Place ``jobs``, none of which is placed yet, one after the other in what is free. Returns how many found no place."""
    left_out = 0
    for j in jobs:
        look(j, supply, demand, prices, free, theta, -1.0, has_limits, work, out, prices)
        put(j, supply, demand, prices, out, placed)
        occupy(j, supply, demand, free, placed, 1)
        left_out += placed.lane[j] == NOWHERE
    return left_out


@compiled
def _crowding(j, supply, demand, prices, rise, free, placed, rho, has_limits):  # type: ignore[no-untyped-def]
    """What the room of ``j`` is worth where it is, at prices that rise by ``rho`` times ``rise`` with each unit that is taken
    beyond a limit by all others, and fall with each that is free (as in ``_window``)."""
    row, g, team = placed.lane[j], demand.gpus[j], demand.team[j]
    w = _meter_w(supply, demand, j, row, placed.cap[j])
    r = supply.region[row]
    gpu_price, watt_price, start_price, team_price = prices.gpu[row], prices.watt[row], prices.start[row], prices.team[team]
    gpu_rise, watt_rise, start_rise, team_rise = rise.gpu[row], rise.watt[row], rise.start[row], rise.team[team]
    gpu_free, lane_free, region_free = free.gpus[row], free.lane_w[row], free.region_w[r]
    start_free, team_free = free.starts[r], free.team[team]
    total = 0.0
    for k in range(placed.runs[j]):
        for t in range(placed.first[j, k], placed.stop[j, k]):
            total += _crowded(g, gpu_price[t], rho * gpu_rise[t], gpu_free[t])
            if has_limits:
                total += _crowded(w, watt_price[t], rho * watt_rise[t], min(region_free[t], lane_free[t]))
                total += _crowded(1.0, start_price[t], rho * start_rise[t], start_free[t])
                total += _crowded(g, team_price[t], rho * team_rise[t], team_free[t])
    return total


@compiled
def settle_each(jobs, turn, supply, demand, prices, rise, free, placed, rho, has_limits, work, out):  # type: ignore[no-untyped-def]
    """Let ``jobs`` choose anew one after the other, each where it pays least at prices that rise with what the others take;
    limits may be broken. One that pays no more than when it chose looks again in every third ``turn`` only. ``placed.load``
    holds what each paid for its room."""
    for j in jobs:
        occupy(j, supply, demand, free, placed, -1)
        if placed.lane[j] != NOWHERE and (j + turn) % 3 != 0:
            pays = _crowding(j, supply, demand, prices, rise, free, placed, rho, has_limits)
            if pays <= placed.load[j] + 1e-3 * abs(placed.cost[j]):
                occupy(j, supply, demand, free, placed, 1)
                continue
        look(j, supply, demand, prices, free, -1.0, rho, has_limits, work, out, rise)
        put(j, supply, demand, prices, out, placed)
        if placed.lane[j] != NOWHERE:
            placed.load[j] = _crowding(j, supply, demand, prices, rise, free, placed, rho, has_limits)
        occupy(j, supply, demand, free, placed, 1)


@compiled
def keep_each(jobs, old, supply, demand, prices, free, placed, has_limits, work, out):  # type: ignore[no-untyped-def]
    """Place ``jobs`` one after the other where they are in ``old``; one that does not fit there takes what is best at the
    prices in what is free."""
    for j in jobs:
        row, fits = old.lane[j], old.lane[j] != NOWHERE
        g, team, r = demand.gpus[j], demand.team[j], supply.region[row]
        if fits:
            w = _meter_w(supply, demand, j, row, old.cap[j])
            for k in range(old.runs[j]):
                for t in range(old.first[j, k], old.stop[j, k]):
                    fits = fits and _fits(
                        g, w, free.gpus[row, t], free.lane_w[row, t], free.region_w[r, t], free.starts[r, t], free.team[team, t]
                    )
        if fits:
            copy_place(j, old, j, placed)
        else:
            look(j, supply, demand, prices, free, 1.0, -1.0, has_limits, work, out, prices)
            put(j, supply, demand, prices, out, placed)
        occupy(j, supply, demand, free, placed, 1)


@compiled
def _bother(j, demand, placed):  # type: ignore[no-untyped-def]
    """What a job's place counts beside its cost: pauses and moves of what runs are a risk, a change of plan is a nuisance."""
    if placed.lane[j] == NOWHERE:
        return 0.0
    pauses = placed.runs[j] - 1
    if demand.here[j] >= 0 and (placed.lane[j] != demand.here[j] or placed.begin[j, 0] > SLACK):
        pauses += 1
    kept = placed.lane[j] == demand.planned[j, 0] and abs(placed.begin[j, 0] - demand.planned[j, 1]) < 1.0
    waited, run, ready = 0.0, 0.0, demand.ready[j, placed.lane[j]]
    for k in range(placed.runs[j]):
        seconds = placed.end[j, k] - placed.begin[j, k]
        run += seconds
        waited += seconds * ((placed.begin[j, k] + placed.end[j, k]) / 2.0 - (ready if ready < INF else 0.0))
    return pauses * demand.pause_cost[j] - (demand.keep[j] if kept else 0.0) + demand.wait[j] * waited / max(run, 1.0)


@compiled
def offer_again(jobs, supply, demand, prices, free, placed, theta, has_limits, work, out, undo):  # type: ignore[no-untyped-def]
    """Offer each of ``jobs`` what the others leave free now; it moves where that is cheaper. Returns what this saves."""
    saved = 0.0
    for j in jobs:
        before = placed.cost[j] + theta * placed.load[j] + _bother(j, demand, placed)
        copy_place(j, placed, 0, undo)
        occupy(j, supply, demand, free, placed, -1)
        look(j, supply, demand, prices, free, theta, -1.0, has_limits, work, out, prices)
        put(j, supply, demand, prices, out, placed)
        after = placed.cost[j] + theta * placed.load[j] + _bother(j, demand, placed)
        if after < before - 1e-9 * abs(before):
            saved += before - after
        else:
            copy_place(0, undo, j, placed)
        occupy(j, supply, demand, free, placed, 1)
    return saved


@compiled
def _is_short(supply, free, row, t):  # type: ignore[no-untyped-def]
    """Which limit a slot is over: 0 none, 1 the lane's own, 2 one of the region."""
    r = supply.region[row]
    if free.gpus[row, t] < -SLACK or free.lane_w[row, t] < -SLACK:
        return 1
    if free.region_w[r, t] < -SLACK or free.starts[r, t] < -SLACK:
        return 2
    return 0


@compiled
def _victim(j, supply, demand, free, placed, row, t, scope):  # type: ignore[no-untyped-def]
    """The job in slot ``t`` whose leaving mends most of what is over there for the least worth of room; -1: none."""
    r = supply.region[row]
    best, victim = INF, -1
    short_g, short_w = -free.gpus[row, t], -min(free.region_w[r, t], free.lane_w[row, t])
    for m in range(len(supply.region)):
        if m != row and (scope == 1 or supply.region[m] != r):
            continue
        for i in range(placed.size[m]):
            v = placed.members[m, i]
            if v == j:
                continue
            inside = False
            for k in range(placed.runs[v]):
                if placed.first[v, k] <= t < placed.stop[v, k]:
                    inside = True
                    break
            if not inside:
                continue
            part = 1.0
            if short_g > SLACK and m == row:
                part = min(part, demand.gpus[v] / short_g)
            if short_w > SLACK:
                w = _meter_w(supply, demand, v, m, placed.cap[v])
                part = min(part, w / short_w)
            if part <= 0.0:
                continue
            # what it could cost elsewhere is at least its floor: a job far above it loses little by going
            loss = (placed.load[v] + 1e-9) / part
            if loss < best:
                best, victim = loss, v
    return victim


@compiled
def _put_back(jobs, count, supply, demand, free, placed, undo):  # type: ignore[no-untyped-def]
    """Have the first ``count`` of ``jobs`` where ``undo`` holds them."""
    for i in range(count):
        occupy(jobs[i], supply, demand, free, placed, -1)
        placed.lane[jobs[i]] = NOWHERE
    for i in range(count):
        copy_place(i, undo, jobs[i], placed)
        occupy(jobs[i], supply, demand, free, placed, 1)


@compiled
def make_room(j, supply, demand, prices, free, placed, rho, has_limits, most, work, out, undo, touched, waiting):  # type: ignore[no-untyped-def]
    """Give job ``j`` a better place even where others must leave it, who are then placed anew, perhaps in the same way; all is
    undone unless the whole comes out cheaper. Returns what it saves.

    ``most`` jobs are touched at most; ``undo``, ``touched`` and ``waiting`` have room for so many.
    """
    count, pending, delta = 0, 0, 0.0
    waiting[0] = j
    pending = 1
    failed = False
    step = 0
    while pending > 0:
        pending -= 1
        v = waiting[pending]
        known = -1
        for i in range(count):
            if touched[i] == v:
                known = i
        if known < 0:
            if count >= most:
                failed = True
                break
            touched[count] = v
            copy_place(v, placed, count, undo)
            delta -= placed.cost[v] + _bother(v, demand, placed)
            count += 1
            occupy(v, supply, demand, free, placed, -1)
            placed.lane[v] = NOWHERE
            placed.runs[v] = 0
        # the first is to take a better place than it has; those it drives away take what is free, or drive away others
        soft = step == 0
        look(v, supply, demand, prices, free, 0.0, rho if soft else -1.0, has_limits, work, out, prices)
        if not soft and count < most - 1 and step < most:
            hard = out.cost[0] if out.what[0] != NOWHERE else demand.unserved[v]
            if delta + hard >= -1e-12:
                score = look(v, supply, demand, prices, free, 0.0, rho, has_limits, work, out, prices)
                if out.what[0] == NOWHERE or score >= hard - 1e-12:
                    look(v, supply, demand, prices, free, 0.0, -1.0, has_limits, work, out, prices)
        step += 1
        put(v, supply, demand, prices, out, placed)
        occupy(v, supply, demand, free, placed, 1)
        delta += placed.cost[v] + _bother(v, demand, placed)
        if step == 1 and delta >= -1e-12:
            failed = True
            break
        row = placed.lane[v]
        if row == NOWHERE:
            if delta >= -1e-12:
                failed = True
                break
            continue
        for k in range(placed.runs[v]):
            for t in range(placed.first[v, k], placed.stop[v, k]):
                scope = _is_short(supply, free, row, t)
                while scope > 0 and not failed:
                    other = _victim(v, supply, demand, free, placed, row, t, scope)
                    seen = False
                    for i in range(count):
                        if touched[i] == other:
                            seen = True
                    if other < 0 or seen or count >= most:
                        failed = True
                        break
                    touched[count] = other
                    copy_place(other, placed, count, undo)
                    delta -= placed.cost[other] + _bother(other, demand, placed)
                    count += 1
                    occupy(other, supply, demand, free, placed, -1)
                    placed.lane[other] = NOWHERE
                    placed.runs[other] = 0
                    waiting[pending] = other
                    pending += 1
                    scope = _is_short(supply, free, row, t)
                if failed:
                    break
            if failed:
                break
        if failed:
            break
    if not failed and delta < -1e-9:
        return -delta
    _put_back(touched, count, supply, demand, free, placed, undo)
    return 0.0


@compiled
def make_room_each(jobs, supply, demand, prices, free, placed, rho, has_limits, most, work, out, undo, touched, waiting):  # type: ignore[no-untyped-def]
    """``make_room`` for one job after the other; what it saves in all."""
    saved = 0.0
    for j in jobs:
        saved += make_room(j, supply, demand, prices, free, placed, rho, has_limits, most, work, out, undo, touched, waiting)
    return saved


@compiled
def anneal(  # type: ignore[no-untyped-def]
    steps,
    seed,
    hot,
    cold,
    alive,
    area,
    noise,
    loud,
    supply,
    demand,
    prices,
    free,
    placed,
    has_limits,
    work,
    out,
    undo,
    chosen,
    best,
):
    """Take a few related jobs out and place them anew, over and over; a worse outcome is kept with a chance that falls as it
    cools from ``hot`` to ``cold`` (ruin and recreate: Schrimpf et al. 2000; simulated annealing: Kirkpatrick et al. 1983).

    Half of the time places are weighed at prices made up for the moment, in ``noise`` and up to ``loud`` a GPU and slot, so
    that jobs leave the best places to others. ``alive`` are the jobs there are; ``undo`` and ``chosen`` have room for some of
    them. The best plan is left in ``best`` (of ``placed``'s size). Returns how much better than at first the best plan is, and
    how much better the last.
    """
    np.random.seed(seed)
    now, least, n = 0.0, 0.0, len(alive)
    most = min(len(chosen), n)
    for j in alive:
        copy_place(j, placed, j, best)
    for step in range(steps):
        temperature = hot * (cold / hot) ** (step / steps)
        if step % 16 == 0:
            for row in range(noise.gpu.shape[0]):
                for t in range(noise.gpu.shape[1]):
                    noise.gpu[row, t] = loud * np.random.random() ** 3
        centre = alive[np.random.randint(n)]
        for _ in range(6):  # those without a place are looked at more often
            if placed.lane[centre] == NOWHERE:
                break
            other = alive[np.random.randint(n)]
            if placed.lane[other] == NOWHERE:
                centre = other
        chosen[0] = centre
        count = 1
        wanted = 1 + np.random.randint(1, most + 1)
        ready = demand.ready[centre, demand.order[centre, 0]]
        for _ in range(4 * wanted):
            if count >= min(wanted, most):
                break
            other = alive[np.random.randint(n)]
            near = demand.ready[other, demand.order[other, 0]] < demand.last[centre] and ready < demand.last[other]
            for i in range(count):
                if chosen[i] == other:
                    near = False
            if near:
                chosen[count] = other
                count += 1
        before = 0.0
        for i in range(count):
            j = chosen[i]
            before += placed.cost[j] + _bother(j, demand, placed)
            copy_place(j, placed, i, undo)
            occupy(j, supply, demand, free, placed, -1)
            placed.lane[j] = NOWHERE
            placed.runs[j] = 0
        # the order in which they come back: large ones rather first, and by chance
        by_chance = np.random.random() < 0.5
        for i in range(count):
            work.value[i] = np.random.random() * (1.0 if by_chance else area[chosen[i]])
            work.order[i] = i
        for i in range(1, count):
            k = i
            while k > 0 and work.value[work.order[k - 1]] < work.value[work.order[k]]:
                work.order[k - 1], work.order[k] = work.order[k], work.order[k - 1]
                k -= 1
        theta = 0.0 if np.random.random() < 0.5 else np.random.random()
        noisy = np.random.random() < 0.5
        for i in range(count):
            undo.at[i] = work.order[i]
        after = 0.0
        for i in range(count):
            j = chosen[undo.at[i]]
            look(j, supply, demand, noise if noisy else prices, free, theta, -1.0, has_limits, work, out, prices)
            put(j, supply, demand, prices, out, placed)
            occupy(j, supply, demand, free, placed, 1)
            after += placed.cost[j] + _bother(j, demand, placed)
        change = after - before
        if change <= 0.0 or np.random.random() < np.exp(-change / temperature):
            now += change
            if now < least - 1e-9:
                least = now
                for j in alive:
                    copy_place(j, placed, j, best)
            continue
        _put_back(chosen, count, supply, demand, free, placed, undo)
    return -least, -now
