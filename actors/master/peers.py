"""The other masters: who they are, where they listen now, and whether they answer.

The set of masters is the replicated configuration of the catalog's group. Only at the very first
start, when there is none, each founder asks the others, by the names in the cluster's
configuration, who they are (a master's UUID is made on its own disk), and keeps the answer in the
file ``masters``: from then on it can start alone. Asking goes on for ever, as addresses change when
a master starts again elsewhere, and as a master that was removed hears of it from the others.

Invariants: the members that a group is first made of are the same on all founders, and are read
from disk, not asked for, once they have been written; whoever comes late takes them from a master
that has founded the group already, since one of the others may be another master by then; one that
is to join (a lost disk makes another master of it) founds none and is no founder of any, which is
on its disk before its UUID is.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping

import msgspec
from crc32c import crc32c

from stelae.actors.server.instance import INSTANCE_FILE
from stelae.core.config.settings import Settings
from stelae.core.errors import CorruptData, InvalidArgument, StelaeError
from stelae.core.ids import Address, OpId, ServerUuid
from stelae.core.messages.masters import MASTER_INFO, AskMaster, MasterInfo, MasterState
from stelae.core.records.records import MasterMember, ServerInfo, ServerKind
from stelae.core.records.replication import Configuration
from stelae.core.rpc import Call, Handlers, Reply
from stelae.core.runtime import ProcessIdentity, Runtime
from stelae.core.tasks import Tasks
from stelae.storage.files.sealed import refuse_other_format

MASTERS_FILE = "masters"
SEARCH_PAUSE_S = 0.05
MET_MAX = 32
"""Masters that one which waits asks at most."""
_HEAD = struct.Struct("<8sI")  # magic, CRC-32C of the rest
_MAGIC = b"STELMST1"
_DECODER = msgspec.msgpack.Decoder(dict[str, ServerUuid])
_NOBODY = ProcessIdentity("", 0, 0.0)


class MasterGroup:
    """What one master knows of the others."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        settings: Settings,
        name: str,
        masters: Mapping[str, Address],
    ) -> None:
        """``masters``: all founders by name, this one included; an empty address is not known yet.

        Raises:
            InvalidArgument: ``name`` is not among them.
        """
        if name not in masters:
            raise InvalidArgument(f"master {name!r} is not among {sorted(masters)}")
        self._runtime = runtime
        self._tasks = tasks
        self._settings = settings
        self._name = name
        self._addresses = {other: masters[other] for other in sorted(masters) if other != name}
        """Of founders by name, as long as there is no configuration; then of members by UUID."""
        self._names: dict[ServerUuid, str] = {}
        self._infos: dict[str, ServerInfo] = {}
        self._heard_at: dict[str, float] = {}
        self._states: dict[str, MasterState] = {}
        self._found = asyncio.Event()
        self._on_address: Callable[[ServerUuid, Address], None] = lambda uuid, address: None
        self._self: ServerInfo | None = None
        self.word: Callable[[], tuple[int, ServerUuid | None]] = lambda: (0, None)
        """The term and leader that this master's replica knows of, for those who ask."""
        self._members: Configuration | None = None
        self._was_member = False  # since this process started
        self._waits = False  # it is to be added to a group, not to found one
        self._is_settled = False  # its own disk says whose group it is of
        self._founding: dict[str, ServerUuid] = {}  # others who are to found the group, by name
        self._standing: MasterInfo | None = None  # the group that others have founded already
        self._latest = MasterInfo(  # the newest configuration that another master told of
            ServerInfo(ServerKind.MASTER, "", ServerUuid(""), 0, Address(""), _NOBODY),
            MasterState.STARTING,
        )

    # ---- this master -----------------------------------------------------------------------

    def begin(self, info: ServerInfo) -> None:
        """This master listens, and is ``info``."""
        self._self = info

    @property
    def info(self) -> ServerInfo:
        """This master."""
        assert self._self is not None, "the master does not listen yet"
        return self._self

    @property
    def state(self) -> MasterState:
        """What this master is to the group, as far as it knows."""
        if self._members is None:
            if self._is_settled:
                return MasterState.LOADING
            return MasterState.JOINING if self._waits else MasterState.STARTING
        uuid, told = self.info.uuid, self._latest
        own = self._members.peer(uuid)
        is_newer = told.op_id.index > self._members.op_id.index
        gone = is_newer and all(member.uuid != uuid for member in told.members)
        if own is None:
            return MasterState.REMOVED if self._was_member else MasterState.JOINING
        if gone:
            return MasterState.REMOVED
        return MasterState.VOTER if own.voter else MasterState.NON_VOTER

    @property
    def members(self) -> tuple[MasterMember, ...]:
        """All masters by the last committed configuration that this one knows."""
        if self._members is None:
            return ()
        return tuple(
            MasterMember(
                peer.uuid, self._name_of(peer.uuid), self._address_of(peer.uuid), peer.voter
            )
            for peer in self._members.peers
        )

    def _name_of(self, uuid: ServerUuid) -> str:
        return self._name if uuid == self.info.uuid else self._names.get(uuid, "")

    def _address_of(self, uuid: ServerUuid) -> Address:
        if uuid == self.info.uuid:
            return self.info.address
        return self._addresses.get(uuid, Address(""))

    def handlers(self) -> Handlers:
        """The method that the others call."""

        async def answer(call: Call[AskMaster]) -> Reply[MasterInfo]:
            self._meet(call.body)
            own = self._members.op_id if self._members is not None else OpId(0, 0)
            told = self._latest.op_id
            newest = told if told.index > own.index else own
            term, leader = self.word()
            known = leader or ServerUuid("")
            return Reply(MasterInfo(self.info, self.state, newest, self.newest, term, known))

        return {MASTER_INFO: answer}

    # ---- founding --------------------------------------------------------------------------

    async def prepare(self, *, joining: bool, has_catalog: bool) -> None:
        """Before this master has a UUID or listens: whether it may ever found a group.

        One that is ``joining`` on an empty disk founds none, now or later; one that has founded a
        group, or has a catalog, is never taken for a founder again. Raises CorruptData.
        """
        disk = self._runtime.disk
        if joining:
            try:
                await disk.read(INSTANCE_FILE)
            except FileNotFoundError:
                await disk.replace(MASTERS_FILE, _encode({}))
        known = await self._read_founders()
        self._waits = known == {}
        self._is_settled = bool(known) or has_catalog

    async def first_members(self) -> dict[ServerUuid, Address]:
        """All founders by UUID, as read from disk, or as found and then written there.

        Waits until every founder has answered once, or one that has founded the group already.
        Empty if this master is to be added to a group, or has to catch up with one that has changed
        since it was founded. Raises CorruptData.
        """
        known = await self._read_founders()
        if known is None:
            known = await self._find_founders()
            if known:
                await self._runtime.disk.replace(MASTERS_FILE, _encode(known))
                self._is_settled = True
        if not known:
            return {}
        self._names |= {uuid: name for name, uuid in sorted(known.items())}
        members = {self.info.uuid: self.info.address}
        for name, uuid in sorted(known.items()):
            if uuid != self.info.uuid:
                members[uuid] = self._addresses.get(name, Address(""))
        return members

    async def _find_founders(self) -> dict[str, ServerUuid]:
        for name in self._addresses:
            self._tasks.spawn(self._ask(name), f"ask {name}")
        while self._standing is None and len(self._founding) < len(self._addresses):
            await self._found.wait()
            self._found.clear()
        if self._standing is None:
            return {self._name: self.info.uuid, **self._founding}
        known = {member.name: member.uuid for member in self._standing.members}
        is_first = self._standing.op_id == OpId(0, 0)
        return known if is_first and self.info.uuid in known.values() else {}

    async def _read_founders(self) -> dict[str, ServerUuid] | None:
        try:
            return _decode(await self._runtime.disk.read(MASTERS_FILE))
        except FileNotFoundError:
            return None

    async def learn_founders(self) -> None:
        """Of a group that stands: how its founders are called, as far as it is on disk."""
        known = await self._read_founders() or {}
        self._names |= {uuid: name for name, uuid in sorted(known.items())}

    @property
    def founders(self) -> dict[ServerUuid, str]:
        """Names of the first members."""
        return {**self._names, self.info.uuid: self._name}

    # ---- following the configuration -------------------------------------------------------

    def follow(self, configuration: Configuration) -> None:
        """These are the masters from now on (committed, as far as this one knows)."""
        if configuration is self._members:
            return
        known = dict(self._addresses)
        self._members = configuration
        own = configuration.peer(self.info.uuid)
        self._was_member = self._was_member or own is not None
        self._names |= {peer.uuid: peer.name for peer in configuration.peers if peer.name}
        others = [peer for peer in configuration.peers if peer.uuid != self.info.uuid]
        if not configuration.peers:  # it waits: those it was started with may know the masters
            for name in self._addresses:
                self._tasks.spawn(self._ask(name), f"ask {name}")
            return
        self._addresses = {
            peer.uuid: known.get(peer.uuid)
            or known.get(self._names.get(peer.uuid, ""))
            or peer.address
            for peer in others
        }
        self._infos = {
            info.uuid: info for info in self._infos.values() if info.uuid in self._addresses
        }
        for uuid in self._addresses:
            if uuid not in known:
                self._tasks.spawn(self._ask(uuid), f"ask {uuid}")

    def update(self, name: str, address: Address) -> None:
        """A master listens here from now on."""
        for key in self._addresses:
            if name == key or self._names.get(ServerUuid(key)) == name:
                self._addresses[key] = address

    def on_address(self, watcher: Callable[[ServerUuid, Address], None]) -> None:
        """Tell ``watcher`` where each master listens, now and whenever it has been asked."""
        self._on_address = watcher
        for info in self._infos.values():
            watcher(info.uuid, info.address)

    # ---- asking ----------------------------------------------------------------------------

    async def _ask(self, key: str) -> None:
        """Ask one other master who and where it is, for as long as it is one."""
        clock, settings = self._runtime.clock, self._settings
        while (address := self._addresses.get(key)) is not None:
            if address and await self._ask_once(key, address):
                await clock.sleep(settings.heartbeat_s)
            else:
                await clock.sleep(SEARCH_PAUSE_S if key not in self._infos else 0.2)

    async def _ask_once(self, key: str, address: Address) -> bool:
        timeout_s = self._settings.dead_after_s
        asker = AskMaster(self.info.uuid, self.info.address)
        try:
            reply = await self._runtime.peers.call(address, MASTER_INFO, asker, timeout_s=timeout_s)
        except StelaeError:
            self._runtime.metrics.count("master_searches_failed", master=key)
            return False
        told = reply.body
        info = told.server
        if key not in self._addresses or info.kind is not ServerKind.MASTER:
            return False
        if key not in (info.name, info.uuid):
            self._heard_at.pop(key, None)  # the port has another owner now
            return False
        self._infos[key] = info
        self._names[info.uuid] = info.name
        self._states[key] = told.state
        self._heard_at[key] = self._runtime.clock.monotonic()
        if told.op_id.index > self._latest.op_id.index or not self._latest.members:
            self._latest = told
            self._follow_the_rest()
        if told.members:
            self._standing = self._standing or told
        elif told.state is MasterState.STARTING:
            self._founding[info.name] = info.uuid
        self._on_address(info.uuid, info.address)
        self._found.set()
        return True

    def _meet(self, asker: AskMaster) -> None:
        """One that waits asks back whoever asks it: those it was started with may all be gone."""
        is_known = asker.uuid in self._addresses or asker.address in self._addresses.values()
        waits = self._members is not None and self.state is MasterState.JOINING
        if waits and asker.uuid and not is_known and len(self._addresses) < MET_MAX:
            self._addresses[asker.uuid] = asker.address
            self._tasks.spawn(self._ask(asker.uuid), f"ask {asker.uuid}")

    def _follow_the_rest(self) -> None:
        """One that waits or was removed goes on asking those who are masters, for `pointer`."""
        if self._members is None or self.state not in (MasterState.JOINING, MasterState.REMOVED):
            return
        for member in self._latest.members:
            if member.uuid != self.info.uuid and member.uuid not in self._addresses:
                self._addresses[member.uuid] = member.address
                self._tasks.spawn(self._ask(member.uuid), f"ask {member.uuid}")

    @property
    def newest(self) -> tuple[MasterMember, ...]:
        """The masters as this one knows them, by its own log or by what another has told."""
        known = self._members
        own = known.op_id.index if known is not None and known.peers else -1
        return self._latest.members if self._latest.op_id.index > own else self.members

    @property
    def pointer(self) -> Address:
        """For whoever asks a master that was removed: where one of the present ones listens."""
        present = [m for m in self.newest if m.uuid != self.info.uuid]
        heard = sorted(
            (m for m in present if m.voter and m.address),
            key=lambda member: -self._heard_at.get(member.uuid, 0.0),
        )
        return heard[0].address if heard else Address("")

    def votes(self, uuid: ServerUuid) -> bool:
        """Whether another master said last that it votes: it has read its log then."""
        return self._states.get(uuid) is MasterState.VOTER

    def seen(self) -> list[tuple[ServerInfo, bool, bool]]:
        """The other masters, whether each answered lately, and whether it votes; by name.

        One that has never answered here is described by what the configuration says of it.
        """
        oldest = self._runtime.clock.monotonic() - self._settings.dead_after_s
        found = []
        for member in self.members:
            if member.uuid == self.info.uuid:
                continue
            unheard = ServerInfo(
                ServerKind.MASTER, member.name, member.uuid, 0, member.address, _NOBODY
            )
            info = self._infos.get(member.uuid, unheard)
            live = self._heard_at.get(member.uuid, float("-inf")) >= oldest
            found.append((info, live, member.voter))
        return sorted(found, key=lambda each: each[0].name)


def _encode(members: dict[str, ServerUuid]) -> bytes:
    body = msgspec.msgpack.encode(members)
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def _decode(data: bytes) -> dict[str, ServerUuid]:
    if len(data) < _HEAD.size:
        raise CorruptData(MASTERS_FILE, len(data), "the file is too short")
    magic, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    refuse_other_format(MASTERS_FILE, data, _MAGIC)
    if magic != _MAGIC or crc32c(body) != crc:
        raise CorruptData(MASTERS_FILE, 0, "the content does not match its checksum")
    return _DECODER.decode(body)
