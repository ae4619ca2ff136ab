"""The configuration store: who the members of each timeline are, changed by compare-and-set alone.

A record is replaced only if its ``revision`` is still the one that the writer saw, and what was
written once stays in the history for ever. The store refuses successors that no procedure makes
(`check_succession`): so of one generation there is one configuration, whoever writes.

A CAS that was carried out is never lost. Its answer may be: the writer then repeats the very same
request (writer and nonce), and is told that it was done.

Implements seed 004 ("configuration storage", "Schema"), where *tenant* is the table and *timeline*
the tablet; design §10.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from stelae.core.errors import InvalidArgument
from stelae.core.ids import RequestId, TableId, TabletId
from stelae.core.records.timelines import SafekeeperId, TimelineConfiguration
from stelae.core.rpc import ANY_STORE, Body, Method

MEMBERS_MAX = 15
"""Of one member set."""
KEY_BYTES_MAX = 200
WRITER_BYTES_MAX = 200
PAGE_MAX = 1000
FIRST_GENERATION = 1
GENERATION_MAX = 1 << 53
"""Also of revisions; far beyond what is ever reached."""


class TimelineId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which timeline: the seed's tenant and timeline."""

    table_id: TableId
    tablet_id: TabletId

    @property
    def key(self) -> str:
        return f"{self.table_id}/{self.tablet_id}"


class TimelineRecord(msgspec.Struct, frozen=True):
    """All that is kept of one timeline: its configuration, and what of it is still to be done."""

    timeline: TimelineId
    configuration: TimelineConfiguration
    notified_generation: int = 0
    """The catalog knows the configuration of this generation."""
    delivered_generation: int = 0
    """Every member has the configuration of this generation; not only a majority."""
    departed: tuple[SafekeeperId, ...] = ()
    """They are members no more, and may still hold something: to be excluded (of a deleted
    timeline: everybody who may hold something of it)."""
    deleted: bool = False

    @property
    def generation(self) -> int:
        return self.configuration.generation

    @property
    def is_finished(self) -> bool:
        """Nothing is left to be done."""
        return not self.unfinished

    @property
    def is_over(self) -> bool:
        """It is deleted, and nothing is left to be done: it never changes again."""
        return self.deleted and self.is_finished

    @property
    def unfinished(self) -> tuple[str, ...]:
        """What is left to be done, in words."""
        left: list[str] = []
        if self.configuration.is_joint:
            left.append("joint")
        elif self.delivered_generation < self.generation and not self.deleted:
            left.append("undelivered")
        if self.departed:
            left.append("not excluded")
        if self.notified_generation < self.generation:
            left.append("not notified")
        return tuple(left)

    def joint_with(self, desired: tuple[SafekeeperId, ...]) -> TimelineRecord:
        """Step 3: the same members, and those desired."""
        assert not self.configuration.is_joint
        sk_set = self.configuration.sk_set
        return self._with(TimelineConfiguration(self.generation + 1, sk_set, desired))

    def switched(self) -> TimelineRecord:
        """Step 8: the new members alone."""
        assert self.configuration.new_sk_set is not None
        new = self.configuration.new_sk_set
        return self._with(TimelineConfiguration(self.generation + 1, new))

    def aborted(self) -> TimelineRecord:
        """Back to the old members alone."""
        assert self.configuration.is_joint
        old = self.configuration.sk_set
        return self._with(TimelineConfiguration(self.generation + 1, old))

    def removed(self) -> TimelineRecord:
        """The timeline is deleted; whoever may hold something of it is to delete it for good."""
        held = {*self.departed, *self.configuration.members}
        configuration = TimelineConfiguration(self.generation + 1, self.configuration.sk_set)
        return msgspec.structs.replace(
            self, configuration=configuration, departed=tuple(sorted(held)), deleted=True
        )

    def _with(self, configuration: TimelineConfiguration) -> TimelineRecord:
        """With the next configuration; whoever is in none of its sets has departed."""
        held = {*self.departed, *self.configuration.members} - set(configuration.members)
        return msgspec.structs.replace(
            self, configuration=configuration, departed=tuple(sorted(held))
        )


class StoredRecord(msgspec.Struct, frozen=True):
    """A record as it was written: when (for people to read) and by whom."""

    revision: int
    """Grows by one with each write of this timeline's record; what a CAS compares."""
    record: TimelineRecord
    at: float
    writer: str
    nonce: str
    """The writer's own name of this write: by it a repeated request is recognised."""


class MigrationOrder(msgspec.Struct, frozen=True, array_like=True):
    """What operators want of a timeline's members; the masters keep it until that is decided, so
    that an order which was acknowledged outlives whoever took it."""

    timeline: TimelineId
    desired: tuple[SafekeeperId, ...] | None
    """None: the change under way is to be taken back."""
    request: RequestId
    """Which order it is. Of one timeline that which came last counts."""


class CasReply(Body, frozen=True):
    """``done``: this very write was carried out, now or by an earlier copy of the request.

    ``current`` is what is stored now; if it was done, somebody may have written after it.
    """

    done: bool
    current: StoredRecord | None


