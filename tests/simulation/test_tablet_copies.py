"""Tablet copies in the simulated world: seeds, and each way in which one can end.

That a resume must not use a stale session is seen in `tests.simulation.test_planted_replicas`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from stelae.actors.copy_fetch import Broken, SourceSession
from stelae.actors.copy_jobs import IMAGES_AT_A_TIME
from stelae.actors.replica_loop import GATHER_BYTES
from stelae.core.errors import (
    OutcomeUnknown,
    Overloaded,
    StaleTerm,
    TabletDeleted,
    TabletNotReady,
)
from stelae.core.ids import OpId, TabletId
from stelae.core.replica_messages import (
    BEGIN_COPY,
    END_COPY,
    FETCH_FILE,
    START_TABLET_COPY,
    BeginCopy,
    DataState,
    StartTabletCopy,
)
from stelae.core.settings import Settings
from stelae.simulation import Options, World
from stelae.simulation.runner import derive_seeds, replay_command, run_seed
from tests.simulation.copy_host import (
    CHANGE,
    COPY_SETTINGS,
    DROP,
    EVERYONE,
    FOUNDERS,
    OTHER,
    SPARE,
    TABLET,
    Change,
    CopyHostServer,
    Drop,
    checksums,
    leading,
    uuid_of,
)
from tests.simulation.tablet_copies import SCENARIO
from tests.simulation.test_replica import PUT, Put, call_leader

SEEDS = 12


@pytest.mark.parametrize("seed", derive_seeds("tablet_copies", SEEDS), ids=lambda s: f"seed{s}")
def test_copies_under_faults_lose_nothing_and_leave_nothing(seed: int) -> None:
    """A seed of the scenario; on failure the command that replays it is printed."""
    outcome = run_seed(SCENARIO, seed)
    assert outcome.failure is None, f"{replay_command(SCENARIO.name, seed)}\n{outcome.failure}"


# ---- one copy at a time ---------------------------------------------------------------------


class Cluster:
    """Three members with rows in several images; `SPARE` has nothing yet."""

    def __init__(
        self,
        seed: int = 1,
        settings: Settings = COPY_SETTINGS,
        options: Options | None = None,
        tablets: tuple[TabletId, ...] = (TABLET,),
        flush_every_s: float = 0.1,
    ) -> None:
        self.flush_every_s = flush_every_s
        self.world = World(seed, options or Options())
        self.settings = settings
        self.tablets = tablets
        self.puts = 0

    def run(self, story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        async def told() -> None:
            await self.start()
            await story(self)

        self.world.run(told(), limit_s=600.0)

    async def start(self) -> None:
        world = self.world
        for name in EVERYONE:
            world.start(
                name,
                lambda runtime, name=name: CopyHostServer(
                    runtime,
                    world,
                    name,
                    self.settings,
                    tablets=self.tablets,
                    flush_every_s=self.flush_every_s,
                ),
            )
        self.client = world.client("client")
        for tablet_id in self.tablets:
            await self.until(lambda t=tablet_id: leading(world, t) is not None, "a leader")
            await self.put(30, tablet_id)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self.world.wait_until(condition, 60.0, what)

    async def put(self, count: int, tablet_id: TabletId = TABLET) -> None:
        """Rows that all stay."""
        for _ in range(count):
            self.puts += 1
            key = f"{'other/' if tablet_id == OTHER else ''}row{self.puts}"
            put = Put(key, f"client-{self.puts}")
            row = await call_leader(self.world, self.client, PUT, put, 0, FOUNDERS)
            assert row is not None
            await asyncio.sleep(0.02)

    def server(self, name: str) -> CopyHostServer:
        server = self.world.server(name)
        assert isinstance(server, CopyHostServer)
        return server

    @property
    def leader(self) -> str:
        name = leading(self.world)
        assert name is not None
        return name

    async def add(self, name: str = SPARE) -> None:
        """Make it a member; its copy begins."""
        leader = self.leader
        change = Change("add", name, self.world.address(name))
        await self.client.peers.call(self.world.address(leader), CHANGE, change, timeout_s=2.0)

    async def begun(self, name: str = SPARE, images: int = 1, tablet_id: TabletId = TABLET) -> None:
        """Wait until that many images were copied to it."""

        def is_so() -> bool:
            job = self.server(name).jobs._jobs.get(tablet_id)
            return job is not None and job.attempt is not None and len(job.attempt.held) >= images

        await self.world.wait_until(is_so, 60.0, "a copy has begun", poll_s=0.0005)

    async def finished(self, name: str = SPARE, tablet_id: TabletId = TABLET) -> None:
        """Wait until it holds the same rows as the leader."""

        def is_so() -> bool:
            found = checksums(self.world, tablet_id)
            lead = leading(self.world, tablet_id)
            return lead in found and name in found and repr(found[name]) == repr(found[lead])

        await self.world.wait_until(is_so, 60.0, "a copy has finished", poll_s=0.05)

    def count(self, name: str, metric: str) -> float:
        counts = self.world.metrics[name].counts
        return sum(n for key, n in counts.items() if key.partition("{")[0] == metric)

    async def order(self, name: str, source: str, term: int, state: DataState) -> None:
        """An order as a leader gives it."""
        order = StartTabletCopy(
            TABLET, uuid_of(source), self.world.address(source), term, state, None
        )
        await self.client.peers.call(
            self.world.address(name), START_TABLET_COPY, order, timeout_s=1.0
        )


SLOW = Options(bandwidth_bytes_s=20_000.0)


def test_a_member_without_the_tablet_gets_it_by_a_copy_and_becomes_a_voter() -> None:
    """All rows come, the session ends, nothing stays pinned, and the member votes."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.finished()
        leader = cluster.server(cluster.leader)
        await cluster.until(lambda: not leader.sources.sessions, "the session ends")
        members = leader.tablets[TABLET].replica
        await cluster.until(lambda: uuid_of(SPARE) in members.members.voters, "it is promoted")
        await asyncio.sleep(2.0)
        assert not members.flushes._pins
        assert not leader.store._pins.get(TABLET)

    Cluster().run(story)


