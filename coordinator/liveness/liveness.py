"""Who is alive, who has been given up, and until when a server may still be serving.

One run of one server process is (uuid, incarnation). A run is dead when it has been silent for
``dead_after_s``, when its process surely no longer runs, when its host says it died, or when a
later incarnation of the same UUID heartbeats (which holds the data directory's lock, so the earlier
process is gone). A dead run of a tserver is *given up*: it is fenced, never granted a lease again.

A tablet may be given to another server only once its owner cannot be serving any more: the process
is surely gone, or every lease that any leader may have granted to it has ended. `free_at` says
when. This leader knows its own grants, and counts them from the moment of the answer (the holder
counts from the earlier sending of its heartbeat). Of former leaders it knows nothing, and assumes
that they granted a lease to everyone until the moment it became leader: a former leader grants only
after it has confirmed its leadership by a majority *after* the heartbeat came, so none is later.

Being given up is kept in memory only. It need not outlive the leader: what a run owns is in the
tablet records as (owner, owner_incarnation, term), and each of its tablets that was given away has
a higher term there. Under a new leader a run that was given up counts as live again, but owns
nothing more, and gets no lease before it has closed what it no longer owns
(`stelae.coordinator.decide`).

Silence that is judged by the minute (of who may come back) counts only while this master itself
was awake: a process without a processor hears nobody. What it slept is left out, and what it heard
before stays counted; else a machine with too much to do would excuse the dead for ever.

All times are seconds of this master's monotonic clock, given by the caller. Design §7, §9;
RAMCloud's probabilistic read fencing is replaced by leases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from stelae.coordinator.liveness.backup_loads import BackupLoads
from stelae.core.config.settings import Settings
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.indexes import IndexletReport
from stelae.core.messages.reports import Picture
from stelae.core.messages.servers import Heartbeat, TabletReport
from stelae.core.records.records import ServerInfo, ServerKind
from stelae.core.schema.indexes import IndexletId

CLOCK_DRIFT = 0.01
"""Clocks of two servers may run at rates that differ by so much."""
NEVER = float("inf")


class Run(NamedTuple):
    """One run of one server process."""

    uuid: ServerUuid
    incarnation: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one run of one server, as of one state of the catalog and of what it holds."""

    made_from: tuple[int, int]
    unsettled: tuple[TabletId, ...]
    """Tablets that it owns and that are not simply served: the coordinator looks at them."""
    closes: tuple[tuple[TabletId, int], ...]
    """(tablet, term) pairs that it holds and should not: given away, deleted or replaced."""
    serve: tuple[tuple[TabletId, int], ...]
    """(tablet, term) pairs that it has PREPARED, owns, and may serve."""
    drop: tuple[TabletId, ...]
    """What it holds of deleted and replaced tablets."""
    may_have_lease: bool
    """False while it holds a tablet, complete enough to be served, that was given away; or an
    indexlet that is not its own, which it could take entries for in place of the owner.

    A former leader may have told it to serve that one, and the order may still be under way. Once
    the tablet is closed nothing can bring it back, because an owner's term passes once.
    """
    closed_indexlets: tuple[tuple[IndexletId, int], ...] = ()
    """(indexlet, term) pairs that it holds and should not."""
    serve_indexlets: tuple[tuple[IndexletId, int], ...] = ()
    """(indexlet, term) pairs that it has complete, and that are SERVING by the catalog."""


@dataclass(slots=True)
class Seen:
    """What this master knows of a run: its last heartbeat, and what came of it."""

    heartbeat: Heartbeat
    heard_at: float
    first_heard_at: float
    slept_before: float = 0.0
    """For so long this master had slept altogether, when it heard that."""
    picture: Picture = field(default_factory=Picture)
    """What it holds, as the leader knows it."""
    lease_end: float = -NEVER
    """No lease granted by this leader lasts longer."""
    gone: bool = False
    """Its process surely no longer runs."""
    announced_dead: bool = False
    """Its host said so; the process may still run for a while."""
    standing: Standing | None = None
    """Kept by `stelae.coordinator.liveness.standing`."""

    @property
    def server(self) -> ServerInfo:
        return self.heartbeat.server

    @property
    def reports(self) -> dict[TabletId, TabletReport]:
        """The tablets that it holds, by its last report and what it said since."""
        return self.picture.reports


class Noted(NamedTuple):
    """What came of a heartbeat."""

    is_news: bool
    """It says something that decisions are made from."""
    processed: bool
    """Its report was taken in, now or before."""


