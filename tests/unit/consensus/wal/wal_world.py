"""Random lives of one timeline: acceptors and proposers of the pure cores in a world of one seed.

Messages are lost, doubled, delayed and reordered; links are cut; safekeepers crash at any point of
a write and keep only what was persisted; two proposers contend; drivers change the members, and are
dropped half-way. Checked all the time: one leader per term over all generations, log matching, no
committed entry lost or changed, commits that never go back, reads that miss nothing, no alarm.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from stelae.consensus.wal.acceptor import AcceptorReady, WalAcceptor, copied_state
from stelae.consensus.wal.messages import (
    BumpTerm,
    Exclude,
    ExcludeReply,
    FetchedEntries,
    FetchEntries,
    SwitchConfiguration,
    ToAcceptor,
    ToProposer,
    WalVoteResponse,
    check_message,
)
from stelae.consensus.wal.proposer import WalProposer
from stelae.consensus.wal.ready import (
    EndReason,
    Fetch,
    Phase,
    ProposerReady,
    ProposerSettings,
)
from stelae.core.errors import RetryElsewhere, RetryLater, StelaeError
from stelae.core.ids import OpId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    AcceptorState,
    LogExtent,
    ProposerId,
    SafekeeperId,
    TimelineConfiguration,
    history_of,
)
from tests.unit.consensus.wal.wal_migration import (
    TIMELINE,
    Call,
    Calls,
    Driver,
    GaveUp,
    Pull,
    Steps,
    Store,
)

TICK_US = 1000
CALL_US = 8 * TICK_US


@dataclass
class Disk:
    """What survives a crash of one safekeeper; no state: there is no timeline."""

    state: AcceptorState | None = None
    base_lsn: int = 0
    entries: list[Entry] = field(default_factory=list)
    tombstone: int = 0
    """Generation of the newest exclusion."""


class Safekeeper:
    """One safekeeper, its disk, and the calls whose answers wait for that."""

    def __init__(self, name: SafekeeperId) -> None:
        self.name = name
        self.disk = Disk()
        self.core: WalAcceptor | None = None
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.checked_lsn = 0

    def start(self) -> None:
        disk, self.core = self.disk, None
        self.waiting.clear()
        self.checked_lsn = 0
        if disk.state is None:
            return
        log = LogExtent(disk.base_lsn, disk.base_lsn + len(disk.entries), history_of(disk.entries))
        self.core = WalAcceptor(
            timeline_id=TIMELINE, safekeeper=self.name, state=disk.state, log=log
        )


class Owner:
    """A tablet server's slot: one proposer after the other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        self.core: WalProposer | None = None
        self.applied_lsn = 0
        self.reads: dict[int, int] = {}
        self.cut: set[SafekeeperId] = set()
        self.seen_terms: set[int] = set()


