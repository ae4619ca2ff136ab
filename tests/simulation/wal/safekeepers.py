"""The ``safekeepers`` scenario: real safekeepers under real proposers, drivers, backups and faults.

Real: safekeepers, proposers of timelines, the configuration store, the migration runner, the ports
over which it calls, and the backups that evicted timelines go to. The masters' part is played by
hand: who lives, which owner has which term (in some worlds two owners get the same one), what
backups are said to hold.

Judged (`tests.simulation.wal.safekeeper_judge`): no acknowledged entry is lost or changed, one
leader per term; every step is one of the model in `spec/` (`stelae.simulation.timelines.trace`);
once the faults end, every migration ends, its members have the timeline and nobody else has, a
writer is elected and answered, and all safekeepers agree on what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.cas_store.files import FilesBackend
from stelae.actors.cas_store.server import CasStore, RemoteConfigurations
from stelae.actors.master.leader.migration_ports import SafekeeperPorts
from stelae.actors.master.leader.migration_runner import MigrationRunner, RunnerSettings
from stelae.actors.safekeeper.server import Safekeeper
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.actors.server.identity import take_identity
from stelae.actors.server.membership import Membership
from stelae.actors.tserver.tablet_log.proposer import AcceptorMailbox, TimelineProposer
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    FinishPending,
    MigrationSettings,
    MoveTo,
    Request,
)
from stelae.core.config.settings import Settings
from stelae.core.errors import Overloaded, StelaeError, TabletNotReady
from stelae.core.ids import Address, ServerUuid, TableId, TabletId
from stelae.core.messages.safekeepers import HeldTimeline
from stelae.core.records.configurations import TimelineId, TimelineRecord
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import (
    SafekeeperId,
    SafekeeperPlace,
    SafekeeperStatus,
    TimelineConfiguration,
    TimelineSource,
)
from stelae.core.tasks import Tasks
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.timelines.recorder import TimelineRecorder
from stelae.simulation.world.instance import SimRuntime
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.wal.planted_timelines import planted
from tests.simulation.wal.safekeeper_judge import TimelineJudge
from tests.simulation.wal.timelines import check_outcome, insist

TABLE = TableId("table")
MEDIA = {"disk": MediumSpec(name="disk", path="disk")}
BACKUPS = 3
DURATION_S = 10.0
FIRST_WRITER = "w1"


def draw_settings(rng: random.Random) -> Settings:
    return Settings(
        segment_bytes=4096,
        append_timeout_s=0.5,
        call_timeout_s=1.0,
        queue_bytes=1 << 16,
        wal_tick_s=0.02,
        copy_piece_bytes=rng.choice([300, 4096]),
        copy_idle_s=rng.choice([1.0, 5.0]),
        safekeeper_sweep_s=rng.choice([0.2, 1.0]),
        evict_after_s=rng.choice([0.0, 0.3, 0.3]),
        evict_copies=rng.choice([1, 2]),
    )


RUNNER = RunnerSettings(
    migration=MigrationSettings(
        call_timeout_s=0.6,
        pull_timeout_s=3.0,
        first_pause_s=0.02,
        longest_pause_s=0.5,
        settle_s=0.0,
        pings_max=2,
        stall_s=2.0,
        patience_s=6.0,
        members_min=1,
    ),
    runs_max=4,
    calls_max=16,
    pulls_max=2,
    scan_period_s=0.5,
    store_timeout_s=0.5,
)


class Life:
    """One run, and what is judged of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = rng = world.rng("safekeepers")
        self.settings = draw_settings(rng)
        self.ids = [SafekeeperId(n) for n in range(1, rng.choice([3, 4, 5]) + 1)]
        self.file_bytes = rng.choice([400, 2000])
        self.duels = rng.random() < 0.5
        """Whether two owners may get the same term: only the safekeepers' votes decide then."""
        names = ["one", "two"][: rng.choice([1, 2])]
        self.timelines = [TimelineId(TABLE, TabletId(name)) for name in names]
        self.judges = {timeline: TimelineJudge() for timeline in self.timelines}
        self.terms = dict.fromkeys(self.timelines, 0)
        self.known: dict[TimelineId, TimelineConfiguration] = {}
        """What the catalog was told last; an owner may begin with something older."""
        self.is_calm = False
        self.excludes: list[tuple[SafekeeperId, TimelineId, TimelineConfiguration]] = []
        """All that were ordered: each may arrive again, however late."""
        self.is_tended = rng.random() < 0.3
        """Whether an operator restarts safekeepers below which a disk failed, before they have
        opened what failed anew."""

    def info(self, name: str) -> ServerInfo | None:
        """What heartbeats would say of a server; None: it is down."""
        if not self.world.nodes[name].ready:
            return None
        found: ServerInfo = self.world.server(name).info
        return found

    def find(self, safekeeper: SafekeeperId) -> tuple[ServerUuid, Address] | None:
        info = self.info(f"sk{safekeeper}")
        return None if info is None else (info.uuid, info.address)

    def next_term(self, timeline: TimelineId) -> int:
        if not self.terms[timeline] or not self.duels or self.rng.random() < 0.5:
            self.terms[timeline] += 1
        return self.terms[timeline]

    def source(self, timeline: TimelineId) -> TimelineSource:
        places = [
            SafekeeperPlace(one, *place)
            for one in self.ids
            if (place := self.find(one)) is not None
        ]
        return TimelineSource(TABLE, timeline.tablet_id, self.known[timeline], tuple(places))

    async def keep_seeing(self) -> None:
        """Tell everybody who lives, as heartbeats do."""
        world = self.world
        while True:
            watched = world.names("safekeeper") + world.names("backup")
            infos = [info for name in watched if (info := self.info(name)) is not None]
            for name in world.names("safekeeper") + world.names("writer"):
                if world.nodes[name].ready:
                    world.server(name).members.update(infos)
            await asyncio.sleep(0.05)

    def count(self, metric: str) -> float:
        """Of all servers together."""
        all_of = self.world.metrics.values()
        return sum(v for m in all_of for k, v in m.counts.items() if k.split("{")[0] == metric)


