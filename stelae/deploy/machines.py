"""Which of Ray's nodes each server runs on: chosen once, as its disk is there.

A machine is a node with a disk that stays, whatever id Ray gives the node when it is started anew.
With ``placement: {spread: node}`` each of Ray's nodes is one, known by its address; a cluster that
is founded on a Ray with several nodes gets that by itself. ``{spread: [node, rack]}`` spreads over
the values of that label first (``ray start --labels rack=r1``). With ``placement: {label: disk}``
each value of a label is one (``ray start --labels disk=a``). A server keeps its machine
(``machines`` in ``cluster.json``): Ray starts its actor again there, where it finds its data, and
nowhere else; while the machine is away the others go on without it. Where Ray has one node, all
servers run there, and listen on its loopback.

Design §12; decisions §45, §70.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from stelae.core.addresses import NODE_ADDRESS, address_of, split_address
from stelae.core.config.spec import ClusterSpec, PlacementSpec
from stelae.core.errors import InvalidArgument, NotEnoughServers
from stelae.core.places import Place
from stelae.deploy.cluster_state import STATE_FILE, ClusterState, load_state

if TYPE_CHECKING:
    from stelae.actors.ray_host.host import ServerPlan

NODE_ID = "ray.io/node-id"
"""Ray's own label of a node, while it lives."""
LOOPBACK = "127.0.0.1"
SPREAD = PlacementSpec(spread="node")
"""The placement of a cluster that is founded without one on a Ray with several nodes."""


