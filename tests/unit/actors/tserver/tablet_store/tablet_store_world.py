"""A tablet store on a simulated disk that crashes at a chosen step, and a model of what stays.

A *step* is whatever makes something durable: a replacement, a sync, a removal, a move. A crash
comes before a step, in its midst or right after it, and decides at random what becomes of all that
was not durable. Afterwards a new store is loaded, and what it has is held to the model.
"""

from __future__ import annotations

import asyncio
import copy
import enum
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from crc32c import crc32c

from stelae.actors.tserver.tablet_copy.receiver_files import CopyAttempt, TabletCopies
from stelae.actors.tserver.tablet_store.quarantine_limits import KEPT_OF_A_TABLET
from stelae.actors.tserver.tablet_store.startup import LoadedTablets
from stelae.actors.tserver.tablet_store.store import TabletStore
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.replicas import DataState
from stelae.core.records.records import TableRecord, TableState
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Peer,
    Snapshot,
    TermAndVote,
)
from stelae.core.rpc import Blob
from stelae.core.runtime import File, NearFile, Space
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.simulation import Options, SimLoop
from stelae.simulation.world.disk import SimDisk, SimDiskView
from stelae.storage.files.consensus_metadata import ConsensusMetadata
from stelae.storage.files.raft_log import decode_file, parse_log_file_name
from stelae.storage.files.superblock import NOTHING, StoredFile
from tests.simulation.world.loops import make_loop

T = TypeVar("T")
ME = ServerUuid("me")
OTHER = ServerUuid("other")
ABSENT = "absent"
SCHEMA = TableSchema.of(pa.schema([pa.field("id", pa.int64(), nullable=False)]), key=["id"])
OPTIONS = Options(keep_unsynced_rate=0.0, read_mean_s=0.00001)


def table(name: str = "rows") -> TableRecord:
    return TableRecord(
        TableId("t" * 32),
        name,
        SCHEMA,
        Partitioning(),
        segments("disk"),
        TableState.RUNNING,
    )


def members(*, voter: bool = True, index: int = 0) -> Configuration:
    """Of a group with this server and another one."""
    peers = (Peer(ME, Address("a:1"), voter), Peer(OTHER, Address("b:1")))
    return Configuration(OpId(1 if index else 0, index), peers)


def metadata(tablet: str, term: int, voted_for: ServerUuid | None = None) -> ConsensusMetadata:
    """Those of the server that is copied from."""
    return ConsensusMetadata(TabletId(tablet), TermAndVote(term, voted_for), members(index=1))


def stored(name: str, data: bytes) -> StoredFile:
    return StoredFile(name, len(data), crc32c(data))


def snapshot(last: OpId, images: dict[str, bytes]) -> Snapshot:
    """One whose data names its images, as a manifest does."""
    files = [stored(name, data) for name, data in sorted(images.items())]
    return Snapshot(last, members(), msgspec.msgpack.encode(files))


def files_of(given: Snapshot) -> Sequence[StoredFile]:
    return msgspec.msgpack.decode(given.data, type=list[StoredFile])


async def flush(
    store: TabletStore, tablet_id: TabletId, images: Mapping[str, bytes], given: Snapshot
) -> None:
    """Make images durable, then the snapshot that needs them."""
    for name, data in images.items():
        await store.write_image(tablet_id, name, data)
    await store.replace_snapshot(tablet_id, given)


def entry(term: int, index: int) -> Entry:
    return Entry(term, index, EntryKind.COMMAND, b"%d" % index)


# ---- crashes --------------------------------------------------------------------------------


class Crash(Exception):
    """The process is gone."""


class When(enum.Enum):
    BEFORE = enum.auto()
    DURING = enum.auto()
    AFTER = enum.auto()


