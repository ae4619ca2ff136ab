"""Replicas of one tablet that execute one log, each flushed, restarted and copied as it comes; and
what a dict says of every command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from stelae.actors.tserver.tablet.input import decode_rows
from stelae.core.errors import (
    InvalidArgument,
    RowExists,
    RowNotFound,
    StaleRequest,
    StelaeError,
    VersionMismatch,
)
from stelae.core.ids import ClientId, OpId, RequestId, TableId, TabletId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.alter import altered, next_history, schema_change
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import batch_to_rows, rows_to_batch
from stelae.storage.entries.entry import encode_batch
from stelae.storage.entries.outcomes import answer
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.replicated.commands import (
    Stamp,
    encode_alter,
    encode_mark,
    encode_write,
)
from stelae.storage.replicated.flush import Flush
from stelae.storage.replicated.manifest import (
    ImageFile,
    decode_manifest,
    describe_image,
    open_image,
)
from stelae.storage.replicated.state_machine import TabletStateMachine

TABLET = TabletId("tablet")
EXPIRY_S = 5.0
Expected = tuple[int, int] | type[StelaeError]
"""(first version, rows), or the class of the refusal."""


def record_of(schema: TableSchema) -> TableRecord:
    """The first record of a table."""
    return TableRecord(
        TableId("table"),
        "table",
        schema,
        hash_partition(schema.key[0], 1),
        segments("disk"),
        TableState.RUNNING,
    )


def stream_of(batch: pa.RecordBatch) -> memoryview:
    return memoryview(encode_batch(batch))


def outcome_of(outcome: bytes | int | tuple[bytes, ...]) -> Any:
    """What a command came to, as something that can be compared."""
    if isinstance(outcome, int):
        return outcome
    assert isinstance(outcome, bytes), "a group has one for each of its calls"
    try:
        reply = answer(outcome)
    except StelaeError as error:
        return type(error)
    return (reply.first_version, reply.row_count)


@dataclass
class Model:
    """A tablet as a dict from key to (values by column id, version), and its clients."""

    schema: TableSchema
    rows: dict[tuple[Any, ...], tuple[dict[int, Any], int]] = field(default_factory=dict)
    next_version: int = 1
    now_s: float = 0.0
    clients: dict[str, tuple[int, float, dict[int, Expected]]] = field(default_factory=dict)

    def stamp(self, stamp: Stamp) -> None:
        self.now_s = max(self.now_s, stamp.now_s)
        self.clients = {
            name: client
            for name, client in self.clients.items()
            if client[1] >= stamp.forget_before_s
        }

    def write(self, write: Write, asked: TableSchema, rows: list[tuple[Any, ...]]) -> Expected:
        """What a request comes to; a repeated one to the same."""
        request = write.request
        floor, _, results = self.clients.get(request.client_id, (request.first_incomplete, 0, {}))
        if request.sequence in results:
            return results[request.sequence]
        if request.sequence < floor:
            return StaleRequest
        found = self._carry_out(write, asked, rows)
        floor = max(floor, request.first_incomplete)
        results = {n: result for n, result in results.items() if n >= floor}
        results[request.sequence] = found
        self.clients[request.client_id] = (floor, self.now_s, results)
        return found

    def _carry_out(self, write: Write, asked: TableSchema, rows: list[tuple[Any, ...]]) -> Expected:
        ids = dict(zip(asked.arrow.names, asked.column_ids, strict=True))
        present = dict(zip(self.schema.column_ids, self.schema.arrow.names, strict=True))
        state, first = dict(self.rows), self.next_version
        seen: set[Any] = set()
        for i, row in enumerate(rows):
            named = dict(zip(write.columns, row, strict=True))
            key = tuple(named[name] for name in asked.key)
            before, version = state.get(key, (None, 0))
            if write.op is WriteOp.INSERT and key in seen:
                return InvalidArgument
            if write.if_versions and write.if_versions[i] != version:
                return VersionMismatch
            if write.op is WriteOp.INSERT and before is not None:
                return RowExists
            if write.op is WriteOp.UPDATE and before is None:
                return RowNotFound
            seen.add(key)
            if write.op is WriteOp.DELETE:
                state.pop(key, None)
                continue
            values = {ids[name]: value for name, value in named.items() if ids[name] in present}
            defaults = {n: self.schema.write_default(name).as_py() for n, name in present.items()}
            old = defaults if before is None or write.op is not WriteOp.UPDATE else before
            state[key] = ({**old, **values}, first + i)
        self.rows = state
        self.next_version += len(rows)
        return first, len(rows)

    def alter(self, schema: TableSchema) -> None:
        for row, _ in self.rows.values():
            kept = {n: row[n] for n in schema.column_ids if n in row}
            row.clear()
            for column_id, name in zip(schema.column_ids, schema.arrow.names, strict=True):
                row[column_id] = kept.get(column_id)
                if column_id not in kept:
                    row[column_id] = schema.read_default(name).as_py()
        self.schema = schema

    def listed(self) -> list[tuple[Any, ...]]:
        """All rows in the present columns, with versions, in their order."""
        ids = self.schema.column_ids
        found = [(*[row[n] for n in ids], version) for row, version in self.rows.values()]
        return sorted(found, key=lambda row: row[-1])


class ReplicaDisk:
    """One replica: its machine, and what its disk holds."""

    def __init__(self, table: TableRecord, hash_bits: int) -> None:
        self.table = table
        self.hash_bits = hash_bits
        self.superblock: tuple[OpId, bytes] | None = None
        self.files: dict[str, bytes] = {}
        self.flush: Flush | None = None
        self.survivor_bytes = 0
        """At most so large are survivors; 0: nothing is cleaned."""
        self.survivors = 0
        self.machine = self.empty()

    def empty(self) -> TabletStateMachine:
        codec = KeyCodec(self.table.schema, hash_bits=self.hash_bits)
        machine = TabletStateMachine(TABLET, self.table, codec)
        machine.log_factor = 1.0
        return machine

    def catch_up(self, log: list[bytes], outcomes: list[Any], until: int) -> None:
        """Execute the log's entries up to ``until``, and give what was always given for them."""
        for index in range(self.machine.applied_index + 1, until + 1):
            found = outcome_of(self.machine.apply(index, 1, log[index - 1]))
            if index > len(outcomes):
                outcomes.append(found)
            assert found == outcomes[index - 1]

    def begin_flush(self) -> None:
        last = OpId(1, self.machine.applied_index)
        self.flush = self.machine.begin_flush(last, self.survivor_bytes)

    def end_flush(self) -> None:
        """Images first, then the superblock, then nothing but what it names."""
        flush = self.flush
        assert flush is not None
        for slot in flush.unsealed:
            sealed = self.machine.seal(flush, slot)
            self.files[sealed.file.name] = sealed.content.to_pybytes()
            self.machine.installed(sealed)
        built = [self.machine.survive(flush, window) for window in flush.windows]
        survivors: dict[int, ImageFile | None] = {}
        for each in built:
            survivors.update(dict.fromkeys(each.window.slots))
            if each.content is not None:
                id_, rows = each.window.segment_id, each.row_count
                file = survivors[each.window.slots[0]] = describe_image(id_, each.content, rows)
                self.files[file.name] = each.content.to_pybytes()
        manifest = self.machine.manifest(flush, survivors)
        self.superblock = (flush.last, manifest)
        self.machine.flushed(flush)
        for each in built:
            move = self.machine.begin_move(each, survivors[each.window.slots[0]])
            while not self.machine.memory.step(move, 2):
                assert self.listed()
        self.survivors += sum(each.content is not None for each in built)
        named = {file.name for file in decode_manifest("m", TABLET, manifest).images}
        self.files = {name: data for name, data in self.files.items() if name in named}
        self.flush = None

    def restart(self) -> None:
        """Begin again from the disk; the log is executed by `catch_up`."""
        self.machine = self.empty()
        self.flush = None
        if self.superblock is None:
            return
        _, data = self.superblock
        images = [
            open_image(file, TABLET, self.files[file.name], file.name)
            for file in decode_manifest("m", TABLET, data).images
        ]
        self.machine.load(data, images)
        self.machine.restore(data)

    def copy(self, source: ReplicaDisk) -> None:
        """Take over the disk of another replica, and begin again from that."""
        if source.superblock is not None:
            self.superblock, self.files = source.superblock, dict(source.files)
            self.restart()

    def listed(self) -> list[tuple[Any, ...]]:
        batches = self.machine.memory.scan_snapshot().batches(with_versions=True)
        return sorted((row for b in batches for row in batch_to_rows(b)), key=lambda row: row[-1])


