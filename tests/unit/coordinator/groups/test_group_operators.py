"""What operators order of servers with replicas: retiring, maintenance, moves of a replica."""

from __future__ import annotations

import msgspec
import pytest

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.operator_orders import draft_move, find_tserver, progress_of
from stelae.coordinator.decide_groups import Transfer
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid
from stelae.core.messages.operators import MoveReplica
from stelae.core.messages.servers import Heartbeat
from stelae.core.schema.durability import replicas
from tests.unit.coordinator.groups.group_world import World, changes, grown, mark, server


def test_a_retiring_server_is_replaced_before_it_is_left_and_gets_nothing_new() -> None:
    """Also if it leads: it hands on once its replacement votes; nothing of it is left then."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    mark(world, "a", retiring=True)
    assert changes(world.decide()) == [("a", "add", "d")]
    world.reconfigure(tablet, "ABCD", 5)
    world.decide()
    (transfer,) = world.decide()
    assert isinstance(transfer, Transfer)
    assert (transfer.leader.name, transfer.order.target) == ("a", "b")
    world.reconfigure(tablet, "BACD", 6)
    world.decide()
    assert changes(world.decide()) == [("b", "remove", "a")]
    assert progress_of(world.catalog, world.liveness, "a", world.now).replicas == 1
    world.reconfigure(tablet, "BCD", 7)
    world.decide()
    assert progress_of(world.catalog, world.liveness, "a", world.now).replicas == 0
    world.create(replicas(3), name="u")
    assert world.catalog.count_replicas(ServerUuid("a")) == 0
    mark(world, "a", retiring=False)
    copy = Catalog()
    copy.restore(world.catalog.snapshot())
    assert copy.marks == world.catalog.marks


def test_a_server_in_maintenance_leads_nothing_and_is_not_replaced_while_away() -> None:
    """Until the mark is taken back: then its absence counts as that of any other."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    mark(world, "a", maintenance=True)
    (transfer,) = world.decide()
    assert isinstance(transfer, Transfer)
    world.reconfigure(tablet, "BAC", 5)
    world.decide()
    assert world.decide() == []
    world.silent["a"] = None
    world.wait(300)
    assert changes(world.decide()) == []
    mark(world, "a", maintenance=False)
    assert changes(world.decide()) == [("b", "add", "d")]


def test_a_server_that_comes_back_from_maintenance_without_its_disk_is_replaced() -> None:
    """It is another one, of the same name; nobody needs to wait for the one that it was."""
    world = World("a", "b", "c")
    tablet = grown(world)
    world.reconfigure(tablet, "BAC", 5)
    world.decide()
    mark(world, "a", maintenance=True)
    world.silent["a"] = None
    world.wait(300)
    assert changes(world.decide()) == []
    world.held["a~2"] = {}
    world.wait(5)
    assert changes(world.decide()) == [("b", "add", "a~2")]


def test_a_replica_is_moved_to_the_server_named_and_the_move_ends() -> None:
    """Target first, then the source goes; orders repeated change nothing, and may be given up."""
    world = World("a", "b", "c", "d", "e")
    tablet = grown(world)

    def draft(source: str, target: str) -> CatalogBatch | None:
        order = MoveReplica(world.request(), tablet.tablet_id, source, target)
        return draft_move(world.catalog, world.liveness, order, world.now)

    def put(source: str, target: str, *, is_news: bool = True) -> None:
        batch = draft(source, target)
        assert batch is not None
        assert bool(batch.tablets) is is_news
        world.put(batch)

    put("c", "e")
    put("c", "e", is_news=False)
    with pytest.raises(InvalidArgument, match="another replica"):
        draft("b", "d")
    assert changes(world.decide()) == [("a", "add", "e")]
    with pytest.raises(InvalidArgument, match="moves from b"):
        draft("b", "")
    put("c", "")
    assert world.decide() == []
    put("c", "", is_news=False)
    put("", "", is_news=False)
    put("c", "e")
    put("", "")
    assert world.catalog.tablets[tablet.tablet_id].move is None
    put("c", "e")
    world.reconfigure(tablet, "ABCe", 5)
    world.decide()
    put("", "")
    assert changes(world.decide()) == [("a", "remove", "e")], "what was copied is let go of"
    world.reconfigure(tablet, "ABC", 6)
    world.decide()
    put("c", "e")
    world.reconfigure(tablet, "ABCE", 7)
    world.decide()
    assert changes(world.decide()) == [("a", "remove", "c")]
    world.reconfigure(tablet, "ABE", 8)
    world.decide()
    assert world.catalog.tablets[tablet.tablet_id].move is None
    put("c", "e", is_news=False)
    for source, target, why in [
        ("c", "d", "c has no replica"),
        ("a", "b", "b has a replica"),
        ("a", "x", "no tserver"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            draft(source, target)


def test_a_tserver_is_named_by_its_uuid_where_its_name_is_not_enough() -> None:
    """A server with a new disk has the name of its old self; whoever lives is meant."""
    world = World("a", "b")
    twin = msgspec.structs.replace(server("a"), uuid=ServerUuid("a2"))
    world.liveness.heartbeat(Heartbeat(twin, world.now), world.now)
    with pytest.raises(InvalidArgument, match="2 tservers: name one by its UUID: a, a2"):
        find_tserver(world.catalog, world.liveness, "a", world.now)
    assert find_tserver(world.catalog, world.liveness, "a2", world.now).uuid == "a2"
    world.silent["a"] = None
    world.wait(1.5)
    world.liveness.heartbeat(Heartbeat(twin, world.now), world.now)
    world.wait(1)
    assert find_tserver(world.catalog, world.liveness, "a", world.now).uuid == "a2"
