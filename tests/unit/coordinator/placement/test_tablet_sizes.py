"""`stelae.coordinator.placement.tablet_sizes`: a tablet goes where there is memory for its rows."""

from __future__ import annotations

import msgspec

from stelae.coordinator.decide import Action, Move
from stelae.coordinator.placement.assignment import Load, choose_owners
from stelae.coordinator.placement.tablet_sizes import KEPT_S, TabletSizes
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat, TabletReport
from stelae.core.records.records import TabletRecord, TabletState
from tests.unit.coordinator.decide_world import P, World, server, tablet

A, B = TabletId("a"), TabletId("b")
LIMIT_BYTES = 1000


def report(tablet_id: TabletId, here: int, there: int = 0, term: int = 1) -> TabletReport:
    return TabletReport(tablet_id, term, P.SERVING, memory_bytes=here, remote_bytes=there)


def record(tablet_id: TabletId, owner: str, state: TabletState) -> TabletRecord:
    return TabletRecord(tablet_id, TableId("T"), 0, state, 1, ServerUuid(owner), 1)


def beat(world: World, name: str, used: int, *reports: TabletReport) -> None:
    beat = Heartbeat(
        server(name), world.now, reports, memory_bytes=used, memory_limit_bytes=LIMIT_BYTES
    )
    assert world.liveness.heartbeat(beat, world.now).processed


def moves_after_death(used: dict[str, int], *sizes: int) -> tuple[list[Move], World]:
    """The owner s0 of tablets of these sizes dies; the others use so much memory."""
    names = [TabletId(f"t{n}") for n in range(len(sizes))]
    records = [record(name, "s0", TabletState.RUNNING) for name in names]
    world = World(*[msgspec.structs.replace(r, number=n) for n, r in enumerate(records)])
    beat(world, "s0", sum(sizes), *[report(n, s) for n, s in zip(names, sizes, strict=True)])
    found: list[Action] = []
    for _ in range(60):
        world.now += 0.1
        for name, bytes_used in used.items():
            beat(world, name, bytes_used)
        found += world.decide()
    return [action for action in found if isinstance(action, Move)], world


def test_a_dead_servers_tablet_goes_where_there_is_room_for_it() -> None:
    """The server with less to do, and in memory, would be s1 by its tablets alone: it has none."""
    (move,), world = moves_after_death({"s1": 700, "s2": 100, "s3": 650}, 400)
    assert [each.owner for each in move.tablets] == ["s2"]
    assert "lacks memory" not in move.reasons[0]
    assert world.pacing.sizes.of(TabletId("t0")) == 400


def test_what_is_promised_to_a_server_is_not_free_there() -> None:
    """Of two tablets each fits at s2 by itself; together they do not."""
    (move,), _ = moves_after_death({"s1": 500, "s2": 300}, 400, 400)
    assert sorted(each.owner for each in move.tablets) == ["s1", "s2"]
    (move,), _ = moves_after_death({"s1": 600, "s2": 100}, 400, 400)
    assert [each.owner for each in move.tablets] == ["s2", "s2"]


def test_where_nobody_has_room_people_are_told() -> None:
    """The tablet is opened all the same, where there is least to do; its rows come as they fit."""
    (move,), _ = moves_after_death({"s1": 700, "s2": 800}, 400)
    assert [each.owner for each in move.tablets] == ["s1"]
    assert "s0 is dead; s1 lacks memory for its 400 bytes" in move.reasons[0]


def test_promises_last_until_reports_name_the_rows() -> None:
    """Those of another server's tablets, and of another term, are not its own."""
    sizes = TabletSizes()
    sizes.note(A, report(A, 300, 100), 0.0)
    opening = [record(A, "s1", TabletState.RECOVERING)]
    uuid = ServerUuid("s1")
    assert sizes.coming_bytes(opening, {}) == {uuid: 400}
    assert sizes.coming_bytes(opening, {uuid: {A: report(A, 30, 100, term=0)}}) == {uuid: 400}
    assert sizes.coming_bytes(opening, {uuid: {A: report(A, 30, 100)}}) == {uuid: 270}
    assert sizes.coming_bytes(opening, {uuid: {A: report(A, 500)}}) == {uuid: 0}


def test_a_size_outlives_the_reports_of_owners_that_have_less_yet_and_is_forgotten_then() -> None:
    """The second owner fails with nothing in memory: the third needs room for all of it."""
    sizes = TabletSizes()
    sizes.note(A, report(A, 400), 0.0)
    sizes.note(A, report(A, 0, 10), 10.0)
    assert sizes.of(A) == 400
    sizes.inherit(A, [TabletId("p"), TabletId("q")], 10.0)
    assert sizes.of(TabletId("p")) == 200
    sizes.forget(lambda: [record(A, "s1", TabletState.RECOVERING)], 10.0 + KEPT_S)
    assert (sizes.of(A), sizes.of(TabletId("p"))) == (400, 0)
    sizes.forget(lambda: [], 10.0 + KEPT_S)
    assert sizes.of(A) == 0


def test_without_limits_or_sizes_the_choice_is_as_it_was() -> None:
    """Room is no matter then."""
    loads = [Load(server("s1"), memory_bytes=10), Load(server("s2"), memory_bytes=5)]
    chosen = choose_owners([A, B], loads, sizes={A: 1 << 50})
    assert [chosen[A].name, chosen[B].name] == ["s2", "s1"]
    assert tablet().tablet_id == A
