"""Fixtures of the tests with real processes."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A folder with a short path: Ray's sockets lie below it, and a socket's path has about 100 characters at most."""
    path = Path(tempfile.mkdtemp(prefix="gst"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
