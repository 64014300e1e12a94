"""Manners alone, on a clock that only the test moves: pacing, leaving alone, validators, sessions, clocks, secrets."""

import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from signals.feeds import FEEDS
from signals.feeds.base import FeedError, Secret
from signals.feeds.synthetic import FEED
from signals.manners import FAILURES_TO_OPEN, Manners, Validators
from signals.secrets import MissingSecret, resolve, scrub
from tests.signals.provider import Time

HOST = "api.example.org"


@pytest.fixture
def time() -> Time:
    return Time(datetime(2026, 3, 1, 12, 0, tzinfo=UTC))


@pytest.fixture
def manners(time: Time) -> Manners:
    return time.manners()


def refused(manners: Manners) -> str:
    with pytest.raises(FeedError) as caught:
        manners.turn(HOST, 0.0)
    assert caught.value.kind == "access"
    return caught.value.message


def fail(manners: Manners, times: int = FAILURES_TO_OPEN) -> None:
    for _ in range(times):
        manners.turn(HOST, 0.0)
        manners.failed(HOST, "it answers 503")


def test_turns_keep_their_distance_per_host(time: Time, manners: Manners) -> None:
    assert [manners.turn(HOST, 2.0) for _ in range(3)] == [0.0, 2.0, 4.0]
    assert manners.turn("other", 2.0) == 0.0
    time.sleep(10.0)
    assert manners.turn(HOST, 2.0) == 0.0
    manners.postpone(HOST, 5.0)
    assert manners.turn(HOST, 2.0) == 5.0


