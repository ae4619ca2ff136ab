"""``stelae table import`` and ``export`` with one file: exact both ways, bounded, told by row."""

from __future__ import annotations

import datetime
import io
import json
import math
import os
import stat
import sys
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stelae.cli.files import importing, reading, writing
from stelae.cli.files.formats import Format, Input, is_one_file
from stelae.core.errors import InvalidArgument, Unavailable
from stelae.database.api import Database
from tests.front.cli_here import DISK, Run, done, lines_of, make, row_of

WORDS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
ON_DISK = ("--durability", str(DISK))
FLAT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 127]),
    (pa.uint64(), [0, (1 << 64) - 1]),
    (pa.float16(), [0.5, -1.0]),
    (pa.float32(), [0.1, math.inf]),
    (pa.float64(), [0.1, -math.inf, 5e-324, 1.7976931348623157e308, -0.0]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "null", "NA", 'a "quoted", text', "two\nlines\r\n", " \u00e9\U0001f600"]),
    (pa.binary(), [b"", b"\x00\xff\xfe"]),
    (pa.binary(3), [b"abc"]),
    (pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    (pa.timestamp("s"), [datetime.datetime(1969, 12, 31, 23, 59, 59)]),
    (pa.timestamp("ms"), [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59)]),
    (pa.date64(), [datetime.date(1969, 12, 31)]),
    (pa.timestamp("us", "Europe/Paris"), [datetime.datetime(2026, 3, 29, 1, 30, 0, 1)]),
    (pa.timestamp("ns"), [1, -1, (1 << 62) + 1]),
    (pa.time32("ms"), [1, 86_399_999]),
    (pa.time64("ns"), [1]),
    (pa.duration("ns"), [-1, 1 << 62]),
    (pa.decimal128(20, 3), [-12345, 1]),
    (pa.uuid(), [b"0123456789abcdef"]),
]
NESTED: list[tuple[pa.DataType, list[Any]]] = [
    (pa.list_(pa.int32()), [[], [1, None]]),
    (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}]),
    (pa.map_(pa.string(), pa.float64()), [[("k", 1.5)]]),
    (pa.list_(pa.large_binary()), [[b"\x00\xff", None]]),
]


def rows_of(kinds: list[tuple[pa.DataType, list[Any]]], count: int = 40) -> pa.Table:
    """All values of all types, with nulls between them."""
    fields = [pa.field("id", pa.int32(), nullable=False)]
    columns = [pa.array(range(count), pa.int32())]
    for place, (kind, values) in enumerate(kinds):
        picks = [*values, None]
        listed = [picks[row % len(picks)] for row in range(count)]
        fields.append(pa.field(f"c{place}", kind))
        columns.append(pa.array(listed, kind))
    return pa.table(columns, schema=pa.schema(fields))


def fill(database: Database, name: str, count: int) -> pa.Table:
    table = make(database, name, WORDS, "id")
    rows = pa.table({"id": range(count), "word": [f"w{n}" for n in range(count)]}, schema=WORDS)
    table.load(rows)
    return rows


def scanned(database: Database, name: str) -> pa.Table:
    return database[name].scan().sort_by("id")


# ---- there and back -------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson"])
def test_every_value_comes_back_as_it_was(
    run_here: Run, small_database: Database, tmp_path: Path, suffix: str
) -> None:
    """Also null next to empty text, and the least and largest values of each type."""
    kinds = FLAT if suffix == "csv" else [*FLAT, *NESTED]
    rows = rows_of(kinds)
    make(small_database, "t", rows.schema, "id").load(rows)
    make(small_database, "copy", rows.schema, "id")
    file = str(tmp_path / f"t.{suffix}")
    assert done(run_here, "table", "export", "t", file) == f"40 rows of t are in {file}\n"
    assert done(run_here, "table", "import", "copy", file) == (
        f"40 rows of {file} are in table copy\n"
    )
    assert scanned(small_database, "copy").equals(rows)


@pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson"])
def test_rows_pass_through_a_pipe(run_here: Run, small_database: Database, kind: str) -> None:
    """From standard output to standard input; what is said besides is on standard error."""
    rows = fill(small_database, "t", 300)
    make(small_database, "copy", WORDS, "id")
    sink = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(sink, write_through=True))
        code, _, err = run_here("table", "export", "t", "-", "--format", kind)
        data = sink.getvalue()
    assert (code, err.strip()) == (0, "300 rows of t are in standard output")
    told = done(run_here, "table", "import", "copy", "-", "--format", kind, "--json", stdin=data)
    assert json.loads(told) == {"table": "copy", "rows": 300, "file": "-"}
    assert scanned(small_database, "copy") == rows


def test_a_file_in_many_pieces_is_read_and_written_in_bounded_memory(
    run_here: Run, small_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No piece is larger than its bound, whatever the format; all rows arrive, in many calls."""
    rows = fill(small_database, "t", 5000)
    monkeypatch.setattr(reading, "PIECE_BYTES", 10_000)
    monkeypatch.setattr(importing, "CALL_BYTES", 3000)
    for kind in ("parquet", "csv", "ndjson"):
        file = tmp_path / f"t.{kind}"
        done(run_here, "table", "export", "t", str(file))
        sizes: list[int] = []
        with reading.row_file(str(file), Format(kind), "") as source:
            sizes = [piece.num_rows for piece in source.pieces(WORDS, {})]
            assert source.done == (source.done[1], source.done[1])
        assert (sum(sizes), max(sizes) < 1100) == (5000, True), (kind, sizes)
        make(small_database, kind, WORDS, "id")
        done(run_here, "table", "import", kind, str(file))
        assert scanned(small_database, kind) == rows


def test_rows_that_parquet_keeps_in_a_few_bytes_are_read_in_bounded_pieces(tmp_path: Path) -> None:
    """One long text of all rows is in the file once. A piece ends by the bytes that its rows have
    then, also with a dictionary, and with nested values."""
    count, text = 4000, "x" * 20_000
    texts = pa.array([text]).take(pa.array([0] * count))
    for name, column in {
        "plain": texts,
        "coded": texts.dictionary_encode(),
        "nested": pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), texts),
    }.items():
        file = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"t": column}), file)
        assert file.stat().st_size < 1 << 20
        with reading.row_file(str(file), Format.PARQUET, "") as source:
            pieces = [(piece.num_rows, piece.nbytes) for piece in source.pieces(WORDS, {})]
        assert sum(rows for rows, _ in pieces) == count
        assert max(rows for rows, _ in pieces) * len(text) < 2 * reading.PIECE_BYTES, name
        assert max(size_bytes for _, size_bytes in pieces) < 2 * reading.PIECE_BYTES, name


def test_small_rows_of_parquet_are_many_in_a_piece(tmp_path: Path) -> None:
    """Calls of a hundred rows would take long; rows of nulls have an end, too."""
    pq.write_table(pa.table({"id": range(300_000)}), tmp_path / "t.parquet")
    pq.write_table(pa.table({"n": pa.nulls(300_000)}), tmp_path / "n.parquet")
    for name in ("t", "n"):
        with (
            pytest.MonkeyPatch.context() as patch,
            reading.row_file(str(tmp_path / f"{name}.parquet"), Format.PARQUET, "") as source,
        ):
            patch.setattr(reading, "PIECE_BYTES", 1 << 17)
            sizes = [piece.num_rows for piece in source.pieces(WORDS, {})]
        assert sum(sizes) == 300_000
        assert 10_000 < max(sizes) < 140_000, name


# ---- new tables -----------------------------------------------------------------------------


def test_an_import_makes_the_table_of_the_file(
    run_here: Run, small_database: Database, tmp_path: Path
) -> None:
    """By --create, with the file's columns; again it writes to the table that is there."""
    rows = rows_of(FLAT[:5])
    file = str(tmp_path / "t.parquet")
    pq.write_table(rows, file)
    create = ("table", "import", "t", file, "--create", "--key", "id", *ON_DISK)
    for _ in range(2):
        assert "40 rows" in done(run_here, *create, "--partitions", "3")
    assert scanned(small_database, "t").equals(rows)
    assert len(small_database.locate_table("t")) == 3
    code, _, err = run_here("table", "import", "t", file, "--create", "--key", "id,c0")
    assert (code, "has the key id" in err) == (2, True)
    code, _, err = run_here("table", "import", "new", file)
    assert (code, "--create --key COLUMN makes it" in err) == (1, True)
    code, _, err = run_here("table", "import", "new", file, "--create")
    assert (code, "needs --key: some of id, c0" in err) == (2, True)


def test_the_types_of_text_are_those_that_keep_it(
    run_here: Run, small_database: Database, tmp_path: Path
) -> None:
    """A column of CSV is of numbers if its texts are written as numbers are: digits after a zero
    are a code, and stay text. JSON says its types itself."""
    (tmp_path / "t.csv").write_text(
        "id,zip,price,day,at,zone,ok,none,mixed\n"
        "1,01234,1.5,2026-11-30,2026-11-30 08:00:00,2026-11-30T08:00:00Z,true,NA,1\n"
        '2,56789,NA,2026-12-01,2026-11-30 08:00:00.5,2026-11-30T08:00:00+01:00,false,NA,"a, b"\n'
    )
    create = ("--create", "--key", "id", *ON_DISK)
    done(run_here, "table", "import", "t", str(tmp_path / "t.csv"), "--null", "NA", *create)
    table = small_database["t"]
    assert [str(field.type) for field in table.schema] == [
        *("int64", "string", "double", "date32[day]", "timestamp[us]", "timestamp[us, tz=UTC]"),
        *("bool", "string", "string"),
    ]
    found = row_of(table, 2)
    assert (found["zip"], found["price"], found["mixed"]) == ("56789", None, "a, b")
    assert found["zone"] == datetime.datetime(2026, 11, 30, 7, tzinfo=datetime.UTC)
    lines = '{"id": 1, "name": "1", "tags": ["a"]}\n{"id": 2, "more": {"x": 1.5}}\n'
    (tmp_path / "j.jsonl").write_text(lines)
    done(run_here, "table", "import", "j", str(tmp_path / "j.jsonl"), *create)
    assert row_of(small_database["j"], 1) == {"id": 1, "name": "1", "tags": ["a"], "more": None}
    assert row_of(small_database["j"], 2)["more"] == {"x": 1.5}


# ---- what is refused ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "code", "said"),
    [
        ("t.csv", "id,word\n1,a\n2.5,b\n", 2, "column 'id', row 1: '2.5' is not an integer"),
        ("t.csv", "id,word\n1,a\n,b\n", 2, "column 'id'"),
        ("t.csv", "id,colour\n1,red\n", 1, "no column 'colour'"),
        ("t.csv", "id,id\n1,1\n", 2, "column 'id' is there twice"),
        ("t.csv", "", 2, "is empty: its first line names the columns"),
        ("t.csv", "id,word\n1,a,b\n", 2, "Expected 2 columns, got 3"),
        ("t.csv", b"id,word\n1,\xff\n", 2, "UTF8"),
        ("t.csv", b"id,w\xf6rd\n1,a\n", 2, "the name of column 2 is not UTF-8: b'w\\xf6rd'"),
        ("t.csv", "id,word\n1,a\n".encode("utf-16"), 2, "the name of column 1 is not UTF-8"),
        ("t.ndjson", '{"id": 1}\n{"id": "2"}\n', 2, "column 'id', line 2"),
        ("t.ndjson", '{"id": 1}\n\n{"word": "x"}\n', 2, "column 'id', line 3: it may not be null"),
        ("t.ndjson", '{"id": 1}\n[2]\n', 2, "line 2: it is no JSON object"),
        ("t.ndjson", '{"id": 1, "colour": 2}\n', 1, "no column 'colour'"),
        ("t.parquet", "id,word\n1,a\n", 2, "is no Parquet file"),
        ("t.txt", "id,word\n1,a\n", 2, "does not say its format"),
        ("nowhere.csv", None, 2, "cannot be read"),
    ],
)
def test_what_does_not_fit_is_named(
    run_here: Run,
    small_database: Database,
    tmp_path: Path,
    name: str,
    text: str | bytes | None,
    code: int,
    said: str,
) -> None:
    """By column and row, in one line, with the exit code of such errors elsewhere."""
    make(small_database, "t", WORDS, "id")
    if text is not None:
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    found = run_here("table", "import", "t", str(tmp_path / name))
    assert (found[0], said in found[2]) == (code, True), found
    assert "internal error" not in found[2]


