"""Where a sync of a file is best done: on the event loop's thread, or in another one.

A hop to a thread and back costs 100–200 µs, most of it work of the interpreter: as much as the sync
itself on a good disk. On a slow one the loop must stay free meanwhile. Which it is shows from how
long the syncs of that file take; nobody has to say it. A pure core: whoever syncs measures.

Invariants: the first syncs are done in a thread, those of a new file where those of the last one
were. On the loop are only such before which few bytes were written, and only after quick ones in
the thread. A few slow ones there, or one that is very slow, end that; each time this happens, twice
as many quick ones are asked for, up to `_QUICK_MAX`: a disk that is quick now and then holds up the
loop in few of its syncs. Many that are quick on the loop make good for that.
"""

from __future__ import annotations

QUICK_SYNC_S = 0.0005
"""What a loop may be held up for."""
_SLOW_MEAN_S = 8 * QUICK_SYNC_S
"""Of those on the loop; part of it may be a wait for a processor, which a thread waits for too."""
SMALL_BYTES = 256 * 1024
"""Written since the last sync. More takes longer than what was measured tells."""
_WEIGHT = 0.125
_SLOW_COUNTS = 0.125  # in a thread, where many a quick one seems slow beside a busy loop
_QUICK_MIN, _QUICK_MAX = 4, 256
_FORGIVEN_AFTER = 4096


class SyncPace:
    """Of one file. ``like``: that of another file of the same disk, to begin with."""

    def __init__(self, like: SyncPace | None = None) -> None:
        self._is_quick: bool = like is not None and like._is_quick
        self._mean_s: float = 0.0 if like is None else like._mean_s
        """Of those on the loop, the newest weighing most."""
        self._asked: int = _QUICK_MIN if like is None else like._asked
        self._seen = 0.0
        """Quick ones in the thread; or all on the loop since that was begun or forgiven."""

    def is_quick(self, unsynced_bytes: int) -> bool:
        """Whether the next sync had better be done on the loop's thread."""
        return self._is_quick and unsynced_bytes <= SMALL_BYTES

    def measured(self, taken_s: float, unsynced_bytes: int) -> None:
        """A sync of so many bytes has taken so long."""
        if unsynced_bytes > SMALL_BYTES:
            return
        if self._is_quick:
            self._measured_on_loop(taken_s)
        elif taken_s > QUICK_SYNC_S:
            self._seen = max(0.0, self._seen - _SLOW_COUNTS)
        else:
            self._seen += 1
            if self._seen >= self._asked:
                self._is_quick, self._seen, self._mean_s = True, 0.0, taken_s

    def _measured_on_loop(self, taken_s: float) -> None:
        self._mean_s += _WEIGHT * (taken_s - self._mean_s)
        self._seen += 1
        if self._mean_s > _SLOW_MEAN_S:
            self._is_quick, self._seen = False, 0.0
            self._asked = min(2 * self._asked, _QUICK_MAX)
        elif self._seen >= _FORGIVEN_AFTER:
            self._seen, self._asked = 0.0, _QUICK_MIN
