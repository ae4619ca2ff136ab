"""`stelae.coordinator.groups.replacements`: how many replicas are made anew at a time, and
where."""

from __future__ import annotations

import pytest

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.operator_orders import draft_move
from stelae.coordinator.decide_groups import Change
from stelae.coordinator.groups.replacements import FIRST_PAUSE_S, Additions
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.operators import MoveReplica
from stelae.core.messages.servers import PeerHealth, ReplicaRole
from stelae.core.records.records import ReplicaMove, TabletRecord
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from tests.unit.coordinator.groups.group_world import World, changes, grown, mark

R = ReplicaRole


def many(world: World, count: int, name: str = "t") -> list[TabletRecord]:
    """A table of so many running tablets; their first voters lead."""
    made = world.create(replicas(3), name, hash_partition("id", buckets=count))
    world.decide()
    return [world.form(tablet) for tablet in made]


def lose(world: World, name: str) -> None:
    world.silent[name] = None
    world.wait(31)


def begun(world: World) -> list[tuple[TabletId, str, str]]:
    """(tablet, leader, target) of each replica that is added now."""
    return [
        (a.order.tablet_id, a.leader.name, str(a.order.uuid))
        for a in world.decide()
        if isinstance(a, Change) and a.order.kind.value == "add"
    ]


def test_no_more_copies_begin_than_servers_receive_and_give_at_a_time() -> None:
    """A hundred tablets of a lost server: two go to each other server; the rest waits its turn,
    and nobody is a member meanwhile who would only wait."""
    world = World("a", "b", "c")
    tablets = many(world, 100)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    lose(world, "c")
    first = begun(world)
    assert sorted(target for _, _, target in first) == ["d", "d", "e", "e"]
    assert begun(world) == first, "the same again, until they are members"
    by_id = {tablet.tablet_id: tablet for tablet in tablets}
    for tablet_id, _, target in first:
        world.reconfigure(by_id[tablet_id], f"ABC{target}", 5, unheard="c")
        world.says(target, by_id[tablet_id], R.COPYING, configuration=None)
    world.beat()
    world.decide()
    assert begun(world) == [], "all hands are full"
    done, _, target = first[0]
    world.reconfigure(by_id[done], f"ABC{target.upper()}", 6, unheard="c")
    world.decide()
    ((following, _, again),) = begun(world)
    assert (following not in [t for t, _, _ in first], again) == (True, target)


def test_an_addition_that_is_under_way_takes_its_turn_and_is_ordered_no_other_way() -> None:
    """Between order and commit nobody is a member yet; the copy will come all the same. An order
    that was lost is given again, to the same server, whatever others carry by then."""
    world = World("a", "b", "c")
    tablets = many(world, 10)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    lose(world, "c")
    first = begun(world)
    by_id = {tablet.tablet_id: tablet for tablet in tablets}
    tablet_id, leader, _ = first[0]
    tablet = by_id[tablet_id]
    peers = (PeerHealth(ServerUuid("b"), True, 1), PeerHealth(ServerUuid("c"), False, 1))
    world.says(leader, tablet, R.LEADER, leader=ServerUuid(leader), peers=peers, is_changing=True)
    world.beat()
    assert begun(world) == first[1:], "nobody takes the place of the one that is on its way"
    assert begun(world) == first[1:]
    world.says(leader, tablet, R.LEADER, leader=ServerUuid(leader), peers=peers)
    world.beat()
    assert sorted(begun(world)) == sorted(first), "it was not committed: the same once more"


def test_a_source_gives_only_so_many_copies_at_a_time() -> None:
    """Ten empty servers could take twenty; the one server that leads all could not give them."""
    world = World("a", "b", "c")
    tablets = many(world, 20)
    world.held |= {name: {} for name in "defghijklm"}
    for tablet in tablets:
        peers = (PeerHealth(ServerUuid("b"), True, 1), PeerHealth(ServerUuid("c"), False, 1))
        world.says("a", tablet, R.LEADER, 2, leader=ServerUuid("a"), peers=peers)
        world.says("b", tablet, R.FOLLOWER, 2, leader=ServerUuid("a"))
    lose(world, "c")
    assert [leader for _, leader, _ in begun(world)] == ["a"] * 4


def test_voters_that_lag_and_are_copied_take_their_turn_from_others() -> None:
    """They are no new members, but receive all the same."""
    world = World("a", "b", "c", "d")
    tablets = many(world, 8)
    there = [
        t for t in tablets if t.configuration is not None and t.configuration.peer(ServerUuid("d"))
    ][:2]
    for tablet in there:
        world.says("d", tablet, R.COPYING, configuration=None)
    lose(world, "c")
    assert all(target != "d" for _, _, target in begun(world))


