"""What `stelae demo` shows in the end: a summary table, a PNG and an HTML timeline.

The timeline is the story of one kill: acknowledged writes in each 50 ms, and what happened when.
The HTML is one file with SVG in it: no script, nothing fetched.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BIN_S = 0.05
SHOWN_BEFORE_S = 1.5
SHOWN_AFTER_S = 2.0
PHASE_WORDS = {
    "detected": "noticed dead",
    "raised": "term raised",
    "fenced": "backups fenced",
    "planned": "log found complete",
    "opened": "new owners told",
    "running": "all tablets serve",
}
COLOURS = ("#c0392b", "#d35400", "#b7950b", "#7d3c98", "#2471a3", "#148f77", "#1e8449")


class _Checked:
    """By what servers that were killed under load are judged."""

    pauses_s: list[float]
    rows_missing: int
    rows_wrong: int
    problems: list[str]

    @property
    def is_right(self) -> bool:
        return not (self.rows_missing or self.rows_wrong or self.problems)

    @property
    def pause_s(self) -> float:
        return max(self.pauses_s, default=0.0)


@dataclass
class Round(_Checked):
    """One kill of a tablet server under load, and what came of it. Times count from the kill."""

    engine: str
    wanted_engine: str
    victim: str
    tablets: int
    phases_s: dict[str, float]
    """Phase → seconds until all tablets had reached it, ``detected`` first."""
    replay_s: dict[str, float]
    """Step of the rebuilding → seconds that the slowest tablet spent in it."""
    acknowledged_s: NDArray[np.float64]
    pauses_s: list[float]
    write_ms: dict[str, float]
    """Latency of writes before the kill: p50, p99."""
    healed_s: float
    rows_checked: int
    rows_missing: int
    rows_wrong: int
    problems: list[str] = field(default_factory=list)
    """Rows that are not right, for people."""
    failures: list[str] = field(default_factory=list)
    """Writes that were refused or whose outcome is not known: never acknowledged."""


@dataclass
class Strike(_Checked):
    """Several servers killed under load, and what came of it."""

    what: str
    killed: list[str]
    took_s: float
    """From the first kill until everything was at full strength."""
    writes: int
    """Acknowledged meanwhile."""
    pauses_s: list[float]
    rows_checked: int = 0
    rows_missing: int = 0
    rows_wrong: int = 0
    problems: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class DemoResult:
    """Everything that a demo has measured."""

    data: str
    rows: int
    data_bytes: int
    launch_s: float = 0.0
    load_s: float = 0.0
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    """What was read how → figure → value."""
    notes: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)

    @property
    def checked(self) -> list[Round | Strike]:
        """Everything after which all rows were looked at."""
        return [*self.rounds, *self.strikes]

    @property
    def is_right(self) -> bool:
        return all(each.is_right for each in self.checked)

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "data": self.data,
            "rows": self.rows,
            "data_bytes": self.data_bytes,
            "launch_s": round(self.launch_s, 3),
            "load_s": round(self.load_s, 3),
            "load_rows_per_s": round(self.rows / self.load_s) if self.load_s else 0,
            "reads": self.measured,
            "rounds": [_round_document(each) for each in self.rounds],
            "strikes": [_strike_document(each) for each in self.strikes],
            "notes": self.notes,
            "right": self.is_right,
        }


def _round_document(each: Round) -> dict[str, Any]:
    return {
        "engine": each.engine,
        "victim": each.victim,
        "tablets": each.tablets,
        "pause_s": round(each.pause_s, 4),
        "pauses_s": [round(pause, 4) for pause in each.pauses_s],
        "phases_s": {name: round(at, 4) for name, at in each.phases_s.items()},
        "replay_s": {name: round(took, 4) for name, took in each.replay_s.items()},
        "write_ms": each.write_ms,
        "healed_s": round(each.healed_s, 3),
        "writes_acknowledged": len(each.acknowledged_s),
        "writes_failed": each.failures,
        "rows_checked": each.rows_checked,
        "rows_missing": each.rows_missing,
        "rows_wrong": each.rows_wrong,
        "problems": each.problems,
    }


def _strike_document(each: Strike) -> dict[str, Any]:
    return {
        "what": each.what,
        "killed": each.killed,
        "took_s": round(each.took_s, 3),
        "pause_s": round(each.pause_s, 4),
        "writes_acknowledged": each.writes,
        "writes_failed": each.failures,
        "rows_checked": each.rows_checked,
        "rows_missing": each.rows_missing,
        "rows_wrong": each.rows_wrong,
        "problems": each.problems,
    }


def summary(result: DemoResult) -> list[tuple[str, str]]:
    """The summary as pairs of what and how much, for a table."""
    rate = result.rows / result.load_s if result.load_s else 0.0
    lines = [
        ("cluster up", f"{result.launch_s:.1f} s"),
        (
            f"loaded ({result.data}), on two disks",
            f"{result.rows:,} rows, {result.data_bytes / 1e6:.0f} MB in {result.load_s:.1f} s: "
            f"{rate:,.0f} rows/s",
        ),
    ]
    for what, figures in result.measured.items():
        lines.append((what, ", ".join(f"{_figure(name, f)}" for name, f in figures.items())))
    for each in result.rounds:
        lines += _round_summary(each)
    for strike in result.strikes:
        lines += _strike_summary(strike)
    return lines


def _figure(name: str, value: float) -> str:
    """``p50_ms`` 1.2 → ``p50 1.20 ms``; ``rows_per_s`` 3e6 → ``3,000,000 rows/s``."""
    if name.endswith("_per_s"):
        return f"{value:,.0f} {name.removesuffix('_per_s')}/s"
    if name.endswith("_ms"):
        return f"{name.removesuffix('_ms')} {value:.2f} ms"
    if name.endswith("_s"):
        return f"{name.removesuffix('_s')} {value:.2f} s"
    return f"{value:,.0f} {name}"


def _round_summary(each: Round) -> Iterator[tuple[str, str]]:
    title = f"{each.victim} killed, {each.tablets} tablets, {each.engine} engine"
    yield title, f"pause seen by the writers: {each.pause_s:.2f} s at most"
    yield (
        "  writes before the kill",
        ", ".join(_figure(name, value) for name, value in each.write_ms.items()),
    )
    yield (
        "  after the kill",
        ", ".join(f"{PHASE_WORDS[name]} {at:.2f} s" for name, at in each.phases_s.items()),
    )
    if each.replay_s:
        steps = ", ".join(f"{name} {took:.2f} s" for name, took in each.replay_s.items())
        yield "  of that, rebuilding (slowest tablet)", steps
    yield "  full strength again", f"after {each.healed_s:.1f} s"
    yield from _checked(each)


def _strike_summary(each: Strike) -> Iterator[tuple[str, str]]:
    yield (
        f"{each.what}: {len(each.killed)} servers killed",
        f"pause seen by the writers: {each.pause_s:.2f} s at most; {each.writes:,} writes; full "
        f"strength after {each.took_s:.1f} s",
    )
    yield from _checked(each)


def _checked(each: Round | Strike) -> Iterator[tuple[str, str]]:
    verdict = (
        "all right" if each.is_right else f"{each.rows_missing} MISSING, {each.rows_wrong} WRONG"
    )
    yield "  rows checked (values and versions)", f"{each.rows_checked:,}: {verdict}"
    if each.failures:
        yield "  writes not acknowledged", f"{len(each.failures)}: {each.failures[0]}"


def bins(each: Round) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Starts of the 50 ms bins that are shown, and acknowledged writes in each."""
    until = max([*each.phases_s.values(), each.pause_s]) + SHOWN_AFTER_S
    edges = np.arange(-SHOWN_BEFORE_S, until + BIN_S, BIN_S)
    counts, _ = np.histogram(each.acknowledged_s, edges)
    return edges[:-1], counts.astype(np.int64)


