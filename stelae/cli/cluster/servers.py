"""``stelae server``, ``tablet move``, ``tablet copy``, ``rebalance``: servers and replicas.

The masters do the work, whoever leads them: a command that waits may be interrupted at any time,
and given again to see how far it is.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.output import (
    make_console,
    megabytes,
    print_json,
    print_table,
    progress_bar,
    show_copies,
)
from stelae.cli.table.locate import tablet_app
from stelae.cli.which_cluster import STATUS_TIMEOUT_S, Debug, Json, Where, open_cluster
from stelae.database.progress import retiring_told, what_is_left

if TYPE_CHECKING:
    from stelae.client.admin.operators import MoveStage
    from stelae.core.messages.operators import RebalancingState, ServerProgress

server_app = typer.Typer(
    name="server",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List servers of all kinds, stop, start, restart, retire and replace them.",
)
rebalance_app = typer.Typer(
    name="rebalance",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Spread replicas and leaders evenly over servers, by and by.",
)

copy_app = typer.Typer(
    name="copy",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Look at copies of tablets between servers, and cancel them.",
)
tablet_app.add_typer(copy_app)
CANNOT_LEAVE = 1

Server = Annotated[str, typer.Argument(help="Its name, or its UUID.")]
Timeout = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="Wait for so long, at most.")
]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Return once it is done.")]


class Kind(enum.StrEnum):
    """Kinds of servers, in the order in which they are shown."""

    MASTER = "master"
    TSERVER = "tserver"
    BACKUP = "backup"
    SAFEKEEPER = "safekeeper"
    CAS_STORE = "cas_store"


class Switch(enum.StrEnum):
    """``on | off``."""

    ON = "on"
    OFF = "off"


# ---- servers --------------------------------------------------------------------------------


@server_app.command("list")
def server_list(
    kind: Annotated[
        Kind | None,
        typer.Option("--kind", "-k", help="Only servers of this kind.", show_default=False),
    ] = None,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show all servers of all kinds, what is wanted of each, and what each has.

    A server that was stopped by `stelae server stop` is [bold]stopped[/bold]: `stelae server start`
    starts it. One that is to leave shows what it waits for.

    \b
    stelae server list
    stelae server list --kind tserver
    stelae server list --json | jq '.servers[] | select(.retiring) | {name, waits}'
    """
    with open_cluster(where) as database:
        servers = database.servers("" if kind is None else kind.value)
    if as_json:
        print_json({"servers": servers})
        return
    for each in Kind:
        if shown := [server for server in servers if server["kind"] == each.value]:
            _show_kind(each, shown)


def _show_kind(kind: Kind, servers: list[dict[str, Any]]) -> None:
    """One table for servers of one kind, which all have the same."""
    has = _HAVE[kind]
    rows = [
        [
            server["name"],
            _state(server),
            server["address"],
            f"{server['rack']}/{server['node']}" if server["rack"] else server["node"],
            *(cell(server) for cell in has.values()),
            server["uuid"],
        ]
        for server in servers
    ]
    print_table(_TITLES[kind], ["server", "state", "address", "node", *has, "uuid"], rows)


def _show_servers(servers: list[dict[str, Any]]) -> None:
    _show_kind(Kind.TSERVER, servers)


def _state(server: dict[str, Any]) -> str:
    """Whether it lives, what is wanted of it, and what that waits for."""
    words = [server["state"], server.get("role", ""), *_marks(server)]
    status = server.get("status", "")
    if status and status != "active":
        words.append(status)
    text = ", ".join(dict.fromkeys(filter(None, words)))
    return f"{text}: {server['waits']}" if server.get("waits") else text


def _marks(server: dict[str, Any]) -> list[str]:
    return [word for word in ("retiring", "maintenance") if server[word]]


def _memory(server: dict[str, Any]) -> str:
    size_bytes = server.get("memory_bytes")
    return "" if size_bytes is None else megabytes(size_bytes)


