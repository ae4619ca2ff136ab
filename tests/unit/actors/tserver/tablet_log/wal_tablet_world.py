"""Tablets of a ``wal`` table on real safekeepers and real backups, in the simulated world.

The masters' part is played by hand: `WalWorld.take_over` names an owner in the next term, fences
the backups and says what they hold; `WalWorld.migrate` changes the safekeepers as the seed says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.master.leader.migration_ports import SafekeeperPorts
from stelae.actors.safekeeper.server import Safekeeper
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.actors.server.identity import listen_as, take_identity
from stelae.actors.server.membership import Membership
from stelae.actors.tserver.owned_tablet.tablet import Tablet
from stelae.actors.tserver.segments.traffic import SegmentTraffic
from stelae.actors.tserver.tablet_log.factory import wal_log_of
from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox
from stelae.actors.tserver.tablet_log.recovery import Intake
from stelae.actors.tserver.tablet_log.wal_log import WalLog
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, ClientId, RequestId, ServerUuid, TableId, TabletId
from stelae.core.messages.backups import FENCE_LOGS, FenceLogs, LogInventory
from stelae.core.messages.rows import Get, Write, WriteOp, WriteReply
from stelae.core.messages.servers import RecoveryEngine, SegmentSource, TabletProgress
from stelae.core.records.configurations import TimelineId
from stelae.core.records.records import (
    ServerInfo,
    ServerKind,
    TableRecord,
    TableState,
    TabletRecord,
    TabletState,
)
from stelae.core.records.timelines import (
    SafekeeperId,
    SafekeeperPlace,
    SwitchReply,
    TimelineConfiguration,
    TimelineSource,
)
from stelae.core.rpc import Call
from stelae.core.schema.durability import wal
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema
from stelae.core.tasks import Tasks
from stelae.recovery.plan import plan_sealed
from stelae.simulation import Options, World
from stelae.simulation.world.instance import SimRuntime

SCHEMA = TableSchema.of(
    pa.schema([pa.field("id", pa.int64(), False), pa.field("value", pa.string())]), ["id"]
)
TABLET = TabletId("a" * 32)
SETTINGS = Settings(
    segment_bytes=2176,
    append_timeout_s=0.5,
    call_timeout_s=2.0,
    arrow_rows=4,
    queue_bytes=1 << 16,
    wal_tick_s=0.02,
)
MEDIA = {"disk": MediumSpec(name="disk", path="disk")}
TABLE = TableRecord(
    TableId("t" * 32), "rows", SCHEMA, Partitioning(), wal(3, ("disk",)), TableState.RUNNING
)
TIMELINE = TimelineId(TABLE.table_id, TABLET)
FILE_BYTES = 2048
T = TypeVar("T")


class Owner:
    """A tablet server with one tablet, without the rest."""

    def __init__(self, runtime: SimRuntime, name: str) -> None:
        self.tasks = Tasks()
        self.members = Membership()
        self.info: ServerInfo
        self.tablet: Tablet | None = None
        self._runtime = runtime
        self._name = name
        self._mailbox = AcceptorMailbox(name)

    async def start(self) -> None:
        instance = await take_identity(self._runtime, "c", ServerKind.TSERVER, self._name)
        self.info = await listen_as(self._runtime, instance, self._mailbox.handlers())

    async def stop(self) -> None:
        await self._runtime.peers.close()
        await self.tasks.close()
        if self.tablet is not None:
            await self.tablet.close()

    def make(self, term: int, source: TimelineSource) -> Tablet:
        """A tablet in that term; not open yet."""
        record = TabletRecord(
            TABLET, TABLE.table_id, 0, TabletState.RUNNING, term, self.info.uuid, 1
        )
        intake = Intake()
        make_log = wal_log_of(
            self._runtime,
            SETTINGS,
            self.members,
            SegmentTraffic(),
            self._mailbox,
            table=TABLE,
            record=record,
            source=source,
            intake=intake,
        )
        self.tablet = Tablet(
            self._runtime,
            SETTINGS,
            table=TABLE,
            record=record,
            make_log=make_log,
            tasks=self.tasks,
            intake=intake,
        )
        return self.tablet


class WalWorld:
    """One table with one tablet, five safekeepers of which three have its timeline, two backups."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.term = 0
        self.owner = ""
        """The newest owner's name; earlier ones may live on."""
        self.configuration = TimelineConfiguration(
            1, (SafekeeperId(1), SafekeeperId(2), SafekeeperId(3))
        )
        self.masters = world.client("masters")
        self.ports = SafekeeperPorts(self.masters, self._find)
        self._sequence = 0

    async def start(self) -> None:
        world = self.world
        for n in range(1, 6):
            world.start(f"sk{n}", self._keeper(n), kind="safekeeper", fixed_port=False)
        for n in range(1, 3):
            world.start(f"b{n}", self._backup(f"b{n}"), kind="backup")
        await world.wait_ready()
        for n in range(1, 6):
            await self._in(f"sk{n}", self.keeper(n).adopt_id(SafekeeperId(n)))
        await self._put(self.configuration.members, self.configuration, create=True)

    @staticmethod
    def _keeper(n: int) -> Callable[[SimRuntime], Safekeeper]:
        return lambda runtime: Safekeeper(
            runtime,
            name=f"sk{n}",
            cluster="c",
            masters=(),
            settings=SETTINGS,
            file_bytes=FILE_BYTES,
        )

    @staticmethod
    def _backup(name: str) -> Callable[[SimRuntime], Backup]:
        return lambda runtime: Backup(
            runtime, name=name, cluster="c", masters=(), settings=SETTINGS, media=MEDIA
        )

    async def _in(self, name: str, work: Coroutine[Any, Any, T], timeout_s: float = 10.0) -> T:
        """Do work in a node's process; TimeoutError if that dies, or takes too long."""
        task = self.world.spawn(name, work)
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        if not done:
            raise TimeoutError(f"work in {name}")
        return task.result()

    # ---- who is who -------------------------------------------------------------------------

    def keeper(self, n: int) -> Safekeeper:
        found: Safekeeper = self.world.server(f"sk{n}")
        return found

    def timeline(self, n: int) -> Timeline | None:
        """What a safekeeper has; None: it is down, or has nothing."""
        if not self.is_up(f"sk{n}") or self.keeper(n).safekeeper_id is None:
            return None
        return self.keeper(n).timelines.store(TABLET).timelines.get(TABLET)

    def _find(self, safekeeper: SafekeeperId) -> tuple[ServerUuid, Address] | None:
        if not self.is_up(f"sk{safekeeper}"):
            return None
        info = self.keeper(safekeeper).info
        return info.uuid, info.address

    def is_up(self, name: str) -> bool:
        return self.world.nodes[name].ready

    @property
    def tablet(self) -> Tablet:
        found: Tablet | None = self.world.server(self.owner).tablet
        assert found is not None
        return found

    @property
    def is_serving(self) -> bool:
        """Whether the newest owner does."""
        server = self.world.server(self.owner) if self.owner and self.is_up(self.owner) else None
        tablet = None if server is None else server.tablet
        return tablet is not None and tablet.progress is TabletProgress.SERVING

    @property
    def log(self) -> WalLog:
        found = self.tablet._log
        assert isinstance(found, WalLog)
        return found

    def see(self) -> None:
        """Tell all owners who is live, as heartbeats do."""
        names = self.world.names("safekeeper") + self.world.names("backup")
        live = [self.world.server(name).info for name in names if self.is_up(name)]
        for name in self.world.names("tserver"):
            if self.is_up(name):
                self.world.server(name).members.update(live)

    async def keep_seeing(self) -> None:
        while True:
            self.see()
            await asyncio.sleep(0.05)

    # ---- owners -----------------------------------------------------------------------------

    async def sources(self) -> tuple[SegmentSource, ...]:
        """Fence all backups in the present term, and plan from what they hold."""
        inventories: dict[ServerInfo, LogInventory] = {}
        for name in self.world.names("backup"):
            answered = False
            while not answered:
                await self.until(partial(self.is_up, name), f"{name} comes back")
                info = self.world.server(name).info
                try:
                    reply = await self.masters.peers.call(
                        info.address, FENCE_LOGS, FenceLogs(((TABLET, self.term),)), timeout_s=1.0
                    )
                except StelaeError:
                    await asyncio.sleep(0.1)
                else:
                    (inventories[info],) = reply.body.logs
                    answered = True
        return plan_sealed(inventories)

    def source(self) -> TimelineSource:
        found = {SafekeeperId(n): self._find(SafekeeperId(n)) for n in range(1, 6)}
        places = tuple(SafekeeperPlace(n, *place) for n, place in found.items() if place)
        return TimelineSource(TABLE.table_id, TABLET, self.configuration, places)

    async def begin(self) -> Tablet:
        """Name an owner in the next term and tell it to open the tablet."""
        self.term += 1
        self.owner = f"t{self.term}"
        self.world.start(
            self.owner, lambda r: Owner(r, self.owner), kind="tserver", auto_restart=False
        )
        await self.world.wait_ready(self.owner)
        self.see()
        sources = await self.sources()
        tablet: Tablet = self.world.server(self.owner).make(self.term, self.source())
        self.world.spawn(self.owner, tablet.open(sources, RecoveryEngine.NATIVE))
        return tablet

    async def take_over(self, timeout_s: float = 60.0) -> Tablet:
        """The same, until it serves."""
        tablet = await self.begin()
        try:
            await self.world.wait_until(
                lambda: tablet.progress is not TabletProgress.OPENING, timeout_s, "the tablet opens"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}, {tablet.report().problem or 'nothing'}") from error
        if tablet.progress is not TabletProgress.PREPARED:
            raise AssertionError(f"not opened: {tablet.report().problem}")
        self.world.spawn(self.owner, self._serve(tablet))
        await self.world.wait_until(
            lambda: tablet.progress is TabletProgress.SERVING, 5.0, "it serves"
        )
        return tablet

    @staticmethod
    async def _serve(tablet: Tablet) -> None:
        tablet.serve()

    # ---- calls ------------------------------------------------------------------------------

    def request(self) -> RequestId:
        """Each of another client, so that any number may be under way."""
        self._sequence += 1
        return RequestId(ClientId(f"c{self._sequence}"), 1, 1)

    async def write(
        self,
        key: int,
        value: str,
        *,
        request: RequestId | None = None,
        op: WriteOp = WriteOp.UPSERT,
        timeout_s: float = 10.0,
        tablet: Tablet | None = None,
        owner: str = "",
    ) -> WriteReply:
        """Write a row at the newest owner, or another."""
        target = tablet or self.tablet
        body = Write(TABLET, 1, op, request or self.request(), ((key, value),))
        call = Call(body, (), timeout_s)

        async def go() -> WriteReply:
            return await target.write(call, await target.read_rows(call), None)

        return await self._in(owner or self.owner, go(), timeout_s + 1.0)

    async def get(self, key: int) -> Any:
        """The value of a row, or None."""
        call = Call(Get(TABLET, ((key,),)), (), 10.0)
        reply = await self._in(self.owner, self.tablet.get(call))
        found = reply.body.rows[0]
        return None if found is None else found[0][1]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self.world.wait_until(condition, 60.0, what)

    # ---- the migration ----------------------------------------------------------------------

    async def migrate(
        self,
        desired: Sequence[int],
        before_final: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Neon RFC 035, steps 3 to 9, by one driver that never gives up. A new member begins
        empty: the proposer brings it up."""
        before = self.configuration
        wanted = tuple(SafekeeperId(n) for n in desired)
        joint = TimelineConfiguration(before.generation + 1, before.sk_set, wanted)
        self.configuration = joint
        old = await self._put(before.sk_set, joint)
        position = max(reply.position for reply in old.values())
        term = max(reply.term for reply in old.values())
        caught_up: dict[SafekeeperId, SwitchReply] = {}
        while 2 * len(caught_up) <= len(wanted):
            found = await self._put(wanted, joint, term, create=True)
            caught_up = {k: r for k, r in found.items() if r.position >= position}
            await asyncio.sleep(0.1)
        if before_final is not None:
            await before_final()
        self.configuration = TimelineConfiguration(joint.generation + 1, wanted)
        await self._put(wanted, self.configuration)

    async def _put(
        self,
        members: Sequence[SafekeeperId],
        conf: TimelineConfiguration,
        term: int = 0,
        *,
        create: bool = False,
    ) -> dict[SafekeeperId, SwitchReply]:
        """Until a majority has it."""
        found: dict[SafekeeperId, SwitchReply] = {}
        while 2 * len(found) <= len(members):
            for member in members:
                try:
                    reply = await self.ports.put_configuration(
                        member, TIMELINE, conf, min_term=term, create=create, timeout_s=0.5
                    )
                except StelaeError:
                    await asyncio.sleep(0.05)
                else:
                    if reply is not None:
                        found[member] = reply
        return found


def run(
    scenario: Callable[[WalWorld], Coroutine[Any, Any, None]],
    *,
    seed: int | str = 1,
    options: Options | None = None,
) -> None:
    """Run a scenario in a world with servers that have started."""
    world = World(seed, options or Options())

    async def main() -> None:
        here = WalWorld(world)
        await here.start()
        seeing = asyncio.create_task(here.keep_seeing())
        try:
            await scenario(here)
        finally:
            seeing.cancel()

    world.run(main())
