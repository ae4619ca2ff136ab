"""Safekeepers below ``wal`` tables: they die, hang and fail, and operators take them away."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import InvalidArgument
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import (
    LIST_SAFEKEEPERS,
    SCRUB_SAFEKEEPER,
    ListSafekeepers,
    ScrubSafekeeper,
)
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    ask,
    move,
    read_all,
    records,
    tell,
    timelines,
    until_at_rest,
    write,
)

# ---- lost, failed, hanging ----------------------------------------------------------------------


def test_a_dead_safekeeper_is_replaced_and_writes_go_on() -> None:
    """After the grace time another one has its place in every timeline; when it comes back it
    holds nothing any more."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await write(table, 0, 30)
        victim = here.keeper(next(iter(timelines(here).values())).sk_set[0])
        here.world.crash(victim, restart=False)
        await write(table, 30, 10)
        registry = here.leader.catalog.timelines.safekeepers
        (dead,) = [number for number, record in registry.items() if record.name == victim]
        await here.until(
            lambda: not any(dead in c.members for c in timelines(here).values()), "replacement"
        )
        await write(table, 40, 10)
        here.world.restart(victim)
        await until_at_rest(here)
        assert here.held()[victim] == []
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 50)

    tell(story, safekeepers=4, safekeeper_dead_after_s=5.0)


def test_a_dead_safekeeper_that_never_heard_of_the_last_change_is_replaced() -> None:
    """While it was away another member of its timeline changed: what is left to be told to it is
    begun again and again, and does not keep its replacement waiting."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(5)
        await write(table, 0, 10)
        ((tablet_id, first),) = timelines(here).items()
        lost, left, kept = first.sk_set
        here.world.crash(here.keeper(lost), restart=False)
        (spare, _) = (SafekeeperId(n) for n in range(1, 6) if n not in first.sk_set)
        await move(here, tablet_id, (lost, kept, spare))
        await here.until(lambda: left not in timelines(here)[tablet_id].members, "the change")
        await here.until(
            lambda: lost not in timelines(here)[tablet_id].members, "replacement", 20.0
        )
        await write(table, 10, 10)
        here.world.restart(here.keeper(lost))
        await until_at_rest(here)
        await read_all(table, 20)

    tell(story, safekeepers=5, safekeeper_dead_after_s=5.0)


def test_a_dead_safekeeper_is_replaced_while_the_masters_change_their_leader() -> None:
    """More often than it has to be silent: each new leader has not heard it either, as a follower,
    and waits only for those who may not have reached it yet."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        await write(table, 0, 10)
        ((tablet_id, first),) = timelines(here).items()
        lost = first.sk_set[0]
        here.world.crash(here.keeper(lost), restart=False)
        for _ in range(6):
            await asyncio.sleep(5.0)
            here.world.crash(here.cluster.leader() or "")
            await here.until(here.cluster.leader, "another leader")
        assert lost not in timelines(here)[tablet_id].members
        assert set(first.sk_set[1:]) < set(timelines(here)[tablet_id].members)
        await write(table, 10, 10)

    tell(story, safekeepers=4, safekeeper_dead_after_s=12.0, timeline_scan_s=0.5)


