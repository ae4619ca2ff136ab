"""Rates from what ``make bench`` wrote, and predictions held against what it measured.

Its file is a document of suites with figures, each of which has a name, a value, and a note. Names
carry the size of what was measured ("recovery of 1 GB, 8 tablets, 2 survivors, native"), so that a
figure says by itself what it is of. A figure that is not there leaves the rate as it was; one whose
name cannot be read is left out, and said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import Hardware, hardware_from
from stelae.planner.layout import MIB, SUMMARY_ROW_BYTES, Layout, Medium, Mode
from stelae.planner.recovery import planning, recovery_times
from stelae.planner.resources import bytes_per_row, resources_of

FACTOR_MAX = 16.0
"""CPU rates stay within this factor of those they are fitted from: a busy machine says little."""
_RECOVERY = re.compile(r"recovery of ([\d.e+-]+) GB, (\d+) tablets, (\d+) survivors, native")
_MEMORY = re.compile(r"memory of ([\d,]+) rows, loaded in bulk")
_COPY = re.compile(r"tablet copy of ([\d,]+) MiB")
_WRITES = re.compile(r'batches of 1,000 rows of 100 bytes, 4 writers, segments\("disk", "disk"\)')
_PLAIN_COPY = re.compile(r"ray\.get, write and sync of as many bytes")
_LOADED = "recovery: … all rows in memory"
"""Seconds from the detection on."""
_ROW_BYTES = 100
_KEY_BYTES = 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure, and what was predicted of it."""

    name: str
    unit: str
    measured: float
    predicted: float

    @property
    def factor(self) -> float:
        """How far off, upwards or downwards; 1 is exact."""
        if self.measured <= 0 or self.predicted <= 0:
            return math.inf
        return max(self.measured / self.predicted, self.predicted / self.measured)


@dataclass(frozen=True, slots=True)
class Measured:
    """Rates after a file of results, and what they are from."""

    hardware: Hardware
    sources: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    """Predicted with the rates as they were before, not with those fitted to the very figure."""


def read_measured(document: object, base: Hardware) -> Measured:
    """The rates of a results file, those not measured being ``base``'s.

    Takes the document of ``stelae plan --calibrate --json`` too.

    Raises:
        InvalidArgument: it is neither.
    """
    if isinstance(document, dict) and isinstance(document.get("hardware"), dict):
        return Measured(hardware_from(document["hardware"]), ("calibrated rates",), ())
    figures = dict(_figures(document))
    fitted, sources = base, []
    for fit in (_fit_disk, _fit_writes, _fit_recovery):
        found = fit(figures, fitted)
        if found is not None:
            fitted, source = found
            sources.append(source)
    return Measured(
        replace(fitted, name="measured" if sources else base.name),
        tuple(sources),
        tuple(compare(figures, base)),
    )


def _figures(document: object) -> Iterator[tuple[str, float]]:
    """Names and values of all suites. Raises `InvalidArgument`."""
    suites = document.get("suites") if isinstance(document, dict) else None
    if not isinstance(suites, dict):
        raise InvalidArgument(
            "this is no file of make bench (it has no suites), nor of "
            "stelae plan --calibrate --json (it has no hardware)"
        )
    for name, suite in suites.items():
        figures = suite.get("figures", []) if isinstance(suite, dict) else None
        if not isinstance(figures, list):
            raise InvalidArgument(f"suite {name!r}: its figures are no list")
        for figure in figures:
            if not isinstance(figure, dict) or not isinstance(figure.get("name"), str):
                raise InvalidArgument(f"suite {name!r}: a figure without a name")
            value = figure.get("value")
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if math.isfinite(value):
                # Phases of a recovery have the same names with either engine.
                prefix = f"{name}: " if figure["name"].startswith("…") else ""
                yield prefix + figure["name"], float(value)


Figures = Mapping[str, float]


def _find(figures: Figures, pattern: re.Pattern[str]) -> tuple[re.Match[str], float] | None:
    for name, value in figures.items():
        if (match := pattern.fullmatch(name)) and value > 0:
            return match, value
    return None


# ---- fitting -------------------------------------------------------------------------------

Fitted = tuple[Hardware, str] | None


def _fit_disk(figures: Figures, base: Hardware) -> Fitted:
    """Bytes got, written and synced one after the other: the disk writes at least so fast."""
    if (found := _find(figures, _PLAIN_COPY)) is None:
        return None
    rate = found[1] * MIB
    return replace(base, disk_write_bytes_per_s=rate), f"disk writes: {rate / 1e6:,.0f} MB/s"


