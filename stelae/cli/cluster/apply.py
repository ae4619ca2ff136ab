"""``stelae apply``: make a running cluster what its file says, and say first what that takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stelae.cli.output import make_console, print_json, print_table, progress_bar
from stelae.cli.which_cluster import Debug, Json, open_cluster, spec_of

if TYPE_CHECKING:
    from stelae.applying.run import Applied

REFUSED = 1
CHANGES = 3
"""Of a dry run: something is to be done."""


SpecFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="cluster.yaml",
        help="The cluster's file; cluster.yaml of this folder if absent.",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what differs, and what would be done.")
]
AcceptLoss = Annotated[
    bool,
    typer.Option(
        "--accept-loss",
        help="A medium may become sync: on_seal: power failures may take acknowledged writes.",
    ),
]
IfGeneration = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Only if the spec that was asked for last is of this generation, as --dry-run shows "
        "it.",
        show_default=False,
    ),
]
Timeout = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="Wait for so long, at most.")
]


def apply(
    spec_file: SpecFile = None,
    dry_run: DryRun = False,
    accept_loss: AcceptLoss = False,
    if_generation: IfGeneration = None,
    timeout: Timeout = 24 * 3600.0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the running cluster what its file says, while it serves.

    Servers are added first; those that are to run with other values are started anew, one at a
    time; those that are to go are drained, and then ended. What would break a table's promise is
    refused before anything is changed, with all reasons. Interrupted at any point, it goes on when
    it is given again, by whoever.

    Exit code 1: it is refused, or not done yet; the text says why. With --dry-run 0: nothing is to
    be done; 3: something is.

    \b
    stelae apply --dry-run
    stelae apply cluster.yaml
    stelae apply cluster.yaml --if-generation 7    not if somebody else applied another meanwhile
    """
    spec = spec_of(spec_file)
    with open_cluster(spec_file) as database:
        found = database.apply(
            spec, dry_run=True, accept_loss=accept_loss, if_generation=if_generation
        )
        if not as_json:
            _show(found)
        if not (dry_run or found.refused) and (found.steps or found.refused or found.differences):
            with progress_bar("applying") as tell:
                found = database.apply(
                    spec,
                    progress=tell,
                    timeout=timeout,
                    accept_loss=accept_loss,
                    if_generation=if_generation,
                )
    if as_json:
        print_json(found.document())
    elif found.is_done and not (dry_run or found.refused):
        make_console().print("the cluster is as the file says", markup=False)
    if found.refused:
        raise typer.Exit(REFUSED)
    if dry_run and (found.steps or found.differences):
        raise typer.Exit(CHANGES)


def _show(found: Applied) -> None:
    if found.differences:
        rows = [[each.field, each.before, each.after] for each in found.differences]
        print_table("what differs", ["field", "before", "after"], rows)
    if found.steps:
        steps = [
            [number, step.act.value, step.name or step.kind, step.why]
            for number, step in enumerate(found.steps, 1)
        ]
        print_table("what is to be done", ["", "step", "server", "why"], steps)
    console = make_console()
    if not (found.differences or found.steps):
        console.print("nothing differs", markup=False)
    if found.generation:
        console.print(f"the spec asked for last is of generation {found.generation}", markup=False)
    for reason in found.refused:
        console.print(f"refused: {reason}", markup=False, soft_wrap=True)
