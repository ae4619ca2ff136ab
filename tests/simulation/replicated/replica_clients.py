"""Clients of tables with ``replicas(n)``: every operation there is, and reads of bounded age.

Linearizable operations go into the history, as those of the ``tables`` scenario. Reads that may be
a little old are kept apart, and judged by what was known to be there that long before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from stelae.client.database import AsyncDatabase
from stelae.client.table.table import AsyncTable
from stelae.core.errors import (
    OutcomeUnknown,
    Rejected,
    RetryElsewhere,
    RetryLater,
    RowExists,
    RowNotFound,
    StelaeError,
    TooStale,
    VersionMismatch,
)
from stelae.simulation.history import History, Operation
from stelae.simulation.world.world import World
from tests.simulation.tables import tables

MARGIN = 1.01
"""Clocks of servers differ, and who proves an age does it by one of them."""
FAULTS_S = 12.0
STALENESS_S = (0.05, 0.5, 2.0)


@dataclass(frozen=True, slots=True)
class OldRead:
    """What a read with ``max_staleness`` found of one key; times are the world's."""

    client: str
    key: str
    allowed_s: float
    began_s: float
    ended_s: float
    value: str | None
    version: int | None


class OldReads:
    """All of them, and what they are held to."""

    def __init__(self) -> None:
        self.reads: list[OldRead] = []
        self.refused = 0

    def judge(self, history: History) -> None:
        """Raise AssertionError if a read shows less than was acknowledged before its bound."""
        of_key: dict[str, list[Operation]] = {}
        for operation in history.operations:
            of_key.setdefault(operation.key, []).append(operation)
        for read in self.reads:
            self._judge(read, of_key.get(read.key, []))

    def _judge(self, read: OldRead, operations: list[Operation]) -> None:
        if read.value is not None:
            writers = [o for o in operations if o.kind == "write" and o.value == read.value]
            assert writers, f"nobody wrote what this read found: {read}"
            told = writers[0].version
            assert writers[0].outcome != "failed", f"{read} found {writers[0]}"
            assert told is None or told == read.version, f"{read} is not of {writers[0]}"
            assert writers[0].invoked_s <= read.ended_s, f"{read} is older than {writers[0]}"
        known_s = read.began_s - read.allowed_s * MARGIN
        known = [
            operation
            for operation in operations
            if operation.outcome == "ok"
            and operation.version is not None
            and operation.returned_s is not None
            and operation.returned_s <= known_s
        ]
        newest = max(known, key=lambda operation: operation.version or 0, default=None)
        if newest is None:
            return
        floor = newest.version or 0
        if read.version is not None:
            enough = read.version > floor or (read.version == floor and newest.kind != "delete")
            assert enough, f"too old: {read} does not show {newest}"
        elif newest.kind != "delete":
            gone = any(
                operation.kind == "delete"
                and operation.outcome != "failed"
                and operation.invoked_s <= read.ended_s
                and (operation.version is None or operation.version > floor)
                for operation in operations
            )
            assert gone, f"too old: {read} does not show {newest}, which nobody deleted"


class Client(tables.Client):
    """One client. What refuses an operation must be a reason that there can be for it."""

    faults_s = FAULTS_S

    def __init__(
        self, name: str, world: World, database: AsyncDatabase, history: History, rng: random.Random
    ) -> None:
        super().__init__(name, world, database, history, rng)
        self.old = OldReads()

    async def _one(self, table: AsyncTable) -> None:
        work = self._world.options.workload
        writes = [
            (self._write, work.write_share / 2),
            (self._insert, work.write_share / 4),
            (self._update, work.write_share / 4),
            (self._write_many, 0.1),
            (self._delete, work.delete_share / 2),
            (self._delete_if, work.delete_share / 2),
            (self._burst, 0.1),
        ]
        reads = [
            (self._read, work.read_share),
            (self._read_old, work.read_share / 2),
            (self._read_many, 0.05),
            (self._read_many_old, 0.03),
        ]
        kinds = reads if self.only_reads else [*writes, *reads]
        shares = [share for _, share in kinds]
        await self._rng.choices([kind for kind, _ in kinds], shares)[0](table)

    async def _insert(self, table: AsyncTable) -> None:
        key, value = self._key(), self._value()
        operation = self._history.begin(self.name, "write", str(key), value)
        try:
            versions = await table.insert(self.row(table, key, value), timeout=self.timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._seen[key] = int(versions[0])
            self._history.ok(operation, version=int(versions[0]))

    async def _update(self, table: AsyncTable) -> None:
        key, value = self._key(), self._value()
        expected = self._seen.get(key) if self._rng.random() < 0.3 else None
        operation = self._history.begin(self.name, "write", str(key), value, expected=expected)
        row = {"id": key, "value": value}
        try:
            versions = await table.update(row, if_version=expected, timeout=self.timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._seen[key] = int(versions[0])
            self._history.ok(operation, version=int(versions[0]))

    async def _delete_if(self, table: AsyncTable) -> None:
        key = self._key()
        expected = self._seen.get(key)
        operation = self._history.begin(self.name, "delete", str(key), expected=expected)
        try:
            versions = await table.delete(key, if_version=expected, timeout=self.timeout_s)
        except StelaeError as error:
            self._failed(operation, error)
        else:
            self._history.ok(operation, version=int(versions[0]))

    async def _read_old(self, table: AsyncTable) -> None:
        key, allowed_s = self._key(), self._rng.choice(STALENESS_S)
        began_s = self._world.loop.time()
        try:
            row = await table.get(
                key, with_version=True, max_staleness=allowed_s, timeout=self.timeout_s
            )
        except StelaeError as error:
            self._refused(error)
            return
        value = None if row is None else self.value(table, row)
        version = None if row is None else row["_version"]
        self._keep(str(key), allowed_s, began_s, value, version)

    async def _read_many_old(self, table: AsyncTable) -> None:
        keys, allowed_s = range(self._world.options.workload.keys), self._rng.choice(STALENESS_S)
        began_s, timeout_s = self._world.loop.time(), self.timeout_s
        try:
            if self._rng.random() < 0.5:
                found = await table.scan(
                    with_versions=True, max_staleness=allowed_s, timeout=timeout_s
                )
            else:
                found = await table.get_many(
                    list(keys), with_versions=True, max_staleness=allowed_s, timeout=timeout_s
                )
        except StelaeError as error:
            self._refused(error)
            return
        rows = {row["id"]: row for row in found.to_pylist()}
        assert len(rows) == found.num_rows, "a key came twice"
        for key in keys:
            row = rows.get(key)
            value = None if row is None else self.value(table, row)
            version = None if row is None else row["_version"]
            self._keep(str(key), allowed_s, began_s, value, version)

    def _keep(
        self, key: str, allowed_s: float, began_s: float, value: str | None, version: int | None
    ) -> None:
        ended_s = self._world.loop.time()
        self.old.reads.append(OldRead(self.name, key, allowed_s, began_s, ended_s, value, version))

    def _refused(self, error: StelaeError) -> None:
        expected = isinstance(error, TooStale | RetryElsewhere | RetryLater | OutcomeUnknown)
        assert expected, f"unexpected: {error!r}"
        self.old.refused += 1

    def _failed(self, operation: Operation, error: StelaeError) -> None:
        if isinstance(error, Rejected):
            fits = operation.kind != "read" and isinstance(
                error, RowExists | RowNotFound | VersionMismatch
            )
            assert fits, f"unexpected: {error!r} for {operation}"
        super()._failed(operation, error)
