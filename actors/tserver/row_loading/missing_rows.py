"""Which segments of a tablet are on no live backup, while rows of it are elsewhere yet.

Asked once a segment could be read nowhere, and each second from then on: all backups say what they
hold of the log. Told are all remote segments that are on none, not those that somebody has wanted:
a recovery without them needs to know all. And it would lose what is in memory here and nowhere else
just now, as the backups with its replicas are gone too: so that is counted.

A backup that counts as live and does not answer may hold anything: nothing new is told then.

Source: design §9, §13 (what is missing is said).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.row_loading.loader import RemoteRows
from stelae.actors.tserver.segments.inventories import inventory_of
from stelae.actors.tserver.tablet_log.interface import TabletLog
from stelae.core.config.settings import Settings
from stelae.core.ids import TabletId
from stelae.core.messages.backups import ReplicaState
from stelae.core.records.losses import SegmentFacts
from stelae.core.runtime import Runtime

LOOK_AGAIN_S = 1.0


class ServedLog(Protocol):
    """The tablet whose log it is."""

    tablet_id: TabletId

    @property
    def log(self) -> TabletLog: ...


class MissingRows:
    """Those of one tablet."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        rows: RemoteRows,
        tablet: ServedLog,
    ) -> None:
        self.lacks: tuple[SegmentFacts, ...] = ()
        """Remote segments that no live backup holds."""
        self.in_memory_only = 0
        """Segments that no live backup holds either, but whose rows are here."""
        self._runtime = runtime
        self._settings = settings
        self._members = members
        self._rows = rows
        self._tablet = tablet

    async def run(self) -> None:
        """Look for as long as rows are elsewhere, and some of them could not be had."""
        while self._rows.is_loading and not self._rows.is_closed:
            if any(remote.is_stuck for remote in self._rows.left):
                await self._look()
            else:
                self._tell((), 0)
            await self._runtime.clock.sleep(LOOK_AGAIN_S)
        self._tell((), 0)

    def _tell(self, lacks: Sequence[SegmentFacts], in_memory_only: int) -> None:
        self.lacks, self.in_memory_only = tuple(lacks), in_memory_only

    async def _look(self) -> None:
        inherited = (remote.found.log for remote in self._rows.left)
        logs = tuple(dict.fromkeys([self._tablet.tablet_id, *filter(None, inherited)]))
        backups = self._members.all_backups()
        ask = partial(inventory_of, self._runtime, self._settings, logs=logs)
        asked = await asyncio.gather(*(ask(backup) for backup in backups))
        answers = [answer for answer in asked if answer is not None]
        if len(answers) < len(backups):
            return
        replicas = [r for answer in answers for log in answer for r in log.replicas]
        there = {r.segment_id for r in replicas}
        final = {r.segment_id for r in replicas if r.state is not ReplicaState.OPEN}
        remote = {each.run.segment_id: each.segment for each in self._rows.left}
        here = [s for s in self._tablet.log.on_backups if s not in remote]
        lacks = [remote[s].facts() for s in sorted(remote) if s not in final]
        self._tell(lacks, sum(s not in there for s in here))
