"""What Spark's JVMs ask their helper, asked by a test in a JVM's place."""

from __future__ import annotations

import datetime
import json
import pickle
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.connectors import spark_helper
from stelae.connectors.spark_filters import decoded, is_exact
from stelae.connectors.spark_helper import Connection, serve
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition
from stelae.core.schema.schema import TableSchema
from tests.served import Served, served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
ROWS = 100


class Jvm:
    """One request of a JVM's, and what comes of it."""

    def __init__(self, request: dict[str, Any], body: bytes) -> None:
        self.socket, theirs = socket.socketpair()
        self.input = self.socket.makefile("rb")
        self._thread = threading.Thread(target=self._serve, args=(theirs,))
        self._thread.start()
        self.send(json.dumps(request).encode())
        self.send(body)

    @staticmethod
    def _serve(theirs: socket.socket) -> None:
        connection = Connection(theirs)
        serve(connection)
        connection.input.close()
        theirs.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def frame(self) -> bytes:
        return self.input.read(struct.unpack(">i", self.input.read(4))[0])

    def answer(self) -> list[bytes]:
        if problem := self.frame():
            raise RuntimeError(problem.decode())
        (count,) = struct.unpack(">i", self.input.read(4))
        return [self.frame() for _ in range(count)]

    def end(self) -> None:
        self.socket.shutdown(socket.SHUT_RDWR)
        self.input.close()
        self.socket.close()
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def asked(what: str, body: bytes = b"", **more: Any) -> Iterator[Jvm]:
    jvm = Jvm({"what": what, "table": "t", **more}, body)
    try:
        yield jvm
    finally:
        jvm.end()


def answer(what: str, body: bytes = b"", **more: Any) -> list[bytes]:
    with asked(what, body, **more) as jvm:
        return jvm.answer()


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path) as found:
        made = found.cluster.database.create_table(
            "t", SCHEMA, key="id", partition=hash_partition("id", 2), durability=segments("disk")
        )
        rows = pa.table({"id": range(ROWS), "word": [f"w{n}" for n in range(ROWS)]}, SCHEMA)
        found.run(found.run(made).upsert(rows))
        yield found


def test_a_table_is_held_while_the_connection_is_open_and_read_by_shares(here: Served) -> None:
    """The stream of a share is followed by whether it is whole; without its pins it is not."""
    link = pickle.dumps(here.link)
    told = json.loads(answer("schema", link)[0])
    assert [field["metadata"] for field in told["fields"]] == [{"stelae.exact": True}] * 2
    where = [[[["id", "<", 10]], [["word", "in", ["w50"]]]], [[["word", "!=", "w3"]]]]
    with asked("pin", link) as jvm:
        (snapshot,) = jvm.answer()
        plans = answer("plan", snapshot, columns=["id"], where=where, partition_bytes=0)
        assert len(plans) == 2
        found = []
        for plan in plans:
            with asked("read", plan) as task:
                found += pa.ipc.open_stream(task.input).read_all()["id"].to_pylist()
                assert task.answer() == []
        assert sorted(found) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 50]
    with asked("read", plans[0]) as task:
        assert pa.ipc.open_stream(task.input).read_all().num_rows == 0
        with pytest.raises(RuntimeError, match="SnapshotLost"):
            task.answer()


def stream_of(first: int, count: int) -> bytes:
    ids = range(first, first + count)
    rows = pa.table({"id": ids, "word": [f"new{n}" for n in ids]}, SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=10)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def begin(here: Served, mode: str, **more: Any) -> bytes:
    options = {"mode": mode, "columns": ["id", "word"], "write_id": "q", "streams": False, **more}
    return answer("begin write", pickle.dumps(here.link), **options)[0]


def ids_in(here: Served) -> list[int]:
    table = here.run(here.cluster.database.table("t"))
    return sorted(here.run(table.scan())["id"].to_pylist())


