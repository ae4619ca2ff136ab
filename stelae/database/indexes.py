"""What users have of indexes: the part of `Table` and `Database` that finds rows by value.

Blocking, as all of `stelae.database.api`; ``table.aio`` has the same calls as coroutines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stelae.client.aio import Loop
from stelae.client.database import AsyncDatabase
from stelae.client.finds.calls import Asked, Page, find, find_page, find_pages, takes
from stelae.client.finds.index_calls import Progress
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.table.blocking import BlockingTable
from stelae.client.table.table import AsyncTable
from stelae.database.progress import bar, index_told

FILL_TIMEOUT_S = 3600.0


class TableIndexes:
    """See the module."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _table(self) -> AsyncTable: ...

        @property
        def _direct(self) -> BlockingTable | None: ...

    @takes(find)
    def find(self, asked: Asked) -> pa.Table:
        if self._direct is not None:
            return self._direct.find(asked)
        return self._loop.run(self._table.find_asked(asked))

    @takes(find_page)
    def find_page(self, asked: Asked) -> Page:
        return self._loop.run(self._table.page_asked(asked))

    @takes(find_pages)
    def find_pages(self, asked: Asked) -> Iterator[pa.Table]:
        token: str | None = asked.after
        while True:
            page = self._loop.run(self._table.page_asked(replace(asked, after=token)))
            if page.rows.num_rows:
                yield page.rows
            token = page.token
            if token is None:
                return

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
        with bar(f"index of {column}") as tell:
            self._loop.run(
                self._table.create_index(
                    column,
                    unique=unique,
                    wait=wait,
                    progress=progress or index_told(tell),
                    timeout=timeout,
                )
            )

    def drop_index(self, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Drop the index of a column; raises `IndexNotFound`."""
        self._loop.run(self._table.drop_index(column, timeout=timeout))


class DatabaseIndexes:
    """See the module."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _database(self) -> AsyncDatabase: ...

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
        with bar(f"index of {column}") as tell:
            self._loop.run(
                self._database.create_index(
                    name,
                    column,
                    unique=unique,
                    wait=wait,
                    progress=progress or index_told(tell),
                    timeout=timeout,
                )
            )

    def drop_index(self, name: str, column: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Drop the index of a table's column; raises `TableNotFound`, `IndexNotFound`."""
        self._loop.run(self._database.drop_index(name, column, timeout=timeout))
