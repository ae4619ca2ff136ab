"""The status page: one HTML document made from the status document; nothing from elsewhere. Pure.

Its style sheet and its script are inside it, and the Content-Security-Policy names them by their
hashes: no other style or script runs, whatever a table or a server is called. Without scripts the
page reloads itself, and everything in it works: paging and choosing are links.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from stelae.serve.pages.activity import events_section, recoveries_section, work_section
from stelae.serve.pages.health import Finding, findings, is_served, newest_runs
from stelae.serve.pages.html import (
    UNKNOWN,
    Html,
    badge,
    calm,
    join,
    link,
    moment,
    number,
    section,
    size,
    text,
)
from stelae.serve.pages.servers import servers_section
from stelae.serve.pages.tables import View, tables_section, tablets_section

REFRESH_S = View().refresh_s
FINDINGS_MAX = 12
_PARTS = {
    "summary": "Summary",
    "servers": "Servers",
    "tables": "Tables",
    "tablets": "Tablets",
    "recoveries": "Recoveries",
    "work": "Moves",
    "events": "Events",
}


@cache
def _file(name: str) -> str:
    return resources.files("stelae.serve.pages").joinpath(name).read_text("utf-8")


def _hash(inline: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


@cache
def headers() -> dict[str, str]:
    """What the page is served with."""
    policy = (
        "default-src 'none'",
        f"style-src {_hash(_file('page.css'))}",
        f"script-src {_hash(_file('page.js'))}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def status_page(status: Mapping[str, Any], view: View = View()) -> str:  # noqa: B008 (immutable)
    """The whole page."""
    found = findings(status)
    cluster = text(status.get("cluster", ""))
    mark = {"bad": "✕ ", "warn": "▲ "}.get(found[0].mood, "") if found else ""
    reload = f'<meta http-equiv="refresh" content="{view.refresh_s}">' if view.refresh_s else ""
    return join([
        f'<!doctype html><html lang="en" data-refresh="{view.refresh_s}"><head>',
        f'<meta charset="utf-8"><title>{mark}{cluster} · Stelae</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
        f"<noscript>{reload}</noscript><style>{_file('page.css')}</style></head><body>",
        '<a class="skip" href="#summary">Skip to the summary</a>',
        _header(status, view),
        _navigation(),
        '<main id="main">',
        _summary(status, found),
        servers_section(status),
        tables_section(status, view),
        tablets_section(status, view),
        recoveries_section(status),
        work_section(status),
        events_section(status),
        "</main><footer><p>The same as JSON: <code>GET v1/cluster</code>. In a shell: "
        "<code>stelae status</code>, <code>stelae check</code>.</p></footer>",
        f"<script>{_file('page.js')}</script></body></html>",
    ])  # fmt: skip


def _header(status: Mapping[str, Any], view: View) -> Html:
    now = float(status.get("time") or 0.0)
    if view.refresh_s:
        stop = link(view.query(refresh_s=0))
        often = f'every {view.refresh_s} s. <a id="refreshing" href="{stop}">Stop refreshing</a>'
    else:
        again = link(view.query(refresh_s=REFRESH_S))
        often = f'not by itself. <a id="refreshing" href="{again}">Refresh every {REFRESH_S} s</a>'
    # Of a document that says so: those of earlier masters say nothing.
    words = "<p>Connections between machines are encrypted.</p>"
    encrypted = words if status.get("is_encrypted") else ""
    return join([
        f"<header><h1><small>Stelae cluster</small>{text(status.get('cluster', ''))}</h1>",
        f"<p>As of {moment(now, now)} UTC, by the masters in term {number(status.get('term'))}. ",
        f"Refreshed {often}</p>{encrypted}</header>",
    ])  # fmt: skip


def _navigation() -> Html:
    links = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words in _PARTS.items())
    return Html(
        f'<nav class="parts" aria-label="Parts of this page"><ul>{links}</ul></nav>'
        '<p id="stale" role="alert"></p>'
    )


def _summary(status: Mapping[str, Any], found: list[Finding]) -> Html:
    worst = found[0].mood if found else "good"
    words = {
        "bad": "Something is wrong: some rows cannot be had, or are at risk.",
        "warn": "Working, but not all is well.",
        "calm": "All is well; this is worth knowing:",
        "good": "All is well.",
    }[worst]
    verdict = f'<p class="verdict" id="verdict" role="status">{badge(words, worst)}</p>'
    items = "".join(_finding(each) for each in found[:FINDINGS_MAX])
    left_out = len(found) - FINDINGS_MAX
    more = calm(f"and {left_out} more: stelae check") if left_out > 0 else ""
    listed = f'<ul class="findings" id="findings">{items}</ul>{more}' if found else ""
    return section("summary", "Summary", verdict, listed, _cards(status))


def _finding(found: Finding) -> str:
    command = f" <code>{text(found.help)}</code>" if found.help else ""
    severity = {"bad": "Error: ", "warn": "Warning: "}.get(found.mood, "Note: ")
    return (
        f'<li class="{found.mood}"><span class="visually-hidden">{severity}</span>'
        f"{text(found.words)}{command}</li>"
    )


def _cards(status: Mapping[str, Any]) -> Html:
    servers, tables = newest_runs(status.get("servers", ())), status.get("tables", ())
    tablets = status.get("tablets", ())
    live = sum(server.get("state") == "live" for server in servers)
    served = sum(is_served(tablet) for tablet in tablets)
    running = [r for r in status.get("recoveries", ()) if r.get("state") != "done"]
    moves = len(status.get("migrations", ())) + len(status.get("copies", ()))
    cards = {
        "Servers live": _of(live, len(servers)),
        "Tables": number(len(tables)),
        "Tablets served": _of(served, len(tablets)),
        "Rows": _sum(tables, "rows", number),
        "Rows in memory": _sum(tables, "memory_bytes", size),
        "Calls": _sum(tablets, "load_per_s", _rate),
        "Recoveries": join([number(len(running)), " <small>under way</small>"]),
        "Moves and copies": join([number(moves), " <small>under way</small>"]),
    }
    shown = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in cards.items())
    return Html(f'<dl class="cards" id="figures">{shown}</dl>')


def _of(some: int, whole: int) -> Html:
    return join([number(some), f" <small>of {number(whole)}</small>"])


def _rate(value: float) -> Html:
    return join([number(round(value)), " <small>a second</small>"])


def _sum(items: Any, name: str, shown: Any) -> Html:
    """Of what is known; a follower knows nothing."""
    known = [each[name] for each in items if each.get(name) is not None]
    if items and not known:
        return UNKNOWN
    result: Html = shown(sum(known))
    return result
