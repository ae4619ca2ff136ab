"""Which cluster is meant, and how tasks of Spark and of Ray Data reach it by themselves."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import ray

from stelae.actors.ray_host.host import NAMESPACE
from stelae.core.config.settings import Settings
from stelae.core.errors import InvalidArgument
from stelae.core.ids import Address
from stelae.deploy import cluster_state, launcher
from stelae.recovery.spark_link import ClusterLink


@runtime_checkable
class Linked(Protocol):
    """A `stelae.Database`, as far as tasks need it."""

    @property
    def link(self) -> ClusterLink | None:
        """None: it is connected over HTTP."""
        ...


Cluster = Linked | str | None
"""A database, a cluster's name in this Ray, its data_dir; None: the one cluster in this Ray."""


def link_of(cluster: Cluster) -> ClusterLink:
    """How tasks reach the cluster meant.

    Raises:
        InvalidArgument: there are several, or none, or the connection is HTTP.
        Unavailable: no cluster of that name runs here.
    """
    if isinstance(cluster, Linked):
        if cluster.link is None:
            raise InvalidArgument(
                "Tasks need the cluster itself: connect by its name inside its Ray, not over HTTP"
            )
        return cluster.link
    if cluster is None:
        cluster = _only_cluster()
    if cluster_state.is_folder(cluster):
        found = cluster_state.load_state(cluster)
        masters = tuple(Address(address) for address in found.masters.values())
        return ClusterLink(found.cluster, masters, found.secret, Settings(), found.peer_tls)
    plan, listening = launcher.find_cluster(cluster)
    return ClusterLink(cluster, tuple(listening), plan.secret, plan.settings, plan.peer_tls)


def _only_cluster() -> str:
    if not ray.is_initialized():
        raise InvalidArgument("no Ray is connected here: say which cluster with cluster=")
    names: dict[str, None] = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        name, slash, _ = entry["name"].partition("/")
        if entry["namespace"] == NAMESPACE and slash:
            names[name] = None
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise InvalidArgument(f"say which cluster with cluster=; this Ray has {found}")
    return next(iter(names))
