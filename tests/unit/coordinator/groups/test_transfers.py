"""`stelae.coordinator.backoff.transfers`: to whom leadership goes after it did not get there."""

from __future__ import annotations

from stelae.coordinator.backoff.owners import SERVER_PAUSE_S
from stelae.coordinator.backoff.transfers import TRANSFER_S, Transfers
from stelae.coordinator.decide_groups import Transfer
from stelae.core.errors import (
    DeadlineExpired,
    NotLeader,
    OutcomeUnknown,
    TabletNotReady,
    Unavailable,
)
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.replicas import TRANSFER_ATTEMPT, TRANSFER_LEADERSHIP
from stelae.core.messages.servers import PeerHealth
from stelae.core.records.records import TabletRecord
from stelae.core.schema.durability import replicas
from tests.unit.coordinator.groups.group_world import R, World, changes, grown, mark

A, B, C = ServerUuid("a"), ServerUuid("b"), ServerUuid("c")
T = TabletId("t")
OWN = DeadlineExpired(TRANSFER_ATTEMPT, "b to catch up")
FOREIGN = (
    DeadlineExpired(TRANSFER_LEADERSHIP.name, "the connection to a:1"),
    Unavailable("a:1", "connection refused"),
    NotLeader("tserver-1", 2, ""),
    TabletNotReady(T, "changing its members"),
)


def ordered(world: World) -> list[ServerUuid]:
    """To whom leadership is to go; noted as told, as the coordinator does."""
    found = [action for action in world.decide() if isinstance(action, Transfer)]
    for each in found:
        about = (each.leader.uuid, each.term, each.order.target)
        world.pacing.transfers.told(each.order.tablet_id, *about, world.now)
    return [each.order.target for each in found]


def until_another(world: World, target: ServerUuid, limit_s: float = 60.0) -> float:
    """The seconds until the order is for another target, or for none."""
    began = world.now
    while ordered(world) == [target]:
        assert world.now < began + limit_s, "it is ordered for ever"
        world.wait(1)
    return world.now - began


def test_leadership_goes_to_another_follower_if_it_does_not_get_to_the_first() -> None:
    """The leader leads on, by its own heartbeats; each target is tried, then none until a pause is
    over, and then the one whose pause ends first."""
    world = World("a", "b", "c")
    grown(world)
    mark(world, "a", maintenance=True)
    assert ordered(world) == [B]
    assert TRANSFER_S <= until_another(world, B) <= TRANSFER_S + 2
    assert ordered(world) == [C]
    until_another(world, C)
    assert ordered(world) == [B], "its pause is over: it is as long as a transfer may take"
    until_another(world, B)
    assert ordered(world) == [C]
    until_another(world, C)
    assert ordered(world) == [], "second pauses are longer"


def test_healing_goes_on_while_nobody_takes_the_leadership() -> None:
    """A lost voter is replaced, though its leader is in maintenance and leads on."""
    world = World("a", "b", "c", "d")
    (tablet,) = world.create(replicas(3))
    tablet = world.form(tablet)
    assert tablet.configuration is not None
    leader, *others = tablet.configuration.voters
    mark(world, leader, maintenance=True)
    for target in others:
        world.pacing.transfers.told(tablet.tablet_id, leader, 1, target, world.now)
        world.pacing.transfers.refused(tablet.tablet_id, target, OWN, world.now)
    lost = others[1]
    world.silent[lost] = None
    for _ in range(8):
        world.pacing.transfers.told(tablet.tablet_id, leader, 1, others[0], world.now)
        world.pacing.transfers.refused(tablet.tablet_id, others[0], OWN, world.now)
    world.wait(29)
    _unheard(world, tablet, leader, lost)
    world.wait(2)
    assert [kind for _, kind, _ in changes(world.decide())] == ["add"]


def _unheard(world: World, tablet: TabletRecord, leader: ServerUuid, lost: ServerUuid) -> None:
    assert tablet.configuration is not None
    others = "".join(u.upper() for u in tablet.configuration.voters if u not in (leader, lost))
    world.reconfigure(tablet, leader.upper() + others + lost.upper(), 2, unheard=lost)
    world.decide()


