"""Bugs planted into the servers, one at a time: proof that the simulator would see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from stelae.actors.backup.shared_writes import SharedWrites as BackupWrites
from stelae.actors.master.heartbeat_requests import ServerRequests
from stelae.actors.tserver.client_writes import ClientWrites
from stelae.actors.tserver.lease import Lease
from stelae.actors.tserver.owned_tablet.indexing import Begun
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.segments.repair import ReplicaCensus
from stelae.actors.tserver.segments.replica import SegmentReplica
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.side_segments import SideSegments
from stelae.actors.tserver.tablet_log.segment_log import SegmentLog
from stelae.client.routing.shared_writes import SharedWrites
from stelae.coordinator.catalog.catalog import CatalogBatch
from stelae.coordinator.liveness.liveness import Run
from stelae.core.messages.backups import ReplicaState
from stelae.core.messages.rows import WriteEachReply
from stelae.core.rpc import Reply
from stelae.core.schema.durability import Segments
from stelae.core.schema.schema import RowKind
from stelae.recovery import plan
from stelae.storage.keys.merge import Merged
from stelae.storage.rows import survivors
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.segments.recovered import RecoveredSegment
from tests.simulation.world.planting import planting


def _acknowledge_early() -> Any:
    """Acknowledge once one replica has the bytes."""

    def committed(self: ReplicatedSegment) -> int:
        if self.image is not None:
            return self.length
        if not self.may_fill:
            return 0
        return max((replica.length for replica in self.replicas), default=self.length)

    return patch.object(ReplicatedSegment, "committed_length", property(committed))


def _stale_head_replica() -> Any:
    """Recover from any open replica of the head, whatever its epoch, the shortest first."""

    def valid_open(tablet: Any, held: Sequence[Any]) -> list[Any]:
        return [h for h in held if h.replica.state is ReplicaState.OPEN]

    def shortest(held: Sequence[Any]) -> list[Any]:
        return sorted(held, key=lambda h: h.replica.length)[:1]

    return _both(
        patch.object(plan, "_valid_open", valid_open),
        patch.object(plan, "_head_replicas", shortest),
    )


def _short_head_replica() -> Any:
    """Take an open replica that may have lost its end for whole; the shortest first."""

    def shortest(held: Sequence[Any]) -> list[Any]:
        return sorted(held, key=lambda h: (not h.replica.may_be_short, h.replica.length))

    def find(tablet: Any, media: int, by_segment: Any) -> list[Any]:
        heads = [
            segment
            for segment, held in by_segment.items()
            if not plan.is_final(held) and plan._valid_open(tablet, held)
        ]
        return shortest(plan._valid_open(tablet, by_segment[min(heads)])) if heads else []

    return patch.object(plan, "find_head", find)


def _free_before_digest() -> Any:
    """Free what a recovery has replaced before a head whose digest tells so is durable."""
    recover = Tablet._recover

    async def hasty(self: Tablet, sources: Any, engine: Any) -> None:
        await recover(self, sources, engine)
        log, durability = self.log, self._table.durability
        # No assertion: one that fails would count as the bug found.
        if not (isinstance(log, SegmentLog) and isinstance(durability, Segments)):
            raise TypeError("the scenario has a table without a log of segments")
        census = ReplicaCensus(log, durability.media)
        for medium in census._media:
            for backup in log.members.backups(medium):
                await census._ask(backup)

    return patch.object(Tablet, "_recover", hasty)


def _free_needed_strays() -> Any:
    """Free a replaced replica while those that take its place are still being written."""
    return patch.object(ReplicatedSegment, "stands_without_strays", property(lambda self: True))


def _digest_forgets_rewritten() -> Any:
    """Leave the segments that a recovery rewrote out of the new head's digest."""

    def digest(self: SegmentLog) -> tuple[int, ...]:
        return tuple(i for i, s in sorted(self._segments.items()) if s.was_closed and s.is_sealed)

    return patch.object(SegmentLog, "digest", property(digest))


