"""One segment's replicas: where they are placed, and what happens to those that are lost."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.tserver.segments.replica import RemoteImage
from stelae.actors.tserver.segments.segment import ReplicatedSegment
from stelae.actors.tserver.segments.views import VIEWS_MAX, sliced
from stelae.core.errors import CorruptData, InvalidArgument, OutcomeUnknown, StelaeError
from stelae.core.messages.backups import (
    FREE_REPLICAS,
    INVENTORY,
    FreeReplicas,
    Inventory,
    ReplicaState,
    WriteReplica,
)
from stelae.core.messages.servers import RecoveryEngine
from stelae.simulation import Options
from tests.unit.actors.tserver.owned_tablet.tablet_world import SETTINGS, TABLET, TabletWorld, run

BIG = "x" * 700


async def held(here: TabletWorld, backup: str) -> dict[int, ReplicaState]:
    """What a backup says that it holds, by the segments' numbers."""
    reply = await here.runtime._runtime.peers.call(
        here.world.address(backup), INVENTORY, Inventory((TABLET,)), timeout_s=5.0
    )
    return {r.segment_id & 0xFFFFFFFF: r.state for r in reply.body.logs[0].replicas}


def head(here: TabletWorld) -> ReplicatedSegment:
    return here.log.head


def test_a_stale_replica_that_comes_back_is_freed() -> None:
    """The owner asks a backup that returns, and frees what was replaced meanwhile."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write((1, "a"))
        here.world.crash("b2", restart=False)
        here.see("b1", "b3")
        await here.write((2, "b"))
        here.world.restart("b2")
        await here.world.wait_ready("b2")
        assert await held(here, "b2") == {1: ReplicaState.OPEN}
        here.see("b1", "b2", "b3")
        await asyncio.sleep(2.0)
        assert await held(here, "b2") == {}
        assert set(head(here).holders) == {here.info("b1").uuid, here.info("b3").uuid}

    run(scenario)


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_late_free_does_not_meet_a_later_replica_of_the_segment(*, is_lost: bool) -> None:
    """A backup that was told to free a segment is not chosen for it while the call may be late.
    Once it has answered it is, at once: what comes late frees no replica of a higher epoch."""

    async def scenario(here: TabletWorld) -> None:
        lost = [FREE_REPLICAS.name] * is_lost

        def loses(sender: str, receiver: str, method: str) -> bool:
            if method not in lost:
                return False
            lost.remove(method)
            return True

        here.world.network.drop_filter = loses
        await here.serve("b1", "b2")
        await here.write((1, "a"))
        here.world.crash("b2", restart=False)
        here.see("b1", "b3")
        await here.write((2, "b"))
        here.world.restart("b2")
        await here.world.wait_ready("b2")
        here.see("b1", "b2", "b3")
        await here.until(
            lambda: any(isinstance(e.body, FreeReplicas) for e in here.events), "the stray is freed"
        )
        freed_at = here.runtime.clock.monotonic()
        here.world.crash("b3", restart=False)
        here.see("b1", "b2")
        await here.write((3, "c"))
        waited_s = here.runtime.clock.monotonic() - freed_at
        if is_lost:
            assert waited_s >= SETTINGS.call_timeout_s, "the free could have been on its way still"
        else:
            assert waited_s < SETTINGS.append_timeout_s
        (stray,) = [e.body for e in here.events if isinstance(e.body, FreeReplicas)][:1]
        assert stray.epochs == (0,)
        assert set(head(here).holders) == {here.info("b1").uuid, here.info("b2").uuid}

    run(scenario)


@pytest.mark.parametrize("gap_s", [0.0, 0.001, 0.002, 0.003])
def test_a_backup_that_frees_a_replica_is_looked_at_again_soon(gap_s: float) -> None:
    """The only one left is told to free a replica just now: the writer waits for the answer, and
    not for the next change of members, nor for an append timeout."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await here.write((1, "a"))
        here.world.crash("b2", restart=False)
        here.see("b1", "b3")
        await here.write((2, "b"))
        here.world.restart("b2")
        await here.world.wait_ready("b2")
        here.see("b1", "b2", "b3")
        await asyncio.sleep(gap_s)
        here.world.crash("b3", restart=False)
        here.see("b1", "b2")
        began = here.runtime.clock.monotonic()
        await here.write((3, "c"))
        assert here.runtime.clock.monotonic() - began < SETTINGS.append_timeout_s / 2

    run(scenario)


