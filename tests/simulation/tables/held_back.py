"""Requests that the network keeps for as long as a story wants: the caller gives them up meanwhile,
and they arrive all the same, once the story lets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import msgspec

from stelae.core.rpc import Method
from stelae.simulation.world.world import World

Q = TypeVar("Q", bound=msgspec.Struct)


class HeldBack(Generic[Q]):
    """What is on its way, as it comes; `bodies` are those that are held back."""

    def __init__(self) -> None:
        self.bodies: list[Q] = []
        self._arrive: list[Callable[[], None]] = []

    def keep(self, body: Q, arrive: Callable[[], None]) -> None:
        self.bodies.append(body)
        self._arrive.append(arrive)

    def let_go(self) -> None:
        """They arrive now, in the order in which they were sent."""
        arrive, self._arrive = self._arrive, []
        for each in arrive:
            each()

    def let_go_of(self, wanted: Callable[[Q], bool]) -> None:
        """Deliver those that are wanted, in the order of their sending; the others stay held."""
        held = list(zip(self.bodies, self._arrive, strict=True))
        self.bodies = [body for body, _ in held if not wanted(body)]
        self._arrive = [arrive for body, arrive in held if not wanted(body)]
        for body, arrive in held:
            if wanted(body):
                arrive()


@contextmanager
def held_back(
    world: World, method: Method[Q, Any], wanted: Callable[[Q], bool] = lambda body: True
) -> Iterator[HeldBack[Q]]:
    """Hold back what is sent meanwhile of a method, if it is wanted so. It stays so after that."""
    network, held = world.network, HeldBack[Q]()
    arrive = network._arrive

    def hold(request: Any, target: Any) -> None:
        if request.method == method.name:
            body = msgspec.msgpack.decode(request.body, type=method.request)
            if wanted(body):
                held.keep(body, lambda: arrive(request, target))
                return
        arrive(request, target)

    with patch.object(network, "_arrive", hold):
        yield held
