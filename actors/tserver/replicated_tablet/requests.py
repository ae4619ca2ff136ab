"""What masters order a tserver to do with its replicas of tablets: the calls, as handlers.

Each is idempotent, and refused where it is older than what is known here. Design §8.

To compare replicas of a tablet, the leader puts a mark into the tablet's log. Every replica keeps
its rows aside as it applies the mark, so all digests are of one index, however many writes go on
meanwhile; they are summed up off the loop, and the rows are let go of afterwards. Design §12
(``stelae check --checksums``).
"""

from __future__ import annotations

from stelae.actors.tserver.replicated_tablet.manager import TabletReplicas
from stelae.actors.tserver.replicated_tablet.tablet import BUSY_PAUSE_S, ReplicatedTablet
from stelae.consensus.raft import membership
from stelae.core.errors import Overloaded, TabletNotReady
from stelae.core.ids import ServerUuid
from stelae.core.messages.alter import AlterTablet
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CHECKSUM_REPLICA,
    CREATE_REPLICA,
    DELETE_REPLICA,
    MARK_REPLICA,
    TRANSFER_LEADERSHIP,
    ChangeKind,
    ChangeReplicas,
    ChecksumReplica,
    CreateReplica,
    DeleteReplica,
    MarkReplica,
    Members,
    ReplicaDigest,
    ReplicaMark,
    TransferLeadership,
)
from stelae.core.messages.servers import TabletReport
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.storage.replicated.checksum import Checksum, ChecksumSource


class ReplicaOrders:
    """The orders, carried out on one server's replicas."""

    def __init__(self, replicas: TabletReplicas) -> None:
        self._replicas = replicas

    def handlers(self) -> Handlers:
        """But for `ALTER_TABLET`, which tablets of all kinds share: see `alter`."""
        return {
            CREATE_REPLICA: self._on_create,
            DELETE_REPLICA: self._on_delete,
            CHANGE_REPLICAS: self._on_change,
            TRANSFER_LEADERSHIP: self._on_transfer,
        }

    async def _on_create(self, call: Call[CreateReplica]) -> Reply[Empty]:
        order = call.body
        await self._replicas.create(order.tablet_id, order.table, order.configuration)
        return EMPTY

    async def _on_delete(self, call: Call[DeleteReplica]) -> Reply[Empty]:
        order = call.body
        await self._replicas.delete(
            order.tablet_id,
            forever=order.forever,
            configuration_id=order.configuration_id,
            leader_term=order.term,
        )
        return EMPTY

    async def _on_change(self, call: Call[ChangeReplicas]) -> Reply[Members]:
        order, timeout_s = call.body, call.timeout_s
        replica = self._replicas.serving(order.tablet_id).replica
        await replica.read_barrier(timeout_s)  # it leads, and what it says is what counts
        adds = order.kind is ChangeKind.ADD
        if (replica.members.peer(order.uuid) is not None) == adds:
            return Reply(Members(replica.members))
        change = membership.MemberChange(
            membership.ChangeKind.ADD if adds else membership.ChangeKind.REMOVE,
            order.uuid,
            order.address,
            order.name,
        )
        changed = await replica.change_configuration(
            change, expected=order.expected, timeout_s=timeout_s
        )
        return Reply(Members(changed))

    async def _on_transfer(self, call: Call[TransferLeadership]) -> Reply[Empty]:
        tablet = self._tablet_of(call.body)
        target: ServerUuid | None = call.body.target or None
        await tablet.replica.transfer_leadership(target, call.timeout_s)
        return EMPTY

    async def alter(self, call: Call[AlterTablet]) -> Reply[TabletReport]:
        """To a leader: the table's record goes into the tablet's log. Its term is not the
        catalog's, which knows none of such a tablet."""
        tablet = self._tablet_of(call.body)
        return Reply(await tablet.alter(call.body.table, call.timeout_s))

    def _tablet_of(self, order: TransferLeadership | AlterTablet) -> ReplicatedTablet:
        return self._replicas.serving(order.tablet_id)


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
