"""Messages of AlterTable and IsAlterDone: clients to masters, and masters to tservers."""

from __future__ import annotations

from stelae.core.ids import RequestId, TableId, TabletId
from stelae.core.messages.catalog import TableReply
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TableRecord
from stelae.core.rpc import ANY_MASTER, Body, Method
from stelae.core.schema.alter import SchemaChange
from stelae.core.schema.durability import Durability


class AlterTable(Body, frozen=True):
    """Change a table's name, columns, or durability, in one catalog entry; once per request.

    Answered when the change is in the catalog; tablets follow (`IS_ALTER_DONE`). The table is
    named by id, because its name may be what changes; ``name`` is what the caller calls it.
    """

    request: RequestId
    table_id: TableId
    name: str
    new_name: str = ""
    """Empty: the name stays."""
    change: SchemaChange = SchemaChange()
    durability: Durability | None = None
    """None: it stays. One that the table is being altered from: that is taken back."""
    if_edition: str = ""
    """Only if it is the table of this edition (`TableRecord.edition`); empty: whichever."""


class IsAlterDone(Body, frozen=True):
    """Whether every tablet of a table has the newest schema, and the durability that was asked
    for by an alter. Linearizable: the leader answers."""

    table_id: TableId
    name: str


class IsAlterDoneReply(Body, frozen=True):
    done: bool
    schema_version: int
    waiting: tuple[TabletId, ...] = ()
    """Some of the tablets of which that is not known yet."""
    problem: str = ""
    """What keeps one of them from it, if something has to be done about it."""


class AlterTablet(Body, frozen=True):
    """The catalog has a newer record of the table of this tablet.

    Idempotent, and harmless whoever sends it: the record is committed, and an older one than the
    receiver's changes nothing. Answered with the tablet's report once it is taken over.
    """

    tablet_id: TabletId
    term: int
    table: TableRecord


ALTER_TABLE = Method("master.alter_table", AlterTable, TableReply, ANY_MASTER)
IS_ALTER_DONE = Method("master.is_alter_done", IsAlterDone, IsAlterDoneReply, ANY_MASTER)
ALTER_TABLET = Method("tserver.alter_tablet", AlterTablet, TabletReport)
