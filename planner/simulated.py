"""A recovery of many servers, simulated event by event with the rates that the formulas use.

What the formulas take at its mean happens here: each segment lies on backups drawn at random, waits
in the queue of a disk, of the sender's cores, of both links, and of the taker's threads; a taker
asks for a bounded number of segments at once; some machines are slow. The same seed gives the same
run. A run with a thousand servers and eight thousand segments takes a fraction of a second.

Times are simulated; there is no clock. Queues are first come, first served.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass

from stelae.core.errors import InvalidArgument
from stelae.planner.hardware import Hardware
from stelae.planner.layout import Layout
from stelae.planner.recovery import SegmentWork, detection, planning, segment_work

SEGMENTS_MAX = 2_000_000
"""More would take minutes; `simulate` refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chances:
    """What goes by chance in a run."""

    seed: int = 1
    slow_share: float = 0.0
    """Of the machines, which do everything slower."""
    slowness: float = 4.0
    """So many times."""
    candidates: int = 1
    """Backups among which the least loaded is read from: 1 takes any replica, as Stelae does."""

    def __post_init__(self) -> None:
        if not 0 <= self.slow_share <= 1:
            raise InvalidArgument(f"a share is between 0 and 1, got {self.slow_share:g}")
        if not 1 <= self.slowness <= 1000 or not 1 <= self.candidates <= 100:
            raise InvalidArgument("slowness is between 1 and 1000, candidates between 1 and 100")


@dataclass(frozen=True, slots=True)
class SimulatedRecovery:
    """What came out."""

    detected_s: float
    planned_s: float
    last_read_s: float
    """The last segment left its disk."""
    last_taken_s: float
    """The last segment was merged."""
    serves_again_s: float
    tablets_s: tuple[float, ...]
    """When each tablet served again, in order of time."""
    segments: int
    busiest_disk: int
    """Segments read from it."""
    slow_machines: int

    def tablet_percentile_s(self, part: float) -> float:
        """When so large a part (0 to 1) of the tablets served."""
        return self.tablets_s[min(len(self.tablets_s) - 1, int(part * len(self.tablets_s)))]


class _Queue:
    """``width`` equal servers behind one queue, in order of arrival."""

    __slots__ = ("_free",)

    def __init__(self, width: int) -> None:
        self._free = [0.0] * width

    def serve(self, now: float, work_s: float) -> float:
        """When work that arrives now is done."""
        done = max(now, self._free[0]) + work_s
        heapq.heapreplace(self._free, done)
        return done

    def free_at(self) -> float:
        """When the next work can begin."""
        return self._free[0]


class _Machine:
    __slots__ = ("cores", "disk", "link_in", "link_out", "slowness")

    def __init__(self, cores: int, slowness: float) -> None:
        self.slowness = slowness
        self.disk, self.link_in, self.link_out = _Queue(1), _Queue(1), _Queue(1)
        self.cores = _Queue(cores)


class _Taker:
    __slots__ = ("hands", "machine", "threads", "waiting")

    def __init__(self, machine: _Machine, threads: int) -> None:
        self.machine = machine
        self.threads, self.hands = _Queue(threads), _Queue(1)
        self.waiting: deque[int] = deque()
        """Segments that it has not asked for yet, in order of its tablets."""