class SteppedFile:
    """A file whose syncs are steps."""

    def __init__(self, disk: SteppedDisk, file: File) -> None:
        self._disk = disk
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    @property
    def space(self) -> Space:
        return self._file.space

    @property
    def place(self) -> str:
        return self._file.place

    def write_at(self, offset: int, *buffers: Blob) -> None:
        self._file.write_at(offset, *buffers)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._file.read_at(offset, length)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        return self._file.read_into(offset, buffer)

    async def sync(self) -> None:
        await self._disk.step(self._file.sync)

    def sync_at_once(self) -> bool:
        return False

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def preallocate(self, size: int) -> None:
        self._file.preallocate(size)

    def close(self) -> None:
        self._file.close()


class SteppedDisk:
    """The disk of one life, which ends at step ``crash_at``."""

    def __init__(self, disk: SimDisk, loop: SimLoop, life: int, rng: random.Random) -> None:
        self._disk = disk
        self._loop = loop
        self._process = loop.new_process("server", life)
        self._view = SimDiskView(disk, self._process, OPTIONS)
        self._rng = rng
        self.steps = 0
        self.crash_at: tuple[int, When] | None = None
        self.dead = False

    def _crash(self) -> None:
        self.dead = True
        self._loop.kill(self._process)
        self._disk.crash()
        raise Crash

    def _check(self) -> None:
        if self.dead:
            raise Crash

    async def step(self, work: Callable[[], Awaitable[T]]) -> T:
        self._check()
        number, self.steps = self.steps, self.steps + 1
        when = self.crash_at[1] if self.crash_at and self.crash_at[0] == number else None
        if when is When.BEFORE:
            self._crash()
        if when is When.DURING:
            loop = asyncio.get_running_loop()
            self._cut_short = loop.create_task(_awaited(work), context=self._process.context)
            until = loop.time() + self._rng.random() * 0.004
            while loop.time() < until:
                await self._view.list("")
            self._crash()
        result = await work()
        if when is When.AFTER:
            self._crash()
        return result

    @property
    def boot(self) -> str:
        return self._view.boot

    def open_near(self, place: str) -> NearFile | None:
        return self._view.open_near(place)

    async def open(self, path: str) -> SteppedFile:
        return SteppedFile(self, await self.step(lambda: self._view.open(path)))

    async def read(self, path: str) -> bytes:
        self._check()
        return await self._view.read(path)

    async def read_into(self, path: str, buffer: memoryview) -> int:
        self._check()
        return await self._view.read_into(path, buffer)

    async def replace(self, path: str, data: bytes) -> None:
        await self.step(lambda: self._view.replace(path, data))

    async def write(self, path: str, data: Blob, *, named: bool = True) -> None:
        await self.step(lambda: self._view.write(path, data, named=named))

    async def settle(self) -> None:
        self._check()
        await self._view.settle()

    async def sync_folder(self, folder: str) -> None:
        await self.step(lambda: self._view.sync_folder(folder))

    async def list(self, folder: str) -> list[str]:
        self._check()
        return await self._view.list(folder)

    async def folders(self, folder: str) -> Sequence[str]:
        self._check()
        return await self._view.folders(folder)

    async def remove(self, path: str) -> None:
        await self.step(lambda: self._view.remove(path))

    async def move(self, source: str, target: str) -> bool:
        return await self.step(lambda: self._view.move(source, target))

    async def remove_folder(self, folder: str) -> None:
        await self.step(lambda: self._view.remove_folder(folder))


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


# ---- the model ------------------------------------------------------------------------------


@dataclass
class Expected:
    """What a server has of one tablet."""

    state: str = ABSENT
    tombstone: OpId | None = None
    forever: bool = False
    last: OpId = NOTHING
    """Of the snapshot."""
    images: dict[str, bytes] = field(default_factory=dict)
    log: list[OpId] = field(default_factory=list)
    vote: TermAndVote = field(default_factory=lambda: TermAndVote(0, None))
    quarantine: list[dict[str, bytes]] = field(default_factory=list)

    def settled(self) -> Expected:
        """As after a restart."""
        if self.state != DataState.COPYING:
            return self
        return Expected(
            DataState.DELETED, self.tombstone, vote=self.vote, quarantine=self.quarantine
        )

    def view(self) -> tuple[Any, ...]:
        return (self.state, self.tombstone, self.forever, self.last, self.images, self.log)

    @property
    def end(self) -> OpId:
        return max([self.last, *self.log])


