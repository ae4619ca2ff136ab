"""``stelae down --forget``: what a cluster that has ended stores is removed, on all its machines.

Rules:

1. Nothing is removed but what is this cluster's: of a data_dir, which has its secret, the folders
   of its servers (by their instance files) and the files that Stelae writes there; on media
   elsewhere, folders of its backups (by the superblocks of their frames). All else is left, and so
   is the folder that it lies in.
2. All is looked at before anything is removed. Where a server runs, somebody launches the cluster,
   or a folder is a link, nothing is.
3. A folder's instance file, or a backup's frames, go after all else in it: they say whose it is.
4. A machine's ``cluster.json`` goes once all rows have gone, and this machine goes last of all. A
   command that was interrupted, or did not reach every machine, is given again and goes on.
5. The spec and the secret go after ``cluster.json``, which nobody could use without them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray

from stelae.actors.backup.disk_opening import FRAME_FILE
from stelae.actors.backup.frames import SUPERBLOCKS_BYTES, newest_superblock
from stelae.actors.ray_host.kept_files import LOCK_FILE as FILES_LOCK
from stelae.actors.ray_host.kept_files import NAMES, SECRET_FILE, SPEC_FILE, STATE_FILE, read_files
from stelae.actors.server.instance import INSTANCE_FILE, Instance, decode_instance
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import (
    AlreadyRunning,
    CorruptData,
    InvalidArgument,
    RetryLater,
    StelaeError,
)
from stelae.core.records.records import ServerKind
from stelae.deploy import nodes, ray_session
from stelae.deploy.asked import kept_spec
from stelae.deploy.cluster_state import ClusterState, load_state
from stelae.deploy.locks import LOCK_FILE as LAUNCH_LOCK
from stelae.deploy.locks import LaunchLock, is_locked
from stelae.deploy.machines import machine_of
from stelae.keeper_process import LOG_FILE
from stelae.serve.environment import HAPROXY_FOLDER
from stelae.serve.gateway.audit import AUDIT_FOLDER

_KINDS = "|".join(kind.value for kind in ServerKind)
_SERVER = re.compile(rf"({_KINDS})-[0-9]+(\.[a-z]+-[0-9]+(T[0-9]+Z(-[0-9]+)?)?)?")
"""Names of servers' folders, also of those that were set aside, by a number or at a time."""
_FILES = (*NAMES, FILES_LOCK, LAUNCH_LOCK, LOG_FILE)
_FOLDERS = (AUDIT_FOLDER, HAPROXY_FOLDER)
_LAST = (STATE_FILE, SECRET_FILE, SPEC_FILE, LAUNCH_LOCK)
"""In the order in which they are removed (R4, R5). The spec says that the secret is Stelae's."""
REMOVAL_TIMEOUT_S = 600.0
"""Of all machines, which remove side by side."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a cluster stores, as far as it is known on this machine."""

    state: ClusterState
    spec: ClusterSpec
    secret: bytes
    folders: tuple[Path, ...]
    """Of this cluster, on this machine."""
    left: tuple[Path, ...]
    """In its data_dir, and not its own."""
    size_bytes: int

    @property
    def data_dir(self) -> Path:
        return Path(self.state.data_dir)

    @property
    def machines(self) -> tuple[str, ...]:
        """Those that servers are on; none: a cluster without a placement."""
        return tuple(sorted(set(self.state.machines.values())))

    @property
    def media(self) -> tuple[str, ...]:
        return media_elsewhere(self.spec)


def stored(folder: Path) -> Stored | None:
    """What the cluster of this data_dir stores; None: there is no cluster's data_dir.

    Raises:
        InvalidArgument: its files are damaged, or not all there; or the folder has a copy of them
            alone, and the rows are elsewhere.
    """
    if not (folder / STATE_FILE).exists():
        return None
    files, state, kept = read_files(folder), load_state(folder), kept_spec(folder)
    data_dir = Path(state.data_dir)
    if files is None or kept is None:
        missing = "the secret" if files is None else "spec.json"
        raise InvalidArgument(
            f"{folder} lacks {missing}, so that it is not known what the cluster stores: have it "
            "written again by `stelae attach` while the cluster runs, or remove the folders by hand"
        )
    if not data_dir.is_dir() or not data_dir.samefile(folder):
        raise InvalidArgument(
            f"{folder} has a copy of the files of cluster {state.cluster!r}, whose rows are in "
            f"{data_dir}: name that folder, on a machine of the cluster"
        )
    spec = load_spec(kept.spec)
    found = _found(data_dir, state.cluster, media_elsewhere(spec))
    own = (*found.servers, *found.on_media)
    size_bytes = sum(_size_bytes(each) for each in own)
    return Stored(state, spec, files.secret, own, found.others, size_bytes)


