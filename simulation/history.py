"""What clients did and saw, in one order: the input of `checkers`.

An operation has one of three outcomes: ``ok`` (done, as answered), ``failed`` (surely not done),
and ``unknown`` (done or not, now or later). Real time is the order in which invocations and returns
were recorded, which is exact within one process, simulated or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["write", "delete", "read"]
Outcome = Literal["pending", "ok", "failed", "unknown"]


@dataclass(slots=True)
class Operation:
    """One operation on one key. ``invoked`` and ``returned`` are places in the common order.

    ``version``: of a write or delete, the version it made; of a read, that of the row seen. None if
    it was not told, as for absent rows. ``value``: written or read; None for a delete or an absent
    row. Values written to a key must be unique. ``expected``: the version that a conditional write
    asked for.
    """

    number: int
    client: str
    kind: Kind
    key: str
    value: str | None
    invoked: int
    invoked_s: float
    expected: int | None = None
    outcome: Outcome = "pending"
    version: int | None = None
    returned: int | None = None
    returned_s: float | None = None

    def __str__(self) -> str:
        end = "…" if self.returned_s is None else f"{self.returned_s:.6f}"
        condition = "" if self.expected is None else f" if version {self.expected}"
        return (
            f"[{self.invoked_s:.6f}, {end}] {self.client} {self.kind} {self.key}{condition}: "
            f"{self.outcome}, version {self.version}, value {self.value!r}"
        )


class History:
    """Records operations. ``time`` is for people; order comes from a counter."""

    def __init__(self, time: Callable[[], float]) -> None:
        self.operations: list[Operation] = []
        self._time = time
        self._order = itertools.count(1)

    def begin(
        self,
        client: str,
        kind: Kind,
        key: str,
        value: str | None = None,
        *,
        expected: int | None = None,
    ) -> Operation:
        """Record an invocation, just before the call."""
        operation = Operation(
            number=len(self.operations),
            client=client,
            kind=kind,
            key=key,
            value=value,
            invoked=next(self._order),
            invoked_s=self._time(),
            expected=expected,
        )
        self.operations.append(operation)
        return operation

    def ok(
        self, operation: Operation, *, version: int | None = None, value: str | None = None
    ) -> None:
        """Record an answer; ``value`` is what a read found, None if the row is absent."""
        if operation.kind == "read":
            operation.value = value
        operation.version = version
        self._end(operation, "ok")

    def failed(self, operation: Operation) -> None:
        """Record that the operation was surely not done, and never will be."""
        self._end(operation, "failed")

    def unknown(self, operation: Operation) -> None:
        """Record that nobody can tell."""
        self._end(operation, "unknown")

    def count(self, outcome: Outcome) -> int:
        return sum(operation.outcome == outcome for operation in self.operations)

    def _end(self, operation: Operation, outcome: Outcome) -> None:
        assert operation.outcome == "pending", f"ended twice: {operation}"
        operation.outcome = outcome
        operation.returned = next(self._order)
        operation.returned_s = self._time()
