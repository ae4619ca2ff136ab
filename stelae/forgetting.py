"""``stelae down --forget``: what a cluster that has ended stores is removed, on all its machines.

Rules:

1. Nothing is removed of a folder that is not this cluster's (by its secret), or on which a server
   runs.
2. A machine's ``cluster.json`` and secret go last, and this machine goes last of all: what was
   interrupted, or did not reach every machine, is given again and goes on.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import ray

from stelae.actors.ray_host.kept_files import SECRET_FILE, STATE_FILE, read_files
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import AlreadyRunning, InvalidArgument, RetryLater
from stelae.deploy import nodes, ray_session
from stelae.deploy.asked import kept_spec
from stelae.deploy.cluster_state import ClusterState, load_state
from stelae.deploy.locks import LaunchLock, is_locked
from stelae.deploy.machines import machine_of


@dataclass(frozen=True, slots=True)
class Stored:
    """What a cluster stores, as far as it is known on this machine."""

    state: ClusterState
    spec: ClusterSpec
    folders: tuple[Path, ...]
    """On this machine: the data_dir, and those of its servers on media elsewhere."""
    size_bytes: int
    """Of these."""

    @property
    def machines(self) -> tuple[str, ...]:
        """All that servers are on; none: a cluster without a placement."""
        return tuple(sorted(set(self.state.machines.values())))

    @property
    def media(self) -> tuple[str, ...]:
        """Paths of media outside of the data_dir, the same on every machine."""
        media = self.spec.media.values()
        return tuple(each.path for each in media if each.path and os.path.isabs(each.path))


def stored(data_dir: Path) -> Stored | None:
    """What the cluster of this data_dir stores; None: there is nothing of a cluster.

    Raises InvalidArgument: its files are damaged.
    """
    if read_files(data_dir) is None:
        return None
    state, kept = load_state(data_dir), kept_spec(data_dir)
    spec = load_spec(
        {"cluster": state.cluster, "data_dir": str(data_dir)} if kept is None else kept.spec
    )
    found = Stored(state, spec, (data_dir,), 0)
    folders = (data_dir, *_on_media(data_dir, found.media))
    return Stored(state, spec, folders, sum(_size_bytes(folder) for folder in folders))


def forget(data_dir: Path, known: Stored) -> None:
    """Remove what the cluster stores on all its machines, this one last.

    Raises:
        AlreadyRunning: a server of it runs, or somebody launches it.
        RetryLater: some machines do not answer; what they store, and this machine's files of the
            cluster, are there yet.
    """
    files = read_files(data_dir)
    if files is None:
        return
    lock = LaunchLock(data_dir)
    try:
        if known.machines:
            _forget_elsewhere(data_dir, files.secret, known)
        forget_here(data_dir, files.secret, known.media)
    finally:
        lock.release()


def forget_here(data_dir: Path, secret: bytes, media: Sequence[str]) -> None:
    """The same on this machine alone.

    Raises:
        AlreadyRunning: a server runs on one of the folders.
        InvalidArgument: the data_dir is another cluster's.
    """
    files = read_files(data_dir)
    if files is None:
        return
    if files.secret != secret:
        raise InvalidArgument(f"{data_dir} has the files of another cluster: it is left as it is")
    servers = _servers(data_dir)
    elsewhere = _on_media(data_dir, media)
    if running := [str(folder) for folder in (*servers, *elsewhere) if is_locked(folder)]:
        raise AlreadyRunning(f"a server runs on {', '.join(running)}: take the cluster down first")
    for folder in (*elsewhere, *servers):
        shutil.rmtree(folder)
    for each in data_dir.iterdir():
        if each.name not in (STATE_FILE, SECRET_FILE):
            each.unlink()
    shutil.rmtree(data_dir)


def _forget_elsewhere(data_dir: Path, secret: bytes, known: Stored) -> None:
    placement = known.spec.placement
    assert placement is not None, "servers have machines by a placement alone"
    if not ray.is_initialized():
        ray_session.join_ray(known.spec.ray.address)
    here, label = ray.get_runtime_context().get_node_id(), placement.machine_label
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    there = [found for node in others if (found := machine_of(node, label)) is not None]
    mine = [machine_of(node, label) for node in ray.nodes() if node["NodeID"] == here]
    asked = [machine for machine in known.machines if machine in there]
    told = nodes.ask(
        forget_here,
        {machine: {label: machine} for machine in asked},
        {machine: (data_dir, secret, known.media) for machine in asked},
    )
    left = [m for m in known.machines if m not in told.answers and m not in mine]
    if left:
        raise RetryLater(
            f"{', '.join(left)} cannot be reached through Ray, and store their part of cluster "
            f"{known.state.cluster!r} yet: give `stelae down --forget` again once they are back"
        )


def _servers(data_dir: Path) -> list[Path]:
    """Folders of servers; others lie there, too (the audit log), and are locked by none."""
    return sorted(folder for folder in data_dir.iterdir() if folder.is_dir())


def _on_media(data_dir: Path, media: Sequence[str]) -> list[Path]:
    """Folders of this machine's servers on media elsewhere."""
    names = [folder.name for folder in _servers(data_dir)]
    paths = [Path(path) / name for path in media for name in names]
    return [path for path in paths if path.is_dir()]


def _size_bytes(folder: Path) -> int:
    """Of the blocks that its files take."""
    return sum(
        os.lstat(os.path.join(root, name)).st_blocks * 512
        for root, _, names in os.walk(folder)
        for name in names
    )
