"""Formats of the small files and of the logs on a server's disk: pure codecs.

What does not match its checksum is `CorruptData` with file and offset, never a default. A damaged
record at the end of a log is a torn tail only if nothing proves that it was durable. A superblock
or a control file is replaced as a whole, and its generation or number grows with each change.

- `sealed`: magic, version, length and checksum of a small file that is replaced as a whole.
- `superblock`: what a server has of a tablet with ``replicas(n)``, and the transitions of it.
- `consensus_metadata`: term, vote and first members of a replica, and its snapshot.
- `timeline_control`: what a safekeeper has of a timeline, and the steps of each change.
- `log_records`: records of log files, and what distinguishes a torn tail from damage.
- `raft_log`, `wal_log`: log files of replicas and of timelines, made of such records.

Read first: `log_records`. Also searched for as: torn write, superblock, cmeta, WAL format, CRC.
"""
