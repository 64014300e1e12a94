from collections.abc import Iterator

import pytest

from dispatcher.client import Client
from tests.client.fake_api import FakeApi


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TOKEN", "URL", "JOB_TOKEN", "ATTEMPT", "CHECKPOINT_DIR", "JOB_ID"):
        monkeypatch.delenv(f"GRIDSHIFT_{name}", raising=False)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi().start()
    yield server
    server.stop()


@pytest.fixture
def client(api: FakeApi) -> Client:
    return Client(api.address)
