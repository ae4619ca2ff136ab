"""Writes the trace of timelines while real servers run in the world.

A run has one `TimelineRecorder`, and makes it watch by `installed`: while that is open, safekeepers
make acceptors, tablet servers proposers, and masters migrations that tell the recorder of their
steps; stores tell of what they wrote. The cores themselves know nothing of it. A line is written
when its step is durable, and before anybody is told of it: what an acceptor does waits for its
`advance`. Each is replayed at once (`stelae.simulation.timelines.trace`), so that a step which is
none ends the run where it is taken.

Not told: what is done about a timeline once it is deleted for ever. Neon RFC 035, "Testing".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from stelae.actors.cas_store.files import FilesBackend
from stelae.actors.cas_store.server import _stored
from stelae.actors.master.leader import migration_runner
from stelae.actors.safekeeper import acceptor as safekeeper_timeline
from stelae.actors.safekeeper.pulls import PullReceiver
from stelae.actors.safekeeper.timeline_store.store import TimelineStore
from stelae.actors.safekeeper.timeline_store.timeline import Timeline
from stelae.actors.tserver.tablet_log import proposer as timeline_proposer
from stelae.consensus.wal.acceptor import AcceptorReady, WalAcceptor
from stelae.consensus.wal.history import last_common_lsn
from stelae.consensus.wal.messages import (
    BumpTerm,
    ProposerElected,
    SwitchConfiguration,
    WalAppendRequest,
    WalAppendResponse,
    WalVoteRequest,
    WalVoteResponse,
)
from stelae.consensus.wal.proposer import WalProposer
from stelae.consensus.wal.ready import ProposerReady
from stelae.consensus.wal.sessions import Session
from stelae.coordinator.catalog.timelines import TimelineCatalog
from stelae.coordinator.timelines.migration import Migration
from stelae.coordinator.timelines.migration_steps import Step
from stelae.core.ids import OpId, TabletId
from stelae.core.records.configurations import FIRST_GENERATION, StoredRecord
from stelae.core.records.timelines import (
    SafekeeperId,
    SwitchReply,
    TermHistory,
    TimelineConfiguration,
    joined_history,
    term_at,
)
from stelae.simulation.timelines import events as trace
from stelae.simulation.timelines.trace import NotInModelError, TimelineTrace
from stelae.storage.files.timeline_control import FOREVER, TimelineControl

_Step = tuple[type[trace.TraceEvent], dict[str, Any]]

_DONOR: ContextVar[SafekeeperId] = ContextVar("donor")
"""Of the pull that is carried out: an earlier one may end while a later one has begun."""


class TimelineRecorder:
    """The trace of one run, of all its timelines."""

    def __init__(self) -> None:
        self.events: list[trace.Event] = []
        self._replayed: dict[TabletId, TimelineTrace] = {}
        self._refused: NotInModelError | None = None
        self._stored: dict[TabletId, dict[int, TimelineConfiguration]] = {}
        self._revisions: dict[TabletId, int] = {}
        self._over: dict[TabletId, None] = {}
        self._here: dict[tuple[SafekeeperId, TabletId], None] = {}
        self._installing: dict[tuple[SafekeeperId, TabletId], None] = {}
        """Pulls that may be durable, and whose line is not written: a crash may keep it so."""

    def lines(self) -> bytes:
        """As it is written to a file."""
        return trace.encode_events(self.events)

    def check(self) -> int:
        """How many steps there were. Raises NotInModelError, if it was not raised before."""
        if self._refused is not None:
            raise self._refused
        return len(self.events)

    def add(self, kind: type[trace.TraceEvent], tablet_id: TabletId, **fields: Any) -> None:
        """Write a line, and replay it. Raises NotInModelError: that ends whoever took the step."""
        if tablet_id in self._over or self._refused is not None:
            return
        event: Any = kind(seq=len(self.events), timeline=tablet_id, **fields)
        self.events.append(event)
        try:
            self._replayed.setdefault(tablet_id, TimelineTrace()).step(event)
        except NotInModelError as error:
            self._refused = error
            raise

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch all servers that are made meanwhile."""
        with ExitStack() as stack:
            for module, name, watched in (
                (safekeeper_timeline, "WalAcceptor", _WatchedAcceptor),
                (timeline_proposer, "WalProposer", _WatchedProposer),
                (migration_runner, "Migration", _WatchedMigration),
            ):
                stack.enter_context(patch.object(module, name, functools.partial(watched, self)))
            for owner, method, around in (
                (TimelineCatalog, "commit", self._around_commit),
                (FilesBackend, "swap", self._around_backend),
                (FilesBackend, "open", self._around_backend),
                (TimelineStore, "_create", self._around_create),
                (TimelineStore, "install", self._around_install),
                (TimelineStore, "take_in", self._around_take_in),
                (Timeline, "close", self._around_close),
                (PullReceiver, "_copy", self._around_copy),
            ):
                wrapped = around(getattr(owner, method))
                stack.enter_context(patch.object(owner, method, wrapped))
            yield

    # ---- the store --------------------------------------------------------------------------

    def stored(self, row: StoredRecord) -> None:
        """A record is in the store: told by each master, and after each start."""
        tablet_id = row.record.timeline.tablet_id
        if row.revision <= self._revisions.get(tablet_id, 0):
            return
        self._revisions[tablet_id] = row.revision
        if row.record.deleted:
            self._over[tablet_id] = None
            return
        configuration = row.record.configuration
        known = self._stored.setdefault(tablet_id, {})
        if configuration.generation not in known:
            before = known[max(known)] if known else None
            known[configuration.generation] = configuration
            if before is None:
                self.add(trace.Init, tablet_id, configuration=configuration)
            else:
                kind = _change(before, configuration)
                self.add(kind, tablet_id, server=row.writer, configuration=configuration)

    def _around_commit(self, commit: Callable[..., None]) -> Callable[..., None]:
        def around(catalog: TimelineCatalog, safekeepers: Any, timelines: Any) -> None:
            rows = list(timelines)
            commit(catalog, safekeepers, rows)
            for row in rows:
                self.stored(row)

        return around

    def _around_backend(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def around(backend: FilesBackend, *given: Any) -> Any:
            result = await method(backend, *given)
            for rows in backend._rows_by_key.values():
                for row in rows:
                    self.stored(_stored(row))
            return result

        return around

    # ---- copies of safekeepers --------------------------------------------------------------

    def _around_create(self, create: Callable[..., Any]) -> Callable[..., Any]:
        async def around(store: TimelineStore, tablet_id: TabletId, configuration: Any) -> Any:
            was_here = tablet_id in store.timelines
            timeline = await create(store, tablet_id, configuration)
            if not was_here and (store.safekeeper, tablet_id) not in self._here:
                self._here[store.safekeeper, tablet_id] = None
                self.add(trace.Create, tablet_id, server=store.safekeeper)
            return timeline

        return around

    def _around_copy(self, copy: Callable[..., Any]) -> Callable[..., Any]:
        async def around(receiver: PullReceiver, order: Any) -> None:
            token = _DONOR.set(order.source.safekeeper_id)
            try:
                await copy(receiver, order)
            finally:
                _DONOR.reset(token)

        return around

    def _around_install(self, install: Callable[..., Any]) -> Callable[..., Any]:
        async def around(store: TimelineStore, control: TimelineControl, log: Any) -> Any:
            self._installing[store.safekeeper, control.tablet_id] = None
            timeline = await install(store, control, log)
            tablet_id, state = control.tablet_id, timeline.acceptor
            self._here[store.safekeeper, tablet_id] = None
            del self._installing[store.safekeeper, tablet_id]
            self.add(
                trace.Pull,
                tablet_id,
                server=store.safekeeper,
                generation=state.configuration.generation,
                term=state.term,
                last_log_term=timeline.last.term,
                flush_lsn=timeline.last.index,
                donor=_DONOR.get(),
                configuration=state.configuration,
            )
            return timeline

        return around

    def _around_take_in(self, take_in: Callable[..., None]) -> Callable[..., None]:
        def around(store: TimelineStore, control: TimelineControl, log: Any) -> None:
            take_in(store, control, log)
            if not control.exists:
                self._excluded(store.safekeeper, control)

        return around

    def _around_close(self, close: Callable[..., Any]) -> Callable[..., Any]:
        async def around(timeline: Timeline, state: str) -> None:
            if state == "deleted":
                me = SafekeeperId(int(timeline._files._server.removeprefix("safekeeper ")))
                self._excluded(me, timeline.control)
            await close(timeline, state)

        return around

    def _excluded(self, safekeeper: SafekeeperId, control: TimelineControl) -> None:
        tablet_id, generation = control.tablet_id, control.deleted_generation
        if generation == FOREVER:
            self._over[tablet_id] = None
        if (safekeeper, tablet_id) in self._here:
            del self._here[safekeeper, tablet_id]
            if tablet_id not in self._over:
                configuration = self._stored[tablet_id][generation]
                self.add(trace.Exclude, tablet_id, server=safekeeper, configuration=configuration)

    def found(self, safekeeper: SafekeeperId, tablet_id: TabletId) -> bool:
        """An acceptor is made of what is on a disk. Returns whether that may be a copy that was
        being installed."""
        self._here[safekeeper, tablet_id] = None
        return (safekeeper, tablet_id) in self._installing


def _change(
    before: TimelineConfiguration, configuration: TimelineConfiguration
) -> type[trace.TraceEvent]:
    if configuration.is_joint:
        return trace.StartChange
    if before.is_joint and set(configuration.sk_set) == set(before.sk_set):
        return trace.AbortChange
    return trace.FinishChange


# ---- cores that tell ----------------------------------------------------------------------------


class _WatchedAcceptor(WalAcceptor):
    def __init__(self, recorder: TimelineRecorder, **given: Any) -> None:
        self._recorder = recorder
        self._steps: list[_Step] = []
        self._began_after = False
        super().__init__(**given)
        state, log = given["state"], given["log"]
        history = joined_history(state.term_history, log.base_lsn, log.history)
        is_pulled = recorder.found(self.safekeeper, self.timeline_id)
        last = OpId(term_at(history, log.last_lsn), log.last_lsn)
        vote = {"voted_for": self.voted_for, "is_pulled": is_pulled}
        self._step(trace.RestartSafekeeper, last, **vote)
        self._tell()
        if self._began_after:
            self._step(trace.BeginAfter)

    def _step(self, kind: type[trace.TraceEvent], last: OpId | None = None, **fields: Any) -> None:
        last = last or self.last
        at = {
            "server": self.safekeeper,
            "generation": self.generation,
            "term": self.term,
            "last_log_term": last.term,
            "flush_lsn": last.index,
        }
        self._steps.append((kind, {**at, **fields}))

    def _tell(self) -> None:
        for kind, fields in self._steps:
            self._recorder.add(kind, self.timeline_id, **fields)
        self._steps.clear()

    def advance(self, ready: AcceptorReady) -> None:
        super().advance(ready)
        self._tell()

    def switch(self, request: int, call: SwitchConfiguration) -> None:
        before = self.term
        super().switch(request, call)
        if self.term > before:
            self._step(trace.BumpTerm)

    def bump_term(self, request: int, call: BumpTerm) -> None:
        before = self.term
        super().bump_term(request, call)
        if self.term > before:
            self._step(trace.BumpTerm)

    def _adopt(self, configuration: TimelineConfiguration) -> None:
        before = self.generation
        super()._adopt(configuration)
        if self.generation > before:
            self._step(trace.SwitchConf, configuration=configuration)

    def _on_vote_request(self, request: WalVoteRequest) -> None:
        super()._on_vote_request(request)
        if isinstance(self._messages[-1], WalVoteResponse):
            self._step(trace.Vote, proposer=request.proposer)

    def _restart_log(self, horizon_lsn: int, history: TermHistory) -> None:
        super()._restart_log(horizon_lsn, history)
        self._began_after = True

    def _on_elected(self, session: Session, elected: ProposerElected) -> None:
        """The line has what is there after it. Where the log went on after the horizon, the cut
        before that is no state that anybody can see: it is as it should be."""
        before, before_lsn = self.history, self.last_lsn
        self._began_after = False
        super()._on_elected(session, elected)
        if not isinstance(self._messages[-1], WalAppendResponse):
            return
        if not self._began_after:
            self._step(trace.Elected, proposer=elected.proposer)
            return
        common_lsn = last_common_lsn(elected.history, None, before, before_lsn)
        assert common_lsn is not None
        common = OpId(term_at(before, common_lsn), common_lsn)
        self._step(trace.Elected, common, proposer=elected.proposer)
        self._step(trace.BeginAfter)

    def _on_append(self, session: Session, request: WalAppendRequest) -> None:
        before_lsn = self.last_lsn
        super()._on_append(session, request)
        if self.last_lsn > before_lsn:
            self._step(trace.AppendEntry, proposer=request.proposer, first_lsn=before_lsn + 1)


class _WatchedProposer(WalProposer):
    def __init__(self, recorder: TimelineRecorder, **given: Any) -> None:
        self._recorder = recorder
        self._told_lsn = self._told_commit_lsn = 0
        super().__init__(**given)

    def _tell(self, kind: type[trace.TraceEvent], **fields: Any) -> None:
        assert self.configuration is not None
        generation = self.configuration.generation
        at = {"server": self.proposer, "generation": generation, "term": self.term}
        self._recorder.add(kind, self.timeline_id, **at, **fields)

    def _establish(self, configuration: TimelineConfiguration) -> None:
        super()._establish(configuration)
        self._tell(trace.RestartProposer)

    def _lead(self) -> None:
        last = self.log.last
        self._tell(
            trace.BecomeLeader,
            voters=tuple(sorted(self._votes)),
            last_log_term=last.term,
            flush_lsn=last.index,
        )
        self._told_lsn = self._told_commit_lsn = last.index
        super()._lead()

    def take_ready(self) -> ProposerReady:
        leader = self.leader
        if leader is not None and self.log.last.index > self._told_lsn:
            self._told_lsn = self.log.last.index
            self._tell(trace.NewEntry, last_lsn=self._told_lsn)
        if leader is not None and self.log.commit_lsn > self._told_commit_lsn:
            self._told_commit_lsn = self.log.commit_lsn
            self._tell(trace.Commit, commit_lsn=self._told_commit_lsn)
        return super().take_ready()


class _WatchedMigration(Migration):
    def __init__(self, recorder: TimelineRecorder, *given: Any, **named: Any) -> None:
        self._recorder = recorder
        super().__init__(*given, **named)

    def _pass(self, step: Step, generation: int) -> None:
        known = self._known
        if known is not None and known.sync is not None and generation > FIRST_GENERATION:
            new = known.record.configuration.new_sk_set or ()
            if step is Step.SYNC:
                self._tell(trace.Forget)
                for member, reply in known.sync.collected.items():
                    self._heard_of(trace.Collect, member, reply)
            elif step is Step.CATCH_UP:
                for member in filter(known.caught_up, new):
                    self._heard_of(trace.Confirm, member, known.replies[member])
        super()._pass(step, generation)

    def _tell(self, kind: type[trace.TraceEvent], **fields: Any) -> None:
        self._recorder.add(kind, self.timeline.tablet_id, server=self._writer, **fields)

    def _heard_of(
        self, kind: type[trace.TraceEvent], member: SafekeeperId, reply: SwitchReply
    ) -> None:
        self._tell(
            kind,
            safekeeper=member,
            generation=reply.conf.generation,
            term=reply.term,
            last_log_term=reply.last_log_term,
            flush_lsn=reply.flush_lsn,
        )
