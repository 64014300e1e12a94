"""How fast jobs come in, against Ray's own submit_job on the same machine in the same run.

Submissions go over HTTP to a control plane in a process of its own, each answered after a durable commit (SQLite,
synchronous=FULL). ``--quick`` takes under a minute.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import requests

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.common import report
from tests.real.harness import Plane, ray_clusters, region

#: Callers at the same time. Each side counts where it is fastest.
CONNECTIONS, RAY_THREADS = (32, 64, 128), (8, 32)
FLEX = {"gridshift.earliest": "24h", "gridshift.deadline": "40h", "gridshift.runtime": "1h"}


class _Caller(asyncio.Protocol):
    """One keep-alive connection that sends the next request when it has its answer. Requests are made beforehand and answers
    are only counted, since whatever the caller computes is taken from the control plane on the same cores."""

    def __init__(self, requests: list[bytes], finished: "asyncio.Future[None]", left: list[int]) -> None:
        self._requests, self._finished, self._left = requests, finished, left
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._next()

    def _next(self) -> None:
        if self._requests:
            self._transport.write(self._requests.pop())
        else:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, ended, body = self._got.partition(b"\r\n\r\n")
        if not ended or len(body) < int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]):
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            self._fail(f"{self._got!r}")
            return
        self._got = b""
        self._left[0] -= 1
        if self._left[0] == 0 and not self._finished.done():
            self._finished.set_result(None)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._left[0] and (exc is not None or self._requests):
            self._fail(f"the connection was lost: {exc}")

    def _fail(self, what: str) -> None:
        if not self._finished.done():
            self._finished.set_exception(RuntimeError(what))


async def _pour(port: int, bodies: list[bytes], connections: int) -> float:
    """POST every body over ``connections`` keep-alive connections; submissions a second. Raises on any answer but 200."""
    head = b"POST /api/jobs/ HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    requests = [head % len(body) + body for body in reversed(bodies)]
    loop = asyncio.get_running_loop()
    finished, left = loop.create_future(), [len(bodies)]
    started = time.perf_counter()
    for _ in range(connections):
        await loop.create_connection(lambda: _Caller(requests, finished, left), "127.0.0.1", port)
    await finished
    return len(bodies) / (time.perf_counter() - started)


def intake(plane: Plane, count: int, prefix: str, connections: int = 32) -> float:
    """Durable submissions a second of ``count`` held jobs."""
    bodies = [
        json.dumps({"entrypoint": "python train.py", "submission_id": f"{prefix}-{n}", "metadata": FLEX}).encode()
        for n in range(count)
    ]
    return asyncio.run(_pour(plane.port, bodies, connections))


def ray_submissions_per_s(address: str, count: int, threads: int) -> float:
    """Ray's own submit_job, ``threads`` at a time, as its client sends it."""
    from concurrent.futures import ThreadPoolExecutor

    from ray.job_submission import JobSubmissionClient

    client = JobSubmissionClient(address)
    client.submit_job(entrypoint="true")  # the first one after a start is slow
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: client.submit_job(entrypoint="true"), range(count)))
    return count / (time.perf_counter() - started)


def settle(address: str) -> None:
    """Wait until the cluster has nothing left to run, so that one measurement does not disturb the next."""
    deadline = time.monotonic() + 480
    while time.monotonic() < deadline:
        jobs = requests.get(f"{address}/api/jobs/", timeout=30).json()
        if not any(job["status"] in ("PENDING", "RUNNING") for job in jobs):
            return
        time.sleep(0.5)
    raise RuntimeError("the cluster did not come to rest")


def passed_through(plane: Plane, ray_address: str, pairs: int) -> dict[str, float]:
    """Latency of jobs that are passed through, alternating with jobs sent to Ray itself, medians in ms.

    ``answered`` is until the submitter has its answer, ``accepted`` until Ray has answered its own POST, ``started`` until the
    job's own command runs (it writes the time down).
    """
    direct, direct_started, accepted, answered, started_after = [], [], [], [], []
    note = plane.base / "started"

    def began(sent_at: datetime) -> float:
        while not note.exists() or not note.read_text().strip():
            time.sleep(0.01)
        at = int(note.read_text()) / 1e9
        note.unlink()
        return at - sent_at.timestamp()

    command = f"date +%s%N > {note}"
    with requests.Session() as ours, requests.Session() as theirs:
        for n in range(pairs):
            started, sent_at = time.perf_counter(), datetime.now(UTC)
            theirs.post(f"{ray_address}/api/jobs/", json={"entrypoint": command}, timeout=60).raise_for_status()
            direct.append(time.perf_counter() - started)
            direct_started.append(began(sent_at))
            settle(ray_address)
            job_id, sent_at = f"through-{n}", datetime.now(UTC)
            started = time.perf_counter()
            ours.post(f"{plane.address}/api/jobs/", json={"entrypoint": command, "submission_id": job_id}, timeout=60)
            answered.append(time.perf_counter() - started)
            while True:
                attempts = plane.job(job_id)["attempts"]
                if attempts and attempts[0]["accepted_at"]:
                    break
                time.sleep(0.02)
            accepted.append((datetime.fromisoformat(attempts[0]["accepted_at"]) - sent_at).total_seconds())
            started_after.append(began(sent_at))
            settle(ray_address)
    return {
        "ray_post_ms": statistics.median(direct) * 1e3,
        "through_answered_ms": statistics.median(answered) * 1e3,
        "through_accepted_ms": statistics.median(accepted) * 1e3,
        "ray_started_ms": statistics.median(direct_started) * 1e3,
        "through_started_ms": statistics.median(started_after) * 1e3,
        "answer_added_share": statistics.median(answered) / statistics.median(direct) - 1,
        "start_added_share": statistics.median(started_after) / statistics.median(direct_started) - 1,
    }


