"""The lease book: what it accepts, what it keeps, and what a crash, a reboot, a damaged file or a full disk leaves."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatcher.agent import durable, epochs
from dispatcher.agent import leases as leases_module
from dispatcher.agent.epochs import Epochs
from dispatcher.agent.leases import (
    BadLease,
    Clock,
    HeldElsewhere,
    Lease,
    LeaseBook,
    NotWritten,
    Record,
    StaleEpoch,
    boot_id,
    limit_in_force,
    wanted_w,
)

GPU = "GPU-11111111-2222-3333-4444-555555555555"


class Hands(Clock):
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.boot, self.wall = 1000.0, 1_800_000_000.0

    def boot_s(self) -> float:
        return self.boot

    def wall_s(self) -> float:
        return self.wall

    def pass_s(self, seconds: float) -> None:
        self.boot += seconds
        self.wall += seconds


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def opened(tmp_path: Path, clock: Hands) -> Iterator[Callable[..., LeaseBook]]:
    """Opens the folder's book as an agent that starts does; the one before is gone as if killed."""
    books: list[LeaseBook] = []

    def open_(boot: str = "boot-1") -> LeaseBook:
        for book in books:
            book.close()
        books.append(LeaseBook(tmp_path / "state", clock, boot))
        books[-1].hold(GPU)
        return books[-1]

    yield open_
    for book in books:
        book.close()


def a_lease(clock: Hands, lease_id: str = "one", kind: str = "economic", ttl_s: float | None = 60.0, **more: Any) -> Lease:
    terms: dict[str, Any] = {
        "lease_id": lease_id,
        "kind": kind,
        "uuid": GPU,
        "limit_w": 300.0,
        "epoch": 1,
        "reason": "a test",
        "ends_boot_s": None if ttl_s is None else clock.boot + ttl_s,
        "ends_at": None if ttl_s is None else clock.wall + ttl_s,
        "boot_id": "boot-1",
    }
    return Lease(**{**terms, **more})


def test_the_lowest_live_lease_is_in_force(clock: Hands) -> None:
    some = [a_lease(clock, "a", limit_w=350.0), a_lease(clock, "b", limit_w=250.0, ttl_s=10.0), a_lease(clock, "c")]
    assert limit_in_force(some, clock.boot) == 250.0
    assert limit_in_force(some, clock.boot + 9.999) == 250.0
    assert limit_in_force(some, clock.boot + 10.0) == 300.0  # the end itself is not part of it
    assert limit_in_force(some, clock.boot + 60.0) is None
    assert limit_in_force([], 0.0) is None


def test_a_cap_never_raises_a_limit(clock: Hands) -> None:
    record = Record(GPU, "boot-1", saved_w=250.0, leases=(a_lease(clock),))
    assert wanted_w(record, clock.boot, 400.0) == 250.0
    assert wanted_w(replace(record, saved_w=400.0), clock.boot, 400.0) == 300.0
    assert wanted_w(replace(record, leases=()), clock.boot, 400.0) == 250.0
    assert wanted_w(Record(GPU, "b", restore_default=True), clock.boot, 400.0) == 400.0
    assert wanted_w(Record(GPU, "b"), clock.boot, 400.0) is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "forever"}, "kind 'forever' must be economic or event"),
        ({"limit_w": 0.0}, "limit_w 0.0 must be a number of watts above 0"),
        ({"limit_w": float("nan")}, "limit_w nan must be"),
        ({"limit_w": True}, "limit_w True must be"),
        ({"epoch": 1.5}, "epoch 1.5 must be a whole number"),
        ({"epoch": -1}, "epoch -1 must be a whole number"),
        ({"lease_id": ""}, "lease_id '' must be a text"),
        ({"reason": None}, "reason must be a text"),
        ({"ends_boot_s": None}, "an economic lease needs an end"),
        ({"ends_boot_s": 1000.0}, "over before it begins"),
        ({"ends_boot_s": float("inf")}, "over before it begins"),
        ({"ends_boot_s": 1061.0}, "ttl_s 61 is too long: an economic lease lasts 60 s at most"),
        ({"uuid": "GPU-elsewhere"}, "GPU GPU-elsewhere is not held by this agent"),
    ],
)
def test_senseless_leases_are_refused_by_name(
    opened: Callable[..., LeaseBook], clock: Hands, wrong: dict[str, Any], said: str
) -> None:
    book = opened()
    with pytest.raises(BadLease, match=said):
        book.grant(a_lease(clock, **wrong))
    assert book.leases() == []
    assert book.record(GPU).empty


