"""A process's log: one line of JSON for each event, with cluster, server, and what it worked on.

Logging is the standard library's everywhere; this is its formatter, for the processes that Stelae
starts. ``STELAE_LOG_FORMAT=console`` gives lines for people instead, ``STELAE_LOG_LEVEL`` says from
which level on Stelae itself is heard (INFO).
"""

from __future__ import annotations

import datetime
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import msgspec

from stelae.core.current import working

FORMAT_VARIABLE = "STELAE_LOG_FORMAT"
LEVEL_VARIABLE = "STELAE_LOG_LEVEL"
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class ContextFormatter(logging.Formatter):
    """Common to both: who this process is. ``identity`` may grow: a UUID is known late."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        super().__init__()
        self.identity = dict(identity)


class JsonFormatter(ContextFormatter):
    """One object a line; members that say nothing are left out."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self.identity,
            **working(),
        }
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(document, enc_hook=str).decode()


class ConsoleFormatter(ContextFormatter):
    """For people who read along: nobody's text makes a line of its own, or moves their cursor."""

    def format(self, record: logging.LogRecord) -> str:
        about = " ".join(f"{name}={value}" for name, value in working().items())
        server = self.identity.get("server", "")
        head = f"{_time_of(record)} {record.levelname:7} {server} {record.name}"
        line = _plain(f"{head}: {record.getMessage()}{f' [{about}]' if about else ''}")
        if not record.exc_info:
            return line
        rest = self.formatException(record.exc_info).splitlines()
        return "\n".join([line, *(f"  {_plain(each)}" for each in rest)])


def _plain(text: str) -> str:
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


def _time_of(record: logging.LogRecord) -> str:
    when = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return when.isoformat(timespec="milliseconds")


def log_as(stream: TextIO | None = None, **identity: Any) -> None:
    """Have this process log to ``stream`` (stderr), as the server of this ``identity``: cluster,
    kind, server. Asked for again, the identity is another from then on."""
    kind = ConsoleFormatter if os.environ.get(FORMAT_VARIABLE) == "console" else JsonFormatter
    root, formatter = logging.getLogger(), kind(identity)
    if not root.handlers:
        root.addHandler(logging.StreamHandler(stream or sys.stderr))
    for handler in root.handlers:
        if type(handler) is logging.StreamHandler:  # others' own kinds are others' affair
            handler.setFormatter(formatter)
    level = os.environ.get(LEVEL_VARIABLE, "").upper()
    logging.getLogger("stelae").setLevel(level if level in _LEVELS else logging.INFO)


def log_also(**identity: Any) -> None:
    """More is known of who this process is: its UUID and incarnation."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, ContextFormatter):
            handler.formatter.identity.update(identity)
