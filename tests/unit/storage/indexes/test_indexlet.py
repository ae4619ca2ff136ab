"""All entries of an indexlet against a plain dict: whatever comes in whatever order."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.schema.indexes import END, in_range
from stelae.storage.indexes import indexlet as indexlet_storage
from stelae.storage.indexes.indexlet import Floor, IndexletEntries
from stelae.storage.indexes.runs import REMOVED
from stelae.storage.kernels import index_compiled as index_kernels
from stelae.storage.kernels import index_reference as index_kernels_reference

ENTRY = st.text("abc", min_size=1, max_size=4).map(str.encode)
SETTINGS = settings(deadline=None, derandomize=True, max_examples=150)


class Model:
    """Of each entry the newest word, and of each tablet its floor."""

    def __init__(self) -> None:
        self.words: dict[bytes, tuple[int, int, bool, int]] = {}
        self.floors: dict[int, tuple[int, int]] = {}

    def say(self, entry: bytes, number: int, epoch: int, sequence: int, *, is_there: bool) -> None:
        """A word of one tablet; entries belong to one each."""
        word = (epoch, sequence, is_there, number)
        if entry not in self.words or self.words[entry][:2] < word[:2]:
            self.words[entry] = word

    def live(self) -> list[bytes]:
        """What is there, in order."""
        return sorted(
            entry
            for entry, (epoch, sequence, is_there, number) in self.words.items()
            if is_there and (epoch, sequence) >= self.floors.get(number, (0, 0))
        )


def tablet_of(entry: bytes) -> int:
    """Every entry names one row, which is of one tablet."""
    return entry[0] % 2


class Pair:
    """An indexlet and its model, which are told the same."""

    def __init__(self, kernels: Any) -> None:
        self.entries = IndexletEntries(kernels)
        self.model = Model()
        self.sequence = 0

    def put(self, epoch: int, some: list[tuple[bytes, int]], *, is_removal: bool) -> None:
        """Each entry with a sequence of its own, some of them long past."""
        for number in (0, 1):
            mine = [(e, s * 1000 + self._next()) for e, s in some if tablet_of(e) == number]
            writer = self.entries.writer(number, epoch)
            sequences, entries = [s for _, s in mine], [e for e, _ in mine]
            self.entries.put(writer, sequences, entries, is_removal=is_removal)
            for entry, sequence in mine:
                self.model.say(entry, number, epoch, sequence, is_there=not is_removal)

    def put_many(self, epoch: int, some: list[bytes], *, is_removal: bool) -> None:
        """One sequence for all of a tablet."""
        for number in (0, 1):
            mine = [entry for entry in some if tablet_of(entry) == number]
            writer, sequence = self.entries.writer(number, epoch), 3000 + self._next()
            array = pa.array(mine, pa.binary())
            self.entries.add(self.entries.sorting(writer, sequence, array, is_removal=is_removal)())
            for entry in mine:
                self.model.say(entry, number, epoch, sequence, is_there=not is_removal)

    def floor(self, number: int, epoch: int, sequence: int) -> None:
        self.entries.set_floor(number, Floor(epoch, sequence))
        old = self.model.floors.get(number, (-1, 0))
        self.model.floors[number] = max(old, (epoch, sequence))

    def merge(self) -> None:
        plan = self.entries.merge_plan()
        if plan is not None:
            self.entries.install(plan, plan.make())

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence

    def check(self, low: bytes, high: bytes, limit: int) -> None:
        """Both directions, whole and in pieces, any range."""
        live = self.model.live()
        assert list(self.entries.live_entries()) == live
        wanted = [entry for entry in live if in_range(entry, low, high)]
        found, is_more = self.entries.lookup(low, high, limit)
        assert found == wanted[:limit]
        assert is_more or len(wanted) <= limit
        found, is_more = self.entries.lookup(low, high, limit, is_reverse=True)
        assert found == wanted[::-1][:limit]
        assert is_more or len(wanted) <= limit


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            st.integers(1, 2),
            st.lists(st.tuples(ENTRY, st.integers(0, 5)), max_size=8),
            st.booleans(),
        ),
        st.tuples(
            st.just("put_many"), st.integers(1, 2), st.lists(ENTRY, max_size=20), st.booleans()
        ),
        st.tuples(st.just("floor"), st.integers(0, 1), st.integers(1, 2), st.integers(0, 4000)),
        st.tuples(st.just("merge"), st.none(), st.none(), st.none()),
    ),
    max_size=25,
)


@pytest.mark.parametrize("kernels", [index_kernels, index_kernels_reference])
@pytest.mark.parametrize("small", [0, 256])
@SETTINGS
@given(STEPS, ENTRY, ENTRY | st.just(END), st.integers(1, 9), st.sampled_from([2, 5, 4096]))
def test_an_indexlet_equals_a_plain_dict(
    kernels: Any,
    small: int,
    steps: list[Any],
    low: bytes,
    high: bytes,
    limit: int,
    tail: int,
) -> None:
    """Of each entry the newest word counts, in whatever order all of them come."""
    pair = Pair(kernels)
    # Nothing is forgotten while older words may come, as here they do all the time.
    pair.entries.keeps_removals = True
    with (
        patch.object(indexlet_storage, "TAIL_MAX", tail),
        patch.object(indexlet_storage, "_SMALL", small),
    ):
        for kind, one, two, three in steps:
            match kind:
                case "put":
                    pair.put(one, two, is_removal=three)
                case "put_many":
                    pair.put_many(one, two, is_removal=three)
                case "floor":
                    pair.floor(one, two, three)
                case "merge":
                    pair.merge()
        pair.check(low, high, limit)


@SETTINGS
@given(st.lists(st.tuples(ENTRY, st.booleans()), max_size=120))
def test_removals_are_forgotten_once_nothing_is_below_them(words: list[tuple[bytes, bool]]) -> None:
    """With words in order, merging everything leaves what is there and no more."""
    entries, model = IndexletEntries(index_kernels), Model()
    with patch.object(indexlet_storage, "TAIL_MAX", 4):
        for sequence, (entry, is_there) in enumerate(words):
            writer = entries.writer(tablet_of(entry), 1)
            entries.put(writer, [sequence], [entry], is_removal=not is_there)
            model.say(entry, tablet_of(entry), 1, sequence, is_there=is_there)
            while sequence % 7 == 0 and (plan := entries.merge_plan()) is not None:
                entries.install(plan, plan.make())
        assert list(entries.live_entries()) == model.live()
        entries._wants_all = True
        while (plan := entries.merge_plan()) is not None:
            entries.install(plan, plan.make())
        assert list(entries.live_entries()) == model.live()
        held = [run.entry(i) for run in entries.runs for i in range(run.length)]
        assert sorted(held) == model.live()
        assert all(not (run.sequences & np.uint64(REMOVED)).any() for run in entries.runs)


def test_many_entries_are_in_few_runs_and_memory_is_told() -> None:
    """A hundred thousand entries, one by one: a handful of runs, and bytes for each."""
    entries = IndexletEntries()
    for n in range(100_000):
        entry = (n * 7919 % 100_003).to_bytes(8, "big")
        entries.put(entries.writer(0, 1), [n], [entry], is_removal=False)
        if n % 1000 == 0:
            while (plan := entries.merge_plan()) is not None:
                entries.install(plan, plan.make())
    assert len(entries.runs) < 20
    assert entries.entry_count == 100_000
    assert 24 * 100_000 <= entries.memory_bytes < 50 * 100_000 + 4096 * 300
    assert entries.lookup(b"", END, 3)[0] == [n.to_bytes(8, "big") for n in (0, 1, 2)]


def test_an_indexlet_is_split_in_about_its_middle() -> None:
    """The bound has as few bytes as tell both halves apart."""
    entries = IndexletEntries()
    assert entries.split_at() == b""
    array = pa.array([b"key-%04d-and-more" % n for n in range(1000)], pa.binary())
    entries.add(entries.sorting(entries.writer(0, 1), 1, array)())
    at = entries.split_at()
    assert at == b"key-05"
    assert sum(1 for entry in entries.live_entries() if entry < at) == 500


def test_a_copy_has_the_stamps_of_what_it_was_copied_from() -> None:
    """Writers are numbered anew in the other indexlet, and mean the same."""
    one, two = IndexletEntries(), IndexletEntries()
    two.writer(9, 9)  # so that numbers differ
    one.put(one.writer(1, 5), [7], [b"a"], is_removal=False)
    one.put(one.writer(0, 4), [8], [b"b"], is_removal=True)
    for run in one.snapshot():
        numbers, epochs = one.stamps_of(run)
        two.add(two.sorting_copy(run.entries(), numbers, epochs, run.sequences)())
    two.put(two.writer(1, 5), [6], [b"a"], is_removal=True)
    two.put(two.writer(0, 4), [9], [b"b"], is_removal=False)
    assert list(two.live_entries()) == [b"a", b"b"]
