"""Where a configuration store keeps its rows: one small interface, opened by the URL of the spec.

A backend knows nothing of configurations: it swaps one row of bytes for the next, and keeps every
row that ever was. Invariants, which one suite of tests proves for all of them:

- `swap` is one atomic step, durable when it returns;
- of one key and revision there is one row, for ever;
- a swap that was carried out before is recognised by its writer, nonce and value.

``sqlite:///path`` is the embedded default; ``postgresql://…`` needs the extra ``postgres``;
`stelae.actors.cas_store.files` stands on the runtime's own disk, real or simulated.

Implements seed 004 ("configuration storage"); design §10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stelae.core.config.store_url import POSTGRESQL, SQLITE
from stelae.core.errors import InvalidArgument
from stelae.core.runtime import Runtime


class Row(msgspec.Struct, frozen=True, array_like=True):
    """One version of one key's value."""

    key: str
    revision: int
    generation: int
    value: bytes
    at: float
    writer: str
    nonce: str

    def is_same_write(self, other: Row) -> bool:
        """Whether both are copies of one request. When they came does not matter."""
        mine = (self.key, self.revision, self.generation, self.writer, self.nonce, self.value)
        return mine == (
            other.key,
            other.revision,
            other.generation,
            other.writer,
            other.nonce,
            other.value,
        )


class Swap(msgspec.Struct, frozen=True, array_like=True):
    """How a swap ended, and what is stored now."""

    done: bool
    current: Row | None


class Backend(Protocol):
    """Raises Overloaded, Unavailable, NoSpace: surely not done. OutcomeUnknown: done or not.
    Anything else ends the server: its storage is broken."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, key: str) -> Row | None: ...

    async def swap(self, row: Row) -> Swap:
        """Store the row if it is the next one of its key: its revision one above the current."""
        ...

    async def list(self, prefix: str, after: str, limit: int) -> Sequence[Row]:
        """Current rows, in the order of their keys (as bytes), of keys above ``after``."""
        ...

    async def history(self, key: str, after_revision: int, limit: int) -> Sequence[Row]: ...


Offload = Callable[..., Awaitable[Any]]
"""`Runtime.offload`, for backends whose calls block."""


def open_backend(url: str, runtime: Runtime, folder: Path, cluster: str) -> Backend:
    """The backend that ``url`` names, not opened yet.

    Args:
        folder: the server's data directory, which a relative path begins in.
        cluster: whose rows they are, where several clusters share one database.

    Raises:
        InvalidArgument: the URL names no backend, or what it needs is not installed.
    """
    if url.startswith(SQLITE):
        from stelae.actors.cas_store.sqlite import SqliteBackend

        path = url.removeprefix(SQLITE)
        if not path:
            raise InvalidArgument(f"cas_store.url {url!r} names no file: sqlite:///cas.db")
        return SqliteBackend(folder / path, runtime.offload)
    if url.startswith(POSTGRESQL):
        try:
            from stelae.actors.cas_store.postgres import PostgresBackend
        except ImportError as error:
            raise InvalidArgument(
                f"cas_store.url {url!r} needs psycopg: pip install 'stelae[postgres]' ({error})"
            ) from error
        return PostgresBackend(url, cluster, runtime.offload)
    raise InvalidArgument(f"cas_store.url {url!r} is neither sqlite:///… nor postgresql://…")
