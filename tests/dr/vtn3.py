"""A small OpenADR 3 VTN on loopback, of 3.1 or 3.0.1, for tests: objects, OAuth2, paging, callbacks, and faults by switch.

What comes in and what goes out is checked against the Alliance's own schemas where their folder is there. A test changes its
objects by the methods of `Vtn`, which stand for the utility's side.
"""

import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import requests
import uvicorn
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.helpers import free_port, wait_until

TYPES = {"programs": "PROGRAM", "events": "EVENT", "reports": "REPORT", "subscriptions": "SUBSCRIPTION", "vens": "VEN"}
_VERB = {"3.0.1": {"CREATE": "POST", "UPDATE": "PUT", "DELETE": "DELETE"}}


class Schemas:
    """The official schemas of one version; OpenAPI's ``nullable`` becomes a type, and unusable discriminators go."""

    def __init__(self, folder: Path, version: str) -> None:
        name = "3.1.0" if version == "3.1" else version
        document = yaml.safe_load((folder / "openadr3" / name / "openadr3.yaml").read_text())
        self._version = version
        resource = Resource.opaque(_plain(document))
        self._registry: Registry[Any] = Registry().with_resource("urn:openadr3", resource)

    def check(self, name: str, value: Any) -> None:
        """Raises AssertionError with the first thing that is wrong."""
        schema = {"$ref": f"urn:openadr3#/components/schemas/{name}"}
        found = sorted(
            Draft202012Validator(schema, registry=self._registry).iter_errors(value), key=lambda e: list(map(str, e.path))
        )
        assert not found, f"{name}: {'/'.join(map(str, found[0].path))}: {found[0].message} in {json.dumps(value)[:500]}"

    def check_notification(self, value: Any) -> None:
        """The envelope, and its object by the schema that ``objectType`` names: the official choice between them is broken."""
        shape = {"objectType": str, "operation": str, "object": dict}
        assert all(isinstance(value.get(key), kind) for key, kind in shape.items()), value
        words = ("GET", "POST", "PUT", "DELETE") if self._version == "3.0.1" else ("READ", "CREATE", "UPDATE", "DELETE")
        assert value["operation"] in words, value["operation"]
        self.check(value["objectType"].lower(), value["object"])

    def request_name(self, kind: str) -> str:
        """The schema of what a client sends."""
        name = TYPES[kind].lower()
        return name if self._version == "3.0.1" else f"{name}Request"