def _forget_safe_version() -> Any:
    """After a recovery, count versions from the live rows alone."""
    adopt = TabletMemory.adopt

    def forgetful(
        self: TabletMemory,
        segments: Sequence[RecoveredSegment],
        merged: Merged | None,
        *rest: Any,
    ) -> None:
        adopt(self, segments, merged, *rest)
        live = [
            segment.summary.versions_of(np.flatnonzero(mask)).max(initial=0)
            for segment, mask in zip(segments, merged.live if merged else [], strict=False)
            if len(segment.summary)
        ]
        self.next_version = int(max(live, default=0)) + 1

    return patch.object(TabletMemory, "adopt", forgetful)


def _tombstones_raise_no_version() -> Any:
    """After a recovery, count versions from the rows that were ever written, and from what heads
    say of the time before them, as it should be: but from no tombstone."""
    adopt = TabletMemory.adopt

    def forgetful(
        self: TabletMemory,
        segments: Sequence[RecoveredSegment],
        merged: Merged | None,
        *rest: Any,
    ) -> None:
        adopt(self, segments, merged, *rest)
        told = [s.prologue.safe_version for s in segments if s.prologue is not None]
        for summary in (segment.summary for segment in segments if len(segment.summary)):
            rows = summary.kinds_of(slice(None)) != RowKind.TOMBSTONE
            told.append(int(summary.versions_of(rows.nonzero()[0]).max(initial=0)) + 1)
        self.next_version = max(told, default=1)

    return patch.object(TabletMemory, "adopt", forgetful)


def _wrong_head() -> Any:
    """Of two open heads take the newer, whose predecessor may hold more than its digest says."""
    return patch.object(plan, "min", max, create=True)


def _zombie_answers() -> Any:
    """Serve without a lease, and after having been given up."""
    return patch.object(Lease, "is_valid", property(lambda self: True))


def _freed_before_barrier() -> Any:
    """Free what was cleaned as soon as digests to come are without it."""
    admit = SideSegments.admit

    def hasty(self: SideSegments, parents: Sequence[int], survivor: int, worth: bool) -> None:
        admit(self, parents, survivor, worth)
        retired, self._retired = self._retired, []
        self._free([segment for each in retired for segment in each.segments])

    return patch.object(SideSegments, "admit", hasty)


def _tombstone_dropped_early() -> Any:
    """Forget tombstones whatever the segments before them may hold."""

    def none(batch: Any, tombstones: Any, codec: Any, earlier: Any) -> tuple[Any, int]:
        return np.zeros(batch.num_rows, np.bool_), 1

    return patch.object(survivors, "_needed", none)


def _recovery_committed_twice() -> Any:
    """Commit a hand-over once more when its owner has raised an epoch since: its first head is the
    oldest that counts again, in its first epoch."""
    raise_epoch = ServerRequests._on_raise_epoch

    async def again(self: ServerRequests, call: Any) -> Any:
        reply = await raise_epoch(self, call)
        master, tablet_id = self._master, call.body.tablet_id
        coordinator = await master.barrier(call.timeout_s)

        def hand_over() -> CatalogBatch | None:
            tablet = master.catalog.tablets[tablet_id]
            owner = master.liveness.find(Run(tablet.owner, tablet.owner_incarnation))
            report = None if owner is None else owner.reports.get(tablet_id)
            if report is None or report.term != tablet.term:
                return None
            mark, generation = report.head_segment, tablet.generation + 1
            changed = {"valid_segment": mark, "valid_epoch": 0, "generation": generation}
            return CatalogBatch(tablets=(msgspec.structs.replace(tablet, **changed),))

        await coordinator.operations.change(hand_over, tablets=[tablet_id])
        return reply

    return patch.object(ServerRequests, "_on_raise_epoch", again)


def _answers_go_to_another_caller() -> Any:
    """Tell callers whose writes shared a message what came of each other's."""
    answered = SharedWrites._answered

    def turned(self: SharedWrites, parts: Sequence[Sequence[Any]], outcome: Any) -> None:
        answered(self, [[*ones[1:], ones[0]] for ones in parts], outcome)

    return patch.object(SharedWrites, "_answered", turned)


