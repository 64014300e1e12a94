"""The data folder holds secrets and packages: it stays out of what users package of the folder around it."""

import io
import zipfile
from pathlib import Path

import pytest
from ray._private.runtime_env.packaging import create_package

from dispatcher.client import package_entries, write_package
from dispatcher.config import load


@pytest.mark.parametrize("ignored", ["0", "1"])
def test_the_data_folder_is_in_no_package_of_the_folder_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: str
) -> None:
    monkeypatch.setenv("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", ignored)
    project = tmp_path / "project"
    project.mkdir()
    (project / "job.py").write_text("print(1)\n", encoding="utf-8")
    (project / "gridshift.toml").touch()
    folder = load(project / "gridshift.toml", {}).make_data_dir()
    assert folder == project / ".gridshift" and folder.stat().st_mode & 0o777 == 0o700
    for name in ("secret", "gridshift.db", "packages/_ray_pkg_1.zip"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("not for others", encoding="utf-8")
    create_package(str(project), tmp_path / "ray.zip", include_gitignore=ignored == "0")
    with zipfile.ZipFile(tmp_path / "ray.zip") as made:
        assert sorted(name for name in made.namelist() if not name.endswith("/")) == ["gridshift.toml", "job.py"]
    write_package(package_entries(project, (), {}), ours := io.BytesIO())
    with zipfile.ZipFile(ours) as made:
        assert sorted(name for name in made.namelist() if not name.endswith("/")) == ["gridshift.toml", "job.py"]
