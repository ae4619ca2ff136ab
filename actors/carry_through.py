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
            if not outcome.done():
                outcome.set_exception(error)
        except OSError as error:
            if not outcome.done():
                outcome.set_exception(error)
            elif on_failed is not None:
                on_failed(error)
            else:
                raise
        except BaseException as error:
            if not outcome.done():
                if isinstance(error, asyncio.CancelledError):
                    outcome.cancel()
                else:
                    outcome.set_exception(error)
            raise
        else:
            if not outcome.done():
                outcome.set_result(result)

    tasks.spawn(run(), name)
    return await outcome
