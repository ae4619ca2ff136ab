"""Writers that go on while servers are killed, and the check that nothing of theirs is lost.

A `Ledger` has what the table must hold: every row as it was last acknowledged, with its version. A
write that failed without a clear outcome may stand or not; its row must then be one of the two.
`check_table` compares a ledger with what a scan returns, whole rows, versions included.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stelae.client.table.table import AsyncTable
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.schema.schema import VERSION_COLUMN

LOADS_IN_FLIGHT = 3
LOAD_BATCH_BYTES = 8 << 20
HOT_ROWS = 4000
"""Rows that writers overwrite again and again; every fourth write makes a new row instead."""
WRITE_TIMEOUT_S = 60.0
NAMED_PROBLEMS = 5

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """One write that was acknowledged."""

    at: float
    """Wall clock, seconds."""
    latency_s: float
    writer: int


@dataclass
class Ledger:
    """What one table must hold."""

    rows: pa.Table
    """As loaded, in the order of ``versions``."""
    versions: NDArray[np.uint64]
    key: tuple[str, ...]
    written: dict[Any, tuple[dict[str, Any], int]] = field(default_factory=dict)
    """Key → (row, version) of the last acknowledged write after the load."""
    unsure: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)
    """Key → rows of writes whose outcome nobody knows."""

    def expected(self) -> pa.Table:
        """All rows whose content is certain, with their versions."""
        loaded = self.rows.append_column(VERSION_COLUMN, pa.array(self.versions))
        if not self.written and not self.unsure:
            return loaded
        (key,) = self.key
        changed = pa.array([*self.written, *self.unsure], loaded.schema.field(key).type)
        kept = loaded.filter(pc.invert(pc.is_in(loaded[key], changed)))
        certain = [
            {**row, VERSION_COLUMN: version}
            for name, (row, version) in self.written.items()
            if name not in self.unsure
        ]
        return pa.concat_tables([kept, pa.Table.from_pylist(certain, loaded.schema)])


@dataclass
class Checked:
    """What a check of one table found."""

    rows: int
    missing: int = 0
    wrong: int = 0
    extra: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not (self.missing or self.wrong or self.extra)


async def load_table(table: AsyncTable, rows: pa.Table, progress: Progress) -> Ledger:
    """Upsert all rows, a few calls at a time; every one is durable when this returns."""
    versions = np.zeros(rows.num_rows, np.uint64)
    turns = asyncio.Semaphore(LOADS_IN_FLIGHT)
    step = max(1, LOAD_BATCH_BYTES * rows.num_rows // max(1, rows.nbytes))

    async def load(start: int) -> None:
        part = rows.slice(start, step)
        async with turns:
            versions[start : start + part.num_rows] = await table.upsert(part, timeout=300.0)
        progress(part.num_rows)

    async with asyncio.TaskGroup() as group:
        for start in range(0, rows.num_rows, step):
            group.create_task(load(start))
    return Ledger(rows.cast(table.schema), versions, table.key)


class Writers:
    """Tasks that each write one row after another, and never two of them the same row."""

    def __init__(self, table: AsyncTable, ledger: Ledger, column: str, *, count: int) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.failures: list[str] = []
        self.count = count
        self._table = table
        self._ledger = ledger
        self._column = column
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._hot = ledger.rows.slice(0, HOT_ROWS).to_pylist()
        self._first_new = ledger.rows.num_rows + len(ledger.written) + len(ledger.unsure)

    async def start(self) -> None:
        """Begin to write."""
        self._tasks = [asyncio.create_task(self._write(n)) for n in range(self.count)]

    async def stop(self) -> None:
        """Let every write under way come to its end."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def _rows(self, writer: int) -> Iterator[dict[str, Any]]:
        """Rows to write, each with a value that no other write of this key has."""
        (key,) = self._ledger.key
        dice = random.Random(writer)
        mine = self._hot[writer :: self.count]
        number = 0
        while True:
            number += 1
            row = dict(mine[dice.randrange(len(mine))]) if mine else dict(self._hot[0])
            if number % 4 == 0 or not mine:
                row[key] = self._first_new + writer + self.count * number
            row[self._column] = writer + self.count * number
            yield row

    async def _write(self, writer: int) -> None:
        (key,) = self._ledger.key
        for row in self._rows(writer):
            if self._stopping:
                return
            began = time.perf_counter()
            try:
                (version,) = await self._table.upsert(row, timeout=WRITE_TIMEOUT_S)
            except OutcomeUnknown as error:
                self._ledger.unsure.setdefault(row[key], []).append(row)
                self.failures.append(str(error))
            except StelaeError as error:
                self.failures.append(str(error))
            else:
                latency_s = time.perf_counter() - began
                self._ledger.written[row[key]] = (row, int(version))
                self.acknowledged.append(Acknowledged(time.time(), latency_s, writer))

    def pauses_s(self, since: float, until: float) -> list[float]:
        """Of each writer: the longest time between two acknowledgements that touches a span of
        the clock; the whole span where there are none."""
        longest = []
        for writer in range(self.count):
            times = np.array([a.at for a in self.acknowledged if a.writer == writer])
            touching = np.diff(times)[(times[1:] > since) & (times[:-1] < until)]
            longest.append(float(touching.max()) if len(touching) else until - since)
        return longest


