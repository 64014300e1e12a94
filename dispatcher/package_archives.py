"""Whether an archive is safe to hand on, and whether its content is what Ray's name for it says. Unpacks nothing to disk.

It knows formats only: zip (and wheels, which are zips) and tar. Stores, names and limits belong to dispatcher.packages.
"""

import gzip
import hashlib
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any

from dispatcher.errors import PackageRejected

#: Size of a zip's central directory; Python's reader takes several times as much memory for it.
MAX_DIRECTORY_BYTES = 8 << 20
#: Each costs time here, twice as much where it must be found out how Ray named the folder.
MAX_MEMBERS = 50_000
_BLOCK = 1 << 20
#: Longest piece that a tar's own headers may make its reader take at once.
_MAX_READ = 16 << 20


def check_archive(name: str, path: Path, max_unpacked: int) -> None:
    """Raise PackageRejected unless the file is a sound archive of the kind that its name says: no member may lead out of the
    folder it is unpacked in, and all together unpack to at most ``max_unpacked`` bytes (as far as they declare)."""
    try:
        if name.endswith((".zip", ".whl")):
            _check_zip(name, path, max_unpacked)
        else:
            _check_tar(name, path, max_unpacked)
    except (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, ValueError, struct.error) as error:
        raise PackageRejected(f"{name} is not a sound archive: {error}") from error
    except (NotImplementedError, RecursionError, MemoryError) as error:
        raise PackageRejected(f"{name} is an archive that cannot be read here: {type(error).__name__}") from error
    except OSError as error:  # gzip reports bad data so; a disk that fails reads the same
        raise PackageRejected(f"{name} cannot be read as an archive: {error}") from error


def _check_member(name: str, member: str) -> None:
    parts = PurePosixPath(member.replace("\\", "/")).parts
    if not parts and member not in (".", "./"):
        raise PackageRejected(f"{name} has a member without a name")
    if member.startswith(("/", "\\")) or ".." in parts or (parts and len(parts[0]) == 2 and parts[0][1] == ":"):
        raise PackageRejected(f"{name} has a member that leads out of its folder: {member[:200]!r}")


def _check_zip(name: str, path: Path, max_unpacked: int) -> None:
    if _directory_bytes(path) > MAX_DIRECTORY_BYTES:
        raise PackageRejected(f"{name} has too many members; {MAX_MEMBERS} are allowed")
    with zipfile.ZipFile(path) as archive:
        if len(archive.infolist()) > MAX_MEMBERS:
            raise PackageRejected(f"{name} has {len(archive.infolist())} members; {MAX_MEMBERS} are allowed")
        total = 0
        for info in archive.infolist():
            # What is stored, not what Python makes of it: others may stop at other characters.
            _check_member(name, info.orig_filename)
            _check_member(name, info.filename)
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise PackageRejected(f"{name} has a link or device in it: {info.filename[:200]!r}; pack the file it points to")
            total += info.file_size
        if total > max_unpacked:
            raise PackageRejected(f"{name} unpacks to {total / 1e6:.0f} MB, more than {max_unpacked / 1e6:.0f} MB")


def _directory_bytes(path: Path) -> int:
    """Size of a zip's central directory as its end record says; 0 when there is no such record (the reader will say so)."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        # End record 22 bytes + comment of at most 64 KiB; before it perhaps the locator (20) of the 64-bit record.
        start = max(0, size - (22 + 65535 + 20 + 56))
        file.seek(start)
        tail = file.read()
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) < at + 22:
        return 0
    (declared,) = struct.unpack_from("<L", tail, at + 12)
    wide = tail.rfind(b"PK\x06\x06", 0, at)
    if declared == 0xFFFFFFFF and wide >= 0 and len(tail) >= wide + 48:
        (declared,) = struct.unpack_from("<Q", tail, wide + 40)
    return int(declared)


class _Bounded(io.RawIOBase):
    """An unpacking stream that stops a reader which would unpack, or take at once, too much."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file, self._limit = file, limit

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or offset > self._limit:
            raise PackageRejected("it unpacks to more than is allowed here")
        return self._file.seek(offset)

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > _MAX_READ or self._file.tell() + size > self._limit:
            raise PackageRejected("it unpacks to more than is allowed here")
        return self._file.read(size)


