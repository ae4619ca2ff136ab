"""A part of a split tablet, while survivors take the place of what it inherits, and afterwards."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.shares import Share
from stelae.core.schema.values import batch_to_rows
from stelae.storage.indexes.log_entries import with_ids
from stelae.storage.keys.merge import merge
from stelae.storage.rows.gather import Snapshot
from stelae.storage.rows.inheriting import next_group, parent_of
from stelae.storage.rows.memory import TabletMemory
from stelae.storage.rows.survivors import filter_of, survive
from stelae.storage.segments.image import Image, ImageMeta, build_image
from stelae.storage.segments.picked import Picks
from stelae.storage.segments.recovered import RecoveredSegment
from stelae.storage.segments.remote import Piece, RemoteRun, RemoteSegment, RowsAbsent
from stelae.storage.segments.segment import Segment
from stelae.storage.segments.shares import cut_to_share, only_share, picks_of, share_mask
from tests.unit.storage.rows.tablet_model import (
    INT_KEY,
    KEYS,
    WIDE_KEY,
    Key,
    World,
    make_key,
    make_row,
)
from tests.unit.storage.rows.test_tablet_model import MOVES, play
from tests.unit.storage.segments.test_remote import remote_segment


class Part:
    """One, recovered from the log of ``world``, and what its scans are to show, in their order."""

    def __init__(self, world: World, share: Share, rng: random.Random) -> None:
        self.world, self.share, self.rng = world, share, rng
        self.images: dict[int, pa.Buffer] = {}
        segments = [self._segment(segment_id) for segment_id in world.log]
        merged = merge([only_share(each.summary, share) for each in segments])
        self.tablet = TabletMemory(world.schema, "part", world.codec)
        self.tablet.adopt(segments, merged, 0.0)
        self.picks = {
            each.meta.segment_id: picks_of(each.summary, live, share)
            for each, live in zip(segments, merged.live, strict=True)
        }
        for segment in self.tablet.remote:
            segment.remote.picks = self.picks[segment.segment_id]
            segment.remote.piece_rows = rng.randint(1, 4)
        rows = world.model.rows.items()
        self.rows = {key: (*row, at) for key, (row, at) in rows if self.has(key)}
        self.survivors: list[RecoveredSegment] = []
        self.tablet.new_head(1000)

    def has(self, key: Key) -> bool:
        return self.share.has(self.world.codec.hash_one(key))

    def _segment(self, segment_id: int) -> RecoveredSegment:
        logged, schema, codec = self.world.log[segment_id], self.world.schema, self.world.codec
        whole = logged.recovered(schema, codec, rows=True)
        assert whole.batch is not None
        image = self.images[segment_id] = build_image(whole.batch, whole.meta, codec)
        if self.rng.random() < 0.3:
            return RecoveredSegment.from_image(Image.open(image, "image"))
        return remote_segment(image)

    def fetched(self, run: RemoteRun) -> Piece:
        image = Image.open(self.images[run.segment_id], "image")
        assert run.picks is not None
        if not run.picks.count:
            return run.take_none()
        data = image.batch.filter(pa.array(run.picks.mask)).serialize()
        return run.take_picked(image.trailer, crc32c(data), data, "rows")

    def scanned(self, snapshot: Snapshot) -> list[Any]:
        reader, held, found = snapshot.batches(with_versions=True), list[Piece](), list[Any]()
        while True:
            try:
                batch = next(reader, None)
            except RowsAbsent as absent:
                held += [self.fetched(wanted.run) for wanted in absent.wanted]
                continue
            if batch is None:
                return found
            found += batch_to_rows(batch)

    def write(self) -> None:
        """Some row, or none, of its own; what may be absent is not needed for that."""
        number, schema = self.rng.randrange(KEYS), self.world.schema
        key, version = make_key(schema, number), self.tablet.next_version
        if self.rng.random() < 0.4 or not self.has(key):
            return
        if self.rng.random() < 0.4:
            self.tablet.execute(WriteOp.DELETE, [key], None, version, schema.key)
            self.rows.pop(key, None)
            return
        row = make_row(schema, number, self.rng.randrange(100))
        self.tablet.execute(WriteOp.UPSERT, [row], None, version, schema.arrow.names)
        self.rows[key] = (*row, version)

    def take_over(self, group: list[Segment], segment_id: int) -> None:
        """A survivor in the place of some segments, with writes in between."""
        tablet, codec = self.tablet, self.world.codec
        remote = [each.remote for each in group if isinstance(each, RemoteSegment)]
        held = {run: self.fetched(run) for run in remote}
        parents = [parent_of(each, self.picks[each.segment_id]) for each in group]
        filters = [filter_of(each, codec) for each in tablet.earlier(group[0].slot)]
        survivor = survive(parents, codec, filters)
        self.write()
        slots, batch = [each.slot for each in group], survivor.batch
        if batch.num_rows:
            found = (segment_id, 2, 0, 0, batch.num_rows, group[-1].next_version)
            image = build_image(batch, ImageMeta("table", "part", *found, 1), codec)
            opened = Image.open(image, "survivor")
            self.survivors.append(RecoveredSegment.from_image(opened))
            move = tablet.begin_move(slots, survivor, segment_id, opened.batch, image.size)
        else:
            move = tablet.begin_move(slots, survivor, 0, batch, 0)
        while not tablet.step(move, self.rng.randint(1, 3)):
            self.write()
            assert self.scanned(tablet.scan_snapshot()) == self.in_order()
        for each in group:
            del self.picks[each.segment_id]
        for run, piece in held.items():
            run.keep(piece)

    def in_order(self) -> list[Any]:
        return sorted(self.rows.values(), key=lambda row: row[-1])


@pytest.mark.parametrize(("schema", "hash_bits"), [(INT_KEY, 64), (WIDE_KEY, 64)])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    moves=st.lists(MOVES, min_size=5, max_size=40),
    seed=st.integers(0, 1 << 16),
    parts=st.sampled_from([2, 4]),
)
def test_survivors_have_all_that_a_part_inherits(
    schema: TableSchema, hash_bits: int, moves: list[Any], seed: int, parts: int
) -> None:
    """In the order of the log, at every moment, under writes; a scan that began before sees what it
    saw; and the survivors alone bring it back."""
    world, rng = World(schema, hash_bits), random.Random(seed)
    play(world, [move for move in moves if move[0] != "scan"])
    for share in Share().cut(parts):
        part = Part(world, share, rng)
        before, expected = part.tablet.scan_snapshot(), part.in_order()
        limit, number = rng.choice([1, 2000, 1 << 20]), 2000
        while group := next_group(part.tablet.segments_in_order(), part.picks, limit):
            part.take_over(group, number)
            number += 1
            assert part.scanned(part.tablet.scan_snapshot()) == part.in_order()
        assert not part.picks
        assert not part.tablet.remote
        assert part.scanned(before) == expected
        assert part.tablet.row_count == len(part.rows)
        assert all(share_mask(share, each.summary.hashes).all() for each in part.survivors)
        _check_recovered(part)


def _check_recovered(part: Part) -> None:
    """The survivors and the head, and nothing else, are the part."""
    (head,) = [each for each in part.tablet.statistics() if not each.closed]
    part.tablet.close_head()
    image = part.tablet.seal(head.slot, "table", "part", 2)
    last = RecoveredSegment.from_image(Image.open(image, "head"))
    again = TabletMemory(part.world.schema, "part", part.world.codec)
    again.adopt([*part.survivors, last], None, 0.0)
    assert part.scanned(again.scan_snapshot()) == part.in_order()


def test_only_the_rows_that_were_picked_are_believed() -> None:
    """Of the image that was merged, undamaged, and no others."""
    world = World(INT_KEY, 64)
    names = list(INT_KEY.arrow.names)
    rows = [make_row(INT_KEY, n, n) for n in range(KEYS)]
    world.tablet.execute(WriteOp.UPSERT, rows, None, 1, names)
    whole = RecoveredSegment.from_image(
        Image.open(_sealed(world, next(iter(world.slots.values()))), "image")
    )
    assert whole.batch is not None
    image = build_image(whole.batch, whole.meta, world.codec)
    tablet = TabletMemory(INT_KEY, "part", world.codec)
    tablet.adopt([remote_segment(image)], None, 0.0)
    (segment,) = tablet.remote
    wanted = np.arange(KEYS) % 2 == 0
    segment.remote.picks = Picks(wanted)
    opened = Image.open(image, "image")
    data = opened.batch.filter(pa.array(wanted)).serialize()
    others = opened.batch.filter(pa.array(~wanted)).serialize()
    for trailer, crc, given_ in (
        (opened.trailer[:-1] + b"x", crc32c(data), data),
        (opened.trailer, crc32c(data) ^ 1, data),
        (opened.trailer, crc32c(others), others),
        (opened.trailer, crc32c(b"none"), b"none"),
    ):
        with pytest.raises(CorruptData):
            segment.remote.take_picked(trailer, crc, given_, "rows")
    assert not segment.remote.is_here
    held = segment.remote.take_picked(opened.trailer, crc32c(data), data, "rows")
    assert held.run.row(4) == rows[4]
    with pytest.raises(AssertionError, match="picked"):
        held.run.row(3)
    ids = INT_KEY.column_ids
    columns = segment.remote.columns_of(held.sealed, ids).filter(pa.array(wanted))
    assert columns.equals(with_ids(opened.batch, ids).filter(pa.array(wanted))), "for indexes"


def _sealed(world: World, slot: int) -> pa.Buffer:
    world.roll()
    return world.tablet.seal(slot, "table", "tablet", 1)


def test_groups_are_neighbours_of_one_schema_and_about_a_segment_long() -> None:
    """The first inherited ones; what is the part's own already is passed over."""

    def segment(number: int, version: int, size_bytes: int) -> Segment:
        found = Segment.__new__(Segment)
        found.segment_id, found.schema_version, found.bytes = number, version, size_bytes
        return found

    half = Picks(np.array([True, False]))
    order = [segment(n, v, 100) for n, v in ((9, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 2))]

    def chosen(limit_bytes: int, *inherited: int) -> list[int]:
        picks = dict.fromkeys(inherited, half)
        return [each.segment_id for each in next_group(order, picks, limit_bytes)]

    assert chosen(1000, 1, 2, 3, 4, 5) == [1, 2, 3]
    assert chosen(100, 1, 2, 3, 4, 5) == [1, 2]
    assert chosen(10, 1, 2, 3, 4, 5) == [1], "one at least"
    assert chosen(1000, 1, 3) == [1], "a survivor is between them"
    assert chosen(1000, 4, 5) == [4, 5]
    assert chosen(1000) == []


def test_a_batch_is_cut_to_a_share() -> None:
    """Each row is in one of all shares, in its order."""
    world = World(INT_KEY, 64)
    rows = [make_row(INT_KEY, n, n) for n in range(KEYS)]
    world.tablet.execute(WriteOp.UPSERT, rows, None, 1, list(INT_KEY.arrow.names))
    batch = Image.open(_sealed(world, next(iter(world.slots.values()))), "image").batch
    cut = [cut_to_share(batch, share, world.codec) for share in Share().cut(4)]
    assert sum(each.num_rows for each in cut) == batch.num_rows
    found = [key for part in cut for key in part.column("id").to_pylist()]
    assert sorted(found) == [row[1] for row in rows]
    assert cut_to_share(batch, Share(), world.codec) is batch