def test_a_lease_keeps_its_gpu_and_kind(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book = opened()
    book.grant(a_lease(clock, kind="event", ttl_s=None))
    with pytest.raises(BadLease, match="already an event lease"):
        book.grant(a_lease(clock, kind="economic"))
    clock.pass_s(3600)
    assert book.expire(clock.boot) == []
    assert book.leases()[0].kind == "event"


def test_renewal_moves_the_end_and_gives_back_the_old_terms(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book = opened()
    first = a_lease(clock)
    assert book.grant(first) is None
    clock.pass_s(50)
    before = book.grant(a_lease(clock, limit_w=280.0))
    assert before is not None and before.ends_boot_s == first.ends_boot_s
    clock.pass_s(59)
    assert book.expire(clock.boot) == []
    clock.pass_s(1)
    assert [lease.limit_w for lease in book.expire(clock.boot)] == [280.0]


def test_an_older_epoch_changes_nothing_also_after_a_restart(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book = opened()
    book.grant(a_lease(clock, epoch=7))
    for restarted in (False, True):
        late = opened() if restarted else book
        with pytest.raises(StaleEpoch, match="epoch 6 is older than 7, heard here: a newer control plane is in charge"):
            late.grant(a_lease(clock, "two", epoch=6))
        with pytest.raises(StaleEpoch):
            late.release("one", 6)
        assert [lease.lease_id for lease in late.leases()] == ["one"]
    assert late.release("one", 7) is not None
    assert opened().epoch == 7  # also with no lease left


def test_the_limit_saved_is_the_one_before_the_first_cap(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book = opened()
    book.grant(a_lease(clock))
    book.save_limit(GPU, 390.0)
    book.grant(a_lease(clock, "two", limit_w=200.0))
    book.save_limit(GPU, 300.0)
    book = opened()
    assert book.record(GPU).saved_w == 390.0
    assert book.forget(GPU) is False  # caps stand
    book.release("one", 1)
    book.release("two", 1)
    assert opened().record(GPU).saved_w == 390.0  # still to be given back
    assert opened().forget(GPU) is True
    assert not list((opened().folder).glob("GPU*.json"))


def test_in_the_same_boot_a_restart_changes_nothing_whatever_the_wall_clock_says(
    opened: Callable[..., LeaseBook], clock: Hands
) -> None:
    book = opened()
    book.grant(a_lease(clock, "event", kind="event", ttl_s=3600.0))
    book.grant(a_lease(clock, "open", kind="event", ttl_s=None))
    book.grant(a_lease(clock, "cheap"))
    for jump in (86400.0, -200000.0, 1e9):
        clock.wall += jump
        clock.pass_s(10)
        book = opened()
        assert book.expire(clock.boot) == []
        assert {lease.lease_id: lease.ends_boot_s for lease in book.leases()} == {
            "event": 4600.0,
            "open": None,
            "cheap": 1060.0,
        }


def test_a_reboot_drops_economic_leases_and_what_was_saved_and_carries_events_on(
    opened: Callable[..., LeaseBook], clock: Hands
) -> None:
    book = opened()
    book.grant(a_lease(clock, "event", kind="event", ttl_s=3600.0))
    book.grant(a_lease(clock, "over", kind="event", ttl_s=100.0))
    book.grant(a_lease(clock, "open", kind="event", ttl_s=None))
    book.grant(a_lease(clock, "cheap"))
    book.save_limit(GPU, 390.0)
    clock.wall += 300.0
    clock.boot = 20.0
    record = opened("boot-2").record(GPU)
    assert {lease.lease_id: lease.ends_boot_s for lease in record.leases} == {"event": 20.0 + 3300.0, "open": None}
    assert record.saved_w is None
    assert {lease.boot_id for lease in record.leases} == {"boot-2"}
    clock.pass_s(30)
    assert opened("boot-2").record(GPU).leases == record.leases


def test_after_a_reboot_with_a_clock_that_is_behind_an_event_lasts_no_longer_than_it_had_left(
    opened: Callable[..., LeaseBook], clock: Hands
) -> None:
    opened().grant(a_lease(clock, "event", kind="event", ttl_s=600.0))
    clock.wall, clock.boot = 0.0, 5.0  # no battery: 1970
    assert opened("boot-2").leases()[0].ends_boot_s == 605.0


def test_a_wall_clock_set_right_during_an_event_counts_after_a_reboot(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    clock.wall += 7200.0  # two hours fast
    book = opened()
    book.grant(a_lease(clock, "event", kind="event", ttl_s=3600.0))
    clock.wall -= 7200.0  # now set right
    book.expire(clock.boot)
    clock.wall += 600.0
    clock.boot = 20.0
    assert opened("boot-2").leases()[0].ends_boot_s == pytest.approx(20.0 + 3000.0)


@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "changed", "other gpu", "newer format", "not json", "bytes"])
def test_a_damaged_file_is_told_kept_aside_and_the_default_limit_is_due(
    opened: Callable[..., LeaseBook], clock: Hands, damage: str
) -> None:
    book = opened()
    book.grant(a_lease(clock, kind="event", ttl_s=None))
    book.save_limit(GPU, 390.0)
    path = book.folder / f"{GPU}.json"
    text = path.read_text()
    path.write_bytes(
        {
            "cut": text[: len(text) // 2].encode(),
            "empty": b"",
            "zeros": b"\0" * len(text),
            "changed": text.replace("390.0", "990.0").encode(),
            "other gpu": text.replace(GPU, "GPU-2").encode(),
            "newer format": leases_module.pack({**json.loads(text)["body"]}).replace('"format": 1', '"format": 2').encode(),
            "not json": b"no json at all",
            "bytes": b"\xff\xfe\x00broken",
        }[damage]
    )
    damaged = path.read_bytes()
    for _ in range(2):  # the second start finds what the first wrote in its place
        book = opened()
        assert book.record(GPU) == replace(book.record(GPU), restore_default=True, saved_w=None, leases=())
        assert (book.folder / f"{GPU}.damaged-1").read_bytes() == damaged
    assert wanted_w(book.record(GPU), clock.boot, 400.0) == 400.0
    assert book.forget(GPU)
    assert opened().record(GPU).empty


def test_a_damaged_file_is_told(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    (opened().folder / f"{GPU}.json").write_text("{")
    [(key, said)] = opened().notices()
    assert key == f"damaged:{GPU}"
    assert "is damaged" in said and "damaged-1" in said and "default limit" in said


def test_a_damaged_epoch_file_leaves_the_epochs_of_the_leases(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book = opened()
    book.grant(a_lease(clock, epoch=5))
    (book.folder / "epoch.json").write_text('{"epoch": 9')
    book = opened()
    assert book.epoch == 5
    assert book.notices()[0][0] == "damaged:epoch"


def test_two_orders_at_once_are_both_kept(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book, both = opened(), threading.Barrier(2)

    def grant(name: str) -> None:
        both.wait()
        for number in range(20):
            book.grant(a_lease(clock, f"{name} {number}"))

    threads = [threading.Thread(target=grant, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened().leases()) == 40


def test_a_write_that_fails_half_way_leaves_the_old_text_and_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    durable.write_durably(path, "old")
    real = os.write

    def short(handle: int, data: bytes) -> int:
        if len(data) < 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data[:3])

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "write", short)
        with pytest.raises(OSError, match="No space left"):
            durable.write_durably(path, "new text")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


class FullDisk:
    """Writing files fails while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        real = leases_module.write_durably

        def write(path: Path, text: str) -> None:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(path, text)

        for module in (leases_module, epochs):
            monkeypatch.setattr(module, "write_durably", write)


def test_a_full_disk_takes_no_new_caps_but_still_gives_back(
    opened: Callable[..., LeaseBook], clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, book = FullDisk(monkeypatch), opened()
    book.grant(a_lease(clock, "a"))
    book.grant(a_lease(clock, "b", limit_w=250.0))
    book.save_limit(GPU, 400.0)
    disk.full = True
    with pytest.raises(NotWritten, match="No space left"):
        book.grant(a_lease(clock, "c", limit_w=200.0))
    with pytest.raises(NotWritten):
        book.grant(a_lease(clock, "c", epoch=2))
    assert {lease.lease_id for lease in book.leases()} == {"a", "b"}
    assert book.release("b", 1) is not None
    assert limit_in_force(book.leases(), clock.boot) == 300.0
    assert any("not up to date" in said for _, said in book.notices())
    disk.full = False
    book.expire(clock.boot)
    assert book.notices() == []
    assert {lease.lease_id for lease in opened().leases()} == {"a"}
    disk.full, book = True, opened()
    clock.pass_s(60)
    assert [lease.lease_id for lease in book.expire(clock.boot)] == ["a"]
    assert book.forget(GPU)  # nothing left to say needs no room
    assert opened().record(GPU).empty


def test_an_epoch_that_found_no_room_is_written_by_the_next_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, fence = FullDisk(monkeypatch), Epochs(tmp_path)
    disk.full = True
    with pytest.raises(NotWritten, match="No space left"):
        fence.see(4)
    fence.see(4, must_write=False)
    assert fence.highest == 4 and "not on disk yet" in fence.notices["epoch"] and Epochs(tmp_path).highest == 0
    disk.full = False
    fence.see(4)
    assert fence.notices == {} and Epochs(tmp_path).highest == 4


def test_a_folder_that_cannot_be_made_is_a_plain_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten, match="cannot be made"):
        LeaseBook(tmp_path / "file" / "state")


def test_two_books_never_hold_one_gpu(tmp_path: Path, clock: Hands) -> None:
    holder = "\n".join(
        [
            "import sys",
            "from dispatcher.agent.leases import LeaseBook",
            f"book = LeaseBook({str(tmp_path)!r})",
            f"book.hold({GPU!r})",
            "print('held', flush=True)",
            "sys.stdin.read()",
        ]
    )
    with subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        book = LeaseBook(tmp_path, clock)
        with pytest.raises(HeldElsewhere, match=f"GPU {GPU} is held by process {process.pid}; this agent leaves it alone"):
            book.hold(GPU)
        with pytest.raises(BadLease, match="not held by this agent"):
            book.grant(a_lease(clock))
        process.kill()
        process.wait()
        assert book.hold(GPU).empty  # the lock dies with its process
        book.close()


def test_a_gpu_name_that_is_a_path_is_refused(tmp_path: Path) -> None:
    book = LeaseBook(tmp_path)
    for name in ("../escape", "", "a/b", "GPU-1\n", "x" * 200):
        with pytest.raises(BadLease, match="is not a GPU's UUID"):
            book.hold(name)
    assert list(tmp_path.iterdir()) == []


def test_load_takes_up_all_gpus_that_have_a_file(opened: Callable[..., LeaseBook], clock: Hands) -> None:
    book = opened()
    book.grant(a_lease(clock))
    book.close()
    again = LeaseBook(book.folder, clock, "boot-1")
    assert [lease.lease_id for record in again.load().values() for lease in record.leases] == ["one"]
    again.close()


def test_the_machine_tells_its_boot() -> None:
    assert len(boot_id()) == 36
    assert Clock().boot_s() > 0
