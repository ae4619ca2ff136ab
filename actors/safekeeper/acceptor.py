"""One timeline at work: the pure acceptor, driven over what lies on the disk.

Mail of proposers and calls of the controller wait in one bounded queue, and are taken in turns. All
that waits is taken at once, made durable in one piece (appends of many messages share one sync, and
what comes meanwhile shares the next), and only then answered: as the reply to the mail, if who sent
that takes it there and it does not take long, else by mail. Where nothing is to be made durable, or
that is done at once, the answer goes out in the very turn. Invariants: nothing is told before it is
durable, and nothing twice; nothing is told by an acceptor whose timeline was replaced or deleted
meanwhile; after a write that failed the acceptor is made anew from the disk. A timeline that nobody
asks about has no task.

Neon RFC 035, "Safekeeper changes"; design §10.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from stelae.actors.safekeeper.links import ProposerLinks
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.consensus.wal.acceptor import AcceptorReady, Answer, ControlReply, WalAcceptor
from stelae.consensus.wal.messages import (
    AcceptorMail,
    FetchedEntries,
    FetchEntries,
    SwitchConfiguration,
    ToAcceptor,
    ToProposer,
    WalAppendRequest,
)
from stelae.core.errors import (
    CorruptData,
    OutcomeUnknown,
    Overloaded,
    StelaeError,
    TabletNotReady,
)
from stelae.core.ids import Address, TabletId
from stelae.core.records.replication import Entry
from stelae.core.records.timelines import ProposerId, SwitchReply, TimelineConfiguration
from stelae.core.runtime import Runtime

logger = logging.getLogger(__name__)

MESSAGES_MAX = 4096
TIMELINE_BYTES_MAX = 16 << 20
"""Of entries that wait in one timeline's queue: twice what a proposer has under way."""
SERVER_BYTES_MAX = 256 << 20
"""The same of all timelines of a safekeeper."""
ASKS_MAX = 256
PROPOSERS_MAX = 64
FETCH_BYTES_MAX = 8 << 20
REPLY_WAIT_S = 0.25
"""So long a proposer's mail waits for its answers, at most; they are mail of their own then."""

_Ask: TypeAlias = Callable[[WalAcceptor, int], None]


