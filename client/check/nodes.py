"""Whether the loss of one machine, or one rack, stops the masters, or tablets with replicas; and
whether there are enough of them for a spread that was asked for. Pure.

Servers of one group are put in racks, and on machines, of their own while there are enough. Where
there are too few, two are in one: a note says what stops with it, since nothing is wrong otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stelae.client.check.facts import Finding, Severity, StatusFacts
from stelae.core.places import Place
from stelae.core.records.records import ServerKind
from stelae.core.schema.durability import Replicas, Wal, media_of, parse_durability

MORE_NODES = "give Ray another node, and put a server there: `stelae apply`"
MORE_RACKS = "give Ray a node in another rack, and put a server there: `stelae apply`"
IN_RACK = "in rack "
NAMED_MAX = 4
"""Tables that a warning names; of others it has the number."""


def judge_nodes(status: StatusFacts) -> list[Finding]:
    """Machines and racks that have a majority of the masters, or of the replicas of a tablet. Of a
    rack one machine of which has it, the machine alone is named.

    Nothing is said of a cluster on one machine alone, nor of the rack of one in one rack: it stops
    with that anyway.
    """
    place_by_uuid = {server.uuid: server.place for server in status.servers}
    there = [server.place for server in status.servers if server.node and server.is_live]
    kinds = [kind for kind in (_nodes, _racks) if len({*kind(there)}) > 1]
    masters = [s.place for s in status.servers if s.kind == ServerKind.MASTER and s.is_live]
    found = [
        _note("masters", "", unit, f"{count} of {len(masters)} are {unit}: none leads without it")
        for unit, count in _majorities(masters, kinds)
    ]
    crowded: Counter[tuple[str, str]] = Counter()
    for tablet in status.tablets:
        voters = [r.uuid for r in tablet.replicas or () if r.member == "voter"]
        if len(voters) > 1:
            places = [place_by_uuid.get(uuid, Place("")) for uuid in voters]
            crowded.update((tablet.table, unit) for unit, _ in _majorities(places, kinds))
    for (table, unit), count in sorted(crowded.items()):
        text = f"{count} tablets have most of their replicas {unit}, and stop without it"
        found.append(_note("tablets", f"table {table!r}", unit, text))
    return found


def _nodes(places: Sequence[Place]) -> list[str]:
    """The machines, as words of a sentence; empty: unknown."""
    return [f"on {place.node}" if place.node else "" for place in places]


def _racks(places: Sequence[Place]) -> list[str]:
    """The racks; a machine without one is known by its own name."""
    return [
        f"{IN_RACK}{p.rack}" if p.rack else one
        for p, one in zip(places, _nodes(places), strict=True)
    ]


def _majorities(
    places: Sequence[Place], kinds: Sequence[Callable[[Sequence[Place]], list[str]]]
) -> list[tuple[str, int]]:
    """Each unit without which no majority is left, and its number of members, of the first kind
    that has one. Of a group of two each member is needed, wherever it is: none is named."""
    total = len(places)
    majority = total // 2 + 1
    for kind in kinds if total > 2 else ():
        counts = Counter(kind(places))
        found = [(unit, n) for unit, n in counts.items() if unit and total - n < majority]
        if found:
            return found
    return []


def _note(section: str, subject: str, unit: str, text: str) -> Finding:
    hint = MORE_RACKS if unit.startswith(IN_RACK) else MORE_NODES
    return Finding(section, subject, text, Severity.NOTE, hint)


def spread_warnings(status: Mapping[str, Any], *, has_racks: bool) -> list[str]:
    """Say where the nodes, or racks, of live servers are too few for each copy to have its own.

    ``status``: a status document, of a cluster whose spec asks for a spread over nodes, and with
    ``has_racks`` over racks.
    """
    live = [each for each in status["servers"] if each["state"] == "live" and each.get("node")]
    nodes = {each["node"] for each in live}
    racks = {each.get("rack") or each["node"] for each in live}
    copies = {
        "masters": sum(each["kind"] == ServerKind.MASTER for each in status["servers"]),
        **{f"table {each['name']!r}": _copies(each["durability"]) for each in status["tables"]},
    }
    on_nodes = {what: count for what, count in copies.items() if count <= len(nodes)}
    kinds = [("nodes", nodes, copies, MORE_NODES)]
    if has_racks:
        kinds.append(("racks", racks, on_nodes, MORE_RACKS))
    return [
        f"servers are on {len(units)} {name}, too few for the copies of {_named(few)} to be on "
        f"different {name}: {way_out}"
        for name, units, wanted, way_out in kinds
        if units and (few := {w: n for w, n in wanted.items() if n > len(units)})
    ]


def _copies(durability: str) -> int:
    """How many servers of one kind have the same rows, or the same log."""
    parsed = parse_durability(durability)
    count = parsed.count if isinstance(parsed, Replicas | Wal) else 0
    return max(count, len(media_of(parsed)))


def _named(few: Mapping[str, int]) -> str:
    shown = [f"{what} ({count})" for what, count in list(few.items())[:NAMED_MAX]]
    more = len(few) - len(shown)
    return ", ".join(shown) + (f" and {more} more tables" if more else "")
