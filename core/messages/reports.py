"""Incremental reports: what a server holds, told by changes, and never out of step for long.

A server numbers its heartbeats to each master. A report is full, or says what has changed since a
report that this very master has said it processed (``since``): every tablet touched after that one,
with how it is now, or that it is gone. So a report may be lost, doubled or overtaken, and the next
one makes up for it: nothing is told only once (Kudu's incremental reports are edge-triggered and
name a tablet in one report only: KUDU-1374). A digest of all that is held comes with each report;
where it does not fit, for whatever reason, the master asks for a full one.

Only the leader keeps such a picture. It begins each leadership with none, so that every server
sends it a full report first, until one is processed.

Source: seed Kudu multi-master, "Send full heartbeats to newly elected leader masters".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

from crc32c import crc32c

from stelae.core.ids import TabletId
from stelae.core.messages.indexes import IndexletReport
from stelae.core.messages.servers import FULL, NO_REPORT, Heartbeat, HeartbeatReply, TabletReport
from stelae.core.schema.indexes import IndexletId

V = TypeVar("V")
_GROWTH = (
    "row_count", "memory_bytes", "segment_count", "under_replicated", "phases", "group",
    "load_per_s", "cleaning", "remote_bytes", "remote_bytes_at_first", "loaded_s",
)  # fmt: skip
_essence = attrgetter(*(n for n in TabletReport.__struct_fields__ if n not in _GROWTH))
MAX_VANISHED = 10_000
"""Of so many tablets, the last ones, it is known when they vanished."""
NOTHING = -1
"""Number of the last report processed, where there is none."""


def tablet_fingerprint(tablet_id: TabletId, report: TabletReport) -> int:
    """What a tserver's digest sums up for one tablet."""
    said = (report.term, report.progress, report.schema_version, report.renames)
    return crc32c(f"{tablet_id}/{said}".encode())


def log_fingerprint(tablet_id: TabletId, held: None) -> int:
    """What a backup's digest sums up for one log."""
    del held
    return crc32c(tablet_id.encode())


def is_news(known: TabletReport | None, report: TabletReport) -> bool:
    """Whether a report says more than that a tablet, or its log, has grown, or is busy."""
    if known is None:
        return True
    if known == report:
        return False
    return _essence(known) != _essence(report) or _group(known) != _group(report)


def _group(report: TabletReport) -> tuple[object, ...]:
    """What decisions are made from in a replica's report."""
    group = report.group
    if group is None:
        return ()
    peers = tuple((peer.uuid, peer.is_heard) for peer in group.peers)
    role = (group.role, group.no_room, group.tries_again)
    return (role, group.leader, group.configuration, group.is_changing, peers)


def _stages(indexlets: Mapping[IndexletId, IndexletReport]) -> list[tuple[object, ...]]:
    """What decisions are made from in what is said of indexlets, but how large they are."""
    return [(i, r.term, r.progress, r.hand_over, r.successors) for i, r in indexlets.items()]


# ---- the sender's side ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report(Generic[V]):
    """What goes into one heartbeat."""

    number: int
    since: int
    changed: tuple[tuple[TabletId, V], ...]
    removed: tuple[TabletId, ...]
    digest: int


class Reporter(Generic[V]):
    """What one server tells one master, one heartbeat after the other."""

    def __init__(self, fingerprint: Callable[[TabletId, V], int]) -> None:
        self._fingerprint = fingerprint
        self._number = 0
        self._processed = FULL
        self._is_leader = True  # as long as it has not said otherwise
        self._told: dict[TabletId, V] = {}
        self._dirty: dict[TabletId, None] = {}
        self._digest = 0
        self._asked = False

    @property
    def wants_report(self) -> bool:
        """Whether this master is thought to lead, and is told what is held."""
        return self._is_leader

    def next(self, current: Mapping[TabletId, V]) -> Report[V]:
        """The report to send now. ``current`` is all that is held (of no matter to a follower)."""
        self._number += 1
        if not self._is_leader:
            return Report(self._number, NO_REPORT, (), (), 0)
        self._compare(current)
        if self._processed == FULL:
            return Report(self._number, FULL, tuple(current.items()), (), self._digest)
        changed = tuple((i, current[i]) for i in self._dirty if i in current)
        removed = tuple(tablet_id for tablet_id in self._dirty if tablet_id not in current)
        return Report(self._number, self._processed, changed, removed, self._digest)

    def _compare(self, current: Mapping[TabletId, V]) -> None:
        """Mark what differs from the last report sent, whatever became of that."""
        told = self._told
        for tablet_id, value in current.items():
            if tablet_id in told:
                known = told[tablet_id]
                if known is value or known == value:
                    continue
                self._digest -= self._fingerprint(tablet_id, known)
            self._digest += self._fingerprint(tablet_id, value)
            self._dirty[tablet_id] = None
            told[tablet_id] = value
        if len(told) > len(current):
            for tablet_id in [i for i in told if i not in current]:
                self._digest -= self._fingerprint(tablet_id, told.pop(tablet_id))
                self._dirty[tablet_id] = None

    def unanswered(self) -> None:
        """No answer came: whoever was a follower may lead by now, and be heard no more."""
        if not self._is_leader:
            self._is_leader, self._processed = True, FULL

    def answered(self, report: Report[V], reply: HeartbeatReply) -> bool:
        """Take the answer to the last report; true: a full one is wanted at once."""
        self._is_leader = reply.is_leader
        if reply.is_leader and reply.processed:
            self._processed, self._asked = report.number, False
            self._dirty.clear()
            return False
        self._processed = FULL
        again, self._asked = reply.is_leader and not self._asked, reply.is_leader
        return again


# ---- the master's side ----------------------------------------------------------------------


