"""The Runtime on Ray: `stelae.runtime`'s TCP and files, with Ray's object store and metrics."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import ray
from ray.util import metrics as ray_metrics

from stelae.core.errors import Overloaded
from stelae.core.metric_catalogue import METRICS
from stelae.core.runtime import ObjectHandle
from stelae.runtime.mapped_ahead import MappedAhead

FLUSH_PERIOD_S = 1.0
SAMPLE_PERIOD_S = 0.05
MAPPED_BYTES_MIN = 1 << 20
"""Smaller objects may lie elsewhere, and are soon copied."""
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
    """See `stelae.core.runtime.Objects`. Buffers are copied in once and read without a copy.

    References travel as answers of actors (`lend`), which is how Ray knows who has them: one that
    was pickled by hand would keep its object for as long as the process lives.
    """

    def __init__(self, actor: str = "", namespace: str = "") -> None:
        """``actor``: by which name others find this process; none: it shares nothing."""
        self._actor = actor
        self._namespace = namespace
        self._lent: dict[str, Any] = {}
        self._lenders: dict[str, Any] = {}
        self._ahead = MappedAhead()

    async def put(self, buffer: pa.Buffer) -> ObjectHandle:
        return RayObject(await self._store(ray.put, buffer), buffer.size)

    async def move(self, buffer: pa.Buffer) -> tuple[ObjectHandle, pa.Buffer]:
        # On the thread that has put it: the way by the event loop waits for two more threads.
        ref, found = await self._store(self._put_and_get, buffer)
        return RayObject(ref, buffer.size), found

    def _put_and_get(self, buffer: pa.Buffer) -> tuple[Any, pa.Buffer]:
        ref = ray.put(buffer)
        found = ray.get(ref)
        if found.size >= MAPPED_BYTES_MIN:
            self._ahead.put(found.address, found.size)
        return ref, found

    @staticmethod
    async def _store(work: Callable[[pa.Buffer], Any], buffer: pa.Buffer) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, work, buffer)
        except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
            raise Overloaded("the object store", buffer.size) from error

    async def get(self, handle: ObjectHandle) -> pa.Buffer:
        assert isinstance(handle, RayObject), f"{handle!r} is not in Ray's object store"
        try:
            return await handle.ref
        except ray.exceptions.ObjectLostError as error:
            raise KeyError(str(error)) from error

    @property
    def can_share(self) -> bool:
        return bool(self._actor)

    def share(self, handle: ObjectHandle) -> bytes:
        assert isinstance(handle, RayObject), f"{handle!r} is not in Ray's object store"
        key = handle.ref.hex()
        self._lent[key] = handle.ref
        return msgspec.msgpack.encode((self._actor, key))

    def unshare(self, handle: ObjectHandle) -> None:
        assert isinstance(handle, RayObject), f"{handle!r} is not in Ray's object store"
        self._lent.pop(handle.ref.hex(), None)

    def lend(self, key: str) -> list[Any]:
        """The reference that a token names, in a list; empty if it is not shared any more."""
        ref = self._lent.get(key)
        return [] if ref is None else [ref]

    async def fetch(self, token: bytes) -> pa.Buffer:
        actor, key = msgspec.msgpack.decode(token, type=tuple[str, str])
        try:
            refs = await (await self._lender(actor)).lend.remote(key)
            if refs:
                return await refs[0]
        except (ray.exceptions.RayError, ValueError) as error:
            self._lenders.pop(actor, None)
            raise KeyError(str(error)) from error
        raise KeyError(f"{actor} shares no object {key}")

    async def _lender(self, actor: str) -> Any:
        """The handle of a server's actor. Raises ValueError if there is none of that name."""
        if actor not in self._lenders:
            loop, find = asyncio.get_running_loop(), functools.partial(ray.get_actor, actor)
            found = functools.partial(find, namespace=self._namespace)
            self._lenders[actor] = await loop.run_in_executor(None, found)
        return self._lenders[actor]


class RayMetrics:
    """See `stelae.core.runtime.Metrics`. A record in Ray costs 40 µs, which a write path does not
    have: counts are gathered here and handed to Ray each second, and of observations that come
    more often than each `SAMPLE_PERIOD_S` Ray gets a sample. Ray forgets a gauge that is not told
    anew for two of its reports; so `tell_gauges` tells all of them, and is called now and then.

    Of labels Ray gets those of `stelae.core.metric_catalogue`, whatever else whoever counts says:
    who keeps counts by address or by peer has them in tests, and nobody pays for them here."""

    def __init__(self, **tags: str) -> None:
        self._tags = tags
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._instruments: dict[str, Any] = {}
        self._flushed = time.monotonic()
        self._sampled: dict[str, float] = {}

    def count(self, name: str, amount: float = 1.0, **tags: str) -> None:
        key = (name, tuple(sorted(_known(name, tags).items())))
        with self._lock:
            self._counts[key] = self._counts.get(key, 0.0) + amount
        if time.monotonic() - self._flushed > FLUSH_PERIOD_S:
            self.flush()

    def gauge(self, name: str, value: float, **tags: str) -> None:
        key = (name, tuple(sorted(_known(name, tags).items())))
        with self._lock:
            self._gauges[key] = value

    def observe(self, name: str, value: float, **tags: str) -> None:
        now = time.monotonic()
        if now - self._sampled.get(name, 0.0) < SAMPLE_PERIOD_S:
            return
        self._sampled[name] = now
        tags = {**self._tags, **_known(name, tags)}
        instrument = self._instrument(ray_metrics.Histogram, name, tags, boundaries=BOUNDARIES_S)
        instrument.observe(value, tags=tags)

    def flush(self) -> None:
        """Hand what was counted to Ray."""
        with self._lock:
            counts, self._counts = self._counts, {}
            self._flushed = time.monotonic()
        for (name, pairs), amount in counts.items():
            tags = {**self._tags, **dict(pairs)}
            if amount > 0:
                self._instrument(ray_metrics.Counter, name, tags).inc(amount, tags=tags)

    def tell_gauges(self) -> None:
        """Tell Ray the last value of each gauge."""
        with self._lock:
            gauges = list(self._gauges.items())
        for (name, pairs), value in gauges:
            tags = {**self._tags, **dict(pairs)}
            self._instrument(ray_metrics.Gauge, name, tags).set(value, tags=tags)

    def _instrument(self, kind: Any, name: str, tags: dict[str, str], **more: Any) -> Any:
        found = self._instruments.get(name)
        if found is None:
            known = METRICS.get(name)
            text = name if known is None else known.help
            found = kind(f"stelae_{name}", description=text, tag_keys=tuple(sorted(tags)), **more)
            self._instruments[name] = found
        return found


def _known(name: str, tags: dict[str, str]) -> dict[str, str]:
    """Those labels that the catalogue has; every one of them, as Ray wants all each time."""
    if not tags:
        return tags
    metric = METRICS.get(name)
    return {} if metric is None else {label: tags.get(label, "") for label in metric.labels}
