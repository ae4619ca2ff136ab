"""The order rules of a tablet's log, shown by what backups were sent and what they had answered."""

from __future__ import annotations

import asyncio

import pytest

from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.core.errors import OutcomeUnknown
from stelae.core.ids import ServerUuid
from stelae.core.messages.rows import WriteOp
from stelae.core.messages.servers import RecoveryEngine
from tests.unit.actors.tserver.owned_tablet.tablet_world import (
    SETTINGS,
    TERM,
    TabletWorld,
    run,
    segment_log,
)

BIG = "x" * 700
_NATIVE = RecoveryEngine.NATIVE
_GONE = ServerUuid("f" * 32)


async def fill(here: TabletWorld, count: int, start: int = 0) -> None:
    """Write so many rows of 700 bytes: three of them fill a head."""
    for n in range(start, start + count):
        await here.write((n, BIG))


def head_number(here: TabletWorld) -> int:
    return here.log.head.segment_id & 0xFFFFFFFF


def test_a_new_head_is_on_all_replicas_before_the_old_one_is_closed() -> None:
    """Order rule 2: the close is sent once every replica of the successor has its prologue."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        await fill(here, 8)
        log = here.log
        await here.until(lambda: len(log._unsealed) == 1, "all but the head are sealed")
        assert head_number(here) >= 3
        for segment in range(1, head_number(here)):
            closes = [p for p, e in here.writes("sent", segment) if e.body.close]
            opened = here.writes("answered", segment + 1)
            backups = {e.backup for p, e in opened if p < min(closes)}
            assert len(backups) == 2, "a head was closed before the next one was open everywhere"

    run(scenario)


def test_no_row_enters_a_new_head_before_the_old_one_is_closed_everywhere() -> None:
    """Order rule 3: what is sent before the close is answered is the prologue alone."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        await asyncio.gather(*(here.write((n, BIG)) for n in range(9)))
        prologues = {s.segment_id & 0xFFFFFFFF: s._prologue.length for s in log_segments(here)}
        checked = 0
        for segment in range(1, head_number(here)):
            closed = [p for p, e in here.writes("answered", segment) if e.body.close]
            if segment + 1 not in prologues or len(closed) < 2:
                continue
            for place, event in here.writes("sent", segment + 1):
                certificate = event.body.certificate
                if certificate.length > prologues[segment + 1]:
                    assert place > max(closed), "a row overtook the close of the head before"
                    checked += 1
        assert checked

    run(scenario)


def log_segments(here: TabletWorld) -> list[ReplicatedSegment]:
    return list(here.log.segments)


def test_at_most_two_heads_are_open() -> None:
    """Order rule 1: a third head waits until the first is closed on all its replicas."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await asyncio.gather(*(here.write((n, BIG)) for n in range(15)))
        for segment in range(3, head_number(here) + 1):
            created = min(p for p, e in here.writes("sent", segment) if e.body.create)
            closed = [p for p, e in here.writes("answered", segment - 2) if e.body.close]
            assert len([p for p in closed if p < created]) == 2
            opened = [p for p, _ in here.writes("answered", segment - 1) if p < created]
            assert len(opened) >= 2, "opens became durable out of order"
        assert head_number(here) >= 5

    run(scenario)


def test_a_write_is_acknowledged_once_all_replicas_have_it() -> None:
    """With one backup cut off, one replica of two is not enough."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        here.world.partition(["owner"], ["b2"])
        waiting = asyncio.create_task(here.write((1, "a")))
        await asyncio.sleep(3.0)
        assert [e.backup for _, e in here.writes("answered", 1)][-1] == "b1"
        assert not waiting.done()
        here.world.unpartition(["owner"], ["b2"])
        await waiting

    run(scenario, backups=2)


