"""What a database does with a table that is called by its name, whichever way it is reached."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from stelae.client.finds.index_calls import Progress
from stelae.client.input.given import check_durability
from stelae.client.one_process import OneProcess
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.table.alter import NewColumns
from stelae.client.table.api import FILL_TIMEOUT_S, TableApi
from stelae.core.errors import InvalidArgument
from stelae.core.messages.catalog import TableLocations
from stelae.core.schema.durability import Durability
from stelae.core.schema.own_tables import is_own_table
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import check_table_name

H = TypeVar("H", bound=TableApi)


def check_new_table(
    name: str, schema: pa.Schema, durability: Durability, partition: Partitioning | None
) -> None:
    """Raise `InvalidArgument` for what could never be a table."""
    if not is_own_table(name):  # of Stelae's own, masters check the columns
        check_table_name(name)
    check_durability(durability)
    if partition is not None and not isinstance(partition, Partitioning):
        raise InvalidArgument(
            f"partition={partition!r}: give hash_partition('id', buckets=4), or range_partition "
            "with its bounds; without one the table has a single tablet"
        )
    if not isinstance(schema, pa.Schema):
        raise InvalidArgument(f"schema is a {type(schema).__name__}; give a pyarrow.Schema")


class DatabaseApi(OneProcess, ABC, Generic[H]):
    """Each of its calls opens the table, and makes that table's call of the same name."""

    @abstractmethod
    async def table(self, name: str, *, max_staleness: float | None = None) -> H:
        """A handle on an existing table. Raises `TableNotFound`.

        With ``max_staleness`` (seconds) any master may answer whose state is no older; so it works
        while the masters have no leader. Where tablets are is then a hint, as it always is.
        """

    @abstractmethod
    def locations_of(self, table: H) -> TableLocations:
        """What `handle` needs: the table, and where its tablets are, as far as is known here."""

    @abstractmethod
    def handle(self, locations: TableLocations) -> H:
        """A handle on a table that was found elsewhere. Asks nobody, and may run in any thread."""

    async def alter_table(
        self,
        name: str,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        if_edition: str = "",
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> H:
        """Alter a table; see `TableApi.alter`. Raises `TableNotFound`."""
        table = await self.table(name)
        await table.alter(
            add_columns=add_columns,
            drop_columns=drop_columns,
            rename_columns=rename_columns,
            defaults=defaults,
            rename_to=rename_to,
            if_edition=if_edition,
            wait=wait,
            timeout=timeout,
        )
        return table

    async def create_index(
        self,
        name: str,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = FILL_TIMEOUT_S,
    ) -> None:
        """Make an index of a column; see `TableApi.create_index`. Raises `TableNotFound`."""
        table = await self.table(name)
        await table.create_index(
            column, unique=unique, wait=wait, progress=progress, timeout=timeout
        )

    async def drop_index(
        self, name: str, column: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Drop the index of a column. Raises `TableNotFound`, `IndexNotFound`."""
        table = await self.table(name)
        await table.drop_index(column, timeout=timeout)

    async def rename_table(
        self, name: str, new_name: str, *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> H:
        """Rename a table. Raises `TableNotFound`, `TableExists`."""
        table = await self.table(name)
        await table.rename(new_name, timeout=timeout)
        return table
