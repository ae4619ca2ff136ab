"""A timeline with entries in a timeline store, and a copy of another one piece by piece."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.actors.safekeeper.timeline_store.pull import PullAttempt
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.ids import TabletId
from stelae.core.records.timelines import AcceptorState, ProposerId
from tests.unit.actors.safekeeper.timeline_store.timeline_world import (
    OTHER,
    PIECE_BYTES,
    THIRD,
    World,
    entry,
    members,
)

TABLET = TabletId("t1")


async def filled(world: World, count: int = 12, *, committed: int = 8) -> Timeline:
    """A timeline of term 1 with entries, some of them committed, in several files."""
    timeline = await world.store.create(TABLET, members(1))
    await timeline.save(AcceptorState(members(1), term=1, voted_for=ProposerId("p")))
    for lsn in range(1, count + 1):
        await timeline.append([entry(1, lsn, 100)])
    state = msgspec.structs.replace(
        timeline.acceptor,
        commit_lsn=committed,
        horizon_lsn=committed,
        term_history=timeline.history,
    )
    await timeline.save(state)
    return timeline


def wal_files(world: World, incarnation: int = 1) -> list[str]:
    folder = f"timeline-wals/{TABLET}-{incarnation}/"
    return [path for path in world.disk.paths() if path.startswith(folder)]


async def donor_of(world: World, count: int, *, term: int = 1, generation: int = 2) -> Any:
    """A snapshot of another safekeeper with so many entries."""
    log = [entry(term, lsn, 100) for lsn in range(1, count + 1)]
    state = AcceptorState(members(generation, OTHER, THIRD), term, commit_lsn=count)
    return await world.donor(TABLET, state, log)


async def copied(world: World, source: Any, attempt: PullAttempt) -> None:
    """All pieces of a copy that are missing."""
    while attempt.missing:
        file, offset = attempt.missing[0]
        piece = await source.read(file, offset, PIECE_BYTES)
        await world.store.pulls.write(attempt, file, offset, piece)