@dataclass(slots=True)
class Picture:
    """What one run of a server holds, exactly as of its report ``number``."""

    reports: dict[TabletId, TabletReport] = field(default_factory=dict)
    """Of a tserver's tablets; also what came between two reports (`TabletOpened`)."""
    logs: dict[TabletId, None] = field(default_factory=dict)
    """Of a backup: the tablets that it has replicas of."""
    indexlets: dict[IndexletId, IndexletReport] = field(default_factory=dict)
    """Of a tserver, all of them: each report names them all; and what hints say that are newer."""
    number: int = NOTHING
    exact_since: float = 0.0
    """When the first report of this leadership was processed."""
    version: int = 0
    """Grows with everything that decisions are made from."""
    vanished_at: dict[TabletId, float] = field(default_factory=dict)
    """When a tablet was first left out, or said to be gone."""
    _digest: int = 0
    _before_hint: dict[TabletId, TabletReport | None] = field(default_factory=dict)
    _hinted: dict[IndexletId, IndexletReport] = field(default_factory=dict)
    """Hints of indexlets that no report is known to be newer than. `reset` keeps them: they stay
    true of their moment, and the first full report may be older."""

    @property
    def is_exact(self) -> bool:
        """Whether this leadership has processed a report of it."""
        return self.number != NOTHING

    def reset(self) -> None:
        """Forget everything: the next report must be a full one."""
        self.reports, self.logs, self.vanished_at, self._before_hint = {}, {}, {}, {}
        self.indexlets = {}
        self.number, self._digest = NOTHING, 0
        self.version += 1

    def take(self, beat: Heartbeat, now: float) -> bool:
        """Take a report in; false: it cannot be used, and a full one is needed."""
        if beat.since == NO_REPORT:
            return False
        if 0 < beat.number <= self.number:
            return True  # doubled or overtaken: what it says is known
        if beat.since != FULL and self.number < beat.since:
            return False
        if not self.is_exact:
            self.exact_since = now
        self._forget_hints(now)
        if beat.since == FULL:
            self._take_all(beat, now)
        else:
            self._take_changes(beat, now)
        self._take_indexlets(beat)
        self.number = beat.number
        if beat.digest not in (0, self._digest):
            self.reset()
            return False
        return True

    def _take_all(self, beat: Heartbeat, now: float) -> None:
        listed = {report.tablet_id: None for report in beat.tablets}
        for tablet_id in [i for i in self.reports if i not in listed]:
            self._remove(tablet_id, now)
        for report in beat.tablets:
            self._put(report)
        logs = dict.fromkeys(beat.logs)
        if logs != self.logs:
            self.logs = logs
            self.version += 1
        self._digest = sum(tablet_fingerprint(i, report) for i, report in self.reports.items())
        self._digest += sum(log_fingerprint(log, None) for log in self.logs)

    def _take_changes(self, beat: Heartbeat, now: float) -> None:
        for report in beat.tablets:
            known = self.reports.get(report.tablet_id)
            if known is not None:
                self._digest -= tablet_fingerprint(report.tablet_id, known)
            self._digest += tablet_fingerprint(report.tablet_id, report)
            self._put(report)
        for log in beat.logs:
            if log not in self.logs:
                self._digest += log_fingerprint(log, None)
                self.logs[log] = None
                self.version += 1
        for tablet_id in beat.removed:
            gone = self.reports.get(tablet_id)
            if gone is not None:
                self._digest -= tablet_fingerprint(tablet_id, gone)
                self._remove(tablet_id, now)
            if tablet_id in self.logs:
                self._digest -= log_fingerprint(tablet_id, None)
                del self.logs[tablet_id]
                self.version += 1

    def _take_indexlets(self, beat: Heartbeat) -> None:
        # A report that was sent before an indexlet was opened does not name it. It is no proof
        # that the server closed it: tablets would be told of the drop of its index too soon, or
        # the indexlet would get another owner while this one still answers under its lease.
        self._hinted = {i: hint for i, hint in self._hinted.items() if hint.as_of >= beat.sent}
        indexlets = {report.indexlet_id: report for report in beat.indexlets} | self._hinted
        if _stages(indexlets) != _stages(self.indexlets):
            self.version += 1
        self.indexlets = indexlets

    def _put(self, report: TabletReport) -> None:
        if is_news(self.reports.get(report.tablet_id), report):
            self.version += 1
        self.reports[report.tablet_id] = report
        self.vanished_at.pop(report.tablet_id, None)

    def _remove(self, tablet_id: TabletId, now: float) -> None:
        del self.reports[tablet_id]
        self.vanished_at[tablet_id] = now
        if len(self.vanished_at) > MAX_VANISHED:
            del self.vanished_at[next(iter(self.vanished_at))]
        self.version += 1

    def hint(self, report: TabletReport) -> None:
        """A tablet's news between reports; the next report replaces it."""
        known = self.reports.get(report.tablet_id)
        if known is not None and known.term > report.term:
            return
        self._before_hint.setdefault(report.tablet_id, known)
        self._put(report)

    def hint_indexlet(self, report: IndexletReport) -> None:
        """The same of an indexlet; a report that was sent before the hint does not replace it."""
        known = self.indexlets.get(report.indexlet_id)
        if known is None or (known.term, known.as_of) <= (report.term, report.as_of):
            self._hinted[report.indexlet_id] = report
            self.indexlets = {**self.indexlets, report.indexlet_id: report}
            self.version += 1

    def _forget_hints(self, now: float) -> None:
        """Back to what was reported, which is what the digest is of."""
        for tablet_id, known in self._before_hint.items():
            if known is not None:
                self._put(known)
            elif tablet_id in self.reports:
                self._remove(tablet_id, now)
        self._before_hint = {}
