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
_PULLS = (f"{_STORE}/test_timeline_store_pulls.py", f"{_STORE}/test_timeline_crashes.py")

MUTANTS = [
    *mutants_of(
        "actors/safekeeper/acceptor.py",
        (*_SERVER, f"{_UNIT}/test_safekeeper_crashes.py"),
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
]
