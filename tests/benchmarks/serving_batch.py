"""Batch work that takes all the CPU it can get, at no lower priority than others: for bench_serving, submitted as a job.

``python serving_batch.py FILE TASKS``: so many Ray tasks each write a line "time units cpu" twenty times a second to a file of
their own: time.monotonic(), units of work and CPU seconds so far. Tasks and not processes of the entrypoint, for Ray's workers
share the node's session, and Linux divides CPU between sessions before it does between processes (autogroups).
"""

import hashlib
import sys
import time
from pathlib import Path

UNIT = bytes(1_000_000)


def work(path: str, limit_s: float = float("inf")) -> tuple[int, float]:
    """Work and write it down until ``limit_s`` have passed; units and CPU s."""
    began = last = time.monotonic()
    units, now = 0, began
    with Path(path).open("a", buffering=1, encoding="utf-8") as out:
        while now - began < limit_s:
            hashlib.sha256(UNIT).digest()
            units += 1
            now = time.monotonic()
            if now - last >= 0.05:
                out.write(f"{now:.4f} {units} {time.process_time():.4f}\n")
                last = now
    return units, time.process_time()


if __name__ == "__main__":
    import ray

    ray.init()  # a job's entrypoint finds its own cluster
    task = ray.remote(num_cpus=1)(work)
    ray.get([task.remote(f"{sys.argv[1]}.{number}") for number in range(int(sys.argv[2]))])
