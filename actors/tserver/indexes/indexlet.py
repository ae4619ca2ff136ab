"""One indexlet at its owner, in one term: what it takes, what it answers, what it says of itself.

Everything is in memory, and nothing here outlives the owner: a lost indexlet is filled anew. An
insertion or removal counts once it is in `entries`, and once those that are to succeed this one
have it too; only then it is acknowledged, if the owner's lease still holds and this is not closed.
The protocol is told in `stelae.core.messages.indexes`. Source: SLIK (ATC 2016), seed RAMCloud.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import pyarrow as pa

from stelae.actors.tserver.indexes.entry_streams import entries_in, stream_of
from stelae.actors.tserver.indexes.lineage import Known, Lineage
from stelae.actors.tserver.tablet.load_rate import LoadRate
from stelae.core.errors import (
    IndexletNotHere,
    IndexletNotReady,
    InvalidArgument,
    Overloaded,
    StaleRequest,
    StaleTerm,
)
from stelae.core.messages.indexes import (
    ENTRIES_MAX,
    LOOKUP_ENTRIES_MAX,
    LOOKUPS_MAX,
    PIECE_BYTES,
    HandOverStage,
    IndexletProgress,
    IndexletReport,
    InsertEntries,
    KnownTablet,
    Lookup,
    LookupMany,
    LookupManyReply,
    LookupRange,
    LookupReply,
    RemoveEntries,
    TabletStamp,
)
from stelae.core.records.records import TableRecord
from stelae.core.rpc import Blob, Call, Reply
from stelae.core.runtime import Runtime
from stelae.core.schema.indexes import IndexletId, IndexletRecord, in_range, overlap
from stelae.core.tasks import Tasks
from stelae.storage.indexes.indexlet import Floor, IndexletEntries
from stelae.storage.indexes.runs import Run

FILLING_RUNS_MAX = 256
LOOKUP_WAIT_S = 0.5
"""For so long a look-up waits for an indexlet that is being filled, and is then refused."""
PUT_OFF_S = 0.1
"""Until runs are merged after all, if too much waits to be worked on off the loop."""
WAITING_MAX = 1000
"""Look-ups that wait so; others are refused at once."""
_SORTED_AT_ONCE = 4096
"""Up to so many entries of one message are sorted on the loop."""


class Forwarding(Protocol):
    """What brings an indexlet over to others; see
    `stelae.actors.tserver.indexes.indexlet_hand_over`."""

    generation: int
    """Which one it is."""
    stage: HandOverStage
    copied_entries: int

    @property
    def successors(self) -> tuple[IndexletId, ...]: ...

    def let_go(self) -> None:
        """The successors were given up."""

    async def forward(
        self, body: InsertEntries | RemoveEntries, blobs: Sequence[Blob], timeout_s: float
    ) -> None:
        """Have the successors take it too. Raises IndexletNotReady: it may not be acknowledged."""


class Indexlet:
    """See the module. ``may_acknowledge`` tells whether the owner's lease holds."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        server: str,
        record: IndexletRecord,
        table: TableRecord,
        may_acknowledge: Callable[[], bool],
    ) -> None:
        self.record = record
        self.table = table
        self.tasks = Tasks(tasks)
        self.entries = IndexletEntries()
        self.entries.keeps_removals = True  # until it has what there was before
        self.progress = IndexletProgress.FILLING
        self.problem = ""
        self.lineage = Lineage(table, self.entries)
        self.tablets = 0
        self.filled: set[int] = set()
        """Numbers of the tablets whose entries are here."""
        self.hand_over: Forwarding | None = None
        self.newest_hand_over = 0
        """The generation of the last one that the masters have told of, also if it was let go."""
        self.to_compare = asyncio.Event()
        """Some tablet has a new epoch."""
        self.to_merge = asyncio.Event()
        self.calls = 0
        self._runtime = runtime
        self._server = server
        self._may_acknowledge = may_acknowledge
        self._load = LoadRate()
        self._runs_seen = 0
        self._waiting: list[asyncio.Future[None]] = []
        """Look-ups that came before it answers."""

    @property
    def indexlet_id(self) -> IndexletId:
        return self.record.indexlet_id

    @property
    def term(self) -> int:
        return self.record.term

    @property
    def known(self) -> dict[int, Known]:
        """The tablets that it has heard of, by number."""
        return self.lineage.known

    @property
    def is_waiting_for_its_place(self) -> bool:
        """It is to succeed another one, which tells it everything."""
        return bool(self.record.succeeds) and self.progress is not IndexletProgress.SERVING

    @property
    def is_handing_over(self) -> bool:
        """Others are to have everything that is here."""
        return self.hand_over is not None and self.hand_over.stage is not HandOverStage.FAILED

    # ---- orders -------------------------------------------------------------------------------

    def serve(self) -> None:
        """The catalog says SERVING."""
        if self.progress is IndexletProgress.COMPLETE:
            self.progress = IndexletProgress.SERVING
            self.problem = ""
            self.to_compare.set()
            self._wake()

    def close(self) -> None:
        """Acknowledge nothing any more."""
        self.progress = IndexletProgress.CLOSED
        self._wake()

    def _wake(self) -> None:
        """Have look-ups that wait look again."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def report(self) -> IndexletReport:
        """For heartbeats and answers to orders."""
        hand_over = self.hand_over
        is_serving = self.progress is IndexletProgress.SERVING
        now = self._runtime.clock.monotonic()
        return IndexletReport(
            self.indexlet_id,
            self.term,
            self.progress,
            self.problem or self._lacks,
            self.entries.entry_count,
            self.entries.memory_bytes,
            len(self.filled),
            self.tablets,
            sum([not known.is_compared for known in self.known.values()]),
            self.entries.split_at() if is_serving else b"",
            self._load.look(self.calls, now) if is_serving else 0.0,
            HandOverStage.NONE if hand_over is None else hand_over.stage,
            () if hand_over is None else hand_over.successors,
            0 if hand_over is None else hand_over.copied_entries,
            now,
        )

    # ---- checks -------------------------------------------------------------------------------

    def check(self, term: int) -> None:
        """Raises StaleTerm, IndexletNotHere, IndexletNotReady: nothing may be answered now."""
        if term != self.term:
            raise StaleTerm(f"term of indexlet {self.indexlet_id}", term, self.term)
        if self.progress is IndexletProgress.CLOSED:
            raise IndexletNotHere(self.indexlet_id, f"{self._server} any more")
        if not self._may_acknowledge():
            raise IndexletNotReady(self.indexlet_id, "waiting for its server's lease")

    def _admit(self, body: InsertEntries | RemoveEntries) -> int:
        """Hear of the tablet that speaks; its writer. Raises as `check` does, and StaleTerm,
        StaleRequest: it is a late copy of what is over."""
        self.check(body.term)
        if self.is_waiting_for_its_place and not body.is_forwarded:
            raise IndexletNotReady(self.indexlet_id, "not in its place yet")
        stamp = body.tablet
        known = self.hear(stamp)
        if isinstance(body, InsertEntries) and min(body.sequences) < known.first_incomplete:
            raise StaleRequest(
                f"tablet {stamp.number}", min(body.sequences), known.first_incomplete
            )
        return self.entries.writer(stamp.number, stamp.epoch)

    def hear(self, stamp: TabletStamp) -> Known:
        """Take note of a tablet's epoch. Raises StaleTerm: it is an old one; InvalidArgument: there
        is no such tablet."""
        known, is_new = self.lineage.hear(stamp)
        if is_new:
            self.to_compare.set()
        return known

    def compared(self, known: Known) -> None:
        """What a tablet has is here."""
        known.compared()
        self._wake()

    def settle(self) -> bool:
        """As `Lineage.settle`."""
        is_some = self.lineage.settle()
        self._wake()
        return is_some

    def check_range(self, lowest: bytes, highest: bytes) -> None:
        """Raises IndexletNotHere: not all entries between these are of its range."""
        low, high = self.record.low, self.record.high
        if not (in_range(lowest, low, high) and in_range(highest, low, high)):
            raise IndexletNotHere(self.indexlet_id, f"{self._server} with such a range")

    # ---- entries ------------------------------------------------------------------------------

    async def insert(self, call: Call[InsertEntries]) -> None:
        """Put entries in. Raises as the message says."""
        body = call.body
        if not body.sequences:
            raise InvalidArgument("an insertion has a sequence")
        if call.blobs:
            await self._put_many(call, is_removal=False)
        else:
            _check_few(body)
            writer = self._admit(body)
            self.check_range(min(body.entries), max(body.entries))
            self.entries.put(writer, body.sequences, body.entries, is_removal=False)
        await self._settled(body, call)

    async def _put_many(
        self, call: Call[InsertEntries] | Call[RemoveEntries], *, is_removal: bool
    ) -> None:
        entries = entries_in(call.blobs[0])
        writer = self._admit(call.body)
        if not len(entries):
            return
        sequence = call.body.sequences[0]
        sort = self.entries.sorting(writer, sequence, entries, is_removal=is_removal)
        if len(entries) <= _SORTED_AT_ONCE:
            run = sort()
        else:
            run = await self._runtime.offload(sort)
            self._admit(call.body)
        self.check_range(run.entry(0), run.entry(run.length - 1))
        self.entries.add(run)

    async def remove(self, call: Call[RemoveEntries]) -> None:
        """Take entries out, or hear of a new epoch. Raises as the message says."""
        body = call.body
        if call.blobs and body.sequences:
            await self._put_many(call, is_removal=True)
            await self._settled(body, call)
            return
        _check_few(body)
        writer = self._admit(body)
        if body.entries:
            self.check_range(min(body.entries), max(body.entries))
            self.entries.put(writer, body.sequences, body.entries, is_removal=True)
        if body.is_lossy or body.may_lack:
            known = self.known[body.tablet.number]
            known.doubt()
            known.may_lack |= body.may_lack
            self.to_compare.set()
        await self._settled(body, call)

    async def _settled(
        self, body: InsertEntries | RemoveEntries, call: Call[InsertEntries] | Call[RemoveEntries]
    ) -> None:
        """Return when what was just taken may be acknowledged."""
        self.calls += 1
        if len(self.entries.runs) != self._runs_seen:
            self._runs_seen = len(self.entries.runs)
            self.to_merge.set()
        # Looked at in the turn in which the entries came in: what is copied from then on has them.
        if self.hand_over is not None:
            await self.hand_over.forward(body, call.blobs, call.timeout_s)
            self.check(body.term)

    # ---- look-ups -----------------------------------------------------------------------------

    async def wait_filled(self, timeout_s: float) -> None:
        """Wait a little for it to answer, if it is being filled, or has to compare before: whoever
        looks entries up hears of it at once, and asks the masters less often."""
        is_filling = self.progress in (IndexletProgress.FILLING, IndexletProgress.COMPLETE)
        waits = (is_filling and not self.record.succeeds) or self._lacks
        if not waits or len(self._waiting) >= WAITING_MAX:
            return
        served: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(served)
        await asyncio.wait([served], timeout=min(LOOKUP_WAIT_S, timeout_s / 2))
        if served in self._waiting:
            self._waiting.remove(served)

    def lookup(self, body: Lookup) -> Reply[LookupReply]:
        """Entries in order. Raises as the message says."""
        self._check_serving(body.term)
        answer = self._look_up(body, LOOKUP_ENTRIES_MAX)
        entries = answer.entries
        if len(entries) <= ENTRIES_MAX:
            return Reply(answer)
        stream = stream_of(pa.array(entries, pa.binary()))
        return Reply(LookupReply((), answer.is_more, answer.low, answer.high), [stream])

    def lookup_many(self, body: LookupMany) -> Reply[LookupManyReply]:
        """The same of several ranges. Raises as the message says."""
        if len(body.ranges) > LOOKUPS_MAX:
            raise InvalidArgument(f"{len(body.ranges)} look-ups at once; at most {LOOKUPS_MAX}")
        self._check_serving(body.term)
        answers: list[LookupReply | None] = []
        left_bytes = PIECE_BYTES
        for each in body.ranges:
            answer = self._look_up(each, ENTRIES_MAX) if left_bytes > 0 else None
            left_bytes -= sum(map(len, answer.entries)) if answer is not None else 0
            answers.append(answer)
        return Reply(LookupManyReply(tuple(answers)))

    def _check_serving(self, term: int) -> None:
        self.check(term)
        if self.progress is not IndexletProgress.SERVING:
            raise IndexletNotReady(self.indexlet_id, self.problem or self.progress.value)
        if lacks := self._lacks:
            raise IndexletNotReady(self.indexlet_id, lacks)

    @property
    def _lacks(self) -> str:
        """Why it does not answer, though it serves; empty: it does."""
        number = self.lineage.lacking
        if number is None or self.progress is not IndexletProgress.SERVING:
            return ""
        return f"to be compared with tablet number {number}, which has lost something"

    def _look_up(self, wanted: Lookup | LookupRange, limit_max: int) -> LookupReply:
        low, high = overlap(wanted.low, wanted.high, self.record.low, self.record.high)
        limit = max(1, min(wanted.limit, limit_max))
        entries, is_more = self.entries.lookup(low, high, limit, is_reverse=wanted.is_reverse)
        self.calls += 1
        return LookupReply(tuple(entries), is_more, self.record.low, self.record.high)

    # ---- upkeep -------------------------------------------------------------------------------

    async def merge_runs(self) -> None:
        """Keep the number of runs small; runs until the indexlet is closed."""
        while True:
            await self.to_merge.wait()
            self.to_merge.clear()
            if self._waits_for_more():
                continue
            while (plan := self.entries.merge_plan()) is not None:
                try:
                    run: Run = await self._runtime.offload(plan.make)
                except Overloaded:  # its turn comes: nobody waits for it
                    self._runtime.metrics.count("index_merges_put_off")
                    self.to_merge.set()
                    await self._runtime.clock.sleep(PUT_OFF_S)
                    break
                self.entries.install(plan, run)
            self._runs_seen = len(self.entries.runs)

    def _waits_for_more(self) -> bool:
        """While it is filled all runs are merged at once, at the end: what is merged before would
        be merged again, and takes the time of those who make entries."""
        is_filling = self.progress is IndexletProgress.FILLING and not self.record.succeeds
        return is_filling and len(self.entries.runs) <= FILLING_RUNS_MAX

    def known_tablets(self) -> tuple[KnownTablet, ...]:
        """For those that are to succeed this one."""
        found = []
        for number, known in self.known.items():
            floor = self.entries.floor(number)
            found.append(
                KnownTablet(
                    number,
                    known.epoch,
                    known.first_incomplete,
                    floor.epoch,
                    floor.sequence,
                    known.is_compared,
                    known.may_lack,
                )
            )
        return tuple(found)

    def learn_tablets(self, tablets: Sequence[KnownTablet]) -> None:
        """What the one that this is to succeed knew of tablets when it began to hand over. A doubt
        that it has forwarded since is newer. Raises InvalidArgument: there is no such tablet."""
        for tablet in tablets:
            self.lineage.check_number(tablet.number)
        for tablet in tablets:
            known = self.lineage.of(tablet.number)
            if tablet.epoch >= known.epoch:
                first = known.first_incomplete if tablet.epoch == known.epoch else 0
                known.epoch = tablet.epoch
                known.first_incomplete = max(first, tablet.first_incomplete)
                known.is_compared = tablet.is_compared and not known.doubts
            known.may_lack |= tablet.may_lack
            self.entries.set_floor(tablet.number, Floor(tablet.floor_epoch, tablet.floor_sequence))
        self.lineage.learned()


def _check_few(body: InsertEntries | RemoveEntries) -> None:
    """Raises InvalidArgument."""
    if len(body.entries) != len(body.sequences):
        raise InvalidArgument("each entry has its sequence")
    if len(body.entries) > ENTRIES_MAX:
        raise InvalidArgument(f"{len(body.entries)} entries one by one; at most {ENTRIES_MAX}")
