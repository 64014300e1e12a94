"""What surrounds the jobs of a backtest at a moment: regions as far as they are known, limits, events and the policy's gates.

It looks into a scenario's future only through its Foresight, and at what is announced: events, shift rules and serving headroom
within the planner's horizon.
"""

from datetime import datetime, timedelta

from dispatcher.backtest.scenario import Known, Scenario, SimRegion
from dispatcher.store.copying import maker
from policies.policy import Policy
from policies.room import Room, coming_at, empty_room, kept_at, limit_at
from policies.world import Budget, Plan, RegionView, ShiftWindow, World

_world = maker(World)


class Surroundings:
    """They are as they were at the last ``look``. ``rooms`` are kept up to date by whoever launches and ends jobs."""

    def __init__(self, scenario: Scenario, policy: Policy) -> None:
        self._scenario, self._policy = scenario, policy
        self._horizon = timedelta(seconds=scenario.settings.horizon_s)
        self.views = tuple[RegionView, ...]()
        self._budgets = tuple[Budget, ...]()
        self._shifts = tuple[ShiftWindow, ...]()
        self._gates: dict[str, float] = {}
        self.rooms: dict[str, Room] = {}
        self.look(scenario.start)
        self.rooms.update({view.name: empty_room(view, self._budgets, scenario.start) for view in self.views})
        self.set_gates(scenario.start)

    def look(self, now: datetime) -> None:
        """Take in what is known of the signals now, and what is announced."""
        until = now + self._horizon
        known = self._scenario.foresight.views(now)
        self.views = tuple(_view(region, known.get(region.name, _NOTHING), now, until) for region in self._scenario.regions)
        for view in self.views:
            if view.name in self.rooms:
                self.rooms[view.name].view = view
        events, shifts = self._scenario.events, self._scenario.shifts
        self._budgets = tuple(b for b in events if (b.end is None or b.end > now) and b.start < until)
        self._shifts = tuple(s for s in shifts if s.end > now and s.start < until)

    def set_gates(self, now: datetime) -> list[str]:
        """Ask the policy for its bounds on flexible work; the regions where they are others than before."""
        changed, gates = [], {}
        for view in self.views:
            gate, room = self._policy.gate(view, now), self.rooms[view.name]
            if gate is not None:
                gates[view.name] = gate
            if room.gate != gate:
                room.gate = gate
                changed.append(view.name)
        self._gates = gates
        return changed

    def set_limits(self, now: datetime) -> list[str]:
        """Put the limits in force, those about to begin and the serving headroom into the rooms; the regions where they are
        others than before."""
        changed = []
        for name, room in self.rooms.items():
            before = (room.limit_w, room.kept_gpus, room.kept_w, room.coming)
            room.limit_w, room.limit_reason = limit_at(room.view, self._budgets, now)
            room.kept_gpus, room.kept_w = kept_at(room.view, now)
            room.coming = coming_at(room.view, self._budgets, now)
            if (room.limit_w, room.kept_gpus, room.kept_w, room.coming) != before:
                changed.append(name)
        return changed

    def world(self, now: datetime, plan: Plan | None) -> World:
        """The world without its jobs."""
        settings = self._scenario.settings
        return _world(now, (), self.views, self._budgets, self._shifts, settings, plan, self._gates)


_NOTHING = Known(None, None)


def _view(region: SimRegion, known: Known, now: datetime, until: datetime) -> RegionView:
    return RegionView(
        name=region.name,
        reachable=True,
        gpus=region.gpus,
        max_jobs=region.max_jobs,
        power_limit_w=region.power_limit_w,
        price=known.price,
        carbon=known.carbon,
        currency=region.signals.currency,
        fx=region.fx,
        pue=region.pue,
        carbon_kind=region.signals.carbon_kind,
        pools=region.pools,
        caps=region.caps,
        reserved=tuple(one for one in region.reserved if one.end > now and one.start < until),
    )
