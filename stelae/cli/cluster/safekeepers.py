"""``stelae safekeeper list | status | set-status | scrub``: who keeps the logs of tables.

What moves logs is in `stelae.cli.cluster.timelines`.

Implements seed 004 ("API"); design §10, §12.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.core.messages.timelines import (
        MigrationList,
        MigrationProgress,
        SafekeeperView,
        ScrubReply,
    )
    from stelae.database.api import Database

safekeeper_app = typer.Typer(
    name="safekeeper",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List safekeepers, say what is to be expected of them, and move logs between them.",
)
FAILED = 1

Safekeeper = Annotated[str, typer.Argument(help="Its id, or its name.")]


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
    from stelae.client.admin.timeline_views import safekeeper_document

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
    from stelae.client.admin.timeline_views import migrations_document, safekeeper_document

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
        what = f"{record.name} (safekeeper {record.safekeeper_id}) is active, but not live"
        found.append(f"{what}: {_what_now(safekeeper)}")
    if safekeeper.broken and record.status.value != Status.DECOMMISSIONED:
        found.append(
            f"{record.name} (safekeeper {record.safekeeper_id}): {safekeeper.broken} logs do "
            "nothing any more there"
        )
    return found


def _what_now(safekeeper: SafekeeperView) -> str:
    """What comes of one that is away, or what an operator can do."""
    if safekeeper.timelines:
        return f"if it stays away, others take over its logs ({safekeeper.timelines})"
    number = safekeeper.record.safekeeper_id
    return f"if it never comes back: stelae safekeeper set-status {number} decommissioned"


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
            [each.timeline.tablet_id, f"{list(each.members)}", _wanted(each), stage_of(each)]
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


def stage_of(progress: MigrationProgress) -> str:
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
    from stelae.client.admin.timeline_views import safekeeper_document

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
    from stelae.client.admin.timeline_views import scrub_document

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
