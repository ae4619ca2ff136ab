"""How likely a year is to lose data: for independent failures, and for many machines at once.

**Independent.** A row is in the memory of its owner and in k replicas on backups. Each of these
k + 1 is lost at a rate λ (memory: when a server dies; a replica: when its disk is gone for good,
or, in memory, when its machine stops) and is back after a window W (the recovery, or the
re-replication). All are away at once at the rate Π λW × Σ 1/W: for equal ones (k+1) λ (λW)^k, the
leading term of the Markov chain with parallel repairs. Times the number of sets that some segment
lies on. That these are k + 1 machines placement sees to, where there are so many
(`stelae.actors.tserver.segments.placement`). Not counted: after a recovery or a hand-over a segment
may have a replica on its new owner's machine, as about k of as many segments as there are machines
have, and that one machine takes two copies with it until the segment is cleaned.

**At once.** After a power failure of everything memory is gone, and a share of the machines does
not come back. A segment is lost if all its k replicas are on those. With random placement and many
segments that is nearly certain; with min-copysets rare (Cidon et al., "Copysets", ATC 2013; their
5,000 machines with 1 % lost, k = 3: 99.99 % against 0.15 %).

Everything is in logarithms (`Chance`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from stelae.core.errors import InvalidArgument
from stelae.planner.chance import NEVER, Chance, ln_choose, ln_distinct, ln_subset, ln_sum
from stelae.planner.hardware import Hardware
from stelae.planner.layout import Layout, Medium
from stelae.planner.recovery import again_replicated_s, recovery_times

YEAR_S = 365.25 * 24 * 3600.0
SHORTEST_WINDOW_S = 1e-3
"""Nothing is whole again sooner, whatever the formulas say of a cluster without data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often what fails. Mean times are of one server, one disk."""

    server_mttf_s: float = YEAR_S / 4
    """Until a tablet server's memory is gone: crashes, restarts of machines, mistakes."""
    disk_mttf_s: float = 25 * YEAR_S
    """Until a disk, or a machine with its disks, is gone for good: 4 % a year."""
    replace_s: float = 60.0
    """After the loss of a backup, until its replicas are begun to be made anew."""
    power_failures_per_year: float = 1.0
    """Of everything at once."""
    power_loss_share: float = 0.01
    """The chance of each machine not to come back after one (0.5 to 1 % are told of)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidArgument(f"{field.name} must be 0 or more, got {value:g}")
        if min(self.server_mttf_s, self.disk_mttf_s) <= 0:
            raise InvalidArgument("a mean time to failure is above 0")
        if self.power_loss_share > 1:
            raise InvalidArgument("a share of the machines is at most 1")


@dataclass(frozen=True, slots=True)
class Risk:
    """Of one year."""

    independent: Chance
    at_once: Chance
    """Through the power failures that are expected in a year."""
    at_each_power_failure: Chance
    ln_copysets: float
    """Of how many sets of machines there are whose common loss loses something, as expected."""
    memory_window_s: float
    replica_window_s: float
    bytes_lost: float
    """Expected, when machines are lost at once and something is."""

    @property
    def year(self) -> Chance:
        return Chance.any_of([self.independent, self.at_once])

    @property
    def years_between(self) -> float:
        """Mean time between losses; infinite where no float can hold it."""
        ln = self.year.ln_expected
        return math.exp(-ln) if -700 < ln < 700 else (math.inf if ln < 0 else 0.0)


def risk_of(hardware: Hardware, layout: Layout, failures: Failures) -> Risk:
    """The risk of one layout, with windows as the recovery's formulas give them."""
    memory_s = max(SHORTEST_WINDOW_S, recovery_times(hardware, layout).serves_again_s)
    replica_s = failures.replace_s + again_replicated_s(hardware, layout)
    replica_s = max(SHORTEST_WINDOW_S, replica_s)
    each = lost_at_once(layout, failures.power_loss_share)
    power = failures.power_failures_per_year
    happens = power > 0 and each.ln > NEVER
    at_once = Chance.of_rate(each.ln + math.log(power)) if happens else Chance(NEVER)
    return Risk(
        independent=independent(layout, failures, memory_s, replica_s),
        at_once=at_once,
        at_each_power_failure=each,
        ln_copysets=ln_copysets(layout, layout.segments_per_server * layout.servers),
        memory_window_s=memory_s,
        replica_window_s=replica_s,
        bytes_lost=bytes_lost(layout, failures.power_loss_share),
    )


