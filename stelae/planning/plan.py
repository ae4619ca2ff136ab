"""From a ``cluster.yaml`` to a layout, from a choice of rates to a plan: what ``stelae plan`` and
`stelae.plan` share. The reckoning itself is `stelae.planner`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stelae.core.errors import InvalidArgument
from stelae.planner.changes import HARDWARE_WORDS, LAYOUT_WORDS, changed, changes_of, failures_with
from stelae.planner.hardware import BY_NAME, SERVER, VM, Hardware
from stelae.planner.layout import Layout, Medium, Mode, Scatter
from stelae.planner.measured import Measured, read_measured
from stelae.planner.plan import Plan, make_plan
from stelae.planner.resources import CLEANING_SHARE, memory_of
from stelae.planner.risk import Failures

if TYPE_CHECKING:
    from stelae.core.config.spec import ClusterSpec

RESULT_BYTES_MAX = 16 << 20
DEFAULT_MEDIUM = "disk"
DEFAULT_REPLICAS = 2


def plan(config: Any = None, *, hardware: str = "", **changes: object) -> Plan:
    """Predict recovery, space and risk of a cluster that need not be there.

    ``config``: a path, a dict or a spec, as for `launch`; ``changes``: as in
    ``stelae plan --what-if``, e.g. ``plan("cluster.yaml", servers=100, data="1TB", k=3)``.

    Raises:
        InvalidArgument: the file, a name or a value is not as it should be.
    """
    from stelae.core.config.spec_file import load_spec

    texts = [f"{name.replace('_', '-')}={value}" for name, value in changes.items()]
    rates = rates_named(hardware) if hardware else None
    wanted = changes_of(texts, "plan()")
    hardware_used, layout = resolve(load_spec(config), wanted, rates, "plan()")
    return make_plan(hardware_used, layout, failures_with(Failures(), wanted, "plan()"))


def resolve(
    spec: ClusterSpec, changes: Mapping[str, str], rates: Hardware | None, option: str
) -> tuple[Hardware, Layout]:
    """Rates and layout of a file with changes. Without a size of the data the cluster is half full;
    without rates they are those of a small virtual machine if there is one, else a data centre's.

    Raises:
        InvalidArgument: a value that does not fit.
    """
    layout = layout_of(spec)
    _, layout = changed(VM, layout, {k: v for k, v in changes.items() if k in LAYOUT_WORDS}, option)
    if "data" not in changes:
        layout = layout.with_changes(data_bytes=half_full(layout))
    rates = rates or (VM if layout.machines == 1 else SERVER)
    of_hardware = {k: v for k, v in changes.items() if k in HARDWARE_WORDS}
    return changed(rates, layout, of_hardware, option)


def layout_of(spec: ClusterSpec) -> Layout:
    """The cluster of a file, half full.

    A Ray that Stelae starts is one machine; of another one, each tablet server is taken to have a
    machine of its own. Tables name their durability when they are made: here it is two replicas
    on disk, or as many as there are backups. Copysets are those of the file, where there are
    machines enough for a group.
    """
    machines = 1 if spec.ray.address == "local" else spec.tservers.count
    medium = spec.media.get(DEFAULT_MEDIUM)
    in_memory = medium is not None and medium.path is None
    layout = Layout(
        servers=spec.tservers.count,
        backups=spec.backups.count,
        machines=machines,
        memory_bytes=spec.tservers.memory_bytes,
        data_bytes=0.0,
        replicas=min(DEFAULT_REPLICAS, spec.backups.count),
        medium=Medium.RAM if in_memory else Medium.DISK,
        mode=Mode.METADATA_FIRST if spec.recovery.metadata_first else Mode.WHOLE,
        segment_bytes=spec.segment_size_bytes,
        rereplication_bytes_per_s=float(spec.backups.rereplication_bytes_per_s),
        split_above_bytes=float(spec.recovery.split_above_bytes),
        split_above_rows=float(spec.recovery.split_above_rows),
    )
    size = spec.backups.copysets
    if layout.replicas <= size <= layout.backup_machines:
        layout = layout.with_changes(scatter=Scatter(size))
    return layout.with_changes(data_bytes=half_full(layout))


def half_full(layout: Layout) -> float:
    """Bytes of rows that take half of the memory up to which the cleaner has room."""
    per_byte = memory_of(layout, 1e6) / 1e6
    return layout.servers * CLEANING_SHARE * layout.memory_bytes / per_byte / 2


def rates_named(name: str) -> Hardware:
    """Rates that come with Stelae. Raises `InvalidArgument`."""
    if name not in BY_NAME:
        raise InvalidArgument(f"there are no rates {name!r}, but {', '.join(BY_NAME)}")
    return BY_NAME[name]


def measured_from(path: Path, base: Hardware) -> Measured:
    """Rates from a file of ``make bench``, or of a calibration. Raises `InvalidArgument`."""
    try:
        if path.stat().st_size > RESULT_BYTES_MAX:
            raise InvalidArgument(f"{path} is too large to be a file of results")
        document: object = json.loads(path.read_bytes())
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no JSON: {error}") from error
    try:
        return read_measured(document, base)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from error


def document_of(
    made: Plan, compared: Mapping[str, Plan], measured: Measured | None
) -> dict[str, Any]:
    """What ``stelae plan --json`` prints."""
    document = made.document()
    document["what_if"] = {name: other.document() for name, other in compared.items()}
    if measured is not None:
        document["measured"] = {
            "sources": list(measured.sources),
            "comparisons": [
                {
                    "name": each.name,
                    "unit": each.unit,
                    "measured": each.measured,
                    "predicted": each.predicted,
                    "factor": each.factor,
                }
                for each in measured.comparisons
            ],
        }
    return document