def test_an_attempt_that_is_not_let_commit_leaves_nothing(here: Served) -> None:
    """Be it that its executor is killed in the middle, or that another attempt was let."""
    plan = begin(here, "append")
    content = stream_of(1000, 50)
    for sent in (content[: len(content) // 2], content):
        with asked("write", plan, partition=0, epoch=-1) as task:
            task.socket.sendall(sent)
    assert ids_in(here) == list(range(ROWS))
    for _ in range(2):
        with asked("write", plan, partition=0, epoch=-1) as task:
            task.socket.sendall(content)
            task.send(b"\1")
            assert task.answer() == [struct.pack(">q", 50)]
    assert ids_in(here) == [*range(ROWS), *range(1000, 1050)]
    with pytest.raises(RuntimeError, match="key column 'id'"):
        begin(here, "append", columns=["word"])
    with pytest.raises(RuntimeError, match="mode='insert'"):
        begin(here, "insert")


def test_a_batch_that_is_noted_is_not_written_again(here: Served) -> None:
    """Its tasks answer that they have written nothing."""
    plan = begin(here, "upsert", streams=True)

    def batch(epoch: int, first: int) -> int:
        with asked("write", plan, partition=0, epoch=epoch) as task:
            task.socket.sendall(stream_of(first, 5))
            task.send(b"\1")
            (count,) = struct.unpack(">q", task.answer()[0])
        answer("end write", plan, epoch=epoch, rows=count)
        return int(count)

    assert [batch(0, 1000), batch(0, 2000), batch(1, 3000)] == [5, 0, 5]
    assert ids_in(here) == [*range(ROWS), *range(1000, 1005), *range(3000, 3005)]


@pytest.mark.parametrize("what", ["write", "end write"])
def test_a_fork_ends_when_its_jvm_does_while_it_commits(
    here: Served, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It would write on, beside the attempt that comes after it; one that is done just answers."""
    under_way, ended = threading.Event(), threading.Event()

    def lasting(*_: Any) -> int:
        under_way.set()
        assert ended.wait(20)
        return 0

    monkeypatch.setattr(spark_helper, "_end_fork", ended.set)
    plan = begin(here, "upsert", streams=True)
    with asked("write", plan, partition=0, epoch=0) as task:
        task.socket.sendall(stream_of(0, 5))
        task.send(b"\1")
        task.answer()
    assert not ended.is_set()
    monkeypatch.setattr(spark_helper, "write_partition", lasting)
    monkeypatch.setattr(spark_helper, "note_batch", lasting)
    with asked(what, plan, partition=0, epoch=1, rows=5) as task:
        if what == "write":
            task.socket.sendall(stream_of(0, 5))
            task.send(b"\1")
        assert under_way.wait(20)
    assert ended.is_set()


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        (pa.int32(), 7, 7),
        (pa.date32(), 1, datetime.date(1970, 1, 2)),
        (pa.timestamp("us"), 1_000_000, datetime.datetime(1970, 1, 1, 0, 0, 1)),
        (
            pa.timestamp("us", tz="UTC"),
            1_000_000,
            datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC),
        ),
    ],
    ids=str,
)
def test_values_of_filters_are_what_they_are_in_spark(
    kind: pa.DataType, given: Any, value: Any
) -> None:
    """Days and microseconds since 1970 become dates and times."""
    schema = TableSchema.of(pa.schema([pa.field("k", pa.int64(), False), ("v", kind)]), "k")
    assert is_exact(kind)
    assert decoded(["v", "<", given], schema) == ("v", "<", value)
    assert decoded(["v", "in", [given]], schema) == ("v", "in", [value])


@pytest.mark.parametrize("kind", [pa.uint8(), pa.float32(), pa.timestamp("ns"), pa.date64()])
def test_columns_of_other_types_in_spark_are_filtered_there(kind: pa.DataType) -> None:
    """A comparison might mean something else here."""
    assert not is_exact(kind)
