"""A model of a log's writer and its backups, in steps as small as one answer from one backup.

It keeps the order rules of `stelae.actors.tserver.tablet_log.segment_log`: open before close, no
data before the predecessor's close, replacement under a higher epoch that the catalog has before
the next acknowledgement. `step` advances by one step; whoever drives it stops anywhere: that is a
crash.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from stelae.core.ids import Address, ServerUuid, TableId, TabletId, segment_id
from stelae.core.messages.backups import LogInventory, ReplicaInfo, ReplicaState
from stelae.core.records.records import ServerInfo, ServerKind, TabletRecord, TabletState
from stelae.core.runtime import ProcessIdentity

TABLET = TabletId("a" * 32)


def backup_info(number: int) -> ServerInfo:
    """A backup as the catalog knows it."""
    name = f"b{number}"
    return ServerInfo(
        kind=ServerKind.BACKUP,
        name=name,
        uuid=ServerUuid(name),
        incarnation=1,
        address=Address(f"{name}:1"),
        process=ProcessIdentity("node", number, 0.0),
        media=("disk",),
    )


@dataclass
class Held:
    """A replica as its backup has it. ``length`` counts entries."""

    term: int
    epoch: int
    length: int
    digest: tuple[int, ...]
    state: ReplicaState = ReplicaState.OPEN


@dataclass
class Segment:
    """A segment as its writer has it."""

    id: int
    digest: tuple[int, ...]
    epoch: int = 0
    length: int = 0
    acked: int = 0
    homes: list[int] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)
    """Homes that did not answer: they are replaced before anything more is acknowledged."""
    is_closed: bool = False
    """On all replicas."""


class LogModel:
    """One writer of ``replica_count`` replicas over ``backup_count`` backups."""

    def __init__(self, rng: random.Random, replica_count: int, backup_count: int) -> None:
        self.rng = rng
        self.replica_count = replica_count
        self.backups: list[dict[int, Held]] = [{} for _ in range(backup_count)]
        self.lost: set[int] = set()
        """Backups that the writer cannot reach. They keep what they hold, and may come back."""
        self.segments: list[Segment] = []
        self.mark = (0, 0)
        self._work = self._run()

    def step(self) -> None:
        """One step of the writer."""
        next(self._work)

    # ---- the writer -------------------------------------------------------------------------

    def _run(self) -> Iterator[None]:
        yield from self._open()
        while True:
            if self.rng.random() < 0.3:
                yield from self._roll()
            else:
                yield from self._append()

    def _open(self) -> Iterator[None]:
        new = segment_id(1, len(self.segments) + 1)
        segment = Segment(new, (*(other.id for other in self.segments), new))
        live = [b for b in range(len(self.backups)) if b not in self.lost]
        segment.homes = self.rng.sample(live, min(self.replica_count, len(live)))
        self.segments.append(segment)
        yield from self._put_all(segment)
        while len(segment.homes) < self.replica_count or segment.failed:
            yield from self._repair(segment)

    def _append(self) -> Iterator[None]:
        head = self.segments[-1]
        head.length += 1
        yield from self._put_all(head)
        yield from self._repair(head)
        head.acked = head.length

    def _roll(self) -> Iterator[None]:
        old = self.segments[-1]
        yield from self._open()
        while True:
            yield from self._put_all(old, close=True)
            if not old.failed:
                break
            yield from self._repair(old)
        old.is_closed = True
        yield from self._repair(self.segments[-1])
        if self.segments[-1].epoch:  # its replacement waited for the close of the older one
            yield
            self.mark = max(self.mark, (self.segments[-1].id, self.segments[-1].epoch))

    def _put_all(self, segment: Segment, close: bool = False) -> Iterator[None]:
        for home in self.rng.sample(segment.homes, len(segment.homes)):
            yield from self._put(segment, home, close)

    def _put(self, segment: Segment, home: int, close: bool = False) -> Iterator[None]:
        """Bring one replica to the segment's present content, if its backup can be reached."""
        yield
        if home in self.lost:
            segment.failed.add(home)
            return
        present = self.backups[home].get(segment.id)
        if present is not None and present.state is ReplicaState.CLOSED:
            return
        state = ReplicaState.CLOSED if close else ReplicaState.OPEN
        self.backups[home][segment.id] = Held(
            1, segment.epoch, segment.length, segment.digest, state
        )

    def _repair(self, segment: Segment) -> Iterator[None]:
        """Replace failed replicas of a segment that is not closed, under a higher epoch."""
        while segment.failed or len(segment.homes) < self.replica_count:
            segment.epoch += 1
            kept = [home for home in segment.homes if home not in segment.failed]
            spare = [b for b in range(len(self.backups)) if b not in (*self.lost, *kept)]
            missing = self.replica_count - len(kept)
            if len(spare) < missing:
                yield  # nothing is acknowledged without all replicas
                continue
            segment.homes = kept + self.rng.sample(spare, missing)
            segment.failed = set()
            yield from self._put_all(segment)
            older_closed = all(s.is_closed for s in self.segments if s.id < segment.id)
            if older_closed and not segment.failed:
                yield
                self.mark = max(self.mark, (segment.id, segment.epoch))

    # ---- what a recovery sees ---------------------------------------------------------------

    @property
    def tablet(self) -> TabletRecord:
        """The catalog's record, in the recovery's term."""
        return TabletRecord(
            tablet_id=TABLET,
            table_id=TableId("t"),
            number=0,
            state=TabletState.RECOVERING,
            term=2,
            owner=ServerUuid("new"),
            owner_incarnation=1,
            valid_segment=self.mark[0],
            valid_epoch=self.mark[1],
        )

    def inventories(self, reachable: set[int]) -> dict[ServerInfo, LogInventory]:
        """What the reachable backups answer."""
        return {
            backup_info(number): LogInventory(
                TABLET,
                2,
                tuple(
                    ReplicaInfo(
                        segment_id=segment,
                        term=held.term,
                        epoch=held.epoch,
                        state=held.state,
                        medium="disk",
                        length=held.length,
                        crc=held.length,
                        digest=held.digest if held.state is ReplicaState.OPEN else (),
                    )
                    for segment, held in sorted(self.backups[number].items())
                ),
            )
            for number in sorted(reachable)
        }