def test_an_import_that_ends_early_says_how_far_it_came(
    run_here: Run, small_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused row, an insert of a row that is there, and a cluster that is gone: the rows before
    are there, and the text says what to do; given again, the import ends the work."""
    table = make(small_database, "t", WORDS, "id")
    monkeypatch.setattr(reading, "PIECE_BYTES", 200)
    lines = ["id,word", *[f"{n},w{n}" for n in range(100)]]
    bad = tmp_path / "bad.csv"
    bad.write_text("\n".join([*lines[:60], "x,y", *lines[60:]]) + "\n")
    code, _, err = run_here("table", "import", "t", str(bad))
    assert (code, "column 'id', row 59: 'x'" in err) == (2, True), err
    assert f"{len(table)} rows of {bad} are in table 't'; mend the file" in err.replace("\n", " ")
    assert 0 < len(table) < 60

    good = tmp_path / "good.csv"
    good.write_text("\n".join(lines) + "\n")
    code, _, err = run_here("table", "import", "t", str(good), "--mode", "insert")
    assert (code, "exists already" in err, "--mode upsert" in err) == (1, True, True)

    calls = iter(range(1000))
    real = type(table).upsert

    def failing(self: Any, rows: Any, **options: Any) -> Any:
        if next(calls) == 3:
            raise Unavailable("tablet 0", "its server died")
        return real(self, rows, **options)

    monkeypatch.setattr(type(table), "upsert", failing)
    code, _, err = run_here("table", "import", "t", str(good))
    assert (code, "give the command again: the same rows" in err) == (1, True), err
    done(run_here, "table", "import", "t", str(good))
    assert len(table) == 100


def test_the_advice_after_bad_data_can_be_followed(
    run_here: Run, small_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inserts of rows that are there are refused: once some are, the same command is no way out."""
    table = make(small_database, "t", WORDS, "id")
    monkeypatch.setattr(reading, "PIECE_BYTES", 200)
    file = tmp_path / "t.csv"
    lines = ["id,word", *[f"{n},w{n}" for n in range(100)]]
    command = ("table", "import", "t", str(file), "--mode", "insert")
    for bad, said in ((1, "mend the file, and give the command again"), (60, "with --mode upsert")):
        file.write_text("\n".join([*lines[:bad], "x,y", *lines[bad:]]) + "\n")
        code, _, err = run_here(*command)
        told = " ".join(err.split())
        assert (code, said in told, "--mode upsert" in told) == (2, True, len(table) > 0), err
    assert 0 < len(table) < 60
    file.write_text("\n".join(lines) + "\n")
    assert run_here(*command)[0] == 1
    done(run_here, *command[:-2], "--mode", "upsert")
    assert len(table) == 100


def test_ctrl_c_says_how_far_an_import_came(
    run_here: Run, small_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With exit code 130, as everywhere."""
    table = make(small_database, "t", WORDS, "id")
    (tmp_path / "t.csv").write_text("id,word\n1,a\n")

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(table), "upsert", interrupted)
    code, _, err = run_here("table", "import", "t", str(tmp_path / "t.csv"))
    assert (code, "0 rows of" in err, "give the command again" in err) == (130, True, True)


def test_csv_has_no_nested_values_and_no_moments_beyond_its_years(
    run_here: Run, small_database: Database, tmp_path: Path
) -> None:
    """They are refused by column before a file is there, and by row before it has its name."""
    nested = rows_of(NESTED[:1], 3)
    make(small_database, "nested", nested.schema, "id")
    far = pa.schema([pa.field("id", pa.int64(), nullable=False), ("at", pa.timestamp("s"))])
    make(small_database, "far", far, "id").upsert({"id": 1, "at": 253_402_300_800})
    for name, said in (("nested", "column 'c0' of 'nested' has type list"), ("far", "'at', row 0")):
        code, _, err = run_here("table", "export", name, str(tmp_path / "out.csv"))
        assert (code, said in err, "parquet or ndjson" in err) == (2, True, True), err
        assert list(tmp_path.iterdir()) == []
        assert done(run_here, "table", "export", name, str(tmp_path / f"{name}.ndjson"))
        (tmp_path / f"{name}.ndjson").unlink()


def test_an_export_has_its_name_when_it_is_whole(
    run_here: Run, small_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is replaced only if that is said, and stays if the export fails."""
    fill(small_database, "t", 10)
    file = tmp_path / "t.csv"
    file.write_text("mine")
    code, _, err = run_here("table", "export", "t", str(file))
    assert (code, "say --replace" in err) == (2, True)

    def failing(_: int) -> None:
        raise OSError(28, "No space left on device")

    # The exporter's alone: the servers of this process sync as usual.
    monkeypatch.setattr(writing, "os", SimpleNamespace(**{**vars(os), "fsync": failing}))
    code, _, err = run_here("table", "export", "t", str(file), "--replace")
    assert (code, "No space left" in err, "internal error" in err) == (1, True, False), err
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("t.csv", "mine")]
    monkeypatch.setattr(writing, "os", os)
    told = json.loads(done(run_here, "table", "export", "t", str(file), "--replace", "--json"))
    assert told == {"table": "t", "rows": 10, "file": str(file), "format": "csv"}
    assert file.read_text().startswith('"id","word"\n')
    assert len(file.read_text().splitlines()) == 11
    code, _, err = run_here("table", "export", "t", str(tmp_path / "no" / "t.csv"))
    assert (code, "cannot be written" in err) == (2, True)


@pytest.mark.parametrize("kind", ["parquet", "csv", "ndjson"])
def test_pipes_devices_and_links_are_written_to_and_stay(
    run_here: Run, small_database: Database, tmp_path: Path, kind: str
) -> None:
    """A regular file put in the place of /dev/null would fill the disk of every program after."""
    fill(small_database, "t", 10)
    pipe, file, link = tmp_path / "pipe", tmp_path / "file", tmp_path / "link"
    os.mkfifo(pipe)
    file.write_bytes(b"mine")
    link.symlink_to(file)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    export = ("table", "export", "t", "--format", kind, "--replace")
    for place in (pipe, link, "/dev/null"):
        assert done(run_here, *export, str(place)) == f"10 rows of t are in {place}\n"
    reader.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()
    assert read == [file.read_bytes()]
    assert Path("/dev/null").is_char_device()
    code, _, err = run_here(*export, "/dev/full")
    assert (code, "No space left on device" in err, "internal error" in err) == (1, True, False)
    code, _, err = run_here(*export, str(tmp_path))
    assert (code, "is no file, and is not replaced" in err) == (2, True), err
    code, _, err = run_here("table", "export", "t", "/dev/null", "--format", kind)
    assert (code, "say --replace" in err) == (2, True), err


def test_a_failure_to_read_rows_is_not_told_as_one_of_the_disk(tmp_path: Path) -> None:
    """A broken connection has the same family in Python as a full disk."""
    with (
        pytest.raises(ConnectionResetError),
        writing.target_file(str(tmp_path / "t.csv"), replace=False),
    ):
        raise ConnectionResetError(104, "Connection reset by peer")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "t.csv"], "does not say which table is meant"),
        (["import", "t", "t.csv", "--key", "id"], "are for --create"),
        (["import", "t", "folder", "--create"], "taken for the folder of an export"),
        (["import", "t", "folder", "--mode", "insert"], "taken for the folder of an export"),
        (["export", "t", "-"], "does not say its format"),
        (["export", "t", "-", "--format", "csv", "--json"], "leave --json out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    run_here: Run, arguments: list[str], said: str
) -> None:
    """With exit code 2, before anything is read or written."""
    code, _, err = run_here("table", *arguments)
    assert (code, said in err.replace("\n", " ")) == (2, True), err


