"""The migration machine in the smallest world: a bag of messages, from which chance picks.

No sockets, disks or clocks: a message is carried out when it is picked, perhaps twice, perhaps
after its sender died, and its answer may be lost. Drivers die between any two turns. So every order
of events that a network could make is as likely as any other, and a life takes milliseconds.
The pure machine is the real one; safekeepers are those of `model_safekeepers`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from stelae.coordinator.timelines.migration import Migration
from stelae.coordinator.timelines.migration_steps import (
    Abort,
    Create,
    Effect,
    Exclude,
    FinishPending,
    MigrationSettings,
    MoveTo,
    Notify,
    Output,
    Passed,
    Ping,
    PullTimeline,
    PutConfiguration,
    ReadRecord,
    Remove,
    Request,
    Verdict,
    WriteRecord,
)
from stelae.core.errors import OutcomeUnknown, StelaeError
from stelae.core.ids import TableId, TabletId
from stelae.core.records.configurations import (
    CasReply,
    StoredRecord,
    TimelineId,
    check_succession,
)
from stelae.core.records.timelines import SafekeeperId, SafekeeperStatus, TimelineConfiguration
from tests.simulation.wal.model_safekeepers import (
    Copy,
    Drop,
    Entry,
    Judge,
    Propose,
    ProposeReply,
    Pull,
    Put,
    Rules,
    Slot,
)

TIMELINE = TimelineId(TableId("table"), TabletId("tablet"))
BAG_MAX = 60
TURN_S = 0.05
LOST = OutcomeUnknown("model", "call", 1.0)


class ModelStore:
    """One record, its history, and the compare-and-set."""

    def __init__(self) -> None:
        self.history: list[StoredRecord] = []

    @property
    def current(self) -> StoredRecord:
        return self.history[-1]

    def cas(self, effect: WriteRecord) -> CasReply:
        revision = effect.expected_revision + 1
        current = self.history[-1] if self.history else None
        if effect.expected_revision == len(self.history):
            check_succession(current.record if current else None, effect.record)
            written = (effect.record, 0.0, effect.writer, effect.nonce)
            self.history.append(StoredRecord(revision, *written))
            return CasReply(True, self.current)
        known = [stored for stored in self.history if stored.revision == revision]
        done = bool(known) and (known[0].writer, known[0].nonce) == (effect.writer, effect.nonce)
        return CasReply(done, self.current)


@dataclass(slots=True)
class Message:
    """``act`` happens at the receiver; ``tell`` takes its answer, if the sender still listens."""

    act: Callable[[], Any]
    tell: Callable[[Any], None]


@dataclass(slots=True)
class Driver:
    migration: Migration
    name: str
    inbox: list[tuple[int, Any]] = field(default_factory=list)


class Proposer:
    """A writer as a generator: it yields what it sends to whom, and takes the answers so far."""

    def __init__(self, life: BagLife, name: str) -> None:
        self.answers: dict[SafekeeperId, Any] = {}
        self._life = life
        self._name = name
        self._round = 0
        self._play = self._lead()
        next(self._play)

    def turn(self) -> bool:
        """Go on with the answers there are; whether it still leads, or may."""
        try:
            self._play.send(None)
        except StopIteration:
            return False
        return True

    def _send(self, members: tuple[SafekeeperId, ...], act: Callable[[SafekeeperId], Any]) -> None:
        self._round += 1
        self.answers = {}
        number = self._round
        for one in members:
            if self._life.rng.random() < 0.8:
                self._life.send(self._message(one, act, number))

    def _message(
        self, one: SafekeeperId, act: Callable[[SafekeeperId], Any], number: int
    ) -> Message:
        def tell(answer: Any) -> None:
            if number == self._round and not isinstance(answer, StelaeError):
                self.answers[one] = answer

        return Message(lambda: act(one), tell)

    def _lead(self) -> Generator[None, None, None]:
        life, patience = self._life, 6
        yield
        self._send(tuple(life.ids), life.look)
        for _ in range(patience):
            yield
        copies = {one: copy for one, copy in self.answers.items() if copy is not None}
        if not copies:
            return
        conf = max((copy.conf for copy in copies.values()), key=lambda conf: conf.generation)
        if not conf.agreed(copies):
            return
        term = max(copies[one].term for one in conf.members if one in copies) + 1
        granted: dict[SafekeeperId, Copy] = {}
        self._send(conf.members, self._propose(conf, term, None))
        for _ in range(patience):
            yield
            granted = {one: reply.copy for one, reply in self.answers.items() if reply.ok}
            if conf.agreed(granted):
                break
        if not conf.agreed(granted):
            return
        log = max(granted.values(), key=lambda copy: copy.position).log
        life.judge.elected(term, self._name, log)
        for number in range(life.rng.choice([1, 2, 4])):
            log = (*log, (term, f"{self._name}.{number}"))
            self._send(conf.members, self._propose(conf, term, log))
            for _ in range(patience):
                yield
                if conf.agreed([one for one, reply in self.answers.items() if reply.ok]):
                    life.judge.acknowledged(term, log)
                    break

    def _propose(
        self, conf: TimelineConfiguration, term: int, log: tuple[Entry, ...] | None
    ) -> Callable[[SafekeeperId], ProposeReply]:
        return lambda one: self._life.propose(one, Propose(TIMELINE, conf, term, log))


class BagLife:
    """One life, drawn from a seed."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self.rng = rng = random.Random(f"{seed}/bag")
        self.ids = [SafekeeperId(n) for n in range(1, rng.choice([3, 4, 4, 5, 6]) + 1)]
        self.rules = {one: Rules(one, bug) for one in self.ids}
        self.slots = dict.fromkeys(self.ids, Slot())
        self.statuses = dict.fromkeys(self.ids, SafekeeperStatus.ACTIVE)
        self.judge = Judge()
        self.bag: list[Message] = []
        self.drivers: list[Driver] = []
        self.proposers: list[Proposer] = []
        self.now = 0.0
        self.catalog = 0
        self.runs = 0
        self.verdicts: dict[Verdict, int] = {}
        first = TimelineConfiguration(1, tuple(self.ids[: rng.choice([1, 2, 3, 3])]))
        self.store = ModelStore()
        self.first = first.sk_set
        self.lossy = rng.choice([0.0, 0.1, 0.3])
        self.doubling = rng.choice([0.0, 0.1, 0.4])
        self.deadly = rng.choice([0.0, 0.01, 0.05])
        self.lazy = rng.choice([0.0, 0.0, 0.5])
        self.away: set[SafekeeperId] = set()
        """Nothing reaches them for a while."""
        self.arrives_late = 0.5
        """What was sent to them, once they are reached again."""
        self.settings = MigrationSettings(
            first_pause_s=0.1,
            longest_pause_s=rng.choice([0.2, 1.0]),
            settle_s=rng.choice([0.0, 0.0, 0.3]),
            stall_s=3.0,
            patience_s=20.0,
            members_min=1,
        )

    # ---- receivers ----------------------------------------------------------------------------

    def look(self, one: SafekeeperId) -> Copy | None:
        return self.slots[one].copy

    def propose(self, one: SafekeeperId, request: Propose) -> ProposeReply:
        self.slots[one], reply = self.rules[one].propose(self.slots[one], request)
        return reply

    def carry_out(self, effect: Effect) -> Any:
        match effect:
            case ReadRecord():
                return self.store.history[-1] if self.store.history else None
            case WriteRecord():
                return self.store.cas(effect)
            case Ping():
                return None
            case PutConfiguration(one, timeline, conf, term, create):
                put = Put(timeline, conf, term, create)
                self.slots[one], reply = self.rules[one].put(self.slots[one], put)
                return reply
            case PullTimeline(one, source, timeline, conf, at_least):
                pull = Pull(timeline, source, conf, at_least)
                taken = self.slots[source].copy
                self.slots[one], reply = self.rules[one].pull(self.slots[one], pull, taken)
                return reply
            case Exclude(one, timeline, conf, forever):
                drop = Drop(timeline, conf, forever)
                self.slots[one] = self.rules[one].exclude(self.slots[one], drop)
                return None
            case Notify(record):
                self.catalog = max(self.catalog, record.generation)
                return None

    # ---- the bag ------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        if len(self.bag) < BAG_MAX:
            self.bag.append(message)
        else:
            message.tell(LOST)

    def pick(self) -> None:
        """Carry out one message; tell its answer, or that nobody knows."""
        if not self.bag:
            return
        message = self.bag.pop(self.rng.randrange(len(self.bag)))
        if self.rng.random() < self.lossy / 2:
            message.tell(LOST)
            return
        if self.rng.random() < self.doubling:
            self.bag.append(Message(message.act, lambda answer: None))
        try:
            answer = message.act()
        except StelaeError as error:
            answer = error
        message.tell(LOST if self.rng.random() < self.lossy / 2 else answer)

    def _outputs(self, driver: Driver, outputs: list[Output]) -> None:
        for output in outputs:
            if isinstance(output, Passed):
                if self.rng.random() < self.deadly * 4:
                    self._kill(driver)
                    return
                continue
            number, effect = output.number, output.effect
            target = getattr(effect, "safekeeper", None)
            if target in self.away:
                driver.inbox.append((number, LOST))
                if self.rng.random() < self.arrives_late:
                    act = self._act(effect)
                    self.send(Message(act, lambda answer: None))
                continue
            self.send(Message(self._act(effect), self._teller(driver, number)))

    def _act(self, effect: Effect) -> Callable[[], Any]:
        return lambda: self.carry_out(effect)

    def _teller(self, driver: Driver, number: int) -> Callable[[Any], None]:
        return lambda answer: driver.inbox.append((number, answer))

    # ---- actors -------------------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        self.runs += 1
        migration = Migration(
            TIMELINE,
            request,
            statuses=self.statuses,
            settings=self.settings,
            writer=f"run{self.runs}",
            now=self.now,
            jitter=self.rng.uniform(0.7, 1.3),
        )
        self.drivers.append(Driver(migration, f"run{self.runs}"))

    def turn(self, driver: Driver) -> None:
        if driver.inbox and self.rng.random() < 0.9:
            number, answer = driver.inbox.pop(0)
            if isinstance(answer, StelaeError):
                outputs = driver.migration.failed(number, answer, self.now)
            else:
                outputs = driver.migration.answered(number, answer, self.now)
        else:
            outputs = driver.migration.tick(self.now)
        self._outputs(driver, outputs)
        outcome = driver.migration.outcome
        if outcome is not None and driver in self.drivers:
            self.verdicts[outcome.verdict] = self.verdicts.get(outcome.verdict, 0) + 1
            self._kill(driver)

    def _kill(self, driver: Driver) -> None:
        """Its messages are under way all the same."""
        if driver in self.drivers:
            self.drivers.remove(driver)

    def _draw_request(self) -> Request:
        draw = self.rng.random()
        if draw < 0.3:
            return Abort() if draw < 0.15 else FinishPending()
        count = self.rng.choice([1, 2, 3, 3])
        return MoveTo(tuple(self.rng.sample(self.ids, min(count, len(self.ids)))))

    def step(self) -> None:
        """One event."""
        rng = self.rng
        self.now += rng.expovariate(1 / TURN_S)
        draw = rng.random()
        if draw < 0.45:
            self.pick()
        elif draw < 0.75 and self.drivers:
            driver = rng.choice(self.drivers)
            if rng.random() < self.deadly:
                self._kill(driver)
            else:
                self.turn(driver)
        elif draw < 0.95:
            if self.proposers and rng.random() < 0.95:
                proposer = rng.choice(self.proposers)
                if not proposer.turn():
                    self.proposers.remove(proposer)
            elif len(self.proposers) < 2 and rng.random() > self.lazy:
                self.runs += 1
                self.proposers.append(Proposer(self, f"w{self.runs}"))
        elif draw < 0.97 and len(self.drivers) < 3:
            self.begin(self._draw_request())
        elif draw < 0.98:
            self.away = {*rng.sample(self.ids, rng.choice([0, 0, 1, 2]))}

    def run(self, steps: int) -> None:
        """Create it (several may want to, and die of it), live, and come to an end."""
        for _ in range(50):
            self.begin(Create(self.first))
            for _ in range(20):
                self.step()
            if self.store.history:
                break
        for _ in range(steps):
            self.step()
        self._settle()

    def _settle(self, remove: bool = False) -> None:
        """The faults end: a scan finishes what is left, and all is as the record says."""
        self.lossy = self.doubling = self.deadly = 0.0
        self.away = set()
        self.proposers = []
        for _ in range(5_000):
            record = self.store.current.record
            if record.is_finished and not self.drivers and not self.bag:
                break
            if not self.drivers and not record.is_finished:
                self.begin(FinishPending())
            self.now += TURN_S
            self.pick()
            for driver in list(self.drivers):
                self.turn(driver)
        record = self.store.current.record
        assert record.is_finished, f"{record.unfinished} after {self.now} s: {record}"
        conf = record.configuration
        holders = {one: slot.copy for one, slot in self.slots.items() if slot.copy is not None}
        if record.deleted:
            assert not holders, f"deleted, and held by {sorted(holders)}"
        else:
            assert sorted(holders) == sorted(conf.sk_set), f"{conf} is held by {sorted(holders)}"
            assert {copy.conf for copy in holders.values()} == {conf}
        assert self.catalog == conf.generation
        if not record.deleted and not remove:
            self._write_once()

    def _write_once(self) -> None:
        """A last leader has everything, and commits one entry more."""
        before = len(self.judge.committed)
        for number in range(50):
            proposer = Proposer(self, f"last{number}")
            while proposer.turn():
                while self.bag:
                    self.pick()
            if len(self.judge.committed) > before:
                return
        raise AssertionError("nobody can write")


def live(seed: int, bug: str = "", steps: int = 1500) -> BagLife:
    """One life: changes under writers and faults, and in some the end of the timeline."""
    life = BagLife(seed, bug)
    life.run(steps)
    if life.rng.random() < 0.3:
        life.begin(Remove())
        life._settle(remove=True)
        if life.store.current.record.deleted is False:
            raise AssertionError("the timeline is to be deleted")
    return life
