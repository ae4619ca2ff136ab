"""A `Runtime` whose `Peers` answer from a script, on a clock that only sleeps move."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from stelae.client.routing.locations import TableCache
from stelae.client.routing.masters import MastersClient
from stelae.core.errors import StelaeError
from stelae.core.ids import Address, OpId, ServerUuid, TableId, TabletId
from stelae.core.messages.catalog import GET_TABLE, ReplicaLocation, TableLocations, TabletLocation
from stelae.core.records.records import TableRecord, TableState, TabletRecord, TabletState
from stelae.core.records.replication import Configuration
from stelae.core.rpc import Reply
from stelae.core.runtime import ReplyMemory
from stelae.core.schema.durability import segments
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

MASTER = Address("m:1")
TSERVER = Address("t:1")
OWNER = ServerUuid("d" * 32)
Answer = StelaeError | msgspec.Struct | Reply[Any] | float
"""What a call meets: an error, a body, a reply; or a pause of so many seconds, and the next."""


class Clock:
    """Virtual time: a sleep moves it at once."""

    def __init__(self) -> None:
        self.time = 100.0
        self.sleeps: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, duration_s: float) -> None:
        self.sleeps.append(duration_s)
        self.time += duration_s
        await asyncio.sleep(0)


class Peers:
    """Answers each call by the script of its method; without one, as ``otherwise`` says."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.scripts: dict[str, Iterator[Answer]] = {}
        self.otherwise: dict[str, Callable[[Any], Any]] = {}
        self.calls: list[tuple[Address, str, Any, float]] = []
        self.blobs: Sequence[Any] = ()
        """Of the call that ``otherwise`` is asked about."""
        self.near: set[Address] = set()
        """Servers on the machine of the caller."""

    def is_near(self, address: Address) -> bool:
        return address in self.near

    def script(self, method: str, *answers: Answer) -> None:
        self.scripts[method] = iter(answers)

    async def call(
        self,
        address: Address,
        method: Any,
        request: Any,
        *,
        timeout_s: float,
        blobs: Sequence[Any] = (),
        destination: ServerUuid | None = None,
        memory: ReplyMemory | None = None,
    ) -> Reply[Any]:
        assert timeout_s > 0, "a call without a deadline"
        self.calls.append((address, method.name, request, timeout_s))
        await asyncio.sleep(0)
        answer = next(self.scripts.get(method.name, iter(())), None)
        while isinstance(answer, float):
            self._clock.time += answer
            answer = next(self.scripts[method.name], None)
        if answer is None:
            self.blobs = blobs
            answer = self.otherwise[method.name](request)
        if isinstance(answer, StelaeError):
            raise answer
        return answer if isinstance(answer, Reply) else Reply(answer)

    def post(self, address: Address, method: Any, request: Any, done: Any, **options: Any) -> bool:
        """Nothing can be sent at once here."""
        return False

    def sent(self, method: str) -> list[Any]:
        """The bodies of a method's calls."""
        return [body for _, name, body, _ in self.calls if name == method]


class Metrics:
    """Counts nothing."""

    def count(self, name: str, amount: float = 1.0, **tags: str) -> None:
        """No test asks."""


class Scripted:
    """The runtime."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.peers = Peers(self.clock)
        self.rng = random.Random(5)
        self.metrics = Metrics()

    async def offload(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)


def as_group(location: TabletLocation) -> TabletLocation:
    """The same of a tablet with replicas: its leader at the address, and two others."""
    tablet = msgspec.structs.replace(
        location.tablet, owner=ServerUuid(""), configuration=Configuration(OpId(0, 0), ())
    )
    others = (Address("t:2"), Address("t:3"))
    replicas = tuple(
        ReplicaLocation(ServerUuid(digit * 32), address, True, digit == "d")
        for digit, address in zip("def", (location.address, *others), strict=True)
    )
    return TabletLocation(tablet, location.address, "", replicas)


def locations(
    schema: TableSchema,
    partitioning: Partitioning | None = None,
    *,
    address: Address = TSERVER,
    grouped: bool = False,
) -> TableLocations:
    """A table whose tablets are all served at ``address``."""
    partitioning = partitioning or Partitioning()
    table = TableRecord(
        TableId("e" * 32), "t", schema, partitioning, segments("disk"), TableState.RUNNING
    )
    tablets = tuple(
        TabletLocation(
            TabletRecord(
                TabletId(f"{number:032x}"),
                table.table_id,
                number,
                TabletState.RUNNING,
                1,
                OWNER,
                1,
            ),
            address,
        )
        for number in range(partitioning.tablet_count)
    )
    return TableLocations(table, tuple(map(as_group, tablets)) if grouped else tablets)


def cache_of(runtime: Scripted, found: TableLocations) -> TableCache:
    """A cache that the scripted masters refresh with the same."""
    runtime.peers.otherwise[GET_TABLE.name] = lambda _: found
    return TableCache(MastersClient(runtime, [MASTER]), found)  # type: ignore[arg-type]
