"""Ray packages (working_dir, py_modules) on disk, kept until every region that may need them can be given them.

It knows nothing of HTTP, jobs or clusters. A file counts as held only while its bytes are those that were uploaded.
"""

import errno
import hashlib
import json
import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import unquote

from dispatcher.errors import BadInput, NotFound, PackageRejected, StoreUnavailable
from dispatcher.package_archives import check_archive, ray_directory_hashes

#: What Ray's clients upload: archives named by content, and wheels by their own name.
EXTENSIONS = (".zip", ".whl", ".tar.gz", ".tgz", ".tar.xz")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+!-]{0,199}", re.ASCII)
_RAY_NAME = re.compile(r"_ray_pkg_([0-9a-f]{16,40})\.(zip|tar\.gz|tar\.xz)", re.ASCII)
_BLOCK = 1 << 20
#: An archive may unpack to this many times the largest upload; regions unpack what we hand on.
UNPACKED_TIMES = 8


def check_name(name: str) -> str:
    """Return ``name``; raise BadInput unless it is a plain package name that cannot leave its folder."""
    if not _NAME.fullmatch(name) or ".." in name or not name.endswith(EXTENSIONS):
        remedy = "must be a file name of letters, digits and _.+!- that ends in one of " + ", ".join(EXTENSIONS)
        raise BadInput([("package", name[:200], remedy)])
    return name


def package_names(runtime_env: Mapping[str, Any]) -> list[str]:
    """Names of the ``gcs://`` packages that a runtime_env refers to, each once. Raises BadInput for an ill-formed one."""
    names: dict[str, None] = {}
    for field, value in _uris(runtime_env):
        if isinstance(value, str) and value.startswith("gcs://"):
            name = unquote(value.removeprefix("gcs://"))
            try:
                names.setdefault(check_name(name))
            except BadInput as error:
                raise BadInput([(f"runtime_env.{field}", value[:300], error.problems[0][2])]) from None
    return list(names)