def images_of(cluster: Cluster, name: str) -> int:
    store = cluster.server(name).store
    superblock = store.superblock(TABLET)
    assert superblock is not None
    assert superblock.snapshot is not None
    return len(store.files_of(superblock.snapshot))


def test_images_come_by_the_object_store_a_few_at_a_time_and_none_stays_there() -> None:
    """No image goes in pieces; what has arrived is let go of while the copy goes on."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        pieces: list[str] = []
        shared: list[int] = []

        def watch(sender: str, receiver: str, method: str) -> bool:
            if method == FETCH_FILE.name:
                pieces.append(receiver)
            shared.append(len(world.objects.shared))
            return False

        world.network.drop_filter = watch
        images = images_of(cluster, cluster.leader)
        await cluster.add()
        await cluster.finished()
        assert images > 6
        assert not pieces
        assert cluster.count(SPARE, "copy_objects_received") >= images
        assert 1 < max(shared) <= 4
        sources = cluster.server(cluster.leader).sources
        await cluster.until(lambda: not sources.sessions, "the session ends")
        assert not world.objects.shared

    Cluster().run(story)


@pytest.mark.parametrize("why", ["lost", "full", "not shared"])
def test_images_come_in_pieces_where_objects_do_not(why: str) -> None:
    """Objects that are gone when they are asked for, a full store, servers that share none."""

    async def story(cluster: Cluster) -> None:
        for name in FOUNDERS:
            cluster.world.nodes[name].runtime.objects.is_full = why == "full"
        await cluster.add()
        await cluster.finished()
        lost = cluster.count(SPARE, "copy_objects_lost")
        assert (3 <= lost <= 6) if why == "lost" else not lost
        assert cluster.count(SPARE, "copy_objects_received") == 0
        assert (cluster.count(cluster.leader, "copy_objects_refused") > 0) == (why == "full")
        assert cluster.count(SPARE, "copies_received") == 1

    rate = 1.0 if why == "lost" else 0.0
    options = Options(lost_object_rate=rate, shares_objects=why != "not shared")
    Cluster(options=options).run(story)


def test_a_source_that_dies_with_objects_on_their_way_is_replaced() -> None:
    """They are lost with it; the rest comes from the next leader, and is complete."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        await cluster.add()
        await world.wait_until(lambda: len(world.objects.shared) > 1, 60.0, "objects", poll_s=1e-4)
        dead = cluster.leader
        world.crash(dead, restart=False)
        world.nodes[dead].auto_restart = False
        await cluster.finished()
        assert cluster.leader != dead
        assert cluster.count(SPARE, "copies_resumed") + cluster.count(SPARE, "copies_given_up") > 0

    Cluster(options=SLOW).run(story)


