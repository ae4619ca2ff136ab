"""``stelae table get | put | delete-rows | scan | count``: the rows of a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.files.formats import STANDARD, Format, Mode
from stelae.cli.output import interrupts_told, make_console, print_json, print_table
from stelae.cli.table.tables import table_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.core.errors import InvalidArgument, RowNotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from stelae.database.api import Table

SHOWN_ROWS = 100
"""At a terminal, where no other limit is given."""

Name = Annotated[str, typer.Argument(help="The table's name.")]
Columns = Annotated[
    list[str] | None,
    typer.Option("--columns", metavar="COLUMN[,COLUMN]", help="Only these columns."),
]
Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="FILTER",
        help="Only rows for which it holds: 'price > 3', 'dest in LAX,SFO', 'name is null'. "
        "Of several all hold.",
    ),
]
WriteMode = Annotated[Mode, typer.Option(help="insert refuses rows whose keys are there.")]


def _say(text: str) -> None:
    make_console().print(text, markup=False, soft_wrap=True)


@table_app.command("get")
def table_get(
    name: Name,
    key: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="A value for each of the key's columns.")
    ],
    columns: Columns = None,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the row of a key. Exit code 1: there is none.

    A key is written as it is: 17, LAX, 2026-11-30, 2026-11-30T08:00:00Z, bytes as base64. Negative
    numbers come after --.

    \b
    stelae table get orders 17
    stelae table get lines 17 2 --columns price,amount
    stelae table get offsets -- -5
    """
    from stelae.cli.values import keys_of, names_of

    with open_cluster(cluster) as database:
        table = database.table(name)
        wanted = keys_of(key, table.schema, table.key, name)
        if len(wanted) > 1:
            raise InvalidArgument(
                f"the key of {name!r} is made of {', '.join(table.key)}: {len(key)} values were "
                "given, for one row; `stelae table scan --where` shows several rows"
            )
        rows = table.get_many(wanted, columns=names_of(columns or []) or None)
    if not rows.num_rows:
        raise RowNotFound(name, ", ".join(key))
    if as_json:
        print_json(_documents(rows)[0])
        return
    cells = [
        [column, text[0]] for column, text in zip(rows.column_names, _cells(rows), strict=True)
    ]
    print_table(f"row of {name}", ["column", "value"], cells)


