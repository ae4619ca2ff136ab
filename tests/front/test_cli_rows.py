"""``stelae table`` for rows, against real servers over TCP in this process, without Ray."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stelae.cli.table import rows as cli_rows
from stelae.database.api import Database
from tests.front.cli_here import DISK, Run, done, lines_of, make, row_of

ORDERS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)
LINES = pa.schema(
    [
        pa.field("order", pa.string(), nullable=False),
        pa.field("line", pa.int32(), nullable=False),
        ("amount", pa.float64()),
    ]
)


# ---- create and drop ------------------------------------------------------------------------


def test_a_table_is_created_as_it_is_written(run_here: Run, small_database: Database) -> None:
    """Columns, a key of two, tablets, durability and an index; the answer says what it is."""
    made = json.loads(
        done(
            run_here,
            *("table", "create", "lines", "--column", "order:string", "--column", "line:int32"),
            *("--column", "amount:float64 not null", "--key", "order,line", "--partitions", "3"),
            *("--durability", "segments('disk')", "--index", "amount", "--json"),
        )
    )
    assert (made["key"], made["tablets"]) == (["order", "line"], 3)
    assert made["durability"] == str(DISK)
    assert [(each["name"], each["type"], each["nullable"]) for each in made["columns"]] == [
        ("order", "string", False),
        ("line", "int32", False),
        ("amount", "double", False),
    ]
    assert [each["column"] for each in small_database["lines"].indexes] == ["amount"]
    code, _, err = run_here("table", "create", "lines", "--column", "id:int64", "--key", "id")
    assert (code, "exists already" in err) == (1, True)


def test_a_table_is_created_like_another_or_like_a_file(
    run_here: Run, small_database: Database, tmp_path: Path
) -> None:
    """By the document of `describe`, with its key, and by the schema of a Parquet file, which has
    types that have no name."""
    make(small_database, "lines", LINES, ["order", "line"])
    described = tmp_path / "lines.json"
    described.write_text(done(run_here, "table", "describe", "lines", "--json"))
    disk = ("--durability", str(DISK))
    out = done(run_here, "table", "create", "again", "--schema", str(described), *disk)
    assert out == (
        "again has the key order, line and the columns order string, line int32, amount double\n"
    )
    assert small_database["again"].schema == LINES
    pq.write_table(ORDERS.empty_table(), tmp_path / "orders.parquet")
    like = str(tmp_path / "orders.parquet")
    done(run_here, "table", "create", "orders", "--like", like, "--key", "id", *disk)
    assert small_database["orders"].schema == ORDERS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--column", "id:int64"], "needs --key: some of id"),
        (["--key", "id"], "one of --column, --schema or --like"),
        (["--column", "id:int64", "--like", "x.csv"], "one of --column"),
        (["--column", "id=int64", "--key", "id"], "--column 'id=int64': write COLUMN:TYPE"),
        (["--column", "id:int65", "--key", "id"], "no type known here"),
        (["--column", "id:float64", "--key", "id"], "key column 'id' has type double"),
        (["--column", "id:int64", "--key", "id", "--durability", "disk"], "durability 'disk'"),
        (["--schema", "nowhere.json"], "nowhere.json"),
        (["--like", "nowhere.csv", "--key", "id"], "nowhere.csv cannot be read"),
        (["--like", "nowhere.txt", "--key", "id"], "does not say its format"),
    ],
)
def test_a_table_that_cannot_be_is_refused(
    run_here: Run, small_database: Database, arguments: list[str], said: str
) -> None:
    """With exit code 2, and what to write instead; nothing is made."""
    code, _, err = run_here("table", "create", "t", *arguments)
    assert (code, said in err) == (2, True), err
    assert small_database.tables() == []


def test_a_drop_asks_and_needs_a_yes_where_it_cannot(
    run_here: Run, small_database: Database
) -> None:
    """No table goes by mistake: without a terminal, and with --json, only by --yes."""
    make(small_database, "lines", LINES, ["order", "line"]).upsert({"order": "a", "line": 1})
    for arguments in (["drop", "lines"], ["drop", "lines", "--json"]):
        code, _, err = run_here("table", *arguments)
        assert (code, "say --yes" in err) == (2, True)
    code, _, err = run_here("table", "drop", "lines", stdin="n\n", terminal=True)
    assert (code, "Drop table lines with 1 rows?" in err) == (1, True)
    assert small_database.tables() == ["lines"]
    assert done(run_here, "table", "drop", "lines", stdin="y\n", terminal=True).endswith(
        "is dropped\n"
    )
    assert small_database.tables() == []
    make(small_database, "lines", LINES, ["order", "line"])
    assert json.loads(done(run_here, "table", "drop", "lines", "--yes", "--json")) == {
        "dropped": "lines"
    }
    code, _, err = run_here("table", "drop", "lines", "--yes")
    assert (code, "there is no table 'lines'" in err) == (1, True)


# ---- single rows ----------------------------------------------------------------------------


def test_a_row_is_put_and_read_as_it_is_written(run_here: Run, small_database: Database) -> None:
    """In all three ways of writing it; what comes back is what was given."""
    make(small_database, "orders", ORDERS, "id")
    out = done(
        run_here,
        *("table", "put", "orders", "id=1", "name=null", "price=1.10", 'tags=["a", null]'),
        "at=2026-11-30T08:00:00.000001Z",
    )
    assert out == "1 row written to orders\n"
    given = {"id": 1, "name": None, "price": "1.10", "tags": ["a", None]}
    given["at"] = "2026-11-30T08:00:00.000001+00:00"
    assert json.loads(done(run_here, "table", "get", "orders", "1", "--json")) == given
    done(run_here, "table", "put", "orders", '{"id": 2, "name": "null", "price": "2"}')
    two = json.loads(
        done(run_here, "table", "get", "orders", "2", "--columns", "name,price", "--json")
    )
    assert two == {"name": "null", "price": "2.00"}
    rows = '[{"id": 3}, {"id": 4, "name": "x"}]'
    assert json.loads(done(run_here, "table", "put", "orders", rows, "--json"))["rows"] == 2
    piped = '{"id": 5, "name": "y"}\n\n{"id": 6}\n'
    assert "2 rows written" in done(run_here, "table", "put", "orders", "-", stdin=piped)
    assert done(run_here, "table", "count", "orders") == "6\n"
    shown = done(run_here, "table", "get", "orders", "1")
    assert "1.10" in shown
    assert '["a",null]' in shown


def test_keys_are_read_by_the_types_of_their_columns(
    run_here: Run, small_database: Database
) -> None:
    """A key of several columns is as many words; text that looks like a number stays text."""
    table = make(small_database, "lines", LINES, ["order", "line"])
    table.upsert([{"order": "7", "line": n, "amount": n / 2} for n in (-1, 1, 2)])
    assert json.loads(done(run_here, "table", "get", "lines", "7", "2", "--json"))["amount"] == 1.0
    found = json.loads(done(run_here, "table", "get", "lines", "--json", "--", "7", "-1"))
    assert found["amount"] == -0.5
    code, _, err = run_here("table", "get", "lines", "7", "3")
    assert (code, "table 'lines' has no row with key 7, 3" in err) == (1, True)
    for wrong, said in (
        (["7"], "made of order, line"),
        (["7", "1", "7", "2"], "4 values were given, for one row"),
        (["7", "one"], "key column 'line': 'one' is not an integer"),
        (["7", "3000000000"], "key column 'line'"),
    ):
        code, _, err = run_here("table", "get", "lines", *wrong)
        assert (code, said in err) == (2, True), err
    out = done(run_here, "table", "delete-rows", "lines", "7", "1", "7", "2", "--json")
    assert json.loads(out) == {"table": "lines", "keys": 2}
    assert "no row with this key now" in done(run_here, "table", "delete-rows", "lines", "7", "1")
    assert len(table) == 1


@pytest.mark.parametrize(
    ("row", "code", "said"),
    [
        (["id=1.5"], 2, "column 'id': '1.5' is not an integer"),
        (["id"], 2, "write NAME=…"),
        (["id=1", "colour=red"], 1, "has no column 'colour'"),
        (["id=1", "price=1.005"], 2, "1.005"),
        (["id=1", "at=yesterday"], 2, "column 'at': 'yesterday'"),
        (["name=x"], 2, "column 'id'"),
        (['{"id": 1, "name": 2}'], 2, "name"),
        (['{"id": 1'], 2, "no JSON object"),
        (["id=1", "--mode", "insert"], 1, "exists already"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(
    run_here: Run, small_database: Database, row: list[str], code: int, said: str
) -> None:
    """By its column, in the words of Python's client; what is there stays as it is."""
    table = make(small_database, "orders", ORDERS, "id")
    table.upsert({"id": 1, "name": "kept"})
    found = run_here("table", "put", "orders", *row)
    assert (found[0], said in found[2]) == (code, True), found
    assert row_of(table, 1)["name"] == "kept"
    assert len(table) == 1