# ---- writers ------------------------------------------------------------------------------------


class Writer:
    """A tablet server reduced to the proposers that it has."""

    def __init__(self, runtime: SimRuntime, life: Life, name: str) -> None:
        self.tasks = Tasks()
        self.members = Membership()
        self.answered = 0
        self._runtime = runtime
        self._life = life
        self._name = name
        self._mailbox = AcceptorMailbox(name)
        self._rng = runtime.rng

    async def start(self) -> None:
        instance = await take_identity(self._runtime, "c", ServerKind.TSERVER, self._name)
        await self._runtime.peers.listen(instance.server_uuid, self._mailbox.handlers())
        self._label = f"{self._name}.{instance.incarnation}"
        for timeline in self._life.timelines:
            self.tasks.spawn(self._own_for_ever(timeline), f"owner of {timeline.tablet_id}")

    async def stop(self) -> None:
        await self._runtime.peers.close()
        await self.tasks.close()

    async def _own_for_ever(self, timeline: TimelineId) -> None:
        life = self._life
        while True:
            await self._runtime.clock.sleep(self._rng.expovariate(1.0))
            if life.is_calm and self._name != FIRST_WRITER:
                continue  # by then the masters name one owner
            tasks = Tasks(self.tasks)
            owner = Owner(life, self, timeline, tasks)
            with contextlib.suppress(StelaeError, TimeoutError):
                await owner.work()
            owner.proposer.close()
            await tasks.close()


