"""What the kernels of secondary indexes are: `kernels.index_compiled` (numba) and their plain
reference.

**Entries** are byte strings, held as Arrow holds them: n + 1 offsets and the data. **Text** within
an entry is escaped, so that it says where it ends and sorts as it did: a zero byte is written as
``00 FF``, and ``00 01`` ends it.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stelae.storage.kernels.api import I32, I64, U8, U64

U32: TypeAlias = NDArray[np.uint32]


class IndexKernels(Protocol):
    """Arrays are one-dimensional, contiguous and aligned; inputs may be read-only.

    ``cursor`` and arguments named ``out`` are written to.
    """

    def text_lengths(self, offsets: I32, data: U8, out: I64) -> None:
        """Add to each of ``out`` the length of the text once it is escaped and ended."""

    def put_text(self, offsets: I32, data: U8, cursor: I64, out: U8) -> None:
        """Write each text, escaped and ended, at its cursor, and move the cursor on."""

    def put_parts(self, parts: U8, width: int, cursor: I64, out: U8) -> None:
        """Write each ``width`` bytes of ``parts`` at their cursor, and move the cursor on."""

    def find_text(self, data: U8, ends: I64, cursor: I64, out: I64) -> int:
        """The length of the text that begins at each cursor, not escaped; the cursor moves past it.

        Returns the first place at which there is none before ``ends``, or -1."""

    def take_text(self, data: U8, cursor: I64, offsets: I32, out: U8) -> None:
        """Write the text that begins at each cursor, not escaped, to its place by ``offsets``."""

    def take_heads(self, offsets: I32, data: U8, out: U64, skip: I64) -> bool:
        """Of each entry eight bytes as a number, zeros for what it has not: those after the
        ``skip[0]`` bytes, which is written, that all have in common. Returns whether the entries
        are in order."""

    def sort_ties(self, offsets: I32, data: U8, heads: U64, skip: int, out: I64) -> None:
        """Finish an order that sorts ``heads``, as `take_heads` gave them: that of entries; equal
        ones as they come."""

    def find_entry(self, offsets: I32, data: U8, entry: U8) -> int:
        """Of sorted entries the place of the first that is not below ``entry``."""

    def find_range(self, offsets: I32, data: U8, low: U8, high: U8) -> tuple[int, int]:
        """Of sorted entries the place of the first that is not below ``low``, and the end of those
        below ``high``; empty: no bound."""

    def merge_entries(
        self,
        offsets: I32,
        data: U8,
        bounds: I64,
        writers: U32,
        sequences: U64,
        epochs: U64,
        out: I64,
    ) -> int:
        """Merge runs of sorted entries, each from one of ``bounds`` to the next.

        Of equal ones, also within one run, stays that of the greatest stamp: the epoch of its
        writer, then its sequence. Writes the places of those that stay, and returns their number.
        """
