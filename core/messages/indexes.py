"""Messages between clients, tablets, indexlets and masters about secondary indexes.

The order of a write (SLIK's), at the owner or leader of a tablet:

1. new entries are registered as *pending* and put into the indexlets (`INSERT_ENTRIES`);
2. the row is written, by the very definitions that step 1 went by, and in the very term, or step 1
   is repeated: who led meanwhile has compared, and did not know that these entries are pending;
3. once whatever made them superfluous is durable, old entries are taken out (`REMOVE_ENTRIES`).

**Stamps.** Each entry carries the stamp (``epoch``, ``sequence``) of its newest insertion. The
epoch is (change of the tablet, its term), the sequence is counted by its owner or leader within
it. Of what arrives for one entry the greatest stamp wins, be it an insertion or a removal: so the
order of arrival makes no difference, nor does a repetition. A removal is sent with the epoch in
which it was counted, or not at all: with a later one it would win over an insertion that came
after it. So an epoch lasts as long as the term, and a removal of one term is not one of the next.

**What is over.** Each message names ``first_incomplete``: no insertion with a lower sequence is
under way any more. An indexlet takes no insertion below what it has heard (`StaleRequest`), and
none of an older epoch than it has heard of (`StaleTerm`): a late copy brings nothing back.

**Epochs.** A leader's removals may rest on what it has proposed itself only: of entries in the log
from before its term nobody knows which are pending. So what a former owner or leader left behind
(its insertions whose rows were never written, its removals that were lost) is taken out by
comparing: the first message of a new epoch, or one with ``is_lossy``, has the indexlet ask the
tablet for its entries (`FILL_ENTRIES`), as it does when it is filled. Entries of that tablet
with a lower stamp than that of the answer, which are not in it, are gone.

**Losses.** Removals rest on what was acknowledged. Where that may be lost after all (an accepted
loss, a head that may be short) rows may have a former value again whose entry was taken out. So the
tablet is handed over only once every indexlet has heard so of the new epoch (``may_lack``): from
then on none answers before it has compared.

**Splits.** A tablet that is split at its recovery is over with the first word of a part, as the
part's number tells: nothing more is taken of it. Its entries count until all its parts have told
what they have; terms of parts are above its own, so of one entry the part's word wins.

**Fills.** A tablet answers from one turn of its loop with its rows, all pending entries, and its
stamp of that moment; it has the schema version that defines the index, every write that was begun
without it has ended or is in the rows, it is provably the owner or leader, and *all that it answers
with is durable*: a row that is not may be lost, and the one that it has overwritten be back.

**Leases.** An indexlet's owner acknowledges insertions and removals, and answers look-ups, in its
term and under its lease only. Tablets ask the masters' leader where indexlets are
(`LOCATE_INDEXLETS`), keep that, and ask again when refused: `IndexletNotHere`, `StaleTerm`.

**Waits.** Handlers of insertions wait at most for one forwarding to a successor, whose handler
waits for nothing. Handlers of fills wait for what a tablet has appended or proposed, and for
backups to read what is not in its memory, never for insertions. So tablets and indexlets may share
servers, and servers may wait for each other.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.records.records import TableRecord
from stelae.core.rpc import ANY_MASTER, BY_TABLET, Body, Empty, Method
from stelae.core.schema.indexes import END, IndexId, IndexletId, IndexletRecord

ENTRIES_MAX = 512
"""Of one message that carries entries one by one; more go as an Arrow stream."""
PIECE_BYTES = 4 << 20
"""About so much of entries goes into one piece of a fill or copy, and into one insertion."""
LOOKUP_ENTRIES_MAX = 10_000
"""Of one answer to a look-up."""
LOOKUPS_MAX = 64
"""Of one message."""
NOT_IN_PLACE = -1
"""``tablet_change`` of a tablet that is to succeed another one, or that is gone."""


TabletNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
"""Of a tablet in its table."""
STAMP_PART_END = 1 << 62
StampPart: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=STAMP_PART_END)]
"""An epoch or a sequence: indexlets keep a mark beside it in 64 bits."""

_EPOCH_TERM_BITS = 40


def epoch_of(change: int, term: int) -> int:
    """The epoch of a tablet: its change, then its term."""
    return change << _EPOCH_TERM_BITS | term


# ---- clients and tablets to masters ---------------------------------------------------------


class LocateIndexlets(Body, frozen=True):
    """Where the indexlets of a table's indexes are. Linearizable: the leader answers.

    From a tablet with its id: one that is not in its table's place (yet) may insert nothing.
    """

    table_id: TableId
    tablet_id: TabletId = TabletId("")


class IndexletLocation(Body, frozen=True):
    """``address`` is empty while the owner is not live, or not named yet."""

    indexlet: IndexletRecord
    address: Address
    problem: str = ""
    """What it waits for, while it is not SERVING."""


class IndexletLocations(Body, frozen=True):
    """Of each index of the table's newest schema its indexlets, which cover all of it (no
    successors that are not in place), in the order of ``low``; in the order of definitions."""

    schema_version: int
    """The newest of the table: an index of an older one that is not told of was dropped."""
    indexlets: tuple[IndexletLocation, ...]
    tablet_change: int = NOT_IN_PLACE
    """`TabletRecord.change` of the tablet that asks, if it is its number's tablet now: always the
    same of one tablet."""
    tablet_number: int = 0
    """`TabletRecord.number` of the tablet that asks: replicas of groups are not told."""


LOCATE_INDEXLETS = Method("master.locate_indexlets", LocateIndexlets, IndexletLocations, ANY_MASTER)


# ---- tablets to indexlets -------------------------------------------------------------------


class TabletStamp(Body, frozen=True):
    """Which tablet speaks, in which epoch, and which of its insertions are over."""

    number: TabletNumber
    """Of the tablet in its table; its successors have the same, its parts do not."""
    epoch: StampPart
    first_incomplete: StampPart


class InsertEntries(Body, frozen=True):
    """Put entries in, or renew their stamps; answered when they count, and never after a refusal.

    Few: ``entries``, each with its sequence. Many: one blob, an Arrow IPC stream of one batch with
    a binary column ``entry``, whose one sequence is ``sequences[0]``. All must be of the indexlet's
    range, or none is taken (`IndexletNotHere`). Raises IndexletNotHere, StaleTerm, StaleRequest,
    IndexletNotReady, OutOfMemory; InvalidArgument: none that a tablet of this table would send.
    """

    indexlet_id: IndexletId
    term: int
    tablet: TabletStamp
    sequences: tuple[StampPart, ...]
    entries: tuple[bytes, ...] = ()
    is_forwarded: bool = False
    """By the indexlet that it is to succeed."""


class RemoveEntries(Body, frozen=True):
    """Take entries out, unless they were put in with a higher stamp since. As `InsertEntries`, also
    in that many go as a blob.

    Without entries: a new epoch makes itself known.
    """

    indexlet_id: IndexletId
    term: int
    tablet: TabletStamp
    sequences: tuple[StampPart, ...] = ()
    entries: tuple[bytes, ...] = ()
    is_lossy: bool = False
    """Removals of this epoch were lost: compare with the tablet, which knows best."""
    is_forwarded: bool = False
    may_lack: bool = False
    """Rows may be back whose entries were taken out: answer nobody before you have compared."""


INSERT_ENTRIES = Method("indexlet.insert_entries", InsertEntries, Empty)
REMOVE_ENTRIES = Method("indexlet.remove_entries", RemoveEntries, Empty)


# ---- clients to indexlets -------------------------------------------------------------------


class Lookup(Body, frozen=True):
    """Entries of the indexlet from ``low`` on and below ``high``, ascending, or descending.

    To go on after entry e: ``low = just_after(e)``; descending: ``high = e``. The rows are to be
    read, and compared: an entry may name a row that no longer has the value, or no row at all.
    """

    indexlet_id: IndexletId
    term: int
    low: bytes
    high: bytes = END
    limit: int = LOOKUP_ENTRIES_MAX
    is_reverse: bool = False


class LookupReply(Body, frozen=True):
    """``is_more``: the limit was reached; else there is no other entry of that range here.

    More than `ENTRIES_MAX` entries come as a blob, an Arrow IPC stream with a column ``entry``.
    """

    entries: tuple[bytes, ...]
    is_more: bool
    low: bytes
    """Of the indexlet."""
    high: bytes


LOOKUP = Method("indexlet.lookup", Lookup, LookupReply)


class LookupRange(msgspec.Struct, frozen=True, array_like=True):
    """As in `Lookup`."""

    low: bytes
    high: bytes
    limit: int
    is_reverse: bool


class LookupMany(Body, frozen=True):
    """Several look-ups at once, that are answered or refused together.

    At most `LOOKUPS_MAX`. Each is given `ENTRIES_MAX` entries at most, whatever its limit.
    """

    indexlet_id: IndexletId
    term: int
    ranges: tuple[LookupRange, ...]


class LookupManyReply(Body, frozen=True):
    """In the order of the ranges."""

    answers: tuple[LookupReply | None, ...]
    """None: together they would be too large, and this one is to be asked for by itself."""


LOOKUP_MANY = Method("indexlet.lookup_many", LookupMany, LookupManyReply)


# ---- indexlets to tablets -------------------------------------------------------------------


class FillEntries(Body, frozen=True):
    """The entries of one tablet in a range of an index, sorted, piece by piece.

    A ``session`` that is not known is begun with piece 0; whoever asks gives it its name. However
    long it takes to make the answer, a call is short: `FillReply.is_made`. Refused (TabletNotReady)
    as long as the tablet has not the schema version that defines the index; InvalidArgument: the
    session was let go. They are forgotten when nobody asks for a while, and with the tablet.
    """

    tablet_id: TabletId
    index_id: IndexId
    low: bytes
    high: bytes
    schema_version: int
    """At least this one."""
    session: str = ""
    piece: int = 0
    """From 0; a repeated call gets the same one."""


class FillReply(Body, frozen=True):
    """The blob is an Arrow IPC stream with a binary column ``entry``, ascending, without repetition
    and above those of earlier pieces."""

    session: str
    tablet: TabletStamp
    sequence: StampPart
    """With ``tablet.epoch`` the stamp of all entries of this session."""
    is_last: bool
    entry_count: int = 0
    """Of all pieces."""
    is_made: bool = True
    """False, without a blob: the answer is being made, and nothing is known of it yet; the same
    piece is to be asked for again."""


FILL_ENTRIES = Method("tserver.fill_entries", FillEntries, FillReply, BY_TABLET)


# ---- an indexlet to those that are to succeed it --------------------------------------------


class KnownTablet(Body, frozen=True):
    """What an indexlet knows of one tablet, and so do its successors."""

    number: TabletNumber
    epoch: StampPart
    """The newest heard of."""
    first_incomplete: StampPart
    floor_epoch: StampPart
    """Entries of this tablet below (``floor_epoch``, ``floor_sequence``) are gone."""
    floor_sequence: StampPart
    is_compared: bool
    """Nothing of it is to be compared any more."""
    may_lack: bool = False
    """Its rows may lack entries here: nobody is answered before it is compared."""


class CopyEntries(Body, frozen=True):
    """A piece of what an indexlet holds, to one that is to succeed it.

    The blob is an Arrow IPC stream with the columns ``entry`` (binary), ``tablet`` (uint32),
    ``epoch``, ``sequence`` (uint64) and ``is_removed`` (bool), any order. Idempotent. With
    ``is_last`` the receiver has everything, and takes no further piece.
    """

    indexlet_id: IndexletId
    term: int
    tablets: tuple[KnownTablet, ...]
    is_last: bool


COPY_ENTRIES = Method("indexlet.copy_entries", CopyEntries, Empty)


# ---- masters to the owners of indexlets, and back -------------------------------------------


class IndexletProgress(enum.StrEnum):
    FILLING = "filling"
    COMPLETE = "complete"
    """It has everything, and waits for the masters' word (`SERVE_INDEXLET`)."""
    SERVING = "serving"
    CLOSED = "closed"
    """It has handed over, and acknowledges nothing any more; held until it is dropped."""


