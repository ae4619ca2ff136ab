"""Rows of tables in one file, or on standard input and output: Parquet, CSV, JSON lines.

Rows pass in pieces of a few megabytes, so that memory is bounded, however large the table is. A
value is the same afterwards, or it is refused by its column and row.

- `formats`: which format a file has; bytes of files and of standard input.
- `reading`: the rows of a file, piece by piece, in the types of a table.
- `csv_columns`: columns of text as columns of other types.
- `writing`: rows into a file, which gets its name when it is whole.
- `pinned_rows`: the rows of a table as it is now.
- `importing`, `exporting`: both ends together.

Read first: `importing`. Also searched for as: load CSV, dump table, NDJSON, JSON lines, COPY.
"""
