"""How a client alters one table: the part of `AsyncTable` that is about what the table is like."""

from __future__ import annotations

import asyncio

from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.client.routing.locations import TableCache
from stelae.client.routing.session import Session
from stelae.client.table.alter import Alterations, AskedAlter
from stelae.core.errors import DeadlineExpired, NotDoneYet, OutcomeUnknown, RetryLater
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
        """As `refresh`, repeated: a failover may take longer than one look-up.

        Raises:
            DeadlineExpired: no master answered by the deadline.
        """
        clock = self.runtime.clock
        what = f"a look at table {self.cache.table.name!r}"
        waits_for = f"the masters {', '.join(self.cache.masters.addresses)}"
        try:
            async with asyncio.timeout(max(deadline - clock.monotonic(), 0.0)):
                while True:
                    try:
                        return await self.refresh()
                    except (RetryLater, OutcomeUnknown) as error:
                        waits_for = str(error)
                        if clock.monotonic() >= deadline:
                            raise DeadlineExpired(what, waits_for) from error
                    await clock.sleep(REFRESH_PAUSE_S)
        except TimeoutError:
            raise DeadlineExpired(what, waits_for) from None

    async def _alter(
        self, asked: AskedAlter, if_edition: str, wait: bool, timeout_s: float
    ) -> None:
        clock = self.runtime.clock
        deadline = clock.monotonic() + timeout_s
        await self._refresh_by(deadline)
        record = self.cache.table
        change = asked.change(record)
        alterations = Alterations(self.runtime, self.cache.masters, self.session)
        left_s = min(deadline - clock.monotonic(), DEFAULT_TIMEOUT_S)  # the rest is for the tablets
        changed = await alterations.alter(
            record, change, asked.rename_to, asked.durability, if_edition, left_s
        )
        self.cache.take_record(changed)
        if wait:
            await alterations.wait_done(record, deadline - clock.monotonic())
            if changed.becoming is not None or if_edition:  # masters say only now what it became
                try:
                    await self._refresh_by(deadline)
                except DeadlineExpired as error:  # the alter was executed: never "not begun"
                    raise NotDoneYet(f"the alter of {record.name!r}", str(error)) from error

    async def is_alter_done(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> bool:
        """Whether every tablet has the newest schema, and the durability that it is to have."""
        alterations = Alterations(self.runtime, self.cache.masters, self.session)
        return await alterations.is_done(self.cache.table, timeout)
