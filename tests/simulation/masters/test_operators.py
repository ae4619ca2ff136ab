"""Operators at work on real masters, over tservers whose replicas are puppets; and the check."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stelae.client.admin.operators import MoveStage
from stelae.client.check.check import CheckReport
from stelae.client.check.facts import Severity
from stelae.client.database import AsyncDatabase
from stelae.core.errors import InvalidArgument, RetryLater, TableNotFound, TabletNotReady
from stelae.core.ids import ServerUuid
from stelae.core.messages.operators import ServerProgress
from stelae.core.messages.replicas import (
    CHECKSUM_REPLICA,
    MARK_REPLICA,
    ChangeReplicas,
    ChecksumReplica,
    MarkReplica,
    Members,
    ReplicaDigest,
    ReplicaMark,
)
from stelae.core.messages.servers import ReplicaRole
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.schema.durability import replicas, segments
from stelae.simulation import Options, World
from stelae.simulation import cluster as sim_cluster
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Servers
from tests.simulation.replicated.test_group_orders import SCHEMA, PuppetGroup, Puppets, PuppetServer

MARK = 41


class Digesting(PuppetServer):
    """A puppet that can be asked for digests, one of which is wrong if ``liar`` says so."""

    liar: str = ""

    def _handlers(self) -> Handlers:
        mine: Handlers = {MARK_REPLICA: self._on_mark, CHECKSUM_REPLICA: self._on_checksum}
        return {**super()._handlers(), **mine}

    async def _on_mark(self, call: Call[MarkReplica]) -> Reply[ReplicaMark]:
        assert self.puppets[call.body.tablet_id].leader == self.info.uuid, "only leaders are asked"
        return Reply(ReplicaMark(MARK))

    async def _on_checksum(self, call: Call[ChecksumReplica]) -> Reply[ReplicaDigest]:
        assert self.puppets[call.body.tablet_id].configuration.peer(self.info.uuid) is not None
        rows = "bb" if self.info.name == type(self).liar else "aa"
        return Reply(ReplicaDigest(call.body.index, 9, rows, 0))


def texts(report: CheckReport) -> list[str]:
    return [f"{finding.section}: {finding}" for finding in report.findings]


class Stage:
    """A cluster with one table of replicas on three of four tservers."""

    def __init__(self, world: World, cluster: SimCluster, puppets: Puppets) -> None:
        self.world = world
        self.cluster = cluster
        self.puppets = puppets
        self.database: AsyncDatabase = cluster.database("client")

    async def begin(self) -> None:
        await self.cluster.start()
        await self.world.wait_until(lambda: self.cluster.leader() is not None, 30, "a leader")
        # The first look comes before a leader has heard everybody.
        await self.database.create_table("t", SCHEMA, key="id", durability=replicas(3), timeout=20)

    @property
    def group(self) -> PuppetGroup:
        (found,) = self.puppets.values()
        return found

    @property
    def names(self) -> dict[ServerUuid, str]:
        return {self.world.server(name).info.uuid: name for name in self.cluster.tservers}

    @property
    def members(self) -> list[str]:
        return sorted(self.names[peer.uuid] for peer in self.group.configuration.peers)


async def _retire(stage: Stage) -> None:
    """A follower, then its return; then more than there is room for."""
    database, group, names = stage.database, stage.group, stage.names
    (spare,) = [name for name in stage.cluster.tservers if name not in stage.members]
    victim = next(names[u] for u in group.configuration.voters if u != group.leader)
    seen: list[int] = []

    def progress(found: ServerProgress) -> None:
        seen.append(found.replicas)

    first = await database.retire_server(victim, wait=False)
    assert (first.mark.retiring, first.replicas) == (True, 1)
    done = await database.retire_server(victim, progress=progress, timeout=60)
    assert (done.replicas, seen[0], seen[-1]) == (0, 1, 0), seen
    assert spare in stage.members
    assert victim not in stage.members
    report = await database.check(wait=10)
    assert report.is_well, texts(report)
    assert any("is being retired: it may be stopped" in text for text in texts(report))

    other = stage.members[0]
    with pytest.raises(RetryLater, match="1 of its tablets want 3 servers, and 2 are live"):
        await database.retire_server(other, timeout=5)
    await database.retire_server(other, cancel=True)
    back = await database.retire_server(victim, cancel=True)
    assert not back.mark.retiring
    with pytest.raises(InvalidArgument, match="no tserver"):
        await database.retire_server("nobody")
    assert not any(server["retiring"] for server in await database.tservers())


async def _move(stage: Stage) -> None:
    """There, once more, and back; a move that makes no sense is refused."""
    database = stage.database
    (tablet,) = await database.locate_table("t")
    (spare,) = [name for name in stage.cluster.tservers if name not in stage.members]
    source = next(
        n for u, n in stage.names.items() if n in stage.members and u != stage.group.leader
    )
    stages: list[MoveStage] = []
    record = await database.move_replica(
        tablet.tablet.tablet_id, source, spare, progress=stages.append, timeout=60
    )
    assert record.move is None
    assert spare in stage.members
    assert source not in stage.members
    assert stages[-1].is_done
    assert not any(seen.is_done for seen in stages[:-1])
    again = await database.move_replica(tablet.tablet.tablet_id, source, spare)
    assert again.move is None
    with pytest.raises(InvalidArgument, match="has a replica"):
        await database.move_replica(tablet.tablet.tablet_id, stage.members[0], stage.members[1])


async def _rebalance(stage: Stage) -> None:
    """The word is kept by the masters, also by the next leader."""
    database = stage.database
    assert (await database.rebalancing()).after_s == 0.0
    assert (await database.rebalancing(9.0)).after_s == 9.0
    stage.world.crash(stage.cluster.leader() or "")
    await stage.world.wait_until(lambda: stage.cluster.leader() is not None, 20, "another leader")
    assert (await database.rebalancing(timeout=20)).after_s == 9.0
    assert (await database.rebalancing(0.0)).after_s == 0.0
    with pytest.raises(InvalidArgument, match="number of seconds"):
        await database.rebalancing(-1.0)


def _play(monkeypatch: pytest.MonkeyPatch, server: type[PuppetServer], story: object) -> None:
    puppets = Puppets()
    monkeypatch.setattr(PuppetServer, "puppets", puppets, raising=False)
    monkeypatch.setattr(sim_cluster, "TabletServer", server)
    world = World(11, Options(servers=Servers(masters=3, tservers=4)))

    async def run(world: World) -> None:
        stage = Stage(world, SimCluster(world), puppets)
        await stage.begin()
        await story(stage)  # type: ignore[operator]

    world.run(run(world))


def test_servers_are_retired_replicas_moved_and_rebalancing_switched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All through the client that the command line uses, and interrupted at will."""

    async def story(stage: Stage) -> None:
        await _retire(stage)
        await _move(stage)
        await _rebalance(stage)

    _play(monkeypatch, PuppetServer, story)


