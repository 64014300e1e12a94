"""openleadr's own OpenADR 2.0b VTN as a program for tests: an independent peer, told what to do by lines of JSON on stdin.

Each line is ``[command, argument..]`` and is answered by one line on stdout that begins with "@".
"""

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from openleadr import OpenADRServer
from openleadr.objects import ActivePeriod, Event, EventDescriptor, EventSignal, Interval


class Vtn:
    """The server, and what a VEN has told it."""

    def __init__(self, port: int) -> None:
        self.known: dict[str, str] = {}
        self.opts: list[list[str]] = []
        self.reported: list[list[Any]] = []
        self.asks_reports = True
        self.server = OpenADRServer(
            vtn_id="utility", http_port=port, requested_poll_freq=timedelta(seconds=7), ven_lookup=self.lookup
        )
        self.server.add_handler("on_create_party_registration", self.register)
        self.server.add_handler("on_register_report", self.offered)

    async def register(self, payload: dict[str, Any]) -> tuple[str, str]:
        self.known[payload["ven_name"]] = f"registration-{len(self.known)}"
        return "ven-17", self.known[payload["ven_name"]]

    def lookup(self, ven_id: str) -> dict[str, Any] | None:
        return {"ven_id": ven_id, "registration_id": "r", "fingerprint": None} if self.known else None

    async def offered(self, ven_id: str, resource_id: str, measurement: str, unit: str, scale: str, min_sampling_interval: Any,
                      max_sampling_interval: Any) -> Any:  # fmt: skip
        if not self.asks_reports:
            return None
        return lambda values: self.heard(resource_id, measurement, values), timedelta(minutes=1), timedelta(minutes=2)

    async def heard(self, resource_id: str, measurement: str, values: list[Any]) -> None:
        self.reported.append([resource_id, measurement, [[at.isoformat(), value] for at, value in values]])

    async def opted(self, ven_id: str, event_id: str, opt_type: str) -> None:
        self.opts.append([event_id, opt_type])

    def add(self, event_id: str, start: str, length_s: float, kind: str, value: float, required: str) -> str:
        begin, length = datetime.fromisoformat(start), timedelta(seconds=length_s)
        signal = EventSignal([Interval(begin, length, value)], "LOAD_DISPATCH", kind, f"signal-{event_id}")
        event = Event(
            EventDescriptor(event_id, 0, "http://market.example", "far", created_date_time=datetime.now(UTC)),
            [signal],
            targets=[{"ven_id": "ven-17"}],
            active_period=ActivePeriod(begin, length),
            response_required=required,
        )
        self.server.add_raw_event("ven-17", event, callback=self.opted)
        return event_id

    def change(self, event_id: str, value: float) -> int:
        event = next(e for e in self.server.events["ven-17"] if e.event_descriptor.event_id == event_id)
        event.event_signals[0].intervals[0].signal_payload = value
        event.event_descriptor.modification_number += 1
        self.server.event_callbacks[event_id] = (event, self.opted)
        self.server.events_updated["ven-17"] = True
        return int(event.event_descriptor.modification_number)

    def cancel(self, event_id: str) -> None:
        self.server.cancel_event("ven-17", event_id)

    def drop(self, event_id: str) -> None:
        """Leave an event out from now on, without a word."""
        kept = [e for e in self.server.events["ven-17"] if e.event_descriptor.event_id != event_id]
        self.server.events["ven-17"][:] = kept
        self.server.events_updated["ven-17"] = True

    def forget(self) -> None:
        self.known.clear()

    def told(self) -> dict[str, Any]:
        return {"opts": self.opts, "reported": self.reported, "events": len(self.server.events.get("ven-17", []))}


async def main(port: int) -> None:
    vtn = Vtn(port)
    await vtn.server.run()
    loop = asyncio.get_running_loop()
    print("@" + json.dumps("ready"), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *arguments = json.loads(line)
        print("@" + json.dumps(getattr(vtn, command)(*arguments)), flush=True)
    await vtn.server.stop()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
