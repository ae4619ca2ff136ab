"""Tables out to Parquet and back: what comes back is what was; what is not whole is refused."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from stelae.cli.table import transfers as cli_transfers
from stelae.cli.table.tables import table_app
from stelae.core.errors import CorruptData, InvalidArgument
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import hash_partition, range_partition
from stelae.database import transfers
from tests.served import served

_DAY = datetime.date(1969, 12, 31)
_AT = datetime.datetime(2026, 11, 26, 1, 2, 3)
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    *((kind, [0, 1, 100]) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.uint8())),
    (pa.int64(), [-(1 << 63), (1 << 63) - 1]),
    *((kind, [0, 65535]) for kind in (pa.uint16(), pa.uint32())),
    (pa.uint64(), [0, (1 << 64) - 1]),
    *((kind, [0.5, -1.0, float("inf")]) for kind in (pa.float16(), pa.float32(), pa.float64())),
    (pa.bool_(), [True, False]),
    (pa.string(), ["", "a", "\u00e9\U0001f600"]),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.binary(3), [b"abc"]),
    *((kind, [_DAY]) for kind in (pa.date32(), pa.date64())),
    *((pa.timestamp(unit), [_AT]) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("us", "Europe/Paris"), [_AT.replace(tzinfo=datetime.UTC)]),
    (pa.timestamp("s", "UTC"), [_AT.replace(tzinfo=datetime.UTC)]),
    (pa.time32("s"), [datetime.time(1, 2, 3)]),
    (pa.time32("ms"), [datetime.time(1, 2, 3)]),
    (pa.time64("us"), [datetime.time(1, 2, 3, 4)]),
    *((pa.duration(unit), [datetime.timedelta(days=2)]) for unit in ("s", "ms", "us", "ns")),
    (pa.decimal128(20, 3), [decimal.Decimal("-12345.678")]),
    (pa.decimal256(60, 1), [decimal.Decimal("1" * 50 + ".5")]),
    (pa.list_(pa.int32()), [[], [1, None]]),
    (pa.list_(pa.string(), 2), [["a", "b"]]),
    (pa.list_(pa.timestamp("s")), [[_AT]]),
    (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), [{"a": 1, "b": ["x"]}]),
    (pa.map_(pa.string(), pa.float64()), [[("k", 1.5)]]),
]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with served(tmp_path_factory.mktemp("cluster")) as here, here.database() as found:
        yield found


def fill(database: Any, name: str, count: int = 1000) -> pa.Table:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
    rows = pa.table({"id": range(count), "word": [f"w{n}" for n in range(count)]}, schema=schema)
    table = database.create_table(
        name, schema, key="id", partition=hash_partition("id", 3), durability=segments("disk")
    )
    table.upsert(rows)
    return rows


NUMBER = iter(range(1000))


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_every_type_comes_back_as_it_was(database: Any, tmp_path: Path, data: Any) -> None:
    """With nulls, in a table that the import makes, of the same key and durability."""
    number = next(NUMBER)
    fields = [pa.field("id", pa.int32(), nullable=False)]
    columns: list[pa.Array] = [pa.array(range(12), pa.int32())]
    for place, (kind, values) in enumerate(VALUES):
        picks = data.draw(st.lists(st.sampled_from([None, *values]), min_size=12, max_size=12))
        fields.append(pa.field(f"c{place}", kind))
        columns.append(pa.array(picks, kind))
    schema = pa.schema(fields)
    rows = pa.table(columns, schema=schema)
    name = f"types{number}"
    table = database.create_table(name, schema, key="id", durability=segments("disk"))
    table.upsert(rows)
    url = str(tmp_path / name)
    manifest = database.export_table(name, url)
    assert manifest["rows"] == 12
    copy = database.import_table(url, f"{name}-copy")
    assert copy.schema == table.schema
    assert copy.scan().sort_by("id") == table.scan().sort_by("id") == rows


def test_a_whole_table_goes_out_and_comes_back_twice(database: Any, tmp_path: Path) -> None:
    """Rows, key, partitioning, durability, indexes; again it is the same, whatever came between."""
    rows = fill(database, "whole")
    database.create_index("whole", "word")
    seen: list[tuple[int, int]] = []
    url = (tmp_path / "out").as_uri()
    manifest = database.export_table("whole", url, progress=lambda *told: seen.append(told))
    assert seen[-1] == (1000, 1000)
    assert manifest["rows"] == 1000
    for _ in range(2):
        copy = database.import_table(url, "copy", progress=lambda *told: seen.append(told))
        assert seen[-1] == (1000, 1000)
        assert copy.scan().sort_by("id") == rows
        copy.upsert({"id": 5, "word": "other"})
    assert [index["column"] for index in copy.indexes] == ["word"]
    there = {t["name"]: t for t in database.status()["tables"]}
    assert there["copy"]["durability"] == there["whole"]["durability"]
    assert len(database.locate_table("copy")) == 3
    with pytest.raises(InvalidArgument, match="exists"):
        database.import_table(url, "copy", durability=segments("disk", "disk"))


def test_ranges_of_dates_come_back(database: Any, tmp_path: Path) -> None:
    """The catalog keeps their splits in another form than users give them."""
    schema = pa.schema([pa.field("day", pa.date32(), nullable=False), ("n", pa.int8())])
    database.create_table(
        "days", schema, key="day", partition=range_partition("day", splits=[_DAY])
    ).upsert([{"day": _DAY, "n": 1}, {"day": datetime.date(1960, 1, 1), "n": 2}])
    database.export_table("days", str(tmp_path / "days"))
    copy = database.import_table(str(tmp_path / "days"), "days-2")
    assert copy.scan().sort_by("day")["n"].to_pylist() == [2, 1]
    assert len(database.locate_table("days-2")) == 2


def test_what_is_there_is_not_written_over(database: Any, tmp_path: Path) -> None:
    """But for an export, and only if that is said; other files never."""
    rows = fill(database, "kept")
    url = str(tmp_path / "out")
    database.export_table("kept", url)
    with pytest.raises(InvalidArgument, match="holds an export"):
        database.export_table("kept", url)
    database["kept"].delete(0)
    assert database.export_table("kept", url, replace=True)["rows"] == 999
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match=r"thesis\.txt"):
        database.export_table("kept", url, replace=True)
    with pytest.raises(InvalidArgument, match="is a file"):
        database.export_table("kept", str(tmp_path / "out" / "thesis.txt"))
    assert rows.num_rows == 1000


def test_a_half_written_export_is_none(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it broke off while it replaced one that was whole."""
    fill(database, "half")
    url = str(tmp_path / "out")
    database.export_table("half", url)
    real = transfers._write_part

    def breaking(link: Any, snapshot: Any, tablet: Any, *rest: Any) -> Any:
        if tablet is snapshot.tablets[-1]:
            raise OSError("no space left")
        return real(link, snapshot, tablet, *rest)

    monkeypatch.setattr(transfers, "_write_part", breaking)
    with pytest.raises(OSError, match="space"):
        database.export_table("half", url, replace=True)
    with pytest.raises(InvalidArgument, match="half-written"):
        database.import_table(url, "half-2")
    with pytest.raises(InvalidArgument, match="half-written"):
        database.export_table("half", url)
    assert "half-2" not in database.tables()
    with pytest.raises(InvalidArgument, match="no export"):
        database.import_table(str(tmp_path / "nowhere"), "half-2")


