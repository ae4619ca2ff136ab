"""Bringing a tablet's rows over to another one, piece by piece, against plain dicts."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData, TabletNotReady
from stelae.core.ids import ClientId, OpId, RequestId, TableId, TabletId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.records.records import TableRecord, TableState
from stelae.core.records.succession import SuccessionStage
from stelae.core.schema.durability import replicas
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.entry import (
    Entry,
    EntryKind,
    Prologue,
    Result,
    encode_batch,
    encode_entry,
    encode_prologue,
    read_entries,
)
from stelae.storage.entries.outcomes import answer
from stelae.storage.replicated.commands import (
    ImportCommand,
    Stamp,
    SuccessionCommand,
    encode_alter,
    encode_import,
    encode_succession,
    encode_write,
)
from stelae.storage.replicated.state_machine import TabletStateMachine
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.image import Image
from stelae.storage.segments.recovered import RecoveredSegment

SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.string(), False), pa.field("value", pa.int64())]), ("id",)
)
KEYS = [f"key {n}" for n in range(8)]


class Source:
    """A tablet that is written, and the plain dict that says what it holds."""

    def __init__(self) -> None:
        self.memory = TabletMemory(SCHEMA, "t")
        self.rows: dict[str, tuple[int, int]] = {}
        self._index = 0
        self._segment = 0
        self.roll()

    def roll(self) -> None:
        self._segment += 1
        self.memory.new_head(self._segment)

    def write(self, keys: list[str], value: int, *, bulk: bool) -> None:
        self._index += 1
        rows: Any = [(key, value) for key in keys]
        if bulk:
            columns = [pa.array(keys), pa.array([value] * len(keys), pa.int64())]
            stored = pa.schema(list(SCHEMA.stored)[:-2])
            rows = pa.RecordBatch.from_arrays(columns, schema=stored)
        first = self.memory.execute(WriteOp.UPSERT, rows, None, self._index).first_version
        for place, key in enumerate(keys):
            self.rows[key] = (value, first + place)

    def delete(self, keys: list[str]) -> None:
        self._index += 1
        self.memory.execute(WriteOp.DELETE, [(key,) for key in keys], None, self._index)
        for key in keys:
            self.rows.pop(key, None)


def read(memory: TabletMemory) -> dict[str, tuple[int, int]]:
    """What a tablet holds: by scan, and the same by key."""
    found: dict[str, tuple[int, int]] = {}
    for batch in memory.scan_snapshot().batches(with_versions=True):
        for row in batch.to_pylist():
            assert row["id"] not in found, "a key came twice"
            found[row["id"]] = (row["value"], row["_version"])
    for key in KEYS:
        one = memory.get((key,))
        assert (None if one is None else (one.row[1], one.version)) == found.get(key)
    assert memory.row_count == len(found)
    return found


def bring(source: TabletMemory, target: TabletMemory, limit_bytes: int, pieces: int) -> bool:
    """So many pieces, each through the form in which it travels; whether that was all."""
    for _ in range(pieces):
        changes = source.changes_since(target.next_version, limit_bytes)
        assert changes is not None
        batch = None
        if changes.batch is not None:
            batch = target.imported_batch(encode_batch(changes.batch))
        target.import_changes(batch, changes.next_version, target.last_index + 1)
        if changes.is_last:
            return True
    return False


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "bulk", "delete", "roll", "bring", "bring", "seal"]),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=5, unique=True),
        st.integers(1, 3),
    ),
    max_size=60,
)


def fresh() -> TabletMemory:
    memory = TabletMemory(SCHEMA, "t")
    memory.new_head(1)
    return memory


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 400))
def test_a_tablet_that_is_brought_over_while_it_is_written_holds_the_same(
    steps: list[tuple[str, list[str], int]], limit_bytes: int
) -> None:
    """Whatever is written, deleted, sealed and rolled between pieces of whatever size: in the end
    rows, versions and the next version are the source's."""
    source, target = Source(), fresh()
    for number, (kind, keys, pieces) in enumerate(steps):
        if kind in ("write", "bulk"):
            source.write(keys, number, bulk=kind == "bulk")
        elif kind == "delete":
            source.delete(keys)
        elif kind == "roll":
            source.roll()
            target.new_head(number + 2)
        elif kind == "bring":
            bring(source.memory, target, limit_bytes, pieces)
        else:
            _seal_all(source.memory)
    while not bring(source.memory, target, limit_bytes, 1):
        pass
    assert read(source.memory) == source.rows
    assert read(target) == source.rows
    assert target.next_version == source.memory.next_version
    further = fresh()  # what was brought over can be brought over again
    while not bring(target, further, limit_bytes, 1):
        pass
    assert read(further) == source.rows


