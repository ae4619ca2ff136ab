"""Swarm options: a seed first draws what kind of world it is, then the run.

Some seeds have no loss at all and some lose a third of the messages; some never crash anything.
Rates that are zero matter: a fault that always happens hides what only its absence shows
(TigerBeetle's ``options_swarm``; Groce et al., "Swarm Testing", ISSTA 2012).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any, Self

REPLACING_RATE = 0.25
"""Share of the worlds on nodes whose servers are started elsewhere when their node stays away."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes for servers, tiny so that every limit is met in every run."""

    segment_size_bytes: int = 4096
    batch_operations: int = 8
    queue_operations: int = 16
    snapshot_entries: int = 16


@dataclass(frozen=True, slots=True)
class Servers:
    """How many servers of each kind a scenario starts."""

    masters: int = 3
    tservers: int = 3
    backups: int = 4
    safekeepers: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """What the clients do. Shares are relative weights."""

    clients: int = 3
    keys: int = 6
    operations: int = 60
    """Per client."""
    value_bytes: int = 40
    write_share: float = 0.5
    delete_share: float = 0.1
    read_share: float = 0.4
    think_s: float = 0.02
    """Mean pause of a client between two operations."""


@dataclass(frozen=True, slots=True)
class Options:
    """The physics and the faults of one run. The defaults are a calm world without faults.

    Rates are probabilities per message or per crash; ``*_every_s`` are mean times between two
    faults of a kind over the whole world, and 0 means never.
    """

    shuffle: float = 1.0
    """How often a ready callback is chosen at random rather than in order."""

    latency_min_s: float = 0.0001
    latency_mean_s: float = 0.0005
    bandwidth_bytes_s: float = 1e9
    slow_message_rate: float = 0.0
    """Messages that take fifty times longer, and so come out of order."""
    drop_request_rate: float = 0.0
    drop_reply_rate: float = 0.0
    duplicate_rate: float = 0.0
    late_rate: float = 0.0
    """Messages caught by a partition that arrive once it heals, rather than never."""
    unnoticed_end_rate: float = 0.1
    """Calls whose caller does not hear that the process at the other end has ended; of calls that
    begin later half as many."""

    sync_min_s: float = 0.0005
    sync_mean_s: float = 0.001
    read_mean_s: float = 0.0002
    keep_unsynced_rate: float = 1.0
    """Crashes of the process alone, which leave what was written in the kernel's hands."""
    flip_rate: float = 0.0
    """Torn writes that also have a wrong bit."""

    offload_mean_s: float = 0.002
    clock_drift: float = 0.0
    """Clocks run at most so much too fast or slow, relatively."""
    clock_skew_s: float = 0.0
    """Wall clocks are at most so far off."""
    shares_objects: bool = True
    """Whether servers can fetch from each other's object stores."""
    lost_object_rate: float = 0.0
    """Objects that are gone when they are fetched."""
    one_machine: bool = True
    """All servers on one machine, where the death of a process can be seen for sure."""

    restart_min_s: float = 0.1
    restart_mean_s: float = 0.5

    crash_every_s: float = 0.0
    crash_in_sync_every_s: float = 0.0
    pause_every_s: float = 0.0
    partition_every_s: float = 0.0
    clog_every_s: float = 0.0
    reset_every_s: float = 0.0
    slow_disk_every_s: float = 0.0
    sync_error_every_s: float = 0.0
    full_disk_every_s: float = 0.0
    lost_disk_every_s: float = 0.0
    fault_duration_mean_s: float = 2.0
    gray_gap_mean_s: float = 0.0
    """Mean time between two gray faults, of which masters and other servers see different things;
    0: none."""
    gray_duration_mean_s: float = 8.0
    """Longer than other faults: servers are patient with what others reach."""
    nodes: int = 0
    """Number of nodes over which the servers are spread, each of which fails as a whole; 0: there
    are none, and ``one_machine`` says where servers are."""
    racks: tuple[str, ...] = ()
    """The rack of each node; empty, or none here: the node has none."""
    rack_gap_mean_s: float = 0.0
    """Mean time between two losses of power of whole racks; 0: none."""
    node_gap_mean_s: float = 0.0
    """Mean time between two faults of whole nodes; 0: none."""
    node_duration_mean_s: float = 4.0
    """Mean time for which a node has no power, or is cut off."""
    replace_after_s: float = 0.0
    """Time after which servers of a node without power are started elsewhere; 0: never."""
    healing_s: float = 20.0
    """Least time between two lost disks: so long the system has to restore its promise."""

    limits: Limits = field(default_factory=Limits)
    servers: Servers = field(default_factory=Servers)
    workload: Workload = field(default_factory=Workload)

    @classmethod
    def draw(cls, seed: int | str) -> Options:
        """The options of a seed: each fault is off in about half of the worlds."""
        rng = random.Random(f"{seed}/options")

        def rate(most: float) -> float:
            return 0.0 if rng.random() < 0.4 else most * rng.random() ** 2

        def every(least_s: float, most_s: float) -> float:
            return 0.0 if rng.random() < 0.4 else rng.uniform(least_s, most_s)

        return cls(
            shuffle=rng.choice([0.0, 0.2, 1.0]),
            latency_min_s=rng.choice([0.00005, 0.0002, 0.001]),
            latency_mean_s=rng.choice([0.0001, 0.001, 0.005, 0.02]),
            bandwidth_bytes_s=rng.choice([1e7, 1e9]),
            slow_message_rate=rate(0.1),
            drop_request_rate=rate(0.2),
            drop_reply_rate=rate(0.2),
            duplicate_rate=rate(0.2),
            late_rate=rng.choice([0.0, 0.5, 1.0]),
            sync_min_s=rng.choice([0.00002, 0.0005]),
            sync_mean_s=rng.choice([0.0002, 0.002, 0.02]),
            read_mean_s=rng.choice([0.0001, 0.005]),
            keep_unsynced_rate=rng.choice([0.0, 0.3, 1.0]),
            flip_rate=rate(0.3),
            offload_mean_s=rng.choice([0.0005, 0.01]),
            clock_drift=rng.choice([0.0, 0.0001, 0.001]),
            clock_skew_s=rng.choice([0.0, 1.0, 3600.0]),
            one_machine=rng.random() < 0.5,
            restart_min_s=rng.choice([0.02, 0.2, 1.0]),
            restart_mean_s=rng.choice([0.05, 0.5, 3.0]),
            crash_every_s=every(1.0, 8.0),
            crash_in_sync_every_s=every(0.5, 5.0),
            pause_every_s=every(2.0, 10.0),
            partition_every_s=every(1.0, 8.0),
            clog_every_s=every(1.0, 8.0),
            reset_every_s=every(1.0, 8.0),
            slow_disk_every_s=every(2.0, 10.0),
            sync_error_every_s=every(3.0, 15.0),
            full_disk_every_s=every(5.0, 20.0),
            lost_disk_every_s=every(5.0, 20.0),
            fault_duration_mean_s=rng.choice([0.3, 2.0, 6.0]),
            limits=_draw_limits(rng),
            servers=_draw_servers(rng),
            workload=_draw_workload(rng),
            shares_objects=rng.random() < 0.8,
            lost_object_rate=rate(0.5),
        )

    def gray(self, seed: int | str) -> Self:
        """The same with gray faults, how often and how long depends on the seed."""
        rng = random.Random(f"{seed}/gray options")
        return self.but(
            gray_gap_mean_s=rng.choice([1.5, 4.0, 8.0]),
            gray_duration_mean_s=rng.choice([2.0, 10.0, 30.0]),
        )

    def on_nodes(self, seed: int | str) -> Self:
        """The same on four or five nodes that fail as a whole, with at least one server of each
        kind but masters on each."""
        rng = random.Random(f"{seed}/node options")
        nodes = rng.choice([4, 5])

        def enough(count: int) -> int:
            return max(count, nodes + rng.choice([0, 1])) if count else 0

        servers = self.servers
        racks, rack_gap_mean_s = _draw_racks(random.Random(f"{seed}/rack options"), nodes)
        gap_mean_s, duration_mean_s = rng.choice([2.0, 4.0, 8.0]), rng.choice([0.5, 2.0, 6.0])
        # A stream of its own: worlds without replacements are what they were before there were any,
        # the kept seeds and the finds of planted bugs among them.
        replacing = random.Random(f"{seed}/options of replacements")
        replace_after_s = 0.0
        if replacing.random() < REPLACING_RATE:
            replace_after_s = replacing.choice([1.0, 3.0])
            gap_mean_s, duration_mean_s = (
                replacing.choice([1.0, 2.0]),
                replacing.choice([6.0, 15.0]),
            )
        return self.but(
            nodes=nodes,
            racks=racks,
            rack_gap_mean_s=rack_gap_mean_s,
            node_gap_mean_s=gap_mean_s,
            node_duration_mean_s=duration_mean_s,
            replace_after_s=replace_after_s,
            servers=Servers(
                servers.masters,
                enough(servers.tservers),
                enough(servers.backups),
                enough(servers.safekeepers),
            ),
        )

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return replace(self, **changes)


