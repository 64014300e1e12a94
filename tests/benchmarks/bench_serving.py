"""Interactive serving beside batch, on this machine with real parts, which are in serving_live.py.

It needs Debian's prometheus, and a machine on which nothing else runs: what others take counts as batch's harm.
"""

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import serving_live
from tests.benchmarks.common import data_folder, report, without_data


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two blocks and one surge; about seven minutes")
    given = parser.parse_args()
    folder = data_folder("serving")
    if folder is None:
        return without_data("serving")
    if shutil.which("prometheus") is None:
        print("no prometheus here: apt-get install prometheus", file=sys.stderr)
        return 1
    figures, wanted = serving_live.figures(folder, given.quick)
    return report("serving", figures, wanted, serving_live.METHOD)


if __name__ == "__main__":
    sys.exit(main())
