"""What the commands of the command line share: their options, and which cluster they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from stelae.api import Database
    from stelae.core.spec import ClusterSpec

DEFAULT_FILE = "cluster.yaml"

SpecFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="cluster.yaml",
        help="The cluster's file; cluster.yaml of this folder, or the default cluster, if absent.",
        show_default=False,
    ),
]
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
WhereArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="PATH",
        help="The cluster's file or its data_dir; cluster.yaml of this folder if absent.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
Staleness = Annotated[
    float | None,
    typer.Option(min=0, help="Any master may answer whose state is no older, in seconds."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def spec_of(path: Path | None) -> ClusterSpec:
    """The cluster that a file describes; of this folder's, or the default one, without a file."""
    from stelae.core.spec_file import load_spec

    if path is None and Path(DEFAULT_FILE).exists():
        path = Path(DEFAULT_FILE)
    return load_spec(path)


def data_dir_of(path: Path | None) -> Path:
    """The data_dir that a file, or the folder itself, stands for."""
    if path is not None and path.is_dir():
        return path.absolute()
    return Path(spec_of(path).data_dir)


def connect_to(path: Path | None) -> Database:
    """A connection to the cluster; raises `Unavailable` if it does not run."""
    from stelae.cluster import connect
    from stelae.core.errors import Unavailable
    from stelae.launcher import STATE_FILE, load_state

    folder = data_dir_of(path)
    down = Unavailable(f"the cluster of {folder}", "it does not run; start it with `stelae up`")
    if not (folder / STATE_FILE).exists() or not load_state(folder).ray_address:
        raise down
    return connect(str(folder))
