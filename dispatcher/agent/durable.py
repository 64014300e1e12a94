"""Files that survive a crash at any point: replaced as a whole, flushed, and checked when they are read again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from pathlib import Path
from typing import Any

FORMAT = 1


def write_durably(path: Path, text: str) -> None:
    """Replaces the file as a whole: after a crash at any point either the old or the new text is there. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            data = text.encode()
            while data:
                data = data[os.write(handle, data) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()  # half a file on a full disk helps nobody
        raise
    sync_folder(path.parent)


def open_lock(path: Path) -> int:
    """A handle to lock a file by, which is made where it is missing. On a file system that takes no writing any more, one that
    is there already will do. Raises OSError."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise error from None


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one at this path: a lock on one that was deleted keeps nobody out."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def sync_folder(folder: Path) -> None:
    """Flushes which names are in a folder. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def pack(body: dict[str, Any]) -> str:
    """A body with its checksum, as the text of a file."""
    body = {"format": FORMAT, **body}
    inner = json.dumps(body, sort_keys=True, allow_nan=False)
    return json.dumps({"check": zlib.crc32(inner.encode()), "body": body}, sort_keys=True, allow_nan=False) + "\n"


def unpack(text: str) -> dict[str, Any]:
    """The body of a packed text; raises ValueError when it is cut short or changed."""
    try:
        outer = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(outer, dict) or not isinstance(outer.get("body"), dict):
        raise ValueError("it is not a file of this program")
    body: dict[str, Any] = outer["body"]
    if outer.get("check") != zlib.crc32(json.dumps(body, sort_keys=True).encode()):
        raise ValueError("its checksum does not fit its text")
    if body.get("format") != FORMAT:
        raise ValueError(f"its format is {body.get('format')!r}, known here is {FORMAT}")
    return body


def set_aside(path: Path) -> Path | None:
    """Gives a damaged file a second name, so that its place is never empty; None when that cannot be done."""
    for number in range(1, 1000):
        aside = path.with_name(f"{path.stem}.damaged-{number}")
        try:
            os.link(path, aside)
        except FileExistsError:
            continue
        except OSError:
            return None
        return aside
    return None
