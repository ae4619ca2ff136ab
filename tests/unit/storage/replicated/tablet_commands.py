"""Commands to a tablet's state, and the tables that they are of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.storage.replicated.commands import (
    Stamp,
)
from stelae.storage.replicated.manifest import decode_manifest
from tests.unit.storage.replicated.group_model import TABLET, Group, ReplicaDisk

KEYS = 6
NAMES = ("a", "b", "c", "d")
KINDS = (pa.int64(), pa.string(), pa.date32())
NARROW = TableSchema.of(
    pa.schema([pa.field("a", pa.string()), pa.field("id", pa.int64()), pa.field("b", pa.int64())]),
    ["id"],
)
WIDE = TableSchema.of(
    pa.schema(
        [
            pa.field("a", pa.string()),
            pa.field("town", pa.string()),
            pa.field("b", pa.int64()),
            pa.field("id", pa.int16()),
        ]
    ),
    ["id", "town"],
)
FOREVER = Stamp(0.0, -1.0)


def value_of(field: pa.Field, key: int, salt: int) -> Any:
    if field.name == "id":
        return key
    if field.name == "town":
        return f"town{key % 2}"
    if salt % 7 == 0:
        return None
    if pa.types.is_string(field.type):
        return f"s{salt}"
    return salt if pa.types.is_integer(field.type) else None


def right_versions(group: Group, op: WriteOp, keys: list[Any]) -> list[int]:
    """The versions that the rows of a call will meet, each at its turn."""
    versions = {key: version for key, (_, version) in group.model.rows.items()}
    found = []
    for i, key in enumerate(keys):
        found.append(versions.get(key, 0))
        versions[key] = 0 if op is WriteOp.DELETE else group.model.next_version + i
    return found


def write(group: Group, move: Any, salt: int, sequences: list[int]) -> None:
    _, op, keys, as_batch, conditions, left_out, client, what = move
    asked = group.history[-1 - salt % min(3, len(group.history))]
    fields = [f for f in asked.arrow if f.name in asked.key or f.name not in left_out]
    if op is WriteOp.DELETE:
        fields = [asked.arrow.field(name) for name in asked.key]
    rows = [tuple(value_of(f, key, salt + i) for f in fields) for i, key in enumerate(keys)]
    places = [[f.name for f in fields].index(name) for name in asked.key]
    if_versions = None
    if conditions != "none":
        if_versions = right_versions(group, op, [tuple(r[p] for p in places) for r in rows])
        if_versions[-1] += (1 + salt % 2) * (conditions == "wrong")
    if what == "new":
        sequences[client] += 1
    sequence = max(1, sequences[client] - (3 if what == "stale" else 0))
    request = RequestId(ClientId(f"client{client}"), sequence, max(1, sequence - 1))
    columns = [f.name for f in fields]
    group.write(
        op,
        rows,
        columns,
        asked=asked,
        if_versions=if_versions,
        request=request,
        as_batch=as_batch,
    )


def alter(group: Group, move: Any, salt: int) -> None:
    names = group.model.schema.arrow.names
    if move[0] == "add" and move[1] not in names:
        kind = KINDS[move[2]]
        value = pa.scalar(f"s{salt}" if kind == pa.string() else salt, kind)
        defaults = {move[1]: value} if move[3] and kind != pa.date32() else None
        group.alter(add=[pa.field(move[1], kind)], defaults=defaults)
    elif move[0] == "drop" and move[1] in names:
        group.alter(drop=[move[1]])
    elif move[0] == "rename" and move[1] in names and move[2] not in names:
        group.alter(rename={move[1]: move[2]})


def upsert(group: Group, *keys: int, value: int = 1) -> None:
    group.write(WriteOp.UPSERT, [("x", key, value) for key in keys], ["a", "id", "b"])


def delete(group: Group, *keys: int) -> None:
    group.write(WriteOp.DELETE, [(key,) for key in keys], ["id"])


def flush(replica: ReplicaDisk) -> list[int]:
    """Flush, and return the segments that the manifest names."""
    replica.begin_flush()
    replica.end_flush()
    assert replica.superblock is not None
    return [f.segment_id for f in decode_manifest("m", TABLET, replica.superblock[1]).images]
