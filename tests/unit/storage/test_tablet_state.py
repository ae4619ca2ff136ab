"""Replicas of a tablet that execute the same commands are the same, and do what a dict does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    Overloaded,
    SchemaChanged,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import ClientId, OpId, RequestId, TabletId
from stelae.core.messages import Write, WriteOp
from stelae.core.schema import TableSchema
from stelae.core.values import rows_to_batch
from stelae.storage import client_results
from stelae.storage.entry import encode_batch
from stelae.storage.tablet import SegmentStats
from stelae.storage.tablet_commands import (
    CommandKind,
    Stamp,
    encode_alter,
    encode_mark,
    encode_write,
)
from stelae.storage.tablet_manifest import decode_manifest, droppable, open_image
from stelae.storage.tablet_state import TabletStateMachine
from tests.unit.storage.group_model import TABLET, Group, ReplicaDisk, outcome_of, record_of

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


MOVES = st.one_of(
    st.tuples(
        st.just("write"),
        st.sampled_from(list(WriteOp)),
        st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=4),
        st.booleans(),
        st.sampled_from(["none", "none", "right", "wrong"]),
        st.sets(st.sampled_from(NAMES)),
        st.integers(0, 2),
        st.sampled_from(["new", "new", "new", "new", "again", "stale"]),
    ),
    st.tuples(st.just("wait"), st.integers(0, 3)),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
    st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("follow"), st.integers(1, 2)),
    st.tuples(st.just("begin flush"), st.integers(0, 2)),
    st.tuples(st.just("flush"), st.integers(0, 2)),
    st.tuples(st.just("restart"), st.integers(0, 2)),
    st.tuples(st.just("copy"), st.integers(0, 2), st.integers(1, 2)),
)
ON_REPLICA = ("follow", "begin flush", "flush", "restart", "copy")


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


def play(group: Group, moves: list[Any]) -> None:
    """Carry the moves out; every outcome is held against the model and all other replicas."""
    sequences = [0, 0, 0]
    for salt, move in enumerate(moves, 1):
        replica = group.replicas[move[1] if move[0] in ON_REPLICA else 0]
        if move[0] == "write":
            write(group, move, salt, sequences)
        elif move[0] == "wait":
            group.clock_s += move[1] - 0.5  # leaders' clocks may stand back as well
        elif move[0] == "follow":
            behind = len(group.log) - replica.machine.applied_index
            until = replica.machine.applied_index + (behind + 1) // 2
            replica.catch_up(group.log, group.outcomes, until)
        elif move[0] == "begin flush":
            replica.begin_flush()
        elif move[0] == "flush":
            if replica.flush is None:
                replica.begin_flush()
            replica.end_flush()
        elif move[0] == "restart":
            replica.restart()
        elif move[0] == "copy":
            replica.copy(group.replicas[(move[1] + move[2]) % 3])
        else:
            alter(group, move, salt)
        group.replicas[0].catch_up(group.log, group.outcomes, len(group.log))


@pytest.mark.parametrize(("schema", "hash_bits"), [(NARROW, 64), (WIDE, 64), (WIDE, 1)])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(moves=st.lists(MOVES, max_size=40))
def test_replicas_agree_with_each_other_and_with_a_dict(
    schema: TableSchema, hash_bits: int, moves: list[Any]
) -> None:
    """Whatever is flushed, restarted, copied or behind: same outcomes, rows, versions, checksum."""
    group = Group(schema, hash_bits)
    play(group, moves)
    group.check()


@pytest.mark.parametrize("seed", range(40))
def test_replicas_agree_over_long_histories(seed: int) -> None:
    """The same over hundreds of commands, with many flushes of segments that are dead by then."""
    rng = random.Random(seed)
    group = Group(NARROW if seed % 2 else WIDE)
    sequences = [0, 0, 0]
    for salt in range(1, 160):
        what = rng.random()
        replica = rng.choice(group.replicas)
        if what < 0.6:
            op = rng.choice((WriteOp.UPSERT, WriteOp.DELETE, WriteOp.UPDATE))
            keys = [rng.randrange(KEYS) for _ in range(rng.randint(1, 3))]
            kind = rng.choice(("new", "new", "new", "again", "stale"))
            client = rng.choice((0, 0, 0, 0, 1, 1, 2))
            move = ("write", op, keys, rng.random() < 0.3, "none", set(), client, kind)
            group.clock_s += rng.choice((-1.5, 0.0, 1.0, 1.0))
            write(group, move, salt, sequences)
        elif what < 0.85:
            if replica.flush is None:
                replica.begin_flush()
            else:
                replica.end_flush()
        elif what < 0.9:
            replica.restart()
        else:
            replica.catch_up(group.log, group.outcomes, len(group.log))
        group.replicas[0].catch_up(group.log, group.outcomes, len(group.log))
    group.check()
    for replica in group.replicas:
        replica.begin_flush()
        replica.end_flush()
        replica.restart()
    group.check()


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


def test_a_tombstone_stays_while_an_older_row_of_its_key_may_be_read() -> None:
    """A segment of tombstones goes only once all segments before it are without live rows."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1, 2)
    assert flush(replica) == [1]
    delete(group, 1)
    assert flush(replica) == [1, 2]
    upsert(group, 3)
    assert flush(replica) == [1, 2, 3]
    delete(group, 2)
    assert flush(replica) == [3, 4]
    assert sorted(replica.files) == ["0000000000000003.image", "0000000000000004.image"]
    assert [s.segment_id for s in replica.machine.memory.statistics()] == [3, 4]
    replica.restart()
    group.check()
    upsert(group, 3)
    assert flush(replica) == [5]
    replica.restart()
    group.check()


