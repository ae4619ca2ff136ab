"""Changes that are carried through: once begun, no cancellation of their caller leaves half of one.

Half a change of what is on the disk is for crashes only, which the next start settles.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stelae.core.errors import StelaeError
from stelae.core.tasks import Tasks

T = TypeVar("T")


async def carry_through(
    tasks: Tasks,
    work: Coroutine[Any, Any, T],
    name: str,
    on_failed: Callable[[OSError], None] | None = None,
) -> T:
    """Run ``work`` to its end as a task of its own; its result, or what it raised.

    If nobody waits for it any more, ``on_failed`` is told of a disk that failed, or else ``tasks``
    fail; they do so for any error that is a bug.
    """
    outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    async def run() -> None:
        try:
            result = await work
        except StelaeError as error:
            _told(outcome, error)
        except OSError as error:
            if _told(outcome, error):
                return
            if on_failed is None:
                raise
            on_failed(error)
        except BaseException as error:
            _told(outcome, error)
            raise
        else:
            if not outcome.done():
                outcome.set_result(result)

    def ended(_: asyncio.Task[None]) -> None:
        _told(outcome, asyncio.CancelledError())  # cancelled before its first step
        work.close()

    tasks.spawn(run(), name).add_done_callback(ended)
    return await outcome


def _told(outcome: asyncio.Future[T], error: BaseException) -> bool:
    """Whether somebody waits for it still, and is told of this."""
    if outcome.done():
        return False
    if isinstance(error, asyncio.CancelledError):
        outcome.cancel()
    else:
        outcome.set_exception(error)
    return True
