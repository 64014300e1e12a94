"""The log store and the follower: several attempts as one log, whatever happens on the way."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dispatcher.clusters import Submission
from dispatcher.clusters.ray_http import RayCluster
from dispatcher.errors import ClusterUnreachable
from dispatcher.local_ray import LocalRay
from dispatcher.logs import FRESH_S, READ_S, LogFollower, LogStore
from dispatcher.store import Attempt
from tests.helpers import free_port, log_of, wait_until

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
HEAD_2 = "--- attempt 2 in region north, 2026-03-01 12:30:00 UTC ---\n"


def attempt(number: int = 1, job_id: str = "job") -> Attempt:
    return Attempt(job_id, number, "north", f"{job_id}-{number}", AT)


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(tmp_path / "logs")


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def collect(store: LogStore, ended: Callable[[], bool]) -> str:
    return "".join([piece async for piece in store.tail("job", ended)])


def test_one_attempt_reads_as_it_is(store: LogStore) -> None:
    store.begin("job", 1, "north", AT)
    store.append("job", 1, b"one\n")
    store.append("job", 1, b"two\n")
    assert store.read_all("job") == "one\ntwo\n"
    assert store.size("job", 1) == 8
    assert store.read_all("nobody") == ""


def test_later_attempts_stand_under_a_line(store: LogStore) -> None:
    store.append("job", 1, b"no newline")
    store.begin("job", 2, "north", AT)
    store.append("job", 2, b"two\n")
    assert store.read_all("job") == f"no newline\n{HEAD_2}two\n"
    store.append("job", 10, b"ten\n")
    assert store.read_all("job").endswith("two\nten\n")


def test_replace_and_delete(store: LogStore, tmp_path: Path) -> None:
    store.append("job", 1, b"half")
    store.replace("job", 1, lambda take: take("the ") and take("whole\n"))
    assert store.read_all("job") == "the whole\n"
    assert [p.name for p in (tmp_path / "logs" / "job").iterdir()] == ["1.log"]
    store.delete("job")
    store.delete("job")
    assert store.read_all("job") == ""


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x"])
def test_a_name_cannot_lead_out_of_the_folder(store: LogStore, name: str) -> None:
    with pytest.raises(ValueError, match="not a job id"):
        store.append(name, 1, b"x")


def test_a_log_is_cut_at_its_limit_between_characters(tmp_path: Path) -> None:
    store = LogStore(tmp_path, max_bytes=10)
    store.append("job", 1, b"12345678")
    store.append("job", 1, "9éé".encode())
    store.append("job", 1, b"more")
    text = store.read_all("job")
    assert text.startswith("123456789\n--- the log is cut here: only its first 10 bytes")
    assert text.count("cut here") == 1
    assert store.is_full("job", 1)
    asked = 0

    def endless(take: Callable[[str], bool]) -> None:
        nonlocal asked
        asked = next(number for number in itertools.count(1) if not take("x" * 4 + "y"))

    store.append("job", 2, b"\n")
    store.replace("job", 2, endless)
    assert "\nxxxxyxxxxy\n--- the log is cut here" in store.read_all("job")
    assert asked == 3


def test_a_log_that_is_shorter_than_what_is_held_or_breaks_off_replaces_nothing(store: LogStore, tmp_path: Path) -> None:
    store.append("job", 1, b"all of it\n")
    store.replace("job", 1, lambda take: take("all"))
    assert store.read_all("job") == "all of it\n"

    def breaks(take: Callable[[str], bool]) -> None:
        take("all of it and more\n")
        raise ClusterUnreachable("gone")

    with pytest.raises(ClusterUnreachable):
        store.replace("job", 1, breaks)
    assert store.read_all("job") == "all of it\n"
    assert [p.name for p in (tmp_path / "logs" / "job").iterdir()] == ["1.log"]


def test_tail_gives_the_same_text_as_reading(store: LogStore) -> None:
    async def story() -> str:
        ended = False
        store.begin("job", 1, "north", AT)
        store.append("job", 1, "hé".encode()[:-1])
        reading = asyncio.create_task(collect(store, lambda: ended))
        await asyncio.sleep(0)
        store.append("job", 1, "hé".encode()[-1:] + b" one")
        store.settle("job", 1)
        store.begin("job", 2, "north", AT)
        store.append("job", 2, b"two\n")
        ended = True
        # The job has ended, and its last lines come only now.
        await asyncio.sleep(0.3)
        assert not reading.done()
        store.replace("job", 2, lambda take: take("two\nthree\n"))
        store.settle("job", 2)
        return await reading

    text = asyncio.run(story())
    assert text == f"hé one\n{HEAD_2}two\nthree\n"
    assert text == store.read_all("job")


def test_tail_of_a_big_log_comes_in_pieces(store: LogStore) -> None:
    store.append("job", 1, "é".encode() * 200_000)

    async def story() -> list[str]:
        return [piece async for piece in store.tail("job", lambda: True)]

    pieces = asyncio.run(story())
    assert len(pieces) > 3
    assert "".join(pieces) == "é" * 200_000


class FakeRay:
    """The whole log over HTTP, as Ray serves it."""

    def __init__(self) -> None:
        self.whole: str | None = None
        self.broken = 0
        self.fetches = 0
        self.headers: set[str | None] = set()
        self.takes_s = 0.0
        self.not_text = False

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.fetches += 1
        self.headers.add(request.headers.get("Authorization"))
        status, body = 200, json.dumps({"logs": self.whole})
        if self.broken > 0:
            self.broken -= 1
            status, body = 502, "no"
        elif self.not_text:
            status, body = (
                500,
                "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9 in position 87: invalid",
            )
        elif not request.path.endswith("/logs") or self.whole is None:
            status, body = 404, "Job job-1 does not exist"
        time.sleep(self.takes_s)
        request.send_response(status)
        request.end_headers()
        request.wfile.write(body.encode())

    async def run(self, store: LogStore, story: Callable[[LogFollower], Coroutine[Any, Any, None]]) -> None:
        ray = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ray.answer(self)

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        follower = LogFollower(store, lambda region: (f"http://127.0.0.1:{server.server_port}", "tok"))
        running = asyncio.create_task(follower.run())
        try:
            await story(follower)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay()


def test_whoever_reads_has_what_has_come_until_then(store: LogStore, ray: FakeRay) -> None:
    store.append("job", 1, "é one\ntw".encode())  # held from before a restart

    async def story(follower: LogFollower) -> None:
        ray.whole, ray.broken = "é one\ntwo\n", 1
        thread = threading.Thread(target=follower.watch, args=(attempt(),))
        thread.start()
        thread.join()
        await until(lambda: ray.fetches >= 2)  # the first one failed
        ray.whole = "é one\ntwo\nthree\n"
        began = time.monotonic()
        assert await asyncio.to_thread(store.read_all, "job") == ray.whole
        assert time.monotonic() - began < FRESH_S, "it waited for the fetch, and no longer"
        follower.unwatch("job-1")
        ray.whole += "unseen\n"
        assert await asyncio.to_thread(store.read_all, "job") == "é one\ntwo\nthree\n"
        assert store.is_settled("job")

    asyncio.run(ray.run(store, story))
    assert ray.headers == {"Bearer tok"}


def test_following_ends_also_when_somebody_begins_to_read_at_that_moment(store: LogStore, ray: FakeRay) -> None:
    async def story(follower: LogFollower) -> None:
        ray.whole = "one\n"
        follower.watch(attempt())
        await until(lambda: store.size("job", 1) > 0)
        await asyncio.sleep(1.2 * READ_S)  # it waits for the next fetch to be due
        follower._ask("job-1")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            if "_follow" in str(task.get_coro()):
                task.cancel()
        await until(lambda: not any("_follow" in str(task.get_coro()) for task in asyncio.all_tasks()))

    asyncio.run(ray.run(store, story))


def test_a_tail_is_kept_up_and_nobody_elses_log_is_fetched_for_it(store: LogStore, ray: FakeRay) -> None:
    async def story(follower: LogFollower) -> None:
        ray.whole = "one\n"
        follower.watch(attempt())
        await until(lambda: store.size("job", 1) > 0)
        before, ended, pieces = ray.fetches, False, list[str]()
        await asyncio.sleep(1.5 * READ_S)
        assert ray.fetches == before, "nobody reads it"

        async def read() -> None:
            async for piece in store.tail("job", lambda: ended):
                pieces.append(piece)

        reading = asyncio.create_task(read())
        for line in ("two\n", "three\n"):
            ray.whole += line
            await until(lambda: "".join(pieces) == ray.whole)
        assert store.is_read("job")
        ended = True
        follower.unwatch("job-1")
        await reading
        assert not store.is_read("job")

    asyncio.run(ray.run(store, story))


def test_the_last_lines_of_an_attempt_that_has_just_ended_are_waited_for(store: LogStore, ray: FakeRay) -> None:
    ray.takes_s = 0.5

    async def story(follower: LogFollower) -> None:
        ray.whole = "one\n"
        follower.watch(attempt())
        await until(lambda: store.size("job", 1) > 0)
        ray.whole = "one\nlast\n"
        follower.finish(attempt())
        assert await asyncio.to_thread(store.read_all, "job") == ray.whole

    asyncio.run(ray.run(store, story))


def test_reading_does_not_wait_long_for_a_cluster_that_hangs(store: LogStore, ray: FakeRay) -> None:
    store.append("job", 1, b"one\n")
    ray.whole, ray.takes_s = "one\ntwo\n", 2 * FRESH_S

    async def story(follower: LogFollower) -> None:
        follower.watch(attempt())
        began = time.monotonic()
        assert await asyncio.to_thread(store.read_all, "job") == "one\n"
        assert time.monotonic() - began < 1.5 * FRESH_S

    asyncio.run(ray.run(store, story))


@pytest.mark.parametrize(
    ("whole", "after"), [("one\ntwo\nlast\n", "one\ntwo\nlast\n"), ("one\n", "one\ntwo\n"), (None, "one\ntwo\n")]
)
def test_the_final_fetch_takes_more_but_never_less(store: LogStore, ray: FakeRay, whole: str | None, after: str) -> None:
    store.append("job", 1, b"one\ntwo\n")
    ray.whole = whole

    async def story(follower: LogFollower) -> None:
        follower.finish(attempt())
        assert not store.is_settled("job")
        await until(lambda: store.is_settled("job"))

    asyncio.run(ray.run(store, story))
    assert store.read_all("job") == after


def test_a_log_that_ray_cannot_hand_out_says_so(store: LogStore, ray: FakeRay) -> None:
    store.append("job", 1, b"hello\n")
    ray.not_text = True

    async def story(follower: LogFollower) -> None:
        follower.finish(attempt())
        await until(lambda: store.is_settled("job"))

    asyncio.run(ray.run(store, story))
    assert store.read_all("job").startswith("hello\n--- what was printed is not all UTF-8")


def test_a_cluster_that_is_gone_leaves_what_is_held(store: LogStore) -> None:
    store.append("job", 1, b"one\n")
    follower = LogFollower(store, lambda region: (f"http://127.0.0.1:{free_port()}", None))
    asyncio.run(follower.finalize(attempt()))
    assert store.read_all("job") == "one\n"
    assert store.is_settled("job")


@pytest.mark.real
def test_rays_head_is_not_worn_out_by_those_who_followed_and_went(store: LogStore, head: LocalRay) -> None:
    """It keeps what a websocket tail of a silent job takes until the job ends, and has 100 of it."""
    cluster = RayCluster("north", head.address, None)
    cluster.submit(Submission("silent-1", "sleep 600", {}, {}), {}, maybe_sent=False)

    def runs() -> bool:
        status = cluster.statuses(["silent-1"])["silent-1"]
        return status is not None and status.status == "RUNNING"

    wait_until(runs, 60, "the job to run")

    async def once() -> None:
        follower = LogFollower(store, lambda region: (head.address, None))
        running = asyncio.create_task(follower.run())
        follower.watch(attempt(job_id="silent"))
        await until(lambda: bool(follower._fetched))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    for _ in range(110):
        asyncio.run(once())
    assert log_of(cluster, "silent-1") is not None, "it answers what it is asked"
    cluster.stop("silent-1")
    cluster.close()


@pytest.mark.real
def test_a_real_log_is_followed_to_its_end(store: LogStore, head: LocalRay) -> None:
    cluster = RayCluster("north", head.address, None)
    cluster.submit(Submission("job-1", "echo first; sleep 2; echo last", {}, {}), {}, maybe_sent=False)

    async def story() -> str:
        follower = LogFollower(store, lambda region: (head.address, None))
        running = asyncio.create_task(follower.run())
        follower.watch(attempt())
        async with asyncio.timeout(60):
            while "first\n" not in (seen := await asyncio.to_thread(store.read_all, "job")):
                await asyncio.sleep(0.1)
        assert "\nlast\n" not in seen

        def ended() -> bool:
            status = cluster.statuses(["job-1"])["job-1"]
            return status is not None and status.ended_at is not None

        await until(ended, 60)
        follower.finish(attempt())
        text = await collect(store, lambda: True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return text

    assert asyncio.run(story()) == log_of(cluster, "job-1")
    cluster.close()
