"""What `stelae check` judges: answers of masters, the status document, digests of replicas.

Of the status document (design §12) only what is judged is named here; unknown fields are ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from stelae.core.ids import Address, ServerUuid, TabletId
from stelae.core.messages.masters import MasterInfo
from stelae.core.messages.replicas import ReplicaDigest
from stelae.core.messages.safekeepers import HeldTimeline
from stelae.core.messages.servers import ReplicaRole
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.places import Place
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration


@dataclass(frozen=True, slots=True)
class MasterAnswer:
    """What came of asking who is at an address."""

    address: Address
    info: MasterInfo | None
    error: str = ""
    """Why there is none."""


class Known(msgspec.Struct, frozen=True):
    """A committed configuration, as a replica reports it."""

    op_id: tuple[int, int]
    voters: tuple[ServerUuid, ...]
    non_voters: tuple[ServerUuid, ...] = ()

    @property
    def members(self) -> tuple[tuple[ServerUuid, ...], tuple[ServerUuid, ...]]:
        """The same of two replicas that agree."""
        return tuple(sorted(self.voters)), tuple(sorted(self.non_voters))


class ReplicaFacts(msgspec.Struct, frozen=True):
    """One replica: a member by the catalog, or one that a live server reports."""

    server: str
    uuid: ServerUuid
    member: str
    """voter, non-voter or none, by the catalog"""
    server_live: bool
    role: str = ""
    """A `ReplicaRole`; empty: no live server reports it."""
    term: int = 0
    last: tuple[int, int] = (0, 0)
    problem: str = ""
    leader: str = ""
    configuration: Known | None = None
    heard: bool | None = None
    """By the leader; None: it is the leader, or there is none."""

    @property
    def takes_part(self) -> bool:
        """It has its rows, and votes or follows."""
        parts = (ReplicaRole.LEADER, ReplicaRole.FOLLOWER, ReplicaRole.CANDIDATE)
        return self.server_live and self.role in parts

    @property
    def leads(self) -> bool:
        return self.server_live and self.role == ReplicaRole.LEADER


class TabletFacts(msgspec.Struct, frozen=True):
    """One tablet, owned by one server or (``replicas`` given) a group."""

    id: TabletId
    table: str
    number: int
    state: str
    term: int
    leader: str
    """The name of its owner or leader."""
    address: str = ""
    progress: str = ""
    problem: str = ""
    under_replicated: int | None = 0
    segments_lacking: int | None = 0
    """Segments whose rows nobody can read, as no live backup has them."""
    inherits: str = ""
    """The tablet that it was split from, until it has all its rows in its own log."""
    configuration: tuple[int, int] | None = None
    """The entry of the one in the catalog."""
    replicas_wanted: int = 0
    move: tuple[ServerUuid, ServerUuid] | None = None
    replicas: tuple[ReplicaFacts, ...] | None = None
    timeline: TimelineConfiguration | None = None
    """Of a table with ``wal(n, …)``: the safekeepers of its log."""
    succeeds: str = ""
    """The tablet in whose place it is to be, if its table is given another durability."""
    owners_died: int = 0
    """Servers in a row that ended while they opened it, from two on, until it is open."""


class ServerFacts(msgspec.Struct, frozen=True):
    kind: str
    id: str
    uuid: ServerUuid
    state: str
    address: Address = Address("")
    node: str = ""
    """Name of its machine: a label's value, or an address."""
    rack: str = ""
    """Name of its machine's rack; empty: the machine stands for it."""

    @property
    def place(self) -> Place:
        """What it shares with other servers."""
        return Place(self.node, self.rack)

    replicas: int = 0
    tablets: int | None = 0
    retiring: bool = False
    maintenance: bool = False
    silent_s: float = 0.0
    safekeeper_id: SafekeeperId | None = None
    status: str = ""
    """Of a safekeeper: a `SafekeeperStatus`."""
    timelines: int | None = 0
    """That it has."""
    segments: int = 0
    """Of a backup: replicas and blobs that it has."""
    used_bytes: Mapping[str, int] = {}
    """By medium of a backup: bytes of replicas."""
    media_free_bytes: Mapping[str, int] = {}
    """By medium of a backup: bytes that replicas may still take."""
    media_low: tuple[str, ...] = ()
    """Media of a backup whose free space is within their reserve: they take deletes and no rows."""
    avoided_by: tuple[str, ...] = ()
    """Live tservers whose replicas a backup did not take in the last minutes."""

    @property
    def is_live(self) -> bool:
        return self.state == "live"


