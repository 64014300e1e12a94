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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that store nothing."""
    with Server(FakeServices(tmp_path_factory.mktemp("shared"))) as running:
        yield running
