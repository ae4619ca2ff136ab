"""``cluster.json``: what is known of a cluster where it was launched, and on each of its machines.

Written as a whole, under a version that grows: of copies on several machines the newest counts.
So does it with each change of another of the cluster's files (`kept_files.changing`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from stelae.actors.ray_host.kept_files import ADMIN_TOKEN_FILE as ADMIN_TOKEN_FILE
from stelae.actors.ray_host.kept_files import SECRET_FILE as SECRET_FILE
from stelae.actors.ray_host.kept_files import STATE_FILE as STATE_FILE
from stelae.actors.ray_host.kept_files import locked, read_secret, version_of, write_file
from stelae.core.addresses import split_address
from stelae.core.config.peer_tls import PeerTls, peer_tls_of
from stelae.core.errors import InvalidArgument


@dataclass(frozen=True)
class ClusterState:
    """What `connect` needs to know of a cluster; kept in ``cluster.json``."""

    cluster: str
    data_dir: str
    masters: dict[str, str]
    ray_address: str = ""
    """Of the Ray that it runs in, while it runs."""
    http: str = ""
    """URL of its HTTP front, while it runs."""
    http_starts: bool = False
    """Whether the process that launched it still starts its HTTP front."""
    http_problem: str = ""
    """Why its HTTP front did not start, while it runs without one. Not written down if empty, so
    that versions before can read the file."""
    cas_store: str = ""
    """Origin of its configuration store, for ever; empty: its masters."""
    started_serve: bool = False
    """Whether Serve was started for it, and nobody else's applications were there."""
    machines: dict[str, str] = field(default_factory=dict)
    """Of each server the machine that it stays on, if the cluster has a placement."""
    keeper_pid: int = 0
    """Process that holds it for `stelae up`, while it runs."""
    tls: dict[str, str] = field(default_factory=dict)
    """TLS with which its servers were started last; see `PeerTls.document`. Empty: none."""
    version: int = field(default=0, compare=False)
    """Counts its changes: of the copies that machines have, the newest is known by it."""
    home: str = field(default="", compare=False)
    """The folder that this was read from, if that is not its data_dir. Not written down."""

    @property
    def folder(self) -> Path:
        """Where this lies, with the secret."""
        return Path(self.home or self.data_dir)

    @property
    def secret(self) -> bytes:
        return read_secret(self.folder)

    @property
    def peer_tls(self) -> PeerTls:
        """TLS of its connections. Raises InvalidArgument: a newer version wrote another mode."""
        return peer_tls_of(self.tls)

    def save(self) -> None:
        """Raises RetryLater: somebody else has been changing the folder's files for long."""
        with locked(self.folder):
            self._write()

    def _write(self) -> None:
        path = self.folder / STATE_FILE
        known = load_state(self.folder).version if path.exists() else 0
        document = asdict(replace(self, version=max(self.version, known) + 1))
        del document["home"]
        if not self.http_problem:
            del document["http_problem"]
        write_file(path, (json.dumps(document, indent=2) + "\n").encode())


def change(folder: Path, changed: Callable[[ClusterState], ClusterState]) -> None:
    """Change what a folder says of its cluster, as one step; a folder that is gone is left alone.

    Raises:
        InvalidArgument: ``cluster.json`` is damaged.
        RetryLater: as `kept_files.locked`.
    """
    if not (folder / STATE_FILE).exists():
        return
    with locked(folder):
        changed(load_state(folder))._write()


def load_state(data_dir: str | Path) -> ClusterState:
    """Read ``cluster.json``. Raises InvalidArgument: it is not there, or damaged."""
    path = Path(data_dir) / STATE_FILE
    try:
        return _decoded(path.read_bytes(), str(data_dir))
    except FileNotFoundError:
        raise InvalidArgument(
            f"{data_dir} is not a cluster's data_dir: it has no {STATE_FILE}; if that is lost and "
            "the cluster runs, `stelae attach` writes it anew"
        ) from None


def _decoded(data: bytes, home: str) -> ClusterState:
    path = Path(home) / STATE_FILE
    try:
        state = ClusterState(**json.loads(data), home=home)
        if not state.masters:
            raise ValueError("it names no masters")
        for address in state.masters.values():
            split_address(address)
        version_of(data, Path(home))
    except (ValueError, TypeError, AttributeError, InvalidArgument) as error:
        raise InvalidArgument(
            f"{path} cannot be read ({len(data)} bytes): {error}; copy it from the data_dir of "
            "another machine of the cluster or, if the cluster runs, have it written again by "
            "`stelae attach`"
        ) from None
    return state


def is_folder(cluster: str) -> bool:
    """Whether a data_dir is meant, and not the name of a cluster, as some folder may be called."""
    there = os.path.isdir(cluster)
    return there and (os.sep in cluster or os.path.exists(os.path.join(cluster, STATE_FILE)))


def newest(state: ClusterState) -> ClusterState:
    """As it is kept by now: masters, and where servers are, may have been chosen meanwhile."""
    if not (state.folder / STATE_FILE).exists():
        return state
    return replace(load_state(state.folder), data_dir=state.data_dir)


def at_rest(state: ClusterState) -> ClusterState:
    """The state of a cluster that does not run."""
    stopped = replace(state, http="", started_serve=False, http_starts=False, http_problem="")
    return replace(stopped, ray_address="", keeper_pid=0)
