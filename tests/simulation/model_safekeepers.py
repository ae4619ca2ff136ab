"""Safekeepers reduced to their rules: term, log, configuration, copies, tombstones; and a catalog.

A log is a list of (term, value), and an append carries all of it. What a safekeeper answers is
durable before; the rules can be broken by name. Seed 004, "Safekeeper changes".
"""

from __future__ import annotations

import asyncio

import msgspec

from stelae.core.configurations import TimelineId, TimelineRecord
from stelae.core.errors import InvalidArgument, RetryLater, StaleTerm
from stelae.core.ids import ServerUuid
from stelae.core.rpc import EMPTY, Body, Call, Empty, Method, Reply
from stelae.core.tasks import Tasks
from stelae.core.timelines import LogPosition, SafekeeperId, SwitchReply, TimelineConfiguration
from stelae.simulation.instance import SimRuntime

Entry = tuple[int, str]


class Copy(msgspec.Struct, frozen=True):
    conf: TimelineConfiguration
    term: int = 0
    log: tuple[Entry, ...] = ()

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.log[-1][0] if self.log else 0, len(self.log))

    def reply(self) -> SwitchReply:
        return SwitchReply(self.conf, self.term, *msgspec.structs.astuple(self.position))


class Slot(msgspec.Struct, frozen=True):
    """What a safekeeper keeps of one timeline."""

    copy: Copy | None = None
    tombstone: int = 0
    """Nothing of this generation or a lower one comes back."""
    is_gone: bool = False


class Put(Body, frozen=True):
    timeline: TimelineId
    conf: TimelineConfiguration
    min_term: int = 0
    create: bool = False


class PutReply(Body, frozen=True):
    reply: SwitchReply | None


class Pull(Body, frozen=True):
    timeline: TimelineId
    source: SafekeeperId
    conf: TimelineConfiguration
    at_least: LogPosition


class Named(Body, frozen=True):
    timeline: TimelineId


class SlotReply(Body, frozen=True):
    copy: Copy | None


class Drop(Body, frozen=True):
    timeline: TimelineId
    conf: TimelineConfiguration
    forever: bool


class Propose(Body, frozen=True):
    """A vote (no log) or an append, of a proposer with this configuration and term."""

    timeline: TimelineId
    conf: TimelineConfiguration
    term: int
    log: tuple[Entry, ...] | None = None


class ProposeReply(Body, frozen=True):
    ok: bool
    copy: Copy | None


class Told(Body, frozen=True):
    record: TimelineRecord


PING = Method("model.ping", Empty, Empty)
PUT = Method("model.put", Put, PutReply)
PULL = Method("model.pull", Pull, PutReply)
LOOK = Method("model.look", Named, SlotReply)
EXCLUDE = Method("model.exclude", Drop, Empty)
PROPOSE = Method("model.propose", Propose, ProposeReply)
TELL = Method("model.tell", Told, Empty)


def node_name(safekeeper: SafekeeperId) -> str:
    return f"sk{safekeeper}"


