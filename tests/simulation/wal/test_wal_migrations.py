"""Timelines of ``wal`` tables move to other safekeepers: to the end, or back to the old members."""

from __future__ import annotations

import asyncio

import pytest

from stelae.core.errors import InvalidArgument, RetryLater, TabletNotFound
from stelae.core.messages.timelines import LIST_MIGRATIONS, ListMigrations
from stelae.core.records.timelines import SafekeeperId
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    ask,
    read_all,
    records,
    tell,
    text,
    timelines,
    until_at_rest,
    write,
)


def test_timelines_move_while_clients_write() -> None:
    """To other members, one safekeeper's all or so many; each ends by itself, and nothing is left
    behind; the writer follows to members that it has never heard of."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await here.until_registered(6)
        writing = asyncio.create_task(write(table, 0, 150))
        before = timelines(here)
        for tablet_id, configuration in before.items():
            others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in configuration.members)
            scheduled = await here.database.migrate_timeline(tablet_id, others)
            assert [one.desired_set for one in scheduled] == [others]
        await here.until(
            lambda: all(c.generation == 3 for c in timelines(here).values()), "both moved"
        )
        await until_at_rest(here)
        members = next(iter(timelines(here).values())).sk_set
        target = next(SafekeeperId(n) for n in range(1, 7) if n not in members)
        moved = await here.database.migrate_safekeeper(members[0], target, limit=1)
        assert len(moved) == 1
        await here.until(
            lambda: any(target in c.sk_set for c in timelines(here).values()), "one moved"
        )
        await writing
        await until_at_rest(here)
        for owner in here.owners():
            here.world.crash(owner)
        await read_all(table, 150)
        ended = (await ask(here, LIST_MIGRATIONS, ListMigrations())).ended
        assert {result.verdict for result in ended} == {"done"}

    tell(story, safekeepers=6)


@pytest.mark.parametrize("seed", range(4))
def test_a_migration_goes_on_under_the_next_leader(seed: int) -> None:
    """The leader master dies somewhere in it; nobody has to ask again."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await here.until_registered(6)
        wanted = {}
        for tablet_id, configuration in timelines(here).items():
            others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in configuration.members)
            await here.database.migrate_timeline(tablet_id, others)
            wanted[tablet_id] = others
        await here.until(lambda: any(r.configuration.is_joint for r in records(here)), "joint")
        await asyncio.sleep(0.01 * seed)
        here.world.crash(here.cluster.leader() or "")
        await write(table, 0, 20)
        await until_at_rest(here)
        assert {i: c.sk_set for i, c in timelines(here).items()} == wanted
        await read_all(table, 20)

    tell(story, seed, safekeepers=6)


def test_a_migration_that_cannot_go_on_is_aborted() -> None:
    """The new members have gone: the old ones alone are members again, and writes go on."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        ((tablet_id, first),) = timelines(here).items()
        others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in first.members)
        names = [here.keeper(n) for n in others]
        await here.database.migrate_timeline(tablet_id, others)
        await here.until(lambda: records(here)[0].configuration.is_joint, "a joint one")
        for name in names:
            here.world.crash(name, restart=False)
        await asyncio.sleep(4.0)
        assert records(here)[0].configuration.is_joint
        result = await here.database.abort_migration(tablet_id)
        assert result.verdict in ("aborted", "under way")
        await here.until(lambda: not records(here)[0].configuration.is_joint, "the abort")
        await write(table, 0, 20)
        assert set(timelines(here)[tablet_id].members) == set(first.members)
        for name in names:
            here.world.restart(name)
        await until_at_rest(here)
        assert [n for n, held in here.held().items() if held] == sorted(
            here.keeper(n) for n in first.members
        )

    tell(story, safekeepers=6, safekeeper_dead_after_s=300.0)


def test_a_change_to_members_that_are_lost_takes_itself_back() -> None:
    """Nothing is committed without most of the new members: after the grace time the old ones are
    alone again, and the write that waited is acknowledged."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        ((tablet_id, first),) = timelines(here).items()
        others = tuple(SafekeeperId(n) for n in range(1, 7) if n not in first.members)
        names = [here.keeper(n) for n in others]
        await here.database.migrate_timeline(tablet_id, others)
        await here.until(lambda: records(here)[0].configuration.is_joint, "a joint one")
        for name in names:
            here.world.crash(name, restart=False)
        await table.upsert({"id": 0, "text": text(0)}, timeout=30.0)
        assert timelines(here)[tablet_id].sk_set == first.sk_set
        assert not records(here)[0].configuration.is_joint
        await read_all(table, 1)

    tell(story, safekeepers=6, safekeeper_dead_after_s=5.0)


@pytest.mark.parametrize(
    ("desired", "reason"),
    [
        ((1, 2), "3 or more"),
        ((1, 2, 2), "named twice"),
        ((1, 2, 9), "no safekeeper 9"),
        ((1, 2, 3, 4), "there are 3"),
    ],
)
def test_members_that_cannot_be_are_refused_before_anything_is_begun(
    desired: tuple[int, ...], reason: str
) -> None:
    """With the reason; the store is as it was."""

    async def story(here: WalFixture) -> None:
        await here.create(buckets=1)
        await here.until_registered(4)
        (tablet_id,) = timelines(here)
        before = records(here)
        with pytest.raises(InvalidArgument, match=reason):
            await here.database.migrate_timeline(tablet_id, desired)
        with pytest.raises(TabletNotFound):
            await here.database.migrate_timeline("f" * 32, desired)
        await asyncio.sleep(1.0)
        assert [r.configuration for r in records(here)] == [r.configuration for r in before]

    tell(story, safekeepers=4)


def test_operators_watch_a_migration_to_its_end() -> None:
    """By the client: listed, moved, waited for; and one that ends otherwise is told of."""

    async def story(here: WalFixture) -> None:
        database = here.database
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((_, tablet_id, first),) = (await database.timelines("t")).timelines
        (spare,) = {one.record.safekeeper_id for one in await database.safekeepers()} - set(
            first.sk_set
        )
        desired = [*first.sk_set[:2], spare]
        (scheduled,) = await database.migrate_timeline(tablet_id, desired)
        assert scheduled.desired_set == tuple(desired)
        looks: list[str] = []
        view = await database.wait_migrated(
            tablet_id, desired, on_look=lambda seen: looks.append(seen.store_problem)
        )
        assert view.configuration.generation == 3
        assert [stored.record.generation for stored in view.history][-1] == 3
        assert set(looks) == {""}
        await write(table, 0, 5)
        assert (await database.abort_migration(tablet_id)).verdict == "done"
        with pytest.raises(RetryLater, match="there is nothing to take back"):
            await database.wait_migrated(tablet_id, first.sk_set, timeout=5.0)
        moved = await database.migrate_table("t", first.sk_set)
        assert [one.timeline.tablet_id for one in moved] == [tablet_id]
        await database.wait_migrated(tablet_id, first.sk_set)
        assert not await database.migrate_table("t", first.sk_set)
        assert (await database.set_safekeeper_status(spare, "offline")).record.status == "offline"
        with pytest.raises(InvalidArgument, match="one of active, offline, decommissioned"):
            await database.set_safekeeper_status(spare, "retired")
        with pytest.raises(InvalidArgument, match="no active safekeeper"):
            await database.migrate_safekeeper(first.sk_set[0], spare)
        assert (await database.scrub_safekeeper(first.sk_set[0])).removed == ()
        assert len((await database.migrations()).ended) == 1
        assert (await database.locate_timeline(tablet_id)).running is None

    tell(story, safekeepers=4)