def test_a_session_that_expires_leaves_nothing_in_the_object_store() -> None:
    """Its receiver is gone for good."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        await cluster.add()
        await world.wait_until(lambda: len(world.objects.shared) > 0, 60.0, "objects", poll_s=1e-4)
        world.crash(SPARE, restart=False)
        world.nodes[SPARE].auto_restart = False
        sources = cluster.server(cluster.leader).sources
        await cluster.until(lambda: not sources.sessions, "the session ends")
        assert not world.objects.shared

    Cluster(options=SLOW).run(story)


def test_a_broken_connection_costs_no_image_that_was_there() -> None:
    """Only what is missing is fetched after the connection came back."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=3)
        leader = cluster.leader
        cluster.world.partition([leader], [SPARE])
        await asyncio.sleep(0.4)
        cluster.world.unpartition([leader], [SPARE])
        await cluster.finished()
        assert cluster.count(SPARE, "copies_resumed") >= 1
        assert cluster.count(leader, "copy_sessions") == 1
        store = cluster.server(leader).store
        superblock = store.superblock(TABLET)
        assert superblock is not None
        assert superblock.snapshot is not None
        sizes = sorted(file.size_bytes for file in store.files_of(superblock.snapshot))
        lost = sum(sizes[-IMAGES_AT_A_TIME:])  # what was on its way
        assert lost < sum(sizes) / 2
        assert cluster.count(leader, "copy_bytes_sent") < sum(sizes) + lost + 2000

    Cluster(options=SLOW).run(story)


def test_a_session_that_expired_is_not_used_again_and_what_it_gave_counts() -> None:
    """A new session brings a new plan; images that are the same in both are not fetched twice."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=3)
        leader = cluster.leader
        cluster.world.partition([leader], [SPARE])
        await asyncio.sleep(1.0)
        await cluster.put(5)
        cluster.world.unpartition([leader], [SPARE])
        await cluster.finished()
        assert cluster.count(leader, "copy_sessions") == 2
        assert cluster.count(SPARE, "copies_received") == 1

    settings = msgspec.structs.replace(COPY_SETTINGS, copy_idle_s=0.4)
    Cluster(settings=settings, options=SLOW).run(story)


def test_another_leader_is_asked_for_the_rest_when_the_source_dies() -> None:
    """The copy goes on from the new leader, without the old one."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        dead = cluster.leader
        cluster.world.crash(dead, restart=False)
        cluster.world.nodes[dead].auto_restart = False
        await cluster.until(lambda: leading(cluster.world) is not None, "another leader")
        await cluster.finished()
        assert cluster.leader != dead

    Cluster(options=SLOW).run(story)


def test_a_leader_that_is_deposed_may_still_be_copied_from() -> None:
    """What its session gives is committed, or the beginning of a leader's log."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        old = cluster.leader
        others = [name for name in FOUNDERS if name != old]
        cluster.world.partition([old], others)
        cluster.world.partition(others, [old])
        await cluster.until(lambda: leading(cluster.world) not in (None, old), "a new leader")
        cluster.world.unpartition([old], others)
        cluster.world.unpartition(others, [old])
        await cluster.finished()

    Cluster(options=SLOW).run(story)


def test_a_tablet_that_is_deleted_at_its_source_leaves_a_tombstone_at_the_receiver() -> None:
    """The copy is given up, and nothing that it wrote stays."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        drop = Drop(TABLET, True)
        for name in FOUNDERS:
            address = cluster.world.address(name)
            await cluster.client.peers.call(address, DROP, drop, timeout_s=2.0)
        spare = cluster.server(SPARE)
        await cluster.until(lambda: not spare.jobs._jobs, "the copy ends")
        assert spare.data_state(TABLET) is DataState.DELETED
        assert not [p for p in cluster.world.nodes[SPARE].disk.paths() if p.startswith("data/")]
        assert not any(cluster.server(name).corrupt for name in FOUNDERS)

    Cluster(options=SLOW).run(story)


