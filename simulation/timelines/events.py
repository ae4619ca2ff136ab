"""What a trace of a timeline says: one JSON line per step, named as the action of `spec/` it is.

Whoever takes the step writes the line, at the moment at which the step is durable (or, of a
proposer or migrator, which keep nothing, done) and before anybody is told of it. ``seq`` grows from
line to line and follows causality; a simulated world has one counter for all. Positions are those
*after* the step. `stelae.simulation.timelines.trace` replays the lines; `spec/README.md` has the
table of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from stelae.core.records.timelines import LogPosition, SafekeeperId, TimelineConfiguration

MigratorId: TypeAlias = str
LifeOfProposer: TypeAlias = str


class TraceEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", forbid_unknown_fields=True
):
    """``timeline`` is the tablet's id: one file may hold the steps of many."""

    seq: int
    timeline: str


class _AtSafekeeper(TraceEvent, frozen=True, kw_only=True):
    """The whole of what a safekeeper has after the step, read at one point."""

    server: SafekeeperId
    generation: int
    term: int
    last_log_term: int
    flush_lsn: int

    @property
    def position(self) -> LogPosition:
        return LogPosition(self.last_log_term, self.flush_lsn)


# ---- the CAS store ------------------------------------------------------------------------------


class Init(TraceEvent, frozen=True, kw_only=True, tag=True):
    """The first line: the configuration of generation 1 is in the store."""

    configuration: TimelineConfiguration


class StartChange(TraceEvent, frozen=True, kw_only=True, tag=True):
    """A CAS put a joint configuration in place."""

    server: MigratorId
    configuration: TimelineConfiguration


class AbortChange(TraceEvent, frozen=True, kw_only=True, tag=True):
    """A CAS took a joint configuration back: the old set stays."""

    server: MigratorId
    configuration: TimelineConfiguration


class FinishChange(TraceEvent, frozen=True, kw_only=True, tag=True):
    """A CAS put the new set in place of the joint configuration."""

    server: MigratorId
    configuration: TimelineConfiguration


# ---- safekeepers --------------------------------------------------------------------------------


class Create(TraceEvent, frozen=True, kw_only=True, tag=True):
    """A member of the first configuration made its empty copy."""

    server: SafekeeperId


class Vote(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """A vote was granted, in ``term``; the same vote granted again is a line, too."""

    proposer: LifeOfProposer


class Elected(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """The log was cut to where it parts from the leader's; that is the position."""

    proposer: LifeOfProposer


class BeginAfter(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """The log goes on after that position, the horizon of the leader that was heard last: what is
    before is committed, and on backups."""


class AppendEntry(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """Entries from ``first_lsn`` on were added and are durable."""

    proposer: LifeOfProposer
    first_lsn: int


class SwitchConf(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """A higher configuration was adopted. If the same write raised the term, then the line has the
    term of before, and one of BumpTerm follows."""

    configuration: TimelineConfiguration


class BumpTerm(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """The term was raised, with no vote given."""


class Pull(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """A copy of what ``donor`` once had was installed, for that configuration."""

    donor: SafekeeperId
    configuration: TimelineConfiguration


class Exclude(TraceEvent, frozen=True, kw_only=True, tag=True):
    """The timeline was deleted here; its tombstone has the generation of ``configuration``."""

    server: SafekeeperId
    configuration: TimelineConfiguration


class RestartSafekeeper(_AtSafekeeper, frozen=True, kw_only=True, tag=True):
    """What was read back from disk; ``voted_for`` has the vote of ``term``, and is empty if it was
    raised without one. ``is_pulled``: a copy was being installed, so it may be one that no line of
    Pull told of."""

    voted_for: LifeOfProposer
    is_pulled: bool = False


# ---- proposers ----------------------------------------------------------------------------------


class _AtProposer(TraceEvent, frozen=True, kw_only=True):
    server: LifeOfProposer
    generation: int
    term: int


class RestartProposer(_AtProposer, frozen=True, kw_only=True, tag=True):
    """A campaign begins, in that term and with the configuration of that generation."""


class BecomeLeader(_AtProposer, frozen=True, kw_only=True, tag=True):
    """The votes of ``voters``, those that were counted, suffice; the log goes on from here."""

    voters: tuple[SafekeeperId, ...]
    last_log_term: int
    flush_lsn: int


class NewEntry(_AtProposer, frozen=True, kw_only=True, tag=True):
    """The leader's log grew up to ``last_lsn``; no need for a line for each entry."""

    last_lsn: int


class Commit(_AtProposer, frozen=True, kw_only=True, tag=True):
    """The leader counts everything up to ``commit_lsn`` as committed."""

    commit_lsn: int


# ---- migrators ----------------------------------------------------------------------------------


class Collect(TraceEvent, frozen=True, kw_only=True, tag=True):
    """Step 4: an answer to the joint configuration came, from a member of the old set."""

    server: MigratorId
    safekeeper: SafekeeperId
    generation: int
    term: int
    last_log_term: int
    flush_lsn: int


class Confirm(TraceEvent, frozen=True, kw_only=True, tag=True):
    """Step 7: an answer came from a member of the new set, and it shows all that is required."""

    server: MigratorId
    safekeeper: SafekeeperId
    generation: int
    term: int
    last_log_term: int
    flush_lsn: int


class Forget(TraceEvent, frozen=True, kw_only=True, tag=True):
    """A migrator gave up, or begins anew under the same name."""

    server: MigratorId


Event: TypeAlias = (
    Init
    | StartChange
    | AbortChange
    | FinishChange
    | Create
    | Vote
    | Elected
    | BeginAfter
    | AppendEntry
    | SwitchConf
    | BumpTerm
    | Pull
    | Exclude
    | RestartSafekeeper
    | RestartProposer
    | BecomeLeader
    | NewEntry
    | Commit
    | Collect
    | Confirm
    | Forget
)
AtSafekeeper: TypeAlias = (
    Vote | Elected | BeginAfter | AppendEntry | SwitchConf | BumpTerm | Pull | RestartSafekeeper
)

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_events(events: Iterable[TraceEvent]) -> bytes:
    """As JSON lines."""
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def decode_events(lines: bytes) -> Iterator[Event]:
    """Of JSON lines. Raises msgspec.ValidationError for what is no event."""
    for line in lines.splitlines():
        if line.strip():
            yield _DECODER.decode(line)
