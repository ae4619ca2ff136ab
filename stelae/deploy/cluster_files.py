"""The files of a cluster that runs, from wherever somebody may connect to its Ray.

`home_of` is a folder that has them: the data_dir, or another that `attach` has filled, or, where
there is neither, a private one for as long as it is needed. What is changed there is told to all
servers (`publish`), and what others have changed is taken over (`refresh`). Whoever may connect to
a Ray may run programs on its nodes, and so may read a cluster's secret anyhow: nobody is told
anything here that he could not have. Decisions §51.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from stelae.actors.ray_host import kept_files
from stelae.actors.ray_host.host import cluster_actors
from stelae.actors.ray_host.kept_files import KeptFiles, locked, read_files, write_files
from stelae.core.config.spec import ClusterSpec
from stelae.core.errors import InvalidArgument, NotEnoughServers, RetryLater, Unavailable
from stelae.core.records.records import ServerKind
from stelae.deploy import cluster_state, nodes
from stelae.deploy.machines import live_machines

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""For most of the masters to answer."""
GRACE_S = 1.0
"""For all others, then: who starts, or has no room in Ray, does not answer at all."""


def newest_files(cluster: str) -> KeptFiles | None:
    """The newest that the cluster's servers have; None: none has any.

    Masters are asked, and all others if those have none. Needs a connection to Ray. Raises
    Unavailable: it does not run in this Ray.
    """
    actors = _keepers(cluster)
    masters = {name: a for name, a in actors.items() if _is_master(name)}
    if not actors:
        raise Unavailable(f"cluster {cluster!r}", "it does not run in this Ray")
    for asked in (masters, {name: a for name, a in actors.items() if name not in masters}):
        told = _told({name: actor.kept.remote() for name, actor in asked.items()})
        if found := kept_files.newest([each for each in told.values() if each is not None]):
            return found
    return None


def newest_known(cluster: str, folder: Path) -> KeptFiles:
    """The newest of those that servers have and those of a folder, if these are this cluster's.

    Nothing is written. Needs a connection to Ray. Raises Unavailable: it does not run in this Ray,
    or nobody has any. InvalidArgument: those of the folder are damaged.
    """
    found = newest_files(cluster)
    here = read_files(folder) if _is_of(folder, cluster, found) else None
    newest = kept_files.newest([each for each in (found, here) if each is not None])
    if newest is None:
        raise _nobody_has(cluster)
    return newest


def publish(home: Path, cluster: str) -> None:
    """Have every server's machine keep what is in this folder, which has just been changed.

    Who is away takes it when it is back (masters see to that). Raises RetryLater: fewer than half
    of the masters took it, so that it might be forgotten.
    """
    cluster_state.change(home, lambda state: state)  # of a version that is newer
    files = read_files(home)
    assert files is not None, "the state was just written, and read its secret"
    actors = _keepers(cluster)
    masters = [name for name in actors if _is_master(name)]
    kept = _told({name: actor.keep.remote(files) for name, actor in actors.items()})
    have = [name for name in masters if name in kept]
    if masters and len(have) <= len(masters) // 2:
        raise RetryLater(
            f"only {len(have)} of {len(masters)} masters keep what was changed of the cluster: "
            "apply again once more of them answer"
        )


def refresh(home: Path, cluster: str) -> None:
    """Take over what somebody else has changed meanwhile."""
    found = newest_files(cluster)
    if found is None:
        return
    with locked(home):
        here = read_files(home)
        if here is None or found.order > here.order:
            write_files(home, found)


@contextmanager
def home_of(cluster: str, folders: Iterable[str | Path]) -> Iterator[Path]:
    """A folder with the newest files of a running cluster: the first of these that is this
    cluster's, else a private one for as long. Needs a connection to Ray.

    Raises Unavailable: no server says what they are, and none of the folders has them.
    """
    found = newest_files(cluster)
    for each in folders:
        folder = Path(each)
        if each and _is_of(folder, cluster, found):
            refresh(folder, cluster)
            yield folder
            return
    if found is None:
        raise _nobody_has(cluster)
    private = Path(tempfile.mkdtemp(prefix="stelae-"))  # 0700
    try:
        write_files(private, found)
        yield private
    finally:
        shutil.rmtree(private)


def _nobody_has(cluster: str) -> Unavailable:
    return Unavailable(f"what is written down of cluster {cluster!r}", "no server has it")


def _is_of(folder: Path, cluster: str, found: KeptFiles | None) -> bool:
    here = read_files(folder)
    if here is None or cluster_state.load_state(folder).cluster != cluster:
        return False
    return found is None or here.secret == found.secret


