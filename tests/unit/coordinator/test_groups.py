"""Tablets with ``replicas(n)``: what the leader master makes of reports, as conversations."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.coordinator.alter import Alter, FinishAlter, alter_actions
from stelae.coordinator.assignment import check_enough_tservers
from stelae.coordinator.catalog import Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl import draft_create, draft_delete, draft_replace
from stelae.coordinator.decide import Action, GiveUp, Replace, decide, tserver_loads
from stelae.coordinator.group_decisions import Change, Create, Delete, Transfer, UpdateGroups
from stelae.coordinator.groups import location_of
from stelae.coordinator.liveness import Liveness
from stelae.coordinator.operator_drafts import (
    draft_mark,
    draft_move,
    draft_rebalancing,
    find_tserver,
    progress_of,
    rebalancing_of,
)
from stelae.coordinator.pacing import Pacing
from stelae.coordinator.recoveries import Recoveries
from stelae.coordinator.reports import is_news
from stelae.coordinator.standing import standing_of
from stelae.coordinator.status import StatusInputs, status_document
from stelae.core.catalog_messages import CreateTable
from stelae.core.durability import Durability, replicas, segments
from stelae.core.errors import InvalidArgument, NotEnoughServers, TooFewServers
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TabletId
from stelae.core.messages import (
    LOAD_UNKNOWN,
    GroupReport,
    Heartbeat,
    PeerHealth,
    ReplicaRole,
    TabletProgress,
    TabletReport,
)
from stelae.core.partition import Partitioning, hash_partition
from stelae.core.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema import TableSchema
from stelae.core.server_messages import MarkServer, MoveReplica, SetRebalancing
from stelae.core.settings import Settings

SETTINGS = Settings(heartbeat_s=0.2, lease_s=1.5, dead_after_s=2.0)
SCHEMA = TableSchema.of(pa.schema([("id", pa.int64())]), ["id"])
R = ReplicaRole


def server(name: str, node: str = "", incarnation: int = 1) -> ServerInfo:
    """``a~2`` is called a, and has another UUID than ``a``: it lost its disk."""
    process = ProcessIdentity(node or name, 1, 0)
    address, called = Address(f"{name}:{incarnation}"), name.partition("~")[0]
    return ServerInfo(ServerKind.TSERVER, called, ServerUuid(name), incarnation, address, process)


class World:
    """A leader's view of some servers and their replicas, driven by hand."""

    def __init__(self, *names: str) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(SETTINGS)
        self.pacing = Pacing()
        self.rng = random.Random(4)
        self.now = 100.0
        self.liveness.lead(self.now)
        self.silent: dict[str, None] = {}
        self.rebalance_after_s = 0.0
        self.held: dict[str, dict[TabletId, TabletReport]] = {name: {} for name in names}
        self.beat()

    def put(self, batch: CatalogBatch | None) -> None:
        assert batch is not None
        self.catalog.apply(1, 1, batch.encode())

    def create(
        self, durability: Durability, name: str = "t", partitioning: Partitioning | None = None
    ) -> list[TabletRecord]:
        order = CreateTable(
            RequestId(ClientId("c"), len(self.catalog.tables) + 1, 1),
            name,
            SCHEMA,
            partitioning or Partitioning(),
            durability,
        )
        loads = tserver_loads(self.catalog, self.liveness.live(ServerKind.TSERVER, self.now))
        self.put(draft_create(self.catalog, order, loads, self.rng))
        table = self.catalog.find(name)
        assert table is not None
        return self.catalog.tablets_of(table.table_id)

    def beat(self, *names: str) -> None:
        """A full report of these servers, or of all that are not silent."""
        for name in names or [name for name in self.held if name not in self.silent]:
            beat = Heartbeat(server(name), self.now, tuple(self.held[name].values()))
            assert self.liveness.heartbeat(beat, self.now).processed

    def wait(self, seconds: float) -> None:
        """Time passes, with a heartbeat of everybody who is not silent each second."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 1.0)
            self.beat()

    def says(
        self, name: str, tablet: TabletRecord, role: ReplicaRole, term: int = 1, **more: Any
    ) -> None:
        """What a server says of its replica from its next heartbeat on."""
        progress = TabletProgress.SERVING
        known = ("schema_version", "renames", "row_count", "load_per_s")
        top = {k: more.pop(k) for k in known if k in more}
        configuration = more.pop("configuration", tablet.configuration)
        word = GroupReport(
            role, more.pop("last", OpId(term, 1)), configuration=configuration, **more
        )
        self.held[name][tablet.tablet_id] = TabletReport(
            tablet.tablet_id, term, progress, group=word, **top
        )

    def form(self, tablet: TabletRecord, term: int = 1) -> TabletRecord:
        """All members report; the first one leads, and everything is fine."""
        assert tablet.configuration is not None
        first, *rest = tablet.configuration.voters
        peers = tuple(PeerHealth(uuid, True, 1) for uuid in rest)
        self.says(first, tablet, R.LEADER, term, leader=first, peers=peers)
        for uuid in rest:
            self.says(uuid, tablet, R.FOLLOWER, term, leader=first)
        self.beat()
        self.decide()
        return self.catalog.tablets[tablet.tablet_id]

    def decide(self, *, obey: bool = True) -> list[Action]:
        """What is to be done; catalog entries are carried out."""
        actions = decide(
            self.catalog,
            self.liveness,
            self.pacing,
            self.now,
            missing_after_s=2.0,
            creation_timeout_s=30.0,
            replica_dead_after_s=30.0,
            rebalance_after_s=self.rebalance_after_s,
        )
        for action in actions if obey else []:
            if isinstance(action, UpdateGroups):
                self.put(CatalogBatch(tablets=action.tablets))
            if isinstance(action, Replace):
                self.put(draft_replace(self.catalog, action.stuck, action.holders, self.rng))
        return actions

    def reconfigure(
        self, tablet: TabletRecord, peers: str, index: int, unheard: str = ""
    ) -> TabletRecord:
        """The group commits a configuration: voters in capitals; ``unheard``: by the leader."""
        old = tablet.configuration
        assert old is not None
        made = tuple(
            msgspec.structs.replace(
                old.peers[0], uuid=ServerUuid(p.lower()), name=p.lower(), voter=p.isupper()
            )
            for p in peers
        )
        new = msgspec.structs.replace(old, op_id=OpId(1, index), peers=made)
        for name in peers.lower():
            if name in self.silent:
                continue
            leads = name == peers[0].lower()
            others = [ServerUuid(p) for p in peers.lower() if p != name]
            told = tuple(
                PeerHealth(u, u not in self.silent and u not in unheard, 1) for u in others
            )
            self.says(
                name,
                tablet,
                R.LEADER if leads else R.FOLLOWER,
                leader=ServerUuid(peers[0].lower()),
                peers=told if leads else (),
                configuration=new,
            )
        self.beat()
        return tablet


def changes(actions: list[Action]) -> list[tuple[str, str, str]]:
    """(leader, kind, server) of each change of members."""
    return [
        (action.leader.name, action.order.kind.value, str(action.order.uuid))
        for action in actions
        if isinstance(action, Change)
    ]


def grown(world: World) -> TabletRecord:
    """A running tablet of three replicas on a, b, c, led by a."""
    (tablet,) = world.create(replicas(3))
    return world.form(tablet)


# ---- creation ---------------------------------------------------------------------------------


def test_replicas_of_a_tablet_go_to_different_servers_and_nodes_evenly() -> None:
    """No two replicas on one server; on one node only if there is no other; loads stay even."""
    world = World()
    for name, node in [("a", "n1"), ("b", "n1"), ("c", "n2"), ("d", "n2"), ("e", "n3")]:
        world.liveness.heartbeat(Heartbeat(server(name, node), world.now), world.now)
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=10))
    nodes = {"a": "n1", "b": "n1", "c": "n2", "d": "n2", "e": "n3"}
    count = dict.fromkeys(nodes, 0)
    for tablet in tablets:
        assert tablet.configuration is not None
        assert (tablet.owner, tablet.term, tablet.state) == ("", 0, TabletState.CREATING)
        voters = tablet.configuration.voters
        assert len(set(voters)) == 3
        assert sorted(nodes[v] for v in voters) == ["n1", "n2", "n3"]
        for voter in voters:
            count[voter] += 1
    assert count == {"a": 5, "b": 5, "c": 5, "d": 5, "e": 10}
    assert [world.catalog.count_replicas(ServerUuid(n)) for n in nodes] == [5, 5, 5, 5, 10]
    assert world.catalog.live_count == 10


def test_a_table_with_more_replicas_than_servers_waits_or_is_refused() -> None:
    """Servers that are down may come back; servers that never were will not."""
    world = World("a", "b", "c")
    world.silent["c"] = None
    world.wait(3)
    with pytest.raises(NotEnoughServers, match="3 live tservers, there are 2"):
        world.create(replicas(3))
    known = [seen.server for seen in world.liveness.newest_runs()]
    check_enough_tservers("table 't'", 3, known)
    with pytest.raises(TooFewServers, match="needs 5 tservers; the cluster has 3"):
        check_enough_tservers("table 't'", 5, known)


def test_members_are_told_to_create_until_a_leader_and_a_majority_report() -> None:
    """Level-triggered; the tablet runs once a majority takes part and one of them leads."""
    world = World("a", "b", "c")
    (tablet,) = world.create(replicas(3))
    told = [a.server.name for a in world.decide() if isinstance(a, Create)]
    assert told == ["a", "b", "c"]
    world.says("a", tablet, R.FOLLOWER)
    world.beat()
    orders = [a for a in world.decide() if isinstance(a, Create)]
    assert [order.server.name for order in orders] == ["b", "c"]
    assert orders[0].order.configuration == tablet.configuration
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"))
    world.beat()
    assert not any(isinstance(a, UpdateGroups) for a in world.decide()), "one is no majority"
    world.says("b", tablet, R.FOLLOWER, leader=ServerUuid("a"))
    world.beat()
    assert any(isinstance(a, UpdateGroups) for a in world.decide())
    tablet = world.catalog.tablets[tablet.tablet_id]
    assert tablet.state is TabletState.RUNNING
    assert not any(isinstance(a, Create) for a in world.decide()), "c gets a copy from its leader"


def test_servers_that_have_not_said_what_they_hold_are_not_told_to_create() -> None:
    """A new leader master does not know yet; they will say, or they will be dead."""
    world = World("a", "b", "c")
    world.create(replicas(3))
    world.liveness.lead(world.now)
    assert world.decide() == []
    world.beat("b")
    assert [a.server.name for a in world.decide() if isinstance(a, Create)] == ["b"]


def test_a_tablet_that_finds_no_leader_in_time_is_replaced_by_one_elsewhere() -> None:
    """With a new id and new members; whatever turns up of the old one is deleted for ever."""
    world = World("a", "b", "c", "d", "e")
    (old,) = world.create(replicas(3))
    assert old.configuration is not None
    for name in old.configuration.voters[:2]:
        world.silent[name] = None
    world.decide()
    world.wait(29)
    assert not any(isinstance(a, Replace) for a in world.decide())
    world.wait(2)
    (late,) = [n for n in old.configuration.voters if n not in world.silent]
    world.says(late, old, R.CANDIDATE)
    world.beat()
    assert any(isinstance(a, Replace) for a in world.decide())
    (new,) = world.catalog.tablets_of(old.table_id)
    assert new.tablet_id != old.tablet_id
    assert new.attempt == 1
    assert new.configuration is not None
    assert not any(name in world.silent for name in new.configuration.voters)
    deletes = [a for a in world.decide() if isinstance(a, Delete)]
    assert [(a.server.name, a.order.forever) for a in deletes] == [(late, True)]


def test_a_tablet_with_a_leader_is_never_replaced() -> None:
    """However long its majority takes to report: it may have been written to by then."""
    world = World("a", "b", "c")
    (tablet,) = world.create(replicas(3))
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"))
    world.decide()
    world.wait(300)
    assert not any(isinstance(a, Replace) for a in world.decide())


def test_a_first_member_that_was_away_is_created_later_if_nobody_is_left_to_lead() -> None:
    """It was not there when the tablet was; the second is lost, and the third needs its vote. A
    leader has it copied, who has something, even damaged, is left alone, and so are non-voters."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.reconfigure(tablet, "ABCd", 3)
    world.decide()
    for name in ("c", "d"):
        del world.held[name][tablet.tablet_id]
    world.beat()
    assert not any(isinstance(a, Create) for a in world.decide())
    world.silent["b"] = None
    world.says("a", tablet, R.CANDIDATE, 2)
    world.wait(3)
    (order,) = [a for a in world.decide() if isinstance(a, Create)]
    assert order.server.name == "c"
    assert order.order.configuration.op_id == OpId(0, 0), "the log that comes has what follows"
    assert (
        order.order.configuration.peers
        == world.catalog.tablets[tablet.tablet_id].configuration.peers
    )  # type: ignore[union-attr]
    world.says("c", tablet, R.FAILED)
    world.beat()
    assert not any(isinstance(a, Create) for a in world.decide())


