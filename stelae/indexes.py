"""What users have of indexes: the part of `Table` and `Database` that finds rows by value.

Blocking, as all of `stelae.api`; ``table.aio`` has the same calls as coroutines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from stelae.aio import Loop
from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.blocking import BlockingTable
from stelae.client.database import AsyncDatabase
from stelae.client.find_query import NOT_GIVEN, IfFilling
from stelae.client.index_calls import Progress
from stelae.client.table import AsyncTable
from stelae.client.table_finds import PAGE_ROWS, Page

FILL_TIMEOUT_S = 3600.0


class TableIndexes:
    """See the module."""

    _loop: Loop
    _table: AsyncTable
    _direct: BlockingTable | None

    def find(
        self,
        column: str,
        value: Any = NOT_GIVEN,
        *,
        between: Sequence[Any] | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        reverse: bool = False,
        with_versions: bool = False,
        if_filling: IfFilling = "wait",
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> pa.Table:
        """Rows by the value of an indexed column, in the order of value and key.

        ``find("dest", "LAX")``, ``find("dest", None)`` (null), ``find("dest", between=("A", "M"))``
        (both included; None: no bound). While the index is made, or made anew after a server was
        lost, ``if_filling="wait"`` waits for it, and "scan" scans the table in its place. Raises
        `IndexNotFound`: `create_index` makes one.
        """
        if self._direct is not None and if_filling in ("wait", "scan"):
            return self._direct.find(
                column,
                value,
                between=between,
                limit=limit,
                columns=columns,
                reverse=reverse,
                with_versions=with_versions,
                if_filling=if_filling,
                timeout_s=timeout,
            )
        return self._loop.run(
            self._table.find(
                column,
                value,
                between=between,
                limit=limit,
                columns=columns,
                reverse=reverse,
                with_versions=with_versions,
                if_filling=if_filling,
                timeout=timeout,
            )
        )

    def find_page(
        self,
        column: str,
        value: Any = NOT_GIVEN,
        *,
        between: Sequence[Any] | None = None,
        limit: int = PAGE_ROWS,
        after: str | None = None,
        columns: Sequence[str] | None = None,
        reverse: bool = False,
        with_versions: bool = False,
        if_filling: IfFilling = "wait",
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Page:
        """At most ``limit`` ``rows`` of a `find`, and the ``token`` by which to ask for those
        ``after`` them; None: that was all. Each page shows what is there when it is asked for."""
        return self._loop.run(
            self._table.find_page(
                column,
                value,
                between=between,
                limit=limit,
                after=after,
                columns=columns,
                reverse=reverse,
                with_versions=with_versions,
                if_filling=if_filling,
                timeout=timeout,
            )
        )

    def find_pages(
        self,
        column: str,
        value: Any = NOT_GIVEN,
        *,
        between: Sequence[Any] | None = None,
        page_rows: int = PAGE_ROWS,
        columns: Sequence[str] | None = None,
        reverse: bool = False,
        with_versions: bool = False,
        if_filling: IfFilling = "wait",
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Iterator[pa.Table]:
        """All rows of a `find`, page by page; ``timeout`` is of each page."""
        after: str | None = None
        while True:
            page = self.find_page(
                column,
                value,
                between=between,
                limit=page_rows,
                after=after,
                columns=columns,
                reverse=reverse,
                with_versions=with_versions,
                if_filling=if_filling,
                timeout=timeout,
            )
            if page.rows.num_rows:
                yield page.rows
            if page.token is None:
                return
            after = page.token

    @property
    def indexes(self) -> list[dict[str, Any]]:
        """The indexes, oldest first: ``column``, ``state`` ("serving": it answers), which part is
        ``filled`` (0 to 1), ``entries``, and the ``indexlets`` with where each is."""
        return self._loop.run(self._table.indexes())

    def create_index(
        self,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = FILL_TIMEOUT_S,
    ) -> None:
        """Make an index of a column while reads and writes go on, and wait until it is filled.

        It is made whether anybody waits or not. ``progress`` is told of each look at it, in
        another thread. ``unique=True`` is refused, and the text says what to do in its place.
        Raises `IndexExists`, `ColumnNotFound`, `InvalidArgument`; `NotDoneYet`: it goes on.
        """
        self._loop.run(
            self._table.create_index(
                column, unique=unique, wait=wait, progress=progress, timeout=timeout
            )
        )

    def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Drop the index of a column; raises `IndexNotFound`."""
        self._loop.run(self._table.drop_index(column, timeout=timeout))


class DatabaseIndexes:
    """See the module."""

    _loop: Loop
    _database: AsyncDatabase

    def create_index(
        self,
        name: str,
        column: str,
        *,
        unique: bool = False,
        wait: bool = True,
        progress: Progress | None = None,
        timeout: float = FILL_TIMEOUT_S,
    ) -> None:
        """Make an index of a table's column; see `Table.create_index`. Raises `TableNotFound`."""
        self._loop.run(
            self._database.create_index(
                name, column, unique=unique, wait=wait, progress=progress, timeout=timeout
            )
        )

    def drop_index(self, name: str, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Drop the index of a table's column; raises `TableNotFound`, `IndexNotFound`."""
        self._loop.run(self._database.drop_index(name, column, timeout=timeout))
