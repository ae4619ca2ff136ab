"""Whatever a caller with the right secret sends: an error of ours, a server that lives, no change.

Over real TCP with real servers in this process. `LocalCluster.stop` fails the test if any handler
raised something that is not a `StelaeError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stelae.core.errors import (
    InvalidArgument,
    TabletNotHere,
)
from stelae.core.ids import TabletId
from stelae.core.messages.rows import GET, GET_MANY, SCAN, WRITE, Get, Scan, WriteOp
from stelae.core.messages.servers import INSTALL_MERGE, InstallMerge
from stelae.core.rpc import Method
from tests.unit.actors.tserver.wire import DELETE, GOOD, INSERT, UPDATE, UPSERT, refused, wire

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
    "too many": {"where": tuple((("id", "<", n),) for n in range(2000))},
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
        methods: list[Method[Any, Any]] = [WRITE, GET, GET_MANY, SCAN, INSTALL_MERGE]
        for method in methods:
            loose = Method(method.name, _Raw, method.reply)
            for body in (_Raw(1), _Raw(None), _Raw("x", {"a": 1}), _Raw("x", [[1]], 5)):
                with pytest.raises((InvalidArgument, TabletNotHere)):
                    await here.call(loose, body)
        with pytest.raises(TabletNotHere):
            await here.call(GET, Get(TabletId("0" * 32), ((1, "one"),)))
        with pytest.raises(TabletNotHere):
            await here.call(INSTALL_MERGE, InstallMerge(here.tablet_id, 99, (1,)), b"\1")
        await here.call(INSTALL_MERGE, InstallMerge(here.tablet_id, 1, (3,)), b"123", b"1")
        await here.unchanged()
