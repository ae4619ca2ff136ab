"""What came of the calls on a tablet that has one owner: known again, and counted. Design §5."""

from __future__ import annotations

from stelae.actors.tserver.tablet_log.interface import TabletLog
from stelae.core.config.settings import Settings
from stelae.core.errors import OutcomeUnknown, Overloaded, StelaeError
from stelae.core.ids import RequestId, TabletId
from stelae.core.runtime import Runtime
from stelae.storage.entries.client_results import Recorded
from stelae.storage.rows.memory import TabletMemory


class OwnedRequests:
    """The part of `Tablet` that is about exactly-once and what is committed."""

    tablet_id: TabletId
    _runtime: Runtime
    _settings: Settings
    _memory: TabletMemory
    _log: TabletLog

    def _known(self, request: RequestId) -> Recorded | None:
        """What the request came to before, if it is a repeated one."""
        results, now_s = self._memory.results, self._runtime.clock.monotonic()
        try:
            return results.check(request, now_s)
        except Overloaded:
            if not self._forget_clients():
                raise
            return results.check(request, now_s)

    def _forget_clients(self) -> int:
        """Those that were silent for long, and keys that are too many."""
        now_s = self._runtime.clock.monotonic()
        silent_since_s = now_s - self._settings.client_expiry_s
        committed = self._log.committed_index
        return self._memory.results.forget_before(silent_since_s, now_s, committed)

    def _is_committed(self, index: int) -> bool:
        return index <= self._log.committed_index

    async def _committed(self, index: int, timeout_s: float) -> None:
        """If the log has failed, or who has to agree does not come in time, nobody here knows
        whether the entry counts: the retry will be told."""
        if self._is_committed(index):
            return
        try:
            await self._log.wait_committed(index, timeout_s)
        except (StelaeError, TimeoutError) as error:
            raise OutcomeUnknown(f"tablet {self.tablet_id}", "write or read", timeout_s) from error
