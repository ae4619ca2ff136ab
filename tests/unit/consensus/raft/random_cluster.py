"""Random lives of groups of the pure core: loss, duplication, reordering, crashes, partitions.

Each seed draws its own sizes and rates. Checked after every step: election safety, log matching,
leader completeness, state machine safety, reads (by index and by lease) that miss nothing."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.messages import (
    AppendRequest,
    Message,
)
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready, Role, Tick, Unreachable
from stelae.consensus.raft.settings import RaftSettings
from stelae.core.errors import InvalidArgument, RetryElsewhere, RetryLater
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Snapshot,
    TermAndVote,
    first_configuration,
)

TICK_US = 1000
GROUP = TabletId("group")
STRIKE_TICKS = 40


@dataclass
class SavedState:
    """What survives a crash of one node."""

    term_and_vote: TermAndVote = field(default_factory=lambda: TermAndVote(0, None))
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)


class Node:
    """One core, its disk, and its state machine: the list of the commands applied."""

    def __init__(self, cluster: Cluster, uuid: ServerUuid) -> None:
        self.cluster = cluster
        self.uuid = uuid
        self.saved = SavedState()
        self.lives = 0
        self.tombstone: OpId | None = None  # the end of the log that was here
        self.copying = 0  # number of the copy that is under way
        self.quiet_ticks = 0  # as a tombstone
        self.vote_floor: OpId | None = None
        self.start()

    def start(self) -> None:
        self.lives += 1
        saved = self.saved
        base = saved.snapshot.last.index if saved.snapshot is not None else 0
        self.core = Raft(
            group_id=GROUP,
            uuid=self.uuid,
            configuration=self.cluster.first_of(self.uuid),
            term_and_vote=saved.term_and_vote,
            snapshot=saved.snapshot,
            entries=[entry for entry in saved.entries if entry.index > base],
            settings=self.cluster.settings,
            rng=random.Random(f"{self.cluster.seed}/{self.uuid}/{self.lives}"),
            vote_floor=self.vote_floor,
        )
        self.state: list[bytes] = []
        self.applied = base
        if saved.snapshot is not None:
            self.restore(saved.snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        self.state = [part for part in snapshot.data.split(b",") if part]
        self.applied = snapshot.last.index
        self.cluster.check_state(self)

    def save(self, snapshot: Snapshot | None, entries: tuple[Entry, ...]) -> None:
        if snapshot is not None:
            self.saved.snapshot = snapshot
            self.saved.entries = []
        if entries:
            first = entries[0].index
            kept = [entry for entry in self.saved.entries if entry.index < first]
            self.saved.entries = kept + list(entries)


class Cluster:
    """A group in a world of one seed."""

    def __init__(self, seed: int, *, bug: str = "", changing: bool = False) -> None:
        """``changing``: members are added, promoted and removed all the time."""
        self.seed = seed
        self.bug = bug
        self.changing = changing
        self.rng = rng = random.Random(f"{seed}/cluster")
        self.settings = RaftSettings(
            batch_entries_max=rng.choice([1, 2, 8]),
            inflight_max=rng.choice([1, 2, 8]),
            snapshot_chunk_bytes=rng.choice([10, 50, 1000]),
            apply_entries_max=rng.choice([1, 100]),
            apply_bytes_max=(1000, 1, 30)[seed % 3],
            lease_duration_us=7 * TICK_US,
            large_bytes=(1, 1 << 16)[seed % 2],
            inflight_bytes_max=(10, 1 << 20)[seed % 4 // 2],
        )
        self.transit = random.Random(f"{seed}/transit")
        self.beats: dict[ServerUuid, AppendRequest] = {}
        """The last heartbeat that was sent to each node."""
        count = rng.choice([3, 3, 5])
        self.names = [ServerUuid(f"n{i}") for i in range(1, count + 1)]
        self.configuration: Configuration = first_configuration(
            {name: Address(f"{name}:1") for name in self.names}
        )
        self.changes = self.taken_back = 0
        if changing:
            self.names += [ServerUuid(f"n{count + i}") for i in range(1, rng.choice([1, 2, 3]) + 1)]
        self.loss = rng.choice([0.0, 0.05, 0.2])
        self.duplication = rng.choice([0.0, 0.1])
        self.delay_us = rng.choice([300, 1500, 4000])
        self.crash_rate = rng.choice([0.0, 0.002, 0.01])
        self.snapshot_every = rng.choice([5, 20, 10_000])
        self.voter_crash_rate: float | None = None
        """Of one that saves its vote; None: as others."""
        self.strikes = random.Random(f"{seed}/strikes")
        self.strike_rate = 0.0
        """So often a leader is cut off in the moment in which it becomes one."""
        self.now_us = 0
        self.numbers = itertools.count()
        self.queue: list[tuple[int, int, Callable[[], None]]] = []
        self.cut: set[tuple[str, str]] = set()
        self.leaders: dict[int, ServerUuid] = {}
        self.history: dict[int, Entry] = {}  # what any node applied at each index
        self.previous: dict[tuple[int, int], int] = {}  # (index, term) -> term before it
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.commands: list[tuple[int, bytes]] = []  # of the history, in order
        self.reads: dict[int, int] = {}  # request -> what it must not miss
        self.lease_reads = 0
        self.idle = False  # no new work
        self.index_reads = 0
        self.nodes = {name: Node(self, name) for name in self.names}
        for name in self.names:
            self.at(rng.randrange(TICK_US), partial(self.tick, name))

    def first_of(self, name: ServerUuid) -> Configuration:
        """What a node begins with: who is not in the first configuration waits to be added."""
        founder = self.configuration.peer(name) is not None
        return self.configuration if founder else first_configuration({})

    def at(self, delay_us: int, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.now_us + delay_us, next(self.numbers), action))

    def run(self, duration_us: int) -> None:
        end = self.now_us + duration_us
        while self.queue and self.queue[0][0] <= end:
            self.now_us, _, action = heapq.heappop(self.queue)
            action()
        self.now_us = end

    # ---- what happens ----------------------------------------------------------------------

    def tick(self, name: ServerUuid) -> None:
        rng, node = self.rng, self.nodes[name]
        self.at(TICK_US + rng.randrange(TICK_US // 10), lambda: self.tick(name))
        if node.tombstone is not None:
            node.quiet_ticks += 1
            return
        sending: list[ServerUuid] = []  # a host's word must do no harm, whatever it says
        if not self.idle and self.transit.random() < 0.5:
            sending = [other for other in self.names if self.transit.random() < 0.3]
        before = node.core.changes_taken_back
        node.core.step(Tick(self.now_us, tuple(sending)))
        self.taken_back += node.core.changes_taken_back - before
        if not self.idle and rng.random() < 0.3:
            self.work(node)
        self.carry_out(node)

    def work(self, node: Node) -> None:
        rng = self.rng
        try:
            for _ in range(rng.choice([1, 1, 3])):
                node.core.propose(b"%d" % next(self.numbers))
            if rng.random() < 0.5:
                request = next(self.numbers)
                node.core.read(request)
                self.reads[request] = max(self.history, default=0)
            if rng.random() < 0.02:
                node.core.transfer(rng.choice([*self.names, None]))
            if self.changing and rng.random() < 0.5:
                self.change(node)
        except (RetryElsewhere, RetryLater):
            return
        except InvalidArgument as error:
            assert "is not another voter" in str(error)  # noqa: PT017
        index = node.core.lease_read_index(self.now_us)
        if index is not None:
            self.lease_reads += 1
            assert index >= max(self.history, default=0), "a read by lease missed a write"

    def change(self, node: Node) -> None:
        """Ask a leader for any change of members that makes sense."""
        name = self.rng.choice(self.names)
        known = node.core.configuration.peer(name)
        if known is None:
            kind = ChangeKind.ADD
        elif known.voter or self.rng.random() < 0.1:
            kind = ChangeKind.REMOVE
        else:
            kind = ChangeKind.PROMOTE
        if node.core.configuration.voters == (name,):
            return
        node.core.change_members(MemberChange(kind, name, Address(f"{name}:1")))
        self.changes += 1

    def deliver(self, name: ServerUuid, message: Message) -> None:
        if (message.source, name) in self.cut:
            return
        node = self.nodes[name]
        if node.tombstone is not None:
            self.deliver_to_tombstone(node, message)
            return
        node.core.step(message)
        if self.rng.random() < 0.7:
            self.carry_out(node)

    def deliver_to_tombstone(self, node: Node, message: Message) -> None:
        raise NotImplementedError  # only where hosts copy state

    def wants_copies(self, node: Node, uuids: tuple[ServerUuid, ...]) -> None:
        assert not uuids, "nobody asked for copies by the host"

    def send(self, message: Message) -> None:
        rng = self.rng
        is_cut = (message.source, message.destination) in self.cut
        if isinstance(message, AppendRequest) and not message.entries and not is_cut:
            self.beats[message.destination] = message
        for _ in range(2 if rng.random() < self.duplication else 1):
            if rng.random() < self.loss:
                continue
            delay = 10 + int(rng.expovariate(1 / self.delay_us))
            self.at(delay, lambda: self.deliver(message.destination, message))

    def crash_rate_after(self, node: Node, ready: Ready) -> float:
        vote = ready.term_and_vote
        if self.voter_crash_rate is None or vote is None or vote.voted_for in (None, node.uuid):
            return self.crash_rate
        return self.voter_crash_rate

    def strike(self, name: ServerUuid, rate: float) -> None:
        """Perhaps cut one off, for as long as the others need to elect somebody else."""
        if self.strikes.random() >= rate:
            return
        apart = {(name, other) for other in self.names} | {(other, name) for other in self.names}
        self.cut = self.cut | apart

        def heal() -> None:
            self.cut = self.cut - apart

        self.at(STRIKE_TICKS * TICK_US, heal)

    def carry_out(self, node: Node) -> None:
        rng = self.rng
        while ready := node.core.take_ready():
            if self.bug == "ack before sync":
                for message in ready.messages:
                    self.send(message)
            if rng.random() < self.crash_rate:
                node.start()
                return
            if ready.term_and_vote is not None:
                vote = ready.term_and_vote
                if self.bug == "vote not persisted":
                    vote = TermAndVote(vote.term, None)
                node.saved.term_and_vote = vote
            self.beat_while_busy(node)
            node.save(ready.snapshot, ready.entries)
            if self.bug != "ack before sync":
                for message in ready.messages:
                    self.send(message)
            if rng.random() < self.crash_rate_after(node, ready):
                node.start()
                return
            self.wants_copies(node, ready.copies)
            self.apply(node, ready.snapshot, ready.committed)
            node.core.advance(ready)
            for read in ready.reads:
                self.index_reads += 1
                assert read.index >= self.reads[read.request], "a read by index missed a write"
            self.check(node)
        self.maybe_snapshot(node)

    def beat_while_busy(self, node: Node) -> None:
        """A heartbeat that is under way arrives while the disk is at work."""
        beat = self.beats.get(node.uuid)
        if beat is None or self.transit.random() < 0.5:
            return
        answer = node.core.answer_while_busy(beat)
        if answer is not None:
            self.send(answer)

    def maybe_snapshot(self, node: Node) -> None:
        since = node.saved.snapshot.last.index if node.saved.snapshot is not None else 0
        if node.core.log.applied_index - since >= self.snapshot_every:
            self.take_snapshot(node)

    def take_snapshot(self, node: Node) -> None:
        core = node.core
        entry = self.history[core.log.applied_index]
        in_force = core.log.configuration_at(entry.index)
        snapshot = Snapshot(entry.op_id, in_force, b",".join(node.state))
        node.saved.snapshot = snapshot
        keep = self.rng.choice([0, 3])
        first = snapshot.last.index - keep
        node.saved.entries = [entry for entry in node.saved.entries if entry.index > first]
        core.compact(snapshot, keep)

    # ---- what must hold --------------------------------------------------------------------

    def apply(self, node: Node, snapshot: Snapshot | None, entries: tuple[Entry, ...]) -> None:
        if snapshot is not None:
            node.restore(snapshot)
        for entry in entries:
            assert entry.index == node.applied + 1, "applied out of order"
            known = self.history.get(entry.index)
            if known is None:
                assert entry.index == len(self.history) + 1
                self.history[entry.index] = entry
                if entry.kind is EntryKind.COMMAND:
                    self.commands.append((entry.index, entry.body))
            else:
                assert known == entry, "state machine safety: two commands at one index"
            node.applied = entry.index
            if entry.kind is EntryKind.COMMAND:
                node.state.append(entry.body)

    def check_state(self, node: Node) -> None:
        expected = [body for index, body in self.commands if index <= node.applied]
        assert node.state == expected, "a snapshot differs from the history"

    def check(self, node: Node) -> None:
        core = node.core
        core.check_invariants()
        before = core.log.base
        for entry in core.log.slice(before.index + 1, 10_000, 1 << 30):
            key = (entry.index, entry.term)
            assert self.previous.setdefault(key, before.term) == before.term, "log matching"
            assert self.bodies.setdefault(key, entry.body) == entry.body, "log matching"
            before = entry.op_id
        if core.role is Role.LEADER:
            known = self.leaders.get(core.term)
            assert known in (None, node.uuid), f"two leaders in term {core.term}"
            if known is None:
                self.leaders[core.term] = node.uuid
                self.strike(node.uuid, self.strike_rate)
                for index, entry in self.history.items():
                    kept = index <= core.log.base.index or core.log.matches(entry.op_id)
                    assert kept, "leader completeness: a leader lacks a committed entry"


class NoProgress(Exception):
    """Nothing was broken, but after all faults ended the group did not converge."""


def chaos(cluster: Cluster, turns: int = 12) -> None:
    """Partitions and healings by chance."""
    rng = cluster.rng
    for _ in range(turns):
        cluster.run(rng.choice([10, 30, 80]) * TICK_US)
        kind = rng.choice(["heal", "split", "isolate", "one-way", "link", "unreachable"])
        cluster.cut = set()
        some = rng.sample(cluster.names, rng.randrange(1, len(cluster.names)))
        if kind == "isolate":
            some = some[:1]
        if kind == "link":
            source, target = rng.sample(cluster.names, 2)
            cluster.cut.add((source, target))
        for a in cluster.names:
            for b in cluster.names:
                apart = (a in some) != (b in some)
                if (kind in ("split", "isolate") and apart) or (kind == "one-way" and a in some):
                    cluster.cut.add((a, b))
        if kind == "unreachable":
            for node in cluster.nodes.values():
                if node.tombstone is None:
                    node.core.step(Unreachable(rng.choice(cluster.names)))


def live(cluster: Cluster) -> None:
    """Chaos, then a calm end in which all must agree."""
    chaos(cluster)
    cluster.cut, cluster.loss, cluster.crash_rate, cluster.delay_us = set(), 0.0, 0.0, 300
    cluster.run(100 * TICK_US)
    cluster.idle = True
    cluster.run(400 * TICK_US)
    alive = [n for n in cluster.nodes.values() if n.tombstone is None]
    leading = [n for n in alive if n.core.role is Role.LEADER]
    members = leading[0].core.configuration.peers if leading else ()
    reached = {n.applied if n in alive else 0 for n in (cluster.nodes[p.uuid] for p in members)}
    stuck = len(leading) != 1 or len(reached) != 1 or max(reached) <= 5
    if stuck:
        raise NoProgress(f"{len(leading)} leaders, applied {sorted(reached)}")
