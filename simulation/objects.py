"""Simulated object store: buffers that live as long as the process that put them."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from stelae.core.runtime import ObjectHandle
from stelae.simulation.process import Process


class SimObject:
    """A handle: keeps its buffer alive while the handle is referenced and its owner lives."""

    def __init__(self, owner: Process, buffer: pa.Buffer) -> None:
        self.owner = owner
        self.buffer = buffer
        self._size = int(buffer.size)

    @property
    def size(self) -> int:
        return self._size


class SimObjects:
    """An `Objects` of one process."""

    def __init__(self, process: Process, latency_s: float) -> None:
        self._process = process
        self._latency_s = latency_s

    async def put(self, buffer: pa.Buffer) -> SimObject:
        self._process.check()
        copy = pa.py_buffer(buffer.to_pybytes())  # nobody can change an object
        await asyncio.sleep(self._latency_s)
        return SimObject(self._process, copy)

    async def get(self, handle: ObjectHandle) -> pa.Buffer:
        self._process.check()
        assert isinstance(handle, SimObject), "a handle of another world"
        await asyncio.sleep(self._latency_s)
        if not handle.owner.alive:
            raise KeyError(f"the owner of this object, {handle.owner.name}, has died")
        return handle.buffer
