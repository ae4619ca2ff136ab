"""Safekeepers reduced to their rules: term, log, configuration, copies, tombstones; and a catalog.

A log is a list of (term, value), and an append carries all of it. What a safekeeper answers is
durable before; the rules can be broken by name. Seed 004, "Safekeeper changes".
"""

from __future__ import annotations

import asyncio

import msgspec

from stelae.core.errors import InvalidArgument, RetryLater, StaleTerm
from stelae.core.ids import Address, ServerUuid
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
)
from stelae.core.rpc import EMPTY, Body, Call, Empty, Handlers, Method, Reply
from stelae.core.tasks import Tasks
from stelae.simulation.world.instance import SimRuntime

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


PING = Method("model.ping", Empty, Empty, "of a story, with fixed servers")
PUT = Method("model.put", Put, PutReply, "of a story, with fixed servers")
PULL = Method("model.pull", Pull, PutReply, "of a story, with fixed servers")
LOOK = Method("model.look", Named, SlotReply, "of a story, with fixed servers")
EXCLUDE = Method("model.exclude", Drop, Empty, "of a story, with fixed servers")
PROPOSE = Method("model.propose", Propose, ProposeReply, "of a story, with fixed servers")
TELL = Method("model.tell", Told, Empty, "of a story, with fixed servers")


def node_name(safekeeper: SafekeeperId) -> str:
    return f"sk{safekeeper}"


class Rules:
    """What one safekeeper does with its slot; pure, and each rule can be broken by name."""

    def __init__(self, me: SafekeeperId, bug: str = "") -> None:
        self._me = me
        self._bug = bug

    def _switched(self, copy: Copy, conf: TimelineConfiguration, min_term: int = 0) -> Copy:
        if conf.generation > copy.conf.generation:
            if self._me not in conf.members:
                raise InvalidArgument(f"{self._me} is no member of {conf}")
            copy = msgspec.structs.replace(copy, conf=conf)
        if conf.generation == copy.conf.generation:
            copy = msgspec.structs.replace(copy, term=max(copy.term, min_term))
        return copy

    def put(self, slot: Slot, request: Put) -> tuple[Slot, SwitchReply | None]:
        copy = slot.copy
        if copy is None:
            if not request.create or slot.is_gone or slot.tombstone:
                return slot, None
            copy = Copy(request.conf)
        copy = self._switched(copy, request.conf, request.min_term)
        return msgspec.structs.replace(slot, copy=copy), copy.reply()

    def pull(self, slot: Slot, request: Pull, taken: Copy | None) -> tuple[Slot, SwitchReply]:
        if taken is None:
            raise RetryLater("the source has nothing")
        generation = request.conf.generation
        if slot.is_gone or slot.tombstone >= generation or taken.conf.generation > generation:
            raise StaleTerm("pull", generation, max(slot.tombstone, taken.conf.generation))
        own = slot.copy
        if own is not None and own.conf.generation > generation:
            return slot, own.reply()
        if own is None:
            nowhere = TimelineConfiguration(0, (self._me,))
            own = msgspec.structs.replace(taken, conf=nowhere)
        elif self._bug == "pull overwrites a newer copy" or (
            own.position < request.at_least and own.position < taken.position
        ):
            own = Copy(own.conf, max(own.term, taken.term), taken.log)
        own = self._switched(own, request.conf)
        return msgspec.structs.replace(slot, copy=own), own.reply()

    def exclude(self, slot: Slot, request: Drop) -> Slot:
        if request.forever:
            return Slot(None, slot.tombstone, is_gone=True)
        generation = request.conf.generation
        if self._me in request.conf.members:
            raise InvalidArgument(f"{self._me} is a member of {request.conf}")
        careless = self._bug == "exclude ignores the generation"
        if slot.copy is not None and slot.copy.conf.generation > generation and not careless:
            raise StaleTerm("exclude", generation, slot.copy.conf.generation)
        return Slot(None, max(slot.tombstone, generation), slot.is_gone)

    def propose(self, slot: Slot, request: Propose) -> tuple[Slot, ProposeReply]:
        copy = slot.copy
        if copy is None:
            return slot, ProposeReply(False, None)
        if request.conf.generation > copy.conf.generation and self._me not in request.conf.members:
            return slot, ProposeReply(False, None)
        copy = self._switched(copy, request.conf)
        ok = copy.conf.generation == request.conf.generation
        is_vote = request.log is None
        ok = ok and (request.term > copy.term if is_vote else request.term >= copy.term)
        if ok:
            copy = msgspec.structs.replace(copy, term=request.term)
        if ok and request.log is not None:
            is_late = copy.position >= LogPosition(request.term, len(request.log))
            if not is_late:  # or else it has this, and more, of the same leader
                copy = msgspec.structs.replace(copy, log=request.log)
        return msgspec.structs.replace(slot, copy=copy), ProposeReply(ok, copy)


