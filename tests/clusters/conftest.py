"""One real Ray head that the tests of this folder share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.local_ray import LocalRay


@pytest.fixture(scope="package")
def head() -> Iterator[LocalRay]:
    base = Path(tempfile.mkdtemp(prefix="gst"))
    with LocalRay("tests", base_dir=base, num_cpus=8, num_gpus=2) as ray:
        yield ray
    shutil.rmtree(base)
