"""How the command line shows things: tables for people, documents for programs."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stelae.client.check.status import document_indexes

if TYPE_CHECKING:
    from rich.console import Console

    from stelae.core.messages.catalog import TabletLocation


FILE_WIDTH = 160
"""Of tables that nobody sees on a terminal: in a file or a pipe nothing need be folded."""
KEPT_WORD = 24
"""Words up to this length are not folded, as names, addresses and numbers: they would be hard to
read, and could not be searched for. Longer ones, as ids, are, into at least `FOLDED_WIDTH`."""
FOLDED_WIDTH = 16


def make_console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_WIDTH
    return console


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on standard error: called with how much is done, of how much, and what goes on."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[what]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=make_console(stderr=True), transient=True) as shown:
        task = shown.add_task(title, total=None, what="")

        def tell(done: int, total: int, what: str) -> None:
            shown.update(task, completed=done, total=total or None, what=what)

        yield tell


@contextlib.contextmanager
def interrupts_told() -> Iterator[None]:
    """Show the notes of an interrupt, which ends the command; those of errors are shown anyway."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        for note in getattr(stopped, "__notes__", ()):
            make_console(stderr=True).print(note, markup=False, soft_wrap=True)
        raise


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, default=str))


def print_table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Nothing is cut, and no word is folded but long ones. What is too wide for that is shown row
    by row, each value on a line."""
    from rich import box
    from rich.table import Table

    console = make_console()
    cells = [[str(value) for value in row] for row in rows]
    widths = column_widths(columns, cells, console.width)
    if widths is None:
        _print_records(console, title, columns, cells)
        return
    shown = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column, width in zip(columns, widths, strict=True):
        shown.add_column(column, overflow="fold", width=width)
    for row in cells:
        shown.add_row(*row)
    console.print(shown)


def _print_records(
    console: Console, title: str, columns: list[str], cells: list[list[str]]
) -> None:
    """What is known of each row, and not what is empty."""
    from rich.table import Table

    console.print(title, style="italic", markup=False)
    shown = Table(box=None, show_header=False)
    shown.add_column(no_wrap=True)
    shown.add_column(overflow="fold")
    for row in cells:
        for column, cell in zip(columns, row, strict=True):
            if cell:
                shown.add_row(column, cell)
        shown.add_row()
    console.print(shown)


def column_widths(columns: list[str], cells: list[list[str]], width: int) -> list[int] | None:
    """How wide each column is; None: there is no room for all words. Pure.

    Those that lack least beyond their words get it first: so what is folded is sentences and ids.
    """
    room = width - 2 * len(columns)  # the edges, and two spaces between columns
    by_column = [[name, *(row[n] for row in cells)] for n, name in enumerate(columns)]
    widths = [max(map(_word_width, texts)) for texts in by_column]
    spare = room - sum(widths)
    if spare < 0:
        return None
    lacks = [max(map(len, texts)) - has for texts, has in zip(by_column, widths, strict=True)]
    for number in sorted(range(len(columns)), key=lacks.__getitem__):
        given = min(spare, max(0, lacks[number]))
        widths[number] += given
        spare -= given
    return widths


def _word_width(text: str) -> int:
    """Of the longest word that is not to be folded."""
    lengths = [len(word) for word in text.split()]
    return max((n if n <= KEPT_WORD else FOLDED_WIDTH for n in lengths), default=1)


def megabytes(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"


def _recovery_state(recovery: dict[str, Any]) -> str:
    """Running, loading (tablets serve, and rows follow), or done."""
    loaded = recovery.get("loaded", 1.0)
    if recovery["state"] == "done" and loaded < 1.0:
        return f"loading {100 * loaded:.0f} %"
    return str(recovery["state"])


def show_status(document: dict[str, Any], problems: list[str]) -> None:
    from stelae.database.deployed import deployed_lines

    stopped = document.get("stopped", ())
    servers = [
        [
            server["id"],
            ("stopped" if server["id"] in stopped else server["state"])
            + (f", {server['role']}" if "role" in server else "")
            + ("" if server.get("voter", True) else ", non-voter"),
            server["address"],
            server["pid"],
            server.get("tablets", ""),
            _room(server),
        ]
        for server in document["servers"]
    ]
    columns = ["server", "state", "address", "pid", "tablets", "memory, or free on disk"]
    how = ", connections encrypted" if document.get("is_encrypted") else ""
    print_table(f"cluster {document['cluster']}{how}", columns, servers)
    show_tables(document)
    show_index_lines(document_indexes(document))
    recoveries = [
        [
            each["server"],
            _recovery_state(each),
            each["engine"],
            f"{each['tablets_running']} of {each['tablets_total']}",
            f"{each['phases_s']['running']:.2f} s" if "running" in each["phases_s"] else "",
            "" if each.get("loaded_s") is None else f"{each['loaded_s']:.2f} s",
        ]
        for each in document["recoveries"]
    ]
    if recoveries:
        print_table(
            "recoveries", ["of", "state", "engine", "tablets", "took", "all rows"], recoveries
        )
    show_copies(document["copies"])
    show_shortages(document.get("shortages", []))
    out = make_console()
    for line in deployed_lines(document):
        out.print(line, style="yellow", markup=False, soft_wrap=True)
    for problem in problems:
        out.print(problem, style="red", markup=False)
    if not problems:
        out.print("all is well", style="green")


def show_index_lines(indexes: list[dict[str, Any]]) -> None:
    """Each index on a line, if there are any."""
    rows = [
        [
            each["table"],
            each["column"],
            each["state"] + (f" {each['filled']:.0%}" if each["state"] == "filling" else ""),
            f"{each['entries']:,}",
            ", ".join(dict.fromkeys(part["server"] for part in each["indexlets"])),
            each["problem"],
        ]
        for each in indexes
    ]
    if rows:
        columns = ["table", "index of", "state", "entries", "on", "waits for"]
        print_table("indexes", columns, rows)


def show_shortages(shortages: list[dict[str, Any]]) -> None:
    """Segment replicas that are being made anew, if there are any."""
    rows = [
        [
            each["table"],
            each["number"],
            f"{each['segments_of'] - each['segments']} of {each['segments_of']}",
            f"{megabytes(each['bytes_of'] - each['bytes'])} of {megabytes(each['bytes_of'])}",
        ]
        for each in shortages
    ]
    if rows:
        columns = ["table", "tablet", "segments made whole", "sent"]
        print_table("lost segment replicas, made anew", columns, rows)


def show_copies(copies: list[dict[str, Any]]) -> None:
    """Tablet copies under way, if there are any."""
    rows = [
        [
            each["tablet"],
            each["table"],
            each["source"],
            each["server"],
            each["state"] + (f": {each['problem']}" if each["problem"] else ""),
            f"{megabytes(each['copied_bytes'])} of {megabytes(each['bytes'])}"
            if each["bytes"]
            else "",
        ]
        for each in copies
    ]
    if rows:
        print_table("tablet copies", ["tablet", "table", "from", "to", "state", "done"], rows)


def _room(server: dict[str, Any]) -> str:
    """What a server uses of its memory, and what is free on its disk: whatever it tells."""
    memory = _memory(server) if "memory_bytes" in server else ""
    free = f"{megabytes(server['free_bytes'])} free" if "free_bytes" in server else ""
    media = ", ".join(
        f"{name}: {megabytes(used)} used, {megabytes(server['media_free_bytes'][name])} free"
        + (" (its reserve)" if name in server["media_low"] else "")
        for name, used in server.get("used_bytes", {}).items()
        if name in server.get("media_free_bytes", {})
    )
    return ", ".join(filter(None, [memory, media or free]))


def _memory(entry: dict[str, Any]) -> str:
    """Of a server or a table: how much of it lives, and what cleaning adds to writes."""
    text, cleaning = megabytes(entry["memory_bytes"]), entry.get("cleaning")
    if not cleaning or cleaning["utilisation"] is None:
        return text
    text += f", {cleaning['utilisation']:.0%} live"
    cost = cleaning["write_cost"]
    return text if not cost or cost < 1.05 else f"{text}, written {cost:.1f} ×"


def _durability(table: dict[str, Any]) -> str:
    """Of a table, and what it becomes, and how far that is."""
    becoming = table.get("becoming")
    if not becoming:
        return str(table["durability"])
    done = f"{table['tablets_altered']} of {table['tablets']} tablets"
    return f"{table['durability']}, becoming {becoming}: {done}"


def show_tables(document: dict[str, Any]) -> None:
    rows = [
        [
            table["name"],
            ", ".join(table["key"]),
            "?" if table["rows"] is None else f"{table['rows']:,}",
            f"{table['tablets_running']} of {table['tablets']}",
            "?" if table["memory_bytes"] is None else _memory(table),
            _durability(table),
        ]
        for table in document["tables"]
    ]
    columns = ["table", "key", "rows", "tablets running", "memory", "durability"]
    if rows:
        print_table("tables", columns, rows)
    else:
        make_console().print("no tables yet")
    for table in document["tables"]:
        if problem := table.get("alter_problem"):
            said = f"{table['name']}: its change of durability waits: {problem}"
            make_console().print(said, markup=False, soft_wrap=True)


def show_locations(locations: list[TabletLocation], as_json: bool) -> None:
    """Where tablets are: a table, or a document."""
    import msgspec

    if as_json:
        found = [
            {
                "tablet": msgspec.to_builtins(each.tablet),
                "address": each.address,
                "problem": each.problem,
                "replicas": [msgspec.structs.asdict(replica) for replica in each.replicas],
            }
            for each in locations
        ]
        print_json({"tablets": found})
        return
    rows = [
        [
            each.tablet.number,
            each.tablet.tablet_id,
            each.tablet.state.value,
            "" if each.tablet.is_group else each.tablet.term,  # of a group only its replicas know
            each.address,
            ", ".join(r.address or "?" for r in each.replicas if not r.is_leader),
            each.problem,
        ]
        for each in locations
    ]
    columns = ["number", "tablet", "state", "term", "address", "other replicas", "problem"]
    if not any(each.replicas for each in locations):
        rows, columns = [[*row[:5], row[6]] for row in rows], [*columns[:5], columns[6]]
    print_table("tablets", columns, rows)


def describe(table: Any, document: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    record = table._table.record
    tablets = [each for each in document["tablets"] if each["table"] == table.name]
    tablets = [each for each in tablets if not each.get("succeeds")]
    return {
        "name": table.name,
        "id": record.table_id,
        "columns": [
            {"name": field.name, "type": str(field.type), "nullable": field.nullable}
            for field in table.schema
        ],
        "key": list(table.key),
        "partition": msgspec.to_builtins(record.partitioning),
        "durability": str(record.durability),
        "becoming": "" if record.becoming is None else str(record.becoming),
        "indexes": [each for each in document_indexes(document) if each["table"] == table.name],
        "rows": sum(each["rows"] for each in tablets),
        "tablets": sorted(tablets, key=lambda each: each["number"]),
    }


def partition_words(partition: Mapping[str, Any]) -> str:
    """How a table is cut into tablets, for people."""
    words = []
    if by_hash := partition["hash"]:
        words.append(f"hash of {', '.join(by_hash['columns'])} into {by_hash['buckets']}")
    if by_range := partition["range"]:
        splits = ["/".join(map(str, split)) for split in by_range["splits"]]
        words.append(f"ranges of {', '.join(by_range['columns'])}, cut at {', '.join(splits)}")
    return "; ".join(words) or "one tablet"
