"""The nodes of a world over which its servers are spread, and which of them have no power.

The rule of spreading is that of ``stelae.deploy.machines.assigned``: where the fewest servers of a
kind are, on the node and then in its rack, then the fewest in all. It is repeated here, since the
simulator lies below ``deploy`` and knows nothing of Ray.

Ports of a node are few and are drawn with each start, and a node that comes back draws its address
among those that no other node has. So the address of a server soon belongs to another one, on the
same node or on another.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

from stelae.core.places import Place
from stelae.simulation.world.node import Node

FIRST_PORT = 7001
FORMER = "former"
"""Kind of a server that was started elsewhere, and is started on its former disk as well."""
SPARE_PORTS = 1
"""Number of ports of a node that none of its servers needs."""
SPARE_HOSTS = 1
"""Number of addresses that no node has."""


class Machines:
    """Chooses the node of each new server, and the address of each new process.

    Args:
        count: number of nodes; 0: servers are not spread, and have their own addresses.
        racks: the rack of each node, where they have some; empty: it has none.
    """

    def __init__(self, count: int, rng: random.Random, racks: Sequence[str] = ()) -> None:
        self.names = [f"node-{number}" for number in range(1, count + 1)]
        self.racks = {name: rack for name, rack in zip(self.names, racks, strict=False) if rack}
        self.down: dict[str, tuple[list[str], list[str]]] = {}
        """Nodes without power: the names of their servers, and those that cannot reach them."""
        self.waiting: dict[str, None] = {}
        """Servers to be started once their node has power."""
        self._rng = rng
        self._hosts = {name: f"host-{number}" for number, name in enumerate(self.names, 1)}

    def choose(self, kind: str, nodes: Iterable[Node]) -> str:
        """Choose the node of a new server, among those that have power."""
        there = [node for node in nodes if node.kind not in ("zombie", FORMER)]
        kinds = [self.place(node.machine) for node in there if node.kind == kind]
        every = [self.place(node.machine) for node in there]
        up = [self.place(name) for name in self.names if name not in self.down]
        return min(up, key=lambda each: (each.crowd(kinds), each.crowd(every), each.node)).node

    def place(self, machine: str) -> Place:
        """A node, and its rack."""
        return Place(machine, self.racks.get(machine, ""))

    def draw_host(self, machine: str) -> None:
        """Give a node that has power again an address that no other node has."""
        hosts = [f"host-{number}" for number in range(1, len(self.names) + SPARE_HOSTS + 1)]
        taken = {host for name, host in self._hosts.items() if name != machine}
        self._hosts[machine] = self._rng.choice([host for host in hosts if host not in taken])

    def move_address(self, node: Node, nodes: Collection[Node]) -> None:
        """Give the next process of ``node`` an address that no running process of its node has."""
        there = [other for other in nodes if other.machine == node.machine]
        taken = {other.port for other in there if other.running and not other.fixed_port}
        ports = range(FIRST_PORT, FIRST_PORT + len(there) + SPARE_PORTS)
        node.host = self._hosts[node.machine]
        node.port = self._rng.choice([port for port in ports if port not in taken])
