"""What goes to one receiver at about the same time, handed over together: group commit of messages.

A message costs both ends more than what is in it, and the receiver often does once for all of a
message what it would do for each alone (a sync above all). So what comes for a receiver that has
nothing to answer goes at the end of the turn of the loop; what comes while a message is under way
goes with the next one, when that is answered. Nobody waits longer than `LATE_S` for that: a message
that takes long holds up nothing.

Where what is to be sent is made in several turns, a message may leave only after some turns in
which nothing more came for it. That asks for no time: in a loop that has nothing else to do they
are over at once, and in one that has, what it is busy with is often what would come next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

LATE_S = 0.01


class Together(Generic[K, T]):
    """What waits, by receiver. ``send`` is given all of one receiver's; it tells of each message
    that it sends by `began`, and whoever hears the answer by `ended`. ``quiet_turns``: of the loop,
    after which a message leaves; `LATE_S` at most after it could have."""

    def __init__(self, send: Callable[[K, list[T]], None], *, quiet_turns: int = 0) -> None:
        self._send = send
        self._quiet_turns = quiet_turns
        self._waiting: dict[K, list[T]] = {}
        self._under_way: dict[K, object] = {}
        """Of each receiver its newest message, if that is not answered."""
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, receiver: K, one: T) -> None:
        """Have it sent soon; never within this call."""
        waiting = self._waiting.get(receiver)
        if waiting is not None:
            waiting.append(one)
            return
        self._waiting[receiver] = [one]
        loop = asyncio.get_running_loop()
        if receiver in self._under_way:
            self._timers[receiver] = loop.call_later(LATE_S, self._leave, receiver)
        else:
            self._leave_soon(receiver)

    def began(self, receiver: K) -> object:
        """A message is under way; `ended` wants what this returns."""
        message = self._under_way[receiver] = object()
        return message

    def ended(self, receiver: K, message: object) -> None:
        """It was answered, or will not be; to be called once all who waited for it were told, so
        that what they send next goes together as well."""
        if self._under_way.get(receiver) is not message:
            return
        del self._under_way[receiver]
        timer = self._timers.pop(receiver, None)
        if timer is not None:
            timer.cancel()
            self._leave_soon(receiver)

    def _leave_soon(self, receiver: K) -> None:
        loop = asyncio.get_running_loop()
        if self._quiet_turns:
            until_s = loop.time() + LATE_S
            loop.call_soon(self._leave_when_quiet, receiver, 0, self._quiet_turns, until_s)
        else:
            loop.call_soon(self._leave, receiver)

    def _leave_when_quiet(self, receiver: K, had: int, turns: int, until_s: float) -> None:
        """Look once a turn whether more has come. ``had``: at the last look."""
        loop, count = asyncio.get_running_loop(), len(self._waiting[receiver])
        turns = turns - 1 if count == had else self._quiet_turns
        if turns and loop.time() < until_s:
            loop.call_soon(self._leave_when_quiet, receiver, count, turns, until_s)
        else:
            self._leave(receiver)

    def _leave(self, receiver: K) -> None:
        self._timers.pop(receiver, None)
        waiting = self._waiting.pop(receiver, None)
        if waiting:
            self._send(receiver, waiting)
