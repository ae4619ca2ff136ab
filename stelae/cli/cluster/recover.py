"""``stelae recover``: what tablets cannot be recovered for want of their segments, and the way past
it. (design §13)"""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from stelae.cli.output import make_console, megabytes, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.core.records.losses import LossRecord, LossReport, TabletLoss

WAITING = 1

OfTablets = Annotated[
    list[str] | None, typer.Option("--tablet", metavar="ID", help="Only of this tablet.")
]


def recover(
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Give up for good what is missing, and go on without."),
    ] = False,
    tablet: OfTablets = None,
    gone: Annotated[
        list[str] | None,
        typer.Option(
            "--gone", metavar="BACKUP", help="This backup (name or UUID) is away for good."
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="NAME", help="Who accepts it: kept on record. You, if absent.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show which tablets wait for segments that no live backup holds, and what was ever given up.

    Such a tablet is whole again by itself once a backup returns that holds what is missing: start
    it again, or wait. If it is gone for good, [bold]--accept-loss[/bold] recovers the tablet from
    what is left. It cannot be taken back, and stays on record for ever.

    It is refused while a backup that the cluster knows is away, also one that was not heard since
    a cold start: it may hold what is missing. If its machine or disk never returns, say so for
    each: [bold]--gone backup-2[/bold]. A backup that comes back all the same is used again, but not
    for what was given up.

    Exit code 1: some tablet waits, offline, or served but for rows that are missing.

    \b
    stelae recover
    stelae recover --accept-loss
    stelae recover --accept-loss --gone backup-2 --gone backup-5
    stelae recover --accept-loss --tablet ID --by "Ada, ticket 7" --yes
    """
    if accept_loss and as_json and not yes:
        raise typer.BadParameter("with --json nobody is asked: say --yes")
    if gone and not accept_loss:
        raise typer.BadParameter("--gone is said with --accept-loss")
    with open_cluster(where) as database:
        report = database.losses()
        if not accept_loss:
            _tell(report, as_json=as_json)
            if report.waiting:
                raise typer.Exit(WAITING)
            return
        if not yes:
            meant = [each for each in report.waiting if not tablet or each.tablet_id in tablet]
            if meant:
                _show(report)
                text = f"Give up for good what {len(meant)} tablets lack?"
                typer.confirm(text, abort=True, err=True)
        records = database.accept_loss(
            report, by=by or getpass.getuser(), tablets=tablet or (), gone=gone or ()
        )
    _tell_accepted(records, as_json=as_json)


def _tell(report: LossReport, *, as_json: bool) -> None:
    from stelae.client.admin.losses import report_document

    if as_json:
        print_json(report_document(report))
        return
    _show(report)
    _show_accepted(report.accepted)
    if not report.waiting:
        make_console().print("no tablet waits for missing segments", style="green")


def _show(report: LossReport) -> None:
    for loss in report.waiting:
        _show_loss(loss)
    if report.waiting and report.silent:
        make_console().print("what is missing may be on")
    for backup in report.silent if report.waiting else ():
        make_console().print(f"  {backup.words}", markup=False, soft_wrap=True)


def _show_loss(loss: TabletLoss) -> None:
    from stelae.client.admin.losses import words_of

    console = make_console()
    name = f"tablet {loss.number} of {loss.table!r} ({loss.tablet_id})"
    lacks = "is served, and lacks" if loss.is_served else "lacks"
    console.print(f"{name} {lacks}", style="red", markup=False, soft_wrap=True)
    for line in words_of(loss):
        console.print(f"  {line}", markup=False, soft_wrap=True)
    kept = f"{loss.kept_segments:,} segments, {megabytes(loss.kept_bytes)}"
    console.print(f"  what is left: {kept}", markup=False)


def _show_accepted(records: tuple[LossRecord, ...]) -> None:
    from datetime import UTC, datetime

    rows = [
        [
            record.number,
            datetime.fromtimestamp(record.accepted_at, UTC).isoformat(" ", "seconds"),
            record.accepted_by,
            record.loss.table,
            record.loss.number,
            len(record.loss.segments),
            "yes" if record.loss.is_end_lost else "no",
        ]
        for record in records
    ]
    if rows:
        columns = ["loss", "accepted at", "by", "table", "tablet", "segments", "end of the log"]
        print_table("losses accepted", columns, rows)


def _tell_accepted(records: tuple[LossRecord, ...], *, as_json: bool) -> None:
    from stelae.client.admin.losses import record_document

    if as_json:
        print_json({"accepted": [record_document(record) for record in records]})
        return
    _show_accepted(records)
    make_console().print("they are recovered from what is left; `stelae status` shows how far")
