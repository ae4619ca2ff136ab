"""Where servers are put: kinds spread over machines, and nobody moves from its disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.actors.ray_host.node_selector import node_options
from stelae.core.addresses import NODE_ADDRESS
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument, NotEnoughServers
from stelae.deploy import machines
from stelae.deploy.cluster_state import SECRET_FILE, ClusterState, load_state
from stelae.deploy.launcher import plans

NODES = {"spread": "node"}
KINDS = ("master", "tserver", "backup", "safekeeper")


@given(
    counts=st.lists(st.integers(0, 7), min_size=4, max_size=4),
    there=st.sets(st.sampled_from("abcdef"), min_size=1),
    more=st.integers(0, 3),
)
def test_each_kind_is_spread_and_nobody_moves(
    counts: list[int], there: set[str], more: int
) -> None:
    """Two machines differ by one server of a kind at most; those who come later move nobody."""
    names = [f"{k}-{n}" for k, c in zip(KINDS, counts, strict=True) for n in range(1, c + 1)]
    found = machines.assigned(names, {}, there)
    for kind in KINDS:
        each = Counter(m for name, m in found.items() if machines.kind_of(name) == kind)
        numbers = [each[machine] for machine in there]
        assert max(numbers) - min(numbers) <= 1
    later = machines.assigned([*names, *(f"tserver-{90 + n}" for n in range(more))], found, there)
    assert {name: later[name] for name in names} == found
    assert machines.assigned(reversed(names), found, {"z"}) == found


@given(
    racks=st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["r", "s", "t"])),
    count=st.integers(1, 6),
)
def test_servers_of_a_kind_are_in_as_many_racks_as_there_are(
    racks: dict[str, str], count: int
) -> None:
    """And on as many machines; a machine without a rack is one by itself."""
    there = "abcdef"
    found = machines.assigned([f"master-{n}" for n in range(1, count + 1)], {}, there, racks)
    assert len(set(found.values())) == count
    used = {racks.get(machine, f"rack of {machine}") for machine in found.values()}
    assert len(used) == min(count, len({racks.get(m, f"rack of {m}") for m in there}))


def _node(
    machine: str | None, address: str = "10.0.0.1", alive: bool = True, rack: str = ""
) -> dict[str, Any]:
    labels = {} if machine is None else {"disk": machine}
    labels |= {"rack": rack} if rack else {}
    return {"Alive": alive, "Labels": labels, "NodeManagerAddress": address}


def test_machines_are_live_nodes_with_the_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead node is none; a machine that is there twice is refused, and so is none at all."""
    nodes = [_node("a"), _node(None), _node("b", "10.0.0.2"), _node("a", "10.0.0.9", alive=False)]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    assert machines.live_machines("disk") == {"a": "10.0.0.1", "b": "10.0.0.2"}
    nodes.append(_node("b", "10.0.0.3"))
    with pytest.raises(InvalidArgument, match="disk=b"):
        machines.live_machines("disk")
    with pytest.raises(NotEnoughServers):
        machines.live_machines("other")


def _spec(tmp_path: Path, **more: Any) -> Any:
    return load_spec({"ray": {"address": "auto"}, "data_dir": str(tmp_path), **more})


def test_a_cluster_is_placed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters get the addresses of their machines; later neither a machine's address, nor whether
    there is a placement, may change."""
    nodes = [_node("a"), _node("b", "10.0.0.2"), _node("c", "10.0.0.3")]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    masters = {f"master-{n}": f"127.0.0.1:{7000 + n}" for n in (1, 2, 3)}
    fresh = ClusterState("demo", str(tmp_path), masters)
    spec = _spec(tmp_path, placement={"label": "disk"})
    placed = machines.placed(spec, fresh, ["tserver-1", "tserver-2"])
    hosts = {name: address.rpartition(":")[0] for name, address in placed.masters.items()}
    assert sorted(hosts.values()) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert set(placed.machines) == {*masters, "tserver-1", "tserver-2"}
    assert machines.placed(spec, placed, ["tserver-1", "tserver-2"]) == placed
    with pytest.raises(InvalidArgument, match="on several machines"):
        machines.placed(_spec(tmp_path), placed, [])
    nodes[0]["NodeManagerAddress"] = "10.0.0.77"
    with pytest.raises(InvalidArgument, match="another master"):
        machines.placed(spec, placed, [])
    (tmp_path / "master-1").mkdir()
    with pytest.raises(InvalidArgument, match="without a placement"):
        machines.placed(spec, fresh, [])


def test_masters_on_ipv6_nodes_have_brackets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an address cannot be taken apart again."""
    monkeypatch.setattr("ray.nodes", lambda: [_node("a", "fd00::1")])
    fresh = ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:7001"})
    spec = _spec(tmp_path, placement={"label": "disk"})
    placed = machines.placed(spec, fresh, [])
    assert placed.masters == {"master-1": "[fd00::1]:7001"}
    assert machines.placed(spec, placed, []) == placed
    placed.save()
    assert load_state(tmp_path).masters == placed.masters


def test_a_placement_is_for_a_ray_with_nodes(tmp_path: Path) -> None:
    """One that Stelae starts is one machine."""
    with pytest.raises(InvalidArgument, match="placement"):
        load_spec({"placement": {"label": "disk"}, "data_dir": str(tmp_path)})