# ---- at rest ----------------------------------------------------------------------------------


def test_a_group_that_is_well_gets_no_attention_and_is_taken_for_no_lost_tablet() -> None:
    """No owner, so nobody recovers it; writes change reports, and are no news."""
    world = World("a", "b", "c")
    tablet = grown(world)
    assert world.catalog.owners() == []
    assert list(world.catalog.opening_tablets()) == []
    world.wait(5)
    assert world.decide() == []
    standing = standing_of(world.catalog, world.liveness.live(ServerKind.TSERVER, world.now)[0])
    assert (standing.closes, standing.serve, standing.drop) == ((), (), ())
    assert standing.may_have_lease
    reporters = world.liveness.reporters(world.now)
    before = world.held["a"][tablet.tablet_id]
    word = before.group
    assert word is not None
    peers = tuple(msgspec.structs.replace(p, match_index=9) for p in word.peers)
    more = msgspec.structs.replace(word, last=OpId(1, 9), commit_index=9, peers=peers)
    after = msgspec.structs.replace(before, group=more, load_per_s=40.0)
    assert not is_news(before, after)
    assert is_news(before, msgspec.structs.replace(before, group=None))
    world.held["a"][tablet.tablet_id] = after
    world.beat()
    assert world.liveness.reporters(world.now) is reporters
    seen = world.liveness.live_server(ServerUuid("a"), world.now)
    assert seen is not None
    assert seen.reports[tablet.tablet_id] == after, "but they are known"