def test_threads_share_the_pace(manners: Manners) -> None:
    waits: list[float] = []
    threads = [threading.Thread(target=lambda: waits.append(manners.turn(HOST, 1.0))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == [float(n) for n in range(20)]


def test_after_failures_in_a_row_the_host_is_left_alone_longer_and_longer(time: Time, manners: Manners) -> None:
    fail(manners, FAILURES_TO_OPEN - 1)
    manners.turn(HOST, 0.0)
    manners.went_well(HOST)  # not in a row: counted anew
    fail(manners)
    assert refused(manners) == f"{HOST} is left alone until 12:01Z: 5 failures in a row, last: it answers 503"
    for minutes in (1, 2, 4, 8, 16, 32, 60, 60):
        assert manners.wait_s(HOST) == pytest.approx(60 * minutes)
        time.sleep(60 * minutes - 1)
        refused(manners)
        time.sleep(1)
        assert manners.turn(HOST, 0.0) == 0.0  # one is let through
        assert "tries it again" in refused(manners)  # and only one
        manners.failed(HOST, "it answers 503")
    time.sleep(3600)
    manners.turn(HOST, 0.0)
    manners.went_well(HOST)
    assert [manners.turn(HOST, 0.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert manners.status()[0].state == "ok"


def test_a_trial_that_is_broken_off_does_not_shut_the_host_for_ever(time: Time, manners: Manners) -> None:
    fail(manners)
    time.sleep(60)
    manners.turn(HOST, 0.0)
    manners.gave_up(HOST)
    assert manners.turn(HOST, 0.0) == 0.0


def test_a_trial_that_is_asked_for_peace_is_over(time: Time, manners: Manners) -> None:
    fail(manners)
    time.sleep(60)
    manners.turn(HOST, 0.0)
    manners.leave_alone(HOST, 1800.0, "it answers 429")
    assert "asks not to be asked until 12:31Z" in refused(manners)
    time.sleep(1800)
    assert manners.turn(HOST, 0.0) == 0.0  # asked again after its time, by one alone
    assert "tries it again" in refused(manners)
    manners.went_well(HOST)
    assert manners.turn(HOST, 0.0) == 0.0


def test_late_failures_of_requests_under_way_change_nothing(time: Time, manners: Manners) -> None:
    for _ in range(8):
        manners.turn(HOST, 0.0)
    for _ in range(8):
        manners.failed(HOST, "no answer")
    assert manners.wait_s(HOST) == pytest.approx(60)


def test_peace_that_was_asked_for_is_kept(time: Time, manners: Manners) -> None:
    manners.turn(HOST, 0.0)
    manners.leave_alone(HOST, 1800.0, "it answers 429")
    assert refused(manners) == f"{HOST} asks not to be asked until 12:30Z: it answers 429"
    manners.went_well(HOST)  # a request that was under way
    assert "12:30Z" in refused(manners)
    (status,) = manners.status()
    assert (status.state, status.until) == ("left alone", time.wall() + timedelta(minutes=30))
    time.sleep(1800)
    assert manners.turn(HOST, 0.0) == 0.0
    manners.leave_alone(HOST, 10**9, "it answers 429")
    assert manners.wait_s(HOST) == 86400.0
    assert "2026-03-02 12:30Z" in refused(manners)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("Sun, 01 Mar 2026 12:05:00 GMT", 300.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        (None, None),
    ],
)
def test_retry_after(manners: Manners, value: str | None, seconds: float | None) -> None:
    assert manners.retry_after_s(value) == seconds


def test_validators_belong_to_who_kept_the_answer(manners: Manners) -> None:
    manners.remember("a", "request", Validators(etag='"1"', last_modified="yesterday"))
    found = manners.validators("a", "request")
    assert found is not None
    assert found.headers() == {"If-None-Match": '"1"', "If-Modified-Since": "yesterday"}
    assert manners.validators("b", "request") is None
    manners.remember("b", "request", Validators())
    assert manners.validators("b", "request") is None
    manners.forget("a")
    assert manners.validators("a", "request") is None


def test_tokens_end(time: Time, manners: Manners) -> None:
    assert manners.token("k") is None
    manners.keep_token("k", "one", 60.0)
    manners.drop_token("k", "an older one")
    time.sleep(59)
    assert manners.token("k") == "one"
    time.sleep(1)
    assert manners.token("k") is None


@pytest.mark.parametrize(
    ("hours", "age", "says"),
    [
        (2.0, None, f"our clock is 2 h behind {HOST}'s"),
        (-2.0, None, f"our clock is 2 h ahead of {HOST}'s"),
        (0.08, None, None),
        (-1.0, "3600", None),
        (0.15, None, f"our clock is 9 min behind {HOST}'s"),
        (-100.0, None, f"our clock is 4 d ahead of {HOST}'s"),
    ],
)
def test_clocks_that_differ(time: Time, manners: Manners, hours: float, age: str | None, says: str | None) -> None:
    date = format_datetime(time.wall() + timedelta(hours=hours), usegmt=True)
    assert manners.skew(HOST, date, age) == says
    assert manners.skew(HOST, "the day before yesterday") is None
    assert manners.skew(HOST, None) is None


# --- secrets --------------------------------------------------------------------------------------------------------

KEYED = replace(FEED, name="keyed", secrets=(Secret("token", "KEYED_TOKEN", "https://example.org/keys"),))


def test_where_a_secret_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    environ = {"KEYED_TOKEN": "default ", "MINE": "mine"}
    assert resolve(KEYED, {}, environ) == {"token": "default"}
    assert resolve(KEYED, {"token_env": "MINE"}, environ) == {"token": "mine"}
    assert resolve(KEYED, {"token_file": str(file)}, environ) == {"token": "from-file"}
    assert resolve(FEED, {}, environ) == {}


def test_a_missing_secret_is_one_clear_line(tmp_path: Path) -> None:
    empty, binary, long = tmp_path / "empty", tmp_path / "binary", tmp_path / "long"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe\x00hush")
    long.write_text("hush\nhush hush\n")

    def said(**options: str) -> str:
        with pytest.raises(MissingSecret) as caught:
            resolve(KEYED, options, {"MINE": ""})
        assert "hush" not in str(caught.value)
        return caught.value.message

    assert said() == "no token: set KEYED_TOKEN or token_file; get one at https://example.org/keys"
    assert said(token_env="MINE").startswith("no token: set MINE or token_file")
    assert "cannot be read: No such file" in said(token_file=str(tmp_path / "none"))
    assert "is empty" in said(token_file=str(empty))
    assert "not a text file" in said(token_file=str(binary))
    assert "more than the secret" in said(token_file=str(long))


def test_what_a_provider_repeats_is_scrubbed() -> None:
    assert scrub("invalid token s3cret for bob", {"token": "s3cret", "username": "bob"}) == "invalid token (token) for bob"


def test_a_secret_that_is_not_sent_is_not_needed() -> None:
    http = FEEDS["http"]
    assert resolve(http, {"url": "http://x"}, {}) == {}
    assert resolve(http, {"url": "http://x", "token_param": "key"}, {"GRIDSHIFT_HTTP_TOKEN": "abc"}) == {"token": "abc"}
    with pytest.raises(MissingSecret, match="set GRIDSHIFT_HTTP_TOKEN or token_file"):
        resolve(http, {"url": "http://x", "token_header": "Authorization"}, {})
