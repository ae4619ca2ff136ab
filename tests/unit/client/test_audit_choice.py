"""Which rows of the audit log are asked for, and which go, against the plain way to find them."""

from __future__ import annotations

import datetime
import random

import pyarrow as pa
import pytest

from stelae.client.audit import _doomed, _newest
from stelae.core.schema.audit import AUDIT_SCHEMA

BEGIN = datetime.datetime(2026, 12, 1, tzinfo=datetime.UTC)
COLUMNS = [AUDIT_SCHEMA.field(name) for name in ("time", "id", "outcome")]


def at(number: int) -> datetime.datetime:
    return BEGIN + datetime.timedelta(seconds=number)


def log_of(rows: list[tuple[int, str]], chunks: int = 1, outcome: str = "done") -> pa.Table:
    """A table as a scan returns it, in several pieces."""
    schema = pa.schema(COLUMNS)
    parts = [
        pa.table(
            {
                "time": [at(n) for n, _ in part],
                "id": [i for _, i in part],
                "outcome": [outcome] * len(part),
            },
            schema,
        )
        for part in (rows[start::chunks] for start in range(chunks))
    ]
    return pa.concat_tables(parts)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_newest_and_what_goes_is_found_by_time_and_then_id(seed: int) -> None:
    """Many calls of one moment come in pages, none twice and none left out; the oldest go."""
    dice = random.Random(seed)
    rows = [(dice.randrange(5), f"{n:03x}") for n in range(dice.randrange(60))]
    dice.shuffle(rows)
    found, placed = log_of(rows, 3), sorted(rows)
    pages: list[str] = []
    edge = None
    while page := sorted(_newest(found, edge, 7), key=lambda i: placed.index(at_id(placed, i))):
        pages = page + pages
        edge = (at(at_id(placed, page[0])[0]), page[0])
        assert len(pages) <= len(rows), "a row comes twice"
    assert pages == [i for _, i in placed]
    count, oldest = dice.randrange(60), dice.randrange(6)
    kept = [row for row in placed if row[0] >= oldest][-count:] if count else []
    gone = [i for n, i in placed if (n, i) not in kept]
    assert _doomed(found, at(oldest), count).to_pylist() == gone


def at_id(rows: list[tuple[int, str]], entry_id: str) -> tuple[int, str]:
    return next(row for row in rows if row[1] == entry_id)


@pytest.mark.parametrize(
    ("done", "refused", "kept_done", "kept_refused"),
    [(50, 900, 50, 20), (90, 900, 80, 20), (500, 7, 93, 7), (500, 0, 100, 0), (0, 900, 0, 20)],
)
def test_refused_requests_displace_only_each_other(
    done: int, refused: int, kept_done: int, kept_refused: int
) -> None:
    """Of 100 rows they have 20 at most, however many and however new they are: nobody makes what
    was done go by asking for what he may not do. The newest of each kind stay."""
    of_done = [(n, f"d{n:03}") for n in range(done)]
    of_refused = [(1000 + n, f"r{n:03}") for n in range(refused)]
    found = pa.concat_tables([log_of(of_refused, 2, "refused"), log_of(of_done, 2)])
    gone = of_done[: done - kept_done] + of_refused[: refused - kept_refused]
    assert _doomed(found, BEGIN, 100).to_pylist() == [i for _, i in gone]
