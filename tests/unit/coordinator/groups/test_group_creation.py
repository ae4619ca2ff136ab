"""Tablets with ``replicas(n)`` come to be: where replicas go, and who is told to create them."""

from __future__ import annotations

import pytest

from stelae.coordinator.backoff.owners import FORGOTTEN_AFTER_S
from stelae.coordinator.decide import Replace
from stelae.coordinator.decide_groups import Create, Delete, UpdateGroups
from stelae.coordinator.placement.assignment import check_enough_tservers
from stelae.core.errors import NotEnoughServers, TooFewServers
from stelae.core.ids import OpId, ServerUuid
from stelae.core.messages.servers import Heartbeat
from stelae.core.records.records import TabletRecord, TabletState
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from tests.unit.coordinator.groups.group_world import R, World, grown, server


def test_replicas_of_a_tablet_go_to_different_servers_and_nodes_evenly() -> None:
    """No two replicas on one server; on one node only if there is no other; loads stay even."""
    world = World()
    for name, node in [("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2"), ("e", "n3")]:
        world.liveness.heartbeat(Heartbeat(server(name, node), world.now), world.now)
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=10))
    nodes = {"a": "n1", "b": "n1", "c": "n2", "d": "n2", "e": "n3"}
    count = dict.fromkeys(nodes, 0)
    for tablet in tablets:
        assert tablet.configuration is not None
        assert (tablet.owner, tablet.term, tablet.state) == ("", 0, TabletState.CREATING)
        voters = tablet.configuration.voters
        assert len(set(voters)) == 3
        assert sorted(nodes[v] for v in voters) == ["n1", "n2", "n3"]
        for voter in voters:
            count[voter] += 1
    assert count == {"a": 5, "b": 5, "c": 5, "d": 5, "e": 10}
    assert [world.catalog.count_replicas(ServerUuid(n)) for n in nodes] == [5, 5, 5, 5, 10]
    assert world.catalog.live_count == 10


def test_replicas_of_a_tablet_go_to_different_racks() -> None:
    """Also where servers of one rack are empty and on nodes of their own."""
    world = World()
    racks = {"a": "r", "b": "r", "c": "r", "d": "s", "e": "s", "f": "t"}
    for name, rack in racks.items():
        world.liveness.heartbeat(Heartbeat(server(name, rack=rack), world.now), world.now)
    for tablet in world.create(replicas(3), partitioning=hash_partition("id", buckets=6)):
        assert tablet.configuration is not None
        assert sorted(racks[v] for v in tablet.configuration.voters) == ["r", "s", "t"]
    assert [world.catalog.count_replicas(ServerUuid(n)) for n in racks] == [2, 2, 2, 3, 3, 6]


def test_a_table_with_more_replicas_than_servers_waits_or_is_refused() -> None:
    """Servers that are down may come back; servers that never were will not."""
    world = World("a", "b", "c")
    world.silent["c"] = None
    world.wait(3)
    with pytest.raises(NotEnoughServers, match="3 live tservers, there are 2"):
        world.create(replicas(3))
    known = [seen.server for seen in world.liveness.newest_runs()]
    check_enough_tservers("table 't'", 3, known)
    with pytest.raises(TooFewServers, match="needs 5 tservers; the cluster has 3"):
        check_enough_tservers("table 't'", 5, known)


def test_members_are_told_to_create_until_a_leader_and_a_majority_report() -> None:
    """Level-triggered; the tablet runs once a majority takes part and one of them leads."""
    world = World("a", "b", "c")
    (tablet,) = world.create(replicas(3))
    told = [a.server.name for a in world.decide() if isinstance(a, Create)]
    assert told == ["a", "b", "c"]
    world.says("a", tablet, R.FOLLOWER)
    world.beat()
    orders = [a for a in world.decide() if isinstance(a, Create)]
    assert [order.server.name for order in orders] == ["b", "c"]
    assert orders[0].order.configuration == tablet.configuration
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"))
    world.beat()
    assert not any(isinstance(a, UpdateGroups) for a in world.decide()), "one is no majority"
    world.says("b", tablet, R.FOLLOWER, leader=ServerUuid("a"))
    world.beat()
    assert any(isinstance(a, UpdateGroups) for a in world.decide())
    tablet = world.catalog.tablets[tablet.tablet_id]
    assert tablet.state is TabletState.RUNNING
    assert not any(isinstance(a, Create) for a in world.decide()), "c gets a copy from its leader"


