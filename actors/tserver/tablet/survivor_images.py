"""Survivors on their way into a tablet's memory: their images, and the moves of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from stelae.actors.tserver.tablet_log.interface import TabletLog
from stelae.core.ids import TabletId
from stelae.core.records.records import TableRecord
from stelae.core.runtime import ObjectHandle, Runtime
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.survivors import Move, Survivor
from stelae.storage.segments.image import Image, ImageMeta, build_image
from stelae.storage.segments.segment import Segment

ROWS_AT_ONCE = 2048
"""Moved in one turn of the loop: about 0.3 ms."""
IDLE_FACTOR = 3
"""While there is no hurry, a move rests for so many times as long as it works."""


class Survived(Protocol):
    """The tablet of a survivor."""

    tablet_id: TabletId
    term: int

    @property
    def memory(self) -> TabletMemory: ...
    @property
    def log(self) -> TabletLog: ...
    @property
    def table(self) -> TableRecord: ...


@dataclass(frozen=True, slots=True)
class SurvivorImage:
    """A survivor in shared memory."""

    segment_id: int
    batch: pa.RecordBatch
    buffer: pa.Buffer
    handle: ObjectHandle


async def image_of(
    runtime: Runtime, tablet: Survived, parents: Sequence[Segment], survivor: Survivor
) -> SurvivorImage:
    """Seal what is kept of some neighbours, as a new segment of the log."""
    segment = tablet.log.next_id()
    meta = ImageMeta(
        tablet.table.table_id,
        tablet.tablet_id,
        segment,
        tablet.term,
        min([each.first_index for each in parents if each.first_index], default=0),
        max([each.last_index for each in parents]),
        survivor.batch.num_rows,
        parents[-1].next_version,
        parents[0].schema_version,
    )
    built = await runtime.offload(build_image, survivor.batch, meta, tablet.memory.codec)
    handle, buffer = await runtime.objects.move(built)
    batch = Image.open(buffer, f"the image of segment {segment}", check_rows=False).batch
    return SurvivorImage(segment, batch, buffer, handle)


async def carry(
    runtime: Runtime,
    memory: TabletMemory,
    move: Move,
    is_urgent: Callable[[], bool] = lambda: False,
) -> None:
    """Move all rows; over in the turn in which this returns."""
    clock = runtime.clock
    began_s = clock.monotonic()
    while not memory.step(move, ROWS_AT_ONCE):
        worked_s = clock.monotonic() - began_s
        await clock.sleep(0.0 if is_urgent() else IDLE_FACTOR * worked_s)
        began_s = clock.monotonic()
