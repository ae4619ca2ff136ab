"""How servers' files are handled off the event loop, and what a damaged disk says of itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeAlias, TypeVar

from stelae.core.errors import CorruptData

P = ParamSpec("P")
T = TypeVar("T")
_DAMAGE = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""A bad sector; and what file systems say whose own structures are damaged."""


Offload: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""As `stelae.core.runtime.Runtime.offload`."""


async def at_once(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """An `Offload` that does not leave the event loop."""
    return fn(*args, **kwargs)


@contextmanager
def damage_of(path: str) -> Iterator[None]:
    """What a disk cannot give back is damaged, whether the disk says so or a checksum does."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        raise CorruptData(path, 0, f"cannot be read: {error.strerror}") from error
