"""Writes to a table with indexes, at the leader of a tablet with replicas.

What a write needs in the indexes is known when it is proposed, by the leader's schema of that
moment. It must be executed by the very same: so nothing is proposed between an alter's proposal
and its execution. A write that nobody knows the outcome of stays pending until everything proposed
before is executed, or this replica leads no more.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any

from stelae.actors.raft.replica import Replica
from stelae.actors.tserver.indexes.indexed_tablet import IndexedTablet
from stelae.actors.tserver.indexes.writes import Ticket
from stelae.actors.tserver.tablet.small_writes import SmallWrite
from stelae.core.errors import OutcomeUnknown, Rejected, StelaeError, TabletNotReady
from stelae.core.messages.rows import Write, WriteMany, WriteReply
from stelae.core.rpc import Call
from stelae.storage.entries.outcomes import answer
from stelae.storage.replicated.commands import Stamp, encode_alter
from stelae.storage.replicated.state_machine import TabletStateMachine

BARRIER_S = 5.0


class ReplicatedIndexing(IndexedTablet):
    """The part of `ReplicatedTablet` that is about indexes."""

    replica: Replica
    _machine: TabletStateMachine
    _clock_term: int
    _is_open: bool
    _altering: tuple[int, int] = (0, 0)
    """Term and version of the newest schema that was proposed."""

    @abstractmethod
    def _check_leading(self) -> None: ...

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _stamp(self) -> Stamp: ...

    @abstractmethod
    async def _command_of(self, call: Call[Write], rows: Any) -> bytes | SmallWrite: ...

    @property
    def index_term(self) -> int:
        replica = self.replica
        leads = replica.is_leader and replica.leader_ready and self._clock_term == replica.term
        return replica.term if leads else 0

    def index_committed(self) -> int:
        """Nothing is executed before it is committed."""
        return self._machine.applied_index

    async def _barrier(self, timeout_s: float) -> None:
        """Return when everything proposed before is executed. Raises as `Replica.propose`."""
        await self.replica.propose(encode_alter(self._schemas.table, self._stamp()), timeout_s)

    def check_may_fill(self) -> None:
        self._check_leading()

    async def _reach_fill_point(self, timeout_s: float) -> None:
        self._check_leading()
        await self._barrier(timeout_s)
        self._check_leading()

    def _check_not_altering(self) -> None:
        """Raises TabletNotReady: by which schema a write is executed is not known."""
        term, version = self._altering
        if term == self.replica.term and version > self._schemas.present.version:
            raise TabletNotReady(self.tablet_id, "being altered")

    async def _write_indexed(self, call: Call[Write], rows: Any) -> WriteReply:
        """As `ReplicatedTablet.write`, once the entries of its rows are in."""
        with self._as_a_copy((call.body.request,), call.timeout_s):
            return await self._write_with_entries(call, rows)

    async def _write_with_entries(self, call: Call[Write], rows: Any) -> WriteReply:
        request = call.body
        shown, columns = self._shown(request, rows)
        indexes = self._index_writes()
        deadline = self._runtime.clock.monotonic() + call.timeout_s
        ticket = await indexes.prepare(request.op, shown, columns, call.timeout_s)

        async def command() -> bytes | SmallWrite:
            self._check_leading()
            return await self._command_of(call, rows)

        outcome = await self._propose_indexed(ticket, command, deadline)
        assert isinstance(outcome, bytes), "the outcome of a write"
        return answer(outcome)

    async def _propose_indexed(self, ticket: Ticket, command: Any, deadline: float) -> object:
        indexes = self._index_writes()
        try:
            made = await command()
            self._check_leading()
            self._check_open()
            indexes.check(ticket)
            self._check_not_altering()
            # Proposed in this very turn.
            outcome = await self.replica.propose(
                made, max(0.0, deadline - self._runtime.clock.monotonic())
            )
        except (OutcomeUnknown, asyncio.CancelledError):
            if self._is_open:
                self.tasks.spawn(self._settle_later(ticket), "a write of unknown outcome")
            raise
        except BaseException:
            indexes.settle(ticket, is_written=False)
            raise
        indexes.settle(ticket, is_written=False)
        return outcome

    async def _settle_later(self, ticket: Ticket) -> None:
        """It may be executed yet: then its entries are needed."""
        term = self.replica.term
        while self.index_term == term:
            try:
                await self._barrier(BARRIER_S)
                break
            except StelaeError:
                self._runtime.metrics.count("index_barriers_repeated")
                await self._runtime.clock.sleep(self._settings.heartbeat_s)
        self._index_writes().settle(ticket, is_written=False)

    async def _write_many_indexed(
        self, call: Call[WriteMany], size_bytes: int
    ) -> tuple[bytes, ...] | None:
        """As `ReplicatedTablet.write_many`, once the entries of all rows are in. None: nothing was
        done, and what is the matter shows one by one."""
        with self._as_a_copy(call.body.requests, call.timeout_s):
            return await self._write_many_with_entries(call, size_bytes)

    async def _write_many_with_entries(
        self, call: Call[WriteMany], size_bytes: int
    ) -> tuple[bytes, ...] | None:
        many = call.body
        if many.schema_version not in (0, self._schemas.present.version):
            return None
        indexes = self._index_writes()
        deadline = self._runtime.clock.monotonic() + call.timeout_s
        try:
            ticket = await indexes.prepare(many.op, many.rows, many.columns, call.timeout_s)
        except Rejected:
            return None
        version = self._schemas.present.version

        async def command() -> SmallWrite:
            return SmallWrite(many, many.requests, self._stamp(), version, size_bytes)

        outcomes: Any = await self._propose_indexed(ticket, command, deadline)
        return outcomes if isinstance(outcomes, tuple) else (outcomes,)
