"""How much memory tablets need at the servers that are to open them. Pure.

A server that recovers a tablet has nothing of it in memory at first, so heartbeats say nothing of
what is to come there. Ten tablets of a dead server would all seem to fit.

Rules:

1. A tablet's size is the most that its owners, alive or dead, said of it lately. It is kept until
   the tablet is served: the next owner's reports begin with nothing.
2. A size that nobody knows is 0: the tablet then goes where there is least to do. A new leader
   master begins so with tablets whose owners it never heard.
3. `coming_bytes` of a server: of each tablet that it is opening, what its reports lack of the size.

Source: decisions §66.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.servers import TabletReport
from stelae.core.records.records import TabletRecord


def live_bytes(report: TabletReport) -> int:
    """What a tablet's rows take in memory, or will once all are there."""
    lives = report.memory_bytes
    if report.cleaning is not None:
        lives = report.cleaning.live_bytes
    elif report.group is not None and report.group.live_bytes:
        lives = report.group.live_bytes
    return min(lives, report.memory_bytes) + report.remote_bytes


KEPT_S = 60.0
"""Time for which the size of a tablet is kept that is served: it may be about to be closed."""


@dataclass(frozen=True, slots=True)
class _Size:
    size_bytes: int
    noted_at: float


class TabletSizes:
    """Sizes in bytes of tablets that are not served just now, or are to be closed."""

    def __init__(self) -> None:
        self._known: dict[TabletId, _Size] = {}

    def note(self, tablet_id: TabletId, report: TabletReport | None, now: float) -> None:
        """Take over what an owner says, if it is more than what is known (rule 1)."""
        if report is not None:
            self._note(tablet_id, live_bytes(report), now)

    def _note(self, tablet_id: TabletId, size_bytes: int, now: float) -> None:
        if size_bytes > 0:
            self._known[tablet_id] = _Size(max(self.of(tablet_id), size_bytes), now)

    def inherit(self, parent: TabletId, children: Iterable[TabletId], now: float) -> None:
        """Parts of a split tablet are evenly large."""
        parts = tuple(children)
        for child in parts:
            self._note(child, self.of(parent) // len(parts), now)

    def forget(self, opening: Callable[[], Iterable[TabletRecord]], now: float) -> None:
        """Forget tablets that are neither being opened nor were noted a moment ago."""
        if not self._known:
            return
        kept = {tablet.tablet_id: None for tablet in opening()}
        self._known = {
            tablet_id: size
            for tablet_id, size in self._known.items()
            if tablet_id in kept or now < size.noted_at + KEPT_S
        }

    def of(self, tablet_id: TabletId) -> int:
        """0: not known."""
        known = self._known.get(tablet_id)
        return 0 if known is None else known.size_bytes

    def coming_bytes(
        self,
        opening: Iterable[TabletRecord],
        reports: Mapping[ServerUuid, Mapping[TabletId, TabletReport]],
    ) -> dict[ServerUuid, int]:
        """What is promised to each server: ``opening`` names the tablets that are not served, and
        ``reports`` what each server says of its tablets (rule 3)."""
        coming: dict[ServerUuid, int] = {}
        for tablet in opening if self._known else ():
            said = reports.get(tablet.owner, {}).get(tablet.tablet_id)
            there = live_bytes(said) if said is not None and said.term == tablet.term else 0
            lacks = max(0, self.of(tablet.tablet_id) - there)
            coming[tablet.owner] = coming.get(tablet.owner, 0) + lacks
        return coming