async def check_table(table: AsyncTable, ledger: Ledger) -> Checked:
    """Compare all that a scan returns with what the ledger says."""
    expected = ledger.expected()
    found = (await table.scan(with_versions=True)).select(expected.schema.names)
    checked = Checked(rows=expected.num_rows + len(ledger.unsure))
    if ledger.unsure:
        found = _check_unsure(found, ledger, checked)
    order = [(name, "ascending") for name in ledger.key]
    if _same_rows(found.sort_by(order), expected.sort_by(order)):
        return checked
    return _differences(found, expected, ledger.key, checked)


def _same_rows(one: pa.Table, other: pa.Table) -> bool:
    return one.num_rows == other.num_rows and all(
        one[name].combine_chunks().equals(other[name].combine_chunks()) for name in one.schema.names
    )


def _check_unsure(found: pa.Table, ledger: Ledger, checked: Checked) -> pa.Table:
    """Rows whose last write may stand or not: one of the two. Returns the other rows."""
    (key,) = ledger.key
    is_unsure = pc.is_in(found[key], pa.array([*ledger.unsure], found.schema.field(key).type))
    present = {row[key]: row for row in found.filter(is_unsure).to_pylist()}
    loaded = {
        row[key]: row
        for row in ledger.rows.filter(
            pc.is_in(ledger.rows[key], pa.array([*ledger.unsure], found.schema.field(key).type))
        ).to_pylist()
    }
    for name, attempts in ledger.unsure.items():
        row = present.get(name)
        before = ledger.written.get(name, (loaded.get(name), 0))[0]
        if row is not None:
            del row[VERSION_COLUMN]
        if row != before and row not in attempts:
            checked.wrong += 1
            checked.problems.append(f"key {name}: {row} is none of the rows that were written")
    return found.filter(pc.invert(is_unsure))


def _differences(
    found: pa.Table, expected: pa.Table, key: tuple[str, ...], checked: Checked
) -> Checked:
    """Count, and name some of, the rows that are missing, wrong or nobody's."""
    names = list(key)
    missing = expected.select(names).join(found.select(names), names, join_type="left anti")
    extra = found.select(names).join(expected.select(names), names, join_type="left anti")
    pairs = expected.join(found, names, join_type="inner", right_suffix="__found")
    wrong = np.zeros(pairs.num_rows, bool)
    for name in expected.schema.names:
        if name not in key:
            one, other = pairs[name], pairs[f"{name}__found"]
            same = pc.fill_null(pc.equal(one, other), False)
            both_null = pc.and_(pc.is_null(one), pc.is_null(other))
            wrong |= ~np.asarray(pc.or_(same, both_null))
    checked.missing += missing.num_rows
    checked.extra += extra.num_rows
    checked.wrong += int(wrong.sum())
    described = {"missing": missing, "extra": extra, "wrong": pairs.filter(pa.array(wrong))}
    for what, rows in described.items():
        for row in rows.slice(0, NAMED_PROBLEMS).to_pylist():
            checked.problems.append(f"{what}: {row}")
    return checked
