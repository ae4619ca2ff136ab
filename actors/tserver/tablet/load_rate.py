"""How many calls a second a tablet answers here, as its server tells the masters.

A tablet counts its calls in a plain number, and that is all that a call costs. With a heartbeat the
number is looked at, at most once in `LOOK_S`, and folded into a decayed mean (a time constant of
`DECAY_S`), which counts from the first look on, so that the beginning is not taken for idleness.
Until `WARM_S` have been seen the rate is not known.

What is told changes only when the rate has become another by `COARSE`: an idle tablet, and one
whose load is steady, have nothing to report. Below `LEAST_PER_S` a tablet is idle.

Source: design §7 (reports are incremental); Kudu's decayed write and read rates in heartbeats.
"""

from __future__ import annotations

import math

from stelae.core.messages.servers import LOAD_UNKNOWN
from stelae.core.rpc import Blob

LOOK_S = 1.0
DECAY_S = 30.0
WARM_S = 10.0
COARSE = 0.25
LEAST_PER_S = 0.5
BYTES_PER_CALL = 16 * 1024
"""So many bytes of rows weigh as much as one call."""


class LoadRate:
    """Of one tablet."""

    __slots__ = ("_began_s", "_count", "_looked_s", "_mean", "_told")

    def __init__(self) -> None:
        self._began_s = -1.0
        self._looked_s = 0.0
        self._count = 0
        self._mean = 0.0
        self._told = LOAD_UNKNOWN

    def stop(self) -> None:
        """It is served elsewhere: what is known here is not its load any more."""
        self._began_s, self._told = -1.0, LOAD_UNKNOWN

    def look(self, count: int, now_s: float) -> float:
        """The rate to tell, calls so far being ``count``; `LOAD_UNKNOWN` at first."""
        if self._began_s < 0:
            self._began_s = self._looked_s = now_s
            self._count, self._mean = count, 0.0
            return self._told
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_S:
            return self._told
        if count == self._count and self._told == 0.0 and self._mean == 0.0:
            self._looked_s = now_s
            return 0.0
        fades = math.exp(-passed_s / DECAY_S)
        self._mean = self._mean * fades + (count - self._count) / passed_s * (1 - fades)
        self._count, self._looked_s = count, now_s
        seen_s = now_s - self._began_s
        if seen_s >= WARM_S:
            self._tell(self._mean / (1 - math.exp(-seen_s / DECAY_S)))
        return self._told

    def _tell(self, rate: float) -> None:
        if rate < LEAST_PER_S:
            self._told = 0.0
            if rate < LEAST_PER_S / 1000:
                self._mean = 0.0
        elif self._told <= 0 or abs(rate - self._told) > COARSE * self._told:
            self._told = float(f"{rate:.2g}")


def size_of(blob: Blob) -> int:
    """In bytes."""
    return blob.nbytes if isinstance(blob, memoryview) else len(blob)


def weight_of(size_bytes: int) -> int:
    """What a call with so many bytes of rows counts."""
    return 1 + size_bytes // BYTES_PER_CALL
