"""Many writers of single rows that cost the machine little, as wrk costs it little for etcd.

A client of Stelae costs more than a row does on the servers, so that many of them on one machine
measure themselves. Each writer here has a connection and a client id of its own, speaks the
protocol with the same frames as every client, and waits for one answer before it sends the next
row. It does the ordinary case only: whatever else the leader answers ends the run.
"""

from __future__ import annotations

import selectors
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.common.figures import percentile
from benchmarks.common.generated import BODY_BYTES
from stelae.core.addresses import split_address
from stelae.core.errors import decode_error
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid
from stelae.core.messages.catalog import TabletLocation
from stelae.core.messages.rows import WRITE, Write, WriteOp, WriteReply
from stelae.runtime.tcp.frames import (
    HEAD_BYTES,
    Kind,
    decode_head,
    decode_reply,
    encode_frame,
    encode_request,
)
from stelae.runtime.tcp.handshake import ClientHandshake, Credentials
from stelae.runtime.tcp.local import connect_locally

KEYS = 10_000
"""Of each writer."""
_TIMEOUT_S = 10.0
_RECEIVE_BYTES = 4096

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WriteReply).decode
_BODY = "x" * BODY_BYTES


@dataclass(frozen=True, slots=True)
class Written:
    """What was answered within the time."""

    rows: int
    duration_s: float
    times_s: Sequence[float]

    @property
    def rate(self) -> float:
        return self.rows / self.duration_s

    @property
    def note(self) -> str:
        half, most = percentile(self.times_s, 0.5) * 1e3, percentile(self.times_s, 0.99) * 1e3
        return f"median {half:.1f} ms, p99 {most:.1f} ms"


def joined(loads: Sequence[Written]) -> Written:
    """Several runs as one."""
    times = [time_s for load in loads for time_s in load.times_s]
    return Written(len(times), sum([load.duration_s for load in loads]), times)


class Writers:
    """``count`` connections to the server that has or leads the tablet at ``where``."""

    def __init__(
        self,
        credentials: Credentials,
        where: TabletLocation,
        server: ServerUuid,
        count: int,
    ) -> None:
        self._writers = [_Writer(credentials, where, server, number) for number in range(count)]

    def run(self, duration_s: float) -> Written:
        """Write for so long. Raises the error that a row ended with."""
        times: list[float] = []
        with selectors.EpollSelector() as ready:
            for writer in self._writers:
                ready.register(writer.socket, selectors.EVENT_READ, writer.received)
                writer.send()
            started = time.perf_counter()
            end = started + duration_s
            under_way = len(self._writers)
            while under_way:
                events = ready.select(_TIMEOUT_S)
                if not events:
                    raise TimeoutError(f"no row was answered within {_TIMEOUT_S:.0f} s")
                for key, _ in events:
                    received: Callable[[list[float], bool], bool] = key.data
                    under_way -= not received(times, time.perf_counter() < end)
        return Written(len(times), time.perf_counter() - started, times)

    def close(self) -> None:
        for writer in self._writers:
            writer.socket.close()


class _Writer:
    """One client: a request after the other, numbered without gaps."""

    def __init__(
        self,
        credentials: Credentials,
        where: TabletLocation,
        server: ServerUuid,
        number: int,
    ) -> None:
        self._tablet_id = where.tablet.tablet_id
        self._destination = bytes.fromhex(server)
        self._client_id = ClientId(uuid.uuid4().hex)
        self._first_key = number * 1_000_000
        self._sequence = 0
        self._sent_s = 0.0
        self._held = b""
        self.socket = _connect(credentials, where.address)

    def send(self) -> None:
        self._sequence += 1
        sequence = self._sequence
        body = Write(
            self._tablet_id,
            1,
            WriteOp.UPSERT,
            RequestId(self._client_id, sequence, sequence),
            ((self._first_key + sequence % KEYS, 0.5, _BODY),),
        )
        timeout_ms = int(_TIMEOUT_S * 1000)
        name = WRITE.name.encode()
        buffers, _ = encode_request(timeout_ms, self._destination, name, _encode(body))
        self._sent_s = time.perf_counter()
        self.socket.sendall(encode_frame(Kind.REQUEST, sequence, bytes(buffers[0])))

    def received(self, times: list[float], goes_on: bool) -> bool:
        """Take an answer in, and send the next row if the run goes on; False: it ends here."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed the connection")
        self._held += data
        frame = memoryview(self._held)
        if len(frame) < HEAD_BYTES:
            return True
        length, _, kind, _, call_id, _ = decode_head(frame, 0)
        if len(frame) < HEAD_BYTES + length:
            return True
        payload = frame[HEAD_BYTES:]
        if kind is Kind.ERROR:
            raise decode_error(bytes(payload))
        assert kind is Kind.REPLY, kind
        assert call_id == self._sequence, (call_id, self._sequence)
        assert _decode(decode_reply(payload)[0]).row_count == 1
        self._held = b""
        times.append(time.perf_counter() - self._sent_s)
        if goes_on:
            self.send()
        return goes_on


def _connect(credentials: Credentials, address: Address) -> socket.socket:
    """A connection as a client of this machine makes it, after its handshake."""
    made = connect_locally(address)
    if made is None:
        made = socket.create_connection(split_address(address), _TIMEOUT_S)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.settimeout(None)
    handshake = ClientHandshake(credentials, address)
    made.sendall(handshake.start())
    while not handshake.done:
        answer = handshake.feed(made.recv(handshake.needed, socket.MSG_WAITALL))
        if handshake.error is not None:
            raise handshake.error
        made.sendall(answer)
    return made