class HandOverStage(enum.StrEnum):
    NONE = "none"
    COPYING = "copying"
    COMPLETE = "complete"
    """The successors have everything, and nothing is acknowledged that they do not have: the
    masters may close this one and put them in its place, or release it from them."""
    FAILED = "failed"
    """The successors lack something, and never will be complete: give them up."""


class IndexletReport(Body, frozen=True):
    """One indexlet, in its owner's heartbeats, and in answers to orders."""

    indexlet_id: IndexletId
    term: int
    progress: IndexletProgress
    problem: str = ""
    """What it waits for."""
    entry_count: int = 0
    """About: entries that are overwritten or taken out may be counted for a while."""
    memory_bytes: int = 0
    tablets_filled: int = 0
    tablets: int = 0
    """While FILLING: so many tablets have to answer."""
    tablets_to_compare: int = 0
    """With a new epoch, whose entries have not been compared yet."""
    split_at: bytes = b""
    """About the middle of its entries; empty if there are too few to split."""
    load_per_s: float = 0.0
    hand_over: HandOverStage = HandOverStage.NONE
    successors: tuple[IndexletId, ...] = ()
    """Of the hand-over."""
    copied_entries: int = 0
    as_of: float = 0.0
    """Time of this report, in seconds of the server's monotonic clock, as `Heartbeat.sent`. 0: a
    server of an older version, which does not tell it."""


