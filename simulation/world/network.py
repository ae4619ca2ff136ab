"""The simulated network: `Peers` between processes, with everything TCP and a call can suffer.

Per call: the request is lost; the reply is lost after execution; the request runs late, twice or
out of order; the target restarts in between; nobody listens; the link is clogged or cut, in one
direction or both. Messages are encoded with msgspec and their blobs copied, so that no object is
shared between processes. A caller learns ``Unavailable`` only where its request surely did not run,
and is told of a refusal only where no other copy of its request may run yet, or may have run.

Callbacks of the network run in the world's context: what is on the wire survives its sender.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from stelae.core.errors import (
    DeadlineExpired,
    InvalidArgument,
    OutcomeUnknown,
    StelaeError,
    Unavailable,
    WrongServer,
    decode_error,
    encode_error,
)
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Blob, Call, Handler, Handlers, Method, Reply
from stelae.core.runtime import ReplyMemory
from stelae.simulation.world.arrivals import Arrivals
from stelae.simulation.world.loop import SimLoop
from stelae.simulation.world.options import Options
from stelae.simulation.world.process import Process

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

KEEPALIVE_MIN_S, KEEPALIVE_MAX_S = 8.0, 20.0
"""How long TCP takes to notice that the other side of a partition is gone."""
PARKED_MESSAGES_MAX = 1000
NO_ROOM_PROBABILITY = 0.1


@dataclass(slots=True)
class _Request:
    """A request on the wire, and the caller's side of it."""

    number: int
    sender: SimPeers
    address: Address
    method: str
    body: bytes
    blobs: tuple[bytes, ...]
    timeout_s: float
    sent_s: float
    destination: ServerUuid | None
    answer: asyncio.Future[_Answer | StelaeError]
    target: SimPeers | None = None
    surely_not_sent: bool = False
    copies: int = 1
    """On the wire, or being served."""
    is_unknown: bool = False
    """A copy ended, and nothing is known of what it did."""

    def is_told(self, error: StelaeError | None) -> bool:
        """A copy ends with this answer: whether the caller may have it. A refusal says that nothing
        was done, and nothing will be."""
        self.copies -= 1
        if error is None:
            return True
        if isinstance(error, OutcomeUnknown):
            self.is_unknown = True
            return True
        return self.copies == 0 and not self.is_unknown

    def copy_vanished(self) -> None:
        """A copy ends without an answer."""
        self.copies -= 1
        self.is_unknown = True


@dataclass(slots=True)
class _Answer:
    body: bytes
    blobs: tuple[bytes, ...]
    error: bytes | None


