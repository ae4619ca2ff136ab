"""``stelae token``: access tokens of the HTTP front, made, listed, revoked. (design §12)"""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, files_of, open_cluster

token_app = typer.Typer(
    name="token",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Access tokens of the HTTP front. The one of launch is in DATA_DIR/admin-token.",
)

Name = Annotated[str, typer.Argument(help="The token's name: the audit log tells by it.")]


@token_app.command("create")
def token_create(
    name: Name,
    role: Annotated[str, typer.Option(help="read, write (rows, too) or admin.")] = "read",
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a token, and print it, this once: only its hash is kept.

    \b
    stelae token create dashboard
    TOKEN=$(stelae token create loader --role write)
    """
    with open_cluster(cluster) as database:
        token = database.create_token(name, role)
    if as_json:
        print_json({"name": name, "role": role, "token": token})
    else:
        typer.echo(token)


@token_app.command("list")
def token_list(cluster: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show the tokens that were made: names and roles.

    \b
    stelae token list
    """
    from stelae.serve.gateway.tokens import entries_of_folder

    with open_cluster(cluster) as database, files_of(cluster, database) as home:
        found = database.tokens()
        found += [
            {"name": e.name, "role": e.role.value, "created_at": None, "created_by": "launch"}
            for e in entries_of_folder(home)
        ]
    if as_json:
        print_json({"tokens": found})
        return
    rows = [[t["name"], t["role"], _time(t["created_at"]), t["created_by"]] for t in found]
    print_table("tokens", ["name", "role", "made", "by"], rows)


@token_app.command("revoke")
def token_revoke(
    name: Name, cluster: Where = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Refuse a token from now on, in every replica within two seconds.

    Of the one made at launch ([bold]admin[/bold]) the next launch makes another.

    \b
    stelae token revoke dashboard
    """
    with open_cluster(cluster) as database, files_of(cluster, database) as home:
        database.revoke_token(name, data_dir=home)
    if as_json:
        print_json({"name": name, "revoked": True})
    else:
        make_console().print(f"{name} is refused from now on", markup=False)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
