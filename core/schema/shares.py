"""Which of a split tablet's rows each of its parts has.

A **share** is what has the same first bits of a scrambled key hash. The scramble is a product with
an odd constant: its upper bits depend on all bits of the hash, so a share's rows still spread over
the whole of its index, whose homes go by the hash's upper bits, and over what goes by lower ones.
Shares nest: each can be cut again, and all that were cut of a tablet together have what it had.

A tablet's **number** in its table says place and share: ``place + tablet_count * code``, where the
code of the whole is 0, of its halves 1 and 2, of its quarters 3 to 6, and so on. Numbers of tablets
that were never split are what they always were. Clients and servers both compute this, and logs
are read by it: it must never change.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

import msgspec

SCRAMBLE = 0x9E3779B97F4A7C15
"""2^64 by the golden ratio (Knuth, 6.4): odd, and no power of two away from a round number."""
BITS_MAX = 10
NUMBERS_MAX = 1 << 15
"""Clients sort rows by their tablet's number in 16 bits."""
_MASK = (1 << 64) - 1


class Share(msgspec.Struct, frozen=True, array_like=True, order=True):
    """The rows whose scrambled hash begins with ``bits`` bits of this value."""

    bits: int = 0
    value: int = 0

    def has(self, key_hash: int) -> bool:
        """Whether a row with this key hash belongs to it."""
        return not self.bits or (key_hash * SCRAMBLE & _MASK) >> (64 - self.bits) == self.value

    def cut(self, parts: int) -> tuple[Share, ...]:
        """So many shares, a power of two, that together have what this one has."""
        more = parts.bit_length() - 1
        assert parts == 1 << more, "shares are cut by bits"
        first = self.value << more
        return tuple(Share(self.bits + more, first + part) for part in range(parts))

    def contains(self, other: Share) -> bool:
        """Whether all rows of the other one belong to this one."""
        return other.bits >= self.bits and other.value >> (other.bits - self.bits) == self.value

    @property
    def code(self) -> int:
        return (1 << self.bits) - 1 + self.value

    @staticmethod
    def of_code(code: int) -> Share:
        bits = (code + 1).bit_length() - 1
        return Share(bits, code + 1 - (1 << bits))


ALL = Share()


def place_of(number: int, tablet_count: int) -> int:
    """The place in the table's partitioning of the tablet with this number."""
    return number % tablet_count


def share_of(number: int, tablet_count: int) -> Share:
    """Which rows of its place the tablet with this number has."""
    return Share.of_code(number // tablet_count)


def number_of(place: int, share: Share, tablet_count: int) -> int:
    """The number of the tablet that has this share of a place."""
    return place + tablet_count * share.code


def wrong_places(numbers: Iterable[int], tablet_count: int) -> list[int]:
    """The places of a table of which tablets with these numbers do not have each row once."""
    shares: dict[int, list[Share]] = {place: [] for place in range(tablet_count)}
    for number in numbers:
        shares[place_of(number, tablet_count)].append(share_of(number, tablet_count))
    return [place for place, found in shares.items() if not _are_whole(found)]


def _are_whole(shares: list[Share]) -> bool:
    """Whether each row is in one of them: in order, each begins where the one before ends."""
    end = 0
    for share in sorted(shares, key=lambda share: share.value << (BITS_MAX - share.bits)):
        if share.bits > BITS_MAX or share.value << (BITS_MAX - share.bits) != end:
            return False
        end += 1 << (BITS_MAX - share.bits)
    return end == 1 << BITS_MAX


def may_be_cut(number: int, parts: int, tablet_count: int) -> bool:
    """Whether parts of the tablet with this number would have numbers that may be."""
    last = share_of(number, tablet_count).cut(parts)[-1]
    place = place_of(number, tablet_count)
    return last.bits <= BITS_MAX and number_of(place, last, tablet_count) < NUMBERS_MAX


def is_number(number: int, tablet_count: int) -> bool:
    """Whether a tablet of a table with so many places may have this number."""
    if not 0 <= number < max(NUMBERS_MAX, tablet_count):
        return False
    return share_of(number, tablet_count).bits <= BITS_MAX


def ancestors_of(number: int, tablet_count: int) -> Iterator[int]:
    """The numbers of the tablets that the one with this number may be a part of."""
    place, code = place_of(number, tablet_count), number // tablet_count
    while code:
        code = (code - 1) // 2
        yield place + tablet_count * code


def is_made_up(number: int, parts: Container[int], tablet_count: int) -> bool:
    """Whether parts with these numbers together have each row of the tablet with this number, which
    itself does not count."""
    place, code = place_of(number, tablet_count), number // tablet_count
    halves = [place + tablet_count * (2 * code + half) for half in (1, 2)]
    if not is_number(halves[-1], tablet_count):
        return False
    return all(half in parts or is_made_up(half, parts, tablet_count) for half in halves)
