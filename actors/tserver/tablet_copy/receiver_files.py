"""The receiving end of a tablet copy, as far as the disk is concerned.

`begin_copy`, then `write_copied` for each image and `write_log` for what follows them, then
`finish_copy`; or `abort_copy`. Invariants: nothing of a copy counts before `finish_copy` replaced
the superblock; each image was verified before it was written; only the newest attempt at copying a
tablet may write; a copy that does not reach the last OpId which the tombstone answers for is not
finished, as what this server once acknowledged would be forgotten.
Seed "Tablet Copy design", follower tablet copy; design §8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from stelae.actors.tserver.tablet_store.startup import undo_copy
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    StaleTerm,
    TabletDeleted,
    TabletNotReady,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Configuration, Entry, Snapshot
from stelae.core.rpc import Blob
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    merge_consensus_metadata,
    pristine,
)
from stelae.storage.files.superblock import (
    NOTHING,
    StoredFile,
    Superblock,
    check_stored_file,
    check_tablet_id,
    copied,
    copying,
)


class CopyAttempt:
    """One go at copying a tablet. It is stale once another one began, or the copy ended."""

    def __init__(
        self, tablet_id: TabletId, table: TableRecord, wanted: Sequence[StoredFile]
    ) -> None:
        self.tablet_id = tablet_id
        self.table = table
        self.wanted = {file.name: file for file in wanted}
        self.held: dict[str, StoredFile] = {}
        """What is durable of it, verified."""
        self.log_first = NOTHING
        self.log_last = NOTHING

    @property
    def missing(self) -> list[StoredFile]:
        """Images still to be copied, in the order in which they were asked for."""
        return [file for name, file in self.wanted.items() if name not in self.held]


class TabletCopies:
    """Copies that this server receives. Raises as `TabletStore` does where the disk is concerned.

    Who may copy when is the caller's affair (the seed's ``StartTabletCopy``); that no vote and
    nothing acknowledged is forgotten by it is seen to here.
    """

    def __init__(self, store: TabletStore) -> None:
        self._store = store
        self._files = store.files
        self._attempts: dict[TabletId, CopyAttempt] = {}

    async def begin_copy(
        self,
        tablet_id: TabletId,
        table: TableRecord,
        source: ConsensusMetadata,
        wanted: Sequence[StoredFile],
    ) -> CopyAttempt:
        """Begin, or go on with images ``wanted``: those that an earlier attempt verified are held.

        ``source`` is of the replica that is copied; term and vote stay with us as the seed's rules
        say. From here on the tablet answers votes by its tombstone's last OpId.

        Raises:
            TabletDeleted: the tablet is gone for good.
            TabletNotReady: it is ready, or failed, and has to be deleted first.
            StaleTerm: the source is of an older term than what this server had acknowledged.
            InvalidArgument: names that no tablet has.
        """
        check_tablet_id(tablet_id)
        for file in wanted:
            check_stored_file(file)
        attempt = CopyAttempt(tablet_id, table, wanted)
        if source.group_id != tablet_id or len(attempt.wanted) != len(wanted):
            raise InvalidArgument(f"a copy of {tablet_id} from {source.group_id}, files {wanted}")
        await self._store.carry_through(tablet_id, self._begin(attempt, source))
        return attempt

    async def _begin(self, attempt: CopyAttempt, source: ConsensusMetadata) -> None:
        tablet_id = attempt.tablet_id
        async with self._store.lock(tablet_id):
            await self._store.image_writes.done(tablet_id)
            self._store.check_not_failed(tablet_id)
            before = self._store.superblock(tablet_id)
            self._check_may_begin(tablet_id, before, source)
            if before is None:
                # First, and unused: a superblock is never there without them.
                await self._files.replace_consensus(pristine(tablet_id))
            earlier = self._attempts.pop(tablet_id, None)
            if before is not None and before.state is DataState.COPYING:
                await self._go_on(attempt, earlier.held if earlier is not None else {})
            else:
                if before is not None and await self._files.holds_anything(tablet_id):
                    await self._files.bury(before)
                await self._store.commit(copying(before, tablet_id, attempt.table))
            await self._merge(tablet_id, source)
            self._attempts[tablet_id] = attempt

    def _check_may_begin(
        self, tablet_id: TabletId, before: Superblock | None, source: ConsensusMetadata
    ) -> None:
        if before is None:
            return
        if before.forever:
            raise TabletDeleted(tablet_id, self._store.server)
        if before.state is DataState.READY:
            raise TabletNotReady(tablet_id, "ready, and has to be deleted before it is copied")
        term = source.term_and_vote.term
        if before.tombstone is None:
            self._check_no_voter(tablet_id, source)
        elif term < before.tombstone.term:
            raise StaleTerm(f"the source of a copy of {tablet_id}", term, before.tombstone.term)

    async def _go_on(self, attempt: CopyAttempt, held: Mapping[str, StoredFile]) -> None:
        """Take over what the attempt before has verified, and remove all else that it wrote."""
        tablet_id = attempt.tablet_id
        for name in await self._files.images(tablet_id):
            if name in attempt.wanted and held.get(name) == attempt.wanted[name]:
                attempt.held[name] = held[name]
            else:
                await self._files.remove_image(tablet_id, name)
        await self._files.clear_log(tablet_id)

    async def _merge(self, tablet_id: TabletId, source: ConsensusMetadata) -> ConsensusMetadata:
        local = await self._files.read_consensus(tablet_id)
        merged = merge_consensus_metadata(local, source)
        if merged != local:
            await self._files.replace_consensus(merged)
        return merged

    async def write_copied(self, attempt: CopyAttempt, file: StoredFile, data: Blob) -> None:
        """Verify an image and make it durable; held already: nothing is done.

        Raises:
            CorruptData: it is not what the source said that it would be.
            TabletNotReady: the attempt is stale.
            InvalidArgument: nobody asked for this file.
        """
        if attempt.wanted.get(file.name) != file:
            raise InvalidArgument(f"{file} is not a part of the copy of {attempt.tablet_id}")
        where = f"the copied image {file.name} of {attempt.tablet_id}"
        size_bytes = memoryview(data).nbytes
        if size_bytes != file.size_bytes:
            raise CorruptData(where, 0, f"has {size_bytes} bytes, not {file.size_bytes}")
        if await self._files.offload(crc32c, data) != file.crc:
            raise CorruptData(where, 0, "checksum does not match")
        await self._store.carry_through(attempt.tablet_id, self._write_copied(attempt, file, data))

    async def _write_copied(self, attempt: CopyAttempt, file: StoredFile, data: Blob) -> None:
        tablet_id, writes = attempt.tablet_id, self._store.image_writes
        async with contextlib.AsyncExitStack() as stack:
            async with self._store.lock(tablet_id):
                self._check_current(attempt)
                await writes.done(tablet_id, file.name)  # by a try before this one
                if file.name in attempt.held:
                    return
                stack.enter_context(writes.begun(tablet_id, file.name))
            await self._files.write_image(tablet_id, file.name, data, named=False)
            attempt.held[file.name] = file

    async def write_log(self, attempt: CopyAttempt, entries: Sequence[Entry]) -> None:
        """Make entries durable that follow the images; several calls follow one another.

        They are what lies between the source's snapshot and the last OpId that this server must
        not forget; the rest comes by the log, once the replica runs. Raises CorruptData for a gap,
        and TabletNotReady if the attempt is stale.
        """
        await self._store.carry_through(attempt.tablet_id, self._write_log(attempt, tuple(entries)))

    async def _write_log(self, attempt: CopyAttempt, entries: tuple[Entry, ...]) -> None:
        async with self._store.lock(attempt.tablet_id):
            self._check_current(attempt)
            last = attempt.log_last
            for entry in entries:
                if last != NOTHING and (entry.index != last.index + 1 or entry.term < last.term):
                    where = f"the copied log of {attempt.tablet_id}"
                    raise CorruptData(where, 0, f"{entry.op_id} follows {last}")
                last = entry.op_id
            if not entries:
                return
            await self._files.write_log(attempt.tablet_id, entries)
            if attempt.log_first == NOTHING:
                attempt.log_first = entries[0].op_id
            attempt.log_last = last

    async def finish_copy(
        self,
        attempt: CopyAttempt,
        snapshot: Snapshot | None,
        source: ConsensusMetadata,
        began_with: Configuration | None = None,
    ) -> Superblock:
        """Make the copy count: the tablet is ready, and its replica can start.

        ``source`` is as of the end of the copy. ``began_with`` are the members before the first
        entry, if not those of ``source``: what a replica without a snapshot begins with.

        Raises:
            InvalidArgument: images or entries that the snapshot needs were not copied.
            TabletNotReady: the attempt is stale; or the copy does not reach what this server had
                acknowledged, and must come from further on; or nothing is known of that any more,
                and this server is a voter, who must be removed from the members first.
        """
        began = source.configuration if began_with is None else began_with
        return await self._store.carry_through(
            attempt.tablet_id, self._finish(attempt, snapshot, source, began)
        )

    async def _finish(
        self,
        attempt: CopyAttempt,
        snapshot: Snapshot | None,
        source: ConsensusMetadata,
        began_with: Configuration,
    ) -> Superblock:
        tablet_id = attempt.tablet_id
        async with self._store.lock(tablet_id):
            await self._store.image_writes.done(tablet_id)
            before = self._check_current(attempt)
            needed = self._store.files_of(snapshot) if snapshot is not None else ()
            self._check_complete(attempt, snapshot, needed)
            reached = max(snapshot.last if snapshot is not None else NOTHING, attempt.log_last)
            self._check_remembers(before, reached, source)
            kept_with = ConsensusMetadata(tablet_id, source.term_and_vote, began_with)
            merged = await self._merge(tablet_id, kept_with)
            if merged.term_and_vote.term < reached.term:
                raise InvalidArgument(f"copied entries {reached} of a term that nobody was in")
            kept = {file.name: file for file in needed}
            for name in [name for name in attempt.held if name not in kept]:
                await self._files.remove_image(tablet_id, name)
                del attempt.held[name]
            await self._files.name_images(tablet_id)
            after = await self._store.commit(copied(before, attempt.table, snapshot))
            self._store.images(tablet_id).update(kept)
            del self._attempts[tablet_id]
            return after

    def _check_complete(
        self, attempt: CopyAttempt, snapshot: Snapshot | None, needed: Sequence[StoredFile]
    ) -> None:
        lacking = [file.name for file in needed if attempt.held.get(file.name) != file]
        if lacking:
            raise InvalidArgument(f"the copy of {attempt.tablet_id} lacks {', '.join(lacking)}")
        last = snapshot.last if snapshot is not None else NOTHING
        first = attempt.log_first
        if first != NOTHING and (first.index != last.index + 1 or first.term < last.term):
            raise InvalidArgument(f"the copied log begins at {first}, the snapshot ends at {last}")

    def _check_remembers(
        self, before: Superblock, reached: OpId, source: ConsensusMetadata
    ) -> None:
        """Raft: what a voter has acknowledged it has, or it must not count for it again."""
        tablet_id, acknowledged = before.tablet_id, before.tombstone
        if acknowledged is None:
            self._check_no_voter(tablet_id, source)
        elif reached < acknowledged:
            state = f"copied up to {reached}, but had acknowledged {acknowledged}"
            raise TabletNotReady(tablet_id, state)

    def _check_no_voter(self, tablet_id: TabletId, source: ConsensusMetadata) -> None:
        """Who was removed from the members and added again owes them nothing from before."""
        member = source.configuration.peer(self._store.server)
        if member is not None and member.voter:
            state = "a voter that no longer knows its log: remove it, and add it as a non-voter"
            raise TabletNotReady(tablet_id, state)

    async def abort_copy(self, attempt: CopyAttempt) -> None:
        """Give up: remove all that this copy wrote. A stale attempt has nothing any more."""
        await self._store.carry_through(attempt.tablet_id, self._abort(attempt))

    async def _abort(self, attempt: CopyAttempt) -> None:
        async with self._store.lock(attempt.tablet_id):
            await self._store.image_writes.done(attempt.tablet_id)
            if self._attempts.get(attempt.tablet_id) is not attempt:
                return
            before = self._store.superblock(attempt.tablet_id)
            del self._attempts[attempt.tablet_id]
            if before is not None and before.state is DataState.COPYING:
                self._store.settled(await undo_copy(self._files, before))

    def _check_current(self, attempt: CopyAttempt) -> Superblock:
        """Raises TabletNotReady unless this is the attempt that goes on."""
        superblock = self._store.require(attempt.tablet_id, DataState.COPYING)
        if self._attempts.get(attempt.tablet_id) is not attempt:
            raise TabletNotReady(attempt.tablet_id, "being copied by a newer attempt")
        return superblock