def test_only_the_leaders_own_word_counts_against_a_target() -> None:
    """Neither an order that did not arrive, nor another leader, nor silence."""
    transfers = Transfers()
    transfers.told(T, A, 1, B, 0.0)
    transfers.refused(T, B, OutcomeUnknown("tserver-1", TRANSFER_LEADERSHIP.name, 5.0), 5.0)
    assert transfers.pending() == (T,), "it may have the order"
    for error in FOREIGN:
        transfers.told(T, A, 1, B, 5.0)
        transfers.refused(T, B, error, 6.0)
        transfers.refused(T, B, OWN, 7.0)  # an answer to an order of before
        assert (transfers.pending(), transfers.avoid(T)) == ((), {})
    transfers.told(T, A, 1, B, 10.0)
    transfers.look(T, C, 2, 50.0, 50.0)
    assert (transfers.pending(), transfers.avoid(T)) == ((), {})
    transfers.told(T, A, 1, B, 100.0)
    transfers.look(T, A, 1, 109.0, 150.0)
    assert transfers.pending() == (T,), "its last heartbeat is of before the end"
    transfers.look(T, None, 0, 0.0, 150.0)
    assert (transfers.pending(), transfers.avoid(T)) == ((), {})
    transfers.told(T, A, 1, B, 200.0)
    transfers.refused(T, B, OWN, 201.0)
    assert transfers.avoid(T) == {B: 201.0 + SERVER_PAUSE_S}
    transfers.told(T, A, 1, B, 300.0)
    transfers.look(T, B, 2, 301.0, 301.0)
    assert transfers.avoid(T) == {}, "it got there"
    transfers.told(T, A, 3, B, 400.0)
    transfers.look(T, A, 4, 401.0, 401.0)
    assert list(transfers.avoid(T)) == [B], "the former leader was elected again"


def test_an_order_that_is_repeated_is_counted_from_the_first_one() -> None:
    """The leader has it repeated all the time."""
    transfers = Transfers()
    for second in range(round(TRANSFER_S) + 1):
        transfers.told(T, A, 1, B, float(second))
        transfers.look(T, A, 1, float(second), float(second))
    assert list(transfers.avoid(T)) == [B]


def test_the_rebalancer_hands_another_leadership_over_if_one_does_not_get_there() -> None:
    """All leaders are on a: the best step is the same each time, and it fails each time."""
    world = _all_led_by_a("tuv", 20.0)
    tried = _tried(world, 3)
    assert len(tried) == len(set(tried)) == 3


def test_the_rebalancer_leaves_servers_alone_that_take_no_leadership() -> None:
    """They lead nothing, so they are best for each tablet. After two of them they come last, and
    after pauses that double: without these nine tablets would be tried at each of them."""
    world = _all_led_by_a("klmnopqrst", 12.0)
    until, tried = world.now + 200.0, []
    while world.now < until:
        tried += [target for _, target in _tried(world, 1)]
    assert 4 <= tried.count(B) <= 5
    assert 4 <= tried.count(C) <= 5


def _all_led_by_a(tables: str, rebalance_after_s: float) -> World:
    world = World("a", "b", "c")
    tablets = [world.form(world.create(replicas(3), name)[0]) for name in tables]
    world.rebalance_after_s = rebalance_after_s
    for tablet in tablets:
        for name in "abc":
            leads, peers = name == "a", _heard() if name == "a" else ()
            world.says(name, tablet, R.LEADER if leads else R.FOLLOWER, leader=A, peers=peers)
    world.beat()
    world.decide()
    return world


def _tried(world: World, count: int) -> list[tuple[TabletId, ServerUuid]]:
    """The first transfers that are ordered, and for whom. None is carried out."""
    tried = []
    for _ in range(count):
        for _ in range(30):
            world.wait(1)
            found = [a for a in world.decide() if isinstance(a, Transfer)]
            for each in found:
                order = each.order
                tried.append((order.tablet_id, order.target))
                about = (each.leader.uuid, each.term, order.target)
                world.pacing.transfers.told(order.tablet_id, *about, world.now)
            if found:
                break
    return tried


def _heard() -> tuple[PeerHealth, ...]:
    return (PeerHealth(B, True, 1), PeerHealth(C, True, 1))
