"""What Spark's JVMs ask: a process beside each of them, which speaks to the cluster for them.

Run as ``python -m stelae.connectors.spark_helper``. It prints the path of a socket in a folder of
its own, that only this user can open, and ends when its input does: with the JVM. A connection
carries one request and is served by a fork, which has everything loaded already and shares no lock
with others.

A request is two frames, JSON and bytes; an answer is one with an error's text, or an empty one and
a counted list of frames. Frames begin with their length. A read answers with an Arrow stream first;
a write sends one, and after it a byte that lets it commit: until then its rows lie in a file
without a name, and go with the process. While it commits the connection is watched: a fork whose
JVM has gone ends at once, lest it write on beside the attempt that comes after it. Plans are
pickled: this reads only what it wrote itself, or a helper of the same Spark application has.
Implements design §12; decisions, "Two doors to Spark".
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

import pyarrow as pa

from stelae.client.input.filters import Where
from stelae.connectors.data_tasks import Held, WriteId
from stelae.connectors.spark_filters import MARK, decoded, is_exact
from stelae.connectors.spark_streams import last_batch, note_batch
from stelae.connectors.spark_tasks import (
    OPS,
    PARTITION_BYTES,
    ReadPlan,
    WritePlan,
    check_columns,
    delete_share,
    pin_and_hold,
    plan_read,
    read_share,
    spark_schema,
    write_partition,
)
from stelae.core.errors import InvalidArgument, StelaeError
from stelae.core.schema.schema import TableSchema
from stelae.recovery.spark_link import ClusterLink
from stelae.recovery.spark_tables import locate

BACKLOG = 128
COUNT = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Write:
    """What the driver decided of a write, for its tasks and for its end."""

    plan: WritePlan
    columns: tuple[str, ...]
    streams: bool
    old: ReadPlan | None
    """What an overwrite takes out at the end."""


class Connection:
    """One JVM's request, and the answer to it."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.input: BinaryIO = connected.makefile("rb")
        self.output: BinaryIO = connected.makefile("wb")

    def frame(self) -> bytes:
        """The next one. Raises EOFError."""
        return self._exactly(COUNT.unpack(self._exactly(COUNT.size))[0])

    def _exactly(self, count: int) -> bytes:
        found = self.input.read(count)
        if len(found) < count:
            raise EOFError("the JVM has ended the connection")
        return found

    @contextmanager
    def watched(self, gone: Callable[[], object]) -> Iterator[None]:
        """Meanwhile, ``gone`` is called as soon as the JVM has ended the connection."""
        over = threading.Event()

        def watch() -> None:
            found = b""
            with suppress(OSError):
                found = self.socket.recv(1, socket.MSG_PEEK)
            if not found and not over.is_set():
                gone()

        threading.Thread(target=watch, daemon=True, name="stelae watch").start()
        try:
            yield
        finally:
            over.set()

    def answer(self, *frames: bytes, error: str = "") -> None:
        told = error.encode()
        self.output.write(COUNT.pack(len(told)) + told)
        if not error:
            self.output.write(COUNT.pack(len(frames)))
            for frame in frames:
                self.output.write(COUNT.pack(len(frame)) + frame)
        self.output.flush()


def serve(connection: Connection) -> None:
    """Carry out one request. What goes wrong is told, whatever it is."""
    request = json.loads(connection.frame())
    body = connection.frame()
    try:
        HANDLERS[request["what"]](connection, request, body)
    except (BrokenPipeError, ConnectionResetError, EOFError):
        pass  # the task was killed, or nobody wants the rest
    except Exception as error:
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.answer(error=f"{type(error).__name__}: {error}")


# ---- the driver's requests ------------------------------------------------------------------


