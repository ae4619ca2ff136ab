"""Timelines: logs of `wal` tablets on safekeepers, and the configurations that name their members.

One function, `has_majority`, is the quorum of one member set; a joint configuration applies it once
to each of its two sets and never mixes them (Neon RFC 035, "Definitions" and "Compute changes").
`AcceptorState` is what a safekeeper keeps of a timeline beside the entries.

A log with LSN n has the entries 1 to n, those up to its base trimmed away. Its term history says
which term wrote which of them: terms and starts rise, and every entry that is there bears it out.

A copy, which a safekeeper hands to another one that pulls a timeline, is the files of the WAL as
they lie on the donor, cut at one position, with the state that goes with them. Neon RFC 035,
pull_timeline; design §10.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping
from typing import NewType, TypeAlias

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.records.replication import Entry

SafekeeperId = NewType("SafekeeperId", int)
"""How operators and configurations call a safekeeper (a node id of the seed); never reused."""

ProposerId = NewType("ProposerId", str)
"""One life of a proposer: drawn anew whenever a tablet server begins to propose to a timeline."""

NOBODY = ProposerId("")

NO_GENERATION = 0
"""Of a safekeeper that has been given no configuration yet; the first one has generation 1."""


CAMPAIGN_BITS = 32
"""Of a timeline's term: above them is the tablet's term, in them the campaigns of its owner."""


def term_text(term: int) -> str:
    """A timeline's term as people read it: the tablet's term, and the campaign in it."""
    return f"{term >> CAMPAIGN_BITS}.{term & ((1 << CAMPAIGN_BITS) - 1)}" if term else "0"


class SafekeeperStatus(enum.StrEnum):
    """What operators say of a safekeeper (seed 004, "Schema")."""

    ACTIVE = "active"
    OFFLINE = "offline"
    """It is expected back: nothing is asked of it, and what it holds stays."""
    DECOMMISSIONED = "decommissioned"
    """It never comes back: nothing waits for it."""


class TimelineConfiguration(msgspec.Struct, frozen=True):
    """The members of a timeline; ``new_sk_set`` is there while they change: it is joint then.

    Field names are the seed's: it is also a body of the HTTP API.
    """

    generation: int
    sk_set: tuple[SafekeeperId, ...]
    new_sk_set: tuple[SafekeeperId, ...] | None = None

    @property
    def is_joint(self) -> bool:
        return self.new_sk_set is not None

    @property
    def member_sets(self) -> tuple[tuple[SafekeeperId, ...], ...]:
        """The sets of which each must agree."""
        return (self.sk_set,) if self.new_sk_set is None else (self.sk_set, self.new_sk_set)

    @property
    def members(self) -> tuple[SafekeeperId, ...]:
        """Of any set, each once, in ascending order."""
        return tuple(sorted({member for members in self.member_sets for member in members}))

    def agreed(self, agreeing: Collection[SafekeeperId]) -> bool:
        """Whether each member set has a majority in ``agreeing``."""
        return all(has_majority(members, agreeing) for members in self.member_sets)

    def agreed_lsn(self, lsns: Mapping[SafekeeperId, int]) -> int:
        """The highest LSN that a majority of each member set has reached; 0 of who is not named."""
        return min(majority_lsn(members, lsns) for members in self.member_sets)


class SafekeeperPlace(msgspec.Struct, frozen=True, array_like=True):
    """Which server a safekeeper of a configuration is, and where it was when this was written.

    Its address changes when it restarts: whoever has a newer list of live servers looks there.
    """

    safekeeper_id: SafekeeperId
    uuid: ServerUuid
    address: Address


class TimelineSource(msgspec.Struct, frozen=True):
    """Where a tablet's timeline lies, for the tablet server that is to propose to it.

    The configuration is a hint: the safekeepers tell of a higher one in their greetings, and only
    they bind. ``safekeepers`` names all of its members; those of a higher one are found among the
    live servers.
    """

    table_id: TableId
    """The seed's tenant."""
    tablet_id: TabletId
    """The seed's timeline."""
    configuration: TimelineConfiguration
    safekeepers: tuple[SafekeeperPlace, ...]


class LogPosition(msgspec.Struct, frozen=True, array_like=True, order=True):
    """How far a log goes, so that logs compare: the term of its last entry, then its length."""

    last_log_term: int
    flush_lsn: int


class TermStart(msgspec.Struct, frozen=True, array_like=True):
    """The entry ``start_lsn`` is the first that ``term`` wrote."""

    term: int
    start_lsn: int


TermHistory: TypeAlias = tuple[TermStart, ...]


