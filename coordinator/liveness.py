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

All times are seconds of this master's monotonic clock, given by the caller. Design §7, §9;
RAMCloud's probabilistic read fencing is replaced by leases.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import NamedTuple

from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages import Heartbeat, TabletReport
from stelae.core.records import ServerInfo, ServerKind
from stelae.core.settings import Settings

CLOCK_DRIFT = 0.01
"""Clocks of two servers may run at rates that differ by so much."""
NEVER = float("inf")


class Run(NamedTuple):
    """One run of one server process."""

    uuid: ServerUuid
    incarnation: int


@dataclass(slots=True)
class Seen:
    """What this master knows of a run: its last heartbeat, and what came of it."""

    heartbeat: Heartbeat
    heard_at: float
    first_heard_at: float
    reports: dict[TabletId, TabletReport] = field(default_factory=dict)
    """The tablets of the last heartbeat, and what was reported since."""
    reported_at: dict[TabletId, float] = field(default_factory=dict)
    """When each of them was last reported (a tablet that vanished stays)."""
    lease_end: float = -NEVER
    """No lease granted by this leader lasts longer."""
    gone: bool = False
    """Its process surely no longer runs."""
    announced_dead: bool = False
    """Its host said so; the process may still run for a while."""

    @property
    def server(self) -> ServerInfo:
        return self.heartbeat.server


class Liveness:
    """The masters' notion of every server; followers keep it warm, the leader acts on it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: dict[Run, Seen] = {}  # in the order of first being heard
        self._newest: dict[ServerUuid, int] = {}
        self._given_up: dict[Run, None] = {}
        self._listening_since = -NEVER
        self.lead_since = -NEVER
        """When this master last became leader."""

    # ---- what happens -----------------------------------------------------------------------

    def stalled(self, now: float) -> None:
        """This master itself did nothing until now: the silence of others was its own."""
        self._listening_since = now

    def lead(self, now: float) -> None:
        """This master has become leader: silence counts from here, former leases are feared."""
        self.lead_since = now
        self._given_up.clear()

    def heartbeat(self, heartbeat: Heartbeat, now: float) -> None:
        """Take note of a heartbeat. One that was overtaken by a later one adds nothing."""
        run = Run(heartbeat.server.uuid, heartbeat.server.incarnation)
        newest = self._newest.get(run.uuid)
        if newest is None or run.incarnation > newest:
            self._newest[run.uuid] = run.incarnation
            self._replace_former(run)
        seen = self._seen.get(run)
        if seen is None:
            seen = self._seen[run] = Seen(heartbeat, now, now)
        elif heartbeat.sent < seen.heartbeat.sent:
            return
        seen.heartbeat, seen.heard_at = heartbeat, now
        if heartbeat.server.kind is not ServerKind.TSERVER:
            seen.announced_dead = False  # it speaks; and nothing was taken from it
        if run.incarnation < self._newest[run.uuid]:
            seen.gone = True
        reports = {report.tablet_id: report for report in heartbeat.tablets}
        seen.reports = reports
        for tablet_id in reports:
            seen.reported_at[tablet_id] = now

    def _replace_former(self, run: Run) -> None:
        for former, seen in self._seen.items():
            if former.uuid == run.uuid and former.incarnation < run.incarnation:
                seen.gone = True

    def report(self, run: Run, report: TabletReport, now: float) -> None:
        """A tablet's news between heartbeats (`TABLET_OPENED`)."""
        seen = self._seen.get(run)
        if seen is None:
            return
        known = seen.reports.get(report.tablet_id)
        if known is None or known.term <= report.term:
            seen.reports[report.tablet_id] = report
            seen.reported_at[report.tablet_id] = now

    def process_gone(self, run: Run) -> None:
        """The process of this run surely no longer exists."""
        seen = self._seen.get(run)
        if seen is not None:
            seen.gone = True

    def server_died(self, run: Run) -> None:
        """The host (Ray) says that this run died; it has been seen to run on for a while."""
        seen = self._seen.get(run)
        if seen is not None:
            seen.announced_dead = True

    def give_up(self, run: Run) -> None:
        """From now on this run is fenced, even if it is heard again, or for the first time."""
        self._given_up[run] = None

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
        if run in self._given_up:
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

    def _silent_since(self, heard_at: float) -> float:
        return max(heard_at, self.lead_since, self._listening_since)

    def is_given_up(self, run: Run) -> bool:
        """Whether this run is to be told that it must start again."""
        seen = self._seen.get(run)
        return run in self._given_up or (seen is not None and seen.gone)

    def free_at(self, run: Run) -> float:
        """The earliest time at which this run surely no longer serves, if it gets no new lease."""
        seen = self._seen.get(run)
        if seen is not None and seen.gone:
            return -NEVER
        if seen is None and run.incarnation < self._newest.get(run.uuid, 0):
            return -NEVER
        former_leaders = self.lead_since + self._settings.lease_s * (1 + CLOCK_DRIFT)
        return max(former_leaders, seen.lease_end) if seen is not None else former_leaders

    def find(self, run: Run) -> Seen | None:
        return self._seen.get(run)

    def newest(self, uuid: ServerUuid) -> Seen | None:
        """The latest run of a server that this master has heard."""
        incarnation = self._newest.get(uuid)
        return None if incarnation is None else self._seen[Run(uuid, incarnation)]

    def all(self) -> list[Seen]:
        """The latest run of every server ever heard, by kind and name."""
        found = [self._seen[Run(uuid, inc)] for uuid, inc in self._newest.items()]
        return sorted(
            found, key=lambda seen: (seen.server.kind, seen.server.name, seen.server.uuid)
        )

    def live(self, kind: ServerKind, now: float) -> list[Seen]:
        """Live servers of a kind, by name."""
        return [s for s in self.all() if s.server.kind is kind and self.is_live(run_of(s), now)]


def run_of(seen: Seen) -> Run:
    """Which run a record is about."""
    return Run(seen.server.uuid, seen.server.incarnation)
