"""Where a server runs: what it shares with others, and loses together with them.

Copies of one thing are kept apart by one rule: on the node with the fewest copies, and of such
nodes in the rack with the fewest. So no two are on one node while another is free, and no two in
one rack while another is free; with fewer of both than copies, some share. Design §12;
decisions §70.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Place(NamedTuple):
    """A node, and the rack that it is in. A node without a rack is a rack of its own."""

    node: str
    rack: str = ""

    @property
    def units(self) -> tuple[str, str]:
        """Its rack and its node, as names that are never the same: what fails as one."""
        node = f"node {self.node}"
        return (f"rack {self.rack}" if self.rack else f"{node}, a rack"), node

    def crowd(self, others: Iterable[Place]) -> tuple[int, int]:
        """Count those of ``others`` on this node, and those in this rack. Of two places the one
        with the smaller crowd is better: a rack without any has a node without any."""
        on_node = in_rack = 0
        for other in others:
            is_here = other.node == self.node
            on_node += is_here
            in_rack += is_here or (self.rack != "" and other.rack == self.rack)
        return on_node, in_rack
