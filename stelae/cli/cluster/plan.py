"""``stelae plan``: what a cluster would do, before it is there. (design §12)

The reckoning is in `stelae.planner`; this reads options; tables are in
`stelae.cli.cluster.plan_output`.
"""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stelae.cli.cluster.plan_output import show_envelope, show_plan
from stelae.cli.output import make_console, print_json, progress_bar
from stelae.cli.which_cluster import Debug, Json, spec_of

if TYPE_CHECKING:
    from stelae.planner.hardware import Hardware
    from stelae.planner.layout import Layout
    from stelae.planner.measured import Measured
    from stelae.planner.plan import Plan
    from stelae.planner.risk import Failures

UNFIT = 1


class Rates(enum.StrEnum):
    """``--rates``."""

    VM = "vm"
    SERVER = "server"
    SEED = "seed"


Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="NAME=VALUE",
        help="Plan that beside it; several at once by commas; may be repeated.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="The plan itself with this; may be repeated."),
]
Measurements = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Rates from results of benchmarks, or of --calibrate."),
]


SpecFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="cluster.yaml",
        help="The cluster's file; cluster.yaml of this folder, or the default, if absent.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Rows of all tables; half full if absent.")
]
Servers = Annotated[
    int | None, typer.Option(min=1, help="Tablet servers, each with backup and machine.")
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Measure this machine first, for some seconds.")
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="Simulate the recovery, event by event, too.")
]
Slow = Annotated[str, typer.Option(metavar="SHARE", help="Slow machines in the simulation.")]
Envelope = Annotated[
    bool, typer.Option("--envelope", help="Redo RAMCloud's back of the envelope instead.")
]


def plan(
    spec_file: SpecFile = None,
    data: Data = None,
    servers: Servers = None,
    settings: Settings = None,
    what_if: Changes = None,
    rates: Annotated[Rates | None, typer.Option(help="Rates that come with Stelae.")] = None,
    measured: Measurements = None,
    calibrate: Calibrate = False,
    simulate: Simulate = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the simulation.")] = 1,
    slow: Slow = "0%",
    envelope: Envelope = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Predict how a cluster recovers, what it needs, and how likely it loses data.

    No cluster need be there. The formula of each phase stands beside it, with its
    values; what would help, and what limits, come last. Exit code 1: the rows
    would not fit.

    Names for --set and --what-if: k, servers, backups, machines, memory, data,
    row, segment, tablets (of a server), takers, live (share of the log), medium
    (disk, cached, ram), copysets (random, or the size of a group), rereplication, lost (server,
    machine), mode (whole, metadata-first); cores, threads, fetches, network,
    disk-read, disk-write, seek, detection; server-mttf, disk-mttf, replace,
    power-failures (a year), power-share (of machines that stay away).

    \b
    stelae plan                       cluster.yaml of this folder, half full
    stelae plan cluster.yaml --data 1TB --servers 100
    stelae plan --servers 1000 --set memory=64GiB,lost=machine --what-if k=3
    stelae plan --servers 1000 --what-if copysets=2 --what-if k=3,copysets=3
    stelae plan --servers 1000 --simulate --slow 1%
    stelae plan --calibrate --json > rates.json    measures this machine,
    stelae plan --measured rates.json              and plans with that
    stelae plan --envelope
    """
    from stelae.core.errors import InvalidArgument
    from stelae.planner.changes import changes_of, failures_with
    from stelae.planner.risk import Failures
    from stelae.planning.plan import document_of, resolve

    if envelope:
        show_envelope(as_json)
        return
    if (rates is not None) + (measured is not None) + calibrate > 1:
        raise InvalidArgument("--rates, --measured and --calibrate: one of them says the rates")
    wanted = changes_of(_with(settings, data, servers), "--set")
    chosen, read = _rates(rates, measured, calibrate)
    hardware, layout = resolve(spec_of(spec_file), wanted, chosen, "--set")
    base = (hardware, layout, failures_with(Failures(), wanted, "--set"))
    made, compared = _plans(base, what_if or [], (seed, slow) if simulate else None)
    if as_json:
        print_json(document_of(made, compared, read))
    else:
        show_plan(made, compared, read)
    if not made.resources.fits:
        raise typer.Exit(UNFIT)


def _plans(
    base: tuple[Hardware, Layout, Failures], changes: list[str], dice: tuple[int, str] | None
) -> tuple[Plan, dict[str, Plan]]:
    """The plan, and one for each change; ``dice`` are seed and slow share of a simulation."""
    from stelae.planner.changes import changed, changes_of, failures_with, share_of
    from stelae.planner.plan import make_plan
    from stelae.planner.simulated import Chances, simulate

    def planned(text: str) -> Plan:
        wanted = changes_of([text] if text else [])
        rates, shape = changed(base[0], base[1], wanted)
        failures = failures_with(base[2], wanted)
        if dice is None:
            return make_plan(rates, shape, failures)
        chances = Chances(seed=dice[0], slow_share=share_of(dice[1], "--slow"))
        with make_console(stderr=True).status("simulating"):
            return make_plan(rates, shape, failures, simulate(rates, shape, chances))

    return planned(""), {text: planned(text) for text in changes}


def _with(settings: list[str] | None, data: str | None, servers: int | None) -> list[str]:
    given = list(settings or ())
    if data is not None:
        given.append(f"data={data}")
    if servers is not None:
        given.append(f"servers={servers}")
    return given


def _rates(
    named: Rates | None, measured: Path | None, calibrated: bool
) -> tuple[Hardware | None, Measured | None]:
    from stelae.planner.hardware import VM
    from stelae.planner.measured import Measured
    from stelae.planning.plan import measured_from, rates_named

    if measured is not None:
        read = measured_from(measured, VM)
        return read.hardware, read
    if calibrated:
        from stelae.planning.calibration import calibrate

        with progress_bar("measuring this machine") as tell:
            hardware = calibrate(VM, tell)
        return hardware, Measured(hardware, ("this machine, just now",), ())
    return (rates_named(named.value) if named is not None else None), None
