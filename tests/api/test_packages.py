"""Packages on disk: what Ray makes is taken, what is damaged or hostile is not, and nothing is half done."""

import errno
import io
import json
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatcher import package_archives
from dispatcher.errors import BadInput, NotFound, PackageRejected, StoreUnavailable
from dispatcher.packages import PackageStore, PackageTooLarge, package_names

NAME = "_ray_pkg_0123456789abcdef.zip"


def zipped(files: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] = lambda info: None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            change(info)
            archive.writestr(info, data, compress_type=zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(mode: str, *members: tuple[str, bytes, bytes, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=f"w:{mode}") as archive:  # type: ignore[call-overload]
        for name, data, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> PackageStore:
    return PackageStore(tmp_path / "packages", 1_000_000)


def left_over(store: PackageStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir())


def test_kept_and_found_again(store: PackageStore) -> None:
    assert not store.exists(NAME)
    assert not store.verify(NAME)
    data = zipped({"job.py": b"print()"})
    with store.upload(NAME) as upload:
        upload.write(data[:10])
        upload.write(data[10:])
        assert not store.exists(NAME)
        upload.commit()
    again = PackageStore(store.root, 1_000_000)
    assert again.exists(NAME) and again.verify(NAME)
    assert again.path(NAME).read_bytes() == data
    assert len(again.sha256(NAME)) == 64
    assert left_over(store) == [NAME, f"{NAME}.json"]


@pytest.mark.parametrize(
    "name",
    [
        *[
            "../x.zip",
            "a/b.zip",
            "/etc/passwd",
            "x",
            "x.py",
            ".zip",
            "..zip",
            "a..b.zip",
            "é.zip",
            "x.zip.json",
            ".upload-1.zip",
            "a\\b.zip",
        ],
        *("x.zip\x00", "x.zip\n", "", "a" * 300),
    ],
)
def test_names_that_are_none(store: PackageStore, name: str) -> None:
    for call in (store.exists, store.verify, store.path, store.upload, store.sha256, lambda n: store.put(n, b"")):
        with pytest.raises(BadInput, match="file name"):
            call(name)
    assert left_over(store) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(b"x" + path.read_bytes()[1:]),
        lambda path: path.unlink(),
        lambda path: path.with_name(path.name + ".json").unlink(),
        lambda path: path.with_name(path.name + ".json").write_text("{"),
        lambda path: path.with_name(path.name + ".json").write_text("[]"),
    ],
)
def test_a_damaged_one_counts_as_missing_and_can_be_sent_again(store: PackageStore, damage: Callable[[Path], Any]) -> None:
    data = zipped({"a": b"1"})
    store.put(NAME, data)
    damage(store.path(NAME))
    assert not store.verify(NAME)
    store.put(NAME, data)
    assert store.verify(NAME)


def test_too_large_is_refused_and_leaves_nothing(store: PackageStore) -> None:
    with pytest.raises(PackageTooLarge, match="1 MB"), store.upload(NAME) as upload:
        for _ in range(3):
            upload.write(b"x" * 400_000)
    assert left_over(store) == []


def symlink(info: zipfile.ZipInfo) -> None:
    info.external_attr = (stat.S_IFLNK | 0o777) << 16


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a sound archive"),
        (b"MZ" + b"x" * 500, "not a sound archive"),
        (zipped({"a": b"1" * 5000})[:-30], "not a sound archive"),
        (zipped({"../evil": b""}), "leads out"),
        (zipped({"a/../../evil": b""}), "leads out"),
        (zipped({"/etc/cron.d/x": b""}), "leads out"),
        (zipped({"C:/x": b""}), "leads out"),
        (zipped({"..\\evil": b""}), "leads out"),
        (zipped({"link": b"/etc/passwd"}, symlink), "link or device"),
        (zipped({f"bomb{n}": b"\0" * 900_000 for n in range(10)}), "unpacks to 9 MB"),
    ],
)
def test_hostile_zips(store: PackageStore, data: bytes, why: str) -> None:
    with pytest.raises(PackageRejected, match=why):
        store.put(NAME, data)
    assert left_over(store) == []


