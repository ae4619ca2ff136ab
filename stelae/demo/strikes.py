"""What else the demo does to a cluster while rows are written: it kills tablet servers and backups
one after the other, and then every server in the same moment, as a loss of power would.

Processes are ended by SIGKILL, by their pids, on this machine. Ray starts each anew on its disk;
after a loss of power that is a cold start, as nothing of any memory is left.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stelae.client.check.status import problems_of
from stelae.core.errors import InvalidArgument, StelaeError

if TYPE_CHECKING:
    from stelae.database.api import Database

TURNS = 2
"""So often a tablet server is killed, and after it a backup."""
SERVER_KINDS = ("master", "tserver", "backup", "safekeeper", "cas_store")
BETWEEN_KILLS_S = 0.5
WHOLE_S = 180.0
POLL_S = 0.1

Server = dict[str, Any]
"""As a status document has it."""
Kill = Callable[["Database", Callable[[str], None]], list[str]]
"""Kills servers, saying how far it is; their names, once all is whole again."""


def kill_in_turn(database: Database, say: Callable[[str], None]) -> list[str]:
    """Kill tablet servers and backups in turn, each once all is whole again; their names."""
    killed: list[str] = []
    for turn, kind in itertools.product(range(TURNS), ("tserver", "backup")):
        live = servers_of(database, (kind,))
        victim = live[turn % len(live)]
        say(f"{victim['id']} is killed ({len(killed) + 1} of {2 * TURNS})")
        kill([victim])
        time.sleep(BETWEEN_KILLS_S)
        wait_whole(database, [victim])
        killed.append(victim["id"])
    return killed


def lose_power(database: Database, say: Callable[[str], None]) -> list[str]:
    """Kill all servers at once: none runs on while another is killed. Their names, once all is
    whole again."""
    victims = servers_of(database, SERVER_KINDS)
    kill(victims)
    say(f"all {len(victims)} servers were killed at once; they start on their disks")
    wait_whole(database, victims)
    return [victim["id"] for victim in victims]


def servers_of(database: Database, kinds: tuple[str, ...]) -> list[Server]:
    """The live ones, by name.

    Raises:
        InvalidArgument: one of them is not on this machine.
    """
    live = [s for s in database.status()["servers"] if s["kind"] in kinds and s["state"] == "live"]
    for server in live:
        if not Path(f"/proc/{server['pid']}").exists():
            raise InvalidArgument(
                f"{server['id']} (process {server['pid']} on {server['node']}) is not on this "
                "machine: the demo kills by pid; run it on that machine"
            )
    return sorted(live, key=lambda server: str(server["id"]))


def kill(victims: list[Server]) -> None:
    """Stop all, then end all."""
    for how in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            os.kill(victim["pid"], how)


def wait_whole(database: Database, victims: list[Server]) -> None:
    """Until the killed servers run anew, and everything is as it should be.

    Raises:
        StelaeError: it takes too long.
    """
    before = {victim["id"]: victim["pid"] for victim in victims}
    deadline = time.monotonic() + WHOLE_S
    while True:
        try:
            problems = _problems(database.status(), before)
        except StelaeError as error:  # no master leads yet
            problems = [str(error)]
        if not problems:
            return
        if time.monotonic() > deadline:
            raise StelaeError(f"not at full strength after {WHOLE_S:g} s: {problems[:3]}")
        time.sleep(POLL_S)


def _problems(status: dict[str, Any], before: dict[str, int]) -> list[str]:
    back = {
        server["id"]
        for server in status["servers"]
        if server["state"] == "live" and server["pid"] != before.get(server["id"])
    }
    waited_for = [f"{name} is not back" for name in before if name not in back]
    return waited_for or problems_of(status)
