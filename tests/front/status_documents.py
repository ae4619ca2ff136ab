"""Status documents for tests of the page: one that a real cluster gave, and others made from it."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

_RECORDED = json.loads((Path(__file__).parent / "recorded" / "one_dead.json").read_text())


def one_dead() -> dict[str, Any]:
    """A tserver was killed: its tablets are recovered, and its replicas are missing."""
    return copy.deepcopy(_RECORDED)


def healthy() -> dict[str, Any]:
    """All live, and nothing missing."""
    status = one_dead()
    for server in status["servers"]:
        server["state"] = "live"
    for tablet in status["tablets"]:
        tablet["under_replicated"] = 0
        for replica in tablet.get("replicas", ()):
            replica["server_live"] = True
            replica["role"] = replica["role"] or "follower"
    return status


def empty() -> dict[str, Any]:
    """A cluster that was made a moment ago."""
    status = {key: [] if isinstance(value, list) else value for key, value in healthy().items()}
    status["servers"] = [s for s in healthy()["servers"] if s["kind"] == "master"]
    return status


def busy(servers: int = 12, tablets: int = 500) -> dict[str, Any]:
    """Many servers and tablets, a recovery that runs, and one of each kind of move."""
    status, chance = one_dead(), random.Random(7)
    names = [f"tserver-{n}" for n in range(servers)]
    base = next(s for s in status["servers"] if s["kind"] == "tserver" and s["state"] == "live")
    status["servers"] = [s for s in status["servers"] if s["kind"] != "tserver"] + [
        {**base, "id": name, "uuid": name, "memory_bytes": chance.randrange(10, 220) << 20,
         "address": f"10.0.0.{n + 10}:7100", "tablets": tablets // servers}
        for n, name in enumerate(names)
    ]  # fmt: skip
    dead = {**base, "id": "tserver-x", "uuid": "x", "state": "dead", "silent_s": 2.2}
    status["servers"].append(dead)
    one = status["tablets"][0]
    status["tablets"] = [
        {**one, "id": f"{n:032x}", "table": f"table_{n // 100}", "number": n % 100,
         "leader": chance.choice(names), "rows": chance.randrange(100_000),
         "load_per_s": chance.random() * 1000}
        for n in range(tablets)
    ]  # fmt: skip
    status["tablets"][3].update(state="recovering", rows=0)
    table = status["tables"][0]
    status["tables"] = [
        {**table, "id": f"{n:032x}", "name": f"table_{n}", "tablets": 100, "tablets_running": 100,
         "rows": 4_500_000, "memory_bytes": 1 << 30}
        for n in range((tablets + 99) // 100)
    ]  # fmt: skip
    status["recoveries"].insert(0, {
        **status["recoveries"][0], "id": 2, "server": "tserver-x", "state": "running",
        "tablets_total": 4, "tablets_running": 3, "loaded": 0.62,
        "started": status["time"] - 1.1, "phases_s": {"raised": 0.01, "fenced": 0.03},
    })  # fmt: skip
    return _with_moves(status)


def _with_moves(status: dict[str, Any]) -> dict[str, Any]:
    tablets = status["tablets"]
    status["copies"] = [
        {"tablet": tablets[7]["id"], "table": "table_0", "server": "tserver-3", "uuid": "u3",
         "source": "tserver-4", "source_uuid": "u4", "state": "copying", "copied_bytes": 30 << 20,
         "bytes": 80 << 20, "problem": ""}
    ]  # fmt: skip
    status["migrations"] = [
        {"timeline": ["0", tablets[9]["id"]], "step": 4, "step_name": "copy logs", "generation": 3,
         "members": [1, 2, 3], "desired": [1, 2, 4], "waits_for": [], "problems": {},
         "started_s": 0.0, "moved_s": 0.0}
    ]  # fmt: skip
    status["shortages"] = [
        {"tablet": tablets[11]["id"], "table": "table_0", "number": 11, "segments": 3,
         "segments_of": 10, "bytes": 3 << 20, "bytes_of": 10 << 20}
    ]  # fmt: skip
    status["indexes"] = [
        {"id": 1, "table": "table_1", "column": "dest", "state": "filling", "filled": 0.4,
         "entries": 10, "problem": "", "indexlets": [{"server": "tserver-2"}]}
    ]  # fmt: skip
    tablets[5]["succession"] = {
        "successor": "s", "stage": "copying", "copied": 20, "of": 100, "problem": ""
    }  # fmt: skip
    return status


EVIL = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">\'&\x00\u202e'


def evil() -> dict[str, Any]:
    """Every text in it that anybody may choose is markup."""

    def spoilt(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoilt(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [spoilt(each, key) for each in value]
        keeps = key in {"kind", "state", "role", "member", "sk_set"}
        return f"{value}{EVIL}" if isinstance(value, str) and not keeps else value

    status: dict[str, Any] = spoilt(busy(3, 20))
    for each in (*status["tablets"], *status["copies"], *status["indexes"]):
        each["problem"] = EVIL
    status["servers"][0]["state"] = status["servers"][1]["role"] = EVIL
    return status