class ModelSafekeeper:
    def __init__(self, runtime: SimRuntime, me: SafekeeperId, bug: str) -> None:
        self.tasks = Tasks()
        self.slots: dict[str, Slot] = {}
        self._runtime = runtime
        self._me = me
        self._bug = bug
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        for name in await self._runtime.disk.list("slots"):
            data = await self._runtime.disk.read(f"slots/{name}")
            self.slots[bytes.fromhex(name).decode()] = msgspec.msgpack.decode(data, type=Slot)
        handlers = {
            PING: self._ping,
            PUT: self._put,
            PULL: self._pull,
            LOOK: self._look,
            EXCLUDE: self._exclude,
            PROPOSE: self._propose,
        }
        await self._runtime.peers.listen(ServerUuid(""), handlers)

    async def stop(self) -> None:
        await self.tasks.close()
        await self._runtime.peers.close()

    def slot(self, timeline: TimelineId) -> Slot:
        return self.slots.get(timeline.key, Slot())

    async def _store(self, timeline: TimelineId, **changes: object) -> Slot:
        slot = msgspec.structs.replace(self.slot(timeline), **changes)
        path = f"slots/{timeline.key.encode().hex()}"
        await self._runtime.disk.replace(path, msgspec.msgpack.encode(slot))
        self.slots[timeline.key] = slot
        return slot

    def _switched(self, copy: Copy, conf: TimelineConfiguration, min_term: int = 0) -> Copy:
        if conf.generation > copy.conf.generation:
            if self._me not in conf.members:
                raise InvalidArgument(f"{self._me} is no member of {conf}")
            copy = msgspec.structs.replace(copy, conf=conf)
        if conf.generation == copy.conf.generation:
            copy = msgspec.structs.replace(copy, term=max(copy.term, min_term))
        return copy

    async def _ping(self, call: Call[Empty]) -> Reply[Empty]:
        return EMPTY

    async def _look(self, call: Call[Named]) -> Reply[SlotReply]:
        return Reply(SlotReply(self.slot(call.body.timeline).copy))

    async def _put(self, call: Call[Put]) -> Reply[PutReply]:
        request = call.body
        async with self._lock:
            slot = self.slot(request.timeline)
            copy = slot.copy
            if copy is None:
                if not request.create or slot.is_gone or slot.tombstone:
                    return Reply(PutReply(None))
                copy = Copy(request.conf)
            switched = self._switched(copy, request.conf, request.min_term)
            if switched != slot.copy:
                await self._store(request.timeline, copy=switched)
            return Reply(PutReply(switched.reply()))

    async def _pull(self, call: Call[Pull]) -> Reply[PutReply]:
        request = call.body
        source = self._runtime.peers.address.__class__(f"{node_name(request.source)}:7000")
        found = await self._runtime.peers.call(
            source, LOOK, Named(request.timeline), timeout_s=call.timeout_s
        )
        taken = found.body.copy
        if taken is None:
            raise RetryLater("the source has nothing")
        async with self._lock:
            slot = self.slot(request.timeline)
            generation = request.conf.generation
            if slot.is_gone or slot.tombstone >= generation or taken.conf.generation > generation:
                raise StaleTerm("pull", generation, max(slot.tombstone, taken.conf.generation))
            own = slot.copy
            if own is not None and own.conf.generation > generation:
                return Reply(PutReply(own.reply()))
            if own is None:
                own = taken
            elif self._bug == "pull overwrites a newer copy" or (
                own.position < request.at_least and own.position < taken.position
            ):
                own = Copy(own.conf, max(own.term, taken.term), taken.log)
            conf = TimelineConfiguration(0, (self._me,)) if slot.copy is None else own.conf
            own = self._switched(msgspec.structs.replace(own, conf=conf), request.conf)
            if own != slot.copy:
                await self._store(request.timeline, copy=own)
            return Reply(PutReply(own.reply()))

    async def _exclude(self, call: Call[Drop]) -> Reply[Empty]:
        request = call.body
        generation = request.conf.generation
        async with self._lock:
            slot = self.slot(request.timeline)
            if request.forever:
                await self._store(request.timeline, copy=None, is_gone=True)
                return EMPTY
            if self._me in request.conf.members:
                raise InvalidArgument(f"{self._me} is a member of {request.conf}")
            careless = self._bug == "exclude ignores the generation"
            if slot.copy is not None and slot.copy.conf.generation > generation and not careless:
                raise StaleTerm("exclude", generation, slot.copy.conf.generation)
            tombstone = max(slot.tombstone, generation)
            if slot.copy is not None or tombstone != slot.tombstone:
                await self._store(request.timeline, copy=None, tombstone=tombstone)
        return EMPTY

    async def _propose(self, call: Call[Propose]) -> Reply[ProposeReply]:
        request = call.body
        async with self._lock:
            copy = self.slot(request.timeline).copy
            if copy is None:
                return Reply(ProposeReply(False, None))
            before = copy
            copy = self._switched(copy, request.conf)
            ok = copy.conf.generation == request.conf.generation
            if ok and request.log is None:
                ok = request.term > copy.term
            elif ok:
                ok = request.term >= copy.term
            if ok:
                copy = msgspec.structs.replace(copy, term=request.term)
            if ok and request.log is not None:
                is_late = copy.position >= LogPosition(request.term, len(request.log))
                if not is_late:  # or else it has this, and more, of the same leader
                    copy = msgspec.structs.replace(copy, log=request.log)
            if copy != before:
                await self._store(request.timeline, copy=copy)
            return Reply(ProposeReply(ok, copy))


class ModelCatalog:
    """Takes the newest configuration that it is told."""

    def __init__(self, runtime: SimRuntime) -> None:
        self.tasks = Tasks()
        self.generation_by_key: dict[str, int] = {}
        self._runtime = runtime
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        try:
            data = await self._runtime.disk.read("told")
        except FileNotFoundError:
            data = msgspec.msgpack.encode({})
        self.generation_by_key = msgspec.msgpack.decode(data, type=dict[str, int])
        await self._runtime.peers.listen(ServerUuid(""), {TELL: self._tell})

    async def stop(self) -> None:
        await self.tasks.close()
        await self._runtime.peers.close()

    async def _tell(self, call: Call[Told]) -> Reply[Empty]:
        record = call.body.record
        async with self._lock:
            known = dict(self.generation_by_key)
            known[record.timeline.key] = max(known.get(record.timeline.key, 0), record.generation)
            await self._runtime.disk.replace("told", msgspec.msgpack.encode(known))
            self.generation_by_key = known
        return EMPTY
