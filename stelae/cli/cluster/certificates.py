"""``stelae certificate``: the certificate of the HTTP front, shown and renewed. (design §12)"""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.output import make_console, print_json, print_table, progress_bar
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.deploy.certificates import Shown

certificate_app = typer.Typer(
    name="certificate",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="The certificate of the HTTP front (serve.tls).",
)
ENDS_SOON = 1


@certificate_app.command("show")
def certificate_show(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show what new connections are shown, by each of Serve's proxies, and what its files have.

    Exit code 1: one ends within 14 days, or cannot be told.

    \b
    stelae certificate show
    stelae certificate show --json | jq '.certificates[].ends'
    """
    with open_cluster(where) as database:
        found = database.certificates()
    _show(found, as_json)
    if any(each.ends_soon(time.time()) for each in found):
        raise typer.Exit(ENDS_SOON)


@certificate_app.command("renew")
def certificate_renew(
    timeout: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="Wait for so long, at most.")
    ] = 60.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Have the files of serve.tls read again, once they were replaced; nothing is ended for it.

    They are tried first, on every node with a proxy of Serve's: files that cannot be read, a key of
    another certificate, or one that has expired are refused, and the old certificate is served on.
    Then one proxy after the other shows new connections the new one; open connections go on as they
    are. The paths stay: files are replaced, both of them before this command.

    \b
    cp new-cert.pem /etc/stelae/cert.pem && cp new-key.pem /etc/stelae/key.pem
    stelae certificate renew
    """
    with open_cluster(where) as database, progress_bar("renewing the certificate") as tell:
        found = database.renew_certificate(progress=tell, timeout=timeout)
    _show(found, as_json)


def _show(found: list[Shown], as_json: bool) -> None:
    if as_json:
        print_json({"certificates": [described(each) for each in found]})
        return
    rows = [
        [each["node"], ", ".join(each["names"]), each["ends"], each["serial"], each["files"]]
        for each in map(described, found)
    ]
    print_table("certificate", ["node", "for", "ends", "serial", "files"], rows)
    for each in found:
        if each.problem:
            text = f"on {each.node}: {each.problem}"
            make_console().print(text, style="red", markup=False, soft_wrap=True)


def described(shown: Shown) -> dict[str, Any]:
    """A proxy's certificate, as JSON has it."""
    served, files = shown.served, "no good"
    if shown.is_same:
        files = "the same"
    elif shown.files is not None:
        files = "another one (`stelae certificate renew`)"
    return {
        "node": shown.node,
        "names": [] if served is None else list(served.names),
        "ends": "" if served is None else _time(served.ends_at),
        "serial": "" if served is None else served.serial,
        "files": files,
        "problem": shown.problem,
    }


def _time(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
