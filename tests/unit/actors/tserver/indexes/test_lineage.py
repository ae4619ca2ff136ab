"""What an indexlet knows of split tablets, against rows in a plain dict: whatever comes when.

Entries are of rows, each of which is in one share; tablets are split, speak late, lose what they
were about to take out, and tell what they have whenever they are asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from stelae.actors.tserver.indexes import lineage
from stelae.actors.tserver.indexes.lineage import Lineage
from stelae.core.errors import StaleTerm
from stelae.core.ids import TableId
from stelae.core.messages.indexes import KnownTablet, TabletStamp
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.shares import Share, number_of, share_of
from stelae.storage.indexes.indexlet import OVER, Floor, IndexletEntries

TABLE = TableRecord(
    TableId("t"),
    "rows",
    TableSchema.of(pa.schema([pa.field("id", pa.int64(), False)]), ["id"]),
    Partitioning(),
    segments("disk"),
    TableState.RUNNING,
)
KEYS = 8
"""Of three bits each: which share has a key, shows in the key."""
BITS = 3
SETTINGS = settings(deadline=None, derandomize=True, max_examples=300)


class Tablet:
    """One tablet in one term, and all it has said of entries."""

    def __init__(self, share: Share, epoch: int) -> None:
        self.share = share
        self.number = number_of(0, share, 1)
        self.epoch = epoch
        self.sequence = 0
        self.late: list[tuple[str, int, bytes]] = []
        """What did not arrive yet."""

    def has(self, key: int) -> bool:
        return key >> (BITS - self.share.bits) == self.share.value

    def stamp(self) -> TabletStamp:
        return TabletStamp(self.number, self.epoch, 0)


class World:
    """A table of one place, and one indexlet of it."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.tablets = [Tablet(Share(), 1)]
        self.former: list[Tablet] = []
        self.open()
        self.hear(self.tablets[0])

    def open(self) -> None:
        self.entries = IndexletEntries()
        self.lineage = Lineage(TABLE, self.entries)

    # ---- what tablets say -------------------------------------------------------------------

    def hear(self, tablet: Tablet) -> bool:
        try:
            self.lineage.hear(tablet.stamp())
        except StaleTerm:
            return False
        return True

    def say(self, tablet: Tablet, what: str, sequence: int, entry: bytes) -> None:
        if self.hear(tablet):
            writer = self.entries.writer(tablet.number, tablet.epoch)
            self.entries.put(writer, [sequence], [entry], is_removal=what == "remove")

    def write(self, key: int, value: int, *, is_late: bool) -> None:
        """Entry in, row, old entry out; the last may come late, or never."""
        (tablet,) = [each for each in self.tablets if each.has(key)]
        tablet.sequence += 1
        self.say(tablet, "put", tablet.sequence, entry_of(key, value))
        old = self.rows.get(key)
        self.rows[key] = value
        if old is not None and old != value:
            tablet.sequence += 1
            word = ("remove", tablet.sequence, entry_of(key, old))
            if is_late:
                tablet.late.append(word)
            else:
                self.say(tablet, *word)

    def arrive(self, key: int, value: int) -> None:
        """A late word of somebody who was; or an insertion whose row was never written."""
        for tablet in [*self.former, *self.tablets]:
            if tablet.late and tablet.has(key):
                self.say(tablet, *tablet.late.pop(0))
                return
        for tablet in self.former:
            if tablet.has(key):
                self.say(tablet, "put", tablet.sequence, entry_of(key, value))
                return

    def split(self, key: int, more: int) -> None:
        (tablet,) = [each for each in self.tablets if each.has(key)]
        if tablet.share.bits + more <= BITS:
            self.tablets.remove(tablet)
            self.former.append(tablet)
            self.tablets += [Tablet(s, tablet.epoch + 1) for s in tablet.share.cut(1 << more)]

    def recover(self, key: int, value: int) -> None:
        """Another owner; the one before had put in what it never wrote."""
        (tablet,) = [each for each in self.tablets if each.has(key)]
        self.say(tablet, "put", tablet.sequence + 1, entry_of(key, value))
        self.tablets.remove(tablet)
        self.former.append(tablet)
        self.tablets.append(Tablet(tablet.share, tablet.epoch + 1))

    # ---- what the indexlet does -------------------------------------------------------------

    def compare(self, key: int) -> None:
        """Have the tablet tell what it has, as fills and comparisons do."""
        (tablet,) = [each for each in self.tablets if each.has(key)]
        known = self.lineage.of(tablet.number)
        tablet.sequence += 1
        stamp = Floor(tablet.epoch, tablet.sequence)
        own = sorted(entry_of(k, v) for k, v in self.rows.items() if tablet.has(k))
        writer = self.entries.writer(tablet.number, tablet.epoch)
        self.entries.add(
            self.entries.sorting(writer, tablet.sequence, pa.array(own, pa.binary()))()
        )
        self.entries.set_floor(tablet.number, stamp)
        self.hear(tablet)
        known.is_compared = True
        self.lineage.settle()

    def hand_over(self) -> None:
        """All of it to a successor."""
        before, entries = self.lineage, self.entries
        self.open()
        for run in entries.snapshot():
            numbers, epochs = entries.stamps_of(run)
            copy = self.entries.sorting_copy(run.entries(), numbers, epochs, run.sequences)
            self.entries.add(copy())
        told = [_told(number, known, entries) for number, known in before.known.items()]
        for each in told:
            known = self.lineage.of(each.number)
            known.epoch, known.is_compared = each.epoch, each.is_compared
            self.entries.set_floor(each.number, Floor(each.floor_epoch, each.floor_sequence))
        self.lineage.learned()

    def merge(self) -> None:
        plan = self.entries.merge_plan()
        if plan is not None:
            self.entries.install(plan, plan.make())

    # ---- judging ----------------------------------------------------------------------------

    def check(self) -> None:
        """No row is missing."""
        found = set(self.entries.live_entries())
        assert {entry_of(k, v) for k, v in self.rows.items()} <= found

    def check_rest(self) -> None:
        """Once all that are there have told what they have nothing else is left."""
        for key in range(KEYS):
            self.compare(key)
        assert self.lineage.is_compared
        wanted = sorted(entry_of(k, v) for k, v in self.rows.items())
        assert list(self.entries.live_entries()) == wanted
        for tablet in self.former:
            if self.lineage.is_over(tablet.number) and tablet.number in self.lineage.known:
                assert self.entries.floor(tablet.number) == OVER