def test_a_tablet_that_is_deleted_for_good_while_it_is_copied_stays_deleted() -> None:
    """The job ends by itself, and no order revives the tablet."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        drop = Drop(TABLET, True)
        await cluster.client.peers.call(cluster.world.address(SPARE), DROP, drop, timeout_s=2.0)
        spare = cluster.server(SPARE)
        await cluster.until(lambda: not spare.jobs._jobs, "the copy ends")
        superblock = spare.store.superblock(TABLET)
        assert superblock is not None
        assert superblock.forever
        with pytest.raises(TabletDeleted):
            await cluster.order(SPARE, cluster.leader, 99, DataState.DELETED)

    Cluster(options=SLOW).run(story)


def test_orders_that_are_not_as_things_are_change_nothing() -> None:
    """A rogue leader of a lower term, late orders, wrong beliefs: no replica is deleted."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader
        follower = next(name for name in FOUNDERS if name != leader)
        server = cluster.server(follower)
        replica = server.tablets[TABLET].replica
        with pytest.raises(StaleTerm):
            await cluster.order(follower, leader, replica.term - 1, DataState.READY)
        for state in (DataState.ABSENT, DataState.DELETED, DataState.COPYING):
            with pytest.raises(TabletNotReady):
                await cluster.order(follower, leader, replica.term, state)
        await cluster.order(follower, leader, replica.term, DataState.READY)  # late: it lacks none
        await cluster.until(lambda: not server.jobs._jobs, "the job ends")
        assert server.jobs.problems[TABLET].endswith("as far as its source")
        assert server.tablets[TABLET].replica is replica
        leading_server = cluster.server(leader)
        assert not leading_server.sources.sessions

    Cluster().run(story)


def test_a_full_disk_ends_a_copy_and_the_next_one_succeeds() -> None:
    """The tombstone stays while there is no room; once there is, the leader orders it again."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        disk, spare = cluster.world.nodes[SPARE].disk, cluster.server(SPARE)
        disk.full = True
        await cluster.until(lambda: cluster.count(SPARE, "copies_given_up") > 0, "it is given up")
        assert not [path for path in disk.paths() if path.startswith("data/")]
        await asyncio.sleep(0.5)
        assert spare.data_state(TABLET) is not DataState.READY
        disk.full = False
        await cluster.finished()
        assert cluster.server(SPARE) is spare

    Cluster(options=SLOW).run(story)


@pytest.mark.parametrize("step", range(12))
def test_a_receiver_that_crashes_at_any_step_is_copied_to_again(step: int) -> None:
    """Whatever was there when it crashed; rows, term and vote are right in the end."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        await cluster.add()
        await cluster.until(lambda: bool(cluster.server(SPARE).jobs._jobs), "a copy begins")
        await asyncio.sleep(0.0137 * step * (1 + step / 4))
        world.crash(SPARE, restart=False)
        world.restart(SPARE)
        await cluster.until(lambda: world.nodes[SPARE].ready, "it is back")
        await cluster.finished()

    Cluster(seed=step, options=Options(bandwidth_bytes_s=200_000.0)).run(story)


def test_a_follower_whose_log_is_too_old_is_replaced_by_a_copy() -> None:
    """Its own replica is deleted only once the source has said what there is to copy."""

    async def story(cluster: Cluster) -> None:
        world = cluster.world
        behind = next(name for name in FOUNDERS if name != cluster.leader)
        world.crash(behind, restart=False)
        world.nodes[behind].auto_restart = False
        await cluster.put(20)
        world.restart(behind)
        await cluster.until(lambda: world.nodes[behind].ready, "it is back")
        await cluster.finished(behind)
        assert cluster.count(behind, "copies_received") == 1
        superblock = cluster.server(behind).store.superblock(TABLET)
        assert superblock is not None
        assert superblock.generation > 3
        assert [p for p in world.nodes[behind].disk.paths() if p.startswith("quarantine/")]

    Cluster().run(story)


