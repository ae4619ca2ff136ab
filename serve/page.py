"""The status page: plain HTML made from the status document; no script, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

REFRESH_S = 5
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STYLE = """
:root { color-scheme: light dark; font: 15px/1.45 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100%; margin-bottom: 2rem }
caption { text-align: left; font-weight: 600; font-size: 1.1rem; padding: .3rem 0 }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8884 }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.good { color: #1a7f37 } .bad { color: #c62828; font-weight: 600 }
"""
_GOOD = frozenset({"live", "running", "leader", "serving"})
_BAD = frozenset({"dead", "failed", "offline"})
_MAX_ROWS = 500

SERVERS = ("kind", "id", "state", "role", "address", "node", "pid", "tablets", "memory_bytes")
TABLES = ("name", "durability", "key", "tablets", "tablets_running", "rows", "memory_bytes")
TABLETS = (
    "table", "number", "state", "progress", "leader", "term", "rows", "segments", "load_per_s",
    "problem",
)  # fmt: skip


def status_page(status: Mapping[str, Any]) -> str:
    """The whole page."""
    name = escape(str(status.get("cluster", "")))
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        f"<meta http-equiv=refresh content={REFRESH_S}>",
        '<meta name=viewport content="width=device-width">',
        f"<title>Stelae: {name}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{name}</h1><p>{_summary(status)}</p>",
        _table("Servers", SERVERS, status.get("servers", ())),
        _table("Tables", TABLES, status.get("tables", ())),
        _table("Tablets", TABLETS, status.get("tablets", ())),
        _recoveries(status.get("recoveries", ())),
        "</body></html>",
    ]
    return "".join(parts)


def _summary(status: Mapping[str, Any]) -> str:
    servers, tablets = status.get("servers", ()), status.get("tablets", ())
    live = sum(1 for server in servers if server.get("state") == "live")
    running = sum(1 for tablet in tablets if tablet.get("state") == "running")
    well = live == len(servers) and running == len(tablets)
    text = f"{live} of {len(servers)} servers live, {running} of {len(tablets)} tablets running"
    return f"<span class={'good' if well else 'bad'}>{text}</span>"


def _recoveries(recoveries: Sequence[Mapping[str, Any]]) -> str:
    if not recoveries:
        return ""
    columns = list(dict.fromkeys(name for recovery in recoveries for name in recovery))
    return _table("Recoveries", columns, recoveries)


def _table(title: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return f"<p>{escape(title)}: none</p>"
    head = "".join(f"<th scope=col>{escape(name.replace('_', ' '))}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(_cell(row.get(name, "")) for name in columns) + "</tr>"
        for row in rows[:_MAX_ROWS]
    )
    left_out = len(rows) - _MAX_ROWS
    more = f"<p>and {left_out} more</p>" if left_out > 0 else ""
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
        return f"<td class=number>{shown}</td>"
    if isinstance(value, list | tuple):
        value = ", ".join(str(item) for item in value)
    text = str(value)
    kind = " class=good" if text in _GOOD else " class=bad" if text in _BAD else ""
    return f"<td{kind}>{escape(text)}</td>"
