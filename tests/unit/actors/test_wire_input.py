"""Whatever a caller with the right secret sends: an error of ours, a server that lives, no change.

Over real TCP with real servers in this process. `LocalCluster.stop` fails the test if any handler
raised something that is not a `StelaeError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from stelae.client.convert import encode_batch
from stelae.client.table import AsyncTable
from stelae.core.durability import segments
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    StelaeError,
    TabletNotHere,
    TooLarge,
    VersionMismatch,
)
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages import (
    GET,
    GET_MANY,
    INSTALL_MERGE,
    SCAN,
    WRITE,
    Get,
    GetMany,
    InstallMerge,
    Scan,
    Write,
    WriteOp,
)
from tests.cluster_fixture import LocalCluster, local_cluster

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("name", pa.string(), False),
        pa.field("amount", pa.float64()),
        pa.field("small", pa.int8(), False),
        pa.field("data", pa.binary()),
        pa.field("day", pa.date32()),
    ]
)
KEY = ["id", "name"]
GOOD: tuple[Any, ...] = (1, "one", 1.5, 1, b"x", 100)
UPSERT, UPDATE, DELETE, INSERT = WriteOp.UPSERT, WriteOp.UPDATE, WriteOp.DELETE, WriteOp.INSERT


class Wire:
    """Calls with bodies of any kind on the one tablet of a table that has one row."""

    def __init__(self, cluster: LocalCluster, table: AsyncTable) -> None:
        self.cluster = cluster
        self.table = table
        self._sequence = 0

    @property
    def tablet_id(self) -> TabletId:
        return self.table.cache.tablet(0).tablet.tablet_id

    async def call(self, method: Any, body: Any, *blobs: Any) -> Any:
        where = self.table.cache.tablet(0)
        return await self.table.runtime.peers.call(
            where.address, method, body, timeout_s=10.0, blobs=blobs
        )

    def request(self) -> RequestId:
        self._sequence += 1
        return RequestId(ClientId("wire"), self._sequence, 1)

    async def write(
        self,
        op: WriteOp,
        *rows: tuple[Any, ...],
        columns: tuple[str, ...] = (),
        versions: tuple[int, ...] = (),
        blob: Any = None,
    ) -> Any:
        body = Write(self.tablet_id, 1, op, self.request(), rows, columns, versions)
        return await self.call(WRITE, body, *([] if blob is None else [blob]))

    async def unchanged(self) -> None:
        """The server answers, and the table is what it was."""
        rows = (await self.table.scan()).to_pylist()
        assert [(row["id"], row["name"], row["amount"]) for row in rows] == [GOOD[:3]]


@asynccontextmanager
async def wire(root: Path) -> AsyncIterator[Wire]:
    async with local_cluster(root, tservers=1) as cluster:
        table = await cluster.database.create_table(
            "t", SCHEMA, key=KEY, durability=segments("ram", "ram")
        )
        here = Wire(cluster, table)
        await here.write(UPSERT, GOOD)
        yield here
        await here.unchanged()
        for n in range(3):  # and a head full of whatever got in can be sealed
            await here.write(UPSERT, (n, "filler", None, 0, b"x" * (600 << 10), None))
        log = next(iter(cluster.tservers[0]._tablets.values()))._log
        async with asyncio.timeout(20):
            await log.wait_until(lambda: len(log._unsealed) == 1)


async def refused(call: Awaitable[Any], what: str) -> None:
    """A call must end in one of the errors that tell its caller what to change."""
    try:
        await call
    except (InvalidArgument, ColumnNotFound, TooLarge, VersionMismatch):
        return
    pytest.fail(what)


# ---- rows -------------------------------------------------------------------------------------

BAD_ROWS: dict[str, tuple[WriteOp, tuple[Any, ...], dict[str, Any]]] = {
    "too few values": (UPSERT, ((2, "b"),), {}),
    "too many values": (UPSERT, ((*GOOD, 1),), {}),
    "no values": (UPSERT, ((),), {}),
    "text for a number": (UPSERT, (("2", "b", 1.0, 1, b"", 1),), {}),
    "number for text": (UPSERT, ((2, 2, 1.0, 1, b"", 1),), {}),
    "text for bytes": (UPSERT, ((2, "b", 1.0, 1, "x", 1),), {}),
    "bytes for text": (UPSERT, ((2, b"b", 1.0, 1, b"", 1),), {}),
    "a list": (UPSERT, ((2, "b", [1.0], 1, b"", 1),), {}),
    "a map": (UPSERT, ((2, "b", {"a": 1}, 1, b"", 1),), {}),
    "float for an integer": (UPSERT, ((2.5, "b", 1.0, 1, b"", 1),), {}),
    "null key": (UPSERT, ((None, "b", 1.0, 1, b"", 1),), {}),
    "null where none may be": (UPSERT, ((2, "b", 1.0, None, b"", 1),), {}),
    "out of the range of int8": (UPSERT, ((2, "b", 1.0, 128, b"", 1),), {}),
    "out of the range of int64": (UPSERT, ((1 << 63, "b", 1.0, 1, b"", 1),), {}),
    "out of the range of date32": (UPSERT, ((2, "b", 1.0, 1, b"", 1 << 31),), {}),
    "a row over the limit": (UPSERT, ((2, "b", 1.0, 1, b"x" * ((1 << 20) + 1), 1),), {}),
    "the second row is bad": (UPSERT, ((2, "b", 1.0, 1, b"", 1), (3,)), {}),
    "a key twice in an insert": (INSERT, ((2, "b", 1.0, 1, b"", 1),) * 2, {}),
    "unknown column": (UPDATE, ((1, "one", 1),), {"columns": ("id", "name", "zzz")}),
    "key column left out": (UPDATE, ((1, 1.0),), {"columns": ("id", "amount")}),
    "column twice": (UPDATE, ((1, "one", 1, 1),), {"columns": ("id", "name", "id", "small")}),
    "not null left out": (UPSERT, ((1, "one"),), {"columns": ("id", "name")}),
    "delete of more than the key": (DELETE, (GOOD,), {}),
    "delete with other columns": (DELETE, ((1, 1.0),), {"columns": ("id", "amount")}),
    "too many versions": (UPSERT, (GOOD,), {"versions": (1, 2)}),
    "negative version": (UPSERT, (GOOD,), {"versions": (-1,)}),
    "huge version": (UPSERT, (GOOD,), {"versions": ((1 << 64) - 1,)}),
}


async def test_bad_rows_are_refused_and_nothing_changes(tmp_path: Path) -> None:
    """Wrong arity, types, ranges, nulls, columns, versions: all are the caller's to mend."""
    async with wire(tmp_path) as here:
        for name, (op, rows, more) in BAD_ROWS.items():
            await refused(here.write(op, *rows, **more), name)
            await here.unchanged()


