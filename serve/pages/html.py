"""Small pieces of HTML for the status page: text, numbers, bars, tables. Pure.

Invariant: whatever was not written in this folder passes `text` on its way into the page. Nothing
has a ``style`` attribute, since the page's Content-Security-Policy knows only its own style sheet.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, NewType

Html = NewType("Html", str)
"""Markup that is safe to put into the page as it is."""
UNKNOWN = Html('<span class="muted">not known</span>')
NOTHING = Html('<span class="muted" aria-hidden="true">–</span>')
MARKS = {"good": "●", "warn": "▲", "bad": "✕", "calm": "○"}
"""Beside each colour, a shape: colour alone tells some people nothing."""
LONG_TEXT = 300
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def text(value: Any) -> Html:
    """Any value as text; control characters, those that turn the direction of writing included, and
    what is too long for a page are left out."""
    shown = _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value))
    if len(shown) > LONG_TEXT:
        shown = shown[:LONG_TEXT] + "…"
    return Html(escape(shown))


def link(query: str) -> Html:
    """An address within an attribute: whole, as half of one leads elsewhere. It is encoded for URLs
    already, so there are no control characters in it."""
    return Html(escape(query))


def join(parts: Iterable[str]) -> Html:
    """One piece of several safe ones."""
    return Html("".join(parts))


def anchor(*words: Any) -> str:
    """An element's id: of the same thing always the same, so that a refresh keeps its place."""
    return "-".join(re.sub(r"[^A-Za-z0-9_]", lambda c: f".{ord(c[0]):x}", str(w)) for w in words)


# ---- values -----------------------------------------------------------------------------------


def number(value: Any) -> Html:
    """A count; None: whoever answers does not know it."""
    if value is None:
        return UNKNOWN
    return Html(f"{value:,.1f}" if isinstance(value, float) else f"{int(value):,}")


def size(value: Any) -> Html:
    """Bytes, rounded to what people read."""
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return Html(f"{amount:.0f} B" if unit == "B" else f"{amount:.3g} {unit}")
        amount /= 1024
    return Html(f"{amount:,.1f} TiB")


def duration(seconds: float | None) -> Html:
    """Seconds, in the unit that suits."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 1:
        return Html(f"{seconds * 1000:.0f} ms")
    if seconds < 120:
        return Html(f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s")
    if seconds < 7200:
        return Html(f"{seconds / 60:.0f} min")
    return Html(f"{seconds / 3600:.0f} h" if seconds < 172800 else f"{seconds / 86400:.0f} days")


def moment(at: float | None, now: float) -> Html:
    """A time of day (UTC), with the day unless it is today's."""
    if at is None:
        return UNKNOWN
    when = datetime.datetime.fromtimestamp(at, datetime.UTC)
    today = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
    shown = when.strftime("%H:%M:%S" if when.date() == today else "%Y-%m-%d %H:%M:%S")
    return Html(f'<time datetime="{when.isoformat(timespec="milliseconds")}">{shown}</time>')


def badge(words: Any, mood: str, *, hides_word: bool = False) -> Html:
    """A state: its word, its colour, and the shape of that colour."""
    mark, word = f'<span aria-hidden="true">{MARKS[mood]}</span>', text(words)
    if hides_word:
        word = Html(f'<span class="visually-hidden">{word}</span>')
    return Html(f'<span class="badge {mood}">{mark} {word}</span>')


def bar(share: float, label: str, mood: str = "calm") -> Html:
    """How much of something: a bar for the eye, and a number for everybody."""
    percent = round(100 * min(1.0, max(0.0, share)))
    return Html(
        f'<span class="bar" role="meter" aria-label="{text(label)}" aria-valuenow="{percent}" '
        f'aria-valuemin="0" aria-valuemax="100" aria-valuetext="{percent} %">'
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f'<rect class="fill-{mood}" width="{percent}" height="8"/></svg></span>'
    )


def plural(count: int, one: str, many: str = "") -> str:
    """``3 tablets``; not safe markup, as the words may be anybody's."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# ---- tables -----------------------------------------------------------------------------------


class Column(NamedTuple):
    """One column: its heading; ``kind`` is a class of the style sheet (number, minor)."""

    heading: str
    kind: str = ""


class Row(NamedTuple):
    """``key`` tells rows apart from one page to the next. The first cell is the row's heading."""

    key: str
    cells: Sequence[Html]
    mood: str = ""


def table(
    name: str,
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Row],
    *,
    about: Html | str = "",
) -> Html:
    """A table in a region of its own that scrolls sideways, by keyboard too."""
    return table_of_groups(name, caption, columns, {"": rows}, about=about)


def table_of_groups(
    name: str,
    caption: str,
    columns: Sequence[Column],
    groups: Mapping[str, Iterable[Row]],
    *,
    about: Html | str = "",
) -> Html:
    """The same, its rows under headings of groups."""
    head = "".join(
        f'<th scope="col"{_class(column.kind)}>{text(column.heading)}</th>' for column in columns
    )
    bodies = []
    for heading, rows in groups.items():
        title = ""
        if heading:
            title = (
                f'<tr id="{anchor(name, "of", heading)}"><th class="group" scope="rowgroup" '
                f'colspan="{len(columns)}">{text(heading)}</th></tr>'
            )
        shown = "".join(_row(name, columns, row) for row in rows)
        bodies.append(f'<tbody id="{anchor(name, "body", heading)}">{title}{shown}</tbody>')
    more = f'<span class="about">{about}</span>' if about else ""
    return Html(
        f'<div class="scroll" id="{name}-scroll" role="region" tabindex="0" '
        f'aria-labelledby="{name}-caption"><table id="{name}-table">'
        f'<caption id="{name}-caption">{text(caption)}{more}</caption>'
        f"<thead><tr>{head}</tr></thead>{''.join(bodies)}</table></div>"
    )


def _row(name: str, columns: Sequence[Column], row: Row) -> str:
    first, *rest = row.cells
    heading = f'<th scope="row"{_class(columns[0].kind)}>{first}</th>'
    cells = "".join(
        f"<td{_class(column.kind)}>{cell}</td>"
        for column, cell in zip(columns[1:], rest, strict=True)
    )
    return f'<tr id="{anchor(name, row.key)}"{_class(row.mood)}>{heading}{cells}</tr>'


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def section(name: str, heading: str, *body: str) -> Html:
    """A part of the page that its navigation leads to."""
    return Html(
        f'<section id="{name}" aria-labelledby="{name}-heading" tabindex="-1">'
        f'<h2 id="{name}-heading">{text(heading)}</h2>{"".join(body)}</section>'
    )


def calm(words: str) -> Html:
    """A line that says that there is nothing to see."""
    return Html(f'<p class="muted">{text(words)}</p>')
