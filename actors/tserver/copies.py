"""Copies of one writing call that are here at the same time, or soon after each other.

A network may deliver a message twice, and the copies need not fare alike: one is carried out, or
is on its way to it, while the other meets a server that hands its leadership over, or serves no
more. What that one is refused with says "surely not done", and of itself that is true; but the
client takes it for the answer to its call. So a copy does not speak for the others: where another
one is here, or was carried out here lately, a refusal becomes `OutcomeUnknown`.

Memory is bounded: of what was carried out the last `KEPT` to twice as many are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from stelae.core.errors import OutcomeUnknown, RetryElsewhere, RetryLater, StelaeError
from stelae.core.ids import RequestId, TabletId
from stelae.storage.entries.outcomes import answer, is_refused, refused

KEPT = 4096


class Copies:
    """The writing calls that are at one server, or were."""

    def __init__(self) -> None:
        self._here: Counter[RequestId] = Counter()
        self._done: dict[RequestId, None] = {}
        self._done_before: dict[RequestId, None] = {}

    @contextmanager
    def one(
        self, tablet_id: TabletId, requests: Sequence[RequestId], timeout_s: float
    ) -> Iterator[None]:
        """While a call is carried out. Raises OutcomeUnknown instead of a refusal that another copy
        may belie."""
        here = self._here
        for request in requests:
            here[request] += 1
        try:
            yield
        except (RetryElsewhere, RetryLater) as error:
            if any([self._has_another(request) for request in requests]):
                raise _unknown(tablet_id, timeout_s) from error
            raise
        finally:
            for request in requests:
                here[request] -= 1
                if not here[request]:
                    del here[request]

    def told(
        self,
        tablet_id: TabletId,
        requests: Sequence[RequestId],
        outcomes: tuple[bytes, ...],
        timeout_s: float,
    ) -> tuple[bytes, ...]:
        """The outcomes of several calls that went together, as each is to be told; while they are
        here."""
        told = list(outcomes)
        for place, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
            if not is_refused(outcome):
                self.carried_out(request)
            elif self._has_another(request) and _may_be_belied(outcome):
                told[place] = refused(_unknown(tablet_id, timeout_s))
        return tuple(told)

    def untouched(
        self, tablet_id: TabletId, requests: Sequence[RequestId], timeout_s: float
    ) -> tuple[bytes, ...]:
        """What is said, while they are here, of calls for which this copy has done nothing; empty:
        nor has any other."""
        unknown = refused(_unknown(tablet_id, timeout_s))
        return tuple([unknown if self._has_another(request) else b"" for request in requests])

    def carried_out(self, request: RequestId) -> None:
        """It has its answer, and late copies of it do not know that."""
        if len(self._done) >= KEPT:
            self._done, self._done_before = {}, self._done
        self._done[request] = None

    def _has_another(self, request: RequestId) -> bool:
        return self._here[request] > 1 or request in self._done or request in self._done_before


def _may_be_belied(refusal: bytes) -> bool:
    try:
        answer(refusal)
    except StelaeError as error:
        return isinstance(error, RetryElsewhere | RetryLater)
    raise AssertionError("an answer is no refusal")


def _unknown(tablet_id: TabletId, timeout_s: float) -> OutcomeUnknown:
    return OutcomeUnknown(f"tablet {tablet_id}", "a write", timeout_s)
