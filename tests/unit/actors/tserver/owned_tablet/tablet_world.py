"""A real tablet over real backups in a calm simulated world, and a record of all its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.server.membership import Membership
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.tablet_log.factory import segment_log_of
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.actors.tserver.tablet_log.segment_log import SegmentLog
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.backups import SEAL_REPLICA, WRITE_REPLICA
from stelae.core.messages.rows import Get, Write, WriteOp, WriteReply
from stelae.core.messages.servers import RecoveryEngine, TabletProgress
from stelae.core.records.records import (
    ServerInfo,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.rpc import Call, Reply
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.simulation import Options, World
from stelae.simulation.world.instance import SimRuntime

SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())]), ["id"]
)
TABLET = TabletId("a" * 32)
OWNER = ServerUuid("c" * 32)
TERM = 1
SETTINGS = Settings(
    segment_bytes=2176, append_timeout_s=0.5, call_timeout_s=2.0, arrow_rows=4, queue_bytes=1 << 20
)
MEDIA = {
    "disk": MediumSpec(name="disk", path="disk"),
    "ram": MediumSpec(name="ram", size_bytes=1 << 20),
}


@dataclass(frozen=True, slots=True)
class Event:
    """A call of the tablet's, as it was sent or once it was answered well."""

    what: str
    """"sent", "answered" or "failed"."""
    backup: str
    body: Any

    @property
    def segment(self) -> int:
        """The segment's number in its term."""
        return int(self.body.segment_id & 0xFFFFFFFF)


class RecordingPeers:
    """The owner's `Peers`; what it sends and hears, in order."""

    def __init__(self, peers: Any) -> None:
        self._peers = peers
        self.events: list[Event] = []

    async def call(self, address: Address, method: Any, request: Any, **rest: Any) -> Reply[Any]:
        backup = address.partition(":")[0]
        self.events.append(Event("sent", backup, request))
        try:
            reply: Reply[Any] = await self._peers.call(address, method, request, **rest)
        except StelaeError:
            self.events.append(Event("failed", backup, request))
            raise
        self.events.append(Event("answered", backup, request))
        return reply

    def post(
        self,
        address: Address,
        method: Any,
        request: Any,
        done: Callable[[Reply[Any] | StelaeError], None],
        **rest: Any,
    ) -> bool:
        async def carry() -> None:
            try:
                outcome: Reply[Any] | StelaeError = await self.call(
                    address, method, request, **rest
                )
            except StelaeError as error:
                outcome = error
            done(outcome)

        asyncio.get_running_loop().create_task(carry())
        return True


