"""Whose turn it is to change a cluster's servers: one operator at a time, by the masters' word.

Who has the turn keeps it by saying so every few seconds, and is sure of it for a while after each
time. Somebody else gets it once it was ended, or nothing was heard of its holder for longer than
that. Steps on Ray cannot be fenced by the masters; so whoever has the turn looks, before each,
whether it is sure. Decisions §44.

Source: leases (Gray and Cheriton 1989); Chubby's sessions and sequencers (Burrows 2006).
"""

from __future__ import annotations

import msgspec

from stelae.core.ids import RequestId
from stelae.core.rpc import ANY_MASTER, Body, Method

TURN_S = 30.0
"""Of silence, after which somebody else may have it."""
SURE_S = 20.0
"""So long whoever has it is sure of it after each time it said so and was answered; less by what
two clocks may differ in, and by more than a step takes from its last look to its end."""
KEEP_S = 4.0
"""Between two times that it says so."""
MAX_TEXT = 200


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """Who has it."""

    holder: str = ""
    """An id of chance; empty: nobody."""
    who: str = ""
    what: str = ""
    """What it does, for people."""
    since_s: float = 0.0
    """Seconds since 1970."""
    number: int = 0
    """Grows with each turn."""
    generation: int = 1


class TakeTurn(Body, frozen=True):
    """Take the turn; with a ``number``: keep that one.

    Raises AlreadyRunning: another has it, or has had it since; the text says who.
    """

    request: RequestId
    holder: str
    who: str
    what: str
    number: int = 0


class EndTurn(Body, frozen=True):
    """The turn of that number is over; if it is already, or another's, nothing happens."""

    request: RequestId
    number: int


class TurnReply(Body, frozen=True):
    turn: Turn


TAKE_TURN = Method("master.take_turn", TakeTurn, TurnReply, ANY_MASTER)
END_TURN = Method("master.end_turn", EndTurn, TurnReply, ANY_MASTER)