class OpenIndexlet(Body, frozen=True):
    """Hold an indexlet in ``indexlet.term``, from now on; answered at once. Idempotent.

    To be sent before the tablets hear of the index, as their writes wait for it. Unless it
    ``succeeds`` another one it fills itself: it asks the masters for the table's tablets, and them
    for their entries. A higher term begins anew; a lower one is refused (`StaleTerm`), and so is
    what another run of this server was to open (`WrongServer`): it might take entries in a term
    that is long over.
    """

    indexlet: IndexletRecord
    table: TableRecord


class ServeIndexlet(Body, frozen=True):
    """The catalog says SERVING. The same fact comes with each heartbeat reply."""

    indexlet_id: IndexletId
    term: int


class HandOverIndexlet(Body, frozen=True):
    """To the owner of an indexlet: bring everything over to ``successors``, which are open at their
    owners, and together cover its range. Idempotent; answered at once.

    A later hand-over than before: the former successors are let go. No successors: these were given
    up, and it goes on by itself. Both only if it is not closed. Raises StaleTerm: a later hand-over
    was heard of, or this one was let go.
    """

    indexlet_id: IndexletId
    term: int
    successors: tuple[IndexletLocation, ...]
    generation: int = 0
    """Which hand-over it is: the indexlet's record has it from the entry on that makes successors,
    until one makes other ones. 0: of a master of before, which names none."""


