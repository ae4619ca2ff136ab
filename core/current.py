"""What is being worked on right now: who asked, by which method, for what. For logs and traces.

One context variable, set where a call or an HTTP request begins to be worked on; whoever logs looks
at it. It costs a tuple a call, and nothing is made of it before somebody logs. It goes with the
work: into the tasks that a handler starts and waits for, and, as the request's id, into the calls
to other servers. It does not go into a server's own background tasks (`stelae.core.tasks`). Where
the work of several is done together, it is that of the one who began it. Nothing decides by it.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

ID_CHARS_MAX = 64
_SANE = re.compile(rf"[A-Za-z0-9._:-]{{1,{ID_CHARS_MAX}}}")


class Working(NamedTuple):
    """``request_id``: of the HTTP request behind it; empty: there is none. ``body``: a message."""

    request_id: str
    method: str
    body: Any = None
    trace: str = ""
    """The ``traceparent`` of what is done for it; empty: no trace of it is kept."""


_Entry: TypeAlias = "tuple[str, str, Any, str]"
CURRENT: ContextVar[_Entry | None] = ContextVar("stelae_current", default=None)
"""Fields of `Working`, as a plain tuple: it is made for each call."""


def is_sane_id(text: str) -> bool:
    """Whether a request's id that somebody sent may go into logs and on to servers as it is."""
    return _SANE.fullmatch(text) is not None


def request_id() -> str:
    """Of the request that is being worked on; empty: of none that has one."""
    entry = CURRENT.get()
    return "" if entry is None else entry[0]


def working() -> dict[str, str]:
    """What a line of a log says of it: ids of request, table and tablet, and the method."""
    entry = CURRENT.get()
    if entry is None:
        return {}
    work = Working(*entry)
    found = {"request_id": work.request_id, "method": work.method}
    for name in ("tablet_id", "table_id"):
        value = getattr(work.body, name, "")
        found[name] = value if isinstance(value, str) else ""
    return {name: value for name, value in found.items() if value}
