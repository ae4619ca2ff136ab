"""``stelae table export`` and ``import``: tables to folders of Parquet files, and back."""

from __future__ import annotations

from typing import Annotated

import typer

from stelae.cli.output import make_console, print_json, progress_bar
from stelae.cli.table.tables import table_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.core.schema.durability import parse_durability

Url = Annotated[str, typer.Argument(help="A folder, or a URL that pyarrow or fsspec knows.")]


@table_app.command("export")
def table_export(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    url: Url,
    replace: Annotated[
        bool, typer.Option("--replace", help="Over an export that is there, whole or not.")
    ] = False,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a table, as it is now, as Parquet files; writes to it go on meanwhile.

    One file for each tablet, and manifest.json last: without it there is no export.

    \b
    stelae table export flights /backups/flights
    stelae table export flights s3://bucket/flights --replace
    """
    with open_cluster(cluster) as database, progress_bar(f"export of {name}") as tell:
        manifest = database.export_table(
            name,
            url,
            replace=replace,
            progress=lambda done, total: tell(done, total, f"{done:,} rows"),
        )
    if as_json:
        print_json(manifest)
    else:
        files = len(manifest["files"])
        said = f"{manifest['rows']:,} rows of {name} are in {files} files in {url}"
        make_console().print(said, markup=False, soft_wrap=True)


@table_app.command("import")
def table_import(
    url: Url,
    name: Annotated[str | None, typer.Argument(help="The table's name, if another.")] = None,
    durability: Annotated[
        str | None,
        typer.Option(metavar="DURABILITY", help='Of a new table, if another: "wal(3)".'),
    ] = None,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Upsert the rows of an export; the table is made if there is none. Again is fine.

    All files are checked before the first row is written.

    \b
    stelae table import /backups/flights
    stelae table import s3://bucket/flights flights_2 --durability "replicas(3)"
    """
    wanted = None if durability is None else parse_durability(durability)
    with open_cluster(cluster) as database, progress_bar("import") as tell:
        table = database.import_table(
            url,
            name,
            durability=wanted,
            progress=lambda done, total: tell(done, total, f"{done:,} rows"),
        )
    if as_json:
        print_json({"table": table.name})
    else:
        make_console().print(f"{url} is in table {table.name}", markup=False, soft_wrap=True)
