"""Exactly-once writes: the results of requests whose answers their clients may still ask for.

A result is recorded when its write is applied, travels in the same log entry, and is part of every
prologue until the client says (by ``first_incomplete``) that it has the answer. After RIFL
(Lee et al., SOSP 2015), without its leases: a client silent for the expiry time is forgotten.

Invariants: restoring is idempotent and free of order; memory is bounded, and what is over the
bound is refused before it is done, never forgotten. Clients are kept in the order in which they
were last heard of, for which the times given must not fall.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from stelae.core.errors import Overloaded, StaleRequest
from stelae.core.ids import RequestId
from stelae.storage.entry import Result, result_of

MAX_CLIENTS = 10_000
MAX_RESULTS = 50_000
MAX_RESULTS_PER_CLIENT = 1_000
TOO_MANY_WRITERS = (
    "what a tablet remembers of its writers (each client, and each Idempotency-Key over HTTP, for "
    "an hour; many rows may go under one key)"
)


class Recorded(NamedTuple):
    """A result, and the log index of its entry: answer with it once that index is committed."""

    result: Result
    index: int  # type: ignore[assignment]  # tuple.index is not missed


class ClientRecord(msgspec.Struct, frozen=True, array_like=True):
    """All that is kept of one client: `ClientResults` is determined by these, in order."""

    client_id: str
    first_incomplete: int
    last_seen_s: float
    results: tuple[tuple[int, bytes], ...]
    """(sequence, outcome)"""


@dataclass(slots=True)
class _Client:
    first_incomplete: int
    last_seen_s: float
    results: dict[int, Recorded] = field(default_factory=dict)


class ClientResults:
    """The results one tablet keeps, by client and sequence."""

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def check(self, request: RequestId) -> Recorded | None:
        """The earlier result of this very request, or None if it is new and may be carried out.

        Raises:
            StaleRequest: the client has said already that it has the answer.
            Overloaded: no room for one more result; nothing was done.
        """
        client = self._clients.get(request.client_id)
        if client is None:
            if len(self._clients) >= MAX_CLIENTS:
                raise Overloaded(TOO_MANY_WRITERS, MAX_CLIENTS)
        else:
            found = client.results.get(request.sequence)
            if found is not None:
                return found
            if request.sequence < client.first_incomplete:
                raise StaleRequest(request.client_id, request.sequence, client.first_incomplete)
            if len(client.results) >= MAX_RESULTS_PER_CLIENT:
                self._forget_below(client, request.first_incomplete)
                if len(client.results) >= MAX_RESULTS_PER_CLIENT:
                    raise Overloaded("a client's unacknowledged results", MAX_RESULTS_PER_CLIENT)
        if self._count >= MAX_RESULTS:
            raise Overloaded("the unacknowledged results of a tablet's clients", MAX_RESULTS)
        return None

    def are_new(self, requests: Sequence[RequestId]) -> bool:
        """Whether `check` would let each of them be carried out, whatever becomes of the others."""
        others = len(requests) - 1
        if self._count + others >= MAX_RESULTS:
            return False
        incomplete: dict[str, int] = {}
        for request in requests:
            told = incomplete.get(request.client_id, 0)
            incomplete[request.client_id] = max(told, request.first_incomplete)
        for request in requests:
            name, sequence = request.client_id, request.sequence
            if sequence < incomplete[name]:
                return False
            client = self._clients.get(name)
            if client is None:
                if len(self._clients) + others >= MAX_CLIENTS:
                    return False
                continue
            if sequence in client.results or sequence < client.first_incomplete:
                return False
            if len(client.results) + others >= MAX_RESULTS_PER_CLIENT:
                return False
        return len({(request.client_id, request.sequence) for request in requests}) == others + 1

    def find(self, request: RequestId) -> Recorded | None:
        """The earlier result of this very request, if there is one; changes nothing."""
        client = self._clients.get(request.client_id)
        return None if client is None else client.results.get(request.sequence)

    def record(self, request: RequestId, outcome: bytes, index: int, now_s: float) -> Result:
        """Keep what ``request`` came to; the result returned goes into log entry ``index``."""
        result = result_of(request, outcome)
        self._add(Recorded(result, index), now_s)
        return result

    def _add(self, recorded: Recorded, now_s: float) -> None:
        result = recorded.result
        client = self._clients.pop(result.client_id, None)
        if client is None:
            client = _Client(result.first_incomplete, now_s)
        self._clients[result.client_id] = client  # last in order
        client.last_seen_s = now_s
        if result.first_incomplete > client.first_incomplete:
            self._forget_below(client, result.first_incomplete)
        if result.sequence >= client.first_incomplete:
            if result.sequence not in client.results:
                self._count += 1
            client.results[result.sequence] = recorded

    def _forget_below(self, client: _Client, first_incomplete: int) -> None:
        if first_incomplete <= client.first_incomplete:
            return
        client.first_incomplete = first_incomplete
        old = [sequence for sequence in client.results if sequence < first_incomplete]
        for sequence in old:
            del client.results[sequence]
        self._count -= len(old)

    def expire(self, now_s: float, expiry_s: float) -> int:
        """Forget clients not heard of for ``expiry_s``; return how many."""
        return self.forget_before(now_s - expiry_s)

    def forget_before(self, time_s: float) -> int:
        """Forget clients not heard of since ``time_s``; return how many. Costs nothing for none."""
        silent = []
        for name, client in self._clients.items():
            if client.last_seen_s >= time_s:
                break
            silent.append(name)
        for name in silent:
            self._count -= len(self._clients.pop(name).results)
        return len(silent)

    def records(self) -> tuple[ClientRecord, ...]:
        """Everything that is kept, in order, for `load`."""
        return tuple(
            ClientRecord(
                name,
                client.first_incomplete,
                client.last_seen_s,
                tuple([(n, found.result.outcome) for n, found in client.results.items()]),
            )
            for name, client in self._clients.items()
        )

    def load(self, records: Iterable[ClientRecord]) -> None:
        """Become what ``records`` says; results count as committed (index 0)."""
        self._clients = {}
        self._count = 0
        for record in records:
            client = _Client(record.first_incomplete, record.last_seen_s)
            for sequence, outcome in record.results:
                result = Result(record.client_id, sequence, record.first_incomplete, outcome)
                client.results[sequence] = Recorded(result, 0)
            self._clients[record.client_id] = client
            self._count += len(client.results)

    def snapshot(self) -> tuple[Result, ...]:
        """All results kept, ordered by client and sequence: for the prologue of the next head.

        A client without kept results is given by an empty result below its ``first_incomplete``.
        """
        found = []
        for name in sorted(self._clients):
            client = self._clients[name]
            floor = client.first_incomplete
            if not client.results:
                found.append(Result(name, floor - 1, floor, b""))
            for sequence in sorted(client.results):
                result = client.results[sequence].result
                found.append(Result(name, sequence, floor, result.outcome))
        return tuple(found)

    def restore(self, results: Iterable[Result], now_s: float) -> None:
        """Take in results of a recovered log, in any order, any number of times.

        They count as committed (index 0), and their clients as heard of at ``now_s``.
        """
        for result in results:
            self._add(Recorded(result, 0), now_s)
