"""Whether look-ups by value found what they had to, and nothing else; from a history of rows.

A row's group stands before the colon of its value, so the history of writes says which group each
row had when. A look-up *had to* find a row if the row was in one of the wanted groups, the same one
all the time that the look-up took: the newest write that was acknowledged before it began put the
row there, and whatever else may have been carried out on the row by its end did so too. Outcomes
that nobody knows may be carried out at any time, so they demand less, never more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stelae.simulation.history import History, Operation


def group_of(value: str) -> str | None:
    """The group of a row with this value."""
    return value.partition(":")[0] or None


@dataclass
class Found:
    """One look-up and what it found: of each key the value."""

    client: str
    groups: tuple[str | None, ...]
    is_reverse: bool
    invoked: int
    invoked_s: float
    reads: list[Operation] = field(default_factory=list)
    rows: dict[str, str] | None = None
    returned: int = 0

    def __str__(self) -> str:
        return (
            f"find by {self.client} of {self.groups} begun at {self.invoked_s:.6f} "
            f"({self.invoked} to {self.returned}): {self.rows}"
        )


class IndexJudge:
    """Records look-ups beside a history, whose order is theirs too."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._found: list[Found] = []
        self.demanded = 0

    @property
    def finds(self) -> int:
        """That were answered."""
        return sum(found.rows is not None for found in self._found)

    # ---- recording --------------------------------------------------------------------------

    def begin(self, client: str, groups: tuple[str | None, ...], *, is_reverse: bool) -> Found:
        """Record a look-up, just before it."""
        mark = self._history.begin(client, "read", "(find)")
        found = Found(client, groups, is_reverse, mark.invoked, mark.invoked_s, [mark])
        self._found.append(found)
        return found

    def failed(self, found: Found) -> None:
        self._history.failed(found.reads[0])

    def ok(self, found: Found, rows: list[dict[str, Any]]) -> None:
        """Record its answer. Each row found is a read as well; what it read must be right.

        Raises AssertionError for what is wrong at sight.
        """
        self._history.failed(found.reads[0])  # it read no single key
        returned = found.reads[0].returned
        assert returned is not None, "it has just ended"
        found.returned = returned
        keys = [row["id"] for row in rows]
        assert len(set(keys)) == len(keys), f"{found}: a row came twice: {keys}"
        order = [(row["group"] or "", row["id"]) for row in rows]
        assert order == sorted(order, reverse=found.is_reverse), f"{found}: not in order: {order}"
        found.rows = {}
        for row in rows:
            value = row["value"]
            assert row["group"] == group_of(value), f"a row of two writes: {row}"
            assert row["group"] in found.groups, f"{found}: {row} is not of these groups"
            found.rows[str(row["id"])] = value
            self._read(found, row)

    def _read(self, found: Found, row: dict[str, Any]) -> None:
        read = self._history.begin(found.client, "read", str(row["id"]))
        read.invoked, read.invoked_s = found.invoked, found.invoked_s
        self._history.ok(read, version=row["_version"], value=row["value"])

    # ---- judging ----------------------------------------------------------------------------

    def require(self) -> None:
        """Raise AssertionError for a look-up that left a row out."""
        by_key: dict[str, list[Operation]] = {}
        for operation in self._history.operations:
            if operation.kind != "read" and operation.outcome != "failed":
                by_key.setdefault(operation.key, []).append(operation)
        versions = self._versions()
        for found in self._found:
            if found.rows is None:
                continue
            for key, operations in by_key.items():
                newest = _must_have(found, operations, versions)
                if newest is None:
                    continue
                self.demanded += 1
                assert key in found.rows, f"{found}\nleft out key {key}, of {newest}"

    def _versions(self) -> dict[str, int]:
        """Of each value that somebody read or wrote, its version."""
        known: dict[str, int] = {}
        for operation in self._history.operations:
            if operation.outcome == "ok" and operation.version and operation.value:
                known[operation.value] = operation.version
        return known


def _must_have(
    found: Found, operations: list[Operation], versions: dict[str, int]
) -> Operation | None:
    """The write that put a row where the look-up had to find it; None: it need not."""
    newest: Operation | None = None
    for operation in operations:
        if operation.outcome != "ok" or operation.version is None:
            continue
        is_before = (operation.returned or 0) < found.invoked
        if is_before and (newest is None or operation.version > (newest.version or 0)):
            newest = operation
    if newest is None or newest.kind != "write" or newest.value is None:
        return None
    group = group_of(newest.value)
    if group not in found.groups:
        return None
    for operation in operations:
        version = operation.version or versions.get(operation.value or "")
        if operation is newest or operation.invoked > found.returned:
            continue
        if version is not None and version < (newest.version or 0):
            continue
        if operation.kind != "write" or group_of(operation.value or "") != group:
            return None
    return newest
