"""How errors and values look on the wire: JSON for our own API, plain text for Ray's, each error with what would be right.

It knows the dispatcher's errors and nothing of routes.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.requests import Request
from starlette.responses import Response

from dispatcher.errors import (
    AlreadyExists,
    BadInput,
    GridshiftError,
    IllegalMove,
    NotFound,
    PackageRejected,
    StaleState,
    StoreUnavailable,
)
from dispatcher.packages import PackageTooLarge

T = TypeVar("T")
Problems = Sequence[tuple[str, object, str]]

#: Longest value that an error repeats.
_SHOWN = 200


class Refused(GridshiftError):
    """A request that is answered with an error of a given HTTP status."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers or {}


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode


def json_bytes(value: Any) -> bytes:
    """Compact JSON. Raises ValueError for NaN and infinities, which are no JSON."""
    return _encode(value).encode("utf-8", "replace")


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(json_bytes(value), status, headers, media_type="application/json")


def text_response(text: str, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A plain text answer."""
    return Response(text.encode("utf-8", "replace"), status, headers, media_type="text/plain")


def shown(value: object) -> Any:
    """A value as an error may repeat it: small, and valid JSON."""
    if value is None or isinstance(value, bool | int):
        return value if not isinstance(value, int) or abs(value) < 1 << 63 else "a very large number"
    text = value if isinstance(value, str) else repr(value)
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + " ..."


def strange_parameters(query: Mapping[str, str], known: Sequence[str]) -> list[tuple[str, object, str]]:
    """A problem for each parameter of a query that is none of the ``known``."""
    told = "no such parameter; known are " + ", ".join(known)
    return [(name, query[name], told) for name in query if name not in known]


def status_of(error: GridshiftError) -> int:
    """The HTTP status that says what kind of error this is."""
    match error:
        case Refused():
            return error.status
        case BadInput():
            return 422
        case NotFound():
            return 404
        case AlreadyExists() | StaleState() | IllegalMove():
            return 409
        case PackageTooLarge():
            return 413
        case PackageRejected():
            return 400
        case StoreUnavailable():
            return 503
        case _:
            return 500


def error_response(path: str, error: GridshiftError) -> Response:
    """The answer to a failed request, in the form that the path's clients read."""
    status = status_of(error)
    headers = dict(error.headers) if isinstance(error, Refused) else {}
    if status == 503:
        headers["Retry-After"] = "1"
    if path.startswith("/api/"):
        # Ray knows 400 for bad input, and its client shows the text.
        return text_response(_as_text(error), 400 if status in (409, 422) else status, headers)
    problems: Problems = error.problems if isinstance(error, BadInput) else ()
    message = f"{len(problems)} problem{'s' if len(problems) != 1 else ''} with the input" if problems else str(error)
    listed = [{"field": field, "value": shown(value), "remedy": remedy} for field, value, remedy in problems]
    return json_response({"error": {"message": message, "problems": listed}}, status, headers)


def _as_text(error: GridshiftError) -> str:
    if isinstance(error, BadInput):
        return "; ".join(f"{field}: {shown(value)!r}: {remedy}" for field, value, remedy in error.problems)
    return str(error)


Handler = Callable[[Request], Awaitable[Response]]


def guarded(handler: Handler) -> Handler:
    """The handler, with the dispatcher's errors answered as such (cheaper than the framework's own table of handlers)."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except GridshiftError as error:
            return error_response(request.url.path, error)

    answer.__name__, answer.__doc__ = getattr(handler, "__name__", "answer"), handler.__doc__
    return answer


_reads = CapacityLimiter(16)


async def in_thread(call: Callable[..., T], *args: Any) -> T:
    """Run a blocking call of the store beside the event loop; few at once, since they share a database and two cores."""
    return await anyio.to_thread.run_sync(call, *args, limiter=_reads)


def given_time(name: str, text: str | None, problems: list[tuple[str, object, str]]) -> datetime | None:
    """The time that a parameter says (UTC), None without one; what is wrong with it is added to ``problems``."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign that was not encoded
    except ValueError:
        at = None
    if at is None or at.tzinfo is None or not 1970 < at.year < 9999:  # a day or an offset away there must be a time too
        problems.append((name, text, "must be a time with an offset, such as 2026-01-31T12:00:00Z"))
        return None
    return at.astimezone(UTC)