def _media(server: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}: {megabytes(medium['used_bytes'])} used, {megabytes(medium['free_bytes'])} free"
        for name, medium in server.get("media", {}).items()
        if medium["used_bytes"] is not None and medium["free_bytes"] is not None
    )


def _logs(server: dict[str, Any]) -> str:
    broken = server.get("broken_logs", 0)
    return _of("logs")(server) + (f", {broken} broken" if broken else "")


def _of(key: str) -> Callable[[dict[str, Any]], str]:
    """A figure; empty where it is not known, as of a server that was never heard."""
    return lambda server: "" if server.get(key) is None else str(server[key])


def _load(server: dict[str, Any]) -> str:
    return f"{server['load_per_s']:,.0f}" if "load_per_s" in server else ""


_TITLES = {
    Kind.MASTER: "masters",
    Kind.TSERVER: "tablet servers",
    Kind.BACKUP: "backups",
    Kind.SAFEKEEPER: "safekeepers",
    Kind.CAS_STORE: "configuration stores",
}
_HAVE: dict[Kind, dict[str, Callable[[dict[str, Any]], str]]] = {
    Kind.MASTER: {},
    Kind.TSERVER: {
        "replicas": _of("replicas"),
        "leads": _of("leads"),
        "owned": _of("owned"),
        "calls/s": _load,
        "memory": _memory,
    },
    Kind.BACKUP: {"segments": _of("segments"), "media": _media, "memory": _memory},
    Kind.SAFEKEEPER: {"id": _of("safekeeper_id"), "logs": _logs, "memory": _memory},
    Kind.CAS_STORE: {"memory": _memory},
}
"""What servers of a kind have, by the column that shows it."""


@server_app.command("retire")
def server_retire(
    server: Server,
    wait: Wait = True,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take it back; what has moved stays.")
    ] = False,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Move everything off a server; then it may be stopped for good.

    It gets nothing new from now on. Replicas are moved while they serve. Tablets of tables with
    segments are closed and recovered elsewhere from their backups, one at a time: a short pause for
    each. What a backup has is made anew on others before it goes. Interrupted, it goes on; given
    again, it shows how far it is.

    One that is away ends once all that it had is elsewhere. A backup that has what no other one
    has keeps the command for two minutes; then it says what helps.

    A safekeeper's logs are moved to others; it is refused where too few others are left for a
    table. A master hands over, leaves the set, and ends, as by `stelae master remove`: there is
    nothing to take back. The configuration store stays.

    Exit code 1: it has tablets that cannot leave, because their rows are in its memory only; the
    text names their tables.

    \b
    stelae server retire tserver-3
    stelae server retire tserver-3 --no-wait
    stelae server retire tserver-3 --cancel
    stelae server retire safekeeper-2
    """
    with open_cluster(where) as database, progress_bar(f"retiring {server}") as tell:
        found = database.retire_server(
            server, wait=wait, cancel=cancel, progress=retiring_told(tell)
        )
    if as_json:
        print_json(_described(found))
    else:
        make_console().print(retired(found), markup=False, soft_wrap=True)
    if wait and not cancel and found.bound:
        raise typer.Exit(CANNOT_LEAVE)


def retired(found: ServerProgress) -> str:
    """What has come of a retirement, in a sentence."""
    from stelae.core.records.records import ServerKind

    name = found.mark.name
    if not found.mark.retiring:
        return f"{name} is not to be retired any more"
    if found.mark.kind is ServerKind.MASTER:
        return f"{name} has left the set of masters, and its process has ended"
    left = found.replicas + found.segments + found.logs
    left += found.tablets + found.indexlets if found.is_live else 0
    if left:
        why = f"; {found.problem}" if found.problem else ""
        words = "cannot be stopped yet" if left == found.bound else "is being retired"
        return f"{name} {words}: {what_is_left(left, found)}{why}"
    if found.mark.kind is ServerKind.BACKUP and not found.is_live:
        return f"{name} is away, and nothing is missing without it: it is let go of"
    return f"{name} has nothing left: it may be stopped for good"


def _described(found: ServerProgress) -> dict[str, Any]:
    mark = found.mark
    return {
        "name": mark.name,
        "uuid": mark.uuid,
        "live": found.is_live,
        "retiring": mark.retiring,
        "maintenance": mark.maintenance,
        "replicas": found.replicas,
        "owned": found.tablets,
        "indexlets": found.indexlets,
        "segments": found.segments,
        "logs": found.logs,
        "bound": found.bound,
        "problem": found.problem,
    }


@server_app.command("restart")
def server_restart(
    server: Server,
    timeout: Timeout = 120.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Restart a server of whatever kind while the others serve; wait until it is back.

    It hands its leaderships over first, so clients of tables with replicas hardly notice. Tablets
    of tables with segments are recovered from their backups, as after a crash. Once the command
    returns the next server may be restarted. One with something in its memory that is nowhere else
    is not: the text says what helps.

    \b
    stelae server restart tserver-2
    for n in 1 2 3; do stelae server restart tserver-$n || break; done
    """
    with open_cluster(where) as database, progress_bar(f"restarting {server}") as tell:
        database.restart_server(server, progress=lambda text: tell(0, 0, text), timeout=timeout)
    if as_json:
        print_json({"server": server, "restarted": True})
    else:
        make_console().print(f"{server} is back", markup=False)


