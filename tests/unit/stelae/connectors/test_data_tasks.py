"""What tasks of Ray Data do, without Ray: pinned reads, and writes that are repeated."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stelae.connectors import data_tasks
from stelae.connectors.data_tasks import WriteId
from stelae.core.errors import InvalidArgument, RowExists, SnapshotLost
from stelae.core.messages.rows import WriteOp
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.partition import hash_partition
from tests.served import Served, served

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("word", pa.string())])
ROWS = 3000


def rows(first: int, count: int, word: str = "w") -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": list(ids), "word": [f"{word}{n}" for n in ids]}, schema=SCHEMA)


def create(here: Served, name: str, durability: Any) -> Any:
    made = here.cluster.database.create_table(
        name, SCHEMA, key="id", partition=hash_partition("id", 3), durability=durability
    )
    return here.run(made)


def read(here: Served, snapshot: Any, where: Any = (), names: Any = ("id", "word")) -> pa.Table:
    target = pa.schema([SCHEMA.field(name) for name in names])
    found = data_tasks.read_tablets(here.link, snapshot, snapshot.tablets, names, where, target)
    return pa.concat_tables([target.empty_table(), *found])


@pytest.mark.parametrize("durability", [segments("disk", "disk"), replicas(3)], ids=str)
def test_a_pinned_table_is_read_the_same_again_whatever_is_written(
    durability: Any, tmp_path: Path
) -> None:
    """In the same order, too: Ray makes lost blocks anew, and believes that they are the same."""
    with served(tmp_path, tservers=3) as here:
        table = create(here, "t", durability)
        here.run(table.upsert(rows(0, ROWS)))
        snapshot = data_tasks.pin(here.link, "t", 60.0)
        assert snapshot.row_count == ROWS
        assert len(snapshot.tablets) == 3
        first = read(here, snapshot)
        assert first.sort_by("id") == rows(0, ROWS)
        here.run(table.upsert(rows(0, ROWS // 2, "new")))
        here.run(table.delete(list(range(ROWS // 2, ROWS))))
        here.run(table.upsert(rows(ROWS, 100)))
        here.run(table.alter(add_columns={"more": pa.int16()}, rename_columns={"word": "text"}))
        assert read(here, snapshot) == first
        some = read(here, snapshot, ((("id", "<", 10),),), ("word",))
        assert sorted(some["word"].to_pylist()) == sorted(f"w{n}" for n in range(10))
        assert len(here.run(table.scan())) == ROWS // 2 + 100
        data_tasks.release(here.link, snapshot)
        with pytest.raises(SnapshotLost, match="read the table anew"):
            read(here, snapshot)


def test_a_snapshot_whose_tablet_has_gone_is_lost_and_says_so(tmp_path: Path) -> None:
    """Keeping it does not bring it back with other rows; others of the table are still there."""
    with served(tmp_path, tservers=2) as here:
        table = create(here, "t", segments("disk"))
        here.run(table.upsert(rows(0, ROWS)))
        snapshot = data_tasks.pin(here.link, "t", 60.0)
        gone = snapshot.tablets[0]
        server = next(s for s in here.cluster.tservers if gone.tablet_id in s._tablets)
        server._scans.drop(gone.tablet_id)
        assert data_tasks.keep(here.link, snapshot) == [gone]
        with pytest.raises(SnapshotLost, match=gone.tablet_id):
            read(here, snapshot)
        target = SCHEMA
        rest = data_tasks.read_tablets(
            here.link, snapshot, snapshot.tablets[1:], ("id", "word"), (), target
        )
        assert sum(part.num_rows for part in rest) == ROWS - gone.row_count


def test_pins_end_when_nobody_keeps_them_and_all_of_them_when_memory_lacks(tmp_path: Path) -> None:
    """A pin is no leak: what only it holds is not counted."""
    with served(tmp_path, tservers=1) as here:
        here.run(create(here, "t", segments("disk")).upsert(rows(0, 10)))
        pins = here.cluster.tservers[0]._pins
        data_tasks.pin(here.link, "t", 0.3)
        assert len(pins) == 3
        here.run(asyncio.sleep(1.6))
        assert not len(pins)
        data_tasks.pin(here.link, "t", 60.0)
        here.cluster.tservers[0].cleaner.limit_bytes = 1
        here.run(asyncio.sleep(1.3))
        assert not len(pins)


def write(here: Served, op: WriteOp, blocks: list[pa.Table], write_id: str = "one") -> int:
    return data_tasks.write_blocks(here.link, "t", op, blocks, WriteId(write_id), 0)


def test_a_write_task_run_again_writes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upsert does not undo what others wrote since, and an insert does not meet itself."""
    monkeypatch.setattr(data_tasks, "CALL_BYTES", 4000)
    with served(tmp_path) as here:
        table = create(here, "t", segments("disk", "disk"))
        blocks = [rows(0, ROWS), rows(ROWS, 500)]
        assert write(here, WriteOp.INSERT, blocks) == ROWS + 500
        here.run(table.upsert({"id": 7, "word": "newer"}))
        here.run(table.delete(8))
        assert write(here, WriteOp.INSERT, blocks) == ROWS + 500
        assert here.run(table.get(7))["word"] == "newer"
        assert here.run(table.get(8)) is None
        with pytest.raises(RowExists):
            write(here, WriteOp.INSERT, blocks, "another write")
        other = [rows(0, ROWS, "other"), rows(ROWS, 500)]
        assert write(here, WriteOp.UPSERT, other) == ROWS + 500, "other rows are other requests"
        assert here.run(table.get(8))["word"] == "other8"


