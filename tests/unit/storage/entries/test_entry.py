"""Entries: encoding, certificates as the commit point, and damage of every kind."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.errors import CorruptData, UnknownFormat
from stelae.core.schema.schema import TableSchema
from stelae.storage.entries.entry import (
    HEADER_BYTES,
    Certificate,
    CertificateBuilder,
    Entry,
    EntryKind,
    Prologue,
    Result,
    certify_entries,
    decode_batch,
    decode_prologue,
    decode_rows,
    encode_batch,
    encode_entry,
    encode_prologue,
    encode_rows,
    entry_length,
    read_entries,
)

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
U64 = st.integers(0, (1 << 64) - 1)
RESULTS = st.lists(
    st.builds(Result, st.text(max_size=5), U64, U64, st.binary(max_size=9)), max_size=3
).map(tuple)
ENTRIES = st.builds(
    Entry,
    U64,
    U64,
    st.sampled_from(EntryKind),
    U64,
    st.integers(0, 1 << 20),
    RESULTS,
    st.binary(max_size=40),
)


def log_of(entries: list[Entry]) -> tuple[bytes, list[Certificate]]:
    """The log's bytes, and its certificate before the first and after each entry."""
    data = bytearray()
    builder = CertificateBuilder()
    certificates = [builder.certificate]
    for entry in entries:
        buffers = encode_entry(entry)
        data += b"".join(bytes(buffer) for buffer in buffers)
        certificates.append(builder.extend(buffers[0], entry_length(buffers[0])))
    return bytes(data), certificates


def plain(entries: Any) -> list[tuple[Any, ...]]:
    return [
        (e.term, e.index, e.kind, e.first_version, e.row_count, e.results, bytes(e.payload))
        for e in entries
    ]


@given(entries=st.lists(ENTRIES, max_size=5), junk=st.binary(max_size=30), data=st.data())
def test_what_a_certificate_names_is_read_back_and_nothing_past_it(
    entries: list[Entry], junk: bytes, data: st.DataObject
) -> None:
    """The certified prefix of a log comes back whole, whatever lies behind it."""
    log, certificates = log_of(entries)
    count = data.draw(st.integers(0, len(entries)))
    cut = data.draw(st.integers(certificates[count].length, len(log)))
    read = read_entries(log[:cut] + junk, certificates[count], "log")
    assert plain(read) == plain(entries[:count])
    assert certificates[-1].length == len(log)
    assert plain(read_entries(log, None, "log")) == plain(entries)


@given(entries=st.lists(ENTRIES, min_size=1, max_size=4), data=st.data())
def test_a_cut_log_is_corrupt(entries: list[Entry], data: st.DataObject) -> None:
    """A log shorter than its certificate is an error that names where it ends."""
    log, certificates = log_of(entries)
    cut = data.draw(st.integers(0, len(log) - 1))
    with pytest.raises(CorruptData) as caught:
        list(read_entries(log[:cut], certificates[-1], "log"))
    assert caught.value.args[:2] == ("log", cut)
    boundaries = [c.length for c in certificates]
    if cut not in boundaries:
        with pytest.raises(CorruptData):
            list(read_entries(log[:cut], None, "log"))