class Owner:
    """One proposer of one timeline, in one term of the tablet."""

    def __init__(self, life: Life, writer: Writer, timeline: TimelineId, tasks: Tasks) -> None:
        self._life = life
        self._writer = writer
        self._judge = life.judges[timeline]
        self._rng = writer._rng
        self._clock = writer._runtime.clock
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._failed: StelaeError | None = None
        self._made = 0
        self._term = life.next_term(timeline)
        self._timeline = timeline
        self.proposer = TimelineProposer(
            writer._runtime,
            life.settings,
            writer.members,
            tasks,
            writer._mailbox,
            source=life.source(timeline),
            term=self._term,
            on_progress=self._progressed,
            on_failed=self._fail,
        )

    def _fail(self, error: StelaeError) -> None:
        self._failed = error

    async def work(self) -> None:
        """Be elected, write for a while, and let go. Raises StelaeError, TimeoutError."""
        async with asyncio.timeout(20.0):
            tail = await self.proposer.elect()
        core = self._core
        # What the tail does not end with this term's own entries of is not said to be led here.
        self._judge.elected(tail[-1].term, core.proposer, tail)
        until_s = self._clock.monotonic() + self._rng.expovariate(0.3)
        while self._failed is None and self._clock.monotonic() < until_s:
            await self._clock.sleep(self._rng.expovariate(20.0))
            if self.proposer.leads:
                self._write(self._rng.choice([0, 1, 1, 2, 5]))
            if self._rng.random() < 0.1:
                self._trim()
            if self._rng.random() < 0.02:  # a rest, for evictions
                await self._clock.sleep(self._rng.uniform(0.5, 2.0))

    @property
    def _core(self) -> Any:
        return self.proposer._core

    def _write(self, count: int) -> None:
        for _ in range(count):
            self._made += 1
            name = f"{self._writer._label}/{self._term}/{self._core.proposer[:6]}/{self._made}/"
            body = name.encode().ljust(self._rng.choice([40, 40, 300]), b".")
            try:
                lsn = self.proposer.propose(body)
            except Overloaded:
                return
            self._waiting.append((lsn, body))
        self.proposer.turn()

    def _progressed(self) -> None:
        """Entries are committed, or it leads (again)."""
        core = self._core
        if self.proposer.leads:
            self._judge.leads(core.term, core.proposer)
        while self._waiting and self._waiting[0][0] <= self.proposer.committed_lsn:
            lsn, body = self._waiting.popleft()
            self._judge.answered(core.term, core.proposer, lsn, body)
            self._writer.answered += 1

    def _trim(self) -> None:
        """Backups are said to have all but the last few committed entries."""
        horizon_lsn = self.proposer.committed_lsn - self._rng.choice([0, 3, 20])
        if horizon_lsn > 0:
            self._judge.trimmed_lsn = max(self._judge.trimmed_lsn, horizon_lsn)
            self.proposer.trim(horizon_lsn)


# ---- drivers ------------------------------------------------------------------------------------


class Ports(SafekeeperPorts):
    """`MigrationPorts`: the real ones of safekeepers, the real store, and a catalog by hand."""

    def __init__(self, runtime: SimRuntime, life: Life) -> None:
        super().__init__(runtime, life.find)
        self._life = life
        self.store = RemoteConfigurations(runtime, lambda: [life.world.address("cas")])

    async def exclude(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        forever: bool,
        timeout_s: float,
    ) -> None:
        self._life.excludes.append((safekeeper, timeline, configuration))
        await super().exclude(
            safekeeper, timeline, configuration, forever=forever, timeout_s=timeout_s
        )

    async def exclude_late(self) -> None:
        """A copy of an order that somebody gave some time ago arrives."""
        if self._life.excludes:
            order = self._life.rng.choice(self._life.excludes)
            with contextlib.suppress(StelaeError):
                await super().exclude(*order, forever=False, timeout_s=1.0)

    async def notify(self, record: TimelineRecord, *, timeout_s: float) -> None:
        known = self._life.known[record.timeline]
        if record.generation > known.generation:
            self._life.known[record.timeline] = record.configuration


class Driver:
    """A controller of migrations."""

    def __init__(self, runtime: SimRuntime, life: Life) -> None:
        self.tasks = Tasks()
        statuses = dict.fromkeys(life.ids, SafekeeperStatus.ACTIVE)
        self.runner = MigrationRunner(
            runtime, self.tasks, Ports(runtime, life), lambda: statuses, RUNNER
        )

    async def start(self) -> None:
        self.runner.begin()

    async def stop(self) -> None:
        await self.tasks.close()


