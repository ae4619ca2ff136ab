"""Real Ray Data: tables read with push-down and written back, by tasks that are killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import ray
from ray.data.expressions import col

import stelae
from stelae.core.errors import SnapshotLost

pytestmark = [pytest.mark.ray, pytest.mark.soak]

ROWS = 40_000
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("kind", pa.string()), ("x", pa.float64())])


def generated(first: int, count: int) -> pa.Table:
    ids = np.arange(first, first + count)
    kinds = [f"k{i % 4}" for i in ids]
    return pa.table([pa.array(ids), pa.array(kinds), pa.array(ids / 2)], schema=SCHEMA)


@pytest.fixture(scope="module")
def database(
    tmp_path_factory: pytest.TempPathFactory, small_spec: Callable[..., dict[str, Any]]
) -> Iterator[Any]:
    spec = small_spec(tmp_path_factory.mktemp("raydata"))
    with stelae.launch(spec) as found:
        ray.data.DataContext.get_current().enable_progress_bars = False
        found.create_table("t", SCHEMA, key="id", partition=stelae.hash_partition("id", 4))
        found["t"].load(generated(0, ROWS))
        yield found


def sorted_ids(ds: Any) -> list[int]:
    return sorted(
        i for batch in ds.iter_batches(batch_format="pyarrow") for i in batch["id"].to_pylist()
    )


def test_columns_and_filters_are_applied_by_the_servers(database: Any) -> None:
    """Those of the call, and those that the dataset adds; what has no counterpart Ray Data does."""
    ds = stelae.data.read("t", where=[("kind", "in", ["k1", "k2"])], cluster=database)
    ds = ds.filter(expr=(col("x") < 50.0) & (col("id") >= 10)).select_columns(["id"])
    found = ds.materialize()
    assert sorted_ids(found) == [i for i in range(10, 100) if i % 4 in (1, 2)]
    assert found.schema().names == ["id"]
    source = _source_after_optimizing(ds)
    assert source.columns == ("id",)
    assert len(source.where) == 1
    assert len(source.where[0]) == 3
    odd = stelae.data.read("t", cluster=database).filter(expr=(col("id") * 2) < 7)
    assert sorted_ids(odd.select_columns(["id"])) == [0, 1, 2, 3]
    assert not _source_after_optimizing(odd).where
    assert stelae.data.read("t", columns=["x"], cluster=database).count() == ROWS
    assert stelae.data.read("t", where=[("id", "<", 5)], cluster=database).count() == 5
    assert len(stelae.data.read("t", cluster=database).take(7)) == 7


def _source_after_optimizing(ds: Any) -> Any:
    """The source as Ray Data's own rules leave it."""
    from ray.data._internal.logical.operators import Read
    from ray.data._internal.logical.optimizers import LogicalOptimizer

    plan = LogicalOptimizer().optimize(ds._logical_plan)
    return next(op for op in plan.dag.post_order_iter() if isinstance(op, Read)).datasource


def test_tasks_that_are_killed_lose_no_row_and_write_none_twice(
    database: Any, tmp_path: Path
) -> None:
    """The table is read as it was when `read` was called; an insert repeated is no `RowExists`."""
    database.create_table("copy", SCHEMA, key="id", partition=stelae.hash_partition("id", 3))
    read_once, written_once = tmp_path / "read", tmp_path / "written"

    def die_once(batch: Any) -> Any:
        if not read_once.exists():
            read_once.touch()
            os._exit(1)
        return batch

    from stelae.data import Sink

    class DyingSink(Sink):
        def write(self, blocks: Any, ctx: Any) -> int:
            count = super().write(blocks, ctx)
            if not written_once.exists():
                written_once.touch()
                os._exit(1)
            return count

    ds = stelae.data.read("t", cluster=database)
    database["t"].upsert({"id": 3, "kind": "later", "x": 0.0})
    database["t"].upsert(generated(ROWS, 1000))
    sink = DyingSink("copy", mode="insert", cluster=database)
    ds.map_batches(die_once, batch_format="pyarrow").write_datasink(sink)
    assert read_once.exists()
    assert written_once.exists()
    assert sink.rows_written == ROWS
    assert database["copy"].scan().sort_by("id") == generated(0, ROWS)

    again = stelae.data.Sink("copy", mode="insert", cluster=database)
    with pytest.raises(Exception, match="exists already"):
        stelae.data.read("copy", where=[("id", "<", 5)], cluster=database).write_datasink(again)
    assert again.error is not None


def test_a_lost_snapshot_fails_the_read_and_a_new_one_does_not(database: Any) -> None:
    """Whose server ended: nothing but the rows of that moment would do."""
    ds = stelae.data.read("t", cluster=database)
    name = next(s["id"] for s in database.status()["servers"] if s["kind"] == "tserver")
    ray.kill(database.actors[name], no_restart=False)
    with pytest.raises(Exception, match="read the table anew") as raised:
        ds.materialize()
    assert SnapshotLost.__name__ in str(raised.value)
    assert stelae.data.read("t", cluster=database).materialize().count() == ROWS + 1000
