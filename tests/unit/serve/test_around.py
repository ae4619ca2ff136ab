"""What the masters do not know, as the HTTP front answers it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stelae.core.errors import Unavailable
from stelae.serve.gateway import around as module
from stelae.serve.gateway.around import ASK_S, KEPT_S, OLDEST_S, Around

STATUS: dict[str, Any] = {
    "servers": [
        {"id": "master-1", "kind": "master", "state": "live", "node": "a"},
        {"id": "master-2", "kind": "master", "state": "live", "node": "a"},
        {"id": "backup-1", "kind": "backup", "state": "dead", "node": "a"},
    ],
    "tables": [],
}


async def test_it_is_asked_once_in_a_while_and_trouble_is_shown() -> None:
    """What was told last stands meanwhile; a server that lives is not stopped. Once the ask fails,
    nobody is said to be stopped: who had been may run by now."""
    asked: list[float] = []  # when
    now = 100.0
    told: dict[str, Any] | Unavailable = {
        "stopped": ["backup-1", "master-2"],
        "away": None,
        "spread": "node",
    }

    async def ask() -> dict[str, Any]:
        asked.append(now)
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
    assert shown["stopped"] == []
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

    async def ask() -> dict[str, Any]:
        raise error

    around = Around(ask)
    shown = await around.added(STATUS)
    assert shown["away"]["problem"] == (str(error) or "Exception")
    assert (shown["servers"], shown["stopped"]) == (STATUS["servers"], [])
    assert await around.stopped() == []


async def test_while_ray_hangs_one_ask_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody looks. They get what was told last, with its age; when that is very
    old, nothing but that. What comes at last stands."""
    monkeypatch.setattr(module, "ASK_S", 0.05)
    now, asked = 100.0, 0
    goes_on = asyncio.Event()
    goes_on.set()

    async def ask() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        await goes_on.wait()
        return {
            "stopped": ["backup-1"],
            "away": {"since": {"b": 1.0}, "servers": []},
            "spread": None,
        }

    around = Around(ask, lambda: now)
    assert (await around.added(STATUS))["away"] == {"since": {"b": 1.0}, "servers": []}
    goes_on.clear()
    now += ASK_S + KEPT_S + 1.0
    looks = asyncio.gather(around.added(STATUS), around.added(STATUS))
    both = await asyncio.wait_for(looks, 5.0)
    assert asked == 2
    for shown in both:
        assert shown["stopped"] == ["backup-1"]
        assert shown["away"]["since"] == {"b": 1.0}
        assert "8 s old" in shown["away"]["problem"]
    now += OLDEST_S
    shown = await asyncio.wait_for(around.added(STATUS), 5.0)
    assert (shown["stopped"], shown["away"]["since"], asked) == ([], {}, 2)
    assert "not answered for 38 s" in shown["away"]["problem"]
    goes_on.set()
    await asyncio.sleep(0)
    now += KEPT_S
    shown = await around.added(STATUS)
    assert (shown["stopped"], asked) == (["backup-1"], 3)
    assert "problem" not in shown["away"]


async def test_a_front_that_ends_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the first one comes, the status says that nothing is known yet."""
    monkeypatch.setattr(module, "ASK_S", 0.01)

    async def ask() -> dict[str, Any]:
        await asyncio.sleep(3600.0)
        raise AssertionError

    around = Around(ask)
    shown = await asyncio.wait_for(around.added(STATUS), 5.0)
    assert (shown["stopped"], shown["warnings"]) == ([], [])
    assert shown["away"]["problem"] == "Ray has not answered yet"
    await asyncio.wait_for(around.close(), 5.0)
