"""Calls from the caller's own thread: what `stelae.runtime.tcp.direct.DirectCalls` offers."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Method

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)


class Calls(Protocol):
    """Blocking calls; each raises `NotSingle` where it does not fit into one message."""

    def call(
        self,
        address: Address,
        method: Method[Q, R],
        request: Q,
        *,
        timeout_s: float,
        destination: ServerUuid,
    ) -> R: ...
