"""Tablets with ``replicas(n)`` at work: what the leader master makes and tells of reports."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.coordinator.catalog.catalog import Catalog, CatalogBatch
from stelae.coordinator.ddl.alter import Alter, FinishAlter, alter_actions
from stelae.coordinator.ddl.operator_orders import draft_move
from stelae.coordinator.ddl.tables import draft_delete
from stelae.coordinator.decide import GiveUp
from stelae.coordinator.groups.group import location_of
from stelae.coordinator.groups.tserver_loads import tserver_loads
from stelae.coordinator.liveness.standing import standing_of
from stelae.coordinator.status.document import StatusInputs, status_document
from stelae.coordinator.status.recoveries import Recoveries
from stelae.core.ids import ClientId, OpId, RequestId, ServerUuid
from stelae.core.messages.operators import MoveReplica
from stelae.core.messages.reports import is_news
from stelae.core.messages.servers import PeerHealth
from stelae.core.records.records import ServerKind, TableRecord, TableState, TabletState
from stelae.core.schema.durability import replicas, segments
from stelae.core.schema.partition import hash_partition
from tests.unit.coordinator.groups.group_world import R, World, grown, mark

# ---- at rest ------------------------------------------------------------------------------------


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
    assert copy.count_replicas(ServerUuid("b")) == 1
    assert (copy.live_count, copy.owners()) == (1, [])
    world.put(draft_delete(world.catalog, RequestId(ClientId("c"), 9, 9), tablet.table_id, "t"))
    assert (world.catalog.live_count, list(world.catalog.groups())) == (0, [])
    assert world.catalog.count_replicas(ServerUuid("b")) == 0


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


# ---- locations and status -----------------------------------------------------------------------


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
    assert shown["reported"]
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


def test_the_status_tells_what_each_replica_knows_of_its_group() -> None:
    """`stelae check` compares them: configurations, leaders, what is wanted, marks of servers."""
    world = World("a", "b", "c", "d")
    tablet = grown(world)
    mark(world, "b", retiring=True)
    move = MoveReplica(world.request(), tablet.tablet_id, "c", "d")
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


# ---- configurations and alters ------------------------------------------------------------------


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
