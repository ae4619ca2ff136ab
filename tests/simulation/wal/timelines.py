"""The ``timelines`` scenario: members of timelines change under writers, faults and dying drivers.

Real: the configuration store's server, the migration machine and its runner. Models: safekeepers
(`tests.simulation.wal.model_safekeepers`), writers, the catalog. Drivers die at random steps;
requests, aborts and scans overlap; the store, safekeepers and messages fail as the seed says.

Judged: what was committed is in the log of every later leader, for ever; no term is won twice; of
one generation there is one configuration, and the history only grows; once the faults end, every
migration ends, its members have the final configuration, and whoever left holds nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from stelae.actors.cas_store.files import FilesBackend
from stelae.actors.cas_store.server import CasStore, RemoteConfigurations, _stored
from stelae.actors.master.leader.migration_runner import MigrationRunner, RunnerSettings
from stelae.coordinator.timelines.migration_knowledge import Knowledge, SyncPoint
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    FinishPending,
    MigrationSettings,
    MoveTo,
    Outcome,
    Passed,
    Request,
    Verdict,
)
from stelae.core.errors import Rejected, StelaeError
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import StoredRecord, TimelineId, TimelineRecord
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SafekeeperStatus,
    SwitchReply,
    TimelineConfiguration,
)
from stelae.core.rpc import Empty
from stelae.core.tasks import Tasks
from stelae.simulation.nemesis import Nemesis
from stelae.simulation.scenarios import Scenario
from stelae.simulation.world.instance import SimRuntime
from stelae.simulation.world.options import Options
from stelae.simulation.world.world import World
from tests.simulation.wal.model_safekeepers import (
    EXCLUDE,
    LOOK,
    PING,
    PROPOSE,
    PULL,
    PUT,
    TELL,
    Copy,
    Drop,
    Entry,
    Judge,
    ModelCatalog,
    ModelSafekeeper,
    Named,
    Propose,
    ProposeReply,
    Pull,
    Put,
    Told,
    node_name,
)
from tests.simulation.world.planting import planting

CALL_S = 0.3
TIMELINE = TimelineId(TableId("table"), TabletId("tablet"))


def draw_settings(rng: random.Random) -> RunnerSettings:
    """Safety rests on no wait: also those who settle for the barest majority lose nothing."""
    migration = MigrationSettings(
        call_timeout_s=0.4,
        pull_timeout_s=1.0,
        first_pause_s=0.02,
        longest_pause_s=rng.choice([0.1, 0.5]),
        settle_s=rng.choice([0.0, 0.0, 0.1]),
        pings_max=2,
        stall_s=1.0,
        patience_s=4.0,
        members_min=1,
    )
    return RunnerSettings(
        migration=migration,
        runs_max=4,
        calls_max=16,
        pulls_max=2,
        scan_period_s=rng.choice([0.3, 2.0]),
        store_timeout_s=0.5,
    )


class Ports:
    """`MigrationPorts` over the simulated network."""

    def __init__(self, runtime: SimRuntime, world: World) -> None:
        self._runtime = runtime
        self._world = world
        self.store = RemoteConfigurations(runtime, lambda: [world.address("cas")])

    async def _call(self, name: str, method: Any, body: Any, timeout_s: float) -> Any:
        address = self._world.address(name)
        reply = await self._runtime.peers.call(address, method, body, timeout_s=timeout_s)
        return reply.body

    async def ping(self, safekeeper: SafekeeperId, *, timeout_s: float) -> None:
        await self._call(node_name(safekeeper), PING, Empty(), timeout_s)

    async def put_configuration(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        min_term: int,
        create: bool,
        timeout_s: float,
    ) -> SwitchReply | None:
        body = Put(timeline, configuration, min_term, create)
        reply: SwitchReply | None
        reply = (await self._call(node_name(safekeeper), PUT, body, timeout_s)).reply
        return reply

    async def pull_timeline(
        self,
        safekeeper: SafekeeperId,
        source: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        at_least: LogPosition,
        timeout_s: float,
    ) -> SwitchReply:
        body = Pull(timeline, source, configuration, at_least)
        reply: SwitchReply
        reply = (await self._call(node_name(safekeeper), PULL, body, timeout_s)).reply
        return reply

    async def exclude(
        self,
        safekeeper: SafekeeperId,
        timeline: TimelineId,
        configuration: TimelineConfiguration,
        *,
        forever: bool,
        timeout_s: float,
    ) -> None:
        body = Drop(timeline, configuration, forever)
        await self._call(node_name(safekeeper), EXCLUDE, body, timeout_s)

    async def notify(self, record: TimelineRecord, *, timeout_s: float) -> None:
        await self._call("catalog", TELL, Told(record), timeout_s)


class Driver:
    """A controller that may die after any step."""

    def __init__(self, runtime: SimRuntime, life: Life, name: str) -> None:
        self.tasks = Tasks()
        self._life = life
        self._name = name
        self.runner = MigrationRunner(
            runtime,
            self.tasks,
            Ports(runtime, life.world),
            lambda: life.statuses,
            life.settings,
            self._failpoint,
        )

    async def start(self) -> None:
        self.runner.begin()

    async def stop(self) -> None:
        await self.tasks.close()

    async def _failpoint(self, timeline: TimelineId, passed: Passed) -> None:
        life = self._life
        life.world.note(self._name, f"passed {passed.step.name} of {passed.generation}")
        life.steps[passed.step.name] = life.steps.get(passed.step.name, 0) + 1
        if life.faulty and life.rng.random() < life.dies:
            life.world.crash(self._name)
            await asyncio.sleep(1.0)


class Life:
    """One run, and what is judged of it."""

    def __init__(self, world: World, bug: str) -> None:
        self.world = world
        self.bug = bug
        self.rng = world.rng("timelines")
        self.ids = [SafekeeperId(n) for n in range(1, self.rng.choice([3, 4, 5, 6]) + 1)]
        self.statuses = dict.fromkeys(self.ids, SafekeeperStatus.ACTIVE)
        self.settings = draw_settings(self.rng)
        self.dies = self.rng.choice([0.0, 0.1, 0.4])
        self.cuts = self.rng.choice([0.0, 0.5])
        self.faulty = True
        self.judge = Judge()
        self.steps: dict[str, int] = {}
        self.verdicts: dict[str, int] = {}
        self.seen: list[StoredRecord] = []

    # ---- judging ------------------------------------------------------------------------------

    def check_history(self) -> None:
        """What the store's disk has: append-only, one configuration of each generation."""
        server = self.world.server("cas")
        rows = server._backend._rows_by_key.get(TIMELINE.key, []) if server else []
        history = [_stored(row) for row in rows]
        if not history:
            return
        known = min(len(self.seen), len(history))
        assert history[:known] == self.seen[:known], "the history was rewritten"
        self.seen = max(self.seen, history, key=len)
        by_generation: dict[int, TimelineConfiguration] = {}
        for stored in history:
            conf = stored.record.configuration
            assert by_generation.setdefault(conf.generation, conf) == conf
        assert list(by_generation) == sorted(by_generation)

    def copies(self) -> dict[SafekeeperId, Copy]:
        found = {one: self.world.server(node_name(one)).slot(TIMELINE).copy for one in self.ids}
        return {one: copy for one, copy in found.items() if copy is not None}

    def is_over(self) -> bool:
        """Everything that a finished record promises is so."""
        self.check_history()
        if not self.seen or self.world.server("cas") is None:
            return False
        record = self.seen[-1].record
        if not record.is_finished or len(self.world.server("cas")._backend._rows_by_key) != 1:
            return False
        copies = self.copies()
        conf = record.configuration
        assert sorted(copies) == sorted(conf.sk_set), f"{conf}: {sorted(copies)} have copies"
        for one, copy in copies.items():
            assert copy.conf == conf, f"{one} has {copy.conf}, and not {conf}"
        told = self.world.server("catalog").generation_by_key[TIMELINE.key]
        assert told == conf.generation
        return True


