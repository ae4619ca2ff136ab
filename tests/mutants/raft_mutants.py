"""Protections of `consensus/raft` and `actors/raft`."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_UNIT = "tests/unit/consensus/raft"
_LIVES = (f"{_UNIT}/test_random_cluster.py", "tests/golden/test_raft_conversations.py")
_FILES = (
    "tests/unit/actors/raft/test_log_note.py",
    "tests/simulation/raft/test_replica.py",
)

_SHELL = "tests/unit/actors/raft"
_TURNS = (f"{_SHELL}/test_begun_turn.py", "tests/simulation/raft/test_replica.py")

MUTANTS = [
    *mutants_of(
        "consensus/raft/leader.py",
        _LIVES,
        [
            ("return self.settled and now_us < self.lease_until_us()", "return self.settled"),
            (
                "return self.settled and now_us < self.lease_until_us()",
                "return now_us < self.lease_until_us()",
            ),
            ("return self._log.term_at(index) == self.term", "return True"),
            ("        elif self.settled:\n", "        elif True:\n"),
            (
                "(self._round + 1, request, self._log.commit_index))\n        self._heartbeat",
                "(0, request, self._log.commit_index))\n        self._heartbeat",
            ),
            ("return count >= majority(len(voters))", "return True"),
        ],
    ),
    *mutants_of(
        "consensus/raft/leader.py",
        (f"{_UNIT}/test_written_beside.py",),
        [
            (
                "        reached[self.uuid] = self._log.stable_index",
                "        reached[self.uuid] = self._log.last_index",
            ),
        ],
    ),
    *mutants_of(
        "consensus/raft/leader.py",
        (f"{_UNIT}/test_membership.py", f"{_UNIT}/test_random_bugs.py", *_LIVES),
        [
            (
                "        if not self.settled:\n            raise TabletNotReady",
                "        if False:\n            raise TabletNotReady",
            ),
            ("if committed.op_id != self.configuration.op_id:", "if False:"),
            ("if expected is not None and expected != committed.op_id:", "if False:"),
            (
                "if change.kind is ChangeKind.PROMOTE and not self.has_caught_up(change.uuid):",
                "if False:",
            ),
            ("if progress.match_index < self._first_index:", "if False:"),
            ("        if len(heard) < majority(len(voters)):", "        if False:"),
            ("if len(self._early_reads) + pending >= limit:", "if False:"),
        ],
    ),
    *mutants_of(
        "consensus/raft/raft.py",
        (*_LIVES, f"{_UNIT}/test_written_beside.py"),
        [
            ("        if message.term < self.term:\n", "        if False:\n"),
            ("if request.transfer or not leader_alive:", "if True:"),
            ("granted = granted and holds_enough(request, self.end_of_log)", "granted = granted"),
            ("            self.voted_for = request.source\n", "            pass\n"),
            (
                "            self.term, self.voted_for = term, None\n",
                "            self.term = term\n",
            ),
            (
                "if response.granted and response.term != self.term + int(response.pre):",
                "if False:",
            ),
            ("if leader is None or not self.log.matches(op_id):", "if leader is None:"),
            ("            self.log.handed_index = self.log.stable_index\n", "            pass\n"),
            (
                "if not message.term == self.term == durable.term or self.leader_uuid != message.source:",
                "if False:",
            ),
            ("        if self.log.last < self.end_of_log:\n            return False\n", ""),
        ],
    ),
    *mutants_of(
        "consensus/raft/follower.py",
        (f"{_UNIT}/test_log_view.py", *_LIVES),
        [
            ("    elif log.matches(request.previous):", "    elif True:"),
            ("index = min(log.commit_index, log.stable_index)", "index = log.last.index"),
            (
                "        index = log.merge(request.previous, request.entries)\n        log.commit_to(min(request.commit_index, index))",
                "        index = log.merge(request.previous, request.entries)\n        log.commit_to(min(request.commit_index, log.last.index))",
            ),
            ("if request.offset == len(self._data) and fits:", "if fits:"),
            (
                "if request.offset == len(self._data) and fits:",
                "if request.offset == len(self._data):",
            ),
            ("if len(self._data) < request.size_bytes:", "if False:"),
        ],
    ),
    *mutants_of(
        "consensus/raft/progress.py",
        (f"{_UNIT}/test_silent_followers.py", *_LIVES),
        [
            ("return is_full or len(self._inflight) >= self._inflight_max", "return is_full"),
            ("is_full = self._inflight_bytes >= self._inflight_bytes_max", "is_full = False"),
        ],
    ),
    *mutants_of(
        "consensus/raft/membership.py",
        (f"{_UNIT}/test_membership.py",),
        [
            (
                "        if known is not None:\n            raise",
                "        if False:\n            raise",
            ),
            ("        if not change.address:", "        if False:"),
            ("        if configuration.voters == (change.uuid,):", "        if False:"),
            ("    if known is None:\n        raise", "    if False:\n        raise"),
            ("    if known.voter:", "    if False:"),
            ("change.address, False, change.name)", "change.address, True, change.name)"),
        ],
    ),
    *mutants_of(
        "consensus/raft/election.py",
        (f"{_UNIT}/test_taken_back.py", *_LIVES),
        [
            ("self.quiet_ticks, self.taken_back = 0, None", "self.quiet_ticks = 0"),
            (
                "self.quiet_ticks = 0 if not is_new else settings.election_ticks",
                "self.quiet_ticks = settings.election_ticks",
            ),
            ("end.term == gone.term and end.index >= gone.index", "end.index >= gone.index"),
            ("end.term == gone.term and end.index >= gone.index", "end.term == gone.term"),
        ],
    ),
    *mutants_of(
        "consensus/raft/tombstone.py",
        (f"{_UNIT}/test_tombstone.py",),
        [
            ("    if request.transfer or quiet:", "    if True:"),
            (
                "granted = last is not None and may_vote(request, kept) and holds_enough(request, last)",
                "granted = last is not None and may_vote(request, kept)",
            ),
            ("        kept = TermAndVote(kept.term, request.source)\n", "        pass\n"),
            ("        return kept.voted_for == request.source\n", "        return True\n"),
            ("message.term < kept.term:", "False:"),
        ],
    ),
    *mutants_of(
        "actors/raft/storage.py",
        _FILES,
        [
            (
                "            if await self._disk.list(self._log_folder):\n",
                "            if False:\n",
            ),
            ("if entries and entries[-1].term > self._term_and_vote.term:", "if False:"),
            ("        if max(last, covered) < noted:", "        if False:"),
            ("                file.truncate(decoded.end)\n", "                pass\n"),
            ("if entries and entries[0].index > covered + 1:", "if False:"),
            (
                "        await self._files[-1].file.sync()\n        self._is_durable(entries)",
                "        self._is_durable(entries)",
            ),
            ("        if not newest.file.sync_at_once():\n            return False\n", ""),
            (
                "            if entries[0].index <= self._durable_index:\n                await self._cut(entries[0].index)\n",
                "",
            ),
            (
                "            newest.file.truncate(newest.end)\n            await newest.file.sync()\n            del",
                "            newest.file.truncate(newest.end)\n            del",
            ),
        ],
    ),
    *mutants_of(
        "actors/raft/durable_mark.py",
        _FILES,
        [
            (
                "            await file.sync()\n            self._highest = index",
                "            self._highest = index",
            ),
            ("            for _ in range(2):\n", "            for _ in range(1):\n"),
        ],
    ),
    *mutants_of(
        "actors/raft/requests.py",
        (f"{_SHELL}/test_replica_requests.py",),
        [
            ("        if size_bytes > self._queue_bytes:", "        if False:"),
            ("        if self._bytes + size_bytes > self._queue_bytes:", "        if False:"),
            ("            self._bytes -= proposal.size_bytes\n", ""),
            (
                "_grouped([p for p in queue.values() if not p.future.done()])",
                "_grouped(list(queue.values()))",
            ),
            (
                "        if len(self._reads_waiting) > 2 * len(self._reads) + FORGOTTEN_READS_MAX:",
                "        if False:",
            ),
        ],
    ),
    *mutants_of(
        "actors/raft/host.py",
        (f"{_SHELL}/test_raft_host.py",),
        [
            ("        if not box.is_due and box.calls < CALLS_MAX:", "        if not box.is_due:"),
            ("deque(maxlen=BOX_MAX)", "deque()"),
            ("count = min(len(box.waiting), MAIL_MAX)", "count = len(box.waiting)"),
            (
                "                    if self._members.get(group_id) is member:\n",
                "                    if True:\n",
            ),
            ("                sender.undelivered(uuid, None)\n", "                pass\n"),
            (
                "senders[refused.group_id].undelivered(uuid, refused.state)",
                "senders[refused.group_id].undelivered(uuid, None)",
            ),
        ],
    ),
    *mutants_of(
        "actors/raft/links.py",
        (f"{_SHELL}/test_replica_links.py",),
        [
            ("        if len(self.outbox) >= OUTBOX_MAX:", "        if False:"),
            (" or len(link.calls) >= CALLS_MAX:", ":"),
            (" or link.posts >= POSTS_MAX:", ":"),
            ("        if _content_bytes(message) > POST_BYTES:", "        if False:"),
            (
                "while outbox and (not batch or size_bytes + _content_bytes(outbox[0]) <= BATCH_BYTES):",
                "while outbox:",
            ),
        ],
    ),
    *mutants_of(
        "actors/raft/log_writer.py",
        (f"{_SHELL}/test_log_writer.py", f"{_SHELL}/test_begun_turn.py"),
        [
            ("            self._failure = error\n            return ()\n", "            pass\n"),
            (
                "            self._failure = error\n            return ()\n",
                "            return ()\n",
                "after one failed sync every later one of that file fails as well",
            ),
            (
                "            if not self._waiting:\n                self._idle.set()",
                "            self._idle.set()",
            ),
        ],
    ),
    *mutants_of(
        "actors/raft/loop.py",
        _TURNS,
        [
            (
                "        self._is_stopped = self._begun.has_failed\n",
                "",
                "the loop is due, so nothing is stepped, and it ends with the failure",
            ),
            ("core.leader is not None and ready.term_and_vote is None", "core.leader is not None"),
            ("self._finish(core, ready, is_written=not leads)", "self._finish(core, ready)"),
            (
                "            await self._storage.save(ready.term_and_vote, ready.snapshot, ready.entries)\n        self._links.send(ready.messages)\n",
                "            self._links.send(ready.messages)\n            await self._storage.save(ready.term_and_vote, ready.snapshot, ready.entries)\n        else:\n            self._links.send(ready.messages)\n",
            ),
        ],
    ),
]