class Network:
    """All links of the world. Nodes are named; faults are set between names."""

    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        options: Options,
        note: Callable[[str, str], None],
        on_handler_error: Callable[[Process, BaseException], None],
    ) -> None:
        self._loop = loop
        self._rng = rng
        self._options = options
        self.note = note
        self.on_handler_error = on_handler_error
        self.listeners: dict[Address, SimPeers] = {}
        self._names: dict[Address, str] = {}
        self._blocked: dict[tuple[str, str], int] = {}
        self._losing: dict[tuple[str, str], int] = {}
        """Links whose calls are lost: (caller, receiver)."""
        self._clogged_until_s: dict[tuple[str, str], float] = {}
        self._parked: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._watches: dict[int, tuple[SimPeers, SimPeers, asyncio.Future[None]]] = {}
        self._numbers = 0
        self.messages = 0
        """Requests sent so far."""
        self.bandwidths: dict[tuple[str, str], float] = {}
        """Of links that are slower than the others, in bytes per second: (sender, receiver)."""
        self.sent_bytes: dict[tuple[str, str], int] = {}
        """In requests so far, of each link."""
        self.drop_filter: Callable[[str, str, str], bool] | None = None
        """For scenarios: (sender, receiver, method) -> lose this request."""

    # ---- faults -------------------------------------------------------------------------------

    def block(self, sender: str, receiver: str) -> None:
        """Cut one direction of a link; cuts add up, each needs its own `unblock`."""
        pair = (sender, receiver)
        self._blocked[pair] = self._blocked.get(pair, 0) + 1
        for number in list(self._watches):
            watcher, target, ended = self._watches[number]
            if {watcher.name, target.name} == {sender, receiver}:
                delay_s = self._rng.uniform(KEEPALIVE_MIN_S, KEEPALIVE_MAX_S)
                self._later(delay_s, self._end_if_cut, watcher, target, ended)

    def unblock(self, sender: str, receiver: str) -> None:
        pair = (sender, receiver)
        count = self._blocked.get(pair, 0) - 1
        if count > 0:
            self._blocked[pair] = count
            return
        self._blocked.pop(pair, None)
        for deliver in self._parked.pop(pair, []):
            self._later(self.latency(0), deliver)

    def lose_calls(self, caller: str, receiver: str) -> None:
        """Lose every request of ``caller`` to ``receiver``, which goes on calling and is answered:
        its connections stand, and it hangs for that caller. Each needs its own `carry_calls`."""
        pair = (caller, receiver)
        self._losing[pair] = self._losing.get(pair, 0) + 1

    def carry_calls(self, caller: str, receiver: str) -> None:
        """Undo one `lose_calls`."""
        pair = (caller, receiver)
        count = self._losing.pop(pair, 0) - 1
        if count > 0:
            self._losing[pair] = count

    def has_no_room(self) -> bool:
        """Whether a sender's queue happens to be full at this moment."""
        return self._rng.random() < NO_ROOM_PROBABILITY

    def unblock_all(self) -> None:
        for pair in list(self._blocked):
            self._blocked[pair] = 1
            self.unblock(*pair)
        self._losing.clear()
        self._clogged_until_s.clear()

    def clog(self, sender: str, receiver: str, duration_s: float) -> None:
        """Hold every message of a link back for a while; none is lost."""
        self._clogged_until_s[sender, receiver] = self._loop.time() + duration_s

    def is_blocked(self, sender: str, receiver: str) -> bool:
        return bool(self._blocked) and (sender, receiver) in self._blocked

    def reset(self, first: str, second: str) -> None:
        """Break the connections between two nodes: calls become unknown, watches end."""
        for peers in list(self.listeners.values()):
            if peers.name not in (first, second):
                continue
            for request in list(peers.outstanding.values()):
                if {request.sender.name, peers.name} == {first, second}:
                    self._later(self.latency(0), self.broken, request)
        for watcher, target, ended in list(self._watches.values()):
            if {watcher.name, target.name} == {first, second}:
                self._later(self.latency(0), _resolve, ended)

    def process_ended(self, peers: SimPeers) -> None:
        """The process behind ``peers`` died or closed: its connections end, soon or unnoticed."""
        if self.listeners.get(peers.address) is peers:
            del self.listeners[peers.address]
        for request in list(peers.outstanding.values()):
            if not self._is_unnoticed() and not self._cut(request.sender.name, peers.name):
                self._later(self.latency(0), self.broken, request)
        for number in list(self._watches):
            watcher, target, ended = self._watches[number]
            if target is peers:
                cut = self._cut(watcher.name, target.name)
                delay_s = self._rng.uniform(KEEPALIVE_MIN_S, KEEPALIVE_MAX_S) if cut else 0.0
                self._later(delay_s + self.latency(0), _resolve, ended)

    def _is_unnoticed(self, share: float = 1.0) -> bool:
        return self._rng.random() >= 1.0 - share * self._options.unnoticed_end_rate

    def _end_if_cut(self, watcher: SimPeers, target: SimPeers, ended: asyncio.Future[None]) -> None:
        if self._cut(watcher.name, target.name):
            _resolve(ended)

    def _cut(self, first: str, second: str) -> bool:
        return (first, second) in self._blocked or (second, first) in self._blocked

    # ---- messages -----------------------------------------------------------------------------

    def latency(self, size_bytes: int) -> float:
        options = self._options
        latency_s = options.latency_min_s + self._rng.expovariate(1.0 / options.latency_mean_s)
        if self._rng.random() < options.slow_message_rate:
            latency_s *= 50.0
        return latency_s + size_bytes / options.bandwidth_bytes_s

    def _later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> None:
        self._loop.call_later(delay_s, callback, *args, context=self._loop.context)

    def _lost(self, rate: float) -> bool:
        return rate > 0.0 and self._rng.random() < rate

    def _transmit(self, sender: str, receiver: str, size: int, arrive: Callable[[], None]) -> bool:
        """Carry a message over a link. False if it is lost at once."""
        if self.is_blocked(sender, receiver):
            return self._park(sender, receiver, arrive)
        latency_s = self.latency(size)
        if self.bandwidths and (slow := self.bandwidths.get((sender, receiver))) is not None:
            latency_s += size / slow
        if self._clogged_until_s:
            until_s = self._clogged_until_s.get((sender, receiver), 0.0)
            latency_s = max(0.0, until_s - self._loop.time()) + latency_s
        self._later(latency_s, self._at_receiver, sender, receiver, arrive)
        return True

    def _at_receiver(self, sender: str, receiver: str, arrive: Callable[[], None]) -> None:
        if not self.is_blocked(sender, receiver):
            arrive()
        else:
            self._park(sender, receiver, arrive)

    def _park(self, sender: str, receiver: str, arrive: Callable[[], None]) -> bool:
        parked = self._parked.setdefault((sender, receiver), [])
        if len(parked) >= PARKED_MESSAGES_MAX or not self._lost(self._options.late_rate):
            return False
        parked.append(arrive)
        return True

    def send(self, request: _Request) -> None:
        """Put a request on the wire."""
        self.messages += 1
        sender = request.sender.name
        receiver = self._names.get(request.address, request.address)
        target = self.listeners.get(request.address)
        if target is None:
            if not self._cut(sender, receiver) and not self._is_unnoticed(0.5):
                error = Unavailable(request.address, "connection refused")
                self._later(self.latency(0), _resolve, request.answer, error)
            else:
                request.surely_not_sent = True
            return
        request.target = target
        target.outstanding[request.number] = request
        dropped = (sender, receiver) in self._losing or (
            self.drop_filter is not None and self.drop_filter(sender, receiver, request.method)
        )
        if sender != receiver and (dropped or self._lost(self._options.drop_request_rate)):
            self.note(sender, f"request {request.number} {request.method} to {receiver} is lost")
            return
        size = len(request.body) + sum(map(len, request.blobs))
        self.sent_bytes[sender, receiver] = self.sent_bytes.get((sender, receiver), 0) + size
        if not self._transmit(sender, receiver, size, lambda: self._arrive(request, target)):
            # A connection that has to be made first fails for certain; one that stood does not.
            request.surely_not_sent = self._rng.random() < 0.3
            self.note(sender, f"request {request.number} {request.method} to {receiver} is cut off")
        elif self._lost(self._options.duplicate_rate):
            request.copies += self._transmit(
                sender, receiver, size, lambda: self._arrive(request, target)
            )

    def _arrive(self, request: _Request, target: SimPeers) -> None:
        if not target.process.alive or target.closed:
            request.copy_vanished()
            if not self._is_unnoticed():
                self.broken(request)
            return
        self.note(target.name, f"< {request.number} {request.method} from {request.sender.name}")
        task = self._loop.create_task(
            target.serve(request),
            name=f"{target.name}:{request.method}",
            context=target.process.context.copy(),
        )
        target.running[task] = None
        task.add_done_callback(target.running.pop, context=self._loop.context)

    def reply(self, request: _Request, source: SimPeers, answer: _Answer) -> None:
        """Send an answer back."""
        receiver = request.sender.name
        if source.name != receiver and self._lost(self._options.drop_reply_rate):
            self.note(source.name, f"reply to {request.number} {request.method} is lost")
            return
        size = len(answer.body) + sum(map(len, answer.blobs))
        self._transmit(source.name, receiver, size, lambda: _resolve(request.answer, answer))

    def broken(self, request: _Request) -> None:
        _resolve(request.answer, OutcomeUnknown(request.address, request.method, request.timeout_s))

    # ---- for peers ----------------------------------------------------------------------------

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def name_address(self, address: Address, name: str) -> None:
        self._names[address] = name

    async def watch(self, watcher: SimPeers, address: Address) -> None:
        receiver = self._names.get(address, address)
        await asyncio.sleep(self.latency(0))
        watcher.process.check()
        if self._cut(watcher.name, receiver):
            await asyncio.sleep(self._rng.uniform(1.0, 5.0))  # the connection attempt times out
            return
        target = self.listeners.get(address)
        if target is None:
            return
        ended: asyncio.Future[None] = self._loop.create_future()
        number = self.next_number()
        self._watches[number] = (watcher, target, ended)
        try:
            await ended
        finally:
            del self._watches[number]


