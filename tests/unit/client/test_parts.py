"""`stelae.client.input.split_tablets` and `part`: calls are cut by the tablets that there are
now."""

from __future__ import annotations

import numpy as np
import pytest

from stelae.client.input.split_tablets import Parts
from stelae.client.routing.part import CutReply, Part, versions_in
from stelae.core.messages.rows import WriteOp, WriteReply
from stelae.core.schema.shares import share_of

NUMBERS = [0, 3, 11, 13]
"""Of a table with two places: place 1 in a half and two quarters."""


def test_rows_go_to_the_tablet_that_has_their_share() -> None:
    """Many at once as each alone; places with one tablet stay as they are."""
    parts = Parts(NUMBERS, 2)
    hashes = np.arange(400, dtype=np.uint64) * np.uint64(0x1234567812345)
    places = np.arange(400, dtype=np.int32) % 2
    numbers = parts.refine(places, hashes)
    assert sorted(set(numbers.tolist())) == NUMBERS
    for place, key_hash, number in zip(places, hashes.tolist(), numbers.tolist(), strict=True):
        assert number == (parts.number(1, key_hash) if place else 0)
        assert share_of(number, 2).has(key_hash)


def test_the_tablets_within_one_that_was_split_are_found() -> None:
    """Also in two steps."""
    parts = Parts(NUMBERS, 2)
    assert parts.within(1) == [3, 11, 13]
    assert parts.within(5) == [11, 13]
    assert parts.within(17) == []
    assert [parts.place(number) for number in NUMBERS] == [0, 1, 1, 1]


def part_of(count: int) -> Part:
    rows = tuple((row,) for row in range(count))
    return Part(1, WriteOp.UPSERT, rows, (), tuple(range(count)), 1)


@pytest.mark.parametrize(
    ("reply", "versions"),
    [
        (WriteReply(100, 6), [102, 105]),  # the tablet that was split has done all of it
        (WriteReply(100, 3), [101, 102]),  # its part has, which was split in turn
        (WriteReply(100, 2), [100, 101]),
        (CutReply(7, 2, np.array([7, 9])), [7, 9]),
    ],
)
def test_an_answer_says_of_which_cut_it_is(reply: WriteReply, versions: list[int]) -> None:
    """By its number of rows."""
    cut = part_of(6).some(np.array([0, 2, 5]), 3).some(np.array([1, 2]), 7)
    assert cut.rows == ((2,), (5,))
    assert cut.expected == (2, 5)
    assert versions_in(reply, cut).tolist() == versions
