"""Bugs planted into the servers, one at a time: proof that the simulator would see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from stelae.actors.replicated_segment import ReplicatedSegment


def _acknowledge_early() -> Any:
    """Acknowledge once one replica has the bytes."""

    def committed(self: ReplicatedSegment) -> int:
        if self.image is not None:
            return self.length
        if not self.may_fill:
            return 0
        return max((replica.length for replica in self.replicas), default=self.length)

    return patch.object(ReplicatedSegment, "committed_length", property(committed))


BUGS: dict[str, Callable[[], Any]] = {
    "acknowledge_early": _acknowledge_early,
}


@contextlib.contextmanager
def planted(bug: str) -> Iterator[None]:
    """Run with a bug of `BUGS`; with none for ""."""
    if not bug:
        yield
        return
    with BUGS[bug]():
        yield
