"""``stelae check``: whether masters, servers, tables and tablets are as they should be.

The judging is in `stelae.client`; this is how it is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stelae.cli.output import make_console, print_json, print_table
from stelae.cli.which_cluster import STATUS_TIMEOUT_S, Debug, Json, Where, open_cluster

if TYPE_CHECKING:
    from stelae.client.check.check import CheckReport
    from stelae.client.check.tablets import Judged

UNHEALTHY = 1
SHOWN_MAX = 10
"""Tablets whose replicas are shown one by one; --json has all."""


def check(
    table: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this table; may be repeated.")
    ] = None,
    checksums: Annotated[
        bool,
        typer.Option(
            "--checksums", help="Compare all rows of all replicas, at one index of each log."
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Look again for so long until all is well."),
    ] = 0.0,
    where: Where = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Look at everything, and compare what it says of itself.

    Masters: all answer, name the same masters, and follow one leader. Servers: all are live.
    Tablets: they run, with as many replicas as their table's durability says, one leader, and
    members on which all replicas and the masters agree; each log on safekeepers is whole on all of
    its members, in the configuration that the masters know. A server that was stopped by
    `stelae server stop` is a note.

    Exit code 0: all is well; 1: something is not; 2: used wrongly.

    \b
    stelae check
    stelae check --wait 60               after a restart: until all is well
    stelae check --table flights --checksums
    stelae check --json | jq '.findings[] | select(.severity == "error") | .text'
    """
    import msgspec

    from stelae.database.deployed import deployed, deployed_lines, with_front

    with open_cluster(where) as database, make_console(stderr=True).status("looking"):
        report = database._check(
            table or (), checksums=checksums, wait=wait, timeout=STATUS_TIMEOUT_S, join=True
        )
        status = report.facts.status
        shown = {} if status is None else deployed(database, msgspec.to_builtins(status), join=True)
        report = with_front(report, shown.get("http"))
    if as_json:
        print_json({**report.document(), "away": None, "http": None, "warnings": [], **shown})
    else:
        show_report(report)
        for line in deployed_lines(shown):
            make_console().print(line, style="yellow", markup=False, soft_wrap=True)
    if not report.is_well:
        raise typer.Exit(UNHEALTHY)


def show_report(report: CheckReport) -> None:
    """Tables of what there is, what is not well, and a summary."""
    from stelae.client.check.facts import Severity

    _show_masters(report)
    _show_servers(report)
    _show_tables(report)
    for each in report.unwell[:SHOWN_MAX]:
        _show_replicas(each)
        _show_log(report, each)
    _show_checksums(report)
    out = make_console()
    left = len(report.unwell) - SHOWN_MAX
    if left > 0:
        out.print(f"... and {left} more tablets that are not healthy: --json has them")
    for note in report.findings:
        if note.severity is Severity.NOTE:
            out.print(str(note), style="dim", markup=False, soft_wrap=True)
    for problem in report.problems:
        style = "red" if problem.severity is Severity.ERROR else "yellow"
        out.print(f"{problem.section}: {problem}", style=style, markup=False, soft_wrap=True)
    # Once each: many tablets lack the same server.
    for hint in dict.fromkeys(each.hint for each in report.findings if each.hint):
        out.print(f"→ {hint}", style="cyan", markup=False, soft_wrap=True)
    errors = sum(f.severity is Severity.ERROR for f in report.problems)
    if report.is_well:
        out.print("all is well", style="green")
    else:
        out.print(f"{errors} errors, {len(report.problems) - errors} warnings", style="bold")


def _show_masters(report: CheckReport) -> None:
    rows: list[list[Any]] = []
    for answer in report.facts.masters:
        info = answer.info
        if info is None:
            rows.append(["", "does not answer", answer.address, "", "", ""])
            continue
        role = "leader" if info.leader == info.server.uuid else info.state.value
        members = f"{len(info.members)} as of {info.op_id.term}.{info.op_id.index}"
        name, uuid = info.server.name, info.server.uuid
        rows.append([name, role, answer.address, info.term, members, uuid])
    rows.sort(key=lambda row: (str(row[0]), str(row[2])))
    print_table("masters", ["master", "state", "address", "term", "masters known", "uuid"], rows)


def _show_servers(report: CheckReport) -> None:
    status = report.facts.status
    if status is None:
        return
    rows = []
    kinds = (
        ("tserver", "tablet servers"),
        ("backup", "backups"),
        ("safekeeper", "safekeepers"),
        ("cas_store", "configuration stores"),
    )
    for kind, name in kinds:
        of_kind = [server for server in status.servers if server.kind == kind]
        if kind in ("safekeeper", "cas_store") and not of_kind:
            continue
        live = {server.id for server in of_kind if server.is_live}
        dead = sorted({server.id for server in of_kind} - live)
        rows.append([name, len(live), len(dead), ", ".join(dead)])
    print_table("servers", ["kind", "live", "dead", "who is dead"], rows)


def _show_tables(report: CheckReport) -> None:
    from stelae.client.check.facts import Verdict

    tables = report.tables()
    labels = [
        verdict.label
        for verdict in Verdict
        if verdict is Verdict.HEALTHY or any(table[verdict.label] for table in tables)
    ]
    rows = [
        [table["name"], table["durability"], table["tablets"], *(table[label] for label in labels)]
        for table in tables
    ]
    if rows:
        print_table("tables", ["table", "durability", "tablets", *labels], rows)


def _show_replicas(each: Judged) -> None:
    """What the masters and each replica of a tablet know, side by side."""
    from stelae.client.check.tablets import catalog_configuration

    tablet = each.tablet
    if tablet.replicas is None:
        return
    names = {replica.uuid: replica.server for replica in tablet.replicas}

    def members(known: Any) -> list[str]:
        if known is None:
            return ["", ""]
        voters = [names.get(uuid, uuid) for uuid in known.voters]
        others = [f"({names.get(uuid, uuid)})" for uuid in known.non_voters]
        return [f"{known.op_id[0]}.{known.op_id[1]}", ", ".join([*voters, *others])]

    rows: list[list[Any]] = [["masters", "", "", "", *members(catalog_configuration(tablet))]]
    for replica in tablet.replicas:
        last = f"{replica.last[0]}.{replica.last[1]}" if replica.role else ""
        state = replica.role or ("not reported" if replica.server_live else "dead")
        row = [replica.server, state, replica.term or "", last, *members(replica.configuration)]
        rows.append(row)
    columns = ["of", "role", "term", "last", "members as of", "members (non-voters)"]
    print_table(f"{each.subject}: {each.verdict.label}", columns, rows)


def _show_log(report: CheckReport, each: Judged) -> None:
    """What each safekeeper of a tablet's log has of it."""
    from stelae.core.records.timelines import term_text

    members = report.log_of(each.tablet)
    if not members or each.tablet.timeline is None:
        return
    rows: list[list[Any]] = []
    for number, held in members:
        if held is None:
            rows.append([number, "?", "", "", "", ""])
            continue
        state = [held.presence.value, held.generation, term_text(held.term)]
        rows.append([number, *state, held.flush_lsn, held.commit_lsn])
    generation = each.tablet.timeline.generation
    title = f"{each.subject}: {each.verdict.label}; its log, generation {generation}"
    columns = ["safekeeper", "state", "generation", "term", "flush", "commit"]
    print_table(title, columns, rows)


def _show_checksums(report: CheckReport) -> None:
    from stelae.client.check.tablets import compared

    digests = report.facts.digests
    if digests is None:
        return
    text = f"checksums: {compared(digests)} of {len(digests)} tablets with replicas are equal"
    make_console().print(text, markup=False)
