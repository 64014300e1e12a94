"""A real Prometheus server, as Debian packages it, in a process of its own."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.helpers import free_port
from tests.real.harness import answering

CONFIG = """
global:
  scrape_interval: {every}
scrape_configs:
  - job_name: ray
    file_sd_configs:
      - files: ["{targets}"]
        refresh_interval: 1s
"""


@contextlib.contextmanager
def prometheus(folder: Path, targets: Path, every: str = "1s") -> Iterator[str]:
    """One that scrapes ``targets``, a file of service discovery as each Ray head keeps it in its temp dir; yields its address.

    Raises FileNotFoundError where Prometheus is not installed."""
    binary = shutil.which("prometheus")
    if binary is None:
        raise FileNotFoundError("prometheus is not installed; Debian has it in the package prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(CONFIG.format(every=every, targets=targets), encoding="utf-8")
    port = free_port()
    options = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    address = f"http://127.0.0.1:{port}"
    argv = [binary, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with answering(argv, f"{address}/-/ready", "Prometheus", folder / "prometheus.log"):
        yield address
