"""All replicas of tablets with ``replicas(n)`` on one tserver: orders, copies, Raft, reports.

Their life is in `stelae.actors.tserver.replicated_tablet.lifecycle`. Tablet copies change a tablet
between `TabletReplicas.stop_for_copy` and `TabletReplicas.start_copied`. Design §8; seed Kudu
tablet copy.
"""

from __future__ import annotations

from msgspec.structs import replace

from stelae.actors.raft.handlers import raft_handlers
from stelae.actors.tserver.replicated_tablet.lifecycle import ReplicaLives
from stelae.actors.tserver.replicated_tablet.report import report_without_rows
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.core.errors import (
    ConfigurationMismatch,
    InvalidArgument,
    NoSpace,
    StelaeError,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.messages.servers import ReplicaRole, TabletReport
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Configuration
from stelae.core.rpc import Handlers


class TabletReplicas(ReplicaLives):
    """The replicas of one server. `load`, listen, and then `start`."""

    # ---- what there is ----------------------------------------------------------------------

    def serving(self, tablet_id: TabletId) -> ReplicatedTablet:
        """The replica, if it takes part. Raises TabletNotHere, TabletNotReady if it will soon."""
        tablet = self._tablets.get(tablet_id)
        if tablet is not None:
            return tablet
        if tablet_id in self._opening:
            raise TabletNotReady(tablet_id, "being opened")
        raise TabletNotHere(tablet_id, "this server")

    def holds(self, tablet_id: TabletId) -> bool:
        """Whether there is anything of such a tablet here."""
        return tablet_id in self._failed or self.store.superblock(tablet_id) is not None

    def running(self) -> list[ReplicatedTablet]:
        """The replicas that take part."""
        return list(self._tablets.values())

    @property
    def memory_bytes(self) -> int:
        """Of the rows of all replicas."""
        return sum([tablet.memory_bytes for tablet in self._tablets.values()])

    @property
    def live_bytes(self) -> int:
        """Of them, what cleaning cannot free."""
        return sum([tablet.live_bytes for tablet in self._tablets.values()])

    def clean_soon(self) -> None:
        """Memory is low here: flushes are to clean."""
        for tablet in self._tablets.values():
            tablet.clean_soon()

    def tell_memory(self, over: tuple[int, int] | None) -> None:
        """(used, limit) in bytes while this server has none left for rows: leaders then hear so."""
        for tablet in self._tablets.values():
            tablet.tell_memory(over)

    def reports(self) -> list[TabletReport]:
        """Of everything here but tombstones for ever, for which nobody waits any more.

        None before `load`: a server that has not read its disk sends no heartbeats.
        """
        if self._store is None:
            return []
        found = {i: self._with_copies(i, t.report()) for i, t in self._tablets.items()}
        for tablet_id, gone in self._failed.items():
            found[tablet_id] = report_without_rows(
                tablet_id,
                ReplicaRole.FAILED,
                term=gone.term,
                last=gone.last,
                problem=gone.problem,
                no_room=gone.retry_s > 0 and gone.no_room,
                tries_again=gone.retry_s > 0 and not gone.no_room,
            )
        for tablet_id, superblock in self.store.superblocks.items():
            if tablet_id in found or superblock.forever:
                continue
            role, copied = ReplicaRole.FOLLOWER, (0, 0)
            if superblock.state is DataState.DELETED:
                role = ReplicaRole.TOMBSTONE
            elif superblock.state is DataState.COPYING:
                role, copied = ReplicaRole.COPYING, self.copy_progress(tablet_id)
            found[tablet_id] = report_without_rows(
                tablet_id,
                role,
                term=self.term(tablet_id),
                last=self.last_op_id(tablet_id),
                problem=self.copy_problem(tablet_id),
                copied=copied,
                source=self.copy_source(tablet_id),
            )
        return list(found.values())

    def _with_copies(self, tablet_id: TabletId, report: TabletReport) -> TabletReport:
        """A leader's report tells of copies that it has ordered."""
        group = report.group
        if group is None or group.role is not ReplicaRole.LEADER:
            return report
        wanted = self.copies_wanted(tablet_id)
        if not wanted:
            return report
        return replace(report, group=replace(group, copies_wanted=wanted))

    # ---- orders -----------------------------------------------------------------------------

    async def create(
        self, tablet_id: TabletId, table: TableRecord, configuration: Configuration
    ) -> None:
        """Make an empty replica, one of the first members, and run it. Idempotent.

        Raises TabletDeleted, TabletNotReady, NoSpace, InvalidArgument.
        """
        if configuration.peer(self.store.server) is None:
            raise InvalidArgument(f"this server is no member of tablet {tablet_id}")
        async with self.lock(tablet_id):
            if tablet_id in self._failed:
                raise TabletNotReady(tablet_id, f"failed: {self._failed[tablet_id].problem}")
            if tablet_id in self._stopped:
                raise TabletNotReady(tablet_id, "making way for a copy")
            if tablet_id in self._tablets or tablet_id in self._opening:
                return
            with self._disk_failures(tablet_id):
                await self.store.create(tablet_id, table, configuration)
            await self._open(tablet_id)

    async def delete(
        self,
        tablet_id: TabletId,
        *,
        forever: bool,
        configuration_id: OpId | None = None,
        leader_term: int = 0,
    ) -> None:
        """Leave a tombstone, which votes. Idempotent.

        ``configuration_id``: that of the members of whom this server is none any more, unless it is
        ``forever``; the leader of ``leader_term`` has no newer one. Raises ConfigurationMismatch,
        TabletNotReady, NoSpace.
        """
        if forever and self.cancel_copy is not None:
            await self.cancel_copy(tablet_id)
        async with self.lock(tablet_id):
            tablet = self._tablets.get(tablet_id)
            if not forever:
                self._check_removed(tablet_id, configuration_id, leader_term)
            self._opening.pop(tablet_id, None)  # its turn has not come: nothing runs yet
            gone = await self._stop(tablet_id) or self._failed.get(tablet_id)
            gone = gone or self._stopped.get(tablet_id)
            try:
                with self._disk_failures(tablet_id, gone):
                    last = gone.last if gone is not None else None
                    await self.store.tombstone(tablet_id, last, forever=forever)
            except NoSpace:
                if self.data_state(tablet_id) is DataState.READY and tablet is not None:
                    await self._open_again(tablet_id)
                elif forever and tablet_id not in self._burials:
                    self._burials[tablet_id] = None
                    self._tasks.spawn(self._bury_later(tablet_id), f"bury {tablet_id}")
                if self.data_state(tablet_id) is DataState.DELETED:  # it lacks room for its burial
                    await self._deleted(tablet_id)
                raise
            await self._deleted(tablet_id)
        self._on_news()

    async def _deleted(self, tablet_id: TabletId) -> None:
        """What it was before is over: a failed replica must not begin again."""
        self._failed.pop(tablet_id, None)
        self._stopped.pop(tablet_id, None)
        await self._entomb(tablet_id)

    async def _bury_later(self, tablet_id: TabletId) -> None:
        """A tombstone for ever is reported no more, so nobody asks for the rest of its deletion."""
        while True:
            await self._runtime.clock.sleep(self._pause_when_full(tablet_id))
            try:
                await self.delete(tablet_id, forever=True)
            except NoSpace:
                continue
            except StelaeError:  # its disk failed: the next start sees to it
                self._runtime.metrics.count("tablet_drops_failed")
            del self._burials[tablet_id]
            return

    def _check_removed(self, tablet_id: TabletId, known: OpId | None, leader_term: int) -> None:
        """By the newest configuration in its log, be that committed or not: if it was added again,
        a majority may count on it before it has heard so."""
        if tablet_id in self._opening:
            raise TabletNotReady(tablet_id, "being opened")
        is_copying = self.data_state(tablet_id) is DataState.COPYING
        if is_copying and tablet_id not in self._failed:
            raise TabletNotReady(tablet_id, "being copied")
        tablet = self._tablets.get(tablet_id)
        if tablet is not None:
            own: Configuration | None = tablet.replica.core.configuration
        else:
            gone = self._stopped.get(tablet_id) or self._failed.get(tablet_id)
            own = gone.configuration if gone is not None else None
        if own is None:
            return  # a tombstone, or damaged so that nobody can count on it
        is_member = own.peer(self.store.server) is not None
        is_newer = known is None or (own.op_id > known and own.op_id.term >= leader_term)
        if is_newer or (own.op_id == known and is_member):
            raise ConfigurationMismatch(tablet_id, str(known), str(own.op_id))

    def drop(self, tablet_id: TabletId) -> None:
        """The catalog says that the tablet is gone for ever: see to it."""
        superblock = self.store.superblock(tablet_id)
        if not self.holds(tablet_id) or (superblock is not None and superblock.forever):
            return
        if not self.lock(tablet_id).locked():
            self._tasks.spawn(self._drop(tablet_id), f"drop {tablet_id}")

    async def _drop(self, tablet_id: TabletId) -> None:
        try:
            await self.delete(tablet_id, forever=True)
        except StelaeError:
            self._runtime.metrics.count("tablet_drops_failed")  # the next heartbeat says it again

    # ---- tablet copies ----------------------------------------------------------------------

    async def stop_for_copy(self, tablet_id: TabletId) -> None:
        """Stop the replica, if one runs; its files are left. `last_op_id` and `term` still tell.

        What the caller then makes of the tablet in the store votes, at the latest when it is asked;
        `settle` has it do so at once. It ends with `start_copied`, or as a tombstone.
        """
        async with self.lock(tablet_id):
            if tablet_id in self._opening:
                raise TabletNotReady(tablet_id, "being opened")
            gone = await self._stop(tablet_id)
            if gone is not None:
                self._stopped[tablet_id] = gone

    async def start_copied(self, tablet_id: TabletId) -> None:
        """Run a tablet whose copy is complete, from its disk. Raises TabletNotReady."""
        async with self.lock(tablet_id):
            self.store.require(tablet_id, DataState.READY)
            tombstone = self._tombstones.pop(tablet_id, None)
            if tombstone is not None:
                await tombstone.stop()
            self._stopped.pop(tablet_id, None)
            if tablet_id not in self._tablets:
                await self._open_again(tablet_id)

    # ---- Raft -------------------------------------------------------------------------------

    def raft_handlers(self) -> Handlers:
        """Messages and read indexes of all groups; none of them is told of anything unsettled."""
        return raft_handlers(self._members, self._tombstones, self._check_settled)

    async def _check_settled(self, tablet_id: TabletId) -> None:
        """Raises TabletNotReady while it is not known what there is of the tablet.

        A leader hears `TabletNotHere`, and begins a copy, only if there surely is nothing.
        """
        if tablet_id in self._members:
            return
        if self._store is None or tablet_id in self._opening:
            raise TabletNotReady(tablet_id, "being opened")
        if tablet_id in self._failed:
            raise TabletNotReady(tablet_id, "failed")
        superblock = self._store.superblock(tablet_id)
        if superblock is None or tablet_id in self._tombstones:
            return
        if superblock.state is DataState.READY or self.lock(tablet_id).locked():
            raise TabletNotReady(tablet_id, "between two states")
        await self.settle(tablet_id)
