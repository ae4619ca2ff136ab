"""The migration of one timeline, as a pure machine: answers, errors and time in, effects out.

Level-triggered: where it stands follows from the record in the store and from what safekeepers
answer, never from what an earlier driver did. So it can be interrupted anywhere, begun again by
anybody without being asked (`FinishPending`), and run by several drivers at once: the store's
compare-and-set picks one, and the others go on from what it wrote.

- Nothing is written before the wish is checked and those who are to join have answered.
- A change under way is finished, never replaced; another wish is refused. Until step 8 it can be
  taken back, by one more compare-and-set.
- A run ends: with a verdict, or `WAITING` if nothing moves for too long; the record says what is
  left, so that whoever scans the store goes on (`TimelineRecord.unfinished`).

Implements seed 004 ("Algorithm" and what follows it); design §10. Term raising (step 6) rides along
with the configuration, and is checked together with position and generation, by one answer.
"""

from __future__ import annotations

from collections.abc import Collection

from stelae.coordinator.timelines.migration_calls import Calls
from stelae.coordinator.timelines.migration_knowledge import Knowledge
from stelae.coordinator.timelines.migration_steps import (
    Effect,
    Exclude,
    MigrationSettings,
    MoveTo,
    Notify,
    Outcome,
    Output,
    Passed,
    Ping,
    PullTimeline,
    PutConfiguration,
    ReadRecord,
    Request,
    Statuses,
    Step,
    Verdict,
    WriteRecord,
    decommissioned,
)
from stelae.coordinator.timelines.migration_wish import (
    Decided,
    Ended,
    GoOn,
    Join,
    Judgement,
    Wish,
    Write,
)
from stelae.core.errors import StaleTerm, StelaeError
from stelae.core.messages.timelines import MigrationProgress
from stelae.core.records.configurations import (
    FIRST_GENERATION,
    CasReply,
    StoredRecord,
    TimelineId,
    TimelineRecord,
)
from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    SafekeeperStatus,
    SwitchReply,
    TimelineConfiguration,
    has_majority,
)

_NOWHERE = LogPosition(0, 0)


