"""With whom servers share tablets with ``replicas(n)``: nearly all take part after a death."""

from __future__ import annotations

import itertools
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.placement.assignment import Load, choose_members
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.records.records import Copysets, ServerInfo, TabletRecord
from stelae.core.records.replication import Configuration, Peer
from tests.unit.coordinator.decide_world import World, server, tablet

Chosen = dict[TabletId, tuple[ServerInfo, ...]]


def some_loads(count: int, *, counted: bool = True) -> list[Load]:
    return [Load(server(f"s{n:02}"), partners={} if counted else None) for n in range(count)]


def partners_of(chosen: Chosen) -> dict[str, set[str]]:
    """The servers with which each server has a tablet in common."""
    found: dict[str, set[str]] = {}
    for members in chosen.values():
        for one, other in itertools.permutations([member.name for member in members], 2):
            found.setdefault(one, set()).add(other)
    return found


def counts_of(chosen: Chosen) -> list[int]:
    return list(Counter(each.name for members in chosen.values() for each in members).values())


def ids(count: int, first: int = 0) -> list[TabletId]:
    return [TabletId(f"{n:04}") for n in range(first, first + count)]


@pytest.mark.parametrize(("replicas", "least"), [(2, 7), (3, 9), (5, 9)])
def test_each_of_ten_servers_shares_tablets_with_all_others(replicas: int, least: int) -> None:
    """In fixed groups it would share them with four of nine, and pairs with one: balance comes
    first, so the last two of a round are left to each other."""
    chosen = choose_members(ids(100), some_loads(10), replicas)
    assert all(len(found) >= least for found in partners_of(chosen).values())
    assert max(counts_of(chosen)) - min(counts_of(chosen)) <= 1


def test_where_copysets_are_asked_the_same_servers_go_on_together() -> None:
    """Few sets of servers are such that their loss at once loses something."""
    chosen = choose_members(ids(100), some_loads(9, counted=False), 3)
    assert len({frozenset(m.name for m in members) for members in chosen.values()}) == 3


@settings(max_examples=60)
@given(st.integers(3, 14), st.integers(1, 60), st.integers(1, 3))
def test_partners_cost_no_balance(servers: int, tablets: int, replicas: int) -> None:
    """No server has two tablets more than another; none is twice in a tablet."""
    chosen = choose_members(ids(tablets), some_loads(servers), replicas)
    assert all(len({m.uuid for m in members}) == replicas for members in chosen.values())
    counts = counts_of(chosen)
    fewest = min(counts) if len(counts) == servers else 0
    assert max(counts) - fewest <= 1


def world_of(chosen: Chosen) -> World:
    """Ten servers, of which these tablets are in the catalog already."""
    records: list[TabletRecord] = []
    for tablet_id, members in chosen.items():
        peers = tuple(Peer(m.uuid, m.address, voter=True) for m in members)
        first = Configuration(OpId(0, 0), peers)
        changed = {"tablet_id": tablet_id, "configuration": first, "owner_incarnation": 0}
        records.append(msgspec.structs.replace(tablet(owner=""), **changed))
    world = World(*records)
    for n in range(10):
        world.beat(f"s{n:02}")
    return world


def live_loads(world: World) -> list[Load]:
    return tserver_loads(world.catalog, [world.seen(f"s{n:02}") for n in range(10)])


def test_tables_of_one_tablet_are_spread_as_well() -> None:
    """What the catalog has counts, whichever table it is of."""
    chosen: Chosen = {}
    for n in range(60):
        chosen |= choose_members(ids(1, n), live_loads(world_of(chosen)), 3)
    assert all(len(found) >= 8 for found in partners_of(chosen).values())


def test_partners_are_counted_unless_the_catalog_has_copysets() -> None:
    """By its record, which the leader makes where they are asked for."""
    world = world_of(choose_members(ids(1), some_loads(10), 3))
    partners = [load.partners for load in live_loads(world)]
    assert partners[0] == {ServerUuid("s01"): 1, ServerUuid("s02"): 1}
    world.put(CatalogBatch(copysets=Copysets(((ServerUuid("b1"), ServerUuid("b2")),), 1)))
    assert all(load.partners is None for load in live_loads(world))