def test_a_directory_that_is_a_bomb_is_not_read(store: PackageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_archives, "MAX_DIRECTORY_BYTES", 2000)
    store.put(NAME, zipped({"a": b""}))
    with pytest.raises(PackageRejected, match="too many members"):
        store.put("_ray_pkg_1111111111111111.zip", zipped({f"file{n}": b"" for n in range(100)}))
    wide = bytearray(zipped({"a": b""}))
    end = wide.rfind(b"PK\x05\x06")
    record = struct.pack("<4sQHHLLQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, 1 << 40, 0)
    wide[end:end] = record
    struct.pack_into("<L", wide, wide.rfind(b"PK\x05\x06") + 12, 0xFFFFFFFF)
    with pytest.raises(PackageRejected):
        store.put("_ray_pkg_2222222222222222.zip", bytes(wide))


def test_a_zip_of_very_many_small_members_is_refused_at_once(store: PackageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_archives, "MAX_MEMBERS", 10)
    store.put(NAME, zipped({f"file{n}": b"" for n in range(10)}))
    with pytest.raises(PackageRejected, match="has 11 members; 10 are allowed"):
        store.put("_ray_pkg_1111111111111111.zip", zipped({f"file{n}": b"" for n in range(11)}))


REG, SYM, HARD, DIR, CHR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE


@pytest.mark.parametrize("ending", ["tar.gz", "tar.xz", "tgz"])
def test_tar_archives_are_taken(store: PackageStore, ending: str) -> None:
    name, mode = f"_ray_pkg_{'ab' * 20}.{ending}", "xz" if ending.endswith("xz") else "gz"
    members = [("d", b"", DIR, ""), ("d/a", b"x" * 9000, REG, ""), ("d/l", b"", SYM, "../d/a"), ("h", b"", HARD, "d/a")]
    store.put(name, tarred(mode, *members))
    assert store.verify(name)


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("../x", b"1", REG, ""), "leads out"),
        (("/x", b"1", REG, ""), "leads out"),
        (("l", b"", SYM, "/etc/passwd"), "leads out"),
        (("a/l", b"", SYM, "../../x"), "leads out"),
        (("h", b"", HARD, "../x"), "leads out"),
        (("null", b"", CHR, ""), "device"),
        (("big", b"\0" * 9_000_000, REG, ""), "too many or too large"),
    ],
)
@pytest.mark.parametrize("mode", ["gz", "xz"])
def test_hostile_tars(store: PackageStore, mode: str, member: tuple[str, bytes, bytes, str], why: str) -> None:
    with pytest.raises(PackageRejected, match=why):
        store.put(f"_ray_pkg_{'ab' * 20}.tar.{mode}", tarred(mode, ("ok", b"1", REG, ""), member))
    assert left_over(store) == []


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("d1", b"", SYM, "."), ("d1/d2", b"", SYM, ".."), ("d1/d2/evil", b"x", REG, "")], "below a link"),
        ([("d1", b"", SYM, "."), ("d1/file", b"x", REG, "")], "below a link"),
        ([("d1/file", b"x", REG, ""), ("d1", b"", SYM, ".")], "below a link"),
        ([("a/b/up", b"", SYM, "../.."), ("a/b/out", b"", SYM, "up/..")], "leads out"),
    ],
)
def test_tars_whose_links_lead_each_other_out(store: PackageStore, members: list[Any], why: str) -> None:
    with pytest.raises(PackageRejected, match=why):
        store.put(f"_ray_pkg_{'ab' * 20}.tar.gz", tarred("gz", *members))


def test_a_tar_whose_own_header_is_a_bomb(store: PackageStore) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 40_000_000}):
        pass
    assert len(buffer.getvalue()) < 1_000_000
    with pytest.raises(PackageRejected, match="unpacks to more"):
        store.put("_ray_pkg_aa.tar.gz", buffer.getvalue())
    with pytest.raises(PackageRejected, match="archive"):
        store.put("_ray_pkg_aa.tar.gz", b"\x1f\x8bgarbage")