def test_an_overwritten_segment_leaves_the_manifest_between_others() -> None:
    """Without live rows and tombstones a segment goes, whatever lies before it."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1)
    flush(replica)
    upsert(group, 2)
    assert flush(replica) == [1, 2]
    upsert(group, 2, value=9)
    assert flush(replica) == [1, 3]
    replica.restart()
    group.check()


def test_which_segments_go() -> None:
    """The rule itself, case by case."""

    def stats(live: int, tombstones: int) -> SegmentStats:
        return SegmentStats(0, 1, True, 9, 9, live, 9 - live, True, tombstones, 9, 1, 10, True)

    cases: list[tuple[list[tuple[int, int]], list[bool]]] = [
        ([], []),
        ([(0, 0), (0, 5), (1, 0)], [True, True, False]),
        ([(1, 0), (0, 5), (0, 0)], [False, False, True]),
        ([(0, 1), (2, 2), (0, 1)], [True, False, False]),
    ]
    for given_stats, wanted in cases:
        assert droppable([stats(*one) for one in given_stats]) == wanted


def test_what_is_left_of_a_tablet_without_rows_is_its_next_version() -> None:
    """No image is named, and versions still go on where they were."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1, 2, 3)
    delete(group, 1, 2, 3)
    assert flush(replica) == []
    replica.restart()
    assert group.write(WriteOp.INSERT, [("x", 1, 1)], ["a", "id", "b"]) == (7, 1)
    group.check()


def test_commands_go_on_while_images_are_built() -> None:
    """The manifest says what was there when the flush began, not what came meanwhile."""
    group = Group(NARROW)
    replica = group.replicas[0]
    upsert(group, 1, 2)
    replica.begin_flush()
    delete(group, 1)
    group.alter(add=[pa.field("c", pa.string())], defaults={"c": pa.scalar("new")})
    group.write(WriteOp.UPDATE, [(2, 7)], ["id", "b"])
    replica.end_flush()
    assert replica.superblock is not None
    manifest = decode_manifest("m", TABLET, replica.superblock[1])
    assert (manifest.last, manifest.next_version) == (OpId(1, 2), 3)
    assert manifest.table is not None
    assert manifest.table.schema == NARROW
    assert len(manifest.clients[0].results) == 1
    replica.restart()
    assert replica.machine.applied_index == 2
    assert [row[1] for row in replica.listed()] == [1, 2]
    group.check()


