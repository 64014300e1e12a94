"""What the control plane sets up before it serves."""

import stat
from pathlib import Path

import pytest

from dispatcher.errors import ConfigError
from dispatcher.serve import read_secret


def test_the_secret_is_made_once_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    secret = read_secret(tmp_path)
    assert len(secret) == 32 and read_secret(tmp_path) == secret
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_secret_that_is_too_short_is_not_worked_with(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(ConfigError, match="holds 5 bytes, 32 are needed"):
        read_secret(tmp_path)