def test_a_server_with_replicas_alone_may_be_silent_and_go_on() -> None:
    """It needs no lease; one that owns tablets is given up, since they go elsewhere."""
    world = World("a", "b", "c")
    grown(world)
    world.silent["c"] = None
    world.wait(5)
    assert not any(isinstance(a, GiveUp) for a in world.decide())
    del world.silent["c"]
    world.wait(1)
    assert world.decide() == []


def test_the_catalog_comes_back_from_a_snapshot_with_its_groups() -> None:
    """Members, counts and records are what they were."""
    world = World("a", "b", "c")
    tablet = grown(world)
    copy = Catalog()
    copy.restore(world.catalog.snapshot())
    assert list(copy.groups()) == [tablet]
    assert list(copy.replicas_at(ServerUuid("b"))) == [tablet]
    assert (copy.live_count, copy.owners()) == (1, [])
    world.put(draft_delete(world.catalog, RequestId(ClientId("c"), 9, 9), tablet.table_id, "t"))
    assert (world.catalog.live_count, list(world.catalog.groups())) == (0, [])
    assert world.catalog.count_replicas(ServerUuid("b")) == 0


# ---- locations --------------------------------------------------------------------------------


def test_locations_name_all_replicas_and_the_leader_by_the_newest_word() -> None:
    """A follower of a higher term knows better than a former leader."""
    world = World("a", "b", "c")
    tablet = grown(world)

    def located() -> tuple[str, list[tuple[str, str, bool]], str]:
        found = location_of(tablet, world.liveness, world.now, knows_reports=True)
        shown = [(str(r.uuid), str(r.address), r.is_leader) for r in found.replicas]
        return str(found.address), shown, found.problem

    assert located() == ("a:1", [("a", "a:1", True), ("b", "b:1", False), ("c", "c:1", False)], "")
    world.says("c", tablet, R.FOLLOWER, 2, leader=ServerUuid("b"))
    world.beat()
    assert located()[0] == "b:1", "b has not said so itself yet"
    world.silent = {"a": None, "b": None}
    world.wait(3)
    assert located()[:2] == ("", [("a", "", False), ("b", "", True), ("c", "c:1", False)])
    assert located()[2] == "1 of its 3 replicas are there; it waits for a, b"
    follower = location_of(tablet, world.liveness, world.now, knows_reports=False)
    assert (follower.problem, follower.replicas[2].address) == ("", "c:1")


