"""What the catalog says of tables, tablets and servers; and what servers say of themselves."""

from __future__ import annotations

import enum

import msgspec

from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.places import Place
from stelae.core.records.losses import KeptLog
from stelae.core.records.replication import Configuration
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from stelae.core.runtime import ProcessIdentity
from stelae.core.schema.durability import Durability
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema


class ServerKind(enum.StrEnum):
    MASTER = "master"
    TSERVER = "tserver"
    BACKUP = "backup"
    SAFEKEEPER = "safekeeper"
    CAS_STORE = "cas_store"


class ServerState(enum.StrEnum):
    LIVE = "live"
    DEAD = "dead"


class ServerInfo(msgspec.Struct, frozen=True):
    """One server as it describes itself: in heartbeats, in status, in lists of live servers.

    ``incarnation`` grows with each start on the same data directory; (uuid, incarnation) names
    one run of one process.
    """

    kind: ServerKind
    name: str
    uuid: ServerUuid
    incarnation: int
    address: Address
    process: ProcessIdentity
    media: tuple[str, ...] = ()
    """Of a backup: the media it offers."""
    safekeeper_id: SafekeeperId | None = None
    """Of a safekeeper: how configurations of timelines call it."""
    rack: str | msgspec.UnsetType = msgspec.UNSET
    """The value of its node's label of racks. Left out of messages where there is none, so that
    those of a cluster without racks are as they were."""

    @property
    def place(self) -> Place:
        """What it shares with other servers."""
        rack = "" if self.rack is msgspec.UNSET else self.rack
        return Place(self.process.node, rack)


class SafekeeperRecord(msgspec.Struct, frozen=True, array_like=True):
    """One safekeeper of the registry, for ever: its id is never given to another server."""

    safekeeper_id: SafekeeperId
    uuid: ServerUuid
    """A safekeeper that lost its disk has a new one, and gets a new id."""
    name: str
    node: str
    """The machine that it ran on last."""
    status: SafekeeperStatus = SafekeeperStatus.ACTIVE
    generation: int = 1
    successor: SafekeeperId | None = None
    """A new disk that was registered under the name that this one had: this one's disk is lost,
    unless it is heard under another name, or on another machine, since."""


class BackupRecord(msgspec.Struct, frozen=True, array_like=True):
    """One backup that the cluster counts on, heard or not: it may hold what no other does."""

    uuid: ServerUuid
    """A backup that lost its disk has a new one, and is another."""
    name: str
    machine: str
    """That it ran on last."""
    media: tuple[str, ...]
    registered_at: float
    """Wall clock of the leader master that heard it first."""


class MasterMember(msgspec.Struct, frozen=True, array_like=True):
    """One master of the replicated set; a non-voter is being brought up."""

    uuid: ServerUuid
    name: str
    address: Address
    voter: bool = True


class TableState(enum.StrEnum):
    RUNNING = "running"
    ALTERING = "altering"
    """Not all tablets have the newest schema yet; reads and writes go on."""
    DELETED = "deleted"


class TableRecord(msgspec.Struct, frozen=True):
    table_id: TableId
    name: str
    schema: TableSchema
    partitioning: Partitioning
    durability: Durability
    state: TableState
    generation: int = 1
    """Grows with each change of this record: the compare-and-set of catalog batches."""
    history: tuple[TableSchema, ...] = ()
    """Earlier versions of the schema, oldest first, whose users' calls are understood."""
    renames: int = 0
    """Grows with each change of the table's name."""
    resizing: bool = False
    """The number of replicas was changed, and some tablet has another number of them still."""
    becoming: Durability | None = None
    """What the table is altered to; ``durability`` is what tablets have that were not yet."""
    change: int = 0
    """So often the durability was altered, this time included. An alter that is not done can only
    be taken back: of all the changes until one is done, every second one leads to the same."""

    @property
    def edition(self) -> str:
        """Which table it is, and the how-manieth version of this record."""
        return f"{self.table_id}.{self.generation}"

    def has_changed(self, tablet: TabletRecord) -> bool:
        """Whether it has what the table becomes, if that becomes another.

        An alter that is taken back leaves tablets as they are, so only whether the counts are both
        odd, or both even, tells.
        """
        return self.becoming is None or (self.change - tablet.change) % 2 == 0

    def durability_of(self, tablet: TabletRecord) -> Durability:
        """What this tablet has: while the table is altered not all have the same."""
        if self.becoming is None or not self.has_changed(tablet):
            return self.durability
        return self.becoming

    def for_tablet(self, tablet: TabletRecord) -> TableRecord:
        """The record as this tablet's servers are told it: with its own durability."""
        if self.becoming is None:
            return self
        return msgspec.structs.replace(self, durability=self.durability_of(tablet))


