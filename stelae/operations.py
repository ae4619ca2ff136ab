"""What operators use of a `Database`: its tablet servers, moves of replicas, what is
lost, and the check.
Safekeepers are in `stelae.safekeepers`.

Blocking, as all of `stelae.api`; ``database.aio`` has the same calls as coroutines. None of it goes
over HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from stelae.client.attempts import DEFAULT_TIMEOUT_S
from stelae.client.losses import LOOK_TIMEOUT_S
from stelae.client.operators import (
    CALL_TIMEOUT_S,
    COPY_HOLD_S,
    WAIT_TIMEOUT_S,
    Moving,
    Retiring,
)
from stelae.safekeepers import SafekeeperOperations

if TYPE_CHECKING:
    from stelae.api import Database
    from stelae.client.check import CheckReport
    from stelae.client.quarantine import QuarantineReport
    from stelae.core.losses import LossRecord, LossReport
    from stelae.core.records import TabletRecord
    from stelae.core.server_messages import RebalancingState, ServerProgress

RESTART_TIMEOUT_S = 120.0


class Operations(SafekeeperOperations):
    """The part of `Database` that is for operators."""

    def tservers(self, *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """The tablet servers: ``name``, ``uuid``, ``state``, whether each is ``retiring`` or in
        ``maintenance``, its ``replicas``, how many of them it ``leads``, and the tablets of tables
        with segments that it has (``owned``)."""
        self._require_inside()
        return self._loop.run(self._database.tservers(timeout=timeout))

    def retire_server(
        self,
        server: str,
        *,
        wait: bool = True,
        cancel: bool = False,
        progress: Retiring | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> ServerProgress:
        """Move everything off a tablet server (name or UUID), and give it nothing new.

        Replicas are moved while they serve. Tablets of tables with segments (``tablets``) are
        closed and recovered elsewhere from their backups, one at a time: a short pause for each.
        Returns once nothing is left (without ``wait``: at once); it may then be stopped for good.
        Tablets of tables with ``segments()`` have their rows in its memory only and cannot leave:
        their number is ``bound``, and ``problem`` names the tables. The masters work on it whether
        anybody waits or not, so this may be interrupted, and called again. ``cancel`` takes it
        back; what has moved stays. ``progress`` is told of each look, in another thread.

        Raises:
            InvalidArgument: there is no such server, or several.
            RetryLater: the time is over, and the text says what keeps it; or it was taken back.
        """
        self._require_inside()
        return self._loop.run(
            self._database.retire_server(
                server, wait=wait, cancel=cancel, progress=progress, timeout=timeout
            )
        )

    def restart_server(
        self,
        server: str,
        *,
        progress: Callable[[str], None] = lambda text: None,
        timeout: float = RESTART_TIMEOUT_S,
    ) -> None:
        """Restart a tablet server, master or safekeeper (name or UUID), while the others serve.

        It hands its leaderships over first, so that clients hardly notice. Returns once it takes
        part with all its replicas again, and nothing is being recovered: then the next one may be
        restarted. Tablets of tables with segments are recovered from their backups, as after a
        crash. ``progress`` is told of each step.

        Raises:
            InvalidArgument: no such server lives.
            RetryLater: it is not back in time; the text says what is missing.
        """
        self._require_inside()
        from stelae.restarts import restart_server

        restart_server(cast("Database", self), server, progress=progress, timeout=timeout)

    def maintain_server(
        self, server: str, on: bool, *, timeout: float = CALL_TIMEOUT_S
    ) -> ServerProgress:
        """Begin (or end) maintenance of a tablet server (name or UUID).

        While it lasts the server gets nothing new, hands its leaderships over, and may be away
        without its replicas being made anew elsewhere. Raises `InvalidArgument`.
        """
        self._require_inside()
        return self._loop.run(self._database.maintain_server(server, on, timeout=timeout))

    def move_replica(
        self,
        tablet: str,
        source: str,
        target: str,
        *,
        wait: bool = True,
        progress: Moving | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> TabletRecord:
        """Move one replica of a tablet from one server to another (names or UUIDs).

        The target gets a copy and a vote before the source is let go; reads and writes go on. It
        may be interrupted, and called again. An empty ``target`` gives up a move that is under way
        (``source`` may be empty then, too): nothing happens if there is none.

        Raises:
            TabletNotFound, InvalidArgument: the text says which of the servers does not fit.
            RetryLater: the time is over, or it was given up meanwhile.
        """
        self._require_inside()
        return self._loop.run(
            self._database.move_replica(
                tablet, source, target, wait=wait, progress=progress, timeout=timeout
            )
        )

    def cancel_copy(
        self,
        tablet: str,
        server: str,
        *,
        hold: float = COPY_HOLD_S,
        timeout: float = CALL_TIMEOUT_S,
    ) -> bool:
        """End the copy of a tablet that a server (name or UUID) receives; False: there was none.

        ``status()["copies"]`` has them all. What was written is removed, and the server begins none
        of that tablet for ``hold`` seconds; after that the tablet's leader has it copied again if
        it is a member still. Raises `InvalidArgument`.
        """
        self._require_inside()
        work = self._database.cancel_copy(tablet, server, hold=hold, timeout=timeout)
        return self._loop.run(work)

    def rebalancing(
        self, after: float | None = None, *, timeout: float = CALL_TIMEOUT_S
    ) -> RebalancingState:
        """How replicas and leaders are spread over servers, as from now on if ``after`` is given.

        ``after``: so many seconds without anything to heal before each step; 0: never. Raises
        `InvalidArgument`.
        """
        self._require_inside()
        return self._loop.run(self._database.rebalancing(after, timeout=timeout))

    def quarantine(
        self, *, server: str = "", tablet: str = "", timeout: float = CALL_TIMEOUT_S
    ) -> QuarantineReport:
        """What deleted replicas have left on the disks of tablet servers.

        A replica that was moved away, dropped with its table, or had failed, leaves its files
        behind for a week (``tservers.quarantine_keep``), in case the deletion was a mistake.
        ``report.entries``: server, and ``entry`` with ``tablet_id``, ``table``, ``size_bytes``,
        ``age_s``; ``report.silent``: servers that did not answer. Raises `InvalidArgument`.
        """
        self._require_inside()
        work = self._database.quarantine(server=server, tablet=tablet, timeout=timeout)
        return self._loop.run(work)

    def purge_quarantine(
        self,
        *,
        server: str = "",
        tablet: str = "",
        older_than: float = 0.0,
        timeout: float = CALL_TIMEOUT_S,
    ) -> QuarantineReport:
        """Remove for good what has been in the quarantine for at least ``older_than`` seconds.

        Of all tablet servers or one (name or UUID), of all tablets or one. Returns what was
        removed. Raises `InvalidArgument`.
        """
        self._require_inside()
        return self._loop.run(
            self._database.purge_quarantine(
                server=server, tablet=tablet, older_than=older_than, timeout=timeout
            )
        )

    def losses(self, *, timeout: float = LOOK_TIMEOUT_S) -> LossReport:
        """What tablets wait for that no live backup holds (``waiting``), and what was ever accepted
        as lost (``accepted``). All live backups are asked; those that are not there, and may hold
        what is missing, are in ``silent_backups``."""
        self._require_inside()
        return self._loop.run(self._database.losses(timeout=timeout))

    def accept_loss(
        self,
        report: LossReport,
        *,
        by: str,
        tablets: Sequence[str] = (),
        timeout: float = LOOK_TIMEOUT_S,
    ) -> tuple[LossRecord, ...]:
        """Give up for good what ``report`` (of `losses`) says is missing.

        Of these ``tablets``, or of all. They are recovered at once from what is left; what comes
        back later is not used any more. It cannot be taken back, and stays on record for ever,
        with ``by``: who said so.

        Raises:
            InvalidArgument: nothing is lost, or not exactly what the report says.
            RetryLater: a live backup did not answer.
        """
        self._require_inside()
        work = self._database.accept_loss(report, by=by, tablets=tablets, timeout=timeout)
        return self._loop.run(work)

    def check(
        self,
        tables: Sequence[str] = (),
        *,
        checksums: bool = False,
        wait: float = 0.0,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> CheckReport:
        """Look at masters, servers, tables and tablets, and say what is not well.

        ``report.is_well``, ``report.problems``, ``report.document()``. It raises for nothing that
        it finds. ``tables``: only these. ``checksums``: have all replicas of each tablet with
        ``replicas(n)`` compared at one index of its log. ``wait``: look again for so many seconds
        while something is not well.

        Raises:
            TableNotFound: one of ``tables`` does not exist.
        """
        self._require_inside()
        return self._loop.run(
            self._database.check(tables, checksums=checksums, wait=wait, timeout=timeout)
        )
