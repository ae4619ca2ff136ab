"""The moment at which a table's successor takes over: sources that die, requests that both see,
alters that are taken back; and the same with the bug that makes it go wrong."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stelae.actors.master.leader.recovery import RecoveryRounds
from stelae.actors.tserver.tablet.transfer import TabletTransfer
from stelae.coordinator.ddl.succession import OrderTransfer, Swap
from stelae.core.errors import (
    StelaeError,
)
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WRITE, Write, WriteOp
from stelae.core.messages.servers import ReplicaRole
from stelae.core.records.records import TabletRecord
from stelae.core.records.succession import SuccessionStage
from stelae.core.schema.durability import Durability, segments
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.successions.durability_story import KINDS, DurabilityFixture, tell
from tests.simulation.successions.planted_durabilities import planted
from tests.simulation.wal.wal_cluster import read_all, write

# ---- who makes way dies before the masters have decided ------------------------------------


async def slow_swap(here: DurabilityFixture, before: Durability, after: Durability) -> None:
    """The tablet says that it has made way, and its server dies before the entry; a client writes
    as soon as it can. Whoever then serves it, the write is there after the alter."""
    table = await here.create(before, buckets=1)
    await write(table, 0, 20)
    leader, swap = here.leader.coordinator, asyncio.Event()
    succession, asked = leader._succession, asyncio.Event()

    async def late(action: Any) -> None:
        if isinstance(action, Swap):
            asked.set()
            await swap.wait()
        await succession(action)

    begin = leader._begin

    def without_orders(action: Any) -> None:
        """Whoever serves it next is not told to make way before the entry."""
        if not (asked.is_set() and isinstance(action, OrderTransfer)) or swap.is_set():
            begin(action)

    leader._succession, leader._begin = late, without_orders
    altering = asyncio.create_task(table.alter(durability=after, timeout=90.0))
    await asked.wait()
    (victim,) = [
        name
        for name in here.cluster.tservers
        for report in here.world.server(name).reports()
        if report.succession is not None
        and report.succession.stage is SuccessionStage.CLOSED
        and (report.group is None or report.group.role is ReplicaRole.LEADER)
    ]
    here.world.crash(victim, restart=False)
    writing = asyncio.create_task(write(table, 20, 1))
    await asyncio.wait([writing], timeout=15.0)  # somebody else owns it, or leads, by now
    swap.set()
    await writing
    await altering
    here.world.restart(victim)
    await read_all(table, 21)


@pytest.mark.parametrize(
    ("before", "after", "bug"),
    [
        ("wal", "replicas", "old_word_counts"),
        ("segments", "wal", "old_word_counts"),
        ("replicas", "segments", "fence_not_in_the_log"),
    ],
)
def test_a_source_whose_server_dies_before_the_swap_loses_nothing(
    before: str, after: str, bug: str
) -> None:
    """An owner's word does not hold for the next owner; a group's log is heeded by the next
    leader. Without that a write is lost."""

    async def story(here: DurabilityFixture) -> None:
        await slow_swap(here, KINDS[before], KINDS[after])

    tell(story)
    with planted(bug), pytest.raises(SimulationFailure, match="was acknowledged"):
        tell(story)


async def stale_read(here: DurabilityFixture) -> None:
    """A client that knows the tablet that was asks it, after another one has written anew."""
    table = await here.create(KINDS["segments"], buckets=1)
    await write(table, 0, 5)
    reader = await here.cluster.database("reader").table("t")
    await reader.get(1)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    owner = here.name_of(source.owner)
    close = here.world.server(owner)._close
    here.world.server(owner)._close = lambda tablet_id: asyncio.sleep(0)  # the order comes late
    await table.alter(durability=KINDS["wal"], timeout=60.0)
    await table.upsert({"id": 1, "text": "anew"})
    row = await reader.get(1, timeout=20.0)
    assert row is not None
    assert row["text"] == "anew", "a stale read"
    here.world.server(owner)._close = close


def test_a_source_answers_no_read_after_its_successor_may_have_been_written() -> None:
    """However late it hears that it is replaced. With the bug it does."""
    tell(stale_read)
    with planted("reads_go_on"), pytest.raises(SimulationFailure, match="a stale read"):
        tell(stale_read)


async def same_request_twice(here: DurabilityFixture) -> None:
    """The answer to a write is lost, the table changes, and the same request comes once more."""
    table = await here.create(KINDS["segments"], buckets=1)
    await write(table, 0, 5)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    request = RequestId(ClientId("somebody"), 1, 1)
    rows = ((99, "once"),)
    sent = Write(source.tablet_id, 1, WriteOp.INSERT, request, rows, ("id", "text"))
    first = await call(here, source, WRITE, sent)
    await table.alter(durability=KINDS["replicas"], timeout=60.0)
    await table.upsert({"id": 99, "text": "later"})
    (successor,) = here.leader.catalog.tablets_of(here.record.table_id)
    again = await call(
        here, successor, WRITE, msgspec.structs.replace(sent, tablet_id=successor.tablet_id)
    )
    assert again == first, "it was carried out again"
    row = await table.get(99)
    assert row == {"id": 99, "text": "later"}


async def call(here: DurabilityFixture, tablet: TabletRecord, method: Any, body: Any) -> Any:
    """A call on whichever server serves a tablet."""
    for name in here.cluster.tservers:
        server = here.world.server(name)
        for report in server.reports():
            is_led = report.group is None or report.group.role is ReplicaRole.LEADER
            if report.tablet_id == tablet.tablet_id and is_led:
                peers = here.database.runtime.peers
                reply = await peers.call(server.info.address, method, body, timeout_s=5.0)
                return reply.body
    raise AssertionError(f"nobody serves {tablet.tablet_id}")


def test_a_request_is_known_to_the_successor() -> None:
    """It gets its first answer, and nothing happens. With the bug it is refused: the row exists."""
    tell(same_request_twice)
    with planted("results_left_out"), pytest.raises(SimulationFailure, match="RowExists"):
        tell(same_request_twice)


async def taken_back(here: DurabilityFixture) -> None:
    """The backups do not hear the owner, which dies; what it then wrote is nowhere. The next owner
    gives the same versions to what is written next, and that has to be in the successor."""
    table = await here.create(KINDS["segments"], buckets=1)
    await write(table, 0, 10)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    owner = here.name_of(source.owner)
    here.world.partition([owner], here.cluster.backups)
    with pytest.raises(StelaeError):
        await table.upsert({"id": 50, "text": "taken back"}, timeout=1.0)
    held = asyncio.Event()
    finish = TabletTransfer._finish

    async def late(self: TabletTransfer) -> None:
        await held.wait()
        await finish(self)

    with patch.object(TabletTransfer, "_finish", late):
        altering = asyncio.create_task(table.alter(durability=KINDS["replicas"], timeout=90.0))
        await asyncio.sleep(1.0)
        here.world.crash(owner, restart=False)
        here.world.unpartition([owner], here.cluster.backups)
        await write(table, 10, 1)
        held.set()
        await altering
    await read_all(table, 11)


def test_what_may_be_taken_back_is_not_brought_over() -> None:
    """A piece waits until it counts. With the bug a later write is taken for one that is there."""
    tell(taken_back)
    with planted("uncommitted"), pytest.raises(SimulationFailure, match="AssertionError"):
        tell(taken_back)


# ---- a recovery goes on while the table is altered ------------------------------------------


async def altered_in_recovery(
    here: DurabilityFixture, before: Durability, after: Durability
) -> None:
    """An owner dies; while its backups are asked the table is altered, and altered back."""
    table = await here.create(before, buckets=1)
    await write(table, 0, 20)
    source = here.leader.catalog.tablets_of(here.record.table_id)[0]
    asked, held = asyncio.Event(), asyncio.Event()
    fence = RecoveryRounds._fence

    async def late(self: RecoveryRounds, *args: Any) -> None:
        asked.set()
        await held.wait()
        await fence(self, *args)

    with patch.object(RecoveryRounds, "_fence", late):
        here.world.crash(here.name_of(source.owner), restart=False)
        await asked.wait()
        await table.alter(durability=after, wait=False)
        await table.alter(durability=before, wait=False)
        held.set()
        await read_all(table, 20)
    await here.until(lambda: here.record.becoming is None, "the alter back to be done")
    assert here.record.durability == before
    await here.until(here.settled, "the successors to be gone")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (KINDS["wal"], KINDS["replicas"]),
        (KINDS["segments"], KINDS["wal"]),
        (KINDS["segments"], segments()),
    ],
)
def test_a_recovery_that_began_before_an_alter_back_finds_the_rows(
    before: Durability, after: Durability
) -> None:
    """Its record of the tablet is an older one, and names the same log."""

    async def story(here: DurabilityFixture) -> None:
        await altered_in_recovery(here, before, after)

    tell(story)


def test_a_recovery_that_takes_an_older_record_for_another_durability_loses_rows() -> None:
    """With the bug they are thought to have been in memory only, and nobody looks for them. (Where
    another kind of log is named, the server refuses to open the tablet.)"""

    async def story(here: DurabilityFixture) -> None:
        await altered_in_recovery(here, KINDS["segments"], segments())

    with planted("old_records_mislead"), pytest.raises(SimulationFailure, match="AssertionError"):
        tell(story)
