"""What makes Ray start an actor or a task on one node: a label of the node, or its address.

A selector maps names of labels to values. `NODE_ADDRESS` is no label of Ray's: Ray gives each node
a resource named after its address instead, of which each server takes a small part. Both are hard:
while the node is away, what is bound to it waits. Source: Ray's documentation on scheduling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stelae.core.addresses import NODE_ADDRESS

SHARE = 0.001
"""Share of a node's own resource that one actor or task takes; Ray's smallest is 0.0001."""


def node_options(selector: Mapping[str, str]) -> dict[str, Any]:
    """Return Ray's options of an actor or a task for the nodes that ``selector`` names."""
    labels = {name: value for name, value in selector.items() if name != NODE_ADDRESS}
    options: dict[str, Any] = {"label_selector": labels} if labels else {}
    if NODE_ADDRESS in selector:
        options["resources"] = {f"node:{selector[NODE_ADDRESS]}": SHARE}
    return options