class ServerMark(msgspec.Struct, frozen=True):
    """What operators want of a tserver or backup, by its UUID; kept until it is taken back."""

    uuid: ServerUuid
    name: str
    retiring: bool = False
    """It gets nothing new, and what it has is moved to others, by and by."""
    maintenance: bool = False
    """It gets nothing new and leads nothing; while it is away its replicas are not replaced."""
    generation: int = 1
    kind: ServerKind | None = None
    """None: not known; a new leader master has to know it before it hears the server."""
    needed: bool = False
    """Of a backup that is to be retired: without it the others are too few for some table just
    now, so it takes what comes, though it may hold nothing. The masters see to it themselves."""
    replaced: bool = False
    """Another server has its name, on another machine. Permanent: masters refuse every run of this
    UUID, and its process ends."""
    successor: ServerUuid = ServerUuid("")
    """UUID of the server that has its name now; empty: that was not heard yet."""
    replacing: bool = False
    """An operator has replaced it, and the cluster is not known to be whole again since."""
    marked_only: bool = False
    """Of a fence: nothing but this mark named the server, so it may be an earlier one of its name.
    The one of today may have another UUID, and no fence."""


class Copysets(msgspec.Struct, frozen=True):
    """Groups of backups, in which the replicas of a segment lie together."""

    groups: tuple[tuple[ServerUuid, ...], ...] = ()
    generation: int = 1


class Rebalancing(msgspec.Struct, frozen=True):
    """What operators want of the spreading of replicas and leaders over servers."""

    after_s: float | None = None
    """Seconds of calm before each step; 0: never. None: as the masters' settings say."""
    generation: int = 1


class TabletState(enum.StrEnum):
    CREATING = "creating"
    """Has an owner that may not serve yet; nothing was ever acknowledged."""
    RUNNING = "running"
    RECOVERING = "recovering"
    """Its owner is lost; ``owner`` (once chosen) brings it back in ``term``."""
    DELETED = "deleted"
    REPLACED = "replaced"
    """``replaced_by`` is there in its place: it could not be created in time, or its successor has
    its rows now. Or it was to succeed that one, and was given up. Kept for ever, as deleted ones
    are, so that whoever opens it late is told to close it."""

    @property
    def is_gone(self) -> bool:
        """Nobody may hold a tablet in this state, and it never leaves it."""
        return self in (TabletState.DELETED, TabletState.REPLACED)


class ReplicaMove(msgspec.Struct, frozen=True, array_like=True):
    """A replica is to be made at ``target``, and then the one at ``source`` is let go."""

    source: ServerUuid
    target: ServerUuid


class Inheritance(msgspec.Struct, frozen=True, array_like=True):
    """What a part of a split tablet has of that tablet's log, until it has all rows in its own.

    ``head``, ``length`` and ``crc`` say where that log ends, for all parts alike: replicas of its
    open head may differ in a tail that no client was told of, and one write must not count for some
    parts only.
    """

    log: TabletId
    term: int
    """In which its backups are fenced: above each in which it was owned."""
    head: int
    length: int
    """What is beyond is not read."""
    crc: int
    """Over the headers of the entries in these bytes."""


class TabletRecord(msgspec.Struct, frozen=True):
    """One tablet. Of one term there is one owner: a change of owner raises the term.

    A tablet of a table with ``replicas(n)`` has a ``configuration`` and no owner here: its replicas
    elect their leader, of whom the leader master knows by reports alone.
    """

    tablet_id: TabletId
    table_id: TableId
    number: int
    """Place in the table's partitioning: range * buckets + bucket. Of a part of a split tablet,
    place and share (`stelae.core.schema.shares`)."""
    state: TabletState
    term: int
    owner: ServerUuid
    owner_incarnation: int
    valid_segment: int = 0
    """With ``valid_epoch``: open segment replicas below (segment, epoch) are stale, and ignored."""
    valid_epoch: int = 0
    generation: int = 1
    attempt: int = 0
    """So many tablets with this number in this table were replaced before this one."""
    replaced_by: TabletId = TabletId("")
    configuration: Configuration | None = None
    """Who holds replicas: the one it was created with, then the newest committed one reported."""
    move: ReplicaMove | None = None
    """Until the source is a member no more."""
    timeline: TimelineConfiguration | None = None
    """Of a tablet with ``wal(n, …)``: the safekeepers of its log, those it was created with and
    then the newest that this catalog was told of. The configuration store has the say."""
    change: int = 0
    """Of its table's durability: the one that it was made for. It keeps this for life: the epochs
    of its index entries begin with it, and have to last as long as its terms."""
    succeeds: TabletId = TabletId("")
    """The tablet in whose place it is to be; until then nobody finds it."""
    kept: KeptLog | None = None
    """While it is recovered without what an operator has given up: what of its log there is."""
    inherits: Inheritance | None = None
    """Of a part of a split tablet, until backups have all of its rows in its own log."""

    @property
    def is_group(self) -> bool:
        """Whether its replicas are a Raft group."""
        return self.configuration is not None

    @property
    def may_be_served(self) -> bool:
        """Whether its owner may be serving it. One that was not handed over yet has never been
        served in this term; but in the former one, and by the same owner, if a loss was accepted of
        one that ran (`stelae.coordinator.ddl.losses`)."""
        return self.state is TabletState.RUNNING or self.kept is not None
