"""Descriptions of tables as the HTTP API gives them, made into records again."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import msgspec
import pyarrow as pa

from stelae.client.http.json_values import column_to_json, from_json_value
from stelae.core.errors import Unavailable
from stelae.core.ids import Address, ServerUuid, TableId
from stelae.core.messages.catalog import ReplicaLocation, TabletLocation
from stelae.core.records.records import TableRecord, TableState, TabletRecord
from stelae.core.schema.alter import SchemaChange
from stelae.core.schema.durability import (
    Durability,
    Replicas,
    Segments,
    Wal,
    replicas,
    segments,
    wal,
)
from stelae.core.schema.indexes import IndexDefinition, IndexId
from stelae.core.schema.partition import HashPartition, Partitioning, RangePartition
from stelae.core.schema.schema import TableSchema


def json_of(response: httpx.Response) -> dict[str, Any]:
    try:
        return msgspec.json.decode(response.content, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Unavailable(str(response.url), f"it does not answer like Stelae: {error}") from None


def defaults_json(change: SchemaChange) -> dict[str, Any]:
    """The defaults that an alter sets, as JSON values by column; null: none any more."""
    if not change.defaults_ipc:
        return {}
    with pa.ipc.open_stream(change.defaults_ipc) as reader:
        batch = reader.read_next_batch()
    pairs = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column_to_json(column)[0] for name, column in pairs}


def table_record(info: Mapping[str, Any]) -> TableRecord:
    """A table's record from its description as JSON."""
    try:
        becoming = info.get("becoming")
        schema = TableSchema(
            base64.b64decode(info["arrow_schema"], validate=True),
            tuple(info["key"]),
            tuple(info["column_ids"]),
            int(info["next_column_id"]),
            int(info["schema_version"]),
            base64.b64decode(info["arrow_defaults"], validate=True),
        )
        schema = msgspec.structs.replace(schema, indexes=_indexes(info["indexes"], schema))
        return TableRecord(
            TableId(info["id"]),
            info["name"],
            schema,
            _partitioning(info["partition"], schema.arrow),
            durability_of(info["durability"]),
            TableState(info["state"]),
            int(info["generation"]),
            becoming=durability_of(becoming) if becoming is not None else None,
        )
    except (KeyError, TypeError, ValueError, binascii.Error, pa.ArrowException) as error:
        raise Unavailable(
            "the HTTP server", f"a table is not described as by Stelae: {error!r}"
        ) from error


def tablet_location(info: Mapping[str, Any]) -> TabletLocation:
    """Where a tablet is, from its description as JSON."""
    try:
        record = msgspec.convert(info["tablet"], TabletRecord)
        replicas = tuple(
            ReplicaLocation(
                ServerUuid(r["uuid"]), Address(r["address"]), r["voter"], is_leader=r["leader"]
            )
            for r in info["replicas"]
        )
        return TabletLocation(record, Address(info["address"]), info["problem"], replicas)
    except (KeyError, TypeError, msgspec.MsgspecError) as error:
        raise Unavailable(
            "the HTTP server", f"a tablet is not described as by Stelae: {error!r}"
        ) from error


def durability_json(durability: Durability) -> dict[str, Any]:
    """A durability as JSON, the same in requests and answers."""
    match durability:
        case Replicas(count):
            return {"replicas": count}
        case Wal(count, media):
            return {"wal": count, "segments": list(media)}
        case Segments(media):
            return {"segments": list(media)}


def durability_of(info: Mapping[str, Any]) -> Durability:
    """The durability that `durability_json` made this of."""
    if "replicas" in info:
        return replicas(info["replicas"])
    if "wal" in info:
        return wal(info["wal"], info["segments"])
    return segments(*info["segments"])


def _indexes(info: Sequence[Mapping[str, Any]], schema: TableSchema) -> tuple[IndexDefinition, ...]:
    ids = dict(zip(schema.arrow.names, schema.column_ids, strict=True))
    return tuple(IndexDefinition(IndexId(each["id"]), ids[each["column"]]) for each in info)


def _partitioning(info: Mapping[str, Any], schema: pa.Schema) -> Partitioning:
    by_hash = by_range = None
    if info.get("hash"):
        by_hash = HashPartition(tuple(info["hash"]["columns"]), info["hash"]["buckets"])
    if info.get("range"):
        names = tuple(info["range"]["columns"])
        kinds = [schema.field(name).type for name in names]
        splits = tuple(
            tuple(from_json_value(v, k, "range split") for v, k in zip(split, kinds, strict=True))
            for split in info["range"]["splits"]
        )
        by_range = RangePartition(names, splits)
    return Partitioning(by_hash, by_range)