def test_a_member_below_which_the_disk_failed_is_replaced() -> None:
    """Its safekeeper lives, and keeps other timelines; this one does nothing there any more: it
    goes to another, and what is left of it is removed."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        victim = first.sk_set[1]
        disk = here.world.nodes[here.keeper(victim)].disk
        disk.fail_syncs = True
        await write(table, 0, 20)

        async def broken() -> int:
            listed = await ask(here, LIST_SAFEKEEPERS, ListSafekeepers())
            return sum(one.broken for one in listed.safekeepers)

        for _ in range(50):
            if await broken():
                break
            await asyncio.sleep(0.1)
        assert await broken() == 1
        await here.until(
            lambda: victim not in timelines(here)[tablet_id].members, "another member", 30.0
        )
        disk.heal()
        await write(table, 20, 10)
        await until_at_rest(here)
        assert here.held()[here.keeper(victim)] == []
        await read_all(table, 30)

    tell(story, safekeepers=4, safekeeper_dead_after_s=3.0, timeline_scan_s=0.5)


def test_a_safekeeper_that_hangs_keeps_no_other_timeline_waiting() -> None:
    """Many tablets are created while one of their safekeepers does not answer, and is not known to
    be away yet: a majority is enough for each of them."""

    async def story(here: WalFixture) -> None:
        await here.until_registered(3)
        here.world.pause("safekeeper-2")
        began = here.world.loop.time()
        table = await here.create(buckets=64)
        await write(table, 0, 64)
        assert here.world.loop.time() - began < 12.0
        here.world.resume("safekeeper-2")
        await until_at_rest(here)

    tell(story, safekeepers=3)


# ---- what operators order -----------------------------------------------------------------------


def test_a_decommissioned_safekeeper_is_emptied_and_waited_for_no_more() -> None:
    """Its timelines go to others at once; what it cannot be told is nobody's work any more."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await here.until_registered(4)
        victim = next(iter(timelines(here).values())).sk_set[0]
        here.world.crash(here.keeper(victim), restart=False)
        await here.database.set_safekeeper_status(victim, SafekeeperStatus.DECOMMISSIONED)
        await here.until(
            lambda: (
                not any(victim in c.members for c in timelines(here).values())
                and all(record.is_finished for record in records(here))
            ),
            "all moved, and nothing left to be done",
        )
        await write(table, 0, 10)
        listed = await ask(here, LIST_SAFEKEEPERS, ListSafekeepers())
        (view,) = [one for one in listed.safekeepers if one.record.safekeeper_id == victim]
        assert (view.timelines, view.is_live) == (0, False)
        refused = (victim, *ids_but(here, victim, 2))
        with pytest.raises(InvalidArgument, match=f"safekeeper {victim} is decommissioned"):
            await here.database.migrate_timeline(next(iter(timelines(here))), refused)

    tell(story, safekeepers=4, safekeeper_dead_after_s=300.0)


def ids_but(here: WalFixture, but: SafekeeperId, count: int) -> tuple[SafekeeperId, ...]:
    known = sorted(here.leader.catalog.timelines.safekeepers)
    return tuple(SafekeeperId(number) for number in known if number != but)[:count]


def test_an_order_that_arrives_again_late_does_not_undo_a_later_one() -> None:
    """The first copy of "offline" is long on its way; the second is acknowledged, and so is
    "active" after it. Then the first one arrives, and changes nothing."""

    async def story(here: WalFixture) -> None:
        await here.until_registered(3)
        world, database, leader = here.world, here.database, here.cluster.leader()
        assert leader is not None
        arrives_s = world.loop.time() + 4.0
        world.network.clog("client", leader, 4.0)
        saying = asyncio.create_task(database.set_safekeeper_status(2, "offline"))
        await asyncio.sleep(0.01)
        world.network.clog("client", leader, 0.0)  # what is on its way stays so
        assert (await saying).record.status == "offline"
        said = await database.set_safekeeper_status(2, "active")
        assert said.record.status == "active"
        assert world.loop.time() < arrives_s
        await asyncio.sleep(5.0)
        (_, view, _) = await database.safekeepers()
        assert view.record == said.record

    tell(story)


def test_a_scrub_removes_what_is_proven_garbage_and_nothing_else() -> None:
    """A timeline that a safekeeper should have left, by the store, goes; one that the store does
    not know stays."""

    async def story(here: WalFixture) -> None:
        await here.create()
        await until_at_rest(here)
        ids = here.leader.catalog.timelines.safekeepers
        tablet_id, configuration = next(iter(timelines(here).items()))
        other = next(n for n in ids if n not in configuration.members)
        server = here.world.server(here.keeper(other))
        stray = TimelineConfiguration(1, (SafekeeperId(other),))
        await server.timelines.store(tablet_id).create(tablet_id, stray)
        await server.timelines.store(TabletId("f" * 32)).create(TabletId("f" * 32), stray)
        here.world.restart(here.keeper(other))
        await asyncio.sleep(3.0)
        reply = await ask(here, SCRUB_SAFEKEEPER, ScrubSafekeeper(other))
        assert [timeline.tablet_id for timeline in reply.removed] == [tablet_id]
        assert reply.unknown == ("f" * 32,)
        again = await ask(here, SCRUB_SAFEKEEPER, ScrubSafekeeper(other))
        assert not again.removed

    tell(story, safekeepers=4)
