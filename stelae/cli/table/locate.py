"""``stelae table locate`` and ``stelae tablet locate``: where tablets are or have gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stelae.cli.output import show_locations
from stelae.cli.table.tables import table_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.core.messages.catalog import TabletLocation
    from stelae.database.api import Database

Staleness = Annotated[
    float | None,
    typer.Option(min=0, help="Any master may answer whose state is no older, in seconds."),
]


tablet_app = typer.Typer(
    name="tablet", no_args_is_help=True, rich_markup_mode="rich", help="Look at tablets."
)


@tablet_app.callback()
def _tablet() -> None:
    """Look at tablets."""


def _locate(
    cluster: Path | None, as_json: bool, find: Callable[[Database], list[TabletLocation]]
) -> None:
    with open_cluster(cluster) as database:
        show_locations(find(database), as_json)


@table_app.command("locate")
def table_locate(
    name: Annotated[str, typer.Argument(help="The table's name.")],
    cluster: Where = None,
    max_staleness: Staleness = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show where the tablets of a table are served.

    \b
    stelae table locate flights
    stelae table locate flights --max-staleness 5    any master may answer
    """
    _locate(cluster, as_json, lambda db: db.locate_table(name, max_staleness=max_staleness))


@tablet_app.command("locate")
def tablet_locate(
    ids: Annotated[list[str], typer.Argument(help="Ids of tablets.")],
    cluster: Where = None,
    max_staleness: Staleness = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show where tablets are served, or what became of them: deleted, replaced.

    \b
    stelae tablet locate 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c
    """
    _locate(cluster, as_json, lambda db: db.locate(ids, max_staleness=max_staleness))
