"""Policies by name: each there is, each with its suffix or prefix, and what is said of a name that is none."""

import sys
from types import ModuleType

import pytest

from policies.policy import Knows
from policies.published import CapQuota, LowestWindow, RunNow
from policies.registry import UnknownPolicy, check, make, names, quota


def test_the_names() -> None:
    assert names() == (
        "gridshift", "run-now", "lowest-slot", "lowest-window", "carbon-time", "wait-awhile", "ecovisor", "cap-quota",
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *names()[1:],
        "lowest-slot:price",
        "ecovisor:price",
        "cap-quota:price",
        "cap-quota/wait-awhile",
        "cap-quota/ecovisor:price",
    ],
)
def test_each_has_its_name(name: str) -> None:
    policy = make(name)
    assert policy.name == name and isinstance(policy.knows, Knows) and isinstance(policy.replans, bool)
    assert make(name) is not policy, "each run begins without a memory"


def test_the_quota_goes_around_another_policy() -> None:
    plain, around = make("cap-quota"), make("cap-quota/lowest-window:price")
    assert isinstance(plain, CapQuota) and isinstance(plain.inner, RunNow)
    assert isinstance(around, CapQuota) and isinstance(around.inner, LowestWindow) and around.inner.name.endswith(":price")


def test_the_quota_alone() -> None:
    assert quota("gridshift") is None and quota("lowest-window:price") is None
    for name, by_price in (("cap-quota", False), ("cap-quota/gridshift", False), ("cap-quota/ecovisor:price", True)):
        alone = quota(name)
        assert alone is not None and isinstance(alone.inner, RunNow)
        assert alone.name == ("cap-quota:price" if by_price else "cap-quota")
    with pytest.raises(UnknownPolicy):
        quota("cap-qota")


def test_ours_comes_from_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gridshift(RunNow):
        title = "gridshift"

    planner = ModuleType("policies.planner")
    planner.Gridshift = Gridshift  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "policies.planner", planner)
    assert make("gridshift").name == "gridshift"
    assert make("cap-quota/gridshift").name == "cap-quota/gridshift"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("lowest-windw", "did you mean 'lowest-window'?"),
        ("lowest_window:price", "did you mean 'lowest-window'?"),
        ("fastest", "there are: gridshift, run-now, lowest-slot"),
        ("", "there are: gridshift"),
        ("cap-quota/lowest-windw", "did you mean 'cap-quota/lowest-window'?"),
        ("cap-quota/cap-quota", "cap-quota/cap-quota"),
        ("run-now/lowest-window", "run-now/lowest-window"),
        ("gridshift:price", "weighs price and carbon by the settings; write 'gridshift'"),
        ("run-now:price", "looks at no signal; write 'run-now'"),
        ("lowest-slot:carbon", "did you mean 'lowest-slot'?"),
    ],
)
def test_a_name_that_is_none_is_told_with_the_closest(name: str, remedy: str) -> None:
    with pytest.raises(UnknownPolicy) as caught:
        make(name)
    assert remedy in str(caught.value)
    with pytest.raises(UnknownPolicy):
        check(name)
