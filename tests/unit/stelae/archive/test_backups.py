"""Backups of a cluster's tables: what comes back is what was, whatever went on meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import stelae
from stelae.archive import backup as archive_backup
from stelae.archive import restore as archive_restore
from stelae.archive import targets as archive_targets
from stelae.archive.folder import Archive
from stelae.cli.table import backup as cli_backup
from stelae.cli.table.backup import backup_app
from stelae.client.table import snapshots
from stelae.connectors import data_tasks
from stelae.core.errors import (
    ArchiveBusy,
    CorruptData,
    InvalidArgument,
    SnapshotLost,
    TableExists,
    TableNotFound,
    TabletNotReady,
    TooManyReplicas,
    Unavailable,
)
from stelae.core.schema.durability import replicas, segments, wal
from stelae.core.schema.partition import hash_partition, range_partition
from tests.served import served
from tests.unit.stelae.database.test_transfers import VALUES

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("cluster")
    with served(folder, tservers=3, safekeepers=3) as here, here.database() as found:
        yield found


def rows_of(first: int, count: int, word: str = "w") -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": ids, "word": [f"{word}{n}" for n in ids]}, schema=SCHEMA)


def fill(database: Any, name: str, count: int = 2000, durability: Any = None) -> pa.Table:
    table = database.create_table(
        name,
        SCHEMA,
        key="id",
        partition=hash_partition("id", 3),
        durability=durability or segments("disk"),
    )
    rows = rows_of(0, count)
    table.load(rows)
    return rows


@pytest.fixture
def tables(database: Any) -> Iterator[None]:
    """None of the test's tables are left to others."""
    yield
    for name in database.tables():
        database.delete_table(name)


@pytest.mark.parametrize("durability", [segments("disk"), replicas(3), wal(3)], ids=str)
def test_backups_are_incremental_and_come_back(
    database: Any, tables: None, tmp_path: Path, durability: Any
) -> None:
    """A second one stores what has changed; each is restored by itself, beside the table."""
    fill(database, "t", durability=durability)
    database.create_index("t", "word")
    url, seen = str(tmp_path / "archive"), list[tuple[int, int]]()
    first = database.backup(url, progress=lambda *told: seen.append(told))
    assert seen[-1] == (2000, 2000)
    assert first["rows"] == 2000
    before = database["t"].scan().sort_by("id")
    database["t"].upsert(rows_of(100, 20, "changed"))
    database["t"].delete([1, 2, 3])
    after = database["t"].scan().sort_by("id")
    second = database.backup(url)
    assert second["rows"] == 1997
    assert 0 < second["stored_bytes"] < first["stored_bytes"] / 2
    third = database.backup(url)
    assert third["stored_bytes"] == 0
    assert third["size_bytes"] == second["size_bytes"]
    made = database.restore(
        url, {"t": "old"}, backup=first["id"], progress=lambda *told: seen.append(told)
    )
    assert seen[-1] == (4000, 4000)
    assert made["tables"] == [{"name": "old", "of": "t", "rows": 2000}]
    database.restore(url, {"t": "new"})
    assert database["old"].scan().sort_by("id") == before
    assert database["new"].scan().sort_by("id") == after == database["t"].scan().sort_by("id")
    assert [index["column"] for index in database["old"].indexes] == ["word"]
    assert database["old"].find("word", "w7")["id"].to_pylist() == [7]
    assert len(database.locate_table("old")) == 3
    there = {t["name"]: t["durability"] for t in database.status()["tables"]}
    assert there["old"] == there["t"]
    assert sorted(database.tables()) == ["new", "old", "t"]
    listed = stelae.list_backups(url)
    assert [each["id"] for each in listed] == [third["id"], second["id"], first["id"]]
    assert stelae.verify_backups(url)["damaged"] == []
    assert stelae.prune_backups(url, 1)["dropped"] == [first["id"], second["id"]]
    database.restore(url, {"t": "newest"})
    assert database["newest"].scan().sort_by("id") == after


