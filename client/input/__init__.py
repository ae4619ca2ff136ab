"""What users hand in, checked and brought into one form before anything is sent.

Direct and HTTP access refuse the same input with the same words. A call is cut by tablet with the
table's partitioning, then by the shares of tablets that were split.

- `given`: columns, keys, rows and versions as users give them, checked.
- `convert`: dicts, Arrow, pandas and polars to the rows of a call, and back.
- `filters`: the filters of scans, from the lists that people write to the form that travels.
- `known`: one version of a table's record, and all that a handle derives from it.
- `split_tablets`: which tablets have which rows where some were split at a recovery.

Read first: `given`. Also searched for as: validation, type conversion, predicate pushdown, routing.
"""
