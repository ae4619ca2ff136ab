"""Keys as hashes and bytes, the hash index over them, and the merge that recovery makes by them.

Hashes, encodings and the partitioning of keys must never change: they lie in summaries on disk, and
clients and servers both compute them. Equal hashes mean equal keys for exact keys only; for all
others the caller compares the keys themselves. A merge does not depend on order: versions decide.

- `codec`: a key to its hash and encoding; `decoding`: back from a segment's summary.
- `partitioner`: which tablet a row belongs to, by hash, by range, or both.
- `hash_index`: from a key's hash to the position of its newest row; it grows in small steps.
- `bloom_filter`: which keys the log may hold in a segment, for the cleaning of tombstones.
- `merge`: of all rows of a log, the newest of each key, put into the table of the new index.
- `winners`: the same rows without an index, for recovery tasks in Spark.

Read first: `hash_index`. Also searched for as: primary key index, sharding, hash partitioning.
"""