class Writer:
    """A proposer: gathers a configuration, asks for votes, appends, until it is refused."""

    def __init__(self, life: Life, name: str) -> None:
        self._life = life
        self._name = name
        self._rng = life.world.rng(f"writer/{name}")
        self._runtime = life.world.client(name)
        self._runs = 0
        self.wrote = 0

    async def work(self) -> None:
        while True:
            self._runs += 1
            await self._lead(f"{self._name}.{self._runs}", self._rng.choice([0, 1, 3, 8]))
            await asyncio.sleep(self._rng.expovariate(4.0))

    async def _ask(self, one: SafekeeperId, method: Any, body: Any) -> Any:
        address = self._life.world.address(node_name(one))
        try:
            reply = await self._runtime.peers.call(address, method, body, timeout_s=CALL_S)
        except (StelaeError, Rejected):
            return None
        return reply.body

    async def _lead(self, run: str, entries: int) -> None:
        life = self._life
        looks = await asyncio.gather(*(self._ask(one, LOOK, Named(TIMELINE)) for one in life.ids))
        copies = {
            one: look.copy
            for one, look in zip(life.ids, looks, strict=True)
            if look is not None and look.copy is not None
        }
        if not copies:
            return
        conf = max((copy.conf for copy in copies.values()), key=lambda conf: conf.generation)
        if not conf.agreed(copies):
            return
        voters = [one for one in conf.members if one in copies]
        self._rng.shuffle(voters)
        term = max(copies[one].term for one in voters) + 1
        votes = await self._propose(conf, term, None, voters)
        granted = {one: vote.copy for one, vote in votes.items() if vote.copy is not None}
        if not conf.agreed(granted):
            return
        log = max((copy for copy in granted.values()), key=lambda copy: copy.position).log
        life.judge.elected(term, run, log)
        for number in range(entries + 1):
            log = (*log, (term, f"{run}.{number}"))
            chosen = [one for one in conf.members if self._rng.random() < 0.9]
            acks = await self._propose(conf, term, log, chosen)
            if not conf.agreed(acks):
                return
            life.judge.acknowledged(term, log)
            self.wrote += 1
            await asyncio.sleep(self._rng.expovariate(20.0))

    async def _propose(
        self,
        conf: TimelineConfiguration,
        term: int,
        log: tuple[Entry, ...] | None,
        members: list[SafekeeperId],
    ) -> dict[SafekeeperId, ProposeReply]:
        body = Propose(TIMELINE, conf, term, log)
        replies = await asyncio.gather(*(self._ask(one, PROPOSE, body) for one in members))
        pairs = zip(members, replies, strict=True)
        return {one: reply for one, reply in pairs if reply is not None and reply.ok}


