"""Brings the lines of the audit log's files into the table `_stelae.audit`, in the background.

The file is the commit point of a line, and callers are answered by it; the table follows. Rules:

1. The mark moves only once the rows of the lines before it are written. A copier that dies in
   between leaves the mark, and the same lines become the same rows again.
2. What is to be done is found in the files at each turn, never in memory. So a table that is away,
   a restart, and a copier of another replica change nothing but the time.
3. No error ends the copier: it is logged, at most once every `SAY_S`, and the turn comes again
   after a pause. Only `close` ends it.
4. One copier of a folder is at work at a time (`stelae.serve.gateway.audit_files`); the others
   wait for its end.

The files are bounded: where the table is away for so long that the oldest file is deleted before
its lines are copied, a row with outcome ``lost`` says so. (decisions §82)
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio.to_thread

from stelae.client.database import AsyncDatabase
from stelae.serve.gateway.audit import AuditLog
from stelae.serve.gateway.audit_files import AuditFiles, Mark, Piece
from stelae.serve.gateway.audit_rows import row_of_lost, rows_of
from stelae.serve.gateway.guard import Limits

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two looks at files of which all is copied."""
PAUSE_MAX_S = 30.0
"""Longest pause after errors; it doubles from `POLL_S` on."""
SAY_S = 60.0
"""Seconds between two log lines about errors."""
WRITE_TIMEOUT_S = 20.0
TURN_TIMEOUT_S = 120.0
"""Upper bound on one turn."""
TRIM_S = 600.0
"""Seconds between two looks at what is too old or too much."""


class AuditCopier:
    """See the module. Lives in one event loop."""

    def __init__(
        self,
        audit: AuditLog,
        database: Callable[[], Awaitable[AsyncDatabase]],
        limits: Callable[[], Limits],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """``audit`` has a folder. ``limits``: how long, and how many, rows are kept."""
        assert audit.folder is not None, "there are no files to copy from"
        self._audit = audit
        self._database = database
        self._limits = limits
        self._monotonic = monotonic
        self._sleep = sleep
        self._files = AuditFiles(audit.folder)
        self._mark: Mark | None = None
        """None: to be read from its file."""
        self._task: asyncio.Task[None] | None = None
        self._said_at = -math.inf
        self._trimmed_at = -math.inf

    def start(self) -> None:
        """Begin to copy, in the running loop."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="audit copier")

    async def close(self) -> None:
        """End it, and let another copier begin. What is not copied stays in the files."""
        self._audit.flush_refused(all_of_them=True)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._files.release()

    async def _run(self) -> None:
        errors = 0
        while True:
            try:
                async with asyncio.timeout(TURN_TIMEOUT_S):
                    has_more = await self.turn()
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                errors += 1  # of what this waited for, and not of this task
                self._say(error)
            except Exception as error:  # rule 3
                errors += 1
                self._say(error)
            else:
                errors = 0
                if has_more:
                    continue
            await self._sleep(min(PAUSE_MAX_S, POLL_S * 2.0 ** min(errors, 10)))

    async def turn(self) -> bool:
        """Copy the next lines; return whether more may follow at once."""
        self._audit.flush_refused()
        if not await _in_thread(self._files.acquire):
            return False
        if self._mark is None:
            self._mark = await _in_thread(self._files.read_mark)
        mark = self._mark
        piece = await _in_thread(lambda: self._files.after(mark))
        if not piece.lines and not piece.gone:
            await self._trim()
            return False
        database = await self._database()
        await database.put_audit(self._rows(piece), timeout=WRITE_TIMEOUT_S)
        await _in_thread(lambda: self._files.write_mark(piece.mark))  # rule 1
        self._mark = piece.mark
        return True

    def _rows(self, piece: Piece) -> list[dict[str, Any]]:
        rows, unread = rows_of(piece.lines)
        if unread:
            logger.error("%d lines of the audit log are damaged, and stay in its file", unread)
        if piece.gone:
            rows.append(row_of_lost(piece.gone))
        oldest = self._oldest()
        return [row for row in rows if row["time"] >= oldest]

    async def _trim(self) -> None:
        """Delete rows that are too old or too many, now and then."""
        if self._monotonic() < self._trimmed_at + TRIM_S:
            return
        database = await self._database()
        rows = self._limits().audit_rows
        gone = await database.trim_audit(self._oldest(), rows, timeout=WRITE_TIMEOUT_S)
        self._trimmed_at = self._monotonic()
        if gone:
            logger.info("%d entries of the audit log were too old or too many", gone)

    def _oldest(self) -> datetime.datetime:
        kept = datetime.timedelta(seconds=self._limits().audit_keep_s)
        return datetime.datetime.now(datetime.UTC) - kept

    def _say(self, error: BaseException) -> None:
        """Log an error unless one was logged a moment ago. Never raises."""
        now = self._monotonic()
        if now >= self._said_at + SAY_S:
            self._said_at = now
            logger.warning(
                "calls are not copied to the audit table for now, and stay in their file: %s: %s",
                type(error).__name__,
                error,
            )


async def _in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work)