def test_lost_replicas_are_made_anew_before_others_are_moved() -> None:
    """A server that is left still has its replicas."""
    world = World("a", "b", "c", "d", "e")
    first, *rest = many(world, 6)
    assert first.configuration is not None
    kept = [peer.uuid for peer in first.configuration.peers]
    lost = next(
        peer.uuid
        for tablet in rest
        for peer in (tablet.configuration.peers if tablet.configuration is not None else ())
        if peer.uuid not in kept
    )
    leaving = next(uuid for uuid in kept if uuid != lost)
    lose(world, str(lost))
    mark(world, str(leaving), retiring=True)
    hurt = [
        tablet.tablet_id
        for tablet in rest
        if tablet.configuration is not None and tablet.configuration.peer(lost) is not None
        and tablet.configuration.voters[0] != lost
    ]  # fmt: skip
    order = [tablet_id for tablet_id, _, _ in begun(world)]
    assert order[: len(hurt)] == hurt[: len(order)]
    assert hurt


def test_a_look_counts_the_tablets_of_a_table_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them have to be made anew: the loop of the masters' leader must not stall."""
    world = World("a", "b", "c")
    many(world, 64)
    world.held |= {name: {} for name in "defghijk"}
    world.beat()
    lose(world, "c")
    asked: list[TableId] = []
    real = Catalog.tablets_of

    def counted(catalog: Catalog, table_id: TableId) -> list[TabletRecord]:
        asked.append(table_id)
        return real(catalog, table_id)

    monkeypatch.setattr(Catalog, "tablets_of", counted)
    assert len(begun(world)) == 4
    assert len(asked) == 1


def test_no_replica_goes_where_the_disk_is_full() -> None:
    """As another tablet's replica there says."""
    world = World("a", "b", "c", "d")
    tablets = many(world, 4)
    (hurt, *_) = [
        t
        for t in tablets
        if t.configuration is not None and not t.configuration.peer(ServerUuid("d"))
    ]
    other = next(
        t for t in tablets if t.configuration is not None and t.configuration.peer(ServerUuid("d"))
    )
    world.says("d", other, R.FAILED, no_room=True)
    assert hurt.configuration is not None
    lost = str(hurt.configuration.voters[-1])
    lose(world, lost)
    assert hurt.tablet_id not in [tablet_id for tablet_id, _, _ in begun(world)]
    del world.held["d"][other.tablet_id]
    world.says("d", other, R.FOLLOWER, leader=other.configuration.voters[0])  # type: ignore[union-attr]
    world.beat()
    assert (hurt.tablet_id, "d") in [(tablet_id, to) for tablet_id, _, to in begun(world)]


def fail_addition(world: World, tablet: TabletRecord, target: str, index: int) -> None:
    """It becomes a non-voter, and is let go of again."""
    world.reconfigure(tablet, f"ABC{target}", index, unheard="c")
    world.decide()
    world.reconfigure(tablet, "ABC", index + 1, unheard="c")
    world.held[target].pop(tablet.tablet_id, None)
    world.beat()
    world.decide()


def only_spare_with_a_node() -> tuple[World, dict[TabletId, TabletRecord]]:
    """Eight tablets that lost c. The two other servers are on the nodes of a and b, and d alone is
    on a node of its own: there two copies begin, and fail."""
    world = World("a", "b", "c")
    world.nodes = {"e": "a", "f": "b"}
    by_id = {tablet.tablet_id: tablet for tablet in many(world, 8)}
    for tablet in list(by_id.values())[::2]:  # each of a and b gives copies
        world.reconfigure(tablet, "BAC", 2)
    world.decide()
    world.held |= {"d": {}, "e": {}, "f": {}}
    world.beat()
    lose(world, "c")
    assert [target for _, _, target in begun(world)] == ["d", "d"], "the rest waits for this node"
    return world, by_id


def test_no_tablet_waits_for_its_turn_at_a_server_that_finishes_no_copy() -> None:
    """It is the only one on another node, so it is the best for each. Two at a time would try it
    for minutes each, and the rest be short of a replica meanwhile."""
    world, by_id = only_spare_with_a_node()
    for tablet_id, _, target in begun(world):
        fail_addition(world, by_id[tablet_id], target, 5)
    targets = [target for _, _, target in begun(world)]
    assert sorted(targets) == ["d", "d", "e", "e", "f", "f"], "others try it once, two at a time"


