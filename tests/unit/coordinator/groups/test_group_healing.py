"""Replicas that are lost, damaged or in doubt are replaced: when, in which order and by whom."""

from __future__ import annotations

from stelae.coordinator.decide_groups import Change, Delete, Transfer
from stelae.core.ids import OpId, ServerUuid
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from tests.unit.coordinator.groups.group_world import R, World, changes, grown


def test_a_lost_server_is_replaced_voter_first_and_evicted_after() -> None:
    """3-4-3, each step decided from the configuration committed before."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(29)
    assert changes(world.decide()) == [], "it may come back"
    world.wait(2)
    (change,) = [a for a in world.decide() if isinstance(a, Change)]
    assert (change.leader.name, change.order.kind.value, change.order.uuid) == ("a", "add", "d")
    assert change.order.expected == OpId(0, 0)
    assert (change.order.address, change.order.name) == ("d:1", "d")
    world.reconfigure(tablet, "ABCd", 5)
    world.says("d", tablet, R.COPYING, configuration=None)
    world.beat()
    world.decide()
    assert changes(world.decide()) == [], "it is copied"
    world.reconfigure(tablet, "ABCD", 6)
    world.decide()
    (change,) = [a for a in world.decide() if isinstance(a, Change)]
    assert (change.order.kind.value, change.order.uuid) == ("remove", "c")
    assert change.order.expected == OpId(1, 6)
    world.reconfigure(tablet, "ABD", 7)
    world.decide()
    assert world.decide() == []
    del world.silent["c"]
    world.wait(1)
    (delete,) = world.decide()
    assert isinstance(delete, Delete)
    assert (delete.server.name, delete.order.forever) == ("c", False)


def test_nothing_is_changed_without_a_leader_or_while_a_change_is_under_way() -> None:
    """A change could not be committed, or would be refused."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(40)
    assert changes(world.decide()) == [("a", "add", "d")]
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=word.peers, is_changing=True)
    world.beat()
    assert changes(world.decide()) == []
    world.says("a", tablet, R.CANDIDATE, 2)
    world.beat()
    assert changes(world.decide()) == []


def test_a_former_leader_that_still_reports_is_asked_for_nothing() -> None:
    """A follower of a higher term knows that another leads."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(40)
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says("a", tablet, R.LEADER, 2, leader=ServerUuid("a"), peers=word.peers)
    world.beat()
    assert changes(world.decide()) == [("a", "add", "d")]
    world.says("d", tablet, R.FOLLOWER, 3, leader=ServerUuid("c"))
    world.beat()
    assert changes(world.decide()) == []


def test_a_new_leader_master_waits_as_long_again_before_it_replaces_anybody() -> None:
    """It has not heard the lost server itself."""
    world = World("a", "b", "c", "d")
    grown(world)
    world.silent["c"] = None
    world.wait(25)
    world.liveness.lead(world.now)
    world.wait(25)
    assert changes(world.decide()) == []
    world.wait(6)
    assert changes(world.decide()) == [("a", "add", "d")]


def test_a_broken_replica_is_replaced_at_once_and_on_its_own_server_if_there_is_no_other() -> None:
    """Its server lives and says that the replica is damaged."""
    for names, first in [("abcd", ("a", "add", "d")), ("abc", ("a", "remove", "c"))]:
        world = World(*names)
        tablet = grown(world)
        world.says("c", tablet, R.FAILED)
        world.beat()
        assert changes(world.decide()) == [first]
    world.reconfigure(tablet, "AB", 5)
    world.decide()
    orders = world.decide()
    assert [a.server.name for a in orders if isinstance(a, Delete)] == ["c"]
    assert changes(orders) == [], "not before its replica is a tombstone"
    world.says("c", tablet, R.TOMBSTONE)
    world.beat()
    assert changes(world.decide()) == [("a", "add", "c")]


def test_replacements_of_one_lost_server_are_spread() -> None:
    """Each choice counts for the next one of the same look."""
    world = World("a", "b", "c")
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=4))
    world.decide()
    for tablet in tablets:
        world.form(tablet)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    world.silent["c"] = None
    world.wait(40)
    assert sorted(to for _, _, to in changes(world.decide())) == ["d", "d", "e", "e"]


def test_a_voter_without_rows_does_not_count_as_healthy() -> None:
    """It answers its leader, but has only a tombstone, or nothing: nobody is evicted for it."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.reconfigure(tablet, "ABCD", 5)
    world.says("d", tablet, R.TOMBSTONE)
    world.beat()
    world.decide()
    assert changes(world.decide()) == [("a", "remove", "d")]
    world.says("b", tablet, R.COPYING)
    world.beat()
    assert changes(world.decide()) == [], "two of four are in doubt"
    assert not any(isinstance(a, Transfer) for a in world.decide())


def test_a_replica_that_stays_in_doubt_on_a_live_server_is_replaced_in_the_end() -> None:
    """Ten times as long as for a server that is away, counted anew with each sign of progress."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.says("c", tablet, R.COPYING, copied_bytes=1)
    world.beat()
    for _ in range(290):
        world.wait(1)
        assert changes(world.decide()) == []
    world.says("c", tablet, R.COPYING, copied_bytes=2)
    for _ in range(290):
        world.wait(1)
        assert changes(world.decide()) == []
    for _ in range(20):
        world.wait(1)
        world.decide()
    assert changes(world.decide()) == [("a", "add", "d")]
