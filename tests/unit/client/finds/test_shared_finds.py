"""Look-ups of one value that are carried out together."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from stelae.client.finds import few as find_few
from stelae.client.finds.few import Found, as_tables
from stelae.client.finds.query import FindQuery, find_query
from stelae.client.finds.shared_finds import SharedFinds
from stelae.client.input.known import KnownTable
from stelae.client.input.split_tablets import Parts
from stelae.client.routing.shared_reads import Alike
from stelae.core.ids import TableId
from stelae.core.messages.indexes import LookupManyReply, LookupReply
from stelae.core.messages.rows import GetReply
from stelae.core.records.records import TableRecord, TableState
from stelae.core.rpc import Reply
from stelae.core.schema.alter import with_index
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import END, IndexId, IndexletState
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

ARROW = pa.schema([pa.field("id", pa.int64(), False), pa.field("code", pa.int64())])


def known() -> KnownTable:
    schema = with_index(TableSchema.of(ARROW, "id"), "code", IndexId("i"), "t")
    durability = segments("disk")
    return KnownTable(
        TableRecord(TableId("T"), "t", schema, Partitioning(), durability, TableState.RUNNING)
    )


def query_of(table: KnownTable, code: int) -> FindQuery:
    return find_query(table, "code", code, None, None, with_versions=False, is_reverse=False)


class World:
    """An indexlet that names rows 10·code and 10·code + 1 for each code, and tablets where the
    first has that code and the other has another one by now."""

    def __init__(self) -> None:
        self.table = known()
        self.lookups: list[int] = []
        self.refuses: set[int] = set()
        """Keys whose tablets do not answer."""
        self.is_refused = False
        self.location = SimpleNamespace(
            address="here",
            indexlet=SimpleNamespace(
                indexlet_id="x",
                term=1,
                owner=None,
                low=b"",
                high=END,
                state=IndexletState.SERVING,
            ),
        )

    def covering(self, *_: Any, **__: Any) -> Any:
        return self.location

    def post(self, address: Any, method: Any, order: Any, done: Any, **given: Any) -> bool:
        self.lookups.append(len(order.ranges))
        codec = query_of(self.table, 1).codec
        answers = []
        for wanted in order.ranges:
            code = next(n for n in range(200) if codec.prefix_of(n) == wanted.low)
            entries = [codec.encode_one(code, (10 * code + n,)) for n in range(2)]
            answers.append(LookupReply(tuple(entries), False, b"", END))
        reply = LookupManyReply(tuple(answers))
        outcome = Reply(LookupManyReply(())) if self.is_refused else Reply(reply)
        asyncio.get_running_loop().call_soon(done, outcome)
        return True

    def add(self, alike: Alike, keys: Any, done: Any) -> None:
        if any(key[0] in self.refuses for key in keys):
            done(None)
            return
        rows = tuple([((key[0], key[0] // 10 if key[0] % 10 == 0 else -1), 7) for key in keys])
        asyncio.get_running_loop().call_soon(done, GetReply(rows))

    def found(self, codes: list[int], left_s: float = 30.0) -> list[Found | None]:
        async def work() -> list[Found | None]:
            peers: Any = SimpleNamespace(post=self.post)
            clock = SimpleNamespace(monotonic=time.monotonic)
            runtime: Any = SimpleNamespace(peers=peers, clock=clock)
            me: Any = self
            cache: Any = SimpleNamespace(indexlets=me, parts=Parts((), 1))
            finds = SharedFinds(runtime, cache, me)
            finds.under_way = len(codes)
            deadline = time.monotonic() + left_s
            wanted = [finds.find(query_of(self.table, code), 10, deadline) for code in codes]
            return await asyncio.gather(*wanted)

        return asyncio.run(work())


def test_each_has_its_own_rows() -> None:
    """One message to the indexlet; rows with another value by now are left out."""
    world = World()
    found = world.found([3, 5, 8])
    assert world.lookups == [3]
    tables = [each.table.to_pylist() for each in found if each and each.table is not None]
    assert tables == [[{"id": 10 * code, "code": code}] for code in (3, 5, 8)]
    assert all(len(each.own) == 1 for each in found if each)


def test_where_a_tablet_does_not_answer_the_others_do() -> None:
    """Who wants its row goes on from there."""
    world = World()
    world.refuses = {30}
    first, second = world.found([3, 5])
    assert first is not None
    assert first.table is None
    assert first.said.entries
    assert second is not None
    assert second.table is not None


@pytest.mark.parametrize("what", ["one", "refused", "late", "filling", "nowhere"])
def test_what_is_out_of_the_ordinary_goes_by_itself(what: str) -> None:
    """Nothing came of it."""
    world = World()
    world.is_refused = what == "refused"
    if what == "filling":
        world.location.indexlet.state = IndexletState.FILLING
    if what == "nowhere":
        world.location.address = ""
    codes = [3] if what == "one" else [3, 5]
    assert set(world.found(codes, 4.0 if what == "late" else 30.0)) == {None}


def test_large_rows_do_not_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones may: who keeps one keeps little."""
    kind = pa.struct([pa.field("id", pa.int64()), pa.field("text", pa.string())])
    answers = [[(n, "x" * 100)] * n for n in range(4)]
    together = as_tables(answers, kind)
    monkeypatch.setattr(find_few, "TOGETHER_BYTES_MAX", 10)
    apart = as_tables(answers, kind)
    assert together == apart
    assert [table.num_rows for table in apart] == [0, 1, 2, 3]