class QueuedBytes:
    """Bytes of entries that wait in the queues of one safekeeper."""

    def __init__(self, limit_bytes: int = SERVER_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0


class Answers:
    """What is said to a proposer in the reply to its mail: all that is told when that mail has been
    carried out, and is durable."""

    def __init__(self, proposer: ProposerId) -> None:
        self.proposer = proposer
        self.messages: list[ToProposer] = []
        self.is_over = False
        """Nothing is added any more: the reply is on its way."""
        self._waiter: asyncio.Future[None] | None = None

    def end(self) -> None:
        """That is all."""
        self.is_over = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> tuple[ToProposer, ...]:
        """The answers, or none if they take too long."""
        if not self.is_over:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(REPLY_WAIT_S, self.end)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self.is_over = True
        return tuple(self.messages)


class ActiveTimeline:
    """A timeline of `TimelineStore`, and its acceptor, made when it is first needed."""

    def __init__(
        self,
        runtime: Runtime,
        store: TimelineStore,
        links: ProposerLinks,
        queued: QueuedBytes,
        tablet_id: TabletId,
    ) -> None:
        self.tablet_id = tablet_id
        self._runtime = runtime
        self._store = store
        self._links = links
        self._queued = queued
        self._timeline: Timeline | None = None
        """What the acceptor was made of."""
        self._acceptor: WalAcceptor | None = None
        self._inputs: deque[ToAcceptor | tuple[int, _Ask]] = deque()
        self._input_bytes = 0
        self._addresses: dict[ProposerId, Address] = {}
        self._waiting: dict[int, asyncio.Future[ControlReply]] = {}
        self._asked = 0
        self._is_busy = False
        self._is_trimming = False
        self._replies: list[Answers] = []
        """To mail that waits in the queue."""
        self._taken_replies: list[Answers] = []
        """To mail that is being carried out."""

    # ---- what others do with it -------------------------------------------------------------

    @property
    def commit_lsn(self) -> int:
        """So far it is known to be committed, and is durable here."""
        timeline = self._store.timelines[self.tablet_id]
        known = timeline.acceptor.commit_lsn
        if self._acceptor is not None and self._timeline is timeline:
            known = max(known, min(self._acceptor.commit_lsn, timeline.flush_lsn))
        return known

    @property
    def is_resting(self) -> bool:
        """Whether nothing waits, or is under way."""
        return not self._is_busy and not self._inputs

    def begin(self) -> None:
        """Make the acceptor now, and let it finish what a crash interrupted.

        Raises StelaeError: it can do nothing; of CorruptData the timeline has been told."""
        self._current()
        self._turn()

    def receive(
        self, address: Address, messages: Sequence[ToAcceptor], *, in_reply: bool = False
    ) -> Answers | None:
        """Take mail of one proposer, which was checked; what comes ``in_reply`` to it, and not as
        mail. Raises StelaeError: none of it was taken."""
        self._current()
        size_bytes = sum(map(_size_bytes, messages))
        if len(self._inputs) + len(messages) > MESSAGES_MAX:
            raise Overloaded(f"timeline {self.tablet_id}'s queue of messages", MESSAGES_MAX)
        if self._input_bytes and self._input_bytes + size_bytes > TIMELINE_BYTES_MAX:
            raise Overloaded(f"timeline {self.tablet_id}'s queue in bytes", TIMELINE_BYTES_MAX)
        queued = self._queued
        if queued.size_bytes and queued.size_bytes + size_bytes > queued.limit_bytes:
            raise Overloaded(f"{self._store.name}'s queues in bytes", queued.limit_bytes)
        for message in messages:
            self._addresses.pop(message.proposer, None)
            self._addresses[message.proposer] = address
        while len(self._addresses) > PROPOSERS_MAX:
            del self._addresses[next(iter(self._addresses))]
        self._inputs.extend(messages)
        self._count(size_bytes)
        answers = Answers(messages[0].proposer) if in_reply and messages else None
        if answers is not None:
            self._replies.append(answers)
        self._turn()
        return answers

    async def switch(
        self, configuration: TimelineConfiguration, min_term: int, timeout_s: float
    ) -> SwitchReply:
        """Adopt a configuration if it is higher, and the term with it.

        Raises ConfigurationMismatch, and as `ask` does.
        """
        call = SwitchConfiguration(self.tablet_id, configuration, min_term)
        reply = await self.ask(lambda acceptor, n: acceptor.switch(n, call), timeout_s)
        assert isinstance(reply, SwitchReply)
        return reply

    async def ask(self, ask: _Ask, timeout_s: float) -> ControlReply:
        """Make a call of the controller, in its turn; its answer, once all of it is durable.

        Raises OutcomeUnknown by the deadline, Overloaded, and what keeps the timeline from acting.
        """
        self._current()
        if len(self._waiting) >= ASKS_MAX:
            raise Overloaded(f"timeline {self.tablet_id}'s queue of calls", ASKS_MAX)
        self._asked += 1
        number = self._asked
        waiting: asyncio.Future[ControlReply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._inputs.append((number, ask))
        self._turn()
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            what = f"a change of timeline {self.tablet_id}"
            raise OutcomeUnknown(self._store.name, what, timeout_s) from None
        finally:
            self._waiting.pop(number, None)

    async def fetch(self, call: FetchEntries) -> FetchedEntries:
        """Entries that may be told of. Raises StelaeError, also if the timeline was deleted,
        replaced, or failed while they were read."""
        timeline, acceptor = self._current()
        entries: list[Entry] = []
        found = acceptor.fetchable(call)
        if found is not None:
            size_bytes = min(call.size_max_bytes, FETCH_BYTES_MAX)
            entries = await timeline.read(found[0], found[1], size_bytes)
            # Nobody else looks: of a timeline that is gone this acceptor would answer for ever.
            if self._current()[1] is not acceptor:
                raise TabletNotReady(self.tablet_id, "another one since it was asked for")
            # Meanwhile the log may have been cut, as another term has begun.
            again = acceptor.fetchable(call)
            if again is None or (entries and again[1] < entries[-1].index):
                entries = []
        return FetchedEntries(
            tuple(entries), acceptor.term, acceptor.configuration, acceptor.horizon_lsn
        )

    def checkpoint(self) -> None:
        """Keep on the disk what is known to be committed, if that has risen."""
        if self._acceptor is not None and self.is_resting:
            self._acceptor.checkpoint()
            self._turn()

    # ---- turns ------------------------------------------------------------------------------

    def _current(self) -> tuple[Timeline, WalAcceptor]:
        """The timeline that counts, and its acceptor. Raises what keeps it from doing anything."""
        timeline = self._store.timeline(self.tablet_id)
        timeline.check()
        acceptor = self._acceptor
        if acceptor is not None and self._timeline is timeline:
            return timeline, acceptor
        if self._is_busy:
            raise TabletNotReady(self.tablet_id, "being replaced")
        try:
            acceptor = WalAcceptor(
                timeline_id=self.tablet_id,
                safekeeper=self._store.safekeeper,
                state=timeline.acceptor,
                log=timeline.extent,
            )
        except CorruptData as error:
            timeline.fail(error)
            raise
        self._timeline, self._acceptor = timeline, acceptor
        return timeline, acceptor

    def _turn(self) -> None:
        """Take all that waits, and see to it that it is answered."""
        while not self._is_busy:
            try:
                timeline, acceptor = self._current()
            except StelaeError as error:
                self._drop_all(error)
                return
            self._take_all(acceptor)
            ready = acceptor.take_ready()
            if not ready:
                self._end_replies()
                return
            for alarm in ready.alarms:
                logger.error("%s", alarm)
                self._runtime.metrics.count("timeline_alarms")
            if not ready.is_durable_already and not _append_at_once(timeline, ready):
                self._is_busy = True
                work = self._make_durable(timeline, acceptor, ready)
                self._store.tasks.spawn(work, f"timeline {self.tablet_id[:8]}")
                return
            self._done(timeline, acceptor, ready)

    def _take_all(self, acceptor: WalAcceptor) -> None:
        self._taken_replies, self._replies = self._replies, []
        while self._inputs:
            given = self._inputs.popleft()
            if not isinstance(given, tuple):
                acceptor.receive(given)
                continue
            number, ask = given
            try:
                ask(acceptor, number)
            except StelaeError as error:
                self._refuse(number, error)
        self._count(-self._input_bytes)

    async def _make_durable(
        self, timeline: Timeline, acceptor: WalAcceptor, ready: AcceptorReady
    ) -> None:
        assert ready.excluded is None, "deletions are the store's"
        try:
            await timeline.carry_out(ready)
        except (StelaeError, OSError) as error:
            self._runtime.metrics.count("timeline_writes_failed")
            logger.warning("timeline %s on %s: %s", self.tablet_id, self._store.name, error)
            self._forget(acceptor, ready.answers, str(error))
        else:
            if self._store.timelines.get(self.tablet_id) is timeline:
                self._done(timeline, acceptor, ready)
            else:
                self._forget(acceptor, ready.answers, "replaced meanwhile")
        self._is_busy = False
        self._turn()

    def _done(self, timeline: Timeline, acceptor: WalAcceptor, ready: AcceptorReady) -> None:
        """All of it is durable: say so."""
        acceptor.advance(ready)
        acceptor.check_invariants()
        self._send(ready.messages)
        self._end_replies()
        for answer in ready.answers:
            waiting = self._waiting.get(answer.request)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer.reply)
        if ready.trim_to is not None:
            self.trim(timeline)

    def _send(self, messages: Sequence[ToProposer]) -> None:
        by_proposer: dict[ProposerId, list[ToProposer]] = {}
        for message in messages:
            by_proposer.setdefault(message.proposer, []).append(message)
        for proposer, some in by_proposer.items():
            answers = self._reply_to(proposer)
            if answers is not None:
                answers.messages += some
                continue
            address = self._addresses.get(proposer)
            if address is not None:
                self._links.send(address, AcceptorMail(self.tablet_id, proposer, tuple(some)))

    def _reply_to(self, proposer: ProposerId) -> Answers | None:
        """To the oldest mail of it that is being carried out, and was not answered already."""
        for answers in self._taken_replies:
            if answers.proposer == proposer and not answers.is_over:
                return answers
        return None

    def _end_replies(self) -> None:
        for answers in self._taken_replies:
            answers.end()
        self._taken_replies.clear()

    # ---- what goes wrong --------------------------------------------------------------------

    def _forget(self, acceptor: WalAcceptor, answers: Sequence[Answer], why: str) -> None:
        """What that acceptor believes may not be so."""
        assert self._acceptor is acceptor
        self._acceptor = self._timeline = None
        self._end_replies()
        for answer in answers:
            self._refuse(answer.request, TabletNotReady(self.tablet_id, f"as it was: {why}"))

    def _refuse(self, number: int, error: StelaeError) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_exception(error)

    def _drop_all(self, error: StelaeError) -> None:
        """It takes nothing any more; proposers find out by silence."""
        for given in self._inputs:
            if isinstance(given, tuple):
                self._refuse(given[0], error)
        self._inputs.clear()
        self._taken_replies, self._replies = self._replies, []
        self._end_replies()
        self._count(-self._input_bytes)

    def _count(self, size_bytes: int) -> None:
        self._input_bytes += size_bytes
        self._queued.size_bytes += size_bytes

    # ---- trimming ---------------------------------------------------------------------------

    def trim(self, timeline: Timeline) -> None:
        """Remove the files of what backups hold, in the background, if there are any."""
        log = timeline.log
        if log is None or self._is_trimming:
            return
        if log.index.trimmable(timeline.acceptor.horizon_lsn) > timeline.base_lsn:
            self._is_trimming = True
            self._store.tasks.spawn(self._trim(timeline), f"trim of {self.tablet_id[:8]}")

    async def _trim(self, timeline: Timeline) -> None:
        try:
            await timeline.trim(timeline.acceptor.horizon_lsn)
        except (StelaeError, OSError) as error:
            self._runtime.metrics.count("timeline_trims_failed")
            logger.warning("timeline %s is not trimmed yet: %s", self.tablet_id, error)
        finally:
            self._is_trimming = False


def _append_at_once(timeline: Timeline, ready: AcceptorReady) -> bool:
    """Whether it is done. What fails here fails again, and is seen to, where it is waited for."""
    if not ready.is_append:
        return False
    try:
        return timeline.append_at_once(ready.entries)
    except (StelaeError, OSError):
        return False


def _size_bytes(message: ToAcceptor) -> int:
    if isinstance(message, WalAppendRequest):
        return sum(len(entry.body) for entry in message.entries)
    return 0
