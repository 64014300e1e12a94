from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.fake import FakeServices, Server


@pytest.fixture
def services(tmp_path: Path) -> FakeServices:
    return FakeServices(tmp_path)


@pytest.fixture
def server(services: FakeServices) -> Iterator[Server]:
    with Server(services) as running:
        yield running