class OwnerRuntime:
    """A client's runtime with recorded calls."""

    def __init__(self, runtime: SimRuntime) -> None:
        self._runtime = runtime
        self.peers = RecordingPeers(runtime.peers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


def segment_log(tablet: Tablet) -> SegmentLog:
    """Return the tablet's log, which must be one of segments."""
    log = tablet.log
    assert isinstance(log, SegmentLog)
    return log


class TabletWorld:
    """One owner's side: membership by hand, epochs into a list, requests with rising numbers."""

    def __init__(
        self,
        world: World,
        media: Sequence[str],
        *,
        settings: Settings = SETTINGS,
        schema: TableSchema = SCHEMA,
    ) -> None:
        self.world = world
        self.settings = settings
        self.schema = schema
        self.media = tuple(media)
        self.members = Membership()
        self.tasks = Tasks()
        self.runtime = OwnerRuntime(world.client("owner"))
        self.epochs: list[tuple[int, int]] = []
        """What the catalog was told: (number of the segment in its term, epoch)."""
        self.catalog_answers = asyncio.Event()
        self.catalog_answers.set()
        self._sequence = 0
        self.tablet = self.make(TERM)

    @property
    def events(self) -> list[Event]:
        return self.runtime.peers.events

    @property
    def log(self) -> SegmentLog:
        """The log of `tablet`."""
        return segment_log(self.tablet)

    def make(self, term: int) -> Tablet:
        """A tablet of the owner's in a term; not open yet."""
        table = TableRecord(
            TableId("t" * 32),
            "rows",
            self.schema,
            Partitioning(),
            segments(*self.media),
            TableState.RUNNING,
        )
        record = TabletRecord(TABLET, table.table_id, 0, TabletState.RUNNING, term, OWNER, 1)
        intake = Intake()
        make_log = segment_log_of(
            self.runtime,  # type: ignore[arg-type]
            self.settings,
            self.members,
            SegmentTraffic(),
            table=table,
            record=record,
            raise_epoch=self._raise_epoch,
            intake=intake,
        )
        return Tablet(
            self.runtime,  # type: ignore[arg-type]
            self.settings,
            table=table,
            record=record,
            make_log=make_log,
            tasks=self.tasks,
            intake=intake,
        )

    async def _raise_epoch(self, segment: int, epoch: int) -> None:
        await self.catalog_answers.wait()
        self.epochs.append((segment & 0xFFFFFFFF, epoch))

    def see(self, *names: str) -> None:
        """Let the owner see these backups, and no others."""
        self.members.update([self.info(name) for name in names])

    def info(self, name: str) -> ServerInfo:
        found: ServerInfo = self.world.server(name).info
        return found

    async def serve(self, *names: str) -> None:
        """Open the tablet on these backups and begin to serve."""
        self.see(*names)
        await self.tablet.open((), RecoveryEngine.NATIVE)
        assert self.tablet.progress is TabletProgress.PREPARED, self.tablet.report().problem
        self.tablet.serve()

    # ---- calls ------------------------------------------------------------------------------

    def request(self, sequence: int = 0, first_incomplete: int = 1) -> RequestId:
        if not sequence:
            self._sequence += 1
            sequence = self._sequence
        return RequestId(ClientId("client"), sequence, first_incomplete)

    async def write(
        self,
        *rows: tuple[Any, ...],
        op: WriteOp = WriteOp.UPSERT,
        request: RequestId | None = None,
        if_versions: tuple[int, ...] = (),
        timeout_s: float = 30.0,
        refusal: StelaeError | None = None,
    ) -> WriteReply:
        """Write rows as the tserver does it."""
        body = Write(TABLET, 1, op, request or self.request(), rows, (), if_versions)
        call = Call(body, (), timeout_s)
        return await self.tablet.write(call, await self.tablet.read_rows(call), refusal)

    async def get(self, key: int) -> Any:
        """The value of a row, or None."""
        reply = await self.tablet.get(Call(Get(TABLET, ((key,),)), (), 30.0))
        found = reply.body.rows[0]
        return None if found is None else found[0][1]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self.world.wait_until(condition, 60.0, what)

    # ---- what backups got -------------------------------------------------------------------

    def writes(self, what: str, segment: int) -> list[tuple[int, Event]]:
        """(place among all events, event) of the row writes to a segment, by its number."""
        return [
            (place, event)
            for place, event in enumerate(self.events)
            if event.what == what and _is_write(event) and event.segment == segment
        ]

    def seals(self, what: str, segment: int) -> list[tuple[int, Event]]:
        return [
            (place, event)
            for place, event in enumerate(self.events)
            if event.what == what and _is_seal(event) and event.segment == segment
        ]


def _is_write(event: Event) -> bool:
    return isinstance(event.body, WRITE_REPLICA.request)


def _is_seal(event: Event) -> bool:
    return isinstance(event.body, SEAL_REPLICA.request)


def run(
    scenario: Callable[[TabletWorld], Coroutine[Any, Any, None]],
    *,
    media: Sequence[str] = ("disk", "disk"),
    backups: int = 3,
    options: Options | None = None,
    settings: Settings = SETTINGS,
    specs: dict[str, dict[str, MediumSpec]] | None = None,
    schema: TableSchema = SCHEMA,
    machines: dict[str, str] | None = None,
) -> None:
    """Run a scenario with backups b1, b2, … that have `MEDIA`, or what ``specs`` say.

    ``machines``: of those that are not where ``options`` put them.
    """
    world = World(1, options or Options())

    def factory(name: str) -> Callable[[SimRuntime], Backup]:
        def make(runtime: SimRuntime) -> Backup:
            return Backup(
                runtime,
                name=name,
                cluster="c",
                masters=(),
                settings=settings,
                media=(specs or {}).get(name, MEDIA),
            )

        return make

    async def main() -> None:
        for n in range(1, backups + 1):
            name = f"b{n}"
            machine = (machines or {}).get(name)
            world.start(name, factory(name), kind="backup", machine=machine)
        await world.wait_ready()
        here = TabletWorld(world, media, settings=settings, schema=schema)
        await scenario(here)
        await here.tablet.close()
        await here.tasks.close()

    world.run(main())
