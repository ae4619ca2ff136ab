"""The catalog: what tables and tablets there are, as the state machine behind the masters' log.

One logical operation is one log entry, a `CatalogBatch` of whole records. `Catalog.apply` is
deterministic and all or nothing: every record names the generation it follows (compare-and-set),
so an entry made from an outdated look at the catalog changes nothing, on every master alike.

Invariants:
- readers see only what has been applied, that is, committed;
- of live tables no two have one name; a deleted table's or tablet's record stays for ever, so that
  a tablet the catalog does not know is never taken for a deleted one (seed, appendix A), in a form
  that costs a restart next to nothing (`stelae.coordinator.catalog.graveyard`);
- a DDL request takes effect once: its result is kept by request id in the same entry. A refusal is
  kept as well: a late copy must not be carried out after its client was told that it was refused.

Source: seed "Multi-master support for Kudu 1.0" (one batch per logical operation; strict ordering
of state changes); exactly-once results after RIFL (RAMCloud).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import msgspec

from stelae.coordinator.catalog.backups import BackupCatalog, BackupChanges, BackupState
from stelae.coordinator.catalog.graveyard import Grave, Graveyard, Records
from stelae.coordinator.catalog.heirs import Heirs
from stelae.coordinator.catalog.indexes import IndexCatalog
from stelae.coordinator.catalog.timelines import TimelineCatalog, TimelineState
from stelae.core.errors import (
    KeyReused,
    Overloaded,
    StaleRequest,
    TooLarge,
    UnknownFormat,
    decode_error,
)
from stelae.core.ids import (
    ClientId,
    RequestId,
    ServerUuid,
    TableId,
    TabletId,
    is_keyed,
    is_of_gateway,
)
from stelae.core.records.configurations import MigrationOrder, StoredRecord
from stelae.core.records.losses import LossRecord
from stelae.core.records.records import (
    Copysets,
    Rebalancing,
    SafekeeperRecord,
    ServerMark,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.tokens import AccessTokens
from stelae.core.records.turns import Turn
from stelae.core.schema.indexes import IndexletRecord

CATALOG_ID = TabletId("00000000000000000000000000000001")
"""The catalog is itself a tablet; this is its id in every cluster."""
MAX_BATCH_BYTES = 4 << 20
"""A batch beyond this is refused before it is replicated (1024 tablets need about 0.3 MB)."""
MAX_CLIENTS = 1000
"""DDL results are kept for so many clients, those that spoke last."""
MAX_HTTP_CLIENTS = 500
"""Of them, clients and keys of HTTP: anybody with a token may use any number of them, and none of
the cluster's own clients may be forgotten for it."""
MAX_RESULTS = 100
"""DDL results kept for one client that never says which answers it has; then `Overloaded`."""
SNAPSHOT_VERSION = 12
READABLE_VERSIONS = tuple(range(2, SNAPSHOT_VERSION + 1))
"""2 has deleted tables among the others; 4 knows timelines, 5 all they were, and successors, 6
orders, 7 indexlets, 8 losses, copysets, 9 parts of splits, 10 tokens, 11 backups, 12 turns"""

NO_WORD, NO_TOKENS, NO_TURN = Rebalancing(generation=0), AccessTokens(generation=0), Turn()
"""Operators have never said anything about it."""


def _is_of_http(client_id: ClientId) -> bool:
    return is_keyed(client_id) or is_of_gateway(client_id)


class CatalogBatch(msgspec.Struct, frozen=True, array_like=True):
    """One logical operation: new versions of records, and the DDL request that asked for them.

    A record of generation g replaces the one of generation g - 1; g == 1 means a new record.
    """

    tables: tuple[TableRecord, ...] = ()
    tablets: tuple[TabletRecord, ...] = ()
    request: RequestId | None = None
    result: TableId = TableId("")
    """What the request's answer is made from: the table it created or deleted."""
    refusal: bytes = b""
    """The error (`encode_error`) that the request was refused with; then nothing changes."""
    marks: tuple[ServerMark, ...] = ()
    rebalancing: Rebalancing | None = None
    safekeepers: tuple[SafekeeperRecord, ...] = ()
    timelines: tuple[StoredRecord, ...] = ()
    orders: tuple[MigrationOrder, ...] = ()
    decided: tuple[MigrationOrder, ...] = ()
    """Orders of which nothing is left to be done."""
    indexlets: tuple[IndexletRecord, ...] = ()
    losses: tuple[LossRecord, ...] = ()
    copysets: Copysets | None = None
    access: AccessTokens | None = None
    backups: BackupChanges | None = None
    turn: Turn | None = None

    def encode(self) -> bytes:
        """The log entry's body. Raises `TooLarge` for what could not be replicated."""
        data = _ENCODER.encode(self)
        if len(data) > MAX_BATCH_BYTES:
            raise TooLarge("the catalog entry of this operation", len(data), MAX_BATCH_BYTES)
        return data


