"""Exactly-once writes: the results of requests whose answers their clients may still ask for.

A result is recorded when its write is applied, travels in the same log entry, and is part of every
prologue until the client says (by ``first_incomplete``) that it has the answer. After RIFL
(Lee et al., SOSP 2015), without its leases: a client silent for the expiry time is forgotten.

Clients that make one call each (`stelae.core.ids.keyed_client`: an Idempotency-Key over HTTP) never
say that they have the answer. They are kept apart, so that many of them keep no other client out;
where there are more than `MAX_KEYS`, those that were heard of `KEY_LEAST_S` ago are forgotten
before the expiry time. A result in a prologue takes some 50 bytes, so that all of them take an
eighth of a segment of 8 MiB.

Clients that number their requests over HTTP (`stelae.core.ids.gateway_client`) are kept apart in
the same way: anybody with a token may call himself by any number of names. Where there are more
than `MAX_GATEWAY_CLIENTS`, those that were heard of `GATEWAY_LEAST_S` ago are forgotten before the
expiry time.

Nor do tasks that write pieces of the rows of jobs and of streams (`stelae.core.ids.job_client`,
`stream_client`), and what they write may come again long after it was done: a task is run again
from its beginning. They are kept apart as well, each with its last result, in some 80 bytes.

- Of a job nobody hears when it is over: a piece is forgotten after the expiry time, or where there
  are more than `MAX_PIECES` once it is older than `PIECE_LEAST_S`, which is longer than a task
  tries to have one call carried out.
- Of a stream a batch is begun only once those before it are written and noted. So the first request
  of a batch has a tablet forget, of the same **series**, what was of batches before; and one of a
  batch before that comes late, as from a task that is thought to be dead, is refused, also if it
  was never carried out: others have written its batch. As little is kept, it is kept for as long as
  a stream may stand still: only where pieces of streams are too many the oldest are forgotten.

Invariants: of a series all that is kept is of one batch, the latest that was recorded or restored
while any of it was kept; restoring is idempotent and free of order; memory is bounded, and what is
over the bound is refused before it is done; what is not committed is never forgotten, unless the
client has said that it has the answer, by a later request. Clients are kept in the order in which
they were last heard of, for which the times given must not fall. What is forgotten follows from
what was recorded and the times given, and is the same on all replicas.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import msgspec

from stelae.core.errors import InvalidArgument, Overloaded, StaleRequest
from stelae.core.ids import RequestId, is_job, is_keyed, is_of_gateway, series_of
from stelae.storage.entries.entry import Result, result_of

MAX_CLIENTS = 10_000
MAX_KEYS = 20_000
"""And as many results of them: a stream has several under its key."""
MAX_RESULTS = 50_000
MAX_RESULTS_PER_CLIENT = 1_000
KEY_LEAST_S = 60.0
"""So long a key is remembered however many there are."""
MAX_GATEWAY_CLIENTS = 5_000
MAX_GATEWAY_RESULTS = 10_000
GATEWAY_LEAST_S = 150.0
"""Seconds that a client over HTTP is remembered, however many there are: it repeats a call for a
shorter time."""
MAX_PIECES = 10_000
"""Of jobs, and of streams; and as many results of them."""
PIECE_LEAST_S = 150.0
"""So long a piece is remembered however many there are."""
AT_ONCE = 16
"""Where keys are too many, such a part of them is forgotten together."""
TOO_MANY_WRITERS = "what a tablet remembers of its writers (each client, for an hour)"
TOO_MANY_RESULTS = "the unacknowledged results of a tablet's clients"
TOO_MANY_KEYS = (
    "what a tablet remembers of the last minute's Idempotency-Keys (many rows may go under one key)"
)
TOO_MANY_OF_GATEWAY = "what a tablet remembers of the clients that write over HTTP"
TOO_MANY_PIECES = "what a tablet remembers of the pieces that jobs wrote in the last minutes"
TOO_MANY_OF_STREAMS = "what a tablet remembers of the pieces that streams wrote in the last minutes"


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


class _Bounds(NamedTuple):
    """Of one kind of clients. Those that are too many are forgotten after ``least_s``; 0: never."""

    clients: int
    results: int
    too_many_clients: str
    too_many_results: str
    least_s: float = 0.0


@dataclass(slots=True)
class _Kind:
    """Clients that are kept for themselves, in the order in which they were last heard of."""

    clients: dict[str, _Client] = field(default_factory=dict)
    count: int = 0
    """Their results."""

    def bounds(self) -> _Bounds:
        return _Bounds(MAX_CLIENTS, MAX_RESULTS, TOO_MANY_WRITERS, TOO_MANY_RESULTS)

    def left_s(self, now_s: float | None) -> float:
        """Until the oldest may be forgotten, where they are too many; 0: that is not known."""
        least_s = self.bounds().least_s
        if now_s is None or not least_s or not self.clients:
            return 0.0
        oldest = next(iter(self.clients.values()))
        return max(oldest.last_seen_s + least_s - now_s, 0.0)

    def check_batch(self, client_id: str) -> int:
        """How many clients are over once this one is heard. Raises InvalidArgument: it is."""
        del client_id
        return 0

    def drop(self, client_id: str) -> None:
        self.count -= len(self.clients.pop(client_id).results)

    def forget_below(self, client: _Client, first_incomplete: int) -> None:
        if first_incomplete <= client.first_incomplete:
            return
        client.first_incomplete = first_incomplete
        old = [sequence for sequence in client.results if sequence < first_incomplete]
        for sequence in old:
            del client.results[sequence]
        self.count -= len(old)

    def forget(self, time_s: float, committed_index: int, most: int | None = None) -> int:
        """The oldest, if they were not heard of since then, and all that they did is committed."""
        silent = []
        for name, client in itertools.islice(self.clients.items(), most):
            if client.last_seen_s >= time_s:
                break
            if any(found.index > committed_index for found in client.results.values()):
                break
            silent.append(name)
        for name in silent:
            self.drop(name)
        return len(silent)

    def forget_silent(self, time_s: float, committed_index: int) -> int:
        """Those that were not heard of since then."""
        return self.forget(time_s, committed_index)

    def forget_oldest(self, now_s: float, committed_index: int) -> int:
        """If they are too many, some that are old enough."""
        bounds = self.bounds()
        left = self.count - bounds.clients
        if left < 0 or not bounds.least_s:
            return 0
        most = left + bounds.clients // AT_ONCE + 1
        return self.forget(now_s - bounds.least_s, committed_index, most)


class _Keyed(_Kind):
    """Clients of one call each."""

    __slots__ = ()

    def bounds(self) -> _Bounds:
        return _Bounds(MAX_KEYS, MAX_KEYS, TOO_MANY_KEYS, TOO_MANY_KEYS, KEY_LEAST_S)


class _Gateway(_Kind):
    """Clients over HTTP."""

    __slots__ = ()

    def bounds(self) -> _Bounds:
        return _Bounds(
            *(MAX_GATEWAY_CLIENTS, MAX_GATEWAY_RESULTS),
            *(TOO_MANY_OF_GATEWAY, TOO_MANY_OF_GATEWAY),
            GATEWAY_LEAST_S,
        )


class _Jobs(_Kind):
    """Pieces of jobs."""

    __slots__ = ()

    def bounds(self) -> _Bounds:
        return _Bounds(MAX_PIECES, MAX_PIECES, TOO_MANY_PIECES, TOO_MANY_PIECES, PIECE_LEAST_S)


@dataclass(slots=True)
class _Series:
    """What is kept of a series is of one batch."""

    batch: int
    clients: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class _Streams(_Kind):
    """Pieces of streams."""

    series: dict[str, _Series] = field(default_factory=dict)

    def bounds(self) -> _Bounds:
        too_many = TOO_MANY_OF_STREAMS
        return _Bounds(MAX_PIECES, MAX_PIECES, too_many, too_many, PIECE_LEAST_S)

    def forget_silent(self, time_s: float, committed_index: int) -> int:
        """A stream may stand still."""
        del time_s, committed_index
        return 0

    def check_batch(self, client_id: str) -> int:
        name, batch = _series_of(client_id)
        known = self.series.get(name)
        if known is None or batch == known.batch:
            return 0
        if batch < known.batch:
            raise InvalidArgument(
                f"batch {batch} of stream {name} is over: batch {known.batch} was begun since"
            )
        return len(known.clients)

    def begin(self, client_id: str) -> bool:
        """This one is heard: what is of a batch before is forgotten. False: it is itself."""
        name, batch = _series_of(client_id)
        known = self.series.get(name)
        if known is not None and batch < known.batch:
            return False
        if known is None or batch > known.batch:
            for each in [] if known is None else [*known.clients]:
                self.drop(each)
            known = self.series[name] = _Series(batch)
        known.clients[client_id] = None
        return True

    def drop(self, client_id: str) -> None:
        _Kind.drop(self, client_id)
        name, _ = _series_of(client_id)
        del self.series[name].clients[client_id]
        if not self.series[name].clients:
            del self.series[name]


def _series_of(client_id: str) -> tuple[str, int]:
    found = series_of(client_id)
    assert found is not None, "a stream's"
    return found


class ClientResults:
    """The results one tablet keeps, by client and sequence."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._numbering, self._keyed, self._gateway = _Kind(), _Keyed(), _Gateway()
        self._jobs, self._streams = _Jobs(), _Streams()
        self._kinds = (self._numbering, self._keyed, self._gateway, self._jobs, self._streams)

    def _kind(self, client_id: str) -> _Kind:
        if is_keyed(client_id):
            return self._keyed
        if is_of_gateway(client_id):
            return self._gateway
        if is_job(client_id):
            return self._jobs
        return self._numbering if series_of(client_id) is None else self._streams

    def _all(self) -> Iterator[tuple[str, _Client]]:
        return itertools.chain.from_iterable(kind.clients.items() for kind in self._kinds)

    def __len__(self) -> int:
        return sum([kind.count for kind in self._kinds])

    def check(self, request: RequestId, now_s: float | None = None) -> Recorded | None:
        """The earlier result of this very request, or None if it is new and may be carried out.

        Raises:
            StaleRequest: the client has said already that it has the answer.
            InvalidArgument: it is of a batch that is over.
            Overloaded: no room for one more result; nothing was done. With ``now_s`` it tells,
                where the oldest of its kind make way, when that may be.
        """
        kind = self._kind(request.client_id)
        bounds = kind.bounds()
        client = kind.clients.get(request.client_id)
        over = 0
        if client is None:
            over = kind.check_batch(request.client_id)
            if len(kind.clients) - over >= bounds.clients:
                left_s = kind.left_s(now_s)
                raise Overloaded(bounds.too_many_clients, bounds.clients, left_s)
        else:
            found = client.results.get(request.sequence)
            if found is not None:
                return found
            if request.sequence < client.first_incomplete:
                raise StaleRequest(request.client_id, request.sequence, client.first_incomplete)
            if len(client.results) >= MAX_RESULTS_PER_CLIENT:
                kind.forget_below(client, request.first_incomplete)
                if len(client.results) >= MAX_RESULTS_PER_CLIENT:
                    raise Overloaded("a client's unacknowledged results", MAX_RESULTS_PER_CLIENT)
        if kind.count - over >= bounds.results:
            raise Overloaded(bounds.too_many_results, bounds.results, kind.left_s(now_s))
        return None

    def are_new(self, requests: Sequence[RequestId]) -> bool:
        """Whether `check` would let each of them be carried out, whatever becomes of the others."""
        others = len(requests) - 1
        if any([series_of(request.client_id) is not None for request in requests]):
            return False  # of these one may end another; they send many rows, each for itself
        incomplete: dict[str, int] = {}
        for request in requests:
            told = incomplete.get(request.client_id, 0)
            incomplete[request.client_id] = max(told, request.first_incomplete)
        for request in requests:
            name, sequence = request.client_id, request.sequence
            kind = self._kind(name)
            bounds = kind.bounds()
            if sequence < incomplete[name] or kind.count + others >= bounds.results:
                return False
            client = kind.clients.get(name)
            if client is None:
                if len(kind.clients) + others >= bounds.clients:
                    return False
                continue
            if sequence in client.results or sequence < client.first_incomplete:
                return False
            if len(client.results) + others >= MAX_RESULTS_PER_CLIENT:
                return False
        return len({(request.client_id, request.sequence) for request in requests}) == others + 1

    def find(self, request: RequestId) -> Recorded | None:
        """The earlier result of this very request, if there is one; changes nothing."""
        client = self._kind(request.client_id).clients.get(request.client_id)
        return None if client is None else client.results.get(request.sequence)

    def record(self, request: RequestId, outcome: bytes, index: int, now_s: float) -> Result:
        """Keep what ``request`` came to; the result returned goes into log entry ``index``."""
        result = result_of(request, outcome)
        self._add(Recorded(result, index), now_s)
        return result

    def _add(self, recorded: Recorded, now_s: float) -> None:
        result = recorded.result
        kind = self._kind(result.client_id)
        if kind is self._streams and not self._streams.begin(result.client_id):
            return
        client = kind.clients.pop(result.client_id, None)
        if client is None:
            client = _Client(result.first_incomplete, now_s)
        kind.clients[result.client_id] = client  # last in order
        client.last_seen_s = now_s
        kind.forget_below(client, result.first_incomplete)
        if result.sequence >= client.first_incomplete:
            if result.sequence not in client.results:
                kind.count += 1
            client.results[result.sequence] = recorded

    def forget_before(self, time_s: float, now_s: float, committed_index: int) -> int:
        """Forget clients not heard of since ``time_s``, and keys and pieces that are too many now
        (``now_s``), but none with a result that is not committed; return how many. Costs nothing
        for none."""
        count = sum([kind.forget_silent(time_s, committed_index) for kind in self._kinds])
        return count + sum([kind.forget_oldest(now_s, committed_index) for kind in self._kinds])

    def records(self) -> tuple[ClientRecord, ...]:
        """Everything that is kept, in order, for `load`."""
        return tuple(
            ClientRecord(
                name,
                client.first_incomplete,
                client.last_seen_s,
                tuple([(n, found.result.outcome) for n, found in client.results.items()]),
            )
            for name, client in self._all()
        )

    def load(self, records: Iterable[ClientRecord]) -> None:
        """Become what ``records`` says; results count as committed (index 0)."""
        self._begin()
        for record in records:
            client = _Client(record.first_incomplete, record.last_seen_s)
            for sequence, outcome in record.results:
                result = Result(record.client_id, sequence, record.first_incomplete, outcome)
                client.results[sequence] = Recorded(result, 0)
            kind = self._kind(record.client_id)
            if kind is self._streams:
                self._streams.begin(record.client_id)
            kind.clients[record.client_id] = client
            kind.count += len(client.results)

    def snapshot(self) -> tuple[Result, ...]:
        """All results kept, ordered by client and sequence: for the prologue of the next head.

        A client without kept results is given by an empty result below its ``first_incomplete``.
        """
        found = []
        for name, client in sorted(self._all(), key=itemgetter(0)):
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