def test_copies_beyond_the_pool_are_throttled_and_come_later() -> None:
    """One at a time here: the other is told to wait, and is not forgotten."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun()
        order = StartTabletCopy(
            OTHER,
            uuid_of(cluster.leader),
            cluster.world.address(cluster.leader),
            99,
            DataState.ABSENT,
        )
        address = cluster.world.address(SPARE)
        with pytest.raises(Overloaded):
            await cluster.client.peers.call(address, START_TABLET_COPY, order, timeout_s=1.0)
        await cluster.finished()
        term = cluster.server(cluster.leader).tablets[OTHER].replica.term
        order = msgspec.structs.replace(order, term=term)
        await cluster.client.peers.call(address, START_TABLET_COPY, order, timeout_s=1.0)
        spare = cluster.server(SPARE)
        await cluster.until(lambda: spare.data_state(OTHER) is DataState.READY, "the other one")

    settings = msgspec.structs.replace(COPY_SETTINGS, copies_max=1)
    Cluster(settings=settings, options=SLOW, tablets=(TABLET, OTHER)).run(story)


def test_a_source_has_so_many_sessions_and_one_for_each_receiver() -> None:
    """A receiver that begins anew ends its earlier session; others are told to wait."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader
        address, peers = cluster.world.address(leader), cluster.client.peers
        sources = cluster.server(leader).sources
        for receiver in ("a", "a", "b"):
            request = BeginCopy(TABLET, uuid_of(receiver))
            await peers.call(address, BEGIN_COPY, request, timeout_s=1.0)
        assert [session.receiver for session in sources.sessions] == [uuid_of("a"), uuid_of("b")]
        request = BeginCopy(TABLET, uuid_of("c"))
        with pytest.raises(Overloaded):
            await peers.call(address, BEGIN_COPY, request, timeout_s=1.0)
        await asyncio.sleep(3.0)
        assert not sources.sessions

    settings = msgspec.structs.replace(COPY_SETTINGS, copy_sessions_max=2)
    Cluster(settings=settings).run(story)


def test_a_cancelled_copy_leaves_a_tombstone_and_can_be_made_anew() -> None:
    """Cancelling waits until all that was written is removed."""

    async def story(cluster: Cluster) -> None:
        await cluster.add()
        await cluster.begun(images=2)
        spare = cluster.server(SPARE)
        copied, size = spare.jobs.progress(TABLET)
        assert 0 < copied < size
        cancelling = cluster.world.spawn(SPARE, spare.jobs.cancel(TABLET))
        await cluster.until(cancelling.done, "it is cancelled")
        assert cancelling.result()
        assert spare.data_state(TABLET) is DataState.DELETED
        assert spare.jobs.problems[TABLET] == "cancelled"
        await cluster.finished()
        assert TABLET not in spare.jobs.problems

    Cluster(options=SLOW).run(story)


@pytest.mark.parametrize("change", ["flip", "unreadable"])
def test_a_damaged_image_is_the_sources_problem(change: str) -> None:
    """The source is told which tablet is damaged; the receiver keeps nothing of it."""

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader
        disk = cluster.world.nodes[leader].disk
        path = next(path for path in disk.paths() if path.startswith(f"data/{TABLET}"))
        if change == "flip":
            disk.corrupt(path, 100)
        else:
            disk.make_unreadable(path)
        await cluster.add()
        server = cluster.server(leader)
        await cluster.until(lambda: TABLET in server.corrupt, "the damage is found")
        await cluster.until(lambda: cluster.count(SPARE, "copies_given_up") > 0, "given up")
        assert cluster.server(SPARE).data_state(TABLET) is not DataState.READY

    Cluster().run(story)


