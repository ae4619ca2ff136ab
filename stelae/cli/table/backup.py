"""``stelae backup``: backups of tables in an archive, and tables of them again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli.output import make_console, megabytes, print_json, print_table, progress_bar
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.core.schema.durability import parse_durability

backup_app = typer.Typer(
    name="backup",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Save tables to a folder or an object store, and restore them. (Not about the backup "
    "servers of a cluster: those are under [bold]stelae server[/bold].)",
)
Archive = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The archive: a folder, or a URL that pyarrow or fsspec knows."
    ),
]
Tables = Annotated[
    list[str] | None, typer.Argument(metavar="[TABLE]...", help="These tables; all if absent.")
]


def _say(text: str) -> None:
    make_console().print(text, markup=False, soft_wrap=True)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


@backup_app.command("create")
def create(
    url: Archive,
    tables: Tables = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read all rows, not only those that are new.")
    ] = False,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a backup of all tables, or of some, while they are written to.

    The first backup in an archive stores all rows; each later one stores what has changed, and is
    whole all the same: none needs another. Interrupted, it is none; given again, it finds what was
    stored. Put it into cron as it stands.

    \b
    stelae backup create /backups/demo
    stelae backup create s3://bucket/demo flights orders
    """
    with open_cluster(cluster) as database, progress_bar("backup") as tell:
        made = database.backup(
            url,
            tables or None,
            full=full,
            progress=lambda done, total: tell(done, total, f"{done:,} of {total:,} rows"),
        )
    if as_json:
        print_json(made)
        return
    _say(
        f"backup {made['id']}: {made['rows']:,} rows of {_counted(len(made['tables']), 'table')}, "
        f"{megabytes(made['size_bytes'])}, of which {megabytes(made['stored_bytes'])} are new"
    )


@backup_app.command("list")
def show(url: Archive, as_json: Json = False, debug: Debug = False) -> None:
    """List the backups of an archive, newest first. No cluster is needed.

    \b
    stelae backup list s3://bucket/demo
    stelae backup list /backups/demo --json | jq '.backups[0].tables[].name'
    """
    from stelae.database.backups import list_backups

    found = list_backups(url)
    if as_json:
        print_json({"url": url, "backups": found})
        return
    if not found:
        _say(f"{url} holds no backup: stelae backup create {url} makes one")
        return
    columns = ["backup", "cluster", "rows", "size", "added", "tables"]
    print_table("backups", columns, [_row(each) for each in found])


def _row(each: dict[str, Any]) -> list[str]:
    if each["problem"]:
        return [each["id"], "?", "?", "?", "?", each["problem"]]
    return [
        each["id"],
        each["cluster"],
        f"{each['rows']:,}",
        megabytes(each["size_bytes"]),
        megabytes(each["stored_bytes"]),
        ", ".join(table["name"] for table in each["tables"]),
    ]


@backup_app.command("verify")
def verify(
    url: Archive,
    at: Annotated[
        str | None, typer.Option("--at", metavar="BACKUP", help="Only this one; all if absent.")
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read every file of an archive and compare it with what was stored; exit code 1 if it differs.

    No cluster is needed. It says which backups and tables are hurt, and what helps.

    \b
    stelae backup verify s3://bucket/demo
    stelae backup verify /backups/demo --at 20261127T034500.123Z-1f3a
    """
    from stelae.database.backups import verify_backups

    with progress_bar("verify") as tell:
        found = verify_backups(
            url, at, progress=lambda done, total: tell(done, total, f"{done:,} rows")
        )
    if as_json:
        print_json({"url": url, **found})
    else:
        for each in found["damaged"]:
            _say(f"damaged: {each['file']}: {each['reason']}\n  {each['hint']}")
        count = len(found["damaged"])
        read = f"{_counted(found['files'], 'file')}, {megabytes(found['bytes'])}"
        state = f"damaged: {_counted(count, 'file')}" if count else "all whole"
        _say(f"{_counted(len(found['backups']), 'backup')}, {read}: {state}")
    if found["damaged"]:
        raise typer.Exit(1)


@backup_app.command("restore")
def restore(
    url: Archive,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE[=NEW]]...", help="These tables, under other names if you like."
        ),
    ] = None,
    at: Annotated[
        str, typer.Option("--at", metavar="BACKUP", help="Which one; the newest if absent.")
    ] = "",
    durability: Annotated[
        str | None,
        typer.Option(metavar="DURABILITY", help='Of the tables, if another: "wal(3)".'),
    ] = None,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make tables again as they were in a backup. Tables that are there are never written over.

    All files are checked before a row is written. A table gets its name when it is whole, with
    its indexes. Interrupted, give the same command again.

    \b
    stelae backup restore s3://bucket/demo
    stelae backup restore /backups/demo flights=flights_before
    stelae backup restore /backups/demo flights --at 20261127T034500.123Z-1f3a
    """
    wanted = None if durability is None else parse_durability(durability)
    names: dict[str, str] = {}
    for each in tables or ():
        old, _, new = each.partition("=")
        names[old] = new or old
    with open_cluster(cluster) as database, progress_bar("restore") as tell:
        made = database.restore(
            url,
            names or None,
            backup=at,
            durability=wanted,
            progress=lambda done, total: tell(done, total, f"{100 * done // total} %"),
        )
    if as_json:
        print_json(made)
        return
    for table in made["tables"]:
        _say(f"{table['rows']:,} rows of backup {made['backup']} are in table {table['name']}")
    for name in made["skipped"]:
        _say(f"table {name} was restored by an earlier call, and left as it is")


@backup_app.command("prune")
def prune(
    url: Archive,
    keep: Annotated[int, typer.Option(min=1, help="So many backups of each table stay.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; delete nothing.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep the newest backups of each table; delete older ones, and the files that only they need.

    No cluster is needed. It is refused while a backup is being made.

    \b
    stelae backup prune s3://bucket/demo --keep 30
    stelae backup prune /backups/demo --keep 7 --dry-run
    """
    from stelae.database.backups import prune_backups

    with progress_bar("prune") as tell:
        done = prune_backups(
            url,
            keep,
            dry_run=dry_run,
            progress=lambda done, total: tell(done, total, f"{done:,} of {total:,} files"),
        )
    if as_json:
        print_json({"url": url, **done})
        return
    going = f"{_counted(len(done['dropped']), 'backup')} and {_counted(done['files'], 'file')}"
    going += f" ({megabytes(done['bytes'])})"
    verb = "would be deleted" if dry_run else "deleted"
    _say(f"kept: {_counted(len(done['kept']), 'backup')}; {verb}: {going}")