def test_the_first_intact_one_stays(store: PackageStore) -> None:
    first, second = zipped({"a": b"1"}), zipped({"a": b"2"})
    store.put(NAME, first)
    store.put(NAME, second)
    assert store.path(NAME).read_bytes() == first
    store.put("x-1.0-py3-none-any.whl", first)
    store.put("x-1.0-py3-none-any.whl", first)
    with pytest.raises(PackageRejected, match="new version"):
        store.put("x-1.0-py3-none-any.whl", second)
    assert len(left_over(store)) == 4


def test_content_that_matches_its_name_takes_the_place_of_one_that_does_not(store: PackageStore, tmp_path: Path) -> None:
    right = zipped({"a": b"right"})
    (tmp_path / "x.zip").write_bytes(right)
    name = f"_ray_pkg_{package_archives.ray_directory_hashes(tmp_path / 'x.zip', 10**6).pop()}.zip"
    store.put(name, zipped({"a": b"wrong"}))
    assert not store.name_verified(name)
    store.put(name, right)
    assert store.name_verified(name) and store.path(name).read_bytes() == right
    store.put(name, zipped({"a": b"wrong"}))
    assert store.path(name).read_bytes() == right


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_does_not_take_it(store: PackageStore, monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
    with pytest.raises(StoreUnavailable, match="full" if number == errno.ENOSPC else "did not take"):
        store.put(NAME, zipped({"a": b"1"}))
    monkeypatch.undo()
    assert not store.verify(NAME)
    assert [name for name in left_over(store) if name.startswith(".")] == []
    store.put(NAME, zipped({"a": b"1"}))
    assert store.verify(NAME)


def test_writing_to_a_full_disk(store: PackageStore) -> None:
    with pytest.raises(StoreUnavailable, match="full"), store.upload(NAME) as upload:
        upload._file.close()
        upload._file = open("/dev/full", "wb")  # noqa: SIM115, PTH123 - closed by the upload
        for _ in range(9):
            upload.write(b"x" * 100_000)
        upload.commit()
    assert left_over(store) == []


def test_a_crash_between_file_and_record_counts_as_missing(store: PackageStore) -> None:
    store.put(NAME, zipped({"a": b"1"}))
    record = json.loads((store.root / f"{NAME}.json").read_text())
    store.path(NAME).write_bytes(zipped({"a": b"22"}))
    assert not store.verify(NAME)
    assert record["size"] > 0
    (store.root / ".upload-rest").write_bytes(b"x")
    assert left_over(PackageStore(store.root, 1)) == [NAME, f"{NAME}.json"]


def test_unknown_has_no_hash(store: PackageStore) -> None:
    with pytest.raises(NotFound):
        store.sha256(NAME)


def test_names_in_a_runtime_env() -> None:
    env = {
        "working_dir": "gcs://_ray_pkg_aa.zip",
        "py_modules": ["gcs://b-1.0%2Bcu1-py3-none-any.whl", "s3://elsewhere/c.zip", 5, "gcs://_ray_pkg_aa.zip"],
        "env_vars": {"X": "gcs://not-a-package"},
    }
    assert package_names(env) == ["_ray_pkg_aa.zip", "b-1.0+cu1-py3-none-any.whl"]
    assert package_names({"working_dir": None, "py_modules": "no list"}) == []
    with pytest.raises(BadInput, match=r"runtime_env.py_modules\[0\]"):
        package_names({"py_modules": ["gcs://../../etc/passwd.zip"]})


# --- what Ray itself makes ----------------------------------------------------------------------------------------


def tree(root: Path) -> None:
    for name, data in {
        "job.py": b"print(1)",
        "data/big.bin": os.urandom(5_000_000),
        "data/skip.log": b"log",
        "pkg/__init__.py": b"",
        "pkg/mod.py": b"x = 1",
        "pkg/__pycache__/mod.pyc": b"\0",
        "deep/er/st/file": b"end",
        "ünï/côde.txt": "é".encode(),
        "with space/a b": b"1",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "empty/inner").mkdir(parents=True)
    (root / "link").symlink_to("job.py")
    (root / "folder_link").symlink_to("pkg")


def nothing(root: Path) -> None:
    pass


def gitignore(root: Path) -> None:
    (root / ".gitignore").write_text("*.pyc\n*.log\n")
    (root / "pkg/.rayignore").write_text("mod.py\n")


def only_empty(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.parametrize("prepare", [nothing, gitignore, only_empty])
@pytest.mark.parametrize("excludes", [None, ["data"], ["*.py", "deep/**"], ["empty/inner"]])
@pytest.mark.parametrize("parent", [False, True])
def test_what_ray_packs_is_taken(
    tmp_path: Path, prepare: Callable[[Path], None], excludes: list[str] | None, parent: bool
) -> None:
    from ray._private.runtime_env.packaging import create_package, get_uri_for_directory

    root = tmp_path / "work"
    root.mkdir()
    tree(root)
    prepare(root)
    name = get_uri_for_directory(str(root), True, excludes=excludes).removeprefix("gcs://")
    create_package(str(root), tmp_path / name, True, include_parent_dir=parent, excludes=excludes)
    store = PackageStore(tmp_path / "packages", 50_000_000)
    store.put(name, (tmp_path / name).read_bytes())
    assert store.verify(name)
    if prepare is nothing and excludes in (None, ["data"]):
        assert store.name_verified(name)


def test_files_and_archives_that_ray_uploads_as_they_are(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import get_uri_for_package

    store = PackageStore(tmp_path / "packages", 50_000_000)
    for local, data in {
        "own.zip": zipped({"a": b"1"}),
        "own.tar.gz": tarred("gz", ("a", b"1", REG, "")),
        "own.tgz": tarred("gz", ("a", b"1", REG, "")),
        "own.tar.xz": tarred("xz", ("a", b"1", REG, "")),
        "mod-1.0-py3-none-any.whl": zipped({"mod/__init__.py": b""}),
    }.items():
        (tmp_path / local).write_bytes(data)
        name = get_uri_for_package(tmp_path / local).removeprefix("gcs://")
        store.put(name, data)
        assert store.verify(name)
        assert store.name_verified(name) == (not local.endswith(".whl"))


def test_a_single_module_file(tmp_path: Path) -> None:
    from ray._private.runtime_env.packaging import create_package, get_uri_for_file

    (tmp_path / "mod.py").write_text("x = 1")
    name = get_uri_for_file(str(tmp_path / "mod.py")).removeprefix("gcs://")
    create_package(str(tmp_path / "mod.py"), tmp_path / name, True, include_parent_dir=True)
    store = PackageStore(tmp_path / "packages", 50_000_000)
    store.put(name, (tmp_path / name).read_bytes())
    assert store.verify(name)


@pytest.mark.parametrize("what", [NAME, f"{NAME}.json"])
def test_what_cannot_be_read_now_is_not_called_missing(store: PackageStore, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    store.put(NAME, zipped({"job.py": b"print()"}))
    real_open = Path.open

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.name == what:
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StoreUnavailable, match="cannot be read now: Too many open files"):
        store.verify(NAME)
    monkeypatch.undo()
    assert store.verify(NAME)


def test_a_folder_that_is_gone_as_a_whole_may_come_back(store: PackageStore) -> None:
    store.put(NAME, zipped({"job.py": b"print()"}))
    away = store.root.rename(store.root.with_name("unmounted"))
    for ask in (store.verify, store.exists):
        with pytest.raises(StoreUnavailable, match="cannot be read now"):
            ask(NAME)
    away.rename(store.root)
    assert store.verify(NAME) and store.exists(NAME)
