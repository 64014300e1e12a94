"""Makes a VTN know us: the VEN object, and the subscription by which it calls back; both are looked for before they are made.

Neither is needed to poll, so that what goes wrong here is said and stops nothing. Sources: OpenADR 3.1 and 3.0.1 schemas.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.vtn_client import VtnClient, VtnError, path_of

_OPERATIONS = ("CREATE", "UPDATE", "DELETE")
#: 3.0.1's schema names operations as 3.1 does in subscriptions and otherwise in notifications; some VTNs take only these.
_VERBS = ("POST", "PUT", "DELETE")
_OBJECTS = ["EVENT", "PROGRAM"]


class Enrolment:
    """What one VTN knows of one VEN. ``subscription`` is "none", "there", or what is wrong with it."""

    def __init__(self, source: EventSourceConfig, name: str, client: VtnClient, callback_token: str) -> None:
        self._source, self._name, self._client, self._token = source, name, client, callback_token
        self.ven_id: str | None = None
        self.subscription = "none"
        self.notes: tuple[str, ...] = ()

    def enrol(self, program_ids: Sequence[str]) -> None:
        """Find or make the VEN and the subscriptions (one a program, or one for all where none is given)."""
        self.notes = ()
        try:
            self.ven_id = self._ven()
        except VtnError as error:
            self.notes = (f"not registered as {self._name}: {error}",)
        if not self._source.callback_url:
            return
        if self._source.protocol == "openadr-3.0" and not program_ids:
            self.subscription = "the VTN has no program for us, and its version subscribes to programs only"
            return
        try:
            held = self._client.all("/subscriptions", [("clientName", self._name)]).items
            wanted: Sequence[str | None] = program_ids or [None]
            for program_id in wanted:
                self._subscribe(held, program_id)
            self.subscription = "there"
        except VtnError as error:
            self.subscription = str(error)

    def _ven(self) -> str | None:
        for item in self._client.all("/vens", [("venName", self._name)]).items:
            if item.get("venName") == self._name and isinstance(item.get("id"), str):
                return str(item["id"])
        body = {"venName": self._name}
        if self._source.protocol == "openadr-3.1":
            body["objectType"] = "VEN_VEN_REQUEST"
        made = self._client.create("/vens", body).get("id")
        return made if isinstance(made, str) else None

    def _subscribe(self, held: Sequence[Mapping[str, Any]], program_id: str | None) -> None:
        mine = [one for one in held if one.get("clientName") == self._name and one.get("programID") == program_id]
        if any(self._is_right(one) for one in mine):
            return
        # One that calls another place, or shows another token, was ours under an earlier configuration.
        old = next((one["id"] for one in mine if isinstance(one.get("id"), str)), None)
        try:
            self._send(self._body(program_id, _OPERATIONS), old)
        except VtnError as error:
            if error.status not in (400, 422) or self._source.protocol != "openadr-3.0":
                raise
            try:
                self._send(self._body(program_id, _VERBS), old)
            except VtnError:
                raise error from None

    def _body(self, program_id: str | None, operations: Sequence[str]) -> dict[str, Any]:
        calls = {"objects": _OBJECTS, "operations": list(operations), "callbackUrl": self._source.callback_url}
        body: dict[str, Any] = {"clientName": self._name, "objectOperations": [{**calls, "bearerToken": self._token}]}
        if program_id is not None:
            body["programID"] = program_id
        return body

    def _send(self, body: Mapping[str, Any], old: str | None) -> None:
        if old is None:
            self._client.create("/subscriptions", body)
        else:
            self._client.replace(path_of("subscriptions", old), body)

    def _is_right(self, held: Mapping[str, Any]) -> bool:
        calls = held.get("objectOperations")
        for one in calls if isinstance(calls, list) else ():
            if not isinstance(one, dict) or one.get("callbackUrl") != self._source.callback_url:
                continue
            # Some VTNs do not show tokens; ours depends on nothing that changes by itself.
            if one.get("bearerToken") in (None, self._token) and "EVENT" in (one.get("objects") or []):
                operations = set(one.get("operations") or [])
                return set(_OPERATIONS) <= operations or set(_VERBS) <= operations
        return False