class Group:
    """Three replicas, one log, one model."""

    def __init__(self, schema: TableSchema, hash_bits: int = 64) -> None:
        self.table = record_of(schema)
        self.history: list[TableSchema] = [schema]
        self.model = Model(schema)
        self.log: list[bytes] = []
        self.outcomes: list[Any] = []
        self.expected: list[Any] = []
        self.clock_s = 0.0
        self.hash_bits = hash_bits
        self.replicas = [ReplicaDisk(self.table, hash_bits) for _ in range(3)]
        self.replicas[1].survivor_bytes, self.replicas[2].survivor_bytes = 2000, 9000
        self.append(encode_alter(self.table, self.stamp()), schema.version)

    def stamp(self) -> Stamp:
        stamp = Stamp(self.clock_s, self.clock_s - EXPIRY_S)
        self.model.stamp(stamp)
        return stamp

    def append(self, command: bytes, expected: Any) -> None:
        self.log.append(command)
        self.expected.append(expected)
        self.replicas[0].catch_up(self.log, self.outcomes, len(self.log))
        assert self.outcomes[-1] == expected

    def write(
        self,
        op: WriteOp,
        rows: list[tuple[Any, ...]],
        columns: list[str],
        *,
        asked: TableSchema | None = None,
        if_versions: list[int] | None = None,
        request: RequestId | None = None,
        as_batch: bool = False,
    ) -> Any:
        """Make one call, as its leader would, and hold it against the model; its outcome."""
        asked = asked or self.model.schema
        stamp = self.stamp()
        request = request or RequestId(ClientId("any"), len(self.log), len(self.log))
        conditions = tuple(if_versions or ())
        write = Write(TABLET, asked.version, op, request, (), tuple(columns), conditions)
        data: Any = tuple(rows)
        stream = None
        if as_batch:
            batch = rows_to_batch(rows, pa.schema([asked.arrow.field(n) for n in columns]))
            stream = stream_of(batch)
            data = decode_rows(stream, asked, "table", tuple(columns))
        self.replicas[0].machine.check_write(write, data)
        command = encode_write(write, data, stream, schema_version=asked.version, stamp=stamp)
        self.append(command, self.model.write(write, asked, rows))
        return self.outcomes[-1]

    def alter(self, **change: Any) -> None:
        schema = altered(self.model.schema, schema_change(**change), "table")
        self.table = TableRecord(
            self.table.table_id,
            self.table.name,
            schema,
            self.table.partitioning,
            self.table.durability,
            self.table.state,
            self.table.generation + 1,
            next_history(self.model.schema, self.table.history),
        )
        self.history.append(schema)
        self.model.alter(schema)
        self.append(encode_alter(self.table, self.stamp()), schema.version)

    def mark(self) -> int:
        self.append(encode_mark(self.stamp()), len(self.log) + 1)
        return len(self.log)

    def check(self) -> None:
        """All replicas have what the model has, and what one has that was never flushed."""
        fresh = ReplicaDisk(self.replicas[0].table, self.hash_bits)
        sums = []
        for replica in (*self.replicas, fresh):
            replica.catch_up(self.log, self.outcomes, len(self.log))
            assert replica.listed() == self.model.listed()
            assert replica.machine.memory.next_version == self.model.next_version
            assert replica.machine.now_s == self.model.now_s
            source = replica.machine.checksum(len(self.log))
            assert source is not None
            sums.append(source.compute())
        assert sums.count(sums[0]) == len(sums)
        assert sums[0].row_count == len(self.model.rows)
