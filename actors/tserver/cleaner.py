"""The cleaner of a tablet server: when memory or logs are cleaned, and what writers wait for.

Memory is cleaned from a share of the limit on (`low_bytes`), one segment at a time, of the tablet
with most dead rows; beside it a few passes over logs. If memory is full all the same, writes wait
until there is room again, and are refused once nothing can be freed; so they are at once if live
rows alone take `LIVE_SHARE_MAX` of the limit: cleaning would take all time and free nothing. That
share is also the reserve in which survivors are built, heads are rolled, and deletes are written,
which nobody refuses: a full server can always be emptied.

Source: RAMCloud, memory accounting and the cleaner's balancer; without a bound on live rows
RAMCloud's cleaner made no progress, and it has the same bound of 95 %.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from stelae.actors.tserver.tablet.cleaning import TabletCleaning
from stelae.core.config.settings import Settings
from stelae.core.errors import OutOfMemory, StelaeError
from stelae.core.ids import TabletId
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks
from stelae.storage.rows.cleaning import COPIED_SHARE_MAX, LIVE_SHARE_MAX, low_bytes

LOG_PASSES = 2
"""Over the logs of as many tablets at a time: each has a survivor in memory."""
WEIGH_S = 0.1
SHOW_S = 1.0
WATCHED_SHARE = 0.5
"""Of the limit, from which on it is weighed with each segment that was sealed."""
HEAD_SHARE = 1 / 64
"""Of the limit: a head that takes more is closed when nothing else can be freed, as rows take less
in sealed segments."""


ROOM_SHARE = 0.95
"""Of the memory, up to which rows of recovered tablets are loaded that nobody has asked for: the
rest is for writes."""


class _Waiter(NamedTuple):
    """A write that waits for room."""

    since_s: float
    deadline_s: float
    told: asyncio.Future[None]


class CleanedTablet(Protocol):
    """A tablet with an owner, as the cleaner sees it."""

    tablet_id: TabletId
    cleaning: TabletCleaning

    def may_clean(self) -> bool: ...
    def may_compact(self) -> bool: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def head_memory_bytes(self) -> int: ...
    def roll(self) -> bool: ...


class Replicas(Protocol):
    """All replicas of tablets with ``replicas(n)`` here."""

    @property
    def memory_bytes(self) -> int: ...
    @property
    def live_bytes(self) -> int: ...
    def clean_soon(self) -> None: ...
    def tell_memory(self, over: tuple[int, int] | None) -> None: ...


class Cleaner:
    """See the module. All methods run on the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        settings: Settings,
        name: str,
        limit_bytes: int,
        tablets: Callable[[], Sequence[CleanedTablet]],
        replicas: Replicas,
        others_bytes: Callable[[], int],
    ) -> None:
        """``others_bytes``: of memory in which nothing can be cleaned, that of indexlets."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        """As weighed last, and what was written since."""
        self.live_bytes = 0
        self.live_bytes_most = 0
        """What lives takes no more than that, whether it was looked at or not."""
        self._runtime = runtime
        self._settings = settings
        self._name = name
        self._tablets = tablets
        self._replicas = replicas
        self._others_bytes = others_bytes
        self._wake = asyncio.Event()
        self._waiters: list[_Waiter] = []
        """Those that came first are first."""
        self._is_helpless = False
        self._in_pass: dict[TabletId, None] = {}

    def start(self, tasks: Tasks) -> None:
        """Begin to clean."""
        tasks.spawn(self._run(), "cleaner")
        for number in range(LOG_PASSES):
            tasks.spawn(self._run_logs(), f"cleaner of logs {number}")

    # ---- memory -----------------------------------------------------------------------------

    def weigh(self) -> None:
        """How much memory is used, and how much of it by what lives; less than half of the limit
        is not looked at."""
        replicas, tablets = self._replicas.memory_bytes, self._tablets()
        others = self._others_bytes()
        self.used_bytes = replicas + others + sum([tablet.memory_bytes for tablet in tablets])
        self.live_bytes = replicas + others
        self.live_bytes_most = self.used_bytes
        if (
            self.used_bytes > WATCHED_SHARE * self.limit_bytes
            or not self._settings.clean_memory_share
        ):
            self.live_bytes = self._replicas.live_bytes + others
            self.live_bytes += sum([tablet.live_bytes for tablet in tablets])
            self.live_bytes_most = self.live_bytes
        refusal = self.refusal()
        self._replicas.tell_memory(None if refusal is None else refusal.args[1:])

    def has_room(self, size_bytes: int) -> bool:
        """Whether so many bytes of rows fit that were recovered, and are elsewhere yet."""
        return self.used_bytes + size_bytes <= ROOM_SHARE * self.limit_bytes

    def count(self, size_bytes: int) -> None:
        """So many bytes more are here now."""
        self.used_bytes += size_bytes

    @property
    def cap_bytes(self) -> int:
        """Of live rows."""
        return int(LIVE_SHARE_MAX * self.limit_bytes)

    @property
    def is_low(self) -> bool:
        share = self._settings.clean_memory_share
        return self.used_bytes > low_bytes(self.limit_bytes, self.live_bytes, share)

    def refusal(self) -> OutOfMemory | None:
        """Why no more rows are taken just now."""
        if self.used_bytes <= self.limit_bytes and self.live_bytes <= self.cap_bytes:
            return None
        if self.live_bytes > self.cap_bytes:
            return OutOfMemory(self._name, self.live_bytes, self.cap_bytes)
        return OutOfMemory(self._name, self.used_bytes, self.limit_bytes)

    def copy_refusal(self, size_bytes: int) -> OutOfMemory | None:
        """Why so many bytes of rows are not taken that another tablet has as well: who writes to
        any tablet here goes before."""
        most_bytes = int(COPIED_SHARE_MAX * self.limit_bytes)
        if self.live_bytes + size_bytes > most_bytes:
            return OutOfMemory(self._name, self.live_bytes, most_bytes)
        return self.refusal()

    @property
    def may_help(self) -> bool:
        """Whether it is worth to `wait_room`."""
        return self.live_bytes <= self.cap_bytes and not self._is_helpless

    def sealed(self) -> None:
        """A segment was: memory is looked at soon if there is little of it."""
        if self.used_bytes > WATCHED_SHARE * self.limit_bytes:
            self._wake.set()

    async def wait_room(self, since_s: float, deadline_s: float) -> None:
        """Until there is room, or no hope for it, or the time is over. Who has waited since
        ``since_s``, and was told of room that others took, comes before whoever came later."""
        waiter = _Waiter(since_s, deadline_s, asyncio.get_running_loop().create_future())
        bisect.insort(self._waiters, waiter, key=lambda each: each.since_s)
        self._wake.set()
        await waiter.told

    def _answer(self) -> None:
        if not self._waiters:
            return
        now_s = self._runtime.clock.monotonic()
        is_over = self.refusal() is None or not self.may_help
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.told.done():
                continue
            if is_over or waiter.deadline_s <= now_s:
                waiter.told.set_result(None)
            else:
                self._waiters.append(waiter)

    def _show(self) -> None:
        """Tell the metrics how full memory is, and what cleaning adds to writes."""
        metrics, tablets = self._runtime.metrics, self._tablets()
        live_bytes = self._replicas.live_bytes + sum([each.live_bytes for each in tablets])
        live_bytes += self._others_bytes()
        metrics.gauge("memory_used_bytes", self.used_bytes)
        metrics.gauge("memory_live_bytes", live_bytes)
        metrics.gauge("memory_limit_bytes", self.limit_bytes)
        reports = [each.cleaning.report() for each in tablets if each.may_clean()]
        written = sum([each.written_bytes for each in reports])
        survivors = sum([each.survivor_bytes for each in reports])
        metrics.gauge("write_cost", (written + survivors) / written if written else 1.0)

    async def _run(self) -> None:
        shown_s = float("-inf")
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(WEIGH_S):
                    await self._wake.wait()
            except TimeoutError:
                self._is_helpless = False
            self.weigh()
            if (now_s := self._runtime.clock.monotonic()) >= shown_s + SHOW_S:
                shown_s = now_s
                self._show()
            if self.is_low and self._settings.clean_memory_share:
                self._replicas.clean_soon()
            while self.is_low:
                if not await self._compact_one():
                    self._close_a_head()
                    waits = any(each.cleaning.awaits_seals for each in self._tablets())
                    self._is_helpless = self.used_bytes > self.limit_bytes and not waits
                    break
                self._is_helpless = False
                self.weigh()
                self._answer()
            self._answer()

    async def _compact_one(self) -> bool:
        """Compact a segment of the tablet with most dead rows that has one."""
        tablets = [tablet for tablet in self._tablets() if tablet.may_compact()]
        dead = {tablet.tablet_id: tablet.memory_bytes - tablet.live_bytes for tablet in tablets}
        for tablet in sorted(tablets, key=lambda each: -dead[each.tablet_id]):
            tablet.cleaning.is_urgent = self.used_bytes > (self.limit_bytes + self.cap_bytes) // 2
            try:
                if await tablet.cleaning.compact():
                    return True
            except StelaeError:
                self._runtime.metrics.count("cleaning_failed")
        return False

    def _close_a_head(self) -> None:
        """Rows take less once they are sealed, and dead ones can be dropped."""
        heads = [tablet for tablet in self._tablets() if tablet.may_compact()]
        largest = max(heads, key=lambda each: each.head_memory_bytes, default=None)
        if largest is not None and largest.head_memory_bytes >= HEAD_SHARE * self.limit_bytes:
            largest.roll()

    # ---- logs -------------------------------------------------------------------------------

    async def _run_logs(self) -> None:
        while True:
            if not await self._clean_one():
                await self._runtime.clock.sleep(self._settings.clean_period_s)

    async def _clean_one(self) -> bool:
        """A pass over the log of each tablet that needs one, and has none under way."""
        found = False
        for tablet in self._tablets():
            if tablet.tablet_id in self._in_pass or not tablet.may_clean():
                continue
            self._in_pass[tablet.tablet_id] = None
            try:
                found |= await tablet.cleaning.clean(memory_is_low=self._is_helpless)
            except StelaeError:
                self._runtime.metrics.count("cleaning_failed")
            finally:
                del self._in_pass[tablet.tablet_id]
        return found