def _check_tar(name: str, path: Path, max_unpacked: int) -> None:
    opened: Any = lzma.open(path) if name.endswith(".xz") else gzip.open(path)  # noqa: SIM115 - closed below
    # Headers and padding come on top of the members' own bytes.
    with opened, tarfile.open(fileobj=_Bounded(opened, max_unpacked + (64 << 20)), mode="r:") as archive:
        members: Any = archive
        total = 0
        links: set[str] = set()
        folders: set[str] = set()
        for count, info in enumerate(archive, 1):
            total += info.size
            if count > MAX_MEMBERS or total > max_unpacked:
                what = f"{MAX_MEMBERS} members and {max_unpacked / 1e6:.0f} MB unpacked are allowed"
                raise PackageRejected(f"{name} unpacks to too many or too large files: {what}")
            _check_member(name, info.name)
            folders.update(str(folder) for folder in PurePosixPath(info.name).parents)
            if info.issym() or info.islnk():
                base = PurePosixPath(info.name).parent if info.issym() else PurePosixPath()
                _check_link(name, info.name, base, info.linkname)
                links.add(str(PurePosixPath(info.name)))
            elif not (info.isreg() or info.isdir()):
                raise PackageRejected(f"{name} has a device or pipe in it: {info.name[:200]!r}")
            members.members = []  # a long archive is not kept in memory
        # What lies below a link is unpacked where the link leads, which another link may have led elsewhere.
        if below := sorted(links & folders):
            raise PackageRejected(f"{name} has members below a link: {below[0][:200]!r}; pack the folder it points to")


def _check_link(name: str, member: str, base: PurePosixPath, target: str) -> None:
    """Refuse a link that leads out of the folder (``a/b -> ../c`` stays inside, ``a -> ../c`` does not). After a name no ".."
    may come: that name may be a link itself, and then ".." is not the way back."""
    depth = len(base.parts)
    named = False
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0 or part == "/" or (named and part == ".."):
            raise PackageRejected(f"{name} has a link that leads out of its folder: {member[:200]!r}")
        named = named or part != ".."


def ray_directory_hashes(path: Path, max_unpacked: int) -> set[str]:
    """The hashes that Ray may have given the folder which this zip was made from: of all that is in it, and, for a module
    packed with its own folder's name, of all below that one. Empty when the zip cannot be read through.

    Ray takes the first 8 bytes of SHA-1 over the path of each file and folder (and a file's bytes) and XORs them, from
    ``0x30`` eight times on; the top folder counts as ".".
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > max_unpacked:
                return set()
            names = [PurePosixPath(info.filename) for info in archive.infolist()]
            tops = {name.parts[0] for name in names if name.parts}
            strips = [0, 1] if len(tops) == 1 and all(len(name.parts) > 1 for name in names) else [0]
            return {_directory_hash(archive, strip) for strip in strips}
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, RuntimeError, NotImplementedError, EOFError, ValueError):
        return set()


def _directory_hash(archive: zipfile.ZipFile, strip: int) -> str:
    total = int.from_bytes(b"0" * 8, "big")
    folders: set[str] = {"."}
    for info in archive.infolist():
        name = PurePosixPath(*PurePosixPath(info.filename).parts[strip:])
        folders.update(str(folder) for folder in name.parents)
        if info.is_dir():
            folders.add(str(name))
            continue
        digest = hashlib.sha1(str(name).encode("utf-8", "surrogateescape"), usedforsecurity=False)
        with archive.open(info) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        total ^= int.from_bytes(digest.digest()[:8], "big")
    for folder in folders:
        total ^= int.from_bytes(
            hashlib.sha1(folder.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()[:8], "big"
        )
    return total.to_bytes(8, "big").hex()
