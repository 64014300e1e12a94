"""A connection that can be cut: a TCP proxy on loopback whose other side tests choose, change and take away."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Passes every connection on to ``target`` (a port of this machine). While it is cut, connections are refused."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._is_cut = False
        self._ended = False
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Break all connections, and every new one."""
        with self._lock:
            self._is_cut = True
        self._break_all()

    def mend(self, target: int | None = None) -> None:
        """Let connections through again, to another port if one is given; those that stand are broken."""
        with self._lock:
            self.target, self._is_cut = target or self.target, False
        self._break_all()

    def _break_all(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                is_cut, target = self._is_cut, self.target
            try:
                if is_cut:
                    raise ConnectionRefusedError
                far = socket.create_connection(("127.0.0.1", target), timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            with self._lock:
                self._open.discard(end)
            end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listener.close()
        self._break_all()
