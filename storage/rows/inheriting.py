"""What a part of a split tablet takes of the log that it inherits, and in which order. Pure.

Inherited segments are cleaned, as it were: survivors of the part's own take their place, the first
segments first. So nothing but the part's own survivors is before a tombstone when it is judged, and
hardly one has to stay. Source: `docs/decisions.md`, §41; `stelae.storage.rows.survivors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from stelae.storage.rows.cleaning import NEIGHBOURS_MAX
from stelae.storage.rows.survivors import Parent
from stelae.storage.segments.picked import Picks
from stelae.storage.segments.remote import RemoteSegment
from stelae.storage.segments.segment import Segment


def next_group(
    order: Sequence[Segment], inherited: Mapping[int, Picks], limit_bytes: int
) -> list[Segment]:
    """The first inherited segments, neighbours of one schema, that one survivor of about so many
    bytes takes the place of; none: nothing is inherited any more.

    ``order``: of the log. ``inherited``: by segment id.
    """
    group: list[Segment] = []
    size_bytes = 0
    for segment in order:
        picks = inherited.get(segment.segment_id)
        if picks is None:
            if group:
                break
            continue
        size_bytes += picks.share_of(segment.bytes)
        is_alike = not group or segment.schema_version == group[0].schema_version
        fits = not group or (size_bytes <= limit_bytes and len(group) < NEIGHBOURS_MAX)
        if not (is_alike and fits):
            break
        group.append(segment)
    return group


def kept_bytes(group: Sequence[Segment], inherited: Mapping[int, Picks]) -> int:
    """About what the survivor of a group takes."""
    return sum([inherited[segment.segment_id].share_of(segment.bytes) for segment in group])


def parent_of(segment: Segment, picks: Picks) -> Parent:
    """The rows that are wanted of an inherited segment, which are here."""
    rows = picks.rows
    if isinstance(segment, RemoteSegment):
        run = segment.remote.whole
        assert run is not None, "its picked rows are held"
        return Parent.of_picked(segment, run.batch, rows)
    return Parent.of_picked(segment, segment.stored().take(pa.array(rows)), rows)
