from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from dispatcher.cli import main
from tests.client.fake_api import FakeApi

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADDRESS", "TOKEN", "URL", "CONFIG"):
        monkeypatch.delenv(f"GRIDSHIFT_{name}", raising=False)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    server = FakeApi().start()
    monkeypatch.setenv("GRIDSHIFT_ADDRESS", server.address)
    yield server
    server.stop()


@pytest.fixture
def run() -> Run:
    def call(*args: str) -> Result:
        return CliRunner().invoke(main, list(args))

    return call
