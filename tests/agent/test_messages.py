"""Frames between agents and the control plane: what passes, and how the rest is refused."""

import ast
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.agent import messages
from dispatcher.agent.messages import BadFrame, EnergyAck, Freeze, Orders, SetCap, Thaw, decode, encode, from_server

CAP = {"lease_id": "a", "kind": "economic", "uuid": "GPU-1", "limit_w": 300, "ttl_s": 60, "reason": "night"}
ORDERS = {"type": "orders", "order": "1-1", "epoch": 3, "set": [CAP], "release": ["b"]}
HELLO: dict[str, Any] = {
    "type": "hello",
    "protocol": 1,
    "node": {"node_id": "n1", "hostname": "h1", "region": "north", "branch": None, "simulated": True},
    "can_cap": True,
    "why_not": "",
    "gpus": [{"uuid": "GPU-1", "index": 0, "name": "Card", "min_w": 200.0, "max_w": 700.0, "default_w": 700.0}],
    "leases": [{"lease_id": "a", "uuid": "GPU-1", "limit_w": 300.0, "ends_in_s": None}],
    "epoch": 0,
}
ROW = {"start": 60, "end": 120, "uuid": "GPU-1", "job_id": None, "line": "idle", "energy_wh": 1.5, "seconds": 60}
ROW |= {"quality": "measured"}


def test_what_the_control_plane_sends_arrives_as_values() -> None:
    cap = SetCap("a", "economic", "GPU-1", 300.0, 60.0, "night")
    assert from_server(decode(encode(ORDERS))) == Orders("1-1", 3, (cap,), ("b",))
    freeze = {"type": "freeze", "order": "1-2", "epoch": 3, "job_id": "j", "ttl_s": 20, "freeze_max_s": 30}
    assert from_server(decode(encode(freeze))) == Freeze("1-2", 3, "j", 20.0, 30.0)
    assert from_server({"type": "thaw", "order": "1-3", "epoch": 3, "job_id": "j"}) == Thaw("1-3", 3, "j")
    assert from_server({"type": "energy_ack", "batch": 7}) == EnergyAck(7)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"limit_w": "300"}, "orders.set[0].limit_w: '300'"),
        ({"limit_w": True}, "orders.set[0].limit_w: True"),
        ({"limit_w": 0}, "orders.set[0].limit_w: 0"),
        ({"limit_w": 10**400}, "orders.set[0].limit_w"),
        ({"ttl_s": None}, "an economic lease has an end"),
        ({"ttl_s": -1}, "orders.set[0].ttl_s: -1"),
        ({"kind": "forever"}, "must be economic or event"),
        ({"uuid": ""}, "orders.set[0].uuid: ''"),
        ({"min_ok": "yes"}, "orders.set[0].min_ok: 'yes'"),
        ({"foreign_ok": 1}, "orders.set[0].foreign_ok: 1"),
        ({"ttl_s": 400 * 86400.0}, "orders.set[0].ttl_s: 34560000.0"),
    ],
)
def test_a_lease_that_means_nothing_names_the_field_and_costs_no_other(change: dict[str, Any], named: str) -> None:
    orders = from_server({**ORDERS, "set": [{**CAP, **change}, {**CAP, "lease_id": "good"}]})
    assert isinstance(orders, Orders) and [cap.lease_id for cap in orders.set] == ["good"]
    ((lease_id, why),) = orders.wrong
    assert lease_id == CAP["lease_id"] and named in why


def test_a_lease_without_a_name_is_an_order_that_means_nothing() -> None:
    with pytest.raises(BadFrame, match=r"orders\.set\[0\]\.lease_id: ''"):
        from_server({**ORDERS, "set": [{**CAP, "lease_id": ""}]})


def test_an_open_lease_is_for_events_only() -> None:
    orders = from_server({**ORDERS, "set": [{**CAP, "kind": "event", "ttl_s": None}]})
    assert isinstance(orders, Orders) and orders.set[0].ttl_s is None


@pytest.mark.parametrize("text", ["", "[]", "3", '{"a":1}', '{"type":3}', "{" * 100_000, '{"type":"live","x":NaN}', b"{}"])
def test_text_that_is_no_frame_is_refused(text: str | bytes) -> None:
    with pytest.raises(BadFrame):
        decode(text)


