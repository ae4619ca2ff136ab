"""Indexlets as the catalog has them, and what masters, tservers and clients tell each other of them.

An **indexlet** is a range of an index's encoded keys, held in memory by one tserver, its owner. It
has no log: whoever gets it next fills it from the tablets. Of one term there is one owner, and a
change of owner raises the term; the owner answers under its server's lease only, so that a former
owner, whose lease has ended, can neither take entries nor leave some out.

A record exists for as long as the indexlet does; none stays, as an indexlet leaves nothing behind
that could come back. Its **successors** (``succeeds``) get its entries from itself, and nobody finds
them before one catalog entry puts them in its place. Source: design §11; SLIK (ATC 2016).
"""

from __future__ import annotations

import enum

import msgspec

from stelae.core.ids import Address, IndexId, IndexletId, ServerUuid, TableId
from stelae.core.records import TableRecord
from stelae.core.rpc import Body, Empty, Method

NO_INDEXLET = IndexletId("")
END = b""
"""``high`` of a range that has no end; as ``low`` it is below every key."""


class IndexletState(enum.StrEnum):
    FILLING = "filling"
    """Its owner takes inserts, and asks every tablet of the table for what it has."""
    SERVING = "serving"
    """It has been whole in this term: lookups find everything."""
    GONE = "gone"
    """Of the catalog entry that takes it away: dropped with its index, or replaced by successors."""


class IndexletRecord(msgspec.Struct, frozen=True):
    """One indexlet: the entries whose key is in [low, high)."""

    indexlet_id: IndexletId
    index_id: IndexId
    table_id: TableId
    low: bytes
    high: bytes
    """`END`: no end."""
    state: IndexletState
    term: int
    owner: ServerUuid
    owner_incarnation: int
    generation: int = 1
    succeeds: IndexletId = NO_INDEXLET
    """The indexlet that brings its entries here, and in whose place it is to be."""


class IndexletProgress(enum.StrEnum):
    """What a tserver does with an indexlet that it was told to open."""

    FILLING = "filling"
    FILLED = "filled"
    """It has everything, and answers lookups."""
    CLOSED = "closed"
    """Its successors have everything, and it answers nobody any more."""
    FAILED = "failed"
    """``problem`` says why: no memory, say. The masters put it elsewhere."""


class IndexletReport(Body, frozen=True):
    """How an indexlet is, in every heartbeat of its owner to the leader master."""

    indexlet_id: IndexletId
    term: int
    progress: IndexletProgress
    problem: str = ""
    """Why it failed; or what the fill waits for."""
    entry_count: int = 0
    memory_bytes: int = 0
    tablets_done: int = 0
    """While it fills: so many tablets have given all that they have."""
    tablets: int = 0
    """Of so many."""
    middle: bytes = b""
    """A key with about as many entries before as after it, at which it can be split; empty: none."""
    successors: tuple[IndexletId, ...] = ()
    """For whom it makes way."""
    copied: int = 0
    """So many of its entries its successors have."""


class OpenIndexlet(Body, frozen=True):
    """Own this indexlet in ``indexlet.term``, and fill it: from the tablets of the table, or (if it
    succeeds another) with what that one brings.

    Answered at once; progress comes by heartbeat. A repeated call with the same term changes
    nothing, but that a newer ``table`` counts; a lower term than one seen is refused.
    """

    table: TableRecord
    indexlet: IndexletRecord


class CloseIndexlet(Body, frozen=True):
    """Forget an indexlet of this or a lower term: dropped, replaced, or another's."""

    indexlet_id: IndexletId
    term: int


class Successor(Body, frozen=True):
    indexlet: IndexletRecord
    address: Address


class HandOverIndexlet(Body, frozen=True):
    """Bring everything to ``successors``, forward to them what comes meanwhile, and then close.
    None: those for whom it makes way were given up; be as before."""

    indexlet_id: IndexletId
    term: int
    successors: tuple[Successor, ...]


OPEN_INDEXLET = Method("tserver.open_indexlet", OpenIndexlet, Empty)
CLOSE_INDEXLET = Method("tserver.close_indexlet", CloseIndexlet, Empty)
HAND_OVER_INDEXLET = Method("tserver.hand_over_indexlet", HandOverIndexlet, Empty)


# ---- where they are -------------------------------------------------------------------------


class LocateIndexlets(Body, frozen=True):
    """Where the indexlets of an index are. Linearizable: the leader answers.

    Refused with `IndexNotFound` if the index was dropped, for good: ids are never used again.
    """

    table_id: TableId
    index_id: IndexId


class IndexletLocation(Body, frozen=True):
    """``address`` is empty while its owner is not live; one that fills has an address."""

    indexlet: IndexletRecord
    address: Address
    problem: str = ""


class IndexletLocations(Body, frozen=True):
    """In the order of their ranges; together they cover all keys."""

    indexlets: tuple[IndexletLocation, ...]


LOCATE_INDEXLETS = Method("master.locate_indexlets", LocateIndexlets, IndexletLocations)
