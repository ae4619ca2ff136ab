"""What the tests over several nodes share: a Ray of four nodes, each with an address of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.cluster.conftest import ray_folder as ray_folder
from tests.cluster.conftest import small_spec as small_spec
from tests.nodes.networks import NodeNetwork, why_not

NODES = 3
"""Number of nodes with a namespace; the head is the fourth."""


@pytest.fixture(scope="module")
def network(ray_folder: Path) -> Iterator[NodeNetwork]:
    """A Ray of a head and `NODES` nodes."""
    if why := why_not():
        pytest.skip(why)
    made = NodeNetwork(ray_folder, NODES)
    try:
        made.start()
        yield made
    finally:
        ray.shutdown()
        made.end()
