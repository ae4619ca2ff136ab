"""``stelae table``: the commands that look at tables and alter them. (design §12)"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli_cluster import STATUS_TIMEOUT_S, Debug, Json, Where, open_cluster, read_status
from stelae.cli_output import describe, make_console, print_json, print_table, show_tables

table_app = typer.Typer(
    name="table",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Look at tables, and alter them.",
)


Count = Annotated[
    int | None, typer.Option(metavar="N", help="So many replicas of each tablet: 1, 3, 5 or 7.")
]
Longest = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Wait for so long, at most.")
]


@table_app.command("list")
def table_list(cluster: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """List the tables of a cluster.

    \b
    stelae table list
    stelae table list --cluster .stelae/demo --json
    """
    document = read_status(cluster)
    if as_json:
        print_json({"tables": document["tables"]})
    else:
        show_tables(document)


@table_app.command("describe")
def table_describe(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a table's columns, key, partitioning, durability and tablets.

    \b
    stelae table describe flights
    """
    with open_cluster(cluster) as database:
        table = database.table(name)
        document = database.status(timeout=STATUS_TIMEOUT_S)
        described = describe(table, document)
    if as_json:
        print_json(described)
        return
    columns = [
        [
            column["name"],
            column["type"],
            "yes" if column["nullable"] else "no",
            "key" if column["name"] in described["key"] else "",
        ]
        for column in described["columns"]
    ]
    print_table(f"table {name}", ["column", "type", "nullable", ""], columns)
    console = make_console()
    for what in ("key", "partition", "durability", "rows"):
        value = described[what]
        shown = ", ".join(value) if isinstance(value, list) else value
        console.print(f"{what}: {shown}", markup=False)
    tablets = [
        [each["number"], each["state"], each["leader"], each["term"], f"{each['rows']:,}"]
        for each in described["tablets"]
    ]
    print_table("tablets", ["tablet", "state", "on", "term", "rows"], tablets)


@table_app.command("rename")
def table_rename(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    new_name: Annotated[str, typer.Argument(help="The name it gets.")],
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give a table another name; clients that use it go on.

    \b
    stelae table rename flights departures
    """
    with open_cluster(cluster) as database:
        database.rename_table(name, new_name)
    if as_json:
        print_json({"name": new_name})
    else:
        make_console().print(f"{name} is now {new_name}", markup=False)


@table_app.command("alter")
def table_alter(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN:TYPE", help='A column to add; "COLUMN:TYPE not null" too.'),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to drop.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="A column to rename.")
    ] = None,
    default: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="A default, as JSON or as text; null: none."),
    ] = None,
    replicas: Count = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return once all tablets follow.")
    ] = True,
    timeout: Longest = 600.0,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Change columns, defaults, the number of replicas; reads and writes go on meanwhile.

    All of it happens or nothing. A column dropped and added again comes back empty.

    With --replicas each tablet of a table that has replicas gets copies on more servers, or lets
    some go, one after the other; interrupted, that goes on, and `stelae status` shows the copies.

    \b
    stelae table alter flights --add "seats:int16 not null" --default seats=180
    stelae table alter flights --drop dest --rename departed=departure
    stelae table alter flights --replicas 5
    """
    from stelae.cli_values import defaults_of, fields_of, pairs_of
    from stelae.core.durability import replicas as replicas_of

    fields, renames = fields_of(add or []), pairs_of(rename or [], "--rename")
    with open_cluster(cluster) as database:
        table = database.table(name)
        values = defaults_of(pairs_of(default or [], "--default"), table.schema, fields, renames)
        table.alter(
            add_columns=fields,
            drop_columns=drop or [],
            rename_columns=renames,
            defaults=values,
            durability=None if replicas is None else replicas_of(replicas),
            wait=wait,
            timeout=timeout,
        )
        described = describe(table, database.status(timeout=STATUS_TIMEOUT_S))
    if as_json:
        print_json(described)
    else:
        make_console().print(_altered(described, replicas), markup=False, soft_wrap=True)


def _altered(described: dict[str, Any], replicas: int | None) -> str:
    """What the table is like now, in a sentence."""
    columns = ", ".join(f"{each['name']} {each['type']}" for each in described["columns"])
    has = "" if replicas is None else f"{described['durability']}, and "
    return f"{described['name']} has {has}the columns {columns}"
