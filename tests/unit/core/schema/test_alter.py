"""What may be altered in a schema, and what is refused, in which words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from stelae.core.errors import ColumnNotFound, InvalidArgument, Rejected, TooLarge
from stelae.core.schema.alter import (
    MAX_DEFAULT_BYTES,
    MAX_HISTORY,
    SchemaChange,
    altered,
    next_history,
    schema_change,
)
from stelae.core.schema.schema import MAX_COLUMNS, TableSchema

SCHEMA = TableSchema.of(
    pa.schema(
        [
            pa.field("id", pa.int64(), False),
            pa.field("name", pa.string()),
            pa.field("x", pa.float64(), nullable=False),
        ]
    ),
    ["id"],
)


def alter(schema: TableSchema = SCHEMA, **change: Any) -> TableSchema:
    return altered(schema, schema_change(**change), "t")


def test_ids_rise_and_are_never_given_again() -> None:
    """A dropped column's id is gone for ever: its namesake is another column."""
    dropped = alter(drop=["name"])
    assert (dropped.arrow.names, dropped.column_ids) == (["id", "x"], (1, 3))
    again = alter(dropped, add=[pa.field("name", pa.string())])
    assert (again.arrow.names, again.column_ids) == (["id", "x", "name"], (1, 3, 4))
    assert [s.version for s in (SCHEMA, dropped, again)] == [1, 2, 3]
    last = alter(again, drop=["name"], add=[pa.field("name", pa.int8())])
    assert last.column_ids == (1, 3, 5)
    assert last.next_column_id == 6


def test_renames_of_one_call_happen_at_once() -> None:
    """Two columns can swap their names; each keeps its id, type and default."""
    swapped = alter(rename={"name": "x", "x": "name"})
    assert swapped.arrow.names == ["id", "x", "name"]
    assert swapped.column_ids == (1, 2, 3)
    assert swapped.arrow.field("x").type == pa.string()
    moved = alter(rename={"name": "title"}, add=[pa.field("name", pa.int8())])
    assert moved.arrow.names == ["id", "title", "x", "name"]


def test_a_read_default_never_changes_and_a_write_default_may() -> None:
    """Rows from before an addition show what it was added with, whatever the default is later."""
    added = alter(add=[pa.field("n", pa.int64(), False)], defaults={"n": pa.scalar(7)})
    assert added.read_default("n").as_py() == added.write_default("n").as_py() == 7
    assert "n" not in added.required
    changed = alter(added, defaults={"n": pa.scalar(8)})
    assert (changed.read_default("n").as_py(), changed.write_default("n").as_py()) == (7, 8)
    renamed = alter(changed, rename={"n": "m"})
    assert (renamed.read_default("m").as_py(), renamed.write_default("m").as_py()) == (7, 8)
    assert alter(renamed, drop=["m"]).defaults_ipc == b""


def test_a_default_can_be_taken_from_a_column_that_all_writers_know() -> None:
    """Null as default means none: a column that may not be null must then be given again."""
    given = alter(defaults={"x": pa.scalar(1.5), "name": pa.scalar("?")})
    assert "x" in SCHEMA.required
    assert "x" not in given.required
    taken = alter(given, defaults={"x": pa.scalar(None, pa.float64())})
    assert "x" in taken.required
    assert taken.read_default("x").is_valid is False


def test_a_default_of_any_type_survives_to_the_last_bit() -> None:
    """Defaults are Arrow values: nanoseconds, decimals and lists are not bent on the way."""
    moment = pa.scalar(1_700_000_000_123_456_789, pa.timestamp("ns"))
    many = pa.scalar([1, None], pa.list_(pa.int64()))
    fields = [pa.field("at", moment.type), pa.field("many", many.type)]
    found = alter(add=fields, defaults={"at": moment, "many": many})
    assert found.read_default("at") == moment
    assert found.write_default("many") == many


def test_a_table_may_be_left_with_nothing_but_its_key() -> None:
    """As it may be made so: the last other column can be dropped, and one be added again."""
    bare = alter(drop=["name", "x"])
    assert bare.arrow.names == ["id"]
    assert alter(bare, add=[pa.field("y", pa.bool_())]).arrow.names == ["id", "y"]


