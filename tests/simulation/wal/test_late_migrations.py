"""Orders to migrate timelines that arrive again, late, and begin or take back nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stelae.core.errors import InvalidArgument, StaleRequest
from stelae.core.ids import ClientId, RequestId, TabletId
from stelae.core.messages.timelines import (
    ABORT_MIGRATION,
    MIGRATE_TIMELINE,
    AbortMigration,
    MigrateTimeline,
)
from stelae.core.records.timelines import SafekeeperId
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    ask,
    move,
    records,
    tell,
    timelines,
    until_at_rest,
    write,
)

LATE_S = 25.0
"""For which the first copy of an order is on its way."""


async def order_twice(here: WalFixture, order: Callable[[], Awaitable[Any]]) -> tuple[Any, float]:
    """Its first copy is long on its way, and the second is answered: by what, and when the first
    one arrives."""
    leader = here.cluster.leader()
    assert leader is not None
    arrives_s = here.world.loop.time() + LATE_S
    here.world.network.clog("client", leader, LATE_S)
    ordering = asyncio.ensure_future(order())
    await asyncio.sleep(0.01)
    here.world.network.clog("client", leader, 0.0)  # what is on its way stays so
    answer = await ordering
    assert here.world.loop.time() < arrives_s
    return answer, arrives_s


async def until_arrived(here: WalFixture, arrives_s: float) -> None:
    """All that was ordered meanwhile is done, or stands, when the copy arrives; and after it."""
    assert here.world.loop.time() < arrives_s, "it is late no more"
    await asyncio.sleep(arrives_s - here.world.loop.time() + 3.0)


def others_than(members: tuple[SafekeeperId, ...], count: int) -> tuple[SafekeeperId, ...]:
    return tuple(SafekeeperId(n) for n in range(1, count + 1) if n not in members)


@pytest.mark.parametrize("what", ["timeline", "table", "safekeeper"])
def test_a_late_copy_of_a_move_does_not_undo_the_move_back(what: str) -> None:
    """A log is moved away, by one order or another, and back; then the first copy arrives."""

    async def story(here: WalFixture) -> None:
        database, table = here.database, await here.create(buckets=1)
        await here.until_registered(6)
        await write(table, 0, 10)
        ((tablet_id, first),) = timelines(here).items()
        away = others_than(first.members, 6)
        if what == "safekeeper":
            away = (away[0], *first.sk_set[1:])
        orders: dict[str, Callable[[], Awaitable[Any]]] = {
            "timeline": lambda: database.migrate_timeline(tablet_id, away),
            "table": lambda: database.migrate_table("t", away),
            "safekeeper": lambda: database.migrate_safekeeper(first.sk_set[0], away[0]),
        }
        (scheduled,), arrives_s = await order_twice(here, orders[what])
        assert scheduled.desired_set == away
        await database.wait_migrated(tablet_id, away, timeout=10.0)
        await move(here, tablet_id, first.sk_set)
        await database.wait_migrated(tablet_id, first.sk_set, timeout=10.0)
        await until_at_rest(here)
        generation = timelines(here)[tablet_id].generation
        await until_arrived(here, arrives_s)
        assert timelines(here)[tablet_id].generation == generation
        assert records(here)[0].generation == generation

    tell(story, safekeepers=6)


def test_a_late_copy_of_an_abort_takes_no_later_move_back() -> None:
    """There was nothing to take back when it was ordered; now there is, for its new members are
    away and it stays joint. An abort that is ordered now does take it back."""

    async def story(here: WalFixture) -> None:
        await here.create(buckets=1)
        await here.until_registered(6)
        ((tablet_id, first),) = timelines(here).items()
        database, away = here.database, others_than(first.members, 6)
        result, arrives_s = await order_twice(here, lambda: database.abort_migration(tablet_id))
        assert result.verdict == "done"
        await move(here, tablet_id, away)
        await here.until(lambda: records(here)[0].configuration.is_joint, "a joint one", 5.0)
        for number in away:
            here.world.crash(here.keeper(number), restart=False)
        await until_arrived(here, arrives_s)
        assert records(here)[0].configuration.is_joint
        assert (await database.abort_migration(tablet_id)).verdict in ("aborted", "under way")
        await here.until(lambda: not records(here)[0].configuration.is_joint, "the abort")
        for number in away:
            here.world.restart(here.keeper(number))
        await until_at_rest(here)
        assert set(timelines(here)[tablet_id].members) == set(first.members)

    tell(story, safekeepers=6, safekeeper_dead_after_s=300.0)


def test_what_was_refused_or_given_up_stays_so_and_a_copy_is_told_what_was_ordered() -> None:
    """Also under the next leader of the masters, who never had the order."""

    def by(sequence: int, since: int = 0) -> RequestId:
        return RequestId(ClientId("operator"), sequence, since)

    async def story(here: WalFixture) -> None:
        await here.create(buckets=1)
        await here.until_registered(5)
        ((tablet_id, first),) = timelines(here).items()
        desired = (*first.sk_set[:2], others_than(first.members, 5)[0])
        wrong = MigrateTimeline(by(1), tablet_id, desired[:2])
        right = MigrateTimeline(by(2), tablet_id, desired)
        nowhere = AbortMigration(by(3), TabletId("f" * 32))
        with pytest.raises(InvalidArgument, match="3 or more"):
            await ask(here, MIGRATE_TIMELINE, wrong)
        (begun,) = (await ask(here, MIGRATE_TIMELINE, right)).scheduled
        with pytest.raises(Exception, match="f" * 32):
            await ask(here, ABORT_MIGRATION, nowhere)
        await here.until(lambda: set(timelines(here)[tablet_id].members) == set(desired), "it")
        back = MigrateTimeline(by(4), tablet_id, first.sk_set)
        await until_at_rest(here)
        await ask(here, MIGRATE_TIMELINE, back)
        await until_at_rest(here)
        for _ in range(2):
            with pytest.raises(InvalidArgument, match="3 or more"):
                await ask(here, MIGRATE_TIMELINE, wrong)
            assert (await ask(here, MIGRATE_TIMELINE, right)).scheduled == (begun,)
            await asyncio.sleep(3.0)
            assert set(timelines(here)[tablet_id].members) == set(first.members)
            here.world.crash(here.cluster.leader() or "")
            await here.until(here.cluster.leader, "another leader")
        aborted = await ask(here, ABORT_MIGRATION, AbortMigration(by(5, since=5), tablet_id))
        assert aborted.verdict == "done"
        for late in (right, MigrateTimeline(by(4), tablet_id, desired)):
            with pytest.raises(StaleRequest):
                await ask(here, MIGRATE_TIMELINE, late)

    tell(story, safekeepers=5)
