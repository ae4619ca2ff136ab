"""The frame file's bytes and arithmetic: what is written is read back, or recognised as torn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.actors.backup.frames import (
    BLOCK_BYTES,
    EXTENTS_MAX,
    RECORD_BLOCKS_BYTES,
    RECORD_BYTES,
    RUNS_MAX,
    SUPERBLOCKS_BYTES,
    FrameAllocator,
    FrameLayout,
    FrameRecord,
    MediumSpec,
    Superblock,
    decode_record,
    encode_record,
    encode_superblock,
    frame_bytes_for,
    frames_of,
    newest_superblock,
    read_slots,
    runs_of,
    superblock_offset,
)
from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.backups import ReplicaState

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
RECORDS = st.builds(
    FrameRecord,
    frame=U32,
    sequence=U64,
    tablet_id=st.text("0123456789abcdef", max_size=64).map(TabletId),
    segment_id=U64,
    state=st.sampled_from([None, *ReplicaState]),
    term=U64,
    epoch=U64,
    length=U64,
    crc=U32,
    settled=st.booleans(),
    runs=st.lists(U32, max_size=RUNS_MAX).map(lambda runs: tuple(runs + runs)),
)


def superblock(generation: int, extents: tuple[int, ...] = (16,)) -> Superblock:
    """Of a small file."""
    return Superblock(generation, ServerUuid("u" * 32), "demo", "disk", 8192, extents)


def head(*superblocks: Superblock) -> bytearray:
    """A file's first blocks with these superblocks written to it in turn."""
    data = bytearray(SUPERBLOCKS_BYTES)
    for one in superblocks:
        offset = superblock_offset(one.generation)
        data[offset : offset + BLOCK_BYTES] = encode_superblock(one)
    return data


@given(RECORDS)
def test_a_record_is_read_back(record: FrameRecord) -> None:
    """Any record fits its 512 bytes and comes back; at another frame's place it is none."""
    block = encode_record(record)
    assert len(block) == RECORD_BYTES
    assert decode_record(block, record.frame) == record
    assert decode_record(block, record.frame + 1) is None


@given(RECORDS, st.integers(0, RECORD_BYTES * 8 - 1))
def test_a_record_with_a_wrong_bit_is_none(record: FrameRecord, bit: int) -> None:
    """A flipped bit is recognised, or lies in the padding and changes nothing."""
    block = bytearray(encode_record(record))
    block[bit // 8] ^= 1 << bit % 8
    assert decode_record(bytes(block), record.frame) in (None, record)


@given(RECORDS, st.integers(0, RECORD_BYTES))
def test_a_torn_record_is_none_or_whole(record: FrameRecord, cut: int) -> None:
    """A record of which only the first bytes reached the disk is not believed."""
    block = encode_record(record)
    torn = block[:cut] + bytes(RECORD_BYTES - cut)
    assert decode_record(torn, record.frame) in (None, record)


def test_the_newer_superblock_counts_and_a_torn_one_does_not() -> None:
    """Each generation overwrites the older block; torn in either place, the other is used."""
    for generation in range(1, 7):
        old, new = superblock(generation), superblock(generation + 1, (16, 16))
        data = head(old, new)
        assert newest_superblock(bytes(data)) == new
        start = superblock_offset(new.generation)
        for cut in (0, 1, 20, 60):
            torn = bytearray(data)
            torn[start + cut : start + BLOCK_BYTES] = bytes(BLOCK_BYTES - cut)
            assert newest_superblock(bytes(torn)) == old
    assert newest_superblock(b"") is None
    assert newest_superblock(bytes(SUPERBLOCKS_BYTES)) is None


def test_the_largest_superblock_fits_its_block() -> None:
    """A file of as many extents as are allowed, on a cluster with a long name."""
    full = Superblock(
        2**63, ServerUuid("u" * 32), "c" * 200, "m" * 200, 2**40, (2**31,) * EXTENTS_MAX
    )
    assert newest_superblock(encode_superblock(full) + bytes(BLOCK_BYTES)) == full


def test_of_two_records_the_newer_is_known_by_its_sequence() -> None:
    """Whichever block the newer one is in; a torn one leaves the other."""
    old, new = FrameRecord(5, 10), FrameRecord(5, 11)
    for side, order in ((1, (old, new)), (0, (new, old))):
        data = bytearray(2 * RECORD_BLOCKS_BYTES)
        for block, record in enumerate(order):
            start = RECORD_BLOCKS_BYTES + block * BLOCK_BYTES
            data[start : start + RECORD_BYTES] = encode_record(record)
        empty, slots = read_slots(bytes(data), 4)
        assert (empty.newest, empty.older) == (None, None)
        assert (slots.newest, slots.older, slots.newest_side) == (new, old, side)
        data[RECORD_BLOCKS_BYTES + side * BLOCK_BYTES] ^= 1
        _, slots = read_slots(bytes(data), 4)
        assert (slots.newest, slots.older, slots.newest_side) == (old, None, 1 - side)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 4))
