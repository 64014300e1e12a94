"""What ``gridshift up`` does when its local Ray dies, and when something it starts is not installed."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from dispatcher.config import Config
from dispatcher.errors import GridshiftError
from dispatcher.local_ray import LocalRay
from dispatcher.up import DEATHS_WITHIN_S, MAX_DEATHS, RayKeeper, check_installed


class DyingRay(LocalRay):
    """Dead at every look; counts its starts."""

    starts = 0

    def death(self) -> str | None:
        return "the local Ray 'x' has ended"

    def start(self) -> "DyingRay":
        self.starts += 1
        return self


def test_a_dead_ray_is_started_again_but_not_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ray = DyingRay("x", base_dir=tmp_path, num_cpus=1)
    keeper = RayKeeper(ray)
    for at in range(5):
        keeper.look(at * DEATHS_WITHIN_S)
    assert ray.starts == 5 and capsys.readouterr().err.count("starting it again") == 5
    keeper.look(4 * DEATHS_WITHIN_S + 1)
    with pytest.raises(GridshiftError, match=f"{MAX_DEATHS} times within 5 minutes"):
        keeper.look(4 * DEATHS_WITHIN_S + 2)
    assert ray.starts == 6


def test_after_stop_it_is_not_started_any_more(tmp_path: Path) -> None:
    ray = LocalRay("x", base_dir=tmp_path, num_cpus=1)
    ray.stop()
    with pytest.raises(GridshiftError, match="has been stopped"):
        ray.start()


def test_what_is_not_installed_is_named_as_in_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config: Any = Config()
    with pytest.raises(GridshiftError, match=r"'\.\[ray,ui\]'.*--no-console"):
        check_installed(config, console=True)
    with pytest.raises(GridshiftError, match=r"'\.\[ray\]'"):
        check_installed(config, console=False)
