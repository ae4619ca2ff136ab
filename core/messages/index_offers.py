"""Messages by which a recovery job fills lost indexlets straight from the logs it merges.

Whoever merges a tablet's log (Spark) knows its live rows before the tablet can tell of them. So it
reads the indexed column and the key of those rows from backups (`READ_COLUMNS`), asks the tablet
whether it was brought back from the very same log (`COMPARE_LOG`), and hands the entries to the
indexlets that are being filled (`OFFER_ENTRIES`). A tablet whose rows are not back yet reads
columns in the same way, when an indexlet asks it.

Why an offer counts as if the tablet had answered (`stelae.core.messages.indexes`, fills): its
entries are those of the tablet at the beginning of its epoch, before its first insertion. All it
has done since was put into the indexlet by itself, with higher stamps: the indexlet was open in the
term that is named before the job was given out. An offer for another term, or of an older epoch
than was heard of, is refused.
"""

from __future__ import annotations

from stelae.core.ids import TabletId
from stelae.core.messages.backups import ImagePlace, ReplicaInfo
from stelae.core.messages.indexes import TabletStamp
from stelae.core.rpc import Body, Empty, Method
from stelae.core.schema.indexes import IndexletId

EPOCH_BEGINS = 0
"""The sequence of what a tablet had at the beginning of an epoch; its insertions begin at 1."""


class ReadColumns(Body, frozen=True):
    """Serve some columns of all rows of a SEALED replica, which is checked before.

    The blob is an Arrow IPC stream of one batch; each field has its id, as stored. Columns that the
    segment does not have are left out. Refused if there is no such replica, or it is in row form.
    """

    tablet_id: TabletId
    segment_id: int
    column_ids: tuple[int, ...]
    only_place: bool = False
    """Tell where the image lies, for who may be on the same machine; nothing is read."""


class ReadColumnsReply(Body, frozen=True):
    info: ReplicaInfo
    trailer: bytes = b""
    """The image's end, with all its checksums: which image it is."""
    place: ImagePlace | None = None
    """None: it was not asked for, or lies in no file."""


class CompareLog(Body, frozen=True):
    """Was the tablet brought back, in this term, from segments with so many rows, in this order?

    Replicas of a log's head may differ in rows that nobody was told of; one is the beginning of
    the other, so that the number of rows tells them apart. Answered once the tablet has loaded
    its log and serves, as until then its recovery may begin anew, from another one. Raises
    TabletNotReady.
    """

    tablet_id: TabletId
    term: int
    row_counts: tuple[int, ...]


class CompareLogReply(Body, frozen=True):
    is_same: bool


class OfferEntries(Body, frozen=True):
    """A piece of all entries that a tablet has in an indexlet's range, as of the beginning of the
    epoch in ``tablet``. Idempotent, in any order; it counts once all pieces are here.

    The blob is as in `FillReply`. Without pieces: the promise that they come soon. An indexlet that
    is not being filled, or has this tablet's entries, has no need of either, and says nothing.
    Raises IndexletNotHere, StaleTerm.
    """

    indexlet_id: IndexletId
    term: int
    tablet: TabletStamp
    piece: int
    piece_count: int


READ_COLUMNS = Method("backup.read_columns", ReadColumns, ReadColumnsReply)
COMPARE_LOG = Method("tserver.compare_log", CompareLog, CompareLogReply)
OFFER_ENTRIES = Method("indexlet.offer_entries", OfferEntries, Empty)
