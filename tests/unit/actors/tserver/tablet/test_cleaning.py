"""Passes of the cleaner over real tablets: the barrier, lost replicas, tombstones."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.core.errors import Overloaded
from stelae.core.messages.backup_loads import BackupsView
from stelae.core.messages.backups import ReplicaState
from stelae.core.messages.rows import WriteOp
from tests.unit.actors.tserver.owned_tablet.cleaned_logs import (
    BIG,
    all_sealed,
    close_heads,
    freed_segments,
)
from tests.unit.actors.tserver.owned_tablet.tablet_world import SETTINGS, TabletWorld, run


def test_what_was_cleaned_is_freed_when_a_later_head_is_durable_and_the_one_before_closed() -> None:
    """Not a call earlier: until then a recovery may go by the older digest."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 6)
        before = set(here.tablet.log.digest)
        assert await here.tablet.cleaning.clean(memory_is_low=False)
        gone = before - set(here.tablet.log.digest)
        assert gone, "old segments have no live rows by now"
        await asyncio.sleep(5.0)
        assert not freed_segments(here), "no head was opened since"
        old = here.tablet.log.digest[-1] & 0xFFFFFFFF
        assert here.tablet.roll()
        await here.until(lambda: len(freed_segments(here)) == 2, "both backups to be told")
        first = freed_segments(here)[0][0]
        opened = [place for place, _ in here.writes("answered", old + 1) if place < first]
        closed = [p for p, event in here.writes("answered", old) if p < first and event.body.close]
        assert len(opened) == len(closed) == 2
        assert all(
            ids == {segment & 0xFFFFFFFF for segment in gone} for _, ids in freed_segments(here)
        )

    run(scenario)


def under_replicated(here: TabletWorld) -> int:
    return here.tablet.log.under_replicated


def test_what_was_cleaned_and_lacks_a_replica_is_told_and_worth_a_head() -> None:
    """An older digest names it until a later head is open: one more loss would be too many."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 6)
        log, cleaning = here.tablet.log, here.tablet.cleaning
        assert await cleaning.clean(memory_is_low=False)
        parent = log.side.retired[0]
        assert under_replicated(here) == 0
        parent.let_image_go()  # as memory had less of it already
        parent.lose(parent.holders[0])
        assert under_replicated(here) == 1
        assert min(len(each) for each in log.holders) == 1
        assert log.side.waits_since_s is not None
        await asyncio.sleep(SETTINGS.clean_roll_after_s)
        await cleaning.clean(memory_is_low=False)
        await here.until(lambda: not log.side.retired, "a head, and what it replaces is freed")
        assert not log.under_replicated

    run(scenario)


def test_a_survivor_that_does_not_reach_its_backups_is_given_up() -> None:
    """The log stays as it was, and so does what is read."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write(*[(n, BIG) for n in range(3, 6)])
        await close_heads(here, 4)
        tablet = here.tablet
        segments = tablet.memory.statistics()
        worth = [each for each in segments if each.sealed and each.live_rows < each.row_count]
        assert worth
        for _ in worth:
            assert await tablet.cleaning.compact()
        while await tablet.cleaning.clean(memory_is_low=False):  # what needs no survivor
            continue
        here.see("b1")
        here.world.crash("b2", restart=False)
        before = tablet.log.digest
        work = asyncio.get_running_loop().create_task(tablet.cleaning.clean(memory_is_low=True))
        assert not await work
        # But for a head, as what was cleaned before lacks a replica by now.
        assert tablet.log.digest[: len(before)] == before
        assert not tablet.log.side._side
        assert [await here.get(n) for n in range(3, 6)] == [BIG] * 3

    run(scenario)


def test_nothing_is_cleaned_while_rows_are_still_being_fetched() -> None:
    """What looks dead may be what is yet to come."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 5)
        segments = [each.segment_id for each in here.tablet.memory.statistics()]
        here.tablet.may_clean = lambda: False  # type: ignore[method-assign]
        here.tablet.elsewhere = lambda: frozenset(segments)  # type: ignore[method-assign]
        assert not await here.tablet.cleaning.compact()
        assert not await here.tablet.cleaning.clean(memory_is_low=True)
        del here.tablet.may_clean, here.tablet.elsewhere
        assert await here.tablet.cleaning.clean(memory_is_low=True)

    run(scenario)


def test_what_is_dead_leaves_the_log_while_other_rows_are_being_fetched() -> None:
    """Which that is summaries have said. Not what is elsewhere itself, nor tombstones; the memory
    of a head without rows is free at once."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 5)
        tablet = here.tablet
        await here.write((1,), op=WriteOp.DELETE)
        for _ in range(3):
            await here.until(tablet.roll, "another head")
        await all_sealed(here)
        all_of_them = tablet.memory.statistics()
        elsewhere = all_of_them[0].segment_id
        goes = {e.segment_id for e in all_of_them if e.sealed and not e.live_rows + e.tombstones}
        assert {elsewhere} < goes, "some are dead"
        assert any(not e.row_count for e in all_of_them if e.segment_id in goes), "or empty"
        before, used_bytes = set(tablet.log.digest), tablet.memory_bytes
        dead_bytes = sum(e.memory_bytes for e in all_of_them if e.segment_id in goes - {elsewhere})
        tablet.may_clean = lambda: False  # type: ignore[method-assign]
        tablet.elsewhere = lambda: frozenset([elsewhere])  # type: ignore[method-assign]
        while await tablet.cleaning.clean_meanwhile():
            continue
        assert before - set(tablet.log.digest) == goes - {elsewhere}
        assert tablet.memory_bytes == used_bytes - dead_bytes
        assert [await here.get(n) for n in range(3)] == [BIG, None, BIG]

    run(scenario)