class AcceptorState(msgspec.Struct, frozen=True, array_like=True):
    """What a safekeeper keeps of one timeline beside its entries; replaced as one.

    ``term_history`` is surely right up to the trimmed part's end, ``horizon_lsn``: what comes after
    it may have been cut or added to since, and is known from the entries (`joined_history`).
    """

    configuration: TimelineConfiguration
    term: int = 0
    """The highest one seen; terms below it are refused. Nobody ever wins term 0."""
    voted_for: ProposerId = NOBODY
    """Who got the vote of this safekeeper in ``term``; nobody, if it only heard of that term."""
    term_history: TermHistory = ()
    commit_lsn: int = 0
    """At least so far the entries are committed: what is here up to there never changes."""
    horizon_lsn: int = 0
    """Entries up to here are needed no more; never above the commit. They may be here still; or
    even others in their place, which are to be removed: see `WalAcceptor`."""


class LogExtent(msgspec.Struct, frozen=True, array_like=True):
    """What was read back of a timeline's log: entries after ``base_lsn``, and who wrote them."""

    base_lsn: int = 0
    last_lsn: int = 0
    history: TermHistory = ()


class SwitchReply(msgspec.Struct, frozen=True):
    """A safekeeper's answer to a configuration: all of it taken at one point, after the switch to
    the higher of both is durable (the seed's ConfigurationSwitchResponse)."""

    conf: TimelineConfiguration
    term: int
    last_log_term: int
    flush_lsn: int

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last_log_term, self.flush_lsn)


def has_majority(members: Collection[SafekeeperId], agreeing: Collection[SafekeeperId]) -> bool:
    """Whether more than half of one member set agrees; others who do are not counted."""
    return 2 * sum(member in agreeing for member in members) > len(members)


def majority_lsn(members: Collection[SafekeeperId], lsns: Mapping[SafekeeperId, int]) -> int:
    """The highest LSN that more than half of one member set has reached."""
    reached = sorted((lsns.get(member, 0) for member in members), reverse=True)
    return reached[len(reached) // 2] if reached else 0


def check_configuration(configuration: TimelineConfiguration) -> None:
    """Refuse what can be no configuration. Raises InvalidArgument."""
    for members in configuration.member_sets:
        if not members or len(set(members)) != len(members):
            raise InvalidArgument(f"safekeepers {list(members)}: at least one, and each once")
    if configuration.generation <= NO_GENERATION:
        raise InvalidArgument(f"generation {configuration.generation}: the first is 1")


def check_history(history: TermHistory) -> None:
    """Refuse a history whose terms or starts do not rise. Raises InvalidArgument."""
    before = TermStart(0, 0)
    for start in history:
        if start.term <= before.term or start.start_lsn <= before.start_lsn:
            raise InvalidArgument(f"{start} cannot follow {before} in a term history")
        before = start


def history_of(entries: Iterable[Entry]) -> TermHistory:
    """The terms that wrote these entries, which follow one another."""
    return extended_history((), entries)


def extended_history(history: TermHistory, entries: Iterable[Entry]) -> TermHistory:
    """The history of a log after ``entries`` were appended to it."""
    added: list[TermStart] = []
    term = history[-1].term if history else 0
    for entry in entries:
        if entry.term != term:
            term = entry.term
            added.append(TermStart(term, entry.index))
    return (*history, *added) if added else history


def cut_history(history: TermHistory, last_lsn: int) -> TermHistory:
    """The history of a log cut after ``last_lsn``."""
    count = _terms_at(history, last_lsn)
    return history if count == len(history) else history[:count]


def joined_history(kept: TermHistory, base_lsn: int, in_log: TermHistory) -> TermHistory:
    """The history of a log of which ``in_log`` was read back, after ``base_lsn``, and of which
    ``kept`` says who wrote what was trimmed away up to there."""
    before = cut_history(kept, base_lsn)
    if before and in_log and in_log[0].term == before[-1].term:
        in_log = in_log[1:]
    return (*before, *in_log)


def term_at(history: TermHistory, lsn: int) -> int:
    """The term that wrote the entry at ``lsn``; 0 before all."""
    count = _terms_at(history, lsn)
    return history[count - 1].term if count else 0


def _terms_at(history: TermHistory, lsn: int) -> int:
    """How many terms had begun."""
    if history and history[-1].start_lsn <= lsn:  # nearly always
        return len(history)
    return bisect_right(history, lsn, key=lambda start: start.start_lsn)


NOTHING = OpId(0, 0)
"""The end of a log that never had an entry."""


class WalFile(msgspec.Struct, frozen=True, array_like=True):
    """One file of a WAL; ``crc`` is the CRC-32C of its first ``size_bytes``."""

    name: str
    size_bytes: int
    crc: int


class LogCut(msgspec.Struct, frozen=True, array_like=True):
    """The last time that a log was cut: in files made before it, nothing counts from there on."""

    number: int
    """Of how many cuts it is the last; 0: there was none."""
    from_lsn: int


class TimelineSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A timeline at one point: all that ``last`` says is durable at the donor, in ``files``."""

    tablet_id: TabletId
    acceptor: AcceptorState
    """As of then; its history is that of the whole log, up to ``last``."""
    base_lsn: int
    """Entries up to here are not in the files."""
    last: OpId
    cut: LogCut
    files: tuple[WalFile, ...]

    @property
    def generation(self) -> int:
        return self.acceptor.configuration.generation

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last.term, self.last.index)
