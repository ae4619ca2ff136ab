"""`stelae.core.schema.shares` and `stelae.storage.segments.shares`: each row of a split tablet is
in one part."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.schema.schema import RowKind
from stelae.core.schema.shares import (
    BITS_MAX,
    NUMBERS_MAX,
    Share,
    ancestors_of,
    is_made_up,
    is_number,
    may_be_cut,
    number_of,
    place_of,
    share_of,
    wrong_places,
)
from stelae.storage.keys.merge import Summary, merge
from stelae.storage.segments.shares import only_share, share_mask

HASHES = st.integers(0, (1 << 64) - 1)
SHARES = st.integers(0, BITS_MAX).flatmap(
    lambda bits: st.builds(Share, st.just(bits), st.integers(0, (1 << bits) - 1))
)


@given(SHARES, st.sampled_from([1, 2, 4, 8]), HASHES)
def test_a_row_of_a_share_is_in_one_of_its_parts(share: Share, parts: int, key_hash: int) -> None:
    """And a row of no other share is in any."""
    held = [part for part in share.cut(parts) if part.has(key_hash)]
    assert len(held) == share.has(key_hash)
    assert all(share.contains(part) for part in share.cut(parts))


@given(SHARES, st.lists(HASHES, max_size=50))
def test_many_rows_are_judged_as_each_alone(share: Share, hashes: list[int]) -> None:
    """By clients, servers and recoveries alike."""
    mask = share_mask(share, np.array(hashes, np.uint64))
    assert mask.tolist() == [share.has(each) for each in hashes]


@given(SHARES, st.integers(1, 1024), st.data())
def test_a_number_says_place_and_share(share: Share, count: int, data: st.DataObject) -> None:
    """The whole of a place has the number that it always had."""
    place = data.draw(st.integers(0, count - 1))
    number = number_of(place, share, count)
    assert (place_of(number, count), share_of(number, count)) == (place, share)
    assert number_of(place, Share(), count) == place


def test_which_share_a_row_has_never_changes() -> None:
    """Logs and clients go by it: these are written down."""
    rows = [0, 1, 2, 12345678901234567890, (1 << 64) - 1]
    first = [next(s.value for s in Share().cut(8) if s.has(row)) for row in rows]
    assert first == [0, 4, 1, 4, 3]


def test_shares_of_even_hashes_are_even() -> None:
    """Whichever bits vary: neighbours in the index, or what buckets are cut by."""
    for shift in (0, 20, 40, 54):
        hashes = np.arange(1 << 10, dtype=np.uint64) << np.uint64(shift)
        counts = [int(share_mask(part, hashes).sum()) for part in Share().cut(4)]
        assert sum(counts) == 1 << 10
        assert min(counts) > 200


def test_numbers_stay_within_what_clients_sort_by() -> None:
    """A table of 1024 places may have quarters; eighths of the last would be too high."""
    assert may_be_cut(1023, 4, 1024)
    assert not may_be_cut(1023, 32, 1024)
    assert not may_be_cut(NUMBERS_MAX - 1, 2, 1)


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([0, 1], []),
        ([0, 3, 5], []),  # place 1 in halves
        ([0, 3], [1]),
        ([0, 1, 3, 5], [1]),
        ([0, 3, 11, 13], []),  # and its other half in quarters
        ([0, 3, 5, 13], [1]),
        ([1], [0]),
    ],
)
def test_places_with_rows_that_nobody_or_several_have_are_found(
    numbers: list[int], wrong: list[int]
) -> None:
    """By the numbers of a table with two places."""
    assert wrong_places(numbers, 2) == wrong


@given(
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=120),
    st.integers(1, 5),
    st.sampled_from([1, 2, 4]),
)
def test_the_merges_of_all_parts_are_the_merge_of_the_whole(
    rows: list[tuple[int, bool]], segments: int, parts: int
) -> None:
    """Each winner is in one part, and none of a part's winners belongs to another."""
    scrambled = np.array([row * 0x5851F42D4C957F2D % (1 << 64) for row, _ in rows], np.uint64)
    kinds = np.array([RowKind.TOMBSTONE if dead else RowKind.ROW for _, dead in rows], np.uint8)
    summaries = [
        Summary(
            scrambled[at::segments],
            np.arange(len(rows), dtype=np.uint64)[at::segments] + np.uint64(1),
            kinds[at::segments],
        )
        for at in range(segments)
    ]
    whole = merge(summaries)
    found: list[tuple[int, int]] = []
    for share in Share().cut(parts):
        part = merge([only_share(summary, share) for summary in summaries])
        assert part.next_version == whole.next_version, "versions go on above all of the log's"
        hashes, positions = part.index.entries()
        assert all(share.has(each) for each in hashes.tolist())
        found += zip(hashes.tolist(), positions.tolist(), strict=True)
    hashes, positions = whole.index.entries()
    expected = zip(hashes.tolist(), positions.tolist(), strict=True)
    assert sorted(found) == sorted(expected)


@given(SHARES, st.integers(1, 8), st.data())
def test_a_number_says_which_tablets_it_may_be_a_part_of(
    share: Share, count: int, data: st.DataObject
) -> None:
    """Those of its place whose shares contain its own, the smallest first."""
    place = data.draw(st.integers(0, count - 1))
    number = number_of(place, share, count)
    shares = [Share(bits, share.value >> (share.bits - bits)) for bits in range(share.bits)]
    wanted = [number_of(place, each, count) for each in reversed(shares)]
    assert list(ancestors_of(number, count)) == wanted
    assert all(share_of(each, count).contains(share) for each in wanted)


@given(
    st.lists(st.integers(0, 5).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, 31)))),
    st.integers(0, 2).flatmap(lambda b: st.tuples(st.just(b), st.integers(0, 3))),
)
def test_parts_make_up_a_tablet_if_they_have_each_of_its_rows(
    drawn: list[tuple[int, int]], whole: tuple[int, int]
) -> None:
    """Counted by the smallest shares that occur; the tablet itself and larger ones do not count."""
    shares = [Share(bits, value % (1 << bits)) for bits, value in drawn]
    wanted = Share(whole[0], whole[1] % (1 << whole[0]))
    smaller = [each for each in shares if wanted.contains(each) and each != wanted]
    smallest = [Share(6, value) for value in range(64)]
    has_all = all(any(s.contains(x) for s in smaller) for x in smallest if wanted.contains(x))
    numbers = {number_of(1, each, 2) for each in shares}
    assert is_made_up(number_of(1, wanted, 2), numbers, 2) == has_all
    assert not is_made_up(number_of(0, wanted, 2), numbers, 2), "of another place"


def test_which_numbers_may_be() -> None:
    """Tables with very many places have them as ever."""
    assert all(is_number(number, 2) for number in (0, 1, 2, 5, 2045))
    assert not any(is_number(number, 2) for number in (-1, NUMBERS_MAX, 2 * ((1 << 11) - 1)))
    assert is_number(NUMBERS_MAX + 5, NUMBERS_MAX + 6)
