"""What a look-up asks for, and which rows answer it."""

from __future__ import annotations

import pyarrow as pa
import pytest

from stelae.client.check.facts import IndexFacts, IndexletFacts, ServerFacts, Severity, StatusFacts
from stelae.client.check.tablets import judge_indexes
from stelae.client.finds.query import NOT_GIVEN, FindQuery, find_query
from stelae.client.input.known import KnownTable
from stelae.core.errors import InvalidArgument
from stelae.core.ids import ServerUuid, TableId
from stelae.core.records.records import TableRecord, TableState
from stelae.core.schema.alter import with_index
from stelae.core.schema.durability import segments
from stelae.core.schema.indexes import IndexId
from stelae.core.schema.partition import Partitioning
from stelae.core.schema.schema import TableSchema

ARROW = pa.schema([pa.field("id", pa.int64(), False), ("dest", pa.string())])
SCHEMA = with_index(TableSchema.of(ARROW, "id"), "dest", IndexId("I"), "t")
KNOWN = KnownTable(
    TableRecord(TableId("T"), "t", SCHEMA, Partitioning(), segments("disk"), TableState.RUNNING)
)


def query(value: object = NOT_GIVEN, between: object = None, reverse: bool = False) -> FindQuery:
    return find_query(KNOWN, "dest", value, between, None, with_versions=False, is_reverse=reverse)


def rows(*pairs: tuple[int, str | None]) -> pa.Table:
    return pa.Table.from_pylist([{"id": i, "dest": dest} for i, dest in pairs], ARROW)


@pytest.mark.parametrize("count", [3, 300])
def test_rows_count_whose_entry_is_still_the_one_that_was_looked_up(count: int) -> None:
    """Each once, in order; few and many are handled alike."""
    asked = query(between=("a", "m"))
    then = rows(*[(n, "b") for n in range(count)])
    entries = asked.entries_of(then)
    now = rows((1, "c"), *[(n, "b") for n in range(count - 1, 1, -1)], (2, "b"), (0, None))
    kept, own = asked.ordered(now, entries)
    assert kept["id"].to_pylist() == list(range(2, count))
    assert own.equals(entries.slice(2))
    back, _ = query(between=("a", "m"), reverse=True).ordered(now, entries)
    assert back["id"].to_pylist() == list(range(count - 1, 1, -1))


def test_of_rows_of_a_scan_those_in_the_range_count() -> None:
    """Both ends belong to it; nulls do not, unless they are what is looked for."""
    scanned = rows((1, "a"), (2, "m"), (3, "mm"), (4, None), (5, ""))
    assert query(between=("a", "m")).ordered(scanned)[0]["id"].to_pylist() == [1, 2]
    assert query(between=(None, "a")).ordered(scanned)[0]["id"].to_pylist() == [5, 1]
    assert query(between=(None, None)).ordered(scanned)[0]["id"].to_pylist() == [5, 1, 2, 3]
    assert query(None).ordered(scanned)[0]["id"].to_pylist() == [4]


def test_a_row_that_moved_between_two_look_ups_comes_once_as_it_was_read_last() -> None:
    """In the order of the values that are handed out."""
    asked = query(between=("a", "z"))
    first = rows((1, "a"), (2, "b"), (3, "c"))
    second = rows((4, "m"), (2, "x"))
    expected = rows((1, "a"), (3, "c"), (4, "m"), (2, "x")).to_pylist()
    assert asked.joined([first, second]).to_pylist() == expected


def test_a_token_leads_to_what_is_left() -> None:
    """Of the same look-up in the same direction alone."""
    asked = query(between=("a", "m"))
    entry = asked.entries_of(rows((1, "b")))[0].as_py()
    rest = asked.from_token(asked.token(entry))
    assert (rest.low, rest.high) == (entry + b"\0", asked.high)
    back = query(between=("a", "m"), reverse=True)
    rest = back.from_token(back.token(entry))
    assert (rest.low, rest.high) == (back.low, entry)
    for other in (back, query(between=("c", "m")), query("x")):
        with pytest.raises(InvalidArgument):
            other.from_token(asked.token(entry))


def test_the_check_says_what_is_wrong_with_an_index() -> None:
    """A hole, a dead server, one that is filled, one that does not answer."""

    def judged(*indexlets: IndexletFacts) -> list[tuple[Severity, str]]:
        server = ServerFacts("tserver", "s1", ServerUuid("s1"), "live")
        index = IndexFacts("I", "t", "dest", indexlets)
        found = judge_indexes(StatusFacts("c", 1, (server,), (), (), indexes=(index,)))
        return [(each.severity, each.text) for each in found]

    well = IndexletFacts("X", "serving", "", "", "s1", "serving")
    assert judged(well) == []
    ((severity, text),) = judged(IndexletFacts("X", "serving", "", "6d", "s1", "serving"))
    assert (severity, "all of it" in text) == (Severity.ERROR, True)
    ((severity, text),) = judged(IndexletFacts("X", "serving", "", "", "s2", "serving"))
    assert (severity, "dead" in text) == (Severity.ERROR, True)
    ((severity, text),) = judged(IndexletFacts("X", "filling", "", "", "s1", "filling", "waits"))
    assert (severity, "waits" in text) == (Severity.WARNING, True)
    ((severity, text),) = judged(IndexletFacts("X", "serving", "", "", "s1", "complete"))
    assert severity is Severity.ERROR
