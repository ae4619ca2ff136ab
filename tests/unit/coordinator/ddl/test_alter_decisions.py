"""`stelae.coordinator.ddl.alter`: the entry of an alter, and what the leader sees to
afterwards."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.coordinator.ddl.alter import (
    Alter,
    FinishAlter,
    alter_actions,
    by_id,
    draft_alter,
    draft_finish,
    waiting_for,
)
from stelae.coordinator.liveness.liveness import Liveness, Run, run_of
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument, TableExists, TableNotFound
from stelae.core.ids import Address, ClientId, OpId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.alter import AlterTable
from stelae.core.messages.servers import (
    GroupReport,
    Heartbeat,
    ReplicaRole,
    TabletProgress,
    TabletReport,
)
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.replication import Configuration, Peer
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.alter import SchemaChange, schema_change
from stelae.core.schema.durability import Replicas, replicas, segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

SCHEMA = TableSchema.of(pa.schema([("id", pa.int64()), ("a", pa.string())]), ["id"])
ADD = schema_change(add=[pa.field("c", pa.int8())])
T = TableId("T")
P = TabletProgress


def order(
    sequence: int = 1, change: SchemaChange = ADD, new_name: str = "", table_id: TableId = T
) -> AlterTable:
    return AlterTable(RequestId(ClientId("c"), sequence, 0), table_id, "t", new_name, change)


class World:
    """A catalog with table t of two tablets, owned by s1 and s2; and what these report."""

    def __init__(self) -> None:
        self.catalog = Catalog()
        self.liveness = Liveness(Settings())
        self.now = 100.0
        for table_id, name in ((T, "t"), (TableId("U"), "u")):
            table = TableRecord(
                table_id, name, SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING
            )
            tablets = (self.tablet("a", 0, "s1"), self.tablet("b", 1, "s2")) if name == "t" else ()
            self.put(CatalogBatch((table,), tablets))
        self.liveness.lead(self.now)

    @staticmethod
    def tablet(tablet_id: str, number: int, owner: str) -> TabletRecord:
        state = TabletState.RUNNING
        return TabletRecord(TabletId(tablet_id), T, number, state, 1, ServerUuid(owner), 1)

    def put(self, batch: CatalogBatch) -> object:
        return self.catalog.apply(1, 1, batch.encode())

    def beat(self, name: str, tablet_id: str, version: int, **changes: object) -> None:
        report = TabletReport(TabletId(tablet_id), 1, P.SERVING, schema_version=version)
        report = msgspec.structs.replace(report, **changes)
        server = ServerInfo(
            ServerKind.TSERVER,
            name,
            ServerUuid(name),
            1,
            Address(f"{name}:1"),
            ProcessIdentity("n", 1, 0),
        )
        self.liveness.heartbeat(Heartbeat(server, self.now, (report,)), self.now)

    @property
    def live(self) -> dict[Run, object]:
        return {run_of(s): s for s in self.liveness.live(ServerKind.TSERVER, self.now)}

    def actions(self) -> list[str]:
        """What is to be done, in short; finished alters are carried out."""
        found = []
        for action in alter_actions(self.catalog, self.live):  # type: ignore[arg-type]
            if isinstance(action, Alter):
                found.append(f"tell {action.owner.name} of {action.tablet.tablet_id}")
            else:
                found.append("finish")
                batch = draft_finish(self.catalog, action)
                assert batch is not None
                self.put(batch)
        return found

    @property
    def table(self) -> TableRecord:
        return self.catalog.tables[T]


def test_an_alter_is_done_once_every_owner_reports_it() -> None:
    """Golden conversation: owners that are behind are told, at every look; then RUNNING again."""
    world = World()
    world.beat("s1", "a", 1)
    world.beat("s2", "b", 1)
    assert world.actions() == []
    world.put(draft_alter(world.catalog, order()))
    assert (world.table.state, world.table.schema.version) == (TableState.ALTERING, 2)
    assert [s.version for s in world.table.history] == [1]
    for _ in range(2):
        assert world.actions() == ["tell s1 of a", "tell s2 of b"]
    world.beat("s1", "a", 2)
    assert world.actions() == ["tell s2 of b"]
    assert waiting_for(world.catalog, world.table, world.live) == ("b",)  # type: ignore[arg-type]
    world.beat("s2", "b", 2)
    assert world.actions() == ["finish"]
    assert world.table.state is TableState.RUNNING
    assert world.actions() == []
    assert waiting_for(world.catalog, world.table, world.live) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [{"term": 2}, {"progress": P.FAILED}],
)
def test_only_the_owner_in_the_present_term_counts(changes: dict[str, object]) -> None:
    """What another term's owner or a failed tablet says of its schema ends no alter."""
    world = World()
    world.put(draft_alter(world.catalog, order()))
    world.beat("s1", "a", 2)
    world.beat("s2", "b", 2, **changes)
    assert world.actions() == []
    assert world.table.state is TableState.ALTERING