# ---- the scenario -----------------------------------------------------------------------------


async def operate(life: Life, drivers: list[str], duration_s: float) -> None:
    """Ask drivers for changes, also for several at once, and take some back."""
    rng, world = life.rng, life.world
    end_s = world.loop.time() + duration_s
    pace = rng.choice([0.5, 1.5, 5.0])
    favourites = [rng.sample(life.ids, rng.choice([1, 2, 3])) for _ in range(2)]
    fickle = rng.random() < 0.5
    while world.loop.time() < end_s:
        await asyncio.sleep(rng.expovariate(pace))
        life.check_history()
        name = rng.choice(drivers)
        server = world.server(name)
        if server is None or not world.nodes[name].ready:
            continue
        count = rng.choice([1, 2, 3, 3, min(4, len(life.ids))])
        desired = tuple(rng.choice(favourites) if fickle else rng.sample(life.ids, count))
        draw = rng.random()
        request: Request = MoveTo(desired)
        if draw < 0.25:
            request = Abort() if draw < 0.18 else FinishPending()
        world.spawn(name, ask(life, server.runner, request))
        if rng.random() < life.cuts:
            cut_off(life, name, rng.sample(life.ids, rng.choice([1, 2])))
        if rng.random() < 0.1:
            one = rng.choice(life.ids)
            is_active = life.statuses[one] is SafekeeperStatus.ACTIVE
            life.statuses[one] = SafekeeperStatus.OFFLINE if is_active else SafekeeperStatus.ACTIVE


def cut_off(life: Life, driver: str, safekeepers: list[SafekeeperId]) -> None:
    """A driver does not reach some safekeepers for a while; writers do."""
    world, names = life.world, [node_name(one) for one in safekeepers]

    def mend() -> None:
        world.unpartition([driver], names)
        world.unpartition(names, [driver])

    world.note("nemesis", f"{driver} does not reach {names}")
    world.partition([driver], names)
    world.partition(names, [driver])
    lasting_s = life.rng.expovariate(1.0)
    world.loop.call_later(lasting_s, mend, context=world.loop.context)


async def ask(life: Life, runner: MigrationRunner, request: Request) -> None:
    outcome = await runner.run(TIMELINE, request)
    life.verdicts[outcome.verdict.value] = life.verdicts.get(outcome.verdict.value, 0) + 1
    check_outcome(request, outcome)


