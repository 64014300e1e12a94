"""Gets the document that a hint points to, with our own key, from a host that is allowed, and from nowhere else.

It knows no events. Whoever sends hints is a stranger: nothing of a hint but a path is used, no redirect is followed, and a
name that leads to a private address is not asked unless the operator has allowed that very name.
"""

import ipaddress
import socket
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import urllib3

from dispatcher.config_events import EventSourceConfig
from dispatcher.errors import GridshiftError

CONNECT_S, READ_S, TOTAL_S = 5.0, 10.0, 20.0
MAX_BYTES = 1 << 20


class NotFetched(GridshiftError):
    """The document was not fetched. ``status`` is the answer's, None where none came; ``never``: asking again is no use."""

    def __init__(self, message: str, status: int | None = None, *, never: bool = False) -> None:
        super().__init__(message)
        self.status, self.never = status, never


def address_of(source: EventSourceConfig, resource: str) -> str:
    """The whole URL of a resource: a path, or an address on the configured or an allowed host. Raises NotFetched."""
    base = urlsplit(source.url)
    try:
        parts = urlsplit(resource)
        host, scheme, port = parts.hostname or base.hostname, parts.scheme or base.scheme, parts.port
    except ValueError:
        raise NotFetched("the resource is no path and no address", never=True) from None
    own = not parts.netloc
    if own:
        scheme, port = base.scheme, base.port
    allowed = {base.hostname, *(one.lower() for one in source.allow_hosts)}
    if host not in allowed or scheme not in (base.scheme, "https") or parts.username or parts.password:
        raise NotFetched(f"{str(host)[:100]} is not a host that is allowed for {source.name} (url, allow_hosts)", never=True)
    if not own and host == base.hostname and port != base.port:
        raise NotFetched(f"{str(host)[:100]} is configured with another port", never=True)
    where = f"{host}:{port}" if port is not None else f"{host}"
    path = parts.path if parts.path.startswith("/") else f"/{parts.path}"
    return f"{scheme}://{where}{path}" + (f"?{parts.query}" if parts.query else "")


def fetch(source: EventSourceConfig, url: str) -> bytes:
    """The document at ``url``, as `address_of` made it. Raises NotFetched. Blocks for at most about TOTAL_S."""
    parts = urlsplit(url)
    host, port = str(parts.hostname), parts.port or {"https": 443, "http": 80}[parts.scheme]
    address = _address(host, port, allowed=host in {one.lower() for one in source.allow_hosts})
    headers = {"Accept": "application/json", "Host": host if parts.port is None else f"{host}:{parts.port}"}
    if (key := source.client_secret()) is not None:
        headers[source.api_key_header] = key
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    timeout, deadline = urllib3.Timeout(connect=CONNECT_S, read=READ_S), time.monotonic() + TOTAL_S
    with _pool(source, parts.scheme, host, address, port) as pool:
        try:
            answer = pool.urlopen(
                "GET", path, headers=headers, redirect=False, retries=False, timeout=timeout, preload_content=False
            )
            return _body(answer, host, deadline)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise NotFetched(f"{host} cannot be asked ({type(error).__name__})") from None


def _pool(source: EventSourceConfig, scheme: str, host: str, address: str, port: int) -> urllib3.HTTPConnectionPool:
    """A connection to the address that was looked at, and to no other that the name may lead to a moment later."""
    if scheme == "http":
        return urllib3.HTTPConnectionPool(address, port, maxsize=1)
    more: Mapping[str, object] = {"ca_certs": source.ca_file} if source.ca_file else {}
    if not source.verify_tls:
        return urllib3.HTTPSConnectionPool(address, port, maxsize=1, cert_reqs="CERT_NONE", server_hostname=host)
    return urllib3.HTTPSConnectionPool(
        address,
        port,
        maxsize=1,
        cert_reqs="CERT_REQUIRED",
        server_hostname=host,
        assert_hostname=host,
        **more,  # type: ignore[arg-type]
    )


def _address(host: str, port: int, *, allowed: bool) -> str:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise NotFetched(f"the name {host} is not known") from None
    addresses = [str(sockaddr[0]) for *_, sockaddr in found]
    for address in addresses:
        if not allowed and not ipaddress.ip_address(address.partition("%")[0]).is_global:
            raise NotFetched(f"{host} leads to {address}, a private address; add {host!r} to allow_hosts if it is meant to")
    return addresses[0]


def _body(answer: urllib3.BaseHTTPResponse, host: str, deadline: float) -> bytes:
    try:
        if 300 <= answer.status < 400:
            raise NotFetched(f"{host} redirects, which is not followed", answer.status)
        if answer.status != 200:
            raise NotFetched(f"{host} answers {answer.status}", answer.status)
        body = bytearray()
        while chunk := answer.read1(65536):
            body += chunk
            if len(body) > MAX_BYTES:
                raise NotFetched(f"{host} sends more than {MAX_BYTES} bytes; not read further", answer.status)
            if time.monotonic() > deadline:
                raise NotFetched(f"{host} is not done after {TOTAL_S:g} s", answer.status)
        return bytes(body)
    finally:
        answer.close()
