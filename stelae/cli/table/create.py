"""``stelae table create`` and ``drop``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from stelae.cli.output import make_console, print_json
from stelae.cli.table.tables import table_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.core.schema.durability import parse_durability
from stelae.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

    from stelae.database.api import Table

Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="COLUMN[,COLUMN]", help="The key's columns, in order."),
]
Partitions = Annotated[
    int, typer.Option(min=1, metavar="N", help="Tablets, cut by the hash of the key.")
]
Indexes = Annotated[
    list[str] | None, typer.Option("--index", metavar="COLUMN", help="A column to index.")
]
NewDurability = Annotated[
    str | None,
    typer.Option(metavar="DURABILITY", help='As in Python: "wal(3)", "segments(\'disk\')".'),
]


class _Column(msgspec.Struct):
    name: str
    type: str
    nullable: bool = True


class _Described(msgspec.Struct):
    """What is needed of a table as ``stelae table describe --json`` shows it."""

    columns: list[_Column]
    key: list[str] = []


@table_app.command("create")
def table_create(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN:TYPE", help='A column; "COLUMN:TYPE not null" too.'),
    ] = None,
    key: Keys = None,
    partitions: Partitions = 1,
    durability: NewDurability = None,
    index: Indexes = None,
    schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Columns and key of `stelae table describe --json`."),
    ] = None,
    like: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The columns of this Parquet, CSV or NDJSON file."),
    ] = None,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Create a table, and return once it can be written to.

    Types are those of Arrow: int64, float32, bool, string, binary, date32, timestamp[us, tz=UTC],
    decimal128(10, 2) and so on; lists and structs come by --like from a Parquet file.

    \b
    stelae table create orders --column id:int64 --column 'name:string' --key id
    stelae table create lines --column order:int64 --column line:int32 --key order,line
    stelae table create flights --like flights.parquet --key id --partitions 8 --index dest
    stelae table create orders_2 --schema orders.json --durability "replicas(3)"
    """
    from stelae.cli.files.importing import NewTable, create_table
    from stelae.cli.values import names_of

    wanted = None if durability is None else parse_durability(durability)
    columns, known_key = _columns(column or [], schema, like)
    new = NewTable(names_of(key or []) or known_key, partitions, wanted, index or ())
    with open_cluster(cluster) as database:
        table = create_table(database, name, columns, new)
        made = _made(table)
    if as_json:
        print_json(made)
        return
    shown = ", ".join(f"{each['name']} {each['type']}" for each in made["columns"])
    text = f"{name} has the key {', '.join(made['key'])} and the columns {shown}"
    make_console().print(text, markup=False, soft_wrap=True)


def _columns(
    texts: list[str], schema: Path | None, like: str | None
) -> tuple[pa.Schema, list[str]]:
    """The columns of a new table, and its key, where that is known of them."""
    import pyarrow as pa

    from stelae.cli.files.formats import STANDARD, format_of
    from stelae.cli.files.reading import row_file
    from stelae.cli.values import fields_of

    if sum([bool(texts), schema is not None, like is not None]) != 1:
        raise InvalidArgument("give the columns by one of --column, --schema or --like")
    if schema is not None:
        return _described(schema)
    if like is None:
        return pa.schema(fields_of(texts, "--column")), []
    if like == STANDARD:
        raise InvalidArgument(f"--like {like}: name a file")
    with row_file(like, format_of(like, None), "") as source:
        return source.columns(), []


def _described(path: Path) -> tuple[pa.Schema, list[str]]:
    """Columns and key of a table, as ``stelae table describe --json`` wrote them."""
    import pyarrow as pa

    from stelae.core.schema.schema import type_named

    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Described)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidArgument(
            f"--schema {path}: {error}; what is meant is an object with columns (name, type, "
            "nullable) and key, as `stelae table describe NAME --json` writes it"
        ) from None
    fields = [
        pa.field(each.name, type_named(each.type, each.name), each.nullable)
        for each in found.columns
    ]
    return pa.schema(fields), found.key


def _made(table: Table) -> dict[str, Any]:
    record = table._table.record
    return {
        "name": table.name,
        "id": record.table_id,
        "columns": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in table.schema
        ],
        "key": list(table.key),
        "tablets": record.partitioning.tablet_count,
        "durability": str(record.durability),
    }


@table_app.command("drop")
def table_drop(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete a table with all its rows. It asks first; without a terminal it needs --yes.

    Exports and backups of the table stay. Rows alone are deleted by `stelae table delete-rows`.

    \b
    stelae table drop orders_2
    stelae table drop orders_2 --yes
    """
    if not yes and (as_json or not sys.stdin.isatty()):
        raise InvalidArgument(f"nobody can be asked here whether to drop {name!r}: say --yes")
    with open_cluster(cluster) as database:
        table = database.table(name)
        if not yes:
            count = f"{table.count():,}"
            text = f"Drop table {name} with {count} rows? They cannot be brought back."
            typer.confirm(text, abort=True, err=True)
        database.delete_table(name, if_edition=table.edition)
    if as_json:
        print_json({"dropped": name})
    else:
        make_console().print(f"{name} is dropped", markup=False)
