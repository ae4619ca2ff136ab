"""A timeline store on a simulated disk that crashes at a chosen step, and a model of what stays.

Steps and crashes are those of `tablet_store_world`. An operation that a crash cut short leaves the
state before it or after it; of an append, any part of the entries that nobody was told of.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import pytest
from crc32c import crc32c

from stelae.actors.safekeeper.reopening import reopen
from stelae.actors.safekeeper.timeline_store.snapshot import HeldSnapshot
from stelae.actors.safekeeper.timeline_store.startup import LoadedTimelines
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.core.errors import CorruptData, NoSpace, TabletNotReady
from stelae.core.ids import TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    NOBODY,
    AcceptorState,
    LogPosition,
    ProposerId,
    SafekeeperId,
    TimelineConfiguration,
    history_of,
    joined_history,
)
from stelae.core.rpc import Blob
from stelae.core.tasks import Tasks
from stelae.simulation import Options, SimLoop
from stelae.simulation.world.disk import InjectedDiskError, SimDisk
from stelae.simulation.world.process import ProcessEnded
from stelae.storage.files.timeline_control import FOREVER
from tests.simulation.world.loops import make_loop
from tests.unit.actors.tserver.tablet_store.tablet_store_world import Crash, SteppedDisk, When

T = TypeVar("T")
ME, OTHER, THIRD = SafekeeperId(1), SafekeeperId(2), SafekeeperId(3)
OPTIONS = Options(keep_unsynced_rate=0.2, read_mean_s=0.00001, flip_rate=0.2)
FILE_BYTES = 700
PIECE_BYTES = 300
UNTOLD = "timeline-wals/t3-"
"""Of a timeline beside those that the model has."""


def members(generation: int, *ids: SafekeeperId) -> TimelineConfiguration:
    """A configuration with those members; without any, with this safekeeper and another."""
    return TimelineConfiguration(generation, ids or (ME, OTHER))


def entry(term: int, index: int, size_bytes: int = 40) -> Entry:
    body = f"{term}.{index}:".encode().ljust(size_bytes, b"x")
    return Entry(term, index, EntryKind.COMMAND, body)


class Blobs:
    """A place to offload to, which survives all crashes; a put may be seen or not, if it failed."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.check: Callable[[], None] = lambda: None
        self.before_put: Callable[[], Awaitable[None]] | None = None

    async def put(self, name: str, data: Blob, crc: int) -> None:
        if self.before_put is not None:
            await self.before_put()
        self.check()
        content = bytes(data)
        assert crc32c(content) == crc
        assert self.content.setdefault(name, content) == content, f"{name} is used again"

    async def get(self, name: str) -> bytes:
        self.check()
        if name not in self.content:
            raise CorruptData(name, 0, "is not there")
        return self.content[name]

    async def delete(self, name: str) -> None:
        self.check()
        self.content.pop(name, None)


@dataclass
class Expected:
    """What a safekeeper has of one timeline. The log is all that it ever had, trimmed or not."""

    presence: str = "absent"
    acceptor: AcceptorState | None = None
    log: list[Entry] = field(default_factory=list)
    least: int = 0
    """Entries that must be there; what follows may be there."""
    deleted_generation: int = 0
    deleted_term: int = 0

    @property
    def exists(self) -> bool:
        return self.acceptor is not None

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.log[-1].term if self.log else 0, len(self.log))

    @property
    def generation(self) -> int:
        return self.acceptor.configuration.generation if self.acceptor else 0

    def view(self) -> tuple[Any, ...]:
        """All but log and history, which is only sure up to the horizon."""
        acceptor = self.acceptor
        if acceptor is not None:
            acceptor = msgspec.structs.replace(acceptor, term_history=())
        return (self.presence, acceptor, self.deleted_generation, self.deleted_term)


