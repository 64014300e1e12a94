"""A process of ours that does slow work: an object lives there, and its methods are called from here.

Nothing is known here of what the object does. Its methods run one after the other, but for those it names in ``beside``, each
call of which gets a thread of its own; so a quick question is answered while a long one is worked on.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, Protocol

from dispatcher.errors import GridshiftError

log = logging.getLogger(__name__)

#: Seconds that a process which was told to end may take until nobody waits for it any more.
_END_S = 5.0


class WorkerDied(GridshiftError):
    """The worker process ended before it answered."""


class WorkerStuck(GridshiftError):
    """The worker process gave no answer in time."""


class CallFailed(GridshiftError):
    """What was asked of the worker raised an error; the message has it."""


class Served(Protocol):
    """An object whose methods a worker process calls. ``beside`` names those that get a thread of their own."""

    beside: frozenset[str]


class Worker:
    """One process with the object that ``make(notify, *args)`` returns there. Thread-safe. ``notify`` there, called with
    nothing, calls ``noticed`` here; ``make`` must be a function of a module, and everything sent must be picklable."""

    def __init__(self, make: Callable[..., Served], *args: Any, noticed: Callable[[], None] = lambda: None) -> None:
        context = multiprocessing.get_context("spawn")  # fork would copy the control plane's threads and connections
        self._ours, theirs = context.Pipe()
        self._noticed = noticed
        self._waiting: dict[int, Future[Any]] = {}
        self._count = 0
        self._dead = False
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._process = context.Process(target=_serve, args=(theirs, make, args), daemon=True)
        self._process.start()
        theirs.close()
        threading.Thread(target=self._read, name="worker-answers", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The process."""
        return self._process.pid

    def call(self, method: str, *args: Any, limit_s: float) -> Any:
        """Call a method there and wait for its answer, at most ``limit_s``. Raises WorkerDied, WorkerStuck, and as CallFailed
        whatever the method raised (errors of our own as they are)."""
        future: Future[Any] = Future()
        with self._lock:
            if self._dead:
                raise WorkerDied("the worker process has ended")
            self._count += 1
            number = self._count
            self._waiting[number] = future
        try:
            message = pickle.dumps((number, method, args), pickle.HIGHEST_PROTOCOL)
            with self._sending:
                self._ours.send_bytes(message)
            return future.result(limit_s)
        except TimeoutError as error:
            raise WorkerStuck(f"no answer within {limit_s:g} s") from error
        except OSError as error:
            raise WorkerDied("the worker process died") from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def end(self) -> None:
        """End the process, whatever it is doing; who waits for it gets WorkerDied."""
        self._process.kill()
        self._process.join(_END_S)

    def _read(self) -> None:
        try:
            while True:
                number, fine, value = pickle.loads(self._ours.recv_bytes())
                if number is None:
                    self._noticed()
                    continue
                with self._lock:
                    future = self._waiting.get(number)
                if future is None:
                    continue  # nobody waits for it any more
                if fine:
                    future.set_result(value)
                else:
                    future.set_exception(value)
        except (EOFError, OSError):
            pass
        except Exception:
            log.exception("an answer of the worker process cannot be read")
            self._process.kill()
        with self._lock:
            self._dead = True
            waiting = list(self._waiting.values())
        for future in waiting:
            if not future.done():
                future.set_exception(WorkerDied("the worker process died"))
        self._ours.close()


def _serve(connection: Connection, make: Callable[..., Served], args: tuple[Any, ...]) -> None:
    """What the process does until its pipe is closed, which it is at the latest when the control plane dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the control plane, which then ends its workers
    os.nice(5)  # a plan may take a moment longer; a submission may not
    sending = threading.Lock()

    def send(number: int | None, fine: bool, value: Any) -> None:
        message = pickle.dumps((number, fine, value), pickle.HIGHEST_PROTOCOL)
        with sending:
            connection.send_bytes(message)

    served = make(lambda: send(None, True, None), *args)

    def answer(number: int, method: str, given: tuple[Any, ...]) -> None:
        try:
            send(number, True, getattr(served, method)(*given))
        except OSError:
            os._exit(1)  # nobody is there to be told
        except GridshiftError as error:
            send(number, False, error)
        except BaseException as error:
            log.exception("%s failed", method)
            send(number, False, CallFailed(f"{type(error).__name__}: {error}"))

    while True:
        try:
            number, method, given = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        if method in served.beside:
            threading.Thread(target=answer, args=(number, method, given), daemon=True).start()
        else:
            answer(number, method, given)
