"""The story of each recovery, for people: what died, how far each tablet is, how long each phase
took.

Nothing is decided from it, so it lives in the leader's memory only; a new leader begins a new page
for what it finds unfinished. Times are seconds of the leader's monotonic clock, shown relative to
the moment of detection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from stelae.core.ids import TabletId
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TabletRecord

KEPT = 50
"""Finished recoveries that are still shown."""
ENGINES_KEPT = 16
"""Of one recovery: those that began last."""
PHASES = ("raised", "fenced", "planned", "opened", "running")
"""After ``detected``: term raised in the catalog, backups fenced, log found complete, new owner
told to open, handed over. A phase's time is that of the last tablet to reach it."""


@dataclass(slots=True)
class EngineUse:
    """One engine at work on tablets that were opened together: what was expected, what came."""

    engine: str
    tablets: int
    size_bytes: int
    """Of their logs."""
    expected_s: dict[str, float]
    """By engine: how long it was expected to take from ``planned`` to ``running``."""
    took_s: float | None = None
    """None: under way."""
    retries: int = 0
    failed: int = 0
    """Tablets that it did not bring back: it failed, or their recovery began again."""
    problem: str = ""
    """Why it was asked again, or given up."""

    def describe(self) -> dict[str, Any]:
        """Its part of the status document."""
        failed = "failed" if self.failed == self.tablets else "partly failed"
        outcome = "running" if self.took_s is None else failed if self.failed else "done"
        return {
            "engine": self.engine,
            "outcome": outcome,
            "tablets": self.tablets,
            "failed": self.failed,
            "retries": self.retries,
            "log_bytes": self.size_bytes,
            "expected_s": {name: round(time_s, 3) for name, time_s in self.expected_s.items()},
            "took_s": None if self.took_s is None else round(self.took_s, 3),
            "problem": self.problem,
        }


@dataclass(slots=True)
class TabletRecovery:
    """One tablet of a recovery."""

    table: str
    rows_before: int = 0
    """What its former owner has told of it; 0: nothing."""
    owner: str = ""
    reached: dict[str, float] = field(default_factory=dict)
    report: TabletReport | None = None
    problem: str = ""

    @property
    def loaded(self) -> float:
        """Share of its rows that are in memory, as far as was reported."""
        return 0.0 if self.report is None else loaded_share(self.report)

    @property
    def loaded_at(self) -> float:
        """When all of them were; infinite: they are not yet."""
        if self.report is None or self.report.remote_bytes or "running" not in self.reached:
            return math.inf
        return self.reached["running"] + self.report.loaded_s


def loaded_share(report: TabletReport) -> float:
    """Share of a recovered tablet's sealed rows that are in memory, by their bytes."""
    if not report.remote_bytes:
        return 1.0
    return 1.0 - report.remote_bytes / max(report.remote_bytes, report.remote_bytes_at_first)


@dataclass(slots=True)
class Recovery:
    """All tablets that one dead server owned."""

    number: int
    server: str
    cause: str
    started: float
    """Wall clock, for people."""
    detected: float
    silent_s: float
    """How long the server had not been heard when it was found dead."""
    engines: list[EngineUse] = field(default_factory=list)
    """In the order in which they began."""
    tablets: dict[TabletId, TabletRecovery] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return all("running" in tablet.reached for tablet in self.tablets.values())

    def phases(self) -> dict[str, float]:
        """Seconds from detection until all tablets had reached each phase."""
        times: dict[str, float] = {}
        for phase in PHASES:
            reached = [t.reached[phase] for t in self.tablets.values() if phase in t.reached]
            if reached and len(reached) == len(self.tablets):
                times[phase] = max(reached) - self.detected
        return times

    def describe(self) -> dict[str, Any]:
        """Its part of the status document."""
        loaded_at = max((t.loaded_at for t in self.tablets.values()), default=math.inf)
        shares = [tablet.loaded for tablet in self.tablets.values()]
        return {
            "id": self.number,
            "server": self.server,
            "cause": self.cause,
            "state": "done" if self.is_done else "running",
            "engine": self.engines[-1].engine if self.engines else "native",
            "engines": [use.describe() for use in self.engines],
            "started": self.started,
            "silent_s": round(self.silent_s, 6),
            "phases_s": {name: round(time_s, 6) for name, time_s in self.phases().items()},
            "tablets_total": len(self.tablets),
            "tablets_running": sum("running" in t.reached for t in self.tablets.values()),
            "loaded": round(sum(shares) / max(1, len(shares)), 3),
            "loaded_s": None if loaded_at == math.inf else round(loaded_at - self.detected, 6),
            "tablets": [self._tablet(t_id, t) for t_id, t in self.tablets.items()],
        }

    def _tablet(self, tablet_id: TabletId, tablet: TabletRecovery) -> dict[str, Any]:
        report = tablet.report
        return {
            "id": tablet_id,
            "table": tablet.table,
            "owner": tablet.owner,
            "phase": max(tablet.reached, key=PHASES.index, default="detected"),
            "phases_s": {p: round(t - self.detected, 6) for p, t in tablet.reached.items()},
            "replay_s": dict(report.phases) if report is not None else {},
            "rows": report.row_count if report is not None else 0,
            "loaded": round(tablet.loaded, 3),
            "problem": tablet.problem,
        }


def why_unknown(tablet: TabletRecord) -> str:
    """What has begun the recovery of a tablet of which this leader has no page."""
    return "found unfinished by a new leader" if tablet.kept is None else "a loss was accepted"


