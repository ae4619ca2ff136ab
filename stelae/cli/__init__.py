"""The command line: a module for each group of commands, put together in `app`.

Errors are sentences on standard error; with ``--json`` every result and every error is a document
on standard output. Exit codes: 0 well, 1 failed or unhealthy, 2 used wrongly, 130 interrupted. A
module that is slow to import is imported by the command that needs it.

- `app`: the commands of a whole cluster, and the entry point.
- `audit`: calls of admins over HTTP.
- `cluster`: commands about servers, masters, safekeepers, plans, certificates, tokens.
- `table`: commands about tables, tablets, rows, indexes and backups.
- `files`: the rows of a table in a file: Parquet, CSV, NDJSON.
- `which_cluster`: the options that every command has.
- `output`, `values`: how results are shown, and how values are written.

Read first: `app`. Also searched for as: CLI, command-line tool, admin tool, typer, exit codes.
"""
