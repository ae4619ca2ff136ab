"""``stelae table index``: secondary indexes listed, made and dropped. (design §12)"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli.output import make_console, megabytes, print_json, print_table, progress_bar
from stelae.cli.table.tables import table_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.database.progress import index_told

index_app = typer.Typer(
    name="index",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Secondary indexes of tables.",
)
table_app.add_typer(index_app)

TableName = Annotated[str, typer.Argument(help="The table's name.")]
Column = Annotated[str, typer.Argument(help="The column's name.")]


@index_app.command("list")
def index_list(
    name: TableName, cluster: Where = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Show a table's indexes, how far each is filled, and where its indexlets are.

    \b
    stelae table index list flights
    """
    with open_cluster(cluster) as database:
        indexes = database.table(name).indexes
    if as_json:
        print_json({"indexes": indexes})
    else:
        show_indexes(indexes)


@index_app.command("create")
def index_create(
    name: TableName,
    column: Column,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return once it is filled.")
    ] = True,
    timeout: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="Wait for so long, at most.")
    ] = 3600.0,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make an index of a column; reads and writes go on meanwhile.

    It is made whether anybody waits or not: the command may be interrupted.

    \b
    stelae table index create flights dest
    stelae table index create flights dest --no-wait
    """
    with open_cluster(cluster) as database, progress_bar(f"index of {column}") as tell:
        table = database.table(name)
        table.create_index(column, wait=wait, progress=index_told(tell), timeout=timeout)
        found = [index for index in table.indexes if index["column"] == column]
    if as_json:
        print_json({"indexes": found})
    else:
        done = "answers" if all(index["state"] == "serving" for index in found) else "is filled"
        make_console().print(f"the index of {column} of {name} {done}", markup=False)


@index_app.command("drop")
def index_drop(
    name: TableName,
    column: Column,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Drop the index of a column.

    \b
    stelae table index drop flights dest
    """
    with open_cluster(cluster) as database:
        database.drop_index(name, column)
    if as_json:
        print_json({"table": name, "column": column})
    else:
        make_console().print(f"{name} has no index of {column} any more", markup=False)


def show_indexes(indexes: list[dict[str, Any]]) -> None:
    """Each indexlet on a line."""
    rows = [
        [
            index["table"],
            index["column"],
            each["state"] + (f" {index['filled']:.0%}" if each["state"] == "filling" else ""),
            f"{each['entries']:,}",
            megabytes(each["memory_bytes"]),
            each["server"],
            each["id"],
            each["problem"],
        ]
        for index in indexes
        for each in index["indexlets"]
    ]
    columns = ["table", "index of", "state", "entries", "memory", "on", "indexlet", "waits for"]
    if rows:
        print_table("indexes", columns, rows)
    else:
        make_console().print("no indexes", markup=False)
