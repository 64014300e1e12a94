"""An agent's enforcing part as a process of its own: orders come in as JSON lines, results go out as JSON lines.

    python caps_child.py FOLDER

Started by tests, which kill it at any moment.
"""

import dataclasses
import json
import select
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from dispatcher.agent.caps import CapOrders, Enforcer, SetCap
from dispatcher.agent.devices import Devices
from dispatcher.agent.leases import LeaseBook


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    """Until the input ends."""
    book = LeaseBook(sys.argv[1])
    enforcer = Enforcer(Devices(), book)
    say(leases=[lease.lease_id for lease in book.leases()], notices=book.notices())
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.25)
        states = enforcer.step()
        if not ready:
            continue
        line = sys.stdin.readline()
        if not line:
            return
        order = json.loads(line)
        if order == "states":
            say(states={state.uuid: [state.state, state.detail] for state in states})
            continue
        sets = tuple(SetCap(**one) for one in order["set"])
        say(results=[dataclasses.asdict(one) for one in enforcer.apply(CapOrders(order["epoch"], sets, order["release"]))])


if __name__ == "__main__":
    main()