def test_a_write_task_that_broke_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is lost of it, and none comes twice."""
    monkeypatch.setattr(data_tasks, "CALL_BYTES", 3000)  # a window of calls, and some more
    with served(tmp_path) as here:
        table = create(here, "t", segments("disk", "disk"))

        def broken() -> Iterator[pa.Table]:
            yield rows(0, ROWS)
            raise ConnectionError("the worker died")

        with pytest.raises(ConnectionError):
            data_tasks.write_blocks(here.link, "t", WriteOp.INSERT, broken(), WriteId("one"), 0)
        assert 0 < here.run(table.count()) < ROWS
        assert write(here, WriteOp.INSERT, [rows(0, ROWS)]) == ROWS
        assert here.run(table.scan()).sort_by("id") == rows(0, ROWS)


def test_a_batch_of_a_stream_comes_again_until_the_next_one_begins(tmp_path: Path) -> None:
    """However late; a task of it that comes later still writes nothing, though it never did."""
    with served(tmp_path) as here:
        table = create(here, "t", segments("disk", "disk"))

        def write_batch(batch: int, blocks: list[pa.Table], task: int = 0) -> int:
            write_id = WriteId("stream", batch)
            return data_tasks.write_blocks(here.link, "t", WriteOp.UPSERT, blocks, write_id, task)

        def remembered() -> list[Any]:
            servers = here.cluster.tservers
            return [each._memory.results for s in servers for each in s._tablets.values()]

        assert write_batch(3, [rows(0, 100)]) == 100
        here.run(table.upsert({"id": 7, "word": "newer"}))
        for results in remembered():
            results.forget_before(1e12, 1e12, 1 << 60)
        assert write_batch(3, [rows(0, 100)]) == 100
        assert here.run(table.get(7))["word"] == "newer"
        assert write_batch(4, [rows(0, 100, "next")]) == 100
        for task in (0, 1):
            with pytest.raises(InvalidArgument, match="batch 3 of stream"):
                write_batch(3, [rows(0, 100)], task)
        assert here.run(table.get(7))["word"] == "next7"
        assert [len(results) for results in remembered()] == [1, 1, 1], "the last batch's"


def test_tasks_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    """What a closure of a read task has is small, and survives pickling."""
    with served(tmp_path) as here:
        here.run(create(here, "t", segments("disk")).upsert(rows(0, 10)))
        snapshot = data_tasks.pin(here.link, "t", 60.0)
        copied = pickle.loads(pickle.dumps(snapshot))
        assert len(pickle.dumps(snapshot)) < 10_000
        assert read(here, copied).num_rows == 10


def test_blocks_are_cut_the_same_however_the_rows_come() -> None:
    """By rows: what Ray makes anew has to be the same block by block."""

    async def batches(*sizes: int) -> Any:
        start = 0
        for size in sizes:
            yield rows(start, size).to_batches()[0]
            start += size

    def cut(*sizes: int) -> list[int]:
        runner = asyncio.Runner()
        with runner:
            found = list(data_tasks._tables(batches(*sizes), runner.run, SCHEMA, 10))
        assert pa.concat_tables(found) == rows(0, sum(sizes))
        return [table.num_rows for table in found]

    assert cut(25) == cut(5, 20) == cut(1, 9, 14, 1) == cut(10, 15) == [10, 10, 5]
    assert cut(20) == cut(19, 1) == [10, 10]
