"""Where the tablets of a table are, for callers that run next to their rows."""

from __future__ import annotations

from dataclasses import dataclass

from stelae.core.addresses import host_of
from stelae.core.messages.catalog import TabletLocation


@dataclass(frozen=True, slots=True)
class TabletPlace:
    """One tablet of a table, and the nodes that answer for it.

    A node is an address in Ray's network, as ``ray.nodes()`` has it (``NodeManagerAddress``), and
    127.0.0.1 where a cluster is on one machine alone.
    """

    tablet: str
    """Its id."""
    number: int
    """Its number within the table."""
    node: str
    """Where it is served, and written to; empty while nobody serves it."""
    replica_nodes: tuple[str, ...]
    """Where reads with ``max_staleness`` may be answered, by the table's ``replicas(n)``; of other
    tables the same as ``node``."""


def tablet_place(location: TabletLocation) -> TabletPlace:
    """Return the place of one tablet."""
    node = host_of(location.address)
    replicas = [host_of(r.address) for r in location.replicas if r.voter and r.address]
    nodes = tuple(dict.fromkeys(replicas)) if location.tablet.is_group else (node,) * bool(node)
    return TabletPlace(location.tablet.tablet_id, location.tablet.number, node, nodes)