def test_nothing_is_written_before_the_log_has_said_what_table_it_is_of() -> None:
    """A replica that heard of the table late decides as one that heard of it early."""
    early = TabletStateMachine(TABLET, record_of(NARROW))
    group = Group(NARROW)
    group.alter(add=[pa.field("c", pa.string())], defaults={"c": pa.scalar("new")})
    late = TabletStateMachine(TABLET, group.table)
    request = RequestId(ClientId("c"), 1, 1)
    write = Write(TABLET, 1, WriteOp.UPSERT, request, (("x", 1, 1),), ("a", "id", "b"))
    command = encode_write(write, write.rows, None, schema_version=1, stamp=FOREVER)
    first = encode_alter(record_of(NARROW), FOREVER)
    sums = []
    for machine in (early, late):
        assert outcome_of(machine.apply(1, 1, command)) is TabletNotReady
        assert machine.apply(2, 1, first) == 1
        assert outcome_of(machine.apply(3, 1, command)) == (1, 1)
        assert outcome_of(machine.apply(4, 1, encode_alter(group.table, FOREVER))) == 2
        source = machine.checksum(4)
        assert source is not None
        sums.append(source.compute())
    assert sums[0] == sums[1]


def test_silent_clients_are_forgotten_by_the_groups_time() -> None:
    """Stamps decide, and never fall, be a leader's clock behind; a restart changes nothing."""
    group = Group(NARROW)
    replica = group.replicas[0]
    quiet, busy = (RequestId(ClientId(name), 1, 1) for name in ("quiet", "busy"))
    columns = ["a", "id", "b"]

    def write_at(clock_s: float, request: RequestId) -> Any:
        group.clock_s = clock_s
        return group.write(WriteOp.UPSERT, [("x", 1, 1)], columns, request=request)

    assert write_at(100.0, quiet) == (1, 1)
    flush(replica)
    replica.restart()
    assert replica.machine.now_s == 100.0
    assert write_at(90.0, busy) == (2, 1)  # counts as of 100
    assert write_at(104.0, busy) == (2, 1)
    assert write_at(105.0, quiet) == (1, 1)
    replica.begin_flush()
    assert write_at(105.5, quiet) == (3, 1)
    replica.end_flush()
    replica.restart()
    assert replica.machine.now_s == 105.0
    group.check()


def test_an_older_record_of_the_table_changes_nothing() -> None:
    """Orders come twice and late: the newest record stays, and the answer is its version."""
    group = Group(NARROW)
    group.alter(add=[pa.field("c", pa.string())])
    machine = group.replicas[0].machine
    assert machine.apply(3, 1, encode_alter(record_of(NARROW), FOREVER)) == 2
    assert machine.memory.schema.version == 2


