"""Successions near the limit of memory: where a successor is made, when it is given up, and what
waits for what."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stelae.coordinator.backoff.successions import (
    FIRST_PAUSE_S,
    IDLE_S,
    LONGEST_PAUSE_S,
    STUCK_S,
    SuccessionPacing,
)
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.ddl.alter import problem_of
from stelae.coordinator.ddl.succession import (
    SUCCESSIONS_MAX,
    BeginSuccession,
    GiveUpSuccessor,
    OrderTransfer,
    draft_begin,
    draft_give_up,
)
from stelae.coordinator.ddl.successor_rooms import holders_of
from stelae.coordinator.ddl.tables import draft_replace
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import ReplicaRole
from stelae.core.records.records import TabletState
from stelae.core.records.succession import SuccessionStage
from stelae.core.schema.durability import Durability, replicas, segments, wal
from tests.unit.coordinator.ddl.succession_world import CLOSED, OPEN, World, kinds, server

T0, T1, T2 = TabletId("t0"), TabletId("t1"), TabletId("t2")
TWO = segments("disk", "disk")
HOLDER = (server("s4"),)
REFUSED: dict[str, Any] = {"lacks_room": True, "problem": "s4 is full"}


def full_world(wanted: Durability = TWO, **used: int) -> World:
    """Each server has 1000 bytes, of which 900 are for copies; each tablet has 300 that live."""
    world = World()
    world.limit_bytes = 1000
    world.rows = dict.fromkeys((T0, T1, T2), (300, 300, 0))
    world.used = {"s1": 800, "s2": 800, "s3": 800, "s4": 0, **used}
    world.alter(wanted)
    return world


def begun(world: World) -> dict[TabletId, list[str]]:
    return {
        action.tablet.tablet_id: [server.name for server in action.holders]
        for action in world.actions()
        if isinstance(action, BeginSuccession)
    }


# ---- where --------------------------------------------------------------------------------------


def test_a_successor_is_made_where_there_is_most_room() -> None:
    """And only where there is enough, beside the reserve, and beside those of the same look."""
    assert begun(full_world(s2=100, s4=200)) == {T0: ["s2"], T1: ["s4"]}
    assert begun(full_world(s4=0)) == {T0: ["s4"], T1: ["s4"]}
    assert begun(full_world(s4=300)) == {T0: ["s4"], T1: ["s4"]}
    assert begun(full_world(s4=301)) == {T0: ["s4"]}
    assert begun(full_world(s4=601)) == {}


def test_dead_rows_are_room_and_rows_to_be_loaded_are_none() -> None:
    """The cleaner drops the former when it must; the latter come whoever else does."""
    world = full_world(s4=700)
    assert begun(world) == {}
    world.rows[T0] = (700, 200, 0)  # at s1, which so has 900 - (800 - 500) left
    assert begun(world) == {T0: ["s1"], T1: ["s1"]}
    world.rows[T0] = (700, 200, 200)
    assert begun(world) == {T1: ["s1"]}, "and it is not to be copied yet itself"


def test_what_successors_have_still_to_get_is_no_room_for_others() -> None:
    """Of those that were begun before: what their sources have and they have not."""
    world = full_world(s4=250)
    world.begin()
    assert len(world.catalog.successors()) == SUCCESSIONS_MAX
    world.rows[world.successor(0).tablet_id] = world.rows[T0]
    world.used["s4"] += 300
    world.say(0, CLOSED)
    world.swap()
    assert begun(world) == {}, "50 bytes are left, once the second one is here"
    world.used["s3"] = 500
    assert begun(world) == {T2: ["s3"]}


def test_each_replica_needs_the_memory() -> None:
    """As many servers have to have it as there are replicas."""
    world = full_world(replicas(3), s3=100)
    assert begun(world) == {}
    assert "at each of 3 servers" in world.waits[T0]
    assert "only 2 have them free" in world.waits[T0]
    world.used["s2"] = 600
    assert {name: sorted(at) for name, at in begun(world).items()} == {T0: ["s2", "s3", "s4"]}


def test_it_is_said_which_tablet_needs_how_much_and_what_helps() -> None:
    """To whoever asks whether the alter is done; nothing once it goes on."""
    world = full_world(s4=700)
    assert world.actions() == []
    said = problem_of(world.catalog, world.table, world.waits)
    assert "tablet t0 (number 0 of table 't') needs 300 bytes of memory" in said
    assert "no server has them free (most, 200, has s4): add tservers" in said
    world.used["s4"] = 0
    assert begun(world) == {T0: ["s4"], T1: ["s4"]}
    assert problem_of(world.catalog, world.table, world.waits) == ""


def test_too_few_servers_are_said_to_be_too_few() -> None:
    """That is another way out than more memory."""
    world = full_world(replicas(3))
    world.servers = 2
    assert world.actions() == []
    assert "needs 3 live tservers, there are 2" in world.waits[T0]


# ---- what is stuck ------------------------------------------------------------------------------


def give_up(world: World) -> GiveUpSuccessor:
    (found,) = [a for a in world.actions() if isinstance(a, GiveUpSuccessor)]
    world.put(draft_give_up(world.catalog, found))
    return found


def test_a_successor_that_takes_no_more_rows_is_given_up_and_made_again_later() -> None:
    """Only after a while, and only while it goes on; elsewhere if there is room; ever later."""
    world = full_world(s3=100)
    world.begin()
    former = world.successor(0)
    world.say(0, OPEN, **REFUSED)
    assert "GiveUpSuccessor" not in kinds(world.wait(STUCK_S - 1))
    assert "s4 is full" in problem_of(world.catalog, world.table, world.waits)
    world.say(0, OPEN)
    world.actions()
    world.say(0, OPEN, **REFUSED)
    world.actions()
    assert "GiveUpSuccessor" not in kinds(world.wait(STUCK_S - 1)), "it took some meanwhile"
    world.wait(1)
    assert "GiveUpSuccessor" in kinds(world.actions())
    assert give_up(world).successor == former
    assert world.catalog.tablets[former.tablet_id].state is TabletState.REPLACED
    release = [a for a in world.actions() if isinstance(a, OrderTransfer) and a.order.release]
    assert [a.order.release for a in release] == [former.tablet_id]
    assert T0 not in begun(world)
    assert "tried again in 10 s" in world.waits[T0]
    world.wait(FIRST_PAUSE_S - 1)
    assert T0 not in begun(world)
    world.wait(1)
    assert begun(world)[T0] != [former.owner], "the other one has less room, but took rows"


def test_pauses_grow_up_to_a_bound_and_each_refusal_counts_once() -> None:
    """However often the same one is seen before the catalog says that it is given up."""
    pacing, now = SuccessionPacing(), 0.0
    pauses = []
    for number in range(8):
        successor = TabletId(f"s{number}")
        for _ in range(3):
            pacing.refuse(T0, successor, (ServerUuid("s1"),), "full", now)
        refused = pacing.refused(T0)
        assert refused is not None
        pauses.append(refused.until - now)
        now = refused.until
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S
    pacing.begin_look([T0], [], now)
    assert pacing.refused(T0) is not None
    pacing.begin_look([], [], now)
    assert pacing.refused(T0) is None, "it has changed, or has not to any more"


def test_who_may_be_swapped_in_is_not_given_up_for_want_of_room() -> None:
    """It has everything: what was refused before is no matter."""
    world = full_world(s3=100)
    world.begin()
    world.say(0, CLOSED, **REFUSED)
    world.wait(2 * STUCK_S)
    assert "Swap" in kinds(world.actions())
    assert "GiveUpSuccessor" not in kinds(world.actions())


def test_sources_that_load_their_rows_take_no_turns() -> None:
    """Nothing is begun for them; of those begun before others have the turns, to a bound; and they
    are given up after a while, as the source may lack the very memory that they have."""
    world = World()
    world.rows = {T0: (0, 0, 500)}
    world.alter(TWO)
    assert list(begun(world)) == [T1, T2]
    assert "still loading its rows" in world.waits[T0]
    world.begin()
    assert begun(world) == {}
    world.rows[T1] = (0, 0, 500)
    assert begun(world) == {}, "it is loading itself"
    world.rows[T0] = (0, 0, 0)
    assert begun(world) == {}, "it may be over in a moment"
    world.wait(IDLE_S)
    assert list(begun(world)) == [T0]
    world.begin()
    world.wait(STUCK_S - IDLE_S)
    former = world.successor(1)
    assert give_up(world).successor == former
    assert world.catalog.successor_of(T1) is None
    world.say(0, CLOSED)
    world.swap()
    assert begun(world) == {}
    world.rows[T1] = (0, 0, 0)
    assert begun(world) == {}, "not at once: it was given up a moment ago"
    world.wait(FIRST_PAUSE_S)
    assert list(begun(world)) == [T1]


def test_a_stuck_table_does_not_keep_others_from_their_turns() -> None:
    """What has no room is passed over, however many there are."""
    world = full_world(s4=700)
    world.rows[T2] = (100, 100, 0)
    assert begun(world) == {T2: ["s4"]}
    for action in world.actions():
        if isinstance(action, BeginSuccession):
            world.put(draft_begin(world.catalog, action, world.rng))
    assert [each.succeeds for each in world.catalog.successors()] == [T2]


@pytest.mark.parametrize("what", ["a source that nobody serves", "recovering", "creating"])
def test_who_is_away_for_long_holds_up_nobody(what: str) -> None:
    """Its turn goes to others, and what was copied is given up."""
    world = World()
    world.alter(TWO)
    world.begin()
    former = world.successor(0)
    if what == "a source that nobody serves":
        world.away[T0] = None
    else:
        world.change(former, state=TabletState(what))
    assert begun(world) == {}
    world.wait(IDLE_S)
    assert list(begun(world)) == [T2]
    world.wait(STUCK_S - IDLE_S)
    assert give_up(world).successor.tablet_id == former.tablet_id
    assert len(world.catalog.successors()) == 1


def test_a_successor_that_is_created_slowly_gets_more_time_each_time() -> None:
    """Also if another one has taken its place meanwhile: what counts is that there is none."""
    world = World()
    world.alter(TWO)
    world.begin()
    patience_s = STUCK_S
    for _ in range(3):
        world.change(world.successor(0), state=TabletState.CREATING)
        world.actions()
        world.wait(patience_s / 2)
        world.put(draft_replace(world.catalog, [world.successor(0)], [HOLDER], world.rng))
        assert "GiveUpSuccessor" not in kinds(world.wait(patience_s / 2 - 1))
        world.wait(1)
        give_up(world)
        patience_s *= 2
        world.wait(LONGEST_PAUSE_S)
        world.begin()


def test_turns_that_are_left_to_others_are_bounded() -> None:
    """Each that is stuck has some memory, so that ever more of them would fill the servers."""
    world = World()
    more = [
        msgspec.structs.replace(world.tablet(0), tablet_id=f"t{n}", number=n) for n in range(3, 9)
    ]
    world.put(CatalogBatch(tables=(), tablets=tuple(more)))
    world.alter(TWO)
    for _ in range(5):
        world.begin()
        for tablet in world.catalog.tablets_of(world.table.table_id):
            if world.catalog.successor_of(tablet.tablet_id) is not None:
                world.away[tablet.tablet_id] = None
        world.wait(IDLE_S)
    assert len(world.catalog.successors()) == 2 * SUCCESSIONS_MAX


def test_a_fenced_source_may_lose_its_successor_as_well() -> None:
    """The masters' word opens it, as with any that is given up."""
    world = full_world(s3=100)
    world.begin()
    world.say(0, SuccessionStage.FENCED, **REFUSED)
    world.wait(STUCK_S + 1)
    assert give_up(world).successor.succeeds == T0


