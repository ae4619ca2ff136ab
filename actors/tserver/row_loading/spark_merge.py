"""The merge of a tablet's summaries that somebody else makes, awaited by whoever loads the tablet.

Spark merges what it read from the backups while the tablet server loads the same segments. Whoever
is done first waits here for the other, and a merge of other replicas than those loaded is refused.

Source: seed RAMCloud master recovery, phase 1 (partitioned replay), design §9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from stelae.core.errors import InvalidArgument, TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.messages.index_offers import COMPARE_LOG, CompareLog, CompareLogReply
from stelae.core.messages.servers import INSTALL_MERGE, InstallMerge, TabletProgress
from stelae.core.rpc import EMPTY, Blob, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.storage.kernels.api import Bools
from stelae.storage.keys.merge import Merged, Summary, marked, winners_of_bits


class MergeOffer:
    """One tablet's; until `expect` nothing is awaited."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._offered: asyncio.Future[list[Bools] | None] | None = None
        self._is_declined = False
        self._loaded: tuple[int, ...] | None = None
        self._is_loaded = asyncio.Event()
        self._until = 0.0
        self.patience_s = 0.0
        """Of whoever waits, from `expect` on. A leader that gives up says so, but it may be lost
        with what it had under way, and its successor has no reason to say anything."""

    def expect(self) -> None:
        """The leader has ordered a merge elsewhere; unless it has called that off already."""
        if not self._is_declined:
            self._offered = asyncio.get_running_loop().create_future()
            self._until = self._runtime.clock.monotonic() + self.patience_s

    def decline(self) -> None:
        """Nobody will merge the summaries elsewhere: do not wait for it any longer."""
        self._is_declined = True
        if self._offered is not None and not self._offered.done():
            self._offered.set_result(None)

    def offer(self, row_counts: Sequence[int], blobs: Sequence[Blob]) -> None:
        """Take a merge: a bit for each row of all segments. Later ones change nothing.

        Raises:
            InvalidArgument: it is none.
        """
        if self._offered is None or self._offered.done():
            return
        winners = winners_of_bits(blobs[0], row_counts) if len(blobs) == 1 else None
        if winners is None:
            raise InvalidArgument(f"no merge of {sum(row_counts)} rows: a bit for each is one")
        self._offered.set_result(winners)

    async def wait(self, summaries: Sequence[Summary]) -> Merged | None:
        """The merge of these segments; None: merge them here after all.

        Replicas of a head may differ in rows that were never acknowledged: a merge of another
        replica than the one that was loaded here is of no use.
        """
        self._loaded = tuple([len(summary) for summary in summaries])
        self._is_loaded.set()
        if self._offered is None:
            return None
        try:
            async with asyncio.timeout(max(0.0, self._until - self._runtime.clock.monotonic())):
                winners = await asyncio.shield(self._offered)
        except TimeoutError:
            self._runtime.metrics.count("merges_not_offered")
            return None
        if winners is None:
            return None
        merged = await self._runtime.offload(marked, summaries, winners)
        if merged is None:
            self._runtime.metrics.count("merges_of_other_replicas")
        return merged

    async def is_of(self, row_counts: tuple[int, ...], timeout_s: float) -> bool:
        """Whether the segments that were loaded here have so many rows; waits until they are.

        Raises TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            await self._is_loaded.wait()
        return self._loaded == row_counts


class Merging(Protocol):
    """A tablet that comes back."""

    merge_offer: MergeOffer
    progress: TabletProgress


class MergesMadeElsewhere:
    """What whoever merges says to a tserver, and asks it. ``opened`` finds a tablet in a term, or
    raises TabletNotHere."""

    def __init__(self, opened: Callable[[TabletId, int], Merging]) -> None:
        self._opened = opened

    def handlers(self) -> Handlers:
        return {INSTALL_MERGE: self._on_install_merge, COMPARE_LOG: self._on_compare_log}

    async def _on_install_merge(self, call: Call[InstallMerge]) -> Reply[Empty]:
        offer = self._opened(call.body.tablet_id, call.body.term).merge_offer
        offer.offer(call.body.row_counts, call.blobs)
        return EMPTY

    async def _on_compare_log(self, call: Call[CompareLog]) -> Reply[CompareLogReply]:
        tablet = self._opened(call.body.tablet_id, call.body.term)
        try:
            is_same = await tablet.merge_offer.is_of(call.body.row_counts, call.timeout_s / 2)
        except TimeoutError:
            raise TabletNotReady(call.body.tablet_id, "loading its log") from None
        # Before it is handed over, another replica of the former head may still be the log's end.
        if tablet.progress is not TabletProgress.SERVING:
            raise TabletNotReady(call.body.tablet_id, "waiting to be handed over")
        return Reply(CompareLogReply(is_same))
