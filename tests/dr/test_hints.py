"""Hints: a real server is asked, with our key, and nowhere else; a hint is kept until what it points to is fetched."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dispatcher.config_events import EventSourceConfig
from dispatcher.dr.fetching import MAX_BYTES, NotFetched, address_of, fetch
from dispatcher.dr.hints import MOST, TELL_AFTER, Hints, TooManyHints
from dispatcher.dr.model import State
from dispatcher.errors import BadInput
from tests.dr.rig import Rig, source
from tests.dr.test_webhooks import FETCHED, HOOK

KEY = "key-of-ours"


class Aggregator:
    """An aggregator's API on loopback: what it answers for a path, and what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: list[tuple[str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("X-Key")))
                outer.answers.get(self.path, says(404, b"{}"))(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/dispatches"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def holds(self, dispatch: Any, path: str = "/dispatches/d-7") -> None:
        """Answer with a dispatch."""
        self.answers[path] = says(200, json.dumps(dispatch).encode())

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def says(status: int, body: bytes, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


@pytest.fixture
def aggregator() -> Iterator[Aggregator]:
    made = Aggregator()
    yield made
    made.close()


@pytest.fixture
def rig(aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setenv("AGGREGATOR_KEY", KEY)
    return made_rig(aggregator)


def made_rig(aggregator: Aggregator, **given: Any) -> Rig:
    more = {"url": aggregator.url, "site": "hall-9", "allow_hosts": ["127.0.0.1"], **given}
    return Rig(source(protocol="pointer", api_key_header="X-Key", client_secret_env="AGGREGATOR_KEY", **more))


class Now:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def hints(rig: Rig, now: Now | None = None, **more: Any) -> Hints:
    return Hints(rig.config.event_sources[0], rig.intake, rig.store, rig.clock, mono=now or Now(), **more)


def hint(resource: str = "/dispatches/d-7", name: str = "dispatch.update") -> bytes:
    return json.dumps({"event": {"name": name}, "resource": resource}).encode()


def test_what_a_hint_points_to_is_fetched_with_our_key_and_binds(rig: Rig, aggregator: Aggregator) -> None:
    aggregator.holds(FETCHED)
    now = Now()
    followed = hints(rig, now)
    assert followed.add(hint()).state is State.FETCH
    assert rig.budgets() == [] and aggregator.asked == [], "a hint alone does nothing"
    followed.follow()
    assert aggregator.asked == [("/dispatches/d-7", KEY)]
    assert [b.limit_w for b in rig.budgets()] == [150_000.0]
    assert rig.store.setting("events.hints.utility") == "[]"
    aggregator.holds({**FETCHED, "modification_number": 3, "authorized": False})
    for _ in range(100):
        followed.add(hint())
        followed.follow()
    assert len(aggregator.asked) == 1, "not again and again, however often it is hinted at"
    now.s += 2
    followed.follow()
    assert rig.budgets() == [] and rig.history("d-7") == ["accepted", "cancelled"]


def test_a_sign_of_life_is_answered_and_followed_nowhere(rig: Rig, aggregator: Aggregator) -> None:
    followed = hints(rig)
    assert followed.add(hint("", "")).state is State.PING
    followed.follow()
    assert aggregator.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{}",
        b"nonsense",
        json.dumps(FETCHED).encode(),
        json.dumps({"webhook": HOOK, "fetched": FETCHED}).encode(),
        hint("http://evil.example/dispatches/d-7"),
        hint("http://127.0.0.1:1/dispatches/d-7"),
        hint("ftp://127.0.0.1/d-7"),
        hint("//169.254.169.254/latest/d-7"),
        hint("/dispatches/../../admin"),
        hint("http://user:pw@127.0.0.1/d-7"),
    ],
)
def test_strangers_are_believed_nothing_and_lead_us_nowhere(rig: Rig, aggregator: Aggregator, body: bytes) -> None:
    followed = hints(rig)
    with pytest.raises(BadInput):
        followed.add(body)
    followed.follow()
    assert aggregator.asked == [] and rig.store.grid_events() == []


def test_a_name_that_leads_to_a_private_address_must_be_allowed_by_name(rig: Rig) -> None:
    given = rig.config.event_sources[0].model_dump() | {"allow_hosts": []}
    wary = EventSourceConfig(**given)
    with pytest.raises(NotFetched, match="private address"):
        fetch(wary, address_of(wary, "/dispatches/d-7"))
    with pytest.raises(NotFetched, match="not a host that is allowed"):
        address_of(wary, "http://localhost/dispatches/d-7")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(302, b"", Location="/dispatches/other"), "redirects, which is not followed"),
        (says(500, b""), "answers 500"),
        (says(401, b""), "answers 401"),
        (says(200, b"x" * (MAX_BYTES + 1)), "sends more than"),
        (says(200, b"not json"), "no JSON"),
    ],
)
def test_what_goes_wrong_is_tried_again_and_told(rig: Rig, aggregator: Aggregator, answer: Any, said: str) -> None:
    aggregator.answers["/dispatches/d-7"] = answer
    now = Now()
    followed = hints(rig, now)
    followed.add(hint())
    followed.follow()
    followed.follow()
    assert len(aggregator.asked) == 1, "not before its time"
    assert list(followed.alarms(rig.clock.now())) == []
    for _ in range(TELL_AFTER - 1):
        now.s += 70
        followed.follow()
    (_, _, sentence), *more = followed.alarms(rig.clock.now())
    assert said in sentence and more == [] and rig.store.grid_events() == []
    aggregator.holds(FETCHED)
    now.s += 70
    followed.follow()
    assert [b.limit_w for b in rig.budgets()] == [150_000.0] and list(followed.alarms(rig.clock.now())) == []


