"""A page of the console, run by Streamlit's own test harness."""

import importlib.util
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.ui.fake_api import FakeControlPlane

LIMIT_S = 60


def page_of(plane: FakeControlPlane, monkeypatch: pytest.MonkeyPatch, name: str | None = None) -> AppTest:
    """The console's page of that name (None: the first one), not yet run, for ``plane``."""
    spec = importlib.util.find_spec("ui")
    assert spec is not None and spec.origin is not None
    monkeypatch.setenv("GRIDSHIFT_ADDRESS", plane.address)
    monkeypatch.delenv("GRIDSHIFT_TOKEN", raising=False)
    made = AppTest.from_file(str(Path(spec.origin).with_name("console.py")), default_timeout=LIMIT_S)
    if name is not None:
        made.query_params["page"] = name
    return made


def html(page: AppTest) -> str:
    """All HTML of the page."""
    assert not page.exception, page.exception
    return "\n".join(str(element.proto.body) for element in page.get("html"))
