"""The log of a tablet with an owner: on backups for ``segments(…)``, on a timeline for ``wal(n)``.

A log is complete, but for losses that an operator accepted, or is not opened. Entries count in the
order of their indexes. A log fails once, and nothing is acknowledged from then on. The digest in
each head names all segments of the log.

1. `factory` chooses the log by the table's durability; `interface` is what the tablet sees of it.
2. `recovery` reads what the former owner left; a ``wal(n)`` log also elects its `proposer`.
3. `segment_log` appends an entry to the head's `stelae.actors.tserver.segments.segment`.
4. `wal_log` proposes all entries of a turn to the safekeepers (`proposer`, `proposer_links`).
5. `waiters` answers the writes whose entries every replica, or a majority of safekeepers, has.

Closed heads are sealed to images. `trimmed_segments` finds on backups what a timeline was trimmed
of.

Read first: `segment_log`. Also searched for as: write-ahead log, commit index, walproposer.
"""