def test_a_tablet_being_opened_is_told_as_well() -> None:
    """Its order to open may have been sent before the alter."""
    world = World()
    world.put(draft_alter(world.catalog, order()))
    world.beat("s1", "a", 2)
    world.beat("s2", "b", 1, progress=P.OPENING)
    assert world.actions() == ["tell s2 of b"]


def test_a_silent_owner_keeps_the_table_altering() -> None:
    """Not heard, or dead: its tablet may come back with the older schema."""
    world = World()
    world.put(draft_alter(world.catalog, order()))
    world.beat("s1", "a", 2)
    assert world.actions() == []
    assert world.table.state is TableState.ALTERING


def test_a_second_alter_follows_the_first_before_that_is_done() -> None:
    """Owners are told of the newest version alone; the first one's end is overtaken."""
    world = World()
    world.put(draft_alter(world.catalog, order(1)))
    world.beat("s1", "a", 2)
    world.beat("s2", "b", 2)
    finish = next(iter(alter_actions(world.catalog, world.live)))  # type: ignore[arg-type]
    assert isinstance(finish, FinishAlter)
    world.put(draft_alter(world.catalog, order(2, schema_change(drop=["a"]))))
    assert draft_finish(world.catalog, finish) is None
    assert isinstance(world.put(CatalogBatch((finish.table,))), Conflict)
    assert world.table.schema.version == 3
    assert world.actions() == ["tell s1 of a", "tell s2 of b"]


def test_a_rename_is_done_at_once_and_owners_hear_of_it() -> None:
    """The old name is free in the same entry; the table is never ALTERING for it."""
    world = World()
    world.beat("s1", "a", 1)
    world.beat("s2", "b", 1)
    world.put(draft_alter(world.catalog, order(change=SchemaChange(), new_name="v")))
    assert (world.table.state, world.table.schema.version) == (TableState.RUNNING, 1)
    assert world.catalog.find("t") is None
    found = world.catalog.find("v")
    assert found is world.table
    assert world.actions() == ["tell s1 of a", "tell s2 of b"]
    world.beat("s1", "a", 1, renames=1)
    world.beat("s2", "b", 1, renames=1)
    assert world.actions() == []


def test_what_cannot_be_altered_is_refused_and_drafts_nothing() -> None:
    """Unknown and deleted tables, names that are taken or kept, changes of nothing."""
    world = World()
    before = world.catalog.snapshot()
    with pytest.raises(TableNotFound):
        draft_alter(world.catalog, order(table_id=TableId("none")))
    with pytest.raises(TableExists):
        draft_alter(world.catalog, order(new_name="u"))
    with pytest.raises(InvalidArgument, match="has that name already"):
        draft_alter(world.catalog, order(new_name="t"))
    with pytest.raises(InvalidArgument, match="nothing to alter"):
        draft_alter(world.catalog, order(change=SchemaChange()))
    assert world.catalog.snapshot() == before
    gone = msgspec.structs.replace(world.table, state=TableState.DELETED, generation=2)
    world.put(CatalogBatch((gone,)))
    with pytest.raises(TableNotFound):
        draft_alter(world.catalog, order())
    for table_id in (T, TableId("none")):
        with pytest.raises(TableNotFound):
            by_id(world.catalog, table_id, "t")


def test_a_name_is_not_taken_twice_whatever_a_draft_believed() -> None:
    """Two renames to one name that were drafted at the same time: the second changes nothing."""
    world = World()
    first = draft_alter(world.catalog, order(1, SchemaChange(), "v"))
    second = draft_alter(world.catalog, order(2, SchemaChange(), "v", TableId("U")))
    assert isinstance(world.put(first), Applied)
    assert isinstance(world.put(second), Conflict)
    assert [table.name for table in world.catalog.live_tables()] == ["u", "v"]


def test_a_snapshot_keeps_what_alters_are_under_way() -> None:
    """A master restored from a snapshot sees to them as the others do."""
    world = World()
    world.put(draft_alter(world.catalog, order(new_name="v")))
    other = Catalog()
    other.restore(world.catalog.snapshot())
    assert other.find("v") == world.table
    assert other.find("t") is None
    assert list(other.altered) == list(world.catalog.altered) == [T]
    world.catalog = other
    world.beat("s1", "a", 1)
    assert world.actions() == ["tell s1 of a"]
    gone = msgspec.structs.replace(world.table, state=TableState.DELETED, generation=3)
    world.put(CatalogBatch((gone,)))
    assert list(other.altered) == []