async def test_odd_but_right_rows_are_taken(tmp_path: Path) -> None:
    """NaN, infinities, ends of ranges, empty text, no rows at all."""
    async with wire(tmp_path) as here:
        odd = [
            (-(1 << 63), "", float("nan"), -128, b"", -(1 << 31)),
            ((1 << 63) - 1, "\x00", float("-inf"), 127, None, (1 << 31) - 1),
        ]
        assert (await here.write(UPSERT, *odd)).body.row_count == 2
        assert (await here.write(UPSERT)).body.row_count == 0
        keys = tuple(row[:2] for row in odd)
        found = (await here.call(GET, Get(here.tablet_id, keys))).body.rows
        assert np.isnan(found[0][0][2])
        assert found[1][0] == odd[1]
        assert (await here.write(DELETE, *keys)).body.row_count == 2


# ---- Arrow ------------------------------------------------------------------------------------


def batch(**changes: Any) -> pa.RecordBatch:
    """Two good rows, with some columns changed, or left out (None)."""
    columns: dict[str, Any] = {
        "id": pa.array([2, 3], pa.int64()),
        "name": pa.array(["b", "c"]),
        "amount": pa.array([1.0, None]),
        "small": pa.array([1, 2], pa.int8()),
        "data": pa.array([b"x", None]),
        "day": pa.array([1, None], pa.date32()),
    }
    columns.update(changes)
    return pa.RecordBatch.from_pydict({k: v for k, v in columns.items() if v is not None})


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for one in batches:
            writer.write_batch(one)
    return bytes(sink.getvalue())


