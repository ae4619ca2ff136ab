"""Rows by the value of an indexed column: look-ups in indexlets, then reads of the rows they name.

An index may name too much for a moment, never too little: a row is returned only if it still has
the entry that named it. A row that has the value throughout is found.

1. `calls` defines `find` and its pages; `query` checks a call, and makes a range of entries of it.
2. `table_finds` asks the indexlets of that range, one piece after the other.
3. `shared_finds` and `shared_lookups` let look-ups of one value that are under way share messages.
4. Few entries are read in small calls (`few`), many by `get_many`; `query` drops what is stale.
5. While an indexlet is being filled, the call waits, or the rest of the range is scanned.

`blocking_find` finds a few rows from the caller's own thread. `read_table` is what finds need of
the table. `index_calls` makes, drops and lists indexes.

Read first: `table_finds`. Also searched for as: secondary index, index scan, SLIK, pagination.
"""
