"""``stelae token``: access tokens of the HTTP front, made, listed, revoked. (design §12)"""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, files_of, open_cluster
from stelae.core.config.units import parse_duration
from stelae.core.errors import InvalidArgument

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
    tables: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="NAME",
            help="It is good for this table alone; may be repeated. Not with the role admin.",
            show_default=False,
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="It is refused after that time, as in 30d or 12h; absent: never.",
            show_default=False,
        ),
    ] = None,
    cluster: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a token, and print it, this once: only its hash is kept.

    \b
    stelae token create dashboard
    TOKEN=$(stelae token create loader --role write)
    stelae token create partner --table flights --table airports --expires 30d
    """
    lifetime_s = None if expires is None else _lifetime_s(expires)
    with open_cluster(cluster) as database:
        token = database.create_token(name, role, tables=tables or (), lifetime_s=lifetime_s)
    if as_json:
        made = {"name": name, "role": role, "tables": tables or None, "lifetime_s": lifetime_s}
        print_json({**made, "token": token})
    else:
        typer.echo(token)


@token_app.command("list")
def token_list(cluster: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show the tokens that were made: names, roles, and what they are good for.

    \b
    stelae token list
    """
    from stelae.client.admin.tokens import launch_token_document
    from stelae.serve.gateway.tokens import entries_of_folder

    with open_cluster(cluster) as database, files_of(cluster, database) as home:
        found = database.tokens()
        found += [launch_token_document(e.name, e.role) for e in entries_of_folder(home)]
    if as_json:
        print_json({"tokens": found})
        return
    rows = [
        [
            token["name"],
            token["role"],
            ", ".join(token["tables"] or ["all"]),
            _expiry(token["expires_at"]),
            _time(token["created_at"]),
            token["created_by"],
        ]
        for token in found
    ]
    print_table("tokens", ["name", "role", "tables", "expires", "made", "by"], rows)


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


def _lifetime_s(text: str) -> float:
    """Raises InvalidArgument."""
    try:
        lifetime_s = parse_duration(text)
    except ValueError as error:
        raise InvalidArgument(f"--expires {error}") from None
    if not lifetime_s:
        raise InvalidArgument("--expires 0: above 0; without --expires it never expires")
    return lifetime_s


def _expiry(at_s: float | None) -> str:
    if at_s is None:
        return "never"
    has_ended = at_s <= datetime.datetime.now().timestamp()
    return f"{_time(at_s)}{' (expired)' if has_ended else ''}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.datetime.fromtimestamp(seconds).isoformat(" ", "seconds")