def _plain(value: Any) -> Any:
    """OpenAPI 3.0 as JSON Schema."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    out = {key: _plain(one) for key, one in value.items() if key not in ("discriminator", "nullable", "example")}
    if value.get("nullable") and isinstance(value.get("type"), str):
        out["type"] = [value["type"], "null"]
    return out


@dataclass
class Faults:
    """What goes wrong while it is set. ``slow_s`` delays every answer; ``status`` is answered instead; ``body`` is sent instead
    of a listing; ``only``: where a path has this in it; ``hide``: events are neither listed nor, by id, given other than by an
    error; ``skew_s`` is added to the Date header; ``cut``: pages are never longer; ``lose_reports``: so many are taken and the
    answer comes too late; ``verbs_only``: subscriptions name operations as notifications of 3.0.1 do, against the schema;
    ``strict``: the query "active" is not known."""

    slow_s: float = 0.0
    status: int | None = None
    only: str = ""
    body: bytes | None = None
    redirect: str | None = None
    hide: bool = False
    skew_s: float = 0.0
    cut: int = 50
    no_paging: bool = False
    token_life_s: float = 3600.0
    lose_reports: int = 0
    verbs_only: bool = False
    strict: bool = False


@dataclass
class Vtn:
    """See the module. ``version`` is "3.1" or "3.0.1"; ``tls``: files of certificate and key. Use it in a ``with``."""

    version: str = "3.1"
    schemas: Schemas | None = None
    port: int = field(default_factory=free_port)
    client_id: str = "ven-1"
    secret: str = "s3cret"
    tls: tuple[str, str] | None = None
    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=lambda: {kind: {} for kind in TYPES})
    faults: Faults = field(default_factory=Faults)
    tokens: dict[str, float] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    called: list[int] = field(default_factory=list)
    _number: int = 0

    @property
    def url(self) -> str:
        """Its root."""
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}"

    # --- the utility's side -----------------------------------------------------------------------------------------

    def program(self, name: str = "curtailment", **more: Any) -> str:
        """A new program; its id."""
        return str(self._put("programs", {"programName": name, **more}, notify=False)["id"])

    def event(self, program_id: str, *, notify: bool = False, **more: Any) -> str:
        """A new event; its id."""
        return str(self._put("events", {"programID": program_id, **more}, notify=notify)["id"])

    def change(self, event_id: str, *, notify: bool = False, **more: Any) -> None:
        """Another version of an event."""
        self._put("events", {**self.objects["events"][event_id], **more}, event_id, notify=notify)

    def delete(self, event_id: str, *, notify: bool = False) -> None:
        """The utility's release."""
        item = self.objects["events"].pop(event_id)
        if notify:
            self.notify("DELETE", item)

    def restart(self, *, forget: tuple[str, ...] = ()) -> None:
        """As after a restart: tokens are gone, and the kinds of objects that were not kept."""
        self.tokens.clear()
        for kind in forget:
            self.objects[kind].clear()

    def _put(self, kind: str, body: dict[str, Any], old_id: str | None = None, *, notify: bool) -> dict[str, Any]:
        self._number += 1
        at = stamp(datetime.now(UTC))
        held = self.objects[kind].get(old_id or "", {})
        item = {
            **body,
            "id": old_id or f"{TYPES[kind].lower()}-{self._number}",
            "objectType": TYPES[kind],
            "createdDateTime": held.get("createdDateTime", at),
            "modificationDateTime": at,
        }
        if self.version == "3.1" and kind in ("reports", "subscriptions", "vens"):
            item["clientID"] = self.client_id
        if kind == "vens" and self.version == "3.1":
            # The schema of the answer wants the request's discriminator, which contradicts objectMetadata.
            self._check("venName", item["venName"])
        elif not self.faults.verbs_only:
            self._check(TYPES[kind].lower(), item)
        self.objects[kind][item["id"]] = item
        if notify:
            self.notify("UPDATE" if old_id else "CREATE", item)
        return item

    def notify(self, operation: str, item: dict[str, Any], token: str | None = None) -> None:
        """Call back everybody who subscribed to it; the statuses of the answers are in ``called``."""
        word = _VERB.get(self.version, {}).get(operation, operation)
        body = {"objectType": item["objectType"], "operation": word, "object": item}
        if self.schemas is not None:
            self.schemas.check_notification(body)
        for one in list(self.objects["subscriptions"].values()):
            if one.get("programID") not in (None, item.get("programID")):
                continue
            for calls in one["objectOperations"]:
                if item["objectType"] in calls["objects"] and operation in calls["operations"]:
                    headers = {"Authorization": f"Bearer {token or calls.get('bearerToken')}"}
                    answer = requests.post(calls["callbackUrl"], json=body, headers=headers, timeout=10)
                    self.called.append(answer.status_code)

    def _check(self, name: str, value: Any) -> None:
        if self.schemas is None:
            return
        try:
            self.schemas.check(name, value)
        except AssertionError as error:
            self.problems.append(str(error))
            raise

    # --- HTTP -------------------------------------------------------------------------------------------------------

    async def _answer(self, request: Request, work: Callable[[Request, bytes], Response]) -> Response:
        faults, path = self.faults, request.url.path
        self.asked.append(f"{request.method} {path}?{request.url.query}")
        body = await request.body()
        hit = faults.only in path
        if faults.slow_s and hit:
            await run_in_threadpool(time.sleep, faults.slow_s)
        if faults.redirect is not None and hit:
            response: Response = Response(status_code=307, headers={"Location": faults.redirect})
        elif faults.status is not None and hit:
            response = problem(faults.status, "a fault by switch")
        elif faults.body is not None and hit:
            response = Response(faults.body, media_type="application/json")
        else:
            response = await run_in_threadpool(work, request, body)
        response.headers["Date"] = format_datetime(datetime.now(UTC) + timedelta(seconds=faults.skew_s), usegmt=True)
        return response

    def _route(self, path: str, methods: list[str], work: Callable[[Request, bytes], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await self._answer(request, work)

        return Route(path, endpoint, methods=methods)

    def app(self) -> Starlette:
        """The application."""
        routes = [self._route("/auth/token", ["POST"], self._token)]
        if self.version == "3.1":
            info = {"tokenURL": f"{self.url}/auth/token"}
            routes.append(self._route("/auth/server", ["GET"], lambda request, body: JSONResponse(info)))
        for kind in TYPES:
            routes.append(self._route(f"/{kind}", ["GET", "POST"], self._guarded(kind, self._many)))
            routes.append(self._route(f"/{kind}/{{id}}", ["GET", "PUT", "DELETE"], self._guarded(kind, self._one)))
        return Starlette(routes=routes)

    def _guarded(self, kind: str, work: Callable[[str, Request, bytes], Response]) -> Callable[[Request, bytes], Response]:
        def answer(request: Request, body: bytes) -> Response:
            token = request.headers.get("authorization", "").removeprefix("Bearer ")
            if self.client_id and self.tokens.get(token, 0.0) < time.monotonic():
                return problem(401, "no valid token")
            return work(kind, request, body)

        return answer

    def _token(self, request: Request, body: bytes) -> Response:
        form = dict(pair.split("=", 1) for pair in body.decode().split("&"))
        self._check("clientCredentialRequest", form)
        if (form["client_id"], form["client_secret"]) != (self.client_id, self.secret):
            return JSONResponse({"error": "invalid_client"}, 401)
        token = secrets.token_hex(16)
        self.tokens[token] = time.monotonic() + self.faults.token_life_s
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": max(1, int(self.faults.token_life_s))}
        self._check("clientCredentialResponse", answer)
        return JSONResponse(answer)

    def _many(self, kind: str, request: Request, body: bytes) -> Response:
        if request.method == "POST":
            return self._create(kind, json.loads(body))
        query = request.query_params
        skip, limit = int(query.get("skip", 0)), int(query.get("limit", 50))
        if not 0 <= limit <= 50 or skip < 0 or (self.faults.strict and "active" in query):
            return problem(400, "limit must be 0 to 50")
        items = [] if kind == "events" and self.faults.hide else list(self.objects[kind].values())
        for key in ("programID", "eventID", "clientName", "venName"):
            if key in query:
                items = [item for item in items if item.get(key) == query[key]]
        if wanted := query.getlist("targets"):
            items = [item for item in items if not item.get("targets") or set(item["targets"]) & set(wanted)]
        page = items if self.faults.no_paging else items[skip : skip + min(limit, self.faults.cut)]
        return JSONResponse(page)

    def _create(self, kind: str, body: dict[str, Any]) -> Response:
        if not (kind == "subscriptions" and self.faults.verbs_only):
            self._check("venRequest" if kind == "vens" and self.version == "3.1" else self._request(kind), body)
        if kind == "vens" and any(item["venName"] == body["venName"] for item in self.objects[kind].values()):
            return problem(409, "this venName is there")
        if kind == "subscriptions" and self.faults.verbs_only and "CREATE" in body["objectOperations"][0]["operations"]:
            return problem(400, "operations must be POST, PUT, DELETE")
        if kind == "subscriptions" and (refused := self._echo(body)) is not None:
            return refused
        item = self._put(kind, body, notify=False)
        if kind == "reports" and self.faults.lose_reports:
            self.faults.lose_reports -= 1
            time.sleep(0.7)  # it took the report, and its answer is lost
        return JSONResponse(item, 201)

    def _request(self, kind: str) -> str:
        return self.schemas.request_name(kind) if self.schemas is not None else ""

    def _echo(self, body: dict[str, Any]) -> Response | None:
        """A subscriber proves that it wants to be called."""
        for calls in body["objectOperations"]:
            value = secrets.token_hex(8)
            answer = requests.get(calls["callbackUrl"], params={"echo": value}, timeout=5)
            if answer.status_code != 200 or value not in answer.text:
                return problem(400, "the callbackUrl does not echo")
        return None

    def _one(self, kind: str, request: Request, body: bytes) -> Response:
        name = request.path_params["id"]
        if kind == "events" and self.faults.hide:
            return problem(503, "still loading")
        item = self.objects[kind].get(name)
        if item is None:
            return problem(404, f"no {name}")
        if request.method == "GET":
            return JSONResponse(item)
        if request.method == "DELETE":
            return JSONResponse(self.objects[kind].pop(name))
        data = json.loads(body)
        if kind == "subscriptions" and (refused := self._echo(data)) is not None:
            return refused
        return JSONResponse(self._put(kind, data, name, notify=False))

    # --- running ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> "Vtn":
        cert, key = self.tls or (None, None)
        config = uvicorn.Config(
            self.app(),
            host="127.0.0.1",
            port=self.port,
            log_level="error",
            date_header=False,
            ssl_certfile=cert,
            ssl_keyfile=key,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, 10, "the VTN to listen")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(10)

    def stop(self) -> None:
        """As if it had crashed; start it again with ``with``."""
        self.__exit__()

    @property
    def reports(self) -> list[dict[str, Any]]:
        """What was reported, in order."""
        return list(self.objects["reports"].values())


def problem(status: int, detail: str) -> Response:
    """The standard's error."""
    return JSONResponse({"title": "trouble", "status": status, "detail": detail}, status)


def stamp(at: datetime) -> str:
    """RFC 3339."""
    return re.sub(r"\+00:00$", "Z", at.isoformat())


def cap(kw: float, start: datetime, minutes: float, interval_id: int = 0) -> dict[str, Any]:
    """The parts of an event that asks for one limit over one interval."""
    seconds = int(minutes * 60)
    return {
        "payloadDescriptors": [
            {"objectType": "EVENT_PAYLOAD_DESCRIPTOR", "payloadType": "IMPORT_CAPACITY_LIMIT", "units": "KW"}
        ],
        "intervalPeriod": {"start": stamp(start), "duration": f"PT{seconds}S"},
        "intervals": [{"id": interval_id, "payloads": [{"type": "IMPORT_CAPACITY_LIMIT", "values": [kw]}]}],
    }
