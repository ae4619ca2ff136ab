"""The audit log: who asked for what only admins may do, and what came of it.

Two lines of JSON for each call: ``begun`` before anything is done, ``answered`` before the answer
goes out, on disk by then. A call that has only the first one was cut off, and may have been carried
out. Refusals are in it too. Tokens are not, no rows, and no passwords in URLs. Replicas on one node
share one file, which is set aside when it is large; a few are kept. (design §12)
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import logging
import os
import re
import secrets
import time
from collections.abc import Iterator
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
_IN_TEXT = r"""(?:[^\s"'\\]|\\.)*"""
_USERINFO = re.compile(rf"(:(?:\\?/){{2}}){_IN_TEXT}(?:@|\\u0040)")
_CUT_OFF = re.compile(rf"(:(?:\\?/){{2}}){_IN_TEXT}\\?$")


@dataclass(slots=True)
class AuditEntry:
    """One call."""

    token: str
    role: str
    method: str
    path: str
    query: str
    client: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    request_id: str = field(default_factory=request_id)
    began: float = field(default_factory=time.monotonic)

    def document(self, stage: str, **more: Any) -> dict[str, Any]:
        """One line."""
        return {
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "stage": stage,
            "id": self.id,
            "request_id": self.request_id,
            "token": self.token,
            "role": self.role,
            "method": self.method,
            "path": self.path,
            "query": self.query,
            "client": self.client,
            **more,
        }


class AuditLog:
    """Where the lines go; without a folder to the program's log alone."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def begin(self, scope: Scope, token: str, role: str) -> AuditEntry:
        """A call is about to be carried out, or refused for its role.

        Raises RetryLater: it cannot be noted, so it is not done.
        """
        client = scope.get("client") or ("",)
        entry = AuditEntry(
            token,
            role,
            scope["method"],
            scope["path"],
            scope.get("query_string", b"").decode("ascii", "replace"),
            str(client[0]),
        )
        try:
            self._write(entry.document("begun"), sync=False)
        except OSError as error:
            raise RetryLater(f"the audit log cannot be written: {error.strerror}") from error
        return entry

    async def end(self, entry: AuditEntry, status: int, body: bytes) -> None:
        """It is about to be answered."""
        duration_s = round(time.monotonic() - entry.began, 4)
        shown = shown_body(body)
        document = entry.document("answered", status=status, duration_s=duration_s, body=shown)
        if self._folder is None:
            self._write(document, sync=False)
        else:
            try:
                await anyio.to_thread.run_sync(lambda: self._write(document, sync=True))
            except OSError as error:
                line = msgspec.json.encode(document).decode()
                logger.error("the audit log cannot be written: %s: %s", error, line)

    def _write(self, document: dict[str, Any], *, sync: bool) -> None:
        line = msgspec.json.encode(document)
        if self._folder is None:
            logger.info("%s", line.decode())
        else:  # in that file alone: more people read the program's log
            _append(self._folder / FILE, line + b"\n", sync=sync)


def shown_body(body: bytes) -> str:
    """The beginning of a body, without who is named before the host of a URL, and the password."""
    text = body[:BODY_BYTES].decode("utf-8", "replace")
    text = _USERINFO.sub(r"\1…@", text)
    # What comes after the end may have been an @.
    return _CUT_OFF.sub(r"\1…", text) if len(body) >= BODY_BYTES else text


def _append(path: Path, line: bytes, *, sync: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    with _locked(path):
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, line)
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


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
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
