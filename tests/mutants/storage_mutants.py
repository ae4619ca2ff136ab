"""Protections of `storage`: checksums, formats, sequences; and of streams that read it."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_UNIT = "tests/unit/storage"
_STREAMS = ("tests/simulation/tables/test_streams.py",)
_ENTRY = (f"{_UNIT}/entries/test_entry.py",)
_WAL = (f"{_UNIT}/files/test_wal_log.py", f"{_UNIT}/files/test_raft_log.py")
_SEALED = (f"{_UNIT}/files/test_superblock.py", f"{_UNIT}/files/test_timeline_control.py")

MUTANTS = [
    *mutants_of(
        "storage/entries/entry.py",
        _ENTRY,
        [
            ("        if crc32c(view[offset + 4 : stop]) != found:\n", "        if False:\n"),
            ("        if stop > end:\n", "        if False:\n"),
            ("        if length > end - offset:\n", "        if False:\n"),
            ("    if certificate is not None and crc != certificate.crc:", "    if False:"),
            ("    if crc32c(data[offset + 4 : offset + length]) != found:", "    if False:"),
            ("    if end > len(view):\n", "    if False:\n"),
            ("    if len(kinds) != len(rows):", "    if False:"),
        ],
    ),
    *mutants_of(
        "storage/files/log_records.py",
        _WAL,
        [
            (
                "    if data[crc_at:rest_at] != _checksum(data[offset:crc_at], data[rest_at:end]):\n        return None\n",
                "",
            ),
            (
                "    if end > len(data):\n        return None\n",
                "",
                "what is left of a record that is cut does not match its checksum either",
            ),
            (
                "        if entry.index != expected or entry.term < term:\n",
                "        if entry.index != expected:\n",
            ),
            (
                "        if entry.index != expected or entry.term < term:\n",
                "        if entry.term < term:\n",
            ),
            ("    if index <= durable_index:\n", "    if False:\n"),
            ("    if not newest:\n", "    if False:\n"),
            ("    if proof is not None:\n", "    if False:\n"),
            (
                "        if record is None or record.entry.index != expected:",
                "        if record is None:",
            ),
            (
                "    if after.index != before.index + 1 or after.term < before.term:",
                "    if after.index != before.index + 1:",
            ),
            (
                "        if magic == self._magic and stored == _checksum(data[: _FILE_HEAD.size], rest):\n",
                "        if False:\n",
            ),
        ],
    ),
    *mutants_of(
        "storage/files/wal_log.py",
        _WAL,
        [
            ("        if name.cut_number > cut.number:\n", "        if False:\n"),
            ("        if name.first_lsn != self.last_lsn + 1:\n", "        if False:\n"),
            (
                "        if self._history and self._history[-1].term > first_term:\n",
                "        if False:\n",
            ),
            ("            if file.last_lsn > through_lsn:\n                break\n", ""),
            (
                "    stop = cut.from_lsn if name.cut_number < cut.number else None",
                "    stop = None",
            ),
        ],
    ),
    *mutants_of(
        "storage/files/raft_log.py",
        (f"{_UNIT}/files/test_raft_log.py", "tests/unit/actors/raft/test_log_note.py"),
        [
            (
                "if magic == _NOTE_MAGIC and checksum == _note_checksum(group_id, note):",
                "if magic == _NOTE_MAGIC:",
            )
        ],
    ),
    *mutants_of(
        "storage/files/sealed.py",
        _SEALED,
        [
            ("    if length != len(body):\n", "    if False:\n"),
            ("    if data[_HEAD.size : HEADER_BYTES] != _CRC.pack(crc):\n", "    if False:\n"),
            ("    if version != FORMAT_VERSION:\n", "    if False:\n"),
        ],
    ),
    *mutants_of(
        "storage/files/timeline_control.py",
        (
            f"{_UNIT}/files/test_timeline_control.py",
            "tests/unit/actors/safekeeper/timeline_store/test_timeline_store_pulls.py",
        ),
        [
            ('    assert acceptor.term >= now.term, "a term falls"\n', ""),
            ('    assert acceptor.term > now.term or same_vote, "a second vote in one term"\n', ""),
            ('    assert acceptor.commit_lsn >= now.commit_lsn, "the commit falls"\n', ""),
            (
                '    assert from_lsn > before.acceptor.commit_lsn, f"committed entries from {from_lsn} on are cut"\n',
                "",
            ),
            ("        own.voted_for if own.term == term else NOBODY,\n", "        NOBODY,\n"),
            ("    term = max(term, own.term, pulled.term)\n", "    term = pulled.term\n"),
            ("    if last.term > acceptor.term:\n", "    if False:\n"),
            (
                '    assert acceptor.configuration.generation > before.deleted_generation, "a deleted one comes back"\n',
                "",
            ),
        ],
    ),
    *mutants_of(
        "storage/replicated/manifest.py",
        (
            f"{_UNIT}/replicated/test_tablet_state.py",
            "tests/unit/actors/tserver/tablet_store/test_tablet_store_damage.py",
        ),
        [
            ("    if crc32c(body, crc32c(data[: _HEAD.size - 4])) != crc:\n", "    if False:\n"),
            ("    if crc32c(view) != file.crc:\n", "    if False:\n"),
            ("    if manifest.tablet_id != tablet_id:\n", "    if False:\n"),
            ("    if view.nbytes != file.size_bytes:\n", "    if False:\n"),
        ],
    ),
    *mutants_of(
        "storage/segments/image.py",
        (f"{_UNIT}/segments/test_image.py",),
        [
            (
                "    if magic != _MAGIC or crc32c(packed[:-4]) != crc:\n",
                "    if magic != _MAGIC:\n",
            ),
            ("    if offset != found.rows_length:\n", "    if False:\n"),
            ("    if crc32c(view) != found.meta_crc:\n", "    if False:\n"),
            ("    if crc32c(view[:end]) != trailer.summary_crc:\n", "    if False:\n"),
            (
                "        if check_rows and crc32c(view[:offset]) != trailer.rows_crc:\n",
                "        if False:\n",
            ),
            (
                "        if batch.num_rows != tail.meta.row_count:\n",
                "        if False:\n",
                "the checksums of rows and of meta hold: only a faulty writer makes such an image, "
                "and `build_image` asserts that it does not",
            ),
        ],
    ),
    *mutants_of(
        "storage/segments/partial_image.py",
        (f"{_UNIT}/segments/test_partial_image.py", "tests/unit/actors/backup/test_served_rows.py"),
        [("        if crc32c(data) != self._crcs[block]:\n", "        if False:\n")],
    ),
    *mutants_of(
        "storage/segments/remote.py",
        (f"{_UNIT}/segments/test_remote.py", f"{_UNIT}/rows/test_inheriting.py"),
        [
            (
                '            raise CorruptData(where, 0, f"bad checksum of piece {number}")\n',
                "            pass\n",
            ),
            (
                "if len(versions) != end - first or not (versions == summed_up).all():",
                "if len(versions) != end - first:",
            ),
            (
                "if version != self._summary.version_of(number) or len(row) != self._layout.width:",
                "if len(row) != self._layout.width:",
            ),
            (
                '            raise CorruptData(where, 0, "bad checksum of picked rows")\n',
                "            pass\n",
            ),
            (
                '            raise CorruptData(where, 0, "another replica than the one whose summary was merged")\n',
                "            pass\n",
            ),
        ],
    ),
    *mutants_of(
        "storage/segments/recovered.py",
        (
            f"{_UNIT}/rows/test_tablet.py",
            f"{_UNIT}/keys/test_merge.py",
            f"{_UNIT}/segments/test_image.py",
            f"{_UNIT}/rows/test_transfer.py",
        ),
        [
            (
                "        if (self._prologue is None) != (entry.kind is EntryKind.PROLOGUE):\n",
                "        if False:\n",
            ),
            ("        if entry.first_version < self._next_version:\n", "        if False:\n"),
            ("        if found != entry.row_count:\n", "        if False:\n"),
            (
                "if not len(versions) or int(versions[0]) != entry.first_version:",
                "if not len(versions):",
            ),
        ],
    ),
    *mutants_of(
        "actors/tserver/pins.py",
        ("tests/unit/actors/tserver/test_pins.py",),
        [
            (
                "            while len(self._yielding) > MAX_YIELDING:\n",
                "            while False:\n",
            ),
            ("not request.yields and self._count_firm()", "self._count_firm()"),
            (
                "        return len(self._pins) - len(self._yielding) + making\n",
                "        return making\n",
            ),
            ("        if name in self._yielding:\n", "        if False:\n"),
        ],
    ),
    *mutants_of(
        "client/table/streams.py",
        _STREAMS,
        [
            (
                "                if self._rows != before or attempt == PIN_ATTEMPTS:\n",
                "                if attempt == PIN_ATTEMPTS:\n",
            ),
            ("        if self._error is not None:\n            raise self._error\n", ""),
            ("asyncio.Queue(1)", "asyncio.Queue(100)"),
            (
                "            async with asyncio.timeout(self._timeout_s):\n",
                "            async with asyncio.timeout(None):\n",
            ),
        ],
    ),
    *mutants_of(
        "client/table/snapshots.py",
        _STREAMS,
        [
            ("skip=skip + seen, limit", "skip=skip, limit"),
        ],
    ),
]
