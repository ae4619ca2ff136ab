"""What tablets of every durability share: reads, checked input, cleaning, transfer of rows.

A reader never sees what a crash could take back: a read waits until what it saw is committed. Input
from the network is checked before it is believed. A cleaning pass that is given up has changed
nothing but memory.

- `reads`: rows by key and scans, in the columns that the caller knows; `rows_then`: a pinned state.
- `input`: checks rows and requests that arrive, and encodes rows that are returned.
- `small_writes`: one-row writes that share an entry of a replicated tablet's log.
- `cleaning`: passes over the memory and the log of a tablet with an owner; `survivor_images` brings
  what they keep into memory.
- `transfer`: brings all rows over to the tablet that succeeds this one, then fences writes.
- `load_rate`: calls per second, as a decayed mean, for the masters.

Read first: `reads`. Also searched for as: compaction, tombstone, log cleaner, online migration.
"""
