"""All rows of one tablet in memory: writes, reads, snapshots, schema versions, cleaning, transfer.

A call is checked as a whole before anything is changed. The index holds exactly the live rows.
Versions rise in log order and are never given twice, also across recoveries. A row's position stays
valid until its segment is dropped. A snapshot never changes.

1. `memory` executes a call's rows, all or none, as one log entry.
2. `shapes` checks the types and sizes of small calls; `schemas` and `versions` map older schemas.
3. `write` plans against index and rows (`store`), checks conditions, then appends and kills rows.
4. `gather` reads rows by position, and takes snapshots, which `filters` narrows.
5. `cleaning` chooses segments; `survivors` keeps their live rows; `tablet_segments` swaps them.

`row_entries` makes index entries of rows. `transfer` moves a tablet's rows into another tablet in
pieces. `inheriting` orders what a part of a split tablet takes over.

Read first: `memory`. Also searched for as: memtable, MVCC snapshot, compaction, optimistic lock.
"""