def _link(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    from stelae.connectors.link import link_of

    cluster = request["cluster"]
    if cluster is None or not os.path.isdir(cluster):
        import ray

        address = request["ray"] or "auto"
        ray.init(address=address, namespace="stelae-spark-helper", log_to_driver=False)
    connection.answer(pickle.dumps(link_of(cluster)))


def _schema(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    """Spark's schema of a table, as JSON; columns whose filters may come here are marked."""
    from pyspark.sql.pandas.types import from_arrow_schema

    table = locate(pickle.loads(body), request["table"]).table
    target = spark_schema(table.schema, table.schema.arrow.names, table.name)
    told = json.loads(from_arrow_schema(target, prefer_timestamp_ntz=True).json())
    for field in told["fields"]:
        if is_exact(table.schema.arrow.field(field["name"]).type):
            field["metadata"] = {MARK: True}
    connection.answer(json.dumps(told).encode())


def _pin(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    """Pin a table, and hold it until the JVM closes the connection."""
    link: ClusterLink = pickle.loads(body)
    snapshot, held = pin_and_hold(link, request["table"])
    connection.answer(pickle.dumps((link, snapshot)))
    _hold(connection, held)


def _hold(connection: Connection, held: Held) -> None:
    connection.input.read(1)
    held.end()
    held.thread.join()


def _plan(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    link, snapshot = pickle.loads(body)
    schema = snapshot.table.schema
    columns = request["columns"] or list(schema.key[:1])
    size = request["partition_bytes"] or PARTITION_BYTES
    where = _where(request["where"], schema)
    plan = plan_read(link, snapshot, columns, where, size)
    shares = range(len(plan.shares))
    connection.answer(*[pickle.dumps(plan.only(number)) for number in shares])


def _where(predicates: list[Any], schema: TableSchema) -> Where:
    """All of these hold; each is a list of groups, of which one has to."""
    groups: list[list[Any]] = [[]]
    for predicate in predicates:
        terms = [[decoded(term, schema) for term in group] for group in predicate]
        groups = [one + other for one in groups for other in terms]
    return groups if groups != [[]] else None


def _begin_write(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    link: ClusterLink = pickle.loads(body)
    record, mode = locate(link, request["table"]).table, request["mode"]
    if mode not in OPS or (mode == "overwrite" and request["streams"]):
        raise InvalidArgument(f"option mode={mode!r}: upsert, update, delete or append")
    columns = check_columns(request["columns"], record.schema, mode, record.name)
    write_id = WriteId(request["write_id"])
    plan = WritePlan(link, record.name, record.schema, mode, write_id)
    if mode != "overwrite":
        connection.answer(pickle.dumps(Write(plan, tuple(columns), request["streams"], None)))
        return
    snapshot, held = pin_and_hold(link, record.name)
    old = plan_read(link, snapshot, record.schema.key, None, PARTITION_BYTES)
    connection.answer(pickle.dumps(Write(plan, tuple(columns), False, old)))
    _hold(connection, held)


def _end_write(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    write: Write = pickle.loads(body)
    plan = write.plan
    with connection.watched(_end_fork):
        if write.old is not None:
            for number in range(len(write.old.shares)):
                delete_share(write.old, number)
        if write.streams:
            record = locate(plan.link, plan.table).table
            note_batch(plan.link, plan.write_id.name, record, request["epoch"], request["rows"])
    connection.answer(b"")


# ---- the tasks' requests --------------------------------------------------------------------


def _read(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    """A share's rows as an Arrow stream, and then whether that was all."""
    plan: ReadPlan = pickle.loads(body)
    problem = ""
    with pa.ipc.new_stream(connection.output, plan.target) as stream:
        try:
            for batch in read_share(plan, 0):
                stream.write_batch(batch)
        except StelaeError as error:
            problem = f"{type(error).__name__}: {error}"
    connection.answer(error=problem)


def _write(connection: Connection, request: dict[str, Any], body: bytes) -> None:
    """Lay rows aside; write them once the JVM says that this attempt is the one."""
    write: Write = pickle.loads(body)
    with tempfile.TemporaryFile() as aside:
        _copy(connection.input, aside)
        connection.frame()  # or EOFError: it is to be forgotten
        aside.seek(0)
        with connection.watched(_end_fork):
            count = _commit(write, request, aside)
    connection.answer(struct.pack(">q", count))


def _commit(write: Write, request: dict[str, Any], aside: BinaryIO) -> int:
    plan = write.plan
    if write.streams:
        record = locate(plan.link, plan.table).table
        if request["epoch"] <= last_batch(plan.link, plan.write_id.name, record):
            return 0
        name = f"{plan.write_id.name}/{record.table_id}"
        write_id = WriteId(name, request["epoch"])
        plan = replace(plan, write_id=write_id)
    return write_partition(plan, request["partition"], _batches(aside, write.columns))


def _end_fork() -> None:
    """With all its threads: nobody wants any more what it does."""
    os._exit(1)


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    stream = pa.ipc.open_stream(source)
    with pa.ipc.new_stream(target, stream.schema) as kept:
        for batch in stream:
            kept.write_batch(batch)


def _batches(aside: BinaryIO, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    with pa.ipc.open_stream(aside) as stream:
        for batch in stream:
            yield batch.select(list(columns))


HANDLERS = {
    "link": _link,
    "schema": _schema,
    "pin": _pin,
    "plan": _plan,
    "begin write": _begin_write,
    "end write": _end_write,
    "read": _read,
    "write": _write,
}


# ---- the process ----------------------------------------------------------------------------


def main() -> None:
    """Until the input ends."""
    folder = tempfile.mkdtemp(prefix="stelae-")
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.join(folder, "s"))
            listener.listen(BACKLOG)
            print(listener.getsockname(), flush=True)
            os.dup2(2, 1)  # nobody reads the rest
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            gc.collect()
            gc.freeze()
            _accept(listener)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _accept(listener: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([listener.fileno(), 0], [], [])
        if 0 in ready and not os.read(0, 1):
            return
        if listener.fileno() not in ready:
            continue
        connected, _ = listener.accept()
        if not os.fork():
            _serve_in_fork(listener, connected)
        connected.close()


def _serve_in_fork(listener: socket.socket, connected: socket.socket) -> None:
    """Never returns."""
    try:
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(EOFError, BrokenPipeError):
            serve(Connection(connected))
    finally:
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main()
