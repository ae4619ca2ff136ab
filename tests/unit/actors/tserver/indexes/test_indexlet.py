"""`stelae.actors.tserver.indexes.indexlet`: what a successor learns of tablets, in whatever
order."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest

from stelae.actors.tserver.indexes.indexlet import Indexlet
from stelae.actors.tserver.indexes.lineage import Known
from stelae.core.errors import IndexletNotReady
from stelae.core.ids import ServerUuid, TableId
from stelae.core.messages.indexes import (
    IndexletProgress,
    KnownTablet,
    Lookup,
    RemoveEntries,
    TabletStamp,
)
from stelae.core.records.records import TableRecord, TableState
from stelae.core.rpc import Call
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexId, IndexletId, IndexletRecord, IndexletState
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World

TABLE = TableRecord(
    TableId("t" * 32),
    "rows",
    TableSchema.of(pa.schema([pa.field("id", pa.int64(), False)]), ["id"]),
    Partitioning(),
    segments("disk"),
    TableState.RUNNING,
)
RECORD = IndexletRecord(
    IndexletId("new"),
    IndexId("1"),
    TABLE.table_id,
    b"",
    b"",
    IndexletState.FILLING,
    1,
    ServerUuid("s"),
    1,
    succeeds=IndexletId("old"),
)
COMPARED = KnownTablet(0, 3, 7, 0, 0, is_compared=True)
"""What the one before knew of the only tablet when it began to hand over."""


def successor() -> Indexlet:
    """One that is being filled by the one before."""
    runtime = World(1, Options()).client("t")
    return Indexlet(runtime, Tasks(), "t", RECORD, TABLE, lambda: True)


async def forward(indexlet: Indexlet, epoch: int, *, is_lossy: bool) -> None:
    """The one before passes on what a tablet says meanwhile."""
    stamp = TabletStamp(0, epoch, 7)
    body = RemoveEntries(RECORD.indexlet_id, 1, stamp, is_lossy=is_lossy, is_forwarded=True)
    await indexlet.remove(Call(body, (), 1.0))


@pytest.mark.parametrize("epoch", [3, 4])
async def test_a_doubt_that_was_forwarded_is_newer_than_what_was_known_before(epoch: int) -> None:
    """Removals were lost, or a new epoch began: the tablet is compared, though the one before had
    nothing to compare when it began, and says so last, and again."""
    indexlet = successor()
    await forward(indexlet, epoch, is_lossy=epoch == COMPARED.epoch)
    for _ in range(2):
        indexlet.learn_tablets([COMPARED])
        assert not indexlet.known[0].is_compared
        assert indexlet.known[0].epoch == epoch


async def test_this_would_see_a_doubt_that_is_forgotten() -> None:
    """With doubts that are not counted, what was known before would hold again."""

    def uncounted(known: Known) -> None:
        known.is_compared = False

    indexlet = successor()
    with patch.object(Known, "doubt", uncounted):
        await forward(indexlet, COMPARED.epoch, is_lossy=True)
    assert not indexlet.known[0].is_compared
    indexlet.learn_tablets([COMPARED])
    assert indexlet.known[0].is_compared


async def test_without_a_doubt_what_was_known_before_holds() -> None:
    """Whoever was compared need not be again; who was not has to be; a newer epoch counts."""
    indexlet = successor()
    await forward(indexlet, COMPARED.epoch, is_lossy=False)
    indexlet.learn_tablets([COMPARED])
    assert indexlet.known[0].is_compared
    assert indexlet.known[0].first_incomplete == COMPARED.first_incomplete
    indexlet.learn_tablets([msgspec.structs.replace(COMPARED, epoch=4, is_compared=False)])
    assert (indexlet.known[0].epoch, indexlet.known[0].is_compared) == (4, False)


async def test_what_may_lack_entries_answers_nobody_before_it_is_compared() -> None:
    """Neither the one that heard of a loss, nor one that succeeds it, in whatever order it learns;
    a comparison from before the loss does not count."""
    indexlet = successor()
    stamp = TabletStamp(0, COMPARED.epoch, 7)
    body = RemoveEntries(RECORD.indexlet_id, 1, stamp, is_forwarded=True, may_lack=True)
    await indexlet.remove(Call(body, (), 1.0))
    indexlet.learn_tablets([COMPARED])
    assert indexlet.lineage.lacking == 0
    (told,) = indexlet.known_tablets()
    other = successor()
    await forward(other, COMPARED.epoch + 1, is_lossy=False)
    other.learn_tablets([told])
    for each in (indexlet, other):
        each.progress = IndexletProgress.SERVING
        with pytest.raises(IndexletNotReady, match="lost something"):
            each.lookup(Lookup(RECORD.indexlet_id, 1, b""))
        each.compared(each.known[0])
        assert not each.lookup(Lookup(RECORD.indexlet_id, 1, b"")).body.entries
