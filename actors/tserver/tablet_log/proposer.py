"""The shell of a timeline's proposer: the pure core, driven over a runtime.

It asks the safekeepers where the timeline begins (the horizon: backups hold what is before), has
itself elected, and hands out what it found; from then on it carries messages, fetches and ticks.
All of it happens in turns of the event loop, and nothing waits for a safekeeper.

Terms of a timeline are made of the tablet's: its term in the upper half, campaigns counted in the
lower. So an owner that the masters have replaced cannot campaign past its successor: it learns of a
term that is not its own, and is fenced for ever. What another proposer has written after this one
was elected is in nobody's memory here: then the tablet is given up, too.

Source: Neon RFC 035, "Compute (walproposer) changes"; design §10.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stelae.actors.server.membership import Membership
from stelae.actors.tserver.tablet_log.proposer_links import TimelineLinks
from stelae.consensus.wal.messages import (
    WAL_FETCH,
    WAL_STATUS,
    WAL_TO_PROPOSER,
    AcceptorMail,
    FetchedEntries,
    FetchEntries,
    TimelineStatus,
    TimelineStatusOf,
    ToProposer,
    check_message,
)
from stelae.consensus.wal.proposer import WalProposer
from stelae.consensus.wal.ready import EndReason, Fetch, Phase, ProposerSettings
from stelae.core.config.settings import Settings
from stelae.core.errors import (
    CorruptData,
    OutcomeUnknown,
    StaleTerm,
    StelaeError,
    TabletNotHere,
    TabletNotReady,
)
from stelae.core.ids import OpId, ServerUuid, TabletId, make_uuid
from stelae.core.records.replication import Entry, EntryKind
from stelae.core.records.timelines import (
    CAMPAIGN_BITS,
    ProposerId,
    SafekeeperId,
    TimelineConfiguration,
    TimelineSource,
    term_at,
)
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply, prompt
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

logger = logging.getLogger(__name__)

STATUS_PAUSE_S = 0.2
CATCH_UP_TIMEOUT_S = 5.0
"""Of a fetch for a safekeeper that lags: if it fails, the next look at that one fetches anew."""
TAIL_TIMEOUTS_S = (0.5, 1.5, CATCH_UP_TIMEOUT_S)
"""Of a fetch of the log's tail and its repetitions: without it a proposer that recovers campaigns
anew, which takes far more messages than one more question."""
HEARTBEAT_TICKS = 10
SILENCE_TICKS = 20
RETAINED_SEGMENTS = 2
"""So much is kept in memory for safekeepers that lag; they get the rest from others."""


class Behind(NamedTuple):
    """How far safekeepers are from having all that was committed."""

    entries: int
    """Of the one that lacks most, of those that answer."""
    silent: int
    """Members that do not answer."""


class AcceptorMailbox:
    """Gives mail of safekeepers to the proposers of this server, by their timelines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._receivers: dict[TabletId, Callable[[AcceptorMail], None]] = {}
        self._proposers: dict[TabletId, TimelineProposer] = {}
        """Those that are open, for `behind`."""

    def handlers(self) -> Handlers:
        return {WAL_TO_PROPOSER: self._on_mail}

    def open(self, tablet_id: TabletId, receive: Callable[[AcceptorMail], None]) -> None:
        """Mail goes to ``receive`` from now on, and not to who was there before."""
        self._receivers[tablet_id] = receive

    def close(self, tablet_id: TabletId, receive: Callable[[AcceptorMail], None]) -> None:
        if self._receivers.get(tablet_id) == receive:
            del self._receivers[tablet_id]
            self._proposers.pop(tablet_id, None)

    def watch(self, tablet_id: TabletId, proposer: TimelineProposer) -> None:
        """`behind` tells of this proposer too, until its mail is given to nobody any more."""
        self._proposers[tablet_id] = proposer

    def behind(self) -> Behind:
        """Of all logs that are written here: the most entries, and all silent members."""
        each = [proposer.behind() for proposer in self._proposers.values()]
        return Behind(max((b.entries for b in each), default=0), sum(b.silent for b in each))

    @prompt
    async def _on_mail(self, call: Call[AcceptorMail]) -> Reply[Empty]:
        receive = self._receivers.get(call.body.timeline_id)
        if receive is None:
            raise TabletNotHere(call.body.timeline_id, self._name)
        receive(call.body)
        return EMPTY