class CloseIndexlet(Body, frozen=True):
    """Acknowledge nothing any more in this or a lower term; answered when that is so.

    ``drop``: forget it as well (its index is dropped, or it is another's now). Otherwise it is kept
    CLOSED, for the successors that have everything, and is told of in reports, until it is dropped.
    There is no way back in this term. Without ``drop``, of another term, or if it is not here, it
    is refused; so it is unless that very hand-over is COMPLETE (StaleTerm, IndexletNotReady).
    """

    indexlet_id: IndexletId
    term: int
    drop: bool = False
    hand_over: int = 0
    """Without ``drop``: `HandOverIndexlet.generation`."""


class IndexletReported(Body, frozen=True):
    """The hint that saves waiting for the next heartbeat: it is COMPLETE, or its hand-over is."""

    server: ServerUuid
    incarnation: int
    report: IndexletReport


OPEN_INDEXLET = Method("indexlet.open", OpenIndexlet, IndexletReport)
SERVE_INDEXLET = Method("indexlet.serve", ServeIndexlet, IndexletReport)
HAND_OVER_INDEXLET = Method("indexlet.hand_over", HandOverIndexlet, IndexletReport)
CLOSE_INDEXLET = Method("indexlet.close", CloseIndexlet, Empty)
INDEXLET_REPORTED = Method("master.indexlet_reported", IndexletReported, Empty, ANY_MASTER)
