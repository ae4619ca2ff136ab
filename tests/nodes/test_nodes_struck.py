"""Nodes are killed, cut off one way and both, in any order, and nothing is lost."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.nodes.over_nodes import DURABILITIES, LIMIT_S, OverNodes

pytestmark = [pytest.mark.ray, pytest.mark.soak]

ROUNDS = 12
CUT_S = (1.0, 12.0)
"""Shortest and longest cut, in seconds. Ray gives up a node that is silent for about 20 s."""


def strike(over: OverNodes, rng: random.Random) -> str:
    """Carry one fault out to its end, and return what it was."""
    first, second = rng.sample(over.network.nodes, 2)
    duration_s = rng.uniform(*CUT_S)
    match rng.choice(["killed", "deaf", "apart"]):
        case "killed":
            over.network.kill(first)
            time.sleep(duration_s)
            over.network.start_ray(first)
            return f"{first.address} was killed, and came back after {duration_s:.1f} s"
        case "deaf":
            with over.network.deaf(first, second):
                time.sleep(duration_s)
            return f"{first.address} did not reach {second.address} for {duration_s:.1f} s"
        case _:
            with over.network.apart(first):
                time.sleep(duration_s)
            return f"{first.address} was cut off for {duration_s:.1f} s"


def test_nodes_are_struck_again_and_again(over_nodes: OverNodes) -> None:
    """After each fault the cluster heals and writes go on; in the end each row is as it was
    acknowledged. The seed is printed."""
    seed = int.from_bytes(os.urandom(4), "big")
    rng = random.Random(seed)
    for number in range(ROUNDS):
        over_nodes.wait_writes(f"before fault {number} of seed {seed}")
        told = strike(over_nodes, rng)
        print(f"seed {seed}, fault {number}: {told}", flush=True)
        over_nodes.wait_live()
    over_nodes.cluster.load.end()
    for name in DURABILITIES:
        assert over_nodes.cluster.load.check_rows(name)
    over_nodes.cluster.check_whole(LIMIT_S)
