"""Safekeepers in the simulated world, scripted proposers, and disks that crash at a chosen step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from stelae.actors.backup.frames import MediumSpec
from stelae.actors.backup.server import Backup
from stelae.actors.master.leader.migration_ports import SafekeeperPorts
from stelae.actors.safekeeper.server import Safekeeper
from stelae.consensus.wal.messages import (
    WAL_TO_ACCEPTOR,
    WAL_TO_PROPOSER,
    AcceptorGreeting,
    AcceptorMail,
    ProposerElected,
    ProposerGreeting,
    ProposerMail,
    Refusal,
    ToAcceptor,
    ToProposer,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
)
from stelae.core.config.settings import Settings
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.records.configurations import TimelineId
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    ProposerId,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
    extended_history,
)
from stelae.core.rpc import EMPTY, Call, Empty, Reply
from stelae.core.runtime import Disk, Runtime
from stelae.simulation import Options, World
from stelae.simulation.world.instance import SimRuntime

T = TypeVar("T")
TIMELINE = TimelineId(TableId("table"), TabletId("tablet"))
OTHER = TimelineId(TableId("table"), TabletId("zother"))
SETTINGS = Settings(
    append_timeout_s=0.5,
    call_timeout_s=1.0,
    copy_piece_bytes=500,
    copy_idle_s=1.0,
    safekeeper_sweep_s=0.1,
    evict_copies=2,
)
EVICTING = Settings(
    append_timeout_s=0.5, call_timeout_s=1.0, safekeeper_sweep_s=0.1, evict_after_s=0.5
)
FILE_BYTES = 400
MEDIA = {"disk": MediumSpec(name="disk", path="disk")}


def members(generation: int, *ids: int) -> TimelineConfiguration:
    return TimelineConfiguration(generation, tuple(SafekeeperId(n) for n in ids or (1, 2, 3)))


def entry(term: int, index: int, size_bytes: int = 60) -> Entry:
    return Entry(
        term, index, EntryKind.COMMAND, f"{term}.{index}/".encode().ljust(size_bytes, b".")
    )


class SafekeepersWorld:
    """So many safekeepers, with backups to evict to; a client that calls and proposes."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.client = world.client("client")
        self.ports = SafekeeperPorts(self.client, self._find)
        self.voice = Voice(self)
        self.steps: dict[str, CrashPlan] = {}

    async def start(self, safekeepers: int, backups: int = 0) -> None:
        for n in range(1, safekeepers + 1):
            self.steps[f"sk{n}"] = CrashPlan(self.world, f"sk{n}")
            self.world.start(f"sk{n}", self._maker(n), kind="safekeeper", fixed_port=False)
        for n in range(1, backups + 1):
            self.world.start(f"b{n}", self._backup(n), kind="backup")
        await self.world.wait_ready()
        for n in range(1, safekeepers + 1):
            await self.within(n, self.server(n).adopt_id(SafekeeperId(n)))
        await self.voice.listen()

    def _maker(self, n: int) -> Callable[[SimRuntime], Safekeeper]:
        return lambda runtime: Safekeeper(
            SteppedRuntime(runtime, self.steps[f"sk{n}"]),
            name=f"sk{n}",
            cluster="c",
            masters=(),
            settings=self.settings,
            file_bytes=FILE_BYTES,
        )

    def _backup(self, n: int) -> Callable[[SimRuntime], Backup]:
        return lambda runtime: Backup(
            runtime, name=f"b{n}", cluster="c", masters=(), settings=self.settings, media=MEDIA
        )

    def server(self, n: int) -> Safekeeper:
        found: Safekeeper = self.world.server(f"sk{n}")
        return found

    def is_up(self, n: int) -> bool:
        return self.world.nodes[f"sk{n}"].ready

    def _find(self, safekeeper: SafekeeperId) -> tuple[ServerUuid, Address] | None:
        if not self.is_up(safekeeper):
            return None
        info = self.server(safekeeper).info
        return info.uuid, info.address

    async def within(self, n: int, work: Coroutine[Any, Any, T]) -> T:
        """Do work in a safekeeper's process."""
        return await self.world.spawn(f"sk{n}", work)

    async def restart(self, n: int) -> None:
        self.world.crash(f"sk{n}")
        await self.world.wait_ready(f"sk{n}")

    def see(self) -> None:
        """Tell the safekeepers who lives, as heartbeats do."""
        names = [*self.world.names("backup"), *self.world.names("safekeeper")]
        live = [self.world.server(name).info for name in names if self.world.nodes[name].ready]
        for name in self.world.names("safekeeper"):
            if self.world.nodes[name].ready:
                self.world.server(name).members.update(live)

    async def put(
        self,
        n: int,
        configuration: TimelineConfiguration,
        *,
        timeline: TimelineId = TIMELINE,
        min_term: int = 0,
        create: bool = True,
    ) -> SwitchReply | None:
        return await self.ports.put_configuration(
            SafekeeperId(n),
            timeline,
            configuration,
            min_term=min_term,
            create=create,
            timeout_s=1.0,
        )

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call that a crash cut short."""
        for _ in range(200):
            try:
                return await call()
            except StelaeError as error:
                problem = error
                await asyncio.sleep(0.05)
        raise AssertionError(f"never answered: {problem}")


class Voice:
    """Proposers by hand: what is sent is said here, and what comes back is kept."""

    def __init__(self, here: SafekeepersWorld) -> None:
        self.heard: list[ToProposer] = []
        self._here = here
        self._news = asyncio.Event()
        self._sessions = 0

    async def listen(self) -> None:
        peers = self._here.client.peers
        await peers.listen(ServerUuid("f" * 32), {WAL_TO_PROPOSER: self._on_mail})

    async def _on_mail(self, call: Call[AcceptorMail]) -> Reply[Empty]:
        self.heard += call.body.messages
        self._news.set()
        return EMPTY

    async def tell(self, n: int, *messages: ToAcceptor, timeline: TimelineId = TIMELINE) -> None:
        """Send without waiting for more than that it arrived. Raises StelaeError."""
        found = self._here._find(SafekeeperId(n))
        if found is None:
            raise StelaeError("it is down")
        peers = self._here.client.peers
        mail = ProposerMail(timeline.tablet_id, peers.address, messages)
        await peers.call(found[1], WAL_TO_ACCEPTOR, mail, timeout_s=1.0, destination=found[0])

    async def ask(
        self, n: int, *messages: ToAcceptor, timeline: TimelineId = TIMELINE
    ) -> ToProposer:
        """The answer to the last of the messages. Raises StelaeError: there is none."""
        last = messages[-1]
        await self.tell(n, *messages, timeline=timeline)
        async with asyncio.timeout(2.0):
            while True:
                for heard in self.heard:
                    if (heard.session, heard.sequence) == (last.session, last.sequence):
                        return heard
                self._news.clear()
                await self._news.wait()

    def session(
        self,
        n: int,
        proposer: str,
        term: int,
        generation: int = 1,
        *,
        timeline: TimelineId = TIMELINE,
    ) -> Session:
        self._sessions += 1
        return Session(self, n, ProposerId(proposer), term, generation, self._sessions, timeline)


class Session:
    """One proposer's talk with one safekeeper."""

    def __init__(
        self,
        voice: Voice,
        n: int,
        proposer: ProposerId,
        term: int,
        generation: int,
        number: int,
        timeline: TimelineId,
    ) -> None:
        self._voice = voice
        self.n = n
        self.proposer = proposer
        self.term = term
        self.generation = generation
        self.number = number
        self.timeline = timeline
        self.sequence = 0
        self.last = OpId(0, 0)

    def header(self) -> tuple[TabletId, ProposerId, SafekeeperId, int, int, int, int]:
        self.sequence += 1
        ids = (self.timeline.tablet_id, self.proposer, SafekeeperId(self.n))
        return (*ids, self.term, self.generation, self.number, self.sequence - 1)

    async def _ask(self, *messages: ToAcceptor) -> ToProposer:
        return await self._voice.ask(self.n, *messages, timeline=self.timeline)

    async def greet(self) -> AcceptorGreeting:
        ids = (self.timeline.tablet_id, self.proposer, SafekeeperId(self.n))
        self.sequence = 1
        greeting = ProposerGreeting(*ids, 0, 0, self.number, 0, None)
        answer = await self._ask(greeting)
        assert isinstance(answer, AcceptorGreeting)
        return answer

    async def vote(self) -> WalVoteResponse | Refusal:
        answer = await self._ask(WalVoteRequest(*self.header()))
        assert isinstance(answer, WalVoteResponse | Refusal)
        return answer

    async def elected(
        self, log: list[Entry], horizon_lsn: int = 0, *, own: Sequence[Entry] = ()
    ) -> WalAppendResponse | Refusal:
        """The proposer leads, with that log of earlier terms, and entries of its own term."""
        history = extended_history((), [*log, entry(self.term, len(log) + 1)])
        answer = await self._ask(ProposerElected(*self.header(), history, horizon_lsn))
        assert isinstance(answer, WalAppendResponse | Refusal)
        if isinstance(answer, WalAppendResponse):
            whole = [*log, *own]
            self.last = whole[answer.flush_lsn - 1].op_id if answer.flush_lsn else OpId(0, 0)
        return answer

    def request(
        self, entries: list[Entry], commit_lsn: int = 0, horizon_lsn: int = 0
    ) -> WalAppendRequest:
        previous = self.last
        if entries:
            self.last = entries[-1].op_id
        return WalAppendRequest(
            *self.header(), previous, tuple(entries), commit_lsn, horizon_lsn, 1
        )

    async def append(
        self, entries: list[Entry], commit_lsn: int = 0, horizon_lsn: int = 0
    ) -> WalAppendResponse | Refusal:
        answer = await self._ask(self.request(entries, commit_lsn, horizon_lsn))
        assert isinstance(answer, WalAppendResponse | Refusal)
        return answer

    async def lead(self, log: list[Entry]) -> None:
        """Greet, be voted for, and be elected with that log."""
        await self.greet()
        vote = await self.vote()
        assert isinstance(vote, WalVoteResponse), vote
        answer = await self.elected(log)
        assert isinstance(answer, WalAppendResponse), answer


