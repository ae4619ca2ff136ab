"""Whatever stream passes the leader's check, every replica carries it out, or refuses it alike."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.actors.tserver.tablet.input import decode_rows
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import Write, WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.entry import encode_batch
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.replicated.commands import encode_alter, encode_write, is_stream_of
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.unit.storage.replicated.group_model import TABLET, outcome_of, record_of
from tests.unit.storage.replicated.tablet_commands import FOREVER

TEXT_KEY = TableSchema.of(
    pa.schema(
        [
            pa.field("id", pa.string(), False),
            ("n", pa.int64()),
            ("tags", pa.list_(pa.string())),
            ("at", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ]
    ),
    ["id"],
)
ROWS = 200
GOOD = pa.RecordBatch.from_pydict(
    {
        "id": [f"k{n}" for n in range(ROWS)],
        "n": list(range(ROWS)),
        "tags": [["a"] * (n % 3) for n in range(ROWS)],
        "at": [{"x": n, "y": str(n)} for n in range(ROWS)],
    },
    schema=TEXT_KEY.arrow,
)


def machine(codec: KeyCodec | None = None) -> TabletStateMachine:
    found = TabletStateMachine(TABLET, record_of(TEXT_KEY), codec)
    found.apply(1, 1, encode_alter(record_of(TEXT_KEY), FOREVER))
    return found


def write(sequence: int = 1) -> Write:
    return Write(TABLET, 1, WriteOp.UPSERT, RequestId(ClientId("c"), sequence, 1), ())


def with_longer_offsets(more_bytes: int) -> bytes:
    """The good stream; its description says that the keys' offsets are longer than they are."""
    stream: bytes = encode_batch(GOOD.select(["id"])).to_pybytes()
    right = struct.pack("<q", 4 * (ROWS + 1))
    assert stream.count(right) == 1
    return stream.replace(right, struct.pack("<q", 4 * (ROWS + 1) + more_bytes))


def states(command: bytes) -> list[Any]:
    """What the command does at two replicas: outcome, checksum."""
    found = []
    for replica in (machine(), machine()):
        outcome = outcome_of(replica.apply(2, 1, command))
        source = replica.checksum(2)
        assert source is not None
        found.append((outcome, source.compute()))
    return found


@pytest.mark.parametrize("more_bytes", [1, 2, 3, 4, 7])
def test_offsets_that_are_longer_than_their_column_are_read_as_far_as_they_count(
    more_bytes: int,
) -> None:
    """Such a stream once ended every replica, at each replay again. The log holds a tight one."""
    stream = memoryview(with_longer_offsets(more_bytes))
    rows = decode_rows(stream, TEXT_KEY, "t", ("id",))
    assert not is_stream_of(stream, rows)
    command = encode_write(write(), rows, stream, schema_version=1, stamp=FOREVER)
    assert bytes(stream) not in command
    # An earlier version logged the stream as it came: it can be in a log that is replayed.
    header = encode_write(write(), GOOD.select(["id"]), None, schema_version=1, stamp=FOREVER)
    at = len(header) - len(encode_batch(GOOD.select(["id"])))
    for each in (command, header[:at] + bytes(stream)):
        first, second = states(each)
        assert first == second
        assert first[0] == (1, ROWS)


def test_a_name_that_is_no_text_is_refused_at_every_depth() -> None:
    """A leader answers with a refusal, also where only a struct's field is named so."""
    stream = encode_batch(GOOD.slice(0, 1)).to_pybytes()
    for name in (
        b"tags",
        b"\1\0\0\0x\0\0\0",
    ):  # a column; a field of a struct, as flatbuffers have it
        assert name in stream
        bad = stream.replace(name, name.replace(b"t", b"\xff").replace(b"x", b"\xff"))
        with pytest.raises(InvalidArgument):
            decode_rows(memoryview(bad), TEXT_KEY, "t", None)


def test_a_stream_as_this_process_writes_it_is_kept_as_it_came() -> None:
    """Whole and sliced batches: nothing is encoded twice on the ordinary path."""
    for batch in (GOOD, GOOD.slice(13, 100), GOOD.take(pa.array([5, 1, 7]))):
        stream = memoryview(encode_batch(batch))
        assert is_stream_of(stream, decode_rows(stream, TEXT_KEY, "t", None))


def test_rows_that_cannot_be_hashed_are_refused_and_the_tablet_goes_on() -> None:
    """An error that follows from a command's rows is an outcome, which all replicas record."""

    class Failing(KeyCodec):
        fails = True

        def hash_batch(self, batch: pa.RecordBatch) -> Any:
            if self.fails:
                raise ValueError("buffer size must be a multiple of element size")
            return super().hash_batch(batch)

    codec = Failing(TEXT_KEY)
    replica = machine(codec)
    command = encode_write(write(), GOOD, None, schema_version=1, stamp=FOREVER)
    assert outcome_of(replica.apply(2, 1, command)) is InvalidArgument
    assert (replica.memory.row_count, replica.memory.next_version) == (0, 1)
    codec.fails = False
    assert outcome_of(replica.apply(3, 1, command)) is InvalidArgument  # the same request
    later = encode_write(write(2), GOOD, None, schema_version=1, stamp=FOREVER)
    assert outcome_of(replica.apply(4, 1, later)) == (1, ROWS)


@given(st.data())
def test_whatever_passes_the_leader_can_be_applied(data: st.DataObject) -> None:
    """Streams with bytes changed, left out and put in: all replicas come to the same."""
    stream = bytearray(encode_batch(GOOD).to_pybytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(stream) - 1))
        change = data.draw(st.sampled_from(["byte", "length", "cut", "more"]))
        if change == "byte":
            stream[at] ^= data.draw(st.integers(1, 255))
        elif change == "length":
            at -= at % 8
            old = int.from_bytes(stream[at : at + 8], "little", signed=True)
            new = max(-(1 << 63), min((1 << 63) - 1, old + data.draw(st.integers(-9, 9))))
            stream[at : at + 8] = new.to_bytes(8, "little", signed=True)
        elif change == "cut":
            del stream[at : at + data.draw(st.integers(1, 16))]
        else:
            stream[at:at] = bytes(data.draw(st.integers(1, 16)))
    blob = memoryview(bytes(stream))
    try:
        rows = decode_rows(blob, TEXT_KEY, "t", None)
        machine().check_write(write(), rows)
    except StelaeError:
        return
    command = encode_write(write(), rows, blob, schema_version=1, stamp=FOREVER)
    first, second = states(command)
    assert first == second
