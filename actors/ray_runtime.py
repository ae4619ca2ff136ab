"""The Runtime on Ray: `stelae.runtime`'s TCP and files, with Ray's object store and metrics."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pyarrow as pa
import ray
from ray.util import metrics as ray_metrics

from stelae.core.runtime import ObjectHandle

FLUSH_PERIOD_S = 1.0
SAMPLE_PERIOD_S = 0.05
BOUNDARIES_S = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10]


class RayObject:
    """Handle of an object in Ray's store: it lives as long as some handle, and its owner, do."""

    def __init__(self, ref: Any, size: int) -> None:
        self.ref = ref
        self._size = size

    @property
    def size(self) -> int:
        return self._size


class RayObjects:
    """See `stelae.core.runtime.Objects`. Buffers are copied in once and read without a copy."""

    async def put(self, buffer: pa.Buffer) -> ObjectHandle:
        ref = await asyncio.get_running_loop().run_in_executor(None, ray.put, buffer)
        return RayObject(ref, buffer.size)

    async def get(self, handle: ObjectHandle) -> pa.Buffer:
        assert isinstance(handle, RayObject), f"{handle!r} is not in Ray's object store"
        try:
            return await handle.ref
        except ray.exceptions.ObjectLostError as error:
            raise KeyError(str(error)) from error


class RayMetrics:
    """See `stelae.core.runtime.Metrics`. A record in Ray costs 40 µs, which a write path does not
    have: counts are gathered here and handed to Ray each second, and of observations that come
    more often than each `SAMPLE_PERIOD_S` Ray gets a sample."""

    def __init__(self, **tags: str) -> None:
        self._tags = tags
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._instruments: dict[str, Any] = {}
        self._flushed = time.monotonic()
        self._sampled: dict[str, float] = {}

    def count(self, name: str, amount: float = 1.0, **tags: str) -> None:
        key = (name, tuple(sorted(tags.items())))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0.0) + amount
        if time.monotonic() - self._flushed > FLUSH_PERIOD_S:
            self.flush()

    def gauge(self, name: str, value: float, **tags: str) -> None:
        self._instrument(ray_metrics.Gauge, name, tags).set(value, tags={**self._tags, **tags})

    def observe(self, name: str, value: float, **tags: str) -> None:
        now = time.monotonic()
        if now - self._sampled.get(name, 0.0) < SAMPLE_PERIOD_S:
            return
        self._sampled[name] = now
        instrument = self._instrument(ray_metrics.Histogram, name, tags, boundaries=BOUNDARIES_S)
        instrument.observe(value, tags={**self._tags, **tags})

    def flush(self) -> None:
        """Hand what was counted to Ray."""
        with self._lock:
            counts, self._counts = self._counts, {}
            self._flushed = time.monotonic()
        for (name, pairs), amount in counts.items():
            tags = dict(pairs)
            if amount > 0:
                counter = self._instrument(ray_metrics.Counter, name, tags)
                counter.inc(amount, tags={**self._tags, **tags})

    def _instrument(self, kind: Any, name: str, tags: dict[str, str], **more: Any) -> Any:
        found = self._instruments.get(name)
        if found is None:
            keys = tuple(sorted({*self._tags, *tags}))
            found = kind(f"stelae_{name}", description=name, tag_keys=keys, **more)
            self._instruments[name] = found
        return found
