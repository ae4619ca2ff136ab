"""Whole clusters whose tablets have replicas that break: each is failed, reported and replaced.

What goes wrong with one replica's files or server is its own affair: its group serves on, and the
masters see to it that there are as many replicas as there should be, on a spare server or in place.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import pytest

from stelae.actors.raft.durable_mark import REST_S
from stelae.coordinator.groups.health import RETURN_GRACE_S
from stelae.core.errors import OutcomeUnknown, RetryLater
from stelae.core.messages.servers import ReplicaRole
from tests.simulation.recovery.healed_cluster import DEAD_AFTER_S, HEALED_S, Healed, Story, play


def damage(healed: Healed, name: str, folder: str) -> None:
    """Flip a bit in the midst of the oldest of the tablet's files there, while its server is down:
    what is after it is still to be read, so nobody can take it for the torn end of a write."""
    world = healed.world
    world.crash(name, restart=False)
    disk = world.nodes[name].disk
    path = next(p for p in disk.paths() if p.startswith(f"{folder}/{healed.tablet}"))
    disk.corrupt(path, len(disk.durable(path)) // 3)
    world.restart(name)


@pytest.mark.parametrize("tservers", [3, 4])
@pytest.mark.parametrize("folder", ["data", "wals", "tablet-meta", "consensus-meta"])
def test_a_replica_whose_files_are_damaged_is_replaced(folder: str, tservers: int) -> None:
    """It says so and where; another server gets a copy, or the same one once it was let go. The
    group serves all the time."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.followers()[0]
        before = healed.members()
        damage(healed, victim, folder)
        await world.wait_ready(victim)
        await healed.until(lambda: healed.role(victim) is ReplicaRole.FAILED, "it failed")
        found = healed.report(victim)
        assert found is not None
        assert f"{folder}/{healed.tablet}" in found.problem or "image" in found.problem
        await healed.write(5, timeout_s=3.0)
        gone = [healed.uuid(victim)] if tservers > 3 else []
        await healed.until(
            lambda: healed.role(victim) is not ReplicaRole.FAILED and healed.is_whole(without=gone),
            "it is replaced",
        )
        assert len([uuid for uuid in healed.members() if uuid in before]) == (3 if not gone else 2)
        if gone:
            assert healed.role(victim) is ReplicaRole.TOMBSTONE
        await healed.check()

    play(story, tservers=tservers)


@pytest.mark.parametrize("tservers", [3, 4])
def test_a_leader_whose_disk_fails_acknowledges_nothing_more(tservers: int) -> None:
    """The write that met the failed sync is answered by another leader. The replica is replaced
    while its server runs on, in place if there is no other server."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.leader
        server, tablet = world.server(victim), world.server(victim).replicas.tablet(healed.tablet)
        await asyncio.sleep(2 * REST_S)  # the next sync is of the log, and not of its note
        others = [name for name in healed.cluster.tservers if name != victim]
        for name in others:  # else they might have the write before the leader's disk fails
            world.nodes[name].disk.slowness = 30.0
        world.nodes[victim].disk.fail_next_sync = True
        durable = tablet.replica.core.log.stable_index
        writing = asyncio.create_task(healed.write(1))
        await healed.until(lambda: healed.role(victim) is ReplicaRole.FAILED, "it failed")
        for name in others:
            world.nodes[name].disk.slowness = 1.0
        found = healed.report(victim)
        assert found is not None
        assert "Input/output error" in found.problem
        await writing
        assert tablet.replica.core.log.stable_index == durable
        assert tablet.replica.core.log.commit_index <= durable
        await healed.write(5, timeout_s=3.0)
        gone = [healed.uuid(victim)] if tservers > 3 else []
        await healed.until(
            lambda: healed.role(victim) is not ReplicaRole.FAILED and healed.is_whole(without=gone),
            "it is replaced",
        )
        assert world.server(victim) is server, "nobody has started it again"
        await healed.write(5)
        await healed.check()

    play(story, tservers=tservers)


def test_a_server_that_lost_its_disk_comes_back_as_another_and_its_old_self_is_replaced() -> None:
    """Under the same name it has another UUID, gets its tablets by copies, and then the member that
    it was is let go."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.leader
        old = healed.uuid(victim)
        world.crash(victim, lose_disk=True)
        await world.wait_ready(victim)
        assert healed.uuid(victim) != old
        await healed.write(5)
        await healed.until(lambda: healed.is_whole(without=[old]), "it is replaced by itself")
        assert healed.uuid(victim) in healed.members()
        await healed.check()

    play(story)


