"""How ``stelae plan`` shows a plan: phases, space, risk, what would help, and what limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stelae.cli.output import make_console, print_json, print_table

if TYPE_CHECKING:
    from stelae.planner.measured import Measured
    from stelae.planner.plan import Plan


def show_plan(made: Plan, compared: dict[str, Plan], read: Measured | None) -> None:
    _show_layout(made)
    if read is not None:
        _show_measured(read)
    _show_phases(made)
    _show_resources(made)
    _show_risk(made)
    if compared:
        _show_compared(made, compared)
    if made.advice:
        rows = [[each.knob, each.before, each.after] for each in made.advice]
        print_table("what would help", ["knob", "now", "then"], rows)
    out = make_console()
    limit = made.times.limit.value
    out.print(f"what limits the recovery: [bold]{limit}[/]")
    for problem in made.problems:
        out.print(problem, style="red", markup=False, soft_wrap=True)


def _show_layout(made: Plan) -> None:
    from stelae.planner.recovery import counted, size

    layout, hardware = made.layout, made.hardware
    lost = "one machine" if layout.lost.value == "machine" else "one tablet server"
    make_console().print(
        f"{counted(layout.servers, 'tablet server')} of {size(layout.memory_bytes)} and "
        f"{counted(layout.backups, 'backup')} on {counted(layout.machines, 'machine')}; "
        f"{size(layout.data_bytes)} of rows, k={layout.replicas} replicas ({layout.medium.value}, "
        f"{layout.scatter}); rates: {hardware.name}; "
        f"lost: {lost}, {size(layout.lost_bytes)} of log",
        markup=False,
        soft_wrap=True,
    )


def _show_phases(made: Plan) -> None:
    from stelae.planner.recovery import seconds

    rows: list[list[Any]] = []
    for phase in made.times.phases:
        how = "in the background" if not phase.is_waited_for else ""
        how = "at the same time" if phase.is_overlapped else how
        rows.append([phase.name, seconds(phase.time_s), phase.limit.value, how, phase.formula])
    times = made.times
    rows.append(["serves again", seconds(times.serves_again_s), times.limit.value, "", ""])
    if simulated := made.simulated:
        half, most = (seconds(simulated.tablet_percentile_s(part)) for part in (0.5, 0.99))
        note = f"half of the tablets after {half}, 99 % after {most}; "
        note += f"{simulated.slow_machines:,} slow machines"
        rows.append(["... simulated", seconds(simulated.serves_again_s), "", "", note])
    print_table("recovery", ["phase", "time", "waits for", "", "reckoned"], rows)


def _show_resources(made: Plan) -> None:
    from stelae.planner.recovery import size

    found = made.resources
    rows = [
        ["memory of a tablet server", size(found.memory_per_server_bytes)],
        ["... of the busiest, after the loss", size(found.memory_after_loss_bytes)],
        ["... up to which the cleaner has room", size(found.memory_limit_bytes)],
        ["disk, all replicas", size(found.disk_bytes)],
        ["... of a machine", size(found.disk_per_machine_bytes)],
        ["network, of one recovery", size(found.recovery_network_bytes)],
        ["rows written, at most", f"{found.write_rows_per_s:,.0f} rows/s"],
        ["... a day long, before cleaning", size(found.day_of_writes_bytes)],
        ["tablet servers that the rows need", f"{found.servers_needed:,}"],
    ]
    print_table("resources", ["of", "needed"], rows)


def _show_risk(made: Plan) -> None:
    from stelae.planner.recovery import seconds, size

    risk, failures = made.risk, made.failures
    windows = f"windows: {seconds(risk.memory_window_s)} of memory, "
    windows += f"{seconds(risk.replica_window_s)} of replicas"
    share = 100 * failures.power_loss_share
    each = f"{risk.at_each_power_failure} at each, if {share:.2g} % of machines stay away; then "
    each += f"{size(risk.bytes_lost)} of the log"
    rows: list[list[Any]] = [
        ["failures by themselves", str(risk.independent), windows],
        ["power failures of everything", str(risk.at_once), each],
        ["either", str(risk.year), f"a loss every {_years(risk.years_between)}"],
    ]
    print_table("risk of losing data, in a year", ["by", "probability", ""], rows)


def _show_compared(made: Plan, compared: dict[str, Plan]) -> None:
    from stelae.planner.recovery import seconds, size

    def row(name: str, each: Plan) -> list[Any]:
        return [
            name,
            seconds(each.times.serves_again_s),
            each.times.limit.value,
            size(each.resources.memory_after_loss_bytes),
            size(each.resources.disk_bytes),
            str(each.risk.year),
            "" if each.resources.fits else "does not fit",
        ]

    rows = [row("as it is", made), *(row(name, each) for name, each in compared.items())]
    columns = ["what if", "serves again", "limit", "memory", "disk", "risk in a year", ""]
    print_table("what if", columns, rows)


def _show_measured(read: Measured) -> None:
    out = make_console()
    for source in read.sources:
        out.print(f"measured: {source}", markup=False, soft_wrap=True)
    if not read.sources:
        out.print("nothing in this file gives a rate; those of vm are used", style="yellow")
    rows = [
        [
            each.name,
            *(f"{v:,.3g} {each.unit}" for v in (each.measured, each.predicted)),
            each.factor,
        ]
        for each in read.comparisons
    ]
    if rows:
        shown = [[*row[:3], f"{row[3]:.2f} ×"] for row in rows]
        columns = ["figure", "measured", "predicted without it", "off by"]
        print_table("predictions", columns, shown)


def _years(years: float) -> str:
    if years == float("inf"):
        return "age of the universe, and more"
    if years >= 1e6:
        return f"{years:.1e} years"
    return f"{years:,.3g} years" if years < 1000 else f"{years:,.0f} years"


def show_envelope(as_json: bool) -> None:
    from stelae.planner.envelope import MISTAKE, steps

    lines = list(steps())
    if as_json:
        described = [
            {
                "what": s.what,
                "formula": s.formula,
                "said": s.said,
                "found": s.found,
                "agrees": s.agrees,
            }
            for s in lines
        ]
        print_json({"steps": described, "mistake": MISTAKE})
        return
    rows = [
        [s.what, s.formula, s.said_text, s.found_text, "" if s.agrees else "differs", s.remark]
        for s in lines
    ]
    columns = ["step", "formula", "note", "here", "", ""]
    print_table("RAMCloud's back of the envelope, redone", columns, rows)
    make_console().print(MISTAKE, markup=False, soft_wrap=True)
