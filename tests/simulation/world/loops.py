"""Event loops of simulated worlds, for tests of parts that need no `World`."""

from __future__ import annotations

import random

from stelae.simulation import SimLoop


def make_loop(rng: random.Random, shuffle: float = 1.0) -> SimLoop:
    """Return a new loop.

    `SimLoop` has only the methods that servers call, so mypy takes the class for abstract.
    """
    return SimLoop(rng, shuffle)  # type: ignore[abstract]
