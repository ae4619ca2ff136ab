"""The other masters: who they are, where they listen now, and whether they answer.

A master's UUID is made on its own disk, so at the very first start each asks the others, by the
names in the cluster's configuration, and keeps the answer in the file ``masters``: from then on it
can start alone. Asking goes on for ever, as addresses change when a master starts again elsewhere.

Invariant: the members that a group is first made of are the same on all masters (the masters of
the configuration), and are read from disk, not asked for, once they have been written.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping

import msgspec
from crc32c import crc32c

from stelae.core.errors import CorruptData, InvalidArgument, StelaeError
from stelae.core.ids import Address, ServerUuid
from stelae.core.records import ServerInfo, ServerKind
from stelae.core.rpc import Call, Empty, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.settings import Settings

MASTER_INFO = Method("master.info", Empty, ServerInfo)
"""Who the master at an address is; answered as soon as it listens, before there is a leader."""

MASTERS_FILE = "masters"
SEARCH_PAUSE_S = 0.05
_HEAD = struct.Struct("<8sI")  # magic, CRC-32C of the rest
_MAGIC = b"STELMST1"
_DECODER = msgspec.msgpack.Decoder(dict[str, ServerUuid])


class MasterGroup:
    """What one master knows of the others."""

    def __init__(
        self, runtime: Runtime, settings: Settings, name: str, masters: Mapping[str, Address]
    ) -> None:
        """``masters``: all masters by name, this one included; an empty address is not known yet.

        Raises:
            InvalidArgument: ``name`` is not among them.
        """
        if name not in masters:
            raise InvalidArgument(f"master {name!r} is not among {sorted(masters)}")
        self._runtime = runtime
        self._settings = settings
        self._addresses = {other: masters[other] for other in sorted(masters) if other != name}
        self._infos: dict[str, ServerInfo] = {}
        self._heard_at: dict[str, float] = {}
        self._found = asyncio.Event()
        self._on_address: Callable[[ServerUuid, Address], None] = lambda uuid, address: None
        self._self: ServerInfo | None = None

    def begin(self, info: ServerInfo) -> None:
        """This master listens, and is ``info``."""
        self._self = info

    @property
    def info(self) -> ServerInfo:
        """This master."""
        assert self._self is not None, "the master does not listen yet"
        return self._self

    @property
    def others(self) -> list[str]:
        """The names of the other masters."""
        return list(self._addresses)

    def update(self, name: str, address: Address) -> None:
        """A master listens here from now on."""
        if name in self._addresses:
            self._addresses[name] = address

    def on_address(self, watcher: Callable[[ServerUuid, Address], None]) -> None:
        """Tell ``watcher`` where each master listens, now and whenever it has been asked."""
        self._on_address = watcher
        for info in self._infos.values():
            watcher(info.uuid, info.address)

    def handlers(self) -> Handlers:
        """The method that the others call."""

        async def answer(call: Call[Empty]) -> Reply[ServerInfo]:
            return Reply(self.info)

        return {MASTER_INFO: answer}

    async def first_members(self) -> dict[ServerUuid, Address]:
        """All masters by UUID, as read from disk, or as found and then written there.

        Waits until every master of the configuration has answered once.
        Raises CorruptData.
        """
        try:
            known = _decode(await self._runtime.disk.read(MASTERS_FILE))
        except FileNotFoundError:
            while len(self._infos) < len(self._addresses):
                await self._found.wait()
                self._found.clear()
            known = {info.name: info.uuid for info in (self.info, *self._infos.values())}
            await self._runtime.disk.replace(MASTERS_FILE, _encode(known))
        members = {self.info.uuid: self.info.address}
        for name, uuid in sorted(known.items()):
            if uuid != self.info.uuid:
                members[uuid] = self._addresses.get(name, Address(""))
        return members

    async def ask(self, name: str) -> None:
        """Ask one other master who and where it is, again and again."""
        clock, settings = self._runtime.clock, self._settings
        while True:
            address = self._addresses[name]
            if address and await self._ask_once(name, address):
                await clock.sleep(settings.heartbeat_s)
            else:
                await clock.sleep(SEARCH_PAUSE_S if name not in self._infos else 0.2)

    async def _ask_once(self, name: str, address: Address) -> bool:
        timeout_s = self._settings.dead_after_s
        try:
            reply = await self._runtime.peers.call(
                address, MASTER_INFO, Empty(), timeout_s=timeout_s
            )
        except StelaeError:
            self._runtime.metrics.count("master_searches_failed", master=name)
            return False
        info = reply.body
        if info.kind is not ServerKind.MASTER or info.name != name:
            return False  # the port has another owner now
        self._infos[name] = info
        self._heard_at[name] = self._runtime.clock.monotonic()
        self._on_address(info.uuid, info.address)
        self._found.set()
        return True

    def seen(self) -> list[tuple[ServerInfo, bool]]:
        """The other masters that have answered, and whether they did lately; by name."""
        oldest = self._runtime.clock.monotonic() - self._settings.dead_after_s
        return [(self._infos[n], self._heard_at[n] >= oldest) for n in sorted(self._infos)]


def _encode(members: dict[str, ServerUuid]) -> bytes:
    body = msgspec.msgpack.encode(members)
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def _decode(data: bytes) -> dict[str, ServerUuid]:
    if len(data) < _HEAD.size:
        raise CorruptData(MASTERS_FILE, len(data), "the file is too short")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if magic != _MAGIC or crc32c(body) != crc:
        raise CorruptData(MASTERS_FILE, 0, "the content does not match its checksum")
    return _DECODER.decode(body)
