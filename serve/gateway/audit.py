"""The audit log: who asked for what only admins may do, and what came of it; and bad tokens.

Two lines of JSON for each call of an admin that is no read: ``begun`` before anything is done,
``answered`` before the answer goes out, on disk by then. A call that has only the first one was cut
off, and may have been carried out. What others are refused is counted. Tokens are not in it, no
rows, and no passwords in URLs. Replicas on one node share one file, which is set aside when it is
large; a few are kept. (design §12)

Rules:

1. A line is in the file as a whole, or the call is refused: a piece of a line is taken back.
2. A line begins on a line of its own, also after a loss of power that has torn the last one.
3. Requests that are refused for their token are counted, and written once a minute: bad tokens by
   source, those that may not do it by token. So whoever is refused writes at most one short line a
   minute for each counter, however often he asks. Writing of them never raises.

`stelae.serve.gateway.audit_copier` brings the lines into the table `_stelae.audit`.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec
from starlette.types import Scope

from stelae.core.current import request_id
from stelae.core.errors import RetryLater

logger = logging.getLogger("stelae.audit")

AUDIT_FOLDER = "audit"
FILE = "http.jsonl"
FILE_BYTES = 16 << 20
KEPT_FILES = 8
BODY_BYTES = 1000
"""So much of a body is noted: what admins send is names and settings."""
PATH_CHARS = 1000
"""Maximum characters of a path that is noted."""
REFUSED_S = 60.0
"""Seconds between two lines about refused requests of one source, or of one token."""
REFUSED_CHARS = 200
"""Maximum characters of a path, and of a query, of a refused request that are noted."""
MAX_SOURCES = 64
"""Maximum sources that are counted apart, and maximum tokens; all further ones of either kind are
counted together."""
OTHERS = "others"
_IN_TEXT = r"""(?:[^\s"'\\]|\\.)*"""
_USERINFO = re.compile(rf"(:(?:\\?/){{2}}){_IN_TEXT}(?:@|\\u0040)")
_CUT_OFF = re.compile(rf"(:(?:\\?/){{2}}){_IN_TEXT}\\?$")


@dataclass(slots=True)
class AuditEntry:
    """One call. Times are the log's to tell."""

    token: str
    role: str
    method: str
    path: str
    query: str
    client: str
    gateway: str
    began: float
    """Monotonic seconds."""
    began_at: float
    """Seconds since 1970."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    request_id: str = field(default_factory=request_id)

    def document(self, stage: str, at: float, **more: Any) -> dict[str, Any]:
        """One line. ``at``: when it is written, in seconds since 1970."""
        return {
            "at": _shown_time(at),
            "began": _shown_time(self.began_at),
            "stage": stage,
            "id": self.id,
            "request_id": self.request_id,
            "token": self.token,
            "role": self.role,
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "client": self.client,
            "gateway": self.gateway,
            **more,
        }


@dataclass(slots=True)
class _Refused:
    """Requests of one source or token that were refused since ``since`` (monotonic)."""

    since: float
    entry: AuditEntry
    status: int
    why: str = ""
    calls: int = 0
    """Those that no line has yet."""


class AuditLog:
    """Where the lines go; without a folder to the program's log alone."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        gateway: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``gateway``: the name of this replica, for its lines. ``monotonic``: seconds by which
        durations are counted; ``now``: seconds since 1970, which lines show."""
        self.folder = None if folder is None else Path(folder)
        self.gateway = gateway
        self._monotonic, self._now = monotonic, now
        self._bad_tokens: dict[str, _Refused] = {}
        """By source; at most `MAX_SOURCES` and `OTHERS`."""
        self._not_permitted: dict[str, _Refused] = {}
        """By token; at most `MAX_SOURCES` and `OTHERS`."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def begin(self, scope: Scope, token: str, role: str) -> AuditEntry:
        """A call of an admin is about to be carried out.

        Raises RetryLater: it cannot be noted, so it is not done.
        """
        entry = self._entry(scope, token, role)
        try:
            self._write(entry.document("begun", entry.began_at), sync=False)
        except OSError as error:
            raise RetryLater(f"the audit log cannot be written: {error.strerror}") from error
        return entry

    async def end(self, entry: AuditEntry, status: int, body: bytes) -> None:
        """It is about to be answered."""
        duration_s = round(self._monotonic() - entry.began, 4)
        more = {"status": status, "duration_s": duration_s, "body": shown_body(body)}
        document = entry.document("answered", self._now(), **more)
        if self.folder is None:
            self._write(document, sync=False)
        else:
            try:
                await anyio.to_thread.run_sync(lambda: self._write(document, sync=True))
            except OSError as error:
                line = msgspec.json.encode(document).decode()
                logger.error("the audit log cannot be written: %s: %s", error, line)

    def refused(self, scope: Scope, why: str) -> None:
        """Note that a request was refused for its token: at once, or in the source's next line."""
        entry = self._entry(scope, "", "", REFUSED_CHARS)
        if entry.client not in self._bad_tokens and len(self._bad_tokens) >= MAX_SOURCES:
            entry.client = OTHERS
        self._count(self._bad_tokens, entry.client, _Refused(self._monotonic(), entry, 401, why))

    def not_permitted(self, scope: Scope, token: str, role: str, why: str) -> None:
        """Note that a good token may not do that: at once, or in the token's next line."""
        entry = self._entry(scope, token, role, REFUSED_CHARS)
        if token not in self._not_permitted and len(self._not_permitted) >= MAX_SOURCES:
            entry.token, entry.role = OTHERS, ""
        why = why[:BODY_BYTES]
        self._count(self._not_permitted, entry.token, _Refused(self._monotonic(), entry, 403, why))

    def _count(self, counted: dict[str, _Refused], name: str, refused: _Refused) -> None:
        known = counted.get(name)
        if known is None:
            counted[name] = refused
            self._write_refused(refused, 1)
        else:
            known.entry, known.why = refused.entry, refused.why
            known.calls += 1
        self.flush_refused()

    def flush_refused(self, *, all_of_them: bool = False) -> None:
        """Write how many were refused, of each source and token whose minute is over. Never
        raises."""
        due = self._monotonic() - REFUSED_S
        for counted in (self._bad_tokens, self._not_permitted):
            for name, known in list(counted.items()):
                if not all_of_them and known.since > due:
                    continue
                if known.calls:
                    self._write_refused(known, known.calls)
                    known.since, known.calls = self._monotonic(), 0
                else:
                    del counted[name]

    def _write_refused(self, refused: _Refused, calls: int) -> None:
        more = {"status": refused.status, "calls": calls, "body": refused.why}
        document = refused.entry.document("refused", self._now(), **more)
        try:
            self._write(document, sync=False)
        except OSError as error:
            line = msgspec.json.encode(document).decode()
            logger.error("the audit log cannot be written: %s: %s", error, line)

    def _entry(self, scope: Scope, token: str, role: str, chars: int = PATH_CHARS) -> AuditEntry:
        client = scope.get("client") or ("",)
        return AuditEntry(
            token,
            role,
            scope["method"],
            scope["path"][:chars],
            scope.get("query_string", b"")[:chars].decode("ascii", "replace"),
            str(client[0]),
            self.gateway,
            self._monotonic(),
            self._now(),
        )

    def _write(self, document: dict[str, Any], *, sync: bool) -> None:
        line = msgspec.json.encode(document)
        if self.folder is None:
            logger.info("%s", line.decode())
        else:  # in that file alone: more people read the program's log
            _append(self.folder / FILE, line + b"\n", sync=sync)


def _shown_time(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="microseconds")


def shown_body(body: bytes) -> str:
    """The beginning of a body, without who is named before the host of a URL, and the password."""
    text = body[:BODY_BYTES].decode("utf-8", "replace")
    text = _USERINFO.sub(r"\1…@", text)
    # What comes after the end may have been an @.
    return _CUT_OFF.sub(r"\1…", text) if len(body) >= BODY_BYTES else text


def _append(path: Path, line: bytes, *, sync: bool) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with locked(path):
        descriptor = os.open(path, flags, 0o600)
        try:
            _write_whole(descriptor, line)
            if os.fstat(descriptor).st_size > FILE_BYTES:
                _set_aside(path)
        except BaseException:
            os.close(descriptor)
            raise
    try:
        if sync:  # without the lock: a call that begins takes it on the event loop
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def _write_whole(descriptor: int, line: bytes) -> None:
    """Raises OSError: the line is not in the file, nor a piece of it."""
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes and os.pread(descriptor, 1, size_bytes - 1) != b"\n":
        line = b"\n" + line  # rule 2
    if os.write(descriptor, line) < len(line):
        os.ftruncate(descriptor, size_bytes)  # rule 1
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with the file: another replica may be setting it aside."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _set_aside(path: Path) -> None:
    for number in range(KEPT_FILES - 1, 0, -1):
        older = path.with_suffix(f".{number}.jsonl")
        if older.exists():
            older.replace(path.with_suffix(f".{number + 1}.jsonl"))
    path.replace(path.with_suffix(".1.jsonl"))
