"""What was owed when, over modifications, cancellations and late joins."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from dispatcher.errors import BadInput
from dispatcher.verification.obligations import Held, Segment, Version, in_force, target
from tests.verification.samples import DAY, at, flat

CALL = Segment(at(16), at(18), 60_000.0, ramp_s=600)
TEN_MIN = timedelta(minutes=10)


def spans(held: tuple[Held, ...]) -> list[tuple[object, ...]]:
    return [(one.start, one.hold_at, one.end, one.limit_w) for one in held]


def test_one_call_is_owed_from_its_start_and_judged_after_its_ramp() -> None:
    assert spans(in_force([Version(DAY, (CALL,))], at(24))) == [(at(16), at(16) + TEN_MIN, at(18), 60_000.0)]


def test_the_old_obligation_holds_until_the_modification_is_received() -> None:
    stricter = Version(at(17), (replace(CALL, limit_w=50_000.0),), "modification 1")
    got = in_force([stricter, Version(DAY, (CALL,))], at(24))
    assert spans(got) == [
        (at(16), at(16) + TEN_MIN, at(17), 60_000.0),
        (at(17), at(17) + TEN_MIN, at(18), 50_000.0),
    ]
    assert [one.version for one in got] == [0, 1]


def test_a_looser_limit_needs_no_ramp_and_the_same_one_does_not_ramp_anew() -> None:
    looser = Version(at(17), (replace(CALL, limit_w=70_000.0),))
    assert in_force([Version(DAY, (CALL,)), looser], at(24))[1].hold_at == at(17)
    longer = Version(at(17), (replace(CALL, end=at(19)),))
    assert spans(in_force([Version(DAY, (CALL,)), longer], at(24))) == [(at(16), at(16) + TEN_MIN, at(19), 60_000.0)]


def test_a_cancellation_ends_it_at_its_receipt() -> None:
    assert in_force([Version(DAY, (CALL,)), Version(at(16.5), ())], at(24))[0].end == at(16.5)
    assert in_force([Version(DAY, (CALL,)), Version(at(15), ())], at(24)) == ()


def test_an_event_joined_late_owes_nothing_before() -> None:
    got = in_force([Version(at(16.5), (CALL,))], at(24))
    assert spans(got) == [(at(16.5), at(16.5) + TEN_MIN, at(18), 60_000.0)]
    assert in_force([Version(at(18), (CALL,))], at(24)) == ()


def test_an_open_end_lasts_until_measuring_stops() -> None:
    assert in_force([Version(DAY, (replace(CALL, end=None),))], at(20))[0].end == at(20)


def test_a_ramp_longer_than_the_call_leaves_nothing_to_judge() -> None:
    got = in_force([Version(DAY, (replace(CALL, ramp_s=9000.0),))], at(24))[0]
    assert got.hold_at == got.end


def test_the_target_is_the_lower_of_limit_and_commitment() -> None:
    one = in_force([Version(DAY, (Segment(at(16), at(18), 60_000.0, 30_000.0),))], at(24))[0]
    low = target(one, flat(1.0), flat(80_000.0))
    high = target(one, flat(1.0), flat(120_000.0))
    assert low is not None and high is not None
    assert (low.watts[0], high.watts[0]) == (50_000.0, 60_000.0)
    assert target(replace(one, limit_w=None), flat(1.0), None) is None
    unknown = target(one, flat(1.0), flat(np.nan))
    assert unknown is not None and np.isnan(unknown.watts).all()


def test_bad_segments_are_named() -> None:
    with pytest.raises(BadInput, match="end"):
        Segment(at(16), at(16), 1.0)
    with pytest.raises(BadInput, match="a limit or a commitment"):
        Segment(at(16), at(18))
    with pytest.raises(BadInput, match="committed_w"):
        Segment(at(16), at(18), committed_w=-1.0)
    with pytest.raises(BadInput, match="must not begin before"):
        Version(DAY, (CALL, replace(CALL, start=at(17))))
