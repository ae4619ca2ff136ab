"""A leader's part in tablet copies: tell members that need one to make one from here.

Level-triggered: a replica that leads says again and again who needs a copy, and each time, unless
an order is under way or was given a short while ago, that member is told again; what it knows
better, it refuses. So nothing has to be remembered, by this leader or the next. Seed
"Auto-vivifying Tablet Copy protocol"; design §8.
"""

from __future__ import annotations

from typing import TypeAlias

from stelae.actors.tserver.tablet_copy.host import CopyHost
from stelae.consensus.raft.progress import ProgressState
from stelae.core.backoff import jittered_s
from stelae.core.config.settings import Settings
from stelae.core.errors import Overloaded, StelaeError, TabletNotReady
from stelae.core.ids import ServerUuid, TabletId
from stelae.core.messages.replicas import START_TABLET_COPY, DataState, StartTabletCopy
from stelae.core.messages.servers import CopyWanted
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

Order: TypeAlias = tuple[TabletId, ServerUuid]
PAUSES_MAX = 16  # after refusals in a row: the longest wait, in shortest ones
OVERLOADED_PAUSES = 4  # other copies have to end first


class CopyStarter:
    """The orders of one server, for all tablets that it leads. They end with ``tasks``."""

    def __init__(self, runtime: Runtime, settings: Settings, tasks: Tasks, host: CopyHost) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._host = host
        self._orders: dict[Order, None] = {}
        """Given, or not to be given again yet."""
        self._refusals: dict[Order, int] = {}
        """In a row."""
        self._words: dict[TabletId, dict[ServerUuid, tuple[CopyWanted, float]]] = {}
        """What came of the last order, and until when that is news."""

    def needed(self, tablet_id: TabletId, uuid: ServerUuid) -> None:
        """That member of the tablet's group needs a copy; see `Replica.on_copy_needed`.

        Replicas run for a moment longer than the server's tasks, and say so to the last.
        """
        order = (tablet_id, uuid)
        if order not in self._orders and not self._tasks.is_closed:
            self._orders[order] = None
            self._tasks.spawn(self._give(order), f"order {uuid} to copy {tablet_id}")

    def wanted(self, tablet_id: TabletId) -> tuple[CopyWanted, ...]:
        """Members of a tablet led here that were told to make a copy just now. For status."""
        words = self._words.get(tablet_id)
        if words is None:
            return ()
        now = self._runtime.clock.monotonic()
        current = {u: w for u, w in words.items() if w[1] > now and self._lacks(tablet_id, u)}
        if current:
            self._words[tablet_id] = current
        else:
            del self._words[tablet_id]
        return tuple([word for word, _ in current.values()])

    def _lacks(self, tablet_id: TabletId, uuid: ServerUuid) -> bool:
        """Whether that member needs a copy, as far as was heard from it."""
        tablet = self._host.tablet(tablet_id)
        leader = None if tablet is None else tablet.replica.core.leader
        if tablet is None or leader is None or uuid not in leader.progress:
            return False
        is_absent = tablet.replica.copies.state_of(uuid) is not DataState.READY
        return is_absent or leader.progress[uuid].state is ProgressState.COPY

    def _note(
        self, order: Order, pauses: int, error: StelaeError | None, problem: str = ""
    ) -> None:
        tablet_id, uuid = order
        is_throttled = isinstance(error, Overloaded)
        if error is not None:
            problem = "" if is_throttled else str(error)
        until = self._runtime.clock.monotonic() + 3 * pauses * self._settings.copy_pause_s
        word = (CopyWanted(uuid, is_throttled, problem), until)
        self._words.setdefault(tablet_id, {})[uuid] = word

    async def _give(self, order: Order) -> None:
        """Tell it, and then wait for as long as it makes no sense to tell it again."""
        try:
            pauses = await self._tell(order)
            pause_s = self._settings.copy_pause_s * pauses
            await self._runtime.clock.sleep(jittered_s(pause_s, self._runtime.rng))
        finally:
            del self._orders[order]

    async def _tell(self, order: Order) -> int:
        """Returns for how many pauses not to tell it again."""
        tablet_id, uuid = order
        runtime, tablet = self._runtime, self._host.tablet(tablet_id)
        refusals = self._refusals.pop(order, 0)
        if tablet is None or not tablet.replica.is_leader:
            return 1
        replica = tablet.replica
        address = replica.peer_address(uuid)
        if replica.core.configuration.peer(uuid) is None or address is None:
            return 1
        state = replica.copies.state_of(uuid)
        request = StartTabletCopy(
            tablet_id, replica.uuid, runtime.peers.address, replica.term, state
        )
        timeout_s = self._settings.call_timeout_s
        try:
            reply = await runtime.peers.call(
                address, START_TABLET_COPY, request, timeout_s=timeout_s, destination=uuid
            )
        except TabletNotReady as error:  # mostly: it is copying, and this is how long it takes
            self._note(order, 1, error)
            return 1
        except StelaeError as error:
            self._refusals[order] = refusals + 1
            runtime.metrics.count("copy_orders_refused", reason=type(error).__name__)
            least = OVERLOADED_PAUSES if isinstance(error, Overloaded) else 1
            pauses = min(PAUSES_MAX, max(least, 1 << min(refusals, 8)))
            self._note(order, pauses, error)
            return pauses
        self._note(order, 1, None, reply.body.last_problem)
        runtime.metrics.count("copies_ordered")
        return 1