def media_elsewhere(spec: ClusterSpec) -> tuple[str, ...]:
    """Paths of media outside of the data_dir, the same on every machine."""
    media = spec.media.values()
    return tuple(each.path for each in media if each.path and os.path.isabs(each.path))


def forget(known: Stored) -> None:
    """Remove what the cluster stores on all its machines, this one last. Again is fine.

    Raises:
        AlreadyRunning: a server of it runs, or somebody launches it.
        InvalidArgument: a folder is a link.
        RetryLater: some machines do not answer, or something cannot be removed. What is left can
            be removed by the same command.
    """
    data_dir, cluster = known.data_dir, known.state.cluster
    if not (data_dir / STATE_FILE).exists():
        return
    with _launch_lock(data_dir):
        _check(_found(data_dir, cluster, known.media))  # before other machines remove anything
        if known.spec.placement is not None:
            _forget_elsewhere(known)
        _remove(data_dir, cluster, known.media)


def forget_here(data_dir: Path, cluster: str, secret: bytes, media: Sequence[str]) -> None:
    """The same on this machine alone; a data_dir of another cluster is left as it is."""
    files = read_files(data_dir)
    if files is None or files.secret != secret:
        return
    with _launch_lock(data_dir):
        _remove(data_dir, cluster, media)


def _forget_elsewhere(known: Stored) -> None:
    """On all nodes with the label, not only on those that servers are on: a server that was
    replaced has left its disk behind."""
    placement = known.spec.placement
    assert placement is not None, "the caller has looked"
    if not ray.is_initialized():
        ray_session.join_ray(known.spec.ray.address)
    here, label = ray.get_runtime_context().get_node_id(), placement.machine_label
    live = [node for node in ray.nodes() if node["Alive"]]
    mine = {machine_of(node, label) for node in live if node["NodeID"] == here}
    others = {machine_of(node, label) for node in live} - mine - {None}
    asked = sorted(each for each in others if each is not None)
    arguments = (known.data_dir, known.state.cluster, known.secret, known.media)
    told = nodes.ask(
        forget_here,
        {machine: {label: machine} for machine in asked},
        dict.fromkeys(asked, arguments),
        REMOVAL_TIMEOUT_S,
    )
    away = {m: "Ray does not have it" for m in known.machines if m not in others | mine}
    if left := {**away, **told.silent}:
        reasons = "".join(f"\n  {machine}: {why}" for machine, why in sorted(left.items()))
        raise RetryLater(
            f"these machines may store their part of cluster {known.state.cluster!r} yet; give "
            f"`stelae down --forget` again once that is mended:{reasons}"
        )


