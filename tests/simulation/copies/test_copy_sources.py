"""Whom a tablet is copied from: sources that die, are deposed, are full, or have less than the
receiver; and what a receiver keeps of one when it goes on with another."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from stelae.actors.tserver.tablet_copy.session import Broken, SourceSession
from stelae.core.errors import (
    OutcomeUnknown,
    Overloaded,
    TabletNotReady,
)
from stelae.core.ids import OpId
from stelae.core.messages.replicas import (
    BEGIN_COPY,
    END_COPY,
    START_TABLET_COPY,
    BeginCopy,
    DataState,
    StartTabletCopy,
)
from tests.simulation.copies.copied_cluster import (
    SINGLE_ENTRIES,
    SLOW,
    Cluster,
    resume_elsewhere,
    tombstone_ahead,
)
from tests.simulation.copies.copy_host import (
    COPY_SETTINGS,
    DROP,
    EVERYONE,
    FOUNDERS,
    SPARE,
    TABLET,
    Drop,
    leading,
    uuid_of,
)
from tests.simulation.world.registers import PUT, Put, call_leader


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


def test_a_copy_that_goes_on_elsewhere_forgets_the_log_of_its_first_source() -> None:
    """What was not committed there may have been replaced by then."""
    cluster = Cluster(settings=SINGLE_ENTRIES, flush_every_s=1000.0)
    cluster.run(resume_elsewhere)


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
