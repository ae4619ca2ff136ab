"""A deleted replica, or one that is being copied, on a server: the shell around its votes.

It answers as `stelae.consensus.raft.tombstone` decides; the host keeps term and vote where the
replica had them. A leader gets `TabletTombstoned`, whereupon it has the state copied here. Before
the host makes a replica of it again, it stops the tombstone, so that no vote is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stelae.actors.raft.links import ReplicaLinks
from stelae.consensus.raft.messages import (
    AppendRequest,
    Message,
    RaftMessages,
    SnapshotRequest,
    check_message,
)
from stelae.consensus.raft.tombstone import answer
from stelae.core.errors import TabletNotReady, TabletTombstoned
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.records.replication import TermAndVote
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks


class Tombstone:
    """What is left of one replica on one server."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        group_id: TabletId,
        self_uuid: ServerUuid,
        kept: TermAndVote,
        last: OpId | None,
        *,
        save: Callable[[TermAndVote], Awaitable[None]],
        quiet_s: float,
    ) -> None:
        """``kept`` and ``last`` are what is on the disk; ``save`` makes another vote durable.

        ``last`` is `Raft.end_of_log` of the replica that was here; None if that is not known.
        ``quiet_s``: an election timeout, ``election_ticks`` ticks; for so long nobody is elected.
        """
        self.group_id = group_id
        self.last = last
        self._uuid = self_uuid
        self._runtime = runtime
        self._save = save
        self._links = ReplicaLinks(
            runtime, tasks, group_id, self_uuid, {}, lambda uuid: None, lambda uuid, state: None
        )
        self._loyal_until = runtime.clock.monotonic() + quiet_s
        self._kept = kept
        self._deciding = asyncio.Lock()
        self._is_open = True

    @property
    def term(self) -> int:
        return self._kept.term

    async def stop(self) -> None:
        """Once it returns, nothing is saved and no vote is given any more."""
        async with self._deciding:
            self._is_open = False
        await self._links.stop()

    async def receive(self, envelope: RaftMessages) -> None:
        """Answer votes.

        Raises TabletTombstoned for a leader, InvalidArgument, TabletNotReady, what ``save`` raises.
        """
        for message in envelope.messages:
            check_message(message)
        async with self._deciding:
            if not self._is_open:
                raise TabletNotReady(self.group_id, "between two states: repeat it")
            is_led = False
            for message in envelope.messages:
                if message.destination == self._uuid and message.group_id == self.group_id:
                    is_led = await self._answer(envelope, message) or is_led
        if is_led:
            raise TabletTombstoned(self.group_id, "this server")

    async def _answer(self, envelope: RaftMessages, message: Message) -> bool:
        """Persist, then send; true if a leader is to learn that there is no data here."""
        quiet = self._runtime.clock.monotonic() >= self._loyal_until
        given = answer(message, self._kept, self.last, quiet=quiet)
        if given.kept != self._kept:
            await self._save(given.kept)
            self._kept = given.kept
        if given.message is not None:
            self._links.update_address(message.source, envelope.address)
            self._links.send([given.message])
            return False
        return isinstance(message, AppendRequest | SnapshotRequest)
