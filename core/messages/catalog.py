"""Messages of clients to masters: operations on tables, look-ups, lists, status.

Reads take ``max_staleness_s``: negative, the leader answers, linearizably; otherwise any master
may, whose state is provably no older (`stelae.actors.raft.staleness`), or it refuses with
`TooStale`.
"""

from __future__ import annotations

from stelae.core.ids import Address, RequestId, ServerUuid, TableId, TabletId
from stelae.core.records.records import TableRecord, TabletRecord
from stelae.core.rpc import ANY_MASTER, Body, Empty, Method
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

LINEARIZABLE = -1.0
"""``max_staleness_s`` of a read that must see everything acknowledged before it."""


class CreateTable(Body, frozen=True):
    """Create a table; exactly once per request id. Followers answer `NotLeader`."""

    request: RequestId
    name: str
    schema: TableSchema
    partitioning: Partitioning
    durability: Durability
    indexes: tuple[str, ...] = ()
    """Columns that get an index each."""


class TableReply(Body, frozen=True):
    table: TableRecord


class DeleteTable(Body, frozen=True):
    request: RequestId
    name: str
    if_edition: str = ""
    """Only if it is the table of this edition (`TableRecord.edition`); empty: whichever."""


class GetTable(Body, frozen=True):
    """Look a table up, with where its tablets are."""

    name: str
    table_id: TableId = TableId("")
    """If given: look for the table of this id, whatever its name is by now."""
    max_staleness_s: float = LINEARIZABLE


class ListTables(Body, frozen=True):
    """All tables that are not deleted."""

    max_staleness_s: float = LINEARIZABLE


class GetStatus(Body, frozen=True):
    """The status document."""

    max_staleness_s: float = LINEARIZABLE


class GetTabletLocations(Body, frozen=True):
    """Where tablets are, by id; those deleted or replaced are told of too (`problem` says so)."""

    tablets: tuple[TabletId, ...]
    max_staleness_s: float = LINEARIZABLE


class IsCreateDone(Body, frozen=True):
    """Whether every tablet of a table has been served."""

    name: str
    max_staleness_s: float = LINEARIZABLE


class ReplicaLocation(Body, frozen=True):
    """One replica of a tablet; ``address`` is empty if its server is not live."""

    uuid: ServerUuid
    address: Address
    voter: bool
    is_leader: bool = False


class TabletLocation(Body, frozen=True):
    """Where a tablet is served; ``address`` is empty while its state is not RUNNING.

    Of one with ``replicas(n)`` it is that of the leader, as far as is known; any of ``replicas``
    tells who leads.
    """

    tablet: TabletRecord
    address: Address
    problem: str = ""
    """Why it is offline, if it is: the missing segments, or the servers it waits for."""
    replicas: tuple[ReplicaLocation, ...] = ()


class TableLocations(Body, frozen=True):
    table: TableRecord
    tablets: tuple[TabletLocation, ...]


class TabletLocations(Body, frozen=True):
    """In the order asked for."""

    tablets: tuple[TabletLocation, ...]


class CreateProgress(Body, frozen=True):
    """How far the creation of a table is."""

    table_id: TableId
    done: bool
    waiting: int = 0
    """Tablets that were never served yet."""
    problem: str = ""
    """What one of them waits for."""


class TableList(Body, frozen=True):
    tables: tuple[TableRecord, ...]


class StatusReply(Body, frozen=True):
    """The status document of design §12, as JSON bytes."""

    document: bytes


CREATE_TABLE = Method("master.create_table", CreateTable, TableReply, ANY_MASTER)
DELETE_TABLE = Method("master.delete_table", DeleteTable, Empty, ANY_MASTER)
GET_TABLE = Method("master.get_table", GetTable, TableLocations, ANY_MASTER)
LIST_TABLES = Method("master.list_tables", ListTables, TableList, ANY_MASTER)
STATUS = Method("master.status", GetStatus, StatusReply, ANY_MASTER)
GET_TABLET_LOCATIONS = Method(
    "master.get_tablet_locations", GetTabletLocations, TabletLocations, ANY_MASTER
)
IS_CREATE_DONE = Method("master.is_create_done", IsCreateDone, CreateProgress, ANY_MASTER)
