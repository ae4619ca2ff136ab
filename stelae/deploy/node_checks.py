"""Whether servers will find what they need, asked of the machines that they will run on, before.

Folders that can be made and have room, Ray's memory, what TLS between servers needs, the front's
port and its certificate: what the
operator's machine has of these says nothing of the others. All that is missing anywhere is told at
once. A machine that does not answer was not checked, and that is logged: it may be busy, or just be
coming. For a cluster with a placement; without one all of it is where the operator is.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from stelae.core.addresses import split_address
from stelae.core.config.peer_tls import OFF, PeerTls
from stelae.core.config.spec import SEGMENTS_PER_MEDIUM, ClusterSpec
from stelae.core.config.units import format_size
from stelae.core.errors import AlreadyRunning, InvalidArgument
from stelae.core.records.records import ServerKind
from stelae.deploy import machines, nodes
from stelae.deploy.cluster_state import STATE_FILE, ClusterState
from stelae.runtime.free_ports import port_problem
from stelae.runtime.tcp.tls import tls_problem

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 10.0
"""A node starts a process for the answer, if it has none at hand."""
HEAD_RESOURCE = "node:__internal_head__"
"""Of Ray's, on its head, where the proxy of Serve is."""


@dataclass(slots=True)
class Needs:
    """What is needed on one node. Folders and files by the names that cluster.yaml has for them."""

    folders: dict[str, tuple[str, int]] = field(default_factory=dict)
    """To be written to, and how many bytes their disks are to have left."""
    files: dict[str, str] = field(default_factory=dict)
    """To be read."""
    place: tuple[str, int] | None = None
    """Host and port of the HTTP front."""
    memory_bytes: int = 0
    """Of Ray's, for all tablet servers there; 0: none is started."""
    peer_tls: PeerTls = OFF
    """What servers there need for their connections."""

    def add_folder(self, name: str, path: str, free_bytes: int) -> None:
        """Several servers may share one: each needs its room."""
        _, before = self.folders.get(name, ("", 0))
        self.folders[name] = (path, before + free_bytes)


@dataclass(frozen=True, slots=True)
class Checked:
    problems: tuple[str, ...] = ()
    """Each names its node, and the way out."""
    unchecked: tuple[str, ...] = ()
    """Nodes that did not say, and why."""


def problems_here(needs: Needs) -> list[str]:
    """What is missing on this node. Runs there."""
    found = []
    for name, (path, free_bytes) in needs.folders.items():
        try:
            found.append(_folder_problem(name, path, free_bytes))
        except OSError as error:
            found.append(f"{name}: {path} cannot be made: {error.strerror or error}")
    for name, path in needs.files.items():
        if not (os.path.isfile(path) and os.access(path, os.R_OK)):
            found.append(f"{name}: {path} is no file that can be read: copy it there")
    found.append(tls_problem(needs.peer_tls))
    if needs.place is not None:
        found.append(place_problem(*needs.place))
    return [each for each in found if each]


def _folder_problem(name: str, path: str, free_bytes: int) -> str:
    above = Path(path)
    while not above.exists():
        above = above.parent
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        return (
            f"{name}: {path} cannot be made: {above} is no folder that can be written to; make "
            "it one, or name another in cluster.yaml"
        )
    free = shutil.disk_usage(above).free
    if free < free_bytes:
        return (
            f"{name}: the disk of {path} has {free / 2**20:,.0f} MiB left, and what is new there "
            f"begins with {free_bytes / 2**20:,.0f} MiB; make room, or name another folder"
        )
    return ""


def needs_of(
    spec: ClusterSpec,
    placed: Mapping[str, str],
    new: Collection[str],
    old: Iterable[str] = (),
    new_media: Collection[str] = (),
) -> dict[str, Needs]:
    """What servers need of the disks of their machines, by machine. Pure.

    ``placed``: the machine of each. Those that are ``old`` have been there before, as have their
    media but for ``new_media``: they are to be written to, however full they are.
    """
    found: dict[str, Needs] = {}
    least = SEGMENTS_PER_MEDIUM * spec.segment_size_bytes
    for name in (*new, *old):
        needs = found.setdefault(placed[name], Needs(peer_tls=spec.tls.peer_tls))
        needs.add_folder("data_dir", spec.data_dir, least if name in new else 0)
        if machines.kind_of(name) != ServerKind.BACKUP.value:
            continue
        for medium, each in spec.media.items():
            if each.path is not None and os.path.isabs(each.path):  # else it is in the data_dir
                is_new = name in new or medium in new_media
                needs.add_folder(f"media.{medium}", each.path, least if is_new else 0)
    return found


def add_memory(
    needs: dict[str, Needs],
    placed: Mapping[str, str],
    held: Mapping[str, int],
    starting: Iterable[str],
) -> None:
    """Where tablet servers are started, Ray needs memory for all that are there then. Pure, but for
    ``needs``. ``held``: bytes of each server."""
    for machine in {placed[name] for name in starting}:
        there = sum(size for name, size in held.items() if placed.get(name) == machine)
        needs.setdefault(machine, Needs()).memory_bytes = there