class _Run:
    """One simulated recovery: stages of segments, in order of time."""

    def __init__(self, hardware: Hardware, layout: Layout, chances: Chances) -> None:
        self.hardware, self.layout = hardware, layout
        self.dice = random.Random(chances.seed)
        self.work: SegmentWork = segment_work(hardware, layout)
        self.machines = self._machines(chances)
        self.planned_s = detection(hardware).time_s + planning(hardware, layout).time_s
        self.sources = self._placed(chances.candidates)
        self.takers = [
            _Taker(self.machines[i % layout.taking_machines], hardware.server_threads)
            for i in range(layout.takers)
        ]
        self.tablet_of = [s % layout.recovered_tablets for s in range(layout.fetched_segments)]
        self.left = [0] * layout.recovered_tablets
        for tablet in self.tablet_of:
            self.left[tablet] += 1
        self.served: list[float] = []
        self.last_read = self.last_taken = self.planned_s
        self._events: list[tuple[float, int, int]] = []
        """(time, segment, stage): of one time the first segment first."""

    def _machines(self, chances: Chances) -> list[_Machine]:
        count = self.layout.living_machines
        # Dice of its own: who is slow does not change where segments lie.
        dice = random.Random(f"slow machines of {chances.seed}")
        slow = set(dice.sample(range(count), round(chances.slow_share * count)))
        return [
            _Machine(self.hardware.cores, chances.slowness if i in slow else 1.0)
            for i in range(count)
        ]

    def _placed(self, candidates: int) -> list[int]:
        """The machine that each segment is read from."""
        count = max(1, self.layout.reading_machines)
        loads = [0] * count
        placed: list[int] = []
        for _ in range(self.layout.fetched_segments):
            drawn = [self.dice.randrange(count) for _ in range(candidates)]
            chosen = min(drawn, key=loads.__getitem__)
            loads[chosen] += 1
            placed.append(chosen)
        self.busiest_disk = max(loads)
        return placed

    def run(self) -> None:
        layout = self.layout
        order = sorted(range(layout.fetched_segments), key=lambda s: (self.tablet_of[s], s))
        for segment in order:
            self._taker(segment).waiting.append(segment)
        for tablet, left in enumerate(self.left):
            if not left:  # an empty tablet waits for nothing but its hand-over
                self._tablet_done(self.planned_s, tablet)
        for taker in self.takers:
            for _ in range(self.hardware.fetches):
                self._ask(taker, self.planned_s)
        stages = (self._read, self._send, self._arrive, self._take, self._taken)
        while self._events:
            now, segment, stage = heapq.heappop(self._events)
            stages[stage](now, segment)

    def _taker(self, segment: int) -> _Taker:
        return self.takers[self.tablet_of[segment] % len(self.takers)]

    def _later(self, time_s: float, segment: int, stage: int) -> None:
        heapq.heappush(self._events, (time_s, segment, stage))

    def _ask(self, taker: _Taker, now: float) -> None:
        if taker.waiting:
            self._later(now + self.hardware.network_round_trip_s, taker.waiting.popleft(), 0)

    # ---- stages: each is entered when the one before is done ---------------------------------

    def _read(self, now: float, segment: int) -> None:
        machine = self.machines[self.sources[segment]]
        done = machine.disk.serve(now, self.work.disk_s * machine.slowness)
        self.last_read = max(self.last_read, done)
        self._later(done, segment, 1)

    def _send(self, now: float, segment: int) -> None:
        machine = self.machines[self.sources[segment]]
        done = machine.cores.serve(now, self.work.send_s * machine.slowness)
        self._later(machine.link_out.serve(done, self.work.link_s), segment, 2)

    def _arrive(self, now: float, segment: int) -> None:
        machine = self._taker(segment).machine
        self._later(machine.link_in.serve(now, self.work.link_s), segment, 3)

    def _take(self, now: float, segment: int) -> None:
        """It needs one of the taker's threads, and one of the machine's cores for it."""
        taker = self._taker(segment)
        start = max(now, taker.threads.free_at(), taker.machine.cores.free_at())
        work_s = self.work.take_s * taker.machine.slowness
        taker.threads.serve(start, work_s)
        self._later(taker.machine.cores.serve(start, work_s), segment, 4)

    def _taken(self, now: float, segment: int) -> None:
        self.last_taken = max(self.last_taken, now)
        self._ask(self._taker(segment), now)
        tablet = self.tablet_of[segment]
        self.left[tablet] -= 1
        if not self.left[tablet]:
            self._tablet_done(now, tablet)

    def _tablet_done(self, now: float, tablet: int) -> None:
        """Tablets of one taker are handed over one after the other."""
        taker = self.takers[tablet % len(self.takers)]
        self.served.append(taker.hands.serve(now, self.hardware.tablet_s))


def simulate(
    hardware: Hardware, layout: Layout, chances: Chances | None = None
) -> SimulatedRecovery:
    """Simulate the recovery that `recovery_times` predicts.

    Raises:
        InvalidArgument: it has more segments than can be simulated in reasonable time.
    """
    if layout.fetched_segments > SEGMENTS_MAX:
        count = f"{layout.fetched_segments:,} segments"
        raise InvalidArgument(f"{count} are too many to simulate (at most {SEGMENTS_MAX:,})")
    run = _Run(hardware, layout, chances or Chances())
    run.run()
    detected = detection(hardware).time_s
    served = tuple(sorted(run.served))
    return SimulatedRecovery(
        detected_s=detected,
        planned_s=run.planned_s,
        last_read_s=run.last_read,
        last_taken_s=run.last_taken,
        serves_again_s=served[-1],
        tablets_s=served,
        segments=layout.fetched_segments,
        busiest_disk=run.busiest_disk,
        slow_machines=sum(machine.slowness > 1 for machine in run.machines),
    )
