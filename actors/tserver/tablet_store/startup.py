"""What a server does with its tablets' files when it starts: the seed's state machine.

A deletion that was committed is carried on, a copy that was not is undone, a creation that was not
is forgotten, and files that nothing names are removed. A tablet whose files cannot be believed is
left exactly as it is, and reported. Invariant: term, vote and last OpId are never removed or
lowered here; running it again, also after a crash in its midst, changes nothing more.
Seed "Tablet Copy design", tablet startup; design §8.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stelae.actors.server.disk import damage_of
from stelae.actors.tserver.tablet_store.files import (
    CONSENSUS_META,
    DATA,
    TABLET_META,
    WALS,
    TabletFiles,
)
from stelae.core.errors import CorruptData
from stelae.core.ids import TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import Snapshot
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    decode_consensus_metadata,
    pristine,
)
from stelae.storage.files.superblock import StoredFile, Superblock, rolled_back

FilesOf = Callable[[Snapshot], Sequence[StoredFile]]
"""The images that a tablet's snapshot needs. Raises CorruptData if it cannot be read."""


class RepairKind(enum.StrEnum):
    DELETION_CARRIED_ON = "deletion carried on"
    COPY_UNDONE = "copy undone"
    CREATION_FORGOTTEN = "creation forgotten"
    ORPHANS_REMOVED = "files removed that nothing named"
    QUARANTINE_FORGOTTEN = "quarantine of a deletion removed that never was"
    METADATA_RENEWED = "consensus metadata renewed of a tombstone that does not vote"


@dataclass(frozen=True, slots=True)
class Repair:
    tablet_id: TabletId
    kind: RepairKind


@dataclass(slots=True)
class LoadedTablets:
    """All tablets that a server has, sorted by id.

    ``metadata`` is there for each that has a superblock. What is ``failed`` is in neither.
    """

    superblocks: dict[TabletId, Superblock] = field(default_factory=dict)
    metadata: dict[TabletId, ConsensusMetadata] = field(default_factory=dict)
    failed: dict[TabletId, CorruptData] = field(default_factory=dict)
    repairs: list[Repair] = field(default_factory=list)

    def repaired(self, tablet_id: TabletId, kind: RepairKind) -> None:
        self.repairs.append(Repair(tablet_id, kind))


async def load_tablets(files: TabletFiles, files_of: FilesOf) -> LoadedTablets:
    """Bring all tablets into a state that counts. Raises OSError, and NoSpace.

    A disk that fails below one tablet's files fails that tablet, and no other.
    """
    loaded = LoadedTablets()
    for tablet_id in await _all_tablets(files):
        try:
            with damage_of(f"a file of tablet {tablet_id}"):
                await _load(files, tablet_id, files_of, loaded)
        except CorruptData as error:
            loaded.failed[tablet_id] = error
    await _forget_quarantines(files, loaded)
    return loaded


async def _load(
    files: TabletFiles, tablet_id: TabletId, files_of: FilesOf, loaded: LoadedTablets
) -> None:
    superblock = await files.read_superblock(tablet_id)
    if superblock is None:
        await _forget_creation(files, tablet_id, loaded)
        return
    metadata = await _metadata(files, superblock, loaded)
    superblock = await _settle(files, superblock, metadata, files_of, loaded)
    loaded.superblocks[tablet_id] = superblock
    loaded.metadata[tablet_id] = metadata


async def _all_tablets(files: TabletFiles) -> list[TabletId]:
    names: list[str] = []
    for kind in (TABLET_META, CONSENSUS_META):
        names += await files.disk.list(files.path(kind))
    for kind in (WALS, DATA):
        names += await files.disk.folders(files.path(kind))
    return sorted(TabletId(name) for name in dict.fromkeys(names))