def test_the_status_shows_roles_health_and_copies() -> None:
    """What an operator needs to see of a group."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(3)
    world.says("d", tablet, R.COPYING, configuration=None, copied_bytes=10, copy_bytes=30)
    world.beat()
    inputs = StatusInputs(
        "c", 0.0, world.now, 1, (), world.catalog, world.liveness, Recoveries(), {}
    )
    found = msgspec.json.decode(status_document(inputs))
    (shown,) = found["tablets"]
    assert (shown["leader"], shown["under_replicated"], shown["term"]) == ("a", 1, 1)
    assert [(r["server"], r["member"], r["role"]) for r in shown["replicas"]] == [
        ("a", "voter", "leader"),
        ("b", "voter", "follower"),
        ("c", "voter", ""),
        ("d", "none", "copying"),
    ]
    assert [(c["server"], c["state"], c["copied_bytes"], c["bytes"]) for c in found["copies"]] == [
        ("d", "copying", 10, 30)
    ]
    counts = {s["id"]: s["tablets"] for s in found["servers"]}
    assert counts == {"a": 1, "b": 1, "c": 1, "d": 0}


# ---- configurations ---------------------------------------------------------------------------


def test_newer_committed_configurations_become_the_catalogs_in_one_entry() -> None:
    """Many tablets, one batch; an older one, whoever reports it, changes nothing."""
    world = World("a", "b", "c", "d")
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=5))
    world.decide()
    tablets = [world.form(tablet) for tablet in tablets]
    assert all(t.state is TabletState.RUNNING for t in world.catalog.groups())
    before = world.catalog.applied
    for tablet in tablets:
        assert tablet.configuration is not None
        new = msgspec.structs.replace(tablet.configuration, op_id=OpId(1, 7))
        leader = tablet.configuration.voters[0]
        peers = tuple(PeerHealth(u, True, 1) for u in tablet.configuration.voters[1:])
        world.says(leader, tablet, R.LEADER, leader=leader, peers=peers, configuration=new)
    world.beat()
    world.decide()
    assert world.catalog.applied == before + 1
    for tablet in world.catalog.groups():
        assert tablet.configuration is not None
        assert tablet.configuration.op_id == OpId(1, 7)
    assert world.decide() == [], "the followers still report the older one"


# ---- deletion ---------------------------------------------------------------------------------


def test_a_deleted_table_is_deleted_for_ever_by_whoever_reports_it() -> None:
    """Tombstones as well, until they are for ever, and are reported no more."""
    world = World("a", "b", "c")
    tablet = grown(world)
    world.liveness.lead(world.now)
    world.beat()
    assert world.decide() == []
    world.put(draft_delete(world.catalog, RequestId(ClientId("c"), 9, 9), tablet.table_id, "t"))
    assert [type(a) for a in world.decide()] == [Delete, Delete, Delete]
    world.says("b", tablet, R.TOMBSTONE)
    world.beat()
    deletes = [a for a in world.decide() if isinstance(a, Delete)]
    assert [(a.server.name, a.order.forever) for a in deletes] == [
        ("a", True),
        ("b", True),
        ("c", True),
    ]
    seen = world.liveness.live_server(ServerUuid("b"), world.now)
    assert seen is not None
    assert standing_of(world.catalog, seen).drop == (tablet.tablet_id,)
    for name in "abc":
        world.held[name].clear()
    world.beat()
    assert world.decide() == []


def test_a_former_member_is_told_to_delete_its_replica_by_the_configuration_agreed_on() -> None:
    """Catalog and leader must agree, and the replica must know nothing newer."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.reconfigure(tablet, "ABD", 7)
    world.decide()
    tablet = world.catalog.tablets[tablet.tablet_id]

    def deletes() -> list[tuple[str, bool, OpId]]:
        found = [a for a in world.decide() if isinstance(a, Delete)]
        return [(a.server.name, a.order.forever, a.order.configuration_id) for a in found]

    assert deletes() == [("c", False, OpId(1, 7))]
    assert tablet.configuration is not None
    newer = msgspec.structs.replace(tablet.configuration, op_id=OpId(1, 3))
    world.says("c", tablet, R.FOLLOWER, configuration=newer)
    world.beat()
    assert deletes() == [("c", False, OpId(1, 7))], "it knows an older one"
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=word.peers, is_changing=True)
    world.beat()
    assert deletes() == [], "a change is under way: it may be added again"
    world.says("a", tablet, R.FOLLOWER)
    world.beat()
    assert deletes() == [], "nobody leads"
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=word.peers)
    world.says("c", tablet, R.TOMBSTONE)
    world.beat()
    assert deletes() == []


