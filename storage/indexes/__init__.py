"""Entries of secondary indexes: byte strings in the order of value and key, in sorted runs.

An entry is the encoding of a value followed by that of a primary key; both sort as the values do.
Of all that was said of an entry the greatest stamp wins, in whatever order it arrived. Runs never
change.

1. `keys` encodes value and key of a row into an entry, one at a time or in batches.
2. `indexlet` takes an insertion or removal with its stamp into a small tail.
3. A full tail becomes a sorted run; `runs` merges runs, the greatest stamp of each entry wins.
4. A look-up reads a range of the runs and the tail, and leaves removed entries out.
5. `log_entries` makes the entries of a log's live rows from its segments, for a recovery job.

Read first: `indexlet`. Also searched for as: LSM tree, memcomparable encoding, secondary index.
"""
