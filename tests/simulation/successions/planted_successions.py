"""Bugs planted into the masters' plans for tablets that get another durability: for whom there is
memory, whose turn it is, and when one takes the other's place. Planted as those of
`tests.simulation.successions.planted_durabilities`, which are of servers and clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

from stelae.coordinator.ddl import succession, successor_rooms
from stelae.coordinator.ddl.succession import Swap
from stelae.coordinator.ddl.successor_rooms import SuccessorRooms
from stelae.core.records.records import ServerInfo, TabletState
from stelae.core.records.succession import SuccessionStage


def _memory_is_endless() -> Any:
    """Put a successor anywhere: writers to other tablets of that server are refused."""
    return patch.object(successor_rooms, "_free_bytes", lambda load: successor_rooms.NO_LIMIT)


def _rooms_are_given_twice() -> Any:
    """Think of the room that is there, and not of those whom it was promised to."""
    choose = SuccessorRooms.choose

    def forgetful(self: SuccessorRooms, *wanted: Any) -> tuple[ServerInfo, ...]:
        self._free = {load.server.uuid: successor_rooms._free_bytes(load) for load in self._loads}
        return choose(self, *wanted)

    return patch.object(SuccessorRooms, "choose", forgetful)


def _stuck_ones_keep_their_turns() -> Any:
    """Let others wait for those that wait for memory."""
    return patch.object(succession, "IDLE_S", float("inf"))


def _swapped_when_fenced() -> Any:
    """Put the successor in the tablet's place once no more is written: before it has the last."""
    goes_on = succession._goes_on

    def hasty(look: Any, tablet: Any, successor: Any, seen: Any, report: Any) -> Iterator[Any]:
        said = None if report is None else report.succession
        is_fenced = said is not None and said.stage is SuccessionStage.FENCED
        if is_fenced and tablet.state is successor.state is TabletState.RUNNING:
            yield Swap(tablet, successor)
        else:
            yield from goes_on(look, tablet, successor, seen, report)

    return patch.object(succession, "_goes_on", hasty)


def _nobody_is_released() -> Any:
    """Tell no tablet that its successor was given up: it makes way for nobody, for ever."""
    return patch.object(succession, "_releases", lambda *_: iter(()))


BUGS: dict[str, Callable[[], Any]] = {
    "memory_is_endless": _memory_is_endless,
    "rooms_are_given_twice": _rooms_are_given_twice,
    "stuck_ones_keep_their_turns": _stuck_ones_keep_their_turns,
    "swapped_when_fenced": _swapped_when_fenced,
    "nobody_is_released": _nobody_is_released,
}
BY_CHANCE = ("nobody_is_released", "swapped_when_fenced")
"""Found by the scenario ``durabilities``; the others by stories of servers with little memory."""