# ---- another number of replicas -----------------------------------------------------------------


def resize(durability: Any, sequence: int = 1, **changes: Any) -> AlterTable:
    nothing = order(sequence, SchemaChange())
    return msgspec.structs.replace(nothing, durability=durability, **changes)


class Resized(World):
    """The same with ``replicas(3)`` and one tablet, led by s1."""

    def __init__(self) -> None:
        super().__init__()
        table = msgspec.structs.replace(self.table, durability=replicas(3), generation=2)
        gone = [
            msgspec.structs.replace(t, state=TabletState.DELETED, generation=2)
            for t in self.catalog.tablets_of(T)
        ]
        self.put(CatalogBatch((table,), tuple(gone)))
        self.members("123")

    def members(self, voters: str, others: str = "") -> None:
        """What the catalog has of the tablet's members."""
        before = self.catalog.tablets.get(TabletId("g"))
        peers = [Peer(ServerUuid(f"s{n}"), Address(f"s{n}:1"), True) for n in voters]
        peers += [Peer(ServerUuid(f"s{n}"), Address(f"s{n}:1"), False) for n in others]
        generation = 1 if before is None else before.generation + 1
        record = TabletRecord(
            TabletId("g"), T, 2, TabletState.RUNNING, 0, ServerUuid(""), 0,
            configuration=Configuration(OpId(1, generation), tuple(peers)), generation=generation,
        )  # fmt: skip
        assert isinstance(self.put(CatalogBatch(tablets=(record,))), Applied)

    def lead(self) -> None:
        tablet = self.catalog.tablets[TabletId("g")]
        word = GroupReport(
            ReplicaRole.LEADER, OpId(1, 9), 9, ServerUuid("s1"), tablet.configuration
        )
        self.beat("s1", "g", self.table.schema.version, group=word)

    def steps(self) -> list[str]:
        self.lead()
        reporters = self.liveness.reporters(self.now).of
        found = []
        for action in alter_actions(self.catalog, self.live, reporters):  # type: ignore[arg-type]
            assert isinstance(action, FinishAlter), "the leader has the schema"
            batch = draft_finish(self.catalog, action)
            assert batch is not None
            self.put(batch)
            found.append("finish")
        return found

    def waiting(self) -> tuple[TabletId, ...]:
        reporters = self.liveness.reporters(self.now).of
        return waiting_for(self.catalog, self.table, self.live, reporters)  # type: ignore[arg-type]


def test_another_number_of_replicas_is_done_once_every_tablet_has_it() -> None:
    """Golden conversation: 3, 4, 5 voters and nobody else; and back to 3 before it was done."""
    world = Resized()
    world.put(draft_alter(world.catalog, resize(replicas(5))))
    assert (world.table.durability, world.table.state) == (replicas(5), TableState.ALTERING)
    assert world.table.schema.version == 1
    for voters, others in (("123", ""), ("123", "4"), ("1234", ""), ("12345", "6")):
        world.members(voters, others)
        assert world.steps() == []
        assert world.waiting() == (TabletId("g"),)
    world.members("12345")
    assert world.steps() == ["finish"]
    assert (world.table.state, world.table.resizing) == (TableState.RUNNING, False)
    world.put(draft_alter(world.catalog, resize(replicas(3), 2)))
    world.put(draft_alter(world.catalog, resize(replicas(5), 3)))
    assert world.table.durability == replicas(5)
    assert world.steps() == ["finish"]
    assert world.waiting() == ()


def test_an_alter_of_columns_does_not_wait_for_lost_replicas() -> None:
    """Only who asked for another number of them waits for as many."""
    world = Resized()
    world.members("12")
    world.put(draft_alter(world.catalog, order()))
    assert world.steps() == ["finish"]


def test_the_same_number_of_replicas_again_changes_nothing() -> None:
    """It is no error, and there is nothing to wait for."""
    world = Resized()
    world.put(draft_alter(world.catalog, resize(replicas(3))))
    assert (world.table.state, world.table.resizing) == (TableState.RUNNING, False)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Replicas(4), "odd number"),
        (Replicas(0), "odd number"),
        (Replicas(9), "odd number"),
    ],
)
def test_a_durability_that_cannot_be_is_refused(wanted: Any, text: str) -> None:
    """Even numbers; nothing changes."""
    world = Resized()
    with pytest.raises(InvalidArgument, match=text):
        draft_alter(world.catalog, resize(wanted))
