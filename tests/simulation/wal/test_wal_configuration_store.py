"""``wal`` tables while the server of the configuration store is away, and after it came back."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from stelae.actors.master.leader.migration_runner import RunnerSettings
from stelae.coordinator.timelines.migration_steps import MigrationSettings
from stelae.core.errors import StelaeError
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import LOCATE_TIMELINE, LocateTimeline
from stelae.core.records.timelines import SafekeeperId
from stelae.core.schema.durability import wal
from tests.simulation.wal.wal_cluster import (
    SCHEMA,
    WalFixture,
    ask,
    move,
    read_all,
    tell,
    timelines,
    write,
)


def test_without_its_store_nothing_moves_and_everything_is_written() -> None:
    """The store is away: writes and recoveries go on, and a migration waits for it."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        here.world.crash("cas-store", restart=False)
        other = next(SafekeeperId(n) for n in range(1, 5) if n not in first.members)
        desired = (*first.sk_set[:2], other)
        await here.database.migrate_timeline(tablet_id, desired)
        await write(table, 0, 20)
        here.world.crash(here.owners()[0])
        await read_all(table, 20)
        assert timelines(here)[tablet_id] == first
        view = await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id))
        assert view.store_problem
        assert view.running is not None
        here.world.restart("cas-store")
        await here.until(lambda: timelines(here)[tablet_id].sk_set == desired, "the migration")
        await write(table, 20, 10)
        await read_all(table, 30)

    tell(story, safekeepers=4, cas_store=True)


def has_safekeepers(
    here: WalFixture, tablet_id: TabletId, desired: tuple[SafekeeperId, ...]
) -> bool:
    """Whether a master leads and the timeline is on exactly these safekeepers."""
    return here.cluster.leader() is not None and timelines(here)[tablet_id].sk_set == desired


def test_a_store_that_starts_again_has_everything_and_the_next_leader_finds_it() -> None:
    """It listens elsewhere then, and heartbeats there; a new leader master goes on with what it has
    kept, while another move is under way."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(4)
        ((tablet_id, first),) = timelines(here).items()
        before = (await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id))).history
        assert before[0].record.generation == 1
        was_at = here.world.server("cas-store").info.address
        here.world.crash("cas-store", restart=False)
        here.world.restart("cas-store")
        await here.world.wait_ready()
        assert here.world.server("cas-store").info.address != was_at
        desired = first.sk_set
        for number in range(3):
            other = next(SafekeeperId(n) for n in range(1, 5) if n not in desired)
            desired = (*desired[1:], other)
            await move(here, tablet_id, desired)
            here.world.crash(here.cluster.leader() or "")
            if number:
                here.world.crash("cas-store")
            await write(table, 5 * number, 5)
            await here.until(here.cluster.leader, "a leader")
            await move(here, tablet_id, desired)
            await here.until(
                partial(has_safekeepers, here, tablet_id, desired),
                "the migration",
            )
        await read_all(table, 15)
        after = (await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id), 30.0)).history
        assert after[: len(before)] == before
        assert [row.revision for row in after] == [*range(1, len(after) + 1)]
        assert after[-1].record.generation == 7

    tell(story, safekeepers=4, cas_store=True)


def test_a_cluster_without_its_store_server_says_so() -> None:
    """The status has it, alive and then not; nobody else is told of it."""

    async def story(here: WalFixture) -> None:
        await here.until_registered(3)

        async def state() -> list[str]:
            servers = (await here.database.status())["servers"]
            return [each["state"] for each in servers if each["kind"] == "cas_store"]

        assert await state() == ["live"]
        keeper = here.world.server(here.keeper(1))
        assert keeper.members.find(here.world.server("cas-store").info.uuid) is None
        here.world.crash("cas-store", restart=False)
        await asyncio.sleep(2 * here.cluster.settings.dead_after_s)
        assert await state() == ["dead"]

    tell(story, cas_store=True)


def test_a_table_waits_for_the_store_and_says_so() -> None:
    """Its timelines cannot begin without the store; the client is told why, and once the store is
    there the table is too."""

    async def story(here: WalFixture) -> None:
        await here.until_registered(3)
        here.world.crash("cas-store", restart=False)
        with pytest.raises(StelaeError, match="its timeline cannot be created: nothing moves"):
            await here.database.create_table(
                "t", SCHEMA, key=["id"], durability=wal(3), timeout=15.0
            )
        here.world.restart("cas-store")
        table = await here.database.table("t")
        await write(table, 0, 5)
        await read_all(table, 5)

    migration = MigrationSettings(members_min=1, patience_s=6.0, stall_s=2.0)
    runner = RunnerSettings(migration=migration)
    tell(story, cas_store=True, migrations=runner)
