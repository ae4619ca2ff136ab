"""The end of a server whose name another one has, on another machine. Decisions §69."""

from __future__ import annotations

from stelae.core.messages.servers import HeartbeatReply


class Replaced(Exception):
    """The masters have fenced this UUID permanently: the process ends."""


def require_not_replaced(reply: HeartbeatReply, name: str) -> None:
    """Raise Replaced if a leader master says so.

    A fence is never taken back, so a leader of an old term is believed too.
    """
    if reply.is_leader and reply.replaced:
        raise Replaced(f"{name}: another server has this name, on another machine")
