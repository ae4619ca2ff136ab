"""Where a configuration store keeps its rows: one small interface.

A backend knows nothing of configurations: it swaps one row of bytes for the next, and keeps every
row that ever was. Invariants, which one suite of tests proves for all of them:

- `swap` is one atomic step, durable when it returns;
- of one key and revision there is one row, for ever;
- a swap that was carried out before is recognised by its writer, nonce and value.

`stelae.actors.cas_store.opening` opens a backend by the URL of the spec;
`stelae.actors.cas_store.files` stands on the runtime's own disk, real or simulated.

Implements seed 004 ("configuration storage"); design §10.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec


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