WIDE = [pa.field(f"c{n}", pa.int8()) for n in range(MAX_COLUMNS - 2)]
REFUSED: list[tuple[dict[str, Any], type[Rejected], str]] = [
    ({}, InvalidArgument, "nothing to alter"),
    ({"drop": ["nothing"]}, ColumnNotFound, "no column 'nothing'; it has id, name, x"),
    ({"rename": {"nothing": "y"}}, ColumnNotFound, "no column 'nothing'"),
    ({"defaults": {"nothing": pa.scalar(1)}}, ColumnNotFound, "no column 'nothing'"),
    ({"drop": ["id"]}, InvalidArgument, "'id' is part of the key of 't'"),
    ({"rename": {"id": "key"}}, InvalidArgument, "can be neither dropped nor renamed"),
    ({"defaults": {"id": pa.scalar(1)}}, InvalidArgument, "key column 'id' has no default"),
    ({"drop": ["x", "x"]}, InvalidArgument, "twice"),
    ({"drop": ["x"], "rename": {"x": "y"}}, InvalidArgument, "both dropped and renamed"),
    ({"rename": {"x": "name"}}, InvalidArgument, "'name' is named twice"),
    ({"rename": {"x": "_x"}}, InvalidArgument, "not starting with _"),
    ({"rename": {"x": ""}}, InvalidArgument, "1 to 255 printable characters"),
    ({"rename": {"x": "n" * 256}}, InvalidArgument, "1 to 255 printable characters"),
    ({"rename": {"x": "a\nb"}}, InvalidArgument, "printable"),
    ({"add": [pa.field("x", pa.int8())]}, InvalidArgument, "'x' is named twice"),
    ({"add": [pa.field("_op", pa.int8())]}, InvalidArgument, "not starting with _"),
    ({"add": [pa.field("a\tb", pa.int8())]}, InvalidArgument, "printable"),
    ({"add": WIDE}, InvalidArgument, "1 to 300 columns, not 301"),
    ({"add": [pa.field("y", pa.int8(), False)]}, InvalidArgument, "added with a default"),
    (
        {"add": [pa.field("y", pa.int8())], "defaults": {"y": pa.scalar("one")}},
        InvalidArgument,
        "has type string, the column int8",
    ),
    ({"defaults": {"x": pa.scalar(1)}}, InvalidArgument, "has type int64, the column double"),
    ({"defaults": {"name": pa.scalar("x" * MAX_DEFAULT_BYTES)}}, TooLarge, "default of column"),
]


@pytest.mark.parametrize(("change", "kind", "text"), REFUSED)
def test_what_cannot_be_is_refused_in_a_sentence(
    change: dict[str, Any], kind: type[Rejected], text: str
) -> None:
    """Each refusal is `Rejected`, names what and why, and leaves the schema as it was."""
    before = SCHEMA.arrow_ipc, SCHEMA.column_ids, SCHEMA.version
    with pytest.raises(kind, match=text):
        alter(**change)
    assert before == (SCHEMA.arrow_ipc, SCHEMA.column_ids, SCHEMA.version)


def test_a_default_that_other_writers_rely_on_stays() -> None:
    """A column added while clients wrote is one that some of them do not know: without a default
    their rows would have nothing for it."""
    added = alter(add=[pa.field("n", pa.int64(), False)], defaults={"n": pa.scalar(7)})
    with pytest.raises(InvalidArgument, match="give it another one"):
        alter(added, defaults={"n": pa.scalar(None, pa.int64())})


@pytest.mark.parametrize(
    "change",
    [
        SchemaChange(add_ipc=b"no schema"),
        SchemaChange(defaults_ipc=b"no stream"),
        SchemaChange(drop=("x", "x")),
        SchemaChange(rename=(("x", "y"), ("x", "z"))),
    ],
)
def test_bytes_from_the_wire_are_not_believed(change: SchemaChange) -> None:
    """A damaged or senseless change is `Rejected`, not a broken master."""
    with pytest.raises(InvalidArgument):
        altered(SCHEMA, change, "t")


def test_so_many_earlier_versions_are_remembered() -> None:
    """The newest of them, oldest first."""
    history: tuple[TableSchema, ...] = ()
    schema = SCHEMA
    for n in range(MAX_HISTORY + 3):
        history = next_history(schema, history)
        schema = alter(schema, defaults={"x": pa.scalar(float(n))})
    assert [s.version for s in history] == list(range(4, MAX_HISTORY + 4))
    assert schema.version == MAX_HISTORY + 4