def _resolve(future: asyncio.Future[Any], value: Any = None) -> None:
    if not future.done():
        future.set_result(value)


class SimPeers:
    """A `Peers` of one process."""

    def __init__(self, network: Network, process: Process, address: Address, loop: SimLoop) -> None:
        self._network = network
        self._loop = loop
        self._address = address
        self._handlers: dict[str, tuple[Method[Any, Any], Handler]] = {}
        self._server_uuid: ServerUuid | None = None
        self._calls: dict[int, _Request] = {}
        self.process = process
        self.name = process.name
        self.closed = False
        self.outstanding: dict[int, _Request] = {}
        """Requests on their way to this process or being served by it."""
        self.running: dict[asyncio.Task[None], None] = {}
        """Handlers at work."""
        self._arrivals = Arrivals(loop, self.running)

    @property
    def address(self) -> Address:
        return self._address

    def is_near(self, address: Address) -> bool:
        return address == self._address  # each process of a simulation is a machine

    async def listen(self, server_uuid: ServerUuid, handlers: Handlers) -> None:
        self.process.check()
        assert not self.closed, "listen after close"
        self._server_uuid = server_uuid
        self._handlers = {method.name: (method, handler) for method, handler in handlers.items()}
        assert len(self._handlers) == len(handlers), "two methods share a name"
        self._network.listeners[self._address] = self

    async def call(
        self,
        address: Address,
        method: Method[Q, R],
        request: Q,
        *,
        timeout_s: float,
        blobs: Sequence[Blob] = (),
        destination: ServerUuid | None = None,
        memory: ReplyMemory | None = None,
    ) -> Reply[R]:
        self.process.check()
        if timeout_s <= 0:
            raise DeadlineExpired(method.name, "its turn to be sent")
        if self.closed:
            raise Unavailable(address, "this end is closed")
        assert isinstance(request, method.request), f"{method.name} takes {method.request}"
        # Of servers alone: a story's own client may ask whoever is at an address.
        is_told = destination is not None or bool(method.untagged)
        assert is_told or self._server_uuid is None, f"{method.name} must name its server"
        sent = _Request(
            number=self._network.next_number(),
            sender=self,
            address=address,
            method=method.name,
            body=msgspec.msgpack.encode(request),
            blobs=tuple([memoryview(blob).tobytes() for blob in blobs]),
            timeout_s=timeout_s,
            sent_s=self._loop.time(),
            destination=destination,
            answer=self._loop.create_future(),
        )
        self._calls[sent.number] = sent
        timer = self._loop.call_later(timeout_s, self._expire, sent)
        try:
            self._network.send(sent)
            answer = await sent.answer
        finally:
            timer.cancel()
            del self._calls[sent.number]
            if sent.target is not None:
                sent.target.outstanding.pop(sent.number, None)
        if isinstance(answer, StelaeError):
            raise answer
        if answer.error is not None:
            raise decode_error(answer.error)
        body = msgspec.msgpack.decode(answer.body, type=method.reply)
        return Reply(body, tuple(memoryview(blob) for blob in answer.blobs))

    def post(
        self,
        address: Address,
        method: Method[Q, R],
        request: Q,
        done: Callable[[Reply[R] | StelaeError], None],
        *,
        timeout_s: float,
        blobs: Sequence[Blob] = (),
        destination: ServerUuid | None = None,
    ) -> bool:
        """Now and then there is no room to send at once: the other way must work as well."""
        self.process.check()
        if self.closed or timeout_s <= 0 or self._network.has_no_room():
            return False

        async def carry() -> None:
            try:
                outcome: Reply[R] | StelaeError = await self.call(
                    address,
                    method,
                    request,
                    timeout_s=timeout_s,
                    blobs=blobs,
                    destination=destination,
                )
            except StelaeError as error:
                outcome = error
            done(outcome)

        self._loop.create_task(carry())
        return True

    def _expire(self, request: _Request) -> None:
        if request.surely_not_sent:
            error: StelaeError = Unavailable(request.address, "connecting timed out")
        else:
            error = OutcomeUnknown(request.address, request.method, request.timeout_s)
        _resolve(request.answer, error)

    async def serve(self, request: _Request) -> None:
        """Run the handler of a request that arrived, and answer it."""
        refusal: StelaeError | None = None
        try:
            answer = await self._handle(request)
        except StelaeError as error:
            refusal = error
            answer = _Answer(b"", (), encode_error(error))
        except asyncio.CancelledError:
            request.copy_vanished()  # the server is stopping; the caller's connection breaks
            return
        except Exception as error:
            request.copy_vanished()
            error.add_note(f"in {self.name}'s handler of {request.method}")
            self._network.on_handler_error(self.process, error)
            return
        if request.is_told(refusal):
            self._network.reply(request, self, answer)

    async def _handle(self, request: _Request) -> _Answer:
        if request.destination is not None and request.destination != self._server_uuid:
            raise WrongServer(request.destination, str(self._server_uuid))
        if request.method not in self._handlers:
            raise InvalidArgument(f"no method {request.method!r} here")
        method, handler = self._handlers[request.method]
        left_s = request.timeout_s - (self._loop.time() - request.sent_s)
        body = msgspec.msgpack.decode(request.body, type=method.request)
        # What comes late comes with its whole deadline: time on the wire cannot be measured there.
        timeout_s = left_s if left_s > 0 else request.timeout_s
        call = Call(body, tuple(map(memoryview, request.blobs)), timeout_s)
        reply = await self._arrivals.carry_out(handler, call)
        assert isinstance(reply.body, method.reply), f"{method.name} answers {method.reply}"
        blobs = tuple([memoryview(blob).tobytes() for blob in reply.blobs])
        return _Answer(msgspec.msgpack.encode(reply.body), blobs, None)

    async def watch(self, address: Address) -> None:
        self.process.check()
        await self._network.watch(self, address)

    async def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self._network.process_ended(self)
        for request in list(self._calls.values()):
            self._network.broken(request)
        for task in (running := list(self.running)):  # as the real one does
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
