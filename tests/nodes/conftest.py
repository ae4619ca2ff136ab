"""What the tests over several nodes share: a Ray of four nodes, each with an address of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import stelae
from tests.cluster.conftest import ray_folder as ray_folder
from tests.cluster.conftest import small_spec as small_spec
from tests.nodes.networks import NodeNetwork, why_not
from tests.nodes.over_nodes import OverNodes

NODES = 3
"""Number of nodes with a namespace; the head is the fourth."""
DEFAULT: dict[str, Any] = {"cas_store": {"url": "sqlite:///cas.db"}, "tls": {"mode": "internal"}}
"""What the spec of a module says that names nothing in ``SPEC``: nothing of nodes."""


@pytest.fixture(scope="module")
def network(request: pytest.FixtureRequest, ray_folder: Path) -> Iterator[NodeNetwork]:
    """A Ray of a head and `NODES` nodes, with the module's ``RACKS``, if it has any."""
    if why := why_not():
        pytest.skip(why)
    made = NodeNetwork(ray_folder, NODES, getattr(request.module, "RACKS", ()))
    try:
        made.start()
        yield made
    finally:
        ray.shutdown()
        made.end()


@pytest.fixture(scope="module")
def over_nodes(
    request: pytest.FixtureRequest,
    network: NodeNetwork,
    ray_folder: Path,
    small_spec: Callable[..., dict[str, Any]],
) -> Iterator[OverNodes]:
    """Launched with a server of each kind on each node, three masters, and the module's ``SPEC``
    in addition."""
    servers = len(network.nodes) + 1
    spec = small_spec(
        ray_folder / "data",
        ray={"address": network.ray_address},
        tservers={"count": servers, "memory": "64MiB"},
        backups={"count": servers},
        safekeepers={"count": servers},
        **getattr(request.module, "SPEC", DEFAULT),
    )
    with stelae.launch(spec) as database:
        found = OverNodes(network, database, spec)
        try:
            yield found
        finally:
            found.cluster.load.stop()
