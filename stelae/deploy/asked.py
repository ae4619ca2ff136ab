"""What was asked of a cluster last, and by whom: ``spec.json`` in its data_dir.

Written when a cluster has come up, and by each apply before it changes anything. One apply runs at
a time: whoever changes the cluster has the turn, by the masters' word (`Database.turn`,
`stelae.core.records.turns`). And the one that was asked last goes on: each looks before every step
whether it still is (`Kept.stamp`). Decisions §44.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from stelae.actors.ray_host.kept_files import SPEC_FILE, changing, write_file
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec


@dataclass(frozen=True, slots=True)
class Kept:
    """The spec that was asked for last."""

    spec: dict[str, Any]
    """Its document."""
    by: str = ""
    at_s: float = 0.0
    """Seconds since 1970."""
    is_done: bool = False
    """The cluster was as it says, at least once."""
    generation: int = 0
    """Number of specs that were asked for, with this one; 0: written by a version that did not
    count."""

    @property
    def stamp(self) -> tuple[str, float]:
        """Which asking it is."""
        return self.by, self.at_s


def who() -> str:
    """This process, for people to find it: user, process and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user} (process {os.getpid()} on {socket.gethostname()})"


def keep_spec(data_dir: str | Path, spec: ClusterSpec, *, is_done: bool, by: str = "") -> Kept:
    """Write down what is asked from now on."""
    folder = Path(data_dir)
    with changing(folder):
        generation = (_document(folder) or {}).get("generation", 0) + 1
        kept = Kept(spec.document(), by or who(), time.time(), is_done, generation)
        _write(folder, kept)
    return kept


def note_done(data_dir: str | Path, kept: Kept) -> None:
    """What was asked is so, unless something else was asked meanwhile."""
    now, folder = kept_spec(data_dir), Path(data_dir)
    if now is not None and now.stamp == kept.stamp:
        with changing(folder):
            _write(folder, replace(kept, is_done=True))


def _write(folder: Path, kept: Kept) -> None:
    write_file(folder / SPEC_FILE, (json.dumps(asdict(kept), indent=2) + "\n").encode())


def kept_spec(data_dir: str | Path) -> Kept | None:
    """What was asked last; None: nothing that was written down."""
    document = _document(Path(data_dir))
    return None if document is None else _kept(document)


def kept_in(data: bytes) -> Kept:
    """What is written in a ``spec.json``. Raises ValueError: it is none."""
    return _kept(json.loads(data))


def _kept(document: dict[str, Any]) -> Kept:
    known = {field.name for field in fields(Kept)}  # a later version may have written more
    return Kept(**{name: value for name, value in document.items() if name in known})


def _document(folder: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / SPEC_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def spec_of(kept: Kept | None, otherwise: ClusterSpec) -> ClusterSpec:
    """The spec itself. Raises InvalidArgument: the file was changed by hand, wrongly."""
    return otherwise if kept is None else load_spec(kept.spec)
