"""Rows that a call needs by themselves, asked of a backup."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.row_loading.pieces import Remote
from stelae.actors.tserver.row_loading.single_rows import SingleRows
from stelae.core.errors import CorruptData, OutcomeUnknown
from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.backups import SINGLE_ROWS_MAX, ReadSingleRows, ReadSingleRowsReply
from stelae.core.rpc import Reply
from stelae.core.schema.schema import TableSchema
from stelae.storage.segments.layout import Layout
from stelae.storage.segments.remote import Piece, RemoteRun, RowsAbsent, Wanted
from tests.unit.actors.tserver.row_loading.test_near_rows import FIELDS, expected, image_of
from tests.unit.storage.segments.test_remote import remote_segment, served_rows

IMAGE = pa.py_buffer(image_of())
BACKUP = ServerUuid("b" * 32)


class World:
    """One segment of which rows are wanted, and a backup that answers when it is told to."""

    def __init__(self) -> None:
        schema = TableSchema.of(FIELDS, ["id"])
        self.run = RemoteRun(Layout.of(schema), remote_segment(IMAGE), schema.key_seed)
        self.run.cut(4096)
        found = SimpleNamespace(log="", replicas=((BACKUP, Address("b:1"), "disk"),))
        segment: Any = SimpleNamespace(remote=self.run)
        self.remote = Remote(segment, found)  # type: ignore[arg-type]
        self.asked: list[tuple[ReadSingleRows, Callable[[Any], None]]] = []
        self.begun: list[int] = []
        self.held: list[Piece] = []
        self.has_room = True
        self.counts: dict[str, float] = {}
        near: Any = SimpleNamespace(
            take_row=lambda run, row: None, wants_place=lambda run, backup: True
        )
        pieces: Any = SimpleNamespace(begin=lambda remote, numbers: self.begun.extend(numbers))
        members: Any = SimpleNamespace(find=lambda uuid: None)
        self.single = SingleRows(
            self,  # type: ignore[arg-type]
            members,
            TabletId("t"),
            near,
            pieces,
            self.held.append,
        )
        self.rng = random.Random(1)
        self.clock = SimpleNamespace(monotonic=lambda: 0.0)

    @property
    def peers(self) -> Any:
        return self

    @property
    def metrics(self) -> Any:
        return self

    def count(self, name: str, by: float = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + by

    def observe(self, name: str, value: float) -> None:
        pass

    def post(self, address: Any, method: Any, request: Any, done: Any, **how: Any) -> bool:
        if self.has_room:
            self.asked.append((request, done))
        return self.has_room

    def want(self, *rows: int, timeout_s: float = 5.0) -> asyncio.Task[list[Piece] | None]:
        wanted = [Wanted(self.run, [row // self.run.piece_rows], row) for row in rows]
        absent = RowsAbsent(wanted)
        work = self.single.bring({self.run: self.remote}, absent, timeout_s)
        return asyncio.create_task(work)

    def answer(self) -> None:
        request, done = self.asked.pop(0)
        rows = tuple(served_rows(self.run, IMAGE, *request.rows))
        done(Reply(ReadSingleRowsReply(self.run._trailer, rows)))


def run(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        await story(World())

    asyncio.run(within())


async def asked(world: World, count: int) -> Sequence[ReadSingleRows]:
    await asyncio.sleep(0)
    assert len(world.asked) == count
    return [request for request, _ in world.asked]


def test_a_row_is_asked_for_once_however_many_wait_for_it() -> None:
    """One of them goes away; the others have it."""

    async def story(world: World) -> None:
        waiting = [world.want(7), world.want(7), world.want(8, 7)]
        first, second = await asked(world, 2)
        assert (first.rows, second.rows) == ((7,), (8,))
        assert first.known == (0,), "keys are known"
        waiting[0].cancel()
        world.answer()
        world.answer()
        _, one, both = await asyncio.gather(*waiting, return_exceptions=True)
        assert [piece.run.row(0) for piece in one] == [expected(7)]  # type: ignore[union-attr]
        found = [piece.run.row(0) for piece in both]  # type: ignore[union-attr]
        assert found == [expected(8), expected(7)]
        assert world.run.row(7) == expected(7)
        assert world.counts == {"single_rows_fetched": 2}

    run(story)


def test_neighbours_follow_once_a_second_row_of_a_piece_is_wanted() -> None:
    """In a piece by itself no others are."""

    async def story(world: World) -> None:
        size = world.run.piece_rows
        for row, begun in ((3, []), (size, []), (4, [0]), (5, [0, 0])):
            waiting = world.want(row)
            await asked(world, 1)
            world.answer()
            assert await waiting is not None
            assert world.begun == begun

    run(story)


def test_what_does_not_help_is_left_to_pieces() -> None:
    """A damaged replica is known from then on; without room, or time, nothing is asked for."""

    async def story(world: World) -> None:
        for error in (OutcomeUnknown(Address("b:1"), "m", 1.0), CorruptData("b", 0, "bad")):
            waiting = world.want(7)
            await asked(world, 1)
            world.asked.pop()[1](error)
            assert await waiting is None
        assert list(world.remote.damaged) == [BACKUP]
        assert world.counts == {"row_reads_failed": 1, "replicas_corrupt": 1}
        assert await world.want(7, timeout_s=0.1) is None
        assert await world.want(*range(SINGLE_ROWS_MAX + 1)) is None
        assert await world.want(-1) is None
        world.has_room = False
        assert await world.want(7) is None
        assert not world.asked

    run(story)


def test_whoever_waits_is_told_of_the_end() -> None:
    """Answers that come later are nobody's."""

    async def story(world: World) -> None:
        waiting = world.want(7)
        await asked(world, 1)
        world.single.close()
        assert await waiting is None
        world.answer()
        assert await world.want(7) is None
        assert not world.asked

    run(story)
