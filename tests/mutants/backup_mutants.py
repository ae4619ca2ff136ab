"""Protections of `actors/backup`, and of the logs of owned tablets that write to backups."""

from __future__ import annotations

from tests.mutants.mutant import mutants_of

_UNIT = "tests/unit/actors/backup"
_BACKUP = (f"{_UNIT}/test_backup.py", f"{_UNIT}/test_backup_service.py")
_CRASHES = (*_BACKUP, "tests/simulation/backups/test_backup.py")
_FILES = (f"{_UNIT}/test_frames.py", f"{_UNIT}/test_backup_media.py", f"{_UNIT}/test_backup.py")
_HEADS = (
    "tests/unit/actors/tserver/tablet_log/test_segment_log.py",
    "tests/unit/actors/tserver/segments/test_views.py",
    "tests/unit/actors/tserver/test_replicated_segment.py",
    "tests/simulation/tables/test_aimed_heads.py",
)

_LOST = ("tests/simulation/recovery/test_lost_backups.py",)

MUTANTS = [
    *mutants_of(
        "actors/backup/fences.py",
        (*_BACKUP, "tests/simulation/tables/test_late_writes.py"),
        [
            ("        if term < fence:\n", "        if False:\n"),
            ("if opens and request.segment_id < heads_from:", "if False:"),
            ("        await self._save(lambda durable: _holds(durable.terms, wanted))\n", ""),
            (
                "        if term > self._terms.get(log, 0):\n            self._terms[log] = term",
                "        self._terms[log] = term",
            ),
            ("            await self._disk.replace(FENCES_FILE, head + body)\n", ""),
            ("        self._terms = dict(self._promised.terms)\n", ""),
        ],
    ),
    *mutants_of(
        "actors/backup/fences.py",
        (f"{_UNIT}/test_fences.py",),
        [
            ("or crc32c(body) != crc:", "or False:"),
            ("or not is_whole or", "or"),
        ],
    ),
    *mutants_of(
        "actors/backup/replicas.py",
        _BACKUP,
        [
            ("elif old is not None and request.epoch < old.epoch:", "elif False:"),
            ("if request.offset > written:", "if False:"),
            ("if certificate.length > end:", "if False:"),
            ("if certificate.length == base.length and certificate.crc != base.crc:", "if False:"),
            ("if request.close and certificate.length < base.length:", "if False:"),
            (
                "same = request.close and request.certificate == old.certificate",
                "same = request.close",
            ),
            (
                "if not request.create or request.offset != 0 or size == 0:",
                "if request.offset != 0 or size == 0:",
            ),
            (
                "newest = certificate if certificate.length > base.length else base",
                "newest = certificate",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/replica_writes.py",
        _CRASHES,
        [
            (
                "            await batch.wait()\n        return IS_LOW if",
                "            pass\n        return IS_LOW if",
            ),
            (
                "            await check_certificate(self._runtime, base, certificate, views, replica.where)\n",
                "            pass\n",
            ),
            (
                "                await self._certify_written(replica, base, certificate)\n",
                "                pass\n",
            ),
            (
                "            self._fences.check(log, request.term)  # it may have risen during the write\n",
                "",
            ),
            ("            replica.written = base.length\n            raise", "            raise"),
            (
                "            await medium.write(replica, 0, [image])\n            self._fences.check(log, request.term)\n",
                "            await medium.write(replica, 0, [image])\n",
            ),
            ("if held is not None and old is not None and request.epoch < old.epoch:", "if False:"),
            (
                "        if batch is not None:\n            await batch.wait()\n        if held is not None:\n",
                "        if held is not None:\n",
            ),
            ("there.is_lasting and not asked.is_lasting else asked", "False else asked"),
            (
                "        if batch is not None and former.wanted is not None:\n            await batch.wait()\n",
                "",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/replica_writes.py",
        (f"{_UNIT}/test_backup_media.py",),
        [
            (
                "            if held is None:\n                medium.free(replica)\n            raise\n",
                "            raise\n",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/replica_writes.py",
        (f"{_UNIT}/test_holdings.py",),
        [
            (
                "same = same and held is not None and not held.damaged",
                "same = same and held is not None",
            )
        ],
    ),
    *mutants_of(
        "actors/backup/disk_medium.py",
        _CRASHES,
        [
            (
                "        await self._file.sync()\n        self._is_copy_pending &= not was_pending",
                "        self._is_copy_pending &= not was_pending",
            ),
            (
                "            await self._sync()\n        for replica, facts in batch",
                "            pass\n        for replica, facts in batch",
            ),
            ("if waiting_bytes and waiting_bytes + size > self._unsynced_bytes_max:", "if False:"),
            (
                "        if first and facts.length > replica.synced:\n            await self.settle()\n",
                "",
            ),
            (
                "            await self.settle()  # a frame is used once the superblock that has it is durable\n",
                "",
            ),
            (
                "            self.next_side[frame] = 1 - side\n            self._unsynced_records.pop",
                "            self._unsynced_records.pop",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/disk_medium.py",
        (f"{_UNIT}/test_backup_media.py",),
        [
            (
                "        if got < length:\n            raise CorruptData",
                "        if False:\n            raise CorruptData",
            ),
            ("            if found < size:\n", "            if False:\n"),
            (
                "            self.copy_superblock()\n            first = self.layout.frame_count\n",
                "            first = self.layout.frame_count\n",
            ),
            ("min(written, replica.unsynced_from)", "written"),
            (
                "                raise NoSpace(self._server, self.name)\n            taken",
                "                pass\n            taken",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/disk_medium.py",
        (f"{_UNIT}/test_disk_opening.py",),
        [
            (
                "            if self._is_copy_pending:  # of two places that are written at once a crash tears both\n"
                "                await self.settle()\n",
                "",
            ),
            (
                "            self._freed.extend(replica.frames)\n",
                "            self.allocator.release(replica.frames)\n",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/disk_opening.py",
        (f"{_UNIT}/test_disk_opening.py",),
        [
            (
                "        if slots.newest is not None:\n            raise",
                "        if False:\n            raise",
            ),
            ("                if frame in used:\n", "                if False:\n"),
            (
                "        await file.sync()  # before the next one is written to the other place\n",
                "",
            ),
            (
                "            medium.next_side[frame] = slots.newest_side  # the one that holds must stay\n",
                "",
            ),
            (
                "        if record.state is not ReplicaState.SEALED:\n            return True\n",
                "        return True\n",
            ),
            (
                "if held is not None and self._may_be_short and held.state is ReplicaState.OPEN:",
                "if False:",
            ),
            (
                "            self._file.write_at(self._layout.record_offset(record.frame, side), block)\n        await self._file.sync()\n",
                "            self._file.write_at(self._layout.record_offset(record.frame, side), block)\n",
            ),
            (
                "    await disk.settle()  # what is read from here on is durable, even if only the process had died\n",
                "",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/disk_opening.py",
        (*_FILES, "tests/simulation/backups/test_backup.py"),
        [
            ("    if found != (server, cluster, spec.name):", "    if False:"),
            ("        return found == Certified(record.length, record.crc)", "        return True"),
        ],
    ),
    *mutants_of(
        "actors/backup/frames.py",
        _FILES,
        [
            ("if end > len(block) or crc32c(block[head:end]) != crc:", "if end > len(block):"),
            ("return record if record.frame == frame else None", "return record"),
            ("if offset + length > len(frames) * self.frame_bytes:", "if False:"),
            ("if newest is None or found.generation > newest.generation:", "if newest is None:"),
            ("return len(self.extents) < EXTENTS_MAX", "return True"),
            ("return 2 * len(self.extents) < EXTENTS_MAX", "return True"),
            ("if b is None or (a is not None and a.sequence > b.sequence):", "if a is not None:"),
        ],
    ),
    *mutants_of(
        "actors/backup/holdings.py",
        (*_BACKUP, f"{_UNIT}/test_served_rows.py"),
        [
            (
                "if replica is None or replica.facts is None:\n            name",
                "if replica is None:\n            name",
            ),
            ("    if found != new:\n", "    if False:\n"),
            ("if other is not None and _rank(other) >= _rank(replica):", "if other is not None:"),
        ],
    ),
    *mutants_of(
        "actors/backup/holdings.py",
        (f"{_UNIT}/test_holdings.py",),
        [
            ("            if replica.damaged:\n", "            if False:\n"),
            ("offset + length > facts.length:", "False:"),
            ("if length > REPLY_BYTES_MAX:", "if False:"),
            ("is_right = await checksum(self._runtime, data) == facts.crc", "is_right = True"),
            ("if offset < 0 or length < 0 or offset", "if offset"),
            ("not verify or await self._runtime.offload(_is_certified, facts, data)", "True"),
            ("facts is None or replica.damaged:", "facts is None:"),
        ],
    ),
    *mutants_of(
        "actors/backup/blobs.py",
        (f"{_UNIT}/test_backup_blobs.py",),
        [
            ("        await disk.remove_folder(ARRIVING)\n", ""),
            ("        if len(call.blobs) != 1:", "        if not call.blobs:"),
            ("        if data.nbytes > BLOB_BYTES_MAX:", "        if False:"),
            ("if await self._runtime.offload(crc32c, data) != call.body.crc:", "if False:"),
            ("            if name not in self._names:\n", "            if True:\n"),
            ("        await self._runtime.disk.remove_folder(aside)\n        if", "        if"),
            ("if memoryview(await self._read(name)).tobytes() != bytes(data):", "if False:"),
            (
                "            await self._runtime.disk.remove_folder(folder)\n            raise NoSpace",
                "            raise NoSpace",
            ),
            ("magic == _MAGIC and length == body.nbytes", "length == body.nbytes"),
            (
                "magic == _MAGIC and length == body.nbytes",
                "magic == _MAGIC",
                "the checksum is of all bytes that follow",
            ),
            ("if is_whole and await self._runtime.offload(crc32c, body) == crc:", "if is_whole:"),
            ("        if data.nbytes >= _HEAD.size:", "        if True:"),
            ("                self._names.pop(name, None)\n", ""),
            (
                "                await self._runtime.disk.remove_folder(folder)\n        return EMPTY",
                "                pass\n        return EMPTY",
            ),
            ("min(max(1, call.body.limit), LIST_MAX)", "min(call.body.limit, LIST_MAX)"),
            ("min(max(1, call.body.limit), LIST_MAX)", "max(1, call.body.limit)"),
            ('f"{call.body.safekeeper_id}/"', 'f"{call.body.safekeeper_id}"'),
            ('name.split("/")[1] == tablet_id]', 'name.split("/")[1].startswith(tablet_id)]'),
            ('found is None or ".." in name or found', "found is None or found"),
            ('or ".." in name or found[4].startswith("."):', 'or ".." in name:'),
        ],
    ),
    *mutants_of(
        "actors/backup/closing.py",
        (f"{_UNIT}/test_backup_closing.py",),
        [
            ("        if generation < self._generation:\n", "        if False:\n"),
            (
                "if may_close and not self._arriving and not self._held():",
                "if may_close and not self._held():",
            ),
            ("        if self.closed_for:\n", "        if False:\n"),
        ],
    ),
    *mutants_of(
        "actors/backup/server.py",
        _BACKUP,
        [
            ("        await self._holdings.quiesce(fenced)\n", ""),
            ("            await medium.settle()\n", "            pass\n"),
            ("        self._check(log, request.term)\n        # First", "        # First"),
            ("if not 0 < len(log.encode()) <= TABLET_ID_BYTES_MAX:", "if False:"),
            (
                "                self._fences.observe(replica.tablet_id, self._holdings.enter_found(replica).term)\n",
                "                self._holdings.enter_found(replica)\n",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/shared_writes.py",
        ("tests/unit/actors/tserver/segments/test_shared_appends.py",),
        [
            ("            await batch.wait()\n", "            pass\n"),
            ("            return encode_error(error), None\n", '            return b"", None\n'),
            ("if len({write.medium for write in writes}) > 1:", "if False:"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/views.py",
        _HEADS,
        [
            ("if not (self.may_fill and self._epoch_counts):", "if not self._epoch_counts:"),
            ("if not (self.may_fill and self._epoch_counts):", "if not self.may_fill:"),
            ("        return self._epoch_counts and all(\n", "        return all(\n"),
            ("(r.certified == self.length and r.epoch == self.epoch)", "r.epoch == self.epoch"),
            ("return self.epoch_registered == self.epoch", "return True"),
            (
                "        if any(r.epoch != self.epoch and not r.closed for r in self.replicas):\n            return 0\n",
                "",
            ),
            (
                "return min((r.certified for r in self.replicas), default=self.length)",
                "return min((r.length for r in self.replicas), default=self.length)",
            ),
            (
                "all(r.epoch == self.epoch or r.sealed for r in self.replicas) and self.is_opened",
                "self.is_opened",
            ),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/segment.py",
        _LOST,
        [
            ("        replica.posted, replica.goes_alone = None, False\n", ""),
            ("        if under_way is not None:\n", "        if False:\n"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/segment.py",
        ("tests/unit/actors/tserver/test_replicated_segment.py",),
        [
            ("pause_s = RETRY_PAUSE_S if self._freeing else ", "pause_s = "),
            ("        self._freeing[backup] = now + 2", "        _ = now + 2"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/repair.py",
        _LOST,
        [("                segment.freed(backup.uuid)\n", "                pass\n")],
    ),
    *mutants_of(
        "actors/backup/replicas.py",
        ("tests/unit/actors/backup/test_backup_service.py",),
        [
            ("replica.wanted is not None and replica.wanted.epoch <= epoch", "True"),
            ("(replica.wanted is not None and", "(replica.wanted is None or"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/segment.py",
        _HEADS,
        [
            (
                "        if replica.backup != target.uuid:\n            return  # replaced while the call was out\n",
                "",
            ),
            (
                "        if not self.is_columnar and not self.was_closed:\n            self.epoch += 1\n",
                "",
            ),
            ("            certificate if is_last else None,", "            certificate,"),
            (
                "            elif not isinstance(told, LogFenced):\n                return  #",
                "            elif False:\n                return  #",
            ),
            (
                "self.may_close and self._epoch_counts and all(r.closed for r in self.replicas)",
                "self.may_close and all(r.closed for r in self.replicas)",
            ),
        ],
    ),
    *mutants_of(
        "actors/tserver/tablet_log/segment_log.py",
        _HEADS[:1],
        [
            (
                "            if not segment.may_open and opens and older_closed:",
                "            if not segment.may_open and opens:",
            ),
            (
                "            if not segment.may_open and opens and older_closed:",
                "            if not segment.may_open and older_closed:",
            ),
            (
                "            if not segment.may_fill and before_closed and segment.may_open:",
                "            if not segment.may_fill and segment.may_open:",
            ),
            (
                "            if followed and not segment.may_close:",
                "            if successor is not None and not segment.may_close:",
            ),
            ("        await self._handed_over.wait()\n", ""),
        ],
    ),
    *mutants_of(
        "actors/tserver/lease.py",
        ("tests/unit/actors/tserver/test_tserver.py",),
        [
            ("        if term < self._term:\n            return False\n", ""),
            ("return self._clock.monotonic() < self._until", "return True"),
            (
                '        """Stop serving now."""\n        self._until = float("-inf")',
                '        """Stop serving now."""',
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/served.py",
        (f"{_UNIT}/test_served_rows.py",),
        [
            (
                "if request.piece_rows < 1 or min(request.pieces, default=0) < 0:",
                "if request.piece_rows < 1:",
            ),
            (
                "if request.piece_rows < 1 or min(request.pieces, default=0) < 0:",
                "if min(request.pieces, default=0) < 0:",
            ),
            ("if len(request.pieces) > PIECES_MAX or last", "if last"),
            (" or last * request.piece_rows >= max(1, count):", ":"),
            ("        if size_bytes > REPLY_BYTES_MAX:", "        if False:"),
            ("if not 0 < len(numbers) <= SINGLE_ROWS_MAX or not 0", "if not 0"),
            (" or not 0 <= min(numbers) <= max(numbers) < count:", ":"),
            ("            self._holdings.note_damage(opened.replica)\n", ""),
            (
                "            self._holdings.note_damage(replica)\n            raise\n        if image",
                "            raise\n        if image",
            ),
            (
                "                self._holdings.note_damage(replica)\n                raise\n",
                "                raise\n",
            ),
            (
                "if opened.replica.freed or self._holdings.find(*key) is not opened.replica:",
                "if False:",
            ),
            ("            if found is not None:\n", "            if False:\n"),
            ("            if facts.state is not ReplicaState.SEALED:", "            if False:"),
            ("            if not replica.freed:\n", "            if True:\n"),
            (
                "        if replica.freed:\n            raise",
                "        if False:\n            raise",
            ),
            (" if opened.used >= limit}", "}"),
            (
                "        opened.used = self._runtime.clock.monotonic()\n",
                "",
                "an image that is used is read again after 20 s, and nothing else happens",
            ),
            ("while kept > KEPT_BYTES and len(self._opened) > 1:", "while False:"),
        ],
    ),
    *mutants_of(
        "actors/backup/served_picks.py",
        (f"{_UNIT}/test_served_picks.py",),
        [
            ("if request.row_count < 0 or len(bits) != -(-request.row_count // 8):", "if False:"),
            ("        if info.state is not ReplicaState.SEALED:", "        if False:"),
            ("        if rows.size > REPLY_BYTES_MAX:", "        if False:"),
            ("    if image.meta.row_count != row_count:", "    if False:"),
        ],
    ),
    *mutants_of(
        "actors/backup/frames.py",
        (f"{_UNIT}/test_frames.py",),
        [
            ("        if count > len(self._free):", "        if False:"),
            ("if len(runs_of([*after, *oldest])) // 2 <= RUNS_MAX:", "if True:"),
            ("if len(runs_of([*after, *lowest])) // 2 > RUNS_MAX:", "if False:"),
            (
                "            count = min(count, room // (RECORD_BLOCKS_BYTES + self.frame_bytes))\n",
                "",
            ),
            ("return count if count >= needed else 0", "return count"),
            (" or block[: len(magic)] != magic:", ":"),
            ("        if not self.may_grow:", "        if False:"),
            ("    return generation % 2 * BLOCK_BYTES\n", "    return 0\n"),
            ("        self._free.extend(frames)", "        self._free.extendleft(frames)"),
        ],
    ),
    *mutants_of(
        "actors/tserver/segments/placement.py",
        ("tests/unit/actors/tserver/test_placement.py",),
        [
            ("        but_on = {*leaving, *avoided}\n", "        but_on = {*leaving}\n"),
            (
                "candidates_for(log, media[0], {*avoided} - {*holders})",
                "candidates_for(log, media[0])",
            ),
        ],
    ),
    *mutants_of(
        "actors/backup/disk_opening.py",
        (f"{_UNIT}/test_backup_media.py",),
        [("if any(head) and not has_both_superblocks(head):", "if False:")],
    ),
    *mutants_of(
        "actors/backup/disk_opening.py",
        ("tests/upgrade/test_newer_formats.py",),
        [
            ("            raise  # as above: not damaged\n", "            return False\n"),
        ],
    ),
]