def test_without_a_majority_nothing_is_acknowledged_and_everything_is_there_once_it_is_back() -> (
    None
):
    """Who calls hears that it is to be tried again, and which servers are waited for. Nobody is let
    go or added meanwhile, however long it lasts."""

    async def story(healed: Healed) -> None:
        world, cluster = healed.world, healed.cluster
        down = [healed.leader, healed.followers()[0]]
        members = healed.members()
        for name in down:
            world.crash(name, restart=False)
        await asyncio.sleep(3.0)
        row = {"id": 1000, "value": "never acknowledged"}
        with pytest.raises(RetryLater, match=f"waits for .*{down[0]}|waits for .*{down[1]}"):
            await healed.table.upsert(row, timeout=5.0)
        with pytest.raises((RetryLater, OutcomeUnknown)):
            await healed.table.get(1, timeout=5.0)
        await asyncio.sleep(5 * DEAD_AFTER_S)
        assert healed.members() == members
        for name in down:
            world.restart(name)
        await world.wait_ready(*down)
        await healed.until(healed.is_whole, "all are back")
        assert healed.members() == members
        await healed.write(5)
        await healed.check()
        assert cluster.leader() is not None

    play(story, tservers=4)


def test_a_voter_that_comes_back_makes_its_replacement_superfluous() -> None:
    """3-4-3: it was not let go before the new one votes, so one of them goes, and never are there
    fewer than three voters."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.followers()[0]
        (spare,) = [n for n in healed.cluster.tservers if healed.role(n) is None]
        world.nodes[spare].disk.full = True  # so that it cannot be promoted
        world.crash(victim, restart=False)
        await healed.until(lambda: healed.uuid(spare) in healed.members(), "a replacement comes")
        record = healed.record()
        assert record is not None
        assert record.configuration is not None
        assert len(record.configuration.voters) == 3
        world.restart(victim)
        await healed.until(
            lambda: healed.is_whole(without=[healed.uuid(spare)]), "the replacement goes"
        )
        assert healed.role(victim) is not None
        world.nodes[spare].disk.full = False
        await healed.check()

    play(story, tservers=4)


def test_a_spare_whose_disk_fails_under_its_copy_is_tried_again_where_there_is_no_other() -> None:
    """It says that it failed, is let go before it was a voter, clears up, and gets another copy,
    without being started again. The lost voter stays a member until the new one votes."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.followers()[0]
        lost = healed.uuid(victim)
        (spare,) = [n for n in healed.cluster.tservers if healed.role(n) is None]
        server = world.server(spare)
        world.crash(victim, restart=False)
        await world.wait_until(
            lambda: healed.role(spare) is ReplicaRole.COPYING, HEALED_S, "a copy", poll_s=0.0005
        )
        world.nodes[spare].disk.fail_next_sync = True
        seen = []

        def is_replaced() -> bool:
            role, record = healed.role(spare), healed.record()
            seen.append(role)
            if record is not None and record.configuration is not None:
                assert len(record.configuration.voters) >= 3
            return ReplicaRole.FAILED in seen and healed.is_whole(without=[lost])

        await healed.until(is_replaced, "it is replaced")
        assert world.server(spare) is server
        await healed.write(5)
        await healed.check()

    play(story, tservers=4, bandwidth_bytes_s=200_000.0)


DURING = {
    "the deletion": 2,  # its superblock
    "the beginning of the copy": 5,  # merged consensus metadata
    "the copy": 7,  # an image
    "the end of the copy": 10,  # its superblock
}