def test_a_folder_that_is_called_like_a_file_is_a_folder(tmp_path: Path) -> None:
    """As Spark's are; URLs are folders of exports, too."""
    (tmp_path / "t.parquet").mkdir()
    assert not is_one_file(str(tmp_path / "t.parquet"), None)
    assert is_one_file(str(tmp_path / "u.parquet"), None)
    assert not is_one_file("s3://bucket/u.parquet", None)
    assert is_one_file("-", None)
    assert is_one_file("anything", Format.CSV)


def test_defaults_fill_what_json_leaves_out(
    run_here: Run, small_database: Database, tmp_path: Path
) -> None:
    """Also where only some rows of a piece leave a column out."""
    table = make(small_database, "t", WORDS, "id")
    table.alter(defaults={"word": "none"})
    (tmp_path / "t.ndjson").write_text('{"id": 1}\n{"id": 2, "word": null}\n{"id": 3}\n')
    done(run_here, "table", "import", "t", str(tmp_path / "t.ndjson"))
    assert scanned(small_database, "t")["word"].to_pylist() == ["none", None, "none"]
    out = done(run_here, "table", "scan", "t", "--where", "id >= 2")
    assert sorted(row["id"] for row in lines_of(out)) == [2, 3]


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (pa.int8(), -1),
        (pa.uint64(), (1 << 64) - 1),
        (pa.bool_(), True),
        (pa.float16(), 0.5),
        (pa.float32(), 1.5),
        (pa.float64(), -math.inf),
        (pa.string(), "abc"),
        (pa.large_string(), "abc"),
        (pa.binary(), b"abc"),
        (pa.binary(3), b"abc"),
        (pa.large_binary(), b"abc"),
        (pa.date32(), datetime.date(2026, 1, 2)),
        (pa.date64(), datetime.date(2026, 1, 2)),
        (pa.timestamp("us"), datetime.datetime(2026, 1, 2, 3)),
        (pa.timestamp("ns", "UTC"), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
        (pa.time32("s"), datetime.time(1, 2)),
        (pa.time64("us"), datetime.time(1, 2, 3, 4)),
        (pa.duration("s"), datetime.timedelta(seconds=5)),
        (pa.duration("ns"), datetime.timedelta(microseconds=5)),
        (pa.month_day_nano_interval(), pa.MonthDayNano([1, 2, 3])),
        (pa.decimal128(10, 2), Decimal("2.50")),
        (pa.uuid(), uuid.UUID(int=5)),
        (pa.list_(pa.binary()), [b"abc"]),
        (pa.struct([("a", pa.date32())]), {"a": datetime.date(2026, 1, 2)}),
        (pa.map_(pa.string(), pa.binary()), [("k", b"abc")]),
        (pa.dictionary(pa.int32(), pa.binary()), b"abc"),
    ],
    ids=lambda each: str(each) if isinstance(each, pa.DataType) else "",
)
def test_a_default_of_any_type_stands_next_to_values_of_json(
    run_here: Run, small_database: Database, tmp_path: Path, kind: pa.DataType, default: Any
) -> None:
    """A default is no JSON: it is not read as base64, as text of a decimal, as an integer."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", kind)])
    table = make(small_database, "t", schema, "id")
    table.alter(defaults={"v": default})
    table.upsert([{"id": 1}])
    lines = done(run_here, "table", "scan", "t", "--json")
    (tmp_path / "t.ndjson").write_text(lines.replace('"id":1', '"id":2') + '{"id": 3}\n')
    done(run_here, "table", "import", "t", str(tmp_path / "t.ndjson"))
    found = scanned(small_database, "t")["v"]
    assert found.null_count == 0
    assert found.slice(0, 1).equals(found.slice(1, 1))
    assert found.slice(0, 1).equals(found.slice(2, 1))


def test_rows_after_many_blank_lines_are_read() -> None:
    """No row in a piece is not the end of the file."""
    blank = (b" " * 1023 + b"\n") * (reading.PIECE_BYTES >> 10)
    for data, count in ((b'{"id": 1}\n' + blank + b'{"id": 2}\n', 2), (blank + b'{"id": 1}\n', 1)):
        rows = reading.JsonRows("x", Input(io.BytesIO(data), 0))
        assert rows.columns() == pa.schema([("id", pa.int64())])
        assert sum(piece.num_rows for piece in rows.pieces(WORDS, {})) == count
    text = b"id,word\n" + blank.replace(b" ", b"") + b"\n" * (reading.PIECE_BYTES + 10) + b"1,a\n"
    table = reading.CsvRows("x", Input(io.BytesIO(text), 0), "")
    assert sum(piece.num_rows for piece in table.pieces(WORDS, {})) == 1


def test_a_row_of_json_may_not_be_longer_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without line ends is not read into memory."""
    monkeypatch.setattr(reading, "LINE_BYTES_MAX", 1000)
    (tmp_path / "t.ndjson").write_text('{"id": 1}\n{"id": 2, "word": "' + "x" * 5000 + '"}\n')
    with (
        reading.row_file(str(tmp_path / "t.ndjson"), Format.NDJSON, "") as source,
        pytest.raises(InvalidArgument, match="line 2: a row has over 1000 bytes"),
    ):
        list(source.pieces(WORDS, {}))
