"""Protections of `coordinator`, and of who is avoided: owners, backups, choosers, and room."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_UNIT = "tests/unit/coordinator"
_OWNERS = (f"{_UNIT}/test_failed_owners.py",)
_DEATHS = (f"{_UNIT}/test_owner_deaths.py",)
_MOVES = (f"{_UNIT}/test_planned_moves.py",)
_GROUPS = (
    f"{_UNIT}/groups/test_transfers.py",
    f"{_UNIT}/groups/test_replacements.py",
    f"{_UNIT}/groups/test_group_creation.py",
)
_INDEXES = (f"{_UNIT}/test_indexes.py",)
_SIZES = (f"{_UNIT}/placement/test_tablet_sizes.py", f"{_UNIT}/placement/test_splitting.py")

MUTANTS = [
    *mutants_of(
        "coordinator/backoff/owners.py",
        _OWNERS,
        [
            ("return self.unsettled_at < old and all(", "return self.unsettled_at < old or all("),
            ("and all(s.until < old for s in", "and all(True for s in"),
            ("            known.count = max(known.count, failures.count)\n", ""),
            ("known.servers[uuid] = replace(each)", "known.servers[uuid] = each"),
        ],
    ),
    *mutants_of(
        "coordinator/backoff/owners.py",
        _DEATHS,
        [
            (
                "            if known is not None and known.term == term:\n",
                "            if True:\n",
            ),
            ("            failures.deaths += 1\n", ""),
            ("            _failed_at(failures, server, now)\n            if", "            if"),
            ("DEATH_PAUSE_S, times, LONGEST_DEATH_PAUSE_S)", "DEATH_PAUSE_S, 0, 600.0)"),
            ("pause_s * (1 + number / len(suspects))", "pause_s"),
            ("self._doubted.failed(suspects[0], server, now)", "pass"),
            (
                "        if suspects:  # rule 11\n",
                "        for each in suspects:\n            self._doubted.failed(each, server, now)\n"
                "        if suspects:\n",
            ),
            ("            failures.deaths = 0\n", "            pass\n"),
            ("            if known.deaths < failures.deaths:\n", "            if False:\n"),
            (
                "if each.seen_at < old]:\n            del self._opening",
                "if False]:\n            del self._opening",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/decide.py",
        _DEATHS,
        [
            ("                self._note_death(run)\n", ""),
            (
                "        if seen is None or not seen.heartbeat.ends_by_order:\n",
                "        if True:\n",
            ),
            ("elif not self._pacing.owners.may_open(tablet.tablet_id, self._now):", "elif False:"),
            ("report.term == tablet.term and has_all_rows(report):", "has_all_rows(report):"),
            ("report.term == tablet.term and has_all_rows(report):", "report.term == tablet.term:"),
        ],
    ),
    *mutants_of(
        "coordinator/backoff/transfers.py",
        _GROUPS,
        [
            ("        if not same:", "        if True:"),
            ("KnownFailures(self.avoid, self._failed.doubted())", "KnownFailures(self.avoid)"),
            (" or isinstance(error, OutcomeUnknown):", ":"),
            (" and error.args[0] == TRANSFER_ATTEMPT:", ":"),
            ("elif term > order.term or heard_at", "elif heard_at"),
            ("heard_at >= order.told_at + TRANSFER_S:", "now >= order.told_at + TRANSFER_S:"),
            ("            if leader == order.target:\n", "            if False:\n"),
        ],
    ),
    *mutants_of(
        "coordinator/decide.py",
        (*_OWNERS, f"{_UNIT}/groups/test_group_creation.py"),
        [
            ("            avoid[uuid] = math.inf  #", "            pass  #"),
            ("        self._pacing.owners.told(tablet.tablet_id)  #", "        pass  #"),
            (
                "            self._pacing.owners.unsettled(tablet_id, self._now)\n",
                "            pass\n",
            ),
            ("            pacing.owners.inherit(old.tablet_id, [new.tablet_id], now)\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/decide_indexes.py",
        _INDEXES,
        [
            ("if not ranges or not self._failed.may_move(name, now):", "if not ranges:"),
            ("o is not None and now >= avoid.get(o.uuid, now))", "o is not None)"),
            ("        if closed and self._failed", "        if False and self._failed"),
            (
                "            failed = [each.server.uuid for each in closed]\n",
                "            failed = []\n",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/groups/healing.py",
        (f"{_UNIT}/groups/test_transfers.py", f"{_UNIT}/groups/test_healing.py"),
        [
            ("and self.now >= (voter.refused_until or self.now)", ""),
            (
                "min(good, key=lambda voter: voter.refused_until or 0.0, default",
                "min(good, key=lambda voter: 0, default",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/groups/replacements.py",
        _GROUPS,
        [
            ("is_broken or is_lost or is_vain or move", "is_broken or is_lost or move"),
            ("        return count > first[1]\n", "        return count > 0\n"),
            ("                self._doubted.succeeded(uuid)\n", ""),
            ("        self._doubted.failed(tablet_id, uuid, now)\n", ""),
            ("load = self.spare(wanted.group, busy)", "load = self.spare(wanted.group)"),
            ("in self._additions.doubted() if not self._may_receive(u)]", "in self._full]"),
            ("if not self._may_receive(u)]", "]"),
        ],
    ),
    *mutants_of(
        "coordinator/decide_groups.py",
        (*_GROUPS, f"{_UNIT}/groups/test_group_balance.py"),
        [
            (
                "failed = self._additions.known_failures(),",
                "failed = self._additions.known_failures()._replace(doubted={}),",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/placement/rebalance.py",
        (f"{_UNIT}/placement/test_doubted.py",),
        [("is_not_doubted, both(is_untried, may_go), may_go", "is_not_doubted, may_go")],
    ),
    *mutants_of(
        "coordinator/placement/doubted.py",
        (f"{_UNIT}/placement/test_doubted.py",),
        [
            ("elif doubt.times or doubt.first != key:", "else:"),
            ("elif doubt.times or doubt.first != key:", "elif doubt.first != key:"),
            ("            doubt.times += 1\n", "            doubt.times = 1\n"),
            ("        self._doubts.pop(server, None)\n", "        pass\n"),
            ("if each.until < old]", "if each.until < now]"),
            (
                "for server, each in self._doubts.items() if each.times}",
                "for server, each in self._doubts.items()}",
            ),
            ("now >= own_until and now >= self.doubted.get(server, now)", "now >= own_until"),
            (
                "now >= own_until and now >= self.doubted.get(server, now)",
                "now >= self.doubted.get(server, now)",
            ),
            (
                "return -self.own(tablet_id).get(server, 0.0), -self.doubted.get(server, 0.0)",
                "return -self.doubted.get(server, 0.0), -self.own(tablet_id).get(server, 0.0)",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/groups/spreading.py",
        _GROUPS,
        [
            ("both(known.may_take, may_lead)", "known.may_take"),
            (
                "next_move(tablets, nodes, rooms, may_take=may_hold)",
                "next_move(tablets, nodes, rooms)",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/groups/spreading.py",
        (f"{_UNIT}/groups/test_group_balance.py",),
        [
            ("both(may_hold, layout.has_room)", "may_hold"),
            ("load.room_bytes for load in loads}", "load.memory_limit_bytes for load in loads}"),
        ],
    ),
    *mutants_of(
        "coordinator/moves/relief.py",
        _MOVES,
        [
            ("if size_bytes <= room_bytes and failures", "if failures"),
            (" and failures.may_go(tablet_id, uuid, now)\n", "\n"),
        ],
    ),
    *mutants_of(
        "coordinator/moves/evening.py",
        _MOVES,
        [("may_take=both(may_take, has_not_failed))", "may_take=may_take)")],
    ),
    *mutants_of(
        "coordinator/moves/planned_moves.py",
        _MOVES,
        [
            ("        elif departures.is_late(now):\n", "        elif False:\n"),
            ("        departures.hold(now)\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/decide.py",
        _MOVES,
        [
            ("KnownFailures(owners.avoid, owners.doubted())", "KnownFailures(owners.avoid)"),
            ("            self._pacing.owners.opened(tablet.owner)\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/backoff/owners.py",
        _MOVES,
        [
            ("            self._doubted.failed(tablet_id, server, now)\n", ""),
            (
                '(rule 5)."""\n        self._doubted.succeeded(server)\n',
                '(rule 5)."""\n',
            ),
        ],
    ),
    *mutants_of(
        "coordinator/placement/assignment.py",
        _SIZES,
        [
            ("load.is_full or (size_bytes > 0 and size_bytes > load.room_bytes)", "load.is_full"),
            ("        load.coming_bytes += size_bytes\n", ""),
            ("(self.live_bytes or self.memory_bytes) + self.coming_bytes", "self.memory_bytes"),
        ],
    ),
    *mutants_of(
        "coordinator/placement/tablet_sizes.py",
        _SIZES,
        [
            ("_Size(max(self.of(tablet_id), size_bytes), now)", "_Size(size_bytes, now)"),
            (" and said.term == tablet.term else 0", " else 0"),
            ("if tablet_id in kept or now < size", "if now < size"),
        ],
    ),
    *mutants_of(
        "coordinator/placement/splitting.py",
        _SIZES,
        [("dict.fromkeys(ids, avoid), dict", "{}, dict")],
    ),
    *mutants_of(
        "coordinator/backoff/complaints.py",
        _OWNERS,
        [
            ("(MISSED_WHILE_SERVED if serves else 1)", "1"),
            ("(MISSED_WHILE_SERVED if serves else 1)", "MISSED_WHILE_SERVED"),
            ("for each in set(unreached))", "for each in unreached)"),
            ("or not self._tservers - {owner}:", "or False:"),
            ("return not wait and not avoid and server not in self._shunned", "return not avoid"),
            ("return not wait and not avoid and server not in self._shunned", "return not wait"),
            ("return not wait and not (avoid and server in self._shunned)", "return not wait"),
            (
                "return not wait and not (avoid and server in self._shunned)",
                "return not (avoid and server in self._shunned)",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/backoff/owners.py",
        _OWNERS,
        [
            (
                "if known is None or known.term != term:\n            known = _Waiting",
                "if known is None:\n            known = _Waiting",
            ),
            ("doubled_s(PATIENCE_S, times, LONGEST_PATIENCE_S)", "PATIENCE_S"),
            (
                "known is not None and known.term == term and self._is_over",
                "known is not None and self._is_over",
            ),
            ("known is not None and known.term == term else", "known is not None else"),
            ("self._waited, self._waiting = self._waiting, {}", "self._waited = self._waiting"),
        ],
    ),
    *mutants_of(
        "coordinator/decide.py",
        (*_OWNERS, "tests/unit/coordinator/test_decide.py"),
        [
            (
                "            if tablet.may_be_served:  # it answers by its lease, until it has closed it\n",
                "            if False:\n",
            ),
            (
                "if tablet.state is TabletState.CREATING or not report.unreached:",
                "if not report.unreached:",
            ),
            (
                "            avoid[uuid] = math.inf  # the last of all: the pause begins with the entry of this move\n",
                "            pass\n",
            ),
            (
                "elif reason := self._pacing.owners.given_up(tablet.tablet_id, tablet.term):",
                'elif reason := "":',
            ),
            (
                "if self._pacing.owners.is_untold(tablet.tablet_id, tablet.term, self._now):",
                "if False:",
            ),
            ("if self._pacing.owners.may_move(tablet.tablet_id, self._now):", "if True:"),
        ],
    ),
    *mutants_of(
        "coordinator/liveness/shunned_backups.py",
        ("tests/unit/coordinator/placement/test_shunned_backups.py",),
        [
            ("if 2 * len(who) > len(tservers)", "if 2 * len(who) >= len(tservers)"),
            (
                "if uuid in self._shunned_at or now >= since + after_s:",
                "if now >= since + after_s:",
            ),
            ("if uuid in self._shunned_at or now >= since + after_s:", "if True:"),
            ("if now < last + after_s}", "if now <= last}"),
        ],
    ),
    *mutants_of(
        "coordinator/placement/returning_backups.py",
        (f"{_UNIT}/placement/test_returning_backups.py",),
        [
            ("uuid in lost and not each.is_lost\n", "uuid in lost\n"),
            ("doubled_s(after_s, each.losses - 1, longest_s)", "after_s"),
            ("longest_s = max(after_s, LONGEST_WAIT_S)", "longest_s = LONGEST_WAIT_S"),
            ("                each.present_since = None\n", "                pass\n"),
            ("if now >= since + FORGOTTEN_WAITS * longest_s:", "if now >= since + longest_s:"),
            ("if now >= since + FORGOTTEN_WAITS * longest_s:", "if False:"),
            (
                "for uuid, each in self._known.items() if uuid in counted_on}",
                "for uuid, each in self._known.items()}",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/placement/copysets.py",
        (f"{_UNIT}/placement/test_returning_backups.py",),
        [
            ("for server in free if server.uuid not in left_out]", "for server in free]"),
            ("    if groups or len(steady)", "    if len(steady)"),
            ("key=lambda server: left_out.index(server.uuid),", "key=lambda server: server.uuid,"),
            ("back[: size - len(steady)]", "back"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/avoided.py",
        ("tests/unit/actors/tserver/segments/test_avoided.py",),
        [
            (
                "        if now >= known.until:  # several segments learn of one failure\n",
                "        if True:\n",
            ),
            ("if each.count > 1 and each.until > old]", "if each.until > old]"),
            ("if each.count > 1 and each.until > old]", "if each.count > 1]"),
            (
                "        self._known = {uuid: each for uuid, each in self._known.items() if each.until > old}\n",
                "",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/timelines/placement.py",
        (f"{_UNIT}/timelines/test_safekeeper_records.py",),
        [
            (
                "lost = [r for r in registry.safekeepers.values() if r.name == name and r.successor is None]",
                "lost: list[SafekeeperRecord] = []",
            ),
            ("if r.name == name and r.successor is None]", "if r.successor is None]"),
            ("name=name, node=node, successor=None)", "name=name, node=node)"),
            ("    while record.successor is not None:\n", "    if record.successor is not None:\n"),
            (
                "if any(liveness.live_server(s.uuid, now) for s in _successors(registry, record)):",
                "if record.successor is not None:",
            ),
            (
                "status = SafekeeperStatus.DECOMMISSIONED\n        newest",
                "pass\n        newest",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/timelines/placement.py",
        (f"{_UNIT}/timelines/test_timeline_duties.py",),
        [
            ("failed = avoid[number] if avoid else ()", "failed = avoid[0] if avoid else ()"),
            ("silence_s, last)\n", "silence_s)\n"),
        ],
    ),
    *mutants_of(
        "coordinator/decide.py",
        _OWNERS,
        [
            (
                "return (tablet.owner, *unreached) if tablet.owner",
                "return (tablet.owner,) if tablet.owner",
            ),
            (
                "                avoid=avoid,\n            )\n        except",
                "            )\n        except",
            ),
        ],
    ),
    *mutants_of(
        "coordinator/ddl/succession.py",
        (f"{_UNIT}/ddl/test_succession_rooms.py",),
        [
            (
                "look.timelines(wanted, [look.pacing.targets.avoid(tablet.tablet_id)])",
                "look.timelines(wanted, [{}])",
            ),
            ("        return look.to_blame(successor)\n", "        return holders_of(successor)\n"),
            (
                "    if report is None or _is_loading(report):\n        return ()\n    if succ",
                "    if succ",
            ),
            (
                "return holders_of(successor) if said is not None and said.lacks_room else ()",
                "return ()",
            ),
        ],
    ),
]