def test_a_backup_without_room_is_passed_over() -> None:
    """NoSpace: the next one is chosen, and the write succeeds."""
    tiny = {"disk": MediumSpec(name="disk", path="disk", size_bytes=1)}

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        await here.write((1, "a"))
        assert set(head(here).holders) == {here.info("b1").uuid, here.info("b3").uuid}

    run(scenario, specs={"b2": tiny})


@pytest.mark.parametrize(
    "refusal", [InvalidArgument("no such medium"), CorruptData("frame 1", 0, "bad checksum")]
)
def test_a_backup_that_refuses_for_good_is_passed_over_with_a_pause(refusal: StelaeError) -> None:
    """Whatever a backup answers, the server lives, the next one is tried, and none is hammered."""

    async def scenario(here: TabletWorld) -> None:
        call = here.runtime.peers._peers.call
        asked: list[float] = []

        async def refusing(address: str, method: object, body: object, **rest: object) -> object:
            if address.startswith("b2") and isinstance(body, WriteReplica):
                asked.append(here.runtime.clock.monotonic())
                raise refusal
            return await call(address, method, body, **rest)

        here.runtime.peers._peers.call = refusing
        here.see("b1", "b2")
        opening = asyncio.create_task(here.tablet.open((), RecoveryEngine.NATIVE))
        await asyncio.sleep(5.0)
        assert 2 <= len(asked) <= 25, "paced: at most about four tries a second"
        here.see("b1", "b2", "b3")
        await opening
        here.tablet.serve()
        await here.write((1, "a"))
        assert set(head(here).holders) == {here.info("b1").uuid, here.info("b3").uuid}

    run(scenario)


def test_what_a_medium_in_memory_lost_is_made_anew() -> None:
    """A backup that restarts has its disks, and nothing of its memory: head and sealed segments."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        for n in range(4):
            await here.write((n, BIG))
        log = here.log
        await here.until(lambda: len(log._unsealed) == 1, "the first head is sealed")
        await here.until(lambda: log.segments[0].is_sealed, "on both backups")
        here.world.crash("b1")
        await here.world.wait_ready()
        here.see("b1", "b2")
        await here.write((9, "after"))
        await here.until(lambda: all(s.missing_replicas == 0 for s in log.segments), "replicas")
        await asyncio.sleep(5.0)
        for backup in ("b1", "b2"):
            found = await held(here, backup)
            assert found[1] is ReplicaState.SEALED
            assert len(found) == len(log.segments)

    run(scenario, media=("ram", "ram"), backups=2)


def test_a_copy_of_a_head_with_very_many_small_entries_is_a_message_of_few_blobs() -> None:
    """The wire bounds the blobs of a message; a lost replica must be replaceable all the same."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2")
        await asyncio.gather(*(here.write((n, "v" * 50)) for n in range(900)))
        content = head(here).length
        views = sliced(head(here)._content, head(here)._ends, 0, content)
        assert len(head(here)._content) > VIEWS_MAX >= len(views)
        whole = b"".join(bytes(memoryview(b)) for b in head(here)._content)
        assert b"".join(bytes(memoryview(v)) for v in views) == whole
        middle = sliced(head(here)._content, head(here)._ends, 100, content - 77)
        assert b"".join(bytes(memoryview(v)) for v in middle) == whole[100:-77]

    settings = msgspec.structs.replace(SETTINGS, segment_bytes=1 << 20)
    run(scenario, settings=settings)


