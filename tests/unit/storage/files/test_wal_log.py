"""Format and index of a timeline's WAL: round trips, cuts, flipped bytes, and a plain model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.errors import CorruptData
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import LogCut, history_of
from stelae.storage.files.log_records import decode_range
from stelae.storage.files.wal_log import (
    NO_CUT,
    WalIndex,
    WalName,
    counted_names,
    decode_wal_file,
    encode_entries,
    encode_wal_header,
    parse_wal_name,
    record_bytes,
)

TABLET = TabletId("t1")
NAME = WalName(5, 2)


def entries_from(first: int, bodies: list[bytes], term: int = 3) -> list[Entry]:
    return [Entry(term, first + i, EntryKind.COMMAND, body) for i, body in enumerate(bodies)]


def file_of(entries: list[Entry], durable_lsn: int, name: WalName = NAME) -> bytes:
    """A file as one append wrote it."""
    return encode_wal_header(TABLET, name) + b"".join(encode_entries(entries, durable_lsn))


def decode(data: bytes, *, newest: bool = True, commit_lsn: int = 0, cut: LogCut = LogCut(2, 5)):  # type: ignore[no-untyped-def]  # noqa: B008
    return decode_wal_file("f", TABLET, NAME, data, newest=newest, cut=cut, commit_lsn=commit_lsn)


# ---- files ----------------------------------------------------------------------------------


@given(bodies=st.lists(st.binary(max_size=30), min_size=1, max_size=6))
def test_a_file_reads_back_as_written(bodies: list[bytes]) -> None:
    """Encode and decode are inverse, also of ranges; bodies are not copied on the way out."""
    entries = entries_from(5, bodies)
    assert all(
        buffer is entry.body
        for buffer, entry in zip(encode_entries(entries, 4)[1::2], entries, strict=True)
    )
    data = file_of(entries, 4)
    decoded = decode(data, newest=False)
    assert list(decoded.entries) == entries
    assert (decoded.end, decoded.torn) == (len(data), False)
    at = decoded.offsets[-1]
    assert decode_range("f", data[at:], at, entries[-1].index) == entries[-1:]
    assert decoded.end - at == record_bytes(entries[-1])


@given(bodies=st.lists(st.binary(max_size=30), min_size=1, max_size=6), data=st.data())
def test_a_damaged_byte_ends_the_log_above_the_commit_and_is_corruption_below(
    bodies: list[bytes], data: st.DataObject
) -> None:
    """Nothing that is damaged is taken for an entry, and nothing committed is cut off."""
    entries = entries_from(5, bodies)
    image = bytearray(file_of(entries, 4))
    at = data.draw(st.integers(0, len(image) - 1))
    image[at] ^= 1 << data.draw(st.integers(0, 7))
    whole = decode(file_of(entries, 4))
    hit = sum(offset <= at for offset in whole.offsets)  # entries before the damaged one, and it
    commit_lsn = data.draw(st.integers(0, 4 + len(entries)))
    damaged_lsn = 5 + max(hit - 1, 0)
    if commit_lsn >= damaged_lsn:
        with pytest.raises(CorruptData) as caught:
            decode(bytes(image), commit_lsn=commit_lsn)
        assert caught.value.args[:2] == ("f", whole.offsets[hit - 1] if hit else 0)
    else:
        decoded = decode(bytes(image), commit_lsn=commit_lsn)
        assert decoded.torn
        assert list(decoded.entries) == entries[: max(hit - 1, 0)]
    with pytest.raises(CorruptData):
        decode(bytes(image), newest=False)


def test_damage_before_what_proves_it_durable_is_corruption() -> None:
    """A later append says how far the log was durable before it."""
    first, second = entries_from(5, [b"one", b"two"]), entries_from(7, [b"three"])
    image = bytearray(file_of(first, 4) + b"".join(encode_entries(second, 6)))
    image[len(encode_wal_header(TABLET, NAME)) + 3] ^= 1
    with pytest.raises(CorruptData, match="durable"):
        decode(bytes(image))


def test_a_range_has_the_entries_that_were_asked_for() -> None:
    """Whole records of other entries are not what was read."""
    entries = entries_from(5, [b"a", b"b"])
    data = file_of(entries, 4)
    at = decode(data).offsets[0]
    with pytest.raises(CorruptData, match="entry 6 is damaged"):
        decode_range("f", data[at:], at, 6)


def test_files_follow_one_another_without_a_gap_and_terms_do_not_fall() -> None:
    """What was between two files is missing, and an older term cannot come after a newer one."""
    index = WalIndex(4)
    index.loaded("f", NAME, decode(file_of(entries_from(5, [b"a"], term=3), 4)))

    def next_file(first: int, term: int) -> None:
        name = WalName(first, 2)
        data = file_of(entries_from(first, [b"b"], term), 5, name)
        decoded = decode_wal_file(
            "g", TABLET, name, data, newest=True, cut=LogCut(2, 5), commit_lsn=0
        )
        index.loaded("g", name, decoded)

    with pytest.raises(CorruptData, match="entries 6 to 6 are missing"):
        next_file(7, 3)
    with pytest.raises(CorruptData, match="term 2 follows 3"):
        next_file(6, 2)
    next_file(6, 3)
    assert index.last_lsn == 6


def test_only_files_wholly_up_to_there_are_trimmed() -> None:
    """A file with one entry that is needed stays, and so do all after it."""
    index = WalIndex(4)
    for first in (5, 7, 9):
        entries = entries_from(first, [b"a", b"b"])
        index.begun(WalName(first, 2))
        index.appended(entries, 0)
    assert [index.trimmable(lsn) for lsn in (5, 6, 7, 8, 10)] == [4, 6, 6, 8, 8]


def test_what_a_cut_removed_is_not_looked_at() -> None:
    """Damaged or not, it does not count; and neither does the file of another tablet."""
    entries = entries_from(5, [b"one", b"two", b"three"])
    image = bytearray(file_of(entries, 4))
    image[-1] ^= 1
    decoded = decode(bytes(image), newest=False, cut=LogCut(3, 7))
    assert (list(decoded.entries), decoded.torn) == (entries[:2], False)
    with pytest.raises(CorruptData):
        decode_wal_file(
            "f", TabletId("t2"), NAME, file_of(entries, 4), newest=True, cut=NO_CUT, commit_lsn=0
        )


def test_which_files_count() -> None:
    """Names sort like LSNs; what a cut or a trim was still to remove is told apart."""
    names = [WalName(1, 0), WalName(5, 0), WalName(5, 2), WalName(9, 1)]
    assert sorted(map(str, names)) == [str(name) for name in sorted(names)]
    assert [parse_wal_name(str(name)) for name in names] == names
    assert parse_wal_name("wal-1-2") is None
    assert parse_wal_name(str(names[0]).replace("wal", "log")) is None
    texts = [str(name) for name in names]
    counted, dropped = counted_names("w", texts, LogCut(2, 5), 0)
    assert counted == [WalName(1, 0), WalName(5, 2)]
    assert dropped == [str(WalName(5, 0)), str(WalName(9, 1))]
    counted, dropped = counted_names("w", [texts[0], texts[2]], LogCut(2, 5), 4)
    assert (counted, dropped) == ([WalName(5, 2)], [texts[0]])
    with pytest.raises(CorruptData):
        counted_names("w", texts, LogCut(1, 5), 0)
    with pytest.raises(CorruptData):
        counted_names("w", ["something"], NO_CUT, 0)


# ---- the index ------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 50), min_size=1, max_size=5)),
        st.tuples(st.just("roll"), st.just([])),
        st.tuples(st.just("cut"), st.lists(st.integers(0, 9), min_size=1, max_size=1)),
        st.tuples(st.just("trim"), st.lists(st.integers(0, 9), min_size=1, max_size=1)),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_the_index_agrees_with_a_plain_list(steps: list[tuple[str, list[int]]]) -> None:
    """Ends, history and the place of every record, after any appends, cuts and trims."""
    index, model, term, cuts = WalIndex(0), list[Entry](), 1, 0
    files: dict[str, bytes] = {}
    kept = history_of(model)
    for step, numbers in steps:
        if step == "append":
            if not index.files or index.files[-1].name.cut_number != cuts:
                index.begun(WalName(index.last_lsn + 1, cuts))
            added = entries_from(len(model) + 1, [bytes(size) for size in numbers], term)
            newest = index.files[-1]
            header = b"" if newest.end else encode_wal_header(TABLET, newest.name)
            start = newest.end + len(header)
            content = files.get(str(newest.name), b"")[: newest.end]
            files[str(newest.name)] = content + header + b"".join(encode_entries(added, 0))
            index.appended(added, start)
            model += added
        elif step == "roll":
            cuts += 1  # as a cut at the end does
        elif step == "cut" and index.last_lsn > index.base_lsn:
            from_lsn = max(index.base_lsn + 1, index.last_lsn - numbers[0])
            removed, truncated = index.cut(from_lsn)
            for name in removed:
                del files[str(name)]
            if truncated is not None:
                files[str(truncated.name)] = files[str(truncated.name)][: truncated.end]
            model, term, cuts = model[: from_lsn - 1], term + 1, cuts + 1
        elif step == "trim":
            kept = history_of(model)
            base = index.trimmable(max(0, index.last_lsn - numbers[0]))
            assert base <= max(index.base_lsn, index.last_lsn - numbers[0])
            for name in index.trim(base):
                del files[str(name)]
        assert index.history(kept) == history_of(model)
        assert index.last(kept) == (model[-1].op_id if model else OpId(0, 0))
        check_spans(index, model, files)


def check_spans(index: WalIndex, model: list[Entry], files: dict[str, bytes]) -> None:
    for size_max_bytes in (0, 60, 150, 1 << 20):
        found: list[Entry] = []
        lsn = index.base_lsn + 1
        if lsn > index.last_lsn:
            return
        for span in index.spans(lsn, index.last_lsn, size_max_bytes):
            data = files[str(span.name)][span.offset : span.offset + span.length]
            assert span.first_lsn == lsn + len(found)
            found += decode_range("f", data, span.offset, span.first_lsn)
        assert found == model[lsn - 1 : lsn - 1 + len(found)]
        size_bytes = sum(record_bytes(entry) for entry in found)
        assert len(found) == 1 or size_bytes <= size_max_bytes
        following = model[lsn - 1 + len(found) : lsn + len(found)]
        assert not following or size_bytes + record_bytes(following[0]) > size_max_bytes
