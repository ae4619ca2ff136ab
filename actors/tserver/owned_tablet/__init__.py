"""A tablet with one owner, for tables with ``segments(…)`` or ``wal(n)``: one copy of its rows.

A write is checked, applied, encoded and appended in one turn of the event loop, without an await.
Then it waits until the log says that it counts. A tablet whose log was fenced is given up as a
whole, never repaired.

1. `tablet` looks up the request id (`requests`): a repeated call gets its first answer.
2. With indexes, `indexing` first puts the entries of the new rows in.
3. `tablet` executes the call in memory, and appends one entry to its `tablet_log`.
4. Rows that are still on backups are brought by `loading`; then the call is looked at again.
5. The client is answered when the entry is committed; a full head is followed by a new one.

`inheriting` makes the rows of a split tablet its own. `succession` hands the tablet over to one of
another durability.

Read first: `tablet`. Also searched for as: single-writer, memtable, apply, request deduplication.
"""
