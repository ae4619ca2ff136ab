"""Simulated object store: buffers that live as long as the process that put them.

What one process shares others fetch over the network: a cut link holds it up, the death of the
owner or chance loses it. No memory is shared: nobody can change what another one sees.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pyarrow as pa

from stelae.core.errors import Overloaded
from stelae.core.runtime import ObjectHandle
from stelae.simulation.world.network import Network
from stelae.simulation.world.options import Options
from stelae.simulation.world.process import Process

LOOK_AGAIN_S = 0.02


class SimObject:
    """A handle: keeps its buffer alive while the handle is referenced and its owner lives."""

    def __init__(self, owner: Process, buffer: pa.Buffer, key: bytes) -> None:
        self.owner = owner
        self.buffer = buffer
        self.key = key
        self._size = int(buffer.size)

    @property
    def size(self) -> int:
        return self._size


@dataclass(eq=False)
class SimStore:
    """What all processes of a world share."""

    options: Options
    rng: random.Random
    network: Network
    shared: dict[bytes, SimObject] = field(default_factory=dict)
    made: int = 0


class SimObjects:
    """An `Objects` of one process."""

    def __init__(self, process: Process, store: SimStore) -> None:
        self._process = process
        self._store = store
        self.is_full = False
        """Set by tests: nothing more can be put."""

    async def put(self, buffer: pa.Buffer) -> SimObject:
        self._process.check()
        if self.is_full:
            raise Overloaded("the object store", buffer.size)
        copy = pa.py_buffer(buffer.to_pybytes())  # nobody can change an object
        await asyncio.sleep(self._store.options.latency_min_s)
        self._store.made += 1
        return SimObject(self._process, copy, b"%d" % self._store.made)

    async def move(self, buffer: pa.Buffer) -> tuple[SimObject, pa.Buffer]:
        handle = await self.put(buffer)
        return handle, await self.get(handle)

    async def get(self, handle: ObjectHandle) -> pa.Buffer:
        self._process.check()
        assert isinstance(handle, SimObject), "a handle of another world"
        await asyncio.sleep(self._store.options.latency_min_s)
        if not handle.owner.alive:
            raise KeyError(f"the owner of this object, {handle.owner.name}, has died")
        return handle.buffer

    @property
    def can_share(self) -> bool:
        return self._store.options.shares_objects

    def share(self, handle: ObjectHandle) -> bytes:
        self._process.check()
        assert isinstance(handle, SimObject), "a handle of another world"
        assert self.can_share, "nobody can fetch it"
        self._store.shared[handle.key] = handle
        return handle.key

    def unshare(self, handle: ObjectHandle) -> None:
        assert isinstance(handle, SimObject), "a handle of another world"
        self._store.shared.pop(handle.key, None)

    def shared(self) -> list[SimObject]:
        """What this process shares, for tests."""
        return [each for each in self._store.shared.values() if each.owner is self._process]

    async def fetch(self, token: bytes) -> pa.Buffer:
        self._process.check()
        store = self._store
        handle = store.shared.get(token)
        if handle is None:
            raise KeyError(f"nobody shares object {token!r}")
        owner, network = handle.owner, store.network
        await asyncio.sleep(network.latency(handle.size))
        while owner.alive:
            if not self._is_cut(owner):
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        rate = store.options.lost_object_rate
        if not owner.alive or (rate > 0.0 and store.rng.random() < rate):
            raise KeyError(f"object {token!r} of {owner.name} is lost")
        return pa.py_buffer(handle.buffer.to_pybytes())

    def _is_cut(self, owner: Process) -> bool:
        mine, network = self._process.name, self._store.network
        return network.is_blocked(owner.name, mine) or network.is_blocked(mine, owner.name)
