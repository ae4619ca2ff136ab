"""Everything a server may ask of the world.

Servers are plain async classes over a `Runtime`. Two implementations exist: the real one
(`stelae.runtime`, asyncio over TCP and files; `stelae.actors.ray_host.runtime` adds Ray's
objects and metrics) and the deterministic world of `stelae.simulation`. Both run on an asyncio
loop, so servers use ``asyncio`` locks, events and ``asyncio.timeout`` freely; time, chance,
network, disk and ids come only from here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec
import pyarrow as pa

from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.rpc import Blob, Handlers, Method, Reply

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")
P = ParamSpec("P")


class Clock(Protocol):
    """Time. ``monotonic`` is per process and never goes back; ``now`` is for people to read."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    async def sleep(self, duration_s: float) -> None: ...


ReplyMemory: TypeAlias = Callable[[int], memoryview]
"""Gives writable memory of so many bytes, whose pages are in place; it stays with the reply."""


class Peers(Protocol):
    """Calls between servers (and from clients), over TCP or the simulated network."""

    @property
    def address(self) -> Address:
        """Where this server listens; valid after `listen`."""
        ...

    async def listen(self, server_uuid: ServerUuid, handlers: Handlers) -> None:
        """Start to answer ``handlers``. Calls meant for another UUID get `WrongServer`."""
        ...

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
        """Call a remote method and wait for its answer.

        ``destination`` is the server that the call is for, whoever listens there by now; methods
        that go without one say why (`Method.untagged`). ``memory`` gives the place for an answer
        that is large, so that it can be used again.

        Raises:
            Unavailable: no connection could be made; the request was certainly not sent.
            OutcomeUnknown: no answer within ``timeout_s``, or the connection broke meanwhile.
            StelaeError: whatever of it the handler raised.
        """
        ...

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
        """Begin a call, if it can be sent at once; false, and nothing is done, if it cannot.

        ``done`` is told once how it ended, from the event loop and never within `post`: with the
        reply, or with what `call` would raise. Unless the peers are closed, it is told by the
        deadline.
        """
        ...

    async def watch(self, address: Address) -> None:
        """Connect, and return when the connection ends, or at once if none can be made.

        A hint that the server died, milliseconds after it did; never proof.
        """
        ...

    def is_near(self, address: Address) -> bool:
        """Whether the server at ``address`` is on this machine, as far as can be told at once."""
        ...

    async def close(self) -> None:
        """Stop listening and end every connection; pending calls get `OutcomeUnknown`."""
        ...


class Space(NamedTuple):
    """Bytes of a file system."""

    free_bytes: int
    """Bytes that a server may still write there."""
    total_bytes: int