def test_what_json_cannot_say_and_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(BadFrame):
        encode({"type": "live", "power_w": math.nan})
    with pytest.raises(BadFrame):
        encode({"type": "live", "x": "y" * messages.MAX_FRAME_BYTES})


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"protocol": 2}, "protocol"),
        ({"node": None}, "hello.node"),
        ({"node": {**HELLO["node"], "node_id": 3}}, "hello.node.node_id: 3"),
        ({"gpus": [HELLO["gpus"][0]] * 2}, "is named twice"),
        ({"gpus": [{**HELLO["gpus"][0], "min_w": -1}]}, "hello.gpus[0].min_w: -1"),
        ({"leases": [{"lease_id": "a", "uuid": "GPU-1", "limit_w": None}]}, "hello.leases[0].limit_w: None"),
        ({"epoch": -1}, "hello.epoch: -1"),
    ],
)
def test_a_hello_that_means_nothing_names_the_field(change: dict[str, Any], named: str) -> None:
    assert messages.check_hello(HELLO).raw() is HELLO
    with pytest.raises(BadFrame) as caught:
        messages.check_hello({**HELLO, **change})
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("gpu", "named"),
    [
        ({"power_w": 1}, "live.gpus[0].uuid: None"),
        ({"uuid": "GPU-1", "power_w": "1"}, "live.gpus[0].power_w: '1'"),
        ({"uuid": "GPU-1", "power_w": True}, "live.gpus[0].power_w: True"),
        ({"uuid": "GPU-1", "power_w": float("inf")}, "live.gpus[0].power_w: inf"),
        ({"uuid": "GPU-1", "power_w": 10**400}, "live.gpus[0].power_w: 1000"),
        ({"uuid": "GPU-1", "idle_state": "asleep"}, "must be one of active"),
        ({"uuid": "GPU-1", "jobs": "j"}, "live.gpus[0].jobs: 'j'"),
        ({"uuid": "GPU-1", "jobs": 0}, "live.gpus[0].jobs: 0"),
        ({"uuid": "GPU-1", "cap": 3}, "live.gpus[0].cap: 3"),
        (7, "live.gpus[0]: 7"),
    ],
)
def test_figures_that_mean_nothing_name_the_field(gpu: object, named: str) -> None:
    with pytest.raises(BadFrame) as caught:
        messages.check_live({"type": "live", "gpus": [gpu]})
    assert named in str(caught.value)


def test_unknown_figures_pass_as_unknown() -> None:
    gpu = {"uuid": "GPU-1", "power_w": None, "idle_state": "lost", "cap": None, "jobs": None}
    live = {"type": "live", "gpus": [gpu]}
    assert messages.check_live(live).raw() == live


@pytest.mark.parametrize("change", [{"end": 60}, {"energy_wh": -1}, {"energy_wh": None}, {"seconds": 61}, {"uuid": 3}])
def test_rows_of_energy_are_checked(change: dict[str, Any]) -> None:
    assert messages.check_energy({"type": "energy", "batch": 4, "rows": [ROW]}) == (4, [ROW])
    with pytest.raises(BadFrame):
        messages.check_energy({"type": "energy", "batch": 4, "rows": [{**ROW, **change}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ORDERS, *CAP, *HELLO, *ROW]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(["orders", "freeze", "thaw", "energy_ack", "hello", "live", "results", "energy"]), JSON)
def test_whatever_comes_is_taken_or_refused_and_never_breaks_anything(kind: str, body: Any) -> None:
    frame = {**(body if isinstance(body, dict) else {"set": body, "gpus": body}), "type": kind}
    checks = {name: getattr(messages, f"check_{name}") for name in ("hello", "live", "results", "energy")}
    try:
        checks.get(kind, from_server)(frame)
    except BadFrame as error:
        assert str(error)


def test_what_runs_on_nodes_needs_nothing_else_of_ours_and_runs_on_old_pythons() -> None:
    folder = Path(messages.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert str(node.module).split(".")[0] not in ("dispatcher", "signals", "policies", "ui"), path
            if isinstance(node, ast.ImportFrom) and node.level > 0:
                assert node.level == 1, path