def test_servers_that_have_not_said_what_they_hold_are_not_told_to_create() -> None:
    """A new leader master does not know yet; they will say, or they will be dead."""
    world = World("a", "b", "c")
    world.create(replicas(3))
    world.liveness.lead(world.now)
    assert world.decide() == []
    world.beat("b")
    assert [a.server.name for a in world.decide() if isinstance(a, Create)] == ["b"]


def test_a_tablet_that_finds_no_leader_in_time_is_replaced_by_one_elsewhere() -> None:
    """With a new id and new members; whatever turns up of the old one is deleted for ever."""
    world = World("a", "b", "c", "d", "e")
    (old,) = world.create(replicas(3))
    assert old.configuration is not None
    for name in old.configuration.voters[:2]:
        world.silent[name] = None
    world.decide()
    world.wait(29)
    assert not any(isinstance(a, Replace) for a in world.decide())
    world.wait(2)
    (late,) = [n for n in old.configuration.voters if n not in world.silent]
    world.says(late, old, R.CANDIDATE)
    world.beat()
    assert any(isinstance(a, Replace) for a in world.decide())
    (new,) = world.catalog.tablets_of(old.table_id)
    assert new.tablet_id != old.tablet_id
    assert new.attempt == 1
    assert new.configuration is not None
    assert not any(name in world.silent for name in new.configuration.voters)
    deletes = [a for a in world.decide() if isinstance(a, Delete)]
    assert [(a.server.name, a.order.forever) for a in deletes] == [(late, True)]


def test_a_tablet_with_a_leader_is_never_replaced() -> None:
    """However long its majority takes to report: it may have been written to by then."""
    world = World("a", "b", "c")
    (tablet,) = world.create(replicas(3))
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"))
    world.decide()
    world.wait(300)
    assert not any(isinstance(a, Replace) for a in world.decide())


def test_a_first_member_that_was_away_is_created_later_if_nobody_is_left_to_lead() -> None:
    """It was not there when the tablet was; the second is lost, and the third needs its vote. A
    leader has it copied, who has something, even damaged, is left alone, and so are non-voters."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.reconfigure(tablet, "ABCd", 3)
    world.decide()
    for name in ("c", "d"):
        del world.held[name][tablet.tablet_id]
    world.beat()
    assert not any(isinstance(a, Create) for a in world.decide())
    world.silent["b"] = None
    world.says("a", tablet, R.CANDIDATE, 2)
    world.wait(3)
    (order,) = [a for a in world.decide() if isinstance(a, Create)]
    assert order.server.name == "c"
    assert order.order.configuration.op_id == OpId(0, 0), "the log that comes has what follows"
    configuration = world.catalog.tablets[tablet.tablet_id].configuration
    assert configuration is not None
    assert order.order.configuration.peers == configuration.peers
    world.says("c", tablet, R.FAILED)
    world.beat()
    assert not any(isinstance(a, Create) for a in world.decide())


def test_a_tablet_that_was_not_created_is_created_with_other_members() -> None:
    """Those that did not take part come last, for its replacement's replacement too; if all did,
    and none led, all do: they do not reach each other."""
    world = World("a", "b", "c", "d", "e")
    (tablet,) = world.create(replicas(3))
    first = members(tablet)
    here = first[0]
    world.says(here, tablet, R.CANDIDATE)
    second = replaced(world, tablet)
    assert sorted(members(second)) == sorted({here, *"abcde"} - set(first[1:]))
    for name in members(second):
        world.says(name, second, R.CANDIDATE)
    third = replaced(world, second)
    assert set(first[1:]) < set(members(third)), "their pauses end first"


def test_what_failed_is_remembered_for_as_long_as_a_creation_takes() -> None:
    """Attempts take longer each time, in the end longer than failures are kept otherwise."""
    world = World("a", "b", "c", "d")
    (tablet,) = world.create(replicas(3))
    for _ in range(4):
        tablet = replaced(world, tablet)
    for _ in range(round(FORGOTTEN_AFTER_S) + 160):
        world.wait(1)
        assert not any(isinstance(action, Replace) for action in world.decide())
    assert len(world.pacing.owners.avoid(tablet.tablet_id)) == 4


def members(tablet: TabletRecord) -> list[str]:
    assert tablet.configuration is not None
    return [str(uuid) for uuid in tablet.configuration.voters]


def replaced(world: World, tablet: TabletRecord) -> TabletRecord:
    """The tablet in its place, once it was not created for long enough."""
    for _ in range(1000):
        world.wait(1)
        if any(isinstance(action, Replace) for action in world.decide()):
            gone = world.catalog.tablets[tablet.tablet_id]
            for held in world.held.values():
                held.pop(tablet.tablet_id, None)
            return world.catalog.tablets[gone.replaced_by]
    raise AssertionError("it is not replaced")