def marks(each: Round) -> list[tuple[str, float]]:
    """What is marked on the timeline: the kill, and the phases after it."""
    return [("SIGKILL", 0.0), *((PHASE_WORDS[name], at) for name, at in each.phases_s.items())]


def title_of(each: Round) -> str:
    return (
        f"{each.victim} killed under load, recovered by the {each.engine} engine: "
        f"longest pause {each.pause_s:.2f} s, {each.rows_checked:,} rows checked"
    )


def write_report(result: DemoResult, folder: Path) -> list[Path]:
    """Write ``timeline.png``, ``timeline.html`` and ``result.json``; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    image, page, data = (folder / f"timeline.{end}" for end in ("png", "html", "json"))
    write_png(result.rounds, image)
    page.write_text(html_page(result), encoding="utf-8")
    data.write_text(json.dumps(result.document(), indent=2) + "\n", encoding="utf-8")
    return [image, page, data]


def write_png(rounds: list[Round], path: Path) -> None:
    """One plot for each round, below each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6 * max(1, len(rounds))), layout="constrained")
    for number, each in enumerate(rounds, 1):
        axes = figure.add_subplot(len(rounds), 1, number)
        starts, counts = bins(each)
        axes.bar(starts, counts, width=BIN_S, align="edge", color="#5d8aa8")
        top = max(1, int(counts.max(initial=1)))
        for place, ((what, at), colour) in enumerate(zip(marks(each), COLOURS, strict=False)):
            axes.axvline(at, color=colour, linewidth=1.4)
            axes.text(
                at,
                top * (1.28 - 0.07 * place),
                f" {what} {at:.2f} s",
                color=colour,
                fontsize=8,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.6},
            )
        axes.set(
            title=title_of(each),
            xlabel="seconds after the kill",
            ylabel="acknowledged writes per 50 ms",
            ylim=(0, top * 1.38),
            xlim=(starts[0], starts[-1] + BIN_S),
        )
    figure.savefig(path, dpi=130)