def _seal_all(memory: TabletMemory) -> None:
    for segment in memory.statistics():
        if segment.closed and not segment.sealed:
            content = memory.seal(segment.slot, "table", "tablet", 1)
            memory.install_sealed(segment.slot, Image.open(content, "image", check_rows=True))


def test_who_missed_a_tombstone_that_is_forgotten_is_told_so() -> None:
    """A tablet that has the row would keep it for ever: it has to begin anew, with nothing."""
    source, target = Source(), fresh()
    source.write([KEYS[0]], 1, bulk=False)
    bring(source.memory, target, 1000, 1)
    source.delete([KEYS[0]])
    source.roll()
    source.memory.drop(0)
    assert source.memory.changes_since(target.next_version, 1000) is None
    assert source.memory.changes_since(1, 1000) is not None
    assert read(target), "it has the row still"


def test_who_has_more_than_there_is_is_told_so() -> None:
    """The source has lost what it had: what the other one has is of another log."""
    assert Source().memory.changes_since(2, 1000) is None


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_piece_is_refused(seed: int) -> None:
    """Another schema, versions that do not rise, or noise: nothing is taken, whatever it is."""
    rng, target = random.Random(seed), fresh()
    source = Source()
    source.write(KEYS, 1, bulk=True)
    changes = source.memory.changes_since(1, 10_000)
    assert changes is not None
    assert changes.batch is not None
    good = changes.batch
    bad = [
        encode_batch(good.take(pa.array(list(reversed(range(good.num_rows)))))),
        encode_batch(good.select(["id", "value"])),
        encode_batch(pa.concat_batches([good, good])),
        pa.py_buffer(rng.randbytes(rng.randrange(200))),
    ]
    for payload in bad:
        with pytest.raises(CorruptData):
            target.imported_batch(payload)
    assert target.imported_batch(encode_batch(good)).num_rows == len(KEYS)


# ---- in the log of the receiver -------------------------------------------------------------


def entry_of(memory: TabletMemory, batch: pa.RecordBatch | None, next_version: int) -> list[Entry]:
    """The entries of a segment that has taken in a piece, and what a request came to."""
    prologue = Prologue("table", "tablet", 1, 1, (1,), memory.next_version, SCHEMA, ())
    opened = Entry(1, 0, EntryKind.PROLOGUE, memory.next_version, 0, (), encode_prologue(prologue))
    results = (Result("client", 7, 3, b"outcome"),)
    if batch is None:
        return [opened, Entry(1, 1, EntryKind.ROWS, next_version, 0, results, b"")]
    first = batch.column("_version")[0].as_py()
    payload = encode_batch(batch)
    return [
        opened,
        Entry(1, 1, EntryKind.IMPORT, first, batch.num_rows, results, payload),
    ]


def encoded(entries: list[Entry]) -> bytes:
    return b"".join(bytes(memoryview(b)) for each in entries for b in encode_entry(each))


def test_what_was_brought_over_is_there_after_a_recovery() -> None:
    """Rows, tombstones, versions with gaps, the next version, and what requests came to."""
    source, target = Source(), fresh()
    source.write(KEYS, 1, bulk=True)
    source.write(KEYS[:3], 2, bulk=False)
    source.delete([KEYS[4]])
    changes = source.memory.changes_since(1, 10_000)
    assert changes is not None
    log = encoded(entry_of(target, changes.batch, changes.next_version))
    found = RecoveredSegment.from_entries(read_entries(log, None, "here"), target.codec, "here")
    target.adopt([found], None, 0.0)
    assert read(target) == source.rows
    assert target.next_version == source.memory.next_version
    known = target.results.find(RequestId(ClientId("client"), 7, 3))
    assert known is not None
    assert known.result.outcome == b"outcome"


