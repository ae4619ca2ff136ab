"""Tables and tablets of the status page: how each table is, and which server has what. Pure.

Bounded: of the grid one page of tablets is shown, those that are not well first, and so many
servers get a column each; of more servers the names are in a cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from stelae.serve.pages.health import is_served, newest_runs
from stelae.serve.pages.html import (
    NOTHING,
    UNKNOWN,
    Column,
    Html,
    Row,
    anchor,
    badge,
    bar,
    calm,
    join,
    link,
    number,
    plural,
    section,
    size,
    table,
    text,
)

Document = Mapping[str, Any]
TABLES_MAX = 200
PAGE_TABLETS = 50
SERVER_COLUMNS = 24
WORD_COLUMNS = 6
"""Of more servers the cells have marks without words, for the eye."""
_TABLE_COLUMNS = (
    Column("Table"),
    Column("Health"),
    Column("Durability"),
    Column("Tablets running", "number"),
    Column("Rows", "number"),
    Column("Memory", "number"),
    Column("Key", "minor"),
    Column("Indexes", "minor"),
)
_ROLES = {"leader": "leads", "follower": "follows", "copying": "copies", "candidate": "votes"}


class View(NamedTuple):
    """What whoever looks has chosen, by the page's query."""

    table: str = ""
    """Tablets of this table alone; empty: of all."""
    page: int = 1
    refresh_s: int = 5
    """0: not by itself."""

    def query(self, **changes: Any) -> str:
        """The query of the same page with something changed."""
        chosen = self._replace(**changes)
        words = [("table", chosen.table)] if chosen.table else []
        words += [("page", str(chosen.page))] if chosen.page != 1 else []
        words += (
            [("refresh", str(chosen.refresh_s))] if chosen.refresh_s != View().refresh_s else []
        )
        return "?" + urlencode(words)


# ---- tables -----------------------------------------------------------------------------------


def tables_section(status: Document, view: View) -> Html:
    """One row for each table."""
    tables = sorted(status.get("tables", ()), key=lambda each: str(each.get("name")))
    if not tables:
        words = "There is no table yet: stelae.connect() and create_table, or stelae table import."
        return section("tables", "Tables", calm(words))
    unwell = _unwell_of_tables(status)
    tables.sort(key=lambda each: str(each.get("name")) not in unwell)
    rows = [_table_row(each, unwell.get(str(each.get("name")), []), view) for each in tables]
    shown = table("table", "Tables, unwell ones first", _TABLE_COLUMNS, rows[:TABLES_MAX])
    left_out = len(rows) - TABLES_MAX
    more = calm(f"and {left_out} more; stelae table list has all") if left_out > 0 else ""
    return section("tables", "Tables", shown, more)


def _unwell_of_tables(status: Document) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = {}
    for tablet in status.get("tablets", ()):
        if _mood(tablet) != "good":
            found.setdefault(str(tablet.get("table")), []).append(tablet)
    return found


def _table_row(each: Document, unwell: Sequence[Document], view: View) -> Row:
    name = each.get("name")
    query, place = link(view.query(table=name, page=1)), anchor("to", each.get("id") or name)
    durability = text(each.get("durability"))
    if becoming := each.get("becoming"):
        durability = join([durability, " → ", text(becoming)])
    running, tablets = each.get("tablets_running"), each.get("tablets")
    return Row(
        str(each.get("id") or name),
        (
            Html(f'<a id="{place}" href="{query}#tablets">{text(name)}</a>'),
            _table_health(each, unwell),
            durability,
            join([number(running), " of ", number(tablets)]),
            number(each.get("rows")),
            size(each.get("memory_bytes")),
            text(", ".join(map(str, each.get("key") or ()))) or NOTHING,
            text(", ".join(map(str, each.get("indexes") or ()))) or NOTHING,
        ),
        "unwell" if any(_mood(tablet) == "bad" for tablet in unwell) else "",
    )


def _table_health(each: Document, unwell: Sequence[Document]) -> Html:
    stopped = sum(_mood(tablet) == "bad" for tablet in unwell)
    if stopped:
        return badge(f"{plural(stopped, 'tablet')} offline", "bad")
    lacking = sum((tablet.get("under_replicated") or 0) > 0 for tablet in unwell)
    if lacking:
        return badge(f"{plural(lacking, 'tablet')} short of replicas", "warn")
    if unwell:
        return badge(f"{plural(len(unwell), 'tablet')} busy", "warn")
    if each.get("state") == "altering":
        return badge("altering", "warn")
    return badge("healthy", "good")


# ---- tablets ----------------------------------------------------------------------------------


def tablets_section(status: Document, view: View) -> Html:
    """The grid of tablets and servers: one page of it."""
    tablets = [t for t in status.get("tablets", ()) if view.table in ("", t.get("table"))]
    if not tablets:
        of = f" of table {view.table}" if view.table else ""
        return section("tablets", "Tablets on servers", _chosen(view), calm(f"No tablets{of}."))
    tablets.sort(key=_grid_order)
    pages = math.ceil(len(tablets) / PAGE_TABLETS)
    page = min(view.page, pages)
    shown = tablets[(page - 1) * PAGE_TABLETS : page * PAGE_TABLETS]
    servers = [s for s in newest_runs(status.get("servers", ())) if s.get("kind") == "tserver"]
    servers.sort(key=lambda each: (len(str(each.get("id"))), str(each.get("id"))))
    first = (page - 1) * PAGE_TABLETS + 1
    caption = f"Tablets {first:,} to {first + len(shown) - 1:,} of {len(tablets):,}"
    legend = Html(
        "Unwell ones first. ● serves or leads, ○ follows, ▲ is being made, copied or not known, "
        "✕ is on a server that is dead."
    )
    grid = _grid(caption, legend, shown, servers)
    return section("tablets", "Tablets on servers", _chosen(view), grid, _pager(view, page, pages))