def _fit_writes(figures: Figures, base: Hardware) -> Fitted:
    if (found := _find(figures, _WRITES)) is None:
        return None
    rate = found[1] / base.cores
    return replace(base, write_rows_per_core_s=rate), f"writes: {rate:,.0f} rows/s a core"


def _fit_recovery(figures: Figures, base: Hardware) -> Fitted:
    """Detection and planning as they were; the rest of the time is the cores', by one factor."""
    if (found := _find(figures, _RECOVERY)) is None:
        return None
    match, total_s = found
    layout = _layout_of(match)
    detection_s = max(0.0, figures.get("recovery: … detection", base.detection_s))
    base = replace(base, detection_s=detection_s)
    if plan_s := figures.get("recovery: … plan"):
        of_replicas = planning(replace(base, plan_s=0.0), layout).time_s
        base = replace(base, plan_s=max(0.0, plan_s - of_replicas))
    before = recovery_times(base, layout)
    fixed_s = before.serves_again_s - before.overlapped_s
    factor = max(total_s - fixed_s, 1e-3) / before.overlapped_s
    factor = min(max(factor, 1 / FACTOR_MAX), FACTOR_MAX)
    fitted = replace(
        base,
        send_bytes_per_core_s=base.send_bytes_per_core_s / factor,
        receive_bytes_per_core_s=base.receive_bytes_per_core_s / factor,
        merge_rows_per_core_s=base.merge_rows_per_core_s / factor,
    )
    return fitted, f"recovery: {total_s:.3g} s, CPU rates {1 / factor:.2f} × those assumed"


def recovery_layout(size_bytes: float, tablets: int, survivors: int) -> Layout:
    """Of the benchmark: one machine, whose page cache still has all; nothing overwritten. Tablets
    serve once keys and versions are back, and their rows follow."""
    return Layout(
        servers=survivors + 1,
        backups=3,
        machines=1,
        memory_bytes=3 << 30,
        data_bytes=size_bytes * (survivors + 1),
        row_bytes=_ROW_BYTES,
        medium=Medium.CACHED,
        tablets_per_server=tablets,
        live_share=1.0,
        mode=Mode.METADATA_FIRST,
        summary_row_bytes=SUMMARY_ROW_BYTES + _KEY_BYTES,
    )


# ---- comparing -----------------------------------------------------------------------------


def compare(figures: Figures, hardware: Hardware) -> Iterator[Comparison]:
    """What was measured beside what these rates predict of it."""
    for pattern, predict in _PREDICTED:
        if (found := _find(figures, pattern)) is None:
            continue
        match, value = found
        unit, predicted = predict(match, hardware)
        yield Comparison(match.group(0), unit, value, predicted)
    if (recovered := _find(figures, _RECOVERY)) and figures.get(_LOADED, 0.0) > 0:
        layout = _layout_of(recovered[0])
        times = recovery_times(hardware, layout)
        predicted = times.serves_again_s - times.detected_s + times.of("loading rows")
        yield Comparison(_LOADED, "s", figures[_LOADED], predicted)


def _layout_of(match: re.Match[str]) -> Layout:
    return recovery_layout(float(match[1]) * 1e9, int(match[2]), int(match[3]))


def _recovery(match: re.Match[str], hardware: Hardware) -> tuple[str, float]:
    return "s", recovery_times(hardware, _layout_of(match)).serves_again_s


def _memory(match: re.Match[str], _: Hardware) -> tuple[str, float]:
    rows = int(match[1].replace(",", ""))
    layout = Layout(servers=1, backups=2, machines=1, memory_bytes=MIB, data_bytes=0.0)
    return "MB", rows * bytes_per_row(layout) / 1e6


def _writes(_: re.Match[str], hardware: Hardware) -> tuple[str, float]:
    layout = Layout(servers=3, backups=3, machines=1, memory_bytes=1 << 30, data_bytes=1e8)
    return "rows/s", resources_of(hardware, layout).write_rows_per_s


def _copy(_: re.Match[str], hardware: Hardware) -> tuple[str, float]:
    """An image is received and checked, by all cores, while the disk writes what came before."""
    per_byte_s = 1 / hardware.receive_bytes_per_core_s / hardware.cores
    per_byte_s = max(per_byte_s, 1 / hardware.disk_write_bytes_per_s)
    return "MiB/s", 1 / per_byte_s / MIB


_PREDICTED: tuple[
    tuple[re.Pattern[str], Callable[[re.Match[str], Hardware], tuple[str, float]]], ...
] = ((_RECOVERY, _recovery), (_MEMORY, _memory), (_WRITES, _writes), (_COPY, _copy))
