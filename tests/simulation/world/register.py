"""A toy that the simulator is proved with: versioned rows on a majority of replicas.

The algorithm is ABD (Attiya, Bar-Noy, Dolev, "Sharing Memory Robustly", 1995) with several writers:
a write asks a majority for the newest version and stores a newer one at a majority; a read takes
the newest of a majority and stores it at a majority before it answers. Each rule can be broken by
name.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable

import msgspec

from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Method, Reply
from stelae.core.runtime import File
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.checkers import require_rows
from stelae.simulation.history import History, Operation
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.instance import SimRuntime

BUGS = (
    "no sync before the answer",
    "carry on after a failed sync",
    "no checksum",
    "tail not cut",
    "older version overwrites newer",
    "read is not stored back",
    "minority is enough",
)
WRITERS_MAX = 100


class Row(msgspec.Struct, frozen=True, array_like=True):
    key: str
    version: int
    value: str | None


class Key(msgspec.Struct, frozen=True, array_like=True):
    key: str


STORE = Method("store", Row, Empty, "of a story, with fixed servers")
FETCH = Method("fetch", Key, Row, "of a story, with fixed servers")


class Replica:
    """One replica: rows in memory, and a log of them on disk."""

    def __init__(self, runtime: SimRuntime, bug: str) -> None:
        self.tasks = Tasks()
        self.rows: dict[str, Row] = {}
        self._runtime = runtime
        self._bug = bug
        self._file: File | None = None
        self._end = 0

    async def start(self) -> None:
        self._file = await self._runtime.disk.open("rows")
        self._replay(self._file)
        if self._bug != "tail not cut":
            self._file.truncate(self._end)
            await self._file.sync()
        else:
            self._end = self._file.size
        handlers: Handlers = {STORE: self._store, FETCH: self._fetch}
        await self._runtime.peers.listen(ServerUuid(""), handlers)

    async def stop(self) -> None:
        await self.tasks.close()
        await self._runtime.peers.close()

    def _replay(self, file: File) -> None:
        data = file.read_at(0, file.size)
        while self._end + 8 <= len(data):
            size = int.from_bytes(data[self._end : self._end + 4], "big")
            crc = int.from_bytes(data[self._end + 4 : self._end + 8], "big")
            body = data[self._end + 8 : self._end + 8 + size]
            if len(body) < size or size == 0:
                return
            if self._bug != "no checksum" and zlib.crc32(body) != crc:
                return
            self._apply(msgspec.msgpack.decode(body, type=Row))
            self._end += 8 + size

    def _apply(self, row: Row) -> None:
        known = self.rows.get(row.key)
        careless = self._bug == "older version overwrites newer"
        if known is None or row.version > known.version or careless:
            self.rows[row.key] = row

    async def _store(self, call: Call[Row]) -> Reply[Empty]:
        assert self._file is not None
        body = msgspec.msgpack.encode(call.body)
        record = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
        self._file.write_at(self._end, record)
        self._end += len(record)
        try:
            if self._bug != "no sync before the answer":
                await self._file.sync()
        except OSError:
            if self._bug != "carry on after a failed sync":
                raise
        self._apply(call.body)
        return EMPTY

    async def _fetch(self, call: Call[Key]) -> Reply[Row]:
        return Reply(self.rows.get(call.body.key, Row(call.body.key, 0, None)))


class Register:
    """A client: reads and writes rows at a majority of the replicas."""

    def __init__(self, runtime: SimRuntime, replicas: list[Address], number: int, bug: str) -> None:
        assert number < WRITERS_MAX
        self._runtime = runtime
        self._replicas = replicas
        self._number = number
        self._bug = bug
        self._round = 0

    async def write(self, key: str, value: str | None, timeout_s: float) -> int:
        """Returns the version. Raises TimeoutError; `begun` tells whether it may have happened."""
        self.begun = False
        async with asyncio.timeout(timeout_s):
            newest = await self._newest(key)
            self._round = max(self._round, newest.version // WRITERS_MAX) + 1
            row = Row(key, self._round * WRITERS_MAX + self._number, value)
            self.begun = True
            await self._store(row)
            return row.version

    async def read(self, key: str, timeout_s: float) -> Row:
        async with asyncio.timeout(timeout_s):
            newest = await self._newest(key)
            if newest.version > 0 and self._bug != "read is not stored back":
                await self._store(newest)
            return newest

    async def _newest(self, key: str) -> Row:
        async def ask(address: Address) -> Row:
            reply = await self._runtime.peers.call(address, FETCH, Key(key), timeout_s=0.3)
            return reply.body

        found = await self._majority(ask)
        return max(found, key=lambda row: row.version)

    async def _store(self, row: Row) -> None:
        async def tell(address: Address) -> Row:
            await self._runtime.peers.call(address, STORE, row, timeout_s=0.3)
            return row

        await self._majority(tell)

    async def _majority(self, ask: Callable[[Address], Awaitable[Row]]) -> list[Row]:
        answers: asyncio.Queue[Row] = asyncio.Queue()

        async def insist(address: Address) -> None:
            while True:
                try:
                    answers.put_nowait(await ask(address))
                    return
                except StelaeError:
                    await self._runtime.clock.sleep(0.05)

        needed = len(self._replicas) // 2 + 1
        if self._bug == "minority is enough":
            needed = max(1, needed - 1)
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(insist(address)) for address in self._replicas]
            found = [await answers.get() for _ in range(needed)]
            for task in asking:
                task.cancel()
        return found


async def work(world: World, history: History, register: Register, name: str) -> None:
    """One client's share of the workload."""
    rng = world.rng(f"workload/{name}")
    plan = world.options.workload
    weights = [plan.write_share, plan.delete_share, plan.read_share]
    for number in range(plan.operations):
        key = f"k{rng.randrange(plan.keys)}"
        kind = rng.choices(["write", "delete", "read"], weights)[0]
        if kind == "read":
            await read(history, register, name, key, 2.0)
        else:
            value = f"{name}.{number}" if kind == "write" else None
            await write(history, register, name, key, value)
        if plan.think_s:
            await asyncio.sleep(rng.expovariate(1.0 / plan.think_s))


