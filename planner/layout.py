"""What a cluster consists of, as far as its recovery, its space and its risk depend on it.

All servers of a kind are alike, and spread evenly over the machines. What is lost at once is the
memory of one tablet server, or, where machines die as a whole (`Lost.MACHINE`), of all tablet
servers of one machine with its backups.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace
from typing import Any

from stelae.core.errors import InvalidArgument

MIB = 1 << 20
COUNT_MAX = 1_000_000
REPLICAS_MAX = 16
PARTS_MAX = 64
"""Of a tablet that is split at its recovery."""
SUMMARY_ROW_BYTES = 8
"""What a merge reads of a row: its hash. Versions and kinds are said in short, mostly (seed 003:
ids only, 8 bytes)."""


class Medium(enum.StrEnum):
    """Where backups keep replicas."""

    DISK = "disk"
    CACHED = "cached"
    """A disk whose files are still in the machine's page cache: what was written lately."""
    RAM = "ram"


class Mode(enum.StrEnum):
    """What has to be back before a tablet serves."""

    WHOLE = "whole"
    """All rows."""
    METADATA_FIRST = "metadata-first"
    """Keys and versions; rows are loaded after that (seed 003, phases 1 and 2), as Stelae does it
    unless it is told otherwise."""


class Lost(enum.StrEnum):
    """What dies at once."""

    SERVER = "server"
    MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Scatter:
    """On which sets of backups the k replicas of a segment may lie together.

    ``group_size`` 0: on any k machines. Else the backups are cut into groups of that size, and a
    segment's replicas lie in one of them (min-copysets; Cidon et al., ATC 2013): far fewer sets of
    k machines whose loss loses something, and more lost when it happens.
    """

    group_size: int = 0

    def __str__(self) -> str:
        return f"min-copysets of {self.group_size}" if self.group_size else "random"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A cluster and what it holds."""

    servers: int
    """Tablet servers."""
    backups: int
    machines: int
    memory_bytes: int
    """Of each tablet server, for rows and index."""
    data_bytes: float
    """Rows in all tablet servers together."""
    row_bytes: float = 100.0
    replicas: int = 2
    """k: segment replicas on backups. Rows are in memory once besides."""
    medium: Medium = Medium.DISK
    segment_bytes: int = 8 * MIB
    scatter: Scatter = Scatter()
    tablets_per_server: int = 8
    takers_max: int = 0
    """Tablet servers that take over, at most; 0: all that live (the seed has one spare)."""
    lost: Lost = Lost.SERVER
    mode: Mode = Mode.WHOLE
    summary_row_bytes: float = SUMMARY_ROW_BYTES
    summaries_of_all_replicas: bool = False
    """Every replica's keys are fetched, not one's of each segment (as the seed has it)."""
    rereplication_bytes_per_s: float = 0.0
    """That each tablet server sends, at most, to make lost replicas anew; 0: no bound."""
    live_share: float = 0.75
    """Of the log: the rest has been overwritten or deleted, and not been cleaned away yet."""
    split_above_bytes: float = 0.0
    """Tablets with longer logs are recovered in parts, at as many servers; 0: none are."""
    split_above_rows: float = 0.0
    """The same, of rows."""

    def __post_init__(self) -> None:
        for name, least in (
            ("servers", 1),
            ("backups", 0),
            ("machines", 1),
            ("tablets_per_server", 1),
        ):
            value = getattr(self, name)
            if not least <= value <= COUNT_MAX:
                text = f"{name} must be between {least} and {COUNT_MAX:,}, got {value:,}"
                raise InvalidArgument(text)
        if not 0 <= self.replicas <= REPLICAS_MAX:
            raise InvalidArgument(f"k must be between 0 and {REPLICAS_MAX}, got {self.replicas}")
        if self.replicas > self.backups:
            text = f"k={self.replicas} replicas need as many backups; there are {self.backups}"
            raise InvalidArgument(text)
        if not (math.isfinite(self.data_bytes) and self.data_bytes >= 0):
            raise InvalidArgument("data must be a size")
        if not (math.isfinite(self.row_bytes) and self.row_bytes >= 1):
            raise InvalidArgument(f"a row has a byte or more, got {self.row_bytes:g}")
        if self.segment_bytes < 1024 or self.memory_bytes < 1:
            raise InvalidArgument("a segment has 1 KiB or more, and a server some memory")
        if not 0 < self.live_share <= 1:
            raise InvalidArgument(f"live must be above 0 and at most 1, got {self.live_share:g}")
        self._check_groups()
        if self.lost is Lost.MACHINE and self.machines == 1:
            raise InvalidArgument("there is one machine: if it is lost, so is the cluster")

    def _check_groups(self) -> None:
        size = self.scatter.group_size
        if size and not max(1, self.replicas) <= size <= self.backup_machines:
            raise InvalidArgument(
                f"a group of copysets has between k={self.replicas} and {self.backup_machines} "
                f"members (machines with a backup), got {size}"
            )

    # ---- what follows ----------------------------------------------------------------------

    @property
    def backup_machines(self) -> int:
        """Machines that have a backup."""
        return min(self.machines, self.backups)

    @property
    def copies_apart(self) -> int:
        """Of a segment's replicas, how many are on machines of their own."""
        return min(self.replicas, self.backup_machines)

    @property
    def data_per_server(self) -> float:
        return self.data_bytes / self.servers

    @property
    def log_per_server(self) -> float:
        """Of live rows, and of those that were overwritten and wait for the cleaner."""
        return self.data_per_server / self.live_share

    @property
    def log_bytes(self) -> float:
        return self.log_per_server * self.servers

    @property
    def servers_lost(self) -> int:
        if self.lost is Lost.SERVER:
            return 1
        return min(self.servers, math.ceil(self.servers / self.machines))

    @property
    def lost_bytes(self) -> float:
        """Of log, that has to be read again."""
        return self.log_per_server * self.servers_lost

    @property
    def lost_rows(self) -> float:
        return self.lost_bytes / self.row_bytes

    @property
    def lost_segments(self) -> int:
        return math.ceil(self.log_per_server / self.segment_bytes) * self.servers_lost

    @property
    def segments_per_server(self) -> int:
        return math.ceil(self.log_per_server / self.segment_bytes)

    @property
    def lost_tablets(self) -> int:
        return self.tablets_per_server * self.servers_lost

    @property
    def parts_per_tablet(self) -> int:
        """In which a tablet is recovered: a power of two, and no more than servers live
        (`docs/decisions.md`, §41)."""
        tablet_bytes = self.log_per_server / self.tablets_per_server
        wanted = 1.0
        if self.split_above_bytes:
            wanted = tablet_bytes / self.split_above_bytes
            if self.split_above_rows:
                wanted = max(wanted, tablet_bytes / self.row_bytes / self.split_above_rows)
        parts, most = 1, min(PARTS_MAX, self.servers - self.servers_lost)
        while parts < wanted and 2 * parts <= most:
            parts *= 2
        return parts

    @property
    def recovered_tablets(self) -> int:
        """Those lost, or their parts."""
        return self.lost_tablets * self.parts_per_tablet

    @property
    def fetched_segments(self) -> int:
        """So often one is fetched: each part of a tablet needs all of its segments."""
        return self.lost_segments * self.parts_per_tablet

    @property
    def living_machines(self) -> int:
        return self.machines - (self.lost is Lost.MACHINE)

    @property
    def reading_machines(self) -> int:
        """Those from whose backups a recovery reads."""
        lost = self.lost is Lost.MACHINE and self.backup_machines == self.machines
        return self.backup_machines - lost

    @property
    def takers(self) -> int:
        """Tablet servers that get some of what was lost. If none is left, one is started again."""
        living = max(1, self.servers - self.servers_lost)
        return min(living, self.recovered_tablets, self.takers_max or living)

    @property
    def taking_machines(self) -> int:
        return min(self.takers, self.living_machines)

    @property
    def tablets_per_taker(self) -> int:
        return math.ceil(self.recovered_tablets / self.takers)

    @property
    def share_of_busiest_taker(self) -> float:
        """Of what is lost: tablets, or their parts, are not divided."""
        return self.tablets_per_taker / self.recovered_tablets

    @property
    def takers_per_machine(self) -> int:
        """Of the machine that has most of them."""
        return math.ceil(self.takers / self.taking_machines)

    @property
    def share_of_busiest_machine(self) -> float:
        """Of what is lost. Takers stand on machines in turn, and get tablets in turn."""
        each, more = divmod(self.recovered_tablets, self.takers)
        most = self.takers_per_machine * each + math.ceil(more / self.taking_machines)
        return most / self.recovered_tablets

    def with_changes(self, **changes: Any) -> Layout:
        """Another layout. Raises `InvalidArgument`."""
        return replace(self, **changes)
