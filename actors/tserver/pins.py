"""Rows that readers have pinned: tablets as they were at one point, read in any number of scans.

A pin is a name that its reader chose. It is kept while it is used or renewed, and then dropped; so
are all pins of a tablet that closes here, and, of all tablets, when memory lacks: what was written
over or cleaned away meanwhile lives on in them. A dropped pin answers `SnapshotLost`, for ever: it
is never quietly made anew, which would show other rows under the same name. In memory only: a
server that starts again has none.

Of pins that yield (`Pin.yields`) the one that was not used for longest goes when there are too
many: readers of first pages who never come back keep nobody else from reading. Other pins are
refused then, as their readers would have to begin anew.

A pin that is being made counts as one, waits for its point to be committed, and is not made if its
tablet closes meanwhile. The names of pins that went are remembered for a while, so that a late copy
of the call that made one does not make it anew, of other rows.

A pin is no promise that this server owns the tablet still. Its rows are those of the time when it
was made, and counted then: whoever reads them later asked for just that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stelae.actors.tserver.tablet.reads import TabletReads
from stelae.actors.tserver.tablet.rows_then import RowsThen
from stelae.core.errors import InvalidArgument, Overloaded, SnapshotLost, TabletNotHere
from stelae.core.ids import TabletId
from stelae.core.messages.rows import KeepPins, KeepPinsReply, Pin, PinReply
from stelae.core.rpc import Reply
from stelae.core.runtime import Clock

MAX_PINS = 1024
MAX_YIELDING = 8192
"""Pins that yield, beside those."""
MAX_KEEP_S = 3600.0
MAX_NAME = 64
GONE_MAX = 2 * MAX_YIELDING
"""Names of pins that went: those that went the longest ago are forgotten first."""


@dataclass(slots=True)
class Pinned:
    """One of them."""

    tablet: TabletReads
    rows: RowsThen
    schema_version: int
    keep_s: float
    until: float


class Pins:
    """Those of one tserver, by name."""

    def __init__(self, clock: Clock, name: str, is_short: Callable[[], bool]) -> None:
        """``is_short``: whether memory lacks just now."""
        self._clock = clock
        self._name = name
        self._is_short = is_short
        self._pins: dict[str, Pinned] = {}
        self._yielding: dict[str, None] = {}
        """Names of those that yield; the one that was not used for longest is the first."""
        self._making: dict[object, tuple[TabletId, bool]] = {}
        """Of each call that makes a pin, the tablet, until that closes; and whether it yields."""
        self._gone: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, pin: str) -> bool:
        return pin in self._pins

    async def pin(self, tablet: TabletReads, request: Pin, timeout_s: float) -> Reply[PinReply]:
        """Keep a tablet's rows as of now; or longer, if it is a pin of its that is kept already.

        Raises:
            InvalidArgument: the name, or the time to keep it, is none; or it is another's.
            Overloaded: too many are kept.
            SnapshotLost: there was one of that name.
            TabletNotHere: the tablet was closed here meanwhile.
        """
        if not 0 < len(request.pin) <= MAX_NAME or not 0 < request.keep_s <= MAX_KEEP_S:
            raise InvalidArgument(
                f"pin {request.pin[:MAX_NAME]!r} for {request.keep_s} s: 1 to {MAX_NAME} "
                f"characters, for up to {MAX_KEEP_S:.0f} s"
            )
        if request.pin not in self._pins:
            await self._make(tablet, request, timeout_s)
        found = self._pins[request.pin]
        if (found.tablet, found.schema_version) != (tablet, request.schema_version):
            raise InvalidArgument(f"pin {request.pin} is of other rows")
        self._use(request.pin, found, request.keep_s)
        rows = found.rows
        count = rows.snapshot.row_count
        return Reply(PinReply(count, count * rows.row_bytes, rows.next_version))

    async def _make(self, tablet: TabletReads, request: Pin, timeout_s: float) -> None:
        if not request.yields and self._count_firm() >= MAX_PINS:
            raise Overloaded("pinned tablets", MAX_PINS)
        call, tablet_id = object(), tablet.tablet_id
        self._making[call] = tablet_id, request.yields
        try:
            rows = await tablet.pin(request.schema_version, timeout_s)
            if call not in self._making:
                raise TabletNotHere(tablet_id, f"{self._name} any more")
        finally:
            self._making.pop(call, None)
        if request.pin in self._gone:
            raise SnapshotLost(tablet_id, self._name, "dropped before")
        made = Pinned(tablet, rows, request.schema_version, request.keep_s, 0.0)
        if self._pins.setdefault(request.pin, made) is not made:
            return  # a copy of the call was quicker
        if request.yields:
            self._yielding[request.pin] = None
            while len(self._yielding) > MAX_YIELDING:
                self._forget(next(iter(self._yielding)))

    def _count_firm(self) -> int:
        """Number of pins that do not yield, with those that are being made."""
        making = sum([not yields for _, yields in self._making.values()])
        return len(self._pins) - len(self._yielding) + making

    def find(self, pin: str, tablet_id: TabletId, schema_version: int) -> Pinned:
        """A pin that is kept, and for so long again.

        Raises:
            SnapshotLost: it is not.
            InvalidArgument: it is of something else.
        """
        found = self._pins.get(pin)
        if found is None:
            raise SnapshotLost(tablet_id, self._name, "unknown, expired or dropped")
        if (found.tablet.tablet_id, found.schema_version) != (tablet_id, schema_version):
            raise InvalidArgument(f"pin {pin} is of other rows")
        self._use(pin, found, found.keep_s)
        return found

    def _use(self, name: str, pinned: Pinned, keep_s: float) -> None:
        if name in self._yielding:
            del self._yielding[name]
            self._yielding[name] = None
        pinned.keep_s = keep_s
        pinned.until = self._clock.monotonic() + keep_s

    def keep(self, request: KeepPins) -> Reply[KeepPinsReply]:
        """Keep pins longer, or let them go. Raises InvalidArgument."""
        if not 0 <= request.keep_s <= MAX_KEEP_S or len(request.pins) > MAX_PINS:
            raise InvalidArgument(f"pins are kept for 0 to {MAX_KEEP_S:.0f} s")
        lost = tuple([pin for pin in request.pins if pin not in self._pins])
        for pin in request.pins:
            if not request.keep_s:
                self._forget(pin)
            elif pin not in lost:
                self._use(pin, self._pins[pin], request.keep_s)
        return Reply(KeepPinsReply(lost))

    def drop(self, tablet_id: TabletId) -> None:
        """Forget all of a tablet, also those that are being made."""
        self._making = {call: of for call, of in self._making.items() if of[0] != tablet_id}
        for name in [n for n, p in self._pins.items() if p.tablet.tablet_id == tablet_id]:
            self._forget(name)

    def expire(self) -> None:
        """Forget those that nobody has used for their time; all of them if memory lacks."""
        now = self._clock.monotonic()
        is_short = self._is_short()
        for name in [n for n, p in self._pins.items() if is_short or p.until < now]:
            self._forget(name)

    def _forget(self, name: str) -> None:
        """It may be in the making: then it is not made."""
        self._yielding.pop(name, None)
        self._pins.pop(name, None)
        self._gone[name] = None
        while len(self._gone) > GONE_MAX:
            del self._gone[next(iter(self._gone))]