class Applied(msgspec.Struct, frozen=True, tag=True):
    """The batch is part of the catalog, now or (a repeated request) since its first time.

    Of a request it tells what came of it the first time: ``refusal`` is empty if it was done.
    """

    result: TableId
    refusal: bytes = b""


class Conflict(msgspec.Struct, frozen=True, tag=True):
    """Nothing was changed: the catalog had moved on from what the batch was made from."""

    reason: str


Outcome: TypeAlias = Applied | Conflict


class _Client(msgspec.Struct, array_like=True):
    """The DDL results of one client that it may still ask for."""

    first_incomplete: int
    results: dict[int, Applied]


class _Snapshot(msgspec.Struct, array_like=True):
    version: int
    tables: list[TableRecord]
    tablets: list[TabletRecord]
    clients: list[tuple[ClientId, _Client]]
    graves: list[Grave] = []
    marks: list[ServerMark] = []
    rebalancing: Rebalancing | None = None
    timelines: TimelineState | None = None
    indexlets: list[IndexletRecord] = []
    backups: BackupState | None = None
    access: AccessTokens | None = None
    turn: Turn | None = None


_ENCODER = msgspec.msgpack.Encoder()
_BATCH = msgspec.msgpack.Decoder(CatalogBatch)
_SNAPSHOT = msgspec.msgpack.Decoder(_Snapshot)


