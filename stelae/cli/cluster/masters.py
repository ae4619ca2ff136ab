"""``stelae master add | remove | list``: the masters of a running cluster."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

master_app = typer.Typer(
    name="master",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List, add and remove masters of a running cluster.",
)


@master_app.command("list")
def master_list(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show the masters; a non-voter is still being brought up."""
    with open_cluster(where) as database:
        _show(database.masters(), as_json)


@master_app.command("add")
def master_add(
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
    with open_cluster(where) as database, make_console(stderr=True).status("adding a master"):
        members = database.add_master(name)
    _show(members, as_json)


@master_app.command("remove")
def master_remove(
    master: Annotated[str, typer.Argument(help="Its name, or its UUID.")],
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take a master out of the set and end its process. A leader hands over first."""
    with open_cluster(where) as database, make_console(stderr=True).status(f"removing {master}"):
        members = database.remove_master(master)
    _show(members, as_json)


def _show(members: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"masters": members})
        return
    rows = [
        [m["name"], m["uuid"], m["address"], "voter" if m["voter"] else "non-voter"]
        for m in members
    ]
    print_table("masters", ["master", "uuid", "address", "state"], rows)
