"""A control plane for tests of the console: a night of prices, carbon, a plan and twenty jobs, held in memory."""

import json
import math
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.power.fleet_samples import an_hour, busy_fleet
from tests.ui import fake_events

NOW = datetime(2026, 3, 3, 3, 12, 5, tzinfo=UTC)
SLOT = timedelta(minutes=15)
START = datetime(2026, 3, 3, 3, 0, tzinfo=UTC)
SLOTS = 192
Json = dict[str, Any]


def iso(at: datetime | None) -> str | None:
    """As the API writes times."""
    return None if at is None else at.isoformat()


def price(region: str, i: int) -> float | None:
    """A price a slot: cheap at night and noon, with negative hours in the north; two unknown hours in the west."""
    hour = (3 + i / 4) % 24
    wave = math.cos((hour - 18) / 24 * 2 * math.pi)
    if region == "eu-west":
        return None if 60 <= i < 68 else round(74 + 46 * wave + 14 * math.cos(hour / 12 * 2 * math.pi), 2)
    return round(28 + 36 * math.cos((hour - 19) / 24 * 2 * math.pi), 2)


def carbon(region: str, i: int) -> float:
    """Carbon a slot."""
    hour = (3 + i / 4) % 24
    return round((310 if region == "eu-west" else 46) * (1 + 0.3 * math.cos((hour - 19) / 24 * 2 * math.pi)), 1)


def job(n: int, state: str, reason: str, **more: Any) -> Json:
    """A job with everything that the API tells."""
    base: Json = {
        "id": f"gs-{0x7A3C91D2B5E0 + 977 * n:012x}",
        "state": state,
        "reason": reason,
        "entrypoint": f"python train.py --config configs/run_{n}.yaml --epochs 40",
        "metadata": {"gridshift.deadline": "8h"},
        "region": None,
        "attempt": 0,
        "submitted_at": iso(NOW - timedelta(minutes=30 + 11 * n)),
        "started_at": None,
        "finished_at": None,
        "planned_region": None,
        "planned_start_at": None,
        "deadline_at": iso(NOW + timedelta(hours=6 + n)),
        "earliest_at": None,
        "runtime_s": 7200.0,
        "remaining_s": 7200.0 if state not in ("succeeded", "failed", "cancelled") else 0.0,
        "gpus": 2.0,
        "power_w": 900.0,
        "pausable": "checkpoint",
        "tier": "flex-1",
        "priority": 0,
        "team": ("vision", "speech", "ops")[n % 3],
        "group": "nightly",
        "flexible": True,
        "held": False,
        "cancel_requested": False,
        "pauses": 0,
        "energy_kwh": None,
        "energy_basis": "modelled",
        "cost": None,
        "cost_currency": None,
        "carbon_kg": None,
        "error_type": None,
        "exit_code": None,
        "has_result": False,
    }
    if state in ("running", "pausing", "launching", "succeeded", "failed"):
        base |= {"region": "nordics", "attempt": 1, "started_at": iso(NOW - timedelta(minutes=20))}
    if state in ("succeeded", "failed"):
        base |= {"finished_at": iso(NOW - timedelta(minutes=3)), "energy_kwh": 1.82, "cost": 0.071, "cost_currency": "EUR"}
        base |= {"carbon_kg": 0.084}
    return base | more


def some_jobs() -> list[Json]:
    """Twenty jobs, some in every state."""
    waits = "waits for the cheapest hours before its deadline: nordics from 11:00 costs 0.11 EUR, starting now 0.48 EUR"
    jobs = [job(n, "running", "runs in the cheapest region until its work is done") for n in range(3)]
    jobs += [job(3, "running", "the last safe moment to start had come", region="eu-west", held=False)]
    jobs += [job(4, "pausing", "asked for a checkpoint: power budget 3.0 kW in nordics until 06:00 (grid scarcity)")]
    jobs += [job(5, "launching", "its planned start has come", region="nordics")]
    paused = "paused: power budget 3.0 kW in nordics until 06:00; resumes in eu-west at 04:30"
    jobs += [
        job(
            n,
            "paused",
            paused,
            attempt=1,
            pauses=1,
            planned_region="eu-west",
            planned_start_at=iso(NOW + timedelta(minutes=78)),
        )
        for n in (6, 7)
    ]
    jobs += [job(8, "paused", "held by its owner until resumed", held=True, attempt=1, region="eu-west", pauses=2)]
    jobs += [
        job(
            n, "queued", waits, planned_region="nordics", planned_start_at=iso(START + timedelta(hours=8, minutes=15 * (n - 9)))
        )
        for n in range(9, 14)
    ]
    jobs += [job(14, "queued", "no room: needs 16 GPUs, the largest region has 12", gpus=16.0, team="<b>ops</b>")]
    jobs += [job(15, "succeeded", "it ended well"), job(16, "succeeded", "it ended well")]
    jobs += [job(17, "failed", "exit code 1: CUDA out of memory on node 3", error_type="JobFailed", exit_code=1)]
    jobs += [job(18, "cancelled", "cancelled before it started", finished_at=iso(NOW - timedelta(hours=1)))]
    jobs += [job(19, "succeeded", "it ended well", pauses=1, attempt=2)]
    return jobs