def html_page(result: DemoResult) -> str:
    """The whole report as one page."""
    rows = "".join(
        f"<tr><td>{html.escape(what)}</td><td>{html.escape(much)}</td></tr>"
        for what, much in summary(result)
    )
    plots = "".join(
        f"<h2>{html.escape(title_of(each))}</h2>{svg_timeline(each)}" for each in result.rounds
    )
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in result.notes)
    return (
        "<!DOCTYPE html><html lang='en'><head><meta charset='utf-8'><title>Stelae: a server is "
        "killed</title><style>body{font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2em "
        "auto;padding:0 1em;color:#222}td{padding:.2em 1em .2em 0;vertical-align:top;"
        "white-space:pre-wrap}h2{font-size:1.1em;margin-top:2em}svg{width:100%;height:auto}"
        "rect:hover{fill:#1f4e79}</style></head><body><h1>A tablet server is killed</h1>"
        f"<table>{rows}</table>{notes}{plots}</body></html>\n"
    )


def svg_timeline(each: Round) -> str:
    """The timeline of a round as SVG; bars and marks tell their figures when pointed at."""
    width, height, left, bottom, head = 1000, 380, 50, 40, 120
    starts, counts = bins(each)
    span_s = float(starts[-1] + BIN_S - starts[0])
    top = max(1, int(counts.max(initial=1)))

    def x(at: float) -> float:
        return round(left + (at - float(starts[0])) / span_s * (width - left - 10), 2)

    def y(count: float) -> float:
        return round(height - bottom - count / top * (height - bottom - head), 2)

    parts = [f"<svg viewBox='0 0 {width} {height}' role='img' font-size='12'>"]
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        parts.append(
            f"<rect x='{x(start)}' y='{y(count)}' width='{x(start + BIN_S) - x(start):.2f}' "
            f"height='{height - bottom - y(count):.2f}' fill='#5d8aa8'><title>{start:.2f} s: "
            f"{count} writes</title></rect>"
        )
    for place, ((what, at), colour) in enumerate(zip(marks(each), COLOURS, strict=False)):
        text_y = 14 + 16 * place
        parts.append(
            f"<line x1='{x(at)}' x2='{x(at)}' y1='{text_y - 10}' y2='{height - bottom}' "
            f"stroke='{colour}' stroke-width='1.5'/><text x='{x(at) + 4}' y='{text_y}' "
            f"fill='{colour}'>{html.escape(what)} {at:.2f} s</text>"
        )
    base = height - bottom
    parts += [
        f"<text x='{x(second)}' y='{base + 16}' text-anchor='middle'>{second}</text>"
        for second in range(int(np.ceil(starts[0])), int(starts[-1]) + 1)
    ]
    parts += [
        f"<text x='{left - 6}' y='{y(count) + 4}' text-anchor='end'>{count}</text>"
        for count in (0, top)
    ]
    parts.append(
        f"<text x='{width / 2}' y='{height - 6}' text-anchor='middle'>seconds after the kill; "
        "bars: acknowledged writes in each 50 ms</text></svg>"
    )
    return "".join(parts)