@server_app.command("stop")
def server_stop(
    server: Server,
    timeout: Timeout = 120.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """End a server of whatever kind in order; Ray does not start it again.

    It hands its leaderships over first. It stays in the cluster's spec, with its folder and its
    UUID: `stelae server start` starts it again, and so does `stelae apply`. Meanwhile the cluster
    does without it as without any server that is away: after a while replicas, segments and logs
    are made again on others. `stelae server maintenance NAME on` before it keeps a tablet server's
    replicas where they are.

    It is refused, with the tables, where a table would have too few servers, where nobody else has
    what it has in its memory, and while anything is missing. Given again it goes on.

    \b
    stelae server stop backup-2
    stelae server start backup-2
    """
    with open_cluster(where) as database, progress_bar(f"stopping {server}") as tell:
        database.stop_server(server, progress=lambda text: tell(0, 0, text), timeout=timeout)
    if as_json:
        print_json({"server": server, "stopped": True})
    else:
        again = f"`stelae server start {server}` starts it again"
        make_console().print(f"{server} is stopped; {again}", markup=False, soft_wrap=True)


@server_app.command("start")
def server_start(
    server: Server,
    timeout: Timeout = 120.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Start a server that was stopped, in its folder and with its UUID; wait until it takes part.

    One that runs is only waited for.

    \b
    stelae server start backup-2
    """
    with open_cluster(where) as database, progress_bar(f"starting {server}") as tell:
        database.start_server(server, progress=lambda text: tell(0, 0, text), timeout=timeout)
    if as_json:
        print_json({"server": server, "started": True})
    else:
        make_console().print(f"{server} is back", markup=False)


@server_app.command("replace")
def server_replace(
    server: Server,
    no_drain: Annotated[
        bool,
        typer.Option("--no-drain", help="End it at once; others have all that it has."),
    ] = False,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Start the new one on another machine.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    timeout: Timeout = 24 * 3600.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give a server's name to a new, empty server: for a disk that fails, or is to be another one.

    A server that lives is drained first, as by `stelae server retire`, and then ended. Its UUID is
    fenced permanently: should its process come back, it ends. Its folders are renamed where they
    are and not deleted, and the command says their names. The new server starts under the old
    name, and the command returns once nothing lacks.

    Where every tablet server has a replica of each tablet, a drain has nowhere to go. Then
    [bold]--no-drain[/bold] ends the server without one. It is refused unless others have all that
    the server has, and while anything is missing.

    A server that is dead is replaced once nothing needs its disk: logs and replicas have a live
    majority without it, and each segment is on another backup. The text says what is waited for,
    and after two minutes of that the command ends. Where a server is drained, the command ends
    after 30 minutes in which nothing more has left it, and says what is left; the drain goes on. A
    configuration store is replaced only if its rows are in PostgreSQL. A master leaves the set,
    and the new one is added and gets its vote.

    Interrupted, it goes on when it is given again. If the new server was heard by then, the command
    only waits for the end of that, and says that it replaced nothing else. The former UUID as
    SERVER does so in any case. The exception is a server of which the masters know no UUID: once
    its new server lives, the same command replaces that one. `stelae check` says what it lacks.

    \b
    stelae server replace backup-2
    stelae server replace tserver-3 --no-drain --yes
    stelae server replace tserver-3 --elsewhere
    """
    if as_json and not yes:
        raise typer.BadParameter("with --json nobody is asked: say --yes")
    if not yes:
        typer.confirm(f"Replace {server} by an empty server, and give its disk up?", abort=True)
    with open_cluster(where) as database, progress_bar(f"replacing {server}") as tell:
        found = database.replace_server(
            server,
            drain=not no_drain,
            elsewhere=elsewhere,
            progress=lambda text: tell(0, 0, text),
            timeout=timeout,
        )
    if as_json:
        print_json(found.document())
        return
    for line in found.lines():
        make_console().print(line, markup=False, soft_wrap=True)


@server_app.command("maintenance")
def server_maintenance(
    server: Server,
    switch: Annotated[Switch, typer.Argument(help="Begin or end it.")],
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Let a tablet server be away for a while without its replicas being made anew elsewhere.

    While it lasts the server gets nothing new and hands its leaderships over.

    \b
    stelae server maintenance tserver-3 on
    stelae server maintenance tserver-3 off
    """
    with open_cluster(where) as database:
        found = database.maintain_server(server, switch is Switch.ON)
    if as_json:
        print_json(_described(found))
    else:
        words = "is in maintenance" if found.mark.maintenance else "is not in maintenance"
        make_console().print(f"{found.mark.name} {words}", markup=False)


# ---- replicas -------------------------------------------------------------------------------


@tablet_app.command("move")
def tablet_move(
    tablet: Annotated[str, typer.Argument(help="Its id.")],
    source: Annotated[
        str,
        typer.Argument(help="The server that has a replica: name or UUID.", show_default=False),
    ] = "",
    target: Annotated[
        str, typer.Argument(help="The server that gets it: name or UUID.", show_default=False)
    ] = "",
    cancel: Annotated[bool, typer.Option("--cancel", help="Give a move up.")] = False,
    wait: Wait = True,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Move one replica of a tablet from one server to another; reads and writes go on.

    The masters do it, whoever leads them. While it lasts this shows how far it is, and what it
    waits for; --cancel gives it up, and lets go of what has been copied.

    How many replicas a tablet has is its table's durability: `stelae table alter TABLE --replicas
    5` adds two to each of its tablets, and 3 removes them again.

    \b
    stelae tablet move 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c tserver-1 tserver-4
    stelae tablet move 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c --cancel
    """
    if cancel == bool(target) or not (cancel or source):
        raise typer.BadParameter("name the server to move it to, or --cancel")
    with open_cluster(where) as database, progress_bar(f"moving {tablet[:8]}") as tell:

        def progress(seen: MoveStage) -> None:
            tell(seen.copied_bytes, seen.copy_bytes, seen.text)

        record = database.move_replica(tablet, source, target, wait=wait, progress=progress)
    members = record.configuration.peers if record.configuration is not None else ()
    if as_json:
        listed = [{"name": m.name, "uuid": m.uuid, "voter": m.voter} for m in members]
        moving = record.move is not None
        print_json({"tablet": record.tablet_id, "moving": moving, "members": listed})
        return
    names = ", ".join((m.name or m.uuid) + ("" if m.voter else " (non-voter)") for m in members)
    words = "has replicas on" if record.move is None else "is being moved; it has replicas on"
    make_console().print(f"tablet {tablet} {words} {names}", markup=False, soft_wrap=True)


# ---- copies ---------------------------------------------------------------------------------


@copy_app.command("list")
def copy_list(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show which tablets are copied from where to where, and how far they are.

    A server takes a few copies at a time; the others are throttled, and begin when one has ended.

    \b
    stelae tablet copy list
    watch -n 1 stelae tablet copy list
    """
    with open_cluster(where) as database:
        copies = database.status(timeout=STATUS_TIMEOUT_S)["copies"]
    if as_json:
        print_json({"copies": copies})
    elif copies:
        show_copies(copies)
    else:
        make_console().print("no tablet is being copied")


@copy_app.command("cancel")
def copy_cancel(
    tablet: Annotated[str, typer.Argument(help="Its id.")],
    server: Annotated[str, typer.Argument(help="The server that receives it: name or UUID.")],
    hold: Annotated[
        str, typer.Option(metavar="DURATION", help="Begin no copy of it there for so long.")
    ] = "5m",
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """End the copy of a tablet that a server receives; what it wrote is removed.

    The tablet's other replicas serve on. When the hold is over its leader has it copied again, if
    that server is still to have it: to give up a move for good, use `stelae tablet move --cancel`.

    \b
    stelae tablet copy cancel 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c tserver-4
    stelae tablet copy cancel 0b0a6c8f4d5e4f6a8b7c9d0e1f2a3b4c tserver-4 --hold 1h
    """
    from stelae.core.config.units import parse_duration

    try:
        hold_s = parse_duration(hold)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--hold") from None
    with open_cluster(where) as database:
        was_running = database.cancel_copy(tablet, server, hold=hold_s)
    if as_json:
        print_json({"tablet": tablet, "server": server, "was_running": was_running})
    else:
        words = "was cancelled" if was_running else "is not under way"
        make_console().print(f"a copy of {tablet} to {server} {words}", markup=False)


# ---- rebalancing ----------------------------------------------------------------------------


@rebalance_app.command("on")
def rebalance_on(
    after: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds of calm before each step.", show_default="60"),
    ] = None,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Move one replica, or one leader, at a time, whenever nothing has been to heal for a while.

    \b
    stelae rebalance on
    stelae rebalance on --after 10
    """
    from stelae.client.admin.operators import REBALANCE_AFTER_S

    with open_cluster(where) as database:
        _show_rebalancing(database.rebalancing(after or REBALANCE_AFTER_S), as_json)


@rebalance_app.command("off")
def rebalance_off(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Move nothing any more for the sake of evenness; a move under way is finished.

    \b
    stelae rebalance off
    """
    with open_cluster(where) as database:
        _show_rebalancing(database.rebalancing(0.0), as_json)


@rebalance_app.command("status")
def rebalance_status(where: Where = None, as_json: Json = False, debug: Debug = False) -> None:
    """Show whether it is on, and how evenly replicas and leaders are spread.

    \b
    stelae rebalance status
    """
    with open_cluster(where) as database:
        state, servers = database.rebalancing(), database.tservers()
    _show_rebalancing(state, as_json, servers)


def _show_rebalancing(
    state: RebalancingState, as_json: bool, servers: list[dict[str, Any]] | None = None
) -> None:
    if as_json:
        document = {"on": state.after_s > 0, "after_s": state.after_s, "moving": state.moving}
        print_json(document if servers is None else {**document, "servers": servers})
        return
    words = f"on: a step after {state.after_s:g} s of calm" if state.after_s else "off"
    make_console().print(f"rebalancing is {words}; {state.moving} replicas are being moved")
    if servers is not None:
        _show_servers(servers)