def test_replicas_of_unknown_tablets_are_left_alone() -> None:
    """They may belong to another cluster; only what is recorded as deleted is deleted."""
    world = World("a", "b", "c")
    tablet = grown(world)
    stranger = msgspec.structs.replace(tablet, tablet_id=TabletId("stranger"))
    world.says("b", stranger, R.LEADER, leader=ServerUuid("b"))
    world.beat()
    assert world.decide() == []


# ---- alters -----------------------------------------------------------------------------------


def test_the_leader_of_a_group_is_told_of_an_alter_in_its_term() -> None:
    """It is done once the leader reports the version; without a leader it waits."""
    world = World("a", "b", "c")
    tablet = grown(world)
    table = world.catalog.tables[tablet.table_id]
    world.put(
        CatalogBatch(
            (
                msgspec.structs.replace(
                    table,
                    schema=msgspec.structs.replace(table.schema, version=2),
                    state=TableState.ALTERING,
                    generation=table.generation + 1,
                ),
            )
        )
    )

    def actions() -> list[Alter | FinishAlter]:
        reporters = world.liveness.reporters(world.now).of
        return list(alter_actions(world.catalog, {}, reporters))

    world.says("a", tablet, R.LEADER, 5, leader=ServerUuid("a"), schema_version=1)
    world.beat()
    (alter,) = actions()
    assert isinstance(alter, Alter)
    assert (alter.owner.name, alter.term) == ("a", 5)
    world.says("a", tablet, R.FOLLOWER, 5, schema_version=2)
    world.beat()
    assert actions() == []
    world.says("a", tablet, R.LEADER, 6, leader=ServerUuid("a"), schema_version=2)
    world.beat()
    (finish,) = actions()
    assert isinstance(finish, FinishAlter)


# ---- healing ----------------------------------------------------------------------------------


def test_a_lost_server_is_replaced_voter_first_and_evicted_after() -> None:
    """3-4-3, each step decided from the configuration committed before."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(29)
    assert changes(world.decide()) == [], "it may come back"
    world.wait(2)
    (change,) = [a for a in world.decide() if isinstance(a, Change)]
    assert (change.leader.name, change.order.kind.value, change.order.uuid) == ("a", "add", "d")
    assert change.order.expected == OpId(0, 0)
    assert (change.order.address, change.order.name) == ("d:1", "d")
    world.reconfigure(tablet, "ABCd", 5)
    world.says("d", tablet, R.COPYING, configuration=None)
    world.beat()
    world.decide()
    assert changes(world.decide()) == [], "it is copied"
    world.reconfigure(tablet, "ABCD", 6)
    world.decide()
    (change,) = [a for a in world.decide() if isinstance(a, Change)]
    assert (change.order.kind.value, change.order.uuid) == ("remove", "c")
    assert change.order.expected == OpId(1, 6)
    world.reconfigure(tablet, "ABD", 7)
    world.decide()
    assert world.decide() == []
    del world.silent["c"]
    world.wait(1)
    (delete,) = world.decide()
    assert isinstance(delete, Delete)
    assert (delete.server.name, delete.order.forever) == ("c", False)


def test_nothing_is_changed_without_a_leader_or_while_a_change_is_under_way() -> None:
    """A change could not be committed, or would be refused."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(40)
    assert changes(world.decide()) == [("a", "add", "d")]
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says("a", tablet, R.LEADER, leader=ServerUuid("a"), peers=word.peers, is_changing=True)
    world.beat()
    assert changes(world.decide()) == []
    world.says("a", tablet, R.CANDIDATE, 2)
    world.beat()
    assert changes(world.decide()) == []