def _draw_racks(rng: random.Random, nodes: int) -> tuple[tuple[str, ...], float]:
    """The racks of the nodes, and the mean time between two of their losses of power. Half of the
    worlds have none; a node is in one of two or three, or in none."""
    if rng.random() < 0.5:
        return (), 0.0
    names = [f"rack-{number}" for number in range(1, rng.choice([2, 3]) + 1)]
    racks = tuple("" if rng.random() < 0.1 else rng.choice(names) for _ in range(nodes))
    return racks, rng.choice([3.0, 6.0])


def _draw_limits(rng: random.Random) -> Limits:
    return Limits(
        segment_size_bytes=rng.choice([1024, 4096, 65536]),
        batch_operations=rng.choice([1, 2, 8, 64]),
        queue_operations=rng.choice([2, 8, 64]),
        snapshot_entries=rng.choice([4, 16, 256]),
    )


def _draw_servers(rng: random.Random) -> Servers:
    return Servers(
        masters=rng.choice([1, 3, 3, 5]),
        tservers=rng.choice([2, 3, 5]),
        backups=rng.choice([3, 4, 6]),
    )


def _draw_workload(rng: random.Random) -> Workload:
    return Workload(
        clients=rng.choice([1, 2, 4, 8]),
        keys=rng.choice([1, 3, 10, 50]),
        operations=rng.choice([20, 60, 150]),
        value_bytes=rng.choice([10, 100, 700]),
        write_share=rng.choice([0.3, 0.6, 0.9]),
        delete_share=rng.choice([0.0, 0.1, 0.3]),
        read_share=rng.choice([0.1, 0.5]),
        think_s=rng.choice([0.0, 0.01, 0.1]),
    )
