"""Safekeepers over real TCP and real files; and whatever a caller with the right secret sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from stelae.actors.master.leader.migration_ports import SafekeeperPorts
from stelae.actors.safekeeper.server import Safekeeper
from stelae.actors.server.membership import Membership
from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox, TimelineProposer
from stelae.consensus.wal.messages import (
    WAL_FETCH,
    WAL_TO_ACCEPTOR,
    FetchEntries,
    ProposerGreeting,
    ProposerMail,
    WalAppendRequest,
)
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.safekeepers import (
    BEGIN_PULL,
    DELETE_BLOBS,
    END_PULL,
    EXCLUDE_TIMELINE,
    GET_BLOB,
    LIST_BLOBS,
    LIST_TIMELINES,
    PULL_TIMELINE,
    PUT_BLOB,
    PUT_CONFIGURATION,
    READ_PULL,
    TIMELINE_STATUS,
    BeginPull,
    DeleteBlobs,
    EndPull,
    ExcludeTimeline,
    GetBlob,
    ListBlobs,
    ListTimelines,
    PullTimelineFrom,
    PutBlob,
    PutConfiguration,
    ReadPull,
    TimelineStatusOf,
)
from stelae.core.records.configurations import TimelineId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    LogPosition,
    ProposerId,
    SafekeeperId,
    SafekeeperPlace,
    TimelineConfiguration,
    TimelineSource,
    WalFile,
)
from stelae.core.rpc import Method
from stelae.core.tasks import Tasks
from stelae.runtime.files import LocalDisk
from tests.cluster_fixture import CLUSTER, SETTINGS, LocalCluster, local_cluster
from tests.until import until_async

TIMELINE = TimelineId(TableId("t"), TabletId("a" * 32))
FIRST = TimelineConfiguration(1, (SafekeeperId(1), SafekeeperId(2), SafekeeperId(3)))
NASTY = TimelineId(TableId("t"), TabletId("../../etc"))


@asynccontextmanager
async def keepers(root: Path) -> AsyncIterator[tuple[LocalCluster, SafekeeperPorts]]:
    """Three safekeepers with their ids, and one timeline on all of them."""
    async with local_cluster(root, tservers=0, backups=1, safekeepers=3) as cluster:
        # The masters say the ids in their answers to heartbeats.
        await until_async(
            lambda: all(k.safekeeper_id is not None for k in cluster.safekeepers),
            30.0,
            "each safekeeper has its id",
            poll_s=0.02,
        )
        cluster.safekeepers.sort(key=lambda keeper: keeper.safekeeper_id or 0)
        runtime = cluster.client_runtime("driver")

        def find(one: SafekeeperId) -> tuple[ServerUuid, Address] | None:
            for keeper in cluster.safekeepers:
                if keeper.safekeeper_id == one:
                    return keeper.info.uuid, keeper.info.address
            return None

        ports = SafekeeperPorts(runtime, find)
        for one in FIRST.sk_set:
            await ports.put_configuration(
                one, TIMELINE, FIRST, min_term=0, create=True, timeout_s=5.0
            )
        yield cluster, ports


class Writer:
    """A proposer over TCP."""

    def __init__(self, cluster: LocalCluster, name: str, term: int) -> None:
        self.tasks = Tasks()
        self.failure: StelaeError | None = None
        self._runtime = cluster.client_runtime(name)
        self._mailbox = AcceptorMailbox(name)
        places = tuple(
            SafekeeperPlace(keeper.safekeeper_id, keeper.info.uuid, keeper.info.address)
            for keeper in cluster.safekeepers
            if keeper.safekeeper_id is not None
        )
        self._changed = asyncio.Event()
        self.proposer = TimelineProposer(
            self._runtime,
            SETTINGS,
            Membership(),
            self.tasks,
            self._mailbox,
            source=TimelineSource(TIMELINE.table_id, TIMELINE.tablet_id, FIRST, places),
            term=term,
            on_progress=self._changed.set,
            on_failed=self._fail,
        )

    def _fail(self, error: StelaeError) -> None:
        self.failure = error

    async def elect(self) -> list[Entry]:
        await self._runtime.peers.listen(ServerUuid("c" * 32), self._mailbox.handlers())
        async with asyncio.timeout(20):
            return await self.proposer.elect()

    async def write(self, *bodies: bytes) -> None:
        """Until all are committed."""
        lsn = 0
        for body in bodies:
            lsn = self.proposer.propose(body)
        self.proposer.turn()
        async with asyncio.timeout(20):
            while self.proposer.committed_lsn < lsn:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        self.proposer.close()
        await self.tasks.close()


async def test_a_proposer_writes_and_another_finds_it_on_real_files(tmp_path: Path) -> None:
    """Over TCP, with syncs in threads, and again after all safekeepers were started anew."""
    bodies = [f"entry {n}".encode() * 50 for n in range(200)]
    async with keepers(tmp_path) as (cluster, ports):
        writer = Writer(cluster, "writer-1", 1)
        await writer.elect()
        await asyncio.gather(*(writer.write(body) for body in bodies[:100]))
        await writer.write(*bodies[100:])
        await writer.close()
        tablet_id = TIMELINE.tablet_id
        held = [await ports.timeline_status(n, tablet_id, timeout_s=5.0) for n in FIRST.sk_set]
        assert sum(each.flush_lsn >= 200 for each in held) >= 2
        uuids = [keeper.info.uuid for keeper in cluster.safekeepers]
        for n in range(3):
            await start_anew(cluster, n)
        assert [keeper.info.uuid for keeper in cluster.safekeepers] == uuids
        second = Writer(cluster, "writer-2", 2)
        tail = await second.elect()
        found = [bytes(entry.body) for entry in tail if entry.kind is EntryKind.COMMAND]
        assert found == bodies
        await second.close()


async def start_anew(cluster: LocalCluster, n: int) -> None:
    """Another run on the same folder, which knows its id."""
    old = cluster.safekeepers[n]
    await old.stop()
    disk = old._runtime.disk
    assert isinstance(disk, LocalDisk)
    disk.close()
    name = old.info.name
    runtime = cluster.client_runtime(name, threads=True)
    keeper = Safekeeper(
        runtime, name=name, cluster=CLUSTER, masters=cluster.master_addresses, settings=SETTINGS
    )
    await keeper.start()
    assert keeper.safekeeper_id == old.safekeeper_id == n + 1
    cluster.safekeepers[n] = keeper
    cluster._stack.push_async_callback(keeper.stop)


def _mail(address: str, **changes: Any) -> ProposerMail:
    ids = (TIMELINE.tablet_id, ProposerId("p"), SafekeeperId(1))
    greeting = ProposerGreeting(*ids, 0, 0, 1, 0, None)
    changed = msgspec.structs.replace(greeting, **changes)
    return ProposerMail(TIMELINE.tablet_id, Address(address), (changed,))


def _append(entries: tuple[Entry, ...], **changes: Any) -> ProposerMail:
    ids = (TIMELINE.tablet_id, ProposerId("p"), SafekeeperId(1))
    request = WalAppendRequest(*ids, 1, 1, 1, 1, OpId(0, 0), entries, 0, 0, 1)
    changed = msgspec.structs.replace(request, **changes)
    return ProposerMail(TIMELINE.tablet_id, Address("127.0.0.1:9"), (changed,))


FILE = WalFile("wal-" + "0" * 19 + "1-" + "0" * 20, 10, 0)
JOINT = TimelineConfiguration(2, FIRST.sk_set, ())
DOUBLE = TimelineConfiguration(2, (SafekeeperId(1), SafekeeperId(1)))
NONE = TimelineConfiguration(0, FIRST.sk_set)
NOWHERE = SafekeeperPlace(SafekeeperId(2), ServerUuid("b" * 32), Address("nowhere"))
SAFEKEEPER_CALLS: list[tuple[Method[Any, Any], Any]] = [
    (WAL_TO_ACCEPTOR, _mail("nowhere")),
    (WAL_TO_ACCEPTOR, _mail("127.0.0.1:99999999")),
    (WAL_TO_ACCEPTOR, _mail("")),
    (WAL_TO_ACCEPTOR, _mail("127.0.0.1:9", session=0)),
    (WAL_TO_ACCEPTOR, _mail("127.0.0.1:9", session=-5, proposer=ProposerId(""))),
    (WAL_TO_ACCEPTOR, _mail("127.0.0.1:9", generation=2, configuration=JOINT)),
    (WAL_TO_ACCEPTOR, _mail("127.0.0.1:9", generation=2, configuration=DOUBLE)),
    (WAL_TO_ACCEPTOR, _mail("127.0.0.1:9", timeline_id=TabletId("b"))),
    (WAL_TO_ACCEPTOR, _append((Entry(1, 7, EntryKind.COMMAND, b""),))),
    (WAL_TO_ACCEPTOR, _append((Entry(-1, 1, EntryKind.COMMAND, b""),))),
    (WAL_TO_ACCEPTOR, _append((), commit_lsn=-1)),
    (WAL_TO_ACCEPTOR, _append((), previous=OpId(-1, -1))),
    (WAL_FETCH, FetchEntries(TIMELINE.tablet_id, 1, 1, -5, 1 << 60, -1)),
    (WAL_FETCH, FetchEntries(TIMELINE.tablet_id, 0, 0, 1, 0, 0)),
    (PUT_CONFIGURATION, PutConfiguration(TIMELINE, JOINT)),
    (PUT_CONFIGURATION, PutConfiguration(TIMELINE, DOUBLE, create=True)),
    (PUT_CONFIGURATION, PutConfiguration(TIMELINE, NONE, create=True)),
    (PUT_CONFIGURATION, PutConfiguration(NASTY, FIRST, create=True)),
    (PUT_CONFIGURATION, PutConfiguration(TIMELINE, FIRST, min_term=-3)),
    (EXCLUDE_TIMELINE, ExcludeTimeline(NASTY, FIRST, forever=True)),
    (EXCLUDE_TIMELINE, ExcludeTimeline(TIMELINE, NONE)),
    (PULL_TIMELINE, PullTimelineFrom(NASTY, FIRST, NOWHERE)),
    (PULL_TIMELINE, PullTimelineFrom(TIMELINE, FIRST, NOWHERE, LogPosition(9, 9))),
    (PULL_TIMELINE, PullTimelineFrom(TIMELINE, JOINT, NOWHERE)),
    (BEGIN_PULL, BeginPull(NASTY.tablet_id, SafekeeperId(-1))),
    (READ_PULL, ReadPull("none", FILE, -1, -1)),
    (END_PULL, EndPull("none")),
    (TIMELINE_STATUS, TimelineStatusOf(NASTY.tablet_id)),
    (LIST_TIMELINES, ListTimelines(TabletId("~"), -(1 << 40))),
]
BACKUP_CALLS: list[tuple[Method[Any, Any], Any, tuple[bytes, ...]]] = [
    (PUT_BLOB, PutBlob("../../x", 0), (b"x",)),
    (PUT_BLOB, PutBlob("1/../1/x", 0), (b"x",)),
    (PUT_BLOB, PutBlob("1/a/1/..", 0), (b"x",)),
    (PUT_BLOB, PutBlob("1/a/1/x", 1), (b"x",)),
    (PUT_BLOB, PutBlob("1/a/1/x", 0), ()),
    (PUT_BLOB, PutBlob("1/a/1/x", 0), (b"x", b"y")),
    (GET_BLOB, GetBlob("../instance"), ()),
    (DELETE_BLOBS, DeleteBlobs(("../instance",)), ()),
    (DELETE_BLOBS, DeleteBlobs(("",)), ()),
    (LIST_BLOBS, ListBlobs(SafekeeperId(-1), "", -5), ()),
]


async def test_hostile_calls_end_in_answers_and_change_nothing(tmp_path: Path) -> None:
    """Safekeepers and backups live, no handler raises anything but our errors, and the timeline is
    written to before and after as ever."""
    async with keepers(tmp_path) as (cluster, ports):
        writer = Writer(cluster, "writer-1", 1)
        await writer.elect()
        await writer.write(b"before")
        keeper, backup = cluster.safekeepers[0], cluster.backups[0]
        runtime = cluster.client_runtime("hostile")
        answers = []
        for method, body in SAFEKEEPER_CALLS:
            answers.append(await _answer(runtime, keeper, method, body))
        for method, body, blobs in BACKUP_CALLS:
            await _answer(runtime, backup, method, body, blobs)
        assert answers.count("") < len(answers) / 2, "most are refused"
        assert (tmp_path / "backup-0" / "instance").exists()
        await writer.write(b"after")
        held = await ports.timeline_status(SafekeeperId(1), TIMELINE.tablet_id, timeout_s=5.0)
        assert held.configuration == FIRST
        assert held.problem == ""
        assert [each.tablet_id for each in [held]] == keeper.timelines.held
        await writer.close()
        assert writer.failure is None


async def _answer(
    runtime: Any, server: Any, method: Any, body: Any, blobs: tuple[bytes, ...] = ()
) -> str:
    """The name of the error that a call ends in, if it does."""
    info = server.info
    try:
        await runtime.peers.call(
            info.address, method, body, timeout_s=2.0, blobs=blobs, destination=info.uuid
        )
    except StelaeError as error:
        return type(error).__name__
    return ""