def median_ms(url: str, times: int) -> float:
    """Median time of a GET, ms."""
    taken = []
    with requests.Session() as session:
        for _ in range(times):
            started = time.perf_counter()
            session.get(url, timeout=60).raise_for_status()
            taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e3


def idle(plane: Plane, seconds: float) -> dict[str, float]:
    """Share of a core and resident memory of the control plane's own process while nothing happens."""
    assert plane.process is not None
    stat = Path(f"/proc/{plane.process.pid}/stat")

    def cpu_s() -> float:
        fields = stat.read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, started = cpu_s(), time.perf_counter()
    time.sleep(seconds)
    share = (cpu_s() - before) / (time.perf_counter() - started)
    status = Path(f"/proc/{plane.process.pid}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    return {"idle_core_percent": share * 100, "idle_resident_mb": resident / 1024}


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer submissions; under a minute")
    quick = parser.parse_args().quick
    say = lambda text: print(text, file=sys.stderr, flush=True)  # noqa: E731
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="gsb") as name, ray_clusters(Path(name), "bench") as rays:
        base, address = Path(name), rays["bench"].address
        (base / "plane").mkdir()
        with Plane(base / "plane", region("bench", address, 50)) as plane:
            say("idle ...")
            time.sleep(3)
            figures |= idle(plane, 8 if quick else 30)
            say("Ray's own submissions ...")
            theirs = {}
            for threads in RAY_THREADS[:1] if quick else RAY_THREADS:
                theirs[threads] = ray_submissions_per_s(address, 20 if quick else 100, threads)
                settle(address)
            figures["ray_threads"] = max(theirs, key=lambda threads: theirs[threads])
            figures["ray_submissions_per_s"] = max(theirs.values())
            say("passed through ...")
            figures |= passed_through(plane, address, 3 if quick else 25)
            say("intake ...")
            intake(plane, 200, "warm")
            ours = {}
            for connections in CONNECTIONS[1:2] if quick else CONNECTIONS:
                rates = [intake(plane, 1000, f"r{connections}-{n}", connections) for n in range(1 if quick else 5)]
                ours[connections] = statistics.median(rates)
            figures["connections"] = max(ours, key=lambda connections: ours[connections])
            figures["durable_submissions_per_s"] = max(ours.values())
            figures["times_ray"] = figures["durable_submissions_per_s"] / figures["ray_submissions_per_s"]
            say("a store of 100,000 jobs ...")
        (base / "full").mkdir()
        with Plane(base / "full", region("bench", address, 50)) as plane:
            intake(plane, 200, "active")
            _grow(plane, 5_000 if quick else 99_800)
            figures["jobs_in_store"] = _stored(plane)
            figures["page_of_100_ms"] = median_ms(f"{plane.address}/v1/jobs?limit=100", 15)
            figures["ray_list_ms"] = median_ms(f"{plane.address}/api/jobs/", 7)
    wanted: list[tuple[str, str, float]] = [
        ("durable_submissions_per_s", ">=", 500),
        ("times_ray", ">=", 20),
        ("answer_added_share", "<=", 0.15),
        ("start_added_share", "<=", 0.15),
        ("page_of_100_ms", "<=", 50),
        ("ray_list_ms", "<=", 300),
        ("idle_core_percent", "<=", 2),
        ("idle_resident_mb", "<=", 300),
    ]
    method = (
        "one control plane process (SQLite, synchronous=FULL) and one real Ray head on this machine; each side with the number "
        f"of callers at which it is fastest, of {CONNECTIONS} keep-alive connections and {RAY_THREADS} threads; ours are sent "
        "requests made beforehand, each answered after its commit (median of rounds), Ray's by its own client; passed-through "
        "jobs "
        "alternate with jobs sent to Ray itself, accepted = Ray has answered the POST, started = the command runs; medians; "
        "idle = the control plane's own process with one region"
    )
    return report("intake", figures, wanted, method)


def _stored(plane: Plane) -> int:
    with sqlite3.connect(plane.base / "data" / "gridshift.db") as database:
        count: Any = database.execute("select count(*) from job").fetchone()[0]
    return int(count)


def _grow(plane: Plane, more: int) -> None:
    """Fill the store with ended jobs through the store itself (the control plane is stopped meanwhile)."""
    from dataclasses import replace

    from dispatcher.store.sql import SqlStore
    from policies.world import JobState

    plane.stop()
    data = plane.base / "data"
    store = SqlStore(f"sqlite:///{data / 'gridshift.db'}", data_dir=data)
    page = store.page(limit=1).jobs[0]
    now = datetime.now(UTC)
    for start in range(0, more, 5000):
        futures = [
            store.add_job(
                replace(page, id=f"old-{n}", state=JobState.SUCCEEDED, finished_at=now, submitted_at=now), "submitted"
            )
            for n in range(start, min(start + 5000, more))
        ]
        for future in futures:
            future.result()
    store.close()
    plane.start()


if __name__ == "__main__":
    sys.exit(main())