def test_a_tablet_waits_for_its_turn_at_a_server_that_finishes_copies() -> None:
    """One failure says nothing of the server, and a success ends all doubt."""
    world, by_id = only_spare_with_a_node()
    (one, _, _), (other, _, _) = begun(world)
    fail_addition(world, by_id[one], "d", 5)
    third = next(tablet_id for tablet_id, _, _ in begun(world) if tablet_id not in (one, other))
    world.reconfigure(by_id[other], "ABCd", 5, unheard="c")
    world.decide()
    world.reconfigure(by_id[other], "ABCD", 6, unheard="c")
    world.decide()
    fail_addition(world, by_id[third], "d", 7)
    targets = [target for i, _, target in begun(world) if i not in (one, third)]
    assert targets == ["d", "d"]


# ---- moves ------------------------------------------------------------------------------------


def moving(*names: str) -> tuple[World, TabletRecord]:
    """A tablet on a, b, c, whose replica on c is to go to e."""
    world = World(*names)
    tablet = grown(world)
    order = MoveReplica(world.request(), tablet.tablet_id, "c", "e")
    world.put(draft_move(world.catalog, world.liveness, order, world.now))
    return world, tablet


def test_a_move_waits_for_the_server_that_was_named_and_takes_no_other() -> None:
    """Away for a moment, or in maintenance: nothing goes to a third server."""
    world, tablet = moving("a", "b", "c", "d", "e")
    world.silent["e"] = None
    world.wait(10)
    assert changes(world.decide()) == []
    del world.silent["e"]
    world.wait(1)
    assert changes(world.decide()) == [("a", "add", "e")]
    mark(world, "e", maintenance=True)
    assert changes(world.decide()) == []
    world.wait(300)
    assert changes(world.decide()) == []
    assert world.catalog.tablets[tablet.tablet_id].move is not None
    mark(world, "e", maintenance=False)
    assert changes(world.decide()) == [("a", "add", "e")]


@pytest.mark.parametrize("what", ["lost", "retiring", "broken"])
def test_a_move_to_a_server_that_cannot_have_it_is_given_up(what: str) -> None:
    """It is not made on another instead; whoever ordered it is told that it was given up."""
    world, tablet = moving("a", "b", "c", "d", "e")
    if what == "lost":
        world.silent["e"] = None
        world.wait(31)
    elif what == "retiring":
        mark(world, "e", retiring=True)
    else:
        world.says("e", tablet, R.FAILED)
        world.beat()
    assert changes(world.decide()) == []
    record = world.catalog.tablets[tablet.tablet_id]
    assert record.move is None
    assert record.configuration is not None
    assert record.configuration.peer(ServerUuid("c")) is not None
    assert changes(world.decide()) == []


def test_a_move_whose_target_is_a_member_already_goes_on_though_it_is_away() -> None:
    """A learner that is lost is let go first, and the move given up with it."""
    world, tablet = moving("a", "b", "c", "d", "e")
    world.reconfigure(tablet, "ABCe", 5)
    world.decide()
    world.silent["e"] = None
    world.wait(10)
    world.decide()
    assert world.catalog.tablets[tablet.tablet_id].move is not None
    world.wait(21)
    assert changes(world.decide()) == [("a", "remove", "e")]
    world.reconfigure(tablet, "ABC", 6)
    world.decide()
    assert world.catalog.tablets[tablet.tablet_id].move is None
    assert changes(world.decide()) == []


def test_a_lost_voter_is_replaced_while_a_move_waits() -> None:
    """Healing does not wait for the server that a move was ordered to."""
    world, _ = moving("a", "b", "c", "d", "e")
    mark(world, "e", maintenance=True)
    world.silent["b"] = None
    world.wait(31)
    assert changes(world.decide()) == [("a", "add", "d")]