async def operate(life: Life) -> None:
    """Ask for changes of members, take some back; sometimes restart those whose disks failed."""
    rng, world = life.rng, life.world
    end_s = world.loop.time() + DURATION_S
    late = Ports(world.client("late"), life)
    while world.loop.time() < end_s:
        await asyncio.sleep(rng.expovariate(1.0))
        for _ in range(rng.choice([0, 1, 3])):
            world.spawn("late", late.exclude_late())
        if life.is_tended:
            restart_failed(life)
        name = rng.choice(world.names("driver"))
        if not world.nodes[name].ready:
            continue
        count = min(rng.choice([1, 2, 3, 3]), len(life.ids))
        request: Request = MoveTo(tuple(rng.sample(life.ids, count)))
        if rng.random() < 0.15:
            others: list[Request] = [Abort(), FinishPending()]
            request = rng.choice(others)
        runner = world.server(name).runner
        world.spawn(name, ask(runner, rng.choice(life.timelines), request))


async def ask(runner: MigrationRunner, timeline: TimelineId, request: Request) -> None:
    with contextlib.suppress(Overloaded):
        check_outcome(request, await runner.run(timeline, request))


def restart_failed(life: Life) -> bool:
    """What an operator does about a timeline that stopped. Whether there was one."""
    found = False
    for name in life.world.names("safekeeper"):
        if life.world.nodes[name].ready:
            timelines = life.world.server(name).timelines
            held = [timelines.describe(tablet_id) for tablet_id in timelines.held]
            if any(each.problem for each in held):
                found = True
                life.world.note("operator", f"{name} is restarted: {held}")
                life.world.crash(name)
    return found


# ---- the scenario -------------------------------------------------------------------------------


async def begin(life: Life) -> None:
    """Start the servers, and make the timelines."""
    world = life.world
    world.start(
        "cas",
        lambda runtime: CasStore(runtime, FilesBackend(runtime.disk), name="cas", cluster="c"),
        kind="cas_store",
    )
    for n in range(1, BACKUPS + 1):
        world.start(f"b{n}", partial(backup, life=life, n=n), kind="backup")
    for one in life.ids:
        world.start(
            f"sk{one}",
            partial(keeper, life=life, one=one),
            kind="safekeeper",
            fixed_port=False,
        )
    await world.wait_ready()
    for one in life.ids:
        await world.spawn(f"sk{one}", world.server(f"sk{one}").adopt_id(one))
    ports = Ports(world.client("creator"), life)
    for timeline in life.timelines:
        first = TimelineConfiguration(1, tuple(life.ids[: life.rng.choice([1, 2, 3])]))
        life.known[timeline] = first
        record = TimelineRecord(timeline, first)
        await insist(partial(ports.store.cas, record, 0, writer="creator", nonce="1", timeout_s=1))
        for one in first.sk_set:
            await insist(
                partial(
                    ports.put_configuration,
                    one,
                    timeline,
                    first,
                    min_term=0,
                    create=True,
                    timeout_s=1,
                )
            )
    for name in ("driver1", "driver2"):
        world.start(name, lambda runtime: Driver(runtime, life), kind="driver")
    for name in (FIRST_WRITER, "w2"):
        world.start(name, partial(Writer, life=life, name=name), kind="writer")
    await world.wait_ready()


def backup(runtime: SimRuntime, life: Life, n: int) -> Backup:
    return Backup(
        runtime, name=f"b{n}", cluster="c", masters=(), settings=life.settings, media=MEDIA
    )


def keeper(runtime: SimRuntime, life: Life, one: SafekeeperId) -> Safekeeper:
    return Safekeeper(
        runtime,
        name=f"sk{one}",
        cluster="c",
        masters=(),
        settings=life.settings,
        file_bytes=life.file_bytes,
    )


async def live(life: Life) -> Life:
    """A while under faults, and then the end of all that was begun."""
    world = life.world
    await begin(life)
    seeing = asyncio.ensure_future(life.keep_seeing())
    nemesis = Nemesis.begin(world, DURATION_S)
    await operate(life)
    await nemesis.finish()
    life.is_calm = True
    await world.wait_ready()
    for name in world.names("driver"):  # the next ones finish what was begun, and no more
        world.crash(name)
    await until_over(life)
    answered = {t: len(judge.acknowledged) for t, judge in life.judges.items()}
    await world.wait_until(
        lambda: all(len(life.judges[t].acknowledged) > n for t, n in answered.items()),
        120,
        "a writer is answered by each timeline",
    )
    for name in world.names("writer"):
        world.crash(name, restart=False)
    await check_logs(life)
    seeing.cancel()
    return life


