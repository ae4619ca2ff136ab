"""A plain dict to hold a tablet to, and a log to recover it from."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import (
    InvalidArgument,
    RowExists,
    RowNotFound,
    StelaeError,
    VersionMismatch,
)
from stelae.core.ids import RequestId
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import batch_to_rows, rows_to_batch
from stelae.storage.entries.entry import (
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    Result,
    encode_entry,
    encode_prologue,
    entry_length,
    read_entries,
)
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.rows.memory import Executed, TabletMemory
from stelae.storage.segments.image import Image
from stelae.storage.segments.recovered import RecoveredSegment

INT_KEY = TableSchema.of(
    pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("id", pa.int64()),
            pa.field("x", pa.float64(), nullable=False),
            pa.field("day", pa.date32()),
        ]
    ),
    ["id"],
)
WIDE_KEY = TableSchema.of(
    pa.schema(
        [
            pa.field("name", pa.string()),
            pa.field("town", pa.string()),
            pa.field("x", pa.float64(), nullable=False),
            pa.field("flag", pa.bool_()),
            pa.field("number", pa.int16()),
        ]
    ),
    ["number", "town"],
)
Key = tuple[Any, ...]
Row = tuple[Any, ...]


def key_of(schema: TableSchema, row: Row) -> Key:
    return tuple(row[i] for i in schema.key_positions)


def make_key(schema: TableSchema, n: int) -> Key:
    return (n - 4,) if schema is INT_KEY else (n % 3, "town" * (n % 2) + str(n))


def make_row(schema: TableSchema, n: int, salt: int) -> Row:
    name = None if salt % 5 == 0 else f"näme{salt}"
    if schema is INT_KEY:
        return (name, *make_key(schema, n), salt / 4, None if salt % 3 == 0 else salt)
    number, town = make_key(schema, n)
    return (name, town, salt / 4, None if salt % 3 == 0 else salt % 2 == 0, number)


def batch_of(schema: TableSchema, rows: list[Row], columns: list[str]) -> pa.RecordBatch:
    return rows_to_batch(rows, pa.schema([schema.arrow.field(name) for name in columns]))


@dataclass
class Model:
    """What a tablet is: a dict from key to (row, version), and the next version."""

    schema: TableSchema
    rows: dict[Key, tuple[Row, int]] = field(default_factory=dict)
    next_version: int = 1

    def write(
        self, op: WriteOp, rows: list[Row], columns: list[str], if_versions: list[int] | None
    ) -> type[StelaeError] | None:
        """Apply a call to the dict, or return the class of its refusal and change nothing."""
        state = dict(self.rows)
        names = self.schema.arrow.names
        seen: set[Key] = set()
        refusals: list[type[StelaeError]] = []
        for i, given_row in enumerate(rows):
            values = dict(zip(columns, given_row, strict=True))
            key = tuple(values[name] for name in self.schema.key)
            present, version = state.get(key, (None, 0))
            if op is WriteOp.INSERT and key in seen:
                refusals.append(InvalidArgument)
                break
            if if_versions is not None and if_versions[i] != version:
                refusals.append(VersionMismatch)
                break
            if op is WriteOp.INSERT and present is not None:
                refusals.append(RowExists)
                break
            if op is WriteOp.UPDATE and present is None:
                refusals.append(RowNotFound)
                break
            seen.add(key)
            if op is WriteOp.DELETE:
                state.pop(key, None)
                continue
            old = dict(zip(names, present, strict=True)) if present and op is WriteOp.UPDATE else {}
            full = tuple(values[n] if n in values else old.get(n) for n in names)
            state[key] = (full, self.next_version + i)
        if refusals:
            return refusals[0]
        self.rows = state
        self.next_version += len(rows)
        return None


@dataclass
class LoggedSegment:
    """What backups would hold of one segment."""

    segment_id: int
    data: bytearray = field(default_factory=bytearray)
    certificate: CertificateBuilder = field(default_factory=CertificateBuilder)
    image: pa.Buffer | None = None

    def append(self, entry: Entry) -> None:
        buffers = encode_entry(entry)
        for buffer in buffers:
            self.data += memoryview(buffer)
        self.certificate.extend(buffers[0], entry_length(buffers[0]))

    def recovered(self, schema: TableSchema, codec: KeyCodec, rows: bool) -> RecoveredSegment:
        where = f"segment {self.segment_id}"
        if self.image is not None and not rows:
            return RecoveredSegment.from_image(Image.open(self.image, where))
        entries = read_entries(bytes(self.data), self.certificate.certificate, where)
        return RecoveredSegment.from_entries(entries, codec, where)


class World:
    """A tablet, its model, and its log."""

    def __init__(self, schema: TableSchema, hash_bits: int) -> None:
        self.schema = schema
        self.codec = KeyCodec(schema, hash_bits=hash_bits)
        self.tablet = TabletMemory(schema, "table", self.codec)
        self.model = Model(schema)
        self.log: dict[int, LoggedSegment] = {}
        self.slots: dict[int, int] = {}
        self.index = 0
        self.roll()

    def roll(self) -> None:
        """Open a new head."""
        segment_id = max(self.log, default=0) + 1
        prologue = Prologue(
            "table",
            "tablet",
            segment_id,
            1,
            (*self.log, segment_id),
            self.tablet.next_version,
            self.schema,
            self.tablet.results.snapshot(),
        )
        self.slots[segment_id] = self.tablet.new_head(segment_id)
        self.log[segment_id] = LoggedSegment(segment_id)
        payload = encode_prologue(prologue)
        self.log[segment_id].append(Entry(1, 0, EntryKind.PROLOGUE, 0, 0, (), payload))

    def seal(self) -> None:
        """Seal the oldest segment that is closed and not sealed."""
        for segment_id in sorted(self.log)[:-1]:
            logged = self.log[segment_id]
            if logged.image is None:
                slot = self.slots[segment_id]
                logged.image = self.tablet.seal(slot, "table", "tablet", 1)
                image = Image.open(logged.image, f"segment {segment_id}")
                self.tablet.install_sealed(slot, image)
                return

    def write(
        self,
        op: WriteOp,
        rows: list[Row],
        columns: list[str],
        if_versions: list[int] | None,
        as_batch: bool,
        request: RequestId,
    ) -> None:
        """Make one call, hold it against the model, and log it."""
        wanted = self.model.next_version
        refusal = self.model.write(op, rows, columns, if_versions)
        data = batch_of(self.schema, rows, columns) if as_batch else rows
        self.index += 1
        before = self.state()
        if refusal is not None:
            with pytest.raises(refusal) as caught:
                self.tablet.execute(op, data, if_versions, self.index, columns)
            assert type(caught.value) is refusal
            assert self.state() == before
            return
        executed = self.tablet.execute(op, data, if_versions, self.index, columns)
        assert (executed.first_version, executed.row_count) == (wanted, len(rows))
        outcome = b"%d" % executed.first_version
        result = self.tablet.results.record(request, outcome, self.index, 0.0)
        self.append(executed, (result,))

    def append(self, executed: Executed, results: tuple[Result, ...]) -> None:
        payload = executed.payload()
        entry = Entry(
            1,
            self.index,
            executed.kind,
            executed.first_version,
            executed.row_count,
            results,
            payload,
        )
        self.log[max(self.log)].append(entry)

    def state(self) -> tuple[Any, ...]:
        return state_of(self.tablet)

    def check(self, tablet: TabletMemory) -> None:
        """Everything readable of ``tablet`` is what the model says."""
        rows = self.model.rows
        keys = [make_key(self.schema, n) for n in range(KEYS)]
        for key in keys:
            found = tablet.get(key)
            assert (None if found is None else (found.row, found.version)) == rows.get(key)
        asked = rows_to_batch(keys + keys[:2], self.schema.key_schema)
        batch, at, _ = tablet.get_many(asked)
        want = [(i, *rows[k][0], rows[k][1]) for i, k in enumerate(keys + keys[:2]) if k in rows]
        assert [(i, *row) for i, row in zip(at.tolist(), batch_to_rows(batch), strict=True)] == want
        scanned = [
            row
            for part in tablet.scan_snapshot().batches(with_versions=True)
            for row in batch_to_rows(part)
        ]
        assert sorted(scanned, key=itemgetter(-1)) == sorted(
            ((*row, version) for row, version in rows.values()), key=itemgetter(-1)
        )
        assert tablet.row_count == len(rows)
        assert sum(s.live_rows for s in tablet.statistics()) == len(rows)
        assert all(s.dead_rows >= 0 for s in tablet.statistics())


def state_of(tablet: TabletMemory) -> tuple[Any, ...]:
    rows = [
        row
        for part in tablet.scan_snapshot().batches(with_versions=True)
        for row in batch_to_rows(part)
    ]
    return (
        sorted(rows, key=lambda r: r[-1]),
        tablet.next_version,
        tablet.results.snapshot(),
        tablet.row_count,
    )


KEYS = 9