def test_nothing_is_moved_to_a_server_that_is_to_be_left_or_looked_after() -> None:
    """The order is refused, with the reason."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)

    def draft() -> CatalogBatch | None:
        order = MoveReplica(world.request(), tablet.tablet_id, "c", "d")
        return draft_move(world.catalog, world.liveness, order, world.now)

    mark(world, "d", retiring=True)
    with pytest.raises(InvalidArgument, match="d is being retired"):
        draft()
    mark(world, "d", retiring=False, maintenance=True)
    with pytest.raises(InvalidArgument, match="d is in maintenance"):
        draft()
    mark(world, "d", maintenance=False)
    assert draft() is not None


def test_a_server_that_was_added_in_vain_comes_last_and_after_a_pause() -> None:
    """A choice is deterministic: without a memory the same server would be tried for ever."""
    world = World("a", "b", "c")
    (tablet,) = many(world, 1)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    lose(world, "c")
    tried = []
    for index in (5, 7):
        ((_, _, target),) = begun(world)
        tried.append(target)
        world.reconfigure(tablet, f"ABC{target}", index, unheard="c")
        world.decide()
        world.reconfigure(tablet, "ABC", index + 1, unheard="c")
        world.decide()
    assert sorted(tried) == ["d", "e"]
    assert begun(world) == [], "both have failed a moment ago"
    world.wait(FIRST_PAUSE_S + 1)
    ((_, _, again),) = begun(world)
    assert again in tried
    world.reconfigure(tablet, f"ABC{again}", 9, unheard="c")
    world.decide()
    world.reconfigure(tablet, "ABC", 10, unheard="c")
    world.decide()
    ((_, _, other),) = begun(world)
    assert other != again, "its second pause is longer"


def test_an_addition_that_was_over_between_two_looks_counts_as_failed() -> None:
    """It was ordered; by the next look the members have changed, and it is none of them."""
    world = World("a", "b", "c")
    (tablet,) = many(world, 1)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    lose(world, "c")
    ((_, _, target),) = begun(world)
    world.reconfigure(tablet, "ABC", 7, unheard="c")
    world.decide()
    ((_, _, other),) = begun(world)
    assert other != target


def test_a_server_that_became_a_voter_has_not_failed() -> None:
    """What was held against it is forgotten."""
    world = World("a", "b", "c")
    (tablet,) = many(world, 1)
    world.held["d"] = {}
    world.beat()
    lose(world, "c")
    ((_, _, target),) = begun(world)
    world.reconfigure(tablet, f"ABC{target}", 5, unheard="c")
    world.decide()
    world.reconfigure(tablet, f"ABC{target.upper()}", 6, unheard="c")
    world.decide()
    assert world.pacing.additions.failed(tablet.tablet_id) == {}


def test_a_learner_that_nobody_needs_any_more_has_not_failed() -> None:
    """The lost voter came back, and the masters let the learner go: the next loss is healed at
    once, however often that happens."""
    world = World("a", "b", "c")
    (tablet,) = many(world, 1)
    world.held["d"] = {}
    world.beat()
    for index in (5, 7, 9):
        lose(world, "c")
        ((_, _, target),) = begun(world)
        world.reconfigure(tablet, f"ABC{target}", index, unheard="c")
        world.decide()
        del world.silent["c"]
        world.reconfigure(tablet, f"ABC{target}", index)
        world.wait(1)
        assert ("a", "remove", "d") in changes(world.decide())
        world.reconfigure(tablet, "ABC", index + 1)
        world.decide()
        assert world.pacing.additions.failed(tablet.tablet_id) == {}


def test_a_move_whose_target_was_added_in_vain_is_given_up_and_made_elsewhere() -> None:
    """The same target is the best for evenness each time. Another tablet may still go there; once
    that has failed as well, the server leaves its turn to others."""
    world = World("a", "b", "c")
    many(world, 4)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    world.rebalance_after_s = 20.0
    moves = []
    for index in range(5, 13, 2):
        moved = until_move(world)
        assert moved.move is not None
        moves.append((moved.tablet_id, moved.move.target))
        target = moved.move.target
        assert ("a", "add", target) in changes(world.decide())
        world.reconfigure(moved, f"ABC{target}", index)
        world.decide()
        world.reconfigure(moved, "ABC", index + 1)
        del world.held[target][moved.tablet_id]
        world.beat()
        world.decide()
        assert world.catalog.tablets[moved.tablet_id].move is None
    assert len(dict.fromkeys(moves)) == len(moves)
    assert [target for _, target in moves] == ["d", "d", "e", "e"]


def test_operators_may_have_a_move_tried_again_at_once() -> None:
    """What failed before the move was ordered is no reason to give it up."""
    additions, group = Additions(), TabletId("t")
    move = ReplicaMove(ServerUuid("a"), ServerUuid("d"))
    additions._failed(group, move.target, 100.0)
    assert not additions.is_vain(group, move)
    additions.end_of_look(100.0)
    additions._failed(group, move.target, 101.0)
    assert additions.is_vain(group, move)


def until_move(world: World) -> TabletRecord:
    for _ in range(60):
        world.wait(1)
        world.decide()
        found = [tablet for tablet in world.catalog.groups() if tablet.move is not None]
        if found:
            return found[0]
    raise AssertionError("nothing moves")
