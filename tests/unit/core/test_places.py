"""`stelae.core.places`: which of two places is better for one more copy."""

from __future__ import annotations

import msgspec
import pytest

from stelae.core.ids import Address, ServerUuid
from stelae.core.places import Place
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.runtime import ProcessIdentity

A1, A2, B1 = Place("a1", "a"), Place("a2", "a"), Place("b1", "b")
LONE, OTHER = Place("lone"), Place("other")


@pytest.mark.parametrize(
    ("place", "others", "crowd"),
    [
        (A1, [], (0, 0)),
        (A1, [B1, LONE], (0, 0)),
        (A1, [A2, B1], (0, 1)),
        (A1, [A1, A2], (1, 2)),
        (LONE, [OTHER, A1], (0, 0)),
        (LONE, [LONE], (1, 1)),
        (Place("a"), [A1], (0, 0)),
        (Place("a1", "moved"), [A1], (1, 1)),
    ],
)
def test_a_crowd_is_what_is_on_the_node_and_then_in_the_rack(
    place: Place, others: list[Place], crowd: tuple[int, int]
) -> None:
    """A node without a rack is one by itself, also if a rack is called as it is."""
    assert place.crowd(others) == crowd


def test_units_are_never_taken_for_each_other() -> None:
    """A node may be called as a rack is; a node without a rack is a rack that no other is in."""
    places = [A1, A2, B1, Place("a"), Place("b1 alone"), LONE]
    racks, nodes = ([place.units[n] for place in places] for n in (0, 1))
    assert racks[0] == racks[1]
    assert len(set(racks)) == len(places) - 1
    assert len(set(nodes)) == len(places)
    assert not set(racks) & set(nodes)


def test_a_server_says_its_rack_only_if_it_has_one() -> None:
    """Servers of before read the same bytes, and theirs are read as servers without a rack."""
    process = ProcessIdentity("n", 1, 0.0)
    info = ServerInfo(ServerKind.BACKUP, "b", ServerUuid("u"), 1, Address("b:1"), process)
    plain = msgspec.msgpack.encode(info)
    assert b"rack" not in plain
    assert msgspec.msgpack.decode(plain, type=ServerInfo).place == Place("n")
    racked = msgspec.msgpack.encode(msgspec.structs.replace(info, rack="r"))
    assert msgspec.msgpack.decode(racked, type=ServerInfo).place == Place("n", "r")
