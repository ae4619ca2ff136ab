"""What a replacement of one server is about, and what has come of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from stelae.applying.one_server import Told
from stelae.applying.processes import Deployment
from stelae.deploy.changed import ChangedCluster


@dataclass(frozen=True, slots=True)
class ReplaceOrder:
    """A server that is to be replaced by a new, empty one of its name."""

    database: ChangedCluster
    known: Deployment
    """The spec, and where servers are, when the order was given."""
    name: str
    elsewhere: bool
    """The new server is to start on another machine."""
    progress: Told
    deadline: float
    """Monotonic seconds."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """What has come of it."""

    name: str
    former: tuple[str, ...]
    """UUIDs that are fenced; of a master: that have left the set. Empty: the masters knew none."""
    uuid: str
    """The new server's."""
    machine: str = ""
    """Where the new server is; empty: all servers are on one machine."""
    set_aside: tuple[str, ...] = ()
    """Folders with what the former server had. They may be deleted."""
    set_aside_on: tuple[str, ...] = ()
    """The machine of each of these folders; empty: all servers are on one machine."""
    only_ended: bool = False
    """Nothing was replaced: an earlier replacement, that was interrupted after its new server was
    heard, is whole now. The same call again replaces the server once more."""

    def document(self) -> dict[str, Any]:
        """For programs."""
        found = asdict(self)
        return {key: list(v) if isinstance(v, tuple) else v for key, v in found.items()}

    def lines(self) -> list[str]:
        """For people: what has come of it, and where folders are."""
        text = f"{self.name} is a new server: {self.uuid}"
        if self.only_ended:
            text = (
                f"an earlier replacement of {self.name} is whole now; its new server is "
                f"{self.uuid}. Nothing else was replaced: `stelae server replace {self.name}`, "
                "given again, replaces it once more"
            )
        elif not self.former:
            text += ". The masters knew no UUID of the former one, so nothing was fenced"
        where = [f"what the former one had is in {each}" for each in self.folders()]
        return [text, *(f"{each}, and may be deleted" for each in where)]

    def folders(self) -> list[str]:
        """Where what the former server had is, in words: folders, with their machines."""
        return [placed(*each) for each in zip(self.set_aside, self.set_aside_on, strict=True)]


def placed(folder: str, machine: str) -> str:
    """Name a folder and its machine. Pure."""
    return f"{folder} on {machine}" if machine else folder