class Judge:
    """What was promised, and to whom: terms are won once, and what is committed stays."""

    def __init__(self) -> None:
        self.committed: list[tuple[Entry, int]] = []
        """With the term of the leader that committed it."""
        self.winners: dict[int, str] = {}

    def elected(self, term: int, writer: str, log: tuple[Entry, ...]) -> None:
        other = self.winners.setdefault(term, writer)
        assert other == writer, f"term {term} is won by {writer}, and was by {other}"
        promised = [entry for entry, by in self.committed if by < term]
        mine = list(log[: len(promised)])
        assert mine == promised, f"{writer} leads term {term} without {promised}: {log}"

    def acknowledged(self, term: int, log: tuple[Entry, ...]) -> None:
        """All of ``log`` is committed, by the leader of ``term``."""
        known = [entry for entry, _ in self.committed]
        length = min(len(log), len(known))
        assert list(log[:length]) == known[:length], f"{log} against {known}"
        self.committed.extend((entry, term) for entry in log[length:])


class ModelSafekeeper:
    """The rules on a disk and a network."""

    def __init__(self, runtime: SimRuntime, me: SafekeeperId, bug: str) -> None:
        self.tasks = Tasks()
        self.slots: dict[str, Slot] = {}
        self._runtime = runtime
        self._rules = Rules(me, bug)
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        for name in await self._runtime.disk.list("slots"):
            data = await self._runtime.disk.read(f"slots/{name}")
            self.slots[bytes.fromhex(name).decode()] = msgspec.msgpack.decode(data, type=Slot)
        handlers: Handlers = {
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

    async def _store(self, timeline: TimelineId, slot: Slot) -> None:
        if slot == self.slot(timeline):
            return
        path = f"slots/{timeline.key.encode().hex()}"
        await self._runtime.disk.replace(path, msgspec.msgpack.encode(slot))
        self.slots[timeline.key] = slot

    async def _ping(self, call: Call[Empty]) -> Reply[Empty]:
        return EMPTY

    async def _look(self, call: Call[Named]) -> Reply[SlotReply]:
        return Reply(SlotReply(self.slot(call.body.timeline).copy))

    async def _put(self, call: Call[Put]) -> Reply[PutReply]:
        async with self._lock:
            slot, reply = self._rules.put(self.slot(call.body.timeline), call.body)
            await self._store(call.body.timeline, slot)
        return Reply(PutReply(reply))

    async def _pull(self, call: Call[Pull]) -> Reply[PutReply]:
        request = call.body
        source = Address(f"{node_name(request.source)}:7000")
        found = await self._runtime.peers.call(
            source, LOOK, Named(request.timeline), timeout_s=call.timeout_s
        )
        async with self._lock:
            slot = self.slot(request.timeline)
            slot, reply = self._rules.pull(slot, request, found.body.copy)
            await self._store(request.timeline, slot)
        return Reply(PutReply(reply))

    async def _exclude(self, call: Call[Drop]) -> Reply[Empty]:
        async with self._lock:
            slot = self._rules.exclude(self.slot(call.body.timeline), call.body)
            await self._store(call.body.timeline, slot)
        return EMPTY

    async def _propose(self, call: Call[Propose]) -> Reply[ProposeReply]:
        async with self._lock:
            slot, reply = self._rules.propose(self.slot(call.body.timeline), call.body)
            await self._store(call.body.timeline, slot)
        return Reply(reply)


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
