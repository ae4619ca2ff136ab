"""An order about a timeline that was acknowledged is carried out, whichever master leads then."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from stelae.actors.master.leader.migration_runner import RunnerSettings
from stelae.actors.master.leader.timelines import TimelineKeeper
from stelae.coordinator.catalog.timelines import TimelineCatalog
from stelae.coordinator.timelines.duties import wish_of
from stelae.coordinator.timelines.migration_steps import MigrationSettings
from stelae.core.errors import InvalidArgument, TabletNotFound
from stelae.core.ids import TabletId
from stelae.core.messages.timelines import (
    LIST_MIGRATIONS,
    LOCATE_TIMELINE,
    ListMigrations,
    LocateTimeline,
)
from stelae.core.records.configurations import MigrationOrder
from stelae.core.records.timelines import SafekeeperId
from stelae.simulation.world.node import SimulationFailure
from tests.simulation.wal.wal_cluster import (
    WalFixture,
    ask,
    read_all,
    records,
    tell,
    timelines,
    until_at_rest,
    write,
)

SEEDS = 6
IMPATIENT = RunnerSettings(
    migration=MigrationSettings(members_min=1, call_timeout_s=0.6, patience_s=6.0, stall_s=2.0),
    store_timeout_s=0.6,
)


def others(here: WalFixture, tablet_id: TabletId, count: int = 6) -> tuple[SafekeeperId, ...]:
    """Safekeepers that its log is not on."""
    members = timelines(here)[tablet_id].members
    return tuple(SafekeeperId(n) for n in range(1, count + 1) if n not in members)


def leaders_die_after_orders(seed: int) -> None:
    """The leader that took an order dies at once, or a moment after; so does the next one."""

    async def story(here: WalFixture) -> None:
        table = await here.create()
        await here.until_registered(6)
        wanted = {tablet_id: others(here, tablet_id) for tablet_id in timelines(here)}
        for tablet_id, desired in wanted.items():
            await here.database.migrate_timeline(tablet_id, desired)
            await asyncio.sleep(0.004 * seed)
            here.world.crash(here.cluster.leader() or "")
            await here.until(here.cluster.leader, "another leader")
        await write(table, 0, 10)
        await until_at_rest(here)
        found = {tablet_id: c.sk_set for tablet_id, c in timelines(here).items()}
        assert found == wanted, "an order that was acknowledged is lost"
        await read_all(table, 10)

    tell(story, seed, safekeepers=6)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_an_order_outlives_the_leader_that_took_it(seed: int) -> None:
    """Also before anything of it is in the configuration store; nobody asks again."""
    leaders_die_after_orders(seed)


def test_an_order_outlives_a_restart_of_the_only_master() -> None:
    """It has heard nobody yet when it leads again: that is no reason to give an order up."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        (tablet_id,) = timelines(here)
        desired = others(here, tablet_id)
        await here.database.migrate_timeline(tablet_id, desired)
        here.world.crash(here.cluster.masters[0])
        await here.until(here.cluster.leader, "it leads again")
        await here.until(lambda: timelines(here)[tablet_id].sk_set == desired, "the move", 20.0)
        await write(table, 0, 5)
        await until_at_rest(here)
        await read_all(table, 5)

    for seed in range(4):
        tell(story, seed, safekeepers=6, masters=1)


def test_orders_that_only_the_leader_knows_would_be_lost() -> None:
    """The story above sees masters that begin what is ordered, and do not keep it."""

    def begin(self: TimelineKeeper, order: MigrationOrder) -> Any:
        return self.request(order.timeline, wish_of(order))

    def live_all() -> None:
        for seed in range(SEEDS):
            leaders_die_after_orders(seed)

    with (
        patch.object(TimelineCatalog, "order", lambda *given: None),
        patch.object(TimelineKeeper, "obey", begin),
        pytest.raises(SimulationFailure, match="is lost"),
    ):
        live_all()


