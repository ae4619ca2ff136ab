"""What has come of the replacement of one server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Replacement:
    """What has come of it."""

    name: str
    former: tuple[str, ...]
    """UUIDs that are fenced; of a master: that have left the set."""
    uuid: str
    """The new server's."""
    machine: str = ""
    """Where the new server is; empty: all servers are on one machine."""
    set_aside: tuple[str, ...] = ()
    """Folders with what the former server had, on its machine. They may be deleted."""
    only_ended: bool = False
    """Nothing was replaced: an earlier replacement, that was interrupted after its new server was
    heard, is whole now. The same call again replaces the server once more."""

    def document(self) -> dict[str, Any]:
        """For programs."""
        found = asdict(self)
        return {**found, "former": list(self.former), "set_aside": list(self.set_aside)}
