"""Which cluster a command is about, and the options that every command has. (design §12)"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from stelae.core.config.spec import ClusterSpec
    from stelae.database.api import Database

logger = logging.getLogger(__name__)

COMMAND: ContextVar[str] = ContextVar("command", default="")
"""The words of the command that runs, without its arguments."""
STATUS_TIMEOUT_S = 5.0
DEFAULT_FILE = "cluster.yaml"

Where = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="PATH",
        help="The cluster's file, its data_dir, or its name in the Ray that runs here; "
        "cluster.yaml of this folder if absent.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def spec_of(path: Path | None) -> ClusterSpec:
    """The cluster's description: of that file, of cluster.yaml here, or the default one."""
    from stelae.core.config.spec_file import load_spec

    if path is None and Path(DEFAULT_FILE).exists():
        path = Path(DEFAULT_FILE)
    return load_spec(path)


def is_name(path: Path | None) -> bool:
    """Whether a cluster's name was given, and neither a file nor a folder."""
    return path is not None and not path.exists() and path.suffix == "" and len(path.parts) == 1


def data_dir_of(path: Path | None) -> Path:
    """The data_dir that a file, or the folder itself, stands for."""
    if path is not None and (path.is_dir() or is_name(path)):
        return path.absolute()
    return Path(spec_of(path).data_dir)


def place_in_ray(path: Path | None) -> tuple[str, str] | None:
    """The cluster's name and its Ray's address, by which it is found without its data_dir; None: it
    has a Ray of its own."""
    if path is not None and is_name(path):
        return str(path), "auto"
    if path is not None and path.is_dir():
        return None
    spec = spec_of(path)
    return None if spec.ray.address == "local" else (spec.cluster, spec.ray.address)


def open_cluster(path: Path | None) -> Database:
    """A connection to the running cluster of a file, a data_dir or a name. Raises `Unavailable`."""
    from stelae.cluster import connect
    from stelae.core.errors import Unavailable
    from stelae.deploy.cluster_state import STATE_FILE, load_state

    folder = data_dir_of(path)
    with as_command():
        if (folder / STATE_FILE).exists() and load_state(folder).ray_address:
            return connect(str(folder))
        place = place_in_ray(path)
        if place is None:
            way_out = (
                "it does not run; start it with `stelae up`, or name another's file: --cluster"
            )
            raise Unavailable(f"the cluster of {folder}", way_out)
        join(place[1])
        return connect(place[0])


@contextmanager
def as_command() -> Iterator[None]:
    """Connections that are opened within it are of the command that runs, in the audit log."""
    from stelae.database.callers import Door, called_by

    with called_by(Door.CLI, COMMAND.get()):
        yield


def note_call(data_dir: Path | str, what: str) -> None:
    """Put a command into the cluster's audit log that gives masters no order. Never fails for the
    log's sake."""
    from stelae.cluster import connect
    from stelae.core.errors import StelaeError, Unavailable

    try:
        with as_command(), connect(str(data_dir)) as database:
            database.note_call(what)
    except Unavailable as error:  # it does not run
        logger.info("%r is not in the audit log: %s", what, error)
    except StelaeError as error:
        logger.warning("%r is not in the audit log: %s", what, error)


def join_cluster(path: Path | None) -> str:
    """Be connected to the Ray of a cluster, whose servers may be dead; the cluster's name.

    Raises:
        Unavailable: that Ray does not run.
    """
    from stelae.core.errors import Unavailable
    from stelae.deploy.cluster_state import STATE_FILE, load_state

    folder = data_dir_of(path)
    if (folder / STATE_FILE).exists() and (state := load_state(folder)).ray_address:
        name, address = state.cluster, state.ray_address
    elif (place := place_in_ray(path)) is not None:
        name, address = place
    else:
        raise Unavailable(f"the cluster of {folder}", "it does not run, and neither does its Ray")
    try:
        join(address)
    except Unavailable as error:
        error.add_note(f"logs of a Ray that has ended are in /tmp/ray, as stelae_{name}_*.err")
        raise
    return name


@contextmanager
def files_of(path: Path | None, database: Database) -> Iterator[Path]:
    """A folder with the files of a cluster that was opened by this path: its data_dir, or, where
    that is on other machines, what its servers keep. What is changed there they keep from then on.
    """
    from stelae.deploy.cluster_files import home_of, publish
    from stelae.deploy.cluster_state import STATE_FILE

    folder = data_dir_of(path)
    if (folder / STATE_FILE).exists():
        yield folder
        return
    join(database.ray_address)
    with home_of(database.cluster, (database.home,)) as home:
        before = _contents(home)
        yield home
        if _contents(home) != before:
            publish(home, database.cluster)


def _contents(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if each.is_file()}


def join(address: str) -> None:
    """Be connected to the Ray of that address. Raises `Unavailable`."""
    import ray

    from stelae.deploy.ray_session import join_ray

    if not ray.is_initialized():
        join_ray(address)


def read_status(path: Path | None, max_staleness: float | None = None) -> dict[str, Any]:
    """Its status document."""
    with open_cluster(path) as database:
        return database._status(max_staleness, STATUS_TIMEOUT_S, join=True)
