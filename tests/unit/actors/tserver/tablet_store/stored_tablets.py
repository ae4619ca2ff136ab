"""A tablet in a tablet store, brought into each of its states: ready, a tombstone, being copied."""

from __future__ import annotations

from stelae.actors.tserver.tablet_copy.receiver_files import CopyAttempt
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import TermAndVote
from stelae.storage.files.consensus_metadata import ConsensusMetadata
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    OTHER,
    World,
    flush,
    members,
    metadata,
    snapshot,
    stored,
    table,
)

TABLET = TabletId("t1")
LAST = OpId(3, 9)
IMAGES = {"one": b"first image", "two": b"second image"}
WANTED = [stored(name, data) for name, data in IMAGES.items()]


async def ready(world: World, term: int = 3) -> None:
    """A tablet with two images up to entry 5 of ``term``."""
    await world.store.create(TABLET, table(), members())
    vote = TermAndVote(term, OTHER)
    await world.store.files.replace_consensus(ConsensusMetadata(TABLET, vote, members()))
    await flush(world.store, TABLET, IMAGES, snapshot(OpId(term, 5), IMAGES))


async def tombstone(world: World, last: OpId | None = LAST) -> None:
    """What is left of such a tablet."""
    await ready(world)
    await world.store.tombstone(TABLET, last)


async def begun(world: World, term: int = 3) -> CopyAttempt:
    """A copy of the images, without any yet."""
    return await world.copies.begin_copy(TABLET, table(), metadata(TABLET, term), WANTED)


async def whole(world: World, term: int = 3) -> CopyAttempt:
    """A copy with all images."""
    attempt = await begun(world, term)
    for file in WANTED:
        await world.copies.write_copied(attempt, file, IMAGES[file.name])
    return attempt


def contents(world: World, folder: str) -> list[str]:
    return [path for path in world.disk.paths() if path.startswith(folder)]
