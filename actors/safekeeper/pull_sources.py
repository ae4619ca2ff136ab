"""The giving end of pulls: sessions, each of which pins a timeline as it was at one point.

Invariants: sessions are bounded in number, one for each receiver and timeline; a session ends when
it is told to, when its receiver begins another one, or when nobody asks for a while; nothing is
pinned after that. Neon RFC 035, pull_timeline; design §10.
"""

from __future__ import annotations

from dataclasses import dataclass

from stelae.actors.safekeeper.timeline_store.snapshot import HeldSnapshot
from stelae.actors.safekeeper.timelines import SafekeeperTimelines
from stelae.core.config.settings import Settings
from stelae.core.errors import CopyOver, InvalidArgument, Overloaded
from stelae.core.ids import TabletId, make_uuid
from stelae.core.messages.safekeepers import (
    BEGIN_PULL,
    END_PULL,
    READ_PULL,
    BeginPull,
    EndPull,
    PullPlan,
    ReadPull,
)
from stelae.core.records.timelines import SafekeeperId
from stelae.core.rpc import EMPTY, Call, Empty, Handlers, Reply
from stelae.core.runtime import Runtime
from stelae.core.tasks import Tasks

SESSIONS_MAX = 16
LOOKS_PER_IDLE_TIME = 4


@dataclass(eq=False, slots=True)
class _Session:
    tablet_id: TabletId
    receiver: SafekeeperId
    held: HeldSnapshot
    used_s: float


class PullSources:
    """The pulls that other safekeepers make of timelines here."""

    def __init__(
        self, runtime: Runtime, settings: Settings, tasks: Tasks, timelines: SafekeeperTimelines
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._tasks = tasks
        self._timelines = timelines
        self._sessions: dict[str, _Session] = {}
        self._opening = 0

    def handlers(self) -> Handlers:
        return {BEGIN_PULL: self._on_begin, READ_PULL: self._on_read, END_PULL: self._on_end}

    @property
    def session_count(self) -> int:
        return len(self._sessions)

    async def _on_begin(self, call: Call[BeginPull]) -> Reply[PullPlan]:
        tablet_id, receiver = call.body.tablet_id, call.body.receiver
        self._timelines.active(tablet_id)
        store = self._timelines.store(tablet_id)
        for name, session in list(self._sessions.items()):
            if (session.tablet_id, session.receiver) == (tablet_id, receiver):
                self._end(name)  # its answer was lost: nobody will ask for that again
        if len(self._sessions) + self._opening >= SESSIONS_MAX:
            raise Overloaded(f"pulls from {store.name}", SESSIONS_MAX)
        self._opening += 1
        try:
            with self._timelines.disk_errors(tablet_id):
                held = await store.hold_snapshot(tablet_id)
        finally:
            self._opening -= 1
        name = make_uuid(self._runtime.rng)
        now = self._runtime.clock.monotonic()
        self._sessions[name] = _Session(tablet_id, receiver, held, now)
        return Reply(PullPlan(name, held.snapshot))

    async def _on_read(self, call: Call[ReadPull]) -> Reply[Empty]:
        request = call.body
        session = self._sessions.get(request.session)
        if session is None:
            raise CopyOver(request.session)
        if request.size_bytes < 1:
            raise InvalidArgument(f"a piece of {request.size_bytes} bytes")
        size_bytes = min(request.size_bytes, self._settings.copy_piece_bytes)
        with self._timelines.disk_errors(session.tablet_id):
            piece = await session.held.read(request.file, request.offset, size_bytes)
        session.used_s = self._runtime.clock.monotonic()
        return Reply(Empty(), [piece])

    async def _on_end(self, call: Call[EndPull]) -> Reply[Empty]:
        self._end(call.body.session)
        return EMPTY

    def _end(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.held.release()

    async def expire(self) -> None:
        """End sessions whose receivers have gone, for ever."""
        idle_s, clock = self._settings.copy_idle_s, self._runtime.clock
        while True:
            await clock.sleep(idle_s / LOOKS_PER_IDLE_TIME)
            now = clock.monotonic()
            for name, session in list(self._sessions.items()):
                if now - session.used_s >= idle_s:
                    self._end(name)
                    self._runtime.metrics.count("pull_sessions_expired")
