"""What users give to alter a table, as the change that travels; and waiting until it is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from stelae.client.input.given import check_durability
from stelae.client.routing.masters import MastersClient
from stelae.client.routing.session import Session
from stelae.core.backoff import Backoff
from stelae.core.errors import (
    ColumnNotFound,
    InvalidArgument,
    NotDoneYet,
    OutcomeUnknown,
    RetryLater,
)
from stelae.core.messages.alter import ALTER_TABLE, IS_ALTER_DONE, AlterTable, IsAlterDone
from stelae.core.records.records import TableRecord
from stelae.core.runtime import Runtime
from stelae.core.schema.alter import SchemaChange, schema_change
from stelae.core.schema.durability import Durability
from stelae.core.schema.schema import check_table_name, is_plain_type, normal_type
from stelae.core.schema.values import to_wire

POLL_S = 0.02
LONGEST_POLL_S = 0.25
POLL_TIMEOUT_S = 5.0

NewColumns: TypeAlias = pa.Schema | pa.Field | Sequence[pa.Field] | Mapping[str, pa.DataType]
"""Columns to add: Arrow fields, or types by name (nullable)."""


@dataclass(frozen=True, slots=True)
class AskedAlter:
    """What a user asks to have changed; whether it can be is the masters' to say."""

    add_columns: NewColumns
    drop_columns: str | Sequence[str]
    rename_columns: Mapping[str, str] | None
    defaults: Mapping[str, Any] | None
    rename_to: str
    durability: Durability | None

    def change(self, table: TableRecord) -> SchemaChange:
        """The change of columns.

        Raises:
            InvalidArgument, ColumnNotFound: what is given is no change of a table at all.
        """
        if self.rename_to:
            check_table_name(self.rename_to)
        if self.durability is not None:
            check_durability(self.durability)
        added, dropped = _fields(self.add_columns), self.drop_columns
        drop = (dropped,) if isinstance(dropped, str) else tuple(dropped)
        rename = dict(self.rename_columns or {})
        if not all(isinstance(name, str) for name in (*drop, *rename, *rename.values())):
            raise InvalidArgument("columns to drop and to rename are given by their names")
        fields = table.schema.arrow
        kinds = {rename.get(f.name, f.name): f.type for f in fields if f.name not in drop}
        kinds |= {field.name: normal_type(field.type) for field in added}
        values = {}
        for name, value in (self.defaults or {}).items():
            if name not in kinds:
                raise ColumnNotFound(str(name), table.name, ", ".join(kinds))
            values[name] = default_value(value, kinds[name], f"the default of column {name!r}")
        return schema_change(added, drop, rename, values)


def _fields(columns: NewColumns) -> list[pa.Field]:
    if isinstance(columns, pa.Field):
        return [columns]
    if isinstance(columns, Mapping):
        try:
            return [pa.field(name, kind) for name, kind in columns.items()]
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise InvalidArgument(f"columns to add are Arrow types by name: {error}") from None
    found = list(columns)
    if not all(isinstance(field, pa.Field) for field in found):
        raise InvalidArgument("columns to add are pyarrow fields, or types by name")
    return found


def default_value(value: Any, kind: pa.DataType, what: str) -> pa.Scalar:
    """A default as the Arrow value of its column's type; None: no default.

    Raises:
        InvalidArgument: it does not fit the type.
    """
    if isinstance(value, pa.Scalar):
        value = value.as_py() if value.type != kind else value
    if isinstance(value, pa.Scalar):
        return value
    if is_plain_type(kind):
        value = to_wire(value, kind, what)
    try:
        return pa.scalar(value, type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{what}: {error}") from None


class Alterations:
    """Alters tables at the masters, each once."""

    def __init__(self, runtime: Runtime, masters: MastersClient, session: Session) -> None:
        self._runtime = runtime
        self._masters = masters
        self._session = session

    async def alter(
        self,
        table: TableRecord,
        change: SchemaChange,
        new_name: str,
        durability: Durability | None,
        if_edition: str,
        timeout_s: float,
    ) -> TableRecord:
        """Have it in the catalog; the record as it is then.

        Raises:
            Rejected: it cannot be; nothing was changed.
            OutcomeUnknown, RetryLater: as `MastersClient.call`.
        """
        with self._session.request() as request:
            order = AlterTable(
                request, table.table_id, table.name, new_name, change, durability, if_edition
            )
            reply = await self._masters.call(ALTER_TABLE, order, timeout_s=timeout_s)
        return reply.table

    async def is_done(self, table: TableRecord, timeout_s: float) -> bool:
        """Whether every tablet follows. Raises `TableNotFound`."""
        order = IsAlterDone(table.table_id, table.name)
        reply = await self._masters.call(IS_ALTER_DONE, order, timeout_s=timeout_s)
        return reply.done

    async def wait_done(self, table: TableRecord, timeout_s: float) -> None:
        """Wait until `is_done`.

        Raises:
            NotDoneYet: the table is altered, but some tablet does not follow yet.
        """
        clock = self._runtime.clock
        deadline = clock.monotonic() + timeout_s
        order = IsAlterDone(table.table_id, table.name)
        backoff = Backoff(self._runtime.rng, POLL_S, LONGEST_POLL_S)
        waits_for = "the masters"
        while (left_s := deadline - clock.monotonic()) > 0:
            try:
                reply = await self._masters.call(
                    IS_ALTER_DONE, order, timeout_s=min(left_s, POLL_TIMEOUT_S)
                )
            except (RetryLater, OutcomeUnknown) as error:
                waits_for = str(error)  # a failover may take longer than one look
            else:
                if reply.done:
                    return
                waits_for = reply.problem or f"tablets {', '.join(reply.waiting)} to follow"
            await backoff.pause(clock, deadline)
        raise NotDoneYet(f"the alter of {table.name!r}", waits_for)
