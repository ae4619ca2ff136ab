"""Bugs for the scenario of a replicated tablet, which it has to find."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stelae.actors.raft.staleness import Freshness
from stelae.actors.raft.storage import ReplicaStorage
from stelae.actors.tserver.client_writes import ClientWrites
from stelae.actors.tserver.replicated_tablet.tablet import ReplicatedTablet
from stelae.client.table.gathering import Gathering
from stelae.storage.replicated.state_machine import TabletStateMachine
from tests.simulation.world.planting import replacing


async def _unasked(self: ReplicatedTablet, max_staleness_s: float, timeout_s: float) -> None:
    return None


def _always_fresh(self: Freshness) -> float:
    return 0.0


def _forgets(self: TabletStateMachine, flush: Any, survivors: Any) -> bytes:
    return _manifest(self, replace(flush, clients=()), survivors)


def _own_clock(self: TabletStateMachine, index: int, term: int, command: bytes) -> Any:
    """Something of this server decides: how often it was started."""
    if not self.memory.has_head and index % 7 == 0:
        self.memory.next_version += 1
    return _apply(self, index, term, command)


async def _trims_too_much(self: ReplicaStorage, keep_from: int) -> None:
    while len(self._files) > 1:
        await self._remove(self._files.pop(0))


async def _to_another_call(self: Gathering, waiting: Any) -> Any:
    found = list(await _outcomes(self, waiting))
    return [*found[1:], found[0]]


async def _turned_round(self: ReplicatedTablet, *given: Any) -> tuple[bytes, ...]:
    return tuple(reversed(await _write_many(self, *given)))


async def _to_the_next_caller(self: ClientWrites, calls: Any) -> Any:
    found = list(await _on_writes(self, calls))
    return [*found[1:], found[0]]


_on_writes = ClientWrites._on_writes
_outcomes, _write_many = Gathering._outcomes, ReplicatedTablet.write_many
_manifest, _apply = TabletStateMachine.manifest, TabletStateMachine.apply

BUGS: dict[str, tuple[Any, str, Any]] = {
    "any replica reads": (ReplicatedTablet, "_may_read", _unasked),
    "followers take themselves to be fresh": (Freshness, "staleness_s", _always_fresh),
    "flushes forget who wrote": (TabletStateMachine, "manifest", _forgets),
    "a flush decides a version": (TabletStateMachine, "apply", _own_clock),
    "the log is cut beyond the flush": (ReplicaStorage, "trim", _trims_too_much),
}

GATHERED: dict[str, tuple[Any, str, Any]] = {
    "a gathered answer goes to another call": (Gathering, "_outcomes", _to_another_call),
    "an answer of a group goes to another caller": (
        ClientWrites,
        "_on_writes",
        _to_the_next_caller,
    ),
    "the outcomes of a message are turned round": (ReplicatedTablet, "write_many", _turned_round),
}
"""Of small writes that travel together; the scenario `replicas` finds them."""


planted = replacing(BUGS, GATHERED)