def test_a_refusal_is_remembered_and_what_may_be_tried_again_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same request gets the same refusal, if doing it again could come to nothing else."""
    group = Group(NARROW)
    upsert(group, 1)
    request = RequestId(ClientId("c"), 1, 1)
    columns = ["a", "id", "b"]
    group.write(WriteOp.INSERT, [("x", 1, 1)], columns, request=request)
    delete(group, 1)
    group.write(WriteOp.INSERT, [("x", 1, 1)], columns, request=request)
    machine = group.replicas[0].machine
    assert machine.known(request) is not None
    monkeypatch.setattr(client_results, "MAX_CLIENTS", 2)
    other = RequestId(ClientId("other"), 1, 1)
    write = Write(TABLET, 1, WriteOp.UPSERT, other, (("x", 5, 1),), tuple(columns))
    command = encode_write(write, write.rows, None, schema_version=1, stamp=FOREVER)
    index = len(group.log)
    assert outcome_of(machine.apply(index + 1, 1, command)) is Overloaded
    monkeypatch.setattr(client_results, "MAX_CLIENTS", 3)
    assert machine.known(other) is None
    assert outcome_of(machine.apply(index + 2, 1, command)) == (3, 1)


def test_an_outdated_schema_is_refused_and_not_remembered() -> None:
    """SchemaChanged says that the call may be made again with the schema of now."""
    machine = TabletStateMachine(TABLET, record_of(NARROW))
    group = Group(NARROW)
    for i in range(10):
        group.alter(rename={"a" if i % 2 == 0 else "z": "z" if i % 2 == 0 else "a"})
    machine.apply(1, 1, encode_alter(group.table, FOREVER))
    request = RequestId(ClientId("c"), 1, 1)
    write = Write(TABLET, 1, WriteOp.UPSERT, request, (("x", 5, 1),), ("a", "id", "b"))
    with pytest.raises(SchemaChanged):
        machine.check_write(write, write.rows)
    command = encode_write(write, write.rows, None, schema_version=1, stamp=FOREVER)
    assert outcome_of(machine.apply(2, 1, command)) is SchemaChanged
    command = encode_write(write, write.rows, None, schema_version=11, stamp=FOREVER)
    assert outcome_of(machine.apply(3, 1, command)) == (1, 1)


BAD_ROWS: list[tuple[WriteOp, tuple[Any, ...], tuple[str, ...], tuple[int, ...]]] = [
    (WriteOp.UPSERT, (("x", "one", 1),), (), ()),
    (WriteOp.UPSERT, (("x", 1),), (), ()),
    (WriteOp.UPSERT, (("x", None, 1),), (), ()),
    (WriteOp.UPSERT, (("x", 1 << 63, 1),), (), ()),
    (WriteOp.UPSERT, (("x", 1, 1.5),), (), ()),
    (WriteOp.UPSERT, (("x", 1, 1),), ("a", "id", "nowhere"), ()),
    (WriteOp.UPSERT, (("x", 1, 1),), ("a", "id", "id"), ()),
    (WriteOp.UPSERT, (("x", 1),), ("a", "b"), ()),
    (WriteOp.DELETE, (("x", 1),), ("a", "id"), ()),
    (WriteOp.UPSERT, (("x", 1, 1),), (), (1, 2)),
]


@pytest.mark.parametrize(("op", "rows", "columns", "conditions"), BAD_ROWS)
def test_what_does_not_fit_is_refused_before_and_at_execution(
    op: WriteOp, rows: Any, columns: Any, conditions: Any
) -> None:
    """A leader does not log such rows; if they are in the log all the same, nothing breaks."""
    machine = TabletStateMachine(TABLET, record_of(NARROW))
    machine.apply(1, 1, encode_alter(record_of(NARROW), FOREVER))
    request = RequestId(ClientId("c"), 1, 1)
    write = Write(TABLET, 1, op, request, rows, columns, conditions)
    with pytest.raises(StelaeError) as caught:
        machine.check_write(write, rows)
    command = encode_write(write, rows, None, schema_version=1, stamp=FOREVER)
    assert outcome_of(machine.apply(2, 1, command)) is type(caught.value)
    assert (machine.memory.row_count, machine.memory.next_version) == (0, 1)


def test_a_batch_that_is_none_of_the_table_is_refused_at_execution() -> None:
    """Cut streams, other types and missing keys in a logged command change nothing."""
    machine = TabletStateMachine(TABLET, record_of(NARROW))
    machine.apply(1, 1, encode_alter(record_of(NARROW), FOREVER))
    good = pa.record_batch({"a": ["x"], "id": [1], "b": [1]}, schema=NARROW.arrow)
    streams = [
        encode_batch(good).to_pybytes()[:-40],
        b"no stream",
        encode_batch(pa.record_batch({"a": ["x"], "id": ["1"], "b": [1]})).to_pybytes(),
        encode_batch(good.select(["a", "b"])).to_pybytes(),
        encode_batch(pa.RecordBatch.from_arrays([good[1], good[1]], ["id", "id"])).to_pybytes(),
    ]
    for index, stream in enumerate(streams, 2):
        request = RequestId(ClientId("c"), index, 1)
        write = Write(TABLET, 1, WriteOp.UPSERT, request, ())
        command = encode_write(write, good, None, schema_version=1, stamp=FOREVER)
        start = len(command) - len(encode_batch(good))
        assert outcome_of(machine.apply(index, 1, command[:start] + stream)) is InvalidArgument
    assert (machine.memory.row_count, machine.memory.next_version) == (0, 1)


@pytest.mark.parametrize("data", [b"", b"\1\1\0\0", b"\2\1\0\0\0\0\0\0", b"\1\x09\0\0\0\0\0\0"])
def test_a_command_that_is_not_understood_stops_the_replica(data: bytes) -> None:
    """To leave a command out would be to differ from the others."""
    machine = TabletStateMachine(TABLET, record_of(NARROW))
    with pytest.raises(CorruptData):
        machine.apply(1, 1, data)
    with pytest.raises(CorruptData):
        machine.apply(1, 1, bytes([1, CommandKind.WRITE, 0, 0, 3, 0, 0, 0]) + b"abc")
    assert machine.applied_index == 0


def test_a_mark_keeps_the_rows_of_its_index() -> None:
    """Replicas that are at different entries by now still compare what they had at the mark."""
    group = Group(NARROW)
    upsert(group, *range(KEYS))
    index = group.mark()
    upsert(group, 1, 2, value=5)
    group.replicas[1].catch_up(group.log, group.outcomes, index)
    sources = [replica.machine.checksum(index) for replica in group.replicas[:2]]
    assert sources[0] is not None
    assert sources[1] is not None
    assert sources[0].compute() == sources[1].compute()
    now = group.replicas[0].machine.checksum(len(group.log))
    assert now is not None
    assert now.compute().rows != sources[0].compute().rows
    group.replicas[0].machine.unmark()
    assert group.replicas[0].machine.checksum(index) is None
    assert encode_mark(FOREVER)


def test_a_flush_is_due_by_rows_or_by_log() -> None:
    """Refused and repeated writes leave no rows, and their log entries have to go as well."""
    group = Group(NARROW)
    machine = group.replicas[0].machine
    assert not machine.flush_due(1000)
    upsert(group, *range(KEYS))
    assert machine.flush_due(machine.memory.head_bytes)
    assert not machine.flush_due(10_000)
    for _ in range(1000):
        group.write(WriteOp.INSERT, [("x", 1, 1)], ["a", "id", "b"])
    assert machine.flush_due(10_000)
    flush(group.replicas[0])
    assert not machine.flush_due(10_000)


def test_what_updates_keep_counts_for_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small updates of large rows fill a segment with large rows, and heads are cut in time."""
    group = Group(NARROW)
    machine = group.replicas[0].machine
    columns = ["a", "id", "b"]
    group.write(WriteOp.UPSERT, [("x" * 1000, 1, 1), ("y", 2, 1)], columns)
    for salt in range(20):
        group.write(WriteOp.UPDATE, [(1, salt)], ["id", "b"], as_batch=salt % 2 == 0)
    assert machine.memory.head_bytes > 20_000
    monkeypatch.setattr("stelae.storage.tablet_state._HEAD_BYTES_MAX", 5_000)
    for salt in range(20):
        group.write(WriteOp.UPDATE, [(1, salt)], ["id", "b"])
    assert len(machine.memory.statistics()) == 5
    flush(group.replicas[0])
    group.replicas[0].restart()
    group.check()


