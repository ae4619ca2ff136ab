"""How a database and its tables show themselves in a notebook. Pure: documents in, HTML out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from stelae.client.check.status import problems_of
from stelae.core.config.units import format_size
from stelae.core.records.records import TableRecord

PROBLEMS_MAX = 10


def database_html(cluster: str, status: Mapping[str, Any]) -> str:
    """A cluster by its status document: what is not well, its tables, and, folded, its servers."""
    problems = problems_of(dict(status))
    tables = [
        [
            table["name"],
            ", ".join(table["key"]),
            _count(table["rows"]),
            "?" if table["memory_bytes"] is None else format_size(table["memory_bytes"]),
            f"{table['tablets_running']} of {table['tablets']}",
            table["becoming"] or table["durability"],
            ", ".join(table["indexes"]),
        ]
        for table in status["tables"]
    ]
    servers = [
        [s["id"], s["kind"], s["state"], s.get("role", ""), s["address"]] for s in status["servers"]
    ]
    live = sum(server[2] == "live" for server in servers)
    heads = ["table", "key", "rows", "memory", "tablets that serve", "durability", "indexes"]
    return (
        f"<b>Stelae cluster {escape(cluster)}</b>: {_health(problems)}"
        + (_table(heads, tables) if tables else "<p>No tables yet.</p>")
        + f"<details><summary>{live} of {len(servers)} servers live</summary>"
        + _table(["server", "kind", "state", "role", "address"], servers)
        + "</details>"
    )


def unreachable_html(cluster: str, error: Exception) -> str:
    """What a notebook shows instead of a traceback."""
    return f"<b>Stelae cluster {escape(cluster)}</b>: {escape(str(error))}"


def table_html(record: TableRecord, status: Mapping[str, Any] | None = None, why: str = "") -> str:
    """A table: its columns, how it is kept, and how much is in it.

    ``status``: the cluster's status document; None: the cluster did not answer, ``why``.
    """
    schema = record.schema
    indexed = {schema.column_of(index) for index in schema.indexes}
    rows = []
    for field in schema.arrow:
        place = schema.key.index(field.name) + 1 if field.name in schema.key else None
        what = ["key" if len(schema.key) == 1 else f"key, {place}"] if place else []
        what += ["indexed"] if field.name in indexed else []
        what += [] if field.nullable else ["not null"]
        rows.append([field.name, str(field.type), ", ".join(what)])
    return (
        f"<b>Stelae table {escape(record.name)}</b>: {escape(str(record.durability))}, schema "
        f"version {schema.version}"
        + _table(["column", "type", ""], rows)
        + f"<p>{escape(why if status is None else _content(record, status))}</p>"
    )


def unknown_table_html(error: Exception) -> str:
    """A table of which this process knows nothing."""
    return f"<b>Stelae table</b>: {escape(str(error))}"


def _content(record: TableRecord, status: Mapping[str, Any]) -> str:
    found = next((table for table in status["tables"] if table["name"] == record.name), None)
    if found is None:
        return "the cluster has no table of this name any more"
    memory = "?" if found["memory_bytes"] is None else format_size(found["memory_bytes"])
    return (
        f"{_count(found['rows'])} rows, {memory} in memory; {found['tablets_running']} of "
        f"{found['tablets']} tablets serve"
    )


def _health(problems: Sequence[str]) -> str:
    if not problems:
        return "all is well"
    shown = "".join(f"<li>{escape(text)}</li>" for text in problems[:PROBLEMS_MAX])
    more = len(problems) - PROBLEMS_MAX
    return f"<ul>{shown}{f'<li>and {more} more</li>' if more > 0 else ''}</ul>"


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(value))}</td>' for value in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