class TimelineProposer:
    """One life of one proposer. All methods run on the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        members: Membership,
        tasks: Tasks,
        mailbox: AcceptorMailbox,
        *,
        source: TimelineSource,
        term: int,
        on_progress: Callable[[], None],
        on_failed: Callable[[StelaeError], None],
    ) -> None:
        """``on_progress`` is told when entries were committed, or it leads again."""
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._mailbox = mailbox
        self._source = source
        self._term = term
        self._on_progress = on_progress
        self._on_failed = on_failed
        self._links = TimelineLinks(runtime, members, tasks, source, self._lost, self._take)
        self._configuration = source.configuration
        """The newest one that was heard of before the campaign."""
        self._horizon_lsn = 0
        """At least so far backups hold the log, as a campaign has found out."""
        self._answered: dict[SafekeeperId, TimelineStatus | str] = {}
        self._core: WalProposer | None = None
        self._is_open = self._is_closed = False
        self._tail: list[Entry] = []
        self._changed = asyncio.Event()
        self.committed_lsn = 0
        self._led = False
        self._failure: StelaeError | None = None

    # ---- opening ----------------------------------------------------------------------------

    async def elect(self) -> list[Entry]:
        """Be elected; return all committed entries after the horizon. Waits as long as it takes;
        `waits_for` says for whom.

        Raises:
            StaleTerm: the masters have named another owner, which was elected.
            CorruptData: the safekeepers contradict each other.
        """
        self._mailbox.open(self._source.tablet_id, self.receive)
        self._mailbox.watch(self._source.tablet_id, self)
        self._tasks.spawn(self._tick(), f"{self._source.tablet_id[:8]}/ticks of the proposer")
        while True:
            base = await self._horizon()
            self._begin(base)
            self.turn()
            while not self._is_open:
                self._check()
                assert self._core is not None
                if self._core.end is EndReason.TRIMMED:  # meanwhile, or by members unknown here
                    self._heard_of(self._core.configuration)
                    self._horizon_lsn = self._core.horizon_lsn
                    break
                await self._changed.wait()
                self._changed.clear()
            else:
                tail, self._tail = self._tail, []
                return tail

    async def _horizon(self) -> OpId:
        """The last entry that backups hold, by who knows best of a majority, or of all who answer:
        what any safekeeper was told of it was committed, and on the backups, before that. Who is
        no member any more is not told: so the newest configuration that anybody knows is asked."""
        while True:
            asked_of = self._configuration
            self._answered.clear()
            asked = {asyncio.ensure_future(self._ask(member)) for member in asked_of.members}
            try:
                while asked and not (asked_of.agreed(self._found) and self._base() is not None):
                    _, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in asked:
                    each.cancel()
            self._check()
            for status in self._found.values():
                self._heard_of(status.configuration)
            base = self._base()
            if base is not None and self._configuration == asked_of:
                return base
            await self._runtime.clock.sleep(STATUS_PAUSE_S)

    def _base(self) -> OpId | None:
        """The horizon, by those who answered; None: it is known to be beyond what they know."""
        found = self._found.values()
        lsn = max((status.horizon_lsn for status in found), default=0)
        lsn = max(lsn, self._horizon_lsn)
        for status in found:
            if status.commit_lsn >= lsn:
                return OpId(term_at(status.history, lsn), lsn)
        return None

    def _heard_of(self, configuration: TimelineConfiguration | None) -> None:
        if configuration is not None and configuration.generation > self._configuration.generation:
            self._configuration = configuration

    @property
    def generation(self) -> int:
        """Of the newest configuration that is known here."""
        core = self._core
        established = core.configuration if core is not None else None
        return max(c.generation for c in (self._configuration, established) if c is not None)

    def learn(self, source: TimelineSource) -> None:
        """The masters know of this configuration: all members of an older one may be gone."""
        self._links.learn(source.safekeepers)
        if source.configuration.generation <= self.generation:
            return
        self._configuration = source.configuration
        if self._core is not None and not self._is_closed:
            self._core.learn(source.configuration)
            self.turn()

    @property
    def _found(self) -> dict[SafekeeperId, TimelineStatus]:
        return {k: v for k, v in self._answered.items() if isinstance(v, TimelineStatus)}

    async def _ask(self, safekeeper: SafekeeperId) -> None:
        found = self._links.find(safekeeper)
        if found is None:
            self._answered[safekeeper] = "nobody knows where it is"
            return
        try:
            reply = await self._runtime.peers.call(
                found[0],
                WAL_STATUS,
                TimelineStatusOf(self._source.tablet_id),
                timeout_s=self._settings.append_timeout_s,
                destination=found[1],
            )
        except StelaeError as error:
            self._answered[safekeeper] = str(error)
        else:
            self._answered[safekeeper] = reply.body

    def _begin(self, base: OpId) -> None:
        self._tail.clear()
        self._core = WalProposer(
            timeline_id=self._source.tablet_id,
            proposer=ProposerId(make_uuid(self._runtime.rng)),
            dial=self._configuration.members,
            base=base,
            settings=ProposerSettings(
                heartbeat_ticks=HEARTBEAT_TICKS,
                silence_ticks=SILENCE_TICKS,
                retained_bytes_max=RETAINED_SEGMENTS * self._settings.segment_bytes,
                uncommitted_bytes_max=self._settings.queue_bytes,
            ),
            configuration=self._configuration,
        )
        self._core.campaign((self._term << CAMPAIGN_BITS) + 1)

    @property
    def waits_for(self) -> str:
        """Of whom it needs more than there are; empty while nothing is amiss."""
        core = self._core
        if self._is_closed or self.leads:
            return ""
        established = core.configuration if core is not None else None
        configuration = established or self._configuration
        links = core.links if core is not None else {}
        heard = [str(k) for k in configuration.members if k in links and links[k].is_heard]
        of = " and of ".join(str(list(members)) for members in configuration.member_sets)
        problems = [f"{k}: {v}" for k, v in sorted(self._answered.items()) if isinstance(v, str)]
        said = f"waiting for a majority of safekeepers {of}; heard of {', '.join(heard) or 'none'}"
        return "; ".join([said, *problems])

    @property
    def unreached(self) -> tuple[ServerUuid, ...]:
        """Members that do not answer, while a majority is missing. An opening that has one gets on
        without the others, however long it takes."""
        core = self._core
        configuration = (core.configuration if core is not None else None) or self._configuration
        heard: dict[SafekeeperId, object] = dict(self._found)
        if core is not None:
            heard = {k: None for k, link in core.links.items() if link.is_heard}
        if self._is_closed or configuration.agreed(heard):
            return ()
        places = [self._links.find(each) for each in configuration.members if each not in heard]
        return tuple([place[1] for place in places if place is not None])

    # ---- writing ----------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether entries can be proposed just now."""
        core = self._core
        return self._is_open and core is not None and core.phase is Phase.LEADING

    @property
    def content_bytes(self) -> int:
        """Of entries kept for safekeepers."""
        return self._core.log.size_bytes if self._core is not None else 0

    def behind(self) -> Behind:
        """How far its safekeepers are behind, for the metrics; nobody is while it does not lead."""
        core = self._core
        if core is None or core.leader is None or core.configuration is None or not self.leads:
            return Behind(0, 0)
        acked, commit_lsn, links = core.leader.acked, core.log.commit_lsn, core.links
        members = core.configuration.members
        heard = [each for each in members if each in links and links[each].is_heard]
        lags = [max(0, commit_lsn - acked.get(each, 0)) for each in heard]
        return Behind(max(lags, default=0), len(members) - len(heard))

    def propose(self, body: bytes) -> int:
        """Append an entry; return its LSN. `turn` sends it. Raises Overloaded: later."""
        assert self._core is not None
        return self._core.propose(EntryKind.COMMAND, body).index

    def trim(self, horizon_lsn: int) -> None:
        """Backups hold everything up to there."""
        if self._core is not None:
            self._core.trim(horizon_lsn)

    def close(self) -> None:
        """Nothing is sent or taken any more."""
        self._is_closed = True
        self._mailbox.close(self._source.tablet_id, self.receive)
        self._changed.set()

    # ---- turns ------------------------------------------------------------------------------

    def receive(self, mail: AcceptorMail) -> None:
        """Take mail of a safekeeper; raises InvalidArgument for what none of ours sends."""
        if self._core is not None and mail.proposer == self._core.proposer:
            self._take(mail.messages)

    def _take(self, messages: Sequence[ToProposer]) -> None:
        core = self._core
        if core is None or self._is_closed:
            return
        for message in messages:
            check_message(message)
            if message.timeline_id == core.timeline_id and message.proposer == core.proposer:
                if self._is_another(message.term):
                    self._fail(self._stale(message.term))
                    return
                core.receive(message)
        self.turn()

    def _is_another(self, term: int) -> bool:
        """Whether the owner of a later term has campaigned."""
        return term >> CAMPAIGN_BITS > self._term

    def _stale(self, term: int) -> StaleTerm:
        what = f"timeline of tablet {self._source.tablet_id}"
        return StaleTerm(what, self._term, term >> CAMPAIGN_BITS)

    def _lost(self, safekeeper: SafekeeperId, session: int) -> None:
        """Leave that session, if it is the present one: the core would find out by silence."""
        link = self._core.links.get(safekeeper) if self._core is not None else None
        if link is not None and link.session == session:
            link.is_heard = False
            link.reset(HEARTBEAT_TICKS // 2)

    async def _tick(self) -> None:
        while not self._is_closed:
            await self._runtime.clock.sleep(self._settings.wal_tick_s)
            if self._core is not None and not self._is_closed:
                self._core.tick()
                self.turn()

    def turn(self) -> None:
        """Carry out everything that the core wants done by now."""
        core = self._core
        if core is None or self._is_closed:
            return
        while not self._has_ended(core):
            ready = core.take_ready()
            if not ready:
                break
            for alarm in ready.alarms:
                logger.error("%s", alarm)
                self._runtime.metrics.count("timeline_alarms")
            if self._is_open and (ready.rewound_to is not None or core.phase is Phase.RECOVERING):
                self._fail(self._overtaken(core))
                return
            self._links.send(ready.messages)
            for fetch in ready.fetches:
                name = f"{core.timeline_id[:8]}/fetch {fetch.number}"
                self._tasks.spawn(self._fetch(core, fetch), name)
            if not self._is_open:
                self._tail += ready.committed
        self._note_progress(core)

    def _has_ended(self, core: WalProposer) -> bool:
        """See to the ways in which a campaign, or a term, ends. Nothing of another owner's term is
        ever sent."""
        if self._is_closed:
            return True
        if core.phase is not Phase.GREETING and self._is_another(core.term):
            self._fail(self._stale(core.term))
            return True
        if core.phase is not Phase.ENDED:
            return False
        match core.end:
            case EndReason.DEPOSED:  # a term of ours was raised; of others' `receive` learns
                core.campaign((self._term << CAMPAIGN_BITS) + 1)
                return False
            case EndReason.TRIMMED if not self._is_open:
                return True
            case EndReason.TRIMMED:
                self._fail(self._overtaken(core))
            case _:
                for alarm in core.take_ready().alarms:
                    logger.error("%s", alarm)
                where = f"timeline of tablet {core.timeline_id}"
                self._fail(CorruptData(where, core.log.last.index, "its safekeepers disagree"))
        return True

    def _overtaken(self, core: WalProposer) -> StelaeError:
        """Only a later owner, or somebody without a right to, writes beside an elected owner."""
        what = f"timeline of tablet {core.timeline_id}, written by another proposer"
        return StaleTerm(what, self._term, core.term >> CAMPAIGN_BITS)

    def _note_progress(self, core: WalProposer) -> None:
        leader, led = core.leader, self._led
        if not self._is_open and leader is not None and leader.is_settled:
            self._is_open = True  # and all was handed out: `turn` takes until nothing is left
        self._led = self.leads
        if core.log.commit_lsn > self.committed_lsn or (self._led and not led):
            self.committed_lsn = core.log.commit_lsn
            self._on_progress()
        self._changed.set()

    def _fail(self, error: StelaeError) -> None:
        self._failure = error
        self.close()
        self._on_failed(error)

    def _check(self) -> None:
        if self._is_closed:
            raise self._failure or TabletNotReady(self._source.tablet_id, "closed here")

    async def _fetch(self, core: WalProposer, fetch: Fetch) -> None:
        answer = await self._fetched(core, fetch)
        if answer is None:
            self._runtime.metrics.count("timeline_fetches_failed")
            core.fetch_failed(fetch.number)
        else:
            core.fetched(fetch.number, answer)
        if core is self._core:
            self.turn()

    async def _fetched(self, core: WalProposer, fetch: Fetch) -> FetchedEntries | None:
        """What the safekeeper answers, which is asked for the log's tail again if nothing is heard;
        None: it has none."""
        found = self._links.find(fetch.source)
        if found is None:
            return None
        request = FetchEntries(
            core.timeline_id,
            fetch.term,
            fetch.generation,
            fetch.first_lsn,
            fetch.last_lsn,
            fetch.size_max_bytes,
        )
        for timeout_s in TAIL_TIMEOUTS_S if fetch.recovers else (CATCH_UP_TIMEOUT_S,):
            try:
                reply = await self._runtime.peers.call(
                    found[0], WAL_FETCH, request, timeout_s=timeout_s, destination=found[1]
                )
            except OutcomeUnknown:
                self._runtime.metrics.count("timeline_fetches_unanswered")
            except StelaeError:
                return None
            else:
                return reply.body
            if core is not self._core or core.term != fetch.term:
                return None
        return None
