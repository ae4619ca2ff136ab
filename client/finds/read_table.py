"""What finds need of a table whose rows they read."""

from __future__ import annotations

from typing import Protocol

from stelae.client.routing.locations import TableCache
from stelae.client.routing.shared_reads import SharedReads
from stelae.core.runtime import Runtime


class ReadTable(Protocol):
    """Of an `AsyncTable`: where its tablets are, and how reads of them are shared."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def cache(self) -> TableCache: ...

    @property
    def shared_reads(self) -> SharedReads: ...
