"""How a tablet with ``replicas(n)`` makes way for its successor, or takes over from another tablet.

Both are said in its log, so every later leader knows: writes behind the fence are refused as they
are applied, and once it is CLOSED so are reads, by whoever has applied that. `docs/decisions.md`,
§34.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from stelae.actors.raft.replica import Replica
from stelae.actors.tserver.tablet.transfer import TabletTransfer, checked_import, report_of
from stelae.core.config.settings import Settings
from stelae.core.errors import TabletNotReady, TooLarge
from stelae.core.ids import TabletId
from stelae.core.records.succession import (
    ImportChanges,
    Succession,
    SuccessionReport,
    SuccessionStage,
)
from stelae.core.rpc import Call
from stelae.storage.entries.entry import Result
from stelae.storage.replicated.commands import (
    ImportCommand,
    Stamp,
    SuccessionCommand,
    encode_import,
    encode_succession,
)
from stelae.storage.replicated.state_machine import TabletStateMachine
from stelae.storage.rows.transfer import Changes


class ReplicatedSuccession(ABC):
    """The part of `ReplicatedTablet` that is about other tablets of its key range."""

    tablet_id: TabletId
    replica: Replica
    transfer: TabletTransfer | None
    began: dict[TabletId, int]
    is_volatile = False
    _machine: TabletStateMachine
    _settings: Settings

    @abstractmethod
    def _check_leading(self) -> None: ...

    @abstractmethod
    def _stamp(self) -> Stamp: ...

    @property
    def succession(self) -> Succession:
        """By the log, as far as it is applied here."""
        return self._machine.succession

    @property
    def giving(self) -> SuccessionReport | None:
        return report_of(self.succession, self.transfer)

    @property
    def next_version(self) -> int:
        return self._machine.memory.next_version

    @property
    def giving_term(self) -> int:
        return self.replica.term if self.replica.is_leader and self.replica.leader_ready else 0

    def keep_all(self, *, keeps: bool) -> None:
        """Flushes forget no tombstone here meanwhile."""
        self._machine.keeps_all = keeps

    async def give_way(
        self,
        successor: TabletId,
        stage: SuccessionStage,
        timeout_s: float,
        *,
        by_masters: bool = False,
    ) -> SuccessionStage:
        """Have the log say so; how far it makes way for that successor then.

        Raises NotLeader, TabletNotReady, Overloaded, and OutcomeUnknown: it may come yet.
        """
        self._check_leading()
        command = SuccessionCommand(self._stamp(), successor, stage, by_masters)
        outcome = await self.replica.propose(encode_succession(command), timeout_s)
        assert isinstance(outcome, int), "the outcome of a succession"
        return SuccessionStage(outcome)

    async def changes_since(
        self, version: int, limit_bytes: int, began_at: int | None, timeout_s: float
    ) -> Changes | None:
        """As `TabletMemory.changes_since`; all of it is committed."""
        del timeout_s
        self._check_leading()
        return self._machine.memory.changes_since(version, limit_bytes, began_at)

    @property
    def forgettings(self) -> int:
        return self._machine.memory.forgettings

    def results(self) -> tuple[Result, ...]:
        """What requests came to, as far as their clients may ask."""
        return self._machine.memory.results.snapshot()

    async def import_changes(self, call: Call[ImportChanges]) -> int:
        """Take in what another tablet has; the version up to which it is here, by its log.

        Raises NotLeader, TabletNotReady, Overloaded, InvalidArgument, TooLarge; OutcomeUnknown.
        """
        self._check_leading()
        order, memory = call.body, self._machine.memory
        if not self._machine.is_founded:
            raise TabletNotReady(self.tablet_id, "to hear what table it is of")
        blob = call.blobs[0] if call.blobs else None
        batch = checked_import(memory, order, blob)
        stream = None if batch is None else blob
        if blob is not None and blob.nbytes > self._settings.queue_bytes:
            raise TooLarge("a piece of a tablet", blob.nbytes, self._settings.queue_bytes)
        results = tuple([Result(*each) for each in order.results])
        if blob is not None and batch is None:  # not the next one: only to say how far it is
            order = ImportChanges(order.tablet_id, 0, 0)
        command = ImportCommand(self._stamp(), order.from_version, order.next_version, results)
        outcome = await self.replica.propose(encode_import(command, stream), call.timeout_s)
        assert isinstance(outcome, int), "the outcome of an import"
        return outcome

    def _check_open(self) -> None:
        succession = self.succession
        if succession.stage is not SuccessionStage.OPEN:
            raise TabletNotReady(self.tablet_id, f"served as {succession.successor}")
