"""The life of each replica on one tserver: opened from its disk, stopped, failed, or a tombstone.

What a server has of a tablet with ``replicas(n)`` is what its superblock says
(`stelae.actors.tserver.tablet_store.store`): a ready one runs as a `ReplicatedTablet`, a deleted or
copied one as a `Tombstone` that votes. A replica that cannot go on (its files are damaged, or a
write to them failed) is stopped at once, is reported FAILED, and concerns nobody else on this
server; if merely the disk was full, or something else that passes was in the way, it is begun again
from what is on the disk. Changes of one tablet follow each other (`ReplicaLives.lock`). Design §8.
"""

from __future__ import annotations

import asyncio
import errno
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from stelae.actors.raft.host import RaftHost
from stelae.actors.raft.replica import Replica
from stelae.actors.raft.tombstone import Tombstone
from stelae.actors.raft.types import tablet_replica_settings
from stelae.actors.server.membership import Membership
from stelae.actors.tserver.indexes.routes import Locate, no_masters
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.backoff import Backoff
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.messages.servers import CopyWanted
from stelae.core.records.replication import Configuration, Snapshot, TermAndVote
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.storage.files.superblock import StoredFile
from stelae.storage.replicated.manifest import images_of

OPENINGS_MAX = 4
"""Tablets whose images are read at a time."""
FULL_DISK_RETRY_S = 2.0
"""After which a replica that found the disk full is begun again; after twice as long each time it
does so again soon, as it reads all its images."""
FULL_DISK_RETRY_MAX_S = 30.0
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
PASSING = (errno.EMFILE, errno.ENFILE)
"""Nothing was written, and nothing is known to be wrong with the disk. A failed sync is no such
thing: what was to be written may look as if it were there."""


def files_of(snapshot: Snapshot) -> list[StoredFile]:
    """The images that a tablet's snapshot needs. Raises CorruptData."""
    named = images_of("a snapshot in a superblock", snapshot.data)
    return [StoredFile(file.name, file.size_bytes, file.crc) for file in named]


@dataclass(frozen=True, slots=True)
class Gone:
    """A replica that was stopped: what it was in, and what it had in its log, if that is known."""

    term: int
    last: OpId | None
    problem: str = ""
    configuration: Configuration | None = None
    """The newest that was in its log, committed or not."""
    retry_s: float = 0.0
    """It begins again after so long. 0: it does not by itself."""
    no_room: bool = False
    """It failed as the disk was full."""

    @classmethod
    def of(cls, tablet: ReplicatedTablet, problem: str = "") -> Gone:
        return cls(tablet.term, tablet.end_of_log, problem, tablet.replica.core.configuration)


UNKNOWN = Gone(0, None)


