"""Whether the loss of one machine stops the masters, or tablets with replicas. Pure.

Servers of one group are put on machines of their own while there are enough. Where there are too
few, two are on one: a note says what stops with it, since nothing is wrong otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stelae.client.check.facts import Finding, Severity, StatusFacts
from stelae.core.records.records import ServerKind

MORE_NODES = "give Ray another node, and put a server there: `stelae apply`"


def judge_nodes(status: StatusFacts) -> list[Finding]:
    """Machines that have a majority of the masters, or of the replicas of a tablet.

    Nothing is said of a cluster on one machine alone: it stops with it anyway.
    """
    node_by_uuid = {server.uuid: server.node for server in status.servers}
    there = {server.node for server in status.servers if server.node and server.is_live}
    if len(there) < 2:
        return []
    masters = [s.node for s in status.servers if s.kind == ServerKind.MASTER and s.is_live]
    found = [
        _note("masters", "", f"{count} of {len(masters)} are on {node}: none leads without it")
        for node, count in _majorities(masters)
    ]
    crowded: Counter[tuple[str, str]] = Counter()
    for tablet in status.tablets:
        voters = [r.uuid for r in tablet.replicas or () if r.member == "voter"]
        if len(voters) > 1:
            nodes = [node_by_uuid.get(uuid, "") for uuid in voters]
            crowded.update((tablet.table, node) for node, _ in _majorities(nodes))
    for (table, node), count in sorted(crowded.items()):
        text = f"{count} tablets have most of their replicas on {node}, and stop without it"
        found.append(_note("tablets", f"table {table!r}", text))
    return found


def _majorities(nodes: Iterable[str]) -> list[tuple[str, int]]:
    """Each node without which no majority is left, and its number of members. Of a group of two
    each member is needed, wherever it is: none is named."""
    counts = Counter(nodes)
    total = counts.total()
    majority = total // 2 + 1
    return [(node, n) for node, n in counts.items() if node and total > 2 and total - n < majority]


def _note(section: str, subject: str, text: str) -> Finding:
    return Finding(section, subject, text, Severity.NOTE, MORE_NODES)