def independent(
    layout: Layout, failures: Failures, memory_window_s: float, replica_window_s: float
) -> Chance:
    """P(a year) = 1 - exp(-year × servers × (sets of one server's segments) × Πλ W × Σ 1/W).

    On one machine it is that of losing the machine, with whatever is on it.
    """
    if not layout.lost_segments:
        return Chance(NEVER)
    if layout.machines == 1 and layout.replicas:
        return Chance.of_rate(math.log(YEAR_S / failures.disk_mttf_s))
    in_memory = layout.medium is Medium.RAM
    replica_mttf_s = failures.server_mttf_s if in_memory else failures.disk_mttf_s
    ln_away = math.log(memory_window_s) - math.log(failures.server_mttf_s)
    ln_away += layout.copies_apart * (math.log(replica_window_s) - math.log(replica_mttf_s))
    ends = 1 / memory_window_s + layout.copies_apart / replica_window_s
    sets = ln_copysets(layout, layout.segments_per_server)
    ln_rate = ln_away + math.log(ends) + sets + math.log(layout.servers)
    return Chance.of_rate(ln_rate + math.log(YEAR_S))


def ln_copysets(layout: Layout, segments: int) -> float:
    """ln of how many distinct sets of k machines ``segments`` segments lie on, as expected."""
    kinds = ln_choose(layout.backup_machines, layout.copies_apart)
    if size := layout.scatter.group_size:
        kinds = math.log(groups_of(layout)) + ln_choose(size, layout.copies_apart)
    return ln_distinct(kinds, segments)


def groups_of(layout: Layout) -> int:
    """Groups of backups; those left over wait for more."""
    return max(1, layout.backup_machines // layout.scatter.group_size)


def lost_at_once(layout: Layout, share: float) -> Chance:
    """That something is lost when all memory is gone and each machine stays away with the chance
    ``share``, whatever the others do.

    Random: 1 - Σ Bin(d) (1 - C(d,k)/C(B,k))^S over the number d of machines that stay away, for S
    independently placed segments. Groups of n: the same in each with its S/G segments, and groups
    do not depend on each other. Machines count: two replicas on one of them are one copy.
    """
    segments, copies = layout.segments_per_server * layout.servers, layout.copies_apart
    if not segments:
        return Chance(NEVER)
    if copies == 0 or layout.medium is Medium.RAM:
        return Chance(0.0)
    size = layout.scatter.group_size
    if not size:
        return _lost_in(layout.backup_machines, copies, share, segments)
    groups = groups_of(layout)
    of_group = _lost_in(size, copies, share, max(1, round(segments / groups)))
    return _any_of_many(of_group.ln, min(groups, segments))


def _lost_in(machines: int, copies: int, share: float, segments: int) -> Chance:
    """That one of ``segments``, each on its own ``copies`` of these machines, is lost."""
    if share in (0.0, 1.0):
        return Chance(NEVER if share == 0 else 0.0)
    mean = machines * share
    most = min(machines, math.ceil(mean + 12 * math.sqrt(mean) + 1000))
    lns = (
        _ln_binomial(down, machines, share)
        + _any_of_many(ln_subset(down, machines, copies), segments).ln
        for down in range(copies, most + 1)
    )
    return Chance(min(0.0, ln_sum(lns)))


def bytes_lost(layout: Layout, share: float) -> float:
    """Expected loss, if there is one: log × share^k / P(loss). The mean over all power failures
    does not depend on the scatter: what is lost rarely is lost in large pieces."""
    loss = lost_at_once(layout, share)
    if loss.ln == NEVER:
        return 0.0
    if layout.copies_apart == 0 or layout.medium is Medium.RAM:
        return layout.log_bytes
    ln = layout.copies_apart * math.log(share) - loss.ln
    return layout.log_bytes * math.exp(min(0.0, ln))


def _any_of_many(ln_chance: float, count: int) -> Chance:
    """1 - (1 - p)^count."""
    if ln_chance == NEVER:
        return Chance(NEVER)
    return Chance.of_rate(Chance(min(0.0, ln_chance)).ln_expected + math.log(count))


def _ln_binomial(count: int, of: int, share: float) -> float:
    """ln P(``count`` of ``of`` stay away)."""
    return ln_choose(of, count) + count * math.log(share) + (of - count) * math.log1p(-share)
