"""Every scheduling policy by its name, for the configuration, the command line and backtests. It decides nothing itself."""

import difflib
from collections.abc import Callable

from policies.policy import Policy
from policies.published import CapQuota, CarbonTime, Ecovisor, LowestSlot, LowestWindow, RunNow, WaitAwhile
from policies.world import Settings

#: What makes a published policy follow the price instead of carbon.
BY_PRICE = ":price"
QUOTA = "cap-quota"
OURS = "gridshift"

_PUBLISHED: dict[str, Callable[[bool], Policy]] = {
    policy.title: policy for policy in (RunNow, LowestSlot, LowestWindow, CarbonTime, WaitAwhile, Ecovisor)
}


class UnknownPolicy(ValueError):
    """No policy has that name; the message says which there are."""


def names() -> tuple[str, ...]:
    """The plain names, ours first. All but ours and run-now also come with ``:price``; ``cap-quota/NAME`` puts the quota around
    the policy NAME, plain ``cap-quota`` around run-now."""
    return (OURS, *_PUBLISHED, QUOTA)


def check(name: str) -> str:
    """``name`` as it is; raises UnknownPolicy with the closest name otherwise."""
    plain = name.removesuffix(BY_PRICE)
    inner = plain.removeprefix(f"{QUOTA}/")
    if plain == f"{QUOTA}/{inner}" and inner not in (OURS, *_PUBLISHED):
        raise UnknownPolicy(_remedy(name, inner, [OURS, *_PUBLISHED], f"{QUOTA}/"))
    if inner not in names():
        raise UnknownPolicy(_remedy(name, inner, names()))
    if name in (f"{OURS}{BY_PRICE}", f"{RunNow.title}{BY_PRICE}"):
        why = "weighs price and carbon by the settings" if name.startswith(OURS) else "looks at no signal"
        raise UnknownPolicy(f"no policy {name!r}: {plain} {why}; write {plain!r}")
    return name


def make(name: str, settings: Settings | None = None) -> Policy:
    """A fresh policy, with no memory. ``settings`` are for policies that prepare something by them; all read those of each
    World. Raises UnknownPolicy."""
    check(name)
    by_price = name.endswith(BY_PRICE)
    plain = name.removesuffix(BY_PRICE)
    if plain == OURS:
        return _ours(settings)
    if plain == QUOTA:
        return CapQuota(RunNow(), by_price=by_price)
    if plain.startswith(f"{QUOTA}/"):
        inner = plain.removeprefix(f"{QUOTA}/")
        return CapQuota(_ours(settings) if inner == OURS else _PUBLISHED[inner](by_price), by_price=by_price)
    return _PUBLISHED[plain](by_price)


def quota(name: str) -> CapQuota | None:
    """The quota of the policy ``name``, for whoever asks for it each moment and leaves planning to others; None for a policy
    without one."""
    check(name)
    plain = name.removesuffix(BY_PRICE)
    return CapQuota(RunNow(), by_price=plain != name) if plain == QUOTA or plain.startswith(f"{QUOTA}/") else None


def _ours(settings: Settings | None) -> Policy:
    # numpy and more, which whoever only checks a name has no use for
    from policies.planner import Gridshift

    return Gridshift()


def _remedy(name: str, part: str, known: tuple[str, ...] | list[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(part, known, 1, 0.5)
    hint = f"did you mean {prefix + near[0]!r}?" if near else f"there are: {', '.join(known)}"
    return f"no policy {name!r}; {hint}"
