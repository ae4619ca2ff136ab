"""What a server with replicas answers to other servers: messages, tombstones' votes, read indexes.

A server says that it does not have a tablet (`TabletNotHere`) only if it surely does not: the
group's leader has the tablet copied to it then. While it is still looking at its disk, or a tablet
is between two states, it must not say so (``settled``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from stelae.actors.raft.tombstone import Tombstone
from stelae.consensus.raft.messages import (
    RAFT_MAIL,
    RAFT_MESSAGE,
    READ_INDEX,
    MailTaken,
    Message,
    RaftAnswers,
    RaftMail,
    RaftMessages,
    ReadIndex,
    ReadIndexOf,
    Undelivered,
)
from stelae.core.errors import InvalidArgument, StelaeError, TabletNotHere, TabletTombstoned
from stelae.core.ids import Address, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.rpc import Call, Handlers, Reply, prompt

NO_TOMBSTONES: Mapping[TabletId, Tombstone] = {}


class Member(Protocol):
    """Of a `stelae.actors.raft.replica.Replica`, what is needed here."""

    def receive(self, envelope: RaftMessages) -> tuple[Message, ...]: ...

    def take_mail(self, message: Message, address: Address) -> None: ...

    async def read_barrier(self, timeout_s: float) -> int: ...

    def spread_commit(self) -> None: ...


async def _all_settled(tablet_id: TabletId) -> None:
    """Where nothing is ever between two states."""


def raft_handlers(
    replicas: Mapping[TabletId, Member],
    tombstones: Mapping[TabletId, Tombstone] = NO_TOMBSTONES,
    settled: Callable[[TabletId], Awaitable[None]] = _all_settled,
) -> Handlers:
    """Serve all ``replicas`` and ``tombstones`` of one server; both may change meanwhile.

    ``settled`` returns once it is known what there is of a tablet; it raises TabletNotReady.
    """
    return _Answers(replicas, tombstones, settled).handlers()


class _Answers:
    """See `raft_handlers`."""

    def __init__(
        self,
        replicas: Mapping[TabletId, Member],
        tombstones: Mapping[TabletId, Tombstone],
        settled: Callable[[TabletId], Awaitable[None]],
    ) -> None:
        self._replicas = replicas
        self._tombstones = tombstones
        self._settled = settled

    def handlers(self) -> Handlers:
        return {
            RAFT_MESSAGE: self._receive,
            RAFT_MAIL: self._take_mail,
            READ_INDEX: self._read_index,
        }

    async def _find(self, group_id: TabletId) -> Member | Tombstone:
        """Who takes messages for that group, once that is known. Raises TabletNotHere."""
        if group_id not in self._replicas:
            await self._settled(group_id)
        found = self._replicas.get(group_id) or self._tombstones.get(group_id)
        if found is None:
            raise TabletNotHere(group_id, "this server")
        return found

    @prompt
    async def _receive(self, call: Call[RaftMessages]) -> Reply[RaftAnswers]:
        found = await self._find(call.body.group_id)
        if not isinstance(found, Tombstone):
            return Reply(RaftAnswers(found.receive(call.body)))
        await found.receive(call.body)
        return Reply(RaftAnswers())

    @prompt
    async def _take_mail(self, call: Call[RaftMail]) -> Reply[MailTaken]:
        address = call.body.address
        others: dict[TabletId, list[Message]] = {}
        undelivered: list[Undelivered] = []
        for message in call.body.messages:
            replica = self._replicas.get(message.group_id)
            if replica is None:
                others.setdefault(message.group_id, []).append(message)
                continue
            try:
                replica.take_mail(message, address)
            except InvalidArgument:
                undelivered.append(Undelivered(message.group_id, None))
        for group_id, messages in others.items():
            try:
                found = await self._find(group_id)
                if isinstance(found, Tombstone):
                    await found.receive(RaftMessages(group_id, address, tuple(messages)))
                    continue
                for message in messages:
                    found.take_mail(message, address)
            except StelaeError as error:
                undelivered.append(Undelivered(group_id, _state_of(error)))
        return Reply(MailTaken(tuple(undelivered)))

    async def _read_index(self, call: Call[ReadIndexOf]) -> Reply[ReadIndex]:
        group_id = call.body.group_id
        await self._settled(group_id)
        replica = self._replicas.get(group_id)
        if replica is None:
            raise TabletNotHere(group_id, "this server")
        index = await replica.read_barrier(call.timeout_s)
        replica.spread_commit()
        return Reply(ReadIndex(index))


def _state_of(error: StelaeError) -> DataState | None:
    """What a refusal says of the tablet here."""
    if isinstance(error, TabletNotHere):
        return DataState.ABSENT
    return DataState.DELETED if isinstance(error, TabletTombstoned) else None