async def _check_story(stage: Stage) -> None:
    world, cluster, database = stage.world, stage.cluster, stage.database
    await database.create_table("s", SCHEMA, key="id", durability=segments("disk"), timeout=20)
    report = await database.check(wait=10)
    assert report.is_well, texts(report)
    assert [(t["name"], t["healthy"]) for t in report.tables()] == [("s", 1), ("t", 1)]
    assert len(report.facts.masters) == 3
    with pytest.raises(TableNotFound):
        await database.check(["nowhere"])

    group = stage.group
    victim = next(u for u in group.configuration.voters if u != group.leader)
    group.roles[victim] = ReplicaRole.FAILED
    seen: dict[str, None] = {}
    while victim in group.configuration.voters:
        seen |= {each.verdict.label: None for each in (await database.check(["t"])).unwell}
        await asyncio.sleep(0.05)
    assert "under-replicated" in seen
    report = await database.check(wait=20)
    assert report.is_well, texts(report)

    follower = next(name for name in cluster.masters if name != cluster.leader())
    world.crash(follower, restart=False)
    await asyncio.sleep(5)
    report = await database.check()
    assert [finding.severity for finding in report.problems] == [Severity.WARNING], texts(report)
    assert f"{follower}: does not answer" in texts(report)[0]
    rest = next(name for name in cluster.masters if name not in (follower, cluster.leader()))
    world.crash(rest, restart=False)
    await asyncio.sleep(5)
    report = await database.check(timeout=3)
    assert any("no majority" in text for text in texts(report)), texts(report)
    assert any("could not be looked at" in text for text in texts(report)), texts(report)


