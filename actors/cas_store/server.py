"""The configuration store's server, and what others reach it by.

The server checks each write against the procedure's own rules, and leaves atomicity and durability
to its backend (`stelae.actors.cas_store.backends`). Several servers may stand on one PostgreSQL.
It heartbeats to every master, which is how they find it: it may listen elsewhere at each start.

Implements seed 004 ("configuration storage"); design §10. Rules:
`stelae.core.records.configurations`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from stelae.actors.cas_store.backends import Backend, Row
from stelae.actors.server.identity import listen_as, take_identity
from stelae.actors.server.master_list import MasterList
from stelae.actors.server.replaced import require_not_replaced
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    InvalidArgument,
    OutcomeUnknown,
    RetryLater,
    StelaeError,
    Unavailable,
)
from stelae.core.ids import Address, TableId
from stelae.core.messages.reports import Reporter, log_fingerprint
from stelae.core.messages.servers import HEARTBEAT, Heartbeat
from stelae.core.records.configurations import (
    CAS_CONFIGURATION,
    CONFIGURATION_HISTORY,
    GENERATION_MAX,
    GET_CONFIGURATION,
    LIST_CONFIGURATIONS,
    PAGE_MAX,
    WRITER_BYTES_MAX,
    CasConfiguration,
    CasReply,
    ConfigurationPage,
    ConfigurationReply,
    GetConfiguration,
    GetConfigurationHistory,
    ListConfigurations,
    StoredRecord,
    TimelineId,
    TimelineRecord,
    check_name,
    check_record,
    check_succession,
)
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.rpc import Call, Handlers, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)

_DEFAULTS = Settings()
_record_decoder = msgspec.msgpack.Decoder(TimelineRecord)


class CasStore:
    """One server of the configuration store. ``masters`` are told that it is there, and where."""

    info: ServerInfo

    def __init__(
        self,
        runtime: Runtime,
        backend: Backend,
        *,
        name: str,
        cluster: str,
        masters: Sequence[Address] = (),
        settings: Settings = _DEFAULTS,
    ) -> None:
        self.tasks = Tasks()
        self._runtime = runtime
        self._backend = backend
        self._name = name
        self._cluster = cluster
        self._settings = settings
        self._masters = MasterList(runtime, self.tasks, masters)
        self._servers_version = 0  # of a list that it has no use for, and need not be sent again

    async def start(self) -> None:
        instance = await take_identity(
            self._runtime, self._cluster, ServerKind.CAS_STORE, self._name
        )
        await self._backend.open()
        self.info = await listen_as(self._runtime, instance, self._handlers())
        await self._masters.begin(self._heartbeat)

    async def stop(self) -> None:
        await self._runtime.peers.close()
        await self.tasks.close()
        await self._backend.close()

    def _handlers(self) -> Handlers:
        return {
            GET_CONFIGURATION: self._get,
            CAS_CONFIGURATION: self._cas,
            LIST_CONFIGURATIONS: self._list,
            CONFIGURATION_HISTORY: self._history,
        }

    async def _heartbeat(self, master: Address) -> None:
        """Tell a master, while it is one, that this server lives. It holds no logs."""
        reporter = Reporter(log_fingerprint)
        while self._masters.has(master):
            report = reporter.next({})
            beat = Heartbeat(
                self.info,
                self._runtime.clock.monotonic(),
                number=report.number,
                since=report.since,
                digest=report.digest,
                servers_version=self._servers_version,
            )
            try:
                answered = await self._runtime.peers.call(
                    master, HEARTBEAT, beat, timeout_s=self._settings.lease_s
                )
            except StelaeError:
                self._runtime.metrics.count("cas_store_heartbeats_lost", master=master)
                reporter.unanswered()
            else:
                reply = answered.body
                require_not_replaced(reply, self.info.name)
                if not reply.is_leader:
                    self._masters.hear_of(reply.masters)
                else:
                    self._servers_version = reply.servers_version
                    await self._masters.update(reply.masters)
                if reporter.answered(report, reply):
                    continue
            await self._runtime.clock.sleep(self._settings.heartbeat_s)

    async def _get(self, call: Call[GetConfiguration]) -> Reply[ConfigurationReply]:
        row = await self._backend.get(_key(call.body.timeline))
        return Reply(ConfigurationReply(_stored(row) if row else None))

    async def _cas(self, call: Call[CasConfiguration]) -> Reply[CasReply]:
        request = call.body
        check_record(request.record)
        for name in (request.writer, request.nonce):
            if not (0 < len(name.encode()) <= WRITER_BYTES_MAX and name.isprintable()):
                raise InvalidArgument("writer and nonce have 1 to 200 printable bytes")
        _check_revision(request.expected_revision)
        row = Row(
            request.record.timeline.key,
            request.expected_revision + 1,
            request.record.generation,
            msgspec.msgpack.encode(request.record),
            self._runtime.clock.now(),
            request.writer,
            request.nonce,
        )
        current = await self._backend.get(row.key)
        if (current.revision if current else 0) == request.expected_revision:
            # The swap below compares the revision again: what was checked is what is replaced.
            check_succession(_stored(current).record if current else None, request.record)
        swap = await self._backend.swap(row)
        self._runtime.metrics.count("cas_store_writes", done=str(swap.done).lower())
        return Reply(CasReply(swap.done, _stored(swap.current) if swap.current else None))

    async def _list(self, call: Call[ListConfigurations]) -> Reply[ConfigurationPage]:
        request = call.body
        prefix = ""
        if request.table_id is not None:
            check_name(request.table_id)
            prefix = f"{request.table_id}/"
        after = _key(request.after) if request.after else ""
        rows = await self._backend.list(prefix, after, _limit(request.limit))
        return Reply(ConfigurationPage(tuple(map(_stored, rows))))

    async def _history(self, call: Call[GetConfigurationHistory]) -> Reply[ConfigurationPage]:
        request = call.body
        _check_revision(request.after_revision)
        rows = await self._backend.history(
            _key(request.timeline), request.after_revision, _limit(request.limit)
        )
        return Reply(ConfigurationPage(tuple(map(_stored, rows))))


def _key(timeline: TimelineId) -> str:
    check_name(timeline.table_id)
    check_name(timeline.tablet_id)
    return timeline.key


def _check_revision(revision: int) -> None:
    if not 0 <= revision < GENERATION_MAX:
        raise InvalidArgument(f"there is no revision {revision}")


def _limit(asked: int) -> int:
    return max(1, min(asked, PAGE_MAX))


def _stored(row: Row) -> StoredRecord:
    try:
        record = _record_decoder.decode(row.value)
    except msgspec.MsgspecError as error:
        raise CorruptData(f"configuration of {row.key}", row.revision, str(error)) from error
    if (record.timeline.key, record.generation) != (row.key, row.generation):
        raise CorruptData(f"configuration of {row.key}", row.revision, "it is of another")
    return StoredRecord(row.revision, record, row.at, row.writer, row.nonce)


class RemoteConfigurations:
    """See `ConfigurationStore`: over the servers of the store, of which any one will do."""

    def __init__(self, runtime: Runtime, servers: Callable[[], Sequence[Address]]) -> None:
        self._runtime = runtime
        self._servers = servers
        self._turn = 0

    def _server(self) -> Address:
        """The server to ask; after a failure the next one is."""
        servers = self._servers()
        if not servers:
            raise Unavailable("the configuration store", "no server of it is known")
        return servers[self._turn % len(servers)]

    async def _call(self, method: Method[Q, R], request: Q, timeout_s: float) -> R:
        try:
            reply = await self._runtime.peers.call(
                self._server(), method, request, timeout_s=timeout_s
            )
        except (RetryLater, OutcomeUnknown):
            self._turn += 1
            raise
        return reply.body

    async def get(self, timeline: TimelineId, *, timeout_s: float) -> StoredRecord | None:
        reply = await self._call(GET_CONFIGURATION, GetConfiguration(timeline), timeout_s)
        return reply.stored

    async def cas(
        self,
        record: TimelineRecord,
        expected_revision: int,
        *,
        writer: str,
        nonce: str,
        timeout_s: float,
    ) -> CasReply:
        request = CasConfiguration(record, expected_revision, writer, nonce)
        return await self._call(CAS_CONFIGURATION, request, timeout_s)

    async def list(
        self, table_id: TableId | None, after: TimelineId | None, limit: int, *, timeout_s: float
    ) -> tuple[StoredRecord, ...]:
        request = ListConfigurations(table_id, after, limit)
        return (await self._call(LIST_CONFIGURATIONS, request, timeout_s)).stored

    async def history(
        self, timeline: TimelineId, after_revision: int, limit: int, *, timeout_s: float
    ) -> tuple[StoredRecord, ...]:
        request = GetConfigurationHistory(timeline, after_revision, limit)
        return (await self._call(CONFIGURATION_HISTORY, request, timeout_s)).stored
