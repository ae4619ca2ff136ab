"""How rows are found by value: the one definition of `find` and its pages, whoever makes the call.

Each function here is what users call, but for ``self``; it checks nothing, and returns what it was
given as an `Asked`. A table handle carries such a call out in a method decorated by `takes`, which
gives it that function's parameters and docstring: coroutines in `AsyncFinds`, for `AsyncTable` and
`HttpTable`; blocking ones in `stelae.database.indexes`.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pyarrow as pa

from stelae.client.finds.query import NOT_GIVEN, FindQuery, IfFilling, find_query
from stelae.client.input.given import row_limit
from stelae.client.input.known import KnownTable
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.core.errors import InvalidArgument

PAGE_ROWS = 1000

P = ParamSpec("P")
A = TypeVar("A")
S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Page:
    """Some rows that a `find_page` found, and by what to ask for those after them."""

    rows: pa.Table
    token: str | None
    """None: there are no more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a `find`, or one page of one, asks for."""

    column: str
    value: Any
    between: Sequence[Any] | None
    limit: int | None
    after: str | None
    columns: Sequence[str] | None
    reverse: bool
    with_versions: bool
    if_filling: IfFilling
    timeout_s: float

    def check(self) -> None:
        """Raises `InvalidArgument`: no table could answer it."""
        if self.if_filling not in ("wait", "scan"):
            raise InvalidArgument(f'if_filling={self.if_filling!r}: "wait" or "scan"')

    def check_page(self) -> None:
        """Raises `InvalidArgument`: no table could answer it with a page."""
        self.check()
        if not self.limit:
            raise InvalidArgument(f"limit={self.limit!r}: a page has at least one row")

    def query(self, known: KnownTable) -> FindQuery:
        """What it is at this table. Raises as `finds.query`; `InvalidArgument`: a wrong token."""
        query = find_query(
            known,
            self.column,
            self.value,
            self.between,
            self.columns,
            with_versions=self.with_versions,
            is_reverse=self.reverse,
        )
        return query if self.after is None else query.from_token(self.after)


def find(
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
) -> Asked:
    """Rows by the value of an indexed column, in the order of value and key.

    ``find("dest", "LAX")``; ``find("dest", None)``: those that have null there;
    ``find("dest", between=("A", "M"))``: both ends are included, None is no bound, nulls are left
    out. ``if_filling``: while the index is made, or made anew after the loss of a server, "wait"
    for it, or "scan" the table in its place.

    Raises:
        IndexNotFound: the column has no index; `create_index` makes one.
        ColumnNotFound, InvalidArgument: what is asked for cannot be.
        RetryLater: the index was not there in time; the text says what it waits for.
    """
    return Asked(
        column,
        value,
        between,
        row_limit(limit),
        None,
        columns,
        reverse,
        with_versions,
        if_filling,
        timeout,
    )


def find_page(
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
) -> Asked:
    """At most ``limit`` ``rows`` of a `find`, and the ``token`` by which to ask for those ``after``
    them; None: that was all.

    Each page shows what is there when it is asked for; a row whose value changes between two pages
    may be on both. Raises as `find`.
    """
    return Asked(
        column,
        value,
        between,
        row_limit(limit),
        after,
        columns,
        reverse,
        with_versions,
        if_filling,
        timeout,
    )


def find_pages(
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
) -> Asked:
    """All rows of a `find` as tables, page by page; ``timeout`` is of each. Raises as `find`."""
    return Asked(
        column,
        value,
        between,
        page_rows,
        None,
        columns,
        reverse,
        with_versions,
        if_filling,
        timeout,
    )


def takes(
    pattern: Callable[P, A],
) -> Callable[[Callable[[S, A], R]], Callable[Concatenate[S, P], R]]:
    """A method that is called with the parameters of ``pattern``, and gets what that returns. Its
    signature and docstring are the pattern's; a coroutine stays one."""

    def decorate(work: Callable[[S, A], R]) -> Callable[Concatenate[S, P], R]:
        call: Any
        if inspect.iscoroutinefunction(work):

            @functools.wraps(work)
            async def asynchronous(self: S, *args: P.args, **kwargs: P.kwargs) -> Any:
                return await work(self, pattern(*args, **kwargs))

            call = asynchronous

        else:

            @functools.wraps(work)
            def blocking(self: S, *args: P.args, **kwargs: P.kwargs) -> Any:
                return work(self, pattern(*args, **kwargs))

            call = blocking

        own, given = inspect.signature(work), inspect.signature(pattern)
        parameters = [next(iter(own.parameters.values())), *given.parameters.values()]
        call.__doc__ = pattern.__doc__
        call.__signature__ = given.replace(
            parameters=parameters, return_annotation=own.return_annotation
        )
        return cast(Callable[Concatenate[S, P], R], call)

    return decorate


class AsyncFinds(ABC):
    """The calls of a handle whose calls are coroutines."""

    @abstractmethod
    async def find_asked(self, asked: Asked) -> pa.Table:
        """As `find`, of what it takes."""

    @abstractmethod
    async def page_asked(self, asked: Asked) -> Page:
        """As `find_page`, of what it takes."""

    @takes(find)
    async def find(self, asked: Asked) -> pa.Table:
        return await self.find_asked(asked)

    @takes(find_page)
    async def find_page(self, asked: Asked) -> Page:
        return await self.page_asked(asked)

    @takes(find_pages)
    async def find_pages(self, asked: Asked) -> AsyncIterator[pa.Table]:
        while True:
            page = await self.page_asked(asked)
            if page.rows.num_rows:
                yield page.rows
            if page.token is None:
                return
            asked = replace(asked, after=page.token)
