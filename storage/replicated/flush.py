"""Flushes of a replicated tablet; they may name survivors in the place of neighbouring images.

What is kept is decided by the rows as they were when the flush began, which is what its manifest
speaks of: commands that are carried out meanwhile are replayed after a restart, and must meet the
same rows. The manifest is the commit point for the disk; memory follows. Replicas need not choose
the same images: which rows there are does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from stelae.core.ids import OpId
from stelae.core.records.records import TableRecord
from stelae.core.records.succession import Succession
from stelae.storage.entries.client_results import ClientRecord
from stelae.storage.keys.codec import KeyCodec
from stelae.storage.replicated.manifest import ImageFile
from stelae.storage.rows.cleaning import Candidate, Needs, best_to_clean
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.survivors import Parent, Survivor, filter_of, survive
from stelae.storage.segments.image import ImageMeta, build_image

WINDOWS_MAX = 4
"""In one flush: each has a survivor in memory."""
LOW_FACTOR = 1.1
"""While memory is low, images may take so many times what lives of them."""


@dataclass(frozen=True, slots=True)
class Window:
    """Neighbours that a flush replaces."""

    slots: tuple[int, ...]
    segment_id: int
    """Of the survivor, should there be one."""
    parents: tuple[Parent, ...]
    earlier: tuple[Parent, ...] | None
    """All segments before them; None: all tombstones are kept."""


@dataclass(frozen=True, slots=True)
class BuiltSurvivor:
    """A survivor and its image; None: nothing is kept."""

    window: Window
    survivor: Survivor
    content: pa.Buffer | None
    row_count: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Everything of the moment at which a flush began. Slots are places in `TabletMemory`."""

    last: OpId
    kept: tuple[int, ...]
    """The segments that the manifest will name, in log order."""
    unsealed: tuple[int, ...]
    """Those of them that have no image yet."""
    dropped: tuple[int, ...]
    """Segments that nobody needs once the manifest counts."""
    table: TableRecord | None
    next_version: int
    now_s: float
    clients: tuple[ClientRecord, ...]
    next_segment_id: int
    succession: Succession
    windows: tuple[Window, ...] = ()
    """Of those that have images: neighbours that the manifest will name a survivor for."""


class SealedImage(NamedTuple):
    """An image that was built, to be written under ``file.name``."""

    slot: int
    file: ImageFile
    content: pa.Buffer


def choose_windows(
    memory: TabletMemory, slots: Sequence[int], needs: Needs, next_id: int
) -> tuple[Window, ...]:
    """What to replace of the images in ``slots``; survivors are numbered from ``next_id`` on."""
    usable = dict.fromkeys(slots)
    candidates = [
        Candidate(
            each.slot,
            each.segment_id,
            each.schema_version,
            each.live_rows + each.tombstones,
            each.live_rows,
            each.tombstones,
            each.memory_bytes * (each.live_rows + each.tombstones) // max(1, each.row_count),
            each.memory_bytes,
            max(0, memory.next_version - each.next_version),
            is_free=each.slot in usable and each.sealed,
        )
        for each in memory.statistics()
        if each.closed
    ]
    found: list[Window] = []
    while len(found) < WINDOWS_MAX:
        chosen = best_to_clean(candidates, needs)
        if not chosen:
            break
        taken = tuple([each.slot for each in chosen])
        asks = any(each.tombstones for each in chosen) and not needs.keeps_tombstones
        earlier = tuple(memory.earlier(taken[0])) if asks else None
        parents = tuple(memory.parents(taken))
        found.append(Window(taken, next_id + len(found), parents, earlier))
        busy = dict.fromkeys(taken)
        candidates = [
            each._replace(is_free=each.is_free and each.slot not in busy) for each in candidates
        ]
    return tuple(found)


def build_survivor(
    window: Window, codec: KeyCodec, table_id: str, tablet_id: str, term: int
) -> BuiltSurvivor:
    """Decide what is kept and build its image. Off the loop."""
    earlier = window.earlier
    filters = None if earlier is None else [filter_of(each, codec) for each in earlier]
    survivor = survive(window.parents, codec, filters)
    count = survivor.batch.num_rows
    if not count:
        return BuiltSurvivor(window, survivor, None, 0)
    segments = [parent.segment for parent in window.parents]
    meta = ImageMeta(
        table_id,
        tablet_id,
        window.segment_id,
        term,
        min([each.first_index for each in segments if each.first_index], default=0),
        max([each.last_index for each in segments]),
        count,
        segments[-1].next_version,
        segments[0].schema_version,
    )
    return BuiltSurvivor(window, survivor, build_image(survivor.batch, meta, codec), count)