# ---- crashes ------------------------------------------------------------------------------------


class CrashPlan:
    """Counts the steps of a disk; at the chosen one the process ends, before or after it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self.count = 0
        self.at = -1
        self.is_after = False
        self.crashed = False

    def arm(self, step: int, *, is_after: bool) -> None:
        self.at, self.is_after, self.crashed = self.count + step, is_after, False

    async def step(self, work: Callable[[], Awaitable[T]]) -> T:
        number, self.count = self.count, self.count + 1
        if number == self.at and not self.is_after:
            await self._crash()
        result = await work()
        if number == self.at:
            await self._crash()
        return result

    async def _crash(self) -> None:
        self.crashed = True
        self._world.crash(self._name)
        await asyncio.Event().wait()


class SteppedRuntime:
    """A runtime whose disk follows a plan."""

    def __init__(self, runtime: Runtime, plan: CrashPlan) -> None:
        self._runtime = runtime
        self.disk = SteppedDisk(runtime.disk, plan)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)


class SteppedDisk:
    """All that makes something durable is a step."""

    STEPS = ("replace", "write", "sync_folder", "remove", "move", "remove_folder")

    def __init__(self, disk: Disk, plan: CrashPlan) -> None:
        self._disk = disk
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._disk, name)
        if name not in self.STEPS:
            return found
        plan = self._plan

        async def stepped(*args: Any, **kwargs: Any) -> Any:
            return await plan.step(lambda: found(*args, **kwargs))

        return stepped

    async def open(self, path: str) -> Any:
        file = await self._plan.step(lambda: self._disk.open(path))
        return SteppedFile(file, self._plan)


class SteppedFile:
    def __init__(self, file: Any, plan: CrashPlan) -> None:
        self._file = file
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def sync(self) -> None:
        await self._plan.step(self._file.sync)

    def sync_at_once(self) -> bool:
        return False


def run(
    scenario: Callable[[SafekeepersWorld], Coroutine[Any, Any, None]],
    *,
    safekeepers: int = 3,
    backups: int = 0,
    seed: int | str = 1,
    settings: Settings = SETTINGS,
    options: Options | None = None,
) -> None:
    """Run a scenario with safekeepers that have their ids."""
    world = World(seed, options or Options())

    async def main() -> None:
        here = SafekeepersWorld(world, settings)
        await here.start(safekeepers, backups)
        here.see()
        await scenario(here)

    world.run(main())
