"""How replicas of a tablet are compared: a mark in the log, and each replica's digest at it.

The leader puts a mark into the tablet's log. Every replica keeps its rows aside as it applies the
mark, so all digests are of one index, however many writes go on meanwhile; they are summed up off
the loop, and the rows are let go of afterwards. Design §12 (``stelae check --checksums``).
"""

from __future__ import annotations

from stelae.actors.tserver.replicated_tablet.manager import TabletReplicas
from stelae.actors.tserver.replicated_tablet.tablet import BUSY_PAUSE_S
from stelae.core.errors import Overloaded, TabletNotReady
from stelae.core.messages.replicas import (
    CHECKSUM_REPLICA,
    MARK_REPLICA,
    ChecksumReplica,
    MarkReplica,
    ReplicaDigest,
    ReplicaMark,
)
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.storage.replicated.checksum import Checksum, ChecksumSource


class ReplicaDigests:
    """The handlers of one server."""

    def __init__(self, runtime: Runtime, replicas: TabletReplicas) -> None:
        self._runtime = runtime
        self._replicas = replicas

    def handlers(self) -> Handlers:
        return {MARK_REPLICA: self._on_mark, CHECKSUM_REPLICA: self._on_checksum}

    async def _on_mark(self, call: Call[MarkReplica]) -> Reply[ReplicaMark]:
        tablet = self._replicas.serving(call.body.tablet_id)
        return Reply(ReplicaMark(await tablet.mark(call.timeout_s)))

    async def _on_checksum(self, call: Call[ChecksumReplica]) -> Reply[ReplicaDigest]:
        tablet_id, index = call.body.tablet_id, call.body.index
        tablet = self._replicas.serving(tablet_id)
        await tablet.replica.wait_applied(index, call.timeout_s)
        source = tablet.machine.checksum(index)
        if source is None:
            raise TabletNotReady(tablet_id, f"beyond the mark at entry {index}, or copied since")
        found = await self._compute(source)
        tablet.forget_mark(index)
        return Reply(ReplicaDigest(found.index, found.row_count, found.rows, found.rest))

    async def _compute(self, source: ChecksumSource) -> Checksum:
        while True:
            try:
                return await self._runtime.offload(source.compute)
            except Overloaded:
                await self._runtime.clock.sleep(BUSY_PAUSE_S)
