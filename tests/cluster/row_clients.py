"""Clients that each own some rows of a table, and what is found of them in the end.

Each client has rows that nobody else writes, and knows of each whether it is there, with which
content and in which version. Every write of a row that is there, and every delete, is bound to that
version, and every other one is an insert: a write that was lost or carried out twice makes the
next one of its row fail, at once.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from stelae import Table, errors

WELL_WITHIN_S = 180.0
CALL_TIMEOUT_S = 120.0
TEXT_BYTES = 2000
VALUES = [("text", pa.string()), ("number", pa.int64())]
"""The columns of a client's table beside its key."""


@dataclass
class Held:
    """A row as it must be: None if it is absent."""

    row: dict[str, Any] | None = None
    version: int = 0
    maybe: list[dict[str, Any] | None] = field(default_factory=list)
    """If nobody can tell what became of a write: what it would have made. Not written any more."""

    def allows(self, found: dict[str, Any] | None) -> bool:
        if found is None:
            return self.row is None or None in self.maybe
        row = {name: value for name, value in found.items() if name != "_version"}
        if self.row == row and self.version == found["_version"]:
            return True
        return row in self.maybe


class Client(threading.Thread):
    """Writes, deletes and reads its own rows of one table until it is told to end.

    With ``batch`` above one, most of its calls write so many rows at once.
    """

    def __init__(
        self, table: Table, name: str, keys: Sequence[dict[str, Any]], *, batch: int = 1
    ) -> None:
        super().__init__(name=name)
        self.table = table
        self.keys = list(keys)
        self.held = [Held() for _ in self.keys]
        self.acknowledged: list[float] = []
        """When each of its calls that write was."""
        self.reads: list[tuple[float, float]] = []
        """When each of its reads began, and was answered."""
        self.unknown = 0
        self.failure: BaseException | None = None
        self._batch = batch
        self._text_bytes = TEXT_BYTES if batch == 1 else TEXT_BYTES // 10
        self._rng = random.Random(self.name)
        self._end = threading.Event()
        self._number = 0

    def run(self) -> None:
        try:
            while not self._end.is_set():
                place = self._rng.randrange(len(self.keys))
                held = self.held[place]
                if held.maybe or self._rng.random() < 0.1:
                    self._read(place)
                elif self._batch > 1 and self._rng.random() < 0.8:
                    self._write_batch()
                else:
                    self._write(place)
        except BaseException as error:
            self.failure = error

    def _read(self, place: int) -> None:
        key, held, began = self.keys[place], self.held[place], time.monotonic()
        found = self.table.get(key, with_version=True, timeout=CALL_TIMEOUT_S)
        self.reads.append((began, time.monotonic()))
        assert held.allows(found), f"{key}: found {found}, and it must be {held}"

    def _new(self, place: int) -> dict[str, Any]:
        """A row that no other call writes."""
        self._number += 1
        text = f"{self.name} {self._number} ".ljust(self._text_bytes, ".")
        return {**self.keys[place], "text": text, "number": self._number}

    def _write(self, place: int) -> None:
        key, held = self.keys[place], self.held[place]
        new: dict[str, Any] | None = self._new(place)
        options = {"timeout": CALL_TIMEOUT_S}
        dice = self._rng.random()
        try:
            if held.row is None:
                (version,) = self.table.insert(new, **options)
            elif dice < 0.2:
                new = None
                (version,) = self.table.delete(key, if_version=held.version, **options)
            elif dice < 0.5:
                new = {**held.row, "number": self._number}
                change = {**key, "number": self._number}
                (version,) = self.table.update(change, if_version=held.version, **options)
            else:
                (version,) = self.table.upsert(new, if_version=held.version, **options)
        except errors.OutcomeUnknown:
            held.maybe.append(new)
            self.unknown += 1
            return
        self._note([place], [new], [version])

    def _write_batch(self) -> None:
        """Upsert many rows by one call, each bound to its version, or to its absence."""
        places = [n for n, held in enumerate(self.held) if not held.maybe]
        places = sorted(self._rng.sample(places, min(self._batch, len(places))))
        if not places:
            return
        rows = [self._new(place) for place in places]
        held = [self.held[place] for place in places]
        bound = [0 if each.row is None else each.version for each in held]
        try:
            versions = self.table.upsert(rows, if_version=bound, timeout=CALL_TIMEOUT_S)
        except errors.OutcomeUnknown:
            for each, row in zip(held, rows, strict=True):
                each.maybe.append(row)
            self.unknown += 1
            return
        self._note(places, rows, versions)

    def _note(
        self, places: Sequence[int], rows: Sequence[dict[str, Any] | None], versions: Any
    ) -> None:
        """These were written, and acknowledged."""
        for place, row, version in zip(places, rows, versions, strict=True):
            held = self.held[place]
            text = f"{self.keys[place]}: version {version} after {held.version}"
            assert version > held.version, text
            held.row, held.version = row, int(version)
        self.acknowledged.append(time.monotonic())

    def end(self) -> None:
        self._end.set()
        self.join()

    def longest_pause_s(self, since: float = 0.0) -> float:
        """Between two writes that were acknowledged; the later one not before ``since``."""
        pairs = itertools.pairwise(self.acknowledged)
        return max(later - before for before, later in pairs if later >= since)

    def longest_read_s(self, since: float = 0.0) -> float:
        """Of a single row, answered not before ``since``."""
        return max((at - began for began, at in self.reads if at >= since), default=0.0)


def check_rows(clients: Sequence[Client]) -> int:
    """All that a scan finds is what the table's clients know, and the other way round; how many
    rows there are."""
    (name,) = {client.table.name for client in clients}
    table = clients[0].table
    found = {
        tuple(row[column] for column in table.key): row
        for row in table.scan(with_versions=True, timeout=CALL_TIMEOUT_S).to_pylist()
    }
    for client in clients:
        for key, held in zip(client.keys, client.held, strict=True):
            row = found.pop(tuple(key.values()), None)
            assert held.allows(row), f"{name}, {key}: found {row}, and it must be {held}"
    assert not found, f"{name}: rows of nobody: {list(found)[:5]}"
    return sum(held.row is not None for client in clients for held in client.held)


def check_failures(clients: Sequence[Client]) -> None:
    """No client met an error, or a row that was not as it must be."""
    failures = [f"{client.name}: {client.failure!r}" for client in clients if client.failure]
    assert not failures, failures


def check_by_command(folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document of ``stelae check``. It waits: the last one killed may come late."""
    command = [sys.executable, "-m", "stelae", "check", "--checksums", "--json"]
    done = subprocess.run(
        [*command, "--wait", str(WELL_WITHIN_S), "--cluster", str(folder)],
        capture_output=True,
        text=True,
        timeout=2 * WELL_WITHIN_S,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)
