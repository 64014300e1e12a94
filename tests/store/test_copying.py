"""Quick copies are what dataclasses.replace would have made, and frozen all the same."""

from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from dispatcher.store import Attempt, Change, Job, JobEvent
from dispatcher.store.copying import copier, maker
from policies.world import JobState
from tests.store.store_samples import T0, attempt, job


def test_a_copy_is_what_replace_makes_and_the_first_is_untouched() -> None:
    one, with_fields = job("a", owner="ö", cost=0.0), copier(Job)
    changed = {"reason": "new", "seq": 7, "held": True, "cost": None}
    assert with_fields(one, changed) == replace(one, **changed)
    assert with_fields(one, {}) == one and with_fields(one, {}) is not one
    assert one == job("a", owner="ö", cost=0.0)
    copy = with_fields(one, changed)
    assert type(copy) is Job and hash(copier(Attempt)(attempt(), {})) == hash(attempt())
    with pytest.raises(FrozenInstanceError):
        copy.reason = "again"  # type: ignore[misc]


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(AttributeError):
        copier(Job)(job(), {"colour": "red"})


def test_what_is_made_is_what_the_class_makes() -> None:
    given = (3, "a", T0, "state", JobState.QUEUED, JobState.LAUNCHING, "go", 1, "north")
    assert maker(JobEvent)(*given) == JobEvent(*given)
    with pytest.raises(TypeError):
        maker(JobEvent)(3, "a")
    plain = maker(Change)("a", T0, "note", "said", expect_attempt=2)
    assert plain == Change("a", T0, "note", "said", expect_attempt=2) and plain.fields == {}
    assert plain.fields is not maker(Change)("a", T0, "note", "said").fields, "a fresh one each time"


def test_a_class_that_this_cannot_be_done_to_is_refused() -> None:
    @dataclass(frozen=True)
    class Open:
        value: int

    @dataclass(frozen=True, slots=True)
    class Checked:
        value: int

        def __post_init__(self) -> None:
            pass

    for kind in (Open, Checked):
        with pytest.raises(TypeError, match="no plain dataclass with slots"):
            copier(kind)
