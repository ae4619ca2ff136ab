"""Replays a trace of timelines against the actions of `spec/`: does the code do what was checked?

Each step of the trace has to be a step of the model: its preconditions hold in the state that the
steps before it lead to, and the state that it reports is the one that the model comes to. Methods
are named as the model's actions, and have the same conditions. Beside them hold the model's
invariants: a term is won once (`ElectionSafety`), a committed entry is never replaced
(`CommittedOnce`) and never lost (`CommittedHeldBy`).

Where the model is one step and the code takes time, the trace may lag, in the ways that the model
allows by other means: a vote, an answer to a migrator, a copy may be of any earlier moment of the
safekeeper (all of them are remembered), a proposer may campaign in any term that is new to it, and
a step that became durable just before a crash may go unsaid (`_restart_safekeeper`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from stelae.core.records.timelines import (
    LogPosition,
    SafekeeperId,
    TimelineConfiguration,
    has_majority,
)
from stelae.simulation.timelines import events as trace
from stelae.simulation.timelines.log import TermLog
from stelae.simulation.timelines.state import Acceptor, Migrator, Proposer


class NotInModelError(AssertionError):
    """The first step of a trace that the model does not allow, and why."""

    def __init__(self, event: trace.TraceEvent, reason: str) -> None:
        super().__init__(event, reason)
        self.event = event
        self.reason = reason

    def __str__(self) -> str:
        return f"line {self.event.seq} of the trace: {self.reason}: {self.event}"


def check_trace(events: Iterable[trace.Event]) -> int:
    """Replay the traces of all timelines in ``events``; return how many steps were replayed.

    Raises NotInModelError at the first step that is none.
    """
    timelines: dict[str, TimelineTrace] = {}
    steps = 0
    for event in events:
        if event.timeline not in timelines:
            timelines[event.timeline] = TimelineTrace()
        timelines[event.timeline].step(event)
        steps += 1
    return steps


class TimelineTrace:
    """The model's state of one timeline, and its actions."""

    def __init__(self) -> None:
        self.stored: dict[int, TimelineConfiguration] = {}
        self.acceptors: dict[SafekeeperId, Acceptor] = {}
        self.proposers: dict[tuple[str, int], Proposer] = {}
        self.migrators: dict[str, Migrator] = {}
        self.won: dict[int, str] = {}
        self.committed = TermLog()
        self._event: trace.Event | None = None
        self._seq = -1

    @property
    def current(self) -> TimelineConfiguration:
        """What is in the store."""
        return self.stored[max(self.stored)]

    def step(self, event: trace.Event) -> None:
        """Take one step. Raises NotInModelError."""
        self._event = event
        self._need(event.seq > self._seq, "lines out of order")
        self._seq = event.seq
        self._need(bool(self.stored) != isinstance(event, trace.Init), "Init is the first line")
        match event:
            case trace.Init():
                self._init(event)
            case trace.StartChange() | trace.AbortChange() | trace.FinishChange():
                self._change(event)
            case trace.Collect():
                self._collect(event)
            case trace.Confirm():
                self._confirm(event)
            case trace.Forget():
                self.migrators.pop(event.server, None)
            case trace.RestartProposer() | trace.BecomeLeader() | trace.NewEntry() | trace.Commit():
                self._propose(event)
            case trace.Create():
                self._create(event)
            case trace.Exclude():
                self._exclude(event)
            case _:
                self._at_safekeeper(event)
        self._committed_is_held()

    def _at_safekeeper(self, event: trace.AtSafekeeper) -> None:
        match event:
            case trace.Vote():
                self._vote(event)
            case trace.Elected():
                self._elected(event)
            case trace.BeginAfter():
                self._begin_after(event)
            case trace.AppendEntry():
                self._append_entry(event)
            case trace.SwitchConf():
                self._switch_conf(event)
            case trace.BumpTerm():
                self._bump_term(event)
            case trace.Pull():
                self._pull(event)
            case trace.RestartSafekeeper():
                self._restart_safekeeper(event)
        acceptor = self.acceptors[event.server]
        told = (event.generation, event.term, event.position)
        have = (acceptor.generation, acceptor.term, acceptor.log.position)
        self._need(told == have, f"generation, term and position should be {have}")
        acceptor.note()

    def _propose(
        self, event: trace.RestartProposer | trace.BecomeLeader | trace.NewEntry | trace.Commit
    ) -> None:
        match event:
            case trace.RestartProposer():
                self._restart_proposer(event)
            case trace.BecomeLeader():
                self._become_leader(event)
            case trace.NewEntry():
                self._new_entry(event)
            case trace.Commit():
                self._commit(event)

    # ---- the store -------------------------------------------------------------------------

    def _init(self, event: trace.Init) -> None:
        first = event.configuration
        self._need(first.generation == 1 and not first.is_joint, "no first configuration")
        self.stored[1] = first

    def _change(self, event: trace.StartChange | trace.AbortChange | trace.FinishChange) -> None:
        """Each configuration follows from the one before, which a CAS found in the store."""
        new, old = event.configuration, self.current
        self._need(new.generation == old.generation + 1, "the CAS compared another generation")
        if isinstance(event, trace.StartChange):
            self._need(not old.is_joint and new.is_joint, "a change within a change")
            self._need(set(new.sk_set) == set(old.sk_set), "the old set changed")
            self._need(set(new.new_sk_set or ()) != set(old.sk_set), "nothing changes")
        else:
            self._need(old.is_joint and not new.is_joint, "no change to end")
        if isinstance(event, trace.AbortChange):
            self._need(set(new.sk_set) == set(old.sk_set), "abort goes back to the old set")
        if isinstance(event, trace.FinishChange):
            self._need(set(new.sk_set) == set(old.new_sk_set or ()), "another set than the new one")
            work = self.migrators.pop(event.server, None)
            if work is None or work.configuration != old:
                self._refuse("this migrator did not work on that change")
            self._need(work.collected, "no majority of the old set had the joint configuration")
            self._need(work.has_confirmed, "no majority of the new set is ready")
        self.stored[new.generation] = new

    # ---- safekeepers -----------------------------------------------------------------------

    def _create(self, event: trace.Create) -> None:
        """A late member of the first configuration: its empty copy is one that heard nothing."""
        self._need(event.server not in self.acceptors, "a second copy")
        self._need(event.server in self.stored[1].members, "no member of the first configuration")
        acceptor = Acceptor(here=True, configuration=self.stored[1], generation=1)
        self.acceptors[event.server] = acceptor
        acceptor.note()

    def _vote(self, event: trace.Vote) -> None:
        campaign = self._proposer(event.proposer, event.term)
        acceptor = self._serving(event.server, campaign)
        again = acceptor.term == event.term and acceptor.voted_for == event.proposer
        self._need(acceptor.term < event.term or again, "a vote in a term that it knows")
        acceptor.term, acceptor.voted_for = event.term, event.proposer
        if not campaign.is_leader:
            campaign.votes[event.server] = acceptor.log

    def _elected(self, event: trace.Elected) -> None:
        leader = self._leader(event.proposer, event.term)
        acceptor = self._serving(event.server, leader)
        self._need(acceptor.term <= event.term, "a deposed leader")
        self._raise_term(acceptor, event.term)
        acceptor.log = acceptor.log.cut(acceptor.log.common_length(leader.log))
        self._acknowledge(leader, event.server, acceptor.log.end)

    def _begin_after(self, event: trace.BeginAfter) -> None:
        """Only over what is committed; no leader counts it as acknowledged before an append."""
        acceptor = self._here(event.server)
        self._need(event.flush_lsn <= self.committed.end, "goes on after what is not committed")
        self._need(event.flush_lsn > acceptor.log.end, "gives up entries that are there")
        acceptor.log = self.committed.cut(event.flush_lsn)

    def _append_entry(self, event: trace.AppendEntry) -> None:
        leader = self._leader(event.proposer, event.term)
        acceptor = self._serving(event.server, leader)
        self._need(acceptor.term == event.term, "an append in another term")
        self._need(event.server in leader.acked, "an append before Elected")
        self._need(event.first_lsn == acceptor.log.end + 1, "a gap or an overlap")
        self._need(event.first_lsn <= event.flush_lsn <= leader.log.end, "entries of nobody")
        common = acceptor.log.common_length(leader.log)
        self._need(common == acceptor.log.end, "an append on top of other entries")
        acceptor.log = leader.log.cut(event.flush_lsn)
        self._acknowledge(leader, event.server, event.flush_lsn)

    def _switch_conf(self, event: trace.SwitchConf) -> None:
        acceptor = self._here(event.server)
        self._known(event.configuration)
        self._need(event.configuration.generation > acceptor.generation, "not a higher one")
        acceptor.configuration = event.configuration
        acceptor.generation = event.configuration.generation

    def _bump_term(self, event: trace.BumpTerm) -> None:
        acceptor = self._here(event.server)
        self._need(event.term > acceptor.term, "a term only grows")
        terms = [term for _, term in self.proposers]
        self._need(event.term <= max(terms, default=0), "a term that nobody ever asked votes for")
        self._raise_term(acceptor, event.term)

    def _pull(self, event: trace.Pull) -> None:
        """Where there is a copy already, the new one has to be ahead of it, and so has all that was
        acknowledged here and is committed. Terms never fall, over deletions too."""
        acceptor = self.acceptors.setdefault(event.server, Acceptor())
        configuration = event.configuration
        self._known(configuration)
        self._need(event.server in configuration.members, "a copy for who is no member")
        self._need(event.donor in configuration.members, "the donor is no member")
        generation = configuration.generation
        if acceptor.here:
            self._need(event.position > acceptor.log.position, "the copy here is as far ahead")
            self._need(generation >= acceptor.generation, "the copy here is of a higher generation")
        else:
            self._need(generation > acceptor.generation, "deleted under that generation")
        copy = self._copied([event.donor], event)
        if copy is None:
            copy = self._following(self.acceptors.get(event.donor, Acceptor()), event)
        if copy is None:
            self._refuse("the donor never had that")
        self._install(acceptor, event, copy)

    def _copied(
        self, donors: Iterable[SafekeeperId], event: trace.Pull | trace.RestartSafekeeper
    ) -> TermLog | None:
        """What one of them had up to that position, at some time and in no higher generation: a
        batch of entries becomes durable file by file, and its beginning is told with its end."""
        end = event.flush_lsn
        for donor in donors:
            moments = self.acceptors.get(donor, Acceptor()).moments
            for (generation, term, _), log in moments.items():
                if generation > event.generation or term > event.term or log.end < end:
                    continue
                if log.cut(end).position == event.position:
                    return log.cut(end)
        return None

    def _following(
        self, acceptor: Acceptor, event: trace.Pull | trace.RestartSafekeeper
    ) -> TermLog | None:
        """What it has by a cut or append of a leader that is durable, and unsaid."""
        for (_, term), leader in self.proposers.items():
            if leader.is_leader and term <= event.term and event.flush_lsn <= leader.log.end:
                found = leader.log.cut(event.flush_lsn)
                kept = acceptor.log.common_length(leader.log)
                if found.position == event.position and event.flush_lsn >= kept:
                    return found
        return None

    def _install(
        self, acceptor: Acceptor, event: trace.Pull | trace.RestartSafekeeper, log: TermLog
    ) -> None:
        acceptor.here = True
        acceptor.generation = event.generation
        acceptor.configuration = self.stored[event.generation]
        acceptor.log = log
        self._raise_term(acceptor, event.term)

    def _exclude(self, event: trace.Exclude) -> None:
        acceptor = self._here(event.server)
        self._known(event.configuration)
        self._need(not event.configuration.is_joint, "deleted within a change")
        self._need(event.server not in event.configuration.sk_set, "deleted from a member")
        higher = acceptor.generation > event.configuration.generation
        self._need(not higher, "deleted under a lower generation than its own")
        self.acceptors[event.server] = Acceptor(
            generation=event.configuration.generation,
            term=acceptor.term,
            moments=acceptor.moments,
        )

    def _restart_safekeeper(self, event: trace.RestartSafekeeper) -> None:
        """All that was told is there; at most one batch more, that a crash kept from being told: a
        switch, a higher term, with a vote or without, a cut or an append of a leader, or a copy."""
        acceptor = self.acceptors.setdefault(event.server, Acceptor())
        self._need(event.generation in self.stored, "a configuration that never was")
        self._need(event.generation >= acceptor.generation, "its configuration was forgotten")
        self._need(event.term >= acceptor.term, "its term was forgotten")
        if event.term == acceptor.term:
            self._need(event.voted_for == acceptor.voted_for, "not the vote of that term")
        elif event.voted_for:
            self._unsaid_vote(acceptor, event)
        if not acceptor.here:
            is_member = event.server in self.stored[event.generation].members
            self._need(is_member, "that safekeeper has no copy")
        is_same = acceptor.here and event.position == acceptor.log.position
        log = acceptor.log if is_same else self._unsaid_log(acceptor, event)
        self._install(acceptor, event, log)
        acceptor.voted_for = event.voted_for

    def _unsaid_vote(self, acceptor: Acceptor, event: trace.RestartSafekeeper) -> None:
        """One that was asked for, of a safekeeper whose configuration was the campaign's. It counts
        for nobody before it is granted again: its answer waited for the line."""
        self._need(acceptor.here, "a copy brings no vote")
        campaign = self._proposer(event.voted_for, event.term).configuration
        was_its_own = acceptor.generation <= campaign.generation <= event.generation
        self._need(was_its_own, "a vote of another generation")
        self._need(event.server in campaign.members, "a vote of who is not a member")

    def _unsaid_log(self, acceptor: Acceptor, event: trace.RestartSafekeeper) -> TermLog:
        followed = self._following(acceptor, event) if acceptor.here else None
        if followed is not None:
            return followed
        if not acceptor.here and event.generation == 1 and event.flush_lsn == 0:
            return TermLog()
        is_ahead = not acceptor.here or event.position > acceptor.log.position
        may_be_copy = is_ahead and event.is_pulled
        copy = self._copied(list(self.acceptors), event) if may_be_copy else None
        if copy is None:
            self._refuse("its log is not what was durable")
        return copy

    # ---- proposers -------------------------------------------------------------------------

    def _restart_proposer(self, event: trace.RestartProposer) -> None:
        self._need(event.generation in self.stored, "a configuration that never was")
        self._need(event.term > 0, "term 0 is nobody's")
        earlier = self.proposers.get((event.server, event.term))
        self._need(earlier is None or not earlier.is_leader, "a campaign in a term it has won")
        campaign = Proposer(self.stored[event.generation], event.term)
        self.proposers[event.server, event.term] = campaign

    def _become_leader(self, event: trace.BecomeLeader) -> None:
        campaign = self._proposer(event.server, event.term)
        self._need(event.generation == campaign.configuration.generation, "other configuration")
        self._need(not campaign.is_leader, "elected twice")
        self._need(set(event.voters) <= set(campaign.votes), "a vote that nobody gave")
        self._need(campaign.configuration.agreed(event.voters), "too few votes")
        winner = self.won.setdefault(event.term, event.server)
        self._need(winner == event.server, f"ElectionSafety: {winner} has won that term")
        best = max((campaign.votes[voter] for voter in event.voters), key=lambda log: log.position)
        told = LogPosition(event.last_log_term, event.flush_lsn)
        if told > best.position:
            best = self._own_log(event.server, told) or best
        self._need(told == best.position, f"the best log of the votes is at {best.position}")
        campaign.is_leader, campaign.log = True, best
        campaign.votes.clear()

    def _own_log(self, life: str, told: LogPosition) -> TermLog | None:
        """Who led before goes on with its own log, if that is ahead of those of its voters."""
        for (server, _), earlier in self.proposers.items():
            if server == life and earlier.is_leader and told.flush_lsn <= earlier.log.end:
                found = earlier.log.cut(told.flush_lsn)
                if found.position == told:
                    return found
        return None

    def _new_entry(self, event: trace.NewEntry) -> None:
        leader = self._leader(event.server, event.term)
        self._need(event.last_lsn > leader.log.end, "the log did not grow")
        leader.log = leader.log.extended(event.term, event.last_lsn)

    def _commit(self, event: trace.Commit) -> None:
        leader = self._leader(event.server, event.term)
        self._need(event.generation == leader.configuration.generation, "other configuration")
        self._need(event.commit_lsn <= leader.commit_lsn, f"agreed is only {leader.commit_lsn}")

    def _acknowledge(self, leader: Proposer, safekeeper: SafekeeperId, end: int) -> None:
        """Entries are committed from here on, whether the leader looks or not (CommitEntries)."""
        leader.acked[safekeeper] = end
        leader.count()
        lsn = leader.commit_lsn
        agreed = min(lsn, self.committed.end)
        unchanged = leader.log.common_length(self.committed) >= agreed
        self._need(unchanged, "CommittedOnce: other entries are committed there")
        if lsn > self.committed.end:
            self.committed = leader.log.cut(lsn)

    # ---- migrators -------------------------------------------------------------------------

    def _collect(self, event: trace.Collect) -> None:
        work = self._work(event)
        self._need(event.safekeeper in work.configuration.sk_set, "not in the old set")
        position = self._answered(event)
        work.heard.add(event.safekeeper)
        work.position = max(work.position, position)
        work.term = max(work.term, event.term)

    def _confirm(self, event: trace.Confirm) -> None:
        work = self._work(event)
        self._need(work.collected, "step 7 before step 4 is done")
        self._need(event.safekeeper in (work.configuration.new_sk_set or ()), "not in the new set")
        position = self._answered(event)
        self._need(position >= work.position, f"has not reached sync_position {work.position}")
        self._need(event.term >= work.term, f"has not reached sync_term {work.term}")
        work.confirmed.add(event.safekeeper)

    def _work(self, event: trace.Collect | trace.Confirm) -> Migrator:
        self._need(event.generation in self.stored, "a configuration that never was")
        configuration = self.stored[event.generation]
        self._need(configuration.is_joint, "nothing to migrate in that generation")
        work = self.migrators.setdefault(event.server, Migrator(configuration))
        self._need(work.configuration == configuration, "a migrator does one change at a time")
        return work

    def _answered(self, event: trace.Collect | trace.Confirm) -> LogPosition:
        """The answer tells of some moment at which the safekeeper had the joint configuration."""
        position = LogPosition(event.last_log_term, event.flush_lsn)
        moments = self.acceptors.get(event.safekeeper, Acceptor()).moments
        told = (event.generation, event.term, position)
        self._need(told in moments, "the safekeeper never was there in that generation")
        return position

    # ---- what is needed --------------------------------------------------------------------

    def _committed_is_held(self) -> None:
        """CommittedHeldBy: a majority of the set that counts has all that is committed."""
        end = self.committed.end
        holders = [
            safekeeper
            for safekeeper, acceptor in self.acceptors.items()
            if acceptor.here and acceptor.log.common_length(self.committed) == end
        ]
        held = not end or has_majority(self.current.sk_set, holders)
        self._need(held, f"CommittedHeldBy: only {holders} have all committed entries")

    def _here(self, safekeeper: SafekeeperId) -> Acceptor:
        acceptor = self.acceptors.get(safekeeper)
        if acceptor is None or not acceptor.here:
            self._refuse("that safekeeper has no copy")
        return acceptor

    def _serving(self, safekeeper: SafekeeperId, proposer: Proposer) -> Acceptor:
        """Requests are carried out in the same generation, and by members."""
        acceptor = self._here(safekeeper)
        self._need(acceptor.configuration == proposer.configuration, "another generation")
        self._need(safekeeper in proposer.configuration.members, "not a member")
        return acceptor

    def _proposer(self, life: str, term: int) -> Proposer:
        proposer = self.proposers.get((life, term))
        if proposer is None:
            self._refuse(f"{life} never asked for votes in term {term}")
        return proposer

    def _leader(self, life: str, term: int) -> Proposer:
        proposer = self._proposer(life, term)
        self._need(proposer.is_leader, f"{life} has not won term {term}")
        return proposer

    def _known(self, configuration: TimelineConfiguration) -> None:
        stored = self.stored.get(configuration.generation)
        self._need(stored == configuration, "a configuration that never was in the store")

    def _raise_term(self, acceptor: Acceptor, term: int) -> None:
        if term > acceptor.term:
            acceptor.term, acceptor.voted_for = term, ""

    def _need(self, holds: bool, reason: str) -> None:
        if not holds:
            self._refuse(reason)

    def _refuse(self, reason: str) -> NoReturn:
        assert self._event is not None
        raise NotInModelError(self._event, reason)