def test_an_order_waits_for_the_store_longer_than_a_driver_does() -> None:
    """The store is away for minutes, in which drivers give up again and again, and the leader that
    took the order dies: rows are written all the time, the order is shown as under way, and is
    carried out when the store is back."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        (tablet_id,) = timelines(here)
        desired = others(here, tablet_id)
        here.world.crash("cas-store", restart=False)
        await here.database.migrate_timeline(tablet_id, desired)
        for minute in range(4):
            await write(table, minute * 5, 5)
            await asyncio.sleep(60.0)
            view = await ask(here, LOCATE_TIMELINE, LocateTimeline(tablet_id))
            assert view.store_problem
            assert view.running is not None
            assert view.running.desired == desired
            if minute == 1:
                here.world.crash(here.cluster.leader() or "")
                await here.until(here.cluster.leader, "another leader")
        here.world.restart("cas-store")
        await here.until(lambda: timelines(here)[tablet_id].sk_set == desired, "the migration")
        await read_all(table, 20)

    tell(story, safekeepers=6, cas_store=True, migrations=IMPATIENT)


def test_an_abort_outlives_the_leader_that_took_it() -> None:
    """The new members are gone and the store is away, so that it cannot be decided at once. The
    abort takes the order of the move with it: that is not begun again."""

    async def story(here: WalFixture) -> None:
        table = await here.create(buckets=1)
        await here.until_registered(6)
        (tablet_id,), (first,) = timelines(here), timelines(here).values()
        desired = others(here, tablet_id)
        await here.database.migrate_timeline(tablet_id, desired)
        await here.until(lambda: timelines(here)[tablet_id].is_joint, "it is joint")
        for number in desired:
            here.world.crash(here.keeper(number), restart=False)
        here.world.crash("cas-store", restart=False)
        result = await here.database.abort_migration(tablet_id, timeout=3.0)
        assert result.verdict == "under way"
        here.world.crash(here.cluster.leader() or "")
        await here.until(here.cluster.leader, "another leader")
        here.world.restart("cas-store")
        await here.until(lambda: not timelines(here)[tablet_id].is_joint, "the abort")
        for number in desired:
            here.world.restart(here.keeper(number))
        await write(table, 0, 5)
        await asyncio.sleep(20.0)
        assert timelines(here)[tablet_id].sk_set == first.sk_set
        assert not here.leader.catalog.timelines.orders
        await read_all(table, 5)

    tell(
        story,
        safekeepers=6,
        cas_store=True,
        migrations=IMPATIENT,
        safekeeper_dead_after_s=300.0,
    )


def test_more_orders_than_a_leader_drives_at_a_time_are_all_carried_out() -> None:
    """One runs and one may wait; the others stay in the catalog, and are shown."""

    async def story(here: WalFixture) -> None:
        await here.create(buckets=8)
        await here.until_registered(3)
        await until_at_rest(here)
        ids = timelines(here)
        spare = SafekeeperId(4)
        here.cluster.add_safekeeper()
        await here.until_registered(4)
        source = next(iter(ids.values())).sk_set[0]
        scheduled = await here.database.migrate_safekeeper(source, spare)
        assert len(scheduled) == 8
        listed = await ask(here, LIST_MIGRATIONS, ListMigrations())
        assert len(listed.running) + len(listed.ended) >= 8
        await until_at_rest(here)
        assert {c.sk_set.count(spare) for c in timelines(here).values()} == {1}
        assert len(records(here)) == 8

    tell(story, migrations=RunnerSettings(migration=IMPATIENT.migration, runs_max=1, waiting_max=1))


def test_what_cannot_be_done_is_given_up_with_a_reason() -> None:
    """A member that is to join dies as it is ordered: the order ends, the catalog forgets it, and
    another one may be given."""

    async def story(here: WalFixture) -> None:
        await here.create(buckets=1)
        await here.until_registered(6)
        ((tablet_id, first),) = timelines(here).items()
        desired = others(here, tablet_id)
        here.world.crash(here.keeper(desired[0]), restart=False)
        await here.database.migrate_timeline(tablet_id, desired)
        await here.until(lambda: not here.leader.catalog.timelines.orders, "it is given up", 30.0)
        (ended,) = (await ask(here, LIST_MIGRATIONS, ListMigrations())).ended[-1:]
        assert (ended.verdict, ended.request) == ("unreachable", f"move to {list(desired)}")
        kept = (*first.sk_set[:2], desired[1])
        await here.database.migrate_timeline(tablet_id, kept)
        await here.until(lambda: timelines(here)[tablet_id].sk_set == kept, "the other one")

    tell(story, safekeepers=6, safekeeper_dead_after_s=300.0, migrations=IMPATIENT)


def test_a_table_that_is_dropped_takes_its_orders_along() -> None:
    """While one log of it is joint, and cannot go on, and the order for the other one waits: in the
    end no safekeeper of either set has anything, and nobody waits for the orders."""

    async def story(here: WalFixture) -> None:
        await here.create()
        await here.until_registered(6)
        ids = list(timelines(here))
        wanted = {tablet_id: others(here, tablet_id) for tablet_id in ids}
        names = [here.keeper(number) for number in wanted[ids[0]][1:]]
        await here.database.migrate_timeline(ids[0], wanted[ids[0]])
        await here.until(lambda: timelines(here)[ids[0]].is_joint, "it is joint")
        for name in names:
            here.world.crash(name, restart=False)
        await here.database.migrate_timeline(ids[1], wanted[ids[1]])
        await here.database.delete_table("t", timeout=20.0)
        await here.until(lambda: not here.leader.catalog.timelines.orders, "they are forgotten")
        for tablet_id in ids:
            with pytest.raises((TabletNotFound, InvalidArgument)):
                await here.database.migrate_timeline(tablet_id, wanted[tablet_id])
        for name in names:
            here.world.restart(name)
        await here.until(lambda: not any(here.held().values()), "nothing is left")
        await here.until(lambda: not records(here), "all is over")

    tell(
        story,
        safekeepers=6,
        safekeeper_dead_after_s=300.0,
        migrations=RunnerSettings(migration=IMPATIENT.migration, runs_max=1),
    )
