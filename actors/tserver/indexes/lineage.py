"""Which tablets one indexlet has heard of; and what parts stand for of those that were split.

A tablet's number says which tablets it is a part of (`stelae.core.schema.shares`). So whoever hears
of a part knows that these are over: what they still say is late, and refused. Their entries count
until each row of theirs belongs to a part that has told what it has: a part's entries have stamps
of its own, in terms that are above theirs. Then nothing of theirs counts any more (`OVER`).

Invariant: of a tablet that is over nothing is to be compared if, and only if, its floor is `OVER`.
Source: `docs/decisions.md`, §41.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stelae.core.errors import InvalidArgument, StaleTerm
from stelae.core.messages.indexes import TabletStamp
from stelae.core.records.records import TableRecord
from stelae.core.schema.shares import ancestors_of, is_made_up, is_number
from stelae.storage.indexes.indexlet import OVER, IndexletEntries


class Known(msgspec.Struct):
    """What is known of one tablet."""

    epoch: int = 0
    first_incomplete: int = 0
    is_compared: bool = True
    """Nothing is here that it does not know of, but for what it will take out itself."""
    doubts: int = 0
    """So often it was to be compared."""
    may_lack: bool = False
    """Some of its rows may have no entry here until it is compared."""

    def doubt(self) -> None:
        """It is to be compared with what the tablet says from now on."""
        self.is_compared = False
        self.doubts += 1

    def compared(self) -> None:
        """What it has is here."""
        self.is_compared, self.may_lack = True, False


class Lineage:
    """The tablets of one indexlet, by number."""

    def __init__(self, table: TableRecord, entries: IndexletEntries) -> None:
        self.known: dict[int, Known] = {}
        self._table = table
        self._count = table.partitioning.tablet_count
        self._entries = entries
        self._over: set[int] = set()
        """Numbers of tablets that were split, as their parts show."""

    def check_number(self, number: int) -> None:
        """Raises InvalidArgument: the table has no tablet of this number."""
        if not is_number(number, self._count):
            raise InvalidArgument(f"tablet {number} of {self._count} of table {self._table.name!r}")

    def is_over(self, number: int) -> bool:
        """Whether the tablet was split."""
        return number in self._over

    def of(self, number: int) -> Known:
        """What is known of a tablet that is there, or was; it is to be compared if it is new."""
        known = self.known.get(number)
        if known is None:
            known = self.known[number] = Known(is_compared=False)
            self._note_part(number)
        return known

    def _note_part(self, number: int) -> None:
        for ancestor in ancestors_of(number, self._count):
            if ancestor in self._over:
                return  # so are those that it is a part of
            self._over.add(ancestor)
            known = self.known.get(ancestor)
            if known is not None:
                known.doubt()

    def hear(self, stamp: TabletStamp) -> tuple[Known, bool]:
        """Take note of a tablet's epoch; whether it is a new one. Raises StaleTerm: it is an old
        one; InvalidArgument: there is no such tablet."""
        number, is_new = stamp.number, stamp.number not in self.known
        if is_new:
            self.check_number(number)
        if number in self._over:
            what = f"epoch of tablet {number}, which was split,"
            raise StaleTerm(what, stamp.epoch, stamp.epoch + 1)
        known = self.of(number)
        if stamp.epoch < known.epoch:
            raise StaleTerm(f"epoch of tablet {number}", stamp.epoch, known.epoch)
        if stamp.epoch > known.epoch:
            if not is_new:
                known.doubt()
            known.epoch, known.first_incomplete, is_new = stamp.epoch, 0, True
        known.first_incomplete = max(known.first_incomplete, stamp.first_incomplete)
        return known, is_new

    def to_compare(self) -> Iterator[tuple[int, Known]]:
        """The tablets that are to be asked what they have, in the order of their numbers."""
        for number, known in sorted(self.known.items()):
            if not known.is_compared and number not in self._over:
                yield number, known

    @property
    def is_compared(self) -> bool:
        """Whether nothing is left to be compared."""
        return all([known.is_compared for known in self.known.values()])

    @property
    def lacking(self) -> int | None:
        """The number of a tablet of which entries may be missing; None: of no tablet."""
        return next((number for number, known in self.known.items() if known.may_lack), None)

    def settle(self) -> bool:
        """Let go of what was split, where all parts have told what they have; whether some was.

        A part need not be compared *now*: what it had when it did, and all it has put in since, is
        here with its own stamps.
        """
        told = {number for number in self.known if self._entries.floor(number).epoch}
        is_some = False
        for number in self._over:
            known = self.known.get(number)
            if known is None or known.is_compared:
                continue
            if is_made_up(number, told, self._count):
                self._entries.set_floor(number, OVER)
                known.compared()
                is_some = True
        return is_some

    def learned(self) -> None:
        """What others knew was taken in: what is over is compared only if its floor says so."""
        for number in self._over:
            known = self.known.get(number)
            if known is None:
                continue
            if self._entries.floor(number) == OVER:
                known.compared()
            else:
                known.is_compared = False
