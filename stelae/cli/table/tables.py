"""``stelae table``: the commands that look at tables and alter them. (design §12)"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli.output import (
    describe,
    make_console,
    partition_words,
    print_json,
    print_table,
    show_index_lines,
    show_tables,
)
from stelae.cli.which_cluster import STATUS_TIMEOUT_S, Debug, Json, Where, open_cluster, read_status
from stelae.core.schema.durability import parse_durability
from stelae.core.schema.own_tables import is_own_table
from stelae.errors import InvalidArgument

table_app = typer.Typer(
    name="table",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Create, alter and look at tables; read, write, import and export their rows.",
)


Added = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN:TYPE", help='A column to add; "COLUMN:TYPE not null" too.'),
]
Defaults = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN=VALUE", help="A default, as JSON or as text; null: none."),
]
Count = Annotated[
    int | None, typer.Option(metavar="N", help="So many replicas of each tablet: 1, 3, 5 or 7.")
]
Other = Annotated[
    str | None,
    typer.Option(metavar="DURABILITY", help='As in Python: "wal(3)", "segments(\'disk\')".'),
]
Longest = Annotated[
    float, typer.Option(min=0.1, metavar="SECONDS", help="Wait for so long, at most.")
]


@table_app.command("list")
def table_list(cluster: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """List the tables of a cluster.

    Stelae's own, which [bold]stelae status[/bold] shows, are not among them.

    \b
    stelae table list
    stelae table list --cluster .stelae/demo --json
    """
    document = read_status(cluster)
    document["tables"] = [t for t in document["tables"] if not is_own_table(t["name"])]
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
        shown = partition_words(value) if what == "partition" else shown
        console.print(f"{what}: {shown}", markup=False)
    tablets = [
        [each["number"], each["state"], each["leader"], each["term"], f"{each['rows']:,}"]
        for each in described["tablets"]
    ]
    print_table("tablets", ["tablet", "state", "on", "term", "rows"], tablets)
    show_index_lines(described["indexes"])


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
    add: Added = None,
    drop: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to drop.")
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="A column to rename.")
    ] = None,
    default: Defaults = None,
    replicas: Count = None,
    durability: Other = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return once all tablets follow.")
    ] = True,
    timeout: Longest = 600.0,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Change columns, defaults, the durability; reads and writes go on meanwhile.

    All of it happens or nothing. A column dropped and added again comes back empty.

    With --replicas (of a table that has replicas) each tablet gets copies on more servers, or lets
    some go; with another --durability each makes way for a new one, two at a time, which needs
    memory for these twice; `stelae status` says what it waits for. Altered back, it is taken back.

    \b
    stelae table alter flights --add "seats:int16 not null" --default seats=180
    stelae table alter flights --drop dest --rename departed=departure
    stelae table alter flights --replicas 5
    stelae table alter flights --durability "wal(3, segments=('disk',))"
    """
    from stelae.cli.values import defaults_of, fields_of, pairs_of

    if replicas is not None and durability is not None:
        raise InvalidArgument("give --replicas or --durability: both say the same thing")
    if replicas is not None:
        durability = f"replicas({replicas})"
    wanted = None if durability is None else parse_durability(durability)
    fields, renames = fields_of(add or []), pairs_of(rename or [], "--rename")
    with open_cluster(cluster) as database:
        table = database.table(name)
        values = defaults_of(pairs_of(default or [], "--default"), table.schema, fields, renames)
        table.alter(
            add_columns=fields,
            drop_columns=drop or [],
            rename_columns=renames,
            defaults=values,
            durability=wanted,
            wait=wait,
            timeout=timeout,
        )
        described = describe(table, database.status(timeout=STATUS_TIMEOUT_S))
    if as_json:
        print_json(described)
    else:
        said = _altered(described, is_other=wanted is not None)
        make_console().print(said, markup=False, soft_wrap=True)


def _altered(described: dict[str, Any], *, is_other: bool) -> str:
    """What the table is like now, in a sentence; ``is_other``: it was to get another durability."""
    columns = ", ".join(f"{each['name']} {each['type']}" for each in described["columns"])
    becoming = described["becoming"]
    has = f"{described['durability']}, and " if is_other else ""
    if becoming:
        has = f"{described['durability']} and becomes {becoming}; it has "
    return f"{described['name']} has {has}the columns {columns}"