# ---- scans ----------------------------------------------------------------------------------


def test_a_scan_takes_columns_filters_and_a_limit(run_here: Run, small_database: Database) -> None:
    """All filters hold; into a pipe each row is a JSON object."""
    table = make(small_database, "lines", LINES, ["order", "line"])
    table.upsert([{"order": f"o{n % 3}", "line": n, "amount": n / 2} for n in range(300)])
    table.upsert({"order": "none", "line": 0})
    found = lines_of(
        done(
            run_here,
            "table",
            "scan",
            "lines",
            "--where",
            "amount >= 10",
            "--where",
            "order in o1, o2",
        )
    )
    assert sorted(row["line"] for row in found) == [n for n in range(20, 300) if n % 3]
    found = lines_of(
        done(run_here, "table", "scan", "lines", "--where", "amount is null", "--columns", "order")
    )
    assert found == [{"order": "none"}]
    assert len(lines_of(done(run_here, "table", "scan", "lines", "--limit", "7"))) == 7
    assert done(run_here, "table", "scan", "lines", "--limit", "0") == ""
    assert done(run_here, "table", "count", "lines", "--where", "order = 'o1'") == "100\n"
    counted = json.loads(done(run_here, "table", "count", "lines", "--json"))
    assert counted == {"table": "lines", "rows": 301}
    for wrong, code, said in (
        (["--where", "amount"], 2, "COLUMN OPERATOR VALUE"),
        (["--where", "colour = red"], 1, "no column 'colour'"),
        (["--where", "amount > many"], 2, "filter on 'amount': 'many'"),
        (["--where", "order = null"], 2, "is null"),
        (["--columns", "order,colour"], 1, "no column 'colour'"),
    ):
        answer = run_here("table", "scan", "lines", *wrong)
        assert (answer[0], said in answer[2]) == (code, True), answer


def test_a_scan_at_a_terminal_is_a_table_that_says_if_there_is_more(
    run_here: Run, small_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit a terminal gets so many rows as can be looked at."""
    table = make(small_database, "lines", LINES, ["order", "line"])
    table.upsert([{"order": "o", "line": n} for n in range(cli_rows.SHOWN_ROWS + 1)])
    monkeypatch.setattr(cli_rows, "_is_terminal", lambda: True)
    _, out, err = run_here("table", "scan", "lines")
    assert f"lines, {cli_rows.SHOWN_ROWS} rows" in out
    assert "there are more rows" in err
    table.delete(("o", 0))
    assert "more rows" not in run_here("table", "scan", "lines")[2]
    assert run_here("table", "scan", "lines", "--json")[1].count("\n") == cli_rows.SHOWN_ROWS