def _told(number: int, known: Any, entries: IndexletEntries) -> KnownTablet:
    floor = entries.floor(number)
    first = known.first_incomplete
    return KnownTablet(number, known.epoch, first, *floor, known.is_compared)


def entry_of(key: int, value: int) -> bytes:
    return b"%d of %d" % (value, key)


KEY, VALUE = st.integers(0, KEYS - 1), st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), KEY, VALUE, st.booleans()),
        st.tuples(st.just("write"), KEY, VALUE, st.booleans()),
        st.tuples(st.sampled_from(["arrive", "recover"]), KEY, VALUE),
        st.tuples(st.just("split"), KEY, st.integers(1, 2)),
        st.tuples(st.just("compare"), KEY),
        st.tuples(st.sampled_from(["hand_over", "merge"])),
    ),
    max_size=30,
)


def play(steps: list[Any]) -> None:
    world = World()
    for what, *given_ in steps:
        if what == "write":
            world.write(*given_[:2], is_late=given_[2])
        else:
            getattr(world, what)(*given_)
        world.check()
    world.check_rest()


@SETTINGS
@given(STEPS)
def test_no_row_is_ever_missing_and_nothing_stays_for_ever(steps: list[Any]) -> None:
    """However often tablets are split, and in whatever order indexlets hear of it."""
    play(steps)


def _one_part_is_enough(number: int, parts: set[int], count: int) -> bool:
    whole = share_of(number, count)
    return any(whole.contains(share_of(p, count)) and p != number for p in parts)


def _nothing_is_forgotten(number: int, parts: set[int], count: int) -> bool:
    del number, parts, count
    return False


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("is_made_up", _one_part_is_enough),
        ("is_made_up", _nothing_is_forgotten),
        ("ancestors_of", lambda number, count: iter(())),
    ],
)
def test_these_would_be_seen(name: str, bug: Callable[..., Any]) -> None:
    """One part in place of all; never; and tablets that were split, but are still believed."""

    def fails(steps: list[Any]) -> bool:
        try:
            with patch.object(lineage, name, bug):
                play(steps)
        except AssertionError:
            return True
        return False

    try:
        find(STEPS, fails, settings=settings(deadline=None, derandomize=True, max_examples=2000))
    except NoSuchExample:
        pytest.fail("nothing shows it")
