"""The audit log, for whoever has the cluster's secret. Blocking, as `stelae.database.api`.

Over a `Database` that is connected by HTTP, `/v1/audit` does the same.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from stelae.client.aio import Loop
from stelae.client.audit import CALL_TIMEOUT_S
from stelae.client.database import AsyncDatabase


class AuditOperations:
    """The part of `Database` that is about the audit log."""

    if TYPE_CHECKING:

        @property
        def _loop(self) -> Loop: ...

        @property
        def _database(self) -> AsyncDatabase: ...

    def _require_inside(self) -> None:
        raise NotImplementedError

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
        """Calls over HTTP that only admins may make, refusals too, the newest last.

        Each has ``time`` (when it began, UTC), ``caller`` (the token's name), ``role``, ``method``,
        ``path``, ``object``, ``outcome`` (``done``, ``refused``, ``failed``; ``begun``: no answer
        is noted; ``lost``: not a call, some may be missing), ``status``, ``calls`` (how many it
        stands for), ``duration_s``, ``source``, ``gateway``, ``request_id``, ``details``, ``id``.

        ``since``, ``until``: only calls that began then or later, and before that. ``who``: a
        token's name. ``path``: its beginning. ``limit``: the newest so many, up to 1000; older ones
        with ``before``, the ``id`` of the first.

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
