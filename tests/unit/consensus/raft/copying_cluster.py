"""Groups of `random_cluster` whose hosts copy state: a replica whose log is too old becomes a
tombstone, which votes, and starts anew with the leader's snapshot."""

from __future__ import annotations

from dataclasses import replace

from stelae.consensus.raft.messages import (
    AppendRequest,
    Message,
    VoteResponse,
)
from stelae.consensus.raft.tombstone import answer
from stelae.core.ids import OpId, ServerUuid
from stelae.core.records.replication import (
    Snapshot,
    TermAndVote,
)
from tests.unit.consensus.raft.random_cluster import Cluster, Node, SavedState


class Copying(Cluster):
    """A group whose hosts copy state; ``bug`` names a mistake of theirs."""

    def __init__(self, seed: int, *, bug: str = "", changing: bool = False) -> None:
        super().__init__(seed, bug=bug, changing=changing)
        rng = self.rng
        self.snapshot_every = rng.choice([3, 5, 20])
        self.settings = replace(self.settings, copies_by_host=True)
        self.copy_us = rng.choice([300, 5_000, 30_000])
        self.copies = self.votes = 0
        self.copy_strike_rate = 0.0
        """So often a source is cut off as a copy from it begins."""
        self.nodes = {name: Node(self, name) for name in self.names}

    def wants_copies(self, node: Node, uuids: tuple[ServerUuid, ...]) -> None:
        for uuid in uuids:
            self.order_copy(node.uuid, uuid, node.core.term)

    def order_copy(self, source: ServerUuid, target: ServerUuid, term: int) -> None:
        """A call that may be lost, late, or made twice."""
        for _ in range(self.rng.choice([0, 1, 1, 2])):
            delay = 10 + int(self.rng.expovariate(1 / (4 * self.delay_us)))
            self.at(delay, lambda: self.start_copy(source, target, term))

    def start_copy(self, source: ServerUuid, target: ServerUuid, term: int) -> None:
        """The target has what it needs from the source, and its own data goes."""
        node, other = self.nodes[target], self.nodes[source]
        if node.copying or other.tombstone is not None or (source, target) in self.cut:
            return
        if term < node.saved.term_and_vote.term or other.core.term != term:
            return
        if other.saved.snapshot is None and other.core.log.applied_index > 0:
            self.take_snapshot(other)
        snapshot = other.saved.snapshot
        if snapshot is None:
            return
        if node.tombstone is None:
            if not node.core.log.lacks(snapshot.last):
                return  # it has caught up meanwhile
            node.quiet_ticks = 0
            node.tombstone = node.core.end_of_log
        node.saved.snapshot, node.saved.entries = None, []
        if self.bug == "a tombstone forgets its vote":
            node.saved.term_and_vote = TermAndVote(node.saved.term_and_vote.term, None)
        node.copying = number = next(self.numbers) + 1
        self.strike(source, self.copy_strike_rate)
        theirs = other.saved.term_and_vote
        if self.rng.random() < 0.2:  # the connection breaks, or the target crashes
            self.at(self.copy_us, lambda: self.break_copy(node, number))
        else:
            self.at(self.copy_us, lambda: self.finish_copy(node, number, snapshot, theirs))

    def break_copy(self, node: Node, number: int) -> None:
        if node.copying == number:
            node.copying = 0
            node.quiet_ticks = 0

    def finish_copy(self, node: Node, number: int, snapshot: Snapshot, theirs: TermAndVote) -> None:
        if node.copying != number:
            return
        ours = node.saved.term_and_vote
        if theirs.term > ours.term:
            ours = TermAndVote(theirs.term, None)
        node.saved = SavedState(ours, snapshot, [])
        node.vote_floor = node.tombstone
        node.copying, node.tombstone = 0, None
        self.copies += 1
        node.start()

    def deliver_to_tombstone(self, node: Node, message: Message) -> None:
        last = node.tombstone
        assert last is not None
        if self.bug == "a tombstone votes for any log":
            last = OpId(0, 0)
        quiet = node.quiet_ticks >= self.settings.election_ticks
        kept = node.saved.term_and_vote
        given = answer(message, kept, last, quiet=quiet)
        node.saved.term_and_vote = given.kept
        if given.message is not None:
            self.votes += isinstance(given.message, VoteResponse) and given.message.granted
            self.send(given.message)
        elif isinstance(message, AppendRequest):
            self.order_copy(message.source, node.uuid, message.term)