class FakeControlPlane:
    """Listens on loopback from start() to stop(), at the same port each time; ``posts`` are the requests that changed it."""

    def __init__(self) -> None:
        self.jobs = some_jobs()
        self.posts: list[str] = []
        self.tokens: set[str | None] = set()
        self.tables = 0  # how often the page has asked for the jobs of its table
        self.replay, self.speed = False, 1.0
        self.regions_known, self.planned, self.alarmed = True, True, True
        self.refuse: dict[str, tuple[int, Json]] = {}
        self.fleet, self.energy = busy_fleet(NOW), an_hour(NOW)
        self.events, self.limits = fake_events.some_events(), fake_events.some_limits()
        self.power, self.flexibility = fake_events.some_power(), fake_events.flexibility()
        self.token: str | None = None
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> "FakeControlPlane":
        """Listen."""
        plane = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def _any(self) -> None:
                plane.tables += "state=running" in self.path
                sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, value = plane._answer(self.command, self.path, self.headers.get("Authorization"), sent)
                body = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_DELETE = _any

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            connections: set[Any]

            def finish_request(self, request: Any, client_address: Any) -> None:
                plane._connections.add(request)
                try:
                    super().finish_request(request, client_address)
                finally:
                    plane._connections.discard(request)

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client went away

        self._connections: set[Any] = set()
        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop listening, and cut the connections that are open."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            for connection in list(self._connections):
                try:
                    connection.shutdown(2)
                except OSError:
                    continue  # it is gone already
            self._thread.join()
        self._server = self._thread = None

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, method: str, target: str, authorization: str | None, body: bytes = b"") -> tuple[int, Json]:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        path = unquote(parts.path)
        self.tokens.add(authorization)
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 401, {"error": {"message": "this needs an API token", "problems": []}}
        if path in self.refuse:
            return self.refuse[path]
        if path.endswith("/opt-out"):
            return self._opt(method, path, body)
        if method == "POST":
            return self._act(path)
        match path.strip("/").split("/")[1:]:
            case ["status"]:
                return 200, self.status()
            case ["fleet"]:
                return 200, self.fleet
            case ["energy"]:
                return 200, self.energy
            case ["regions"]:
                return 200, {"regions": self.regions() if self.regions_known else []}
            case ["events"]:
                events, limits = (self.events, self.limits) if self.alarmed else ([], [])
                return 200, {"events": events, "left_out": 0, "limits": limits}
            case ["events", _, event_id, "report"]:
                return fake_events.report(event_id)
            case ["meters"]:
                return 200, {"meters": [], "power": self.power}
            case ["draw"]:
                return 200, fake_events.draw(query["region"], query.get("branch"))
            case ["flexibility"]:
                return 200, self.flexibility
            case ["savings"]:
                return 200, self.savings()
            case ["signals"]:
                return self.signals(query)
            case ["plan"]:
                return (200, self.plan()) if self.planned else self._missing("there is no plan yet")
            case ["plan", job_id]:
                return self._explain(job_id)
            case ["jobs"]:
                return 200, self._page(query)
            case ["jobs", job_id]:
                return self._one(job_id)
            case ["jobs", job_id, "events"]:
                return 200, {"events": self._history(job_id)}
        return self._missing(f"no {path} here")

    def _missing(self, message: str) -> tuple[int, Json]:
        return 404, {"error": {"message": message, "problems": []}}

    def _find(self, job_id: str) -> Json | None:
        return next((one for one in self.jobs if one["id"] == job_id), None)

    def _act(self, path: str) -> tuple[int, Json]:
        _, _, job_id, verb = path.strip("/").split("/")
        self.posts.append(f"{verb} {job_id}")
        found = self._find(job_id)
        if found is None:
            return self._missing(f"there is no job {job_id}")
        if verb == "pause" and found["pausable"] == "no":
            return 409, {"error": {"message": f"job {job_id} cannot be paused while it runs", "problems": []}}
        found |= {"cancel": {"cancel_requested": True}, "pause": {"held": True}, "resume": {"held": False}}[verb]
        return 200, found

    def _opt(self, method: str, path: str, body: bytes) -> tuple[int, Json]:
        event_id = path.split("/")[-2]
        found = next(one for one in self.events if one["event_id"] == event_id)
        found["opted_out"] = json.loads(body)["reason"] if method == "POST" else None
        self.posts.append(f"{method} {event_id} {found['opted_out']}")
        return 200, {"event": found}

    def _page(self, query: dict[str, str]) -> Json:
        wanted = [
            one for one in self.jobs if query.get("state") in (None, one["state"]) and query.get("team") in (None, one["team"])
        ]
        first, size = int(query.get("cursor") or 0), int(query.get("limit") or 100)
        more = first + size < len(wanted)
        return {"jobs": wanted[first : first + size], "next_cursor": str(first + size) if more else None}

    def _one(self, job_id: str) -> tuple[int, Json]:
        found = self._find(job_id)
        if found is None:
            return self._missing(f"there is no job {job_id}")
        tries = [
            {
                "attempt": n,
                "region": "nordics" if n == found["attempt"] else "eu-west",
                "submission_id": f"{job_id}-{n}",
                "launched_at": iso(NOW - timedelta(minutes=21 * (3 - n))),
                "accepted_at": None,
                "started_at": iso(NOW - timedelta(minutes=20)),
                "ended_at": None if found["state"] == "running" else iso(NOW - timedelta(minutes=2)),
                "outcome": None if found["state"] == "running" else "stopped",
                "message": "" if found["state"] == "running" else "stopped after its checkpoint was saved",
            }
            for n in range(1, found["attempt"] + 1)
        ]
        return 200, {**found, "attempts": tries}

    def _history(self, job_id: str) -> list[Json]:
        found = self._find(job_id)
        state = found["state"] if found else "queued"
        told = [("submitted", None, "queued", "submitted with a deadline"), ("plan", "queued", "queued", "planned")]
        if state != "queued":
            told += [("state", "queued", "launching", "its planned start has come")]
            told += [("state", "launching", "running", "the cluster runs it")]
        return [
            {"seq": i, "at": iso(NOW - timedelta(minutes=30 - i)), "kind": kind, "old_state": old, "new_state": new}
            | {"reason": reason, "attempt": 0, "region": None}
            for i, (kind, old, new, reason) in enumerate(told)
        ]

    def status(self) -> Json:
        """GET /v1/status."""
        counts: dict[str, int] = {}
        for one in self.jobs:
            counts[one["state"]] = counts.get(one["state"], 0) + 1
        unreachable = "us-east does not answer: connection refused (10.8.0.7:8265); its 2 jobs are unknown, nothing new is sent"
        alarm = {
            "key": "unreachable us-east",
            "region": "us-east",
            "sentence": unreachable,
            "since": iso(NOW - timedelta(minutes=7)),
        }
        loop = {"name": "control", "period_s": 1.0, "last_run_at": iso(NOW), "last_s": 0.03, "runs": 9000, "last_error": None}
        return {
            "now": iso(NOW),
            "speed": self.speed,
            "version": "0.1.0",
            "counts": counts,
            "loops": [loop],
            "alarms": [alarm] if self.alarmed else [],
            "energy_basis": "modelled",
            "replay": self.replay,
        }

    def regions(self) -> list[Json]:
        """GET /v1/regions: two that answer, one that does not and whose carbon is unknown."""

        def one(name: str, **more: Any) -> Json:
            base: Json = {"name": name, "address": "http://10.8.0.5:8265", "reachable": True, "observed_at": iso(NOW)}
            base |= {"error": None, "ray_version": "2.50.1", "gpus": 8.0, "gpus_used": 2.0, "jobs_running": 1}
            base |= {"draw_w": 1080.0, "power_limit_w": None, "budget_w": None, "currency": "EUR", "pue": 1.2}
            source = "energy_charts" if name == "eu-west" else "synthetic"
            base["price"] = {"unit": "EUR/MWh", "source": source, "now": price(name, 0), "basis": "published"}
            base["carbon"] = {"unit": "gCO2e/kWh", "source": "synthetic", "now": carbon(name, 0), "basis": "published"}
            return base | more

        gone = "connection refused (10.8.0.7:8265)"
        away = {"reachable": False, "error": gone, "observed_at": iso(NOW - timedelta(minutes=7)), "carbon": None}
        away["price"] = {"unit": "EUR/MWh", "source": "csv us.csv", "now": None, "basis": "unknown"}
        nordics = {
            "gpus": 12.0,
            "gpus_used": 8.0,
            "jobs_running": 4,
            "draw_w": 4320.0,
            "budget_w": 3000.0,
            "power_limit_w": 9000.0,
        }
        return [one("eu-west", power_limit_w=6000.0), one("nordics", **nordics), one("us-east", **away)]

    def savings(self) -> Json:
        """GET /v1/savings."""
        totals = {"jobs": 5, "energy_kwh": 9.1, "cost": 0.36, "cost_run_now": 0.93, "carbon_kg": 0.42, "carbon_kg_run_now": 2.7}
        caveat = "energy is modelled from each job's expected draw, not metered"
        return {"energy_basis": "modelled", "currency": "EUR", "totals": totals | {"deadline_misses": 0}, "caveats": [caveat]}

    def signals(self, query: dict[str, str]) -> tuple[int, Json]:
        """GET /v1/signals: prices are published until 23:00 and forecast from then on, carbon is published."""
        if not query:
            regions = ("eu-west", "nordics", "us-east")
            return 200, {"signals": [self._status(region, kind) for region in regions for kind in ("price", "carbon")]}
        region, kind = query["region"], query["kind"]
        if region == "us-east":
            return self._missing(f"region {region} has no {kind}")
        value = price if kind == "price" else carbon
        values = [value(region, i) for i in range(SLOTS)]
        known = 80 if kind == "price" else SLOTS
        basis = ["unknown" if v is None else "published" if i < known else "model" for i, v in enumerate(values)]
        band = [None if label != "model" else 4.0 + 0.06 * i for i, label in enumerate(basis)]
        low = [None if v is None or w is None else v - w for v, w in zip(values, band, strict=True)]
        high = [None if v is None or w is None else v + 1.3 * w for v, w in zip(values, band, strict=True)]
        answer = {"start": iso(START), "slot_s": 900, "values": values, "basis": basis, "low": low, "high": high}
        reason = "model of 182 days of history" if kind == "price" else ""
        return 200, self._status(region, kind) | answer | {"reason": reason}

    def _status(self, region: str, kind: str) -> Json:
        unit = "EUR/MWh" if kind == "price" else "gCO2e/kWh"

        def source(name: str, state: str, **more: Any) -> Json:
            base: Json = {
                "feed": name,
                "source": name,
                "state": state,
                "chosen": state == "fresh",
                "why": state,
                "age_s": 372.0,
            }
            base |= {"known_until": None, "quality": "measured", "due_at": iso(NOW), "error": None, "warnings": []}
            return base | more

        fails = source("entsoe", "failed", age_s=None, error="no answer <i>within</i> 20 s", why="no answer <i>within</i> 20 s")
        sources = [source("energy_charts", "fresh")]
        why = "energy_charts, the first source, is fresh"
        if region == "eu-west" and kind == "price":
            sources, why = [fails, *sources], "entsoe: no answer <i>within</i> 20 s; energy_charts: is fresh"
        elif region == "us-east":
            sources, why = ([fails], "entsoe: no answer") if kind == "price" else ([], "no source is configured")
        base: Json = {"region": region, "kind": kind, "signal": "price" if kind == "price" else "carbon_average", "unit": unit}
        base |= {"source": "energy_charts", "now": 1.0, "basis": "published", "low": None, "high": None}
        return base | {"why": why, "sources": sources}

    def plan(self) -> Json:
        """GET /v1/plan."""
        placements = []
        for i, one in enumerate(self.jobs):
            if one["state"] in ("succeeded", "failed", "cancelled") or one["gpus"] > 12 or one["held"]:
                continue
            begin = datetime.fromisoformat(one["planned_start_at"]) if one["planned_start_at"] else START
            spans = [
                [iso(begin), iso(begin + timedelta(hours=1))],
                [iso(begin + timedelta(hours=1)), iso(begin + timedelta(hours=2))],
            ]
            region = one["planned_region"] or one["region"] or "nordics"
            placements.append(
                {"job_id": one["id"], "region": region, "intervals": spans, "cost": 0.11, "run_now_cost": 0.48}
                | {"energy_kwh": 2.16, "carbon_kg": 0.1, "late_s": 1500.0 if i == 13 else 0.0, "reason": one["reason"]}
            )
        unplaced = {one["id"]: one["reason"] for one in self.jobs if one["gpus"] > 12}
        return {"made_at": iso(NOW), "horizon_end": iso(START + SLOTS * SLOT), "slot_s": 900, "currency": "EUR"} | {
            "objective": 1.92,
            "bound": 1.87,
            "gap": 0.026,
            "placements": placements,
            "unplaced": unplaced,
        }

    def _explain(self, job_id: str) -> tuple[int, Json]:
        found = self._find(job_id)
        if found is None:
            return self._missing(f"there is no job {job_id}")
        made = next((p for p in self.plan()["placements"] if p["job_id"] == job_id), None)
        other = {
            "region": "eu-west",
            "start_at": iso(START + timedelta(hours=10)),
            "cost": 0.31,
            "why_not": "dearer by 0.20 EUR",
        }
        now = {
            "region": "nordics",
            "start_at": iso(NOW),
            "cost": 0.48,
            "why_not": "the price now is 52 EUR/MWh, at 11:00 it is 12",
        }
        return 200, {"job": found, "placement": made, "alternatives": [other, now], "why": found["reason"]}