@dataclass
class Session:
    """A copy under way, as its source has it."""

    source: ConsensusMetadata
    images: dict[str, bytes]
    last: OpId
    log: list[OpId]
    attempt: CopyAttempt


class World:
    """One server's tablets through many lives."""

    def __init__(self, loop: SimLoop, seed: object) -> None:
        self.rng = random.Random(f"{seed}/world")
        self.loop = loop
        self.disk = SimDisk(random.Random(f"{seed}/disk"), OPTIONS, lambda text: None)
        self.lives = 0
        self.expected: dict[str, Expected] = {}
        self.after: dict[str, Expected] = {}
        self.sessions: dict[str, Session] = {}
        self.number = 0

    async def start(self, crash_at: tuple[int, When] | None = None) -> LoadedTablets:
        """A new life."""
        self.lives += 1
        self.stepped = SteppedDisk(self.disk, self.loop, self.lives, self.rng)
        self.stepped.crash_at = crash_at
        self.tasks = Tasks()
        self.store = TabletStore(self.stepped, self.tasks, ME, files_of)
        self.copies = TabletCopies(self.store)
        self.sessions.clear()
        return await self.store.load_all()

    def one(self, tablet: str) -> Expected:
        return self.expected.setdefault(tablet, Expected())

    # ---- what a life does; each is one operation that a crash may cut short -----------------

    async def act(self, name: str, tablet: str) -> bool:
        """Do one operation, if the tablet's state allows it; `Crash` if the life ends in it."""
        now = self.one(tablet)
        self.after[tablet] = after = copy.deepcopy(now)
        work = getattr(self, f"_{name}")(TabletId(tablet), now, after)
        if work is None:
            return False
        await work
        self.expected[tablet] = after
        return True

    def _image(self) -> tuple[str, bytes]:
        self.number += 1
        return f"segment-{self.number}", self.rng.randbytes(self.rng.randrange(1, 1500))

    def _create(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.state != ABSENT:
            return None
        after.state = DataState.READY
        return self.store.create(tablet, table(), members())

    def _append(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """The replica's own doing: a term, then entries of it."""
        if now.state != DataState.READY:
            return None
        after.vote = TermAndVote(max(now.vote.term, now.end.term) + 1, OTHER)
        first = now.end.index + 1
        entries = [entry(after.vote.term, first + i) for i in range(3)]
        after.log += [e.op_id for e in entries]

        async def work() -> None:
            await self.store.files.replace_consensus(
                ConsensusMetadata(tablet, after.vote, members())
            )
            await self.store.files.write_log(tablet, entries)

        return work()

    def _flush(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """One new image, and one of the others is no longer needed."""
        if now.state != DataState.READY or now.end == NOTHING:
            return None
        name, data = self._image()
        if len(after.images) > 1:
            del after.images[min(after.images)]
        after.images[name] = data
        after.last = now.end
        return flush(self.store, tablet, {name: data}, snapshot(after.last, after.images))

    def _deletion(
        self, tablet: TabletId, now: Expected, after: Expected, forever: bool, known: bool
    ) -> Coroutine[Any, Any, Any]:
        if now.state == DataState.READY:
            after.tombstone = now.end if known else None
            after.quarantine = [*now.quarantine, now.images][-KEPT_OF_A_TABLET:]
        elif now.state == ABSENT:
            after.tombstone = NOTHING
        after.state, after.forever = DataState.DELETED, now.forever or forever
        after.last, after.images, after.log = NOTHING, {}, []
        self.sessions.pop(tablet, None)
        return self.store.tombstone(tablet, now.end if known else None, forever=forever)

    def _delete(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.state == ABSENT:
            return None
        return self._deletion(tablet, now, after, False, True)

    def _delete_unknown(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.state != DataState.READY:
            return None
        return self._deletion(tablet, now, after, False, False)

    def _drop(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        return self._deletion(tablet, now, after, True, True)

    def _vote(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.state not in (DataState.DELETED, DataState.COPYING):
            return None
        after.vote = TermAndVote(now.vote.term + 1, self.rng.choice([None, ME, OTHER]))
        return self.store.save_vote(tablet, after.vote)

    def _begin(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """A new copy, or (from another source, with some of the same images) one that goes on."""
        if now.state == DataState.READY or now.forever:
            return None
        if now.state == ABSENT:
            after.tombstone = NOTHING
        after.state = DataState.COPYING
        reached = now.tombstone if now.tombstone is not None else NOTHING
        term = max(reached.term, now.vote.term + self.rng.choice([-1, 0, 1]), 1)
        source = metadata(tablet, term, OTHER)
        if now.tombstone is None and now.state != ABSENT:
            source = msgspec.structs.replace(source, configuration=members(voter=False))
        if term > now.vote.term:
            after.vote = TermAndVote(term, None)
        images = dict(self._image() for _ in range(2))
        before = self.sessions.get(tablet)
        if before is not None:
            kept = max(before.images)
            images[kept] = before.images[kept]
        last = OpId(max(reached.term, 1), max(1, reached.index - 2))
        log = [OpId(last.term, last.index + 1 + i) for i in range(4)]

        async def work() -> None:
            wanted = [stored(name, data) for name, data in images.items()]
            attempt = await self.copies.begin_copy(tablet, table(), source, wanted)
            if before is not None:
                verified = {name for name, file in before.attempt.held.items() if name in images}
                assert set(attempt.held) == verified, "what was verified is not copied again"
            self.sessions[tablet] = Session(source, images, last, log, attempt)

        return work()

    def _image_comes(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        session = self.sessions.get(tablet)
        if session is None or not session.attempt.missing:
            return None
        file = session.attempt.missing[0]
        return self.copies.write_copied(session.attempt, file, session.images[file.name])

    def _log_comes(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        session = self.sessions.get(tablet)
        if session is None or session.attempt.log_last == session.log[-1]:
            return None
        done = session.attempt.log_last
        rest = [op_id for op_id in session.log if op_id > done][:2]
        entries = [entry(op_id.term, op_id.index) for op_id in rest]
        return self.copies.write_log(session.attempt, entries)

    def _finish(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        session = self.sessions.get(tablet)
        if session is None or session.attempt.missing:
            return None
        if session.attempt.log_last != session.log[-1]:
            return None
        after.state, after.tombstone = DataState.READY, None
        after.last, after.log = session.last, list(session.log)
        dropped = min(session.images)  # the source has flushed it away meanwhile
        after.images = {n: d for n, d in session.images.items() if n != dropped}
        given = snapshot(session.last, after.images)

        async def work() -> None:
            await self.copies.finish_copy(session.attempt, given, session.source)
            del self.sessions[tablet]

        return work()

    def _abort(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        session = self.sessions.pop(tablet, None)
        if session is None:
            return None
        after.state = DataState.DELETED
        return self.copies.abort_copy(session.attempt)

    def _purge(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """Of the oldest deletion."""
        if not now.quarantine:
            return None
        del after.quarantine[0]

        async def work() -> None:
            oldest = (await self.store.quarantine_list(tablet))[0]
            assert await self.store.quarantine_purge(tablet, oldest.number) == [oldest]

        return work()

    # ---- what must be there after a restart -------------------------------------------------

    async def check(self, loaded: LoadedTablets, cut_short: bool) -> None:
        """Hold what was loaded to the model; after a crash either side of the operation will do."""
        assert not loaded.failed, loaded.failed
        again = await self.start()
        assert not again.repairs, f"the start was not settled: {again.repairs}"
        assert (again.superblocks, again.metadata) == (loaded.superblocks, loaded.metadata)
        for tablet in sorted(self.expected):
            found = await self._found(TabletId(tablet), loaded)
            before = self.expected[tablet].settled()
            after = self.after.get(tablet, before).settled() if cut_short else before
            views = [before.view(), after.view()]
            assert found.view() in views, f"{found.view()} is none of {views}"
            assert found.vote in (before.vote, after.vote), f"{found.vote}: {before}, {after}"
            self._check_quarantine(found, before, after)
            found.log = list(found.log)
            self.expected[tablet] = found
        self.after.clear()

    def _check_quarantine(self, found: Expected, before: Expected, after: Expected) -> None:
        deleted_by_this = found.state == DataState.DELETED and before.state == DataState.READY
        if deleted_by_this:  # what it pushes out may be half removed
            kept = found.quarantine[-len(after.quarantine) :]
            assert kept == after.quarantine, "a deletion keeps the data in quarantine"
            assert len(found.quarantine) <= len(before.quarantine) + 1
        elif len(after.quarantine) < len(before.quarantine):  # a purge, perhaps half done
            assert found.quarantine[-len(after.quarantine) :] == after.quarantine or (
                not after.quarantine
            )
            assert len(found.quarantine) in (len(before.quarantine), len(after.quarantine))
        else:
            assert found.quarantine in (before.quarantine, after.quarantine)

    async def _found(self, tablet: TabletId, loaded: LoadedTablets) -> Expected:
        superblock = loaded.superblocks.get(tablet)
        inside = [path for path in self.disk.paths() if path.split("/")[1] == tablet]
        quarantine = await self._quarantine(tablet)
        if superblock is None:
            assert not inside, inside
            return Expected(quarantine=quarantine)
        assert superblock.state is not DataState.COPYING
        found = Expected(superblock.state, superblock.tombstone, superblock.forever)
        found.vote, found.quarantine = loaded.metadata[tablet].term_and_vote, quarantine
        if superblock.snapshot is not None:
            found.last = superblock.snapshot.last
            for file in files_of(superblock.snapshot):
                found.images[file.name] = await self.store.read_image(tablet, file)
        wals = [path for path in inside if path.startswith("wals/")]
        for path in wals:
            first = parse_log_file_name(path.rpartition("/")[2])
            assert first is not None
            decoded = decode_file(path, tablet, first, self.disk.durable(path), newest=False)
            found.log += [e.op_id for e in decoded.entries]
        names = [f"data/{tablet}/{name}" for name in found.images]
        whole = [*names, *wals, f"tablet-meta/{tablet}", f"consensus-meta/{tablet}"]
        assert sorted(whole) == sorted(inside), "only what counts is there"
        if superblock.state is DataState.DELETED:
            assert not wals
            assert not names
        return found

    async def _quarantine(self, tablet: TabletId) -> list[dict[str, bytes]]:
        contents = []
        for listed in await self.store.quarantine_list(tablet):
            prefix = f"{listed.folder}/data/"
            paths = [path for path in self.disk.paths() if path.startswith(prefix)]
            contents.append({path[len(prefix) :]: self.disk.durable(path) for path in paths})
        return contents


def run(body: Callable[[World], Awaitable[T]], seed: object = 1) -> T:
    """Run ``body`` in a world whose first life has begun."""
    loop = make_loop(random.Random(f"{seed}/loop"))

    async def main() -> T:
        world = World(loop, seed)
        await world.start()
        return await body(world)

    return loop.run(main(), 1e6)


OPERATIONS = (
    "create",
    "append",
    "flush",
    "delete",
    "delete_unknown",
    "drop",
    "vote",
    "begin",
    "image_comes",
    "log_comes",
    "finish",
    "abort",
    "purge",
)