@dataclass(frozen=True, slots=True)
class Roster:
    """The live servers, and until when nobody on it can have fallen silent for too long."""

    tservers: tuple[Seen, ...]
    backups: tuple[Seen, ...]
    safekeepers: tuple[Seen, ...]
    cas_stores: tuple[Seen, ...]
    servers: tuple[ServerInfo, ...]
    """All but the last, in that order: what servers are told of each other."""
    version: int
    """Made from the content, so that it means the same to every master; never 0."""
    until: float


@dataclass(slots=True)
class Reporters:
    """Which live tservers report which replicas, of tablets with ``replicas(n)``."""

    made_from: tuple[tuple[Run, int], ...]
    of: dict[TabletId, list[Seen]]
    """In the order of the servers' names."""
    at_rest: object = None
    """Kept by `stelae.coordinator.decide_groups`."""


@dataclass(frozen=True, slots=True)
class Avoidance:
    """Which backups live tservers avoid, as of one roster and one state of what they say."""

    roster: Roster
    version: int
    by: dict[ServerUuid, tuple[Seen, ...]]
    """The tservers that avoid each, by name."""
    shunned: tuple[ServerUuid, ...]
    """Backups that are avoided by too many, ascending."""


class Liveness:
    """The masters' notion of every server; followers keep it warm, the leader acts on it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[Run, Seen] = {}  # in the order of first being heard
        self._newest: dict[ServerUuid, int] = {}
        self._given_up: dict[Run, None] = {}
        self._listening_since = -NEVER
        self._told_at: float | None = None
        self._awake_since = -NEVER
        self._slept_s = 0.0
        self._roster: Roster | None = None
        self._reporters = Reporters((), {})
        self.backup_loads = BackupLoads()
        self.avoids_version = 0
        """Raised whenever a tserver names other backups that it avoids than before."""
        self.avoidance: Avoidance | None = None
        """Kept by `stelae.coordinator.liveness.shunned_backups`."""
        self.on_look: Callable[[float], None] = lambda now: None
        """Called at each look of a leader's coordinator, for those who tell people what changes."""
        self.is_replaced: Callable[[ServerUuid], bool] = lambda uuid: False
        """Whether the catalog has fenced a server, as another one has its name (`ServerMark`)."""
        self._is_leader = False
        self.lead_since = -NEVER
        """When this master last became leader."""
        self._slept_before_lead_s = 0.0

    # ---- what happens -----------------------------------------------------------------------

    def _hears(self, now: float) -> None:
        """A follower knows by what it is told that it is awake: if nobody said anything for too
        long, it was not, or was cut off. A leader sees that for itself (`stalled`)."""
        if self._told_at is None:
            self._awake_since = now
        elif not self._is_leader and now - self._told_at > self._settings.lease_s / 2:
            self._slept_s += now - self._told_at
        self._told_at = now

    def stalled(self, now: float, slept_s: float) -> None:
        """This master itself did nothing until now: the silence of others was its own."""
        self._slept_s += slept_s
        self._listening_since = now
        self._roster = None

    def lead(self, now: float) -> None:
        """This master has become leader: silence counts from here, former leases are feared.

        What servers hold it learns from the full reports that they send it first.
        """
        self._hears(now)
        self.lead_since, self._slept_before_lead_s = now, self._slept_s
        self._given_up.clear()
        self._roster = None
        self._is_leader = True
        for seen in self._seen.values():
            seen.picture.reset()

    def follow(self) -> None:
        """This master leads no more: of heartbeats it takes liveness and load."""
        self._is_leader = False
        self._roster = None
        for seen in self._seen.values():
            seen.picture.reset()

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> Noted:
        """Take note of a heartbeat. One that was overtaken by a later one adds nothing."""
        self._hears(now)
        run = Run(heartbeat.server.uuid, heartbeat.server.incarnation)
        newest = self._newest.get(run.uuid)
        if newest is None or run.incarnation > newest:
            self._newest[run.uuid] = run.incarnation
            self._replace_former(run)
        seen = self._seen.get(run)
        is_first = seen is None
        if seen is None:
            seen = self._seen[run] = Seen(heartbeat, now, now)
        elif heartbeat.sent < seen.heartbeat.sent:
            return Noted(False, 0 < heartbeat.number <= seen.picture.number)
        if is_first or heartbeat.server != seen.server or not self.is_live(run, now):
            self._roster = None
        self.avoids_version += heartbeat.avoids != seen.heartbeat.avoids
        seen.heartbeat, seen.heard_at, seen.slept_before = heartbeat, now, self._slept_s
        if heartbeat.server.kind is ServerKind.BACKUP:
            self.backup_loads.note(run.uuid, heartbeat.media)
        if heartbeat.server.kind is not ServerKind.TSERVER:
            seen.announced_dead = False  # it speaks; and nothing was taken from it
        if run.incarnation < self._newest[run.uuid]:
            seen.gone = True
        if not self._is_leader:
            return Noted(is_first, False)
        version = seen.picture.version
        processed = seen.picture.take(heartbeat, now)
        return Noted(is_first or version != seen.picture.version, processed)

    def _replace_former(self, run: Run) -> None:
        self._roster = None
        for former, seen in self._seen.items():
            if former.uuid == run.uuid and former.incarnation < run.incarnation:
                seen.gone = True

    def report(self, run: Run, report: TabletReport, now: float) -> None:
        """A live server's news of a tablet between heartbeats (`TABLET_OPENED`)."""
        seen = self._seen.get(run)
        if seen is not None and self._is_leader and self.is_live(run, now):
            seen.picture.hint(report)

    def indexlet_report(self, run: Run, report: IndexletReport, now: float) -> None:
        """The same of an indexlet (`INDEXLET_REPORTED`, or the answer to an order)."""
        seen = self._seen.get(run)
        if seen is not None and self._is_leader and self.is_live(run, now):
            seen.picture.hint_indexlet(report)

    def process_gone(self, run: Run) -> None:
        """The process of this run surely no longer exists."""
        self._roster = None
        seen = self._seen.get(run)
        if seen is not None:
            seen.gone = True

    def server_died(self, run: Run) -> None:
        """The host (Ray) says that this run died; it has been seen to run on for a while."""
        self._roster = None
        seen = self._seen.get(run)
        if seen is not None:
            seen.announced_dead = True

    def give_up(self, run: Run) -> None:
        """From now on this run is fenced, even if it is heard again, or for the first time."""
        self._given_up[run] = None
        self._roster = None

    def grant(self, run: Run, now: float) -> float:
        """The lease to answer a heartbeat with, in seconds; 0 for a run that is dead."""
        seen = self._seen.get(run)
        if seen is None or not self.is_live(run, now):
            return 0.0
        seen.lease_end = max(seen.lease_end, now + self._settings.lease_s * (1 + CLOCK_DRIFT))
        return self._settings.lease_s

    def forget(self, owned: Container[Run]) -> None:
        """Drop former runs that own nothing; each UUID keeps its newest."""

        def matters(run: Run) -> bool:
            return run.incarnation >= self._newest.get(run.uuid, 0) or run in owned

        self._seen = {run: seen for run, seen in self._seen.items() if matters(run)}
        self._given_up = {run: None for run in self._given_up if matters(run)}

    # ---- what follows -----------------------------------------------------------------------

    def is_live(self, run: Run, now: float) -> bool:
        """Whether this run counts as alive."""
        if run in self._given_up or self.is_replaced(run.uuid):
            return False
        seen = self._seen.get(run)
        if seen is None:
            return self._unheard_is_live(run, now)
        if seen.gone or seen.announced_dead:
            return False
        return now < self._silent_since(seen.heard_at) + self._settings.dead_after_s

    def _unheard_is_live(self, run: Run, now: float) -> bool:
        """A run this master has never heard may be talking to the others: give it time."""
        if run.incarnation < self._newest.get(run.uuid, 0):
            return False
        return now < self._silent_since(-NEVER) + self._settings.dead_after_s

    def may_hear(self, now: float) -> bool:
        """Whether servers that live may not have had the time yet to be heard by this leader."""
        return self._unheard_is_live(Run(ServerUuid(""), 0), now)

    def _silent_since(self, heard_at: float) -> float:
        return max(heard_at, self.lead_since, self._listening_since)

    def is_given_up(self, run: Run) -> bool:
        """Whether this run is to be told that it must start again."""
        seen = self._seen.get(run)
        if self.is_replaced(run.uuid):
            return True
        return run in self._given_up or (seen is not None and seen.gone)

    def free_at(self, run: Run) -> float:
        """The earliest time at which this run surely no longer serves, if it gets no new lease."""
        seen = self._seen.get(run)
        if seen is not None and seen.gone:
            return -NEVER
        if seen is None and run.incarnation < self._newest.get(run.uuid, 0):
            return -NEVER
        former_leaders = self.former_leases_end
        return max(former_leaders, seen.lease_end) if seen is not None else former_leaders

    @property
    def former_leases_end(self) -> float:
        """The time at which every lease that a former leader granted has ended."""
        return self.lead_since + self._settings.lease_s * (1 + CLOCK_DRIFT)

    def find(self, run: Run) -> Seen | None:
        return self._seen.get(run)

    def newest(self, uuid: ServerUuid) -> Seen | None:
        """The latest run of a server that this master has heard."""
        incarnation = self._newest.get(uuid)
        return None if incarnation is None else self._seen[Run(uuid, incarnation)]

    def all(self) -> list[Seen]:
        """The latest run of every server ever heard, by kind and name."""
        return sorted(
            self.newest_runs(),
            key=lambda seen: (seen.server.kind, seen.server.name, seen.server.uuid),
        )

    def newest_runs(self) -> list[Seen]:
        """The latest run of every server ever heard, in the order of first being heard."""
        return [self._seen[Run(uuid, incarnation)] for uuid, incarnation in self._newest.items()]

    def live(self, kind: ServerKind, now: float) -> tuple[Seen, ...]:
        """Live servers of a kind, by name."""
        roster = self.roster(now)
        match kind:
            case ServerKind.TSERVER:
                return roster.tservers
            case ServerKind.BACKUP:
                return roster.backups
            case ServerKind.SAFEKEEPER:
                return roster.safekeepers
            case ServerKind.CAS_STORE:
                return roster.cas_stores
            case ServerKind.MASTER:
                return ()

    def live_server(self, uuid: ServerUuid, now: float) -> Seen | None:
        """A server by its UUID, if its latest run is live and was heard."""
        seen = self.newest(uuid)
        return seen if seen is not None and self.is_live(run_of(seen), now) else None

    def silent_s(self, uuid: ServerUuid, now: float) -> float:
        """How long a server has not been heard, in any of its runs, while this master leads and is
        awake."""
        seen = self.newest(uuid)
        if seen is not None and seen.heard_at > self.lead_since:
            return self._awake_s(seen.heard_at, seen.slept_before, now)
        return self._awake_s(self.lead_since, self._slept_before_lead_s, now)

    def missed_s(self, uuid: ServerUuid, now: float) -> float:
        """The same, with what this master has not heard before it led: servers heartbeat to every
        master. Only once they had the time to reach this one as their leader."""
        if now < self.lead_since + self._settings.dead_after_s:
            return self.silent_s(uuid, now)
        seen = self.newest(uuid)
        if seen is None:
            return self._awake_s(self._awake_since, 0.0, now)
        return self._awake_s(seen.heard_at, seen.slept_before, now)

    def _awake_s(self, since: float, slept_before: float, now: float) -> float:
        """For how long of that time this master was awake."""
        return max(0.0, now - since - (self._slept_s - slept_before))

    def reporters(self, now: float) -> Reporters:
        """Who reports replicas. The same object for as long as nobody says anything new."""
        tservers = self.roster(now).tservers
        made_from = tuple((run_of(seen), seen.picture.version) for seen in tservers)
        if made_from != self._reporters.made_from:
            of: dict[TabletId, list[Seen]] = {}
            for seen in tservers:
                for tablet_id, report in seen.reports.items():
                    if report.group is not None:
                        of.setdefault(tablet_id, []).append(seen)
            self._reporters = Reporters(made_from, of)
        return self._reporters

    def roster(self, now: float) -> Roster:
        """The live servers. Made anew only when somebody came, or may have gone."""
        roster = self._roster
        if roster is None or now >= roster.until:
            roster = self._roster = self._make_roster(now)
        return roster

    def _make_roster(self, now: float) -> Roster:
        live = [seen for seen in self.all() if self.is_live(run_of(seen), now)]
        tservers = tuple(seen for seen in live if seen.server.kind is ServerKind.TSERVER)
        backups = tuple(seen for seen in live if seen.server.kind is ServerKind.BACKUP)
        keepers = tuple(seen for seen in live if seen.server.kind is ServerKind.SAFEKEEPER)
        stores = tuple(seen for seen in live if seen.server.kind is ServerKind.CAS_STORE)
        servers = tuple(seen.server for seen in (*tservers, *backups, *keepers))
        heard = min((self._silent_since(seen.heard_at) for seen in live), default=NEVER)
        until = heard + self._settings.dead_after_s
        return Roster(tservers, backups, keepers, stores, servers, roster_version(servers), until)


def roster_version(servers: tuple[ServerInfo, ...]) -> int:
    """Of a list of servers, made from its content; never 0."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(servers), digest_size=7).digest()
    return int.from_bytes(digest, "big") + 1


def run_of(seen: Seen) -> Run:
    """Which run a record is about."""
    return Run(seen.server.uuid, seen.server.incarnation)