def test_every_server_that_refused_a_successor_comes_last_for_the_next() -> None:
    """Not only the last one: two servers that take no rows would else take turns for ever."""
    world = full_world(s2=0, s3=50, s4=100)
    tried = []
    for _ in range(3):
        while T0 not in begun(world):
            world.wait(1)
        world.begin()
        tried.append(world.successor(0).owner)
        world.say(0, OPEN, **REFUSED)
        while "GiveUpSuccessor" not in kinds(world.actions()):
            world.wait(1)
        give_up(world)
    assert sorted(tried) == ["s2", "s3", "s4"]


@pytest.mark.parametrize("taking_part", [0, 1, 2, 3])
def test_only_members_that_took_no_part_are_to_blame_for_a_group_without_a_leader(
    taking_part: int,
) -> None:
    """The others come first for the next group; if all took part, they do not reach each other."""
    world = full_world(replicas(3), s2=0, s3=0)
    world.begin()
    successor, source = world.successor(0), world.tablet(0).tablet_id
    world.change(successor, state=TabletState.CREATING)
    names = [str(uuid) for uuid in holders_of(successor)]
    roles = [ReplicaRole.CANDIDATE] * taking_part + [ReplicaRole.FAILED]
    world.replicas[successor.tablet_id] = [
        world.replica(name, successor, role) for name, role in zip(names, roles, strict=False)
    ]
    while "GiveUpSuccessor" not in kinds(world.actions()):
        world.wait(1)
    give_up(world)
    blamed = list(world.pacing.successions.targets.avoid(source))
    assert blamed == (names[taking_part:] or names)


def test_safekeepers_without_which_a_successor_is_stuck_are_chosen_last_for_the_next() -> None:
    """Its owner says that it does not reach them."""
    world = full_world(wal(3, ["disk"]), s3=0)
    world.begin()
    world.change(world.successor(0), state=TabletState.CREATING)
    world.unreached = (ServerUuid("k1"), ServerUuid("k2"))
    while "GiveUpSuccessor" not in kinds(world.actions()):
        world.wait(1)
    owner = give_up(world).successor.owner
    world.unreached = ()
    while T0 not in begun(world):
        world.wait(1)
    assert set(world.avoided[0]) == {owner, "k1", "k2"}


def test_a_source_that_loads_is_no_fault_of_its_successors_server() -> None:
    """Another one would have waited as long."""
    world = full_world(s3=100)
    world.begin()
    source = world.successor(0).succeeds
    world.change(world.successor(0), state=TabletState.CREATING)
    world.rows[T0] = (700, 200, 200)
    while "GiveUpSuccessor" not in kinds(world.actions()):
        world.wait(1)
    give_up(world)
    assert world.pacing.successions.refused(source) is not None
    assert not world.pacing.successions.targets.avoid(source)
