"""`stelae.recovery.engine`: the policy is obeyed, predictions follow what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import RecoveryEngine, SegmentSource
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.recovery.engine import (
    FACTOR_MAX,
    EngineChooser,
    RecoveryJob,
    SparkState,
)
from stelae.recovery.spark_job import group_jobs

NATIVE, SPARK = RecoveryEngine.NATIVE, RecoveryEngine.SPARK
GB = 1 << 30
WARM, COLD = SparkState(cores=16, start_s=0.0), SparkState(cores=16, start_s=30.0)


def job(number: int, size_bytes: int, owner: int = 0) -> RecoveryJob:
    """A tablet whose log is one segment of this size."""
    schema = TableSchema.of(pa.schema([pa.field("id", pa.int64(), False)]), "id")
    table = TableRecord(
        TableId("t"), "t", schema, Partitioning(), segments("disk"), TableState.RUNNING
    )
    uuid = ServerUuid(f"{owner:032x}")
    tablet = TabletRecord(
        TabletId(f"{number:032x}"), table.table_id, number, TabletState.RECOVERING, 2, uuid, 1
    )
    server = ServerInfo(
        ServerKind.TSERVER, f"tserver-{owner}", uuid, 1, Address(""), ProcessIdentity("n", 1, 1.0)
    )
    return RecoveryJob(table, tablet, (SegmentSource(1, True, size_bytes, ()),), server)


def chooser_of(policy: Any, *, metadata_first: bool = False) -> EngineChooser:
    """One that has learnt nothing yet."""
    return EngineChooser(policy, metadata_first=metadata_first)


MANY = [job(number, GB, owner=number % 2) for number in range(16)]
FEW = [job(number, 1 << 20, owner=number % 2) for number in range(4)]


@pytest.mark.parametrize("jobs", [FEW, MANY])
def test_a_fixed_policy_is_obeyed_whatever_is_predicted(jobs: list[RecoveryJob]) -> None:
    """``native`` and ``spark`` name the engine, cold or warm."""
    for state in (WARM, COLD):
        assert chooser_of("native").choose(jobs, state).engine is NATIVE
        assert chooser_of("spark").choose(jobs, state).engine is SPARK


@pytest.mark.parametrize("policy", ["auto", "native", "spark"])
def test_without_spark_every_policy_is_native(policy: Any) -> None:
    """No session can be had: tablets come back all the same."""
    choice = chooser_of(policy).choose(MANY, None)
    assert (choice.engine, choice.spark_s) == (NATIVE, None)


def test_auto_takes_spark_only_where_it_is_warm_and_the_work_is_large() -> None:
    """A small recovery, or a session that has to start first, is faster natively."""
    chooser = chooser_of("auto")
    assert chooser.choose(MANY, WARM).engine is SPARK
    assert chooser.choose(FEW, WARM).engine is NATIVE
    assert chooser.choose(MANY[:2], COLD).engine is NATIVE


def test_auto_learns_from_outcomes_and_turns_to_the_faster_engine() -> None:
    """Spark that takes longer than predicted loses, and comes back when it is seen to be fast."""
    chooser = chooser_of("auto")
    first = chooser.choose(MANY, WARM)
    for _ in range(4):
        choice = chooser_of("spark").choose(MANY, WARM)
        chooser.learn(choice, MANY, WARM, 10 * first.native_s)
    assert chooser.choose(MANY, WARM).engine is NATIVE
    for _ in range(8):
        chooser.learn(choice, MANY, WARM, first.native_s / 4)
    assert chooser.choose(MANY, WARM).engine is SPARK


def test_a_session_that_was_not_known_to_be_warm_teaches_nothing() -> None:
    """How much of the time its start took is not known."""
    chooser = chooser_of("spark")
    expected = chooser.choose(MANY, WARM).spark_s
    chooser.learn(chooser.choose(MANY, COLD), MANY, COLD, 0.5)
    assert chooser.choose(MANY, WARM).spark_s == expected


def test_predictions_approach_a_steady_outcome() -> None:
    """After a few recoveries of the same kind the expected time is the measured one."""
    chooser = chooser_of("native")
    for _ in range(12):
        chooser.learn(chooser.choose(MANY, WARM), MANY, WARM, 7.0)
    assert chooser.choose(MANY, WARM).expected_s == pytest.approx(7.0, rel=0.01)


@given(st.lists(st.floats(1e-6, 1e6), max_size=20))
def test_no_outcome_can_turn_an_engine_off_for_good(outcomes: list[float]) -> None:
    """Learnt rates stay within a factor of the first; small recoveries teach nothing."""
    chooser = chooser_of("native")
    at_first = chooser.choose(MANY, WARM).native_s
    for seconds in outcomes:
        chooser.learn(chooser.choose(MANY, WARM), MANY, WARM, seconds)
        chooser.learn(chooser.choose(FEW, WARM), FEW, WARM, seconds * 1e6)
    expected = chooser.choose(MANY, WARM).expected_s
    assert 1 / FACTOR_MAX <= expected / at_first <= FACTOR_MAX


def test_with_metadata_first_rows_count_and_bytes_do_not() -> None:
    """Tablets serve from summaries: rows ten times as large take no longer, if their number is
    known; and what is expected is never more than to read all of the log."""
    chooser = chooser_of("native", metadata_first=True)
    small, large = (
        [replace(job(n, size), row_count=10_000_000) for n in range(4)] for size in (GB, 10 * GB)
    )
    assert chooser.choose(small, WARM) == chooser.choose(large, WARM)
    known, unknown = chooser.choose(small, WARM), chooser.choose(MANY[:4], WARM)
    assert known.native_s != unknown.native_s
    everything = chooser_of("native").choose(small, WARM)
    for choice in (known, unknown):
        assert choice.native_s < everything.native_s
    tiny = [replace(job(0, 1 << 10), row_count=10_000_000)]
    assert chooser.choose(tiny, None).native_s == chooser_of("native").choose(tiny, None).native_s


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=60), st.integers(1, 12))
def test_tasks_get_every_tablet_once_and_about_the_same_work(sizes: list[int], tasks: int) -> None:
    """No task is empty, and the largest exceeds the mean by one tablet at most."""
    jobs = [job(number, size) for number, size in enumerate(sizes)]
    groups = group_jobs(jobs, tasks)
    assert 1 <= len(groups) <= tasks
    assert all(groups)
    dealt = sorted(j.tablet.tablet_id for group in groups for j in group)
    assert dealt == sorted(j.tablet.tablet_id for j in jobs)
    loads = [sum(max(j.size_bytes, 1) for j in group) for group in groups]
    assert max(loads) <= sum(loads) / len(groups) + max(max(size, 1) for size in sizes)