@pytest.mark.parametrize("held", ["head", "image", "both"])
@pytest.mark.parametrize("as_batch", [False, True])
def test_an_update_that_keeps_too_much_is_refused_however_rows_are_held(
    held: str, as_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over all rows decides, so that every replica refuses the same call."""
    monkeypatch.setattr("stelae.storage.write._KEPT_BYTES_MAX", 1000)
    machine = TabletStateMachine(TABLET, record_of(NARROW))
    machine.apply(1, 1, encode_alter(record_of(NARROW), FOREVER))
    rows: Any = [("x" * 100, n, 1) for n in range(10)]
    outcomes = []
    for index, (op, data, columns) in enumerate(
        (
            (WriteOp.UPSERT, rows[:5], ("a", "id", "b")),
            (WriteOp.UPSERT, rows[5:], ("a", "id", "b")),
            (WriteOp.UPDATE, [(n, 2) for n in range(9)], ("id", "b")),
            (WriteOp.UPDATE, [(n % 10, 2) for n in range(11)], ("id", "b")),
        ),
        2,
    ):
        given_rows: Any = tuple(data)
        if as_batch:
            schema = pa.schema([NARROW.arrow.field(name) for name in columns])
            given_rows = rows_to_batch(data, schema)
        request = RequestId(ClientId("c"), index, 1)
        write = Write(TABLET, 1, op, request, (), columns)
        command = encode_write(write, given_rows, None, schema_version=1, stamp=FOREVER)
        outcomes.append(outcome_of(machine.apply(index, 1, command)))
        if (held, index) in (("both", 2), ("image", 3), ("both", 3)):
            pending = machine.begin_flush(OpId(1, index))
            for slot in pending.unsealed:
                machine.installed(machine.seal(pending, slot))
    assert outcomes == [(1, 5), (6, 5), (11, 9), InvalidArgument]


@pytest.mark.parametrize("damage", ["bit", "cut", "other tablet", "missing image", "image bit"])
def test_a_damaged_manifest_or_image_is_an_error(damage: str) -> None:
    """What does not check is never loaded."""
    group = Group(NARROW)
    upsert(group, 1)
    replica = group.replicas[0]
    flush(replica)
    assert replica.superblock is not None
    data = replica.superblock[1]
    manifest = decode_manifest("m", TABLET, data)
    content = bytearray(replica.files[manifest.images[0].name])
    images = [open_image(manifest.images[0], TABLET, bytes(content), "image")]
    machine = replica.empty()
    content[70] ^= 4
    flipped = data[:50] + bytes([data[50] ^ 1]) + data[51:]
    attempts: dict[str, Callable[[], object]] = {
        "bit": lambda: machine.load(flipped, images),
        "cut": lambda: machine.load(data[:-1], images),
        "other tablet": lambda: decode_manifest("m", TabletId("other"), data),
        "missing image": lambda: machine.load(data, []),
        "image bit": lambda: open_image(manifest.images[0], TABLET, bytes(content), "image"),
    }
    with pytest.raises(CorruptData):
        attempts[damage]()


def test_a_flush_puts_survivors_in_the_place_of_images() -> None:
    """Fewer files, the same rows, also after a restart that replays what came during the flush."""
    group = Group(NARROW)
    replica, plain = group.replicas[1], group.replicas[0]
    replica.survivor_bytes = 4000
    for n in range(12):
        upsert(group, n % 6, 6 + n % 2, value=n)
        for each in (replica, plain):
            each.catch_up(group.log, group.outcomes, len(group.log))
            each.begin_flush()
        upsert(group, (n + 1) % 6, value=-n)
        for each in (replica, plain):
            each.catch_up(group.log, group.outcomes, len(group.log))
            each.end_flush()
            assert each.listed() == group.model.listed()
        replica.restart()
        replica.catch_up(group.log, group.outcomes, len(group.log))
        assert replica.listed() == group.model.listed()
    assert replica.survivors > 3
    assert len(replica.files) < len(plain.files)
    group.check()
