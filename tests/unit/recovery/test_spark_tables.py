"""Rows between tables and Spark: types there and back, sizes of calls, and what is refused."""

from __future__ import annotations

import asyncio
import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument
from stelae.core.schema.schema import TableSchema
from stelae.core.schema.values import check_batch
from stelae.recovery.java import ADD_OPENS
from stelae.recovery.spark_link import ClusterLink, connected
from stelae.recovery.spark_session import (
    SessionSize,
    recovery_configuration,
    spark_configuration,
)
from stelae.recovery.spark_tables import WRITE_BYTES, from_spark, pieces, spark_type, to_spark

DAY = datetime.date(2013, 1, 1)
NOON = datetime.datetime(2013, 1, 1, 12)
SAMPLES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 127, None]),
    (pa.uint8(), [0, 255, None]),
    (pa.uint16(), [0, 65535]),
    (pa.uint32(), [0, 2**32 - 1]),
    (pa.uint64(), [0, 2**63, 2**64 - 1, None]),
    (pa.int64(), [-(2**63), 2**63 - 1]),
    (pa.float16(), [0.5, -2.0]),
    (pa.float64(), [0.1, None]),
    (pa.bool_(), [True, False, None]),
    (pa.string(), ["", "Ωmega", None]),
    (pa.binary(), [b"", b"\x00\xff"]),
    (pa.binary(4), [b"abcd", None]),
    (pa.date32(), [DAY, None]),
    (pa.date64(), [DAY, None]),
    (pa.timestamp("us"), [NOON, None]),
    (pa.timestamp("ns"), [NOON]),
    (pa.timestamp("s", tz="UTC"), [NOON]),
    (pa.timestamp("ms", tz="Europe/Berlin"), [NOON]),
    (pa.duration("ms"), [datetime.timedelta(seconds=5)]),
    (pa.decimal128(20, 3), [Decimal("1.250"), None]),
    (pa.list_(pa.uint16()), [[1, 2], [], None]),
    (pa.struct([("a", pa.uint32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, None]),
    (pa.map_(pa.string(), pa.uint8()), [[("k", 1)], None]),
]
UNSIGNED = (pa.types.is_unsigned_integer, pa.types.is_large_string, pa.types.is_large_binary)


@pytest.mark.parametrize(("kind", "values"), SAMPLES, ids=lambda value: str(value)[:24])
def test_a_column_comes_back_from_spark_as_it_went(kind: pa.DataType, values: list[Any]) -> None:
    """To Spark's type and back to the table's, no value changes."""
    schema = TableSchema.of(pa.schema([pa.field("id", pa.int64(), False), ("v", kind)]), "id")
    there = spark_type(schema.arrow.field("v").type)
    assert there is not None
    assert not any(is_kind(there) for is_kind in UNSIGNED)
    rows = pa.record_batch([list(range(len(values))), pa.array(values, kind)], names=["id", "v"])
    target = pa.schema([pa.field("id", pa.int64(), False), pa.field("v", there)])
    sent = to_spark(rows, target)
    back = check_batch(from_spark(pa.Table.from_batches([sent]), schema), schema)
    assert back.column("v").equals(rows.column("v"))


def test_spark_itself_takes_every_type_that_is_sent_to_it() -> None:
    """Each of them has a Spark type; the schema is built as `stelae.spark.read` builds it."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = [(f"c{place}", spark_type(kind)) for place, (kind, _) in enumerate(SAMPLES)]
    assert len(from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)) == len(SAMPLES)


@pytest.mark.parametrize(
    "kind",
    [pa.time64("us"), pa.time32("s"), pa.decimal256(50), pa.list_(pa.time64("us"))],
    ids=str,
)
def test_types_that_spark_does_not_know_have_none(kind: pa.DataType) -> None:
    """The reader can then name the column; nothing is turned into something else silently."""
    assert spark_type(kind) is None


def test_nanoseconds_that_spark_would_lose_are_an_error() -> None:
    """The error names the column and the way out."""
    rows = pa.record_batch([pa.array([1_001], pa.timestamp("ns"))], names=["at"])
    with pytest.raises(InvalidArgument, match=r"'at'.*columns="):
        to_spark(rows, pa.schema([("at", pa.timestamp("us"))]))


def test_values_that_do_not_fit_the_table_are_an_error() -> None:
    """A decimal below zero is no uint64, and is not wrapped around."""
    schema = TableSchema.of(pa.schema([pa.field("id", pa.uint64(), False)]), "id")
    rows = pa.table({"id": pa.array([Decimal(-1)], pa.decimal128(20, 0))})
    with pytest.raises(InvalidArgument, match="'id'"):
        from_spark(rows, schema)


def test_a_time_with_a_zone_does_not_become_one_without() -> None:
    """Which wall clock is meant is not ours to guess."""
    schema = TableSchema.of(
        pa.schema([pa.field("id", pa.int64(), False), ("at", pa.timestamp("us"))]), "id"
    )
    rows = pa.table({"id": [1], "at": pa.array([NOON], pa.timestamp("us", tz="UTC"))})
    with pytest.raises(InvalidArgument, match="'at'"):
        check_batch(from_spark(rows, schema), schema)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 3 << 20))
def test_calls_have_all_rows_in_order_and_a_bounded_size(counts: list[int], width: int) -> None:
    """Small batches are gathered, large ones cut; a call is never more than its bound and a row."""
    value = b"x" * width
    numbers = iter(range(1000))
    batches = [
        pa.record_batch(
            [[next(numbers) for _ in range(count)], pa.array([value] * count, pa.binary())],
            schema=pa.schema([("id", pa.int64()), ("v", pa.binary())]),
        )
        for count in counts
    ]
    calls = list(pieces(batches))
    found = [i for call in calls for i in call.column("id").to_pylist()]
    assert found == list(range(sum(counts)))
    assert all(call.nbytes <= WRITE_BYTES + 2 * (width + 64) for call in calls)
    assert all(call.num_rows for call in calls)
    total = sum(batch.nbytes for batch in batches)
    assert len(calls) <= 2 * total // WRITE_BYTES + 1


def test_a_task_connects_where_a_loop_runs_in_its_thread() -> None:
    """A notebook's cells run in one; the blocking calls made there have a loop of their own."""

    async def cell() -> int:
        with connected(ClusterLink("none", (), bytes(32), Settings())) as (_, run):
            return run(asyncio.sleep(0, 7))

    assert asyncio.run(cell()) == 7


def test_a_link_does_not_show_its_secret() -> None:
    """What is printed in logs and tracebacks has the addresses only."""
    link = ClusterLink("demo", (), b"0123456789abcdef" * 2, Settings())
    assert "0123456789" not in repr(link)


def test_a_session_opens_javas_internals_and_reserves_no_cpu() -> None:
    """For driver, executors and app master; on a full cluster it starts all the same."""
    made = spark_configuration(SessionSize(2, 1, 512 << 20))
    for key in ("driver", "executor", "ray.raydp_app_master"):
        assert set(ADD_OPENS) <= set(made[f"spark.{key}.extraJavaOptions"].split())
    assert made["spark.ray.raydp_spark_executor.actor.resource.cpu"] == "0"
    assert made["spark.ray.raydp_spark_master.actor.resource.CPU"] == "0"
    assert made["spark.pyspark.python"]
    assert made["spark.locality.wait"] == "0"
    for options in recovery_configuration().values():
        assert set(ADD_OPENS) < set(options.split())
