"""The fleet's picture: sums that say what is unknown, silent nodes, and what is simulated."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.api.fleet import fleet_json
from dispatcher.power.energy import KnownNode
from dispatcher.power.fleet import basis_of, by_job, known_of, said
from tests.power.fleet_samples import NOW, fleet, gpu, node


def test_sums_by_node_branch_and_region() -> None:
    made = fleet(
        node("n1", gpu(0, 300.0), gpu(1, 200.0)),
        node("n2", gpu(0, 100.0)),
        node("n3", gpu(0, 50.0), branch=None),
        node("s1", gpu(0, 25.0), region="south", branch=None),
    )
    north, south = made.regions
    assert (made.draw.power_w, north.draw.power_w, south.draw.power_w) == (675.0, 650.0, 25.0)
    assert [(one.name, one.power_limit_w, one.draw.power_w) for one in north.branches] == [
        ("rack-1", 5000.0, 600.0),
        (None, None, 50.0),
    ]
    assert [one.hostname for one in north.branches[0].nodes] == ["host-n1", "host-n2"]
    assert basis_of(made) == "measured" and said(made.draw) == "675 W of 5 GPUs"


def test_a_silent_node_is_unknown_and_not_zero() -> None:
    silent = node("n2", gpu(0, 250.0), gpu(1, 250.0), connected=False, last_seen_at=NOW - timedelta(seconds=20))
    made = fleet(node("n1"), silent)
    north = made.regions[0]
    assert (north.draw.power_w, north.draw.known_w, north.draw.unknown_gpus) == (None, 300.0, 2)
    assert said(north.draw) == "300 W known; 2 of 3 GPUs unknown"
    view = north.branches[0].nodes[1]
    assert view.silent and view.draw.known_w is None and said(view.draw) == "unknown: none of 2 GPUs tells its power"
    assert all(one.state == "unknown" and one.power_w is None and one.jobs is None for one in view.gpus)
    assert all(one.temperature_c is None and one.cap.state == "unknown" for one in view.gpus)
    assert basis_of(made) == "partly measured"


def test_a_lost_gpu_tells_nothing_of_the_present() -> None:
    made = fleet(node("n1", gpu(0), gpu(1, 300.0, idle_state="lost")))
    lost = made.regions[0].branches[0].nodes[0].gpus[1]
    assert (lost.state, lost.power_w, lost.enforced_w) == ("lost", None, None) and made.draw.unknown_gpus == 1


def test_nodes_of_an_earlier_control_plane_are_silent_for_an_hour() -> None:
    gpus = ({"uuid": "GPU-9", "index": 3, "name": "H100"},)
    lately = KnownNode("n9", "host-n9", "north", "rack-1", False, gpus, NOW - timedelta(minutes=59))
    long_ago = replace(lately, node_id="n8", last_seen_at=NOW - timedelta(minutes=61))
    made = fleet(node("n1"), known=(lately, long_ago, replace(lately, node_id="n1")))
    nodes = made.regions[0].branches[0].nodes
    assert [(one.node_id, one.silent) for one in nodes] == [("n1", False), ("n9", True)]
    assert nodes[1].gpus[0].uuid == "GPU-9" and nodes[1].gpus[0].index == 3 and made.draw.unknown_gpus == 1


def test_a_node_under_a_new_id_is_not_told_of_twice() -> None:
    before, after = node("n1", connected=False, hostname="gpu-1"), node("n2", hostname="gpu-1")
    assert [one.node_id for one in fleet(before, after).regions[0].branches[0].nodes] == ["n2"]
    assert fleet(before, after).draw.unknown_gpus == 0
    fewer = replace(before, gpus=(gpu(), gpu(1)))
    assert fleet(fewer, after).draw.unknown_gpus == 2, "one of its GPUs has not come back"
    assert fleet(before, replace(after, connected=False)).draw.unknown_gpus == 2, "nobody is heard"
    assert fleet(before, node("n2", hostname="gpu-2")).draw.unknown_gpus == 1, "another machine"


def test_regions_and_branches_without_nodes_are_there() -> None:
    made = fleet()
    assert [one.name for one in made.regions] == ["north", "south"] and made.regions[0].branches[0].name == "rack-1"
    assert made.draw.power_w is None and made.draw.gpus == 0 and "no agent tells" in said(made.draw)
    assert basis_of(made) == "modelled"


def test_simulated_is_said_wherever_it_is_summed() -> None:
    made = fleet(node("n1", gpu(0, simulated=True), gpu(1)), node("s1", region="south", branch=None))
    north, south = made.regions
    assert made.draw.simulated and north.draw.simulated and not south.draw.simulated
    assert said(north.draw).startswith("SIMULATED 600 W") and basis_of(made) == "simulated"
    assert [one.simulated for one in north.branches[0].nodes[0].gpus] == [True, False]
    whole = fleet(node("n1", gpu(0), simulated=True))
    assert whole.regions[0].branches[0].nodes[0].gpus[0].simulated


def test_idle_is_no_throttling() -> None:
    made = fleet(node("n1", gpu(0, throttle=("idle",)), gpu(1, throttle=("sw_power_cap", "idle"))))
    assert [one.throttle for one in made.regions[0].branches[0].nodes[0].gpus] == [(), ("sw_power_cap",)]


def test_nobody_there_and_nobody_knows_are_told_apart() -> None:
    there = node("n1", gpu(0, jobs=()), gpu(1, jobs=None), gpu(2, jobs=("a",)))
    (region, _) = fleet_json(fleet(there))["regions"]
    assert [one["jobs"] for one in region["branches"][0]["nodes"][0]["gpus"]] == [[], None, ["a"]]
    (region, _) = fleet_json(fleet(replace(there, connected=False)))["regions"]
    assert [one["jobs"] for one in region["branches"][0]["nodes"][0]["gpus"]] == [None, None, None]


def test_gpus_of_jobs() -> None:
    made = fleet(node("n1", gpu(0, jobs=("a", "b")), gpu(1, jobs=("a",))))
    found = by_job(made.regions[0].branches[0].nodes)
    assert {job: [one.index for one in gpus] for job, gpus in found.items()} == {"a": [0, 1], "b": [0]}


def test_what_is_remembered_of_a_node() -> None:
    known = known_of(node("n1", gpu(0), gpu(1)))
    assert known.gpus == tuple({"uuid": f"GPU-{n}", "index": n, "name": "H100"} for n in range(2))
    assert (known.hostname, known.branch, known.last_seen_at) == ("host-n1", "rack-1", NOW)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["north", "south"]),
            st.booleans(),
            st.lists(st.none() | st.floats(0, 1000, allow_nan=False), max_size=4),
        ),
        max_size=6,
    )
)
def test_no_sum_hides_what_is_unknown(nodes: list[tuple[str, bool, list[float | None]]]) -> None:
    made = fleet(
        *(
            replace(
                node(f"n{at}", region=region, connected=connected),
                gpus=tuple(gpu(index, power) for index, power in enumerate(powers)),
            )
            for at, (region, connected, powers) in enumerate(nodes)
        )
    )
    every = [power if connected else None for _, connected, powers in nodes for power in powers]
    known = [power for power in every if power is not None]
    assert (made.draw.gpus, made.draw.unknown_gpus) == (len(every), len(every) - len(known))
    assert (made.draw.known_w is None) == (not known) and (made.draw.known_w or 0.0) == pytest.approx(sum(known))
    assert (made.draw.power_w is None) == (not every or len(known) < len(every))
    assert sum(one.draw.gpus for one in made.regions) == len(every)
