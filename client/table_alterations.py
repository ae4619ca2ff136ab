"""How a client alters one table: the part of `AsyncTable` that is about what the table is like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stelae.client.alter import Alterations, NewColumns, requested_change
from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.given import check_durability, check_name
from stelae.client.locations import TableCache
from stelae.client.session import Session
from stelae.core.durability import Durability
from stelae.core.errors import DeadlineExpired, OutcomeUnknown, RetryLater
from stelae.core.runtime import Runtime

REFRESH_PAUSE_S = 0.1


class TableAlterations:
    """See the module."""

    runtime: Runtime
    session: Session
    cache: TableCache

    async def refresh(self) -> None:
        """Ask the masters anew what the table is like. Raises `TableNotFound`."""
        await self.cache.refresh()

    async def _refresh_by(self, deadline: float) -> None:
        """As `refresh`, again and again: a failover may take longer than one look-up."""
        clock = self.runtime.clock
        while True:
            try:
                return await self.refresh()
            except (RetryLater, OutcomeUnknown) as error:
                if clock.monotonic() >= deadline:
                    what = f"a look at table {self.cache.table.name!r}"
                    raise DeadlineExpired(what, str(error)) from error
                await clock.sleep(REFRESH_PAUSE_S)

    async def alter(
        self,
        *,
        add_columns: NewColumns = (),
        drop_columns: str | Sequence[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
        rename_to: str = "",
        durability: Durability | None = None,
        wait: bool = True,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        """Change the table's columns, name or durability; reads and writes go on meanwhile.

        ``add_columns``: Arrow fields, or types by name; one that may not be null needs a default,
        which the rows that are there show. ``defaults``: by name (after renames), what new rows
        get that leave the column out; None: no default any more. A column dropped and added again
        comes back empty. Key columns stay as they are.

        ``durability``: any other one. From replicas to another number of them each tablet gets a
        copy on one more server, or lets one go, one after the other. Else each tablet makes way for
        a new one, two of the cluster at a time; for a moment its writes, and then its reads, wait.
        With many rows that takes a while. Altered back before it is done, it is taken back; columns
        can be altered once it is done. ``wait``: until all tablets follow.

        Raises:
            InvalidArgument, ColumnNotFound, TooLarge, TableExists, TooFewServers, TooManyReplicas:
                nothing was changed.
            NotEnoughServers: the same; for half a minute too few servers live that the durability
                asks for.
            NotDoneYet: it is altered, but some tablet does not follow yet (`is_alter_done`);
                it goes on by itself.
        """
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout
        await self._refresh_by(deadline)
        record = self.cache.table
        if rename_to:
            check_name(rename_to)
        if durability is not None:
            check_durability(durability)
        change = requested_change(
            record.schema, record.name, add_columns, drop_columns, rename_columns, defaults
        )
        alterations = Alterations(self.runtime, self.cache.masters, self.session)
        left_s = min(deadline - clock.monotonic(), DEFAULT_TIMEOUT_S)  # the rest is for the tablets
        changed = await alterations.alter(record, change, rename_to, durability, left_s)
        self.cache.take_record(changed)
        if wait:
            await alterations.wait_done(record, deadline - clock.monotonic())
            if changed.becoming is not None:  # what it became the masters say only now
                await self._refresh_by(deadline)

    async def rename(self, name: str, *, timeout: float = DEFAULT_TIMEOUT_S) -> None:
        """Give the table another name; this handle and all others on it go on.

        Raises:
            InvalidArgument, TableExists: it keeps its name.
        """
        check_name(name)
        await self.alter(rename_to=name, wait=False, timeout=timeout)

    async def is_alter_done(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """Whether every tablet has the newest schema, and the durability that it is to have."""
        alterations = Alterations(self.runtime, self.cache.masters, self.session)
        return await alterations.is_done(self.cache.table, timeout)