class UnheardFacts(msgspec.Struct, frozen=True):
    """A backup that the masters know, and their leader has not heard."""

    id: str
    uuid: ServerUuid
    retiring: bool = False


class TableFacts(msgspec.Struct, frozen=True):
    name: str
    durability: str
    tablets: int
    state: str


class IndexletFacts(msgspec.Struct, frozen=True):
    id: str
    state: str
    low: str
    high: str
    """In hex."""
    server: str
    progress: str = ""
    problem: str = ""


class IndexFacts(msgspec.Struct, frozen=True):
    id: str
    table: str
    column: str
    indexlets: tuple[IndexletFacts, ...]


class ReplacedFacts(msgspec.Struct, frozen=True):
    """A server whose name another one has, or is to have, on another machine."""

    id: str
    uuid: ServerUuid
    successor: str = ""
    """UUID of that one; empty: it was not heard yet, and the replacement is half done."""
    goes_on: bool = False
    """An operator's replacement, which is not known to be whole."""


class StatusFacts(msgspec.Struct, frozen=True):
    """The status document of the leader master."""

    cluster: str
    term: int
    servers: tuple[ServerFacts, ...]
    tables: tuple[TableFacts, ...]
    tablets: tuple[TabletFacts, ...]
    migrations: tuple[MigrationProgress, ...] = ()
    indexes: tuple[IndexFacts, ...] = ()
    backups_not_heard: tuple[UnheardFacts, ...] = ()
    replaced: tuple[ReplacedFacts, ...] = ()
    is_encrypted: bool | None = None
    """Whether connections between machines have TLS; None: the master does not say."""


@dataclass(frozen=True, slots=True)
class DigestAnswer:
    """What one replica said when it was asked for its digest."""

    server: str
    digest: ReplicaDigest | None
    error: str = ""
    voter: bool = True
    """A non-voter may be copied, or catch up: it is compared if it can be."""


@dataclass(frozen=True, slots=True)
class TabletDigests:
    """Of one tablet; no answers if it could not be marked."""

    tablet: TabletFacts
    answers: tuple[DigestAnswer, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class LogsAnswer:
    """What a safekeeper that lives says that it has of logs."""

    safekeeper_id: SafekeeperId
    server: str
    held: Mapping[TabletId, HeldTimeline]
    error: str = ""
    """Why it is not known."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What all safekeepers that live say of the logs of tables with ``wal(n)``."""

    answers: tuple[LogsAnswer, ...]
    reached: Mapping[TabletId, int]
    """Up to here a log was committed so long ago that every member should have it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is judged together."""

    masters: tuple[MasterAnswer, ...]
    status: StatusFacts | None
    status_problem: str = ""
    """Why there is no status."""
    digests: tuple[TabletDigests, ...] | None = None
    """None: they were not asked for."""
    logs: LogFacts | None = None
    """None: no table has ``wal(n)``."""
    leaving: tuple[str, ...] = ()
    """Servers that other machines reach, where connections are not encrypted."""
    stopped: tuple[str, ...] = ()
    """Names of servers that an operator stopped: the cluster's spec has them, and Ray has not."""


class Severity(enum.IntEnum):
    """How much a finding counts."""

    NOTE = 0
    """Meant to be so; the cluster is well."""
    WARNING = 1
    """Everything is served, but less safely than it should be, or could not be looked at."""
    ERROR = 2
    """Something is not served, or contradicts itself."""


class Verdict(enum.IntEnum):
    """How a tablet is; of several the highest counts."""

    HEALTHY = 0
    RECOVERING = 1
    """It is on its way to what it should be."""
    UNDER_REPLICATED = 2
    """It serves, and survives fewer failures than it should."""
    MISMATCH = 3
    """Its replicas, or the masters, contradict each other."""
    UNAVAILABLE = 4
    """It does not serve."""

    @property
    def severity(self) -> Severity:
        if self is Verdict.HEALTHY:
            return Severity.NOTE
        return Severity.ERROR if self >= Verdict.MISMATCH else Severity.WARNING

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


class Finding(msgspec.Struct, frozen=True):
    section: str
    """masters, servers, tablets, logs or checksums"""
    subject: str
    """What it is about, by name."""
    text: str
    severity: Severity
    hint: str = ""
    """What to do about it; empty: nothing, it is meant to be so."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}" if self.subject else self.text
