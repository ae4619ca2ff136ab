"""When a backup that is to be retired takes nothing any more.

While it holds anything it takes more, if nobody else does: owners choose it last. From the moment
on that it holds nothing it refuses what is new, and says so with its heartbeats; so nothing comes
between that word and its end. It forgets all that with its process, and is told again. Invariants:
what is on its way in counts as held; a mark older than one it was told of says nothing, so what was
closed under a mark opens by a newer one only. Masters' side:
`stelae.coordinator.placement.leaving_backups`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stelae.core.errors import RetryLater


class Closing:
    """One backup's."""

    def __init__(self, name: str, held: Callable[[], int]) -> None:
        self.closed_for = 0
        """Generation of the mark under which it holds nothing and takes nothing; 0: none."""
        self._name = name
        self._held = held
        self._arriving = 0
        self._generation = 0

    def told(self, generation: int, may_close: bool) -> None:
        """A leader master says what the mark of that generation wants; 0: there never was one."""
        if generation < self._generation:
            return  # on its way since before the mark was changed
        if generation > self._generation:
            self._generation, self.closed_for = generation, 0
        if may_close and not self._arriving and not self._held():
            self.closed_for = generation

    @contextmanager
    def arrival(self) -> Iterator[None]:
        """Something new comes in. Raises RetryLater: nothing does any more."""
        if self.closed_for:
            raise RetryLater(f"backup {self._name} is retired, and takes nothing")
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1
