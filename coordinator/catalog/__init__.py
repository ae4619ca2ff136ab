"""The catalog: the state machine behind the masters' log, and the one way to change it.

One logical operation is one entry, applied as a whole or not at all. Every record names the
generation that it follows, so an entry drafted from an outdated look changes nothing, on every
master alike. Readers see only what is committed. Records of deleted tables stay. A request takes
effect once, and a refusal is kept as well.

1. `operations` takes the locks of tables and tablets, in the order of their ids.
2. The caller's draft makes a batch of new records from committed ones.
3. `operations` replicates the batch as one entry of the masters' Raft log.
4. `catalog` applies it on every master: compares generations, then replaces the records.
5. A conflict makes `operations` draft again, a bounded number of times.

Parts of the catalog: `indexes` (indexlets), `timelines` (safekeepers and configurations), `backups`
(register, copysets, losses), `heirs` (split tablets), `graveyard` (deleted tables, packed).

Read first: `catalog`. Also searched for as: metastore, sys.catalog, compare-and-set, DDL.
"""