def test_nothing_overlaps_in_a_file(extents: list[int], blocks: int) -> None:
    """Records and frames of all extents are apart, in bounds, and in whole blocks."""
    layout = FrameLayout(blocks * BLOCK_BYTES, extents)
    spans = [(0, SUPERBLOCKS_BYTES)]
    for frame in range(layout.frame_count):
        spans.append((layout.frame_offset(frame), layout.frame_bytes))
        spans.extend((layout.record_offset(frame, side), BLOCK_BYTES) for side in (0, 1))
    spans.sort()
    assert all(start % BLOCK_BYTES == 0 for start, _ in spans)
    ends = [start + size for start, size in spans]
    assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
    assert ends[-1] == layout.file_bytes


@given(st.data())
def test_the_pieces_of_a_chain_are_its_bytes(data: st.DataObject) -> None:
    """Each byte of a chain is where its frame is, whatever range is asked for."""
    layout = FrameLayout(BLOCK_BYTES, [4, 7])
    frames = data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=6, unique=True))
    total = len(frames) * BLOCK_BYTES
    offset = data.draw(st.integers(0, total))
    length = data.draw(st.integers(0, total - offset))
    places = [at for start, size in layout.pieces(frames, offset, length) for at in (start, size)]
    assert sum(places[1::2]) == length
    bytes_at = [
        b
        for start, size in layout.pieces(frames, offset, length)
        for b in (start, start + size - 1)
    ]
    for at in bytes_at:
        assert any(0 <= at - layout.frame_offset(frame) < BLOCK_BYTES for frame in frames)
    if length:
        first = layout.frame_offset(frames[offset // BLOCK_BYTES]) + offset % BLOCK_BYTES
        assert places[0] == first
    with pytest.raises(CorruptData):
        layout.pieces(frames, offset, total - offset + 1)


@given(st.lists(st.integers(0, 60), unique=True, max_size=30))
def test_runs_are_a_short_way_to_write_a_chain(frames: list[int]) -> None:
    """Frames to runs and back; adjacent frames share a run."""
    runs = runs_of(frames)
    assert frames_of(runs) == tuple(frames)
    assert runs_of(range(7, 40)) == (7, 33)


def test_frames_are_used_in_the_order_they_were_freed() -> None:
    """First in, first out: what was freed last keeps its data longest."""
    allocator = FrameAllocator(range(4))
    assert allocator.take(3) == (0, 1, 2)
    allocator.release([2])
    allocator.release([0, 1])
    assert allocator.take(2) == (3, 2)
    assert allocator.take(3) is None
    assert len(allocator) == 2
    assert allocator.take(2) == (0, 1)


def test_a_chain_has_no_more_runs_than_a_record_can_hold() -> None:
    """If the oldest free frames lie too far apart, adjacent ones are taken, or none."""
    scattered = [*range(0, 400, 2)]
    allocator = FrameAllocator([*scattered, 401, 402, *range(403, 440)])
    assert allocator.take(RUNS_MAX + 1) is None
    allocator.release(range(1, 80, 2))
    taken = allocator.take(RUNS_MAX + 1)
    assert taken == tuple(range(RUNS_MAX + 1))
    rest = len(allocator)
    assert rest == 200 + 39 + 40 - len(taken)


def test_a_file_grows_by_an_eighth_within_its_limit() -> None:
    """At least an extent of 16 frames, at least what is needed, at most what the limit leaves."""
    frame = RECORD_BLOCKS_BYTES + BLOCK_BYTES
    empty, large = FrameLayout(BLOCK_BYTES, []), FrameLayout(BLOCK_BYTES, [400])
    assert empty.next_extent(1, None) == 16
    assert empty.next_extent(20, None) == 20
    assert large.next_extent(1, None) == 50
    assert large.next_extent(1, large.file_bytes + 3 * frame) == 3
    assert large.next_extent(4, large.file_bytes + 3 * frame) == 0
    assert large.next_extent(1, 1000) == 0
    assert FrameLayout(BLOCK_BYTES, [1] * EXTENTS_MAX).next_extent(1, None) == 0


def test_frames_have_room_for_a_segment_and_more() -> None:
    """Whole blocks, an eighth larger than a segment."""
    assert frame_bytes_for(8 << 20) == 9 << 20
    assert frame_bytes_for(1) == BLOCK_BYTES


def test_a_medium_needs_a_place() -> None:
    """Neither path nor size is a mistake of configuration."""
    with pytest.raises(InvalidArgument, match="path"):
        MediumSpec(name="nowhere")
