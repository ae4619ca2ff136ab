"""Tables as users define them: columns and keys, values, partitioning, durability, indexes.

A column is known by its id, and ids are never given twice. Key columns stay as they are. Values
that would lose something are refused. Clients and servers both compute shares of split tablets, so
their numbers must never change.

- `schema`: an Arrow schema with its primary key; the limits on both.
- `values`: values on the wire, and Arrow data on its way into a table.
- `exact`: Python values as a column; `casts`: Arrow data in another type; both exact, or refused.
- `own_tables`: reserved names of Stelae's own tables; `audit`: the columns of the audit table.
- `sizes`: bytes of rows, and rows cut into calls by them.
- `alter`: how a schema changes: columns and indexes, all or nothing.
- `partition`: how a table is cut into tablets, by hash, range or both.
- `durability`: ``segments``, ``replicas`` and ``wal``: who has to agree before an entry counts.
- `indexes`: secondary indexes, and ranges of their entries.
- `shares`: which rows each part of a split tablet has, and how parts are numbered.

Read first: `schema`. Also searched for as: DDL, data types, schema evolution, sharding, Arrow.
"""