@pytest.mark.parametrize("placement", [{}, {"spread": "node", "label": "disk"}])
def test_a_placement_goes_by_nodes_or_by_a_label(tmp_path: Path, placement: dict[str, str]) -> None:
    """Neither and both are refused, with what may be written."""
    with pytest.raises(InvalidArgument, match="either spread: node or spread"):
        _spec(tmp_path, placement=placement)


def test_without_labels_each_node_is_a_machine_known_by_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers are bound to nodes by what Ray calls them; nodes with one address are refused."""
    nodes = [_node(None, f"10.0.0.{n}") for n in (1, 2, 3)]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    state = ClusterState("demo", str(tmp_path), {"master-1": "127.0.0.1:7001"})
    spec = _spec(tmp_path, placement={"spread": "node"})
    placed = machines.placed(spec, state, ["tserver-1", "tserver-2"])
    assert sorted(placed.machines.values()) == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    address = placed.machines["tserver-2"]
    assert node_options(machines.selector(spec, placed, "tserver-2")) == {
        "resources": {f"node:{address}": 0.001},
    }
    assert node_options({"disk": "a"}) == {"label_selector": {"disk": "a"}}
    assert node_options({}) == {}
    nodes.append(_node(None, "10.0.0.3"))
    with pytest.raises(InvalidArgument, match=r"two of Ray's nodes are node 10\.0\.0\.3"):
        machines.placed(spec, state, [])


@pytest.mark.parametrize(
    "spread", ["rack", [], ["node"], ["node", ""], ["node", "node"], ["rack", "node"], ["node", 7]]
)
def test_a_spread_is_over_nodes_and_then_over_a_label(tmp_path: Path, spread: Any) -> None:
    """Anything else is refused, with what may be written."""
    with pytest.raises(
        InvalidArgument, match=r"placement\.spread.*must be node, or \[node, LABEL\]"
    ):
        _spec(tmp_path, placement={"spread": spread})


def test_masters_go_to_different_racks_and_servers_learn_the_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A founded cluster whose label no node has is refused; one that was founded goes on."""
    nodes = [_node(None, f"10.0.0.{n}", rack=rack) for n, rack in enumerate(["r", "r", "s", ""])]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    spec = _spec(tmp_path, placement={"spread": ["node", "rack"]})
    names = [f"master-{n}" for n in (1, 2, 3)]
    state = ClusterState("demo", str(tmp_path), {name: "127.0.0.1:7001" for name in names})
    placed = machines.placed(spec, state, [])
    assert sorted(placed.machines.values()) == ["10.0.0.0", "10.0.0.2", "10.0.0.3"]
    assert machines.live_racks(NODE_ADDRESS, "rack") == {
        "10.0.0.0": "r", "10.0.0.1": "r", "10.0.0.2": "s",
    }  # fmt: skip
    assert machines.live_racks(NODE_ADDRESS, "") == {}
    (tmp_path / SECRET_FILE).write_bytes(b"0" * 32)
    assert {plan.rack_label for plan in plans(spec, placed)} == {"rack"}
    assert {p.rack_label for p in plans(_spec(tmp_path, placement=NODES), placed)} == {""}
    other = _spec(tmp_path, placement={"spread": ["node", "zone"]})
    with pytest.raises(NotEnoughServers, match=r"ray start --labels zone"):
        machines.placed(other, state, [])
    assert machines.placed(other, placed, []) == placed


def test_a_cluster_is_spread_by_itself_where_ray_has_several_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is founded; one that was founded on one node stays there, and one that was spread
    stays spread, whatever nodes Ray has later."""
    nodes = [_node(None, "10.0.0.1")]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    spec = _spec(tmp_path)
    assert machines.founded_as(spec).placement is None, "one node"
    nodes.append(_node(None, "10.0.0.1"))
    assert machines.founded_as(spec).placement is None, "two that cannot be told apart"
    nodes[1]["NodeManagerAddress"] = "10.0.0.2"
    spread = machines.founded_as(spec)
    assert spread.placement == machines.SPREAD
    labelled = _spec(tmp_path, placement={"label": "disk"})
    assert machines.founded_as(labelled) == labelled
    masters = {"master-1": "127.0.0.1:7001"}
    state = ClusterState("demo", str(tmp_path), masters)
    state.save()
    (tmp_path / "secret").write_bytes(b"s" * 32)
    assert machines.founded_as(spec) == spread, "a launch that failed before anything was placed"
    machines.placed(spread, state, []).save()
    del nodes[1]
    assert machines.founded_as(spec) == spread
    state.save()
    (tmp_path / "master-1").mkdir()
    nodes.append(_node(None, "10.0.0.2"))
    assert machines.founded_as(spec).placement is None, "its disk is there"


def test_a_file_without_a_placement_fits_a_cluster_that_was_spread_by_itself(
    tmp_path: Path,
) -> None:
    """And no other: who wrote a label once has to go on with it."""
    spec = _spec(tmp_path)
    spread = _spec(tmp_path, placement={"spread": "node"})
    labelled = _spec(tmp_path, placement={"label": "disk"})
    assert machines.as_founded(spec, spread) == spread
    assert machines.as_founded(spec, labelled) == spec
    assert machines.as_founded(labelled, spread) == labelled
    assert machines.as_founded(spec, None) == spec
    replacing = _spec(tmp_path, placement={"spread": "node", "replace_after": "15m"})
    assert machines.as_founded(spec, replacing) == spread, "it may have had a replace_after"
