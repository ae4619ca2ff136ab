"""Which cluster a command is about, and the options that every command has. (design §12)"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from stelae.api import Database
    from stelae.core.spec import ClusterSpec

STATUS_TIMEOUT_S = 5.0
DEFAULT_FILE = "cluster.yaml"

Where = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        "-c",
        metavar="PATH",
        help="The cluster's file or its data_dir; cluster.yaml of this folder if absent.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def spec_of(path: Path | None) -> ClusterSpec:
    """The cluster's description: of that file, of cluster.yaml here, or the default one."""
    from stelae.core.spec_file import load_spec

    if path is None and Path(DEFAULT_FILE).exists():
        path = Path(DEFAULT_FILE)
    return load_spec(path)


def data_dir_of(path: Path | None) -> Path:
    """The data_dir that a file, or the folder itself, stands for."""
    if path is not None and path.is_dir():
        return path.absolute()
    return Path(spec_of(path).data_dir)


def open_cluster(path: Path | None) -> Database:
    """A connection to the running cluster of a file or a data_dir. Raises `Unavailable`."""
    from stelae.cluster import connect
    from stelae.core.errors import Unavailable
    from stelae.launcher import STATE_FILE, load_state

    folder = data_dir_of(path)
    way_out = "it does not run; start it with `stelae up`, or name the file of another: --cluster"
    down = Unavailable(f"the cluster of {folder}", way_out)
    if not (folder / STATE_FILE).exists() or not load_state(folder).ray_address:
        raise down
    return connect(str(folder))


def read_status(path: Path | None, max_staleness: float | None = None) -> dict[str, Any]:
    """Its status document."""
    with open_cluster(path) as database:
        return database.status(max_staleness=max_staleness, timeout=STATUS_TIMEOUT_S)
