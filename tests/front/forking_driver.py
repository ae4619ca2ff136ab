"""What `tests.front.test_forks` runs in a process of its own, which forks: a client, and no server.

``python -m tests.front.forking_driver '{"door": …, "origin": …}'`` connects by one door, forks
children in all the ways that programs do, and prints what each saw as JSON. ``origin`` is a pickled
origin in base64.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stelae.client.connection import Opened, Origin
from stelae.core.schema.durability import segments
from stelae.database.api import Database, Table
from stelae.database.origins import ClusterOrigin

CHILD_S = 120
"""A child that hangs is ended then; usually it takes milliseconds."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.string())])
WORKERS, ROWS_EACH = 4, 50


@dataclass(frozen=True, slots=True)
class LoopOnly:
    """A connection whose calls all go over the loop."""

    origin: ClusterOrigin

    def open(self) -> Opened:
        opened = self.origin.open()
        assert opened.calls is not None
        opened.calls.close()
        opened.calls = None
        return opened

    def newest(self, database: Any) -> LoopOnly:
        return LoopOnly(self.origin.newest(database))


def started(work: Callable[[], Any]) -> tuple[int, int]:
    """Fork a child that does ``work``; its pid, and where its answer can be read."""
    answer, written = os.pipe()
    pid = os.fork()
    if pid:
        os.close(written)
        return pid, answer
    signal.alarm(CHILD_S)
    try:
        try:
            said = work()
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(written, json.dumps(said).encode())
    finally:
        os._exit(0)


def answered(pid: int, answer: int) -> Any:
    """What a child said, or how it ended without a word."""
    with os.fdopen(answer, "rb") as file:
        said = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(said) if said else f"it ended with {status}"


def in_child(work: Callable[[], Any]) -> Any:
    return answered(*started(work))


class Client:
    """The calls of a table, blocking or as coroutines."""

    def __init__(self, table: Table, *, is_async: bool) -> None:
        self._table = table
        self._is_async = is_async

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not self._is_async:
            return getattr(self._table, name)  # type: ignore[no-any-return]

        def call(*args: Any, **options: Any) -> Any:
            async def work() -> Any:
                return await getattr(self._table.aio, name)(*args, **options)

            return asyncio.run(work())

        return call


def row(number: int, value: str = "x") -> dict[str, Any]:
    return {"id": number, "v": value}


def simple_calls(db: Database, client: Client, report: dict[str, Any]) -> None:
    client.upsert(row(1))
    report["get"] = in_child(lambda: client.get(1, timeout=60.0))
    report["upsert"] = in_child(lambda: len(client.upsert(row(100))))
    client.upsert(row(200))
    report["both"] = [client.get(100), client.get(200)]
    report["get_many"] = in_child(lambda: client.get_many([1, 200], timeout=60.0).num_rows)
    report["scan"] = in_child(lambda: client.scan(timeout=60.0).num_rows)
    many = [row(1000 + n) for n in range(200)]
    report["bulk"] = in_child(lambda: len(client.upsert(many, timeout=60.0)))
    report["tables"] = in_child(lambda: db.tables())
    report["grandchild"] = in_child(lambda: [client.get(1), in_child(lambda: client.get(1))])


def workers(client: Client, report: dict[str, Any]) -> None:
    def write(first: int) -> int:
        return [len(client.upsert(row(first + n))) for n in range(ROWS_EACH)].count(1)

    first = 10_000
    children = [
        started(lambda n=n: write(first + n * ROWS_EACH))  # type: ignore[misc]
        for n in range(WORKERS)
    ]
    report["written"] = [answered(*child) for child in children]
    report["found"] = client.scan(columns=["id"], where=[("id", ">=", first)]).num_rows
    lock = 5_000_000
    report["lock"] = [
        in_child(lambda n=n: len(client.upsert(row(lock, str(n)), if_version=0)))  # type: ignore[misc]
        for n in range(3)
    ]


def ends(db: Database, client: Client, report: dict[str, Any]) -> None:
    def close() -> Any:
        first = client.get(1)
        db.close()
        try:
            client.get(1)
        except Exception as error:
            return [first, str(error)]
        return [first, "it was not closed"]

    report["closed"] = in_child(close)
    report["closed unused"] = in_child(db.close)
    report["after closes"] = client.get(1)
    pid = os.fork()
    if pid == 0:
        client.get(1)
        sys.exit(0)  # with all exit handlers, and the end of the interpreter
    report["exit status"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    report["after exit"] = [client.get(1), len(client.upsert(row(2)))]


def while_in_use(db: Database, client: Client, report: dict[str, Any]) -> None:
    """Fork with a call under way in another thread, and with each lock held."""
    opened: Any = db._connection.opened()
    session = opened.database._session
    locks = [opened.loop._lock, session._lock]
    if opened.calls is not None:
        locks.append(opened.calls._lock)
    held, over, failures = threading.Event(), threading.Event(), list[BaseException]()
    calls = 0

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            over.wait()

    def call() -> None:
        nonlocal calls
        try:
            while not over.is_set() or not calls:
                client.upsert(row(300 + calls % 10))
                calls += 1
        except BaseException as error:
            failures.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    report["during calls"] = [in_child(lambda: client.get(1)) for _ in range(5)]
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    report["locks held"] = in_child(lambda: [client.get(1), len(client.upsert(row(400)))])
    over.set()
    holder.join()
    caller.join()
    report["caller failed"] = [repr(failure) for failure in failures]


def inherited_sockets(db: Database, client: Client, report: dict[str, Any]) -> None:
    client.get(1)
    opened: Any = db._connection.opened()
    descriptors = opened.loop._loop.descriptors()
    lines = [] if opened.calls is None else list(opened.calls._lines)

    def look() -> Any:
        return [
            sorted({os.readlink(f"/proc/self/fd/{number}") for number in descriptors}),
            sorted({line._socket.fileno() for line in lines}),
        ]

    report["sockets"] = [len(descriptors) - 1 + len(lines), in_child(look)]
    report["after all"] = [client.get(1), len(client.upsert(row(3))), client.count()]


def run(door: str, origin: Origin) -> dict[str, Any]:
    if door == "loop":
        assert isinstance(origin, ClusterOrigin)
        origin = LoopOnly(origin)
    db = Database.open(origin, "test")
    table = db.create_table(door, SCHEMA, key="id", durability=segments("ram"))
    client = Client(table, is_async=door == "aio")
    report: dict[str, Any] = {}
    simple_calls(db, client, report)
    workers(client, report)
    ends(db, client, report)
    while_in_use(db, client, report)
    inherited_sockets(db, client, report)
    db.close()
    return report


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(run(asked["door"], pickle.loads(base64.b64decode(asked["origin"])))))
