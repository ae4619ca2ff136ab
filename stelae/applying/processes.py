"""Which servers a cluster is to have, and which of them have an actor in Ray."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stelae.actors.ray_host.host import ServerPlan, cluster_actors
from stelae.actors.ray_host.kept_files import SPEC_FILE, STATE_FILE
from stelae.core.config.spec import ClusterSpec
from stelae.core.config.spec_file import load_spec
from stelae.core.errors import InvalidArgument
from stelae.deploy import launcher
from stelae.deploy.asked import kept_in, kept_spec
from stelae.deploy.cluster_files import home_of, newest_known
from stelae.deploy.cluster_state import ClusterState, load_state


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running cluster by its files: the spec that was asked for last, and where servers are."""

    home: Path
    """A folder with the cluster's files."""
    spec: ClusterSpec
    state: ClusterState

    @property
    def plans(self) -> dict[str, ServerPlan]:
        """What each server is made with, by name."""
        return {plan.name: plan for plan in launcher.plans(self.spec, self.state)}


@contextmanager
def deployment_of(cluster: str, home: str = "") -> Iterator[Deployment]:
    """Yield what is written down of a running cluster, for as long as its files are needed.

    ``home``: a folder that may have them. Raises InvalidArgument: nobody wrote down which spec was
    asked for. Unavailable: no server says.
    """
    with home_of(cluster, (home,)) as folder:
        kept = kept_spec(folder)
        if kept is None:
            raise InvalidArgument(_unknown(cluster))
        yield Deployment(folder, load_spec(kept.spec), load_state(folder))


def wanted_of(cluster: str, folder: Path) -> tuple[ClusterSpec, list[str]]:
    """The spec that was asked for last, and the names of its servers. Nothing is written.

    ``folder``: one that may have the cluster's files. Raises InvalidArgument: nobody wrote down
    which spec was asked for. Unavailable: no server says, and the folder has nothing.
    """
    files = newest_known(cluster, folder).files
    if SPEC_FILE not in files:
        raise InvalidArgument(_unknown(cluster))
    spec = load_spec(kept_in(files[SPEC_FILE]).spec)
    masters: dict[str, str] = json.loads(files[STATE_FILE])["masters"]
    return spec, launcher.server_names(spec, masters)


def _unknown(cluster: str) -> str:
    text = f"it is not known which servers cluster {cluster!r} is to have: apply its file"
    return f"{text} (`stelae apply`)"


def wanted_and_there(cluster: str, home: str = "") -> tuple[list[str], list[str]]:
    """The servers of the spec, and those that have an actor, running or not. Raises StelaeError."""
    with deployment_of(cluster, home) as known:
        return list(known.plans), list(cluster_actors(cluster))
