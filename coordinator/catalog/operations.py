"""Every change of the catalog, through the one place that keeps the seven-step contract.

1. Take the locks: the tables, then the tablets, each in the order of their ids.
2. Draft: new versions of records, made from committed ones, which stay untouched (copy-on-write).
   A draft too large to be replicated is refused here.
3. Replicate it, once, as one entry. If that fails the draft is dropped and the operation fails with
   the cause; the master lives on.
4. Replicated: from here on it cannot fail.
5. Commit: `Catalog.apply`, run by the log itself on every master: tablets, tables, then names.
6. The change is now visible to readers, on disk and in memory alike.
7. RPCs follow, by the caller (`stelae.coordinator.decide`): level-triggered, until done
or superseded.

Names being created are reserved apart from the catalog, so nothing half-made is ever visible. Where
the outcome of step 3 is unknown the entry may still be applied later; the generations in it keep it
from overwriting what has happened meanwhile, and its request id from happening twice.

Source: seed "Multi-master support for Kudu 1.0", "Ensure strict ordering for all state changes".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

from stelae.coordinator.catalog.catalog import Applied, Catalog, CatalogBatch, Conflict
from stelae.core.errors import NameReserved, Rejected, RetryLater, decode_error, encode_error
from stelae.core.ids import RequestId, TableId, TabletId

ATTEMPTS = 3
"""Drafts made anew after a conflict with an entry that was applied meanwhile."""

Replicate: TypeAlias = Callable[[bytes], Awaitable[object]]
"""Replicates a command and returns what `Catalog.apply` gave for it; raises if it cannot."""
Draft: TypeAlias = Callable[[], CatalogBatch | None]
"""Makes a batch from what is committed now; None if there is nothing to change. May raise."""


class Operations:
    """Changes of the catalog by the leader master."""

    def __init__(self, catalog: Catalog, replicate: Replicate) -> None:
        self._catalog = catalog
        self._replicate = replicate
        self._table_locks = _Locks()
        self._tablet_locks = _Locks()
        self._reserved: dict[str, None] = {}

    async def change(
        self,
        draft: Draft,
        *,
        tables: Iterable[TableId] = (),
        tablets: Iterable[TabletId] = (),
        request: RequestId | None = None,
    ) -> TableId | None:
        """Carry out one logical operation; returns its result, or None if nothing was to change.

        ``request`` is the client's, if it asked for this: a refusal is then kept too (`refuse`).

        Raises:
            Rejected: a copy of the same request was refused meanwhile, and that stands.
            TooLarge: the batch could not be replicated; nothing was done.
            RetryLater: the catalog kept changing meanwhile; nothing was done.
            StelaeError: whatever ``draft`` or the replication raised.
        """
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._table_locks.hold(tables))
            await held.enter_async_context(self._tablet_locks.hold(tablets))
            conflict = ""
            for _ in range(ATTEMPTS):
                try:
                    batch = draft()
                except Rejected as error:
                    if request is None:
                        raise
                    return await self.refuse(request, error)
                if batch is None:
                    return None
                outcome = await self._replicate(batch.encode())
                if isinstance(outcome, Applied):
                    return _result(outcome)
                assert isinstance(outcome, Conflict), f"the catalog answered {outcome!r}"
                conflict = outcome.reason
            raise RetryLater(f"the catalog changes under this operation: {conflict}")

    async def refuse(self, request: RequestId, error: Rejected) -> TableId:
        """Refuse a request for good: a copy of it that comes later is refused as well.

        Returns the result after all if a copy was carried out meanwhile.

        Raises:
            Rejected: the refusal, once it is replicated; the first one, if there was one before.
            StelaeError: it could not be replicated.
        """
        batch = CatalogBatch(request=request, refusal=encode_error(error))
        outcome = await self._replicate(batch.encode())
        if isinstance(outcome, Applied):
            return _result(outcome)
        raise error  # answered so long ago that no copy of it can do anything

    @asynccontextmanager
    async def reserve(self, name: str) -> AsyncIterator[None]:
        """Hold a table name while its table is being created. Raises `NameReserved`."""
        if name in self._reserved:
            raise NameReserved(name)
        self._reserved[name] = None
        try:
            yield
        finally:
            del self._reserved[name]


def _result(outcome: Applied) -> TableId:
    """What the request came to: the entry's own outcome, or that of a copy applied before it."""
    if outcome.refusal:
        raise decode_error(outcome.refusal)
    return outcome.result


class _Locks:
    """Locks by key, made when first wanted and dropped when nobody waits."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, keys: Iterable[str]) -> AsyncIterator[None]:
        """Hold the locks of all keys, taken in the order of the keys."""
        taken: list[str] = []
        try:
            for key in sorted(dict.fromkeys(keys)):
                lock, users = self._locks.get(key, (asyncio.Lock(), 0))
                self._locks[key] = (lock, users + 1)
                try:
                    await lock.acquire()
                except BaseException:
                    self._drop(key)
                    raise
                taken.append(key)
            yield
        finally:
            for key in reversed(taken):
                self._locks[key][0].release()
                self._drop(key)

    def _drop(self, key: str) -> None:
        lock, users = self._locks[key]
        if users == 1:
            del self._locks[key]
        else:
            self._locks[key] = (lock, users - 1)
