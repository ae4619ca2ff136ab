"""Which tablets have which rows of a table of which some tablets were split at a recovery.

A call is cut by the partitioning as ever; what falls into a place that has several tablets by now
is cut once more, by the shares of these (`stelae.core.schema.shares`). A call that was cut for a
tablet that is split meanwhile ends in `WasSplit`: whoever cut it cuts it again, under the same
request id.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stelae.core.errors import StelaeError
from stelae.core.schema.shares import Share, place_of, share_of
from stelae.storage.kernels.api import I32, U64
from stelae.storage.segments.shares import share_mask


class WasSplit(Exception):
    """The tablet of this number is none any more: its parts are in its place. The call that meets
    it was not answered; ``tried`` is how its last attempt ended, if there was one."""

    def __init__(self, number: int, tried: StelaeError | None = None) -> None:
        super().__init__(number, tried)
        self.number = number
        self.tried = tried


class Parts:
    """The tablets of a table, by place; of one state of the catalog."""

    def __init__(self, numbers: Iterable[int], tablet_count: int) -> None:
        """``tablet_count``: of the table's partitioning."""
        self._count = tablet_count
        self._of_place: dict[int, list[tuple[Share, int]]] = {}
        for number in numbers:
            if number >= tablet_count:
                place = place_of(number, tablet_count)
                share = share_of(number, tablet_count)
                self._of_place.setdefault(place, []).append((share, number))

    @property
    def is_split(self) -> bool:
        """Whether some place has several tablets."""
        return bool(self._of_place)

    def place(self, number: int) -> int:
        """For which requests are numbered: what a tablet knows of them its parts know as well."""
        return place_of(number, self._count)

    def has(self, place: int) -> bool:
        """Whether this place has several tablets."""
        return place in self._of_place

    def number(self, place: int, key_hash: int) -> int:
        """The tablet of a row of such a place."""
        for share, number in self._of_place[place]:
            if share.has(key_hash):
                return number
        raise AssertionError("the parts of a tablet have all of its rows")

    def refine(self, places: I32, hashes: U64) -> I32:
        """The tablet of each row, from its place and key hash."""
        numbers = places.copy()
        for place, parts in self._of_place.items():
            rows = np.flatnonzero(places == place)
            for share, number in parts if len(rows) else ():
                numbers[rows[share_mask(share, hashes[rows])]] = number
        return numbers

    def within(self, number: int) -> list[int]:
        """The tablets that have the rows of the one that had this number."""
        whole = share_of(number, self._count)
        parts = self._of_place.get(self.place(number), ())
        return [part for share, part in parts if whole.contains(share)]
