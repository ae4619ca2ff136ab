"""What happened: a bounded story for each node, and one digest over everything.

The digest is how two runs are compared: equal digests mean equal traces.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import TextIO

LINES_KEPT = 60
"""Maximum number of events of a node that are evidence of a failure: the last ones."""
LOGS_KEPT = 20
"""Maximum number of logs of a node that are evidence of a failure, in addition to the events."""
HASHED_TOGETHER = 256
"""Lines: a call of the hash takes longer than what it does for one."""


class Story:
    """Events of a run, by node. ``trace`` receives every line, when given."""

    def __init__(self, time: Callable[[], float], trace: TextIO | None = None) -> None:
        self._time = time
        self._trace = trace
        self._hash = hashlib.sha256()
        self._not_hashed: list[str] = []
        self._lines: dict[str, deque[tuple[float, int, str]]] = {}
        self._logs: dict[str, deque[tuple[float, int, str]]] = {}
        self._count = 0

    def note(self, node: str, text: str) -> None:
        """Add an event of ``node``."""
        now_s = self._time()
        self._count += 1
        lines = self._lines.get(node)
        if lines is None:
            lines = self._lines[node] = deque(maxlen=LINES_KEPT)
        lines.append((now_s, self._count, text))
        self._not_hashed.append(f"{now_s!r} {node} {text}\n")
        if len(self._not_hashed) >= HASHED_TOGETHER:
            self._take_in()
        if self._trace is not None:
            self._trace.write(f"{now_s:12.6f} {node:<12} {text}\n")

    @property
    def has_trace(self) -> bool:
        """Whether every line is written to a trace."""
        return self._trace is not None

    def log(self, node: str, text: str, *, is_evidence: bool) -> None:
        """Add a log record of a server of ``node``; the digest does not change.

        Args:
            is_evidence: show it in `tell` too, and not in the trace alone.
        """
        now_s = self._time()
        if is_evidence:
            # Kept apart: a server that logs much must not displace the node's events.
            self._count += 1
            logs = self._logs.setdefault(node, deque(maxlen=LOGS_KEPT))
            logs.append((now_s, self._count, text))
        if self._trace is not None:
            self._trace.write(f"{now_s:12.6f} {node:<12} {text}\n")

    def digest(self) -> str:
        """SHA-256 over all events so far, as hex."""
        self._take_in()
        return self._hash.hexdigest()

    def _take_in(self) -> None:
        self._hash.update("".join(self._not_hashed).encode())
        self._not_hashed.clear()

    def tell(self, nodes: list[str] | None = None) -> str:
        """The last lines of the nodes named (or of all), merged in the order they happened."""
        chosen = sorted(self._lines | self._logs) if nodes is None else nodes
        lines = [
            (number, f"{at_s:12.6f} {node:<12} {text}")
            for node in chosen
            for kept in (self._lines, self._logs)
            for at_s, number, text in kept.get(node, ())
        ]
        return "\n".join(text for _, text in sorted(lines))