@pytest.mark.parametrize("keeps", [False, True])
def test_tombstones_stay_while_another_tablet_is_brought_up(keeps: bool) -> None:
    """It would keep the rows for ever; otherwise they go with the rows that they guard against."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 3)
        for n in range(3):
            await here.write((n,), op=WriteOp.DELETE)
        await here.write(*[(n, BIG) for n in range(10, 20)])
        here.tablet.roll()
        await all_sealed(here)
        here.tablet.keep_all(keeps=keeps)
        while await here.tablet.cleaning.clean(memory_is_low=True):
            continue
        assert bool(here.tablet.memory.forgot_below) is not keeps
        assert bool(here.tablet.forgettings) is not keeps
        assert [await here.get(n) for n in (0, 1, 2, 15)] == [None, None, None, BIG]

    run(scenario)


def test_replicas_are_brought_into_groups_though_segments_are_cleaned_meanwhile() -> None:
    """Those are left alone, and hold up nobody: what stays is in one group at last."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 8)
        here.see("b1", "b2", "b3", "b4")
        b1, b2, b3, b4 = [here.info(name).uuid for name in ("b1", "b2", "b3", "b4")]
        before = set(here.tablet.log.digest)
        here.members.see_backups(BackupsView(1, copysets=((b1, b3), (b2, b4))))
        log = here.log

        def is_moving() -> bool:
            return any(len(each.replicas) > 2 for each in log.segments)

        await here.world.wait_until(is_moving, 9.0, "one is on its way", 0.001)
        assert await here.tablet.cleaning.clean(memory_is_low=False)
        assert len(before - set(log.digest)) >= 3, "old segments have no live rows by now"
        assert here.tablet.roll()

        def are_grouped() -> bool:
            groups = ({b1, b3}, {b2, b4})
            return all(set(each.holders) in groups for each in log.segments)

        await here.until(are_grouped, "all that is left to lie in groups")

    settings = msgspec.structs.replace(SETTINGS, rereplication_bytes_per_s=2000.0)
    run(scenario, backups=4, settings=settings)


@pytest.mark.parametrize("is_served", [True, False])
def test_what_was_compacted_in_memory_is_brought_into_groups_too(is_served: bool) -> None:
    """Of what its backups have: memory has less. What none of them serves stays where it is, and
    holds up nobody."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await close_heads(here, 8)
        while await here.tablet.cleaning.compact():
            continue
        log = here.log
        compacted = {each.segment_id for each in log.segments if each.former_bytes}
        assert len(compacted) >= 3
        whole = await _images(here, "b1")
        servers = [here.world.server(name) for name in ("b1", "b2")]
        for server in servers if not is_served else ():
            server._holdings._media["disk"].read = _no_room
        here.see("b1", "b2", "b3", "b4")
        b1, b2, b3, b4 = [here.info(name).uuid for name in ("b1", "b2", "b3", "b4")]
        here.members.see_backups(BackupsView(1, copysets=((b1, b3), (b2, b4))))
        assert here.tablet.roll()  # a head that is open is not moved

        def are_grouped() -> bool:
            moved = (e for e in log.segments if is_served or e.segment_id not in compacted)
            return all(set(e.holders) in ({b1, b3}, {b2, b4}) for e in moved)

        await here.until(are_grouped, "all that can be moved to lie in groups")
        if not is_served:
            stay = [each for each in log.segments if each.segment_id in compacted]
            assert stay
            assert all(set(each.holders) == {b1, b2} for each in stay)
            assert not log.under_replicated
            return
        assert not any(each.image_bytes for each in log.segments if each.segment_id in compacted)
        found: dict[int, list[int]] = {}
        for name in ("b1", "b2", "b3", "b4"):
            for segment, crc in (await _images(here, name)).items():
                found.setdefault(segment, []).append(crc)
        assert {segment: found[segment] for segment in compacted} == {
            segment: [whole[segment]] * 2 for segment in compacted
        }

    run(scenario, backups=4)


def _no_room(*_: object) -> None:
    raise Overloaded("reads", 0)


async def _images(here: TabletWorld, name: str) -> dict[int, int]:
    """The sealed segments that a backup has, with the checksum of each image."""
    infos, _ = await here.world.server(name)._holdings.describe(here.tablet.tablet_id)
    return {info.segment_id: info.crc for info in infos if info.state is ReplicaState.SEALED}
