"""``stelae safekeeper migrate | abort``, ``stelae tablet safekeepers``: where logs lie.

The masters do the work, whoever leads them. Only waiting ends with Ctrl-C; a move that was taken
goes on.

Implements seed 004 ("API"); design §10, §12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from stelae.cli.cluster.safekeepers import safekeeper_app, stage_of
from stelae.cli.output import make_console, megabytes, print_json, print_table, progress_bar
from stelae.cli.table.locate import tablet_app
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.client.admin.timeline_views import MemberView
    from stelae.core.messages.timelines import MigrationResult, ScheduledMigration, TimelineView
    from stelae.database.api import Database

timeline_app = safekeeper_app
"""With the commands of this module."""
FAILED, INTERRUPTED = 1, 130

Tablet = Annotated[str, typer.Argument(help="Id of a tablet.")]


# ---- moves ----------------------------------------------------------------------------------


@safekeeper_app.command("migrate")
def safekeeper_migrate(
    to: Annotated[
        str, typer.Option("--to", metavar="A,B,C", help="Ids or names; with --from, one of them.")
    ],
    source: Annotated[
        str, typer.Option("--from", help="Move everything off this one.", show_default=False)
    ] = "",
    table: Annotated[
        str, typer.Option("--table", help="Move the logs of this table.", show_default=False)
    ] = "",
    tablet: Annotated[
        str, typer.Option("--tablet", help="Move the log of this tablet.", show_default=False)
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --from: so many logs.", show_default="all")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Return once it is done.")] = True,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Move logs to other safekeepers, while writes go on.

    --to names all that a log is to be on, as many as the table's wal(n) says; those that have it
    already copy nothing. Ctrl-C ends waiting and nothing else: the masters go on.

    \b
    stelae safekeeper migrate --table flights --to 2,3,4
    stelae safekeeper migrate --tablet 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c --to 2,3,4
    stelae safekeeper migrate --from safekeeper-1 --to safekeeper-4 --limit 10
    """
    targets = [each.strip() for each in to.split(",") if each.strip()]
    if sum(map(bool, (source, table, tablet))) != 1:
        raise typer.BadParameter("say what is to move: one of --from, --table, --tablet")
    if limit is not None and not source:
        raise typer.BadParameter("--limit goes with --from", param_hint="--limit")
    if source and len(targets) != 1:
        raise typer.BadParameter("with --from it is one safekeeper", param_hint="--to")
    with open_cluster(where) as database:
        if source:
            taken = database.migrate_safekeeper(source, targets[0], limit=limit)
        elif table:
            taken = database.migrate_table(table, targets)
        else:
            taken = database.migrate_timeline(tablet, targets)
        failed = _wait(database, taken) if wait else []
    _show_moved(taken, failed, wait, as_json)
    if failed:
        raise typer.Exit(FAILED)


def _wait(database: Database, taken: Sequence[ScheduledMigration]) -> list[str]:
    """Wait for all of them; why those failed that did. Exits with 130 on Ctrl-C."""
    from stelae.core.errors import StelaeError

    failed: list[str] = []
    with progress_bar(f"moving {len(taken)} logs") as tell:
        for done, each in enumerate(taken):

            def on_look(view: TimelineView, done: int = done) -> None:
                running = view.running
                what = stage_of(running) if running is not None else "taken"
                tell(done, len(taken), f"{view.tablet.tablet_id[:8]}: {what}")

            try:
                database.wait_migrated(each, on_look=on_look)
            except StelaeError as error:  # of one log: the others are waited for
                failed.append(str(error))
            except KeyboardInterrupt:
                _leave(taken)
    return failed


def _leave(taken: Sequence[ScheduledMigration]) -> NoReturn:
    look = "stelae safekeeper status"
    stop = "stelae safekeeper abort TABLET"
    if len(taken) == 1:
        tablet = taken[0].timeline.tablet_id
        look, stop = f"stelae tablet safekeepers {tablet}", f"stelae safekeeper abort {tablet}"
    text = f"waiting has ended, the move goes on. To look at it: {look}; to take it back: {stop}"
    make_console(stderr=True).print(text, markup=False, soft_wrap=True)
    raise typer.Exit(INTERRUPTED)