class File(Protocol):
    """One open file. Writes are seen by reads at once; they survive a crash after ``sync``."""

    @property
    def size(self) -> int: ...

    def write_at(self, offset: int, *buffers: Blob) -> None:
        """Write the buffers one after the other from ``offset``. Raises OSError (ENOSPC)."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes; fewer at the end of the file."""
        ...

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset``; return how many bytes, fewer at the end of the file."""
        ...

    async def sync(self) -> None:
        """Make every write so far durable. After an OSError here the server must stop."""
        ...

    def sync_at_once(self) -> bool:
        """Do the same without a wait, if it is likely to be quick; false, and nothing is done, if
        not."""
        ...

    def truncate(self, size: int) -> None: ...

    def preallocate(self, size: int) -> None:
        """Reserve space so that the file is at least ``size`` bytes long, reading as zeros."""
        ...

    @property
    def space(self) -> Space:
        """The file system that it lies on, whoever else writes to it."""
        ...

    @property
    def place(self) -> str:
        """Where it is, for other servers of this machine: see `Disk.open_near`."""
        ...

    def close(self) -> None: ...


class NearFile(Protocol):
    """A file of another server on this machine, which goes on writing to it: what is read may be
    anything, half old and half new, and is checked before it is believed."""

    def read_cached(self, offset: int, length: int) -> bytes | None:
        """Bytes that lie in memory. None: they do not, or there are none; this never waits."""
        ...

    def fill_cached(self, offset: int, buffer: memoryview) -> bool:
        """The same into a buffer; false: not all of it. On any thread."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The server's own data directory. Paths are relative, with ``/``; folders appear as needed."""

    @property
    def boot(self) -> str:
        """Another one once the machine has started anew: as long as it is the same, nothing that
        was written is lost, synced or not, whatever processes have ended meanwhile."""
        ...

    async def settle(self) -> None:
        """Make durable what a former process wrote and did not sync.

        It can be read, so a server would believe and repeat it, and a loss of power would take it
        back. Servers call this before they read anything. Raises OSError.
        """
        ...

    async def open(self, path: str) -> File:
        """Open for reading and writing; made (durably named) if absent."""
        ...

    def open_near(self, place: str) -> NearFile | None:
        """The file of some server at that `File.place`. None: it is not on this machine, or not to
        be read from here."""
        ...

    async def read(self, path: str) -> bytes:
        """Read a whole file. Raises FileNotFoundError."""
        ...

    async def read_into(self, path: str, buffer: memoryview) -> int:
        """Fill ``buffer`` with the beginning of a file; return how many bytes, fewer if it is
        shorter. Raises FileNotFoundError."""
        ...

    async def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably make ``data`` the content: write new, sync, rename, sync."""
        ...

    async def write(self, path: str, data: Blob, *, named: bool = True) -> None:
        """Durably make ``data`` the content; a crash meanwhile leaves any part of it, or nothing.

        For files that nothing refers to yet: less work than `replace`, and off the event loop.
        Unless it is to be ``named``, a new file's name is durable only after `sync_folder`.
        """
        ...

    async def sync_folder(self, folder: str) -> None:
        """Make the names of all files written in it durable; absent is fine."""
        ...

    async def list(self, folder: str) -> list[str]:
        """Sorted names of files in ``folder``; empty if there is no such folder."""
        ...

    async def remove(self, path: str) -> None:
        """Durably remove a file; absent is fine."""
        ...

    async def folders(self, folder: str) -> Sequence[str]:
        """Sorted names of the folders in ``folder`` that hold a file, at any depth."""
        ...

    async def move(self, source: str, target: str) -> bool:
        """Atomically and durably rename a folder, with all that is in it.

        False, and nothing is done, if ``source`` holds no file. No file of it may be made or
        removed meanwhile. Raises FileExistsError if ``target`` is there and holds a file.
        """
        ...

    async def remove_folder(self, folder: str) -> None:
        """Durably remove a folder and all that is in it; absent is fine.

        Not atomic: a crash leaves any part of it.
        """
        ...


class Objects(Protocol):
    """Large immutable buffers in shared memory (Ray's object store), owned by this server."""

    async def put(self, buffer: pa.Buffer) -> ObjectHandle:
        """The object is a copy where others can fetch it. Raises Overloaded: there is no room."""
        ...

    async def move(self, buffer: pa.Buffer) -> tuple[ObjectHandle, pa.Buffer]:
        """`put`, and what `get` gives then: who goes on with the copy needs one wait for both.
        Raises Overloaded: there is no room."""
        ...

    async def get(self, handle: ObjectHandle) -> pa.Buffer:
        """The content, not copied where it lies on this node. Raises KeyError once it is gone."""
        ...

    @property
    def can_share(self) -> bool:
        """Whether other servers can fetch objects from here."""
        ...

    def share(self, handle: ObjectHandle) -> bytes:
        """Let other servers `fetch` it by the token returned, until `unshare`; idempotent."""
        ...

    def unshare(self, handle: ObjectHandle) -> None:
        """Whoever has fetched it keeps what it has; nobody else gets it."""
        ...

    async def fetch(self, token: bytes) -> pa.Buffer:
        """What another server shares, not copied where it lies on this node; it stays there while
        the buffer is referenced. The caller bounds the time. Raises KeyError if it is gone."""
        ...


class ObjectHandle(Protocol):
    """Keeps an object alive while it is referenced; can be sent to other processes by Ray."""

    @property
    def size(self) -> int: ...


class Metrics(Protocol):
    def count(self, name: str, amount: float = 1.0, **tags: str) -> None: ...

    def gauge(self, name: str, value: float, **tags: str) -> None: ...

    def observe(self, name: str, value: float, **tags: str) -> None: ...


class Runtime(Protocol):
    """The world of one server."""

    @property
    def clock(self) -> Clock: ...

    @property
    def rng(self) -> random.Random: ...

    @property
    def secrets(self) -> random.Random:
        """Random numbers that must not be guessed from others: `rng` may be predictable."""
        ...

    @property
    def peers(self) -> Peers: ...

    @property
    def disk(self) -> Disk: ...

    @property
    def objects(self) -> Objects: ...

    @property
    def metrics(self) -> Metrics: ...

    async def offload(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run CPU-heavy or blocking ``fn`` off the event loop."""
        ...

    def process_gone(self, node: str, pid: int, started: float) -> bool:
        """True only if that process surely no longer runs (seen on the same node).

        ``node``, ``pid`` and ``started`` are those of its `ServerInfo`. False when it lives or
        when this cannot be told from here; then only the end of its lease proves it harmless.
        """
        ...

    @property
    def identity(self) -> ProcessIdentity: ...

    @property
    def rack(self) -> str:
        """The rack of the node that it runs on; empty: the node stands for it."""
        ...


class ProcessIdentity(msgspec.Struct, frozen=True, array_like=True):
    """Which process a server runs in: ``started`` tells a reused pid apart."""

    node: str
    pid: int
    started: float
