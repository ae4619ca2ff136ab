"""What a forked child inherits and must not use: threads, event loops, sockets, ids, held locks.

``os.fork`` copies the memory of a process and one of its threads. A client id with its sequence
numbers then exists twice, so servers drop the child's writes as repetitions of the parent's. The
parent's event loop has no thread in the child, and a socket in two processes mixes their answers.
So each object that belongs to one process registers here, and forgets in a forked child, before the
child runs anything else, what it inherited. Its owner makes new state on first use.

Rules:

F1. What `forget` does is never visible to the parent: it closes the child's file descriptors, and
    neither shuts a socket down nor changes an epoll instance, which both processes share.
F2. `forget` takes no lock: a thread that does not exist in the child may hold it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class OfOneProcess(Protocol):
    """An object whose state belongs to the process that made it."""

    def forget(self) -> None:
        """Give up the parent's state, in a forked child. May be called again by a grandchild."""


_owners: weakref.WeakSet[Any] = weakref.WeakSet()


def forget_in_children(owner: OfOneProcess) -> None:
    """Have ``owner`` forget its state in every child that is forked while it lives."""
    _owners.add(owner)


def _forget_all() -> None:
    # Another thread of the parent may have been within an import, which holds a lock of the module
    # imported. Python renews its global import lock at a fork, and these it does not: the child
    # would wait for ever when it imports the same module, as httpcore does in each request.
    locks = getattr(sys.modules["_frozen_importlib"], "_module_locks", None)
    if locks is not None:
        locks.clear()
    for owner in list(_owners):
        try:
            owner.forget()
        except Exception:  # the others must forget all the same
            logger.exception("a forked child could not forget %r of its parent", owner)


os.register_at_fork(after_in_child=_forget_all)


def keep_for_ever(inherited: object) -> None:
    """Never deallocate ``inherited``, not even when the interpreter ends.

    The deallocation of a transport removes its socket from the epoll instance of its loop (F1), and
    a loop that ran in another thread at the fork may be in the middle of a change.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))


def close_quietly(descriptors: Iterable[int]) -> None:
    """Close this process's copies of file descriptors whose numbers other objects still hold.

    Each number is given to ``/dev/null``: whoever closes the number later closes that, and not a
    file that was opened since (F1).
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for descriptor in descriptors:
            os.dup2(nothing, descriptor, inheritable=False)
    finally:
        os.close(nothing)