def test_replicas_lie_on_different_backups_and_other_nodes_first() -> None:
    """Never two of a segment on one backup."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        for n in range(12):
            await here.write((n, BIG))
        for segment in here.log.segments:
            assert len(set(segment.holders)) == len(segment.holders) == 2

    run(scenario, options=Options(one_machine=False))


def test_no_replica_lies_on_the_owners_machine_while_there_are_others() -> None:
    """Neither at first nor made anew: a machine that is lost takes one copy of a row with it. With
    too few machines it takes one all the same."""

    async def scenario(here: TabletWorld) -> None:
        beside = here.info("b1")
        assert beside.process.node == here.runtime.identity.node
        await here.serve("b1", "b2", "b3", "b4")
        for n in range(12):
            await here.write((n, BIG))
        segments = here.log.segments
        assert len(segments) >= 4
        lost = here.info("b2").uuid
        assert any(lost in segment.holders for segment in segments)
        here.world.crash("b2", restart=False)
        here.see("b1", "b3", "b4")
        await here.write((100, "a"))
        whole = {here.info("b3").uuid, here.info("b4").uuid}
        log = here.log
        await here.until(lambda: all({*s.holders} == whole for s in log.segments), "made anew")
        here.world.crash("b3", restart=False)
        here.see("b1", "b4")
        whole = {beside.uuid, here.info("b4").uuid}
        await here.until(lambda: all({*s.holders} == whole for s in log.segments), "beside it")

    run(scenario, options=Options(one_machine=False), backups=4, machines={"b1": "machine-owner"})


def test_writes_go_on_when_a_backup_dies_and_all_segments_are_made_whole_again() -> None:
    """Sealed segments of a dead backup are replaced in the background, without an epoch."""

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        for n in range(8):
            await here.write((n, BIG))
        log = here.log
        await here.until(lambda: len(log._unsealed) == 1, "all but the head are sealed")
        await here.until(lambda: all(s.is_sealed for s in log.segments[:-1]), "everywhere")
        epochs = [segment.epoch for segment in log.segments[:-1]]
        here.world.crash("b1", restart=False)
        here.see("b2", "b3")
        await here.write((100, BIG))
        await here.until(lambda: all(len(s.holders) == 2 for s in log.segments), "full strength")
        gone = here.world.nodes["b1"]
        assert not gone.running
        assert [segment.epoch for segment in log.segments[: len(epochs)]] == epochs

    run(scenario)


def test_segments_whose_image_nobody_has_hold_up_no_others() -> None:
    """They are tried again and again, however many, after all of which there is an image."""
    tries = 0

    async def nobody_has_it() -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0.2)

    async def scenario(here: TabletWorld) -> None:
        await here.serve("b1", "b2", "b3")
        for n in range(8):
            await here.write((n, BIG))
        log = here.log
        await here.until(lambda: all(s.is_sealed for s in log.segments[:-1]), "everywhere")
        stuck = [ReplicatedSegment(log, log.next_id(), ("disk",)) for _ in range(40)]
        for segment in stuck:
            segment.adopt(None, [], RemoteImage(1000, nobody_has_it))
            segment.replicas[0].is_remade = True
            segment.start()
        await asyncio.sleep(2.5)
        here.world.crash("b1", restart=False)
        here.see("b2", "b3")

        def whole() -> bool:
            return all(len(s.holders) == 2 for s in log.segments)

        await here.until(lambda: not whole(), "it is missed")
        await here.world.wait_until(whole, 3.0, "full strength")
        seen = tries
        await asyncio.sleep(3.0)
        assert tries > seen + 20, "nor are they forgotten"

    run(scenario)


def test_a_replica_lost_while_its_head_closes_is_replaced_once() -> None:
    """The other one is closed already: its epoch is raised all the same, and nothing is undone."""

    async def scenario(here: TabletWorld) -> None:
        call = here.runtime.peers._peers.call

        async def without_close(
            address: str, method: object, body: object, **rest: object
        ) -> object:
            if address.startswith("b2") and isinstance(body, WriteReplica) and body.close:
                raise OutcomeUnknown(address, "write_replica", 0.1)
            return await call(address, method, body, **rest)

        here.runtime.peers._peers.call = without_close
        await here.serve("b1", "b2")
        first = head(here)
        writing = [asyncio.create_task(here.write((n, BIG))) for n in range(4)]
        await here.until(lambda: any(r.closed for r in first.replicas), "one replica is closed")
        here.world.crash("b2", restart=False)
        here.see("b1", "b3")
        await asyncio.gather(*writing)
        await here.until(lambda: first.is_sealed, "the head is closed and sealed everywhere")
        created = [e.backup for _, e in here.writes("sent", 1) if e.body.create]
        assert sorted(created) == ["b1", "b2", "b3"]
        assert here.epochs == [(1, 1), (2, 1)]

    run(scenario)