class Migration:
    """One run of one driver for one timeline.

    Args:
        statuses: of all safekeepers known, as operators have set them.
        writer: names this run in the store; no two runs have the same.
        now: of the driver's clock, as in every call.
        jitter: stretches pauses, so that several drivers do not walk in step.
    """

    def __init__(
        self,
        timeline: TimelineId,
        request: Request,
        *,
        statuses: Statuses,
        settings: MigrationSettings,
        writer: str,
        now: float,
        jitter: float = 1.0,
    ) -> None:
        self.timeline = timeline
        self.request = request
        self.step = Step.FETCH
        self.outcome: Outcome | None = None
        self.verdict: Verdict | None = None
        self.reason = ""
        self.stored: StoredRecord | None = None
        self._known: Knowledge | None = None
        self._statuses = statuses
        self._settings = settings
        self._writer = writer
        self._calls = Calls(settings, jitter)
        self._intent: WriteRecord | None = None
        self._writes = 0
        self._races = 0
        self._wish = Wish(request, statuses, settings.members_min)
        self._desired: tuple[SafekeeperId, ...] = ()
        self._began_s = self._moved_s = self._entered_s = self._now_s = now
        self._majority_s: float | None = None
        self._best = (0, 0, 0)
        self._outputs: list[Output] = []

    # ---- events -----------------------------------------------------------------------------

    def tick(self, now: float) -> list[Output]:
        """Time has passed; also the first event."""
        return self._turn(now)

    def answered(self, number: int, answer: object, now: float) -> list[Output]:
        """An order was carried out; ``answer`` as its effect says."""
        self._now_s = now
        effect = self._calls.ended(number, now)
        if effect is not None and self.outcome is None:
            self._take(effect, answer)
        return self._turn(now)

    def failed(self, number: int, error: StelaeError, now: float) -> list[Output]:
        """An order was not carried out, or nobody knows."""
        self._now_s = now
        effect = self._calls.ended(number, now, f"{type(error).__name__}: {error}")
        if isinstance(error, StaleTerm) and effect is not None and self.outcome is None:
            self._read_again()
        return self._turn(now)

    @property
    def wake_s(self) -> float:
        """By then a tick is wanted, if nothing happens before."""
        patience_s = self._settings.patience_at(self.step)
        times = [self._moved_s + patience_s, self._calls.next_s(self._now_s)]
        if self._majority_s is not None:
            times.append(self._majority_s + self._settings.settle_s)
        if self.step in (Step.PULL, Step.RAISE_TERM, Step.CATCH_UP):
            times.append(self._entered_s + self._settings.stall_s)
        later = [time for time in times if time > self._now_s]
        return min(later, default=self._now_s + self._settings.longest_pause_s)

    def progress(self) -> MigrationProgress:
        """For status pages."""
        configuration = self._known.record.configuration if self._known is not None else None
        desired = self.request.desired if isinstance(self.request, MoveTo) else None
        if configuration is not None and configuration.is_joint:
            desired = configuration.new_sk_set
        sync = self._known.sync if self._known is not None else None
        return MigrationProgress(
            timeline=self.timeline,
            step=self.step,
            step_name=self.step.name.lower().replace("_", " "),
            generation=configuration.generation if configuration is not None else 0,
            members=configuration.sk_set if configuration is not None else (),
            desired=desired,
            waits_for=self._calls.waits_for,
            problems=dict(self._calls.problems),
            started_s=self._began_s,
            moved_s=self._moved_s,
            sync_position=sync.position if sync is not None else None,
            verdict=self.verdict.value if self.verdict is not None else "",
        )

    # ---- answers ----------------------------------------------------------------------------

    def _take(self, effect: Effect, answer: object) -> None:
        match effect, answer:
            case ReadRecord(), StoredRecord() | None:
                if self.step is Step.FETCH:
                    self._consider(answer)
            case WriteRecord(), CasReply():
                if effect is self._intent:
                    self._written(effect, answer)
            case Ping(), None:
                if self._known is not None:
                    self._known.pinged[effect.safekeeper] = None
            case ((PutConfiguration() | PullTimeline()), SwitchReply() | None):
                self._heard(effect.safekeeper, effect.configuration, answer)
            case Exclude(), None:
                if self._is_current(effect.configuration):
                    self._record_known.excluded[effect.safekeeper] = None
            case Notify(), None:
                if self._is_current(effect.record.configuration):
                    self._record_known.notified = True
            case _:
                raise AssertionError(f"{effect} was answered with {answer}")

    def _is_current(self, configuration: TimelineConfiguration) -> bool:
        return self._known is not None and self._known.record.configuration == configuration

    @property
    def _record_known(self) -> Knowledge:
        assert self._known is not None, "nothing was read yet"
        return self._known

    def _heard(
        self,
        safekeeper: SafekeeperId,
        configuration: TimelineConfiguration,
        reply: SwitchReply | None,
    ) -> None:
        if not self._is_current(configuration):
            return
        if reply is not None and reply.conf.generation > configuration.generation:
            self._read_again()
        elif reply is None or reply.conf.generation == configuration.generation:
            self._record_known.heard(safekeeper, reply)

    def _read_again(self) -> None:
        """Somebody knows a higher generation than we do: it is in the store."""
        self.step = Step.FETCH
        self._intent = None

    def _written(self, effect: WriteRecord, reply: CasReply) -> None:
        self._intent = None
        self._calls.refresh(WriteRecord)
        assert reply.current is not None or not reply.done
        if reply.done:
            if self._known is None or effect.record.generation > self._known.record.generation:
                self._decided(effect.record)
        else:
            self._races += 1
            if self._races > self._settings.races_max:
                self._end(Verdict.OVERTAKEN, f"{self._races} compare-and-sets were lost")
                return
        self._consider(reply.current)

    def _decided(self, record: TimelineRecord) -> None:
        """Our own write of a configuration is in the store."""
        if record.configuration.is_joint:
            self._pass(Step.JOIN, record.generation)
        else:
            self._pass(Step.SWITCH, record.generation)

    # ---- what the record says: steps 1 to 3, and 8 --------------------------------------------

    def _consider(self, stored: StoredRecord | None) -> None:
        """Step 2: compare what is in the store with what is wanted."""
        if stored is None:
            self._obey(self._wish.judge_nothing(self.timeline))
            return
        before = self._known
        self.stored = stored
        if before is None or before.record.configuration != stored.record.configuration:
            self._known = Knowledge(stored.record)
            self._calls.drop()
        else:
            before.record = stored.record
        self._intent = None
        if self.verdict is None:
            self._judge(stored.record)
        if self.outcome is None and self._intent is None and self.step is not Step.CHECK:
            self._go_on(before)

    def _go_on(self, before: Knowledge | None) -> None:
        """To where the record is: a change that is not decided, or one that is."""
        record = self._record_known.record
        if record.configuration.is_joint:
            self._enter(Step.SYNC)
        elif record.deleted:
            self._enter(Step.TIDY)
        elif self._known is not before or self.step is not Step.TIDY:
            self._enter(Step.DELIVER)

    def _judge(self, record: TimelineRecord) -> None:
        """What becomes of the wish."""
        self.step = Step.FETCH
        self._obey(self._wish.judge(record))

    def _obey(self, judgement: Judgement) -> None:
        match judgement:
            case Decided(verdict, reason):
                self.verdict, self.reason = verdict, reason
            case Ended(verdict, reason):
                self._end(verdict, reason)
            case Join(desired):
                self._desired = desired
                self._enter(Step.CHECK)
            case Write(following):
                self._intend(following, Step.SWITCH)
            case GoOn():
                pass

    def _intend(self, record: TimelineRecord, step: Step) -> None:
        """Write this; under the same name until it is known whether it was done."""
        self._writes += 1
        revision = self.stored.revision if self.stored is not None else 0
        nonce = f"{self._writer}.{self._writes}"
        self._intent = WriteRecord(record, revision, self._writer, nonce)
        if step is not self.step:
            self._enter(step)
        self._order(self._intent)

    # ---- steps ------------------------------------------------------------------------------

    def _turn(self, now: float) -> list[Output]:
        self._now_s = now
        for _ in Step:
            before = (self.step, self._known)
            if self.outcome is None:
                self._act()
            if self.outcome is not None or (self.step, self._known) == before:
                break
        self._watch()
        outputs, self._outputs = self._outputs, []
        return outputs

    def _act(self) -> None:
        """Go as far as the step goes without another answer."""
        if self._intent is not None:
            self._order(self._intent)
        match self.step:
            case Step.FETCH:
                self._order(ReadRecord(self.timeline))
            case Step.CHECK:
                self._check()
            case Step.SYNC:
                self._sync()
            case Step.PULL | Step.RAISE_TERM | Step.CATCH_UP:
                self._bring_new_members()
            case Step.DELIVER:
                self._deliver()
            case Step.TIDY:
                self._tidy()

    def _check(self) -> None:
        """Ping those who are to join: why migrate to a node that is down? A timeline that was just
        begun is on a majority first: step 4 creates nothing."""
        known = self._record_known
        joining = [m for m in self._desired if m not in known.record.configuration.members]
        for member in joining:
            if member in known.pinged:
                continue
            ping = Ping(member)
            if self._calls.failures(ping) >= self._settings.pings_max:
                why = f"safekeeper {member} does not answer"
                self._end(Verdict.UNREACHABLE, why, unreached=(member,))
                return
            self._order(ping)
        is_there = known.record.generation > FIRST_GENERATION or known.has_old_majority()
        if not is_there:
            self._tell_members()
        if is_there and all(member in known.pinged for member in joining):
            self._pass(Step.CHECK, known.record.generation)
            self._intend(known.record.joint_with(self._desired), Step.JOIN)

    def _sync(self) -> None:
        """Step 4: an old majority switches, and says how far it is."""
        known = self._record_known
        old = known.record.configuration.sk_set
        self._tell_early()
        for member in old:
            if member not in known.replies:
                self._order(known.put(member))
        if known.has_old_majority() and self._is_settled(old, known.replies):
            known.take_sync_point()
            self._pass(Step.SYNC, known.record.generation)
            self._enter(Step.PULL)

    def _bring_new_members(self) -> None:
        """Steps 5 to 7, each for a majority of the new members, and for more if they are quick."""
        known = self._record_known
        new = known.record.configuration.new_sk_set
        assert new is not None
        self._tell_early()
        ready = {member: None for member in new if known.is_ready(member, self.step)}
        for member in new:
            if member not in ready:
                self._bring(member)
        if has_majority(new, ready) and self._is_settled(new, ready):
            self._pass(self.step, known.record.generation)
            if self.step is Step.CATCH_UP:
                self._intend(known.record.switched(), Step.SWITCH)
            else:
                self._enter(Step(self.step + 1))
        elif self._has_waited(self._entered_s, self._settings.stall_s):
            # Who had the furthest position may be gone for good; any old majority will do.
            known.replies.clear()
            known.sync = None
            self._enter(Step.SYNC)

    def _bring(self, member: SafekeeperId) -> None:
        """Let a new member have timeline, term and position, whichever it lacks."""
        known = self._record_known
        assert known.sync is not None
        is_old = member in known.record.configuration.sk_set
        if member in known.absent or (member not in known.replies and not is_old):
            self._pull(member, known.sync.position)
            return
        self._order(known.put(member, known.sync.term))
        if known.has_term(member) and not known.has_position(member):
            self._pull(member, known.sync.position)

    def _deliver(self) -> None:
        """Step 9: a majority knows what was decided."""
        known = self._record_known
        members = known.record.configuration.members
        self._tell_members()
        if has_majority(members, known.replies) and self._is_settled(members, known.replies):
            self._pass(Step.DELIVER, known.record.generation)
            self._enter(Step.TIDY)

    def _tell_members(self) -> None:
        known = self._record_known
        for member in known.record.configuration.members:
            if member in known.replies or (self.step is Step.TIDY and not self._is_up(member)):
                continue
            if member in known.absent and known.sources(member):
                self._pull(member, _NOWHERE)
            else:
                self._order(known.put(member))

    def _tidy(self) -> None:
        """All the rest; what has been done is written down, so that it need not be done again."""
        known = self._record_known
        record = known.record
        if record.is_finished:
            self._end(self.verdict or Verdict.DONE, self.reason)
            return
        if self._intent is not None:
            return
        if not record.deleted:
            self._tell_members()
        for one in record.departed:
            if one not in known.excluded and self._is_up(one):
                self._order(Exclude(one, self.timeline, record.configuration, record.deleted))
        if record.notified_generation < record.generation and not known.notified:
            self._order(Notify(record))
        done = known.what_is_done(decommissioned(self._statuses))
        if done != record and (done.is_finished or self._calls.is_idle or self._calls.problems):
            self._intend(done, Step.TIDY)
        elif self._calls.is_idle and not self._calls.problems:
            self._end(self.verdict or Verdict.DONE, "what is left waits for those who are away")

    # ---- helpers ----------------------------------------------------------------------------

    def _pull(self, member: SafekeeperId, at_least: LogPosition) -> None:
        """Copy from the most advanced; after a failure from the next."""
        pull = self._record_known.pull(member, at_least, 0)
        if pull is not None:
            turn = self._calls.failures(pull)
            self._order(self._record_known.pull(member, at_least, turn) or pull)

    def _tell_early(self) -> None:
        """The writer has to reach new members from now on: told at leisure, and not waited for."""
        if not self._record_known.notified:
            self._order(Notify(self._record_known.record))

    def _is_up(self, safekeeper: SafekeeperId) -> bool:
        return self._statuses.get(safekeeper) is SafekeeperStatus.ACTIVE

    def _is_settled(
        self, members: tuple[SafekeeperId, ...], ready: Collection[SafekeeperId]
    ) -> bool:
        """Whether the rest has joined the majority, or had its chance."""
        if all(member in ready for member in members):
            return True
        if self._majority_s is None:
            self._majority_s = self._now_s
        return self._now_s >= self._majority_s + self._settings.settle_s

    def _has_waited(self, since_s: float, limit_s: float) -> bool:
        """A copy under way takes the time that it takes."""
        return self._now_s >= since_s + limit_s and not self._calls.is_under_way(PullTimeline)

    def _order(self, effect: Effect) -> None:
        order = self._calls.order(effect, self._now_s)
        if order is not None:
            self._outputs.append(order)

    def _pass(self, step: Step, generation: int) -> None:
        replies = dict(self._known.replies) if self._known is not None else {}
        self._outputs.append(Passed(step, generation, replies))

    def _enter(self, step: Step) -> None:
        if step is not self.step:
            self._calls.refresh(Ping, PutConfiguration, PullTimeline, Exclude)
        self.step = step
        self._entered_s = self._now_s
        self._majority_s = None

    def _watch(self) -> None:
        """End a run in which nothing moves."""
        if self.outcome is not None:
            return
        known = self._known
        generation = known.record.generation if known is not None else 0
        revision = self.stored.revision if self.stored is not None else 0
        step = self.step + (revision << 8 if self.step is Step.TIDY else 0)
        now = (generation, step, known.measure if known is not None else 0)
        if now > self._best:
            self._best, self._moved_s = now, self._now_s
        elif self._has_waited(self._moved_s, self._settings.patience_at(self.step)):
            waits_for = ", ".join(self._calls.waits_for) or "nothing"
            self._end(self.verdict or Verdict.WAITING, f"nothing moves; it waits for {waits_for}")

    def _end(self, verdict: Verdict, reason: str, unreached: tuple[SafekeeperId, ...] = ()) -> None:
        self.verdict, self.reason = verdict, reason
        self.outcome = Outcome(verdict, reason, self.stored, unreached)
