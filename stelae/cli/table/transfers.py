"""``stelae table export`` and ``import``: to one file or a folder of Parquet files, and back."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.files.formats import STANDARD, Format, Mode, format_of, is_one_file
from stelae.cli.output import interrupts_told, make_console, print_json, progress_bar
from stelae.cli.table.create import Keys, NewDurability, Partitions
from stelae.cli.table.rows import WriteMode
from stelae.cli.table.tables import table_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.core.errors import InvalidArgument
from stelae.core.schema.durability import Durability, parse_durability

if TYPE_CHECKING:
    from stelae.cli.files.importing import NewTable
    from stelae.database.api import Database

Formats = Annotated[
    Format | None,
    typer.Option("--format", help="If the name does not say it: .parquet, .csv, .ndjson, .jsonl."),
]

_IS_AN_EXPORT = (
    "is taken for the folder of an export, which has its own key and columns: --create, --key, "
    "--partitions, --null and --mode are for files"
)


@table_app.command("export")
def table_export(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    place: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL",
            help="A file, - for standard output, a folder, or a URL that pyarrow or fsspec knows.",
        ),
    ],
    kind: Formats = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Over a file or an export that is there.")
    ] = False,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a table, as it is now, to a file or a folder; writes to it go on meanwhile.

    A file (Parquet, CSV, NDJSON) has its name once it is whole. A folder gets one Parquet file for
    each tablet, and manifest.json last, with key, partitioning, durability and indexes.

    \b
    stelae table export flights flights.csv
    stelae table export flights - --format ndjson | gzip > flights.ndjson.gz
    stelae table export flights /backups/flights
    stelae table export flights s3://bucket/flights --replace
    """
    if is_one_file(place, kind):
        _export_file(name, place, format_of(place, kind), replace, cluster, as_json)
        return
    with open_cluster(cluster) as database, progress_bar(f"export of {name}") as tell:
        manifest = database.export_table(
            name,
            place,
            replace=replace,
            progress=lambda done, total: tell(done, total, f"{done:,} rows"),
        )
    if as_json:
        print_json(manifest)
    else:
        files = len(manifest["files"])
        said = f"{manifest['rows']:,} rows of {name} are in {files} files in {place}"
        make_console().print(said, markup=False, soft_wrap=True)


def _export_file(
    name: str, place: str, kind: Format, replace: bool, cluster: Any, as_json: bool
) -> None:
    from stelae.cli.files.exporting import export_file

    if as_json and place == STANDARD:
        raise InvalidArgument("with - standard output has the rows: leave --json out")
    if place == STANDARD and kind is Format.PARQUET and sys.stdout.isatty():
        raise InvalidArgument("a terminal shows no Parquet: name a file, or another --format")
    with open_cluster(cluster) as database, progress_bar(f"export of {name}") as tell:
        rows = export_file(database, name, place, kind, tell, replace=replace)
    if as_json:
        print_json({"table": name, "rows": rows, "file": place, "format": kind.value})
        return
    said = f"{rows:,} rows of {name} are in {'standard output' if place == STANDARD else place}"
    make_console(stderr=place == STANDARD).print(said, markup=False, soft_wrap=True)


@table_app.command("import")
def table_import(
    first: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="The table's name; the folder of an export needs none."
        ),
    ],
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|URL", help="A file, - for standard input, or the folder of an export."
        ),
    ] = None,
    kind: Formats = None,
    mode: WriteMode = Mode.UPSERT,
    create: Annotated[
        bool, typer.Option("--create", help="Make the table, if there is none, for a file.")
    ] = False,
    key: Keys = None,
    partitions: Partitions = 1,
    durability: NewDurability = None,
    null: Annotated[
        str, typer.Option(metavar="TEXT", help="Of CSV: this text, unquoted, is null, too.")
    ] = "",
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the rows of a file or of an export to a table. Repeated, it writes the same again.

    A file is Parquet, CSV (with a header; nothing between two commas is null) or NDJSON. A value
    that does not fit its column exactly ends the import, named by column and row; the rows before
    it stay. --create makes the table with the columns of the file. Of an export all files are
    checked first, and its table is made if there is none.

    \b
    stelae table import flights flights.parquet
    stelae table import flights flights.csv --null NA --create --key id --partitions 8
    zcat orders.ndjson.gz | stelae table import orders - --format ndjson --mode insert
    stelae table import /backups/flights
    stelae table import flights_2 s3://bucket/flights --durability "replicas(3)"
    """
    name, place = (None, first) if second is None else (first, second)
    wanted = None if durability is None else parse_durability(durability)
    if not is_one_file(place, kind):
        if create or key or partitions > 1 or null or mode is not Mode.UPSERT:
            raise InvalidArgument(f"{place} {_IS_AN_EXPORT}")
        _import_folder(place, name, wanted, cluster, as_json)
        return
    if name is None:
        raise InvalidArgument(f"{place} does not say which table is meant: NAME before it")
    new = _new_table(create, key, partitions, wanted)
    with open_cluster(cluster) as database:
        rows = _import_file(database, name, place, format_of(place, kind), mode, new, null)
    if as_json:
        print_json({"table": name, "rows": rows, "file": place})
    else:
        said = f"{rows:,} rows of {place} are in table {name}"
        make_console().print(said, markup=False, soft_wrap=True)


def _new_table(
    create: bool, key: list[str] | None, partitions: int, durability: Durability | None
) -> NewTable | None:
    """What a table for a file is made with; None: it has to be there."""
    from stelae.cli.files.importing import NewTable
    from stelae.cli.values import names_of

    if create:
        return NewTable(names_of(key or []), partitions, durability)
    if key or partitions > 1 or durability:
        raise InvalidArgument("--key, --partitions and --durability are for --create")
    return None


def _import_file(
    database: Database,
    name: str,
    place: str,
    kind: Format,
    mode: Mode,
    new: NewTable | None,
    null_text: str,
) -> int:
    from stelae.cli.files.importing import Import, target_table
    from stelae.cli.files.reading import row_file

    with row_file(place, kind, null_text) as source:
        work = Import(target_table(database, name, source, new), source, mode)
        with interrupts_told(), progress_bar(f"import to {name}") as tell:
            return work.run(tell)


def _import_folder(
    place: str, name: str | None, durability: Any, cluster: Any, as_json: bool
) -> None:
    with open_cluster(cluster) as database, progress_bar("import") as tell:
        table = database.import_table(
            place,
            name,
            durability=durability,
            progress=lambda done, total: tell(done, total, f"{done:,} rows"),
        )
    if as_json:
        print_json({"table": table.name})
    else:
        make_console().print(f"{place} is in table {table.name}", markup=False, soft_wrap=True)
