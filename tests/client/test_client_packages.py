import io
import os
import socket
import zipfile
from pathlib import Path

import pytest

from dispatcher.client import Client, GridshiftApiError, package_entries, package_name, write_package
from tests.client.fake_api import FakeApi

TREE = {
    "train.py": "print(1)",
    "lib/__init__.py": "",
    "lib/deep/model.py": "m",
    "data/big.bin": "b",
    "data/keep.txt": "k",
    "out/run.log": "l",
    "out/sub/run.log": "l",
    "a/b.tmp": "t",
    "a/c/d.tmp": "t",
    "a/c/x1.dat": "x",
    "a/c/xa.dat": "x",
    "venv/.gitignore": "*\n",
    "venv/bin/python": "p",
    "lib/.rayignore": "deep/\n",
    "ünï.txt": "u",
    "#hash": "h",
    "we ird[1].txt": "w",
}
IGNORES = [
    "",
    "*.log\n",
    "data/\n!data/keep.txt\n",
    "data/*\n!data/keep.txt\n",
    "/out\n",
    "out\n!out/sub\n",
    "**/d.tmp\na/**\n",
    "a/*\n!a/c\n",
    "a/**/*.tmp\n",
    "x?.dat\n",
    "x[0-9].dat\n",
    "x[!0-9].dat\n",
    "# comment\n\n  \n\\#hash\n/\n",
    "we ird\\[1\\].txt\n",
    "*\n!*.py\n",
    "**\n",
    "lib/deep\n",
    "/lib/\n",
    "c/\n",
    "x[.dat\n*.t?t\n",
]


def make(root: Path, tree: dict[str, str]) -> Path:
    for name, text in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def rays_name(folder: Path, excludes: list[str]) -> str:
    from ray._private.runtime_env.packaging import get_uri_for_directory

    return get_uri_for_directory(str(folder), include_gitignore=True, excludes=excludes).removeprefix("gcs://")


def rays_files(folder: Path, excludes: list[str], target: Path) -> set[str]:
    from ray._private.runtime_env.packaging import create_package

    create_package(str(folder), target, include_gitignore=True, excludes=excludes)
    with zipfile.ZipFile(target) as archive:
        return set(archive.namelist())


def ours(folder: Path, excludes: list[str]) -> tuple[str, set[str]]:
    file = io.BytesIO()
    entries = package_entries(folder, excludes, {})
    name = write_package(entries, file)
    assert name == package_name(entries)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        return name, set(archive.namelist())


@pytest.mark.parametrize("ignore", IGNORES)
def test_name_and_contents_are_rays_own(tmp_path: Path, ignore: str) -> None:
    folder = make(tmp_path / "work", TREE)
    (folder / "empty").mkdir()
    if ignore:
        (folder / ".gitignore").write_text(ignore, encoding="utf-8")
    assert ours(folder, []) == (rays_name(folder, []), rays_files(folder, [], tmp_path / "a.zip"))
    excludes = [line for line in ignore.splitlines() if line and not line.startswith("!")]
    assert ours(folder, excludes) == (rays_name(folder, excludes), rays_files(folder, excludes, tmp_path / "b.zip"))


def test_an_empty_folder_and_links(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    assert ours(folder, [])[0] == rays_name(folder, [])
    make(folder, {"real/file.txt": "x"})
    (folder / "link").symlink_to("real")
    (folder / "dead").symlink_to("nowhere")
    assert ours(folder, []) == (rays_name(folder, []), rays_files(folder, [], tmp_path / "a.zip"))


def test_a_loop_of_links_is_named(tmp_path: Path) -> None:
    make(tmp_path, {"a/b.txt": "x"})
    (tmp_path / "a" / "up").symlink_to("..")
    with pytest.raises(GridshiftApiError, match="leads back"):
        package_entries(tmp_path, [], {})


def test_pipes_and_sockets_do_not_block(tmp_path: Path) -> None:
    make(tmp_path, {"a.txt": "x"})
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(tmp_path / "sock"))
        assert ours(tmp_path, [])[1] == {"a.txt"}


def test_the_zip_is_reproducible_and_keeps_the_executable_bit(tmp_path: Path) -> None:
    one, two = make(tmp_path / "1", TREE), make(tmp_path / "2", dict(reversed(TREE.items())))
    for folder in (one, two):
        (folder / "train.py").chmod(0o755)
    os.utime(two / "train.py", (1, 1))
    files = io.BytesIO(), io.BytesIO()
    for folder, file in zip((one, two), files, strict=True):
        write_package(package_entries(folder, [], {}), file)
    assert files[0].getvalue() == files[1].getvalue()
    modes = {i.filename: i.external_attr >> 16 for i in zipfile.ZipFile(files[0]).infolist()}
    assert (modes["train.py"], modes["lib/__init__.py"]) == (0o755, 0o644)


def test_too_large_is_told_before_it_is_sent(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(os.urandom(200_000))
    with pytest.raises(GridshiftApiError, match=r"big.*over 0\.1 MB"):
        write_package(package_entries(tmp_path, [], {}), io.BytesIO(), max_bytes=100_000)


def test_a_working_dir_is_uploaded_once(api: FakeApi, client: Client, tmp_path: Path) -> None:
    folder = make(tmp_path / "work", {"job.py": "x", "big.bin": "y"})
    (tmp_path / "req.txt").write_text("# mine\nnumpy==2\n\n")
    env = {"excludes": ["*.bin"], "env_vars": {"A": "1"}, "pip": str(tmp_path / "req.txt")}
    job = client.submit("python job.py", working_dir=folder, runtime_env=env)
    again = client.submit("python job.py", runtime_env={"working_dir": str(folder), "excludes": ["*.bin"]})
    (name,) = api.packages
    assert name == rays_name(folder, ["*.bin"])
    assert zipfile.ZipFile(io.BytesIO(api.packages[name])).namelist() == ["job.py"]
    assert job["runtime_env"] == {"working_dir": f"gcs://{name}", "env_vars": {"A": "1"}, "pip": ["numpy==2"]}
    assert again["runtime_env"] == {"working_dir": f"gcs://{name}"}
    assert [r[0] for r in api.requests if "packages" in r[1]] == ["GET", "PUT", "GET"]


def test_a_remote_working_dir_is_passed_on(api: FakeApi, client: Client) -> None:
    job = client.submit("true", working_dir="s3://bucket/code.zip")
    assert job["runtime_env"] == {"working_dir": "s3://bucket/code.zip"} and not api.packages


def test_the_control_plane_finds_the_name_right(client: Client, tmp_path: Path) -> None:
    from dispatcher.packages import PackageStore

    folder = make(tmp_path / "work", {**TREE, ".gitignore": "*.log\n"})
    (folder / "lib" / ".rayignore").unlink()  # it leaves an empty folder out, which Ray's name counts and no zip shows
    (folder / "empty").mkdir()
    (folder / "out" / "sub" / "kept").write_text("x")
    file = io.BytesIO()
    entries = package_entries(folder, [], {"dispatcher/client.py": b"x"})
    name = write_package(entries, file)
    store = PackageStore(tmp_path / "packages", 1 << 20)
    store.put(name, file.getvalue())
    assert store.name_verified(name)