async def write(
    history: History, register: Register, name: str, key: str, value: str | None
) -> None:
    operation = history.begin(name, "write" if value is not None else "delete", key, value)
    try:
        history.ok(operation, version=await register.write(key, value, 2.0))
    except TimeoutError:
        if register.begun:
            history.unknown(operation)
        else:
            history.failed(operation)


async def read(
    history: History, register: Register, name: str, key: str, timeout_s: float
) -> Operation:
    operation = history.begin(name, "read", key)
    try:
        row = await register.read(key, timeout_s)
        history.ok(operation, version=row.version or None, value=row.value)
    except TimeoutError:
        history.failed(operation)
    return operation


async def run(world: World, bug: str = "") -> None:
    """Clients work while the nemesis does; then everything heals and every key is read."""
    names = [f"r{number}" for number in range(world.options.servers.masters)]
    for name in names:
        world.start(name, lambda runtime: Replica(runtime, bug), kind="replica")
    await world.wait_ready()
    history = History(world.loop.time)
    replicas = [world.address(name) for name in names]
    registers = {
        f"c{number}": Register(world.client(f"c{number}"), replicas, number, bug)
        for number in range(world.options.workload.clients)
    }
    nemesis = Nemesis.begin(world, duration_s=30.0)
    async with asyncio.TaskGroup() as group:
        for name, register in registers.items():
            group.create_task(work(world, history, register, name))
    await nemesis.finish()
    for name in names:  # what only memory held does not count
        world.restart(name)
    await world.wait_ready()
    for number in range(world.options.workload.keys):
        last = await read(history, registers["c0"], "c0", f"k{number}", 60.0)
        assert last.outcome == "ok", f"no progress: {last}"
    require_rows(history)


SCENARIO = Scenario("kv", run, Options.draw)
