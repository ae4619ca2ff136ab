"""Small appends of all logs of a server, to one backup at the same time: one message, one sync.

A message costs both ends more than an append of few rows does, and a backup syncs once for all that
a message brings. So appends to one medium of one backup travel together (`stelae.core.together`):
those of one turn of the loop, or that come while it has others to answer. Each fares by itself
there (`WRITE_REPLICAS`), and is told how.

Bounds: `APPENDS_MAX` and `TOGETHER_BYTES` of a message; what does not fit goes in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from stelae.core.errors import OutcomeUnknown, Rejected, StelaeError, decode_error
from stelae.core.ids import ServerUuid
from stelae.core.messages.backups import (
    APPENDS_MAX,
    WRITE_REPLICA,
    WRITE_REPLICAS,
    WriteReplica,
    WriteReplicas,
    WriteReplicasReply,
)
from stelae.core.records.records import ServerInfo
from stelae.core.rpc import SINGLE_BYTES_MAX, Blob, Method, Reply
from stelae.core.runtime import Runtime
from stelae.core.together import Together

TOGETHER_BYTES = SINGLE_BYTES_MAX // 2
"""Of the entries in a message of several: it goes in one frame."""
PAUSE_S = 10.0
"""A backup that refuses such a message as a whole may be one of before they were known."""


class NotSent:
    """An append did not leave, or not as one of several: it is to be sent by itself."""


Told: TypeAlias = StelaeError | NotSent | None
_Place: TypeAlias = tuple[ServerUuid, str]
"""A backup, and one of its media: none waits for another's sync."""


class _To(NamedTuple):
    runtime: Runtime
    backup: ServerInfo
    timeout_s: float

    def post(
        self,
        method: Method[Any, Any],
        request: Any,
        done: Callable[[Reply[Any] | StelaeError], None],
        blobs: Sequence[Blob],
    ) -> bool:
        return self.runtime.peers.post(
            self.backup.address,
            method,
            request,
            done,
            timeout_s=self.timeout_s,
            blobs=blobs,
            destination=self.backup.uuid,
        )


@dataclass(slots=True)
class Append:
    """One write to an open replica, with one blob. ``done`` is told once how it ended, never within
    `SharedAppends.add`; None: it is durable."""

    request: WriteReplica
    blobs: Sequence[Blob]
    size_bytes: int
    done: Callable[[Told], None]


class SharedAppends:
    """Those of one server, to all backups."""

    def __init__(self) -> None:
        self._together: Together[_Place, tuple[_To, Append]] = Together(self._send)
        self._pauses: dict[ServerUuid, float] = {}
        """Backups, and until when each append to one of them goes alone."""

    def add(self, runtime: Runtime, target: ServerInfo, append: Append, timeout_s: float) -> None:
        """Have it sent, soon."""
        to = _To(runtime, target, timeout_s)
        self._together.add((target.uuid, append.request.medium), (to, append))

    def _send(self, place: _Place, waiting: Sequence[tuple[_To, Append]]) -> None:
        to, appends = waiting[-1][0], [append for _, append in waiting]
        is_paused = self._is_paused(place[0], to.runtime.clock.monotonic())
        for part in [[append] for append in appends] if is_paused else _cut(appends):
            self._post(place, to, part)

    def _post(self, place: _Place, to: _To, part: Sequence[Append]) -> None:
        message = self._together.began(place)
        blobs = [blob for append in part for blob in append.blobs]
        writes = tuple([append.request for append in part])

        def done(outcome: Reply[Any] | StelaeError) -> None:
            if len(part) == 1:
                part[0].done(outcome if isinstance(outcome, StelaeError) else None)
            else:
                self._answered(place, to, part, outcome)
            self._together.ended(place, message)

        is_sent = False
        try:
            if len(part) == 1:
                is_sent = to.post(WRITE_REPLICA, writes[0], done, blobs)
            else:
                is_sent = to.post(WRITE_REPLICAS, WriteReplicas(writes), done, blobs)
        finally:
            if not is_sent:
                _tell_all(part, NotSent())
                self._together.ended(place, message)

    def _answered(
        self,
        place: _Place,
        to: _To,
        part: Sequence[Append],
        outcome: Reply[WriteReplicasReply] | StelaeError,
    ) -> None:
        if isinstance(outcome, OutcomeUnknown):
            _tell_all(part, outcome)
        elif isinstance(outcome, StelaeError) or len(outcome.body.errors) != len(part):
            if not isinstance(outcome, StelaeError) or isinstance(outcome, Rejected):
                self._pauses[place[0]] = to.runtime.clock.monotonic() + PAUSE_S
            _tell_all(part, NotSent())
        else:
            for append, error in zip(part, outcome.body.errors, strict=True):
                append.done(_decoded(error) if error else None)

    def _is_paused(self, backup: ServerUuid, now_s: float) -> bool:
        until_s = self._pauses.get(backup)
        if until_s is not None and now_s >= until_s:
            del self._pauses[backup]
            return False
        return until_s is not None


def _cut(appends: Sequence[Append]) -> list[list[Append]]:
    parts: list[list[Append]] = []
    size_bytes = 0
    for append in appends:
        size_bytes += append.size_bytes
        if not parts or len(parts[-1]) == APPENDS_MAX or size_bytes > TOGETHER_BYTES:
            parts.append([])
            size_bytes = append.size_bytes
        parts[-1].append(append)
    return parts


def _tell_all(part: Sequence[Append], told: Told) -> None:
    for append in part:
        append.done(told)


def _decoded(error: bytes) -> Told:
    try:
        return decode_error(error)
    except (msgspec.MsgspecError, TypeError):
        return NotSent()  # by itself it is told again
