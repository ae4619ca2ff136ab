"""A tablet is deleted on disk: what its tombstone keeps, and what lies in the quarantine."""

from __future__ import annotations

import pytest

from stelae.core.errors import TabletDeleted
from stelae.core.ids import OpId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.replication import TermAndVote
from stelae.storage.files.superblock import NOTHING
from tests.unit.actors.tserver.tablet_store.stored_tablets import TABLET, contents, ready, tombstone
from tests.unit.actors.tserver.tablet_store.tablet_store_world import (
    OTHER,
    Crash,
    When,
    World,
    entry,
    metadata,
    run,
    table,
)


def test_a_deletion_keeps_term_vote_and_last_op_id_and_moves_the_data_away() -> None:
    """The tombstone votes for ever; the data is in the quarantine until it is purged."""

    async def body(world: World) -> None:
        await ready(world)
        await world.store.files.write_log(TABLET, [entry(3, 6), entry(3, 7)])
        after = await world.store.tombstone(TABLET, OpId(3, 7))
        assert after is not None
        assert (after.state, after.tombstone) == (DataState.DELETED, OpId(3, 7))
        assert contents(world, "data/") == contents(world, "wals/") == []
        (listed,) = await world.store.quarantine_list()
        assert (listed.tablet_id, listed.table) == (TABLET, "rows")
        assert contents(world, listed.folder) == [
            f"{listed.folder}/{name}"
            for name in (
                "consensus-meta",
                "data/one",
                "data/two",
                "tablet-meta",
                "wals/log-00000000000000000006",
            )
        ]
        assert listed.size_bytes == sum(len(world.disk.durable(p)) for p in contents(world, "q"))
        assert await world.store.quarantine_purge(TabletId("other")) == []
        assert await world.store.quarantine_purge(TABLET, 77) == []
        assert await world.store.quarantine_purge() == [listed]
        assert contents(world, "q") == []
        found = await world.store.metadata(TABLET)
        assert found.term_and_vote == TermAndVote(3, OTHER)

    run(body)


def test_a_purge_that_a_crash_interrupts_is_still_listed_with_its_name() -> None:
    """What is left can be found, known and purged."""

    def crashing_at(step: int, seed: int) -> bool:
        async def body(world: World) -> bool:
            await tombstone(world)
            world.stepped.crash_at = (world.stepped.steps + step, When.DURING)
            try:
                await world.store.quarantine_purge()
                cut_short = False
            except Crash:
                cut_short = True
            await world.start()
            for listed in await world.store.quarantine_list():
                assert cut_short
                assert listed.table == "rows" or not contents(world, f"{listed.folder}/data")
            await world.store.quarantine_purge()
            assert contents(world, "q") == []
            return cut_short

        return run(body, seed=(step, seed))

    step = 0
    while any([crashing_at(step, seed) for seed in range(40)]):
        step += 1
    assert step > 1


def test_what_is_deleted_already_costs_nothing() -> None:
    """Masters repeat deletions; each must not be a write (KUDU-2126)."""

    async def body(world: World) -> None:
        assert await world.store.tombstone(TABLET, NOTHING) is None
        await tombstone(world)
        steps = world.stepped.steps
        await world.store.tombstone(TABLET, OpId(9, 9))
        assert world.stepped.steps == steps
        await world.store.tombstone(TABLET, None, forever=True)
        assert world.stepped.steps == steps + 1
        for forever in (True, False):
            after = await world.store.tombstone(TABLET, None, forever=forever)
            assert after is not None
            assert (after.forever, after.tombstone) == (True, OpId(3, 9))
        assert world.stepped.steps == steps + 1

    run(body)


def test_a_tablet_that_is_gone_for_good_is_never_copied_again() -> None:
    """Neither one that was here, nor one of which only the deletion was ever heard."""

    async def body(world: World) -> None:
        await ready(world)
        for tablet in (TABLET, TabletId("unseen")):
            await world.store.tombstone(tablet, OpId(3, 5), forever=True)
        await world.start()
        for tablet in (TABLET, TabletId("unseen")):
            with pytest.raises(TabletDeleted):
                await world.copies.begin_copy(tablet, table(), metadata(tablet, 9), [])

    run(body)