def _show_moved(
    taken: Sequence[ScheduledMigration], failed: Sequence[str], waited: bool, as_json: bool
) -> None:
    from stelae.client.admin.timeline_views import scheduled_document

    if as_json:
        scheduled = [scheduled_document(each) for each in taken]
        print_json({"scheduled": scheduled, "waited": waited, "failed": failed})
        return
    out = make_console()
    if not taken:
        out.print("nothing to move")
    for problem in failed:
        out.print(problem, style="red", markup=False, soft_wrap=True)
    for each in taken if not waited or not failed else ():
        words = "is on" if waited else "is to move to"
        text = f"the log of {each.timeline.tablet_id} {words} safekeepers {list(each.desired_set)}"
        out.print(text, markup=False, soft_wrap=True)
    if failed:
        out.print(f"{len(taken) - len(failed)} of {len(taken)} logs have moved")


@safekeeper_app.command("abort")
def safekeeper_abort(
    tablet: Tablet, where: Where = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Take the move of a tablet's log back, as long as the new safekeepers do not have the say.

    Exit code 1 if that is not decided yet.

    \b
    stelae safekeeper abort 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c
    """
    from stelae.client.admin.timeline_views import result_document

    with open_cluster(where) as database:
        found = database.abort_migration(tablet)
    if as_json:
        print_json(result_document(found))
    else:
        make_console().print(aborted(found), markup=False, soft_wrap=True)
    if not is_decided(found):
        raise typer.Exit(FAILED)


def is_decided(found: MigrationResult) -> bool:
    """Whether no move is under way any more."""
    return found.verdict in ("aborted", "done")


def aborted(found: MigrationResult) -> str:
    """What has come of it, in a sentence."""
    tablet = found.timeline.tablet_id
    why = f": {found.reason}" if found.reason else ""
    match found.verdict:
        case "aborted":
            return f"the move of {tablet} was taken back (generation {found.generation})"
        case "done":
            return f"the log of {tablet} stays where it is{why}"
        case verdict:
            return f"the move of {tablet} is not taken back yet: {verdict}{why}"


# ---- one tablet -----------------------------------------------------------------------------


@tablet_app.command("safekeepers")
def tablet_safekeepers(
    tablet: Tablet, where: Where = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Show where a tablet's log lies: its safekeepers, what each has, and a move under way.

    The numbers are what the safekeepers say themselves: up to "flush" they have the log on disk, up
    to "commit" they know it to be committed.

    \b
    stelae table locate flights        shows the ids of tablets
    stelae tablet safekeepers 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c
    watch -n 1 stelae tablet safekeepers 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c
    """
    from stelae.client.admin.timeline_views import timeline_document

    with open_cluster(where) as database:
        view = database.locate_timeline(tablet)
        members = database.timeline_members(view)
    if as_json:
        documents = [member.document() for member in members]
        print_json({**timeline_document(view), "members": documents})
    else:
        _show_timeline(view, members)


def _show_timeline(view: TimelineView, members: Sequence[MemberView]) -> None:
    from stelae.client.admin.timeline_views import newest

    conf, out = newest(view), make_console()
    moving = f", moving to {list(conf.new_sk_set)}" if conf.new_sk_set is not None else ""
    title = f"generation {conf.generation}: safekeepers {list(conf.sk_set)}{moving}"
    print_table(title, [
        "id", "safekeeper", "address", "state", "generation", "term", "flush", "commit", "log",
        "problem",
    ], [_member_row(member) for member in members])  # fmt: skip
    if view.store_problem:
        text = f"as the catalog was told; the configuration store: {view.store_problem}"
        out.print(text, style="red", markup=False, soft_wrap=True)
    if view.running is not None:
        out.print(f"under way: {stage_of(view.running)}", markup=False, soft_wrap=True)
    elif view.ended is not None:
        ended = view.ended
        why = f": {ended.reason}" if ended.reason else ""
        out.print(f"last: {ended.request}: {ended.verdict}{why}", markup=False, soft_wrap=True)


def _member_row(member: MemberView) -> list[Any]:
    from stelae.core.records.timelines import term_text

    first, held = [member.safekeeper_id, member.name, member.address], member.held
    if held is None:
        return [*first, "?", "", "", "", "", "", member.problem]
    return [
        *first,
        held.presence.value,
        held.generation,
        term_text(held.term),
        held.flush_lsn,
        held.commit_lsn,
        megabytes(held.log_bytes),
        member.problem,
    ]
