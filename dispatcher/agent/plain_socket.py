"""A websocket client of the standard library alone, for Pythons that are too old for the `websockets` that is shipped along.

It has the names and arguments of `websockets.sync.client` as far as channel.py uses them: text frames of RFC 6455, no
extensions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import socket
import ssl
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_MAX_HEAD = 65536


class WebSocketException(Exception):
    """The connection is of no use any more."""


@dataclass(frozen=True)
class Response:
    """What the other side answered instead of a websocket."""

    status_code: int
    body: bytes


class InvalidStatus(WebSocketException):
    """The other side is no websocket, or refuses us."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"it answers HTTP {response.status_code}")
        self.response = response


class ClientConnection:
    """An open connection. One thread iterates over what comes; ``send`` and ``close`` may be called from others."""

    def __init__(self, sock: socket.socket, rest: bytes, max_size: int) -> None:
        self._socket, self._buffer, self._max_size = sock, bytearray(rest), max_size
        self._sending = threading.Lock()
        self._pinged = False
        self._closed = False

    def __enter__(self) -> ClientConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, text: str) -> None:
        """Send a text frame. Raises OSError or WebSocketException."""
        self._send(_TEXT, text.encode())

    def close(self) -> None:
        """Say goodbye and close; safe to repeat."""
        if self._closed:
            return
        with contextlib.suppress(OSError, WebSocketException):
            self._send(_CLOSE, struct.pack("!H", 1000))
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads
        self._socket.close()

    def __iter__(self) -> Iterator[str | bytes]:
        """Messages until the other side closes. Raises OSError or WebSocketException when the connection breaks."""
        parts: list[bytes] = []
        kind = _TEXT
        while True:
            final, opcode, payload = self._frame()
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode == _CLOSE:
                return
            elif opcode in (_TEXT, _BINARY, _CONTINUED):
                if (opcode == _CONTINUED) is not bool(parts):
                    raise WebSocketException("the other side mixes up its messages")
                kind = opcode or kind
                parts.append(payload)
                if sum(map(len, parts)) > self._max_size:
                    raise WebSocketException(f"a message is longer than {self._max_size} bytes")
                if final:
                    message, parts = b"".join(parts), []
                    yield message.decode("utf-8", "replace") if kind == _TEXT else message
            elif opcode != _PONG:
                raise WebSocketException(f"a frame of unknown kind {opcode}")

    def _frame(self) -> tuple[bool, int, bytes]:
        first, second = self._take(2)
        length = second & 0x7F
        if length == 126:
            (length,) = struct.unpack("!H", self._take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self._take(8))
        if first & 0x70 or second & 0x80:
            raise WebSocketException("a frame uses what was not agreed upon")
        if length > self._max_size:
            raise WebSocketException(f"a frame is longer than {self._max_size} bytes")
        return bool(first & 0x80), first & 0x0F, self._take(length)

    def _take(self, count: int) -> bytes:
        """The next ``count`` bytes. Silence is answered with a ping, more of it ends the connection."""
        while len(self._buffer) < count:
            try:
                data = self._socket.recv(1 << 16)
            except socket.timeout:  # noqa: UP041 - not the same before Python 3.10
                if self._pinged:
                    raise WebSocketException("no answer to a ping") from None
                self._pinged = True
                self._send(_PING, b"")
                continue
            if not data:
                raise WebSocketException("the other side closed the connection")
            self._pinged = False
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _send(self, opcode: int, payload: bytes) -> None:
        if self._closed:
            raise WebSocketException("the connection is closed")
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
        mask = os.urandom(4)
        with self._sending:
            self._socket.sendall(head + mask + masked(payload, mask))


def masked(payload: bytes, mask: bytes) -> bytes:
    """The payload under the mask (RFC 6455, 5.3), as one long number: byte by byte would take seconds for long frames."""
    size = len(payload)
    long_mask = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(long_mask, "big")).to_bytes(size, "big")


def connect(
    url: str,
    *,
    additional_headers: Mapping[str, str],
    max_size: int,
    open_timeout: float,
    ping_interval: float,
    user_agent_header: str,
    **_: object,
) -> ClientConnection:
    """Open a websocket. Raises OSError, InvalidStatus or WebSocketException."""
    parts = urlsplit(url)
    secure = parts.scheme == "wss"
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    sock = socket.create_connection((host, port), timeout=open_timeout)
    try:
        if secure:
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        key = base64.b64encode(os.urandom(16)).decode()
        headers = {
            "Host": parts.netloc.rpartition("@")[2],
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key,
            "Sec-WebSocket-Version": "13",
            "User-Agent": user_agent_header,
            **additional_headers,
        }
        lines = [f"GET {parts.path or '/'}?{parts.query} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        rest = _shake_hands(sock, key)
        sock.settimeout(ping_interval)
        return ClientConnection(sock, rest, max_size)
    except BaseException:
        sock.close()
        raise


def _shake_hands(sock: socket.socket, key: str) -> bytes:
    """Read the answer to our request; what came behind it is returned."""
    data = b""
    while b"\r\n\r\n" not in data:
        block = sock.recv(4096)
        if not block or len(data) > _MAX_HEAD:
            raise WebSocketException("the answer is not HTTP")
        data += block
    head, _, rest = data.partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    try:
        code = int(status.split()[1])
    except (IndexError, ValueError):
        raise WebSocketException("the answer is not HTTP") from None
    if code != 101:
        wanted = min(int(headers.get("content-length") or 0), _MAX_HEAD)
        while len(rest) < wanted and (block := sock.recv(4096)):
            rest += block
        raise InvalidStatus(Response(code, rest))
    proof = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()
    if headers.get("sec-websocket-accept") != proof:
        raise WebSocketException("the answer is not that of a websocket")
    return rest