def attach(cluster: str, into: Path | None = None) -> cluster_state.ClusterState:
    """Write a running cluster's files into a folder, its data_dir if none is given. Again is fine.

    Raises:
        InvalidArgument: the folder has those of another cluster, or cannot be written to.
        Unavailable: it does not run in this Ray.
    """
    with home_of(cluster, ()) as home:
        folder = into or Path(cluster_state.load_state(home).data_dir)
        there = read_files(folder) if folder.exists() else None
        files = read_files(home)
        assert files is not None, "that is what a home is"
        if there is not None and there.secret != files.secret:
            raise InvalidArgument(f"{folder} has the files of another cluster: name another folder")
        try:
            with locked(folder):
                write_files(folder, files)
        except OSError as error:
            raise InvalidArgument(f"{folder}: {error.strerror or error}") from error
    return cluster_state.load_state(folder)


def tell_at_rest(state: cluster_state.ClusterState) -> None:
    """Have all machines know, before its servers end, that the cluster does not run."""
    if not state.folder.is_dir():
        return
    cluster_state.at_rest(state).save()
    try:
        publish(state.folder, state.cluster)
    except RetryLater as error:  # who would come up by these looks into Ray first
        logger.warning("%s", error)


def take_from_machines(spec: ClusterSpec) -> None:
    """Before a cluster with a placement comes up: take the newest files that its machines have,
    where this one has none, or older ones.

    Raises:
        InvalidArgument: machines have files of different clusters of this name.
        NotEnoughServers: too few machines answer to know that these are the newest.
    """
    assert spec.placement is not None
    label, here = spec.placement.machine_label, Path(spec.data_dir)
    there = live_machines(label)
    told = nodes.ask(
        read_files,
        {machine: {label: machine} for machine in there},
        dict.fromkeys(there, (here,)),
    )
    mine = read_files(here)
    told_here = {**told.answers, "this machine": mine}
    found = {
        name: files for name, files in told_here.items() if files and _state_of(files)["machines"]
    }
    newest = kept_files.newest(list(found.values()))
    if newest is None:
        return
    if len({files.secret for files in found.values()}) > 1:
        raise InvalidArgument(
            f"data_dir {here}: {', '.join(sorted(found))} have files of different clusters called "
            f"{spec.cluster!r}: move away those that are not of this one"
        )
    if found.get("this machine") != newest:
        check_most_answered(newest, told.answers)
        write_files(here, newest)


def check_most_answered(files: KeptFiles, answered: Collection[str]) -> None:
    """Whether of the machines with masters so many were asked that nobody has newer files: each
    change is told to most of them. Pure. Raises NotEnoughServers."""
    state = _state_of(files)
    machines = [state["machines"].get(name, "") for name in state["masters"]]
    away = sorted(machine for machine in machines if machine not in answered)
    if len(away) * 2 >= len(machines):
        raise NotEnoughServers(
            f"launch: others may have newer files of the cluster; {', '.join(away)} do not answer",
            *(len(machines) // 2 + 1, "machines with masters", len(machines) - len(away)),
        )


def _state_of(files: KeptFiles) -> dict[str, Any]:
    """Without machines it is of a cluster that never came up."""
    found: dict[str, Any] = json.loads(files.files[kept_files.STATE_FILE])
    return {"machines": {}, **found}


def _keepers(cluster: str) -> dict[str, Any]:
    """Its servers, but for those whose actors were made by a version that keeps nothing."""
    kinds = tuple(kind.value for kind in ServerKind)
    return {
        name: actor
        for name, actor in cluster_actors(cluster).items()
        if name.rpartition("-")[0] in kinds and hasattr(actor, "keep")
    }


def _is_master(name: str) -> bool:
    return name.startswith(ServerKind.MASTER.value)


def _told(asked: Mapping[str, Any]) -> dict[str, Any]:
    """What each said, by name, of those that answered in time."""
    if not asked:
        return {}
    masters = [each for name, each in asked.items() if _is_master(name)] or list(asked.values())
    ray.wait(masters, num_returns=len(masters) // 2 + 1, timeout=TIMEOUT_S)
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=GRACE_S)
    found = {}
    for name, each in asked.items():
        if each not in ready:
            continue
        try:
            found[name] = ray.get(each)
        except ray.exceptions.RayError as error:  # it ends just now, or its disk is full
            logger.warning("%s says nothing of the cluster's files: %s", name, error)
    return found