def test_a_source_that_is_left_for_another_has_its_place_again_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It does not wait until nobody asks any more: others may want to copy from it."""
    breaking: list[str] = []
    ask = SourceSession._call

    async def call(session: SourceSession, method: Any, request: Any) -> Any:
        if breaking == [session._source] and method is not END_COPY:
            breaking.clear()
            raise Broken(OutcomeUnknown("a source", method.name, 1.0))
        return await ask(session, method, request)

    monkeypatch.setattr(SourceSession, "_call", call)

    async def story(cluster: Cluster) -> None:
        old = cluster.leader
        replica = cluster.server(old).tablets[TABLET].replica
        await cluster.order(SPARE, old, replica.term, DataState.ABSENT)
        await cluster.begun()
        assert cluster.server(old).sources.sessions
        await replica.transfer_leadership(None, 5.0)
        await cluster.until(lambda: leading(cluster.world) not in (None, old), "another leader")
        new = cluster.leader
        term = cluster.server(new).tablets[TABLET].replica.term
        with pytest.raises(TabletNotReady):  # it is noted for when the first source fails
            await cluster.order(SPARE, new, term, DataState.DELETED)
        breaking.append(uuid_of(old))
        await cluster.until(lambda: bool(cluster.server(new).sources.sessions), "it goes on")
        await asyncio.sleep(2.0)
        assert not cluster.server(old).sources.sessions
        await cluster.until(lambda: not cluster.server(SPARE).jobs._jobs, "the copy ends")

    patient = msgspec.structs.replace(COPY_SETTINGS, copy_idle_s=100.0)
    Cluster(options=SLOW, settings=patient).run(story)


LARGE = GATHER_BYTES // 20 + 1
"""So much of a value, which is written twenty times more, makes a large command."""


async def resume_elsewhere(cluster: Cluster) -> None:
    """A copy of a log whose end is not committed, and is cut before the copy is complete."""
    world, old = cluster.world, cluster.leader
    others = [name for name in FOUNDERS if name != old]
    world.partition([old], others)
    world.partition(others, [old])
    replica = cluster.server(old).tablets[TABLET].replica
    for number in range(4):
        put = Put(
            f"lost{number}", "l" * LARGE + f"-{number}"
        )  # small ones would wait for the first
        with pytest.raises(OutcomeUnknown):
            await cluster.client.peers.call(world.address(old), PUT, put, timeout_s=0.03)
    await cluster.order(SPARE, old, replica.term, DataState.ABSENT)
    end = replica.core.log.last.index

    def nearly() -> bool:
        job = cluster.server(SPARE).jobs._jobs.get(TABLET)
        return bool(job and job.attempt and job.attempt.log_last.index >= end - 2)

    await world.wait_until(nearly, 60.0, "the copy is nearly complete", poll_s=0.0005)
    world.partition([old], [SPARE])
    world.partition([SPARE], [old])
    await cluster.until(lambda: leading(world) not in (None, old), "another leader")
    await cluster.put(8)
    new = cluster.leader
    term = cluster.server(new).tablets[TABLET].replica.term
    with pytest.raises(TabletNotReady):  # it is noted for when the first source fails
        await cluster.order(SPARE, new, term, DataState.DELETED)
    spare = cluster.server(SPARE)
    await cluster.until(lambda: not spare.jobs._jobs, "the copy ends")
    assert spare.data_state(TABLET) is DataState.READY
    await cluster.add()
    await cluster.finished()


SINGLE_ENTRIES = msgspec.structs.replace(COPY_SETTINGS, copy_piece_bytes=1)


def test_a_copy_that_goes_on_elsewhere_forgets_the_log_of_its_first_source() -> None:
    """What was not committed there may have been replaced by then."""
    cluster = Cluster(settings=SINGLE_ENTRIES, flush_every_s=1000.0)
    cluster.run(resume_elsewhere)


async def tombstone_ahead(cluster: Cluster) -> tuple[str, str]:
    """A server whose tombstone acknowledged more than another one's replica has: (it, that one)."""
    world = cluster.world
    await cluster.add()
    await cluster.finished()
    leader = cluster.leader
    replica = cluster.server(leader).tablets[TABLET].replica
    await cluster.until(lambda: uuid_of(SPARE) in replica.members.voters, "it votes")
    ahead, behind = (name for name in FOUNDERS if name != leader)
    rest = [name for name in EVERYONE if name != behind]
    world.partition([behind], rest)
    world.partition(rest, [behind])
    await cluster.put(8)
    await cluster.finished(ahead)
    change = Change("remove", ahead, world.address(ahead))
    await cluster.client.peers.call(world.address(leader), CHANGE, change, timeout_s=2.0)
    server = cluster.server(ahead)
    async with server.lock(TABLET):
        await server.store.tombstone(TABLET, await server._stop(TABLET))
    await server.settle(TABLET)
    world.unpartition([behind], [ahead])
    world.unpartition([ahead], [behind])
    return ahead, behind


