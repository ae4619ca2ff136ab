"""What operators use of a `Database`: its masters and tablet servers, moves of replicas, what is
lost, and the check. Safekeepers are in `stelae.database.safekeepers`.

Blocking, as all of `stelae.database.api`; ``database.aio`` has the same calls as coroutines. None
of it goes over HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

from stelae.client.admin.losses import LOOK_TIMEOUT_S
from stelae.client.admin.operators import (
    CALL_TIMEOUT_S,
    CHANGE_TIMEOUT_S,
    COPY_HOLD_S,
    WAIT_TIMEOUT_S,
    Moving,
    Retiring,
)
from stelae.client.routing.attempts import DEFAULT_TIMEOUT_S
from stelae.core.errors import AlreadyRunning
from stelae.database.audit import AuditOperations
from stelae.database.progress import bar, retiring_told, steps_bar, words_bar
from stelae.database.safekeepers import SafekeeperOperations
from stelae.database.servers import ServerOperations
from stelae.database.tokens import TokenOperations

if TYPE_CHECKING:
    from stelae.applying.run import Applied
    from stelae.client.admin.quarantine import QuarantineReport
    from stelae.client.check.check import CheckReport
    from stelae.core.config.spec import ClusterSpec
    from stelae.core.messages.operators import RebalancingState, ServerProgress
    from stelae.core.records.losses import LossRecord, LossReport
    from stelae.core.records.records import TabletRecord
    from stelae.deploy.certificates import Shown
    from stelae.deploy.changed import ChangedCluster

RESTART_TIMEOUT_S = 120.0
CERTIFICATE_TIMEOUT_S = 60.0
SILENCE_S = 120.0
"""Of the masters, while one of them is started anew, before whoever has the turn gives up."""


class Operations(ServerOperations, SafekeeperOperations, TokenOperations, AuditOperations):
    """The part of `Database` that is for operators."""

    told_of_turn: Callable[[bool], None] = staticmethod(lambda has_turn: None)
    """Called when a turn was taken through this database, and when it has ended."""

    def tservers(self, *, timeout: float = CALL_TIMEOUT_S) -> list[dict[str, Any]]:
        """The tablet servers: ``name``, ``uuid``, ``state``, whether each is ``retiring`` or in
        ``maintenance``, its ``replicas``, how many of them it ``leads``, and the tablets of tables
        with segments that it has (``owned``)."""
        self._require_inside()
        return self._loop.run(self._database.tservers(timeout=timeout))

    def masters(self, *, timeout: float = DEFAULT_TIMEOUT_S) -> list[dict[str, Any]]:
        """The masters: ``name``, ``uuid``, ``address``, and whether each is a ``voter`` yet."""
        self._require_inside()
        from stelae.deploy.masters import list_masters

        return list_masters(cast("ChangedCluster", self), timeout=timeout)

    def add_master(
        self, name: str | None = None, *, timeout: float = CHANGE_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Start one more master, bring it up, and give it a vote; returns all masters.

        A lost master is replaced by adding a new one and then removing the lost one.

        Raises:
            RetryLater: it was not to be done in time, and was undone: the text says why.
            InvalidArgument: there is a master of that name.
        """
        self._require_inside()
        from stelae.deploy.masters import add_master_alone

        return add_master_alone(cast("ChangedCluster", self), name, timeout=timeout)

    def remove_master(
        self, master: str, *, timeout: float = CHANGE_TIMEOUT_S
    ) -> list[dict[str, Any]]:
        """Take a master (name or UUID) out of the set and end it; returns those who remain.

        Raises:
            InvalidArgument: there is none, or several of that name, or it is the last.
            RetryLater: too few of the others answer, or another change is under way.
        """
        self._require_inside()
        from stelae.deploy.masters import remove_master_alone

        return remove_master_alone(cast("ChangedCluster", self), master, timeout=timeout)

    def retire_server(
        self,
        server: str,
        *,
        wait: bool = True,
        cancel: bool = False,
        progress: Retiring | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> ServerProgress:
        """Move everything off a server (name or UUID) of any kind, and give it nothing new.

        Replicas are moved while they serve. Tablets of tables with segments (``tablets``) are
        closed and recovered elsewhere from their backups, one at a time: a short pause for each.
        Logs of a safekeeper (``logs``) move to others. A master hands over, leaves the set and
        ends, as by `remove_master`. The configuration store stays.
        Returns once nothing is left (without ``wait``: at once); it may then be stopped for good.
        Tablets of tables with ``segments()`` have their rows in its memory only and cannot leave:
        their number is ``bound``, and ``problem`` names the tables. What a backup has
        (``segments``) is made anew on others before it goes. The masters work on it whether
        anybody waits or not, so this may be interrupted, and called again. ``cancel`` takes it
        back; what has moved stays. ``progress`` is told of each look, in another thread.

        Raises:
            InvalidArgument: there is no such server, or several; or others of its kind are too few.
            RetryLater: the time is over, and the text says what keeps it; or it was taken back. Or
                it is a backup that is away, and for two minutes nothing came of it.
        """
        self._require_inside()
        with bar(f"retiring {server}") as tell:
            told = progress or retiring_told(tell)
            if (
                other := self._retire_other(server, wait, cancel=cancel, told=told, timeout=timeout)
            ) is not None:
                return other
            return self._loop.run(
                self._database.retire_server(
                    server, wait=wait, cancel=cancel, progress=told, timeout=timeout
                )
            )

    def restart_server(
        self,
        server: str,
        *,
        progress: Callable[[str], None] | None = None,
        timeout: float = RESTART_TIMEOUT_S,
    ) -> None:
        """Restart a server (name or UUID), while the others serve.

        It hands its leaderships over first, so that clients hardly notice. Returns once it takes
        part with all its replicas again, and nothing is being recovered: then the next one may be
        restarted. Tablets of tables with segments are recovered from their backups, as after a
        crash. ``progress`` is told of each step.

        Raises:
            InvalidArgument: no such server lives, or what is in its memory would be gone.
            RetryLater: it is not back in time; the text says what is missing.
        """
        self._require_inside()
        from stelae.deploy.restarts import restart_server

        with words_bar(f"restarting {server}", progress) as tell:
            restart_server(cast("ChangedCluster", self), server, progress=tell, timeout=timeout)

    def certificates(self, *, timeout: float = CERTIFICATE_TIMEOUT_S) -> list[Shown]:
        """The certificate of the HTTP front, by each of Serve's proxies: what new connections are
        shown (``served``), and what its files have (``files``).

        Raises:
            InvalidArgument: there is no front, or it has no certificate.
        """
        self._require_inside()
        from stelae.deploy.certificates import certificates

        return certificates(cast("ChangedCluster", self), timeout=timeout)

    def renew_certificate(
        self,
        *,
        progress: Callable[[int, int, str], None] | None = None,
        timeout: float = CERTIFICATE_TIMEOUT_S,
    ) -> list[Shown]:
        """Have the files of ``serve.tls`` read again, once they were replaced, while all serves.

        They are tried on every node with a proxy of Serve's before anything changes. Then one proxy
        after the other shows the new certificate to new connections, and is seen to; those that are
        open go on. It may be called again at any time. ``progress`` is told how many proxies are
        done, of how many.

        Raises:
            InvalidArgument: a file cannot be read or is no good, and nothing has changed. Or there
                is no front, or it has no certificate.
            AlreadyRunning: somebody else changes the cluster.
            RetryLater, Unavailable: a proxy is not there just now, or was not seen to answer.
        """
        self._require_inside()
        from stelae.deploy.certificates import renew_certificate

        with steps_bar("renewing the certificate", progress) as tell:
            return renew_certificate(cast("ChangedCluster", self), progress=tell, timeout=timeout)

    def apply(
        self,
        spec: str | os.PathLike[str] | Mapping[str, Any] | ClusterSpec,
        *,
        dry_run: bool = False,
        accept_loss: bool = False,
        if_generation: int | None = None,
        progress: Callable[[int, int, str], None] | None = None,
        timeout: float = WAIT_TIMEOUT_S,
    ) -> Applied:
        """Make the cluster what a ``cluster.yaml`` (path, dict or spec) says, while it serves.

        Servers are added first; then those that are to run with other values are started anew, one
        at a time; then those that are to go are drained, and ended. It may be interrupted, and
        called again, by anybody: it goes on from what is. ``dry_run`` only tells what differs, what
        would be done, and what keeps it from being done. ``progress`` is told the steps that are
        done, of how many, and what is done now. ``accept_loss``: a medium may become
        ``sync: on_seal``, with which a power failure may take what was acknowledged.
        ``if_generation``: of the spec that was asked for last, as the result of a dry run and of an
        apply has it; so nobody undoes what somebody else has asked for meanwhile.

        Raises:
            SpecChanged: the generation is another one; nothing has changed.
            InvalidArgument: all reasons why it cannot be done; nothing has changed. Or a reason
                came up on the way, or something else was asked meanwhile.
            AlreadyRunning: somebody else changes the cluster.
            RetryLater, NotEnoughServers: it is not done yet; the text says what is missing.
        """
        self._require_inside()
        from stelae.applying.run import apply

        with steps_bar("apply", progress) as tell:
            return apply(
                cast("ChangedCluster", self),
                spec,
                dry_run=dry_run,
                progress=tell,
                timeout=timeout,
                accept_loss=accept_loss,
                if_generation=if_generation,
            )

    @contextmanager
    def turn(
        self, what: str, by: str = "", *, tries_again: bool = False
    ) -> Iterator[Callable[[], None]]:
        """While one changes a cluster's servers: nobody else does, on any machine.

        ``by``: who; empty: this process. ``tries_again``: the caller waits for another's turn, so
        a refusal is no row of the audit log. Yields what is to be called before each step: it waits
        until it is sure that this is so yet, and raises AlreadyRunning if somebody has taken over,
        RetryLater if the masters do not say. It is not to be called by what is told of progress:
        that may be the thread that it waits for.

        Raises:
            AlreadyRunning: somebody else changes it; the text says who.
        """
        self._require_inside()
        from stelae.deploy.asked import who

        turn, details = self._database.turn(by or who(), what), f"by {by}" if by else ""
        with ExitStack() as noted:
            try:
                self._loop.run(turn.begin())
            except AlreadyRunning as error:
                if not tries_again:  # one that waits tries twice a second
                    self._note_refused(what, details, error)
                raise
            self.told_of_turn(True)
            try:
                noted.enter_context(self._noted(what, details))
                yield lambda: self._loop.run(turn.sure(SILENCE_S))
            finally:
                self._loop.run(turn.end())
                self.told_of_turn(False)

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
        what is missing, are in ``silent``, also if they were never heard since a cold start."""
        self._require_inside()
        return self._loop.run(self._database.losses(timeout=timeout))

    def accept_loss(
        self,
        report: LossReport,
        *,
        by: str,
        tablets: Sequence[str] = (),
        gone: Sequence[str] = (),
        timeout: float = LOOK_TIMEOUT_S,
    ) -> tuple[LossRecord, ...]:
        """Give up for good what ``report`` (of `losses`) says is missing.

        Of these ``tablets``, or of all. They are recovered at once from what is left; what comes
        back later is not used any more. It cannot be taken back, and stays on record for ever,
        with ``by``: who said so. ``gone``: backups (names or UUIDs) that are away and never return.
        Each that is away (``report.silent``) has to be named: it may hold what is missing.

        Raises:
            InvalidArgument: nothing is lost, or not exactly what the report says; or a known
                backup is away, and is not said to be gone.
            RetryLater: a live backup did not answer.
        """
        self._require_inside()
        work = self._database.accept_loss(
            report, by=by, tablets=tablets, gone=gone, timeout=timeout
        )
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
        while something is not well. A server that an operator stopped is a note, where this
        process is connected to Ray.

        Raises:
            TableNotFound: one of ``tables`` does not exist.
        """
        return self._check(tables, checksums=checksums, wait=wait, timeout=timeout, join=False)

    def _check(
        self,
        tables: Sequence[str],
        *,
        checksums: bool,
        wait: float,
        timeout: float,
        join: bool,
    ) -> CheckReport:
        """``join``: whether a connection to Ray may be opened, to see who was stopped."""
        self._require_inside()
        return self._loop.run(
            self._database.check(
                tables,
                checksums=checksums,
                wait=wait,
                timeout=timeout,
                stopped=self._who_is_stopped(join=join),
            )
        )
