"""How fast calls are between two processes: `TcpPeers` beside a bare asyncio echo, in one run.

    python -m benchmarks.cores.transport [--loop asyncio|uvloop] [--seconds 1.0]

Prints one JSON line per figure: round trips of 100 bytes (microseconds, p50 and p99), calls per
second with 1, 16 and 128 outstanding, MB/s of blobs of 8 and 64 MiB, and small calls beside large
blobs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import multiprocessing.connection
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import uvloop

from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Call, Method, Reply
from stelae.runtime.tcp.handshake import Credentials
from stelae.runtime.tcp.peers import TcpPeers

SECRET = bytes(range(32))
UUID = ServerUuid("0123456789abcdef0123456789abcdef")
MIB = 1024 * 1024
_LENGTH = struct.Struct("<I")


class Text(msgspec.Struct, frozen=True, array_like=True):
    payload: bytes


ECHO = Method("bench.echo", Text, Text)
SINK = Method("bench.sink", Text, Text)
SOURCE = Method("bench.source", Text, Text)


def fail(error: BaseException) -> None:
    raise error


async def serve_peers(pipe: multiprocessing.connection.Connection) -> None:
    blob = bytes(64 * MIB)

    async def echo(call: Call[Text]) -> Reply[Text]:
        return Reply(call.body)

    async def sink(call: Call[Text]) -> Reply[Text]:
        return Reply(Text(b"%d" % sum(view.nbytes for view in call.blobs)))

    async def source(call: Call[Text]) -> Reply[Text]:
        return Reply(Text(b""), [memoryview(blob)[: int(call.body.payload)]])

    peers = TcpPeers(Credentials("bench", SECRET), on_failure=fail)
    await peers.listen(UUID, {ECHO: echo, SINK: sink, SOURCE: source})
    pipe.send(peers.address)
    await asyncio.Event().wait()


class BareEcho(asyncio.Protocol):
    """Length-prefixed frames, sent back as they came; the least that a call can cost here."""

    def __init__(self) -> None:
        self.rest = b""
        self.futures: dict[int, asyncio.Future[bytes]] = {}
        self.out: list[bytes] = []
        self.loop = asyncio.get_running_loop()
        self.last = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self.rest + data if self.rest else data
        offset, end = 0, len(data)
        while end - offset >= 4:
            (length,) = _LENGTH.unpack_from(data, offset)
            if end - offset - 4 < length:
                break
            self.frame(data[offset + 4 : offset + 4 + length])
            offset += 4 + length
        self.rest = data[offset:]

    def frame(self, payload: bytes) -> None:
        self.push(payload)

    def push(self, payload: bytes) -> None:
        if not self.out:
            self.loop.call_soon(self.flush)
        self.out.append(_LENGTH.pack(len(payload)) + payload)

    def flush(self) -> None:
        self.transport.write(b"".join(self.out))
        self.out.clear()


class BareClient(BareEcho):
    def frame(self, payload: bytes) -> None:
        number, body = msgspec.msgpack.decode(payload)
        self.futures.pop(number).set_result(body)

    async def call(self, payload: bytes) -> bytes:
        self.last += 1
        future: asyncio.Future[bytes] = self.loop.create_future()
        self.futures[self.last] = future
        self.push(msgspec.msgpack.encode((self.last, payload)))
        return await future


async def serve_bare(pipe: multiprocessing.connection.Connection) -> None:
    server = await asyncio.get_running_loop().create_server(BareEcho, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    await asyncio.Event().wait()


def emit(loop: str, what: str, **figures: float) -> None:
    rounded = {name: round(value, 1) for name, value in figures.items()}
    print(json.dumps({"loop": loop, "what": what, **rounded}), flush=True)


async def latencies(call: Callable[[], Awaitable[Any]], seconds: float) -> list[float]:
    taken = []
    for _ in range(50):
        await call()
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await call()
        taken.append((time.perf_counter() - start) * 1e6)
    return sorted(taken)


def quantiles(taken: list[float]) -> dict[str, float]:
    return {"p50_us": taken[len(taken) // 2], "p99_us": taken[len(taken) * 99 // 100]}


async def rate(call: Callable[[], Awaitable[Any]], outstanding: int, seconds: float) -> float:
    end = time.perf_counter() + seconds
    done = 0

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call()
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(outstanding)))
    return done / (time.perf_counter() - start)


async def measure_calls(
    loop: str, name: str, call: Callable[[], Awaitable[Any]], seconds: float
) -> None:
    emit(loop, f"{name}: 100 B echo", **quantiles(await latencies(call, seconds)))
    for outstanding in (1, 16, 128):
        rates = [await rate(call, outstanding, seconds / 3) for _ in range(3)]
        emit(loop, f"{name}: {outstanding} outstanding", calls_per_s=sorted(rates)[1])


async def measure_bare(loop: str, port: int, seconds: float) -> None:
    _, client = await asyncio.get_running_loop().create_connection(BareClient, "127.0.0.1", port)
    payload = bytes(100)
    await measure_calls(loop, "bare echo", lambda: client.call(payload), seconds)


async def measure_peers(loop: str, address: Address, seconds: float) -> None:
    peers = TcpPeers(Credentials("bench", SECRET), on_failure=fail)
    text = Text(bytes(100))

    async def echo() -> None:
        await peers.call(address, ECHO, text, timeout_s=10.0, destination=UUID)

    await measure_calls(loop, "TcpPeers", echo, seconds)
    for size in (1 * MIB, 8 * MIB, 64 * MIB):
        blob = bytearray(size)

        async def sink(blob: bytearray = blob) -> None:
            await peers.call(address, SINK, Text(b""), timeout_s=30.0, blobs=[blob])

        async def source(size: int = size) -> None:
            await peers.call(address, SOURCE, Text(b"%d" % size), timeout_s=30.0)

        for label, move in (("to", sink), ("from", source)):
            await move()
            rates = []
            for _ in range(5):
                start = time.perf_counter()
                count = max(1, 128 * MIB // size)
                for _ in range(count):
                    await move()
                rates.append(count * size / (time.perf_counter() - start) / 1e6)
            emit(
                loop,
                f"TcpPeers: blob of {size // MIB} MiB {label} the server",
                mb_per_s=sorted(rates)[2],
            )
    stop = asyncio.Event()

    async def flood() -> None:
        while not stop.is_set():
            await peers.call(address, SINK, Text(b""), timeout_s=30.0, blobs=[blob])

    flooding = [asyncio.create_task(flood()) for _ in range(2)]
    emit(
        loop,
        "TcpPeers: 100 B echo beside 64 MiB blobs",
        **quantiles(await latencies(echo, seconds)),
    )
    stop.set()
    await asyncio.gather(*flooding)
    await peers.close()


def run(loop: str, work: Coroutine[Any, Any, None]) -> None:
    (uvloop.run if loop == "uvloop" else asyncio.run)(work)


def _serve(loop: str, kind: str, pipe: multiprocessing.connection.Connection) -> None:
    run(loop, serve_peers(pipe) if kind == "peers" else serve_bare(pipe))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], action="append")
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for loop in options.loop or ["asyncio", "uvloop"]:
        for kind in ("bare", "peers"):
            mine, theirs = context.Pipe()
            server = context.Process(target=_serve, args=(loop, kind, theirs), daemon=True)
            server.start()
            where = mine.recv()
            if kind == "bare":
                run(loop, measure_bare(loop, where, options.seconds))
            else:
                run(loop, measure_peers(loop, where, options.seconds))
            server.kill()
            server.join()


if __name__ == "__main__":
    main()
