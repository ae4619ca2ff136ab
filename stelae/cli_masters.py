"""``stelae master add | remove | list``: the masters of a running cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli_output import make_console, print_json, print_table

if TYPE_CHECKING:
    from stelae.api import Database

Where = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="PATH",
        help="The cluster's file or its data_dir; cluster.yaml of this folder if absent.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def make_app(connect: Callable[[Path | None], Database]) -> typer.Typer:
    """The commands; ``connect`` finds the cluster that ``--cluster`` names."""
    app = typer.Typer(
        name="master",
        no_args_is_help=True,
        rich_markup_mode="rich",
        help="List, add and remove masters of a running cluster.",
    )

    @app.command("list")
    def list_command(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
        """Show the masters; a non-voter is still being brought up."""
        with connect(where) as database:
            _show(database.masters(), as_json)

    @app.command("add")
    def add_command(
        name: Annotated[
            str | None,
            typer.Argument(help="Its name; master-N if absent.", show_default=False),
        ] = None,
        where: Where = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Start one more master, bring it up, and give it a vote.

        \b
        A lost master is replaced by adding a new one and then removing the lost one:
        stelae master add
        stelae master remove master-2
        """
        with connect(where) as database, make_console(stderr=True).status("adding a master"):
            members = database.add_master(name)
        _show(members, as_json)

    @app.command("remove")
    def remove_command(
        master: Annotated[str, typer.Argument(help="Its name, or its UUID.")],
        where: Where = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Take a master out of the set and end its process. A leader hands over first."""
        with connect(where) as database, make_console(stderr=True).status(f"removing {master}"):
            members = database.remove_master(master)
        _show(members, as_json)

    return app


def _show(members: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"masters": members})
        return
    rows = [
        [m["name"], m["uuid"], m["address"], "voter" if m["voter"] else "non-voter"]
        for m in members
    ]
    print_table("masters", ["master", "uuid", "address", "state"], rows)