async def _forget_creation(files: TabletFiles, tablet_id: TabletId, loaded: LoadedTablets) -> None:
    """Without a superblock only unused consensus metadata may be there: those are written first."""
    path = files.path(CONSENSUS_META, tablet_id)
    data = await files.read(path)
    if await files.holds_anything(tablet_id) or data is None:
        reason = "is missing, but there is a log or data of the tablet"
        raise CorruptData(files.path(TABLET_META, tablet_id), 0, reason)
    metadata = decode_consensus_metadata(path, tablet_id, data)
    if not metadata.is_pristine:
        reason = f"is missing, but the tablet was in term {metadata.term_and_vote.term}"
        raise CorruptData(files.path(TABLET_META, tablet_id), 0, reason)
    await files.disk.remove(path)
    loaded.repaired(tablet_id, RepairKind.CREATION_FORGOTTEN)


async def _metadata(
    files: TabletFiles, superblock: Superblock, loaded: LoadedTablets
) -> ConsensusMetadata:
    try:
        return await files.read_consensus(superblock.tablet_id)
    except CorruptData:
        votes = superblock.state is not DataState.DELETED or superblock.tombstone is not None
        if votes:
            raise
    # It never votes again, and comes back as a non-voter only: nothing hangs on term and vote.
    metadata = pristine(superblock.tablet_id)
    await files.replace_consensus(metadata)
    loaded.repaired(superblock.tablet_id, RepairKind.METADATA_RENEWED)
    return metadata


async def _settle(
    files: TabletFiles,
    superblock: Superblock,
    metadata: ConsensusMetadata,
    files_of: FilesOf,
    loaded: LoadedTablets,
) -> Superblock:
    tablet_id = superblock.tablet_id
    if superblock.state is DataState.COPYING:
        superblock = await undo_copy(files, superblock)
        loaded.repaired(tablet_id, RepairKind.COPY_UNDONE)
    elif superblock.state is DataState.DELETED:
        if await files.holds_anything(tablet_id):
            await files.bury(superblock)
            loaded.repaired(tablet_id, RepairKind.DELETION_CARRIED_ON)
    else:
        await _check_ready(files, superblock, metadata, files_of, loaded)
    return superblock


async def undo_copy(
    files: TabletFiles, superblock: Superblock, *, forever: bool = False
) -> Superblock:
    """Make a tablet that is being copied a tombstone again.

    The files go first, since none of them counts: that makes room for the superblock on a disk
    that the copy has filled, and all that lies there was written by the copy.
    """
    await files.clear(superblock.tablet_id)
    undone = rolled_back(superblock, forever=forever)
    await files.replace_superblock(undone)
    return undone


async def _check_ready(
    files: TabletFiles,
    superblock: Superblock,
    metadata: ConsensusMetadata,
    files_of: FilesOf,
    loaded: LoadedTablets,
) -> None:
    """Raises CorruptData if what the superblock names is not there; removes what it does not."""
    tablet_id, snapshot = superblock.tablet_id, superblock.snapshot
    term = metadata.term_and_vote.term
    if snapshot is not None and snapshot.last.term > term:
        reason = f"term {term} is below that of the snapshot, {snapshot.last.term}"
        raise CorruptData(files.path(CONSENSUS_META, tablet_id), 0, reason)
    needed = files_of(snapshot) if snapshot is not None else ()
    await files.check_images(tablet_id, needed)
    names = {file.name: file for file in needed}
    orphans = [name for name in await files.images(tablet_id) if name not in names]
    for name in orphans:
        await files.remove_image(tablet_id, name)
    if orphans:
        loaded.repaired(tablet_id, RepairKind.ORPHANS_REMOVED)


async def _forget_quarantines(files: TabletFiles, loaded: LoadedTablets) -> None:
    """Remove those that a deletion prepared which was then not committed."""
    for tablet_id, number in await files.quarantines():
        superblock = loaded.superblocks.get(tablet_id)
        if superblock is None or number <= superblock.generation:
            continue
        try:
            with damage_of(files.quarantine_path(tablet_id, number)):
                await files.remove_quarantine(tablet_id, number)
        except CorruptData as error:
            loaded.failed[tablet_id] = error
            del loaded.superblocks[tablet_id], loaded.metadata[tablet_id]
        else:
            loaded.repaired(tablet_id, RepairKind.QUARANTINE_FORGOTTEN)
