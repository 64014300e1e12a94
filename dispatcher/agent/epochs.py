"""The highest epoch of a control plane that this node has obeyed, on disk: an older one must not give orders here any more.

It fences caps and freezes alike, so it needs no GPU and no driver.
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
        self._highest = self._on_disk = self._read()

    @property
    def highest(self) -> int:
        """The highest epoch heard here; 0 before the first order."""
        return self._highest

    def see(self, epoch: int, must_write: bool = True) -> None:
        """Note the epoch of an order. Raises StaleEpoch for an older one, NotWritten when a newer one cannot be kept."""
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch < 0:
            raise BadLease(f"epoch {epoch!r} must be a whole number, 0 or more")
        with self._lock:
            if epoch < self._highest:
                raise StaleEpoch(f"epoch {epoch} is older than {self._highest}, heard here: a newer control plane is in charge")
            if epoch == self._on_disk:
                return
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_durably(self._path, pack({"epoch": epoch}))
            except OSError as error:
                if must_write:
                    raise NotWritten(f"epoch {epoch} could not be written to {self._path.parent}: {error.strerror}") from error
                self._tell("epoch", f"epoch {epoch} is not on disk yet: {error.strerror}")
            else:
                self._on_disk = epoch
                self.notices.pop("epoch", None)
            self._highest = epoch

    def raise_to(self, epoch: int) -> None:
        """Believe in an epoch that is on disk elsewhere, as that of a lease."""
        with self._lock:
            self._highest = max(self._highest, epoch)

    def _read(self) -> int:
        try:
            epoch = unpack(self._path.read_bytes().decode())["epoch"]
            if not isinstance(epoch, int):
                raise ValueError(f"epoch {epoch!r} is not a whole number")
        except FileNotFoundError:
            return 0
        except (OSError, ValueError, KeyError) as error:
            aside = set_aside(self._path)
            with contextlib.suppress(OSError):
                self._path.unlink()
            where = f"kept as {aside.name}" if aside else "no copy could be kept"
            self._tell("damaged:epoch", f"{FILE_NAME} is damaged ({error}; {where}): only the leases' own epochs are known")
            return 0
        return epoch

    def _tell(self, key: str, sentence: str) -> None:
        if self.notices.get(key) != sentence:
            log.warning("%s", sentence)
        self.notices[key] = sentence
