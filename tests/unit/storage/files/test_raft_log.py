"""Formats of Raft log, consensus metadata and snapshot: round trips, cuts and flipped bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Peer,
    Snapshot,
    TermAndVote,
    first_configuration,
)
from stelae.storage.files.consensus_metadata import (
    ConsensusMetadata,
    decode_consensus_metadata,
    decode_snapshot,
    encode_consensus_metadata,
    encode_snapshot,
)
from stelae.storage.files.raft_log import (
    check_sequence,
    decode_file,
    encode_file_header,
    encode_record,
    log_file_name,
    parse_log_file_name,
)

GROUP = TabletId("00000000000000000000000000000001")
CONFIGURATION = first_configuration({ServerUuid(name): Address(f"{name}:1") for name in "ab"})


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, list[list[Entry]]]:
    """The first index, and entries as they were appended, one sync after each batch."""
    first = draw(st.integers(1, 1000))
    index, term = first, 1
    result = []
    for size in draw(st.lists(st.integers(1, 4), max_size=4)):
        batch = []
        for _ in range(size):
            term += draw(st.integers(0, 2))
            kind = draw(st.sampled_from(list(EntryKind)))
            batch.append(Entry(term, index, kind, draw(st.binary(max_size=20))))
            index += 1
        result.append(batch)
    return first, result


def image_of(first: int, appended: list[list[Entry]]) -> tuple[bytes, list[int]]:
    """The file as written, and where each batch ends: what was durable then."""
    image = encode_file_header(GROUP, first)
    ends = []
    for batch in appended:
        durable = batch[0].index - 1
        image += b"".join(encode_record(entry, durable) for entry in batch)
        ends.append(len(image))
    return image, ends


def flat(appended: list[list[Entry]]) -> list[Entry]:
    return [entry for batch in appended for entry in batch]


@given(case=batches())
def test_a_whole_file_reads_back_as_written(case: tuple[int, list[list[Entry]]]) -> None:
    """Encode and decode are inverse; offsets point at the records."""
    first, appended = case
    image, _ = image_of(first, appended)
    decoded = decode_file("f", GROUP, first, image, newest=False)
    assert list(decoded.entries) == flat(appended)
    assert not decoded.torn
    assert decoded.end == len(image)
    for offset, entry in zip(decoded.offsets, decoded.entries, strict=True):
        cut = decode_file("f", GROUP, first, image[:offset], newest=True)
        assert [*cut.entries, entry] == flat(appended)[: len(cut.entries) + 1]


@given(case=batches(), data=st.data())
def test_a_cut_file_gives_a_prefix(
    case: tuple[int, list[list[Entry]]], data: st.DataObject
) -> None:
    """A torn tail is cut; in a file that is not the newest it is an error."""
    first, appended = case
    image, _ = image_of(first, appended)
    size = data.draw(st.integers(0, len(image)))
    decoded = decode_file("f", GROUP, first, image[:size], newest=True)
    assert list(decoded.entries) == flat(appended)[: len(decoded.entries)]
    assert decoded.end <= size
    assert decoded.torn == (decoded.end < size or size == 0)
    if decoded.torn:
        with pytest.raises(CorruptData):
            decode_file("f", GROUP, first, image[:size], newest=False)


@given(case=batches(), data=st.data())
def test_a_flipped_byte_gives_a_prefix_or_an_error(
    case: tuple[int, list[list[Entry]]], data: st.DataObject
) -> None:
    """What was durable before a later append is never cut off silently; other data never comes."""
    first, appended = case
    image, ends = image_of(first, appended)
    where = data.draw(st.integers(0, len(image) - 1))
    flipped = bytearray(image)
    flipped[where] ^= data.draw(st.integers(1, 255))
    provably_durable = len(ends) >= 2 and where < ends[-2]
    try:
        decoded = decode_file("f", GROUP, first, bytes(flipped), newest=True)
    except CorruptData as error:
        assert error.args[0] == "f"  # noqa: PT017
        assert 0 <= error.args[1] <= where  # noqa: PT017
        return
    assert not provably_durable, "damage to durable entries was taken for a torn tail"
    assert list(decoded.entries) == flat(appended)[: len(decoded.entries)]
    assert decoded.torn


@given(case=batches(), data=st.data())
def test_a_hole_in_an_append_that_was_never_durable_is_a_torn_tail(
    case: tuple[int, list[list[Entry]]], data: st.DataObject
) -> None:
    """Sectors of one append may survive a crash in any order: earlier batches stay."""
    first, appended = case
    image, ends = image_of(first, appended)
    if not appended:
        return
    start = ends[-2] if len(ends) >= 2 else 0
    hole = data.draw(st.integers(start, len(image) - 1))
    length = data.draw(st.integers(1, len(image) - hole))
    damaged = image[:hole] + bytes(length) + image[hole + length :]
    decoded = decode_file("f", GROUP, first, damaged, newest=True)
    kept = flat(appended[:-1]) if len(appended) > 1 else []
    assert list(decoded.entries)[: len(kept)] == kept


def test_another_tablets_file_is_refused() -> None:
    """A log in the wrong place is an error that names the file, not an empty log."""
    image = encode_file_header(TabletId("other"), 1)
    with pytest.raises(CorruptData, match="wals/x"):
        decode_file("wals/x", GROUP, 1, image, newest=True)


def test_entries_of_all_files_follow_one_another() -> None:
    """Neither is one missing, nor does a term fall."""

    def entry(term: int, index: int) -> Entry:
        return Entry(term, index, EntryKind.COMMAND, b"")

    check_sequence("f", [entry(2, 1), entry(2, 2), entry(4, 3)])
    for after in (entry(2, 4), entry(1, 3)):
        with pytest.raises(CorruptData, match="follows"):
            check_sequence("f", [entry(2, 1), entry(2, 2), after])


def test_a_gap_between_valid_records_is_an_error() -> None:
    """Entries that pass their checksum but do not follow each other are corrupt."""
    image = encode_file_header(GROUP, 5)
    image += encode_record(Entry(2, 5, EntryKind.NO_OP, b""), 4)
    for wrong in (Entry(2, 7, EntryKind.NO_OP, b""), Entry(1, 6, EntryKind.NO_OP, b"")):
        with pytest.raises(CorruptData):
            decode_file("f", GROUP, 5, image + encode_record(wrong, 5), newest=True)


@given(index=st.integers(0, 2**63))
def test_file_names_sort_like_indexes(index: int) -> None:
    """A listing in name order is in index order, and other names are not taken for logs."""
    assert parse_log_file_name(log_file_name(index)) == index
    assert log_file_name(index) < log_file_name(index + 1)
    assert parse_log_file_name(f"{log_file_name(index)}.tmp") is None


METADATA = st.builds(
    ConsensusMetadata,
    st.just(GROUP),
    st.builds(TermAndVote, st.integers(0, 2**40), st.none() | st.text(max_size=9)),
    st.builds(
        Configuration,
        st.builds(OpId, st.integers(0, 9), st.integers(0, 9)),
        st.lists(st.builds(Peer, st.text(max_size=5), st.text(max_size=5))).map(tuple),
    ),
)


@given(metadata=METADATA, data=st.data())
def test_consensus_metadata_reads_back_or_is_corrupt(
    metadata: ConsensusMetadata, data: st.DataObject
) -> None:
    """Round trip; any cut or flipped byte is `CorruptData`, never another term or vote."""
    image = encode_consensus_metadata(metadata)
    assert decode_consensus_metadata("f", GROUP, image) == metadata
    where = data.draw(st.integers(0, len(image) - 1))
    flipped = bytearray(image)
    flipped[where] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), image[:where], image + b"x"):
        with pytest.raises(CorruptData):
            decode_consensus_metadata("f", GROUP, damaged)


@given(content=st.binary(max_size=50), data=st.data())
def test_a_snapshot_reads_back_or_is_corrupt(content: bytes, data: st.DataObject) -> None:
    """Round trip; any cut or flipped byte is `CorruptData`."""
    snapshot = Snapshot(OpId(3, 7), CONFIGURATION, content)
    image = encode_snapshot(GROUP, snapshot)
    assert decode_snapshot("f", GROUP, image) == snapshot
    where = data.draw(st.integers(0, len(image) - 1))
    flipped = bytearray(image)
    flipped[where] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(flipped), image[:where]):
        with pytest.raises(CorruptData):
            decode_snapshot("f", GROUP, damaged)


def test_files_of_another_kind_or_tablet_are_refused() -> None:
    """A snapshot is not metadata, and another tablet's metadata is not ours."""
    snapshot = encode_snapshot(GROUP, Snapshot(OpId(1, 1), CONFIGURATION, b"x"))
    with pytest.raises(CorruptData):
        decode_consensus_metadata("f", GROUP, snapshot)
    metadata = ConsensusMetadata(TabletId("other"), TermAndVote(1, None), CONFIGURATION)
    with pytest.raises(CorruptData, match="other"):
        decode_consensus_metadata("f", GROUP, encode_consensus_metadata(metadata))
