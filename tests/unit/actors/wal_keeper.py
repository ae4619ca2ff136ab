"""A safekeeper for tests of those who talk to one: the real acceptor, over files written whole.

Its log is one file, replaced atomically with every batch, and so is its state: slow, and honest.
Everything is durable before anything of a batch is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from stelae.actors.identity import listen_as, take_identity
from stelae.consensus.wal_acceptor import AcceptorReady, WalAcceptor
from stelae.consensus.wal_messages import (
    WAL_FETCH,
    WAL_STATUS,
    WAL_SWITCH,
    WAL_TO_ACCEPTOR,
    WAL_TO_PROPOSER,
    AcceptorMail,
    FetchedEntries,
    FetchEntries,
    ProposerMail,
    SwitchConfiguration,
    TimelineStatus,
    TimelineStatusOf,
    ToProposer,
)
from stelae.core.errors import StelaeError, TabletNotFound
from stelae.core.ids import Address, TabletId
from stelae.core.records import ServerInfo, ServerKind
from stelae.core.replication import Entry
from stelae.core.rpc import EMPTY, Call, Empty, Reply, prompt
from stelae.core.tasks import Tasks
from stelae.core.timelines import (
    AcceptorState,
    LogExtent,
    ProposerId,
    SafekeeperId,
    SwitchReply,
    TimelineConfiguration,
    history_of,
)
from stelae.simulation.instance import SimRuntime


class _Log(msgspec.Struct, array_like=True):
    base_lsn: int
    entries: list[Entry]


class Keeper:
    """A server of the simulated world with one timeline, once it is created."""

    def __init__(self, runtime: SimRuntime, name: str, number: int, tablet: TabletId) -> None:
        self.tasks = Tasks()
        self.safekeeper = SafekeeperId(number)
        self.acceptor: WalAcceptor | None = None
        self.log = _Log(0, [])
        self.info: ServerInfo
        self._runtime = runtime
        self._name = name
        self._tablet = tablet
        self._wake = asyncio.Event()
        self._work: list[Callable[[WalAcceptor], None]] = []
        self._addresses: dict[ProposerId, Address] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._requests = 0

    async def start(self) -> None:
        runtime = self._runtime
        instance = await take_identity(runtime, "c", ServerKind.SAFEKEEPER, self._name)
        try:
            state = msgspec.msgpack.decode(await runtime.disk.read("state"), type=AcceptorState)
        except FileNotFoundError:
            state = None
        if state is not None:
            await self._load(state)
        handlers: Any = {
            WAL_TO_ACCEPTOR: self._on_mail,
            WAL_STATUS: self._on_status,
            WAL_SWITCH: self._on_switch,
            WAL_FETCH: self._on_fetch,
        }
        info = await listen_as(runtime, instance, handlers)
        self.info = msgspec.structs.replace(info, safekeeper_id=self.safekeeper)
        self.tasks.spawn(self._run(), "acceptor")

    async def stop(self) -> None:
        await self._runtime.peers.close()
        await self.tasks.close()

    async def create(self, configuration: TimelineConfiguration) -> None:
        """Make the timeline, empty, unless it is here."""
        if self.acceptor is None:
            state = AcceptorState(configuration)
            await self._runtime.disk.replace("log", msgspec.msgpack.encode(_Log(0, [])))
            await self._runtime.disk.replace("state", msgspec.msgpack.encode(state))
            await self._load(state)

    async def _load(self, state: AcceptorState) -> None:
        self.log = msgspec.msgpack.decode(await self._runtime.disk.read("log"), type=_Log)
        log, entries = self.log, self.log.entries
        extent = LogExtent(log.base_lsn, log.base_lsn + len(entries), history_of(entries))
        self.acceptor = WalAcceptor(
            timeline_id=self._tablet, safekeeper=self.safekeeper, state=state, log=extent
        )

    # ---- the loop ---------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            work, self._work = self._work, []
            acceptor = self.acceptor
            if acceptor is None:
                continue
            for each in work:
                each(acceptor)
            while ready := acceptor.take_ready():
                await self._carry_out(ready)
                acceptor.advance(ready)
                acceptor.check_invariants()
                self._send(ready)

    async def _carry_out(self, ready: AcceptorReady) -> None:
        disk, log = self._runtime.disk, self.log
        assert not ready.alarms, ready.alarms
        if ready.state is not None:
            await disk.replace("state", msgspec.msgpack.encode(ready.state))
        base_lsn, entries = log.base_lsn, log.entries
        if ready.restart_after is not None:
            base_lsn, entries = ready.restart_after, []
        if ready.cut_after is not None:
            entries = [entry for entry in entries if entry.index <= ready.cut_after]
        entries = [*entries, *ready.entries]
        if ready.trim_to is not None and ready.trim_to > base_lsn:
            entries = [entry for entry in entries if entry.index > ready.trim_to]
            base_lsn = ready.trim_to
        if (base_lsn, entries) != (log.base_lsn, log.entries):
            after = _Log(base_lsn, entries)
            await disk.replace("log", msgspec.msgpack.encode(after))
            self.log = after

    def _send(self, ready: AcceptorReady) -> None:
        by_proposer: dict[ProposerId, list[ToProposer]] = {}
        for message in ready.messages:
            by_proposer.setdefault(message.proposer, []).append(message)
        for proposer, messages in by_proposer.items():
            mail = AcceptorMail(self._tablet, proposer, tuple(messages))
            self.tasks.spawn(self._deliver(self._addresses[proposer], mail), "answer")
        for answer in ready.answers:
            waiting = self._answers.pop(answer.request, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer.reply)

    async def _deliver(self, address: Address, mail: AcceptorMail) -> None:
        try:
            await self._runtime.peers.call(address, WAL_TO_PROPOSER, mail, timeout_s=2.0)
        except StelaeError:
            self._runtime.metrics.count("answers_lost")

    # ---- calls ------------------------------------------------------------------------------

    @prompt
    async def _on_mail(self, call: Call[ProposerMail]) -> Reply[Empty]:
        self._require()
        for message in call.body.messages:
            self._addresses[message.proposer] = call.body.address
            self._work.append(lambda acceptor, m=message: acceptor.receive(m))
        self._wake.set()
        return EMPTY

    async def _on_status(self, call: Call[TimelineStatusOf]) -> Reply[TimelineStatus]:
        return Reply(await self._ask(lambda acceptor, n: acceptor.status(n)))

    async def _on_switch(self, call: Call[SwitchConfiguration]) -> Reply[SwitchReply]:
        return Reply(await self._ask(lambda acceptor, n: acceptor.switch(n, call.body)))

    async def _on_fetch(self, call: Call[FetchEntries]) -> Reply[FetchedEntries]:
        acceptor, request = self._require(), call.body
        found = acceptor.fetchable(request)
        entries: list[Entry] = []
        if found is not None:
            first, last = (lsn - self.log.base_lsn for lsn in found)
            entries = self.log.entries[first - 1 : last][:20]
        body = FetchedEntries(
            tuple(entries), acceptor.term, acceptor.configuration, acceptor.horizon_lsn
        )
        return Reply(body)

    async def _ask(self, ask: Callable[[WalAcceptor, int], None]) -> Any:
        self._require()
        self._requests += 1
        number = self._requests
        waiting = self._answers[number] = asyncio.get_running_loop().create_future()
        self._work.append(lambda acceptor: ask(acceptor, number))
        self._wake.set()
        return await waiting

    def _require(self) -> WalAcceptor:
        if self.acceptor is None:
            raise TabletNotFound(self._tablet)
        return self.acceptor
