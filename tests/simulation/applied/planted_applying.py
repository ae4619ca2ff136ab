"""Bugs of applying specs, planted on purpose: each must be found by the scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from stelae.applying import run
from stelae.client.admin.turns import OperatorTurn
from stelae.client.database import AsyncDatabase
from stelae.coordinator.apply import plan, replaces
from tests.simulation.world.planting import planting


@contextmanager
def _drained_too_early() -> Iterator[None]:
    """Whoever is marked counts as drained."""
    server_is, retire = run._server_is, AsyncDatabase.retire_server

    def drained(*args: Any, **kwargs: Any) -> Any:
        found = server_is(*args, **kwargs)
        return replace(found, left=0) if found.retiring else found

    async def marked(self: AsyncDatabase, server: str, **options: Any) -> Any:
        return await retire(self, server, **{**options, "wait": False})

    with (
        patch.object(run, "_server_is", drained),
        patch.object(AsyncDatabase, "retire_server", marked),
    ):
        yield


def _taken_back_too_late() -> Any:
    """A server that comes back, as it is wanted again, keeps its mark."""
    return patch.object(plan, "_kept", lambda wanted, present: ())


def _everybody_has_the_turn() -> Any:
    """Two applies go on side by side."""

    async def begin(self: OperatorTurn, timeout_s: float = 0.0) -> None:
        del timeout_s
        self._sure_until = float("inf")

    return patch.object(OperatorTurn, "begin", begin)


def _replaced_undrained() -> Any:
    """A server that is replaced counts as drained at once."""
    return patch.object(replaces, "_is_drained", lambda look, server: True)


PLANTED: dict[str, Callable[[], Any]] = {
    "drained_too_early": _drained_too_early,
    "taken_back_too_late": _taken_back_too_late,
    "everybody_has_the_turn": _everybody_has_the_turn,
    "replaced_undrained": _replaced_undrained,
}

planted = planting(PLANTED)