def test_a_former_leader_that_still_reports_is_asked_for_nothing() -> None:
    """A follower of a higher term knows that another leads."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.silent["c"] = None
    world.wait(40)
    word = world.held["a"][tablet.tablet_id].group
    assert word is not None
    world.says("a", tablet, R.LEADER, 2, leader=ServerUuid("a"), peers=word.peers)
    world.beat()
    assert changes(world.decide()) == [("a", "add", "d")]
    world.says("d", tablet, R.FOLLOWER, 3, leader=ServerUuid("c"))
    world.beat()
    assert changes(world.decide()) == []


def test_a_new_leader_master_waits_as_long_again_before_it_replaces_anybody() -> None:
    """It has not heard the lost server itself."""
    world = World("a", "b", "c", "d")
    grown(world)
    world.silent["c"] = None
    world.wait(25)
    world.liveness.lead(world.now)
    world.wait(25)
    assert changes(world.decide()) == []
    world.wait(6)
    assert changes(world.decide()) == [("a", "add", "d")]


def test_a_broken_replica_is_replaced_at_once_and_on_its_own_server_if_there_is_no_other() -> None:
    """Its server lives and says that the replica is damaged."""
    for names, first in [("abcd", ("a", "add", "d")), ("abc", ("a", "remove", "c"))]:
        world = World(*names)
        tablet = grown(world)
        world.says("c", tablet, R.FAILED)
        world.beat()
        assert changes(world.decide()) == [first]
    world.reconfigure(tablet, "AB", 5)
    world.decide()
    orders = world.decide()
    assert [a.server.name for a in orders if isinstance(a, Delete)] == ["c"]
    assert changes(orders) == [], "not before its replica is a tombstone"
    world.says("c", tablet, R.TOMBSTONE)
    world.beat()
    assert changes(world.decide()) == [("a", "add", "c")]


def test_replacements_of_one_lost_server_are_spread() -> None:
    """Each choice counts for the next one of the same look."""
    world = World("a", "b", "c")
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=4))
    world.decide()
    for tablet in tablets:
        world.form(tablet)
    world.held |= {"d": {}, "e": {}}
    world.beat()
    world.silent["c"] = None
    world.wait(40)
    assert sorted(to for _, _, to in changes(world.decide())) == ["d", "d", "e", "e"]


def test_a_voter_without_rows_does_not_count_as_healthy() -> None:
    """It answers its leader, but has only a tombstone, or nothing: nobody is evicted for it."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.reconfigure(tablet, "ABCD", 5)
    world.says("d", tablet, R.TOMBSTONE)
    world.beat()
    world.decide()
    assert changes(world.decide()) == [("a", "remove", "d")]
    world.says("b", tablet, R.COPYING)
    world.beat()
    assert changes(world.decide()) == [], "two of four are in doubt"
    assert not any(isinstance(a, Transfer) for a in world.decide())


def test_segments_tablets_go_on_as_before_beside_groups() -> None:
    """One look serves both kinds; loads count both."""
    world = World("a", "b", "c")
    grown(world)
    (plain,) = world.create(segments(), name="s")
    assert plain.owner in ("a", "b", "c")
    assert not plain.is_group
    loads = tserver_loads(world.catalog, world.liveness.live(ServerKind.TSERVER, world.now))
    assert sorted(load.tablets for load in loads) == [1, 1, 2]
    table: TableRecord | None = world.catalog.find("s")
    assert table is not None
    assert [type(a).__name__ for a in world.decide()] == ["Open"]


# ---- operators --------------------------------------------------------------------------------


def mark(world: World, name: str, **wanted: bool) -> None:
    world.put(draft_mark(world.catalog, world.liveness, MarkServer(name, **wanted), world.now))


def test_a_retiring_server_is_replaced_before_it_is_left_and_gets_nothing_new() -> None:
    """Also if it leads: it hands on once its replacement votes; nothing of it is left then."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    mark(world, "a", retiring=True)
    assert changes(world.decide()) == [("a", "add", "d")]
    world.reconfigure(tablet, "ABCD", 5)
    world.decide()
    (transfer,) = world.decide()
    assert isinstance(transfer, Transfer)
    assert (transfer.leader.name, transfer.order.target) == ("a", "b")
    world.reconfigure(tablet, "BACD", 6)
    world.decide()
    assert changes(world.decide()) == [("b", "remove", "a")]
    assert progress_of(world.catalog, world.liveness, "a", world.now).replicas == 1
    world.reconfigure(tablet, "BCD", 7)
    world.decide()
    assert progress_of(world.catalog, world.liveness, "a", world.now).replicas == 0
    world.create(replicas(3), name="u")
    assert world.catalog.count_replicas(ServerUuid("a")) == 0
    mark(world, "a", retiring=False)
    assert draft_mark(world.catalog, world.liveness, MarkServer("a"), world.now) is None
    copy = Catalog()
    copy.restore(world.catalog.snapshot())
    assert copy.marks == world.catalog.marks


def test_a_server_in_maintenance_leads_nothing_and_is_not_replaced_while_away() -> None:
    """Until the mark is taken back: then its absence counts as that of any other."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    mark(world, "a", maintenance=True)
    (transfer,) = world.decide()
    assert isinstance(transfer, Transfer)
    world.reconfigure(tablet, "BAC", 5)
    world.decide()
    assert world.decide() == []
    world.silent["a"] = None
    world.wait(300)
    assert changes(world.decide()) == []
    mark(world, "a", maintenance=False)
    assert changes(world.decide()) == [("b", "add", "d")]


