"""Rows, keys, segments and log entries: their forms in memory and on disk, without I/O.

Nothing here reads a disk, a clock or the network: callers hand bytes in and take bytes out. Large
work is plain functions over arrays, which callers run off the event loop. Formats that lie on disk,
and hashes of keys, never change.

- `keys`: keys as hashes and bytes, the hash index, the partitioner, the merge of a recovery.
- `entries`: log entries with their certificate, and results of requests, kept for exactly-once.
- `segments`: segments of rows: open, sealed as a columnar image, or remote.
- `rows`: all rows of one tablet in memory: writes, reads, snapshots, cleaning, transfer.
- `replicated`: the state machine of a tablet with ``replicas(n)``: commands, flushes, manifest.
- `indexes`: entries of secondary indexes, and the indexlets that hold them.
- `files`: formats of the small files and logs on a server's disk.
- `kernels`: loops over many rows, in numba and in plain Python.

Read first: `rows`. Also searched for as: storage engine, memtable, SSTable, codec, on-disk format.
"""
