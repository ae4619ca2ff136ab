"""What a cluster's data takes: memory, disk, network; and how long its disks take its writes.

Figures of one server or machine, where they say so; of all where they say that.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from stelae.planner.hardware import Hardware
from stelae.planner.layout import SUMMARY_ROW_BYTES, Layout, Medium

INDEX_ROW_BYTES = 27
"""Of the hash index: 16 bytes a slot, about 60 % of which are taken."""
SUMMARY_DISK_BYTES = SUMMARY_ROW_BYTES
"""Of each row of a sealed replica, beside its values."""
CLEANING_SHARE = 0.8
"""Of the memory, up to which live rows leave the cleaner something to do its work with."""
DAY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Resources:
    """What is needed, and what there is."""

    rows: float
    memory_per_server_bytes: float
    memory_limit_bytes: float
    memory_after_loss_bytes: float
    """Of the busiest taker, once it holds its part of what was lost."""
    disk_bytes: float
    """All replicas of all segments."""
    disk_per_machine_bytes: float
    recovery_network_bytes: float
    """Moved by one recovery, over all links."""
    servers_needed: int
    """Tablet servers that the data needs with this memory each, to hold it all after one loss."""
    write_rows_per_s: float
    """That disks, links and cores allow in all, batches being large."""
    day_of_writes_bytes: float
    """Of rows, written for a day at that rate, before anything is cleaned."""

    @property
    def fits(self) -> bool:
        """All rows are in memory, also after the loss of one server."""
        return self.memory_after_loss_bytes <= self.memory_limit_bytes

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "fits": self.fits}


def bytes_per_row(layout: Layout) -> float:
    """In memory: the values, version and kind (9 bytes), and the index."""
    return layout.row_bytes + 9 + INDEX_ROW_BYTES


def memory_of(layout: Layout, live_bytes: float) -> float:
    """live rows × (row + 9 + 27) + dead rows × (row + 9) : what is overwritten stays until it is
    cleaned, and is in no index."""
    rows = live_bytes / layout.row_bytes
    dead = rows / layout.live_share - rows
    return rows * bytes_per_row(layout) + dead * (layout.row_bytes + 9)


def resources_of(hardware: Hardware, layout: Layout) -> Resources:
    """Space and rates of a layout.

    Writes go to k backups: out of the owner's machine k times, into its backups' machines as often,
    and to disk there. On M machines, B of them with backups, rate = min(B × disk / k, M × link / k,
    M × cores × (rows of a core) × 3 / (k + 1)): each row is handled k + 1 times.
    """
    memory = memory_of(layout, layout.data_per_server)
    taken = layout.data_per_server * layout.servers_lost * layout.share_of_busiest_taker
    after = memory + memory_of(layout, taken) if layout.servers > layout.servers_lost else memory
    per_row = 1 + (9 + SUMMARY_DISK_BYTES) / layout.row_bytes
    disk = layout.replicas * layout.log_bytes * per_row
    writes = _write_bytes_per_s(hardware, layout)
    moved = layout.lost_bytes if layout.living_machines > 1 else 0.0
    return Resources(
        rows=layout.data_bytes / layout.row_bytes,
        memory_per_server_bytes=memory,
        memory_limit_bytes=CLEANING_SHARE * layout.memory_bytes,
        memory_after_loss_bytes=after,
        disk_bytes=disk,
        disk_per_machine_bytes=disk / max(1, layout.backup_machines),
        recovery_network_bytes=moved,
        servers_needed=_servers_needed(layout),
        write_rows_per_s=writes / layout.row_bytes,
        day_of_writes_bytes=writes * DAY_S,
    )


def _write_bytes_per_s(hardware: Hardware, layout: Layout) -> float:
    cpus = layout.machines * hardware.cores * hardware.write_rows_per_core_s * layout.row_bytes
    cpus *= 3 / (layout.replicas + 1)
    if not layout.replicas:
        return cpus
    disks = layout.backup_machines * hardware.disk_write_bytes_per_s
    if layout.medium is Medium.RAM:
        disks = math.inf
    links = layout.machines * hardware.network_bytes_per_s if layout.machines > 1 else math.inf
    return min(cpus, min(disks, links) / layout.replicas)


def _servers_needed(layout: Layout) -> int:
    """For all rows within `CLEANING_SHARE` of the memory, and one server to spare."""
    room = CLEANING_SHARE * layout.memory_bytes
    needed = math.ceil(memory_of(layout, layout.data_bytes) / room)
    return needed + 1 if needed else 1
