"""What goes on, for the status page: recoveries, moves, copies, and recent events. Pure.

What is under way comes first and has a bar; of what is over the last few are shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stelae.serve.pages.html import (
    NOTHING,
    Column,
    Html,
    Row,
    badge,
    bar,
    calm,
    duration,
    join,
    moment,
    number,
    plural,
    section,
    size,
    table,
    text,
)

Document = Mapping[str, Any]
RUNNING_MAX = 50
"""Of each kind of work, those shown."""
PAST_MAX = 10
EVENTS_MAX = 30
_PHASES = {
    "raised": "term raised",
    "fenced": "backups fenced",
    "planned": "log found complete",
    "opened": "new owners told",
    "running": "all tablets served",
}
_RECOVERY_COLUMNS = (
    Column("Server lost"),
    Column("State"),
    Column("Tablets served"),
    Column("Rows in memory"),
    Column("Began"),
    Column("Served after", "number"),
    Column("Expected", "number minor"),
    Column("Engine", "minor"),
)
_WORK_COLUMNS = (Column("What"), Column("Of"), Column("State"), Column("How far"), Column("Where"))
_EVENT_COLUMNS = (Column("When"), Column("What"))


# ---- recoveries -------------------------------------------------------------------------------


def recoveries_section(status: Document) -> Html:
    """Those under way, then the last that are over."""
    recoveries = list(status.get("recoveries", ()))
    if not recoveries:
        return section("recoveries", "Recoveries", calm("None since this master leads."))
    running = [each for each in recoveries if each.get("state") != "done"]
    done = [each for each in recoveries if each.get("state") == "done"][:PAST_MAX]
    shown = running[:RUNNING_MAX] + done
    left_out = len(recoveries) - len(shown)
    caption = f"{plural(len(running), 'recovery', 'recoveries')} under way"
    caption = f"{caption if running else 'None under way'}; {len(done)} done of late"
    now = float(status.get("time") or 0.0)
    rows = [_recovery_row(each, now) for each in shown]
    more = calm(f"and {left_out} more: GET /v1/recoveries") if left_out else ""
    return section(
        "recoveries", "Recoveries", table("recovery", caption, _RECOVERY_COLUMNS, rows), more
    )


def _recovery_row(each: Document, now: float) -> Row:
    phases = each.get("phases_s") or {}
    reached = [words for phase, words in _PHASES.items() if phase in phases]
    is_done = each.get("state") == "done"
    total, running = each.get("tablets_total") or 0, each.get("tablets_running") or 0
    loaded = float(each.get("loaded") or 0.0)
    server = each.get("server")
    state = badge("done", "good") if is_done else badge(each.get("state"), "warn")
    if not is_done:
        state = join(
            [state, ' <span class="muted">', text((reached or ["found dead"])[-1]), "</span>"]
        )
    share = running / total if total else 1.0
    took = phases.get("running")
    since = duration(max(0.0, now - float(each.get("started") or now)))
    problems = {str(t["problem"]): None for t in each.get("tablets", ()) if t.get("problem")}
    for problem in list(problems)[:2]:
        state = join([state, '<span class="problem">', text(problem), "</span>"])
    return Row(
        str(each.get("id")),
        (
            text(server),
            state,
            join([
                bar(share, f"Tablets of {server} served again", "good" if is_done else "warn"),
                f" {number(running)} of {number(total)}",
            ]),
            join([
                bar(loaded, f"Rows of {server} back in memory", "good" if loaded >= 1 else "warn"),
                f" {loaded:.0%}",
            ]),
            moment(each.get("started"), now),
            duration(took) if took is not None else join(["for ", since]),
            duration(expected) if (expected := _expected_s(each)) else NOTHING,
            text(each.get("engine")),
        ),
        "" if is_done else "busy",
    )  # fmt: skip


def _expected_s(each: Document) -> float | None:
    """Of the engines that were put to work, one after the other."""
    times = [use.get("expected_s", {}).get(use.get("engine")) for use in each.get("engines", ())]
    known = [float(time_s) for time_s in times if time_s is not None and math.isfinite(time_s)]
    return sum(known) if known else None


# ---- moves, copies, and what is made anew ------------------------------------------------------


def work_section(status: Document) -> Html:
    """All that moves from one server to another, or is built."""
    names = {s.get("safekeeper_id"): s.get("id") for s in status.get("servers", ())}
    rows = [
        *_migrations(status, names),
        *_copies(status),
        *_shortages(status),
        *_successions(status),
        *_indexes(status),
    ]
    if not rows:
        words = "No log migrates, no tablet is copied, no replica is made anew, no index is filled."
        return section("work", "Moves and copies", calm(words))
    caption = f"{plural(len(rows), 'piece')} of work under way"
    shown = table("work", caption, _WORK_COLUMNS, rows[: 4 * RUNNING_MAX])
    left_out = len(rows) - 4 * RUNNING_MAX
    return section(
        "work", "Moves and copies", shown, calm(f"and {left_out} more") if left_out > 0 else ""
    )


def _how_far(share: float, label: str, words: str) -> Html:
    return join([bar(share, label, "warn"), " ", words])


def _migrations(status: Document, names: Mapping[Any, Any]) -> Iterator[Row]:
    tables = {t.get("id"): f"{t.get('table')} {t.get('number')}" for t in status.get("tablets", ())}
    for each in status.get("migrations", ()):
        tablet = (each.get("timeline") or ("", ""))[1]
        step = int(each.get("step") or 0)
        problems = list((each.get("problems") or {}).values())
        state = badge("waits" if problems else "under way", "warn")
        if problems:
            state = join([state, '<span class="problem">', text(problems[0]), "</span>"])
        members = _safekeepers(each.get("members") or (), names)
        desired = _safekeepers(each.get("desired") or (), names)
        yield Row(
            f"migration.{tablet}",
            (
                Html("migration of a log"),
                text(tables.get(tablet, str(tablet)[:8])),
                state,
                text(f"step {step}: {each.get('step_name')}"),
                text(f"{members} → {desired}" if desired else members),
            ),
        )


def _safekeepers(ids: Sequence[Any], names: Mapping[Any, Any]) -> str:
    return ", ".join(str(names.get(number) or number) for number in ids)


def _copies(status: Document) -> Iterator[Row]:
    tablets = {t.get("id"): t.get("number") for t in status.get("tablets", ())}
    for each in status.get("copies", ()):
        done, whole = each.get("copied_bytes") or 0, each.get("bytes") or 0
        state = badge(each.get("state"), "good" if each.get("state") == "copying" else "warn")
        if each.get("problem"):
            state = join([state, '<span class="problem">', text(each["problem"]), "</span>"])
        of = f"{each.get('table')} {tablets.get(each.get('tablet'), '')}"
        label = f"Copy of {of} to {each.get('server')}"
        yield Row(
            f"copy.{each.get('tablet')}.{each.get('uuid')}",
            (
                Html("copy of a replica"),
                text(of),
                state,
                _how_far(done / whole if whole else 0.0, label, f"{size(done)} of {size(whole)}"),
                text(f"{each.get('source') or '?'} → {each.get('server')}"),
            ),
        )


def _shortages(status: Document) -> Iterator[Row]:
    for each in status.get("shortages", ()):
        left, most = each.get("bytes") or 0, each.get("bytes_of") or 0
        of = f"{each.get('table')} {each.get('number')}"
        words = f"{number(each.get('segments'))} of {number(each.get('segments_of'))} segments left"
        yield Row(
            f"shortage.{each.get('tablet')}",
            (
                Html("segments copied anew"),
                text(of),
                badge("short of replicas", "warn"),
                _how_far(1 - left / most if most else 0.0, f"Segments of {of} copied", words),
                Html("to other backups"),
            ),
        )


def _successions(status: Document) -> Iterator[Row]:
    """Tablets whose durability is altered: another with the same rows takes their place."""
    for each in status.get("tablets", ()):
        said = each.get("succession")
        if not said:
            continue
        of = f"{each.get('table')} {each.get('number')}"
        done, whole = said.get("copied") or 0, said.get("of") or 0
        state = badge(said.get("stage"), "warn")
        if said.get("problem"):
            state = join([state, '<span class="problem">', text(said["problem"]), "</span>"])
        words = f"{number(done)} of {number(whole)} rows"
        yield Row(
            f"succession.{each.get('id')}",
            (
                Html("change of durability"),
                text(of),
                state,
                _how_far(done / whole if whole else 0.0, f"Rows of {of} copied", words),
                text(each.get("leader")),
            ),
        )


def _indexes(status: Document) -> Iterator[Row]:
    for each in status.get("indexes", ()):
        if each.get("state") == "serving":
            continue
        of, filled = f"{each.get('table')}.{each.get('column')}", float(each.get("filled") or 0.0)
        where = sorted({str(i.get("server")) for i in each.get("indexlets", ())})
        yield Row(
            f"index.{each.get('id')}.{of}",
            (
                Html("filling of an index"),
                text(of),
                badge(each.get("state"), "warn"),
                _how_far(filled, f"Index {of} filled", f"{filled:.0%}"),
                text(", ".join(where)),
            ),
        )


# ---- events -----------------------------------------------------------------------------------


def events_section(status: Document) -> Html:
    """What has happened of late, the newest first."""
    events = list(status.get("events", ()))[:EVENTS_MAX]
    if not events:
        return section(
            "events", "Recent events", calm("Nothing has happened since the masters began.")
        )
    now = float(status.get("time") or 0.0)
    rows = []
    for each in events:
        mood = str(each.get("mood") or "calm")
        words = each.get("text")
        shown = badge(words, mood) if mood in ("bad", "warn", "good") else text(words)
        at = each.get("time")
        when = moment(at, now) if at is not None else Html("earlier")
        rows.append(Row(str(each.get("id")), (when, shown)))
    return section("events", "Recent events", table("event", "Newest first", _EVENT_COLUMNS, rows))
