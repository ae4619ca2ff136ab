"""``stelae safekeeper`` and ``stelae tablet safekeepers``: where logs of ``wal(n)`` tables lie.

The masters do the work, whoever leads them. Only waiting ends with Ctrl-C; a move that was taken
goes on.

Implements seed 004 ("API"); design §10, §12.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from stelae.cli_cluster import Debug, Json, Where, open_cluster
from stelae.cli_locate import tablet_app
from stelae.cli_output import make_console, megabytes, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from stelae.api import Database
    from stelae.client.timeline_views import MemberView
    from stelae.core.timeline_messages import (
        MigrationList,
        MigrationProgress,
        MigrationResult,
        SafekeeperView,
        ScheduledMigration,
        ScrubReply,
        TimelineView,
    )

safekeeper_app = typer.Typer(
    name="safekeeper",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List safekeepers, say what is to be expected of them, and move logs between them.",
)
FAILED, INTERRUPTED = 1, 130

Safekeeper = Annotated[str, typer.Argument(help="Its id, or its name.")]
Tablet = Annotated[str, typer.Argument(help="Id of a tablet.")]


class Status(enum.StrEnum):
    """``active | offline | decommissioned``."""

    ACTIVE = "active"
    OFFLINE = "offline"
    DECOMMISSIONED = "decommissioned"


# ---- safekeepers ----------------------------------------------------------------------------


@safekeeper_app.command("list")
def safekeeper_list(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show all safekeepers that ever registered, and of how many logs each is a member.

    \b
    stelae safekeeper list
    stelae safekeeper list --json | jq '.safekeepers[] | select(.live | not) | .name'
    """
    from stelae.client.timeline_views import safekeeper_document

    with open_cluster(where) as database:
        found = database.safekeepers()
    if as_json:
        print_json({"safekeepers": [safekeeper_document(each) for each in found]})
    else:
        _show_safekeepers(found)


