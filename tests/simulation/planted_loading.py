"""Bugs planted into recovery that serves before its rows are back: the ``loading`` scenario sees
each of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from stelae.actors.loading_tablet import LoadingTablet
from stelae.storage.client_results import ClientResults
from stelae.storage.remote import Piece, RemoteSegment
from stelae.storage.segment import Segment


def _second_delivery_doubled() -> Any:
    """Forget at a recovery which requests were carried out: a repeated one is carried out again."""
    return patch.object(ClientResults, "restore", lambda self, results, now_s: None)


def _rows_that_died_on_the_way_return() -> Any:
    """Let a segment arrive with the rows live that were so when it was asked for."""
    init, arrived = RemoteSegment.__init__, RemoteSegment.arrived

    def noted(self: RemoteSegment, *given: Any) -> None:
        init(self, *given)
        self.first_live = None if self._live is None else bytearray(self._live)  # type: ignore[attr-defined]

    def forgetful(self: RemoteSegment, whole: Piece) -> Segment:
        self._live = self.first_live  # type: ignore[attr-defined]
        self._live_shared = False
        count = self.row_count if self._live is None else self._live.count(1)
        self.live_count = count
        return arrived(self, whole)

    return _both(
        patch.object(RemoteSegment, "__init__", noted),
        patch.object(RemoteSegment, "arrived", forgetful),
    )


def writes_that_waited_forget_entries() -> Any:
    """Let a write that waited for rows go on as it was begun, though there is an index by now."""
    return patch.object(LoadingTablet, "bring_to_write", LoadingTablet.bring)


def _both(*patches: Any) -> Any:
    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in patches:
                stack.enter_context(each)
            yield

    return entered()


BUGS: dict[str, Callable[[], Any]] = {
    "second_delivery_doubled": _second_delivery_doubled,
    "rows_that_died_on_the_way_return": _rows_that_died_on_the_way_return,
}


@contextlib.contextmanager
def planted(bug: str) -> Iterator[None]:
    """Run with a bug of `BUGS`; with none for ""."""
    if not bug:
        yield
        return
    with BUGS[bug]():
        yield
