"""Much at once, too much, and too late; the same for every durability."""

from __future__ import annotations

import threading
import time
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from stelae.actors.tserver.tablet.input import encode_found
from stelae.client.input import given
from stelae.client.table import reads as client_reads
from stelae.core.errors import DeadlineExpired, InvalidArgument, OutcomeUnknown, TooLarge
from stelae.core.schema import values
from stelae.core.schema.partition import hash_partition
from stelae.database.api import Table
from tests.tables.conftest import SCHEMA, Make

MIB = 1 << 20


def wide(first: int, count: int, row_bytes: int) -> pa.Table:
    """Rows of about so many bytes each."""
    texts = [f"{n:09d}" + "x" * (row_bytes - 9) for n in range(first, first + count)]
    columns = {"id": range(first, first + count), "name": texts}
    return pa.table(columns, schema=SCHEMA.remove(2))


def holds(table: Table, rows: pa.Table) -> bool:
    """Whether these are all rows of the table, but for what they do not say."""
    found = table.scan(columns=["id", "name"]).sort_by("id")
    return bool(found.equals(rows))


def test_one_call_may_be_larger_than_segments_and_log_files(make: Make) -> None:
    """Here 10 MiB for one tablet, whose segments have 1 MiB; it is there whole, and can be changed
    row by row."""
    table = make()
    rows = wide(0, 20, MIB // 2)
    versions = table.upsert(rows, timeout=60)
    assert table.count() == 20
    assert table.get(19) == {**rows.slice(19).to_pylist()[0], "reading": None}
    assert holds(table, rows)
    table.update({"id": 3, "reading": 1.0}, if_version=int(versions[3]))
    table.delete(4)
    assert table.get_many(range(6)).num_rows == 5


def test_one_row_of_any_size_is_written_by_itself(make: Make) -> None:
    """Whatever frames a row takes on its way; beyond a mebibyte it is the row that is too large."""
    table = make()
    for key, size in enumerate((60_000, 66_000, 300_000, MIB - 1000)):
        row = {"id": key, "name": "x" * size}
        table.insert(row)
        table.upsert(row)
        table.update({**row, "reading": 1.5})
        assert table.get(key) == {**row, "reading": 1.5}
    with pytest.raises(TooLarge, match="row"):
        table.upsert({"id": 9, "name": "x" * (MIB + 1)})


def test_an_answer_beyond_one_message_comes_in_pieces(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the rows' sizes: no piece is above its bound unless it is one row, and the answer is
    the same. The bound is 64 KiB here, and 32 MiB of a message's 128 outside of tests."""
    table, bound = make(), 64 << 10
    small, large = wide(0, 400, 20), wide(400, 40, 30_000)
    rows = pa.concat_tables([small, large, wide(440, 2, 200_000)])
    table.upsert(rows)
    table.create_index("name")
    sizes: list[tuple[int, int]] = []

    def measured(*asked: Any) -> Any:
        encoded, places = encode_found(*asked)
        sizes.append((encoded.size, len(places)))
        return encoded, places

    monkeypatch.setattr(client_reads, "PIECE_BYTES", bound)
    monkeypatch.setattr(client_reads, "TAKE_BYTES", 3 * bound)
    monkeypatch.setattr("stelae.actors.tserver.tablet.reads.encode_found", measured)
    keys = [*range(500, 450, -1), *range(441, -1, -1), 3, 440, 3]
    wanted = [key for key in keys if key < 442]
    texts = dict(zip(rows["id"].to_pylist(), rows["name"].to_pylist(), strict=True))
    found = table.get_many(keys, columns=["name", "id"])
    assert found["id"].to_pylist() == wanted
    assert found["name"].to_pylist() == [texts[key] for key in wanted]
    assert table.get_many([441, 600])["id"].to_pylist() == [441]
    assert len(sizes) > 15
    assert all(size < bound + 4096 or count == 1 for size, count in sizes)
    sizes.clear()
    assert table.get_many(keys, columns=["id"])["id"].to_pylist() == wanted
    assert len(sizes) <= 2, "chosen columns are small, and fill a piece all the same"
    by_value = table.find("name", between=(None, None), columns=["id"])
    assert by_value["id"].to_pylist() == list(range(442))
    by_value = table.find("name", between=("0", "9"), reverse=True)
    assert by_value["name"].to_pylist() == [texts[key] for key in range(441, -1, -1)]


def test_a_load_is_cut_by_the_real_size_of_its_rows(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A categorical column takes an index a row until it is written out, and a few rows may have
    most of the bytes. A call has 2 MiB here in place of 64."""
    for module in (values, given):
        monkeypatch.setattr(module, "MAX_CALL_BYTES", 2 * MIB)
    table = make()
    texts = [letter * 20_000 for letter in "abc"]
    names = pd.Categorical([texts[n % 3] for n in range(300)], categories=texts)
    assert table.load(pd.DataFrame({"id": range(300), "name": names})) == 300
    assert table.get(299) == {"id": 299, "name": texts[2], "reading": None}
    skewed = pa.concat_tables([wide(300, 1000, 10), wide(1300, 15, 300_000)])
    assert table.load(skewed, batch_bytes=256 << 10) == 1015
    assert table.count() == 1315
    ids = [pa.scalar(n % 100, pa.int8()) for n in range(50)]
    narrow = pa.table({"id": pa.array(ids), "name": ["n" * 40_000] * 50})
    assert table.load(narrow, batch_bytes=64 * MIB) == 50


def test_a_load_with_a_row_that_is_too_large_writes_nothing(make: Make) -> None:
    """The row is named by its place among all of them."""
    table = make()
    rows = pa.concat_tables([wide(0, 60, 40_000), wide(60, 1, MIB + 1), wide(61, 5, 10)])
    with pytest.raises(TooLarge, match="row 60 is"):
        table.load(rows, batch_bytes=256 << 10)
    ids = [*range(62), 62.5, *range(63, 100)]
    with pytest.raises(InvalidArgument, match="row 62"):
        table.load(pa.table({"id": ids, "name": ["n" * 10_000] * 100}), batch_bytes=256 << 10)
    assert table.count() == 0


def test_large_calls_side_by_side_all_come_through(make: Make) -> None:
    """None of them is given up because others are on their way."""
    table = make()
    failed: list[BaseException] = []

    def write(first: int) -> None:
        try:
            table.upsert(wide(first, 10, MIB // 2), timeout=60)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(n * 100,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert table.count() == 40


def test_what_is_too_large_is_refused_by_name(table: Table) -> None:
    """A row of more than 1 MiB, as dict and in Arrow; a call of more than 64 MiB."""
    for rows in (
        {"id": 1, "name": "x" * (MIB + 1)},
        wide(0, 1, MIB + 1),
        pa.concat_tables([wide(0, 200, 100), wide(200, 1, MIB + 1)]),
        wide(0, 140, MIB // 2),
    ):
        with pytest.raises(TooLarge):
            table.upsert(rows, timeout=60)
    assert table.count() == 0


def test_a_load_of_any_size_is_cut_into_calls(make: Make) -> None:
    """`load` and `load_batches`: all rows, tablet by tablet."""
    table = make(partition=hash_partition("id", 3))
    rows = wide(0, 6000, 1000)
    assert table.load(rows.slice(0, 2000), batch_bytes=MIB) == 2000
    parts = [part.num_rows for part in table.load_batches(rows.slice(2000), batch_bytes=MIB)]
    assert sum(parts) == 4000
    assert len(parts) >= 4
    assert holds(table, rows)


def test_a_call_that_comes_too_late_says_so_in_time(table: Table) -> None:
    """By its deadline, and whether it may have been begun. The least deadline over HTTP is 1 ms: no
    server takes 4 MiB in that."""
    table.upsert({"id": 1})
    in_time = 0
    for number in range(4):
        began = time.monotonic()
        rows = wide(1000 * (number + 1), 64, MIB // 16)
        try:
            table.upsert(rows, timeout=1e-9)
        except (DeadlineExpired, OutcomeUnknown):
            pass
        else:
            in_time += 1
            assert table.get(1000 * (number + 1)) is not None
        assert time.monotonic() - began < 50.0
    assert in_time < 4
    assert table.get(1) is not None
