"""Bugs planted into the splitting of tablets: the ``splits`` scenario sees each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from stelae.actors.tserver.indexes.indexlet_offers import IndexletOffers
from stelae.actors.tserver.owned_tablet.inheriting import Inheriting
from stelae.actors.tserver.tablet_log.segment_log import SegmentLog
from stelae.coordinator.liveness import standing
from stelae.core.schema.shares import Share, place_of
from stelae.storage.entries.client_results import ClientResults
from stelae.storage.keys.merge import Summary
from stelae.storage.segments import shares
from stelae.storage.segments.shares import only_share
from tests.simulation.world.planting import planting


def _a_part_takes_rows_of_its_sibling() -> Any:
    """Merge with one bit less of the share: half of what it takes is another one's."""

    def greedy(summary: Summary, share: Share) -> Summary:
        return only_share(summary, Share(max(0, share.bits - 1), share.value >> 1))

    return patch.object(shares, "only_share", greedy)


def _an_inherited_log_is_freed() -> Any:
    """Have backups drop the log of a split tablet at once, as of any that is gone."""

    def hasty(catalog: Any, held: Any) -> Any:
        known = [catalog.tablets.get(tablet_id) for tablet_id in held]
        return tuple(t.tablet_id for t in known if t is not None and t.state.is_gone)

    return patch.object(standing, "to_drop", hasty)


def _second_delivery_doubled() -> Any:
    """Let parts know nothing of the requests that the split tablet has carried out."""
    return patch.object(ClientResults, "restore", lambda self, results, now_s: None)


def _a_part_is_whole_before_a_head_says_so() -> Any:
    """Take a part for whole once its log has no inherited segment any more, though a recovery would
    go by a digest that names them."""

    def hasty(self: SegmentLog) -> bool:
        return any(segment.is_inherited for segment in self._segments.values())

    return patch.object(SegmentLog, "inherits", property(hasty))


def _inherited_segments_go_before_backups_have_their_survivor() -> Any:
    """Let them go once the survivor is on its way."""

    async def hasty(self: Inheriting, segment_id: int) -> None:
        del segment_id

    return patch.object(Inheriting, "_wait_sealed", hasty)


def _a_fill_counts_places() -> Any:
    """Take an indexlet for filled once one part of each place has told what it has."""
    or_ask = IndexletOffers.or_ask

    async def hasty(self: IndexletOffers, number: int, ask: Any) -> None:
        indexlet = self._indexlet
        count = indexlet.table.partitioning.tablet_count
        if any(place_of(each, count) == place_of(number, count) for each in indexlet.filled):
            indexlet.filled.add(number)
        await or_ask(self, number, ask)

    return patch.object(IndexletOffers, "or_ask", hasty)


BUGS: dict[str, Callable[[], Any]] = {
    "a_part_takes_rows_of_its_sibling": _a_part_takes_rows_of_its_sibling,
    "a_fill_counts_places": _a_fill_counts_places,
    "a_part_is_whole_before_a_head_says_so": _a_part_is_whole_before_a_head_says_so,
    "an_inherited_log_is_freed": _an_inherited_log_is_freed,
    "inherited_segments_go_before_backups_have_their_survivor": (
        _inherited_segments_go_before_backups_have_their_survivor
    ),
    "second_delivery_doubled": _second_delivery_doubled,
}


planted = planting(BUGS)