def test_a_lost_replica_of_the_head_stops_answers_until_the_catalog_has_its_epoch() -> None:
    """The new copy alone is not enough: the old one must be stale for ever."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write((1, "a"))
        here.catalog_answers.clear()
        here.world.crash("b2", restart=False)
        here.see("b1", "b3")
        waiting = asyncio.create_task(here.write((2, "b")))
        await asyncio.sleep(3.0)
        certified = {e.backup: e.body for _, e in here.writes("answered", 1)}
        assert certified["b3"].epoch == certified["b1"].epoch == 1
        assert certified["b3"].certificate == certified["b1"].certificate
        assert not waiting.done(), "acknowledged while the stale replica could pass for whole"
        assert here.epochs == []
        here.catalog_answers.set()
        await waiting
        assert here.epochs == [(1, 1)]

    run(scenario)


def test_no_epoch_is_registered_before_the_tablet_is_handed_over() -> None:
    """Until then the log is the former owner's, and a mark above its head would make it stale."""

    async def scenario(here: TabletWorld) -> None:
        here.see("b1", "b2")
        here.world.crash("b2", restart=False)
        opening = asyncio.create_task(here.tablet.open((), _NATIVE))
        await asyncio.sleep(1.0)
        here.see("b1", "b3")
        await opening
        assert here.log.head.epoch > 0
        await asyncio.sleep(5.0)
        assert here.epochs == []
        here.tablet.serve()
        await here.write((1, "a"))
        assert here.epochs == [(1, here.log.head.epoch)]

    run(scenario)


def test_a_backup_that_was_dead_before_the_log_began_to_look_is_replaced() -> None:
    """A segment adopted onto a dead backup is made anew without a further change of membership."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        await fill(here, 4)
        log = here.log
        await here.until(lambda: len(log._unsealed) == 1, "the first head is sealed")
        first = log.segments[0]
        assert first.image is not None
        other = here.make(TERM + 1)
        adopted = segment_log(other).adopt_image(
            first.segment_id, first.image, [(here.info("b1").uuid, "disk"), (_GONE, "disk")], 0
        )
        assert adopted.missing_replicas == 1
        other._log.start()
        await here.until(
            lambda: adopted.missing_replicas == 0 and adopted.is_sealed, "two replicas"
        )
        await other.close()

    run(scenario)


def test_a_closed_tablet_tells_waiting_writers_that_nobody_here_knows() -> None:
    """Fenced or closed: the entry may be on some backups, so the outcome is unknown."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        here.world.partition(["owner"], ["b1", "b2"])
        waiting = asyncio.create_task(here.write((1, "a")))
        await asyncio.sleep(0.01)
        await here.tablet.close()
        with pytest.raises(OutcomeUnknown):
            await waiting

    run(scenario, backups=2)


def test_a_waiting_write_ends_with_its_callers_deadline() -> None:
    """Backups that do not come do not pile up handlers: each waits as long as its caller."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        here.world.partition(["owner"], ["b2"])
        with pytest.raises(OutcomeUnknown):
            await here.write((1, "a"), timeout_s=1.0)
        here.world.unpartition(["owner"], ["b2"])
        assert (await here.write((2, "b"))).first_version == 2

    run(scenario, backups=2)


def test_a_log_without_media_acknowledges_at_once_and_keeps_no_row_form() -> None:
    """segments(): nothing to wait for, and what is sealed is not held twice."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve()
        await fill(here, 10)
        log = here.log
        await here.until(lambda: len(log._unsealed) == 1, "all but the head are sealed")
        assert here.events == []
        assert all(not s._content for s in log.segments if s is not log.head)
        assert await here.get(3) == BIG

    run(scenario, media=(), backups=0)


def test_a_call_without_rows_takes_an_index_of_its_own() -> None:
    """The next write must not be taken for committed because an empty one had its index."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write(op=WriteOp.UPSERT)
        here.world.partition(["owner"], ["b2"])
        with pytest.raises(OutcomeUnknown):
            await here.write((1, "a"), timeout_s=1.0)
        here.world.unpartition(["owner"], ["b2"])

    run(scenario, backups=2)


def test_row_form_counts_as_memory_until_it_is_sealed() -> None:
    """What heads keep for their replicas is counted beside the rows."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await fill(here, 2)
        log = here.log
        assert log.content_bytes == log.head.length > 1400
        rows_bytes = here.tablet._memory.memory_bytes
        assert here.tablet.memory_bytes == rows_bytes + log.head.length
        assert here.tablet.report().memory_bytes == here.tablet.memory_bytes

    run(scenario, settings=SETTINGS)
