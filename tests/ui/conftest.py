"""A control plane of the tests' own, the console started as a process, and a real browser."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.helpers import free_port, wait_until
from tests.ui.fake_api import FakeControlPlane
from ui.launch import command


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    """A control plane that listens on loopback."""
    one = FakeControlPlane().start()
    yield one
    one.stop()


@pytest.fixture
def console(plane: FakeControlPlane, tmp_path: Path) -> Iterator[str]:
    """The address of a console, started as `gridshift up` does, that shows ``plane``."""
    port = free_port()
    plane.token = "gs_token of the console"
    argv, env = command(plane.address, port, plane.token)
    assert plane.token not in " ".join(argv)
    with (tmp_path / "console.log").open("wb") as log:
        process = subprocess.Popen(
            argv, env={**os.environ, **env, "HOME": str(tmp_path)}, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: process.poll() is not None or _healthy(address), 60, "the console's health page")
        assert process.poll() is None, (tmp_path / "console.log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait(20)
    assert "Traceback" not in (tmp_path / "console.log").read_text()


def _healthy(address: str) -> bool:
    try:
        return requests.get(f"{address}/_stcore/health", timeout=1).ok
    except requests.RequestException:
        return False


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    """A headless Chromium with a profile of its own; skips, saying so, where there is none, except in CI."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI promises chromium and chromedriver, and they are not here")
        pytest.skip("no chromium with chromedriver here (apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    with tempfile.TemporaryDirectory(prefix="gsui", ignore_cleanup_errors=True) as profile:
        for flag in (
            "headless=new",
            "no-sandbox",
            "disable-gpu",
            "disable-quic",
            "disable-dev-shm-usage",
            "no-first-run",
            "disable-background-networking",
            "disable-component-update",
            "disable-sync",
            "window-size=1680,1050",
            f"user-data-dir={profile}",
        ):
            options.add_argument(f"--{flag}")
        one = webdriver.Chrome(options=options, service=Service(driver))
        one.set_page_load_timeout(60)
        yield one
        one.quit()
