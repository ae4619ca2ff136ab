"""Timelines on a safekeeper's disk: control files, WAL files, and every change of the two.

Each change has one commit point, the replacement of the timeline's control file. What a crash
leaves before or after it is settled at the next start. Of WAL folders only the one counts that the
control file names. An entry counts once a sync has covered it; after a failed sync nothing is
written, told or read.

1. The acceptor hands what it decided to `timeline`, which makes one change at a time.
2. Term, vote and configuration go into the control file, which `files` replaces.
3. Entries go to `log`, which writes what is queued with one sync; `log_end` writes zeros ahead.
4. A trim or a cut is committed in the control file first, then carried out by `log`.
5. `startup` rolls each interrupted change forward or back.

`store` creates, finds and deletes timelines. `snapshot` and `pull` are the two ends of a copy.
`eviction` moves the WAL of an idle timeline to backups and back.

Read first: `timeline`. Also searched for as: control file, fsync, group commit, WAL segment.
"""
