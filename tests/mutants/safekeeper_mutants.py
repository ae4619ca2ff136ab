"""Protections of `actors/safekeeper`: acceptors at work, files of timelines, pulls."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_UNIT = "tests/unit/actors/safekeeper"
_STORE = f"{_UNIT}/timeline_store"
_SERVER = (f"{_UNIT}/test_safekeeper.py", f"{_UNIT}/test_safekeeper_wire.py")
_LOGS = (
    f"{_STORE}/test_timeline_store_logs.py",
    f"{_STORE}/test_timeline_crashes.py",
    f"{_STORE}/test_timeline_store_damage.py",
)
_BOUNDS = (f"{_UNIT}/test_safekeeper_bounds.py",)
_BLOBS = (f"{_UNIT}/test_safekeeper_blobs.py",)
_IDS = (f"{_UNIT}/test_safekeeper_ids.py",)
_EVICTION = (f"{_STORE}/test_timeline_store_eviction.py",)
_PULLS = (f"{_STORE}/test_timeline_store_pulls.py", f"{_STORE}/test_timeline_crashes.py")

MUTANTS = [
    *mutants_of(
        "actors/safekeeper/acceptor.py",
        (*_SERVER, *_BOUNDS, f"{_UNIT}/test_safekeeper_crashes.py"),
        [
            ("if len(self._inputs) + len(messages) > MESSAGES_MAX:", "if False:"),
            (
                "if self._input_bytes and self._input_bytes + size_bytes > TIMELINE_BYTES_MAX:",
                "if False:",
            ),
            (
                "if queued.size_bytes and queued.size_bytes + size_bytes > queued.limit_bytes:",
                "if False:",
            ),
            ("if len(self._waiting) >= ASKS_MAX:", "if False:"),
            (
                "            if again is None or (entries and again[1] < entries[-1].index):\n                entries = []\n",
                "",
            ),
            (
                "            if self._current()[1] is not acceptor:\n                raise",
                "            if False:\n                raise",
            ),
            (
                "            if self._current()[1] is not acceptor:\n                raise",
                "            if self._acceptor is not acceptor:\n                raise",
            ),
            ("            await timeline.carry_out(ready)\n", "            pass\n"),
            (
                "            if self._store.timelines.get(self.tablet_id) is timeline:\n                self._done",
                "            if True:\n                self._done",
            ),
            (
                "        self._acceptor = self._timeline = None\n        self._end_replies()",
                "        self._end_replies()",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timelines.py",
        _SERVER,
        [
            (
                "            if message.timeline_id != mail.timeline_id:\n",
                "            if False:\n",
            ),
            (
                "            if message.safekeeper != self.safekeeper_id:\n",
                "            if False:\n",
            ),
            ("            check_message(message)\n", ""),
            (
                "if store is None or store.safekeeper != call.body.safekeeper_id:",
                "if store is None:",
            ),
            ("if store.safekeeper not in configuration.members:", "if False:"),
            (
                "if not order.create or store.control(tablet_id).tombstone is not None:",
                "if not order.create:",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timeline_store/log.py",
        (*_LOGS, f"{_STORE}/test_wal_end.py"),
        [
            ("        if self.index.last_lsn < commit_lsn:\n", "        if False:\n"),
            ("            await self._end_file(path, decoded.end)\n", "            pass\n"),
            (
                '                raise CorruptData(path, decoded.end, "has no entry, and newer files follow")\n',
                "                pass\n",
            ),
            (
                "            await self._sync(file)\n            self.index.appended",
                "            self.index.appended",
            ),
            (
                "            await self._sync(self._newest)\n            self._dirty = False",
                "            self._dirty = False",
            ),
            ("            self._newest.cut_off(self.index.files[-1].end)\n", ""),
            (
                "            self._dirty = True  # what was begun is not what comes: nothing of it may stay\n",
                "            pass\n",
            ),
            (
                "            if not file.sync_at_once():\n                self._begun = _Begun(tuple(entries), size_bytes)\n                return False\n",
                "",
            ),
            (
                "            raise self._refusal  # what they follow is not there\n",
                "            pass\n",
            ),
            (
                "            file.truncate(end)\n            await file.sync()\n",
                "            file.truncate(end)\n",
            ),
            (
                "        if len(data) != length:\n            raise",
                "        if False:\n            raise",
            ),
            ("        last_lsn = min(last_lsn, self.flush_lsn)\n", ""),
            (
                "        await self._unread.wait()\n        for name in self.index.trim(base_lsn)",
                "        for name in self.index.trim(base_lsn)",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timeline_store/timeline.py",
        _LOGS,
        [
            ("            await self._files.replace_control(control)\n", "            pass\n"),
            (
                "min([through_lsn, self.acceptor.horizon_lsn, *held])",
                "min([through_lsn, self.acceptor.horizon_lsn])",
            ),
            ("min([through_lsn, self.acceptor.horizon_lsn, *held])", "min([through_lsn, *held])"),
            (
                "            self.fail(error)\n            raise\n        self.control = control",
                "            raise\n        self.control = control",
            ),
            ("        if self._closed is not None:\n            raise self._closed\n", ""),
            (
                "            self.fail(error)\n            raise\n        finally:\n            del self.holds[hold]",
                "            raise\n        finally:\n            del self.holds[hold]",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timeline_store/pull.py",
        _PULLS,
        [
            ("if self._store.safekeeper not in configuration.members:", "if False:"),
            ("if snapshot.generation > configuration.generation:", "if False:"),
            (
                "if parse_wal_name(file.name) is None or not 0 < file.size_bytes <= FILE_BYTES_MAX:",
                "if False:",
            ),
            ("        self._store.check_not_deleted(control, configuration.generation)\n", ""),
            ("if control.generation > configuration.generation:", "if False:"),
            ("return is_newer(snapshot.position, timeline.position)", "return True"),
            ("            if offset != arriving.size_bytes:\n", "            if False:\n"),
            ("            if size_bytes > file.size_bytes:\n", "            if False:\n"),
            ("        if arriving.crc != file.crc:\n", "        if False:\n"),
            ("                    await arriving.file.sync()\n", "                    pass\n"),
            ("            if attempt.missing:\n", "            if False:\n"),
            (
                "            before.set_aside()  # what is acknowledged after the comparison would be forgotten\n",
                "",
            ),
            ("            self._check_promised(snapshot, log)\n", ""),
            (
                "        if self._attempts.get(attempt.tablet_id) is not attempt:\n            raise",
                "        if False:\n            raise",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timeline_store/files.py",
        _PULLS,
        [
            ("if size_bytes != file.size_bytes:", "if False:"),
            ("if await self.offload(crc32c, data) != file.crc:", "if False:"),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/acceptor.py",
        _BOUNDS,
        [
            ("        while len(self._addresses) > PROPOSERS_MAX:", "        while False:"),
            ("            self._addresses.pop(message.proposer, None)\n", ""),
            (
                "        if self._is_busy:\n            raise",
                "        if False:\n            raise",
            ),
            (
                "known = max(known, min(self._acceptor.commit_lsn, timeline.flush_lsn))",
                "known = max(known, self._acceptor.commit_lsn)",
            ),
            ("min(call.size_max_bytes, FETCH_BYTES_MAX)", "call.size_max_bytes"),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timelines.py",
        _BOUNDS,
        [
            (
                "            self._active.pop(tablet_id, None)\n            raise",
                "            raise",
            ),
            ("min(max(1, call.body.limit), LIST_MAX)", "min(call.body.limit, LIST_MAX)"),
            ("min(max(1, call.body.limit), LIST_MAX)", "max(1, call.body.limit)"),
            (
                "        check_configuration(configuration)\n        if self.find",
                "        if self.find",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/pull_sources.py",
        (*_BOUNDS, f"{_UNIT}/test_safekeeper_pulls.py"),
        [
            ("self._end(name)  # its answer was lost: nobody will ask for that again", "pass"),
            (
                "if len(self._sessions) + self._opening >= SESSIONS_MAX:",
                "if self._opening >= SESSIONS_MAX:",
            ),
            (
                "if len(self._sessions) + self._opening >= SESSIONS_MAX:",
                "if len(self._sessions) >= SESSIONS_MAX:",
            ),
            ("        if request.size_bytes < 1:\n", "        if False:\n"),
            (
                "min(request.size_bytes, self._settings.copy_piece_bytes)",
                "request.size_bytes",
            ),
            ("            session.held.release()\n", "            pass\n"),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/pulls.py",
        (*_BOUNDS, f"{_UNIT}/test_safekeeper_pulls.py"),
        [
            (
                "        if tablet_id in self._active:\n            raise",
                "        if False:\n            raise",
            ),
            ("        if len(self._active) >= PULLS_MAX:", "        if False:"),
            ("if plan.snapshot.tablet_id != tablet_id:", "if False:"),
            (
                "if len(reply.blobs) != 1 or memoryview(reply.blobs[0]).nbytes != size_bytes:",
                "if len(reply.blobs) != 1:",
            ),
            (
                "        if self._timelines.find(tablet_id) is None:\n            raise",
                "        if False:\n            raise",
            ),
            ("        if reply.position < order.at_least:", "        if False:"),
            (
                "if tablet_id in self._active or now - noted_s < limit_s:",
                "if now - noted_s < limit_s:",
            ),
            (
                "if tablet_id in self._active or now - noted_s < limit_s:",
                "if tablet_id in self._active:",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/safekeeper_id.py",
        _IDS,
        [
            ("    if given.server_uuid != server_uuid:", "    if False:"),
            ("    if safekeeper_id < 1:", "    if False:"),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/server.py",
        _IDS,
        [
            (
                "                await store_safekeeper_id(self._runtime.disk, self.info.uuid, safekeeper_id)\n",
                "",
            ),
            ("            elif known != safekeeper_id:", "            elif False:"),
            (
                "        if not reply.fenced:\n            self.members",
                "        if True:\n            self.members",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/offload.py",
        (*_BLOBS, f"{_UNIT}/test_safekeeper_pulls.py"),
        [
            ("filter(self.may_keep, self._backups(name))", "self._backups(name)"),
            ("            if copies == wanted:\n                return", "            return"),
            ("        self.may_have_left = True\n\n        def", "        def"),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/upkeep.py",
        _BLOBS,
        [
            (
                "if name not in known and not self._may_be_of_failed(store, name):",
                "if name not in known:",
            ),
            ("sorted(short & self._short)", "sorted(short)"),
            (
                "        if self._blobs.backup_count < self._settings.evict_copies:\n            return\n",
                "",
            ),
            (
                "sum(map(self._blobs.may_keep, found.get(blob, ())))",
                "len(found.get(blob, ()))",
            ),
            ("unknown or not self._blobs.backup_count", "unknown"),
            (
                "unknown or not self._blobs.backup_count",
                "not self._blobs.backup_count",
                "what is not deleted raises, before anything is said of what is left",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timeline_store/store.py",
        (
            f"{_STORE}/test_timeline_store.py",
            f"{_STORE}/test_timeline_store_damage.py",
            *_PULLS[:1],
        ),
        [
            (
                "            if error is None or not may_pass(error):\n",
                "            if error is None:\n",
            ),
            ("            self.check_not_deleted(before, configuration.generation)\n", ""),
            ("            if before.generation > generation:", "            if False:"),
            ("        if found is None and not forever:", "        if False:"),
            (
                "        numbers = [control.incarnation, self.pulls.forget(tablet_id)]",
                "        numbers = [control.incarnation]",
            ),
        ],
    ),
    *mutants_of(
        "actors/safekeeper/timeline_store/eviction.py",
        _EVICTION,
        [
            (
                "if log is None or timeline.holds or not log.is_idle:",
                "if log is None or not log.is_idle:",
            ),
            (
                "if log is None or timeline.holds or not log.is_idle:",
                "if log is None or timeline.holds:",
            ),
            (
                "timeline.uses != plan.uses or timeline.holds or not plan.log.is_idle",
                "timeline.uses != plan.uses or not plan.log.is_idle",
            ),
            (
                "timeline.uses != plan.uses or timeline.holds or not plan.log.is_idle",
                "timeline.holds or not plan.log.is_idle",
            ),
            (
                "if is_used or timeline.log is not plan.log or timeline.base_lsn != plan.base_lsn:",
                "if is_used or timeline.log is not plan.log:",
            ),
            (
                '        await self._files.check_content(f"blob {offloaded.blob}", offloaded.file, data)\n',
                "",
            ),
            (
                "                timeline.resume(plan.log)\n                raise",
                "                raise",
            ),
        ],
    ),
]
