"""What finds need of a table whose rows they read."""

from __future__ import annotations

from typing import Protocol

from stelae.client.routing.locations import TableCache
from stelae.client.routing.shared_reads import SharedReads
from stelae.core.runtime import Runtime


class ReadTable(Protocol):
    """The part of an `AsyncTable` that knows where tablets are, and shares reads of them."""

    @property
    def runtime(self) -> Runtime: ...

    @property
    def cache(self) -> TableCache: ...

    @property
    def shared_reads(self) -> SharedReads: ...
