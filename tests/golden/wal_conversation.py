"""Timelines in conversation: commands, and everything that could be seen after each.

Safekeepers are numbers, proposers letters. Commands: ``timeline SET`` (generation 1, e.g. 1,2,3),
``load SAFEKEEPER term=T log=1,1,2``, ``proposer NAME SET [key=value …]`` (whom to greet),
``campaign NAME``, ``tick NAME COUNT``, ``propose NAME WORD…``, ``read NAME NUMBER``, ``trim NAME
LSN``; ``process WHO`` (carry out what is ready), ``deliver|drop|double FROM TO`` (messages under
way), ``stabilize [WHO…]`` (process and deliver until all is quiet; messages to others stay under
way), ``cut WHO`` / ``heal`` (nothing reaches it), ``restart SAFEKEEPER``; of the controller
``switch SAFEKEEPER GENERATION SETS [min_term=T]`` (sets: 1,2,3 or 1,2,3+3,4,5), ``bump SAFEKEEPER
GENERATION TERM``, ``exclude SAFEKEEPER GENERATION SETS``, ``pull SAFEKEEPER SOURCE GENERATION
SETS``; and ``status``.
"""

from __future__ import annotations

from stelae.consensus.wal.acceptor import WalAcceptor, copied_state
from stelae.consensus.wal.messages import (
    AcceptorGreeting,
    BumpTerm,
    Exclude,
    ExcludeReply,
    FetchedEntries,
    FetchEntries,
    ProposerElected,
    ProposerGreeting,
    Refusal,
    SwitchConfiguration,
    ToAcceptor,
    ToProposer,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
    check_message,
)
from stelae.consensus.wal.proposer import WalProposer
from stelae.consensus.wal.ready import ProposerSettings
from stelae.core.errors import StelaeError
from stelae.core.ids import OpId, TabletId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    AcceptorState,
    LogExtent,
    ProposerId,
    SafekeeperId,
    SwitchReply,
    TermHistory,
    TimelineConfiguration,
    history_of,
)

TIMELINE = TabletId("timeline")


def show_id(op_id: OpId) -> str:
    return f"{op_id.term}.{op_id.index}"


def show_entries(entries: tuple[Entry, ...]) -> str:
    return " ".join(f"{show_id(each.op_id)}:{each.body.decode() or 'no-op'}" for each in entries)


def show_history(history: TermHistory) -> str:
    return "[" + " ".join(f"{start.term}@{start.start_lsn}" for start in history) + "]"


def show_configuration(configuration: TimelineConfiguration | None) -> str:
    if configuration is None:
        return "none"
    sets = "+".join(",".join(map(str, members)) for members in configuration.member_sets)
    return f"g{configuration.generation}{{{sets}}}"


def parse_configuration(generation: str, sets: str) -> TimelineConfiguration:
    parts = [tuple(SafekeeperId(int(n)) for n in part.split(",")) for part in sets.split("+")]
    return TimelineConfiguration(int(generation), parts[0], parts[1] if parts[1:] else None)


def ends(message: ToAcceptor | ToProposer) -> tuple[str, str]:
    pair = (str(message.proposer), str(message.safekeeper))
    from_proposer = isinstance(
        message, ProposerGreeting | WalVoteRequest | ProposerElected | WalAppendRequest
    )
    return pair if from_proposer else (pair[1], pair[0])


def show_message(message: ToAcceptor | ToProposer) -> str:
    """One line with all that the message says."""
    source, destination = ends(message)
    kind = type(message).__name__.removeprefix("Wal")
    parts = [f"{source}->{destination} {kind} term={message.term} g{message.generation}"]
    parts.append(f"#{message.session}.{message.sequence}")
    match message:
        case ProposerGreeting() | AcceptorGreeting():
            parts.append(show_configuration(message.configuration))
        case WalVoteRequest():
            pass
        case WalVoteResponse():
            parts.append(f"log {show_history(message.history)} to {message.flush_lsn}")
            parts.append(f"commit={message.commit_lsn}")
        case ProposerElected():
            parts.append(f"{show_history(message.history)} horizon={message.horizon_lsn}")
        case WalAppendRequest():
            parts.append(f"round={message.round} previous={show_id(message.previous)}")
            parts.append(f"commit={message.commit_lsn} horizon={message.horizon_lsn}")
            parts.append(f"[{show_entries(message.entries)}]")
        case WalAppendResponse():
            parts.append(f"round={message.round} flush={message.flush_lsn}")
            parts.append(f"commit={message.commit_lsn}")
        case Refusal():
            parts.append(f"{message.reason.name} {show_configuration(message.configuration)}")
    return " ".join(parts)


