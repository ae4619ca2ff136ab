"""What a tablet's state refuses, before a command is in the log and when it is carried out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    Overloaded,
    SchemaChanged,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import ClientId, OpId, RequestId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.schema.values import rows_to_batch
from stelae.storage.entries import client_results
from stelae.storage.entries.entry import encode_batch
from stelae.storage.replicated.commands import (
    CommandKind,
    encode_alter,
    encode_write,
)
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.unit.storage.replicated.group_model import TABLET, Group, outcome_of, record_of
from tests.unit.storage.replicated.tablet_commands import FOREVER, NARROW, delete, upsert


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


@pytest.mark.parametrize("held", ["head", "image", "both"])
@pytest.mark.parametrize("as_batch", [False, True])
def test_an_update_that_keeps_too_much_is_refused_however_rows_are_held(
    held: str, as_batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum over all rows decides, so that every replica refuses the same call."""
    monkeypatch.setattr("stelae.storage.rows.write._KEPT_BYTES_MAX", 1000)
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