class ReplicaLives:
    """What `TabletReplicas` is made of."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        tasks: Tasks,
        members: Membership,
        *,
        on_news: Callable[[], None],
        on_gone: Callable[[TabletId], None],
    ) -> None:
        """``members`` says where the others listen by now. ``on_news``: there is something worth a
        report; ``on_gone``: a replica runs here no more."""
        self.copy_needed: Callable[[TabletId, ServerUuid], None] = lambda tablet_id, uuid: None
        """Called again and again while a tablet led here has a member that needs a copy."""
        self.copy_progress: Callable[[TabletId], tuple[int, int]] = lambda tablet_id: (0, 0)
        """Of a tablet that is being copied to here: bytes that are there, and bytes in all."""
        self.copy_source: Callable[[TabletId], ServerUuid] = lambda tablet_id: ServerUuid("")
        """From where a tablet is copied to here; empty: it is not."""
        self.copies_wanted: Callable[[TabletId], tuple[CopyWanted, ...]] = lambda tablet_id: ()
        """Members of a tablet led here that were told to make a copy."""
        self.copy_problem: Callable[[TabletId], str] = lambda tablet_id: ""
        """Why the last copy of a tablet to here was given up; empty if none was, or one came."""
        self.cancel_copy: Callable[[TabletId], Awaitable[object]] | None = None
        """End a copy to here, if there is one; awaited before a tablet is deleted for ever."""
        self.locate: Locate = no_masters
        """Where indexlets are, for leaders of tablets whose tables have indexes."""
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._servers = members
        self._on_news = on_news
        self._on_gone = on_gone
        self._store: TabletStore | None = None
        self._store_tasks = Tasks()
        self._raft = tablet_replica_settings(settings)
        self._raft_host = RaftHost(runtime, tasks, self._raft.tick_s)
        self._tablets: dict[TabletId, ReplicatedTablet] = {}
        self._members: dict[TabletId, Replica] = {}
        self._tombstones: dict[TabletId, Tombstone] = {}
        self._opening: dict[TabletId, None] = {}
        self._failed: dict[TabletId, Gone] = {}
        self._stopped: dict[TabletId, Gone] = {}
        """By `stop_for_copy`."""
        self._full: dict[TabletId, tuple[float, Backoff]] = {}
        """When a tablet last failed by what passes, and its pauses before it is begun again."""
        self._burials: dict[TabletId, None] = {}
        """Deletions for ever that wait for room."""
        self._watches: dict[TabletId, asyncio.Task[None]] = {}
        self._openings = asyncio.Semaphore(OPENINGS_MAX)
        self._locks: weakref.WeakValueDictionary[TabletId, asyncio.Lock]
        self._locks = weakref.WeakValueDictionary()

    # ---- life -------------------------------------------------------------------------------

    async def load(self, server: ServerUuid) -> None:
        """Read what the disk holds, before anybody is answered. Raises OSError."""
        disk, offload = self._runtime.disk, self._runtime.offload
        store = TabletStore(disk, self._store_tasks, server, files_of, offload=offload)
        loaded = await store.load_all()
        for repair in loaded.repairs:
            self._runtime.metrics.count("tablets_repaired", kind=repair.kind.value)
        for tablet_id, error in loaded.failed.items():
            self._failed[tablet_id] = Gone(0, None, str(error))
        for tablet_id, superblock in loaded.superblocks.items():
            if superblock.state is DataState.READY:
                self._opening[tablet_id] = None
        store.on_failed = self.failed
        self._store = store

    async def start(self) -> None:
        """Once this server listens: vote for tombstones, and open everything else meanwhile."""
        self._tasks.spawn(self._watch_store(), "the store of tablets")
        self._tasks.spawn(self._follow_addresses(), "addresses of other servers")
        for tablet_id, superblock in list(self.store.superblocks.items()):
            if superblock.state is DataState.READY:
                self._tasks.spawn(self._open_found(tablet_id), f"open {tablet_id}")
            else:
                await self.settle(tablet_id)

    async def stop(self) -> None:
        """Stop all; what is on disk needs no farewell. The server's tasks have ended."""
        for tablet_id in list(self._tablets):
            await self._stop(tablet_id)
        for tombstone in self._tombstones.values():
            await tombstone.stop()
        await self._raft_host.stop()
        try:
            await self._store_tasks.close()
        except OSError:
            self._runtime.metrics.count("tablet_store_failures")

    async def _watch_store(self) -> None:
        """A disk that fails is the matter of one tablet; what is seen here is a bug of ours, after
        which it is not known what this server has of any."""
        raise await self._store_tasks.wait_failed()

    async def _follow_addresses(self) -> None:
        """Others may listen elsewhere after a restart, and all of a group at once."""
        while True:
            await self._servers.wait_change()
            for tablet in list(self._tablets.values()):
                self._tell_addresses(tablet)

    def _tell_addresses(self, tablet: ReplicatedTablet) -> None:
        for peer in tablet.replica.core.configuration.peers:
            known = self._servers.find(peer.uuid)
            if known is not None and peer.uuid != self.store.server:
                tablet.replica.update_address(peer.uuid, known.address)

    @property
    def store(self) -> TabletStore:
        """Only after `load`."""
        assert self._store is not None, "the store is not loaded"
        return self._store

    def lock(self, tablet_id: TabletId) -> asyncio.Lock:
        """Held during each change of the tablet here."""
        return self._locks.setdefault(tablet_id, asyncio.Lock())

    # ---- what there is ----------------------------------------------------------------------
    def tablet(self, tablet_id: TabletId) -> ReplicatedTablet | None:
        """The replica, if it takes part here."""
        return self._tablets.get(tablet_id)

    def data_state(self, tablet_id: TabletId) -> DataState:
        """What the disk holds; of a tablet whose superblock cannot be read that it is ready: it
        must not be written over."""
        if tablet_id in self.store.failed:
            return DataState.READY
        superblock = self.store.superblock(tablet_id)
        return DataState.ABSENT if superblock is None else superblock.state

    def last_op_id(self, tablet_id: TabletId) -> OpId | None:
        """The end of the log, as votes are measured by it; None: it is not known."""
        tablet = self._tablets.get(tablet_id)
        if tablet is not None:
            return tablet.end_of_log
        gone = self._stopped.get(tablet_id) or self._failed.get(tablet_id)
        if gone is not None:
            return gone.last
        superblock = self.store.superblock(tablet_id)
        return superblock.tombstone if superblock is not None else None

    def term(self, tablet_id: TabletId) -> int:
        """As far as is known; 0: it is not."""
        tablet = self._tablets.get(tablet_id)
        if tablet is not None:
            return tablet.term
        tombstone = self._tombstones.get(tablet_id)
        if tombstone is not None:
            return tombstone.term
        gone = self._stopped.get(tablet_id) or self._failed.get(tablet_id)
        return gone.term if gone is not None else 0

    # ---- opening and stopping ---------------------------------------------------------------

    async def _open_found(self, tablet_id: TabletId) -> None:
        async with self._openings, self.lock(tablet_id):
            if tablet_id in self._opening:
                await self._open(tablet_id)

    async def _open(self, tablet_id: TabletId, known: Gone | None = None) -> None:
        """Run a ready tablet from its disk, or note why that cannot be. ``known``: what it was when
        it last ran."""
        store = self.store
        self._opening[tablet_id] = None
        tablet: ReplicatedTablet | None = None
        try:
            superblock = store.require(tablet_id, DataState.READY)
            tablet = ReplicatedTablet(
                self._runtime,
                self._settings,
                store,
                superblock,
                on_news=self._on_news,
                on_copy_needed=lambda uuid: self.copy_needed(tablet_id, uuid),
                host=self._raft_host,
            )
            tablet.locate = self.locate
            await tablet.start()
        except Exception as error:  # a bug is told, and is this tablet's matter alone
            self._tell_if_bug(tablet_id, error)
            if tablet is not None:
                await tablet.close()
            gone = UNKNOWN if known is None or isinstance(error, CorruptData) else known
            if tablet is not None and tablet.end_of_log is not None:  # the rows alone are lost
                gone = Gone(tablet.term, tablet.end_of_log, configuration=gone.configuration)
            gone = replace(gone, problem=str(error) or repr(error), retry_s=0.0)
            self._note_failed(tablet_id, gone, error)
            return
        finally:
            self._opening.pop(tablet_id, None)
        self._tablets[tablet_id] = tablet
        self._members[tablet_id] = tablet.replica
        self._tell_addresses(tablet)
        self._watches[tablet_id] = self._tasks.spawn(self._watch(tablet), f"watch {tablet_id}")
        self._on_news()

    async def _stop(self, tablet_id: TabletId) -> Gone | None:
        """Run it no more; what it was. None if it does not run."""
        tablet = self._tablets.pop(tablet_id, None)
        if tablet is None:
            return None
        del self._members[tablet_id]
        self._watches.pop(tablet_id).cancel()
        await tablet.close()
        self._on_gone(tablet_id)
        return Gone.of(tablet)

    async def _watch(self, tablet: ReplicatedTablet) -> None:
        """Stop a replica that cannot go on, and begin it again if only the disk was full."""
        tablet_id, error = tablet.tablet_id, await tablet.tasks.wait_failed()
        if not isinstance(error, Exception):
            raise error
        self._tell_if_bug(tablet_id, error)
        del self._tablets[tablet_id], self._members[tablet_id], self._watches[tablet_id]
        self._note_failed(tablet_id, Gone.of(tablet, str(error) or repr(error)), error)
        async with self.lock(tablet_id):
            await tablet.close()

    async def _begin_again(self, tablet_id: TabletId, gone: Gone) -> None:
        """Once there may be room again, if nothing else has become of it."""
        await self.store.room.make()
        await self._runtime.clock.sleep(gone.retry_s)
        async with self.lock(tablet_id):
            if self._failed.get(tablet_id) is gone:
                await self._open_again(tablet_id)

    def _tell_if_bug(self, tablet_id: TabletId, error: Exception) -> None:
        """An entry that cannot be executed stops each replica of one tablet, for good. Were it to
        end their servers, all other tablets there would be gone as well, and with each start."""
        if not isinstance(error, StelaeError | OSError):
            message = f"the replica of tablet {tablet_id} fails by a bug"
            context = {"message": message, "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _open_again(self, tablet_id: TabletId) -> None:
        """In one run of the server, from what is durable."""
        known = self._failed.pop(tablet_id, None)
        try:
            await self.store.drop_unnamed(tablet_id)
        except OSError as error:
            self._note_failed(tablet_id, replace(known or UNKNOWN, problem=str(error)), error)
        else:
            await self._open(tablet_id, known)

    def _note_failed(self, tablet_id: TabletId, gone: Gone, error: Exception | None = None) -> None:
        """``error``: what it met while nothing else was being done to it."""
        if isinstance(error, OSError) and error.errno in (*NO_ROOM, *PASSING):
            pause_s, no_room = self._pause_when_full(tablet_id), error.errno in NO_ROOM
            gone = replace(gone, retry_s=pause_s, no_room=no_room)
            self._tasks.spawn(self._begin_again(tablet_id, gone), f"begin {tablet_id} again")
        self._failed[tablet_id] = gone
        self._runtime.metrics.count("tablet_replicas_failed")
        self._on_gone(tablet_id)
        self._on_news()

    def _pause_when_full(self, tablet_id: TabletId) -> float:
        now_s = self._runtime.clock.monotonic()
        known = self._full.get(tablet_id)
        if known is None or now_s - known[0] > 2 * FULL_DISK_RETRY_MAX_S:
            backoff = Backoff(self._runtime.rng, FULL_DISK_RETRY_S, FULL_DISK_RETRY_MAX_S)
        else:
            backoff = known[1]
        self._full[tablet_id] = now_s, backoff
        return backoff.next_s()

    def failed(self, tablet_id: TabletId, error: OSError | CorruptData) -> None:
        """Somebody has found that the tablet's files cannot be read or written. If it runs, it is
        stopped; what the disk holds of it will be known after the next start only."""
        tablet = self._tablets.get(tablet_id)
        if tablet is not None:
            tablet.fail(error)
        elif tablet_id not in self._failed:
            known = self._stopped.get(tablet_id) or Gone(self.term(tablet_id), None)
            self._note_failed(tablet_id, replace(known, problem=str(error)))

    def disk_failed(self, tablet_id: TabletId, error: OSError) -> None:
        """While a copy changed the tablet."""
        self.failed(tablet_id, error)

    @contextmanager
    def _disk_failures(self, tablet_id: TabletId, gone: Gone | None = None) -> Iterator[None]:
        """A disk that fails while this tablet is changed fails the tablet. Raises TabletNotReady
        then: what the disk holds will be known after the next start only."""
        try:
            yield
        except OSError as error:
            known = gone or Gone(self.term(tablet_id), self.last_op_id(tablet_id))
            self._note_failed(tablet_id, replace(known, problem=str(error), retry_s=0.0))
            raise TabletNotReady(tablet_id, f"failed: {error}") from error

    # ---- tombstones -------------------------------------------------------------------------

    async def settle(self, tablet_id: TabletId) -> None:
        """Let what is deleted, or being copied, vote; everything else is left as it is."""
        async with self.lock(tablet_id):
            await self._entomb(tablet_id)

    async def _entomb(self, tablet_id: TabletId) -> None:
        superblock = self.store.superblock(tablet_id)
        if superblock is None or superblock.state is DataState.READY:
            return
        if tablet_id in self._tombstones or tablet_id in self._tablets:
            return

        async def save(vote: TermAndVote) -> None:
            with self._disk_failures(tablet_id):
                await self.store.save_vote(tablet_id, vote)

        with self._disk_failures(tablet_id):
            metadata = await self.store.metadata(tablet_id)
        self._tombstones[tablet_id] = Tombstone(
            self._runtime,
            self._tasks,
            tablet_id,
            self.store.server,
            metadata.term_and_vote,
            superblock.tombstone,
            save=save,
            quiet_s=self._raft.raft.election_ticks * self._raft.tick_s,
        )
        self._stopped.pop(tablet_id, None)