@safekeeper_app.command("status")
def safekeeper_status(
    safekeeper: Annotated[
        str | None,
        typer.Argument(help="Only this one: its id, or its name.", show_default=False),
    ] = None,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show safekeepers, the moves under way, and how the last ones ended.

    Of one safekeeper it shows whose logs it keeps, too. Exit code 1 if an active safekeeper is not
    live, or a log on it does nothing any more because its disk failed.

    \b
    stelae safekeeper status
    stelae safekeeper status safekeeper-2
    stelae safekeeper status --json | jq '.migrations.running'
    """
    from stelae.client.timeline_views import migrations_document, safekeeper_document

    with open_cluster(where) as database:
        found, migrations = database.safekeepers(), database.migrations()
        held: list[dict[str, Any]] = []
        if safekeeper is not None:
            number = database.safekeeper_id(safekeeper)
            found = [each for each in found if each.record.safekeeper_id == number]
            if not found:
                raise typer.BadParameter(f"there is no safekeeper {safekeeper}")
            held = _held(database, number)
    problems = [problem for each in found for problem in problems_of(each)]
    if as_json:
        document: dict[str, Any] = {
            "safekeepers": [safekeeper_document(each) for each in found],
            "migrations": migrations_document(migrations),
            "problems": problems,
        }
        print_json(document | ({} if safekeeper is None else {"timelines": held}))
    else:
        _show_status(found, held, migrations, problems)
    if problems:
        raise typer.Exit(FAILED)


def problems_of(safekeeper: SafekeeperView) -> list[str]:
    """What is not well with a safekeeper, as sentences."""
    record, found = safekeeper.record, []
    if record.status.value == Status.ACTIVE and not safekeeper.is_live:
        found.append(f"{record.name} (safekeeper {record.safekeeper_id}) is active, but not live")
    if safekeeper.broken and record.status.value != Status.DECOMMISSIONED:
        found.append(
            f"{record.name} (safekeeper {record.safekeeper_id}): {safekeeper.broken} logs do "
            "nothing any more there"
        )
    return found


def _held(database: Database, number: int) -> list[dict[str, Any]]:
    """The timelines of which a safekeeper is a member, by the catalog."""
    import msgspec

    return [
        {
            "tenant_id": table,
            "timeline_id": tablet,
            "configuration": msgspec.to_builtins(configuration),
        }
        for table, tablet, configuration in database.timelines().timelines
        if number in configuration.members
    ]


def _show_safekeepers(found: Sequence[SafekeeperView]) -> None:
    rows = [
        [
            each.record.safekeeper_id,
            each.record.name,
            each.record.status.value,
            "live" if each.is_live else "dead",
            each.address,
            each.record.node,
            f"{each.timelines}" + (f", {each.broken} broken" if each.broken else ""),
        ]
        for each in found
    ]
    if rows:
        columns = ["id", "safekeeper", "status", "state", "address", "node", "logs"]
        print_table("safekeepers", columns, rows)
    else:
        make_console().print("no safekeeper has registered: see safekeepers in cluster.yaml")


def _show_status(
    found: Sequence[SafekeeperView],
    held: Sequence[dict[str, Any]],
    migrations: MigrationList,
    problems: Sequence[str],
) -> None:
    _show_safekeepers(found)
    if held:
        rows = [
            [each["timeline_id"], conf["generation"], conf["sk_set"], conf["new_sk_set"] or ""]
            for each in held
            for conf in (each["configuration"],)
        ]
        print_table("its logs", ["tablet", "generation", "safekeepers", "moving to"], rows)
    if migrations.running:
        rows = [
            [each.timeline.tablet_id, f"{list(each.members)}", _wanted(each), _stage(each)]
            for each in migrations.running
        ]
        print_table("under way", ["tablet", "from", "to", "how far"], rows)
    moves = [each for each in migrations.ended if each.request.startswith(("move", "abort"))]
    if moves:
        rows = [
            [each.timeline.tablet_id, each.request, each.verdict, each.reason]
            for each in moves[-20:]
        ]
        print_table("the last that ended", ["tablet", "request", "verdict", "reason"], rows)
    for problem in problems:
        make_console().print(problem, style="red", markup=False)


def _wanted(progress: MigrationProgress) -> str:
    return "" if progress.desired is None else f"{list(progress.desired)}"


def _stage(progress: MigrationProgress) -> str:
    """Where a migration is, and what it waits for."""
    named = f"step {progress.step}: {progress.step_name}" if progress.step else "waits for a turn"
    if progress.problems:
        return f"{named}; " + "; ".join(f"{k}: {v}" for k, v in progress.problems.items())
    waits = ", ".join(progress.waits_for) if progress.step else ""
    return f"{named}; waits for: {waits}" if waits else named


@safekeeper_app.command("set-status")
def safekeeper_set_status(
    safekeeper: Safekeeper,
    status: Annotated[Status, typer.Argument(help="What is to be expected of it.")],
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what is to be expected of a safekeeper.

    [bold]active[/bold]: it serves; if it stays away for long, others take its logs over.
    [bold]offline[/bold]: it is away and expected back; it gets nothing new and keeps its logs.
    [bold]decommissioned[/bold]: it never comes back; others take its logs over at once.

    \b
    stelae safekeeper set-status safekeeper-2 offline
    stelae safekeeper set-status 2 active
    """
    from stelae.client.timeline_views import safekeeper_document

    with open_cluster(where) as database:
        found = database.set_safekeeper_status(safekeeper, status.value)
    if as_json:
        print_json(safekeeper_document(found))
    else:
        record = found.record
        left = f"; {found.timelines} logs are to move" if _is_leaving(found) else ""
        text = f"{record.name} (safekeeper {record.safekeeper_id}) is {record.status.value}{left}"
        make_console().print(text, markup=False)


def _is_leaving(found: SafekeeperView) -> bool:
    return found.record.status.value == Status.DECOMMISSIONED and found.timelines > 0


@safekeeper_app.command("scrub")
def safekeeper_scrub(
    safekeeper: Safekeeper, where: Where = None, as_json: Json = False, debug: Debug = False
) -> None:
    """Remove from a safekeeper the logs that it should not have any more.

    What it should have is what the configuration store says. Logs of which the store knows nothing
    are somebody else's, and are left alone. Exit code 1 if something could not be removed.

    \b
    stelae safekeeper scrub safekeeper-2
    """
    from stelae.client.timeline_views import scrub_document

    with open_cluster(where) as database, make_console(stderr=True).status("scrubbing"):
        found = database.scrub_safekeeper(safekeeper)
    if as_json:
        print_json(scrub_document(found))
    else:
        _show_scrubbed(safekeeper, found)
    if found.problems:
        raise typer.Exit(FAILED)


def _show_scrubbed(safekeeper: str, found: ScrubReply) -> None:
    out = make_console()
    text = f"safekeeper {safekeeper} held {found.held} logs; {len(found.removed)} were removed"
    if found.unknown:
        text += f"; {len(found.unknown)} are unknown to the store and were left alone"
    out.print(text, markup=False)
    for tablet, problem in found.problems.items():
        out.print(f"{tablet}: {problem}", style="red", markup=False, soft_wrap=True)


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
    from stelae.core.errors import RetryLater

    failed: list[str] = []
    with progress_bar(f"moving {len(taken)} logs") as tell:
        for done, each in enumerate(taken):

            def on_look(view: TimelineView, done: int = done) -> None:
                running = view.running
                what = _stage(running) if running is not None else "taken"
                tell(done, len(taken), f"{view.tablet.tablet_id[:8]}: {what}")

            try:
                database.wait_migrated(each, on_look=on_look)
            except RetryLater as error:
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
    from stelae.client.timeline_views import scheduled_document

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
    from stelae.client.timeline_views import result_document

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
    from stelae.client.timeline_views import timeline_document

    with open_cluster(where) as database:
        view = database.locate_timeline(tablet)
        members = database.timeline_members(view)
    if as_json:
        documents = [member.document() for member in members]
        print_json({**timeline_document(view), "members": documents})
    else:
        _show_timeline(view, members)


def _show_timeline(view: TimelineView, members: Sequence[MemberView]) -> None:
    from stelae.client.timeline_views import newest

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
        out.print(f"under way: {_stage(view.running)}", markup=False, soft_wrap=True)
    elif view.ended is not None:
        ended = view.ended
        why = f": {ended.reason}" if ended.reason else ""
        out.print(f"last: {ended.request}: {ended.verdict}{why}", markup=False, soft_wrap=True)


def _member_row(member: MemberView) -> list[Any]:
    first, held = [member.safekeeper_id, member.name, member.address], member.held
    if held is None:
        return [*first, "?", "", "", "", "", "", member.problem]
    return [
        *first,
        held.presence.value,
        held.generation,
        held.term,
        held.flush_lsn,
        held.commit_lsn,
        megabytes(held.log_bytes),
        member.problem,
    ]