@settings(max_examples=300)
@given(entries=st.lists(ENTRIES, min_size=1, max_size=4), data=st.data())
def test_any_changed_bit_is_found(entries: list[Entry], data: st.DataObject) -> None:
    """No flipped bit of the certified bytes, or of the certificate, is ever delivered."""
    log, certificates = log_of(entries)
    bit = data.draw(st.integers(0, 8 * len(log) - 1))
    damaged = bytearray(log)
    damaged[bit // 8] ^= 1 << bit % 8
    delivered: list[Entry] = []
    with pytest.raises(CorruptData):
        delivered.extend(read_entries(bytes(damaged), certificates[-1], "log"))
    intact = sum(c.length <= bit // 8 for c in certificates[1:])
    assert plain(delivered) == plain(entries[: len(delivered)])
    assert len(delivered) <= intact
    wrong = Certificate(certificates[-1].length, certificates[-1].crc ^ (1 << bit % 32))
    with pytest.raises(CorruptData):
        read_entries(log, wrong, "log")


def test_only_whole_and_undamaged_entries_are_certified() -> None:
    """Whoever keeps entries for others checks them as they come: each, to its last byte."""
    entries = [Entry(1, n, EntryKind.ROWS, n, 1, (), b"x" * 40) for n in (1, 2)]
    data, certificates = log_of(entries)
    first = certificates[1]
    assert certify_entries(certificates[0], data, "log") == certificates[-1]
    assert certify_entries(first, data[first.length :], "log") == certificates[-1]
    for damaged in (HEADER_BYTES + 9, len(data) - 9):
        flipped = bytearray(data)
        flipped[damaged] ^= 1
        with pytest.raises(CorruptData, match="bad checksum of an entry"):
            certify_entries(certificates[0], bytes(flipped), "log")
    with pytest.raises(CorruptData, match="an entry is cut"):
        certify_entries(certificates[0], data[:-8], "log")
    with pytest.raises(CorruptData, match="no whole entry header"):
        certify_entries(certificates[0], data[: first.length + 4], "log")


def test_a_certificate_of_another_length_is_refused() -> None:
    """A certificate that ends inside an entry, or whose CRC is of fewer entries, is refused."""
    log, certificates = log_of([Entry(1, i, EntryKind.ROWS, 1, 0, (), b"12345") for i in range(3)])
    for length in range(len(log)):
        with pytest.raises(CorruptData):
            read_entries(log, Certificate(length, certificates[3].crc), "log")


def test_entries_are_aligned_and_payloads_are_views() -> None:
    """Payloads lie at multiples of 8 bytes; large ones are not copied in, none is copied out."""
    payload = pa.py_buffer(b"x" * 5005)
    results = (Result("c", 1, 1, b"12345"),)
    buffers = encode_entry(Entry(1, 2, EntryKind.ROWS, 3, 1, results, payload))
    assert buffers[1] is payload
    assert len(bytes(buffers[0])) % 8 == 0
    log = pa.py_buffer(b"".join(map(bytes, buffers)))
    assert log.size == entry_length(buffers[0]) > HEADER_BYTES + 5005
    (entry,) = read_entries(log, None, "log")
    assert isinstance(entry.payload, memoryview)
    assert pa.py_buffer(entry.payload).address == log.address + len(bytes(buffers[0]))


def test_an_entry_larger_than_a_segment_is_legal() -> None:
    """64 MiB of payload go into one entry."""
    payload = pa.allocate_buffer(64 << 20)
    memoryview(payload).cast("B")[::4096] = b"\7" * (16 << 10)
    log, certificates = log_of([Entry(1, 1, EntryKind.BATCH, 1, 5, (), payload)])
    (entry,) = read_entries(log, certificates[-1], "log")
    assert len(entry.payload) == 64 << 20


def test_a_later_format_is_refused_by_number() -> None:
    """An entry of a format that this version does not know says so."""
    log = bytearray(log_of([Entry(1, 1, EntryKind.ROWS, 1, 0, (), b"")])[0])
    log[6] = 9
    with pytest.raises(UnknownFormat, match="format 9"):
        read_entries(bytes(log), None, "log")


def test_payloads_come_back() -> None:
    """Prologues, rows and batches decode to what was encoded; other bytes are corrupt."""
    prologue = Prologue("t", "u", 3, 2, (1, 3), 77, SCHEMA, (Result("c", 5, 4, b"x"),))
    assert decode_prologue(encode_prologue(prologue), "p") == prologue
    rows = [(1, "a", None, 2.5, b"\0", True)]
    assert decode_rows(encode_rows(b"\0", rows), "r") == (b"\0", rows)
    batch = pa.record_batch({"id": pa.array([1, 2])})
    assert decode_batch(encode_batch(batch), "b").equals(batch)
    for decode in (decode_prologue, decode_rows, decode_batch):
        with pytest.raises(CorruptData):
            decode(b"\xc1 no such thing", "x")
    with pytest.raises(CorruptData, match="2 row kinds for 1 rows"):
        decode_rows(encode_rows(b"\0\0", rows), "r")