def test_every_type_and_an_object_store(database: Any, tables: None) -> None:
    """Intervals too, which Parquet cannot keep; with nulls; ranges of a key; an empty table."""
    kinds = [*VALUES, (pa.month_day_nano_interval(), [(1, 2, 3)])]
    fields, columns = [pa.field("id", pa.int32(), nullable=False)], [pa.array(range(6), pa.int32())]
    for place, (kind, values) in enumerate(kinds):
        fields.append(pa.field(f"c{place}", kind))
        columns.append(pa.array([None, *values, *[values[0]] * 5][:6], kind))
    schema = pa.schema(fields)
    table = database.create_table(
        "types",
        schema,
        key="id",
        partition=range_partition("id", [2, 4]),
        durability=segments("disk"),
    )
    table.upsert(pa.table(columns, schema=schema))
    database.create_table("empty", SCHEMA, key="id", durability=segments("disk"))
    url = "memory://bucket/types"
    assert database.backup(url)["rows"] == 6
    assert database.backup(url)["stored_bytes"] == 0
    rows = table.scan()
    database.delete_table("types")
    database.delete_table("empty")
    database.restore(url)
    assert database["types"].schema == schema
    assert database["types"].scan() == rows
    assert len(database.locate_table("types")) == 3
    assert database["empty"].count() == 0
    assert stelae.prune_backups(url, 1)["files"] == 0


def test_columns_that_change_make_it_anew(database: Any, tables: None, tmp_path: Path) -> None:
    """Rows that were stored lack the column; a new name of the table is no matter."""
    fill(database, "t")
    url = str(tmp_path)
    database.backup(url)
    database["t"].rename("u")
    assert database.backup(url)["stored_bytes"] == 0
    database["u"].alter(add_columns={"more": pa.int8()}, defaults={"more": 5})
    database["u"].upsert({"id": 1, "word": "x", "more": 6})
    rows = database["u"].scan().sort_by("id")
    database.backup(url)
    database.restore(url, {"u": "v"})
    assert database["v"].scan().sort_by("id") == rows
    database.restore(url, {"t": "old"})
    assert database["old"].schema == SCHEMA