class World:
    """One safekeeper's timelines through many lives."""

    def __init__(self, loop: SimLoop, seed: object, options: Options = OPTIONS) -> None:
        self.rng = random.Random(f"{seed}/world")
        self.loop = loop
        self.seed = seed
        self.disk = SimDisk(random.Random(f"{seed}/disk"), options, lambda text: None)
        self.blobs = Blobs()
        self.lives = 0
        self.donors = 0
        self.expected: dict[str, Expected] = {}
        self.after: dict[str, Expected] = {}

    async def start(self, crash_at: tuple[int, When] | None = None) -> LoadedTimelines:
        """A new life."""
        self.lives += 1
        self.stepped = SteppedDisk(self.disk, self.loop, self.lives, self.rng)
        self.stepped.crash_at = crash_at
        self.blobs.check = self.stepped._check
        self.tasks = Tasks()
        await self.stepped.settle()  # as every server does before it reads anything
        self.store = TimelineStore(
            self.stepped, self.tasks, ME, blobs=self.blobs, file_bytes=FILE_BYTES
        )
        return await self.store.load_all()

    def one(self, tablet: str) -> Expected:
        return self.expected.setdefault(tablet, Expected())

    # ---- what a life does; each is one operation that a crash may cut short -----------------

    async def act(self, name: str, tablet: str) -> bool:
        """Do one operation, if the timeline's state allows it; `Crash` if the life ends in it."""
        now = self.one(tablet)
        self.after[tablet] = after = copy.deepcopy(now)
        work = getattr(self, f"_{name}")(TabletId(tablet), now, after)
        if work is None:
            return False
        try:
            await work
        except ProcessEnded:  # beside what made the crash
            assert self.stepped.dead
            raise Crash from None
        after.least = len(after.log)
        self.expected[tablet] = after
        return True

    def timeline(self, tablet: str) -> Timeline:
        return self.store.timeline(TabletId(tablet))

    def _create(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.exists or now.deleted_generation == FOREVER:
            return None
        configuration = members(now.deleted_generation + 1)
        after.presence = "resident"
        after.acceptor = AcceptorState(configuration, term=now.deleted_term)
        return self.store.create(tablet, configuration)

    def _some(self, after: Expected, count: int) -> list[Entry]:
        """Entries of the acceptor's term that follow the log."""
        assert after.acceptor is not None
        first, term = len(after.log) + 1, after.acceptor.term
        sizes = [self.rng.choice([0, 10, 60, 300, 1000]) for _ in range(count)]
        return [entry(term, first + i, size) for i, size in enumerate(sizes)]

    def _append(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """Several appends at once, which may share a sync."""
        if now.acceptor is None or now.acceptor.term == 0:
            return None
        timeline = self.timeline(tablet)
        after.presence = "resident"

        async def flushed(lsn: int) -> None:
            lsn = await timeline.flushed(lsn)
            now.least = after.least = max(now.least, lsn)

        async def work() -> None:
            lsns = []
            for _ in range(self.rng.randrange(1, 4)):
                await timeline.resident()
                batch = self._some(after, self.rng.randrange(1, 5))
                after.log += batch
                timeline.write(batch)
                lsns.append(batch[-1].index)
                if self.rng.random() < 0.3:
                    await self.stepped.list("")  # so that it comes while others are written
            await asyncio.gather(*map(flushed, lsns))
            assert timeline.flush_lsn == lsns[-1]

        return work()

    def _change(self, now: Expected, after: Expected, **changes: Any) -> AcceptorState:
        assert now.acceptor is not None
        after.acceptor = msgspec.structs.replace(now.acceptor, **changes)
        return after.acceptor

    def _vote(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.acceptor is None:
            return None
        term = now.acceptor.term + self.rng.randrange(1, 3)
        acceptor = self._change(now, after, term=term, voted_for=ProposerId(f"p{term}"))
        return self.timeline(tablet).save(acceptor)

    def _switch(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.acceptor is None:
            return None
        configuration = members(now.generation + 1)
        return self.timeline(tablet).save(self._change(now, after, configuration=configuration))

    def _commit(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """The commit and the horizon rise, the latter with the history."""
        if now.acceptor is None:
            return None
        commit = self.rng.randint(now.acceptor.commit_lsn, len(now.log))
        horizon = self.rng.randint(now.acceptor.horizon_lsn, commit)
        history = history_of(now.log)
        acceptor = self._change(
            now, after, commit_lsn=commit, horizon_lsn=horizon, term_history=history
        )
        return self.timeline(tablet).save(acceptor)

    def _cut(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """A new leader, whose log parts from this one somewhere after the commit."""
        if now.acceptor is None:
            return None
        first = self.rng.randint(now.acceptor.commit_lsn + 1, len(now.log) + 1)
        acceptor = self._change(now, after, term=now.acceptor.term + 1, voted_for=ProposerId(""))
        after.presence = "resident"
        after.log = after.log[: first - 1]
        after.least = len(after.log)

        async def work() -> None:
            timeline = self.timeline(tablet)
            await timeline.resident()
            await timeline.save(acceptor, cut_from=first)

        return work()

    def _restart(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """All that is here is needed no more, and what follows is somewhere else."""
        if now.acceptor is None or now.acceptor.term == 0:
            return None
        after.log += self._some(after, self.rng.randrange(1, 4))
        base = len(after.log)
        acceptor = self._change(
            now, after, commit_lsn=base, horizon_lsn=base, term_history=history_of(after.log)
        )
        after.presence = "resident"
        return self.timeline(tablet).restart(acceptor, base)

    def _trim(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.acceptor is None:
            return None
        return self.timeline(tablet).trim(now.acceptor.horizon_lsn)

    def _evict(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.acceptor is None:
            return None
        after.presence = "evicted"

        async def work() -> None:
            assert await self.store.evict(tablet)

        return work()

    def _evict_used(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """An append comes while files are being offloaded: it is not lost."""
        if now.presence != "resident" or now.acceptor is None or now.acceptor.term == 0:
            return None
        entries = self._some(after, 2)
        timeline = self.timeline(tablet)
        after.presence = "evicted"
        puts = 0

        async def append() -> None:
            nonlocal puts
            puts += 1
            if puts == 1:
                after.presence = "resident"
                after.log += entries
                await timeline.append(entries)
                now.least = after.least = len(after.log)

        async def work() -> None:
            self.blobs.before_put = append
            try:
                evicted = await self.store.evict(tablet)
            finally:
                self.blobs.before_put = None
            assert evicted == (puts == 0), "what was used is not idle"

        return work()

    def _back(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        if now.acceptor is None:
            return None
        after.presence = "resident"
        return self.timeline(tablet).resident()

    def _exclude(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """Deleted here, as another configuration says."""
        generation = max(now.generation, now.deleted_generation) + self.rng.randrange(2)
        if now.deleted_generation == FOREVER or generation == 0:
            return None
        self._gone(now, after, generation)
        return self.store.delete(tablet, members(generation, OTHER, THIRD))

    def _drop(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        self._gone(now, after, FOREVER)
        return self.store.delete(tablet, None)

    def _gone(self, now: Expected, after: Expected, generation: int) -> None:
        after.presence, after.acceptor, after.log, after.least = "deleted", None, [], 0
        after.deleted_generation = max(generation, now.deleted_generation)
        term = now.acceptor.term if now.acceptor is not None else 0
        after.deleted_term = max(now.deleted_term, term)

    # ---- failing disks ----------------------------------------------------------------------

    def _full(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """Something on a full disk: it is done, or nothing of it is."""
        names = ("create", "append", "vote", "cut", "trim", "evict", "back", "exclude", "pull")
        work = getattr(self, f"_{self.rng.choice(names)}")(tablet, now, after)
        return None if work is None else self._when_full(tablet, work, now, after)

    async def _when_full(
        self, tablet: TabletId, work: Awaitable[Any], now: Expected, after: Expected
    ) -> None:
        self.disk.full = True
        try:
            await work
        except NoSpace:
            kept = copy.deepcopy(now)
            if now.exists:
                flush_lsn = self.timeline(tablet).flush_lsn
                assert now.least <= flush_lsn <= max(len(after.log), len(now.log))
                if flush_lsn > len(now.log):
                    kept.log = after.log[:flush_lsn]
            for name in ("presence", "acceptor", "log", "deleted_generation", "deleted_term"):
                setattr(after, name, getattr(kept, name))
        finally:
            self.disk.full = False

    def _sync_error(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """The disk fails: nothing is acknowledged any more, and the others go on."""
        if now.presence != "resident" or now.acceptor is None or now.acceptor.term == 0:
            return None
        after.log += self._some(after, 2)
        return self._failing(tablet, now, after)

    async def _failing(self, tablet: TabletId, now: Expected, after: Expected) -> None:
        timeline = self.timeline(tablet)
        self.disk.fail_next_sync = True
        try:
            lsn = await timeline.append(after.log[len(now.log) :])
        except InjectedDiskError:
            lsn = 0
        assert not lsn, "acknowledged, although the disk failed"
        assert timeline.failure is not None
        for work in (timeline.append([]), timeline.save(timeline.acceptor), timeline.flushed(1)):
            with pytest.raises(TabletNotReady):
                await work
        await self.store.create(TabletId("t3"), members(1))
        self.stepped._crash()

    def _reopen(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """The disk fails below a write or a save, and the timeline is opened anew."""
        if now.acceptor is None or now.acceptor.term == 0:
            return None
        if self.rng.random() < 0.5:
            after.presence = "resident"
            return self._reopened(tablet, after, self._some(now, 2))
        return self._reopened(tablet, after, [])

    async def _reopened(self, tablet: TabletId, after: Expected, entries: list[Entry]) -> None:
        """What was told stays, and nothing else counts of the log; a save has happened or not. A
        crash before it is open again may leave some of what was written."""
        timeline = self.timeline(tablet)
        if entries:
            await timeline.resident()
            after.log += entries
        assert after.acceptor is not None
        saved = msgspec.structs.replace(after.acceptor, term=after.acceptor.term + 1)
        saved = msgspec.structs.replace(saved, voted_for=NOBODY)
        self.disk.fail_next_sync = True
        with pytest.raises(InjectedDiskError):
            await (timeline.append(entries) if entries else timeline.save(saved))
        assert await reopen(self.store, tablet)
        assert self.timeline(tablet) is not timeline
        del after.log[len(after.log) - len(entries) :]
        found = self.timeline(tablet).acceptor
        assert found.term in (after.acceptor.term, saved.term if not entries else 0)
        after.acceptor = msgspec.structs.replace(after.acceptor, term=found.term)
        if found.term == saved.term:
            after.acceptor = saved
        assert not await reopen(self.store, tablet), "nothing has failed"

    # ---- pulls ------------------------------------------------------------------------------

    def _pull(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """A copy of a log that is ahead of ours, or is not."""
        if now.deleted_generation == FOREVER:
            return None
        generation = max(now.generation, now.deleted_generation) + 1
        commit = now.acceptor.commit_lsn if now.acceptor is not None else 0
        shared = self.rng.randint(commit, len(now.log))
        log = now.log[:shared]
        term = max(now.position.last_log_term, now.deleted_term, 1) + self.rng.randrange(2)
        if shared < len(now.log):
            term += 1
        for _ in range(self.rng.randrange(6)):
            log = [*log, entry(term, len(log) + 1, self.rng.choice([5, 80, 400]))]
        return self._pull_of(tablet, now, after, log, generation)

    def _pull_older(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """Of a donor that lags: nothing that is here changes."""
        if now.acceptor is None or now.acceptor.commit_lsn == len(now.log):
            return None
        log = now.log[: self.rng.randint(now.acceptor.commit_lsn, len(now.log) - 1)]
        return self._pull_of(tablet, now, after, log, now.generation)

    def _pull_raced(self, tablet: TabletId, now: Expected, after: Expected) -> Any:
        """A donor is ahead, but while the copy comes the leader's entries come faster."""
        if now.acceptor is None or now.acceptor.term == 0:
            return None
        donated = msgspec.structs.replace(
            now.acceptor, commit_lsn=0, horizon_lsn=0, term_history=()
        )
        log = [*now.log, *self._some(after, 2)]
        after.presence, after.log = "resident", list(log)
        more = self._some(after, 2)
        after.log += more

        async def work() -> None:
            donor = await self.donor(tablet, donated, log)
            attempt = await self.store.pulls.begin(donor.snapshot, donated.configuration)
            assert attempt is not None
            await self.timeline(tablet).append(after.log[len(now.log) :])
            now.least = len(after.log)
            while attempt.missing:
                file, offset = attempt.missing[0]
                piece = await donor.read(file, offset, PIECE_BYTES)
                await self.store.pulls.write(attempt, file, offset, piece)
            await self.store.pulls.finish(attempt)

        return work()

    def _pull_of(
        self, tablet: TabletId, now: Expected, after: Expected, log: list[Entry], generation: int
    ) -> Any:
        configuration = members(generation)
        installed = LogPosition(log[-1].term if log else 0, len(log)) > now.position
        installed = installed or not now.exists
        donor_term = (log[-1].term if log else 0) + self.rng.randrange(2)
        commit = self.rng.randint(min(now_commit(now), len(log)), len(log))
        horizon = self.rng.randint(0, commit)
        donated = AcceptorState(
            members(generation, OTHER, THIRD),
            donor_term,
            ProposerId("donor"),
            history_of(log),
            commit,
            horizon,
        )
        if installed:
            own = now.acceptor or AcceptorState(configuration)
            term = max(own.term, donor_term, now.deleted_term)
            after.presence = "resident"
            after.acceptor = AcceptorState(
                # The donor's is of the same generation, and comes later: the first one stays.
                configuration if now.generation < generation else own.configuration,
                term,
                own.voted_for if own.term == term else ProposerId(""),
                history_of(log),
                max(own.commit_lsn, commit),
                max(own.horizon_lsn, horizon),
            )
            donated = msgspec.structs.replace(donated, configuration=after.acceptor.configuration)
            after.log, after.least = log, len(log)
        return self._pull_from(tablet, donated, log, configuration, installed)

    async def _pull_from(
        self,
        tablet: TabletId,
        donated: AcceptorState,
        log: list[Entry],
        configuration: TimelineConfiguration,
        installed: bool,
    ) -> None:
        donor = await self.donor(tablet, donated, log)
        pulls = self.store.pulls
        attempt = await pulls.begin(donor.snapshot, configuration)
        assert (attempt is not None) == installed, "a copy is taken if it is ahead"
        if attempt is None:
            return
        if self.rng.random() < 0.3 and attempt.missing:  # the first attempt ends midway
            file, offset = attempt.missing[0]
            await pulls.write(attempt, file, 0, await donor.read(file, 0, PIECE_BYTES))
            attempt = await pulls.begin(donor.snapshot, configuration)
            assert attempt is not None
        while attempt.missing:
            file, offset = attempt.missing[0]
            await pulls.write(attempt, file, offset, await donor.read(file, offset, PIECE_BYTES))
        assert await pulls.finish(attempt) is not None
        donor.release()

    async def donor(
        self, tablet: TabletId, acceptor: AcceptorState, log: list[Entry]
    ) -> HeldSnapshot:
        """Another safekeeper with that state, whose WAL may be trimmed or evicted."""
        self.donors += 1
        rng = random.Random(f"{self.seed}/donor/{self.donors}")
        disk = SimDisk(rng, OPTIONS, lambda text: None)
        stepped = SteppedDisk(disk, self.loop, 1_000_000 + self.donors, rng)
        store = TimelineStore(stepped, Tasks(), OTHER, blobs=Blobs(), file_bytes=FILE_BYTES)
        await store.load_all()
        timeline = await store.create(tablet, members(1))
        early = msgspec.structs.replace(
            acceptor, configuration=members(1), commit_lsn=0, horizon_lsn=0
        )
        await timeline.save(early)
        done = 0
        while done < len(log):
            count = rng.randrange(1, 5)
            await timeline.append(log[done : done + count])
            done += count
        # A generation of 1 is that of its creation; its members may differ in these tests only.
        timeline.control = msgspec.structs.replace(
            timeline.control, acceptor=msgspec.structs.replace(acceptor, term_history=())
        )
        await timeline.save(acceptor)
        await timeline.trim(rng.randint(0, acceptor.horizon_lsn))
        if rng.random() < 0.3:
            assert await store.evict(tablet)
        return await store.hold_snapshot(tablet)

    # ---- what is there ----------------------------------------------------------------------

    async def check(self, loaded: LoadedTimelines, cut_short: bool) -> None:
        """What a start found is what the model allows, and nothing else lies on the disk."""
        assert not loaded.failed, loaded.failed
        for tablet in sorted(self.expected):
            candidates = [self.expected[tablet]]
            if cut_short and tablet in self.after:
                candidates.append(self.after[tablet])
                back = copy.deepcopy(self.expected[tablet])
                if back.presence == "evicted":  # what needs the log brings it back first
                    back.presence = "resident"
                    candidates.append(back)
            found, base = await self.found(TabletId(tablet))
            history = self.timeline(tablet).history if found.exists else ()
            if found.exists:
                extent = self.timeline(tablet).extent
                assert found.acceptor is not None
                joined = joined_history(found.acceptor.term_history, base, extent.history)
                assert (extent.base_lsn, joined) == (base, history)
            matching = [
                one
                for one in candidates
                if one.view() == found.view()
                and one.least <= len(found.log) <= len(one.log)
                and found.log[base:] == one.log[base : len(found.log)]
                and history_of(one.log[: len(found.log)]) == history
            ]
            assert matching, (tablet, found, candidates)
            matching[0].log = matching[0].log[: len(found.log)]
            matching[0].least = len(found.log)
            self.expected[tablet] = matching[0]
        self.after.clear()
        await self._check_disk()

    async def found(self, tablet: TabletId) -> tuple[Expected, int]:
        """What the store has of a timeline; entries up to the base are made up."""
        control = self.store.control(tablet)
        found = Expected(control.presence.value if control.number else "absent", control.acceptor)
        if control.tombstone is not None:
            found.deleted_generation = control.tombstone.generation
            found.deleted_term = control.tombstone.term
        if not control.exists:
            return found, 0
        timeline = self.store.timeline(tablet)
        last, base = timeline.last, timeline.base_lsn
        assert base <= timeline.acceptor.horizon_lsn
        found.log = [entry(0, lsn) for lsn in range(1, base + 1)]
        if control.presence == "evicted" and self.rng.random() < 0.7:
            # It is seen to be there, and left away.
            held = await self.store.hold_snapshot(tablet)
            for file in held.snapshot.files:
                assert len(await held.read(file, 0, file.size_bytes)) == file.size_bytes
            held.release()
            kept = self.expected[tablet].log, self.after.get(tablet, Expected()).log
            logs = [log[: last.index] for log in kept if len(log) >= last.index]
            found.log = next(log for log in logs if history_of(log) == timeline.history)
            return found, base
        while len(found.log) < last.index:
            part = await timeline.read(len(found.log) + 1, last.index, self.rng.choice([1, 600]))
            assert part, "it reads at least one"
            found.log += part
        if control.presence == "evicted" and not timeline.is_evicted:  # reading brought it back
            for known in (self.expected[tablet], self.after.get(tablet, Expected())):
                if known.presence == "evicted":
                    known.presence = "resident"
            found.presence = "resident"
        return found, base

    async def _check_disk(self) -> None:
        """Only what counts is there, on the disk and where timelines are offloaded to."""
        blobs: list[str] = []
        wals: list[str] = []
        for tablet in sorted(self.expected):
            await self.store.delete_stale_blobs(TabletId(tablet))
            control = self.store.control(TabletId(tablet))
            assert not control.stale_blobs
            if control.evicted is not None:
                blobs += [offloaded.blob for offloaded in control.evicted.files]
            if control.presence == "resident":
                wals.append(f"timeline-wals/{tablet}-{control.incarnation}")
        wrong = sorted(set(self.blobs.content) ^ set(blobs))
        assert not wrong, f"missing or not counting: {wrong}"
        for path in self.disk.paths():
            folder = path.rpartition("/")[0]
            counts = folder == "timelines" or folder in wals or folder.startswith(UNTOLD)
            assert counts, f"{path} does not count"


def now_commit(now: Expected) -> int:
    return now.acceptor.commit_lsn if now.acceptor is not None else 0


def run(body: Callable[[World], Awaitable[T]], seed: object = 1) -> T:
    """Run ``body`` in a world whose first life has begun."""
    loop = make_loop(random.Random(f"{seed}/loop"))

    async def main() -> T:
        world = World(loop, seed)
        await world.start()
        return await body(world)

    return loop.run(main(), 1e6)


async def tell(world: World, story: str) -> bool:
    """Act the story out; true if it was cut short by a crash."""
    try:
        for name in story.split():
            assert await world.act(name, "t1"), f"{name} was not possible"
    except Crash:
        return True
    return False


async def settle(
    world: World, *, cut_short: bool, crashes_at: list[tuple[int, When]] | None = None
) -> None:
    """Start, and crash in starting as often as asked; then check what is there."""
    for crash_at in crashes_at or []:
        try:
            await world.start(crash_at)
        except Crash:
            continue
    await world.check(await world.start(), cut_short)


OPERATIONS = (
    *("create", "append", "append", "append", "append", "vote", "switch", "commit", "commit"),
    *("cut", "cut", "trim", "evict", "evict_used", "back", "exclude", "drop", "pull", "pull"),
    *("restart", "pull_older", "pull_raced", "full", "full", "sync_error"),
    *("reopen", "reopen"),
)

__all__ = ["Crash", "NoSpace", "When", "World"]
