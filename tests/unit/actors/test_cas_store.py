"""The configuration store: one suite over all its backends, PostgreSQL a real one.

Each store is the server class on real sockets and files; "restart" ends the server (and kills
PostgreSQL) and begins another on what is left.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest

from stelae.actors.cas_store.backends import Backend, Row
from stelae.actors.cas_store.files import FilesBackend
from stelae.actors.cas_store.opening import open_backend
from stelae.actors.cas_store.server import CasStore, RemoteConfigurations
from stelae.actors.cas_store.sqlite import SqliteBackend
from stelae.core.errors import CorruptData, InvalidArgument, Unavailable
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import (
    CasReply,
    StoredRecord,
    TimelineId,
    TimelineRecord,
)
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.runtime.files import LocalDisk
from stelae.runtime.real import RealRuntime
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers
from tests.postgres import Postgres, needed_binaries

BACKENDS = ["sqlite", "files", "postgresql"]
T1 = TimelineId(TableId("t1"), TabletId("a"))


def ids(*numbers: int) -> tuple[SafekeeperId, ...]:
    return tuple(SafekeeperId(number) for number in numbers)


def first(timeline: TimelineId = T1) -> TimelineRecord:
    return TimelineRecord(timeline, TimelineConfiguration(1, ids(1, 2, 3)))


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres(needed_binaries())
    try:
        server.create()
        yield server
    finally:
        server.remove()


class Store:
    """A server of the store, and a client of it."""

    def __init__(self, kind: str, folder: Path, postgres: Postgres | None) -> None:
        self.kind = kind
        self.folder = folder
        self.postgres = postgres
        self.failures: list[BaseException] = []
        self.cluster = folder.name
        self.server: CasStore
        self.backend: Backend
        self._disk = LocalDisk(folder / "store", sync_in_thread=True)
        self._client = self._runtime(LocalDisk(folder / "client"))
        self.remote = RemoteConfigurations(
            self._client, lambda: [self.server._runtime.peers.address]
        )
        self._nonces = 0

    def _runtime(self, disk: LocalDisk) -> RealRuntime:
        peers = TcpPeers(Credentials("test", bytes(32)), on_failure=self.failures.append)
        return RealRuntime(peers, disk)

    def make_backend(self, runtime: RealRuntime) -> Backend:
        if self.kind == "files":
            return FilesBackend(runtime.disk)
        url = "sqlite:///db/cas.db"
        if self.kind == "postgresql":
            assert self.postgres is not None
            url = self.postgres.url
        return open_backend(url, runtime, self._disk.root, self.cluster)

    async def start(self) -> None:
        self.runtime = self._runtime(self._disk)
        self.backend = self.make_backend(self.runtime)
        self.server = CasStore(self.runtime, self.backend, name="cas-1", cluster="test")
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()
        await self.runtime.close()

    async def restart(self) -> None:
        if self.postgres is not None:
            await asyncio.to_thread(self.postgres.kill)
        await self.stop()
        if self.postgres is not None:
            await asyncio.to_thread(self.postgres.start)
        await self.start()

    async def close(self) -> None:
        await self.stop()
        await self._client.close()
        assert not self.failures

    async def get(self, timeline: TimelineId = T1) -> StoredRecord | None:
        return await self.remote.get(timeline, timeout_s=10)

    async def cas(
        self, record: TimelineRecord, expected: int, nonce: str = "", writer: str = "w1"
    ) -> CasReply:
        self._nonces += 1
        return await self.remote.cas(
            record, expected, writer=writer, nonce=nonce or f"n{self._nonces}", timeout_s=10
        )

    async def history(self, timeline: TimelineId = T1) -> list[StoredRecord]:
        return [*await self.remote.history(timeline, 0, 1000, timeout_s=10)]


@pytest.fixture(params=BACKENDS)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    kind: str = request.param
    postgres = request.getfixturevalue("postgres") if kind == "postgresql" else None
    made = Store(kind, tmp_path, postgres)
    await made.start()
    yield made
    await made.close()


async def test_a_write_is_there_after_a_restart_and_says_who_made_it(store: Store) -> None:
    """An executed CAS is never lost, and carries revision, writer, nonce and time."""
    assert await store.get() is None
    reply = await store.cas(first(), 0, "n-1")
    assert reply.done
    assert reply.current is not None
    assert (reply.current.revision, reply.current.writer, reply.current.nonce) == (1, "w1", "n-1")
    joint = first().joint_with(ids(2, 3, 4))
    assert (await store.cas(joint, 1)).done
    await store.restart()
    found = await store.get()
    assert found is not None
    assert (found.revision, found.record) == (2, joint)
    assert found.at > 1_600_000_000


async def test_only_who_saw_the_newest_revision_may_write(store: Store) -> None:
    """A CAS on an older (or a future) revision changes nothing, and tells what there is."""
    await store.cas(first(), 0)
    joint = first().joint_with(ids(2, 3, 4))
    for expected in (0, 2, 7):
        reply = await store.cas(joint, expected)
        assert not reply.done
        assert reply.current == await store.get()
    assert (await store.cas(joint, 1)).done
    assert not (await store.cas(first().joint_with(ids(5, 6, 7)), 1)).done
    assert [stored.revision for stored in await store.history()] == [1, 2]


async def test_a_repeated_request_is_recognised_also_when_others_wrote_since(
    store: Store,
) -> None:
    """A lost answer: the same writer, nonce and value count as done; none of it alone does."""
    await store.cas(first(), 0, "create")
    joint = first().joint_with(ids(2, 3, 4))
    await store.cas(joint, 1, "join")
    assert (await store.cas(joint, 1, "join")).done
    final = joint.switched()
    await store.cas(final, 2, "switch", writer="w2")
    await store.restart()
    again = await store.cas(joint, 1, "join")
    assert again.done
    assert again.current is not None
    assert again.current.record == final
    assert not (await store.cas(joint, 1, "join", writer="w2")).done
    assert not (await store.cas(joint, 1, "other")).done
    assert not (await store.cas(first().joint_with(ids(1, 2, 5)), 1, "join")).done
    assert len(await store.history()) == 3


async def test_of_many_writers_at_once_one_wins_each_revision(store: Store) -> None:
    """Concurrent writers: of each revision exactly one is told that it was done."""
    await store.cas(first(), 0)
    for revision in range(1, 5):
        record = msgspec.structs.replace(first(), delivered_generation=revision % 2)
        if revision > 1:
            record = msgspec.structs.replace(record, delivered_generation=1)
        replies = await asyncio.gather(
            *(store.cas(record, revision, f"r{revision}-{n}", writer=f"w{n}") for n in range(8))
        )
        assert sum(reply.done for reply in replies) == 1
    written = await store.history()
    assert [stored.revision for stored in written] == [1, 2, 3, 4, 5]
    assert written[-1] == await store.get()


async def test_every_version_stays_in_the_history_and_in_pages(store: Store) -> None:
    """The history is complete, in order, and read page by page; so is the list of timelines."""
    record = first()
    await store.cas(record, 0)
    written = [record]
    for number in range(4):
        if number % 2 == 0:
            record = record.joint_with(ids(number + 2, number + 3, number + 4))
        else:
            record = record.switched()
        await store.cas(record, number + 1)
        written.append(record)
    assert [stored.record for stored in await store.history()] == written
    page = await store.remote.history(T1, 2, 2, timeout_s=10)
    assert [stored.revision for stored in page] == [3, 4]
    names = [("t1", "b"), ("t10", "a"), ("t2", "a"), ("t1", "ä")]
    others = [TimelineId(TableId(table), TabletId(tablet)) for table, tablet in names]
    for other in others:
        await store.cas(first(other), 0)
    everything = sorted([T1, *others], key=lambda timeline: timeline.key.encode())
    found: list[TimelineId] = []
    after: TimelineId | None = None
    while page := await store.remote.list(None, after, 2, timeout_s=10):
        found += [stored.record.timeline for stored in page]
        after = found[-1]
    assert found == everything
    of_table = await store.remote.list(TableId("t1"), None, 10, timeout_s=10)
    assert [stored.record.timeline.tablet_id for stored in of_table] == ["a", "b", "ä"]


async def test_what_no_procedure_makes_is_refused(store: Store) -> None:
    """So that of one generation there is one configuration, whatever a driver believes."""
    with pytest.raises(InvalidArgument, match="begins with generation 1"):
        await store.cas(first().joint_with(ids(2, 3, 4)), 0)
    await store.cas(first(), 0)
    other = msgspec.structs.replace(first(), configuration=TimelineConfiguration(1, ids(1, 2, 4)))
    with pytest.raises(InvalidArgument, match="one configuration"):
        await store.cas(other, 1)
    with pytest.raises(InvalidArgument, match="named twice"):
        await store.cas(first().joint_with(ids(2, 2, 4)), 1)
    assert len(await store.history()) == 1


async def test_input_that_a_database_would_choke_on_is_refused(store: Store) -> None:
    """Whatever comes over the wire is checked before a backend sees it; the server lives on."""
    await store.cas(first(), 0)
    joint = first().joint_with(ids(2, 3, 4))
    bad = TimelineId(TableId("t\0"), TabletId("a"))
    generation = TimelineConfiguration(1 << 60, ids(1))
    for wrong in (
        store.get(bad),
        store.history(bad),
        store.cas(first(bad), 0),
        store.cas(joint, -1),
        store.cas(joint, 1 << 70),
        store.cas(joint, 1, "n\0"),
        store.cas(joint, 1, "n" * 1000),
        store.cas(joint, 1, writer=""),
        store.cas(msgspec.structs.replace(first(), configuration=generation), 1),
        store.remote.list(TableId("a/b"), None, 10, timeout_s=10),
        store.remote.list(None, bad, 10, timeout_s=10),
        store.remote.history(T1, -1, 10, timeout_s=10),
    ):
        with pytest.raises((InvalidArgument, OverflowError)):
            await wrong
    assert (await store.remote.list(None, None, -5, timeout_s=10))[0].record == first()
    assert len(await store.history()) == 1


async def test_two_servers_on_one_database_agree(store: Store, tmp_path: Path) -> None:
    """Where a backend is shared, the CAS holds across servers."""
    if store.kind == "files":
        pytest.skip("a folder belongs to one server")
    runtime = store._runtime(LocalDisk(tmp_path / "second"))
    second = store.make_backend(runtime)
    await second.open()
    try:
        rows = [
            [Row("k", revision, 1, b"v", 0.0, f"w{n}", str(revision)) for revision in range(1, 21)]
            for n in range(2)
        ]

        async def write(backend: Backend, mine: list[Row]) -> int:
            return sum([(await backend.swap(row)).done for row in mine])

        done = await asyncio.gather(write(store.backend, rows[0]), write(second, rows[1]))
        assert sum(done) == 20
        history = await second.history("k", 0, 100)
        assert [row.revision for row in history] == [*range(1, 21)]
    finally:
        await second.close()
        await runtime.close()


async def test_the_tables_themselves_refuse_to_rewrite_history(store: Store) -> None:
    """Append-only is a rule of the database, not only of the code that uses it."""
    await store.cas(first(), 0)
    changes = ("UPDATE {} SET writer = 'x'", "DELETE FROM {}")
    if store.kind == "sqlite":
        connection = sqlite3.connect(store.folder / "store" / "db" / "cas.db")
        for change in changes:
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(change.format("configurations"))
        connection.close()
    elif store.kind == "postgresql":
        assert store.postgres is not None
        with psycopg.connect(store.postgres.url, autocommit=True) as server:
            for change in (*changes, "TRUNCATE {}"):
                with pytest.raises(psycopg.errors.RaiseException, match="append-only"):
                    server.execute(change.format("stelae_configurations").encode())
    else:
        (path,) = (store.folder / "store" / "configurations").iterdir()
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="checksum"):
            await FilesBackend(store.runtime.disk).open()
    assert len(await store.history()) == 1


async def test_a_database_that_is_away_is_told_and_found_again(
    postgres: Postgres, tmp_path: Path
) -> None:
    """Calls end with Unavailable while PostgreSQL is down; the server needs no restart after."""
    store = Store("postgresql", tmp_path, postgres)
    await store.start()
    await store.cas(first(), 0)
    await asyncio.to_thread(postgres.kill)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await store.get()
    await asyncio.to_thread(postgres.start)
    assert await store.get() is not None
    await store.close()


async def test_a_database_that_may_lose_commits_is_refused(
    postgres: Postgres, tmp_path: Path
) -> None:
    """With fsync off an executed CAS could be lost: the server does not start."""
    await asyncio.to_thread(postgres.kill)
    await asyncio.to_thread(postgres.start, "-c fsync=off")
    store = Store("postgresql", tmp_path, postgres)
    try:
        with pytest.raises(InvalidArgument, match="fsync off"):
            await store.start()
    finally:
        await store.backend.close()
        await store.runtime.close()
        await store._client.close()
        await asyncio.to_thread(postgres.kill)
        await asyncio.to_thread(postgres.start)


async def test_sqlite_syncs_each_commit_and_knows_its_own_files(tmp_path: Path) -> None:
    """synchronous=EXTRA is in force, and another program's database is not written to."""
    store = Store("sqlite", tmp_path, None)
    await store.start()
    connection = store.backend._connection  # type: ignore[attr-defined]
    assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
    await store.close()
    foreign = sqlite3.connect(tmp_path / "store" / "other.db")
    foreign.execute("CREATE TABLE mine (x)")
    foreign.commit()
    foreign.close()
    backend = SqliteBackend(tmp_path / "store" / "other.db", asyncio.to_thread)
    with pytest.raises(InvalidArgument, match="no configuration store"):
        await backend.open()
    with pytest.raises(InvalidArgument, match="neither"):
        open_backend("mysql://x", store.runtime, tmp_path, "test")
