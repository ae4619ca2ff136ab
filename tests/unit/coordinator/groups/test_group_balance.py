"""Replicas and leaders of groups are spread evenly, in a calm cluster and if operators want it."""

from __future__ import annotations

import pytest

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl.operator_orders import draft_rebalancing, rebalancing_of
from stelae.coordinator.decide_groups import Delete, Transfer, UpdateGroups
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.operators import SetRebalancing
from stelae.core.messages.servers import LOAD_UNKNOWN, PeerHealth
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import hash_partition
from tests.unit.coordinator.groups.group_world import R, World, changes, mark


def test_a_calm_cluster_is_made_even_one_step_at_a_time() -> None:
    """Nothing before it was calm for long enough; a move is finished before the next begins."""
    world = World("a", "b", "c")
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=4))
    world.decide()
    tablets = [world.form(tablet) for tablet in tablets]
    world.held["d"] = {}
    world.beat()
    assert world.decide() == []
    world.rebalance_after_s = 20.0
    assert world.decide() == []
    world.wait(19)
    assert world.decide() == []
    world.wait(1)
    (update,) = world.decide()
    assert isinstance(update, UpdateGroups)
    (moved,) = update.tablets
    assert moved.move is not None
    assert moved.move.target == "d"
    assert changes(world.decide()) == [("a", "add", "d")]
    world.reconfigure(moved, "ABCD", 5)
    world.decide()
    assert changes(world.decide()) == [("a", "remove", moved.move.source)]
    left = "ABCD".replace(moved.move.source.upper(), "")
    world.reconfigure(moved, left, 6)
    world.decide()
    assert world.catalog.tablets[moved.tablet_id].move is None
    assert [a for a in world.decide() if not isinstance(a, Delete)] == []
    assert not any(t.move for t in world.catalog.groups())


@pytest.mark.parametrize(("racks", "live_bytes", "target"), [
    ("rrst", 840, "d"),
    ("rrst", 860, None),
    ("rstu", 840, "d"),
    ("rstu", 860, None),
])  # fmt: skip
def test_no_replica_moves_to_a_server_whose_memory_other_tablets_need(
    racks: str, live_bytes: int, target: str | None
) -> None:
    """Neither to be separated nor to make counts even. The server's memory is taken by tablets with
    segments, which no replica shows. It may use 950 of its 1000 bytes, and a replica needs 100."""
    world = World("a", "b", "c")
    world.racks = dict(zip("abcd", racks, strict=True))
    world.beat()
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=4))
    peers = tuple(PeerHealth(ServerUuid(name), True, 1) for name in "bc")
    for tablet in tablets:
        for name in "abc":
            role, of_leader = (R.LEADER, peers) if name == "a" else (R.FOLLOWER, ())
            world.says(
                name, tablet, role, leader=ServerUuid("a"), peers=of_leader, memory_bytes=100
            )
    world.held["d"] = {}
    world.memory = dict.fromkeys("abc", (400, 1000)) | {"d": (live_bytes, 1000)}
    world.beat()
    world.decide()
    world.rebalance_after_s = 20.0
    world.decide()
    world.wait(20)
    world.decide()
    moves = [tablet.move for tablet in world.catalog.groups() if tablet.move is not None]
    assert [move.target for move in moves] == ([] if target is None else [target])


def test_a_leader_with_too_much_load_hands_one_over_and_never_to_a_marked_server() -> None:
    """As far as loads are known, and only while nothing is to be healed or left; a tablet whose
    new leader cannot say yet how busy it is stops all of it."""
    world = World("a", "b", "c")
    tablets = [world.form(world.create(replicas(3), name)[0]) for name in "tuvw"]
    busy = [tablet for tablet in tablets if tablet.configuration is not None][:2]
    peers = tuple(PeerHealth(ServerUuid(name), True, 1) for name in "bc")

    def lead(load_per_s: float) -> None:
        for tablet in tablets:
            more = load_per_s if tablet in busy else 0.0
            for name in "abc":
                leads = name == "a"
                world.says(
                    name,
                    tablet,
                    R.LEADER if leads else R.FOLLOWER,
                    leader=ServerUuid("a"),
                    peers=peers if leads else (),
                    load_per_s=more if leads else 0.0,
                )
        world.beat()
        world.decide()

    def transfers() -> list[tuple[TabletId, ServerUuid]]:
        world.wait(20)
        found = [a for a in world.decide() if isinstance(a, Transfer)]
        return [(a.order.tablet_id, a.order.target) for a in found if a.order.target]

    lead(LOAD_UNKNOWN)
    world.rebalance_after_s = 20.0
    world.decide()
    assert transfers() == []
    lead(500.0)
    world.decide()
    ((first, target),) = transfers()
    assert first in [tablet.tablet_id for tablet in busy]
    assert target in ("b", "c")
    mark(world, "b", maintenance=True)
    world.decide()
    assert transfers() == []
    mark(world, "b", maintenance=False)
    world.decide()
    ((second, _),) = transfers()
    assert second != first, "the one that was told to go stays alone for a while"


def test_operators_say_whether_replicas_are_spread_and_a_new_master_knows() -> None:
    """Their word goes before the settings, is compared and set, and is part of the snapshot."""
    world = World("a")
    catalog = world.catalog

    def draft(after_s: float) -> CatalogBatch | None:
        return draft_rebalancing(catalog, SetRebalancing(world.request(), after_s))

    assert rebalancing_of(catalog, 20.0).after_s == 20.0
    world.put(draft(0.0))
    assert rebalancing_of(catalog, 20.0).after_s == 0.0
    on, other_word = draft(7.0), draft(8.0)
    world.put(on)
    assert other_word is not None
    assert isinstance(catalog.apply(1, 1, other_word.encode()), Conflict), "it follows another"
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidArgument, match="number of seconds"):
            draft(wrong)
    other = Catalog()
    other.restore(catalog.snapshot())
    assert rebalancing_of(other, 20.0).after_s == 7.0