def front_needs(spec: ClusterSpec) -> Needs:
    """Of the node of Serve's proxy. Pure."""
    if spec.serve is None:
        return Needs()
    tls = spec.serve.tls
    return Needs(
        files={} if tls is None else {"serve.tls.cert": tls.cert, "serve.tls.key": tls.key},
        place=(spec.serve.host, spec.serve.port),
    )


def check_nodes(label: str, needs: Mapping[str, Needs], front: Needs | None = None) -> Checked:
    """Ask machines, by a `PlacementSpec.machine_label`, and, of ``front``, Ray's head. Needs a
    connection to Ray."""
    live = [node for node in ray.nodes() if node["Alive"]]
    there = {machines.machine_of(node, label): node for node in live}
    selectors: dict[str, Mapping[str, str]] = {}
    arguments: dict[str, tuple[Needs]] = {}
    problems: list[str] = []
    unchecked: list[str] = []
    for machine, each in sorted(needs.items()):
        where = machines.described(label, machine)
        node = there.get(machine)
        if node is None:
            unchecked.append(f"{where} was not checked: Ray has no such node now")
            continue
        if machine != node["NodeManagerAddress"]:
            where += f" ({node['NodeManagerAddress']})"
        problems += [f"on {where}: {text}" for text in _memory_problem(each, node)]
        if each.folders:
            selectors[where], arguments[where] = {label: machine}, (each,)
    head = next((node for node in live if HEAD_RESOURCE in node["Resources"]), None)
    if front is not None and head is not None:
        where = f"Ray's head ({head['NodeManagerAddress']})"
        selectors[where], arguments[where] = {machines.NODE_ID: head["NodeID"]}, (front,)
    told = nodes.ask(problems_here, selectors, arguments, ANSWER_TIMEOUT_S)
    for where, texts in told.answers.items():
        problems += [f"on {where}: {text}" for text in texts]
    unchecked += [f"{where} was not checked: {why}" for where, why in told.silent.items()]
    return Checked(tuple(problems), tuple(unchecked))


def _memory_problem(needs: Needs, node: Mapping[str, Any]) -> Sequence[str]:
    has = node["Resources"].get("memory", 0)
    if needs.memory_bytes <= has:
        return ()
    return (
        f"tservers.memory: the tablet servers there need {format_size(needs.memory_bytes)}, and "
        f"Ray has {has / 2**20:,.0f} MiB for servers; give it more (`ray start --memory`), or "
        "take smaller servers, or fewer",
    )


def log_unchecked(checked: Checked) -> None:
    """Whoever waits for a server there should know."""
    for each in checked.unchecked:
        logger.warning("%s", each)


def check_launch(spec: ClusterSpec, state: ClusterState, names: Sequence[str]) -> None:
    """Before the servers of these names are placed and started. Needs a connection to Ray.

    Raises InvalidArgument: all that is missing, on whichever machine.
    """
    if spec.placement is None:
        return
    from stelae.serve.deployment import serve_place

    placed = machines.placed(spec, state, names).machines
    new = [name for name in names if name not in state.machines]
    needs = needs_of(spec, placed, new, [name for name in names if name in state.machines])
    tservers = [name for name in names if machines.kind_of(name) == ServerKind.TSERVER.value]
    add_memory(needs, placed, dict.fromkeys(tservers, spec.tservers.memory_bytes), tservers)
    has_front = spec.serve is not None and serve_place() is None
    front = front_needs(spec) if has_front else None
    checked = check_nodes(spec.placement.machine_label, needs, front)
    log_unchecked(checked)
    if checked.problems:
        listed = "".join(f"\n  {problem}" for problem in checked.problems)
        raise InvalidArgument(f"cluster {spec.cluster!r} cannot come up:{listed}")


# ---- ports of this node ---------------------------------------------------------------------


def check_http_place(spec: ClusterSpec) -> None:
    """Raises AlreadyRunning: the HTTP front cannot listen on this node where the spec wants it."""
    if spec.serve is not None and (problem := place_problem(spec.serve.host, spec.serve.port)):
        raise AlreadyRunning(problem)


def place_problem(host: str, port: int) -> str:
    """Why the HTTP front cannot listen there on this node; empty: it can."""
    problem = port_problem(host, port)
    return problem and (
        f"serve.port {port} on {host} cannot be used: {problem}; choose another in "
        "cluster.yaml, or 0 for any free one"
    )


def check_master_ports(state: ClusterState) -> None:
    """Masters keep their addresses: say at once that another program listens on one.

    Raises:
        AlreadyRunning: naming the master, its port and the file that says so.
    """
    for name, address in state.masters.items():
        host, port = split_address(address)
        if problem := port_problem(host, port):
            raise AlreadyRunning(
                f"{name} cannot listen on {address}, which is its address in "
                f"{state.folder / STATE_FILE}: {problem}; end the program that listens there "
                f"(`ss -ltnp 'sport = :{port}'` names it)"
            )
