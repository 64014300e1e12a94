"""The tests' OpenADR 3 VTN in a process of its own, and the utility's side of it for a test: one call a line, JSON both ways.

What it takes in and sends is checked against the official schemas where their folder is there; ``problems`` has what is wrong.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.dr.ven3_site import official
from tests.dr.vtn3 import Vtn

ROOT = Path(__file__).parents[2]


class VtnProcess:
    """Use it in a ``with``. ``url`` is where it listens, ``secret`` what its client has to know."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.url, self.secret = "", ""

    def __enter__(self) -> Self:
        argv = [sys.executable, "-m", "tests.real.vtn_process"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self.url, self.secret = self._heard()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # the end of its input ends it
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def call(self, what: str, *args: Any, **more: Any) -> Any:
        """A method of the VTN, or one of its attributes. What it raises fails the test."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, args, more]) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the VTN is gone: {self._log.read_text()[-2000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]


def main() -> None:
    """Serve, and obey each line of the input."""
    with Vtn("3.1", official("3.1")) as vtn:
        print(json.dumps({"value": [vtn.url, vtn.secret]}), flush=True)
        for line in sys.stdin:
            what, args, more = json.loads(line)
            try:
                found = getattr(vtn, what)
                answer = {"value": found(*args, **more) if callable(found) else found}
            except Exception as error:  # noqa: BLE001 - whoever called is told
                answer = {"error": f"{what}: {type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