def test_writes_go_on_and_servers_end(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tablet whose pin is lost is pinned anew; a server that ends again and again is too much."""
    fill(database, "t")
    real, lost = snapshots.read_pinned, list[str]()
    times = 1

    async def losing(runtime: Any, snapshot: Any, tablet: Any, *rest: Any, **more: Any) -> Any:
        given = 0
        async for batch in real(runtime, snapshot, tablet, *rest, **more):
            yield batch.slice(0, 100)
            given += 1
            if lost.count(tablet.tablet_id) < times:
                lost.append(tablet.tablet_id)
                raise SnapshotLost(tablet.tablet_id, "server", "it ended")
            yield batch.slice(100)

    monkeypatch.setattr(archive_backup, "read_pinned", losing)
    ended = threading.Event()

    def write() -> None:
        number = 10_000
        while not ended.is_set():
            database["t"].upsert({"id": number, "word": "later"})
            number += 1

    writer, seen = threading.Thread(target=write), list[tuple[int, int]]()
    writer.start()
    try:
        made = database.backup(str(tmp_path), progress=lambda *told: seen.append(told))
    finally:
        ended.set()
        writer.join()
    assert len(lost) == 3
    assert made["rows"] >= 2000
    assert seen[-1] == (made["rows"], made["rows"])
    times = 100
    with pytest.raises(SnapshotLost):
        database.backup(str(tmp_path), full=True)
    monkeypatch.undo()
    database.restore(str(tmp_path), {"t": "copy"})
    found = database["copy"].scan().sort_by("id")
    assert found.num_rows == made["rows"]
    assert found.slice(0, 2000) == rows_of(0, 2000)
    later = found.slice(2000)["id"].to_pylist()
    assert set(later) <= set(range(10_000, 10_000 + len(database["t"])))


def test_a_table_that_is_renamed_meanwhile_is_not_missed(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is dropped in the way; one saved under its former name is there once."""
    for name in "abcd":
        fill(database, name, 10)
    real = data_tasks.pin

    def renaming(link: Any, name: str, *rest: Any) -> Any:
        if name == "b":
            database["a"].rename("e")
            database["c"].rename("f")
            database.delete_table("d")
        return real(link, name, *rest)

    monkeypatch.setattr(archive_backup, "pin", renaming)
    made = database.backup(str(tmp_path))
    assert [table["name"] for table in made["tables"]] == ["a", "b", "f"]


def test_a_table_that_goes_while_it_is_read_is_no_matter_to_others(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dropped, one renamed as its pins are lost; of one that cannot be read the name told."""
    for name in "abc":
        fill(database, name, 300)
    real, lost = snapshots.read_pinned, set[str]()

    async def losing(runtime: Any, snapshot: Any, tablet: Any, *rest: Any, **more: Any) -> Any:
        async for batch in real(runtime, snapshot, tablet, *rest, **more):
            if tablet.tablet_id not in lost and snapshot.table.name != "c":
                if first := snapshot.table.name not in lost:
                    lost.add(snapshot.table.name)
                lost.add(tablet.tablet_id)
                if first and snapshot.table.name == "a":
                    await asyncio.to_thread(database.delete_table, "a")
                elif first:
                    await asyncio.to_thread(database["b"].rename, "e")
                raise SnapshotLost(tablet.tablet_id, "server", "it ended")
            yield batch

    with monkeypatch.context() as here:
        here.setattr(archive_backup, "read_pinned", losing)
        made = database.backup(str(tmp_path))
    assert [(table["name"], table["rows"]) for table in made["tables"]] == [("b", 300), ("c", 300)]
    pin = data_tasks.pin

    def waiting(link: Any, name: str, *rest: Any) -> Any:
        if name == "e":
            raise TabletNotReady("tablet", "it waits for accept-loss")
        return pin(link, name, *rest)

    monkeypatch.setattr(archive_backup, "pin", waiting)
    with pytest.raises(TabletNotReady) as refused:
        database.backup(str(tmp_path))
    assert "table 'e'" in refused.value.__notes__[0]
    assert database.backup(str(tmp_path), ["c"])["rows"] == 300


def test_a_restore_goes_on_where_it_broke_off(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is whole the table has another name, and is in no backup."""
    rows = fill(database, "t")
    url = str(tmp_path)
    made = database.backup(url)
    real, calls = archive_restore._rows_of, list[int]()

    def breaking(*given: Any) -> Any:
        calls.append(1)
        if len(calls) > 4:  # the fourth is the second that is loaded
            raise Unavailable("the store", "it is away")
        return real(*given)

    monkeypatch.setattr(archive_restore, "_rows_of", breaking)
    with pytest.raises(Unavailable):
        database.restore(url, {"t": "again"})
    monkeypatch.undo()
    left = archive_targets.temporary_name("again", made["id"])
    assert sorted(database.tables()) == [left, "t"]
    assert [t["name"] for t in database.backup(str(tmp_path / "other"))["tables"]] == ["t"]
    database[left].delete(5)
    database.restore(url, {"t": "again"})
    assert sorted(database.tables()) == ["again", "t"]
    assert database["again"].scan().sort_by("id") == rows


def test_two_restores_of_the_same_are_not_at_the_same_time(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is refused; without a mark, what the first has renamed is left alone."""
    rows = fill(database, "t")
    url = str(tmp_path)
    made = database.backup(url)
    left = archive_targets.temporary_name("u", made["id"])
    real, calls = archive_restore._rows_of, list[int]()
    on_load: list[Callable[[], Any]] = []

    def meanwhile(*given: Any) -> Any:
        found = real(*given)
        if on_load and left in database.tables():
            calls.append(1)
            on_load.pop()()
        return found

    def again() -> None:
        with pytest.raises(ArchiveBusy, match=r"as 'u' in .* is being restored by process"):
            database.restore(url, {"t": "u"})
        database.restore(url, {"t": "v"})
        with pytest.raises(ArchiveBusy, match="is being restored"):
            stelae.prune_backups(url, 1)

    def take() -> None:
        database[left].rename("u")
        database["u"].upsert(rows_of(0, 2000, "newer"))

    def unmarked(*_: Any) -> None:
        raise InvalidArgument("no permission")

    monkeypatch.setattr(archive_restore, "_rows_of", meanwhile)
    monkeypatch.setattr(archive_restore, "FILES", 1)
    on_load.append(again)
    database.restore(url, {"t": "u"})
    assert database["u"].scan().sort_by("id") == database["v"].scan().sort_by("id") == rows
    database.delete_table("u")
    on_load.append(take)
    monkeypatch.setattr(Archive, "mark", unmarked)
    with pytest.raises(ArchiveBusy, match="renamed or dropped meanwhile"):
        database.restore(url, {"t": "u"})
    assert len(calls) == 2
    assert database["u"].scan().sort_by("id") == rows_of(0, 2000, "newer")


def test_a_restore_of_several_goes_on_between_their_names(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that have their names are skipped; what was left must be what is wanted."""
    for name in "ab":
        fill(database, name, 300)
    url = str(tmp_path)
    made = database.backup(url)
    names = {"a": "x", "b": "y"}
    real = archive_targets.Targets.rename

    def breaking(self: Any, name: str) -> None:
        if name == "b":
            raise Unavailable("the masters", "they are away")
        real(self, name)

    with monkeypatch.context() as here:
        here.setattr(archive_targets.Targets, "rename", breaking)
        with pytest.raises(Unavailable):
            database.restore(url, names)
    left = archive_targets.temporary_name("y", made["id"])
    assert sorted(database.tables()) == ["a", "b", "x", left]
    database["x"].upsert({"id": 1000, "word": "in use"})
    with pytest.raises(TableExists):
        database.restore(url, {"a": "b", "b": "y"})  # the table "b" did not come from there
    with pytest.raises(InvalidArgument, match="another durability"):
        database.restore(url, names, durability=wal(3))
    done = database.restore(url, names)
    assert done["skipped"] == ["x"]
    assert [table["name"] for table in done["tables"]] == ["y"]
    assert database["x"].count() == 301
    assert database["y"].count() == 300
    with pytest.raises(TableExists):
        database.restore(url, names)


def test_nothing_is_written_over_and_refusals_name_the_way_out(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that is there, one that is not, a durability that the cluster lacks, damage."""
    rows = fill(database, "t", 300)
    url = str(tmp_path)
    made = database.backup(url, ["t"])
    with pytest.raises(TableExists, match="'t'") as refused:
        database.restore(url)
    assert f"stelae backup restore {url} t=t_restored" in refused.value.__notes__[-1]
    with pytest.raises(TableNotFound):
        database.backup(url, ["t", "nowhere"])
    with pytest.raises(InvalidArgument, match="no table 'nowhere'; it has t"):
        database.restore(url, ["nowhere"])

    def refuse(_: Any, name: str, *given: Any, **more: Any) -> None:
        raise TooManyReplicas(f"table {name!r}", 1, "nvme", 0)  # masters take half a minute for it

    with monkeypatch.context() as fewer:
        fewer.setattr(type(database), "create_table", refuse)
        with pytest.raises(TooManyReplicas) as lacking:
            database.restore(url, {"t": "u"}, durability=segments("nvme"))
    assert "--durability" in lacking.value.__notes__[0]
    assert database.tables() == ["t"]
    [*_, file] = sorted((tmp_path / "data").glob("*.rows"))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptData, match="nothing was restored") as damaged:
        database.restore(url, {"t": "u"}, backup=made["id"])
    assert "stored anew" in damaged.value.__notes__[0]
    assert database.tables() == ["t"]
    file.unlink()
    database.backup(url)
    database.restore(url, {"t": "u"})
    assert database["u"].scan().sort_by("id") == rows


def test_the_command_line(
    database: Any, tables: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All five, in words and as JSON; damage is exit code 1."""
    monkeypatch.setattr(cli_backup, "open_cluster", lambda cluster: nullcontext(database))
    rows = fill(database, "t", 500)
    run = CliRunner(env={"COLUMNS": "200"})
    url = str(tmp_path / "archive")

    def told(*arguments: str, code: int = 0) -> str:
        done = run.invoke(backup_app, list(arguments))
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout

    assert "holds no backup" in told("list", url)
    assert "500 rows of 1 table" in told("create", url)
    made = json.loads(told("create", url, "t", "--full", "--json"))
    assert made["stored_bytes"] == 0
    assert made["id"] in told("list", url)
    assert len(json.loads(told("list", url, "--json"))["backups"]) == 2
    assert "all whole" in told("verify", url, "--at", made["id"])
    assert "are in table u" in told("restore", url, "t=u", "--durability", "segments('disk')")
    assert json.loads(told("restore", url, "t=v", "--json"))["rows"] == 500
    assert database["v"].scan().sort_by("id") == rows
    assert "would be deleted: 1 backup and" in told("prune", url, "--keep", "1", "--dry-run")
    assert "kept: 1 backup; deleted: 1 backup and" in told("prune", url, "--keep", "1")
    assert json.loads(told("prune", url, "--keep", "1", "--json"))["dropped"] == []
    [file, *_] = (tmp_path / "archive" / "data").glob("*.rows")
    file.unlink()
    assert "remove the file" in told("verify", url, code=1)
    assert json.loads(told("verify", url, "--json", code=1))["damaged"][0]["tables"] == ["t"]
