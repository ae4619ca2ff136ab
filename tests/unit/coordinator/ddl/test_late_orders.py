"""Orders about servers and replicas that arrive again, late, and undo nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from stelae.coordinator.catalog.catalog import Applied, CatalogBatch, Conflict, Outcome
from stelae.coordinator.ddl.operator_orders import (
    draft_mark,
    draft_move,
    draft_rebalancing,
    find_group,
    move_of,
)
from stelae.core.errors import StaleRequest
from stelae.core.ids import ClientId, RequestId, ServerUuid, TabletId
from stelae.core.messages.operators import MarkServer, MoveReplica, SetRebalancing
from tests.unit.coordinator.groups.group_world import World, grown


@dataclass(frozen=True)
class Orders:
    """One that is given, and one that takes it back, as drafts; and what they are about."""

    do: Callable[[RequestId], CatalogBatch | None]
    undo: Callable[[RequestId], CatalogBatch | None]
    state: Callable[[], object]


def marks(world: World, tablet_id: TabletId, *, maintenance: bool) -> Orders:
    del tablet_id

    def draft(request: RequestId, on: bool) -> CatalogBatch | None:
        order = MarkServer(request, "a", retiring=on)
        if maintenance:
            order = MarkServer(request, "a", maintenance=on)
        return draft_mark(world.catalog, world.liveness, order, world.now)

    def state() -> object:
        mark = world.catalog.mark(ServerUuid("a"))
        return mark.maintenance if maintenance else mark.retiring

    return Orders(
        lambda request: draft(request, True), lambda request: draft(request, False), state
    )


def retiring(world: World, tablet_id: TabletId) -> Orders:
    return marks(world, tablet_id, maintenance=False)


def maintaining(world: World, tablet_id: TabletId) -> Orders:
    return marks(world, tablet_id, maintenance=True)


def rebalancing(world: World, tablet_id: TabletId) -> Orders:
    del tablet_id

    def draft(request: RequestId, after_s: float) -> CatalogBatch | None:
        return draft_rebalancing(world.catalog, SetRebalancing(request, after_s))

    return Orders(
        lambda request: draft(request, 7.0),
        lambda request: draft(request, 0.0),
        lambda: world.catalog.rebalancing.after_s,
    )


def moving(world: World, tablet_id: TabletId) -> Orders:
    def draft(request: RequestId, target: str) -> CatalogBatch | None:
        order = MoveReplica(request, tablet_id, "c", target)
        return draft_move(world.catalog, world.liveness, order, world.now)

    return Orders(
        lambda request: draft(request, "e"),
        lambda request: draft(request, ""),
        lambda: world.catalog.tablets[tablet_id].move,
    )


def giving_up(world: World, tablet_id: TabletId) -> Orders:
    """A move that is under way; it is ordered again."""
    orders = moving(world, tablet_id)
    world.put(orders.do(by("who moved it", 1)))
    return Orders(orders.undo, orders.do, orders.state)


def by(client: str, sequence: int, since: int = 0) -> RequestId:
    """Of an operator's, who waits for no answer of orders below ``since``."""
    return RequestId(ClientId(client), sequence, since)


def apply(world: World, batch: CatalogBatch | None) -> Outcome:
    assert batch is not None
    return world.catalog.apply(1, 1, batch.encode())


@pytest.fixture(params=[retiring, maintaining, rebalancing, moving, giving_up])
def told(request: pytest.FixtureRequest) -> tuple[World, Orders]:
    """A tablet on a, b, c, and d, e beside them; orders of one kind."""
    world = World("a", "b", "c", "d", "e")
    return world, request.param(world, grown(world).tablet_id)


def test_late_copies_of_an_order_do_not_undo_what_was_ordered_since(
    told: tuple[World, Orders],
) -> None:
    """Of one that changed something, of one that changed nothing, as it was wanted already, and of
    one that its client has given up; the last word may be another client's."""
    world, orders = told
    first, same, lost = by("one", 1), by("another", 1), by("one", 2)
    before, raced = orders.state(), orders.do(first)
    for request in (first, same):
        assert isinstance(apply(world, orders.do(request)), Applied)
    wanted = orders.state()
    assert wanted != before
    assert isinstance(apply(world, orders.undo(by("one", 3, since=3))), Applied)
    taken_back = orders.state()
    assert taken_back != wanted
    assert isinstance(apply(world, raced), Conflict), "drafted before, replicated after"
    assert orders.do(same) is None
    for request in (first, lost):
        with pytest.raises(StaleRequest):
            orders.do(request)
    assert orders.state() == taken_back


def test_a_copy_that_its_client_waits_for_is_answered_and_changes_nothing(
    told: tuple[World, Orders],
) -> None:
    """Though another client took the order back meanwhile; also one drafted before that."""
    world, orders = told
    first, raced = by("one", 1), orders.do(by("one", 1))
    assert isinstance(apply(world, orders.do(first)), Applied)
    assert isinstance(apply(world, orders.undo(by("another", 1))), Applied)
    taken_back = orders.state()
    assert orders.do(first) is None
    assert isinstance(apply(world, raced), Applied)
    assert orders.state() == taken_back


def test_an_order_that_was_given_up_is_not_carried_out_after_a_later_one_that_changed_nothing(
    told: tuple[World, Orders],
) -> None:
    """Its client took it back though nothing had come of it: that answer holds."""
    world, orders = told
    raced = orders.do(by("one", 2))
    for sequence in (1, 3):
        assert isinstance(apply(world, orders.undo(by("one", sequence, sequence))), Applied)
    wanted = orders.state()
    assert isinstance(apply(world, raced), Conflict)
    with pytest.raises(StaleRequest):
        orders.do(by("one", 2))
    assert orders.state() == wanted


@pytest.mark.parametrize("kind", [retiring, maintaining, rebalancing])
def test_an_order_that_changes_nothing_is_drafted_again_after_one_that_was_not_applied_yet(
    kind: Callable[[World, TabletId], Orders],
) -> None:
    """An operator's order timed out, and the operator took it back. Both drafts saw the state
    before them; the answer to the second holds. Orders of one tablet wait for its lock instead."""
    world = World("a", "b", "c", "d", "e")
    orders = kind(world, grown(world).tablet_id)
    apply(world, orders.undo(by("another", 1)))
    before = orders.state()
    given_up, taken_back = orders.do(by("one", 1)), orders.undo(by("one", 2, since=2))
    assert isinstance(apply(world, given_up), Applied)
    assert isinstance(apply(world, taken_back), Conflict)
    assert isinstance(apply(world, orders.undo(by("one", 2, since=2))), Applied)
    assert orders.state() == before


def test_whose_move_was_given_up_before_its_answer_came_is_told_so() -> None:
    """Not that it is done; also where another replica is moved since."""
    world = World("a", "b", "c", "d", "e")
    tablet = grown(world)

    def given(source: str, target: str) -> MoveReplica:
        order = MoveReplica(world.request(), tablet.tablet_id, source, target)
        world.put(draft_move(world.catalog, world.liveness, order, world.now))
        return order

    def is_given_up(order: MoveReplica) -> bool:
        found = move_of(world.catalog, world.liveness, order)
        assert found.tablet == find_group(world.catalog, order)
        return found.is_given_up

    order = given("c", "e")
    assert not is_given_up(order)
    back = given("c", "")
    assert is_given_up(order)
    assert not is_given_up(back)
    other = given("b", "d")
    assert is_given_up(order)
    assert not is_given_up(other)
    world.reconfigure(tablet, "ACD", 5)
    world.decide()
    assert not is_given_up(other), "it is done"