def test_a_server_that_comes_back_from_maintenance_without_its_disk_is_replaced() -> None:
    """It is another one, of the same name; nobody needs to wait for the one that it was."""
    world = World("a", "b", "c")
    tablet = grown(world)
    world.reconfigure(tablet, "BAC", 5)
    world.decide()
    mark(world, "a", maintenance=True)
    world.silent["a"] = None
    world.wait(300)
    assert changes(world.decide()) == []
    world.held["a~2"] = {}
    world.wait(5)
    assert changes(world.decide()) == [("b", "add", "a~2")]


def test_a_replica_is_moved_to_the_server_named_and_the_move_ends() -> None:
    """Target first, then the source goes; orders repeated change nothing, and may be given up."""
    world = World("a", "b", "c", "d", "e")
    tablet = grown(world)
    order = MoveReplica(tablet.tablet_id, "c", "e")

    def draft(order: MoveReplica) -> CatalogBatch | None:
        return draft_move(world.catalog, world.liveness, order, world.now)

    world.put(draft(order))
    assert draft(order) is None
    with pytest.raises(InvalidArgument, match="another replica"):
        draft(MoveReplica(tablet.tablet_id, "b", "d"))
    assert changes(world.decide()) == [("a", "add", "e")]
    with pytest.raises(InvalidArgument, match="moves from b"):
        draft(MoveReplica(tablet.tablet_id, "b", ""))
    world.put(draft(MoveReplica(tablet.tablet_id, "c", "")))
    assert world.decide() == []
    assert draft(MoveReplica(tablet.tablet_id, "c", "")) is None, "it is given up already"
    assert draft(MoveReplica(tablet.tablet_id, "", "")) is None
    world.put(draft(order))
    world.put(draft(MoveReplica(tablet.tablet_id, "", "")))
    assert world.catalog.tablets[tablet.tablet_id].move is None
    world.put(draft(order))
    world.reconfigure(tablet, "ABCe", 5)
    world.decide()
    world.put(draft(MoveReplica(tablet.tablet_id, "", "")))
    assert changes(world.decide()) == [("a", "remove", "e")], "what was copied is let go of"
    world.reconfigure(tablet, "ABC", 6)
    world.decide()
    world.put(draft(order))
    world.reconfigure(tablet, "ABCE", 7)
    world.decide()
    assert changes(world.decide()) == [("a", "remove", "c")]
    world.reconfigure(tablet, "ABE", 8)
    world.decide()
    assert world.catalog.tablets[tablet.tablet_id].move is None
    assert draft(order) is None, "it was done"
    for source, target, why in [
        ("c", "d", "c has no replica"),
        ("a", "b", "b has a replica"),
        ("a", "x", "no tserver"),
    ]:
        with pytest.raises(InvalidArgument, match=why):
            draft(MoveReplica(tablet.tablet_id, source, target))


