"""Bugs planted into the servers, one at a time: proof that the simulator would see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from stelae.actors.lease import Lease
from stelae.actors.master_servers import ServerRequests
from stelae.actors.replica_census import ReplicaCensus
from stelae.actors.replicated_segment import ReplicatedSegment
from stelae.actors.segment_log import SegmentLog
from stelae.actors.side_segments import SideSegments
from stelae.actors.tablet import Tablet
from stelae.coordinator.catalog import CatalogBatch
from stelae.coordinator.liveness import Run
from stelae.recovery import plan
from stelae.storage import survivors
from stelae.storage.merge import Merged
from stelae.storage.recovered import RecoveredSegment
from stelae.storage.tablet import TabletMemory


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
        return [h for h in held if h.replica.state is plan.ReplicaState.OPEN]

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

    async def hasty(self: Tablet, sources: Any, engine: Any) -> list[int]:
        rewritten = await recover(self, sources, engine)
        census = ReplicaCensus(self._log, self._table.durability.media)
        for medium in census._media:
            for backup in self._log.members.backups(medium):
                await census._ask(backup)
        return rewritten

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
(`tests/unit/actors/test_cleaning.py`)."""
BUGS: dict[str, Callable[[], Any]] = {
    "acknowledge_early": _acknowledge_early,
    "stale_head_replica": _stale_head_replica,
    "free_before_digest": _free_before_digest,
    "short_head_replica": _short_head_replica,
    "free_needed_strays": _free_needed_strays,
    "digest_forgets_rewritten": _digest_forgets_rewritten,
    "forget_safe_version": _forget_safe_version,
    "recovery_committed_twice": _recovery_committed_twice,
    "wrong_head": _wrong_head,
    "zombie_answers": _zombie_answers,
}


@contextlib.contextmanager
def planted(bug: str) -> Iterator[None]:
    """Run with a bug of `BUGS` or `CLEANING_BUGS`; with none for ""."""
    if not bug:
        yield
        return
    with {**BUGS, **CLEANING_BUGS}[bug]():
        yield