def _uris(runtime_env: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "working_dir", runtime_env.get("working_dir")
    for field in ("py_modules", "java_jars"):
        modules = runtime_env.get(field)
        for index, module in enumerate(modules if isinstance(modules, list) else ()):
            yield f"{field}[{index}]", module
    yield "py_executable", runtime_env.get("py_executable")


class PackageStore:
    """A folder of packages. Every method may be called from any thread; all of them block on the disk.

    Beside each file lies ``<name>.json`` with its sha256 and size; a file without it, or of other bytes, is not held.
    """

    def __init__(self, root: Path, max_bytes: int) -> None:
        self.root, self.max_bytes = root, max_bytes
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in root.glob(".upload-*"):  # uploads that a crash cut off
            left.unlink(missing_ok=True)

    def path(self, name: str) -> Path:
        """Where the package lies, or would lie. Raises BadInput for a name that is none."""
        return self.root / check_name(name)

    def exists(self, name: str) -> bool:
        """Whether the package is held, by its size only (cheap; `verify` reads the bytes)."""
        path, record = self.path(name), self._record(name)
        try:
            return record is not None and bool(path.stat().st_size == record["size"])
        except OSError as error:
            return self._is_missing(name, error)

    def verify(self, name: str) -> bool:
        """Whether the package is held and its bytes are still those that were uploaded. Raises StoreUnavailable where that
        cannot be read now, which says nothing of the package."""
        record = self._record(name)
        if record is None:
            return False
        digest, size = hashlib.sha256(), 0
        try:
            with self.path(name).open("rb") as file:
                while block := file.read(_BLOCK):
                    digest.update(block)
                    size += len(block)
        except OSError as error:
            return self._is_missing(name, error)
        return bool(size == record["size"]) and digest.hexdigest() == record["sha256"]

    def sha256(self, name: str) -> str:
        """The hash of the package as it was uploaded (hex). Raises NotFound."""
        record = self._record(name)
        if record is None:
            raise NotFound(f"package {name} is not held here")
        return str(record["sha256"])

    def name_verified(self, name: str) -> bool:
        """Whether the content was seen to match the hash in its Ray name. False proves nothing: Ray hashes also folders whose
        files were all excluded, which no archive shows."""
        record = self._record(name)
        return bool(record and record.get("name_verified"))

    def upload(self, name: str) -> "Upload":
        """Begin an upload: write blocks to it, then commit; leaving its ``with`` block without a commit drops it."""
        return Upload(self, check_name(name))

    def put(self, name: str, data: bytes) -> None:
        """Store a package from memory. Raises BadInput, PackageRejected or StoreUnavailable."""
        with self.upload(name) as upload:
            upload.write(data)
            upload.commit()

    def _record(self, name: str) -> dict[str, Any] | None:
        try:
            record = json.loads((self.root / f"{check_name(name)}.json").read_text())
            return record if isinstance(record["size"], int) and isinstance(record["sha256"], str) else None
        except OSError as error:
            self._is_missing(name, error)
            return None
        except (ValueError, KeyError, TypeError):
            return None

    def _is_missing(self, name: str, error: OSError) -> Literal[False]:
        """False where there is no such file; any other failure, and a folder that is gone as a whole, may pass."""
        if isinstance(error, FileNotFoundError) and self.root.is_dir():
            return False
        raise StoreUnavailable(f"package {name} cannot be read now: {error.strerror or error} ({self.root})") from error

    def _keep(self, upload: "Upload") -> None:
        """Put a complete upload in its place. The first intact one of a name stays: jobs that wait refer to it."""
        name, verified = upload.name, _matches_name(upload.name, upload.temporary, upload.sha1.hexdigest(), self.max_bytes)
        with self._lock:
            if self.verify(name):
                if self.sha256(name) == upload.sha256.hexdigest():
                    return
                if not name.startswith("_ray_pkg_"):
                    raise PackageRejected(f"{name} is held already with other content; give the changed one a new version")
                if self.name_verified(name) or not verified:
                    return
            record = {"sha256": upload.sha256.hexdigest(), "size": upload.size, "name_verified": verified}
            sidecar = self.root / f".upload-{secrets.token_hex(8)}"
            try:
                with sidecar.open("w") as file:
                    json.dump(record, file)
                    file.flush()
                    os.fsync(file.fileno())
                upload.temporary.replace(self.root / name)
                sidecar.replace(self.root / f"{name}.json")
                _fsync_folder(self.root)
            except OSError as error:
                sidecar.unlink(missing_ok=True)
                raise _no_room(error) from error


class Upload:
    """One package on its way in. Nothing of it is visible under its name before `commit` has returned."""

    def __init__(self, store: PackageStore, name: str) -> None:
        self._store, self.name = store, name
        self.sha256, self.sha1, self.size = hashlib.sha256(), hashlib.sha1(usedforsecurity=False), 0
        self.temporary = store.root / f".upload-{secrets.token_hex(8)}"
        try:
            self._file = self.temporary.open("xb")
        except OSError as error:
            raise _no_room(error) from error

    def write(self, block: bytes) -> None:
        """Append a block. Raises PackageRejected past the size limit, StoreUnavailable when the disk is full."""
        if self.size + len(block) > self._store.max_bytes:
            limit = f"{self._store.max_bytes / 1e6:g} MB"
            raise PackageTooLarge(f"{self.name} is larger than {limit}; exclude files, or raise server.max_package_mb")
        try:
            self._file.write(block)
        except OSError as error:
            raise _no_room(error) from error
        self.sha256.update(block)
        self.sha1.update(block)
        self.size += len(block)

    def commit(self) -> None:
        """Check the archive and make it durable under its name. Raises PackageRejected or StoreUnavailable."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise _no_room(error) from error
        check_archive(self.name, self.temporary, UNPACKED_TIMES * self._store.max_bytes)
        self._store._keep(self)

    def __enter__(self) -> "Upload":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._file.close()  # flushes, and so may find the disk full; the file is dropped either way
        except OSError:
            if kind is None:
                raise
        finally:
            self.temporary.unlink(missing_ok=True)


class PackageTooLarge(PackageRejected):
    """The package is larger than this control plane takes."""


def _matches_name(name: str, path: Path, sha1: str, max_bytes: int) -> bool:
    """Whether a Ray name's hash is that of the content: of the archive itself, or of the folder that it was made from."""
    match = _RAY_NAME.fullmatch(name)
    if match is None:
        return False
    if match[1] == sha1:
        return True
    return match[2] == "zip" and match[1] in ray_directory_hashes(path, max_bytes)


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _no_room(error: OSError) -> StoreUnavailable:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full" if full else f"the disk did not take it ({error.strerror or error})"
    return StoreUnavailable(f"{why}; nothing was stored")
