"""What machines can do, as rates: the input of every formula and of the simulated recovery.

A rate is of one machine unless its name says otherwise. Rates of CPU work are of one core, whoever
uses it: on a machine with several servers they share its cores, its disk and its link.

Three sets come with Stelae: `VM`, measured on a two-core virtual machine (what the benchmarks
run on); `SERVER`, a machine of a data centre with a 10 Gb/s link, and Stelae's own CPU rates as
measured on the former; `SEED`, what the RAMCloud note on master recovery reckons with.
`planner.measured` makes one of a benchmark's results, `stelae plan --calibrate` of some seconds'
work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from stelae.core.errors import InvalidArgument

GIGABIT = 1e9 / 8
UNLIMITED = math.inf
"""Of a rate: takes no time, as far as the plan is concerned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Rates of one kind of machine, and of Stelae on it."""

    name: str
    # The machine
    cores: int
    disk_read_bytes_per_s: float
    disk_write_bytes_per_s: float
    """Appended and synced in pieces of a segment's size."""
    disk_seek_s: float
    """Before each read of a segment."""
    network_bytes_per_s: float
    """Of the link, in each direction."""
    network_round_trip_s: float
    # CPU work, of one core
    send_bytes_per_core_s: float
    """Bytes that a backup takes out of its memory and sends."""
    receive_bytes_per_core_s: float
    """Bytes that a tablet server receives, checks, and puts into new memory, where they stay."""
    merge_rows_per_core_s: float
    """Rows merged (the last version of each key wins) and put into the hash index."""
    write_rows_per_core_s: float
    """Rows written in batches of a thousand with k = 2: work of clients, owners and backups."""
    # Control
    detection_s: float
    """From a server's death to the masters' decision, where the end of a connection tells them."""
    plan_s: float
    """Of the masters: terms raised, backups fenced, whatever the size of the cluster."""
    plan_replica_s: float
    """More, for each segment replica that the backups name."""
    tablet_s: float
    """Of a taker, for each tablet: its new head is opened on backups, and it is handed over."""
    # Shape of Stelae's servers
    server_threads: int = 2
    """Threads of one tablet server that work at a recovery at once."""
    fetches: int = 6
    """Segments that one tablet server asks for at once."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "name":
                continue
            is_time = field.name.endswith("_s") and not field.name.endswith("_per_s")
            is_time = is_time and "_per_core_s" not in field.name
            if math.isnan(value) or value < 0 or (value == 0 and not is_time):
                least = "not be negative" if is_time else "be above 0"
                raise InvalidArgument(f"{field.name} must {least}, got {value:g}")
            if is_time and math.isinf(value):
                raise InvalidArgument(f"{field.name} must be finite")

    def document(self) -> dict[str, Any]:
        """For JSON, which knows no infinity: null is a rate without a limit."""
        return {k: None if v == math.inf else v for k, v in asdict(self).items()}


def hardware_from(document: Mapping[str, Any]) -> Hardware:
    """The reverse of `Hardware.document`. Raises `InvalidArgument`, naming the field."""
    known = {field.name: field.type for field in fields(Hardware)}
    if unknown := sorted(set(document) - set(known)):
        raise InvalidArgument(f"unknown rates: {', '.join(unknown)}")
    values: dict[str, Any] = {}
    for name, value in document.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if known[name] == "str":
            fits = isinstance(value, str)
        elif known[name] == "int":
            fits = is_number and value == int(value)
        else:
            fits = is_number or value is None
        if not fits:
            raise InvalidArgument(f"rate {name}: {value!r} is not what it should be")
        values[name] = math.inf if value is None else value
    if missing := sorted(set(known) - set(values) - {"server_threads", "fetches"}):
        raise InvalidArgument(f"these rates are missing: {', '.join(missing)}")
    return Hardware(**values)


VM = Hardware(
    name="vm",
    cores=2,
    disk_read_bytes_per_s=1.86e9,  # sequential, page cache dropped
    disk_write_bytes_per_s=1.0e9,  # a sync each 8 MiB: 0.57 to 1.4 GB/s
    disk_seek_s=0.0001,
    network_bytes_per_s=10 * GIGABIT,
    network_round_trip_s=50e-6,
    send_bytes_per_core_s=1.4e9,
    receive_bytes_per_core_s=0.45e9,
    merge_rows_per_core_s=7e6,  # 14 to 15 million by two workers
    write_rows_per_core_s=170e3,  # 340 to 360 thousand by two cores
    detection_s=0.05,
    plan_s=0.05,
    plan_replica_s=20e-6,
    tablet_s=0.02,
)
"""Two virtual cores, 24 GB, a virtual disk. Rates of the disk, of merging and of writing are those
measured there; sending and receiving are put together from their parts (page cache, connection,
checksum, new memory) with half as much again for what servers do around them. The link is assumed:
there was one machine only."""

SERVER = replace(
    VM,
    name="server",
    cores=16,
    disk_read_bytes_per_s=2.5e9,
    disk_write_bytes_per_s=1.5e9,
    server_threads=4,
)
"""Sixteen cores, flash, 10 Gb/s. Assumed, but for what Stelae itself takes: that is measured."""

SEED = Hardware(
    name="seed",
    cores=1,
    disk_read_bytes_per_s=150e6,
    disk_write_bytes_per_s=150e6,
    disk_seek_s=0.008,
    network_bytes_per_s=GIGABIT,
    network_round_trip_s=0.0,
    send_bytes_per_core_s=UNLIMITED,
    receive_bytes_per_core_s=UNLIMITED,
    merge_rows_per_core_s=UNLIMITED,
    write_rows_per_core_s=UNLIMITED,
    detection_s=0.0,
    plan_s=0.0,
    plan_replica_s=0.0,
    tablet_s=0.0,
    server_threads=1,
    fetches=1_000_000,
)
"""The RAMCloud note on master recovery: an 8 ms seek, 150 MB/s, 1 Gb/s, and nothing else counts."""

BY_NAME = {each.name: each for each in (VM, SERVER, SEED)}