def test_a_source_that_has_less_than_was_acknowledged_here_is_refused_at_once() -> None:
    """A copy from it could never be finished: nothing of it is fetched, nothing changes here."""

    async def story(cluster: Cluster) -> None:
        ahead, behind = await tombstone_ahead(cluster)
        server = cluster.server(ahead)
        before = server.store.superblock(TABLET)
        assert before is not None
        assert before.tombstone is not None
        term = cluster.server(cluster.leader).tablets[TABLET].replica.term
        await cluster.order(ahead, behind, term, DataState.DELETED)
        await cluster.until(lambda: TABLET in server.jobs.problems, "it is given up")
        assert "its source at" in server.jobs.problems[TABLET]
        assert server.store.superblock(TABLET) == before
        assert cluster.count(behind, "copy_bytes_sent") == 0

    Cluster().run(story)


def test_an_order_that_names_another_end_of_the_log_is_refused() -> None:
    """The seed's ``last_opid_in_log``: what the leader believes must be so, if it says it."""

    async def story(cluster: Cluster) -> None:
        ahead, _ = await tombstone_ahead(cluster)
        superblock = cluster.server(ahead).store.superblock(TABLET)
        assert superblock is not None
        last = superblock.tombstone
        assert last is not None
        leader = cluster.leader
        replica = cluster.server(leader).tablets[TABLET].replica
        address = cluster.world.address(leader)
        order = StartTabletCopy(
            TABLET, uuid_of(leader), address, replica.term, DataState.DELETED, last
        )

        async def give(order: StartTabletCopy) -> None:
            peers, target = cluster.client.peers, cluster.world.address(ahead)
            await peers.call(target, START_TABLET_COPY, order, timeout_s=1.0)

        for other in (OpId(last.term, last.index - 1), OpId(last.term, last.index + 1)):
            with pytest.raises(TabletNotReady, match="not at"):
                await give(msgspec.structs.replace(order, last=other))
        assert not cluster.server(ahead).jobs._jobs
        await give(order)
        assert cluster.server(ahead).jobs._jobs

    Cluster().run(story)


def test_a_large_entry_is_copied_over_a_slow_link() -> None:
    """It comes whole, and in no less time than the link takes, which no setting knows."""
    size_bytes = 60_000  # two seconds here, and calls have 0.3

    async def story(cluster: Cluster) -> None:
        leader = cluster.leader
        for name in EVERYONE:
            for pair in ((name, SPARE), (SPARE, name)):
                cluster.world.network.bandwidths[pair] = 30_000.0
        put = Put("large", "x" * (size_bytes // 20) + "-1")
        await call_leader(cluster.world, cluster.client, PUT, put, 0, FOUNDERS)
        term = cluster.server(leader).tablets[TABLET].replica.term
        await cluster.order(SPARE, leader, term, DataState.ABSENT)
        spare = cluster.server(SPARE)
        await cluster.until(lambda: not spare.jobs._jobs, "the copy ends")
        assert spare.data_state(TABLET) is DataState.READY
        assert spare.jobs.problems == {}

    patient = msgspec.structs.replace(COPY_SETTINGS, copy_idle_s=100.0)
    Cluster(settings=patient, flush_every_s=1000.0).run(story)