def check_outcome(request: Request, outcome: Outcome) -> None:
    """What a caller may be told of each request."""
    always = {Verdict.WAITING, Verdict.OVERTAKEN}
    if isinstance(request, MoveTo):
        assert outcome.verdict not in (Verdict.DELETED, Verdict.NOT_FOUND), outcome
    elif isinstance(request, Abort):
        assert outcome.verdict in always | {Verdict.DONE, Verdict.ABORTED}
    else:
        assert outcome.verdict in always | {Verdict.DONE}
    if outcome.verdict is Verdict.DONE:
        assert outcome.stored is not None


async def insist(call: Callable[[], Awaitable[Any]]) -> None:
    for _ in range(100):
        with contextlib.suppress(StelaeError):
            await call()
            return
    raise AssertionError("the network lets nothing through")


async def begin(life: Life, drivers: int) -> list[str]:
    """Start the servers, make the timeline, and then start the drivers."""
    world = life.world
    world.start(
        "cas",
        lambda runtime: CasStore(runtime, FilesBackend(runtime.disk), name="cas", cluster="demo"),
        kind="cas_store",
    )
    world.start("catalog", ModelCatalog, kind="catalog")
    for one in life.ids:
        world.start(
            node_name(one),
            partial(ModelSafekeeper, me=one, bug=life.bug),
            kind="safekeeper",
        )
    names = [f"driver{n}" for n in range(drivers)]
    await world.wait_ready()
    client = Ports(world.client("creator"), world)
    first = TimelineConfiguration(1, tuple(life.ids[: life.rng.choice([1, 2, 3])]))
    record = TimelineRecord(TIMELINE, first)
    await insist(lambda: client.store.cas(record, 0, writer="creator", nonce="1", timeout_s=1))
    for one in first.sk_set:
        put = Put(TIMELINE, first, create=True)
        await insist(partial(client._call, node_name(one), PUT, put, 1))
    for name in names:
        world.start(name, partial(Driver, life=life, name=name), kind="driver")
    return names


async def run(world: World, bug: str = "") -> None:
    with planted(bug):
        await live(Life(world, bug))


async def live(life: Life, duration_s: float = 12.0) -> Life:
    world = life.world
    drivers = await begin(life, life.rng.choice([1, 2, 3]))
    writers = [Writer(life, f"writer{n}") for n in range(life.rng.choice([1, 2, 2]))]
    writing = [asyncio.ensure_future(writer.work()) for writer in writers]
    nemesis = Nemesis.begin(world, duration_s)
    await operate(life, drivers, duration_s)
    if life.rng.random() < 0.5:  # an idle timeline: nobody writes any more
        await end(writing)
        writing = []
    life.faulty = False
    await nemesis.finish()
    for one in life.ids:
        life.statuses[one] = SafekeeperStatus.ACTIVE
    await world.wait_until(life.is_over, 120, "every migration ends", poll_s=0.25)
    await end(writing)
    before = len(life.judge.committed)
    last = Writer(life, "last")
    async with asyncio.timeout(120):
        while not last.wrote:
            await last._lead(f"last.{last._runs}", 1)
            last._runs += 1
            await asyncio.sleep(0.2)
    assert len(life.judge.committed) > before
    life.check_history()
    return life


async def end(tasks: Sequence[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


def options(seed: int) -> Options:
    """Drawn, with partitions in most; disks are not lost: no quorum promises anything then."""
    rng = random.Random(f"{seed}/timelines")
    return Options.draw(seed).but(
        lost_disk_every_s=0.0,
        partition_every_s=rng.choice([0.0, 0.5, 2.0]),
        fault_duration_mean_s=rng.choice([0.3, 1.0, 3.0]),
    )


# ---- planted bugs -----------------------------------------------------------------------------


def _no_old_majority(self: Knowledge) -> bool:
    return any(member in self.replies for member in self.record.configuration.sk_set)


_take_sync_point = Knowledge.take_sync_point


def _no_term(self: Knowledge) -> SyncPoint:
    point = _take_sync_point(self)
    self.sync = SyncPoint(point.position, 0, point.collected)
    return self.sync


BUGS: dict[str, Any] = {
    "finish without an old majority": lambda: patch.object(
        Knowledge, "has_old_majority", _no_old_majority
    ),
    "no term bump": lambda: patch.object(Knowledge, "take_sync_point", _no_term),
    "no position check": lambda: patch.object(
        Knowledge, "has_position", lambda self, safekeeper: safekeeper in self.replies
    ),
    "exclude ignores the generation": contextlib.nullcontext,
    "pull overwrites a newer copy": contextlib.nullcontext,
}


planted = planting(BUGS)


SCENARIO = Scenario("timelines", run, options)