async def until_over(life: Life) -> None:
    """Every migration ends; members have the timeline, in that configuration, and nobody else."""
    ports = Ports(life.world.client("judge"), life)
    world = life.world
    end_s = world.loop.time() + 180.0
    problem = "nothing was looked at"
    while problem:
        assert world.loop.time() < end_s, f"not over: {problem}"
        await asyncio.sleep(0.25)
        problem = ""
        for timeline in life.timelines:
            problem = problem or await unfinished(life, ports, timeline)


async def unfinished(life: Life, ports: Ports, timeline: TimelineId) -> str:
    """What is left to be done; empty: nothing."""
    stored = await insisted(lambda: ports.store.get(timeline, timeout_s=0.3))
    assert stored is not None
    record: TimelineRecord = stored.record
    if not record.is_finished:
        return f"{timeline.key}: {record.unfinished}"
    for one in life.ids:

        async def listed(one: SafekeeperId = one) -> list[HeldTimeline]:
            return [each async for each in ports.timelines(one, timeout_s=0.3)]

        held = await insisted(listed)
        mine = [each for each in held if each.tablet_id == timeline.tablet_id]
        if (one in record.configuration.members) != bool(mine):
            return f"{one} has {mine} of {record.configuration}"
        if mine and mine[0].configuration != record.configuration:
            return f"{one} has {mine[0]} of {record.configuration}"
    return ""


async def insisted(call: Callable[[], Awaitable[Any]]) -> Any:
    """What a call returns, once the network lets it through."""
    found: list[Any] = []

    async def once() -> None:
        found.append(await call())
        await asyncio.sleep(0)

    await insist(once)
    return found[0]


async def check_logs(life: Life) -> None:
    """What any safekeeper believes to be committed is what was."""
    for one in life.ids:
        name = f"sk{one}"
        await life.world.wait_ready(name)
        store = life.world.server(name).timelines.store("")
        for tablet_id in list(store.timelines):
            judge = life.judges[TimelineId(TABLE, tablet_id)]
            entries = await insisted(
                partial(spawn_committed_in, life.world, name, store, tablet_id)
            )
            judge.found(one, entries)


def spawn_committed_in(
    world: World, name: str, store: TimelineStore, tablet_id: TabletId
) -> asyncio.Task[list[Entry]]:
    """Run `committed_in` in the safekeeper's process."""
    return world.spawn(name, committed_in(store, tablet_id))


async def committed_in(store: TimelineStore, tablet_id: TabletId) -> list[Entry]:
    """As `committed_of`; a timeline whose disk has failed since is opened anew after a while."""
    timeline = store.timelines.get(tablet_id)
    try:
        return [] if timeline is None else await committed_of(timeline)
    except TabletNotReady:
        await asyncio.sleep(0.5)
        raise


async def committed_of(timeline: Timeline) -> list[Entry]:
    """All that it believes to be committed and has; once it is back, it may be trimmed at once."""
    while timeline.base_lsn < timeline.acceptor.commit_lsn:
        first, last = timeline.base_lsn + 1, timeline.acceptor.commit_lsn
        entries = await timeline.read(first, last, 1 << 30)
        if entries or timeline.base_lsn < first:
            assert entries, f"{timeline.tablet_id} has not {first} to {last}"
            return entries
    return []


def options(seed: int) -> Options:
    """Drawn; disks are not lost, as no quorum promises anything then."""
    rng = random.Random(f"{seed}/safekeepers")
    drawn = Options.draw(seed)
    return drawn.but(
        lost_disk_every_s=0.0,
        latency_mean_s=min(drawn.latency_mean_s, 0.005),
        sync_mean_s=min(drawn.sync_mean_s, 0.005),
        partition_every_s=rng.choice([0.0, 1.0, 3.0]),
        crash_every_s=rng.choice([0.0, 0.5, 2.0]),
        fault_duration_mean_s=rng.choice([0.3, 1.0, 2.0]),
    )


async def run(world: World, bug: str = "") -> None:
    recorder = TimelineRecorder()
    world.timelines = recorder.lines
    with planted(bug), recorder.installed():
        await live(Life(world))
    recorder.check()


SCENARIO = Scenario("safekeepers", run, options)
