"""The end of a connection that answers: finds the handler, runs it, sends its answer.

Requests that may be `Gathered` are kept to the end of the turn that received them, and handed over
together, if others are under way.

Invariants: a request is refused, with an error that says so, before its handler runs if it was
meant for another server, names no method, comes past its deadline or past the bounds. A handler,
once begun, runs to its end; whether the caller still waits does not matter. A failure that is not a
`StelaeError` is logged, told to ``on_failure``, and reaches the caller as `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import msgspec

from stelae.core import tracing
from stelae.core.current import CURRENT
from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    Overloaded,
    StelaeError,
    TooLarge,
    Unavailable,
    WrongServer,
    encode_error,
)
from stelae.core.ids import ServerUuid
from stelae.core.rpc import (
    SINGLE_BYTES_MAX,
    Blob,
    Call,
    Gathered,
    Handler,
    Handlers,
    Outcome,
    Reply,
)
from stelae.core.tasks import Rest
from stelae.runtime.tcp.connection import Connection
from stelae.runtime.tcp.frames import (
    ASKED_BY,
    NO_DESTINATION,
    FrameError,
    Kind,
    Request,
    asked_of,
    decode_request,
    encode_reply,
)
from stelae.runtime.tcp.handshake import ServerHandshake
from stelae.runtime.tcp.limits import Limits

logger = logging.getLogger(__name__)

OnFailure = Callable[[BaseException], None]
"""Told of every exception of a handler that is not a `StelaeError`: a bug, or a broken disk."""

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Route:
    name: str
    handler: Handler
    decoder: msgspec.msgpack.Decoder[Any]
    is_prompt: bool
    takes_untagged: bool
    gathered: Gathered[Any] | None = None


class _Arrived(NamedTuple):
    """A request that others are gathered with, and where its answer goes."""

    inbound: Inbound
    call_id: int
    call: Call[Any]


class Unproved(Protocol):
    """A connection that has yet to prove who it is, before or after its TLS stands."""

    @property
    def peer(self) -> str: ...

    def fail(self, reason: StelaeError) -> None:
        """End it at once, because of ``reason``."""

    def close(self) -> None:
        """End it."""


class Service:
    """The handlers of one server, and what of them is running."""

    def __init__(
        self, server_uuid: ServerUuid, handlers: Handlers, limits: Limits, on_failure: OnFailure
    ) -> None:
        self.server_uuid = server_uuid
        self.uuid_bytes = bytes.fromhex(server_uuid)
        self.limits = limits
        self.on_failure = on_failure
        self.routes: dict[bytes, _Route] = {}
        for method, handler in handlers.items():
            name = method.name.encode()
            assert name not in self.routes, f"two handlers for {method.name}"
            self.routes[name] = _Route(
                method.name,
                handler,
                msgspec.msgpack.Decoder(method.request),
                getattr(handler, "is_prompt", False),
                bool(method.untagged),
                handler if isinstance(handler, Gathered) else None,
            )
        self.running: dict[int, asyncio.Task[None]] = {}
        self.connections: dict[Connection, None] = {}
        self._unproved: dict[Unproved, str] = {}  # oldest first, with their hosts
        self._refusals, self._refusals_told_at = 0, -math.inf
        self._next_task = 0
        self._arrived: dict[tuple[str, Hashable], list[_Arrived]] = {}
        """Of this turn, to be handed over together at its end."""
        self._loop = asyncio.get_running_loop()  # asked for once: it is a system call

    def run(self, work: Callable[[int], Coroutine[Any, Any, None]], *, is_prompt: bool) -> None:
        """Run a request's coroutine, which takes its number out of `running` at its end.

        A prompt one runs here and now up to its first wait, and becomes a task only then: one that
        need not wait never does, and what it starts is on its way before a task is made.
        """
        self._next_task += 1
        number = self._next_task
        coroutine = work(number)
        if is_prompt:
            try:
                waits_for = coroutine.send(None)
            except StopIteration:
                return
            coroutine = _resume(coroutine, waits_for)
        self.running[number] = self._loop.create_task(coroutine)

    def gathers(self, route: _Route, arrived: _Arrived) -> bool:
        """Keep a request until the end of the turn, if others are under way and may join it."""
        gathered = route.gathered
        if gathered is None or not self.running:
            return False
        alike = gathered.alike(arrived.call)
        if alike is None:
            return False
        if not self._arrived:
            self._loop.call_soon(self._hand_over_all)
        waiting = self._arrived.setdefault((route.name, alike), [])
        waiting.append(arrived)
        if len(waiting) >= gathered.most:
            del self._arrived[route.name, alike]
            self._hand_over(route, waiting)
        return True

    def _hand_over_all(self) -> None:
        arrived, self._arrived = self._arrived, {}
        for (name, _), waiting in arrived.items():
            self._hand_over(self.routes[name.encode()], waiting)

    def _hand_over(self, route: _Route, arrived: Sequence[_Arrived]) -> None:
        if len(arrived) == 1:
            inbound, call_id, call = arrived[0]
            inbound.carry_out(route, call_id, call)
        else:
            self.run(lambda number: self._answer_all(route, arrived, number), is_prompt=True)

    async def _answer_all(self, route: _Route, arrived: Sequence[_Arrived], number: int) -> None:
        assert route.gathered is not None
        outcomes: Sequence[Outcome | Exception] = ()
        try:
            outcomes = await route.gathered.together([each.call for each in arrived])
            assert len(outcomes) == len(arrived), f"{route.name} has an outcome for each call"
        except Exception as error:
            outcomes = [error] * len(arrived)
        finally:
            self.running.pop(number, None)
            for each in arrived:
                each.inbound.ended(each.call_id)
        for each, outcome in zip(arrived, outcomes, strict=True):
            each.inbound.answer(route, each.call_id, outcome)

    # ---- connections ------------------------------------------------------------------------

    def is_full(self) -> bool:
        """Whether no connection more may prove who it is."""
        return len(self.connections) >= self.limits.connections

    def opened(self, connection: Unproved, host: str) -> None:
        """It has yet to prove who it is.

        One too many ends the oldest, of its host or of all: a peer proves itself in milliseconds,
        so connections that are silent never keep others out, however many there are.
        """
        of_host = [each for each, known in self._unproved.items() if known == host]
        if len(of_host) >= self.limits.handshakes_of_host:
            self._end_unproved(of_host[0])
        elif len(self._unproved) >= self.limits.handshakes:
            self._end_unproved(next(iter(self._unproved)))
        self._unproved[connection] = host

    def _end_unproved(self, connection: Unproved) -> None:
        # At once: one in its TLS handshake ends in a later turn, and more may come in this one.
        self.leave(connection)
        connection.fail(Unavailable(connection.peer, "others came, and it had proved nothing"))

    def leave(self, connection: Unproved) -> None:
        """Take the slot of an unproved connection back."""
        self._unproved.pop(connection, None)

    def proved(self, connection: Connection) -> None:
        """It is a peer's."""
        self._unproved.pop(connection, None)
        self.connections[connection] = None

    def ended(self, connection: Connection) -> bool:
        """Forget it; whether it had proved who it is."""
        was_proved = connection in self.connections
        self.connections.pop(connection, None)
        self._unproved.pop(connection, None)
        return was_proved

    def refused(self, reason: str) -> None:
        """A connection ended without a proof: said at most once a second."""
        self._refusals += 1
        now = self._loop.time()
        if now - self._refusals_told_at >= 1.0:
            logger.warning("refused %d connections; the last: %s", self._refusals, reason)
            self._refusals, self._refusals_told_at = 0, now

    async def close(self) -> None:
        """End all connections and cancel what still runs."""
        for connection in [*self.connections, *self._unproved]:
            connection.close()
        self._arrived.clear()
        running = list(self.running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _resume(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await Rest(work, waits_for)


class Inbound:
    """The requests of one connection. Owner of a `Connection`."""

    def __init__(
        self, service: Service, handshake: ServerHandshake, arrival: Unproved | None = None
    ) -> None:
        """``arrival``: what held this connection's slot during its TLS handshake."""
        self.connection: Connection
        """Set by whoever makes both."""
        self._service = service
        self._arrival = arrival
        self._handshake = handshake
        self._running = 0
        self._held: dict[int, int] = {}  # sizes of large requests, received or running
        self._held_bytes = 0
        self._spans: dict[int, tracing.Span] = {}

    # ---- Owner ------------------------------------------------------------------------------

    def connection_opened(self, connection: Connection, host: str) -> bytes:
        if self._arrival is not None:
            self._service.leave(self._arrival)  # this connection takes the slot over
        if self._service.is_full():
            return self._handshake.busy(self._service.limits.connections)
        self._service.opened(connection, host)
        return b""

    def connection_ready(self, connection: Connection) -> None:
        self._service.proved(connection)

    def connection_ended(self, connection: Connection, reason: StelaeError | None) -> None:
        if not self._service.ended(connection):
            self._service.refused(str(reason or "it ended during the handshake"))

    def wants(self, whole: Kind, call_id: int, total: int) -> bool:
        limit = self._service.limits.request_bytes
        if whole is not Kind.REQUEST or call_id in self._held:
            raise FrameError("a listener takes each large request once, and nothing else")
        if self._held and self._held_bytes + total > limit:
            self._refuse(call_id, Overloaded("the bytes of requests in progress", limit))
            return False
        self._held[call_id] = total
        self._held_bytes += total
        return True

    def place(self, call_id: int, total: int) -> memoryview | None:
        return None

    def abandoned(self, call_id: int) -> None:
        self._release(call_id)

    def message_received(self, kind: Kind, call_id: int, payload: memoryview, age_s: float) -> None:
        if kind is not Kind.REQUEST:
            raise FrameError(f"a listener got a {kind.name} message")
        if not payload.readonly:
            payload = memoryview(bytes(payload))  # views of the receive buffer would not stay valid
        request = decode_request(payload)
        routes, asked_by, trace = self._service.routes, "", ""
        route = routes.get(request.name)
        if route is None and ASKED_BY in request.name:
            name, asked_by, trace = asked_of(request.name)
            route = routes.get(name)
        timeout_s = request.timeout_ms / 1000 - age_s
        refusal = self._refusal(request, route, timeout_s)
        if refusal is not None:
            self._release(call_id)
            self._refuse(call_id, refusal)
            return
        assert route is not None
        try:
            body = route.decoder.decode(request.body)
        except msgspec.MsgspecError as error:
            self._release(call_id)
            text = f"{route.name}: the request cannot be read: {error}"
            self._refuse(call_id, InvalidArgument(text))
            return
        self._running += 1
        call = Call(body, request.blobs, timeout_s)
        if trace:
            trace = self._begin_span(route, call_id, body, trace)
        # Until the next request of this connection:
        CURRENT.set((asked_by, route.name, body, trace))
        if not self._service.gathers(route, _Arrived(self, call_id, call)):
            self.carry_out(route, call_id, call)

    def _begin_span(self, route: _Route, call_id: int, body: Any, parent: str) -> str:
        """The trace that calls to others belong to."""
        tablet = getattr(body, "tablet_id", "")
        about = {"stelae.tablet": tablet} if isinstance(tablet, str) and tablet else {}
        spans = tracing.active
        span = None if spans is None else spans.begin(route.name, "server", parent, about)
        if span is None:
            return parent
        self._spans[call_id] = span
        return span.context

    def carry_out(self, route: _Route, call_id: int, call: Call[Any]) -> None:
        """Run a request's handler."""
        self._service.run(
            lambda number: self._answer(route, call_id, call, number), is_prompt=route.is_prompt
        )

    # ---- answers ----------------------------------------------------------------------------

    def _refusal(
        self, request: Request, route: _Route | None, timeout_s: float
    ) -> StelaeError | None:
        service = self._service
        if request.destination not in (service.uuid_bytes, NO_DESTINATION):
            return WrongServer(request.destination.hex(), service.server_uuid)
        if route is None:
            name = request.name.decode(errors="replace")
            return InvalidArgument(f"server {service.server_uuid} has no method {name!r}")
        if request.destination == NO_DESTINATION and not route.takes_untagged:
            # An address is given to another server once its first one has ended.
            text = (
                f"{route.name} must name the server that it is for; {service.server_uuid} is here"
            )
            return InvalidArgument(text)
        if timeout_s <= 0:
            return DeadlineExpired(route.name, "the network")
        if self._running >= service.limits.requests:
            return Overloaded("requests in progress of one connection", service.limits.requests)
        return None

    async def _answer(self, route: _Route, call_id: int, call: Call[Any], number: int) -> None:
        try:
            outcome: Outcome | Exception = await route.handler(call)
        except Exception as error:
            outcome = error
        finally:
            self.ended(call_id)
            self._service.running.pop(number, None)
        self.answer(route, call_id, outcome)

    def ended(self, call_id: int) -> None:
        """A request is no longer worked on."""
        self._running -= 1
        self._release(call_id)

    def answer(self, route: _Route, call_id: int, outcome: Outcome | Exception) -> None:
        """Send what a request came to."""
        if self._spans and (span := self._spans.pop(call_id, None)) is not None:
            failed = isinstance(outcome, Exception)
            span.end(f"{type(outcome).__name__}: {outcome}" if failed else "")
        if isinstance(outcome, Reply):
            try:
                buffers, size = self._encoded(route, outcome)
            except Exception as error:
                outcome = error
            else:
                alone = not self._running
                self.connection.send(Kind.REPLY, call_id, buffers, size, alone=alone)
                return
        if isinstance(outcome, StelaeError):
            self._refuse(call_id, outcome)
            return
        logger.error("%s failed", route.name, exc_info=outcome)
        self.connection.send(Kind.FAILED, call_id, [b""], 0)
        self._service.on_failure(outcome)

    def _encoded(self, route: _Route, reply: Reply[Any]) -> tuple[list[Blob], int]:
        buffers, size = encode_reply(_encode(reply.body), reply.blobs)
        limit = self._service.limits.message_bytes
        if size > limit:
            raise TooLarge(f"the reply of {route.name}", size, limit)
        return buffers, size

    def _refuse(self, call_id: int, error: StelaeError) -> None:
        payload = encode_error(error)
        if len(payload) > SINGLE_BYTES_MAX:
            payload = encode_error(StelaeError(f"{type(error).__name__}: {str(error)[:4096]}"))
        self.connection.send(Kind.ERROR, call_id, [payload], len(payload))

    def _release(self, call_id: int) -> None:
        self._held_bytes -= self._held.pop(call_id, 0)