class ConfigurationStore(Protocol):
    """What a driver asks of the store. Every call ends by its deadline, in an answer or an error.

    After `OutcomeUnknown` a ``cas`` may or may not have been carried out: repeat it, as it was.
    """

    async def get(self, timeline: TimelineId, *, timeout_s: float) -> StoredRecord | None: ...

    async def cas(
        self,
        record: TimelineRecord,
        expected_revision: int,
        *,
        writer: str,
        nonce: str,
        timeout_s: float,
    ) -> CasReply:
        """Write the record if its timeline's is still ``expected_revision`` (0: there is none)."""
        ...

    async def list(
        self, table_id: TableId | None, after: TimelineId | None, limit: int, *, timeout_s: float
    ) -> tuple[StoredRecord, ...]:
        """Records (of one table) in the order of their keys, after the one named; those that are
        over may be left out."""
        ...

    async def history(
        self, timeline: TimelineId, after_revision: int, limit: int, *, timeout_s: float
    ) -> tuple[StoredRecord, ...]:
        """All that was ever written of a timeline, oldest first, after the revision named."""
        ...


# ---- what may follow what -------------------------------------------------------------------


def check_name(name: str) -> None:
    """Whether the store takes a table's or tablet's id. Raises InvalidArgument."""
    is_good = 0 < len(name.encode()) <= KEY_BYTES_MAX // 2 and name.isprintable()
    _require(is_good and "/" not in name, "its name")


def check_record(record: TimelineRecord) -> None:
    """Whether a record is one at all. Raises InvalidArgument."""
    configuration = record.configuration
    check_name(record.timeline.table_id)
    check_name(record.timeline.tablet_id)
    _require(0 < configuration.generation <= GENERATION_MAX, "its generation")
    for members in configuration.member_sets:
        _require(0 < len(members) <= MEMBERS_MAX, f"sets have 1 to {MEMBERS_MAX} members")
        _require(len(set(members)) == len(members), "a member is named twice")
        _require(min(members) > 0, "ids of safekeepers are positive")
    reached = max(record.notified_generation, record.delivered_generation)
    _require(0 <= reached <= record.generation, "what is not written yet cannot be known")
    if not record.deleted:
        _require(not set(record.departed) & set(configuration.members), "a member has not departed")


def check_succession(old: TimelineRecord | None, new: TimelineRecord) -> None:
    """Whether a step of the procedure leads from ``old`` to ``new``. Raises InvalidArgument."""
    check_record(new)
    configuration = new.configuration
    if old is None:
        first = configuration.generation == FIRST_GENERATION and not configuration.is_joint
        _require(first and not new.deleted, "it begins with generation 1 and one set")
        return
    _require(
        new.notified_generation >= old.notified_generation
        and new.delivered_generation >= old.delivered_generation,
        "what was told once is told for ever",
    )
    if new.generation == old.generation:
        same = configuration == old.configuration and new.deleted == old.deleted
        _require(same, "of one generation there is one configuration")
        _require(set(new.departed) <= set(old.departed), "nobody departs within a generation")
        return
    _require(new.generation == old.generation + 1, "generations grow by one")
    _require(not old.deleted, "it is deleted")
    _check_step(old, new)


def _check_step(old: TimelineRecord, new: TimelineRecord) -> None:
    held = {*old.departed, *old.configuration.members}
    if new.deleted:
        _require(set(new.departed) == held, "all that hold something are to delete it")
        _require(new.configuration == old.removed().configuration, "members stay, to be told")
        return
    members = set(new.configuration.members)
    _require(set(new.departed) == held - members, "who leaves is to be excluded")
    if old.configuration.is_joint:
        _require(not new.configuration.is_joint, "one change is finished before the next")
        _require(new.configuration.sk_set in old.configuration.member_sets, "neither of both sets")
    else:
        _require(new.configuration.is_joint, "a change begins with a joint configuration")
        _require(new.configuration.sk_set == old.configuration.sk_set, "the old members stay")


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise InvalidArgument(f"the configuration cannot be stored: {rule}")


# ---- messages -------------------------------------------------------------------------------


class GetConfiguration(Body, frozen=True):
    timeline: TimelineId


class ConfigurationReply(Body, frozen=True):
    """None: there never was such a timeline."""

    stored: StoredRecord | None


class CasConfiguration(Body, frozen=True):
    """May arrive twice or late: it is carried out once, or not at all.

    Raises InvalidArgument: no step of the procedure makes such a record.
    """

    record: TimelineRecord
    expected_revision: int
    writer: str
    nonce: str


class ListConfigurations(Body, frozen=True):
    table_id: TableId | None = None
    after: TimelineId | None = None
    limit: int = PAGE_MAX


class GetConfigurationHistory(Body, frozen=True):
    timeline: TimelineId
    after_revision: int = 0
    limit: int = PAGE_MAX


class ConfigurationPage(Body, frozen=True):
    stored: tuple[StoredRecord, ...]


GET_CONFIGURATION = Method("cas_store.get", GetConfiguration, ConfigurationReply, ANY_STORE)
CAS_CONFIGURATION = Method("cas_store.cas", CasConfiguration, CasReply, ANY_STORE)
LIST_CONFIGURATIONS = Method("cas_store.list", ListConfigurations, ConfigurationPage, ANY_STORE)
CONFIGURATION_HISTORY = Method(
    "cas_store.history", GetConfigurationHistory, ConfigurationPage, ANY_STORE
)
