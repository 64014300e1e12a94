"""`gridshift` whose hub also takes orders from a folder: what the loops of the control plane will order, tests order here.

A file NAME.order holds {"caps": [fields of CapOrder], "releases": [fields of Release]}; NAME.results is the answer.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dispatcher import serve
from dispatcher.cli import main
from dispatcher.power.hub import CapOrder, Hub, Release

make_hub = serve.make_hub


def obey(hub: Hub, folder: Path) -> None:
    """Carry out orders as they come."""
    while True:
        for path in folder.glob("*.order"):
            asked: Any = json.loads(path.read_text())
            path.unlink()
            orders = [CapOrder(**one) for one in asked["caps"]]
            results = hub.order_caps(orders, [Release(**one) for one in asked["releases"]]).result(30)
            answer = path.with_suffix(".new")
            answer.write_text(json.dumps([one._asdict() for one in results]))
            answer.rename(path.with_suffix(".results"))
        time.sleep(0.05)


def make_obedient_hub(*args: Any) -> Hub:
    """The control plane's own hub, and a thread beside it."""
    hub = make_hub(*args)
    threading.Thread(target=obey, args=[hub, Path(os.environ["TEST_ORDERS"])], daemon=True).start()
    return hub


if __name__ == "__main__":
    serve.make_hub = make_obedient_hub
    sys.exit(main())
