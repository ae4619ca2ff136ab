"""Tables with ``wal(n, …)`` in a whole cluster: made, read and written through losses, dropped."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.tserver.tablet_log.proposer import CATCH_UP_TIMEOUT_S
from stelae.consensus.wal.messages import WAL_FETCH
from stelae.core.errors import NotEnoughServers, StelaeError
from stelae.core.ids import ClientId, RequestId
from stelae.core.messages.rows import WRITE, Write, WriteOp
from stelae.core.schema.durability import replicas, wal
from tests.simulation.wal.wal_cluster import (
    SCHEMA,
    WalFixture,
    read_all,
    records,
    tell,
    until_at_rest,
    write,
)


@pytest.mark.parametrize("cas_store", [False, True])
def test_a_table_survives_its_tservers_and_a_safekeeper(cas_store: bool) -> None:
    """What was acknowledged is read after the death of each tserver, and with a safekeeper less
    writes go on."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await write(table, 0, 40)
        for victim in here.owners():
            here.world.crash(victim)
        await read_all(table, 40)
        here.world.crash(here.keeper(2), restart=False)
        await write(table, 40, 20)
        await read_all(table, 60)

    tell(story, cas_store=cas_store)


def test_too_few_safekeepers_are_said_to_be_too_few() -> None:
    """Which kind of server, how many are needed and how many there are; no table is left."""

    async def story(here: WalFixture) -> None:
        await here.until_registered(3)
        with pytest.raises(NotEnoughServers, match="needs 5 live safekeepers, there are 3"):
            await here.database.create_table(
                "t", SCHEMA, key=["id"], durability=wal(5), timeout=3.0
            )
        assert not await here.database.tables()

    tell(story)


def test_a_dropped_table_leaves_nothing_on_safekeepers() -> None:
    """Not even on one that was away when it was dropped; and its record says so for ever."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await here.create("stays")
        await write(table, 0, 10)
        await here.until(lambda: len(records(here)) == 4, "four timelines")
        dropped = [
            r.timeline for r in records(here) if r.timeline.table_id == table.record.table_id
        ]
        here.world.crash("safekeeper-1", restart=False)
        await here.database.delete_table("t")
        await asyncio.sleep(3.0)
        here.world.restart("safekeeper-1")
        await until_at_rest(here)
        assert {name: len(held) for name, held in here.held().items()} == {
            name: 2 for name in here.cluster.safekeepers
        }
        known = here.leader.catalog.timelines
        assert [known.current(timeline).record.is_over for timeline in dropped] == [True, True]

    tell(story)


def test_servers_of_other_kinds_are_never_taken_for_each_other() -> None:
    """A safekeeper owns no tablet, is not among tservers or backups, and the status says what it
    is; a check finds nothing to complain of."""

    async def story(here: WalFixture) -> None:
        await here.create()
        await here.database.create_table(
            "r", SCHEMA, key=["id"], durability=replicas(3), timeout=30.0
        )
        await until_at_rest(here)
        await asyncio.sleep(1.0)
        status = await here.database.status()
        kinds = {server["id"]: server for server in status["servers"]}
        for name in here.cluster.safekeepers:
            assert kinds[name]["kind"] == "safekeeper"
            assert kinds[name]["status"] == "active"
            assert kinds[name]["timelines"] == 2
            assert "tablets" not in kinds[name]
        assert {t["leader"] for t in status["tablets"]} <= set(here.cluster.tservers)
        assert sum("timeline" in t for t in status["tablets"]) == 2
        report = await here.database.check(timeout=5.0)
        assert not [str(finding) for finding in report.problems]

    tell(story)


@pytest.mark.parametrize("seed", range(3))
def test_an_owner_that_was_replaced_can_neither_acknowledge_nor_answer(seed: int) -> None:
    """Cut off from the masters, but not from clients nor, for a while, from safekeepers: once
    another one owns its tablets, nothing that it says is wrong, and nothing it writes counts."""

    async def story(here: WalFixture) -> None:
        world, cluster = here.world, here.cluster
        table = await here.create(buckets=1)
        await write(table, 0, 20)
        (old,) = here.owners()
        tablet = next(iter(world.server(old)._tablets.values()))
        world.partition([old], cluster.masters)
        world.partition(cluster.masters, [old])
        await here.until(lambda: here.owners() != [old], "another owner")
        assert not world.server(old)._lease.is_valid
        await write(table, 20, 10)
        request = Write(
            tablet.tablet_id, 1, WriteOp.UPSERT, RequestId(ClientId("raw"), 1, 1), ((0, "wrong"),)
        )
        address = world.server(old).info.address
        with pytest.raises(StelaeError):
            await here.database.runtime.peers.call(address, WRITE, request, timeout_s=2.0)
        world.server(old)._lease._until = world.loop.time() + 1e6  # even without that rule
        with pytest.raises(StelaeError):
            await here.database.runtime.peers.call(address, WRITE, request, timeout_s=2.0)
        world.heal()
        await read_all(table, 30)

    tell(story, seed)


def test_a_fetch_that_is_lost_costs_no_campaign() -> None:
    """A new owner that does not hear of the log's tail asks again, in the term that it has won."""
    lost: list[str] = []

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await write(table, 0, 20)

        def drop(sender: str, receiver: str, method: str) -> bool:
            if method != WAL_FETCH.name or lost:
                return False
            lost.append(sender)
            return True

        here.world.network.drop_filter = drop
        here.world.crash(here.owners()[0])
        await read_all(table, 20)
        (owner,) = lost
        counts = here.world.metrics[owner].counts
        assert counts.get("timeline_fetches_unanswered") == 1
        assert "timeline_fetches_failed" not in counts

    tell(story)


def test_a_lost_fetch_for_a_safekeeper_that_lags_is_not_asked_for_again_at_once() -> None:
    """Nobody waits for it but that safekeeper: the entries are read once in so long, and later it
    has them all the same."""
    asked_s: list[float] = []

    async def story(here: WalFixture) -> None:
        world, table = here.world, await here.create(buckets=1)
        await here.until_registered(3)
        await write(table, 0, 5)

        def drop(sender: str, receiver: str, method: str) -> bool:
            if method == WAL_FETCH.name:
                asked_s.append(world.loop.time())
            return len(asked_s) == 1 and method == WAL_FETCH.name

        for backup in here.cluster.backups:  # nothing is trimmed
            world.crash(backup, restart=False)
        world.crash("safekeeper-2", restart=False)
        await write(table, 5, 60)  # more than is kept in memory for those that lag
        world.network.drop_filter = drop
        world.restart("safekeeper-2")
        await here.until(lambda: len(asked_s) > 1, "another fetch", 15.0)
        assert asked_s[1] - asked_s[0] >= CATCH_UP_TIMEOUT_S
        (owner,) = here.owners()
        counts = world.metrics[owner].counts
        assert (counts["timeline_fetches_unanswered"], counts["timeline_fetches_failed"]) == (1, 1)
        world.crash("safekeeper-1", restart=False)
        await write(table, 65, 5)  # a majority needs the one that has caught up
        await read_all(table, 70)

    tell(story, safekeeper_dead_after_s=300.0)
