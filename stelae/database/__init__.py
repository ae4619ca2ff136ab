"""What users hold: a `Database` and its `Table` objects, blocking, with async twins under ``aio``.

All work is done by `stelae.client` on a loop of its own; these classes block for it. Calls of one
row or a few go straight from the caller's thread.

- `api`: databases and tables: create, write, read, scan, alter.
- `indexes`: rows by the value of an indexed column.
- `operations`, `safekeepers`, `tokens`: what operators use.
- `backups`, `transfers`: backups in an archive; tables to Parquet files and back.
- `progress`, `html_views`: what a notebook shows.
- `callers`: who opens a connection, for the audit log.

Read first: `api`. Also searched for as: public API, facade, blocking client, notebook.
"""
