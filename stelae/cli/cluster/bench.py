"""``stelae bench``: how fast a running cluster is, from where the command is given."""

from __future__ import annotations

from typing import Annotated

import typer

from stelae.cli.output import print_json, print_table, progress_bar
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster
from stelae.core.schema.durability import parse_durability


def bench(
    durability: Annotated[
        str,
        typer.Option(metavar="TEXT", help='As in Python: "replicas(3)", "wal(3)", "segments()".'),
    ] = "segments('disk', 'disk')",
    rows: Annotated[int, typer.Option(min=1, help="To load, and to write and read among.")] = (
        200_000
    ),
    row_bytes: Annotated[int, typer.Option(min=9, help="Of each row.")] = 100,
    tablets: Annotated[int, typer.Option(min=1, help="Of the table.")] = 4,
    clients: Annotated[int, typer.Option(min=1, help="Single rows under way at a time.")] = 16,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each kind of single rows.")] = 5.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure a running cluster: load, single writes and reads, a scan.

    It makes a table of its own, and deletes it in the end. One client does it all, and with few
    cores it is the client that is measured: try --clients 1 for what a call takes.

    \b
    stelae bench
    stelae bench --durability "replicas(3)" --clients 64
    stelae bench --rows 5000000 --json | jq '.measured[] | {what, rows_per_s}'
    """
    from stelae.planning.benching import Work
    from stelae.planning.benching import bench as measure

    work = Work(rows, row_bytes, tablets, clients, seconds)
    with open_cluster(where) as database, progress_bar("bench") as tell:
        measured = measure(database, parse_durability(durability), work, tell)
    found = [each.document(row_bytes) for each in measured]
    if as_json:
        print_json({"durability": durability, "clients": clients, "measured": found})
        return
    shown = [
        [
            each["what"],
            f"{each['rows_per_s']:,.0f}",
            f"{each['mb_per_s']:,.1f}",
            f"{each['p50_ms']:,.2f}",
            f"{each['p99_ms']:,.2f}",
            f"{each['calls']:,}",
        ]
        for each in found
    ]
    title = f"{rows:,} rows of {row_bytes} bytes, {durability}, {clients} at a time"
    print_table(title, ["", "rows/s", "MB/s", "p50 ms", "p99 ms", "calls"], shown)