class Catalog:
    """Tables and tablets as of the last applied entry; the records never change."""

    def __init__(self) -> None:
        self._graveyard = Graveyard()
        self.tables = self._table_records()
        """By id, of all time; otherwise those that are not deleted, in the order of creation."""
        self.tablets = self._tablet_records()
        """The same, of tablets; those replaced in a table that lives are not buried yet."""
        self.marks: dict[ServerUuid, ServerMark] = {}
        """Tservers of which operators want something special, or once did."""
        self.rebalancing, self.access, self.turn = NO_WORD, NO_TOKENS, NO_TURN
        self.timelines = TimelineCatalog()
        """Safekeepers, and the configurations of timelines."""
        self.indexes, self.backups = IndexCatalog(), BackupCatalog()
        self.heirs = Heirs()
        self.altered: dict[TableId, None] = {}
        """Live tables whose tablets may have to be told of a newer schema or name."""
        self._names: dict[str, TableId] = {}
        self._of_table: dict[TableId, list[TabletId]] = {}
        self._replaced: dict[TableId, list[TabletId]] = {}
        self._successors: dict[TabletId, TabletId] = {}
        self._of_owner: dict[tuple[ServerUuid, int], dict[TabletId, None]] = {}
        self._groups: dict[TabletId, None] = {}
        self._of_member: dict[ServerUuid, dict[TabletId, None]] = {}
        self._opening: dict[TabletId, None] = {}
        self._clients: dict[ClientId, _Client] = {}  # least recent first
        self.applied = 0
        """Entries applied since this object was made: changes whenever a reader may see more."""

    def _table_records(self) -> Records[TableId, TableRecord]:
        return Records(lambda table_id: self._graveyard.table(table_id))

    def _tablet_records(self) -> Records[TabletId, TabletRecord]:
        return Records(lambda tablet_id: self._graveyard.tablet(tablet_id))

    # ---- state machine ----------------------------------------------------------------------

    def apply(self, index: int, term: int, command: bytes) -> Outcome:
        """Apply a committed entry; the same on every master, whatever it was made from.

        Raises UnknownFormat: a newer version wrote it. To pass it over would be another state than
        the other masters have.
        """
        del term  # the log's order is all that counts
        try:
            batch = _BATCH.decode(command)
        except msgspec.ValidationError as error:
            found = f"newer than {SNAPSHOT_VERSION} ({error})"
            raise UnknownFormat(
                f"entry {index} of the masters' log", found, str(SNAPSHOT_VERSION)
            ) from error
        self.applied += 1
        request = batch.request
        if request is not None:
            if (known := self._known_result(request)) is not None:
                return known
            client = self._clients.get(request.client_id)
            is_other = is_keyed(request.client_id)  # of a key that has one request
            if client is not None and (is_other or request.sequence < client.first_incomplete):
                return Conflict(f"request {request.sequence} is another, or was answered long ago")
        refusal = self._refusal(batch)
        if refusal:
            return Conflict(refusal)
        self._commit(batch)
        outcome = Applied(batch.result, batch.refusal)
        if request is not None:
            self._remember(request, outcome)
        return outcome

    def _refusal(self, batch: CatalogBatch) -> str:
        """Why the batch does not follow from what is there; empty if it does."""
        for table in batch.tables:
            present = self.tables.get(table.table_id)
            if table.generation != (present.generation if present else 0) + 1:
                return f"table {table.name!r} has changed meanwhile"
            if table.state is not TableState.DELETED:
                holder = self._names.get(table.name)
                if holder is not None and holder != table.table_id:
                    return f"there is a table {table.name!r} already"
        for tablet in batch.tablets:
            known = self.tablets.get(tablet.tablet_id)
            if tablet.generation != (known.generation if known else 0) + 1:
                return f"tablet {tablet.tablet_id} has changed meanwhile"
        for mark in batch.marks:
            noted = self.marks.get(mark.uuid)
            if mark.generation != (noted.generation if noted else 0) + 1:
                return f"what is wanted of server {mark.name} has changed meanwhile"
        spread = batch.rebalancing
        if spread is not None and spread.generation != self.rebalancing.generation + 1:
            return "what is wanted of rebalancing has changed meanwhile"
        if batch.access is not None and batch.access.generation != self.access.generation + 1:
            return "the access tokens have changed meanwhile"
        if batch.turn is not None and batch.turn.generation != self.turn.generation + 1:
            return "whose turn it is has changed meanwhile"
        refusal = self.timelines.refusal(batch.safekeepers, batch.timelines)
        refusal = refusal or self.backups.refusal(batch.losses, batch.copysets)
        return refusal or self.indexes.refusal(batch.indexlets, self.tables, batch.tables)

    def _commit(self, batch: CatalogBatch) -> None:
        """Tablets, then tables, then names: all in one turn, so that no reader sees a part."""
        for mark in batch.marks:
            self.marks[mark.uuid] = mark
        self.rebalancing = batch.rebalancing or self.rebalancing
        self.access = batch.access or self.access
        self.turn = batch.turn or self.turn
        self.timelines.commit(batch.safekeepers, batch.timelines)
        self.timelines.order(batch.orders, batch.decided)
        self.indexes.commit(batch.indexlets, batch.tables)
        self.backups.commit(batch.losses, batch.copysets, batch.backups)
        for tablet in batch.tablets:
            self._put_tablet(tablet)
        for table in batch.tables:
            before = self.tables.get(table.table_id)
            if before is not None and self._names.get(before.name) == table.table_id:
                del self._names[before.name]
            self.tables[table.table_id] = table
            self._of_table.setdefault(table.table_id, [])
            self._put_name(table)
            self._bury_deleted(table)

    def _bury_deleted(self, table: TableRecord) -> None:
        """Once a table and all its tablets are gone, nothing of them ever changes again."""
        table_id = table.table_id
        of_table = self._of_table.get(table_id, [])
        hidden = [self._successors[i] for i in of_table if i in self._successors]
        had = [*self._replaced.get(table_id, ()), *hidden, *of_table]
        tablets = [self.tablets[tablet_id] for tablet_id in had]
        if table.state is not TableState.DELETED or not all(t.state.is_gone for t in tablets):
            return
        self._graveyard.bury(table, tablets)
        del self.tables[table_id], self._of_table[table_id]
        self._replaced.pop(table_id, None)
        for tablet_id in had:
            del self.tablets[tablet_id]

    def _put_name(self, table: TableRecord) -> None:
        self.altered.pop(table.table_id, None)
        if table.state is not TableState.DELETED:
            self._names[table.name] = table.table_id
            if table.schema.version > 1 or table.renames or table.resizing or table.change:
                self.altered[table.table_id] = None

    def _put_tablet(self, tablet: TabletRecord) -> None:
        before = self.tablets.get(tablet.tablet_id)
        self._put_in_table(tablet, before)
        if before is not None:
            self._unplace(before)
        self.heirs.put(tablet, before)
        self.tablets[tablet.tablet_id] = tablet
        if tablet.state.is_gone or tablet.state is TabletState.RUNNING:
            self._opening.pop(tablet.tablet_id, None)
        else:
            self._opening[tablet.tablet_id] = None
        if not tablet.state.is_gone:
            self._place(tablet)

    def _put_in_table(self, tablet: TabletRecord, before: TabletRecord | None) -> None:
        """Among the tablets of its table, or the successors of some, or those replaced."""
        in_table = self._of_table.setdefault(tablet.table_id, [])
        replaced = tablet.state is TabletState.REPLACED
        is_new = before is None or before.succeeds != tablet.succeeds
        if before is not None and (is_new or (replaced and before.state is not tablet.state)):
            if before.succeeds:
                if self._successors.get(before.succeeds) == tablet.tablet_id:
                    del self._successors[before.succeeds]
            else:
                in_table.remove(tablet.tablet_id)
            is_new = True
        if is_new and replaced:
            self._replaced.setdefault(tablet.table_id, []).append(tablet.tablet_id)
        elif is_new and tablet.succeeds:
            self._successors[tablet.succeeds] = tablet.tablet_id
        elif is_new:
            in_table.append(tablet.tablet_id)

    def _place(self, tablet: TabletRecord) -> None:
        if tablet.configuration is None:
            owner = (tablet.owner, tablet.owner_incarnation)
            self._of_owner.setdefault(owner, {})[tablet.tablet_id] = None
            return
        self._groups[tablet.tablet_id] = None
        for peer in tablet.configuration.peers:
            self._of_member.setdefault(peer.uuid, {})[tablet.tablet_id] = None

    def _unplace(self, tablet: TabletRecord) -> None:
        if tablet.configuration is None:
            owner = (tablet.owner, tablet.owner_incarnation)
            owned = self._of_owner.get(owner, {})
            owned.pop(tablet.tablet_id, None)
            if not owned:
                self._of_owner.pop(owner, None)
            return
        if tablet.state.is_gone:
            return
        del self._groups[tablet.tablet_id]
        for peer in tablet.configuration.peers:
            held = self._of_member[peer.uuid]
            del held[tablet.tablet_id]
            if not held:
                del self._of_member[peer.uuid]

    def snapshot(self) -> bytes:
        """Everything, for a new or far-behind master."""
        state = _Snapshot(
            SNAPSHOT_VERSION,
            list(self.tables.values()),
            list(self.tablets.values()),
            list(self._clients.items()),
            self._graveyard.graves,
            list(self.marks.values()),
            self.rebalancing,
            self.timelines.state(),
            self.indexes.state(),
            self.backups.state(),
            self.access,
            self.turn,
        )
        return _ENCODER.encode(state)

    def restore(self, data: bytes) -> None:
        """Become what `snapshot` described."""
        state = _SNAPSHOT.decode(data)
        if state.version not in READABLE_VERSIONS:
            known = f"{READABLE_VERSIONS[0]} to {SNAPSHOT_VERSION}"
            raise UnknownFormat("a snapshot of the masters' catalog", str(state.version), known)
        self._graveyard = Graveyard(state.graves)
        self.tables = self._table_records()
        self.tables.update((table.table_id, table) for table in state.tables)
        self.tablets = self._tablet_records()
        self._clients = dict(state.clients)
        self.marks = {mark.uuid: mark for mark in state.marks}
        self.rebalancing = state.rebalancing or NO_WORD
        self.timelines = TimelineCatalog(state.timelines)
        self.indexes = IndexCatalog(state.indexlets)
        self.backups = BackupCatalog(state.backups)
        self.access, self.turn = state.access or NO_TOKENS, state.turn or NO_TURN
        self._names, self.altered = {}, {}
        for table in state.tables:
            self._put_name(table)
        self._of_table = {table.table_id: [] for table in state.tables}
        self._replaced, self._successors, self.heirs = {}, {}, Heirs()
        self._of_owner, self._of_member, self._groups, self._opening = {}, {}, {}, {}
        for tablet in state.tablets:
            self._put_tablet(tablet)
        for table in state.tables:
            self._bury_deleted(table)
        self.applied += 1

    # ---- exactly once -----------------------------------------------------------------------

    def _known_result(self, request: RequestId) -> Applied | None:
        client = self._clients.get(request.client_id)
        return None if client is None else client.results.get(request.sequence)

    def result_of(self, request: RequestId) -> TableId | None:
        """The result of a request that took effect before, or None if it is new.

        Raises:
            Rejected: what it was refused with before; KeyReused: its key stood for another.
            StaleRequest: the client has already said that it has this answer.
            Overloaded: the client keeps too many answers waiting for its word.
        """
        known = self._known_result(request)
        if known is not None and known.refusal:
            raise decode_error(known.refusal)
        if known is not None:
            return known.result
        client = self._clients.get(request.client_id)
        if client is None:
            return None
        if is_keyed(request.client_id):
            raise KeyReused
        if request.sequence < client.first_incomplete:
            raise StaleRequest(request.client_id, request.sequence, client.first_incomplete)
        if sum(n >= request.first_incomplete for n in client.results) >= MAX_RESULTS:
            raise Overloaded(f"client {request.client_id}'s unconfirmed requests", MAX_RESULTS)
        return None

    def _remember(self, request: RequestId, result: Applied) -> None:
        client = self._clients.pop(request.client_id, None) or _Client(0, {})
        client.first_incomplete = max(client.first_incomplete, request.first_incomplete)
        client.results[request.sequence] = result
        for sequence in [s for s in client.results if s < client.first_incomplete]:
            del client.results[sequence]
        self._clients[request.client_id] = client
        if _is_of_http(request.client_id):
            of_http = [name for name in self._clients if _is_of_http(name)]
            for name in of_http[: max(len(of_http) - MAX_HTTP_CLIENTS, 0)]:
                del self._clients[name]
        while len(self._clients) > MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]

    # ---- readers ----------------------------------------------------------------------------

    def find(self, name: str) -> TableRecord | None:
        """The live table of that name."""
        table_id = self._names.get(name)
        return None if table_id is None else self.tables[table_id]

    def live_tables(self) -> list[TableRecord]:
        """Tables that are not deleted, by name."""
        return [self.tables[self._names[name]] for name in sorted(self._names)]

    def every_table(self) -> Iterator[TableRecord]:
        """Those deleted first."""
        return itertools.chain(self._graveyard.tables(), self.tables.values())

    def tablets_of(self, table_id: TableId) -> list[TabletRecord]:
        """A table's tablets by number, one of each, deleted or not."""
        records = [self.tablets[tablet_id] for tablet_id in self._of_table.get(table_id, ())]
        buried = self._graveyard.tablets_of(table_id)
        records += [each for each in buried if each.state is not TabletState.REPLACED]
        return sorted(records, key=lambda record: record.number)

    def successor_of(self, tablet_id: TabletId) -> TabletRecord | None:
        """The live tablet that is to be in this one's place."""
        successor = self._successors.get(tablet_id)
        return None if successor is None else self.tablets[successor]

    def successors(self) -> list[TabletRecord]:
        """All of them, in the order in which they were begun."""
        return [self.tablets[tablet_id] for tablet_id in self._successors.values()]

    def live_tablets(self) -> Iterator[TabletRecord]:
        """Tablets neither deleted nor replaced, in the order of creation."""
        return (t for t in self.tablets.values() if not t.state.is_gone)

    @property
    def live_count(self) -> int:
        """How many they are."""
        return len(self._groups) + sum(len(owned) for owned in self._of_owner.values())

    def opening_tablets(self) -> Iterator[TabletRecord]:
        """Live tablets that do not run."""
        return (self.tablets[tablet_id] for tablet_id in self._opening)

    def owned_by(self, owner: ServerUuid, incarnation: int) -> Iterable[TabletRecord]:
        """Live tablets that this run of this server owns, in the order of assignment."""
        return (self.tablets[each] for each in self._of_owner.get((owner, incarnation), ()))

    def count_owned(self, owner: ServerUuid, incarnation: int) -> int:
        """How many they are."""
        return len(self._of_owner.get((owner, incarnation), ()))

    def groups(self) -> Iterator[TabletRecord]:
        """Live tablets with ``replicas(n)``; nobody owns them."""
        return (self.tablets[tablet_id] for tablet_id in self._groups)

    def count_replicas(self, server: ServerUuid) -> int:
        """Of how many live tablets this server is a member, by their configurations here."""
        return len(self._of_member.get(server, ()))

    def mark(self, server: ServerUuid) -> ServerMark:
        """What is wanted of a server; of most nothing."""
        return self.marks.get(server) or ServerMark(server, "", generation=0)

    def rebalance_after_s(self, default_s: float) -> float:
        """Seconds of calm before replicas are spread more evenly; 0: never."""
        return default_s if self.rebalancing.after_s is None else self.rebalancing.after_s

    def owners(self) -> list[tuple[ServerUuid, int]]:
        """The runs of servers that own live tablets."""
        return list(self._of_owner)
