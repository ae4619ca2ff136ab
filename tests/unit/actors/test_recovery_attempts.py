"""`stelae.actors.master.leader.recovery_attempts`: what was expected of engines, and what is
learnt."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from stelae.actors.master.leader.recovery_attempts import RecoveryAttempts
from stelae.coordinator.status.recoveries import Recoveries
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.servers import SegmentSource
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
from stelae.recovery.engine import EngineChooser, RecoveryJob, SparkState

WARM = SparkState(cores=2, start_s=0.0)
BYTES = 1 << 30


class Counted:
    """Metrics that keep what was observed."""

    def __init__(self) -> None:
        self.observed: list[tuple[str, float, dict[str, str]]] = []

    def count(self, name: str, amount: float = 1.0, **tags: str) -> None:
        raise AssertionError(name)

    def gauge(self, name: str, value: float, **tags: str) -> None:
        raise AssertionError(name)

    def observe(self, name: str, value: float, **tags: str) -> None:
        self.observed.append((name, value, tags))


def job(number: int) -> RecoveryJob:
    schema = TableSchema.of(pa.schema([pa.field("id", pa.int64(), False)]), "id")
    table = TableRecord(
        TableId("t"), "t", schema, Partitioning(), segments("disk"), TableState.RUNNING
    )
    owner = ServerUuid(f"{number % 2:032x}")
    tablet = TabletRecord(
        TabletId(f"{number:032x}"), table.table_id, number, TabletState.RECOVERING, 2, owner, 1
    )
    server = ServerInfo(
        ServerKind.TSERVER, "t", owner, 1, Address(""), ProcessIdentity("n", 1, 1.0)
    )
    return RecoveryJob(table, tablet, (SegmentSource(1, True, BYTES, ()),), server)


class World:
    """Four tablets of one dead server."""

    def __init__(self, policy: Any = "spark") -> None:
        self.jobs = [job(number) for number in range(4)]
        self.ids = [one.tablet.tablet_id for one in self.jobs]
        self.recoveries = Recoveries()
        page = self.recoveries.begin("t1", "killed", now=0.0, wall=0.0, silent_s=0.0)
        for tablet_id in self.ids:
            self.recoveries.add(page, tablet_id, "t")
        self.metrics = Counted()
        self.chooser = EngineChooser(policy, metadata_first=False)
        self.attempts = RecoveryAttempts(self.recoveries, self.metrics, self.chooser)

    @property
    def engines(self) -> list[dict[str, Any]]:
        found = self.recoveries.describe()[0]["engines"]
        assert isinstance(found, list)
        return found

    def expected_s(self) -> float | None:
        return self.chooser.choose(self.jobs, WARM).spark_s


def test_a_record_shows_what_was_expected_of_both_engines_and_what_came(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Running until the last tablet is back; both are in the log, and the chooser has learnt."""
    world = World()
    choice, before = world.chooser.choose(world.jobs, WARM), world.expected_s()
    with caplog.at_level(logging.INFO):
        world.attempts.begin(choice, WARM, world.jobs, 1.0)
        world.attempts.recovered(world.ids[:3], 5.0)
        assert [(use["outcome"], use["took_s"]) for use in world.engines] == [("running", None)]
        world.attempts.recovered(world.ids[3:], 8.5)
    (use,) = world.engines
    assert (use["engine"], use["outcome"], use["took_s"]) == ("spark", "done", 7.5)
    assert use["log_bytes"] == 4 * BYTES
    assert use["expected_s"] == {
        "native": round(choice.native_s, 3),
        "spark": round(choice.spark_s or 0.0, 3),
    }
    assert f"expected {choice.native_s:.2f} s native, {choice.spark_s:.2f} s Spark" in caplog.text
    assert f"took 7.50 s; expected were {choice.spark_s:.2f} s" in caplog.text
    assert world.metrics.observed == [("recovery_s", 7.5, {"engine": "spark"})]
    assert world.expected_s() != before


def test_an_engine_that_was_given_up_teaches_nothing_nor_does_the_one_that_took_over() -> None:
    """Neither time is that of the whole work; the record tells of both, and why."""
    world = World()
    before = world.expected_s(), world.chooser.choose(world.jobs, None).native_s
    attempt = world.attempts.begin(
        world.chooser.choose(world.jobs, WARM), WARM, world.jobs, now=1.0
    )
    world.attempts.retried(attempt, 2, "an executor was lost")
    world.attempts.gave_up(attempt, 1, "it was lost again")
    left = world.jobs[3:]
    native = world.chooser.choose(left, None)
    world.attempts.begin(native, None, left, now=3.0, takes_over=True)
    world.attempts.recovered(world.ids, 4.0)
    spark, after = world.engines
    assert (spark["outcome"], spark["failed"], spark["retries"]) == ("partly failed", 1, 1)
    assert (spark["problem"], spark["took_s"]) == ("it was lost again", 3.0)
    assert (after["engine"], after["outcome"], after["took_s"]) == ("native", "done", 1.0)
    assert (world.expected_s(), world.chooser.choose(world.jobs, None).native_s) == before


def test_a_recovery_that_begins_again_ends_the_attempt_before() -> None:
    """Its tablets count as not brought back, and its time says nothing about the engine."""
    world = World("native")
    choice = world.chooser.choose(world.jobs, None)
    world.attempts.begin(choice, None, world.jobs, now=1.0)
    world.attempts.begin(choice, None, world.jobs, now=2.0)
    world.attempts.recovered(world.ids, 4.0)
    assert [(use["outcome"], use["took_s"]) for use in world.engines] == [
        ("failed", 1.0),
        ("done", 2.0),
    ]
    assert len(world.metrics.observed) == 1