def assigned(
    names: Iterable[str],
    known: Mapping[str, str],
    machines: Iterable[str],
    racks: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """``known``, and a machine for each other server: where the fewest of its kind are, then the
    fewest in all, of both those on the machine before those in its rack. Pure; the same for the
    same arguments.

    ``racks``: by machine; one that is not there is a rack of its own."""
    wanted = list(names)
    found = dict(known)
    places = {machine: Place(machine, rack) for machine, rack in (racks or {}).items()}
    there = [places.get(machine, Place(machine)) for machine in sorted(machines)]
    for name in wanted:
        if name in found:
            continue
        placed = [n for n in wanted if n in found]
        every = [places.get(found[n], Place(found[n])) for n in placed]
        kind = [p for n, p in zip(placed, every, strict=True) if kind_of(n) == kind_of(name)]
        best = min(there, key=lambda place: (place.crowd(kind), place.crowd(every), place.node))
        found[name] = best.node
    return found


def kind_of(name: str) -> str:
    """``tserver`` of ``tserver-3``."""
    return name.rpartition("-")[0]


def live_machines(label: str) -> dict[str, str]:
    """The machines that Ray has now, each with its node's address. Needs a connection to Ray.

    Raises:
        InvalidArgument: two nodes say that they are the same machine.
        NotEnoughServers: no node has the label.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found: dict[str, str] = {}
    for node in nodes:
        machine = machine_of(node, label)
        if machine is None:
            continue
        if machine in found:
            raise InvalidArgument(
                f"placement: two of Ray's nodes are {described(label, machine)}; each is to be one "
                "machine with its disk. Give the nodes labels of their own, and name the label"
            )
        found[machine] = node["NodeManagerAddress"]
    if not found:
        what = "Ray has none" if label == NODE_ADDRESS else f"`ray start --labels {label}=…`"
        raise NotEnoughServers(f"placement ({what})", 1, "nodes", 0)
    return found


def live_racks(label: str, rack_label: str) -> dict[str, str]:
    """The racks of the machines that Ray has now and that are in one. Needs a connection to Ray."""
    found: dict[str, str] = {}
    for node in ray.nodes() if rack_label else ():
        machine, rack = machine_of(node, label), node.get("Labels", {}).get(rack_label)
        if node["Alive"] and machine is not None and rack:
            found[machine] = rack
    return found


def away(spec: ClusterSpec, state: ClusterState) -> list[str]:
    """Servers whose machine Ray does not have now. Needs a connection to Ray."""
    if spec.placement is None:
        return []
    label = spec.placement.machine_label
    live = {machine_of(node, label) for node in ray.nodes() if node["Alive"]}
    return [name for name, machine in state.machines.items() if machine not in live]


def machine_of(node: Mapping[str, Any], label: str) -> str | None:
    """The machine that one of `ray.nodes()` is; None: the node lacks the label. Pure."""
    if label == NODE_ADDRESS:
        return str(node["NodeManagerAddress"])
    found: str | None = node.get("Labels", {}).get(label)
    return found


def described(label: str, machine: str) -> str:
    """A machine in words. Pure."""
    return f"node {machine}" if label == NODE_ADDRESS else f"machine {label}={machine}"


def founded_as(spec: ClusterSpec) -> ClusterSpec:
    """The spec that a launch goes by: one without a placement gets `SPREAD` where Ray has several
    nodes and the cluster is founded now, or was founded so. Needs a connection to Ray.

    On a Ray with several nodes a cluster on the launching node alone would listen on its loopback,
    which tasks and HTTP proxies on the other nodes do not reach. Nodes that share an address, as
    several on one machine do, cannot be told apart by it.
    """
    if spec.placement is not None or spec.ray.address == "local":
        return spec
    folder = Path(spec.data_dir)
    state = load_state(folder) if (folder / STATE_FILE).exists() else None
    if state is not None and (state.machines or _has_folders(state)):
        by_address = bool(state.machines) and all(map(_is_address, state.machines.values()))
        return spec.model_copy(update={"placement": SPREAD}) if by_address else spec
    addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    if len(addresses) < 2 or len(set(addresses)) < len(addresses):
        return spec
    return spec.model_copy(update={"placement": SPREAD})


def as_founded(spec: ClusterSpec, before: ClusterSpec | None) -> ClusterSpec:
    """The spec with the placement that the cluster got by itself, if it has none. Pure.

    ``before``: the spec of the last launch or apply. A ``replace_after`` in it does not make the
    placement another one; a spec without a placement ends it.
    """
    if spec.placement is not None or before is None or before.placement is None:
        return spec
    if before.placement.model_copy(update={"replace_after_s": None}) != SPREAD:
        return spec
    return spec.model_copy(update={"placement": SPREAD})


def placed(spec: ClusterSpec, state: ClusterState, names: Iterable[str]) -> ClusterState:
    """The state with a machine for each of the servers named, and with the addresses of masters
    that are founded now. Needs a connection to Ray.

    Raises:
        InvalidArgument: the cluster was made with another placement, or a machine has another
            address than its master has.
        NotEnoughServers: no node of Ray's has the label, or, of a cluster that is founded now,
            that of racks.
    """
    if spec.placement is None:
        if state.machines:
            raise InvalidArgument(_other_placement(spec, "on several machines"))
        return state
    wanted = [*state.masters, *(name for name in names if name not in state.masters)]
    if not state.machines and _has_folders(state):
        raise InvalidArgument(_other_placement(spec, "without a placement"))
    label, rack_label = spec.placement.machine_label, spec.placement.rack_label
    found, racks = live_machines(label), live_racks(label, rack_label)
    if rack_label and not racks and not state.machines:
        what = f"placement: spread ([node, {rack_label}]; `ray start --labels {rack_label}=…`)"
        raise NotEnoughServers(what, 1, "nodes", 0)
    machines = assigned(wanted, state.machines, found, racks)
    masters = dict(state.masters)
    for name, address in masters.items():
        host, port = split_address(address)
        here = found.get(machines[name], host)
        if name not in state.machines:
            masters[name] = address_of(here, port)
        elif here != host:
            raise InvalidArgument(
                f"{name} listens at {address}, and its machine {machines[name]!r} has the address "
                f"{here} now: give it back, or put another master in its place while most live"
            )
    return replace(state, machines=machines, masters=masters)


def _has_folders(state: ClusterState) -> bool:
    """Whether masters have run where the data_dir is."""
    return any((Path(state.data_dir) / name).exists() for name in state.masters)


def _is_address(machine: str) -> bool:
    try:
        ipaddress.ip_address(machine)
    except ValueError:
        return False
    return True


def _other_placement(spec: ClusterSpec, how: str) -> str:
    return f"placement: cluster {spec.cluster!r} was made {how}, and its servers' disks are there"


def selector(spec: ClusterSpec, state: ClusterState, name: str) -> dict[str, str]:
    """Ray's selector of the nodes that a server may run on; empty: any."""
    if spec.placement is None:
        node_id = this_node()
        return {NODE_ID: node_id} if node_id else {}
    machine = state.machines.get(name)
    return {} if machine is None else {spec.placement.machine_label: machine}


def this_node() -> str:
    """Of what is needed where the launch is: servers that listen on the loopback are of no use on
    another node, nor is who reads the data_dir. Empty: Ray has one only."""
    if not ray.is_initialized() or sum(bool(node["Alive"]) for node in ray.nodes()) < 2:
        return ""
    context: Any = ray.get_runtime_context()
    return str(context.get_node_id())


def check_here(selector: Mapping[str, str]) -> None:
    """Raise InvalidArgument where a cluster without a placement is on another one of Ray's nodes:
    its files are there. ``selector``: of a server of it."""
    here = this_node()
    if here != selector.get(NODE_ID, here):
        raise InvalidArgument(
            "this cluster has no placement: all of it is on one of Ray's nodes, and is changed "
            "there"
        )


def node_of_others(spec: ClusterSpec) -> str:
    """Where to be for what is no server and changes these: anywhere with a placement (empty)."""
    return "" if spec.placement is not None else this_node()


def for_master(state: ClusterState, name: str, like: ServerPlan) -> tuple[str, str]:
    """Machine and host of a master that is added to others: a machine of its own if there is one.
    ``like``: the plan of one of them. The choice is kept.

    Raises NotEnoughServers: no node of Ray's has the label.
    """
    if not like.machine:
        return "", like.host
    (label,) = like.selector
    found = live_machines(label)
    racks = live_racks(label, like.rack_label)
    machines = assigned([*state.masters, name], state.machines, found, racks)
    if machines[name] not in found:
        raise NotEnoughServers(f"master add (machine {machines[name]!r}, its own)", 1, "nodes", 0)
    replace(state, machines=machines).save()
    return machines[name], found[machines[name]]