class Recoveries:
    """The recoveries that this leader has seen."""

    def __init__(self) -> None:
        self._all: list[Recovery] = []
        self._of_tablet: dict[TabletId, Recovery] = {}
        self.incomplete: dict[TabletId, None] = {}
        """Tablets that cannot be opened, as segments of their logs are nowhere to be had."""
        self._loading: dict[TabletId, TabletRecovery] = {}
        """Tablets that are served while their rows are still on their way."""
        self._started = 0

    def begin(
        self, server: str, cause: str, *, now: float, wall: float, silent_s: float
    ) -> Recovery:
        """Open a page for a dead server."""
        self._started += 1
        recovery = Recovery(self._started, server, cause, wall, now, silent_s)
        self._all.append(recovery)
        done = [r for r in self._all if r.is_done]
        for old in done[: max(0, len(done) - KEPT)]:
            self._all.remove(old)
        return recovery

    def running(self, server: str) -> Recovery | None:
        """The unfinished recovery of that server, if there is one: later tablets join it."""
        found = [r for r in self._all if r.server == server and not r.is_done]
        return found[-1] if found else None

    def unfinished(self) -> list[Recovery]:
        """Those of which some tablet is not served yet, oldest first."""
        return [r for r in self._all if r.tablets and not r.is_done]

    def add(
        self, recovery: Recovery, tablet_id: TabletId, table: str, rows_before: int = 0
    ) -> None:
        """A tablet belongs to this recovery from now on."""
        recovery.tablets[tablet_id] = TabletRecovery(table, rows_before)
        self._loading.pop(tablet_id, None)
        self._of_tablet[tablet_id] = recovery

    def split(self, tablet_id: TabletId, parts: Iterable[TabletId]) -> None:
        """Its parts are recovered in its place; nobody has told how many rows each has."""
        recovery = self._of_tablet.pop(tablet_id, None)
        if recovery is None:
            return
        former = recovery.tablets.pop(tablet_id)
        reached = {p: at for p, at in former.reached.items() if p == "raised"}
        for part in parts:
            recovery.tablets[part] = TabletRecovery(former.table, reached=dict(reached))
            self._of_tablet[part] = recovery

    def of(self, tablet_id: TabletId) -> Recovery | None:
        """The unfinished recovery that a tablet is part of."""
        return self._of_tablet.get(tablet_id)

    def reached(
        self, tablet_ids: Iterable[TabletId], phase: str, now: float, *, began: float = math.inf
    ) -> None:
        """These tablets have come to a phase; a new attempt passes it again.

        ``began``: when the way to this phase began; what follows it may have been noted since then.
        """
        for tablet_id in tablet_ids:
            recovery = self._of_tablet.get(tablet_id)
            if recovery is None:
                continue
            tablet = recovery.tablets[tablet_id]
            later = PHASES[PHASES.index(phase) + 1 :]
            since = {p: tablet.reached.get(p, -math.inf) for p in later}
            noted = {p: at for p, at in since.items() if at >= began}
            before = {p: at for p, at in tablet.reached.items() if p not in later}
            tablet.reached = {**before, phase: min([now, *noted.values()]), **noted}
            if phase == "running":
                if "planned" in before:  # its report may overtake the answer to the order to open
                    before.setdefault("opened", now)
                    tablet.reached = {**before, phase: now}
                tablet.problem = ""
                self._loading[tablet_id] = tablet
                del self._of_tablet[tablet_id]

    def note(
        self,
        tablet_id: TabletId,
        *,
        owner: str | None = None,
        report: TabletReport | None = None,
        problem: str | None = None,
    ) -> None:
        """Keep what is new about a tablet."""
        recovery = self._of_tablet.get(tablet_id)
        if recovery is None:
            return
        tablet = recovery.tablets[tablet_id]
        tablet.owner = tablet.owner if owner is None else owner
        tablet.report = tablet.report if report is None else report
        tablet.problem = tablet.problem if problem is None else problem

    def rows_before(self, tablet_id: TabletId) -> int:
        """How many rows a tablet had, as its former owner has told; 0: nobody knows."""
        recovery = self._of_tablet.get(tablet_id)
        return 0 if recovery is None else recovery.tablets[tablet_id].rows_before

    def note_engine(self, tablet_ids: Iterable[TabletId], use: EngineUse) -> None:
        """An engine begins with these tablets, of whichever recoveries they are."""
        for tablet_id in tablet_ids:
            recovery = self._of_tablet.get(tablet_id)
            if recovery is not None and use not in recovery.engines[-1:]:
                recovery.engines = [*recovery.engines, use][-ENGINES_KEPT:]

    def drop(self, tablet_ids: Iterable[TabletId]) -> None:
        """These tablets are deleted: nothing of them is awaited any more."""
        for tablet_id in tablet_ids:
            self._loading.pop(tablet_id, None)
            self.incomplete.pop(tablet_id, None)
            recovery = self._of_tablet.pop(tablet_id, None)
            if recovery is not None:
                del recovery.tablets[tablet_id]

    def _look(self, report_of: Callable[[TabletId], TabletReport | None]) -> None:
        """See how far those are whose rows are still on their way."""
        for tablet_id, tablet in list(self._loading.items()):
            report, known = report_of(tablet_id), tablet.report
            if report is None:
                continue
            is_same = known is None or report.term == known.term
            if is_same:
                tablet.report = report
            if not is_same or not report.remote_bytes:
                del self._loading[tablet_id]

    def describe(
        self, report_of: Callable[[TabletId], TabletReport | None] = lambda _: None
    ) -> list[dict[str, Any]]:
        """All of them, for the status document, newest first. ``report_of``: what the tablet's
        owner says now."""
        self._look(report_of)
        return [recovery.describe() for recovery in reversed(self._all) if recovery.tablets]