def test_damage_is_found_before_a_row_is_written(database: Any, tmp_path: Path) -> None:
    """A flipped bit, a cut, a missing file, a cut manifest: no table is made."""
    fill(database, "sound")
    folder = tmp_path / "out"
    database.export_table("sound", str(folder))
    part = sorted(folder.glob("part-*"))[-1]
    whole = part.read_bytes()
    part.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(CorruptData, match="checksum"):
        database.import_table(str(folder), "sound-2")
    part.write_bytes(whole[:-1])
    with pytest.raises(CorruptData, match="bytes"):
        database.import_table(str(folder), "sound-2")
    part.unlink()
    with pytest.raises(CorruptData, match="missing"):
        database.import_table(str(folder), "sound-2")
    part.write_bytes(whole)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(manifest)[:-20])
    with pytest.raises(CorruptData, match="manifest"):
        database.import_table(str(folder), "sound-2")
    assert "sound-2" not in database.tables()


def test_another_schema_is_refused_and_tells_the_difference(database: Any, tmp_path: Path) -> None:
    """Rows are never fitted to a table that has other columns."""
    fill(database, "source")
    url = str(tmp_path / "out")
    database.export_table("source", url)
    other = pa.schema([pa.field("id", pa.int64(), nullable=False), ("words", pa.string())])
    database.create_table("other", other, key="id", durability=segments("disk"))
    with pytest.raises(InvalidArgument, match="words: string"):
        database.import_table(url, "other")
    with pytest.raises(InvalidArgument, match="fsspec"):
        database.import_table("nonsense://x/y", "other")


def test_an_interval_has_no_place_in_parquet(database: Any, tmp_path: Path) -> None:
    """The export says which column it is, before it writes a file."""
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("i", pa.month_day_nano_interval())]
    )
    database.create_table("intervals", schema, key="id", durability=segments("disk"))
    with pytest.raises(InvalidArgument, match="'i'"):
        database.export_table("intervals", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_the_command_line_does_both(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says what was done, in words or as JSON; a refusal ends it."""
    monkeypatch.setattr(cli_transfers, "open_cluster", lambda cluster: nullcontext(database))
    rows = fill(database, "told")
    url, run = str(tmp_path / "out"), CliRunner()
    done = run.invoke(table_app, ["export", "told", url])
    assert "1,000 rows of told are in 3 files" in done.output, done.output
    refused = run.invoke(table_app, ["export", "told", url])
    assert isinstance(refused.exception, InvalidArgument)
    done = run.invoke(table_app, ["export", "told", url, "--replace", "--json"])
    assert json.loads(done.stdout)["rows"] == 1000
    done = run.invoke(table_app, ["import", "told-2", url, "--durability", "segments('disk')"])
    assert f"{url} is in table told-2" in done.output.replace("\n", ""), done.output
    assert database["told-2"].scan().sort_by("id") == rows
