"""`stelae.coordinator.moves.relief`, `evening` and `planned_moves`: tablets that one server owns
move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from stelae.coordinator.backoff.owners import SERVER_PAUSE_S
from stelae.coordinator.backoff.pacing import Pacing
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.decide import Action, Move, decide
from stelae.coordinator.moves.departures import CLOSE_S, LONGEST_REST_S, Close
from stelae.coordinator.moves.relief import SHORT_FOR_S
from stelae.core.ids import ServerUuid, TableId, TabletId
from stelae.core.messages.servers import Heartbeat, TabletProgress, TabletReport
from stelae.core.records.records import ServerMark, TabletRecord, TabletState
from stelae.core.schema.durability import segments
from tests.unit.coordinator.decide_world import World, server, tablet

P = TabletProgress
LIMIT_BYTES = 1000
CALM_S = 20.0


class Owned(World):
    """Some servers with tablets of one table; where each is, and how much of it, said in bytes."""

    def __init__(self, **held: dict[str, tuple[int, int]]) -> None:
        """By server and tablet: (bytes in memory, bytes elsewhere)."""
        self.held = {name: dict(tablets) for name, tablets in held.items()}
        self.rebalance_after_s = 0.0
        self.changes: dict[str, Any] = {}
        """To each report."""
        self.load_rates: list[float] = []
        """Of tablets as they moved."""
        records: list[TabletRecord] = []
        for name, tablets in self.held.items():
            for tablet_id in tablets:
                changes = {"tablet_id": TabletId(tablet_id), "number": len(records)}
                records.append(msgspec.structs.replace(tablet(name), **changes))
        super().__init__(*records)

    def beat_all(self) -> None:
        for name, tablets in self.held.items():
            remote = sum(bytes_there for _, bytes_there in tablets.values())
            used = sum(bytes_here for bytes_here, _ in tablets.values())
            reports = [
                TabletReport(
                    TabletId(tablet_id),
                    self.catalog.tablets[TabletId(tablet_id)].term,
                    P.SERVING,
                    memory_bytes=here,
                    remote_bytes=there,
                    **self.changes,
                )
                for tablet_id, (here, there) in tablets.items()
            ]
            beat = Heartbeat(
                server(name),
                self.now,
                tuple(reports),
                memory_bytes=used,
                memory_limit_bytes=LIMIT_BYTES,
                live_bytes=used,
                lacks_memory=remote > 0,
            )
            assert self.liveness.heartbeat(beat, self.now).processed

    def look(self, seconds: float = 0.0) -> list[Action]:
        """Time goes by, with heartbeats; what is to be done then is carried out, if it is an
        entry."""
        found: list[Action] = []
        until = self.now + seconds
        while True:
            self.beat_all()
            found = decide(
                self.catalog,
                self.liveness,
                self.pacing,
                self.now,
                missing_after_s=2.0,
                rebalance_after_s=self.rebalance_after_s,
            )
            if self.now >= until or found:
                return found
            self.now += 0.5

    def carry_out(self, close: Close) -> str:
        """Close it, and have it recovered; where it went."""
        name = close.server.name
        here, there = self.held[name].pop(close.tablet_id)
        (move,) = (action for action in self.look() if isinstance(action, Move))
        (moved,) = move.tablets
        self.load_rates.append(self.pacing.departures.load_rate(moved))
        self.put(CatalogBatch(tablets=(moved,)))
        changes = {"state": TabletState.RUNNING, "generation": moved.generation + 1}
        self.put(CatalogBatch(tablets=(msgspec.structs.replace(moved, **changes),)))
        self.now += 0.3
        self.held[moved.owner][close.tablet_id] = (here + there, 0)
        self._load(name)
        return moved.owner

    def _load(self, name: str) -> None:
        """What has become free there is filled."""
        for tablet_id, (here, there) in self.held[name].items():
            used = sum(bytes_here for bytes_here, _ in self.held[name].values())
            more = min(there, max(0, int(0.95 * LIMIT_BYTES) - used))
            self.held[name][tablet_id] = (here + more, there - more)

    def used(self, name: str) -> int:
        return sum(here for here, _ in self.held[name].values())

    def run(self, seconds: float, most: int = 50) -> list[tuple[str, str, str]]:
        """All (tablet, from, to) until nothing more is to be done for so long."""
        found: list[tuple[str, str, str]] = []
        for _ in range(most):
            closes = [action for action in self.look(seconds) if isinstance(action, Close)]
            if not closes:
                return found
            (close,) = closes
            target = self.carry_out(close)
            found.append((str(close.tablet_id), close.server.name, target))
        raise AssertionError(f"no end: {found}")


def survivor(count: int = 24, *, here: int = 12) -> dict[str, tuple[int, int]]:
    """Of so many tablets of 87 bytes the first half is in memory."""
    tablets = {f"t{n:02d}": (79, 8) if n < here else (0, 87) for n in range(count)}
    return tablets


def test_what_a_survivor_has_no_memory_for_goes_to_those_that_join() -> None:
    """Three servers' tablets on one, which holds half of them; the other two join with nothing.
    Everything ends in memory, nobody above the mark, and then nothing moves any more."""
    world = Owned(s1=survivor(), s2={}, s3={})
    moves = world.run(SHORT_FOR_S + 1.0)
    assert 10 <= len(moves) <= 16
    assert {source for _, source, _ in moves} == {"s1"}
    assert {target for _, _, target in moves} == {"s2", "s3"}
    assert moves[0][0] == "t23", "what is not in memory goes first"
    assert not any(world.load_rates), "as fast as it goes"
    for name, tablets in world.held.items():
        assert not any(there for _, there in tablets.values())
        assert world.used(name) <= 0.9 * LIMIT_BYTES
    assert world.look(60.0) == []


def test_what_nobody_has_room_for_stays() -> None:
    """Another server that would itself come too near to its limit is given nothing."""
    world = Owned(s1=survivor(), s2={"x": (720, 0)})
    assert world.look(SHORT_FOR_S + 20.0) == []
    world.held["s2"]["x"] = (700, 0)
    moves = world.run(SHORT_FOR_S + 1.0)
    assert moves == [("t23", "s1", "s2")]
    alone = Owned(s1=survivor())
    assert alone.look(SHORT_FOR_S + 20.0) == []


@pytest.mark.parametrize(
    ("used", "moves"), [(905, [("b", "s1", "s2")]), (895, [])], ids=["above", "below"]
)
def test_a_server_that_is_nearly_full_of_what_lives_is_relieved(
    used: int, moves: list[tuple[str, str, str]]
) -> None:
    """Before it refuses writes; one below the mark is left alone."""
    world = Owned(s1={"a": (200, 0), "b": (used - 200, 0)}, s2={})
    assert world.run(SHORT_FOR_S + 1.0) == moves


def test_memory_has_to_be_lacking_for_a_while() -> None:
    """What cleaning, or the end of loading, puts right in a moment moves nothing."""
    world = Owned(s1={"a": (500, 0), "b": (420, 0)}, s2={})
    assert world.look(SHORT_FOR_S - 0.5) == []
    world.held["s1"]["b"] = (380, 0)
    assert world.look(1.0) == []
    world.held["s1"]["b"] = (420, 0)
    assert world.look(SHORT_FOR_S - 0.5) == []
    assert [type(action) for action in world.look(1.0)] == [Close]


def test_relief_waits_until_a_tablet_is_sure_to_arrive() -> None:
    """As a retirement does: no segment lacks a replica."""
    world = Owned(s1=survivor(), s2={})
    world.changes = {"under_replicated": 1}
    assert world.look(SHORT_FOR_S + 20.0) == []
    world.changes = {}
    assert [type(action) for action in world.look(1.0)] == [Close]


def test_rows_in_memory_only_are_never_moved() -> None:
    """Neither for want of memory nor for evenness: they would be gone."""
    world = Owned(s1={"a": (500, 0), "b": (450, 0)}, s2={})
    table = world.catalog.tables[TableId("T")]
    fleeting = msgspec.structs.replace(table, durability=segments(), generation=2)
    world.put(CatalogBatch((fleeting,)))
    world.rebalance_after_s = CALM_S
    assert world.look(5 * CALM_S) == []


def test_another_leader_goes_on_with_what_is_closed_and_repeats_nothing() -> None:
    """It waits a little for the tablet to come back, and gives it to whoever has least to do; and
    until an order is carried out, it is repeated for the same tablet."""
    world = Owned(s1=survivor(), s2={}, s3={})
    (close,) = world.look(SHORT_FOR_S + 1.0)
    assert isinstance(close, Close)
    world.held["s1"]["t22"] = (0, 500)
    world.now += 0.1
    assert world.look() == [close]
    world.held["s1"].pop(close.tablet_id)
    world.pacing = Pacing()
    world.beat_all()
    assert world.look(1.0) == []
    (move,) = (action for action in world.look(2.0) if isinstance(action, Move))
    assert [t.owner for t in move.tablets] == ["s2"]


def places(world: Owned) -> Sequence[int]:
    return [len(tablets) for tablets in world.held.values()]


def test_tablets_are_evened_out_slowly_where_operators_want_it() -> None:
    """One step after each calm, by count; nothing without that wish, and then it comes to rest."""
    tablets = {f"t{n}": (10, 0) for n in range(6)}
    world = Owned(s1=tablets, s2={}, s3={})
    assert world.look(100.0) == []
    world.rebalance_after_s = CALM_S
    began = world.now
    moves = world.run(CALM_S + 1.0)
    assert (len(moves), list(places(world))) == (4, [2, 2, 2])
    assert world.now - began >= 4 * CALM_S
    assert all(world.load_rates)
    assert world.look(5 * CALM_S) == []


def test_sizes_are_evened_out_where_counts_are_even() -> None:
    """A large one for a small one: two steps, and then nothing more."""
    world = Owned(s1={"a": (300, 0), "b": (280, 0)}, s2={"c": (20, 0), "d": (30, 0)})
    world.rebalance_after_s = CALM_S
    moves = world.run(CALM_S + 1.0)
    assert len(moves) == 2
    assert abs(world.used("s1") - world.used("s2")) < 100
    assert world.look(5 * CALM_S) == []


@pytest.mark.parametrize("what", ["loading", "short", "mark", "retired"])
def test_nothing_is_evened_out_while_anything_is_not_at_rest(what: str) -> None:
    """Rows on their way, a segment short of a replica, a server that is to get nothing."""
    world = Owned(s1={f"t{n}": (10, 0) for n in range(6)}, s2={})
    world.rebalance_after_s = CALM_S
    if what == "loading":
        world.held["s1"]["t0"] = (5, 5)
    elif what == "short":
        world.changes = {"under_replicated": 1}
    else:
        mark = ServerMark(ServerUuid("s2"), "s2", maintenance=True, generation=1)
        if what == "retired":
            mark = msgspec.structs.replace(mark, maintenance=False, retiring=True)
        world.put(CatalogBatch(marks=(mark,)))
    assert world.look(5 * CALM_S) == []


def test_evenness_is_no_reason_to_fill_a_server() -> None:
    """One that has few tablets, and little room, gets none of many, nor gives its own for one."""
    world = Owned(s1={f"t{n}": (40, 0) for n in range(6)}, s2={"x": (790, 0)})
    world.rebalance_after_s = CALM_S
    assert world.look(5 * CALM_S) == []


def fail_at(world: Owned, close: Close) -> str:
    """Close it where it is; it fails where it was to go, and is back after that. Returns where it
    was to go."""
    name, tablet_id = close.server.name, close.tablet_id
    size = world.held[name].pop(tablet_id)
    (move,) = (action for action in world.look() if isinstance(action, Move))
    (moved,) = move.tablets
    world.pacing.owners.failed(tablet_id, (moved.owner,), world.now)
    back = {
        "state": TabletState.RUNNING,
        "owner": ServerUuid(name),
        "term": moved.term + 1,
        "generation": moved.generation + 1,
    }
    world.put(CatalogBatch(tablets=(moved,)))
    world.put(CatalogBatch(tablets=(msgspec.structs.replace(moved, **back),)))
    world.held[name][tablet_id] = size
    return moved.owner


def close_within(world: Owned, seconds: float) -> Close | None:
    """The next tablet that is told to be closed; None: none is."""
    found = [action for action in world.look(seconds) if isinstance(action, Close)]
    return found[0] if found else None


@pytest.mark.parametrize("what", ["relief", "evening"])
def test_a_tablet_goes_elsewhere_the_next_time(what: str) -> None:
    """The roomiest server, or the one with fewest tablets, is the best each time: once it failed
    for a tablet, that tablet goes to another one with room."""
    if what == "relief":
        world = Owned(s1={"a": (500, 0), "b": (450, 0)}, s2={}, s3={"x": (20, 0)})
    else:
        world = Owned(s1={"a": (30, 0), "b": (10, 0), "c": (10, 0)}, s2={}, s3={})
    world.rebalance_after_s = 0.0 if what == "relief" else CALM_S
    close = close_within(world, 2 * CALM_S)
    assert close is not None
    first = fail_at(world, close)
    again = close_within(world, 2 * CALM_S + LONGEST_REST_S)
    assert again is not None
    second = (again.tablet_id, world.carry_out(again))
    assert second != (close.tablet_id, first)


@pytest.mark.parametrize("what", ["relief", "evening"])
def test_a_server_that_fails_for_one_tablet_after_the_other_is_left_alone(what: str) -> None:
    """Each tablet would otherwise try the emptiest server once, and be away for that time. After
    two of them it comes last, and after a pause that doubles."""
    small = {f"t{n}": (10, 0) for n in range(9)}
    if what == "relief":
        world = Owned(s1=small | {"a": (400, 0), "b": (450, 0)}, s2={})
    else:
        world = Owned(s1=small, s2={})
    world.rebalance_after_s = 0.0 if what == "relief" else SERVER_PAUSE_S / 4
    began, failed_at, tried = world.now, [], []
    while world.now < began + 16 * SERVER_PAUSE_S:
        close = close_within(world, 1.0)
        if close is not None:
            assert fail_at(world, close) == "s2"
            failed_at.append(world.now)
            tried.append(close.tablet_id)
        world.now += 1.0
    assert len(tried) == len(set(tried)), "the same tablet was tried again before others"
    pauses_s = [after - before for before, after in pairwise(failed_at)]
    assert len(pauses_s) >= 4
    least_s = [0.0, *(SERVER_PAUSE_S * 2**n for n in range(len(pauses_s) - 1))]
    assert all(pause_s >= least for pause_s, least in zip(pauses_s, least_s, strict=True))


def test_a_server_where_a_tablet_was_opened_again_gets_others_at_once() -> None:
    """One success ends the doubt."""
    world = Owned(s1={f"t{n}": (10, 0) for n in range(9)}, s2={"x": (10, 0)})
    world.rebalance_after_s = SERVER_PAUSE_S / 4
    for _ in range(2):
        close = close_within(world, SERVER_PAUSE_S)
        assert close is not None
        fail_at(world, close)
    assert close_within(world, SERVER_PAUSE_S / 2) is None
    opened = world.catalog.tablets[TabletId("x")]
    for state in (TabletState.RECOVERING, TabletState.RUNNING):
        generation = opened.generation + 1
        opened = msgspec.structs.replace(opened, state=state, generation=generation)
        world.put(CatalogBatch(tablets=(opened,)))
        world.look()
    assert close_within(world, SERVER_PAUSE_S / 3) is not None


def test_relief_uses_a_server_that_failed_if_it_is_the_only_one_and_not_before_its_pause() -> None:
    """In between nothing moves; and a server without room is no way out."""
    world = Owned(s1={"a": (750, 0), "b": (200, 0)}, s2={"x": (850, 0)}, s3={})
    names = set()
    for _ in range(2):  # each of its tablets fails there
        close = close_within(world, SHORT_FOR_S + 1.0)
        assert close is not None
        names.add(close.tablet_id)
        assert fail_at(world, close) == "s3"
    assert names == {"a", "b"}
    failed_at = world.now
    close = close_within(world, 2 * SERVER_PAUSE_S)
    assert close is not None
    assert world.now >= failed_at + SERVER_PAUSE_S - 2.0
    assert world.carry_out(close) == "s3"


def test_a_server_that_closes_nothing_does_not_keep_others_from_moving() -> None:
    """Its tablet stays for a pause, and another server's tablet has its turn."""
    one, other = {"a": (300, 0), "c": (680, 0)}, {"b": (300, 0), "d": (620, 0)}
    world = Owned(s1=one, s2=other, s3={})
    first = close_within(world, SHORT_FOR_S + 1.0)
    assert first is not None
    began = world.now
    closes: dict[TabletId, float] = {}
    while world.now < began + 2 * CLOSE_S + 5.0:
        close = close_within(world, 1.0)
        if close is not None:
            closes.setdefault(close.tablet_id, world.now)
        world.now += 1.0
    assert first.tablet_id in closes
    others = [at for tablet_id, at in closes.items() if tablet_id != first.tablet_id]
    assert others, "only one tablet was ever told to be closed"
    assert min(others) >= began + CLOSE_S - 1.0


def test_a_server_that_was_not_told_for_long_is_not_late() -> None:
    """While another tablet is recovered, nothing is closed; then the same order goes on."""
    world = Owned(s1={"a": (500, 0), "b": (450, 0)}, s2={}, s3={"x": (20, 0)})
    close = close_within(world, SHORT_FOR_S + 1.0)
    assert close is not None
    other = world.catalog.tablets[TabletId("x")]
    for state in (TabletState.RECOVERING, TabletState.RUNNING):
        generation = other.generation + 1
        other = msgspec.structs.replace(other, state=state, generation=generation)
        world.put(CatalogBatch(tablets=(other,)))
        began = world.now
        while state is TabletState.RECOVERING and world.now < began + 2 * CLOSE_S:
            assert close not in world.look()
            world.now += 0.5
    assert close_within(world, 1.0) == close
