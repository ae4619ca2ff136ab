"""How a tablet gives way to its successor, which has another durability: what servers say of it.

A tablet of a table whose durability is altered is the **source**; the leader master gives it a
**successor** of the same key range, which nobody finds yet. The source brings everything over,
refuses writes for the last of it, then reads as well, and says so; one catalog entry then puts the
successor in its place (`stelae.coordinator.ddl.succession`). `docs/decisions.md`, §34.
"""

from __future__ import annotations

import enum

import msgspec

from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.rpc import BY_TABLET, Body, Method


class SuccessionStage(enum.IntEnum):
    """How far a source has given way; it says so in its log, or once for all of an owner's term."""

    OPEN = 0
    """Reads and writes go on."""
    FENCED = 1
    """New writes are refused: the last of what there is goes to the successor."""
    CLOSED = 2
    """The successor has everything: reads are refused as well, until the masters have decided."""


class Succession(msgspec.Struct, frozen=True, array_like=True):
    """For whom a tablet makes way; an open one for nobody."""

    successor: TabletId = TabletId("")
    stage: SuccessionStage = SuccessionStage.OPEN

    def after(
        self, successor: TabletId, stage: SuccessionStage, *, by_masters: bool = False
    ) -> Succession:
        """What an order makes of it. One that came too late changes nothing: from CLOSED leads no
        way but the masters' word that this very successor was given up."""
        same = successor == self.successor
        match stage:
            case SuccessionStage.OPEN:
                may = same and (self.stage is SuccessionStage.FENCED or by_masters)
                return NO_SUCCESSION if may else self
            case SuccessionStage.FENCED:
                closed = self.stage is SuccessionStage.CLOSED
                return self if closed else Succession(successor, stage)
            case SuccessionStage.CLOSED:
                fenced = same and self.stage is SuccessionStage.FENCED
                return Succession(successor, stage) if fenced else self


NO_SUCCESSION = Succession()


class SuccessionReport(msgspec.Struct, frozen=True, array_like=True):
    """What a source says in its reports. Of a tablet with replicas, its leader does."""

    successor: TabletId
    stage: SuccessionStage
    copied: int = 0
    """The successor has all versions below."""
    versions: int = 0
    """So many the source has given."""
    is_lost: bool = False
    """The successor cannot be brought up to the source any more: another one is needed."""
    problem: str = ""
    lacks_room: bool = False
    """The successor refused the last piece: there is no memory, or no disk, for it just now."""


class TransferTablet(Body, frozen=True):
    """To a tablet's owner, or leader: bring all you have over to your successor, and make way.

    Level-triggered: sent again with wherever the successor is served now. Answered at once; the
    rest comes with reports. ``successor`` empty: there is none. ``release``: that one was given up
    for good; make way for it no more.
    """

    tablet_id: TabletId
    term: int
    """The owner's; 0: of a tablet with replicas, whose leader it is."""
    successor: TabletId
    address: Address = Address("")
    server: ServerUuid = ServerUuid("")
    release: TabletId = TabletId("")


class ImportChanges(Body, frozen=True):
    """From a source: rows and tombstones with the versions that they have there.

    The blob, if there is one, is an Arrow IPC stream of one batch of stored columns, ascending by
    version: what there is, and was not overwritten, of versions from ``from_version`` on and below
    ``next_version``. Taken only if ``from_version`` is the receiver's next version, so a repeated
    or late call changes nothing; answered once it is durable.
    """

    tablet_id: TabletId
    from_version: int
    """0: to hear what is there already."""
    next_version: int
    results: tuple[tuple[str, int, int, bytes], ...] = ()
    """What requests of clients came to (`stelae.storage.entries.entry.Result`)."""


class ImportReply(Body, frozen=True):
    next_version: int
    """All versions below have been brought over, durably."""


TRANSFER_TABLET = Method("tserver.transfer_tablet", TransferTablet, SuccessionReport)
IMPORT_CHANGES = Method("tserver.import_changes", ImportChanges, ImportReply, BY_TABLET)
