"""The Raft core in conversation: commands, and everything that could be seen after each.

Commands (nodes are numbers): ``cluster COUNT [key=value …]``, ``load NODE term=T log=1,1,2``,
``tick NODE|all COUNT``, ``propose NODE WORD…``, ``read NODE NUMBER``, ``transfer NODE TARGET``,
``snapshot NODE keep=K``, ``process NODE`` (carry out what is ready), ``deliver FROM TO`` and
``drop FROM TO`` (messages under way), ``stabilize [NODE…]`` (process and deliver until all is
quiet; messages to other nodes stay under way), ``cut A B`` / ``heal``, ``restart NODE``,
``lease NODE``, ``status``; of copies by the hosts (``cluster … copies_by_host=1``)
``tombstone NODE`` (its data goes; it still gets messages) and ``copy NODE SOURCE`` (its data
becomes the source's snapshot, and it starts; refused if the source's term is older than its own);
of members ``join NODE`` (a server that waits to be added), ``change NODE add|promote|remove MEMBER
[expected=T.I]``, ``care NODE`` (a leader promotes or lets go whom it is time for) and ``members``.
"""

from __future__ import annotations

import random
from typing import Any

from stelae.actors.raft.members import MemberCare
from stelae.consensus.raft.membership import ChangeKind, MemberChange
from stelae.consensus.raft.messages import (
    AppendRequest,
    AppendResponse,
    Message,
    SnapshotRequest,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from stelae.consensus.raft.raft import Raft
from stelae.consensus.raft.ready import Ready, Tick
from stelae.consensus.raft.settings import RaftSettings
from stelae.consensus.raft.tombstone import answer
from stelae.core.errors import StaleTerm, StelaeError
from stelae.core.ids import Address, OpId, ServerUuid, TabletId
from stelae.core.records.replication import (
    Configuration,
    Entry,
    EntryKind,
    Snapshot,
    TermAndVote,
    configuration_of,
    first_configuration,
)
from stelae.storage.files.consensus_metadata import ConsensusMetadata, merge_consensus_metadata

GROUP = TabletId("group")
TICK_US = 1000
ABANDON_TICKS = 25
"""Without progress, after which a leader lets a non-voter go."""


class LeastChance(random.Random):
    """Every election timeout is the least one, so that a conversation says who times out."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start

    def randint(self, a: int, b: int) -> int:
        return b


def show_id(op_id: OpId) -> str:
    return f"{op_id.term}.{op_id.index}"


def show_entry(entry: Entry) -> str:
    match entry.kind:
        case EntryKind.NO_OP:
            body = "no-op"
        case EntryKind.COMMAND:
            body = entry.body.decode()
        case EntryKind.CONFIGURATION:
            body = show_members(configuration_of(entry))
    return f"{show_id(entry.op_id)}:{body}"


def show_members(configuration: Configuration) -> str:
    """All members; those in brackets do not vote."""
    return "{" + ",".join(p.uuid if p.voter else f"({p.uuid})" for p in configuration.peers) + "}"


def show_message(message: Message) -> str:
    """One line with all that the message says."""
    parts = [f"{message.source}->{message.destination} {type(message).__name__}"]
    parts.append(f"term={message.term}")
    match message:
        case VoteRequest():
            parts.append(f"last={show_id(message.last)}")
            parts += [name for name in ("pre", "transfer") if getattr(message, name)]
            if message.taken_back is not None:
                parts.append(f"taken back: {show_id(message.taken_back)}")
        case VoteResponse():
            parts.append("granted" if message.granted else "refused")
            parts += ["pre"] if message.pre else []
        case AppendRequest():
            entries = " ".join(show_entry(entry) for entry in message.entries)
            parts.append(f"round={message.round} previous={show_id(message.previous)}")
            parts.append(f"commit={message.commit_index} [{entries}]")
        case AppendResponse():
            verdict = "accepted up to" if message.accepted else "refused after"
            parts.append(f"round={message.round} {verdict} {message.index}")
            parts.append(f"hint={show_id(message.hint)}")
        case SnapshotRequest():
            end = message.offset + len(message.chunk)
            parts.append(f"round={message.round} last={show_id(message.last)}")
            parts.append(f"bytes {message.offset}..{end} of {message.size_bytes}")
        case SnapshotResponse():
            parts.append(f"round={message.round} last={show_id(message.last)}")
            parts.append(f"next={message.next_offset}")
    return " ".join(parts)


class Conversation:
    """The nodes, the messages under way, and the output of the current command."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.settings = RaftSettings()
        self.cores: dict[ServerUuid, Raft] = {}
        self.saved: dict[ServerUuid, tuple[TermAndVote, Snapshot | None, list[Entry]]] = {}
        self.roles: dict[ServerUuid, str] = {}
        self.under_way: list[Message] = []
        self.waiting: list[ServerUuid] = []  # began as members of nothing
        self.applied: dict[int, Entry] = {}
        self.separated: list[tuple[str, str]] = []
        self.tombstones: dict[ServerUuid, tuple[OpId, int]] = {}  # last OpId, and since when
        self.floors: dict[ServerUuid, OpId] = {}
        self.cares: dict[ServerUuid, MemberCare] = {}
        self.now_us = 0

    def run(self, command: str) -> list[str]:
        """Run one command; return everything that could be seen."""
        self.lines = []
        name, *words = command.split()
        try:
            getattr(self, f"do_{name}")(*words)
        except StelaeError as error:
            self.lines.append(f"{type(error).__name__}: {error}")
        return self.lines

    # ---- nodes -----------------------------------------------------------------------------

    def do_cluster(self, count: str, *options: str) -> None:
        values: dict[str, Any] = {}
        for option in options:
            key, _, value = option.partition("=")
            values[key] = int(value)
        self.settings = RaftSettings(**values)
        names = [ServerUuid(f"n{number}") for number in range(1, int(count) + 1)]
        self.configuration = first_configuration({n: Address(f"{n}:1") for n in names})
        for name in names:
            self.saved[name] = (TermAndVote(0, None), None, [])
            self.start(name)

    def do_join(self, node: str) -> None:
        name = self.name(node)
        self.saved[name] = (TermAndVote(0, None), None, [])
        self.waiting.append(name)
        self.start(name)

    def do_load(self, node: str, term: str, log: str) -> None:
        name = self.name(node)
        terms = [int(part) for part in log.removeprefix("log=").split(",") if part]
        entries = [
            Entry(t, index, EntryKind.COMMAND, b"x") for index, t in enumerate(terms, start=1)
        ]
        vote = TermAndVote(int(term.removeprefix("term=")), None)
        self.saved[name] = (vote, None, entries)
        self.start(name)

    def do_restart(self, node: str) -> None:
        name = self.name(node)
        if name in self.tombstones:
            self.tombstones[name] = (self.tombstones[name][0], self.now_us)
        else:
            self.start(name)

    def do_tombstone(self, node: str) -> None:
        name = self.name(node)
        vote, _, _ = self.saved[name]
        last = self.cores[name].end_of_log
        self.saved[name] = (vote, None, [])
        self.tombstones[name] = (last, self.now_us)
        del self.cores[name]
        self.lines.append(f"{name} is a tombstone of term {vote.term} after {show_id(last)}")

    def do_copy(self, node: str, source: str) -> None:
        name, other = self.name(node), self.name(source)
        vote, _, _ = self.saved[name]
        theirs, snapshot, _ = self.saved[other]
        if theirs.term < vote.term:
            raise StaleTerm(f"a copy of {other}", theirs.term, vote.term)
        self.floors[name], _ = self.tombstones.pop(name)
        assert snapshot is not None
        local, remote = (ConsensusMetadata(GROUP, v, self.configuration) for v in (vote, theirs))
        self.saved[name] = (merge_consensus_metadata(local, remote).term_and_vote, snapshot, [])
        self.lines.append(f"{name} has a copy of {other} at {show_id(snapshot.last)}")
        self.start(name)

    def start(self, name: ServerUuid) -> None:
        vote, snapshot, entries = self.saved[name]
        base = snapshot.last.index if snapshot is not None else 0
        self.cores[name] = Raft(
            group_id=GROUP,
            uuid=name,
            configuration=first_configuration({}) if name in self.waiting else self.configuration,
            term_and_vote=vote,
            snapshot=snapshot,
            entries=[entry for entry in entries if entry.index > base],
            settings=self.settings,
            rng=LeastChance(0),
            vote_floor=self.floors.get(name),
        )
        self.roles.pop(name, None)
        self.see(name)

    def name(self, node: str) -> ServerUuid:
        return ServerUuid(f"n{node}")

    def see(self, name: ServerUuid) -> None:
        """Print the role where it changed, and check the invariants."""
        core = self.cores[name]
        core.check_invariants()
        role = f"{core.role.value} in term {core.term}"
        if core.leader_uuid is not None and core.leader is None:
            role += f" of {core.leader_uuid}"
        if self.roles.get(name) != role:
            self.roles[name] = role
            self.lines.append(f"{name} is {role}")

    # ---- events ----------------------------------------------------------------------------

    def do_tick(self, node: str, count: str) -> None:
        names = list(self.cores) if node == "all" else [self.name(node)]
        for _ in range(int(count)):
            self.now_us += TICK_US
            for name in names:
                self.cores[name].step(Tick(self.now_us))
                self.see(name)

    def do_propose(self, node: str, *commands: str) -> None:
        for command in commands:
            op_id = self.cores[self.name(node)].propose(command.encode())
            self.lines.append(f"{command} is entry {show_id(op_id)}")

    def do_read(self, node: str, number: str) -> None:
        self.cores[self.name(node)].read(int(number))

    def do_lease(self, node: str) -> None:
        index = self.cores[self.name(node)].lease_read_index(self.now_us)
        self.lines.append("no lease" if index is None else f"lease holds; read at {index}")

    def do_transfer(self, node: str, target: str) -> None:
        name = self.name(node)
        self.cores[name].transfer(self.name(target))
        self.see(name)

    def do_change(self, node: str, kind: str, member: str, expected: str = "") -> None:
        name, uuid = self.name(node), self.name(member)
        change = MemberChange(ChangeKind(kind), uuid, Address(f"{uuid}:1"))
        term, _, index = expected.removeprefix("expected=").partition(".")
        wanted = OpId(int(term), int(index)) if expected else None
        op_id = self.cores[name].change_members(change, wanted)
        members = show_members(self.cores[name].configuration)
        self.lines.append(f"members of {show_id(op_id)}: {members}")
        self.see(name)

    def do_care(self, node: str) -> None:
        name = self.name(node)
        core = self.cores[name]
        care = self.cares.setdefault(name, MemberCare(ABANDON_TICKS * TICK_US))
        due = care.due(core, self.now_us)
        if due is None:
            self.lines.append(f"{name} waits")
            return
        self.lines.append(f"{name} finds it time to {due.kind.value} {due.uuid}")
        op_id = core.change_members(due)
        self.lines.append(f"members of {show_id(op_id)}: {show_members(core.configuration)}")

    def do_members(self) -> None:
        for name, core in self.cores.items():
            committed = core.log.committed_configuration
            text = f"{name} has {show_members(core.configuration)}"
            if committed != core.configuration:
                text += f", and as committed {show_members(committed)}"
            self.lines.append(text)

    def do_snapshot(self, node: str, keep: str) -> None:
        name = self.name(node)
        core = self.cores[name]
        index = core.log.applied_index
        term = core.log.term_at(index)
        assert term is not None
        data = f"state at {index}".encode()
        snapshot = Snapshot(OpId(term, index), core.log.configuration_at(index), data)
        core.compact(snapshot, int(keep.removeprefix("keep=")))
        vote, _, entries = self.saved[name]
        self.saved[name] = (vote, snapshot, [e for e in entries if e.index > core.log.base.index])
        self.lines.append(f"{name} log begins after {show_id(core.log.base)}")

    # ---- effects ---------------------------------------------------------------------------

    def do_process(self, node: str) -> None:
        name = self.name(node)
        core = self.cores[name]
        while ready := core.take_ready():
            self.carry_out(name, ready)
            core.advance(ready)
            self.see(name)

    def carry_out(self, name: ServerUuid, ready: Ready) -> None:
        vote, snapshot, entries = self.saved[name]
        if ready.term_and_vote is not None:
            vote = ready.term_and_vote
            self.lines.append(f"{name} saves term {vote.term}, vote for {vote.voted_for}")
        if ready.snapshot is not None:
            snapshot, entries = ready.snapshot, []
            self.lines.append(
                f"{name} saves and restores snapshot {show_id(snapshot.last)}: "
                f"{snapshot.data.decode()}"
            )
        if ready.entries:
            first = ready.entries[0].index
            if entries and entries[-1].index >= first:
                self.lines.append(f"{name} cuts its log from {first} on")
            entries = [e for e in entries if e.index < first] + list(ready.entries)
            shown = " ".join(show_entry(entry) for entry in ready.entries)
            self.lines.append(f"{name} saves {shown}")
        self.saved[name] = (vote, snapshot, entries)
        for message in ready.messages:
            self.lines.append(show_message(message))
            self.under_way.append(message)
        for entry in ready.committed:
            assert self.applied.setdefault(entry.index, entry) == entry, "two entries at one index"
        if ready.committed:
            shown = " ".join(show_entry(entry) for entry in ready.committed)
            self.lines.append(f"{name} applies {shown}")
        for read in ready.reads:
            self.lines.append(f"{name} read {read.request} may run at index {read.index}")
        for request in ready.failed_reads:
            self.lines.append(f"{name} read {request} fails")
        for uuid in ready.copies:
            self.lines.append(f"{name} wants {uuid} to get a copy")

    def do_deliver(self, source: str, destination: str) -> None:
        for message in self.take(source, destination):
            self.hand_over(message)

    def do_drop(self, source: str, destination: str) -> None:
        for message in self.take(source, destination):
            self.lines.append(f"lost: {show_message(message)}")

    def take(self, source: str, destination: str) -> list[Message]:
        ends = (self.name(source), self.name(destination))
        taken = [m for m in self.under_way if (m.source, m.destination) == ends]
        self.under_way = [m for m in self.under_way if (m.source, m.destination) != ends]
        return taken

    def hand_over(self, message: Message) -> None:
        if message.destination in self.tombstones:
            self.hand_to_tombstone(message)
            return
        self.cores[message.destination].step(message)
        self.see(message.destination)

    def hand_to_tombstone(self, message: Message) -> None:
        name = message.destination
        last, since_us = self.tombstones[name]
        vote, snapshot, entries = self.saved[name]
        quiet = self.now_us - since_us >= self.settings.election_ticks * TICK_US
        given = answer(message, vote, last, quiet=quiet)
        if given.kept != vote:
            self.saved[name] = (given.kept, snapshot, entries)
            self.lines.append(
                f"{name} saves term {given.kept.term}, vote for {given.kept.voted_for}"
            )
        if given.message is not None:
            self.lines.append(show_message(given.message))
            self.under_way.append(given.message)
        else:
            kind = type(message).__name__
            self.lines.append(f"{name} answers {message.source}'s {kind}: a tombstone")

    def do_stabilize(self, *nodes: str) -> None:
        names = [self.name(node) for node in nodes] or list(self.cores)
        for _ in range(200):
            before = len(self.lines)
            for name in names:
                if name in self.cores:
                    self.do_process(name.removeprefix("n"))
            here = [m for m in self.under_way if m.source in names and m.destination in names]
            self.under_way = [m for m in self.under_way if m not in here]
            for message in here:
                if (message.source, message.destination) not in self.separated:
                    self.hand_over(message)
            if not here and len(self.lines) == before:
                return
        raise AssertionError("does not come to rest")

    def do_cut(self, a: str, b: str) -> None:
        self.separated += [(self.name(a), self.name(b)), (self.name(b), self.name(a))]

    def do_heal(self) -> None:
        self.separated = []

    def do_status(self) -> None:
        for name, core in self.cores.items():
            log = core.log
            entries = log.slice(log.base.index + 1, 1000, 1 << 30)
            terms = " ".join(str(entry.term) for entry in entries)
            self.lines.append(
                f"{name} {core.role.value} term={core.term} commit={log.commit_index} "
                f"after {show_id(log.base)}: {terms}"
            )


def play(text: str) -> str:
    """Run all commands of a conversation; return it with the outputs that they gave."""
    conversation = Conversation()
    result: list[str] = []
    in_output = False
    outputs: list[str] = []
    for line in [*text.splitlines(), ""]:
        if in_output:
            if line:
                continue
            in_output = False
            result += [*(outputs or ["nothing"]), ""]
            outputs = []
        elif line == "----":
            in_output = True
            result.append(line)
        else:
            result.append(line)
            if line and not line.startswith("#"):
                outputs += conversation.run(line)
    assert not outputs, "a block without ----"
    return "\n".join(result).rstrip("\n") + "\n"