def with_offsets(*offsets: int) -> bytes:
    """A stream in which the offsets of the names are these, instead of 0, 1, 2."""
    good = stream(batch())
    right = np.array([0, 1, 2], np.int32).tobytes()
    assert good.count(right) == 1
    return good.replace(right, np.array(offsets, np.int32).tobytes())


def bad_offsets() -> bytes:
    """Text whose offsets point outside of its data."""
    return with_offsets(0, 1, 9999)


def falling_offsets() -> bytes:
    return with_offsets(0, 2, 1)


def negative_offsets() -> bytes:
    return with_offsets(-5, 1, 2)


def bad_utf8() -> bytes:
    good = stream(batch(name=pa.array(["qq", "qq"])))
    assert good.count(b"qqqq") == 1
    return good.replace(b"qqqq", b"q\xff\xfeq")


def bad_dictionary() -> bytes:
    """Indices outside of the dictionary."""
    indices = pa.array([0, 7], pa.int8())
    names = pa.DictionaryArray.from_arrays(indices, pa.array(["b"]), safe=False)
    return stream(batch(name=names))


def bad_column_name() -> bytes:
    """A schema whose column name is not UTF-8."""
    return stream(batch()).replace(b"amount", b"\xff\xfeount")


def twice() -> bytes:
    arrays = [*batch().columns, batch().column(0)]
    return stream(pa.RecordBatch.from_arrays(arrays, names=[*batch().schema.names, "id"]))


def huge_lengths() -> bytes:
    """A stream whose first message says that it is two gigabytes long."""
    return b"\xff\xff\xff\xff\xff\xff\xff\x7f" + stream(batch())[8:]


BAD_BLOBS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "garbage": lambda: b"\x00garbage" * 100,
    "cut": lambda: stream(batch())[:-100],
    "schema alone": lambda: stream(batch())[:400],
    "no batch": lambda: bytes(batch().schema.serialize()),
    "two batches": lambda: stream(batch(), batch()),
    "huge lengths": huge_lengths,
    "bad offsets": bad_offsets,
    "falling offsets": falling_offsets,
    "negative offsets": negative_offsets,
    "bad UTF-8": bad_utf8,
    "bad dictionary": bad_dictionary,
    "bad column name": bad_column_name,
    "column twice": twice,
    "unknown column": lambda: stream(batch(zzz=pa.array([1, 2]))),
    "key column missing": lambda: stream(batch(id=None)),
    "not null missing": lambda: stream(batch(small=None)),
    "null in the key": lambda: stream(batch(id=pa.array([2, None], pa.int64()))),
    "null where none may be": lambda: stream(batch(small=pa.array([1, None], pa.int8()))),
    "text for a number": lambda: stream(batch(id=pa.array(["2", "3"]))),
    "out of range": lambda: stream(batch(small=pa.array([1, 128]))),
    "a fraction for an integer": lambda: stream(batch(id=pa.array([2.0, 3.5]))),
    "a list": lambda: stream(batch(amount=pa.array([[1.0], [2.0]]))),
    "a struct": lambda: stream(batch(amount=pa.array([{"a": 1}, {"a": 2}]))),
    "a row over the limit": lambda: stream(batch(data=pa.array([b"x" * ((1 << 20) + 1), b""]))),
}


async def test_bad_arrow_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    """Kernels believe offsets, so nothing is believed before it has been checked."""
    async with wire(tmp_path) as here:
        for name, make in BAD_BLOBS.items():
            for op in (UPSERT, INSERT):
                await refused(here.write(op, blob=make()), name)
            await here.unchanged()


