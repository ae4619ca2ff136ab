"""Whatever Arrow a caller with the right secret sends: an error of ours, and nothing changes.

Over real TCP with real servers in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from stelae.client.input.convert import encode_batch
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    StelaeError,
    VersionMismatch,
)
from stelae.core.messages.rows import GET, GET_MANY, SCAN, Get, GetMany, Scan
from stelae.core.rpc import Blob
from tests.unit.actors.tserver.wire import GOOD, INSERT, KEY, UPDATE, UPSERT, refused, wire


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
        refusals = 0
        for _ in range(150):
            data = bytearray(good)
            for place in random.integers(0, len(data), random.integers(1, 5)).tolist():
                data[place] ^= 1 << int(random.integers(0, 8))
            try:
                await here.write(UPSERT, blob=bytes(data))
            except StelaeError:
                refusals += 1
        assert 0 < refusals < 150
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
        makers: list[Callable[[], Blob]] = [
            lambda: b"x",
            lambda: stream(batch().select(["id"])),
            lambda: stream(keys, keys),
            bad_offsets,
            bad_utf8,
        ]
        for make in makers:
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
