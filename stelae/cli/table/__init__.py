"""Commands about tables, their tablets, indexes and backups.

- `tables`: ``stelae table``: list, describe, rename, alter; `create`: create, drop.
- `rows`: get, put, delete-rows, scan, count.
- `indexes`: ``stelae table index``: list, create, drop.
- `locate`: where tablets are, or have gone.
- `transfers`: tables to a file or to folders of Parquet files, and back.
- `backup`: backups in an archive: create, list, verify, restore, prune.
- `quarantine`: what deleted replicas have left on disks.

Read first: `tables`. Also searched for as: DDL, export, import, Parquet, describe table.
"""
