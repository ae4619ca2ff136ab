"""Replicas are deleted: of deleted tables for ever, of former members as their group agreed."""

from __future__ import annotations

import msgspec

from stelae.coordinator.ddl.tables import draft_delete
from stelae.coordinator.decide_groups import Delete
from stelae.coordinator.liveness.standing import standing_of
from stelae.core.ids import ClientId, OpId, RequestId, ServerUuid, TabletId
from tests.unit.coordinator.groups.group_world import R, World, grown


def test_a_deleted_table_is_deleted_for_ever_by_whoever_reports_it() -> None:
    """Tombstones as well, until they are for ever, and are reported no more."""
    world = World("a", "b", "c")
    tablet = grown(world)
    world.liveness.lead(world.now)
    world.beat()
    assert world.decide() == []
    world.put(draft_delete(world.catalog, RequestId(ClientId("c"), 9, 9), tablet.table_id, "t"))
    assert [type(a) for a in world.decide()] == [Delete, Delete, Delete]
    world.says("b", tablet, R.TOMBSTONE)
    world.beat()
    deletes = [a for a in world.decide() if isinstance(a, Delete)]
    assert [(a.server.name, a.order.forever) for a in deletes] == [
        ("a", True),
        ("b", True),
        ("c", True),
    ]
    seen = world.liveness.live_server(ServerUuid("b"), world.now)
    assert seen is not None
    assert standing_of(world.catalog, seen).drop == (tablet.tablet_id,)
    for name in "abc":
        world.held[name].clear()
    world.beat()
    assert world.decide() == []


def test_a_former_member_is_told_to_delete_its_replica_by_the_configuration_agreed_on() -> None:
    """Catalog and leader must agree, and the replica must know nothing newer."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.reconfigure(tablet, "ABD", 7)
    world.decide()
    tablet = world.catalog.tablets[tablet.tablet_id]

    def deletes() -> list[tuple[str, bool, OpId]]:
        found = [a for a in world.decide() if isinstance(a, Delete)]
        return [(a.server.name, a.order.forever, a.order.configuration_id) for a in found]

    assert deletes() == [("c", False, OpId(1, 7))]
    assert tablet.configuration is not None
    newer = msgspec.structs.replace(tablet.configuration, op_id=OpId(1, 3))
    world.says("c", tablet, R.FOLLOWER, configuration=newer)
    world.beat()
    assert deletes() == [("c", False, OpId(1, 7))], "it knows an older one"
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=word.peers, is_changing=True)
    world.beat()
    assert deletes() == [], "a change is under way: it may be added again"
    world.says("a", tablet, R.FOLLOWER)
    world.beat()
    assert deletes() == [], "nobody leads"
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=word.peers)
    world.says("c", tablet, R.TOMBSTONE)
    world.beat()
    assert deletes() == []


def test_replicas_of_unknown_tablets_are_left_alone() -> None:
    """They may belong to another cluster; only what is recorded as deleted is deleted."""
    world = World("a", "b", "c")
    tablet = grown(world)
    stranger = msgspec.structs.replace(tablet, tablet_id=TabletId("stranger"))
    world.says("b", stranger, R.LEADER, leader=ServerUuid("b"))
    world.beat()
    assert world.decide() == []