class Conversation:
    """The servers, the messages under way, and the output of the current command."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.acceptors: dict[str, WalAcceptor] = {}
        self.saved: dict[str, tuple[AcceptorState, int, list[Entry]]] = {}
        self.proposers: dict[str, WalProposer] = {}
        self.phases: dict[str, str] = {}
        self.under_way: list[ToAcceptor | ToProposer] = []
        self.separated: list[str] = []
        self.committed: dict[int, Entry] = {}
        self.requests = 0

    def run(self, command: str) -> list[str]:
        """Run one command; return everything that could be seen."""
        self.lines = []
        name, *words = command.split()
        try:
            getattr(self, f"do_{name}")(*words)
        except StelaeError as error:
            self.lines.append(f"{type(error).__name__}: {error}")
        return self.lines

    # ---- servers ---------------------------------------------------------------------------

    def do_timeline(self, members: str) -> None:
        configuration = parse_configuration("1", members)
        for member in configuration.members:
            self.saved[str(member)] = (AcceptorState(configuration), 0, [])
            self.do_restart(str(member))

    def do_load(self, name: str, term: str, log: str) -> None:
        terms = [int(part) for part in log.removeprefix("log=").split(",")]
        entries = [
            Entry(each, lsn, EntryKind.COMMAND, b"x") for lsn, each in enumerate(terms, start=1)
        ]
        state = AcceptorState(self.saved[name][0].configuration, int(term.removeprefix("term=")))
        self.saved[name] = (state, 0, entries)
        self.do_restart(name)

    def do_restart(self, name: str) -> None:
        state, base_lsn, entries = self.saved[name]
        log = LogExtent(base_lsn, base_lsn + len(entries), history_of(entries))
        self.acceptors[name] = WalAcceptor(
            timeline_id=TIMELINE, safekeeper=SafekeeperId(int(name)), state=state, log=log
        )

    def do_proposer(self, name: str, dial: str, *options: str) -> None:
        values = {key: int(value) for key, _, value in (each.partition("=") for each in options)}
        self.proposers[name] = WalProposer(
            timeline_id=TIMELINE,
            proposer=ProposerId(name),
            dial=parse_configuration("1", dial).members,
            base=OpId(0, 0),
            settings=ProposerSettings(**values),
        )
        self.see(name)

    def see(self, name: str) -> None:
        """Print the phase of a proposer where it changed, and check the invariants."""
        core = self.proposers[name]
        core.check_invariants()
        phase = f"{core.phase.value} in term {core.term}"
        if core.configuration is not None:
            phase += f" of {show_configuration(core.configuration)}"
        phase += f", {core.end.value}" if core.end is not None else ""
        if self.phases.get(name) != phase:
            self.phases[name] = phase
            self.lines.append(f"{name} is {phase}")

    def do_campaign(self, name: str) -> None:
        self.proposers[name].campaign()
        self.see(name)

    def do_tick(self, name: str, count: str) -> None:
        for _ in range(int(count)):
            self.proposers[name].tick()
        self.see(name)

    def do_propose(self, name: str, *words: str) -> None:
        for word in words:
            op_id = self.proposers[name].propose(EntryKind.COMMAND, word.encode())
            self.lines.append(f"{word} is entry {show_id(op_id)}")

    def do_read(self, name: str, number: str) -> None:
        self.proposers[name].read(int(number))

    def do_trim(self, name: str, lsn: str) -> None:
        self.proposers[name].trim(int(lsn))

    # ---- the controller --------------------------------------------------------------------

    def do_switch(self, name: str, generation: str, sets: str, min_term: str = "0") -> None:
        term = int(min_term.removeprefix("min_term="))
        call = SwitchConfiguration(TIMELINE, parse_configuration(generation, sets), term)
        self.requests += 1
        self.acceptors[name].switch(self.requests, call)
        self.process_acceptor(name)

    def do_bump(self, name: str, generation: str, term: str) -> None:
        self.requests += 1
        call = BumpTerm(TIMELINE, int(generation), int(term))
        self.acceptors[name].bump_term(self.requests, call)
        self.process_acceptor(name)

    def do_exclude(self, name: str, generation: str, sets: str) -> None:
        self.requests += 1
        call = Exclude(TIMELINE, parse_configuration(generation, sets))
        self.acceptors[name].exclude(self.requests, call)
        self.process_acceptor(name)

    def do_pull(self, name: str, source: str, generation: str, sets: str) -> None:
        state, base_lsn, entries = self.saved[source]
        copy = copied_state(state, parse_configuration(generation, sets))
        self.saved[name] = (copy, base_lsn, list(entries))
        self.lines.append(f"{name} has a copy of {source} up to {base_lsn + len(entries)}")
        self.do_restart(name)

    # ---- effects ---------------------------------------------------------------------------

    def do_process(self, who: str) -> None:
        if who in self.proposers:
            self.process_proposer(who)
        else:
            self.process_acceptor(who)

    def process_proposer(self, name: str) -> None:
        core = self.proposers[name]
        while ready := core.take_ready():
            self.see(name)
            if ready.rewound_to is not None:
                self.lines.append(f"{name} goes back to {ready.rewound_to}")
            for message in ready.messages:
                self.put(message)
            if ready.committed:
                self.lines.append(f"{name} applies {show_entries(ready.committed)}")
            for entry in ready.committed:
                assert self.committed.setdefault(entry.index, entry) == entry, "two at one LSN"
            for read in ready.reads:
                self.lines.append(f"{name} read {read.request} may run at {read.lsn}")
            self.lines += [f"{name} read {request} fails" for request in ready.failed_reads]
            self.lines += [f"{name} sees {member} lag" for member in ready.lagging]
            self.lines += [f"{name} alarm: {alarm}" for alarm in ready.alarms]
            for fetch in ready.fetches:
                extent = f"{fetch.first_lsn} to {fetch.last_lsn}"
                self.lines.append(f"{name} fetches {extent} from {fetch.source}")
                who = (TIMELINE, fetch.term, fetch.generation)
                limits = (fetch.first_lsn, fetch.last_lsn, fetch.size_max_bytes)
                core.fetched(
                    fetch.number, self.serve(str(fetch.source), FetchEntries(*who, *limits))
                )
        self.see(name)

    def serve(self, name: str, call: FetchEntries) -> FetchedEntries:
        core, (_, base_lsn, entries) = self.acceptors[name], self.saved[name]
        extent = core.fetchable(call)
        found: tuple[Entry, ...] = ()
        if extent is not None:
            found = tuple(entries[extent[0] - base_lsn - 1 : extent[1] - base_lsn])
        return FetchedEntries(found, core.term, core.configuration, core.horizon_lsn)

    def process_acceptor(self, name: str) -> None:
        core = self.acceptors[name]
        while ready := core.take_ready():
            state, base_lsn, entries = self.saved[name]
            if ready.state is not None:
                state = ready.state
                shown = f"{show_configuration(state.configuration)} term {state.term}"
                vote = f"vote for {state.voted_for or 'nobody'}"
                lsns = f"commit {state.commit_lsn}, horizon {state.horizon_lsn}"
                self.lines.append(f"{name} saves {shown}, {vote}, {lsns}")
            if ready.restart_after is not None:
                base_lsn, entries = ready.restart_after, []
                self.lines.append(f"{name} begins its log anew after {base_lsn}")
            if ready.cut_after is not None:
                entries = entries[: ready.cut_after - base_lsn]
                self.lines.append(f"{name} cuts its log after {ready.cut_after}")
            if ready.entries:
                entries = [*entries, *ready.entries]
                self.lines.append(f"{name} saves {show_entries(ready.entries)}")
            if ready.trim_to is not None and ready.trim_to > base_lsn:
                entries, base_lsn = entries[ready.trim_to - base_lsn :], ready.trim_to
                self.lines.append(f"{name} trims its log up to {base_lsn}")
            self.saved[name] = (state, base_lsn, entries)
            if ready.excluded is not None:
                self.lines.append(f"{name} deletes the timeline as of g{ready.excluded}")
            for message in ready.messages:
                self.put(message)
            for answer in ready.answers:
                self.show_reply(name, answer.reply)
            self.lines += [f"{name} alarm: {alarm}" for alarm in ready.alarms]
            core.advance(ready)
            core.check_invariants()

    def show_reply(self, name: str, reply: object) -> None:
        match reply:
            case SwitchReply():
                where = f"{reply.last_log_term}.{reply.flush_lsn}"
                shown = f"{show_configuration(reply.conf)}, term {reply.term}, log to {where}"
            case ExcludeReply():
                verdict = "excluded" if reply.excluded else "kept"
                shown = f"{verdict}, {show_configuration(reply.configuration)}"
            case _:
                shown = repr(reply)
        self.lines.append(f"{name} replies {shown}")

    # ---- messages --------------------------------------------------------------------------

    def put(self, message: ToAcceptor | ToProposer) -> None:
        check_message(message)
        self.lines.append(show_message(message))
        self.under_way.append(message)

    def take(self, source: str, destination: str) -> list[ToAcceptor | ToProposer]:
        taken = [message for message in self.under_way if ends(message) == (source, destination)]
        self.under_way = [message for message in self.under_way if message not in taken]
        return taken

    def do_deliver(self, source: str, destination: str) -> None:
        for message in self.take(source, destination):
            self.hand_over(message)

    def do_drop(self, source: str, destination: str) -> None:
        for message in self.take(source, destination):
            self.lines.append(f"lost: {show_message(message)}")

    def do_double(self, source: str, destination: str) -> None:
        """The newest comes first, and all come twice."""
        taken = self.take(source, destination)
        for message in [*reversed(taken), *taken]:
            self.hand_over(message)

    def hand_over(self, message: ToAcceptor | ToProposer) -> None:
        _, destination = ends(message)
        if isinstance(message, AcceptorGreeting | WalVoteResponse | WalAppendResponse | Refusal):
            self.proposers[destination].receive(message)
            self.see(destination)
        elif destination in self.acceptors:
            self.acceptors[destination].receive(message)

    def do_stabilize(self, *chosen: str) -> None:
        names = list(chosen) or [*self.proposers, *self.acceptors]
        for _ in range(200):
            before = len(self.lines)
            for name in names:
                self.do_process(name)
            here = [m for m in self.under_way if all(end in names for end in ends(m))]
            self.under_way = [m for m in self.under_way if m not in here]
            for message in here:
                if not any(end in self.separated for end in ends(message)):
                    self.hand_over(message)
            if not here and len(self.lines) == before:
                return
        raise AssertionError("does not come to rest")

    def do_cut(self, name: str) -> None:
        self.separated.append(name)

    def do_heal(self) -> None:
        self.separated = []

    def do_status(self) -> None:
        for name, core in self.proposers.items():
            log = core.log
            shown = f"log to {show_id(log.last)}, commit {log.commit_lsn}"
            self.lines.append(f"{name} {core.phase.value} in term {core.term}: {shown}")
        for name, acceptor in self.acceptors.items():
            shown = f"log {show_history(acceptor.history)} to {acceptor.last_lsn}"
            lsns = f"commit {acceptor.commit_lsn}, horizon {acceptor.horizon_lsn}"
            where = show_configuration(acceptor.configuration)
            self.lines.append(f"{name} {where} term {acceptor.term}: {shown}, {lsns}")


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