def _grid(
    caption: str, legend: Html, tablets: Sequence[Document], servers: Sequence[Document]
) -> Html:
    wide, tight = len(servers) <= SERVER_COLUMNS, len(servers) > WORD_COLUMNS
    place = "tight place" if tight else "place"
    names = [str(server.get("id")) for server in servers]
    live = {str(server.get("id")): server.get("state") == "live" for server in servers}
    columns = [
        Column("Tablet"),
        Column("State"),
        *([Column(name, place) for name in names] if wide else [Column("Servers")]),
        Column("Log", "minor line"),
        Column("Rows", "number"),
        Column("Memory", "number"),
        Column("Calls/s", "number minor"),
    ]
    rows = []
    for tablet in tablets:
        places = {
            name: badge(word, mood, hides_word=tight and wide)
            for name, word, mood in _places(tablet, live)
        }
        cells = [places.get(name, Html("")) for name in names] if wide else [_listed(places)]
        rows.append(_tablet_row(tablet, cells))
    return table("tablet", caption, columns, rows, about=legend)


def _tablet_row(tablet: Document, places: Sequence[Html]) -> Row:
    mood = _mood(tablet)
    state = badge(_state(tablet), mood)
    loaded = tablet.get("loaded")
    if loaded is not None and loaded < 1 and tablet.get("state") == "running":
        label = f"Rows of tablet {tablet.get('number')} back in memory"
        state = join([state, " ", bar(float(loaded), label, "warn")])
    if tablet.get("problem"):
        state = join([state, '<span class="problem">', text(tablet["problem"]), "</span>"])
    load = tablet.get("load_per_s")
    return Row(
        str(tablet.get("id")),
        (
            join([text(tablet.get("table")), " ", text(tablet.get("number"))]),
            state,
            *places,
            _log(tablet),
            number(tablet.get("rows")),
            size(tablet.get("memory_bytes")),
            NOTHING if load is None else number(float(load)),
        ),
        "unwell" if mood == "bad" else "",
    )


def _places(tablet: Document, live: Mapping[str, bool]) -> Iterator[tuple[str, str, str]]:
    """Server by server what it has of the tablet, and the mood of that."""
    replicas = tablet.get("replicas")
    if replicas is None:
        if name := str(tablet.get("leader") or ""):
            word = "serves" if tablet.get("state") == "running" else str(tablet.get("state"))
            mood = "good" if word == "serves" else "warn"
            yield (name, word, mood) if live.get(name, True) else (name, "dead", "bad")
        return
    for replica in replicas:
        name, role = str(replica.get("server")), str(replica.get("role") or "")
        word = _ROLES.get(role, role or "not known")
        mood = {"leads": "good", "follows": "calm"}.get(word, "warn")
        if not replica.get("server_live", True):
            word, mood = "dead", "bad"
        elif replica.get("member") != "voter" and word == "follows":
            word, mood = "catches up", "warn"
        yield name, word, mood


def _listed(places: Mapping[str, Html]) -> Html:
    """For many servers: names in one cell."""
    return Html(", ".join(f"{text(name)} {shown}" for name, shown in places.items())) or NOTHING


def _log(tablet: Document) -> Html:
    """Where its rows outlive its server."""
    timeline = tablet.get("timeline")
    if timeline:
        members = ", ".join(map(str, timeline.get("sk_set") or ()))
        new = timeline.get("new_sk_set")
        to = f" → {', '.join(map(str, new))}" if new else ""
        return text(f"safekeepers {members}{to}")
    if "replicas" in tablet:
        return text(f"Raft, term {tablet.get('term')}")
    segments = tablet.get("segments")
    return UNKNOWN if segments is None else text(plural(segments, "segment"))


def _grid_order(tablet: Document) -> tuple[int, str, int]:
    moods = ("bad", "warn", "good")
    return moods.index(_mood(tablet)), str(tablet.get("table")), int(tablet.get("number") or 0)


def _state(tablet: Document) -> str:
    if tablet.get("state") == "running" and not is_served(tablet):
        return "no leader"
    if (tablet.get("under_replicated") or 0) > 0:
        return "short of replicas"
    return str(tablet.get("state"))


def _mood(tablet: Document) -> str:
    if not is_served(tablet):
        return "warn" if tablet.get("state") == "creating" else "bad"
    lacks = (tablet.get("under_replicated") or 0) > 0
    loaded = tablet.get("loaded")
    loads = loaded is not None and loaded < 1
    return "warn" if lacks or loads or tablet.get("problem") else "good"


# ---- where to go ------------------------------------------------------------------------------


def _chosen(view: View) -> Html:
    """That only one table's tablets are shown, and the way back."""
    if not view.table:
        return Html("")
    back = link(view.query(table="", page=1))
    return Html(
        f"<p>Only table <strong>{text(view.table)}</strong>. "
        f'<a id="all-tables" href="{back}#tablets">Show all tables</a></p>'
    )


def _pager(view: View, page: int, pages: int) -> Html:
    if pages == 1:
        return Html("")
    near = [1, *range(max(2, page - 2), min(pages, page + 3)), pages]
    links = []
    for n in near:
        current = ' aria-current="page"' if n == page else ""
        query = link(view.query(page=n))
        links.append(
            f'<li id="page-{n}"><a id="to-page-{n}" href="{query}#tablets"{current}>'
            f'<span class="visually-hidden">Page </span>{n}</a></li>'
        )
    return Html(f'<nav aria-label="Pages of tablets"><ul class="pager">{"".join(links)}</ul></nav>')
