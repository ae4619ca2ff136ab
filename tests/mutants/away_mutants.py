"""Protections of servers that are started elsewhere: who may be, the fence, and the empty folder."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_DECIDED = ("tests/unit/coordinator/apply/test_away.py",)
_BY_HAND = ("tests/unit/coordinator/apply/test_replaces.py",)
_HAND_SHELL = ("tests/unit/stelae/test_replace_one.py",)
_STOPPED = ("tests/unit/coordinator/apply/test_stops.py",)
_ONE_SERVER = ("tests/unit/stelae/test_one_server.py",)
_FENCE = ("tests/unit/coordinator/ddl/test_replacement.py",)
_FENCED = ("tests/simulation/nodes/test_replaced_servers.py",)
_HELD = ("tests/simulation/recovery/test_lost_backups.py",)
_REFUSED = ("tests/unit/actors/test_refused_servers.py",)
_AROUND = ("tests/unit/serve/test_around.py",)
_SHELL = ("tests/unit/stelae/test_replacing.py",)

MUTANTS = [
    *mutants_of(
        "stelae/spec_host.py",
        ("tests/unit/stelae/test_spec_operations.py",),
        [
            ("(place.waits and not is_same) or", "place.waits or"),
            ("or (takes_back and is_same)", "or takes_back"),
            ("return self.may_wait and not self.has_turn", "return self.may_wait"),
            ("return self.may_wait and not self.has_turn", "return False"),
            ('takes_back=verb == "retire" and options["cancel"]', 'takes_back=verb == "retire"'),
            ("if len(waiting) >= WAITING_AT_ONCE:", "if False:"),
            ("if each.state != RUNNING]\n        for", "]\n        for"),
        ],
    ),
    *mutants_of(
        "serve/gateway/around.py",
        _AROUND,
        [
            ("        except Exception as error:", "        except StelaeError as error:"),
            ("begins = self._asking is None and", "begins ="),
            ('"stopped": [], "away": {**_NOBODY, "problem": text}', '"away": {"problem": text}'),
            ("        if age_s <= OLDEST_S:\n", "        if True:\n"),
            ("timeout=max(0.0, left_s)", "timeout=left_s + 3600.0"),
        ],
    ),
    *mutants_of(
        "actors/ray_host/host.py",
        ("tests/unit/actors/ray_host/test_hosts.py",),
        [
            (
                "        except ValueError:  # it ended since",
                "        except OSError:  # it ended since",
            )
        ],
    ),
    *mutants_of(
        "coordinator/apply/away.py",
        _DECIDED,
        [
            ("known.get(name, now) for name", "now for name"),
            ("before if now - looked_at <= LOOK_GAP_S else {}", "before"),
            ("    if left_s > 0.0:\n", "    if False:\n"),
            ("is not True:\n", "is False:\n"),
            ('if any(each.get("state") == "live" for each in known):', "if False:"),
            ("    if not known:\n", "    if False:\n"),
            ("    if look.replace_after_s is None:\n", "    if False:\n"),
            ('if each["state"] != "live"]\n    unheard', "if False]\n    unheard"),
            (
                'stays away"\n    return Verdict(name, Next.MOVE, away, _uuids_of(known))',
                'stays away"\n    return Verdict(name, Next.MOVE, away, _uuids_of(known[:1]))',
            ),
            (
                "*known_as(look.status, name), *_unheard(look, name)]",
                "*known_as(look.status, name)]",
            ),
            ("    if is_unknown(look.status, _uuids_of(known)):\n", "    if False:\n"),
            ("    if _why_not(look, name, unheard):\n", "    if False:\n"),
            ("    if _why_not(look, name, unheard):\n", "    if True:\n"),
            ("    if why := _why_stuck(look, name):\n", "    if why := None:\n"),
            ("for name in half if not _why_stuck(look, name)]", "for name in half]"),
            (" or look.starting_s.get(name, 0.0) >= START_LIMIT_S\n", "\n"),
            ('    if any(each.get("maintenance") for each in known):', "    if False:"),
            ('if any(e.get("retiring") or', "if any("),
            (' or e.get("status") == "decommissioned" for', " for"),
            ("    if half:\n        return", "    if False:\n        return"),
            ('and not each["successor"] for each', "for each"),
            ("    if name not in look.there:\n", "    if False:\n"),
            ("    if starting_s >= START_LIMIT_S:", "    if False:"),
            ("    if machine in look.away_s:\n", "    if False:\n"),
            ("if (each.name, each.next) in look.paused", "if False"),
            (", _uuids_away(look))", ")"),
            ("each if each is first or each.next is Next.WAIT else", "each if True else"),
        ],
    ),
    *mutants_of(
        "coordinator/apply/replaces.py",
        (*_BY_HAND, *_DECIDED),
        [
            ('return "" if kept.store_moves else', 'return "" if True else'),
            ('        if tablet["state"] != "running":\n', "        if False:\n"),
            ('        if not tablet["reported"]:\n', "        if False:\n"),
            ('        if tablet["loaded"] < 1.0:\n', "        if False:\n"),
            ('        if tablet.get("inherits"):\n', "        if False:\n"),
            ('        if tablet["segments_lacking"]:\n', "        if False:\n"),
            ('        if shortage["segments_unheld"]:\n', "        if False:\n"),
            ('if status["shortages"] and len(', "if False and len("),
            (" and len(backups) >= kept.copies:", ":"),
            ("    if kept.has_lone_blobs:\n        return", "    if False:\n        return"),
            ("    if look.kept.has_lone_blobs:\n        yield", "    if False:\n        yield"),
            ('    if look.status.get("heard_all") is not True:  # R1\n', "    if False:\n"),
            (
                '    if look.status.get("heard_all") is not True:  # R1\n',
                '    if look.status.get("heard_all") is False:\n',
            ),
            (
                "    if not look.has_started:\n        return ReplaceStep",
                "    if True:\n        return ReplaceStep",
            ),
            ("    if not look.former and not look.has_started and", "    if False and"),
            ('if each.get("marked_only")}.issuperset(former)', "}.issuperset(former)"),
            ("named = [*not_heard(status), *fenced]", "named = not_heard(status)"),
            ("    named = [*not_heard(status), *fenced]", "    named = fenced"),
            (
                'status.get("replaced", ()) if not each["successor"]]\n    named',
                'status.get("replaced", ())]\n    named',
            ),
            ("    if look.live is None or look.kind not in _WHAT:", "    if look.live is None:"),
            ("    if silent_s < look.quiet_s:  # R7\n", "    if False:\n"),
            ("return max(QUIET_S, dead_after_s + BEATS * heartbeat_s)", "return QUIET_S"),
            ("    if look.unwell:\n        return", "    if False:\n        return"),
            ("    if look.logs_left:\n", "    if False:\n"),
            ('        return bool(server["drained"])\n', '        return not server["segments"]\n'),
            ("    if not leaves(server):\n        return False\n", ""),
            ("    if not look.has_actor:\n        return", "    if False:\n        return"),
            ("        return _wait(look.unwell) if look.unwell else", "        return"),
            ("    if look.has_drained:\n", "    if False:\n"),
            ("    if server == name and live and begun:\n", "    if False:\n"),
            ("    if server == name and live and begun:\n", "    if server == name and begun:\n"),
            ("if any(len(media_of(each)) == 1 for", "if any(False for"),
            (
                "            if is_own_table(table.name):  # nobody",
                "            if False:  # nobody",
            ),
            ('        if live["uuid"] in holders and others <= holders:\n', "        if False:\n"),
            ("    if not others and _tablets_left(look, live):\n", "    if False:\n"),
            ("    if _others(look, server):\n        return count\n", ""),
            ("    return max(0, count - own)", "    return count"),
            ('    if not is_own_table(tablet["table"]) or', "    if"),
            ("    if 2 * len(others) <= len(voters):\n", "    if not others:\n"),
            ("        if len(members) < wanted:\n", "        if True:\n"),
            ("    found = refusals_of_stop(live, look.status, look.tables)\n", "    found = []\n"),
        ],
    ),
    *mutants_of(
        "stelae/applying/replace_one.py",
        _HAND_SHELL,
        [
            ("                self._read_again()\n", ""),
            (
                "            if not (self._has_drained or self._has_waited):\n                raise\n",
                "",
            ),
            ("if not (self._has_drained or self._has_waited):", "if not self._has_drained:"),
            ("        if now - since > limit_s:\n", "        if False:\n"),
            ("        self._check_unknown()\n        try", "        try"),
            ("                self._check_unknown()\n                self", "                self"),
            ("        if not self._former and self._has_started:", "        if False:"),
            ("self._pause(str(error), without_numbers(str(error)))", "self._pause(str(error))"),
            (
                "                if not self._drains:\n                    hand_over",
                "                if False:\n                    hand_over",
            ),
            ("            only_ended=self._only_ended,\n", ""),
            ("            self._has_drained = True  # by an", "            pass  # by an"),
            ("            elif time.monotonic() >= self._deadline:", "            elif False:"),
            ("self._note(uuid, goes_on=True)", "self._note(uuid, goes_on=False)"),
        ],
    ),
    *mutants_of(
        "stelae/applying/replace_master.py",
        _HAND_SHELL,
        [
            (
                "            target = work.choose()\n            sure()\n",
                "            target = 'm5' if order.elsewhere else ''\n            sure()\n",
            ),
            ("        if machine not in live:\n", "        if False:\n"),
        ],
    ),
    *mutants_of(
        "coordinator/apply/majorities.py",
        _DECIDED,
        [
            ('(timeline.get("sk_set"), timeline.get("new_sk_set"))', '(timeline.get("sk_set"),)'),
            (
                '(timeline.get("sk_set"), timeline.get("new_sk_set"))',
                '(timeline.get("new_sk_set"),)',
            ),
            ("for each in members) <= len(members):", "for each in members) < len(members):"),
            (' and each["uuid"] not in uuids for each in voters)', " for each in voters)"),
            ("2 * live <= len(voters)", "2 * live < len(voters)"),
            ('if each["member"] == "voter"]', "]"),
        ],
    ),
    *mutants_of(
        "coordinator/apply/stops.py",
        _STOPPED,
        [
            ("if 2 * len(others) <= len(voters):", "if not others:"),
            (' and each["voter"]', ""),
            ("without_replica_majority(status, {uuid})", "without_replica_majority(status, ())"),
            ("without_log_majority(status, {uuid})", "without_log_majority(status)"),
            ("    if homeless_one is not None:\n", "    if False:\n"),
            ("            if len(others) < len(media):\n", "            if False:\n"),
            (' and not each["retiring"]\n        if not each.get("maintenance")', ""),
            ('{*media} <= {*each["media"]}', "True"),
            ("    if kind == ServerKind.CAS_STORE.value:\n", "    if False:\n"),
        ],
    ),
    *mutants_of(
        "client/admin/servers.py",
        ("tests/unit/client/test_servers.py",),
        [
            ("durability.count > others", "False"),
            ("v.record.status is SafekeeperStatus.ACTIVE and v is not view", "v is not view"),
            (" and v is not view", ""),
            ("        v.is_live and v.record", "        v.record"),
            ("in (table.durability, table.becoming)", "in (table.durability,)"),
        ],
    ),
    *mutants_of(
        "stelae/applying/one_server.py",
        _ONE_SERVER,
        [
            ("        self._settle()\n", ""),
            ("        self._refuse(self._look())  # R1", "        self._look()  # R1"),
            ("        self._sure()\n        actor", "        actor"),
            ("            hand_over(self._name, actor, self._progress)\n", "            pass\n"),
        ],
    ),
    *mutants_of(
        "coordinator/ddl/replacement.py",
        _FENCE,
        [
            ("    if liveness.may_hear(now):\n", "    if False:\n"),
            ("    if liveness.live_server(order.uuid, now) is not None:\n", "    if False:\n"),
            ("    if mark.maintenance:\n", "    if False:\n"),
            ("marked_only=known.is_marked_only)  # R5", "marked_only=False)"),
            ("        if order.goes_on or not mark.replacing:\n", "        if True:\n"),
            ("    if catalog.mark(server.uuid).replaced:", "    if False:"),
            ("        and not mark.successor\n", ""),
            ("(mark.kind, mark.name) == (server.kind, server.name)", "mark.name == server.name"),
        ],
    ),
    *mutants_of(
        "coordinator/liveness/liveness.py",
        _FENCE,
        [
            (
                " or self.is_replaced(run.uuid):\n            return False",
                ":\n            return False",
            ),
            ("        if self.is_replaced(run.uuid):\n            return True\n", ""),
        ],
    ),
    *mutants_of(
        "coordinator/ddl/operator_orders.py",
        _FENCE,
        [
            (
                "return (mark.uuid,) if mark.replaced else (mark.uuid, name)",
                "return (mark.uuid, name)",
            )
        ],
    ),
    *mutants_of(
        "coordinator/ddl/operator_orders.py",
        ("tests/unit/coordinator/ddl/test_late_orders.py",),
        [
            (
                "    if not wanted.retiring:\n",
                "    if wanted == mark:\n        return CatalogBatch(request=order.request)\n"
                "    if not wanted.retiring:\n",
            ),
            (
                "    wanted = Rebalancing(",
                "    if after_s == known.after_s:\n"
                "        return CatalogBatch(request=order.request)\n    wanted = Rebalancing(",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/server.py",
        _FENCED,
        [("        require_not_replaced(reply, self.info.name)\n", "")],
    ),
    *mutants_of(
        "actors/safekeeper/server.py",
        _FENCED,
        [("        require_not_replaced(reply, self.info.name)\n", "")],
    ),
    *mutants_of(
        "actors/tserver/segments/views.py",
        _HELD,
        [
            (
                "return any(r.backup is not None and find(r.backup) is not None for r in whole)",
                "return True",
            )
        ],
    ),
    *mutants_of(
        "actors/cas_store/server.py",
        _REFUSED,
        [("                require_not_replaced(reply, self.info.name)\n", "")],
    ),
    *mutants_of(
        "actors/master/heartbeat_requests.py",
        _REFUSED,
        [("        if master.catalog.mark(server.uuid).replaced:\n", "        if False:\n")],
    ),
    *mutants_of(
        "stelae/applying/replacing.py",
        _SHELL,
        [
            ("again is None or again.stamp != known.stamp:", "again is None:"),
            ("            self._look_at_nodes(again)\n", ""),
            (" or target not in self._live:", ":"),
            ("min(PAUSE_MAX_S, 2 * before.length_s)", "PAUSE_S"),
            ("if now < each.until}", "if False}"),
            ("away, now, self._nodes_seen_at)", "away, now, now)"),
            ("starting, now, self._status_seen_at)", "starting, now, now)"),
            (
                "for n in half if placed.get(n) in self._live]",
                "for n in half if n in actors and placed.get(n) in self._live]",
            ),
            ("            sure()\n", "            pass\n"),
            ("if not is_same or", "if"),
            ('        return SetAside(problem=f"a server runs on {busy}")\n', "        pass\n"),
            ("    for folder in reversed(there):\n", "    for folder in there:\n"),
            ("        folder.rename(aside)\n", "        pass\n"),
            ("        if whose not in only_of:\n", "        if False:\n"),
            ("            for uuid in due.uuids:\n", "            for uuid in ():\n"),
            ("if self._half == [] and (not self._away", "if (not self._away"),
            ("if not checked.problems and", "if True or"),
            ("not checked.unchecked:", "True:"),
            ("if m not in tried]", "]"),
        ],
    ),
]
