"""``stelae tablet quarantine``: what deleted replicas have left on disks, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stelae.cli.output import make_console, megabytes, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.client.admin.quarantine import QuarantineReport

UNANSWERED = 1

quarantine_app = typer.Typer(
    name="quarantine",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Look at what deleted replicas have left on disks, and remove it for good.",
)

OfServer = Annotated[
    str, typer.Option("--server", metavar="NAME", help="Only on this server: name or UUID.")
]
OfTablet = Annotated[str, typer.Option("--tablet", metavar="ID", help="Only of this tablet.")]


@quarantine_app.command("list")
def quarantine_list(
    server: OfServer = "",
    tablet: OfTablet = "",
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what lies in the quarantines of the tablet servers, where, and for how long.

    A replica that is deleted (its table was dropped, it was moved away, or it had failed and was
    replaced) leaves its files here, in case that was a mistake. They are removed after a week, or
    after what `tservers.quarantine_keep` in cluster.yaml says.

    Exit code 1: some server does not answer.

    \b
    stelae tablet quarantine list
    stelae tablet quarantine list --server tserver-2 --json | jq .bytes
    """
    with open_cluster(where) as database:
        report = database.quarantine(server=server, tablet=tablet)
    if as_json:
        print_json(report.document())
    else:
        _show(report)
        size = megabytes(report.size_bytes)
        make_console().print(f"{len(report.entries)} deleted replicas, {size}")
    _end(report)


@quarantine_app.command("purge")
def quarantine_purge(
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Only what is there for so long: 12h, 3d.")
    ] = "0s",
    server: OfServer = "",
    tablet: OfTablet = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Remove for good what deleted replicas have left; no live replica is touched.

    Exit code 1: some server does not answer; what the others had is removed.

    \b
    stelae tablet quarantine purge
    stelae tablet quarantine purge --older-than 1d --server tserver-2 --yes
    """
    from stelae.core.config.units import parse_duration

    try:
        older_than_s = parse_duration(older_than)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from None
    if as_json and not yes:
        raise typer.BadParameter("with --json nobody is asked: say --yes")
    with open_cluster(where) as database:
        if not yes:
            found = database.quarantine(server=server, tablet=tablet)
            meant = [e for e in found.entries if e.entry.age_s >= older_than_s]
            if not meant:
                make_console().print("there is nothing to remove")
                return _end(found)
            size = megabytes(sum(e.entry.size_bytes for e in meant))
            text = f"Remove the files of {len(meant)} deleted replicas ({size}) for good?"
            typer.confirm(text, abort=True, err=True)
        report = database.purge_quarantine(server=server, tablet=tablet, older_than=older_than_s)
    if as_json:
        print_json(report.document())
    else:
        size = megabytes(report.size_bytes)
        make_console().print(f"removed the files of {len(report.entries)} deleted replicas, {size}")
    return _end(report)


def _show(report: QuarantineReport) -> None:
    rows = [
        [
            each.server,
            each.entry.tablet_id,
            each.entry.table,
            megabytes(each.entry.size_bytes),
            _age(each.entry.age_s),
            each.entry.folder,
        ]
        for each in report.entries
    ]
    if rows:
        columns = ["server", "tablet", "table", "size", "for", "folder in its data directory"]
        print_table("quarantine", columns, rows)


def _age(age_s: float) -> str:
    for unit, unit_s in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if age_s >= 2 * unit_s:
            return f"{age_s / unit_s:.0f} {unit}"
    return f"{age_s:.0f} s"


def _end(report: QuarantineReport) -> None:
    """Tell of servers that did not answer, and that this is not all."""
    for name, why in report.silent.items():
        text = f"{name} was not asked: {why}"
        make_console(stderr=True).print(text, style="yellow", markup=False, soft_wrap=True)
    if report.silent:
        raise typer.Exit(UNANSWERED)