def forget_rest(data_dir: Path) -> None:
    """Remove the spec and the secret that an interrupted removal has left behind (R5).

    A folder with a ``cluster.json``, with a folder of a server, or with a ``spec.json`` or a
    ``secret`` that is not known to be Stelae's, is left as it is. Raises AlreadyRunning: somebody
    launches a cluster there.
    """
    if _is_rest(data_dir):
        with _launch_lock(data_dir):
            for name in _LAST if _is_rest(data_dir) else ():
                (data_dir / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        data_dir.rmdir()


def _is_rest(data_dir: Path) -> bool:
    names = {each.name for each in data_dir.iterdir()} if data_dir.is_dir() else set()
    if STATE_FILE in names or any(_SERVER.fullmatch(name) for name in names):
        return False
    try:
        if SPEC_FILE in names:
            kept = kept_spec(data_dir)
            return kept is not None and bool(load_spec(kept.spec).cluster)
    except (StelaeError, ValueError, TypeError, AttributeError):  # another program's
        return False
    if SECRET_FILE in names or LAUNCH_LOCK not in names:
        return False
    return re.fullmatch(rb"[0-9]+", (data_dir / LAUNCH_LOCK).read_bytes()) is not None


@contextlib.contextmanager
def _launch_lock(data_dir: Path) -> Iterator[None]:
    lock = LaunchLock(data_dir)
    try:
        yield
    finally:
        lock.release()


# ---- what is there ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    servers: tuple[Path, ...]
    """Folders of servers in the data_dir."""
    on_media: tuple[Path, ...]
    """Folders of backups on media elsewhere."""
    rest: tuple[Path, ...]
    """What else Stelae has written into the data_dir, but ``cluster.json`` and locks."""
    others: tuple[Path, ...]
    """What else is in the data_dir."""


def _found(data_dir: Path, cluster: str, media: Sequence[str]) -> _Found:
    servers, rest, others, uuids = [], [], [], set()
    for each in sorted(data_dir.iterdir()):
        is_server = _SERVER.fullmatch(each.name) is not None and each.is_dir()
        instance = _instance_of(each) if is_server else None
        is_begun = instance is not None and instance.cluster == cluster
        if is_begun or (is_server and not any(each.iterdir())):
            servers.append(each)
        elif each.name in _LAST:
            continue
        elif each.name in _FILES or each.name in _FOLDERS:
            rest.append(each)
        else:
            others.append(each)
        if instance is not None and is_begun:
            uuids.add(instance.server_uuid)
    names = {each.name.partition(".")[0] for each in servers}
    on_media = [
        folder
        for medium in dict.fromkeys(media)
        for folder in (sorted(Path(medium).iterdir()) if Path(medium).is_dir() else ())
        if _SERVER.fullmatch(folder.name)
        and (
            _owner_of_frames(folder, cluster) in uuids
            or (folder.name.partition(".")[0] in names and _is_bare(folder))
        )
    ]
    return _Found(tuple(servers), tuple(on_media), tuple(rest), tuple(others))


def _instance_of(folder: Path) -> Instance | None:
    """Whose folder it is; None: no server has begun on it, or nobody can tell."""
    try:
        return decode_instance((folder / INSTANCE_FILE).read_bytes())
    except (OSError, CorruptData):
        return None


def _owner_of_frames(folder: Path, cluster: str) -> str | None:
    """UUID of the backup that has its frames there; None: nobody of this cluster."""
    try:
        path = next(folder.rglob(FRAME_FILE))
        with path.open("rb") as file:
            superblock = newest_superblock(file.read(SUPERBLOCKS_BYTES))
    except (StopIteration, OSError):
        return None
    return superblock.server if superblock is not None and superblock.cluster == cluster else None


def _is_bare(folder: Path) -> bool:
    """Whether there is no file in it: a removal may have ended before the folder was removed."""
    return folder.is_dir() and all(each.is_dir() for each in folder.rglob("*"))


def _size_bytes(folder: Path) -> int:
    """Of the blocks that its files take; servers may run, and files come and go."""
    size_bytes = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size_bytes += os.lstat(os.path.join(root, name)).st_blocks * 512
    return size_bytes


# ---- removing -----------------------------------------------------------------------------------


def _check(found: _Found) -> None:
    """Raises AlreadyRunning, InvalidArgument: nothing may be removed."""
    folders = (*found.servers, *found.on_media)
    if running := [str(folder) for folder in folders if is_locked(folder)]:
        raise AlreadyRunning(f"a server runs on {', '.join(running)}: take the cluster down first")
    for folder in folders:
        if folder.is_symlink() or os.path.ismount(folder):
            raise InvalidArgument(
                f"{folder} is a link or a disk of its own: remove what is in it, and it, by hand; "
                "then give `stelae down --forget` again"
            )


def _remove(data_dir: Path, cluster: str, media: Sequence[str]) -> None:
    found = _found(data_dir, cluster, media)
    _check(found)
    try:
        # First media: whose frames those are is said by the instance files in the data_dir.
        for folder in found.on_media:
            _remove_folder(folder, next(folder.rglob(FRAME_FILE), folder / FRAME_FILE))
        for folder in found.servers:
            _remove_folder(folder, folder / INSTANCE_FILE)
        for each in found.rest:
            if each.is_dir() and not each.is_symlink():
                shutil.rmtree(each)
            else:
                each.unlink()
        for name in _LAST:
            (data_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise RetryLater(
            f"{error.filename or data_dir} cannot be removed: {error.strerror}; mend that, then "
            "give `stelae down --forget` again"
        ) from error
    with contextlib.suppress(OSError):  # others' files are in it, or it is a disk of its own
        data_dir.rmdir()


def _remove_folder(folder: Path, last: Path) -> None:
    """Remove a folder, and of what is in it the file ``last`` after all else (R3)."""
    for each in sorted(folder.iterdir()):
        if each == last or each in last.parents:
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()
    if last.parent == folder:
        last.unlink(missing_ok=True)
    else:
        _remove_folder(folder / last.relative_to(folder).parts[0], last)
    folder.rmdir()