def test_a_hint_outlives_the_process(rig: Rig, aggregator: Aggregator) -> None:
    hints(rig).add(hint())
    aggregator.holds(FETCHED)
    rig.started()
    hints(rig).follow()
    assert [b.limit_w for b in rig.budgets()] == [150_000.0]


def test_a_lost_webhook_is_made_good_by_asking(rig: Rig, aggregator: Aggregator) -> None:
    aggregator.holds(FETCHED)
    now = Now()
    followed = hints(rig, now)
    followed.add(hint())
    followed.follow()
    aggregator.holds({**FETCHED, "modification_number": 3, "authorized": False})
    now.s += 31
    followed.follow()
    assert rig.budgets() == []
    asked = len(aggregator.asked)
    now.s += 31
    followed.follow()
    assert len(aggregator.asked) == asked, "what is cancelled is not asked for"


@pytest.fixture
def listing(aggregator: Aggregator, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A site whose aggregator lists its dispatches."""
    monkeypatch.setenv("AGGREGATOR_KEY", KEY)
    return made_rig(aggregator, list_url=aggregator.url, poll_every="30s")


def test_a_dispatch_that_no_webhook_told_of_is_found_in_the_list(listing: Rig, aggregator: Aggregator) -> None:
    over = {**FETCHED, "id": "d-6", "end_time": "2026-03-01T15:00:00Z"}
    # what the list says of a dispatch is not used: it may be a summary
    listed = [{"id": "d-7", "modification_number": 2}, over, {**FETCHED, "id": "d-5", "authorized": False}, "odd", {"id": None}]
    aggregator.holds({"dispatches": listed, "total": 3}, "/dispatches")
    aggregator.holds(FETCHED)
    now = Now()
    followed = hints(listing, now)
    followed.follow()
    assert aggregator.asked == [("/dispatches", KEY), ("/dispatches/d-7", KEY)]
    assert [b.limit_w for b in listing.budgets()] == [150_000.0]
    now.s += 29
    followed.follow()
    assert len(aggregator.asked) == 2
    # what is listed no more is not over for that: it is asked for by itself
    aggregator.holds([], "/dispatches")
    now.s += 2
    followed.follow()
    assert aggregator.asked[2:] == [("/dispatches", KEY), ("/dispatches/d-7", KEY)]
    assert len(listing.budgets()) == 1 and list(followed.alarms(listing.clock.now())) == []


def test_a_listed_dispatch_that_is_refused_is_not_fetched_again_until_it_changes(listing: Rig, aggregator: Aggregator) -> None:
    aggregator.holds([FETCHED], "/dispatches")
    aggregator.holds({**FETCHED, "sites": "none"})
    now = Now()
    followed = hints(listing, now)
    for _ in range(3):
        followed.follow()
        now.s += 31
    assert [path for path, _ in aggregator.asked].count("/dispatches/d-7") == 1
    newer = {**FETCHED, "modification_number": 3}
    aggregator.holds([newer], "/dispatches")
    aggregator.holds(newer)
    followed.follow()
    assert len(listing.budgets()) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (says(500, b""), "answers 500"),
        (says(200, b"<html>"), "must be JSON"),
        (says(200, b'{"a": [], "b": []}'), "one list"),
        (says(200, b"7"), "one list"),
    ],
)
def test_a_list_that_cannot_be_read_is_told_and_lifts_nothing(
    listing: Rig, aggregator: Aggregator, answer: Any, said: str
) -> None:
    aggregator.holds(FETCHED)
    now = Now()
    followed = hints(listing, now)
    followed.add(hint())
    aggregator.answers["/dispatches"] = answer
    for _ in range(TELL_AFTER):
        assert list(followed.alarms(listing.clock.now())) == []
        followed.follow()
        now.s += 31
    ((key, _, sentence),) = followed.alarms(listing.clock.now())
    assert key == "hint list utility" and said in sentence and "only webhooks tell of new ones" in sentence
    assert len(listing.budgets()) == 1
    aggregator.holds([FETCHED], "/dispatches")
    followed.follow()
    assert list(followed.alarms(listing.clock.now())) == []


def test_what_its_sender_answers_counts_also_when_it_forgot_to_count_up(rig: Rig, aggregator: Aggregator) -> None:
    now = Now()
    followed = hints(rig, now)
    followed.add(hint())
    limits = []
    for commitment in (50, 50, 80, 80, 80):
        aggregator.holds({**FETCHED, "sites": [{"id": "hall-9", "commitment": commitment}]})
        followed.follow()
        limits.append(rig.budgets()[0].limit_w)
        now.s += 31
    assert limits == [150_000.0, 150_000.0, 150_000.0, 120_000.0, 120_000.0]
    assert rig.history("d-7") == ["accepted", "ignored", "changed"] and rig.alarms() == []


def test_silence_and_404_lift_nothing_and_are_told(rig: Rig, aggregator: Aggregator) -> None:
    aggregator.holds(FETCHED)
    now = Now()
    followed = hints(rig, now)
    followed.add(hint())
    followed.follow()
    del aggregator.answers["/dispatches/d-7"]
    for _ in range(TELL_AFTER + 2):
        now.s += 70
        followed.follow()
    assert [b.limit_w for b in rig.budgets()] == [150_000.0]
    assert any("cannot be fetched" in sentence for _, _, sentence in followed.alarms(rig.clock.now()))


def test_another_dispatch_than_the_one_pointed_to_is_refused(rig: Rig, aggregator: Aggregator) -> None:
    aggregator.holds({**FETCHED, "id": "d-8"})
    followed = hints(rig)
    followed.add(hint())
    followed.follow()
    assert rig.store.grid_events() == [] and any("wrong_resource" in sentence for sentence in rig.alarms())


def test_what_was_never_there_is_given_up_and_hints_are_bounded(rig: Rig, aggregator: Aggregator) -> None:
    now = Now()
    followed = hints(rig, now)
    for number in range(MOST):
        followed.add(hint(f"/dispatches/x-{number}"))
    with pytest.raises(TooManyHints):
        followed.add(hint())
    for _ in range(TELL_AFTER):
        now.s += 70
        followed.follow()
    assert rig.store.setting("events.hints.utility") == "[]"
    assert followed.add(hint()).state is State.FETCH


def test_the_thread_follows_and_stops(rig: Rig, aggregator: Aggregator) -> None:
    from tests.helpers import wait_until

    aggregator.holds(FETCHED)
    followed = Hints(rig.config.event_sources[0], rig.intake, rig.store, rig.clock)
    followed.start()
    followed.add(hint())
    wait_until(lambda: rig.budgets(), 10, "the dispatch to bind")
    followed.close()
