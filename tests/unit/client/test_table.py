"""Rows cut by tablet and put together again, and what people hand in by mistake."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from stelae.client.input.convert import RowCodec, decode_batch, to_arrow
from stelae.client.input.filters import normalize_filters
from stelae.client.routing.session import Session
from stelae.client.table.table import AsyncTable
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    ColumnNotFound,
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    RowExists,
    StelaeError,
)
from stelae.core.ids import ClientId
from stelae.core.messages.rows import (
    GET,
    GET_MANY,
    WRITE,
    GetManyReply,
    GetReply,
    Write,
    WriteReply,
)
from stelae.core.rpc import Reply
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import VERSION_COLUMN, TableSchema, check_table_name
from tests.unit.client.routing.scripted import Scripted, cache_of, locations

SCHEMA = TableSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("value", pa.string()),
            pa.field("day", pa.date32()),
        ]
    ),
    ["id"],
)
PAIR = TableSchema.of(pa.schema([("a", pa.int64()), ("b", pa.string())]), ["a", "b"])


class Tablets:
    """Tablets that take every write, each with versions of its own, and keep what they got."""

    def __init__(self, buckets: int = 4, schema: TableSchema = SCHEMA) -> None:
        self.runtime = Scripted()
        cache = cache_of(self.runtime, locations(schema, hash_partition(schema.key[0], buckets)))
        settings = Settings(arrow_rows=4)
        session = Session(ClientId("c"))
        self.table = AsyncTable(self.runtime, settings, session, cache)  # type: ignore[arg-type]
        self.rows: dict[str, list[Any]] = {}
        self.runtime.peers.otherwise[WRITE.name] = self._write

    def _write(self, request: Write) -> WriteReply:
        count = len(request.rows) or decode_batch(self.runtime.peers.blobs[0]).num_rows
        mine = self.rows.setdefault(request.tablet_id, [])
        first = 1000 * (int(request.tablet_id, 16) + 1) + len(mine)
        mine += request.rows or decode_batch(self.runtime.peers.blobs[0]).to_pylist()
        return WriteReply(first, count)


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": n, "value": str(n)} for n in ids]


# ---- writes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 200])
async def test_versions_come_in_the_order_of_the_rows(count: int) -> None:
    """However the rows were cut: as tuples below ``arrow_rows``, as batches above."""
    tablets = Tablets()
    ids = [n * 7919 % 1000 for n in range(count)]
    versions = await tablets.table.upsert(rows(*ids))
    assert versions.shape == (count,)
    assert versions.dtype == np.uint64
    found: dict[int, int] = {}
    for tablet, written in tablets.rows.items():
        for place, row in enumerate(written):
            key = row["id"] if isinstance(row, dict) else row[0]
            found[key] = 1000 * (int(tablet, 16) + 1) + place
    assert versions.tolist() == [found[n] for n in ids]


async def test_rows_of_one_tablet_stay_in_order() -> None:
    """Rows of a call apply in order, so the cut must keep it."""
    tablets = Tablets(buckets=3)
    await tablets.table.upsert(rows(*range(100)))
    assert len(tablets.rows) == 3
    for written in tablets.rows.values():
        ids = [row["id"] for row in written]
        assert ids == sorted(ids)
        assert len(ids) > 10


async def test_conditions_go_with_their_rows() -> None:
    """``if_version`` is cut as the rows are, in both forms."""
    for count in (3, 50):
        tablets = Tablets()
        await tablets.table.upsert(rows(*range(count)), if_version=list(range(10, 10 + count)))
        for request in tablets.runtime.peers.sent(WRITE.name):
            if request.rows:
                assert [row[0] + 10 for row in request.rows] == list(request.if_versions)
        sent = [v for r in tablets.runtime.peers.sent(WRITE.name) for v in r.if_versions]
        assert sorted(sent) == list(range(10, 10 + count))


@pytest.mark.parametrize(
    "given", [[1, 2], "x", ["x"], [1.5], [-1], -1, [None], [1 << 63], object()]
)
async def test_conditions_that_are_none_are_refused(given: Any) -> None:
    """Before anything is sent."""
    tablets = Tablets()
    for many in (rows(1), rows(*range(10))):
        if isinstance(given, list) and len(given) == len(many):
            given = [*given]
        with pytest.raises(InvalidArgument):
            await tablets.table.upsert(many, if_version=given)
    assert tablets.runtime.peers.calls == []


async def test_the_same_request_id_goes_with_every_attempt() -> None:
    """And another one with the next call; each tablet has numbers of its own."""
    tablets = Tablets(buckets=1)
    tablets.runtime.peers.script(WRITE.name, OutcomeUnknown("t:1", "write", 1.0), 0.5)
    await tablets.table.upsert(rows(1))
    await tablets.table.upsert(rows(1))
    ids = [request.request for request in tablets.runtime.peers.sent(WRITE.name)]
    assert [one.sequence for one in ids] == [1, 1, 2]
    assert [one.first_incomplete for one in ids] == [1, 1, 2]


async def test_a_part_that_is_refused_says_how_many_others_were_done() -> None:
    """Across tablets there is no transaction, and the error does not hide it."""
    tablets = Tablets()
    take = tablets.runtime.peers.otherwise[WRITE.name]

    def refuse(request: Write) -> Any:
        return RowExists("t", "1", 1) if request.tablet_id.endswith("0") else take(request)

    tablets.runtime.peers.otherwise[WRITE.name] = refuse
    with pytest.raises(RowExists) as caught:
        await tablets.table.insert(rows(*range(100)))
    assert caught.value.__notes__ == ["3 of the call's 4 tablets did their part"]
    assert len(tablets.rows) == 3


@pytest.mark.parametrize(
    ("op", "given"),
    [
        ("upsert", 5),
        ("upsert", "text"),
        ("upsert", [1]),
        ("upsert", [None, None]),
        ("upsert", [{"id": 1}, 5, {"id": 2}, {"id": 3}, {"id": 4}]),
        ("upsert", [{"id": 1, "zzz": 2}]),
        ("upsert", [{"value": "a"}]),
        ("upsert", [{"id": None}]),
        ("upsert", [{"id": "1"}]),
        ("upsert", [{"id": n, "value": n} for n in range(9)]),
        ("upsert", [{"id": {n}} for n in range(9)]),
        ("upsert", [{"id": n, "value": "\ud800"} for n in range(9)]),
        ("upsert", {"id": 1, "value": "\ud800"}),
        ("upsert", {"id": 1 << 63}),
        ("upsert", {1: 2}),
        ("update", [5]),
        ("update", [{"id": 1, "value": "a"}, {"id": 2}]),
        ("update", [{"value": "a"}]),
        ("update", [{"id": 1, 7: "a"}]),
        ("update", [{"id": n, 7: "a"} for n in range(9)]),
        ("delete", [None]),
        ("delete", [(1, 2)]),
        ("delete", [{"zzz": 1}]),
        ("delete", ["x"]),
        ("delete", pa.table({"value": ["a"]})),
        ("upsert", pa.table({"value": ["a"]})),
        ("upsert", pa.table({"id": ["a"]})),
        ("upsert", pa.table([[1], [2]], names=["id", "id"])),
        ("upsert", pd.DataFrame({"zzz": [1]})),
        ("upsert", pl.DataFrame({"id": [1.5]})),
    ],
)
async def test_what_is_not_rows_is_refused_before_anything_is_sent(op: str, given: Any) -> None:
    """Always as InvalidArgument or ColumnNotFound, whatever was handed in."""
    tablets = Tablets()
    with pytest.raises((InvalidArgument, ColumnNotFound)):
        await getattr(tablets.table, op)(given)
    assert tablets.runtime.peers.calls == []


@pytest.mark.parametrize(
    "nothing", [[], pa.table({"id": pa.array([], pa.int64())}), pd.DataFrame()]
)
async def test_no_rows_are_no_call(nothing: Any) -> None:
    """An empty list or table has versions of shape (0,)."""
    tablets = Tablets()
    if not isinstance(nothing, pd.DataFrame):
        assert (await tablets.table.upsert(nothing)).shape == (0,)
        assert (await tablets.table.delete(nothing)).shape == (0,)
    if isinstance(nothing, list):
        assert (await tablets.table.update(nothing)).shape == (0,)
    assert tablets.runtime.peers.calls == []


async def test_one_row_in_any_form_is_the_same_row() -> None:
    """Dict, list, Arrow, pandas, polars."""
    day = datetime.date(2020, 1, 2)
    forms = [
        {"id": 1, "value": "a", "day": day},
        [{"id": 1, "value": "a", "day": "2020-01-02"}],
        pa.table({"id": [1], "value": ["a"], "day": [day]}),
        pa.RecordBatch.from_pylist([{"id": 1, "value": "a", "day": day}]),
        pd.DataFrame({"id": [1], "value": ["a"], "day": [day]}),
        pl.DataFrame({"id": [1], "value": ["a"], "day": [day]}),
    ]
    seen = []
    for form in forms:
        tablets = Tablets(buckets=1)
        await tablets.table.upsert(form)
        (row,) = next(iter(tablets.rows.values()))
        seen.append(tuple(row.values()) if isinstance(row, dict) else row)
    assert [row[:2] for row in seen] == [(1, "a")] * len(forms)
    assert {row[2] if isinstance(row[2], int) else (row[2] - datetime.date(1970, 1, 1)).days
            for row in seen} == {18263}  # fmt: skip


# ---- reads ------------------------------------------------------------------------------------


def found(keys: pa.RecordBatch, known: set[int]) -> Reply[GetManyReply]:
    """What a tablet answers that has rows with the ids in ``known``."""
    ids = keys.column("id").to_pylist()
    places = [place for place, key in enumerate(ids) if key in known]
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array([ids[p] for p in places], pa.int64()),
            "value": pa.array([str(ids[p]) for p in places]),
            "day": pa.nulls(len(places), pa.date32()),
            VERSION_COLUMN: pa.array(places, pa.uint64()),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Reply(
        GetManyReply(len(places)),
        [memoryview(sink.getvalue()), np.array(places, np.int32).data.cast("B")],
    )


async def test_get_many_gives_rows_in_the_order_of_their_keys() -> None:
    """From several tablets, absent keys left out, keys asked for twice there twice."""
    tablets = Tablets()
    known = {n for n in range(100) if n % 3}
    tablets.runtime.peers.otherwise[GET_MANY.name] = lambda _: found(
        decode_batch(tablets.runtime.peers.blobs[0]), known
    )
    asked = [n * 31 % 100 for n in range(100)] + [4, 4, 5]
    table = await tablets.table.get_many(asked)
    assert table.column("id").to_pylist() == [n for n in asked if n in known]
    assert table.schema == SCHEMA.arrow
    with_versions = await tablets.table.get_many(pa.array(asked), with_versions=True)
    assert with_versions.column_names[-1] == VERSION_COLUMN
    assert (await tablets.table.get_many([])).num_rows == 0


async def test_a_deadline_that_ends_between_two_pieces_says_what_it_waited_for() -> None:
    """The tablet, and how many pieces of its answer had come. No further call is made."""
    tablets = Tablets(buckets=1)
    clock, peers = tablets.runtime.clock, tablets.runtime.peers

    def answer(request: Any) -> Reply[GetManyReply]:
        (stream,) = peers.blobs
        keys = decode_batch(stream)
        clock.time += 4.0
        reply = found(keys.slice(0, 1), set(range(10)))
        return Reply(GetManyReply(1, keys_read=1), reply.blobs)

    peers.otherwise[GET_MANY.name] = answer
    with pytest.raises(DeadlineExpired, match="tablet 0, of which 3 pieces had come"):
        await tablets.table.get_many(list(range(10)), timeout=10.0)
    assert len(peers.sent(GET_MANY.name)) == 3


async def test_a_row_is_read_as_people_write_it() -> None:
    """Dates as dates; the version beside it if wanted; None if there is none."""
    tablets = Tablets()
    tablets.runtime.peers.script(
        GET.name, GetReply((((1, "a", 18263), 7),)), GetReply((None,)), GetReply(((("a",), 7),))
    )
    row = await tablets.table.get(1, with_version=True)
    assert row == {"id": 1, "value": "a", "day": datetime.date(2020, 1, 2), "_version": 7}
    assert await tablets.table.get(1) is None
    assert await tablets.table.get({"id": 1}, columns=["value"]) == {"value": "a"}


@pytest.mark.parametrize("keys", [5, "abc", None, {"id": 1}, [None], [{1}], [(1, 2)], [1.5]])
async def test_what_is_no_list_of_keys_is_refused(keys: Any) -> None:
    """Text is not a list of letters."""
    tablets = Tablets()
    with pytest.raises(InvalidArgument):
        await tablets.table.get_many(keys)


@pytest.mark.parametrize("columns", ["value", [], ["zzz"], ["id", "id"], [5], [None]])
async def test_wrong_columns_are_refused(columns: Any) -> None:
    """By every read."""
    tablets = Tablets()
    for call in (tablets.table.get(1, columns=columns), tablets.table.scan(columns=columns)):
        with pytest.raises((InvalidArgument, ColumnNotFound)):
            await call


async def test_the_first_error_of_a_read_gives_the_others_up() -> None:
    """No part goes on for nobody."""
    tablets = Tablets()
    ended: list[str] = []

    def answer(request: Any) -> Any:
        ended.append(request.tablet_id)
        return StelaeError("broken") if len(ended) == 1 else OutcomeUnknown("t", "get_many", 1.0)

    tablets.runtime.peers.otherwise[GET_MANY.name] = answer
    with pytest.raises(StelaeError, match="broken"):
        await tablets.table.get_many(list(range(50)))
    count = len(ended)
    await tablets.runtime.clock.sleep(60.0)
    assert len(ended) == count


# ---- conversion -------------------------------------------------------------------------------


def test_keys_are_taken_in_every_form_that_names_them() -> None:
    """A tuple in key order, a list, or a dict of the key columns."""
    codec = RowCodec(PAIR, "t")
    assert codec.key((1, "x")) == codec.key([1, "x"]) == codec.key({"b": "x", "a": 1}) == (1, "x")
    for wrong in (
        1,
        (1,),
        (1, "x", 2),
        {"a": 1},
        {"a": 1, "b": "x", "c": 2},
        (None, "x"),
        ("x", 1),
    ):
        with pytest.raises(InvalidArgument):
            codec.key(wrong)


def test_dicts_become_a_table_with_the_types_of_the_schema() -> None:
    """Missing values are null; unknown columns are named."""
    table = to_arrow([{"id": 1}, {"value": "b", "id": 2}], SCHEMA.arrow)
    assert table.schema.field("id").type == pa.int64()
    assert table.to_pylist() == [{"id": 1, "value": None}, {"id": 2, "value": "b"}]
    with pytest.raises(ColumnNotFound, match="zzz"):
        to_arrow([{"id": 1, "zzz": 2}], SCHEMA.arrow)


# ---- filters ----------------------------------------------------------------------------------


def test_filters_are_lists_of_terms_or_lists_of_such() -> None:
    """One list: all hold; a list of lists: any does. Values become wire values."""
    day = datetime.date(2020, 1, 2)
    assert normalize_filters(None, SCHEMA, "t") == ()
    assert normalize_filters([("day", ">=", day)], SCHEMA, "t") == ((("day", ">=", 18263),),)
    either = normalize_filters([[("id", "=", 1)], [("id", "in", {2}), ("id", "<", 9)]], SCHEMA, "t")
    assert either == ((("id", "=", 1),), (("id", "in", (2,)), ("id", "<", 9)))


@pytest.mark.parametrize(
    "where",
    [
        5,
        "id = 1",
        {"id": 1},
        [5],
        [[]],
        [("id",)],
        [("id", "=")],
        [("id", "~", 1)],
        [("id", ["="], 1)],
        [(5, "=", 1)],
        [("id", "=", None)],
        [("id", "=", "x")],
        [("id", "=", [1])],
        [("id", "in", 1)],
        [("id", "in", "x")],
        [("value", "in", "x")],
        [("id", "in", {1, "a"})],
        [("id", "not in", ["a"])],
        ("id", "=", 1),
    ],
)
def test_filters_of_other_shapes_are_refused(where: Any) -> None:
    """Naming what is wrong; never by another exception."""
    with pytest.raises(InvalidArgument):
        normalize_filters(where, SCHEMA, "t")


def test_a_filter_on_an_unknown_column_names_it() -> None:
    """ColumnNotFound, as everywhere."""
    with pytest.raises(ColumnNotFound, match="zzz"):
        normalize_filters([("zzz", "=", 1)], SCHEMA, "t")


@pytest.mark.parametrize(
    "name", ["", "a/b", "x" * 256, "a\n", None, 5, b"x", "a?b", ".", "..", "%2E%2e", "..\\"]
)
def test_names_that_no_table_has_are_refused(name: Any) -> None:
    """Of whatever type."""
    with pytest.raises(InvalidArgument):
        check_table_name(name)