class World:
    """A timeline in a world of one seed; ``bug`` names a mistake of the hosts or the drivers.

    ``climate`` says what there is most of: "moving" (changes of few members, elections that lead
    to nothing), "crashing" (safekeepers, under contention), or "mixed": anything.
    """

    def __init__(self, seed: int, bug: str = "", climate: str = "mixed") -> None:
        self.rng = rng = random.Random(f"{seed}/timeline")
        self.bug = bug
        self.settings = ProposerSettings(
            batch_entries_max=rng.choice([1, 3, 100]),
            inflight_bytes_max=rng.choice([1, 10, 1000]),
            retained_bytes_max=rng.choice([0, 10, 10_000]),
            fetch_bytes_max=rng.choice([1, 10, 1000]),
            uncommitted_bytes_max=rng.choice([20, 200]),
            silence_ticks=rng.choice([5, 10]),
        )
        self.loss = rng.choice([0.0, 0.02, 0.1])
        self.duplication = rng.choice([0.0, 0.1])
        self.delay_us = rng.choice([200, 800, 2500])
        self.crash_rate = rng.choice([0.0, 0.005, 0.05])
        self.owner_crash_rate = rng.choice([0.002, 0.02])
        self.campaign_rate = rng.choice([0.01, 0.05, 0.3])
        self.strike_rate = rng.choice([0.0, 0.3])  # right after an election
        self.cut_rate = rng.choice([0.0, 0.1, 0.5])
        self.write_rate = rng.choice([0.05, 0.5])
        self.migration_rate = rng.choice([0.0, 0.1, 0.3])
        count = rng.choice([2, 3, 3, 4, 5])
        if climate == "moving":
            count = rng.choice([2, 3])
            self.loss, self.delay_us, self.crash_rate = rng.choice([0.0, 0.05]), 150, 0.0
            self.migration_rate, self.write_rate = 0.5, 0.02
            self.campaign_rate, self.strike_rate = rng.choice([0.02, 0.1]), 0.5
        elif climate == "crashing":
            count, self.delay_us, self.crash_rate, self.migration_rate = 3, 200, 0.15, 0.0
            self.campaign_rate, self.owner_crash_rate, self.cut_rate = 0.5, 0.05, 0.0
        self.calm = False
        self.now_us = 0
        self.numbers = itertools.count(1)
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        names = [SafekeeperId(n) for n in range(1, count + 1)]
        self.safekeepers = {name: Safekeeper(name) for name in names}
        self.owners = [Owner("a"), Owner("b")]
        self.store = Store()
        self.history: dict[int, Entry] = {}
        self.committed_in: dict[int, int] = {}  # LSN -> term of the first to commit it
        self.leaders: dict[int, ProposerId] = {}
        self.previous: dict[OpId, tuple[int, bytes]] = {}
        self.backup_lsn = 0
        self.migrations = self.elections = self.reads = self.recoveries = self.restarts = 0
        first = TimelineConfiguration(1, self.pick_set())
        self.store.configurations.append(first)
        for name in first.sk_set:
            self.safekeepers[name].disk.state = AcceptorState(first)
            self.safekeepers[name].start()
        for owner in self.owners:
            self.at(rng.randrange(20 * TICK_US), partial(self.tick, owner))
        self.at(TICK_US, self.disturb)

    def pick_set(self) -> tuple[SafekeeperId, ...]:
        names = list(self.safekeepers)
        size = min(self.rng.choice([1, 2, 3, 3]), len(names))
        return tuple(sorted(self.rng.sample(names, size)))

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_us + delay_us, next(self.numbers), action))

    def run(self, ticks: int) -> None:
        end = self.now_us + ticks * TICK_US
        while self.queue and self.queue[0][0] <= end:
            self.now_us, _, action = heapq.heappop(self.queue)
            action()
        self.now_us = end

    def send(self, action: Callable[[], None], loss: float | None = None) -> None:
        rng = self.rng
        for _ in range(2 if rng.random() < self.duplication else 1):
            if rng.random() >= (self.loss if loss is None else loss):
                self.at(10 + int(rng.expovariate(1 / self.delay_us)), action)

    def heal(self) -> None:
        """From now on nothing goes wrong, and only one proposer is left."""
        self.loss = self.duplication = self.crash_rate = self.migration_rate = 0.0
        self.owner_crash_rate = self.cut_rate = self.strike_rate = 0.0
        self.campaign_rate = 0.05
        self.delay_us = min(self.delay_us, 500)
        self.calm = True
        self.owners[1].core = None
        for safekeeper in self.safekeepers.values():
            if safekeeper.core is None:
                safekeeper.start()

    # ---- proposers -------------------------------------------------------------------------

    def tick(self, owner: Owner) -> None:
        rng = self.rng
        if self.calm and owner is self.owners[1]:
            return
        self.at(TICK_US + rng.randrange(100), lambda: self.tick(owner))
        if rng.random() < self.owner_crash_rate:
            owner.core = None
        if owner.core is None and rng.random() < self.campaign_rate:
            self.begin(owner)
        core = owner.core
        if core is None:
            return
        core.tick()
        if core.phase is Phase.ENDED and rng.random() < self.campaign_rate:
            assert core.end in (EndReason.DEPOSED, EndReason.TRIMMED), core.end
            if core.end is EndReason.TRIMMED:
                self.begin(owner)
            else:
                core.learn(self.told())
                core.campaign()
        elif self.calm and rng.random() < 0.02:
            core.learn(self.told())
        elif core.phase is not Phase.LEADING and rng.random() < 0.02:
            core.learn(self.told())
            core.campaign()
        if rng.random() < self.write_rate:
            self.work(owner)
        if owner.core is not None:
            self.carry_out_proposer(owner)

    def told(self) -> TimelineConfiguration:
        """Whom the masters named, which may be out of date."""
        known = self.store.configurations[-1:] if self.calm else self.store.configurations[-3:]
        return self.rng.choice(known)

    def begin(self, owner: Owner) -> None:
        owner.lives += 1
        base = OpId(0, 0)
        if self.backup_lsn:
            base = self.history[self.backup_lsn].op_id
        owner.applied_lsn = base.index
        owner.reads.clear()
        owner.core = WalProposer(
            timeline_id=TIMELINE,
            proposer=ProposerId(f"{owner.name}{owner.lives}"),
            dial=self.told().members,
            base=base,
            settings=self.settings,
        )

    def work(self, owner: Owner) -> None:
        core = owner.core
        assert core is not None
        try:
            for _ in range(self.rng.choice([1, 1, 4])):
                core.propose(EntryKind.COMMAND, b"%d" % next(self.numbers))
            if self.rng.random() < 0.5:
                request = next(self.numbers)
                core.read(request)
                owner.reads[request] = len(self.history)
        except (RetryElsewhere, RetryLater):
            return
        if self.rng.random() < 0.1:
            self.backup_lsn = max(self.backup_lsn, owner.applied_lsn)
            limit = core.needed_from - 1 if self.rng.random() < 0.5 else self.backup_lsn
            core.trim(min(self.backup_lsn, limit))

    def carry_out_proposer(self, owner: Owner) -> None:
        core = owner.core
        assert core is not None
        self.check_proposer(owner, core)
        while ready := core.take_ready():
            assert not ready.alarms, ready.alarms
            self.take_committed(owner, ready)
            for message in ready.messages:
                self.send_to_acceptor(owner, message)
            for fetch in ready.fetches:
                self.recoveries += 1
                self.fetch(owner, core, fetch)
        core.check_invariants()

    def send_to_acceptor(self, owner: Owner, message: ToAcceptor) -> None:
        check_message(message)
        if self.calm or message.safekeeper not in owner.cut:
            self.send(lambda: self.deliver_to_acceptor(message))

    def take_committed(self, owner: Owner, ready: ProposerReady) -> None:
        for entry in ready.committed:
            assert entry.index == owner.applied_lsn + 1, "handed out out of order"
            owner.applied_lsn = entry.index
            assert owner.core is not None
            self.committed_in.setdefault(entry.index, owner.core.term)
            known = self.history.setdefault(entry.index, entry)
            assert known == entry, f"committed twice: {known} and {entry}"
            assert entry.index <= len(self.history), "a gap in what is committed"
        for read in ready.reads:
            self.reads += 1
            assert read.lsn >= owner.reads[read.request], "a read missed a write"

    def check_proposer(self, owner: Owner, core: WalProposer) -> None:
        if core.phase not in (Phase.LEADING, Phase.RECOVERING):
            return
        known = self.leaders.setdefault(core.term, core.proposer)
        assert known == core.proposer, f"term {core.term} was won by {known}, {core.proposer}"
        if core.phase is Phase.LEADING and core.term not in owner.seen_terms:
            owner.seen_terms.add(core.term)
            self.elections += 1
            if self.rng.random() < self.strike_rate:
                owner.cut = set(self.safekeepers)
            for lsn, entry in self.history.items():
                if self.committed_in[lsn] < core.term:
                    assert core.log.term_at(lsn) == entry.term, f"{core.proposer} lacks {entry}"

    def fetch(self, owner: Owner, core: WalProposer, fetch: Fetch) -> None:
        call = FetchEntries(
            TIMELINE,
            fetch.term,
            fetch.generation,
            fetch.first_lsn,
            fetch.last_lsn,
            fetch.size_max_bytes,
        )

        def fail() -> None:
            core.fetch_failed(fetch.number)
            self.after(owner, core)

        def reply(found: FetchedEntries) -> None:
            core.fetched(fetch.number, found)
            self.after(owner, core)

        def ask() -> None:
            safekeeper = self.safekeepers[fetch.source]
            if safekeeper.core is not None:
                found = self.serve_fetch(safekeeper, safekeeper.core, call)
                self.send(lambda: reply(found))

        self.send(ask)
        self.at(CALL_US, fail)

    def after(self, owner: Owner, core: WalProposer) -> None:
        if owner.core is core:
            self.carry_out_proposer(owner)

    def serve_fetch(
        self, safekeeper: Safekeeper, core: WalAcceptor, call: FetchEntries
    ) -> FetchedEntries:
        extent = core.fetchable(call)
        entries: list[Entry] = []
        if extent is not None:
            for lsn in range(extent[0], extent[1] + 1):
                entries.append(safekeeper.disk.entries[lsn - safekeeper.disk.base_lsn - 1])
                if sum(len(entry.body) for entry in entries) >= call.size_max_bytes:
                    break
        return FetchedEntries(tuple(entries), core.term, core.configuration, core.horizon_lsn)

    def deliver_to_proposer(self, message: ToProposer) -> None:
        check_message(message)
        for owner in self.owners:
            core = owner.core
            is_cut = not self.calm and message.safekeeper in owner.cut
            if core is None or core.proposer != message.proposer or is_cut:
                continue
            core.receive(message)
            if self.rng.random() < 0.8:
                self.carry_out_proposer(owner)
            else:
                self.check_proposer(owner, core)

    # ---- safekeepers -----------------------------------------------------------------------

    def deliver_to_acceptor(self, message: ToAcceptor) -> None:
        safekeeper = self.safekeepers[message.safekeeper]
        if safekeeper.core is None:
            return
        safekeeper.core.receive(message)
        if self.rng.random() < 0.6:
            self.carry_out(safekeeper)
        else:
            self.at(TICK_US // 2, lambda: self.carry_out(safekeeper))

    def carry_out(self, safekeeper: Safekeeper) -> None:
        while safekeeper.core is not None and (ready := safekeeper.core.take_ready()):
            assert not ready.alarms, ready.alarms
            if not self.persist(safekeeper, ready):
                self.crash(safekeeper)
                return
            for message in ready.messages:
                if not (self.bug == "vote before flush" and isinstance(message, WalVoteResponse)):
                    self.send(partial(self.deliver_to_proposer, message))
            for answer in ready.answers:
                safekeeper.waiting.pop(answer.request)(answer.reply)
            if ready.excluded is not None:
                safekeeper.start()
                return
            safekeeper.core.advance(ready)
            safekeeper.core.check_invariants()
            if self.rng.random() < self.crash_rate:
                self.crash(safekeeper)
                return
            if self.rng.random() < 0.05:
                safekeeper.core.checkpoint()

    def persist(self, safekeeper: Safekeeper, ready: AcceptorReady) -> bool:
        """Make it durable, step by step; False: the safekeeper crashed on the way."""
        rng, disk = self.rng, safekeeper.disk
        if self.bug == "vote before flush":
            for message in ready.messages:
                if isinstance(message, WalVoteResponse):
                    self.send(partial(self.deliver_to_proposer, message))
        if rng.random() < self.crash_rate:
            return False
        if ready.excluded is not None:
            safekeeper.disk = Disk(tombstone=max(disk.tombstone, ready.excluded))
            return True
        if ready.state is not None:
            disk.state = ready.state
        if rng.random() < self.crash_rate:
            return False
        is_whole = self.persist_log(safekeeper, ready)
        if is_whole:
            self.check_committed(safekeeper)
        return is_whole

    def persist_log(self, safekeeper: Safekeeper, ready: AcceptorReady) -> bool:
        rng, disk = self.rng, safekeeper.disk
        if ready.restart_after is not None:
            self.restarts += 1
            disk.base_lsn, disk.entries = ready.restart_after, []
            safekeeper.checked_lsn = max(safekeeper.checked_lsn, ready.restart_after)
        if ready.cut_after is not None:
            del disk.entries[ready.cut_after - disk.base_lsn :]
        torn = rng.random() < self.crash_rate
        for entry in ready.entries:
            if torn and rng.random() < 0.5:
                break
            self.check_entry(disk, entry)
            disk.entries.append(entry)
        if not torn and ready.trim_to is not None and ready.trim_to > disk.base_lsn:
            cut = rng.randint(disk.base_lsn, ready.trim_to)
            del disk.entries[: cut - disk.base_lsn]
            disk.base_lsn = cut
        return not torn

    def check_entry(self, disk: Disk, entry: Entry) -> None:
        if disk.entries:
            before = disk.entries[-1].term
            assert entry.index == disk.entries[-1].index + 1, "a gap on disk"
            known = self.previous.setdefault(entry.op_id, (before, entry.body))
            assert known == (before, entry.body), f"log matching: {entry} after {before}, {known}"

    def check_committed(self, safekeeper: Safekeeper) -> None:
        core, disk = safekeeper.core, safekeeper.disk
        assert core is not None
        assert core.commit_lsn >= safekeeper.checked_lsn, "the commit went back"
        for lsn in range(max(safekeeper.checked_lsn, disk.base_lsn) + 1, core.commit_lsn + 1):
            found = disk.entries[lsn - disk.base_lsn - 1]
            assert self.history[lsn] == found, f"{found} is committed here, {self.history[lsn]}"
        safekeeper.checked_lsn = core.commit_lsn

    def crash(self, safekeeper: Safekeeper) -> None:
        safekeeper.core = None
        self.at(self.rng.randrange(1, 40) * TICK_US, lambda: self.restart(safekeeper))

    def restart(self, safekeeper: Safekeeper) -> None:
        if safekeeper.core is None:
            safekeeper.start()

    # ---- controllers -----------------------------------------------------------------------

    def disturb(self) -> None:
        rng = self.rng
        self.at(TICK_US * 5, self.disturb)
        if rng.random() < self.cut_rate:
            owner = rng.choice(self.owners)
            share = rng.choice([0.0, 0.3, 0.6])
            owner.cut = {name for name in self.safekeepers if rng.random() < share}
        if rng.random() < self.migration_rate:
            self.migrate(self.pick_set(), may_abort=True)

    def migrate(self, desired: tuple[SafekeeperId, ...], *, may_abort: bool) -> None:
        driver = Driver(self.store, self.rng, desired, self.bug, may_abort)
        self.proceed(driver.run(), None)

    def proceed(self, steps: Steps, replies: dict[SafekeeperId, Any] | None) -> None:
        """Begin the next round of a driver, unless it ends, gives up or is dropped here."""
        if self.rng.random() < self.crash_rate:
            return
        try:
            calls = next(steps) if replies is None else steps.send(replies)
        except StopIteration:
            self.migrations += 1
            return
        except GaveUp:
            return
        self.call_all(steps, calls)

    def call_all(self, steps: Steps, calls: Calls) -> None:
        replies: dict[SafekeeperId, Any] = {}

        def take(name: SafekeeperId, reply: Any) -> None:
            replies[name] = reply

        for name, call in calls.items():

            def answer(reply: Any, name: SafekeeperId = name) -> None:
                self.send(lambda: take(name, reply))

            def arrive(name: SafekeeperId = name, call: Call = call, answer: Any = answer) -> None:
                self.serve(self.safekeepers[name], call, answer)

            self.send(arrive, loss=0.8 if isinstance(call, Exclude) and not self.calm else None)
        self.at(CALL_US, lambda: self.proceed(steps, dict(sorted(replies.items()))))

    def serve(self, safekeeper: Safekeeper, call: Call, answer: Callable[[Any], None]) -> None:
        core, number = safekeeper.core, next(self.numbers)
        if isinstance(call, Pull):
            self.pull(safekeeper, call, answer)
            return
        if core is None:
            if isinstance(call, Exclude) and safekeeper.disk.state is None:
                disk = safekeeper.disk
                disk.tombstone = max(disk.tombstone, call.configuration.generation)
                answer(ExcludeReply(True, call.configuration))
            return
        safekeeper.waiting[number] = answer
        try:
            match call:
                case SwitchConfiguration():
                    core.switch(number, call)
                case BumpTerm():
                    core.bump_term(number, call)
                case Exclude():
                    core.exclude(number, call)
        except StelaeError:
            del safekeeper.waiting[number]
        self.carry_out(safekeeper)

    def core_with_copy(self, safekeeper: Safekeeper) -> WalAcceptor | None:
        """The core of a safekeeper that runs and has a copy of the timeline."""
        return None if safekeeper.disk.state is None else safekeeper.core

    def pull(self, safekeeper: Safekeeper, call: Pull, answer: Callable[[Any], None]) -> None:
        source = self.safekeepers[call.source]
        if safekeeper.disk.state is not None:
            answer(True)
            return
        if self.core_with_copy(source) is None:
            return
        self.carry_out(source)
        core = self.core_with_copy(source)
        if core is None:
            return
        state = replace(core.state)
        base_lsn, entries = source.disk.base_lsn, list(source.disk.entries)
        if state.configuration.generation > call.configuration.generation:
            return

        def install() -> None:
            disk = safekeeper.disk
            if disk.state is None and disk.tombstone < call.configuration.generation:
                copy = copied_state(state, call.configuration)
                safekeeper.disk = Disk(copy, base_lsn, entries, disk.tombstone)
                safekeeper.start()
                answer(True)

        self.at(self.rng.randrange(1, 8) * TICK_US, install)