@pytest.mark.parametrize("when", DURING)
def test_a_disk_that_fails_again_while_its_replica_is_replaced_is_no_end_of_it(when: str) -> None:
    """Whatever step of the deletion or the copy it hits: the server is not started again, and there
    is nobody else, and still there are three good replicas in the end."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.followers()[0]
        server, disk = world.server(victim), world.nodes[victim].disk
        disk.fail_next_sync = True
        writing = asyncio.create_task(healed.write(3))

        def is_failed() -> bool:
            return healed.role(victim) is ReplicaRole.FAILED

        await world.wait_until(is_failed, HEALED_S, "it failed", poll_s=0.0005)
        sync, syncs = disk.sync, 0

        async def counted(content: Any, path: str) -> None:
            nonlocal syncs
            syncs += 1
            disk.fail_next_sync = syncs == DURING[when]
            await sync(content, path)

        disk.sync = counted  # type: ignore[method-assign]
        await writing
        await healed.until(
            lambda: syncs >= DURING[when] and not is_failed() and healed.is_whole(), "replaced"
        )
        assert world.server(victim) is server
        await healed.write(3)
        await healed.check()

    play(story)


def test_a_disk_that_is_full_for_a_moment_costs_no_replica() -> None:
    """It says what is wrong, and begins again once there is room: nobody is let go or copied to."""

    async def story(healed: Healed) -> None:
        world, members = healed.world, healed.members()
        victim = healed.followers()[0]
        world.nodes[victim].disk.full = True
        writing = asyncio.create_task(healed.write(20))
        await healed.until(lambda: healed.role(victim) is ReplicaRole.FAILED, "no room")
        await writing
        await asyncio.sleep(1.5)
        found = healed.report(victim)
        assert found is not None
        assert "No space left" in found.problem
        world.nodes[victim].disk.full = False
        await healed.until(healed.is_whole, "it is back")
        assert healed.members() == members
        assert not world.metrics[victim].counts.get("copies_received")
        await healed.check()

    for tservers in (3, 4):
        play(story, tservers=tservers)


def test_a_disk_that_stays_full_is_left_for_another() -> None:
    """After as long as a server may be silent its replica is replaced."""

    async def story(healed: Healed) -> None:
        world = healed.world
        victim = healed.followers()[0]
        full = healed.uuid(victim)
        world.nodes[victim].disk.full = True

        async def write_on() -> None:
            for _ in range(150):
                await healed.write()
                await asyncio.sleep(0.1)

        writing = asyncio.create_task(write_on())
        await healed.until(lambda: healed.is_whole(without=[full]), "it is replaced")
        await writing
        await healed.check()

    play(story, tservers=4)


def test_a_replica_that_fails_for_a_moment_is_waited_for_and_one_in_vain_is_replaced() -> None:
    """Too many open files: its server says that it tries again. Back within the grace it costs no
    copy; else another server gets it, long before a server would be given up."""

    def story(lasts_s: float) -> Story:
        async def told(healed: Healed) -> None:
            world, members = healed.world, healed.members()
            victim = healed.followers()[0]
            failed = healed.uuid(victim)
            disk = world.nodes[victim].disk
            disk.full, disk.refusal = True, errno.EMFILE
            writing = asyncio.create_task(healed.write(20))
            await healed.until(lambda: healed.role(victim) is ReplicaRole.FAILED, "it failed")
            began = world.loop.time()
            await writing
            found = healed.report(victim)
            assert found is not None
            assert found.group is not None
            assert (found.group.tries_again, found.group.no_room) == (True, False)
            if lasts_s < RETURN_GRACE_S:
                await asyncio.sleep(lasts_s)
                assert healed.members() == members
                disk.full = False
                await healed.until(healed.is_whole, "it is back")
                assert healed.members() == members
                assert not any(m.counts.get("copies_received") for m in world.metrics.values())
            else:

                async def write_on() -> None:
                    while healed.members() == members:
                        await healed.write()
                        await asyncio.sleep(0.1)

                await asyncio.wait_for(write_on(), 2 * RETURN_GRACE_S)
                assert world.loop.time() - began >= RETURN_GRACE_S - 1.0
                await healed.until(lambda: healed.is_whole(without=[failed]), "it is replaced")
            await healed.check()

        return told

    play(story(5.0), tservers=4, dead_after_s=60.0)
    play(story(1000.0), tservers=4, dead_after_s=60.0)


@pytest.mark.parametrize("fault", ["cut off from tservers", "full disk"])
def test_a_spare_that_never_gets_the_copy_is_given_up_for_another(fault: str) -> None:
    """The masters hear it, and it comes first whenever they choose; but the leader does not reach
    it, or its disk takes nothing. Another spare is tried, and the log is not full of changes."""

    async def story(healed: Healed) -> None:
        world = healed.world
        tservers = healed.cluster.tservers
        spares = [name for name in tservers if healed.role(name) is None]
        others = [name for name in tservers if name not in spares]

        def spoil(name: str, *, whole: bool) -> None:
            if fault == "full disk":
                world.nodes[name].disk.full = not whole
                return
            for other in others:
                for pair in ((name, other), (other, name)):
                    (world.network.unblock if whole else world.network.block)(*pair)

        for name in spares:
            spoil(name, whole=False)
        victim = healed.followers()[0]
        lost = healed.uuid(victim)
        world.crash(victim, restart=False)
        uuids = {healed.uuid(name): name for name in spares}
        await healed.until(lambda: any(u in uuids for u in healed.members()), "one is chosen")
        (chosen,) = [uuid for uuid in healed.members() if uuid in uuids]
        for uuid, name in uuids.items():
            spoil(name, whole=uuid != chosen)
        configurations: dict[Any, None] = {}

        def is_healed() -> bool:
            record = healed.record()
            if record is not None and record.configuration is not None:
                configurations[record.configuration.op_id] = None
            return healed.is_whole(without=[lost, chosen])

        await healed.until(is_healed, "the other spare has it")
        assert len(configurations) < 12
        await healed.write(5)
        await healed.check()

    play(story, tservers=5)