@table_app.command("put")
def table_put(
    name: Name,
    row: Annotated[
        list[str],
        typer.Argument(
            metavar="ROW...",
            help="COLUMN=VALUE for each column, or JSON (an object, or an array of them), or -.",
        ),
    ],
    mode: WriteMode = Mode.UPSERT,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a row, or rows from standard input; one with the same key is replaced.

    With - standard input has a JSON object on each line, as `scan` and `export` write them. In
    COLUMN=VALUE null is null, and text may stand in JSON's quotes; lists and structs are JSON.
    Columns that are left out get their defaults.

    \b
    stelae table put orders id=17 name=chair price=49.90
    stelae table put orders '{"id": 17, "name": "chair", "price": 49.9}' --mode insert
    stelae table scan orders | stelae table put orders_2 -
    """
    with open_cluster(cluster) as database:
        table = database.table(name)
        count = _put(table, row, mode)
    if as_json:
        print_json({"table": name, "rows": count})
    else:
        _say(f"{count:,} row{'s' * (count != 1)} written to {name}")


def _put(table: Table, texts: list[str], mode: Mode) -> int:
    from stelae.cli.files.importing import Import
    from stelae.cli.files.reading import row_file
    from stelae.cli.values import row_of, rows_of_json

    if texts == [STANDARD]:
        with interrupts_told(), row_file(STANDARD, Format.NDJSON, "") as source:
            return Import(table, source, mode).run(lambda *_: None)
    if len(texts) == 1 and texts[0].lstrip()[:1] in ("{", "["):
        rows = rows_of_json(texts[0], table.schema, table.name)
    else:
        rows = [row_of(texts, table.schema, table.name)]
    if rows:
        (table.insert if mode is Mode.INSERT else table.upsert)(rows)
    return len(rows)


@table_app.command("delete-rows")
def table_delete_rows(
    name: Name,
    key: Annotated[
        list[str],
        typer.Argument(metavar="KEY...", help="A value for each of the key's columns, row by row."),
    ],
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete rows by their keys. Rows that are not there are fine.

    The table itself stays; `stelae table drop` deletes it.

    \b
    stelae table delete-rows orders 17 18
    stelae table delete-rows lines 17 2
    """
    from stelae.cli.values import keys_of

    with open_cluster(cluster) as database:
        table = database.table(name)
        keys = keys_of(key, table.schema, table.key, name)
        table.delete(keys)
    if as_json:
        print_json({"table": name, "keys": len(keys)})
    else:
        _say(f"{name} has no row with {'this key' if len(keys) == 1 else 'these keys'} now")


@table_app.command("scan")
def table_scan(
    name: Name,
    columns: Columns = None,
    where: Filters = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help=f"At a terminal {SHOWN_ROWS} if absent, else all."),
    ] = None,
    cluster: Where = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, as into a pipe or file.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Show rows, in no order: as a table, or into a pipe or file as JSON lines.

    Each tablet is read at one point of its log, piece by piece: memory does not depend on the
    table's size.

    \b
    stelae table scan flights --limit 20
    stelae table scan flights --columns id,dest --where 'dep_delay > 60' --where 'dest in LAX,SFO'
    stelae table scan flights --where 'tail is null' --json | jq .id
    """
    from stelae.cli.files.pinned_rows import pinned_rows
    from stelae.cli.files.writing import JsonWriter
    from stelae.cli.values import filters_of, names_of

    is_shown = not as_json and _is_terminal()
    wanted = SHOWN_ROWS if limit is None else limit
    with open_cluster(cluster) as database:
        table = database.table(name)
        filters = filters_of(where or [], table.schema, name)
        asked = names_of(columns or []) or None
        most = wanted + 1 if is_shown else limit
        with pinned_rows(database, name, asked, filters, most) as found:
            if is_shown:
                _show(name, found.schema, list(found.pieces), wanted)
                return
            writer = JsonWriter(sys.stdout.buffer)
            for piece in found.pieces:
                writer.write(piece)
            sys.stdout.buffer.flush()


def _is_terminal() -> bool:
    return sys.stdout.isatty()


def _show(name: str, schema: pa.Schema, pieces: list[pa.Table], wanted: int) -> None:
    """A table of up to ``wanted`` rows; there may be one more, which says that they are not all."""
    import pyarrow as pa

    found = pa.concat_tables(pieces) if pieces else schema.empty_table()
    rows = found.slice(0, wanted)
    shown = [list(row) for row in zip(*_cells(rows), strict=True)]
    print_table(f"{name}, {rows.num_rows:,} rows", rows.column_names, shown)
    if found.num_rows > wanted:
        text = "there are more rows: --limit shows them, and a pipe takes all"
        make_console(stderr=True).print(text, style="dim", markup=False)


def _documents(rows: pa.Table) -> list[dict[str, Any]]:
    from stelae.client.http.json_values import batch_to_json_rows

    return batch_to_json_rows(rows)


def _cells(rows: pa.Table) -> list[list[str]]:
    """Each column's values as text for people; null is nothing."""
    from stelae.client.http.json_values import column_to_json

    return [[_cell(value) for value in column_to_json(column)] for column in rows.columns]


def _cell(value: Any) -> str:
    import msgspec

    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()


@table_app.command("count")
def table_count(
    name: Name,
    where: Filters = None,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Count the rows of a table, or those for which filters hold.

    \b
    stelae table count flights
    stelae table count flights --where 'dest = LAX' --where 'dep_delay >= 60' --json
    """
    from stelae.cli.values import filters_of

    with open_cluster(cluster) as database:
        table = database.table(name)
        found = table.count(where=filters_of(where or [], table.schema, name))
    if as_json:
        print_json({"table": name, "rows": found})
    else:
        print(found)
