"""How one server's method is named and typed on the wire: a `Method` value, shared by both ends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from stelae.core.errors import StelaeError

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

PROTOCOL_VERSION = 2
"""2: tables have seeds for the hashes of their keys, which software of before would drop."""
SINGLE_BYTES_MAX = 64 * 1024
"""Up to this size a message travels whole; a larger one in parts, behind others."""


class NotSingle(Exception):
    """A message does not fit one frame. Nothing was sent: it goes the way that cuts it."""


Blob: TypeAlias = bytes | bytearray | memoryview | pa.Buffer
"""Bulk bytes that travel beside the msgspec body and are never copied into it."""


ANY_MASTER = "masters are known by their addresses; any of them may answer, or say who leads"
BY_TABLET = "of a hint only the address is known; who has or leads no such tablet refuses"
ANY_STORE = "servers of the configuration store are known by their addresses, and are alike"


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, R]):
    """One remote method: its name, and the types of its request and reply bodies."""

    name: str
    request: type[Q]
    reply: type[R]
    untagged: str = ""
    """Why a call need not carry the UUID of the server that it is for; empty: every call does, as
    an address may be another server's by now."""


class Call(msgspec.Struct, Generic[Q], frozen=True):
    """A request as its handler sees it. ``blobs`` are read-only views into the receive buffer."""

    body: Q
    blobs: Sequence[memoryview]
    timeout_s: float
    """What was left of the caller's deadline when the request arrived."""


class Reply(msgspec.Struct, Generic[R], frozen=True):
    """What a handler returns and a caller receives."""

    body: R
    blobs: Sequence[Blob] = ()


Outcome: TypeAlias = Reply[Any] | StelaeError
"""How a call ended."""
Handler = Callable[[Call[Any]], Coroutine[Any, Any, Reply[Any]]]
Handlers = dict[Method[Any, Any], Handler]
H = TypeVar("H", bound=Callable[..., Coroutine[Any, Any, Reply[Any]]])


def prompt(handler: H) -> H:
    """Mark a handler that may run, up to its first wait, in the turn that received the request.

    Before that wait it is nobody's task: it must not use `asyncio.timeout` there.
    """
    handler.is_prompt = True  # type: ignore[attr-defined]
    return handler


class Gathered(Generic[Q]):
    """A prompt handler of calls that are cheaper to carry out together.

    Those that arrive in the same turn of the event loop, from whatever connections and while other
    calls are under way, are handed over together; one that is alone goes to ``alone`` at once.
    """

    is_prompt = True

    def __init__(
        self,
        alone: Handler,
        *,
        alike: Callable[[Call[Q]], Hashable | None],
        together: Callable[[Sequence[Call[Q]]], Coroutine[Any, Any, Sequence[Outcome]]],
        most: int,
    ) -> None:
        """``alike`` says the same of calls that may go together, and None of one that may not;
        ``together`` takes up to ``most``, in their order, and gives the outcome of each. What it
        raises is that of all."""
        self.alone = alone
        self.alike = alike
        self.together = together
        self.most = most

    def __call__(self, call: Call[Q]) -> Coroutine[Any, Any, Reply[Any]]:
        return self.alone(call)


class Body(msgspec.Struct, frozen=True, array_like=True):
    """Base of message bodies: positional on the wire, so fields are only ever appended."""


class Empty(msgspec.Struct, frozen=True, array_like=True):
    """The body of a request or reply that says nothing."""


EMPTY: Reply[Empty] = Reply(Empty())
