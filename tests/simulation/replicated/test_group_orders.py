"""Real masters over tservers whose replicas are puppets: orders arrive, and reports count."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from stelae.actors.tserver.server import TabletServer
from stelae.core.errors import NotEnoughServers
from stelae.core.ids import OpId, ServerUuid, TabletId
from stelae.core.messages.alter import ALTER_TABLET, AlterTablet
from stelae.core.messages.catalog import (
    GET_TABLE,
    LINEARIZABLE,
    GetTable,
    TabletLocation,
)
from stelae.core.messages.replicas import (
    CHANGE_REPLICAS,
    CREATE_REPLICA,
    DELETE_REPLICA,
    TRANSFER_LEADERSHIP,
    ChangeKind,
    ChangeReplicas,
    CreateReplica,
    DeleteReplica,
    Members,
    TransferLeadership,
)
from stelae.core.messages.servers import (
    GroupReport,
    HeartbeatReply,
    PeerHealth,
    ReplicaRole,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.records import TableRecord
from stelae.core.records.replication import Configuration, Peer
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.durability import replicas
from stelae.simulation import Options, World
from stelae.simulation import cluster as sim_cluster
from stelae.simulation.cluster import SimCluster
from stelae.simulation.world.options import Servers

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@dataclass
class PuppetGroup:
    """What the replicas of one tablet agree on, as by consensus."""

    configuration: Configuration
    table: TableRecord
    leader: ServerUuid
    roles: dict[ServerUuid, ReplicaRole] = field(default_factory=dict)
    orders: list[str] = field(default_factory=list)


class Puppets(dict[TabletId, PuppetGroup]):
    """All groups, in the place of disks and consensus: they outlive servers."""


class PuppetServer(TabletServer):
    """A tserver that does what it is told about replicas at once, and says so."""

    puppets: Puppets

    def _handlers(self) -> Handlers:
        mine: Handlers = {
            CREATE_REPLICA: self._on_create,
            DELETE_REPLICA: self._on_delete,
            CHANGE_REPLICAS: self._on_change,
            TRANSFER_LEADERSHIP: self._on_transfer,
            ALTER_TABLET: self._on_alter_group,
        }
        return {**super()._handlers(), **mine}

    def reports(self) -> tuple[TabletReport, ...]:
        mine = tuple(
            self._report(tablet_id, group)
            for tablet_id, group in self.puppets.items()
            if self.info.uuid in group.roles
        )
        return (*super().reports(), *mine)

    def _report(self, tablet_id: TabletId, group: PuppetGroup) -> TabletReport:
        uuid = self.info.uuid
        role = group.roles[uuid]
        if role is ReplicaRole.FOLLOWER and group.leader == uuid:
            role = ReplicaRole.LEADER
        others = [p.uuid for p in group.configuration.peers if p.uuid != uuid]
        peers = tuple(PeerHealth(other, True, 1) for other in others)
        word = GroupReport(role, OpId(1, 1), 1, group.leader, group.configuration, peers=peers)
        version = group.table.schema.version
        return TabletReport(
            tablet_id, 1, TabletProgress.SERVING, schema_version=version, group=word
        )

    async def _obey(self, reply: HeartbeatReply) -> None:
        await super()._obey(reply)
        for tablet_id in reply.drop:
            if tablet_id in self.puppets:
                self.puppets[tablet_id].roles.pop(self.info.uuid, None)

    async def _on_create(self, call: Call[CreateReplica]) -> Reply[Empty]:
        order = call.body
        first = PuppetGroup(order.configuration, order.table, order.configuration.voters[0])
        group = self.puppets.setdefault(order.tablet_id, first)
        group.roles.setdefault(self.info.uuid, ReplicaRole.FOLLOWER)
        group.orders.append(f"create {self.info.name}")
        return EMPTY

    async def _on_delete(self, call: Call[DeleteReplica]) -> Reply[Empty]:
        group = self.puppets[call.body.tablet_id]
        group.orders.append(f"delete {self.info.name} {call.body.forever}")
        if call.body.forever:
            group.roles.pop(self.info.uuid, None)
        else:
            group.roles[self.info.uuid] = ReplicaRole.TOMBSTONE
        return EMPTY

    async def _on_change(self, call: Call[ChangeReplicas]) -> Reply[Members]:
        """A server that is added becomes a voter at once."""
        order = call.body
        group = self.puppets[order.tablet_id]
        group.orders.append(f"{order.kind.value} {order.name}")
        assert (group.leader, order.expected) == (self.info.uuid, group.configuration.op_id)
        peers = group.configuration.peers
        if order.kind is ChangeKind.ADD:
            peers = (*peers, Peer(order.uuid, order.address, True, order.name))
            group.roles[order.uuid] = ReplicaRole.FOLLOWER
        else:
            peers = tuple(peer for peer in peers if peer.uuid != order.uuid)
        index = group.configuration.op_id.index + 1
        group.configuration = Configuration(OpId(1, index), peers)
        return Reply(Members(group.configuration))

    async def _on_transfer(self, call: Call[TransferLeadership]) -> Reply[Empty]:
        group = self.puppets[call.body.tablet_id]
        assert group.leader == self.info.uuid
        group.leader = call.body.target
        return EMPTY

    async def _on_alter_group(self, call: Call[AlterTablet]) -> Reply[TabletReport]:
        group = self.puppets[call.body.tablet_id]
        group.table = call.body.table
        return Reply(self._report(call.body.tablet_id, group))


async def locate(world: World, runtime: Runtime, cluster: SimCluster, name: str) -> TabletLocation:
    """Where the only tablet of a table is, by the leader master."""
    leader = cluster.leader()
    assert leader is not None
    body = GetTable(name, max_staleness_s=LINEARIZABLE)
    reply = await runtime.peers.call(world.address(leader), GET_TABLE, body, timeout_s=5)
    (location,) = reply.body.tablets
    return location


async def _story(world: World, cluster: SimCluster, puppets: Puppets) -> None:
    database = cluster.database("client")
    with pytest.raises(NotEnoughServers):
        await database.create_table("big", SCHEMA, key="id", durability=replicas(5), timeout=5)
    await database.create_table("t", SCHEMA, key="id", durability=replicas(3), timeout=20)
    (group,) = puppets.values()
    found = await locate(world, database.runtime, cluster, "t")
    servers = {world.server(name).info.uuid: name for name in cluster.tservers}
    leader = world.server(servers[group.leader]).info
    assert found.address == leader.address
    assert [r.uuid for r in found.replicas if r.is_leader] == [leader.uuid]
    assert sorted(group.orders) == sorted(
        f"create {servers[uuid]}" for uuid in group.configuration.voters
    )

    lost = next(u for u in group.configuration.voters if u != leader.uuid)
    (spare,) = [u for u in servers if group.configuration.peer(u) is None]
    group.orders.clear()
    world.crash(servers[lost], restart=False)
    await asyncio.sleep(20)
    assert group.orders == [], "it may come back"
    await world.wait_until(lambda: len(group.orders) == 2, 20, "the group is healed")
    assert group.orders == [f"add {servers[spare]}", f"remove {servers[lost]}"]
    world.crash(cluster.leader() or "")
    await world.wait_until(lambda: cluster.leader() is not None, 20, "another leader master")
    await asyncio.sleep(3)
    found = await locate(world, database.runtime, cluster, "t")
    assert found.tablet.configuration == group.configuration
    assert len(group.orders) == 2, "a new leader master repeats nothing"

    found_there = await database.maintain_server(servers[leader.uuid], True, timeout=5)
    assert (found_there.is_live, found_there.replicas) == (True, 1)
    await world.wait_until(lambda: group.leader != leader.uuid, 5, "another server leads")

    await database.alter_table("t", rename_columns={"v": "w"}, timeout=10)
    assert group.table.schema.arrow.names == ["id", "w"]
    await database.delete_table("t")
    await world.wait_until(
        lambda: not any(uuid != lost for uuid in group.roles), 5, "all live replicas are deleted"
    )


def test_a_group_is_created_located_healed_and_deleted_through_real_masters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every order of the coordinator reaches the right server, and its reports are heeded."""
    puppets = Puppets()
    monkeypatch.setattr(PuppetServer, "puppets", puppets, raising=False)
    monkeypatch.setattr(sim_cluster, "TabletServer", PuppetServer)
    world = World(7, Options(servers=Servers(masters=3, tservers=4)))

    async def run(world: World) -> None:
        cluster = SimCluster(world)
        await cluster.start()
        await world.wait_until(lambda: cluster.leader() is not None, 30, "a leader")
        await _story(world, cluster, puppets)

    world.run(run(world))