def test_an_import_of_other_versions_than_its_entry_says_is_corrupt() -> None:
    """What was brought over was numbered by another log: the entry alone says where it begins."""
    source, target = Source(), fresh()
    source.write(KEYS, 1, bulk=True)
    changes = source.memory.changes_since(1, 10_000)
    assert changes is not None
    opened, brought = entry_of(target, changes.batch, changes.next_version)
    later = msgspec.structs.replace(brought, first_version=brought.first_version + 1)
    log = encoded([opened, later])
    with pytest.raises(CorruptData, match="other versions"):
        RecoveredSegment.from_entries(read_entries(log, None, "here"), target.codec, "here")


def test_the_next_version_is_there_after_a_recovery_without_rows() -> None:
    """No version is given twice, even if the newest ones left no rows."""
    target = fresh()
    log = encoded(entry_of(target, None, 40))
    found = RecoveredSegment.from_entries(read_entries(log, None, "here"), target.codec, "here")
    target.adopt([found], None, 0.0)
    assert target.next_version == 40


def test_an_import_that_says_other_versions_is_corrupt() -> None:
    """A recovery believes no entry that contradicts itself."""
    source, target = Source(), fresh()
    source.write(KEYS, 1, bulk=True)
    changes = source.memory.changes_since(1, 10_000)
    assert changes is not None
    opened, entry = entry_of(target, changes.batch, changes.next_version)
    for wrong in (
        msgspec.structs.replace(entry, first_version=5),
        msgspec.structs.replace(entry, row_count=2),
        msgspec.structs.replace(entry, payload=b"noise"),
    ):
        log = encoded([opened, wrong])
        with pytest.raises(CorruptData):
            RecoveredSegment.from_entries(read_entries(log, None, "here"), target.codec, "here")


# ---- in a group -----------------------------------------------------------------------------


def machine() -> TabletStateMachine:
    table = TableRecord(TableId("T"), "t", SCHEMA, Partitioning(), replicas(3), TableState.RUNNING)
    made = TabletStateMachine(TabletId("tablet"), table)
    made.apply(1, 1, encode_alter(table, STAMP))
    return made


STAMP = Stamp(1.0, 0.0)


def test_replicas_take_in_the_next_piece_once_and_nothing_else() -> None:
    """A late or repeated piece changes nothing; the answer says how far it is."""
    source, target = Source(), machine()
    source.write(KEYS, 1, bulk=True)
    changes = source.memory.changes_since(1, 10_000)
    assert changes is not None
    assert changes.batch is not None
    stream = encode_batch(changes.batch)
    results = (Result("client", 7, 3, b"outcome"),)
    order = ImportCommand(STAMP, 1, changes.next_version, results)
    assert target.apply(2, 1, encode_import(order, stream)) == changes.next_version
    assert target.apply(3, 1, encode_import(order, stream)) == changes.next_version
    ahead = ImportCommand(STAMP, 100, 200)
    assert target.apply(4, 1, encode_import(ahead, None)) == changes.next_version
    assert read(target.memory) == source.rows
    assert target.known(RequestId(ClientId("client"), 7, 3)) == b"outcome"


def test_a_group_that_makes_way_refuses_writes_by_its_log() -> None:
    """From the fence on, on every replica, and also after a restart; until the masters say."""
    target, successor = machine(), TabletId("successor")
    write = Write(
        TabletId("tablet"), 1, WriteOp.UPSERT, RequestId(ClientId("c"), 1, 1), (("a", 1),)
    )
    command = encode_write(write, write.rows, None, schema_version=1, stamp=STAMP)
    fence = SuccessionCommand(STAMP, successor, SuccessionStage.FENCED)
    assert target.apply(2, 1, encode_succession(fence)) == SuccessionStage.FENCED
    outcome = target.apply(3, 1, command)
    assert isinstance(outcome, bytes)
    with pytest.raises(TabletNotReady):
        answer(outcome)
    flush = target.begin_flush(OpId(1, 3))
    again = machine()
    again.load(target.manifest(flush), [])
    assert again.succession == target.succession
    free = SuccessionCommand(STAMP, successor, SuccessionStage.OPEN, by_masters=True)
    assert again.apply(4, 1, encode_succession(free)) == SuccessionStage.OPEN
    carried_out = again.apply(5, 1, command)
    assert isinstance(carried_out, bytes)
    assert answer(carried_out).row_count == 1
