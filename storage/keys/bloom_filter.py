"""Which keys a segment may hold rows of, in a byte a row: a Bloom filter over hashes of keys.

The log may hold more of a segment than memory does, and what it holds is asked for when a tombstone
is to be forgotten. "No" is certain, "yes" is wrong for about one key in thirty: then a tombstone
stays a while longer.

Source: Kirsch, Mitzenmacher, "Less Hashing, Same Performance: Building a Better Bloom Filter".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stelae.storage.kernels.api import U64, Bools

_BITS_PER_KEY = 8
_PLACES = 3
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


class KeyFilter:
    """Immutable; may be made and asked on any thread."""

    __slots__ = ("_bits", "_count")

    def __init__(self, hashes: U64) -> None:
        """``hashes``: of all keys, repeated or not; their bits are mixed (`KeyCodec`)."""
        self._count = 8 * max(1, -(-len(hashes) * _BITS_PER_KEY // 8))
        bits = np.zeros(self._count, np.bool_)
        for number in range(_PLACES):
            bits[self._places(hashes, number)] = True
        self._bits: NDArray[np.uint8] = np.packbits(bits, bitorder="little")

    @property
    def size_bytes(self) -> int:
        return int(self._bits.nbytes)

    def may_have(self, hashes: U64) -> Bools:
        """Which of these keys it may have been made of; the others it was not."""
        found = np.ones(len(hashes), np.bool_)
        for number in range(_PLACES):
            places = self._places(hashes, number)
            found &= (self._bits[places >> 3] >> (places & 7).astype(np.uint8) & 1).astype(np.bool_)
        return found

    def _places(self, hashes: U64, number: int) -> NDArray[np.int64]:
        mixed = (hashes & _LOW) + np.uint64(number) * (hashes >> _32 | np.uint64(1))
        return ((mixed & _LOW) * np.uint64(self._count) >> _32).astype(np.int64)
