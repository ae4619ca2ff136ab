"""The commands on one server that come over HTTP, as `stelae server` gives them.

Each ends the same way from the command line, from Python and over HTTP: they are calls of
`stelae.Database`. Decisions §81.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from stelae.coordinator.apply.replaces import not_heard
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

    def _processes(self) -> tuple[Sequence[str], Collection[str]]:
        """Names of the spec's servers, and of those that have an actor in Ray."""
        ...

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
    """Return what it is called: its name and its UUID if that is known. ``server`` may be the UUID
    of a former one, or of one that only the catalog names, and the name of one that only the spec
    has. Raises InvalidArgument: no server is called so."""
    if verb not in VERBS:
        raise InvalidArgument(f"{verb!r} is nothing that is done to a server: {', '.join(VERBS)}")
    for each in database.servers():
        names = frozenset(filter(None, (each["name"], each["uuid"])))  # one never heard has no UUID
        if server in names:
            return names
    status = database.status()
    for each in [*status["replaced"], *not_heard(status)]:
        if server == each["uuid"]:
            return frozenset((server, each["id"]))
    wanted, _ = database._processes()
    if server in wanted:  # never heard, while Ray has its actor
        return frozenset((server,))
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
