"""The audit log, for whoever has the cluster's secret. Blocking, as `stelae.database.api`.

Over a `Database` that is connected by HTTP, `/v1/audit` does the same.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stelae.client.aio import Loop
from stelae.client.audit import CALL_TIMEOUT_S
from stelae.client.database import AsyncDatabase
from stelae.core.errors import StelaeError


class AuditOperations:
    """The part of `Database` that is about the audit log."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _database(self) -> AsyncDatabase: ...

    def _require_inside(self) -> None:
        raise NotImplementedError

    def note_call(self, what: str) -> None:
        """Put a call into the audit log that gives masters no order, such as `stelae down`. Takes
        up to `WAIT_S`, and never fails for the log's sake."""
        with self._noted(what):
            pass

    @contextmanager
    def _noted(self, what: str, details: str = "") -> Iterator[None]:
        """Note a call that may last long, when it begins and when it has ended."""
        calls = self._database.calls
        if calls is None:
            yield
            return
        call = self._loop.run(calls.begin(what, _about(what), details))
        try:
            yield
        except BaseException as error:
            self._loop.run(calls.end(call, error))
            raise
        self._loop.run(calls.end(call, None))

    def _note_refused(self, what: str, details: str, error: StelaeError) -> None:
        """Note a call that was refused before it began."""
        calls = self._database.calls
        if calls is not None:
            self._loop.run(calls.end(calls.begun(what, _about(what), details), error))

    def audit(
        self,
        *,
        since: datetime.datetime | None = None,
        until: datetime.datetime | None = None,
        who: str = "",
        outcome: str = "",
        path: str = "",
        limit: int = 100,
        before: str = "",
        timeout: float = CALL_TIMEOUT_S,
    ) -> list[dict[str, Any]]:
        """Administrative calls, refused ones too, the newest last.

        Each has ``time`` (when it began, UTC), ``caller`` (the token's name, or ``user@host``),
        ``role`` (``secret``: by the cluster's secret), ``method`` (of HTTP, or ``cli``, ``python``,
        ``applier``), ``path`` (or the order, and what it is about), ``object``, ``outcome``
        (``done``, ``refused``, ``failed``; ``begun``: no answer is noted; ``lost``: not a call,
        some may be missing), ``status``, ``calls`` (how many it stands for), ``duration_s``,
        ``source``, ``gateway``, ``request_id``, ``details``, ``id``.

        ``since``, ``until``: only calls that began then or later, and before that. ``who``: a
        token's name, or ``user@host``. ``path``: its beginning. ``limit``: the newest so many, up
        to 1000; older ones with ``before``, the ``id`` of the first.

        Raises:
            InvalidArgument: no such outcome or entry, or a time without a time zone.
        """
        self._require_inside()
        work = self._database.audit(
            since=since,
            until=until,
            who=who,
            outcome=outcome,
            path=path,
            limit=limit,
            before=before,
            timeout=timeout,
        )
        return self._loop.run(work)


def _about(what: str) -> str:
    """The server of ``server stop tserver-1``; empty: it is about the cluster. Pure."""
    words = what.split()
    return words[2] if len(words) == 3 else ""
