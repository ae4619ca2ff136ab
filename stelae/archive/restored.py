"""What backups, exports and restores need of a database and its tables: of `stelae.Database`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from stelae.client.aio import Loop
from stelae.client.table.table import AsyncTable
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.recovery.spark_link import ClusterLink


class RestoredTable(Protocol):
    """A table that is filled from an archive."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def indexes(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def _loop(self) -> Loop: ...

    @property
    def _table(self) -> AsyncTable: ...

    def load_batches(self, rows: Any, batch_bytes: int) -> Iterator[pa.Table]: ...

    def create_index(self, column: str) -> None: ...

    def rename(self, name: str) -> object: ...


class ArchivedDatabase(Protocol):
    """A database whose tables are backed up, or restored."""

    @property
    def link(self) -> ClusterLink | None: ...

    def tables(self) -> list[str]: ...

    def table(self, name: str) -> RestoredTable: ...

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str],
        partition: Partitioning | None,
        durability: Durability,
        indexes: Sequence[str] = (),
        timeout: float = ...,
    ) -> RestoredTable: ...

    def delete_table(self, name: str) -> None: ...
