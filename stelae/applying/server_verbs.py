"""The commands on one server that come over HTTP, as `stelae server` gives them.

Each ends the same way from the command line, from Python and over HTTP: they are calls of
`stelae.Database`. Decisions §81.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from stelae.core.errors import InvalidArgument
from stelae.core.messages.operators import ServerProgress

Document = dict[str, Any]
Tell = Callable[[int, int, str], None]
VERBS = ("retire", "stop", "start", "restart", "replace")


class Replaced(Protocol):
    """What has come of a replacement."""

    def document(self) -> Document: ...


class ServerCommands(Protocol):
    """What is needed of a `stelae.Database`."""

    def status(self) -> Mapping[str, Any]: ...

    def servers(self) -> list[Document]: ...

    def retire_server(
        self, server: str, *, wait: bool, cancel: bool, progress: Callable[[ServerProgress], None]
    ) -> ServerProgress: ...

    def stop_server(self, server: str, *, progress: Callable[[str], None]) -> None: ...

    def start_server(self, server: str, *, progress: Callable[[str], None]) -> None: ...

    def restart_server(self, server: str, *, progress: Callable[[str], None]) -> None: ...

    def replace_server(
        self,
        server: str,
        *,
        drain: bool,
        elsewhere: bool,
        progress: Callable[[str], None],
        timeout: float,
    ) -> Replaced: ...


def check_server(database: ServerCommands, verb: str, server: str) -> frozenset[str]:
    """What it is called: its name and UUID, or the UUID of a former one and its name. Raises
    InvalidArgument: no server, and no former one, is called so."""
    if verb not in VERBS:
        raise InvalidArgument(f"{verb!r} is nothing that is done to a server: {', '.join(VERBS)}")
    for each in database.servers():
        if server in (each["name"], each["uuid"]):
            return frozenset((each["name"], each["uuid"]))
    for each in database.status()["replaced"]:
        if server == each["uuid"]:
            return frozenset((server, each["id"]))
    raise InvalidArgument(f"{server!r} is no server (`GET /v1/cluster` lists all)")


def run_verb(
    database: ServerCommands,
    verb: str,
    server: str,
    options: Mapping[str, bool],
    tell: Tell,
    retiring: Callable[[Tell], Callable[[ServerProgress], None]],
    timeout_s: float,
) -> Document:
    """Carry out one command, and return what has come of it. A retirement is done once the server
    is marked: what it has left the masters move, whether anybody waits or not.

    ``tell`` is told how far it is, and may raise, to end it; ``retiring`` makes of it what a
    retirement tells.

    Raises StelaeError, as the calls of `stelae.Database` do.
    """

    def words(text: str) -> None:
        tell(0, 0, text)

    match verb:
        case "retire":
            cancel = options["cancel"]
            database.retire_server(server, wait=False, cancel=cancel, progress=retiring(tell))
        case "stop":
            database.stop_server(server, progress=words)
        case "start":
            database.start_server(server, progress=words)
        case "restart":
            database.restart_server(server, progress=words)
        case _:
            return database.replace_server(
                *(server,),
                drain=options["drain"],
                elsewhere=options["elsewhere"],
                progress=words,
                timeout=timeout_s,
            ).document()
    return {}
