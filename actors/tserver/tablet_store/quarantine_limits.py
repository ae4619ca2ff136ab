"""What goes from the quarantine of one tserver by itself, so that it never stops those who serve.

Of each tablet the newest deletions are kept (`KEPT_OF_A_TABLET`). Beyond that the oldest goes only
when the disk is full and something has to be written: first of replicas that were replaced or moved
away, since their group has all of it, and last of tables that were dropped. Never taken: what a
deletion under way still fills, and what is left of a replica that is damaged, of which it is not
even known what it had acknowledged; those wait for an operator, or for their age.
Design §8; docs/decisions.md 29.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from stelae.actors.tserver.tablet_store.files import TabletFiles
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.replicas import DataState
from stelae.storage.files.superblock import Superblock

KEPT_OF_A_TABLET = 2
"""A replica that is moved to and fro leaves its files each time."""

logger = logging.getLogger(__name__)

Entry = tuple[TabletId, int]
"""Tablet, and number of the deletion."""


class QuarantineRoom:
    """Purges; `stelae.actors.tserver.tablet_store.store.TabletStore` knows when."""

    def __init__(
        self,
        files: TabletFiles,
        superblock: Callable[[TabletId], Superblock | None],
        is_changing: Callable[[TabletId], bool],
    ) -> None:
        """``superblock`` of a tablet, None if it is not known; ``is_changing``: under its lock."""
        self.lock = asyncio.Lock()
        """Held while folders of the quarantine are looked into or removed. It is taken after a
        tablet's lock, and no tablet's lock is waited for while it is held."""
        self._files = files
        self._superblock = superblock
        self._is_changing = is_changing
        self._order: dict[Entry, int] = {}
        """Deletions of this run, in their order; all others are older."""
        self._purges = 0

    async def buried(self, tablet_id: TabletId) -> None:
        """A deletion of the tablet is complete: forget those long before it. The tablet's lock is
        held."""
        async with self.lock:
            found = await self._files.quarantines()
            numbers = [number for owner, number in found if owner == tablet_id]
            if numbers:
                self._order[tablet_id, numbers[-1]] = len(self._order)
            for number in numbers[:-KEPT_OF_A_TABLET]:
                await self._purge((tablet_id, number))

    async def make(self, own: TabletId | None = None) -> bool:
        """Purge the oldest that may go. False if there is none.

        ``own``: the tablet whose lock the caller holds. Whoever waited for another purge is told to
        try again first.
        """
        before = self._purges
        async with self.lock:
            if self._purges > before:
                return True
            for entry in await self._oldest_first(own):
                if await self._purge(entry):
                    logger.warning("the disk is full: purged the files of deleted %s-%d", *entry)
                    return True
        return False

    async def _oldest_first(self, own: TabletId | None) -> list[Entry]:
        entries = await self._files.quarantines()
        newest = dict(entries)  # they are sorted
        ranked = []
        for entry in entries:
            tablet_id, number = entry
            superblock = self._superblock(tablet_id)
            if superblock is None or number > superblock.generation:
                continue
            if tablet_id != own and self._is_changing(tablet_id):
                continue
            if superblock.state is DataState.DELETED and number == newest[tablet_id]:
                is_damaged = superblock.tombstone is None and not superblock.forever
                if is_damaged or tablet_id == own or await self._files.holds_anything(tablet_id):
                    continue
            rank = self._order.get(entry, -1)
            ranked.append((superblock.forever, rank, tablet_id, number))
        return [(tablet_id, number) for _, _, tablet_id, number in sorted(ranked)]

    async def _purge(self, entry: Entry) -> bool:
        try:
            await self._files.remove_quarantine(*entry)
        except (OSError, StelaeError) as error:  # it stays; nobody's writing fails because of that
            logger.warning("cannot purge the files of deleted %s-%d: %s", *entry, error)
            return False
        self._order.pop(entry, None)
        self._purges += 1
        return True