@pytest.mark.parametrize("seed", range(3))
async def test_flipped_bits_in_arrow_never_break_the_server(tmp_path: Path, seed: int) -> None:
    """Any damage is refused or reads as other rows; it never ends a server."""
    good = stream(batch())
    random = np.random.default_rng(seed)
    async with wire(tmp_path) as here:
        for _ in range(150):
            data = bytearray(good)
            for place in random.integers(0, len(data), random.integers(1, 5)).tolist():
                data[place] ^= 1 << int(random.integers(0, 8))
            try:
                await here.write(UPSERT, blob=bytes(data))
            except StelaeError:
                continue
        found = await here.table.scan()
        found.validate(full=True)
        others = [k for k in found.select(KEY).to_pylist() if (k["id"], k["name"]) != GOOD[:2]]
        for start in range(0, len(others), 50):
            await here.table.delete(pa.Table.from_pylist(others[start : start + 50]))


async def test_columns_of_a_batch_are_checked_as_those_of_rows(tmp_path: Path) -> None:
    """The list in the body, not only what the stream has."""
    async with wire(tmp_path) as here:
        for columns in (("name", "small"), ("id", "id", "name", "small"), ("zzz",), ("id", "name")):
            with pytest.raises((InvalidArgument, ColumnNotFound)):
                await here.write(UPSERT, columns=columns, blob=stream(batch()))
            await here.unchanged()
        with pytest.raises(InvalidArgument):
            await here.write(UPDATE, columns=("amount",), blob=stream(batch()))
        for versions in ((1,), (1, 2, 3), (1 << 63, 0)):
            with pytest.raises(InvalidArgument):
                await here.write(UPSERT, versions=versions, blob=stream(batch()))
        with pytest.raises(VersionMismatch):
            await here.write(UPSERT, versions=(-1, 0), blob=stream(batch()))


async def test_other_types_of_the_same_values_are_taken(tmp_path: Path) -> None:
    """Dictionaries, large and view types, and narrower numbers lose nothing."""
    async with wire(tmp_path) as here:
        changed = batch(
            id=pa.array([2, 3], pa.int16()),
            name=pa.array(["b", "c"]).dictionary_encode(),
            data=pa.array([b"x", None], pa.large_binary()),
        )
        assert (await here.write(UPSERT, blob=stream(changed))).body.row_count == 2
        assert (await here.write(UPSERT, blob=stream(batch().slice(0, 0)))).body.row_count == 0
        keys = pa.Table.from_batches([batch().select(KEY)])
        assert (await here.table.get_many(keys)).to_pylist() == pa.Table.from_batches(
            [batch()]
        ).to_pylist()
        await here.table.delete(keys)


# ---- reads ------------------------------------------------------------------------------------


async def test_bad_keys_are_refused(tmp_path: Path) -> None:
    """Of a get and of a get_many."""
    bad: list[tuple[Any, ...]] = [
        (),
        (1,),
        (1, "one", 2),
        ("1", "one"),
        (None, "one"),
        (1, None),
        (1, 10**12),
        (1, b"one"),
        (1.5, "one"),
        (1 << 63, "one"),
        ([1], "one"),
    ]
    async with wire(tmp_path) as here:
        for key in bad:
            await refused(here.call(GET, Get(here.tablet_id, (GOOD[:2], key))), repr(key))
        assert (await here.call(GET, Get(here.tablet_id, ()))).body.rows == ()
        with pytest.raises(ColumnNotFound):
            await here.call(GET, Get(here.tablet_id, (GOOD[:2],), ("zzz",)))
        with pytest.raises(InvalidArgument):
            await here.call(GET_MANY, GetMany(here.tablet_id))
        keys = batch().select(KEY)
        with pytest.raises(ColumnNotFound):
            await here.call(GET_MANY, GetMany(here.tablet_id, ("_version",)), encode_batch(keys))
        for make in (
            lambda: b"x",
            lambda: stream(batch().select(["id"])),
            lambda: stream(keys, keys),
            bad_offsets,
            bad_utf8,
        ):
            with pytest.raises((InvalidArgument, ColumnNotFound)):
                await here.call(GET_MANY, GetMany(here.tablet_id), make())
        await here.unchanged()


