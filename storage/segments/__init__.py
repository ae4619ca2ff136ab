"""Segments of a tablet's log: open in memory, sealed as a columnar image, or still on backups.

A segment has one schema from its first row to its last. A row keeps its number for good. A
tombstone is never live. Bytes of an image are shown only after they were checked against the
image's own checksums.

1. `segment` takes rows and batches in log order as `runs`, and keeps which of them are live.
2. `image` seals a segment: rows, summary, meta and checksums; `layout` says its stored schema.
3. `projection` shows the rows of an older schema in the table's present columns.
4. `recovered` brings what a recovery finds, sealed or in row form, into one shape for the merge.
5. `remote` stands for a sealed segment whose summary alone is in memory, until its image arrives.

`partial_image`, `image_rows`, `checked_blocks` and `cells` read single rows of an image. `shares`
and `picked` are about the rows that a part of a split tablet takes.

Read first: `segment`. Also searched for as: SSTable, Parquet, Arrow IPC, columnar, block checksum.
"""
