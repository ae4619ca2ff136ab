"""What the masters do not know, as the HTTP front answers it."""

from __future__ import annotations

from typing import Any

import pytest

from stelae.core.errors import Unavailable
from stelae.serve.gateway.around import KEPT_S, Around

STATUS: dict[str, Any] = {
    "servers": [
        {"id": "master-1", "kind": "master", "state": "live", "node": "a"},
        {"id": "master-2", "kind": "master", "state": "live", "node": "a"},
        {"id": "backup-1", "kind": "backup", "state": "dead", "node": "a"},
    ],
    "tables": [],
}


async def test_it_is_asked_once_in_a_while_and_trouble_is_shown() -> None:
    """What was told last stands meanwhile; a server that lives is not stopped."""
    asked: list[float] = []
    now = 100.0
    told: dict[str, Any] | Unavailable = {
        "stopped": ["backup-1", "master-2"],
        "away": None,
        "spread": "node",
    }

    async def ask(timeout_s: float) -> dict[str, Any]:
        asked.append(timeout_s)
        if isinstance(told, Unavailable):
            raise told
        return told

    around = Around(ask, lambda: now)
    shown = await around.added(STATUS)
    assert (shown["stopped"], shown["away"]) == (["backup-1"], None)
    assert "too few for the copies of masters (2)" in shown["warnings"][0]
    assert await around.stopped() == ["backup-1", "master-2"]
    assert len(asked) == 1
    told = Unavailable("Ray", "it has ended")
    now += KEPT_S
    shown = await around.added(STATUS)
    assert shown["stopped"] == ["backup-1"]
    assert "it has ended" in shown["away"]["problem"]
    assert len(asked) == 2


async def test_a_front_of_its_own_knows_nothing() -> None:
    """And says so by the same members."""
    shown = await Around(None).added(STATUS)
    assert (shown["stopped"], shown["away"], shown["warnings"]) == ([], None, [])


@pytest.mark.parametrize(
    "error",
    [ValueError("no such actor"), OSError("the disk is full"), KeyError("spec"), Exception()],
)
async def test_whatever_fails_never_fails_the_status(error: Exception) -> None:
    """It is told as a problem, beside what the masters say."""

    async def ask(timeout_s: float) -> dict[str, Any]:
        raise error

    around = Around(ask)
    shown = await around.added(STATUS)
    assert shown["away"]["problem"] == (str(error) or "Exception")
    assert (shown["servers"], shown["stopped"]) == (STATUS["servers"], [])
    assert await around.stopped() == []
