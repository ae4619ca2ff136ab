"""Writes to several replicas of a backup that came in one message (`WRITE_REPLICAS`).

Each is refused or taken by itself, in their order, as if it had come alone; what was taken becomes
durable together, by one sync of their medium. They are answered together, once all of it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from stelae.actors.backup.replicas import Batch
from stelae.core.errors import InvalidArgument, StelaeError, encode_error
from stelae.core.messages.backups import (
    APPENDS_MAX,
    WRITE_REPLICAS,
    WriteReplica,
    WriteReplicas,
    WriteReplicasReply,
)
from stelae.core.rpc import Call, Handlers, Reply, prompt

Take = Callable[[WriteReplica, Sequence[memoryview]], Awaitable[Batch | None]]
"""Carries a write out; it counts when the batch is durable. Raises why it is refused."""


class SharedWrites:
    """Those of one backup."""

    def __init__(self, take: Take) -> None:
        self._take = take

    def handlers(self) -> Handlers:
        return {WRITE_REPLICAS: self._on_write_replicas}

    @prompt
    async def _on_write_replicas(self, call: Call[WriteReplicas]) -> Reply[WriteReplicasReply]:
        writes = call.body.writes
        if not 0 < len(writes) <= APPENDS_MAX or len(call.blobs) != len(writes):
            raise InvalidArgument(f"{len(writes)} writes with {len(call.blobs)} blobs")
        if len({write.medium for write in writes}) > 1:
            raise InvalidArgument("writes to several media in one message")
        errors: list[bytes] = []
        batches: dict[Batch, None] = {}
        for write, blob in zip(writes, call.blobs, strict=True):
            error, batch = await self._outcome(write, blob)
            errors.append(error)
            if batch is not None:
                batches[batch] = None
        for batch in batches:
            await batch.wait()
        return Reply(WriteReplicasReply(tuple(errors)))

    async def _outcome(self, write: WriteReplica, blob: memoryview) -> tuple[bytes, Batch | None]:
        try:
            return b"", await self._take(write, (blob,))
        except StelaeError as error:
            return encode_error(error), None
