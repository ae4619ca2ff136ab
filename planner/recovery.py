"""How long a recovery takes, phase by phase, and which resource says so: formulas, no simulation.

Symbols: L, S, R: bytes, segments and rows of the log that was lost; B: machines whose backups are
read; V: bytes that travel; p: the busiest machine's part of what is taken over, q: the busiest
taker's.

Detection and planning come first, one after the other. Then reading, network, cores and hand-over
work at different segments and tablets at the same time: the slowest of them counts, and what one
segment takes in all the others. What is in the background (`Phase.is_waited_for` false) does not
keep anybody from reading and writing.

Sources: seed 003 (phases 1 and 2, back of the envelope); Ongaro et al., "Fast Crash Recovery in
RAMCloud" (SOSP 2011): scattered segments, many takers, pipelined replay.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from stelae.planner.chance import busiest
from stelae.planner.hardware import Hardware
from stelae.planner.layout import Layout, Lost, Medium, Mode


class Limit(enum.StrEnum):
    """What a phase waits for."""

    DETECTION = "detection"
    MASTERS = "masters"
    DISK = "disks"
    NETWORK = "network"
    CPU = "cores"
    FETCHES = "fetches at once"
    TABLETS = "tablets"


@dataclass(frozen=True, slots=True)
class Phase:
    """One part of a recovery."""

    name: str
    time_s: float
    limit: Limit
    formula: str
    """With the values put in, for people."""
    is_waited_for: bool = True
    is_overlapped: bool = False
    """It runs beside the other overlapped ones, of which the slowest counts."""
    rest_s: float = 0.0
    """Of an overlapped one: what one segment, or one tablet, takes in the others."""


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """A predicted recovery."""

    phases: tuple[Phase, ...]

    @property
    def overlapped_s(self) -> float:
        """Reading, network, cores and handing over, together."""
        return max(p.time_s + p.rest_s for p in self.phases if p.is_overlapped)

    @property
    def serves_again_s(self) -> float:
        """From the death to the moment when the last tablet answers."""
        apart = (p.time_s for p in self.phases if p.is_waited_for and not p.is_overlapped)
        return sum(apart) + self.overlapped_s

    @property
    def whole_again_s(self) -> float:
        """... when all rows are in memory and k replicas of everything are there, too."""
        return self.serves_again_s + sum(p.time_s for p in self.phases if not p.is_waited_for)

    @property
    def detected_s(self) -> float:
        return self.of("detection")

    @property
    def limit(self) -> Limit:
        """What takes most of the time until everything serves again."""
        slowest = max((p for p in self.phases if p.is_overlapped), key=lambda p: p.time_s)
        counted = [p for p in self.phases if p.is_waited_for and not p.is_overlapped]
        return max([*counted, slowest], key=lambda p: p.time_s).limit

    def of(self, name: str) -> float:
        """Seconds of a phase by its name."""
        return next(p.time_s for p in self.phases if p.name == name)


def recovery_times(hardware: Hardware, layout: Layout) -> RecoveryTimes:
    """Predict the recovery of what ``layout.lost`` says."""
    overlapped = (
        reading(hardware, layout),
        network(hardware, layout),
        replay(hardware, layout),
        fetching(hardware, layout),
        handing_over(hardware, layout),
    )
    phases = (
        detection(hardware),
        planning(hardware, layout),
        *overlapped,
        *(after for after in (loading(hardware, layout),) if layout.mode is Mode.METADATA_FIRST),
        replicating(hardware, layout),
    )
    return RecoveryTimes(phases)


# ---- demands that the simulated recovery shares -----------------------------------------------


def moved_bytes(layout: Layout) -> float:
    """V: of whole rows L; of keys and versions R × (bytes of a row's summary), k times that where
    every replica's are asked for (seed 003: 8 bytes an object, k = 2). All of it for each part of a
    tablet that is split."""
    if layout.mode is Mode.WHOLE:
        return layout.lost_bytes * layout.parts_per_tablet
    copies = layout.replicas if layout.summaries_of_all_replicas else 1
    return layout.lost_rows * layout.summary_row_bytes * copies * layout.parts_per_tablet


@dataclass(frozen=True, slots=True)
class SegmentWork:
    """What one segment of a recovery takes of each resource, in seconds of it."""

    disk_s: float
    send_s: float
    link_s: float
    take_s: float

    @property
    def total_s(self) -> float:
        return self.disk_s + self.send_s + self.link_s + self.take_s


def segment_work(hardware: Hardware, layout: Layout) -> SegmentWork:
    """One of S equal segments: disk = seek + bytes / disk rate (the whole segment, also where only
    its keys travel: the rest is needed right after); send, link, take = bytes that travel / rate;
    take also = rows / merge rate. Of a tablet that is split each part fetches the segment: the disk
    is read for the first one, and of its rows each part merges its own."""
    count = max(1, layout.fetched_segments)
    size_bytes, moved = layout.lost_bytes / count, moved_bytes(layout) / count
    reads_disk = layout.medium is Medium.DISK
    seek_s = hardware.disk_seek_s / layout.parts_per_tablet
    disk_s = seek_s + size_bytes / hardware.disk_read_bytes_per_s
    rows = layout.lost_rows / count
    return SegmentWork(
        disk_s=disk_s if reads_disk and size_bytes else 0.0,
        send_s=moved / hardware.send_bytes_per_core_s,
        link_s=moved / hardware.network_bytes_per_s if layout.living_machines > 1 else 0.0,
        take_s=moved / hardware.receive_bytes_per_core_s + rows / hardware.merge_rows_per_core_s,
    )


def segment_s(hardware: Hardware, layout: Layout) -> float:
    """One segment alone through all stages: round trip + disk + send + link out and in + take."""
    work = segment_work(hardware, layout)
    if not layout.lost_segments:
        return 0.0
    return hardware.network_round_trip_s + work.total_s + work.link_s


def _rest_s(hardware: Hardware, layout: Layout, own_s: float) -> float:
    """Until the slowest has its first segment, and after its last: one segment's time in all the
    others, and the hand-over of one tablet."""
    return max(0.0, segment_s(hardware, layout) - own_s) + hardware.tablet_s


# ---- phases --------------------------------------------------------------------------------


def _overlapped(name: str, time_s: float, limit: Limit, formula: str, rest_s: float) -> Phase:
    return Phase(name, time_s, limit, formula, is_overlapped=True, rest_s=rest_s)


def detection(hardware: Hardware) -> Phase:
    """Measured or assumed; of a server that hangs it is ``timings.dead_after`` (design §9)."""
    text = f"{seconds(hardware.detection_s)} until the masters know"
    return Phase("detection", hardware.detection_s, Limit.DETECTION, text)


def planning(hardware: Hardware, layout: Layout) -> Phase:
    """plan + S × k × (time of one replica's record): the masters hear of every replica of the lost
    logs, from every backup (seed 003: "which segments do servers have?", a broadcast)."""
    records = layout.lost_segments * layout.replicas
    time_s = hardware.plan_s + records * hardware.plan_replica_s
    text = f"{seconds(hardware.plan_s)} + {records:,} replicas × {seconds(hardware.plan_replica_s)}"
    return Phase("planning", time_s, Limit.MASTERS, text)


def reading(hardware: Hardware, layout: Layout) -> Phase:
    """(segments of the busiest disk) × (seek + segment / disk rate).

    S segments at random on B disks: the busiest has more than S/B (`busiest`). The seed counts one
    chunk for each of 8,192 machines: 8 ms + 8 MB / 150 MB/s = 61 ms.
    """
    work = segment_work(hardware, layout)
    most = busiest(layout.fetched_segments, max(1, layout.reading_machines))
    if layout.medium is not Medium.DISK:
        text = f"from memory ({layout.medium})"
        return _overlapped("reading", 0.0, Limit.DISK, text, _rest_s(hardware, layout, 0.0))
    even = layout.fetched_segments / max(1, layout.reading_machines)
    text = (
        f"{most:,} segments on the busiest disk (on average {even:,.1f}) × {seconds(work.disk_s)}"
    )
    rest_s = _rest_s(hardware, layout, work.disk_s)
    return _overlapped("reading", most * work.disk_s, Limit.DISK, text, rest_s)


def network(hardware: Hardware, layout: Layout) -> Phase:
    """max(V of the busiest sender, p × V) / link: out of backups, into takers. On one machine
    nothing goes over a link; what copying costs is part of the CPU's work."""
    work = segment_work(hardware, layout)
    rest_s = _rest_s(hardware, layout, work.link_s)
    if layout.living_machines == 1:
        return _overlapped("network", 0.0, Limit.NETWORK, "one machine: no link", rest_s)
    out_s = busiest(layout.fetched_segments, max(1, layout.reading_machines)) * work.link_s
    moved = moved_bytes(layout)
    in_s = layout.share_of_busiest_machine * moved / hardware.network_bytes_per_s
    where = "into the busiest taker" if in_s >= out_s else "out of the busiest backup"
    at_most = max(in_s, out_s)
    amount = at_most * hardware.network_bytes_per_s
    text = f"{size(amount)} {where} ÷ {size(hardware.network_bytes_per_s)}/s"
    return _overlapped("network", at_most, Limit.NETWORK, text, rest_s)


def replay(hardware: Hardware, layout: Layout) -> Phase:
    """max((taking + sending on one machine) / cores, taking / (threads of its takers)).

    Taking: p × (V / receive rate + R / merge rate); sending: the busiest backup's V / send rate.
    A machine does both, for takers and backups stand side by side.
    """
    work = segment_work(hardware, layout)
    take_s = layout.share_of_busiest_machine * layout.fetched_segments * work.take_s
    send_s = busiest(layout.fetched_segments, max(1, layout.reading_machines)) * work.send_s
    threads = min(hardware.cores, hardware.server_threads * layout.takers_per_machine)
    both_s = (take_s + send_s) / hardware.cores
    time_s = max(both_s, take_s / threads)
    if both_s >= take_s / threads:
        text = f"{seconds(take_s + send_s)} of work on one machine ÷ {hardware.cores} of its cores"
    else:
        text = f"{seconds(take_s)} of work at one machine's takers ÷ {threads} threads"
    return _overlapped("replay", time_s, Limit.CPU, text, _rest_s(hardware, layout, work.take_s))


def fetching(hardware: Hardware, layout: Layout) -> Phase:
    """(segments of the busiest taker) × (one segment's time, alone) / (fetches at once): with few
    fetches at a time a taker waits for answers, whatever the rates."""
    segments = math.ceil(layout.share_of_busiest_taker * layout.fetched_segments)
    alone_s = segment_s(hardware, layout)
    rounds = math.ceil(segments / hardware.fetches)
    text = f"{segments:,} segments of one taker, {hardware.fetches} at once, × {seconds(alone_s)}"
    rest_s = _rest_s(hardware, layout, alone_s)
    return _overlapped("fetching", rounds * alone_s, Limit.FETCHES, text, rest_s)


def handing_over(hardware: Hardware, layout: Layout) -> Phase:
    """(tablets of the busiest taker) × (a head opened on k backups, one catalog entry)."""
    time_s = layout.tablets_per_taker * hardware.tablet_s
    text = (
        f"{counted(layout.tablets_per_taker, 'tablet')} of one taker × {seconds(hardware.tablet_s)}"
    )
    rest_s = segment_s(hardware, layout)
    return _overlapped("handing over", time_s, Limit.TABLETS, text, rest_s)


def loading(hardware: Hardware, layout: Layout) -> Phase:
    """Phase 2 of the seed: p × L over links and cores; the backups have it in memory by then."""
    share = layout.share_of_busiest_machine * layout.lost_bytes
    link_s = share / hardware.network_bytes_per_s if layout.living_machines > 1 else 0.0
    cores = min(hardware.cores, hardware.server_threads * layout.takers_per_machine)
    cpu_s = share / hardware.receive_bytes_per_core_s / cores
    limit = Limit.NETWORK if link_s >= cpu_s else Limit.CPU
    text = f"{size(share)} into the busiest taker's machine"
    return Phase("loading rows", max(link_s, cpu_s), limit, text, is_waited_for=False)


def lost_replica_bytes(layout: Layout) -> float:
    """Replicas on a machine that is lost: k × (all logs) / (machines with backups). Groups lose
    their other members' replicas too: a group that lacks one is dissolved (RAMCloud)."""
    of_machine = layout.replicas * layout.log_bytes / max(1, layout.backup_machines)
    return of_machine * (max(1, layout.replicas) if layout.scatter.group_size else 1)


def again_replicated_s(hardware: Hardware, layout: Layout) -> float:
    """Until what a lost machine's backups held has k replicas again:
    max(bytes / link, bytes / disk write rate) of each of the machines that are left, and never
    faster than the tablet servers may send. Owners send from memory; segments are adopted, not
    rewritten, so recovered rows add nothing.
    """
    left = layout.machines - 1
    if not left or not layout.replicas:
        return 0.0
    share = lost_replica_bytes(layout) / left
    write_s = 0.0 if layout.medium is Medium.RAM else share / hardware.disk_write_bytes_per_s
    bound_s = 0.0
    if rate := layout.rereplication_bytes_per_s:
        bound_s = lost_replica_bytes(layout) / (rate * max(1, layout.servers - layout.servers_lost))
    return max(share / hardware.network_bytes_per_s, write_s, bound_s)


def inherited_s(hardware: Hardware, layout: Layout) -> float:
    """Until parts of split tablets have their rows in their own logs: k × (live rows that were
    lost), out of the takers at the rate of re-replication, and onto all disks."""
    if layout.parts_per_tablet == 1:
        return 0.0
    written = layout.replicas * layout.lost_bytes * layout.live_share
    disks = max(1, layout.reading_machines) * hardware.disk_write_bytes_per_s
    write_s = 0.0 if layout.medium is Medium.RAM else written / disks
    rate = layout.rereplication_bytes_per_s
    return max(write_s, layout.share_of_busiest_taker * written / rate if rate else 0.0)


def replicating(hardware: Hardware, layout: Layout) -> Phase:
    """If the backups live, segments are adopted, but for those of tablets that are split
    (`inherited_s`). Else `again_replicated_s`."""
    name = "re-replication"
    if layout.lost is Lost.SERVER and layout.parts_per_tablet > 1:
        text = f"each tablet in {layout.parts_per_tablet} parts, which write their rows once"
        time_s = inherited_s(hardware, layout)
        return Phase(name, time_s, Limit.DISK, text, is_waited_for=False)
    if layout.lost is Lost.SERVER:
        text = "segments are adopted where they lie"
        return Phase(name, 0.0, Limit.DISK, text, is_waited_for=False)
    time_s = again_replicated_s(hardware, layout) + inherited_s(hardware, layout)
    by_disk = hardware.disk_write_bytes_per_s < hardware.network_bytes_per_s
    limit = Limit.DISK if by_disk and layout.medium is not Medium.RAM else Limit.NETWORK
    text = f"{size(lost_replica_bytes(layout))} over {counted(layout.machines - 1, 'machine')}"
    return Phase(name, time_s, limit, text, is_waited_for=False)


# ---- words ---------------------------------------------------------------------------------


def seconds(time_s: float) -> str:
    """A time as people write it."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if time_s >= factor:
            return f"{time_s / factor:,.3g} {unit}" if time_s < 1000 else f"{time_s:,.0f} s"
    return f"{time_s:.2g} s" if time_s else "0 s"


def counted(count: int, word: str) -> str:
    """``1 machine``, ``1,000 machines``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(size_bytes: float) -> str:
    """A size as people write it, in powers of ten."""
    if math.isinf(size_bytes):
        return "unlimited"
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.3g} {unit}"
    return f"{size_bytes:.3g} B"
