"""Bugs planted into the servers, one at a time: proof that the simulator would see them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from stelae.actors import tablet as tablet_module
from stelae.actors.lease import Lease
from stelae.actors.replicated_segment import ReplicatedSegment
from stelae.actors.tablet import Tablet
from stelae.recovery import plan
from stelae.storage.merge import Merged
from stelae.storage.recovered import RecoveredSegment
from stelae.storage.tablet import TabletMemory


def _acknowledge_early() -> Any:
    """Acknowledge once one replica has the bytes."""

    def committed(self: ReplicatedSegment) -> int:
        if self.image is not None:
            return self.length
        if not self.may_fill:
            return 0
        return max((replica.length for replica in self.replicas), default=self.length)

    return patch.object(ReplicatedSegment, "committed_length", property(committed))


def _stale_head_replica() -> Any:
    """Recover from any open replica of the head, whatever its epoch, the shortest first."""

    def valid_open(tablet: Any, held: Sequence[Any]) -> list[Any]:
        return [h for h in held if h.replica.state is plan.ReplicaState.OPEN]

    def shortest(held: Sequence[Any]) -> list[Any]:
        return sorted(held, key=lambda h: h.replica.length)[:1]

    return _both(
        patch.object(plan, "_valid_open", valid_open), patch.object(plan, "_head_replicas", shortest)
    )


def _free_before_digest() -> Any:
    """Replace the old head's replicas before a head whose digest names it is durable."""

    async def open_(self: Tablet, sources: Any, engine: Any) -> None:
        rewritten = await self._recover(sources, engine)
        self._log.start()
        for segment in self._log.segments:
            segment.start()
        await self._log.wait_until(lambda: self._log.are_sealed(rewritten))
        self._roll()
        self._first_head = self._log.head.segment_id
        await self._log.wait_until(lambda: self._log.head.is_opened)
        if self.progress is tablet_module.TabletProgress.OPENING:
            self.progress = tablet_module.TabletProgress.PREPARED

    return patch.object(Tablet, "open", open_)


def _digest_forgets_rewritten() -> Any:
    """Leave the segments that a recovery rewrote out of the new head's digest."""
    roll = Tablet._roll

    def forgetful(self: Tablet) -> None:
        kept = self._log._segments
        self._log._segments = {s: v for s, v in kept.items() if v.note_sealed()}
        try:
            roll(self)
        finally:
            self._log._segments = {**kept, **self._log._segments}

    sealed = property(lambda self: self.image is not None and all(r.sealed for r in self.replicas))
    return _both(
        patch.object(Tablet, "_roll", forgetful),
        patch.object(ReplicatedSegment, "note_sealed", lambda s: sealed.fget(s), create=True),
    )


def _forget_safe_version() -> Any:
    """After a recovery, count versions from the live rows alone."""
    adopt = TabletMemory.adopt

    def forgetful(
        self: TabletMemory,
        segments: Sequence[RecoveredSegment],
        merged: Merged | None,
        now_s: float,
    ) -> None:
        adopt(self, segments, merged, now_s)
        live = [
            segment.summary.versions[mask].max(initial=0)
            for segment, mask in zip(segments, merged.live if merged else [], strict=False)
            if len(segment.summary)
        ]
        self.next_version = int(max(live, default=0)) + 1

    return patch.object(TabletMemory, "adopt", forgetful)


def _wrong_head() -> Any:
    """Of two open heads take the newer, whose predecessor may hold more than its digest says."""
    return patch.object(plan, "min", max, create=True)


def _zombie_answers() -> Any:
    """Serve without a lease, and after having been given up."""
    return patch.object(Lease, "is_valid", property(lambda self: True))


def _both(*patches: Any) -> Any:
    stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return entered()


BUGS: dict[str, Callable[[], Any]] = {
    "acknowledge_early": _acknowledge_early,
    "stale_head_replica": _stale_head_replica,
    "free_before_digest": _free_before_digest,
    "digest_forgets_rewritten": _digest_forgets_rewritten,
    "forget_safe_version": _forget_safe_version,
    "wrong_head": _wrong_head,
    "zombie_answers": _zombie_answers,
}


@contextlib.contextmanager
def planted(bug: str) -> Iterator[None]:
    """Run with a bug of `BUGS`; with none for ""."""
    if not bug:
        yield
        return
    with BUGS[bug]():
        yield