async def test_a_column_asked_for_twice_comes_twice(tmp_path: Path) -> None:
    """From the server; the client does not ask."""
    async with wire(tmp_path) as here:
        twice = ("small", "small")
        reply = await here.call(GET, Get(here.tablet_id, (GOOD[:2],), twice))
        assert reply.body.rows[0][0] == (1, 1)
        assert (await here.call(SCAN, Scan(here.tablet_id, columns=twice))).body.row_count == 1
        keys = encode_batch(batch().select(KEY))
        assert (await here.call(GET_MANY, GetMany(here.tablet_id, twice), keys)).body.row_count == 0
        for call in (here.table.scan, here.table.get_many, here.table.get):
            with pytest.raises(InvalidArgument):
                await call(*([] if call == here.table.scan else [GOOD[:2]]), columns=twice)


BAD_SCANS: dict[str, dict[str, Any]] = {
    "unknown column": {"columns": ("zzz",)},
    "negative limit": {"limit": -1},
    "unknown cursor": {"cursor": "zzz"},
    "a piece of nothing": {"piece": 3},
    "unknown filter column": {"where": ((("zzz", "=", 1),),)},
    "unknown operator": {"where": ((("id", "~", 1),),)},
    "wrong type": {"where": ((("id", "=", "x"),),)},
    "a list for a value": {"where": ((("id", "=", [1]),),)},
    "a value for a list": {"where": ((("id", "in", 1),),)},
    "a map": {"where": ((("id", "in", {"a": 1}),),)},
    "wrong type in a list": {"where": ((("id", "in", [1, "x"]),),)},
    "out of range": {"where": ((("small", "=", 1000),),)},
    "empty group": {"where": ((),)},
    "too many": {"where": tuple((("id", "=", n),) for n in range(2000))},
}


async def test_bad_scans_are_refused(tmp_path: Path) -> None:
    """And those with limits beyond all rows, or filters on NaN and null, are not."""
    async with wire(tmp_path) as here:
        for name, changes in BAD_SCANS.items():
            await refused(here.call(SCAN, Scan(here.tablet_id, **changes)), name)
        for changes in (
            {"limit": (1 << 63) - 1},
            {"limit": (1 << 64) - 1},
            {"where": ((("amount", "!=", float("nan")),),)},
            {"where": ((("id", "in", [1, None]),),)},
        ):
            reply = await here.call(SCAN, Scan(here.tablet_id, **changes))
            assert reply.body.row_count == 1
        for value in (None, float("nan")):
            reply = await here.call(SCAN, Scan(here.tablet_id, where=((("amount", "=", value),),)))
            assert reply.body.row_count == 0


# ---- bodies -----------------------------------------------------------------------------------


class _Raw(msgspec.Struct, frozen=True, array_like=True):
    """A body of any content."""

    a: Any
    b: Any = None
    c: Any = None


async def test_bodies_of_another_shape_are_refused(tmp_path: Path) -> None:
    """Fields of wrong types, too few of them, unknown tablets, merges for nobody."""
    async with wire(tmp_path) as here:
        for method in (WRITE, GET, GET_MANY, SCAN, INSTALL_MERGE):
            loose = type(method)(method.name, _Raw, method.reply)
            for body in (_Raw(1), _Raw(None), _Raw("x", {"a": 1}), _Raw("x", [[1]], 5)):
                with pytest.raises((InvalidArgument, TabletNotHere)):
                    await here.call(loose, body)
        with pytest.raises(TabletNotHere):
            await here.call(GET, Get(TabletId("0" * 32), ((1, "one"),)))
        with pytest.raises(TabletNotHere):
            await here.call(INSTALL_MERGE, InstallMerge(here.tablet_id, 99, 1), b"", b"")
        await here.call(INSTALL_MERGE, InstallMerge(here.tablet_id, 1, 1), b"123", b"1")
        await here.unchanged()