def _parts_change_places() -> Any:
    """Answer the parts of a message in another order."""
    on_write_each = ClientWrites._on_write_each

    async def turned(self: ClientWrites, call: Any) -> Any:
        reply = await on_write_each(self, call)
        return Reply(WriteEachReply(tuple(reversed(reply.body.outcomes))))

    return patch.object(ClientWrites, "_on_write_each", turned)


def _shared_writes_wait_for_nothing() -> Any:
    """Answer writes that came in one message before their logs have them."""

    async def hasty(self: Begun, timeout_s: float) -> tuple[bytes, ...]:
        return self.outcomes

    return patch.object(Begun, "counted", hasty)


def _refused_appends_pass_for_durable() -> Any:
    """Of several appends in one message one is refused, and none is told of it."""
    outcome = BackupWrites._outcome

    async def silent(self: BackupWrites, write: Any, blob: Any) -> Any:
        return b"", (await outcome(self, write, blob))[1]

    return patch.object(BackupWrites, "_outcome", silent)


def _shared_appends_are_not_waited_for() -> Any:
    """Answer several appends in one message before their medium has them."""
    outcome = BackupWrites._outcome

    async def hasty(self: BackupWrites, write: Any, blob: Any) -> Any:
        return (await outcome(self, write, blob))[0], None

    return patch.object(BackupWrites, "_outcome", hasty)


def _pieces_count_uncertified() -> Any:
    """Acknowledge what all replicas have received, whether a certificate covers it or not."""
    certified = property(lambda self: self.length, lambda self, length: None)
    return patch.object(SegmentReplica, "certified", certified)


def _epochs_count_unregistered() -> Any:
    """Acknowledge under an epoch of which the catalog does not know."""
    return patch.object(ReplicatedSegment, "_epoch_counts", property(lambda self: True))


def _both(*patches: Any) -> Any:
    stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return entered()


CLEANING_BUGS: dict[str, Callable[[], Any]] = {
    "freed_before_barrier": _freed_before_barrier,
    "tombstone_dropped_early": _tombstone_dropped_early,
}
"""The first one is found by the ``cleaning`` scenario, the other one by a crash that is aimed
(`tests/unit/actors/tserver/tablet/test_cleaning_runs.py`)."""
BUGS: dict[str, Callable[[], Any]] = {
    "acknowledge_early": _acknowledge_early,
    "stale_head_replica": _stale_head_replica,
    "free_before_digest": _free_before_digest,
    "short_head_replica": _short_head_replica,
    "free_needed_strays": _free_needed_strays,
    "digest_forgets_rewritten": _digest_forgets_rewritten,
    "forget_safe_version": _forget_safe_version,
    "recovery_committed_twice": _recovery_committed_twice,
    "tombstones_raise_no_version": _tombstones_raise_no_version,
    "wrong_head": _wrong_head,
    "zombie_answers": _zombie_answers,
}


SHARED: dict[str, Callable[[], Any]] = {
    "answers_go_to_another_caller": _answers_go_to_another_caller,
    "parts_change_places": _parts_change_places,
}
"""Of messages that carry the writes of several tablets; the scenario `tables` finds them."""
SHARED_AIMED: dict[str, Callable[[], Any]] = {
    "shared_writes_wait_for_nothing": _shared_writes_wait_for_nothing,
}
"""The same; a crash that is aimed finds it (`tests/simulation/tables/test_gathered_writes.py`)."""
SHARED_AT_BACKUPS: dict[str, Callable[[], Any]] = {
    "refused_appends_pass_for_durable": _refused_appends_pass_for_durable,
    "shared_appends_are_not_waited_for": _shared_appends_are_not_waited_for,
}
"""Found by a crash and a fence that are aimed
(`tests/unit/actors/tserver/segments/test_shared_appends.py`)."""
AIMED_AT_HEADS: dict[str, Callable[[], Any]] = {
    "epochs_count_unregistered": _epochs_count_unregistered,
    "pieces_count_uncertified": _pieces_count_uncertified,
}
"""Found by the deaths of `tests/simulation/tables/aimed_heads.py`."""


planted = planting(BUGS, CLEANING_BUGS, SHARED, SHARED_AIMED, SHARED_AT_BACKUPS, AIMED_AT_HEADS)