def test_the_check_tells_a_well_cluster_from_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A failed replica, a master that is away, and masters without a majority are told apart."""
    _play(monkeypatch, PuppetServer, _check_story)


def test_replicas_are_compared_at_one_index_of_their_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader is asked for a mark, each voter for its digest there; who differs is named."""

    async def story(stage: Stage) -> None:
        report = await stage.database.check(checksums=True, wait=10)
        assert report.is_well, texts(report)
        checksums = report.document()["checksums"]
        assert (checksums["tablets"], checksums["equal"]) == (1, 1)
        answers = checksums["answers"][0]["replicas"]
        assert sorted(answer["server"] for answer in answers) == stage.members
        assert {answer["index"] for answer in answers} == {MARK}
        liar = stage.members[1]
        monkeypatch.setattr(Digesting, "liar", liar)
        report = await stage.database.check(checksums=True, wait=10)
        (finding,) = report.problems
        assert finding.severity is Severity.ERROR
        assert f"{liar}: 9 rows, bb" in finding.text

    _play(monkeypatch, Digesting, story)


def test_servers_that_cannot_be_asked_for_digests_are_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No comparison is no agreement: it is a warning, and says why."""

    async def story(stage: Stage) -> None:
        report = await stage.database.check(checksums=True, wait=10)
        (finding,) = report.problems
        assert finding.severity is Severity.WARNING
        assert "was not compared" in finding.text
        assert "is not here" in finding.text or "not served" in finding.text

    _play(monkeypatch, PuppetServer, story)


class CatchingUp(Digesting):
    """A puppet of a group in which whoever is added stays a non-voter; a ``mute`` one has no digest
    of that index."""

    mute: str = ""

    async def _on_change(self, call: Call[ChangeReplicas]) -> Reply[Members]:
        reply = await super()._on_change(call)
        group, order = self.puppets[call.body.tablet_id], call.body
        peers = tuple(
            msgspec.structs.replace(peer, voter=peer.voter and peer.uuid != order.uuid)
            for peer in reply.body.configuration.peers
        )
        group.configuration = msgspec.structs.replace(group.configuration, peers=peers)
        return Reply(Members(group.configuration))

    async def _on_checksum(self, call: Call[ChecksumReplica]) -> Reply[ReplicaDigest]:
        if self.info.name == type(self).mute:
            raise TabletNotReady(call.body.tablet_id, "copied since")
        return await super()._on_checksum(call)


def test_non_voters_that_have_their_rows_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may vote soon. One that cannot be compared yet is told of, and nothing is wrong with
    that; one that has no rows is not asked."""

    async def story(stage: Stage) -> None:
        database, group = stage.database, stage.group
        (spare,) = [name for name in stage.cluster.tservers if name not in stage.members]
        source = next(n for u, n in stage.names.items() if n in stage.members and u != group.leader)
        (tablet,) = await database.locate_table("t")
        await database.move_replica(tablet.tablet.tablet_id, source, spare, wait=False)
        await stage.world.wait_until(lambda: spare in stage.members, 20, "it is a non-voter")
        await asyncio.sleep(1.0)

        async def answers() -> tuple[CheckReport, list[tuple[str, bool]]]:
            report = await database.check(checksums=True, wait=10)
            (found,) = report.document()["checksums"]["answers"]
            return report, sorted((each["server"], each["voter"]) for each in found["replicas"])

        report, asked = await answers()
        assert report.is_well, texts(report)
        assert asked == sorted((name, name != spare) for name in stage.members)
        assert len(asked) == 4
        monkeypatch.setattr(Digesting, "liar", spare)
        monkeypatch.setattr(CatchingUp, "liar", spare)
        report, _ = await answers()
        (finding,) = report.problems
        assert finding.severity is Severity.ERROR
        assert f"{spare}: 9 rows, bb" in finding.text
        monkeypatch.setattr(CatchingUp, "mute", spare)
        report, _ = await answers()
        assert report.is_well, texts(report)
        assert any(f"the non-voter on {spare} was not compared" in text for text in texts(report))
        assert report.document()["checksums"]["equal"] == 1
        group.roles[next(u for u, n in stage.names.items() if n == spare)] = ReplicaRole.COPYING
        await asyncio.sleep(1.0)
        _, asked = await answers()
        assert len(asked) == 3

    _play(monkeypatch, CatchingUp, story)