def test_a_replica_that_stays_in_doubt_on_a_live_server_is_replaced_in_the_end() -> None:
    """Ten times as long as for a server that is away, counted anew with each sign of progress."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.says("c", tablet, R.COPYING, copied_bytes=1)
    world.beat()
    for _ in range(290):
        world.wait(1)
        assert changes(world.decide()) == []
    world.says("c", tablet, R.COPYING, copied_bytes=2)
    for _ in range(290):
        world.wait(1)
        assert changes(world.decide()) == []
    for _ in range(20):
        world.wait(1)
        world.decide()
    assert changes(world.decide()) == [("a", "add", "d")]


def test_a_calm_cluster_is_made_even_one_step_at_a_time() -> None:
    """Nothing before it was calm for long enough; a move is finished before the next begins."""
    world = World("a", "b", "c")
    tablets = world.create(replicas(3), partitioning=hash_partition("id", buckets=4))
    world.decide()
    tablets = [world.form(tablet) for tablet in tablets]
    world.held["d"] = {}
    world.beat()
    assert world.decide() == []
    world.rebalance_after_s = 20.0
    assert world.decide() == []
    world.wait(19)
    assert world.decide() == []
    world.wait(1)
    (update,) = world.decide()
    assert isinstance(update, UpdateGroups)
    (moved,) = update.tablets
    assert moved.move is not None
    assert moved.move.target == "d"
    assert changes(world.decide()) == [("a", "add", "d")]
    world.reconfigure(moved, "ABCD", 5)
    world.decide()
    assert changes(world.decide()) == [("a", "remove", moved.move.source)]
    left = "ABCD".replace(moved.move.source.upper(), "")
    world.reconfigure(moved, left, 6)
    world.decide()
    assert world.catalog.tablets[moved.tablet_id].move is None
    assert [a for a in world.decide() if not isinstance(a, Delete)] == []
    assert not any(t.move for t in world.catalog.groups())


def test_a_leader_with_too_much_load_hands_one_over_and_never_to_a_marked_server() -> None:
    """As far as loads are known, and only while nothing is to be healed or left; a tablet whose
    new leader cannot say yet how busy it is stops all of it."""
    world = World("a", "b", "c")
    tablets = [world.form(world.create(replicas(3), name)[0]) for name in "tuvw"]
    busy = [tablet for tablet in tablets if tablet.configuration is not None][:2]
    peers = tuple(PeerHealth(ServerUuid(name), True, 1) for name in "bc")

    def lead(load_per_s: float) -> None:
        for tablet in tablets:
            more = load_per_s if tablet in busy else 0.0
            for name in "abc":
                leads = name == "a"
                world.says(
                    name,
                    tablet,
                    R.LEADER if leads else R.FOLLOWER,
                    leader=ServerUuid("a"),
                    peers=peers if leads else (),
                    load_per_s=more if leads else 0.0,
                )
        world.beat()
        world.decide()

    def transfers() -> list[tuple[TabletId, ServerUuid]]:
        world.wait(20)
        found = [a for a in world.decide() if isinstance(a, Transfer)]
        return [(a.order.tablet_id, a.order.target) for a in found if a.order.target]

    lead(LOAD_UNKNOWN)
    world.rebalance_after_s = 20.0
    world.decide()
    assert transfers() == []
    lead(500.0)
    world.decide()
    ((first, target),) = transfers()
    assert first in [tablet.tablet_id for tablet in busy]
    assert target in ("b", "c")
    order = MarkServer("b", maintenance=True)
    world.put(draft_mark(world.catalog, world.liveness, order, world.now))
    world.decide()
    assert transfers() == []
    order = MarkServer("b", maintenance=False)
    world.put(draft_mark(world.catalog, world.liveness, order, world.now))
    world.decide()
    ((second, _),) = transfers()
    assert second != first, "the one that was told to go stays alone for a while"


def test_a_tserver_is_named_by_its_uuid_where_its_name_is_not_enough() -> None:
    """A server with a new disk has the name of its old self; whoever lives is meant."""
    world = World("a", "b")
    twin = msgspec.structs.replace(server("a"), uuid=ServerUuid("a2"))
    world.liveness.heartbeat(Heartbeat(twin, world.now), world.now)
    with pytest.raises(InvalidArgument, match="2 tservers: name one by its UUID: a, a2"):
        find_tserver(world.catalog, world.liveness, "a", world.now)
    assert find_tserver(world.catalog, world.liveness, "a2", world.now).uuid == "a2"
    world.silent["a"] = None
    world.wait(1.5)
    world.liveness.heartbeat(Heartbeat(twin, world.now), world.now)
    world.wait(1)
    assert find_tserver(world.catalog, world.liveness, "a", world.now).uuid == "a2"


def test_operators_say_whether_replicas_are_spread_and_a_new_master_knows() -> None:
    """Their word goes before the settings, is compared and set, and is part of the snapshot."""
    world = World("a")
    catalog = world.catalog
    assert rebalancing_of(catalog, 20.0).after_s == 20.0
    assert draft_rebalancing(catalog, SetRebalancing()) is None
    world.put(draft_rebalancing(catalog, SetRebalancing(0.0)))
    assert rebalancing_of(catalog, 20.0).after_s == 0.0
    assert draft_rebalancing(catalog, SetRebalancing(0.0)) is None
    on = draft_rebalancing(catalog, SetRebalancing(7.0))
    world.put(on)
    assert on is not None
    assert isinstance(catalog.apply(1, 1, on.encode()), Conflict), "it follows another word"
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(InvalidArgument, match="number of seconds"):
            draft_rebalancing(catalog, SetRebalancing(wrong))
    other = Catalog()
    other.restore(catalog.snapshot())
    assert rebalancing_of(other, 20.0).after_s == 7.0


def test_the_status_tells_what_each_replica_knows_of_its_group() -> None:
    """`stelae check` compares them: configurations, leaders, what is wanted, marks of servers."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    world.put(draft_mark(world.catalog, world.liveness, MarkServer("b", retiring=True), world.now))
    move = MoveReplica(tablet.tablet_id, "c", "d")
    world.put(draft_move(world.catalog, world.liveness, move, world.now))
    inputs = StatusInputs(
        "c", 0.0, world.now, 1, (), world.catalog, world.liveness, Recoveries(), {}
    )
    document: dict[str, Any] = msgspec.json.decode(status_document(inputs))
    marked = [s["id"] for s in document["servers"] if s["retiring"] or s["maintenance"]]
    assert marked == ["b"]
    (shown,) = document["tablets"]
    assert (shown["replicas_wanted"], shown["move"]) == (3, ["c", "d"])
    assert tablet.configuration is not None
    leader = tablet.configuration.voters[0]
    for replica in shown["replicas"]:
        assert replica["leader"] == leader
        assert replica["configuration"] == {
            "op_id": [0, 0],
            "voters": list(tablet.configuration.voters),
            "non_voters": [],
        }
