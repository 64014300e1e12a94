"""The highest epoch of a control plane that this node has obeyed, on disk: an older one must not give orders here any more.

It fences caps and freezes alike, so it needs no GPU and no driver. Two control planes on two databases may have one epoch: the
one that was obeyed first is, until either comes with a higher one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from .durable import pack, set_aside, unpack, write_durably
from .lease_terms import BadLease, NotWritten, StaleEpoch

log = logging.getLogger("gridshift.agent")

FILE_NAME = "epoch.json"


class Epochs:
    """The fence whose file lies in ``folder``, which it makes with the first epoch. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._lock = threading.RLock()
        #: What a person should know: a key and a sentence each.
        self.notices: dict[str, str] = {}
        self._highest, self._plane = self._on_disk = self._read()

    @property
    def highest(self) -> int:
        """The highest epoch heard here; 0 before the first order."""
        return self._highest

    @property
    def plane(self) -> str | None:
        """Which control plane of that epoch was obeyed; None when it did not say."""
        return self._plane

    def see(self, epoch: int, plane: str | None = None, must_write: bool = True) -> None:
        """Note the epoch of an order, and which control plane's it is, where it says so. Raises StaleEpoch for an older one and
        for another control plane of the same, NotWritten when a newer one cannot be kept."""
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            raise BadLease(f"epoch {epoch!r} must be a whole number, 0 or more")
        with self._lock:
            if epoch < self._highest:
                raise StaleEpoch(f"epoch {epoch} is older than {self._highest}, heard here: a newer control plane is in charge")
            if epoch == self._highest:
                if None not in (plane, self._plane) and plane != self._plane:
                    raise StaleEpoch(
                        f"two control planes have epoch {epoch}: {self._plane} was obeyed here first, so {plane} is not; stop "
                        "one of them, then start the other anew"
                    )
                plane = plane or self._plane
            if (epoch, plane) == self._on_disk:
                return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_durably(self._path, pack({"epoch": epoch, "plane": plane}))
            except OSError as error:
                if must_write:
                    raise NotWritten(f"epoch {epoch} could not be written to {self._path.parent}: {error.strerror}") from error
                self._tell("epoch", f"epoch {epoch} is not on disk yet: {error.strerror}")
            else:
                self._on_disk = epoch, plane
                self.notices.pop("epoch", None)
            self._highest, self._plane = epoch, plane

    def raise_to(self, epoch: int) -> None:
        """Believe in an epoch that is on disk elsewhere, as that of a lease."""
        with self._lock:
            if epoch > self._highest:
                self._highest, self._plane = epoch, None

    def _read(self) -> tuple[int, str | None]:
        try:
            body = unpack(self._path.read_bytes().decode())
            epoch, plane = body["epoch"], body.get("plane")
            if not isinstance(epoch, int) or not isinstance(plane, (str, type(None))):
                raise ValueError(f"epoch {epoch!r} of {plane!r} is not a whole number and a name")
        except FileNotFoundError:
            return 0, None
        except (OSError, ValueError, KeyError) as error:
            aside = set_aside(self._path)
            with contextlib.suppress(OSError):
                self._path.unlink()
            where = f"kept as {aside.name}" if aside else "no copy could be kept"
            self._tell("damaged:epoch", f"{FILE_NAME} is damaged ({error}; {where}): only the leases' own epochs are known")
            return 0, None
        return epoch, plane

    def _tell(self, key: str, sentence: str) -> None:
        if self.notices.get(key) != sentence:
            log.warning("%s", sentence)
        self.notices[key] = sentence
